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
from ...problems.overlaps import OVERLAPS, Conjugates, Overlaps, overlap_array_shapes
from ...problems.problem import Problem
from .channel import ChannelAverages, SaddlePointAverages
from .numbers import PreciseParameters
from .quadrature import QuadratureRule
from .rule_channel import QuadratureChannelAverages

_STEP = "1e-10"  # of the differences, relative to the blocks


@dataclass(frozen=True)
class ChordOptions(AlgorithmOptions):
    """Options of the chord iteration (Newton's method with a fixed Jacobian) for the saddle-point equations.

    Attributes:
        max_steps: largest number of steps, each of which gains about ten digits.
    """

    max_steps: int = 25


@dataclass(frozen=True)
class SaddlePointState:
    """The values of the saddle-point equations at given overlaps, by one quadrature rule, in multiprecision."""

    numbers: PreciseParameters
    overlaps: Overlaps
    rule: QuadratureRule

    @cached_property
    def channel_averages(self) -> ChannelAverages[Any]:
        """The object that averages functions over the law of the fields at these overlaps, in multiprecision."""
        return QuadratureChannelAverages(self.numbers, self.overlaps)

    @cached_property
    def saddle_point_averages(self) -> SaddlePointAverages:
        """The values of all averages over the law of the fields that the saddle-point equations need."""
        return self.channel_averages.saddle_point_averages(self.rule)

    @cached_property
    def conjugate_overlaps(self) -> Conjugates:
        """The conjugates of the overlaps; DomainError is raised if the overlaps lie outside their domain."""
        u, hats, moments = (
            self.overlaps,
            Conjugates(**_zero_arrays_like_overlaps(self.overlaps)),
            self.saddle_point_averages.moments,
        )
        with _convert_domain_errors():
            self.channel_averages.module.conjugates(
                self.numbers.alpha, moments, u.q, u.V, u.m, u.theta, self.numbers.law.rho_star,
                hats.q, hats.V, hats.m, hats.theta,
            )  # fmt: skip
        return hats

    @cached_property
    def image_of_overlaps(self) -> Overlaps:
        """The overlaps after one application of the saddle-point map to these overlaps.

        DomainError is raised if the Gaussian weight of the student, given the conjugates, is not normalisable.
        """
        hats, law = self.conjugate_overlaps, self.numbers.law
        out = Overlaps(**_zero_arrays_like_overlaps(self.overlaps), phi=self.overlaps.phi)
        with _convert_domain_errors():
            self.channel_averages.module.overlaps(
                law.weights, law.gamma, law.gram, self.numbers.strengths, hats.q, hats.V, hats.m, hats.theta,
                out.q, out.V, out.m, out.theta,
            )  # fmt: skip
        return out

    @cached_property
    def free_entropy_and_deviation(self) -> tuple[Any, Any]:
        """The free entropy, and its sum with the mean training loss, which vanishes at a solution (a check)."""
        hats, law, u = self.conjugate_overlaps, self.numbers.law, self.overlaps
        trace, entropic, penalty = self.channel_averages.module.free_entropy(
            law.weights, law.gamma, law.gram, self.numbers.strengths, u.q, u.V, u.m, u.theta,
            hats.q, hats.V, hats.m, hats.theta,
        )  # fmt: skip
        phi = trace + entropic - self.numbers.alpha * self.saddle_point_averages.moreau
        return phi, -phi - self.numbers.alpha * self.saddle_point_averages.loss - penalty

    @property
    def mean_squared_responses(self) -> np.ndarray:
        """For each (token, cluster) pair, the mean square derivative of the proximal residual in its field."""
        return self.saddle_point_averages.mean_squared_responses

    @property
    def replicon(self) -> Any:
        """The replicon eigenvalue, largest of the replicon map; replica symmetry is stable if it is below 1."""
        matrix = self._replicon_map
        if len(matrix) == 1:
            return matrix[0, 0]
        roots = mp.eig(mp.matrix(matrix.tolist()), left=False, right=False)
        return max(mp.re(root) for root in roots)

    @property
    def _replicon_map(self) -> np.ndarray:
        """The linear map of replicon perturbations, a matrix over (token, cluster) pairs, docs/theory.md (8.13)."""
        hats, law = self.conjugate_overlaps, self.numbers.law
        resolvents = self.channel_averages.module.resolvents(
            law.gamma, law.gram, self.numbers.strengths, hats.q, hats.V, hats.m, hats.theta
        )
        weights = [w * R[0, 0] * R[0, 0] for w, R in zip(law.weights, resolvents, strict=True)]
        atoms = [
            np.outer(gamma, gamma * self.mean_squared_responses) * w
            for w, gamma in zip(weights, law.gamma, strict=True)
        ]
        return np.sum(atoms, axis=0) * self.numbers.alpha

    def evaluate_observable(self, name: str) -> Any:
        """Return the value of an observable at this state, such as "test_error" or "q", one of `OBSERVABLES`."""
        if name == "replicon":
            return self.replicon
        if name == "alpha":
            return self.numbers.alpha
        if name == "test_error":
            return self.channel_averages.test_error(self.rule)
        if name in ("training_loss", "free_entropy"):
            return self.free_entropy_and_deviation[0] * (1 if name == "free_entropy" else -1)
        return abs(getattr(self.overlaps, name).flat[0])


OBSERVABLES = ("training_loss", "free_entropy", "test_error", *OVERLAPS, "replicon", "alpha")


def _zero_arrays_like_overlaps(overlaps: Overlaps) -> dict[str, np.ndarray]:
    """Return a mapping from the name of each overlap to an array of multiprecision zeros in its shape."""
    return {name: np.full(shape, mpf(0), object) for name, shape in overlap_array_shapes(overlaps.sizes).items()}


@contextmanager
def _convert_domain_errors() -> Iterator[None]:
    """Convert a ValueError, raised in the block by a matrix that is not positive definite, to DomainError."""
    try:
        yield
    except ValueError as error:
        raise DomainError(str(error)) from error


@dataclass(frozen=True)
class SaddlePointSystem:
    """The saddle-point equations for the packed overlaps and, with a condition, for the value of a parameter.

    Attributes:
        scales: scales of the unknowns, the units of residuals and errors.
        parameter: name of the parameter.
        condition: function that vanishes at the solution, in addition to the residual; None for a fixed parameter.
    """

    problem: Problem
    scales: np.ndarray
    parameter: str = "alpha"
    condition: Callable[[SaddlePointState], Any] | None = None

    def evaluate_saddle_point_map(self, z: np.ndarray, rule: QuadratureRule) -> SaddlePointState:
        """Return the values of the saddle-point map at given unknowns (overlaps, and a parameter with a condition).

        Args:
            z: unknowns: packed overlaps and, with a condition, the parameter.
            rule: quadrature rule.
        """
        budget.check_time_limit()
        u, value = (z, None) if self.condition is None else (z[:-1], z[-1])
        numbers = PreciseParameters.from_problem(self.problem, self.parameter, value)
        return SaddlePointState(numbers, Overlaps.unpack(u, self.problem.sizes), rule)

    def saddle_point_residual(self, state: SaddlePointState) -> np.ndarray:
        """Return the residuals of the saddle-point equations in units of the scales, and that of the condition."""
        gap = state.image_of_overlaps.pack() - state.overlaps.pack()
        gap = gap / self.scales[: len(gap)]
        return gap if self.condition is None else np.append(gap, self.condition(state))

    def residual_jacobian(self, z: np.ndarray, rule: QuadratureRule) -> np.ndarray:
        """Return the Jacobian of the residuals in the unknowns, in units of their scales, by finite differences.

        Args:
            z: unknowns: packed overlaps and, with a condition, the parameter.
            rule: quadrature rule.
        """
        base, step = self.saddle_point_residual(self.evaluate_saddle_point_map(z, rule)), mpf(_STEP)
        columns = []
        for i, scale in enumerate(self.scales):
            moved = z.copy()
            moved[i] += step * scale
            change = self.saddle_point_residual(self.evaluate_saddle_point_map(moved, rule)) - base
            columns.append((change / step).astype(float))
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class SaddlePointRoot:
    """An approximate root of the saddle-point equations, found at high precision.

    Attributes:
        z: unknowns: packed overlaps and, with a condition, the parameter.
        state: values of the saddle-point map there.
        residual: residuals of the equations there.
        jacobian: Jacobian of the residuals that the iteration used.
    """

    z: np.ndarray
    state: SaddlePointState
    residual: np.ndarray
    jacobian: np.ndarray

    @property
    def largest_residual(self) -> float:
        """The largest absolute residual of the saddle-point equations at this state."""
        return float(np.max(np.abs(self.residual)))


def solve_by_chord_iteration(
    system: SaddlePointSystem, z: np.ndarray, rule: QuadratureRule, tolerance: float, jacobian: np.ndarray
) -> SaddlePointRoot:
    """Solve saddle-point equations by chord iteration (Newton's method with a fixed Jacobian).

    The iteration ends when the residual is below the tolerance or no longer falls.

    Args:
        system: saddle-point equations, with or without a condition.
        z: initial unknowns: packed overlaps and, with a condition, the parameter.
        rule: quadrature rule.
        tolerance: largest residual allowed.
        jacobian: approximate Jacobian.

    Raises:
        DomainError: the iteration left the domain of the overlaps.
    """
    best: SaddlePointRoot | None = None
    for _ in range(ChordOptions.current().max_steps):
        state = system.evaluate_saddle_point_map(z, rule)
        found = SaddlePointRoot(z, state, system.saddle_point_residual(state), jacobian)
        if best is not None and not found.largest_residual < best.largest_residual:
            break
        best = found
        if best.largest_residual <= tolerance:
            break
        z = z - newton_correction(best, best.residual) * system.scales
    assert best is not None
    return best


def newton_correction(root: SaddlePointRoot, residual: np.ndarray) -> np.ndarray:
    """Return the Newton correction, in units of the scales of the unknowns, for a high-precision residual.

    The linear system is solved in double precision, since few digits suffice.

    Args:
        root: root whose Jacobian is used.
        residual: residual of the equations.
    """
    size = max(abs(z) for z in residual)
    if not size:
        return residual
    moved = np.linalg.solve(root.jacobian, (residual / size).astype(float))
    return np.array([mpf(float(z)) * size for z in moved], object)
