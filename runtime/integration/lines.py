"""Lines in the fields, parallel to a coordinate of omega, split where the proximal map jumps: an integration rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..base.errors import InputError
from ..channel.exchange import Reduction
from ..channel.field_lines import along, flat, narrowed, on_lines
from ..channel.fields import Fields
from ..channel.nodes import gauss_legendre, highest_coefficients, trapezoid
from ..channel.points import noise_choices, points_at
from ..problems.problem import Problem
from ..problems.reduced import integrated
from .panels import divided
from .rule import Rule
from .sampled import Integrand, NodeSets, PointRule, TeacherRule, product_with_fields

_REACH = 7.5  # of a line, in standard deviations
_HALVINGS = 44
_CROSSING, _CROSSING_STEPS = 1e-8, 24  # of where X crosses a kink, in which averages are stationary
_STEEP = 2.0  # steps of X longer than so many median steps of the line are looked into
_PER_PANEL = 4  # nodes an axis for every node of Gauss-Legendre on a panel
_PANEL = 1.6  # longest panel
_PER_DIGIT = 6  # nodes an axis for every digit asked of X on a panel
_SHORTEST = 1e-7  # half a panel
_ROUNDING = 1e-10  # of X, which no panel resolves further
_MOST_PANELS = 2e5  # halved at a time
_LEAST_RATE = 0.125  # from one number of equidistant nodes to its double: halvings may agree by chance
_MOST_INTERVALS = 1024
_USUAL, _FOR_SLOPES = 32, 24  # nodes an axis
_MOST_LINES = 3e6
_OPINIONS = (40, 56, 78, 108, 140)  # nodes an axis; the last are about the most of which three other axes can be had


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
        """Those of the loss that X crosses, in the coordinates of the nodes."""
        planes = problem.planes("loss", fields.constants)
        count = problem.tokens * problem.student_rank
        planes = planes[planes[:, :count].any(axis=1)]
        elsewhere = np.where(np.arange(planes.shape[1]) < count, 0.0, planes)
        return cls(planes[:, :count], fields.in_nodes(elsewhere, problem.noise_scale))

    def distances(self, x: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """How far X (N, L, s) is from every plane, with a sign and up to a factor, (N, K); nodes are (N, dimension)."""
        return flat(x) @ self.in_fields.T + nodes @ self.in_nodes[:, :-1].T + self.in_nodes[:, -1]


@dataclass(frozen=True)
class Lines(PointRule):
    """Lines along the last coordinate of omega through a product of equidistant nodes in all others, split at jumps.

    On every line the places where X moves fastest are found by halving, and end panels of Gauss-Legendre nodes that are
    halved until they resolve X, so that a jump costs no accuracy and a steep stretch next to a cusp little. Lines
    without are trapezoidal. The proximal map is global at every node: how jumps are treated has nothing in common with
    the prox-space rule, though both use equidistant nodes in Y and the same descents.

    Args:
        points: nodes an axis (a panel, at a kink of the model), 16 or more.
    """

    points: int = 32
    name: str = "lines"
    most_points: ClassVar[int] = 256
    splits_jumps: ClassVar[bool] = True
    at_temperature: ClassVar[bool] = False
    fewest: ClassVar[int] = 16

    def lines(self, problem: Problem) -> float:
        """How many lines it visits where nothing is split, about."""
        part = integrated(problem)
        return float(self.points) ** (part.dimension - 1) * len(part.label_choices)

    def nodes(self, problem: Problem) -> float:
        """Where nothing is split."""
        return float(self.points) ** integrated(problem).dimension

    def cost(self, problem: Problem) -> float:
        """Hundreds of proximal points a line."""
        return 4e4 * self.lines(problem)

    def for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """As few nodes an axis as give slopes."""
        return replace(self, points=min(self.points, _FOR_SLOPES)), 1e-4, True

    @classmethod
    def opinions(cls, problem: Problem, bistable: float) -> tuple[Lines, ...]:
        """Where there are no more than two fields, as many as are affordable."""
        part = integrated(problem)
        few = part.solver.channel.FIELDS <= 2
        return tuple(cls(n) for n in _OPINIONS if few and n ** (part.dimension - 1) <= _MOST_LINES)

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """As far as the kinks of the loss are planes, which lines are split at."""
        solver = integrated(problem).solver
        return solver.channel.FIELDS <= 2 and not solver.model.CURVED["loss"]

    def reduction_of(self, problem: Problem, fields: Fields, labels: tuple[int, ...]) -> Reduction:
        """Return the exchanges, as of `Sampled`."""
        known = TeacherRule.of(problem, fields, self.points, equidistant=True)
        return Reduction.of(problem, fields, labels, known.axes)

    def node_sets(self, problem: Problem, fields: Fields, reduction: Reduction, of: Integrand = "averages") -> NodeSets:
        """Return nodes and weights, as of `Sampled`."""
        teachers = problem.tokens * problem.teacher_rank
        inner = [trapezoid(self.points)] * (problem.tokens * problem.student_rank - 1)
        if self.points < self.fewest:
            raise InputError(f"lines through {self.points} nodes an axis are too few: at least {self.fewest}")

        def refuse(lines: float) -> None:
            if lines > _MOST_LINES:
                count = problem.dimension - 1
                raise InputError(f"lines through {lines:.1e} nodes: {count} axes are too many; use sobol")

        refuse(float(self.points) ** (problem.dimension - 1))  # before a node is made
        nodes, weights = TeacherRule.of(problem, fields, self.points, equidistant=True).rule
        refuse(float(len(nodes)) * float(self.points) ** len(inner))
        weights = weights * reduction.orbits(nodes, problem.teacher_rank)
        nodes, weights = product_with_fields((nodes, weights), inner, teachers)
        keep = weights > 1e-14 * weights.max()
        axis = teachers + len(inner)
        nodes, weights = np.insert(nodes[keep], axis, 0.0, axis=1), weights[keep]
        row, places, shares = _split(problem, fields, nodes, axis, self.points)
        full, weights = nodes[row], weights[row] * shares
        full[:, axis] = places
        heavy = weights > 1e-16 * weights.max()
        return [(np.ascontiguousarray(full[heavy]), np.ascontiguousarray(weights[heavy]))]


def _split(
    problem: Problem, fields: Fields, nodes: np.ndarray, axis: int, points: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A rule for N(0, 1) on the line through every node, along one axis: row of the node, place and weight of each."""
    # Steps of omega no longer than half the width over which minima compete.
    last = fields.field_factor[-1, -1, -1] / np.sqrt(fields.variance[-1, -1, -1])
    wanted = max(4 * _REACH * last * points / _USUAL, 32, points)
    intervals = 4 * int(np.ceil(min(wanted, _MOST_INTERVALS) / 4))
    ends = np.linspace(-_REACH, _REACH, intervals + 1)
    axes = np.full(len(nodes), axis)
    kinks = Kinks.of(problem, fields)
    breaks = [(np.zeros(0, int), np.zeros(0))]  # rows, and places where X is steep or crosses a kink
    rough = np.zeros(len(nodes), bool)
    step, density = ends[1] - ends[0], _density(ends)

    def distances(row: np.ndarray, choice: int, plane: int, places: np.ndarray) -> np.ndarray:
        there = along(nodes[row], axes[row], places)
        return kinks.distances(points_at(problem, fields, there, choice=choice).x, there)[:, plane]

    tolerance = max(10.0 ** (-points / _PER_DIGIT), _ROUNDING)
    for choice in noise_choices(problem):
        x, minima = on_lines(problem, fields, nodes, axes, ends, choice)
        rough |= _unresolved(x, step * density, tolerance)
        two = minima > 1
        steps = np.linalg.norm(np.diff(x, axis=1), axis=2)
        before, after = np.pad(steps, ((0, 0), (1, 0)))[:, :-1], np.pad(steps, ((0, 0), (0, 1)))[:, 1:]
        steep = steps > _STEEP * np.median(steps, axis=1, keepdims=True)
        row, place = np.nonzero((steep | two[:, 1:] | two[:, :-1]) & (steps >= before) & (steps > after))
        brackets = row, ends[place], ends[place + 1], x[row, place], x[row, place + 1]
        (row, low, high, _, _), _ = narrowed(problem, fields, nodes, axes, brackets, _HALVINGS, choice=choice)
        breaks.append((row, (low + high) / 2))
        lines = along(np.repeat(nodes, len(ends), axis=0), np.repeat(axes, len(ends)), np.tile(ends, len(nodes)))
        away = kinks.distances(x.reshape(len(lines), problem.tokens, -1), lines).reshape(*x.shape[:2], -1)
        for plane in range(away.shape[2]):
            own = away[:, :, plane]
            row, place = np.nonzero((own[:, 1:] > 0) != (own[:, :-1] > 0))
            between = ends[place], ends[place + 1], own[row, place], own[row, place + 1]
            breaks.append((row, _crossings(partial(distances, row, choice, plane), *between)))
    breaks_on = _by_line(breaks, len(nodes))
    rough |= np.array([len(each) > 0 for each in breaks_on])
    smooth, split = np.flatnonzero(~rough), np.flatnonzero(rough)
    parts = [(np.repeat(smooth, len(ends)), np.tile(ends, len(smooth)), np.tile(step * density, len(smooth)))]
    if len(split):
        edges = [_edges(breaks_on[n]) for n in split]
        row = np.repeat(split, [len(cuts) - 1 for cuts in edges])
        low, high = (np.concatenate([cuts[part] for cuts in edges]) for part in (slice(None, -1), slice(1, None)))

        def x_at(row: np.ndarray, z: np.ndarray) -> Iterable[np.ndarray]:
            at = along(np.repeat(nodes[row], z.shape[1], axis=0), np.repeat(axes[row], z.shape[1]), z.ravel())
            for choice in noise_choices(problem):
                yield flat(points_at(problem, fields, at, choice=choice).x).reshape(*z.shape, -1)

        parts.append(_resolved(x_at, (row, low, high), max(4, points // _PER_PANEL), tolerance))
    row, places, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return row, places, weights


def _unresolved(x: np.ndarray, weights: np.ndarray, tolerance: float) -> np.ndarray:
    """Lines (N,) on which the average of X (N, ends, fields) by equidistant nodes is not known to a tolerance.

    Told by what a half and a quarter of the nodes make of it: each halving takes as many digits as the one before, or a
    constant factor where X bends within a step.
    """
    sums = [every * np.einsum("e,nef->nf", weights[::every], x[:, ::every]) for every in (1, 2, 4)]
    one, two = (np.abs(finer - coarser).max(axis=1) for finer, coarser in pairwise(sums))
    return one * np.clip(one / np.maximum(two, 1e-300), _LEAST_RATE, 1.0) > tolerance * np.abs(x).max()


def _resolved(
    x_at: Callable[[np.ndarray, np.ndarray], Iterable[np.ndarray]],
    panels: tuple[np.ndarray, np.ndarray, np.ndarray],
    order: int,
    tolerance: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gauss-Legendre on panels, halved until X is a polynomial there: its last two coefficients are below a tolerance.

    Args:
        x_at: rows (P,) and places (P, order) on their lines -> X there, (P, order, fields) for every choice of noise.
        panels: row, lower and upper end of each.

    Returns:
        row, place and weight of N(0, 1) of every node.
    """
    t, w = gauss_legendre(order)
    row, low, high = panels
    resolved = []
    while len(row):
        middle, half = (low + high) / 2, (high - low) / 2
        z = middle[:, None] + half[:, None] * t
        nearest = np.clip(0.0, low, high)
        tail = np.zeros(len(row))
        for x in x_at(row, z):
            last = np.abs(np.einsum("kj,njf->nkf", highest_coefficients(order), x)).max(axis=(1, 2))
            tail = np.maximum(tail, last / np.abs(x).max())
        enough = (tail * np.exp(-nearest * nearest / 2) <= tolerance) | (half < _SHORTEST)
        if np.sum(~enough) > _MOST_PANELS:
            enough[:] = True
        weights = half[:, None] * w * _density(z)
        resolved.append((np.repeat(row[enough], order), z[enough].ravel(), weights[enough].ravel()))
        row, low, middle, high = (values[~enough] for values in (row, low, middle, high))
        row, low, high = np.repeat(row, 2), np.stack([low, middle], 1).ravel(), np.stack([middle, high], 1).ravel()
    rows, places, shares = (np.concatenate(arrays) for arrays in zip(*resolved, strict=True))
    return rows, places, shares


def _crossings(
    distances: Callable[[np.ndarray], np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    at_low: np.ndarray,
    at_high: np.ndarray,
) -> np.ndarray:
    """Where X crosses a plane within intervals: regula falsi, as Illinois has it, with halvings where that is slow.

    Args:
        distances: of X from the plane, from places in the intervals; low, high: ends; at_low, at_high: distances there.
    """
    place = (low + high) / 2
    open_ = np.ones(len(place), bool)
    for step in range(_CROSSING_STEPS):
        if not open_.any():
            break
        secant = low - at_low * (high - low) / (at_high - at_low)
        place = np.where(open_, (low + high) / 2 if step % 4 == 3 else secant, place)
        away = distances(place)
        left = (away > 0) == (at_low > 0)
        # The end that stays counts half as much the next time, or regula falsi would keep it for ever.
        at_low, at_high = np.where(left, away, at_low / 2), np.where(left, at_high / 2, away)
        low, high = np.where(left, place, low), np.where(left, high, place)
        open_ &= (high - low > _CROSSING) & (np.abs(away) > _CROSSING**2)
    return place


def _by_line(places: list[tuple[np.ndarray, np.ndarray]], lines: int) -> list[np.ndarray]:
    """Return the places on every line, ascending, from rows and places in any order."""
    row, place = (np.concatenate(each) for each in zip(*places, strict=True))
    order = np.lexsort((place, row))
    return np.split(place[order], np.cumsum(np.bincount(row, minlength=lines))[:-1])


def _density(z: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)


def _edges(breaks: np.ndarray) -> np.ndarray:
    """Ends of panels, ascending: at the breaks, and none longer than _PANEL."""
    return divided(np.unique([-_REACH, *breaks, _REACH]), _PANEL)
