"""The prior side behind one protocol: what a regulariser must tell the derivation. Ridge is the first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import sympy as sp

from .averages import Symbols
from .parameters import Parameter, Structure


class Regulariser(ABC):
    """r(w) of one row w of W (theory.md sections 1, 4, 6)."""

    @abstractmethod
    def parameters(self, structure: Structure) -> dict[str, Parameter]:
        """Its named parameters at a structure."""

    @abstractmethod
    def potential(self, symbols: Symbols) -> sp.Expr:
        """E_eta max_w {-r(w) - w^T G w / 2 + w^T (B + Q^{1/2} eta)} as traces of G, B, Q."""

    @abstractmethod
    def identity(self) -> str:
        """A string that changes when the mathematics does."""


@dataclass(frozen=True)
class Ridge(Regulariser):
    """r(w) = 1/2 w^T Lambda w, Lambda = diag(lambda_1, ..., lambda_s)."""

    default: float | str = 0.01

    def parameters(self, structure: Structure) -> dict[str, Parameter]:
        values = (self.default,) * structure.student_rank
        return {
            "lambda_": Parameter(values, low=0, open_low=True, doc="ridge strength, one a column of W", name="lambda_")
        }

    def potential(self, symbols: Symbols) -> sp.Expr:
        p = symbols
        return sp.Trace((p.Lambda + p.G).inv() * (p.B * p.B.T + p.Q)) / 2

    def identity(self) -> str:
        return "ridge"
