"""Named starts, and the names of what is reached."""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np

from ..base.errors import DomainError, InputError, require_known
from ..integration.rule import Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from .state_map import StateMap

BRANCH_NAMES = ("semantic", "positional", "mixed", "uninformed")


def branch_of(overlaps: Overlaps, errors: np.ndarray | None = None) -> str:
    """Name a state by which of theta (semantic) and m (positional) stand out.

    Non-zero means above 1e-3 of the scale of the fields, and above the error where that is known.
    """
    return _NAMES[overlaps_held(overlaps, errors)]


_NAMES = {(True, False): "semantic", (False, True): "positional", (True, True): "mixed", (False, False): "uninformed"}


def overlaps_held(overlaps: Overlaps, errors: np.ndarray | None = None) -> tuple[bool, bool]:
    """Whether theta and whether m stand out, as `branch_of` counts it."""
    q = np.sqrt(np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2)).max())
    widths = Overlaps.unpack(errors, overlaps.sizes) if errors is not None and np.isfinite(errors).all() else None
    theta_floor = max(1e-3 * q**2, float(np.max(widths.theta)) if widths else 0.0)
    m_floor = max(1e-3 * q, float(np.max(widths.m)) if widths else 0.0)
    semantic = np.abs(overlaps.theta).max() > theta_floor
    positional = np.abs(overlaps.m).max() > m_floor
    return bool(semantic), bool(positional)


def start_overlaps(problem: Problem, name: str) -> Overlaps:
    """The overlaps of a named start: those of weights mixed from teacher rows, encodings and noise.

    Columns whose norms are given have these.

    Raises:
        InputError: the model has no start of this name.
    """
    mix, noise, susceptibility = start_mixture(problem, name)
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
def as_start(given: Any) -> Any:
    """What is given to start from as a name, overlaps or a solution; other classes register what they are."""
    return given


_RESPONSES, _SETTLED = 60, 1e-3


def with_response(problem: Problem, overlaps: Overlaps, rule: Rule) -> Overlaps:
    """Overlaps q, m, theta as they are, with V from its own equation at these.

    Weights that were measured have no V: it is the response of the fields. Damped iteration of V alone, from a tenth of
    the covariance on; where that leaves the domain, as far as it came.
    """
    eye = np.eye(problem.student_rank)
    held = replace(overlaps, V=0.1 * problem.law.rho[:, None, None] * eye)
    state_map = StateMap(problem, rule)
    for _ in range(_RESPONSES):
        try:
            image = Overlaps.unpack(state_map(held.pack(), held.sizes), held.sizes).V
        except DomainError:
            break
        moved = float(np.abs(image - held.V).max() / np.abs(held.V).max())
        held = replace(held, V=(held.V + image) / 2)
        if moved < _SETTLED:
            break
    return held


def default_start(problem: Problem) -> str:
    """semantic, or the model's first where it has no such start.

    Raises:
        InputError: the model names none.
    """
    known = list(problem.solver.model.STARTS)
    if not known:
        raise InputError(
            f"{problem.solver.name} has no named starts; give it some, as starts={{'semantic': sf.Start(teacher=1)}}"
        )
    return "semantic" if "semantic" in known else known[0]


def start_mixture(problem: Problem, name: str) -> tuple[np.ndarray, float, float]:
    """Of a named start: coefficients (s, C + t) of a row's (tau, pi), deviation of its noise, and V / rho.

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
