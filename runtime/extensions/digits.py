"""How many digits: doubles, mpmath beyond them, balls where a proof is asked for.

mpmath, python-flint and what locates thresholds are loaded when a call needs them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..base.errors import InputError, NotConvergedError, NotProvedError, TimeLimitError
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem, check_is_problem
from ..saddle_point.iteration import Status
from ..solving.solution import Solution
from ..solving.solve import solve

if TYPE_CHECKING:
    from ..branches.branch import Branch
    from ..thresholds.threshold import Threshold
    from .reference.solution import PreciseSolution

DOUBLES = 1e-12  # a finer accuracy is out of reach of double precision


def check_ball_arithmetic() -> None:
    """Raise InputError where python-flint, which proofs need and nothing else, is not installed."""
    if find_spec("flint") is None:
        raise InputError("a proof needs ball arithmetic: pip install 'saddleforge[proof]' (python-flint)")


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
    """Where a condition on a branch's observables holds, as `test_error = baseline_error`.

    Args:
        condition: two expressions joined by =, in names of quantities and parameters, numbers and + - * / **.
        on: the branch.
        accuracy: half width asked for; below 1e-12 solution and condition are solved together in mpmath.
        verify: as for `crossing`.
        proof: prove it in ball arithmetic, for models within reach of high precision (needs python-flint). Where that
            fails the status is `not_proved`, what is returned is verified by two rules, and the evidence says why.

    Raises:
        InputError: the condition cannot be read, or the model is out of reach of the accuracy.
        NotConvergedError: no sign change on the branch.

    Example:
        >>> found = sf.where(sf.problem("ridge_regression"), "test_error = 0.4", on="semantic", bracket=(1, 6))
        >>> found.status
        'converged'
    """
    check_is_problem(problem)
    from ..thresholds.along_branch import condition_threshold

    located = partial(
        condition_threshold, problem, condition, parameter, on=on, bracket=bracket, seed=seed, branch=branch
    )
    if not (0 < accuracy < DOUBLES or proof):
        return located(accuracy=accuracy, verify=verify)
    from .reference import thresholds as precise

    if proof:
        check_ball_arithmetic()
    precise.check_threshold(problem, condition, accuracy)
    return refine(located(accuracy=precise.ROUGH), condition, accuracy, proof=proof)


def refine(
    rough: Threshold, condition: str, accuracy: float, problem: Problem | None = None, *, proof: bool = False
) -> Threshold:
    """A threshold in double precision to any accuracy.

    Args:
        condition: the one that it is of.
        accuracy: half width asked for.
        problem: in place of that of the rough threshold, one nearby, as with a hinge more sharply rounded.
        proof: as for `where`; a threshold that nothing confirms stays as it is, with the status `not_proved`.

    Raises:
        InputError: the model is out of reach, or minima of the Moreau objective compete.
        NotConvergedError: the iteration left the domain of the overlaps.
    """
    from .reference.thresholds import check_threshold, verified_threshold

    if proof:
        check_ball_arithmetic()
    problem = problem or rough.problem
    if problem.sample_complexity is None:
        problem = problem.with_(alpha=rough.value)
    check_threshold(problem, condition, accuracy)
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
    """Solve the saddle point of a model of one token, s = t = 1, with a ridge, to any accuracy.

    Decimals of parameters are taken as the numbers they print as.

    Args:
        start: as for `saddleforge.solve`; a solution may be of a problem nearby, as of a hinge less sharply rounded.
        accuracy: half width asked of every overlap, relative to the size of its block; no less than 1e-200.
        proof: prove it in ball arithmetic (needs python-flint). Where that fails the status is `not_proved`, what is
            returned is verified by two rules, and the evidence holds the reason.

    Raises:
        InputError: the model is out of reach (the sentence says why), or minima of the Moreau objective compete.
        NotConvergedError: no solution was found in double precision, or the iteration left it.
        TimeLimitError: a time limit came first; `point` is the solution in double precision.
        NotProvedError: neither a proof nor two rules could confirm it; `estimate` is the one in double precision.

    Example:
        >>> found = sf.solve_precisely(sf.problem("logistic_regression", alpha=2), accuracy=1e-20)
        >>> value, half_width = found.observables["training_loss"]
        >>> str(value)[:12], bool(half_width < 1e-20)
        ('0.5715894692', True)
    """
    from .reference.channel import check_supported
    from .reference.improve import check_accuracy
    from .reference.solution import ROUGH

    check_accuracy(accuracy)
    check_supported(problem)
    problem.only_at_zero_temperature("accuracies beyond double precision and proofs are")
    if proof:
        check_ball_arithmetic()
    near = start if isinstance(start, Solution) else solve(problem, start, accuracy=ROUGH)
    if near.losses is None and near.status is not Status.TIME_LIMIT:
        raise NotConvergedError(f"no solution in double precision to start from: {near.status.words}; {near.advice}")
    try:
        if near.status is Status.TIME_LIMIT:
            raise TimeLimitError("the time limit ended the search for a solution in double precision")
        found = _proved_or_verified(problem, near, accuracy) if proof else _verified(problem, near, accuracy)
    except TimeLimitError as error:
        error.point = near
        raise
    if found.success and near.status is Status.ENDED_ELSEWHERE:
        return replace(found, status=near.status)
    return found


def _proved_or_verified(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    """By balls; where they fail by two rules; where these fail, too, the error with its estimate in doubles."""
    from .proof.results import proved_solution

    try:
        return proved_solution(problem, near, accuracy)
    except NotProvedError as error:
        try:
            found = _verified(problem, near, accuracy)
        except (InputError, NotConvergedError) as reason:
            error.estimate = near
            raise error from reason
        return replace(found, status=Status.NOT_PROVED, evidence={**found.evidence, "not_proved": str(error)})


def _verified(problem: Problem, near: Solution, accuracy: float) -> PreciseSolution:
    from .reference.solution import verified_solution

    return verified_solution(problem, near, accuracy)
