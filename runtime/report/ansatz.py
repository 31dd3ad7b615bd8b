"""Warnings of results whose replica symmetry is unstable beyond the digits shown: the verdict comes first, numbers are
headed, and a step of breaking is offered with its cost."""

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
    """Return the stability of a solution where it has been worked out already."""
    return solution.__dict__.get("stability")


def is_unstable_beyond_digits(solution: Solution) -> bool:
    """Return whether a solution is known to be unstable, with more of its overlap lost than its error bars hold."""
    stability = known_stability(solution)
    if stability is None or stability.replica_symmetry != UNSTABLE:
        return False
    lost = stability.self_overlap_loss + stability.self_overlap_loss_error
    return not lost <= solution.relative_error


def offer(solution: Solution, along: bool = False) -> str:
    """Return what would say how far off replica symmetric numbers are, and what it costs, as a sentence.

    Args:
        along: a branch along a parameter rather than the solution alone.
    """
    from ..extensions.breaking.rules import expected_seconds
    from ..extensions.breaking.solve import checked_steps

    try:
        checked_steps(1, solution.problem, most=1, along=along)
    except InputError as error:
        return f"how far off they are is not known here ({error}); `saddleforge simulate` minimises at finite d"
    seconds = expected_seconds(solution)
    point = " a point" if along else ""
    return f"one step of breaking (`--rsb 1`, rsb=1) says how far off they are, in {duration(seconds)}{point}"


def offer_elsewhere(solution: Solution) -> str:
    """Return `offer` for a command that has no steps of breaking itself."""
    return offer(solution).replace("`--rsb 1`, rsb=1", "`solve --rsb 1` next to it")


def duration(seconds: float) -> str:
    """Return a time in words, to an order of magnitude that it is known to.

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
    """Return the verdict, and whose numbers follow, of a solution that is unstable beyond its digits; else nothing.

    Args:
        elsewhere: for a command that has no steps of breaking itself.
    """
    stability = known_stability(solution)
    if stability is None or not is_unstable_beyond_digits(solution):
        return []
    sentence = offer_elsewhere(solution) if elsewhere else offer(solution)
    return [f"  {stability.verdict}", f"  the numbers below are {HEADING}; {sentence}"]


def with_verdict(lines: Sequence[str], solution: Solution) -> list[str]:
    """Return lines about a solution with its verdict: first where they cannot be trusted, else last."""
    stability = solution.stability
    if warning := warning_lines(solution, elsewhere=True):
        return [*warning, *lines]
    return [*lines, *([f"  {stability.verdict}"] if stability else [])]


def verdict_cell(solution: Solution) -> str:
    """Return the verdict in a word or two for a table; a dash where there is none."""
    stability = known_stability(solution)
    if stability is None:
        return "-"
    words = f"RS {stability.replica_symmetry}"
    if stability.replica_symmetry == UNSTABLE and math.isfinite(stability.self_overlap_loss):
        words += f", {100 * stability.self_overlap_loss:.2g} % lost"
    return words + ("" if stability.longitudinal == STABLE else f"; longitudinally {stability.longitudinal}")


def is_judged_other_than_stable(solutions: Iterable[Solution]) -> bool:
    """Return whether any of them is known to be marginal or unstable."""
    found = [known_stability(solution) for solution in solutions]
    return any(s is not None and (s.replica_symmetry, s.longitudinal) != (STABLE, STABLE) for s in found)


def warning_along(solutions: Sequence[Solution]) -> list[str]:
    """Return a line about points of a branch that are unstable beyond their digits, where there are any."""
    beyond = [solution for solution in solutions if is_unstable_beyond_digits(solution)]
    if not beyond:
        return []
    where = "all" if len(beyond) == len(solutions) else f"{len(beyond)} of {len(solutions)}"
    return [
        f"  {HEADING} numbers; replica symmetry is unstable beyond their digits at {where} points: "
        f"{offer(beyond[0], along=True)}"
    ]
