"""The Krawczyk test in ball arithmetic, which proves that a box contains exactly one solution of equations F(z) = 0.

See R. Krawczyk, Computing 4 (1969) 187; S. M. Rump, Acta Numerica 19 (2010) 287, section 13. Let J contain the Jacobian
of F at all points of the box |z - z0| <= rho, and Y be an approximate inverse of J. If |Y F(z0)| < (1 - e) rho with the
contraction constant e = |1 - Y J| < 1 (largest row sum), the box contains exactly one zero of F. Its distance from any
point z of the box is at most |Y F(z)| / (1 - e).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from flint import arb, ctx
from mpmath import iv

from ...base import budget
from ...base.errors import DomainError, NotProvedError
from ...base.options import AlgorithmOptions
from ...problems.overlaps import Overlaps
from ..reference.channel import ChannelAverages
from ..reference.numbers import PreciseParameters
from ..reference.system import SaddlePointState, SaddlePointSystem
from .arithmetic import reference_module_on_balls
from .channel import BallChannelAverages, IntegralAccuracy
from .duals import DualNumber, ball_from_number, dual_from_number, dual_number_from_decimal


@dataclass(frozen=True)
class KrawczykOptions(AlgorithmOptions):
    """Options of the Krawczyk test.

    Attributes:
        largest_box, smallest_box: largest and smallest radius of the boxes that are tried, relative to the overlaps.
        newton_steps: largest number of Newton steps before the test.
        newton_tolerance: size of a Newton step below which Newton's method has converged.
        derivative_digits: digits of the integrals in derivatives; more cost more time, but allow larger boxes.
        digits_per_step: least number of digits that a Newton step after the test gains.
        guard_bits: bits of the working precision in addition to the digits.
        integral_digits: digits of an integral in addition to the required ones.
        contraction: largest contraction constant for which a box is accepted.
        power_iterations: number of steps of the power method for the replicon.
    """

    largest_box: float = 1e-6
    smallest_box: float = 1e-25
    newton_steps: int = 8
    newton_tolerance: float = 1e-8
    derivative_digits: int = 9
    digits_per_step: int = 7
    guard_bits: int = 30
    integral_digits: int = 6
    contraction: float = 0.25
    power_iterations: int = 200


@dataclass(frozen=True)
class BallSaddlePointState(SaddlePointState):
    """The saddle-point map evaluated at given overlaps in ball arithmetic."""

    @cached_property
    def channel_averages(self) -> ChannelAverages[Any]:
        """The averages over the channel at these overlaps, in ball arithmetic."""
        return BallChannelAverages(self.numbers, self.overlaps)

    @cached_property
    def mean_squared_responses(self) -> np.ndarray:
        """The mean squared derivative of the proximal map in its argument omega, for every (token, cluster) pair."""
        return self.channel_averages.mean_squared_responses(self.rule)

    @property
    def replicon(self) -> Any:
        """A ball that contains the replicon, the largest eigenvalue of a positive matrix (Collatz-Wielandt bounds)."""
        matrix = self._replicon_map
        if len(matrix) == 1:
            return matrix[0, 0]
        middle = np.vectorize(lambda entry: float(entry.value.mid()), otypes=[float])(matrix)
        x = np.ones(len(matrix))
        for _ in range(KrawczykOptions.current().power_iterations):
            x = middle @ x / np.max(middle @ x)
        ratios = [sum(row * x, start=dual_from_number(0)) / z for row, z in zip(matrix, x, strict=True)]
        if any(ratio.slopes for ratio in ratios):
            raise NotProvedError(
                "a threshold at a value of the replicon eigenvalue can be proved only for models with one cluster"
            )
        return DualNumber(reduce(arb.union, [ratio.value for ratio in ratios]))


@dataclass(frozen=True)
class BallSaddlePointSystem(SaddlePointSystem):
    """The saddle-point equations in ball arithmetic, optionally with a condition for a threshold as last equation."""

    def evaluate_saddle_point_map(self, z: np.ndarray, rule: Any) -> BallSaddlePointState:
        """Return the saddle-point map evaluated at given unknowns, in ball arithmetic.

        A parameter given as a float stands for the decimal number that it is printed as.

        Args:
            z: packed overlaps and, with a condition for a threshold, the parameter.
            rule: required accuracy of the integrals.
        """
        budget.check_time_limit()
        u, value = (z, None) if self.condition is None else (z[:-1], z[-1])
        module = reference_module_on_balls(self.problem)
        numbers = PreciseParameters.from_problem(
            self.problem, self.parameter, value, number=dual_number_from_decimal, reference=module
        )
        return BallSaddlePointState(numbers, Overlaps.unpack(u, self.problem.sizes), rule)

    def residual_and_jacobian_on_box(self, z: Sequence[arb], radius: float) -> tuple[np.ndarray, np.ndarray]:
        """Return balls that contain the residuals and the Jacobian of the equations at all points of a box.

        Args:
            z: centre of the box.
            radius: radius of the box, relative to the scales of the unknowns.

        Raises:
            NotProvedError: the Jacobian is not bounded in the box.
        """
        count = len(z)
        scales = [ball_from_number(float(scale)) for scale in self.scales]
        unknowns = [
            DualNumber(centre + scale * arb(0, radius), tuple(scale if j == i else arb(0) for j in range(count)))
            for i, (centre, scale) in enumerate(zip(z, scales, strict=True))
        ]
        found = self.saddle_point_residual(
            self.evaluate_saddle_point_map(
                _object_array(unknowns),
                IntegralAccuracy.from_decimal_digits(KrawczykOptions.current().derivative_digits),
            )
        )
        rows = [entry.slopes or (arb(0),) * count for entry in found]
        if not all(entry.is_finite() for row in rows for entry in row):
            raise NotProvedError(
                "the Jacobian of the saddle-point equations is not bounded in the box around the solution"
            )
        return _object_array([entry.value for entry in found]), _object_array(rows)


@dataclass(frozen=True)
class KrawczykProof:
    """A proof that a box contains exactly one solution of the saddle-point equations.

    Attributes:
        system: saddle-point equations in ball arithmetic.
        z: approximate unknowns near the solution.
        radius: proved bound of the distance of every unknown from the solution.
        box: radius of the box in which the solution is unique, relative to the scales of the unknowns.
        contraction: contraction constant of the Krawczyk test, below 1.
        residual: bound of the residual of the equations at z.
        reached: whether the radius is as small as the required accuracy.
        bits: working precision in bits.
        goal: accuracy of the integrals.
    """

    system: BallSaddlePointSystem
    z: np.ndarray
    radius: np.ndarray
    box: float
    contraction: float
    residual: float
    reached: bool
    bits: int
    goal: IntegralAccuracy

    @cached_property
    def solution_enclosure(self) -> BallSaddlePointState:
        """The saddle-point map evaluated at balls that contain the exact solution."""
        with use_ball_precision(self.bits):
            return self.system.evaluate_saddle_point_map(
                _object_array([DualNumber(unknown) for unknown in self.solution_balls]), self.goal
            )

    @property
    def solution_balls(self) -> list[arb]:
        """Balls that contain the overlaps of the exact solution, then the parameter if it is an unknown."""
        with use_ball_precision(self.bits):
            return [centre + arb(0, width) for centre, width in zip(self.z, self.radius, strict=True)]

    def enclose_quantity(self, quantity: Callable[[SaddlePointState], Any]) -> arb:
        """Return a ball that contains the value of an observable at the exact solution."""
        with use_ball_precision(self.bits):
            found = dual_from_number(quantity(self.solution_enclosure)).value
            if not found.is_finite():
                raise NotProvedError("the bounds of an observable within the error bars of the solution are not finite")
            return found

    @property
    def proof_evidence(self) -> dict[str, Any]:
        """The claim, method and numbers of the proof as a dictionary for JSON."""
        return {
            "method": "Krawczyk test in Arb balls",
            "claim": "the equations have exactly one solution in the box, within the error bars of the value",
            "box": self.box,
            "contraction": self.contraction,
            "bits": self.bits,
        }


def prove_solution_exists(
    system: BallSaddlePointSystem,
    z: Sequence[Any],
    digits: int,
    asked: int,
    select_error: Callable[[np.ndarray], float],
    accuracy: float,
) -> KrawczykProof:
    """Prove that the saddle-point equations have exactly one solution near approximate unknowns.

    Args:
        system: saddle-point equations in ball arithmetic.
        z: approximate unknowns.
        digits: working precision in decimal digits.
        asked: required digits of the solution.
        select_error: function that returns the error bar to compare with the accuracy, from those of all unknowns.
        accuracy: required error bar.

    Raises:
        NotProvedError: the proof failed; the message says why.
    """
    options = KrawczykOptions.current()
    bits = int(digits * math.log2(10)) + options.guard_bits
    try:
        with use_ball_precision(bits):
            start = _refine_by_newton_steps(system, [ball_from_number(number) for number in z])
            return prove_solution_in_box(system, start, bits, asked + options.integral_digits, select_error, accuracy)
    except DomainError as error:
        raise NotProvedError(str(error)) from error


def prove_solution_in_box(
    system: BallSaddlePointSystem,
    start: list[arb],
    bits: int,
    digits: int,
    select_error: Callable[[np.ndarray], float],
    accuracy: float,
) -> KrawczykProof:
    """Prove that a box around approximate unknowns contains exactly one solution, and reduce its error bars.

    Args:
        system: saddle-point equations in ball arithmetic.
        start: approximate unknowns.
        bits: working precision in bits.
        digits: decimal digits of the integrals.
        select_error: function that returns the error bar to compare with the accuracy, from those of all unknowns.
        accuracy: required error bar.

    Raises:
        NotProvedError: no box is proved to contain a solution.
        DomainError: the box contains overlaps outside the domain.
    """
    scales, options = [ball_from_number(float(scale)) for scale in system.scales], KrawczykOptions.current()
    now = start
    box, Y, e = _find_contracting_box(system, start)
    for step in range(digits // options.digits_per_step + 2):
        goal = IntegralAccuracy.from_decimal_digits(
            min(digits, options.derivative_digits + (step + 1) * options.digits_per_step)
        )
        if not all(abs(a - b) < box * scale for a, b, scale in zip(now, start, scales, strict=True)):
            raise NotProvedError(
                "Newton's method left the box in which the Jacobian of the equations is proved invertible"
            )
        residual = system.saddle_point_residual(
            system.evaluate_saddle_point_map(_object_array([DualNumber(entry) for entry in now]), goal)
        )
        moved = Y @ _object_array([entry.value for entry in residual])
        sizes = [arb(entry.abs_upper()) for entry in moved]
        largest = reduce(arb.max, sizes)
        if step == 0 and not largest < (1 - e) * box:
            raise NotProvedError(
                f"Newton's step from the solution found, {float(largest):.2g} relative to the overlaps, may leave the "
                f"box of radius {box:.2g} in which the Jacobian of the equations is proved invertible"
            )
        radius = [
            ((size + e / (1 - e) * largest) * scale).abs_upper() for size, scale in zip(sizes, scales, strict=True)
        ]
        height = max(float(entry.value.abs_upper()) for entry in residual)
        reached = select_error(_object_array(radius)) <= accuracy
        proof = KrawczykProof(
            system, _object_array(now), _object_array(radius), box, float(e), height, reached, bits, goal
        )
        if reached:
            break
        now = [(entry - scale * shift).mid() for entry, scale, shift in zip(now, scales, moved, strict=True)]
    return proof


def _refine_by_newton_steps(system: BallSaddlePointSystem, z: list[arb]) -> list[arb]:
    """Return approximate unknowns, refined by Newton's method with the midpoints of the balls.

    Raises:
        NotProvedError: Newton's method does not converge.
    """
    options = KrawczykOptions.current()
    for _ in range(options.newton_steps):
        residual, derivatives = system.residual_and_jacobian_on_box(z, 0.0)
        steps = np.linalg.solve(_ball_midpoints(derivatives), np.array([float(entry.mid()) for entry in residual]))
        z = [
            (entry - ball_from_number(float(scale * step))).mid()
            for entry, scale, step in zip(z, system.scales, steps, strict=True)
        ]
        if np.abs(steps).max() < options.newton_tolerance:
            return z
    raise NotProvedError(
        f"Newton's method does not converge near the solution found: its last step is {np.abs(steps).max():.2g}"
    )


def _find_contracting_box(system: BallSaddlePointSystem, z: Sequence[arb]) -> tuple[float, np.ndarray, arb]:
    """Return a box in which Newton's map is proved to contract, for the Krawczyk test.

    Returned are its radius, an approximate inverse Jacobian and the contraction constant.

    Raises:
        NotProvedError: there is no such box.
    """
    options = KrawczykOptions.current()
    reason, box = (
        "the Jacobian of the equations is not proved invertible in any box around the solution",
        options.largest_box,
    )
    while box > options.smallest_box:
        try:
            _, derivatives = system.residual_and_jacobian_on_box(z, box)
            inverse = np.linalg.inv(_ball_midpoints(derivatives))
        except (NotProvedError, DomainError, np.linalg.LinAlgError) as error:
            reason, box = str(error), float(f"{box / 1000:.0e}")
            continue
        Y = _object_array([[ball_from_number(float(entry)) for entry in row] for row in inverse])
        e = _contraction_constant(Y, derivatives)
        if e < options.contraction:
            return box, Y, e
        # e grows with the box, whose size is printed to one digit.
        box = float(f"{box * max(1e-6, min(0.5, 0.1 / float(e))):.0e}")
    raise NotProvedError(reason)


def _contraction_constant(Y: np.ndarray, derivatives: np.ndarray) -> arb:
    """Return the contraction constant: the largest row sum of |1 - Y J|, Y the approximate inverse Jacobian."""
    gap = np.eye(len(Y), dtype=int) - Y @ derivatives
    return reduce(arb.max, [arb(sum((arb(entry.abs_upper()) for entry in row), start=arb(0)).upper()) for row in gap])


def _ball_midpoints(matrix: np.ndarray) -> np.ndarray:
    return np.array([[float(entry.mid()) for entry in row] for row in matrix])


def _object_array(entries: Sequence[Any]) -> np.ndarray:
    return np.array(entries, dtype=object)


@contextmanager
def use_ball_precision(bits: int) -> Iterator[None]:
    """Set, within a `with` block, the precision of ball and interval arithmetic in bits."""
    rays, iv.prec = iv.prec, bits
    try:
        with ctx.workprec(bits):
            yield
    finally:
        iv.prec = rays
