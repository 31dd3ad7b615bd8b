"""Proximal points at single nodes."""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .fields import Fields

CHUNKS = 64  # fixed, so that sums do not depend on the number of threads


def points_at(
    problem: Problem, fields: Fields, nodes: np.ndarray, search: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """omega, g and the global minimiser X at nodes in standard normal coordinates, (N, L, s) each, and how often a
    second minimum was seen, (N,)."""
    channel = problem.solver.channel
    found = channel.proximal_points(
        CHUNKS,
        np.ascontiguousarray(nodes),
        *fields.sampling,
        fields.precision,
        problem.noise_scale,
        fields.constants,
        problem.search if search is None else search,
    )
    shape = (len(nodes), problem.tokens, problem.student_rank)
    size = channel.FIELDS
    omega = found[:, :size].reshape(shape)
    x = found[:, size + channel.FEATURES : 2 * size + channel.FEATURES].reshape(shape)
    g = np.einsum("lab,nlb->nla", fields.precision, x - omega)
    return omega, g, x, found[:, 2 * size + channel.FEATURES + 2]
