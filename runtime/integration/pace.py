"""How long an integration rule takes for one evaluation, from what smaller ones of its family took."""

from __future__ import annotations

from collections import defaultdict
from math import comb

from ..problems.problem import Problem
from . import GaussHermite, Lines, ProxSpace, Rule, Sobol, SparseGrid

_KEPT = 8  # of the last evaluations of a family
_seconds: dict[tuple[str, str, bool], list[float]] = defaultdict(list)  # a node


def nodes(problem: Problem, rule: Rule) -> float:
    """How many nodes a rule visits, up to a factor that its family has in common; 0 where that is not known."""
    known = problem.tokens * problem.teacher_rank + len(problem.noise_scale)
    if isinstance(rule, ProxSpace):
        return float(rule.points**problem.solver.channel.FIELDS * rule.teacher ** min(known, 2))
    if isinstance(rule, GaussHermite | Lines):
        return float(rule.points) ** problem.dimension
    if isinstance(rule, Sobol):
        return float(rule.scramblings * 2**rule.log2)
    if isinstance(rule, SparseGrid):
        return float(comb(rule.level + problem.dimension, problem.dimension) * 2 ** min(rule.level, problem.dimension))
    return 0.0


def measured(problem: Problem, rule: Rule, seconds: float) -> None:
    """Take in how long one evaluation took."""
    visited = nodes(problem, rule)
    if visited:
        kept = _seconds[_family(problem, rule)]
        kept.append(seconds / visited)
        del kept[:-_KEPT]


def expected(problem: Problem, rule: Rule) -> float:
    """Seconds for one evaluation; 0 where nothing is known. The first of a family may have waited for a compiler."""
    kept = _seconds.get(_family(problem, rule), [])
    return min(kept) * nodes(problem, rule) if len(kept) > 1 else 0.0


def words(problem: Problem, rule: Rule) -> str:
    """A rule with its size, and how long an evaluation will take where that is felt."""
    points = rule.describe()["points"]
    size = " x ".join(str(p) for p in points) + " nodes" if isinstance(points, list) else f"{points} points"
    seconds = expected(problem, rule)
    return f"{rule.name}, {size}" + (f", about {seconds:.0f} s an evaluation" if seconds >= 1 else "")


def _family(problem: Problem, rule: Rule) -> tuple[str, str, bool]:
    return str(problem.solver.folder), rule.name, problem.inverse_temperature is None


__all__ = ["expected", "measured", "nodes", "words"]
