"""Sums over the points of a lattice in all coordinates of the fields: an integration rule for smooth integrands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gamma, log, pi
from typing import Any, ClassVar

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..channel.exchange import Reduction, exchange_nodes
from ..channel.fields import Fields
from ..channel.lattices import (
    MAX_DIMENSIONS,
    is_lattice_symmetry,
    points_in_ball,
    sampling_lattice_basis,
    shortest_vector_length,
)
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_loss
from ..problems.symmetry import Exchange
from .rule import NEGLIGIBLE_JUMPS, Rule
from .sampled import MAX_PRODUCT_DIMENSION, MAX_PRODUCT_NODES, Integrand, NodeSets, Sampled, SampledOptions, is_smooth


@dataclass(frozen=True)
class LatticeOptions(AlgorithmOptions):
    """Options of sums over lattices.

    Attributes:
        strip_width: about the real axes, in which integrands are assumed analytic (attention on two and three tokens
            is); wider spaces the points farther apart.
        prefactor_digits: digits by which they are assumed larger at the edge of the strip.
        growth_power: power of the distance with which averages are assumed to grow; larger takes a larger ball.
        digit_step: digits from one size to the next.
        cusp_digit_gain: digits gained by a size where the proximal map jumps, if a smooth average gained one.
        max_points: which are in memory at once.
    """

    strip_width: float = 1.5
    prefactor_digits: float = 2.3
    growth_power: int = 4
    digit_step: float = 0.5
    cusp_digit_gain: float = 0.6
    max_points: float = 2e7


@dataclass(frozen=True)
class Lattice(Sampled):
    """A rule of all points within a ball of the lattice whose dual packs densest, weighted with the normal density.

    An integrand that is analytic in a strip of width a about the real axes leaves an error of the order of
    exp(-2 pi a k / h), with the spacing h and the shortest vectors k of the dual (docs/theory.md (11.18)). Spacing and
    radius are those of an error of 10^-digits where a is 1.5; the error of averages is estimated from the next sizes.

    Args:
        digits: decimal digits aimed at.
    """

    digits: float = 4.0
    starts: int | None = None
    name: str = "lattice"
    least_points: ClassVar[int] = 1
    most_points: ClassVar[int] = 14
    unit: ClassVar[str] = "digits aimed at"
    is_nonadaptive: ClassVar[bool] = True
    inner: float = 1.0

    @classmethod
    def with_size(cls, points: int | None, seed: int) -> Lattice:
        """Return the rule with so many digits aimed at.

        Args:
            points: size that `--points` asks for; None for the default.
            seed: seed that `--seed` gives; a rule without replicates needs none.
        """
        return cls(float(points or 4))

    def describe(self) -> dict[str, Any]:
        """Return rule and points for the JSON contract: `points` are the digits aimed at, the seed is null."""
        return {"rule": self.name, "points": self.digits, "seed": None}

    @property
    def size(self) -> str:
        """The digits aimed at, in words."""
        return f"{self.digits:g} digits aimed at"

    def reduction_of(self, problem: Problem, fields: Fields, labels: tuple[int, ...]) -> Reduction:
        """Return the exchanges under which the fields are invariant.

        Args:
            problem: problem whose loss decides.
            fields: law of the fields.
            labels: label of every token.
        """
        return Reduction.of_fields(problem, fields, labels)

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
        if not self.is_applicable(problem):
            raise InputError("a lattice is for smooth losses in 12 dimensions or less; use sobol")
        count = self.node_count(problem)
        if not count <= LatticeOptions.current().max_points:
            size = f"{problem.dimension} dimensions has {count:.1e} nodes"
            raise InputError(f"a lattice for {self.digits:g} digits in {size}; use sobol")
        kept = reduction.subgroup(lambda exchange: _is_lattice_exchange(exchange, problem))
        ranks = problem.teacher_rank, problem.student_rank
        radius, spacing = _ball_radius(problem.dimension, self.digits), _lattice_spacing(problem.dimension, self.digits)
        return [_orbit_representatives(kept, problem.dimension, ranks, radius, spacing)]

    def node_count(self, problem: Problem) -> float:
        """Return the approximate number of points in the ball, before symmetries."""
        n = reduce_to_loss(problem).dimension
        if n > MAX_DIMENSIONS:
            return np.inf
        volume = pi ** (n / 2) / gamma(n / 2 + 1)
        return volume * (_ball_radius(n, self.digits) / _lattice_spacing(n, self.digits)) ** n

    @classmethod
    def sizes(cls, problem: Problem) -> tuple[Lattice, ...]:
        """Return the digits for which nodes are few enough; none where the loss is not smooth."""
        return (
            tuple(size for size in _SIZES if size.node_count(problem) <= MAX_PRODUCT_NODES)
            if cls.is_applicable(problem)
            else ()
        )

    def rules_for_slopes(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return two rules of few digits.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        few = replace(self, digits=min(self.digits, 4.0))
        return few, few.finer_rule()

    def rule_for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return a rule of so few digits that slopes are just accurate enough.

        Args:
            problem: problem whose map is differentiated.
            sample: rule that replaces a replicated one.

        Returns:
            rule, step in block scales (None for wide steps), whether one side suffices.
        """
        return replace(self, digits=min(self.digits, 2.0)), 1e-4, False

    def predict_size_step(self, error: float, accuracy: float) -> int:
        """Return the number of sizes to the accuracy, less one, if the error falls as fast as the sizes aim at.

        Args:
            error: of this rule.
            accuracy: that is asked for.
        """
        step = LatticeOptions.current().digit_step
        return max(1, int(np.log10(error / accuracy) / step)) if error > accuracy else 1

    def predict_nodes(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return the nodes of the digits that the accuracy takes; where the map jumps, each size gains fewer digits.

        Args:
            problem: problem whose fields are integrated over.
            error: of this size.
            accuracy: that is asked for.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        per_digit = 1.0 if bistable <= NEGLIGIBLE_JUMPS else LatticeOptions.current().cusp_digit_gain
        return replace(self, digits=self.digits + float(np.log10(error / accuracy)) / per_digit).node_count(problem)

    def tolerance(self, accuracy: float) -> float:
        """Return a thousandth of the accuracy."""
        return max(2e-14, min(1e-6, 1e-3 * accuracy))

    @classmethod
    def cross_check_rules(cls, problem: Problem, bistable: float) -> tuple[Lattice, ...]:
        """Return the sizes where the proximal map neither jumps nor bends in several fields, and dimensions are many.

        In few dimensions a product has more digits.

        Args:
            problem: problem whose fields are integrated over.
            bistable: fraction of the measure on which the proximal map may jump.
        """
        few = reduce_to_loss(problem).dimension <= MAX_PRODUCT_DIMENSION
        return cls.sizes(problem) if is_smooth(problem, bistable) and not few else ()

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether the loss is smooth, in few enough dimensions."""
        part = reduce_to_loss(problem)
        kinks = (len(part.kink_planes("loss", part.constants(labels))) for labels, _ in part.label_choices)
        return part.dimension <= MAX_DIMENSIONS and not part.solver.model.CURVED["loss"] and not any(kinks)

    def finer_rule(self) -> Lattice:
        """Return the rule of half a digit more, and more nodes of X at a finite temperature."""
        step, ratio = LatticeOptions.current().digit_step, SampledOptions.current().thermal_ratio
        return replace(self, digits=self.digits + step, inner=ratio * self.inner)

    def coarser_rule(self) -> Lattice:
        """Return the rule of half a digit less, and fewer nodes of X at a finite temperature."""
        step, ratio = LatticeOptions.current().digit_step, SampledOptions.current().thermal_ratio
        return replace(self, digits=max(step, self.digits - step), inner=self.inner / ratio)


_SIZES = tuple(Lattice(1.5 + LatticeOptions.digit_step * number) for number in range(21))


def _ball_radius(dimension: int, digits: float) -> float:
    """Return the radius beyond which a fraction 10^-digits of the normal measure, weighted with a power of it, lies."""
    from scipy.special import gammainccinv

    return float(np.sqrt(2 * gammainccinv((dimension + LatticeOptions.current().growth_power) / 2, 10.0**-digits)))


def _lattice_spacing(dimension: int, digits: float) -> float:
    """Return the spacing of a lattice whose sums have an error of 10^-digits."""
    options = LatticeOptions.current()
    return (
        2
        * pi
        * options.strip_width
        * shortest_vector_length(dimension)
        / (log(10) * (digits + options.prefactor_digits))
    )


def _is_lattice_exchange(exchange: Exchange, problem: Problem) -> bool:
    n = problem.dimension
    return is_lattice_symmetry(
        sampling_lattice_basis(n), exchange_nodes(exchange, np.eye(n), problem.teacher_rank, problem.student_rank).T
    )


@lru_cache(maxsize=10)
def _orbit_representatives(
    reduction: Reduction, dimension: int, ranks: tuple[int, int], radius: float, spacing: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights: one point of every orbit of the exchanges, each a symmetry of the lattice."""
    nodes = spacing * points_in_ball(sampling_lattice_basis(dimension), radius / spacing)
    orbits = reduction.orbit_sizes(nodes, *ranks)
    nodes, orbits = nodes[orbits > 0], orbits[orbits > 0]
    return nodes, orbits * spacing**dimension * np.exp(-(nodes**2).sum(axis=1) / 2) / (2 * pi) ** (dimension / 2)
