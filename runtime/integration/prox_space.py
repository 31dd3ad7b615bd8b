"""Quadrature in proximal space: nodes on a grid of proximal points X, where fields and jumps are known explicitly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..base.threads import run_loop_in_threads
from ..channel.exchange import SymmetryReduction
from ..channel.fields import FieldLaw, field_law
from ..channel.nodes import gauss_legendre_on_panels, sobol_normal_points, tensor_product_rule
from ..channel.points import noise_value_indices, proximal_points_at_nodes
from ..channel.tangents import field_law_derivatives
from ..device.loops import CHUNKS, sum_in_chunks
from ..problems.overlaps import Overlaps, UnitOverlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from ..problems.symmetry import loss_symmetries
from .rule import DIFFERENCE_SAFETY, NEGLIGIBLE_JUMPS, Labels, Rule, SaddlePointAverages, largest_bistable_fraction
from .sampled import Sobol, TeacherFieldRule

_BOX_RADIUS, _BOX_WEIGHT = 7.8, 1e-15  # the measure beyond is below 1e-13; weight of a node that may lie there
_MASS_ROUNDING = 1e-12  # of the total weight of a grid, including the part outside its box


@dataclass(frozen=True)
class ProxSpaceOptions(AlgorithmOptions):
    """Options of quadrature in proximal space.

    Attributes:
        loss_blur: number of grid steps over which jumps are smoothed for a training loss; wider smoothing makes the
            Moreau envelope more accurate on fine grids, and other averages less accurate on coarse ones.
        coarser_weight: factor of the difference to a coarser grid in an error bar where the proximal map jumps: it
            guards against a chance agreement with the finer grid.
        max_first_points: points per student field up to which grids are tried before panels of a single field.
        max_neglected_weight: bound on the weight of saddles that are not corrected.
    """

    loss_blur: float = 0.8
    coarser_weight: float = 0.35
    max_first_points: int = 432
    max_neglected_weight: float = 1e-6


_Array = np.ndarray
_Arguments = tuple[_Array, _Array, _Array, _Array, _Array, _Array, _Array, _Array, _Array, float]
"""Arguments of the generated prox-space loops after the number of chunks, up to the weight of neglected saddles."""


@dataclass(frozen=True)
class ProxSpaceRule(Rule):
    """A trapezoid rule in the proximal points X and the teacher fields Y (docs/theory.md section 11).

    The rule sums over all critical points with the sign of det(I + V H), H being the Hessian of the loss; this is exact
    where the minimum is unique.
    Where there are two minima, the rule descends from every saddle to both and subtracts the higher one. The
    discontinuity where the two minima exchange their order, and the proximal map jumps, is smoothed over `blur` steps.

    Args:
        points: trapezoid points per axis of the student field X.
        teacher: nodes per axis of Y and of Gaussian noise (per panel at a kink).
        neglected: bound on the total weight of the saddles for which no minimum is subtracted (infinity: it never is).
        blur: number of grid steps over which jumps are smoothed; 0 for no smoothing.
    """

    points: int = 80
    teacher: int = 40
    neglected: float = 1e-8
    blur: float = 0.5
    name: str = "prox-space"
    most_points: ClassVar[int] = 4096
    in_x: ClassVar[bool] = True

    @classmethod
    def rule_of_size(cls, points: int | None, seed: int) -> ProxSpaceRule:
        """Return the rule with a given number of points per student field X, and half as many per teacher field Y.

        Args:
            points: size given by `--points`; None for the default.
            seed: seed given by `--seed`; rules without replicates ignore it.
        """
        return cls(points or 80, max(16, (points or 80) // 2))

    def rule_description(self) -> dict[str, Any]:
        """Return a dict with the rule's name, points per student and per teacher field, and no seed (JSON output)."""
        return {"rule": self.name, "points": [self.points, self.teacher], "seed": None}

    @property
    def can_include_jump_derivatives(self) -> bool:
        """Return whether derivatives of moments can include jumps of the proximal map: only if these are smoothed."""
        return self.blur > 0

    def node_count(self, problem: Problem) -> float:
        """Return the approximate number of nodes: those of student fields times those of teacher fields and noise."""
        part = reduce_to_fields_of_loss(problem)
        fields = part.tokens * part.student_rank
        return float(self.points**fields * self.teacher ** min(part.dimension - fields, 2))

    def evaluation_cost(self, problem: Problem) -> float:
        """Return the cost of an evaluation; the unit is the cost of one grid node of `ProxSpaceRule`."""
        return self.node_count(problem)

    def comparison_rules(self) -> tuple[ProxSpaceRule, ...]:
        """Return the next coarser rule, which is compared with this rule to estimate the error.

        One is enough, since the exact value 1 of the total weight is an additional check.
        """
        return (self.coarser_rule(),)

    def has_convergence_rate(self, bistable: float) -> bool:
        """Return whether errors fall by a constant factor from grid to grid: only if jumps are negligible.

        Args:
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return bistable <= NEGLIGIBLE_JUMPS

    def smallest_error_bar_factors(
        self, steps: Sequence[np.ndarray], averages: Sequence[SaddlePointAverages], derivative: bool
    ) -> tuple[float, ...]:
        """Return lower bounds on the factors by which an error bar multiplies the differences to other grids.

        Where the proximal map jumps, the difference to the coarser grid counts; the error of an average is at most the
        probability `bistable`, that of a derivative at most about its square root. Without jumps the factor is the
        error of the total weight, whose exact value is 1, relative to its differences to other grids.

        Args:
            steps: differences of a quantity between this rule and the finer rule, then the `comparison_rules`.
            averages: averages by this rule, then by the other rules in the same order.
            derivative: whether the quantity contains derivatives of the averages.
        """
        bistable = largest_bistable_fraction(averages)
        if bistable > 0:
            bound = np.sqrt(bistable) if self.has_convergence_rate(bistable) else np.inf
            cost = bound if derivative else bistable
            most = ProxSpaceOptions.current().coarser_weight
            guards = (min(most, cost / max(float(np.max(np.abs(step))), 1e-300)) for step in steps[1:2])
            return 0.0, *guards, *(0.0 for _ in steps[2:])
        missing = max(abs(averages[0].mass - 1) - _MASS_ROUNDING, 0.0)
        differs = max(abs(each.mass - averages[0].mass) for each in averages[1:])
        return (DIFFERENCE_SAFETY * missing / max(differs, _MASS_ROUNDING),) * len(steps)

    @classmethod
    def rules_coarse_to_fine(cls, problem: Problem) -> tuple[ProxSpaceRule, ...]:
        """Return the grids with which a problem is solved one after the other, coarse to fine."""
        return PLANE_GRIDS if reduce_to_fields_of_loss(problem).solver.channel.FIELDS > 1 else LINE_GRIDS

    def position_in_trial_order(self, problem: Problem) -> float:
        """Return the rank in the order in which the integrator `auto` tries rules: small grids first, large ones last.

        The rules of panels of a single student field come in between.
        """
        if not reduce_to_fields_of_loss(problem).solver.proximal.HAS_PROX_SPACE:
            return np.inf
        return 1 if self.points <= ProxSpaceOptions.current().max_first_points else 3

    def rule_for_accuracy(self, accuracy: float) -> ProxSpaceRule:
        """Return the grid that neglects as many saddles of the Moreau objective as an accuracy of the overlaps allows.

        The error is about ten times the weight of the neglected saddles; a finer grid does not show it.
        """
        return replace(self, neglected=min(ProxSpaceOptions.current().max_neglected_weight, 1e-2 * accuracy))

    def rules_for_field_jacobian(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return the rules for averages of dg/domega, with g = V^(-1) (X - omega): two grids, or Sobol sets at jumps.

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return (Sobol(14),) if bistable > NEGLIGIBLE_JUMPS else (self, self.finer_rule())

    def rule_for_training_loss(self, bistable: float) -> ProxSpaceRule:
        """Return the grid with enough smoothing of jumps for an accurate training loss.

        With less smoothing the kink of the Moreau envelope at a jump causes a larger error.

        Args:
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return replace(self, blur=max(self.blur, ProxSpaceOptions.current().loss_blur)) if bistable > 0 else self

    def rule_for_numerical_jacobian(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return a grid for a numerical Jacobian of the saddle-point map; a small one for several student fields.

        Args:
            problem: problem whose saddle-point map is differentiated.
            sample: Sobol rule to return if this rule has replicates.

        Returns:
            the rule; the finite-difference step relative to the scale of each overlap matrix (None: choose a wide step
            for sampled averages); whether one-sided differences suffice.
        """
        if reduce_to_fields_of_loss(problem).solver.channel.FIELDS > 1:
            return min(self, PLANE_GRIDS[1], key=lambda r: r.points), 1e-6, True
        return self, 1e-4, False

    @classmethod
    def quadrature_rules_for_cross_check(cls, problem: Problem, bistable: float) -> tuple[ProxSpaceRule, ...]:
        """Return the grids that can cross-check averages by another family of rules, coarse to fine.

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        return PLANE_GRIDS[1:-1] if cls.is_applicable(problem) else ()

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether the rule applies: the loss has at most two student fields and a proximal-space integral."""
        channel = reduce_to_fields_of_loss(problem).solver.proximal
        return channel.HAS_PROX_SPACE and channel.FIELDS <= 2

    def finer_rule(self) -> ProxSpaceRule:
        """Return the grid with 7/5 of the nodes per axis of student and teacher fields."""
        return replace(self, points=self.points * 7 // 5, teacher=self.teacher * 7 // 5)

    def coarser_rule(self) -> ProxSpaceRule:
        """Return the grid with 5/7 of the nodes per axis of student and teacher fields."""
        return replace(self, points=self.points * 5 // 7, teacher=self.teacher * 5 // 7)

    def _prox_space_loop_arguments(
        self, problem: Problem, fields: FieldLaw, labels: Labels
    ) -> tuple[_Arguments, np.ndarray, SymmetryReduction]:
        """Return the arguments of the compiled loops over grid points, the smoothing lengths, and the symmetry group.

        Each node of the teacher field Y stands for its orbit under the symmetry group.
        """
        problem.require_zero_temperature("the integrator prox-space works")
        channel = problem.solver.proximal
        if channel.CORNERS:
            other = "pieces" if channel.FIELDS == 1 else "sobol"
            raise InputError(f"the integrator prox-space needs a loss without jumps of its derivative; use {other}")
        if not channel.HAS_PROX_SPACE:
            raise InputError(f"the integrator prox-space is for few student fields, not {channel.FIELDS}; use sobol")
        if self.points**channel.FIELDS > 5e6:
            raise InputError(
                f"the integrator prox-space needs {self.points}^{channel.FIELDS} > 5e6 grid points; use sobol"
            )
        dimension = problem.tokens * problem.teacher_rank + len(problem.noise_scale)
        if dimension > 2:
            # Equidistant nodes in so many axes are out of reach: as many in all as in a plane, where they do most.
            known = TeacherFieldRule.teacher_rule_for_loss(
                problem, fields, max(6, round(self.teacher ** (2 / dimension)))
            )
        else:
            known = TeacherFieldRule.teacher_rule_for_loss(problem, fields, self.teacher, equidistant=True)
        nodes, weights = known.nodes_and_weights
        reduction = SymmetryReduction.symmetries_of_law_and_nodes(problem, fields, labels, known.axes)
        edges = largest_proximal_points(problem, fields, labels, nodes[weights > _BOX_WEIGHT] if known.narrow else None)
        grid, volumes = tensor_product_rule(rule_for_each_proximal_field(problem, fields, edges, self.points))
        orbits = reduction.orbit_sizes(nodes, problem.teacher_rank)
        keep = (weights > 1e-14 * weights.max()) & (orbits > 0)
        tables = problem.solver.proximal
        known_nodes = (np.ascontiguousarray(each[keep]) for each in (nodes, weights, orbits))
        law = *fields.sampling_loop_arguments[:-1], problem.noise_scale, fields.constants
        teachers = tables.teacher_table(*known_nodes, *law)
        norms = np.exp(fields.log_normalisation) * volumes
        blur = self.blur * 2 * np.array(edges) / self.points
        arguments = (
            grid,
            tables.student_table(grid, fields.constants),
            teachers,
            fields.variance,
            fields.precision,
            fields.field_mean,
            fields.field_precision,
            norms,
            fields.constants,
            self.neglected / (len(grid) * int(np.sum(orbits))),
        )
        return arguments, blur, reduction

    def _averages_given_labels(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """Return the channel averages given the labels, as a single row (docs/theory.md (11.4)).

        The probability `bistable` of a second minimum is estimated by the weight of saddles (11.5); its `gap` is nan.

        Raises:
            DomainError: the overlaps are outside their domain.
            InputError: more fields or grid points than the rule handles, or a finite temperature.
        """
        channel, cut = problem.solver.channel, problem.tokens * problem.solver.channel.ROW
        arguments, blur, reduction = self._prox_space_loop_arguments(
            problem, field_law(problem, overlaps, labels), labels
        )
        out = sum_in_chunks(problem.solver.proximal.prox_space, cut + 5, *arguments, blur).sum(axis=0)
        moreau, loss, bistable, mass, unconverged = out[cut:]
        rows = reduction.average_moments_over_group(out[:cut], channel.ROW, channel.MOMENTS)
        return np.append(rows, [moreau, loss, bistable, np.nan, unconverged, mass])[None]

    def _jacobian_averages_given_labels(
        self, problem: Problem, overlaps: Overlaps, labels: Labels
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the averages of dg/domega, with g = V^(-1) (X - omega), and of its square; valid without jumps."""
        (slope, square, _), reduction = self._jacobian_averages_by_labels(problem, overlaps)[labels]
        return reduction.average_jacobian_over_group(slope.sum(axis=0))[
            None
        ], reduction.average_squared_jacobian_over_group(square.sum(axis=0))[None]

    def _jacobian_averages_by_labels(
        self, problem: Problem, overlaps: Overlaps
    ) -> dict[Labels, tuple[tuple[_Array, ...], SymmetryReduction]]:
        """Return the averages of dg/domega, with g = V^(-1) (X - omega), of its square, and of moment derivatives.

        They are sums over chunks of nodes, each with the symmetries over which they are to be averaged, for every label
        assignment. The derivatives are in the parameters of the law of the fields. The latest result is cached.
        """
        kept, key = problem.cached_result_of(_empty_field_jacobian_cache), (self, overlaps.pack().tobytes())
        if key not in kept:
            channel, L, s, found = problem.solver.proximal, problem.tokens, problem.student_rank, {}
            for labels, _ in problem.label_probabilities:
                fields = field_law(problem, overlaps, labels)
                arguments, _, reduction = self._prox_space_loop_arguments(problem, fields, labels)
                sizes = (L, s, s), (L, L, s, s, s, s), (L * channel.ROW, channel.LAW)
                sums = tuple(np.zeros((CHUNKS, *size)) for size in sizes)
                run_loop_in_threads(channel.prox_space_slopes, CHUNKS, CHUNKS, *arguments[:-1], *sums)
                found[labels] = sums, reduction
            kept.clear()
            kept[key] = found
        return kept[key]

    def _moment_derivatives_given_labels(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, units: UnitOverlaps, jumps: bool
    ) -> np.ndarray:
        """Return the derivatives of the channel moments with respect to the packed overlaps, given the labels."""
        channel = problem.solver.channel
        (*_, tangents), reduction = self._jacobian_averages_by_labels(problem, overlaps)[labels]
        if jumps:
            arguments, blur, _ = self._prox_space_loop_arguments(problem, field_law(problem, overlaps, labels), labels)
            moved = np.zeros_like(tangents)
            run_loop_in_threads(problem.solver.proximal.prox_space_jump_slopes, CHUNKS, CHUNKS, *arguments, blur, moved)
            tangents = tangents + moved
        out = tangents.sum(axis=0) @ field_law_derivatives(problem, overlaps, labels, units)
        return reduction.average_derivatives_over_group(out, channel.ROW, channel.MOMENTS, units, problem.clusters)


def _empty_field_jacobian_cache(problem: Problem) -> dict[tuple[ProxSpaceRule, bytes], Any]:
    """Return an empty cache: (grid, packed overlaps) -> averages of dg/domega, with g = V^(-1) (X - omega)."""
    return {}


def rule_for_each_proximal_field(
    problem: Problem, fields: FieldLaw, edges: list[float], points: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return quadrature nodes and weights for each student field X.

    Nodes are equidistant, or Gauss-Legendre nodes on panels if the loss has a kink in the field.

    Args:
        problem: problem that defines the loss.
        fields: law of the fields.
        edges: half the length of the interval of each field, which is centred at zero.
        points: nodes per axis, or per panel.
    """
    breaks: dict[int, list[float]] = {}
    for place, value in problem.kinks_along_single_fields(fields.constants):
        breaks.setdefault(place, []).append(value)
    axes = []
    for field, edge in enumerate(edges):
        if field in breaks:
            axes.append(gauss_legendre_on_panels(breaks[field], edge, points))
        else:
            nodes = np.linspace(-edge, edge, points)
            axes.append((nodes, np.full(points, nodes[1] - nodes[0])))
    return axes


def largest_proximal_points(
    problem: Problem, fields: FieldLaw, labels: Labels, known: np.ndarray | None = None
) -> list[float]:
    """Return an upper bound on each proximal field |X|, exceeded with a probability of about 1e-13.

    It is the maximum over proximal points on spheres in standard normal coordinates, with a safety margin.

    Args:
        problem: problem with a proximal map.
        fields: law of the fields.
        labels: label of every token.
        known: additional nodes of teacher fields and noise (one per row), for losses narrow there; None for none.
    """
    count = problem.tokens * (problem.teacher_rank + problem.student_rank)
    directions = sobol_normal_points(count + len(problem.noise_scale), 7, 77, (tuple(range(count)),))
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    nodes = np.concatenate([directions / norms * radius for radius in (2.0, 5.0, _BOX_RADIUS)])
    if known is not None:
        outer, count = problem.tokens * problem.teacher_rank, problem.tokens * problem.student_rank
        ways = np.concatenate([np.eye(count), -np.eye(count)])
        far = np.sqrt(np.maximum(_BOX_RADIUS**2 - (known**2).sum(axis=1), 0.0))
        rows = np.repeat(known, len(ways), axis=0)
        inner = (far[:, None, None] * ways).reshape(-1, count)
        nodes = np.concatenate([nodes, np.concatenate([rows[:, :outer], inner, rows[:, outer:]], axis=1)])
    points = np.concatenate(
        [proximal_points_at_nodes(problem, fields, nodes, 0, choice).x for choice in noise_value_indices(problem)]
    )
    points = points[np.isfinite(points).all(axis=(1, 2))]
    edges = 1.06 * np.abs(points).max(axis=0) + 1e-9
    # The same for tokens that the loss does not distinguish, whatever their fields: the grid has to change smoothly.
    for exchange in loss_symmetries(problem)[labels]:
        edges = np.maximum(edges, edges[exchange.source_token_indices])
    return [float(edge) for edge in edges.ravel()]


PLANE_GRIDS = (
    ProxSpaceRule(48, 24),
    ProxSpaceRule(64, 32),
    ProxSpaceRule(88, 44),
    ProxSpaceRule(120, 60),
    ProxSpaceRule(168, 84),
)
LINE_GRIDS = tuple(
    ProxSpaceRule(*sizes)
    for sizes in ((96, 48), (144, 72), (216, 108), (432, 160), (1000, 240), (2400, 360), (6000, 500))
)
