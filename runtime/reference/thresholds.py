"""Thresholds to any accuracy: the saddle points and the condition are solved together, for overlaps and parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ..errors import InputError
from ..problems.problem import Problem
from ..thresholds.conditions import parse_condition
from ..thresholds.threshold import Threshold
from .channel import check_supported
from .improve import check_accuracy, decimals, improve
from .solution import check_available
from .system import OBSERVABLES, State, System

ROUGH = 1e-4  # half width of the threshold in double precision to start from


@dataclass(frozen=True, repr=False)
class PreciseThreshold(Threshold):
    """A threshold with more digits than a double holds: `exact` and `half_width` are mpf."""

    exact: Any = None
    half_width: Any = None

    @property
    def decimals(self) -> tuple[str, str]:
        """As of `Threshold`, from the numbers of any length that `exact` and `half_width` are."""
        with mp.workdps(self.evidence["digits"]):
            return decimals(self.exact, self.half_width)

    @property
    def shown(self) -> str:
        """Both `decimals`, where a double would be rounded."""
        return " +- ".join(self.decimals)


def check(problem: Problem, condition: str, accuracy: float, proof: bool = False) -> None:
    """Refuse what is out of reach before anything is computed.

    Raises:
        InputError: accuracy, model, a name in the condition, or no ball arithmetic for a proof.
    """
    if proof:
        check_available()
    check_accuracy(accuracy)
    check_supported(problem)
    names = parse_condition(condition).names
    unknown = sorted(set(names) - set(OBSERVABLES))
    if unknown:
        raise InputError(f"{unknown[0]} is not available at high precision; known are {', '.join(OBSERVABLES)}")
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
    z, scales = unknowns(rough)
    system = System(problem, scales, rough.parameter, difference(condition))
    found = improve(system, z, accuracy, lambda errors: errors[-1], f"{rough.kind}: {accuracy:g}")
    with mp.workdps(found.digits):
        value, error = found.root.z[-1], found.errors[-1]
    evidence = {
        **found.evidence,
        **problem.held_at,
        "half_width_integration": float(found.integration[-1]),
        "half_width_root": float(found.remaining[-1]),
        "double_precision": {"value": rough.value, "error": rough.error},
    }
    return PreciseThreshold(
        kind=rough.kind,
        parameter=rough.parameter,
        value=float(value),
        error=float(error),
        error_kind="verified",
        status=found.status.value,
        branches=rough.branches,
        problem=problem,
        solutions=rough.solutions,
        evidence=evidence,
        exact=value,
        half_width=error,
    )


def unknowns(rough: Threshold) -> tuple[np.ndarray, np.ndarray]:
    """Overlaps and parameter at a threshold in double precision, and their scales."""
    start = rough.solutions[0].overlaps
    scales = np.append(start.block_scales, max(abs(rough.value), 1e-3))
    return np.append(start.pack(), rough.value), scales


def difference(condition: str, number: Callable[[Any], Any] = mpf) -> Callable[[State], Any]:
    """Left side minus right side of a condition; `number` reads its decimals."""
    read = parse_condition(condition)

    def at(state: State) -> Any:
        left, right = read.compared({name: state.observable(name) for name in read.names}, number)
        return left - right

    return at
