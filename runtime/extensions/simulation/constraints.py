"""Overlaps that are constrained to zero: the directions in which the weights are then fixed.

m_c = W^T tau_c / d and theta_c = W^T Sigma_c W* / d are linear in W. If one of them vanishes on a branch of theory, it
is of order 1/sqrt(d) at finite d, unless it is constrained.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...base.errors import InputError, describe_unknown_name
from ...problems.columns import overlap_array_shape, overlap_entry_suffix
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from .instance import Instance

_RANK_ROUNDING = 1e-10  # singular values smaller than this part of the largest are zero up to rounding


def overlap_entries(problem: Problem, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the entries of m (C, s) and theta (C, s, t) with a name: theta means all, theta_1 those of token 1, ...

    Args:
        problem: the problem.
        name: name of one or several overlaps.

    Raises:
        InputError: an unknown name; the message lists the known ones.
    """
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    for block, shape in (("m", (problem.contexts, problem.student_rank)), ("theta", problem.sizes[:3])):
        shown = overlap_array_shape(problem, block)
        for place, index in enumerate(np.ndindex(*shown)):
            known[block + overlap_entry_suffix(index, shown)] = block, tuple(map(int, np.unravel_index(place, shape)))
    found = [entry for full, entry in known.items() if full == name or full.startswith(f"{name}_")]
    if not found:
        raise InputError(describe_unknown_name("overlap", name, ["m", "theta", *known], "project"))
    return found


def zero_constrained_overlaps(problem: Problem, overlaps: Overlaps, name: str | None) -> Overlaps:
    """Return overlaps with the constrained entries set to exactly zero; unchanged if the name is None.

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


def constrained_weight_directions(instance: Instance, name: str | None) -> np.ndarray:
    """Return orthonormal directions in which overlaps constrained to zero fix the weights, (k, d, s).

    Args:
        instance: instance of a seed.
        name: name of the constrained overlaps; None for no constraint.

    Raises:
        InputError: an unknown name.
    """
    known, d, s = instance.eigenbasis_coordinates, instance.d, instance.problem.student_rank
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
