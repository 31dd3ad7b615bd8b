"""Thresholds to any accuracy: saddle point and condition are solved jointly for overlaps and parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ...base.errors import InputError, require_known
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...thresholds.conditions import parse_condition
from ...thresholds.threshold import Threshold
from .channel import check_supported
from .improve import check_accuracy, decimal_strings, solve_to_accuracy
from .system import OBSERVABLES, State, System

ROUGH = 1e-4  # error bar of the threshold in double precision to start from


@dataclass(frozen=True, repr=False)
class PreciseThreshold(Threshold):
    """A threshold with more digits than a double holds: `exact` and `half_width` are mpf.

    Example:
        >>> problem, asked = sf.problem("logistic_regression"), "test_error = 0.15"
        >>> found = sf.where(problem, asked, on="semantic", bracket=(1, 6), accuracy=1e-20)
        >>> str(found.exact)[:12], bool(found.half_width < 1e-20)
        ('2.6591155310', True)
    """

    exact: Any = None
    half_width: Any = None

    @classmethod
    def from_rough(
        cls,
        rough: Threshold,
        problem: Problem,
        value: Any,
        error: Any,
        error_kind: str,
        status: Status,
        evidence: dict[str, Any],
    ) -> PreciseThreshold:
        """Return a precise threshold in place of one in double precision, which the evidence contains.

        Args:
            rough: threshold in double precision.
            problem: its problem, or one nearby.
            value: value, mpf.
            error: error bar, mpf.
            error_kind: kind of the error bar.
            status: status of the solution.
            evidence: evidence for the value.
        """
        known = {field.name: getattr(rough, field.name) for field in fields(Threshold)}
        evidence = {**evidence, "double_precision": {"value": rough.value, "error": rough.error}}
        known |= {"error_kind": error_kind, "status": status.value, "problem": problem, "evidence": evidence}
        return cls(**known | {"value": float(value), "error": float(error)}, exact=value, half_width=error)

    @property
    def decimals(self) -> tuple[str, str]:
        """The value and its error bar as decimal strings of any length."""
        with mp.workdps(self.evidence["digits"]):
            return decimal_strings(self.exact, self.half_width)

    @property
    def shown(self) -> str:
        """The value and its error bar as one text."""
        return " +- ".join(self.decimals)


def check_threshold(problem: Problem, condition: str, accuracy: float) -> None:
    """Raise InputError if a threshold cannot be computed at high precision.

    Args:
        problem: the problem.
        condition: the condition.
        accuracy: error bar asked for.

    Raises:
        InputError: an accuracy out of range, an unsupported model, or an unsupported name in the condition.
    """
    check_accuracy(accuracy)
    check_supported(problem)
    names = parse_condition(condition, problem).names
    for name in names:
        require_known("quantity", name, OBSERVABLES, "a condition at high precision")
    if "test_error" in names and "metric" not in problem.solver.reference.DRIVES:
        raise InputError(f"the metric of {problem.solver.name} is not available at high precision")


def verified_threshold(rough: Threshold, condition: str, accuracy: float, problem: Problem) -> PreciseThreshold:
    """Return the threshold near one in double precision, by two rules at increasing precision.

    Args:
        rough: threshold in double precision.
        condition: its condition.
        accuracy: error bar asked for.
        problem: its problem, or one nearby.

    Raises:
        InputError: minima of the Moreau objective compete.
        NotConvergedError: the iteration left the domain of the overlaps.
    """
    z, scales = unknowns_at_threshold(rough)
    system = System(problem, scales, rough.parameter, condition_residual(condition, problem))
    found = solve_to_accuracy(system, z, accuracy, lambda errors: errors[-1], f"{rough.kind}: {accuracy:g}")
    with mp.workdps(found.digits):
        value, error = found.root.z[-1], found.errors[-1]
    evidence = {
        **found.evidence,
        **problem.limits_not_taken,
        "error_integration": float(found.integration[-1]),
        "error_root": float(found.remaining[-1]),
    }
    return PreciseThreshold.from_rough(rough, problem, value, error, "verified", found.status, evidence)


def unknowns_at_threshold(rough: Threshold) -> tuple[np.ndarray, np.ndarray]:
    """Return overlaps and parameter at a threshold in double precision, and their scales."""
    start = rough.solutions[0].overlaps
    scales = np.append(start.block_scales, max(abs(rough.value), 1e-3))
    return np.append(start.pack(), rough.value), scales


def condition_residual(condition: str, problem: Problem, number: Callable[[Any], Any] = mpf) -> Callable[[State], Any]:
    """Return a function of a state: left side minus right side of a condition.

    Args:
        condition: the condition.
        problem: the problem.
        number: function that converts its decimals.
    """
    parsed = parse_condition(condition, problem)

    def _residual(state: State) -> Any:
        left, right = parsed.evaluate_sides({name: state.observable(name) for name in parsed.names}, number)
        return left - right

    return _residual
