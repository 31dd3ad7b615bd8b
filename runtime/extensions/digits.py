"""Solutions and thresholds in double precision, with more digits (mpmath), or proved (ball arithmetic).

mpmath, python-flint and the search for thresholds are loaded when a call needs them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..base.errors import InputError, NotConvergedError, NotProvedError, TimeLimitError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, require_problem
from ..saddle_point.iteration import Status
from ..solving.solution import Solution
from ..solving.solve import solve

if TYPE_CHECKING:
    from ..branches.branch import Branch
    from ..thresholds.threshold import Threshold
    from .reference.solution import PreciseSolution

DOUBLES = 1e-12  # the finest accuracy in double precision


def check_ball_arithmetic_installed() -> None:
    """Raise InputError if python-flint, which only proofs need, is not installed."""
    if find_spec("flint") is None:
        raise InputError("a proof needs python-flint, which is not installed: pip install 'saddleforge[proof]'")


def where(
    problem: Problem,
    condition: str,
    parameter: str = "alpha",
    *,
    on: str,
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    branch: Branch | None = None,
    verify: bool | None = None,
    proof: bool = False,
) -> Threshold:
    """Locate the value of a parameter at which observables of a branch satisfy an equation.

    Args:
        problem: the problem.
        condition: the equation, such as `test_error = baseline_error`: two expressions joined by =, in names of
            observables and parameters, numbers and + - * / **.
        parameter: name of the parameter.
        on: name of the branch.
        bracket: interval to search.
        accuracy: required error bar; below 1e-12 solution and condition are solved together in mpmath.
        seed: seed of the random shifts of sampled quadrature rules.
        branch: a replica symmetric branch whose solutions are reused.
        verify: as for `crossing`.
        proof: whether to prove the result in ball arithmetic (needs python-flint). If the proof fails the status is
            `not_proved`, the result is verified by two quadrature rules, and the evidence has the reason.

    Raises:
        InputError: the condition cannot be parsed, or the accuracy is not available for the model.
        NotConvergedError: no sign change on the branch.

    Example:
        >>> found = sf.where(sf.problem("ridge_regression"), "test_error = 0.4", on="informed", bracket=(1, 6))
        >>> found.status
        'converged'
    """
    require_problem(problem)
    from ..thresholds.along_branch import condition_threshold

    located = partial(
        condition_threshold, problem, condition, parameter, on=on, bracket=bracket, seed=seed, branch=branch
    )
    if not (0 < accuracy < DOUBLES or proof):
        return located(accuracy=accuracy, verify=verify)
    from .reference import thresholds as precise

    if proof:
        check_ball_arithmetic_installed()
    precise.check_high_precision_threshold(problem, condition, accuracy)
    return refine_threshold(located(accuracy=precise.ROUGH), condition, accuracy, proof=proof)


def refine_threshold(
    rough: Threshold, condition: str, accuracy: float, problem: Problem | None = None, *, proof: bool = False
) -> Threshold:
    """Refine a threshold from double precision to any accuracy.

    Args:
        rough: the threshold in double precision.
        condition: equation between observables that holds at the threshold.
        accuracy: required error bar.
        problem: problem of the refined threshold, which may differ slightly; by default that of the rough threshold.
        proof: whether to prove the error bar in ball arithmetic; a threshold that cannot be confirmed is returned with
            the status `not_proved`.

    Raises:
        InputError: the model is not supported, or the Moreau objective has several minima.
        NotConvergedError: the iteration left the domain of the overlaps.
    """
    from .reference.thresholds import check_high_precision_threshold, verified_threshold

    if proof:
        check_ball_arithmetic_installed()
    problem = problem or rough.problem
    if problem.sample_complexity is None:
        problem = problem.with_(alpha=rough.value)
    check_high_precision_threshold(problem, condition, accuracy)
    if not proof:
        return verified_threshold(rough, condition, accuracy, problem)
    from .proof.results import proved_threshold

    try:
        return proved_threshold(rough, condition, accuracy, problem)
    except NotProvedError as failed:
        best = rough
        with suppress(InputError, NotConvergedError):
            best = verified_threshold(rough, condition, accuracy, problem)
        return replace(best, status="not_proved", evidence={**best.evidence, "not_proved": str(failed)})


def solve_precisely(
    problem: Problem,
    start: str | Overlaps | Solution | None = None,
    *,
    accuracy: float = 1e-30,
    proof: bool = False,
) -> PreciseSolution:
    """Solve the saddle point to any accuracy, for models of one token with one student column and a ridge.

    A parameter given as a float stands for the decimal number that it is printed as.

    Args:
        problem: the problem.
        start: as for `saddleforge.solve`; a solution may be one of a problem with slightly different parameters.
        accuracy: required error bar of every overlap, relative to the size of its block; no less than 1e-200.
        proof: whether to prove the solution in ball arithmetic (needs python-flint). If the proof fails the status is
            `not_proved`, the result is verified by two quadrature rules, and the evidence has the reason.

    Raises:
        InputError: the model is not supported (the message says why), or the Moreau objective has several minima.
        NotConvergedError: no solution was found in double precision, or the iteration diverged from it.
        TimeLimitError: the time limit ended the search; `point` is the solution in double precision.
        NotProvedError: neither a proof nor two rules could confirm it; `estimate` is the one in double precision.

    Example:
        >>> found = sf.solve_precisely(sf.problem("logistic_regression", alpha=2), accuracy=1e-20)
        >>> value, error_bar = found.observables["training_loss"]
        >>> str(value)[:12], bool(error_bar < 1e-20)
        ('0.5715894692', True)
    """
    from .reference.channel import check_high_precision_supported
    from .reference.improve import check_accuracy_in_range
    from .reference.solution import ROUGH

    check_accuracy_in_range(accuracy)
    check_high_precision_supported(problem)
    problem.require_zero_temperature("accuracies beyond double precision and proofs are")
    if proof:
        check_ball_arithmetic_installed()
    near = start if isinstance(start, Solution) else solve(problem, start, accuracy=ROUGH)
    if near.losses is None and near.status is not Status.TIME_LIMIT:
        raise NotConvergedError(f"no solution in double precision to start from: {near.status.words}; {near.advice}")
    try:
        if near.status is Status.TIME_LIMIT:
            raise TimeLimitError("the time limit ended the search for a solution in double precision")
        found = (
            _solve_with_proof(problem, near, accuracy)
            if proof
            else _solve_by_two_quadrature_rules(problem, near, accuracy)
        )
    except TimeLimitError as error:
        error.point = near
        raise
    if found.success and near.status is Status.LEFT_BASIN:
        return replace(found, status=near.status)
    return found


def _solve_with_proof(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    """Return a solution with proved error bars, or one verified by two quadrature rules if the proof fails.

    Raises:
        NotProvedError: neither confirms the solution in double precision, which is the error's `estimate`.
    """
    from .proof.results import proved_solution

    try:
        return proved_solution(problem, near, accuracy)
    except NotProvedError as error:
        try:
            found = _solve_by_two_quadrature_rules(problem, near, accuracy)
        except (InputError, NotConvergedError) as reason:
            error.estimate = near
            raise error from reason
        return replace(found, status=Status.NOT_PROVED, evidence={**found.evidence, "not_proved": str(error)})


def _solve_by_two_quadrature_rules(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    from .reference.solution import verified_solution

    return verified_solution(problem, near, accuracy)
