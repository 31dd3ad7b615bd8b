"""Longitudinal spectrum of dG/du at a solution, and the error bar of the eigenvalue that decides the verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.progress import progress_step
from ..integration import Rule
from ..integration.estimates import two_standard_errors
from ..integration.rule import DIFFERENCE_SAFETY
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.difference_jacobian import COARSE_NODES, FINE_NODES, difference_settings, jacobian
from ..saddle_point.generated_jacobian import evaluate_map_slopes
from ..saddle_point.state_map import StateMap
from .displacement import Displacements

_ROUNDING = 1e-14  # of the map, relative


@dataclass(frozen=True)
class LongitudinalSpectrumOptions(AlgorithmOptions):
    """Options of the longitudinal spectrum.

    Attributes:
        error_bar_distance: an eigenvalue farther from 1 than this gets no error bar, which saves its evaluations.
        error_bar_distance_sampled: the same for rules with replicates.
    """

    error_bar_distance: float = 0.1
    error_bar_distance_sampled: float = 0.3


@dataclass(frozen=True)
class MapSpectrum:
    """A spectrum of dG/du at packed overlaps.

    Attributes:
        printed: whether the printed derivatives are taken; differences else.
    """

    problem: Problem
    rule: Rule
    at: np.ndarray
    printed: bool

    def jacobian_with_error(self, displacements: Displacements) -> tuple[np.ndarray, float]:
        """Return the Jacobian, and the error bar of its largest real part; nan where that is far from 1."""
        with progress_step("slopes of the saddle-point map"):
            sample = COARSE_NODES
            matrix = self._jacobian_at(self.at, sample)
            if self.rule.replicated and self.leading_real_part(matrix) > 1:
                # Noise over few points may look like an instability: a verdict requires more.
                sample = FINE_NODES
                matrix = self._jacobian_at(self.at, sample)
        lead = self.leading_real_part(matrix)
        options = LongitudinalSpectrumOptions.current()
        distance = options.error_bar_distance_sampled if self.rule.replicated else options.error_bar_distance
        if abs(lead - 1) > distance:
            return matrix, np.nan
        with progress_step("error bar of the leading eigenvalue"):
            try:
                return matrix, self._leading_eigenvalue_error(matrix, lead, sample, displacements)
            except DomainError:
                return matrix, np.inf

    def leading_real_part(self, matrix: np.ndarray) -> float:
        """Return the largest real part of the spectrum."""
        return float(np.linalg.eigvals(matrix).real.max())

    def _leading_eigenvalue_error(
        self, matrix: np.ndarray, lead: float, sample: Rule, displacements: Displacements
    ) -> float:
        """Return by how much replicates (else finer rule and steps), errors of the overlaps and rounding change it."""
        elsewhere = self.at + displacements.worst_displacement
        if self.printed:
            other = self._analytic_jacobian(self.rule.finer_rule(), elsewhere)
            return DIFFERENCE_SAFETY * abs(self.leading_real_part(other) - lead) + self._perturbation_bound(
                matrix, _ROUNDING
            )
        used, steps, one_sided = difference_settings(self.problem, self.rule, self._unpack_overlaps(self.at), sample)
        rounding = self._perturbation_bound(matrix, _ROUNDING / float(np.min(steps)))
        if not used.replicated:
            # Steps of half the length to the other side change the remainder of the next order.
            other = self._difference_jacobian(used.finer_rule(), elsewhere, -np.asarray(steps) / 2, one_sided)
            return DIFFERENCE_SAFETY * abs(self.leading_real_part(other) - lead) + rounding
        leads = [
            self.leading_real_part(self._difference_jacobian(one, self.at, steps, one_sided)) for one in used.replicates
        ]
        moved = self.leading_real_part(self._difference_jacobian(used, elsewhere, steps, one_sided)) - lead
        return float(two_standard_errors(np.array(leads))) + abs(moved) + rounding

    def _perturbation_bound(self, matrix: np.ndarray, size: float) -> float:
        """Return by how much a relative change of the matrix changes the leading eigenvalue, by its condition number.

        Two that coincide change by the root.
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

    def _jacobian_at(self, u: np.ndarray, sample: Rule) -> np.ndarray:
        if self.printed:
            return self._analytic_jacobian(self.rule, u)
        used, steps, one_sided = difference_settings(self.problem, self.rule, self._unpack_overlaps(u), sample)
        return self._difference_jacobian(used, u, steps, one_sided)

    def _analytic_jacobian(self, rule: Rule, u: np.ndarray) -> np.ndarray:
        state_map = StateMap(self.problem, rule)
        return state_map.project_off_orbit(evaluate_map_slopes(state_map, u).state, u, self.problem.sizes)

    def _difference_jacobian(self, rule: Rule, u: np.ndarray, steps: float | np.ndarray, one_sided: bool) -> np.ndarray:
        state_map = StateMap(self.problem, rule)
        sizes = self.problem.sizes
        return state_map.project_off_orbit(jacobian(state_map, u, sizes, steps, one_sided), u, sizes)

    def _unpack_overlaps(self, u: np.ndarray) -> Overlaps:
        return Overlaps.unpack(u, self.problem.sizes)
