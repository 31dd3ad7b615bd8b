"""`simulate`: the risk minimised at finite d, beside theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import interrupts
from ..errors import InputError
from . import options
from .options import JsonOption, MetricOption, ModelArgument, QuietOption, SetOption, TimeLimitOption
from .outcome import WHY, Exit, Outcome, advice, command, cut_short


@command
def simulate(
    model: ModelArgument,
    set_: SetOption = None,
    d: Annotated[int, typer.Option("--d", help="Dimension of the embeddings; n = alpha d samples.")] = 1000,
    start: Annotated[
        str | None, typer.Option("--start", help="A named start of the model (default: semantic), or random.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="auto|lbfgs|gd|adam|fista|newton|gamp|sgd",
            help="How the risk is minimised; gamp passes messages; sgd is one pass through the data, up to time alpha; "
            "auto: lbfgs, where the loss has corners newton, where only the penalty has fista.",
        ),
    ] = "auto",
    metric: MetricOption = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="Number of draws of the data, from seed --first on.")
    ] = 16,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    theory: Annotated[
        bool,
        typer.Option(
            "--theory", help="Print the saddle point from the same start, too; for sgd, the dynamics of infinite d."
        ),
    ] = False,
    polish: Annotated[
        str | None,
        typer.Option(
            "--polish",
            metavar="wells",
            help="From the minimum found, move samples to lower minima of their one-sample objectives, and minimise "
            "again, until none lowers the risk.",
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts", min=0, help="--polish: number of restarts with a few samples moved; the lowest is kept."
        ),
    ] = 0,
    project: Annotated[
        str | None,
        typer.Option("--project", metavar="OVERLAP", help="Fix an overlap at zero, as theta, m or theta_1_12."),
    ] = None,
    controls: Annotated[
        bool,
        typer.Option(
            "--control-variates",
            help="Reduce standard errors by averages over the same data whose expectations are known.",
        ),
    ] = False,
    tolerance: Annotated[float, typer.Option("--tolerance", help="Gradient norm at which a run has converged.")] = 1e-6,
    most: Annotated[
        int | None, typer.Option("--most", min=1, help="Largest number of iterations (default 20000, or 1000 of gamp).")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            help="Step of gd, times the inverse of the largest curvature, rate of adam, or of sgd, as of `dynamics`.",
        ),
    ] = None,
    batch: Annotated[
        str, typer.Option("--batch", metavar="B", help="sgd: samples of a step, or a fraction of d as 0.5d.")
    ] = "1",
    inertia: Annotated[
        float | None, typer.Option("--inertia", help="gamp: weight on the old conjugates and V.")
    ] = None,
    damping: Annotated[float | None, typer.Option("--damping", help="gamp: weight on the old messages.")] = None,
    free_teacher: Annotated[
        bool,
        typer.Option("--free-teacher", help="Let the Gram matrix of teacher and means fluctuate, as 1/sqrt(d)."),
    ] = False,
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory",
            min=0,
            metavar="GB",
            help="Gigabytes of data a seed may keep (default 1.5); data beyond it are generated again at each step.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE.nc", help="Write every finished seed; continue from those written."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file that contains anything but this simulation.")
    ] = False,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Seeds in parallel (default: all cores).")
    ] = None,
    quiet: QuietOption = False,
) -> Outcome:
    """Draw data at finite d, minimise the risk from a start, and report means and standard errors over seeds."""
    from ..files import occupied
    from ..report.simulation_tables import load_runs
    from ..simulation.run import RANDOM, SGD, Plan, Run, checked
    from ..simulation.simulation import Simulation
    from ..simulation.simulation import simulate as run_all

    target = options.netcdf_file(output, "a simulation", force=True)  # what is there is looked at below
    options.prepare(None, quiet)
    problem = options.problem_of(model, set_, metric=metric)
    overlaps = method == SGD and start is not None and "=" in start
    begin = str(start) if overlaps or start == RANDOM else options.start_of(problem, start)
    chosen: dict[str, Any] = {"tolerance": tolerance, "most": most, "exact": not free_teacher}
    chosen |= {"rate": _rate(rate, method), "batch": batch}
    chosen |= {"polish": polish, "restarts": restarts, "project": project, "controls": controls}
    limit = None if memory is None else 1e9 * memory
    given = (("inertia", inertia), ("damping", damping), ("memory", limit))
    chosen |= {name: value for name, value in given if value is not None}
    plan = checked(Plan(problem, d, begin, method, **chosen))
    if theory and begin == RANDOM and method != SGD:
        raise InputError("--theory goes with a named start, not with --start random")
    known: list[Run] = []
    if target is not None and target.exists():
        try:
            known = load_runs(target, plan)
        except InputError as error:
            if not force:
                raise occupied(output or target, str(error)) from None
    kept = {run.seed: run for run in known}
    unwritten: InputError | None = None

    def keep(run: Run) -> None:
        nonlocal unwritten
        every = {**kept, run.seed: run}
        if target is not None:
            try:
                Simulation(plan, tuple(every[seed] for seed in sorted(every))).save(target)
                unwritten = None
            except InputError as error:  # the disk is full, say: what is found is printed all the same
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
            on_run=keep,
            **chosen,
        )
        if theory and method == SGD and not (simulation.interrupted or simulation.out_of_time):
            from ..descent.dynamics import dynamics

            with interrupts.recognised():
                followed = dynamics(problem, plan.rate or 0.0, plan.times, begin, batch=batch, accuracy=1e-3)
        elif theory and not (simulation.interrupted or simulation.out_of_time):
            from ..solving.solve import solve as solve_saddle_point

            with interrupts.recognised():
                beside = solve_saddle_point(problem, begin, accuracy=1e-3)
                _ = beside.stability
                solution = beside
        interrupts.ignore()
    except KeyboardInterrupt:
        interrupts.ignore()
        simulation = Simulation(plan, tuple(kept[seed] for seed in sorted(kept) if seed in wanted), interrupted=True)
    text, data = simulation.table(), simulation.to_json()
    data |= {"theory": None, "on_branch": None}
    if solution is not None:
        from ..comparison.compare import on_branch

        near = len(on_branch(solution, simulation).runs)
        text += f"\n\nsaddle point, {near} of {len(simulation.converged)} converged runs near it\n{solution.table()}"
        data |= {"theory": solution.to_json(), "on_branch": near}
    if followed is not None:
        if target is not None and simulation.runs:
            from .. import presenting
            from ..report.simulation_tables import beside_dynamics

            presenting.save(beside_dynamics(simulation, followed), target)
        text += f"\n\nof infinite d\n{followed.table()}"
        data |= {"theory": followed.to_json()}
    if unwritten is not None:
        return Outcome(text, data, Exit.WRONG_INPUT, str(unwritten))
    if target is not None and kept:
        text += f"\nwrote {output}"
        data["file"] = str(output)
    early = cut_short(simulation.interrupted, simulation.out_of_time)
    if early is not None:
        message = f"{WHY[early]}; {len(simulation.runs)} of {seeds} seeds are kept"
        if target is None or not kept:
            message = message if simulation.runs else f"{WHY[early]} before the first of {seeds} seeds was finished"
        else:
            more = f", which contains {len(kept)}" if len(kept) != len(simulation.runs) else ""
            message += f" in {output}{more}"
        return Outcome(text, data, early, message)
    missing = seeds - len(simulation.converged)
    if missing:
        message = f"{missing} of {seeds} seeds did not converge ({simulation.status.replace('_', ' ')})"
        return Outcome(text, data, Exit.NOT_CONVERGED, f"{message}; try --most, --tolerance or another --method")
    if followed is not None and not followed.success:
        return Outcome(text, data, Exit.NOT_CONVERGED, f"the dynamics of infinite d: {followed.advice}")
    if solution is not None and not solution.success:
        return Outcome(text, data, Exit.NOT_CONVERGED, f"the saddle point from the same start: {advice(solution)}")
    return Outcome(text, data)


def _rate(text: str | None, method: str) -> float | str | None:
    """A number, but what sgd reads itself."""
    if text is None or method == "sgd":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--rate {text}: {method} takes a number") from None
