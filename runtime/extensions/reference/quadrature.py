"""One-dimensional quadrature rules at any precision, and the panels of the two integrals of a channel average.

Gauss-Legendre and tanh-sinh nodes are those of mpmath; trapezoid nodes cover the whole range of a Gaussian variable.
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
    """Options of Gauss-Legendre quadrature on panels.

    Attributes:
        max_width: largest width of a panel, in standard deviations of the Gaussian field; narrower panels need more
            nodes, but converge faster.
    """

    max_width: float = 5


@lru_cache(maxsize=64)
def gauss_legendre_nodes(degree: int, precision: int) -> Nodes:
    """Return nodes and weights of the Gauss-Legendre rule with 3 * 2^(degree - 1) nodes on [-1, 1].

    Args:
        degree: refinement level of the rule.
        precision: precision in bits.
    """
    return tuple(GaussLegendre(mp).calc_nodes(degree, precision))


@lru_cache(maxsize=64)
def tanh_sinh_nodes(degree: int, precision: int) -> Nodes:
    """Return nodes and weights on [-1, 1] of the tanh-sinh (double exponential) rule with step 2^-degree.

    Args:
        degree: refinement level of the rule.
        precision: precision in bits.
    """
    step = mpf(2) ** -degree
    rule = TanhSinh(mp)
    # For every degree mpmath lists its additional nodes.
    return tuple((x, step * w) for d in range(1, degree + 1) for x, w in rule.calc_nodes(d, precision))


def map_nodes_to_panels(nodes: Nodes, panels: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield nodes and weights of a quadrature rule on [-1, 1] after a linear map to each of several intervals.

    Args:
        nodes: nodes and weights of the rule.
        panels: intervals that the nodes are mapped to.
    """
    for low, high in panels:
        middle, half = (low + high) / 2, (high - low) / 2
        for x, w in nodes:
            yield middle + half * x, half * w


def trapezoid_nodes(low: Any, high: Any, count: int) -> Iterator[tuple[Any, Any]]:
    """Yield nodes and weights of the trapezoid rule for an integrand that vanishes at both ends.

    The rule converges geometrically for analytic integrands.

    Args:
        low: lower end of the interval.
        high: upper end of the interval.
        count: number of nodes.
    """
    step = (high - low) / (count - 1)
    for k in range(count):
        yield low + k * step, step


@dataclass(frozen=True)
class QuadratureRule:
    """A quadrature rule, at any precision, for averages over the proximal field and the noisy teacher field.

    Attributes:
        second: whether it is the second of two independent rules: tanh-sinh between kinks of the loss, in place of
            Gauss-Legendre on panels; without kinks trapezoid.
        level: refinement level; each level doubles the nodes.
    """

    second: bool
    level: int

    def describe_quadrature_rule(self, kinked: bool) -> dict[str, Any]:
        """Return the name and the number of nodes of the quadrature rule in the proximal field, for a report.

        `kinked` is whether the loss has kinks.
        """
        if not self.second:
            return {"rule": "gauss-legendre", "points": 3 * 2 ** (self.level - 1), "seed": None}
        if kinked:
            return {"rule": "tanh-sinh", "points": 2 ** (self.level + 1), "seed": None}
        return {"rule": "trapezoid", "points": self._trapezoid_node_count, "seed": None}

    @property
    def _trapezoid_node_count(self) -> int:
        return 24 * 2 ** (self.level - 1)

    def quadrature_nodes_in_proximal_field(
        self, low: Any, high: Any, kinks: list[Any], omega: Callable[[Any], Any], spread: Any, ended: bool = False
    ) -> Iterator[Any]:
        """Yield quadrature nodes and weights on an interval of the proximal field (minimiser of loss plus proximity).

        Args:
            low: lower end of the interval.
            high: upper end of the interval.
            kinks: kinks of the loss.
            omega: increasing function that returns the Gaussian field whose proximal field is given.
            spread: standard deviation of this Gaussian field.
            ended: whether the integrand is non-zero at the ends of the interval.
        """
        edges = [low, *[kink for kink in kinks if low < kink < high], high]
        if not self.second:
            return self._gauss_legendre_nodes_on_panels(edges, omega, spread)
        if len(edges) == 2 and not ended:
            return trapezoid_nodes(low, high, self._trapezoid_node_count)
        return map_nodes_to_panels(tanh_sinh_nodes(self.level + 1, mp.prec), pairwise(edges))

    def quadrature_nodes_in_noisy_teacher(self, low: Any, high: Any, steps: list[Any], spread: Any) -> Iterator[Any]:
        """Yield quadrature nodes and weights in the noisy teacher field (teacher field plus noise) on an interval.

        Args:
            low: lower end of the interval.
            high: upper end of the interval.
            steps: discontinuities of the integrand in this field.
            spread: standard deviation of the field.
        """
        edges = [low, *[step for step in steps if low < step < high], high]
        if len(edges) == 2 and not self.second:
            return trapezoid_nodes(low, high, 6 * 2 ** (self.level - 1))
        if len(edges) == 2 or not self.second:
            return self._gauss_legendre_nodes_on_panels(edges, lambda f: f, spread)
        return map_nodes_to_panels(tanh_sinh_nodes(self.level + 1, mp.prec), pairwise(edges))

    def _gauss_legendre_nodes_on_panels(
        self, edges: list[Any], growing_function: Callable[[Any], Any], spread: Any
    ) -> Iterator[Any]:
        return map_nodes_to_panels(
            gauss_legendre_nodes(self.level, mp.prec),
            _split_intervals_into_panels(edges, growing_function, PanelOptions.current().max_width * spread),
        )


def _split_intervals_into_panels(
    edges: list[Any], growing_function: Callable[[Any], Any], width: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield parts of given intervals such that an increasing function grows by at most a given width on each."""
    for left, right in pairwise(edges):
        first, last = growing_function(left), growing_function(right)
        count = int(mp.ceil((last - first) / width))
        inner = [
            root_by_regula_falsi(growing_function, first + (last - first) * k / count, left, right, width / 20)
            for k in range(1, count)
        ]
        yield from pairwise([left, *inner, right])


def root_by_regula_falsi(growing: Callable[[Any], Any], target: Any, low: Any, high: Any, tolerance: Any) -> Any:
    """Return an approximate point at which an increasing function has a given value, by regula falsi (Illinois).

    Args:
        growing: increasing function.
        target: value of the function at the point.
        low: point below.
        high: point above.
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
