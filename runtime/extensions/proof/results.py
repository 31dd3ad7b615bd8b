"""Solutions and thresholds with proved half widths, in the classes of `reference`."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Any

import numpy as np
from flint import arb

from ...base.errors import NotProvedError
from ...base.progress import bar
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point.iteration import Status
from ...solving.solution import Solution
from ...thresholds.threshold import Threshold
from ..reference.channel import check_supported
from ..reference.improve import check_accuracy, kinks_and_lost_digits
from ..reference.solution import PreciseSolution
from ..reference.thresholds import PreciseThreshold, check_threshold, difference_of_sides, unknowns_at
from .duals import ball, lift
from .krawczyk import BallSystem, Proof, prove
from .tails import exact_mpf

_SPARE_DIGITS = 12  # carried beyond those asked for
_PRINTED = 1.1  # so that the decimals, which are rounded, hold the truth as well
_STATUS = {True: Status.CONVERGED, False: Status.ACCURACY_NOT_REACHED}


def proved_solution(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    """The solution near one in double precision, with its existence, its uniqueness and its half widths proved.

    Raises:
        InputError: the model is out of reach.
        NotProvedError: balls could not settle it.
    """
    check_accuracy(accuracy)
    check_supported(problem)
    scales = near.overlaps.block_scales
    metric = ["test_error"] if "metric" in problem.solver.reference.DRIVES else []
    wanted = ["training_loss", "free_entropy", "replicon", *metric]
    with bar(f"{accuracy:g}: proving", 1 + len(wanted)) as task:
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
                observables[name] = _with_half_width(proof.evaluated(methodcaller("observable", name)))
            except NotProvedError as error:
                missing[name] = str(error)
            task.advance()
    pairs = np.array([_with_half_width(found) for found in proof.balls], dtype=object)
    overlaps, errors = (Overlaps.unpack(part, near.overlaps.sizes) for part in pairs.T)
    return PreciseSolution(
        problem=problem,
        overlaps=overlaps,
        errors=errors,
        observables=observables,
        status=_STATUS[proof.reached],
        near=near,
        evidence={**_evidence(proof, digits), **problem.held_at, "observables_not_proved": missing},
        error_kind="proved",
    )


def proved_threshold(
    rough: Threshold, condition: str, accuracy: float, problem: Problem | None = None
) -> PreciseThreshold:
    """The threshold near one in double precision: overlaps and parameter at which equations and condition hold.

    Args:
        problem: in place of that of the rough threshold, one nearby.

    Raises:
        InputError: the model is out of reach.
        NotProvedError: balls could not settle it.
    """
    problem = problem or rough.problem
    check_threshold(problem, condition, accuracy)
    z, scales = unknowns_at(rough)
    system = BallSystem(
        problem, scales, rough.parameter, difference_of_sides(condition, problem, lambda text: lift(ball(text)))
    )
    with bar(f"{rough.kind}: proving", 1):
        proof, digits = _prove(system, z, accuracy, lambda radius: float(radius[-1]))
    value, error = _with_half_width(proof.balls[-1])
    evidence = {**_evidence(proof, digits), **problem.held_at}
    return PreciseThreshold.near(rough, problem, value, error, "proved", _STATUS[proof.reached], evidence)


def _prove(
    system: BallSystem, z: np.ndarray, accuracy: float, judged: Callable[[np.ndarray], float]
) -> tuple[Proof, int]:
    """The proof, and the digits carried."""
    asked = int(np.ceil(-np.log10(accuracy))) + 1
    digits = asked + _SPARE_DIGITS + kinks_and_lost_digits(system.problem)[1]
    return prove(system, list(map(float, z)), digits, asked, judged, accuracy / _PRINTED), digits


def _with_half_width(found: arb) -> tuple[Any, Any]:
    """Middle and half width as mpf, wide enough for their decimals to hold the ball."""
    return exact_mpf(found.mid()), exact_mpf(arb(found.rad() * ball(_PRINTED)).abs_upper())


def _evidence(proof: Proof, digits: int) -> dict[str, Any]:
    return {"digits": digits, "rules": [], "residuals": [proof.residual], "proof": proof.evidence}
