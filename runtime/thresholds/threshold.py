"""A threshold with its error bar, as a plain value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.numbers import format_value_with_error
from ..base.presenting import PresentableResult
from ..problems.problem import Problem
from ..solving.solution import Solution
from ..stability.assess import Stability


@dataclass(frozen=True)
class Threshold(PresentableResult):
    """A parameter value at which branches cross, a condition holds or stability changes, with its error bar.

    Attributes:
        value: parameter value.
        error: error bar of the parameter value.
        status: converged; accuracy_not_reached if the error bar is larger than requested; time_limit if the time ended
            (the error bar then reaches to the ends of the interval that contains the threshold); not_proved if a proof
            was requested and failed.
        error_kind: proved; verified if another family of quadrature rules gave a threshold within the error bar; or
            estimated.
        evidence: slope, parts of the error bar, threshold by the second quadrature rule, number of evaluations.
        broken: solutions with replica symmetry breaking, if any; `solutions` are the symmetric ones.

    Example:
        >>> found = sf.where(sf.problem("ridge_regression"), "test_error = 0.4", on="informed", bracket=(1, 6))
        >>> abs(found.value - 2.4022932) < found.error < 1e-3
        True
        >>> found.kind, found.error_kind
        ('where test_error = 0.4', 'estimated')
    """

    kind: str
    parameter: str
    value: float
    error: float
    error_kind: str
    status: str
    branches: tuple[str, ...]
    problem: Problem
    solutions: tuple[Solution, ...]
    evidence: dict[str, Any]
    broken: tuple[Any, ...] = ()

    @property
    def success(self) -> bool:
        """Return whether the error bar of the threshold is as small as requested."""
        return self.status == "converged"

    @property
    def rs_verdict(self) -> str:
        """Return the replica symmetric stability of each branch at the threshold, in words."""
        solutions = self.broken or self.solutions
        found = [(solution.branch, self._stability_at_threshold(solution.stability)) for solution in solutions]
        return " | ".join(f"{branch}: {stability.verdict}" for branch, stability in found if stability)

    def _stability_at_threshold(self, stability: Any) -> Any:
        """Return the stability of a solution in words, extrapolated to the threshold if the replicon is 1 there."""
        if self.kind != "at" or not isinstance(stability, Stability):
            return stability
        error = stability.replicon_error + abs(self.evidence["slope"]) * self.error
        moved = replace(stability, replicon=stability.replicon - self.evidence["difference"], replicon_error=error)
        return moved if moved.unstable else replace(moved, self_overlap=None)

    def __repr__(self) -> str:
        return self.describe(self.parameter)

    def describe(self, symbol: str) -> str:
        """Return a line of text with kind, value and error bar of the threshold; `symbol` stands for the parameter."""
        where = " and ".join(self.branches)
        return f"{self.kind} of {where}: {symbol} = {self.shown} ({self.error_kind}, {self.status.replace('_', ' ')})"

    @property
    def shown(self) -> str:
        """Return value and error bar as text, for example 1.234(5), rounded to the digits that are known."""
        return format_value_with_error(self.value, self.error)

    @property
    def decimals(self) -> tuple[str, str]:
        """Return value and error bar as decimal strings; the value has two digits more than the error bar resolves."""
        digits = max(0, 2 - int(np.floor(np.log10(self.error)))) if self.error > 0 and np.isfinite(self.error) else 15
        return f"{self.value:.{digits}f}", f"{self.error:.2g}"
