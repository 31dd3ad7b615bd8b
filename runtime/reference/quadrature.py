"""One-dimensional rules at the precision in force: nodes of mpmath on intervals, equidistant ones across a law."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre, TanhSinh

Nodes = tuple[tuple[Any, Any], ...]


def gauss_legendre(degree: int) -> Nodes:
    """3 * 2^(degree - 1) nodes and weights on [-1, 1]."""
    return _gauss_legendre(degree, mp.prec)


def tanh_sinh(degree: int) -> Nodes:
    """The double exponential rule with steps of 2^-degree on [-1, 1]."""
    return _tanh_sinh(degree, mp.prec)


@lru_cache(maxsize=64)
def _gauss_legendre(degree: int, precision: int) -> Nodes:
    return tuple(GaussLegendre(mp).calc_nodes(degree, precision))


@lru_cache(maxsize=64)
def _tanh_sinh(degree: int, precision: int) -> Nodes:
    step = mpf(2) ** -degree
    rule = TanhSinh(mp)
    # For every degree mpmath lists what is new in it.
    return tuple((x, step * w) for d in range(1, degree + 1) for x, w in rule.calc_nodes(d, precision))


def on_interval(nodes: Nodes, low: Any, high: Any) -> Iterator[tuple[Any, Any]]:
    """A rule on [-1, 1] moved to [low, high]."""
    middle, half = (low + high) / 2, (high - low) / 2
    for x, w in nodes:
        yield middle + half * x, half * w


def equidistant(low: Any, high: Any, count: int) -> Iterator[tuple[Any, Any]]:
    """The trapezoid rule for what vanishes at both ends; it converges geometrically if that is analytic."""
    step = (high - low) / (count - 1)
    for k in range(count):
        yield low + k * step, step
