"""`dynamics`: which solution one-pass training reaches, when, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError, require_known
from . import options
from .options import (
    ForceOption,
    JsonOption,
    MemoryOption,
    ModelArgument,
    NetcdfOption,
    QuietOption,
    SetOption,
    ThreadsOption,
    TimeLimitOption,
)
from .outcome import Exit, Outcome, command, saved

TRAJECTORY, STATIONARY, RATE_LIMIT, ESCAPE = _ASKED = "trajectory", "stationary", "rate-limit", "escape"
_ACCURACY = 1e-4


@command
def dynamics(
    model: ModelArgument,
    rate: Annotated[
        str,
        typer.Option(
            "--rate",
            metavar="ETA",
            help="Learning rate: a number; 4,power=0.5,scale=10 for 4 / (1 + t/10)^0.5; 4,warmup=5; or flow, gradient "
            "flow on the population risk.",
        ),
    ],
    set_: SetOption = None,
    time: Annotated[
        str, typer.Option("--time", metavar="BEGIN:END[:N]", help="Times of output, in steps over d (N of them: 101).")
    ] = "0:40",
    start: Annotated[
        str,
        typer.Option(
            "--start",
            metavar="random|NAME|q=..,m_1=..,theta=..",
            help="W standard normal, a named start of the model, or overlaps (arrays as JSON).",
        ),
    ] = "random",
    ask: Annotated[
        str,
        typer.Option(
            "--ask",
            metavar="|".join(_ASKED),
            help="What is computed: the trajectory; the fixed point next to the start, with stability; the largest"
            " rate at which that one is there and stable, from --rate on; growth from no overlap.",
        ),
    ] = "trajectory",
    batch: Annotated[
        str, typer.Option("--batch", metavar="B", help="Samples of a step, or a fraction of d as 0.5d (a map).")
    ] = "1",
    watch: Annotated[
        list[str] | None,
        typer.Option("--watch", metavar="OVERLAP=VALUE", help="Report when an overlap passes a value, as theta_1=0.1."),
    ] = None,
    d: Annotated[
        int | None,
        typer.Option("--d", min=2, help="Growth from zero overlap, and random starts at this dimension."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="--d: number of draws.")] = 16,
    first: Annotated[int, typer.Option("--first", min=0, help="--d: the first draw.")] = 0,
    cosine: Annotated[float, typer.Option("--cosine", help="--d: largest cosine at which a draw has escaped.")] = 0.1,
    accuracy: Annotated[
        float | None,
        typer.Option(
            "--accuracy",
            help="Largest error bar of the moments, relative to their size: at all times (1e-4), or of a stationary "
            "point (1e-6); of --ask rate-limit the last step in the rate (1e-9).",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", metavar="auto|DOP853|RK45|Radau|BDF|LSODA", help="SciPy's integrator.")
    ] = "auto",
    output: NetcdfOption = None,
    force: ForceOption = False,
    time_limit: TimeLimitOption = None,
    memory_limit: MemoryOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> Outcome:
    """Follow one-pass stochastic gradient descent of infinite d: overlaps and errors in time, and where it ends."""
    target = options.netcdf_file(output, "a trajectory", force)
    options.prepare(threads, quiet)
    problem = options.problem_of(model, set_)
    begin, end, count = _times(time)
    if accuracy is not None:
        options.check_positive("--accuracy", accuracy)
    require_known("value", ask, _ASKED, "--ask")
    asked = ESCAPE if d is not None and ask == TRAJECTORY else ask
    if asked != TRAJECTORY:
        if target is not None or watch:
            raise InputError(f"--ask {asked} follows no trajectory; leave --watch and -o out")
        if d is not None and asked != ESCAPE:
            raise InputError(f"--d draws random starts, and --ask {asked} has one; leave it out")
    if asked == ESCAPE:
        if start != "random":
            raise InputError("growth from no overlap has no start; leave --start out")
        if begin:
            raise InputError(f"--time {time}: draws start at time 0")
        from ..descent.escape import escape

        chosen: dict[str, Any] = {"batch": batch, "threshold": cosine, "accuracy": accuracy or _ACCURACY}
        return _alone(problem, escape(problem, rate, d=d, seeds=seeds, first=first, time=end, **chosen), json)
    given = {} if accuracy is None else {"accuracy": accuracy}
    if asked == STATIONARY:
        from ..descent.stationary import stationary

        return _alone(problem, stationary(problem, rate, start, batch=batch, **given), json)
    if asked == RATE_LIMIT:
        from ..descent.stationary import rate_limit

        return _alone(problem, rate_limit(problem, rate, start, batch=batch, **given), json)
    import numpy as np

    from ..descent.dynamics import dynamics as follow
    from ..descent.schedule import batch_of

    if batch_of(batch).share is not None:
        times: Any = np.unique(np.round(np.linspace(begin, end, count or int(end - begin) + 1)))
    else:
        times = np.linspace(begin, end, count or 101)
    result = follow(
        problem,
        rate,
        times,
        start,
        batch=batch,
        accuracy=_ACCURACY if accuracy is None else accuracy,
        method=method,
        events=_watched(watch),
    )
    status, message = Exit.DONE, ""
    if not result.success:
        status = Exit.TIME_LIMIT if result.status == "time_limit" else Exit.NOT_CONVERGED
        message = f"{result.status.replace('_', ' ')}: {result.advice}"
    text = "" if json else result.table()

    def data(word: str, path: Path | None) -> dict[str, Any]:
        own = result.to_json()
        return {**own, "status": own["status"] if word in (Exit.DONE.word, status.word) else word,
                "file": None if path is None else str(path)}  # fmt: skip

    return saved(result.save, target, output, text, data, status, message)


def _alone(problem: Any, found: Any, json: bool) -> Outcome:
    """What is no trajectory, and goes into no file."""
    return Outcome("" if json else found.table(), lambda: _with_problem(problem, found.to_json()))


def _with_problem(problem: Any, data: dict[str, Any]) -> dict[str, Any]:
    from .._version import __version__
    from ..report.contract import parameters_json

    known = {"model": problem.solver.name, "version": __version__, "digest": problem.solver.digest}
    return {**known, "parameters": parameters_json(problem), "status": Exit.DONE.word, **data}


def _times(text: str) -> tuple[float, float, int | None]:
    """`0:40`, `0:40:81` or `40`."""
    parts = text.split(":")
    try:
        numbers = [float(part) for part in parts[:2]]
        count = int(parts[2]) if len(parts) == 3 else None
    except ValueError:
        numbers, count = [], None
    if not numbers or len(parts) > 3:
        raise InputError(f"--time {text}: BEGIN:END or BEGIN:END:N is expected, as 0:40 or 0:40:81")
    begin, end = numbers if len(numbers) == 2 else (0.0, numbers[0])
    if not 0 <= begin < end < float("inf"):
        raise InputError(f"--time {text}: 0 <= BEGIN < END is expected")
    if count is not None and not 2 <= count <= 100_000:
        raise InputError(f"--time {text}: the number of times must be 2 to 100000")
    return begin, end, count


def _watched(items: list[str] | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for item in items or []:
        name, _, value = item.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            raise InputError(f"--watch {item}: OVERLAP=VALUE is expected, as theta_1=0.1") from None
    return found
