"""Continuation of a branch by arclength with detection of its bifurcations, for `follow`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..base.errors import DomainError, InputError, NotConvergedError, TimeLimitError
from ..base.options import AlgorithmOptions
from ..base.progress import print_message
from ..branches.branch_map import BranchMap, orthogonal_complement, smallest_symmetry_sector
from ..branches.continuation import CurveContinuation, CurvePoint, correct_predicted_point, step_along_curve
from ..branches.equations import BranchEquations, SingularJacobianEquations
from ..integration.rule import DIFFERENCE_SAFETY
from ..problems.overlaps import Overlaps, block_scales
from ..problems.problem import Problem
from ..problems.symmetry import SignedPermutation, StateSymmetry, symmetries_of_problem, symmetries_of_state
from ..saddle_point.iteration import Status
from ..solving.solution import Solution
from ..solving.solve import solve
from ..solving.strategies import finer_quadrature_rules
from ..thresholds.threshold import Threshold
from .events import DetectedEvent, SolvedContinuationPoint, locate_event, solution_from_branch_unknowns

MOST_POINTS = 400


@dataclass(frozen=True)
class BranchMergerOptions(AlgorithmOptions):
    """Options of recognising that a branch merges with a more symmetric one.

    Size means the largest entry of the part of a state that breaks the symmetry, relative to the size of its block.

    Attributes:
        max_size: size above which a turn of the branch is a fold, not a merger.
        noise_size: size that integration noise may have.
        vanished_ratio: ratio of the sizes after and before a step below which the step reached the symmetric branch.
    """

    max_size: float = 0.2
    noise_size: float = 1e-4
    vanished_ratio: float = 1e-2


class BranchContinuation:
    """A continuation of a branch by arclength, with its solved points, detected events and reason of ending.

    Args:
        problem: the problem at any value of the parameter.
        start: named start, or a solution at the first value.
        parameter: name of the parameter.
        between: parameter values at which the continuation starts and ends.
        accuracy: error bar of the overlaps, relative to the size of their block (q, V, m, ...).
        seed: seed of the sampled quadrature rules.
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
            raise InputError(f"{parameter} = {self.first:g} to {self.last:g} is empty: an interval is expected")
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
        self.points_so_far: list[SolvedContinuationPoint] = []
        self.line = CurveContinuation(
            self.equations,
            np.append(self.branch.coordinates_of_state(solution.overlaps.pack()), self.first),
            (self.first, self.last),
            lambda: self.corrector_tolerance,
            f"the {self.name} branch has no definite tangent at {parameter} = {self.first:g}: start at another value",
            lambda z: f"no solution found beyond {parameter} = {z[-1]:.5g}",
            f"{parameter} = ",
        )
        self.end_continuation = self.line.end_continuation

    @property
    def reason_of_continuation_end(self) -> str:
        """Return the reason why the continuation ended; empty while it goes on."""
        return self.line.ending

    @property
    def corrector_tolerance(self) -> float:
        """Return the largest residual at which a point counts as solved, given the present quadrature rule."""
        return self.branch.rule.newton_tolerance(self.accuracy)

    def continuation_points(self, most: int) -> Iterator[SolvedContinuationPoint]:
        """Yield at most `most` solved points of the branch, until the interval ends, a step fails, or it is stopped."""
        return map(self._append_solved_point, self.line.continuation_points(most))

    def _append_solved_point(self, point: CurvePoint) -> SolvedContinuationPoint:
        solution = self._solution_of_curve_point(point)
        while solution.status is Status.ACCURACY_NOT_REACHED and self._is_quadrature_too_coarse(point):
            finer = finer_quadrature_rules(self.branch.problem, self.branch.rule)
            if not finer or self.branch.rule.replicated:
                break
            self.branch.rule = finer[0]
            again = correct_predicted_point(
                self.equations, point.z, point.matrix, point.tangent, self.corrector_tolerance
            )
            if again is None:
                break
            point = replace(point, z=again[0], residual=again[2])
            solution = self._solution_of_curve_point(point)
        self.line.point = point
        followed = SolvedContinuationPoint(
            point, solution, float(point.z[-1]), self._symmetry_breaking_eigenvalues(point)
        )
        self.points_so_far.append(followed)
        return followed

    def _is_quadrature_too_coarse(self, point: CurvePoint) -> bool:
        """Return whether a finer quadrature rule changes the saddle-point map by more than the accuracy."""
        x, values = self.equations.split_coordinates_and_parameters(point.z)
        try:
            moved = self.branch.residuals_by_replicate(
                x, values, self.branch.rule.finer_rule()
            ) - self.branch.residuals_by_replicate(x, values)
        except DomainError:
            return True
        return bool(DIFFERENCE_SAFETY * np.max(np.abs(moved)) > self.accuracy)

    def _solution_of_curve_point(self, point: CurvePoint) -> Solution:
        return solution_from_branch_unknowns(
            self.branch, point.z, point.matrix, point.residual, self.name, self.accuracy
        )

    def _symmetry_breaking_eigenvalues(self, point: CurvePoint) -> np.ndarray:
        try:
            return np.linalg.eigvals(
                self.branch.symmetry_breaking_jacobian(*self.equations.split_coordinates_and_parameters(point.z))
            )
        except DomainError:
            return np.full(1, np.nan)

    # Events

    @property
    def has_parameter_turned_back(self) -> bool:
        """Return whether the parameter reversed its direction at the point before the last."""
        if len(self.points_so_far) < 3:
            return False
        one, two, three = (point.value for point in self.points_so_far[-3:])
        return (two - one) * (three - two) < 0

    def detect_events(self) -> list[DetectedEvent]:
        """Return the bifurcations (folds, mergers, instabilities) detected between the last two points."""
        before, after = self.points_so_far[-2:]
        detected_events = []
        if before.point.tangent[-1] * after.point.tangent[-1] < 0:
            detected_events.append(self._detect_fold_or_merger(before, after))
        elif self.has_parameter_turned_back:  # slopes over a few nodes may miss the change of sign
            detected_events.append(self._detect_fold_or_merger(self.points_so_far[-3], after))
        elif self._has_regained_symmetry(before, after):  # the step reached the more symmetric branch
            detected_events.append(self._detect_branch_merger(before, after))
        growing = [int(np.sum((e.real > 1) & (np.abs(e.imag) < 1e-9))) for e in (before.odd, after.odd)]
        if growing[0] != growing[1] and not any(p is not None and p.merges for p in detected_events):
            detected_events.append(self._detect_instability(before, after))
        return [detected for detected in detected_events if detected is not None]

    def _detect_fold_or_merger(
        self, before: SolvedContinuationPoint, after: SolvedContinuationPoint
    ) -> DetectedEvent | None:
        """Return the event at a turn of the parameter: a fold, or a merger with a more symmetric branch."""
        length = after.point.arclength - before.point.arclength

        def parameter_component_of_tangent(step: float) -> float:
            point = step_along_curve(self.equations, before.point, step, self.corrector_tolerance)
            if point is None:
                raise ArithmeticError
            nearest.append(point)
            return float(point.tangent[-1])

        from scipy.optimize import brentq  # slow to load

        nearest: list[CurvePoint] = []
        try:
            if parameter_component_of_tangent(length) * before.point.tangent[-1] < 0:
                brentq(parameter_component_of_tangent, 0.0, length, xtol=2e-2 * length, maxiter=6, disp=False)
        except (ArithmeticError, ValueError):
            pass
        point = min([before.point, after.point, *nearest], key=lambda p: abs(p.tangent[-1]))
        between = before.value, after.value
        u = self.branch.state_from_coordinates(point.z[:-1])
        reduced = self._symmetry_restored_at_merger(u)
        if reduced is None:
            sector = self.branch.basis / np.sqrt(self.branch.norms)[:, None]
            return DetectedEvent(
                "spinodal", float(point.z[-1]), SingularJacobianEquations(self.branch, sector), point.z, False, between
            )
        return self._branch_merger_event(u, float(point.z[-1]), reduced, between)

    def _detect_branch_merger(
        self, before: SolvedContinuationPoint, after: SolvedContinuationPoint
    ) -> DetectedEvent | None:
        """Return the event where the branch merged with a more symmetric one, on which the last point lies."""
        reduced = self._symmetry_restored_at_merger(self.branch.state_from_coordinates(after.point.z[:-1]))
        if reduced is None:
            return None
        u = self.branch.state_from_coordinates(before.point.z[:-1])
        return self._branch_merger_event(u, before.value, reduced, (before.value, after.value))

    def _branch_merger_event(
        self, u: np.ndarray, value: float, reduced: StateSymmetry, between: tuple[float, float]
    ) -> DetectedEvent:
        """Return the event, near a given state, where the branch merges with a more symmetric one."""
        branch = BranchMap(self.branch.problem, (self.parameter,), list(self.branch.span), reduced, self.branch.rule)
        z = np.append(branch.coordinates_of_state(u), value)
        sector = smallest_symmetry_sector(
            (u - branch.state_from_coordinates(z[:-1])) / block_scales(u, branch.sizes), branch
        )
        return DetectedEvent("spinodal", value, SingularJacobianEquations(branch, sector), z, True, between)

    def _symmetry_restored_at_merger(self, u: np.ndarray) -> StateSymmetry | None:
        """Return a symmetry that the branch lacks, but that a state on it has nearly; None if there is none.

        Where a branch merges with a more symmetric one, the part of the state that breaks the symmetry vanishes.
        """
        problem, sizes = self.branch.problem, self.branch.sizes
        largest = max(
            (max(self._symmetry_breaking_at_point(s.point).values(), default=0.0) for s in self.points_so_far),
            default=1.0,
        )
        for exchange, part in self._distances_from_exchange_symmetry(u).items():
            if part < BranchMergerOptions.current().max_size * min(1.0, largest):
                image = exchange.permute_overlaps(Overlaps.unpack(u, sizes), problem.clusters).pack()
                projected = Overlaps.unpack((u + image) / 2, sizes)
                return StateSymmetry(
                    self.branch.symmetry.frozen, symmetries_of_state(problem, projected), problem.clusters
                )
        return None

    def _distances_from_exchange_symmetry(self, u: np.ndarray) -> dict[SignedPermutation, float]:
        """Return how much a state breaks each symmetry of the problem that the branch does not have."""
        overlaps, clusters = Overlaps.unpack(u, self.branch.sizes), self.branch.problem.clusters
        others = [e for e in symmetries_of_problem(self.branch.problem) if e not in self.branch.symmetry.exchanges]
        gaps = {e: np.abs(u - e.permute_overlaps(overlaps, clusters).pack()) for e in others}
        return {e: float(np.max(gap / overlaps.block_scales)) / 2 for e, gap in gaps.items()}

    def _symmetry_breaking_at_point(self, point: CurvePoint) -> dict[SignedPermutation, float]:
        return self._distances_from_exchange_symmetry(self.branch.state_from_coordinates(point.z[:-1]))

    def _has_regained_symmetry(self, before: SolvedContinuationPoint, after: SolvedContinuationPoint) -> bool:
        """Return whether the part of the state that breaks a symmetry vanished in one step."""
        options = BranchMergerOptions.current()
        ahead, behind = (
            self._symmetry_breaking_at_point(after.point),
            self._symmetry_breaking_at_point(before.point),
        )
        present = max(options.noise_size, self.corrector_tolerance)
        ratio = options.vanished_ratio
        return any(part > present and ahead[exchange] < ratio * part for exchange, part in behind.items())

    def _detect_instability(self, before: SolvedContinuationPoint, after: SolvedContinuationPoint) -> DetectedEvent:
        gaps = [float(np.min(np.abs(1 - point.odd))) for point in (before, after)]
        fraction = gaps[0] / (gaps[0] + gaps[1])
        z = before.point.z + fraction * (after.point.z - before.point.z)
        values, vectors = np.linalg.eig(
            self.branch.symmetry_breaking_jacobian(*self.equations.split_coordinates_and_parameters(z))
        )
        growing = vectors[:, np.argmin(np.abs(values - 1))].real @ orthogonal_complement(self.branch.basis)
        equations = SingularJacobianEquations(self.branch, smallest_symmetry_sector(growing, self.branch))
        return DetectedEvent("instability", float(z[-1]), equations, z, False, (before.value, after.value))

    def locate_detected_event(self, detected: DetectedEvent, accuracy: float) -> Threshold | None:
        """Locate a detected event as a threshold; report failure on stderr and return None if it does not converge.

        Args:
            detected: the detected event.
            accuracy: error bar of the parameter.
        """
        try:
            return locate_event(detected, self.name, accuracy, self.accuracy)
        except (NotConvergedError, DomainError, np.linalg.LinAlgError) as error:
            print_message(f"the {detected.kind} near {self.parameter} = {detected.near:.4g} was not located: {error}")
            return None
