"""Gauss-Legendre rules with proved errors, for functions of many components that share their nodes.

f is analytic in and on the ellipse with foci -1 and 1 whose half axes are (rho +- 1/rho) / 2, and |f| <= M there. Then
n >= 2 nodes miss its integral over [-1, 1] by no more than 64/15 M rho^(-2n) / (1 - rho^(-2)) (L. N. Trefethen, SIAM
Rev. 50 (2008) 67, theorem 4.5). M comes from balls that cover the ellipse; f is not finite on a ball on which it might
not be analytic, and an interval on which no ellipse gives a bound is halved.
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
        ellipses: parameters rho of the ellipses that are tried; larger ones need fewer nodes, but bounds on more space.
        rectangles_across, rectangles_up: balls that cover the upper half of an ellipse.
        max_intervals: intervals before the proof fails.
    """

    ellipses: tuple[float, ...] = (4.0, 2.4)
    rectangles_across: int = 6
    rectangles_up: int = 2
    max_intervals: int = 400


Integrand = Callable[[Any], Sequence[Any]]


def enclose_integral(f: Integrand, tolerance: float) -> list[arb]:
    """Return balls that contain the integrals of a vector-valued analytic function over [-1, 1].

    Args:
        f: function of arb or acb that returns its components, not finite where it might not be analytic.
        tolerance: error allowed on an interval, in addition to that of the precision in force.

    Raises:
        NotProvedError: too many intervals.
    """
    options, most = EnclosureOptions.current(), 12 + int(-0.9 * math.log10(tolerance))
    total: list[arb] | None = None
    waiting, count = [(-1.0, 1.0)], 0
    while waiting:
        left, right = waiting.pop()
        count += 1
        if count > options.max_intervals or right - left < 1e-12:
            raise NotProvedError(
                f"a channel average is not bounded to the required accuracy by {options.max_intervals} intervals"
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
    """Return balls of the integrals over one interval; None if no ellipse bounds the error with few enough nodes."""
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
    """Return bounds of the components of f on a Bernstein ellipse, whose upper half is covered by rectangles."""
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
    """Return Gauss-Legendre nodes and weights on [-1, 1] as balls of the current precision."""
    return tuple(arb.legendre_p_root(count, k, weight=True) for k in range(count))
