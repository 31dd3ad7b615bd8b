"""`simulate`: the risk minimised at finite d, compared with theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ..base import interrupts
from ..base.errors import InputError
from . import options
from .outcome import (
    EARLY_EXIT_MESSAGES,
    CommandOutcome,
    ExitStatus,
    command_with_options,
    early_exit_status,
    explain_solution_failure,
)


@command_with_options("time_limit", "json", "quiet")
def simulate(
    model: str,
    /,
    set_: list[str] | None = None,
    d: int = 1000,
    start: str | None = None,
    method: str = "auto",
    metric: str | None = None,
    seeds: Annotated[int, {"min": 1}] = 16,
    first: Annotated[int, {"min": 0}] = 0,
    theory: bool = False,
    polish: str | None = None,
    restarts: Annotated[int, {"min": 0}] = 0,
    project: str | None = None,
    control_variates: bool = False,
    tolerance: float = 1e-6,
    most: Annotated[int | None, {"min": 1}] = None,
    rate: str | None = None,
    batch: str = "1",
    inertia: float | None = None,
    damping: float | None = None,
    free_teacher: bool = False,
    memory: Annotated[float | None, {"min": 0}] = None,
    output: Path | None = None,
    force: bool = False,
    threads: Annotated[int | None, {"min": 1}] = None,
) -> CommandOutcome:
    """Draw data at finite d, minimise the risk from a start, and report means and standard errors over seeds.

    Args:
        d: Dimension of the embeddings; n = alpha d samples.
        start: A named start of the model (default: informed; semantic with several tokens), or random.
        method ({methods}): How the risk is minimised; {trainings}.
        seeds: Number of draws of the data, from seed --first on.
        first: The first seed.
        theory: Print the saddle point from the same start, too; for sgd, the dynamics of infinite d.
        polish (minima): From the minimum found, move samples to lower minima of their one-sample objectives, and
            minimise again, until none lowers the risk.
        restarts: --polish: number of restarts with a few samples moved; the lowest is kept.
        project (OVERLAP): Fix an overlap at zero, as theta, m or theta_1_12.
        control_variates: Reduce standard errors by averages over the same data whose expectations are known.
        tolerance: Gradient norm at which a run has converged.
        most: Largest number of iterations (default 20000, or 1000 of gamp).
        rate: A step or a learning rate; {rates}.
        batch (B): sgd: samples of a step, or a fraction of d as 0.5d.
        inertia: gamp: weight on the old conjugates and V.
        damping: gamp: weight on the old messages.
        free_teacher: Let the Gram matrix of teacher and means fluctuate, as 1/sqrt(d).
        memory (GB): Gigabytes of data a seed may keep (default 1.5); data beyond it are generated again at each step.
        output (FILE.nc): Write every finished seed; continue from those written.
        force: Overwrite a file that contains anything but this simulation.
        threads: Seeds in parallel (default: all cores).
    """
    from ..base.files import file_exists_error
    from ..extensions.simulation.methods import METHODS
    from ..extensions.simulation.plan import RANDOM, SimulationPlan
    from ..extensions.simulation.run import SeedRun, validate_simulation_plan
    from ..extensions.simulation.simulation import Simulation
    from ..extensions.simulation.simulation import simulate as run_all
    from ..report.simulation_tables import load_simulation_runs

    file = options.check_netcdf_output_option(output, "a simulation", force=True)  # an existing file is checked below
    problem = options.build_problem_from_options(model, set_, metric=metric)
    one_pass = method in METHODS and METHODS[method].one_pass
    overlaps = one_pass and start is not None and "=" in start
    begin = str(start) if overlaps or start == RANDOM else options.select_start(problem, start)
    chosen: dict[str, Any] = {"tolerance": tolerance, "most": most, "exact": not free_teacher}
    chosen |= {"rate": rate if one_pass else _parse_learning_rate(rate, method), "batch": batch}
    chosen |= {"polish": polish, "restarts": restarts, "project": project, "controls": control_variates}
    limit = None if memory is None else 1e9 * memory
    chosen |= options.options_that_were_given(inertia=inertia, damping=damping, memory=limit)
    plan = validate_simulation_plan(SimulationPlan(problem, d, begin, method, **chosen))
    if theory and begin == RANDOM and not one_pass:
        raise InputError("--theory needs a named start of the model; --start random has no saddle point of its own")
    known: list[SeedRun] = []
    if file is not None and file.path.exists():
        try:
            known = load_simulation_runs(file.path, plan)
        except InputError as error:
            if not force:
                raise file_exists_error(file.name, str(error)) from None
    kept = {run.seed: run for run in known}
    unwritten: InputError | None = None

    def save_finished_simulation_run(run: SeedRun) -> None:
        nonlocal unwritten
        every = {**kept, run.seed: run}
        if file is not None:
            try:
                Simulation(plan, tuple(every[seed] for seed in sorted(every))).save(file.path)
                unwritten = None
            except InputError as error:  # for example the disk is full: the result is printed all the same
                unwritten = error
        kept[run.seed] = run

    wanted = range(first, first + seeds)
    solution, followed = None, None
    try:
        simulation = run_all(
            problem,
            d=d,
            seeds=wanted,
            start=begin,
            method=method,
            threads=threads,
            known=known,
            on_run=save_finished_simulation_run,
            **chosen,
        )
        if theory and one_pass and not (simulation.interrupted or simulation.out_of_time):
            from ..extensions.descent.dynamics import dynamics

            with interrupts.restore_keyboard_interrupt():
                followed = dynamics(problem, plan.rate or 0.0, plan.recording_times, begin, batch=batch, accuracy=1e-3)
        elif theory and not (simulation.interrupted or simulation.out_of_time):
            from ..solving.solve import solve as solve_saddle_point

            with interrupts.restore_keyboard_interrupt():
                theory_solution = solve_saddle_point(problem, begin, accuracy=1e-3)
                _ = theory_solution.stability
                solution = theory_solution
        interrupts.ignore_interrupts()
    except KeyboardInterrupt:
        interrupts.ignore_interrupts()
        simulation = Simulation(plan, tuple(kept[seed] for seed in sorted(kept) if seed in wanted), interrupted=True)
    text, data = simulation.table(), simulation.to_json()
    data |= {"theory": None, "on_branch": None}
    if solution is not None:
        from ..extensions.comparison.compare import runs_on_branch

        near = len(runs_on_branch(solution, simulation).runs)
        text += f"\n\nsaddle point, {near} of {len(simulation.converged)} converged runs near it\n{solution.table()}"
        data |= {"theory": solution.to_json(), "on_branch": near}
    if followed is not None:
        if file is not None and simulation.runs:
            from ..base import presenting
            from ..report.simulation_tables import add_dynamics_at_infinite_d

            presenting.save(add_dynamics_at_infinite_d(simulation, followed), file.path)
        text += f"\n\nof infinite d\n{followed.table()}"
        data |= {"theory": followed.to_json()}
    if unwritten is not None:
        return CommandOutcome(text, data, str(unwritten), ExitStatus.WRONG_INPUT)
    if file is not None and kept:
        text += f"\nwrote {file.name}"
        data["file"] = str(file.name)
    early = early_exit_status(simulation.interrupted, simulation.out_of_time)
    if early is not None:
        message = f"{EARLY_EXIT_MESSAGES[early]}; {len(simulation.runs)} of {seeds} seeds are kept"
        if file is None or not kept:
            message = (
                message
                if simulation.runs
                else f"{EARLY_EXIT_MESSAGES[early]} before the first of {seeds} seeds was finished"
            )
        else:
            more = f", which contains {len(kept)}" if len(kept) != len(simulation.runs) else ""
            message += f" in {file.name}{more}"
        return CommandOutcome(text, data, message, early)
    missing, message = seeds - len(simulation.converged), ""
    if missing:
        message = f"{missing} of {seeds} seeds did not converge ({simulation.status.replace('_', ' ')})"
        message += "; try --most, --tolerance or another --method"
    elif followed is not None and not followed.success:
        message = f"the dynamics of infinite d: {followed.advice}"
    elif solution is not None and not solution.success:
        message = f"the saddle point from the same start: {explain_solution_failure(solution)}"
    return CommandOutcome(text, data, message)


def _parse_learning_rate(text: str | None, method: str) -> float | None:
    """Parse the learning rate of a simulation method that takes a number; None if it was not given."""
    if text is None:
        return None
    return options.convert_parts_of_option("--rate", text, f"{method} takes a number", [text], float)[0]
