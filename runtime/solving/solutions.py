"""All solutions that the starts of a model lead to, ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ..problems.problem import Problem
from ..progress import bar, say
from ..saddle_point.starts import branch_of, start_overlaps
from .deflation import deflated
from .solution import Solution, agree_within_errors
from .solve import reach


def solutions(
    problem: Problem,
    *,
    starts: Iterable[str] | None = None,
    deflate: int = 0,
    on_failure: Callable[[Solution], None] | None = None,
    **options: Any,
) -> list[Solution]:
    """All solutions found from the named starts (default: all of the model), ranked by training loss, [0] the best.

    Args:
        deflate: attempts to find others, with the known ones divided out (`deflation`): saddles, too.
        on_failure: called with the last iterate of every start that fails.
        options: as for `solve`.

    Solutions that agree within their errors are reported once, from a start that holds their overlaps where one of
    them does. Starts that fail are named on stderr and left out.

    Example:
        >>> best = sf.solutions(sf.problem("ridge_regression", alpha=2))[0]
        >>> best.rank
        1
    """
    ranked: list[Solution] = []
    names = list(starts or problem.solver.model.STARTS)
    with bar("solving", len(names)) as task:
        for name in names:
            task.describe(f"solving from the start {name}")
            solution = reach(problem, name, **options)
            task.advance()
            if solution.losses is None:
                say(f"start {name}: {solution.status.words}; {solution.advice}")
                if on_failure:
                    on_failure(solution)
                continue
            twin = next((i for i, other in enumerate(ranked) if agree_within_errors(solution, other)), None)
            if twin is None:
                ranked.append(solution)
            elif _is_own(solution) and not _is_own(ranked[twin]):
                ranked[twin] = solution
    if deflate and ranked:
        known = {name: options[name] for name in ("accuracy", "seed") if name in options}
        ranked += deflated(problem, ranked, deflate, **known)
    ranked.sort(key=lambda s: s.training_loss)
    return [replace(s, rank=i) for i, s in enumerate(ranked, start=1)]


def _is_own(solution: Solution) -> bool:
    """Whether the start of a solution, by name, holds the overlaps that the solution does."""
    problem = solution.problem
    return branch_of(start_overlaps(problem, solution.start)) == solution.branch
