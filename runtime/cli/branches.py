"""Commands that go along a branch: `curve` on a grid of a parameter, `follow` by arclength."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import interrupts
from ..errors import TimeLimitError
from . import options
from .options import (
    AccuracyOption,
    ColumnsOption,
    ForceOption,
    JsonOption,
    MemoryOption,
    ModelArgument,
    NetcdfOption,
    QuietOption,
    RenameOption,
    RsbOption,
    SeedOption,
    SetOption,
    StartOption,
    TemperatureOption,
    ThreadsOption,
    TimeLimitOption,
)
from .outcome import NO_VERDICT, Exit, Outcome, aside, command, cut_short, kept, saved

if TYPE_CHECKING:
    from ..solving.solution import Solution


@command
def curve(
    model: ModelArgument,
    over: Annotated[
        str,
        typer.Option(
            "--over",
            metavar="NAME=LO:HI:N",
            help="The parameter to follow, alpha=0.1:2:40, lambda=1e-4:1:9:log or alpha=0.5,1,2.",
        ),
    ],
    set_: SetOption = None,
    inverse_temperature: TemperatureOption = None,
    start: StartOption = None,
    accuracy: AccuracyOption = 1e-3,
    rsb: RsbOption = 0,
    output: NetcdfOption = None,
    force: ForceOption = False,
    rename: RenameOption = None,
    columns: ColumnsOption = None,
    time_limit: TimeLimitOption = None,
    memory_limit: MemoryOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Follow a branch along a parameter, as far as it exists, and say where it ends; Ctrl-C keeps what is finished."""
    name, points = options.grid(over)
    shown = options.names("--columns", columns, "columns are expected, as theta_21,test_error")
    target = options.netcdf_file(output, "a curve", force)
    options.prepare(threads, quiet)
    problem = options.problem_of(model, set_, name, inverse_temperature)
    symbols = options.own_symbols(problem, rename)
    begin = options.start_of(problem, start)
    from ..problems.columns import BROKEN
    from ..report.branches import check_columns

    check_columns(problem, name, symbols, shown, *(BROKEN if rsb else ()))
    from ..branches.branch import Curve
    from ..breaking.curve import BrokenCurve
    from ..breaking.curve import curve as follow
    from ..breaking.solution import BrokenSolution

    reached: list[Any] = []

    def finish(solution: Solution | BrokenSolution) -> None:
        """What is printed and written of a point is part of it."""
        beside = solution.symmetric if isinstance(solution, BrokenSolution) else solution
        if beside.losses is not None:
            _finish(beside)
            _ = beside.thermal if json else None

    def keep(solution: Solution | BrokenSolution) -> None:
        finish(solution)
        reached.append(solution)

    interrupted = False
    try:
        with interrupts.recognised():
            branch = follow(
                problem, rsb=rsb, start=begin, over=name, values=points, accuracy=accuracy, seed=seed, on_point=keep
            )
            with suppress(TimeLimitError):
                for solution in branch.solutions:  # those by which an end was narrowed down, too
                    finish(solution)
        interrupts.ignore()
    except KeyboardInterrupt:
        interrupts.ignore()
        interrupted = True
        ordered = sorted(reached, key=lambda s: s.problem.value_of(name))
        branch = (BrokenCurve if rsb else Curve)(name, begin, tuple(ordered), (None, None))
    from ..report.branches import broken_curve_table, curve_json, curve_table

    status, message = Exit.DONE, ""
    weak = [s for s in branch.solutions if not s.success]
    early = cut_short(interrupted, branch.out_of_time)
    if early is not None:
        target, output = aside(target, output)
        status, message = early, kept(early, len(branch.solutions), len(points), output)
    elif not branch.solutions:
        status = Exit.NOT_CONVERGED
        message = (
            f"the {begin} branch was found neither at the ends nor in the middle of {name} = {points[0]:g}.."
            f"{points[-1]:g}; try another interval, or "
            f"`saddleforge solve {model} --start {begin}` to see where the iteration goes"
        )
    elif weak:
        status = Exit.NOT_CONVERGED
        values = ", ".join(f"{s.problem.value_of(name):g}" for s in weak)
        reason = weak[0].advice
        message = f"the accuracy {accuracy:g} was not reached at {name} = {values}; {reason}"
    text, descending = "", bool(points[0] > points[-1])
    if branch.solutions or not interrupted:
        told = symbols, shown, descending
        text = broken_curve_table(branch, *told) if isinstance(branch, BrokenCurve) else curve_table(branch, *told)
    target = target if branch.solutions else None
    data = partial(curve_json, problem, branch, descending=descending)
    return saved(branch.save, target, output, text, data, status, message)


def _finish(solution: Solution) -> None:
    """The verdict on stability, a part of a finished point.

    Raises:
        TimeLimitError: the time ended before it.
    """
    if solution.stability is None:
        raise TimeLimitError(NO_VERDICT)


@command
def follow(
    model: ModelArgument,
    over: Annotated[
        str,
        typer.Option(
            "--over", metavar="NAME=FROM:TO", help="The parameter, its first and its last value, alpha=2:0.2."
        ),
    ],
    set_: SetOption = None,
    start: StartOption = None,
    accuracy: AccuracyOption = 1e-3,
    event_accuracy: Annotated[
        float, typer.Option("--event-accuracy", help="Largest error bar of every event, in the parameter.")
    ] = 1e-3,
    output: NetcdfOption = None,
    force: ForceOption = False,
    rename: RenameOption = None,
    columns: ColumnsOption = None,
    time_limit: TimeLimitOption = None,
    memory_limit: MemoryOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Follow a branch by arclength, through folds and over unstable stretches; Ctrl-C keeps what is finished."""
    name, ends = options.journey(over)
    shown = options.names("--columns", columns, "columns are expected, as theta_21,test_error")
    options.check_positive("--event-accuracy", event_accuracy)
    target = options.netcdf_file(output, "a branch", force)
    options.prepare(threads, quiet, seed)
    problem = options.problem_of(model, set_, without=name)
    symbols = options.own_symbols(problem, rename)
    begin = options.start_of(problem, start)

    from ..following.follow import follow as walk
    from ..report.branches import check_columns, followed_json, followed_table

    check_columns(problem, name, symbols, shown, "arclength")
    branch = walk(
        problem,
        start=begin,
        over=name,
        between=ends,
        accuracy=accuracy,
        event_accuracy=event_accuracy,
        seed=seed,
        on_point=_finish,
    )
    interrupts.ignore()
    status, message = Exit.DONE, ""
    weak = [s for s in branch.solutions if not s.success]
    early = cut_short(branch.interrupted, branch.out_of_time)
    if early is not None:
        target, output = aside(target, output)
        status, message = early, kept(early, len(branch.solutions), None, output)
    elif weak:
        status = Exit.NOT_CONVERGED
        values = sorted(s.problem.value_of(name) for s in weak)
        message = (
            f"the accuracy {accuracy:g} was not reached at {len(weak)} of {len(branch.solutions)} points, {name} = "
            f"{values[0]:.4g} to {values[-1]:.4g}: near its end a branch determines overlaps poorly"
        )
    elif not all(event.success for event in branch.events):
        status = Exit.NOT_CONVERGED
        message = f"an event was not located to {event_accuracy:g}; ask for a larger --event-accuracy"
    text = followed_table(branch, symbols, shown) if branch.solutions else ""
    target = target if branch.solutions else None
    data = partial(followed_json, problem, branch)
    return saved(branch.save, target, output, text, data, status, message)
