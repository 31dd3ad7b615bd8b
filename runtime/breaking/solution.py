"""A solution with one step of replica symmetry breaking: a plain value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .. import presenting
from ..integration import Rule
from ..integration.tilted_grid import Grids
from ..numbers import with_error
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.iteration import Status
from ..saddle_point.starts import branch_of
from ..solving.solution import Solution
from .state import Broken

NEGLIGIBLE_JUMPS = 1e-6  # of the measure, tilted


@dataclass(frozen=True)
class Splitting:
    """Whether replica symmetry is broken further.

    Attributes:
        clustering: Perron root of the map by which q_0 would split (type I), stable below 1.
        splitting: that by which q_1 would (type II), of the smooth part of the slope; with jumps the true one is
            infinite.
        bistable: probability, tilted, that the Moreau objective has a second minimum, so that the proximal map jumps.
    """

    clustering: float
    clustering_error: float
    splitting: float
    splitting_error: float
    bistable: float

    @property
    def verdict(self) -> str:
        """In words."""
        words = []
        for name, value, error, meaning in (
            ("type I", self.clustering, self.clustering_error, "states form clusters"),
            ("type II", self.splitting, self.splitting_error, "states split"),
        ):
            text = with_error(value, error)
            if name == "type II" and self.bistable > NEGLIGIBLE_JUMPS and value < 1:
                words.append(f"{name} unstable through proximal jumps ({text} without them): {meaning}")
            elif value - error >= 1:
                words.append(f"{name} unstable ({text}): {meaning}")
            else:
                words.append(f"{name} {'stable' if value + error < 1 else 'undecided'} ({text})")
        return "; ".join(words)


def relative_error(state: Broken, errors: np.ndarray, within_errors: np.ndarray) -> float:
    """See `BrokenSolution.relative_error`."""
    count = len(within_errors)
    between = errors[:count] / state.block_scales[:count]
    return float(max(between.max(), np.max(within_errors / state.within.block_scales)))


@dataclass(frozen=True)
class BrokenSolution:
    """One-step breaking beside the replica symmetric solution that it starts from.

    Attributes:
        symmetric: that solution.
        state: q_0, V, m, theta and Delta (docs/theory.md (18.1), (18.16)); None where no breaking was found, or none
            converged.
        parisi: y, given or with dPhi/dy = 0; given: which of the two.
        errors: half widths of the packed state; within_errors: of the packed overlaps of one minimiser.
        parisi_error: of y, 0 where it is given.
        energy: per d, -Phi - y dPhi/dy: the training loss of the states counted by y; its half width.
        complexity: their number per d, -y^2 dPhi/dy, with a half width; 0 at the lowest states.
        parts: energy of the data and of the penalty, whose sum is the energy.
        test_error: of one of these states.
        multipliers: of given norms, (s,), or None; multipliers_error: their half widths.
        found: in words what was looked for, where there is no state.
    """

    symmetric: Solution
    state: Broken | None
    status: Status
    parisi: float
    given: bool
    residual: float
    evaluations: int
    rule: Rule | Grids
    errors: np.ndarray
    within_errors: np.ndarray
    parisi_error: float
    energy: float
    energy_error: float
    complexity: float
    complexity_error: float
    parts: tuple[float, float]
    test_error: float
    test_error_error: float
    multipliers: np.ndarray | None
    stability: Splitting | None
    multipliers_error: np.ndarray | None = None
    found: str = ""

    @property
    def problem(self) -> Problem:
        """That is solved."""
        return self.symmetric.problem

    @property
    def start(self) -> str:
        """Of the replica symmetric solution."""
        return self.symmetric.start

    @property
    def branch(self) -> str:
        """What was reached: semantic, positional, mixed or uninformed."""
        return self.symmetric.branch if self.state is None else branch_of(self.overlaps, self.within_errors)

    @property
    def alone(self) -> bool:
        """Whether the replica symmetric solution beside it is on another branch: there is none on this one."""
        return self.branch != self.symmetric.branch

    @property
    def success(self) -> bool:
        """Whether it converged to the accuracy asked; replica symmetry where no breaking was found."""
        return self.status.success

    @property
    def overlaps(self) -> Overlaps:
        """Of one minimiser: q_1 in the place of q."""
        return self.symmetric.overlaps if self.state is None else self.state.within

    @property
    def half_widths(self) -> Overlaps:
        """Errors in the shape of the overlaps, of q_1 in the place of q."""
        return Overlaps.unpack(self.within_errors, self.overlaps.sizes)

    @property
    def state_half_widths(self) -> Broken | None:
        """Errors in the shape of the state, of q_0 and Delta; None without one."""
        return None if self.state is None else Broken.unpack(self.errors, self.state.sizes)

    @property
    def relative_error(self) -> float:
        """Largest half width of an overlap, q_0 and q_1 among them, relative to the size of its block.

        That of y, along which the energy is flat, and of Delta with it are left out."""
        if self.state is None:
            return self.symmetric.relative_error
        return relative_error(self.state, self.errors, self.within_errors)

    @property
    def training_loss(self) -> float:
        """The energy; that of replica symmetry where no breaking was found."""
        return self.energy

    @property
    def training_loss_error(self) -> float:
        """Its half width."""
        return self.energy_error

    @property
    def energy_moved(self) -> tuple[float, float]:
        """How far above the replica symmetric training loss of its branch the energy lies, and a half width; nan where
        there is none."""
        if self.alone:
            return np.nan, np.nan
        return self.energy - self.symmetric.training_loss, self.energy_error + self.symmetric.training_loss_error

    def table(self, names: Mapping[str, str] | None = None) -> str:
        """For a terminal."""
        return presenting.table(self, names)

    def to_json(self) -> dict[str, object]:
        """The JSON object of `solve --rsb 1`."""
        return presenting.to_json(self)

    def __repr__(self) -> str:
        return self.table()
