"""The steps of a model's derivation in their order, each with the results of the one before as input."""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from ...authoring.model import FixedSizeModel
from ...authoring.regulariser import Penalty, Regulariser, Ridge
from ...errors import ModelError
from ..algebra.levels import ReplicaBreakingSymbols, replica_block_ansatz
from ..algebra.step import Derivation
from . import (
    action,
    ansatz,
    breaking_limits,
    breaking_saddle,
    breaking_stability,
    complexity,
    fields,
    finite_temperature,
    limit,
    partition,
    saddle,
    second_variation,
    zero_temperature,
)


def derivation(model: FixedSizeModel, rsb: int = 0) -> Derivation:
    """Return the derivation of a model's equations.

    It depends on the kind of its regulariser, on whether numbers are trained with the weights and on whether the loss
    contains the overlaps; loss and sizes remain symbols.

    Args:
        model: model with fixed sizes L, s, t.
        rsb: number of steps of replica symmetry breaking, 0, 1 or 2.
    """
    return replica_calculation(
        model.regulariser.row_regulariser.kind, len(model.trained), model.loss_depends_on_q, rsb=rsb
    )


@cache
def replica_calculation(
    kind: str = "ridge", trained: int = 0, loss_depends_on_q: bool = False, s: Any = None, t: Any = None, rsb: int = 0
) -> Derivation:
    """Return the replica calculation as a derivation, for one kind of regulariser.

    It has steps 1 to 9; with one step of replica symmetry breaking 1 to 12, with two 1 to 8.

    Args:
        kind: "ridge", or "penalty" for any convex one.
        trained: number of O(1) numbers that are trained with the weights.
        loss_depends_on_q: whether the loss depends on the overlaps q of its tokens.
        s: columns of W; a symbol by default, for printing.
        t: columns of W*; a symbol by default.
        rsb: number of steps of replica symmetry breaking, 0, 1 or 2.

    Raises:
        ModelError: the number of steps of breaking is not 0, 1 or 2.
    """
    if rsb not in (0, 1, 2):
        raise ModelError(f"rsb = {rsb!r} is out of range; allowed are whole numbers from 0 to 2")
    s = sp.Symbol("s", integer=True, positive=True) if s is None else s
    t = sp.Symbol("t", integer=True, positive=True) if t is None else t
    p = ReplicaBreakingSymbols(s, t, trained, loss_depends_on_q, rsb)
    # Only the kind of a penalty is used: its function is never called.
    regulariser: Regulariser = Ridge() if kind == "ridge" else Penalty(lambda w: w)
    at = replica_block_ansatz(p)
    weight = partition.replicated_partition_function_step(p)
    law = fields.gaussian_fields_step(p)
    overlaps = action.overlap_constraints_step(p, weight.after["weight"], law.after)
    symmetric = ansatz.ansatz_step(at, overlaps.after, ridge=kind == "ridge")
    limits = limit.replica_limit_step(at, symmetric.after)
    finite = finite_temperature.finite_temperature_step(at, symmetric.after, limits.after)
    zero = zero_temperature.zero_temperature_step(at, finite.after["Phi_beta"], regulariser)
    first = weight, law, overlaps, symmetric, limits, finite, zero
    if not rsb:
        return Derivation(
            (
                *first,
                saddle.saddle_point_step(p, zero.after),
                second_variation.second_variation_step(p, overlaps.after, zero.after),
            )
        )
    conditions = breaking_saddle.broken_saddle_point_step(p, zero.after)
    if rsb > 1:
        return Derivation((*first, conditions))
    states = complexity.complexity_step(p, zero.after)
    ends = breaking_limits.breaking_limits_step(p, zero.after, conditions.after, regulariser)
    return Derivation(
        (*first, conditions, states, ends, *breaking_stability.stability_steps(p, overlaps.after, regulariser))
    )
