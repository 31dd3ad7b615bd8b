"""Averages of tokens under every assignment of labels, as averages of contexts (token, cluster)."""

from __future__ import annotations

import numpy as np

from ..problems.problem import Problem


def contexts_of(problem: Problem, rows: list[np.ndarray], row: int) -> np.ndarray:
    """Token rows (L row, ...) of every label assignment to (C, row, ...), weighted with their probability."""
    moments = np.zeros((problem.contexts, row, *rows[0].shape[1:]))
    for (labels, probability), values in zip(problem.label_choices, rows, strict=True):
        for token, context in enumerate(problem.context_of(labels)):
            moments[context] += probability * values[token * row : (token + 1) * row]
    return moments
