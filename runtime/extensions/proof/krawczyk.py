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
from ..reference.channel import Channel
from ..reference.numbers import Numbers
from ..reference.system import State, System
from .arithmetic import reference_on_balls
from .channel import BallChannel, Goal
from .duals import Dual, as_dual, ball, decimal_dual


@dataclass(frozen=True)
class KrawczykOptions(AlgorithmOptions):
    """Options of the Krawczyk test.

    Attributes:
        largest_box, smallest_box: radii of the boxes that are tried, relative to the blocks.
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
class BallState(State):
    """A state in balls: the saddle-point map at one set of overlaps."""

    @cached_property
    def channel(self) -> Channel[Any]:
        """The channel in balls, with integrals to the accuracy of the goal, which takes the place of the rule."""
        return BallChannel(self.numbers, self.overlaps)

    @cached_property
    def squares(self) -> np.ndarray:
        """The averages E_c[(dg/domega)^2], (C,)."""
        return self.channel.squares(self.rule)

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
            raise NotProvedError("the replicon of several contexts has no derivatives in balls")
        return Dual(reduce(arb.union, [ratio.value for ratio in ratios]))


@dataclass(frozen=True)
class BallSystem(System):
    """A system of equations in balls; goals take the place of rules."""

    def state(self, z: np.ndarray, rule: Any) -> BallState:
        """Return the saddle-point map at the unknowns; floats of the problem are taken as the decimals they print as.

        Args:
            z: the unknowns.
            rule: the goal of the integrals.
        """
        budget.check_time_limit()
        u, value = (z, None) if self.condition is None else (z[:-1], z[-1])
        module = reference_on_balls(self.problem)
        numbers = Numbers.of(self.problem, self.parameter, value, number=decimal_dual, reference=module)
        return BallState(numbers, Overlaps.unpack(u, self.problem.sizes), rule)

    def linearise(self, z: Sequence[arb], radius: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the residual (n,) and its derivatives (n, n) over a box, in the unknowns over their scales.

        They have few digits.

        Args:
            z: centre of the box.
            radius: its radius, over the scales.

        Raises:
            NotProvedError: they are not bounded on it.
        """
        count = len(z)
        scales = [ball(float(scale)) for scale in self.scales]
        unknowns = [
            Dual(centre + scale * arb(0, radius), tuple(scale if j == i else arb(0) for j in range(count)))
            for i, (centre, scale) in enumerate(zip(z, scales, strict=True))
        ]
        found = self.residual(
            self.state(_object_array(unknowns), Goal.digits(KrawczykOptions.current().derivative_digits))
        )
        rows = [entry.slopes or (arb(0),) * count for entry in found]
        if not all(entry.is_finite() for row in rows for entry in row):
            raise NotProvedError("the derivatives of the equations are not bounded on the box")
        return _object_array([entry.value for entry in found]), _object_array(rows)


@dataclass(frozen=True)
class Proof:
    """A proof that a box around the unknowns contains exactly one solution.

    Attributes:
        z: unknowns near the solution; radius: bound of their distance from it, both (n,) of arb.
        box: radius of the box, relative to the blocks; contraction: e above.
        residual: bound of the residual of the equations at z.
        reached: whether the radius is as small as asked for.
    """

    system: BallSystem
    z: np.ndarray
    radius: np.ndarray
    box: float
    contraction: float
    residual: float
    reached: bool
    bits: int
    goal: Goal

    @cached_property
    def enclosure(self) -> BallState:
        """The saddle-point map at the solution."""
        with ball_precision(self.bits):
            return self.system.state(_object_array([Dual(unknown) for unknown in self.balls]), self.goal)

    @property
    def balls(self) -> list[arb]:
        """The balls of the unknowns, which contain those of the solution."""
        with ball_precision(self.bits):
            return [centre + arb(0, width) for centre, width in zip(self.z, self.radius, strict=True)]

    def evaluate(self, quantity: Callable[[State], Any]) -> arb:
        """Return a ball that contains a quantity at the solution."""
        with ball_precision(self.bits):
            found = as_dual(quantity(self.enclosure)).value
            if not found.is_finite():
                raise NotProvedError("an observable is not bounded on the ball of the solution")
            return found

    @property
    def evidence(self) -> dict[str, Any]:
        """The claim, the method, and the numbers of the proof, for JSON."""
        return {
            "method": "Krawczyk test in Arb balls",
            "claim": "the printed equations have exactly one solution in the box, within the error bars of the value",
            "box": self.box,
            "contraction": self.contraction,
            "bits": self.bits,
        }


def prove(
    system: BallSystem,
    z: Sequence[Any],
    digits: int,
    asked: int,
    select_error: Callable[[np.ndarray], float],
    accuracy: float,
) -> Proof:
    """Find a solution near unknowns, and prove it.

    Args:
        system: the system.
        z: unknowns (n,) of mpf or floats.
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
        with ball_precision(bits):
            start = _newton_steps(system, [ball(number) for number in z])
            return prove_around(system, start, bits, asked + options.integral_digits, select_error, accuracy)
    except DomainError as error:
        raise NotProvedError(str(error)) from error


def prove_around(
    system: BallSystem,
    start: list[arb],
    bits: int,
    digits: int,
    select_error: Callable[[np.ndarray], float],
    accuracy: float,
) -> Proof:
    """Return the proof in a box around the start, at the precision in force.

    Args:
        system: the system.
        start: unknowns near the solution.
        bits: working precision in bits.
        digits: digits of the integrals.
        select_error: function of the error bars that returns the one to compare with the accuracy.
        accuracy: error bar asked for.

    Raises:
        NotProvedError: the box is not proved to contain a solution.
        DomainError: the box leaves the domain of the overlaps.
    """
    scales, options = [ball(float(scale)) for scale in system.scales], KrawczykOptions.current()
    now = start
    box, Y, e = _find_contracting_box(system, start)
    for step in range(digits // options.digits_per_step + 2):
        goal = Goal.digits(min(digits, options.derivative_digits + (step + 1) * options.digits_per_step))
        if not all(abs(a - b) < box * scale for a, b, scale in zip(now, start, scales, strict=True)):
            raise NotProvedError("Newton's method left the box on which the equations are proved invertible")
        residual = system.residual(system.state(_object_array([Dual(entry) for entry in now]), goal))
        moved = Y @ _object_array([entry.value for entry in residual])
        sizes = [arb(entry.abs_upper()) for entry in moved]
        largest = reduce(arb.max, sizes)
        if step == 0 and not largest < (1 - e) * box:
            raise NotProvedError(
                f"Newton's step from the solution found, {float(largest):.2g} of the blocks, may leave the box of "
                f"radius {box:.2g} on which the equations are proved invertible"
            )
        radius = [
            ((size + e / (1 - e) * largest) * scale).abs_upper() for size, scale in zip(sizes, scales, strict=True)
        ]
        height = max(float(entry.value.abs_upper()) for entry in residual)
        reached = select_error(_object_array(radius)) <= accuracy
        proof = Proof(system, _object_array(now), _object_array(radius), box, float(e), height, reached, bits, goal)
        if reached:
            break
        now = [(entry - scale * shift).mid() for entry, scale, shift in zip(now, scales, moved, strict=True)]
    return proof


def _newton_steps(system: BallSystem, z: list[arb]) -> list[arb]:
    """Return the unknowns after Newton steps on the midpoints of balls, down to the accuracy of rough integrals.

    Raises:
        NotProvedError: the steps do not become small.
    """
    options = KrawczykOptions.current()
    for _ in range(options.newton_steps):
        residual, derivatives = system.linearise(z, 0.0)
        steps = np.linalg.solve(_midpoints(derivatives), np.array([float(entry.mid()) for entry in residual]))
        z = [
            (entry - ball(float(scale * step))).mid()
            for entry, scale, step in zip(z, system.scales, steps, strict=True)
        ]
        if np.abs(steps).max() < options.newton_tolerance:
            return z
    raise NotProvedError(
        f"Newton's method does not converge near the solution found: its last step is {np.abs(steps).max():.2g}"
    )


def _find_contracting_box(system: BallSystem, z: Sequence[arb]) -> tuple[float, np.ndarray, arb]:
    """Return the first box on which the derivatives are close enough to one matrix, its inverse Y, and e.

    Raises:
        NotProvedError: there is none; the reason is that of the smallest box.
    """
    options = KrawczykOptions.current()
    reason, box = "the equations are not proved invertible on any box around the solution", options.largest_box
    while box > options.smallest_box:
        try:
            _, derivatives = system.linearise(z, box)
            inverse = np.linalg.inv(_midpoints(derivatives))
        except (NotProvedError, DomainError, np.linalg.LinAlgError) as error:
            reason, box = str(error), float(f"{box / 1000:.0e}")
            continue
        Y = _object_array([[ball(float(entry)) for entry in row] for row in inverse])
        e = _contraction(Y, derivatives)
        if e < options.contraction:
            return box, Y, e
        # e grows with the box, whose size is printed to one digit.
        box = float(f"{box * max(1e-6, min(0.5, 0.1 / float(e))):.0e}")
    raise NotProvedError(reason)


def _contraction(Y: np.ndarray, derivatives: np.ndarray) -> arb:
    """Return the largest row sum of |1 - Y J|, an exact ball."""
    gap = np.eye(len(Y), dtype=int) - Y @ derivatives
    return reduce(arb.max, [arb(sum((arb(entry.abs_upper()) for entry in row), start=arb(0)).upper()) for row in gap])


def _midpoints(matrix: np.ndarray) -> np.ndarray:
    return np.array([[float(entry.mid()) for entry in row] for row in matrix])


def _object_array(entries: Sequence[Any]) -> np.ndarray:
    return np.array(entries, dtype=object)


@contextmanager
def ball_precision(bits: int) -> Iterator[None]:
    """Set the precision of balls and rays in this block."""
    rays, iv.prec = iv.prec, bits
    try:
        with ctx.workprec(bits):
            yield
    finally:
        iv.prec = rays
