"""The generated functions of `reference.py` on balls: the same source, with numbers of duals.py instead of mpmath's."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
from flint import arb

from ...base.errors import NotProvedError
from ...problems.problem import Problem
from ...problems.solver_types import Reference
from .duals import Dual, as_dual

_IMPORT = "from mpmath import mp, mpf\n"


class Matrix(np.ndarray):
    """A matrix of numbers whose product is the matrix product, as in mpmath."""

    def __mul__(self, other: Any) -> Any:
        return self @ other


class Arithmetic:
    """A replacement of mpmath in generated code."""

    @property
    def pi(self) -> Dual:
        """The number pi as a ball at the precision in force, without derivatives."""
        return Dual(arb.pi())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Dual, name):
            raise NotProvedError(f"the printed equations contain {name}, which ball arithmetic does not have")
        return lambda number: getattr(as_dual(number), name)()

    @staticmethod
    def fsum(terms: Any) -> Dual:
        """Return the sum, term by term, unlike mpmath's, which rounds once; the ball includes the rounding."""
        return sum(terms, start=as_dual(0))

    @staticmethod
    def matrix(rows: Any, columns: int | None = None) -> Matrix:
        """Return a matrix from rows, or zeros of the shape (rows, columns).

        Args:
            rows: the rows, or their number.
            columns: number of columns; None if rows are given.
        """
        if columns is None:
            return np.array(rows, dtype=object).view(Matrix)
        return np.full((rows, columns), as_dual(0), dtype=object).view(Matrix)

    @staticmethod
    def diag(entries: list[Any]) -> Matrix:
        """Return a matrix from the entries on its diagonal; all others are the integer 0."""
        return np.diag(np.array([as_dual(entry) for entry in entries], dtype=object)).view(Matrix)

    @staticmethod
    def cholesky(matrix: Matrix) -> None:
        """Raise ValueError if a (1, 1) matrix is not proved positive."""
        assert matrix.shape == (1, 1)
        if not matrix[0, 0].value > 0:
            raise ValueError("a matrix is not proved positive")

    @staticmethod
    def inverse(matrix: Matrix) -> Matrix:
        """Return the inverse of a (1, 1) matrix, which `cholesky` has proved positive."""
        return np.array([[1 / matrix[0, 0]]], dtype=object).view(Matrix)


@lru_cache(maxsize=64)
def _compiled_source(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    assert text.count(_IMPORT) == 1
    return compile(text.replace(_IMPORT, ""), str(path), "exec")


def reference_on_balls(problem: Problem) -> Reference:
    """Return the generated reference module of a problem's solver on balls.

    It is run again each time: its constants are balls of the precision in force.
    """
    path = problem.solver.part_path("reference")
    module = ModuleType(f"{path.parent.parent.name} on balls")
    vars(module).update(mp=Arithmetic(), mpf=as_dual)
    exec(_compiled_source(path), vars(module))
    return cast(Reference, module)
