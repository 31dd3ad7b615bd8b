"""Thresholds of Bayes-optimal inference along a second parameter: each located on its own, one after another.

Such a threshold is one number for each value of the parameter, so that a line of them cannot turn back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import presenting
from ..errors import InputError, NotConvergedError, TimeLimitError
from ..hints import AttributeHints
from ..interrupts import recognised
from ..numbers import with_error
from ..problems.problem import Problem
from ..progress import bar
from .thresholds import bayes_threshold

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class BayesLine(AttributeHints):
    """A threshold of Bayes-optimal inference along a parameter.

    Attributes:
        kind: of the threshold; over, over_values: the parameter and its values, (N,).
        values, errors: alpha and its half width, (N,); NaN where there is no threshold, or not to the accuracy.
        evidence: what each value rests on, or `reason`, why there is none.
        of, given: the column that is asked for, from 1 on, or None, and what is known of others, as of
            `bayes_threshold`.
        ending: why it ends before the last value, in words; empty where it does not.
        interrupted: by the user; what was finished is here.

    Example:
        >>> line = sf.bayes_line(sf.problem("tempered_attention"), "weak_recovery", over=("beta", 0.5, 1, 2))
        >>> line.over_values, line.success
        (array([0.5, 1. ]), True)
    """

    problem: Problem
    kind: str
    over: str
    over_values: np.ndarray
    values: np.ndarray
    errors: np.ndarray
    evidence: tuple[dict[str, Any], ...]
    of: int | None
    given: Mapping[int, float | str]
    ending: str = ""
    interrupted: bool = False

    @property
    def success(self) -> bool:
        """Whether there is a threshold at every value."""
        return not self.ending and bool(np.isfinite(self.values).all())

    @property
    def title(self) -> str:
        """The threshold in words."""
        words = f"{self.kind.replace('_', ' ')}"
        if self.of is not None:
            words += f" of column {self.of}"
        known = [
            f"column {column} on its branch" if share == "branch" else f"{float(share):g} of column {column} known"
            for column, share in sorted(self.given.items())
        ]
        return ", ".join([words, *known])

    def table(self) -> str:
        """One line a point."""
        return presenting.table(self)

    def to_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        return presenting.to_json(self)

    def to_xarray(self) -> xarray.Dataset:
        """value, error and over along `point`, as of a critical line."""
        return presenting.to_dataset(self)

    def save(self, path: str | Path) -> None:
        """Write netCDF, whole or not at all, over what is there."""
        presenting.save(self.to_xarray(), path)

    def plot(self, path: str | Path | None = None, *, beside: tuple[BayesLine, ...] = ()) -> Figure:
        """A picture, with other lines in it."""
        return presenting.plot(self, path, beside=beside)


def bayes_line(
    problem: Problem,
    kind: str,
    *,
    over: tuple[str, float, float, int] | tuple[str, Sequence[float] | np.ndarray],
    accuracy: float = 1e-9,
    of: int | None = None,
    given: Mapping[int, float | str] | None = None,
) -> BayesLine:
    """A threshold in alpha of Bayes-optimal inference along another parameter.

    Args:
        kind, accuracy, of, given: as of `bayes_threshold`.
        over: the parameter, its first and last value, and how many; or the parameter and its values.

    Raises:
        InputError: as `bayes_threshold`, or a parameter that is none, or alpha.

    Example:
        >>> line = sf.bayes_line(sf.problem("tempered_attention"), "weak_recovery", over=("beta", 0.5, 1, 2))
        >>> line.values.round(6)
        array([0.166667, 0.166667])
    """
    name, *points = over
    if name == "alpha":
        raise InputError("the threshold is in alpha; follow it in another parameter")
    problem.value_of(name)
    where = np.asarray(points[0], float) if len(points) == 1 else np.linspace(*points)
    problems = [problem.with_(**{name: float(value)}) for value in where]
    rows: list[tuple[float, float, dict[str, Any]]] = []
    ending, interrupted = "", False
    with bar(f"{kind.replace('_', ' ')} along {name}", len(where)) as task:
        try:
            with recognised():
                for value, at in zip(where, problems, strict=True):
                    try:
                        found = bayes_threshold(at, kind, accuracy=accuracy, of=of, given=given)
                        rows.append((found.value, found.error, found.evidence))
                        task.advance(f"{name} = {value:.4g}: alpha = {with_error(found.value, found.error)}")
                    except NotConvergedError as error:
                        rows.append((np.nan, np.nan, {"reason": str(error)}))
                        task.advance(f"{name} = {value:.4g}: {error}")
        except TimeLimitError:
            ending = "the time limit ended it"
        except KeyboardInterrupt:
            ending, interrupted = "interrupted", True
    done = len(rows)
    values, errors = (np.array([row[i] for row in rows]) for i in (0, 1))
    evidence = tuple(row[2] for row in rows)
    return BayesLine(
        problem, kind, name, where[:done], values, errors, evidence, of, dict(given or {}), ending, interrupted
    )
