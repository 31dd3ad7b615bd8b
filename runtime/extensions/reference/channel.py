"""Averages over the channel of one token in any arithmetic, s = t = 1 (docs/theory.md section 11).

omega(X) = X + V dloss/dX, so that no proximal map is solved: at a fixed combination f of Y and noise

    E[phi | f] = int dX N(omega(X); mean, variance given f) (1 + V d2loss/dX2) phi.

X is split where the loss has kinks, f where it has steps. Where its slope jumps up, at X = k, omega = k + V p belongs
to X = k for every slope p between the two, and

    int dp V N(k + V p; mean, variance given f) phi

is added. Where the loss depends on f through steps alone, the average
over f between two of them is taken in closed form, so that one dimension is left. The test error is the same integral
of the metric, with V = 0. How integrals are taken, and of what numbers, is a subclass: rules in mpmath
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
from ...problems.parts import Reference
from ...problems.problem import Problem
from .numbers import Numbers

How = TypeVar("How")  # what the integrals are taken with: a rule, or how narrow balls are to be

Given = tuple[Any, Any, Any]
"""At a node: P, P E[omega - m] and P E[Y - m*], P what is left of the probability of a piece of f."""

Summands = Callable[[Any, Any, Any, Any, Given], Sequence[Any]]
"""Weight, value, slope and curvature (None at a corner) of the loss in X, and what is given -> the integrands there."""


@dataclass(frozen=True)
class Totals:
    """Channel averages: moments (C, row) as for `Averages`; E_c[(dg/domega)^2] (C,), nan where it is left out; E[M];
    E[loss]; total weight."""

    moments: np.ndarray
    squares: np.ndarray
    moreau: Any
    loss: Any
    mass: Any


def check_supported(problem: Problem) -> None:
    """Refuse what needs integrals of more than two dimensions, or a numerical average over a row of the weights.

    Raises:
        InputError: what it is.
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
    """Joint Gaussian law of omega, Y and the combination f = a Y + noise, for one context."""

    q: Any
    m: Any
    theta: Any
    rho: Any
    mean: Any
    weights: tuple[Any, ...]
    noise: tuple[Any, ...]

    @cached_property
    def f_mean(self) -> Any:
        """E[f] = a m*: the noise has mean zero."""
        return self.weights[0] * self.mean

    @cached_property
    def f_variance(self) -> Any:
        """Var f = a^2 rho* plus what independent Gaussian noise adds."""
        own = [w * w * variance for w, variance in zip(self.weights[1:], self.noise, strict=True)]
        return self.weights[0] ** 2 * self.rho + sum(own)

    @cached_property
    def covariance(self) -> Any:
        """Of omega and f."""
        return self.weights[0] * self.theta

    def given_f(self, f: Any) -> tuple[Any, Any]:
        """Mean and variance of omega."""
        slope = self.covariance / self.f_variance
        return self.m + slope * (f - self.f_mean), self.q - slope * self.covariance

    @cached_property
    def slopes(self) -> tuple[Any, Any]:
        """Of E[Y | omega, f] in omega and f."""
        determinant = self.q * self.f_variance - self.covariance**2
        cross = self.weights[0] * self.rho
        on_omega = (self.theta * self.f_variance - cross * self.covariance) / determinant
        return on_omega, (cross * self.q - self.theta * self.covariance) / determinant

    def teacher(self, dw: Any, df: Any) -> Any:
        """E[Y - E Y] given omega and f, as distances from their means."""
        on_omega, on_f = self.slopes
        return on_omega * dw + on_f * df

    def between(self, dw: Any, low: Any, high: Any) -> tuple[Any, Any]:
        """P(low < f < high | omega) and E[Y - E Y | omega, low < f < high], None for an end that is missing."""
        slope = self.covariance / self.q
        variance = self.f_variance - slope * self.covariance
        spread = mp.sqrt(variance)
        centre = self.f_mean + slope * dw
        left = -mp.inf if low is None else (low - centre) / spread
        right = mp.inf if high is None else (high - centre) / spread
        # From the side on which both tails are small, so that nothing cancels.
        share = (
            (mp.erfc(left / mp.sqrt(2)) - mp.erfc(right / mp.sqrt(2))) / 2
            if left > 0
            else (mp.erfc(-right / mp.sqrt(2)) - mp.erfc(-left / mp.sqrt(2))) / 2
        )
        if not share:
            return share, mpf(0)
        shift = spread * (mp.npdf(left) - mp.npdf(right)) / share
        # E[Y | omega, f] is linear in f.
        return share, self.teacher(dw, slope * dw + shift)


class Channel(ABC, Generic[How]):
    """Averages of one problem in one arithmetic, at the precision in force.

    Args:
        module: the printed functions of `reference.py` on such numbers; number: what makes one.
    """

    law_type: ClassVar[type[Law]] = Law
    not_positive: ClassVar[str] = "not positive"
    squares_with_totals: ClassVar[bool] = True  # False: left out of the totals, as they cost too much beside them

    def __init__(self, numbers: Numbers, overlaps: Overlaps, module: Reference, number: Callable[[Any], Any]):
        self.numbers = numbers
        self.overlaps = overlaps
        self.module = module
        self.number = number

    @abstractmethod
    def positive(self, number: Any) -> bool:
        """Whether a number is known to be."""

    @abstractmethod
    def ordered(self, places: Iterable[Any]) -> Sequence[Any]:
        """Those that are real, from left to right."""

    @abstractmethod
    def moments(self, g: Any, given: Given, c: tuple[Any, ...]) -> Sequence[Any]:
        """A row of the channel averages at a node, times P."""

    @abstractmethod
    def average(self, name: str, label: int, V: Any, c: tuple[Any, ...], summands: Summands, how: How) -> Sequence[Any]:
        """Averages of what is not smooth where the loss, or the metric, is not."""

    def totals(self, how: How) -> Totals:
        """All averages of the saddle point.

        Raises:
            DomainError: the overlaps admit no law of the fields.
            InputError, NotProvedError: the Moreau objective has competing minima.
        """
        problem, zero = self.numbers.problem, self.number(0)
        row = problem.solver.channel.ROW
        moments = np.full((problem.contexts, row), zero, object)
        squares = np.full(problem.contexts, np.nan, object)
        rest = [zero] * 3
        for label, probability, found in self._averages("loss", self._summands, how):
            moments[label] = [probability * z for z in found[:row]]
            rest = [a + probability * b for a, b in zip(rest, found[row : row + 3], strict=True)]
            if self.squares_with_totals:
                squares[label] = probability * found[-1]
        return Totals(moments, squares, *rest)

    def squares(self, how: How) -> np.ndarray:
        """E_c[(dg/domega)^2], (C,), by itself."""
        found = np.full(self.numbers.problem.contexts, self.number(0), object)
        for label, probability, (average,) in self._averages("loss", _square, how):
            found[label] = probability * average
        return found

    def test_error(self, how: How) -> Any:
        """E metric(h, Y, u).

        Raises:
            InputError: the metric needs more than two dimensions, or the model has none.
        """
        if "metric" not in self.module.DRIVES:
            raise InputError(f"the metric of {self.numbers.problem.solver.name} is not available at high precision")
        total = self.number(0)
        for _, probability, (average,) in self._averages("metric", _value, how):
            total += probability * average
        return total

    @property
    def metric(self) -> Callable[..., Any]:
        """Of X, Y, noise and constants, where there is one."""
        return self.module.metric

    def _averages(self, name: str, summands: Callable[..., Any], how: How) -> Iterator[tuple[int, Any, Sequence[Any]]]:
        """Label of the token, its probability, and what is found given it; `summands` take V and constants first."""
        for (label,), _ in self.numbers.problem.label_choices:
            V = self.overlaps.V[label, 0, 0] if name == "loss" else self.number(0)
            c = self.numbers.constants(label)
            yield (
                label,
                self.numbers.law.labels[label],
                self.average(name, label, V, c, partial(summands, V, c), how),
            )

    def _summands(
        self, V: Any, c: tuple[Any, ...], weight: Any, value: Any, slope: Any, curvature: Any, given: Given
    ) -> list[Any]:
        g, share = -slope, given[0]
        parts = [*self.moments(g, given, c), share * (value + V * g * g / 2), share * value, share]
        squares = _square(V, c, weight, value, slope, curvature, given) if self.squares_with_totals else ()
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
        if not (self.positive(overlaps.V[label, 0, 0]) and self.positive(law.q - law.theta**2 / law.rho)):
            raise DomainError(f"V, or q - theta rho*^(-1) theta^T, is {self.not_positive}")
        return law

    def _pieces(self, name: str, c: tuple[Any, ...]) -> Iterator[tuple[Any, Any]]:
        """Between steps in f, None for an end that is missing."""
        steps = self.ordered(getattr(self.module, f"{name}_steps")(c)) if self.module.DRIVES[name] == "steps" else ()
        yield from pairwise([None, *steps, None])

    def _standing(self, law: Law, f: Any, c: tuple[Any, ...]) -> Iterator[tuple[Any, Any, tuple[Any, ...]]]:
        """Probability of the labelled noise, and Y and all noise that stand for a value of f (None: zero)."""
        pivot = None if f is None else next((i for i, weight in enumerate(law.weights) if weight != 0), None)
        y, *gaussian = (f / w if i == pivot else self.number(0) for i, w in enumerate(law.weights))
        for share, choice in self._choices(y, c):
            rest = {True: iter(gaussian), False: iter(choice)}
            yield share, y, tuple(next(rest[is_gaussian]) for is_gaussian in self.module.GAUSSIAN)

    def _choices(self, y: Any, c: tuple[Any, ...]) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        """Probability and value of the labelled noise."""
        if not self.module.NOISE_VALUES:
            return [(self.number(1), ())]
        values = [tuple(map(self.number, row)) for row in self.module.NOISE_VALUES]
        return zip(map(self.number, self.module.probabilities(y, c)), values, strict=True)


def _square(V: Any, _: Any, weight: Any, value: Any, slope: Any, curvature: Any, given: Given) -> tuple[Any]:
    """Of dg/domega = -l'' / (1 + V l''), which is -1 / V at a corner."""
    response = 1 / V if curvature is None else curvature / (1 + V * curvature)
    return (weight * given[0] * response * response,)


def _value(V: Any, _: Any, weight: Any, value: Any, slope: Any, curvature: Any, given: Given) -> tuple[Any]:
    return (weight * given[0] * value,)


def componentwise_sum(total: list[Any] | None, part: Sequence[Any]) -> list[Any]:
    """Sums component by component; None where there is nothing yet."""
    return list(part) if total is None else [a + b for a, b in zip(total, part, strict=True)]


def inner_point(low: Any, high: Any) -> Any:
    """A point of an interval, None for an end that is missing."""
    if low is None:
        return 0 if high is None else high - 1
    return low + 1 if high is None else (low + high) / 2
