"""Exactly one solution in a box: the test of Newton's method in balls (R. Krawczyk, Computing 4 (1969) 187; S. M. Rump,
Acta Numerica 19 (2010) 287, section 13).

F are the equations in units of their blocks, J holds their derivatives over the box |z - z0| <= rho, and Y is about
J^(-1). If |Y F(z0)| < (1 - e) rho with e = |1 - Y J| < 1 (largest row sums), the box holds exactly one zero of F, and
that is no further from any z of the box than |Y F(z)| / (1 - e).
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
from ...problems.overlaps import Overlaps
from ..reference.channel import Channel
from ..reference.numbers import Numbers
from ..reference.system import State, System
from .arithmetic import reference_on_balls
from .channel import BallChannel, Goal
from .duals import Dual, ball, decimal_dual, lift

_LARGEST_BOX, _SMALLEST_BOX = 1e-6, 1e-25  # half widths, relative to the blocks
_NEWTON, _SMALL = 8, 1e-8
_COARSE = 9  # digits of the integrals in the derivatives
_GAINED = 7  # digits a step with them gains, at least
_GUARD = 30  # bits
_ROOM = 6  # digits of an integral beyond those asked for
_CONTRACTING = 0.25
_ROUNDS = 200  # of the power method


@dataclass(frozen=True)
class BallState(State):
    """The map at one set of overlaps in balls."""

    @cached_property
    def channel(self) -> Channel[Any]:
        """As of `State`; in balls, with integrals as narrow as the goal that the rule is."""
        return BallChannel(self.numbers, self.overlaps)

    @cached_property
    def squares(self) -> np.ndarray:
        """As of `State`, by themselves."""
        return self.channel.squares(self.rule)

    @property
    def replicon(self) -> Any:
        """Between the least and the largest (A x)_i / x_i, A being the replicon map, x > 0 (Collatz and Wielandt)."""
        matrix = self._replicon_map
        if len(matrix) == 1:
            return matrix[0, 0]
        middle = np.vectorize(lambda entry: float(entry.value.mid()), otypes=[float])(matrix)
        x = np.ones(len(matrix))
        for _ in range(_ROUNDS):
            x = middle @ x / np.max(middle @ x)
        shares = [sum(row * x, start=lift(0)) / z for row, z in zip(matrix, x, strict=True)]
        if any(share.slopes for share in shares):
            raise NotProvedError("the replicon of several contexts has no derivatives in balls")
        return Dual(reduce(arb.union, [share.value for share in shares]))


@dataclass(frozen=True)
class BallSystem(System):
    """The equations in balls; rules are goals."""

    def state(self, z: np.ndarray, rule: Any) -> BallState:
        """As of `System`, with a goal for a rule; floats of the problem stand for the decimals that they print as."""
        budget.check()
        u, value = (z, None) if self.condition is None else (z[:-1], z[-1])
        module = reference_on_balls(self.problem)
        numbers = Numbers.of(self.problem, self.parameter, value, number=decimal_dual, reference=module)
        return BallState(numbers, Overlaps.unpack(u, self.problem.sizes), rule)

    def linearised(self, z: Sequence[arb], radius: float) -> tuple[np.ndarray, np.ndarray]:
        """The residual (n,) and its derivatives (n, n) over a box, in the unknowns over their scales; few digits.

        Raises:
            NotProvedError: they are not bounded on it.
        """
        count = len(z)
        scales = [ball(float(scale)) for scale in self.scales]
        unknowns = [
            Dual(centre + scale * arb(0, radius), tuple(scale if j == i else arb(0) for j in range(count)))
            for i, (centre, scale) in enumerate(zip(z, scales, strict=True))
        ]
        found = self.residual(self.state(_array(unknowns), Goal.digits(_COARSE)))
        rows = [entry.slopes or (arb(0),) * count for entry in found]
        if not all(entry.is_finite() for row in rows for entry in row):
            raise NotProvedError("the derivatives of the equations are not bounded on the box")
        return _array([entry.value for entry in found]), _array(rows)


@dataclass(frozen=True)
class Proof:
    """Exactly one solution in the box around the unknowns.

    Attributes:
        z: near the solution; radius: no further from it than this, both (n,) of arb.
        box: half width of the box, relative to the blocks; contraction: e above.
        residual: of the equations at z, at most.
        reached: whether the radius is as small as asked.
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
        """The map at the solution."""
        with ball_precision(self.bits):
            return self.system.state(_array([Dual(unknown) for unknown in self.balls]), self.goal)

    @property
    def balls(self) -> list[arb]:
        """Of the unknowns, each of which holds that of the solution."""
        with ball_precision(self.bits):
            return [centre + arb(0, width) for centre, width in zip(self.z, self.radius, strict=True)]

    def evaluated(self, quantity: Callable[[State], Any]) -> arb:
        """A ball that holds a quantity at the solution."""
        with ball_precision(self.bits):
            found = lift(quantity(self.enclosure)).value
            if not found.is_finite():
                raise NotProvedError("an observable is not bounded on the ball of the solution")
            return found

    @property
    def evidence(self) -> dict[str, Any]:
        """What is claimed, by which method, and the numbers that it rests on, for JSON."""
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
    judged: Callable[[np.ndarray], float],
    accuracy: float,
) -> Proof:
    """Find a solution near unknowns, and prove it.

    Args:
        z: (n,) of mpf or floats.
        digits: carried; asked: of the solution.
        judged: half widths of the unknowns (n,) -> the one that the accuracy is asked of.

    Raises:
        NotProvedError: it could not be, and why.
    """
    bits = int(digits * math.log2(10)) + _GUARD
    try:
        with ball_precision(bits):
            start = _newton(system, [ball(number) for number in z])
            return proof_around(system, start, bits, asked + _ROOM, judged, accuracy)
    except DomainError as error:
        raise NotProvedError(str(error)) from error


def proof_around(
    system: BallSystem, start: list[arb], bits: int, digits: int, judged: Callable[[np.ndarray], float], accuracy: float
) -> Proof:
    """The proof in a box around the start, at the precision in force.

    Raises:
        NotProvedError: the box holds no solution, or cannot be told to.
        DomainError: the box leaves the domain of the overlaps.
    """
    scales = [ball(float(scale)) for scale in system.scales]
    now = start
    box, Y, e = _contracting(system, start)
    for step in range(digits // _GAINED + 2):
        goal = Goal.digits(min(digits, _COARSE + (step + 1) * _GAINED))
        if not all(abs(a - b) < box * scale for a, b, scale in zip(now, start, scales, strict=True)):
            raise NotProvedError("Newton's method left the box on which the equations are proved invertible")
        residual = system.residual(system.state(_array([Dual(entry) for entry in now]), goal))
        moved = Y @ _array([entry.value for entry in residual])
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
        reached = judged(_array(radius)) <= accuracy
        proof = Proof(system, _array(now), _array(radius), box, float(e), height, reached, bits, goal)
        if reached:
            break
        now = [(entry - scale * shift).mid() for entry, scale, shift in zip(now, scales, moved, strict=True)]
    return proof


def _newton(system: BallSystem, z: list[arb]) -> list[arb]:
    """Newton's method on the middles of balls, until its steps are those of rough integrals.

    Raises:
        NotProvedError: they do not become small.
    """
    for _ in range(_NEWTON):
        residual, derivatives = system.linearised(z, 0.0)
        steps = np.linalg.solve(_middles(derivatives), np.array([float(entry.mid()) for entry in residual]))
        z = [
            (entry - ball(float(scale * step))).mid()
            for entry, scale, step in zip(z, system.scales, steps, strict=True)
        ]
        if np.abs(steps).max() < _SMALL:
            return z
    raise NotProvedError(
        f"Newton's method does not converge near the solution found: its last step is {np.abs(steps).max():.2g}"
    )


def _contracting(system: BallSystem, z: Sequence[arb]) -> tuple[float, np.ndarray, arb]:
    """The first box on which the derivatives are near enough to one matrix, its inverse Y, and e.

    Raises:
        NotProvedError: none is; the reason is that of the smallest.
    """
    reason, box = "the equations are not proved invertible on any box around the solution", _LARGEST_BOX
    while box > _SMALLEST_BOX:
        try:
            _, derivatives = system.linearised(z, box)
            inverse = np.linalg.inv(_middles(derivatives))
        except (NotProvedError, DomainError, np.linalg.LinAlgError) as error:
            reason, box = str(error), float(f"{box / 1000:.0e}")
            continue
        Y = _array([[ball(float(entry)) for entry in row] for row in inverse])
        e = _contraction(Y, derivatives)
        if e < _CONTRACTING:
            return box, Y, e
        # e grows with the box, whose size is printed to one digit.
        box = float(f"{box * max(1e-6, min(0.5, 0.1 / float(e))):.0e}")
    raise NotProvedError(reason)


def _contraction(Y: np.ndarray, derivatives: np.ndarray) -> arb:
    """Largest row sum of |1 - Y J|, a ball without width."""
    gap = np.eye(len(Y), dtype=int) - Y @ derivatives
    return reduce(arb.max, [arb(sum((arb(entry.abs_upper()) for entry in row), start=arb(0)).upper()) for row in gap])


def _middles(matrix: np.ndarray) -> np.ndarray:
    return np.array([[float(entry.mid()) for entry in row] for row in matrix])


def _array(entries: Sequence[Any]) -> np.ndarray:
    return np.array(entries, dtype=object)


@contextmanager
def ball_precision(bits: int) -> Iterator[None]:
    """Of balls and of rays."""
    rays, iv.prec = iv.prec, bits
    try:
        with ctx.workprec(bits):
            yield
    finally:
        iv.prec = rays
