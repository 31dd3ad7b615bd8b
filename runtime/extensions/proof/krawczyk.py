"""The Krawczyk test in balls, which proves that a box contains exactly one solution.

See R. Krawczyk, Computing 4 (1969) 187; S. M. Rump, Acta Numerica 19 (2010) 287, section 13. F are the equations in
units of their blocks, J contains their derivatives over the box |z - z0| <= rho, and Y is about J^(-1). If |Y F(z0)| <
(1 - e) rho with e = |1 - Y J| < 1 (largest row sums), the box holds exactly one zero of F, and that is no further from
any z of the box than |Y F(z)| / (1 - e).
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
from ..reference.numbers import ProblemNumbers
from ..reference.system import SaddlePointState, SaddlePointSystem
from .arithmetic import reference_module_on_balls
from .channel import BallChannelAverages, IntegralAccuracy
from .duals import DualNumber, as_ball, as_dual, dual_from_decimal


@dataclass(frozen=True)
class KrawczykOptions(AlgorithmOptions):
    """Options of the Krawczyk test.

    Attributes:
        largest_box, smallest_box: radii of the boxes that are tried, relative to the overlaps.
        newton_steps: Newton steps before the test, at most.
        newton_tolerance: size of a Newton step at which these end.
        derivative_digits: digits of the integrals in the derivatives; more are dearer, but allow larger boxes.
        digits_per_step: digits that a step gains at least.
        guard_bits: bits of the working precision beyond the digits.
        integral_digits: digits of an integral beyond those asked for.
        contraction: largest e for which a box is accepted.
        power_iterations: steps of the power method for the replicon.
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
    """The saddle-point map at one set of overlaps, in ball arithmetic."""

    @cached_property
    def channel_averages(self) -> ChannelAverages[Any]:
        """The channel averages in ball arithmetic at these overlaps."""
        return BallChannelAverages(self.numbers, self.overlaps)

    @cached_property
    def mean_squared_responses(self) -> np.ndarray:
        """The averages E_c[(dg/domega)^2], (C,)."""
        return self.channel_averages.mean_squared_responses(self.rule)

    @property
    def replicon(self) -> Any:
        """The replicon, enclosed by the extremes of (A x)_i / x_i, A the replicon map, x > 0 (Collatz and Wielandt)."""
        matrix = self._replicon_map
        if len(matrix) == 1:
            return matrix[0, 0]
        middle = np.vectorize(lambda entry: float(entry.value.mid()), otypes=[float])(matrix)
        x = np.ones(len(matrix))
        for _ in range(KrawczykOptions.current().power_iterations):
            x = middle @ x / np.max(middle @ x)
        ratios = [sum(row * x, start=as_dual(0)) / z for row, z in zip(matrix, x, strict=True)]
        if any(ratio.slopes for ratio in ratios):
            raise NotProvedError("a threshold on the replicon can be proved for models with one cluster only")
        return DualNumber(reduce(arb.union, [ratio.value for ratio in ratios]))


@dataclass(frozen=True)
class BallSaddlePointSystem(SaddlePointSystem):
    """The saddle-point equations, with or without a condition, in ball arithmetic."""

    def evaluate_state(self, z: np.ndarray, rule: Any) -> BallSaddlePointState:
        """Return the saddle-point map at given unknowns; parameters are taken as the decimals they print as.

        Args:
            z: overlaps and, with a condition, the parameter.
            rule: required accuracy of the integrals.
        """
        budget.check_time_limit()
        u, value = (z, None) if self.condition is None else (z[:-1], z[-1])
        module = reference_module_on_balls(self.problem)
        numbers = ProblemNumbers.from_problem(
            self.problem, self.parameter, value, number=dual_from_decimal, reference=module
        )
        return BallSaddlePointState(numbers, Overlaps.unpack(u, self.problem.sizes), rule)

    def residual_and_jacobian_on_box(self, z: Sequence[arb], radius: float) -> tuple[np.ndarray, np.ndarray]:
        """Return enclosures, of few digits, of residual (n,) and Jacobian (n, n) in a box of scaled unknowns.

        Args:
            z: centre of the box.
            radius: radius of the box in units of the scales.

        Raises:
            NotProvedError: the Jacobian is not bounded in the box.
        """
        count = len(z)
        scales = [as_ball(float(scale)) for scale in self.scales]
        unknowns = [
            DualNumber(centre + scale * arb(0, radius), tuple(scale if j == i else arb(0) for j in range(count)))
            for i, (centre, scale) in enumerate(zip(z, scales, strict=True))
        ]
        found = self.saddle_point_residual(
            self.evaluate_state(
                _object_array(unknowns), IntegralAccuracy.from_digits(KrawczykOptions.current().derivative_digits)
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
    """A proof that a box around the unknowns contains exactly one solution.

    Attributes:
        z: unknowns near the solution; radius: bound of their distance from it, both (n,) of arb.
        box: radius of the box, relative to the blocks; contraction: e above.
        residual: bound of the residual of the equations at z.
        reached: whether the radius is as small as asked for.
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
        """The saddle-point map at the proved solution, in balls."""
        with use_ball_precision(self.bits):
            return self.system.evaluate_state(
                _object_array([DualNumber(unknown) for unknown in self.solution_balls]), self.goal
            )

    @property
    def solution_balls(self) -> list[arb]:
        """The balls that contain the overlaps (and the parameter) of the exact solution."""
        with use_ball_precision(self.bits):
            return [centre + arb(0, width) for centre, width in zip(self.z, self.radius, strict=True)]

    def enclose_quantity(self, quantity: Callable[[SaddlePointState], Any]) -> arb:
        """Return a ball that contains the value of a quantity at the exact solution."""
        with use_ball_precision(self.bits):
            found = as_dual(quantity(self.solution_enclosure)).value
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
    """Prove that the equations have exactly one solution near approximate unknowns.

    Args:
        system: saddle-point equations in balls.
        z: approximate unknowns (n,), mpf or floats.
        digits: working precision.
        asked: digits asked for.
        select_error: function of the error bars of the unknowns (n,) that returns the one to compare with the accuracy.
        accuracy: error bar asked for.

    Raises:
        NotProvedError: there is no proof; the message says why.
    """
    options = KrawczykOptions.current()
    bits = int(digits * math.log2(10)) + options.guard_bits
    try:
        with use_ball_precision(bits):
            start = _refine_by_newton_steps(system, [as_ball(number) for number in z])
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
    """Return the proof that a box around approximate unknowns contains exactly one solution.

    Args:
        system: saddle-point equations in balls.
        start: unknowns near the solution.
        bits: working precision in bits.
        digits: digits of the integrals.
        select_error: function of the error bars that returns the one to compare with the accuracy.
        accuracy: error bar asked for.

    Raises:
        NotProvedError: the box is not proved to contain a solution.
        DomainError: the box leaves the domain of the overlaps.
    """
    scales, options = [as_ball(float(scale)) for scale in system.scales], KrawczykOptions.current()
    now = start
    box, Y, e = _find_contracting_box(system, start)
    for step in range(digits // options.digits_per_step + 2):
        goal = IntegralAccuracy.from_digits(
            min(digits, options.derivative_digits + (step + 1) * options.digits_per_step)
        )
        if not all(abs(a - b) < box * scale for a, b, scale in zip(now, start, scales, strict=True)):
            raise NotProvedError(
                "Newton's method left the box in which the Jacobian of the equations is proved invertible"
            )
        residual = system.saddle_point_residual(
            system.evaluate_state(_object_array([DualNumber(entry) for entry in now]), goal)
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
    """Return the unknowns after Newton steps on the midpoints of balls.

    Raises:
        NotProvedError: the Newton steps do not become small.
    """
    options = KrawczykOptions.current()
    for _ in range(options.newton_steps):
        residual, derivatives = system.residual_and_jacobian_on_box(z, 0.0)
        steps = np.linalg.solve(_ball_midpoints(derivatives), np.array([float(entry.mid()) for entry in residual]))
        z = [
            (entry - as_ball(float(scale * step))).mid()
            for entry, scale, step in zip(z, system.scales, steps, strict=True)
        ]
        if np.abs(steps).max() < options.newton_tolerance:
            return z
    raise NotProvedError(
        f"Newton's method does not converge near the solution found: its last step is {np.abs(steps).max():.2g}"
    )


def _find_contracting_box(system: BallSaddlePointSystem, z: Sequence[arb]) -> tuple[float, np.ndarray, arb]:
    """Return radius, approximate inverse Jacobian Y and contraction constant e of a box with small enough e.

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
        Y = _object_array([[as_ball(float(entry)) for entry in row] for row in inverse])
        e = _contraction_constant(Y, derivatives)
        if e < options.contraction:
            return box, Y, e
        # e grows with the box, whose size is printed to one digit.
        box = float(f"{box * max(1e-6, min(0.5, 0.1 / float(e))):.0e}")
    raise NotProvedError(reason)


def _contraction_constant(Y: np.ndarray, derivatives: np.ndarray) -> arb:
    """Return the contraction constant: the largest row sum of |1 - Y J|."""
    gap = np.eye(len(Y), dtype=int) - Y @ derivatives
    return reduce(arb.max, [arb(sum((arb(entry.abs_upper()) for entry in row), start=arb(0)).upper()) for row in gap])


def _ball_midpoints(matrix: np.ndarray) -> np.ndarray:
    return np.array([[float(entry.mid()) for entry in row] for row in matrix])


def _object_array(entries: Sequence[Any]) -> np.ndarray:
    return np.array(entries, dtype=object)


@contextmanager
def use_ball_precision(bits: int) -> Iterator[None]:
    """Set the precision of balls and rays in this block."""
    rays, iv.prec = iv.prec, bits
    try:
        with ctx.workprec(bits):
            yield
    finally:
        iv.prec = rays
