"""Solutions of the saddle point beyond double precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...base import presenting
from ...base.presenting import PresentableResult
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from .improve import refine_solution
from .system import SaddlePointState, SaddlePointSystem

ROUGH = 1e-4  # accuracy of the solution in double precision to start from


@dataclass(frozen=True, repr=False)
class PreciseSolution(PresentableResult):
    """A solution of the saddle point at high precision, verified by two quadrature rules or proved.

    Attributes:
        overlaps: overlaps q, V, m and theta as arrays of multiprecision numbers (mpf).
        errors: error bars of the overlaps.
        observables: value and error bar of training_loss, free_entropy, replicon and, if there is one, test_error.
        status: status of the solution, such as converged.
        near: the double-precision solution that was refined.
        evidence: numbers that support the accuracy: working precision, quadrature rules, residual.
        error_kind: "verified" or "proved".

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
        """Whether the solution lies on the branch asked for, is accurate, and proved if a proof was asked for."""
        return self.status.success

    @property
    def advice(self) -> str:
        """The reason why there is no accurate solution and what to try, in one sentence; empty if there is one."""
        return self.near.advice if self.status is self.near.status else self.status.advice

    @property
    def start(self) -> str:
        """The name of the start that converged to the double-precision solution."""
        return self.near.start

    def table(self, names: Mapping[str, str] | None = None) -> str:
        """Return the solution as a text table; `names` maps the model's symbols to those to be printed."""
        return presenting.table(self, names)


def verified_solution(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    """Return a solution refined from double precision to a given accuracy, verified by two quadrature rules.

    Args:
        problem: problem to solve.
        near: solution in double precision.
        accuracy: error bar asked for, relative to the size of each overlap.

    Raises:
        InputError: the Moreau objective (loss plus quadratic proximity) has competing minima.
        NotConvergedError: Newton's method left the domain of the overlaps, or the rules do not agree.
    """
    scales = near.overlaps.block_scales
    system = SaddlePointSystem(problem, scales)
    found = refine_solution(
        system, near.overlaps.pack(), accuracy, lambda errors: max(errors / scales), f"{accuracy:g}: solving"
    )
    stationary = {"training_loss": True, "free_entropy": True, "replicon": False}
    if "metric" in problem.solver.multiprecision_functions.DRIVES:
        stationary["test_error"] = False
    observables = {
        name: found.evaluate_quantity_with_error(partial(SaddlePointState.evaluate_observable, name=name), so)
        for name, so in stationary.items()
    }
    return PreciseSolution(
        problem=problem,
        overlaps=Overlaps.unpack(found.root.z, problem.sizes),
        errors=Overlaps.unpack(np.array(found.error_bars, object), problem.sizes),
        observables=observables,
        status=found.status,
        near=near,
        evidence=found.accuracy_evidence | problem.nonzero_vanishing_parameters,
    )
