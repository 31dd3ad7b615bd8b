"""Generated equations of a model in ball arithmetic: dual numbers of balls take the place of mpmath's numbers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
from flint import arb

from ...base.errors import NotProvedError
from ...problems.problem import Problem
from ...problems.solver_types import MultiprecisionFunctions
from .duals import DualNumber, dual_from_number

_IMPORT = "from mpmath import mp, mpf\n"


class BallMatrix(np.ndarray):
    """A matrix of dual numbers, for which * is the matrix product, as it is in mpmath."""

    def __mul__(self, other: Any) -> Any:
        return self @ other


class BallArithmetic:
    """A replacement of mpmath in generated code: functions of the same names, for dual numbers of balls."""

    @property
    def pi(self) -> DualNumber:
        """The number pi as a ball at the current precision, without derivatives."""
        return DualNumber(arb.pi())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(DualNumber, name):
            raise NotProvedError(f"ball arithmetic does not provide {name}, which the equations of this model contain")
        return lambda number: getattr(dual_from_number(number), name)()

    @staticmethod
    def fsum(terms: Any) -> DualNumber:
        """Return the sum of the terms as a ball that contains all rounding errors."""
        return sum(terms, start=dual_from_number(0))

    @staticmethod
    def matrix(rows: Any, columns: int | None = None) -> BallMatrix:
        """Return a matrix with the given rows, or a zero matrix of the shape (rows, columns).

        Args:
            rows: rows of the matrix, or their number.
            columns: number of columns; None if the rows are given.
        """
        if columns is None:
            return np.array(rows, dtype=object).view(BallMatrix)
        return np.full((rows, columns), dual_from_number(0), dtype=object).view(BallMatrix)

    @staticmethod
    def diag(entries: list[Any]) -> BallMatrix:
        """Return the diagonal matrix with the given diagonal entries."""
        return np.diag(np.array([dual_from_number(entry) for entry in entries], dtype=object)).view(BallMatrix)

    @staticmethod
    def cholesky(matrix: BallMatrix) -> None:
        """Raise ValueError unless the entry of a (1, 1) matrix is proved positive; no factor is returned."""
        assert matrix.shape == (1, 1)
        if not matrix[0, 0].value > 0:
            raise ValueError(
                "ball arithmetic does not prove that a variance or stiffness of the saddle point is positive"
            )

    @staticmethod
    def inverse(matrix: BallMatrix) -> BallMatrix:
        """Return the inverse of a (1, 1) matrix, which `cholesky` has proved positive."""
        return np.array([[1 / matrix[0, 0]]], dtype=object).view(BallMatrix)


@lru_cache(maxsize=64)
def _compile_reference_source(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    assert text.count(_IMPORT) == 1
    return compile(text.replace(_IMPORT, ""), str(path), "exec")


def reference_module_on_balls(problem: Problem) -> MultiprecisionFunctions:
    """Return the generated equations of a problem as a module that computes in ball arithmetic.

    The module is executed at every call, since its constants are balls of the current precision.
    """
    path = problem.solver.source_file_of_solver_part("reference")
    module = ModuleType(f"{path.parent.parent.name} on balls")
    vars(module).update(mp=BallArithmetic(), mpf=dual_from_number)
    exec(_compile_reference_source(path), vars(module))
    return cast(MultiprecisionFunctions, module)
