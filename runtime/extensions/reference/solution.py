"""Solutions to any accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...base import presenting
from ...base.presenting import Result
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from .improve import solve_to_accuracy
from .system import State, System

ROUGH = 1e-4  # accuracy of the solution in double precision to start from


@dataclass(frozen=True, repr=False)
class PreciseSolution(Result):
    """A solution with overlaps as arrays of mpf; error bars are from two quadrature rules, or proved.

    Attributes:
        overlaps, errors: q, V (C, 1, 1), m (C, 1), theta (C, 1, 1), and their error bars.
        observables: (value, error bar) of training_loss, free_entropy, replicon and, if the model has one, test_error.
        near: the solution in double precision that it was found from.
        evidence: working precision, rules, residual.

    Example:
        >>> found = sf.solve_precisely(sf.problem("logistic_regression", alpha=2), accuracy=1e-20)
        >>> bool(found.errors.theta[0, 0, 0] < 1e-20), found.error_kind
        (True, 'verified')
    """

    problem: Problem
    overlaps: Overlaps
    errors: Overlaps
    observables: dict[str, tuple[Any, Any]]
    status: Status
    near: Solution
    evidence: dict[str, Any]
    error_kind: str = "verified"

    @property
    def success(self) -> bool:
        """Return whether the solution is on the right branch, accurate, and proved if a proof was asked for."""
        return self.status.success

    @property
    def advice(self) -> str:
        """The reason of a failure and a remedy, in a sentence; empty if it converged."""
        return self.near.advice if self.status is self.near.status else self.status.advice

    @property
    def start(self) -> str:
        """The start of the solution in double precision that it was found from."""
        return self.near.start

    def table(self, names: Mapping[str, str] | None = None) -> str:
        """Return a table for a terminal; `names` are the reader's symbols."""
        return presenting.table(self, names)


def verified_solution(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    """Return the solution near one in double precision, by two rules at increasing precision.

    Args:
        problem: the problem.
        near: solution in double precision.
        accuracy: error bar asked for, relative to the blocks.

    Raises:
        InputError: minima of the Moreau objective compete.
        NotConvergedError: the iteration left the domain, or the rules do not agree.
    """
    scales = near.overlaps.block_scales
    system = System(problem, scales)
    found = solve_to_accuracy(
        system, near.overlaps.pack(), accuracy, lambda errors: max(errors / scales), f"{accuracy:g}: solving"
    )
    stationary = {"training_loss": True, "free_entropy": True, "replicon": False}
    if "metric" in problem.solver.reference.DRIVES:
        stationary["test_error"] = False
    observables = {
        name: found.value_and_error(partial(State.observable, name=name), so) for name, so in stationary.items()
    }
    return PreciseSolution(
        problem=problem,
        overlaps=Overlaps.unpack(found.root.z, problem.sizes),
        errors=Overlaps.unpack(np.array(found.errors, object), problem.sizes),
        observables=observables,
        status=found.status,
        near=near,
        evidence=found.evidence | problem.limits_not_taken,
    )
