"""Averages over the channel of one token in mpmath, by two independent quadrature rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mpmath import mp, mpf

from ...base.errors import InputError
from ...base.options import AlgorithmOptions
from ...problems.overlaps import Overlaps
from .channel import Channel, Given, Law, Summands, componentwise_sum, inner_point
from .numbers import Numbers
from .quadrature import Rule


@dataclass(frozen=True)
class ConvexityOptions(AlgorithmOptions):
    """Options of the check that the Moreau objective is convex.

    Attributes:
        outer_points: points beyond the nodes, on either side, at which it is checked.
    """

    outer_points: int = 12


class RuleChannel(Channel[Rule]):
    """A channel whose averages are computed by a quadrature rule, at the precision in force."""

    def __init__(self, numbers: Numbers, overlaps: Overlaps):
        super().__init__(numbers, overlaps, numbers.problem.solver.reference, mpf)
        self.reach = mp.sqrt(2 * mp.log(10) * (mp.dps + 2))

    def is_positive(self, number: Any) -> bool:
        """Return whether an mpf is positive."""
        return number > 0

    def sort_real(self, places: Iterable[Any]) -> list[Any]:
        """Return the real and finite points in ascending order."""
        return sorted(mpf(z) for z in map(mp.mpmathify, places) if mp.im(z) == 0 and mp.isfinite(z))

    def moments(self, g: Any, given: Given, c: tuple[Any, ...]) -> Sequence[Any]:
        """Return the moments at a node, as generated: its weight contains P.

        Args:
            g: negative slope of the loss.
            given: P and conditional means.
            c: constants.
        """
        _, dw, dy = given
        return self.module.moments(g, dw, dy, c)

    def average(
        self, name: str, label: int, V: Any, c: tuple[Any, ...], summands: Summands, integration: Rule
    ) -> list[Any]:
        """Return averages as sums over nodes.

        Args:
            name: loss or metric.
            label: label of the token.
            V: variance.
            c: constants.
            summands: integrands.
            integration: quadrature rule.

        Raises:
            InputError: the Moreau objective has competing minima.
        """
        total, one = None, mpf(1)
        for weight, dw, dy, (value, slope, curvature) in self._nodes(
            name, self._law(name, label, c), V, c, integration
        ):
            total = componentwise_sum(total, summands(weight, value, slope, curvature, (one, dw, dy)))
        assert total is not None
        return total

    def _nodes(self, name: str, law: Law, V: Any, c: tuple[Any, ...], rule: Rule) -> Iterator[tuple[Any, ...]]:
        """Yield weight, omega - m, E[Y - m*], and value, slope and curvature of the loss, or of the metric."""
        drive = self.module.DRIVES[name]
        if drive == "smooth":
            spread = mp.sqrt(law.f_variance)
            ends = law.f_mean - self.reach * spread, law.f_mean + self.reach * spread
            steps = self.sort_real(getattr(self.module, f"{name}_steps")(c))
            for f, weight in rule.nodes_in_f(*ends, steps, spread):
                weight *= mp.npdf(f, law.f_mean, spread)
                mean, variance = law.given_f(f)
                for probability, y, u in self._representatives(law, f, c):
                    for inner_weight, omega, shape in self._nodes_given_f(name, V, rule, mean, variance, y, u, c):
                        dw = omega - law.m
                        yield (
                            weight * probability * inner_weight,
                            dw,
                            law.conditional_teacher_mean(dw, f - law.f_mean),
                            shape,
                        )
            return
        for low, high in self._step_intervals(name, c):
            for probability, y, u in self._representatives(law, inner_point(low, high), c):
                for inner_weight, omega, shape in self._nodes_given_f(name, V, rule, law.m, law.q, y, u, c):
                    dw = omega - law.m
                    part, dy = (
                        law.given_interval(dw, low, high) if drive == "steps" else (mpf(1), law.theta / law.q * dw)
                    )
                    yield probability * part * inner_weight, dw, dy, shape

    def _nodes_given_f(
        self, name: str, V: Any, rule: Rule, mean: Any, variance: Any, y: Any, u: tuple[Any, ...], c: tuple[Any, ...]
    ) -> Iterator[tuple[Any, Any, tuple[Any, Any, Any]]]:
        """Yield nodes in X for omega ~ N(mean, variance): weight, omega, and value, slope and curvature."""
        probes = ConvexityOptions.current().outer_points
        spread, zero = mp.sqrt(variance), mpf(0)
        kinks = self.sort_real(getattr(self.module, f"{name}_kinks")(y, *u, c))
        features = self.module.features(y, *u, c) if name == "loss" else ()

        def derivatives_at(x: Any) -> tuple[Any, Any, Any]:
            return self.module.derivatives(x, x, zero, *features, c) if name == "loss" else (zero, zero, zero)

        def omega(x: Any) -> Any:
            return x + V * derivatives_at(x)[1]

        def _checked_stretch(x: Any, curvature: Any) -> Any:
            if not 1 + V * curvature > 0:
                raise InputError(
                    f"{self.numbers.problem.solver.name}: at X = {mp.nstr(x, 6)}, Y = {mp.nstr(y, 6)} the Moreau "
                    "objective is not convex, so that minima may compete; high precision is for unique minima only"
                )
            return 1 + V * curvature

        low, high = (self._truncation_point(omega, mean, spread, side) for side in (-1, 1))
        for end, side in ((low, -1), (high, 1)) if V else ():
            # The loss is not negative, which bounds the distance of another minimum from omega.
            value, slope, _ = derivatives_at(end)
            furthest = omega(end) + side * mp.sqrt(2 * V * value + (V * slope) ** 2)
            for k in range(probes) if side * (furthest - end) > 0 else ():
                x = end + (furthest - end) * k / probes
                _checked_stretch(x, derivatives_at(x)[2])
        for x, weight in rule.nodes_in_x(low, high, kinks, omega, spread):
            value, slope, curvature = derivatives_at(x)
            inverse = _checked_stretch(x, curvature)
            w = x + V * slope
            if name == "metric":
                (value,) = self.metric(x, y, *u, c)
            yield weight * inverse * mp.npdf(w, mean, spread), w, (value, slope, curvature)
        if name == "loss" and self.module.CORNERS:
            for kink, lower, upper in self._corners(kinks, features, c):

                def _field(slope: Any, kink: Any = kink) -> Any:
                    return kink + V * slope

                for slope, weight in rule.nodes_in_x(lower, upper, [], _field, spread, ended=True):
                    w = _field(slope)
                    if abs(w - mean) < self.reach * spread:
                        yield weight * V * mp.npdf(w, mean, spread), w, (derivatives_at(kink)[0], slope, None)

    def _corners(self, kinks: Sequence[Any], features: Sequence[Any], c: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield kinks at which the slope of the loss jumps up, with the slopes on both sides.

        Raises:
            InputError: it jumps down, or the loss itself jumps: minima compete.
        """
        edges = [None, *kinks, None]
        for before, kink, after in zip(edges, kinks, edges[2:], strict=False):
            left, lower, _ = self.module.piece(kink, inner_point(before, kink), *features, c)
            right, upper, _ = self.module.piece(kink, inner_point(kink, after), *features, c)
            small = mp.mpf(10) ** (8 - mp.dps)
            if abs(left - right) > small * (1 + abs(left)) or lower - upper > small * (1 + abs(lower)):
                raise InputError(
                    f"{self.numbers.problem.solver.name}: at X = {mp.nstr(kink, 6)} the loss jumps, or its slope "
                    "falls, so that minima may compete; high precision is for unique minima only"
                )
            if upper - lower > small * (1 + abs(lower)):
                yield kink, lower, upper

    def _truncation_point(self, omega: Callable[[Any], Any], mean: Any, spread: Any, side: int) -> Any:
        """Return the X beyond which the law of omega is negligible at the precision in force."""
        target = mean + side * self.reach * spread

        def excess(x: Any) -> Any:
            return side * (omega(x) - target)

        inner = outer = mean
        step = spread
        while excess(inner) >= 0:
            inner, step = inner - side * step, 2 * step
        step = spread
        while excess(outer) < 0:
            outer, step = outer + side * step, 2 * step
        for _ in range(40):
            if excess(outer) < spread:
                break
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if excess(middle) >= 0 else (middle, outer)
        return outer
