"""Named starts of the iteration, and names of the branches reached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np

from ..base.errors import DomainError, InputError, require_known
from ..base.options import AlgorithmOptions
from ..integration.rule import Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from .state_map import StateMap

BRANCH_NAMES = ("semantic", "positional", "mixed", "uninformed")


def name_branch(overlaps: Overlaps, errors: np.ndarray | None = None) -> str:
    """Return the name of the branch of a state, by whether theta (semantic) and m (positional) are non-zero.

    Non-zero means above 1e-3 of the scale of the fields, and above the error bar if that is known.

    Args:
        overlaps: the state.
        errors: error bars of the packed overlaps, (n,), or None.
    """
    return _NAMES[nonzero_overlaps(overlaps, errors)]


_NAMES = {(True, False): "semantic", (False, True): "positional", (True, True): "mixed", (False, False): "uninformed"}


def nonzero_overlaps(overlaps: Overlaps, errors: np.ndarray | None = None) -> tuple[bool, bool]:
    """Return whether theta and whether m are non-zero, in the sense of `name_branch`.

    Args:
        overlaps: the state.
        errors: error bars of the packed overlaps, (n,), or None.
    """
    q = np.sqrt(np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2)).max())
    widths = Overlaps.unpack(errors, overlaps.sizes) if errors is not None and np.isfinite(errors).all() else None
    theta_floor = max(1e-3 * q**2, float(np.max(widths.theta)) if widths else 0.0)
    m_floor = max(1e-3 * q, float(np.max(widths.m)) if widths else 0.0)
    semantic = np.abs(overlaps.theta).max() > theta_floor
    positional = np.abs(overlaps.m).max() > m_floor
    return bool(semantic), bool(positional)


def start_overlaps(problem: Problem, name: str) -> Overlaps:
    """Return the overlaps of a named start: of weights mixed from teacher rows, encodings and noise.

    If norms of the columns are given, the weights have these norms.

    Args:
        problem: to be solved.
        name: of a start of the model.

    Raises:
        InputError: the model has no start of this name.
    """
    mix, noise, susceptibility = start_coefficients(problem, name)
    law, contexts, s, t = problem.law, problem.contexts, problem.student_rank, problem.teacher_rank
    q = np.zeros((contexts, s, s))
    m = np.zeros((contexts, s))
    theta = np.zeros((contexts, s, t))
    squares = np.zeros(s)
    for weight, gamma, gram in zip(law.weights, law.gamma, law.gram, strict=True):
        with_fields = mix @ gram
        square = with_fields @ mix.T + noise**2 * np.eye(s)
        q += weight * gamma[:, None, None] * square
        m += weight * with_fields[:, :contexts].T
        theta += weight * gamma[:, None, None] * with_fields[:, contexts:]
        squares += weight * np.diagonal(square)
    if problem.regulariser.keeps_norms:
        scale = problem.regulariser.norms / np.sqrt(squares)
        q, m, theta = scale[:, None] * q * scale, scale * m, scale[:, None] * theta
    V = susceptibility * law.rho[:, None, None] * np.eye(s)
    return Overlaps(q, V, m, theta, np.array([float(number["start"]) for number in problem.trained]))


@singledispatch
def convert_start(given: Any) -> Any:
    """Return a given start as a name, overlaps or a solution; classes of other starts register a conversion."""
    return given


@dataclass(frozen=True)
class StartResponseOptions(AlgorithmOptions):
    """Options of the iteration for V at given q, m and theta.

    Attributes:
        max_iterations: damped iterations at most.
        tolerance: relative change of V at which the iteration stops.
    """

    max_iterations: int = 60
    tolerance: float = 1e-3


def solve_response(problem: Problem, overlaps: Overlaps, rule: Rule) -> Overlaps:
    """Return overlaps with V solved from its own equation at fixed q, m and theta.

    Measured weights have no V, the response of the fields. It is found by damped iteration from a tenth of the
    covariance; if that leaves the domain, the last V inside is returned.

    Args:
        problem: to be solved.
        overlaps: q, m, theta and phi.
        rule: of the channel averages.
    """
    options = StartResponseOptions.current()
    eye = np.eye(problem.student_rank)
    fixed = replace(overlaps, V=0.1 * problem.law.rho[:, None, None] * eye)
    state_map = StateMap(problem, rule)
    for _ in range(options.max_iterations):
        try:
            image = Overlaps.unpack(state_map(fixed.pack(), fixed.sizes), fixed.sizes).V
        except DomainError:
            break
        moved = float(np.abs(image - fixed.V).max() / np.abs(fixed.V).max())
        fixed = replace(fixed, V=(fixed.V + image) / 2)
        if moved < options.tolerance:
            break
    return fixed


def default_start(problem: Problem) -> str:
    """Return the default start: semantic, or the model's first if it has no such start.

    Raises:
        InputError: the model has no named starts.
    """
    known = list(problem.solver.model.STARTS)
    if not known:
        raise InputError(
            f"{problem.solver.name} has no named starts; give it some, as starts={{'semantic': sf.Start(teacher=1)}}"
        )
    return "semantic" if "semantic" in known else known[0]


def start_coefficients(problem: Problem, name: str) -> tuple[np.ndarray, float, float]:
    """Return the mixture of a named start.

    Args:
        problem: to be solved.
        name: of a start of the model.

    Returns:
        Coefficients (s, C + t) of a row's (tau, pi), standard deviation of its noise, and V / rho.

    Raises:
        InputError: the model has no start of this name.
    """
    starts = problem.solver.model.STARTS
    require_known("start", name, starts, problem.solver.name)
    spec = starts[name]
    contexts, s, t, tokens = problem.contexts, problem.student_rank, problem.teacher_rank, problem.tokens
    mix = np.zeros((s, contexts + t))
    teacher, encodings = np.asarray(spec["teacher"], float), np.asarray(spec["encodings"], float)
    if teacher.ndim == 0:
        teacher = float(teacher) * np.eye(s, t)
    if encodings.ndim == 0:
        first = np.zeros((s, tokens))
        first[-1, 0] = float(encodings)
        encodings = first
    mix[:, contexts:] = teacher
    if encodings.shape[1] != contexts:
        encodings = np.repeat(encodings, problem.clusters, axis=1) / problem.clusters
    mix[:, :contexts] = encodings
    return mix, float(spec["noise"]), float(spec["susceptibility"])
