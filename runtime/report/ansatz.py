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
    """Return whether replica symmetry is unstable and the overlap drop exceeds the error bars of the overlaps."""
    stability = stability_if_computed(solution)
    if stability is None or stability.replica_symmetry != UNSTABLE:
        return False
    lost = stability.self_overlap_loss + stability.self_overlap_loss_error
    return not lost <= solution.relative_error


def suggest_symmetry_breaking(solution: Solution, along: bool = False) -> str:
    """Return a sentence that suggests one step of replica symmetry breaking, with the time that it takes.

    The step measures by how much replica symmetric numbers are off.

    Args:
        solution: the replica symmetric solution.
        along: whether the sentence is about a branch along a parameter.
    """
    from ..extensions.breaking.rules import expected_breaking_seconds
    from ..extensions.breaking.solve import check_breaking_steps

    try:
        check_breaking_steps(1, solution.problem, most=1, along=along)
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
    """Return a time in words, to one digit.

    >>> format_seconds_in_words(0.4), format_seconds_in_words(23), format_seconds_in_words(340)
    ('about a second', 'about 20 s', 'about 6 min')
    """
    if seconds < 1.5:
        return "about a second"
    if seconds < 100:
        digit = 10.0 ** math.floor(math.log10(seconds))
        return f"about {round(seconds / digit) * digit:.0f} s"
    return f"about {seconds / 60:.0f} min"


def instability_warning_lines(solution: Solution, elsewhere: bool = False) -> list[str]:
    """Return the verdict and a warning, if replica symmetry is unstable by more than the error bars; else nothing.

    Args:
        solution: the solution.
        elsewhere: whether the command has no steps of symmetry breaking.
    """
    stability = stability_if_computed(solution)
    if stability is None or not is_unstable_beyond_error_bars(solution):
        return []
    sentence = suggest_solve_with_breaking(solution) if elsewhere else suggest_symmetry_breaking(solution)
    return [f"  {stability.verdict}", f"  the numbers below are {HEADING}; {sentence}"]


def add_stability_verdict(lines: Sequence[str], solution: Solution) -> list[str]:
    """Return lines about a solution with its stability verdict added: first if it is a warning, else last.

    Args:
        lines: the lines.
        solution: the solution.
    """
    stability = solution.stability
    if warning := instability_warning_lines(solution, elsewhere=True):
        return [*warning, *lines]
    return [*lines, *([f"  {stability.verdict}"] if stability else [])]


def stability_verdict_cell(solution: Solution) -> str:
    """Return the stability verdict as the short text of a table cell; a dash if there is none."""
    stability = stability_if_computed(solution)
    if stability is None:
        return "-"
    words = f"RS {stability.replica_symmetry}"
    if stability.replica_symmetry == UNSTABLE and math.isfinite(stability.self_overlap_loss):
        words += f", {100 * stability.self_overlap_loss:.2g} % lost"
    return words + ("" if stability.longitudinal == STABLE else f"; longitudinally {stability.longitudinal}")


def has_unstable_or_marginal_solution(solutions: Iterable[Solution]) -> bool:
    """Return whether any solution is known to be marginal or unstable."""
    found = [stability_if_computed(solution) for solution in solutions]
    return any(s is not None and (s.replica_symmetry, s.longitudinal) != (STABLE, STABLE) for s in found)


def branch_instability_warning_lines(solutions: Sequence[Solution]) -> list[str]:
    """Return a warning about points of a branch unstable by more than their error bars; empty if there are none."""
    beyond = [solution for solution in solutions if is_unstable_beyond_error_bars(solution)]
    if not beyond:
        return []
    where = "all" if len(beyond) == len(solutions) else f"{len(beyond)} of {len(solutions)}"
    return [
        f"  {HEADING} numbers; replica symmetry is unstable beyond their digits at {where} points: "
        f"{suggest_symmetry_breaking(beyond[0], along=True)}"
    ]
