"""Retries of a start that left its branch: without extrapolation, then by continuation from an easier problem.

Extrapolation from earlier iterates finds saddles as readily as minima; plain damped iteration comes first. Then the
problem is made easier (more samples, less noise, a stronger regulariser, in this order) until the start leads to its
branch, which is followed back to the problem as it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..base.options import AlgorithmOptions
from ..base.progress import print_message, progress_step
from ..problems.overlaps import Overlaps, packed_overlap_slices
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY
from ..saddle_point.domain import conditional_covariance, project_on_teacher
from ..saddle_point.iteration import Status
from ..saddle_point.starts import name_branch
from .local import solve_by_newton
from .saddle_escape import StartSolver, unstable_direction
from .settings import SolveSettings
from .solution import Solution, has_lost_overlap_of_start


@dataclass(frozen=True)
class RetryOptions(AlgorithmOptions):
    """Options of retrying a start that left its branch, by continuation from an easier problem.

    Attributes:
        factor: factor by which one step changes a parameter to make the problem easier.
        samples: numbers of such steps of alpha that are tried, in turn.
        strengths: numbers of such steps of the regulariser that are tried, in turn.
        first: length of the first continuation step back to the given problem, in steps of that factor.
        least: shortest continuation step, at which the branch counts as lost.
        back: largest number of continuation steps back.
        accuracy: error bar of intermediate solutions; the final one has that of the caller.
        effort: effort of intermediate solutions.
        curvature_limit: largest relative change that extrapolation by a parabola may make to that by a straight line.
    """

    factor: float = 4.0
    samples: tuple[int, ...] = (1, 2)
    strengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    first: float = 0.5
    least: float = 0.06
    back: int = 16
    accuracy: float = 1e-2
    effort: int = 1
    curvature_limit: float = 0.5


def has_solve_left_branch_of_start(problem: Problem, start: str | Overlaps, solution: Solution) -> bool:
    """Return whether a solve left the branch of its start: an overlap is lost, or it failed without divergence.

    Args:
        problem: the problem that was solved.
        start: the start of the solve.
        solution: the result of the solve.
    """
    if solution.losses is None:
        return solution.status is Status.MAX_ITERATIONS and not solution.outside
    return has_lost_overlap_of_start(problem, start, solution)


def retry_lost_start(
    solver: StartSolver,
    problem: Problem,
    start: str | Overlaps,
    lost: Solution,
    holds: Callable[[Solution], bool] | None = None,
    *,
    accuracy: float = 1e-4,
    effort: int = 100,
) -> tuple[Solution | None, str]:
    """Retry a start that left its branch; return the solution on that branch, or None, and a sentence for the user.

    Args:
        solver: function that solves from a start, with the caller's quadrature rule and seed.
        problem: the problem to solve.
        start: the start, by name or as overlaps.
        lost: the solution on another branch, or the failed solution, from that start.
        holds: function that says whether a solution is on the branch; by default: whether it has the overlaps of the
            start.
        accuracy: error bar of the overlaps of the returned solution, relative to the size of their block.
        effort: largest number of sizes that are tried in each family of quadrature rules.

    Raises:
        TimeLimitError: the time limit ended the search.
    """
    options = RetryOptions.current()
    own: dict[str, Any] = {"accuracy": accuracy, "effort": effort}
    rough: dict[str, Any] = {"accuracy": max(accuracy, options.accuracy), "effort": min(effort, options.effort)}
    name = start if isinstance(start, str) else "given"

    def is_solution_on_branch(found: Solution) -> bool:
        if found.status is Status.TIME_LIMIT or found.losses is None:
            return False
        return holds(found) if holds else not has_lost_overlap_of_start(found.problem, start, found)

    def _solve_from_start(at: Problem, where: str) -> Solution:
        """Return the solution from the start; if that is a saddle, solve again without extrapolation."""
        with progress_step(f"the start {name} left its branch: trying it {where}"):
            found = lost if at is problem else solver(at, start, **rough)
            if found.losses is not None and not is_solution_on_branch(found) and unstable_direction(found) is not None:
                found = solver(at, start, extrapolate=False, **rough)
        return found

    def refine_solution_on_branch(found: Solution) -> Solution | None:
        """Refine a rough solution to the accuracy; return None if the refined solution is on another branch."""
        found = solver(problem, found, **own)
        return found if is_solution_on_branch(found) else None

    found = _solve_from_start(problem, "without extrapolation")
    if is_solution_on_branch(found) and (solution := refine_solution_on_branch(found)):
        return solution, "found without extrapolation"
    tried: list[str] = []
    # A start that does not converge is far from its branch, as where a ridge is weak; one that converges to another
    # branch has too much noise.
    for easier in sorted(
        _easier_problems(problem, options), key=lambda each: found.losses is None and not each.is_strength
    ):
        for count in easier.counts:
            try:
                there = easier.problem_made_easier(options.factor**count)
            except InputError:
                break
            at_words = easier.describe_easier_parameter_value(options.factor**count)
            found = _solve_from_start(there, f"at {at_words}")
            if found.status is Status.TIME_LIMIT:
                return None, ""
            tried.append(at_words)
            if is_solution_on_branch(found):
                with progress_step(f"the start {name} left its branch: following it back from {at_words}"):
                    found, ends = _continue_branch_to_given_problem(easier, found, float(count), options)
                if ends is None:
                    if solution := refine_solution_on_branch(found):
                        print_message(f"start {name}: its branch was followed back from {at_words}")
                        return solution, f"followed back from {at_words}"
                    ends = (options.factor**options.least, 1.0)
                low, high = (easier.describe_easier_parameter_value(factor) for factor in ends)
                lost_between = f"its branch is lost between {low} and {high}"
                return None, f"followed from {at_words}, where the start leads to it, {lost_between}"
    return None, f"the start does not lead to its branch at {', '.join(tried)} either" if tried else ""


@dataclass(frozen=True)
class _EasierProblem:
    """A change of one parameter that makes a problem easier; `counts` are the numbers of steps to try."""

    problem: Problem
    name: str
    value: Any
    harder: bool
    counts: tuple[int, ...] = (1,)
    is_strength: bool = False

    def _easier_parameter_value(self, factor: float) -> Any:
        moved = np.asarray(self.value, float) * (1 / factor if self.harder else factor)
        return moved if moved.shape else float(moved)

    def problem_made_easier(self, factor: float) -> Problem:
        """Return the problem with the parameter changed by a factor that makes it easier.

        Raises:
            InputError: the parameter cannot take this value.
        """
        return self.problem if factor == 1 else self.problem.with_(**{self.name: self._easier_parameter_value(factor)})

    def describe_easier_parameter_value(self, factor: float) -> str:
        """Return name and value of the parameter of the easier problem, as text."""
        shown = np.unique(np.round(np.ravel(self._easier_parameter_value(factor)), 12))
        return f"{self.name.rstrip('_')} = {', '.join(f'{value:.4g}' for value in shown)}"


def _easier_problems(problem: Problem, options: RetryOptions) -> Iterator[_EasierProblem]:
    """Yield easier problems: with more samples, with less Gaussian noise, with a stronger regulariser."""
    yield _EasierProblem(problem, "alpha", problem.alpha, False, options.samples)
    strengths = problem.regulariser.names_of_strength_parameters
    loud = {n: v for n, v in problem.parameters.items() if n not in strengths and np.all(np.asarray(v) > 0)}
    for name, value in loud.items():
        try:
            quieter = _EasierProblem(problem, name, value, True).problem_made_easier(2.0).noise_scale
        except InputError:
            continue
        if np.any(quieter < problem.noise_scale):
            yield _EasierProblem(problem, name, value, True)
    for name in strengths:
        if np.all(np.asarray(problem.parameters[name]) > 0):
            yield _EasierProblem(problem, name, problem.parameters[name], False, options.strengths, True)


def _continue_branch_to_given_problem(
    easier: _EasierProblem, first: Solution, count: float, options: RetryOptions
) -> tuple[Solution, tuple[float, float] | None]:
    """Continue a branch from an easier problem back to the given one, by the same quadrature rule.

    Returns:
        the last solution, and the two factors, by which a parameter is changed to make the problem easier, between
        which the branch is lost (None if the given problem was reached).
    """
    known, here, stride, missed = {count: first}, count, options.first, -1.0
    for _ in range(options.back):
        # Halfway to the last failure, or, that close, there again: the step that failed may have been too long.
        there = max(here - stride, 0.0)
        if missed >= 0 and there < (middle := (here + missed) / 2):
            there = middle if here - missed > options.least else missed
        guess = extrapolate_solution(known, there)
        at = replace(easier.problem_made_easier(options.factor**there), search=first.problem.search)
        task = SolveSettings(at, first.start, first.symmetry or NO_SYMMETRY, options.accuracy)
        point = solve_by_newton(task, first.rule, replace(guess.fixed_point, drift=0.0))
        if point.status.success and name_branch(at, point.overlaps, first.errors) == first.branch:
            reached = replace(guess, problem=at, overlaps=point.overlaps, jacobian=point.jacobian, drift=point.drift)
            known[there], here, stride = reached, there, 1.5 * (here - there)
            missed = missed if missed < there else -1.0
            if not there:
                return reached, None
        elif there == missed:
            break
        else:
            missed = there
    return known[here], (options.factor**here, options.factor ** max(missed, 0.0))


def extrapolate_solution(known: Mapping[float, Solution], value: float) -> Solution:
    """Return a guess of the solution at a parameter value, extrapolated from known solutions nearby.

    The parabola through the three nearest solutions is used, or the line through two. Sizes of the blocks (q, V, m,
    ...) are extrapolated in their logarithms, since V and the norm of the weights follow power laws for a weak ridge.

    Args:
        known: solutions by parameter value.
        value: parameter value of the guess.
    """
    nearest, *others = sorted(known, key=lambda v: abs(v - value))[:3]
    solution = known[nearest]
    if not others:
        return solution
    ahead = (value - nearest) / (nearest - others[0])
    here, other, *third = (_log_scales_and_scaled_overlaps(known[each]) for each in (nearest, *others))
    line = ahead * (here - other)
    moved = here + line
    if third:
        slope = (here - other) / (nearest - others[0])
        before = (other - third[0]) / (others[0] - others[1])
        bend = (value - nearest) * (value - others[0]) * (slope - before) / (nearest - others[1])
        # Where the parabola bends more, the solutions are too far apart, or their errors too large.
        if np.max(np.abs(bend)) < RetryOptions.current().curvature_limit * np.max(np.abs(line)):
            moved = moved + bend
    sizes, shape = np.split(moved, 2)
    # Extrapolation over a long step is unreliable, and an overlap that vanishes at the branch's end keeps its sign.
    if abs(ahead) > 4 or np.any(np.split(here, 2)[1] * shape < 0):
        return solution
    left = Overlaps.unpack(np.exp(sizes) * shape, solution.overlaps.sizes)
    return replace(solution, overlaps=replace(left, q=left.q + project_on_teacher(solution.problem, left.theta)))


def _log_scales_and_scaled_overlaps(solution: Solution) -> np.ndarray:
    """Return the logarithms of the block sizes, then the packed overlaps divided by these sizes, as one vector.

    Instead of q it has the conditional covariance, the part of q that the teacher does not explain.
    """
    overlaps = solution.overlaps
    left = replace(overlaps, q=conditional_covariance(solution.problem, overlaps)).pack()
    scales, q_places = overlaps.block_scales, packed_overlap_slices(overlaps.sizes)["q"]
    scales[q_places] = np.abs(left[q_places]).max()
    return np.concatenate([np.log(scales), left / scales])
