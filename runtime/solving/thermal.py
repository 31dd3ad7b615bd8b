"""Averages over the Gibbs measure exp(-b risk) of the weights, from a solution at a finite temperature.

Its order parameters are those of the zero-temperature limit (docs/theory.md (4.1), (12.6)): V is b times the variance
of the weights, so that a weight's overlap with itself is q + V / b; q is that of two weights, or of the posterior mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from ..base import presenting
from ..base.errors import DomainError
from ..integration import Rule
from ..integration.estimates import replicate_error_bar
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point import observables
from ..saddle_point.state_map import SaddlePointMap


@dataclass(frozen=True)
class GibbsAverages:
    """Averages over the Gibbs measure exp(-b risk) of the weights, per d, with error bars; b: inverse temperature.

    Attributes:
        free_entropy: (1/d) E log Z, with Z the integral of exp(-b risk) over the weights.
        free_energy: -free_entropy / b, which is the training loss for b -> infinity.
        energy: mean risk (data and regulariser) of weights drawn from the measure, -d free_entropy / db.
        entropy: entropy of the density of the measure, free_entropy + b energy.
        self_overlap: overlap r = q + V / b of drawn weights with themselves.
        test_error: test error of drawn weights (the solution has that of the posterior mean).
    """

    inverse_temperature: float
    free_entropy: float
    free_entropy_error: float
    energy: float
    energy_error: float
    data: float
    penalty: float
    self_overlap: np.ndarray
    self_overlap_error: np.ndarray
    test_error: float
    test_error_error: float

    @property
    def free_energy(self) -> float:
        """Return the free energy per d, docs/theory.md (12.7): minus the free entropy over the inverse temperature."""
        return -self.free_entropy / self.inverse_temperature

    @property
    def free_energy_error(self) -> float:
        """Return the error bar of the free energy."""
        return self.free_entropy_error / self.inverse_temperature

    @property
    def entropy(self) -> float:
        """Return the entropy of the Gibbs measure per d, docs/theory.md (12.8); it may be negative."""
        return self.free_entropy + self.inverse_temperature * self.energy

    @property
    def entropy_error(self) -> float:
        """Return the error bar of the entropy, from the error bars of free entropy and energy."""
        return self.free_entropy_error + self.inverse_temperature * self.energy_error

    def to_json(self) -> dict[str, Any]:
        """Return the averages as a JSON object, the entry `thermal` of a solution (docs/design.md section 5)."""
        return presenting.to_json(self)


def gibbs_averages(
    problem: Problem,
    overlaps: Overlaps,
    overlap_errors: Overlaps,
    losses: observables.Losses,
    free_energy_error: float,
    rule: Rule,
    shifts: np.ndarray,
) -> GibbsAverages:
    """Return energy, entropy and test error of the Gibbs measure at a solution, with error bars.

    Args:
        problem: the problem at a finite temperature.
        overlaps: overlaps of the solution.
        overlap_errors: error bars of the overlaps.
        losses: losses of the solution.
        free_energy_error: error bar of the free energy.
        rule: quadrature rule by which the problem was solved.
        shifts: changes of the packed overlaps by other quadrature rules, or by each replicate, in rows.
    """
    b, u = problem.inverse_temperature, overlaps.pack()
    assert b is not None
    drawn = overlaps_of_drawn_weights(overlaps, b)
    test, own, metric_rule_with_node_budget = observables.test_error(problem, drawn)
    test_error = np.nan
    if metric_rule_with_node_budget:

        def test_error_of_drawn_weights(there: np.ndarray) -> float:
            try:
                moved = overlaps_of_drawn_weights(Overlaps.unpack(there, overlaps.sizes), b)
                return observables.average_metric_by_quadrature(problem, moved, metric_rule_with_node_budget)
            except DomainError:
                return np.nan

        test_error = own + _error_bar_of_values(
            [test_error_of_drawn_weights(u + shift) for shift in shifts], rule, partial(test_error_of_drawn_weights, u)
        )

    def _energy_at_overlaps(there: np.ndarray, by: Rule = rule) -> float:
        state = Overlaps.unpack(there, overlaps.sizes)
        try:
            averages = by.averages(problem, state)
            hats = SaddlePointMap(problem, by).conjugates_at_overlaps(state, averages.means)
        except DomainError:
            return np.nan
        parts = observables.free_entropy_and_losses(problem, state, hats, averages)
        return parts.data + parts.penalty

    # The energy is not stationary in the overlaps: their errors enter in first order.
    energies = [_energy_at_overlaps(u + shift, by) for shift, by in zip(shifts, cycle(rule.replicates), strict=False)]
    energy_error = _error_bar_of_values(energies, rule, partial(_energy_at_overlaps, u))
    if not rule.replicated:
        energy_error += abs(_energy_at_overlaps(u, rule.finer_rule()) - _energy_at_overlaps(u))
    return GibbsAverages(
        inverse_temperature=b,
        free_entropy=b * losses.free_entropy,
        free_entropy_error=b * free_energy_error,
        energy=losses.data + losses.penalty,
        energy_error=energy_error,
        data=losses.data,
        penalty=losses.penalty,
        self_overlap=drawn.q,
        self_overlap_error=overlap_errors.q + overlap_errors.V / b,
        test_error=test,
        test_error_error=test_error,
    )


def _error_bar_of_values(values: Sequence[float], rule: Rule, here: Callable[[], float]) -> float:
    """Return the error bar of a number, given its values by each replicate or by other quadrature rules."""
    if not values:
        return np.nan
    if rule.replicated:
        return float(replicate_error_bar(np.array(values)))
    own = here()
    return float(max(abs(value - own) for value in values))


def overlaps_of_drawn_weights(overlaps: Overlaps, inverse_temperature: float) -> Overlaps:
    """Return the overlaps of weights drawn from the Gibbs measure: q is replaced by the self-overlap q + V / b.

    Args:
        overlaps: overlaps of a solution.
        inverse_temperature: inverse temperature b.
    """
    return replace(overlaps, q=overlaps.q + overlaps.V / inverse_temperature)
