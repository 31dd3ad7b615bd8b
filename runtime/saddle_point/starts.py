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
    """Return the names of branches with overlaps theta or m: semantic and positional (one token: informed and mean)."""
    return tuple(_name_for_number_of_tokens(problem, name) for name in _NAMES.values())


def name_branch(problem: Problem, overlaps: Overlaps, errors: np.ndarray | None = None) -> str:
    """Return the name of the branch of a state, which depends on which of theta and m are nonzero.

    With several tokens it is semantic (theta), positional (m), mixed (both) or uninformed; with one token, informed
    (theta), mean (m), mixed or uninformed. Nonzero means above 1e-3 of the scale of the fields, and above the error bar
    if that is known.

    Args:
        problem: the problem.
        overlaps: overlaps of the state.
        errors: error bars of the packed overlaps, or None if unknown.
    """
    return _name_for_number_of_tokens(problem, _NAMES[are_theta_and_m_nonzero(overlaps, errors)])


def _name_for_number_of_tokens(problem: Problem, name: str) -> str:
    """Return the name of a start or branch for models with as many tokens: `semantic`, with one token `informed`."""
    return _WORDS_OF_ONE_TOKEN.get(name, name) if problem.tokens == 1 else name


def named_starts(problem: Problem) -> Mapping[str, Mapping[str, Any]]:
    """Return the starts of the model by name, with one token `informed` for `semantic` and `mean` for `positional`."""
    declared = problem.solver.model.STARTS
    words = {name: _name_for_number_of_tokens(problem, name) for name in declared}
    return {name if word != name and word in declared else word: declared[name] for name, word in words.items()}


def find_start_name(problem: Problem, name: str | None, kind: str = "start", others: Sequence[str] = ()) -> str:
    """Return the name that the model has for a start: `informed` may be `semantic`, `mean` may be `positional`.

    Args:
        problem: the problem.
        name: the name to look for; None for the default start.
        kind: noun for what is looked for, for the error message.
        others: further names that are allowed.

    Raises:
        InputError: the model has no start of this name, or none at all.
    """
    if name is None:
        return default_start(problem)
    known, translated = [*named_starts(problem), *others], translate_start_name(problem, name)
    require_known_name(kind, translated if translated in known else name, known, problem.solver.name)
    return translated


def translate_start_name(problem: Problem, name: str) -> str:
    """Return the name that the model has for a start or branch; a name that it does not know is returned unchanged.

    Args:
        problem: the problem with the model.
        name: name of the start or branch.
    """
    known = named_starts(problem)
    synonym = _SYNONYMS.get(name, name)
    return name if name in known else synonym if synonym in known else _name_for_number_of_tokens(problem, name)


def are_theta_and_m_nonzero(overlaps: Overlaps, errors: np.ndarray | None = None) -> tuple[bool, bool]:
    """Return two booleans: whether theta is nonzero, and whether m is, beyond their error bars.

    Args:
        overlaps: overlaps of the state.
        errors: error bars of the packed overlaps, or None if unknown.
    """
    q = np.sqrt(np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2)).max())
    widths = Overlaps.unpack(errors, overlaps.sizes) if errors is not None and np.isfinite(errors).all() else None
    theta_floor = max(1e-3 * q**2, float(np.max(widths.theta)) if widths else 0.0)
    m_floor = max(1e-3 * q, float(np.max(widths.m)) if widths else 0.0)
    semantic = np.abs(overlaps.theta).max() > theta_floor
    positional = np.abs(overlaps.m).max() > m_floor
    return bool(semantic), bool(positional)


def overlaps_of_start(problem: Problem, name: str) -> Overlaps:
    """Return the overlaps of a named start: weights that are mixtures of teacher rows, encodings and noise.

    The weights have the column norms that the problem prescribes, if any.

    Args:
        problem: the problem to be solved.
        name: name of a start of the model.

    Raises:
        InputError: the model has no start of this name.
    """
    mix, noise, susceptibility = mixture_coefficients_of_start(problem, name)
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
def convert_start_argument(given: Any) -> Any:
    """Convert a start that a user passed into a name, overlaps or a solution (other classes register a conversion)."""
    return given


@dataclass(frozen=True)
class StartResponseOptions(AlgorithmOptions):
    """Options of solving the equation of V (the response of the fields) at given q, m and theta.

    Attributes:
        max_iterations: largest number of damped iterations.
        tolerance: relative change of V at which the iteration stops.
    """

    max_iterations: int = 60
    tolerance: float = 1e-3


def solve_response_at_fixed_overlaps(problem: Problem, overlaps: Overlaps, rule: Rule) -> Overlaps:
    """Solve the equation of V, the response of the fields, at fixed q, m and theta; return the overlaps with it.

    Overlaps measured from weights lack V. Damped iteration starts from a tenth of the covariance; if it leaves the
    domain, the last V inside is returned.

    Args:
        problem: the problem to be solved.
        overlaps: overlaps q, m, theta and phi; their V is ignored.
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
    """Return the name of the default start: informed (several tokens: semantic), otherwise the first of the model.

    Raises:
        InputError: the model has no named starts.
    """
    known = list(named_starts(problem))
    if not known:
        raise InputError(
            f"{problem.solver.name} has no named starts; give it some, as starts={{'informed': sf.Start(teacher=1)}}"
        )
    return next((name for name in ("informed", "semantic") if name in known), known[0])


def mixture_coefficients_of_start(problem: Problem, name: str) -> tuple[np.ndarray, float, float]:
    """Return the coefficients of the mixture of teacher rows, encodings and noise that a named start is.

    Args:
        problem: the problem to be solved.
        name: name of a start of the model.

    Returns:
        Coefficients of encodings and teacher columns for each of s columns, standard deviation of the noise, V / rho.

    Raises:
        InputError: the model has no start of this name.
    """
    spec = named_starts(problem)[find_start_name(problem, name)]
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
