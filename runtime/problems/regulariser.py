"""Regularisers: their interface and the implemented kinds.

A kind is a class with an entry in `_KINDS`, by the name that `derive.authoring.regulariser` gives it. It must define
the abstract methods of `Regulariser`; all others have a default valid for any convex r(w), or are constants of the
generated prior. A kind is treated as a ridge (`is_ridge`) or as given norms (`keeps_norms`) only if it declares so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DomainError, InputError, require_known_name
from ..base.options import AlgorithmOptions
from .law import TokenLaw
from .overlaps import Conjugates
from .solver import Solver

PRIOR_POINTS = 64  # nodes a panel for averages over a row of W; the integrands are smooth between corners


@dataclass(frozen=True)
class RegulariserOptions(AlgorithmOptions):
    """Options of the random tests of a regulariser; more points find rarer violations.

    Attributes:
        chords: number of random chords on which convexity is tested.
        rotation_points: number of random rows, per column of W, at which invariance under rotations is tested.
        sign_points: number of random rows at which invariance under signs and permutations is tested.
    """

    chords: int = 60
    rotation_points: int = 12
    sign_points: int = 12


@dataclass(frozen=True)
class Regulariser(ABC):
    """The regulariser r(w) of a row w of W (docs/theory.md (1.3) and section 6), at the parameters of a problem.

    Methods act on arrays (rows, s) of rows; `known` are, row by row, the entries of the teacher that r depends on.

    Attributes:
        solver: solver of the model.
        law: law of the tokens.
        parameters: parameters of the problem, name -> value.
        temperature: temperature; 0 for the minimum of the risk.
        noun: what messages call the regulariser.
        is_ridge: whether r(w) = w^T Lambda w / 2, with the given `ridge_strengths` on the diagonal of Lambda.
        keeps_norms: whether the norms of the columns of W are fixed (`fixed_column_norms`), by a ridge as multiplier.
    """

    solver: Solver
    law: TokenLaw
    parameters: Mapping[str, Any]
    temperature: float

    noun: ClassVar[str] = "regulariser"
    is_ridge: ClassVar[bool] = False
    keeps_norms: ClassVar[bool] = False

    @abstractmethod
    def penalties_and_gradients(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the regulariser r(w) of every row w and its gradient (away from kinks), (rows, s).

        Args:
            W: the rows w, (rows, s).
            known: teacher entries that r depends on, row by row, (rows, `teacher_column_count_in_penalty`).
        """

    @abstractmethod
    def minimisers_and_derivatives(
        self, b: np.ndarray, G: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimiser w of r(w) + w^T G w / 2 - w^T b for every row, and dw/db; nan if there is none.

        Args:
            b: the field b of every row, (rows, s).
            G: the matrix G of every row, (rows, s, s).
            known: teacher entries that r depends on, row by row, (rows, `teacher_column_count_in_penalty`).
        """

    def proximal_map(self, b: np.ndarray, precision: float, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimiser of r(w) + precision |w|^2 / 2 - w^T b for every row, and its derivative dw/db.

        Args:
            b: the field b of every row, (rows, s).
            precision: positive factor of |w|^2 / 2.
            known: teacher entries that r depends on, row by row, (rows, `teacher_column_count_in_penalty`).
        """
        s = b.shape[1]
        return self.minimisers_and_derivatives(
            np.ascontiguousarray(b), np.tile(precision * np.eye(s), (len(b), 1, 1)), known
        )

    @cached_property
    def declared_parameter_values(self) -> np.ndarray:
        """All parameters of the regulariser as one vector, in the order in which the model declares them."""
        return np.concatenate([np.zeros(0), *[np.ravel(self.parameters[name]) for name in self.solver.model.STRENGTHS]])

    @property
    def ridge_strengths(self) -> np.ndarray:
        """Ridge strength of every column of W, (s,).

        Raises:
            InputError: the regulariser is not a ridge.
        """
        if not self.is_ridge:
            raise InputError(f"{self.solver.name} has no ridge strengths, only a {self.noun}: use a model with a ridge")
        return self.declared_parameter_values

    @property
    def fixed_column_norms(self) -> np.ndarray:
        """Fixed norm of every column of W, divided by sqrt(d), (s,).

        Raises:
            InputError: the regulariser does not fix norms.
        """
        if not self.keeps_norms:
            raise InputError(
                f"{self.solver.name} does not fix the norms of the columns of W (its regulariser: {self.noun})"
            )
        return self.declared_parameter_values

    @property
    def is_quadratic(self) -> bool:
        """Whether the minimising row w is linear in its field b: for a ridge and for fixed norms of the columns.

        Averages over rows of W then depend on second moments alone.
        """
        return self.is_ridge or self.keeps_norms

    @property
    def names_of_strength_parameters(self) -> tuple[str, ...]:
        """Names of the parameters whose increase strengthens the regularisation."""
        return tuple(self.solver.model.STRENGTHS)

    @property
    def has_kinks(self) -> bool:
        """Whether the regulariser r(w) has kinks: points where its slope jumps."""
        return getattr(self.solver.prior_functions, "CORNERS", 0) > 0

    @property
    def teacher_column_count_in_penalty(self) -> int:
        """Number of teacher columns whose entries the regulariser depends on."""
        return getattr(self.solver.prior_functions, "KNOWN", 0)

    @property
    def averaged_teacher_column_count(self) -> int:
        """Number of teacher columns over whose entries averages over a row of W run, in addition to the field b."""
        return getattr(self.solver.prior_functions, "GIVEN", self.teacher_column_count_in_penalty)

    def refuse_invalid_parameters(self, values: str) -> None:
        """Raise InputError if the parameters of the regulariser admit no solution.

        Args:
            values: text that lists the parameters, for the message.

        Raises:
            InputError: there is no solution; the message says why.
        """
        return

    @property
    def prior_arguments_of_regulariser(self) -> tuple[np.ndarray, ...]:
        """Arguments that the generated averages over rows of W take after the law of the tokens, such as parameters."""
        return (self.declared_parameter_values,)

    def prior_map_of_ridge(self, name: str, strengths: np.ndarray) -> Callable[..., Any]:
        """Return a generated function of the weights for a ridge of other strengths; only if `is_quadratic`.

        Args:
            name: name of the function, "overlaps" or "free_entropy".
            strengths: ridge strength of every column of W, or multiplier of its fixed norm, (s,).
        """
        known = getattr(self.solver.prior_functions, f"ridge_{name}" if self.keeps_norms else name)
        return partial(known, self.law.weights, self.law.gamma, self.law.gram, strengths)

    def norm_multipliers(self, hats: Conjugates) -> np.ndarray | None:
        """Return the ridge strengths (s,) that give the columns of W their fixed norms; None if norms are not fixed.

        Raises:
            DomainError: no strengths give these norms.
        """
        return None

    def rotation_invariance_conditions(self, basis: np.ndarray) -> np.ndarray:
        """Return linear conditions for rotations w -> exp(A) w to leave the regulariser r(w) unchanged.

        The coefficients of A in the basis must be orthogonal to every row of the result. A row holds the slopes of r at
        a random w along all rotations of the basis.

        Args:
            basis: basis of the antisymmetric matrices A, (matrices, s, s).
        """
        s, generator = self.solver.structural_sizes["student_rank"], np.random.default_rng(13)
        rows: list[list[float]] = []
        for _ in range(RegulariserOptions.current().rotation_points * s):
            w, known = generator.standard_normal(s), generator.standard_normal(self.teacher_column_count_in_penalty)
            slope = self.penalties_and_gradients(w[None], known[None])[1][0]
            rows.append([slope @ A @ w / (np.linalg.norm(slope) * np.linalg.norm(w) + 1e-300) for A in basis])
        return np.array(rows)

    def is_invariant_under(self, moved: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return whether r(w) is invariant under a change of signs or a permutation of the entries of w.

        This is tested at random rows w.

        Args:
            moved: function that changes signs or permutes entries of a row (s,).
        """
        generator = np.random.default_rng(29)
        for _ in range(RegulariserOptions.current().sign_points):
            w = generator.standard_normal(self.solver.structural_sizes["student_rank"])
            known = np.tile(generator.standard_normal(self.teacher_column_count_in_penalty), (2, 1))
            one, other = self.penalties_and_gradients(np.stack([w, moved(w)]), known)[0]
            if not (one == other or abs(one - other) <= 1e-12 * (1 + abs(one))):
                return False
        return True


class RidgeRegulariser(Regulariser):
    """The ridge w^T Lambda w / 2 with diagonal Lambda, whose strengths may be negative (docs/theory.md (4.10))."""

    noun, is_ridge = "ridge", True

    def penalties_and_gradients(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the penalty w^T Lambda w / 2 of every row w and its gradient Lambda w.

        Args:
            W: the rows w, (rows, s).
            known: not used.
        """
        slope = W * self.ridge_strengths
        return np.sum(W * slope, axis=1) / 2, slope

    def minimisers_and_derivatives(
        self, b: np.ndarray, G: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimising row R b and its derivative R = (Lambda + G)^(-1) in b, for every row.

        Args:
            b: the field b of every row, (rows, s).
            G: the matrix G of every row, (rows, s, s).
            known: not used.
        """
        matrices = G + np.diag(self.ridge_strengths)
        inside = np.linalg.eigvalsh(matrices)[:, 0] > 0
        response = np.full_like(matrices, np.nan)
        response[inside] = np.linalg.inv(matrices[inside])
        return np.einsum("iab,ib->ia", response, b), response

    def proximal_map(self, b: np.ndarray, precision: float, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimising row b / (precision + Lambda) and its derivative in b, for every row.

        Args:
            b: the field b of every row, (rows, s).
            precision: positive factor of |w|^2 / 2.
            known: not used.
        """
        stiffness = precision + self.ridge_strengths
        return b / stiffness, np.tile(np.diag(1 / stiffness), (len(b), 1, 1))

    def rotation_invariance_conditions(self, basis: np.ndarray) -> np.ndarray:
        """Return the commutators of the ridge matrix Lambda with the antisymmetric generators A of the rotations.

        A rotation leaves the ridge w^T Lambda w / 2 unchanged if its generator commutes with Lambda.
        """
        strength = np.diag(self.ridge_strengths) / (np.abs(self.ridge_strengths).max() or 1.0)
        return np.stack([(A @ strength - strength @ A).ravel() for A in basis], axis=1)


class SphericalConstraint(Regulariser):
    """The constraint that the columns of W have given norms, without a penalty (docs/theory.md (6.5))."""

    noun, keeps_norms, names_of_strength_parameters = "given norms", True, ()

    def penalties_and_gradients(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return zeros as penalty and gradient of every row: fixed norms are no penalty.

        Args:
            W: the rows w, (rows, s).
            known: not used.
        """
        return np.zeros(len(W)), np.zeros_like(W)

    def minimisers_and_derivatives(
        self, b: np.ndarray, G: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Raise InputError: with fixed norms of the columns, a row of W has no minimiser of its own.

        Args:
            b: not used.
            G: not used.
            known: not used.
        """
        raise InputError(
            f"{self.solver.name} has no minimiser of a single row of W: the fixed norms of columns couple all rows"
        )

    def norm_multipliers(self, hats: Conjugates) -> np.ndarray:
        """Return the ridge strengths (s,) that give the columns of W their fixed norms."""
        law, out = self.law, np.empty_like(self.fixed_column_norms)
        found = self.solver.prior_functions.multipliers(
            law.weights,
            law.gamma,
            law.gram,
            self.fixed_column_norms,
            self.temperature,
            hats.q,
            hats.V,
            hats.m,
            hats.theta,
            out,
        )
        if not found:
            raise DomainError("no ridge strengths give the columns of W their fixed norms at these conjugate overlaps")
        return out

    def rotation_invariance_conditions(self, basis: np.ndarray) -> np.ndarray:
        """Return conditions that no rotation meets: it would change the norms of columns that are not orthogonal."""
        return np.stack([A.ravel() for A in basis], axis=1)

    def is_invariant_under(self, moved: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return whether a permutation of the columns of W exchanges only columns of equal norm."""
        return np.allclose(np.abs(moved(self.fixed_column_norms)), self.fixed_column_norms, rtol=1e-12, atol=1e-12)


class ConvexPenalty(Regulariser):
    """A convex penalty r(w, pi) of a row w of W and the row pi of W*, as an expression (docs/theory.md section 6)."""

    noun = "penalty"

    def penalties_and_gradients(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the penalty r of every row and its gradient, by generated functions.

        Args:
            W: the rows w, (rows, s).
            known: teacher entries that r depends on, row by row, (rows, `teacher_column_count_in_penalty`).
        """
        return self.solver.prior_functions.penalties_at(W, known, self.declared_parameter_values)

    def minimisers_and_derivatives(
        self, b: np.ndarray, G: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimiser of r(w) + w^T G w / 2 - w^T b for every row, and dw/db, by generated functions.

        Args:
            b: the field b of every row, (rows, s).
            G: the matrix G of every row, (rows, s, s).
            known: teacher entries that r depends on, row by row, (rows, `teacher_column_count_in_penalty`).
        """
        return self.solver.prior_functions.minimisers_at(b, G, known, self.declared_parameter_values)

    @property
    def prior_arguments_of_regulariser(self) -> tuple[np.ndarray, ...]:
        """Arguments of averages over rows of W: parameters, discrete teacher rows, quadrature nodes."""
        listed = np.zeros(0) if self.law.rows is None else np.column_stack(self.law.rows).ravel()
        rule = np.stack(np.polynomial.legendre.leggauss(PRIOR_POINTS), axis=1)
        return np.concatenate([self.declared_parameter_values, listed]), rule

    def refuse_invalid_parameters(self, values: str) -> None:
        """Raise InputError if the penalty is not convex on random chords, or infinite for every row w."""
        s, prior, generator = (
            self.solver.structural_sizes["student_rank"],
            self.solver.prior_functions,
            np.random.default_rng(17),
        )
        for _ in range(RegulariserOptions.current().chords):
            pi = generator.standard_normal(self.teacher_column_count_in_penalty)
            one, other = 10 ** generator.uniform(-2, 2) * generator.standard_normal((2, s))
            ends = [
                prior.regulariser.py_func(*w, *pi, self.declared_parameter_values)
                for w in (one, other, (one + other) / 2)
            ]
            if ends[2] > (ends[0] + ends[1]) / 2 + 1e-12 * (1 + abs(ends[2])):
                raise InputError(f"the penalty of {self.solver.name} is not convex at {values}: choose other values")
        known = np.zeros((1, self.teacher_column_count_in_penalty))
        w, _ = self.proximal_map(np.zeros((1, s)), 1.0, known)
        if not np.isfinite(self.penalties_and_gradients(w, known)[0]).all():
            raise InputError(f"{self.solver.name} has an infinite penalty for every w at {values}: choose other values")


_KINDS: dict[str, type[Regulariser]] = {
    "ridge": RidgeRegulariser,
    "sphere": SphericalConstraint,
    "penalty": ConvexPenalty,
}


def make_regulariser(solver: Solver, law: TokenLaw, parameters: Mapping[str, Any], temperature: float) -> Regulariser:
    """Return the regulariser of a solver's model.

    Args:
        solver: solver of the model.
        law: law of the tokens.
        parameters: parameters of the problem, name -> value.
        temperature: temperature; 0 for the minimum of the risk.

    Raises:
        InputError: the model declares an unknown kind of regulariser.
    """
    kind = solver.model.REGULARISER
    require_known_name("regulariser", kind, _KINDS, solver.name)
    return _KINDS[kind](solver, law, parameters, temperature)
