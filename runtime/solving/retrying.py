"""Retry a start that left its branch before that is the verdict: step by step, then back from an easier problem.

Mixing earlier iterates finds saddles as readily as minima, so that the plain damped iteration comes first. Then the
problem is made easier (more samples, less noise, a stronger regulariser, in this order) until the start leads to its
branch, which is followed back to the problem as it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..base.progress import say, step
from ..problems.overlaps import Overlaps, places_of
from ..problems.problem import Problem
from ..problems.symmetry import NO_SYMMETRY
from ..saddle_point.domain import project_on_teacher, without_teacher
from ..saddle_point.iteration import Status
from ..saddle_point.starts import branch_of
from .local import newton_at
from .saddles import Reach, unstable_direction
from .solution import Solution, has_lost
from .task import Task

_BENT = 0.5  # of what the line between two solutions adds, that a parabola through three may change of it


@dataclass(frozen=True)
class RetryOptions:
    """How hard a start that left its branch is tried again: more of each finds more branches and takes longer.

    Attributes:
        factor: by which one step makes a parameter easier.
        samples, strengths: numbers of such steps that are tried of alpha and of strengths of the regulariser, in turn;
            of noise one step is.
        first, least: length of a step back, in steps of that factor, at first and where the branch counts as lost.
        back: steps back at the most.
        accuracy, effort: as of `reach`, on the way; the solution has those of the caller.
    """

    factor: float = 4.0
    samples: tuple[int, ...] = (1, 2)
    strengths: tuple[int, ...] = (1, 2, 4, 8, 16)
    first: float = 0.5
    least: float = 0.06
    back: int = 16
    accuracy: float = 1e-2
    effort: int = 1


def has_left(problem: Problem, start: str | Overlaps, found: Solution) -> bool:
    """Return whether a start led to a solution without an overlap of its own, or to none although nothing diverged."""
    if found.losses is None:
        return found.status is Status.MAX_ITERATIONS and not found.outside
    return has_lost(problem, start, found)


def retried(
    reach: Reach,
    problem: Problem,
    start: str | Overlaps,
    lost: Solution,
    holds: Callable[[Solution], bool] | None = None,
    *,
    accuracy: float = 1e-4,
    effort: int = 100,
    options: RetryOptions = RetryOptions(),
) -> tuple[Solution | None, str]:
    """Look for the branch of a start that led to another one, or nowhere (`has_left`).

    Args:
        reach: solves from a start, its rule and seed filled in.
        lost: what the start led to.
        holds: whether a solution, of this problem or of an easier one, is on the branch; by default whether it has
            the overlaps that the start has.
        accuracy, effort: as of `reach`, for the solution.

    Returns:
        the solution, or None, and what was found, in words.

    Raises:
        TimeLimitError: the time ended.
    """
    own: dict[str, Any] = {"accuracy": accuracy, "effort": effort}
    rough: dict[str, Any] = {"accuracy": max(accuracy, options.accuracy), "effort": min(effort, options.effort)}
    name = start if isinstance(start, str) else "given"

    def on_branch(found: Solution) -> bool:
        if found.status is Status.TIME_LIMIT or found.losses is None:
            return False
        return holds(found) if holds else not has_lost(found.problem, start, found)

    def led(at: Problem, where: str) -> Solution:
        """Return what the start leads to; without extrapolation if it leads to a saddle otherwise."""
        with step(f"the start {name} left its branch: trying it {where}"):
            found = lost if at is problem else reach(at, start, **rough)
            if found.losses is not None and not on_branch(found) and unstable_direction(found) is not None:
                found = reach(at, start, extrapolate=False, **rough)
        return found

    def finished(found: Solution) -> Solution | None:
        """A rough solution to the accuracy asked for; None where that is not on the branch."""
        found = reach(problem, found, **own)
        return found if on_branch(found) else None

    found = led(problem, "without extrapolation")
    if on_branch(found) and (solution := finished(found)):
        return solution, "found without extrapolation"
    tried: list[str] = []
    # A start that leads nowhere has far to go, as where a ridge is weak; one that leads to another branch is too noisy.
    for easier in sorted(_easier(problem, options), key=lambda way: found.losses is None and not way.is_strength):
        for count in easier.counts:
            try:
                there = easier.at(options.factor**count)
            except InputError:
                break
            far = easier.words(options.factor**count)
            found = led(there, f"at {far}")
            if found.status is Status.TIME_LIMIT:
                return None, ""
            tried.append(far)
            if on_branch(found):
                with step(f"the start {name} left its branch: following it back from {far}"):
                    found, ends = _back(easier, found, float(count), options)
                if ends is None:
                    if solution := finished(found):
                        say(f"start {name}: its branch was followed back from {far}")
                        return solution, f"followed back from {far}"
                    ends = (options.factor**options.least, 1.0)
                low, high = (easier.words(factor) for factor in ends)
                return (
                    None,
                    f"followed from {far}, where the start leads to it, its branch is lost between {low} and {high}",
                )
    return None, f"the start does not lead to its branch at {', '.join(tried)} either" if tried else ""


@dataclass(frozen=True)
class _Easier:
    """A problem made easier in one parameter: `at(1)` is as it was given; `counts` of steps are tried in turn."""

    problem: Problem
    name: str
    value: Any
    harder: bool
    counts: tuple[int, ...] = (1,)
    is_strength: bool = False

    def _moved(self, factor: float) -> Any:
        moved = np.asarray(self.value, float) * (1 / factor if self.harder else factor)
        return moved if moved.shape else float(moved)

    def at(self, factor: float) -> Problem:
        """The problem with the parameter made easier by a factor.

        Raises:
            InputError: the parameter cannot take this value.
        """
        return self.problem if factor == 1 else self.problem.with_(**{self.name: self._moved(factor)})

    def words(self, factor: float) -> str:
        """The parameter there."""
        shown = np.unique(np.round(np.ravel(self._moved(factor)), 12))
        return f"{self.name.rstrip('_')} = {', '.join(f'{value:.4g}' for value in shown)}"


def _easier(problem: Problem, options: RetryOptions) -> Iterator[_Easier]:
    """Yield more samples, then less of every Gaussian noise, then a stronger regulariser."""
    yield _Easier(problem, "alpha", problem.alpha, False, options.samples)
    strengths = problem.regulariser.strength_names
    loud = {n: v for n, v in problem.parameters.items() if n not in strengths and np.all(np.asarray(v) > 0)}
    for name, value in loud.items():
        try:
            quieter = _Easier(problem, name, value, True).at(2.0).noise_scale
        except InputError:
            continue
        if np.any(quieter < problem.noise_scale):
            yield _Easier(problem, name, value, True)
    for name in strengths:
        if np.all(np.asarray(problem.parameters[name]) > 0):
            yield _Easier(problem, name, problem.parameters[name], False, options.strengths, True)


def _back(
    easier: _Easier, first: Solution, count: float, options: RetryOptions
) -> tuple[Solution, tuple[float, float] | None]:
    """Follow a branch from an easier problem back to the one given, by the rule of the solution that it begins with.

    Args:
        count: steps of `factor` that lie between.

    Returns:
        the last state, as a solution to start from, and the factors between which the branch is lost, None where it was
        followed all the way.
    """
    known, here, stride, missed = {count: first}, count, options.first, -1.0
    for _ in range(options.back):
        # Halfway to where it was missed, or, that close, there: a step from farther off may have been too long.
        there = max(here - stride, 0.0)
        if missed >= 0 and there < (middle := (here + missed) / 2):
            there = middle if here - missed > options.least else missed
        guess = extrapolated(known, there)
        at = replace(easier.at(options.factor**there), search=first.problem.search)
        task = Task(at, first.start, first.symmetry or NO_SYMMETRY, options.accuracy)
        point = newton_at(task, first.rule, replace(guess.fixed_point, drift=0.0))
        if point.status.success and branch_of(point.overlaps, first.errors) == first.branch:
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


def extrapolated(known: Mapping[float, Solution], value: float) -> Solution:
    """Return the nearest known solution with overlaps on the parabola through the three nearest, or on the line through
    two, where that keeps the domain.

    Sizes of the blocks are extrapolated in their logarithms, the rest relative to them: V and the norm of the weights
    follow power laws where a ridge becomes weak.
    """
    nearest, *others = sorted(known, key=lambda v: abs(v - value))[:3]
    solution = known[nearest]
    if not others:
        return solution
    ahead = (value - nearest) / (nearest - others[0])
    here, other, *third = (_sizes_and_shape(known[each]) for each in (nearest, *others))
    line = ahead * (here - other)
    moved = here + line
    if third:
        slope = (here - other) / (nearest - others[0])
        before = (other - third[0]) / (others[0] - others[1])
        bend = (value - nearest) * (value - others[0]) * (slope - before) / (nearest - others[1])
        # Where it bends much these are not close enough, or off by as much as they are apart.
        if np.max(np.abs(bend)) < _BENT * np.max(np.abs(line)):
            moved = moved + bend
    sizes, shape = np.split(moved, 2)
    # Far from the known ones a line says little; and an overlap that vanishes at the branch's end keeps its sign.
    if abs(ahead) > 4 or np.any(np.split(here, 2)[1] * shape < 0):
        return solution
    left = Overlaps.unpack(np.exp(sizes) * shape, solution.overlaps.sizes)
    return replace(solution, overlaps=replace(left, q=left.q + project_on_teacher(solution.problem, left.theta)))


def _sizes_and_shape(solution: Solution) -> np.ndarray:
    """Return for every packed component the logarithm of the size of its block, then the component relative to it, with
    what the teacher does not explain of q in its place."""
    overlaps = solution.overlaps
    left = replace(overlaps, q=without_teacher(solution.problem, overlaps)).pack()
    scales, held = overlaps.block_scales, places_of(overlaps.sizes)["q"]
    scales[held] = np.abs(left[held]).max()
    return np.concatenate([np.log(scales), left / scales])
