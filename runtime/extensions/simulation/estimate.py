"""Means over seeds and their standard errors, with the part that control variates explain subtracted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...base.options import AlgorithmOptions
from .controls import ControlVariates


@dataclass(frozen=True)
class ControlVariateOptions(AlgorithmOptions):
    """Options of means over seeds whose fluctuations are reduced by control variates.

    Attributes:
        min_degrees_of_freedom: least degrees of freedom of the fit; with fewer runs no control variates are used, as
            their fitted coefficients would add noise.
        singular_tolerance: singular values, relative to the largest, below which control variates are dependent.
    """

    min_degrees_of_freedom: int = 4
    singular_tolerance: float = 1e-8


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over seeds and its standard error (nan for a single seed), in the shape of the measured quantity.

    Attributes:
        values: averaged values, one per run; with control variates, minus the part that their deviations explain.
    """

    mean: Any
    standard_error: Any
    values: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def from_values(cls, values: Sequence[Any] | np.ndarray, controls: Sequence[ControlVariates] = ()) -> MeanEstimate:
        """Return the mean and its standard error from one value per run; both are nan without runs.

        Args:
            values: one value (of any shape) per run.
            controls: control variates of every run; the mean is then the value of a linear fit at their expectations.
        """
        array = np.asarray(values, float)
        if len(array) == 0:
            return cls(np.nan, np.nan)
        if fit := cls._fit_control_variates(array, controls):
            return fit
        spread = array.std(axis=0, ddof=1) / np.sqrt(len(array)) if len(array) > 1 else np.full(array.shape[1:], np.nan)
        return cls(array.mean(axis=0), spread, array)

    @classmethod
    def _fit_control_variates(cls, values: np.ndarray, controls: Sequence[ControlVariates]) -> MeanEstimate | None:
        """Return a mean over runs, less what a linear fit attributes to their control variates.

        It is None without control variates, with too few runs for the fit, or where values are not finite.
        """
        options = ControlVariateOptions.current()
        if not controls or not np.isfinite(values).all():
            return None
        deviations, errors = np.array([known.deviations for known in controls]), controls[0].errors
        sizes = deviations.std(axis=0)
        significant = sizes > errors
        deviations, errors = deviations[:, significant] / sizes[significant], errors[significant] / sizes[significant]
        if not deviations.size:
            return None
        middle = deviations.mean(axis=0)
        left, scales, right = np.linalg.svd(deviations - middle, full_matrices=False)
        independent = scales > options.singular_tolerance * scales[0]
        freedom = len(values) - 1 - int(independent.sum())
        if freedom < options.min_degrees_of_freedom:
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
