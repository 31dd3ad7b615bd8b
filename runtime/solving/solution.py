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
from ..saddle_point.starts import name_branch, nonzero_overlaps, overlaps_of_start
from ..stability.assess import Stability, assess_stability
from ..stability.displacement import Displacements
from ..stability.longitudinal import LongitudinalJacobian
from .explaining import explain_choice_of_rule
from .thermal import GibbsAverages, gibbs_averages


@dataclass(frozen=True)
class ErrorBars(Overlaps):
    """Error bars by name: of overlaps in their shapes, of losses and of test errors.

    Attributes:
        training_loss, test_error: error bars; nan where there is none.
        test_errors: test errors of the named metrics, as `Solution.test_errors`.
    """

    training_loss: float = np.nan
    test_error: float = np.nan
    test_errors: Mapping[str, float] = field(default_factory=dict)


class SaddlePoint(ObservablesMixin, PresentableResult):
    """A saddle point: the base of solutions with and without replica symmetry breaking."""

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
        """Return whether test errors are available: a failed solution has none."""
        raise NotImplementedError

    @property
    def _overlap_error_bars(self) -> np.ndarray:
        """Return the error bars of the packed `overlaps`, (n,)."""
        raise NotImplementedError

    @property
    def test_errors_with_error_bars(self) -> dict[str, tuple[float, float]]:
        """Return the test errors by the names of the metrics: value and error bar."""
        names = self.problem.metric_names if self._has_test_errors else ()
        return (
            {names[0]: self._observable_with_error("test_error"), **self.further_test_errors_with_error_bars}
            if names
            else {}
        )

    @property
    def further_test_errors_with_error_bars(self) -> dict[str, tuple[float, float]]:
        """Return the test errors of all metrics but the first, by name: value and error bar."""
        found = {name: value for name, value in self.observed.items() if name.startswith(METRIC)}
        return {name.removeprefix(METRIC): value for name, value in found.items()}

    @property
    def test_errors(self) -> dict[str, float]:
        """Return test errors by the names of the metrics, in their order; empty without a named metric."""
        return {name: value for name, (value, _) in self.test_errors_with_error_bars.items()}

    half_widths = deprecated_attribute("half_widths", DeprecatedName("error_bars", "0.1.0", "0.3.0"))

    @property
    def error_bars(self) -> ErrorBars:
        """Return error bars of everything reported, by name: q, V, m, theta, phi in their shapes, and the losses."""
        blocks = vars(Overlaps.unpack(self._overlap_error_bars, self.overlaps.sizes))
        named = {name: width for name, (_, width) in self.test_errors_with_error_bars.items()}
        return ErrorBars(**blocks, training_loss=self.training_loss_error, test_error=self.test_error_error,
                          test_errors=named)  # fmt: skip

    def table(self, names: Mapping[str, str] | None = None) -> str:
        """Return the solution as a text table; `names` are your own symbols, {"theta": "T", "omega": "a"}."""
        return presenting.table(self, names)


@dataclass(frozen=True, repr=False)
class Solution(SaddlePoint):
    """A solution of the saddle point with error bars; or, where `status` says so, the last iterate.

    Attributes:
        errors: error bars of the packed overlaps, two standard errors or the difference of two rules.
        training_loss_error: error bar.
        multipliers_error: error bars (s,) of `multipliers`; None where there are none.
        error_kind: "estimated" or "verified" (two different rules agree within it).
        second_order: the part of `training_loss_error` that comes from the errors of the overlaps; Phi is stationary.
        shifts: changes of the packed overlaps by other rules (or each replicate), times the factors of the error bars,
            (k, n).
        residual_shift: their change, (n,), that the residual stands for.
        jacobian, drift: dG/du that Newton's method used, and how far the overlaps have moved since, in block scales.
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
        """Return whether test errors are available: a failed solution has none."""
        return self.losses is not None

    @property
    def _overlap_error_bars(self) -> np.ndarray:
        """Return the error bars of the packed overlaps, (n,)."""
        return self.errors

    @property
    def fixed_point(self) -> FixedPoint:
        """Return the converged state, from which another iteration can start."""
        u, sizes = self.overlaps.pack(), self.overlaps.sizes
        return FixedPoint(u, sizes, self.residual, Status.CONVERGED, 0, self.jacobian, self.drift)

    @property
    def explanation(self) -> list[str]:
        """Return why this rule was chosen, as sentences: dimensions, kinks and jumps of the averages, rules tried."""
        return explain_choice_of_rule(self.problem, self.overlaps, self.averages, self.tried)

    @property
    def advice(self) -> str:
        """Return a sentence on why the solve did not converge and what to try; empty if it converged."""
        reasons = [self.outside, self.status.advice]
        if self.status is Status.LEFT_BASIN and not self.problem.has_targets:
            reasons.insert(0, "the loss depends on neither Y nor a label, so that nothing of the teacher is learned")
        return "; ".join(filter(None, reasons))

    @property
    def training_loss(self) -> float:
        """Return -Phi, per d; at a finite temperature the free energy (`thermal` holds the energy)."""
        return self.losses.training_loss if self.losses else np.nan

    @property
    def free_entropy(self) -> float:
        """Return the free entropy Phi per d (over the inverse temperature at a finite one); nan without a solution."""
        return self.losses.free_entropy if self.losses else np.nan

    @property
    def multipliers(self) -> np.ndarray | None:
        """Return the ridge strengths (s,) that keep given norms of the weights; None without given norms."""
        return self.problem.multipliers(self.conjugates) if self.conjugates else None

    @cached_property
    def baseline_error(self) -> float:
        """Return the error e_0 of the best constant linear layer, docs/theory.md (7.7); nan without such a layer."""
        return observables.baseline_error(self.problem)

    @property
    def relative_error(self) -> float:
        """Return the largest error bar of an overlap, relative to the size of its block."""
        return float(np.max(self.errors / self.overlaps.block_scales))

    @property
    def loss_error_from_residual(self) -> float:
        """Return the error of the training loss that the residual leaves, of second order: Phi is stationary."""
        shift = self.residual * self.overlaps.block_scales if self.residual_shift is None else self.residual_shift
        return float(np.max(np.abs(shift) / self.overlaps.block_scales)) ** 2 * abs(self.training_loss)

    @property
    def branch(self) -> str:
        """Return the branch: informed, mean, mixed or uninformed; with several tokens semantic, positional, ..."""
        return name_branch(self.problem, self.overlaps, self.errors)

    @cached_property
    def stability(self) -> Stability | None:
        """Return the verdict on stability, computed when first asked for; None without a solution."""
        return self.compute_stability()

    def compute_stability(self, spectrum: bool = True, log2_lines: int | None = None) -> Stability | None:
        """Return the verdict on stability with chosen effort; None if it cannot be computed.

        None without a solution, where no verdict is asked for (`judge`), or where a time limit comes first.

        Args:
            spectrum: whether the longitudinal spectrum is computed.
            log2_lines: log2 of the lines, in each replicate, on which jumps are sought; default by number of fields.
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
        """Return energy, entropy and test error of weights drawn from the Gibbs measure; None at zero temperature."""
        if self.problem.inverse_temperature is None or self.losses is None or self.shifts is None:
            return None
        with progress_step("averages over the Gibbs measure"):
            return gibbs_averages(
                self.problem, self.overlaps, self.error_bars, self.losses, self.training_loss_error, self.rule,
                self.shifts,
            )  # fmt: skip

    @cached_property
    def landscape(self) -> Landscape:
        """Return the minima of the Moreau objective at random points, and which of them are proved global."""
        with progress_step("minima of the Moreau objective at random points"):
            return analyse_landscape(self.problem, self.overlaps)


def has_lost_overlap_of_start(problem: Problem, start: str | Overlaps | Solution, solution: SaddlePoint) -> bool:
    """Return whether theta or m is nonzero at the start but zero within its error bar at the solution.

    Overlaps of a start by name are those of its weights in this problem, zero for encodings that the model lacks.

    Args:
        problem: the problem that was solved.
        start: its start.
        solution: the solution from that start.
    """
    if isinstance(start, Solution):
        held = nonzero_overlaps(start.overlaps, start.errors)
    else:
        held = nonzero_overlaps(overlaps_of_start(problem, start) if isinstance(start, str) else start)
    there = nonzero_overlaps(solution.overlaps, solution._overlap_error_bars)
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
