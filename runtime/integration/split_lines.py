"""Lines in the fields, parallel to a coordinate of omega, split where the proximal map jumps: an integration rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..channel.exchange import Reduction
from ..channel.field_lines import bisect_steepest, evaluate_on_lines, flatten_fields, with_coordinate
from ..channel.fields import Fields
from ..channel.nodes import gauss_legendre, highest_legendre_coefficients, trapezoid_rule
from ..channel.points import noise_values, proximal_points_at
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_loss
from .panels import subdivide
from .rule import Rule
from .sampled import Integrand, NodeSets, PointRule, TeacherRule, product_with_field_axes

_ROUNDING = 1e-10  # of X, which no panel resolves further


@dataclass(frozen=True)
class LinesOptions(AlgorithmOptions):
    """Options of the rule of lines through the fields.

    Attributes:
        reach: half the length of a line, in standard deviations.
        max_bisections: of an interval in which X may jump.
        crossing_tolerance: of the place where X crosses a kink; averages are stationary there.
        max_crossing_steps: of the root finder of these places.
        steep_ratio: steps of X longer than so many median steps of the line are bisected; smaller finds smaller jumps.
        points_per_panel_point: nodes an axis for every Gauss-Legendre node of a panel.
        max_panel: longest panel, in standard deviations.
        points_per_digit: nodes an axis for every digit asked of X on a panel.
        min_half_panel: half the shortest panel.
        max_panels: halved at a time; beyond, they are taken as they are.
        min_rate: of convergence from one number of equidistant nodes to its double: halvings may agree by chance.
        max_intervals: of a line, in which jumps are searched.
        default_points: nodes an axis for which a line has its usual number of intervals.
        slope_points: the most nodes an axis for slopes by differences.
        max_lines: beyond, the rule refuses.
        cross_check_points: nodes an axis of the rules that check others; the last are about the most that three other
            axes allow.
    """

    reach: float = 7.5
    max_bisections: int = 44
    crossing_tolerance: float = 1e-8
    max_crossing_steps: int = 24
    steep_ratio: float = 2.0
    points_per_panel_point: int = 4
    max_panel: float = 1.6
    points_per_digit: int = 6
    min_half_panel: float = 1e-7
    max_panels: float = 2e5
    min_rate: float = 0.125
    max_intervals: int = 1024
    default_points: int = 32
    slope_points: int = 24
    max_lines: float = 3e6
    cross_check_points: tuple[int, ...] = (40, 56, 78, 108, 140)


@dataclass(frozen=True)
class Kinks:
    """A set of planes in (X, Y, noise) on which the loss is not smooth and which depend on X.

    Attributes:
        in_fields: (K, fields), coefficients of X.
        in_nodes: (K, dimension + 1), contribution of Y and noise, in standard normal coordinates, and a constant.
    """

    in_fields: np.ndarray
    in_nodes: np.ndarray

    @classmethod
    def of_loss(cls, problem: Problem, fields: Fields) -> Kinks:
        """Return the planes of the loss that X crosses, in the coordinates of the nodes.

        Args:
            problem: problem that gives the planes.
            fields: law of the fields.
        """
        planes = problem.kink_planes("loss", fields.constants)
        count = problem.tokens * problem.student_rank
        planes = planes[planes[:, :count].any(axis=1)]
        elsewhere = np.where(np.arange(planes.shape[1]) < count, 0.0, planes)
        return cls(planes[:, :count], fields.planes_in_normal_coordinates(elsewhere, problem.noise_scale))

    def distances(self, x: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Return the signed distances of X from every plane, up to a factor, (N, K).

        Args:
            x: (N, L, s).
            nodes: (N, dimension).
        """
        return flatten_fields(x) @ self.in_fields.T + nodes @ self.in_nodes[:, :-1].T + self.in_nodes[:, -1]


@dataclass(frozen=True)
class Lines(PointRule):
    """A rule of lines along the last coordinate of omega, split at jumps, and equidistant nodes in all others.

    On every line the places where X changes fastest are found by halving, and end panels of Gauss-Legendre nodes that
    are halved until they resolve X, so that a jump costs no accuracy and a steep stretch next to a cusp little. Lines
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

    def line_count(self, problem: Problem) -> float:
        """Return the approximate number of lines where nothing is split."""
        part = reduce_to_loss(problem)
        return float(self.points) ** (part.dimension - 1) * len(part.label_choices)

    def node_count(self, problem: Problem) -> float:
        """Return the number of nodes where nothing is split."""
        return float(self.points) ** reduce_to_loss(problem).dimension

    def cost(self, problem: Problem) -> float:
        """Return the effort, hundreds of proximal points a line."""
        return 4e4 * self.line_count(problem)

    def rule_for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return the rule with as few nodes an axis as slopes take.

        Args:
            problem: problem whose map is differentiated.
            sample: rule that replaces a replicated one.

        Returns:
            rule, step in block scales (None for wide steps), whether one side suffices.
        """
        return replace(self, points=min(self.points, LinesOptions.current().slope_points)), 1e-4, True

    @classmethod
    def cross_check_rules(cls, problem: Problem, bistable: float) -> tuple[Lines, ...]:
        """Return the affordable sizes where there are no more than two fields.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        part, options = reduce_to_loss(problem), LinesOptions.current()
        few, axes = part.solver.channel.FIELDS <= 2, part.dimension - 1
        return tuple(cls(n) for n in options.cross_check_points if few and n**axes <= options.max_lines)

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether fields are at most two and the kinks of the loss are planes, which split lines."""
        solver = reduce_to_loss(problem).solver
        return solver.channel.FIELDS <= 2 and not solver.model.CURVED["loss"]

    def reduction_of(self, problem: Problem, fields: Fields, labels: tuple[int, ...]) -> Reduction:
        """Return the exchanges under which fields and nodes are invariant.

        Args:
            problem: problem whose loss decides.
            fields: law of the fields.
            labels: label of every token.
        """
        known = TeacherRule.for_loss(problem, fields, self.points, equidistant=True)
        return Reduction.of_rule(problem, fields, labels, known.axes)

    def node_sets(
        self, problem: Problem, fields: Fields, reduction: Reduction, integrand: Integrand = "averages"
    ) -> NodeSets:
        """Return the nodes and weights, one pair.

        Args:
            problem: problem whose fields are integrated over.
            fields: law of the fields.
            reduction: exchanges, from `reduction_of`.
            integrand: what is averaged, see `Sampled`.
        """
        teachers = problem.tokens * problem.teacher_rank
        inner = [trapezoid_rule(self.points)] * (problem.tokens * problem.student_rank - 1)
        if self.points < self.fewest:
            raise InputError(f"lines through {self.points} nodes an axis are too few: at least {self.fewest}")

        def _require_few(lines: float) -> None:
            if lines > LinesOptions.current().max_lines:
                count = problem.dimension - 1
                raise InputError(f"lines through {lines:.1e} nodes: {count} axes are too many; use sobol")

        _require_few(float(self.points) ** (problem.dimension - 1))  # before a node is made
        nodes, weights = TeacherRule.for_loss(problem, fields, self.points, equidistant=True).rule
        _require_few(float(len(nodes)) * float(self.points) ** len(inner))
        weights = weights * reduction.orbit_sizes(nodes, problem.teacher_rank)
        nodes, weights = product_with_field_axes((nodes, weights), inner, teachers)
        keep = weights > 1e-14 * weights.max()
        axis = teachers + len(inner)
        nodes, weights = np.insert(nodes[keep], axis, 0.0, axis=1), weights[keep]
        row, places, shares = _split_lines(problem, fields, nodes, axis, self.points)
        full, weights = nodes[row], weights[row] * shares
        full[:, axis] = places
        heavy = weights > 1e-16 * weights.max()
        return [(np.ascontiguousarray(full[heavy]), np.ascontiguousarray(weights[heavy]))]


def _split_lines(
    problem: Problem, fields: Fields, nodes: np.ndarray, axis: int, points: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a rule for N(0, 1) on the line through every node, along one axis.

    Shape: row of the node, place and weight of each.
    """
    options = LinesOptions.current()
    # Steps of omega no longer than half the width over which minima compete.
    last = fields.field_factor[-1, -1, -1] / np.sqrt(fields.variance[-1, -1, -1])
    wanted = max(4 * options.reach * last * points / options.default_points, 32, points)
    intervals = 4 * int(np.ceil(min(wanted, options.max_intervals) / 4))
    ends = np.linspace(-options.reach, options.reach, intervals + 1)
    axes = np.full(len(nodes), axis)
    kinks = Kinks.of_loss(problem, fields)
    breaks = [(np.zeros(0, int), np.zeros(0))]  # rows, and places where X is steep or crosses a kink
    rough = np.zeros(len(nodes), bool)
    step, density = ends[1] - ends[0], _normal_density(ends)

    def _plane_distances(row: np.ndarray, choice: int, plane: int, places: np.ndarray) -> np.ndarray:
        there = with_coordinate(nodes[row], axes[row], places)
        return kinks.distances(proximal_points_at(problem, fields, there, choice=choice).x, there)[:, plane]

    tolerance = max(10.0 ** (-points / options.points_per_digit), _ROUNDING)
    for choice in noise_values(problem):
        x, minima = evaluate_on_lines(problem, fields, nodes, axes, ends, choice)
        rough |= _find_unresolved_lines(x, step * density, tolerance)
        two = minima > 1
        steps = np.linalg.norm(np.diff(x, axis=1), axis=2)
        before, after = np.pad(steps, ((0, 0), (1, 0)))[:, :-1], np.pad(steps, ((0, 0), (0, 1)))[:, 1:]
        steep = steps > options.steep_ratio * np.median(steps, axis=1, keepdims=True)
        row, place = np.nonzero((steep | two[:, 1:] | two[:, :-1]) & (steps >= before) & (steps > after))
        brackets = row, ends[place], ends[place + 1], x[row, place], x[row, place + 1]
        (row, low, high, _, _), _ = bisect_steepest(
            problem, fields, nodes, axes, brackets, options.max_bisections, choice=choice
        )
        breaks.append((row, (low + high) / 2))
        lines = with_coordinate(
            np.repeat(nodes, len(ends), axis=0), np.repeat(axes, len(ends)), np.tile(ends, len(nodes))
        )
        away = kinks.distances(x.reshape(len(lines), problem.tokens, -1), lines).reshape(*x.shape[:2], -1)
        for plane in range(away.shape[2]):
            own = away[:, :, plane]
            row, place = np.nonzero((own[:, 1:] > 0) != (own[:, :-1] > 0))
            between = ends[place], ends[place + 1], own[row, place], own[row, place + 1]
            breaks.append((row, _find_kink_crossings(partial(_plane_distances, row, choice, plane), *between)))
    breaks_on = _group_by_line(breaks, len(nodes))
    rough |= np.array([len(each) > 0 for each in breaks_on])
    smooth, split = np.flatnonzero(~rough), np.flatnonzero(rough)
    parts = [(np.repeat(smooth, len(ends)), np.tile(ends, len(smooth)), np.tile(step * density, len(smooth)))]
    if len(split):
        edges = [_panel_edges(breaks_on[n]) for n in split]
        row = np.repeat(split, [len(cuts) - 1 for cuts in edges])
        low, high = (np.concatenate([cuts[part] for cuts in edges]) for part in (slice(None, -1), slice(1, None)))

        def _x_at(row: np.ndarray, z: np.ndarray) -> Iterable[np.ndarray]:
            at = with_coordinate(np.repeat(nodes[row], z.shape[1], axis=0), np.repeat(axes[row], z.shape[1]), z.ravel())
            for choice in noise_values(problem):
                yield flatten_fields(proximal_points_at(problem, fields, at, choice=choice).x).reshape(*z.shape, -1)

        order = max(4, points // options.points_per_panel_point)
        parts.append(_resolve_on_panels(_x_at, (row, low, high), order, tolerance))
    row, places, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return row, places, weights


def _find_unresolved_lines(x: np.ndarray, weights: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the lines (N,) on which equidistant nodes do not give the average of X (N, ends, fields) to a tolerance.

    Sums over a half and a quarter of the nodes show that: each halving takes as many digits as the one before, or a
    constant factor where X bends within a step.
    """
    sums = [every * np.einsum("e,nef->nf", weights[::every], x[:, ::every]) for every in (1, 2, 4)]
    one, two = (np.abs(finer - coarser).max(axis=1) for finer, coarser in pairwise(sums))
    rate = np.clip(one / np.maximum(two, 1e-300), LinesOptions.current().min_rate, 1.0)
    return one * rate > tolerance * np.abs(x).max()


def _resolve_on_panels(
    x_at: Callable[[np.ndarray, np.ndarray], Iterable[np.ndarray]],
    panels: tuple[np.ndarray, np.ndarray, np.ndarray],
    order: int,
    tolerance: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes on panels that are halved until X is a polynomial on each.

    It is one where its last two coefficients are below a tolerance.

    Args:
        x_at: rows (P,) and places (P, order) on their lines -> X there, (P, order, fields) for every choice of noise.
        panels: row, lower and upper end of each.
        order: nodes a panel.
        tolerance: relative to the largest X.

    Returns:
        row, place and weight of N(0, 1) of every node.
    """
    options, (t, w) = LinesOptions.current(), gauss_legendre(order)
    row, low, high = panels
    resolved = []
    while len(row):
        middle, half = (low + high) / 2, (high - low) / 2
        z = middle[:, None] + half[:, None] * t
        nearest = np.clip(0.0, low, high)
        tail = np.zeros(len(row))
        for x in x_at(row, z):
            last = np.abs(np.einsum("kj,njf->nkf", highest_legendre_coefficients(order), x)).max(axis=(1, 2))
            tail = np.maximum(tail, last / np.abs(x).max())
        enough = (tail * np.exp(-nearest * nearest / 2) <= tolerance) | (half < options.min_half_panel)
        if np.sum(~enough) > options.max_panels:
            enough[:] = True
        weights = half[:, None] * w * _normal_density(z)
        resolved.append((np.repeat(row[enough], order), z[enough].ravel(), weights[enough].ravel()))
        row, low, middle, high = (values[~enough] for values in (row, low, middle, high))
        row, low, high = np.repeat(row, 2), np.stack([low, middle], 1).ravel(), np.stack([middle, high], 1).ravel()
    rows, places, shares = (np.concatenate(arrays) for arrays in zip(*resolved, strict=True))
    return rows, places, shares


def _find_kink_crossings(
    distances: Callable[[np.ndarray], np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    at_low: np.ndarray,
    at_high: np.ndarray,
) -> np.ndarray:
    """Return the places in intervals where X crosses a plane.

    The method is regula falsi in the Illinois variant, with bisections where that is slow.

    Args:
        distances: of X from the plane, from places in the intervals.
        low: lower ends.
        high: upper ends.
        at_low: distances at the lower ends.
        at_high: distances at the upper ends.
    """
    options, place = LinesOptions.current(), (low + high) / 2
    tolerance, open_ = options.crossing_tolerance, np.ones(len(place), bool)
    for step in range(options.max_crossing_steps):
        if not open_.any():
            break
        secant = low - at_low * (high - low) / (at_high - at_low)
        place = np.where(open_, (low + high) / 2 if step % 4 == 3 else secant, place)
        away = distances(place)
        left = (away > 0) == (at_low > 0)
        # The end that stays counts half as much the next time, or regula falsi would keep it for ever.
        at_low, at_high = np.where(left, away, at_low / 2), np.where(left, at_high / 2, away)
        low, high = np.where(left, place, low), np.where(left, high, place)
        open_ &= (high - low > tolerance) & (np.abs(away) > tolerance**2)
    return place


def _group_by_line(places: list[tuple[np.ndarray, np.ndarray]], lines: int) -> list[np.ndarray]:
    """Return the places on every line, ascending, from rows and places in any order."""
    row, place = (np.concatenate(each) for each in zip(*places, strict=True))
    order = np.lexsort((place, row))
    return np.split(place[order], np.cumsum(np.bincount(row, minlength=lines))[:-1])


def _normal_density(z: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)


def _panel_edges(breaks: np.ndarray) -> np.ndarray:
    """Return the ends of panels, ascending: at the breaks, and none longer than the longest panel."""
    options = LinesOptions.current()
    return subdivide(np.unique([-options.reach, *breaks, options.reach]), options.max_panel)
