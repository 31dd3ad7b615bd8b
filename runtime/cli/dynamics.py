"""`dynamics`: which solution one-pass training reaches, when, and from where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ..base.errors import InputError, require_known_name
from . import options
from .outcome import CommandOutcome, ExitStatus, command_with_options, save_result_and_report

TRAJECTORY, STATIONARY, RATE_LIMIT, ESCAPE = _ASKED = "trajectory", "stationary", "rate-limit", "escape"


@command_with_options("time_limit", "memory_limit", "json", "threads", "quiet")
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
) -> CommandOutcome:
    """Compute one-pass stochastic gradient descent at infinite d: overlaps and errors in time, and where it ends.

    Args:
        rate (ETA): Learning rate: a number; 4,power=0.5,scale=10 for 4 / (1 + t/10)^0.5; 4,warmup=5; or flow, gradient
            flow on the population risk.
        time (BEGIN:END[:N]): Times of output, in steps over d (N of them: 101).
        start (random|NAME|q=..,m_1=..,theta=..): W standard normal, a named start of the model, or overlaps (arrays as
            JSON).
        ask (trajectory|stationary|rate-limit|escape): What is computed: the trajectory; the fixed point next to the
            start, with stability; the largest learning rate, from --rate on, at which it exists and is stable; growth
            from zero overlap.
        batch (B): Number of samples in a step, or a fraction of d as 0.5d.
        watch (OVERLAP=VALUE): Report when an overlap passes a value, as theta_1=0.1.
        d: Dimension at which random starts are drawn.
        seeds: With --d: number of draws.
        first: With --d: index of the first draw.
        cosine: With --d: cosine with the teacher above which a draw counts as escaped.
        accuracy: Largest error bar of the moments, relative to their size: at all times (1e-4), or of a stationary
            point (1e-6); of --ask rate-limit the last step in the rate (1e-9).
        method (auto|DOP853|RK45|Radau|BDF|LSODA): SciPy's integrator.
    """
    file = options.check_netcdf_output_option(output, "a trajectory", force)
    problem = options.build_problem_from_options(model, set_)
    begin, end, count = _parse_time_interval(time)
    require_known_name("value", ask, _ASKED, "--ask")
    asked = ESCAPE if d is not None and ask == TRAJECTORY else ask
    if asked != TRAJECTORY:
        if file is not None or watch:
            raise InputError(f"--ask {asked} follows no trajectory; leave --watch and -o out")
        if d is not None and asked != ESCAPE:
            raise InputError(f"--d draws random starts, but --ask {asked} begins at a single one; leave --d out")
    chosen: dict[str, Any] = {"batch": batch, **options.options_that_were_given(accuracy=accuracy)}
    if asked == ESCAPE:
        if start != "random":
            raise InputError("--ask escape begins at zero overlap; leave --start out")
        if begin:
            raise InputError(f"--time {time}: --ask escape begins at time 0; give --time END")
        from ..extensions.descent.escape import escape

        return _outcome_without_output_file(
            problem, escape(problem, rate, d=d, seeds=seeds, first=first, time=end, threshold=cosine, **chosen)
        )
    if asked in (STATIONARY, RATE_LIMIT):
        from ..extensions.descent.stationary import rate_limit, stationary

        return _outcome_without_output_file(
            problem, (stationary if asked == STATIONARY else rate_limit)(problem, rate, start, **chosen)
        )
    import numpy as np

    from ..extensions.descent.dynamics import dynamics as follow
    from ..extensions.descent.schedule import parse_batch_size

    if parse_batch_size(batch).share is not None:
        times: Any = np.unique(np.round(np.linspace(begin, end, count or int(end - begin) + 1)))
    else:
        times = np.linspace(begin, end, count or 101)
    result = follow(problem, rate, times, start, method=method, events=_parse_watched_overlaps(watch), **chosen)
    early = ExitStatus.TIME_LIMIT if result.status == "time_limit" else None
    message = "" if result.success else f"{result.status.replace('_', ' ')}: {result.advice}"
    ending = early or (ExitStatus.DONE if result.success else ExitStatus.NOT_CONVERGED)

    def _result_json_with_status(word: str, path: Path | None) -> dict[str, Any]:
        own = result.to_json()
        status = own["status"] if word in (ExitStatus.DONE.word, ending.word) else word
        return {**own, "status": status, "file": None if path is None else str(path)}

    return save_result_and_report(result.save, file, result.table(), _result_json_with_status, message, early)


def _outcome_without_output_file(problem: Any, found: Any) -> CommandOutcome:
    """Return the outcome of the command for a result that is printed only, not written to a file."""
    from ..report.contract import problem_json

    return CommandOutcome(
        found.table, lambda: {**problem_json(problem), "status": ExitStatus.DONE.word, **found.to_json()}
    )


def _parse_time_interval(text: str) -> tuple[float, float, int | None]:
    """Parse the option --time, `0:40`, `0:40:81` or `40`, into begin, end and number of times."""
    parts = text.split(":") if ":" in text else ["0", text]
    form = "BEGIN:END or BEGIN:END:N is expected, as 0:40 or 0:40:81"
    begin, end, *count = options.convert_parts_of_option(
        "--time", text, form, parts, *(float, float, int)[: len(parts)]
    )
    if not 0 <= begin < end < float("inf"):
        raise InputError(f"--time {text}: 0 <= BEGIN < END is expected")
    if count and not 2 <= count[0] <= 100_000:
        raise InputError(f"--time {text}: the number of times must be 2 to 100000")
    return begin, end, count[0] if count else None


def _parse_watched_overlaps(items: list[str] | None) -> dict[str, float]:
    form = "OVERLAP=VALUE is expected, as theta_1=0.1"
    texts = options.parse_name_value_pairs("--watch", items, form)
    return {
        name: options.convert_parts_of_option("--watch", f"{name}={text}", form, [text], float)[0]
        for name, text in texts.items()
    }
