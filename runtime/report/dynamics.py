"""Descent in time: as `dynamics` prints it, for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..descent.averages import across_jumps
from ..descent.dynamics import Dynamics, Plateau
from ..descent.escape import Escape
from ..descent.stationary import RateLimit, StationaryPoint
from ..numbers import with_error
from ..presenting import table, to_json
from ..problems.columns import block_columns, block_shape
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.starts import branch_of
from .contract import problem_json, trained_json
from .solution import overlap_lines, problem_line

_ROWS = 11
_SHOWN = ("q", "m", "theta")


@table.register(Dynamics)
def dynamics_table(dynamics: Dynamics) -> str:
    """What `dynamics` prints: overlaps and errors at some of the times, events, plateaus and what is reached."""
    problem, times = dynamics.problem, dynamics.times
    has_means = bool(problem.law.has_means.any())
    points = sorted({round(x) for x in np.linspace(0, len(times) - 1, min(_ROWS, len(times)))})
    columns = [block_columns(problem, overlaps) for overlaps in dynamics.overlaps]
    widths = [block_columns(problem, errors) for errors in dynamics.overlap_errors]
    names = [name for name in columns[0] if name.startswith(("q", "theta") if not has_means else _SHOWN)]
    head = ["time", *names, *(number["name"] for number in problem.trained), "loss"]
    has_metric = bool(np.isfinite(dynamics.test_error).any())
    rows = [[*head, "test error"] if has_metric else head]
    for n in points:
        row = [f"{times[n]:g}", *(_said(columns[n][name], widths[n][name]) for name in names)]
        row += [_said(*pair) for pair in zip(dynamics.overlaps[n].phi, dynamics.overlap_errors[n].phi, strict=True)]
        row.append(_said(dynamics.loss[n], dynamics.loss_error[n]))
        if has_metric:
            row.append(_said(dynamics.test_error[n], dynamics.test_error_error[n]))
        rows.append(row)
    flow = "gradient flow on the population risk" if dynamics.rate.flow else f"rate {dynamics.rate.words}"
    batch = "" if dynamics.rate.flow else f", batch {dynamics.batch.words}"
    integrator = dynamics.integrator
    lines = [
        problem_line(problem),
        f"one-pass descent from {dynamics.start}: {flow}{batch}; {dynamics.status.replace('_', ' ')} "
        f"({integrator['rule']} {integrator['points']}, {dynamics.method}, {dynamics.evaluations} averages)",
        *_aligned(rows),
    ]
    if across := across_jumps(problem, integrator["rule"]):
        lines.append(f"  {across}")
    for event in dynamics.events:
        lines.append(f"  {event.name} passes {event.value:g} at t = {with_error(event.time, event.error)}")
    lines += [_plateau_line(plateau) for plateau in dynamics.plateaus]
    lines.append(f"  at the end: {dynamics.branch}" + _reached_words(dynamics))
    if all(branch_of(overlaps) == "uninformed" for overlaps in (dynamics.overlaps[0], dynamics.overlaps[-1])):
        lines.append("  overlaps that vanish at the start stay so: --d D draws those that rows of finite d have")
    return "\n".join(lines)


def _said(value: float, error: float) -> str:
    return with_error(value, error) if np.isfinite(error) else f"{value:.6g}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]


def _plateau_line(plateau: Plateau) -> str:
    text = f"  plateau from t = {plateau.begin:g} to {plateau.end:g}"
    if plateau.point is None:
        return text
    fastest = plateau.point.eigenvalues[0].real
    return text + (
        f", next to a stationary point ({plateau.point.branch}) with {plateau.point.unstable} unstable "
        f"direction{'' if plateau.point.unstable == 1 else 's'}, the fastest growing at {fastest:.4g}"
    )


def _reached_words(dynamics: Dynamics) -> str:
    if dynamics.reached is not None:
        slowest = -dynamics.reached.eigenvalues[0].real
        return f", next to the stable stationary point of this kind (the slowest direction decays at {slowest:.4g})"
    # None is looked for where the rate changes, or of a map.
    has_points = dynamics.rate.is_constant and dynamics.batch.share is None
    return "; no stable stationary point is near" if has_points else ""


@table.register(StationaryPoint)
def stationary_table(point: StationaryPoint) -> str:
    """Overlaps, spectrum and verdict."""
    problem = point.problem
    half = _overlaps_of(point)
    rates = ", ".join(
        f"{value.real:.5g}" + (f"{value.imag:+.3g}i" if value.imag else "") for value in point.eigenvalues
    )
    verdict = "stable" if point.stable else f"unstable in {point.unstable} of {len(point.eigenvalues)} directions"
    return "\n".join(
        [
            problem_line(problem),
            f"stationary point of descent, rate {point.rate.words}: {point.branch}, {verdict}, "
            f"residual {point.residual:.1e}",
            *overlap_lines(problem, *half),
            f"  rates of growth per unit of time: {rates}",
        ]
    )


def _overlaps_of(point: StationaryPoint) -> tuple[Overlaps, Overlaps]:
    from ..descent.state import Moments

    widths = Moments.unpack(np.abs(point.half_widths), point.problem).overlaps(point.problem)
    nothing = np.full_like(point.overlaps.q, np.nan)
    return tuple(  # type: ignore[return-value]
        Overlaps(o.q, nothing, o.m, o.theta, o.phi) for o in (point.overlaps, widths)
    )


@to_json.register(StationaryPoint)
def stationary_json(point: StationaryPoint) -> dict[str, Any]:
    """Overlaps, spectrum and verdict of a stationary point."""
    return {
        "branch": point.branch,
        "stable": point.stable,
        "residual": point.residual,
        "overlaps": _blocks(point.problem, [point.overlaps], alone=True),
        "trained": trained_json(point.problem, point.overlaps),
        "eigenvalues": [[float(value.real), float(value.imag)] for value in point.eigenvalues],
    }


@table.register(RateLimit)
def limit_table(limit: RateLimit) -> str:
    """The rate, why it is the last, and how fast the slowest direction decays just below."""
    last = limit.last
    why = {"lost": "it ends there, or diverges", "unstable": "it goes on, and is unstable"}
    return "\n".join(
        [
            problem_line(last.problem),
            f"{last.branch} stationary point of descent, stable up to rate {with_error(limit.value, limit.error)}: "
            f"{why[limit.kind]} (just below, the slowest direction decays at {-last.eigenvalues[0].real:.4g})",
        ]
    )


@to_json.register(RateLimit)
def limit_json(limit: RateLimit) -> dict[str, Any]:
    """The rate with its half width, why it is the last, and the stationary point just below."""
    return {
        "value": limit.value,
        "error": limit.error,
        "error_kind": "estimated",
        "kind": limit.kind,
        "stationary_point": stationary_json(limit.last),
    }


def _blocks(problem: Problem, every: Sequence[Overlaps], alone: bool = False) -> dict[str, Any]:
    """q, m and theta of every time, tokens and clusters first in each."""
    found = {}
    for name in _SHOWN:
        shape = block_shape(problem, name)
        values = np.array([np.reshape(getattr(overlaps, name), shape) for overlaps in every])
        found[name] = values[0] if alone else values
    return found


@to_json.register(Dynamics)
def dynamics_json(dynamics: Dynamics) -> dict[str, Any]:
    """The object that --json prints."""
    problem = dynamics.problem
    names = [number["name"] for number in problem.trained]

    def phis(every: Sequence[Overlaps]) -> dict[str, Any]:
        return {name: [float(overlaps.phi[n]) for overlaps in every] for n, name in enumerate(names)}

    return {
        **problem_json(problem),
        "start": dynamics.start,
        "rate": dynamics.rate.words,
        "batch": dynamics.batch.words,
        "status": dynamics.status,
        "times": dynamics.times,
        "overlaps": _blocks(problem, dynamics.overlaps),
        "trained": phis(dynamics.overlaps),
        "loss": dynamics.loss,
        "test_error": dynamics.test_error,
        "errors": {
            "overlaps": _blocks(problem, dynamics.overlap_errors),
            "trained": phis(dynamics.overlap_errors),
            "loss": dynamics.loss_error,
            "test_error": dynamics.test_error_error,
        },
        "error_kind": "estimated",
        "events": [vars(event) for event in dynamics.events],
        "plateaus": [
            {"begin": each.begin, "end": each.end, "point": None if each.point is None else stationary_json(each.point)}
            for each in dynamics.plateaus
        ],
        "branch": dynamics.branch,
        "reached": None if dynamics.reached is None else stationary_json(dynamics.reached),
        "integrator": dict(dynamics.integrator),
        "method": dynamics.method,
        "evaluations": dynamics.evaluations,
    }


@table.register(Escape)
def escape_table(escape: Escape) -> str:
    """What grows from no overlap, how fast, and when it is escaped from."""
    point = escape.point
    lines = [
        problem_line(point.problem),
        f"uninformed state, rate {point.rate.words}: {'stable' if point.stable else 'unstable'}",
    ]
    for growth in escape.growths:
        lines.append(f"  {growth.rate:+.6g} per unit of time along {growth.words}")
    known = "none up to 6" if escape.information_exponent is None else str(escape.information_exponent)
    lines.append(f"  information exponent {known}")
    if escape.d is not None:
        times = escape.times[np.isfinite(escape.times)]
        lines.append(
            f"  d = {escape.d}: {len(times)} of {len(escape.times)} draws pass a cosine of {escape.threshold:g}"
            + (
                f", median t = {np.median(times):.5g}, from {times.min():.5g} to {times.max():.5g}"
                if len(times)
                else ""
            )
            + (f" (log(d) / (2 rate) is {np.log(escape.d) / (2 * escape.rate):.5g})" if escape.rate > 0 else "")
        )
        reached = ", ".join(f"{count} {name}" for name, count in escape.reached.items())
        lines.append(f"  at last: {reached}")
    return "\n".join(lines)


@to_json.register(Escape)
def escape_json(escape: Escape) -> dict[str, Any]:
    """The linearised rates, the information exponent and the times of escape."""
    return {
        "stationary_point": stationary_json(escape.point),
        "growths": [{"rate": each.rate, "along": each.words} for each in escape.growths],
        "information_exponent": escape.information_exponent,
        "d": escape.d,
        "threshold": escape.threshold,
        "times": escape.times,
        "reached": list(escape.branches),
    }
