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
from ..channel.points import noise_values, proximal_points_at_nodes
from ..channel.shared import CHUNKS, sum_loop_in_chunks
from ..channel.tangents import field_law_derivatives
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
        loss_blur: grid steps over which jumps are smoothed for a training loss; wider smoothing costs conjugates
            accuracy on coarse grids, and improves the Moreau envelope on fine ones.
        coarser_weight: factor of the difference to a coarser grid in an error bar where the proximal map jumps. The
            error falls like the step cubed, with changing sign: the factor guards against a chance agreement with the
            finer grid.
        max_first_points: points per axis of X up to which grids are tried before panels of a single field.
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
    """A trapezoid rule in X and in the coordinates of Y, without a proximal map (docs/theory.md section 11).

    The rule sums over all critical points with the sign of det(I + V H), which is exact where the minimum is unique.
    Where there are two minima, the rule descends from every saddle to both and subtracts the higher one. The order of
    the two changes on the surface where the proximal map jumps. The step there is smoothed in X over `blur` grid steps
    by a kernel of sixth order: the sum converges fast there, too, and stays smooth in the overlaps.

    Args:
        points: trapezoid points per axis of X.
        teacher: nodes per axis of Y and of Gaussian noise (per panel at a kink).
        neglected: bound on the summed weight of the saddles that are too light to be corrected (infinity: none is
            corrected, and the error is about ten times the bistable weight).
        blur: grid steps over which the step at jumps is smoothed; 0 keeps it sharp.
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
        """Return the rule with a number of points per axis of X, and half as many per axis of Y.

        Args:
            points: size given by `--points`; None for the default.
            seed: seed given by `--seed`; a rule without replicates ignores it.
        """
        return cls(points or 80, max(16, (points or 80) // 2))

    def rule_description(self) -> dict[str, Any]:
        """Return the rule's name and size as in JSON output: points per axis of X and of Y; the seed is null."""
        return {"rule": self.name, "points": [self.points, self.teacher], "seed": None}

    @property
    def can_include_jump_derivatives(self) -> bool:
        """Return whether derivatives can include jumps: the step at a jump is smoothed, and has a derivative."""
        return self.blur > 0

    def node_count(self, problem: Problem) -> float:
        """Return the approximate number of nodes: those of X times those of at most two axes of Y and noise."""
        part = reduce_to_fields_of_loss(problem)
        fields = part.tokens * part.student_rank
        return float(self.points**fields * self.teacher ** min(part.dimension - fields, 2))

    def evaluation_cost(self, problem: Problem) -> float:
        """Return the evaluation cost, whose unit is a node of a grid in X."""
        return self.node_count(problem)

    def comparison_rules(self) -> tuple[ProxSpaceRule, ...]:
        """Return the coarser rule, the only one besides the finer rule that errors are estimated from.

        Nodes in X resolve the competition of minima, and the total weight is a better check than a third grid.
        """
        return (self.coarser_rule(),)

    def has_convergence_rate(self, bistable: float) -> bool:
        """Return whether errors fall at a constant rate from grid to grid: jumps of the proximal map are negligible.

        Args:
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return bistable <= NEGLIGIBLE_JUMPS

    def minimum_difference_factors(
        self, steps: Sequence[np.ndarray], averages: Sequence[SaddlePointAverages], derivative: bool
    ) -> tuple[float, ...]:
        """Return the minimum factors of the differences to other rules in an error bar.

        Where the proximal map jumps, the difference to the coarser grid counts. The error of an average is at most the
        bistable fraction; that of a derivative is its square root (next to a cusp, where it is largest, a surface of
        jumps of length l costs l^(3/2), and encloses l^(5/2)), a useful bound only where the fraction is negligible.

        Elsewhere the factor comes from the total weight, whose exact value is known. Kinks of the loss leave steps in
        |det(I + V H)|, so that the total weight converges as slowly and irregularly as the averages do.

        Args:
            steps: differences to the finer rule and to those of `comparison_rules`, in units of the quantity.
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
        """Return the grids through which a problem is solved, coarse to fine, for one student field or several."""
        return PLANE_GRIDS if reduce_to_fields_of_loss(problem).solver.channel.FIELDS > 1 else LINE_GRIDS

    def trial_order(self, problem: Problem) -> float:
        """Return the position in the order of trials: small grids before panels of a single field, large ones after."""
        if not reduce_to_fields_of_loss(problem).solver.proximal.HAS_PROX_SPACE:
            return np.inf
        return 1 if self.points <= ProxSpaceOptions.current().max_first_points else 3

    def rule_for_accuracy(self, accuracy: float) -> ProxSpaceRule:
        """Return the grid that leaves saddles uncorrected as far as an accuracy of the overlaps allows.

        Their error is about ten times their weight, and a comparison with a finer grid does not show it.
        """
        return replace(self, neglected=min(ProxSpaceOptions.current().max_neglected_weight, 1e-2 * accuracy))

    def rules_for_field_jacobian(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return the rules for averages of the field's Jacobian: this grid and the next, or Sobol sets at jumps.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return (Sobol(12),) if bistable > NEGLIGIBLE_JUMPS else (self, self.finer_rule())

    def rule_for_training_loss(self, bistable: float) -> ProxSpaceRule:
        """Return the grid with enough smoothing of jumps for an accurate training loss.

        Half a grid step of smoothing leaves an aliasing error of third order from the kink of M at a jump.

        Args:
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return replace(self, blur=max(self.blur, ProxSpaceOptions.current().loss_blur)) if bistable > 0 else self

    def rule_for_numerical_jacobian(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return a small grid for a numerical Jacobian in several fields, which is accurate enough for Newton's method.

        Args:
            problem: problem whose map is differentiated.
            sample: rule to use in place of a replicated rule.

        Returns:
            The rule, the step in block scales (None for wide steps), whether one-sided differences suffice.
        """
        if reduce_to_fields_of_loss(problem).solver.channel.FIELDS > 1:
            return min(self, PLANE_GRIDS[1], key=lambda r: r.points), 1e-6, True
        return self, 1e-4, False

    @classmethod
    def cross_check_rules(cls, problem: Problem, bistable: float) -> tuple[ProxSpaceRule, ...]:
        """Return the grids in X for a cross-check of another family's averages, coarse to fine.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return PLANE_GRIDS[1:-1] if cls.is_applicable(problem) else ()

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether the rule applies: the loss has at most two student fields and a proximal-space integral."""
        channel = reduce_to_fields_of_loss(problem).solver.proximal
        return channel.HAS_PROX_SPACE and channel.FIELDS <= 2

    def finer_rule(self) -> ProxSpaceRule:
        """Return the grid with 7/5 of the nodes per axis, of X and of Y."""
        return replace(self, points=self.points * 7 // 5, teacher=self.teacher * 7 // 5)

    def coarser_rule(self) -> ProxSpaceRule:
        """Return the grid with 5/7 of the nodes per axis, of X and of Y."""
        return replace(self, points=self.points * 5 // 7, teacher=self.teacher * 5 // 7)

    def _prox_space_loop_arguments(
        self, problem: Problem, fields: FieldLaw, labels: Labels
    ) -> tuple[_Arguments, np.ndarray, SymmetryReduction]:
        """Return the arguments of the generated prox-space loops, the smoothing lengths, and the token exchanges.

        The arguments begin after the number of chunks; each node of Y represents an orbit of the exchanges.
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
        reduction = SymmetryReduction.from_rule_nodes(problem, fields, labels, known.axes)
        edges = largest_proximal_points(problem, fields, labels, nodes[weights > _BOX_WEIGHT] if known.narrow else None)
        grid, volumes = tensor_product_rule(proximal_axis_rules(problem, fields, edges, self.points))
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
        """Return the averages given the labels by docs/theory.md (11.4), in the layout of `Rule`.

        `bistable` is the weight (11.5) of the saddles, `gap` is nan.

        Raises:
            DomainError: overlaps outside their domain.
            InputError: more fields or grid points than the rule handles, or a finite temperature.
        """
        channel, cut = problem.solver.channel, problem.tokens * problem.solver.channel.ROW
        arguments, blur, reduction = self._prox_space_loop_arguments(
            problem, field_law(problem, overlaps, labels), labels
        )
        out = sum_loop_in_chunks(problem.solver.proximal.prox_space, cut + 5, *arguments, blur).sum(axis=0)
        moreau, loss, bistable, mass, unconverged = out[cut:]
        rows = reduction.average_moments_over_group(out[:cut], channel.ROW, channel.MOMENTS)
        return np.append(rows, [moreau, loss, bistable, np.nan, unconverged, mass])[None]

    def _jacobian_averages_given_labels(
        self, problem: Problem, overlaps: Overlaps, labels: Labels
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the averages of the field's Jacobian given the labels; wrong where the proximal map jumps."""
        (slope, square, _), reduction = self._jacobian_averages_by_labels(problem, overlaps)[labels]
        return reduction.average_jacobian_over_group(slope.sum(axis=0))[
            None
        ], reduction.average_squared_jacobian_over_group(square.sum(axis=0))[None]

    def _jacobian_averages_by_labels(
        self, problem: Problem, overlaps: Overlaps
    ) -> dict[Labels, tuple[tuple[_Array, ...], SymmetryReduction]]:
        """Return averages of the field's Jacobian and derivatives of the moments for every label assignment.

        For every chunk, they are E[G_ll], E[G_ll' (x) G_ll'] and derivatives in the law of the fields. One loop
        computes all of them, and they are used one after the other: the latest result is cached.
        """
        kept, key = problem.compute_once(_empty_field_jacobian_cache), (self, overlaps.pack().tobytes())
        if key not in kept:
            channel, L, s, found = problem.solver.proximal, problem.tokens, problem.student_rank, {}
            for labels, _ in problem.label_choices:
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
        """Return the derivatives of the moments given the labels, with the correction at jumps if asked for."""
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
    """Return an empty cache of averages of the field's Jacobian, by grid and packed overlaps."""
    return {}


def proximal_axis_rules(
    problem: Problem, fields: FieldLaw, edges: list[float], points: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return nodes and weights for each proximal field X_la on [-edge, edge].

    Nodes are equidistant, or Gauss-Legendre nodes on panels if the loss has a kink in the field.

    Args:
        problem: problem that gives the kinks.
        fields: law of the fields.
        edges: largest value of every field.
        points: nodes per axis, or per panel.
    """
    breaks: dict[int, list[float]] = {}
    for place, value in problem.single_field_kinks(fields.constants):
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
    """Return the largest |X_prox| of each field over all omega and Y but for a measure of 1e-13.

    It is taken over proximal points on spheres in standard normal coordinates, with a safety margin.

    Args:
        problem: problem with a proximal map.
        fields: law of the fields.
        labels: label of every token.
        known: coordinates of Y and noise, (N, .), at which X may be large with little of the measure.
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
        [proximal_points_at_nodes(problem, fields, nodes, 0, choice).x for choice in noise_values(problem)]
    )
    points = points[np.isfinite(points).all(axis=(1, 2))]
    edges = 1.06 * np.abs(points).max(axis=0) + 1e-9
    # The same for tokens that the loss does not distinguish, whatever their fields: the grid has to change smoothly.
    for exchange in loss_symmetries(problem)[labels]:
        edges = np.maximum(edges, edges[exchange.token_order])
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
