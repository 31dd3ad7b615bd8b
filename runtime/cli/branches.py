"""Commands along a branch: `curve` on a grid of a parameter, `follow` by arclength."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base import interrupts
from ..base.errors import TimeLimitError
from . import options
from .outcome import NO_VERDICT, CommandOutcome, command_with_options, early_exit_status, save_result_and_report

if TYPE_CHECKING:
    from ..solving.solution import Solution


@command_with_options("time_limit", "memory_limit", "json", "threads", "seed", "device", "quiet")
def curve(
    model: str,
    /,
    *,
    over: str,
    set_: list[str] | None = None,
    inverse_temperature: float | None = None,
    start: str | None = None,
    accuracy: float = 1e-3,
    rsb: int = 0,
    output: Path | None = None,
    force: bool = False,
    rename: list[str] | None = None,
    columns: str | None = None,
    json: bool = False,
    seed: int = 0,
) -> CommandOutcome:
    """Follow a branch along a parameter, as far as it exists, and report where it ends; Ctrl-C keeps finished points.

    Args:
        over (NAME=LO:HI:N): The parameter and its values: alpha=0.1:2:40, lambda=1e-4:1:9:log or alpha=0.5,1,2.
    """
    name, points = options.parse_parameter_grid(over)
    shown = options.parse_name_list("--columns", columns, "columns are expected, as theta_21,test_error")
    file = options.check_netcdf_output_option(output, "a curve", force)
    problem = options.build_problem_from_options(model, set_, name, inverse_temperature=inverse_temperature)
    symbols = options.parse_user_symbols(problem, rename)
    begin = options.select_start(problem, start)
    from ..problems.columns import BROKEN
    from ..report.branches import check_branch_columns

    check_branch_columns(problem, name, symbols, shown, *(BROKEN if rsb else ()))
    from ..branches.curve_results import Curve
    from ..extensions.breaking.curve import BrokenCurve
    from ..extensions.breaking.curve import curve as follow
    from ..extensions.breaking.solution import BrokenSolution

    reached: list[Any] = []

    def compute_reported_quantities(solution: Solution | BrokenSolution) -> None:
        """Compute everything that is printed or written about a solution (stability verdict, Gibbs averages)."""
        judged_solution = solution.symmetric if isinstance(solution, BrokenSolution) else solution
        if judged_solution.losses is not None:
            _require_stability_verdict(judged_solution)
            _ = judged_solution.thermal if json else None

    def judge_and_record_solution(solution: Solution | BrokenSolution) -> None:
        compute_reported_quantities(solution)
        reached.append(solution)

    interrupted = False
    try:
        with interrupts.restore_keyboard_interrupt():
            branch = follow(
                problem,
                rsb=rsb,
                start=begin,
                over=name,
                values=points,
                accuracy=accuracy,
                seed=seed,
                on_point=judge_and_record_solution,
            )
            with suppress(TimeLimitError):
                for solution in branch.solutions:  # those computed to locate an end, too
                    compute_reported_quantities(solution)
        interrupts.ignore_interrupts()
    except KeyboardInterrupt:
        interrupts.ignore_interrupts()
        interrupted = True
        ordered = sorted(reached, key=lambda s: s.problem.value_of_parameter(name))
        branch = (BrokenCurve if rsb else Curve)(name, begin, tuple(ordered), (None, None))
    from ..report.branches import curve_json, curve_table

    message = ""
    weak = [s for s in branch.solutions if not s.success]
    if not branch.solutions:
        message = (
            f"the {begin} branch was found neither at the ends nor in the middle of {name} = {points[0]:g}.."
            f"{points[-1]:g}; try another interval, or "
            f"`saddleforge solve {model} --start {begin}` to see where the iteration goes"
        )
    elif weak:
        values = ", ".join(f"{s.problem.value_of_parameter(name):g}" for s in weak)
        reason = weak[0].advice
        message = f"the accuracy {accuracy:g} was not reached at {name} = {values}; {reason}"
    text, descending = "", bool(points[0] > points[-1])
    if branch.solutions or not interrupted:
        text = curve_table(branch, symbols, shown, descending)
    data = partial(curve_json, problem, branch, descending=descending)
    early = early_exit_status(interrupted, branch.out_of_time)
    return save_result_and_report(branch.save, file, text, data, message, early, (len(branch.solutions), len(points)))


def _require_stability_verdict(solution: Solution) -> None:
    """Compute the stability verdict of a solution, without which its point does not count as finished.

    Raises:
        TimeLimitError: the time limit ended the computation.
    """
    if solution.stability is None:
        raise TimeLimitError(NO_VERDICT)


@command_with_options("time_limit", "memory_limit", "json", "threads", "seed", "device", "quiet")
def follow(
    model: str,
    /,
    *,
    over: str,
    set_: list[str] | None = None,
    start: str | None = None,
    accuracy: float = 1e-3,
    event_accuracy: float = 1e-3,
    output: Path | None = None,
    force: bool = False,
    rename: list[str] | None = None,
    columns: str | None = None,
    seed: int = 0,
) -> CommandOutcome:
    """Follow a branch by arclength, through folds and where it is unstable; Ctrl-C keeps finished points.

    Args:
        over (NAME=FROM:TO): The parameter with its first and last value, as alpha=2:0.2.
        event_accuracy: Largest error bar of the parameter at every event (fold, merger, instability).
    """
    name, ends = options.parse_parameter_endpoints(over)
    shown = options.parse_name_list("--columns", columns, "columns are expected, as theta_21,test_error")
    file = options.check_netcdf_output_option(output, "a branch", force)
    problem = options.build_problem_from_options(model, set_, name)
    symbols = options.parse_user_symbols(problem, rename)
    begin = options.select_start(problem, start)

    from ..following.follow import follow as follow_branch
    from ..report.branches import check_branch_columns, followed_branch_json, followed_branch_table

    check_branch_columns(problem, name, symbols, shown, "arclength")
    branch = follow_branch(
        problem,
        start=begin,
        over=name,
        between=ends,
        accuracy=accuracy,
        event_accuracy=event_accuracy,
        seed=seed,
        on_point=_require_stability_verdict,
    )
    early, message = early_exit_status(branch.interrupted, branch.out_of_time), ""
    weak = [s for s in branch.solutions if not s.success]
    if weak:
        values = sorted(s.problem.value_of_parameter(name) for s in weak)
        message = (
            f"the accuracy {accuracy:g} was not reached at {len(weak)} of {len(branch.solutions)} points, {name} = "
            f"{values[0]:.4g} to {values[-1]:.4g}: near its end a branch determines overlaps poorly"
        )
    elif not all(event.success for event in branch.events):
        message = f"an event was not located to {event_accuracy:g}; allow larger error bars (--event-accuracy)"
    text = followed_branch_table(branch, symbols, shown) if branch.solutions else ""
    data = partial(followed_branch_json, problem, branch)
    return save_result_and_report(branch.save, file, text, data, message, early, (len(branch.solutions), None))
