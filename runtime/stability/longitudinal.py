"""Jacobian of the saddle-point map at a solution, its eigenvalues (longitudinal spectrum), and their error bar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule
from ..integration.estimates import replicate_error_bar
from ..integration.rule import DIFFERENCE_SAFETY
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.difference_jacobian import (
    COARSE_NODES,
    FINE_NODES,
    map_jacobian_by_differences,
    quadrature_rule_and_difference_steps,
)
from ..saddle_point.generated_jacobian import evaluate_map_derivatives
from ..saddle_point.state_map import SaddlePointMap
from .displacement import Displacements

_ROUNDING = 1e-14  # of the map, relative


@dataclass(frozen=True)
class LongitudinalSpectrumOptions(AlgorithmOptions):
    """Options of the longitudinal spectrum, the eigenvalues of the saddle-point map's Jacobian.

    Attributes:
        error_bar_distance: distance from 1 beyond which the leading eigenvalue gets no error bar, to save evaluations.
        error_bar_distance_sampled: the same distance for sampling rules (with replicates).
        refined_above: leading eigenvalue above which sampling rules compute the Jacobian again with more nodes, since
            noise over few may hide an instability or look like one; with 2^14 of them it was off by up to 0.5.
    """

    error_bar_distance: float = 0.1
    error_bar_distance_sampled: float = 0.3
    refined_above: float = 0.5


@dataclass(frozen=True)
class LongitudinalJacobian:
    """The Jacobian of the saddle-point map in the packed overlaps at a solution, with its leading eigenvalue.

    Attributes:
        problem: the problem that was solved.
        rule: quadrature rule of the averages.
        at: packed overlaps of the solution.
        printed: whether generated derivatives are used; otherwise finite differences.
    """

    problem: Problem
    rule: Rule
    at: np.ndarray
    printed: bool

    def jacobian_with_eigenvalue_error(self, displacements: Displacements) -> tuple[np.ndarray, float]:
        """Return the saddle-point map's Jacobian and its leading eigenvalue's error bar; nan if that is far from 1."""
        with progress_step("slopes of the saddle-point map"):
            sample = COARSE_NODES
            matrix = self._jacobian_at_overlaps(self.at, sample)
            refined_above = LongitudinalSpectrumOptions.current().refined_above
            if self.rule.replicated and self.largest_real_part_of_spectrum(matrix) > refined_above:
                sample = FINE_NODES
                matrix = self._jacobian_at_overlaps(self.at, sample)
        lead = self.largest_real_part_of_spectrum(matrix)
        options = LongitudinalSpectrumOptions.current()
        distance = options.error_bar_distance_sampled if self.rule.replicated else options.error_bar_distance
        if abs(lead - 1) > distance:
            return matrix, np.nan
        with progress_step("error bar of the leading eigenvalue"):
            try:
                return matrix, self._leading_eigenvalue_error(matrix, lead, sample, displacements)
            except DomainError:
                return matrix, np.inf

    def largest_real_part_of_spectrum(self, matrix: np.ndarray) -> float:
        """Return the largest real part of the eigenvalues of a matrix."""
        return float(np.linalg.eigvals(matrix).real.max())

    def _leading_eigenvalue_error(
        self, matrix: np.ndarray, lead: float, sample: Rule, displacements: Displacements
    ) -> float:
        """Return the error bar of the Jacobian's leading eigenvalue due to quadrature, overlaps and rounding."""
        elsewhere = self.at + displacements.most_uncertain_displacement
        if self.printed:
            other = self._analytic_jacobian(self.rule.finer_rule(), elsewhere)
            return DIFFERENCE_SAFETY * abs(
                self.largest_real_part_of_spectrum(other) - lead
            ) + self._eigenvalue_perturbation_bound(matrix, _ROUNDING)
        used, steps, one_sided = quadrature_rule_and_difference_steps(
            self.problem, self.rule, self._unpack_overlaps(self.at), sample
        )
        rounding = self._eigenvalue_perturbation_bound(matrix, _ROUNDING / float(np.min(steps)))
        if not used.replicated:
            # Steps of half the length to the other side change the remainder of the next order.
            other = self._numerical_jacobian(used.finer_rule(), elsewhere, -np.asarray(steps) / 2, one_sided)
            return DIFFERENCE_SAFETY * abs(self.largest_real_part_of_spectrum(other) - lead) + rounding
        leads = [
            self.largest_real_part_of_spectrum(self._numerical_jacobian(one, self.at, steps, one_sided))
            for one in used.replicates
        ]
        moved = self.largest_real_part_of_spectrum(self._numerical_jacobian(used, elsewhere, steps, one_sided)) - lead
        return float(replicate_error_bar(np.array(leads))) + abs(moved) + rounding

    def _eigenvalue_perturbation_bound(self, matrix: np.ndarray, size: float) -> float:
        """Return a bound on the change of a matrix's leading eigenvalue by a perturbation of given relative size.

        If two eigenvalues nearly coincide, the bound is the square root of the size.
        """
        scales = self._unpack_overlaps(self.at).block_scales
        scaled = matrix * scales / scales[:, None]
        values, vectors = np.linalg.eig(scaled)
        at = int(np.argmax(values.real))
        size *= float(np.linalg.norm(scaled, 2))
        try:
            condition = float(np.linalg.norm(np.linalg.inv(vectors)[at]) * np.linalg.norm(vectors[:, at]))
        except np.linalg.LinAlgError:
            condition = np.inf
        return float(min(condition * size, np.sqrt(size)))

    def _jacobian_at_overlaps(self, u: np.ndarray, sample: Rule) -> np.ndarray:
        if self.printed:
            return self._analytic_jacobian(self.rule, u)
        used, steps, one_sided = quadrature_rule_and_difference_steps(
            self.problem, self.rule, self._unpack_overlaps(u), sample
        )
        return self._numerical_jacobian(used, u, steps, one_sided)

    def _analytic_jacobian(self, rule: Rule, u: np.ndarray) -> np.ndarray:
        state_map = SaddlePointMap(self.problem, rule)
        return state_map.project_jacobian_off_symmetry_orbit(
            evaluate_map_derivatives(state_map, u).state, u, self.problem.sizes
        )

    def _numerical_jacobian(self, rule: Rule, u: np.ndarray, steps: float | np.ndarray, one_sided: bool) -> np.ndarray:
        state_map = SaddlePointMap(self.problem, rule)
        sizes = self.problem.sizes
        return state_map.project_jacobian_off_symmetry_orbit(
            map_jacobian_by_differences(state_map, u, sizes, steps, one_sided), u, sizes
        )

    def _unpack_overlaps(self, u: np.ndarray) -> Overlaps:
        return Overlaps.unpack(u, self.problem.sizes)
