"""What a channel does, seen at coordinates of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

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


def find_absent(problem: Problem, labels: tuple[int, ...]) -> tuple[list[tuple[int, tuple[float, ...]]], ...]:
    """Return continuous coordinates with values of the discrete ones at which nothing depends on them.

    Returns a list for the observed and one for the hidden ones, of pairs: the place in its group, and the values of the
    discrete coordinates: of the observed ones, or of observed and hidden ones.
    """
    module, random = problem.solver.bayes, np.random.default_rng(0)
    groups = module.OBSERVED, module.HIDDEN
    nodes, others = ([random_coordinates(group, random) for group in groups] for _ in range(2))
    discrete = [[i for i, (_, kind, _) in enumerate(group) if kind == "discrete"] for group in groups]
    choices = [tuple(product(*(group[i][2] for i in places))) for group, places in zip(groups, discrete, strict=True)]
    found: tuple[list[tuple[int, tuple[float, ...]]], ...] = ([], [])
    for side, group in enumerate(groups):
        for place in (i for i in range(len(group)) if i not in discrete[side]):
            alike = {}
            for choice in product(*choices):
                for at, places, values in zip(nodes, discrete, choice, strict=True):
                    at[:, places] = values
                moved = [at.copy() for at in nodes]
                moved[side][:, place] = others[side][:, place]
                pairs = zip(channel_at(problem, labels, *nodes), channel_at(problem, labels, *moved), strict=True)
                alike[choice] = all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
            if side:
                found[side].extend((place, (*seen, *unseen)) for (seen, unseen), same in alike.items() if same)
            else:
                found[side].extend(
                    (place, seen) for seen in choices[0] if all(alike[seen, unseen] for unseen in choices[1])
                )
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
