"""Checks of where an iteration ended: what diverges, what has grown on the way, and minima that the search misses."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from ..base.errors import DomainError
from ..channel.search import missed
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem

_DIVERGED = 20.0  # times the size of its start that a trained number is from where solving failed
_GROWN = 2.0  # times the size of its start that a trained number without a ridge has moved
_LOOSE = 1e6  # times the inputs' variance that V is where weights are free to move
_FAR = 1e8  # times the inputs' variance that q is where solving failed


def divergence(problem: Problem, overlaps: Overlaps) -> str:
    """Return which trained number diverges, or that the weights do, which nothing bounds; else empty."""
    for number, value in zip(problem.trained, overlaps.phi.tolist(), strict=True):
        if not abs(value) < _DIVERGED * (1 + abs(float(number["start"]))):
            ridge = f"its ridge {float(number['ridge']):g} does not bound it; give it a larger one"
            remedy = ridge if number["ridge"] else "it has no ridge; give it one"
            return (
                f"the trained number {number['name']} diverges ({value:.3g}): the risk falls without end along it "
                f"and {remedy}, sf.trained({float(number['start']):g}, ridge)"
            )
    longest = float(np.max(np.trace(overlaps.q, axis1=1, axis2=2)))
    if not longest < _FAR * float(np.max(problem.law.rho)) and not problem.regulariser.keeps_norms:
        return (
            f"the weights diverge (q {longest:.3g}): neither data nor penalty bounds them, as where samples are "
            "separable and the loss falls without end; try a stronger regulariser or a larger alpha"
        )
    return ""


def growth(problem: Problem, overlaps: Overlaps) -> str:
    """Return what has grown on the way to where solving failed and may have no bound, in words; else empty."""
    if reason := divergence(problem, overlaps):
        return reason
    for number, value in zip(problem.trained, overlaps.phi.tolist(), strict=True):
        start = float(number["start"])
        if not number["ridge"] and abs(value - start) > _GROWN * (1 + abs(start)):
            return (
                f"the trained number {number['name']} went from {start:g} to {value:.3g} and has no ridge: where the "
                "risk falls along it without end, as if weights of half the size with twice the number do the same, "
                f"give it one, sf.trained({start:g}, ridge)"
            )
    widest = float(np.max(np.trace(overlaps.V, axis1=1, axis2=2)))
    if not widest < _LOOSE * float(np.max(problem.law.rho)):
        return (
            f"V grew to {widest:.3g}: weights move without a change of the loss, as where many fit every sample; take "
            "a larger alpha, a stronger regulariser, or --inverse-temperature, at which all of them count"
        )
    return ""


def missed_minima(problem: Problem, overlaps: Overlaps) -> str:
    """Return how often the search for proximal points is seen to miss the global minimum; empty where it is not."""
    with suppress(DomainError):
        if share := missed(problem, overlaps):
            return (
                f"the search for proximal points misses the lowest minimum of the loss at {share:.1%} of random points"
            )
    return ""
