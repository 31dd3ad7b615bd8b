"""Error bars of functions of the overlaps that are due to the error bars of the overlaps themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..integration.estimates import replicate_error_bar
from ..problems.overlaps import Overlaps


@dataclass(frozen=True)
class DisplacementOptions(AlgorithmOptions):
    """Options of the displacements of overlaps from which error bars of other numbers are computed.

    Attributes:
        negligible_fraction: fraction of the largest displacement below which another displacement is neglected; smaller
            takes more evaluations.
    """

    negligible_fraction: float = 0.1


@dataclass(frozen=True)
class Displacements:
    """Displacements of a solution's overlaps, as other quadrature rules or replicates give them.

    Error bars of functions of the overlaps follow from the changes at these displacements.

    Attributes:
        at: packed overlaps of the solution, (components,).
        scales: typical size of the block of every packed component, (components,).
        shifts: difference of the packed overlaps by each other rule or replicate, (rules, components).
        replicated: whether the rows of `shifts` are independent replicates; else each is a displacement by itself.
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
        """Return the displacements that explain given error bars of the packed overlaps.

        Args:
            overlaps: overlaps of the solution.
            errors: error bars of the packed overlaps, (components,).
            shifts: differences of the packed overlaps by other rules or replicates; None: the error bars are the shift.
            residual_shift: estimated distance from the exact fixed point, due to the residual, (components,).
            replicated: whether the shifts belong to independent replicates.
        """
        scales = overlaps.block_scales
        rows = np.zeros((0, len(errors))) if shifts is None else np.asarray(shifts)
        if not len(rows) or not np.any(rows):
            rows, replicated = errors[None], False
        sizes = replicate_error_bar(rows) if replicated else np.abs(rows).max(axis=0)
        largest = float(np.max(sizes / scales))
        widening = float(np.max(errors / scales)) / largest if largest > 0 else 1.0
        negligible = DisplacementOptions.current().negligible_fraction * largest
        if residual_shift is not None and float(np.max(np.abs(residual_shift) / scales)) > negligible:
            # A residual is no replicate: it is added to all of them, or is a row of its own.
            rows = rows + residual_shift if replicated else np.vstack([rows, residual_shift])
        return cls(overlaps.pack(), scales, rows, replicated, max(1.0, widening))

    @property
    def most_uncertain_displacement(self) -> np.ndarray:
        """Return the largest displacement of the packed overlaps within their error bars, (components,)."""
        if self.replicated:
            rows, _ = self._principal_directions_of_shifts()
            return self.widening * rows[0]
        return self.widening * self.shifts[np.argmax(np.max(np.abs(self.shifts) / self.scales, axis=1))]

    def changes_at_displaced_overlaps(self, function: Callable[[np.ndarray], float], here: float) -> np.ndarray:
        """Return the change of a number at every displacement of the overlaps; infinite outside its domain.

        Args:
            function: function of packed overlaps that returns the number.
            here: value of the number at the overlaps of the solution.
        """

        def _change_at_shifted_overlaps(row: np.ndarray) -> float:
            try:
                return function(self.at + row) - here
            except DomainError:
                return np.inf

        if not self.replicated:
            return self.widening * np.array([_change_at_shifted_overlaps(row) for row in self.shifts])
        rows, coefficients = self._principal_directions_of_shifts()
        return self.widening * coefficients @ np.array([_change_at_shifted_overlaps(row) for row in rows])

    def error_bar_from_changes(self, changes: np.ndarray) -> float:
        """Return the error bar of a function of the overlaps, given its change at every displacement of them."""
        if not np.all(np.isfinite(changes)):
            return np.inf
        return float(replicate_error_bar(changes)) if self.replicated else float(np.max(np.abs(changes), initial=0.0))

    def _principal_directions_of_shifts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the principal directions of the shifts of the replicates, and the coefficients of the shifts in them.

        Each direction, a row, is as long as two standard errors of the replicates' mean.
        """
        count = len(self.shifts)
        scaled = (self.shifts - self.shifts.mean(axis=0)) / self.scales
        left, sizes, right = np.linalg.svd(scaled, full_matrices=False)
        kept = sizes > DisplacementOptions.current().negligible_fraction * sizes[0]
        to_errors = 2 / np.sqrt(count * (count - 1))
        return to_errors * sizes[kept, None] * right[kept] * self.scales, left[:, kept] / to_errors
