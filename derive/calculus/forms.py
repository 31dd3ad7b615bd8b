"""Affine forms that occur in expressions, as rows of their coefficients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy as sp
from sympy.core.relational import Relational

from .functions import SoftmaxEntry
from .spans import Row, SymbolicEntryArithmetic


def affine_coefficients(e: sp.Basic, variable_set: set[sp.Symbol]) -> dict[sp.Symbol, sp.Expr] | None:
    """Return the coefficients of an expression that is written as an affine function; None if it is not.

    Args:
        e: the expression.
        variable_set: the variables; coefficients may contain other symbols.

    Returns:
        variable -> coefficient, without the constant term.
    """
    if not e.free_symbols & variable_set:
        return {}
    if e in variable_set:
        return {e: sp.Integer(1)}
    if isinstance(e, sp.Add):
        total: dict[sp.Symbol, sp.Expr] = {}
        for term in e.args:
            row = affine_coefficients(term, variable_set)
            if row is None:
                return None
            for v, coefficient in row.items():
                total[v] = total.get(v, sp.Integer(0)) + coefficient
        return total
    if isinstance(e, sp.Mul):
        inside = [a for a in e.args if a.free_symbols & variable_set]
        row = affine_coefficients(inside[0], variable_set) if len(inside) == 1 else None
        if row is None:
            return None
        factor = sp.Mul(*[a for a in e.args if a is not inside[0]])
        return {v: factor * coefficient for v, coefficient in row.items()}
    return None


def factors_deciding_sign(switch: sp.Expr) -> list[sp.Expr]:
    """Return those factors of an expression that determine its sign: all that are not known to be positive."""
    return [factor for factor in sp.Mul.make_args(switch) if not factor.is_positive]


def normalise_coefficient_row(row: Row, entries: SymbolicEntryArithmetic) -> Row:
    """Return a multiple of a row of coefficients in which no denominator contains a symbol, with entries 1 if possible.

    Args:
        row: the row, not zero.
        entries: arithmetic of the coefficients.
    """
    choices = []
    for n, pivot in enumerate(row):
        if pivot != 0:
            scaled = tuple(entries.to_lowest_terms(e / pivot) for e in row)
            below = sum(bool(sp.fraction(sp.together(e))[1].free_symbols) for e in scaled)
            choices.append((below, sum(bool(e.free_symbols) for e in scaled), n, scaled))
    below, *_, chosen = min(choices, key=lambda choice: choice[:3])
    if below:
        common = sp.lcm_list([sp.fraction(sp.together(e))[1] for e in chosen])
        chosen = tuple(entries.to_lowest_terms(e * common) for e in chosen)
    leading = next(e for e in chosen if e != 0)
    return tuple(-e for e in chosen) if leading.could_extract_minus_sign() else chosen


class AffineForms:
    """The affine functions of some variables through which expressions depend on these, as rows of coefficients.

    Args:
        expressions: the expressions.
        variables: the variables, one for each column of the rows.
        entries: arithmetic of the coefficients.
        varying: symbols that no coefficient may contain.
        by_coefficients: whether polynomials contribute the span of their gradients instead of the affine functions
            that are written in them.
        max_operations: length of the longest polynomial to which this applies.
    """

    def __init__(
        self,
        expressions: Iterable[sp.Expr],
        variables: Sequence[sp.Symbol],
        entries: SymbolicEntryArithmetic,
        varying: Sequence[sp.Symbol] = (),
        by_coefficients: bool = False,
        max_operations: int = 400,
    ) -> None:
        self.entries, self.varying = entries, varying
        self.by_coefficients, self.max_operations = by_coefficients, max_operations
        self.variables = {v: n for n, v in enumerate(variables)}
        self.variable_set = set(variables)
        self._found: dict[Row, None] = {}
        self._seen: set[sp.Basic] = set()
        for expression in expressions:
            self._collect_affine_forms(expression)

    @property
    def coefficient_rows(self) -> list[Row]:
        """Return the coefficients of the affine functions, one row per function, in the order of occurrence."""
        return list(self._found)

    def _collect_affine_forms(self, e: sp.Basic) -> None:
        """Add rows for the affine functions that occur in an expression or its subexpressions to the collection."""
        if e in self._seen or not e.free_symbols & self.variable_set:
            return
        self._seen.add(e)
        affine = affine_coefficients(e, self.variable_set)
        if affine is not None:
            self._add_coefficient_row(affine)
        elif self.by_coefficients and self._is_short_polynomial(e):
            self._add_coefficients_of_gradient(e)
        elif isinstance(e, sp.Add):
            easy = (
                self._is_short_polynomial
                if self.by_coefficients
                else lambda a: affine_coefficients(a, self.variable_set) is not None
            )
            together = [a for a in e.args if a.free_symbols & self.variable_set and easy(a)]
            rest = [a for a in e.args if a not in together]
            for part in [sp.Add(*together), *rest]:
                self._collect_affine_forms(part)
        elif isinstance(e, SoftmaxEntry):
            for logit in e.args[2:]:
                self._collect_affine_forms(logit - e.args[1])
        elif isinstance(e, Relational):
            for factor in factors_deciding_sign(e.lhs - e.rhs):
                self._collect_affine_forms(factor)
        elif isinstance(e, sp.sign | sp.Heaviside):
            for factor in factors_deciding_sign(e.args[0]):
                self._collect_affine_forms(factor)
        else:
            for a in e.args:
                self._collect_affine_forms(a)

    def _is_short_polynomial(self, e: sp.Basic) -> bool:
        small = isinstance(e, sp.Expr) and sp.count_ops(e) <= self.max_operations
        return bool(small and e.is_polynomial(*(e.free_symbols & self.variable_set)))

    def _add_coefficients_of_gradient(self, polynomial: sp.Expr) -> None:
        """Add the rows of a polynomial's gradient: for each monomial, its coefficients in all partial derivatives."""
        variables = sorted(polynomial.free_symbols & self.variable_set, key=self.variables.__getitem__)
        slopes: dict[tuple[int, ...], dict[sp.Symbol, sp.Expr]] = {}
        for powers, coefficient in sp.Poly(polynomial, *variables).terms():
            for n, v in enumerate(variables):
                if powers[n]:
                    lower = (*powers[:n], powers[n] - 1, *powers[n + 1 :])
                    slopes.setdefault(lower, {})[v] = powers[n] * coefficient
        for slope in slopes.values():
            self._add_coefficient_row(slope)

    def _add_coefficient_row(self, slopes: Mapping[sp.Symbol, sp.Expr]) -> None:
        dense = [sp.Integer(0)] * len(self.variables)
        for v, coefficient in slopes.items():
            dense[self.variables[v]] = self.entries.to_lowest_terms(coefficient)
        if any(dense):
            for row in self._rows_without_varying_symbols(normalise_coefficient_row(tuple(dense), self.entries)):
                self._found.setdefault(row)

    def _rows_without_varying_symbols(self, row: Row) -> list[Row]:
        """Return rows without the symbols `varying` whose span contains a given row."""
        varying = [s for s in self.varying if any(e.has(s) for e in row)]
        if not varying:
            return [row]
        try:
            common = sp.lcm_list([sp.fraction(sp.together(e))[1] for e in row])
            parts: dict[tuple[int, ...], list[sp.Expr]] = {}
            for n, e in enumerate(row):
                for powers, coefficient in sp.Poly(sp.cancel(e * common), *varying).terms():
                    parts.setdefault(powers, [sp.Integer(0)] * len(row))[n] = coefficient
            rows = [normalise_coefficient_row(tuple(part), self.entries) for part in parts.values() if any(part)]
            if not any(e.has(*varying) for part in rows for e in part):
                return rows
        except sp.PolynomialError:
            pass
        return [tuple(sp.Integer(int(i == n)) for i in range(len(row))) for n, e in enumerate(row) if e != 0]
