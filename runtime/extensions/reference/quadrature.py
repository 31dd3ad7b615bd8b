"""One-dimensional rules at the precision in force: nodes of mpmath on intervals, equidistant ones across a law, and how
the two integrals of a channel are split into panels for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre, TanhSinh

Nodes = tuple[tuple[Any, Any], ...]

_PANEL = 5  # standard deviations of omega that a Gauss-Legendre panel may span


@lru_cache(maxsize=64)
def gauss_legendre(degree: int, precision: int) -> Nodes:
    """3 * 2^(degree - 1) nodes and weights on [-1, 1], to a precision in bits."""
    return tuple(GaussLegendre(mp).calc_nodes(degree, precision))


@lru_cache(maxsize=64)
def tanh_sinh(degree: int, precision: int) -> Nodes:
    """The double exponential rule with steps of 2^-degree on [-1, 1], to a precision in bits."""
    step = mpf(2) ** -degree
    rule = TanhSinh(mp)
    # For every degree mpmath lists what is new in it.
    return tuple((x, step * w) for d in range(1, degree + 1) for x, w in rule.calc_nodes(d, precision))


def nodes_on_panels(nodes: Nodes, panels: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """A rule on [-1, 1] moved to intervals, one after the other."""
    for low, high in panels:
        middle, half = (low + high) / 2, (high - low) / 2
        for x, w in nodes:
            yield middle + half * x, half * w


def equidistant_nodes(low: Any, high: Any, count: int) -> Iterator[tuple[Any, Any]]:
    """The trapezoid rule for what vanishes at both ends; it converges geometrically if that is analytic."""
    step = (high - low) / (count - 1)
    for k in range(count):
        yield low + k * step, step


@dataclass(frozen=True)
class Rule:
    """A rule for X and the combination f.

    Attributes:
        second: which of two that are independent of each other.
            False: Gauss-Legendre on panels in X and, between steps, in f; equidistant nodes in f without steps.
            True: tanh-sinh between kinks, or equidistant nodes, in X; Gauss-Legendre or tanh-sinh in f.
        level: doubles the nodes.
    """

    second: bool
    level: int

    def describe(self, kinked: bool) -> dict[str, Any]:
        """Name of the rule in X and its size: nodes a panel, steps to one, or nodes in all."""
        if not self.second:
            return {"rule": "gauss-legendre", "points": 3 * 2 ** (self.level - 1), "seed": None}
        if kinked:
            return {"rule": "tanh-sinh", "points": 2 ** (self.level + 1), "seed": None}
        return {"rule": "trapezoid", "points": self._equidistant, "seed": None}

    @property
    def _equidistant(self) -> int:
        return 24 * 2 ** (self.level - 1)

    def in_x(
        self, low: Any, high: Any, kinks: list[Any], omega: Callable[[Any], Any], spread: Any, ended: bool = False
    ) -> Iterator[Any]:
        """Nodes in X on [low, high], at whose ends nothing is left of omega's law, unless it is ended there."""
        edges = [low, *[kink for kink in kinks if low < kink < high], high]
        if not self.second:
            return self._smooth(edges, omega, spread)
        if len(edges) == 2 and not ended:
            return equidistant_nodes(low, high, self._equidistant)
        return nodes_on_panels(tanh_sinh(self.level + 1, mp.prec), pairwise(edges))

    def in_f(self, low: Any, high: Any, steps: list[Any], spread: Any) -> Iterator[Any]:
        """Nodes in the combination on [low, high]."""
        edges = [low, *[step for step in steps if low < step < high], high]
        if len(edges) == 2 and not self.second:
            return equidistant_nodes(low, high, 6 * 2 ** (self.level - 1))
        if len(edges) == 2 or not self.second:
            return self._smooth(edges, lambda f: f, spread)
        return nodes_on_panels(tanh_sinh(self.level + 1, mp.prec), pairwise(edges))

    def _smooth(self, edges: list[Any], along: Callable[[Any], Any], spread: Any) -> Iterator[Any]:
        return nodes_on_panels(gauss_legendre(self.level, mp.prec), _split(edges, along, _PANEL * spread))


def _split(edges: list[Any], along: Callable[[Any], Any], width: Any) -> Iterator[tuple[Any, Any]]:
    """Panels between the edges over which a growing function grows by no more than the width, about."""
    for left, right in pairwise(edges):
        first, last = along(left), along(right)
        count = int(mp.ceil((last - first) / width))
        inner = [
            where_reached(along, first + (last - first) * k / count, left, right, width / 20) for k in range(1, count)
        ]
        yield from pairwise([left, *inner, right])


def where_reached(growing: Callable[[Any], Any], target: Any, low: Any, high: Any, tolerance: Any) -> Any:
    """Where a growing function has a value, about, between two places; by regula falsi (Illinois)."""
    below, above = growing(low) - target, growing(high) - target
    middle, side = low, 0
    for _ in range(60):
        middle = (low * above - high * below) / (above - below) if above != below else (low + high) / 2
        found = growing(middle) - target
        if abs(found) < tolerance:
            break
        if found < 0:
            low, below, above = middle, found, above / 2 if side == -1 else above
            side = -1
        else:
            high, above, below = middle, found, below / 2 if side == 1 else below
            side = 1
    return middle
