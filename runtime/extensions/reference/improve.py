"""From double precision to any accuracy: precision and nodes are raised until two different rules agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ...base.errors import DomainError, NotConvergedError, require_in
from ...base.progress import bar
from ...integration.rule import DIFFERENCE_SAFETY
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from .numbers import Numbers, decimal_array
from .quadrature import Rule
from .system import Root, State, System, newton, newton_shift

FINEST_ACCURACY = 1e-200
_SPARE_DIGITS = 12  # beyond those asked for
_ATTEMPTS = 4
_DIGITS_AN_ATTEMPT = 6
_JACOBIAN_DIGITS, _ROUGH_DIGITS = 30, 16


@dataclass(frozen=True)
class AccurateRoot:
    """Unknowns with their half widths.

    Attributes:
        integration, remaining: parts of the half widths: from the difference of two rules, and from the residual.
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
        """Half widths of the unknowns."""
        return self.integration + self.remaining

    def half_width(self, quantity: Callable[[State], Any], stationary: bool = False) -> tuple[Any, Any]:
        """A quantity at the solution, and its half width: what the second rule says of it, and of the unknowns.

        Args:
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
        """Precision, rules, undamped residual and what the weights miss of one."""
        with mp.workdps(self.digits):
            missing = abs(self.root.state.totals.mass - 1)
        return {
            "digits": self.digits,
            "rules": [state.rule.describe(self.kinked) for state in (self.root.state, self.other)],
            "residuals": [self.root.size],
            "missing_weight": float(missing),
        }


def check_accuracy(accuracy: float) -> None:
    """Raise InputError where an accuracy is out of range."""
    require_in("accuracy", accuracy, f"[{FINEST_ACCURACY:g}, 1)")


def solve_to_accuracy(
    system: System, z: np.ndarray, accuracy: float, judged: Callable[[np.ndarray], Any], label: str
) -> AccurateRoot:
    """Solve the system from unknowns in double precision.

    Args:
        judged: half widths of the unknowns -> the one that the accuracy is asked of.

    Raises:
        InputError: minima of the Moreau objective compete.
        NotConvergedError: Newton left the domain of the overlaps.
    """
    asked = int(np.ceil(-np.log10(accuracy)))
    kinked, lost = kinks_and_lost_digits(system.problem)
    z = decimal_array(z)
    try:
        with bar(label, _ATTEMPTS + 1) as task:
            with mp.workdps(_JACOBIAN_DIGITS + lost):
                rough = Rule(False, _level(_ROUGH_DIGITS))
                z = newton(system, z, rough, 10.0**-_ROUGH_DIGITS, system.jacobian(z, rough)).z
                jacobian = system.jacobian(z, rough)
            task.advance()
            for attempt in range(_ATTEMPTS):
                digits = asked + _SPARE_DIGITS + lost + _DIGITS_AN_ATTEMPT * attempt
                level = _level(asked + _SPARE_DIGITS // 2) + attempt
                with mp.workdps(digits):
                    root = newton(system, z, Rule(False, level), 10.0 ** -(asked + _SPARE_DIGITS // 2), jacobian)
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
                if judged(found.errors) <= accuracy:
                    return found
    except DomainError as error:
        raise NotConvergedError(f"{label}: the iteration left the domain of the overlaps ({error})") from error
    return replace(found, status=Status.ACCURACY_NOT_REACHED)


def _level(digits: int) -> int:
    """The smallest level whose Gauss-Legendre panels can hold so many digits."""
    level = 4
    while 3 * 2 ** (level - 1) < 0.9 * digits + 4:
        level += 1
    return level


def kinks_and_lost_digits(problem: Problem) -> tuple[bool, int]:
    """Whether the loss has kinks in X, and digits that cancel on panels between kinks that lie close together."""
    with mp.workdps(1000):
        module, c = problem.solver.reference, Numbers.of(problem).constants(0)
        found = module.loss_kinks(mpf(1), *[mpf(0)] * len(module.GAUSSIAN), c)
        gaps = [right - left for left, right in pairwise(sorted(mp.re(z) for z in found)) if right > left]
        return bool(found), max(0, int(mp.ceil(-mp.log10(min(gaps))))) if gaps else 0


def decimal_strings(value: Any, error: Any) -> tuple[str, str]:
    """A value to two digits beyond its half width, and the half width, as decimal strings."""
    if not (mp.isfinite(value) and mp.isfinite(error)):
        return "nan", "nan"
    places = max(0, 2 - int(mp.floor(mp.log10(error)))) if error else mp.dps
    digits = places + int(mp.floor(mp.log10(abs(value)))) + 1 if value else 0
    shown = mp.nstr(value, digits, strip_zeros=False, min_fixed=-mp.inf, max_fixed=mp.inf) if digits > 0 else "0"
    return shown, mp.nstr(error, 2)
