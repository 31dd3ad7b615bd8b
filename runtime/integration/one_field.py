"""Quadrature for one student field: panels of omega between the exact points where the proximal map jumps or bends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..channel.exchange import SymmetryReduction
from ..channel.fields import FieldLaw
from ..channel.nodes import gauss_legendre, highest_legendre_coefficient_matrix
from ..channel.points import noise_value_indices, proximal_points_at_nodes
from ..problems.compiled import load_compiled_loops
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from .panels import QuadraturePanels
from .rule import Rule
from .sampled import (
    Integrand,
    NodeSets,
    PointsPerAxisRule,
    TeacherFieldRule,
    cells_resolving_narrow_loss,
    teacher_panel_edges,
)

REACH = 8.5  # half the length of a line, in standard deviations
LONGEST = 3.2  # length of the longest panel, in standard deviations
_ROUNDING = 1e-12  # of X, which no panel resolves further
_ROUNDING_OF_SQUARES = 1e-9  # of (dg/domega)^2, relative to its average, next to a cusp
LineNodes = Callable[[Problem, FieldLaw, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
# In widths, where a probability that is steep in omega is split.
_STEEP = np.array([-7.5, -5.0, -2.5, 0.0, 2.5, 5.0, 7.5])


@dataclass(frozen=True)
class SmoothPiecesOptions(AlgorithmOptions):
    """Options of the rule of panels between jumps and bends of the proximal map, for one student field.

    Attributes:
        line_cells: number of initial intervals of a line, at whose ends proximal points are computed; more intervals
            find more jumps.
        points_per_digit: nodes of a panel per decimal digit of the proximal point; larger values take shorter panels.
        cusp_tolerance_factor: ratio of the relative error of averages of (dg/domega)^2 to that of the proximal point.
        sum_square_tolerance: relative error of averages of (dg/domega)^2 if the noise is added to a function of the
            teacher field: the search for proximal points is slow close to a cusp.
        outer_ratio: nodes per axis of Y and noise for every node of a panel.
        max_lines: largest number of lines of the student field omega; the rule raises an error if it needs more.
        max_panels: number of panels of Y beyond which none is halved.
        min_half_panel: half the length of the shortest panel of Y.
        min_half_square_panel: the same for panels that are halved for averages of (dg/domega)^2 only; next to a cusp
            the error falls with the square root of this length, and the search for proximal points takes ever longer.
        cross_check_points: nodes per panel of the rules that cross-check other families.
        min_free_points: nodes per panel where there are no nodes in Y or noise, so that more nodes cost nothing.
        negligible_weight: weight of a negligible node, relative to the heaviest one.
    """

    line_cells: int = 24
    points_per_digit: float = 1.25
    cusp_tolerance_factor: float = 1e3
    sum_square_tolerance: float = 1e-4
    outer_ratio: float = 2.5
    max_lines: float = 1e6
    max_panels: int = 2000
    min_half_panel: float = 1e-11
    min_half_square_panel: float = 1e-8
    cross_check_points: tuple[int, ...] = (12, 16, 24)
    min_free_points: int = 16
    negligible_weight: float = 1e-18


@dataclass(frozen=True)
class SmoothPiecesRule(PointsPerAxisRule):
    """A rule of Gauss-Legendre panels along the student field between jumps and bends of the proximal map.

    The positions of jumps (where two minima exchange their order) and of bends (where the proximal point reaches a kink
    of the loss) are computed exactly (docs/theory.md (11.12), (11.13)). If the loss depends on a teacher field through
    a step function, such as its sign, the average over this field has a closed form (11.14).

    Args:
        points: nodes per panel, 4 or more.
        squares: whether panels also resolve (dg/domega)^2.
    """

    squares: bool = False
    name: str = "pieces"
    most_points: ClassVar[int] = 64
    splits_jumps: ClassVar[bool] = True
    resolves_squares: ClassVar[bool] = True
    at_temperature: ClassVar[bool] = False

    def line_count(self, problem: Problem) -> float:
        """Return the number of lines along the student field: one per node of teacher fields and noise, and label."""
        part = reduce_to_fields_of_loss(problem)
        if self.has_no_teacher_nodes(problem):
            return 2.0 * len(part.label_probabilities)
        axes = 1.0 if part.solver.proximal.SUM >= 0 else part.dimension - 1.0
        return self.teacher_axis_points**axes * len(part.label_probabilities)

    def node_count(self, problem: Problem) -> float:
        """Return the approximate number of nodes, for about six panels per line of the student field omega."""
        return 6 * self.points * self.line_count(problem)

    def evaluation_cost(self, problem: Problem) -> float:
        """Return the cost of an evaluation; the unit is the cost of one grid node of `ProxSpaceRule`."""
        return 2e2 * self.node_count(problem)

    def comparison_rules(self) -> tuple[SmoothPiecesRule, ...]:
        """Return the next coarser rule, which is compared with this rule to estimate the error."""
        return (self.coarser_rule(),)

    @classmethod
    def rules_coarse_to_fine(cls, problem: Problem) -> tuple[SmoothPiecesRule, ...]:
        """Return the rules with which a problem is solved one after the other, coarse to fine."""
        return PANELS

    def position_in_trial_order(self, problem: Problem) -> float:
        """Return the rank of this rule in the order in which the integrator `auto` tries rules.

        It is the first if teacher field and noise need no nodes, which makes it the fastest; otherwise it comes after
        small grids of proximal points. Infinity means that it is not tried.
        """
        if self.has_no_teacher_nodes(problem):
            return 0 if self.points >= SmoothPiecesOptions.current().min_free_points else np.inf
        return 2 if self.is_applicable(problem) else np.inf

    @classmethod
    def quadrature_rules_for_cross_check(cls, problem: Problem, bistable: float) -> tuple[SmoothPiecesRule, ...]:
        """Return rules, coarse to fine, to cross-check averages by another family; none for several student fields.

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        options = SmoothPiecesOptions.current()
        levels = (cls(points) for points in options.cross_check_points if cls.is_applicable(problem))
        return tuple(level for level in levels if level.line_count(problem) <= options.max_lines)

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether the rule applies: the loss depends on one student field, and few lines of omega are needed."""
        part = reduce_to_fields_of_loss(problem)
        max_lines = SmoothPiecesOptions.current().max_lines / 10
        return part.solver.channel.FIELDS == 1 and cls().line_count(problem) <= max_lines

    @classmethod
    def has_no_teacher_nodes(cls, problem: Problem) -> bool:
        """Return whether the integral over teacher field and noise needs no nodes, for a single student field."""
        part = reduce_to_fields_of_loss(problem)
        channel = part.solver.proximal
        return channel.FIELDS == 1 and (part.dimension == 1 or channel.TEACHER_STEPS)

    def rule_for_numerical_jacobian(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return this rule and a one-sided step, for a numerical Jacobian of the saddle-point map.

        Averages are smooth only up to the tolerance of the panels, so that the step must not be too short.

        Args:
            problem: problem whose saddle-point map is differentiated.
            sample: Sobol rule to return if this rule has replicates.

        Returns:
            the rule; the finite-difference step relative to the scale of each overlap matrix (None: choose a wide step
            for sampled averages); whether one-sided differences suffice.
        """
        return self, float(np.sqrt(self.coefficient_tolerance)), True

    def newton_tolerance(self, accuracy: float) -> float:
        """Return the residual at which Newton's method stops: far below the accuracy, since evaluations are cheap."""
        return min(1e-12, super().newton_tolerance(accuracy))

    @property
    def teacher_axis_points(self) -> int:
        """The number of nodes per axis of the teacher field Y and noise."""
        return round(SmoothPiecesOptions.current().outer_ratio * self.points)

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
        if integrand == "slopes" and not self.squares:
            return replace(self, squares=True).nodes_and_weights_by_replicate(problem, fields, reduction, integrand)
        channel, moments = problem.solver.proximal, 2 if integrand == "tangents" else 1
        if channel.FIELDS != 1:
            raise InputError(
                f"the integrator {self.name} is for one student field, and the loss depends on {channel.FIELDS}; "
                "use sobol"
            )
        if channel.TEACHER_STEPS:
            return [self._nodes_between_teacher_steps(problem, fields, moments)]  # averages are affine in Y
        if self.line_count(problem) > SmoothPiecesOptions.current().max_lines:
            raise InputError(f"the integrator {self.name} would need {self.line_count(problem):.1e} lines; use sobol")
        if problem.dimension == 2:
            edges = teacher_panel_edges(problem, fields, REACH, LONGEST)
            return [self._refine_nodes_on_panels(problem, fields, edges, self._nodes_on_field_lines)]
        # Y and noise enter the loss by a sum, and nothing narrow in it asks for cells of both.
        if channel.SUM >= 0 and cells_resolving_narrow_loss(problem, fields) is None:
            return [self._nodes_for_additive_noise(problem, fields, moments)]
        nodes, weights = TeacherFieldRule.teacher_rule_for_loss(
            problem, fields, self.teacher_axis_points, equidistant=True
        ).nodes_and_weights
        heavy = weights > 1e-17 * weights.max()
        nodes, _, weights = self._nodes_on_field_lines(problem, fields, nodes[heavy], weights[heavy])
        return [(nodes, weights)]

    def _refine_nodes_on_panels(
        self, problem: Problem, fields: FieldLaw, edges: np.ndarray, lines: LineNodes, normal: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes and weights for one student field and one further coordinate: teacher field or noise.

        The nodes are on panels of that coordinate, and on a line of the student field at each of its nodes. Panels are
        halved until averages over the student field are polynomials on each.

        Args:
            problem: problem with one student field.
            fields: law of the fields.
            edges: edges of the first panels of the coordinate.
            lines: function from values of the coordinate (one per row) and their weights to nodes on lines, line
                numbers and weights.
            normal: whether the coordinate is standard normal; if not, the weights of `lines` contain its density.
        """
        options = SmoothPiecesOptions.current()
        per_cusp = options.cusp_tolerance_factor
        if not normal:
            per_cusp = max(per_cusp, options.sum_square_tolerance / self.coefficient_tolerance)
        panels, parts, visited, averages = QuadraturePanels.panels_between_edges(edges), [], 0, [0.0, 0.0]
        while len(panels):
            z, share = (each.ravel() for each in panels.gauss_legendre_nodes(self.points))
            if normal:
                share *= np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
            nodes, row, weights = lines(problem, fields, z[:, None], share)
            sums = np.zeros((len(z), 5 if self.squares else 4))  # 1, X, X^2, the Moreau objective, (dg/domega)^2
            if self.squares:
                _, each, slopes = self._field_jacobians_at_nodes(problem, fields, nodes, weights)
                squares = (each * slopes[:, 0, 0] ** 2).reshape(len(nodes), -1).sum(axis=1)
                sums[:, 4] = np.bincount(row, squares / share[row], len(z))
                averages[1] = averages[1] or float(share @ sums[:, 4])
            for choice in noise_value_indices(problem):
                points = proximal_points_at_nodes(problem, fields, nodes, choice=choice)
                x = points.x[:, 0, 0]
                each = np.column_stack([np.ones(len(x)), x, x**2, points.value])
                along = (points.weight * weights / share[row])[:, None] * each
                sums[:, :4] += np.stack([np.bincount(row, each, len(z)) for each in along.T], axis=1)
            averages[0] = averages[0] or float(share @ np.abs(sums[:, 3]))
            values = sums.reshape(len(panels), self.points, -1)
            tail = np.abs(np.einsum("kj,njf->nkf", highest_legendre_coefficient_matrix(self.points), values)).max(
                axis=1
            )
            # The mean may vanish by symmetry; squares of slopes are singular next to a cusp.
            most, largest = sums[:, 0].max(), np.abs(sums[:, 2]).max()
            scales = np.array([most, np.sqrt(most * largest), largest, averages[0] or 1.0, averages[1] * per_cusp])
            density = panels.max_normal_density if normal else 1.0
            # The error of a panel counts with its length: proximal points near a cusp are not known to all digits.
            off = tail / scales[: tail.shape[1]] * (panels.half_lengths * density)[:, None]
            shortest = np.where(np.arange(tail.shape[1]) < 4, options.min_half_panel, options.min_half_square_panel)
            open_ = ((off > 3 * self.coefficient_tolerance) & (panels.half_lengths[:, None] > shortest)).any(axis=1)
            visited += len(panels)
            if visited > options.max_panels:
                open_[:] = False
            done = ~open_[row // self.points]
            parts.append((nodes[done], weights[done]))
            panels = panels.halve_panels(open_)
        nodes, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return np.ascontiguousarray(nodes), np.ascontiguousarray(weights)

    def _nodes_for_additive_noise(
        self, problem: Problem, fields: FieldLaw, count: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes and weights if the loss depends on teacher field Y and noise u through S = h(Y) + c u only.

        There are panels of S, lines of the student field at each S, and `count` nodes of Y at each node of both
        (docs/theory.md (11.19)).
        """
        mean, factor, feature = fields.teacher_mean[0], fields.teacher_factor[0, 0], problem.solver.proximal.SUM

        def _noisy_teacher_output(z: np.ndarray, noise: float = 0.0) -> np.ndarray:
            """Return the sum S = h(Y) + c u through which the loss depends on the teacher field Y and the noise u.

            Args:
                z: standard normal coordinate of Y, one per node.
                noise: value of u.
            """
            y = mean + z[:, None] * factor
            return np.asarray(loss_features(problem, fields, y, np.full((len(z), 1), noise))[:, 0, feature])

        at_mean, above = (float(_noisy_teacher_output(np.zeros(1), noise)[0]) for noise in (0.0, 1.0))
        slope = above - at_mean
        spread = abs(slope) * float(problem.noise_scale[0])
        z, share, edges = self._teacher_nodes_for_additive_noise(problem, fields, _noisy_teacher_output, spread)
        at, on_teacher = _noisy_teacher_output(z), float(fields.field_from_teacher[0, 0, 0])
        lightest = SmoothPiecesOptions.current().negligible_weight * (share.max() / spread)
        centre, width = float(fields.field_mean[0, 0]), float(fields.field_factor[0, 0, 0])

        def _nodes_at_noisy_teacher_outputs(
            problem: Problem, fields: FieldLaw, values: np.ndarray, weights: np.ndarray
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            """Return nodes on lines of the student field at given values of the sum S of teacher output and noise.

            Args:
                problem: problem with one student field.
                fields: law of the fields.
                values: values of S, one per row.
                weights: weight of each value.

            Returns:
                nodes (one per row), line number and weight of each node.
            """
            density = share * np.exp(-(((values - at) / spread) ** 2) / 2) / (np.sqrt(2 * np.pi) * spread)
            density[density < lightest] = 0.0
            (kept,) = np.nonzero(density.any(axis=1))
            values, density = values[kept], density[kept]
            ends = [np.where(density > 0, on_teacher * z, empty) for empty in (np.inf, -np.inf)]
            low, high = centre + ends[0].min(axis=1) - REACH * width, centre + ends[1].max(axis=1) + REACH * width
            known = loss_features(problem, fields, np.broadcast_to(mean, values.shape), (values - at_mean) / slope)
            reach = (high - low) / 2
            row, place, measure = self.panel_nodes(
                problem, fields, known, (low + high) / 2, reach, longest=LONGEST * width / reach, reach=1.0
            )
            measure *= np.sqrt(2 * np.pi) * np.exp(place**2 / 2) * reach[row]
            omega = (low + high)[row] / 2 + reach[row] * place
            arrays = row, omega, measure, z, density, centre, on_teacher, width
            whose, found, weight = load_compiled_loops("truncated_normal").conditional_teacher_nodes_given_sum(
                *arrays, count
            )
            row = row[whose]
            noise = (values[row, 0] - _noisy_teacher_output(found[:, 0])) / spread * np.sign(slope)
            return np.column_stack([found, noise]), kept[row], weights[kept[row]] * weight

        return self._refine_nodes_on_panels(problem, fields, edges, _nodes_at_noisy_teacher_outputs, normal=False)

    def _teacher_nodes_for_additive_noise(
        self, problem: Problem, fields: FieldLaw, sums: Callable[[np.ndarray], np.ndarray], spread: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return nodes and weights of Y that resolve the density of the sum S of teacher output and noise.

        Args:
            problem: problem with one student field.
            fields: law of the fields.
            sums: function from standard normal coordinates of Y to the teacher output (S without noise).
            spread: standard deviation of the contribution of the noise to S.

        Returns:
            standard normal coordinates of Y, their weights, edges of the first panels of S.
        """
        options, parts = SmoothPiecesOptions.current(), []
        panels = QuadraturePanels.panels_between_edges(np.arange(-np.ceil(REACH), np.ceil(REACH) + 1))
        while len(panels):
            z, lengths = panels.gauss_legendre_nodes(self.points)
            values = sums(z.ravel()).reshape(z.shape)
            tail = np.abs(np.einsum("kj,nj->nk", highest_legendre_coefficient_matrix(self.points), values)).max(axis=1)
            measure = panels.half_lengths * panels.max_normal_density
            far = (np.ptp(values, axis=1) > LONGEST * spread) & (measure > 1e-3 * self.coefficient_tolerance)
            open_ = (far | (tail / spread * measure > 3 * self.coefficient_tolerance)) & (
                panels.half_lengths > options.min_half_panel
            )
            parts.append((z[~open_].ravel(), lengths[~open_].ravel()))
            panels = panels.halve_panels(open_)
        z, share = (np.concatenate(each) for each in zip(*parts, strict=True))
        share = share * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        heavy = share > options.negligible_weight * share.max()
        places = np.sort(sums(z[heavy]))
        places = np.concatenate([places[:1] - REACH * spread, places, places[-1:] + REACH * spread])
        # One in so many spreads.
        _, first = np.unique(np.floor((places - places[0]) / (LONGEST * spread)), return_index=True)
        return z[heavy], share[heavy], np.append(places[first[:-1]], places[-1])

    def _nodes_on_field_lines(
        self, problem: Problem, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the nodes, line numbers and weights on lines of the student field through given nodes."""
        spread = np.full(len(nodes), fields.field_factor[0, 0, 0])
        row, z, share = self.panel_nodes(problem, fields, *loss_features_and_means(problem, fields, nodes), spread)
        return np.insert(nodes[row], problem.teacher_rank, z, axis=1), row, weights[row] * share

    @property
    def coefficient_tolerance(self) -> float:
        """The relative size of the two highest Legendre coefficients below which a panel is not halved."""
        return max(10.0 ** (-self.points / SmoothPiecesOptions.current().points_per_digit), _ROUNDING)

    def panel_nodes(
        self,
        problem: Problem,
        fields: FieldLaw,
        known: np.ndarray,
        centre: np.ndarray,
        spread: np.ndarray,
        steep: np.ndarray | None = None,
        longest: np.ndarray | float = LONGEST,
        reach: float = REACH,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return Gauss-Legendre nodes on lines of the student field, on panels between jumps of the proximal map.

        Args:
            problem: problem with one student field.
            fields: law of the fields.
            known: features of the loss on every line, see `loss_features`.
            centre: mean of the student field on every line.
            spread: standard deviation of the student field on every line.
            steep: positions, in units of `spread`, at which the integrand is steep.
            longest: length of the longest panel, in units of `spread`.
            reach: half the length of a line, in units of `spread`.

        Returns:
            line number, position in units of `spread` (from `centre`), and weight of each node.
        """
        lines = known, np.ascontiguousarray(centre), spread, np.zeros(0) if steep is None else steep
        rule = (
            SmoothPiecesOptions.current().line_cells,
            *gauss_legendre(self.points),
            highest_legendre_coefficient_matrix(self.points),
        )
        squares = max(self.coefficient_tolerance, _ROUNDING_OF_SQUARES) if self.squares else np.inf
        widths = np.broadcast_to(np.minimum(longest, LONGEST), len(centre)).copy()
        return problem.solver.proximal.panels(
            *lines, fields.precision, fields.constants, *rule, self.coefficient_tolerance, squares, reach, widths
        )

    def _nodes_between_teacher_steps(
        self, problem: Problem, fields: FieldLaw, nodes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes and weights if the loss depends on the teacher field through step functions only.

        At each node of the student field and interval between steps the teacher field has one node, its conditional
        mean, or two nodes that reproduce its first three moments (docs/theory.md (11.14)).
        """
        places, inside = intervals_between_teacher_steps(problem, fields)
        y = fields.teacher_mean[0] + inside[:, None] * fields.teacher_factor[0, 0, 0]
        slope, own = float(fields.field_from_teacher[0, 0, 0]), float(fields.field_factor[0, 0, 0])
        whole = float(np.hypot(slope, own))
        # In units of their spreads: z_Y given z = (omega - m) / whole has the mean shared * z and the spread width.
        shared, width = slope / whole, own / whole
        steep = (places[1:-1, None] + _STEEP * width).ravel() / shared if width < abs(shared) else None
        centre, spread = np.repeat(fields.field_mean[0], len(inside)), np.full(len(inside), whole)
        known = loss_features(problem, fields, y, np.zeros((len(inside), 0)))
        row, z, weight = self.panel_nodes(problem, fields, known, centre, spread, steep)
        return load_compiled_loops("truncated_normal").conditional_teacher_nodes(
            row, z, weight, places, shared, width, nodes
        )


def intervals_between_teacher_steps(problem: Problem, fields: FieldLaw) -> tuple[np.ndarray, np.ndarray]:
    """Return the intervals of the teacher field Y between the steps of the loss: their edges, and a point inside each.

    Both are standardised by the mean and the standard deviation of Y; the first and last edges are infinite.

    Args:
        problem: problem whose loss depends on Y through step functions.
        fields: law of the fields.
    """
    steps = problem.solver.proximal.steps(fields.constants)
    steps = np.sort(steps[np.isfinite(steps)])
    places = np.full(len(steps) + 2, np.inf)
    places[0] = -np.inf
    places[1:-1] = (steps - fields.teacher_mean[0, 0]) / fields.teacher_factor[0, 0, 0]
    low, high = places[:-1], places[1:]
    margin = np.minimum(1.0, (high - low) / 2)
    return places, np.clip(0.0, low + margin, high - margin)


def loss_features(problem: Problem, fields: FieldLaw, y: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Return the features of the loss: the quantities through which it depends on teacher fields and noise.

    Args:
        problem: problem that defines the loss.
        fields: law of the fields.
        y: teacher fields, one node per row.
        noise: Gaussian noise, one node per row.

    Returns:
        shape (nodes, values of the discrete noise, features).
    """
    channel, gaussian = problem.solver.proximal, problem.is_gaussian_noise
    found = []
    for choice in noise_value_indices(problem):
        u = np.zeros((len(y), len(gaussian)))
        u[:, gaussian] = noise
        if channel.LABELLED_NOISE:
            u[:, ~gaussian] = channel.LABELLED_NOISE[choice]
        found.append(channel.features_at(np.ascontiguousarray(y), u, fields.constants))
    return found[0][:, None] if len(found) == 1 else np.stack(found, axis=1)


def loss_features_and_means(problem: Problem, fields: FieldLaw, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of the loss and the conditional means E[omega | Y] at nodes of the teacher field Y and noise.

    Args:
        problem: problem with one student field.
        fields: law of the fields.
        nodes: standard normal coordinates of Y and noise, one node per row.

    Returns:
        features of shape (nodes, values of the discrete noise, features), one conditional mean per node.
    """
    y, noise = np.split(nodes, [problem.teacher_rank], axis=1)
    teachers = fields.teacher_mean[0] + y @ fields.teacher_factor[0].T
    features = loss_features(problem, fields, teachers, noise * problem.noise_scale)
    return features, fields.field_mean[0, 0] + y @ fields.field_from_teacher[0, 0]


PANELS = tuple(SmoothPiecesRule(points) for points in (8, 12, 16, 24, 36))
