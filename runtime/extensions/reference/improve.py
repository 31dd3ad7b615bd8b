"""Refinement from double precision to any accuracy: precision and nodes grow until two different rules agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ...base.errors import DomainError, NotConvergedError, require_in
from ...base.options import AlgorithmOptions
from ...base.progress import progress_bar
from ...integration.rule import DIFFERENCE_SAFETY
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from .numbers import Numbers, decimal_array
from .quadrature import Rule
from .system import Root, State, System, chord_iteration, newton_shift

FINEST_ACCURACY = 1e-200


@dataclass(frozen=True)
class PrecisionOptions(AlgorithmOptions):
    """Options of solutions at high precision.

    Attributes:
        guard_digits: digits of the working precision beyond those asked for.
        max_attempts: attempts, each with more nodes and digits than the last.
        digits_per_attempt: digits that each attempt adds.
        jacobian_digits: working precision of the Jacobian.
        rough_digits: digits of the first solution.
    """

    guard_digits: int = 12
    max_attempts: int = 4
    digits_per_attempt: int = 6
    jacobian_digits: int = 30
    rough_digits: int = 16


@dataclass(frozen=True)
class AccurateRoot:
    """A root with its error bars.

    Attributes:
        integration, remaining: parts of the error bars: from the difference of two rules, and from the residual.
        other: the map under the second rule at the same unknowns.
        digits: precision in decimals; kinked: whether the loss has kinks.
    """

    system: System
    root: Root
    integration: np.ndarray
    remaining: np.ndarray
    other: State
    digits: int
    kinked: bool
    status: Status

    @property
    def errors(self) -> np.ndarray:
        """The error bars of the unknowns."""
        return self.integration + self.remaining

    def value_and_error(self, quantity: Callable[[State], Any], stationary: bool = False) -> tuple[Any, Any]:
        """Return a quantity at the solution, and its error bar from the second rule and the errors of the unknowns.

        Args:
            quantity: function of a state.
            stationary: errors of the unknowns enter to second order only.
        """
        with mp.workdps(self.digits):
            value = quantity(self.root.state)
            error = DIFFERENCE_SAFETY * abs(quantity(self.other) - value)
            if not stationary:
                moved = self.system.state(self.root.z + self.errors, self.root.state.rule)
                error += abs(quantity(moved) - value)
            return value, error

    @property
    def evidence(self) -> dict[str, Any]:
        """The precision, rules, undamped residual and error of the total weight."""
        with mp.workdps(self.digits):
            missing = abs(self.root.state.totals.mass - 1)
        return {
            "digits": self.digits,
            "rules": [state.rule.describe(self.kinked) for state in (self.root.state, self.other)],
            "residuals": [self.root.size],
            "missing_weight": float(missing),
        }


def check_accuracy(accuracy: float) -> None:
    """Raise InputError if an accuracy is out of range."""
    require_in("accuracy", accuracy, f"[{FINEST_ACCURACY:g}, 1)")


def solve_to_accuracy(
    system: System, z: np.ndarray, accuracy: float, select_error: Callable[[np.ndarray], Any], label: str
) -> AccurateRoot:
    """Solve a system from unknowns in double precision.

    Args:
        system: the system.
        z: unknowns in double precision.
        accuracy: error bar asked for.
        select_error: function of the error bars of the unknowns that returns the one to compare with the accuracy.
        label: title of its progress.

    Raises:
        InputError: minima of the Moreau objective compete.
        NotConvergedError: Newton left the domain of the overlaps.
    """
    options, asked = PrecisionOptions.current(), int(np.ceil(-np.log10(accuracy)))
    kinked, lost = find_kinks_and_lost_digits(system.problem)
    z = decimal_array(z)
    try:
        with progress_bar(label, options.max_attempts + 1) as task:
            with mp.workdps(options.jacobian_digits + lost):
                rough = Rule(False, _rule_level(options.rough_digits))
                z = chord_iteration(system, z, rough, 10.0**-options.rough_digits, system.jacobian(z, rough)).z
                jacobian = system.jacobian(z, rough)
            task.advance()
            for attempt in range(options.max_attempts):
                digits = asked + options.guard_digits + lost + options.digits_per_attempt * attempt
                goal = asked + options.guard_digits // 2
                level = _rule_level(goal) + attempt
                with mp.workdps(digits):
                    root = chord_iteration(system, z, Rule(False, level), 10.0**-goal, jacobian)
                    other = system.state(root.z, Rule(True, level))
                    moved = newton_shift(root, system.residual(other))
                    found = AccurateRoot(
                        system,
                        root,
                        integration=DIFFERENCE_SAFETY * np.abs(moved) * system.scales,
                        remaining=np.abs(newton_shift(root, root.residual)) * system.scales,
                        other=other,
                        digits=digits,
                        kinked=kinked,
                        status=Status.CONVERGED,
                    )
                z = root.z
                task.advance()
                if select_error(found.errors) <= accuracy:
                    return found
    except DomainError as error:
        raise NotConvergedError(f"{label}: the iteration left the domain of the overlaps ({error})") from error
    return replace(found, status=Status.ACCURACY_NOT_REACHED)


def _rule_level(digits: int) -> int:
    """Return the smallest level at which Gauss-Legendre panels reach this many digits."""
    level = 4
    while 3 * 2 ** (level - 1) < 0.9 * digits + 4:
        level += 1
    return level


def find_kinks_and_lost_digits(problem: Problem) -> tuple[bool, int]:
    """Return whether the loss has kinks in X, and the number of digits that cancel between close kinks."""
    with mp.workdps(1000):
        module, c = problem.solver.reference, Numbers.of(problem).constants(0)
        found = module.loss_kinks(mpf(1), *[mpf(0)] * len(module.GAUSSIAN), c)
        gaps = [right - left for left, right in pairwise(sorted(mp.re(z) for z in found)) if right > left]
        return bool(found), max(0, int(mp.ceil(-mp.log10(min(gaps))))) if gaps else 0


def decimal_strings(value: Any, error: Any) -> tuple[str, str]:
    """Return a value to two digits beyond its error bar, and the error bar, as decimal strings.

    Args:
        value: the value.
        error: its error bar.
    """
    if not (mp.isfinite(value) and mp.isfinite(error)):
        return "nan", "nan"
    places = max(0, 2 - int(mp.floor(mp.log10(error)))) if error else mp.dps
    digits = places + int(mp.floor(mp.log10(abs(value)))) + 1 if value else 0
    shown = mp.nstr(value, digits, strip_zeros=False, min_fixed=-mp.inf, max_fixed=mp.inf) if digits > 0 else "0"
    return shown, mp.nstr(error, 2)
