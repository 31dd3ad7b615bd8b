"""Phase boundaries along one row of a phase diagram: detected between grid points, then located.

Between two grid points the branch of lowest training loss changes (a crossing), a branch ends (a spinodal), or its
replica symmetry becomes unstable, through the replicon or through jumps of the proximal map. The boundary in between is
located like a threshold, starting from the solutions of the grid. Jumps are not located, as they become negligible
gradually.
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
from ...problems.reduced import reduce_to_fields_of_loss
from ...solving.solution import Solution
from ...thresholds.along_branch import almeida_thouless
from ...thresholds.crossing import replica_symmetric_crossing, training_loss_difference
from ...thresholds.search import ThresholdSearch
from ...thresholds.threshold import Threshold
from ..sweeping.line import Record, is_solution_record
from ..sweeping.memory import restore_solution

CROSSING, SPINODAL, REPLICON, JUMPS = "crossing", "spinodal", "replicon", "jumps"
BRACKETED = "bracketed"
"""Status of a boundary that is bracketed by two solved grid points and was not located more accurately."""
MAX_LOW_DIMENSION = 4  # dimensions of averages, beyond which sets of samples are too small for equations of folds
_STEPPED = "step by step"


@dataclass(frozen=True)
class BoundaryOptions(AlgorithmOptions):
    """Options for locating phase boundaries on a row of a phase diagram.

    Attributes:
        fold_offset: distance from the end of a branch at which it is solved again, as a fraction of the distance to the
            grid point; smaller finds more of the crossings close to a fold, where Newton's method is nearly singular.
        search_beyond: grid cells by which a branch is continued beyond a grid point at which it was not found.
        end_bisections: bisection steps for the end of a branch that is not located as an event.
        rule_sizes: largest number of quadrature sizes, for averages in few dimensions and for those in many.
    """

    fold_offset: float = 0.02
    search_beyond: float = 1.0
    end_bisections: int = 4
    rule_sizes: tuple[int, int] = (100, 4)


@dataclass(frozen=True)
class BranchChange:
    """A change between two neighbouring grid points of a row: branches cross, or one ends or becomes unstable.

    Attributes:
        kind: CROSSING, SPINODAL (a branch ends), REPLICON or JUMPS (its replica symmetry becomes unstable).
        branches: the branch, or the two that cross.
        ends: indices of the two grid points; for a spinodal that of the point with the branch is first.
    """

    kind: str
    branches: tuple[str, ...]
    ends: tuple[int, int]


@dataclass(frozen=True)
class Boundary:
    """A point of a phase boundary in the plane of two parameters.

    Attributes:
        kind, branches: as for `BranchChange`.
        value, error: value of the first parameter and its error bar.
        at: value of the second parameter.
        status: converged, accuracy_not_reached, or BRACKETED by two grid points.
    """

    kind: str
    branches: tuple[str, ...]
    value: float
    error: float
    at: float
    status: str


@dataclass(frozen=True)
class DiagramRow:
    """A row of a phase diagram: grid points with the same second parameter, in ascending order of the first.

    Attributes:
        problem: problem with the value of the second parameter.
        parameter, second: names of the first and the second parameter.
        at: value of the second parameter.
        values: values of the first parameter at the grid points.
        records: solution records of every branch, one per grid point.
        accuracy: accuracy of the overlaps of these solutions.
    """

    problem: Problem
    parameter: str
    second: str
    at: float
    values: tuple[float, ...]
    records: Mapping[str, tuple[Record, ...]]
    accuracy: float = 1e-3

    def has_branch(self, branch: str, n: int) -> bool:
        """Return whether a branch was found at a grid point.

        Args:
            branch: name of the branch.
            n: index of the grid point.
        """
        return is_solution_record(self.records[branch][n])

    def branch_training_loss(self, branch: str, n: int) -> float:
        """Return the training loss of a branch at a grid point; nan if the branch was not found there.

        Args:
            branch: the branch.
            n: index of the point.
        """
        return float(self.records[branch][n]["training_loss"]) if self.has_branch(branch, n) else np.nan

    def lowest_loss_branch(self, n: int, among: Iterable[str] | None = None) -> str:
        """Return the name of the branch of lowest training loss at a grid point; empty if no branch was found.

        Args:
            n: index of the grid point.
            among: names of the branches to compare; all by default.
        """
        there = [branch for branch in (self.records if among is None else among) if self.has_branch(branch, n)]
        return min(there, key=lambda branch: self.branch_training_loss(branch, n), default="")

    def instability_kind(self, branch: str, n: int) -> str:
        """Return how the replica symmetry of a branch is unstable at a grid point: REPLICON, JUMPS or empty if stable.

        Args:
            branch: name of the branch.
            n: index of the grid point.
        """
        return str(self.records[branch][n].get("unstable", ""))

    def branch_changes(self) -> list[BranchChange]:
        """Return all crossings, ends and instabilities of branches between neighbouring grid points, in order."""
        found: list[BranchChange] = []
        for n in range(len(self.values) - 1):
            pair = tuple(b for b in self.records if b in (self.lowest_loss_branch(n), self.lowest_loss_branch(n + 1)))
            # If one of them begins within the cell, they may cross inside it, or it begins as the lower one.
            if len(pair) == 2 and any(all(self.has_branch(b, k) for b in pair) for k in (n, n + 1)):
                found.append(BranchChange(CROSSING, pair, (n, n + 1)))
            for branch in self.records:
                here, there = self.has_branch(branch, n), self.has_branch(branch, n + 1)
                if here != there:
                    found.append(BranchChange(SPINODAL, (branch,), (n, n + 1) if here else (n + 1, n)))
                    continue
                words = [self.instability_kind(branch, k) for k in (n, n + 1)]
                if here and bool(words[0]) != bool(words[1]):
                    found.append(BranchChange(REPLICON if REPLICON in words else JUMPS, (branch,), (n, n + 1)))
        return found

    def has_branches_on_both_sides(self, change: BranchChange) -> bool:
        """Return whether all branches of a change exist at both of its grid points."""
        return all(self.has_branch(branch, n) for branch in change.branches for n in change.ends)

    def group_changes_located_together(self) -> list[tuple[BranchChange, ...]]:
        """Return the branch changes of the row in groups; those of one group are located one after another.

        A crossing close to the end of one of its branches needs that end first; other changes form groups of one.
        """
        changes = self.branch_changes()
        hidden = [
            change for change in changes if change.kind == CROSSING and not self.has_branches_on_both_sides(change)
        ]
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
    def grid_spacing(self) -> float:
        """The distance between neighbouring grid points in the first parameter."""
        return self.values[1] - self.values[0]

    def parameter_interval_of_change(self, change: BranchChange) -> tuple[float, float]:
        """Return the values of the first parameter at the two grid points of a branch change."""
        return self.values[change.ends[0]], self.values[change.ends[1]]

    def locate_threshold_of_change(self, change: BranchChange, accuracy: float, seed: int) -> Threshold | None:
        """Locate the threshold of a branch change; return None for jumps, and if a branch does not end after all.

        Args:
            change: a branch change of this row.
            accuracy: required error bar of the first parameter.
            seed: seed of sampled quadrature rules.

        Raises:
            NotConvergedError: the threshold is not located.
        """
        chosen: dict[str, Any] = {"accuracy": accuracy, "seed": seed}
        if change.kind == CROSSING:
            one, other = (self.restore_branch_at_points(name, change.ends, seed) for name in change.branches)
            return self.locate_branch_crossing((one, other), self.parameter_interval_of_change(change), **chosen)
        (name,) = change.branches
        if change.kind == SPINODAL:
            return self.locate_branch_end(name, *change.ends, **chosen)
        if change.kind == REPLICON:
            branch, bracket = (
                self.restore_branch_at_points(name, change.ends, seed),
                self.parameter_interval_of_change(change),
            )
            return almeida_thouless(
                self.problem, self.parameter, on=name, branch=branch, bracket=bracket, verify=False, **chosen
            )
        return None

    def locate_branch_crossing(
        self, branches: tuple[Branch, Branch], bracket: tuple[float, float], accuracy: float, seed: int
    ) -> Threshold:
        """Locate the value of the first parameter at which two branches have equal training loss.

        Args:
            branches: the branches, each with at least one solution.
            bracket: interval of the first parameter to search.
            accuracy: required error bar.
            seed: seed of sampled quadrature rules.

        Raises:
            NotConvergedError: the branches do not cross in the interval, or one is lost.
        """
        between = branches[0].name, branches[1].name
        chosen: dict[str, Any] = {"bracket": bracket, "accuracy": accuracy, "seed": seed, "verify": False}
        return replica_symmetric_crossing(self.problem, self.parameter, between, branches=branches, **chosen)

    def locate_branch_end(self, name: str, inside: int, outside: int, accuracy: float, seed: int) -> Threshold | None:
        """Locate the end of a branch between a grid point with the branch and one without.

        The branch is continued, up to one grid spacing further; None is returned if it does not end there. For averages
        in many dimensions its end is only bracketed, by small steps.

        Args:
            name: name of the branch.
            inside: index of a grid point with the branch.
            outside: index of a grid point without it.
            accuracy: required error bar.
            seed: seed of sampled quadrature rules.

        Raises:
            NotConvergedError: the branch is not found again at the first grid point, or cannot be continued.
        """
        first, last = self.values[inside], self.values[outside]
        if reduce_to_fields_of_loss(self.problem).dimension > MAX_LOW_DIMENSION:
            return self._bracket_branch_end_by_steps(name, inside, last, accuracy, seed)
        beyond = BoundaryOptions.current().search_beyond * np.copysign(self.grid_spacing, last - first)
        goal = float(np.clip(last + beyond, self.values[0], self.values[-1]))
        return self.continue_branch_from_point(name, inside, goal, accuracy, seed)[0]

    def _bracket_branch_end_by_steps(
        self, name: str, inside: int, missing: float, accuracy: float, seed: int
    ) -> Threshold:
        """Return the end of a branch, bracketed by the last parameter value with a solution and the next one without.

        A step without a solution is halved, down to the required error bar, so that the branch is not lost to a step
        that is merely too long for Newton's method.

        Raises:
            NotConvergedError: the branch is not found again at the first grid point, or does not end.
        """
        direction = 1 if missing > self.values[inside] else -1
        inner = inside - direction
        numbers = (inside, inner) if 0 <= inner < len(self.values) else (inside,)
        branch = replace(self.restore_branch_at_points(name, numbers, seed), followed=True)
        last, step = self.values[inside], abs(missing - self.values[inside]) / 2
        while direction * (missing - last) > 0:
            there = last + direction * min(step, direction * (missing - last))
            if branch.solution_at_parameter(there) is not None:
                last = there
            elif step > 2 * accuracy:
                step /= 2
            else:
                missing = there
                break
        else:
            raise NotConvergedError(f"no end of the {name} branch was found up to {self.parameter} = {missing:g}")
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

    def continue_branch_from_point(
        self, name: str, inside: int, goal: float, accuracy: float, seed: int
    ) -> tuple[Threshold | None, float]:
        """Continue a branch from a grid point, and return its end and the last parameter value that was reached.

        The end is None if the branch does not end.

        Args:
            name: name of the branch.
            inside: index of the grid point to start from.
            goal: value of the first parameter to continue to.
            accuracy: required error bar of the end.
            seed: seed of sampled quadrature rules.

        Raises:
            NotConvergedError: the branch is not found again at the grid point, or cannot be continued.
        """
        first = self.values[inside]
        start = self.restore_branch_at_points(name, (inside,), seed).known[first]
        search = ThresholdSearch(SPINODAL, self.problem, self.parameter, (name,), (first, goal), accuracy, False)
        continuation = BranchContinuation(self.problem, start, self.parameter, (first, goal), self.accuracy, seed)
        event = first_event_on_branch(continuation, search)
        return event, continuation.points_so_far[-1].value if continuation.points_so_far else first

    def restore_branch_at_points(self, name: str, numbers: Sequence[int], seed: int) -> Branch:
        """Return a branch object with solutions at some grid points, which are solved again from stored records.

        Args:
            name: name of the branch.
            numbers: indices of the grid points; points without the branch are left out.
            seed: seed of sampled quadrature rules.

        Raises:
            NotConvergedError: a solution is not found again.
        """
        most = BoundaryOptions.current().rule_sizes[
            reduce_to_fields_of_loss(self.problem).dimension > MAX_LOW_DIMENSION
        ]
        branch = Branch(self.problem, self.parameter, name, self.accuracy, seed, effort=2, most=most)
        for n in numbers:
            if not self.has_branch(name, n):
                continue
            value = self.values[n]
            guess: Solution = restore_solution(
                self.problem.with_(**{self.parameter: value}), name, self.records[name][n]
            )
            if branch.solution_at_parameter(value, guess=guess) is None:
                raise NotConvergedError(f"the {name} branch was not found again at {self.parameter} = {value:g}")
        return branch


LocatedBoundaries = Mapping[BranchChange, Boundary | None]
"""The located boundaries of a row; None if branches do not cross after all."""
BoundaryKey = tuple[str, tuple[str, ...], bool, int]


def locate_boundaries_of_changes(
    row: DiagramRow, changes: Sequence[BranchChange], accuracy: float, seed: int
) -> list[Boundary | None]:
    """Locate the phase boundaries of a group of branch changes on one row.

    A boundary that cannot be located is bracketed by the two grid points. It is None if the branches do not cross after
    all, since one of them begins as the lower one.

    Args:
        row: the row with the changes.
        changes: one group of `DiagramRow.group_changes_located_together`.
        accuracy: required error bar of the first parameter.
        seed: seed of sampled quadrature rules.
    """
    ends: dict[str, Threshold] = {}
    found: list[Boundary | None] = []
    for change in changes:
        event: Threshold | None = None
        try:
            if change.kind == CROSSING and not row.has_branches_on_both_sides(change):
                found.append(_locate_crossing_near_branch_end(row, change, ends, accuracy, seed))
                continue
            event = row.locate_threshold_of_change(change, accuracy, seed)
        except (NotConvergedError, InputError):
            pass
        low, high = sorted(row.values[n] for n in change.ends)
        if event is None or not low - (high - low) <= event.value <= high + (high - low):
            found.append(_boundary_at_interval_midpoint(row, change, *_bracketing_interval(row, change, seed)))
            continue
        if change.kind == SPINODAL:
            ends[change.branches[0]] = event
        found.append(Boundary(change.kind, change.branches, event.value, event.error, row.at, event.status))
    return found


def bracketed_boundary(row: DiagramRow, change: BranchChange) -> Boundary:
    """Return the boundary of a branch change in the middle between its two grid points, which bracket it.

    Args:
        row: the row with the change.
        change: the branch change.
    """
    return _boundary_at_interval_midpoint(row, change, *row.parameter_interval_of_change(change))


def _boundary_at_interval_midpoint(row: DiagramRow, change: BranchChange, one: float, other: float) -> Boundary:
    middle, width = (one + other) / 2, abs(other - one) / 2
    return Boundary(change.kind, change.branches, middle, width, row.at, BRACKETED)


def _bracketing_interval(row: DiagramRow, change: BranchChange, seed: int) -> tuple[float, float]:
    """Return the interval of the first parameter that contains a branch change; for ends of branches by bisection."""
    ends = row.parameter_interval_of_change(change)
    if change.kind != SPINODAL:
        return ends
    try:
        bisections = BoundaryOptions.current().end_bisections
        return bisect_branch_end(
            row.restore_branch_at_points(change.branches[0], change.ends[:1], seed), ends[1], bisections
        )
    except NotConvergedError:
        return ends


def _locate_crossing_near_branch_end(
    row: DiagramRow, change: BranchChange, ends: Mapping[str, Threshold], accuracy: float, seed: int
) -> Boundary | None:
    """Locate the crossing of two branches between a grid point with both and the end of one of them.

    `ends` are the located ends of branches between the same grid points. None is returned if the branches do not cross.
    """
    (one, other), n = (
        change.branches,
        next(n for n in change.ends if all(row.has_branch(b, n) for b in change.branches)),
    )
    here = row.values[n]
    if not any(name in ends for name in change.branches):
        return None
    name = min((b for b in change.branches if b in ends), key=lambda b: abs(ends[b].value - here))
    end = ends[name].solutions[0]
    last = end.problem.value_of_parameter(row.parameter)
    opponent = other if name == one else one
    opposite = _solve_between_grid_points(row, opponent, n, last, seed)
    difference, error = training_loss_difference(end, opposite)
    before = row.branch_training_loss(name, n) - row.branch_training_loss(opponent, n)
    if difference * before > 0 and abs(difference) > error:
        return None
    pair = (row.restore_branch_at_points(one, (n,), seed), row.restore_branch_at_points(other, (n,), seed))
    if ends[name].evidence.get("type") == _STEPPED:  # this side of the end
        within = last
        for branch in pair:
            branch.known[last] = end if branch.name == name else opposite
    else:
        within = last + BoundaryOptions.current().fold_offset * (here - last)  # where Newton's method is not singular
        for branch in pair:
            branch.solution_at_parameter(within)
    try:
        found = row.locate_branch_crossing(pair, (here, within), accuracy, seed)
    except NotConvergedError:
        if difference * before > 0:  # equal there within errors: how far back they may be equal
            fraction = min(1.0, (abs(difference) + error) / abs(before - difference))
            return _boundary_at_interval_midpoint(row, change, last + fraction * (here - last), last)
        return _boundary_at_interval_midpoint(row, change, here, last)
    return Boundary(change.kind, change.branches, found.value, found.error, row.at, found.status)


def _solve_between_grid_points(row: DiagramRow, name: str, n: int, value: float, seed: int) -> Solution:
    """Return the solution of a branch at a parameter value between grid points, from the solution at one of them.

    Raises:
        NotConvergedError: the branch is not found.
    """
    found = row.restore_branch_at_points(name, (n,), seed).solution_at_parameter(value)
    if found is None:
        raise NotConvergedError(f"the {name} branch was not found at {row.parameter} = {value:g}")
    return found


def boundaries_by_kind_and_branches(
    places: LocatedBoundaries, kind: str | None = None
) -> dict[BoundaryKey, tuple[BranchChange, Boundary]]:
    """Return the located boundaries of a row in a dictionary.

    The keys are (kind, branches, whether the change is in ascending order of the parameter, number among equal ones).

    Args:
        places: located boundaries by their branch changes.
        kind: kind of boundaries to return; None for all.
    """
    found: dict[BoundaryKey, tuple[BranchChange, Boundary]] = {}
    for change, place in sorted(places.items(), key=lambda item: min(item[0].ends)):
        if place is not None and kind in (None, change.kind):
            name = change.kind, change.branches, change.ends[1] > change.ends[0]
            found[(*name, sum(key[:3] == name for key in found))] = change, place
    return found


def grid_rows_to_insert(rows: Sequence[tuple[DiagramRow, LocatedBoundaries]], bend: float, reach: float) -> list[float]:
    """Return values of the second parameter for new rows, half way between rows whose boundaries differ too much.

    Args:
        rows: rows with their located boundaries, in ascending order of the second parameter.
        bend: largest distance, in grid cells, of a boundary from the straight line through both neighbouring rows.
        reach: largest distance, in grid cells, between the boundary on neighbouring rows.
    """
    # Jumps become negligible at a point known to one cell only: no event.
    lines = [
        {key: there for key, there in boundaries_by_kind_and_branches(places).items() if key[0] != JUMPS}
        for _, places in rows
    ]
    chosen: set[int] = set()
    for n, (one, other) in enumerate(pairwise(lines)):
        grid_spacing = rows[n][0].grid_spacing
        moved = [abs(one[key][1].value - other[key][1].value) for key in one if key in other]
        if one.keys() != other.keys() or any(move > reach * grid_spacing for move in moved):
            chosen.add(n)
    for n, (below, here, above) in enumerate(zip(lines, lines[1:], lines[2:], strict=False)):
        at = [rows[k][0].at for k in (n, n + 1, n + 2)]
        for key in below.keys() & here.keys() & above.keys():
            straight = float(np.interp(at[1], at[::2], [below[key][1].value, above[key][1].value]))
            if abs(here[key][1].value - straight) > bend * rows[n][0].grid_spacing:
                chosen |= {n, n + 1}
    return [(rows[n][0].at + rows[n + 1][0].at) / 2 for n in sorted(chosen)]
