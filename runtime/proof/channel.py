"""Averages over the channel of one token in balls (docs/theory.md section 11), as `reference.channel` takes
them in mpmath.

Every average is one-dimensional: over X, with omega(X) = X + V dloss/dX, the law of Y and Gaussian noise given omega
being in closed form: as labels, or as what enters through X - f alone. X is cut at the kinks of the loss, which are
numbers with derivatives themselves and may move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, cmp_to_key
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
from flint import acb, arb, arb_poly

from ..errors import DomainError, NotProvedError
from ..problems.overlaps import Overlaps
from ..reference.channel import Law, Totals
from ..reference.numbers import Numbers
from .decisions import Decisions, recorded, repeated
from .duals import Dual, lift
from .quadrature import integral
from .tails import Ray, bounded, normal_beyond, normal_density, normal_weight, on_ray, tail, taylor

_DOUBLINGS = 200
_MOST_PARTS = 20000  # of the line, to prove the Moreau objective convex on


@dataclass(frozen=True)
class Goal:
    """How narrow integrals are to be: error of each part of one; what lies beyond this many deviations is bounded."""

    tolerance: float
    reach: float

    @classmethod
    def digits(cls, count: float) -> Goal:
        """Parts to 10^-count, and a reach at which a Gaussian weight has fallen to 10^-(count + 2)."""
        return cls(10.0**-count, float(np.sqrt(2 * np.log(10) * (count + 2))))


@dataclass(frozen=True)
class Line:
    """The law of the one coordinate left, and what is known of the others given it.

    Attributes:
        mean, variance: of omega, or of omega - f where the loss depends on X - f.
        given: distance from the mean -> P, P E[omega - m] and P E[Y - m*], P the probability of the piece of f.
        y, u: Y and noise that stand for the piece.
        share: probability of the labelled noise.
    """

    mean: Dual
    variance: Dual
    given: Callable[[Dual], tuple[Dual, Dual, Dual]]
    y: Dual
    u: tuple[Dual, ...]
    share: Dual


@dataclass(frozen=True)
class Shape:
    """The loss in X at given Y and noise, by the printed kernel, and its kinks from left to right; or the metric.

    Attributes:
        at: X -> value, slope, curvature; those of a metric are left out where only its value counts.
        in_full: the same with all three.
    """

    at: Callable[[Dual], tuple[Dual, Dual, Dual]]
    in_full: Callable[[Dual], tuple[Dual, Dual, Dual]]
    kinks: tuple[Dual, ...]


class Channel:
    """Averages of one problem at overlaps with derivatives, at the precision in force."""

    def __init__(self, numbers: Numbers, module: ModuleType, overlaps: Overlaps, goal: Goal):
        self.numbers = numbers
        self.module = module
        self.overlaps = overlaps
        self.goal = goal

    @property
    def directions(self) -> int:
        """In how many derivatives are taken."""
        return len(self.overlaps.q.flat[0].slopes)

    def totals(self, _: Any = None) -> Totals:
        """All averages of the saddle point but E_c[(dg/domega)^2], which is nan."""
        problem = self.numbers.problem
        row = problem.solver.channel.ROW
        moments = np.full((problem.contexts, row), lift(0), object)
        rest = [lift(0)] * 3
        for label, probability, c in self._labels():
            V = self.overlaps.V[label, 0, 0]

            def summands(weight: Dual, value: Dual, slope: Dual, _: Dual, given: tuple[Dual, ...], c=c, V=V) -> Any:
                g, (share, dw, dy) = -slope, given
                # Moments are affine in omega - m and in Y - m* (docs/theory.md (5.2) to (5.5)).
                base, along_w, along_y = (
                    self.module.moments(g, lift(a), lift(b), c) for a, b in ((0, 0), (1, 0), (0, 1))
                )
                rows = [
                    share * z + dw * (zw - z) + dy * (zy - z) for z, zw, zy in zip(base, along_w, along_y, strict=True)
                ]
                return [weight * z for z in [*rows, share * (value + V * g * g / 2), share * value, share]]

            found = self._average("loss", label, V, c, summands)
            moments[label] = [probability * z for z in found[:row]]
            rest = [a + probability * b for a, b in zip(rest, found[row:], strict=True)]
        return Totals(moments, np.full(problem.contexts, np.nan, object), *rest)

    @cached_property
    def squares(self) -> np.ndarray:
        """E_c[(dg/domega)^2], (C,)."""
        found = np.full(self.numbers.problem.contexts, lift(0), object)
        for label, probability, c in self._labels():
            V = self.overlaps.V[label, 0, 0]

            def summands(weight: Dual, _v: Dual, _s: Dual, curvature: Dual, given: tuple[Dual, ...], V=V) -> Any:
                response = curvature / (1 + V * curvature)
                return [weight * given[0] * response * response]

            (average,) = self._average("loss", label, V, c, summands)
            found[label] = probability * average
        return found

    def test_error(self, _: Any = None) -> Dual:
        """E metric(h, Y, u)."""
        total = lift(0)
        for label, probability, c in self._labels():
            (average,) = self._average(
                "metric", label, lift(0), c, lambda weight, value, _s, _c, given: [weight * given[0] * value]
            )
            total += probability * average
        return total

    def _labels(self) -> Iterator[tuple[int, Dual, tuple[Any, ...]]]:
        for (label,), _ in self.numbers.problem.label_choices:
            yield label, self.numbers.law.labels[label], self.numbers.constants(label)

    def _average(
        self, name: str, label: int, V: Dual, c: tuple[Any, ...], summands: Callable[..., Sequence[Dual]]
    ) -> list[Dual]:
        total: list[Dual] | None = None
        for line in self._lines(name, label, c):
            shape = self._shape(name, line, c)
            found = [line.share * z for z in _on_line(line, shape, V, summands, self.goal, self.directions)]
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
        assert total is not None
        return total

    def _shape(self, name: str, line: Line, c: tuple[Any, ...]) -> Shape:
        module, kinks = self.module, _ordered(getattr(self.module, f"{name}_kinks")(line.y, *line.u, c))
        if name == "loss":
            features = module.features(line.y, *line.u, c)

            def derivatives(x: Dual) -> tuple[Dual, Dual, Dual]:
                value, slope, curvature = module.derivatives(x, x, _like(x, 0), *_held(x, features), _held(x, c))
                return lift(value), lift(slope), lift(curvature)

            return Shape(derivatives, derivatives, kinks)

        def metric(x: Dual) -> Dual:
            (value,) = module.metric(x, *_held(x, (line.y, *line.u)), _held(x, c))
            return lift(value)

        return Shape(lambda x: (metric(x), lift(0), lift(0)), lambda x: _twice(metric, x), kinks)

    def _lines(self, name: str, label: int, c: tuple[Any, ...]) -> Iterator[Line]:
        """The pieces of the average.

        Raises:
            NotProvedError: it has two dimensions.
        """
        law = self._law(name, label, c)
        drive = self.module.DRIVES[name]
        if name in self.module.DIFFERENCES:
            y, *gaussian = (lift(0) for _ in law.weights)
            for share, choice in self._choices(y, c):
                yield Line(law.m - law.f_mean, law.spread, law.of_difference, y, self._noise(gaussian, choice), share)
            return
        if drive == "smooth":
            raise NotProvedError(
                f"the {name} of {self.numbers.problem.solver.name} leaves integrals of two dimensions, and proofs are "
                "for one: for labels, or a loss of X - Y"
            )
        steps = _ordered(getattr(self.module, f"{name}_steps")(c)) if drive == "steps" else ()
        pivot = next((i for i, weight in enumerate(law.weights) if lift(weight) != 0), None)
        for low, high in pairwise([None, *steps, None]):
            inside = lift(_between(low, high))
            if not (low is None or low.value < inside.value) or not (high is None or inside.value < high.value):
                raise NotProvedError("balls do not tell the steps of the loss apart")
            y, *gaussian = (inside / w if i == pivot else lift(0) for i, w in enumerate(law.weights))
            for share, choice in self._choices(y, c):
                yield Line(law.m, law.q, law.cut(low, high), y, self._noise(gaussian, choice), share)

    def _law(self, name: str, label: int, c: tuple[Any, ...]) -> BallLaw:
        overlaps, numbers = self.overlaps, self.numbers
        law = BallLaw(
            q=overlaps.q[label, 0, 0],
            m=overlaps.m[label, 0],
            theta=overlaps.theta[label, 0, 0],
            rho=numbers.law.rho_star[label, 0, 0],
            mean=numbers.law.teacher_means[label, 0],
            weights=tuple(map(lift, getattr(self.module, f"{name}_weights")(c))),
            noise=numbers.noise,
        )
        if not (overlaps.V[label, 0, 0].value > 0 and (law.q - law.theta**2 / law.rho).value > 0):
            raise DomainError("V, or q - theta rho*^(-1) theta^T, is not proved positive")
        return law

    def _choices(self, y: Dual, c: tuple[Any, ...]) -> Iterable[tuple[Dual, tuple[Dual, ...]]]:
        """Probability and value of the labelled noise."""
        if not self.module.NOISE_VALUES:
            return [(lift(1), ())]
        values = [tuple(map(lift, row)) for row in self.module.NOISE_VALUES]
        return zip(map(lift, self.module.probabilities(y, c)), values, strict=True)

    def _noise(self, gaussian: Sequence[Dual], choice: tuple[Dual, ...]) -> tuple[Dual, ...]:
        """All coordinates of u in the model's order."""
        rest = {True: iter(gaussian), False: iter(choice)}
        return tuple(next(rest[is_gaussian]) for is_gaussian in self.module.GAUSSIAN)


class BallLaw(Law):
    """The law of omega, Y and f, without a division by a probability, which complex balls may hold as zero."""

    @cached_property
    def spread(self) -> Dual:
        """Variance of omega - f."""
        return self.q - 2 * self.covariance + self.f_variance

    def of_difference(self, distance: Dual) -> tuple[Dual, Dual, Dual]:
        """`Line.given` for omega - f at a distance from its mean."""
        along = distance / self.spread
        cross = self.weights[0] * self.rho
        return lift(1), (self.q - self.covariance) * along, (self.theta - cross) * along

    def cut(self, low: Dual | None, high: Dual | None) -> Callable[[Dual], tuple[Dual, Dual, Dual]]:
        """`Line.given` for low < f < high, None an end that is missing."""
        slope = self.covariance / self.q
        if low is None and high is None:
            on_y = self.theta / self.q
            return lambda dw: (lift(1), dw, on_y * dw)
        on_omega, on_f = self.slopes
        spread = (self.f_variance - slope * self.covariance).sqrt()
        starts = [((end - self.f_mean) / spread, way) for end, way in ((low, 1), (high, -1)) if end is not None]
        steepness, along_w, along_z = slope / spread, on_omega + on_f * slope, on_f * spread

        def given(dw: Dual) -> tuple[Dual, Dual, Dual]:
            share, density = lift(int(low is None)), lift(0)
            for start, way in starts:
                z = start - steepness * dw
                share += normal_beyond(z) if way > 0 else -normal_beyond(z)
                density += normal_density(z) if way > 0 else -normal_density(z)
            part = dw * share
            return share, part, along_w * part + along_z * density

        return given


def _on_line(
    line: Line, shape: Shape, V: Dual, summands: Callable[..., Sequence[Dual]], goal: Goal, directions: int
) -> list[Dual]:
    """Integrals over X: pieces between the kinks, and two tails.

    Raises:
        NotProvedError: the Moreau objective may have competing minima, or an integral or a tail is not bounded.
    """
    ends = [_end(line, shape, V, goal, way) for way in (-1, 1)]
    edges = [lift(ends[0]), *shape.kinks, lift(ends[1])]
    total: list[arb] | None = None

    def components(summand: Dual) -> tuple[Any, ...]:
        return summand.value, *(summand.slopes or (arb(0),) * directions)

    def at(x: Dual, found: tuple[Dual, Dual, Dual]) -> Sequence[Dual]:
        value, slope, curvature = found
        distance = x + V * slope - line.mean
        weight = (1 + V * curvature) * normal_weight(distance, line.variance)
        return summands(weight, value, slope, curvature, line.given(distance))

    slope_before: Dual | None = None
    for left, right in pairwise(edges):
        centre, half = (left + right) / 2, (right - left) / 2
        middle = centre.value.mid()
        if not left.value < middle < right.value:
            raise NotProvedError("balls do not tell the kinks of the loss apart")
        with recorded() as decisions:
            shape.at(lift(middle))

        def inside(x: Dual, decisions: Decisions = decisions) -> tuple[Dual, Dual, Dual]:
            with repeated(decisions):
                return shape.at(x)

        def integrand(s: Any, centre=centre, half=half, inside=inside) -> list[Any]:
            x = centre + half * Dual(s)
            return [z for summand in at(x, inside(x)) for z in components(half * summand)]

        first, last = (inside(lift(end.value))[1] for end in (left, right))
        if slope_before is not None and not first.value.overlaps(slope_before.value):
            raise NotProvedError(f"the slope of the loss jumps at X = {_shown(left.value)}")
        slope_before = last

        def stretch(s: arb, inside=inside, middle=centre.value, reach=half.value) -> Dual:
            return 1 + V * inside(lift(middle + reach * s))[2]

        _check_convex(stretch, centre, half)
        part = integral(integrand, goal.tolerance)
        total = part if total is None else [a + b for a, b in zip(total, part, strict=True)]
    assert total is not None
    for end, way in zip(ends, (-1, 1), strict=True):
        with recorded() as decisions:
            value, slope, _ = shape.in_full(lift(end))
        with repeated(decisions):
            curvature = bounded(shape.in_full(Dual(Ray.beyond(end, way)))[2])
        least = 1 + V.value * curvature.value[0]
        if not least > 0:
            raise NotProvedError(_competing(f"beyond X = {_shown(end)}"))
        distance = way * (end + V.value * slope.value - line.mean.value)
        x = Dual(arb_poly([end, way]))
        envelopes = at(x, (*taylor(value, slope, curvature, way), curvature))
        bounds = tail(envelopes, distance, line.variance.value, least, components)
        total = [a + b for a, b in zip(total, bounds, strict=True)]
    size = 1 + directions
    return [Dual(total[i], tuple(total[i + 1 : i + size])) for i in range(0, len(total), size)]


def _end(line: Line, shape: Shape, V: Dual, goal: Goal, way: int) -> arb:
    """Where the tail begins: beyond all kinks, and far enough."""
    mean, spread = float(line.mean.value.mid()), float(line.variance.value.mid()) ** 0.5
    start = max([way * mean, *(way * float(kink.value.mid()) + 1e-6 * spread for kink in shape.kinks)]) * way

    def enough(x: float) -> bool:
        with recorded():
            slope = shape.at(lift(arb(x)))[1]
        return way * (x + float((V.value * slope.value).mid()) - mean) >= goal.reach * spread

    step = spread
    for _ in range(_DOUBLINGS):
        if enough(start + way * step):
            break
        step *= 2
    low, high = step / 2, step
    for _ in range(4):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(start + way * middle) else (middle, high)
    return arb(start + way * high)


def _check_convex(stretch: Callable[[arb], Dual], centre: Dual, half: Dual) -> None:
    """Prove that omega grows with X, piece by piece.

    Raises:
        NotProvedError: it does not, or cannot be told to.
    """
    waiting, parts = [(arb(-1), arb(1))], 0
    while waiting:
        left, right = waiting.pop()
        parts += 1
        found = stretch(left.union(right)).value
        if found > 0:
            continue
        middle = ((left + right) / 2).mid()
        if not stretch(middle).value > 0 or parts > _MOST_PARTS:
            raise NotProvedError(_competing(f"at X = {_shown(centre.value + half.value * middle)}"))
        waiting += [(left, middle), (middle, right)]


def _competing(where: str) -> str:
    return (
        f"the Moreau objective is not proved convex {where} (or X - f, f = Y + noise): minima may compete, and the "
        "proximal map jump, where "
        "1 + V d2loss/dX2 is not positive"
    )


def _shown(number: arb) -> str:
    return f"{float(number.mid()):.6g}"


def _held(x: Dual, numbers: Iterable[Any]) -> tuple[Any, ...]:
    """What stays fixed, in the arithmetic of X."""
    numbers = tuple(map(lift, numbers))
    return tuple(map(on_ray, numbers)) if _is_ray(x) else numbers


def _like(x: Dual, number: int) -> Dual:
    return on_ray(lift(number)) if _is_ray(x) else lift(number)


def _is_ray(number: Any) -> bool:
    while isinstance(number, Dual):
        number = number.value
    return isinstance(number, Ray)


def _twice(function: Callable[[Dual], Dual], x: Dual) -> tuple[Dual, Dual, Dual]:
    """A function with its first two derivatives in X, each with the derivatives that X has."""
    one, none = _like(x, 1), _like(x, 0)
    found = function(Dual(Dual(x, (one,)), (Dual(one, (none,)),)))
    inner, outer = _parts(found, none)
    value, slope = _parts(inner, none)
    return value, slope, _parts(outer, none)[1]


def _parts(number: Any, none: Dual) -> tuple[Any, Any]:
    """Value and only derivative."""
    if not isinstance(number, Dual):
        return lift(number), none
    return number.value, number.slopes[0] if number.slopes else none


def _ordered(places: Iterable[Any]) -> tuple[Dual, ...]:
    """Those that are real, from left to right.

    Raises:
        NotProvedError: balls do not tell their order, or whether they are real.
    """
    found: list[Dual] = []
    for place in map(lift, places):
        if isinstance(place.value, acb):  # the root of a number that is proved negative
            continue
        if not place.value.is_finite():
            raise NotProvedError("balls do not tell where a kink is")
        found.append(place)
    found.sort(key=cmp_to_key(_order))
    kept: list[Dual] = []
    for place in found:
        if kept and place.value == kept[-1].value:
            continue
        if kept and not place.value > kept[-1].value:
            raise NotProvedError("balls do not tell two kinks apart")
        kept.append(place)
    return tuple(kept)


def _order(a: Dual, b: Dual) -> int:
    """Of the middles."""
    one, other = a.value.mid(), b.value.mid()
    return -1 if one < other else int(one > other)


def _between(low: Dual | None, high: Dual | None) -> arb:
    """A point of an interval that may have no ends."""
    if low is None:
        return arb(0) if high is None else arb((high.value - 1).mid())
    return arb((low.value + 1).mid()) if high is None else arb(((low.value + high.value) / 2).mid())
