"""Losses that are smooth in pieces: the curvature almost everywhere, slopes that jump, which are refused, and where
the pieces meet."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations

import sympy as sp
from sympy.core.relational import Relational

from ..errors import ModelError
from ..model import ModelAt

_LINES = 40
_STEPS = 50
_PIECEWISE = (sp.Abs, sp.sign, sp.Heaviside, sp.Max, sp.Min, sp.Piecewise)


def almost_everywhere(expression: sp.Expr) -> sp.Expr:
    """Without the deltas that differentiating a step leaves: right where the slope is continuous there."""
    return expression.replace(sp.DiracDelta, lambda *_: sp.Integer(0))


def switches(expressions: Iterable[sp.Expr]) -> list[sp.Expr]:
    """What vanishes where one of the expressions may not be smooth."""
    found: set[sp.Expr] = set()
    for expression in expressions:
        found |= {atom.args[0] for atom in expression.atoms(sp.Abs, sp.sign, sp.Heaviside)}
        found |= {a - b for atom in expression.atoms(sp.Max, sp.Min) for a, b in combinations(atom.args, 2)}
        found |= {relation.lhs - relation.rhs for relation in expression.atoms(Relational)}
    return sorted(found, key=sp.default_sort_key)


def zeros(switch: sp.Expr, variable: sp.Symbol) -> list[sp.Expr] | None:
    """All zeros in a variable, and possibly more: of every piece, over all of the line. None where it is no polynomial
    of degree two or less in pieces; zeros that are not real for some values of the other symbols are listed, too."""
    for atom in sorted(switch.atoms(sp.Abs, sp.sign, sp.Heaviside, sp.Max, sp.Min), key=sp.default_sort_key):
        if not atom.has(variable) or any(a.has(*_PIECEWISE) for a in atom.args if a.has(variable)):
            continue
        if isinstance(atom, sp.Max | sp.Min):
            pieces = list(atom.args)
        elif isinstance(atom, sp.Abs):
            pieces = [atom.args[0], -atom.args[0]]
        else:
            pieces = [sp.Integer(1), sp.Integer(-1 if isinstance(atom, sp.sign) else 0)]
        parts = [zeros(switch.xreplace({atom: piece}), variable) for piece in pieces]
        if any(part is None for part in parts):
            return None
        return list(dict.fromkeys(zero for part in parts for zero in part or []))
    if switch.has(sp.Piecewise) or not switch.is_polynomial(variable) or sp.degree(switch, variable) > 2:
        return None
    a, b, c = (sp.expand(switch).coeff(variable, power) for power in (2, 1, 0))
    if a == 0:
        return [sp.factor_terms(-c / b)] if b != 0 else []
    root = sp.sqrt(sp.factor(b**2 - 4 * a * c))
    return [sp.factor_terms((-b + sign * root) / (2 * a)) for sign in (-1, 1)]


def check_slope(model: ModelAt) -> None:
    """Refuse a loss whose slope in X jumps, as that of the hinge: its proximal point sits on the kink.

    Raises:
        ModelError: with the surface on which the slope jumps.
    """
    jump = slope_jump(model)
    if jump:
        raise ModelError(f"model {model.name}: {jump}")


def slope_jump(model: ModelAt) -> str:
    """Where the slope of the loss in X jumps, or the loss itself, in words; empty where neither does.

    A probe at the parameters' defaults: every step in the loss or its slope is approached along random lines, and the
    two limits are compared.
    """
    generator = random.Random(5)
    defaults = dict(zip(model.parameter_symbols(), model.parameter_defaults(), strict=True))
    fields = set(model.X)
    remedy = "the proximal map needs a continuous slope (smooth the kink, as Huber's loss does)"
    for what, function in [
        ("the loss", model.loss),
        *[(f"the slope of the loss in {x}", sp.diff(model.loss, x)) for x in model.X],
    ]:
        for atom in sorted(function.atoms(sp.Heaviside, sp.sign), key=sp.default_sort_key):
            surface = atom.args[0]
            if not surface.free_symbols & fields:
                continue
            low = sp.Integer(-1 if isinstance(atom, sp.sign) else 0)
            jump = function.xreplace({atom: sp.Integer(1)}) - function.xreplace({atom: low})
            if _on_surface(jump.xreplace(defaults), surface.xreplace(defaults), generator) > 1e-9:
                return f"{what} jumps where {surface} = 0; {remedy}"
    return ""


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
