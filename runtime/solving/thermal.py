"""What a solution at a finite temperature says of the Gibbs measure exp(-b risk) over the weights.

Its order parameters are those of the zero-temperature limit (docs/theory.md (4.1), (12.6)): V is b times the variance
of the weights, so that a weight's overlap with itself is q + V / b; q is that of two weights, or of the posterior mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from .. import presenting
from ..errors import DomainError
from ..integration import Rule
from ..integration.estimates import two_standard_errors
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point import observables
from ..saddle_point.state_map import StateMap


class Solved(Protocol):
    """What is asked of a solution: its overlaps, losses, and how far other rules would move the packed overlaps."""

    @property
    def problem(self) -> Problem:
        """Solved at a finite temperature, or not."""
        ...

    @property
    def overlaps(self) -> Overlaps:
        """Of the mean of the measure; q also of two weights drawn from it."""
        ...

    @property
    def half_widths(self) -> Overlaps:
        """Of the overlaps."""
        ...

    @property
    def rule(self) -> Rule:
        """That integrated."""
        ...

    @property
    def losses(self) -> observables.Losses | None:
        """None without a solution."""
        ...

    @property
    def training_loss_error(self) -> float:
        """Half width of the free energy."""
        ...

    @property
    def shifts(self) -> np.ndarray | None:
        """How far other rules, or each replicate, would move the packed overlaps, (k, n)."""
        ...


@dataclass(frozen=True)
class Gibbs:
    """Per d, with half widths; b is the inverse temperature.

    Attributes:
        free_entropy: (1/d) E log Z, Z the integral of exp(-b risk) over the weights.
        free_energy: -free_entropy / b, the training loss for b -> infinity.
        energy: the risk (data and regulariser) of weights drawn from the measure, -d free_entropy / db.
        entropy: of the measure's density, free_entropy + b energy.
        self_overlap: r = q + V / b of drawn weights with themselves, (C, s, s).
        test_error: of drawn weights; that of the posterior mean is the solution's.
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
        """-Phi_b / b, docs/theory.md (12.7), per d."""
        return -self.free_entropy / self.inverse_temperature

    @property
    def free_energy_error(self) -> float:
        """Half width: that of the free entropy over b."""
        return self.free_entropy_error / self.inverse_temperature

    @property
    def entropy(self) -> float:
        """Phi_b + b energy, docs/theory.md (12.8), per d; of a density, so that it may be negative."""
        return self.free_entropy + self.inverse_temperature * self.energy

    @property
    def entropy_error(self) -> float:
        """Half width: that of the free entropy and b times that of the energy, added."""
        return self.free_entropy_error + self.inverse_temperature * self.energy_error

    def to_json(self) -> dict[str, Any]:
        """The object `thermal` of the command line's contract (docs/design.md section 5), arrays as they are."""
        return presenting.to_json(self)


def gibbs(solution: Solved) -> Gibbs | None:
    """Of a solution at a finite temperature; None where it is none, or where there is no solution."""
    problem, losses = solution.problem, solution.losses
    if problem.inverse_temperature is None or losses is None or solution.shifts is None:
        return None
    b, widths = problem.inverse_temperature, solution.half_widths
    drawn = of_drawn_weights(solution.overlaps, b)
    test, own, rule = observables.test_error(problem, drawn)
    test_error = own + _spread(solution, lambda u: _test_error(solution, u, rule)) if rule else np.nan
    return Gibbs(
        inverse_temperature=b,
        free_entropy=b * losses.free_entropy,
        free_entropy_error=b * solution.training_loss_error,
        energy=losses.data + losses.penalty,
        energy_error=_energy_error(solution),
        data=losses.data,
        penalty=losses.penalty,
        self_overlap=drawn.q,
        self_overlap_error=widths.q + widths.V / b,
        test_error=test,
        test_error_error=test_error,
    )


def of_drawn_weights(overlaps: Overlaps, inverse_temperature: float) -> Overlaps:
    """With the overlap of a weight drawn from the measure with itself in place of that of two of them."""
    return replace(overlaps, q=overlaps.q + overlaps.V / inverse_temperature)


def _energy(solution: Solved, rule: Rule, u: np.ndarray) -> float:
    """At packed overlaps u that need not solve the saddle point; nan outside their domain."""
    problem, overlaps = solution.problem, Overlaps.unpack(u, solution.overlaps.sizes)
    try:
        averages = rule.averages(problem, overlaps)
        hats = StateMap(problem, rule).conjugates(overlaps, averages.means)
    except DomainError:
        return np.nan
    losses = observables.losses(problem, overlaps, hats, averages)
    return losses.data + losses.penalty


def _energy_error(solution: Solved) -> float:
    """Half width of the energy, to first order in the errors of the overlaps: it is not stationary in them."""
    rule, u = solution.rule, solution.overlaps.pack()
    shifts = np.zeros((0, len(u))) if solution.shifts is None else solution.shifts
    if rule.replicated:
        found = [_energy(solution, rule.replicate(n), u + shift) for n, shift in enumerate(shifts)]
        return float(two_standard_errors(np.array(found)))
    here = _energy(solution, rule, u)
    moved = max((abs(_energy(solution, rule, u + shift) - here) for shift in shifts), default=np.nan)
    return moved + abs(_energy(solution, rule.finer(), u) - here)


def _test_error(solution: Solved, u: np.ndarray, rule: observables.MetricRule) -> float:
    problem = solution.problem
    assert problem.inverse_temperature is not None
    drawn = of_drawn_weights(Overlaps.unpack(u, solution.overlaps.sizes), problem.inverse_temperature)
    try:
        return observables.average_metric(problem, drawn, rule)
    except DomainError:
        return np.nan


def _spread(solution: Solved, function: Callable[[np.ndarray], float]) -> float:
    """Half width of a function of the packed overlaps by how far other rules, or replicates, would move them."""
    u, shifts = solution.overlaps.pack(), solution.shifts
    if shifts is None or not len(shifts):
        return np.nan
    if solution.rule.replicated:
        return float(two_standard_errors(np.array([function(u + shift) for shift in shifts])))
    here = function(u)
    return float(max(abs(function(u + shift) - here) for shift in shifts))
