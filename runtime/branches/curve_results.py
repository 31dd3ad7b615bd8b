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
    """A solution, or another result, at one value of the parameter of a curve."""

    @property
    def problem(self) -> Problem:
        """The problem with the parameter value of the result."""


AnyPoint = TypeVar("AnyPoint", bound=ResultWithProblem)


class BranchResults(DatasetResult, Generic[AnyPoint]):
    """Solutions of one branch, in the order of a parameter or of the arclength."""

    parameter: str
    solutions: tuple[AnyPoint, ...]

    @property
    def values(self) -> np.ndarray:
        """Return the parameter value of every solution, in the order of the solutions."""
        return np.array([s.problem.value_of_parameter(self.parameter) for s in self.solutions])

    def to_xarray(self, stability: bool = True) -> xarray.Dataset:
        """Return overlaps, error bars, losses and stability verdicts as an xarray Dataset along the parameter.

        A branch followed by arclength has the arclength as a variable, and its events among the attributes.
        """
        return presenting.to_dataset(self, stability)

    def to_pandas(self, stability: bool = True, names: Mapping[str, str] | None = None) -> pandas.DataFrame:
        """Return a data frame with one row per solution and one column per overlap (q_1, V_1, ...) and loss.

        Args:
            stability: whether columns of the stability verdict are included (computed if missing).
            names: your own symbols for quantities, for example {"theta": "T"}.
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
        ends: lower and upper end of the branch, each as (last value with it, first value without it); None if the
            branch exists up to the edge of the grid.
        out_of_time: whether a time limit ended the computation before all values were tried.
    """

    parameter: str
    name: str
    solutions: tuple[AnyPoint, ...]
    ends: tuple[tuple[float, float] | None, tuple[float, float] | None]
    out_of_time: bool = False

    def __getitem__(self, column: str) -> np.ndarray:
        """Return a column of the table by name, for example curve["test_error"], with one entry per solution."""
        frame = self.to_pandas()
        if column not in frame:
            raise KeyError(describe_unknown_name("column", column, map(str, frame.columns)))
        return frame[column].to_numpy()

    def __iter__(self) -> Iterator[AnyPoint]:
        """Yield the solutions."""
        return iter(self.solutions)

    def end_text(self, symbol: str | None = None) -> str:
        """Return a sentence that says where the branch ends; `symbol` replaces the name of the parameter."""
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
