"""Means over seeds and their standard errors, where control variates are known with what these explain taken off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .controls import Controls

_LEFT = 4  # degrees of freedom below which controls are left out
_SAME = 1e-8  # singular values below it, relative to the largest, are of controls that others contain


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds and its standard error (nan for a single seed), in the shape of what was measured.

    Attributes:
        values: what the mean is that of, one a run: where control variates are known, what is measured less what their
            deviations explain of it.
    """

    mean: Any
    standard_error: Any
    values: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, values: Sequence[Any] | np.ndarray, controls: Sequence[Controls] = ()) -> Estimate:
        """From one value (of any shape) a run; both nan where there are none.

        Args:
            controls: of every run; the mean is that of a linear fit in them where they vanish.
        """
        array = np.asarray(values, float)
        if len(array) == 0:
            return cls(np.nan, np.nan)
        if fit := cls._by_least_squares(array, controls):
            return fit
        spread = array.std(axis=0, ddof=1) / np.sqrt(len(array)) if len(array) > 1 else np.full(array.shape[1:], np.nan)
        return cls(array.mean(axis=0), spread, array)

    @classmethod
    def _by_least_squares(cls, values: np.ndarray, controls: Sequence[Controls]) -> Estimate | None:
        """By least squares in control variates; None without any, with too few runs for them, or where a value is not
        finite."""
        if not controls or not np.isfinite(values).all():
            return None
        deviations, errors = np.array([known.deviations for known in controls]), controls[0].errors
        sizes = deviations.std(axis=0)
        kept = sizes > errors
        deviations, errors = deviations[:, kept] / sizes[kept], errors[kept] / sizes[kept]
        if not deviations.size:
            return None
        middle = deviations.mean(axis=0)
        left, scales, right = np.linalg.svd(deviations - middle, full_matrices=False)
        independent = scales > _SAME * scales[0]
        freedom = len(values) - 1 - int(independent.sum())
        if freedom < _LEFT:
            return None
        inverse = right[independent].T / scales[independent]
        flat = values.reshape(len(values), -1)
        slopes = inverse @ (left[:, independent].T @ (flat - flat.mean(axis=0)))
        adjusted = flat - deviations @ slopes
        residual = adjusted - adjusted.mean(axis=0)
        variance = np.sum(residual**2, axis=0) / freedom * (1 / len(values) + np.sum((middle @ inverse) ** 2))
        error = np.sqrt(variance + (errors**2) @ slopes**2)
        adjusted = adjusted.reshape(values.shape)
        return cls(adjusted.mean(axis=0), error.reshape(values.shape[1:]), adjusted)
