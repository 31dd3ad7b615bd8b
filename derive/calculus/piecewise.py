"""Functions in pieces: their derivatives almost everywhere, their pieces, and the points where these meet."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import combinations

import sympy as sp
from sympy.core.relational import Relational

from .functions import Sigmoid, Softplus
from .subexpressions import factor_if_short

PIECEWISE = (sp.Abs, sp.sign, sp.Heaviside, sp.Max, sp.Min, sp.Piecewise)


def smooth_pieces_of_function(atom: sp.Expr) -> list[sp.Expr]:
    """Return the smooth pieces of a piecewise function, for example z and -z of |z|."""
    if isinstance(atom, sp.Max | sp.Min):
        return list(atom.args)
    if isinstance(atom, sp.Piecewise):
        return [value for value, _ in atom.args]
    if isinstance(atom, sp.Abs):
        return [atom.args[0], -atom.args[0]]
    return [sp.Integer(1), sp.Integer(-1 if isinstance(atom, sp.sign) else 0)]


def drop_delta_functions(expression: sp.Expr) -> sp.Expr:
    """Return an expression with every Dirac delta function replaced by zero.

    Delta functions come from derivatives of steps; their sum is zero if the differentiated function is continuous.
    """
    return expression.replace(sp.DiracDelta, lambda *_: sp.Integer(0))


def restrict_to_smooth_piece(
    expression: sp.Expr, moved: Mapping[sp.Symbol, sp.Symbol], implicit: Collection[sp.Expr] = ()
) -> sp.Expr:
    """Return the smooth piece of a piecewise function that contains a reference point, continued to all arguments.

    Args:
        expression: the piecewise function.
        moved: variable -> its value at the reference point.
        implicit: switching functions whose pieces are kept: piecewise functions that switch at their zeros stay
            unchanged.
    """

    def restrict_subexpression_to_piece(e: sp.Expr) -> sp.Expr:
        if e in moved or not e.has(*moved):
            return e
        stays = isinstance(e, PIECEWISE) and not _switching_functions_of_subexpression(e).isdisjoint(implicit)
        if isinstance(e, sp.Piecewise):
            return sp.Piecewise(
                *[(restrict_subexpression_to_piece(value), at if stays else at.xreplace(moved)) for value, at in e.args]
            )
        if stays:
            return e.func(*map(restrict_subexpression_to_piece, e.args))
        inside = [restrict_subexpression_to_piece(a) for a in e.args]
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

    return restrict_subexpression_to_piece(expression)


def switching_functions(expressions: Iterable[sp.Expr]) -> list[sp.Expr]:
    """Return the switching functions of expressions: functions that vanish where an expression may not be smooth."""
    found: set[sp.Expr] = set()
    for expression in expressions:
        found = found.union(*map(_switching_functions_of_subexpression, expression.atoms(*PIECEWISE, Relational)))
    return sorted(found, key=sp.default_sort_key)


def _switching_functions_of_subexpression(atom: sp.Basic) -> set[sp.Expr]:
    """Return the switching functions of one piecewise function or relation."""
    if isinstance(atom, Relational):
        return {atom.lhs - atom.rhs}
    if isinstance(atom, sp.Piecewise):
        return set().union(
            *[_switching_functions_of_subexpression(each) for _, at in atom.args for each in at.atoms(Relational)]
        )
    if isinstance(atom, sp.Max | sp.Min):
        return {a - b for a, b in combinations(atom.args, 2)}
    return {atom.args[0]}


def closed_form_zeros(switch: sp.Expr, variable: sp.Symbol) -> list[sp.Expr] | None:
    """Return formulas for all zeros of a piecewise function of one variable.

    They exist for polynomials of degree one and two, monotone cubic polynomials, and powers and monotone functions of
    these.

    Args:
        switch: the function.
        variable: its variable.

    Returns:
        the zeros, None if there are no formulas. Some may not be real, or not in the interval of their piece.
    """
    for atom in sorted(switch.atoms(sp.Abs, sp.sign, sp.Heaviside, sp.Max, sp.Min), key=sp.default_sort_key):
        if not atom.has(variable) or any(nested.has(variable) for nested in atom.atoms(*PIECEWISE) - {atom}):
            continue
        return _zeros_of_several_functions(
            [switch.xreplace({atom: piece}) for piece in smooth_pieces_of_function(atom)], variable
        )
    if switch.has(sp.Piecewise):
        return None
    if not switch.is_polynomial(variable) or sp.degree(switch, variable) > 2:
        of_one = _zeros_by_inverse_function(switch, variable) or _zero_of_monotone_cubic(switch, variable)
        return of_one or _zeros_of_factors(switch, variable)
    a, b, c = (sp.expand(switch).coeff(variable, power) for power in (2, 1, 0))
    may_vanish = a == 0 or sp.fraction(sp.together(a))[0].free_symbols
    linear = [sp.factor_terms(-c / b)] if b != 0 and may_vanish else []
    if a == 0:
        return linear
    root = sp.sqrt(sp.factor(b**2 - 4 * a * c))
    return [*[sp.factor_terms((-b + sign * root) / (2 * a)) for sign in (-1, 1) if root.is_real is not False], *linear]


def _zeros_of_several_functions(functions: Iterable[sp.Expr], variable: sp.Symbol) -> list[sp.Expr] | None:
    """Return formulas for the zeros of several functions, without repetition; None if one function has no formula."""
    found: dict[sp.Expr, None] = {}
    for switch in functions:
        part = closed_form_zeros(switch, variable)
        if part is None:
            return None
        found |= dict.fromkeys(part)
    return list(found)


def _zeros_of_factors(switch: sp.Expr, variable: sp.Symbol) -> list[sp.Expr] | None:
    """Return formulas for the zeros of a product, factor by factor; None if a factor has no formula."""
    powers = [factor.as_base_exp() for factor in sp.Mul.make_args(factor_if_short(switch))]
    if len(powers) == 1:
        return None
    return _zeros_of_several_functions(
        [base for base, power in powers if base.has(variable) and power.is_positive], variable
    )


def _zeros_by_inverse_function(switch: sp.Expr, variable: sp.Symbol) -> list[sp.Expr] | None:
    """Return the zeros of a f(u) + b, where f is an integer power or has a known inverse; None for other functions."""
    rest, moving = switch.as_independent(variable, as_Add=True)
    factor, function = moving.as_independent(variable, as_Add=False)
    value, inside, power = -rest / factor, function.args[0] if function.args else function, function.as_base_exp()[1]
    if function.func in _INVERSES:
        return closed_form_zeros(inside - _INVERSES[function.func](value), variable)
    if not function.is_Pow or not power.is_Integer or power < 2:
        return None
    root = sp.sign(value) * sp.Abs(value) ** (1 / power) if power % 2 else value ** (1 / power)
    return _zeros_of_several_functions([inside - sign * root for sign in ((1,) if power % 2 else (1, -1))], variable)


def _zero_of_monotone_cubic(switch: sp.Expr, variable: sp.Symbol) -> list[sp.Expr] | None:
    """Return the zero of a monotone cubic polynomial, as a list with one entry; None for other functions."""
    if not switch.is_polynomial(variable) or sp.degree(switch, variable) != 3:
        return None
    a, b, c, d = (sp.expand(switch).coeff(variable, power) for power in (3, 2, 1, 0))
    shift = b / (3 * a)
    slope, value = sp.factor(c / a - 3 * shift**2), sp.factor_terms(2 * shift**3 - shift * c / a + d / a)
    if not slope.is_positive:
        return None
    size = sp.sqrt(slope / 3)
    return [sp.factor_terms(-2 * size * sp.sinh(sp.asinh(value / (2 * size**3)) / 3) - shift)]


_INVERSES = {
    sp.tanh: sp.atanh,
    sp.sinh: sp.asinh,
    sp.atan: sp.tan,
    sp.exp: sp.log,
    sp.log: sp.exp,
    Sigmoid: lambda z: sp.log(z) - sp.log(1 - z),
    Softplus: lambda z: sp.log(sp.exp(z) - 1),
}
