"""`dynamics`: which solution one-pass training reaches, when, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ..base.errors import InputError, require_known
from . import options
from .outcome import ExitStatus, Outcome, command, save_result

TRAJECTORY, STATIONARY, RATE_LIMIT, ESCAPE = _ASKED = "trajectory", "stationary", "rate-limit", "escape"


@command("time_limit", "memory_limit", "json", "threads", "quiet")
def dynamics(
    model: str,
    /,
    *,
    rate: str,
    set_: list[str] | None = None,
    time: str = "0:40",
    start: str = "random",
    ask: str = "trajectory",
    batch: str = "1",
    watch: list[str] | None = None,
    d: Annotated[int | None, {"min": 2}] = None,
    seeds: Annotated[int, {"min": 1}] = 16,
    first: Annotated[int, {"min": 0}] = 0,
    cosine: float = 0.1,
    accuracy: float | None = None,
    method: str = "auto",
    output: Path | None = None,
    force: bool = False,
) -> Outcome:
    """Follow one-pass stochastic gradient descent of infinite d: overlaps and errors in time, and where it ends.

    Args:
        rate (ETA): Learning rate: a number; 4,power=0.5,scale=10 for 4 / (1 + t/10)^0.5; 4,warmup=5; or flow, gradient
            flow on the population risk.
        time (BEGIN:END[:N]): Times of output, in steps over d (N of them: 101).
        start (random|NAME|q=..,m_1=..,theta=..): W standard normal, a named start of the model, or overlaps (arrays as
            JSON).
        ask (trajectory|stationary|rate-limit|escape): What is computed: the trajectory; the fixed point next to the
            start, with stability; the largest rate at which that one is there and stable, from --rate on; growth from
            no overlap.
        batch (B): Samples of a step, or a fraction of d as 0.5d (a map).
        watch (OVERLAP=VALUE): Report when an overlap passes a value, as theta_1=0.1.
        d: Growth from zero overlap, and random starts at this dimension.
        seeds: --d: number of draws.
        first: --d: the first draw.
        cosine: --d: largest cosine at which a draw has escaped.
        accuracy: Largest error bar of the moments, relative to their size: at all times (1e-4), or of a stationary
            point (1e-6); of --ask rate-limit the last step in the rate (1e-9).
        method (auto|DOP853|RK45|Radau|BDF|LSODA): SciPy's integrator.
    """
    file = options.netcdf_file(output, "a trajectory", force)
    problem = options.build_problem(model, set_)
    begin, end, count = _parse_times(time)
    require_known("value", ask, _ASKED, "--ask")
    asked = ESCAPE if d is not None and ask == TRAJECTORY else ask
    if asked != TRAJECTORY:
        if file is not None or watch:
            raise InputError(f"--ask {asked} follows no trajectory; leave --watch and -o out")
        if d is not None and asked != ESCAPE:
            raise InputError(f"--d draws random starts, and --ask {asked} has one; leave it out")
    chosen: dict[str, Any] = {"batch": batch, **options.given_options(accuracy=accuracy)}
    if asked == ESCAPE:
        if start != "random":
            raise InputError("growth from no overlap has no start; leave --start out")
        if begin:
            raise InputError(f"--time {time}: draws start at time 0")
        from ..extensions.descent.escape import escape

        return _outcome_without_file(
            problem, escape(problem, rate, d=d, seeds=seeds, first=first, time=end, threshold=cosine, **chosen)
        )
    if asked in (STATIONARY, RATE_LIMIT):
        from ..extensions.descent.stationary import rate_limit, stationary

        return _outcome_without_file(
            problem, (stationary if asked == STATIONARY else rate_limit)(problem, rate, start, **chosen)
        )
    import numpy as np

    from ..extensions.descent.dynamics import dynamics as follow
    from ..extensions.descent.schedule import parse_batch

    if parse_batch(batch).share is not None:
        times: Any = np.unique(np.round(np.linspace(begin, end, count or int(end - begin) + 1)))
    else:
        times = np.linspace(begin, end, count or 101)
    result = follow(problem, rate, times, start, method=method, events=_parse_watched(watch), **chosen)
    early = ExitStatus.TIME_LIMIT if result.status == "time_limit" else None
    message = "" if result.success else f"{result.status.replace('_', ' ')}: {result.advice}"
    ending = early or (ExitStatus.DONE if result.success else ExitStatus.NOT_CONVERGED)

    def _json_object(word: str, path: Path | None) -> dict[str, Any]:
        own = result.to_json()
        status = own["status"] if word in (ExitStatus.DONE.word, ending.word) else word
        return {**own, "status": status, "file": None if path is None else str(path)}

    return save_result(result.save, file, result.table(), _json_object, message, early)


def _outcome_without_file(problem: Any, found: Any) -> Outcome:
    """Return the outcome of a result that is no trajectory and is not written to a file."""
    from ..report.contract import problem_json

    return Outcome(found.table, lambda: {**problem_json(problem), "status": ExitStatus.DONE.word, **found.to_json()})


def _parse_times(text: str) -> tuple[float, float, int | None]:
    """Return begin, end and number of `0:40`, `0:40:81` or `40`."""
    parts = text.split(":") if ":" in text else ["0", text]
    form = "BEGIN:END or BEGIN:END:N is expected, as 0:40 or 0:40:81"
    begin, end, *count = options.convert_parts("--time", text, form, parts, *(float, float, int)[: len(parts)])
    if not 0 <= begin < end < float("inf"):
        raise InputError(f"--time {text}: 0 <= BEGIN < END is expected")
    if count and not 2 <= count[0] <= 100_000:
        raise InputError(f"--time {text}: the number of times must be 2 to 100000")
    return begin, end, count[0] if count else None


def _parse_watched(items: list[str] | None) -> dict[str, float]:
    form = "OVERLAP=VALUE is expected, as theta_1=0.1"
    texts = options.parse_pairs("--watch", items, form)
    return {
        name: options.convert_parts("--watch", f"{name}={text}", form, [text], float)[0] for name, text in texts.items()
    }
