"""Functions in pieces: their derivatives almost everywhere, their pieces, and where these meet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

import sympy as sp
from sympy.core.relational import Relational

PIECEWISE = (sp.Abs, sp.sign, sp.Heaviside, sp.Max, sp.Min, sp.Piecewise)


def pieces_of(atom: sp.Expr) -> list[sp.Expr]:
    """What a function in pieces is equal to, piece by piece."""
    if isinstance(atom, sp.Max | sp.Min):
        return list(atom.args)
    if isinstance(atom, sp.Piecewise):
        return [value for value, _ in atom.args]
    if isinstance(atom, sp.Abs):
        return [atom.args[0], -atom.args[0]]
    return [sp.Integer(1), sp.Integer(-1 if isinstance(atom, sp.sign) else 0)]


def almost_everywhere(expression: sp.Expr) -> sp.Expr:
    """Without the deltas that differentiating a step leaves: right where the slope is continuous there."""
    return expression.replace(sp.DiracDelta, lambda *_: sp.Integer(0))


def held_at(expression: sp.Expr, moved: Mapping[sp.Symbol, sp.Symbol]) -> sp.Expr:
    """The piece that holds a reference point, as a function of all of space.

    Args:
        moved: variable -> its value at the reference point.
    """

    def walk(e: sp.Expr) -> sp.Expr:
        if e in moved or not e.has(*moved):
            return e
        if isinstance(e, sp.Piecewise):
            return sp.Piecewise(*[(walk(value), condition.xreplace(moved)) for value, condition in e.args])
        inside = [walk(a) for a in e.args]
        there = [a.xreplace(moved) for a in e.args]
        if isinstance(e, sp.Abs):
            return sp.Piecewise((inside[0], there[0] >= 0), (-inside[0], True))
        if isinstance(e, sp.sign | sp.Heaviside):
            return e.xreplace(moved)
        if isinstance(e, sp.Max | sp.Min):
            value, best = inside[0], there[0]
            for other, its in zip(inside[1:], there[1:], strict=True):
                first = best >= its if isinstance(e, sp.Max) else best <= its
                value, best = sp.Piecewise((value, first), (other, True)), e.func(best, its)
            return value
        return e.func(*inside)

    return walk(expression)


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
        if not atom.has(variable) or any(nested.has(variable) for nested in atom.atoms(*PIECEWISE) - {atom}):
            continue
        parts = [zeros(switch.xreplace({atom: piece}), variable) for piece in pieces_of(atom)]
        if any(part is None for part in parts):
            return None
        return list(dict.fromkeys(zero for part in parts for zero in part or []))
    if switch.has(sp.Piecewise) or not switch.is_polynomial(variable) or sp.degree(switch, variable) > 2:
        return None
    a, b, c = (sp.expand(switch).coeff(variable, power) for power in (2, 1, 0))
    may_vanish = a == 0 or sp.fraction(sp.together(a))[0].free_symbols
    linear = [sp.factor_terms(-c / b)] if b != 0 and may_vanish else []
    if a == 0:
        return linear
    root = sp.sqrt(sp.factor(b**2 - 4 * a * c))
    return [*[sp.factor_terms((-b + sign * root) / (2 * a)) for sign in (-1, 1) if root.is_real is not False], *linear]
