"""The common part of both printers: signs, the order of factors, indices of symbols, formulas made of leaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr
from sympy.printing.printer import Printer

from ..calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, Jacobian, MatrixAverage
from ..theory.stability import TOKENS
from .blocks import Names, Relation, UnindexedExpression
from .symbols import CONTEXT_INDEX, THEORY, TOKEN_INDEX, Entry, find_model_symbol, find_theory_symbol

# Of symbols with an index -> their entry.
STEMS = {"tau": "tau", "pi": "pi", "rhostar": "rho_star", "psi": "psi", "psistar": "psi_star"}
# Kind of a sum -> the entry of its index.
SUMS = {
    "replicas": "replica_index", "pairs": "replica_pair", "samples": "sample_index", "rows": "row_index",
    "hidden": "hidden_index",
}  # fmt: skip
# Kind of an average that has a symbol of its own -> the entry of this symbol.
MEANS = {
    COORDINATE: "mean_coordinate", "field": "mean_field", "row field": "mean_row_field", "row law": "mean_row",
    "output": "mean_output", "sentences of a block": "mean_block", "outer field": "mean_outer_field",
    "sentences of a block of blocks": "mean_block_of_blocks", "field between": "mean_field_between",
    "atom": "mean_atom",
}  # fmt: skip
# Kinds of averages that are written in angle brackets: over the states of a block.
TILTED = ("tilted", "row tilted", "outer tilted", "outer row tilted")
# Kinds of averages over fields of a row or of a sentence that are given its context: they bind no index.
FIELDS = ("field", "outer field", "field between", "sentences of a block", "sentences of a block of blocks")


class PrintedIndices:
    """The letters printed as indices of context (token, cluster) and of token; primed inside a nested sum."""

    def __init__(self) -> None:
        self.context, self.token, self.depth = "c", "l", 0


def order_terms(total: sp.Add | sp.MatAdd) -> list[Any]:
    """Return the terms of a sum in SymPy's order, except that terms with a minus sign come last."""
    terms = total.args if isinstance(total, sp.MatAdd) else total.as_ordered_terms()
    return sorted(terms, key=lambda term: bool(term.as_coeff_Mul()[0].is_negative or _has_minus_sign(term)))


def _has_minus_sign(term: Any) -> bool:
    """Return whether a matrix term, or the term inside its average, has a minus sign in front."""
    if isinstance(term, MatrixAverage):
        return _has_minus_sign(term.summand)
    if not isinstance(term, sp.MatMul):
        return False
    scalar, _ = term.as_coeff_matrices()
    return bool(scalar.could_extract_minus_sign())


def _split_minus_sign(term: Any) -> tuple[bool, Any]:
    """Return a pair (whether a term has a minus sign in front, also inside an average; the term without it)."""
    if isinstance(term, MatrixAverage) and _has_minus_sign(term):
        return True, MatrixAverage(term.kind, _split_minus_sign(term.summand)[1])
    if isinstance(term, MatrixExpr):
        if not _has_minus_sign(term):
            return False, term
        scalar, factors = term.as_coeff_matrices()
        rest = factors[0] if len(factors) == 1 and scalar == -1 else None
        return True, rest if rest is not None else sp.MatMul(*([-scalar] if scalar != -1 else []), *factors)
    negative = bool(term.could_extract_minus_sign()) and not isinstance(term, sp.Add)
    return negative, -term if negative else term


def order_factors(product: sp.Mul, names: Names) -> sp.Mul:
    """Return an unevaluated product with numbers, alpha and model parameters before all other factors.

    Args:
        product: the product.
        names: symbols of the model -> (name, indices).
    """

    def factor_sort_key(factor: sp.Expr) -> int:
        base = factor.as_base_exp()[0]
        if factor.is_number or not base.is_Symbol:
            return 0 if factor.is_number else 3
        is_parameter = names.get(base, ("",))[0].startswith(("parameter", "rho"))
        if is_parameter or base.name == "alpha" or base.name.startswith("parisi_parameter"):
            return 1
        return 2 if base.name.startswith("moment@") else 3

    number, rest = product.as_coeff_Mul()
    factors = sorted(rest.as_ordered_factors(), key=factor_sort_key)
    return sp.Mul(*([number] if number != 1 else []), *factors, evaluate=False)


def _factor_needs_brackets(factor: Any) -> bool:
    """Return whether a factor must be printed in brackets in a product: a sum, or an average printed as a sum."""
    if isinstance(factor, Average | MatrixAverage):
        return factor.kind in (CONTEXTS, TOKENS, *SUMS)
    return isinstance(factor, sp.MatAdd | sp.Add)


class FormulaPrinter(Printer):
    """A printer of SymPy objects in the notation of the report, as plain text or as LaTeX.

    Attributes:
        form: TEXT or LATEX.
        leaves: name of a notation -> its pattern, in which %s stands for printed operands, as "trace" -> "Tr[%s]".
        exponent: regular expression that finds an exponent in a printed symbol, after which none may follow.
    """

    form: int
    leaves: Mapping[str, str]
    exponent: str

    def __init__(self, settings: dict[str, Any], names: Names, theory: Mapping[str, Entry] | None = None) -> None:
        super().__init__(settings)
        self.names, self.entries, self.at = names, THEORY if theory is None else theory, PrintedIndices()
        self.stacked = False

    def fill_notation_pattern(self, name: str, *parts: str) -> str:
        """Return a notation pattern such as 'Tr[%s]' filled with printed parts.

        Args:
            name: name of the notation, a key of `leaves`.
            *parts: printed operands, in order.
        """
        return self.leaves[name] % parts

    def print_model_symbol(self, stem: str, indices: tuple[int | str, ...]) -> str:
        """Return a printed symbol of the model with its indices, separated by commas if one has several digits.

        Args:
            stem: kind and name of the symbol, as "parameter omega" or "noise u".
            indices: its indices, counted from 1.
        """
        kind, _, word = stem.rpartition(" ")
        default = self.print_parameter_symbol(word)
        symbol = find_model_symbol(stem, self.entries, default)[self.form] if kind else self.leaves.get(word, word)
        separator = "," if any(len(str(n)) > 1 for n in indices) else ""
        return (
            self.append_indices_to_symbol(symbol, separator.join(self.print_index(str(n)) for n in indices))
            if indices
            else symbol
        )

    def print_parameter_symbol(self, name: str) -> str:
        """Return the printed symbol of a model parameter, by default its name."""
        return name

    def print_index(self, number: str) -> str:
        """Return the printed form of an index, by default unchanged."""
        return number

    def append_indices_to_symbol(self, symbol: str, indices: str) -> str:
        """Return a printed symbol with its indices appended, as x_12.

        Args:
            symbol: the printed symbol.
            indices: the printed indices.
        """
        return f"{symbol}_{indices}"

    def print_theory_symbol(self, name: str) -> str | None:
        """Return how the theory's symbol of this name is printed, as "m_star"; None if there is no such symbol."""
        found = find_theory_symbol(name, self.entries)
        if found is None:
            return None
        change, entry, replicas = found
        symbol = entry[self.form]
        if name.startswith("slope_"):
            return self.fill_notation_pattern("slope", symbol)
        label = {CONTEXT_INDEX: self.at.context, TOKEN_INDEX: self.at.token}.get(entry[2], "")
        labels = [part for part in (replicas, "" if self.stacked else self._format_context_index(label)) if part]
        if replicas and "(" in symbol:  # loss(X_a, Y, k, u)
            return re.sub(r"\((\w)", rf"(\1{self.fill_notation_pattern('index', replicas)}", symbol, count=1)
        symbol = (self.fill_notation_pattern("change") if change else "") + symbol
        return symbol + (self.fill_notation_pattern("index", ",".join(labels)) if labels else "")

    def _format_context_index(self, label: str) -> str:
        return label.replace("l", self.fill_notation_pattern("l"))

    def _print_MatrixSymbol(self, expr: sp.MatrixSymbol) -> str:
        return self.print_theory_symbol(expr.name) or expr.name

    def _print_Symbol(self, expr: sp.Symbol, style: str = "plain") -> str:
        if expr in self.names:
            return self.print_model_symbol(*self.names[expr])
        found = re.fullmatch(r"softmax_([^_]+)(?:_(\w+))?", expr.name)
        if found:
            return self.fill_notation_pattern("softmax", found[1]) + (
                self.fill_notation_pattern("softmax entry", found[2]) if found[2] else ""
            )
        found = re.fullmatch(r"(tau|pi|rhostar|psi|psistar)_(\d+)", expr.name)
        if found:
            return self.entries[STEMS[found[1]]][self.form] + self.fill_notation_pattern(
                "index", str(int(found[2]) + 1)
            )
        if expr.name.startswith("slope@"):
            variable = self._print_Symbol(sp.Symbol(expr.name.removeprefix("slope@"), real=True))
            return self.fill_notation_pattern("derivative", self.fill_notation_pattern("loss"), variable)
        return self.print_theory_symbol(expr.name) or expr.name

    def print_signed_terms(self, total: sp.Add | sp.MatAdd) -> list[str]:
        """Return the printed terms of a sum with their signs, negative terms last."""
        printed: list[str] = []
        for term in order_terms(total):
            negative, bare = _split_minus_sign(term)
            body = self._print(bare)
            if negative and isinstance(bare, sp.Add | sp.MatAdd):
                body = self.fill_notation_pattern("brackets", body)
            if printed:
                body = self.fill_notation_pattern("minus" if negative else "plus", body)
            elif negative:
                body = self.fill_notation_pattern("minus in front", body)
            printed.append(body)
        return printed

    def _print_sum(self, expr: sp.Add | sp.MatAdd, order: Any = None) -> str:
        return " ".join(self.print_signed_terms(expr))

    _print_Add = _print_MatAdd = _print_sum

    def _print_MatMul(self, expr: sp.MatMul) -> str:
        negative, bare = _split_minus_sign(expr)
        if not isinstance(bare, sp.MatMul):
            return ("-" if negative else "") + self._print(bare)
        scalar, factors = bare.as_coeff_matrices()
        numbers = [] if scalar == 1 else [scalar] if not scalar.has(Average) else list(sp.Mul.make_args(scalar))
        parts = [
            self.fill_notation_pattern("brackets", self._print(a)) if _factor_needs_brackets(a) else self._print(a)
            for a in (*numbers, *factors)
        ]
        return ("-" if negative else "") + self.fill_notation_pattern("times").join(parts)

    def _print_Transpose(self, expr: sp.Transpose) -> str:
        return self.fill_notation_pattern("transpose", self.print_base_of_power(expr.arg))

    def _print_Inverse(self, expr: sp.Inverse) -> str:
        return self.fill_notation_pattern("inverse", self.print_base_of_power(expr.arg))

    def print_base_of_power(self, expr: MatrixExpr) -> str:
        """Return the printed base of a matrix power, in brackets unless it is a symbol without an exponent."""
        printed = self._print(expr)
        is_bare = isinstance(expr, sp.MatrixSymbol) and not re.search(self.exponent, printed)
        return printed if is_bare else self.fill_notation_pattern("brackets", printed)

    def _print_Identity(self, expr: sp.Identity) -> str:
        return "I"

    def _print_ZeroMatrix(self, expr: sp.ZeroMatrix) -> str:
        return "0"

    def _print_BlockMatrix(self, expr: sp.BlockMatrix) -> str:
        return self._print(expr.blocks)

    def _print_Tuple(self, expr: Any) -> str:
        return self.fill_notation_pattern("brackets", ", ".join(self._print(e) for e in expr))

    def _print_Trace(self, expr: sp.Trace, exp: Any = None) -> str:
        return self.fill_notation_pattern("trace", self._print(expr.arg))

    def _print_Jacobian(self, expr: Jacobian) -> str:
        """Return a printed Jacobian; inside a sum over tokens l' its numerator keeps the index l of the outer token."""
        variable = self._print(expr.args[1])
        inner, self.at.token = self.at.token, "l"
        field = self._print(expr.args[0])
        self.at.token = inner
        return self.fill_notation_pattern("derivative", field, variable)

    def _print_Derivative(self, expr: sp.Derivative) -> str:
        names = (expr.expr.func.__name__, expr.variables[0].name)
        if not all(name in self.entries for name in names):  # of a function that SymPy cannot differentiate
            return str(super()._print_Derivative(expr))
        function, variable = (self.entries[n][self.form] for n in names)
        return self.fill_notation_pattern("derivative", function, variable)

    def _print_average(self, expr: Average | MatrixAverage) -> str:
        """Return a printed average or sum; the index of a nested sum is primed."""
        at, kind, summand = self.at, expr.kind, expr.summand
        before = (at.context, at.token, at.depth)
        # Quantities of a sentence as a whole are averaged over all sentences.
        whole = isinstance(summand, sp.MatrixSymbol) and summand.name == "loss_phi"
        label = "c" if isinstance(expr, MatrixAverage) and not whole else ""
        if kind == CONTEXTS:
            label = at.context = "c'" if at.depth else "c"
        elif kind == TOKENS and at.depth:
            label = at.token = at.context = "l'"
        elif kind == TOKENS:
            label = "l"
        elif "@" in kind:  # given labels of a sentence, or a row in an atom of the spectrum
            stem, _, own = kind.partition("@")
            label = ",".join(part for part in (self.entries["b"][self.form] if stem == "row" else "", own) if part)
        elif kind not in SUMS and kind not in (*FIELDS, *TILTED):
            at.depth += 1
        body = self._print(summand)
        at.context, at.token, at.depth = before
        if kind == CHANNEL or "@" in kind:
            return (
                self.fill_notation_pattern("mean")
                + (self.fill_notation_pattern("index", label) if label else "")
                + self.fill_notation_pattern("square brackets", body)
            )
        if kind in TILTED:
            return self.fill_notation_pattern("tilted", body)
        if kind in MEANS:
            entry = MEANS[kind] + ("_context" if kind == "output" and label else "")  # in one context if it has a label
            return self.entries[entry][self.form] + self.fill_notation_pattern("square brackets", body)
        index = self.entries[SUMS[kind]][self.form] if kind in SUMS else self._format_context_index(label)
        several = isinstance(summand, sp.Add | sp.MatAdd)
        return self.fill_notation_pattern(
            "sum", index, self.fill_notation_pattern("square brackets", body) if several else body
        )

    _print_Average = _print_MatrixAverage = _print_average

    def _print_LogDet(self, expr: sp.Expr) -> str:
        return self.fill_notation_pattern("log det", self._print(expr.args[0]))

    def _print_LogIntegral(self, expr: sp.Expr) -> str:
        several = self.fill_notation_pattern("all replicas") if "|" in expr.args[1].name else ""
        variable = "X" if expr.args[1].name == "x" else self._print(expr.args[1])
        return self.fill_notation_pattern("log integral", several, variable, self._print(expr.args[0]))

    def print_special_function(self, name: str, arguments: list[str]) -> str | None:
        """Return how a minimum, maximum, derivative or the like is printed; None for an ordinary function.

        Args:
            name: name of the function.
            arguments: its printed arguments.
        """
        written = {"minimum": "minimum", "maximum": "maximum", "gradient": "derivative", "change": "change of"}
        if name == "maximum":
            arguments = [self.entries["w"][self.form], *arguments]
        return self.fill_notation_pattern(written[name], *arguments) if name in written else None

    def print_relation_sign(self, relation: Relation) -> str:
        """Return the printed sign of an equation or inequality, as "=" or "->"."""
        return self.leaves.get(relation.sign, relation.sign)

    def print_object(self, value: Any) -> str:
        """Return a SymPy object as text or LaTeX, in the notation of this printer."""
        if not isinstance(value, UnindexedExpression):
            return self.doprint(value)
        self.stacked = True
        try:
            return self.doprint(value.expression)
        finally:
            self.stacked = False
