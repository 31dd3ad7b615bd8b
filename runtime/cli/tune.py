"""`tune`: the minimum of an observable on a branch, and with --along the curve of such optima."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError
from . import options
from .outcome import (
    CommandOutcome,
    ExitStatus,
    command_with_options,
    describe_finished_points,
    early_exit_status,
    save_result_and_report,
)

if TYPE_CHECKING:
    from ..problems.problem import Problem


@command_with_options("time_limit", "memory_limit", "json", "threads", "seed", "device", "quiet")
def tune(
    model: str,
    /,
    *,
    over: list[str],
    minimise: str = "test_error",
    metric: str | None = None,
    on: str | None = None,
    along: str | None = None,
    set_: list[str] | None = None,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    output: Path | None = None,
    force: bool = False,
    seed: int = 0,
) -> CommandOutcome:
    """Find the parameter value at which an observable is least on a branch (or most: --minimise=-NAME).

    For example the strength of the regulariser with the least test error.

    Args:
        over (NAME[=LO:HI]): The parameter to tune and its interval, as lambda=1e-3:10; repeat it to tune several.
        minimise (OBSERVABLE): Observable, as test_error, theta, training_loss or the name of a metric. With a minus
        sign it is maximised: --minimise=-theta.
        along (NAME=LO:HI:N): Tune at every value of another parameter, as for lambda*(alpha).
        accuracy: Largest error bar of the parameter, relative to its value if it must be positive.
        output (FILE): File to write: with --along the curve as netCDF, with several parameters the object of --json.
    """
    spans = [options.parse_parameter_interval(item) for item in over]
    name, bracket = spans[0]
    several = len(spans) > 1
    if several and along is not None:
        raise InputError("--along needs a single --over; leave one of them out")
    if output is not None and along is None and not several:
        raise InputError("-o needs --along NAME=LO:HI:N or several --over: a single optimum is only printed")
    file = (
        options.check_output_option(output, force)
        if several
        else options.check_netcdf_output_option(output, "a curve", force)
    )
    problem = options.build_problem_from_options(model, set_, None if several else name, metric=metric)
    chosen: dict[str, Any] = {
        "minimise": minimise,
        "on": options.select_start(problem, on),
        "bracket": bracket,
        "accuracy": accuracy,
        "seed": seed,
        "integrator": integrator,
        "points": points,
    }
    if several:
        return _joint_optimum_outcome(problem, spans, chosen, file)
    from ..responses.tuned_curve import tuned_curve
    from ..responses.tuning import tune as tune_one

    if along is None:
        found = tune_one(problem, name, **chosen)
        return CommandOutcome(found.table, found.to_json, found.advice)
    from ..report.responses import tuned_curve_json

    second, values = options.parse_parameter_grid(along, "--along")
    options.refuse_parameter_set_and_varied(set_, second, "--along")
    curve = tuned_curve(
        problem,
        name,
        over=second,
        values=values,
        on_point=lambda optimum: optimum.solution.stability,
        **chosen,
    )
    early = early_exit_status(curve.interrupted, curve.out_of_time)
    if early is not None and not curve.success:
        file = file and file.file_for_partial_result()
    reasons = [describe_finished_points(early, len(curve.optima), len(values), file)] if early is not None else []
    if early is not ExitStatus.INTERRUPTED:
        reasons += [o.advice for o in curve.optima if not o.success] + [f"no optimum at {v:g}" for v in curve.missing]
        early = ExitStatus.DONE if curve.success else early  # the time limit may have ended the check of the last point
    message = "; ".join(reasons[:1] + ([f"and {len(reasons) - 1} more"] if len(reasons) > 1 else []))
    return save_result_and_report(
        curve.save, file, curve.table(), lambda _, path: tuned_curve_json(curve, path), message, early
    )


def _joint_optimum_outcome(
    problem: Problem,
    spans: list[tuple[str, tuple[float, float] | None]],
    chosen: dict[str, Any],
    file: options.OutputFile | None,
) -> CommandOutcome:
    """Tune several parameters together and return the outcome of the command, also after a time limit or Ctrl-C."""
    from ..base.files import write_atomically
    from ..report.contract import json_text
    from ..responses.tuning import tune as tune_together

    names = [name for name, _ in spans]
    brackets = {name: bracket for name, bracket in spans if bracket is not None}
    found = tune_together(problem, names, **{**chosen, "bracket": brackets})
    early = early_exit_status(found.status == "interrupted", found.status == "time_limit")
    if early is not None:
        file = file and file.file_for_partial_result()
    data = found.to_json()

    def save_json_file(path: Path) -> None:
        write_atomically(path, json_text(data) + "\n")

    return save_result_and_report(save_json_file, file, found.table(), lambda word, path: data, found.advice, early)
