"""Averages over the channel of one token at any precision, s = t = 1 (docs/theory.md section 11).

omega(X) = X + V dloss/dX, so that no proximal map is solved: at a fixed combination f of Y and noise

    E[phi | f] = int dX N(omega(X); mean, variance given f) (1 + V d2loss/dX2) phi.

X is split where the loss has kinks, f where it has steps. Where the loss depends on f through steps alone, the average
over f between two of them is taken in closed form, so that one dimension is left. The test error is the same integral
of the metric, with V = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ..errors import DomainError, InputError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from .numbers import Numbers
from .quadrature import equidistant, gauss_legendre, on_interval, tanh_sinh

_PANEL = 5  # standard deviations of omega that a Gauss-Legendre panel may span
_PROBES = 12  # places beyond the nodes, on either side, at which the Moreau objective must be convex


@dataclass(frozen=True)
class Rule:
    """A rule for X and the combination f.

    Attributes:
        check: False: Gauss-Legendre on panels in X and, between steps, in f; equidistant nodes in f without steps.
            True: tanh-sinh between kinks, or equidistant nodes, in X; Gauss-Legendre or tanh-sinh in f.
        level: doubles the nodes.
    """

    check: bool
    level: int

    def describe(self, kinked: bool) -> dict[str, Any]:
        """Name of the rule in X and its size: nodes a panel, steps to one, or nodes in all."""
        if not self.check:
            return {"rule": "gauss-legendre", "points": 3 * 2 ** (self.level - 1), "seed": None}
        if kinked:
            return {"rule": "tanh-sinh", "points": 2 ** (self.level + 1), "seed": None}
        return {"rule": "trapezoid", "points": self._equidistant, "seed": None}

    @property
    def _equidistant(self) -> int:
        return 24 * 2 ** (self.level - 1)

    def in_x(self, low: Any, high: Any, kinks: list[Any], omega: Callable[[Any], Any], spread: Any) -> Iterator[Any]:
        """Nodes in X on [low, high]."""
        edges = [low, *[kink for kink in kinks if low < kink < high], high]
        if not self.check:
            nodes = gauss_legendre(self.level)
            for left, right in _split(edges, omega, _PANEL * spread):
                yield from on_interval(nodes, left, right)
        elif len(edges) == 2:
            yield from equidistant(low, high, self._equidistant)
        else:
            for left, right in pairwise(edges):
                yield from on_interval(tanh_sinh(self.level + 1), left, right)

    def in_f(self, low: Any, high: Any, steps: list[Any], spread: Any) -> Iterator[Any]:
        """Nodes in the combination on [low, high]."""
        edges = [low, *[step for step in steps if low < step < high], high]
        if len(edges) == 2 and not self.check:
            yield from equidistant(low, high, 6 * 2 ** (self.level - 1))
        elif len(edges) == 2 or not self.check:
            for left, right in _split(edges, lambda f: f, _PANEL * spread):
                yield from on_interval(gauss_legendre(self.level), left, right)
        else:
            for left, right in pairwise(edges):
                yield from on_interval(tanh_sinh(self.level + 1), left, right)


def _split(edges: list[Any], along: Callable[[Any], Any], width: Any) -> Iterator[tuple[Any, Any]]:
    """Panels between the edges over which a growing function grows by no more than the width, about."""
    for left, right in pairwise(edges):
        first, last = along(left), along(right)
        count = int(mp.ceil((last - first) / width))
        inner = [place(along, first + (last - first) * k / count, left, right, width / 20) for k in range(1, count)]
        yield from pairwise([left, *inner, right])


def place(growing: Callable[[Any], Any], target: Any, low: Any, high: Any, tolerance: Any) -> Any:
    """Where a growing function has a value, about, between two places; by regula falsi (Illinois)."""
    below, above = growing(low) - target, growing(high) - target
    middle, side = low, 0
    for _ in range(60):
        middle = (low * above - high * below) / (above - below) if above != below else (low + high) / 2
        found = growing(middle) - target
        if abs(found) < tolerance:
            break
        if found < 0:
            low, below, above = middle, found, above / 2 if side == -1 else above
            side = -1
        else:
            high, above, below = middle, found, below / 2 if side == 1 else below
            side = 1
    return middle


@dataclass(frozen=True)
class Totals:
    """Channel averages: moments (C, row) as for `Averages`; E_c[(dg/domega)^2] (C,); E[M]; E[loss]; total weight."""

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
        raise InputError(f"high precision is not for losses that hold trained numbers or overlaps, as that of {name}")
    if not problem.solver.model.NONNEGATIVE:
        raise InputError(f"high precision is for losses that are not negative; that of {name} is")
    if not problem.has_ridge:
        raise InputError(f"high precision is for ridge penalties; that of {name} asks for averages over its prior")
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
        """P(low < f < high | omega) and E[Y - E Y | omega, low < f < high]."""
        slope = self.covariance / self.q
        variance = self.f_variance - slope * self.covariance
        spread = mp.sqrt(variance)
        centre = self.f_mean + slope * dw
        left, right = (low - centre) / spread, (high - centre) / spread
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


@dataclass(frozen=True)
class Point:
    """A node in X: weight with the law of omega and dX, X, omega, loss, dloss/dX, dg/domega."""

    weight: Any
    x: Any
    omega: Any
    value: Any
    slope: Any
    response: Any


@dataclass(frozen=True)
class Node:
    """A node of the whole integral: weight, omega - m, E[Y - m*], and Y and noise that stand for the combination."""

    weight: Any
    point: Point
    dw: Any
    dy: Any
    y: Any
    u: tuple[Any, ...]


class Channel:
    """Averages of one problem at the precision in force."""

    def __init__(self, numbers: Numbers, overlaps: Overlaps):
        self.numbers = numbers
        self.module = numbers.problem.solver.reference
        self.overlaps = overlaps
        self.reach = mp.sqrt(2 * mp.log(10) * (mp.dps + 2))

    def totals(self, rule: Rule) -> Totals:
        """All averages of the saddle point.

        Raises:
            DomainError: the overlaps admit no law of the fields.
            InputError: the Moreau objective has competing minima.
        """
        problem = self.numbers.problem
        row = problem.solver.channel.ROW
        moments = np.full((problem.contexts, row), mpf(0), object)
        squares = np.full(problem.contexts, mpf(0), object)
        moreau, loss, mass = mpf(0), mpf(0), mpf(0)
        for (label,), _ in problem.label_choices:
            probability = self.numbers.law.labels[label]
            V, c = self.overlaps.V[label, 0, 0], self.numbers.constants(label)
            sums = [mpf(0)] * row
            for node in self.nodes("loss", label, V, rule):
                value, g = node.point.value, -node.point.slope
                for i, summand in enumerate(self.module.moments(g, node.dw, node.dy, c)):
                    sums[i] += node.weight * summand
                share = probability * node.weight
                squares[label] += share * node.point.response**2
                loss += share * value
                moreau += share * (value + V * g * g / 2)
                mass += share
            moments[label] = [probability * z for z in sums]
        return Totals(moments, squares, moreau, loss, mass)

    def test_error(self, rule: Rule) -> Any:
        """E metric(h, Y, u).

        Raises:
            InputError: the metric needs more than two dimensions, or the model has none.
        """
        problem = self.numbers.problem
        if "metric" not in self.module.DRIVES:
            raise InputError(f"the metric of {problem.solver.name} is not available at high precision")
        total = mpf(0)
        for (label,), _ in problem.label_choices:
            c = self.numbers.constants(label)
            for node in self.nodes("metric", label, mpf(0), rule):
                (value,) = self.module.metric(node.point.x, node.y, *node.u, c)
                total += self.numbers.law.labels[label] * node.weight * value
        return total

    def nodes(self, name: str, label: int, V: Any, rule: Rule) -> Iterator[Node]:
        """Nodes for the average of a function that is not smooth where the loss, or the metric, is not."""
        c = self.numbers.constants(label)
        law = self._law(name, label, c)
        drive = self.module.DRIVES[name]
        steps = sorted(map(mpf, _real(getattr(self.module, f"{name}_steps")(c))))
        pivot = next((i for i, weight in enumerate(law.weights) if weight), None)

        def representative(f: Any) -> tuple[Any, ...]:
            return tuple(f / w if i == pivot else mpf(0) for i, w in enumerate(law.weights))

        if drive == "smooth":
            spread = mp.sqrt(law.f_variance)
            ends = law.f_mean - self.reach * spread, law.f_mean + self.reach * spread
            for f, weight in rule.in_f(*ends, steps, spread):
                weight *= mp.npdf(f, law.f_mean, spread)
                y, *gaussian = representative(f)
                for share, choice in self._choices(y, c):
                    u = self._noise(gaussian, choice)
                    for point in self._points(name, V, rule, *law.given_f(f), y, u, c):
                        dw = point.omega - law.m
                        dy = law.teacher(dw, f - law.f_mean)
                        yield Node(weight * share * point.weight, point, dw, dy, y, u)
            return
        edges = [-mp.inf, *steps, mp.inf] if drive == "steps" else [-mp.inf, mp.inf]
        for low, high in pairwise(edges):
            y, *gaussian = representative(_inside(low, high))
            for share, choice in self._choices(y, c):
                u = self._noise(gaussian, choice)
                for point in self._points(name, V, rule, law.m, law.q, y, u, c):
                    dw = point.omega - law.m
                    part, dy = law.between(dw, low, high) if drive == "steps" else (mpf(1), law.theta / law.q * dw)
                    yield Node(share * part * point.weight, point, dw, dy, y, u)

    def _law(self, name: str, label: int, c: tuple[Any, ...]) -> Law:
        overlaps, numbers = self.overlaps, self.numbers
        law = Law(
            q=overlaps.q[label, 0, 0],
            m=overlaps.m[label, 0],
            theta=overlaps.theta[label, 0, 0],
            rho=numbers.law.rho_star[label, 0, 0],
            mean=numbers.law.teacher_means[label, 0],
            weights=tuple(map(mpf, getattr(self.module, f"{name}_weights")(c))),
            noise=numbers.noise,
        )
        if not (overlaps.V[label, 0, 0] > 0 and law.q - law.theta**2 / law.rho > 0):
            raise DomainError("V, or q - theta rho*^(-1) theta^T, is not positive")
        return law

    def _choices(self, y: Any, c: tuple[Any, ...]) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        """Probability and value of the labelled noise."""
        if not self.module.NOISE_VALUES:
            return [(mpf(1), ())]
        return zip(self.module.probabilities(y, c), self.module.NOISE_VALUES, strict=True)

    def _noise(self, gaussian: Sequence[Any], choice: tuple[Any, ...]) -> tuple[Any, ...]:
        """All coordinates of u in the model's order."""
        rest = {True: iter(gaussian), False: iter(choice)}
        return tuple(next(rest[is_gaussian]) for is_gaussian in self.module.GAUSSIAN)

    def _points(
        self, name: str, V: Any, rule: Rule, mean: Any, variance: Any, y: Any, u: tuple[Any, ...], c: tuple[Any, ...]
    ) -> Iterator[Point]:
        """Nodes in X for omega ~ N(mean, variance)."""
        spread, zero = mp.sqrt(variance), mpf(0)
        kinks = sorted(_real(getattr(self.module, f"{name}_kinks")(y, *u, c)))
        features = self.module.features(y, *u, c) if name == "loss" else ()

        def at(x: Any) -> tuple[Any, Any, Any]:
            return self.module.derivatives(x, x, zero, *features, c) if name == "loss" else (zero, zero, zero)

        def omega(x: Any) -> Any:
            return x + V * at(x)[1]

        def stretch(x: Any, curvature: Any) -> Any:
            if not 1 + V * curvature > 0:
                raise InputError(
                    f"{self.numbers.problem.solver.name}: at X = {mp.nstr(x, 6)}, Y = {mp.nstr(y, 6)} the Moreau "
                    "objective is not convex, so that minima may compete; high precision is for unique minima only"
                )
            return 1 + V * curvature

        low, high = (self._end(omega, mean, spread, way) for way in (-1, 1))
        for end, way in ((low, -1), (high, 1)) if V else ():
            # The loss is not negative: another minimum is no further from omega than this.
            value, slope, _ = at(end)
            furthest = omega(end) + way * mp.sqrt(2 * V * value + (V * slope) ** 2)
            for k in range(_PROBES) if way * (furthest - end) > 0 else ():
                x = end + (furthest - end) * k / _PROBES
                stretch(x, at(x)[2])
        for x, weight in rule.in_x(low, high, kinks, omega, spread):
            value, slope, curvature = at(x)
            inverse = stretch(x, curvature)
            w = x + V * slope
            yield Point(weight * inverse * mp.npdf(w, mean, spread), x, w, value, slope, -curvature / inverse)

    def _end(self, omega: Callable[[Any], Any], mean: Any, spread: Any, way: int) -> Any:
        """X beyond which the law of omega holds nothing at the precision in force."""
        target = mean + way * self.reach * spread

        def beyond(x: Any) -> Any:
            return way * (omega(x) - target)

        inner = outer = mean
        step = spread
        while beyond(inner) >= 0:
            inner, step = inner - way * step, 2 * step
        step = spread
        while beyond(outer) < 0:
            outer, step = outer + way * step, 2 * step
        for _ in range(40):
            if beyond(outer) < spread:
                break
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if beyond(middle) >= 0 else (middle, outer)
        return outer


def _real(values: Iterable[Any]) -> list[Any]:
    """Those that are real and finite."""
    return [mpf(z) for z in map(mp.mpmathify, values) if mp.im(z) == 0 and mp.isfinite(z)]


def _inside(low: Any, high: Any) -> Any:
    """A point of an interval, perhaps infinite."""
    if mp.isinf(low):
        return mpf(0) if mp.isinf(high) else high - 1
    return low + 1 if mp.isinf(high) else (low + high) / 2
