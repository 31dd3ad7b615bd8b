"""Regularisers: what the package asks of one, and the kinds that are known.

A kind is a class with a line in `_KINDS`, by the name that `derive.authoring.regulariser` gives it. What it must define
is abstract in `Regulariser`; all else has a default that holds for any convex r(w), or is a constant of the generated
prior. Only what declares to be a ridge (`is_ridge`), or norms that are given (`keeps_norms`), is treated as such.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from ..base.errors import DomainError, InputError, require_known
from .law import TokenLaw
from .overlaps import Conjugates
from .solver import Solver

PRIOR_POINTS = 64  # nodes a panel for averages over a row of W; the integrands are smooth between corners
_CHORDS = 60  # on which a penalty is seen to be convex
_ROTATED, _PROBES = 12, 12  # random rows a column, and rows, at which symmetries of a regulariser are tested


@dataclass(frozen=True)
class Regulariser(ABC):
    """r(w) of one row w of W (docs/theory.md (1.3) and section 6), at the parameters of a problem.

    N rows are an array (N, s), and `known` is what r contains of the rows of the teacher, (N, `known_teachers`).

    Attributes:
        parameters: of the problem, name -> value; temperature: 0 for the minimum of the risk.
        noun: what messages call it, with "of NAME" behind it.
        is_ridge: whether r(w) = w^T Lambda w / 2, with the given `strengths` on the diagonal of Lambda.
        keeps_norms: whether the `norms` of the columns of W are given, and the strengths of a ridge are multipliers.
    """

    solver: Solver
    law: TokenLaw
    parameters: Mapping[str, Any]
    temperature: float

    noun: ClassVar[str] = "regulariser"
    is_ridge: ClassVar[bool] = False
    keeps_norms: ClassVar[bool] = False

    @abstractmethod
    def values(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return r of every row, (N,), and its gradient away from corners, (N, s)."""

    @abstractmethod
    def minimisers(self, b: np.ndarray, G: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return w least in r(w) + w^T G w / 2 - w^T b, (N, s), and dw/db, (N, s, s), for b (N, s) and G (N, s, s); nan
        where there is none."""

    def proximal(self, b: np.ndarray, precision: float, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same for G = precision times the identity."""
        s = b.shape[1]
        return self.minimisers(np.ascontiguousarray(b), np.tile(precision * np.eye(s), (len(b), 1, 1)), known)

    @cached_property
    def numbers(self) -> np.ndarray:
        """All parameters of the regulariser in the order of its declaration."""
        return np.concatenate([np.zeros(0), *[np.ravel(self.parameters[name]) for name in self.solver.model.STRENGTHS]])

    @property
    def strengths(self) -> np.ndarray:
        """lambda_a of a ridge, (s,).

        Raises:
            InputError: it is none.
        """
        if not self.is_ridge:
            raise InputError(f"strengths of a ridge are not given by the {self.noun} of {self.solver.name}")
        return self.numbers

    @property
    def norms(self) -> np.ndarray:
        """Given norms of the columns of W over sqrt(d), (s,).

        Raises:
            InputError: none are given.
        """
        if not self.keeps_norms:
            raise InputError(f"norms are not given by the {self.noun} of {self.solver.name}")
        return self.numbers

    @property
    def is_quadratic(self) -> bool:
        """Whether rows are those of a ridge, of given strengths or of multipliers: linear in their field, so that
        averages over them depend on second moments alone."""
        return self.is_ridge or self.keeps_norms

    @property
    def strength_names(self) -> tuple[str, ...]:
        """Names of the parameters that hold the weights the more strongly the larger they are."""
        return tuple(self.solver.model.STRENGTHS)

    @property
    def has_corners(self) -> bool:
        """Whether the slope of r jumps."""
        return getattr(self.solver.prior, "CORNERS", 0) > 0

    @property
    def known_teachers(self) -> int:
        """Number of columns of the teacher whose row r contains."""
        return getattr(self.solver.prior, "KNOWN", 0)

    @property
    def given_teachers(self) -> int:
        """Number of columns of the teacher over whose row averages run in addition to the field b."""
        return getattr(self.solver.prior, "GIVEN", self.known_teachers)

    def check(self, values: str) -> None:
        """Refuse parameters at which there is no solution.

        Args:
            values: the parameters in words.

        Raises:
            InputError: which, and why.
        """
        return

    @property
    def prior_arguments(self) -> tuple[np.ndarray, ...]:
        """Arguments of maps of the generated prior that follow the law of the coordinates."""
        return (self.numbers,)

    def of_ridge(self, name: str, strengths: np.ndarray) -> Callable[..., Any]:
        """Return a map of the generated prior (overlaps, free_entropy) at strengths or multipliers (s,) of a ridge,
        where `is_quadratic`."""
        known = getattr(self.solver.prior, f"ridge_{name}" if self.keeps_norms else name)
        return partial(known, self.law.weights, self.law.gamma, self.law.gram, strengths)

    def multipliers(self, hats: Conjugates) -> np.ndarray | None:
        """Return lambda_a (s,) of given norms at conjugates; None where none are given.

        Raises:
            DomainError: there are none.
        """
        return None

    def rotation_conditions(self, basis: np.ndarray) -> np.ndarray:
        """Return rows of conditions, linear in the coefficients of antisymmetric matrices A (k, s, s), under which
        w -> exp(a A) w leaves r unchanged: the slope along A w at random w."""
        s, generator = self.solver.structure["student_rank"], np.random.default_rng(13)
        rows = []
        for _ in range(_ROTATED * s):
            w, known = generator.standard_normal(s), generator.standard_normal(self.known_teachers)
            slope = self.values(w[None], known[None])[1][0]
            rows.append([slope @ A @ w / (np.linalg.norm(slope) * np.linalg.norm(w) + 1e-300) for A in basis])
        return np.array(rows)

    def is_unchanged(self, moved: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return whether signs or another order of the entries of w leave r as it is (tested at random rows).

        Args:
            moved: a row (s,) -> the row with other signs or in another order.
        """
        generator = np.random.default_rng(29)
        for _ in range(_PROBES):
            w = generator.standard_normal(self.solver.structure["student_rank"])
            known = np.tile(generator.standard_normal(self.known_teachers), (2, 1))
            one, other = self.values(np.stack([w, moved(w)]), known)[0]
            if not (one == other or abs(one - other) <= 1e-12 * (1 + abs(one))):
                return False
        return True


class Ridge(Regulariser):
    """w^T Lambda w / 2, the strengths of either sign (docs/theory.md (4.10))."""

    noun, is_ridge = "ridge", True

    def values(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return w^T Lambda w / 2 and Lambda w."""
        slope = W * self.strengths
        return np.sum(W * slope, axis=1) / 2, slope

    def minimisers(self, b: np.ndarray, G: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return R b and R = (Lambda + G)^{-1}."""
        matrices = G + np.diag(self.strengths)
        inside = np.linalg.eigvalsh(matrices)[:, 0] > 0
        response = np.full_like(matrices, np.nan)
        response[inside] = np.linalg.inv(matrices[inside])
        return np.einsum("iab,ib->ia", response, b), response

    def proximal(self, b: np.ndarray, precision: float, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the same without an inverse."""
        stiffness = precision + self.strengths
        return b / stiffness, np.tile(np.diag(1 / stiffness), (len(b), 1, 1))

    def rotation_conditions(self, basis: np.ndarray) -> np.ndarray:
        """Return the entries of the commutators of A and Lambda."""
        strength = np.diag(self.strengths) / (np.abs(self.strengths).max() or 1.0)
        return np.stack([(A @ strength - strength @ A).ravel() for A in basis], axis=1)


class Sphere(Regulariser):
    """No penalty, but given norms of the columns of W (docs/theory.md (6.5))."""

    noun, keeps_norms, strength_names = "given norms", True, ()

    def values(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return zeros: there is no penalty."""
        return np.zeros(len(W)), np.zeros_like(W)

    def minimisers(self, b: np.ndarray, G: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """
        Raises:
            InputError: multipliers, which rows have in common, are not known.
        """
        raise InputError(f"the {self.noun} of {self.solver.name} do not determine a row of W by itself")

    def multipliers(self, hats: Conjugates) -> np.ndarray:
        """Return those by which the ridge keeps the norms."""
        law, out = self.law, np.empty_like(self.norms)
        found = self.solver.prior.multipliers(
            law.weights, law.gamma, law.gram, self.norms, self.temperature, hats.q, hats.V, hats.m, hats.theta, out
        )
        if not found:
            raise DomainError("no multipliers keep the norms")
        return out

    def rotation_conditions(self, basis: np.ndarray) -> np.ndarray:
        """Return all entries of A: no rotation keeps the norms of columns that are not orthogonal."""
        return np.stack([A.ravel() for A in basis], axis=1)

    def is_unchanged(self, moved: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Return whether columns of the same norm change places."""
        return np.allclose(np.abs(moved(self.norms)), self.norms, rtol=1e-12, atol=1e-12)


class Penalty(Regulariser):
    """Any convex r(w, pi) of an expression; averages run over the field b of a row (docs/theory.md section 6)."""

    noun = "penalty"

    def values(self, W: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return r by its expression, and its gradient."""
        return self.solver.prior.penalties_at(W, known, self.numbers)

    def minimisers(self, b: np.ndarray, G: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the generated search finds."""
        return self.solver.prior.minimisers_at(b, G, known, self.numbers)

    @property
    def prior_arguments(self) -> tuple[np.ndarray, ...]:
        """Parameters, followed by rows of few values, each after its probability; then nodes and weights."""
        listed = np.zeros(0) if self.law.rows is None else np.column_stack(self.law.rows).ravel()
        rule = np.stack(np.polynomial.legendre.leggauss(PRIOR_POINTS), axis=1)
        return np.concatenate([self.numbers, listed]), rule

    def check(self, values: str) -> None:
        """Refuse what is not convex on random chords, or infinite at the minimum of r(w) + |w|^2 / 2."""
        s, prior, generator = self.solver.structure["student_rank"], self.solver.prior, np.random.default_rng(17)
        of, at = f"the penalty of {self.solver.name} is", f"at {values}: choose other values"
        for _ in range(_CHORDS):
            pi = generator.standard_normal(self.known_teachers)
            one, other = 10 ** generator.uniform(-2, 2) * generator.standard_normal((2, s))
            ends = [prior.regulariser.py_func(*w, *pi, self.numbers) for w in (one, other, (one + other) / 2)]
            if ends[2] > (ends[0] + ends[1]) / 2 + 1e-12 * (1 + abs(ends[2])):
                raise InputError(f"{of} not convex {at}")
        known = np.zeros((1, self.known_teachers))
        w, _ = self.proximal(np.zeros((1, s)), 1.0, known)
        if not np.isfinite(self.values(w, known)[0]).all():
            raise InputError(f"{of} infinite at every w {at}")


_KINDS: dict[str, type[Regulariser]] = {"ridge": Ridge, "sphere": Sphere, "penalty": Penalty}


def regulariser_of(solver: Solver, law: TokenLaw, parameters: Mapping[str, Any], temperature: float) -> Regulariser:
    """Return the regulariser of a solver's model.

    Raises:
        InputError: it is of a kind that is not known here.
    """
    kind = solver.model.REGULARISER
    require_known("regulariser", kind, _KINDS, solver.name)
    return _KINDS[kind](solver, law, parameters, temperature)
