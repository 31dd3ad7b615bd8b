"""`tune`: where an observable is least on a branch, and with --along the curve of such optima."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import interrupts
from ..errors import InputError
from . import options
from .options import (
    ForceOption,
    IntegratorOption,
    JsonOption,
    MemoryOption,
    MetricOption,
    ModelArgument,
    OnOption,
    PointsOption,
    QuietOption,
    SeedOption,
    SetOption,
    ThreadsOption,
    TimeLimitOption,
)
from .outcome import Exit, Outcome, aside, command, cut_short, kept, saved

if TYPE_CHECKING:
    from ..problems.problem import Problem


@command
def tune(
    model: ModelArgument,
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="NAME[=LO:HI]",
            help="The parameter to tune, and where, as lambda=1e-3:10; repeat it to tune several together.",
        ),
    ],
    minimise: Annotated[
        str,
        typer.Option(
            "--minimise",
            metavar="OBSERVABLE",
            help="As test_error, one of several metrics by name, theta, training_loss. With a minus it is maximised: "
            "--minimise=-theta.",
        ),
    ] = "test_error",
    metric: MetricOption = None,
    on: OnOption = None,
    along: Annotated[
        str | None,
        typer.Option(
            "--along", metavar="NAME=LO:HI:N", help="Tune at every value of another parameter: lambda*(alpha)."
        ),
    ] = None,
    set_: SetOption = None,
    accuracy: Annotated[
        float,
        typer.Option(
            "--accuracy", help="Largest error bar of the parameter, relative to it where it must be positive."
        ),
    ] = 1e-4,
    integrator: IntegratorOption = "auto",
    points: PointsOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="With --along the curve as netCDF; of several parameters the object of --json.",
        ),
    ] = None,
    force: ForceOption = False,
    time_limit: TimeLimitOption = None,
    memory_limit: MemoryOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Find where an observable is least on a branch (or most, --minimise=-NAME): the regularisation of least test
    error, or any other parameter."""
    spans = [options.interval(item) for item in over]
    name, bracket = spans[0]
    several = len(spans) > 1
    if several and along is not None:
        raise InputError("--along goes with one --over")
    if output is not None and along is None and not several:
        raise InputError("-o goes with --along NAME=LO:HI:N, or with several --over")
    target = _object_file(output, force) if several else options.netcdf_file(output, "a curve", force)
    points = options.checked_points(integrator, points)
    options.prepare(threads, quiet, seed)
    problem = options.problem_of(model, set_, without=None if several else name, metric=metric)
    chosen: dict[str, Any] = {
        "minimise": minimise,
        "on": options.start_of(problem, on),
        "bracket": bracket,
        "accuracy": accuracy,
        "seed": seed,
        "integrator": integrator,
        "points": points,
    }
    if several:
        return _several(problem, spans, chosen, output, target)
    from ..responses.tuned_curve import tuned_curve
    from ..responses.tuning import tune as tune_one

    if along is None:
        found = tune_one(problem, name, **chosen)
        status = Exit.DONE if found.success else Exit.NOT_CONVERGED
        return Outcome(found.table(), found.to_json, status, found.advice)
    from ..report.responses import tuned_json

    second, values = options.grid(along, "--along")
    if second in options.assignments(set_):
        raise InputError(f"{second} is given by --set and varied by --along; leave one out")
    curve = tuned_curve(
        problem,
        name,
        over=second,
        values=values,
        on_point=lambda optimum: optimum.solution.stability,
        **chosen,
    )
    interrupts.ignore()
    early = cut_short(curve.interrupted, curve.out_of_time)
    if early is not None and not curve.success:
        target, output = aside(target, output)
    reasons = [kept(early, len(curve.optima), len(values), output)] if early is not None else []
    if early is not Exit.INTERRUPTED:
        reasons += [o.advice for o in curve.optima if not o.success] + [f"no optimum at {v:g}" for v in curve.missing]
    message = "; ".join(reasons[:1] + ([f"and {len(reasons) - 1} more"] if len(reasons) > 1 else []))
    status = early or Exit.NOT_CONVERGED
    if curve.success and early is not Exit.INTERRUPTED:
        status = Exit.DONE  # the time may have ended in the check of the last point, which stands without it
    return saved(curve.save, target, output, curve.table(), lambda _, file: tuned_json(curve, file), status, message)


def _object_file(output: Path | None, force: bool) -> Path | None:
    """Where the JSON object goes.

    Raises:
        InputError: a file is there already, or nothing can be written there.
    """
    from ..files import new_file

    return new_file(output, force) if output is not None else None


def _several(
    problem: Problem,
    spans: list[tuple[str, tuple[float, float] | None]],
    chosen: dict[str, Any],
    output: Path | None,
    target: Path | None,
) -> Outcome:
    """Several parameters together; what was tried before a limit or Ctrl-C is kept."""
    from ..files import write_whole
    from ..report.contract import dumps
    from ..responses.tuning import tune as tune_together

    names = [name for name, _ in spans]
    brackets = {name: bracket for name, bracket in spans if bracket is not None}
    found = tune_together(problem, names, **{**chosen, "bracket": brackets})
    interrupts.ignore()
    early = {"interrupted": Exit.INTERRUPTED, "time_limit": Exit.TIME_LIMIT}.get(found.status)
    if early is not None:
        target, output = aside(target, output)
    status = early or (Exit.DONE if found.success else Exit.NOT_CONVERGED)
    data = found.to_json()

    def save(path: Path) -> None:
        write_whole(path, dumps(data) + "\n")

    return saved(save, target, output, found.table(), lambda word, file: data, status, found.advice)
