"""Channel averages of a model with one token in any arithmetic, s = t = 1 (docs/theory.md section 11).

omega(X) = X + V dloss/dX, so that no proximal map is solved: at a fixed combination f of Y and noise

    E[phi | f] = int dX N(omega(X); mean, variance given f) (1 + V d2loss/dX2) phi.

X is split at kinks of the loss, f at its steps. Where its slope jumps up, at X = k, omega = k + V p belongs
to X = k for every slope p between the two, and

    int dp V N(k + V p; mean, variance given f) phi

is added. Where the loss depends on f through steps alone, the average
over f between two of them is taken in closed form, so that one dimension is left. The test error is the same integral
of the metric, with V = 0. Subclasses define the integration and the arithmetic: rules in mpmath
(`rule_channel.py`), or balls (`proof`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from mpmath import mp, mpf

from ...base.errors import DomainError, InputError
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...problems.solver_types import MultiprecisionFunctions
from .numbers import PreciseParameters

Integration = TypeVar("Integration")  # a quadrature rule, or the accuracy of balls

Given = tuple[Any, Any, Any]
"""The tuple P, P E[omega - m] and P E[Y - m*] at a node, P the remaining probability of a piece of f."""

Summands = Callable[[Any, Any, Any, Any, Given], Sequence[Any]]
"""Function of weight, value, slope and curvature (None at a corner) of the loss in X, and `Given`: the integrands."""


@dataclass(frozen=True)
class SaddlePointAverages:
    """The averages over the law of student and teacher fields that the saddle-point equations need.

    Attributes:
        moments: averages that determine the conjugates of the overlaps, one row for each (token, cluster) pair.
        mean_squared_responses: mean squared derivative of the proximal residual in the field, by pair; nan if left
            out.
        moreau: mean of the Moreau envelope of the loss.
        loss: mean of the loss.
        mass: total quadrature weight, 1 up to errors.
    """

    moments: np.ndarray
    mean_squared_responses: np.ndarray
    moreau: Any
    loss: Any
    mass: Any


def check_high_precision_supported(problem: Problem) -> None:
    """Raise InputError if a model is not supported at high precision.

    Raises:
        InputError: the model needs integrals over more than two dimensions, or averages over its prior.
    """
    sizes = problem.tokens, problem.student_rank, problem.teacher_rank
    name = problem.solver.name
    if sizes != (1, 1, 1):
        raise InputError(
            f"high precision is for one token, one student and one teacher column; {name} has L, s, t = {sizes}"
        )
    if problem.trained or problem.solver.model.HOLDS_Q:
        raise InputError(
            f"high precision is not for losses with trained numbers (`sf.trained`) or overlaps q, as that of {name}"
        )
    if not problem.solver.model.NONNEGATIVE:
        raise InputError(f"high precision is for losses that are never negative; the loss of {name} can be negative")
    if problem.regulariser.keeps_norms:
        raise InputError(
            f"high precision is for ridge penalties; multipliers of given column norms, as in {name}, have fewer digits"
        )
    if not problem.regulariser.is_ridge:
        raise InputError(f"high precision is for ridge penalties; the penalty of {name} needs averages over its prior")
    if "loss" not in problem.solver.multiprecision_functions.DRIVES:
        raise InputError(
            f"high precision is for averages over at most two dimensions; the loss of {name} depends on Y and noise "
            "through more than one linear combination, or has kinks at other places than roots of quadratic equations"
        )


@dataclass(frozen=True)
class GaussianFieldLaw:
    """A joint Gaussian law, given a cluster label, of the student's field omega, the teacher's Y and a noisy Y.

    The noisy teacher field f is the linear combination of Y and noise that the loss depends on.
    """

    q: Any
    m: Any
    theta: Any
    rho: Any
    mean: Any
    weights: tuple[Any, ...]
    noise: tuple[Any, ...]

    @cached_property
    def noisy_teacher_mean(self) -> Any:
        """The mean of the noisy teacher field: the linear combination of teacher field and noise in the loss."""
        return self.weights[0] * self.mean

    @cached_property
    def noisy_teacher_variance(self) -> Any:
        """The variance of the noisy teacher field: the linear combination of teacher field and noise in the loss."""
        variances = [w * w * variance for w, variance in zip(self.weights[1:], self.noise, strict=True)]
        return self.weights[0] ** 2 * self.rho + sum(variances)

    @cached_property
    def noisy_teacher_covariance(self) -> Any:
        """The covariance of the student's field omega and the noisy teacher field."""
        return self.weights[0] * self.theta

    def omega_moments_given_noisy_teacher(self, f: Any) -> tuple[Any, Any]:
        """Return the mean and the variance of the student's field omega given the noisy teacher field f."""
        slope = self.noisy_teacher_covariance / self.noisy_teacher_variance
        return self.m + slope * (f - self.noisy_teacher_mean), self.q - slope * self.noisy_teacher_covariance

    @cached_property
    def teacher_regression_coefficients(self) -> tuple[Any, Any]:
        """The regression coefficients of the teacher's field on the student's field and on the noisy teacher field."""
        determinant = self.q * self.noisy_teacher_variance - self.noisy_teacher_covariance**2
        cross = self.weights[0] * self.rho
        on_omega = (self.theta * self.noisy_teacher_variance - cross * self.noisy_teacher_covariance) / determinant
        return on_omega, (cross * self.q - self.theta * self.noisy_teacher_covariance) / determinant

    def conditional_teacher_mean(self, dw: Any, df: Any) -> Any:
        """Return the mean of the teacher's field given the student's and the noisy teacher field, all less their means.

        Args:
            dw: student's field less its mean.
            df: noisy teacher field less its mean.
        """
        on_omega, on_f = self.teacher_regression_coefficients
        return on_omega * dw + on_f * df

    def interval_probability_and_teacher_mean(self, dw: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """Return the probability of an interval of the noisy teacher field, and the teacher's mean field in it.

        Both are conditional on the student's field; the teacher's mean field is less its unconditional mean.

        Args:
            dw: student's field less its mean.
            low: lower end of the interval, None for minus infinity.
            high: upper end of the interval, None for infinity.
        """
        slope = self.noisy_teacher_covariance / self.q
        variance = self.noisy_teacher_variance - slope * self.noisy_teacher_covariance
        spread = mp.sqrt(variance)
        centre = self.noisy_teacher_mean + slope * dw
        left = -mp.inf if low is None else (low - centre) / spread
        right = mp.inf if high is None else (high - centre) / spread
        # On the side on which both tails are small, without cancellation.
        probability = (
            (mp.erfc(left / mp.sqrt(2)) - mp.erfc(right / mp.sqrt(2))) / 2
            if left > 0
            else (mp.erfc(-right / mp.sqrt(2)) - mp.erfc(-left / mp.sqrt(2))) / 2
        )
        if not probability:
            return probability, mpf(0)
        shift = spread * (mp.npdf(left) - mp.npdf(right)) / probability
        # E[Y | omega, f] is linear in f.
        return probability, self.conditional_teacher_mean(dw, slope * dw + shift)


class ChannelAverages(ABC, Generic[Integration]):
    """Averages of one problem over the law of its fields (the channel), at any precision, for given overlaps.

    Args:
        numbers: parameters of the problem.
        overlaps: overlaps that determine the law of the fields.
        module: generated functions of the model in this arithmetic.
        number: function that converts a number to this arithmetic.
    """

    law_type: ClassVar[type[GaussianFieldLaw]] = GaussianFieldLaw
    not_positive: ClassVar[str] = "not positive"
    includes_squared_responses: ClassVar[bool] = True  # False: left out of the totals, as they cost too much

    def __init__(
        self, numbers: PreciseParameters, overlaps: Overlaps, module: MultiprecisionFunctions,
        number: Callable[[Any], Any]
    ):  # fmt: skip
        self.numbers = numbers
        self.overlaps = overlaps
        self.module = module
        self.number = number

    @abstractmethod
    def is_positive(self, number: Any) -> bool:
        """Return whether a number is positive; in interval arithmetic, whether all its possible values are."""

    @abstractmethod
    def sort_real_points(self, places: Iterable[Any]) -> Sequence[Any]:
        """Return those of some numbers that are real, in ascending order."""

    @abstractmethod
    def moment_integrands_at_node(self, g: Any, given: Given, c: tuple[Any, ...]) -> Sequence[Any]:
        """Return, at one quadrature node, the integrands of averages that determine the conjugates of the overlaps.

        Args:
            g: negative derivative of the loss in its field.
            given: probability of the node's interval, and conditional means of the student's and the teacher's field.
            c: constants of the loss.
        """

    @abstractmethod
    def average_integrands(
        self, name: str, label: int, V: Any, c: tuple[Any, ...], summands: Summands, integration: Integration
    ) -> Sequence[Any]:
        """Return the averages of several integrands over the law of the fields.

        Args:
            name: "loss" or "metric", whose kinks split the integrals.
            label: cluster label of the token.
            V: overlap V.
            c: constants of the loss.
            summands: function that returns the integrands, see `Summands`.
            integration: quadrature rule, or accuracy for balls.
        """

    def saddle_point_averages(self, integration: Integration) -> SaddlePointAverages:
        """Return all averages over the law of the fields that the saddle-point equations need.

        Raises:
            DomainError: V or the conditional covariance of the fields is not positive.
            InputError, NotProvedError: the Moreau objective of the loss has competing minima.
        """
        problem, zero = self.numbers.problem, self.number(0)
        row = problem.solver.channel.ROW
        moments = np.full((problem.contexts, row), zero, object)
        mean_squared_responses = np.full(problem.contexts, np.nan, object)
        rest = [zero] * 3
        for label, probability, found in self._averages_by_label("loss", self._saddle_point_integrands, integration):
            moments[label] = [probability * z for z in found[:row]]
            rest = [a + probability * b for a, b in zip(rest, found[row : row + 3], strict=True)]
            if self.includes_squared_responses:
                mean_squared_responses[label] = probability * found[-1]
        return SaddlePointAverages(moments, mean_squared_responses, *rest)

    def mean_squared_responses(self, integration: Integration) -> np.ndarray:
        """Return, for each (token, cluster) pair, the mean square derivative of the proximal residual in its field."""
        found = np.full(self.numbers.problem.contexts, self.number(0), object)
        for label, probability, (average,) in self._averages_by_label("loss", _squared_response_integrand, integration):
            found[label] = probability * average
        return found

    def test_error(self, integration: Integration) -> Any:
        """Return the test error: the mean of the metric over the law of the fields.

        Raises:
            InputError: the metric needs integrals over more than two dimensions, or the model has none.
        """
        if "metric" not in self.module.DRIVES:
            raise InputError(f"the metric of {self.numbers.problem.solver.name} is not available at high precision")
        total = self.number(0)
        for _, probability, (average,) in self._averages_by_label("metric", _metric_integrand, integration):
            total += probability * average
        return total

    @property
    def test_error_metric(self) -> Callable[..., Any]:
        """The metric of the test error, a function of the student's field, the teacher's field, noise and constants."""
        return self.module.metric

    def _averages_by_label(
        self, name: str, summands: Callable[..., Any], integration: Integration
    ) -> Iterator[tuple[int, Any, Sequence[Any]]]:
        """Yield, for every cluster label, its probability and the averages of given integrands under it."""
        for (label,), _ in self.numbers.problem.label_probabilities:
            V = self.overlaps.V[label, 0, 0] if name == "loss" else self.number(0)
            c = self.numbers.loss_constants(label)
            yield (
                label,
                self.numbers.law.labels[label],
                self.average_integrands(name, label, V, c, partial(summands, V, c), integration),
            )

    def _saddle_point_integrands(
        self, V: Any, c: tuple[Any, ...], weight: Any, value: Any, slope: Any, curvature: Any, given: Given
    ) -> list[Any]:
        g, P = -slope, given[0]
        parts = [*self.moment_integrands_at_node(g, given, c), P * (value + V * g * g / 2), P * value, P]
        mean_squared_responses = (
            _squared_response_integrand(V, c, weight, value, slope, curvature, given)
            if self.includes_squared_responses
            else ()
        )
        return [*(weight * z for z in parts), *mean_squared_responses]

    def _gaussian_law_of_fields(self, name: str, label: int, c: tuple[Any, ...]) -> Any:
        overlaps, numbers = self.overlaps, self.numbers
        law = self.law_type(
            q=overlaps.q[label, 0, 0],
            m=overlaps.m[label, 0],
            theta=overlaps.theta[label, 0, 0],
            rho=numbers.law.rho_star[label, 0, 0],
            mean=numbers.law.teacher_means[label, 0],
            weights=tuple(map(self.number, getattr(self.module, f"{name}_weights")(c))),
            noise=numbers.noise,
        )
        if not (self.is_positive(overlaps.V[label, 0, 0]) and self.is_positive(law.q - law.theta**2 / law.rho)):
            raise DomainError(f"V, or the variance of the student's field given the teacher's, is {self.not_positive}")
        return law

    def _intervals_between_loss_jumps(self, name: str, c: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
        """Yield the intervals of the noisy teacher field between which the loss jumps; an infinite end is None."""
        steps = (
            self.sort_real_points(getattr(self.module, f"{name}_steps")(c))
            if self.module.DRIVES[name] == "steps"
            else ()
        )
        yield from pairwise([None, *steps, None])

    def _teacher_and_noise_with_sum(
        self, law: GaussianFieldLaw, f: Any, c: tuple[Any, ...]
    ) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
        """Yield teacher field and noise whose linear combination in the loss is f, for each value of discrete noise.

        The first of each triple is the probability of this value.
        """
        pivot = None if f is None else next((i for i, weight in enumerate(law.weights) if weight != 0), None)
        y, *gaussian = (f / w if i == pivot else self.number(0) for i, w in enumerate(law.weights))
        for probability, choice in self._noise_probabilities_and_values(y, c):
            rest = {True: iter(gaussian), False: iter(choice)}
            yield probability, y, tuple(next(rest[is_gaussian]) for is_gaussian in self.module.GAUSSIAN)

    def _noise_probabilities_and_values(self, y: Any, c: tuple[Any, ...]) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        """Return pairs of the probability of each value of the discrete noise, at teacher field y, and this value."""
        if not self.module.NOISE_VALUES:
            return [(self.number(1), ())]
        values = [tuple(map(self.number, row)) for row in self.module.NOISE_VALUES]
        return zip(map(self.number, self.module.probabilities(y, c)), values, strict=True)


def _squared_response_integrand(
    V: Any, _: Any, weight: Any, value: Any, slope: Any, curvature: Any, given: Given
) -> tuple[Any]:
    """Return the squared derivative of the proximal residual in its field, times the weight of a node."""
    response = 1 / V if curvature is None else curvature / (1 + V * curvature)
    return (weight * given[0] * response * response,)


def _metric_integrand(V: Any, _: Any, weight: Any, value: Any, slope: Any, curvature: Any, given: Given) -> tuple[Any]:
    return (weight * given[0] * value,)


def componentwise_sum(total: list[Any] | None, part: Sequence[Any]) -> list[Any]:
    """Return the sum of two lists of numbers, component by component.

    Args:
        total: partial sums; None for zero.
        part: terms to add.
    """
    return list(part) if total is None else [a + b for a, b in zip(total, part, strict=True)]


def point_inside_interval(low: Any, high: Any) -> Any:
    """Return a point inside an interval that may be infinite, to evaluate a piecewise function there.

    Args:
        low: lower end of the interval, None for minus infinity.
        high: upper end of the interval, None for infinity.
    """
    if low is None:
        return 0 if high is None else high - 1
    return low + 1 if high is None else (low + high) / 2
