"""Boundaries along one row of a plane: between which points of its grid they lie, and where they are.

A change from one point to the next brackets an event: the branch of lowest training loss changes (a crossing), a branch
is there no more (a spinodal), or its replica symmetry becomes unstable, through the replicon or through jumps of the
proximal map. The event is then located by the machinery of thresholds, which begins from the solutions of the grid; but
for jumps, which fade away: they are negligible from some point of the grid on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...base.errors import InputError, NotConvergedError
from ...branches.branch import Branch
from ...branches.curve import bisected_end
from ...following.first_event import walked_to
from ...following.walk import Walk
from ...problems.problem import Problem
from ...problems.reduced import integrated
from ...solving.solution import Solution
from ...thresholds.along_branch import almeida_thouless
from ...thresholds.crossing import loss_difference, symmetric_crossing
from ...thresholds.search import Search
from ...thresholds.threshold import Threshold
from ..sweeping.line import Record, is_found
from ..sweeping.memory import recalled

CROSSING, SPINODAL, REPLICON, JUMPS = "crossing", "spinodal", "replicon", "jumps"
BRACKETED = "bracketed"
"""Status of a boundary that is known to lie between two solved points and was not located further."""
_SHORT = 0.02  # of the way from an end, where its branch is solved again
_BEYOND = 1.0  # cells past a missing point that a walk may go to
_BISECTIONS = 4  # of an end that is not located
MANY = 4  # dimensions of averages, beyond which sets of samples are too small for equations of folds

_MOST = 100, 4  # sizes of a rule of averages in up to so many dimensions, and in more
_STEPPED = "step by step"


@dataclass(frozen=True)
class Change:
    """Something that differs between neighbours on a row.

    Attributes:
        kind: CROSSING, SPINODAL, REPLICON or JUMPS; branches: one, or the pair that crosses.
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
        problem: with the second parameter at `at`; parameter, second: names; values: of the first parameter.
        records: of every branch, one a point; accuracy: of their overlaps.
    """

    problem: Problem
    parameter: str
    second: str
    at: float
    values: tuple[float, ...]
    records: Mapping[str, tuple[Record, ...]]
    accuracy: float = 1e-3

    def found(self, branch: str, n: int) -> bool:
        """Whether a branch is there."""
        return is_found(self.records[branch][n])

    def loss(self, branch: str, n: int) -> float:
        """Training loss of a branch; nan where it is not there."""
        return float(self.records[branch][n]["training_loss"]) if self.found(branch, n) else np.nan

    def lowest(self, n: int, among: Iterable[str] | None = None) -> str:
        """The branch of lowest training loss, of all or of some; nothing where none is found."""
        there = [branch for branch in (self.records if among is None else among) if self.found(branch, n)]
        return min(there, key=lambda branch: self.loss(branch, n), default="")

    def unstable(self, branch: str, n: int) -> str:
        """What replica symmetry of a branch is unstable through: its replicon, jumps, or nothing."""
        return str(self.records[branch][n].get("unstable", ""))

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
                    continue
                words = [self.unstable(branch, k) for k in (n, n + 1)]
                if here and bool(words[0]) != bool(words[1]):
                    found.append(Change(REPLICON if REPLICON in words else JUMPS, (branch,), (n, n + 1)))
        return found

    def everywhere(self, change: Change) -> bool:
        """Whether the branches of a change are there on both sides."""
        return all(self.found(branch, n) for branch in change.branches for n in change.ends)

    def groups(self) -> list[tuple[Change, ...]]:
        """Changes that are located together: a crossing that may hide behind the end of one of its branches comes
        after the ends, all others come alone."""
        changes = self.changes()
        hidden = [change for change in changes if change.kind == CROSSING and not self.everywhere(change)]
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
    def cell(self) -> float:
        """From a point to the next."""
        return self.values[1] - self.values[0]

    def ends(self, change: Change) -> tuple[float, float]:
        """Return the values of the parameter on both sides of a change."""
        return self.values[change.ends[0]], self.values[change.ends[1]]

    def event(self, change: Change, accuracy: float, seed: int) -> Threshold | None:
        """Locate the event that a change brackets; None for jumps, which have none, and where a branch does not end.

        Raises:
            NotConvergedError: it is not located.
        """
        chosen: dict[str, Any] = {"accuracy": accuracy, "seed": seed}
        if change.kind == CROSSING:
            one, other = (self.follower(name, change.ends, seed) for name in change.branches)
            return self.crossing_on((one, other), self.ends(change), **chosen)
        (name,) = change.branches
        if change.kind == SPINODAL:
            return self.end_of(name, *change.ends, **chosen)
        if change.kind == REPLICON:
            branch, bracket = self.follower(name, change.ends, seed), self.ends(change)
            return almeida_thouless(
                self.problem, self.parameter, on=name, branch=branch, bracket=bracket, verify=False, **chosen
            )
        return None

    def crossing_on(
        self, branches: tuple[Branch, Branch], bracket: tuple[float, float], accuracy: float, seed: int
    ) -> Threshold:
        """Locate where two branches cross in an interval.

        Raises:
            NotConvergedError: as of `crossing`.
        """
        between = branches[0].name, branches[1].name
        chosen: dict[str, Any] = {"bracket": bracket, "accuracy": accuracy, "seed": seed, "verify": False}
        return symmetric_crossing(self.problem, self.parameter, between, branches=branches, **chosen)

    def end_of(self, name: str, inside: int, outside: int, accuracy: float, seed: int) -> Threshold | None:
        """Locate the end of a branch from a point with it toward one without, and a cell beyond; None without one.

        With averages in many dimensions it is followed step by step from the one toward the other.

        Raises:
            NotConvergedError: the branch is not found again where it begins, or cannot be followed.
        """
        first, last = self.values[inside], self.values[outside]
        if integrated(self.problem).dimension > MANY:
            return self._stepped(name, inside, last, accuracy, seed)
        goal = float(np.clip(last + _BEYOND * np.copysign(self.cell, last - first), self.values[0], self.values[-1]))
        return self.walked_from(name, inside, goal, accuracy, seed)[0]

    def _stepped(self, name: str, inside: int, missing: float, accuracy: float, seed: int) -> Threshold:
        """Bracket the end of a branch between the last value it is followed to and one that Newton's method misses.

        Steps are halved where it finds no solution, until they are as short as the half width asks for; so that a value
        too far away to be reached is not taken for missing.

        Raises:
            NotConvergedError: the branch is not found again where it begins, or is there on all of the way.
        """
        way = 1 if missing > self.values[inside] else -1
        inner = inside - way
        begun = (inside, inner) if 0 <= inner < len(self.values) else (inside,)
        branch = replace(self.follower(name, begun, seed), followed=True)
        last, step = self.values[inside], abs(missing - self.values[inside]) / 2
        while way * (missing - last) > 0:
            there = last + way * min(step, way * (missing - last))
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

    def walked_from(
        self, name: str, inside: int, goal: float, accuracy: float, seed: int
    ) -> tuple[Threshold | None, float]:
        """Return the end of a branch between a point of the row and a value, or None, and how far it was followed.

        Raises:
            NotConvergedError: as of `end_of`.
        """
        first = self.values[inside]
        begun = self.follower(name, (inside,), seed).known[first]
        search = Search(SPINODAL, self.problem, self.parameter, (name,), (first, goal), accuracy, False)
        walk = Walk(self.problem, begun, self.parameter, (first, goal), self.accuracy, seed)
        event = walked_to(walk, search)
        return event, walk.passed[-1].value if walk.passed else first

    def follower(self, name: str, numbers: Sequence[int], seed: int) -> Branch:
        """Return a branch with solutions at some points of the row, begun from their records.

        Raises:
            NotConvergedError: one of them is not found again.
        """
        most = _MOST[integrated(self.problem).dimension > MANY]
        branch = Branch(self.problem, self.parameter, name, self.accuracy, seed, effort=2, most=most)
        for n in numbers:
            if not self.found(name, n):
                continue
            value = self.values[n]
            guess: Solution = recalled(self.problem.with_(**{self.parameter: value}), name, self.records[name][n])
            if branch.at(value, guess=guess) is None:
                raise NotConvergedError(f"the {name} branch was not found again at {self.parameter} = {value:g}")
        return branch


Places = Mapping[Change, Boundary | None]
"""What was located on a row; None where branches do not cross after all."""
Series = tuple[str, tuple[str, ...], bool, int]


def located(row: Row, changes: Sequence[Change], accuracy: float, seed: int) -> list[Boundary | None]:
    """The events that changes of one group bracket, by the machinery of thresholds; what it cannot locate is bracketed.

    None for branches that do not cross where one of them begins as the lower one.

    Args:
        changes: a group of `Row.groups`.
        accuracy: half width asked for, in the first parameter.
    """
    ends: dict[str, Threshold] = {}
    found: list[Boundary | None] = []
    for change in changes:
        event: Threshold | None = None
        try:
            if change.kind == CROSSING and not row.everywhere(change):
                found.append(_hidden(row, change, ends, accuracy, seed))
                continue
            event = row.event(change, accuracy, seed)
        except (NotConvergedError, InputError):
            pass
        low, high = sorted(row.values[n] for n in change.ends)
        if event is None or not low - (high - low) <= event.value <= high + (high - low):
            found.append(_bracketed(row, change, *_bracket(row, change, seed)))
            continue
        if change.kind == SPINODAL:
            ends[change.branches[0]] = event
        found.append(Boundary(change.kind, change.branches, event.value, event.error, row.at, event.status))
    return found


def bracketed(row: Row, change: Change) -> Boundary:
    """Between the neighbours of a change, and located no further."""
    return _bracketed(row, change, *row.ends(change))


def _bracketed(row: Row, change: Change, one: float, other: float) -> Boundary:
    middle, width = (one + other) / 2, abs(other - one) / 2
    return Boundary(change.kind, change.branches, middle, width, row.at, BRACKETED)


def _bracket(row: Row, change: Change, seed: int) -> tuple[float, float]:
    """Between neighbours; narrower, by bisection, where a branch ends."""
    ends = row.ends(change)
    if change.kind != SPINODAL:
        return ends
    try:
        return bisected_end(row.follower(change.branches[0], change.ends[:1], seed), ends[1], _BISECTIONS)
    except NotConvergedError:
        return ends


def _hidden(row: Row, change: Change, ends: Mapping[str, Threshold], accuracy: float, seed: int) -> Boundary | None:
    """Whether two branches cross between a point that both reach and the end of one of them, and where.

    Args:
        ends: of branches of this cell, located.
    """
    (one, other), n = change.branches, next(n for n in change.ends if all(row.found(b, n) for b in change.branches))
    here = row.values[n]
    if not any(name in ends for name in change.branches):
        return None
    name = min((b for b in change.branches if b in ends), key=lambda b: abs(ends[b].value - here))
    end = ends[name].solutions[0]
    last = end.problem.value_of(row.parameter)
    beside = other if name == one else one
    opposite = _solved(row, beside, n, last, seed)
    difference, error = loss_difference(end, opposite)
    before = row.loss(name, n) - row.loss(beside, n)
    if difference * before > 0 and abs(difference) > error:
        return None
    pair = (row.follower(one, (n,), seed), row.follower(other, (n,), seed))
    if ends[name].evidence.get("type") == _STEPPED:  # this side of the end
        within = last
        for branch in pair:
            branch.known[last] = end if branch.name == name else opposite
    else:
        within = last + _SHORT * (here - last)  # where Newton's method is not singular
        for branch in pair:
            branch.at(within)
    try:
        found = row.crossing_on(pair, (here, within), accuracy, seed)
    except NotConvergedError:
        if difference * before > 0:  # equal there, as far as is known: how far back they may be
            share = min(1.0, (abs(difference) + error) / abs(before - difference))
            return _bracketed(row, change, last + share * (here - last), last)
        return _bracketed(row, change, here, last)
    return Boundary(change.kind, change.branches, found.value, found.error, row.at, found.status)


def _solved(row: Row, name: str, n: int, value: float, seed: int) -> Solution:
    """A branch at a value between points of the row, from its solution at one of them.

    Raises:
        NotConvergedError: it is not found.
    """
    found = row.follower(name, (n,), seed).at(value)
    if found is None:
        raise NotConvergedError(f"the {name} branch was not found at {row.parameter} = {value:g}")
    return found


def series(places: Places, kind: str | None = None) -> dict[Series, tuple[Change, Boundary]]:
    """The located boundaries of a row by kind, branches, side of a branch's end, and number of several of this kind."""
    found: dict[Series, tuple[Change, Boundary]] = {}
    for change, place in sorted(places.items(), key=lambda item: min(item[0].ends)):
        if place is not None and kind in (None, change.kind):
            name = change.kind, change.branches, change.ends[1] > change.ends[0]
            found[(*name, sum(key[:3] == name for key in found))] = change, place
    return found


def further(rows: Sequence[tuple[Row, Places]], bend: float, reach: float) -> list[float]:
    """Values of the second parameter half way between neighbouring rows that are to be halved.

    Different things happen on them, or a boundary moves by more than `reach` cells, or it is more than `bend` cells off
    the straight line between the rows on both sides of it.

    Args:
        rows: in ascending order.
    """
    # Where jumps are negligible is known to a cell, and from which row on is no event.
    lines = [{key: there for key, there in series(places).items() if key[0] != JUMPS} for _, places in rows]
    chosen: set[int] = set()
    for n, (one, other) in enumerate(pairwise(lines)):
        cell = rows[n][0].cell
        moved = [abs(one[key][1].value - other[key][1].value) for key in one if key in other]
        if one.keys() != other.keys() or any(move > reach * cell for move in moved):
            chosen.add(n)
    for n, (below, here, above) in enumerate(zip(lines, lines[1:], lines[2:], strict=False)):
        at = [rows[k][0].at for k in (n, n + 1, n + 2)]
        for key in below.keys() & here.keys() & above.keys():
            straight = float(np.interp(at[1], at[::2], [below[key][1].value, above[key][1].value]))
            if abs(here[key][1].value - straight) > bend * rows[n][0].cell:
                chosen |= {n, n + 1}
    return [(rows[n][0].at + rows[n + 1][0].at) / 2 for n in sorted(chosen)]
