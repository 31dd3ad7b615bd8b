"""Sensitivities and tuned parameters as text, JSON and frames."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..base.numbers import align_text_columns, format_value_or_zero, format_value_with_error
from ..base.presenting import table, to_frame, to_json
from ..problems.columns import (
    OBSERVED,
    locations_of_overlap_entries,
    overlaps_and_trained_numbers_by_column,
    table_column_name,
)
from ..problems.quantities import LOSSES
from ..responses.joint_tuning import JointOptimum
from ..responses.minimum import describe_extremum, describe_observable_in_words
from ..responses.sensitivity_results import Sensitivities, Sensitivity
from ..responses.tuned_curve import TunedCurve
from ..responses.tuning import Optimum
from .ansatz import add_stability_verdict, has_unstable_or_marginal_solution, stability_verdict_cell
from .contract import (
    attributes_by_name,
    error_bars_by_name,
    located_parameter_value_json,
    overlaps_json,
    trained_numbers_json,
)
from .layout import format_attribute_with_error

if TYPE_CHECKING:
    import pandas


@table.register_renderer_of_class(Sensitivities)
def sensitivities_table(sensitivities: Sensitivities) -> str:
    """Return the derivatives of observables as text, one row per observable, one column per parameter."""
    entries = list(sensitivities)
    problem = sensitivities.solution.problem
    rows = [["d / d", *(entry.parameter for entry in entries)]]
    found = [
        (
            overlaps_and_trained_numbers_by_column(problem, entry.overlaps),
            overlaps_and_trained_numbers_by_column(problem, entry.error_bars),
        )
        for entry in entries
    ]
    columns = locations_of_overlap_entries(problem) if entries else {}
    for column, (of, place) in columns.items():
        if of in ("q", "V"):
            _, row, other = np.unravel_index(place, getattr(entries[0].overlaps, of).shape)
            if row > other:
                continue  # symmetric
        cells = [
            (format_value_with_error if of == "phi" else format_value_or_zero)(values[column], widths[column])
            for values, widths in found
        ]
        rows.append([column.removeprefix("trained_"), *cells])
    for name in (*OBSERVED, "baseline_error"):
        if any(math.isfinite(entry.of(name)[0]) for entry in entries):
            rows.append([name.replace("_", " "), *(format_value_or_zero(*entry.of(name)) for entry in entries)])
    return "\n".join(align_text_columns(rows))


@to_json.register_renderer_of_class(Sensitivity)
def sensitivity_json(entry: Sensitivity) -> dict[str, Any]:
    """Return the derivatives of overlaps and observables with respect to a parameter as a dict for JSON."""
    return {
        "at": entry.at,
        "overlaps": overlaps_json(entry.problem, entry.overlaps),
        "trained": trained_numbers_json(entry.problem, entry.overlaps),
        **{name: entry.of(name)[0] for name in LOSSES},
        "errors": {
            "overlaps": overlaps_json(entry.problem, entry.error_bars),
            "trained": trained_numbers_json(entry.problem, entry.error_bars),
            **error_bars_by_name(entry, OBSERVED),
        },
        "remaining": entry.remaining,
    }


@to_json.register_renderer_of_class(Sensitivities)
def sensitivities_json(answer: Sensitivities) -> dict[str, Any]:
    """Return the dict that `solve --sensitivities --json` prints: by parameter, the derivatives with respect to it."""
    return {entry.parameter: sensitivity_json(entry) for entry in answer}


@to_frame.register_renderer_of_class(Sensitivities)
def sensitivities_dataframe(answer: Sensitivities) -> pandas.DataFrame:
    """Return the derivatives of observables as a DataFrame, one row per parameter."""
    import pandas  # slow to load

    rows = []
    for entry in answer:
        row: dict[str, Any] = {"at": entry.at}
        values, widths = (
            overlaps_and_trained_numbers_by_column(entry.problem, blocks)
            for blocks in (entry.overlaps, entry.error_bars)
        )
        row |= values | {f"{column}_error": width for column, width in widths.items()}
        for name in LOSSES:
            row[name], row[f"{name}_error"] = entry.of(name)
        rows.append(row)
    return pandas.DataFrame(rows, index=pandas.Index([e.parameter for e in answer], name="parameter"))


_LOCATION_WORDS = {
    "minimum": "",
    "lower_end": " (the lower end of the interval)",
    "upper_end": " (the upper end of the interval)",
    "branch_end": " (where the branch ends)",
    "jump": " (where the branch jumps)",
    "tried": " (the best of the values tried)",
}


def _describe_best_parameter_value(name: str, value: float, error: float, kind: str) -> str:
    """Return the optimal value of a parameter as text, with its error bar or the end of the interval where it lies."""
    shown = format_value_with_error(value, error) if kind == "minimum" else f"{value:.6g}"
    return f"{name.rstrip('_')} = {shown}{_LOCATION_WORDS[kind]}"


def _optimum_header_lines(optimum: Optimum | JointOptimum, places: str, tried: str = "") -> list[str]:
    """Return the first lines about an optimum: the minimised observable, the best parameter values, and the minimum."""
    problem = optimum.problem
    return [
        f"{problem.solver.name}, {optimum.branch} branch: {describe_extremum(problem, optimum.minimise)} at {places}",
        f"  {describe_observable_in_words(problem, optimum.minimise)} "
        f"{format_attribute_with_error(optimum, 'observed')} there; {tried}"
        f"{optimum.status.replace('_', ' ')}",
    ]


@table.register_renderer_of_class(Optimum)
def optimum_table(optimum: Optimum) -> str:
    """Return an optimal parameter value as text: parts of its error bar, the observable, and other local minima."""
    parts, shown = optimum.evidence, describe_observable_in_words(optimum.problem, optimum.minimise)
    lines = _optimum_header_lines(
        optimum, _describe_best_parameter_value(optimum.parameter, optimum.value, optimum.error, optimum.kind)
    )
    if optimum.kind == "minimum":
        lines.append(
            f"  error bar {optimum.error:.2g} = {parts['error_integration']:.2g} from integration "
            f"+ {parts['error_root']:.2g} from the root search"
        )
    for other in optimum.others:
        kind, there = other.kind.replace("_", " "), format_attribute_with_error(other, "observed")
        lines.append(f"  next to it: {kind} at {optimum.parameter.rstrip('_')} = {other.value:.4g}, {shown} {there}")
    return "\n".join(add_stability_verdict(lines, optimum.solution))


@to_json.register_renderer_of_class(Optimum)
def optimum_json(optimum: Optimum) -> dict[str, Any]:
    """Return an optimal parameter value, and the solution there, as a dict for JSON (docs/design.md section 5)."""
    name, value, error = optimum.parameter.rstrip("_"), optimum.value, optimum.error
    return _optimum_json_with_solution(
        optimum, optimum.kind, name, value, error, others=[vars(other) for other in optimum.others]
    )


def _optimum_json_with_solution(
    optimum: Optimum | JointOptimum, kind: Any, parameter: Any, value: Any, error: Any, **more: Any
) -> dict[str, Any]:
    problem = optimum.solution.problem
    return {
        **located_parameter_value_json(problem, kind, parameter, value, error, optimum.status, "estimated"),
        "minimise": optimum.minimise,
        "metric": optimum.problem.metric_name or None,
        **attributes_by_name(optimum, "branch", "observed", "observed_error"),
        **more,
        "evidence": optimum.evidence,
        "solution": optimum.solution.to_json(),
    }


@table.register_renderer_of_class(JointOptimum)
def joint_optimum_table(optimum: JointOptimum) -> str:
    """Return an optimum in several parameters as text: their values with error bars, and the observable."""
    found = zip(optimum.parameters, optimum.values, optimum.errors, optimum.kinds, strict=True)
    places = ", ".join(_describe_best_parameter_value(*each) for each in found)
    lines = _optimum_header_lines(optimum, places, f"{len(optimum.tried)} places tried; ")
    return "\n".join(add_stability_verdict(lines, optimum.solution))


@to_json.register_renderer_of_class(JointOptimum)
def joint_optimum_json(optimum: JointOptimum) -> dict[str, Any]:
    """Return an optimum in several parameters as a dict for JSON: values, all points tried, and the solution there."""
    names = [name.rstrip("_") for name in optimum.parameters]
    found = (dict(zip(names, each, strict=True)) for each in (optimum.kinds, optimum.values, optimum.errors))
    kinds, values, errors = found
    return _optimum_json_with_solution(
        optimum, kinds, names, values, errors, tried=[vars(trial) for trial in optimum.tried]
    )


@table.register_renderer_of_class(TunedCurve)
def tuned_curve_table(tuned: TunedCurve) -> str:
    """Return a tuned curve as text: the optimal parameter value at every value of a second parameter, then notes."""
    if not tuned.optima:
        return "no optimum was found"
    first = tuned.optima[0]
    name = table_column_name(first.parameter)
    rows = [
        [
            table_column_name(tuned.over),
            f"best {name}",
            describe_observable_in_words(first.problem, first.minimise),
            "where",
            "status",
        ]
    ]
    judged = has_unstable_or_marginal_solution(optimum.solution for optimum in tuned.optima)
    rows[0] += ["verdict"] * judged
    for value, optimum in zip(tuned.values, tuned.optima, strict=True):
        best = (
            format_value_with_error(optimum.value, optimum.error)
            if optimum.kind == "minimum"
            else f"{optimum.value:.6g}"
        )
        words = [each.replace("_", " ") for each in (optimum.kind, optimum.status)]
        verdict = [stability_verdict_cell(optimum.solution)] * judged
        rows.append([f"{value:.6g}", best, format_attribute_with_error(optimum, "observed"), *words, *verdict])
    return "\n".join([f"{first.problem.solver.name}, {first.branch} branch", *align_text_columns(rows), *tuned.notes])


def tuned_curve_json(tuned: TunedCurve, file: Path | None) -> dict[str, Any]:
    """Return a tuned curve as the dict that `tune --along --json` prints; every point is a dict of `tune --json`.

    Args:
        tuned: tuned curve: the optimal parameter value along a second parameter.
        file: the file that the command has written (option -o), or None.
    """
    ended = {"interrupted": tuned.interrupted, "done": tuned.success, "time_limit": tuned.out_of_time}
    return {
        "version": __version__,
        "along": tuned.over.rstrip("_"),
        "status": next((word for word, has_ended in ended.items() if has_ended), "not_converged"),
        "missing": list(tuned.missing),
        "notes": list(tuned.notes),
        "points": [optimum.to_json() for optimum in tuned.optima],
        "file": str(file) if file is not None else None,
    }
