"""Results of sensitivities, as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base import presenting
from ..base.deprecation import DeprecatedName, deprecated_attribute
from ..base.presenting import PresentableResult
from ..problems.columns import OBSERVED
from ..problems.observables import ObservablesMixin
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem
from ..problems.quantities import overlap_entry_by_name, resolve_quantity_name
from ..solving.solution import Solution

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Sensitivity(ObservablesMixin, PresentableResult):
    """Derivatives with respect to one number of a problem, each with an error bar.

    Attributes:
        parameter: its name; entries of an array count from 1, as A[1,2].
        at: value of the parameter.
        reached: overlaps of the solution.
        overlaps, error_bars: derivatives dq, dV, dm, dtheta, dphi in the shape of the overlaps, and their error bars.
            Where rotations of the student's columns are symmetries, without the part along them.
        training_loss, baseline_error: derivatives (nan where the model has none); training_loss_error: error bar.
        observed: derivative and error bar of each observable, by name; attributes, too, as `test_error` and
            `test_error_error`. Of several metrics the first.
        remaining: change in the last iteration, relative to the largest derivative of an overlap.

    Example:
        >>> moved = sf.sensitivities(sf.solve(sf.problem("ridge_regression", alpha=2)), "lambda")["lambda"]
        >>> moved.at, round(moved.test_error, 6), moved.test_error_error < 1e-6
        (0.1, -0.293706, True)
        >>> moved.overlaps.theta.shape
        (1, 1, 1)
    """

    parameter: str
    at: float
    problem: Problem
    reached: Overlaps
    overlaps: Overlaps
    error_bars: Overlaps
    training_loss: float
    training_loss_error: float
    observed: Mapping[str, tuple[float, float]]
    baseline_error: float
    remaining: float

    half_widths = deprecated_attribute("half_widths", DeprecatedName("error_bars", "0.1.0", "0.3.0"))

    @property
    def free_entropy(self) -> float:
        """Return dPhi/dp = -de_t/dp (docs/theory.md (7.1)); `training_loss_error` is its error bar."""
        return -self.training_loss

    def of(self, observable: str) -> tuple[float, float]:
        """Return derivative and error bar of an observable.

        It is a loss or an error, q, V, m, theta (their |first entry|), an entry by its name in tables, or a trained
        number.

        Raises:
            InputError: no such observable; those that can be differentiated are listed.
        """
        if observable in ("training_loss", "free_entropy"):
            return getattr(self, observable), self.training_loss_error
        if observable in OBSERVED:
            return self._observable_with_error(observable)
        if observable == "baseline_error":
            return self.baseline_error, 0.0
        name = resolve_quantity_name(self.problem, observable, "derivative")
        there, entry, width = (
            overlap_entry_by_name(self.problem, blocks, name)
            for blocks in (self.reached, self.overlaps, self.error_bars)
        )
        return -entry if name in OVERLAPS and there < 0 else entry, width


@dataclass(frozen=True, repr=False)
class Sensitivities(PresentableResult):
    """Sensitivities of one solution, by name: `found["lambda"].test_error`, `found["A[1,2]"].overlaps.theta`.

    Example:
        >>> moved = sf.sensitivities(sf.solve(sf.problem("ridge_regression", alpha=2)))
        >>> [entry.parameter for entry in moved.entries]
        ['alpha', 'sigma', 'Delta', 'lambda']
        >>> moved["Delta"].test_error > 0
        True
    """

    solution: Solution
    entries: tuple[Sensitivity, ...]

    def __getitem__(self, parameter: str) -> Sensitivity:
        for entry in self.entries:
            if entry.parameter == parameter.rstrip("_"):
                return entry
        raise KeyError(parameter)

    def __iter__(self) -> Iterator[Sensitivity]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with one row per parameter and a column per quantity that is differentiated."""
        return presenting.to_frame(self)
