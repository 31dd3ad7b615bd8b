"""Gauss-Legendre quadrature with proved error bounds, for vector-valued functions.

Let f be analytic in the Bernstein ellipse with foci -1 and 1 and semi-axes (rho +- 1/rho) / 2, and |f| <= M there. The
error of n >= 2 nodes is at most 64/15 M rho^(-2n) / (1 - rho^(-2)) (L. N. Trefethen, SIAM Rev. 50 (2008) 67, theorem
4.5). M is computed on balls that cover the ellipse; f must not be finite on a ball on which it might not be analytic.
An interval on which no ellipse gives a small enough bound is halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flint import acb, arb, ctx

from ...base.errors import NotProvedError
from ...base.options import AlgorithmOptions


@dataclass(frozen=True)
class EnclosureOptions(AlgorithmOptions):
    """Options of Gauss-Legendre integrals with proved error bounds.

    Attributes:
        ellipses: sums rho of the semi-axes of the Bernstein ellipses that are tried; on a larger one fewer nodes are
            needed, but the integrand must be bounded on more of the complex plane.
        rectangles_across, rectangles_up: numbers of balls, in both directions, that cover the upper half of an ellipse.
        max_intervals: largest number of intervals before the proof fails.
    """

    ellipses: tuple[float, ...] = (4.0, 2.4)
    rectangles_across: int = 6
    rectangles_up: int = 2
    max_intervals: int = 400


Integrand = Callable[[Any], Sequence[Any]]


def enclose_integral(f: Integrand, tolerance: float) -> list[arb]:
    """Return balls that contain the integrals of a vector-valued analytic function over [-1, 1].

    Args:
        f: function of a real or complex ball that returns its components; not finite where it might not be analytic.
        tolerance: error bound allowed on an interval, in addition to rounding at the current precision.

    Raises:
        NotProvedError: the error bound needs too many intervals.
    """
    options, most = EnclosureOptions.current(), 12 + int(-0.9 * math.log10(tolerance))
    total: list[arb] | None = None
    waiting, count = [(-1.0, 1.0)], 0
    while waiting:
        left, right = waiting.pop()
        count += 1
        if count > options.max_intervals or right - left < 1e-12:
            raise NotProvedError(
                f"averages need more than {options.max_intervals} intervals for this accuracy; allow larger error bars"
            )
        centre, half = arb((left + right) / 2), arb((right - left) / 2)
        part = _enclose_integral_on_interval(f, centre, half, tolerance, most)
        if part is None:
            middle = (left + right) / 2
            waiting += [(left, middle), (middle, right)]
            continue
        total = part if total is None else [a + b for a, b in zip(total, part, strict=True)]
    assert total is not None
    return total


def _enclose_integral_on_interval(
    f: Integrand, centre: arb, half: arb, tolerance: float, most: int
) -> list[arb] | None:
    """Return balls that contain the integrals over one interval.

    None is returned if no Bernstein ellipse bounds the quadrature error with few enough nodes.
    """
    for rho in EnclosureOptions.current().ellipses:
        bounds = _bounds_on_bernstein_ellipse(f, centre, half, rho)
        largest = max(float(half * bound) for bound in bounds)
        if not largest < 1e300:
            continue
        needed = (math.log(5 * largest + tolerance) - math.log(tolerance)) / (2 * math.log(rho))
        if needed <= most:
            return _gauss_rule_with_error_bound(f, centre, half, max(2, math.ceil(needed)), rho, bounds)
    return None


def _bounds_on_bernstein_ellipse(f: Integrand, centre: arb, half: arb, rho: float) -> list[arb]:
    """Return upper bounds of the components of |f| on a Bernstein ellipse, from balls that cover its upper half."""
    options = EnclosureOptions.current()
    across, rows = options.rectangles_across, options.rectangles_up
    wide, high = (rho + 1 / rho) / 2, (rho - 1 / rho) / 2
    bounds: list[arb] | None = None
    for up in range(rows):
        reach = wide * math.sqrt(1 - (up / rows) ** 2) * (1 + 1e-12)
        imaginary = half * arb(high * (up + 0.5) / rows, high * 0.5 / rows * (1 + 1e-12))
        for step in range(across):
            place = reach * (2 * (step + 0.5) / across - 1)
            real = centre + half * arb(place, reach / across * (1 + 1e-12))
            sizes = [arb(z.abs_upper()) for z in f(acb(real, imaginary))]
            if not all(size.is_finite() for size in sizes):
                return [arb.pos_inf()] * len(sizes)
            bounds = sizes if bounds is None else [max(a, b) for a, b in zip(bounds, sizes, strict=True)]
    assert bounds is not None
    return bounds


def _gauss_rule_with_error_bound(
    f: Integrand, centre: arb, half: arb, count: int, rho: float, bounds: list[arb]
) -> list[arb]:
    total: list[arb] | None = None
    for node, weight in _gauss_legendre_nodes(count, ctx.prec):
        values = [half * weight * z for z in f(centre + half * node)]
        total = values if total is None else [a + b for a, b in zip(total, values, strict=True)]
    assert total is not None
    inside = arb(rho) ** -2
    missed = half * arb(64) / 15 * inside**count / (1 - inside)
    return [a + arb(0, (missed * bound).abs_upper()) for a, bound in zip(total, bounds, strict=True)]


@lru_cache(maxsize=256)
def _gauss_legendre_nodes(count: int, precision: int) -> tuple[tuple[arb, arb], ...]:
    """Return the nodes and weights of Gauss-Legendre quadrature on [-1, 1], as balls of the current precision."""
    return tuple(arb.legendre_p_root(count, k, weight=True) for k in range(count))
