"""Channel averages of a model with one token in mpmath, by two independent quadrature rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mpmath import mp, mpf

from ...base.errors import InputError
from ...base.options import AlgorithmOptions
from ...problems.overlaps import Overlaps
from .channel import ChannelAverages, GaussianFieldLaw, Given, Summands, componentwise_sum, point_inside_interval
from .numbers import PreciseParameters
from .quadrature import QuadratureRule


@dataclass(frozen=True)
class ConvexityOptions(AlgorithmOptions):
    """Options of the check that the Moreau objective (loss plus quadratic proximity) is convex.

    Attributes:
        outer_points: number of points beyond the nodes, on either side, at which convexity is checked.
    """

    outer_points: int = 12


class QuadratureChannelAverages(ChannelAverages[QuadratureRule]):
    """Averages over the joint law of student and teacher fields by quadrature in mpmath, at its current precision."""

    def __init__(self, numbers: PreciseParameters, overlaps: Overlaps):
        super().__init__(numbers, overlaps, numbers.problem.solver.multiprecision_functions, mpf)
        self.reach = mp.sqrt(2 * mp.log(10) * (mp.dps + 2))

    def is_positive(self, number: Any) -> bool:
        """Return whether a number is positive."""
        return number > 0

    def sort_real_points(self, places: Iterable[Any]) -> list[Any]:
        """Return those of some numbers that are real and finite, in ascending order."""
        return sorted(mpf(z) for z in map(mp.mpmathify, places) if mp.im(z) == 0 and mp.isfinite(z))

    def moment_integrands_at_node(self, g: Any, given: Given, c: tuple[Any, ...]) -> Sequence[Any]:
        """Return, at one quadrature node, the integrands of averages that determine the conjugates of the overlaps.

        Args:
            g: negative derivative of the loss in its field.
            given: one, and the conditional means of the student's and the teacher's field.
            c: constants of the loss.
        """
        _, dw, dy = given
        return self.module.moments(g, dw, dy, c)

    def average_integrands(
        self, name: str, label: int, V: Any, c: tuple[Any, ...], summands: Summands, integration: QuadratureRule
    ) -> list[Any]:
        """Return the averages of several integrands over the law of the fields, as sums over quadrature nodes.

        Args:
            name: "loss" or "metric", whose kinks split the integrals.
            label: cluster label of the token.
            V: overlap V.
            c: constants of the loss.
            summands: function that returns the integrands, see `Summands`.
            integration: quadrature rule.

        Raises:
            InputError: the Moreau objective has competing minima.
        """
        total, one = None, mpf(1)
        for weight, dw, dy, (value, slope, curvature) in self._iterate_channel_nodes(
            name, self._gaussian_law_of_fields(name, label, c), V, c, integration
        ):
            total = componentwise_sum(total, summands(weight, value, slope, curvature, (one, dw, dy)))
        assert total is not None
        return total

    def _iterate_channel_nodes(
        self, name: str, law: GaussianFieldLaw, V: Any, c: tuple[Any, ...], rule: QuadratureRule
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the quadrature nodes of an average over the law of the fields.

        A node has a weight, the student's field less its mean, the teacher's conditional mean field less its mean, and
        the loss (or metric) with two derivatives.
        """
        drive = self.module.DRIVES[name]
        if drive == "smooth":
            spread = mp.sqrt(law.noisy_teacher_variance)
            ends = law.noisy_teacher_mean - self.reach * spread, law.noisy_teacher_mean + self.reach * spread
            steps = self.sort_real_points(getattr(self.module, f"{name}_steps")(c))
            for f, weight in rule.quadrature_nodes_in_noisy_teacher(*ends, steps, spread):
                weight *= mp.npdf(f, law.noisy_teacher_mean, spread)
                mean, variance = law.omega_moments_given_noisy_teacher(f)
                for probability, y, u in self._teacher_and_noise_with_sum(law, f, c):
                    for inner_weight, omega, shape in self._proximal_field_nodes(
                        name, V, rule, mean, variance, y, u, c
                    ):
                        dw = omega - law.m
                        yield (
                            weight * probability * inner_weight,
                            dw,
                            law.conditional_teacher_mean(dw, f - law.noisy_teacher_mean),
                            shape,
                        )
            return
        for low, high in self._intervals_between_loss_jumps(name, c):
            for probability, y, u in self._teacher_and_noise_with_sum(law, point_inside_interval(low, high), c):
                for inner_weight, omega, shape in self._proximal_field_nodes(name, V, rule, law.m, law.q, y, u, c):
                    dw = omega - law.m
                    part, dy = (
                        law.interval_probability_and_teacher_mean(dw, low, high)
                        if drive == "steps"
                        else (mpf(1), law.theta / law.q * dw)
                    )
                    yield probability * part * inner_weight, dw, dy, shape

    def _proximal_field_nodes(
        self,
        name: str,
        V: Any,
        rule: QuadratureRule,
        mean: Any,
        variance: Any,
        y: Any,
        u: tuple[Any, ...],
        c: tuple[Any, ...],
    ) -> Iterator[tuple[Any, Any, tuple[Any, Any, Any]]]:
        """Yield nodes in the proximal field X (minimiser of loss plus proximity) for a Gaussian field omega.

        A node has a weight, the value of omega, and the loss (or metric) at X with two derivatives.
        """
        probes = ConvexityOptions.current().outer_points
        spread, zero = mp.sqrt(variance), mpf(0)
        kinks = self.sort_real_points(getattr(self.module, f"{name}_kinks")(y, *u, c))
        features = self.module.features(y, *u, c) if name == "loss" else ()

        def _loss_derivatives(x: Any) -> tuple[Any, Any, Any]:
            return self.module.derivatives(x, x, zero, *features, c) if name == "loss" else (zero, zero, zero)

        def _omega_of_field(x: Any) -> Any:
            return x + V * _loss_derivatives(x)[1]

        def _checked_omega_derivative(x: Any, curvature: Any) -> Any:
            if not 1 + V * curvature > 0:
                raise InputError(
                    f"{self.numbers.problem.solver.name}: at X = {mp.nstr(x, 6)}, Y = {mp.nstr(y, 6)} the Moreau "
                    "objective is not convex, so that minima may compete; high precision is for unique minima only"
                )
            return 1 + V * curvature

        low, high = (self._proximal_field_limit(_omega_of_field, mean, spread, side) for side in (-1, 1))
        for end, side in ((low, -1), (high, 1)) if V else ():
            # The loss is not negative, which bounds the distance of another minimum from omega.
            value, slope, _ = _loss_derivatives(end)
            furthest = _omega_of_field(end) + side * mp.sqrt(2 * V * value + (V * slope) ** 2)
            for k in range(probes) if side * (furthest - end) > 0 else ():
                x = end + (furthest - end) * k / probes
                _checked_omega_derivative(x, _loss_derivatives(x)[2])
        for x, weight in rule.quadrature_nodes_in_proximal_field(low, high, kinks, _omega_of_field, spread):
            value, slope, curvature = _loss_derivatives(x)
            inverse = _checked_omega_derivative(x, curvature)
            w = x + V * slope
            if name == "metric":
                (value,) = self.test_error_metric(x, y, *u, c)
            yield weight * inverse * mp.npdf(w, mean, spread), w, (value, slope, curvature)
        if name == "loss" and self.module.CORNERS:
            for kink, lower, upper in self._convex_kinks(kinks, features, c):

                def _omega_at_kink_slope(slope: Any, kink: Any = kink) -> Any:
                    return kink + V * slope

                for slope, weight in rule.quadrature_nodes_in_proximal_field(
                    lower, upper, [], _omega_at_kink_slope, spread, ended=True
                ):
                    w = _omega_at_kink_slope(slope)
                    if abs(w - mean) < self.reach * spread:
                        yield weight * V * mp.npdf(w, mean, spread), w, (_loss_derivatives(kink)[0], slope, None)

    def _convex_kinks(self, kinks: Sequence[Any], features: Sequence[Any], c: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the kinks of the loss at which its derivative jumps up, with the derivatives on both sides.

        Raises:
            InputError: the derivative jumps down, or the loss itself jumps, so that minima may compete.
        """
        edges = [None, *kinks, None]
        for before, kink, after in zip(edges, kinks, edges[2:], strict=False):
            left, lower, _ = self.module.piece(kink, point_inside_interval(before, kink), *features, c)
            right, upper, _ = self.module.piece(kink, point_inside_interval(kink, after), *features, c)
            small = mp.mpf(10) ** (8 - mp.dps)
            if abs(left - right) > small * (1 + abs(left)) or lower - upper > small * (1 + abs(lower)):
                raise InputError(
                    f"{self.numbers.problem.solver.name}: at X = {mp.nstr(kink, 6)} the loss jumps, or its "
                    "derivative jumps down, so that minima may compete; high precision is for unique minima only"
                )
            if upper - lower > small * (1 + abs(lower)):
                yield kink, lower, upper

    def _proximal_field_limit(self, omega: Callable[[Any], Any], mean: Any, spread: Any, side: int) -> Any:
        """Return the proximal field X beyond which the Gaussian density of the field omega(X) is negligible."""
        target = mean + side * self.reach * spread

        def _excess_over_omega_limit(x: Any) -> Any:
            return side * (omega(x) - target)

        inner = outer = mean
        step = spread
        while _excess_over_omega_limit(inner) >= 0:
            inner, step = inner - side * step, 2 * step
        step = spread
        while _excess_over_omega_limit(outer) < 0:
            outer, step = outer + side * step, 2 * step
        for _ in range(40):
            if _excess_over_omega_limit(outer) < spread:
                break
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if _excess_over_omega_limit(middle) >= 0 else (middle, outer)
        return outer
