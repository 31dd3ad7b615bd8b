"""Thresholds to any accuracy: saddle point and condition are solved jointly for overlaps and parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ...base.deprecation import DeprecatedName, deprecated_attribute
from ...base.errors import InputError, require_known_name
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...thresholds.conditions import parse_condition
from ...thresholds.threshold import Threshold
from .channel import check_high_precision_supported
from .improve import check_accuracy_in_range, refine_solution, value_and_error_strings
from .system import OBSERVABLES, SaddlePointState, SaddlePointSystem

ROUGH = 1e-4  # error bar of the threshold in double precision to start from


@dataclass(frozen=True, repr=False)
class PreciseThreshold(Threshold):
    """A threshold with more digits than a double holds: `exact` and `exact_error` are mpf.

    Example:
        >>> problem, asked = sf.problem("logistic_regression"), "test_error = 0.15"
        >>> found = sf.where(problem, asked, on="informed", bracket=(1, 6), accuracy=1e-20)
        >>> str(found.exact)[:12], bool(found.exact_error < 1e-20)
        ('2.6591155310', True)
    """

    exact: Any = None
    exact_error: Any = None

    @classmethod
    def from_double_precision(
        cls,
        rough: Threshold,
        problem: Problem,
        value: Any,
        error: Any,
        error_kind: str,
        status: Status,
        evidence: dict[str, Any],
    ) -> PreciseThreshold:
        """Return a high-precision threshold that keeps the branches and solutions of one in double precision.

        Args:
            rough: threshold in double precision.
            problem: problem that the value belongs to.
            value: parameter at the threshold, at high precision.
            error: error bar of the value.
            error_kind: "verified" or "proved".
            status: status of the solution.
            evidence: numbers that support the value, by name.
        """
        known = {field.name: getattr(rough, field.name) for field in fields(Threshold)}
        evidence = {**evidence, "double_precision": {"value": rough.value, "error": rough.error}}
        known |= {"error_kind": error_kind, "status": status.value, "problem": problem, "evidence": evidence}
        return cls(**known | {"value": float(value), "error": float(error)}, exact=value, exact_error=error)

    half_width = deprecated_attribute("half_width", DeprecatedName("exact_error", "0.1.0", "0.3.0"))

    @property
    def decimals(self) -> tuple[str, str]:
        """The parameter at the threshold and its error bar, as decimal strings with all known digits."""
        with mp.workdps(self.evidence["digits"]):
            return value_and_error_strings(self.exact, self.exact_error)

    @property
    def shown(self) -> str:
        """The parameter at the threshold and its error bar as one text, "value +- error"."""
        return " +- ".join(self.decimals)


def check_high_precision_threshold(problem: Problem, condition: str, accuracy: float) -> None:
    """Raise InputError if a threshold cannot be computed beyond double precision.

    Args:
        problem: problem of the threshold.
        condition: equation that holds at the threshold.
        accuracy: error bar asked for.

    Raises:
        InputError: the accuracy is out of range, or the model or a name in the condition is not supported.
    """
    check_accuracy_in_range(accuracy)
    check_high_precision_supported(problem)
    names = parse_condition(condition, problem).names
    for name in names:
        require_known_name("quantity", name, OBSERVABLES, "a condition at high precision")
    if "test_error" in names and "metric" not in problem.solver.multiprecision_functions.DRIVES:
        raise InputError(f"the metric of {problem.solver.name} is not available at high precision")


def verified_threshold(rough: Threshold, condition: str, accuracy: float, problem: Problem) -> PreciseThreshold:
    """Return a threshold refined from double precision to a given accuracy, verified by two quadrature rules.

    Args:
        rough: threshold in double precision.
        condition: equation that holds at the threshold.
        accuracy: error bar asked for.
        problem: problem of the threshold; its other parameters may differ slightly from those of `rough`.

    Raises:
        InputError: the Moreau objective (loss plus quadratic proximity) has competing minima.
        NotConvergedError: Newton's method left the domain of the overlaps.
    """
    z, scales = unknowns_and_scales_at_threshold(rough)
    system = SaddlePointSystem(problem, scales, rough.parameter, make_condition_residual(condition, problem))
    found = refine_solution(system, z, accuracy, lambda errors: errors[-1], f"{rough.kind}: {accuracy:g}")
    with mp.workdps(found.digits):
        value, error = found.root.z[-1], found.error_bars[-1]
    evidence = {
        **found.accuracy_evidence,
        **problem.nonzero_vanishing_parameters,
        "error_integration": float(found.integration[-1]),
        "error_root": float(found.remaining[-1]),
    }
    return PreciseThreshold.from_double_precision(rough, problem, value, error, "verified", found.status, evidence)


def unknowns_and_scales_at_threshold(rough: Threshold) -> tuple[np.ndarray, np.ndarray]:
    """Return the unknowns (overlaps, parameter) at a threshold in double precision, and their scales."""
    start = rough.solutions[0].overlaps
    scales = np.append(start.block_scales, max(abs(rough.value), 1e-3))
    return np.append(start.pack(), rough.value), scales


def make_condition_residual(
    condition: str, problem: Problem, number: Callable[[Any], Any] = mpf
) -> Callable[[SaddlePointState], Any]:
    """Return a function of the saddle-point state: left minus right side of the condition at a threshold.

    Args:
        condition: equation between observables and parameters.
        problem: problem that defines the parameters.
        number: function that converts numbers in the condition to the arithmetic of the state.
    """
    parsed = parse_condition(condition, problem)

    def _condition_difference(state: SaddlePointState) -> Any:
        left, right = parsed.evaluate_condition_sides(
            {name: state.evaluate_observable(name) for name in parsed.names}, number
        )
        return left - right

    return _condition_difference
