"""Commands about a single saddle point: `solve` and `stability`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..base.errors import InputError, NotConvergedError, NotProvedError, TimeLimitError
from . import options
from .outcome import (
    NO_VERDICT,
    CommandOutcome,
    ExitStatus,
    command_with_options,
    explain_solution_failure,
    save_result_and_report,
)

if TYPE_CHECKING:
    from ..extensions.reference.solution import PreciseSolution
    from ..problems.overlaps import Overlaps
    from ..problems.problem import Problem
    from ..solving.solution import Solution


@command_with_options("time_limit", "memory_limit", "json", "threads", "seed", "device", "quiet")
def solve(
    model: str,
    /,
    set_: list[str] | None = None,
    inverse_temperature: float | None = None,
    start: str | None = None,
    all_branches: bool = False,
    deflate: Annotated[int, {"min": 0}] = 0,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    from_: Path | None = None,
    output: Path | None = None,
    force: bool = False,
    sensitivities: str | None = None,
    verify: bool = False,
    proof: bool = False,
    stability: bool = True,
    explain: bool = False,
    rsb: int = 0,
    parisi: float | None = None,
    rename: list[str] | None = None,
    seed: int = 0,
) -> CommandOutcome:
    """Solve the saddle point from one start, or find and rank all branches.

    Args:
        all_branches: Solve from every start and rank what is found by training loss.
        deflate: With --all-branches: number of further attempts, by deflation of known solutions.
        output (FILE): Write the JSON object to a file as well.
        sensitivities (NAME,NAME|all): Add derivatives of overlaps, losses and errors with respect to these parameters,
            as alpha,lambda.
        verify: Verify the error bars by solving again with a different quadrature rule.
        stability: Judge whether the solution is stable (--no-stability saves time).
        explain: Explain the choice of the quadrature rule: dimensions, kinks and jumps of the averages, rules tried.
        parisi (Y): With --rsb 1: Parisi parameter y, instead of that of the states of lowest energy.
    """
    from ..base.files import absolute_path, write_atomically
    from ..extensions.digits import DOUBLES
    from ..report.contract import json_text_with_schema

    if sum([start is not None, from_ is not None, all_branches]) > 1:
        raise InputError("--start, --from and --all-branches exclude each other: give one of them")
    if output is not None and output.suffix == ".nc":
        raise InputError(f"-o {output}: solve writes JSON; for netCDF use `saddleforge curve`")
    file = options.check_output_option(output, force)
    from_ = absolute_path(from_) if from_ is not None else None
    problem = options.build_problem_from_options(model, set_, inverse_temperature=inverse_temperature)
    symbols = options.parse_user_symbols(problem, rename)
    wanted = options.parse_name_list(
        "--sensitivities", sensitivities, "parameters are expected, as alpha,lambda, or all"
    )
    wanted = [] if wanted == ["all"] else wanted
    if rsb and accuracy < DOUBLES:
        raise InputError(f"--rsb {rsb} needs an --accuracy of {DOUBLES:g} or above")
    if rsb and not stability:
        raise InputError(f"--rsb {rsb} needs the verdict on stability; leave --no-stability out")
    if rsb and (all_branches or verify or proof or wanted is not None):
        raise InputError(f"--rsb {rsb} needs a single start, without --sensitivities, --verify and --proof")
    if explain and (rsb or all_branches or accuracy < DOUBLES or proof):
        raise InputError(
            f"--explain needs a single start and an --accuracy of {DOUBLES:g} or above, without --rsb and --proof"
        )
    if deflate and not all_branches:
        raise InputError("--deflate needs --all-branches: deflation searches further branches")
    if wanted is not None:
        from ..responses.direction import parameter_directions

        if accuracy < DOUBLES or proof:
            raise InputError(f"--sensitivities needs an --accuracy of {DOUBLES:g} or above, without --proof")
        problem.require_zero_temperature("derivatives with respect to parameters are known")
        parameter_directions(problem, *wanted)
    if all_branches and (verify or proof or wanted is not None):
        raise InputError("--sensitivities, --proof and --verify need a single start; leave --all-branches out")
    chosen: dict[str, Any] = {"accuracy": accuracy, "integrator": integrator, "points": points, "seed": seed}
    if rsb or parisi is not None:
        from ..extensions.breaking.solve import solve as solve_broken

        broken = solve_broken(
            problem, options.load_initial_point(problem, start, from_), rsb=rsb, parisi=parisi, **chosen
        )
        outcome = CommandOutcome(lambda: broken.table(symbols), broken.to_json, explain_solution_failure(broken))
    elif all_branches:
        outcome = _all_branches_outcome(problem, {**chosen, "deflate": deflate}, stability, symbols)
    else:
        begin = options.load_initial_point(problem, start, from_)
        try:
            found = _solution_with_optional_verdict(_solve_from_start(problem, begin, chosen, verify, proof), stability)
            outcome = _solution_outcome(found, wanted, symbols)
            outcome = _add_quadrature_explanation(outcome, found) if explain else outcome
        except NotProvedError as error:
            outcome = _failed_proof_outcome(error, symbols)
    if file is None:
        return outcome
    text, data = outcome.printed_text(), outcome.json_object()

    def save_json_file(path: Path) -> None:
        write_atomically(path, json_text_with_schema(data) + "\n")

    return save_result_and_report(save_json_file, file, text, lambda word, path: data, outcome.message, outcome.status)


def _solution_outcome(
    solution: Solution | PreciseSolution, wanted: list[str] | None, symbols: dict[str, str]
) -> CommandOutcome:
    """Return the outcome of `solve` for a solution, with derivatives in the named parameters (empty list: in all)."""
    from ..solving.solution import Solution as InDoubles

    outcome = CommandOutcome(
        lambda: solution.table(symbols),
        lambda: {**solution.to_json(), "sensitivities": None},
        explain_solution_failure(solution),
    )
    if solution.success and isinstance(solution, InDoubles) and solution.judge and solution.stability is None:
        outcome = replace(outcome, message=NO_VERDICT, status=ExitStatus.TIME_LIMIT)
    if wanted is None or not isinstance(solution, InDoubles) or solution.losses is None:
        return outcome
    from ..responses.sensitivity import sensitivities

    try:
        found = sensitivities(solution, *wanted)
    except (NotConvergedError, TimeLimitError) as error:
        return replace(outcome, message=str(error), status=ExitStatus.NOT_CONVERGED)
    return replace(
        outcome,
        text=lambda: "\n".join([solution.table(symbols), "", found.table()]),
        data=lambda: {**solution.to_json(), "sensitivities": found.to_json()},
    )


def _add_quadrature_explanation(outcome: CommandOutcome, solution: Solution) -> CommandOutcome:
    """Add the explanation of the quadrature rule to an outcome: below the text, and to the JSON object."""
    from ..report.solution import quadrature_explanation_lines

    return replace(
        outcome,
        text=lambda: "\n".join([outcome.printed_text(), *quadrature_explanation_lines(solution)]),
        data=lambda: {**outcome.json_object(), "explanation": solution.explanation},
    )


def _failed_proof_outcome(error: NotProvedError, symbols: dict[str, str]) -> CommandOutcome:
    """Return the outcome of `solve --proof` if the proof failed: the estimate in double precision, and why.

    Raises:
        NotProvedError: there is no estimate, either.
    """
    from ..solving.solution import Solution

    if not isinstance(error.estimate, Solution):
        raise error
    solution, reason = error.estimate, str(error)
    return CommandOutcome(
        lambda: solution.table(symbols),
        lambda: {**solution.to_json(), "status": "not_proved", "not_proved": reason},
        f"not proved: {reason}; what is shown is the estimate in double precision",
    )


def _solve_from_start(
    problem: Problem, begin: str | Overlaps, chosen: dict[str, Any], verify: bool, proof: bool
) -> Solution | PreciseSolution:
    """Solve in double precision, or more precisely if the accuracy or a proof require it; return the solution.

    If a time limit comes first, return the solution in double precision.

    Raises:
        InputError: an integrator is given with an accuracy beyond double precision.
    """
    from ..extensions.digits import DOUBLES
    from ..saddle_point.iteration import Status

    if not (0 < chosen["accuracy"] < DOUBLES or proof):
        from ..solving.solve import solve

        solution = solve(problem, begin, **chosen)
        if verify and solution.losses is not None and solution.status is not Status.TIME_LIMIT:
            from ..solving.verification import verified

            try:
                solution = verified(solution, seed=chosen["seed"] + 1)
            except TimeLimitError:
                return replace(solution, status=Status.TIME_LIMIT)
        return solution
    if chosen["integrator"] != "auto" or chosen["points"] is not None:
        raise InputError(f"--integrator and --points need an --accuracy of {DOUBLES:g} or above, without --proof")
    from ..extensions.digits import solve_precisely

    try:
        return solve_precisely(problem, begin, accuracy=chosen["accuracy"], proof=proof)
    except TimeLimitError as error:
        return replace(error.point, status=Status.TIME_LIMIT)


def _solution_with_optional_verdict(solution: Solution | PreciseSolution, judge: bool) -> Any:
    """Return the solution, for which no stability verdict is computed if `judge` is false."""
    from ..solving.solution import Solution

    return replace(solution, judge=False) if isinstance(solution, Solution) and not judge else solution


def _all_branches_outcome(
    problem: Problem, chosen: dict[str, Any], judge: bool, symbols: dict[str, str]
) -> CommandOutcome:
    from ..base.numbers import format_value_with_error
    from ..report.ansatz import HEADING, is_unstable_beyond_error_bars, stability_verdict_cell
    from ..report.contract import problem_json
    from ..saddle_point.starts import named_starts
    from ..solving.solutions import solutions

    failed: list[Solution] = []
    ranked = [
        _solution_with_optional_verdict(found, judge)
        for found in solutions(problem, on_failure=failed.append, **chosen)
    ]
    if not ranked and all(s.status is failed[0].status for s in failed):
        raise NotConvergedError(
            f"no start of {problem.solver.name} converged to a solution: {failed[0].status.words}; {failed[0].advice}"
        )
    if not ranked:
        raise NotConvergedError(
            f"no start of {problem.solver.name} converged to a solution; `solve --start` with one of "
            f"{', '.join(named_starts(problem))} shows its last iterate and what to try next"
        )
    rows = []
    for s in ranked:
        loss = format_value_with_error(s.training_loss, s.training_loss_error)
        ended = ", ".join(
            [s.status.words, *([stability_verdict_cell(s)] if s.stability else []), f"from start {s.start}"]
        )
        rows.append(f"  {s.rank}  {s.branch:<11} training loss {loss}  {ended}")
    symmetric = f"{HEADING} " if any(is_unstable_beyond_error_bars(s) for s in ranked) else ""
    lines = [f"{len(ranked)} branches found, ranked by {symmetric}training loss:", *rows]
    lines += [line for s in ranked for line in ("", s.table(symbols))]
    weak = [s for s in ranked if not s.success]
    return CommandOutcome(
        "\n".join(lines),
        lambda: {**problem_json(problem), "solutions": [s.to_json() for s in ranked]},
        "; ".join(f"{s.branch}: {explain_solution_failure(s)}" for s in weak),
    )


@command_with_options("time_limit", "memory_limit", "json", "threads", "seed", "device", "quiet")
def stability(
    model: str,
    /,
    set_: list[str] | None = None,
    start: str | None = None,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    from_: Path | None = None,
    rsb: int = 0,
    seed: int = 0,
) -> CommandOutcome:
    """Solve, then print the stability of the solution: spectrum, replicon, proximal jumps, drop of self-overlap."""
    from ..base.files import absolute_path
    from ..extensions.breaking.solve import break_replica_symmetry, check_number_of_breaking_steps
    from ..report.contract import problem_json
    from ..report.stability import stability_table
    from ..solving.solve import solve as solve_from

    if start is not None and from_ is not None:
        raise InputError("--start and --from exclude each other: give one of them")
    from_ = absolute_path(from_) if from_ is not None else None
    problem = options.build_problem_from_options(model, set_)
    begin = options.load_initial_point(problem, start, from_)
    if rsb:
        check_number_of_breaking_steps(rsb, problem)
    solution = solve_from(problem, begin, accuracy=accuracy, integrator=integrator, points=points, seed=seed)
    verdict = solution.stability
    data = {
        **problem_json(problem),
        "start": solution.start,
        "branch": solution.branch,
        "status": solution.status.value,
        "residual": solution.residual,
        "stability": verdict.to_json() if verdict else None,
        "landscape": None,
        "breaking": None,
        "found": None,
    }
    if verdict is None and solution.success:
        return CommandOutcome(solution.table(), data, NO_VERDICT, ExitStatus.TIME_LIMIT)
    if verdict is None:
        return CommandOutcome(solution.table(), data, f"there is no solution: {explain_solution_failure(solution)}")
    try:
        data["landscape"] = solution.landscape.to_json()
    except TimeLimitError:
        late = "the time limit ended the search for minima of the Moreau objective"
        return CommandOutcome(stability_table(solution), data, late, ExitStatus.TIME_LIMIT)
    text = stability_table(solution)
    if not solution.success or not rsb:
        return CommandOutcome(text, data, explain_solution_failure(solution))
    found = break_replica_symmetry(solution, accuracy=accuracy, steps=rsb)
    data |= {"breaking": found.to_json()["breaking"], "found": found.found or None}
    return CommandOutcome(f"{text}\n\n{found.table()}", data, explain_solution_failure(found))
