"""Overlaps that are held at zero: the directions in which weights then do not move.

m_c = W^T tau_c / d and theta_c = W^T Sigma_c W* / d are linear in W. Where one of them vanishes on a branch of theory
it is of order 1/sqrt(d) at finite d, unless it is held.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...base.errors import InputError, describe_unknown
from ...problems.columns import block_shape, index_text
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from .instance import Instance

_INDEPENDENT = 1e-10  # singular values below it, relative to the largest, are of directions that others contain


def entries(problem: Problem, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Which entries of m (C, s) and theta (C, s, t) a name holds: theta all of it, theta_1 those of token 1, and so on.

    Raises:
        InputError: none; the sentence lists the names.
    """
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    for block, shape in (("m", (problem.contexts, problem.student_rank)), ("theta", problem.sizes[:3])):
        shown = block_shape(problem, block)
        for place, index in enumerate(np.ndindex(*shown)):
            known[block + index_text(index, shown)] = block, tuple(map(int, np.unravel_index(place, shape)))
    found = [entry for full, entry in known.items() if full == name or full.startswith(f"{name}_")]
    if not found:
        raise InputError(describe_unknown("overlap", name, ["m", "theta", *known], "project"))
    return found


def without(problem: Problem, overlaps: Overlaps, name: str | None) -> Overlaps:
    """With what a name holds at exactly zero, of which rounding may be left; the overlaps themselves without a name."""
    if name is None:
        return overlaps
    blocks = {"m": overlaps.m.copy(), "theta": overlaps.theta.copy()}
    for block, index in entries(problem, name):
        blocks[block][index] = 0.0
    return replace(overlaps, **blocks)


def directions(instance: Instance, name: str | None) -> np.ndarray:
    """Orthonormal, (k, d, s), none without a name.

    Raises:
        InputError: an unknown name.
    """
    known, d, s = instance.coordinates, instance.d, instance.problem.student_rank
    rows = []
    for block, index in entries(instance.problem, name) if name else ():
        row = np.zeros((d, s))
        context, column = index[:2]
        row[:, column] = known.tau[:, context] if block == "m" else known.gamma[:, context] * known.pi[:, index[2]]
        rows.append(row.ravel())
    if not rows:
        return np.zeros((0, d, s))
    _, sizes, basis = np.linalg.svd(np.array(rows), full_matrices=False)
    return basis[sizes > _INDEPENDENT * sizes[0]].reshape(-1, d, s)
