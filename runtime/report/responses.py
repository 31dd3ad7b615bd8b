"""Sensitivities and tuned parameters: text, JSON and frames."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__
from ..numbers import aligned, near_zero, with_error
from ..presenting import table, to_frame, to_json
from ..problems.columns import block_columns, column_of
from ..problems.quantities import LOSSES
from ..responses.answers import Sensitivities, Sensitivity
from ..responses.joint import JointOptimum
from ..responses.minimum import describe_best, in_words
from ..responses.tuned_curve import TunedCurve
from ..responses.tuning import Optimum
from .ansatz import is_judged_other_than_stable, verdict_cell, with_verdict
from .contract import blocks_json, parameters_json, trained_json

if TYPE_CHECKING:
    import pandas


@table.register(Sensitivities)
def sensitivities_table(sensitivities: Sensitivities) -> str:
    """A row an observable, a column a parameter."""
    entries = list(sensitivities)
    problem = sensitivities.solution.problem
    rows = [["d / d", *(entry.parameter for entry in entries)]]
    values = [block_columns(problem, entry.overlaps) for entry in entries]
    widths = [block_columns(problem, entry.half_widths) for entry in entries]
    for name in values[0] if entries else ():
        row, column = name.partition("_")[::2]
        if column and problem.student_rank > 1 and row in ("q", "V"):
            index = column.rpartition("_")[2]
            if index[0] > index[1]:
                continue  # symmetric
        rows.append([name, *(near_zero(v[name], w[name]) for v, w in zip(values, widths, strict=True))])
    for k, number in enumerate(problem.trained):
        cells = [with_error(float(e.overlaps.phi[k]), float(e.half_widths.phi[k])) for e in entries]
        rows.append([number["name"], *cells])
    for name in ("training_loss", "test_error", "baseline_error"):
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
            "training_loss": entry.training_loss_error,
            "test_error": entry.test_error_error,
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
        for suffix, blocks in (("", entry.overlaps), ("_error", entry.half_widths)):
            row |= block_columns(entry.problem, blocks, suffix)
            for number, value in zip(entry.problem.trained, blocks.phi, strict=True):
                row[f"trained_{number['name']}{suffix}"] = float(value)
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


@table.register(Optimum)
def optimum_table(optimum: Optimum) -> str:
    """The best value, what its half width is made of, the observable there, and what else was weighed."""
    name = optimum.parameter.rstrip("_")
    value = with_error(optimum.value, optimum.error) if optimum.kind == "minimum" else f"{optimum.value:.6g}"
    shown = in_words(optimum.problem, optimum.minimise)
    lines = [
        f"{optimum.problem.solver.name}, {optimum.branch} branch: "
        f"{describe_best(optimum.problem, optimum.minimise)} at {name} = {value}{_PLACES[optimum.kind]}",
        f"  {shown} {with_error(optimum.observed, optimum.observed_error)} there; {optimum.status.replace('_', ' ')}",
    ]
    if optimum.kind == "minimum":
        parts = optimum.evidence
        lines.append(
            f"  error bar {optimum.error:.2g} = {parts['half_width_integration']:.2g} from integration "
            f"+ {parts['half_width_root']:.2g} from the root"
        )
    for other in optimum.others:
        kind, there = other.kind.replace("_", " "), with_error(other.observed, other.observed_error)
        lines.append(f"  next to it: {kind} at {name} = {other.value:.4g}, {shown} {there}")
    return "\n".join(with_verdict(lines, optimum.solution))


@to_json.register(Optimum)
def optimum_json(optimum: Optimum) -> dict[str, Any]:
    """As the object of a threshold (docs/design.md section 5), with the solution there."""
    name = optimum.parameter.rstrip("_")
    return {
        "model": optimum.problem.solver.name,
        "digest": optimum.problem.solver.digest,
        "kind": optimum.kind,
        "parameter": name,
        "parameters": {k: v for k, v in parameters_json(optimum.solution.problem).items() if k != name},
        "minimise": optimum.minimise,
        "metric": optimum.problem.metric_name or None,
        "value": optimum.value,
        "error": optimum.error,
        "error_kind": optimum.error_kind,
        "status": optimum.status,
        "branch": optimum.branch,
        "observed": optimum.observed,
        "observed_error": optimum.observed_error,
        "others": [vars(other) for other in optimum.others],
        "evidence": optimum.evidence,
        "solution": optimum.solution.to_json(),
    }


@table.register(JointOptimum)
def joint_table(optimum: JointOptimum) -> str:
    """The best values with their half widths, the observable there, and how many places were tried."""
    shown = in_words(optimum.problem, optimum.minimise)
    found = zip(optimum.parameters, optimum.values, optimum.errors, optimum.kinds, strict=True)
    places = ", ".join(
        f"{name.rstrip('_')} = {with_error(value, error) if kind == 'minimum' else f'{value:.6g}{_PLACES[kind]}'}"
        for name, value, error, kind in found
    )
    lines = [
        f"{optimum.problem.solver.name}, {optimum.branch} branch: "
        f"{describe_best(optimum.problem, optimum.minimise)} at {places}",
        f"  {shown} {with_error(optimum.observed, optimum.observed_error)} there; "
        f"{len(optimum.tried)} places tried; {optimum.status.replace('_', ' ')}",
    ]
    return "\n".join(with_verdict(lines, optimum.solution))


@to_json.register(JointOptimum)
def joint_json(optimum: JointOptimum) -> dict[str, Any]:
    """As of an optimum, by name; all places that were tried, and the solution at the best."""
    names = [name.rstrip("_") for name in optimum.parameters]
    return {
        "model": optimum.problem.solver.name,
        "digest": optimum.problem.solver.digest,
        "kind": dict(zip(names, optimum.kinds, strict=True)),
        "parameter": names,
        "parameters": {k: v for k, v in parameters_json(optimum.solution.problem).items() if k not in names},
        "minimise": optimum.minimise,
        "metric": optimum.problem.metric_name or None,
        "value": dict(zip(names, optimum.values, strict=True)),
        "error": dict(zip(names, optimum.errors, strict=True)),
        "error_kind": "estimated",
        "status": optimum.status,
        "branch": optimum.branch,
        "observed": optimum.observed,
        "observed_error": optimum.observed_error,
        "tried": [vars(trial) for trial in optimum.tried],
        "evidence": optimum.evidence,
        "solution": optimum.solution.to_json(),
    }


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
        shown = with_error(optimum.observed, optimum.observed_error)
        rows.append(
            [
                *(f"{value:.6g}", best, shown, optimum.kind.replace("_", " "), optimum.status.replace("_", " ")),
                *[verdict_cell(optimum.solution)] * judged,
            ],
        )
    return "\n".join([f"{first.problem.solver.name}, {first.branch} branch", *aligned(rows), *tuned.notes])


def tuned_json(tuned: TunedCurve, file: Path | None) -> dict[str, Any]:
    """The object of `tune --along --json`: every point is one of `tune --json`."""
    return {
        "version": __version__,
        "along": tuned.over.rstrip("_"),
        "status": (
            "interrupted"
            if tuned.interrupted
            else "done"
            if tuned.success
            else "time_limit"
            if tuned.out_of_time
            else "not_converged"
        ),
        "missing": list(tuned.missing),
        "notes": list(tuned.notes),
        "points": [optimum.to_json() for optimum in tuned.optima],
        "file": str(file) if file is not None else None,
    }
