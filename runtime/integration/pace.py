"""How long an integration rule takes for one evaluation, from what smaller ones of its family took."""

from __future__ import annotations

from collections import defaultdict

from ..problems.problem import Problem
from .rule import Rule

_KEPT = 8  # of the last evaluations of a family
_seconds: dict[tuple[str, str, bool], list[float]] = defaultdict(list)  # a node


def measured(problem: Problem, rule: Rule, seconds: float) -> None:
    """Take in how long one evaluation took."""
    kept = _seconds[_family(problem, rule)]
    kept.append(seconds / rule.nodes(problem))
    del kept[:-_KEPT]


def expected(problem: Problem, rule: Rule) -> float:
    """Seconds for one evaluation; 0 where nothing is known. The first of a family may have waited for a compiler."""
    kept = _seconds.get(_family(problem, rule), [])
    return min(kept) * rule.nodes(problem) if len(kept) > 1 else 0.0


def words(problem: Problem, rule: Rule) -> str:
    """A rule with its size, and how long an evaluation will take where that is felt."""
    seconds = expected(problem, rule)
    return f"{rule.name}, {rule.size}" + (f", about {seconds:.0f} s an evaluation" if seconds >= 1 else "")


def _family(problem: Problem, rule: Rule) -> tuple[str, str, bool]:
    return str(problem.solver.folder), rule.name, problem.inverse_temperature is None
