"""Integration rules whose nodes are points in the fields: Gauss-Hermite products and Sobol sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..channel import boltzmann
from ..channel.exchange import SymmetryReduction
from ..channel.fields import FieldLaw, field_law
from ..channel.nodes import Rotation, equal_weights, gauss_hermite, sobol_normal_points, tensor_product_rule
from ..channel.points import response_jacobians_at_nodes
from ..channel.shared import channel_moment_sums
from ..channel.tangents import field_law_derivatives_in_normal_coordinates, moment_derivatives_at_nodes
from ..problems.overlaps import Overlaps, UnitOverlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from .cells import MAX_AXES, QuadratureCells, has_narrow_features, nonlinearity_arguments
from .panels import subdivide_edges
from .rule import NEGLIGIBLE_JUMPS, Labels, Rule
from .splitting import HyperplaneSplit

Nodes = tuple[np.ndarray, np.ndarray]
NodeSets = list[Nodes]
"""Nodes (N, n) and weights (N,), one pair per replicate."""
Integrand = Literal["averages", "tangents", "slopes"]

MAX_PRODUCT_NODES = 3e6  # nodes of a product rule, each with a proximal point
MAX_PRODUCT_DIMENSION = 3  # up to which a product rule is more accurate than lines or a lattice


@dataclass(frozen=True)
class NodeRuleOptions(AlgorithmOptions):
    """Options of integration rules whose nodes are values of the fields and the noise.

    Attributes:
        thermal_ratio: ratio of the nodes per student field at a finite temperature from one rule to the next; larger
            ratios show errors better, at a higher cost.
        cusp_determinant: value of det(I + V H) below which averages of squared Jacobians are extrapolated to a cusp, H
            being the Hessian of the loss; larger values are less noisy, but farther from the law at a cusp.
        max_cusp_excess: largest ratio of the number of nodes below this value to the number expected at a cusp.
        cross_check_points: nodes per axis of the products that cross-check other rules.
        density_scale: standard deviations over which a normal density changes by order one.
        min_cell_points: smallest number of nodes per axis of a cell.
        points_per_cell_point: nodes per axis of the rule for every further node per axis of a cell.
        max_thermal_losses: largest number of losses evaluated by a product rule at a finite temperature.
        sobol_gain: factor, in powers of two, by which doubling a Sobol set reduces the error; smaller values predict
            larger sets.
        sobol_margin: factor by which an error bar of a Sobol set may exceed its prediction.
    """

    thermal_ratio: float = 1.25
    cusp_determinant: float = 0.15
    max_cusp_excess: float = 1.6
    cross_check_points: tuple[int, ...] = (24, 36, 54, 80, 120, 180)
    density_scale: float = 2.0
    min_cell_points: int = 4
    points_per_cell_point: int = 8
    max_thermal_losses: float = 2e9
    sobol_gain: float = 0.75
    sobol_margin: float = 1.2


def split_at_teacher_kinks(problem: Problem, fields: FieldLaw) -> HyperplaneSplit:
    """Return the split of the space of teacher fields and noise at kinks of the loss independent of student fields.

    Args:
        problem: problem that defines the loss.
        fields: law of the fields.
    """
    return HyperplaneSplit.split_on_planes(*_teacher_kink_planes(problem, fields, "loss"))


def _teacher_kink_planes(problem: Problem, fields: FieldLaw, *of: str) -> tuple[np.ndarray, int]:
    """Return the kink planes of the loss in teacher fields and noise alone, and the number of these coordinates.

    A plane is a row: coefficients of the standard normal coordinates of teacher fields and noise, and a constant.
    """
    outer, inner = problem.tokens * problem.teacher_rank, problem.tokens * problem.student_rank
    planes = np.concatenate([problem.kink_planes(name, fields.constants) for name in of])
    known = fields.planes_in_normal_coordinates(planes[~planes[:, :inner].any(axis=1)], problem.noise_scale)
    return np.delete(known, range(outer, outer + inner), axis=1), problem.dimension - inner


def cells_resolving_narrow_loss(problem: Problem, fields: FieldLaw) -> QuadratureCells | None:
    """Return quadrature cells that resolve narrow features of the loss in the teacher fields Y and Gaussian noise.

    Args:
        problem: problem that defines the loss.
        fields: law of the fields.

    Returns:
        the cells; None if no feature is narrow, or if there would be too many cells.
    """
    scales, dimension = (
        nonlinearity_arguments(problem, fields, "teacher"),
        problem.dimension - problem.tokens * problem.student_rank,
    )
    if scales is None or dimension > MAX_AXES or not has_narrow_features(scales, dimension):
        return None
    known, width = scales, NodeRuleOptions.current().density_scale

    def _loss_arguments_and_coordinates(nodes: np.ndarray) -> np.ndarray:
        return np.concatenate([known(nodes), nodes / width], axis=1)

    return QuadratureCells.cells_between_planes(
        *_teacher_kink_planes(problem, fields, "loss", "teacher_places")
    ).refine_until_smooth(_loss_arguments_and_coordinates)


def teacher_panel_edges(problem: Problem, fields: FieldLaw, reach: float, longest: float) -> np.ndarray:
    """Return the edges of quadrature panels between the kinks of the loss, in ascending order.

    They are panels of the teacher field Y or the noise, of which there is only one coordinate.

    Args:
        problem: problem that defines the loss.
        fields: law of the fields.
        reach: end of the outermost panels, in standard deviations.
        longest: length of the longest panel.
    """
    cells = cells_resolving_narrow_loss(problem, fields)
    places = (
        split_at_teacher_kinks(problem, fields).cut_positions(reach)
        if cells is None
        else cells.cell_edges[np.abs(cells.cell_edges) < reach]
    )
    return subdivide_edges(np.array([-reach, *places, reach]), longest)


@dataclass(frozen=True)
class TeacherFieldRule:
    """An integration rule for the teacher fields Y and Gaussian noise; panels or cells resolve narrow losses.

    Attributes:
        axes: nodes and weights of each coordinate if the rule is a product, else None.
        make: function that computes the nodes and weights.
        narrow: whether the nodes resolve narrow features of the loss.
    """

    axes: tuple[Nodes, ...] | None
    make: Callable[[], Nodes]
    narrow: bool = False

    @classmethod
    def teacher_rule_for_loss(
        cls, problem: Problem, fields: FieldLaw, points: int, equidistant: bool = False
    ) -> TeacherFieldRule:
        """Return the rule on panels between those kinks of the loss that do not depend on the student fields X.

        Without such kinks the rule has Gauss-Hermite or equidistant nodes.

        Args:
            problem: problem that defines the loss.
            fields: law of the fields.
            points: nodes per axis or per panel.
            equidistant: whether smooth axes have equidistant nodes.
        """
        if problem.dimension == problem.tokens * problem.student_rank:
            return cls((), partial(tensor_product_rule, []))
        cells = cells_resolving_narrow_loss(problem, fields)
        if cells is not None:
            options = NodeRuleOptions.current()
            per_axis = options.min_cell_points + points // options.points_per_cell_point
            nodes, weights = (each.reshape(-1, *each.shape[2:]) for each in cells.gauss_legendre_rule(per_axis))
            axes: tuple[Nodes, ...] | None = ((nodes[:, 0], weights),) if cells.dimension == 1 else None
            return cls(axes, lambda: (nodes, weights), narrow=True)
        split = split_at_teacher_kinks(problem, fields)
        if split.is_product_rule:
            axes = tuple(split.rule_for_each_axis(points, equidistant))
            return cls(axes, partial(tensor_product_rule, list(axes)))
        return cls(None, partial(split.nodes_and_weights, points, equidistant))

    @cached_property
    def nodes_and_weights(self) -> Nodes:
        """The nodes (standard normal coordinates of teacher fields and noise, one per row) and their weights."""
        return self.make()


def add_student_field_axes(rule: Nodes, axes: list[Nodes], outer: int) -> Nodes:
    """Return the product of a rule in teacher fields and noise with one-dimensional rules in the student fields.

    Args:
        rule: nodes and weights of teacher fields and noise.
        axes: nodes and weights of each student field.
        outer: number of teacher fields.

    Returns:
        nodes of teacher fields, student fields and noise (one per row), and their weights.
    """
    (nodes, weights), (inner, shares) = rule, tensor_product_rule(axes)
    known = np.repeat(nodes, len(inner), axis=0)
    nodes = np.concatenate([known[:, :outer], np.tile(inner, (len(nodes), 1)), known[:, outer:]], axis=1)
    return nodes, np.multiply.outer(weights, shares).ravel()


class NodeBasedRule(Rule):
    """A base class of rules that solve for the proximal point at nodes in teacher fields, student fields and noise.

    At a finite temperature such rules average over the Boltzmann law of the student fields instead.

    Attributes:
        starts: search for proximal points (`Problem.search`); None for the problem's own setting.
        inner: refinement factor of the integral over the student fields at a finite temperature.
        symmetry_tolerance: relative deviation up to which the law of the fields counts as invariant under a symmetry of
            the loss, over which moments are then averaged; None for no such average.
    """

    starts: int | None
    inner: float
    symmetry_tolerance: ClassVar[float | None] = None
    at_temperature: ClassVar[bool] = True

    def symmetry_reduction(self, problem: Problem, fields: FieldLaw, labels: Labels) -> SymmetryReduction:
        """Return the symmetries over which moments are averaged, of the loss, the law of the fields and the nodes.

        Args:
            problem: problem whose loss must be invariant.
            fields: law of the fields.
            labels: label of every token.
        """
        if self.symmetry_tolerance is None:
            return SymmetryReduction(())
        return SymmetryReduction.symmetries_of_field_law(problem, fields, labels, self.symmetry_tolerance)

    def nodes_and_weights_by_replicate(
        self, problem: Problem, fields: FieldLaw, reduction: SymmetryReduction, integrand: Integrand = "averages"
    ) -> NodeSets:
        """Return one pair (nodes, weights) per replicate.

        A node is a row of standard normal coordinates of teacher fields, student fields and noise.

        Args:
            problem: problem whose fields are integrated over.
            fields: law of the fields.
            reduction: symmetries of the loss, the law of the fields and the nodes, from `symmetry_reduction`.
            integrand: "averages" for the moments of the saddle point, "tangents" for their derivatives, "slopes" for
                squares of dg/domega, with g = V^(-1) (X - omega), which is large where 1 + V loss'' nearly vanishes.
        """
        raise NotImplementedError

    def _field_law_and_nodes(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, integrand: Integrand
    ) -> tuple[FieldLaw, SymmetryReduction, NodeSets]:
        fields = field_law(problem, overlaps, labels)
        reduction = self.symmetry_reduction(problem, fields, labels)
        return fields, reduction, self.nodes_and_weights_by_replicate(problem, fields, reduction, integrand)

    def _averages_given_labels(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """Return the channel averages given the labels, one row per replicate."""
        channel, cut, found = problem.solver.channel, problem.tokens * problem.solver.channel.ROW, []
        fields, reduction, sets = self._field_law_and_nodes(problem, overlaps, labels, "averages")
        for nodes, weights in sets:
            out = self._sum_averages_over_nodes(problem, fields, nodes, weights).sum(axis=0)
            out = reduction.average_moments_over_group(out, channel.ROW, channel.MOMENTS)
            found.append(np.append(out[: cut + 4], [out[cut + 4] / len(nodes), weights.sum()]))
        return np.array(found)

    def _sum_averages_over_nodes(
        self, problem: Problem, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        if problem.inverse_temperature is not None:
            return boltzmann.boltzmann_moment_sums(problem, fields, nodes, weights, self.inner)
        channel = problem.solver.proximal
        law = *fields.sampling_loop_arguments, fields.precision, problem.noise_scale, fields.constants
        search = problem.search if self.starts is None else self.starts
        return channel_moment_sums(channel, channel.sample, nodes, weights, *law, search)

    def _field_jacobians_at_nodes(
        self, problem: Problem, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return det(I + V H), weights and dg/domega, with g = V^(-1) (X - omega), at nodes; H is the loss Hessian.

        The determinants are 1 at a finite temperature.
        """
        if problem.inverse_temperature is not None:
            shares, matrices = boltzmann.boltzmann_response_jacobians(problem, fields, nodes, weights, self.inner)
            return np.ones(len(shares)), shares, matrices
        return response_jacobians_at_nodes(problem, fields, nodes, weights, self.starts)

    def _jacobian_averages_given_labels(
        self, problem: Problem, overlaps: Overlaps, labels: Labels
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the averages of the Jacobian dg/domega of g = V^(-1) (X - omega), and of its square, given the labels.

        Averages of squares are extrapolated to cusps of the Moreau envelope (docs/theory.md (11.6)).
        """
        near = -np.inf if self.resolves_squares else NodeRuleOptions.current().cusp_determinant
        shape = [problem.tokens, problem.student_rank] * 2
        fields, reduction, sets = self._field_law_and_nodes(problem, overlaps, labels, "slopes")
        found = (self._field_jacobians_at_nodes(problem, fields, nodes, weights) for nodes, weights in sets)
        parts = [_jacobian_averages_with_cusps(det, shares, G.reshape(-1, *shape), near) for det, shares, G in found]
        slopes, squares = zip(*parts, strict=True)
        return np.stack([*map(reduction.average_jacobian_over_group, slopes)]), np.stack(
            [*map(reduction.average_squared_jacobian_over_group, squares)]
        )

    def _moment_derivatives_given_labels(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, units: UnitOverlaps, jumps: bool
    ) -> np.ndarray:
        """Return the overlap derivatives of the channel moments given the labels, without jumps of the proximal map."""
        problem.require_zero_temperature("generated derivatives of averages over nodes are exact")
        channel = problem.solver.channel
        fields, reduction, sets = self._field_law_and_nodes(problem, overlaps, labels, "tangents")
        out = sum(moment_derivatives_at_nodes(problem, fields, nodes, weights, self.starts) for nodes, weights in sets)
        out = np.tensordot(
            out / len(sets), field_law_derivatives_in_normal_coordinates(problem, overlaps, labels, fields, units), 3
        )
        return reduction.average_derivatives_over_group(out, channel.ROW, channel.MOMENTS, units, problem.clusters)


@dataclass(frozen=True)
class PointsPerAxisRule(NodeBasedRule):
    """An integration rule with a given number of nodes per axis or per panel; the next finer rule has 3/2 as many.

    Args:
        points: number of nodes per axis or per panel.
        starts: search for proximal points (`Problem.search`); None for the problem's own setting.
    """

    points: int = 16
    starts: int | None = None
    fewest: ClassVar[int] = 4

    @classmethod
    def rule_of_size(cls, points: int | None, seed: int) -> Self:
        """Return the rule with a number of nodes per axis or per panel.

        Args:
            points: size given by `--points`; None for the default.
            seed: seed given by `--seed`; rules without replicates ignore it.
        """
        return cls() if points is None else cls(points)

    def rule_description(self) -> dict[str, Any]:
        """Return a dict with the rule's name, nodes per axis, and no seed, as in the JSON output."""
        return {"rule": self.name, "points": self.points, "seed": None}

    def finer_rule(self) -> Self:
        """Return the rule with 3/2 of the nodes per axis or per panel."""
        return replace(self, points=self.points * 3 // 2)

    def coarser_rule(self) -> Self:
        """Return the rule with 2/3 of the nodes per axis or per panel, at least the attribute `fewest`."""
        return replace(self, points=max(self.fewest, self.points * 2 // 3))


def _jacobian_averages_with_cusps(
    determinants: np.ndarray, weights: np.ndarray, matrices: np.ndarray, cusp: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the averages of Jacobians G = dg/domega of the field g, and of their squares extrapolated to cusps.

    Args:
        determinants: det(I + V H) at each node, H being the Hessian of the loss.
        weights: weight of each node.
        matrices: G at each node, shape (nodes, L, s, L, s).
        cusp: value of det(I + V H) below which nodes are too few to average over.
    """
    slope = np.einsum("n,nlalb->lab", weights, matrices)
    near = determinants < cusp
    shell = (determinants < 2 * cusp) & ~near
    away, around, inside = (
        np.einsum("n,nlarb,nlerf->lraebf", weights[part], matrices[part], matrices[part], optimize=True)
        for part in (~(near | shell), shell, near)
    )
    return slope, extrapolate_squares_to_cusps(
        away, around, inside, float(weights[shell].sum()), float(weights[near].sum())
    )


def extrapolate_squares_to_cusps(
    away: np.ndarray, shell: np.ndarray, near: np.ndarray, shell_weight: float, near_weight: float
) -> np.ndarray:
    """Return E[G (x) G] from the contributions of nodes away from cusps, in a shell around cusps, and near cusps.

    At a cusp of the Moreau envelope, where jumps begin, det = det(I + V H) vanishes (H is the Hessian of the loss) and
    the Jacobian G = dg/domega of the field g diverges as 1 / det. The probability of det < e is of order e^(5/2), so
    that E[G (x) G; det < e] = E[G (x) G; e < det < 2 e] / (2^(1/2) - 1). This is used where numbers of nodes agree
    with that law; otherwise the three contributions are added.

    Args:
        away: contribution of nodes with det above 2 e.
        shell: contribution of nodes with det from e to 2 e.
        near: contribution of nodes with det below e.
        shell_weight: total weight of the nodes in the shell.
        near_weight: total weight of the nodes with det below e.
    """
    ratio = near_weight * (2**2.5 - 1) / max(shell_weight, 1e-300)
    if 1 / 3 < ratio < NodeRuleOptions.current().max_cusp_excess:
        near = shell / (np.sqrt(2) - 1)
    return away + shell + near


def is_proximal_map_smooth(problem: Problem, bistable: float) -> bool:
    """Return whether the proximal map neither jumps nor, in several fields, has corners.

    Args:
        problem: problem whose fields are integrated over.
        bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
    """
    part = reduce_to_fields_of_loss(problem).solver
    bends = problem.inverse_temperature is None and part.channel.FIELDS > 1 and part.proximal.CORNERS
    return bistable <= NEGLIGIBLE_JUMPS and not bends


@dataclass(frozen=True)
class GaussHermite(PointsPerAxisRule):
    """A Gauss-Hermite product rule, split at the kinks of the loss in the teacher field Y and noise.

    Args:
        points: number of nodes per axis.
        starts: None to search for the global minimum as the problem specifies; 0 to descend from a single start, as
            simple solvers do.
    """

    name: str = "gauss-hermite"
    most_points: ClassVar[int] = 512
    is_nonadaptive: ClassVar[bool] = True
    inner: float = 1.0

    def symmetry_reduction(self, problem: Problem, fields: FieldLaw, labels: Labels) -> SymmetryReduction:
        """Return the symmetries of the law of the fields under which the quadrature nodes are invariant.

        Args:
            problem: problem whose loss must be invariant.
            fields: law of the fields.
            labels: label of every token.
        """
        return SymmetryReduction.symmetries_of_law_and_nodes(
            problem, fields, labels, TeacherFieldRule.teacher_rule_for_loss(problem, fields, self.points).axes
        )

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
        fields_of_student = problem.tokens * problem.student_rank
        count = float(self.points) ** problem.dimension
        if count > 2e8:
            raise InputError(
                f"the integrator gauss-hermite needs {count:.1e} nodes at {self.points} per axis; use sobol"
            )
        nodes, weights = TeacherFieldRule.teacher_rule_for_loss(problem, fields, self.points).nodes_and_weights
        orbits = reduction.orbit_sizes(nodes, problem.teacher_rank)
        kept = nodes[orbits > 0], (weights * orbits)[orbits > 0]
        axes = [gauss_hermite(self.points)] * fields_of_student
        return [add_student_field_axes(kept, axes, problem.tokens * problem.teacher_rank)]

    def node_count(self, problem: Problem) -> float:
        """Return the number of nodes of the product rule in the fields that the loss depends on, before symmetries."""
        return float(self.points) ** reduce_to_fields_of_loss(problem).dimension

    def is_affordable_at_finite_temperature(self, problem: Problem) -> bool:
        """Return whether the rule is affordable at a finite temperature: it evaluates the loss few enough times."""
        part = reduce_to_fields_of_loss(problem)
        inner = float(boltzmann.boltzmann_node_count(part, self.inner)) ** part.solver.thermal_channel.FIELDS
        return (
            self.node_count(part) * len(part.label_probabilities) * inner
            <= NodeRuleOptions.current().max_thermal_losses
        )

    @classmethod
    def rules_coarse_to_fine(cls, problem: Problem) -> tuple[GaussHermite, ...]:
        """Return the Gauss-Hermite rules with which a problem is solved one after the other, coarse to fine."""
        return PRODUCTS

    def rules_for_field_jacobian(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return two Gauss-Hermite rules, or a Sobol rule, for averages of dg/domega, with g = V^(-1) (X - omega).

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return (Sobol(14),) if self.finer_rule().node_count(problem) > MAX_PRODUCT_NODES else (self, self.finer_rule())

    def rule_for_numerical_jacobian(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return the Gauss-Hermite rule for a numerical Jacobian of the saddle-point map.

        At a finite temperature, where nodes are costly, it is a small one.

        Args:
            problem: problem whose saddle-point map is differentiated.
            sample: Sobol rule to return if this rule has replicates.

        Returns:
            the rule; the finite-difference step relative to the scale of each overlap matrix (None: choose a wide step
            for sampled averages); whether one-sided differences suffice.
        """
        if problem.inverse_temperature is not None and reduce_to_fields_of_loss(problem).dimension > 2:
            return min(self, WARM_PRODUCTS[1], key=lambda r: r.points), 1e-5, True
        return self, 1e-4, False

    @classmethod
    def quadrature_rules_for_cross_check(cls, problem: Problem, bistable: float) -> tuple[GaussHermite, ...]:
        """Return Gauss-Hermite rules for a cross-check in few dimensions, if the proximal map is smooth.

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        smooth = reduce_to_fields_of_loss(problem).dimension <= MAX_PRODUCT_DIMENSION and is_proximal_map_smooth(
            problem, bistable
        )
        levels = (cls(points) for points in NodeRuleOptions.current().cross_check_points if smooth)
        return tuple(level for level in levels if level.node_count(problem) <= MAX_PRODUCT_NODES)

    def finer_rule(self) -> GaussHermite:
        """Return the rule with 3/2 of the nodes per axis, with more nodes per field at a finite temperature."""
        ratio = NodeRuleOptions.current().thermal_ratio
        return replace(self, points=max(self.points + 2, self.points * 3 // 2), inner=ratio * self.inner)

    def coarser_rule(self) -> GaussHermite:
        """Return the rule with 2/3 of the nodes per axis, with fewer nodes per field at a finite temperature."""
        ratio = NodeRuleOptions.current().thermal_ratio
        return replace(self, points=max(2, min(self.points - 2, self.points * 2 // 3)), inner=self.inner / ratio)


PRODUCTS = tuple(GaussHermite(points) for points in (12, 18, 28, 42, 64))
# At a finite temperature everything is smooth; the colder, the more nodes.
WARM_PRODUCTS = tuple(GaussHermite(points) for points in (8, 12, 18, 28, 42, 64, 96, 144))


@dataclass(frozen=True)
class Sobol(NodeBasedRule):
    """A rule of independently scrambled Sobol sets of 2^log2 points each.

    The proximal point is computed at every point. The spread over scramblings is the error estimate. Moments are
    averaged over the symmetries of the loss and the law of the fields, so that those that vanish by symmetry are zero.

    Args:
        scramblings: number of scrambled sets.
        rotation: axes of the coordinates of the sets; None for those of teacher fields, student fields and noise.
        first: number of the first scrambling; scramblings with the same number and seed are equal.
    """

    log2: int = 14
    scramblings: int = 16
    seed: int = 0
    starts: int | None = None
    name: str = "sobol"
    most_points: ClassVar[int] = 24
    unit: ClassVar[str] = "n for 2^n nodes"
    first: int = 0
    inner: float = 1.25
    rotation: Rotation | None = field(default=None, repr=False)
    replicated: ClassVar[bool] = True
    symmetry_tolerance: ClassVar[float | None] = 1e-9  # as states, which iteration brings that close to symmetric ones

    @classmethod
    def rule_of_size(cls, points: int | None, seed: int) -> Sobol:
        """Return the rule with 2^points points per Sobol set.

        Args:
            points: size given by `--points`; None for the default.
            seed: seed given by `--seed`; rules without replicates ignore it.
        """
        return cls(points or 15, seed=seed)

    def rule_description(self) -> dict[str, Any]:
        """Return a dict with the rule's name, number of points of all scramblings and seed."""
        return {"rule": self.name, "points": self.scramblings * 2**self.log2, "seed": self.seed}

    def nodes_and_weights_by_replicate(
        self, problem: Problem, fields: FieldLaw, reduction: SymmetryReduction, integrand: Integrand = "averages"
    ) -> NodeSets:
        """Return the nodes and weights, one pair per scrambling.

        Args:
            problem: problem whose fields are integrated over.
            fields: law of the fields.
            reduction: symmetries of the loss, the law of the fields and the nodes, from `symmetry_reduction`.
            integrand: kind of average, see `NodeBasedRule.nodes_and_weights_by_replicate`.
        """
        seeds = range(1000 * self.seed + self.first, 1000 * self.seed + self.first + self.scramblings)
        sets = (sobol_normal_points(problem.dimension, self.log2, each, (), self.rotation) for each in seeds)
        return [(nodes, equal_weights(len(nodes))) for nodes in sets]

    def node_count(self, problem: Problem) -> float:
        """Return the total number of points of all Sobol sets."""
        return float(self.scramblings * 2**self.log2)

    @classmethod
    def rules_coarse_to_fine(cls, problem: Problem) -> tuple[Sobol, ...]:
        """Return the Sobol rules with which a problem is solved one after the other, coarse to fine."""
        return SAMPLES

    def finer_rules(self, problem: Problem) -> list[Sobol]:
        """Return the finer Sobol rules, with the same seed."""
        return [size.with_seed(self.seed) for size in super().finer_rules(problem)]

    def predict_refinement_steps(self, error: float, accuracy: float) -> int:
        """Return by how many sizes to refine the rule until its error is expected to reach an accuracy.

        Args:
            error: error of this rule.
            accuracy: requested accuracy.
        """
        options = NodeRuleOptions.current()
        return max(1, int(np.ceil(np.log2(options.sobol_margin * error / accuracy) / options.sobol_gain)))

    def predict_node_count(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return the predicted number of nodes with which the error reaches an accuracy.

        Args:
            problem: problem whose fields are integrated over.
            error: error of the rule at this size.
            accuracy: requested accuracy.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        gain = NodeRuleOptions.current().sobol_gain
        return self.node_count(problem) * max(1.0, error / accuracy) ** (1 / gain)

    def rules_for_field_jacobian(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return one Sobol rule of at most 2^14 points per set, for averages of dg/domega, with g = V^(-1) (X - omega).

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return (replace(self, log2=min(self.log2, 14)),)

    def rule_for_numerical_jacobian(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return the rule `sample` and no step: sampled averages jump, so that a Jacobian needs wide steps.

        Args:
            problem: problem whose saddle-point map is differentiated.
            sample: Sobol rule to return if this rule has replicates.

        Returns:
            the rule; the finite-difference step relative to the scale of each overlap matrix (None: choose a wide step
            for sampled averages); whether one-sided differences suffice.
        """
        sample = sample.with_seed(self.seed)
        return replace(sample, rotation=self.rotation) if isinstance(sample, Sobol) else sample, None, False

    def newton_tolerance(self, accuracy: float) -> float:
        """Return the residual at which Newton's method stops: a tenth of the accuracy of the solution."""
        return max(1e-9, 0.1 * accuracy)

    @classmethod
    def quadrature_rules_for_cross_check(cls, problem: Problem, bistable: float) -> tuple[Sobol, ...]:
        """Return two Sobol rules for a cross-check where the proximal map jumps, or bends in several fields.

        The statistical error of the finer rule is at most half that of the coarser one.

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return () if is_proximal_map_smooth(problem, bistable) else (cls(14), cls(16))

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether Sobol rules can cross-check a solution: always, since replicates show their error."""
        return True

    def with_seed(self, seed: int) -> Sobol:
        """Return the Sobol rule with another seed."""
        return replace(self, seed=seed)

    @property
    def replicates(self) -> tuple[Sobol, ...]:
        """The rules that use one scrambling each."""
        return tuple(replace(self, scramblings=1, first=self.first + number) for number in range(self.scramblings))

    def finer_rule(self) -> Sobol:
        """Return the Sobol rule with twice the points per scrambling."""
        return replace(self, log2=self.log2 + 1)

    def coarser_rule(self) -> Sobol:
        """Return the Sobol rule with half the points per scrambling."""
        return replace(self, log2=self.log2 - 1)


SAMPLES = tuple(Sobol(log2) for log2 in range(12, 19))
