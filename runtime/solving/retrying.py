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
    """Options of retrying a start that left its branch: larger numbers find more branches and take longer.

    Attributes:
        factor: factor by which one step makes a parameter easier.
        samples, strengths: numbers of such steps that are tried of alpha and of strengths of the regulariser, in turn;
            of noise one step is.
        first, least: length of a continuation step back, in steps of that factor: the first, and the shortest, at which
            the branch counts as lost.
        back: largest number of continuation steps back.
        accuracy, effort: as of `solve_unchecked`, of intermediate solutions; the final one has those of the caller.
        curvature_limit: largest change that a parabola through three solutions may make to the step along the line
            through two; larger trusts the parabola more often.
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


def has_start_left_branch(problem: Problem, start: str | Overlaps, solution: Solution) -> bool:
    """Return whether the solution lacks an overlap of its start, or the solve failed without divergence.

    Args:
        problem: the problem that was solved.
        start: its start.
        solution: the result from that start.
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
    """Return the solution on the branch of a start that left it, or None, and a sentence for the user.

    Args:
        solver: solves from a start, with the caller's rule and seed.
        problem: the problem to solve.
        start: the start, by name or as overlaps.
        lost: the solution, or failed solution, from that start.
        holds: whether a solution, of this problem or of an easier one, is on the branch; by default whether it has
            the overlaps that the start has.
        accuracy: error bar of the overlaps of the solution returned, as of `solve_unchecked`.
        effort: effort for the solution returned, as of `solve_unchecked`.

    Raises:
        TimeLimitError: the time ended.
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
        """Return a rough solution refined to the accuracy; None if the refined one is on another branch."""
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
                there = easier.eased_problem(options.factor**count)
            except InputError:
                break
            at_words = easier.describe_eased_value(options.factor**count)
            found = _solve_from_start(there, f"at {at_words}")
            if found.status is Status.TIME_LIMIT:
                return None, ""
            tried.append(at_words)
            if is_solution_on_branch(found):
                with progress_step(f"the start {name} left its branch: following it back from {at_words}"):
                    found, ends = _continue_back_to_given_problem(easier, found, float(count), options)
                if ends is None:
                    if solution := refine_solution_on_branch(found):
                        print_message(f"start {name}: its branch was followed back from {at_words}")
                        return solution, f"followed back from {at_words}"
                    ends = (options.factor**options.least, 1.0)
                low, high = (easier.describe_eased_value(factor) for factor in ends)
                lost_between = f"its branch is lost between {low} and {high}"
                return None, f"followed from {at_words}, where the start leads to it, {lost_between}"
    return None, f"the start does not lead to its branch at {', '.join(tried)} either" if tried else ""


@dataclass(frozen=True)
class _EasierProblem:
    """A problem made easier in one parameter; `counts` are the numbers of easing steps to try."""

    problem: Problem
    name: str
    value: Any
    harder: bool
    counts: tuple[int, ...] = (1,)
    is_strength: bool = False

    def _eased_parameter_value(self, factor: float) -> Any:
        moved = np.asarray(self.value, float) * (1 / factor if self.harder else factor)
        return moved if moved.shape else float(moved)

    def eased_problem(self, factor: float) -> Problem:
        """Return the problem with its parameter made easier by a factor.

        Raises:
            InputError: the parameter cannot take this value.
        """
        return self.problem if factor == 1 else self.problem.with_(**{self.name: self._eased_parameter_value(factor)})

    def describe_eased_value(self, factor: float) -> str:
        """Return the parameter's name and its value made easier by a factor, as text."""
        shown = np.unique(np.round(np.ravel(self._eased_parameter_value(factor)), 12))
        return f"{self.name.rstrip('_')} = {', '.join(f'{value:.4g}' for value in shown)}"


def _easier_problems(problem: Problem, options: RetryOptions) -> Iterator[_EasierProblem]:
    """Yield easier problems: with more samples, with less Gaussian noise, with a stronger regulariser."""
    yield _EasierProblem(problem, "alpha", problem.alpha, False, options.samples)
    strengths = problem.regulariser.names_of_strength_parameters
    loud = {n: v for n, v in problem.parameters.items() if n not in strengths and np.all(np.asarray(v) > 0)}
    for name, value in loud.items():
        try:
            quieter = _EasierProblem(problem, name, value, True).eased_problem(2.0).noise_scale
        except InputError:
            continue
        if np.any(quieter < problem.noise_scale):
            yield _EasierProblem(problem, name, value, True)
    for name in strengths:
        if np.all(np.asarray(problem.parameters[name]) > 0):
            yield _EasierProblem(problem, name, problem.parameters[name], False, options.strengths, True)


def _continue_back_to_given_problem(
    easier: _EasierProblem, first: Solution, count: float, options: RetryOptions
) -> tuple[Solution, tuple[float, float] | None]:
    """Continue a branch from an easier problem back to the given one, by the same quadrature rule.

    Returns:
        the last state, as a solution to start from, and the factors between which the branch is lost, None where the
        continuation reached the problem given.
    """
    known, here, stride, missed = {count: first}, count, options.first, -1.0
    for _ in range(options.back):
        # Halfway to the last failure, or, that close, there again: the step that failed may have been too long.
        there = max(here - stride, 0.0)
        if missed >= 0 and there < (middle := (here + missed) / 2):
            there = middle if here - missed > options.least else missed
        guess = extrapolate_solution(known, there)
        at = replace(easier.eased_problem(options.factor**there), search=first.problem.search)
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
    """Return a guess of the solution at a parameter value, extrapolated from known solutions.

    It has overlaps on the parabola through the three nearest, or on the line through two. Sizes of the blocks are
    extrapolated in their logarithms, the rest relative to them: V and the norm of the weights follow power laws where
    a ridge becomes weak.

    Args:
        known: solutions by the value of the parameter.
        value: value of the parameter.
    """
    nearest, *others = sorted(known, key=lambda v: abs(v - value))[:3]
    solution = known[nearest]
    if not others:
        return solution
    ahead = (value - nearest) / (nearest - others[0])
    here, other, *third = (_log_block_sizes_and_shape(known[each]) for each in (nearest, *others))
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


def _log_block_sizes_and_shape(solution: Solution) -> np.ndarray:
    """Return logarithms of the block sizes, then the packed overlaps relative to these sizes, (2n,).

    In place of q is its part that the teacher does not explain.
    """
    overlaps = solution.overlaps
    left = replace(overlaps, q=conditional_covariance(solution.problem, overlaps)).pack()
    scales, q_places = overlaps.block_scales, packed_overlap_slices(overlaps.sizes)["q"]
    scales[q_places] = np.abs(left[q_places]).max()
    return np.concatenate([np.log(scales), left / scales])
