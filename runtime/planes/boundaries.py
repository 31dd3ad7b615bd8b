"""Boundaries along one row of a plane: between which points of its grid they lie, and where they are.

A change from one point to the next brackets an event: the branch of lowest training loss changes (a crossing), a branch
is there no more (a spinodal), or the replicon of one passes 1. The event is then located by the machinery of
thresholds, which begins from the solutions of the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..branches.branch import Branch
from ..errors import InputError, NotConvergedError
from ..following.first_event import walked_to
from ..following.walk import Walk
from ..problems.problem import Problem
from ..solving.solution import Solution
from ..sweeping.line import Record, is_found
from ..sweeping.memory import recalled
from ..thresholds.locating import almeida_thouless, crossing
from ..thresholds.search import Search
from ..thresholds.threshold import Threshold

CROSSING, SPINODAL, REPLICON = "crossing", "spinodal", "replicon"
BRACKETED = "bracketed"
"""Status of a boundary that is known to lie between two solved points and was not located further."""
_BEYOND = 1.0  # cells past a missing point that a walk may go to
_SOLVED = 1e-3  # accuracy of the overlaps


@dataclass(frozen=True)
class Change:
    """Something that differs between neighbours on a row.

    Attributes:
        kind: CROSSING, SPINODAL or REPLICON; branches: one, or the pair that crosses.
        ends: numbers of the points on both sides; of a spinodal first that with the branch.
    """

    kind: str
    branches: tuple[str, ...]
    ends: tuple[int, int]


@dataclass(frozen=True)
class Boundary:
    """A point of a boundary: where an event is along the first parameter, at a value of the second.

    Attributes:
        value, error: place and half width; at: value of the second parameter.
        status: converged, accuracy_not_reached, or BRACKETED.
    """

    kind: str
    branches: tuple[str, ...]
    value: float
    error: float
    at: float
    status: str


@dataclass(frozen=True)
class Row:
    """Solved points of a row in ascending order of the first parameter.

    Attributes:
        problem: with the second parameter at `at`; values: of the first parameter.
        records: of every branch, one a point.
    """

    problem: Problem
    parameter: str
    at: float
    values: tuple[float, ...]
    records: Mapping[str, tuple[Record, ...]]

    def found(self, branch: str, n: int) -> bool:
        """Whether a branch is there."""
        return is_found(self.records[branch][n])

    def lowest(self, n: int) -> str:
        """The branch of lowest training loss; nothing where none is found."""
        losses = {b: self.records[b][n]["training_loss"] for b in self.records if self.found(b, n)}
        return min(losses, key=lambda branch: losses[branch]) if losses else ""

    def is_unstable(self, branch: str, n: int) -> bool:
        """Whether the replicon of a branch is above 1, by more than its half width."""
        record = self.records[branch][n]
        return bool(is_found(record) and record["replicon"] - np.nan_to_num(record["replicon_error"]) >= 1)

    def changes(self) -> list[Change]:
        """Everything that differs between neighbours, in order."""
        found: list[Change] = []
        for n in range(len(self.values) - 1):
            pair = tuple(b for b in self.records if b in (self.lowest(n), self.lowest(n + 1)))
            # Where one of them begins within the cell they may cross behind, or it begins as the lower one.
            if len(pair) == 2 and any(all(self.found(b, k) for b in pair) for k in (n, n + 1)):
                found.append(Change(CROSSING, pair, (n, n + 1)))
            for branch in self.records:
                here, there = self.found(branch, n), self.found(branch, n + 1)
                if here != there:
                    found.append(Change(SPINODAL, (branch,), (n, n + 1) if here else (n + 1, n)))
                elif here and self.is_unstable(branch, n) != self.is_unstable(branch, n + 1):
                    found.append(Change(REPLICON, (branch,), (n, n + 1)))
        return found

    def signature(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What changes along the row, whatever the places."""
        return tuple(sorted((change.kind, change.branches) for change in self.changes()))


def located(row: Row, change: Change, accuracy: float, seed: int) -> Boundary | None:
    """The event that a change brackets, by the machinery of thresholds; what it cannot locate is bracketed.

    None for branches that do not cross where one of them begins as the lower one.

    Args:
        accuracy: half width asked for, in the first parameter.
    """
    try:
        found = _LOCATE[change.kind](row, change, accuracy, seed)
    except (NotConvergedError, InputError):
        found = None
    everywhere = all(row.found(branch, n) for branch in change.branches for n in change.ends)
    if found is None and change.kind == CROSSING and not everywhere:
        return None
    low, high = sorted(row.values[n] for n in change.ends)
    if found is None or not low - (high - low) <= found.value <= high + (high - low):
        low, high = _bracket(row, change, low, high)
        return Boundary(change.kind, change.branches, (low + high) / 2, (high - low) / 2, row.at, BRACKETED)
    return Boundary(change.kind, change.branches, found.value, found.error, row.at, found.status)


def _bracket(row: Row, change: Change, low: float, high: float) -> tuple[float, float]:
    """Between neighbours, or narrower where a line has bisected the loss of its branch."""
    for n in change.ends if change.kind == SPINODAL else ():
        lost = row.records[change.branches[0]][n].get("lost")
        if lost is not None and low <= min(lost) and max(lost) <= high:
            return min(lost), max(lost)
    return low, high


def _crossing(row: Row, change: Change, accuracy: float, seed: int) -> Threshold:
    pair = [_follower(row, name, change.ends, seed) for name in change.branches]
    ends = (row.values[change.ends[0]], row.values[change.ends[1]])
    between = (change.branches[0], change.branches[1])
    chosen: dict[str, Any] = {"bracket": ends, "accuracy": accuracy, "seed": seed, "verify": False}
    return crossing(row.problem, row.parameter, between=between, branches=(pair[0], pair[1]), **chosen)


def _replicon(row: Row, change: Change, accuracy: float, seed: int) -> Threshold:
    (name,) = change.branches
    follower = _follower(row, name, change.ends, seed)
    ends = (row.values[change.ends[0]], row.values[change.ends[1]])
    chosen: dict[str, Any] = {"bracket": ends, "accuracy": accuracy, "seed": seed, "verify": False}
    return almeida_thouless(row.problem, row.parameter, on=name, branch=follower, **chosen)


def _spinodal(row: Row, change: Change, accuracy: float, seed: int) -> Threshold | None:
    """From the last point with the branch toward the first without, and a cell beyond."""
    (name,), (inside, outside) = change.branches, change.ends
    begun = _follower(row, name, (inside,), seed).known[row.values[inside]]
    first, last = row.values[inside], row.values[outside]
    beyond = last + _BEYOND * (last - first)
    low, high = row.values[0], row.values[-1]
    goal = float(np.clip(beyond, low, high))
    if goal == first:
        return None
    search = Search(SPINODAL, row.problem, row.parameter, (name,), (first, goal), accuracy, False)
    return walked_to(Walk(row.problem, begun, row.parameter, (first, goal), _SOLVED, seed), search)


_LOCATE: dict[str, Callable[[Row, Change, float, int], Threshold | None]] = {
    CROSSING: _crossing,
    SPINODAL: _spinodal,
    REPLICON: _replicon,
}


def _follower(row: Row, name: str, numbers: Sequence[int], seed: int) -> Branch:
    """A branch with solutions at some points of the row, begun from their records.

    Raises:
        NotConvergedError: one of them is not found again.
    """
    branch = Branch(row.problem, row.parameter, name, _SOLVED, seed, effort=2)
    for n in numbers:
        if not row.found(name, n):
            continue
        value = row.values[n]
        guess: Solution = recalled(row.problem.with_(**{row.parameter: value}), name, row.records[name][n])
        if branch.at(value, guess=guess) is None:
            raise NotConvergedError(f"the {name} branch was not found again at {row.parameter} = {value:g}")
    return branch


def differing(one: Row, other: Row, reach: float) -> bool:
    """Whether neighbouring rows differ: in what changes along them, or by more than so many cells in where."""
    if one.signature() != other.signature():
        return True
    for here, there in zip(_ordered(one), _ordered(other), strict=True):
        if abs(here.ends[0] - there.ends[0]) > reach:
            return True
    return False


def _ordered(row: Row) -> list[Change]:
    return sorted(row.changes(), key=lambda change: (change.kind, change.branches, min(change.ends)))


def halves(rows: Sequence[Row], reach: float) -> list[float]:
    """Values of the second parameter half way between neighbours that differ."""
    ordered = sorted(rows, key=lambda row: row.at)
    return [(one.at + other.at) / 2 for one, other in pairwise(ordered) if differing(one, other, reach)]
