"""Users' measurements compared with theory: a learning curve from arrays, and points with error bars on a branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...base import presenting
from ...base.errors import InputError, NotConvergedError, require_known_name, require_whole_number
from ...base.hints import AttributeErrorHints
from ...base.presenting import TextResult
from ...base.progress import progress_bar
from ...branches.curve import curve
from ...branches.curve_results import Curve
from ...problems.problem import Problem
from ...saddle_point.starts import find_start_name
from .compare import LOSSES, TheoryWithMeasurement

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LearningCurve(AttributeErrorHints):
    """A learning curve: the test error of a learner at several numbers of training samples.

    Attributes:
        alphas: numbers of training samples divided by the dimension d, ascending.
        means, standard_errors: mean test error, and its standard error, over random draws of the training samples.
        draws: number of random draws.

    Example:
        >>> curve = sf.LearningCurve(np.array([1.0, 2.0]), np.array([0.7, 0.45]), np.array([0.05, 0.03]), draws=4)
        >>> sf.compare_measurements(sf.problem("ridge_regression"), curve).values.tolist()
        [1.0, 2.0]
    """

    alphas: np.ndarray
    means: np.ndarray
    standard_errors: np.ndarray
    draws: int


def learning_curve(
    x: Any,
    y: Any,
    learner: Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]],
    *,
    alphas: Sequence[float],
    draws: int = 16,
    seed: int = 0,
    error: Callable[[np.ndarray, np.ndarray], float] | None = None,
) -> LearningCurve:
    """Measure the learning curve of a learner on the user's data, from random draws of the training samples.

    The test error is computed on all samples that are not drawn.

    Args:
        x: samples, shape (samples, d).
        y: labels, shape (samples,).
        learner: function of the training samples x and labels y that returns a predictor: a function from an array of
            samples to their predicted labels.
        alphas: numbers of training samples divided by d.
        draws: number of draws of the training samples, at least 2.
        seed: seed of the draws.
        error: function (labels, predictions) -> test error; the mean square error by default.

    Raises:
        InputError: the shapes of x and y do not fit, or an alpha leaves no test samples.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> x, teacher = rng.normal(size=(400, 20)), rng.normal(size=20)
        >>> y = x @ teacher / np.sqrt(20) + 0.5 * rng.normal(size=400)
        >>> def ridge(x, y):
        ...     w = np.linalg.solve(x.T @ x + 2 * np.eye(20), x.T @ y)
        ...     return lambda new: new @ w
        >>> sf.learning_curve(x, y, ridge, alphas=[2, 4], draws=4).means.round(3).tolist()
        [0.428, 0.291]
    """
    if not callable(learner):
        raise InputError(
            f"learner must be a function (x, y) -> predictor, not {type(learner).__name__}; for an object with fit and "
            "predict give lambda x, y: model.fit(x, y).predict"
        )
    x, y = np.asarray(x, float), np.asarray(y, float)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise InputError(f"x must have shape (n, d) and y shape (n,), not {x.shape} and {y.shape}")
    require_whole_number("draws", draws, 2)
    pool, d = x.shape
    counts = [round(float(alpha) * d) for alpha in sorted(alphas)]
    for count in counts:
        if not 1 <= count < pool:
            raise InputError(
                f"alpha = {count / d:g} needs {count} training samples; with {pool} samples, of which some are for "
                f"testing, there can be 1 to {pool - 1}: choose another alpha"
            )
    error_of = error or (lambda truth, guess: float(np.mean((truth - guess) ** 2)))
    found = np.empty((len(counts), draws))
    with progress_bar("learning curve", len(counts) * draws) as task:
        for i, count in enumerate(counts):
            for draw in range(draws):
                order = np.random.default_rng([seed, i, draw]).permutation(pool)
                train, test = order[:count], order[count:]
                found[i, draw] = error_of(y[test], learner(x[train], y[train])(x[test]))
                task.count_finished_step(f"learning curve, alpha = {count / d:.4g}")
    widths = found.std(axis=1, ddof=1) / np.sqrt(draws)
    return LearningCurve(np.array(counts) / d, found.mean(axis=1), widths, draws)


@dataclass(frozen=True, repr=False)
class MeasurementComparison(TextResult):
    """A comparison of measurements with a branch of theoretical solutions along a parameter.

    Attributes:
        over, values: name of the parameter and its values, ascending.
        observable: training_loss or test_error.
        measured: theory and measurement at every value.
        curve: the branch of theoretical solutions between the first and the last value.

    Example:
        >>> problem = sf.problem("ridge_regression")
        >>> found = sf.compare_measurements(problem, [1, 2], means=[0.70, 0.45], standard_errors=[0.05, 0.03])
        >>> found.deviations.round(1).tolist()
        [0.2, 0.2]
    """

    over: str
    observable: str
    values: np.ndarray
    measured: tuple[TheoryWithMeasurement, ...]
    curve: Curve

    @property
    def deviations(self) -> np.ndarray:
        """The differences between measurement and theory, divided by their combined standard errors."""
        return np.array([each.deviation for each in self.measured])

    @property
    def relative(self) -> np.ndarray:
        """The relative deviations of the measurements from theory: (measurement - theory) / theory."""
        return np.array([each.mean / each.theory - 1 for each in self.measured])

    def to_pandas(self) -> pandas.DataFrame:
        """Return a pandas data frame with one row per measured point, and columns for theory and measurement."""
        return presenting.to_frame(self)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the theoretical branch and the measurements with error bars, and save the figure if a path is given."""
        return presenting.plot(self, path)


def compare_measurements(
    problem: Problem,
    values: Sequence[float] | np.ndarray | LearningCurve,
    means: Sequence[float] | np.ndarray | None = None,
    standard_errors: Sequence[float] | np.ndarray | None = None,
    *,
    over: str = "alpha",
    observable: str = "test_error",
    start: str | None = None,
    accuracy: float = 1e-4,
    points: int = 24,
) -> MeasurementComparison:
    """Compare measurements with a branch of saddle-point solutions, at the same values of a parameter.

    Args:
        problem: the problem.
        values: values of the parameter, or a `LearningCurve`, which contains means and standard errors.
        means: measured mean at every value.
        standard_errors: standard error of every mean.
        over: name of the parameter.
        observable: test_error or training_loss.
        start: named start that leads to the branch; by default informed; semantic with several tokens.
        accuracy: accuracy of theory, as for `solve`.
        points: further points of the curve between the first value and the last.

    Raises:
        InputError: arrays that do not fit together, or an unknown name.
        NotConvergedError: theory has no solution of this branch at one of the values.

    Example:
        >>> problem = sf.problem("ridge_regression")
        >>> found = sf.compare_measurements(problem, [1, 2], means=[0.70, 0.45], standard_errors=[0.05, 0.03])
        >>> [round(point.theory, 4) for point in found.measured]
        [0.6911, 0.4427]
    """
    given: tuple[Any, Any, Any] = (values, means, standard_errors)
    if isinstance(values, LearningCurve):
        given = (values.alphas, values.means, values.standard_errors)
    arrays = [np.asarray(each, float) if each is not None else np.zeros(0) for each in given]
    if not len({each.shape for each in arrays}) == 1 or arrays[0].ndim != 1 or not len(arrays[0]):
        raise InputError(
            "values, means and standard_errors must be one-dimensional arrays of the same length, not of shapes "
            + ", ".join(str(each.shape) for each in arrays)
        )
    if not all(np.isfinite(each).all() for each in arrays) or np.any(arrays[2] < 0):
        raise InputError("values, means and standard_errors must be finite, and no standard error may be negative")
    require_known_name("observable", observable, LOSSES)
    order = np.argsort(arrays[0])
    places, means, widths = (each[order] for each in arrays)
    start = find_start_name(problem, start)
    spread = np.geomspace if places[0] > 0 else np.linspace
    line = {float(value) for value in spread(places[0], places[-1], points)} if len(places) > 1 else set()
    branch = curve(problem, start=start, over=over, values=sorted(line | set(places.tolist())), accuracy=accuracy)
    at = dict(zip(branch.values.tolist(), branch.solutions, strict=True))
    missing = [value for value in places.tolist() if value not in at]
    if missing:
        raise NotConvergedError(
            f"theory has no {start} solution at the measured {over} = {missing[0]:g}: {branch.end_text()}; leave out "
            "this value"
        )
    measured = tuple(
        TheoryWithMeasurement(
            getattr(at[v], observable), getattr(at[v], f"{observable}_error"), float(mean), float(width)
        )
        for v, mean, width in zip(places.tolist(), means, widths, strict=True)
    )
    return MeasurementComparison(over, observable, places, measured, branch)
