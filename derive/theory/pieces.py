"""A loss of one student field, piece by piece: where they end, and what it is in each (docs/theory.md (11.11))."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from ..authoring.model import ModelAt
from ..calculus.piecewise import almost_everywhere, held_at, switches, zeros
from ..errors import ModelError
from .corners import untold
from .kinks import LOSS_JUMPS, slope_jump, unwrapped

REFERENCE = sp.Symbol("r", real=True)


@dataclass(frozen=True)
class Pieces:
    """Of a loss in x and what it knows of teacher and noise.

    Attributes:
        loss: in x, of the piece that holds the reference r; places: where pieces may end, some perhaps not real.
        quadratic: whether every piece is a polynomial in x of degree two or less.
        corners: whether the loss or its slope jumps where pieces meet.
    """

    loss: sp.Expr
    places: tuple[sp.Expr, ...]
    quadratic: bool
    corners: bool


def pieces_of(model: ModelAt, loss: sp.Expr) -> Pieces | None:
    """Those of a model with one student field; None where there are more.

    Args:
        loss: the model's, possibly in names of its subexpressions of Y and noise.

    Raises:
        ModelError: the slope of the loss jumps where no formula says.
    """
    if len(model.X) != 1:
        return None
    places, jump = _places(loss, model.X[0]), slope_jump(model)
    obstacle = _obstacle(model, jump)
    if obstacle:
        raise ModelError(f"model {model.name}: {obstacle}")
    held = held_at(loss, {model.X[0]: REFERENCE})
    third = almost_everywhere(sp.diff(held, model.X[0], 3))
    return Pieces(held, places or (), sp.expand(third) == 0, bool(jump))


def no_proximal_map(model: ModelAt) -> str:
    """Why a loss has no proximal map here, in words: it jumps in several fields, or its slope where no formula says;
    empty where it has one."""
    return _obstacle(model, slope_jump(model))


def _obstacle(model: ModelAt, jump: str) -> str:
    """`no_proximal_map`, where what jumps is known."""
    if not jump:
        return ""
    if model.own:
        return f"{jump}; in a loss that holds overlaps or trained numbers the slope must be continuous"
    if len(model.X) > 1:
        if jump.startswith(LOSS_JUMPS):
            return f"{jump}; where several fields are read only its slope may jump"
        return untold(model)
    if _places(model.loss, model.X[0]) is None:
        return f"{jump}, which is at no root of a quadratic equation in pieces"
    return ""


def _places(loss: sp.Expr, x: sp.Symbol) -> tuple[sp.Expr, ...] | None:
    """Where switches that hold x vanish; None where one has no formula."""
    found: dict[sp.Expr, None] = {}
    for switch in switches([loss]):
        if switch.has(x):
            roots = zeros(unwrapped(switch, [x]), x)
            if roots is None:
                return None
            found |= dict.fromkeys(roots)
    return tuple(found)


def steps_in_teacher(model: ModelAt, features: list[sp.Expr]) -> tuple[sp.Expr, ...] | None:
    """Where the features of the only teacher field step, if they are constant between; else None."""
    laws = [p for _, law in model.noise.values() for p in getattr(law, "probabilities", ())]
    if (
        model.structure.tokens != 1
        or len(model.Y) != 1
        or any(hasattr(law, "variance") for _, law in model.noise.values())
    ):
        return None
    y = model.Y[0]
    expressions = [*features, *map(sp.sympify, laws)]
    if any(almost_everywhere(sp.diff(e, y)) != 0 for e in expressions):
        return None
    found: dict[sp.Expr, None] = {}
    for switch in switches(expressions):
        roots = zeros(unwrapped(switch, [y]), y)
        if roots is None:
            return None
        found |= dict.fromkeys(roots)
    return tuple(found)
