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
        chords: random chords on which convexity is tested.
        rotation_points: random rows per column at which rotations are tested for invariance.
        sign_points: random rows at which signs and permutations are tested for invariance.
    """

    chords: int = 60
    rotation_points: int = 12
    sign_points: int = 12


@dataclass(frozen=True)
class Regulariser(ABC):
    """The regulariser r(w) of a row w of W (docs/theory.md (1.3) and section 6), at the parameters of a problem.

    N rows are an array (N, s); `known` are the entries of teacher rows that r depends on, N of them in an array.

    Attributes:
        solver: solver of the model.
        law: law of the tokens.
        parameters: parameters of the problem, name -> value.
        temperature: temperature; 0 for the minimum of the risk.
        noun: its name in messages, followed by "of NAME".
        is_ridge: whether r(w) = w^T Lambda w / 2, with the given `ridge_strengths` on the diagonal of Lambda.
        keeps_norms: whether `fixed_column_norms` are given, and the strengths of a ridge are multipliers.
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
        """Return r of every row, (N,), and its gradient (away from kinks), (N, s).

        Args:
            W: rows, (N, s).
            known: teacher entries that r depends on, (N, `teacher_columns_in_penalty`).
        """

    @abstractmethod
    def minimisers_and_derivatives(
        self, b: np.ndarray, G: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimiser w of r(w) + w^T G w / 2 - w^T b, (N, s), and dw/db, (N, s, s); nan if there is none.

        Args:
            b: fields, (N, s).
            G: curvatures, (N, s, s).
            known: teacher entries that r depends on, (N, `teacher_columns_in_penalty`).
        """

    def proximal_map(self, b: np.ndarray, precision: float, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimiser of r(w) + precision |w|^2 / 2 - w^T b for every row, (N, s), and dw/db, (N, s, s).

        Args:
            b: fields, (N, s).
            precision: positive number.
            known: teacher entries that r depends on, (N, `teacher_columns_in_penalty`).
        """
        s = b.shape[1]
        return self.minimisers_and_derivatives(
            np.ascontiguousarray(b), np.tile(precision * np.eye(s), (len(b), 1, 1)), known
        )

    @cached_property
    def declared_parameter_values(self) -> np.ndarray:
        """All parameters of the regulariser in the order of its declaration."""
        return np.concatenate([np.zeros(0), *[np.ravel(self.parameters[name]) for name in self.solver.model.STRENGTHS]])

    @property
    def ridge_strengths(self) -> np.ndarray:
        """Ridge strengths lambda_a of the columns of W, (s,).

        Raises:
            InputError: the regulariser is no ridge.
        """
        if not self.is_ridge:
            raise InputError(f"{self.solver.name} has no ridge strengths (its regulariser: {self.noun})")
        return self.declared_parameter_values

    @property
    def fixed_column_norms(self) -> np.ndarray:
        """Fixed norms of the columns of W over sqrt(d), (s,).

        Raises:
            InputError: the regulariser fixes no norms.
        """
        if not self.keeps_norms:
            raise InputError(
                f"{self.solver.name} does not fix the norms of the columns of W (its regulariser: {self.noun})"
            )
        return self.declared_parameter_values

    @property
    def is_quadratic(self) -> bool:
        """Whether minimisers are linear in their field, as for a ridge of given strengths or of multipliers.

        Averages over rows then depend on second moments alone.
        """
        return self.is_ridge or self.keeps_norms

    @property
    def names_of_strength_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that regularise more strongly the larger they are."""
        return tuple(self.solver.model.STRENGTHS)

    @property
    def has_kinks(self) -> bool:
        """Whether r has kinks, where its slope jumps."""
        return getattr(self.solver.prior_functions, "CORNERS", 0) > 0

    @property
    def teacher_columns_in_penalty(self) -> int:
        """Number of teacher columns whose entries r depends on."""
        return getattr(self.solver.prior_functions, "KNOWN", 0)

    @property
    def averaged_teacher_columns(self) -> int:
        """Number of teacher columns over whose entries averages run, in addition to the field b."""
        return getattr(self.solver.prior_functions, "GIVEN", self.teacher_columns_in_penalty)

    def refuse_invalid_parameters(self, values: str) -> None:
        """Raise InputError for parameters at which there is no solution.

        Args:
            values: the parameters in words, for the message.

        Raises:
            InputError: there is none; the message says why.
        """
        return

    @property
    def prior_arguments(self) -> tuple[np.ndarray, ...]:
        """Arguments that functions of the generated prior take after the law of the coordinates."""
        return (self.declared_parameter_values,)

    def prior_map_of_ridge(self, name: str, strengths: np.ndarray) -> Callable[..., Any]:
        """Return a map of the generated prior for a ridge of other strengths; only if `is_quadratic`.

        Args:
            name: "overlaps" or "free_entropy".
            strengths: or multipliers, (s,).
        """
        known = getattr(self.solver.prior_functions, f"ridge_{name}" if self.keeps_norms else name)
        return partial(known, self.law.weights, self.law.gamma, self.law.gram, strengths)

    def norm_multipliers(self, hats: Conjugates) -> np.ndarray | None:
        """Return the multipliers lambda_a (s,) of given norms at conjugates; None if norms are not given.

        Raises:
            DomainError: no multipliers keep the norms.
        """
        return None

    def rotation_invariance_conditions(self, basis: np.ndarray) -> np.ndarray:
        """Return linear conditions on combinations of antisymmetric A for w -> exp(a A) w to leave r unchanged.

        Each row holds the slopes of r along A w at a random w; the combination must be orthogonal to all rows.

        Args:
            basis: the matrices A, (k, s, s).
        """
        s, generator = self.solver.structural_sizes["student_rank"], np.random.default_rng(13)
        rows: list[list[float]] = []
        for _ in range(RegulariserOptions.current().rotation_points * s):
            w, known = generator.standard_normal(s), generator.standard_normal(self.teacher_columns_in_penalty)
            slope = self.penalties_and_gradients(w[None], known[None])[1][0]
            rows.append([slope @ A @ w / (np.linalg.norm(slope) * np.linalg.norm(w) + 1e-300) for A in basis])
        return np.array(rows)

    def is_invariant_under(self, moved: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return whether r is invariant under signs or permutations of the entries of w (tested at random rows).

        Args:
            moved: a row (s,) -> the row with signs changed or entries permuted.
        """
        generator = np.random.default_rng(29)
        for _ in range(RegulariserOptions.current().sign_points):
            w = generator.standard_normal(self.solver.structural_sizes["student_rank"])
            known = np.tile(generator.standard_normal(self.teacher_columns_in_penalty), (2, 1))
            one, other = self.penalties_and_gradients(np.stack([w, moved(w)]), known)[0]
            if not (one == other or abs(one - other) <= 1e-12 * (1 + abs(one))):
                return False
        return True


class RidgeRegulariser(Regulariser):
    """A ridge w^T Lambda w / 2, with strengths of either sign (docs/theory.md (4.10))."""

    noun, is_ridge = "ridge", True

    def penalties_and_gradients(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return w^T Lambda w / 2 and Lambda w.

        Args:
            W: rows, (N, s).
            known: ignored.
        """
        slope = W * self.ridge_strengths
        return np.sum(W * slope, axis=1) / 2, slope

    def minimisers_and_derivatives(
        self, b: np.ndarray, G: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return R b and R = (Lambda + G)^{-1}.

        Args:
            b: fields, (N, s).
            G: curvatures, (N, s, s).
            known: ignored.
        """
        matrices = G + np.diag(self.ridge_strengths)
        inside = np.linalg.eigvalsh(matrices)[:, 0] > 0
        response = np.full_like(matrices, np.nan)
        response[inside] = np.linalg.inv(matrices[inside])
        return np.einsum("iab,ib->ia", response, b), response

    def proximal_map(self, b: np.ndarray, precision: float, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return b / (precision + Lambda) and its derivative, without inverting a matrix.

        Args:
            b: fields, (N, s).
            precision: positive number.
            known: ignored.
        """
        stiffness = precision + self.ridge_strengths
        return b / stiffness, np.tile(np.diag(1 / stiffness), (len(b), 1, 1))

    def rotation_invariance_conditions(self, basis: np.ndarray) -> np.ndarray:
        """Return the entries of the commutators of A and Lambda."""
        strength = np.diag(self.ridge_strengths) / (np.abs(self.ridge_strengths).max() or 1.0)
        return np.stack([(A @ strength - strength @ A).ravel() for A in basis], axis=1)


class SphericalConstraint(Regulariser):
    """A constraint to given norms of the columns of W, without a penalty (docs/theory.md (6.5))."""

    noun, keeps_norms, names_of_strength_parameters = "given norms", True, ()

    def penalties_and_gradients(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return zeros: there is no penalty.

        Args:
            W: rows, (N, s).
            known: ignored.
        """
        return np.zeros(len(W)), np.zeros_like(W)

    def minimisers_and_derivatives(
        self, b: np.ndarray, G: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Raise InputError: a row alone does not determine the multipliers, which all rows share.

        Args:
            b: ignored.
            G: ignored.
            known: ignored.
        """
        raise InputError(
            f"with fixed norms, {self.solver.name} has no minimiser of a single row of W: rows share multipliers"
        )

    def norm_multipliers(self, hats: Conjugates) -> np.ndarray:
        """Return the ridge strengths for which the columns of W have the fixed norms."""
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
            raise DomainError("no multipliers satisfy the fixed norms of the columns of W")
        return out

    def rotation_invariance_conditions(self, basis: np.ndarray) -> np.ndarray:
        """Return all entries of A as conditions: no rotation keeps the norms of columns that are not orthogonal."""
        return np.stack([A.ravel() for A in basis], axis=1)

    def is_invariant_under(self, moved: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return whether a permutation of columns exchanges only columns of equal norm."""
        return np.allclose(np.abs(moved(self.fixed_column_norms)), self.fixed_column_norms, rtol=1e-12, atol=1e-12)


class ConvexPenalty(Regulariser):
    """A convex penalty r(w, pi) given by an expression; averages run over the field b (docs/theory.md section 6)."""

    noun = "penalty"

    def penalties_and_gradients(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return r and its gradient, from the generated expression.

        Args:
            W: rows, (N, s).
            known: teacher entries that r depends on, (N, `teacher_columns_in_penalty`).
        """
        return self.solver.prior_functions.penalties_at(W, known, self.declared_parameter_values)

    def minimisers_and_derivatives(
        self, b: np.ndarray, G: np.ndarray, known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return minimisers and derivatives found by the generated search.

        Args:
            b: fields, (N, s).
            G: curvatures, (N, s, s).
            known: teacher entries that r depends on, (N, `teacher_columns_in_penalty`).
        """
        return self.solver.prior_functions.minimisers_at(b, G, known, self.declared_parameter_values)

    @property
    def prior_arguments(self) -> tuple[np.ndarray, ...]:
        """Parameters followed by discrete teacher rows, each after its probability; then nodes and weights."""
        listed = np.zeros(0) if self.law.rows is None else np.column_stack(self.law.rows).ravel()
        rule = np.stack(np.polynomial.legendre.leggauss(PRIOR_POINTS), axis=1)
        return np.concatenate([self.declared_parameter_values, listed]), rule

    def refuse_invalid_parameters(self, values: str) -> None:
        """Raise InputError for a penalty that is not convex on random chords, or infinite for every w."""
        s, prior, generator = (
            self.solver.structural_sizes["student_rank"],
            self.solver.prior_functions,
            np.random.default_rng(17),
        )
        penalty, where = f"the penalty of {self.solver.name}", f"at {values}: choose other values"
        for _ in range(RegulariserOptions.current().chords):
            pi = generator.standard_normal(self.teacher_columns_in_penalty)
            one, other = 10 ** generator.uniform(-2, 2) * generator.standard_normal((2, s))
            ends = [
                prior.regulariser.py_func(*w, *pi, self.declared_parameter_values)
                for w in (one, other, (one + other) / 2)
            ]
            if ends[2] > (ends[0] + ends[1]) / 2 + 1e-12 * (1 + abs(ends[2])):
                raise InputError(f"{penalty} is not convex {where}")
        known = np.zeros((1, self.teacher_columns_in_penalty))
        w, _ = self.proximal_map(np.zeros((1, s)), 1.0, known)
        if not np.isfinite(self.penalties_and_gradients(w, known)[0]).all():
            raise InputError(f"{penalty} is infinite for every w {where}")


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
        InputError: its kind is unknown.
    """
    kind = solver.model.REGULARISER
    require_known_name("regulariser", kind, _KINDS, solver.name)
    return _KINDS[kind](solver, law, parameters, temperature)
