"""Bounds of the tails of Gaussian averages, beyond the last kink on either side.

On the ray X = b + side tau, tau >= 0, the curvature of the loss lies in an interval, which the generated kernel gives
on the whole ray at once. Its slope and value follow as polynomials in tau with balls as coefficients (envelopes), and
so does the integrand without the exponential of its Gaussian weight. With |omega - mean| >= a + c tau the rest is no
more than

    exp(-a^2 / 2v) int_0^inf tau^k exp(-a c tau / v) dtau = exp(-a^2 / 2v) k! (v / (a c))^(k + 1)

times the coefficients, and likewise for every derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flint import arb, arb_poly
from mpmath import iv, mp
from mpmath.libmp import from_man_exp

from ...base.errors import NotProvedError
from .duals import Dual, as_dual


class Ray:
    """An interval that may be unbounded."""

    __slots__ = ("interval",)

    def __init__(self, interval: Any):
        self.interval = interval

    @classmethod
    def of(cls, number: Any) -> Ray:
        """Return the interval of a ball, or of an exact number."""
        if isinstance(number, Ray):
            return number
        found = number if isinstance(number, arb) else arb(number)
        if not found.is_finite():
            return cls(iv.mpf(["-inf", "inf"]))
        return cls(iv.mpf([exact_mpf(found.lower()), exact_mpf(found.upper())]))

    @classmethod
    def half_line(cls, end: arb, side: int) -> Ray:
        """Return the half line from the midpoint of a ball.

        Args:
            end: the ball.
            side: 1 for upward, -1 for downward.
        """
        place = exact_mpf(end.mid())
        return cls(iv.mpf([place, "inf"] if side > 0 else ["-inf", place]))

    def __add__(self, other: Any) -> Ray:
        if isinstance(other, Dual):
            return NotImplemented
        return Ray(self.interval + Ray.of(other).interval)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Ray:
        if isinstance(other, Dual):
            return NotImplemented
        factors = self.interval, Ray.of(other).interval
        # No number on a ray is infinite.
        return Ray(factors[0] * factors[1] if all(factor != 0 for factor in factors) else iv.mpf(0))

    __rmul__ = __mul__

    def __neg__(self) -> Ray:
        return Ray(-self.interval)

    def __rtruediv__(self, other: Any) -> Ray:
        return Ray(Ray.of(other).interval / self.interval)

    def exp(self) -> Ray:
        """Return an interval that contains e^x for all x of this one."""
        return Ray(iv.exp(self.interval))

    def log(self) -> Ray:
        """Return an interval that contains log x for all x of this one; the whole line if it is not proved positive."""
        return Ray(iv.log(self.interval) if self.interval.a > 0 else iv.mpf(["-inf", "inf"]))

    def sqrt(self) -> Ray:
        """Return an interval that contains the root of all x of this one; the whole line if it extends below zero."""
        return Ray(iv.sqrt(self.interval) if self.interval.a >= 0 else iv.mpf(["-inf", "inf"]))

    @property
    def ball(self) -> arb:
        """The interval as a ball, not finite if it is unbounded."""
        low, high = (mp.make_mpf(end) for end in self.interval._mpi_)
        if not (mp.isfinite(low) and mp.isfinite(high)):
            return arb.nan()
        return arb(low).union(arb(high))


def exact_mpf(number: arb) -> Any:
    """Return an exact mpf of a number, at any precision of mpmath."""
    mantissa, exponent = number.man_exp()
    return mp.make_mpf(from_man_exp(int(mantissa), int(exponent)))


def to_rays(number: Any) -> Any:
    """Return a number, with its derivatives of any order, for arithmetic on rays."""
    return number.map(to_rays) if isinstance(number, Dual) else Ray.of(number)


def constant_on_ray(number: Dual) -> Dual:
    """Return the polynomial of degree zero that encloses a number on a ray.

    Raises:
        NotProvedError: the number is not bounded there.
    """

    def constant(ray: Any) -> arb_poly:
        found = Ray.of(ray).ball
        if not found.is_finite():
            raise NotProvedError(
                "the curvature of the loss or of the metric, or its derivative with respect to the parameter, has no "
                "proved bound far out, so that the tails of its averages have none"
            )
        return arb_poly([found])

    return number.map(constant)


def ray_envelopes(value: Dual, slope: Dual, curvature: Dual, side: int) -> tuple[Dual, Dual]:
    """Return envelopes of value and slope on a ray.

    Args:
        value: value at its end.
        slope: slope at its end.
        curvature: curvature on the ray, an envelope of degree zero.
        side: 1 for upward, -1 for downward.
    """
    tau = Dual(arb_poly([0, side]))
    value, slope = (number.map(lambda z: arb_poly([z])) for number in (value, slope))
    return value + slope * tau + curvature * tau * tau / 2, slope + curvature * tau


def normal_weight(distance: Dual, variance: Dual) -> Dual:
    """Return exp(-distance^2 / 2 variance) / sqrt(2 pi variance), on an envelope without its exponential.

    Args:
        distance: distance from the mean.
        variance: variance of the law.
    """
    exponent = -(distance * distance) / (2 * variance)
    power = Dual(arb_poly([1]), exponent.slopes) if isinstance(exponent.value, arb_poly) else exponent.exp()
    return power / (2 * arb.pi() * variance).sqrt()


def normal_density(z: Dual) -> Dual:
    """Return the normal density phi(z); on an envelope |phi| < 2/5 and |phi'| < 1/4."""
    if isinstance(z.value, arb_poly):
        return z._chain(_within(0, "0.4"), lambda: _within("-0.25", "0.25"))
    return (-(z * z) / 2).exp() / as_dual(2 * arb.pi()).sqrt()


def normal_tail_probability(z: Dual) -> Dual:
    """Return the probability that a standard normal variable exceeds z."""
    if isinstance(z.value, arb_poly):
        return z._chain(_within(0, 1), lambda: _within("-0.4", 0))
    return (z * as_dual(arb("0.5")).sqrt()).erfc() / 2


def _within(low: Any, high: Any) -> arb_poly:
    return arb_poly([arb(low).union(arb(high))])


def tail_bounds(
    summands: Sequence[Dual], distance: arb, variance: arb, stretch: arb, components: Callable[[Dual], Sequence[Any]]
) -> list[arb]:
    """Return balls around zero that contain the integrals over a ray.

    Args:
        summands: envelopes of the integrand, without its exponential.
        distance: |omega - mean| at the ray's end.
        variance: variance of the weight.
        stretch: domega/dX on the ray.
        components: function that returns the value and all derivatives of a summand.

    Raises:
        NotProvedError: the ray begins too close to the mean.
    """
    rate = arb(distance.lower()) * arb(stretch.lower()) / arb(variance.upper())
    if not (rate > 0 and distance > 0):
        raise NotProvedError("the tail of an average begins too near its mean to be bounded")
    factor = (-(arb(distance.lower()) ** 2) / (2 * arb(variance.upper()))).exp()
    found = []
    for summand in summands:
        for envelope in components(summand):
            size = arb(0)
            for power, coefficient in enumerate(arb_poly(envelope).coeffs() if envelope is not None else ()):
                size += arb(coefficient.abs_upper()) * math.factorial(power) / rate ** (power + 1)
            found.append(arb(0, (factor * size).abs_upper()))
    return found
