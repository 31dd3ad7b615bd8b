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


def known_stability(solution: Solution) -> Stability | None:
    """Return the stability of a solution if it has already been computed, else None."""
    return solution.__dict__.get("stability")


def is_unstable_beyond_digits(solution: Solution) -> bool:
    """Return whether replica symmetry is unstable and the overlap drop exceeds the error bars of the overlaps."""
    stability = known_stability(solution)
    if stability is None or stability.replica_symmetry != UNSTABLE:
        return False
    lost = stability.self_overlap_loss + stability.self_overlap_loss_error
    return not lost <= solution.relative_error


def suggest_symmetry_breaking(solution: Solution, along: bool = False) -> str:
    """Return the sentence that suggests a step of symmetry breaking, and its cost.

    The step measures by how much replica symmetric numbers are off.

    Args:
        solution: the replica symmetric solution.
        along: whether it is for a branch along a parameter.
    """
    from ..extensions.breaking.rules import expected_seconds
    from ..extensions.breaking.solve import check_steps

    try:
        check_steps(1, solution.problem, most=1, along=along)
    except InputError as error:
        return f"how far off they are is not known here ({error}); `saddleforge simulate` minimises at finite d"
    seconds = expected_seconds(solution)
    point = " a point" if along else ""
    return f"one step of breaking (`--rsb 1`, rsb=1) says how far off they are, in {format_duration(seconds)}{point}"


def suggest_solve_with_breaking(solution: Solution) -> str:
    """Return `suggest_symmetry_breaking` for a command without steps of symmetry breaking."""
    return suggest_symmetry_breaking(solution).replace("`--rsb 1`, rsb=1", "`solve --rsb 1` next to it")


def format_duration(seconds: float) -> str:
    """Return a time in words, to one digit.

    >>> duration(0.4), duration(23), duration(340)
    ('about a second', 'about 20 s', 'about 6 min')
    """
    if seconds < 1.5:
        return "about a second"
    if seconds < 100:
        digit = 10.0 ** math.floor(math.log10(seconds))
        return f"about {round(seconds / digit) * digit:.0f} s"
    return f"about {seconds / 60:.0f} min"


def warning_lines(solution: Solution, elsewhere: bool = False) -> list[str]:
    """Return the verdict and a note that numbers are replica symmetric, if unstable beyond the digits; else nothing.

    Args:
        solution: the solution.
        elsewhere: whether the command has no steps of symmetry breaking.
    """
    stability = known_stability(solution)
    if stability is None or not is_unstable_beyond_digits(solution):
        return []
    sentence = suggest_solve_with_breaking(solution) if elsewhere else suggest_symmetry_breaking(solution)
    return [f"  {stability.verdict}", f"  the numbers below are {HEADING}; {sentence}"]


def add_verdict(lines: Sequence[str], solution: Solution) -> list[str]:
    """Return lines about a solution with its verdict: first if the numbers cannot be trusted, else last.

    Args:
        lines: the lines.
        solution: the solution.
    """
    stability = solution.stability
    if warning := warning_lines(solution, elsewhere=True):
        return [*warning, *lines]
    return [*lines, *([f"  {stability.verdict}"] if stability else [])]


def verdict_cell(solution: Solution) -> str:
    """Return the verdict as the short text of a table cell; a dash if there is none."""
    stability = known_stability(solution)
    if stability is None:
        return "-"
    words = f"RS {stability.replica_symmetry}"
    if stability.replica_symmetry == UNSTABLE and math.isfinite(stability.self_overlap_loss):
        words += f", {100 * stability.self_overlap_loss:.2g} % lost"
    return words + ("" if stability.longitudinal == STABLE else f"; longitudinally {stability.longitudinal}")


def has_nonstable_verdict(solutions: Iterable[Solution]) -> bool:
    """Return whether any solution is known to be marginal or unstable."""
    found = [known_stability(solution) for solution in solutions]
    return any(s is not None and (s.replica_symmetry, s.longitudinal) != (STABLE, STABLE) for s in found)


def branch_warning_lines(solutions: Sequence[Solution]) -> list[str]:
    """Return a line about the points of a branch that are unstable beyond their digits; empty if there are none."""
    beyond = [solution for solution in solutions if is_unstable_beyond_digits(solution)]
    if not beyond:
        return []
    where = "all" if len(beyond) == len(solutions) else f"{len(beyond)} of {len(solutions)}"
    return [
        f"  {HEADING} numbers; replica symmetry is unstable beyond their digits at {where} points: "
        f"{suggest_symmetry_breaking(beyond[0], along=True)}"
    ]
