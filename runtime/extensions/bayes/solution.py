"""Fixed points of state evolution: overlaps of a Bayes-optimal learner with the teacher at n = alpha d samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...base import budget, presenting
from ...base.deprecation import DeprecatedName, deprecated_attribute
from ...base.errors import NotConvergedError, TimeLimitError, require_in_interval, require_known_name
from ...base.options import AlgorithmOptions
from ...base.presenting import PresentableResult
from ...base.progress import progress_step, report_remaining_work
from ...integration.estimates import replicate_error_bar
from ...problems.problem import Problem, require_problem
from .averages import ChannelAverages
from .prediction import least_errors_by_metric, least_test_error
from .state_evolution import (
    StateEvolutionMap,
    free_entropy_of_perfect_recovery,
    is_perfect_recovery_stable,
    leading_growth_mode_at_zero_overlap,
    overlaps_near_perfect_recovery,
    spectral_radius,
)

if TYPE_CHECKING:
    from ...solving.solution import Solution

STARTS = ("uninformed", "informed")
_ROUNDING = 1e-13  # of q, relative to rho*


@dataclass(frozen=True)
class BayesSolverOptions(AlgorithmOptions):
    """Options of the iteration of state evolution to a fixed point.

    Attributes:
        recovery_fraction: unknown fraction of the teacher below which perfect recovery is tested.
        limit_tolerance: tolerance of averages over rows with few values in the limit of perfect recovery.
        max_steps: largest number of steps of state evolution.
        max_refinements: largest number of rule refinements by which the error bar is brought below the accuracy.
        refinement_ratio: decrease of the unknown fraction after which rules are refined again.
        min_refined_fraction: unknown fraction below which expensive rules are not refined again.
        sampling_rate: binary logarithm of the factor by which a doubling of draws reduces an error bar.
        sampling_margin: uncertainty of `sampling_rate`, relative to the remaining doublings of draws; larger fails
            later.
    """

    recovery_fraction: float = 1e-7
    limit_tolerance: float = 1e-9
    max_steps: int = 4000
    max_refinements: int = 4
    refinement_ratio: float = 0.5
    min_refined_fraction: float = 1e-3
    sampling_rate: float = 0.7
    sampling_margin: float = 0.3


@dataclass(frozen=True)
class BayesSolution(PresentableResult):
    """A fixed point of state evolution: the overlaps of a Bayes-optimal learner with the teacher.

    Attributes:
        start: "uninformed", from the overlap due to the means (the solution that an algorithm finds), or "informed",
            from the teacher.
        status: "converged", "perfect_recovery" (perfect recovery is a stable solution, and is approached),
            "not_converged" or "time_limit".
        q: overlaps of the learner with the teacher, shape ((token, cluster) pairs, t, t).
        q_hat: conjugates of q, in its shape.
        error_bars: error bars of q, from finer integration rules and the residual, in its shape.
        free_entropy: log-evidence of the samples per d, in nats.
        free_entropy_error: error bar of the free entropy.
        residual: residual of the fixed-point equations in q, relative to perfect recovery.
        steps: number of steps of state evolution.
        columns: the columns of the teacher, from 0 on, that were learned; the others have overlap zero.
        growth: largest factor by which a small change of q, also of columns with overlap zero, grows in a step of state
            evolution: stable below 1; NaN unless converged.

    Example:
        >>> best = sf.bayes_optimal(sf.problem("phase_retrieval", alpha=0.4))
        >>> best.status, best.growth < 1, float(abs(best.q).max()) < 1e-6
        ('converged', True, True)
    """

    problem: Problem
    start: str
    status: str
    q: np.ndarray
    q_hat: np.ndarray
    error_bars: np.ndarray
    free_entropy: float
    free_entropy_error: float
    residual: float
    steps: int
    columns: tuple[int, ...] = (0,)
    growth: float = float("nan")

    half_widths = deprecated_attribute("half_widths", DeprecatedName("error_bars", "0.1.0", "0.3.0"))

    @property
    def success(self) -> bool:
        """Whether state evolution reached a fixed point, which may be perfect recovery of the teacher."""
        return self.status not in ("not_converged", "time_limit")

    @property
    def advice(self) -> str:
        """The reason why no fixed point was reached and what to try, in one sentence; empty if one was reached."""
        if self.success:
            return ""
        return (
            f"state evolution from the {self.start} start has status {self.status}: residual {self.residual:.1e} "
            f"after {self.steps} steps; try an alpha farther from thresholds, or larger error bars (--accuracy)"
        )

    @property
    def test_error(self) -> float:
        """The least test error of any learner with these samples; NaN where it is unknown."""
        return self._least_test_error[0]

    @property
    def test_error_error(self) -> float:
        """The error bar of the test error, due to integration and to the error bars of q."""
        return self._least_test_error[1]

    @cached_property
    def _least_test_error(self) -> tuple[float, float]:
        """The least test error of any learner and its error bar.

        If it is unknown for the model's error, that of the first metric that is a squared distance.
        """
        found = least_test_error(self.problem, self.q, self.error_bars) if self.success else None
        return found or next(iter(self.errors.values()), (float("nan"), float("nan")))

    @cached_property
    def errors(self) -> dict[str, tuple[float, float]]:
        """The least test error of any prediction and its error bar, by name of the metric.

        Only metrics that are the square of a distance are contained.
        """
        return least_errors_by_metric(self.problem, self.q, self.error_bars) if self.success else {}

    @cached_property
    def errors_unlearned(self) -> dict[str, tuple[float, float]]:
        """The least error of a prediction from the model's laws alone, and its error bar, by name of the metric."""
        zero = np.zeros_like(self.q)
        return least_errors_by_metric(self.problem, zero, zero) if self.success else {}

    def cosine(self, context: int = 0, column: int = 0) -> float:
        """Return the cosine of the angle between the posterior mean of a teacher column and this column.

        Args:
            context: index of the (token, cluster) pair, from 0.
            column: index of the teacher column, from 0.
        """
        known = self.q[context, column, column] / self.problem.law.rho_star[context, column, column]
        return float(np.sqrt(max(known, 0.0)))

    def table(self, erm: Solution | None = None) -> str:
        """Return the solution as a text table, compared with an empirical risk minimiser if one is given."""
        return presenting.table(self, erm)


def student_teacher_cosine(erm: Solution, context: int = 0, column: int = 0) -> float:
    """Return the cosine of the angle between a column of the student's weights and a column of the teacher's.

    Args:
        erm: replica symmetric solution of empirical risk minimisation.
        context: index of the (token, cluster) pair, from 0.
        column: index of the teacher column, from 0; the student column has the same index, or is the last one.
    """
    o = erm.overlaps
    own = min(column, o.q.shape[1] - 1)
    if not o.q[context, own, own] > 0:
        return float("nan")  # W = 0
    rho = erm.problem.law.rho_star[context, column, column]
    return float(o.theta[context, own, column] / np.sqrt(o.q[context, own, own] * rho))


@progress_step("state evolution of Bayes-optimal inference")
def bayes_optimal(
    problem: Problem, start: str = "uninformed", *, accuracy: float = 1e-6, columns: Sequence[int] | None = None
) -> BayesSolution:
    """Return the fixed point of Bayes-optimal state evolution that is reached from a start.

    Args:
        problem: the problem with its alpha.
        start: "uninformed" or "informed".
        accuracy: required error bar of q, relative to its value at perfect recovery, or to the distance from it where
            averages are cheap to compute.
        columns: columns of the teacher, from 1, that are learned while the others keep overlap zero; None for all.

    Raises:
        InputError: the model has no output channel, the start is unknown, or columns cannot keep overlap zero.
        NotConvergedError: the averages cannot be taken to the accuracy.

    Example:
        >>> problem = sf.problem("ridge_regression", alpha=2, Delta=0.25)
        >>> best, tuned = sf.bayes_optimal(problem), sf.tune(problem, "lambda", bracket=(0.01, 1))
        >>> abs(best.test_error - tuned.observed) < 1e-5
        True
    """
    require_problem(problem)
    require_known_name("start", start, STARTS)
    require_in_interval("accuracy", accuracy, "[1e-12, 1)")
    state = StateEvolutionMap(problem, None if columns is None else [column - 1 for column in columns])
    evolution = _StateEvolutionRun(state, start, accuracy)
    try:
        return evolution.run_to_fixed_point()
    except TimeLimitError:
        with budget.allow_step_overtime():
            return evolution.build_bayes_solution("time_limit", evolution.q, evolution.gap)


class _StateEvolutionRun:
    """A run of Bayes-optimal state evolution from a start to a fixed point, with its current overlaps."""

    def __init__(self, state: StateEvolutionMap, start: str, accuracy: float) -> None:
        self.state, self.start, self.accuracy, self.alpha = state, start, accuracy, state.problem.alpha
        self.scale = float(np.abs(state.pack_overlaps(state.rho)).max())
        self.counts, self.has_expensive_averages = list(state.channel.counts), state.channel.has_expensive_averages
        # Averages over hidden fields are expensive: their rules are refined only as the error bar needs.
        self.tolerance, self.rough = (
            (accuracy / 2, 0.01) if self.has_expensive_averages else (accuracy / 10, max(accuracy / 10, 1e-6))
        )
        self.q = state.perfect_recovery_overlaps * (1 - 1e-3) if start == "informed" else state.overlaps_without_samples
        self.gap, self.steps = np.inf, 0

    def run_to_fixed_point(self) -> BayesSolution:
        """Iterate state evolution from its start and return the fixed point to which it converges.

        Raises:
            TimeLimitError: the time limit is reached.
        """
        state, alpha = self.state, self.alpha
        reach = 2e-2 if self.has_expensive_averages else 1e-3  # largest change of the solution by a refined rule
        options = BayesSolverOptions.current()
        if self.start == "uninformed" and state.has_zero_overlap_solution:
            factor, direction = leading_growth_mode_at_zero_overlap(state)
            if alpha * factor <= 1:
                return self._zero_overlap_solution()
            self._restart_from_perturbed_overlaps(self.q, direction)
        settled_at = self._unknown_teacher_fraction(self.q)
        state.refine_quadrature(self.q, alpha, self.rough)
        state.check_excluded_columns_stay_zero(self.q, alpha)
        last, ratio, patience = np.inf, 0.0, 0
        while self.steps < options.max_steps:
            budget.check_time_limit()
            asked = f"last change {last:.0e}, goal {self.tolerance:.0e}"
            report_remaining_work(f"step {self.steps} of at most {options.max_steps}, {asked}")
            image = state.apply_state_evolution(self.q, alpha)
            self.steps += 1
            self.gap = gap = float(np.abs(image - self.q).max()) / self.scale
            before, self.q = self.q, image
            unknown = self._unknown_teacher_fraction(image)
            if unknown < options.recovery_fraction and unknown < 0.999 * self._unknown_teacher_fraction(before):
                if is_perfect_recovery_stable(state):
                    return self._perfect_recovery_solution()
                if not state.prior.information_dimension:
                    return self._almost_perfect_recovery_solution()
            last_ratio, ratio, last = ratio, gap / max(last, 1e-300), gap
            falling = (self.steps > 2 and ratio < 1) or gap < 1e-13
            scale_fraction = self._unit_of_overlap_accuracy(image)
            ratio_is_constant = (
                abs(ratio - last_ratio) < 0.02 and self.steps > 4 and gap < 0.05 * (1 - ratio) * scale_fraction
            )
            close = ratio_is_constant or gap < self.tolerance * scale_fraction * max(1 - ratio, 1e-3)
            if self.steps >= patience and falling and close:
                patience = int(1.5 * self.steps) + 1
                averages = (
                    state.channel.channel_averages(image, curved=True) if self._has_admissible_overlaps(image) else None
                )
                polished = self._find_fixed_point_by_newton(image, gap / max(1 - ratio, 1e-6) * self.scale, averages)
                # From no information the overlap only grows: Newton may not fall back to an unstable q = 0.
                kept = self.start == "informed"
                if polished is not None and (
                    kept or state.recovered_overlap_fraction(polished) > 0.999 * state.recovered_overlap_fraction(image)
                ):
                    scale_fraction = self._unit_of_overlap_accuracy(polished)
                    state.refine_quadrature(polished, alpha, max(self.tolerance * scale_fraction, _ROUNDING), averages)
                    again = self._find_fixed_point_by_newton(polished, reach * scale_fraction * self.scale, averages)
                    if again is not None:
                        averages = state.channel.channel_averages(again, curved=True)
                        away = None if kept else self._unstable_direction(averages)
                        if away is None:
                            return self._solution_with_error_bars(again, averages)
                        self._restart_from_perturbed_overlaps(again, away)
                        last, patience = np.inf, self.steps + 5
                        state.refine_quadrature(self.q, alpha, self.rough)
            # Larger overlaps need a finer rule: one that is too rough would suggest perfect recovery.
            least = options.min_refined_fraction if self.has_expensive_averages else 0.0
            finer = not state.channel.has_no_hidden_integral and least < unknown < options.refinement_ratio * settled_at
            if finer or self.steps % 50 == 0:
                settled_at = unknown
                state.refine_quadrature(self.q, alpha, self.rough)
        return self.build_bayes_solution("not_converged", self.q, self.gap)

    def _restart_from_perturbed_overlaps(self, q: np.ndarray, direction: np.ndarray) -> None:
        """Continue state evolution from a fixed point q, perturbed by a small step along a direction."""
        sizes = np.abs(np.diagonal(self.state.perfect_recovery_overlaps, axis1=1, axis2=2))
        self.q = q + 1e-3 * direction / np.abs(direction).max() * sizes[sizes > 0].min()
        if self.has_expensive_averages:
            self.state.channel.counts = list(self.counts)  # at zero overlap a rule may be finer than needed

    def _unstable_direction(self, averages: ChannelAverages) -> np.ndarray | None:
        """Return the direction of overlaps q in which a fixed point is unstable; None if it is stable.

        It has a matrix of positive trace for each (token, cluster) pair. Newton's method can converge to an unstable
        fixed point where a column has overlap zero by symmetry.

        Args:
            averages: averages over the channel at the fixed point, with their derivative in q.
        """
        values, vectors = np.linalg.eig(self.state.jacobian(averages, self.alpha))
        leading = int(np.argmax(values.real))
        if not values[leading].real > 1:
            return None
        direction = self.state.unpack_overlaps(vectors[:, leading].real)
        return direction * (-1.0 if np.trace(direction.sum(axis=0)) < 0 else 1.0)

    def _overlaps_of_learned_columns(self, q: np.ndarray) -> np.ndarray:
        """Return the blocks of the overlaps q for learned columns, ((token, cluster) pairs, columns, columns)."""
        return q[np.ix_(range(len(q)), self.state.columns, self.state.columns)]

    def _unknown_teacher_fraction(self, q: np.ndarray) -> float:
        """Return the largest fraction of the teacher, over directions of its columns, that is unknown at overlaps q."""
        rho = self._overlaps_of_learned_columns(self.state.rho)
        return spectral_radius(np.linalg.solve(rho, rho - self._overlaps_of_learned_columns(q)))

    def _unit_of_overlap_accuracy(self, q: np.ndarray) -> float:
        """Return the unit in which the accuracy of q is required, as a fraction of full overlap.

        The unit is the unknown fraction of the teacher where averages are cheap to compute, else 1.
        """
        return 1.0 if self.has_expensive_averages else min(self._unknown_teacher_fraction(q), 1.0)

    def _has_admissible_overlaps(self, q: np.ndarray) -> bool:
        """Return whether overlaps q of the learned columns lie, up to rounding, between zero and perfect recovery."""
        least = np.linalg.eigvalsh(self._overlaps_of_learned_columns(q)).min()
        above = np.linalg.eigvalsh(self._overlaps_of_learned_columns(self.state.rho - q)).min()
        return bool(least > -1e-4 * np.abs(self.state.rho).max() and above > 0)

    def _find_fixed_point_by_newton(
        self, q: np.ndarray, reach: float, near: ChannelAverages | None = None
    ) -> np.ndarray | None:
        """Return the fixed point close to overlaps q by Newton's and then Broyden's method, or None if there is none.

        A fixed point with less than half of the unknown fraction of q is rejected: q may approach perfect recovery.

        Args:
            q: initial overlaps, shape ((token, cluster) pairs, t, t).
            reach: largest allowed distance between the fixed point and q.
            near: averages with their derivative at q or close to it, for the first Jacobian.
        """
        state, x = self.state, self.state.pack_overlaps(q)
        # A rough rule's average of derivatives is not quite the derivative of its averages; Broyden updates correct it.
        rest = self.accuracy / 30 if self.has_expensive_averages else 1e-13
        move, value = np.zeros_like(x), np.zeros_like(x)
        matrix = None if near is None else state.jacobian(near, self.alpha) - np.eye(len(x))
        for _ in range(24):
            if not self._has_admissible_overlaps(state.unpack_overlaps(x)):
                return None
            budget.check_time_limit()
            averages = state.channel.channel_averages(state.unpack_overlaps(x), curved=matrix is None)
            before, value = value, state.pack_overlaps(state.overlaps_from_averages(averages, self.alpha)) - x
            if np.abs(value).max() < 1e-14 * self.scale:
                break
            if matrix is None:
                matrix = state.jacobian(averages, self.alpha) - np.eye(len(x))
            elif move.any():
                matrix += np.outer(value - before - matrix @ move, move) / (move @ move)
            try:
                move = -np.linalg.solve(matrix, value)
            except np.linalg.LinAlgError:
                return None
            x = x + move
            if np.abs(move).max() < rest * self.scale:
                break
        else:
            return None
        found = state.unpack_overlaps(x)
        close = np.abs(found - q).max() <= 3 * reach + 1e-9 * self.scale
        kept = (
            close
            and self._has_admissible_overlaps(found)
            and self._unknown_teacher_fraction(found) > 0.5 * self._unknown_teacher_fraction(q)
        )
        return found if kept else None

    def _fixed_point_residual(self, q: np.ndarray, averages: ChannelAverages) -> float:
        gap = self.state.overlaps_from_averages(averages, self.alpha) - q
        return float(np.abs(gap).max()) / float(np.abs(self.state.rho).max())

    def _solution_with_error_bars(self, q: np.ndarray, averages: ChannelAverages) -> BayesSolution:
        """Return the solution at a fixed point with error bars, refining rules until these are below the accuracy.

        Error bars come from finer integration rules, or from replicates of a sampled one.

        Args:
            q: overlaps at the fixed point, shape ((token, cluster) pairs, t, t).
            averages: averages over the channel at q, with their derivative.
        """
        state, scale, tolerance = self.state, float(np.abs(self.state.rho).max()), self.tolerance
        if state.channel.is_averaged_by_sampling(q):
            return self._solution_with_sampling_errors(q, averages)
        best, most = None, BayesSolverOptions.current().max_refinements
        for refined in range(most):
            try:
                # Twice the change of the solution and of Phi by finer rules.
                gap, moved = self._changes_by_finer_rules(q, averages)
                widths = 2 * state.bound_on_solution_change(gap, self.alpha, averages) + np.where(
                    q == 0, 0.0, _ROUNDING * scale
                )
            except (NotConvergedError, np.linalg.LinAlgError):
                break
            best = self.build_bayes_solution(
                "converged", q, self._fixed_point_residual(q, averages), widths, 2 * moved, averages
            )
            scale_fraction = self._unit_of_overlap_accuracy(q)
            asked = max(self.accuracy * scale_fraction, 2 * _ROUNDING)
            if (worst := float(widths.max()) / scale) <= asked or refined == most - 1:
                break
            tolerance *= 0.3 * asked / worst
            report_remaining_work(f"error bar {worst:.1g}, goal {asked:.1g}")
            try:
                state.refine_quadrature(q, self.alpha, max(tolerance * scale_fraction, _ROUNDING), averages)
                finer = self._find_fixed_point_by_newton(q, scale, averages)
            except NotConvergedError:
                break
            if finer is None:
                break
            q, averages = finer, state.channel.channel_averages(finer, curved=True)
        return best or self.build_bayes_solution("not_converged", q, np.nan)

    def _changes_by_finer_rules(
        self, q: np.ndarray, averages: ChannelAverages, image: np.ndarray | None = None
    ) -> tuple[np.ndarray, float]:
        """Return by how much finer quadrature rules change the next overlaps and the free entropy, at most.

        The next overlaps are those after a step of state evolution from q; `image` are those by the current rules, by
        default q itself, as at a fixed point.
        """
        state, alpha = self.state, self.alpha

        def mapped_overlaps_and_free_entropy() -> tuple[np.ndarray, float]:
            finer = state.channel.channel_averages(q)
            return state.overlaps_from_averages(finer, alpha), state.free_entropy(q, alpha, finer)

        phi = state.free_entropy(q, alpha, averages)
        images, values = zip(*state.evaluate_with_finer_rules(mapped_overlaps_and_free_entropy), strict=True)
        gap = np.abs(np.array(images) - (q if image is None else image)).max(axis=0)
        return gap, max(abs(value - phi) for value in values)

    def _solution_with_sampling_errors(self, q: np.ndarray, averages: ChannelAverages) -> BayesSolution:
        """Return the solution at a fixed point, with as many samples as bring the error bars of q below the accuracy.

        Args:
            q: overlaps at the fixed point, shape ((token, cluster) pairs, t, t).
            averages: averages over the channel at q, with their derivative.

        Raises:
            NotConvergedError: too many samples would be needed.
        """
        state, scale = self.state, float(np.abs(self.state.rho).max())
        planted, options = state.channel.planted, BayesSolverOptions.current()
        while True:
            widths = state.sampling_error_bars(q, averages, self.alpha)
            worst = float(widths.max()) / scale
            if worst <= self.accuracy:
                return self.build_bayes_solution(
                    "converged", q, self._fixed_point_residual(q, averages), widths, averages=averages
                )
            further = max(1, int(np.ceil(np.log2(worst / self.accuracy) / options.sampling_rate)))
            most = planted.max_log2_draws_per_replicate
            # Error bars of few draws are rough.
            margin = options.sampling_margin * (most - planted.log2)
            if planted.log2 == most or planted.log2 + further > most + margin:
                raise NotConvergedError(
                    f"the overlap q of {state.problem.solver.name} has a relative error bar of {worst:.1g} "
                    f"with 2^{planted.log2} draws per replicate; an error bar of {self.accuracy:g} needs more than "
                    f"2^{most} draws: allow larger error bars (--accuracy)"
                )
            drawn = f"2^{planted.log2} draws per replicate"
            report_remaining_work(f"error bar {worst:.1g} from {drawn}, goal {self.accuracy:g}")
            planted.log2 += min(further, 3, most - planted.log2)
            finer = self._find_fixed_point_by_newton(q, scale)
            if finer is None:
                return self.build_bayes_solution("not_converged", q, np.nan)
            q, averages = finer, state.channel.channel_averages(finer, curved=True)

    def _zero_overlap_solution(self) -> BayesSolution:
        """Return the stable fixed point q = 0 as a solution; nothing is learned there."""
        zero = np.zeros_like(self.state.rho)
        self.state.refine_quadrature(zero, self.alpha, self.tolerance)
        averages = self.state.channel.channel_averages(zero, curved=True)
        phi_error = 2 * self._changes_by_finer_rules(zero, averages)[1]
        return self.build_bayes_solution("converged", zero, 0.0, zero, phi_error, averages)

    def _perfect_recovery_solution(self) -> BayesSolution:
        """Return perfect recovery as the solution, with its distance from the last overlaps as error bar."""
        whole, phi = self.state.perfect_recovery_overlaps, free_entropy_of_perfect_recovery(self.state)
        return BayesSolution(
            self.state.problem, self.start, "perfect_recovery", whole, np.full_like(whole, np.inf),
            np.abs(whole - self.q), phi, 0.0, self.gap, self.steps, self.state.columns,
        )  # fmt: skip

    def _almost_perfect_recovery_solution(self) -> BayesSolution:
        """Return the solution close to perfect recovery, for teacher rows that take few values.

        The remaining errors are exponentially rare in the conjugate of q, which is extrapolated to perfect recovery.
        """
        state, alpha, found = self.state, self.alpha, []
        for farther in (2.0, 1.0):
            near = overlaps_near_perfect_recovery(state, farther)
            state.refine_quadrature(near, alpha, 1e-6)
            averages = state.channel.channel_averages(near, curved=True)
            state.prior.refine_quadrature(alpha * averages.outer, BayesSolverOptions.current().limit_tolerance)
            found.append(averages)
        before, averages = found
        limit = replace(averages, outer=2 * averages.outer - before.outer)
        q, image = state.overlaps_from_averages(limit, alpha), state.overlaps_from_averages(averages, alpha)
        scale = np.abs(state.rho).max()
        by_rules, phi_moved = self._changes_by_finer_rules(near, averages, image)
        moved = np.abs(q - image) + by_rules
        beyond = abs(float(np.einsum("cij,cij->", limit.outer - averages.outer, state.rho - near))) * alpha
        widths = 2 * moved + _ROUNDING * scale
        best = self.build_bayes_solution(
            "converged", near, float(moved.max() / scale), widths, 2 * phi_moved + beyond, averages
        )
        # Up to rounding q is below rho*.
        return replace(best, q=q / max(state.recovered_overlap_fraction(q), 1.0), q_hat=alpha * limit.outer)

    def build_bayes_solution(
        self, status: str, q: np.ndarray, residual: float, widths: np.ndarray | None = None, phi_error: float = 0.0,
        averages: ChannelAverages | None = None,
    ) -> BayesSolution:  # fmt: skip
        """Return overlaps as a `BayesSolution` with a status.

        Args:
            status: one of the values of `BayesSolution.status`.
            q: overlaps q, a (t, t) matrix of teacher columns for each (token, cluster) pair.
            residual: residual of the fixed-point equations, relative to full overlap.
            widths: error bars of q, or None.
            phi_error: error bar of the free entropy due to numerical integration.
            averages: averages over the channel at q; computed if not given.
        """
        state, alpha, found = self.state, self.alpha, status == "converged"
        averages = averages or state.channel.channel_averages(q, curved=found)
        error = phi_error + 1e-14 * (1 + alpha * abs(averages.log_evidence))
        if averages.samples:
            values = [state.free_entropy(q, alpha, sample) for sample in averages.samples]
            error += float(replicate_error_bar(np.array(values)))
        most = float("nan")
        if found:
            most = max(spectral_radius(state.jacobian(averages, alpha, outside)) for outside in (False, True))
        return BayesSolution(
            state.problem, self.start, status, q, alpha * averages.outer,
            np.full_like(q, np.nan) if widths is None else widths, state.free_entropy(q, alpha, averages), error,
            residual, self.steps, state.columns, most,
        )  # fmt: skip
