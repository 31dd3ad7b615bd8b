"""Averages over the channel of one token in mpmath, by rules that are independent of each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mpmath import mp, mpf

from ...base.errors import InputError
from ...problems.overlaps import Overlaps
from .channel import Channel, Given, Law, Summands, componentwise_sum, inner_point
from .numbers import Numbers
from .quadrature import Rule

_PROBES = 12  # places beyond the nodes, on either side, at which the Moreau objective must be convex


class RuleChannel(Channel[Rule]):
    """Averages of one problem by a rule, at the precision in force."""

    def __init__(self, numbers: Numbers, overlaps: Overlaps):
        super().__init__(numbers, overlaps, numbers.problem.solver.reference, mpf)
        self.reach = mp.sqrt(2 * mp.log(10) * (mp.dps + 2))

    def positive(self, number: Any) -> bool:
        """Of an mpf it is always known."""
        return number > 0

    def ordered(self, places: Iterable[Any]) -> list[Any]:
        """Those that are real and finite, from left to right."""
        return sorted(mpf(z) for z in map(mp.mpmathify, places) if mp.im(z) == 0 and mp.isfinite(z))

    def moments(self, g: Any, given: Given, c: tuple[Any, ...]) -> Sequence[Any]:
        """As printed: the weight of a node holds P."""
        _, dw, dy = given
        return self.module.moments(g, dw, dy, c)

    def average(self, name: str, label: int, V: Any, c: tuple[Any, ...], summands: Summands, how: Rule) -> list[Any]:
        """Sums over nodes.

        Raises:
            InputError: the Moreau objective has competing minima.
        """
        total, one = None, mpf(1)
        for weight, dw, dy, (value, slope, curvature) in self._nodes(name, self._law(name, label, c), V, c, how):
            total = componentwise_sum(total, summands(weight, value, slope, curvature, (one, dw, dy)))
        assert total is not None
        return total

    def _nodes(self, name: str, law: Law, V: Any, c: tuple[Any, ...], rule: Rule) -> Iterator[tuple[Any, ...]]:
        """Weight, omega - m, E[Y - m*], and value, slope and curvature of the loss, or of the metric."""
        drive = self.module.DRIVES[name]
        if drive == "smooth":
            spread = mp.sqrt(law.f_variance)
            ends = law.f_mean - self.reach * spread, law.f_mean + self.reach * spread
            steps = self.ordered(getattr(self.module, f"{name}_steps")(c))
            for f, weight in rule.in_f(*ends, steps, spread):
                weight *= mp.npdf(f, law.f_mean, spread)
                mean, variance = law.given_f(f)
                for share, y, u in self._standing(law, f, c):
                    for own, omega, shape in self._points(name, V, rule, mean, variance, y, u, c):
                        dw = omega - law.m
                        yield weight * share * own, dw, law.teacher(dw, f - law.f_mean), shape
            return
        for low, high in self._pieces(name, c):
            for share, y, u in self._standing(law, inner_point(low, high), c):
                for own, omega, shape in self._points(name, V, rule, law.m, law.q, y, u, c):
                    dw = omega - law.m
                    part, dy = law.between(dw, low, high) if drive == "steps" else (mpf(1), law.theta / law.q * dw)
                    yield share * part * own, dw, dy, shape

    def _points(
        self, name: str, V: Any, rule: Rule, mean: Any, variance: Any, y: Any, u: tuple[Any, ...], c: tuple[Any, ...]
    ) -> Iterator[tuple[Any, Any, tuple[Any, Any, Any]]]:
        """Nodes in X for omega ~ N(mean, variance): weight, omega, and value, slope and curvature."""
        spread, zero = mp.sqrt(variance), mpf(0)
        kinks = self.ordered(getattr(self.module, f"{name}_kinks")(y, *u, c))
        features = self.module.features(y, *u, c) if name == "loss" else ()

        def at(x: Any) -> tuple[Any, Any, Any]:
            return self.module.derivatives(x, x, zero, *features, c) if name == "loss" else (zero, zero, zero)

        def omega(x: Any) -> Any:
            return x + V * at(x)[1]

        def stretch(x: Any, curvature: Any) -> Any:
            if not 1 + V * curvature > 0:
                raise InputError(
                    f"{self.numbers.problem.solver.name}: at X = {mp.nstr(x, 6)}, Y = {mp.nstr(y, 6)} the Moreau "
                    "objective is not convex, so that minima may compete; high precision is for unique minima only"
                )
            return 1 + V * curvature

        low, high = (self._end(omega, mean, spread, way) for way in (-1, 1))
        for end, way in ((low, -1), (high, 1)) if V else ():
            # The loss is not negative: another minimum is no further from omega than this.
            value, slope, _ = at(end)
            furthest = omega(end) + way * mp.sqrt(2 * V * value + (V * slope) ** 2)
            for k in range(_PROBES) if way * (furthest - end) > 0 else ():
                x = end + (furthest - end) * k / _PROBES
                stretch(x, at(x)[2])
        for x, weight in rule.in_x(low, high, kinks, omega, spread):
            value, slope, curvature = at(x)
            inverse = stretch(x, curvature)
            w = x + V * slope
            if name == "metric":
                (value,) = self.metric(x, y, *u, c)
            yield weight * inverse * mp.npdf(w, mean, spread), w, (value, slope, curvature)
        if name == "loss" and self.module.CORNERS:
            for kink, lower, upper in self._corners(kinks, features, c):

                def field(slope: Any, kink: Any = kink) -> Any:
                    return kink + V * slope

                for slope, weight in rule.in_x(lower, upper, [], field, spread, ended=True):
                    w = field(slope)
                    if abs(w - mean) < self.reach * spread:
                        yield weight * V * mp.npdf(w, mean, spread), w, (at(kink)[0], slope, None)

    def _corners(self, kinks: Sequence[Any], features: Sequence[Any], c: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Kinks at which the slope of the loss jumps up, with the slopes on both sides.

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

    def _end(self, omega: Callable[[Any], Any], mean: Any, spread: Any, way: int) -> Any:
        """X beyond which the law of omega holds nothing at the precision in force."""
        target = mean + way * self.reach * spread

        def beyond(x: Any) -> Any:
            return way * (omega(x) - target)

        inner = outer = mean
        step = spread
        while beyond(inner) >= 0:
            inner, step = inner - way * step, 2 * step
        step = spread
        while beyond(outer) < 0:
            outer, step = outer + way * step, 2 * step
        for _ in range(40):
            if beyond(outer) < spread:
                break
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if beyond(middle) >= 0 else (middle, outer)
        return outer
