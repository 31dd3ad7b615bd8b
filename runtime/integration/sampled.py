"""Rules whose nodes are points in the fields: products of Gauss-Hermite, Sobol sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..channel import boltzmann
from ..channel.exchange import Reduction
from ..channel.fields import Fields, field_law
from ..channel.nodes import gauss_hermite, sobol_normal, tensor_product_rule
from ..channel.points import slopes_at_nodes
from ..channel.shared import moment_sums
from ..channel.tangents import law_derivatives_in_nodes, node_tangents
from ..problems.overlaps import Overlaps, UnitOverlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_loss
from .cells import MAX_AXES, Cells, has_narrow_parts, integrand_scales
from .panels import subdivide
from .rule import NEGLIGIBLE_JUMPS, Labels, Rule
from .splitting import HyperplaneSplit

Nodes = tuple[np.ndarray, np.ndarray]
NodeSets = list[Nodes]
"""Nodes (N, n) and weights (N,), a pair a replicate."""
Integrand = Literal["averages", "tangents", "slopes"]

MAX_PRODUCT_NODES = 3e6  # of a product rule in omega, each with a proximal point
MAX_PRODUCT_DIMENSION = 3  # dimensions, in which a product has more digits than lines or a lattice


@dataclass(frozen=True)
class SampledOptions(AlgorithmOptions):
    """Options of the rules whose nodes are points in the fields.

    Attributes:
        thermal_ratio: from one rule to the next, of the nodes an axis of X at a finite temperature; larger shows errors
            better, at a higher cost.
        cusp_determinant: det(I + V H) below which averages of squared slopes are extrapolated; larger is less noisy,
            but farther from the law at a cusp.
        max_cusp_excess: ratio of the nodes below it to those at a cusp up to which they are extrapolated: between the
            powers 5/2 and 3/2.
        cross_check_points: nodes an axis of the products that check other rules.
        density_scale: standard deviations over which a normal density changes by order one.
        min_cell_points: smallest number of nodes an axis of a cell.
        points_per_cell_point: nodes an axis elsewhere for which an axis of a cell has one more.
        max_thermal_losses: losses that a product rule may evaluate at a finite temperature, X and omega together.
        sobol_copies: of a Sobol set, by signs, when its nodes are predicted.
        sobol_gain: error in powers of two by which a Sobol set is better than one of half the points; smaller predicts
            larger sets.
    """

    thermal_ratio: float = 1.25
    cusp_determinant: float = 0.15
    max_cusp_excess: float = 1.6
    cross_check_points: tuple[int, ...] = (24, 36, 54, 80, 120, 180)
    density_scale: float = 2.0
    min_cell_points: int = 4
    points_per_cell_point: int = 8
    max_thermal_losses: float = 2e9
    sobol_copies: int = 4
    sobol_gain: float = 0.85


def teacher_split(problem: Problem, fields: Fields) -> HyperplaneSplit:
    """Return the planes in Y and Gaussian noise, standard normal, on which the loss is not smooth, whatever X.

    Args:
        problem: problem that gives the planes.
        fields: law of the fields.
    """
    return HyperplaneSplit.on_planes(*_teacher_planes(problem, fields, "loss"))


def _teacher_planes(problem: Problem, fields: Fields, *of: str) -> tuple[np.ndarray, int]:
    """Return planes in Y and Gaussian noise, in standard normal coordinates, and the number of these."""
    outer, inner = problem.tokens * problem.teacher_rank, problem.tokens * problem.student_rank
    planes = np.concatenate([problem.kink_planes(name, fields.constants) for name in of])
    known = fields.planes_in_normal_coordinates(planes[~planes[:, :inner].any(axis=1)], problem.noise_scale)
    return np.delete(known, range(outer, outer + inner), axis=1), problem.dimension - inner


def narrow_cells(problem: Problem, fields: Fields) -> Cells | None:
    """Return cells in Y and Gaussian noise that resolve the narrow parts of the loss there, whatever X.

    Args:
        problem: problem that gives the loss.
        fields: law of the fields.

    Returns:
        None where nothing is narrow, or where there are too many cells.
    """
    scales, dimension = (
        integrand_scales(problem, fields, "teacher"),
        problem.dimension - problem.tokens * problem.student_rank,
    )
    if scales is None or dimension > MAX_AXES or not has_narrow_parts(scales, dimension):
        return None
    known, width = scales, SampledOptions.current().density_scale

    def _scales_and_density(nodes: np.ndarray) -> np.ndarray:
        return np.concatenate([known(nodes), nodes / width], axis=1)

    return Cells.between_planes(*_teacher_planes(problem, fields, "loss", "teacher_places")).refine_until_smooth(
        _scales_and_density
    )


def teacher_edges(problem: Problem, fields: Fields, reach: float, longest: float) -> np.ndarray:
    """Return the ends of panels of the only coordinate of Y or noise, ascending.

    They lie between the kinks of the loss and resolve its narrow parts.

    Args:
        problem: problem that gives the loss.
        fields: law of the fields.
        reach: end of the outermost panels, in standard deviations.
        longest: greatest length of a panel.
    """
    cells = narrow_cells(problem, fields)
    places = (
        teacher_split(problem, fields).cut_places(reach) if cells is None else cells.edges[np.abs(cells.edges) < reach]
    )
    return subdivide(np.array([-reach, *places, reach]), longest)


@dataclass(frozen=True)
class TeacherRule:
    """A rule for the coordinates of Y and of Gaussian noise, in panels or cells where the loss is narrow there.

    Attributes:
        axes: nodes and weights of each coordinate where it is a product of them, else None.
        make: function that computes its nodes and weights.
        narrow: whether the nodes resolve narrow parts of the loss.
    """

    axes: tuple[Nodes, ...] | None
    make: Callable[[], Nodes]
    narrow: bool = False

    @classmethod
    def for_loss(cls, problem: Problem, fields: Fields, points: int, equidistant: bool = False) -> TeacherRule:
        """Return panels between the planes on which the loss is not smooth in Y and noise, whatever X.

        Without such planes the rule is Gauss-Hermite, or equidistant nodes.

        Args:
            problem: problem that gives the loss.
            fields: law of the fields.
            points: nodes an axis or a panel.
            equidistant: whether smooth axes have equidistant nodes.
        """
        if problem.dimension == problem.tokens * problem.student_rank:
            return cls((), partial(tensor_product_rule, []))
        cells = narrow_cells(problem, fields)
        if cells is not None:
            options = SampledOptions.current()
            per_axis = options.min_cell_points + points // options.points_per_cell_point
            nodes, weights = (each.reshape(-1, *each.shape[2:]) for each in cells.gauss_legendre_rule(per_axis))
            axes: tuple[Nodes, ...] | None = ((nodes[:, 0], weights),) if cells.dimension == 1 else None
            return cls(axes, lambda: (nodes, weights), narrow=True)
        split = teacher_split(problem, fields)
        if split.is_product:
            axes = tuple(split.axis_rules(points, equidistant))
            return cls(axes, partial(tensor_product_rule, list(axes)))
        return cls(None, partial(split.rule, points, equidistant))

    @cached_property
    def rule(self) -> Nodes:
        """The nodes (N, L t + U) and weights (N,)."""
        return self.make()


def product_with_field_axes(rule: Nodes, axes: list[Nodes], outer: int) -> Nodes:
    """Return nodes in (z_Y, z_omega, noise) and weights: the product of a rule with axes of z_omega.

    Args:
        rule: nodes and weights in (z_Y, noise).
        axes: nodes and weights of each coordinate of z_omega.
        outer: number of coordinates of z_Y.
    """
    (nodes, weights), (inner, shares) = rule, tensor_product_rule(axes)
    known = np.repeat(nodes, len(inner), axis=0)
    nodes = np.concatenate([known[:, :outer], np.tile(inner, (len(nodes), 1)), known[:, outer:]], axis=1)
    return nodes, np.multiply.outer(weights, shares).ravel()


class Sampled(Rule):
    """A base of the rules that visit nodes in (Y, noise, omega) and solve for the proximal point there.

    At a finite temperature they average over the Boltzmann law of the fields instead.

    Attributes:
        inner: refines the integral over the fields at a finite temperature.
    """

    starts: int | None
    inner: float
    at_temperature: ClassVar[bool] = True

    def reduction_of(self, problem: Problem, fields: Fields, labels: Labels) -> Reduction:
        """Return the exchanges under which the fields and the nodes are invariant.

        Args:
            problem: problem whose loss decides.
            fields: law of the fields.
            labels: label of every token.
        """
        return Reduction(())

    def node_sets(
        self, problem: Problem, fields: Fields, reduction: Reduction, integrand: Integrand = "averages"
    ) -> NodeSets:
        """Return nodes (N, L (t + s) + Gaussian noise) in (z_Y, z_omega, noise) and weights, a pair a replicate.

        Args:
            problem: problem whose fields are integrated over.
            fields: law of the fields.
            reduction: exchanges, from `reduction_of`.
            integrand: what is averaged: at "tangents" polynomials in the law of the fields, too; at "slopes"
                (dg/domega)^2, which is steep where 1 + V l'' nearly vanishes.
        """
        raise NotImplementedError

    def _law_and_nodes(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, integrand: Integrand
    ) -> tuple[Fields, Reduction, NodeSets]:
        fields = field_law(problem, overlaps, labels)
        reduction = self.reduction_of(problem, fields, labels)
        return fields, reduction, self.node_sets(problem, fields, reduction, integrand)

    def _moment_sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """Return the sums of `Rule`, a replicate for every set of nodes."""
        channel, cut, found = problem.solver.channel, problem.tokens * problem.solver.channel.ROW, []
        fields, reduction, sets = self._law_and_nodes(problem, overlaps, labels, "averages")
        for nodes, weights in sets:
            out = self._sum_over_nodes(problem, fields, nodes, weights).sum(axis=0)
            out = reduction.average_moments(out, channel.ROW, channel.MOMENTS)
            found.append(np.append(out[: cut + 4], [out[cut + 4] / len(nodes), weights.sum()]))
        return np.array(found)

    def _sum_over_nodes(self, problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        if problem.inverse_temperature is not None:
            return boltzmann.boltzmann_sums(problem, fields, nodes, weights, self.inner)
        channel = problem.solver.proximal
        law = *fields.sampling_arguments, fields.precision, problem.noise_scale, fields.constants
        search = problem.search if self.starts is None else self.starts
        return moment_sums(channel, channel.sample, nodes, weights, *law, search)

    def _field_slopes_at(
        self, problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return det(I + V H) (1 at a finite temperature, where nothing is singular), weights and G = dg/domega."""
        if problem.inverse_temperature is not None:
            shares, matrices = boltzmann.boltzmann_slopes(problem, fields, nodes, weights, self.inner)
            return np.ones(len(shares)), shares, matrices
        return slopes_at_nodes(problem, fields, nodes, weights, self.starts)

    def _slope_sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
        """Return the slope averages of `Rule`, a replicate a set of nodes; near cusps by docs/theory.md (11.6)."""
        near = -np.inf if self.resolves_squares else SampledOptions.current().cusp_determinant
        shape = [problem.tokens, problem.student_rank] * 2
        fields, reduction, sets = self._law_and_nodes(problem, overlaps, labels, "slopes")
        found = (self._field_slopes_at(problem, fields, nodes, weights) for nodes, weights in sets)
        parts = [_slope_averages(det, shares, G.reshape(-1, *shape), near) for det, shares, G in found]
        slopes, squares = zip(*parts, strict=True)
        return np.stack([*map(reduction.average_slope, slopes)]), np.stack([*map(reduction.average_square, squares)])

    def _moment_tangent_sums(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, units: UnitOverlaps, jumps: bool
    ) -> np.ndarray:
        """Return the derivatives of the mean over the sets, without the contribution of jumps between nodes."""
        problem.require_zero_temperature("derivatives of averages over nodes are printed")
        channel = problem.solver.channel
        fields, reduction, sets = self._law_and_nodes(problem, overlaps, labels, "tangents")
        out = sum(node_tangents(problem, fields, nodes, weights, self.starts) for nodes, weights in sets)
        out = np.tensordot(out / len(sets), law_derivatives_in_nodes(problem, overlaps, labels, fields, units), 3)
        return reduction.average_tangents(out, channel.ROW, channel.MOMENTS, units, problem.clusters)


@dataclass(frozen=True)
class PointRule(Sampled):
    """A rule of `points` nodes an axis or a panel, half as many again in the next size.

    Args:
        starts: as `search` of `points_at`; None for that of the problem.
    """

    points: int = 16
    starts: int | None = None
    fewest: ClassVar[int] = 4

    @classmethod
    def with_size(cls, points: int | None, seed: int) -> Self:
        """Return the rule with so many nodes an axis or a panel.

        Args:
            points: size that `--points` asks for; None for the default.
            seed: seed that `--seed` gives; a rule without replicates needs none.
        """
        return cls() if points is None else cls(points)

    def describe(self) -> dict[str, Any]:
        """Return rule and points for the JSON contract; the seed is null."""
        return {"rule": self.name, "points": self.points, "seed": None}

    def finer_rule(self) -> Self:
        """Return the rule with half as many nodes again."""
        return replace(self, points=self.points * 3 // 2)

    def coarser_rule(self) -> Self:
        """Return the rule with two thirds of the nodes, but the fewest or more."""
        return replace(self, points=max(self.fewest, self.points * 2 // 3))


def _slope_averages(
    determinants: np.ndarray, weights: np.ndarray, matrices: np.ndarray, cusp: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return E[G_ll] (L, s, s) and E[G_ll' (x) G_ll'] (L, L, s, s, s, s) from G (N, L, s, L, s) at nodes.

    Args:
        determinants: det(I + V H), (N,).
        weights: (N,).
        matrices: G.
        cusp: of det(I + V H), below which nodes are too few to average over.
    """
    slope = np.einsum("n,nlalb->lab", weights, matrices)
    near = determinants < cusp
    shell = (determinants < 2 * cusp) & ~near
    away, around, inside = (
        np.einsum("n,nlarb,nlerf->lraebf", weights[part], matrices[part], matrices[part], optimize=True)
        for part in (~(near | shell), shell, near)
    )
    return slope, extrapolate_to_cusps(away, around, inside, float(weights[shell].sum()), float(weights[near].sum()))


def extrapolate_to_cusps(
    away: np.ndarray, shell: np.ndarray, near: np.ndarray, shell_weight: float, near_weight: float
) -> np.ndarray:
    """Return E[G (x) G] from the contributions of nodes away from cusps, in the shell around them and near them.

    At a cusp, where jumps begin, det = det(I + V H) vanishes and G like 1 / det. Few nodes come near: of the measure,
    det < e contains a fraction e^(5/2), so that E[G (x) G; det < e] = E[G (x) G; e < det < 2 e] / (2^(1/2) - 1). The
    contribution of small determinants is taken from there, where the counts agree with it: without a cusp no node may
    have one, and where det nearly vanishes along a line more do, a fraction e^(3/2).

    Args:
        away: contribution of nodes with det above 2 e.
        shell: of nodes with det from e to 2 e.
        near: of nodes with det below e.
        shell_weight: total weight of the shell.
        near_weight: total weight of the nodes below.
    """
    ratio = near_weight * (2**2.5 - 1) / max(shell_weight, 1e-300)
    if 1 / 3 < ratio < SampledOptions.current().max_cusp_excess:
        near = shell / (np.sqrt(2) - 1)
    return away + shell + near


def is_smooth(problem: Problem, bistable: float) -> bool:
    """Return whether the proximal map neither jumps nor, in several fields, has corners, which no other rule resolves.

    Args:
        problem: problem whose fields are integrated over.
        bistable: fraction of the measure on which the proximal map may jump.
    """
    part = reduce_to_loss(problem).solver
    bends = problem.inverse_temperature is None and part.channel.FIELDS > 1 and part.proximal.CORNERS
    return bistable <= NEGLIGIBLE_JUMPS and not bends


@dataclass(frozen=True)
class GaussHermite(PointRule):
    """A product rule with `points` nodes an axis, split at the loss's kinks in Y and noise; proximal map at each node.

    Args:
        starts: None searches for the global minimum as the problem says; 0 follows the first start only, as coarse
            solvers do.
    """

    name: str = "gauss-hermite"
    most_points: ClassVar[int] = 512
    is_nonadaptive: ClassVar[bool] = True
    inner: float = 1.0

    def reduction_of(self, problem: Problem, fields: Fields, labels: Labels) -> Reduction:
        """Return the exchanges under which fields and nodes are invariant.

        Args:
            problem: problem whose loss decides.
            fields: law of the fields.
            labels: label of every token.
        """
        return Reduction.of_rule(problem, fields, labels, TeacherRule.for_loss(problem, fields, self.points).axes)

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
        fields_of_student = problem.tokens * problem.student_rank
        count = float(self.points) ** problem.dimension
        if count > 2e8:
            raise InputError(f"Gauss-Hermite with {self.points} nodes an axis needs {count:.1e} nodes; use sobol")
        nodes, weights = TeacherRule.for_loss(problem, fields, self.points).rule
        orbits = reduction.orbit_sizes(nodes, problem.teacher_rank)
        kept = nodes[orbits > 0], (weights * orbits)[orbits > 0]
        axes = [gauss_hermite(self.points)] * fields_of_student
        return [product_with_field_axes(kept, axes, problem.tokens * problem.teacher_rank)]

    def node_count(self, problem: Problem) -> float:
        """Return the size of the full product in Y, noise and omega, as far as the loss depends on them."""
        return float(self.points) ** reduce_to_loss(problem).dimension

    def is_affordable_at_temperature(self, problem: Problem) -> bool:
        """Return whether the loss evaluations at a finite temperature, in X and omega together, are few enough."""
        part = reduce_to_loss(problem)
        inner = float(boltzmann.boltzmann_node_count(part, self.inner)) ** part.solver.thermal.FIELDS
        return self.node_count(part) * len(part.label_choices) * inner <= SampledOptions.current().max_thermal_losses

    @classmethod
    def sizes(cls, problem: Problem) -> tuple[GaussHermite, ...]:
        """Return PRODUCTS."""
        return PRODUCTS

    def rules_for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return this rule and the next; a Sobol set where the next finer product has too many nodes.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return (Sobol(12),) if self.finer_rule().node_count(problem) > MAX_PRODUCT_NODES else (self, self.finer_rule())

    def rule_for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return a small product at a finite temperature, where each node has a law of the fields to average over.

        Args:
            problem: problem whose map is differentiated.
            sample: rule that replaces a replicated one.

        Returns:
            rule, step in block scales (None for wide steps), whether one side suffices.
        """
        if problem.inverse_temperature is not None and reduce_to_loss(problem).dimension > 2:
            return min(self, WARM_PRODUCTS[1], key=lambda r: r.points), 1e-5, True
        return self, 1e-4, False

    @classmethod
    def cross_check_rules(cls, problem: Problem, bistable: float) -> tuple[GaussHermite, ...]:
        """Return products in few dimensions, where the proximal map neither jumps nor bends in several fields.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        smooth = reduce_to_loss(problem).dimension <= MAX_PRODUCT_DIMENSION and is_smooth(problem, bistable)
        levels = (cls(points) for points in SampledOptions.current().cross_check_points if smooth)
        return tuple(level for level in levels if level.node_count(problem) <= MAX_PRODUCT_NODES)

    def finer_rule(self) -> GaussHermite:
        """Return half as many nodes again (two at least) an axis, and more of X at a finite temperature."""
        ratio = SampledOptions.current().thermal_ratio
        return replace(self, points=max(self.points + 2, self.points * 3 // 2), inner=ratio * self.inner)

    def coarser_rule(self) -> GaussHermite:
        """Return two thirds of the nodes an axis, but two or more, and fewer of X at a finite temperature."""
        ratio = SampledOptions.current().thermal_ratio
        return replace(self, points=max(2, min(self.points - 2, self.points * 2 // 3)), inner=self.inner / ratio)


PRODUCTS = tuple(GaussHermite(points) for points in (12, 18, 28, 42, 64))
# At a finite temperature everything is smooth; the colder, the more nodes.
WARM_PRODUCTS = tuple(GaussHermite(points) for points in (8, 12, 18, 28, 42, 64, 96, 144))


@dataclass(frozen=True)
class Sobol(Sampled):
    """A rule of `scramblings` independent scrambled Sobol sets of 2^log2 points each, times sign flips.

    The proximal map is taken at every point. The spread over scramblings is the error estimate. Teacher and student
    coordinates are flipped separately.

    Args:
        first: number of the first scrambling; `replicates` gives rules of one.
    """

    log2: int = 12
    scramblings: int = 16
    seed: int = 0
    starts: int | None = None
    name: str = "sobol"
    most_points: ClassVar[int] = 22
    unit: ClassVar[str] = "n of 2^n nodes"
    first: int = 0
    inner: float = 1.25
    replicated: ClassVar[bool] = True

    @classmethod
    def with_size(cls, points: int | None, seed: int) -> Sobol:
        """Return the rule with 2^points points a set.

        Args:
            points: size that `--points` asks for; None for the default.
            seed: seed that `--seed` gives; a rule without replicates needs none.
        """
        return cls(points or 13, seed=seed)

    def describe(self) -> dict[str, Any]:
        """Return rule, points and seed for the JSON contract: points of all scramblings, sign flips left out."""
        return {"rule": self.name, "points": self.scramblings * 2**self.log2, "seed": self.seed}

    def node_sets(
        self, problem: Problem, fields: Fields, reduction: Reduction, integrand: Integrand = "averages"
    ) -> NodeSets:
        """Return the nodes and weights, a pair a scrambling.

        Args:
            problem: problem whose fields are integrated over.
            fields: law of the fields.
            reduction: exchanges, from `reduction_of`.
            integrand: what is averaged, see `Sampled`.
        """
        teacher = tuple(range(problem.tokens * problem.teacher_rank))
        student = tuple(range(len(teacher), len(teacher) + problem.tokens * problem.student_rank))
        sets = []
        for k in range(self.first, self.first + self.scramblings):
            groups = tuple(filter(None, (teacher, student)))
            nodes = sobol_normal(problem.dimension, self.log2, 1000 * self.seed + k, groups)
            sets.append((nodes, np.full(len(nodes), 1 / len(nodes))))
        return sets

    def node_count(self, problem: Problem) -> float:
        """Return the number of nodes of all sets together."""
        return float(self.scramblings * 2**self.log2)

    @classmethod
    def sizes(cls, problem: Problem) -> tuple[Sobol, ...]:
        """Return SAMPLES."""
        return SAMPLES

    def finer_rules(self, problem: Problem) -> list[Sobol]:
        """Return the finer sets, with the same seed."""
        return [size.with_seed(self.seed) for size in super().finer_rules(problem)]

    def predict_size_step(self, error: float, accuracy: float) -> int:
        """Return the number of sizes after which errors are expected to reach the accuracy, by how fast they fall.

        Args:
            error: of this rule.
            accuracy: that is asked for.
        """
        return max(1, round(float(np.log2(error / accuracy)) / SampledOptions.current().sobol_gain))

    def predict_nodes(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return the nodes at which the error is expected to have fallen to the accuracy.

        Args:
            problem: problem whose fields are integrated over.
            error: of this size.
            accuracy: that is asked for.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        options = SampledOptions.current()
        return options.sobol_copies * self.node_count(problem) * max(1.0, error / accuracy) ** (1 / options.sobol_gain)

    def rules_for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return one rule, whose replicates give the error, of 2^12 points a set at the most.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return (replace(self, log2=min(self.log2, 12)),)

    def rule_for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return a smaller set `sample` with wide steps, so that many nodes change their minimum within one.

        Args:
            problem: problem whose map is differentiated.
            sample: rule that replaces a replicated one.

        Returns:
            rule, step in block scales (None for wide steps), whether one side suffices.
        """
        return sample.with_seed(self.seed), None, False

    def tolerance(self, accuracy: float) -> float:
        """Return a fiftieth of the accuracy."""
        return max(1e-9, 0.02 * accuracy)

    @classmethod
    def cross_check_rules(cls, problem: Problem, bistable: float) -> tuple[Sobol, ...]:
        """Return two sizes where the proximal map jumps, or bends in several fields.

        The finer has half the noise or less.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return () if is_smooth(problem, bistable) else (cls(13), cls(15))

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return True: replicates show the error wherever a set does not resolve the integrand."""
        return True

    def with_seed(self, seed: int) -> Sobol:
        """Return the same sets with another seed."""
        return replace(self, seed=seed)

    @property
    def replicates(self) -> tuple[Sobol, ...]:
        """The rules of each of the scramblings."""
        return tuple(replace(self, scramblings=1, first=self.first + number) for number in range(self.scramblings))

    def finer_rule(self) -> Sobol:
        """Return the rule with twice the points of every scrambling."""
        return replace(self, log2=self.log2 + 1)

    def coarser_rule(self) -> Sobol:
        """Return the rule with half the points of every scrambling."""
        return replace(self, log2=self.log2 - 1)


SAMPLES = tuple(Sobol(log2) for log2 in range(10, 17))
