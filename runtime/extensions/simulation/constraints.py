"""Overlaps that are constrained to zero: the directions in which the weights are then fixed.

m_c = W^T tau_c / d and theta_c = W^T Sigma_c W* / d are linear in W. If one of them vanishes on a branch of theory, it
is of order 1/sqrt(d) at finite d, unless it is constrained.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...base.errors import InputError, describe_unknown
from ...problems.columns import block_shape, entry_suffix
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from .instance import Instance

_RANK_ROUNDING = 1e-10  # singular values below it, relative to the largest, are zero but for rounding


def overlap_entries(problem: Problem, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the entries of m (C, s) and theta (C, s, t) that a name means: theta all, theta_1 those of token 1, ...

    Args:
        problem: the problem.
        name: name of overlaps.

    Raises:
        InputError: an unknown name; the message lists the names.
    """
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    for block, shape in (("m", (problem.contexts, problem.student_rank)), ("theta", problem.sizes[:3])):
        shown = block_shape(problem, block)
        for place, index in enumerate(np.ndindex(*shown)):
            known[block + entry_suffix(index, shown)] = block, tuple(map(int, np.unravel_index(place, shape)))
    found = [entry for full, entry in known.items() if full == name or full.startswith(f"{name}_")]
    if not found:
        raise InputError(describe_unknown("overlap", name, ["m", "theta", *known], "project"))
    return found


def zero_constrained(problem: Problem, overlaps: Overlaps, name: str | None) -> Overlaps:
    """Return overlaps with the constrained entries exactly zero, without rounding; unchanged for the name None.

    Args:
        problem: the problem.
        overlaps: overlaps of weights.
        name: name of the constrained overlaps.
    """
    if name is None:
        return overlaps
    blocks = {"m": overlaps.m.copy(), "theta": overlaps.theta.copy()}
    for block, index in overlap_entries(problem, name):
        blocks[block][index] = 0.0
    return replace(overlaps, **blocks)


def zero_overlap_directions(instance: Instance, name: str | None) -> np.ndarray:
    """Return orthonormal directions in which the weights are fixed, (k, d, s); none without a name.

    Args:
        instance: the instance.
        name: name of the constrained overlaps.

    Raises:
        InputError: an unknown name.
    """
    known, d, s = instance.coordinates, instance.d, instance.problem.student_rank
    rows = []
    for block, index in overlap_entries(instance.problem, name) if name else ():
        row = np.zeros((d, s))
        context, column = index[:2]
        row[:, column] = known.tau[:, context] if block == "m" else known.gamma[:, context] * known.pi[:, index[2]]
        rows.append(row.ravel())
    if not rows:
        return np.zeros((0, d, s))
    _, sizes, basis = np.linalg.svd(np.array(rows), full_matrices=False)
    return basis[sizes > _RANK_ROUNDING * sizes[0]].reshape(-1, d, s)
