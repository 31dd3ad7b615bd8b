"""Thresholds to any accuracy: the saddle points and the condition are solved together, for overlaps and parameter."""

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

ROUGH = 1e-4  # half width of the threshold in double precision to start from


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
    def near(
        cls,
        rough: Threshold,
        problem: Problem,
        value: Any,
        error: Any,
        error_kind: str,
        status: Status,
        evidence: dict[str, Any],
    ) -> PreciseThreshold:
        """In place of a threshold in double precision, which the evidence keeps.

        Args:
            problem: that of the rough threshold, or one nearby.
            value, error: mpf.
        """
        known = {field.name: getattr(rough, field.name) for field in fields(Threshold)}
        evidence = {**evidence, "double_precision": {"value": rough.value, "error": rough.error}}
        known |= {"error_kind": error_kind, "status": status.value, "problem": problem, "evidence": evidence}
        return cls(**known | {"value": float(value), "error": float(error)}, exact=value, half_width=error)

    @property
    def decimals(self) -> tuple[str, str]:
        """As of `Threshold`, from numbers of any length."""
        with mp.workdps(self.evidence["digits"]):
            return decimal_strings(self.exact, self.half_width)

    @property
    def shown(self) -> str:
        """Both `decimals`, where a double would be rounded."""
        return " +- ".join(self.decimals)


def check_threshold(problem: Problem, condition: str, accuracy: float) -> None:
    """Refuse what is out of reach before anything is computed.

    Raises:
        InputError: accuracy, model, or a name in the condition.
    """
    check_accuracy(accuracy)
    check_supported(problem)
    names = parse_condition(condition, problem).names
    for name in names:
        require_known("quantity", name, OBSERVABLES, "a condition at high precision")
    if "test_error" in names and "metric" not in problem.solver.reference.DRIVES:
        raise InputError(f"the metric of {problem.solver.name} is not available at high precision")


def verified_threshold(rough: Threshold, condition: str, accuracy: float, problem: Problem) -> PreciseThreshold:
    """The threshold near one in double precision, by two rules at rising precision.

    Args:
        condition: the one that it is of.
        problem: that of the rough threshold, or one nearby.

    Raises:
        InputError: minima of the Moreau objective compete.
        NotConvergedError: the iteration left the domain of the overlaps.
    """
    z, scales = unknowns_at(rough)
    system = System(problem, scales, rough.parameter, difference_of_sides(condition, problem))
    found = solve_to_accuracy(system, z, accuracy, lambda errors: errors[-1], f"{rough.kind}: {accuracy:g}")
    with mp.workdps(found.digits):
        value, error = found.root.z[-1], found.errors[-1]
    evidence = {
        **found.evidence,
        **problem.held_at,
        "half_width_integration": float(found.integration[-1]),
        "half_width_root": float(found.remaining[-1]),
    }
    return PreciseThreshold.near(rough, problem, value, error, "verified", found.status, evidence)


def unknowns_at(rough: Threshold) -> tuple[np.ndarray, np.ndarray]:
    """Overlaps and parameter at a threshold in double precision, and their scales."""
    start = rough.solutions[0].overlaps
    scales = np.append(start.block_scales, max(abs(rough.value), 1e-3))
    return np.append(start.pack(), rough.value), scales


def difference_of_sides(condition: str, problem: Problem, number: Callable[[Any], Any] = mpf) -> Callable[[State], Any]:
    """Left side minus right side of a condition; `number` reads its decimals."""
    read = parse_condition(condition, problem)

    def at(state: State) -> Any:
        left, right = read.compared({name: state.observable(name) for name in read.names}, number)
        return left - right

    return at
