"""Rules whose nodes are points in the fields: products of Gauss-Hermite, Sobol sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..base.errors import InputError
from ..channel import boltzmann
from ..channel.exchange import Reduction
from ..channel.fields import Fields, fields_of
from ..channel.nodes import gauss_hermite, sobol_normal, tensor
from ..channel.points import slopes_at
from ..channel.shared import rows
from ..channel.tangents import law_changes_in_nodes, node_tangents
from ..problems.overlaps import Overlaps, Units
from ..problems.problem import Problem
from ..problems.reduced import integrated
from .cells import MOST_AXES, Cells, has_narrow, scales_of
from .panels import divided
from .rule import NEGLIGIBLE_JUMPS, Labels, Rule
from .splitting import Split

Nodes = tuple[np.ndarray, np.ndarray]
NodeSets = list[Nodes]
"""Nodes (N, n) and weights (N,), a pair a replicate."""
Integrand = Literal["averages", "tangents", "slopes"]

FINER = 1.25  # from one rule to the next, of the nodes an axis of X at a finite temperature
NEAR_CUSP = 0.15  # of det(I + V H)
_MOST_NEAR = 1.6  # times what a cusp has below NEAR_CUSP: between the powers 5/2 and 3/2
MOST_NODES = 3e6  # of a product rule in omega, each with a proximal point
FEW = 3  # dimensions, in which a product has more digits than lines or a lattice
_OPINIONS = (24, 36, 54, 80, 120, 180)  # nodes an axis of products that look again at what other rules gave
_DENSITY = 2.0  # standard deviations over which a normal density changes by order one
_LEAST, _SHARED = 4, 8  # nodes an axis of a cell: so many, and one for so many of those an axis elsewhere
_MOST_WARM = 2e9  # losses evaluated by a product rule at a finite temperature, X and omega together
_COPIES = 4  # of a Sobol set, by signs
_GAIN = 0.85  # error in powers of two per size of Sobol sets, each twice the one before


def teacher_split(problem: Problem, fields: Fields) -> Split:
    """Planes on which the loss is not smooth in Y and Gaussian noise, whatever X, in standard normal coordinates."""
    return Split.of(*_teacher_planes(problem, fields, "loss"))


def _teacher_planes(problem: Problem, fields: Fields, *of: str) -> tuple[np.ndarray, int]:
    """Return planes in Y and Gaussian noise, in standard normal coordinates, and the number of these."""
    outer, inner = problem.tokens * problem.teacher_rank, problem.tokens * problem.student_rank
    planes = np.concatenate([problem.planes(name, fields.constants) for name in of])
    known = fields.in_nodes(planes[~planes[:, :inner].any(axis=1)], problem.noise_scale)
    return np.delete(known, range(outer, outer + inner), axis=1), problem.dimension - inner


def narrow_cells(problem: Problem, fields: Fields) -> Cells | None:
    """Return cells in Y and Gaussian noise that resolve what of the loss is narrow there, whatever X; None where
    nothing is, or where they are too many."""
    scales, dimension = scales_of(problem, fields, "teacher"), problem.dimension - problem.tokens * problem.student_rank
    if scales is None or dimension > MOST_AXES or not has_narrow(scales, dimension):
        return None
    known = scales

    def with_density(nodes: np.ndarray) -> np.ndarray:
        return np.concatenate([known(nodes), nodes / _DENSITY], axis=1)

    return Cells.between(*_teacher_planes(problem, fields, "loss", "teacher_places")).resolving(with_density)


def teacher_edges(problem: Problem, fields: Fields, reach: float, longest: float) -> np.ndarray:
    """Return ends of panels of the only coordinate of Y or noise, ascending: none longer than asked for, between the
    kinks of the loss, and as short as what is narrow in it."""
    cells = narrow_cells(problem, fields)
    places = teacher_split(problem, fields).places(reach) if cells is None else cells.edges[np.abs(cells.edges) < reach]
    return divided(np.array([-reach, *places, reach]), longest)


@dataclass(frozen=True)
class TeacherRule:
    """A rule for the coordinates of Y and of Gaussian noise, in panels or cells where the loss is narrow there.

    Attributes:
        axes: nodes and weights of each coordinate where it is a product of them, else None.
        make: what makes its nodes and weights.
        narrow: whether the nodes follow what is narrow in the loss.
    """

    axes: tuple[Nodes, ...] | None
    make: Callable[[], Nodes]
    narrow: bool = False

    @classmethod
    def of(cls, problem: Problem, fields: Fields, points: int, equidistant: bool = False) -> TeacherRule:
        """Panels between the planes on which the loss is not smooth in Y and noise, whatever X; else Gauss-Hermite, or
        equidistant nodes."""
        if problem.dimension == problem.tokens * problem.student_rank:
            return cls((), partial(tensor, []))
        cells = narrow_cells(problem, fields)
        if cells is not None:
            nodes, weights = (each.reshape(-1, *each.shape[2:]) for each in cells.rule(_LEAST + points // _SHARED))
            axes: tuple[Nodes, ...] | None = ((nodes[:, 0], weights),) if cells.dimension == 1 else None
            return cls(axes, lambda: (nodes, weights), narrow=True)
        split = teacher_split(problem, fields)
        if split.is_product:
            axes = tuple(split.axes(points, equidistant))
            return cls(axes, partial(tensor, list(axes)))
        return cls(None, partial(split.rule, points, equidistant))

    @cached_property
    def rule(self) -> Nodes:
        """Return nodes (N, L t + U) and weights (N,)."""
        return self.make()


def product_with_fields(rule: Nodes, axes: list[Nodes], outer: int) -> Nodes:
    """Return nodes in (z_Y, z_omega, noise) and weights: the product with axes of z_omega after `outer` of the rule."""
    (nodes, weights), (inner, shares) = rule, tensor(axes)
    known = np.repeat(nodes, len(inner), axis=0)
    nodes = np.concatenate([known[:, :outer], np.tile(inner, (len(nodes), 1)), known[:, outer:]], axis=1)
    return nodes, np.multiply.outer(weights, shares).ravel()


class Sampled(Rule):
    """Shared by the rules that visit nodes in (Y, noise, omega) and solve for the proximal point there, or average over
    the Boltzmann law of the fields at a finite temperature.

    Attributes:
        inner: refines the integral over the fields at a finite temperature.
    """

    starts: int | None
    inner: float
    at_temperature: ClassVar[bool] = True

    def reduction_of(self, problem: Problem, fields: Fields, labels: Labels) -> Reduction:
        """Return the exchanges that leave the fields and the nodes as they are."""
        return Reduction(())

    def node_sets(self, problem: Problem, fields: Fields, reduction: Reduction, of: Integrand = "averages") -> NodeSets:
        """Return nodes (N, L (t + s) + Gaussian noise) in (z_Y, z_omega, noise) and weights of every replicate, over
        all fields of the problem.

        Args:
            of: what is averaged: at "tangents" polynomials in the law of the fields, too; at "slopes" (dg/domega)^2,
                which is steep where 1 + V l'' nearly vanishes.
        """
        raise NotImplementedError

    def _nodes_given(
        self, problem: Problem, overlaps: Overlaps, labels: Labels, of: Integrand
    ) -> tuple[Fields, Reduction, NodeSets]:
        fields = fields_of(problem, overlaps, labels)
        reduction = self.reduction_of(problem, fields, labels)
        return fields, reduction, self.node_sets(problem, fields, reduction, of)

    def _sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> np.ndarray:
        """As of `Rule`: a replicate for every set of nodes."""
        channel, cut, found = problem.solver.channel, problem.tokens * problem.solver.channel.ROW, []
        fields, reduction, sets = self._nodes_given(problem, overlaps, labels, "averages")
        for nodes, weights in sets:
            out = self._visit(problem, fields, nodes, weights).sum(axis=0)
            out = reduction.moments(out, channel.ROW, channel.MOMENTS)
            found.append(np.append(out[: cut + 4], [out[cut + 4] / len(nodes), weights.sum()]))
        return np.array(found)

    def _visit(self, problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray) -> np.ndarray:
        if problem.inverse_temperature is not None:
            return boltzmann.sums(problem, fields, nodes, weights, self.inner)
        channel = problem.solver.proximal
        law = *fields.sampling, fields.precision, problem.noise_scale, fields.constants
        search = problem.search if self.starts is None else self.starts
        return rows(channel, channel.sample, nodes, weights, *law, search)

    def _slopes(
        self, problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """det(I + V H) (1 at a finite temperature, where nothing is singular), weights and G = dg/domega."""
        if problem.inverse_temperature is not None:
            shares, matrices = boltzmann.slopes(problem, fields, nodes, weights, self.inner)
            return np.ones(len(shares)), shares, matrices
        return slopes_at(problem, fields, nodes, weights, self.starts)

    def _slope_sums(self, problem: Problem, overlaps: Overlaps, labels: Labels) -> tuple[np.ndarray, np.ndarray]:
        """As of `Rule`: a replicate for every set of nodes; what lies near a cusp follows docs/theory.md (11.6)."""
        near, shape = -np.inf if self.resolves_squares else NEAR_CUSP, [problem.tokens, problem.student_rank] * 2
        fields, reduction, sets = self._nodes_given(problem, overlaps, labels, "slopes")
        found = (self._slopes(problem, fields, nodes, weights) for nodes, weights in sets)
        parts = [_slope_averages(det, shares, G.reshape(-1, *shape), near) for det, shares, G in found]
        slopes, squares = zip(*parts, strict=True)
        return np.stack([*map(reduction.slope, slopes)]), np.stack([*map(reduction.square, squares)])

    def _tangents(self, problem: Problem, overlaps: Overlaps, labels: Labels, units: Units, jumps: bool) -> np.ndarray:
        """Of the mean over the sets, where the proximal map is smooth: jumps between nodes are not seen."""
        problem.only_at_zero_temperature("derivatives of averages over nodes are printed")
        channel = problem.solver.channel
        fields, reduction, sets = self._nodes_given(problem, overlaps, labels, "tangents")
        out = sum(node_tangents(problem, fields, nodes, weights, self.starts) for nodes, weights in sets)
        out = np.tensordot(out / len(sets), law_changes_in_nodes(problem, overlaps, labels, fields, units), 3)
        return reduction.tangents(out, channel.ROW, channel.MOMENTS, units, problem.clusters)


@dataclass(frozen=True)
class PointRule(Sampled):
    """A rule of `points` nodes an axis or a panel, half as many again in the next size.

    Args:
        starts: as of `points_at`; None for what the problem says.
    """

    points: int = 16
    starts: int | None = None
    fewest: ClassVar[int] = 4

    @classmethod
    def of(cls, points: int | None, seed: int) -> Self:
        """As of `Rule`; the size is the number of nodes."""
        return cls() if points is None else cls(points)

    def describe(self) -> dict[str, Any]:
        """As of `Rule`; the seed is null."""
        return {"rule": self.name, "points": self.points, "seed": None}

    def finer(self) -> Self:
        """As of `Rule`: half as many nodes again."""
        return replace(self, points=self.points * 3 // 2)

    def coarser(self) -> Self:
        """As of `Rule`: two thirds of the nodes, but the fewest or more."""
        return replace(self, points=max(self.fewest, self.points * 2 // 3))


def _slope_averages(
    determinants: np.ndarray, weights: np.ndarray, matrices: np.ndarray, cusp: float
) -> tuple[np.ndarray, np.ndarray]:
    """E[G_ll] (L, s, s) and E[G_ll' (x) G_ll'] (L, L, s, s, s, s) from G (N, L, s, L, s) at nodes.

    Args:
        cusp: of det(I + V H), below which nodes are too few to count.
    """
    slope = np.einsum("n,nlalb->lab", weights, matrices)
    near = determinants < cusp
    shell = (determinants < 2 * cusp) & ~near
    away, around, inside = (
        np.einsum("n,nlarb,nlerf->lraebf", weights[part], matrices[part], matrices[part], optimize=True)
        for part in (~(near | shell), shell, near)
    )
    return slope, beyond_cusps(away, around, inside, float(weights[shell].sum()), float(weights[near].sum()))


def beyond_cusps(
    away: np.ndarray, shell: np.ndarray, near: np.ndarray, shell_weight: float, near_weight: float
) -> np.ndarray:
    """E[G (x) G], from what nodes away from cusps, in the shell around them and near them add to it.

    At a cusp, where jumps begin, det = det(I + V H) vanishes and G like 1 / det. Few nodes come near: of the measure,
    det < e holds a share e^(5/2), so that E[G (x) G; det < e] = E[G (x) G; e < det < 2 e] / (2^(1/2) - 1). What lies
    below NEAR_CUSP is taken from there, where the counts agree with it: without a cusp nothing may lie below, and where
    det nearly vanishes along a line more does, a share e^(3/2).
    """
    ratio = near_weight * (2**2.5 - 1) / max(shell_weight, 1e-300)
    if 1 / 3 < ratio < _MOST_NEAR:
        near = shell / (np.sqrt(2) - 1)
    return away + shell + near


def is_smooth(problem: Problem, bistable: float) -> bool:
    """Whether the proximal map neither jumps nor has corners in several fields, which no other rule knows of."""
    part = integrated(problem).solver
    bends = problem.inverse_temperature is None and part.channel.FIELDS > 1 and part.proximal.CORNERS
    return bistable <= NEGLIGIBLE_JUMPS and not bends


@dataclass(frozen=True)
class GaussHermite(PointRule):
    """Product rule with `points` nodes an axis (split at the loss's kinks in Y and noise), proximal map at every node.

    Args:
        starts: None looks for the global minimum as the problem says; 0 follows the first start only, as coarse
            solvers do.
    """

    name: str = "gauss-hermite"
    most_points: ClassVar[int] = 512
    blind: ClassVar[bool] = True
    inner: float = 1.0

    def reduction_of(self, problem: Problem, fields: Fields, labels: Labels) -> Reduction:
        """Return the exchanges, as of `Sampled`."""
        return Reduction.of(problem, fields, labels, TeacherRule.of(problem, fields, self.points).axes)

    def node_sets(self, problem: Problem, fields: Fields, reduction: Reduction, of: Integrand = "averages") -> NodeSets:
        """Return nodes and weights, as of `Sampled`."""
        fields_of_student = problem.tokens * problem.student_rank
        count = float(self.points) ** problem.dimension
        if count > 2e8:
            raise InputError(f"Gauss-Hermite with {self.points} nodes an axis needs {count:.1e} nodes; use sobol")
        nodes, weights = TeacherRule.of(problem, fields, self.points).rule
        orbits = reduction.orbits(nodes, problem.teacher_rank)
        kept = nodes[orbits > 0], (weights * orbits)[orbits > 0]
        axes = [gauss_hermite(self.points)] * fields_of_student
        return [product_with_fields(kept, axes, problem.tokens * problem.teacher_rank)]

    def nodes(self, problem: Problem) -> float:
        """The full product in Y, noise and omega, as far as they are read."""
        return float(self.points) ** integrated(problem).dimension

    def is_affordable_at_temperature(self, problem: Problem) -> bool:
        """Whether the losses that it evaluates at a finite temperature, X and omega together, are within reach."""
        part = integrated(problem)
        inner = float(boltzmann.nodes_in_fields(part, self.inner)) ** part.solver.thermal.FIELDS
        return self.nodes(part) * len(part.label_choices) * inner <= _MOST_WARM

    @classmethod
    def sizes(cls, problem: Problem) -> tuple[GaussHermite, ...]:
        """Return PRODUCTS."""
        return PRODUCTS

    def for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """A Sobol set where the next finer product has too many nodes."""
        return (Sobol(12),) if self.finer().nodes(problem) > MOST_NODES else (self, self.finer())

    def for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """A small product at a finite temperature, where each node has a law of the fields to average over."""
        if problem.inverse_temperature is not None and integrated(problem).dimension > 2:
            return min(self, WARM_PRODUCTS[1], key=lambda r: r.points), 1e-5, True
        return self, 1e-4, False

    @classmethod
    def opinions(cls, problem: Problem, bistable: float) -> tuple[GaussHermite, ...]:
        """In few dimensions, where the proximal map neither jumps nor bends in several fields."""
        smooth = integrated(problem).dimension <= FEW and is_smooth(problem, bistable)
        levels = (cls(points) for points in _OPINIONS if smooth)
        return tuple(level for level in levels if level.nodes(problem) <= MOST_NODES)

    def finer(self) -> GaussHermite:
        """As of `Rule`: half as many nodes again (two at least) an axis, and more of X at a finite temperature."""
        return replace(self, points=max(self.points + 2, self.points * 3 // 2), inner=FINER * self.inner)

    def coarser(self) -> GaussHermite:
        """As of `Rule`: two thirds of the nodes an axis, but two or more, and fewer of X at a finite temperature."""
        return replace(self, points=max(2, min(self.points - 2, self.points * 2 // 3)), inner=self.inner / FINER)


PRODUCTS = tuple(GaussHermite(points) for points in (12, 18, 28, 42, 64))
# At a finite temperature everything is smooth; the colder, the more nodes.
WARM_PRODUCTS = tuple(GaussHermite(points) for points in (8, 12, 18, 28, 42, 64, 96, 144))


@dataclass(frozen=True)
class Sobol(Sampled):
    """`scramblings` independent scrambled Sobol sets of 2^log2 points each (times sign flips), proximal map at each.

    The spread over scramblings is the error estimate. Teacher and student coordinates are flipped separately.

    Args:
        first: number of the first scrambling; `replicate` gives a rule of one.
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
    def of(cls, points: int | None, seed: int) -> Sobol:
        """The logarithm of the points in a set, to base 2."""
        return cls(points or 13, seed=seed)

    def describe(self) -> dict[str, Any]:
        """As of `Rule`; `points` are those of all scramblings together, sign flips left out."""
        return {"rule": self.name, "points": self.scramblings * 2**self.log2, "seed": self.seed}

    def node_sets(self, problem: Problem, fields: Fields, reduction: Reduction, of: Integrand = "averages") -> NodeSets:
        """Return nodes and weights, as of `Sampled`."""
        teacher = tuple(range(problem.tokens * problem.teacher_rank))
        student = tuple(range(len(teacher), len(teacher) + problem.tokens * problem.student_rank))
        sets = []
        for k in range(self.first, self.first + self.scramblings):
            groups = tuple(filter(None, (teacher, student)))
            nodes = sobol_normal(problem.dimension, self.log2, 1000 * self.seed + k, groups)
            sets.append((nodes, np.full(len(nodes), 1 / len(nodes))))
        return sets

    def nodes(self, problem: Problem) -> float:
        """Of all sets together."""
        return float(self.scramblings * 2**self.log2)

    @classmethod
    def sizes(cls, problem: Problem) -> tuple[Sobol, ...]:
        """Return SAMPLES."""
        return SAMPLES

    def beyond(self, problem: Problem) -> list[Sobol]:
        """Return the finer sets, with the same seed."""
        return [size.seeded(self.seed) for size in super().beyond(problem)]

    def sizes_ahead(self, error: float, accuracy: float) -> int:
        """Return the number of sizes after which errors are expected to meet the accuracy, by how fast they fall."""
        return max(1, round(float(np.log2(error / accuracy)) / _GAIN))

    def nodes_for(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return the nodes at which the error is expected to have fallen to the accuracy."""
        return _COPIES * self.nodes(problem) * max(1.0, error / accuracy) ** (1 / _GAIN)

    def for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """One rule, whose replicates tell the error, of 2^12 points a set at the most."""
        return (replace(self, log2=min(self.log2, 12)),)

    def for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """A smaller set `sample` with wide steps, so that many nodes swap their minimum within one."""
        return sample.seeded(self.seed), None, False

    def tolerance(self, accuracy: float) -> float:
        """A fiftieth of the accuracy."""
        return max(1e-9, 0.02 * accuracy)

    @classmethod
    def opinions(cls, problem: Problem, bistable: float) -> tuple[Sobol, ...]:
        """Where the proximal map jumps, or bends in several fields: two, the finer of half the noise or less."""
        return () if is_smooth(problem, bistable) else (cls(13), cls(15))

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Return True: replicates show what a set does not resolve."""
        return True

    def seeded(self, seed: int) -> Sobol:
        """Return the same sets with another seed."""
        return replace(self, seed=seed)

    @property
    def replicates(self) -> tuple[Sobol, ...]:
        """Return a rule of each of the scramblings."""
        return tuple(replace(self, scramblings=1, first=self.first + number) for number in range(self.scramblings))

    def finer(self) -> Sobol:
        """As of `Rule`: twice the points of every scrambling."""
        return replace(self, log2=self.log2 + 1)

    def coarser(self) -> Sobol:
        """As of `Rule`: half the points of every scrambling."""
        return replace(self, log2=self.log2 - 1)


SAMPLES = tuple(Sobol(log2) for log2 in range(10, 17))
