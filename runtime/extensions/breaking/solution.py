"""A solution with replica symmetry broken, as a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...base.numbers import format_with_error
from ...integration import Rule
from ...integration.tilted_sums import TiltedRule
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...saddle_point.starts import name_branch
from ...solving.solution import SaddlePoint, Solution
from ...stability.assess import MARGINAL, UNSTABLE, verdict_against_one
from .state import BrokenState

NEGLIGIBLE_JUMPS = 1e-6  # tilted probability of two minima below which jumps of the proximal map do not count
_CLUSTERS = {1: "states form clusters", 2: "clusters of states form clusters"}


@dataclass(frozen=True)
class BreakingStability:
    """The stability of a solution against further breaking of replica symmetry.

    Attributes:
        clustering: Perron root of the linear map by which q_0 would split (type I), stable below 1.
        splitting: the same for q of one minimiser (type II), from the smooth part of the slope; with jumps the true
            root is infinite.
        clustering_error, splitting_error: their error bars.
        bistable: probability, tilted, that the Moreau objective has a second minimum, so that the proximal map jumps.
        steps: number of steps of breaking.
    """

    clustering: float
    clustering_error: float
    splitting: float
    splitting_error: float
    bistable: float
    steps: int = 1

    @property
    def verdict(self) -> str:
        """The verdict on both types of instability, in words."""
        words = []
        for name, value, error, meaning in (
            ("type I", self.clustering, self.clustering_error, _CLUSTERS[self.steps]),
            ("type II", self.splitting, self.splitting_error, "states split"),
        ):
            text = format_with_error(value, error)
            if name == "type II" and self.bistable > NEGLIGIBLE_JUMPS and value < 1:
                words.append(f"{name} unstable through proximal jumps ({text} without them): {meaning}")
            elif verdict_against_one(value, error) == UNSTABLE:
                words.append(f"{name} unstable ({text}): {meaning}")
            elif verdict_against_one(value, error) == MARGINAL:
                words.append(f"{name} marginal ({text}, 1 within its error)")
            else:
                words.append(f"{name} stable ({text})")
        return "; ".join(words)


def _relative_error(state: BrokenState, errors: np.ndarray, within_errors: np.ndarray) -> float:
    """Return `BrokenSolution.relative_error`."""
    count = len(within_errors)
    between = errors[:count] / state.block_scales[:count]
    return float(max(between.max(), np.max(within_errors / state.within.block_scales)))


def status_of(
    symmetric: Solution,
    rule: TiltedRule,
    residual: float,
    state: BrokenState,
    errors: np.ndarray,
    within_errors: np.ndarray,
    accuracy: float,
) -> Status:
    """Return the status of states: converged, inaccurate, or not converged.

    Args:
        symmetric: the replica symmetric solution.
        rule: rule of integration.
        residual: of the equations.
        state: the state.
        errors: error bars of the packed state.
        within_errors: error bars of the packed overlaps of one minimiser.
        accuracy: required error bar of overlaps, relative to their blocks.
    """
    if residual > 1e2 * rule.residual_for_accuracy(accuracy):
        return Status.MAX_ITERATIONS
    if _relative_error(state, errors, within_errors) > accuracy:
        return Status.ACCURACY_NOT_REACHED
    if not symmetric.success and name_branch(state.within, within_errors) == symmetric.branch:
        return symmetric.status
    return Status.CONVERGED


@dataclass(frozen=True, repr=False)
class BrokenSolution(SaddlePoint):
    """A solution with one or two steps of breaking, and the replica symmetric solution from which it started.

    Attributes:
        symmetric: the replica symmetric solution; shallower: for two steps, the solution with one.
        state: q_0, V, m, theta and Delta of every step (docs/theory.md (18.1), (18.16)); None where no breaking was
            found, or none converged.
        rates: Parisi parameters y from q_0 inwards, one a step; given: whether y is fixed, else dPhi/dy = 0.
        errors: error bars of the packed state; within_errors: of the packed overlaps of one minimiser.
        rate_errors: error bars of y, 0 where it is fixed.
        energy: per d, -Phi - y dPhi/dy: the training loss of the states counted by y.
        own_error: its error bar; on grids and at samples that of its difference from the energy of a step less.
        complexity: their number per d, -y^2 dPhi/dy, with an error bar; 0 at the lowest states.
        parts: energy of the data and of the penalty, whose sum is the energy.
        observed: observables of one of these states, as of `Solution`.
        multipliers: of given norms, (s,), or None; multipliers_error: their error bars.
        found: the outcome of the search in words, where there is no state.

    Example:
        >>> broken = sf.solve(sf.problem("perceptron", alpha=4), rsb=1, accuracy=1e-2)
        >>> moved, half_width = broken.energy_moved
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
    state: BrokenState | None = None
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
        """The problem."""
        return self.symmetric.problem

    @property
    def start(self) -> str:
        """The start of the replica symmetric solution."""
        return self.symmetric.start

    @property
    def steps(self) -> int:
        """The number of steps of breaking, 0 where none was found."""
        return len(self.rates)

    @property
    def distances(self) -> np.ndarray:
        """The differences Delta of every step, (K, C, s, s)."""
        return np.zeros((0, *self.overlaps.q.shape)) if self.state is None else self.state.distances

    @property
    def parisi(self) -> float:
        """The Parisi parameter y of the outermost step; NaN without any."""
        return self.rates[0] if self.rates else np.nan

    @property
    def parisi_error(self) -> float:
        """The error bar of the Parisi parameter."""
        return self.rate_errors[0] if self.rates else np.nan

    @property
    def branch(self) -> str:
        """The branch of the solution: semantic, positional, mixed or uninformed."""
        return self.symmetric.branch if self.state is None else name_branch(self.overlaps, self.within_errors)

    @property
    def alone(self) -> bool:
        """Whether there is no replica symmetric solution on this branch, so that `symmetric` is on another."""
        return self.branch != self.symmetric.branch

    @property
    def advice(self) -> str:
        """The reason of a failure and what to try, in a sentence; empty where it converged."""
        return self.found or (self.symmetric.advice if self.status is self.symmetric.status else self.status.advice)

    @property
    def overlaps(self) -> Overlaps:
        """The overlaps of one minimiser."""
        return self.symmetric.overlaps if self.state is None else self.state.within

    @property
    def _has_errors(self) -> bool:
        return self.state is not None or self.symmetric.losses is not None

    @property
    def _overlap_errors(self) -> np.ndarray:
        return self.within_errors

    @property
    def state_error_bars(self) -> BrokenState | None:
        """The error bars of q_0, V, m, theta and Delta in the shape of the state; None without one."""
        return None if self.state is None else BrokenState.unpack(self.errors, self.state.sizes)

    @property
    def relative_error(self) -> float:
        """The largest error bar of an overlap, q_0 and q of one minimiser among them, relative to its block.

        That of y, along which the energy is flat, and of Delta with it are left out.
        """
        if self.state is None:
            return self.symmetric.relative_error
        return _relative_error(self.state, self.errors, self.within_errors)

    @property
    def training_loss(self) -> float:
        """The energy; that of replica symmetry where no breaking was found."""
        return self.energy

    @property
    def _errors_cancel(self) -> bool:
        return isinstance(self.rule, TiltedRule) and self.rule.errors_cancel

    @property
    def energy_error(self) -> float:
        """The error bar of the energy, with that of the energy with which it is compared."""
        reference = (self.shallower or self.symmetric).training_loss_error if self._errors_cancel else 0.0
        return self.own_error + reference

    @property
    def training_loss_error(self) -> float:
        """The error bar of the training loss, the same as `energy_error`."""
        return self.energy_error

    @property
    def energy_moved(self) -> tuple[float, float]:
        """The energy less the replica symmetric training loss of its branch, and an error bar; NaN without the latter.

        Energies by comparison with the replica symmetric one change with it: an error of its overlaps enters in second
        order.
        """
        if self.alone:
            return np.nan, np.nan
        if self.state is None:
            return 0.0, 0.0
        reference = self.symmetric.training_loss_error
        if self.rule.replicated:
            reference = self.symmetric.relative_error**2 * abs(self.symmetric.training_loss)
        elif self._errors_cancel:
            reference = self.shallower.energy_moved[1] if self.shallower else 0.0
        return self.energy - self.symmetric.training_loss, self.own_error + reference

    @property
    def energy_moved_further(self) -> tuple[float, float]:
        """The change of the energy by the second step, and an error bar; NaN without a second step."""
        if self.shallower is None:
            return np.nan, np.nan
        reference = 0.0 if self._errors_cancel else self.shallower.own_error
        return self.energy - self.shallower.energy, self.own_error + reference
