"""Integration on lines parallel to a coordinate of omega, split where the proximal map jumps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..channel.exchange import SymmetryReduction
from ..channel.field_lines import (
    bisect_steepest_intervals,
    flatten_fields,
    proximal_points_on_lines,
    replace_coordinate,
)
from ..channel.fields import FieldLaw
from ..channel.nodes import gauss_legendre, highest_legendre_coefficient_matrix, trapezoid_rule
from ..channel.points import noise_value_indices, proximal_points_at_nodes
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from .panels import subdivide_edges
from .rule import Rule
from .sampled import Integrand, NodeSets, PointsPerAxisRule, TeacherFieldRule, add_student_field_axes

_ROUNDING = 1e-10  # of X, which no panel resolves further


@dataclass(frozen=True)
class SplitLinesOptions(AlgorithmOptions):
    """Options of the rule of quadrature along lines of the student field omega that are split at jumps.

    Attributes:
        reach: half the length of a line, in standard deviations.
        max_bisections: largest number of bisections of an interval in which X may jump.
        crossing_tolerance: tolerance of the point where X crosses a kink; averages are stationary there.
        max_crossing_steps: largest number of steps of the root finder for such points.
        steep_ratio: ratio of a change of the proximal point X between positions to the median change above which an
            interval is bisected; smaller ratios find smaller jumps.
        points_per_panel_point: number of equidistant nodes per axis for each Gauss-Legendre node of a panel.
        max_panel: length of the longest panel, in standard deviations.
        points_per_digit: nodes per axis for each decimal digit required of X on a panel.
        min_half_panel: half the length of the shortest panel.
        max_panels: largest number of panels halved at a time; more are left as they are.
        min_rate: smallest assumed rate of convergence when equidistant nodes are doubled: two numbers of nodes may
            agree by chance.
        max_intervals: largest number of intervals of a line in which jumps are searched.
        default_points: nodes per axis for which a line has its default number of intervals.
        slope_points: largest number of nodes per axis for a numerical Jacobian.
        max_lines: largest number of lines; the rule raises an error if it needs more.
        cross_check_points: nodes per axis of the rules that cross-check others.
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
class KinkPlanes:
    """A set of planes in student fields X, teacher fields and noise on which the loss has kinks, and which depend on X.

    Attributes:
        in_fields: coefficients of X, one plane per row.
        in_nodes: coefficients of the standard normal coordinates of the nodes, and a constant, one plane per row.
    """

    in_fields: np.ndarray
    in_nodes: np.ndarray

    @classmethod
    def kink_planes_of_loss(cls, problem: Problem, fields: FieldLaw) -> KinkPlanes:
        """Return the planes on which the loss has kinks, and which depend on the student fields.

        Args:
            problem: problem that defines the loss.
            fields: law of the fields.
        """
        planes = problem.kink_planes("loss", fields.constants)
        count = problem.tokens * problem.student_rank
        planes = planes[planes[:, :count].any(axis=1)]
        elsewhere = np.where(np.arange(planes.shape[1]) < count, 0.0, planes)
        return cls(planes[:, :count], fields.planes_in_normal_coordinates(elsewhere, problem.noise_scale))

    def distances_from_planes(self, x: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        """Return the signed distances of proximal points X from every kink plane, up to a factor per plane.

        Args:
            x: proximal points X, shape (nodes, L, s).
            nodes: standard normal coordinates, one node per row.
        """
        return flatten_fields(x) @ self.in_fields.T + nodes @ self.in_nodes[:, :-1].T + self.in_nodes[:, -1]


@dataclass(frozen=True)
class SplitLinesRule(PointsPerAxisRule):
    """A rule of lines along one student field, split at jumps, with equidistant nodes in all other coordinates.

    On every line the points where the proximal point X changes fastest are located by bisection. They are the edges of
    Gauss-Legendre panels, which are halved until they resolve X. Lines without such points have equidistant nodes.
    Jumps are treated independently of the prox-space rule.

    Args:
        points: nodes per axis (per panel, at a kink of the model), 16 or more.
    """

    points: int = 32
    name: str = "lines"
    most_points: ClassVar[int] = 256
    splits_jumps: ClassVar[bool] = True
    at_temperature: ClassVar[bool] = False
    fewest: ClassVar[int] = 16

    def line_count(self, problem: Problem) -> float:
        """Return the approximate number of lines of the student field omega."""
        part = reduce_to_fields_of_loss(problem)
        return float(self.points) ** (part.dimension - 1) * len(part.label_probabilities)

    def node_count(self, problem: Problem) -> float:
        """Return the approximate number of nodes, if no line is split."""
        return float(self.points) ** reduce_to_fields_of_loss(problem).dimension

    def evaluation_cost(self, problem: Problem) -> float:
        """Return the cost of an evaluation; the unit is the cost of one grid node of `ProxSpaceRule`."""
        return 4e4 * self.line_count(problem)

    def rule_for_numerical_jacobian(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return the rule with few nodes per axis for a numerical Jacobian of the saddle-point map.

        Args:
            problem: problem whose saddle-point map is differentiated.
            sample: Sobol rule to return if this rule has replicates.

        Returns:
            the rule; the finite-difference step relative to the scale of each overlap matrix (None: choose a wide step
            for sampled averages); whether one-sided differences suffice.
        """
        return replace(self, points=min(self.points, SplitLinesOptions.current().slope_points)), 1e-4, True

    @classmethod
    def quadrature_rules_for_cross_check(cls, problem: Problem, bistable: float) -> tuple[SplitLinesRule, ...]:
        """Return rules, coarse to fine, to cross-check averages by another family; none for over two student fields.

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        part, options = reduce_to_fields_of_loss(problem), SplitLinesOptions.current()
        few, axes = part.solver.channel.FIELDS <= 2, part.dimension - 1
        return tuple(cls(n) for n in options.cross_check_points if few and n**axes <= options.max_lines)

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether the rule applies: at most two student fields, and kinks of the loss are planes."""
        solver = reduce_to_fields_of_loss(problem).solver
        return solver.channel.FIELDS <= 2 and not solver.model.CURVED["loss"]

    def symmetry_reduction(self, problem: Problem, fields: FieldLaw, labels: tuple[int, ...]) -> SymmetryReduction:
        """Return the symmetries of the law of the fields under which the quadrature nodes are invariant.

        Args:
            problem: problem whose loss must be invariant.
            fields: law of the fields.
            labels: label of every token.
        """
        known = TeacherFieldRule.teacher_rule_for_loss(problem, fields, self.points, equidistant=True)
        return SymmetryReduction.symmetries_of_law_and_nodes(problem, fields, labels, known.axes)

    def nodes_and_weights_by_replicate(
        self, problem: Problem, fields: FieldLaw, reduction: SymmetryReduction, integrand: Integrand = "averages"
    ) -> NodeSets:
        """Return the nodes and weights as a list of one pair, since the rule has no replicates.

        Args:
            problem: problem whose fields are integrated over.
            fields: law of the fields.
            reduction: symmetries of the loss, the law of the fields and the nodes, from `symmetry_reduction`.
            integrand: kind of average, see `NodeBasedRule.nodes_and_weights_by_replicate`.
        """
        teachers = problem.tokens * problem.teacher_rank
        inner = [trapezoid_rule(self.points)] * (problem.tokens * problem.student_rank - 1)
        if self.points < self.fewest:
            raise InputError(f"the integrator lines needs at least {self.fewest} points per axis, not {self.points}")

        def _require_few_lines(lines: float) -> None:
            if lines > SplitLinesOptions.current().max_lines:
                raise InputError(
                    f"the integrator lines would need {lines:.1e} lines in {problem.dimension} dimensions; use sobol"
                )

        _require_few_lines(float(self.points) ** (problem.dimension - 1))  # before a node is made
        nodes, weights = TeacherFieldRule.teacher_rule_for_loss(
            problem, fields, self.points, equidistant=True
        ).nodes_and_weights
        _require_few_lines(float(len(nodes)) * float(self.points) ** len(inner))
        weights = weights * reduction.orbit_sizes(nodes, problem.teacher_rank)
        nodes, weights = add_student_field_axes((nodes, weights), inner, teachers)
        keep = weights > 1e-14 * weights.max()
        axis = teachers + len(inner)
        nodes, weights = np.insert(nodes[keep], axis, 0.0, axis=1), weights[keep]
        row, places, shares = _nodes_on_split_lines(problem, fields, nodes, axis, self.points)
        full, weights = nodes[row], weights[row] * shares
        full[:, axis] = places
        heavy = weights > 1e-16 * weights.max()
        return [(np.ascontiguousarray(full[heavy]), np.ascontiguousarray(weights[heavy]))]


def _nodes_on_split_lines(
    problem: Problem, fields: FieldLaw, nodes: np.ndarray, axis: int, points: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return quadrature nodes for N(0, 1) on the line through every given node, split where proximal points jump.

    The lines run along the coordinate with number `axis`.

    Returns:
        line number, position and weight of each quadrature node.
    """
    options = SplitLinesOptions.current()
    # Steps of omega no longer than half the width over which minima compete.
    last = fields.field_factor[-1, -1, -1] / np.sqrt(fields.variance[-1, -1, -1])
    wanted = max(4 * options.reach * last * points / options.default_points, 32, points)
    intervals = 4 * int(np.ceil(min(wanted, options.max_intervals) / 4))
    ends = np.linspace(-options.reach, options.reach, intervals + 1)
    axes = np.full(len(nodes), axis)
    kinks = KinkPlanes.kink_planes_of_loss(problem, fields)
    breaks = [(np.zeros(0, int), np.zeros(0))]  # rows, and places where X is steep or crosses a kink
    rough = np.zeros(len(nodes), bool)
    step, density = ends[1] - ends[0], _normal_density(ends)

    def _distances_from_plane(row: np.ndarray, choice: int, plane: int, places: np.ndarray) -> np.ndarray:
        there = replace_coordinate(nodes[row], axes[row], places)
        return kinks.distances_from_planes(proximal_points_at_nodes(problem, fields, there, choice=choice).x, there)[
            :, plane
        ]

    tolerance = max(10.0 ** (-points / options.points_per_digit), _ROUNDING)
    for choice in noise_value_indices(problem):
        x, minima = proximal_points_on_lines(problem, fields, nodes, axes, ends, choice)
        rough |= _select_unresolved_lines(x, step * density, tolerance)
        two = minima > 1
        steps = np.linalg.norm(np.diff(x, axis=1), axis=2)
        before, after = np.pad(steps, ((0, 0), (1, 0)))[:, :-1], np.pad(steps, ((0, 0), (0, 1)))[:, 1:]
        steep = steps > options.steep_ratio * np.median(steps, axis=1, keepdims=True)
        row, place = np.nonzero((steep | two[:, 1:] | two[:, :-1]) & (steps >= before) & (steps > after))
        brackets = row, ends[place], ends[place + 1], x[row, place], x[row, place + 1]
        (row, low, high, _, _), _ = bisect_steepest_intervals(
            problem, fields, nodes, axes, brackets, options.max_bisections, choice=choice
        )
        breaks.append((row, (low + high) / 2))
        lines = replace_coordinate(
            np.repeat(nodes, len(ends), axis=0), np.repeat(axes, len(ends)), np.tile(ends, len(nodes))
        )
        away = kinks.distances_from_planes(x.reshape(len(lines), problem.tokens, -1), lines).reshape(*x.shape[:2], -1)
        for plane in range(away.shape[2]):
            own = away[:, :, plane]
            row, place = np.nonzero((own[:, 1:] > 0) != (own[:, :-1] > 0))
            between = ends[place], ends[place + 1], own[row, place], own[row, place + 1]
            breaks.append((row, _locate_kink_crossings(partial(_distances_from_plane, row, choice, plane), *between)))
    breaks_on = _group_positions_by_line(breaks, len(nodes))
    rough |= np.array([len(each) > 0 for each in breaks_on])
    smooth, split = np.flatnonzero(~rough), np.flatnonzero(rough)
    parts = [(np.repeat(smooth, len(ends)), np.tile(ends, len(smooth)), np.tile(step * density, len(smooth)))]
    if len(split):
        edges = [_panel_edges(breaks_on[n]) for n in split]
        row = np.repeat(split, [len(cuts) - 1 for cuts in edges])
        low, high = (np.concatenate([cuts[part] for cuts in edges]) for part in (slice(None, -1), slice(1, None)))

        def _proximal_points_on_lines(row: np.ndarray, z: np.ndarray) -> Iterable[np.ndarray]:
            at = replace_coordinate(
                np.repeat(nodes[row], z.shape[1], axis=0), np.repeat(axes[row], z.shape[1]), z.ravel()
            )
            for choice in noise_value_indices(problem):
                yield flatten_fields(proximal_points_at_nodes(problem, fields, at, choice=choice).x).reshape(
                    *z.shape, -1
                )

        order = max(4, points // options.points_per_panel_point)
        parts.append(_refine_panels_until_resolved(_proximal_points_on_lines, (row, low, high), order, tolerance))
    row, places, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return row, places, weights


def _select_unresolved_lines(x: np.ndarray, weights: np.ndarray, tolerance: float) -> np.ndarray:
    """Return for each line whether equidistant nodes do not resolve the average of the student field X to a tolerance.

    The error is estimated from the sums over all nodes, half of them and a quarter of them.
    """
    sums = [every * np.einsum("e,nef->nf", weights[::every], x[:, ::every]) for every in (1, 2, 4)]
    one, two = (np.abs(finer - coarser).max(axis=1) for finer, coarser in pairwise(sums))
    rate = np.clip(one / np.maximum(two, 1e-300), SplitLinesOptions.current().min_rate, 1.0)
    return one * rate > tolerance * np.abs(x).max()


def _refine_panels_until_resolved(
    x_at: Callable[[np.ndarray, np.ndarray], Iterable[np.ndarray]],
    panels: tuple[np.ndarray, np.ndarray, np.ndarray],
    order: int,
    tolerance: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes on panels that are halved until they resolve the proximal point X.

    A panel resolves X if the two highest Legendre coefficients of X are below a tolerance.

    Args:
        x_at: function from line numbers (one per panel) and positions (one row per panel) to X there, an array of shape
            (panels, order, student fields) for each value of the discrete noise.
        panels: line number, lower and upper end of each panel.
        order: nodes per panel.
        tolerance: tolerance relative to the largest X.

    Returns:
        line number, position and weight for N(0, 1) of each node.
    """
    options, (t, w) = SplitLinesOptions.current(), gauss_legendre(order)
    row, low, high = panels
    resolved = []
    while len(row):
        middle, half = (low + high) / 2, (high - low) / 2
        z = middle[:, None] + half[:, None] * t
        nearest = np.clip(0.0, low, high)
        tail = np.zeros(len(row))
        for x in x_at(row, z):
            last = np.abs(np.einsum("kj,njf->nkf", highest_legendre_coefficient_matrix(order), x)).max(axis=(1, 2))
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


def _locate_kink_crossings(
    distances: Callable[[np.ndarray], np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    at_low: np.ndarray,
    at_high: np.ndarray,
) -> np.ndarray:
    """Return the points of given intervals at which X crosses a kink plane.

    The method is regula falsi in the Illinois variant, with bisections where that is slow.

    Args:
        distances: function from points of the intervals to the distances of the student field X from the plane.
        low: lower ends of the intervals.
        high: upper ends of the intervals.
        at_low: distances at the lower ends.
        at_high: distances at the upper ends.
    """
    options, place = SplitLinesOptions.current(), (low + high) / 2
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


def _group_positions_by_line(places: list[tuple[np.ndarray, np.ndarray]], lines: int) -> list[np.ndarray]:
    """Return one ascending array of positions per line, from pairs (line numbers, positions) in any order."""
    row, place = (np.concatenate(each) for each in zip(*places, strict=True))
    order = np.lexsort((place, row))
    return np.split(place[order], np.cumsum(np.bincount(row, minlength=lines))[:-1])


def _normal_density(z: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)


def _panel_edges(breaks: np.ndarray) -> np.ndarray:
    """Return the ascending edges of panels between given breaks, with further edges if panels would be too long."""
    options = SplitLinesOptions.current()
    return subdivide_edges(np.unique([-options.reach, *breaks, options.reach]), options.max_panel)
