"""Results along a branch: solutions in order, tables, figures, and the ends of the branch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from ..base import presenting
from ..base.errors import describe_unknown_name
from ..base.presenting import DatasetResult
from ..problems.problem import Problem
from ..solving.solution import Solution

if TYPE_CHECKING:
    import pandas
    import xarray


class ResultWithProblem(Protocol):
    """A result at one value of the parameter."""

    @property
    def problem(self) -> Problem:
        """The problem with that value."""


AnyPoint = TypeVar("AnyPoint", bound=ResultWithProblem)


class BranchResults(DatasetResult, Generic[AnyPoint]):
    """Solutions of one branch, in the order of a parameter or of the arclength."""

    parameter: str
    solutions: tuple[AnyPoint, ...]

    @property
    def values(self) -> np.ndarray:
        """Return the parameter at every solution, (N,), in their order."""
        return np.array([s.problem.value_of(self.parameter) for s in self.solutions])

    def to_xarray(self, stability: bool = True) -> xarray.Dataset:
        """Return all overlaps, errors, losses and verdicts as a Dataset along the parameter.

        A branch followed by arclength has the arclength as a variable, and its events among the attributes.
        """
        return presenting.to_dataset(self, stability)

    def to_pandas(self, stability: bool = True, names: Mapping[str, str] | None = None) -> pandas.DataFrame:
        """Return a data frame with one row per solution and columns q_1, V_1, ... per token.

        Args:
            stability: whether verdicts are included, which are computed if they are missing.
            names: your own symbols for quantities, as {"theta": "T"}.
        """
        return presenting.to_frame(self, stability, names)

    def plot(self, path: str | Path | None = None) -> Any:
        """Return a figure of overlaps and errors along the parameter; save the figure if a path is given."""
        return presenting.plot(self.to_xarray(), path)


@dataclass(frozen=True)
class CurveResults(BranchResults[AnyPoint]):
    """Solutions of one branch along a parameter, and the ends of the branch.

    Attributes:
        solutions: solutions in ascending order of the parameter.
        ends: below and above, (last value with the branch, first value without it); None if it exists up to the edge.
        out_of_time: whether a time limit ended it before all values were asked for.
    """

    parameter: str
    name: str
    solutions: tuple[AnyPoint, ...]
    ends: tuple[tuple[float, float] | None, tuple[float, float] | None]
    out_of_time: bool = False

    def __getitem__(self, column: str) -> np.ndarray:
        """Return a column of `to_pandas` by name, as curve["test_error"], (N,)."""
        frame = self.to_pandas()
        if column not in frame:
            raise KeyError(describe_unknown_name("column", column, map(str, frame.columns)))
        return frame[column].to_numpy()

    def __iter__(self) -> Iterator[AnyPoint]:
        """Yield the solutions."""
        return iter(self.solutions)

    def end_text(self, symbol: str | None = None) -> str:
        """Return a sentence on where the branch ends; `symbol` replaces the name of the parameter."""
        parts, shown = [], symbol or self.parameter
        for side, end in zip(("below", "above"), self.ends, strict=True):
            if end is not None:
                parts.append(f"ends between {shown} = {min(end):.4g} and {max(end):.4g} ({side})")
        span = f"found on [{self.values[0]:.4g}, {self.values[-1]:.4g}]" if len(self.solutions) else "not found"
        parts += ["the time limit ended it"] if self.out_of_time else []
        return "; ".join([f"{self.name} branch {span}", *parts])

    def to_latex(self, names: Mapping[str, str] | None = None) -> str:
        """Return a LaTeX table (booktabs) of overlaps and losses with error bars, one row per solution."""
        return presenting.to_tabular(self, names)


@dataclass(frozen=True)
class Curve(CurveResults[Solution]):
    """A branch of replica symmetric solutions.

    Example:
        >>> found = sf.curve(sf.problem("ridge_regression"), alpha=(1, 3, 3))
        >>> found.values.tolist(), found.to_pandas()["test_error"].round(4).tolist()
        ([1.0, 2.0, 3.0], [0.6911, 0.4427, 0.3618])
    """
