"""Boundaries along one row of a plane: between which points of its grid they lie, and where they are.

A change from one point to the next brackets an event: the branch of lowest training loss changes (a crossing), a branch
ends (a spinodal), or its replica symmetry becomes unstable, through the replicon or through jumps of the proximal map.
The event is then located like a threshold, starting from the solutions of the grid; except for jumps, which fade away:
they are negligible from some point of the grid on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...base.errors import InputError, NotConvergedError
from ...base.options import AlgorithmOptions
from ...branches.branch import Branch
from ...branches.curve import bisect_branch_end
from ...following.branch_continuation import BranchContinuation
from ...following.first_event import first_event_on_branch
from ...problems.problem import Problem
from ...problems.reduced import reduce_to_loss
from ...solving.solution import Solution
from ...thresholds.along_branch import almeida_thouless
from ...thresholds.crossing import loss_difference, replica_symmetric_crossing
from ...thresholds.search import ThresholdSearch
from ...thresholds.threshold import Threshold
from ..sweeping.line import Record, is_found
from ..sweeping.memory import restore_solution

CROSSING, SPINODAL, REPLICON, JUMPS = "crossing", "spinodal", "replicon", "jumps"
BRACKETED = "bracketed"
"""Status of a boundary that is known to lie between two solved points and was not located further."""
MAX_LOW_DIMENSION = 4  # dimensions of averages, beyond which sets of samples are too small for equations of folds
_STEPPED = "step by step"


@dataclass(frozen=True)
class BoundaryOptions(AlgorithmOptions):
    """Options of the location of phase boundaries on a row.

    Attributes:
        fold_offset: distance from the end of a branch at which it is solved again, as a fraction of the distance to the
            grid point; smaller brackets more of the crossings close to a fold, where Newton's method is nearly
            singular.
        search_beyond: cells past a missing grid point up to which a branch is continued.
        end_bisections: bisection steps for the end of a branch that is not located.
        rule_sizes: largest number of sizes of a quadrature rule, for averages in up to MAX_LOW_DIMENSION dimensions and
            in more.
    """

    fold_offset: float = 0.02
    search_beyond: float = 1.0
    end_bisections: int = 4
    rule_sizes: tuple[int, int] = (100, 4)


@dataclass(frozen=True)
class Change:
    """A difference between neighbouring points of a row.

    Attributes:
        kind: CROSSING, SPINODAL, REPLICON or JUMPS; branches: one, or the pair that crosses.
        ends: indices of the points on both sides; for a spinodal the one with the branch first.
    """

    kind: str
    branches: tuple[str, ...]
    ends: tuple[int, int]


@dataclass(frozen=True)
class Boundary:
    """A point of a boundary: where an event is along the first parameter, at a value of the second.

    Attributes:
        value, error: position and error bar; at: value of the second parameter.
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
    """A row of solved points in ascending order of the first parameter.

    Attributes:
        problem: with the second parameter at `at`; parameter, second: names; values: of the first parameter.
        records: records of every branch, one a point; accuracy: accuracy of their overlaps.
    """

    problem: Problem
    parameter: str
    second: str
    at: float
    values: tuple[float, ...]
    records: Mapping[str, tuple[Record, ...]]
    accuracy: float = 1e-3

    def found(self, branch: str, n: int) -> bool:
        """Return whether a branch was found at a point.

        Args:
            branch: the branch.
            n: index of the point.
        """
        return is_found(self.records[branch][n])

    def loss(self, branch: str, n: int) -> float:
        """Return the training loss of a branch at a point; nan if it does not exist there.

        Args:
            branch: the branch.
            n: index of the point.
        """
        return float(self.records[branch][n]["training_loss"]) if self.found(branch, n) else np.nan

    def lowest_branch(self, n: int, among: Iterable[str] | None = None) -> str:
        """Return the branch of lowest training loss at a point; an empty string if none is found.

        Args:
            n: index of the point.
            among: the branches to compare; all by default.
        """
        there = [branch for branch in (self.records if among is None else among) if self.found(branch, n)]
        return min(there, key=lambda branch: self.loss(branch, n), default="")

    def instability_kind(self, branch: str, n: int) -> str:
        """Return the kind of instability of replica symmetry at a point: REPLICON, JUMPS or an empty string.

        Args:
            branch: the branch.
            n: index of the point.
        """
        return str(self.records[branch][n].get("unstable", ""))

    def changes(self) -> list[Change]:
        """Return all changes between neighbouring points, in order."""
        found: list[Change] = []
        for n in range(len(self.values) - 1):
            pair = tuple(b for b in self.records if b in (self.lowest_branch(n), self.lowest_branch(n + 1)))
            # If one of them begins within the cell, they may cross inside it, or it begins as the lower one.
            if len(pair) == 2 and any(all(self.found(b, k) for b in pair) for k in (n, n + 1)):
                found.append(Change(CROSSING, pair, (n, n + 1)))
            for branch in self.records:
                here, there = self.found(branch, n), self.found(branch, n + 1)
                if here != there:
                    found.append(Change(SPINODAL, (branch,), (n, n + 1) if here else (n + 1, n)))
                    continue
                words = [self.instability_kind(branch, k) for k in (n, n + 1)]
                if here and bool(words[0]) != bool(words[1]):
                    found.append(Change(REPLICON if REPLICON in words else JUMPS, (branch,), (n, n + 1)))
        return found

    def exists_on_both_sides(self, change: Change) -> bool:
        """Return whether the branches of a change exist on both sides of it."""
        return all(self.found(branch, n) for branch in change.branches for n in change.ends)

    def change_groups(self) -> list[tuple[Change, ...]]:
        """Return groups of changes that are located together.

        A crossing that may lie beyond the end of one of its branches comes after the ends; all others are single.
        """
        changes = self.changes()
        hidden = [change for change in changes if change.kind == CROSSING and not self.exists_on_both_sides(change)]
        behind = {
            change: tuple(
                end
                for end in changes
                if end.kind == SPINODAL and end.branches[0] in change.branches and set(end.ends) == set(change.ends)
            )
            for change in hidden
        }
        taken = {end for ends in behind.values() for end in ends}
        alone = [(change,) for change in changes if change not in taken and change not in hidden]
        return [*alone, *((*ends, change) for change, ends in behind.items())]

    @property
    def cell_width(self) -> float:
        """The distance between neighbouring points."""
        return self.values[1] - self.values[0]

    def parameter_bracket(self, change: Change) -> tuple[float, float]:
        """Return the values of the parameter on both sides of a change."""
        return self.values[change.ends[0]], self.values[change.ends[1]]

    def event(self, change: Change, accuracy: float, seed: int) -> Threshold | None:
        """Locate the event that a change brackets; None for jumps, which have none, and if a branch does not end.

        Args:
            change: a change of this row.
            accuracy: error bar asked for, in the first parameter.
            seed: seed of sampled rules.

        Raises:
            NotConvergedError: the event is not located.
        """
        chosen: dict[str, Any] = {"accuracy": accuracy, "seed": seed}
        if change.kind == CROSSING:
            one, other = (self.branch_from_points(name, change.ends, seed) for name in change.branches)
            return self.locate_crossing((one, other), self.parameter_bracket(change), **chosen)
        (name,) = change.branches
        if change.kind == SPINODAL:
            return self.locate_end(name, *change.ends, **chosen)
        if change.kind == REPLICON:
            branch, bracket = self.branch_from_points(name, change.ends, seed), self.parameter_bracket(change)
            return almeida_thouless(
                self.problem, self.parameter, on=name, branch=branch, bracket=bracket, verify=False, **chosen
            )
        return None

    def locate_crossing(
        self, branches: tuple[Branch, Branch], bracket: tuple[float, float], accuracy: float, seed: int
    ) -> Threshold:
        """Locate the crossing of two branches in an interval.

        Args:
            branches: the branches, each with at least one solution.
            bracket: interval of the first parameter.
            accuracy: error bar asked for.
            seed: seed of sampled rules.

        Raises:
            NotConvergedError: the branches do not cross in the interval, or one is lost.
        """
        between = branches[0].name, branches[1].name
        chosen: dict[str, Any] = {"bracket": bracket, "accuracy": accuracy, "seed": seed, "verify": False}
        return replica_symmetric_crossing(self.problem, self.parameter, between, branches=branches, **chosen)

    def locate_end(self, name: str, inside: int, outside: int, accuracy: float, seed: int) -> Threshold | None:
        """Locate the end of a branch between a point that has it and one that has not; None if it does not end.

        The search goes one cell beyond. With averages in many dimensions the branch is followed by small steps instead.

        Args:
            name: the branch.
            inside: index of a point with the branch.
            outside: index of a point without it.
            accuracy: error bar asked for.
            seed: seed of sampled rules.

        Raises:
            NotConvergedError: the branch is not found again at the first point, or cannot be continued.
        """
        first, last = self.values[inside], self.values[outside]
        if reduce_to_loss(self.problem).dimension > MAX_LOW_DIMENSION:
            return self._bracket_end_by_steps(name, inside, last, accuracy, seed)
        beyond = BoundaryOptions.current().search_beyond * np.copysign(self.cell_width, last - first)
        goal = float(np.clip(last + beyond, self.values[0], self.values[-1]))
        return self.continue_from_point(name, inside, goal, accuracy, seed)[0]

    def _bracket_end_by_steps(self, name: str, inside: int, missing: float, accuracy: float, seed: int) -> Threshold:
        """Bracket the end of a branch between the last value it is followed to and one that Newton's method misses.

        Steps are halved where it finds no solution, until they are as short as the error bar asks for; so that a value
        too far away to be reached is not taken for missing.

        Raises:
            NotConvergedError: the branch is not found again at the first point, or does not end before `missing`.
        """
        direction = 1 if missing > self.values[inside] else -1
        inner = inside - direction
        numbers = (inside, inner) if 0 <= inner < len(self.values) else (inside,)
        branch = replace(self.branch_from_points(name, numbers, seed), followed=True)
        last, step = self.values[inside], abs(missing - self.values[inside]) / 2
        while direction * (missing - last) > 0:
            there = last + direction * min(step, direction * (missing - last))
            if branch.at(there) is not None:
                last = there
            elif step > 2 * accuracy:
                step /= 2
            else:
                missing = there
                break
        else:
            raise NotConvergedError(f"the {name} branch does not end before {self.parameter} = {missing:g}")
        return Threshold(
            kind=SPINODAL,
            parameter=self.parameter,
            value=(last + missing) / 2,
            error=abs(missing - last) / 2,
            error_kind="estimated",
            status="converged",
            branches=(name,),
            problem=self.problem,
            solutions=(branch.known[last],),
            evidence={"type": _STEPPED, "bracket": sorted((last, missing))},
        )

    def continue_from_point(
        self, name: str, inside: int, goal: float, accuracy: float, seed: int
    ) -> tuple[Threshold | None, float]:
        """Return the end of a branch between a point of the row and a value, or None, and the last value reached.

        Args:
            name: the branch.
            inside: index of the point to start from.
            goal: value of the first parameter to continue to.
            accuracy: error bar asked for.
            seed: seed of sampled rules.

        Raises:
            NotConvergedError: the branch is not found again at the point, or cannot be continued.
        """
        first = self.values[inside]
        start = self.branch_from_points(name, (inside,), seed).known[first]
        search = ThresholdSearch(SPINODAL, self.problem, self.parameter, (name,), (first, goal), accuracy, False)
        continuation = BranchContinuation(self.problem, start, self.parameter, (first, goal), self.accuracy, seed)
        event = first_event_on_branch(continuation, search)
        return event, continuation.points_so_far[-1].value if continuation.points_so_far else first

    def branch_from_points(self, name: str, numbers: Sequence[int], seed: int) -> Branch:
        """Return a branch with solutions at some points of the row, solved again from their records.

        Args:
            name: the branch.
            numbers: indices of the points; those without the branch are left out.
            seed: seed of sampled rules.

        Raises:
            NotConvergedError: a solution is not found again.
        """
        most = BoundaryOptions.current().rule_sizes[reduce_to_loss(self.problem).dimension > MAX_LOW_DIMENSION]
        branch = Branch(self.problem, self.parameter, name, self.accuracy, seed, effort=2, most=most)
        for n in numbers:
            if not self.found(name, n):
                continue
            value = self.values[n]
            guess: Solution = restore_solution(
                self.problem.with_(**{self.parameter: value}), name, self.records[name][n]
            )
            if branch.at(value, guess=guess) is None:
                raise NotConvergedError(f"the {name} branch was not found again at {self.parameter} = {value:g}")
        return branch


LocatedBoundaries = Mapping[Change, Boundary | None]
"""The located boundaries of a row; None if branches do not cross after all."""
BoundaryKey = tuple[str, tuple[str, ...], bool, int]


def locate_group(row: Row, changes: Sequence[Change], accuracy: float, seed: int) -> list[Boundary | None]:
    """Locate the events that the changes of one group bracket, or bracket those that cannot be located.

    A boundary is None if the branches do not cross because one of them begins as the lower one.

    Args:
        row: the row of the changes.
        changes: a group of `Row.change_groups`.
        accuracy: error bar asked for, in the first parameter.
        seed: seed of sampled rules.
    """
    ends: dict[str, Threshold] = {}
    found: list[Boundary | None] = []
    for change in changes:
        event: Threshold | None = None
        try:
            if change.kind == CROSSING and not row.exists_on_both_sides(change):
                found.append(_locate_hidden_crossing(row, change, ends, accuracy, seed))
                continue
            event = row.event(change, accuracy, seed)
        except (NotConvergedError, InputError):
            pass
        low, high = sorted(row.values[n] for n in change.ends)
        if event is None or not low - (high - low) <= event.value <= high + (high - low):
            found.append(_bracketed_boundary(row, change, *_bracketing_interval(row, change, seed)))
            continue
        if change.kind == SPINODAL:
            ends[change.branches[0]] = event
        found.append(Boundary(change.kind, change.branches, event.value, event.error, row.at, event.status))
    return found


def bracketed_boundary(row: Row, change: Change) -> Boundary:
    """Return a boundary between the neighbouring points of a change, not located further.

    Args:
        row: the row of the change.
        change: the change.
    """
    return _bracketed_boundary(row, change, *row.parameter_bracket(change))


def _bracketed_boundary(row: Row, change: Change, one: float, other: float) -> Boundary:
    middle, width = (one + other) / 2, abs(other - one) / 2
    return Boundary(change.kind, change.branches, middle, width, row.at, BRACKETED)


def _bracketing_interval(row: Row, change: Change, seed: int) -> tuple[float, float]:
    """Return the interval between neighbouring points; narrower, by bisection, for the end of a branch."""
    ends = row.parameter_bracket(change)
    if change.kind != SPINODAL:
        return ends
    try:
        bisections = BoundaryOptions.current().end_bisections
        return bisect_branch_end(row.branch_from_points(change.branches[0], change.ends[:1], seed), ends[1], bisections)
    except NotConvergedError:
        return ends


def _locate_hidden_crossing(
    row: Row, change: Change, ends: Mapping[str, Threshold], accuracy: float, seed: int
) -> Boundary | None:
    """Locate the crossing of two branches between a point that has both and the end of one; None if they do not cross.

    `ends` are the located ends of branches of this cell.
    """
    (one, other), n = change.branches, next(n for n in change.ends if all(row.found(b, n) for b in change.branches))
    here = row.values[n]
    if not any(name in ends for name in change.branches):
        return None
    name = min((b for b in change.branches if b in ends), key=lambda b: abs(ends[b].value - here))
    end = ends[name].solutions[0]
    last = end.problem.value_of(row.parameter)
    opponent = other if name == one else one
    opposite = _solve_between_points(row, opponent, n, last, seed)
    difference, error = loss_difference(end, opposite)
    before = row.loss(name, n) - row.loss(opponent, n)
    if difference * before > 0 and abs(difference) > error:
        return None
    pair = (row.branch_from_points(one, (n,), seed), row.branch_from_points(other, (n,), seed))
    if ends[name].evidence.get("type") == _STEPPED:  # this side of the end
        within = last
        for branch in pair:
            branch.known[last] = end if branch.name == name else opposite
    else:
        within = last + BoundaryOptions.current().fold_offset * (here - last)  # where Newton's method is not singular
        for branch in pair:
            branch.at(within)
    try:
        found = row.locate_crossing(pair, (here, within), accuracy, seed)
    except NotConvergedError:
        if difference * before > 0:  # equal there within errors: how far back they may be equal
            fraction = min(1.0, (abs(difference) + error) / abs(before - difference))
            return _bracketed_boundary(row, change, last + fraction * (here - last), last)
        return _bracketed_boundary(row, change, here, last)
    return Boundary(change.kind, change.branches, found.value, found.error, row.at, found.status)


def _solve_between_points(row: Row, name: str, n: int, value: float, seed: int) -> Solution:
    """Return the solution of a branch at a value between points of the row, from its solution at one of them.

    Raises:
        NotConvergedError: the branch is not found.
    """
    found = row.branch_from_points(name, (n,), seed).at(value)
    if found is None:
        raise NotConvergedError(f"the {name} branch was not found at {row.parameter} = {value:g}")
    return found


def index_boundaries(places: LocatedBoundaries, kind: str | None = None) -> dict[BoundaryKey, tuple[Change, Boundary]]:
    """Return the located boundaries of a row by kind, branches, side of a branch's end, and count among equal ones.

    Args:
        places: located boundaries by their changes.
        kind: only boundaries of this kind.
    """
    found: dict[BoundaryKey, tuple[Change, Boundary]] = {}
    for change, place in sorted(places.items(), key=lambda item: min(item[0].ends)):
        if place is not None and kind in (None, change.kind):
            name = change.kind, change.branches, change.ends[1] > change.ends[0]
            found[(*name, sum(key[:3] == name for key in found))] = change, place
    return found


def rows_to_insert(rows: Sequence[tuple[Row, LocatedBoundaries]], bend: float, reach: float) -> list[float]:
    """Return values of the second parameter half way between neighbouring rows whose boundaries differ too much.

    Args:
        rows: rows with their located boundaries, in ascending order.
        bend: largest distance, in cells, of a boundary from the straight line between the rows on both sides of it.
        reach: largest distance, in cells, between boundaries of neighbouring rows.
    """
    # Jumps become negligible at a point known to one cell only: no event.
    lines = [{key: there for key, there in index_boundaries(places).items() if key[0] != JUMPS} for _, places in rows]
    chosen: set[int] = set()
    for n, (one, other) in enumerate(pairwise(lines)):
        cell_width = rows[n][0].cell_width
        moved = [abs(one[key][1].value - other[key][1].value) for key in one if key in other]
        if one.keys() != other.keys() or any(move > reach * cell_width for move in moved):
            chosen.add(n)
    for n, (below, here, above) in enumerate(zip(lines, lines[1:], lines[2:], strict=False)):
        at = [rows[k][0].at for k in (n, n + 1, n + 2)]
        for key in below.keys() & here.keys() & above.keys():
            straight = float(np.interp(at[1], at[::2], [below[key][1].value, above[key][1].value]))
            if abs(here[key][1].value - straight) > bend * rows[n][0].cell_width:
                chosen |= {n, n + 1}
    return [(rows[n][0].at + rows[n + 1][0].at) / 2 for n in sorted(chosen)]
