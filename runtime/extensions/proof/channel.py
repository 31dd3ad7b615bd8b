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
from ..reference.channel import (
    ChannelAverages,
    GaussianFieldLaw,
    Given,
    Summands,
    componentwise_sum,
    interval_inner_point,
)
from ..reference.numbers import ProblemNumbers
from .arithmetic import reference_module_on_balls
from .decisions import record_comparisons, repeat_comparisons
from .duals import DualNumber, as_dual
from .quadrature import enclose_integral
from .tails import (
    ExtendedInterval,
    arb_to_exact_mpf,
    as_extended_intervals,
    bound_tail_integrals,
    constant_envelope_on_ray,
    gaussian_density,
    normal_tail_probability,
    standard_normal_density,
    value_and_slope_envelopes,
)


@dataclass(frozen=True)
class BallChannelOptions(AlgorithmOptions):
    """Options of channel averages in ball arithmetic.

    Attributes:
        max_doublings: largest number of doublings of the distance at which a Gaussian tail begins.
        max_parts: largest number of intervals in which the Moreau objective is proved convex, before the proof fails.
    """

    max_doublings: int = 200
    max_parts: int = 20000


@dataclass(frozen=True)
class IntegralAccuracy:
    """A required accuracy of Gaussian integrals.

    Attributes:
        tolerance: error of the integral over one interval.
        reach: number of standard deviations beyond which the tail is bounded.
    """

    tolerance: float
    reach: float

    @classmethod
    def from_digits(cls, count: float) -> IntegralAccuracy:
        """Return the accuracy 10^-count, with tails that begin where the Gaussian weight is 10^-(count + 2)."""
        return cls(10.0**-count, float(np.sqrt(2 * np.log(10) * (count + 2))))


@dataclass(frozen=True)
class OneDimensionalLaw:
    """A Gaussian law of the one coordinate that is integrated over, and conditional means of the others.

    Attributes:
        mean, variance: of omega, or of omega - f if the loss depends on X - f.
        given: function of the distance from the mean: P, P E[omega - m] and P E[Y - m*], P the probability of the
            piece of f.
        y, u: representative values of Y and noise of the piece.
        share: probability of the labelled noise.
    """

    mean: DualNumber
    variance: DualNumber
    given: Callable[[DualNumber], tuple[DualNumber, DualNumber, DualNumber]]
    y: DualNumber
    u: tuple[DualNumber, ...]
    share: DualNumber


@dataclass(frozen=True)
class LossWithKinks:
    """A loss or metric as a function of X at fixed Y and noise, with its kinks in ascending order.

    Attributes:
        at: function of X that returns value, first and second derivative; for a metric the derivatives are zero.
        in_full: function of X that returns value, first and second derivative, for a metric as well.
        corners: whether the loss or its derivative jumps.
    """

    at: Callable[[DualNumber], tuple[DualNumber, DualNumber, DualNumber]]
    in_full: Callable[[DualNumber], tuple[DualNumber, DualNumber, DualNumber]]
    kinks: tuple[DualNumber, ...]
    corners: bool = False


class BallFieldLaw(GaussianFieldLaw):
    """A joint Gaussian law of omega, Y and f in balls, without divisions by a probability, which may contain zero."""

    @cached_property
    def difference_variance(self) -> DualNumber:
        """The variance of omega - f."""
        return self.q - 2 * self.noisy_teacher_covariance + self.noisy_teacher_variance

    def conditional_means_given_difference(self, distance: DualNumber) -> tuple[DualNumber, DualNumber, DualNumber]:
        """Return probability 1 and the means of omega and Y, given the distance of omega - f from its mean."""
        rescaled = distance / self.difference_variance
        cross = self.weights[0] * self.rho
        return as_dual(1), (self.q - self.noisy_teacher_covariance) * rescaled, (self.theta - cross) * rescaled

    def conditional_means_given_interval(
        self, low: DualNumber | None, high: DualNumber | None
    ) -> Callable[[DualNumber], tuple[DualNumber, DualNumber, DualNumber]]:
        """Return a function of the distance of omega: the probability of low < f < high, and means of omega and Y.

        Args:
            low: lower end, None for minus infinity.
            high: upper end, None for infinity.
        """
        slope = self.noisy_teacher_covariance / self.q
        if low is None and high is None:
            on_y = self.theta / self.q
            return lambda dw: (as_dual(1), dw, on_y * dw)
        on_omega, on_f = self.teacher_regression_coefficients
        spread = (self.noisy_teacher_variance - slope * self.noisy_teacher_covariance).sqrt()
        starts = [
            ((end - self.noisy_teacher_mean) / spread, side) for end, side in ((low, 1), (high, -1)) if end is not None
        ]
        steepness, along_w, along_z = slope / spread, on_omega + on_f * slope, on_f * spread

        def _conditional_means(dw: DualNumber) -> tuple[DualNumber, DualNumber, DualNumber]:
            P, density = as_dual(int(low is None)), as_dual(0)
            for start, side in starts:
                z = start - steepness * dw
                P += normal_tail_probability(z) if side > 0 else -normal_tail_probability(z)
                density += standard_normal_density(z) if side > 0 else -standard_normal_density(z)
            part = dw * P
            return P, part, along_w * part + along_z * density

        return _conditional_means


class BallChannelAverages(ChannelAverages[IntegralAccuracy]):
    """Channel averages of one problem in ball arithmetic, with derivatives in the overlaps."""

    law_type = BallFieldLaw
    not_positive = "not proved positive"
    includes_squared_responses = False

    def __init__(self, numbers: ProblemNumbers, overlaps: Overlaps):
        super().__init__(numbers, overlaps, reference_module_on_balls(numbers.problem), as_dual)

    def is_known_positive(self, number: DualNumber) -> bool:
        """Return whether a ball is proved positive."""
        return number.value > 0

    def sort_real_points(self, places: Iterable[Any]) -> tuple[DualNumber, ...]:
        """Return the real points in ascending order, without duplicates.

        Raises:
            NotProvedError: the order of the points, or whether they are real, cannot be decided.
        """
        found: list[DualNumber] = []
        for place in map(as_dual, places):
            if isinstance(place.value, acb):  # the root of a number that is proved negative
                continue
            if not place.value.is_finite():
                raise NotProvedError("ball arithmetic gives no finite bound for the position of a kink of the loss")
            found.append(place)
        found.sort(key=lambda place: arb_to_exact_mpf(place.value.mid()))
        distinct: list[DualNumber] = []
        for place in found:
            if distinct and place.value == distinct[-1].value:
                continue
            if distinct and not place.value > distinct[-1].value:
                raise NotProvedError("two kinks of the loss are too close for ball arithmetic to order them")
            distinct.append(place)
        return tuple(distinct)

    @property
    def derivative_direction_count(self) -> int:
        """The number of directions of derivatives."""
        return len(self.overlaps.q.flat[0].slopes)

    def moments_at_node(self, g: DualNumber, given: Given, c: tuple[Any, ...]) -> list[DualNumber]:
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

    def average_integrands(
        self,
        name: str,
        label: int,
        V: DualNumber,
        c: tuple[Any, ...],
        summands: Summands,
        integration: IntegralAccuracy,
    ) -> list[DualNumber]:
        """Return enclosures of channel averages, as one-dimensional integrals.

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
        for line in self._one_dimensional_laws(name, label, c):
            found = _integrate_over_field(
                line, self._loss_with_kinks(name, line, c), V, summands, integration, self.derivative_direction_count
            )
            total = componentwise_sum(total, [line.share * z for z in found])
        assert total is not None
        return total

    def _loss_with_kinks(self, name: str, line: OneDimensionalLaw, c: tuple[Any, ...]) -> LossWithKinks:
        module, kinks = self.module, self.sort_real_points(getattr(self.module, f"{name}_kinks")(line.y, *line.u, c))
        if name == "loss":
            features = module.features(line.y, *line.u, c)

            def _loss_derivatives(x: DualNumber) -> tuple[DualNumber, DualNumber, DualNumber]:
                value, slope, curvature = module.derivatives(
                    x,
                    x,
                    _convert_constant_like(x, 0),
                    *_convert_constants_like(x, features),
                    _convert_constants_like(x, c),
                )
                return as_dual(value), as_dual(slope), as_dual(curvature)

            return LossWithKinks(_loss_derivatives, _loss_derivatives, kinks, module.CORNERS)

        def _metric_value(x: DualNumber) -> DualNumber:
            (value,) = self.test_error_metric(
                x, *_convert_constants_like(x, (line.y, *line.u)), _convert_constants_like(x, c)
            )
            return as_dual(value)

        return LossWithKinks(
            lambda x: (_metric_value(x), as_dual(0), as_dual(0)),
            lambda x: _value_and_two_derivatives(_metric_value, x),
            kinks,
        )

    def _one_dimensional_laws(self, name: str, label: int, c: tuple[Any, ...]) -> Iterator[OneDimensionalLaw]:
        """Yield the one-dimensional laws that an average is integrated over.

        Raises:
            NotProvedError: the average has two dimensions.
        """
        law = self._field_law(name, label, c)
        if name in self.module.DIFFERENCES:
            for share, y, u in self._representative_teacher_and_noise(law, None, c):
                yield OneDimensionalLaw(
                    law.m - law.noisy_teacher_mean,
                    law.difference_variance,
                    law.conditional_means_given_difference,
                    y,
                    u,
                    share,
                )
            return
        if self.module.DRIVES[name] == "smooth":
            raise NotProvedError(
                f"the {name} of {self.numbers.problem.solver.name} leaves integrals of two dimensions; "
                "proofs exist for one-dimensional integrals only (losses of labels, or of X - Y)"
            )
        for low, high in self._intervals_between_steps(name, c):
            inside = as_dual(as_dual(interval_inner_point(low, high)).value.mid())
            if not (low is None or low.value < inside.value) or not (high is None or inside.value < high.value):
                raise NotProvedError(
                    "two discontinuities of the loss in Y are too close for ball arithmetic to order them"
                )
            for share, y, u in self._representative_teacher_and_noise(law, inside, c):
                yield OneDimensionalLaw(law.m, law.q, law.conditional_means_given_interval(low, high), y, u, share)


def _integrate_over_field(
    line: OneDimensionalLaw,
    shape: LossWithKinks,
    V: DualNumber,
    summands: Summands,
    goal: IntegralAccuracy,
    derivative_direction_count: int,
) -> list[DualNumber]:
    """Return enclosures of integrals over X: between the kinks, across corners, and in both tails.

    Raises:
        NotProvedError: the Moreau objective may have competing minima, or an integral or a tail is not bounded.
    """
    ends = [_integration_tail_start(line, shape, V, goal, side) for side in (-1, 1)]
    edges = [as_dual(ends[0]), *shape.kinks, as_dual(ends[1])]
    total: list[arb] | None = None

    def value_and_derivatives(summand: DualNumber) -> tuple[Any, ...]:
        return summand.value, *(summand.slopes or (arb(0),) * derivative_direction_count)

    def _evaluate_integrands(x: DualNumber, found: tuple[DualNumber, DualNumber, DualNumber]) -> Sequence[DualNumber]:
        value, slope, curvature = found
        distance = x + V * slope - line.mean
        weight = (1 + V * curvature) * gaussian_density(distance, line.variance)
        return summands(weight, value, slope, curvature, line.given(distance))

    before: tuple[DualNumber, DualNumber, DualNumber] | None = None
    for left, right in pairwise(edges):
        centre, half = (left + right) / 2, (right - left) / 2
        middle = centre.value.mid()
        if not left.value < middle < right.value:
            raise NotProvedError("two kinks of the loss are too close for ball arithmetic to order them")
        with record_comparisons() as decisions:
            shape.at(as_dual(middle))

        def _loss_on_panel(
            x: DualNumber, decisions: list[bool] = decisions
        ) -> tuple[DualNumber, DualNumber, DualNumber]:
            with repeat_comparisons(decisions):
                return shape.at(x)

        def _panel_integrand(s: Any, centre=centre, half=half, inside=_loss_on_panel) -> list[Any]:
            x = centre + half * DualNumber(s)
            return [z for summand in _evaluate_integrands(x, inside(x)) for z in value_and_derivatives(half * summand)]

        # If the slope jumps, the ends of integrals move with the edge.
        first, last = (_loss_on_panel(end if shape.corners else as_dual(end.value)) for end in (left, right))
        if before is not None and shape.corners:
            corner = _loss_corner_integrand(left, before, first, V, line, summands, value_and_derivatives)
            total = componentwise_sum(total, enclose_integral(corner, goal.tolerance))
        elif before is not None and not first[1].value.overlaps(before[1].value):
            raise NotProvedError(
                f"the derivative of the loss, assumed continuous, jumps at X = {_format_ball_midpoint(left.value)}"
            )
        before = last

        def _omega_derivative(s: arb, inside=_loss_on_panel, middle=centre.value, reach=half.value) -> DualNumber:
            return 1 + V * inside(as_dual(middle + reach * s))[2]

        _prove_objective_convex(_omega_derivative, centre, half)
        part = enclose_integral(_panel_integrand, goal.tolerance)
        total = componentwise_sum(total, part)
    assert total is not None
    for end, side in zip(ends, (-1, 1), strict=True):
        with record_comparisons() as decisions:
            value, slope, _ = shape.in_full(as_dual(end))
        with repeat_comparisons(decisions):
            curvature = constant_envelope_on_ray(shape.in_full(DualNumber(ExtendedInterval.half_line(end, side)))[2])
        least = 1 + V.value * curvature.value[0]
        if not least > 0:
            raise NotProvedError(_nonconvexity_message(f"beyond X = {_format_ball_midpoint(end)}"))
        distance = side * (end + V.value * slope.value - line.mean.value)
        x = DualNumber(arb_poly([end, side]))
        envelopes = _evaluate_integrands(x, (*value_and_slope_envelopes(value, slope, curvature, side), curvature))
        bounds = bound_tail_integrals(envelopes, distance, line.variance.value, least, value_and_derivatives)
        total = componentwise_sum(total, bounds)
    size = 1 + derivative_direction_count
    return [DualNumber(total[i], tuple(total[i + 1 : i + size])) for i in range(0, len(total), size)]


def _loss_corner_integrand(
    edge: DualNumber,
    before: tuple[DualNumber, DualNumber, DualNumber],
    after: tuple[DualNumber, DualNumber, DualNumber],
    V: DualNumber,
    line: OneDimensionalLaw,
    summands: Summands,
    value_and_derivatives: Callable[[DualNumber], tuple[Any, ...]],
) -> Callable[[Any], list[Any]]:
    """Return the integrand on [-1, 1] of omega = edge + V p, p between the one-sided derivatives at a corner.

    Raises:
        NotProvedError: the loss jumps at the corner, or its derivative falls.
    """
    value, lower, upper = before[0], before[1], after[1]
    if not value.value.overlaps(after[0].value) or upper.value < lower.value:
        raise NotProvedError(
            _nonconvexity_message(
                f"at X = {_format_ball_midpoint(edge.value)}, where the loss or its derivative jumps down"
            )
        )
    centre, half = (lower + upper) / 2, (upper - lower) / 2

    def _evaluate_corner_integrand(s: Any) -> list[Any]:
        slope = centre + half * DualNumber(s)
        distance = edge + V * slope - line.mean
        weight = V * half * gaussian_density(distance, line.variance)
        return [z for e in summands(weight, value, slope, None, line.given(distance)) for z in value_and_derivatives(e)]

    return _evaluate_corner_integrand


def _integration_tail_start(
    line: OneDimensionalLaw, shape: LossWithKinks, V: DualNumber, goal: IntegralAccuracy, side: int
) -> arb:
    """Return the X at which a Gaussian tail begins, beyond all kinks of the loss."""
    mean, spread = float(line.mean.value.mid()), float(line.variance.value.mid()) ** 0.5
    start = max([side * mean, *(side * float(kink.value.mid()) + 1e-6 * spread for kink in shape.kinks)]) * side

    def _is_in_tail(x: float) -> bool:
        with record_comparisons():
            slope = shape.at(as_dual(arb(x)))[1]
        return side * (x + float((V.value * slope.value).mid()) - mean) >= goal.reach * spread

    step = spread
    for _ in range(BallChannelOptions.current().max_doublings):
        if _is_in_tail(start + side * step):
            break
        step *= 2
    low, high = step / 2, step
    for _ in range(4):
        middle = (low + high) / 2
        low, high = (low, middle) if _is_in_tail(start + side * middle) else (middle, high)
    return arb(start + side * high)


def _prove_objective_convex(stretch: Callable[[arb], DualNumber], centre: DualNumber, half: DualNumber) -> None:
    """Prove that omega = X + V dloss/dX increases with X, interval by interval.

    Raises:
        NotProvedError: omega decreases somewhere, or there is no proof.
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
                _nonconvexity_message(f"at X = {_format_ball_midpoint(centre.value + half.value * middle)}")
            )
        waiting += [(left, middle), (middle, right)]


def _nonconvexity_message(where: str) -> str:
    return (
        f"the Moreau objective is not proved convex {where} (X - Y for a loss of the difference): 1 + V d2loss/dX2 may "
        "be negative there, several minima compete and the proximal map jump"
    )


def _format_ball_midpoint(number: arb) -> str:
    return f"{float(number.mid()):.6g}"


def _convert_constants_like(x: DualNumber, numbers: Iterable[Any]) -> tuple[Any, ...]:
    """Return constants as dual numbers, or as intervals if X is an unbounded interval."""
    numbers = tuple(map(as_dual, numbers))
    return tuple(map(as_extended_intervals, numbers)) if _is_extended_interval(x) else numbers


def _convert_constant_like(x: DualNumber, number: int) -> DualNumber:
    return _convert_constants_like(x, (number,))[0]


def _is_extended_interval(number: Any) -> bool:
    while isinstance(number, DualNumber):
        number = number.value
    return isinstance(number, ExtendedInterval)


def _value_and_two_derivatives(
    function: Callable[[DualNumber], DualNumber], x: DualNumber
) -> tuple[DualNumber, DualNumber, DualNumber]:
    """Return value, first and second derivative in X of a function, by nested dual numbers."""
    one, none = _convert_constant_like(x, 1), _convert_constant_like(x, 0)
    found = function(DualNumber(DualNumber(x, (one,)), (DualNumber(one, (none,)),)))
    inner, outer = _value_and_derivative(found, none)
    value, slope = _value_and_derivative(inner, none)
    return value, slope, _value_and_derivative(outer, none)[1]


def _value_and_derivative(number: Any, none: DualNumber) -> tuple[Any, Any]:
    """Return the value of a dual number and its only derivative."""
    if not isinstance(number, DualNumber):
        return as_dual(number), none
    return number.value, number.slopes[0] if number.slopes else none
