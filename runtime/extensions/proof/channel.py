"""Averages over the channel of one token in balls (docs/theory.md section 11).

Every average is one-dimensional: over X, with omega(X) = X + V dloss/dX, the law of Y and Gaussian noise given omega
being in closed form: for labels, or for losses of X - f. X is split at the kinks of the loss, which are numbers with
derivatives themselves and may move.
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
from ...base.options import AlgorithmOptions
from ...problems.overlaps import Overlaps
from ..reference.channel import Channel, Given, Law, Summands, componentwise_sum, inner_point
from ..reference.numbers import Numbers
from .arithmetic import reference_on_balls
from .decisions import recorded_decisions, repeated_decisions
from .duals import Dual, as_dual
from .quadrature import enclosed_integral
from .tails import (
    Ray,
    constant_on_ray,
    exact_mpf,
    normal_density,
    normal_tail_probability,
    normal_weight,
    ray_envelopes,
    tail_bounds,
    to_rays,
)


@dataclass(frozen=True)
class BallChannelOptions(AlgorithmOptions):
    """Options of averages in balls.

    Attributes:
        max_doublings: doublings of the distance at which a tail begins.
        max_parts: parts of the line on which the Moreau objective is proved convex, before the proof fails.
    """

    max_doublings: int = 200
    max_parts: int = 20000


@dataclass(frozen=True)
class Goal:
    """An accuracy of integrals: error of each part, and deviations beyond which the tail is bounded."""

    tolerance: float
    reach: float

    @classmethod
    def digits(cls, count: float) -> Goal:
        """Return the goal of parts to 10^-count, with a reach at which a Gaussian weight is 10^-(count + 2)."""
        return cls(10.0**-count, float(np.sqrt(2 * np.log(10) * (count + 2))))


@dataclass(frozen=True)
class Line:
    """The law of the one coordinate left, and conditional means of the others.

    Attributes:
        mean, variance: of omega, or of omega - f if the loss depends on X - f.
        given: function of the distance from the mean: P, P E[omega - m] and P E[Y - m*], P the probability of the
            piece of f.
        y, u: representative values of Y and noise of the piece.
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
    """The loss, or the metric, as a function of X at given Y and noise, and its kinks in ascending order.

    Attributes:
        at: function of X: value, slope, curvature; zero derivatives for a metric, if only its value counts.
        in_full: the same with all derivatives.
        corners: whether the loss or its slope jumps.
    """

    at: Callable[[Dual], tuple[Dual, Dual, Dual]]
    in_full: Callable[[Dual], tuple[Dual, Dual, Dual]]
    kinks: tuple[Dual, ...]
    corners: bool = False


class BallLaw(Law):
    """The law of omega, Y and f, without a division by a probability, since complex balls may contain zero."""

    @cached_property
    def spread(self) -> Dual:
        """The variance of omega - f."""
        return self.q - 2 * self.covariance + self.f_variance

    def conditional_on_difference(self, distance: Dual) -> tuple[Dual, Dual, Dual]:
        """Return `Line.given` for omega - f at a distance from its mean."""
        rescaled = distance / self.spread
        cross = self.weights[0] * self.rho
        return as_dual(1), (self.q - self.covariance) * rescaled, (self.theta - cross) * rescaled

    def conditional_on_interval(self, low: Dual | None, high: Dual | None) -> Callable[[Dual], tuple[Dual, Dual, Dual]]:
        """Return the function `Line.given` for low < f < high.

        Args:
            low: lower end, None for minus infinity.
            high: upper end, None for infinity.
        """
        slope = self.covariance / self.q
        if low is None and high is None:
            on_y = self.theta / self.q
            return lambda dw: (as_dual(1), dw, on_y * dw)
        on_omega, on_f = self.slopes
        spread = (self.f_variance - slope * self.covariance).sqrt()
        starts = [((end - self.f_mean) / spread, side) for end, side in ((low, 1), (high, -1)) if end is not None]
        steepness, along_w, along_z = slope / spread, on_omega + on_f * slope, on_f * spread

        def given(dw: Dual) -> tuple[Dual, Dual, Dual]:
            P, density = as_dual(int(low is None)), as_dual(0)
            for start, side in starts:
                z = start - steepness * dw
                P += normal_tail_probability(z) if side > 0 else -normal_tail_probability(z)
                density += normal_density(z) if side > 0 else -normal_density(z)
            part = dw * P
            return P, part, along_w * part + along_z * density

        return given


class BallChannel(Channel[Goal]):
    """A channel in balls: averages of one problem at overlaps with derivatives, at the precision in force."""

    law_type = BallLaw
    not_positive = "not proved positive"
    squares_with_totals = False

    def __init__(self, numbers: Numbers, overlaps: Overlaps):
        super().__init__(numbers, overlaps, reference_on_balls(numbers.problem), as_dual)

    def is_positive(self, number: Dual) -> bool:
        """Return whether a ball is proved positive."""
        return number.value > 0

    def sort_real(self, places: Iterable[Any]) -> tuple[Dual, ...]:
        """Return the real points in ascending order, without duplicates.

        Raises:
            NotProvedError: their order, or whether they are real, cannot be decided.
        """
        found: list[Dual] = []
        for place in map(as_dual, places):
            if isinstance(place.value, acb):  # the root of a number that is proved negative
                continue
            if not place.value.is_finite():
                raise NotProvedError("ball arithmetic cannot decide where a kink is")
            found.append(place)
        found.sort(key=lambda place: exact_mpf(place.value.mid()))
        distinct: list[Dual] = []
        for place in found:
            if distinct and place.value == distinct[-1].value:
                continue
            if distinct and not place.value > distinct[-1].value:
                raise NotProvedError("ball arithmetic cannot separate two kinks")
            distinct.append(place)
        return tuple(distinct)

    @property
    def derivative_count(self) -> int:
        """The number of directions of derivatives."""
        return len(self.overlaps.q.flat[0].slopes)

    def moments(self, g: Dual, given: Given, c: tuple[Any, ...]) -> list[Dual]:
        """Return the moments, which are affine in omega - m and Y - m* (docs/theory.md (5.2) to (5.5)).

        No division by P is needed.

        Args:
            g: negative slope of the loss.
            given: P and conditional means.
            c: constants.
        """
        P, dw, dy = given
        base, along_w, along_y = (
            self.module.moments(g, as_dual(a), as_dual(b), c) for a, b in ((0, 0), (1, 0), (0, 1))
        )
        return [P * z + dw * (zw - z) + dy * (zy - z) for z, zw, zy in zip(base, along_w, along_y, strict=True)]

    def average(
        self, name: str, label: int, V: Dual, c: tuple[Any, ...], summands: Summands, integration: Goal
    ) -> list[Dual]:
        """Return averages as integrals over lines.

        Args:
            name: loss or metric.
            label: label of the token.
            V: variance.
            c: constants.
            summands: integrands.
            integration: accuracy of the integrals.

        Raises:
            NotProvedError: the Moreau objective may have competing minima, or an integral is not bounded.
        """
        total = None
        for line in self._split_into_lines(name, label, c):
            found = _integrate_line(line, self._shape(name, line, c), V, summands, integration, self.derivative_count)
            total = componentwise_sum(total, [line.share * z for z in found])
        assert total is not None
        return total

    def _shape(self, name: str, line: Line, c: tuple[Any, ...]) -> Shape:
        module, kinks = self.module, self.sort_real(getattr(self.module, f"{name}_kinks")(line.y, *line.u, c))
        if name == "loss":
            features = module.features(line.y, *line.u, c)

            def derivatives(x: Dual) -> tuple[Dual, Dual, Dual]:
                value, slope, curvature = module.derivatives(
                    x, x, _lift_constant(x, 0), *_lift_constants(x, features), _lift_constants(x, c)
                )
                return as_dual(value), as_dual(slope), as_dual(curvature)

            return Shape(derivatives, derivatives, kinks, module.CORNERS)

        def metric(x: Dual) -> Dual:
            (value,) = self.metric(x, *_lift_constants(x, (line.y, *line.u)), _lift_constants(x, c))
            return as_dual(value)

        return Shape(lambda x: (metric(x), as_dual(0), as_dual(0)), lambda x: _two_derivatives(metric, x), kinks)

    def _split_into_lines(self, name: str, label: int, c: tuple[Any, ...]) -> Iterator[Line]:
        """Yield the lines of an average.

        Raises:
            NotProvedError: the average has two dimensions.
        """
        law = self._law(name, label, c)
        if name in self.module.DIFFERENCES:
            for share, y, u in self._representatives(law, None, c):
                yield Line(law.m - law.f_mean, law.spread, law.conditional_on_difference, y, u, share)
            return
        if self.module.DRIVES[name] == "smooth":
            raise NotProvedError(
                f"the {name} of {self.numbers.problem.solver.name} leaves integrals of two dimensions, and proofs are "
                "for one: for labels, or a loss of X - Y"
            )
        for low, high in self._step_intervals(name, c):
            inside = as_dual(as_dual(inner_point(low, high)).value.mid())
            if not (low is None or low.value < inside.value) or not (high is None or inside.value < high.value):
                raise NotProvedError("ball arithmetic cannot separate the steps of the loss")
            for share, y, u in self._representatives(law, inside, c):
                yield Line(law.m, law.q, law.conditional_on_interval(low, high), y, u, share)


def _integrate_line(
    line: Line, shape: Shape, V: Dual, summands: Summands, goal: Goal, derivative_count: int
) -> list[Dual]:
    """Return integrals over X: pieces between the kinks, slopes at corners, and two tails.

    Raises:
        NotProvedError: the Moreau objective may have competing minima, or an integral or a tail is not bounded.
    """
    ends = [_tail_start(line, shape, V, goal, side) for side in (-1, 1)]
    edges = [as_dual(ends[0]), *shape.kinks, as_dual(ends[1])]
    total: list[arb] | None = None

    def components(summand: Dual) -> tuple[Any, ...]:
        return summand.value, *(summand.slopes or (arb(0),) * derivative_count)

    def _summands_at(x: Dual, found: tuple[Dual, Dual, Dual]) -> Sequence[Dual]:
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
            shape.at(as_dual(middle))

        def _inside(x: Dual, decisions: list[bool] = decisions) -> tuple[Dual, Dual, Dual]:
            with repeated_decisions(decisions):
                return shape.at(x)

        def _integrand(s: Any, centre=centre, half=half, inside=_inside) -> list[Any]:
            x = centre + half * Dual(s)
            return [z for summand in _summands_at(x, inside(x)) for z in components(half * summand)]

        # If the slope jumps, the ends of integrals move with the edge.
        first, last = (_inside(end if shape.corners else as_dual(end.value)) for end in (left, right))
        if before is not None and shape.corners:
            corner = _corner_integrand(left, before, first, V, line, summands, components)
            total = componentwise_sum(total, enclosed_integral(corner, goal.tolerance))
        elif before is not None and not first[1].value.overlaps(before[1].value):
            raise NotProvedError(f"the slope of the loss jumps at X = {_format_midpoint(left.value)}")
        before = last

        def _stretch(s: arb, inside=_inside, middle=centre.value, reach=half.value) -> Dual:
            return 1 + V * inside(as_dual(middle + reach * s))[2]

        _check_convex(_stretch, centre, half)
        part = enclosed_integral(_integrand, goal.tolerance)
        total = componentwise_sum(total, part)
    assert total is not None
    for end, side in zip(ends, (-1, 1), strict=True):
        with recorded_decisions() as decisions:
            value, slope, _ = shape.in_full(as_dual(end))
        with repeated_decisions(decisions):
            curvature = constant_on_ray(shape.in_full(Dual(Ray.half_line(end, side)))[2])
        least = 1 + V.value * curvature.value[0]
        if not least > 0:
            raise NotProvedError(_nonconvexity_message(f"beyond X = {_format_midpoint(end)}"))
        distance = side * (end + V.value * slope.value - line.mean.value)
        x = Dual(arb_poly([end, side]))
        envelopes = _summands_at(x, (*ray_envelopes(value, slope, curvature, side), curvature))
        bounds = tail_bounds(envelopes, distance, line.variance.value, least, components)
        total = componentwise_sum(total, bounds)
    size = 1 + derivative_count
    return [Dual(total[i], tuple(total[i + 1 : i + size])) for i in range(0, len(total), size)]


def _corner_integrand(
    edge: Dual,
    before: tuple[Dual, Dual, Dual],
    after: tuple[Dual, Dual, Dual],
    V: Dual,
    line: Line,
    summands: Summands,
    components: Callable[[Dual], tuple[Any, ...]],
) -> Callable[[Any], list[Any]]:
    """Return the integrand on [-1, 1] of omega = edge + V p, p between the slopes of the loss at a corner.

    Raises:
        NotProvedError: the loss jumps there, or its slope falls.
    """
    value, lower, upper = before[0], before[1], after[1]
    if not value.value.overlaps(after[0].value) or upper.value < lower.value:
        raise NotProvedError(
            _nonconvexity_message(f"at X = {_format_midpoint(edge.value)}, where the loss or its slope jumps down")
        )
    centre, half = (lower + upper) / 2, (upper - lower) / 2

    def integrand(s: Any) -> list[Any]:
        slope = centre + half * Dual(s)
        distance = edge + V * slope - line.mean
        weight = V * half * normal_weight(distance, line.variance)
        return [z for e in summands(weight, value, slope, None, line.given(distance)) for z in components(e)]

    return integrand


def _tail_start(line: Line, shape: Shape, V: Dual, goal: Goal, side: int) -> arb:
    """Return the beginning of a tail, beyond all kinks and the reach of the goal."""
    mean, spread = float(line.mean.value.mid()), float(line.variance.value.mid()) ** 0.5
    start = max([side * mean, *(side * float(kink.value.mid()) + 1e-6 * spread for kink in shape.kinks)]) * side

    def _is_far_enough(x: float) -> bool:
        with recorded_decisions():
            slope = shape.at(as_dual(arb(x)))[1]
        return side * (x + float((V.value * slope.value).mid()) - mean) >= goal.reach * spread

    step = spread
    for _ in range(BallChannelOptions.current().max_doublings):
        if _is_far_enough(start + side * step):
            break
        step *= 2
    low, high = step / 2, step
    for _ in range(4):
        middle = (low + high) / 2
        low, high = (low, middle) if _is_far_enough(start + side * middle) else (middle, high)
    return arb(start + side * high)


def _check_convex(stretch: Callable[[arb], Dual], centre: Dual, half: Dual) -> None:
    """Prove that omega grows with X, piece by piece.

    Raises:
        NotProvedError: it does not, or there is no proof.
    """
    most = BallChannelOptions.current().max_parts
    waiting, parts = [(arb(-1), arb(1))], 0
    while waiting:
        left, right = waiting.pop()
        parts += 1
        found = stretch(left.union(right)).value
        if found > 0:
            continue
        middle = ((left + right) / 2).mid()
        if not stretch(middle).value > 0 or parts > most:
            raise NotProvedError(
                _nonconvexity_message(f"at X = {_format_midpoint(centre.value + half.value * middle)}")
            )
        waiting += [(left, middle), (middle, right)]


def _nonconvexity_message(where: str) -> str:
    return (
        f"the Moreau objective is not proved convex {where} (or X - f, f = Y + noise): minima may compete, and the "
        "proximal map jump, where "
        "1 + V d2loss/dX2 is not positive"
    )


def _format_midpoint(number: arb) -> str:
    return f"{float(number.mid()):.6g}"


def _lift_constants(x: Dual, numbers: Iterable[Any]) -> tuple[Any, ...]:
    """Return constants in the arithmetic of X."""
    numbers = tuple(map(as_dual, numbers))
    return tuple(map(to_rays, numbers)) if _is_ray(x) else numbers


def _lift_constant(x: Dual, number: int) -> Dual:
    return _lift_constants(x, (number,))[0]


def _is_ray(number: Any) -> bool:
    while isinstance(number, Dual):
        number = number.value
    return isinstance(number, Ray)


def _two_derivatives(function: Callable[[Dual], Dual], x: Dual) -> tuple[Dual, Dual, Dual]:
    """Return a function with its first two derivatives in X, each with the derivatives that X has."""
    one, none = _lift_constant(x, 1), _lift_constant(x, 0)
    found = function(Dual(Dual(x, (one,)), (Dual(one, (none,)),)))
    inner, outer = _value_and_derivative(found, none)
    value, slope = _value_and_derivative(inner, none)
    return value, slope, _value_and_derivative(outer, none)[1]


def _value_and_derivative(number: Any, none: Dual) -> tuple[Any, Any]:
    """Return the value and the only derivative."""
    if not isinstance(number, Dual):
        return as_dual(number), none
    return number.value, number.slopes[0] if number.slopes else none
