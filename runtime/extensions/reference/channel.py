"""Averages over the channel of one token in any arithmetic, s = t = 1 (docs/theory.md section 11).

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
from ...problems.solver_types import Reference
from .numbers import Numbers

Integration = TypeVar("Integration")  # a quadrature rule, or the accuracy of balls

Given = tuple[Any, Any, Any]
"""The tuple P, P E[omega - m] and P E[Y - m*] at a node, P the remaining probability of a piece of f."""

Summands = Callable[[Any, Any, Any, Any, Given], Sequence[Any]]
"""Function of weight, value, slope and curvature (None at a corner) of the loss in X, and `Given`: the integrands."""


@dataclass(frozen=True)
class Totals:
    """The channel averages.

    Attributes:
        moments: (C, row) as for `Averages`; squares: E_c[(dg/domega)^2] (C,), nan if left out.
        moreau: E[M]; loss: E[loss]; mass: total weight.
    """

    moments: np.ndarray
    squares: np.ndarray
    moreau: Any
    loss: Any
    mass: Any


def check_supported(problem: Problem) -> None:
    """Check that a model needs integrals of two dimensions at most, and no average over a row of the weights.

    Raises:
        InputError: it does not; the message says why.
    """
    sizes = problem.tokens, problem.student_rank, problem.teacher_rank
    name = problem.solver.name
    if sizes != (1, 1, 1):
        raise InputError(
            f"high precision is for one token, one student and one teacher column; {name} has L, s, t = {sizes}"
        )
    if problem.trained or problem.solver.model.HOLDS_Q:
        raise InputError(
            f"high precision is not for losses that contain trained numbers or overlaps, as that of {name}"
        )
    if not problem.solver.model.NONNEGATIVE:
        raise InputError(f"high precision is for losses that are not negative; that of {name} is")
    if problem.regulariser.keeps_norms:
        raise InputError(f"high precision is for ridge penalties; {name} fixes norms, whose multipliers are doubles")
    if not problem.regulariser.is_ridge:
        raise InputError(f"high precision is for ridge penalties; that of {name} needs averages over its prior")
    if "loss" not in problem.solver.reference.DRIVES:
        raise InputError(
            f"high precision is for integrals of two dimensions; the loss of {name} depends on Y and noise through "
            "more than one linear combination, or has kinks that are no roots of quadratic equations"
        )


@dataclass(frozen=True)
class Law:
    """The joint Gaussian law of omega, Y and the combination f = a Y + noise, for one context."""

    q: Any
    m: Any
    theta: Any
    rho: Any
    mean: Any
    weights: tuple[Any, ...]
    noise: tuple[Any, ...]

    @cached_property
    def f_mean(self) -> Any:
        """The mean E[f] = a m*: the noise has mean zero."""
        return self.weights[0] * self.mean

    @cached_property
    def f_variance(self) -> Any:
        """The variance of f, a^2 rho* plus that of independent Gaussian noise."""
        variances = [w * w * variance for w, variance in zip(self.weights[1:], self.noise, strict=True)]
        return self.weights[0] ** 2 * self.rho + sum(variances)

    @cached_property
    def covariance(self) -> Any:
        """The covariance of omega and f."""
        return self.weights[0] * self.theta

    def given_f(self, f: Any) -> tuple[Any, Any]:
        """Return mean and variance of omega given f."""
        slope = self.covariance / self.f_variance
        return self.m + slope * (f - self.f_mean), self.q - slope * self.covariance

    @cached_property
    def slopes(self) -> tuple[Any, Any]:
        """The slopes of E[Y | omega, f] in omega and f."""
        determinant = self.q * self.f_variance - self.covariance**2
        cross = self.weights[0] * self.rho
        on_omega = (self.theta * self.f_variance - cross * self.covariance) / determinant
        return on_omega, (cross * self.q - self.theta * self.covariance) / determinant

    def conditional_teacher_mean(self, dw: Any, df: Any) -> Any:
        """Return E[Y - E Y] given omega and f.

        Args:
            dw: distance of omega from its mean.
            df: distance of f from its mean.
        """
        on_omega, on_f = self.slopes
        return on_omega * dw + on_f * df

    def given_interval(self, dw: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """Return P(low < f < high | omega) and E[Y - E Y | omega, low < f < high].

        Args:
            dw: distance of omega from its mean.
            low: lower end, None for minus infinity.
            high: upper end, None for infinity.
        """
        slope = self.covariance / self.q
        variance = self.f_variance - slope * self.covariance
        spread = mp.sqrt(variance)
        centre = self.f_mean + slope * dw
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


class Channel(ABC, Generic[Integration]):
    """The averages of one problem over its channel in one arithmetic, at the precision in force.

    Args:
        module: the generated functions of `reference.py` in this arithmetic; number: function that converts a number.
    """

    law_type: ClassVar[type[Law]] = Law
    not_positive: ClassVar[str] = "not positive"
    squares_with_totals: ClassVar[bool] = True  # False: left out of the totals, as they cost too much

    def __init__(self, numbers: Numbers, overlaps: Overlaps, module: Reference, number: Callable[[Any], Any]):
        self.numbers = numbers
        self.overlaps = overlaps
        self.module = module
        self.number = number

    @abstractmethod
    def is_positive(self, number: Any) -> bool:
        """Return whether a number is known to be positive."""

    @abstractmethod
    def sort_real(self, places: Iterable[Any]) -> Sequence[Any]:
        """Return the real points in ascending order."""

    @abstractmethod
    def moments(self, g: Any, given: Given, c: tuple[Any, ...]) -> Sequence[Any]:
        """Return a row of the channel averages at a node, times P.

        Args:
            g: negative slope of the loss.
            given: P and conditional means.
            c: constants.
        """

    @abstractmethod
    def average(
        self, name: str, label: int, V: Any, c: tuple[Any, ...], summands: Summands, integration: Integration
    ) -> Sequence[Any]:
        """Return averages of integrands with the kinks of the loss, or of the metric.

        Args:
            name: loss or metric.
            label: label of the token.
            V: variance.
            c: constants.
            summands: integrands.
            integration: quadrature rule or accuracy.
        """

    def totals(self, integration: Integration) -> Totals:
        """Return all averages of the saddle point.

        Raises:
            DomainError: the overlaps admit no law of the fields.
            InputError, NotProvedError: the Moreau objective has competing minima.
        """
        problem, zero = self.numbers.problem, self.number(0)
        row = problem.solver.channel.ROW
        moments = np.full((problem.contexts, row), zero, object)
        squares = np.full(problem.contexts, np.nan, object)
        rest = [zero] * 3
        for label, probability, found in self._averages_by_label("loss", self._summands, integration):
            moments[label] = [probability * z for z in found[:row]]
            rest = [a + probability * b for a, b in zip(rest, found[row : row + 3], strict=True)]
            if self.squares_with_totals:
                squares[label] = probability * found[-1]
        return Totals(moments, squares, *rest)

    def squares(self, integration: Integration) -> np.ndarray:
        """Return E_c[(dg/domega)^2], (C,), alone."""
        found = np.full(self.numbers.problem.contexts, self.number(0), object)
        for label, probability, (average,) in self._averages_by_label("loss", _squared_response, integration):
            found[label] = probability * average
        return found

    def test_error(self, integration: Integration) -> Any:
        """Return E metric(h, Y, u).

        Raises:
            InputError: the metric needs more than two dimensions, or the model has none.
        """
        if "metric" not in self.module.DRIVES:
            raise InputError(f"the metric of {self.numbers.problem.solver.name} is not available at high precision")
        total = self.number(0)
        for _, probability, (average,) in self._averages_by_label("metric", _weighted_value, integration):
            total += probability * average
        return total

    @property
    def metric(self) -> Callable[..., Any]:
        """The metric, a function of X, Y, noise and constants."""
        return self.module.metric

    def _averages_by_label(
        self, name: str, summands: Callable[..., Any], integration: Integration
    ) -> Iterator[tuple[int, Any, Sequence[Any]]]:
        """Yield label of the token, its probability, and averages given it; `summands` take V and constants first."""
        for (label,), _ in self.numbers.problem.label_choices:
            V = self.overlaps.V[label, 0, 0] if name == "loss" else self.number(0)
            c = self.numbers.constants(label)
            yield (
                label,
                self.numbers.law.labels[label],
                self.average(name, label, V, c, partial(summands, V, c), integration),
            )

    def _summands(
        self, V: Any, c: tuple[Any, ...], weight: Any, value: Any, slope: Any, curvature: Any, given: Given
    ) -> list[Any]:
        g, P = -slope, given[0]
        parts = [*self.moments(g, given, c), P * (value + V * g * g / 2), P * value, P]
        squares = _squared_response(V, c, weight, value, slope, curvature, given) if self.squares_with_totals else ()
        return [*(weight * z for z in parts), *squares]

    def _law(self, name: str, label: int, c: tuple[Any, ...]) -> Any:
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
            raise DomainError(f"V, or q - theta rho*^(-1) theta^T, is {self.not_positive}")
        return law

    def _step_intervals(self, name: str, c: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
        """Yield intervals between steps in f, None for infinite ends."""
        steps = self.sort_real(getattr(self.module, f"{name}_steps")(c)) if self.module.DRIVES[name] == "steps" else ()
        yield from pairwise([None, *steps, None])

    def _representatives(self, law: Law, f: Any, c: tuple[Any, ...]) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
        """Yield probability of the labelled noise, and values of Y and all noise that give f (None: zero)."""
        pivot = None if f is None else next((i for i, weight in enumerate(law.weights) if weight != 0), None)
        y, *gaussian = (f / w if i == pivot else self.number(0) for i, w in enumerate(law.weights))
        for probability, choice in self._noise_values(y, c):
            rest = {True: iter(gaussian), False: iter(choice)}
            yield probability, y, tuple(next(rest[is_gaussian]) for is_gaussian in self.module.GAUSSIAN)

    def _noise_values(self, y: Any, c: tuple[Any, ...]) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        """Return probabilities and values of the labelled noise."""
        if not self.module.NOISE_VALUES:
            return [(self.number(1), ())]
        values = [tuple(map(self.number, row)) for row in self.module.NOISE_VALUES]
        return zip(map(self.number, self.module.probabilities(y, c)), values, strict=True)


def _squared_response(V: Any, _: Any, weight: Any, value: Any, slope: Any, curvature: Any, given: Given) -> tuple[Any]:
    """Return the integrand of (dg/domega)^2, with dg/domega = -l'' / (1 + V l''), or -1 / V at a corner."""
    response = 1 / V if curvature is None else curvature / (1 + V * curvature)
    return (weight * given[0] * response * response,)


def _weighted_value(V: Any, _: Any, weight: Any, value: Any, slope: Any, curvature: Any, given: Given) -> tuple[Any]:
    return (weight * given[0] * value,)


def componentwise_sum(total: list[Any] | None, part: Sequence[Any]) -> list[Any]:
    """Return sums component by component.

    Args:
        total: sums so far; None for zero.
        part: terms to add.
    """
    return list(part) if total is None else [a + b for a, b in zip(total, part, strict=True)]


def inner_point(low: Any, high: Any) -> Any:
    """Return a point of an interval.

    Args:
        low: lower end, None for minus infinity.
        high: upper end, None for infinity.
    """
    if low is None:
        return 0 if high is None else high - 1
    return low + 1 if high is None else (low + high) / 2
