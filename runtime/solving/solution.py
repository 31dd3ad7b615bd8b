"""A solution with error bars: a plain value, and its verdict on stability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..base import budget, presenting
from ..base.errors import TimeLimitError
from ..base.presenting import Result
from ..base.progress import step
from ..channel.landscape import Landscape, landscape
from ..integration import Averages, Rule, slope_rules
from ..problems.columns import METRIC
from ..problems.observables import Observed
from ..problems.overlaps import Conjugates, Overlaps
from ..problems.problem import Problem
from ..problems.symmetry import Symmetry
from ..saddle_point import observables
from ..saddle_point.iteration import FixedPoint, Status
from ..saddle_point.printed_slopes import why_not
from ..saddle_point.starts import branch_of, overlaps_held, start_overlaps
from ..stability.assess import Stability, assess
from ..stability.displacement import Displacements
from ..stability.longitudinal import MapSpectrum
from .explaining import explanation
from .thermal import Gibbs, gibbs


@dataclass(frozen=True)
class HalfWidths(Overlaps):
    """Error bars under the names of what they belong to: of overlaps in their shapes, of losses and errors.

    Attributes:
        training_loss, test_error: error bars; nan where there is none.
        test_errors: of the named metrics, as `Solution.test_errors`.
    """

    training_loss: float = np.nan
    test_error: float = np.nan
    test_errors: Mapping[str, float] = field(default_factory=dict)


class SaddlePoint(Observed, Result):
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
        """Whether it is a solution to the accuracy asked; `advice` says what to try otherwise."""
        return self.status.success

    @property
    def _has_errors(self) -> bool:
        """Return whether it has test errors: there are none without a solution."""
        raise NotImplementedError

    @property
    def _overlap_errors(self) -> np.ndarray:
        """Error bars of the packed `overlaps`, (n,)."""
        raise NotImplementedError

    @property
    def named_errors(self) -> dict[str, tuple[float, float]]:
        """Return `test_errors` with an error bar each."""
        names = self.problem.metric_names if self._has_errors else ()
        return {names[0]: self._observed("test_error"), **self.other_errors} if names else {}

    @property
    def other_errors(self) -> dict[str, tuple[float, float]]:
        """Return the test errors by the metrics behind the first, by name: value and error bar."""
        found = {name: value for name, value in self.observed.items() if name.startswith(METRIC)}
        return {name.removeprefix(METRIC): value for name, value in found.items()}

    @property
    def test_errors(self) -> dict[str, float]:
        """Return test errors by the names of the metrics, the first first; empty without a named metric."""
        return {name: value for name, (value, _) in self.named_errors.items()}

    @property
    def half_widths(self) -> HalfWidths:
        """Error bars of everything reported, by its name: q, V, m, theta, phi in their shapes, and of the losses."""
        blocks = vars(Overlaps.unpack(self._overlap_errors, self.overlaps.sizes))
        named = {name: width for name, (_, width) in self.named_errors.items()}
        return HalfWidths(**blocks, training_loss=self.training_loss_error, test_error=self.test_error_error,
                          test_errors=named)  # fmt: skip

    def table(self, names: Mapping[str, str] | None = None) -> str:
        """Return the solution for a terminal; `names` are symbols of the reader's own, {"theta": "T", "omega": "a"}."""
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
        shifts: how far other rules (or each replicate) would move the packed overlaps, the factors of the error bars
            included, (k, n).
        residual_shift: how far what is left of the residual would move them, (n,).
        jacobian, drift: dG/du that Newton's method used, and how far the overlaps have moved since, in block scales.
        loss_rule: of the training loss, where that is another one than of the overlaps.
        rank: 1 for the lowest training loss of the branches found; None if others were not sought.
        judge: whether `stability` is worked out when first asked for.
        observed: what the overlaps determine, by name: value and error bar. Its numbers are attributes, too
            (`test_error`, `test_error_error`); see `Observed`.
        outside: where the iteration left the domain, which matrix lost positivity and along what, or where a branch
            that the start left was found and lost again, in words.
        tried: by which rules, and how that went.

    Example:
        >>> found = sf.solve(sf.problem("ridge_regression", alpha=2))
        >>> found.status.value, round(found.test_error, 6), found.test_error_error < 1e-6
        ('converged', 0.442665, True)
        >>> round(float(found.overlaps.q[0, 0, 0]), 6), float(found.half_widths.q[0, 0, 0]) < 1e-6
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
    averages: Averages | None = field(default=None, repr=False)
    symmetry: Symmetry | None = field(default=None, repr=False)
    shifts: np.ndarray | None = field(default=None, repr=False)
    residual_shift: np.ndarray | None = field(default=None, repr=False)
    loss_rule: Rule | None = None
    multipliers_error: np.ndarray | None = None
    judge: bool = True
    outside: str = ""
    tried: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def _has_errors(self) -> bool:
        """Return whether it is a solution, which has losses and test errors."""
        return self.losses is not None

    @property
    def _overlap_errors(self) -> np.ndarray:
        """Return `errors`."""
        return self.errors

    @property
    def fixed_point(self) -> FixedPoint:
        """Return the converged point, to begin from."""
        u, sizes = self.overlaps.pack(), self.overlaps.sizes
        return FixedPoint(u, sizes, self.residual, Status.CONVERGED, 0, self.jacobian, self.drift)

    @property
    def explanation(self) -> list[str]:
        """Why this rule: dimensions, kinks and jumps of the averages, then what was tried, a sentence each."""
        return explanation(self.problem, self.overlaps, self.averages, self.tried)

    @property
    def advice(self) -> str:
        """Return what happened and what to try, in a sentence; empty where it converged."""
        reasons = [self.outside, self.status.advice]
        if self.status is Status.ENDED_ELSEWHERE and not self.problem.has_targets:
            reasons.insert(0, "the loss depends on neither Y nor a label, so that nothing of the teacher is learned")
        return "; ".join(filter(None, reasons))

    @property
    def training_loss(self) -> float:
        """-Phi, per d; at a finite temperature the free energy (`thermal` holds the energy)."""
        return self.losses.training_loss if self.losses else np.nan

    @property
    def free_entropy(self) -> float:
        """Phi, per d (over the inverse temperature at a finite one); nan without a solution."""
        return self.losses.free_entropy if self.losses else np.nan

    @property
    def multipliers(self) -> np.ndarray | None:
        """Strengths (s,) of the ridge that keeps given norms; None of any other regulariser, or without a solution."""
        return self.problem.multipliers(self.conjugates) if self.conjugates else None

    @cached_property
    def baseline_error(self) -> float:
        """Error e_0 of the best constant linear layer, docs/theory.md (7.7); nan where the model has none."""
        return observables.baseline_error(self.problem)

    @property
    def relative_error(self) -> float:
        """Largest error bar of an overlap relative to the size of its block, as `accuracy` is counted."""
        return float(np.max(self.errors / self.overlaps.block_scales))

    @property
    def residual_loss(self) -> float:
        """Return the error of the training loss that the residual leaves, of second order: Phi is stationary."""
        shift = self.residual * self.overlaps.block_scales if self.residual_shift is None else self.residual_shift
        return float(np.max(np.abs(shift) / self.overlaps.block_scales)) ** 2 * abs(self.training_loss)

    @property
    def branch(self) -> str:
        """Return the branch reached: semantic, positional, mixed or uninformed."""
        return branch_of(self.overlaps, self.errors)

    @cached_property
    def stability(self) -> Stability | None:
        """Longitudinal spectrum, replicon, jumps; None without a solution. Computed when first asked for."""
        return self.judged()

    def judged(self, spectrum: bool = True, log2_lines: int | None = None) -> Stability | None:
        """Return `stability` with or without the longitudinal spectrum, or with another effort on the jump set.

        None without a solution, where no verdict is asked for (`judge`), or where a time limit comes first.

        Args:
            log2_lines: of the lines a replicate on which jumps are sought, default by the number of fields.
        """
        if self.averages is None or self.status is Status.TIME_LIMIT or not self.judge:
            return None
        try:
            with step("verdict on stability"):
                budget.check()
                return self._judged(self.averages, spectrum, log2_lines)
        except TimeLimitError:
            return None

    def _judged(self, averages: Averages, spectrum: bool, log2_lines: int | None) -> Stability:
        rules = slope_rules(self.rule, self.problem, averages.bistable)
        displaced = Displacements.of(self.overlaps, self.errors, self.shifts, self.residual_shift, self.rule.replicated)
        # Nodes in the fields do not see what jumps between them add.
        exact = self.rule.in_x or (self.rule.splits_jumps and averages.bistable == 0)
        # The loop that the replicon asks for brings the slopes along.
        printed = spectrum and exact and rules[0] == self.rule and why_not(self.problem) is None
        matrix, error = None, np.nan
        if spectrum:
            matrix, error = MapSpectrum(self.problem, self.rule, self.overlaps.pack(), printed).judged(displaced)
        found = assess(self.problem, self.overlaps, rules, matrix, averages, self.rule, displaced, log2_lines)
        return replace(found, slopes_by="printed derivatives" if printed else "differences", longitudinal_error=error)

    @cached_property
    def thermal(self) -> Gibbs | None:
        """Energy, entropy and what weights drawn from the Gibbs measure do; None at zero temperature."""
        if self.problem.inverse_temperature is None or self.losses is None or self.shifts is None:
            return None
        with step("averages over the Gibbs measure"):
            return gibbs(
                self.problem, self.overlaps, self.half_widths, self.losses, self.training_loss_error, self.rule,
                self.shifts,
            )  # fmt: skip

    @cached_property
    def landscape(self) -> Landscape:
        """Minima of the Moreau objective at random points: which are proved global, how many there are."""
        with step("minima of the Moreau objective at random points"):
            return landscape(self.problem, self.overlaps)


def has_lost(problem: Problem, start: str | Overlaps | Solution, solution: SaddlePoint) -> bool:
    """Return whether theta or m, which a start has, is zero within its error bar at the solution that it led to.

    What a start by name has is what its weights do in this problem: encodings that a model lacks promise nothing.
    """
    if isinstance(start, Solution):
        held = overlaps_held(start.overlaps, start.errors)
    else:
        held = overlaps_held(start_overlaps(problem, start) if isinstance(start, str) else start)
    there = overlaps_held(solution.overlaps, solution._overlap_errors)
    return any(before and not after for before, after in zip(held, there, strict=True))


def agree_within_errors(one: Solution, other: Solution) -> bool:
    """Return whether two solutions of a problem agree within their errors."""
    scales = one.overlaps.block_scales
    tolerance = 3 * (one.errors + other.errors) + 1e-6 * scales
    return bool(np.all(np.abs(one.overlaps.pack() - other.overlaps.pack()) <= tolerance))
