"""Sensitivities and tuned parameters as text, JSON and frames."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..base.numbers import align_columns, format_near_zero, format_with_error
from ..base.presenting import table, to_frame, to_json
from ..problems.columns import OBSERVED, column_name, entry_columns, entry_values
from ..problems.quantities import LOSSES
from ..responses.joint_tuning import JointOptimum
from ..responses.minimum import describe_best, describe_objective
from ..responses.sensitivity_results import Sensitivities, Sensitivity
from ..responses.tuned_curve import TunedCurve
from ..responses.tuning import Optimum
from .ansatz import add_verdict, has_nonstable_verdict, verdict_cell
from .contract import blocks_json, location_json, select_attributes, select_errors, trained_json
from .layout import format_attribute

if TYPE_CHECKING:
    import pandas


@table.register(Sensitivities)
def sensitivities_table(sensitivities: Sensitivities) -> str:
    """Return derivatives as text, a row an observable, a column a parameter."""
    entries = list(sensitivities)
    problem = sensitivities.solution.problem
    rows = [["d / d", *(entry.parameter for entry in entries)]]
    found = [(entry_values(problem, entry.overlaps), entry_values(problem, entry.error_bars)) for entry in entries]
    columns = entry_columns(problem) if entries else {}
    for column, (of, place) in columns.items():
        if of in ("q", "V"):
            _, row, other = np.unravel_index(place, getattr(entries[0].overlaps, of).shape)
            if row > other:
                continue  # symmetric
        cells = [
            (format_with_error if of == "phi" else format_near_zero)(values[column], widths[column])
            for values, widths in found
        ]
        rows.append([column.removeprefix("trained_"), *cells])
    for name in (*OBSERVED, "baseline_error"):
        if any(math.isfinite(entry.of(name)[0]) for entry in entries):
            rows.append([name.replace("_", " "), *(format_near_zero(*entry.of(name)) for entry in entries)])
    return "\n".join(align_columns(rows))


@to_json.register(Sensitivity)
def sensitivity_json(entry: Sensitivity) -> dict[str, Any]:
    """Return the object of a solution with derivatives in place of values."""
    return {
        "at": entry.at,
        "overlaps": blocks_json(entry.problem, entry.overlaps),
        "trained": trained_json(entry.problem, entry.overlaps),
        **{name: entry.of(name)[0] for name in LOSSES},
        "errors": {
            "overlaps": blocks_json(entry.problem, entry.error_bars),
            "trained": trained_json(entry.problem, entry.error_bars),
            **select_errors(entry, OBSERVED),
        },
        "remaining": entry.remaining,
    }


@to_json.register(Sensitivities)
def sensitivities_json(answer: Sensitivities) -> dict[str, Any]:
    """Return the object of `solve --sensitivities --json`: parameter -> derivatives."""
    return {entry.parameter: sensitivity_json(entry) for entry in answer}


@to_frame.register(Sensitivities)
def sensitivities_frame(answer: Sensitivities) -> pandas.DataFrame:
    """Return one row a parameter, with the columns of a curve and derivatives in place of values."""
    import pandas  # slow to load

    rows = []
    for entry in answer:
        row: dict[str, Any] = {"at": entry.at}
        values, widths = (entry_values(entry.problem, blocks) for blocks in (entry.overlaps, entry.error_bars))
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


def _format_best_value(name: str, value: float, error: float, kind: str) -> str:
    """Return the best value of a parameter as text."""
    shown = format_with_error(value, error) if kind == "minimum" else f"{value:.6g}"
    return f"{name.rstrip('_')} = {shown}{_LOCATION_WORDS[kind]}"


def _optimum_header(optimum: Optimum | JointOptimum, places: str, tried: str = "") -> list[str]:
    """Return the first lines about an optimum: what is minimised, at which values, and the minimum."""
    problem = optimum.problem
    return [
        f"{problem.solver.name}, {optimum.branch} branch: {describe_best(problem, optimum.minimise)} at {places}",
        f"  {describe_objective(problem, optimum.minimise)} {format_attribute(optimum, 'observed')} there; {tried}"
        f"{optimum.status.replace('_', ' ')}",
    ]


@table.register(Optimum)
def optimum_table(optimum: Optimum) -> str:
    """Return an optimum as text: value, parts of its error bar, observable, and the other candidates."""
    parts, shown = optimum.evidence, describe_objective(optimum.problem, optimum.minimise)
    lines = _optimum_header(optimum, _format_best_value(optimum.parameter, optimum.value, optimum.error, optimum.kind))
    if optimum.kind == "minimum":
        lines.append(
            f"  error bar {optimum.error:.2g} = {parts['error_integration']:.2g} from integration "
            f"+ {parts['error_root']:.2g} from the root"
        )
    for other in optimum.others:
        kind, there = other.kind.replace("_", " "), format_attribute(other, "observed")
        lines.append(f"  next to it: {kind} at {optimum.parameter.rstrip('_')} = {other.value:.4g}, {shown} {there}")
    return "\n".join(add_verdict(lines, optimum.solution))


@to_json.register(Optimum)
def optimum_json(optimum: Optimum) -> dict[str, Any]:
    """Return the object of a threshold (docs/design.md section 5) for an optimum, with the solution there."""
    name, value, error = optimum.parameter.rstrip("_"), optimum.value, optimum.error
    return _optimum_json(optimum, optimum.kind, name, value, error, others=[vars(other) for other in optimum.others])


def _optimum_json(
    optimum: Optimum | JointOptimum, kind: Any, parameter: Any, value: Any, error: Any, **more: Any
) -> dict[str, Any]:
    problem = optimum.solution.problem
    return {
        **location_json(problem, kind, parameter, value, error, optimum.status, "estimated"),
        "minimise": optimum.minimise,
        "metric": optimum.problem.metric_name or None,
        **select_attributes(optimum, "branch", "observed", "observed_error"),
        **more,
        "evidence": optimum.evidence,
        "solution": optimum.solution.to_json(),
    }


@table.register(JointOptimum)
def joint_table(optimum: JointOptimum) -> str:
    """Return a joint optimum as text: values with error bars, the observable, and the number of points tried."""
    found = zip(optimum.parameters, optimum.values, optimum.errors, optimum.kinds, strict=True)
    places = ", ".join(_format_best_value(*each) for each in found)
    lines = _optimum_header(optimum, places, f"{len(optimum.tried)} places tried; ")
    return "\n".join(add_verdict(lines, optimum.solution))


@to_json.register(JointOptimum)
def joint_json(optimum: JointOptimum) -> dict[str, Any]:
    """Return the object of an optimum with entries by name, all points tried, and the solution at the best."""
    names = [name.rstrip("_") for name in optimum.parameters]
    found = (dict(zip(names, each, strict=True)) for each in (optimum.kinds, optimum.values, optimum.errors))
    kinds, values, errors = found
    return _optimum_json(optimum, kinds, names, values, errors, tried=[vars(trial) for trial in optimum.tried])


@table.register(TunedCurve)
def tuned_table(tuned: TunedCurve) -> str:
    """Return a tuned curve as text, one line a value of the second parameter, then notes of the full scans."""
    if not tuned.optima:
        return "no optimum was found"
    first = tuned.optima[0]
    name = column_name(first.parameter)
    rows = [
        [column_name(tuned.over), f"best {name}", describe_objective(first.problem, first.minimise), "where", "status"]
    ]
    judged = has_nonstable_verdict(optimum.solution for optimum in tuned.optima)
    rows[0] += ["verdict"] * judged
    for value, optimum in zip(tuned.values, tuned.optima, strict=True):
        best = format_with_error(optimum.value, optimum.error) if optimum.kind == "minimum" else f"{optimum.value:.6g}"
        words = [each.replace("_", " ") for each in (optimum.kind, optimum.status)]
        verdict = [verdict_cell(optimum.solution)] * judged
        rows.append([f"{value:.6g}", best, format_attribute(optimum, "observed"), *words, *verdict])
    return "\n".join([f"{first.problem.solver.name}, {first.branch} branch", *align_columns(rows), *tuned.notes])


def tuned_json(tuned: TunedCurve, file: Path | None) -> dict[str, Any]:
    """Return the object of `tune --along --json`, whose points are objects of `tune --json`.

    Args:
        tuned: the tuned curve.
        file: the file written with -o; None: none.
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
