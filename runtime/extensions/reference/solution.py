"""A solution to any accuracy."""

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
    """Overlaps as arrays of mpf, with half widths that two rules agree within, or that are proved.

    Attributes:
        overlaps, errors: q, V (C, 1, 1), m (C, 1), theta (C, 1, 1), and their half widths.
        observables: training_loss, free_entropy, replicon and, where there is one, test_error -> (value, half width).
        near: the solution in double precision that it was found from.
        evidence: digits carried, rules, residual.

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
        """Whether it is on the branch asked for, to the accuracy asked for, and proved where a proof was asked for."""
        return self.status.success

    @property
    def advice(self) -> str:
        """What happened and what to try, in a sentence; empty where it converged."""
        return self.near.advice if self.status is self.near.status else self.status.advice

    @property
    def start(self) -> str:
        """Of the solution in double precision that it was found from."""
        return self.near.start

    def table(self, names: Mapping[str, str] | None = None) -> str:
        """For a terminal; `names` are symbols of the reader's own."""
        return presenting.table(self, names)


def verified_solution(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    """The solution near one in double precision, by two rules at rising precision.

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
    observables = {name: found.half_width(partial(State.observable, name=name), so) for name, so in stationary.items()}
    return PreciseSolution(
        problem=problem,
        overlaps=Overlaps.unpack(found.root.z, problem.sizes),
        errors=Overlaps.unpack(np.array(found.errors, object), problem.sizes),
        observables=observables,
        status=found.status,
        near=near,
        evidence=found.evidence | problem.held_at,
    )
