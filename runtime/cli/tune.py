"""`tune`: where an observable is least on a branch, and with --along the curve of such optima."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import interrupts
from ..errors import InputError
from . import options
from .options import (
    ForceOption,
    JsonOption,
    ModelArgument,
    OnOption,
    QuietOption,
    SeedOption,
    SetOption,
    ThreadsOption,
    TimeLimitOption,
)
from .outcome import Exit, Outcome, aside, command, cut_short, kept, saved


@command
def tune(
    model: ModelArgument,
    over: Annotated[
        str, typer.Option("--over", metavar="NAME[=LO:HI]", help="The parameter to tune, and where, as lambda=1e-3:10.")
    ],
    minimise: Annotated[
        str,
        typer.Option("--minimise", metavar="OBSERVABLE", help="As test_error; with a minus, as -theta, maximised."),
    ] = "test_error",
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
        typer.Option("--accuracy", help="Half width asked of the parameter, relative to it where it must be positive."),
    ] = 1e-4,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.nc", help="With --along: write the curve as netCDF.")
    ] = None,
    force: ForceOption = False,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Find where an observable is least on a branch: the regularisation of least test error, or any other parameter."""
    import numpy as np

    name, bracket, _ = options.interval(over, counted=False)
    if output is not None and along is None:
        raise InputError("-o goes with --along NAME=LO:HI:N")
    target = options.netcdf_file(output, "a curve", force)
    options.prepare(threads, quiet, seed)
    problem = options.problem_of(model, set_, without=name)
    chosen: dict[str, Any] = {
        "minimise": minimise,
        "on": options.start_of(problem, on),
        "bracket": bracket,
        "accuracy": accuracy,
        "seed": seed,
    }
    from ..responses.tuned_curve import tuned_curve
    from ..responses.tuning import tune as tune_one

    if along is None:
        found = tune_one(problem, name, **chosen)
        status = Exit.DONE if found.success else Exit.NOT_CONVERGED
        return Outcome(found.table(), found.to_json, status, found.advice)
    from ..report.responses import tuned_json

    second, ends, count = options.interval(along, counted=True, option="--along")
    assert ends is not None and count is not None
    if second in options.assignments(set_):
        raise InputError(f"{second} is given by --set and varied by --along; leave one out")
    curve = tuned_curve(
        problem,
        name,
        over=second,
        values=np.linspace(*ends, count),
        on_point=lambda optimum: optimum.solution.stability,
        **chosen,
    )
    interrupts.ignore()
    early = cut_short(curve.interrupted, curve.out_of_time)
    if early is not None and not curve.success:
        target, output = aside(target, output)
    reasons = [kept(early, len(curve.optima), count, output)] if early is not None else []
    if early is not Exit.INTERRUPTED:
        reasons += [o.advice for o in curve.optima if not o.success] + [f"no optimum at {v:g}" for v in curve.missing]
    message = "; ".join(reasons[:1] + ([f"and {len(reasons) - 1} more"] if len(reasons) > 1 else []))
    status = early or Exit.NOT_CONVERGED
    if curve.success and early is not Exit.INTERRUPTED:
        status = Exit.DONE  # the time may have ended in the check of the last point, which stands without it
    return saved(curve.save, target, output, curve.table(), lambda _, file: tuned_json(curve, file), status, message)
