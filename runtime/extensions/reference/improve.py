"""Refinement from double precision to any accuracy: digits and nodes grow until two quadrature rules agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ...base.errors import DomainError, NotConvergedError, require_in_interval
from ...base.options import AlgorithmOptions
from ...base.progress import progress_bar
from ...integration.rule import DIFFERENCE_SAFETY
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from .numbers import PreciseParameters, array_from_decimals
from .quadrature import QuadratureRule
from .system import SaddlePointRoot, SaddlePointState, SaddlePointSystem, newton_correction, solve_by_chord_iteration

FINEST_ACCURACY = 1e-200


@dataclass(frozen=True)
class PrecisionOptions(AlgorithmOptions):
    """Options of solutions at high precision.

    Attributes:
        guard_digits: digits of the working precision beyond those asked for.
        max_attempts: attempts, each with more nodes and digits than the last.
        digits_per_attempt: digits that each attempt adds.
        jacobian_digits: working precision of the Jacobian.
        rough_digits: digits to which the double-precision solution is refined first.
    """

    guard_digits: int = 12
    max_attempts: int = 4
    digits_per_attempt: int = 6
    jacobian_digits: int = 30
    rough_digits: int = 16


@dataclass(frozen=True)
class SolutionWithErrorBars:
    """A solution of the saddle-point equations at high precision, with its error bars.

    Attributes:
        integration: error bars of the unknowns due to integration, from the difference of two quadrature rules.
        remaining: error bars of the unknowns due to the remaining residual.
        other: saddle-point map by the second quadrature rule at the same unknowns.
        digits: working precision in decimal digits.
        kinked: whether the loss has kinks.
    """

    system: SaddlePointSystem
    root: SaddlePointRoot
    integration: np.ndarray
    remaining: np.ndarray
    other: SaddlePointState
    digits: int
    kinked: bool
    status: Status

    @property
    def error_bars(self) -> np.ndarray:
        """The error bars of all unknowns: those due to integration plus those due to the remaining residual."""
        return self.integration + self.remaining

    def evaluate_quantity_with_error(
        self, quantity: Callable[[SaddlePointState], Any], stationary: bool = False
    ) -> tuple[Any, Any]:
        """Return a quantity, such as the free entropy, at the high-precision solution, and its error bar.

        Errors are those of integration, by a second quadrature rule, and of the unknowns.

        Args:
            quantity: function that returns the quantity for a `SaddlePointState`.
            stationary: whether errors of the unknowns enter to second order only.
        """
        with mp.workdps(self.digits):
            value = quantity(self.root.state)
            error = DIFFERENCE_SAFETY * abs(quantity(self.other) - value)
            if not stationary:
                moved = self.system.evaluate_saddle_point_map(self.root.z + self.error_bars, self.root.state.rule)
                error += abs(quantity(moved) - value)
            return value, error

    @property
    def accuracy_evidence(self) -> dict[str, Any]:
        """The evidence for the accuracy: digits, quadrature rules, residual, and error of the sum of all weights."""
        with mp.workdps(self.digits):
            missing = abs(self.root.state.saddle_point_averages.mass - 1)
        return {
            "digits": self.digits,
            "rules": [state.rule.describe_quadrature_rule(self.kinked) for state in (self.root.state, self.other)],
            "residuals": [self.root.largest_residual],
            "missing_weight": float(missing),
        }


def check_accuracy_in_range(accuracy: float) -> None:
    """Raise InputError if an accuracy lies outside [1e-200, 1)."""
    require_in_interval("accuracy", accuracy, f"[{FINEST_ACCURACY:g}, 1)")


def refine_solution(
    system: SaddlePointSystem, z: np.ndarray, accuracy: float, select_error: Callable[[np.ndarray], Any], label: str
) -> SolutionWithErrorBars:
    """Return a solution of saddle-point equations refined from double precision to a given accuracy.

    Args:
        system: saddle-point equations, with or without a condition.
        z: unknowns in double precision.
        accuracy: error bar asked for.
        select_error: function that returns, from the error bars of all unknowns, the one to compare with the accuracy.
        label: title of the progress bar.

    Raises:
        InputError: the Moreau objective (loss plus quadratic proximity) has competing minima.
        NotConvergedError: Newton's method left the domain of the overlaps.
    """
    options, asked = PrecisionOptions.current(), int(np.ceil(-np.log10(accuracy)))
    kinked, lost = kinks_and_cancelled_digits_of_loss(system.problem)
    z = array_from_decimals(z)
    try:
        with progress_bar(label, options.max_attempts + 1) as task:
            with mp.workdps(options.jacobian_digits + lost):
                rough = QuadratureRule(False, _quadrature_level_for_digits(options.rough_digits))
                z = solve_by_chord_iteration(
                    system, z, rough, 10.0**-options.rough_digits, system.residual_jacobian(z, rough)
                ).z
                jacobian = system.residual_jacobian(z, rough)
            task.count_finished_step()
            for attempt in range(options.max_attempts):
                digits = asked + options.guard_digits + lost + options.digits_per_attempt * attempt
                goal = asked + options.guard_digits // 2
                level = _quadrature_level_for_digits(goal) + attempt
                with mp.workdps(digits):
                    root = solve_by_chord_iteration(system, z, QuadratureRule(False, level), 10.0**-goal, jacobian)
                    other = system.evaluate_saddle_point_map(root.z, QuadratureRule(True, level))
                    moved = newton_correction(root, system.saddle_point_residual(other))
                    found = SolutionWithErrorBars(
                        system,
                        root,
                        integration=DIFFERENCE_SAFETY * np.abs(moved) * system.scales,
                        remaining=np.abs(newton_correction(root, root.residual)) * system.scales,
                        other=other,
                        digits=digits,
                        kinked=kinked,
                        status=Status.CONVERGED,
                    )
                z = root.z
                task.count_finished_step()
                if select_error(found.error_bars) <= accuracy:
                    return found
    except DomainError as error:
        raise NotConvergedError(f"{label}: Newton's method left the domain of the overlaps ({error})") from error
    return replace(found, status=Status.ACCURACY_NOT_REACHED)


def _quadrature_level_for_digits(digits: int) -> int:
    """Return the smallest refinement level at which Gauss-Legendre panels are accurate to given digits."""
    level = 4
    while 3 * 2 ** (level - 1) < 0.9 * digits + 4:
        level += 1
    return level


def kinks_and_cancelled_digits_of_loss(problem: Problem) -> tuple[bool, int]:
    """Return whether the loss has kinks, and how many digits cancel in differences of close kinks."""
    with mp.workdps(1000):
        module, c = (problem.solver.multiprecision_functions, PreciseParameters.from_problem(problem).loss_constants(0))
        found = module.loss_kinks(mpf(1), *[mpf(0)] * len(module.GAUSSIAN), c)
        gaps = [right - left for left, right in pairwise(sorted(mp.re(z) for z in found)) if right > left]
        return bool(found), max(0, int(mp.ceil(-mp.log10(min(gaps))))) if gaps else 0


def value_and_error_strings(value: Any, error: Any) -> tuple[str, str]:
    """Return a value and its error bar as decimal strings, the value to two digits of its error bar.

    Args:
        value: value to write.
        error: error bar of the value.
    """
    if not (mp.isfinite(value) and mp.isfinite(error)):
        return "nan", "nan"
    places = max(0, 2 - int(mp.floor(mp.log10(error)))) if error else mp.dps
    digits = places + int(mp.floor(mp.log10(abs(value)))) + 1 if value else 0
    shown = mp.nstr(value, digits, strip_zeros=False, min_fixed=-mp.inf, max_fixed=mp.inf) if digits > 0 else "0"
    return shown, mp.nstr(error, 2)
