"""Warnings of results whose replica symmetry is unstable by more than the digits shown.

The verdict comes first, numbers are marked as replica symmetric, and a step of symmetry breaking is suggested with its
cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..base.errors import InputError
from ..stability.assess import STABLE, UNSTABLE, Stability

if TYPE_CHECKING:
    from ..solving.solution import Solution

HEADING = "replica symmetric"


def stability_if_computed(solution: Solution) -> Stability | None:
    """Return the stability verdict of a solution if it has already been computed, else None."""
    return solution.__dict__.get("stability")


def is_unstable_beyond_error_bars(solution: Solution) -> bool:
    """Return whether replica symmetry is unstable, and the self-overlap loss exceeds the error bars of the overlaps."""
    stability = stability_if_computed(solution)
    if stability is None or stability.replica_symmetry != UNSTABLE:
        return False
    lost = stability.self_overlap_loss + stability.self_overlap_loss_error
    return not lost <= solution.relative_error


def suggest_symmetry_breaking(solution: Solution, along: bool = False) -> str:
    """Return a sentence that suggests one step of replica symmetry breaking, with the expected duration.

    Such a step shows how wrong the replica symmetric numbers are.

    Args:
        solution: the replica symmetric solution.
        along: whether the sentence is about a branch (many solutions) and not about a single solution.
    """
    from ..extensions.breaking.rules import expected_breaking_seconds
    from ..extensions.breaking.solve import check_number_of_breaking_steps

    try:
        check_number_of_breaking_steps(1, solution.problem, most=1, along=along)
    except InputError as error:
        return f"how far off they are cannot be computed ({error}); `saddleforge simulate` minimises at finite d"
    seconds = expected_breaking_seconds(solution)
    point = " per point" if along else ""
    duration = format_seconds_in_words(seconds)
    return f"one step of breaking (`--rsb 1`, rsb=1) says how far off they are, in {duration}{point}"


def suggest_solve_with_breaking(solution: Solution) -> str:
    """Return a sentence that suggests `solve --rsb 1`, for a command that has no replica symmetry breaking."""
    return suggest_symmetry_breaking(solution).replace("`--rsb 1`, rsb=1", "`solve --rsb 1` next to it")


def format_seconds_in_words(seconds: float) -> str:
    """Return a duration in words, to one significant digit.

    >>> format_seconds_in_words(0.4), format_seconds_in_words(23), format_seconds_in_words(340)
    ('about a second', 'about 20 s', 'about 6 min')
    """
    if seconds < 1.5:
        return "about a second"
    if seconds < 100:
        digit = 10.0 ** math.floor(math.log10(seconds))
        return f"about {round(seconds / digit) * digit:.0f} s"
    return f"about {seconds / 60:.0f} min"


def warning_about_instability(solution: Solution, elsewhere: bool = False) -> list[str]:
    """Return lines of warning if replica symmetry is unstable beyond the error bars; else an empty list.

    Args:
        solution: solution of the saddle-point equations.
        elsewhere: whether to refer to `solve --rsb 1`, since the running command has no option for symmetry breaking.
    """
    stability = stability_if_computed(solution)
    if stability is None or not is_unstable_beyond_error_bars(solution):
        return []
    sentence = suggest_solve_with_breaking(solution) if elsewhere else suggest_symmetry_breaking(solution)
    return [f"  {stability.verdict}", f"  the numbers below are {HEADING}; {sentence}"]


def add_stability_verdict(lines: Sequence[str], solution: Solution) -> list[str]:
    """Add the verdict on replica symmetry of a solution to lines of text: first if it is a warning, else last.

    Args:
        lines: lines of text that describe a result.
        solution: solution of the saddle-point equations.
    """
    stability = solution.stability
    if warning := warning_about_instability(solution, elsewhere=True):
        return [*warning, *lines]
    return [*lines, *([f"  {stability.verdict}"] if stability else [])]


def stability_verdict_cell(solution: Solution) -> str:
    """Return the stability verdict of a solution in short, for a cell of a table; "-" if none was computed."""
    stability = stability_if_computed(solution)
    if stability is None:
        return "-"
    words = f"RS {stability.replica_symmetry}"
    if stability.replica_symmetry == UNSTABLE and math.isfinite(stability.self_overlap_loss):
        words += f", {100 * stability.self_overlap_loss:.2g} % lost"
    return words + ("" if stability.longitudinal == STABLE else f"; longitudinally {stability.longitudinal}")


def has_unstable_or_marginal_solution(solutions: Iterable[Solution]) -> bool:
    """Return whether any of the solutions has the verdict marginal or unstable."""
    found = [stability_if_computed(solution) for solution in solutions]
    return any(s is not None and (s.replica_symmetry, s.longitudinal) != (STABLE, STABLE) for s in found)


def warning_about_unstable_branch(solutions: Sequence[Solution]) -> list[str]:
    """Return a line of warning if solutions of a branch are unstable beyond their error bars; else an empty list."""
    beyond = [solution for solution in solutions if is_unstable_beyond_error_bars(solution)]
    if not beyond:
        return []
    where = "all" if len(beyond) == len(solutions) else f"{len(beyond)} of {len(solutions)}"
    return [
        f"  {HEADING} numbers; replica symmetry is unstable beyond their digits at {where} points: "
        f"{suggest_symmetry_breaking(beyond[0], along=True)}"
    ]
