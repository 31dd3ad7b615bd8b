"""A threshold with its error bar: a plain value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.numbers import with_error
from ..base.presenting import Result
from ..problems.problem import Problem
from ..solving.solution import Solution
from ..stability.assess import Stability


@dataclass(frozen=True)
class Threshold(Result):
    """A threshold with its error bar.

    Attributes:
        value, error: parameter value and error bar.
        status: converged, or accuracy_not_reached where the error is larger than asked; time_limit where the time ended
            before more could be done, the error bar then reaching to the ends of the interval that holds it;
            not_proved where a proof was asked for and failed.
        error_kind: proved; verified where a rule of another family gave a threshold within the error bar; estimated.
        evidence: slope, the parts of the error bar, the second rule's value, and the evaluations used.
        broken: with steps of breaking the solutions that it holds for; `solutions` then are those beside them.

    Example:
        >>> found = sf.where(sf.problem("ridge_regression"), "test_error = 0.4", on="semantic", bracket=(1, 6))
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
        """Whether its error bar is no larger than asked."""
        return self.status == "converged"

    @property
    def rs_verdict(self) -> str:
        """Stability of each branch at the threshold, in words."""
        found = [(solution.branch, self._there(solution.stability)) for solution in self.broken or self.solutions]
        return " | ".join(f"{branch}: {stability.verdict}" for branch, stability in found if stability)

    def _there(self, stability: Any) -> Any:
        """The stability of a solution at the threshold itself, a Newton step and an error bar away, where the threshold
        is that of the replicon."""
        if self.kind != "at" or not isinstance(stability, Stability):
            return stability
        error = stability.replicon_error + abs(self.evidence["slope"]) * self.error
        moved = replace(stability, replicon=stability.replicon - self.evidence["difference"], replicon_error=error)
        return moved if moved.unstable else replace(moved, self_overlap=None)

    def __repr__(self) -> str:
        return self.told(self.parameter)

    def told(self, symbol: str) -> str:
        """In one line, with a symbol for the parameter."""
        where = " and ".join(self.branches)
        return f"{self.kind} of {where}: {symbol} = {self.shown} ({self.error_kind}, {self.status.replace('_', ' ')})"

    @property
    def shown(self) -> str:
        """Value with its error bar, for people."""
        return with_error(self.value, self.error)

    @property
    def decimals(self) -> tuple[str, str]:
        """Value, to two digits beyond its error bar, and error bar as decimal strings."""
        digits = max(0, 2 - int(np.floor(np.log10(self.error)))) if self.error > 0 and np.isfinite(self.error) else 15
        return f"{self.value:.{digits}f}", f"{self.error:.2g}"
