"""One-dimensional quadrature rules at the precision in force, and the panels of the two integrals of a channel.

Nodes on intervals are those of mpmath; equidistant ones cover a whole law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre, TanhSinh

from ...base.options import AlgorithmOptions

Nodes = tuple[tuple[Any, Any], ...]


@dataclass(frozen=True)
class PanelOptions(AlgorithmOptions):
    """Options of Gauss-Legendre panels.

    Attributes:
        max_width: standard deviations of omega that a panel may span; narrower needs more nodes, but converges faster.
    """

    max_width: float = 5


@lru_cache(maxsize=64)
def gauss_legendre(degree: int, precision: int) -> Nodes:
    """Return 3 * 2^(degree - 1) Gauss-Legendre nodes and weights on [-1, 1].

    Args:
        degree: level of the rule.
        precision: precision in bits.
    """
    return tuple(GaussLegendre(mp).calc_nodes(degree, precision))


@lru_cache(maxsize=64)
def tanh_sinh(degree: int, precision: int) -> Nodes:
    """Return nodes and weights of the double exponential rule with steps of 2^-degree on [-1, 1].

    Args:
        degree: level of the rule.
        precision: precision in bits.
    """
    step = mpf(2) ** -degree
    rule = TanhSinh(mp)
    # For every degree mpmath lists its additional nodes.
    return tuple((x, step * w) for d in range(1, degree + 1) for x, w in rule.calc_nodes(d, precision))


def nodes_on_panels(nodes: Nodes, panels: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield nodes and weights of a rule on [-1, 1], mapped to intervals.

    Args:
        nodes: nodes and weights of the rule.
        panels: the intervals.
    """
    for low, high in panels:
        middle, half = (low + high) / 2, (high - low) / 2
        for x, w in nodes:
            yield middle + half * x, half * w


def equidistant_nodes(low: Any, high: Any, count: int) -> Iterator[tuple[Any, Any]]:
    """Yield nodes and weights of the trapezoid rule for an integrand that vanishes at both ends.

    It converges geometrically for analytic integrands.

    Args:
        low: lower end.
        high: upper end.
        count: number of nodes.
    """
    step = (high - low) / (count - 1)
    for k in range(count):
        yield low + k * step, step


@dataclass(frozen=True)
class Rule:
    """A quadrature rule for X and the combination f.

    Attributes:
        second: whether it is the second of two independent rules.
            False: Gauss-Legendre on panels in X and, between steps, in f; equidistant nodes in f without steps.
            True: tanh-sinh between kinks, or equidistant nodes, in X; Gauss-Legendre or tanh-sinh in f.
        level: level of refinement; each doubles the nodes.
    """

    second: bool
    level: int

    def describe(self, kinked: bool) -> dict[str, Any]:
        """Return the name of the rule in X and its size: nodes a panel, steps to one, or all nodes."""
        if not self.second:
            return {"rule": "gauss-legendre", "points": 3 * 2 ** (self.level - 1), "seed": None}
        if kinked:
            return {"rule": "tanh-sinh", "points": 2 ** (self.level + 1), "seed": None}
        return {"rule": "trapezoid", "points": self._equidistant, "seed": None}

    @property
    def _equidistant(self) -> int:
        return 24 * 2 ** (self.level - 1)

    def nodes_in_x(
        self, low: Any, high: Any, kinks: list[Any], omega: Callable[[Any], Any], spread: Any, ended: bool = False
    ) -> Iterator[Any]:
        """Yield nodes in X on [low, high].

        Args:
            low: lower end.
            high: upper end.
            kinks: kinks of the loss.
            omega: function of X.
            spread: standard deviation of omega.
            ended: whether the integrand does not vanish at the ends.
        """
        edges = [low, *[kink for kink in kinks if low < kink < high], high]
        if not self.second:
            return self._panel_nodes(edges, omega, spread)
        if len(edges) == 2 and not ended:
            return equidistant_nodes(low, high, self._equidistant)
        return nodes_on_panels(tanh_sinh(self.level + 1, mp.prec), pairwise(edges))

    def nodes_in_f(self, low: Any, high: Any, steps: list[Any], spread: Any) -> Iterator[Any]:
        """Yield nodes in the combination f on [low, high].

        Args:
            low: lower end.
            high: upper end.
            steps: discontinuities.
            spread: standard deviation of f.
        """
        edges = [low, *[step for step in steps if low < step < high], high]
        if len(edges) == 2 and not self.second:
            return equidistant_nodes(low, high, 6 * 2 ** (self.level - 1))
        if len(edges) == 2 or not self.second:
            return self._panel_nodes(edges, lambda f: f, spread)
        return nodes_on_panels(tanh_sinh(self.level + 1, mp.prec), pairwise(edges))

    def _panel_nodes(self, edges: list[Any], growing_function: Callable[[Any], Any], spread: Any) -> Iterator[Any]:
        return nodes_on_panels(
            gauss_legendre(self.level, mp.prec),
            _split_into_panels(edges, growing_function, PanelOptions.current().max_width * spread),
        )


def _split_into_panels(
    edges: list[Any], growing_function: Callable[[Any], Any], width: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield panels between the edges over which an increasing function grows by about the width at most."""
    for left, right in pairwise(edges):
        first, last = growing_function(left), growing_function(right)
        count = int(mp.ceil((last - first) / width))
        inner = [
            solve_increasing(growing_function, first + (last - first) * k / count, left, right, width / 20)
            for k in range(1, count)
        ]
        yield from pairwise([left, *inner, right])


def solve_increasing(growing: Callable[[Any], Any], target: Any, low: Any, high: Any, tolerance: Any) -> Any:
    """Return about the point at which an increasing function has a given value, by regula falsi (Illinois).

    Args:
        growing: the function.
        target: its value.
        low: lower point.
        high: upper point.
        tolerance: allowed error of the value.
    """
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
