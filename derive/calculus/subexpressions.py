"""Parts of expressions: named subexpressions that depend on some symbols alone, and factors."""

from __future__ import annotations

from collections.abc import Iterable

import sympy as sp


def factor_if_short(expression: sp.Expr, *, max_functions: int = 6, max_operations: int = 200) -> sp.Expr:
    """Return a short expression over one denominator, in factors; a long one unchanged, since SymPy is slow.

    Args:
        expression: the expression.
        max_functions: largest number of functions in an expression that is factored.
        max_operations: largest number of operations in an expression that is factored.
    """
    long = len(expression.atoms(sp.Function)) > max_functions or sp.count_ops(expression) > max_operations
    return expression if long else sp.factor(sp.together(expression))


def extract_maximal_subexpressions(
    expressions: Iterable[sp.Expr], inside: set[sp.Symbol], outside: set[sp.Symbol], prefix: str
) -> tuple[list[tuple[sp.Symbol, sp.Expr]], list[sp.Expr]]:
    """Replace the largest subexpressions that depend on some symbols and not on others by new symbols.

    All such terms of a sum, or factors of a product, become one symbol.

    Args:
        expressions: the expressions.
        inside: symbols of which a replaced subexpression contains at least one.
        outside: symbols of which it contains none.
        prefix: first letters of the names of the new symbols.

    Returns:
        the definitions (new symbol, subexpression) and the rewritten expressions.
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
