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
    """The derivatives of a solution with respect to one parameter or entry of an array, with error bars.

    Attributes:
        parameter: name of the parameter, or of an entry with indices from 1: A[1,2].
        at: value of the parameter or entry.
        reached: overlaps of the solution.
        overlaps: derivatives of q, V, m, theta and phi, without the part that rotates the student's columns if such
            rotations are symmetries.
        error_bars: error bars of these derivatives.
        training_loss: derivative of the training loss.
        training_loss_error: error bar of this derivative.
        baseline_error: derivative of the baseline error; nan if the model has none.
        observed: derivative and error bar of each observable, by name; also attributes: `test_error`,
            `test_error_error` (of the first metric).
        remaining: change of the derivatives in the last iteration, relative to the largest of an overlap.

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
        """Return the derivative of the free entropy, minus that of the training loss (docs/theory.md (7.1))."""
        return -self.training_loss

    def of(self, observable: str) -> tuple[float, float]:
        """Return the derivative of an observable and its error bar.

        The name may be a loss, an error, q, V, m or theta (absolute value of the first entry), an entry by its name in
        tables, or a trained number.

        Raises:
            InputError: there is no such observable; the message lists those that can be differentiated.
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
    """Derivatives of one solution with respect to several parameters, by name: `found["lambda"].test_error`.

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
        """Return a data frame of derivatives: one row per parameter, one column per differentiated quantity."""
        return presenting.to_frame(self)
