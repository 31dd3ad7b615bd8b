"""Points of a plane where boundaries meet: triple points.

Three branches of equal training loss meet in one; in another the end of a branch meets a crossing, its own or that of
two others; in a third two branches end. On the rows below and above boundaries come in another order. One of them, the
carrier, is located on rows in between, and the difference of two training losses on it, or of its place and that of the
other end, has its root, as thresholds have, in the second parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise
from typing import TypeVar

import numpy as np

from ...base.errors import InputError, NotConvergedError
from ...base.progress import bar
from ...branches.branch import Branch
from ...following.events import FOLD, PITCHFORK, located_again
from ...solving.losses import refine_losses
from ...solving.solution import Solution
from ...thresholds.crossing import loss_difference, loss_slope, refine_both, with_loss
from ...thresholds.root import Evaluation, Root, root_between
from ...thresholds.threshold import Threshold
from .boundaries import BRACKETED, CROSSING, SPINODAL, Change, Places, Row, series

TRIPLE, END, ENDS = "triple", "end", "ends"
UNCONFIRMED = "unconfirmed"
"""Status of a meeting that solutions of a finer accuracy do not have there, or are not found to."""
_WIDER = 0.5  # cells beside the carrier of two rows where it is looked for in between
_FINER = 30.0  # times the accuracy to which a carrier is located where the difference asks for it
_TRIED = 3  # points of a row from which a branch is begun
_SURER = 0.1  # of the accuracy of the rows' solutions, to which those that confirm a meeting are solved
_CLEARER = 2  # times that the error of a difference is quartered for its sign
_HALVINGS = 10  # toward where one of the branches is not on the carrier any more

Made = TypeVar("Made")
Refined = Callable[[Solution, float], Solution | None]
Ends = tuple[Change, Change]
"""An end of a branch on the rows on both sides."""


@dataclass(frozen=True)
class Meeting:
    """A point where boundaries meet.

    Attributes:
        kind: TRIPLE, of three branches of equal training loss; END: the first branch ends where the loss of the two
            others is equal, or its own and that of the only other, or all three where it ends in the third; ENDS: both
            branches end, each where it would without the other.
        value, error: of the first parameter; at, at_error: of the second.
        status: converged, accuracy_not_reached, UNCONFIRMED, or BRACKETED between two rows.
    """

    kind: str
    branches: tuple[str, ...]
    value: float
    error: float
    at: float
    at_error: float
    status: str

    @property
    def lines(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Kind and branches of the boundaries that may meet here: ends first, and the crossings of every pair."""
        ending = {TRIPLE: (), END: self.branches[:1], ENDS: self.branches}[self.kind]
        pairs = ((one, other) for one in self.branches for other in self.branches if one != other)
        return *((SPINODAL, (name,)) for name in ending), *((CROSSING, pair) for pair in pairs)


@dataclass(frozen=True)
class Suspect:
    """Neighbouring rows between which boundaries meet.

    Attributes:
        rows: the lower and the upper one; carrier: the boundary that both have, as a change on either.
        between: where the carrier is on either row, as far as is known there.
        pair: the branches whose losses are equal where it meets others, or that end there.
        crossed: of ENDS the end of the second branch, on either row.
        explained: whether the two branches end in another order on the rows, so that one of them may leave the carrier
            before their losses are equal: nothing but a sure change of sign says that they meet.
    """

    kind: str
    branches: tuple[str, ...]
    rows: tuple[Row, Row]
    carrier: Ends
    between: tuple[float, float]
    pair: tuple[str, str]
    crossed: Ends | None = None
    explained: bool = False


def suspects(rows: list[tuple[Row, Places]]) -> list[Suspect]:
    """Everything that may meet between neighbouring rows, which are in ascending order."""
    found: list[Suspect] = []
    for lower, upper in pairwise(rows):
        swapped = list(_swapped(lower, upper))
        found += _ends(lower, upper, [set(suspect.pair) for suspect in swapped])
        found += swapped
        # Each of three crossings may carry the same point.
        found += {frozenset(suspect.branches): suspect for suspect in _triples(lower, upper)}.values()
    return found


def _swapped(lower: tuple[Row, Places], upper: tuple[Row, Places]) -> Iterator[Suspect]:
    """Ends of two branches that come in another order on the other row."""
    below, above = (series(places, SPINODAL) for _, places in (lower, upper))
    for key, other in combinations([key for key in below if key in above], 2):
        (here, place), (beside, place_beside) = below[key], below[other]
        (there, far), (across, far_across) = above[key], above[other]
        apart = place.value - place_beside.value, far.value - far_across.value
        known = place.error + place_beside.error, far.error + far_across.error
        if apart[0] * apart[1] < 0 and all(abs(a) > k for a, k in zip(apart, known, strict=True)):
            pair = here.branches[0], beside.branches[0]
            between = place.value, far.value
            yield Suspect(ENDS, pair, (lower[0], upper[0]), (here, there), between, pair, (beside, across))


def _ends(lower: tuple[Row, Places], upper: tuple[Row, Places], swapped: list[set[str]]) -> Iterator[Suspect]:
    """Ends of branches on whose other side, or above which, something else is lowest on the other row.

    Args:
        swapped: pairs of branches that end in another order on the other row.
    """
    below, above = (series(places, SPINODAL) for _, places in (lower, upper))
    for key in [key for key in below if key in above]:
        (one, here), (other, there) = below[key], above[key]
        (name,) = one.branches
        own, beside = _at_end(lower, one, here.value)
        other_own, other_beside = _at_end(upper, other, there.value)
        if own != other_own and beside == other_beside and beside:
            branches: tuple[str, ...] = (name, beside)
            pair = name, beside
        elif own == other_own and beside != other_beside and beside and other_beside:
            if {name, beside} in swapped or {name, other_beside} in swapped:
                continue  # which is why it is the lowest there no more
            branches = (name, beside, other_beside)
            pair = beside, other_beside
        elif own != other_own and beside and other_beside:
            # Where it ends in a third branch, this takes its place beyond.
            below_it, third = (other_beside, beside) if own else (beside, other_beside)
            branches = (name, below_it, third)
            pair = name, below_it
        else:
            continue
        between = here.value, there.value
        explained = set(pair) in swapped
        yield Suspect(END, branches, (lower[0], upper[0]), (one, other), between, pair, explained=explained)


def _at_end(located: tuple[Row, Places], change: Change, value: float) -> tuple[bool, str]:
    """Whether a branch is the lowest where it ends, and which of the others is."""
    row, places = located
    (name,) = change.branches
    within = {c: p for c, p in places.items() if c.kind == CROSSING and set(c.ends) == set(change.ends)}
    crossed = any(name in c.branches and p is not None for c, p in within.items())
    others = [branch for branch in row.records if branch != name]
    low, high = sorted(change.ends)
    here, there = row.lowest(low, others), row.lowest(high, others)
    beside = here or there
    if here != there and here and there:
        cut = next((p.value for c, p in within.items() if p is not None and set(c.branches) == {here, there}), None)
        beside = here if value < (_equal(row, here, there, low) if cut is None else cut) else there
    return row.lowest(change.ends[0]) == name and not crossed, beside


def _equal(row: Row, one: str, other: str, n: int) -> float:
    """Where the losses of two branches are equal between a point and the next one: on straight lines, else half way."""
    gaps = [row.loss(one, k) - row.loss(other, k) for k in (n, n + 1)]
    share = gaps[0] / (gaps[0] - gaps[1]) if gaps[0] * gaps[1] < 0 else 0.5
    return row.values[n] + share * (row.values[n + 1] - row.values[n])


def _triples(lower: tuple[Row, Places], upper: tuple[Row, Places]) -> Iterator[Suspect]:
    """Crossings of the two lowest branches that on the other row lie above a third one."""
    for (row, places), (other, _) in ((lower, upper), (upper, lower)):
        for change, place in places.items():
            if change.kind != CROSSING or place is None or not row.everywhere(change):
                continue
            one, second = change.branches
            opposite = _above(other, one, second)
            if opposite is None:
                continue
            n = opposite.ends[0]
            at = _equal(other, one, second, n)
            third = other.lowest(min(opposite.ends, key=lambda k: abs(other.values[k] - at)))
            if third in ("", one, second) or not all(row.found(third, k) for k in change.ends):
                continue
            ordered = [(row, change, place.value), (other, opposite, at)]
            if row.at > other.at:
                ordered.reverse()
            rows, carrier, between = zip(*ordered, strict=True)
            yield Suspect(TRIPLE, (one, second, third), rows, carrier, between, (third, one))


def _above(row: Row, one: str, other: str) -> Change | None:
    """Where two branches cross, which need not be the lowest ones; None where they do as such, or do not."""
    for n in range(len(row.values) - 1):
        here, there = (row.loss(one, k) - row.loss(other, k) for k in (n, n + 1))
        if here * there < 0:
            change = Change(CROSSING, (one, other), (n, n + 1))
            return None if change in row.changes() else change
    return None


def met(suspect: Suspect, accuracies: tuple[float, float], seed: int) -> Meeting | None:
    """The point where boundaries meet; None where they do not after all, bracketed where it cannot be located.

    Args:
        accuracies: half widths asked for, in the first parameter and in the second.

    A coarse rule may have ends of branches that finer ones do not: what is located is looked at once more with
    solutions of a finer accuracy.
    """
    lower, upper = suspect.rows
    carried = _Carried(suspect, accuracies[0], seed)
    try:
        with bar(f"{suspect.kind} of {' and '.join(suspect.branches)}", None) as task:
            before, last, missing = _toward_a_root(suspect, accuracies[1], carried.evaluation, task.advance)
            if suspect.explained and not (_changes(before, last) and _is_sure(before) and _is_sure(last)):
                return None  # where both end in the same branch the difference vanishes, and what is near is no sign
            if not _changes(before, last):
                if missing is None:
                    return None
                raise NotConvergedError("a branch ends on the reference boundary before the losses are equal")
            left, right = sorted((before, last), key=lambda evaluation: evaluation.value)
            root = root_between(left, right, accuracies[1], carried.evaluation, task.advance)
    except (NotConvergedError, InputError):
        ends = [row.values[n] for row, change in zip(suspect.rows, suspect.carrier, strict=True) for n in change.ends]
        (value, error), (at, at_error) = _span(*ends), _span(lower.at, upper.at)
        return Meeting(suspect.kind, suspect.branches, value, error, at, at_error, BRACKETED)
    at_error = root.best.error / abs(root.slope) + root.error
    value, error = carried.place(root.best.value, root.value, at_error)
    if not lower.values[0] <= value <= lower.values[-1]:
        return None
    fine = error <= accuracies[0] and at_error <= accuracies[1]
    status = "converged" if fine else "accuracy_not_reached"
    with bar(f"{suspect.kind} of {' and '.join(suspect.branches)}: confirming", None):
        if not _confirmed(suspect, root, (value, error), max(at_error, accuracies[1]), accuracies[0], seed):
            status = UNCONFIRMED
    return Meeting(suspect.kind, suspect.branches, value, error, root.value, at_error, status)


def _confirmed(
    suspect: Suspect, root: Root, place: tuple[float, float], at_error: float, accuracy: float, seed: int
) -> bool:
    """Whether solutions of a finer accuracy have the same difference and carrier at a root, within half widths.

    Args:
        place: of the carrier, and half width; at_error: of the root.
    """
    surer = _Carried(suspect, accuracy, seed, _SURER)
    try:
        there = surer.evaluation(root.value, max(root.best.error, abs(root.slope) * at_error))
    except (NotConvergedError, InputError):
        return False
    moved, known = abs(there.difference / root.slope), there.error / abs(root.slope)
    value, error = surer.located(root.value)
    return known <= 2 * at_error and moved <= known + at_error and abs(value - place[0]) <= error + place[1]


def _toward_a_root(
    suspect: Suspect, accuracy: float, evaluate: Callable[[float, float | None], Evaluation], tick: Callable[[], None]
) -> tuple[Evaluation, Evaluation, float | None]:
    """Two evaluations that differ in sign, if there are such, and nothing; else those on both rows, or the last ones
    toward where there are none any more, and the nearest value without, no nearer than the accuracy.

    Raises:
        NotConvergedError: there are too few.
    """
    found: list[Evaluation] = []
    missing = None
    for row in suspect.rows:
        try:
            found.append(_with_sign(row.at, evaluate, tick))
        except NotConvergedError:
            missing = row.at
            tick()
    if not found:
        raise NotConvergedError("the branches of the codimension-2 point are found together on neither row")
    for _ in range(0 if missing is None else _HALVINGS):
        assert missing is not None
        if abs(missing - found[-1].value) <= accuracy and len(found) > 1:
            break
        value = (found[-1].value + missing) / 2
        try:
            found.append(_with_sign(value, evaluate, tick))
        except NotConvergedError:
            missing = value
            tick()
        if _changes(found[0], found[-1]):
            break
        stays = len(found) > 1 and _keeps_sign(found[-2], found[-1], missing)
        if suspect.explained and (stays or not _is_sure(found[-1])):
            break
    if len(found) < 2:
        raise NotConvergedError("the branches of the codimension-2 point are found together on one row only")
    return found[-2], found[-1], missing


def _with_sign(
    at: float, evaluate: Callable[[float, float | None], Evaluation], tick: Callable[[], None]
) -> Evaluation:
    """The difference on a row, more finely where its error leaves its sign open, as far as that takes little."""
    found = evaluate(at, None)
    tick()
    for _ in range(_CLEARER):
        if _is_sure(found):
            break
        found = evaluate(at, found.error / 4)
        tick()
    return found


def _is_sure(found: Evaluation) -> bool:
    """Whether the sign of a difference is."""
    return abs(found.difference) > found.error


def _changes(one: Evaluation, other: Evaluation) -> bool:
    return one.difference * other.difference <= 0


def _keeps_sign(before: Evaluation, last: Evaluation, value: float) -> bool:
    """Whether a difference continued straight to a value does."""
    slope = (last.difference - before.difference) / (last.value - before.value)
    return bool((last.difference + slope * (value - last.value)) * last.difference > 0)


def _span(*values: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low + high) / 2, (high - low) / 2


class _Carried:
    """The difference of two losses where the carrier is, on any row between two.

    Ends of branches are found again from those on the nearest row, as are the branches beside them; on the first row,
    and where that leads elsewhere, from solutions of the grid.

    Args:
        accuracy: half width asked of the carrier; share: of the accuracy of the rows' solutions, asked for between.
    """

    def __init__(self, suspect: Suspect, accuracy: float, seed: int, share: float = 1.0) -> None:
        self._suspect, self._accuracy, self._seed, self._share = suspect, accuracy / 2, seed, share
        self._places: dict[float, tuple[float, float]] = {}
        self._ended: dict[tuple[Ends, float], Threshold] = {}
        self._beside: dict[tuple[str, float], Solution] = {}
        self._steepness = 0.0  # of the difference, in the place of the carrier

    def located(self, at: float) -> tuple[float, float]:
        """Where the carrier was found on a row, and half width."""
        return self._places[at]

    def place(self, nearest: float, at: float, at_error: float) -> tuple[float, float]:
        """Where the carrier is, on a straight line from the nearest row where it was located, and half width."""
        value, error = self._places[nearest]
        other = min((y for y in self._places if y != nearest), key=lambda y: abs(y - nearest))
        slope = (self._places[other][0] - value) / (other - nearest)
        return value + slope * (at - nearest), error + abs(slope) * at_error

    def evaluation(self, at: float, tolerance: float | None) -> Evaluation:
        """The difference of the losses on a row.

        Raises:
            NotConvergedError: the carrier, or a branch on it, is not found.
        """
        suspect = self._suspect
        near = min(suspect.rows, key=lambda row: abs(row.at - at))
        problem, asked = near.problem.with_(**{near.second: at}), near.accuracy * self._share
        row = replace(near, problem=problem, at=at, accuracy=asked)
        left = np.inf if tolerance is None else tolerance / 2
        wanted = self._asked(left / self._steepness if self._steepness else np.inf)
        found, (value, error), moved = self._evaluated(row, wanted, tolerance)
        if moved > left:  # the place of the carrier leaves too much
            found, (value, error), moved = self._evaluated(row, self._asked(error * left / moved), tolerance)
        self._places[at] = value, error
        self._steepness = moved / error if error else 0.0
        return found

    def _asked(self, accuracy: float) -> float:
        """What is asked of the carrier where the difference asks for this."""
        return float(np.clip(accuracy, self._accuracy / _FINER, self._accuracy))

    def _evaluated(
        self, row: Row, accuracy: float, tolerance: float | None
    ) -> tuple[Evaluation, tuple[float, float], float]:
        """The difference with the carrier located to an accuracy, its place with half width, and what this leaves of
        the difference."""
        suspect = self._suspect
        carrier = self._carrier(row, accuracy)
        place = carrier.value, carrier.error
        if suspect.crossed is not None:
            crossed = self._end(row, suspect.crossed, accuracy)
            moved = crossed.error + carrier.error
            return Evaluation(row.at, crossed.value - carrier.value, moved, 0.0, None, ()), place, moved
        there = [self._there(row, name, carrier) for name in suspect.pair]
        pair = [solution for solution, _ in there]
        if tolerance is not None and not refine_both([refined for _, refined in there], pair, tolerance):
            raise NotConvergedError(f"a branch is lost at {row.parameter} = {carrier.value:g}")
        one, other = pair
        difference, error = loss_difference(one, other)
        moved = abs(loss_slope(one, row.parameter) - loss_slope(other, row.parameter)) * carrier.error
        residual = one.residual_loss + other.residual_loss
        return Evaluation(row.at, difference, error + moved, residual, None, (one, other)), place, moved

    def _carrier(self, row: Row, accuracy: float) -> Threshold:
        """The boundary that is located on every row."""
        suspect = self._suspect
        change = suspect.carrier[0]
        if change.kind == SPINODAL:
            return self._end(row, suspect.carrier, accuracy)
        low, high = min(suspect.between) - _WIDER * row.cell, max(suspect.between) + _WIDER * row.cell
        ends = max(low, row.values[0]), min(high, row.values[-1])
        one, other = (self._follower(row, name, sum(ends) / 2) for name in change.branches)
        for end in ends:
            for branch in (one, other):
                branch.at(end)
        return row.crossing_on((one, other), ends, accuracy, self._seed)

    def _end(self, row: Row, changes: Ends, accuracy: float) -> Threshold:
        """Of a branch that ends on the rows on both sides."""
        rows = [at for known, at in self._ended if known == changes]
        at = min(rows, key=lambda at: abs(at - row.at), default=row.at)
        before = self._ended.get((changes, at))
        found = None
        if before is not None and at == row.at and before.error <= accuracy:
            return before
        if before is not None and before.evidence["type"] in (FOLD, PITCHFORK):
            with suppress(NotConvergedError):
                found = located_again(before, row.problem, accuracy, row.accuracy)
        if found is None or before is None or abs(found.value - before.value) > row.cell:
            found = self._walked(row, changes, accuracy)
        self._ended[(changes, row.at)] = found
        return found

    def _walked(self, row: Row, changes: Ends, accuracy: float) -> Threshold:
        """The same from a point of the row as near as it is found again at."""
        change = changes[0]
        (name,), way = change.branches, np.sign(change.ends[1] - change.ends[0])
        inside = min((c.ends[0] for c in changes), key=lambda n: way * n)
        outside = max((c.ends[1] for c in changes), key=lambda n: way * n)
        inward = [n for n in range(len(row.values)) if way * (inside - n) >= 0 and row.found(name, n)]
        found = _first(
            sorted(inward, key=lambda n: abs(n - inside)),
            lambda n: row.end_of(name, n, outside, accuracy, self._seed),
        )
        if found is None:
            raise NotConvergedError(f"the {name} branch does not end on the row")
        return found

    def _follower(self, row: Row, name: str, value: float) -> Branch:
        """A branch that has begun at a point of the row that has it, as near as it is found again at."""
        there = [n for n in range(len(row.values)) if row.found(name, n)]
        nearest = sorted(there, key=lambda n: abs(row.values[n] - value))
        return _first(nearest, lambda n: row.follower(name, (n,), self._seed))

    def _there(self, row: Row, name: str, carrier: Threshold) -> tuple[Solution, Refined]:
        """A branch on the carrier, and how its loss is refined: where it ends, its end."""
        if carrier.kind == SPINODAL and name in carrier.branches:
            return carrier.solutions[0], refine_losses
        branch, found = self._on(row, name, carrier.value)
        self._beside[(name, row.at)] = found
        return found, partial(with_loss, branch, carrier.value)

    def _on(self, row: Row, name: str, value: float) -> tuple[Branch, Solution]:
        """A branch at a value, from the nearest row on which it was found, else from a point of this one."""
        known = {at: solution for (branch, at), solution in self._beside.items() if branch == name}
        if known:
            branch = row.follower(name, (), self._seed)
            found = branch.at(value, guess=known[min(known, key=lambda at: abs(at - row.at))])
            if found is not None:
                return branch, found
        branch = self._follower(row, name, value)
        found = branch.at(value)
        if found is None:
            raise NotConvergedError(f"the {name} branch is not found at {branch.parameter} = {value:g}")
        return branch, found


def _first(numbers: Sequence[int], made: Callable[[int], Made]) -> Made:
    """What is made at the first number, of a few, at which that succeeds: on a row between others a solution of theirs
    leads back to its branch, unless it is too close to its end.

    Raises:
        NotConvergedError: it does at none.
    """
    if not numbers:
        raise NotConvergedError("a branch of the codimension-2 point is not found on a row")
    *others, last = numbers[:_TRIED]
    for n in others:
        with suppress(NotConvergedError):
            return made(n)
    return made(last)
