"""Lines in the fields, parallel to a coordinate of omega: where the proximal map jumps, and a rule split there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import InputError
from ..problem import Problem
from .exchange import Reduction
from .fields import Fields
from .nodes import gauss_legendre, trapezoid
from .points import noise_choices, points_at
from .rules import Sampled, TeacherRule

_REACH = 7.5  # of a line, in standard deviations
_HALVINGS = 44
_CROSSING, _CROSSING_STEPS = 1e-8, 24  # of where X crosses a kink, in which averages are stationary
_STEEP = 2.0  # steps of X longer than so many median steps of the line are looked into
_PER_PANEL = 4  # nodes an axis for every node of Gauss-Legendre on a panel
_GRADING, _LEVELS = 0.35, 8  # panels shrink toward a break by this factor, so many times
_PANEL = 1.6  # longest panel
_MOST_INTERVALS = 1024
_USUAL = 32  # nodes an axis
_MOST_LINES = 3e6


def flat(x: np.ndarray) -> np.ndarray:
    """X (N, L, s) as rows (N, fields)."""
    return x.reshape(len(x), -1)


def along(nodes: np.ndarray, axes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Copies of the nodes (N, dimension) with the coordinate of each that is named in axes (N,) set to a value (N,)."""
    moved = nodes.copy()
    np.put_along_axis(moved, axes[:, None], values[:, None], axis=1)
    return moved


def narrowed(
    problem: Problem,
    fields: Fields,
    nodes: np.ndarray,
    axes: np.ndarray,
    found: tuple[np.ndarray, ...],
    halvings: int,
    shortest: float = 0.0,
    choice: int = 0,
) -> tuple[tuple[np.ndarray, ...], int]:
    """Halve intervals on lines again and again, keeping the half over which X moves more.

    Args:
        found: row of `nodes` of every interval, its lower and upper end, X at both (N, fields).
        shortest: intervals over which X moves by less are dropped.

    Returns:
        the intervals that are left, as in `found`, and the number of proximal points.
    """
    row, low, high, x_low, x_high = found
    count = 0
    for _ in range(halvings):
        alive = np.linalg.norm(x_high - x_low, axis=1) > shortest if shortest else np.ones(len(row), bool)
        row, low, high, x_low, x_high = (values[alive] for values in (row, low, high, x_low, x_high))
        if not len(row):
            break
        middle = (low + high) / 2
        x_middle = flat(points_at(problem, fields, along(nodes[row], axes[row], middle), choice=choice).x)
        count += len(row)
        left = np.linalg.norm(x_middle - x_low, axis=1) > np.linalg.norm(x_high - x_middle, axis=1)
        high, low = np.where(left, middle, high), np.where(left, low, middle)
        x_high = np.where(left[:, None], x_middle, x_high)
        x_low = np.where(left[:, None], x_low, x_middle)
    return (row, low, high, x_low, x_high), count


def on_lines(
    problem: Problem,
    fields: Fields,
    nodes: np.ndarray,
    axes: np.ndarray,
    ends: np.ndarray,
    choice: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """X at the same ends on the line through every node, (N, ends, fields), and the minima seen there, (N, ends)."""
    lines = along(np.repeat(nodes, len(ends), axis=0), np.repeat(axes, len(ends)), np.tile(ends, len(nodes)))
    found = points_at(problem, fields, lines, choice=choice)
    return flat(found.x).reshape(len(nodes), len(ends), -1), found.minima.reshape(len(nodes), len(ends))


@dataclass(frozen=True)
class Kinks:
    """Planes in (X, Y, noise) on which the loss is not smooth, as far as X is held.

    Attributes:
        in_fields: (K, fields), coefficients of X.
        in_nodes: (K, dimension + 1), what Y and noise add, in standard normal coordinates, and a constant.
    """

    in_fields: np.ndarray
    in_nodes: np.ndarray

    @classmethod
    def of(cls, problem: Problem, fields: Fields) -> Kinks:
        planes = problem.planes("loss", fields.constants)
        count = problem.tokens * problem.student_rank
        planes = planes[planes[:, :count].any(axis=1)]
        elsewhere = np.where(np.arange(planes.shape[1]) < count, 0.0, planes)
        return cls(planes[:, :count], fields.in_nodes(elsewhere, problem.noise_scale))

    def distances(self, x: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """How far X (N, L, s) is from every plane, with a sign and up to a factor, (N, K); nodes are (N, dimension)."""
        return flat(x) @ self.in_fields.T + nodes @ self.in_nodes[:, :-1].T + self.in_nodes[:, -1]


@dataclass(frozen=True)
class Lines(Sampled):
    """Lines along the last coordinate of omega through a product of equidistant nodes in all others, split at jumps.

    On every line the places where X moves fastest are found by halving; Gauss-Legendre panels shrink toward them from
    both sides, so that a jump costs no accuracy and a steep stretch next to a cusp little. Lines without are
    trapezoidal. The proximal map is global at every node: how jumps are treated has nothing in common with the
    prox-space rule, though both use equidistant nodes in Y and the same descents.

    Args:
        points: nodes an axis (a panel, at a kink of the model), 16 or more.
    """

    points: int = 32
    starts: int | None = None
    name: str = "lines"

    def describe(self) -> dict[str, Any]:
        return {"rule": self.name, "points": self.points, "seed": None}

    def finer(self) -> Lines:
        return replace(self, points=self.points * 3 // 2)

    def coarser(self) -> Lines:
        return replace(self, points=max(16, self.points * 2 // 3))

    def _reduction(self, problem: Problem, fields: Fields, labels: tuple[int, ...]) -> Reduction:
        return Reduction.of(
            problem, fields, labels, TeacherRule.of(problem, fields, self.points, equidistant=True).axes
        )

    def _sets(self, problem: Problem, fields: Fields, reduction: Reduction) -> list[tuple[np.ndarray, np.ndarray]]:
        known = TeacherRule.of(problem, fields, self.points, equidistant=True)
        teachers = problem.tokens * problem.teacher_rank
        inner = [trapezoid(self.points)] * (problem.tokens * problem.student_rank - 1)
        lines = float(len(known.nodes)) * float(self.points) ** len(inner)
        if self.points < 16:
            raise InputError(f"lines through {self.points} nodes an axis are too few: at least 16")
        if lines > _MOST_LINES:
            count = known.nodes.shape[1] + len(inner)
            raise InputError(f"lines through {lines:.1e} nodes: {count} axes are too many, use Sobol")
        orbits = reduction.orbits(known.nodes, problem)
        nodes, weights = replace(known, weights=known.weights * orbits).with_fields(inner, teachers)
        keep = weights > 1e-14 * weights.max()
        axis = teachers + len(inner)
        nodes, weights = np.insert(nodes[keep], axis, 0.0, axis=1), weights[keep]
        places, shares = _split(problem, fields, nodes, axis, self.points)
        count = np.array([len(z) for z in places])
        full = np.repeat(nodes, count, axis=0)
        full[:, axis] = np.concatenate(places)
        weights = np.repeat(weights, count) * np.concatenate(shares)
        heavy = weights > 1e-16 * weights.max()
        return [(np.ascontiguousarray(full[heavy]), np.ascontiguousarray(weights[heavy]))]


def _split(
    problem: Problem, fields: Fields, nodes: np.ndarray, axis: int, points: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Nodes and weights for N(0, 1) on the line through every node, along one axis."""
    # Steps of omega no longer than half the width over which minima compete.
    last = fields.field_factor[-1, -1, -1] / np.sqrt(fields.variance[-1, -1, -1])
    intervals = int(np.clip(np.ceil(4 * _REACH * last * points / _USUAL), max(32, points), _MOST_INTERVALS))
    ends = np.linspace(-_REACH, _REACH, intervals + 1)
    axes = np.full(len(nodes), axis)
    kinks = Kinks.of(problem, fields)
    steep_places, kink_places = _Places(len(nodes)), _Places(len(nodes))
    for choice in noise_choices(problem):
        x, minima = on_lines(problem, fields, nodes, axes, ends, choice)
        two = minima > 1
        steps = np.linalg.norm(np.diff(x, axis=1), axis=2)
        before, after = np.pad(steps, ((0, 0), (1, 0)))[:, :-1], np.pad(steps, ((0, 0), (0, 1)))[:, 1:]
        steep = steps > _STEEP * np.median(steps, axis=1, keepdims=True)
        row, place = np.nonzero((steep | two[:, 1:] | two[:, :-1]) & (steps >= before) & (steps > after))
        found = row, ends[place], ends[place + 1], x[row, place], x[row, place + 1]
        (row, low, high, _, _), _ = narrowed(problem, fields, nodes, axes, found, _HALVINGS, choice=choice)
        steep_places.add(row, (low + high) / 2)
        lines = along(np.repeat(nodes, len(ends), axis=0), np.repeat(axes, len(ends)), np.tile(ends, len(nodes)))
        away = kinks.distances(x.reshape(len(lines), problem.tokens, -1), lines).reshape(*x.shape[:2], -1)
        for plane in range(away.shape[2]):
            own = away[:, :, plane]
            row, place = np.nonzero((own[:, 1:] > 0) != (own[:, :-1] > 0))
            found = row, ends[place], ends[place + 1], own[row, place], own[row, place + 1]
            kink_places.add(row, _crossings(problem, fields, nodes, axes, found, choice, kinks, plane))
    step = ends[1] - ends[0]
    plain = ends, step * _density(ends)
    order = max(4, points // _PER_PANEL)
    rules = [
        _graded(steep, kinked, order) if len(steep) or len(kinked) else plain
        for steep, kinked in zip(steep_places.by_line(), kink_places.by_line(), strict=True)
    ]
    return [z for z, _ in rules], [w for _, w in rules]


def _crossings(
    problem: Problem,
    fields: Fields,
    nodes: np.ndarray,
    axes: np.ndarray,
    found: tuple[np.ndarray, ...],
    choice: int,
    kinks: Kinks,
    plane: int,
) -> np.ndarray:
    """Where X crosses a plane within intervals: regula falsi, as Illinois has it, with halvings where that is slow.

    Args:
        found: row of `nodes` of every interval, its ends, and the distance of X from the plane at both.
    """
    row, low, high, at_low, at_high = found
    place = (low + high) / 2
    open_ = np.ones(len(row), bool)
    for step in range(_CROSSING_STEPS):
        if not open_.any():
            break
        secant = low - at_low * (high - low) / (at_high - at_low)
        place = np.where(open_, (low + high) / 2 if step % 4 == 3 else secant, place)
        there = along(nodes[row], axes[row], place)
        away = kinks.distances(points_at(problem, fields, there, choice=choice).x, there)[:, plane]
        left = (away > 0) == (at_low > 0)
        # The end that stays counts half as much the next time, or regula falsi would keep it for ever.
        at_low, at_high = np.where(left, away, at_low / 2), np.where(left, at_high / 2, away)
        low, high = np.where(left, place, low), np.where(left, high, place)
        open_ &= (high - low > _CROSSING) & (np.abs(away) > _CROSSING**2)
    return place


class _Places:
    """Places on lines, collected in any order."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._rows: list[np.ndarray] = []
        self._places: list[np.ndarray] = []

    def add(self, rows: np.ndarray, places: np.ndarray) -> None:
        self._rows.append(rows)
        self._places.append(places)

    def by_line(self) -> list[np.ndarray]:
        """Those of every line, ascending."""
        if not self._rows:
            return [np.zeros(0)] * self._lines
        row, place = np.concatenate(self._rows), np.concatenate(self._places)
        order = np.lexsort((place, row))
        return np.split(place[order], np.cumsum(np.bincount(row, minlength=self._lines))[:-1])


def _density(z: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)


def _graded(steep: np.ndarray, kinks: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and weights for N(0, 1) on panels that end at kinks and shrink toward every steep place."""
    edges = [-_REACH, *steep, _REACH]
    panels = [-_REACH]
    for n, (left, right) in enumerate(pairwise(edges)):
        shared = 0 < n < len(steep)
        shrinking = (right - left) / (2 if shared else 1) * _GRADING ** np.arange(_LEVELS)
        if n > 0:
            panels += list(left + shrinking[::-1])
        if n < len(steep):
            panels += [*(right - shrinking[1:]), right]
    cuts = np.unique(np.concatenate([panels, [_REACH], kinks]))
    low, high = cuts[:-1], cuts[1:]
    parts = np.maximum(1, np.ceil((high - low) / _PANEL)).astype(int)
    offset = np.concatenate([np.arange(k) for k in parts])
    half = np.repeat((high - low) / parts / 2, parts)
    middle = np.repeat(low, parts) + half * (2 * offset + 1)
    x, w = gauss_legendre(order)
    z = (middle[:, None] + half[:, None] * x).ravel()
    return z, (half[:, None] * w).ravel() * _density(z)


__all__ = ["Lines", "along", "narrowed", "on_lines"]
