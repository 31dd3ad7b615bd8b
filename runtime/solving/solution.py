"""A solution of the saddle point with error bars, and its verdict on stability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..base import budget, presenting
from ..base.deprecation import DeprecatedName, deprecated_attribute
from ..base.errors import TimeLimitError
from ..base.presenting import PresentableResult
from ..base.progress import progress_step
from ..channel.landscape import Landscape, analyse_landscape
from ..integration import Rule, SaddlePointAverages, choose_field_jacobian_rules
from ..problems.columns import METRIC
from ..problems.observables import ObservablesMixin
from ..problems.overlaps import Conjugates, Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import StateSymmetry
from ..saddle_point import observables
from ..saddle_point.generated_jacobian import explain_missing_derivative_formula
from ..saddle_point.iteration import FixedPoint, Status
from ..saddle_point.starts import are_theta_and_m_nonzero, name_branch, overlaps_of_start
from ..stability.assess import Stability, assess_stability
from ..stability.displacement import Displacements
from ..stability.longitudinal import LongitudinalJacobian
from .explaining import explain_choice_of_rule
from .thermal import GibbsAverages, gibbs_averages


@dataclass(frozen=True)
class ErrorBars(Overlaps):
    """The error bars of a solution: of overlaps (arrays of their shapes), losses and test errors.

    Attributes:
        training_loss: error bar of the training loss; nan without one.
        test_error: error bar of the test error; nan without one.
        test_errors: error bars of the test errors by name of the metric.
    """

    training_loss: float = np.nan
    test_error: float = np.nan
    test_errors: Mapping[str, float] = field(default_factory=dict)


class SaddlePoint(ObservablesMixin, PresentableResult):
    """The base class of solutions of the saddle point, with and without replica symmetry breaking."""

    if TYPE_CHECKING:  # fields of one of them, properties of the other

        @property
        def problem(self) -> Problem: ...  # noqa: D102
        @property
        def overlaps(self) -> Overlaps: ...  # noqa: D102
        @property
        def training_loss_error(self) -> float: ...  # noqa: D102

    status: Status

    @property
    def success(self) -> bool:
        """Return whether the solution meets the accuracy; `advice` says what to try otherwise."""
        return self.status.success

    @property
    def _has_test_errors(self) -> bool:
        """Return whether the solution has test errors; a failed solution has none."""
        raise NotImplementedError

    @property
    def _overlap_error_bars(self) -> np.ndarray:
        """Return the error bars of the packed overlaps, as one vector."""
        raise NotImplementedError

    @property
    def test_errors_with_error_bars(self) -> dict[str, tuple[float, float]]:
        """Return value and error bar of the test error for every metric, by its name."""
        names = self.problem.metric_names if self._has_test_errors else ()
        return (
            {names[0]: self._observable_with_error("test_error"), **self.further_test_errors_with_error_bars}
            if names
            else {}
        )

    @property
    def further_test_errors_with_error_bars(self) -> dict[str, tuple[float, float]]:
        """Return value and error bar of the test error for every metric but the first, by its name."""
        found = {name: value for name, value in self.observed.items() if name.startswith(METRIC)}
        return {name.removeprefix(METRIC): value for name, value in found.items()}

    @property
    def test_errors(self) -> dict[str, float]:
        """Return the test error for every named metric, by its name; empty without named metrics."""
        return {name: value for name, (value, _) in self.test_errors_with_error_bars.items()}

    half_widths = deprecated_attribute("half_widths", DeprecatedName("error_bars", "0.1.0", "0.3.0"))

    @property
    def error_bars(self) -> ErrorBars:
        """Return the error bars of the overlaps (q, V, m, theta, phi), of the losses and of the test errors."""
        blocks = vars(Overlaps.unpack(self._overlap_error_bars, self.overlaps.sizes))
        named = {name: width for name, (_, width) in self.test_errors_with_error_bars.items()}
        return ErrorBars(**blocks, training_loss=self.training_loss_error, test_error=self.test_error_error,
                          test_errors=named)  # fmt: skip

    def table(self, names: Mapping[str, str] | None = None) -> str:
        """Return the solution as a text table; `names` replaces symbols by your own, for example {"theta": "T"}."""
        return presenting.table(self, names)


@dataclass(frozen=True, repr=False)
class Solution(SaddlePoint):
    """A replica symmetric solution of the saddle point with error bars; if `status` is a failure, the last iterate.

    Attributes:
        errors: error bars of the packed overlaps: two standard errors, or the difference of two quadrature rules.
        training_loss_error: error bar of the training loss.
        multipliers_error: error bars of `multipliers`; None if there are none.
        error_kind: "estimated" or "verified" (two different quadrature rules agree within the error bars).
        second_order: part of `training_loss_error` that is due to errors of the overlaps.
        shifts: changes of the packed overlaps by other quadrature rules or by each replicate, in rows, as they count in
            error bars.
        residual_shift: change of the packed overlaps in one Newton step from the residual.
        jacobian: Jacobian dG/du that Newton's method used.
        drift: relative change of the overlaps since the Jacobian was computed.
        loss_rule: quadrature rule of the training loss, if it differs from that of the overlaps.
        rank: 1 for the lowest training loss of the branches found; None if others were not sought.
        judge: whether `stability` is computed when first asked for.
        observed: observables of the overlaps, by name: value and error bar. They are attributes, too
            (`test_error`, `test_error_error`); see `ObservablesMixin`.
        outside: a sentence: where the iteration left the domain of definition, which matrix lost positivity and in
            which direction, or where a branch that the start left was found and lost again.
        tried: a sentence for each rule tried.

    Example:
        >>> found = sf.solve(sf.problem("ridge_regression", alpha=2))
        >>> found.status.value, round(found.test_error, 6), found.test_error_error < 1e-6
        ('converged', 0.442665, True)
        >>> round(float(found.overlaps.q[0, 0, 0]), 6), float(found.error_bars.q[0, 0, 0]) < 1e-6
        (1.023807, True)
        >>> found.stability.replicon < 1
        True
    """

    problem: Problem
    start: str
    overlaps: Overlaps
    conjugates: Conjugates | None
    status: Status
    residual: float
    iterations: int
    rule: Rule
    errors: np.ndarray
    losses: observables.Losses | None = None
    training_loss_error: float = np.nan
    observed: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    second_order: float = 0.0
    error_kind: str = "estimated"
    rank: int | None = None
    jacobian: np.ndarray | None = field(default=None, repr=False)
    drift: float = field(default=0.0, repr=False)
    averages: SaddlePointAverages | None = field(default=None, repr=False)
    symmetry: StateSymmetry | None = field(default=None, repr=False)
    shifts: np.ndarray | None = field(default=None, repr=False)
    residual_shift: np.ndarray | None = field(default=None, repr=False)
    loss_rule: Rule | None = None
    multipliers_error: np.ndarray | None = None
    judge: bool = True
    outside: str = ""
    tried: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def _has_test_errors(self) -> bool:
        """Return whether the solution has test errors; a failed solution has none."""
        return self.losses is not None

    @property
    def _overlap_error_bars(self) -> np.ndarray:
        """Return the error bars of the packed overlaps, as one vector."""
        return self.errors

    @property
    def fixed_point(self) -> FixedPoint:
        """Return the state at which the iteration ended, from which another one can start."""
        u, sizes = self.overlaps.pack(), self.overlaps.sizes
        return FixedPoint(u, sizes, self.residual, Status.CONVERGED, 0, self.jacobian, self.drift)

    @property
    def explanation(self) -> list[str]:
        """Return sentences that explain the choice of the quadrature rule: dimensions, kinks and jumps, rules tried."""
        return explain_choice_of_rule(self.problem, self.overlaps, self.averages, self.tried)

    @property
    def advice(self) -> str:
        """Return a sentence that says why the solve did not converge and what to try; empty if it converged."""
        reasons = [self.outside, self.status.advice]
        if self.status is Status.LEFT_BASIN and not self.problem.has_targets_in_loss:
            reasons.insert(0, "the loss depends on neither Y nor a label, so that nothing of the teacher is learned")
        return "; ".join(filter(None, reasons))

    @property
    def training_loss(self) -> float:
        """Return the training loss per d, minus the free entropy; at a finite temperature the free energy."""
        return self.losses.training_loss if self.losses else np.nan

    @property
    def free_entropy(self) -> float:
        """Return the free entropy per d (at a finite temperature divided by the inverse temperature); nan if failed."""
        return self.losses.free_entropy if self.losses else np.nan

    @property
    def multipliers(self) -> np.ndarray | None:
        """Return the ridge strength of each column that keeps its prescribed norm; None without prescribed norms."""
        return self.problem.multipliers(self.conjugates) if self.conjugates else None

    @cached_property
    def baseline_error(self) -> float:
        """Return the test error of the best constant linear layer, docs/theory.md (7.7); nan without such a layer.

        It is nan, too, if a time limit ends its compilation.
        """
        try:
            with budget.allow_step_overtime():
                return observables.baseline_error(self.problem)
        except TimeLimitError:
            return np.nan

    @property
    def relative_error(self) -> float:
        """Return the largest error bar of an overlap, relative to the size of its block."""
        return float(np.max(self.errors / self.overlaps.block_scales))

    @property
    def loss_error_from_residual(self) -> float:
        """Return the error of the training loss due to the residual of the equations, which is of second order."""
        shift = self.residual * self.overlaps.block_scales if self.residual_shift is None else self.residual_shift
        return float(np.max(np.abs(shift) / self.overlaps.block_scales)) ** 2 * abs(self.training_loss)

    @property
    def branch(self) -> str:
        """Return the name of the branch: informed, mean, mixed or uninformed (several tokens: semantic, positional)."""
        return name_branch(self.problem, self.overlaps, self.errors)

    @cached_property
    def stability(self) -> Stability | None:
        """Return the verdict on the stability of the solution (cached); None if the solve failed."""
        return self.compute_stability()

    def compute_stability(self, spectrum: bool = True, log2_lines: int | None = None) -> Stability | None:
        """Compute the verdict on the stability of the solution with chosen effort; None if it cannot be computed.

        It is None if the solve failed, if verdicts are switched off (`judge`), or if a time limit comes first.

        Args:
            spectrum: whether the longitudinal spectrum is computed.
            log2_lines: log2 of the number of lines per replicate on which jumps are sought; None: by number of fields.
        """
        if self.averages is None or self.status is Status.TIME_LIMIT or not self.judge:
            return None
        try:
            with progress_step("verdict on stability"):
                budget.check_time_limit()
                return self._compute_stability(self.averages, spectrum, log2_lines)
        except TimeLimitError:
            return None

    def _compute_stability(self, averages: SaddlePointAverages, spectrum: bool, log2_lines: int | None) -> Stability:
        rules = choose_field_jacobian_rules(self.rule, self.problem, averages.bistable)
        displaced = Displacements.from_error_bars(
            self.overlaps, self.errors, self.shifts, self.residual_shift, self.rule.replicated
        )
        # Nodes in the fields miss the contribution of jumps between them.
        exact = self.rule.in_x or (self.rule.splits_jumps and averages.bistable == 0)
        # The loop over nodes that computes the replicon computes these slopes, too.
        printed = (
            spectrum and exact and rules[0] == self.rule and explain_missing_derivative_formula(self.problem) is None
        )
        matrix, error = None, np.nan
        if spectrum:
            matrix, error = LongitudinalJacobian(
                self.problem, self.rule, self.overlaps.pack(), printed
            ).jacobian_with_eigenvalue_error(displaced)
        found = assess_stability(self.problem, self.overlaps, rules, matrix, averages, self.rule, displaced, log2_lines)
        return replace(found, slopes_by="printed derivatives" if printed else "differences", longitudinal_error=error)

    @cached_property
    def thermal(self) -> GibbsAverages | None:
        """Return energy, entropy and test error of weights drawn from the Gibbs measure; None at temperature zero."""
        if self.problem.inverse_temperature is None or self.losses is None or self.shifts is None:
            return None
        with progress_step("averages over the Gibbs measure"):
            return gibbs_averages(
                self.problem, self.overlaps, self.error_bars, self.losses, self.training_loss_error, self.rule,
                self.shifts,
            )  # fmt: skip

    @cached_property
    def landscape(self) -> Landscape:
        """Return the minima of the proximal (Moreau) objective of random samples, and which are proved to be global."""
        with progress_step("minima of the Moreau objective at random points"):
            return analyse_landscape(self.problem, self.overlaps)


def has_lost_overlap_of_start(problem: Problem, start: str | Overlaps | Solution, solution: SaddlePoint) -> bool:
    """Return whether an overlap, theta or m, is nonzero at the start but zero within error bars at the solution.

    For a named start these are the overlaps of its weights; overlaps with encodings that a model lacks are zero.

    Args:
        problem: the problem that was solved.
        start: its start.
        solution: the solution that was reached from that start.
    """
    if isinstance(start, Solution):
        held = are_theta_and_m_nonzero(start.overlaps, start.errors)
    else:
        held = are_theta_and_m_nonzero(overlaps_of_start(problem, start) if isinstance(start, str) else start)
    there = are_theta_and_m_nonzero(solution.overlaps, solution._overlap_error_bars)
    return any(before and not after for before, after in zip(held, there, strict=True))


def solutions_agree_within_errors(one: Solution, other: Solution) -> bool:
    """Return whether two solutions of a problem agree within their error bars.

    Args:
        one: a solution.
        other: another one to compare with.
    """
    scales = one.overlaps.block_scales
    tolerance = 3 * (one.errors + other.errors) + 1e-6 * scales
    return bool(np.all(np.abs(one.overlaps.pack() - other.overlaps.pack()) <= tolerance))
