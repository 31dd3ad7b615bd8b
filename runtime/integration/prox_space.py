"""Nodes on a grid of proximal points: a rule that knows where the proximal map goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ..base.errors import InputError
from ..base.threads import share
from ..channel.exchange import Reduction
from ..channel.fields import Fields, fields_of
from ..channel.nodes import legendre, sobol_normal, tensor
from ..channel.points import noise_choices, points_at
from ..channel.shared import CHUNKS, summed
from ..channel.tangents import law_changes
from ..problems.overlaps import Overlaps, Units
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..problems.symmetry import loss_exchanges
from .rule import DIFFERENCE_SAFETY, NEGLIGIBLE_JUMPS, Averages, Labels, Rule, bistable_share
from .sampled import Sobol, TeacherRule

_LOSS_BLUR = 0.8
# Where the proximal map jumps the error falls like the step cubed, with changing sign: the difference to a coarser
# grid, scaled down by this, guards against a chance agreement with the finer one.
_COARSER_SHARE = 0.35
_EDGE, _FAR = 7.8, 1e-15  # where the measure is below 1e-13, and weight of a node that may lie beyond
_FEW_POINTS = 432  # an axis of X
_LIGHT = 1e-6  # weight of saddles that are not corrected at the most: the bound exceeds it a thousand times
_MASS_ROUNDING = 1e-12  # of the total weight of a grid, what lies beyond its box included

_Array = np.ndarray
_Arguments = tuple[_Array, _Array, _Array, _Array, _Array, _Array, _Array, _Array, _Array, float]
"""Of the generated prox-space loops after the number of chunks, up to the weight of saddles that are neglected."""


@dataclass(frozen=True)
class ProxSpace(Rule):
    """No proximal map: trapezoid rule in X and in the coordinates of Y (docs/theory.md section 11).

    Sums over all critical points with the sign of det(I + V H): exact to all digits where the minimum is unique.
    Where there are two, the rule descends from every saddle to both and takes the higher one away. Which one that is
    changes on the surface where the proximal map jumps; the step there is smoothed in X over `blur` grid steps by a
    kernel of sixth order, so that the sum converges fast there too and stays smooth in the overlaps. Without the
    smoothing every node that changes side moves the sum by its weight.

    Args:
        points: trapezoid points an axis of X; teacher: nodes an axis of Y and of Gaussian noise (a panel at a kink).
        neglected: bound on the summed weight of the saddles that are too light to be corrected (infinity: none is,
            which leaves the signed sum, off by about ten times the bistable weight).
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
    def of(cls, points: int | None, seed: int) -> ProxSpace:
        """Points an axis of X, half as many an axis of Y."""
        return cls(points or 80, max(16, (points or 80) // 2))

    def describe(self) -> dict[str, Any]:
        """As of `Rule`; `points` are those an axis of X and of Y, the seed is null."""
        return {"rule": self.name, "points": [self.points, self.teacher], "seed": None}

    @property
    def counts_jumps(self) -> bool:
        """Where the step at the jumps is smoothed, which gives it a derivative."""
        return self.blur > 0

    def nodes(self, problem: Problem) -> float:
        """X times Y, whose axes beyond the second have no more nodes in all than a plane."""
        part = integrated(problem)
        fields = part.tokens * part.student_rank
        return float(self.points**fields * self.teacher ** min(part.dimension - fields, 2))

    def cost(self, problem: Problem) -> float:
        """Its nodes: the unit."""
        return self.nodes(problem)

    def compared_with(self) -> tuple[ProxSpace, ...]:
        """Once: nodes in X know where minima compete, and the total weight tells more than a third grid."""
        return (self.coarser(),)

    def has_rate(self, bistable: float) -> bool:
        """Not where jumps count: grids agree there by chance."""
        return bistable <= NEGLIGIBLE_JUMPS

    def least_counts(
        self, steps: Sequence[np.ndarray], averages: Sequence[Averages], derivative: bool
    ) -> tuple[float, ...]:
        """The coarser grid guards where the map jumps. An average is off by the share that sees them at the most; a
        slope of it by the root of that (next to a cusp, where it is largest, the length l of the surface of jumps costs
        l^(3/2), and encloses l^(5/2)), which solutions magnify: a bound where the share is negligible only.

        Elsewhere the one integral that is known, the total weight, tells. Kinks of the loss leave steps in the weight
        |det(I + V H)|, so that it converges as slowly, and as irregularly, as the averages do: what it is off by,
        relative to how much it differs between the rules, cannot agree by chance.
        """
        bistable = bistable_share(averages)
        if bistable > 0:
            bound = np.sqrt(bistable) if self.has_rate(bistable) else np.inf
            cost = bound if derivative else bistable
            guards = (min(_COARSER_SHARE, cost / max(float(np.max(np.abs(step))), 1e-300)) for step in steps[1:2])
            return 0.0, *guards, *(0.0 for _ in steps[2:])
        missing = max(abs(averages[0].mass - 1) - _MASS_ROUNDING, 0.0)
        differs = max(abs(each.mass - averages[0].mass) for each in averages[1:])
        return (DIFFERENCE_SAFETY * missing / max(differs, _MASS_ROUNDING),) * len(steps)

    @classmethod
    def sizes(cls, problem: Problem) -> tuple[ProxSpace, ...]:
        """Return LINE_GRIDS for a single field, PLANE_GRIDS for more."""
        return PLANE_GRIDS if integrated(problem).solver.channel.FIELDS > 1 else LINE_GRIDS

    def rank(self, problem: Problem) -> float:
        """Return a place before panels of a single field while nodes are few, and after them."""
        if not integrated(problem).solver.proximal.HAS_PROX_SPACE:
            return np.inf
        return 1 if self.points <= _FEW_POINTS else 3

    def for_accuracy(self, accuracy: float) -> ProxSpace:
        """Return the grid with saddles of so little weight left uncorrected: they cost about ten times their weight,
        which a finer grid does not show."""
        return replace(self, neglected=min(_LIGHT, 1e-2 * accuracy))

    def for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Where the proximal map jumps a grid does not know which of its minima is the global one."""
        return (Sobol(12),) if bistable > NEGLIGIBLE_JUMPS else (self, self.finer())

    def for_losses(self, bistable: float) -> ProxSpace:
        """Half a grid step of smoothing aliases the kink that a jump leaves in M: a third order. A wider one costs hats
        more on coarse grids, but M less on the fine ones."""
        return replace(self, blur=max(self.blur, _LOSS_BLUR)) if bistable > 0 else self

    def for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """A small grid where there are several fields: Newton's method needs no more."""
        if integrated(problem).solver.channel.FIELDS > 1:
            return min(self, PLANE_GRIDS[1], key=lambda r: r.points), 1e-6, True
        return self, 1e-4, False

    @classmethod
    def opinions(cls, problem: Problem, bistable: float) -> tuple[ProxSpace, ...]:
        """Of PLANE_GRIDS, but its ends."""
        return PLANE_GRIDS[1:-1] if cls.suits(problem) else ()

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Where there are no more than two fields, and the loss has a grid in them."""
        channel = integrated(problem).solver.proximal
        return channel.HAS_PROX_SPACE and channel.FIELDS <= 2

    def finer(self) -> ProxSpace:
        """As of `Rule`: 7/5 of the nodes an axis, of X and of Y."""
        return replace(self, points=self.points * 7 // 5, teacher=self.teacher * 7 // 5)

    def coarser(self) -> ProxSpace:
        """As of `Rule`: 5/7 of the nodes an axis, of X and of Y."""
        return replace(self, points=self.points * 5 // 7, teacher=self.teacher * 5 // 7)

    def _prepared(self, problem: Problem, fields: Fields, labels: Labels) -> tuple[_Arguments, np.ndarray, Reduction]:
        """What the generated prox-space loops take after the number of chunks, the lengths to smooth over, and what
        the averages over the nodes of Y that were kept stand for."""
        problem.only_at_zero_temperature("the prox-space rule integrates")
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
            known = TeacherRule.of(problem, fields, max(6, round(self.teacher ** (2 / dimension))))
        else:
            known = TeacherRule.of(problem, fields, self.teacher, equidistant=True)
        nodes, weights = known.rule
        reduction = Reduction.of(problem, fields, labels, known.axes)
        edges = prox_box(problem, fields, labels, nodes[weights > _FAR] if known.narrow else None)
        grid, volumes = tensor(student_axes(problem, fields, edges, self.points))
        orbits = reduction.orbits(nodes, problem.teacher_rank)
        keep = (weights > 1e-14 * weights.max()) & (orbits > 0)
        tables = problem.solver.proximal
        known_nodes = (np.ascontiguousarray(each[keep]) for each in (nodes, weights, orbits))
        law = *fields.sampling[:-1], problem.noise_scale, fields.constants
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

    def _sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """As of `Rule`, by docs/theory.md (11.4): `bistable` is the weight (11.5) of the saddles, `gap` nan.

        Raises:
            DomainError: overlaps outside their domain.
            InputError: more fields or grid points than the rule handles, or a finite temperature.
        """
        channel, cut = problem.solver.channel, problem.tokens * problem.solver.channel.ROW
        arguments, blur, reduction = self._prepared(problem, fields_of(problem, overlaps, labels), labels)
        out = summed(problem.solver.proximal.prox_space, cut + 5, *arguments, blur).sum(axis=0)
        moreau, loss, bistable, mass, unconverged = out[cut:]
        rows = reduction.moments(out[:cut], channel.ROW, channel.MOMENTS)
        return np.append(rows, [moreau, loss, bistable, np.nan, unconverged, mass])[None]

    def _slope_sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
        """Over all minima: where the proximal map jumps, use a rule that knows the global one."""
        (slope, square, _), reduction = self._slopes(problem, overlaps)[labels]
        return reduction.slope(slope.sum(axis=0))[None], reduction.square(square.sum(axis=0))[None]

    def _slopes(self, problem: Problem, overlaps: Overlaps) -> dict[Labels, tuple[tuple[_Array, ...], Reduction]]:
        """E[G_ll], E[G_ll' (x) G_ll'] and derivatives of the token rows, of every chunk, for every label assignment.

        Slopes of the map and averages of the field's slope come of one loop, and are asked for one after the other: the
        last ones are kept.
        """
        kept, key = problem.once(_last_slopes), (self, overlaps.pack().tobytes())
        if key not in kept:
            channel, L, s, found = problem.solver.proximal, problem.tokens, problem.student_rank, {}
            for labels, _ in problem.label_choices:
                fields = fields_of(problem, overlaps, labels)
                arguments, _, reduction = self._prepared(problem, fields, labels)
                sizes = (L, s, s), (L, L, s, s, s, s), (L * channel.ROW, channel.LAW)
                sums = tuple(np.zeros((CHUNKS, *size)) for size in sizes)
                share(channel.prox_space_slopes, CHUNKS, CHUNKS, *arguments[:-1], *sums)
                found[labels] = sums, reduction
            kept.clear()
            kept[key] = found
        return kept[key]

    def _tangents(self, problem: Problem, overlaps: Overlaps, labels: Labels, units: Units, jumps: bool) -> np.ndarray:
        """With the correction where the proximal map jumps; the step there must be smoothed."""
        channel = problem.solver.channel
        (*_, tangents), reduction = self._slopes(problem, overlaps)[labels]
        if jumps:
            arguments, blur, _ = self._prepared(problem, fields_of(problem, overlaps, labels), labels)
            moved = np.zeros_like(tangents)
            share(problem.solver.proximal.prox_space_jump_slopes, CHUNKS, CHUNKS, *arguments, blur, moved)
            tangents = tangents + moved
        out = tangents.sum(axis=0) @ law_changes(problem, overlaps, labels, units)
        return reduction.tangents(out, channel.ROW, channel.MOMENTS, units, problem.clusters)


def _last_slopes(problem: Problem) -> dict[tuple[ProxSpace, bytes], Any]:
    """Of this problem by a grid at packed overlaps; none yet."""
    return {}


def student_axes(
    problem: Problem, fields: Fields, edges: list[float], points: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Nodes and weights for each field X_la on [-edge, edge].

    Equidistant; Gauss-Legendre on panels where the model's loss has a kink in the field.
    """
    breaks: dict[int, list[float]] = {}
    for place, value in problem.kinked_fields(fields.constants):
        breaks.setdefault(place, []).append(value)
    axes = []
    for field, edge in enumerate(edges):
        if field in breaks:
            axes.append(legendre(breaks[field], edge, points))
        else:
            nodes = np.linspace(-edge, edge, points)
            axes.append((nodes, np.full(points, nodes[1] - nodes[0])))
    return axes


def prox_box(problem: Problem, fields: Fields, labels: Labels, known: np.ndarray | None = None) -> list[float]:
    """Largest |X_prox| of each field over omega and Y out to where the measure is below 1e-13.

    Found from proximal points on spheres in standard normal coordinates, with a margin for what lies between them.

    Args:
        known: coordinates of Y and noise, (N, .), at which X may be far off within little of the measure.
    """
    count = problem.tokens * (problem.teacher_rank + problem.student_rank)
    directions = sobol_normal(count + len(problem.noise_scale), 7, 77, (tuple(range(count)),))
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    nodes = np.concatenate([directions / norms * radius for radius in (2.0, 5.0, _EDGE)])
    if known is not None:
        outer, count = problem.tokens * problem.teacher_rank, problem.tokens * problem.student_rank
        ways = np.concatenate([np.eye(count), -np.eye(count)])
        far = np.sqrt(np.maximum(_EDGE**2 - (known**2).sum(axis=1), 0.0))
        rows = np.repeat(known, len(ways), axis=0)
        inner = (far[:, None, None] * ways).reshape(-1, count)
        nodes = np.concatenate([nodes, np.concatenate([rows[:, :outer], inner, rows[:, outer:]], axis=1)])
    points = np.concatenate([points_at(problem, fields, nodes, 0, choice).x for choice in noise_choices(problem)])
    points = points[np.isfinite(points).all(axis=(1, 2))]
    edges = 1.06 * np.abs(points).max(axis=0) + 1e-9
    # The same for tokens that the loss does not tell apart, whatever their fields: the grid is to move smoothly.
    for exchange in loss_exchanges(problem)[labels]:
        edges = np.maximum(edges, edges[exchange.order])
    return [float(edge) for edge in edges.ravel()]


PLANE_GRIDS = (ProxSpace(48, 24), ProxSpace(64, 32), ProxSpace(88, 44), ProxSpace(120, 60), ProxSpace(168, 84))
LINE_GRIDS = tuple(
    ProxSpace(*sizes) for sizes in ((96, 48), (144, 72), (216, 108), (432, 160), (1000, 240), (2400, 360), (6000, 500))
)
