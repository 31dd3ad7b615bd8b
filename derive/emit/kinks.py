"""Losses that are smooth in pieces: the curvature almost everywhere, and slopes that jump, which are refused."""

from __future__ import annotations

import random

import sympy as sp

from ..errors import ModelError
from ..model import ModelAt

_LINES = 40
_STEPS = 50


def almost_everywhere(expression: sp.Expr) -> sp.Expr:
    """Without the deltas that differentiating a step leaves: right where the slope is continuous there."""
    return expression.replace(sp.DiracDelta, lambda *_: sp.Integer(0))


def check_slope(model: ModelAt) -> None:
    """Refuse a loss whose slope in X jumps, as that of the hinge: its proximal point sits on the kink.

    A probe at the parameters' defaults: every step in the slope is approached along random lines, and the slope's two
    limits are compared.

    Raises:
        ModelError: with the surface on which the slope jumps.
    """
    generator = random.Random(5)
    defaults = dict(zip(model.parameter_symbols(), model.parameter_defaults(), strict=True))
    fields = set(model.X)
    for x in model.X:
        slope = sp.diff(model.loss, x)
        for atom in sorted(slope.atoms(sp.Heaviside, sp.sign), key=sp.default_sort_key):
            surface = atom.args[0]
            if not surface.free_symbols & fields:
                continue
            low = sp.Integer(-1 if isinstance(atom, sp.sign) else 0)
            jump = slope.xreplace({atom: sp.Integer(1)}) - slope.xreplace({atom: low})
            if _on_surface(jump.xreplace(defaults), surface.xreplace(defaults), generator) > 1e-9:
                raise ModelError(
                    f"model {model.name}: the slope of the loss in {x} jumps where {surface} = 0; the proximal map "
                    "needs a continuous slope (smooth the kink, as Huber's loss does)"
                )


def _on_surface(jump: sp.Expr, surface: sp.Expr, generator: random.Random) -> float:
    """Largest |jump| found on surface = 0, by bisection along random lines."""
    symbols = sorted(surface.free_symbols | jump.free_symbols, key=str)
    worst = 0.0
    where, size = sp.lambdify(symbols, surface, "math"), sp.lambdify(symbols, jump, "sympy")
    for _ in range(_LINES):
        ends = [
            [3 * abs(z) if s.is_positive else 3 * z for s in symbols for z in [generator.gauss(0, 1)]] for _ in "12"
        ]
        signs = [where(*end) > 0 for end in ends]
        if signs[0] == signs[1]:
            continue
        for _ in range(_STEPS):
            middle = [(a + b) / 2 for a, b in zip(*ends, strict=True)]
            ends[0 if (where(*middle) > 0) == signs[0] else 1] = middle
        if abs(where(*ends[0])) < 1e-9:  # else the sign changed in a step of the surface itself
            worst = max(worst, abs(complex(size(*ends[0]))))
    return worst
