"""All solutions that the starts of a model converge to, ranked by training loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..base.errors import TimeLimitError
from ..base.options import AlgorithmOptions
from ..base.progress import print_message, progress_bar
from ..problems.problem import Problem, require_problem
from ..saddle_point.starts import find_start_name, name_branch, named_starts, overlaps_of_start
from .deflation import find_solutions_by_deflation, solutions_agree_up_to_symmetry
from .retrying import has_solve_left_branch_of_start, retry_lost_start
from .saddle_escape import descend_from_saddle
from .solution import Solution, has_lost_overlap_of_start, solutions_agree_within_errors
from .solve import solve_without_branch_check


@dataclass(frozen=True)
class SolutionSearchOptions(AlgorithmOptions):
    """Options of the search for further solutions on both sides of a saddle.

    Attributes:
        accuracy: error bar of these solutions, unless a coarser one is requested; finer distinguishes closer solutions.
        effort: largest number of sizes that are tried in each family of quadrature rules.
    """

    accuracy: float = 1e-3
    effort: int = 2


def solutions(
    problem: Problem,
    *,
    starts: Iterable[str] | None = None,
    deflate: int = 0,
    on_failure: Callable[[Solution], None] | None = None,
    **options: Any,
) -> list[Solution]:
    """Return all solutions found from the named starts, ranked by training loss: the first is the best.

    Solutions that agree within their errors are reported once, under a start that has their overlaps if there is one.
    Starts that fail are named on stderr and left out. From saddles the minima on both sides are sought; starts that
    left their branch are tried again as by `solve`, unless a solution with the overlaps of the start is known.

    Args:
        problem: the problem to solve.
        starts: names of starts; all those of the model by default.
        deflate: number of attempts to find further solutions, saddles included, by deflation of the known ones.
        on_failure: called with the last iterate of every start that fails.
        **options: options, as for `solve`.

    Example:
        >>> best = sf.solutions(sf.problem("ridge_regression", alpha=2))[0]
        >>> best.rank
        1
    """
    require_problem(problem)
    ranked: list[Solution] = []
    lost: dict[str, Solution] = {}
    names = [find_start_name(problem, name) for name in starts or named_starts(problem)]
    with progress_bar("solving", len(names)) as task:
        for name in names:
            task.set_description(f"solving from the start {name}")
            solution = solve_without_branch_check(problem, name, **options)
            task.count_finished_step()
            if has_solve_left_branch_of_start(problem, name, solution):
                lost[name] = solution
            if solution.losses is None:
                print_message(f"start {name}: {solution.status.words}; {solution.advice}")
                if on_failure:
                    on_failure(solution)
                continue
            twin = next((i for i, other in enumerate(ranked) if solutions_agree_within_errors(solution, other)), None)
            if twin is None:
                ranked.append(solution)
            elif _is_start_of_branch(solution, name) and not _is_start_of_branch(ranked[twin], ranked[twin].start):
                ranked[twin] = solution
    with suppress(TimeLimitError):
        ranked += _descend_from_saddles(problem, names, ranked, **options)
        ranked += _retry_lost_starts(problem, lost, ranked, **options)
    if deflate and ranked:
        known = {name: options[name] for name in ("accuracy", "seed") if name in options}
        ranked += find_solutions_by_deflation(problem, ranked, deflate, **known)
    ranked.sort(key=lambda s: s.training_loss)
    return [replace(s, rank=i) for i, s in enumerate(ranked, start=1)]


def _descend_from_saddles(
    problem: Problem, starts: Sequence[str], known: Sequence[Solution], **options: Any
) -> list[Solution]:
    """Return new solutions found on both sides of those known solutions that are saddles.

    The start recorded with a new solution is one with its overlaps (theta, m), or else that of the saddle.
    """
    search = SolutionSearchOptions.current()
    rough = {**options, "accuracy": max(options.get("accuracy", 1e-4), search.accuracy), "effort": search.effort}
    found: list[Solution] = []
    for saddle in known:
        for solution in descend_from_saddle(partial(solve_without_branch_check, **rough), saddle):
            if solution.success and not any(
                solutions_agree_up_to_symmetry(solution, other) for other in (*known, *found)
            ):
                finished = solve_without_branch_check(problem, solution, **options)
                own = (name for name in starts if _is_start_of_branch(finished, name))
                found.append(replace(finished, start=next(own, saddle.start)))
    return [solution for solution in found if solution.losses is not None]


def _retry_lost_starts(
    problem: Problem, lost: Mapping[str, Solution], known: Sequence[Solution], **options: Any
) -> list[Solution]:
    """Retry starts that left their branch and return the new solutions; `lost` has the old ones by start name."""
    own = {name: options.pop(name) for name in ("accuracy", "effort") if name in options}
    found: list[Solution] = []
    for name, solution in lost.items():
        if all(has_lost_overlap_of_start(problem, name, other) for other in (*known, *found)):
            again, words = retry_lost_start(
                partial(solve_without_branch_check, **options), problem, name, solution, **own
            )
            if again is not None:
                found.append(again)
            elif words:
                print_message(f"start {name}: {words}")
    return found


def _is_start_of_branch(solution: Solution, start: str) -> bool:
    """Return whether a named start has the overlaps (theta, m) of the branch that a solution is on."""
    return name_branch(solution.problem, overlaps_of_start(solution.problem, start)) == solution.branch
