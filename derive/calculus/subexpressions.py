"""Parts of expressions: those that depend on some symbols alone, named; and factors."""

from __future__ import annotations

from collections.abc import Iterable

import sympy as sp

_MOST_FUNCTIONS, _MOST_OPERATIONS = 6, 200  # of what is factored


def factored(expression: sp.Expr) -> sp.Expr:
    """Return the expression over one denominator, in factors.

    A long one, or one of many functions, is returned as it is: SymPy's time grows like a power of their number.
    """
    long = len(expression.atoms(sp.Function)) > _MOST_FUNCTIONS or sp.count_ops(expression) > _MOST_OPERATIONS
    return expression if long else sp.factor(sp.together(expression))


def extract(
    expressions: Iterable[sp.Expr], inside: set[sp.Symbol], outside: set[sp.Symbol], prefix: str
) -> tuple[list[tuple[sp.Symbol, sp.Expr]], list[sp.Expr]]:
    """Name the maximal subexpressions that hold symbols of `inside` and none of `outside`.

    In a sum or product such terms are taken together. Returns the definitions and the expressions that use them.
    """
    definitions: dict[sp.Expr, sp.Symbol] = {}

    def name(expression: sp.Expr) -> sp.Expr:
        return definitions.setdefault(expression, sp.Symbol(f"{prefix}{len(definitions)}", real=True))

    def walk(expression: sp.Expr) -> sp.Expr:
        symbols = expression.free_symbols
        if not symbols & inside:
            return expression
        if not symbols & outside:
            return name(expression)
        if expression.is_Add or expression.is_Mul:
            pure = [a for a in expression.args if not a.free_symbols & outside]
            mixed = [walk(a) for a in expression.args if a.free_symbols & outside]
            group = expression.func(*pure)
            if group.free_symbols & inside:
                group = name(group)
            return expression.func(group, *mixed)
        return expression.func(*[walk(a) for a in expression.args])

    rewritten = [walk(e) for e in expressions]
    return [(symbol, expression) for expression, symbol in definitions.items()], rewritten
