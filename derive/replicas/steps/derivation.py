"""The steps of a model's derivation in their order, each fed with what the one before gave."""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from ...authoring.model import ModelAt
from ...authoring.regulariser import Penalty, Regulariser, Ridge
from ...calculus.averages import Symbols
from ..algebra.step import Derivation
from . import action, ansatz, fields, finite_temperature, limit, partition, saddle, second_variation, zero_temperature


def derivation(model: ModelAt) -> Derivation:
    """The derivation of a model's equations. It depends on the kind of its regulariser, on whether numbers are trained
    with the weights and on whether the loss holds the overlaps; loss and sizes stay symbols."""
    return replica_calculation(model.regulariser.rows.kind, len(model.trained), model.loss_holds_q)


@cache
def replica_calculation(
    kind: str = "ridge", trained: int = 0, loss_holds_q: bool = False, s: Any = None, t: Any = None
) -> Derivation:
    """Steps 1 to 9 for a kind of regulariser.

    Args:
        kind: "ridge", or "penalty" for any convex one.
        trained: how many O(1) numbers are trained with the weights.
        loss_holds_q: whether the loss depends on the overlaps q of its tokens.
        s, t: columns of W and W*; symbols by default, for printing.
    """
    s = sp.Symbol("s", integer=True, positive=True) if s is None else s
    t = sp.Symbol("t", integer=True, positive=True) if t is None else t
    p = Symbols(s, t, trained, loss_holds_q)
    # Only the kind of a penalty matters here: its function is never called.
    regulariser: Regulariser = Ridge() if kind == "ridge" else Penalty(lambda w: w)
    weight = partition.step(p)
    law = fields.step(p)
    overlaps = action.step(p, weight.after["weight"], law.after)
    symmetric = ansatz.step(p, overlaps.after, ridge=kind == "ridge")
    limits = limit.step(p, symmetric.after)
    finite = finite_temperature.step(p, symmetric.after, limits.after)
    zero = zero_temperature.step(p, finite.after["Phi_beta"], regulariser)
    equations = saddle.step(p, zero.after)
    stability = second_variation.step(p, overlaps.after, zero.after)
    return Derivation((weight, law, overlaps, symmetric, limits, finite, zero, equations, stability))
