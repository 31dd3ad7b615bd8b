"""The solution of the saddle point with broken replica symmetry, and its stability against further breaking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...base.numbers import format_value_with_error
from ...integration import Rule
from ...integration.tilted_sums import TiltedRule
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...saddle_point.starts import name_branch
from ...solving.solution import SaddlePoint, Solution
from ...stability.assess import MARGINAL, UNSTABLE, stability_verdict
from .state import BrokenSymmetryState

NEGLIGIBLE_JUMPS = 1e-6  # tilted probability of two minima below which jumps of the proximal map do not count
_CLUSTERS = {1: "states form clusters", 2: "clusters of states form clusters"}


@dataclass(frozen=True)
class BreakingStability:
    """The stability of a solution against one more step of replica symmetry breaking.

    Attributes:
        clustering: largest eigenvalue of the instability in which states form clusters (type I); stable below 1.
        clustering_error: error bar of `clustering`.
        splitting: largest eigenvalue of the instability in which each state splits (type II), without the jumps of the
            proximal map, which make it infinite; stable below 1.
        splitting_error: error bar of `splitting`.
        bistable: tilted probability that the Moreau objective has a second minimum, so that the proximal map jumps.
        steps: number of steps of breaking of the solution.
    """

    clustering: float
    clustering_error: float
    splitting: float
    splitting_error: float
    bistable: float
    steps: int = 1

    @property
    def verdict(self) -> str:
        """A sentence that says whether the solution is stable against both types of further breaking."""
        words = []
        for name, value, error, meaning in (
            ("type I", self.clustering, self.clustering_error, _CLUSTERS[self.steps]),
            ("type II", self.splitting, self.splitting_error, "states split"),
        ):
            text = format_value_with_error(value, error)
            if name == "type II" and self.bistable > NEGLIGIBLE_JUMPS and value < 1:
                words.append(f"{name} unstable through proximal jumps ({text} without them): {meaning}")
            elif stability_verdict(value, error) == UNSTABLE:
                words.append(f"{name} unstable ({text}): {meaning}")
            elif stability_verdict(value, error) == MARGINAL:
                words.append(f"{name} marginal ({text}, 1 within its error)")
            else:
                words.append(f"{name} stable ({text})")
        return "; ".join(words)


def _relative_error_of_state(state: BrokenSymmetryState, errors: np.ndarray, within_errors: np.ndarray) -> float:
    """Return the largest error bar of an overlap of a broken-symmetry state, relative to the size of its block."""
    count = len(within_errors)
    between = errors[:count] / state.block_scales[:count]
    return float(max(between.max(), np.max(within_errors / state.minimiser_overlaps.block_scales)))


def status_of_states(
    symmetric: Solution,
    rule: TiltedRule,
    residual: float,
    state: BrokenSymmetryState,
    errors: np.ndarray,
    within_errors: np.ndarray,
    accuracy: float,
) -> Status:
    """Return the status of a solution with broken replica symmetry from its residual and error bars.

    Args:
        symmetric: the replica symmetric solution.
        rule: quadrature rule.
        residual: residual of the saddle-point equations.
        state: state with broken replica symmetry.
        errors: error bars of the packed state.
        within_errors: error bars of the packed overlaps of one minimiser.
        accuracy: required error bar of overlaps, relative to their blocks.
    """
    if residual > 1e2 * rule.residual_for_accuracy(accuracy):
        return Status.MAX_ITERATIONS
    if _relative_error_of_state(state, errors, within_errors) > accuracy:
        return Status.ACCURACY_NOT_REACHED
    if (
        not symmetric.success
        and name_branch(symmetric.problem, state.minimiser_overlaps, within_errors) == symmetric.branch
    ):
        return symmetric.status
    return Status.CONVERGED


@dataclass(frozen=True, repr=False)
class BrokenSolution(SaddlePoint):
    """A solution with one or two steps of replica symmetry breaking, and the replica symmetric one it started from.

    Attributes:
        symmetric: the replica symmetric solution.
        state: overlap q_0 between states, V, m and theta of one state, and the overlap difference Delta of every step;
            None where no breaking was found, or Newton's method did not converge.
        rates: Parisi parameters y of all steps, from the outermost to the innermost.
        errors: error bars of the packed state.
        rate_errors: error bars of the Parisi parameters, 0 where they are fixed.
        energy: training loss per d of the states that y selects: -Phi - y dPhi/dy, with Phi the free entropy.
        own_error: error bar of the energy; on grids and with samples, of its difference from the energy with one step
            less.
        complexity: logarithm of the number of states per d, -y^2 dPhi/dy, 0 for the states of lowest energy.
        parts: energy due to the data and energy due to the penalty, whose sum is the energy.
        observed: values and error bars of the observables of one state, as in `Solution.observed`.
        multipliers: multipliers of fixed norms, (s,), or None.
        found: reason in words why there is no state with breaking.
        shallower: solution with one step, if this one has two.
        given: whether y is fixed by the user; otherwise dPhi/dy = 0.
        within_errors: error bars of the packed overlaps of one minimiser.
        multipliers_error: error bars of the multipliers.

    Example:
        >>> broken = sf.solve(sf.problem("perceptron", alpha=4), rsb=1, accuracy=1e-2)
        >>> moved, error_bar = broken.energy_moved
        >>> broken.steps, round(broken.symmetric.training_loss, 4), round(broken.energy, 4), round(moved, 4)
        (1, 1.1066, 1.2263, 0.1197)
    """

    symmetric: Solution
    status: Status
    residual: float
    rule: Rule
    within_errors: np.ndarray
    energy: float
    own_error: float
    parts: tuple[float, float]
    observed: Mapping[str, tuple[float, float]]
    multipliers: np.ndarray | None
    state: BrokenSymmetryState | None = None
    rates: tuple[float, ...] = ()
    given: bool = False
    evaluations: int = 0
    errors: np.ndarray = field(default_factory=lambda: np.zeros(0))
    rate_errors: tuple[float, ...] = ()
    complexity: float = 0.0
    complexity_error: float = 0.0
    stability: BreakingStability | None = None
    multipliers_error: np.ndarray | None = None
    found: str = ""
    shallower: BrokenSolution | None = None

    @property
    def problem(self) -> Problem:
        """The problem that is solved."""
        return self.symmetric.problem

    @property
    def start(self) -> str:
        """The name of the start from which the replica symmetric solution was solved."""
        return self.symmetric.start

    @property
    def steps(self) -> int:
        """The number of steps of replica symmetry breaking; 0 where none was found."""
        return len(self.rates)

    @property
    def distances(self) -> np.ndarray:
        """The overlap difference Delta of each step of breaking, an (s, s) matrix for each (token, cluster) pair."""
        return np.zeros((0, *self.overlaps.q.shape)) if self.state is None else self.state.distances

    @property
    def parisi(self) -> float:
        """The Parisi parameter of the outermost step of replica symmetry breaking; NaN without breaking."""
        return self.rates[0] if self.rates else np.nan

    @property
    def parisi_error(self) -> float:
        """The error bar of the Parisi parameter of the outermost step; NaN without breaking."""
        return self.rate_errors[0] if self.rates else np.nan

    @property
    def branch(self) -> str:
        """The name of the branch of solutions to which this solution belongs, such as informed."""
        if self.state is None:
            return self.symmetric.branch
        return name_branch(self.problem, self.overlaps, self.within_errors)

    @property
    def alone(self) -> bool:
        """Whether this branch has no replica symmetric solution, so that `symmetric` is on another branch."""
        return self.branch != self.symmetric.branch

    @property
    def advice(self) -> str:
        """A sentence with the reason of a failure and what to try; empty after convergence."""
        return self.found or (self.symmetric.advice if self.status is self.symmetric.status else self.status.advice)

    @property
    def overlaps(self) -> Overlaps:
        """The overlaps of one minimiser of the training loss."""
        return self.symmetric.overlaps if self.state is None else self.state.minimiser_overlaps

    @property
    def _has_test_errors(self) -> bool:
        return self.state is not None or self.symmetric.losses is not None

    @property
    def _overlap_error_bars(self) -> np.ndarray:
        return self.within_errors

    @property
    def state_error_bars(self) -> BrokenSymmetryState | None:
        """The error bars of the state, in the same shape; None if there is no state with broken symmetry."""
        return None if self.state is None else BrokenSymmetryState.unpack(self.errors, self.state.overlap_sizes)

    @property
    def relative_error(self) -> float:
        """The largest error bar of an overlap, between or within states, relative to the size of its block.

        The error bars of the Parisi parameters, in which the energy is flat, and of Delta are not included.
        """
        if self.state is None:
            return self.symmetric.relative_error
        return _relative_error_of_state(self.state, self.errors, self.within_errors)

    @property
    def training_loss(self) -> float:
        """The training loss: the energy with breaking, or the replica symmetric one where no breaking was found."""
        return self.energy

    @property
    def _has_cancelling_errors(self) -> bool:
        return isinstance(self.rule, TiltedRule) and self.rule.errors_cancel

    @property
    def energy_error(self) -> float:
        """The error bar of the energy.

        Where only the difference from another solution's energy was computed, it includes the error bar of that energy.
        """
        reference = (self.shallower or self.symmetric).training_loss_error if self._has_cancelling_errors else 0.0
        return self.own_error + reference

    @property
    def training_loss_error(self) -> float:
        """The error bar of the training loss, the same as `energy_error`."""
        return self.energy_error

    @property
    def energy_moved(self) -> tuple[float, float]:
        """The change of the training loss by replica symmetry breaking, and its error bar.

        Both are NaN if the branch has no replica symmetric solution.
        """
        if self.alone:
            return np.nan, np.nan
        if self.state is None:
            return 0.0, 0.0
        reference = self.symmetric.training_loss_error
        if self.rule.replicated:
            reference = self.symmetric.relative_error**2 * abs(self.symmetric.training_loss)
        elif self._has_cancelling_errors:
            reference = self.shallower.energy_moved[1] if self.shallower else 0.0
        return self.energy - self.symmetric.training_loss, self.own_error + reference

    @property
    def energy_moved_further(self) -> tuple[float, float]:
        """The change of the energy by a second step of breaking, and its error bar; NaN without a second step."""
        if self.shallower is None:
            return np.nan, np.nan
        reference = 0.0 if self._has_cancelling_errors else self.shallower.own_error
        return self.energy - self.shallower.energy, self.own_error + reference
