"""The derivative of a fixed point with respect to a number of its problem."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..integration import Rule
from ..integration.estimates import RuleChange, RuleComparison, compare_rules, error_bar, two_standard_errors
from ..integration.rule import NEGLIGIBLE_JUMPS, Averages
from ..problems.overlaps import Conjugates, Overlaps, Sizes
from ..problems.problem import Problem
from ..problems.symmetry import Symmetry, exchanges
from ..saddle_point import observables
from ..saddle_point.difference_jacobian import jacobian, jacobian_by_rule, large_difference_steps
from ..saddle_point.observables import Observable, observables_of_first_metric
from ..saddle_point.state_map import StateMap
from ..solving.solution import Solution
from .direction import NARROW, WIDE, ParameterDirection
from .sensitivity_results import Sensitivity

_ROUNDING = 2e-15  # of one value of the map, relative to its blocks


@dataclass(frozen=True)
class TangentOptions(AlgorithmOptions):
    """Options of solving for the derivative of a fixed point.

    Attributes:
        max_iterations: of x = J x + dG/dp.
        max_shortenings: of a step of differences, by a factor of four each, where it leaves the domain of definition.
        fine_nodes: of the derivative of a test error.
        coarse_nodes: of the same where rules and replicates are compared.
    """

    max_iterations: int = 12
    max_shortenings: int = 4
    fine_nodes: float = 1.5e5
    coarse_nodes: float = 5e4


@dataclass(frozen=True)
class _Derivatives:
    """The derivatives by one rule or replicate: x = du/dp, of the training loss, and of observables, (k,)."""

    x: np.ndarray
    loss: float
    observed: np.ndarray


@dataclass
class TangentSolver:
    """A solver for x = du/dp: the line (u + s x, p + s) is the tangent of the branch at a solution.

    Attributes:
        base: the solution's map, whose symmetry every step keeps.
        matrix: an approximation of J.
        wide, step, stencil: of the differences.
    """

    solution: Solution
    direction: ParameterDirection
    base: StateMap
    matrix: np.ndarray
    wide: bool
    step: float
    stencil: tuple[tuple[int, float], ...]

    @classmethod
    def from_solution(cls, solution: Solution, direction: ParameterDirection) -> TangentSolver:
        """Return the solver at a solution; J is that of Newton's method if the changed problem has its symmetry.

        Steps are wide where replicates or swapping minima make the map rough.

        Args:
            solution: the solution.
            direction: the number that changes.

        Raises:
            InputError: the range of the number allows differences on neither side.
        """
        rule, averages = solution.rule, solution.averages
        assert averages is not None
        swaps = not rule.in_x and averages.bistable > NEGLIGIBLE_JUMPS
        wide = rule.replicated or swaps
        step, stencil = direction.difference_stencil(wide)
        symmetry, whole = _common_symmetry(solution, direction.shifted_problem(step))
        matrix = solution.jacobian if whole else None
        if matrix is None:
            overlaps = solution.overlaps
            matrix = jacobian_by_rule(solution.problem, rule, overlaps.pack(), overlaps.sizes, symmetry=symmetry)
        return cls(solution, direction, StateMap(solution.problem, rule, symmetry), matrix, wide, step, stencil)

    @cached_property
    def u(self) -> np.ndarray:
        """Return the packed overlaps of the solution, (n,)."""
        return self.solution.overlaps.pack()

    @cached_property
    def scales(self) -> np.ndarray:
        """Return the block scales of the packed overlaps, (n,)."""
        return self.solution.overlaps.block_scales

    @property
    def sizes(self) -> Sizes:
        """Return the sizes (C, s, t, P) of the overlaps."""
        return self.solution.overlaps.sizes

    @cached_property
    def observables(self) -> list[Observable]:
        """Return the observables that are differentiated besides overlaps and training loss."""
        return observables_of_first_metric(self.solution.problem)

    def sensitivity(self) -> Sensitivity:
        """Return the derivatives and their error bars."""
        solution, losses = self.solution, self.solution.losses
        assert solution.conjugates is not None and losses is not None
        if solution.rule.replicated:
            best, (widths, loss_error, errors), remaining = self._by_replicates()
        else:
            best, (widths, loss_error, errors), remaining = self._by_rules(solution.conjugates)
        observed = self._observable_derivatives(self.u, best.x, TangentOptions.current().fine_nodes)
        rounding = _ROUNDING / abs(self.step)
        errors = errors + np.abs(observed - best.observed)
        size = float(np.max(np.abs(best.x) / self.scales))
        return Sensitivity(
            parameter=self.direction.label,
            at=self.direction.value,
            problem=solution.problem,
            reached=solution.overlaps,
            overlaps=Overlaps.unpack(best.x, self.sizes),
            error_bars=Overlaps.unpack(widths + self._noise_bound(rounding) + remaining * self.scales, self.sizes),
            training_loss=best.loss,
            training_loss_error=loss_error
            + rounding * (abs(losses.data) + abs(losses.penalty) + abs(losses.free_entropy)),
            observed={
                each.name: (float(value), float(error) + rounding * abs(solution.observed[each.name][0]))
                for each, value, error in zip(self.observables, observed, errors, strict=True)
            },
            baseline_error=self._baseline_derivative(),
            remaining=remaining / size if size > 0 else 0.0,
        )

    def _by_rules(self, hats: Conjugates) -> tuple[_Derivatives, tuple[np.ndarray, float, np.ndarray], float]:
        """Return derivatives by the rule, error bars by other rules of its family, and the error of the iteration."""
        rule, averages = self.solution.rule, self.solution.averages
        assert averages is not None
        x, remaining = self._solve(rule, self.u, np.zeros_like(self.u), 1e-3 if self.wide else 1e-11)
        best = self._derivatives_at(rule, self.u, x, hats)
        size = float(np.max(np.abs(x) / self.scales))  # of a relative change
        losses = self.solution.losses
        assert losses is not None

        def _unit(slope: float, value: float) -> float:
            return max(abs(slope), size * abs(value)) or 1.0

        values = (self.solution.observed[each.name][0] for each in self.observables)
        of_observed = np.array(list(map(_unit, best.observed, values)))
        units = self.scales * (size or 1.0), _unit(best.loss, losses.training_loss), of_observed

        def _compare(change: RuleChange) -> RuleComparison:
            other, there = self._by_other_rule(change(rule), x)
            moved = other.x - x, np.array(other.loss - best.loss), other.observed - best.observed
            return RuleComparison(tuple(part / unit for part, unit in zip(moved, units, strict=True)), (there,))

        known = compare_rules([rule], [averages], _compare, derivative=True)
        widths, loss_error, errors = (error_bar(known, n) * unit for n, unit in enumerate(units))
        return best, (widths, float(loss_error), errors), remaining

    def _by_other_rule(self, rule: Rule, x: np.ndarray) -> tuple[_Derivatives, Averages]:
        """Return derivatives by another rule, at its own solution, and its averages at this one."""
        image, averages = self._image_with_averages(self.solution.problem, rule, self.u)
        there = self.u + self._correct(self.u, image - self.u)
        own_x, _ = self._solve(rule, there, x, 1e-7)
        return self._derivatives_at(rule, there, own_x, self._conjugates_at(rule, there)), averages

    def _by_replicates(self) -> tuple[_Derivatives, tuple[np.ndarray, float, np.ndarray], float]:
        """Return mean derivatives by replicates at their own solutions, error bars, and the error of the iteration."""
        rule = self.solution.rule
        tolerance = min(0.03, max(1e-4, self.solution.relative_error))
        x, remaining = self._solve(rule, self.u, np.zeros_like(self.u), tolerance)
        images, _ = self.base.replicate_images(self.u, self.sizes)
        by_replicate = []
        for shift, own in zip(self._correct(self.u, images - self.u), rule.replicates, strict=True):
            there = self.u + shift
            own_x = x + self._correct(self.u, self._map_derivative(own, there, x) - x)
            by_replicate.append(self._derivatives_at(own, there, own_x, self._conjugates_at(own, there)))
        columns = [np.array([getattr(each, name) for each in by_replicate]) for name in ("x", "loss", "observed")]
        best = _Derivatives(columns[0].mean(axis=0), float(columns[1].mean()), columns[2].mean(axis=0))
        widths, loss_error, errors = (two_standard_errors(values) for values in columns)
        # The step of each replicate is one more iteration.
        return best, (widths, float(loss_error), errors), remaining / 2

    def _solve(self, rule: Rule, u: np.ndarray, x: np.ndarray, tolerance: float) -> tuple[np.ndarray, float]:
        """Return x = du/dp for a rule, to a tolerance relative to x, and its error, in block scales.

        It ends where changes are no longer halved, after one attempt with a new Jacobian.
        """
        best, least, rate, refreshed = x, np.inf, 0.5, False
        for _ in range(TangentOptions.current().max_iterations):
            move = self._correct(u, self._map_derivative(rule, u, x) - x)
            x, moved = x + move, float(np.max(np.abs(move) / self.scales))
            if not np.isfinite(moved):
                raise DomainError("the slope of the saddle-point map is not finite")
            improved = moved < least / 2
            if moved < least:
                best, least, rate = x, moved, min(0.5, moved / least) if np.isfinite(least) else 0.5
            if moved <= tolerance * float(np.max(np.abs(x) / self.scales)):
                break
            if not improved:
                if refreshed or rule.replicated:
                    break
                self.matrix, refreshed, x = self._exact_jacobian(rule, u), True, best
        return best, least * rate / (1 - rate)

    def _correct(self, u: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """Return (I - J)^{-1} gap."""
        return self.base.newton_correction(self.matrix, u, gap, self.sizes)

    def _image_with_averages(self, problem: Problem, rule: Rule, u: np.ndarray) -> tuple[np.ndarray, Averages]:
        """Return G(u), with the symmetry of the solution kept, and its averages."""
        overlaps, there = Overlaps.unpack(u, self.sizes), StateMap(problem, rule)
        averages = there.averages(overlaps)
        return self.base.impose_symmetry(u, there.image_from_averages(overlaps, averages.means), self.sizes), averages

    def _conjugates_at(self, rule: Rule, u: np.ndarray) -> Conjugates:
        """Return the conjugates (docs/theory.md (5.2) to (5.5)) at packed overlaps, averaged over replicates."""
        overlaps, there = Overlaps.unpack(u, self.sizes), StateMap(self.solution.problem, rule)
        return there.conjugates(overlaps, there.averages(overlaps).means)

    def _exact_jacobian(self, rule: Rule, u: np.ndarray) -> np.ndarray:
        """Return dG/du of a rule by differences, for where the approximate one does not contract."""
        there = StateMap(self.solution.problem, rule, self.base.symmetry)
        return jacobian(
            there, u, self.sizes, large_difference_steps(self.solution.overlaps, WIDE if self.wide else NARROW)
        )

    def _line_derivative(self, x: np.ndarray, value: Callable[[float], np.ndarray | float]) -> np.ndarray:
        """Return d value(s)/ds at s = 0, by steps that keep p and u + s x close and in the domain of definition."""
        limits = large_difference_steps(self.solution.overlaps, WIDE if self.wide else NARROW) * self.scales
        excess = float(np.max(np.abs(self.step * x) / limits))
        step = self.step / 2 ** max(0, int(np.ceil(np.log2(max(excess, 1.0)))))
        for _ in range(TangentOptions.current().max_shortenings):
            with suppress(DomainError):
                return np.sum([weight * np.asarray(value(k * step)) for k, weight in self.stencil], axis=0) / step
            step /= 4
        raise DomainError("the solution is too close to the end of the domain")

    def _map_derivative(self, rule: Rule, u: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return d G(u + s x; p + s)/ds = J x + dG/dp."""
        shifted = self.direction.shifted_problem
        return self._line_derivative(x, lambda s: self._image_with_averages(shifted(s), rule, u + s * x)[0])

    def _derivatives_at(self, rule: Rule, u: np.ndarray, x: np.ndarray, hats: Conjugates) -> _Derivatives:
        """Return the derivatives of training loss and observables for x = du/dp at u."""
        overlaps = Overlaps.unpack(u, self.sizes)

        def loss(s: float) -> float:
            """Return the training loss at fixed overlaps and conjugates, where Phi is stationary."""
            there = self.direction.shifted_problem(s)
            return observables.losses(there, overlaps, hats, rule.averages(there, overlaps)).training_loss

        of_observables = self._observable_derivatives(u, x, TangentOptions.current().coarse_nodes)
        return _Derivatives(x, float(self._line_derivative(np.zeros_like(x), loss)), of_observables)

    def _observable_derivatives(self, u: np.ndarray, x: np.ndarray, budget: float) -> np.ndarray:
        """Return the derivatives of `observables`, (k,), test errors over about `budget` nodes."""

        def derivative(observable: Observable) -> float:
            rule = observable.rule(Overlaps.unpack(u, self.sizes), budget)

            def value(s: float) -> float:
                there = Overlaps.unpack(u + s * x, self.sizes)
                return replace(observable, problem=self.direction.shifted_problem(s)).value(there, rule)

            return float(self._line_derivative(x, value))

        return np.array([derivative(each) for each in self.observables])

    def _baseline_derivative(self) -> float:
        """Return d(baseline error)/dp (docs/theory.md (7.7)); nan without a baseline, 0 along alpha."""
        if not self.solution.problem.solver.metric.HAS_BASELINE:
            return np.nan
        if self.direction.name == "alpha":
            return 0.0  # the baseline does not depend on samples
        fixed, shifted = np.zeros_like(self.u), self.direction.shifted_problem
        return float(self._line_derivative(fixed, lambda s: observables.baseline_error(shifted(s))))

    def _noise_bound(self, noise: float) -> np.ndarray:
        """Return a bound, (n,), of the change of x by errors of the map's slope, relative to its blocks."""
        return np.abs(self._correct(self.u, np.diag(noise * self.scales))).sum(axis=0)


def _common_symmetry(solution: Solution, moved: Problem) -> tuple[Symmetry, bool]:
    """Return the part of the solution's symmetry that the changed problem has, too, and whether that is all of it.

    An entry of a matrix may break the symmetry of tokens; overlaps that vanish by symmetry then become nonzero.
    """
    own = solution.symmetry or Symmetry()
    kept = tuple(exchange for exchange in own.exchanges if exchange in exchanges(moved))
    if len(kept) == len(own.exchanges):
        if own.frozen is None or not own.frozen.any():
            return own, True
        there = StateMap(moved, solution.rule)
        overlaps = solution.overlaps
        image = there.image_from_averages(overlaps, there.averages(overlaps).means)
        grown = np.abs(image - overlaps.pack())[own.frozen] / overlaps.block_scales[own.frozen]
        if np.all(grown < 1e-9):
            return own, True
    return Symmetry(None, kept, own.clusters), False
