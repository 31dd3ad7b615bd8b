"""The printed functions of `reference.py` on balls: the same source, with numbers of duals.py in place of mpmath's."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
from flint import arb

from ...base.errors import NotProvedError
from ...problems.parts import Reference
from ...problems.problem import Problem
from .duals import Dual, lift

_IMPORT = "from mpmath import mp, mpf\n"


class Matrix(np.ndarray):
    """An array of numbers whose product is the matrix product, as mpmath's."""

    def __mul__(self, other: Any) -> Any:
        return self @ other


class Arithmetic:
    """What printed code takes from mpmath."""

    @property
    def pi(self) -> Dual:
        """A ball at the precision in force, without derivatives."""
        return Dual(arb.pi())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Dual, name):
            raise NotProvedError(f"the printed equations contain {name}, which ball arithmetic does not have")
        return lambda number: getattr(lift(number), name)()

    @staticmethod
    def fsum(terms: Any) -> Dual:
        """Term by term, unlike mpmath's, which rounds once: the ball holds what that costs."""
        return sum(terms, start=lift(0))

    @staticmethod
    def matrix(rows: Any, columns: int | None = None) -> Matrix:
        """From rows, or zeros of the shape (rows, columns)."""
        if columns is None:
            return np.array(rows, dtype=object).view(Matrix)
        return np.full((rows, columns), lift(0), dtype=object).view(Matrix)

    @staticmethod
    def diag(entries: list[Any]) -> Matrix:
        """From the entries on the diagonal; what is beside them is the integer 0."""
        return np.diag(np.array([lift(entry) for entry in entries], dtype=object)).view(Matrix)

    @staticmethod
    def cholesky(matrix: Matrix) -> None:
        """ValueError where a matrix of one entry is not proved positive."""
        assert matrix.shape == (1, 1)
        if not matrix[0, 0].value > 0:
            raise ValueError("a matrix is not proved positive")

    @staticmethod
    def inverse(matrix: Matrix) -> Matrix:
        """1 / the entry of a (1, 1) matrix, which `cholesky` has proved positive before."""
        return np.array([[1 / matrix[0, 0]]], dtype=object).view(Matrix)


@lru_cache(maxsize=64)
def _source(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    assert text.count(_IMPORT) == 1
    return compile(text.replace(_IMPORT, ""), str(path), "exec")


def reference_on_balls(problem: Problem) -> Reference:
    """The generated reference module of a problem's solver, run again each time: its constants are balls of the
    precision in force."""
    path = problem.solver.path_of("reference")
    module = ModuleType(f"{path.parent.parent.name} on balls")
    vars(module).update(mp=Arithmetic(), mpf=lift)
    exec(_source(path), vars(module))
    return cast(Reference, module)
