"""Bounds of the tails of Gaussian averages, beyond the last kink of the loss on either side.

On a half line X = b +- x with x >= 0, the second derivative of the loss lies in an interval, which the generated code
gives on the whole half line at once. Value and slope follow as polynomials in x whose coefficients are balls
("envelopes"), and so does the integrand without the exponential of its Gaussian weight of variance v. If the distance
from the mean is at least a + c x, the integral is no more than

    exp(-a^2 / 2v) int_0^inf x^k exp(-a c x / v) dx = exp(-a^2 / 2v) k! (v / (a c))^(k + 1)

times the coefficient of each power k, and likewise for every derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flint import arb, arb_poly
from mpmath import iv, mp
from mpmath.libmp import from_man_exp

from ...base.errors import NotProvedError
from .duals import DualNumber, dual_from_number


class ExtendedInterval:
    """An interval of real numbers, possibly unbounded, with interval arithmetic."""

    __slots__ = ("interval",)

    def __init__(self, interval: Any):
        self.interval = interval

    @classmethod
    def enclose_number(cls, number: Any) -> ExtendedInterval:
        """Return the interval that contains a ball or an exact number."""
        if isinstance(number, ExtendedInterval):
            return number
        found = number if isinstance(number, arb) else arb(number)
        if not found.is_finite():
            return cls(iv.mpf(["-inf", "inf"]))
        return cls(iv.mpf([arb_to_exact_mpf(found.lower()), arb_to_exact_mpf(found.upper())]))

    @classmethod
    def half_line(cls, end: arb, side: int) -> ExtendedInterval:
        """Return the half line that begins at the midpoint of a ball.

        Args:
            end: the ball.
            side: 1 for the half line to +infinity, -1 for the one to -infinity.
        """
        place = arb_to_exact_mpf(end.mid())
        return cls(iv.mpf([place, "inf"] if side > 0 else ["-inf", place]))

    def __add__(self, other: Any) -> ExtendedInterval:
        if isinstance(other, DualNumber):
            return NotImplemented
        return ExtendedInterval(self.interval + ExtendedInterval.enclose_number(other).interval)

    __radd__ = __add__

    def __mul__(self, other: Any) -> ExtendedInterval:
        if isinstance(other, DualNumber):
            return NotImplemented
        factors = self.interval, ExtendedInterval.enclose_number(other).interval
        # No number on a ray is infinite.
        return ExtendedInterval(factors[0] * factors[1] if all(factor != 0 for factor in factors) else iv.mpf(0))

    __rmul__ = __mul__

    def __neg__(self) -> ExtendedInterval:
        return ExtendedInterval(-self.interval)

    def __rtruediv__(self, other: Any) -> ExtendedInterval:
        return ExtendedInterval(ExtendedInterval.enclose_number(other).interval / self.interval)

    def exp(self) -> ExtendedInterval:
        """Return an interval that contains e^x for all x of the interval."""
        return ExtendedInterval(iv.exp(self.interval))

    def log(self) -> ExtendedInterval:
        """Return an interval that contains log x for all x of this interval; the whole line unless x > 0 is proved."""
        return ExtendedInterval(iv.log(self.interval) if self.interval.a > 0 else iv.mpf(["-inf", "inf"]))

    def sqrt(self) -> ExtendedInterval:
        """Return an interval with the square roots of all x of this interval; the whole line if x < 0 is possible."""
        return ExtendedInterval(iv.sqrt(self.interval) if self.interval.a >= 0 else iv.mpf(["-inf", "inf"]))

    @property
    def enclosing_ball(self) -> arb:
        """A ball that contains the interval; not finite if the interval is unbounded."""
        low, high = (mp.make_mpf(end) for end in self.interval._mpi_)
        if not (mp.isfinite(low) and mp.isfinite(high)):
            return arb.nan()
        return arb(low).union(arb(high))


def arb_to_exact_mpf(number: arb) -> Any:
    """Return an exact Arb number, a ball of radius zero, as an mpmath number, without rounding."""
    mantissa, exponent = number.man_exp()
    return mp.make_mpf(from_man_exp(int(mantissa), int(exponent)))


def convert_to_extended_intervals(number: Any) -> Any:
    """Return a number, or a dual number with all its components, converted to extended intervals."""
    return (
        number.apply_function_to_components(convert_to_extended_intervals)
        if isinstance(number, DualNumber)
        else ExtendedInterval.enclose_number(number)
    )


def constant_envelope_on_ray(number: DualNumber) -> DualNumber:
    """Return a constant, as a polynomial envelope, that encloses the values of a function on a half line.

    The dual number contains these values and derivatives as intervals.

    Raises:
        NotProvedError: the values are not bounded.
    """

    def _constant_envelope(ray: Any) -> arb_poly:
        found = ExtendedInterval.enclose_number(ray).enclosing_ball
        if not found.is_finite():
            raise NotProvedError(
                "the second derivative of the loss or metric in X, or its derivative in the parameter, has no proved "
                "bound at large |X|, so that the tails of Gaussian averages cannot be bounded"
            )
        return arb_poly([found])

    return number.apply_function_to_components(_constant_envelope)


def value_and_slope_envelopes(
    value: DualNumber, slope: DualNumber, curvature: DualNumber, side: int
) -> tuple[DualNumber, DualNumber]:
    """Return polynomials with ball coefficients that enclose a function and its derivative on a half line.

    Args:
        value: value of the function at the end of the half line.
        slope: derivative of the function at the end of the half line.
        curvature: constant that encloses the second derivative on the half line.
        side: 1 for the half line to +infinity, -1 for the one to -infinity.
    """
    tau = DualNumber(arb_poly([0, side]))
    value, slope = (number.apply_function_to_components(lambda z: arb_poly([z])) for number in (value, slope))
    return value + slope * tau + curvature * tau * tau / 2, slope + curvature * tau


def gaussian_density(distance: DualNumber, variance: DualNumber) -> DualNumber:
    """Return the Gaussian density at a distance from the mean; for a polynomial envelope, without its exponential.

    Args:
        distance: distance from the mean.
        variance: variance of the distribution.
    """
    exponent = -(distance * distance) / (2 * variance)
    power = DualNumber(arb_poly([1]), exponent.slopes) if isinstance(exponent.value, arb_poly) else exponent.exp()
    return power / (2 * arb.pi() * variance).sqrt()


def standard_normal_density(z: DualNumber) -> DualNumber:
    """Return the standard normal density at z; for a polynomial envelope, constant bounds of it and its derivative."""
    if isinstance(z.value, arb_poly):
        return z._apply_chain_rule(_envelope_from_bounds(0, "0.4"), lambda: _envelope_from_bounds("-0.25", "0.25"))
    return (-(z * z) / 2).exp() / dual_from_number(2 * arb.pi()).sqrt()


def normal_tail_probability(z: DualNumber) -> DualNumber:
    """Return the probability that a standard normal variable exceeds z; for an envelope, constant bounds of it."""
    if isinstance(z.value, arb_poly):
        return z._apply_chain_rule(_envelope_from_bounds(0, 1), lambda: _envelope_from_bounds("-0.4", 0))
    return (z * dual_from_number(arb("0.5")).sqrt()).erfc() / 2


def _envelope_from_bounds(low: Any, high: Any) -> arb_poly:
    return arb_poly([arb(low).union(arb(high))])


def bound_tail_integrals(
    summands: Sequence[DualNumber],
    distance: arb,
    variance: arb,
    stretch: arb,
    value_and_derivatives: Callable[[DualNumber], Sequence[Any]],
) -> list[arb]:
    """Return balls around zero that contain integrals over a Gaussian tail, and the derivatives of these integrals.

    Args:
        summands: polynomial envelopes of the integrands, without the exponential of the Gaussian weight.
        distance: distance from the mean at which the tail begins.
        variance: variance of the Gaussian weight.
        stretch: lower bound of the derivative of the Gaussian variable in the integration variable.
        value_and_derivatives: function that returns the value and all derivatives of an integrand.

    Raises:
        NotProvedError: the tail begins too close to the mean.
    """
    rate = arb(distance.lower()) * arb(stretch.lower()) / arb(variance.upper())
    if not (rate > 0 and distance > 0):
        raise NotProvedError("the tail of a Gaussian average begins too near the mean to be bounded")
    factor = (-(arb(distance.lower()) ** 2) / (2 * arb(variance.upper()))).exp()
    found = []
    for summand in summands:
        for envelope in value_and_derivatives(summand):
            size = arb(0)
            for power, coefficient in enumerate(arb_poly(envelope).coeffs() if envelope is not None else ()):
                size += arb(coefficient.abs_upper()) * math.factorial(power) / rate ** (power + 1)
            found.append(arb(0, (factor * size).abs_upper()))
    return found
