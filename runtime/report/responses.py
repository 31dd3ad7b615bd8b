"""Sensitivities and tuned parameters: text, JSON and frames."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..base.numbers import aligned, near_zero, with_error
from ..base.presenting import table, to_frame, to_json
from ..problems.columns import OBSERVED, column_of, entry_columns, entry_values
from ..problems.quantities import LOSSES
from ..responses.answers import Sensitivities, Sensitivity
from ..responses.joint import JointOptimum
from ..responses.minimum import describe_best, in_words
from ..responses.tuned_curve import TunedCurve
from ..responses.tuning import Optimum
from .ansatz import is_judged_other_than_stable, verdict_cell, with_verdict
from .contract import blocks_json, chosen, errors_of, located_json, trained_json
from .layout import text_of

if TYPE_CHECKING:
    import pandas


@table.register(Sensitivities)
def sensitivities_table(sensitivities: Sensitivities) -> str:
    """A row an observable, a column a parameter."""
    entries = list(sensitivities)
    problem = sensitivities.solution.problem
    rows = [["d / d", *(entry.parameter for entry in entries)]]
    found = [(entry_values(problem, entry.overlaps), entry_values(problem, entry.half_widths)) for entry in entries]
    columns = entry_columns(problem) if entries else {}
    for column, (of, place) in columns.items():
        if of in ("q", "V"):
            _, row, other = np.unravel_index(place, getattr(entries[0].overlaps, of).shape)
            if row > other:
                continue  # symmetric
        cells = [(with_error if of == "phi" else near_zero)(values[column], widths[column]) for values, widths in found]
        rows.append([column.removeprefix("trained_"), *cells])
    for name in (*OBSERVED, "baseline_error"):
        if any(math.isfinite(entry.of(name)[0]) for entry in entries):
            rows.append([name.replace("_", " "), *(near_zero(*entry.of(name)) for entry in entries)])
    return "\n".join(aligned(rows))


@to_json.register(Sensitivity)
def sensitivity_json(entry: Sensitivity) -> dict[str, Any]:
    """As the object of a solution: derivatives in place of values."""
    return {
        "at": entry.at,
        "overlaps": blocks_json(entry.problem, entry.overlaps),
        "trained": trained_json(entry.problem, entry.overlaps),
        **{name: entry.of(name)[0] for name in LOSSES},
        "errors": {
            "overlaps": blocks_json(entry.problem, entry.half_widths),
            "trained": trained_json(entry.problem, entry.half_widths),
            **errors_of(entry, OBSERVED),
        },
        "remaining": entry.remaining,
    }


@to_json.register(Sensitivities)
def sensitivities_json(answer: Sensitivities) -> dict[str, Any]:
    """The object of `solve --sensitivities --json`: parameter -> derivatives."""
    return {entry.parameter: sensitivity_json(entry) for entry in answer}


@to_frame.register(Sensitivities)
def sensitivities_frame(answer: Sensitivities) -> pandas.DataFrame:
    """One row a parameter; columns as those of a curve, derivatives in place of values."""
    import pandas  # slow to load

    rows = []
    for entry in answer:
        row: dict[str, Any] = {"at": entry.at}
        values, widths = (entry_values(entry.problem, blocks) for blocks in (entry.overlaps, entry.half_widths))
        row |= values | {f"{column}_error": width for column, width in widths.items()}
        for name in LOSSES:
            row[name], row[f"{name}_error"] = entry.of(name)
        rows.append(row)
    return pandas.DataFrame(rows, index=pandas.Index([e.parameter for e in answer], name="parameter"))


_PLACES = {
    "minimum": "",
    "lower_end": " (the lower end of the interval)",
    "upper_end": " (the upper end of the interval)",
    "branch_end": " (where the branch ends)",
    "jump": " (where the branch jumps)",
    "tried": " (the best of the values tried)",
}


def _place(name: str, value: float, error: float, kind: str) -> str:
    """Return where the best value is, in words."""
    shown = with_error(value, error) if kind == "minimum" else f"{value:.6g}"
    return f"{name.rstrip('_')} = {shown}{_PLACES[kind]}"


def _head(optimum: Optimum | JointOptimum, places: str, tried: str = "") -> list[str]:
    """Return what is least where, and how much it is there."""
    problem = optimum.problem
    return [
        f"{problem.solver.name}, {optimum.branch} branch: {describe_best(problem, optimum.minimise)} at {places}",
        f"  {in_words(problem, optimum.minimise)} {text_of(optimum, 'observed')} there; {tried}"
        f"{optimum.status.replace('_', ' ')}",
    ]


@table.register(Optimum)
def optimum_table(optimum: Optimum) -> str:
    """The best value, what its half width is made of, the observable there, and what else was weighed."""
    parts, shown = optimum.evidence, in_words(optimum.problem, optimum.minimise)
    lines = _head(optimum, _place(optimum.parameter, optimum.value, optimum.error, optimum.kind))
    if optimum.kind == "minimum":
        lines.append(
            f"  error bar {optimum.error:.2g} = {parts['half_width_integration']:.2g} from integration "
            f"+ {parts['half_width_root']:.2g} from the root"
        )
    for other in optimum.others:
        kind, there = other.kind.replace("_", " "), text_of(other, "observed")
        lines.append(f"  next to it: {kind} at {optimum.parameter.rstrip('_')} = {other.value:.4g}, {shown} {there}")
    return "\n".join(with_verdict(lines, optimum.solution))


@to_json.register(Optimum)
def optimum_json(optimum: Optimum) -> dict[str, Any]:
    """As the object of a threshold (docs/design.md section 5), with the solution there."""
    name, value, error = optimum.parameter.rstrip("_"), optimum.value, optimum.error
    return _optimum_json(optimum, optimum.kind, name, value, error, others=[vars(other) for other in optimum.others])


def _optimum_json(
    optimum: Optimum | JointOptimum, kind: Any, parameter: Any, value: Any, error: Any, **more: Any
) -> dict[str, Any]:
    problem = optimum.solution.problem
    return {
        **located_json(problem, kind, parameter, value, error, optimum.status, "estimated"),
        "minimise": optimum.minimise,
        "metric": optimum.problem.metric_name or None,
        **chosen(optimum, "branch", "observed", "observed_error"),
        **more,
        "evidence": optimum.evidence,
        "solution": optimum.solution.to_json(),
    }


@table.register(JointOptimum)
def joint_table(optimum: JointOptimum) -> str:
    """The best values with their half widths, the observable there, and how many places were tried."""
    found = zip(optimum.parameters, optimum.values, optimum.errors, optimum.kinds, strict=True)
    places = ", ".join(_place(*each) for each in found)
    lines = _head(optimum, places, f"{len(optimum.tried)} places tried; ")
    return "\n".join(with_verdict(lines, optimum.solution))


@to_json.register(JointOptimum)
def joint_json(optimum: JointOptimum) -> dict[str, Any]:
    """As of an optimum, by name; all places that were tried, and the solution at the best."""
    names = [name.rstrip("_") for name in optimum.parameters]
    found = (dict(zip(names, each, strict=True)) for each in (optimum.kinds, optimum.values, optimum.errors))
    kinds, values, errors = found
    return _optimum_json(optimum, kinds, names, values, errors, tried=[vars(trial) for trial in optimum.tried])


@table.register(TunedCurve)
def tuned_table(tuned: TunedCurve) -> str:
    """One line a value of the second parameter, then what the full scans had to say."""
    if not tuned.optima:
        return "no optimum was found"
    first = tuned.optima[0]
    name = column_of(first.parameter)
    rows = [[column_of(tuned.over), f"best {name}", in_words(first.problem, first.minimise), "where", "status"]]
    judged = is_judged_other_than_stable(optimum.solution for optimum in tuned.optima)
    rows[0] += ["verdict"] * judged
    for value, optimum in zip(tuned.values, tuned.optima, strict=True):
        best = with_error(optimum.value, optimum.error) if optimum.kind == "minimum" else f"{optimum.value:.6g}"
        words = [each.replace("_", " ") for each in (optimum.kind, optimum.status)]
        verdict = [verdict_cell(optimum.solution)] * judged
        rows.append([f"{value:.6g}", best, text_of(optimum, "observed"), *words, *verdict])
    return "\n".join([f"{first.problem.solver.name}, {first.branch} branch", *aligned(rows), *tuned.notes])


def tuned_json(tuned: TunedCurve, file: Path | None) -> dict[str, Any]:
    """The object of `tune --along --json`: every point is one of `tune --json`."""
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
