"""Solutions and thresholds with error bars proved in ball arithmetic."""

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
from ..reference.channel import check_high_precision_supported
from ..reference.improve import PrecisionOptions, check_accuracy_in_range, kinks_and_cancelled_digits_of_loss
from ..reference.solution import PreciseSolution
from ..reference.thresholds import (
    PreciseThreshold,
    check_high_precision_threshold,
    make_condition_residual,
    unknowns_and_scales_at_threshold,
)
from .duals import ball_from_number, dual_from_number
from .krawczyk import BallSaddlePointSystem, KrawczykProof, prove_solution_exists
from .tails import arb_to_exact_mpf

_ROUNDING_FACTOR = 1.1  # of error bars, so that rounded decimals contain the true value as well
_STATUS = {True: Status.CONVERGED, False: Status.ACCURACY_NOT_REACHED}


def proved_solution(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    """Return a solution with proved existence, uniqueness and error bars, close to one known in double precision.

    Args:
        problem: problem to solve.
        near: solution in double precision.
        accuracy: required error bar, relative to the size of each overlap.

    Raises:
        InputError: the model is not supported.
        NotProvedError: ball arithmetic gives no proof.
    """
    check_accuracy_in_range(accuracy)
    check_high_precision_supported(problem)
    scales = near.overlaps.block_scales
    metric = ["test_error"] if "metric" in problem.solver.multiprecision_functions.DRIVES else []
    wanted = ["training_loss", "free_entropy", "replicon", *metric]
    with progress_bar(f"{accuracy:g}: proving", 1 + len(wanted)) as task:
        proof, digits = _prove_to_accuracy(
            BallSaddlePointSystem(problem, scales),
            near.overlaps.pack(),
            accuracy,
            lambda radius: max(float(width) / scale for width, scale in zip(radius, scales, strict=True)),
        )
        task.count_finished_step()
        observables, missing = {}, {}
        for name in wanted:
            try:
                observables[name] = _midpoint_and_error_bar(
                    proof.enclose_quantity(methodcaller("evaluate_observable", name))
                )
            except NotProvedError as error:
                missing[name] = str(error)
            task.count_finished_step()
    pairs = np.array([_midpoint_and_error_bar(found) for found in proof.solution_balls], dtype=object)
    overlaps, errors = (Overlaps.unpack(part, near.overlaps.sizes) for part in pairs.T)
    return PreciseSolution(
        problem=problem,
        overlaps=overlaps,
        errors=errors,
        observables=observables,
        status=_STATUS[proof.reached],
        near=near,
        evidence={
            **_proof_evidence(proof, digits),
            **problem.nonzero_vanishing_parameters,
            "observables_not_proved": missing,
        },
        error_kind="proved",
    )


def proved_threshold(
    rough: Threshold, condition: str, accuracy: float, problem: Problem | None = None
) -> PreciseThreshold:
    """Return a threshold with proved error bars, close to a threshold known in double precision.

    Args:
        rough: threshold in double precision.
        condition: equation that holds at the threshold.
        accuracy: required error bar.
        problem: problem to prove the threshold for; that of the rough threshold by default.

    Raises:
        InputError: the model is not supported.
        NotProvedError: ball arithmetic gives no proof.
    """
    problem = problem or rough.problem
    check_high_precision_threshold(problem, condition, accuracy)
    z, scales = unknowns_and_scales_at_threshold(rough)
    system = BallSaddlePointSystem(
        problem,
        scales,
        rough.parameter,
        make_condition_residual(condition, problem, lambda text: dual_from_number(ball_from_number(text))),
    )
    with progress_bar(f"{rough.kind}: proving", 1):
        proof, digits = _prove_to_accuracy(system, z, accuracy, lambda radius: float(radius[-1]))
    value, error = _midpoint_and_error_bar(proof.solution_balls[-1])
    evidence = {**_proof_evidence(proof, digits), **problem.nonzero_vanishing_parameters}
    return PreciseThreshold.from_double_precision(
        rough, problem, value, error, "proved", _STATUS[proof.reached], evidence
    )


def _prove_to_accuracy(
    system: BallSaddlePointSystem, z: np.ndarray, accuracy: float, select_error: Callable[[np.ndarray], float]
) -> tuple[KrawczykProof, int]:
    """Return the proof that a solution exists to a required accuracy, and the working precision in digits."""
    asked = int(np.ceil(-np.log10(accuracy))) + 1
    digits = asked + PrecisionOptions.current().guard_digits + kinks_and_cancelled_digits_of_loss(system.problem)[1]
    return prove_solution_exists(
        system, list(map(float, z)), digits, asked, select_error, accuracy / _ROUNDING_FACTOR
    ), digits


def _midpoint_and_error_bar(found: arb) -> tuple[Any, Any]:
    """Return midpoint and error bar of a ball as mpmath numbers.

    The error bar is wide enough for the interval to contain the ball when both are printed as rounded decimals.
    """
    return arb_to_exact_mpf(found.mid()), arb_to_exact_mpf(
        arb(found.rad() * ball_from_number(_ROUNDING_FACTOR)).abs_upper()
    )


def _proof_evidence(proof: KrawczykProof, digits: int) -> dict[str, Any]:
    return {"digits": digits, "rules": [], "residuals": [proof.residual], "proof": proof.proof_evidence}
