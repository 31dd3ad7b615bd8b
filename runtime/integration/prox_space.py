"""Quadrature in proximal space: nodes on a grid of proximal points X, where fields and jumps are known explicitly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..base.threads import run_in_threads
from ..channel.exchange import Reduction
from ..channel.fields import Fields, field_law
from ..channel.nodes import gauss_legendre_on_panels, sobol_normal, tensor_product_rule
from ..channel.points import noise_values, proximal_points_at
from ..channel.shared import CHUNKS, sum_in_chunks
from ..channel.tangents import law_derivatives
from ..problems.overlaps import Overlaps, UnitOverlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_loss
from ..problems.symmetry import loss_exchanges
from .rule import DIFFERENCE_SAFETY, NEGLIGIBLE_JUMPS, Averages, Labels, Rule, largest_bistable_fraction
from .sampled import Sobol, TeacherRule

_BOX_RADIUS, _BOX_WEIGHT = 7.8, 1e-15  # the measure beyond is below 1e-13; weight of a node that may lie there
_MASS_ROUNDING = 1e-12  # of the total weight of a grid, including the part outside its box


@dataclass(frozen=True)
class ProxSpaceOptions(AlgorithmOptions):
    """Options of quadrature in proximal space.

    Attributes:
        loss_blur: grid steps over which jumps are smoothed for a training loss; wider costs the conjugates more on
            coarse grids, but the Moreau envelope less on fine ones.
        coarser_weight: of the difference to a coarser grid in an error bar where the proximal map jumps. The error
            falls like the step cubed, with changing sign; it guards against a chance agreement with the finer grid.
        max_first_points: an axis of X, of the grids that are tried before panels of a single field.
        max_neglected_weight: of saddles that are not corrected; the bound exceeds it a thousand times.
    """

    loss_blur: float = 0.8
    coarser_weight: float = 0.35
    max_first_points: int = 432
    max_neglected_weight: float = 1e-6


_Array = np.ndarray
_Arguments = tuple[_Array, _Array, _Array, _Array, _Array, _Array, _Array, _Array, _Array, float]
"""Arguments of the generated prox-space loops after the number of chunks, up to the weight of neglected saddles."""


@dataclass(frozen=True)
class ProxSpace(Rule):
    """A trapezoid rule in X and in the coordinates of Y, without a proximal map (docs/theory.md section 11).

    Sums over all critical points with the sign of det(I + V H): exact to all digits where the minimum is unique.
    Where there are two, the rule descends from every saddle to both and subtracts the higher one. The order of the two
    changes on the surface where the proximal map jumps; the step there is smoothed in X over `blur` grid steps by a
    kernel of sixth order, so that the sum converges fast there too and stays smooth in the overlaps. Without the
    smoothing every node that changes side changes the sum by its weight.

    Args:
        points: trapezoid points an axis of X.
        teacher: nodes an axis of Y and of Gaussian noise (a panel at a kink).
        neglected: bound on the summed weight of the saddles that are too light to be corrected (infinity: none is,
            which leaves the signed sum, with an error of about ten times the bistable weight).
        blur: 0 keeps the step sharp.
    """

    points: int = 80
    teacher: int = 40
    neglected: float = 1e-8
    blur: float = 0.5
    name: str = "prox-space"
    most_points: ClassVar[int] = 4096
    in_x: ClassVar[bool] = True

    @classmethod
    def with_size(cls, points: int | None, seed: int) -> ProxSpace:
        """Return the rule with so many points an axis of X, and half as many an axis of Y.

        Args:
            points: size that `--points` asks for; None for the default.
            seed: seed that `--seed` gives; a rule without replicates needs none.
        """
        return cls(points or 80, max(16, (points or 80) // 2))

    def describe(self) -> dict[str, Any]:
        """Return rule and points for the JSON contract: `points` are those an axis of X and of Y, the seed is null."""
        return {"rule": self.name, "points": [self.points, self.teacher], "seed": None}

    @property
    def can_include_jumps(self) -> bool:
        """Return whether the step at the jumps is smoothed, which gives it a derivative."""
        return self.blur > 0

    def node_count(self, problem: Problem) -> float:
        """Return the nodes of X times those of Y, whose axes beyond the second have in all as many as a plane."""
        part = reduce_to_loss(problem)
        fields = part.tokens * part.student_rank
        return float(self.points**fields * self.teacher ** min(part.dimension - fields, 2))

    def cost(self, problem: Problem) -> float:
        """Return the number of nodes, which is the unit."""
        return self.node_count(problem)

    def comparison_rules(self) -> tuple[ProxSpace, ...]:
        """Return one coarser rule.

        Nodes in X resolve the competition of minima, and the total weight shows more than a third grid.
        """
        return (self.coarser_rule(),)

    def has_rate(self, bistable: float) -> bool:
        """Return whether jumps are negligible: where they are not, grids agree by chance.

        Args:
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return bistable <= NEGLIGIBLE_JUMPS

    def least_difference_weights(
        self, steps: Sequence[np.ndarray], averages: Sequence[Averages], derivative: bool
    ) -> tuple[float, ...]:
        """Return the least factors of differences in an error bar.

        The coarser grid guards where the map jumps. The error of an average is at most the bistable fraction; that of a
        slope of it is the root of that (next to a cusp, where it is largest, the length l of the surface of jumps costs
        l^(3/2), and encloses l^(5/2)), which solutions magnify: a bound where the fraction is negligible only.

        Elsewhere the one integral that is known, the total weight, is used. Kinks of the loss leave steps in the weight
        |det(I + V H)|, so that it converges as slowly, and as irregularly, as the averages do: its error relative to
        its differences between the rules cannot agree by chance.

        Args:
            steps: differences to the finer rule and to those of `comparison_rules`, in units of the quantity.
            averages: its own first, then those of the same rules.
            derivative: whether the quantity contains slopes of the averages.
        """
        bistable = largest_bistable_fraction(averages)
        if bistable > 0:
            bound = np.sqrt(bistable) if self.has_rate(bistable) else np.inf
            cost = bound if derivative else bistable
            most = ProxSpaceOptions.current().coarser_weight
            guards = (min(most, cost / max(float(np.max(np.abs(step))), 1e-300)) for step in steps[1:2])
            return 0.0, *guards, *(0.0 for _ in steps[2:])
        missing = max(abs(averages[0].mass - 1) - _MASS_ROUNDING, 0.0)
        differs = max(abs(each.mass - averages[0].mass) for each in averages[1:])
        return (DIFFERENCE_SAFETY * missing / max(differs, _MASS_ROUNDING),) * len(steps)

    @classmethod
    def sizes(cls, problem: Problem) -> tuple[ProxSpace, ...]:
        """Return LINE_GRIDS for a single field, PLANE_GRIDS for more."""
        return PLANE_GRIDS if reduce_to_loss(problem).solver.channel.FIELDS > 1 else LINE_GRIDS

    def trial_order(self, problem: Problem) -> float:
        """Return a place before panels of a single field while nodes are few, and after them."""
        if not reduce_to_loss(problem).solver.proximal.HAS_PROX_SPACE:
            return np.inf
        return 1 if self.points <= ProxSpaceOptions.current().max_first_points else 3

    def rule_for_accuracy(self, accuracy: float) -> ProxSpace:
        """Return the grid with saddles of little weight left uncorrected.

        They cost about ten times their weight, which a finer grid does not show.
        """
        return replace(self, neglected=min(ProxSpaceOptions.current().max_neglected_weight, 1e-2 * accuracy))

    def rules_for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return this grid and the next; where the proximal map jumps, a rule that finds the global minimum.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return (Sobol(12),) if bistable > NEGLIGIBLE_JUMPS else (self, self.finer_rule())

    def rule_for_losses(self, bistable: float) -> ProxSpace:
        """Return the grid with enough smoothing for a training loss.

        Half a grid step of smoothing aliases the kink that a jump leaves in M: a third order. A wider one costs
        conjugates more on coarse grids, but M less on the fine ones.

        Args:
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return replace(self, blur=max(self.blur, ProxSpaceOptions.current().loss_blur)) if bistable > 0 else self

    def rule_for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return a small grid where there are several fields: Newton's method needs no more.

        Args:
            problem: problem whose map is differentiated.
            sample: rule that replaces a replicated one.

        Returns:
            rule, step in block scales (None for wide steps), whether one side suffices.
        """
        if reduce_to_loss(problem).solver.channel.FIELDS > 1:
            return min(self, PLANE_GRIDS[1], key=lambda r: r.points), 1e-6, True
        return self, 1e-4, False

    @classmethod
    def cross_check_rules(cls, problem: Problem, bistable: float) -> tuple[ProxSpace, ...]:
        """Return PLANE_GRIDS, but the first and the last.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        return PLANE_GRIDS[1:-1] if cls.is_applicable(problem) else ()

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether there are at most two fields, and the loss has a grid in them."""
        channel = reduce_to_loss(problem).solver.proximal
        return channel.HAS_PROX_SPACE and channel.FIELDS <= 2

    def finer_rule(self) -> ProxSpace:
        """Return the grid with 7/5 of the nodes an axis, of X and of Y."""
        return replace(self, points=self.points * 7 // 5, teacher=self.teacher * 7 // 5)

    def coarser_rule(self) -> ProxSpace:
        """Return the grid with 5/7 of the nodes an axis, of X and of Y."""
        return replace(self, points=self.points * 5 // 7, teacher=self.teacher * 5 // 7)

    def _loop_arguments(
        self, problem: Problem, fields: Fields, labels: Labels
    ) -> tuple[_Arguments, np.ndarray, Reduction]:
        """Return the arguments of the generated prox-space loops, the lengths to smooth over, and the exchanges.

        The arguments follow the number of chunks; averages over the nodes of Y that were kept represent the orbits of
        the exchanges.
        """
        problem.require_zero_temperature("the prox-space rule integrates")
        channel = problem.solver.proximal
        if channel.CORNERS:
            other = "pieces" if channel.FIELDS == 1 else "sobol"
            raise InputError(f"the prox-space rule is for losses whose slope does not jump; use {other}")
        if not channel.HAS_PROX_SPACE:
            raise InputError(
                f"the prox-space rule is for few student fields, and the loss depends on {channel.FIELDS}; use sobol"
            )
        if self.points**channel.FIELDS > 5e6:
            raise InputError(f"the prox-space rule would need {self.points}^{channel.FIELDS} grid points; use sobol")
        dimension = problem.tokens * problem.teacher_rank + len(problem.noise_scale)
        if dimension > 2:
            # Equidistant nodes in so many axes are out of reach: as many in all as in a plane, where they do most.
            known = TeacherRule.for_loss(problem, fields, max(6, round(self.teacher ** (2 / dimension))))
        else:
            known = TeacherRule.for_loss(problem, fields, self.teacher, equidistant=True)
        nodes, weights = known.rule
        reduction = Reduction.of_rule(problem, fields, labels, known.axes)
        edges = proximal_box(problem, fields, labels, nodes[weights > _BOX_WEIGHT] if known.narrow else None)
        grid, volumes = tensor_product_rule(student_axis_rules(problem, fields, edges, self.points))
        orbits = reduction.orbit_sizes(nodes, problem.teacher_rank)
        keep = (weights > 1e-14 * weights.max()) & (orbits > 0)
        tables = problem.solver.proximal
        known_nodes = (np.ascontiguousarray(each[keep]) for each in (nodes, weights, orbits))
        law = *fields.sampling_arguments[:-1], problem.noise_scale, fields.constants
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

    def _moment_sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """Return the sums of `Rule`, by docs/theory.md (11.4).

        `bistable` is the weight (11.5) of the saddles, `gap` nan.

        Raises:
            DomainError: overlaps outside their domain.
            InputError: more fields or grid points than the rule handles, or a finite temperature.
        """
        channel, cut = problem.solver.channel, problem.tokens * problem.solver.channel.ROW
        arguments, blur, reduction = self._loop_arguments(problem, field_law(problem, overlaps, labels), labels)
        out = sum_in_chunks(problem.solver.proximal.prox_space, cut + 5, *arguments, blur).sum(axis=0)
        moreau, loss, bistable, mass, unconverged = out[cut:]
        rows = reduction.average_moments(out[:cut], channel.ROW, channel.MOMENTS)
        return np.append(rows, [moreau, loss, bistable, np.nan, unconverged, mass])[None]

    def _slope_sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
        """Return the slope averages over all minima: use another rule where the proximal map jumps."""
        (slope, square, _), reduction = self._slope_averages_by_labels(problem, overlaps)[labels]
        return reduction.average_slope(slope.sum(axis=0))[None], reduction.average_square(square.sum(axis=0))[None]

    def _slope_averages_by_labels(
        self, problem: Problem, overlaps: Overlaps
    ) -> dict[Labels, tuple[tuple[_Array, ...], Reduction]]:
        """Return slope averages and derivatives of the token rows, of every chunk, for every label assignment.

        They are E[G_ll], E[G_ll' (x) G_ll'] and derivatives in the law of the fields. Slopes of the map and averages of
        the field's slope come from one loop, and are used one after the other: the last ones are cached.
        """
        kept, key = problem.compute_once(_empty_slope_cache), (self, overlaps.pack().tobytes())
        if key not in kept:
            channel, L, s, found = problem.solver.proximal, problem.tokens, problem.student_rank, {}
            for labels, _ in problem.label_choices:
                fields = field_law(problem, overlaps, labels)
                arguments, _, reduction = self._loop_arguments(problem, fields, labels)
                sizes = (L, s, s), (L, L, s, s, s, s), (L * channel.ROW, channel.LAW)
                sums = tuple(np.zeros((CHUNKS, *size)) for size in sizes)
                run_in_threads(channel.prox_space_slopes, CHUNKS, CHUNKS, *arguments[:-1], *sums)
                found[labels] = sums, reduction
            kept.clear()
            kept[key] = found
        return kept[key]

    def _moment_tangent_sums(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, units: UnitOverlaps, jumps: bool
    ) -> np.ndarray:
        """Return the derivatives, with the correction where the proximal map jumps; the step there must be smoothed."""
        channel = problem.solver.channel
        (*_, tangents), reduction = self._slope_averages_by_labels(problem, overlaps)[labels]
        if jumps:
            arguments, blur, _ = self._loop_arguments(problem, field_law(problem, overlaps, labels), labels)
            moved = np.zeros_like(tangents)
            run_in_threads(problem.solver.proximal.prox_space_jump_slopes, CHUNKS, CHUNKS, *arguments, blur, moved)
            tangents = tangents + moved
        out = tangents.sum(axis=0) @ law_derivatives(problem, overlaps, labels, units)
        return reduction.average_tangents(out, channel.ROW, channel.MOMENTS, units, problem.clusters)


def _empty_slope_cache(problem: Problem) -> dict[tuple[ProxSpace, bytes], Any]:
    """Return an empty cache of a problem's slopes by grid and packed overlaps."""
    return {}


def student_axis_rules(
    problem: Problem, fields: Fields, edges: list[float], points: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return nodes and weights for each field X_la on [-edge, edge].

    They are equidistant; Gauss-Legendre on panels where the model's loss has a kink in the field.

    Args:
        problem: problem that gives the kinks.
        fields: law of the fields.
        edges: of every field.
        points: nodes an axis, or a panel.
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


def proximal_box(problem: Problem, fields: Fields, labels: Labels, known: np.ndarray | None = None) -> list[float]:
    """Return the largest |X_prox| of each field over omega and Y out to where the measure is below 1e-13.

    It is found from proximal points on spheres in standard normal coordinates, with a margin between them.

    Args:
        problem: problem with a proximal map.
        fields: law of the fields.
        labels: label of every token.
        known: coordinates of Y and noise, (N, .), at which X may be large with little of the measure.
    """
    count = problem.tokens * (problem.teacher_rank + problem.student_rank)
    directions = sobol_normal(count + len(problem.noise_scale), 7, 77, (tuple(range(count)),))
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
        [proximal_points_at(problem, fields, nodes, 0, choice).x for choice in noise_values(problem)]
    )
    points = points[np.isfinite(points).all(axis=(1, 2))]
    edges = 1.06 * np.abs(points).max(axis=0) + 1e-9
    # The same for tokens that the loss does not distinguish, whatever their fields: the grid has to change smoothly.
    for exchange in loss_exchanges(problem)[labels]:
        edges = np.maximum(edges, edges[exchange.order])
    return [float(edge) for edge in edges.ravel()]


PLANE_GRIDS = (ProxSpace(48, 24), ProxSpace(64, 32), ProxSpace(88, 44), ProxSpace(120, 60), ProxSpace(168, 84))
LINE_GRIDS = tuple(
    ProxSpace(*sizes) for sizes in ((96, 48), (144, 72), (216, 108), (432, 160), (1000, 240), (2400, 360), (6000, 500))
)
