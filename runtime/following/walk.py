"""The walk along a branch, station by station, for `follow`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..base.errors import DomainError, InputError, NotConvergedError, TimeLimitError
from ..base.progress import say
from ..branches.branch_map import BranchMap, complement, sector_of
from ..branches.continuation import Continuation, Place, correct, step_from
from ..branches.equations import BranchEquations, SingularEquations
from ..integration.rule import DIFFERENCE_SAFETY
from ..problems.overlaps import Overlaps, block_scales
from ..problems.problem import Problem
from ..problems.symmetry import Exchange, Symmetry, exchanges, of_state
from ..saddle_point.iteration import Status
from ..solving.solution import Solution
from ..solving.solve import solve
from ..solving.strategies import finer_rules
from ..thresholds.threshold import Threshold
from .events import Passage, Station, located_event, solution_at

MOST_POINTS = 400
_BROKEN = 0.2  # largest relative size, in a fold's neighbourhood, of a part of the state that may vanish there
_PRESENT = 1e-4  # relative size from which on a part of the state is none of noise
_GONE = 1e-2  # of a part of the state, that a step leaves of it where it led onto the branch without it


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
                f"{solution.status.words}; {solution.advice}"
            )
        self.branch = BranchMap.of(solution, (parameter,), [abs(self.last - self.first)])
        self.equations = BranchEquations(self.branch)
        self.passed: list[Station] = []
        self.line = Continuation(
            self.equations,
            np.append(self.branch.coordinates(solution.overlaps.pack()), self.first),
            (self.first, self.last),
            lambda: self.tolerance,
            f"the {self.name} branch has no definite tangent at {parameter} = {self.first:g}: begin elsewhere",
            lambda z: f"no solution found beyond {parameter} = {z[-1]:.5g}",
            f"{parameter} = ",
        )
        self.stop = self.line.stop

    @property
    def ending(self) -> str:
        """Why the branch was not followed further, in words."""
        return self.line.ending

    @property
    def tolerance(self) -> float:
        """Residual asked of the corrector: what the accuracy asks of the branch's rule of the moment."""
        return self.branch.rule.tolerance(self.accuracy)

    def stations(self, most: int) -> Iterator[Station]:
        """Walk on until the interval is left, nothing further is found, `most` points are passed, or `stop`."""
        return map(self._pass, self.line.places(most))

    def _pass(self, place: Place) -> Station:
        solution = self._finished(place)
        while solution.status is Status.ACCURACY_NOT_REACHED and self._rule_is_coarse(place):
            finer = finer_rules(self.branch.problem, self.branch.rule)
            if not finer or self.branch.rule.replicated:
                break
            self.branch.rule = finer[0]
            again = correct(self.equations, place.z, place.matrix, place.tangent, self.tolerance)
            if again is None:
                break
            place = replace(place, z=again[0], residual=again[2])
            solution = self._finished(place)
        self.line.place = place
        station = Station(place, solution, float(place.z[-1]), self._odd_eigenvalues(place))
        self.passed.append(station)
        return station

    def _rule_is_coarse(self, place: Place) -> bool:
        """Whether the map itself, not only the solution of a soft branch, moves by more than asked when refined."""
        x, values = self.equations.parts(place.z)
        try:
            moved = self.branch.residuals(x, values, self.branch.rule.finer()) - self.branch.residuals(x, values)
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

    @property
    def turned_back(self) -> bool:
        """Whether the parameter went one way to the last station but one, and the other way to the last."""
        if len(self.passed) < 3:
            return False
        one, two, three = (station.value for station in self.passed[-3:])
        return (two - one) * (three - two) < 0

    def passages(self) -> list[Passage]:
        """What happened between the last two stations."""
        before, after = self.passed[-2:]
        found = []
        if before.place.tangent[-1] * after.place.tangent[-1] < 0:
            found.append(self._fold(before, after))
        elif self.turned_back:  # which slopes over a few nodes do not tell
            found.append(self._fold(self.passed[-3], after))
        elif self._lost_part(before, after):  # without a turn: a step led onto the branch that it merges with
            found.append(self._merger(before, after))
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

        from scipy.optimize import brentq  # slow to load

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
        return self._merging(u, float(place.z[-1]), reduced, between)

    def _merger(self, before: Station, after: Station) -> Passage | None:
        """The end in a branch of higher symmetry, on which the station after it lies."""
        reduced = self._more_symmetric(self.branch.state(after.place.z[:-1]))
        if reduced is None:
            return None
        u = self.branch.state(before.place.z[:-1])
        return self._merging(u, before.value, reduced, (before.value, after.value))

    def _merging(self, u: np.ndarray, value: float, reduced: Symmetry, between: tuple[float, float]) -> Passage:
        """The end in a branch of a higher symmetry, near a state."""
        branch = BranchMap(self.branch.problem, (self.parameter,), list(self.branch.span), reduced, self.branch.rule)
        z = np.append(branch.coordinates(u), value)
        sector = sector_of((u - branch.state(z[:-1])) / block_scales(u, branch.sizes), branch)
        return Passage("spinodal", value, SingularEquations(branch, sector), z, True, between)

    def _more_symmetric(self, u: np.ndarray) -> Symmetry | None:
        """The symmetry of the state that lacks what nearly vanishes here, or None where nothing does.

        Along a branch that ends in a more symmetric one, the part that breaks the symmetry goes through zero.
        """
        problem, sizes = self.branch.problem, self.branch.sizes
        largest = max((max(self._parts(s.place).values(), default=0.0) for s in self.passed), default=1.0)
        for exchange, part in self._broken_exchanges(u).items():
            if part < _BROKEN * min(1.0, largest):
                image = exchange.of_overlaps(Overlaps.unpack(u, sizes), problem.clusters).pack()
                projected = Overlaps.unpack((u + image) / 2, sizes)
                return Symmetry(self.branch.symmetry.frozen, of_state(problem, projected), problem.clusters)
        return None

    def _broken_exchanges(self, u: np.ndarray) -> dict[Exchange, float]:
        """Exchanges that the branch does not keep, and the relative size of what breaks each in a state."""
        overlaps, clusters = Overlaps.unpack(u, self.branch.sizes), self.branch.problem.clusters
        others = [e for e in exchanges(self.branch.problem) if e not in self.branch.symmetry.exchanges]
        gaps = {e: np.abs(u - e.of_overlaps(overlaps, clusters).pack()) for e in others}
        return {e: float(np.max(gap / overlaps.block_scales)) / 2 for e, gap in gaps.items()}

    def _parts(self, place: Place) -> dict[Exchange, float]:
        return self._broken_exchanges(self.branch.state(place.z[:-1]))

    def _lost_part(self, before: Station, after: Station) -> bool:
        """Whether a part that breaks an exchange fell to nothing in one step."""
        ahead, behind = self._parts(after.place), self._parts(before.place)
        present = max(_PRESENT, self.tolerance)
        return any(part > present and ahead[exchange] < _GONE * part for exchange, part in behind.items())

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
            return located_event(passage, self.name, accuracy, self.accuracy)
        except (NotConvergedError, DomainError, np.linalg.LinAlgError) as error:
            say(f"the {passage.kind} near {self.parameter} = {passage.near:.4g} was not located: {error}")
            return None
