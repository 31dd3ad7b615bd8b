"""Averages over the channel of one token in balls (docs/theory.md section 11).

Every average is one-dimensional: over X, with omega(X) = X + V dloss/dX, the law of Y and Gaussian noise given omega
being in closed form: as labels, or as what enters through X - f alone. X is cut at the kinks of the loss, which are
numbers with derivatives themselves and may move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from flint import acb, arb, arb_poly

from ...base.errors import NotProvedError
from ...problems.overlaps import Overlaps
from ..reference.channel import Channel, Given, Law, Summands, componentwise_sum, inner_point
from ..reference.numbers import Numbers
from .arithmetic import reference_on_balls
from .decisions import recorded_decisions, repeated_decisions
from .duals import Dual, lift
from .quadrature import enclosed_integral
from .tails import (
    Ray,
    bounded_on_ray,
    exact_mpf,
    normal_beyond,
    normal_density,
    normal_weight,
    on_ray,
    ray_envelopes,
    tail_bounds,
)

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
        corners: whether the loss or its slope jumps.
    """

    at: Callable[[Dual], tuple[Dual, Dual, Dual]]
    in_full: Callable[[Dual], tuple[Dual, Dual, Dual]]
    kinks: tuple[Dual, ...]
    corners: bool = False


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


class BallChannel(Channel[Goal]):
    """Averages of one problem at overlaps with derivatives, at the precision in force."""

    law_type = BallLaw
    not_positive = "not proved positive"
    squares_with_totals = False

    def __init__(self, numbers: Numbers, overlaps: Overlaps):
        super().__init__(numbers, overlaps, reference_on_balls(numbers.problem), lift)

    def positive(self, number: Dual) -> bool:
        """Whether all of the ball is."""
        return number.value > 0

    def ordered(self, places: Iterable[Any]) -> tuple[Dual, ...]:
        """Those that are real, from left to right.

        Raises:
            NotProvedError: balls do not tell their order, or whether they are real.
        """
        found: list[Dual] = []
        for place in map(lift, places):
            if isinstance(place.value, acb):  # the root of a number that is proved negative
                continue
            if not place.value.is_finite():
                raise NotProvedError("ball arithmetic cannot decide where a kink is")
            found.append(place)
        found.sort(key=lambda place: exact_mpf(place.value.mid()))
        kept: list[Dual] = []
        for place in found:
            if kept and place.value == kept[-1].value:
                continue
            if kept and not place.value > kept[-1].value:
                raise NotProvedError("ball arithmetic cannot separate two kinks")
            kept.append(place)
        return tuple(kept)

    @property
    def directions(self) -> int:
        """In how many derivatives are taken."""
        return len(self.overlaps.q.flat[0].slopes)

    def moments(self, g: Dual, given: Given, c: tuple[Any, ...]) -> list[Dual]:
        """Moments are affine in omega - m and in Y - m* (docs/theory.md (5.2) to (5.5)): no division by P."""
        share, dw, dy = given
        base, along_w, along_y = (self.module.moments(g, lift(a), lift(b), c) for a, b in ((0, 0), (1, 0), (0, 1)))
        return [share * z + dw * (zw - z) + dy * (zy - z) for z, zw, zy in zip(base, along_w, along_y, strict=True)]

    def average(self, name: str, label: int, V: Dual, c: tuple[Any, ...], summands: Summands, how: Goal) -> list[Dual]:
        """Integrals over the lines.

        Raises:
            NotProvedError: the Moreau objective may have competing minima, or an integral is not bounded.
        """
        total = None
        for line in self._lines(name, label, c):
            found = _on_line(line, self._shape(name, line, c), V, summands, how, self.directions)
            total = componentwise_sum(total, [line.share * z for z in found])
        assert total is not None
        return total

    def _shape(self, name: str, line: Line, c: tuple[Any, ...]) -> Shape:
        module, kinks = self.module, self.ordered(getattr(self.module, f"{name}_kinks")(line.y, *line.u, c))
        if name == "loss":
            features = module.features(line.y, *line.u, c)

            def derivatives(x: Dual) -> tuple[Dual, Dual, Dual]:
                value, slope, curvature = module.derivatives(x, x, _like(x, 0), *_held(x, features), _held(x, c))
                return lift(value), lift(slope), lift(curvature)

            return Shape(derivatives, derivatives, kinks, module.CORNERS)

        def metric(x: Dual) -> Dual:
            (value,) = self.metric(x, *_held(x, (line.y, *line.u)), _held(x, c))
            return lift(value)

        return Shape(lambda x: (metric(x), lift(0), lift(0)), lambda x: _twice(metric, x), kinks)

    def _lines(self, name: str, label: int, c: tuple[Any, ...]) -> Iterator[Line]:
        """The pieces of the average.

        Raises:
            NotProvedError: it has two dimensions.
        """
        law = self._law(name, label, c)
        if name in self.module.DIFFERENCES:
            for share, y, u in self._standing(law, None, c):
                yield Line(law.m - law.f_mean, law.spread, law.of_difference, y, u, share)
            return
        if self.module.DRIVES[name] == "smooth":
            raise NotProvedError(
                f"the {name} of {self.numbers.problem.solver.name} leaves integrals of two dimensions, and proofs are "
                "for one: for labels, or a loss of X - Y"
            )
        for low, high in self._pieces(name, c):
            inside = lift(lift(inner_point(low, high)).value.mid())
            if not (low is None or low.value < inside.value) or not (high is None or inside.value < high.value):
                raise NotProvedError("ball arithmetic cannot separate the steps of the loss")
            for share, y, u in self._standing(law, inside, c):
                yield Line(law.m, law.q, law.cut(low, high), y, u, share)


def _on_line(line: Line, shape: Shape, V: Dual, summands: Summands, goal: Goal, directions: int) -> list[Dual]:
    """Integrals over X: pieces between the kinks, slopes at corners, and two tails.

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

    before: tuple[Dual, Dual, Dual] | None = None
    for left, right in pairwise(edges):
        centre, half = (left + right) / 2, (right - left) / 2
        middle = centre.value.mid()
        if not left.value < middle < right.value:
            raise NotProvedError("ball arithmetic cannot separate the kinks of the loss")
        with recorded_decisions() as decisions:
            shape.at(lift(middle))

        def inside(x: Dual, decisions: list[bool] = decisions) -> tuple[Dual, Dual, Dual]:
            with repeated_decisions(decisions):
                return shape.at(x)

        def integrand(s: Any, centre=centre, half=half, inside=inside) -> list[Any]:
            x = centre + half * Dual(s)
            return [z for summand in at(x, inside(x)) for z in components(half * summand)]

        # Where the slope jumps, integrals have ends that move with the edge.
        first, last = (inside(end if shape.corners else lift(end.value)) for end in (left, right))
        if before is not None and shape.corners:
            corner = _corner(left, before, first, V, line, summands, components)
            total = componentwise_sum(total, enclosed_integral(corner, goal.tolerance))
        elif before is not None and not first[1].value.overlaps(before[1].value):
            raise NotProvedError(f"the slope of the loss jumps at X = {_shown(left.value)}")
        before = last

        def stretch(s: arb, inside=inside, middle=centre.value, reach=half.value) -> Dual:
            return 1 + V * inside(lift(middle + reach * s))[2]

        _check_convex(stretch, centre, half)
        part = enclosed_integral(integrand, goal.tolerance)
        total = componentwise_sum(total, part)
    assert total is not None
    for end, way in zip(ends, (-1, 1), strict=True):
        with recorded_decisions() as decisions:
            value, slope, _ = shape.in_full(lift(end))
        with repeated_decisions(decisions):
            curvature = bounded_on_ray(shape.in_full(Dual(Ray.beyond(end, way)))[2])
        least = 1 + V.value * curvature.value[0]
        if not least > 0:
            raise NotProvedError(_competing(f"beyond X = {_shown(end)}"))
        distance = way * (end + V.value * slope.value - line.mean.value)
        x = Dual(arb_poly([end, way]))
        envelopes = at(x, (*ray_envelopes(value, slope, curvature, way), curvature))
        bounds = tail_bounds(envelopes, distance, line.variance.value, least, components)
        total = componentwise_sum(total, bounds)
    size = 1 + directions
    return [Dual(total[i], tuple(total[i + 1 : i + size])) for i in range(0, len(total), size)]


def _corner(
    edge: Dual,
    before: tuple[Dual, Dual, Dual],
    after: tuple[Dual, Dual, Dual],
    V: Dual,
    line: Line,
    summands: Summands,
    components: Callable[[Dual], tuple[Any, ...]],
) -> Callable[[Any], list[Any]]:
    """What omega = edge + V p adds, p between the slopes of the loss before and after it, as a function on [-1, 1].

    Raises:
        NotProvedError: the loss jumps there, or its slope falls.
    """
    value, lower, upper = before[0], before[1], after[1]
    if not value.value.overlaps(after[0].value) or upper.value < lower.value:
        raise NotProvedError(_competing(f"at X = {_shown(edge.value)}, where the loss or its slope jumps down"))
    centre, half = (lower + upper) / 2, (upper - lower) / 2

    def integrand(s: Any) -> list[Any]:
        slope = centre + half * Dual(s)
        distance = edge + V * slope - line.mean
        weight = V * half * normal_weight(distance, line.variance)
        return [z for e in summands(weight, value, slope, None, line.given(distance)) for z in components(e)]

    return integrand


def _end(line: Line, shape: Shape, V: Dual, goal: Goal, way: int) -> arb:
    """Where the tail begins: beyond all kinks, and far enough."""
    mean, spread = float(line.mean.value.mid()), float(line.variance.value.mid()) ** 0.5
    start = max([way * mean, *(way * float(kink.value.mid()) + 1e-6 * spread for kink in shape.kinks)]) * way

    def enough(x: float) -> bool:
        with recorded_decisions():
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
    return _held(x, (number,))[0]


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
