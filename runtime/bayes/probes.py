"""What a channel does, seen at coordinates of one's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..problems.problem import Problem

_PROBES = 12


def channel_at(
    problem: Problem, labels: tuple[int, ...], observed: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Fields (N, H, L t), and logarithms of Jacobian and likelihood (N, H), of all observed (N, .) and hidden (H, .)
    coordinates; not finite where the channel is not."""
    with np.errstate(all="ignore"):
        fields, jacobian, likelihood = problem.solver.bayes.fields_at(observed, hidden, problem.constants(labels))
    return fields, jacobian, likelihood


def channels_alike(problem: Problem) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Choice of labels -> the first whose channel takes random coordinates to the same fields with the same density."""
    module, random = problem.solver.bayes, np.random.default_rng(0)
    nodes = random_coordinates(module.OBSERVED, random), random_coordinates(module.HIDDEN, random)
    firsts: dict[bytes, tuple[int, ...]] = {}
    found = {}
    for labels, _ in problem.label_choices:
        tables = channel_at(problem, labels, *nodes)
        found[labels] = firsts.setdefault(b"".join(table.tobytes() for table in tables), labels)
    return found


def random_coordinates(
    coordinates: Sequence[tuple[str, str, tuple[float, ...]]], random: np.random.Generator
) -> np.ndarray:
    """Values of coordinates, some at random, (N, len(coordinates))."""
    columns = [
        random.choice(values, _PROBES) if kind == "discrete" else np.abs(random.normal(size=_PROBES))
        for _, kind, values in coordinates
    ]
    return np.array(columns, float).reshape(len(columns), _PROBES).T
