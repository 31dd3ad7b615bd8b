"""Solutions and thresholds with proved error bars, in the classes of `reference`."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import numpy as np
from flint import arb

from ...base.errors import NotProvedError
from ...base.progress import progress_bar
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from ...thresholds.threshold import Threshold
from ..reference.channel import check_supported
from ..reference.improve import PrecisionOptions, check_accuracy, find_kinks_and_lost_digits
from ..reference.solution import PreciseSolution
from ..reference.thresholds import PreciseThreshold, check_threshold, condition_residual, unknowns_at_threshold
from .duals import as_dual, ball
from .krawczyk import BallSystem, Proof, prove
from .tails import exact_mpf

_ROUNDING_FACTOR = 1.1  # of error bars, so that rounded decimals contain the true value as well
_STATUS = {True: Status.CONVERGED, False: Status.ACCURACY_NOT_REACHED}


def proved_solution(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    """Return the solution near one in double precision, with proved existence, uniqueness and error bars.

    Args:
        problem: the problem.
        near: solution in double precision.
        accuracy: error bar asked for, relative to the blocks.

    Raises:
        InputError: the model is not supported.
        NotProvedError: ball arithmetic gives no proof.
    """
    check_accuracy(accuracy)
    check_supported(problem)
    scales = near.overlaps.block_scales
    metric = ["test_error"] if "metric" in problem.solver.reference.DRIVES else []
    wanted = ["training_loss", "free_entropy", "replicon", *metric]
    with progress_bar(f"{accuracy:g}: proving", 1 + len(wanted)) as task:
        proof, digits = _prove(
            BallSystem(problem, scales),
            near.overlaps.pack(),
            accuracy,
            lambda radius: max(float(width) / scale for width, scale in zip(radius, scales, strict=True)),
        )
        task.advance()
        observables, missing = {}, {}
        for name in wanted:
            try:
                observables[name] = _value_and_error(proof.evaluate(methodcaller("observable", name)))
            except NotProvedError as error:
                missing[name] = str(error)
            task.advance()
    pairs = np.array([_value_and_error(found) for found in proof.balls], dtype=object)
    overlaps, errors = (Overlaps.unpack(part, near.overlaps.sizes) for part in pairs.T)
    return PreciseSolution(
        problem=problem,
        overlaps=overlaps,
        errors=errors,
        observables=observables,
        status=_STATUS[proof.reached],
        near=near,
        evidence={**_evidence(proof, digits), **problem.limits_not_taken, "observables_not_proved": missing},
        error_kind="proved",
    )


def proved_threshold(
    rough: Threshold, condition: str, accuracy: float, problem: Problem | None = None
) -> PreciseThreshold:
    """Return the threshold near one in double precision, with proved error bars.

    Args:
        rough: threshold in double precision.
        condition: its condition.
        accuracy: error bar asked for.
        problem: a problem near that of the rough threshold, instead of it.

    Raises:
        InputError: the model is not supported.
        NotProvedError: ball arithmetic gives no proof.
    """
    problem = problem or rough.problem
    check_threshold(problem, condition, accuracy)
    z, scales = unknowns_at_threshold(rough)
    system = BallSystem(
        problem, scales, rough.parameter, condition_residual(condition, problem, lambda text: as_dual(ball(text)))
    )
    with progress_bar(f"{rough.kind}: proving", 1):
        proof, digits = _prove(system, z, accuracy, lambda radius: float(radius[-1]))
    value, error = _value_and_error(proof.balls[-1])
    evidence = {**_evidence(proof, digits), **problem.limits_not_taken}
    return PreciseThreshold.from_rough(rough, problem, value, error, "proved", _STATUS[proof.reached], evidence)


def _prove(
    system: BallSystem, z: np.ndarray, accuracy: float, select_error: Callable[[np.ndarray], float]
) -> tuple[Proof, int]:
    """Return the proof, and its working precision in digits."""
    asked = int(np.ceil(-np.log10(accuracy))) + 1
    digits = asked + PrecisionOptions.current().guard_digits + find_kinks_and_lost_digits(system.problem)[1]
    return prove(system, list(map(float, z)), digits, asked, select_error, accuracy / _ROUNDING_FACTOR), digits


def _value_and_error(found: arb) -> tuple[Any, Any]:
    """Return midpoint and error bar as mpf; their decimals contain the ball."""
    return exact_mpf(found.mid()), exact_mpf(arb(found.rad() * ball(_ROUNDING_FACTOR)).abs_upper())


def _evidence(proof: Proof, digits: int) -> dict[str, Any]:
    return {"digits": digits, "rules": [], "residuals": [proof.residual], "proof": proof.evidence}
