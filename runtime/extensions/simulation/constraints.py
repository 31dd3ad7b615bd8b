"""Overlaps that are constrained to zero: the directions in which the weights are then fixed.

m_c = W^T tau_c / d and theta_c = W^T Sigma_c W* / d are linear in W. If one of them vanishes on a branch of theory, it
is of order 1/sqrt(d) at finite d, unless it is constrained.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...base.errors import InputError, describe_unknown_name
from ...problems.columns import column_suffix_of_entry, overlap_array_shape
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from .instance import Instance

_RANK_ROUNDING = 1e-10  # singular values smaller than this part of the largest are zero up to rounding


def entries_of_named_overlaps(problem: Problem, name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Return the entries (array, index) of the overlaps m and theta that a name stands for.

    For instance theta stands for all entries of theta, and theta_1 for those of token 1.

    Args:
        problem: the problem.
        name: name of one or several overlaps.

    Raises:
        InputError: the name is unknown; the message lists the known ones.
    """
    known: dict[str, tuple[str, tuple[int, ...]]] = {}
    for block, shape in (("m", (problem.contexts, problem.student_rank)), ("theta", problem.sizes[:3])):
        shown = overlap_array_shape(problem, block)
        for place, index in enumerate(np.ndindex(*shown)):
            known[block + column_suffix_of_entry(index, shown)] = block, tuple(map(int, np.unravel_index(place, shape)))
    found = [entry for full, entry in known.items() if full == name or full.startswith(f"{name}_")]
    if not found:
        raise InputError(describe_unknown_name("overlap", name, ["m", "theta", *known], "project"))
    return found


def set_constrained_overlaps_to_zero(problem: Problem, overlaps: Overlaps, name: str | None) -> Overlaps:
    """Return overlaps with those entries set to exactly zero that a simulation constrains to zero.

    Args:
        problem: the problem.
        overlaps: overlaps of weights.
        name: name of the constrained overlaps; None for no constraint.
    """
    if name is None:
        return overlaps
    blocks = {"m": overlaps.m.copy(), "theta": overlaps.theta.copy()}
    for block, index in entries_of_named_overlaps(problem, name):
        blocks[block][index] = 0.0
    return replace(overlaps, **blocks)


def constrained_weight_directions(instance: Instance, name: str | None) -> np.ndarray:
    """Return orthonormal directions of weight space along which components vanish if given overlaps are zero.

    The shape is (directions, d, s).

    Args:
        instance: teacher and data drawn with one seed.
        name: name of the constrained overlaps; None for no constraint.

    Raises:
        InputError: the name is unknown.
    """
    known, d, s = instance.eigenbasis_coordinates, instance.d, instance.problem.student_rank
    rows = []
    for block, index in entries_of_named_overlaps(instance.problem, name) if name else ():
        row = np.zeros((d, s))
        context, column = index[:2]
        row[:, column] = known.tau[:, context] if block == "m" else known.gamma[:, context] * known.pi[:, index[2]]
        rows.append(row.ravel())
    if not rows:
        return np.zeros((0, d, s))
    _, sizes, basis = np.linalg.svd(np.array(rows), full_matrices=False)
    return basis[sizes > _RANK_ROUNDING * sizes[0]].reshape(-1, d, s)
