"""The derivative of a saddle point with respect to one number of its problem."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..integration import Rule
from ..integration.estimates import (
    RuleChange,
    RuleComparison,
    compare_rules,
    error_bar_from_comparisons,
    replicate_error_bar,
)
from ..integration.rule import NEGLIGIBLE_JUMPS, SaddlePointAverages
from ..problems.overlaps import Conjugates, Overlaps, Sizes
from ..problems.problem import Problem
from ..problems.symmetry import StateSymmetry, symmetries_of_problem
from ..saddle_point import observables
from ..saddle_point.difference_jacobian import large_difference_steps, map_jacobian_by_differences, map_jacobian_by_rule
from ..saddle_point.observables import Observable, observables_of_first_metric
from ..saddle_point.state_map import SaddlePointMap
from ..solving.solution import Solution
from .direction import NARROW, WIDE, ParameterDirection
from .sensitivity_results import Sensitivity

_ROUNDING = 2e-15  # of one value of the map, relative to its blocks


@dataclass(frozen=True)
class TangentOptions(AlgorithmOptions):
    """Options of solving for the derivative of a fixed point.

    Attributes:
        max_iterations: largest number of iterations of x = J x + dG/dp.
        max_shortenings: of a step of differences, by a factor of four each, where it leaves the domain of definition.
        fine_nodes: nodes of the derivative of a test error.
        coarse_nodes: the same where rules and replicates are compared.
    """

    max_iterations: int = 12
    max_shortenings: int = 4
    fine_nodes: float = 1.5e5
    coarse_nodes: float = 5e4


@dataclass(frozen=True)
class _TangentDerivatives:
    """The derivatives by one rule or replicate: x = du/dp, of the training loss, and of observables, (k,)."""

    x: np.ndarray
    loss: float
    observed: np.ndarray


@dataclass
class TangentSolver:
    """A solver for the derivative x = du/dp of the overlaps at a solution.

    Attributes:
        base: the solution's map, whose symmetry every step keeps.
        matrix: an approximation of J.
        wide, step, stencil: whether steps are wide; step and stencil of the differences.
    """

    solution: Solution
    direction: ParameterDirection
    base: SaddlePointMap
    matrix: np.ndarray
    wide: bool
    step: float
    stencil: tuple[tuple[int, float], ...]

    @classmethod
    def from_solution(cls, solution: Solution, direction: ParameterDirection) -> TangentSolver:
        """Return the solver for the derivative of a solution with respect to one number.

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
        step, stencil = direction.difference_step_and_stencil(wide)
        symmetry, whole = _symmetry_of_both_problems(solution, direction.problem_shifted_by(step))
        matrix = solution.jacobian if whole else None
        if matrix is None:
            overlaps = solution.overlaps
            matrix = map_jacobian_by_rule(solution.problem, rule, overlaps.pack(), overlaps.sizes, symmetry=symmetry)
        return cls(solution, direction, SaddlePointMap(solution.problem, rule, symmetry), matrix, wide, step, stencil)

    @cached_property
    def packed_overlaps(self) -> np.ndarray:
        """Return the packed overlaps of the solution, (n,)."""
        return self.solution.overlaps.pack()

    @cached_property
    def block_scales(self) -> np.ndarray:
        """Return the block scales of the packed overlaps, (n,)."""
        return self.solution.overlaps.block_scales

    @property
    def overlap_sizes(self) -> Sizes:
        """Return the sizes (C, s, t, P) of the overlaps."""
        return self.solution.overlaps.sizes

    @cached_property
    def differentiated_observables(self) -> list[Observable]:
        """Return the observables that are differentiated in addition to overlaps and training loss."""
        return observables_of_first_metric(self.solution.problem)

    def sensitivity_with_errors(self) -> Sensitivity:
        """Return the derivatives and their error bars."""
        solution, losses = self.solution, self.solution.losses
        assert solution.conjugates is not None and losses is not None
        if solution.rule.replicated:
            best, (widths, loss_error, errors), remaining = self._derivatives_by_replicates()
        else:
            best, (widths, loss_error, errors), remaining = self._derivatives_by_rules(solution.conjugates)
        observed = self._observable_derivatives(self.packed_overlaps, best.x, TangentOptions.current().fine_nodes)
        rounding = _ROUNDING / abs(self.step)
        errors = errors + np.abs(observed - best.observed)
        size = float(np.max(np.abs(best.x) / self.block_scales))
        return Sensitivity(
            parameter=self.direction.parameter_label,
            at=self.direction.parameter_value,
            problem=solution.problem,
            reached=solution.overlaps,
            overlaps=Overlaps.unpack(best.x, self.overlap_sizes),
            error_bars=Overlaps.unpack(
                widths + self._rounding_error_bound(rounding) + remaining * self.block_scales, self.overlap_sizes
            ),
            training_loss=best.loss,
            training_loss_error=loss_error
            + rounding * (abs(losses.data) + abs(losses.penalty) + abs(losses.free_entropy)),
            observed={
                each.name: (float(value), float(error) + rounding * abs(solution.observed[each.name][0]))
                for each, value, error in zip(self.differentiated_observables, observed, errors, strict=True)
            },
            baseline_error=self._baseline_derivative(),
            remaining=remaining / size if size > 0 else 0.0,
        )

    def _derivatives_by_rules(
        self, hats: Conjugates
    ) -> tuple[_TangentDerivatives, tuple[np.ndarray, float, np.ndarray], float]:
        """Return derivatives, their error bars from other rules of the family, and the iteration error."""
        rule, averages = self.solution.rule, self.solution.averages
        assert averages is not None
        x, remaining = self._solve_tangent_equation(
            rule, self.packed_overlaps, np.zeros_like(self.packed_overlaps), 1e-3 if self.wide else 1e-11
        )
        best = self._derivatives_at_overlaps(rule, self.packed_overlaps, x, hats)
        size = float(np.max(np.abs(x) / self.block_scales))  # of a relative change
        losses = self.solution.losses
        assert losses is not None

        def _unit_of_derivative(slope: float, value: float) -> float:
            return max(abs(slope), size * abs(value)) or 1.0

        values = (self.solution.observed[each.name][0] for each in self.differentiated_observables)
        of_observed = np.array(list(map(_unit_of_derivative, best.observed, values)))
        units = self.block_scales * (size or 1.0), _unit_of_derivative(best.loss, losses.training_loss), of_observed

        def _compare_with_changed_rule(change: RuleChange) -> RuleComparison:
            other, there = self._derivatives_by_other_rule(change(rule), x)
            moved = other.x - x, np.array(other.loss - best.loss), other.observed - best.observed
            return RuleComparison(tuple(part / unit for part, unit in zip(moved, units, strict=True)), (there,))

        known = compare_rules([rule], [averages], _compare_with_changed_rule, derivative=True)
        widths, loss_error, errors = (error_bar_from_comparisons(known, n) * unit for n, unit in enumerate(units))
        return best, (widths, float(loss_error), errors), remaining

    def _derivatives_by_other_rule(self, rule: Rule, x: np.ndarray) -> tuple[_TangentDerivatives, SaddlePointAverages]:
        """Return derivatives by another quadrature rule, and its channel averages at the solution."""
        image, averages = self._image_with_averages(self.solution.problem, rule, self.packed_overlaps)
        there = self.packed_overlaps + self._newton_correction_of_gap(
            self.packed_overlaps, image - self.packed_overlaps
        )
        own_x, _ = self._solve_tangent_equation(rule, there, x, 1e-7)
        return self._derivatives_at_overlaps(rule, there, own_x, self._conjugates_at_overlaps(rule, there)), averages

    def _derivatives_by_replicates(self) -> tuple[_TangentDerivatives, tuple[np.ndarray, float, np.ndarray], float]:
        """Return mean derivatives over replicates, their error bars, and the iteration error."""
        rule = self.solution.rule
        tolerance = min(0.03, max(1e-4, self.solution.relative_error))
        x, remaining = self._solve_tangent_equation(
            rule, self.packed_overlaps, np.zeros_like(self.packed_overlaps), tolerance
        )
        images, _ = self.base.replicate_images_with_averages(self.packed_overlaps, self.overlap_sizes)
        by_replicate = []
        for shift, own in zip(
            self._newton_correction_of_gap(self.packed_overlaps, images - self.packed_overlaps),
            rule.replicates,
            strict=True,
        ):
            there = self.packed_overlaps + shift
            own_x = x + self._newton_correction_of_gap(
                self.packed_overlaps, self._map_derivative_along_tangent(own, there, x) - x
            )
            by_replicate.append(
                self._derivatives_at_overlaps(own, there, own_x, self._conjugates_at_overlaps(own, there))
            )
        columns = [np.array([getattr(each, name) for each in by_replicate]) for name in ("x", "loss", "observed")]
        best = _TangentDerivatives(columns[0].mean(axis=0), float(columns[1].mean()), columns[2].mean(axis=0))
        widths, loss_error, errors = (replicate_error_bar(values) for values in columns)
        # The step of each replicate is one more iteration.
        return best, (widths, float(loss_error), errors), remaining / 2

    def _solve_tangent_equation(
        self, rule: Rule, u: np.ndarray, x: np.ndarray, tolerance: float
    ) -> tuple[np.ndarray, float]:
        """Return x = du/dp by a quadrature rule, to a relative tolerance, and the error of x.

        It ends where changes are no longer halved, after one attempt with a new Jacobian.
        """
        best, least, rate, refreshed = x, np.inf, 0.5, False
        for _ in range(TangentOptions.current().max_iterations):
            move = self._newton_correction_of_gap(u, self._map_derivative_along_tangent(rule, u, x) - x)
            x, moved = x + move, float(np.max(np.abs(move) / self.block_scales))
            if not np.isfinite(moved):
                raise DomainError("the derivative of the saddle-point map is not finite")
            improved = moved < least / 2
            if moved < least:
                best, least, rate = x, moved, min(0.5, moved / least) if np.isfinite(least) else 0.5
            if moved <= tolerance * float(np.max(np.abs(x) / self.block_scales)):
                break
            if not improved:
                if refreshed or rule.replicated:
                    break
                self.matrix, refreshed, x = self._jacobian_by_differences(rule, u), True, best
        return best, least * rate / (1 - rate)

    def _newton_correction_of_gap(self, u: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """Return (I - J)^{-1} gap."""
        return self.base.newton_correction(self.matrix, u, gap, self.overlap_sizes)

    def _image_with_averages(
        self, problem: Problem, rule: Rule, u: np.ndarray
    ) -> tuple[np.ndarray, SaddlePointAverages]:
        """Return G(u) with the symmetry of the solution imposed, and the channel averages at u."""
        overlaps, there = Overlaps.unpack(u, self.overlap_sizes), SaddlePointMap(problem, rule)
        averages = there.channel_averages(overlaps)
        return self.base.impose_symmetry_on_image(
            u, there.image_from_channel_averages(overlaps, averages.means), self.overlap_sizes
        ), averages

    def _conjugates_at_overlaps(self, rule: Rule, u: np.ndarray) -> Conjugates:
        """Return the conjugates (docs/theory.md (5.2) to (5.5)) at packed overlaps, averaged over replicates."""
        overlaps, there = Overlaps.unpack(u, self.overlap_sizes), SaddlePointMap(self.solution.problem, rule)
        return there.conjugates_at_overlaps(overlaps, there.channel_averages(overlaps).means)

    def _jacobian_by_differences(self, rule: Rule, u: np.ndarray) -> np.ndarray:
        """Return dG/du by differences, to replace an approximate Jacobian that does not contract."""
        there = SaddlePointMap(self.solution.problem, rule, self.base.symmetry)
        return map_jacobian_by_differences(
            there, u, self.overlap_sizes, large_difference_steps(self.solution.overlaps, WIDE if self.wide else NARROW)
        )

    def _derivative_along_tangent(self, x: np.ndarray, value: Callable[[float], np.ndarray | float]) -> np.ndarray:
        """Return d value(s)/ds at s = 0, by steps that keep p and u + s x close and in the domain of definition."""
        limits = large_difference_steps(self.solution.overlaps, WIDE if self.wide else NARROW) * self.block_scales
        excess = float(np.max(np.abs(self.step * x) / limits))
        step = self.step / 2 ** max(0, int(np.ceil(np.log2(max(excess, 1.0)))))
        for _ in range(TangentOptions.current().max_shortenings):
            with suppress(DomainError):
                return np.sum([weight * np.asarray(value(k * step)) for k, weight in self.stencil], axis=0) / step
            step /= 4
        raise DomainError("the solution is too close to the edge of the domain of definition to take differences")

    def _map_derivative_along_tangent(self, rule: Rule, u: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return d G(u + s x; p + s)/ds = J x + dG/dp."""
        shifted = self.direction.problem_shifted_by
        return self._derivative_along_tangent(x, lambda s: self._image_with_averages(shifted(s), rule, u + s * x)[0])

    def _derivatives_at_overlaps(
        self, rule: Rule, u: np.ndarray, x: np.ndarray, hats: Conjugates
    ) -> _TangentDerivatives:
        """Return the derivatives of training loss and observables for x = du/dp at u."""
        overlaps = Overlaps.unpack(u, self.overlap_sizes)

        def training_loss_at(s: float) -> float:
            """Return the training loss at fixed overlaps and conjugates, where Phi is stationary."""
            there = self.direction.problem_shifted_by(s)
            return observables.free_entropy_and_losses(
                there, overlaps, hats, rule.averages(there, overlaps)
            ).training_loss

        of_observables = self._observable_derivatives(u, x, TangentOptions.current().coarse_nodes)
        return _TangentDerivatives(
            x, float(self._derivative_along_tangent(np.zeros_like(x), training_loss_at)), of_observables
        )

    def _observable_derivatives(self, u: np.ndarray, x: np.ndarray, budget: float) -> np.ndarray:
        """Return the derivatives of `differentiated_observables`, (k,), test errors over about `budget` nodes."""

        def derivative_of_observable(observable: Observable) -> float:
            rule = observable.rule_for_budget(Overlaps.unpack(u, self.overlap_sizes), budget)

            def observable_value_at(s: float) -> float:
                there = Overlaps.unpack(u + s * x, self.overlap_sizes)
                return replace(observable, problem=self.direction.problem_shifted_by(s)).value_by_rule(there, rule)

            return float(self._derivative_along_tangent(x, observable_value_at))

        return np.array([derivative_of_observable(each) for each in self.differentiated_observables])

    def _baseline_derivative(self) -> float:
        """Return d(baseline error)/dp (docs/theory.md (7.7)); nan without a baseline, 0 along alpha."""
        if not self.solution.problem.solver.metric_functions.HAS_BASELINE:
            return np.nan
        if self.direction.name == "alpha":
            return 0.0  # the baseline does not depend on samples
        fixed, shifted = np.zeros_like(self.packed_overlaps), self.direction.problem_shifted_by
        return float(self._derivative_along_tangent(fixed, lambda s: observables.baseline_error(shifted(s))))

    def _rounding_error_bound(self, noise: float) -> np.ndarray:
        """Return a bound, (n,), of the error of x = du/dp by rounding errors of the map."""
        return np.abs(self._newton_correction_of_gap(self.packed_overlaps, np.diag(noise * self.block_scales))).sum(
            axis=0
        )


def _symmetry_of_both_problems(solution: Solution, moved: Problem) -> tuple[StateSymmetry, bool]:
    """Return the symmetry common to the solution and the changed problem, and whether nothing was lost.

    An entry of a matrix may break the symmetry of tokens; overlaps that vanish by symmetry then become nonzero.
    """
    own = solution.symmetry or StateSymmetry()
    kept = tuple(exchange for exchange in own.exchanges if exchange in symmetries_of_problem(moved))
    if len(kept) == len(own.exchanges):
        if own.frozen is None or not own.frozen.any():
            return own, True
        there = SaddlePointMap(moved, solution.rule)
        overlaps = solution.overlaps
        image = there.image_from_channel_averages(overlaps, there.channel_averages(overlaps).means)
        grown = np.abs(image - overlaps.pack())[own.frozen] / overlaps.block_scales[own.frozen]
        if np.all(grown < 1e-9):
            return own, True
    return StateSymmetry(None, kept, own.clusters), False
