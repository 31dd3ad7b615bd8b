"""The part of an error bar that comes from the error bars of the overlaps at which a number is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..integration.estimates import two_standard_errors
from ..problems.overlaps import Overlaps


@dataclass(frozen=True)
class DisplacementOptions(AlgorithmOptions):
    """Options of the displacements behind error bars.

    Attributes:
        negligible_fraction: of the largest displacement, below which the widening covers another one; smaller takes
            more evaluations.
    """

    negligible_fraction: float = 0.1


@dataclass(frozen=True)
class Displacements:
    """A set of displacements by which other rules, or replicates, would change the overlaps of a solution.

    Attributes:
        at: packed overlaps of the solution, (n,); scales: of their blocks, (n,).
        shifts: of the packed overlaps, one row another rule or replicate, (k, n).
        replicated: whether rows are independent replicates; else each row is a displacement by itself.
        widening: ratio of the reported error bars to those of the shifts, at least 1.
    """

    at: np.ndarray
    scales: np.ndarray
    shifts: np.ndarray
    replicated: bool
    widening: float

    @classmethod
    def from_error_bars(
        cls,
        overlaps: Overlaps,
        errors: np.ndarray,
        shifts: np.ndarray | None,
        residual_shift: np.ndarray | None = None,
        replicated: bool = False,
    ) -> Displacements:
        """Return the displacements behind the error bars (n,) of the packed overlaps.

        Args:
            overlaps: of the solution.
            errors: error bars of the packed overlaps, (n,).
            shifts: as of `Solution`; where they are not known the error bars themselves are taken as one.
            residual_shift: displacement by the remaining residual, (n,).
            replicated: whether the shifts are of independent replicates.
        """
        scales = overlaps.block_scales
        rows = np.zeros((0, len(errors))) if shifts is None else np.asarray(shifts)
        if not len(rows) or not np.any(rows):
            rows, replicated = errors[None], False
        sizes = two_standard_errors(rows) if replicated else np.abs(rows).max(axis=0)
        largest = float(np.max(sizes / scales))
        widening = float(np.max(errors / scales)) / largest if largest > 0 else 1.0
        negligible = DisplacementOptions.current().negligible_fraction * largest
        if residual_shift is not None and float(np.max(np.abs(residual_shift) / scales)) > negligible:
            # A residual is no replicate: it is added to all of them, or is a row of its own.
            rows = rows + residual_shift if replicated else np.vstack([rows, residual_shift])
        return cls(overlaps.pack(), scales, rows, replicated, max(1.0, widening))

    @property
    def worst_displacement(self) -> np.ndarray:
        """The displacement (n,) of the size of the error bars along which the overlaps are known least."""
        if self.replicated:
            rows, _ = self._principal_directions()
            return self.widening * rows[0]
        return self.widening * self.shifts[np.argmax(np.max(np.abs(self.shifts) / self.scales, axis=1))]

    def propagate(self, function: Callable[[np.ndarray], float], here: float) -> np.ndarray:
        """Return by how much every shift changes a number, (k,), the widening included; infinite beyond its domain.

        Args:
            function: the number as a function of packed overlaps.
            here: the number at the overlaps of the solution.
        """

        def _change_by(row: np.ndarray) -> float:
            try:
                return function(self.at + row) - here
            except DomainError:
                return np.inf

        if not self.replicated:
            return self.widening * np.array([_change_by(row) for row in self.shifts])
        rows, coefficients = self._principal_directions()
        return self.widening * coefficients @ np.array([_change_by(row) for row in rows])

    def error_of_changes(self, changes: np.ndarray) -> float:
        """Return the error bar that belongs to changes (k,) of a number."""
        if not np.all(np.isfinite(changes)):
            return np.inf
        return float(two_standard_errors(changes)) if self.replicated else float(np.max(np.abs(changes), initial=0.0))

    def _principal_directions(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the few directions in which replicates spread, (m, n), and the shifts in units of these, (k, m).

        Each is as long as two standard errors of the replicates' mean.
        """
        count = len(self.shifts)
        scaled = (self.shifts - self.shifts.mean(axis=0)) / self.scales
        left, sizes, right = np.linalg.svd(scaled, full_matrices=False)
        kept = sizes > DisplacementOptions.current().negligible_fraction * sizes[0]
        to_errors = 2 / np.sqrt(count * (count - 1))
        return to_errors * sizes[kept, None] * right[kept] * self.scales, left[:, kept] / to_errors
