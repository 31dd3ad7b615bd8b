"""Equations of the saddle point at any precision, with or without a condition that fixes a parameter.

They are solved by a chord iteration with a Jacobian of ten digits: every step gains as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ...base import budget
from ...base.errors import DomainError
from ...base.options import AlgorithmOptions
from ...problems.overlaps import OVERLAPS, Conjugates, Overlaps, block_shapes
from ...problems.problem import Problem
from .channel import Channel, Totals
from .numbers import Numbers
from .quadrature import Rule
from .rule_channel import RuleChannel

_STEP = "1e-10"  # of the differences, relative to the blocks


@dataclass(frozen=True)
class ChordOptions(AlgorithmOptions):
    """Options of the chord iteration.

    Attributes:
        max_steps: steps at most, each of which gains about ten digits.
    """

    max_steps: int = 25


@dataclass(frozen=True)
class State:
    """A state: the saddle-point map at one set of overlaps (arrays of mpf) with one quadrature rule."""

    numbers: Numbers
    overlaps: Overlaps
    rule: Rule

    @cached_property
    def channel(self) -> Channel[Any]:
        """The channel at these overlaps, truncated for the precision in force at its first use."""
        return RuleChannel(self.numbers, self.overlaps)

    @cached_property
    def totals(self) -> Totals:
        """The averages over the channel by the rule; errors as for `Channel.totals`."""
        return self.channel.totals(self.rule)

    @cached_property
    def conjugates(self) -> Conjugates:
        """The conjugates; DomainError if the overlaps do not admit them."""
        u, hats, moments = self.overlaps, Conjugates(**_zeros(self.overlaps)), self.totals.moments
        with _convert_domain_errors():
            self.channel.module.conjugates(
                self.numbers.alpha, moments, u.q, u.V, u.m, u.theta, self.numbers.law.rho_star,
                hats.q, hats.V, hats.m, hats.theta,
            )  # fmt: skip
        return hats

    @cached_property
    def image(self) -> Overlaps:
        """The overlaps from the conjugates; DomainError if the ridge with G is not positive."""
        hats, law = self.conjugates, self.numbers.law
        out = Overlaps(**_zeros(self.overlaps), phi=self.overlaps.phi)
        with _convert_domain_errors():
            self.channel.module.overlaps(
                law.weights, law.gamma, law.gram, self.numbers.strengths, hats.q, hats.V, hats.m, hats.theta,
                out.q, out.V, out.m, out.theta,
            )  # fmt: skip
        return out

    @cached_property
    def losses(self) -> tuple[Any, Any]:
        """The free entropy, and its deviation from minus the sum of the parts of the training loss."""
        hats, law, u = self.conjugates, self.numbers.law, self.overlaps
        trace, entropic, penalty = self.channel.module.free_entropy(
            law.weights, law.gamma, law.gram, self.numbers.strengths, u.q, u.V, u.m, u.theta,
            hats.q, hats.V, hats.m, hats.theta,
        )  # fmt: skip
        phi = trace + entropic - self.numbers.alpha * self.totals.moreau
        return phi, -phi - self.numbers.alpha * self.totals.loss - penalty

    @property
    def squares(self) -> np.ndarray:
        """The averages E_c[(dg/domega)^2], (C,)."""
        return self.totals.squares

    @property
    def replicon(self) -> Any:
        """The Perron root of the replicon map."""
        matrix = self._replicon_map
        if len(matrix) == 1:
            return matrix[0, 0]
        roots = mp.eig(mp.matrix(matrix.tolist()), left=False, right=False)
        return max(mp.re(root) for root in roots)

    @property
    def _replicon_map(self) -> np.ndarray:
        """The map D -> alpha E[(dg/domega)^2] E[gamma^2 R^2] D as a matrix (C, C) (docs/theory.md (8.13))."""
        hats, law = self.conjugates, self.numbers.law
        resolvents = self.channel.module.resolvents(
            law.gamma, law.gram, self.numbers.strengths, hats.q, hats.V, hats.m, hats.theta
        )
        weights = [w * R[0, 0] * R[0, 0] for w, R in zip(law.weights, resolvents, strict=True)]
        atoms = [np.outer(gamma, gamma * self.squares) * w for w, gamma in zip(weights, law.gamma, strict=True)]
        return np.sum(atoms, axis=0) * self.numbers.alpha

    def observable(self, name: str) -> Any:
        """Return an observable by its name in conditions, see OBSERVABLES."""
        if name == "replicon":
            return self.replicon
        if name == "alpha":
            return self.numbers.alpha
        if name == "test_error":
            return self.channel.test_error(self.rule)
        if name in ("training_loss", "free_entropy"):
            return self.losses[0] * (1 if name == "free_entropy" else -1)
        return abs(getattr(self.overlaps, name).flat[0])


OBSERVABLES = ("training_loss", "free_entropy", "test_error", *OVERLAPS, "replicon", "alpha")


def _zeros(overlaps: Overlaps) -> dict[str, np.ndarray]:
    """Return zero blocks of the overlaps' shapes, of mpf."""
    return {name: np.full(shape, mpf(0), object) for name, shape in block_shapes(overlaps.sizes).items()}


@contextmanager
def _convert_domain_errors() -> Iterator[None]:
    """Convert the ValueError of a matrix that is not positive definite to DomainError."""
    try:
        yield
    except ValueError as error:
        raise DomainError(str(error)) from error


@dataclass(frozen=True)
class System:
    """A system of equations for the packed overlaps and, with a condition, for a parameter's value.

    Attributes:
        condition: function that vanishes at the solution, in addition to the residual of the saddle point.
        scales: scales of the unknowns, the units of residuals and errors.
    """

    problem: Problem
    scales: np.ndarray
    parameter: str = "alpha"
    condition: Callable[[State], Any] | None = None

    def state(self, z: np.ndarray, rule: Rule) -> State:
        """Return the saddle-point map at the unknowns.

        Args:
            z: the unknowns.
            rule: quadrature rule.
        """
        budget.check_time_limit()
        u, value = (z, None) if self.condition is None else (z[:-1], z[-1])
        numbers = Numbers.of(self.problem, self.parameter, value)
        return State(numbers, Overlaps.unpack(u, self.problem.sizes), rule)

    def residual(self, state: State) -> np.ndarray:
        """Return G(u) - u in units of its blocks, then the condition."""
        gap = state.image.pack() - state.overlaps.pack()
        gap = gap / self.scales[: len(gap)]
        return gap if self.condition is None else np.append(gap, self.condition(state))

    def jacobian(self, z: np.ndarray, rule: Rule) -> np.ndarray:
        """Return the Jacobian of the residual in the unknowns over their scales, by differences.

        Args:
            z: the unknowns.
            rule: quadrature rule.
        """
        base, step = self.residual(self.state(z, rule)), mpf(_STEP)
        columns = []
        for i, scale in enumerate(self.scales):
            moved = z.copy()
            moved[i] += step * scale
            columns.append(((self.residual(self.state(moved, rule)) - base) / step).astype(float))
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Root:
    """A root: unknowns, the map and the residual there, and the Jacobian used."""

    z: np.ndarray
    state: State
    residual: np.ndarray
    jacobian: np.ndarray

    @property
    def size(self) -> float:
        """The largest residual."""
        return float(np.max(np.abs(self.residual)))


def chord_iteration(system: System, z: np.ndarray, rule: Rule, tolerance: float, jacobian: np.ndarray) -> Root:
    """Solve a system by chord iteration until the residual is below the tolerance, or no longer falls.

    Args:
        system: the system.
        z: initial unknowns.
        rule: quadrature rule.
        tolerance: of the residual.
        jacobian: approximate Jacobian.

    Raises:
        DomainError: the iteration left the domain of the overlaps.
    """
    best: Root | None = None
    for _ in range(ChordOptions.current().max_steps):
        state = system.state(z, rule)
        found = Root(z, state, system.residual(state), jacobian)
        if best is not None and not found.size < best.size:
            break
        best = found
        if best.size <= tolerance:
            break
        z = z - newton_shift(best, best.residual) * system.scales
    assert best is not None
    return best


def newton_shift(root: Root, residual: np.ndarray) -> np.ndarray:
    """Return the change of the unknowns, over their scales, that corresponds to a residual, in mpf.

    It is computed in doubles, scaled, since few digits suffice.

    Args:
        root: a root, whose Jacobian is used.
        residual: residual of the equations.
    """
    size = max(abs(z) for z in residual)
    if not size:
        return residual
    moved = np.linalg.solve(root.jacobian, (residual / size).astype(float))
    return np.array([mpf(float(z)) * size for z in moved], object)
