"""Averages over the channel of one token in ball arithmetic (docs/theory.md section 11).

Every average is a one-dimensional integral over the proximal field X = prox(omega). The distribution of the teacher
field Y and of Gaussian noise given the field omega is in closed form: for losses of a label, or of the difference X - f
from the noisy teacher field f. The integrals are split at the kinks of the loss, which may depend on the overlaps.
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
    point_inside_interval,
)
from ..reference.numbers import PreciseParameters
from .arithmetic import reference_module_on_balls
from .decisions import record_comparison_outcomes, repeat_comparison_outcomes
from .duals import DualNumber, dual_from_number
from .quadrature import enclose_integral
from .tails import (
    ExtendedInterval,
    arb_to_exact_mpf,
    bound_tail_integrals,
    constant_envelope_on_ray,
    convert_to_extended_intervals,
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
        tolerance: largest error of the integral over one interval.
        reach: number of standard deviations from the mean beyond which a tail is bounded instead of integrated.
    """

    tolerance: float
    reach: float

    @classmethod
    def from_decimal_digits(cls, count: float) -> IntegralAccuracy:
        """Return the accuracy of `count` digits; tails begin where the Gaussian weight is 1 % of the tolerance."""
        return cls(10.0**-count, float(np.sqrt(2 * np.log(10) * (count + 2))))


@dataclass(frozen=True)
class GaussianVariable:
    """The Gaussian variable that a channel average is integrated over, with conditional means of the other fields.

    It is the student field omega, or its difference omega - f from the noisy teacher field f if the loss depends on
    that. Where the loss jumps as a function of f, each interval between jumps is integrated separately.

    Attributes:
        mean, variance: mean and variance of the variable.
        given: function of the variable minus its mean that returns the probability P of the interval of f, and P times
            the conditional means of the centred fields omega and Y.
        y, u: values of the teacher field Y and of the noise that represent the interval.
        share: probability of the discrete noise.
    """

    mean: DualNumber
    variance: DualNumber
    given: Callable[[DualNumber], tuple[DualNumber, DualNumber, DualNumber]]
    y: DualNumber
    u: tuple[DualNumber, ...]
    share: DualNumber


@dataclass(frozen=True)
class LossWithKinks:
    """A loss, or test-error metric, as a function of the proximal field X at fixed teacher field and noise.

    Attributes:
        at: function of X that returns value, first and second derivative; for a metric zeros in place of derivatives.
        in_full: function of X that returns value, first and second derivative, also for a metric.
        kinks: values of X at which the function or a derivative jumps, in ascending order.
        corners: whether the function or its first derivative jumps at kinks.
    """

    at: Callable[[DualNumber], tuple[DualNumber, DualNumber, DualNumber]]
    in_full: Callable[[DualNumber], tuple[DualNumber, DualNumber, DualNumber]]
    kinks: tuple[DualNumber, ...]
    corners: bool = False


class BallFieldDistribution(GaussianFieldLaw):
    """The joint Gaussian distribution of student field, teacher field and noisy teacher field, in ball arithmetic.

    Nothing is divided by a probability, since its ball may contain zero.
    """

    @cached_property
    def student_minus_teacher_variance(self) -> DualNumber:
        """The variance of the student field minus the noisy teacher field."""
        return self.q - 2 * self.noisy_teacher_covariance + self.noisy_teacher_variance

    def means_given_student_minus_teacher(self, distance: DualNumber) -> tuple[DualNumber, DualNumber, DualNumber]:
        """Return means of the centred fields, given the student field minus the noisy teacher field.

        `distance` is that difference minus its mean. Returned are probability 1 (there is no other condition), and
        the conditional means of student and teacher field.
        """
        rescaled = distance / self.student_minus_teacher_variance
        cross = self.weights[0] * self.rho
        return dual_from_number(1), (self.q - self.noisy_teacher_covariance) * rescaled, (self.theta - cross) * rescaled

    def means_given_teacher_interval(
        self, low: DualNumber | None, high: DualNumber | None
    ) -> Callable[[DualNumber], tuple[DualNumber, DualNumber, DualNumber]]:
        """Return a function of the centred student field with conditional means, for a noisy teacher in an interval.

        The function returns the conditional probability P that the noisy teacher field is in the interval, and P times
        the conditional means of the centred student and teacher fields.

        Args:
            low: lower end of the interval, None for minus infinity.
            high: upper end of the interval, None for infinity.
        """
        slope = self.noisy_teacher_covariance / self.q
        if low is None and high is None:
            on_y = self.theta / self.q
            return lambda dw: (dual_from_number(1), dw, on_y * dw)
        on_omega, on_f = self.teacher_regression_coefficients
        spread = (self.noisy_teacher_variance - slope * self.noisy_teacher_covariance).sqrt()
        starts = [
            ((end - self.noisy_teacher_mean) / spread, side) for end, side in ((low, 1), (high, -1)) if end is not None
        ]
        steepness, along_w, along_z = slope / spread, on_omega + on_f * slope, on_f * spread

        def _conditional_means(dw: DualNumber) -> tuple[DualNumber, DualNumber, DualNumber]:
            P, density = dual_from_number(int(low is None)), dual_from_number(0)
            for start, side in starts:
                z = start - steepness * dw
                P += normal_tail_probability(z) if side > 0 else -normal_tail_probability(z)
                density += standard_normal_density(z) if side > 0 else -standard_normal_density(z)
            part = dw * P
            return P, part, along_w * part + along_z * density

        return _conditional_means


class BallChannelAverages(ChannelAverages[IntegralAccuracy]):
    """Averages over the channel of a problem in ball arithmetic, with derivatives in the overlaps."""

    law_type = BallFieldDistribution
    not_positive = "not proved positive"
    includes_squared_responses = False

    def __init__(self, numbers: PreciseParameters, overlaps: Overlaps):
        super().__init__(numbers, overlaps, reference_module_on_balls(numbers.problem), dual_from_number)

    def is_positive(self, number: DualNumber) -> bool:
        """Return whether a ball is proved positive."""
        return number.value > 0

    def sort_real_points(self, places: Iterable[Any]) -> tuple[DualNumber, ...]:
        """Return the real points in ascending order, without duplicates.

        Raises:
            NotProvedError: the order of the points, or whether they are real, cannot be decided.
        """
        found: list[DualNumber] = []
        for place in map(dual_from_number, places):
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
        """The number of variables in which the dual numbers of these averages have derivatives."""
        return len(self.overlaps.q.flat[0].slopes)

    def moment_integrands_at_node(self, g: DualNumber, given: Given, c: tuple[Any, ...]) -> list[DualNumber]:
        """Return the integrands of the channel moments (docs/theory.md (5.2) to (5.5)) at one quadrature node.

        They are linear in the centred student and teacher fields, so that conditional means are enough.

        Args:
            g: negative derivative of the loss.
            given: probability, and its products with the conditional means of the centred fields.
            c: constants of the channel.
        """
        P, dw, dy = given
        base, along_w, along_y = (
            self.module.moments(g, dual_from_number(a), dual_from_number(b), c) for a, b in ((0, 0), (1, 0), (0, 1))
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
        """Return balls that contain averages over the channel.

        Args:
            name: loss or metric.
            label: label of the token.
            V: variance V of the overlaps.
            c: constants of the channel.
            summands: function that returns the integrands.
            integration: accuracy of the integrals.

        Raises:
            NotProvedError: the Moreau objective may have several minima, or an integral is not bounded.
        """
        total = None
        for line in self._gaussian_variables(name, label, c):
            found = _integrate_over_field(
                line, self._loss_with_kinks(name, line, c), V, summands, integration, self.derivative_direction_count
            )
            total = componentwise_sum(total, [line.share * z for z in found])
        assert total is not None
        return total

    def _loss_with_kinks(self, name: str, line: GaussianVariable, c: tuple[Any, ...]) -> LossWithKinks:
        module, kinks = self.module, self.sort_real_points(getattr(self.module, f"{name}_kinks")(line.y, *line.u, c))
        if name == "loss":
            features = module.features(line.y, *line.u, c)

            def _loss_derivatives(x: DualNumber) -> tuple[DualNumber, DualNumber, DualNumber]:
                value, slope, curvature = module.derivatives(
                    x,
                    x,
                    _constant_in_same_arithmetic(x, 0),
                    *_constants_in_same_arithmetic(x, features),
                    _constants_in_same_arithmetic(x, c),
                )
                return dual_from_number(value), dual_from_number(slope), dual_from_number(curvature)

            return LossWithKinks(_loss_derivatives, _loss_derivatives, kinks, module.CORNERS)

        def _metric_value(x: DualNumber) -> DualNumber:
            (value,) = self.test_error_metric(
                x, *_constants_in_same_arithmetic(x, (line.y, *line.u)), _constants_in_same_arithmetic(x, c)
            )
            return dual_from_number(value)

        return LossWithKinks(
            lambda x: (_metric_value(x), dual_from_number(0), dual_from_number(0)),
            lambda x: _derivatives_up_to_second_order(_metric_value, x),
            kinks,
        )

    def _gaussian_variables(self, name: str, label: int, c: tuple[Any, ...]) -> Iterator[GaussianVariable]:
        """Yield the Gaussian variable of a channel average for each teacher interval between jumps and noise value.

        Raises:
            NotProvedError: the average is a two-dimensional integral.
        """
        law = self._gaussian_law_of_fields(name, label, c)
        if name in self.module.DIFFERENCES:
            for share, y, u in self._teacher_and_noise_with_sum(law, None, c):
                yield GaussianVariable(
                    law.m - law.noisy_teacher_mean,
                    law.student_minus_teacher_variance,
                    law.means_given_student_minus_teacher,
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
        for low, high in self._intervals_between_loss_jumps(name, c):
            inside = dual_from_number(dual_from_number(point_inside_interval(low, high)).value.mid())
            if not (low is None or low.value < inside.value) or not (high is None or inside.value < high.value):
                raise NotProvedError(
                    "two discontinuities of the loss in Y are too close for ball arithmetic to order them"
                )
            for share, y, u in self._teacher_and_noise_with_sum(law, inside, c):
                yield GaussianVariable(law.m, law.q, law.means_given_teacher_interval(low, high), y, u, share)


def _integrate_over_field(
    line: GaussianVariable,
    shape: LossWithKinks,
    V: DualNumber,
    summands: Summands,
    goal: IntegralAccuracy,
    derivative_direction_count: int,
) -> list[DualNumber]:
    """Return balls that contain channel averages: integrals between kinks of the loss, at its corners and in the tails.

    Raises:
        NotProvedError: the Moreau objective may have several minima, or an integral or a tail is not bounded.
    """
    ends = [_start_of_gaussian_tail(line, shape, V, goal, side) for side in (-1, 1)]
    edges = [dual_from_number(ends[0]), *shape.kinks, dual_from_number(ends[1])]
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
        with record_comparison_outcomes() as decisions:
            shape.at(dual_from_number(middle))

        def _loss_between_kinks(
            x: DualNumber, decisions: list[bool] = decisions
        ) -> tuple[DualNumber, DualNumber, DualNumber]:
            with repeat_comparison_outcomes(decisions):
                return shape.at(x)

        def _integrand_between_kinks(s: Any, centre=centre, half=half, inside=_loss_between_kinks) -> list[Any]:
            x = centre + half * DualNumber(s)
            return [z for summand in _evaluate_integrands(x, inside(x)) for z in value_and_derivatives(half * summand)]

        # If the slope jumps, the ends of integrals move with the edge.
        first, last = (
            _loss_between_kinks(end if shape.corners else dual_from_number(end.value)) for end in (left, right)
        )
        if before is not None and shape.corners:
            corner = _loss_corner_integrand(left, before, first, V, line, summands, value_and_derivatives)
            total = componentwise_sum(total, enclose_integral(corner, goal.tolerance))
        elif before is not None and not first[1].value.overlaps(before[1].value):
            raise NotProvedError(
                f"the derivative of the loss, assumed continuous, jumps at X = {_format_ball_midpoint(left.value)}"
            )
        before = last

        def _inverse_proximal_map_slope(
            s: arb, inside=_loss_between_kinks, middle=centre.value, reach=half.value
        ) -> DualNumber:
            return 1 + V * inside(dual_from_number(middle + reach * s))[2]

        _prove_objective_convex(_inverse_proximal_map_slope, centre, half)
        part = enclose_integral(_integrand_between_kinks, goal.tolerance)
        total = componentwise_sum(total, part)
    assert total is not None
    for end, side in zip(ends, (-1, 1), strict=True):
        with record_comparison_outcomes() as decisions:
            value, slope, _ = shape.in_full(dual_from_number(end))
        with repeat_comparison_outcomes(decisions):
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
    line: GaussianVariable,
    summands: Summands,
    value_and_derivatives: Callable[[DualNumber], tuple[Any, ...]],
) -> Callable[[Any], list[Any]]:
    """Return the integrand of the part of a channel average in which the proximal map stays at a corner of the loss.

    The integration variable in [-1, 1] stands for the derivative of the loss, between its one-sided values.

    Raises:
        NotProvedError: the loss jumps at the corner, or its derivative decreases.
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


def _start_of_gaussian_tail(
    line: GaussianVariable, shape: LossWithKinks, V: DualNumber, goal: IntegralAccuracy, side: int
) -> arb:
    """Return the proximal field X at which a Gaussian tail begins, beyond all kinks of the loss."""
    mean, spread = float(line.mean.value.mid()), float(line.variance.value.mid()) ** 0.5
    start = max([side * mean, *(side * float(kink.value.mid()) + 1e-6 * spread for kink in shape.kinks)]) * side

    def _is_in_gaussian_tail(x: float) -> bool:
        with record_comparison_outcomes():
            slope = shape.at(dual_from_number(arb(x)))[1]
        return side * (x + float((V.value * slope.value).mid()) - mean) >= goal.reach * spread

    step = spread
    for _ in range(BallChannelOptions.current().max_doublings):
        if _is_in_gaussian_tail(start + side * step):
            break
        step *= 2
    low, high = step / 2, step
    for _ in range(4):
        middle = (low + high) / 2
        low, high = (low, middle) if _is_in_gaussian_tail(start + side * middle) else (middle, high)
    return arb(start + side * high)


def _prove_objective_convex(stretch: Callable[[arb], DualNumber], centre: DualNumber, half: DualNumber) -> None:
    """Prove that the Moreau objective is convex between two kinks, interval by interval.

    It is convex where omega = X + V dloss/dX, the inverse of the proximal map, increases with X.

    Raises:
        NotProvedError: omega decreases somewhere, or the proof needs too many intervals.
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
        "be negative there, so that minima may compete and the proximal map may jump"
    )


def _format_ball_midpoint(number: arb) -> str:
    return f"{float(number.mid()):.6g}"


def _constants_in_same_arithmetic(x: DualNumber, numbers: Iterable[Any]) -> tuple[Any, ...]:
    """Return constants as dual numbers of the same kind as x: of balls, or of possibly unbounded intervals."""
    numbers = tuple(map(dual_from_number, numbers))
    return tuple(map(convert_to_extended_intervals, numbers)) if _is_extended_interval(x) else numbers


def _constant_in_same_arithmetic(x: DualNumber, number: int) -> DualNumber:
    return _constants_in_same_arithmetic(x, (number,))[0]


def _is_extended_interval(number: Any) -> bool:
    while isinstance(number, DualNumber):
        number = number.value
    return isinstance(number, ExtendedInterval)


def _derivatives_up_to_second_order(
    function: Callable[[DualNumber], DualNumber], x: DualNumber
) -> tuple[DualNumber, DualNumber, DualNumber]:
    """Return value, first and second derivative of a function of one variable, by nested dual numbers."""
    one, none = _constant_in_same_arithmetic(x, 1), _constant_in_same_arithmetic(x, 0)
    found = function(DualNumber(DualNumber(x, (one,)), (DualNumber(one, (none,)),)))
    inner, outer = _value_and_slope_of_dual(found, none)
    value, slope = _value_and_slope_of_dual(inner, none)
    return value, slope, _value_and_slope_of_dual(outer, none)[1]


def _value_and_slope_of_dual(number: Any, none: DualNumber) -> tuple[Any, Any]:
    """Return the value and the derivative of a dual number with at most one direction."""
    if not isinstance(number, DualNumber):
        return dual_from_number(number), none
    return number.value, number.slopes[0] if number.slopes else none
