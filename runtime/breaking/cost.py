"""How long a step of breaking takes, from how long the averages of the replica symmetric solution take."""

from __future__ import annotations

from time import perf_counter

from ..integration import pace
from ..integration.pieces import Pieces
from ..integration.tilted_grid import Grids
from ..integration.tilted_samples import Samples
from ..solving.solution import Solution
from .rules import ladder

# What the search for one step takes: replica symmetric averages, for panels whose tilted averages are such at some
# hundred places of omega_0; units of `Rule.cost`, for grids and samples, whose sizes do not follow the other rule.
_AVERAGES = 4000.0
_EFFORT = {Grids: 5e9, Samples: 2e10}


def expected_seconds(solution: Solution) -> float:
    """Return how many seconds one step of breaking from a solution takes, to a factor of three or so.

    Raises:
        InputError: it is not solved for this loss.
    """
    problem, rule = solution.problem, solution.rule
    family = type(ladder(problem)[0])
    seconds = pace.expected(problem, rule)
    if not seconds:
        begun = perf_counter()
        rule.averages(problem, solution.overlaps)
        seconds = perf_counter() - begun
    return seconds * (_AVERAGES if family is Pieces else _EFFORT[family] / rule.cost(problem))
