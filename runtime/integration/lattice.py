"""Sums over the points of a lattice in all coordinates of the fields: an integration rule for smooth integrands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gamma, log, pi
from typing import Any, ClassVar

import numpy as np

from ..base.errors import InputError
from ..channel.exchange import Reduction, moved
from ..channel.fields import Fields
from ..channel.lattices import MOST_DIMENSIONS, keeps, points_in_ball, sampling_lattice, shortest
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..problems.symmetry import Exchange
from .rule import NEGLIGIBLE_JUMPS, Rule
from .sampled import FEW, FINER, MOST_NODES, Integrand, NodeSets, Sampled, is_smooth

# What integrands are taken for when a size is chosen: analytic in a strip about the real axes, and larger by so many
# digits at the edge of it. Attention on two and three tokens is like that.
_STRIP, _PREFACTOR = 1.5, 2.3
_GROWTH = 4  # power of the distance that averages grow with
_STEP = 0.5  # digits
_CUSPED = 0.6  # digits that a lattice gains, where it would gain one of smooth averages
_MOST_POINTS = 2e7  # which are held at once


@dataclass(frozen=True)
class Lattice(Sampled):
    """All points within a ball of the lattice whose dual packs densest, weighted with the normal density.

    An integrand that is analytic in a strip of width a about the real axes leaves an error of the order of
    exp(-2 pi a k / h), with the spacing h and the shortest vectors k of the dual (docs/theory.md (11.18)). Spacing and
    radius are those of an error of 10^-digits where a is 1.5; how far off averages are, the next sizes tell.

    Args:
        digits: decimal digits aimed at.
    """

    digits: float = 4.0
    starts: int | None = None
    name: str = "lattice"
    least_points: ClassVar[int] = 1
    most_points: ClassVar[int] = 14
    unit: ClassVar[str] = "digits aimed at"
    blind: ClassVar[bool] = True
    inner: float = 1.0

    @classmethod
    def of(cls, points: int | None, seed: int) -> Lattice:
        """Digits aimed at."""
        return cls(float(points or 4))

    def describe(self) -> dict[str, Any]:
        """As of `Rule`; `points` are the digits aimed at, the seed is null."""
        return {"rule": self.name, "points": self.digits, "seed": None}

    @property
    def size(self) -> str:
        """Digits."""
        return f"{self.digits:g} digits aimed at"

    def reduction_of(self, problem: Problem, fields: Fields, labels: tuple[int, ...]) -> Reduction:
        """Return the exchanges, as of `Sampled`."""
        return Reduction.in_fields(problem, fields, labels)

    def node_sets(self, problem: Problem, fields: Fields, reduction: Reduction, of: Integrand = "averages") -> NodeSets:
        """Return nodes and weights, as of `Sampled`."""
        if not self.suits(problem):
            raise InputError("a lattice is for smooth losses in 12 dimensions or less; use sobol")
        count = self.nodes(problem)
        if not count <= _MOST_POINTS:
            size = f"{problem.dimension} dimensions has {count:.1e} nodes"
            raise InputError(f"a lattice for {self.digits:g} digits in {size}; use sobol")
        kept = reduction.where(lambda exchange: _keeps_lattice(exchange, problem))
        ranks = problem.teacher_rank, problem.student_rank
        return [_one_of_each_orbit(kept, problem.dimension, ranks, self.digits)]

    def nodes(self, problem: Problem) -> float:
        """Points in the ball, before symmetries, about."""
        n = integrated(problem).dimension
        if n > MOST_DIMENSIONS:
            return np.inf
        volume = pi ** (n / 2) / gamma(n / 2 + 1)
        return volume * (_radius(n, self.digits) / _spacing(n, self.digits)) ** n

    @classmethod
    def sizes(cls, problem: Problem) -> tuple[Lattice, ...]:
        """Return the digits for which there are nodes enough; none where the loss is not smooth."""
        return tuple(level for level in _LADDER if level.nodes(problem) <= MOST_NODES) if cls.suits(problem) else ()

    def for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Few digits."""
        few = replace(self, digits=min(self.digits, 4.0))
        return few, few.finer()

    def for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """As few digits as give slopes."""
        return replace(self, digits=min(self.digits, 2.0)), 1e-4, False

    def sizes_ahead(self, error: float, accuracy: float) -> int:
        """As of `Rule`: one less than an error that falls by what the sizes aim at asks for."""
        return max(1, int(np.log10(error / accuracy) / _STEP)) if error > accuracy else 1

    def nodes_for(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return the nodes of the digits that the accuracy asks for, fewer of which are gained where the map jumps."""
        per_digit = 1.0 if bistable <= NEGLIGIBLE_JUMPS else _CUSPED
        return replace(self, digits=self.digits + float(np.log10(error / accuracy)) / per_digit).nodes(problem)

    def tolerance(self, accuracy: float) -> float:
        """A thousandth of the accuracy."""
        return max(2e-14, min(1e-6, 1e-3 * accuracy))

    @classmethod
    def opinions(cls, problem: Problem, bistable: float) -> tuple[Lattice, ...]:
        """Where the proximal map neither jumps nor bends in several fields, and no product has more digits."""
        few = integrated(problem).dimension <= FEW
        return cls.sizes(problem) if is_smooth(problem, bistable) and not few else ()

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Where the loss is smooth, in few enough dimensions."""
        part = integrated(problem)
        kinks = (len(part.planes("loss", part.constants(labels))) for labels, _ in part.label_choices)
        return part.dimension <= MOST_DIMENSIONS and not part.solver.model.CURVED["loss"] and not any(kinks)

    def finer(self) -> Lattice:
        """As of `Rule`: half a digit more, and more nodes of X at a finite temperature."""
        return replace(self, digits=self.digits + _STEP, inner=FINER * self.inner)

    def coarser(self) -> Lattice:
        """As of `Rule`: half a digit less, and fewer nodes of X at a finite temperature."""
        return replace(self, digits=max(_STEP, self.digits - _STEP), inner=self.inner / FINER)


_LADDER = tuple(Lattice(1.5 + _STEP * step) for step in range(21))


def _radius(dimension: int, digits: float) -> float:
    """Beyond which a share 10^-digits of the normal measure, weighted with a power of the distance, lies."""
    from scipy.special import gammainccinv

    return float(np.sqrt(2 * gammainccinv((dimension + _GROWTH) / 2, 10.0**-digits)))


def _spacing(dimension: int, digits: float) -> float:
    """Of a lattice whose sums are off by 10^-digits."""
    return 2 * pi * _STRIP * shortest(dimension) / (log(10) * (digits + _PREFACTOR))


def _keeps_lattice(exchange: Exchange, problem: Problem) -> bool:
    n = problem.dimension
    return keeps(sampling_lattice(n), moved(exchange, np.eye(n), problem.teacher_rank, problem.student_rank).T)


@lru_cache(maxsize=10)
def _one_of_each_orbit(
    reduction: Reduction, dimension: int, ranks: tuple[int, int], digits: float
) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights: one point of every orbit of the exchanges, which all keep the lattice."""
    h = _spacing(dimension, digits)
    nodes = h * points_in_ball(sampling_lattice(dimension), _radius(dimension, digits) / h)
    orbits = reduction.orbits(nodes, *ranks)
    nodes, orbits = nodes[orbits > 0], orbits[orbits > 0]
    return nodes, orbits * h**dimension * np.exp(-(nodes**2).sum(axis=1) / 2) / (2 * pi) ** (dimension / 2)
