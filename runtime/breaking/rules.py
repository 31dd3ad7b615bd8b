"""Which rule averages over the channel of a problem: panels of a line for one student field, grids for two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..errors import InputError
from ..integration.estimates import difference_factors
from ..integration.pieces import PANELS, Pieces
from ..integration.tilted import TiltedAverages, suits, tilted_averages
from ..integration.tilted_grid import LADDER, Grids
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..solving.solution import Solution
from .state import Broken

TiltedRule = Pieces | Grids
# Of panels and of grids: residuals on the way and at the end (a kink that passes a place leaves a step), first y.
_ROUGH, _FINE = (1e-8, 1e-5), (1e-11, 1e-7)
_FIRST = (20.0, 5.0)  # in units of V / q; grids become large above
_SOFT = 1e-3  # of the Parisi parameter, at which all copies weigh the same but for what is accounted for
_SCATTER = 0.5  # slowest rate believed of grids: errors scatter with the places of cusps once they are small
_SHARE = 1e-2  # of the accuracy that a residual on grids may take


def ladder(problem: Problem) -> Sequence[TiltedRule]:
    """From coarse to fine.

    Raises:
        InputError: the loss reads more fields, or bends in two.
    """
    if suits(problem):
        return PANELS
    if Grids.suits(problem):
        return LADDER
    channel = integrated(problem).solver.channel
    raise InputError(
        "one-step breaking is solved where the loss reads one student field, or two and has no corners; that of "
        f"{problem.solver.name} reads {channel.FIELDS}"
    )


def tolerances(rule: TiltedRule, accuracy: float = 1e-4) -> tuple[float, float]:
    """Residuals asked on the way and at the end."""
    if isinstance(rule, Grids):
        return _ROUGH[1], max(_FINE[1], _SHARE * accuracy)
    return _ROUGH[0], _FINE[0]


def first_rate(rule: TiltedRule) -> float:
    """y at which states are looked for first, in units of V / q."""
    return _FIRST[1] if isinstance(rule, Grids) else _FIRST[0]


def averages(
    problem: Problem, state: Broken, rates: np.ndarray, rule: TiltedRule, slopes: bool = False
) -> TiltedAverages:
    """As of `tilted_averages`."""
    if isinstance(rule, Grids):
        return rule.averages(problem, state.between, state.distances, rates, slopes)
    return tilted_averages(problem, state.between, state.distances, rates, rule, slopes)


def shift_counts(rule: TiltedRule, shifts: Sequence[np.ndarray]) -> tuple[float, float]:
    """What the shifts to a finer and a coarser rule count for in half widths."""
    return difference_factors(*shifts, slowest=_SCATTER) if isinstance(rule, Grids) else difference_factors(*shifts)


def framed(rule: TiltedRule, state: Broken, rates: np.ndarray) -> TiltedRule:
    """The rule for looking around a state: grids that stay where they are."""
    return rule.framed(state.between, state.distances, rates) if isinstance(rule, Grids) else rule


def of_rows(rule: TiltedRule) -> Pieces:
    """The rule for rows of W under a penalty that is no ridge."""
    return rule if isinstance(rule, Pieces) else PANELS[-1]


def told_beside(rule: object) -> bool:
    """Whether energies are told beside another one: on grids their errors are nearly the same."""
    return isinstance(rule, Grids)


def offsets(symmetric: Solution, rules: Sequence[TiltedRule], state: Broken, y: float) -> list[float]:
    """How far above the training loss of replica symmetry what rules make of it lies: the energy of a solution with
    blocks is off by nearly the same.

    Of copies that weigh the same f_1 is -E_z M, and q_0 + Delta the replica symmetric q: its average is E M.
    """
    problem, overlaps = symmetric.problem, symmetric.overlaps
    exact = float(symmetric.rule.averages(problem, overlaps).moreau.mean())
    copies = replace(state, between=replace(overlaps, q=overlaps.q - state.distance))
    found = [averages(problem, copies, np.array([_SOFT * y]), rule) for rule in rules]
    # f_1 = -E M + y Var M / 2 and <M> = E M - y Var M, to first order.
    return [problem.alpha * (-2 * float(one.free[0]) - one.moreau - exact) for one in found]
