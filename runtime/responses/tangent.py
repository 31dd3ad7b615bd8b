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
from ..saddle_point.difference_jacobian import (
    large_difference_steps,
    map_jacobian_by_differences,
    map_jacobian_by_quadrature_rule,
)
from ..saddle_point.observables import Observable, observables_without_extra_metrics
from ..saddle_point.state_map import SaddlePointMap
from ..solving.solution import Solution
from .direction import NARROW, WIDE, ParameterDirection
from .sensitivity_results import Sensitivity

_ROUNDING = 2e-15  # of one value of the map, relative to its blocks


@dataclass(frozen=True)
class TangentOptions(AlgorithmOptions):
    """Options of solving the linear equation x = dG/du x + dG/dp for the derivative x = du/dp of a fixed point u of G.

    Attributes:
        max_iterations: largest number of iterations of this equation.
        max_shortenings: how often a difference step that leaves the domain is divided by four.
        fine_nodes: number of nodes for the derivative of a test error.
        coarse_nodes: number of nodes for the same where quadrature rules or replicates are compared.
    """

    max_iterations: int = 12
    max_shortenings: int = 4
    fine_nodes: float = 1.5e5
    coarse_nodes: float = 5e4


@dataclass(frozen=True)
class _TangentDerivatives:
    """The derivatives of overlaps (x), training loss and observables by one quadrature rule or replicate."""

    x: np.ndarray
    loss: float
    observed: np.ndarray


@dataclass
class TangentSolver:
    """A solver for the derivative x = du/dp of the overlaps u in a parameter p, at a solution.

    Attributes:
        base: saddle-point map of the solution, with the symmetry that x keeps.
        matrix: an approximation of the Jacobian dG/du.
        wide: whether difference steps are large, for maps that are not smooth.
        step: step of the differences.
        stencil: (multiple of the step, weight) of each point of the differences.
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
        """Return the solver for the derivative of a solution with respect to one parameter or entry of an array.

        Difference steps are large for sampled quadrature rules and where minima of the loss swap, since the
        saddle-point map is not smooth there.

        Args:
            solution: the solution.
            direction: the parameter or entry.

        Raises:
            InputError: the range of the parameter allows differences on neither side.
        """
        rule, averages = solution.rule, solution.averages
        assert averages is not None
        swaps = not rule.in_x and averages.bistable > NEGLIGIBLE_JUMPS
        wide = rule.replicated or swaps
        step, stencil = direction.difference_step_and_stencil(wide)
        symmetry, whole = _symmetry_of_both_problems(solution, direction.problem_with_shifted_parameter(step))
        matrix = solution.jacobian if whole else None
        if matrix is None:
            overlaps = solution.overlaps
            matrix = map_jacobian_by_quadrature_rule(
                solution.problem, rule, overlaps.pack(), overlaps.sizes, symmetry=symmetry
            )
        return cls(solution, direction, SaddlePointMap(solution.problem, rule, symmetry), matrix, wide, step, stencil)

    @cached_property
    def packed_overlaps(self) -> np.ndarray:
        """Return the overlaps of the solution as one vector."""
        return self.solution.overlaps.pack()

    @cached_property
    def block_scales(self) -> np.ndarray:
        """Return the typical magnitude of q, V, m or theta for each entry of the packed overlaps of the solution."""
        return self.solution.overlaps.block_scales

    @property
    def overlap_dimensions(self) -> Sizes:
        """Return the numbers of (token, cluster) pairs, student columns, teacher columns and trained numbers."""
        return self.solution.overlaps.sizes

    @cached_property
    def differentiated_observables(self) -> list[Observable]:
        """Return the observables that are differentiated in addition to overlaps and training loss."""
        return observables_without_extra_metrics(self.solution.problem)

    def sensitivity_with_errors(self) -> Sensitivity:
        """Return the derivatives of the solution and their error bars."""
        solution, losses = self.solution, self.solution.losses
        assert solution.conjugates is not None and losses is not None
        if solution.rule.replicated:
            best, (widths, loss_error, errors), remaining = self._derivatives_by_replicates()
        else:
            best, (widths, loss_error, errors), remaining = self._derivatives_by_quadrature_rules(solution.conjugates)
        observed = self._observable_derivatives(self.packed_overlaps, best.x, TangentOptions.current().fine_nodes)
        rounding = _ROUNDING / abs(self.step)
        errors = errors + np.abs(observed - best.observed)
        size = float(np.max(np.abs(best.x) / self.block_scales))
        return Sensitivity(
            parameter=self.direction.parameter_label,
            at=self.direction.parameter_value,
            problem=solution.problem,
            reached=solution.overlaps,
            overlaps=Overlaps.unpack(best.x, self.overlap_dimensions),
            error_bars=Overlaps.unpack(
                widths + self._rounding_error_bound(rounding) + remaining * self.block_scales, self.overlap_dimensions
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

    def _derivatives_by_quadrature_rules(
        self, hats: Conjugates
    ) -> tuple[_TangentDerivatives, tuple[np.ndarray, float, np.ndarray], float]:
        """Return derivatives, their error bars by comparison with other quadrature rules, and the iteration error."""
        rule, averages = self.solution.rule, self.solution.averages
        assert averages is not None
        x, remaining = self._solve_tangent_equation(
            rule, self.packed_overlaps, np.zeros_like(self.packed_overlaps), 1e-3 if self.wide else 1e-11
        )
        best = self._derivatives_at_overlaps(rule, self.packed_overlaps, x, hats)
        size = float(np.max(np.abs(x) / self.block_scales))  # of a relative change
        losses = self.solution.losses
        assert losses is not None

        def _unit_of_observable_derivative(slope: float, value: float) -> float:
            return max(abs(slope), size * abs(value)) or 1.0

        values = (self.solution.observed[each.name][0] for each in self.differentiated_observables)
        of_observed = np.array(list(map(_unit_of_observable_derivative, best.observed, values)))
        units = (
            self.block_scales * (size or 1.0),
            _unit_of_observable_derivative(best.loss, losses.training_loss),
            of_observed,
        )

        def _compare_with_changed_quadrature(change: RuleChange) -> RuleComparison:
            other, there = self._derivatives_by_other_quadrature(change(rule), x)
            moved = other.x - x, np.array(other.loss - best.loss), other.observed - best.observed
            return RuleComparison(tuple(part / unit for part, unit in zip(moved, units, strict=True)), (there,))

        known = compare_rules([rule], [averages], _compare_with_changed_quadrature, derivative=True)
        widths, loss_error, errors = (error_bar_from_comparisons(known, n) * unit for n, unit in enumerate(units))
        return best, (widths, float(loss_error), errors), remaining

    def _derivatives_by_other_quadrature(
        self, rule: Rule, x: np.ndarray
    ) -> tuple[_TangentDerivatives, SaddlePointAverages]:
        """Return the derivatives by another quadrature rule, and the channel averages by that rule at the solution."""
        image, averages = self._evaluate_map_and_averages(self.solution.problem, rule, self.packed_overlaps)
        there = self.packed_overlaps + self._newton_correction_of_gap(
            self.packed_overlaps, image - self.packed_overlaps
        )
        own_x, _ = self._solve_tangent_equation(rule, there, x, 1e-7)
        return self._derivatives_at_overlaps(rule, there, own_x, self._conjugates_at_overlaps(rule, there)), averages

    def _derivatives_by_replicates(self) -> tuple[_TangentDerivatives, tuple[np.ndarray, float, np.ndarray], float]:
        """Return derivatives of the solution averaged over replicates of its rule, error bars, and iteration error."""
        rule = self.solution.rule
        tolerance = min(0.03, max(1e-4, self.solution.relative_error))
        x, remaining = self._solve_tangent_equation(
            rule, self.packed_overlaps, np.zeros_like(self.packed_overlaps), tolerance
        )
        images, _ = self.base.map_images_and_averages(self.packed_overlaps, self.overlap_dimensions)
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
        """Return the derivative x = du/dp of overlaps u in a parameter p by a quadrature rule, and its iteration error.

        The iteration ends at the tolerance, or if changes are no longer halved even with a new Jacobian.
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
        """Return the Newton correction (I - dG/du)^{-1} gap, given the residual `gap` of the equation u = G(u)."""
        return self.base.newton_correction(self.matrix, u, gap, self.overlap_dimensions)

    def _evaluate_map_and_averages(
        self, problem: Problem, rule: Rule, u: np.ndarray
    ) -> tuple[np.ndarray, SaddlePointAverages]:
        """Return the saddle-point map G(u), with the symmetry of the solution imposed, and the averages at u."""
        overlaps, there = Overlaps.unpack(u, self.overlap_dimensions), SaddlePointMap(problem, rule)
        averages = there.channel_averages(overlaps)
        return self.base.impose_symmetry_on_image(
            u, there.image_from_channel_averages(overlaps, averages.means), self.overlap_dimensions
        ), averages

    def _conjugates_at_overlaps(self, rule: Rule, u: np.ndarray) -> Conjugates:
        """Return the conjugates of packed overlaps (docs/theory.md (5.2) to (5.5)), averaged over replicates."""
        overlaps, there = Overlaps.unpack(u, self.overlap_dimensions), SaddlePointMap(self.solution.problem, rule)
        return there.conjugates_at_overlaps(overlaps, there.channel_averages(overlaps).means)

    def _jacobian_by_differences(self, rule: Rule, u: np.ndarray) -> np.ndarray:
        """Return dG/du by differences, to replace an approximate Jacobian that does not contract."""
        there = SaddlePointMap(self.solution.problem, rule, self.base.symmetry)
        return map_jacobian_by_differences(
            there,
            u,
            self.overlap_dimensions,
            large_difference_steps(self.solution.overlaps, WIDE if self.wide else NARROW),
        )

    def _differentiate_along_tangent(self, x: np.ndarray, value: Callable[[float], np.ndarray | float]) -> np.ndarray:
        """Return the derivative at s = 0 of a function `value(s)` of overlaps u + s x, by differences in the domain."""
        limits = large_difference_steps(self.solution.overlaps, WIDE if self.wide else NARROW) * self.block_scales
        excess = float(np.max(np.abs(self.step * x) / limits))
        step = self.step / 2 ** max(0, int(np.ceil(np.log2(max(excess, 1.0)))))
        for _ in range(TangentOptions.current().max_shortenings):
            with suppress(DomainError):
                return np.sum([weight * np.asarray(value(k * step)) for k, weight in self.stencil], axis=0) / step
            step /= 4
        raise DomainError("the overlaps are too close to the edge of their domain to take finite differences")

    def _map_derivative_along_tangent(self, rule: Rule, u: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return dG/du x + dG/dp, the derivative in s of the map G(u + s x) at the parameter value p + s."""
        shifted = self.direction.problem_with_shifted_parameter
        return self._differentiate_along_tangent(
            x, lambda s: self._evaluate_map_and_averages(shifted(s), rule, u + s * x)[0]
        )

    def _derivatives_at_overlaps(
        self, rule: Rule, u: np.ndarray, x: np.ndarray, hats: Conjugates
    ) -> _TangentDerivatives:
        """Return derivatives of training loss and observables in a parameter p, given x = du/dp of the overlaps u."""
        overlaps = Overlaps.unpack(u, self.overlap_dimensions)

        def training_loss_after_shift(s: float) -> float:
            """Return the training loss at parameter p + s with the overlaps of p, where it is stationary in them."""
            there = self.direction.problem_with_shifted_parameter(s)
            return observables.free_entropy_and_losses(
                there, overlaps, hats, rule.averages(there, overlaps)
            ).training_loss

        of_observables = self._observable_derivatives(u, x, TangentOptions.current().coarse_nodes)
        return _TangentDerivatives(
            x, float(self._differentiate_along_tangent(np.zeros_like(x), training_loss_after_shift)), of_observables
        )

    def _observable_derivatives(self, u: np.ndarray, x: np.ndarray, budget: float) -> np.ndarray:
        """Return the derivatives of `differentiated_observables`; test errors use about `budget` quadrature nodes."""

        def derivative_of_observable(observable: Observable) -> float:
            rule = observable.rule_with_node_budget(Overlaps.unpack(u, self.overlap_dimensions), budget)

            def observable_after_shift(s: float) -> float:
                there = Overlaps.unpack(u + s * x, self.overlap_dimensions)
                return replace(
                    observable, problem=self.direction.problem_with_shifted_parameter(s)
                ).value_by_quadrature_rule(there, rule)

            return float(self._differentiate_along_tangent(x, observable_after_shift))

        return np.array([derivative_of_observable(each) for each in self.differentiated_observables])

    def _baseline_derivative(self) -> float:
        """Return the derivative of the baseline error (docs/theory.md (7.7)): nan without a baseline, 0 in alpha."""
        if not self.solution.problem.solver.metric_functions.HAS_BASELINE:
            return np.nan
        if self.direction.name == "alpha":
            return 0.0  # the baseline does not depend on samples
        fixed, shifted = np.zeros_like(self.packed_overlaps), self.direction.problem_with_shifted_parameter
        return float(self._differentiate_along_tangent(fixed, lambda s: observables.baseline_error(shifted(s))))

    def _rounding_error_bound(self, noise: float) -> np.ndarray:
        """Return a bound of the errors of overlap derivatives x = du/dp due to rounding in the saddle-point map."""
        return np.abs(self._newton_correction_of_gap(self.packed_overlaps, np.diag(noise * self.block_scales))).sum(
            axis=0
        )


def _symmetry_of_both_problems(solution: Solution, moved: Problem) -> tuple[StateSymmetry, bool]:
    """Return the symmetry of a solution that a problem with a changed parameter keeps, and whether it keeps all of it.

    A change of one entry of a matrix may break the symmetry between tokens; then overlaps that vanish become nonzero.
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
