"""The continuation of a branch with detection of its events, for `follow`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import DomainError, InputError, NotConvergedError, TimeLimitError
from ..base.options import AlgorithmOptions
from ..base.progress import print_message
from ..branches.branch_map import BranchMap, orthogonal_complement, symmetry_sector
from ..branches.continuation import Continuation, CurvePoint, correct, step_from
from ..branches.equations import BranchEquations, SingularEquations
from ..integration.rule import DIFFERENCE_SAFETY
from ..problems.overlaps import Overlaps, block_scales
from ..problems.problem import Problem
from ..problems.symmetry import Exchange, Symmetry, exchanges, exchanges_of_state
from ..saddle_point.iteration import Status
from ..solving.solution import Solution
from ..solving.solve import solve
from ..solving.strategies import finer_rules
from ..thresholds.threshold import Threshold
from .events import DetectedEvent, FollowedPoint, locate_event, solution_at

MOST_POINTS = 400


@dataclass(frozen=True)
class MergerOptions(AlgorithmOptions):
    """Options of recognising that a branch merges with a more symmetric one.

    Sizes are those of the part of a state that breaks a symmetry, in block scales.

    Attributes:
        max_size: near a turn; a larger part is a fold without a merger.
        noise_size: below which the part may be noise.
        vanished_ratio: factor by which one step reduces the part if it led onto the more symmetric branch.
    """

    max_size: float = 0.2
    noise_size: float = 1e-4
    vanished_ratio: float = 1e-2


class BranchContinuation:
    """A continuation of a branch by arclength: equations, points so far with their events, and the reason of its end.

    Args:
        problem: at any value of the parameter.
        start: named start, or a solution at the first value.
        parameter: its name.
        between: the value to start at, and the one to continue to.
        accuracy: error bar of the overlaps, in block scales.
        seed: of sampled rules.
    """

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
        problem.require_scalar_parameters(parameter)
        for value in between:
            problem.with_(**{parameter: value})
        self.parameter, self.accuracy = parameter, accuracy
        at = problem.with_(**{parameter: self.first})
        solution = start if isinstance(start, Solution) else solve(at, start, accuracy=accuracy, seed=seed)
        self.name = start if isinstance(start, str) else solution.branch
        if solution.status is Status.TIME_LIMIT:
            raise TimeLimitError(f"the time limit ended the search for the {self.name} branch")
        if solution.losses is None or (isinstance(start, str) and solution.status is Status.LEFT_BASIN):
            reached = "" if solution.losses is None else f" (it leads to the {solution.branch} branch)"
            raise NotConvergedError(
                f"no {self.name} solution at {parameter} = {self.first:g}{reached}: "
                f"{solution.status.words}; {solution.advice}"
            )
        self.branch = BranchMap.from_solution(solution, (parameter,), [abs(self.last - self.first)])
        self.equations = BranchEquations(self.branch)
        self.points_so_far: list[FollowedPoint] = []
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
        """Return the reason why the continuation ended; empty before."""
        return self.line.ending

    @property
    def tolerance(self) -> float:
        """Return the largest residual of the corrector, by the accuracy and the present rule of the branch."""
        return self.branch.rule.tolerance(self.accuracy)

    def points(self, most: int) -> Iterator[FollowedPoint]:
        """Yield points until the end of the interval, a failure, `most` points, or a call of `stop`."""
        return map(self._add_point, self.line.points(most))

    def _add_point(self, point: CurvePoint) -> FollowedPoint:
        solution = self._solution_at(point)
        while solution.status is Status.ACCURACY_NOT_REACHED and self._rule_is_coarse(point):
            finer = finer_rules(self.branch.problem, self.branch.rule)
            if not finer or self.branch.rule.replicated:
                break
            self.branch.rule = finer[0]
            again = correct(self.equations, point.z, point.matrix, point.tangent, self.tolerance)
            if again is None:
                break
            point = replace(point, z=again[0], residual=again[2])
            solution = self._solution_at(point)
        self.line.point = point
        followed = FollowedPoint(point, solution, float(point.z[-1]), self._transverse_eigenvalues(point))
        self.points_so_far.append(followed)
        return followed

    def _rule_is_coarse(self, point: CurvePoint) -> bool:
        """Return whether a finer rule changes the map, not only the solution of a soft branch, beyond the accuracy."""
        x, values = self.equations.split_unknowns(point.z)
        try:
            moved = self.branch.residuals(x, values, self.branch.rule.finer_rule()) - self.branch.residuals(x, values)
        except DomainError:
            return True
        return bool(DIFFERENCE_SAFETY * np.max(np.abs(moved)) > self.accuracy)

    def _solution_at(self, point: CurvePoint) -> Solution:
        return solution_at(self.branch, point.z, point.matrix, point.residual, self.name, self.accuracy)

    def _transverse_eigenvalues(self, point: CurvePoint) -> np.ndarray:
        try:
            return np.linalg.eigvals(self.branch.transverse_slopes(*self.equations.split_unknowns(point.z)))
        except DomainError:
            return np.full(1, np.nan)

    # Events

    @property
    def has_turned_back(self) -> bool:
        """Return whether the parameter reversed its direction at the last point but one."""
        if len(self.points_so_far) < 3:
            return False
        one, two, three = (point.value for point in self.points_so_far[-3:])
        return (two - one) * (three - two) < 0

    def detect_events(self) -> list[DetectedEvent]:
        """Return the events detected between the last two points."""
        before, after = self.points_so_far[-2:]
        detected_events = []
        if before.point.tangent[-1] * after.point.tangent[-1] < 0:
            detected_events.append(self._detect_turn(before, after))
        elif self.has_turned_back:  # slopes over a few nodes may miss the change of sign
            detected_events.append(self._detect_turn(self.points_so_far[-3], after))
        elif self._has_lost_asymmetry(before, after):  # the step led onto the more symmetric branch
            detected_events.append(self._detect_merger(before, after))
        growing = [int(np.sum((e.real > 1) & (np.abs(e.imag) < 1e-9))) for e in (before.odd, after.odd)]
        if growing[0] != growing[1] and not any(p is not None and p.merges for p in detected_events):
            detected_events.append(self._detect_instability(before, after))
        return [detected for detected in detected_events if detected is not None]

    def _detect_turn(self, before: FollowedPoint, after: FollowedPoint) -> DetectedEvent | None:
        """Return the event where the branch turns back: a fold, or the end in a branch of higher symmetry."""
        length = after.point.arclength - before.point.arclength

        def parameter_slope(step: float) -> float:
            point = step_from(self.equations, before.point, step, self.tolerance)
            if point is None:
                raise ArithmeticError
            nearest.append(point)
            return float(point.tangent[-1])

        from scipy.optimize import brentq  # slow to load

        nearest: list[CurvePoint] = []
        try:
            if parameter_slope(length) * before.point.tangent[-1] < 0:
                brentq(parameter_slope, 0.0, length, xtol=2e-2 * length, maxiter=6, disp=False)
        except (ArithmeticError, ValueError):
            pass
        point = min([before.point, after.point, *nearest], key=lambda p: abs(p.tangent[-1]))
        between = before.value, after.value
        u = self.branch.state(point.z[:-1])
        reduced = self._restored_symmetry(u)
        if reduced is None:
            sector = self.branch.basis / np.sqrt(self.branch.norms)[:, None]
            return DetectedEvent(
                "spinodal", float(point.z[-1]), SingularEquations(self.branch, sector), point.z, False, between
            )
        return self._merger_at(u, float(point.z[-1]), reduced, between)

    def _detect_merger(self, before: FollowedPoint, after: FollowedPoint) -> DetectedEvent | None:
        """Return the end in a branch of higher symmetry, on which the point after it lies."""
        reduced = self._restored_symmetry(self.branch.state(after.point.z[:-1]))
        if reduced is None:
            return None
        u = self.branch.state(before.point.z[:-1])
        return self._merger_at(u, before.value, reduced, (before.value, after.value))

    def _merger_at(self, u: np.ndarray, value: float, reduced: Symmetry, between: tuple[float, float]) -> DetectedEvent:
        """Return the end in a branch of a higher symmetry, near a state."""
        branch = BranchMap(self.branch.problem, (self.parameter,), list(self.branch.span), reduced, self.branch.rule)
        z = np.append(branch.coordinates(u), value)
        sector = symmetry_sector((u - branch.state(z[:-1])) / block_scales(u, branch.sizes), branch)
        return DetectedEvent("spinodal", value, SingularEquations(branch, sector), z, True, between)

    def _restored_symmetry(self, u: np.ndarray) -> Symmetry | None:
        """Return the symmetry of a state without its nearly vanishing asymmetric part, or None without such a part.

        Along a branch that ends in a more symmetric one, the part that breaks the symmetry goes through zero.
        """
        problem, sizes = self.branch.problem, self.branch.sizes
        largest = max(
            (max(self._asymmetric_parts(s.point).values(), default=0.0) for s in self.points_so_far), default=1.0
        )
        for exchange, part in self._broken_exchange_sizes(u).items():
            if part < MergerOptions.current().max_size * min(1.0, largest):
                image = exchange.exchange_overlaps(Overlaps.unpack(u, sizes), problem.clusters).pack()
                projected = Overlaps.unpack((u + image) / 2, sizes)
                return Symmetry(self.branch.symmetry.frozen, exchanges_of_state(problem, projected), problem.clusters)
        return None

    def _broken_exchange_sizes(self, u: np.ndarray) -> dict[Exchange, float]:
        """Return the exchanges that the branch does not keep, with the size of the part of a state that breaks each."""
        overlaps, clusters = Overlaps.unpack(u, self.branch.sizes), self.branch.problem.clusters
        others = [e for e in exchanges(self.branch.problem) if e not in self.branch.symmetry.exchanges]
        gaps = {e: np.abs(u - e.exchange_overlaps(overlaps, clusters).pack()) for e in others}
        return {e: float(np.max(gap / overlaps.block_scales)) / 2 for e, gap in gaps.items()}

    def _asymmetric_parts(self, point: CurvePoint) -> dict[Exchange, float]:
        return self._broken_exchange_sizes(self.branch.state(point.z[:-1]))

    def _has_lost_asymmetry(self, before: FollowedPoint, after: FollowedPoint) -> bool:
        """Return whether a part that breaks an exchange vanished in one step."""
        options = MergerOptions.current()
        ahead, behind = self._asymmetric_parts(after.point), self._asymmetric_parts(before.point)
        present = max(options.noise_size, self.tolerance)
        ratio = options.vanished_ratio
        return any(part > present and ahead[exchange] < ratio * part for exchange, part in behind.items())

    def _detect_instability(self, before: FollowedPoint, after: FollowedPoint) -> DetectedEvent:
        gaps = [float(np.min(np.abs(1 - point.odd))) for point in (before, after)]
        fraction = gaps[0] / (gaps[0] + gaps[1])
        z = before.point.z + fraction * (after.point.z - before.point.z)
        values, vectors = np.linalg.eig(self.branch.transverse_slopes(*self.equations.split_unknowns(z)))
        growing = vectors[:, np.argmin(np.abs(values - 1))].real @ orthogonal_complement(self.branch.basis)
        equations = SingularEquations(self.branch, symmetry_sector(growing, self.branch))
        return DetectedEvent("instability", float(z[-1]), equations, z, False, (before.value, after.value))

    def locate(self, detected: DetectedEvent, accuracy: float) -> Threshold | None:
        """Return a detected event, located; None, with a message, if its equations do not converge.

        Args:
            detected: the detected event.
            accuracy: error bar of the parameter.
        """
        try:
            return locate_event(detected, self.name, accuracy, self.accuracy)
        except (NotConvergedError, DomainError, np.linalg.LinAlgError) as error:
            print_message(f"the {detected.kind} near {self.parameter} = {detected.near:.4g} was not located: {error}")
            return None
