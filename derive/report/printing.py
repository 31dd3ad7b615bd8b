"""What the printers share: signs, the order of factors, and which index a symbol carries where."""

from __future__ import annotations

from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..calculus.averages import CONTEXTS, Average, Jacobian, MatrixAverage
from ..theory.stability import TOKENS
from .blocks import Names
from .symbols import MEANS, SUMS


class Indices:
    """Which context and token a generic symbol carries at this place: primed inside an inner sum."""

    def __init__(self) -> None:
        self.context, self.token, self.depth = "c", "l", 0


def terms_positive_first(terms: Any) -> list[Any]:
    """The same terms, those with a minus sign last."""
    return sorted(terms, key=lambda term: bool(term.as_coeff_Mul()[0].is_negative or _matrix_negative(term)))


def _matrix_negative(term: Any) -> bool:
    if isinstance(term, MatrixAverage):
        return _matrix_negative(term.summand)
    if not isinstance(term, sp.MatMul):
        return False
    scalar, _ = term.as_coeff_matrices()
    return bool(scalar.could_extract_minus_sign())


def signed(term: Any) -> tuple[bool, Any]:
    """(is there a minus sign in front, the term without it); a minus inside an average is taken out."""
    if isinstance(term, MatrixAverage) and _matrix_negative(term):
        return True, MatrixAverage(term.kind, signed(term.summand)[1])
    if isinstance(term, MatrixExpr):
        if not _matrix_negative(term):
            return False, term
        scalar, factors = term.as_coeff_matrices()
        rest = factors[0] if len(factors) == 1 and scalar == -1 else None
        return True, rest if rest is not None else sp.MatMul(*([-scalar] if scalar != -1 else []), *factors)
    negative = bool(term.could_extract_minus_sign()) and not isinstance(term, sp.Add)
    return negative, -term if negative else term


def parameters_first(product: sp.Mul, names: Names) -> sp.Mul:
    """Numbers, alpha and parameters of the model, then the rest, each in SymPy's order."""

    def rank(factor: sp.Expr) -> int:
        base = factor.as_base_exp()[0]
        if factor.is_number or not base.is_Symbol:
            return 0 if factor.is_number else 3
        if base.name == "alpha" or names.get(base, ("",))[0].startswith(("parameter", "rho")):
            return 1
        return 2 if base.name.startswith("moment@") else 3

    number, rest = product.as_coeff_Mul()
    factors = sorted(rest.as_ordered_factors(), key=rank)
    return sp.Mul(*([number] if number != 1 else []), *factors, evaluate=False)


def print_average(printer: Any, expr: Average | MatrixAverage) -> str:
    """An average in a printer of this package: sums bind the index of what stands in them, primed when nested."""
    at, kind, summand = printer.at, expr.kind, expr.summand
    before = (at.context, at.token, at.depth)
    # What belongs to a sentence as a whole is averaged over all of them.
    whole = isinstance(summand, sp.MatrixSymbol) and summand.name == "loss_phi"
    label = "_c" if isinstance(expr, MatrixAverage) and not whole else ""
    if kind == CONTEXTS:
        label = at.context = "c'" if at.depth else "c"
    elif kind == TOKENS and at.depth:
        label = at.token = at.context = "l'"
    elif kind == TOKENS:
        label = "l"
    elif kind in SUMS:
        label = kind
    elif "@" in kind:  # given labels of a sentence, or a row in an atom of the spectrum
        stem, _, own = kind.partition("@")
        label = ",".join(part for part in (printer.entries["b"][printer.form] if stem == "row" else "", own) if part)
    elif kind != "field":
        at.depth += 1
    body = printer._print(summand)
    at.context, at.token, at.depth = before
    return printer.wrap_average(kind, label, body, isinstance(summand, sp.Add | sp.MatAdd))


def mean_entry(kind: str, label: str) -> str:
    """The entry of an average, in one context if it has a label."""
    return MEANS[kind] + ("_context" if kind == "output" and label else "")


def print_jacobian(printer: Any, expr: Jacobian) -> tuple[str, str]:
    """Field and variable of a Jacobian; inside a sum over l' the field keeps the outer token l."""
    variable = printer._print(expr.args[1])
    inner, printer.at.token = printer.at.token, "l"
    field = printer._print(expr.args[0])
    printer.at.token = inner
    return field, variable


def is_sum(factor: Any) -> bool:
    """Does a factor need brackets in a product?"""
    if isinstance(factor, Average | MatrixAverage):
        return factor.kind in (CONTEXTS, TOKENS, *SUMS)
    return isinstance(factor, sp.MatAdd | sp.Add)
