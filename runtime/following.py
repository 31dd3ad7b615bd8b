"""A branch followed by arclength, through folds and over unstable stretches, with the events on the way.

Curves (`branches.curve`) ask for the solution at given values of a parameter; here the parameter is an unknown like
the overlaps, so that the branch may turn back. Each event is solved on an extended system of its own
(`equations.SingularEquations`), with the integration error carried into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import presenting
from .continuation import Place, Stride, begin, correct, onward, step_from
from .equations import (
    BranchEquations,
    BranchMap,
    Change,
    Equations,
    SingularEquations,
    branching,
    complement,
    sector_of,
)
from .errors import InputError, NotConvergedError, TimeLimitError
from .fixed_point import FixedPoint, Status
from .integration import ProxSpace
from .integration.averages import Rule
from .integration.estimates import DIFFERENCE_SAFETY, difference_factors, two_standard_errors
from .integration.fields import DomainError
from .interrupts import recognised
from .overlaps import Overlaps
from .problem import Problem
from .progress import bar, say
from .solution import (
    COARSER_SHARE,
    Solution,
    finer_rules,
    finish_point,
    is_replicated,
    solve,
    tolerance_of,
)
from .stability import NEGLIGIBLE_JUMPS, modes_of
from .symmetry import Symmetry, exchanges, of_state
from .thresholds import AUTOMATIC_BELOW, Threshold, search_interval
from .verification import agreement, confirmed, opinions

if TYPE_CHECKING:
    import xarray

MOST_POINTS = 400
_BROKEN = 0.2  # largest relative size, in a fold's neighbourhood, of a part of the state that may vanish there


@dataclass(frozen=True)
class Followed:
    """A branch along its arclength.

    Attributes:
        solutions: in the order in which they were met; the parameter may go back and forth.
        arclength: of each, (N,), in units of the block scales and of the parameter's interval.
        events: spinodals and instabilities, in that order, too.
        ending: why it was not followed further, in words.
        interrupted: by the user; out_of_time: by a time limit; what was finished is here.
        slopes_by: how dG/du was found: printed derivatives, or differences and why.
    """

    parameter: str
    name: str
    solutions: tuple[Solution, ...]
    arclength: np.ndarray
    events: tuple[Threshold, ...]
    ending: str
    interrupted: bool = False
    out_of_time: bool = False
    slopes_by: tuple[str, ...] = ()

    @property
    def values(self) -> np.ndarray:
        return np.array([s.problem.value_of(self.parameter) for s in self.solutions])

    def end_text(self, symbol: str | None = None) -> str:
        """How far the branch was followed, and why not further; a symbol may stand for the parameter."""
        if not self.solutions:
            return f"{self.name} branch not found"
        shown = symbol or self.parameter
        span = f"{shown} = {self.values[0]:.4g} to {self.values[-1]:.4g}"
        ending = self.ending.replace(f"{self.parameter} = ", f"{shown} = ")
        return f"{self.name} branch followed from {span}, {len(self.solutions)} points; {ending}"

    def to_xarray(self, stability: bool = True) -> xarray.Dataset:
        """As `Curve.to_xarray`, in the order of the arclength (a variable of its own), events among the attributes.

        The coordinate along the parameter goes back and forth where the branch does.
        """
        return presenting.to_dataset(self, stability)

    def save(self, path: str | Path, stability: bool = True) -> None:
        """Write netCDF, whole or not at all, over what is there."""
        presenting.save(self.to_xarray(stability), path)

    def plot(self, path: str | Path | None = None) -> Any:
        """Figure of overlaps and errors: stable stretches solid, others dashed, events marked."""
        return presenting.plot(self.to_xarray(), path)

    def __repr__(self) -> str:
        return "\n".join([self.end_text(), *(f"  {event!r}" for event in self.events)])


def follow(
    problem: Problem,
    *,
    start: str | Solution = "semantic",
    over: str = "alpha",
    between: tuple[float, float],
    accuracy: float = 1e-3,
    event_accuracy: float = 1e-3,
    seed: int = 0,
    most: int = MOST_POINTS,
    events: bool = True,
    on_point: Callable[[Solution], object] | None = None,
) -> Followed:
    """Follow a branch from one value of a parameter toward another, through folds, until it leaves the interval.

    Args:
        start: named start of the model, or a solution at the first value.
        over, between: the parameter; the value to begin at, and the one to head for.
        accuracy: of the overlaps, as for `solve`: finer rules are taken where it asks for them.
        event_accuracy: half width asked of every event, in the parameter.
        seed: of the scramblings; all points share the same nodes.
        most: points at the most.
        events: whether spinodals and instabilities are looked for.
        on_point: called with every solution, as it is found.

    Raises:
        InputError: an unknown parameter or start, or an empty interval.
        NotConvergedError: no solution at the first value.
    """
    problem.only_at_zero_temperature("branches are followed through folds")
    walk = Walk(problem, start, over, between, accuracy, seed)
    found: list[Threshold] = []
    interrupted = out_of_time = False
    try:
        with recognised(), bar(f"following the {walk.name} branch", None) as task:
            for station in walk.stations(most):
                if on_point:
                    on_point(station.solution)
                task.advance(f"{walk.name} branch, {over} = {station.value:.4g}")
                if not events or len(walk.passed) < 2:
                    continue
                for passage in walk.passages():
                    task.describe(f"{walk.name} branch: locating the {passage.kind} near {over} = {passage.near:.4g}")
                    event = walk.locate(passage, event_accuracy)
                    if event is not None:
                        found.append(event)
                    if event is not None and passage.merges:
                        walk.passed.pop()  # its mirror image lies beyond
                        walk.stop(f"at {over} = {event.value:.5g} it merges with a more symmetric branch")
    except KeyboardInterrupt:
        interrupted = True
        walk.stop("interrupted")
    except TimeLimitError:
        out_of_time = True
        walk.stop("the time limit ended it")
    return Followed(
        over,
        walk.name,
        tuple(station.solution for station in walk.passed),
        np.array([station.place.arclength for station in walk.passed]),
        tuple(found),
        walk.ending,
        interrupted,
        out_of_time,
        tuple(sorted(walk.branch.slopes_by)),
    )


@dataclass(frozen=True)
class Station:
    """A place of the walk with its solution; `odd`: eigenvalues of dG/du across the invariant states."""

    place: Place
    solution: Solution
    value: float
    odd: np.ndarray


@dataclass(frozen=True)
class Passage:
    """An event between two stations, before it is located.

    Attributes:
        kind: spinodal or instability; merges: whether the branch ends there in a more symmetric one.
        equations, z: extended system and where to begin.
    """

    kind: str
    near: float
    equations: SingularEquations
    z: np.ndarray
    merges: bool
    between: tuple[float, float]


class Walk:
    """The state of a continuation: equations, stations passed so far, and why it ended."""

    def __init__(
        self,
        problem: Problem,
        start: str | Solution,
        parameter: str,
        between: tuple[float, float],
        accuracy: float,
        seed: int,
    ) -> None:
        self.first, self.last = (float(v) for v in between)
        if not abs(self.last - self.first) > 0:
            raise InputError(f"{parameter} = {self.first:g} to {self.last:g}: an interval is expected")
        problem.check_varied(parameter)
        for value in between:
            problem.with_(**{parameter: value})
        self.parameter, self.accuracy = parameter, accuracy
        at = problem.with_(**{parameter: self.first})
        solution = start if isinstance(start, Solution) else solve(at, start, accuracy=accuracy, seed=seed)
        self.name = start if isinstance(start, str) else solution.branch
        if solution.status is Status.TIME_LIMIT:
            raise TimeLimitError(f"the time limit ended the search for the {self.name} branch")
        if solution.losses is None or (isinstance(start, str) and solution.status is Status.ENDED_ELSEWHERE):
            reached = "" if solution.losses is None else f" (it leads to the {solution.branch} branch)"
            raise NotConvergedError(
                f"no {self.name} solution at {parameter} = {self.first:g}{reached}: "
                f"{solution.status.words}; {solution.status.advice}"
            )
        self.branch = BranchMap.of(solution, (parameter,), [abs(self.last - self.first)])
        self.equations = BranchEquations(self.branch)
        self.begun = np.append(self.branch.coordinates(solution.overlaps.pack()), self.first)
        self.passed: list[Station] = []
        self.ending = ""

    def stop(self, reason: str) -> None:
        self.ending = self.ending or reason

    @property
    def tolerance(self) -> float:
        return tolerance_of(self.branch.rule, self.accuracy)

    def stations(self, most: int) -> Iterator[Station]:
        """Walk on until the interval is left, nothing further is found, `most` points are passed, or `stop`."""
        toward = np.zeros(len(self.begun))
        toward[-1] = np.sign(self.last - self.first)
        place = begin(self.equations, self.begun, self.tolerance, toward)
        if place is None:
            raise NotConvergedError(
                f"the {self.name} solution at {self.parameter} = {self.first:g} is too soft to follow"
            )
        stride = Stride()
        yield self._pass(place)
        while not self.ending:
            if len(self.passed) >= most:
                self.stop(f"stopped after {most} points")
                break
            last = self.passed[-1].place
            following, edge = onward(self.equations, last, stride.step, self.tolerance, (self.first, self.last))
            stride.after(following)
            if edge is not None:
                self.stop(f"{self.parameter} = {edge:g} reached")
            if following is not None:
                yield self._pass(following)
            elif stride.exhausted:
                self.stop(f"no solution found beyond {self.parameter} = {self.passed[-1].value:.5g}")

    def _pass(self, place: Place) -> Station:
        solution = self._finished(place)
        while solution.status is Status.ACCURACY_NOT_REACHED and self._rule_is_coarse(place):
            finer = finer_rules(self.branch.rule, self.branch.problem.solver.channel.FIELDS)
            if not finer or is_replicated(self.branch.rule):
                break
            self.branch.rule = finer[0]
            again = correct(self.equations, place.z, place.matrix, place.tangent, self.tolerance)
            if again is None:
                break
            place = replace(place, z=again[0], residual=again[2])
            solution = self._finished(place)
        station = Station(place, solution, float(place.z[-1]), self._odd_eigenvalues(place))
        self.passed.append(station)
        return station

    def _rule_is_coarse(self, place: Place) -> bool:
        """Whether the map itself, not only the solution of a soft branch, moves by more than asked when refined."""
        x, values = self.equations.parts(place.z)
        try:
            moved = self.branch.gaps(x, values, self.branch.rule.finer()) - self.branch.gaps(x, values)
        except DomainError:
            return True
        return bool(DIFFERENCE_SAFETY * np.max(np.abs(moved)) > self.accuracy)

    def _finished(self, place: Place) -> Solution:
        return solution_at(self.branch, place.z, place.matrix, place.residual, self.name, self.accuracy)

    def _odd_eigenvalues(self, place: Place) -> np.ndarray:
        try:
            return np.linalg.eigvals(self.branch.across(*self.equations.parts(place.z)))
        except DomainError:
            return np.full(1, np.nan)

    # Events

    def passages(self) -> list[Passage]:
        """What happened between the last two stations."""
        before, after = self.passed[-2:]
        found = []
        if before.place.tangent[-1] * after.place.tangent[-1] < 0:
            found.append(self._fold(before, after))
        growing = [int(np.sum((e.real > 1) & (np.abs(e.imag) < 1e-9))) for e in (before.odd, after.odd)]
        if growing[0] != growing[1] and not any(p is not None and p.merges for p in found):
            found.append(self._instability(before, after))
        return [passage for passage in found if passage is not None]

    def _fold(self, before: Station, after: Station) -> Passage | None:
        """Turned back between two stations: a fold, or the end in a branch of higher symmetry."""
        length = after.place.arclength - before.place.arclength

        def turning(step: float) -> float:
            place = step_from(self.equations, before.place, step, self.tolerance)
            if place is None:
                raise ArithmeticError
            nearest.append(place)
            return float(place.tangent[-1])

        from scipy.optimize import brentq

        nearest: list[Place] = []
        try:
            if turning(length) * before.place.tangent[-1] < 0:
                brentq(turning, 0.0, length, xtol=2e-2 * length, maxiter=6, disp=False)
        except (ArithmeticError, ValueError):
            pass
        place = min([before.place, after.place, *nearest], key=lambda p: abs(p.tangent[-1]))
        between = before.value, after.value
        u = self.branch.state(place.z[:-1])
        reduced = self._more_symmetric(u)
        if reduced is None:
            sector = self.branch.basis / np.sqrt(self.branch.norms)[:, None]
            return Passage(
                "spinodal", float(place.z[-1]), SingularEquations(self.branch, sector), place.z, False, between
            )
        branch = BranchMap(self.branch.problem, (self.parameter,), list(self.branch.span), reduced, self.branch.rule)
        z = np.append(branch.coordinates(u), place.z[-1])
        sector = sector_of((u - branch.state(z[:-1])) / Overlaps.unpack(u, branch.sizes).block_scales, branch)
        return Passage("spinodal", float(place.z[-1]), SingularEquations(branch, sector), z, True, between)

    def _more_symmetric(self, u: np.ndarray) -> Symmetry | None:
        """The symmetry of the state that lacks what nearly vanishes here, or None where nothing does.

        Along a branch that ends in a more symmetric one, the part that breaks the symmetry goes through zero.
        """
        overlaps = Overlaps.unpack(u, self.branch.sizes)
        scales, clusters = overlaps.block_scales, self.branch.problem.clusters
        kept = self.branch.symmetry.exchanges
        largest = max(
            (self._broken(Overlaps.unpack(self.branch.state(s.place.z[:-1]), self.branch.sizes)) for s in self.passed),
            default=1.0,
        )
        for exchange in exchanges(self.branch.problem):
            if exchange in kept:
                continue
            even = (u + exchange.of_overlaps(overlaps, clusters).pack()) / 2
            if np.max(np.abs(u - even) / scales) < _BROKEN * min(1.0, largest):
                projected = Overlaps.unpack(even, self.branch.sizes)
                return Symmetry(self.branch.symmetry.frozen, of_state(self.branch.problem, projected), clusters)
        return None

    def _broken(self, overlaps: Overlaps) -> float:
        """Largest part of a state that breaks an exchange which the branch does not keep."""
        u, scales, clusters = overlaps.pack(), overlaps.block_scales, self.branch.problem.clusters
        others = [e for e in exchanges(self.branch.problem) if e not in self.branch.symmetry.exchanges]
        parts = [np.max(np.abs(u - e.of_overlaps(overlaps, clusters).pack()) / scales) / 2 for e in others]
        return float(max(parts, default=0.0))

    def _instability(self, before: Station, after: Station) -> Passage:
        gaps = [float(np.min(np.abs(1 - station.odd))) for station in (before, after)]
        share = gaps[0] / (gaps[0] + gaps[1])
        z = before.place.z + share * (after.place.z - before.place.z)
        values, vectors = np.linalg.eig(self.branch.across(*self.equations.parts(z)))
        growing = vectors[:, np.argmin(np.abs(values - 1))].real @ complement(self.branch.basis)
        equations = SingularEquations(self.branch, sector_of(growing, self.branch))
        return Passage("instability", float(z[-1]), equations, z, False, (before.value, after.value))

    def locate(self, passage: Passage, accuracy: float) -> Threshold | None:
        """The event to the accuracy asked for; None, and a word on stderr, where its equations do not converge."""
        try:
            return located_event(passage, self.parameter, self.name, accuracy, self.accuracy)
        except (NotConvergedError, DomainError, np.linalg.LinAlgError) as error:
            say(f"the {passage.kind} near {self.parameter} = {passage.near:.4g} was not located: {error}")
            return None


def solution_at(
    branch: BranchMap, z: np.ndarray, matrix: np.ndarray, residual: float, name: str, accuracy: float
) -> Solution:
    """Observables and errors at a place: what `solve` returns.

    Args:
        matrix: slopes of the branch's equations there, (k, k + 1), in units of the block scales; residual: what is
            left of them.
    """
    k = branch.size
    x, values = z[:k], z[k:]
    units = branch.units(x)
    small = matrix[:k, :k] * units[:, None] + np.eye(k)
    jacobian = branch.basis.T @ small @ (branch.basis / branch.norms[:, None])
    point = FixedPoint(branch.state(x), branch.sizes, residual, Status.CONVERGED, 0, jacobian)
    return finish_point(branch.problem_at(values), name, point, branch.rule, accuracy, branch.symmetry)


def located_event(
    passage: Passage, parameter: str, name: str, accuracy: float, overlap_accuracy: float, verify: bool = False
) -> Threshold:
    """Solve an extended system at the rule of its branch, and at finer ones until the half width is as asked.

    Args:
        verify: confirm it by a rule of another family: how far that would move it.

    Raises:
        NotConvergedError: Newton's method does not converge.
    """
    equations, branch = passage.equations, passage.equations.branch
    z = passage.z
    while True:
        z, matrix, residual = solved(equations, z, branch.rule, overlap_accuracy)
        matrix_branch = matrix[: branch.size]
        solution = solution_at(branch, z, matrix_branch, residual, name, overlap_accuracy)
        bistable = solution.averages.bistable if solution.averages is not None else 0.0
        integration = integration_shift(equations, z, matrix, bistable)[-1]
        root = float(abs(np.linalg.solve(matrix, np.full(len(z), residual))[-1]))
        error = float(integration) + root
        finer = finer_rules(branch.rule, branch.problem.solver.channel.FIELDS)
        if error <= accuracy or not finer:
            break
        branch.rule = finer[0]
    fold = passage.kind == "spinodal" and not passage.merges
    evidence: dict[str, Any] = {
        "branching": None if fold else branching(equations, z, tolerance_of(branch.rule, overlap_accuracy)),
        "type": "pitchfork" if passage.merges else "fold" if passage.kind == "spinodal" else "instability",
        "toward": words_of(equations.null_direction(z), branch, z),
        "half_width_integration": float(integration),
        "half_width_root": root,
        "bracket": sorted(passage.between),
        "integrators": [branch.rule.describe()],
        "residuals": [residual],
        "bistable_shares": [bistable],
        "slopes": sorted(branch.slopes_by),
    }
    agreed = None
    if verify:
        own = equations.replicates(z).mean(axis=0)

        def moved(rule: Rule) -> tuple[float, float]:
            gap = equations.replicates(z, lambda _: rule).mean(axis=0) - own
            return -float(np.linalg.solve(matrix, gap)[-1]), 0.0

        value = float(z[-1])
        enough = max(error, accuracy / 2)
        with bar(f"{passage.kind}: verifying", None) as task:
            agreed = agreement(opinions([solution], moved, task.advance), value, lambda shift: value + shift, enough)
    error_kind, error, second_part = confirmed(agreed, error)
    evidence |= {**second_part, "second_rule": agreed.to_json() if agreed else None}
    return Threshold(
        kind=passage.kind,
        parameter=parameter,
        value=float(z[-1]),
        error=error,
        error_kind=error_kind,
        status="converged" if error <= accuracy else "accuracy_not_reached",
        branches=(name,),
        problem=branch.problem,
        solutions=(solution,),
        evidence=evidence,
    )


def solved(
    equations: SingularEquations, z: np.ndarray, rule: Rule, accuracy: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Newton's method on the extended system: unknowns, slopes, residual.

    Raises:
        NotConvergedError: it does not converge.
    """
    tolerance = tolerance_of(rule, accuracy)
    free = np.zeros(len(z))
    for _ in range(3):
        equations.border(z)
        found = correct(equations, z, equations.slopes(z), free, max(tolerance, 1e-10), most=20)
        if found is not None:
            z, matrix, residual, _ = found
            return z, matrix, residual
        # A start too far away for one Newton run: halve the way by a coarse run first.
        rough = correct(equations, z, equations.slopes(z), free, 1e-2, most=20)
        if rough is None:
            break
        z = rough[0]
    raise NotConvergedError("Newton's method on the extended system does not converge")


def integration_shift(equations: Equations, z: np.ndarray, matrix: np.ndarray, bistable: float) -> np.ndarray:
    """Half widths of all unknowns: how far other rules, or the replicates of this one, would move them.

    Args:
        matrix: square slopes at z; bistable: share of the measure on which the proximal map may jump.
    """
    rules = [branch.rule for branch in equations.branches]
    own = equations.replicates(z)
    if len(own) > 1:
        return two_standard_errors(np.linalg.solve(matrix, own.T).T)

    def moved(change: Change) -> np.ndarray:
        return np.abs(np.linalg.solve(matrix, equations.replicates(z, change).mean(axis=0) - own.mean(axis=0)))

    shifts = [moved(lambda rule: rule.finer()), moved(lambda rule: rule.coarser())]
    if bistable > NEGLIGIBLE_JUMPS and all(isinstance(rule, ProxSpace) for rule in rules):
        factors = DIFFERENCE_SAFETY, COARSER_SHARE
    else:
        factors = difference_factors(*(shift / equations.units(z) for shift in shifts))
    return np.max([factor * shift for factor, shift in zip(factors, shifts, strict=True)], axis=0)


def words_of(direction: np.ndarray, branch: BranchMap, z: np.ndarray) -> str:
    """What a direction moves, in the words of the longitudinal modes."""
    overlaps = branch.overlaps(z[: branch.size])
    scales = overlaps.block_scales
    matrix = np.outer(direction * scales, direction / scales)
    return modes_of(matrix, overlaps)[1][0]


def spinodal(
    problem: Problem,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    verify: bool | None = None,
) -> Threshold:
    """Where a branch ends: in a fold, or where it merges with a more symmetric one (evidence: type).

    Args:
        on: the branch, a named start; bracket: interval to search, default [0.1, 2.5] for alpha.
        verify: confirm it by a rule of another family; default, where the accuracy is below 1e-6.

    Raises:
        InputError: no such start, or no interval.
        NotConvergedError: the branch is found nowhere, or has no end in the interval.
    """
    return _first_event("spinodal", problem, parameter, on, bracket, accuracy, seed, verify)


def instability(
    problem: Problem,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    verify: bool | None = None,
) -> Threshold:
    """Where a longitudinal eigenvalue of a branch passes 1 toward states of broken symmetry (evidence: toward).

    Args, raises: as for `spinodal`.
    """
    return _first_event("instability", problem, parameter, on, bracket, accuracy, seed, verify)


def _first_event(
    kind: str,
    problem: Problem,
    parameter: str,
    on: str,
    bracket: tuple[float, float] | None,
    accuracy: float,
    seed: int,
    verify: bool | None,
) -> Threshold:
    """Walk from the upper end of an interval, else from the lower, else both ways from the middle."""
    low, high = search_interval(parameter, bracket)
    middle = (low + high) / 2
    seen = []
    problem.only_at_zero_temperature("branches are followed through folds")
    for begin_at, goals in ((high, (low,)), (low, (high,)), (middle, (low, high))):
        for goal in goals:
            try:
                walk = Walk(problem, on, parameter, (begin_at, goal), 1e-3, seed)
            except NotConvergedError:
                break
            event = _walked_to(walk, kind, accuracy, accuracy < AUTOMATIC_BELOW if verify is None else verify)
            if event is not None:
                return event
            seen.append(f"from {begin_at:g}: {walk.ending}")
        else:
            break
    if not seen:
        raise NotConvergedError(
            f"{kind}: the {on} branch was found neither at the ends nor in the middle of "
            f"{parameter} = {low:g} to {high:g}"
        )
    raise NotConvergedError(
        f"{kind}: none on the {on} branch for {parameter} in [{low:g}, {high:g}] ({'; '.join(seen)})"
    )


def _walked_to(walk: Walk, kind: str, accuracy: float, verify: bool) -> Threshold | None:
    with bar(f"{kind} of the {walk.name} branch", None) as task:
        for station in walk.stations(MOST_POINTS):
            task.advance(f"{walk.name} branch, {walk.parameter} = {station.value:.4g}")
            if len(walk.passed) < 2:
                continue
            for passage in walk.passages():
                if passage.kind == kind:
                    return located_event(passage, walk.parameter, walk.name, accuracy, walk.accuracy, verify)
                if passage.merges:
                    walk.stop(f"it merges with a more symmetric branch near {walk.parameter} = {passage.near:.4g}")
    return None


__all__ = ["Followed", "follow", "instability", "located_event", "spinodal"]
