"""Parts of expressions: named subexpressions that depend on some symbols alone, and factors."""

from __future__ import annotations

from collections.abc import Iterable

import sympy as sp


def factor_if_short(expression: sp.Expr, *, max_functions: int = 6, max_operations: int = 200) -> sp.Expr:
    """Return an expression over one denominator, in factors.

    A long one, or one of many functions, is returned as it is: SymPy's time grows like a power of their number.

    Args:
        expression: the expression.
        max_functions: most functions in an expression that is factored.
        max_operations: most operations in one.
    """
    long = len(expression.atoms(sp.Function)) > max_functions or sp.count_ops(expression) > max_operations
    return expression if long else sp.factor(sp.together(expression))


def extract_maximal_subexpressions(
    expressions: Iterable[sp.Expr], inside: set[sp.Symbol], outside: set[sp.Symbol], prefix: str
) -> tuple[list[tuple[sp.Symbol, sp.Expr]], list[sp.Expr]]:
    """Name the maximal subexpressions that contain symbols of `inside` and none of `outside`.

    Such terms of a sum or product are combined.

    Args:
        expressions: the expressions.
        inside: symbols that a named subexpression must contain.
        outside: symbols that none may contain.
        prefix: first letters of the names.

    Returns:
        The definitions (symbol, subexpression) and the expressions in terms of them.
    """
    definitions: dict[sp.Expr, sp.Symbol] = {}

    def define_symbol(expression: sp.Expr) -> sp.Expr:
        return definitions.setdefault(expression, sp.Symbol(f"{prefix}{len(definitions)}", real=True))

    def replace_subexpressions(expression: sp.Expr) -> sp.Expr:
        symbols = expression.free_symbols
        if not symbols & inside:
            return expression
        if not symbols & outside:
            return define_symbol(expression)
        if expression.is_Add or expression.is_Mul:
            pure = [a for a in expression.args if not a.free_symbols & outside]
            mixed = [replace_subexpressions(a) for a in expression.args if a.free_symbols & outside]
            group = expression.func(*pure)
            if group.free_symbols & inside:
                group = define_symbol(group)
            return expression.func(group, *mixed)
        return expression.func(*[replace_subexpressions(a) for a in expression.args])

    rewritten = [replace_subexpressions(e) for e in expressions]
    return [(symbol, expression) for expression, symbol in definitions.items()], rewritten
