"""Lattice rules: sums over lattice points in all coordinates of the fields, for smooth integrands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gamma, log, pi
from typing import Any, ClassVar

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..channel.exchange import SymmetryReduction, apply_exchange_to_nodes
from ..channel.fields import FieldLaw
from ..channel.lattices import (
    MAX_DIMENSIONS,
    is_lattice_symmetry,
    lattice_points_in_ball,
    sampling_lattice_basis,
    shortest_vector_length,
)
from ..device.constants import declare_constant
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from ..problems.symmetry import EXACT, SignedPermutation
from .rule import NEGLIGIBLE_JUMPS, Rule
from .sampled import (
    MAX_PRODUCT_DIMENSION,
    MAX_PRODUCT_NODES,
    Integrand,
    NodeBasedRule,
    NodeRuleOptions,
    NodeSets,
    is_proximal_map_smooth,
)


@dataclass(frozen=True)
class LatticeOptions(AlgorithmOptions):
    """Options of lattice rules, which are sums over lattice points.

    Attributes:
        strip_width: width of the complex strip about the real axes in which integrands are assumed analytic; wider
            strips space the points farther apart.
        prefactor_digits: decimal digits by which integrands are assumed larger at the edge of the strip than on the
            real axes.
        growth_power: power of the distance with which integrands are assumed to grow; larger powers take a larger ball.
        digit_step: decimal digits of accuracy from one rule to the next finer one.
        cusp_digit_gain: digits gained where the proximal map jumps, relative to those gained by a smooth average.
        max_points: largest number of lattice points that a rule may have.
    """

    strip_width: float = 1.5
    prefactor_digits: float = 2.3
    growth_power: int = 4
    digit_step: float = 0.5
    cusp_digit_gain: float = 0.6
    max_points: float = 2e7


@dataclass(frozen=True)
class LatticeRule(NodeBasedRule):
    """A rule of all lattice points within a ball, weighted with the normal density.

    The dual of the lattice has the densest sphere packing known in its dimension.

    For an integrand that is analytic in a strip of width a about the real axes the error is of the order of
    exp(-2 pi a k / h), where h is the spacing and k the length of the shortest vectors of the dual lattice
    (docs/theory.md (11.18)). Spacing and radius are chosen for an error of 10^-digits at a = 1.5.

    Args:
        digits: number of decimal digits aimed at.
        starts: search for proximal points (`Problem.search`); None for the problem's own setting.
        inner: refinement factor of the integral over the student fields at a finite temperature.
    """

    digits: float = 4.0
    starts: int | None = None
    name: str = "lattice"
    least_points: ClassVar[int] = 1
    most_points: ClassVar[int] = 14
    unit: ClassVar[str] = "intended digits"
    is_nonadaptive: ClassVar[bool] = True
    symmetry_tolerance: ClassVar[float | None] = EXACT
    inner: float = 1.0

    @classmethod
    def rule_of_size(cls, points: int | None, seed: int) -> LatticeRule:
        """Return the lattice rule that aims at a number of decimal digits.

        Args:
            points: size given by `--points`; None for the default.
            seed: seed given by `--seed`; rules without replicates ignore it.
        """
        return cls(float(points or 4))

    def rule_description(self) -> dict[str, Any]:
        """Return a dict with the rule's name, the digits aimed at as `points`, and no seed, as in the JSON output."""
        return {"rule": self.name, "points": self.digits, "seed": None}

    @property
    def size_in_words(self) -> str:
        """The size of the rule in words: the number of decimal digits that it aims at."""
        return f"{self.digits:g} digits aimed at"

    def nodes_and_weights_by_replicate(
        self, problem: Problem, fields: FieldLaw, reduction: SymmetryReduction, integrand: Integrand = "averages"
    ) -> NodeSets:
        """Return the nodes and weights as a list of one pair, since the rule has no replicates.

        Args:
            problem: problem whose fields are integrated over.
            fields: law of the fields.
            reduction: symmetries of the loss and of the law of the fields, from `symmetry_reduction`.
            integrand: kind of average, see `NodeBasedRule.nodes_and_weights_by_replicate`.
        """
        if not self.is_applicable(problem):
            raise InputError("the integrator lattice is for smooth losses in 12 dimensions or less; use sobol")
        count = self.node_count(problem)
        if not count <= LatticeOptions.current().max_points:
            aim = f"{self.digits:g} digits in {problem.dimension} dimensions"
            raise InputError(f"the integrator lattice would need {count:.1e} nodes for {aim}; use sobol")
        kept = reduction.subgroup_satisfying(lambda exchange: _is_symmetry_of_lattice(exchange, problem))
        ranks = problem.teacher_rank, problem.student_rank
        radius, spacing = _ball_radius(problem.dimension, self.digits), _lattice_spacing(problem.dimension, self.digits)
        return [_orbit_representatives(kept, problem.dimension, ranks, radius, spacing)]

    def node_count(self, problem: Problem) -> float:
        """Return the approximate number of lattice points in the ball; symmetries reduce the number of nodes."""
        n = reduce_to_fields_of_loss(problem).dimension
        if n > MAX_DIMENSIONS:
            return np.inf
        volume = pi ** (n / 2) / gamma(n / 2 + 1)
        return volume * (_ball_radius(n, self.digits) / _lattice_spacing(n, self.digits)) ** n

    @classmethod
    def rules_coarse_to_fine(cls, problem: Problem) -> tuple[LatticeRule, ...]:
        """Return the lattice rules with few enough nodes, coarse to fine; none if the loss is not smooth."""
        return (
            tuple(size for size in _SIZES if size.node_count(problem) <= MAX_PRODUCT_NODES)
            if cls.is_applicable(problem)
            else ()
        )

    def rules_for_field_jacobian(self, problem: Problem, bistable: float) -> tuple[Rule, ...]:
        """Return two lattice rules that aim at few digits, for averages of dg/domega, with g = V^(-1) (X - omega).

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        few = replace(self, digits=min(self.digits, 4.0))
        return few, few.finer_rule()

    def rule_for_numerical_jacobian(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """Return a lattice rule that aims at two digits or fewer, for a numerical Jacobian of the saddle-point map.

        Args:
            problem: problem whose saddle-point map is differentiated.
            sample: Sobol rule to return if this rule has replicates.

        Returns:
            the rule; the finite-difference step relative to the scale of each overlap matrix (None: choose a wide step
            for sampled averages); whether one-sided differences suffice.
        """
        return replace(self, digits=min(self.digits, 2.0)), 1e-4, False

    def predict_refinement_steps(self, error: float, accuracy: float) -> int:
        """Return by how many sizes to refine the rule until its error is expected to reach an accuracy.

        Args:
            error: error of this rule.
            accuracy: requested accuracy.
        """
        step = LatticeOptions.current().digit_step
        return max(1, int(np.log10(error / accuracy) / step)) if error > accuracy else 1

    def predict_node_count(self, problem: Problem, error: float, accuracy: float, bistable: float) -> float:
        """Return the predicted number of nodes to reach an accuracy; more where the proximal map jumps.

        Args:
            problem: problem whose fields are integrated over.
            error: error of the rule at this size.
            accuracy: requested accuracy.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        per_digit = 1.0 if bistable <= NEGLIGIBLE_JUMPS else LatticeOptions.current().cusp_digit_gain
        return replace(self, digits=self.digits + float(np.log10(error / accuracy)) / per_digit).node_count(problem)

    def newton_tolerance(self, accuracy: float) -> float:
        """Return the residual at which Newton's method stops: a thousandth of the accuracy of the solution."""
        return max(2e-14, min(1e-6, 1e-3 * accuracy))

    @classmethod
    def quadrature_rules_for_cross_check(cls, problem: Problem, bistable: float) -> tuple[LatticeRule, ...]:
        """Return the lattice rules for a cross-check in many dimensions, if the proximal map is smooth.

        In few dimensions a product rule is more accurate.

        Args:
            problem: problem whose fields are integrated over.
            bistable: probability of a second minimum of the Moreau objective, where the proximal map may jump.
        """
        few = reduce_to_fields_of_loss(problem).dimension <= MAX_PRODUCT_DIMENSION
        return cls.rules_coarse_to_fine(problem) if is_proximal_map_smooth(problem, bistable) and not few else ()

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether lattice rules apply: the loss is smooth, in few enough dimensions."""
        part = reduce_to_fields_of_loss(problem)
        kinks = (len(part.kink_planes("loss", part.constants(labels))) for labels, _ in part.label_probabilities)
        return part.dimension <= MAX_DIMENSIONS and not part.solver.model.CURVED["loss"] and not any(kinks)

    def finer_rule(self) -> LatticeRule:
        """Return the rule that aims at half a digit more, with more nodes per field at a finite temperature."""
        step, ratio = LatticeOptions.current().digit_step, NodeRuleOptions.current().thermal_ratio
        return replace(self, digits=self.digits + step, inner=ratio * self.inner)

    def coarser_rule(self) -> LatticeRule:
        """Return the rule that aims at half a digit less, with fewer nodes per field at a finite temperature."""
        step, ratio = LatticeOptions.current().digit_step, NodeRuleOptions.current().thermal_ratio
        return replace(self, digits=max(step, self.digits - step), inner=self.inner / ratio)


_SIZES = tuple(LatticeRule(1.5 + LatticeOptions.digit_step * number) for number in range(21))


def _ball_radius(dimension: int, digits: float) -> float:
    """Return the radius of the ball that the lattice points fill, for an error of 10^-digits."""
    from scipy.special import gammainccinv

    return float(np.sqrt(2 * gammainccinv((dimension + LatticeOptions.current().growth_power) / 2, 10.0**-digits)))


def _lattice_spacing(dimension: int, digits: float) -> float:
    """Return the factor that scales a lattice of determinant one so that its sums have an error of 10^-digits."""
    options = LatticeOptions.current()
    return (
        2
        * pi
        * options.strip_width
        * shortest_vector_length(dimension)
        / (log(10) * (digits + options.prefactor_digits))
    )


def _is_symmetry_of_lattice(exchange: SignedPermutation, problem: Problem) -> bool:
    n = problem.dimension
    return is_lattice_symmetry(
        sampling_lattice_basis(n),
        apply_exchange_to_nodes(exchange, np.eye(n), problem.teacher_rank, problem.student_rank).T,
    )


@lru_cache(maxsize=10)
def _orbit_representatives(
    reduction: SymmetryReduction, dimension: int, ranks: tuple[int, int], radius: float, spacing: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights: one lattice point per orbit of the symmetry group, with the weight of its orbit."""
    nodes = spacing * lattice_points_in_ball(sampling_lattice_basis(dimension), radius / spacing)
    orbits = reduction.orbit_sizes(nodes, *ranks)
    nodes, orbits = nodes[orbits > 0], orbits[orbits > 0]
    weights = orbits * spacing**dimension * np.exp(-(nodes**2).sum(axis=1) / 2) / (2 * pi) ** (dimension / 2)
    return declare_constant(nodes), declare_constant(weights)
