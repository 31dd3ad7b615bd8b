"""Dynamics of one-pass descent as text and JSON of the command `dynamics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..base.numbers import format_value_with_error
from ..base.presenting import table, to_json
from ..extensions.descent.averages import describe_treatment_of_kinks
from ..extensions.descent.dynamics import Dynamics, Plateau
from ..extensions.descent.escape import Escape
from ..extensions.descent.state import Moments
from ..extensions.descent.stationary import RateLimit, StationaryPoint
from ..problems.columns import locations_of_overlap_entries
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.starts import name_branch
from .contract import attributes_by_name, error_bars_by_name, overlaps_json, problem_json, trained_numbers_json
from .layout import ReportOptions
from .solution import model_and_parameters_line, overlap_lines

DYNAMIC_OVERLAPS = ("q", "m", "theta")
"""Overlaps of the dynamics."""


@table.register_renderer_of_class(Dynamics)
def dynamics_table(dynamics: Dynamics) -> str:
    """Return the dynamics of descent as text: overlaps and errors at some times, events, plateaus, final state."""
    problem, times = dynamics.problem, dynamics.times
    has_means = bool(problem.law.contexts_with_nonzero_mean.any())
    count = min(ReportOptions.current().time_rows, len(times))
    points = sorted({round(x) for x in np.linspace(0, len(times) - 1, count)})
    shown = [name for name in DYNAMIC_OVERLAPS if has_means or name != "m"]
    places = {
        column: place for column, place in locations_of_overlap_entries(problem).items() if place[0] in (*shown, "phi")
    }
    losses = ["loss", *["test_error"] * bool(np.isfinite(dynamics.test_error).any())]
    rows = [["time", *(column.removeprefix("trained_") for column in places), *(n.replace("_", " ") for n in losses)]]
    for n in points:
        blocks, errors = dynamics.overlaps[n], dynamics.overlap_errors[n]
        found = [(getattr(blocks, of).flat[at], getattr(errors, of).flat[at]) for of, at in places.values()]
        found += [(getattr(dynamics, name)[n], getattr(dynamics, f"{name}_error")[n]) for name in losses]
        rows.append([f"{times[n]:g}", *(_format_value_with_optional_error(*pair) for pair in found)])
    flow = "gradient flow on the population risk" if dynamics.rate.flow else f"rate {dynamics.rate.command_line_text}"
    batch = "" if dynamics.rate.flow else f", batch {dynamics.batch.command_line_text}"
    integrator = dynamics.integrator
    lines = [
        model_and_parameters_line(problem),
        f"one-pass descent from {dynamics.start}: {flow}{batch}; {dynamics.status.replace('_', ' ')} "
        f"({integrator['rule']} {integrator['points']}, {dynamics.method}, {dynamics.evaluations} averages)",
        *_right_align_table_columns(rows),
    ]
    if across := describe_treatment_of_kinks(problem, integrator["rule"]):
        lines.append(f"  {across}")
    for event in dynamics.events:
        lines.append(f"  {event.name} passes {event.value:g} at t = {format_value_with_error(event.time, event.error)}")
    lines += [_describe_plateau(plateau) for plateau in dynamics.plateaus]
    lines.append(f"  at the end: {dynamics.branch}" + _describe_final_state(dynamics))
    ends = (dynamics.overlaps[0], dynamics.overlaps[-1])
    if all(name_branch(dynamics.problem, overlaps) == "uninformed" for overlaps in ends):
        lines.append("  overlaps that vanish at the start stay so: --d D draws those that rows of finite d have")
    return "\n".join(lines)


def _format_value_with_optional_error(value: float, error: float) -> str:
    return format_value_with_error(value, error) if np.isfinite(error) else f"{value:.6g}"


def _right_align_table_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def _describe_plateau(plateau: Plateau) -> str:
    text = f"  plateau from t = {plateau.begin:g} to {plateau.end:g}"
    if plateau.point is None:
        return text
    fastest = plateau.point.eigenvalues[0].real
    return text + (
        f", next to a stationary point ({plateau.point.branch}) with {plateau.point.unstable} unstable "
        f"direction{'' if plateau.point.unstable == 1 else 's'}, the fastest growing at {fastest:.4g}"
    )


def _describe_final_state(dynamics: Dynamics) -> str:
    if dynamics.reached is not None:
        slowest = -dynamics.reached.eigenvalues[0].real
        return f", next to the stable stationary point of this kind (the slowest direction decays at {slowest:.4g})"
    # No stationary point is computed if the rate changes, or for a map.
    has_points = dynamics.rate.is_constant and dynamics.batch.share is None
    return "; no stable stationary point is near" if has_points else ""


@table.register_renderer_of_class(StationaryPoint)
def stationary_point_table(point: StationaryPoint) -> str:
    """Return a stationary point of descent as text: overlaps, spectrum of the linearised flow, stability verdict."""
    problem = point.problem
    half = _stationary_point_overlaps(point)
    rates = ", ".join(
        f"{value.real:.5g}" + (f"{value.imag:+.3g}i" if value.imag else "") for value in point.eigenvalues
    )
    verdict = "stable" if point.stable else f"unstable in {point.unstable} of {len(point.eigenvalues)} directions"
    return "\n".join(
        [
            model_and_parameters_line(problem),
            f"stationary point of descent, rate {point.rate.command_line_text}: {point.branch}, {verdict}, "
            f"residual {point.residual:.1e}",
            *overlap_lines(problem, *half),
            f"  rates of growth per unit of time: {rates}",
        ]
    )


def _stationary_point_overlaps(point: StationaryPoint) -> tuple[Overlaps, Overlaps]:
    """Return the overlaps of a stationary point and their error bars; V, which descent does not determine, is NaN."""
    widths = Moments.unpack(np.abs(point.error_bars), point.problem).overlaps(point.problem)
    nothing = np.full_like(point.overlaps.q, np.nan)
    return replace(point.overlaps, V=nothing), replace(widths, V=nothing)


@to_json.register_renderer_of_class(StationaryPoint)
def stationary_point_json(point: StationaryPoint) -> dict[str, Any]:
    """Return a stationary point of descent as a dict for JSON: overlaps, spectrum, stability verdict."""
    return {
        **attributes_by_name(point, "branch", "stable", "residual"),
        "overlaps": overlaps_json(point.problem, point.overlaps, DYNAMIC_OVERLAPS),
        "trained": trained_numbers_json(point.problem, point.overlaps),
        "eigenvalues": [[float(value.real), float(value.imag)] for value in point.eigenvalues],
    }


@table.register_renderer_of_class(RateLimit)
def stable_learning_rate_table(limit: RateLimit) -> str:
    """Return the largest stable learning rate as text, with why the solution is lost and the decay just below."""
    last = limit.last
    why = {"lost": "it ends there, or diverges", "unstable": "it goes on, and is unstable"}
    return "\n".join(
        [
            model_and_parameters_line(last.problem),
            f"{last.branch} stationary point of descent, stable up to rate "
            f"{format_value_with_error(limit.value, limit.error)}: {why[limit.kind]} "
            f"(just below, the slowest direction decays at {-last.eigenvalues[0].real:.4g})",
        ]
    )


@to_json.register_renderer_of_class(RateLimit)
def stable_learning_rate_json(limit: RateLimit) -> dict[str, Any]:
    """Return the largest stable learning rate as a dict for JSON, with the stationary point at a rate just below."""
    return {
        **attributes_by_name(limit, "value", "error"),
        "error_kind": "estimated",
        "kind": limit.kind,
        "stationary_point": stationary_point_json(limit.last),
    }


def _trajectory_json(problem: Problem, every: Sequence[Overlaps]) -> dict[str, Any]:
    """Return overlaps q, m, theta and trained numbers at every time as nested lists for JSON."""
    blocks, trained = (
        [overlaps_json(problem, each, DYNAMIC_OVERLAPS) for each in every],
        [trained_numbers_json(problem, u) for u in every],
    )
    return {
        "overlaps": {name: np.array([each[name] for each in blocks]) for name in DYNAMIC_OVERLAPS},
        "trained": {number["name"]: [each[number["name"]] for each in trained] for number in problem.trained},
    }


@to_json.register_renderer_of_class(Dynamics)
def dynamics_json(dynamics: Dynamics) -> dict[str, Any]:
    """Return the dynamics of descent as the dict that `dynamics --json` prints."""
    problem = dynamics.problem
    return {
        **problem_json(problem),
        "start": dynamics.start,
        "rate": dynamics.rate.command_line_text,
        "batch": dynamics.batch.command_line_text,
        **attributes_by_name(dynamics, "status", "times"),
        **_trajectory_json(problem, dynamics.overlaps),
        **attributes_by_name(dynamics, "loss", "test_error"),
        "errors": {
            **_trajectory_json(problem, dynamics.overlap_errors),
            **error_bars_by_name(dynamics, ("loss", "test_error")),
        },
        "error_kind": "estimated",
        "events": [vars(event) for event in dynamics.events],
        "plateaus": [{**vars(each), "point": _stationary_point_json_or_none(each.point)} for each in dynamics.plateaus],
        "branch": dynamics.branch,
        "reached": _stationary_point_json_or_none(dynamics.reached),
        "integrator": dict(dynamics.integrator),
        **attributes_by_name(dynamics, "method", "evaluations"),
    }


def _stationary_point_json_or_none(point: StationaryPoint | None) -> dict[str, Any] | None:
    return None if point is None else stationary_point_json(point)


@table.register_renderer_of_class(Escape)
def escape_time_table(escape: Escape) -> str:
    """Return the escape of descent from zero overlap as text: growth rates of small overlaps, and escape times."""
    point = escape.point
    lines = [
        model_and_parameters_line(point.problem),
        f"uninformed state, rate {point.rate.command_line_text}: {'stable' if point.stable else 'unstable'}",
    ]
    for growth in escape.growths:
        lines.append(f"  {growth.rate:+.6g} per unit of time along {growth.words}")
    known = "none up to 6" if escape.information_exponent is None else str(escape.information_exponent)
    lines.append(f"  information exponent {known}")
    if escape.d is not None:
        times = escape.times[np.isfinite(escape.times)]
        passed = f"  d = {escape.d}: {len(times)} of {len(escape.times)} draws pass a cosine of {escape.threshold:g}"
        if len(times):
            passed += f", median t = {np.median(times):.5g}, from {times.min():.5g} to {times.max():.5g}"
        if escape.rate > 0:
            passed += f" (log(d) / (2 rate) is {np.log(escape.d) / (2 * escape.rate):.5g})"
        reached = ", ".join(f"{count} {name}" for name, count in escape.reached.items())
        lines += [passed, f"  at last: {reached}"]
    return "\n".join(lines)


@to_json.register_renderer_of_class(Escape)
def escape_time_json(escape: Escape) -> dict[str, Any]:
    """Return the escape of descent from zero overlap as a dict for JSON: growth rates, information exponent, times."""
    return {
        "stationary_point": stationary_point_json(escape.point),
        "growths": [{"rate": each.rate, "along": each.words} for each in escape.growths],
        **attributes_by_name(escape, "information_exponent", "d", "threshold", "times"),
        "reached": list(escape.branches),
    }
