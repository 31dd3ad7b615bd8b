"""Codimension-2 points of a phase diagram, where phase boundaries meet.

There are three kinds: three branches have equal training loss; a branch ends on a crossing; two branches end. The grid
rows below and above the point have their boundaries in different order. One of these, the reference boundary, is
located on rows in between. On it the difference of two training losses, or its distance from the other boundary, is a
function of the second parameter, and the codimension-2 point is the root of this function.
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
from ...base.options import AlgorithmOptions
from ...base.progress import progress_bar
from ...branches.branch import Branch
from ...following.events import FOLD, PITCHFORK, relocate_event_for_nearby_problem
from ...solving.losses import refine_training_loss
from ...solving.solution import Solution
from ...thresholds.crossing import (
    refine_both_training_losses,
    refine_training_loss_on_branch,
    training_loss_derivative,
    training_loss_difference,
)
from ...thresholds.root import DifferenceEvaluation, LocatedRoot, find_root_in_bracket
from ...thresholds.threshold import Threshold
from .boundaries import (
    BRACKETED,
    CROSSING,
    SPINODAL,
    BranchChange,
    DiagramRow,
    LocatedBoundaries,
    boundaries_by_kind_and_branches,
)

TRIPLE, END, ENDS = "triple", "end", "ends"
UNCONFIRMED = "unconfirmed"
"""Status of a codimension-2 point that solutions of a finer accuracy do not confirm."""


@dataclass(frozen=True)
class Codim2Options(AlgorithmOptions):
    """Options for locating codimension-2 points of a phase diagram.

    Attributes:
        search_margin: grid cells by which the search for a crossing between two rows exceeds its positions on them.
        reference_refinement: largest factor by which the reference boundary is located more accurately than required,
            if its error dominates; larger costs more time, but leaves fewer points that are only bracketed.
        start_points: number of grid points of a row, nearest first, from which the search for a branch is started.
        confirmation_accuracy: accuracy of the solutions that confirm a point, as a fraction of that of the rows.
        sign_refinements: how often the error bar of a difference is reduced to a quarter to determine its sign.
        halvings: bisection steps towards a row on which one of the branches does not exist on the reference boundary.
    """

    search_margin: float = 0.5
    reference_refinement: float = 30.0
    start_points: int = 3
    confirmation_accuracy: float = 0.1
    sign_refinements: int = 2
    halvings: int = 10


Outcome = TypeVar("Outcome")
LossRefinement = Callable[[Solution, float], Solution | None]
ChangePair = tuple[BranchChange, BranchChange]
"""A boundary as a pair of branch changes: on the row below and on the row above."""


@dataclass(frozen=True)
class Codim2Point:
    """A codimension-2 point, where boundaries meet.

    Attributes:
        kind: TRIPLE (three branches have equal training loss), END (the first branch ends on a crossing of two
            branches) or ENDS (two branches end).
        branches: the branches involved.
        value, error: value of the first parameter and its error bar.
        at, at_error: value of the second parameter and its error bar.
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
    def boundaries_that_may_meet(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The boundaries that may meet at the point, as (kind, branches): ends of branches, then crossings of pairs."""
        ending = {TRIPLE: (), END: self.branches[:1], ENDS: self.branches}[self.kind]
        pairs = ((one, other) for one in self.branches for other in self.branches if one != other)
        return *((SPINODAL, (name,)) for name in ending), *((CROSSING, pair) for pair in pairs)


@dataclass(frozen=True)
class Codim2Candidate:
    """A candidate for a codimension-2 point: two neighbouring rows of the grid between which boundaries may meet.

    Attributes:
        kind, branches: as for `Codim2Point`.
        rows: the lower and the upper row.
        reference_boundary: the boundary on which the point lies, which is located on rows in between; given as a branch
            change (see `BranchChange`) on each of the two rows.
        between: estimated positions of the reference boundary on both rows.
        pair: the branches whose training losses are equal at the point, or that end there.
        crossed: for kind ENDS (two branches end), the end of the second branch, as a branch change on each row.
        is_explained: whether the ends of the two branches come in different orders on the rows, which may explain the
            candidate: then only a definite change of sign of the loss difference counts.
    """

    kind: str
    branches: tuple[str, ...]
    rows: tuple[DiagramRow, DiagramRow]
    reference_boundary: ChangePair
    between: tuple[float, float]
    pair: tuple[str, str]
    crossed: ChangePair | None = None
    is_explained: bool = False


def find_codim2_candidates(rows: list[tuple[DiagramRow, LocatedBoundaries]]) -> list[Codim2Candidate]:
    """Return candidate codimension-2 points between neighbouring rows (ascending in the second parameter)."""
    found: list[Codim2Candidate] = []
    for lower, upper in pairwise(rows):
        swapped = list(_candidates_from_swapped_branch_ends(lower, upper))
        found += _candidates_from_branch_ends(lower, upper, [set(candidate.pair) for candidate in swapped])
        found += swapped
        # Each of three crossings may be the reference boundary of the same point.
        found += {
            frozenset(candidate.branches): candidate for candidate in _triple_point_candidates(lower, upper)
        }.values()
    return found


def _candidates_from_swapped_branch_ends(
    lower: tuple[DiagramRow, LocatedBoundaries], upper: tuple[DiagramRow, LocatedBoundaries]
) -> Iterator[Codim2Candidate]:
    """Yield candidates for points where two branches end: pairs whose ends come in different orders on the two rows."""
    below, above = (boundaries_by_kind_and_branches(places, SPINODAL) for _, places in (lower, upper))
    for key, other in combinations([key for key in below if key in above], 2):
        (first_below, at_below), (second_below, other_below) = below[key], below[other]
        (first_above, at_above), (second_above, other_above) = above[key], above[other]
        distances = at_below.value - other_below.value, at_above.value - other_above.value
        errors = at_below.error + other_below.error, at_above.error + other_above.error
        if distances[0] * distances[1] < 0 and all(abs(a) > e for a, e in zip(distances, errors, strict=True)):
            pair = first_below.branches[0], second_below.branches[0]
            between, reference = (at_below.value, at_above.value), (first_below, first_above)
            crossed = second_below, second_above
            yield Codim2Candidate(ENDS, pair, (lower[0], upper[0]), reference, between, pair, crossed)


def _candidates_from_branch_ends(
    lower: tuple[DiagramRow, LocatedBoundaries], upper: tuple[DiagramRow, LocatedBoundaries], swapped: list[set[str]]
) -> Iterator[Codim2Candidate]:
    """Yield candidates for points where a branch ends on a crossing.

    At the end of the branch, different branches have the lowest training loss on the two rows. Pairs of branches in
    `swapped`, whose ends come in different orders on the two rows, explain such a difference.
    """
    below, above = (boundaries_by_kind_and_branches(places, SPINODAL) for _, places in (lower, upper))
    for key in [key for key in below if key in above]:
        (one, here), (other, there) = below[key], above[key]
        (name,) = one.branches
        is_lowest, rival = _compare_losses_at_branch_end(lower, one, here.value)
        other_is_lowest, other_rival = _compare_losses_at_branch_end(upper, other, there.value)
        if is_lowest != other_is_lowest and rival == other_rival and rival:
            branches: tuple[str, ...] = (name, rival)
            pair = name, rival
        elif is_lowest == other_is_lowest and rival != other_rival and rival and other_rival:
            if {name, rival} in swapped or {name, other_rival} in swapped:
                continue  # this explains the change of the lowest branch
            branches = (name, rival, other_rival)
            pair = rival, other_rival
        elif is_lowest != other_is_lowest and rival and other_rival:
            # If it ends in a third branch, this is the lowest one beyond.
            below_it, third = (other_rival, rival) if is_lowest else (rival, other_rival)
            branches = (name, below_it, third)
            pair = name, below_it
        else:
            continue
        between = here.value, there.value
        is_explained = set(pair) in swapped
        yield Codim2Candidate(
            END, branches, (lower[0], upper[0]), (one, other), between, pair, is_explained=is_explained
        )


def _compare_losses_at_branch_end(
    located_row: tuple[DiagramRow, LocatedBoundaries], change: BranchChange, value: float
) -> tuple[bool, str]:
    """Return whether a branch has the lowest training loss where it ends, and which of the others has the lowest."""
    row, places = located_row
    (name,) = change.branches
    within = {c: p for c, p in places.items() if c.kind == CROSSING and set(c.ends) == set(change.ends)}
    crossed = any(name in c.branches and p is not None for c, p in within.items())
    others = [branch for branch in row.records if branch != name]
    low, high = sorted(change.ends)
    here, there = row.lowest_loss_branch(low, others), row.lowest_loss_branch(high, others)
    rival = here or there
    if here != there and here and there:
        cut = next((p.value for c, p in within.items() if p is not None and set(c.branches) == {here, there}), None)
        rival = here if value < (_parameter_of_equal_loss(row, here, there, low) if cut is None else cut) else there
    return row.lowest_loss_branch(change.ends[0]) == name and not crossed, rival


def _parameter_of_equal_loss(row: DiagramRow, one: str, other: str, n: int) -> float:
    """Return the parameter at which two branches have equal training loss, interpolated between two grid points."""
    differences = [row.branch_training_loss(one, k) - row.branch_training_loss(other, k) for k in (n, n + 1)]
    fraction = differences[0] / (differences[0] - differences[1]) if differences[0] * differences[1] < 0 else 0.5
    return row.values[n] + fraction * (row.values[n + 1] - row.values[n])


def _triple_point_candidates(
    lower: tuple[DiagramRow, LocatedBoundaries], upper: tuple[DiagramRow, LocatedBoundaries]
) -> Iterator[Codim2Candidate]:
    """Yield candidates for triple points, between two rows of the grid.

    On one row two branches cross where both have the lowest training loss, on the other one where a third has less.
    """
    for (row, places), (other, _) in ((lower, upper), (upper, lower)):
        for change, place in places.items():
            if change.kind != CROSSING or place is None or not row.has_branches_on_both_sides(change):
                continue
            one, second = change.branches
            opposite = _crossing_above_lowest_branch(other, one, second)
            if opposite is None:
                continue
            n = opposite.ends[0]
            at = _parameter_of_equal_loss(other, one, second, n)
            third = other.lowest_loss_branch(min(opposite.ends, key=lambda k: abs(other.values[k] - at)))
            if third in ("", one, second) or not all(row.has_branch(third, k) for k in change.ends):
                continue
            ordered = [(row, change, place.value), (other, opposite, at)]
            if row.at > other.at:
                ordered.reverse()
            rows, reference_boundary, between = zip(*ordered, strict=True)
            yield Codim2Candidate(TRIPLE, (one, second, third), rows, reference_boundary, between, (third, one))


def _crossing_above_lowest_branch(row: DiagramRow, one: str, other: str) -> BranchChange | None:
    """Return the crossing of two branches where a third one has lower loss, as a branch change; None without one."""
    for n in range(len(row.values) - 1):
        here, there = (row.branch_training_loss(one, k) - row.branch_training_loss(other, k) for k in (n, n + 1))
        if here * there < 0:
            change = BranchChange(CROSSING, (one, other), (n, n + 1))
            return None if change in row.branch_changes() else change
    return None


def locate_codim2_point(candidate: Codim2Candidate, accuracies: tuple[float, float], seed: int) -> Codim2Point | None:
    """Locate a codimension-2 point; return None if the boundaries do not meet.

    A point that cannot be located has the status BRACKETED. More accurate solutions confirm the point, as coarse
    quadrature rules may have spurious ends of branches.

    Args:
        candidate: the candidate.
        accuracies: required error bars, in the first parameter and in the second.
        seed: seed of sampled quadrature rules.
    """
    lower, upper = candidate.rows
    evaluator = _BoundaryDifferenceEvaluator(candidate, accuracies[0], seed)
    try:
        with progress_bar(f"{candidate.kind} of {' and '.join(candidate.branches)}", None) as task:
            before, last, missing = _bracket_root_of_difference(
                candidate, accuracies[1], evaluator.evaluate_boundary_difference, task.count_finished_step
            )
            if candidate.is_explained and not (
                _have_differences_opposite_signs(before, last)
                and _is_difference_beyond_error(before)
                and _is_difference_beyond_error(last)
            ):
                return None  # if both end in the same branch, a vanishing difference means nothing
            if not _have_differences_opposite_signs(before, last):
                if missing is None:
                    return None
                raise NotConvergedError(
                    "a branch ends on the reference boundary before its training loss equals that of the other branch"
                )
            left, right = sorted((before, last), key=lambda evaluation: evaluation.value)
            root = find_root_in_bracket(
                left, right, accuracies[1], evaluator.evaluate_boundary_difference, task.count_finished_step
            )
    except (NotConvergedError, InputError):
        ends = [
            row.values[n]
            for row, change in zip(candidate.rows, candidate.reference_boundary, strict=True)
            for n in change.ends
        ]
        (value, error), (at, at_error) = (
            _interval_centre_and_radius(*ends),
            _interval_centre_and_radius(lower.at, upper.at),
        )
        return Codim2Point(candidate.kind, candidate.branches, value, error, at, at_error, BRACKETED)
    at_error = root.best.error / abs(root.slope) + root.error
    value, error = evaluator.extrapolate_reference_boundary(root.best.value, root.value, at_error)
    if not lower.values[0] <= value <= lower.values[-1]:
        return None
    fine = error <= accuracies[0] and at_error <= accuracies[1]
    status = "converged" if fine else "accuracy_not_reached"
    with progress_bar(f"{candidate.kind} of {' and '.join(candidate.branches)}: confirming", None):
        if not _is_codim2_point_confirmed(
            candidate, root, (value, error), max(at_error, accuracies[1]), accuracies[0], seed
        ):
            status = UNCONFIRMED
    return Codim2Point(candidate.kind, candidate.branches, value, error, root.value, at_error, status)


def _is_codim2_point_confirmed(
    candidate: Codim2Candidate,
    root: LocatedRoot,
    place: tuple[float, float],
    at_error: float,
    accuracy: float,
    seed: int,
) -> bool:
    """Return whether more accurate solutions confirm a codimension-2 point within the error bars.

    `place` is the position of the reference boundary with its error bar, `at_error` the error bar of `root`.
    """
    finer = _BoundaryDifferenceEvaluator(candidate, accuracy, seed, Codim2Options.current().confirmation_accuracy)
    try:
        there = finer.evaluate_boundary_difference(root.value, max(root.best.error, abs(root.slope) * at_error))
    except (NotConvergedError, InputError):
        return False
    moved, root_error = abs(there.difference / root.slope), there.error / abs(root.slope)
    value, error = finer.reference_boundary_position(root.value)
    return root_error <= 2 * at_error and moved <= root_error + at_error and abs(value - place[0]) <= error + place[1]


def _bracket_root_of_difference(
    candidate: Codim2Candidate,
    accuracy: float,
    evaluate: Callable[[float, float | None], DifferenceEvaluation],
    tick: Callable[[], None],
) -> tuple[DifferenceEvaluation, DifferenceEvaluation, float | None]:
    """Return two values of the difference that vanishes at a codimension-2 point, at points on both sides of its root.

    If the evaluation fails on one of the two rows, the interval up to there is bisected. The two points may then be on
    the same side of the root. The third result is the nearest failed value of the second parameter, or None.

    Raises:
        NotConvergedError: the evaluation succeeds at fewer than two points.
    """
    found: list[DifferenceEvaluation] = []
    missing = None
    for row in candidate.rows:
        try:
            found.append(_difference_with_definite_sign(row.at, evaluate, tick))
        except NotConvergedError:
            missing = row.at
            tick()
    if not found:
        raise NotConvergedError(
            "branches that meet at the codimension-2 point are found together on neither neighbouring row of the grid"
        )
    for _ in range(0 if missing is None else Codim2Options.current().halvings):
        assert missing is not None
        if abs(missing - found[-1].value) <= accuracy and len(found) > 1:
            break
        value = (found[-1].value + missing) / 2
        try:
            found.append(_difference_with_definite_sign(value, evaluate, tick))
        except NotConvergedError:
            missing = value
            tick()
        if _have_differences_opposite_signs(found[0], found[-1]):
            break
        stays = len(found) > 1 and _extrapolated_difference_keeps_sign(found[-2], found[-1], missing)
        if candidate.is_explained and (stays or not _is_difference_beyond_error(found[-1])):
            break
    if len(found) < 2:
        raise NotConvergedError(
            "branches that meet at the codimension-2 point are found together on only one neighbouring row of the grid"
        )
    return found[-2], found[-1], missing


def _difference_with_definite_sign(
    at: float, evaluate: Callable[[float, float | None], DifferenceEvaluation], tick: Callable[[], None]
) -> DifferenceEvaluation:
    """Return the difference that vanishes at a codimension-2 point, refined until its sign is definite if possible."""
    found = evaluate(at, None)
    tick()
    for _ in range(Codim2Options.current().sign_refinements):
        if _is_difference_beyond_error(found):
            break
        found = evaluate(at, found.error / 4)
        tick()
    return found


def _is_difference_beyond_error(found: DifferenceEvaluation) -> bool:
    """Return whether a difference of training losses, or of boundary positions, exceeds its error bar."""
    return abs(found.difference) > found.error


def _have_differences_opposite_signs(one: DifferenceEvaluation, other: DifferenceEvaluation) -> bool:
    return one.difference * other.difference <= 0


def _extrapolated_difference_keeps_sign(before: DifferenceEvaluation, last: DifferenceEvaluation, value: float) -> bool:
    """Return whether the difference through two evaluations, extrapolated linearly to a value, keeps its sign."""
    slope = (last.difference - before.difference) / (last.value - before.value)
    return bool((last.difference + slope * (value - last.value)) * last.difference > 0)


def _interval_centre_and_radius(*values: float) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low + high) / 2, (high - low) / 2


class _BoundaryDifferenceEvaluator:
    """An evaluator of the function of the second parameter that is zero at a codimension-2 point.

    It is the difference of two training losses on the reference boundary, or the distance from another boundary.
    Solutions are started from those on the nearest row that was evaluated, else from the grid.

    Args:
        candidate: the candidate for a codimension-2 point.
        accuracy: required error bar of the first parameter.
        seed: seed of sampled quadrature rules.
        accuracy_fraction: accuracy of solutions relative to that of the grid.
    """

    def __init__(self, candidate: Codim2Candidate, accuracy: float, seed: int, accuracy_fraction: float = 1.0) -> None:
        self._candidate, self._accuracy, self._seed, self._accuracy_fraction = (
            candidate,
            accuracy / 2,
            seed,
            accuracy_fraction,
        )
        self._places: dict[float, tuple[float, float]] = {}
        self._ended: dict[tuple[ChangePair, float], Threshold] = {}
        self._others: dict[tuple[str, float], Solution] = {}
        self._steepness = 0.0  # derivative of the difference in the position of the reference boundary

    def reference_boundary_position(self, at: float) -> tuple[float, float]:
        """Return position and error of the reference boundary at a second parameter where it has been located."""
        return self._places[at]

    def extrapolate_reference_boundary(self, nearest: float, at: float, at_error: float) -> tuple[float, float]:
        """Return the position of the reference boundary and its error bar, extrapolated in the second parameter.

        Args:
            nearest: nearest value of the second parameter at which the position was evaluated.
            at: value of the second parameter to extrapolate to.
            at_error: error bar of that value.
        """
        value, error = self._places[nearest]
        other = min((y for y in self._places if y != nearest), key=lambda y: abs(y - nearest))
        slope = (self._places[other][0] - value) / (other - nearest)
        return value + slope * (at - nearest), error + abs(slope) * at_error

    def evaluate_boundary_difference(self, at: float, tolerance: float | None) -> DifferenceEvaluation:
        """Evaluate the difference that vanishes at a codimension-2 point, at a value of the second parameter.

        It is the difference of two training losses on the reference boundary, or of two boundary positions.

        Args:
            at: value of the second parameter.
            tolerance: required error bar of the difference; None if any error bar will do.

        Raises:
            NotConvergedError: the reference boundary, or a branch on it, is not found.
        """
        candidate = self._candidate
        near = min(candidate.rows, key=lambda row: abs(row.at - at))
        problem, asked = near.problem.with_(**{near.second: at}), near.accuracy * self._accuracy_fraction
        row = replace(near, problem=problem, at=at, accuracy=asked)
        left = np.inf if tolerance is None else tolerance / 2
        wanted = self._clip_boundary_accuracy(left / self._steepness if self._steepness else np.inf)
        found, (value, error), moved = self._boundary_difference_to_accuracy(row, wanted, tolerance)
        if moved > left:  # the error of the reference boundary dominates
            found, (value, error), moved = self._boundary_difference_to_accuracy(
                row, self._clip_boundary_accuracy(error * left / moved), tolerance
            )
        self._places[at] = value, error
        self._steepness = moved / error if error else 0.0
        return found

    def _clip_boundary_accuracy(self, accuracy: float) -> float:
        """Return an accuracy to which the reference boundary is located, clipped to the allowed range."""
        finest = self._accuracy / Codim2Options.current().reference_refinement
        return float(np.clip(accuracy, finest, self._accuracy))

    def _boundary_difference_to_accuracy(
        self, row: DiagramRow, accuracy: float, tolerance: float | None
    ) -> tuple[DifferenceEvaluation, tuple[float, float], float]:
        """Return the difference that vanishes at a codimension-2 point, with boundaries located to a given accuracy.

        Also returned are the position of that boundary with its error bar, and the resulting error of the difference.
        """
        candidate = self._candidate
        reference_boundary = self._locate_reference_boundary(row, accuracy)
        place = reference_boundary.value, reference_boundary.error
        if candidate.crossed is not None:
            crossed = self._locate_branch_end(row, candidate.crossed, accuracy)
            moved = crossed.error + reference_boundary.error
            return (
                DifferenceEvaluation(row.at, crossed.value - reference_boundary.value, moved, 0.0, None, ()),
                place,
                moved,
            )
        there = [self._solution_on_reference_boundary(row, name, reference_boundary) for name in candidate.pair]
        pair = [solution for solution, _ in there]
        if tolerance is not None and not refine_both_training_losses(
            [refined for _, refined in there], pair, tolerance
        ):
            raise NotConvergedError(
                f"the {' or '.join(candidate.pair)} branch is not found again at {row.parameter} = "
                f"{reference_boundary.value:g} with smaller error bars"
            )
        one, other = pair
        difference, error = training_loss_difference(one, other)
        moved = (
            abs(training_loss_derivative(one, row.parameter) - training_loss_derivative(other, row.parameter))
            * reference_boundary.error
        )
        residual = one.loss_error_from_residual + other.loss_error_from_residual
        return DifferenceEvaluation(row.at, difference, error + moved, residual, None, (one, other)), place, moved

    def _locate_reference_boundary(self, row: DiagramRow, accuracy: float) -> Threshold:
        """Locate the reference boundary of the candidate on a row between its two rows."""
        candidate = self._candidate
        change = candidate.reference_boundary[0]
        if change.kind == SPINODAL:
            return self._locate_branch_end(row, candidate.reference_boundary, accuracy)
        margin = Codim2Options.current().search_margin * row.grid_spacing
        low, high = min(candidate.between) - margin, max(candidate.between) + margin
        ends = max(low, row.values[0]), min(high, row.values[-1])
        one, other = (self._branch_from_nearest_point(row, name, sum(ends) / 2) for name in change.branches)
        for end in ends:
            for branch in (one, other):
                branch.solution_at_parameter(end)
        return row.locate_branch_crossing((one, other), ends, accuracy, self._seed)

    def _locate_branch_end(self, row: DiagramRow, changes: ChangePair, accuracy: float) -> Threshold:
        """Locate the end of a branch on a row, which lies between two rows on which the branch ends."""
        rows = [at for known, at in self._ended if known == changes]
        at = min(rows, key=lambda at: abs(at - row.at), default=row.at)
        before = self._ended.get((changes, at))
        found = None
        if before is not None and at == row.at and before.error <= accuracy:
            return before
        if before is not None and before.evidence["type"] in (FOLD, PITCHFORK):
            with suppress(NotConvergedError):
                found = relocate_event_for_nearby_problem(before, row.problem, accuracy, row.accuracy)
        if found is None or before is None or abs(found.value - before.value) > row.grid_spacing:
            found = self._continue_to_branch_end(row, changes, accuracy)
        self._ended[(changes, row.at)] = found
        return found

    def _continue_to_branch_end(self, row: DiagramRow, changes: ChangePair, accuracy: float) -> Threshold:
        """Locate the end of a branch on a row by continuation from the nearest grid point with the branch."""
        change = changes[0]
        (name,), direction = change.branches, np.sign(change.ends[1] - change.ends[0])
        inside = min((c.ends[0] for c in changes), key=lambda n: direction * n)
        outside = max((c.ends[1] for c in changes), key=lambda n: direction * n)
        inward = [n for n in range(len(row.values)) if direction * (inside - n) >= 0 and row.has_branch(name, n)]
        found = _first_converged_attempt(
            sorted(inward, key=lambda n: abs(n - inside)),
            lambda n: row.locate_branch_end(name, n, outside, accuracy, self._seed),
        )
        if found is None:
            raise NotConvergedError(f"no end of the {name} branch was found on the row {row.second} = {row.at:g}")
        return found

    def _branch_from_nearest_point(self, row: DiagramRow, name: str, value: float) -> Branch:
        """Return a branch with its solution at the grid point of a row that is nearest to a parameter value."""
        there = [n for n in range(len(row.values)) if row.has_branch(name, n)]
        nearest = sorted(there, key=lambda n: abs(row.values[n] - value))
        return _first_converged_attempt(nearest, lambda n: row.restore_branch_at_points(name, (n,), self._seed))

    def _solution_on_reference_boundary(
        self, row: DiagramRow, name: str, reference_boundary: Threshold
    ) -> tuple[Solution, LossRefinement]:
        """Return the solution of a branch on the reference boundary, and a function that refines its training loss."""
        if reference_boundary.kind == SPINODAL and name in reference_boundary.branches:
            return reference_boundary.solutions[0], refine_training_loss
        branch, found = self._solve_branch_at_value(row, name, reference_boundary.value)
        self._others[(name, row.at)] = found
        return found, partial(refine_training_loss_on_branch, branch, reference_boundary.value)

    def _solve_branch_at_value(self, row: DiagramRow, name: str, value: float) -> tuple[Branch, Solution]:
        """Return a branch and its solution at a parameter value, started from the nearest solution known."""
        known = {at: solution for (branch, at), solution in self._others.items() if branch == name}
        if known:
            branch = row.restore_branch_at_points(name, (), self._seed)
            found = branch.solution_at_parameter(value, guess=known[min(known, key=lambda at: abs(at - row.at))])
            if found is not None:
                return branch, found
        branch = self._branch_from_nearest_point(row, name, value)
        found = branch.solution_at_parameter(value)
        if found is None:
            raise NotConvergedError(f"the {name} branch is not found at {branch.parameter} = {value:g}")
        return branch, found


def _first_converged_attempt(indices: Sequence[int], attempt: Callable[[int], Outcome]) -> Outcome:
    """Return the result of an attempt at the first of some grid points at which it converges.

    It does not converge at a grid point too close to the end of a branch.

    Raises:
        NotConvergedError: no attempt converges.
    """
    if not indices:
        raise NotConvergedError(
            "a branch that meets others at the codimension-2 point is not found on a neighbouring row of the grid"
        )
    *others, last = indices[: Codim2Options.current().start_points]
    for n in others:
        with suppress(NotConvergedError):
            return attempt(n)
    return attempt(last)
