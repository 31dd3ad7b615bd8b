"""How long a step of breaking takes, from how long the averages of the replica symmetric solution take."""

from __future__ import annotations

from time import perf_counter

from ..integration import pace
from ..integration.pieces import Pieces
from ..integration.tilted_grid import Grids
from ..integration.tilted_samples import Samples
from ..solving.solution import Solution
from .rules import ladder

# Replica symmetric averages that the search for one step takes as long as, about: a tilted average is one over omega at
# some hundred places of omega_0, and states ask for a few dozen of these.
_AVERAGES = {Pieces: 2000.0, Grids: 700.0, Samples: 1000.0}


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
    return _AVERAGES[family] * seconds
