"""dG/du of a solution for its longitudinal spectrum, and the error bar of the eigenvalue that the verdict hangs on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.errors import DomainError
from ..base.progress import step
from ..integration import Rule
from ..integration.estimates import two_standard_errors
from ..integration.rule import DIFFERENCE_SAFETY
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.printed_slopes import map_slopes
from ..saddle_point.slopes import HASTY, PATIENT, jacobian, slope_settings
from ..saddle_point.state_map import StateMap
from .displacement import Displacements

_NEAR, _NEAR_SAMPLED = 0.1, 0.3  # of 1: an eigenvalue farther away needs no error bar
_ROUNDING = 1e-14  # of the map, relative


@dataclass(frozen=True)
class MapSpectrum:
    """dG/du at packed overlaps.

    Attributes:
        printed: whether the printed derivatives are taken; differences else.
    """

    problem: Problem
    rule: Rule
    at: np.ndarray
    printed: bool

    def judged(self, displacements: Displacements) -> tuple[np.ndarray, float]:
        """Return the Jacobian, and the error bar of its largest real part; nan where that is far from 1."""
        with step("slopes of the saddle-point map"):
            sample = HASTY
            matrix = self._matrix(self.at, sample)
            if self.rule.replicated and self.leading(matrix) > 1:
                # Noise over few points looks like an instability: a verdict asks for more.
                sample = PATIENT
                matrix = self._matrix(self.at, sample)
        lead = self.leading(matrix)
        if abs(lead - 1) > (_NEAR_SAMPLED if self.rule.replicated else _NEAR):
            return matrix, np.nan
        with step("error bar of the leading eigenvalue"):
            try:
                return matrix, self._error(matrix, lead, sample, displacements)
            except DomainError:
                return matrix, np.inf

    def leading(self, matrix: np.ndarray) -> float:
        """Return the largest real part of the spectrum."""
        return float(np.linalg.eigvals(matrix).real.max())

    def _error(self, matrix: np.ndarray, lead: float, sample: Rule, displacements: Displacements) -> float:
        """Return how far replicates (else a finer rule and steps), errors of the overlaps and rounding move it."""
        elsewhere = self.at + displacements.farthest
        if self.printed:
            other = self._by_formulas(self.rule.finer(), elsewhere)
            return DIFFERENCE_SAFETY * abs(self.leading(other) - lead) + self._moved_by(matrix, _ROUNDING)
        used, steps, one_sided = slope_settings(self.problem, self.rule, self._overlaps(self.at), sample)
        rounding = self._moved_by(matrix, _ROUNDING / float(np.min(steps)))
        if not used.replicated:
            # Steps of half the length to the other side change what is left of the next order.
            other = self._by_differences(used.finer(), elsewhere, -np.asarray(steps) / 2, one_sided)
            return DIFFERENCE_SAFETY * abs(self.leading(other) - lead) + rounding
        leads = [self.leading(self._by_differences(one, self.at, steps, one_sided)) for one in used.replicates]
        moved = self.leading(self._by_differences(used, elsewhere, steps, one_sided)) - lead
        return float(two_standard_errors(np.array(leads))) + abs(moved) + rounding

    def _moved_by(self, matrix: np.ndarray, size: float) -> float:
        """How far a change of the matrix of a relative size moves the leading eigenvalue, by its condition number; two
        that fall together move by the root."""
        scales = self._overlaps(self.at).block_scales
        scaled = matrix * scales / scales[:, None]
        values, vectors = np.linalg.eig(scaled)
        at = int(np.argmax(values.real))
        size *= float(np.linalg.norm(scaled, 2))
        try:
            condition = float(np.linalg.norm(np.linalg.inv(vectors)[at]) * np.linalg.norm(vectors[:, at]))
        except np.linalg.LinAlgError:
            condition = np.inf
        return float(min(condition * size, np.sqrt(size)))

    def _matrix(self, u: np.ndarray, sample: Rule) -> np.ndarray:
        if self.printed:
            return self._by_formulas(self.rule, u)
        used, steps, one_sided = slope_settings(self.problem, self.rule, self._overlaps(u), sample)
        return self._by_differences(used, u, steps, one_sided)

    def _by_formulas(self, rule: Rule, u: np.ndarray) -> np.ndarray:
        state_map = StateMap(self.problem, rule)
        return state_map.across(map_slopes(state_map, u).state, u, self.problem.sizes)

    def _by_differences(self, rule: Rule, u: np.ndarray, steps: float | np.ndarray, one_sided: bool) -> np.ndarray:
        state_map = StateMap(self.problem, rule)
        sizes = self.problem.sizes
        return state_map.across(jacobian(state_map, u, sizes, steps, one_sided), u, sizes)

    def _overlaps(self, u: np.ndarray) -> Overlaps:
        return Overlaps.unpack(u, self.problem.sizes)
