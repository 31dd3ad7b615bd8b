"""Checks of the end of an iteration: divergence, growth since the start, and minima that the search misses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..channel.search import fraction_of_missed_minima
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem


@dataclass(frozen=True)
class DivergenceOptions(AlgorithmOptions):
    """Thresholds above which divergence is reported as the cause of a failed iteration.

    Attributes:
        trained_divergence: size of a trained number, relative to 1 + the size of its start.
        trained_growth: change of a trained number without a ridge, relative to 1 + the size of its start.
        response_growth: size of V, relative to the variance of the inputs.
        weight_divergence: size of q, relative to the variance of the inputs.
    """

    trained_divergence: float = 20.0
    trained_growth: float = 2.0
    response_growth: float = 1e6
    weight_divergence: float = 1e8


def describe_divergence(problem: Problem, overlaps: Overlaps) -> str:
    """Return a message that says which trained number, or that the weights, diverge; empty if nothing diverges.

    Args:
        problem: the problem that was to be solved.
        overlaps: overlaps of the last iterate.
    """
    options = DivergenceOptions.current()
    for number, value in zip(problem.trained, overlaps.phi.tolist(), strict=True):
        if not abs(value) < options.trained_divergence * (1 + abs(float(number["start"]))):
            ridge = f"its ridge {float(number['ridge']):g} does not bound it; give it a larger one"
            remedy = ridge if number["ridge"] else "it has no ridge; give it one"
            return (
                f"the trained number {number['name']} diverges ({value:.3g}): the risk falls without end along it "
                f"and {remedy}, sf.trained({float(number['start']):g}, ridge)"
            )
    longest = float(np.max(np.trace(overlaps.q, axis1=1, axis2=2)))
    if not longest < options.weight_divergence * float(np.max(problem.law.rho)) and not problem.regulariser.keeps_norms:
        return (
            f"the weights diverge (q {longest:.3g}): neither data nor penalty bounds them, as where samples are "
            "separable and the loss falls without end; try a stronger regulariser or a larger alpha"
        )
    return ""


def describe_unbounded_growth(problem: Problem, overlaps: Overlaps) -> str:
    """Return a message that says what grew, perhaps without bound, in a failed solve; empty if nothing grew.

    Args:
        problem: the problem that was to be solved.
        overlaps: overlaps of the last iterate.
    """
    options = DivergenceOptions.current()
    if reason := describe_divergence(problem, overlaps):
        return reason
    for number, value in zip(problem.trained, overlaps.phi.tolist(), strict=True):
        start = float(number["start"])
        if not number["ridge"] and abs(value - start) > options.trained_growth * (1 + abs(start)):
            return (
                f"the trained number {number['name']} went from {start:g} to {value:.3g} and has no ridge: where the "
                "risk falls along it without end, as if weights of half the size with twice the number do the same, "
                f"give it one, sf.trained({start:g}, ridge)"
            )
    widest = float(np.max(np.trace(overlaps.V, axis1=1, axis2=2)))
    if not widest < options.response_growth * float(np.max(problem.law.rho)):
        return (
            f"V grew to {widest:.3g}: weights move without a change of the loss, as where many fit every sample; take "
            "a larger alpha, a stronger regulariser, or --inverse-temperature, at which all of them count"
        )
    return ""


def describe_missed_minima(problem: Problem, overlaps: Overlaps) -> str:
    """Return a message that says how often the proximal operator misses the global minimum; empty if never.

    Args:
        problem: the problem that was solved.
        overlaps: overlaps at which random points are drawn: those of the solution or of the last iterate.
    """
    with suppress(DomainError):
        if fraction := fraction_of_missed_minima(problem, overlaps):
            share = f"{fraction:.1%} of random points"
            return f"the search for proximal points misses the global minimum of the loss at {share}"
    return ""
