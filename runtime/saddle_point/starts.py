"""Named starts of the iteration, and names of the branches reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np

from ..base.errors import DomainError, InputError, require_known_name
from ..base.options import AlgorithmOptions
from ..integration.rule import Rule
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from .state_map import SaddlePointMap

_WORDS_OF_ONE_TOKEN = {"semantic": "informed", "positional": "mean"}  # of starts and branches; others are the same
_SYNONYMS = _WORDS_OF_ONE_TOKEN | {word: name for name, word in _WORDS_OF_ONE_TOKEN.items()}
_NAMES = {(True, False): "semantic", (False, True): "positional", (True, True): "mixed", (False, False): "uninformed"}


def branch_names(problem: Problem) -> tuple[str, ...]:
    """Return the names that `name_branch` may give: semantic and positional, or informed and mean for one token."""
    return tuple(_in_words_of(problem, name) for name in _NAMES.values())


def name_branch(problem: Problem, overlaps: Overlaps, errors: np.ndarray | None = None) -> str:
    """Return the name of the branch of a state, by which of theta and m are non-zero.

    With several tokens it is semantic (theta), positional (m), mixed (both) or uninformed; with one token, informed
    (theta), mean (m), mixed or uninformed. Non-zero means above 1e-3 of the scale of the fields, and above the error
    bar if that is known.

    Args:
        problem: the problem.
        overlaps: the state.
        errors: error bars of the packed overlaps, (n,), or None.
    """
    return _in_words_of(problem, _NAMES[nonzero_overlaps(overlaps, errors)])


def _in_words_of(problem: Problem, name: str) -> str:
    """Return the name of a start or branch in the words of the problem."""
    return _WORDS_OF_ONE_TOKEN.get(name, name) if problem.tokens == 1 else name


def named_starts(problem: Problem) -> Mapping[str, Mapping[str, Any]]:
    """Return the starts of the model by their names, in the words of the problem (see `name_branch`)."""
    declared = problem.solver.model.STARTS
    words = {name: _in_words_of(problem, name) for name in declared}
    return {name if word != name and word in declared else word: declared[name] for name, word in words.items()}


def find_start(problem: Problem, name: str | None, kind: str = "start", others: Sequence[str] = ()) -> str:
    """Return the name of a start of the model; `informed` also finds `semantic`, `mean` also `positional`, and back.

    Args:
        problem: the problem.
        name: the name to look for; None for the default start.
        kind: what is looked for, for the message.
        others: names that are allowed, too.

    Raises:
        InputError: the model has no start of this name, or none at all.
    """
    if name is None:
        return default_start(problem)
    known, translated = [*named_starts(problem), *others], translate_start(problem, name)
    require_known_name(kind, translated if translated in known else name, known, problem.solver.name)
    return translated


def translate_start(problem: Problem, name: str) -> str:
    """Return the name of a start or branch in the words of the problem, as `find_start`; unknown names as they are.

    Args:
        problem: the problem.
        name: the name.
    """
    known = named_starts(problem)
    synonym = _SYNONYMS.get(name, name)
    return name if name in known else synonym if synonym in known else _in_words_of(problem, name)


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


def overlaps_of_start(problem: Problem, name: str) -> Overlaps:
    """Return the overlaps of a named start: of weights mixed from teacher rows, encodings and noise.

    If norms of the columns are given, the weights have these norms.

    Args:
        problem: the problem to be solved.
        name: name of a start of the model.

    Raises:
        InputError: the model has no start of this name.
    """
    mix, noise, susceptibility = start_mixture_coefficients(problem, name)
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
        scale = problem.regulariser.fixed_column_norms / np.sqrt(squares)
        q, m, theta = scale[:, None] * q * scale, scale * m, scale[:, None] * theta
    V = susceptibility * law.rho[:, None, None] * np.eye(s)
    return Overlaps(q, V, m, theta, np.array([float(number["start"]) for number in problem.trained]))


@singledispatch
def convert_given_start(given: Any) -> Any:
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


def solve_response_at_fixed_overlaps(problem: Problem, overlaps: Overlaps, rule: Rule) -> Overlaps:
    """Return overlaps with V solved from its own equation at fixed q, m and theta.

    Measured weights have no V, the response of the fields. It is found by damped iteration from a tenth of the
    covariance; if that leaves the domain, the last V inside is returned.

    Args:
        problem: the problem to be solved.
        overlaps: q, m, theta and phi.
        rule: quadrature rule of the channel averages.
    """
    options = StartResponseOptions.current()
    eye = np.eye(problem.student_rank)
    fixed = replace(overlaps, V=0.1 * problem.law.rho[:, None, None] * eye)
    state_map = SaddlePointMap(problem, rule)
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
    """Return the default start: informed (several tokens: semantic), or the model's first if it has no such start.

    Raises:
        InputError: the model has no named starts.
    """
    known = list(named_starts(problem))
    if not known:
        raise InputError(
            f"{problem.solver.name} has no named starts; give it some, as starts={{'informed': sf.Start(teacher=1)}}"
        )
    return next((name for name in ("informed", "semantic") if name in known), known[0])


def start_mixture_coefficients(problem: Problem, name: str) -> tuple[np.ndarray, float, float]:
    """Return the mixture of a named start.

    Args:
        problem: the problem to be solved.
        name: name of a start of the model.

    Returns:
        Coefficients (s, C + t) of a row's (tau, pi), standard deviation of its noise, and V / rho.

    Raises:
        InputError: the model has no start of this name.
    """
    spec = named_starts(problem)[find_start(problem, name)]
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
