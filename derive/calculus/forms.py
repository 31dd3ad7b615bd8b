"""Affine forms in which expressions are written, as rows of their coefficients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy as sp
from sympy.core.relational import Relational

from .functions import SoftmaxEntry
from .spans import Entries, Row

_MOST_OPERATIONS = 400  # of a polynomial that is expanded


def affine_row(e: sp.Basic, held: set[sp.Symbol]) -> dict[sp.Symbol, sp.Expr] | None:
    """Symbol of `held` -> its coefficient in an expression that is written as an affine one; None where it is not."""
    if not e.free_symbols & held:
        return {}
    if e in held:
        return {e: sp.Integer(1)}
    if isinstance(e, sp.Add):
        total: dict[sp.Symbol, sp.Expr] = {}
        for term in e.args:
            row = affine_row(term, held)
            if row is None:
                return None
            for v, coefficient in row.items():
                total[v] = total.get(v, sp.Integer(0)) + coefficient
        return total
    if isinstance(e, sp.Mul):
        inside = [a for a in e.args if a.free_symbols & held]
        row = affine_row(inside[0], held) if len(inside) == 1 else None
        if row is None:
            return None
        factor = sp.Mul(*[a for a in e.args if a is not inside[0]])
        return {v: factor * coefficient for v, coefficient in row.items()}
    return None


def deciding(switch: sp.Expr) -> list[sp.Expr]:
    """Factors of which the sign of a switch is the product, without those that are positive."""
    return [factor for factor in sp.Mul.make_args(switch) if not factor.is_positive]


def scaled(row: Row, entries: Entries) -> Row:
    """A multiple that divides by no parameter, with a first coefficient of one where that can be."""
    choices = []
    for n, pivot in enumerate(row):
        if pivot != 0:
            scaled = tuple(entries.tidy(e / pivot) for e in row)
            below = sum(bool(sp.fraction(sp.together(e))[1].free_symbols) for e in scaled)
            choices.append((below, sum(bool(e.free_symbols) for e in scaled), n, scaled))
    below, *_, chosen = min(choices, key=lambda choice: choice[:3])
    if below:
        common = sp.lcm_list([sp.fraction(sp.together(e))[1] for e in chosen])
        chosen = tuple(entries.tidy(e * common) for e in chosen)
    leading = next(e for e in chosen if e != 0)
    return tuple(-e for e in chosen) if leading.could_extract_minus_sign() else chosen


class Forms:
    """Rows that together decide expressions, in the order in which these hold them.

    Args:
        expressions: real, in `variables` and others.
        variables: what the rows have columns for.
        varying: symbols that no row may hold.
        by_coefficients: a polynomial counts for the span of its gradients, not for the forms it is written in.
    """

    def __init__(
        self,
        expressions: Iterable[sp.Expr],
        variables: Sequence[sp.Symbol],
        entries: Entries,
        varying: Sequence[sp.Symbol] = (),
        by_coefficients: bool = False,
    ) -> None:
        self.entries, self.varying, self.by_coefficients = entries, varying, by_coefficients
        self.variables = {v: n for n, v in enumerate(variables)}
        self.held = set(variables)
        self._found: dict[Row, None] = {}
        self._seen: set[sp.Basic] = set()
        for expression in expressions:
            self._walk(expression)

    @property
    def rows(self) -> list[Row]:
        """Each with a first coefficient of one, where that divides by no parameter."""
        return list(self._found)

    def _walk(self, e: sp.Basic) -> None:
        if e in self._seen or not e.free_symbols & self.held:
            return
        self._seen.add(e)
        affine = affine_row(e, self.held)
        if affine is not None:
            self._add(affine)
        elif self.by_coefficients and self._is_polynomial(e):
            self._gradients(e)
        elif isinstance(e, sp.Add):
            easy = self._is_polynomial if self.by_coefficients else lambda a: affine_row(a, self.held) is not None
            together = [a for a in e.args if a.free_symbols & self.held and easy(a)]
            rest = [a for a in e.args if a not in together]
            for part in [sp.Add(*together), *rest]:
                self._walk(part)
        elif isinstance(e, SoftmaxEntry):
            for logit in e.args[2:]:
                self._walk(logit - e.args[1])
        elif isinstance(e, Relational):
            for factor in deciding(e.lhs - e.rhs):
                self._walk(factor)
        elif isinstance(e, sp.sign | sp.Heaviside):
            for factor in deciding(e.args[0]):
                self._walk(factor)
        else:
            for a in e.args:
                self._walk(a)

    def _is_polynomial(self, e: sp.Basic) -> bool:
        small = isinstance(e, sp.Expr) and sp.count_ops(e) <= _MOST_OPERATIONS
        return bool(small and e.is_polynomial(*(e.free_symbols & self.held)))

    def _gradients(self, polynomial: sp.Expr) -> None:
        variables = sorted(polynomial.free_symbols & self.held, key=self.variables.__getitem__)
        slopes: dict[tuple[int, ...], dict[sp.Symbol, sp.Expr]] = {}
        for powers, coefficient in sp.Poly(polynomial, *variables).terms():
            for n, v in enumerate(variables):
                if powers[n]:
                    lower = (*powers[:n], powers[n] - 1, *powers[n + 1 :])
                    slopes.setdefault(lower, {})[v] = powers[n] * coefficient
        for slope in slopes.values():
            self._add(slope)

    def _add(self, slopes: Mapping[sp.Symbol, sp.Expr]) -> None:
        dense = [sp.Integer(0)] * len(self.variables)
        for v, coefficient in slopes.items():
            dense[self.variables[v]] = self.entries.tidy(coefficient)
        if any(dense):
            for row in self._constant(scaled(tuple(dense), self.entries)):
                self._found.setdefault(row)

    def _constant(self, row: Row) -> list[Row]:
        """Rows without q and trained numbers whose span holds the row."""
        varying = [s for s in self.varying if any(e.has(s) for e in row)]
        if not varying:
            return [row]
        try:
            common = sp.lcm_list([sp.fraction(sp.together(e))[1] for e in row])
            parts: dict[tuple[int, ...], list[sp.Expr]] = {}
            for n, e in enumerate(row):
                for powers, coefficient in sp.Poly(sp.cancel(e * common), *varying).terms():
                    parts.setdefault(powers, [sp.Integer(0)] * len(row))[n] = coefficient
            rows = [scaled(tuple(part), self.entries) for part in parts.values() if any(part)]
            if not any(e.has(*varying) for part in rows for e in part):
                return rows
        except sp.PolynomialError:
            pass
        return [tuple(sp.Integer(int(i == n)) for i in range(len(row))) for n, e in enumerate(row) if e != 0]
