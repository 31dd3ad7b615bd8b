"""Gauss-Legendre rules with proved errors, for functions of many components that share their nodes.

f is analytic in and on the ellipse with foci -1 and 1 whose half axes are (rho +- 1/rho) / 2, and |f| <= M there. Then
n >= 2 nodes miss its integral over [-1, 1] by no more than 64/15 M rho^(-2n) / (1 - rho^(-2)) (L. N. Trefethen, SIAM
Rev. 50 (2008) 67, theorem 4.5). M comes from balls that cover the ellipse; f is not finite on a ball on which it might
not be analytic, and an interval on which no ellipse will do is halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from flint import acb, arb, ctx

from ...base.errors import NotProvedError

_ELLIPSES = (4.0, 2.4)
_ACROSS, _UP = 6, 2  # balls that cover the upper half of an ellipse
_MOST_INTERVALS = 400

Integrand = Callable[[Any], Sequence[Any]]


def enclosed_integral(f: Integrand, tolerance: float) -> list[arb]:
    """The integrals over [-1, 1] of the components of a function that is real on the real axis.

    Args:
        f: arb or acb -> its components; not finite where it might not be analytic.
        tolerance: error allowed on an interval, beside that of the precision in force.

    Raises:
        NotProvedError: too many intervals.
    """
    most = 12 + int(-0.9 * math.log10(tolerance))
    total: list[arb] | None = None
    waiting, done = [(-1.0, 1.0)], 0
    while waiting:
        left, right = waiting.pop()
        done += 1
        if done > _MOST_INTERVALS or right - left < 1e-12:
            raise NotProvedError(f"an integral is not enclosed by {_MOST_INTERVALS} intervals")
        centre, half = arb((left + right) / 2), arb((right - left) / 2)
        part = _on_interval(f, centre, half, tolerance, most)
        if part is None:
            middle = (left + right) / 2
            waiting += [(left, middle), (middle, right)]
            continue
        total = part if total is None else [a + b for a, b in zip(total, part, strict=True)]
    assert total is not None
    return total


def _on_interval(f: Integrand, centre: arb, half: arb, tolerance: float, most: int) -> list[arb] | None:
    """With the first ellipse for which few enough nodes will do; None where there is none."""
    for rho in _ELLIPSES:
        bounds = _largest(f, centre, half, rho)
        largest = max(float(half * bound) for bound in bounds)
        if not largest < 1e300:
            continue
        needed = (math.log(5 * largest + tolerance) - math.log(tolerance)) / (2 * math.log(rho))
        if needed <= most:
            return _gauss(f, centre, half, max(2, math.ceil(needed)), rho, bounds)
    return None


def _largest(f: Integrand, centre: arb, half: arb, rho: float) -> list[arb]:
    """Bounds of the components on the upper half of an ellipse, which is covered by rectangles."""
    wide, high = (rho + 1 / rho) / 2, (rho - 1 / rho) / 2
    bounds: list[arb] | None = None
    for up in range(_UP):
        reach = wide * math.sqrt(1 - (up / _UP) ** 2) * (1 + 1e-12)
        imaginary = half * arb(high * (up + 0.5) / _UP, high * 0.5 / _UP * (1 + 1e-12))
        for step in range(_ACROSS):
            place = reach * (2 * (step + 0.5) / _ACROSS - 1)
            real = centre + half * arb(place, reach / _ACROSS * (1 + 1e-12))
            sizes = [arb(z.abs_upper()) for z in f(acb(real, imaginary))]
            if not all(size.is_finite() for size in sizes):
                return [arb.pos_inf()] * len(sizes)
            bounds = sizes if bounds is None else [max(a, b) for a, b in zip(bounds, sizes, strict=True)]
    assert bounds is not None
    return bounds


def _gauss(f: Integrand, centre: arb, half: arb, count: int, rho: float, bounds: list[arb]) -> list[arb]:
    total: list[arb] | None = None
    for node, weight in _nodes(count, ctx.prec):
        values = [half * weight * z for z in f(centre + half * node)]
        total = values if total is None else [a + b for a, b in zip(total, values, strict=True)]
    assert total is not None
    inside = arb(rho) ** -2
    missed = half * arb(64) / 15 * inside**count / (1 - inside)
    return [a + arb(0, (missed * bound).abs_upper()) for a, bound in zip(total, bounds, strict=True)]


@lru_cache(maxsize=256)
def _nodes(count: int, precision: int) -> tuple[tuple[arb, arb], ...]:
    """At the precision in force."""
    return tuple(arb.legendre_p_root(count, k, weight=True) for k in range(count))
