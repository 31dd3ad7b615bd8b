"""Row spaces whose entries contain symbols: echelon forms at generic values, coordinates in a basis, inverses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import sympy as sp

Row = tuple[sp.Expr, ...]
_ZERO = sp.Float("1e-18")  # rounding of values to 30 digits


class SymbolicEntryArithmetic:
    """The arithmetic of symbolic matrix entries: zeros are recognised by random values, fractions are in lowest terms.

    Args:
        draws: sets of random exact values of all symbols in the entries, by symbol.
        digits: number of decimal digits to which entries are evaluated.
    """

    def __init__(self, draws: Sequence[Mapping[sp.Symbol, sp.Expr]], digits: int = 30) -> None:
        self.draws, self.digits = draws, digits
        self._tidied: dict[sp.Expr, sp.Expr] = {}

    def is_zero(self, entry: sp.Expr) -> bool:
        """Return whether a matrix entry is zero, tested at random values of its symbols."""
        if entry.is_Rational:
            return bool(entry == 0)
        values = [entry.xreplace(dict(draw)) for draw in (self.draws if entry.free_symbols else [{}])]
        return all(bool(abs(value.evalf(self.digits)) < _ZERO) for value in values)

    def to_lowest_terms(self, entry: sp.Expr) -> sp.Expr:
        """Return a matrix entry as a fraction in lowest terms."""
        if entry.is_Rational:
            return entry
        if entry not in self._tidied:
            self._tidied[entry] = self._simplify_matrix_entry(entry)
        return self._tidied[entry]

    def _simplify_matrix_entry(self, entry: sp.Expr) -> sp.Expr:
        if self.is_zero(entry):
            return sp.Integer(0)
        try:
            lowest = sp.cancel(entry) if entry.free_symbols else sp.radsimp(entry)
        except sp.PolynomialError:
            return entry
        if not lowest.free_symbols and not lowest.is_Rational:
            near = sp.Rational(str(lowest.evalf(self.digits))).limit_denominator(1000)
            lowest = near if self.is_zero(lowest - near) else lowest
        return sp.factor_terms(lowest)


def linear_combination_of_rows(
    coefficients: Iterable[sp.Expr], rows: Iterable[Row], entries: SymbolicEntryArithmetic
) -> Row:
    """Return a linear combination of rows with symbolic entries.

    Args:
        coefficients: coefficient of each row.
        rows: the rows.
        entries: arithmetic of the entries.
    """
    pairs = [(c, row) for c, row in zip(coefficients, rows, strict=True) if c != 0]
    return tuple(entries.to_lowest_terms(sp.Add(*[c * e for (c, _), e in zip(pairs, column, strict=True)]))
                 for column in zip(*[row for _, row in pairs], strict=True))  # fmt: skip


def _subtract_row_multiple(row: Row, factor: sp.Expr, other: Row, entries: SymbolicEntryArithmetic) -> Row:
    """Return a row minus `factor` times another row."""
    return tuple(entries.to_lowest_terms(a - factor * b) if b != 0 else a for a, b in zip(row, other, strict=True))


def _pivot_cost(entry: sp.Expr) -> tuple[bool, bool, int]:
    """Return the cost of a matrix entry as a pivot: lowest for 1 and -1, then other numbers, then short expressions."""
    return entry not in (1, -1), bool(entry.free_symbols), int(sp.count_ops(entry))


class EchelonForm:
    """The reduced row echelon form of a matrix with symbolic entries.

    Attributes:
        rows: the non-zero rows; each has entry 1 in its pivot column, where all other rows have 0.
        pivots: pivot column of each row, ascending.
    """

    def __init__(self, rows: Iterable[Row], entries: SymbolicEntryArithmetic) -> None:
        self.entries = entries
        left = [
            row for row in dict.fromkeys(tuple(entries.to_lowest_terms(e) for e in row) for row in rows) if any(row)
        ]
        self.rows: list[Row] = []
        self.pivots: list[int] = []
        for column in range(len(left[0]) if left else 0):
            here = [row for row in left if row[column] != 0]
            if not here:
                continue
            chosen = min(here, key=lambda row: (_pivot_cost(row[column]), sum(e != 0 for e in row)))
            left.remove(chosen)
            pivot = tuple(entries.to_lowest_terms(e / chosen[column]) for e in chosen)
            left = [
                row for row in (_subtract_row_multiple(row, row[column], pivot, entries) for row in left) if any(row)
            ]
            self.rows = [*[_subtract_row_multiple(row, row[column], pivot, entries) for row in self.rows], pivot]
            self.pivots.append(column)

    @property
    def rank(self) -> int:
        """Return the rank of the matrix: the dimension of its row space."""
        return len(self.rows)

    def __contains__(self, row: Row) -> bool:
        rest = tuple(self.entries.to_lowest_terms(e) for e in row)
        for own, pivot in zip(self.rows, self.pivots, strict=True):
            rest = _subtract_row_multiple(rest, rest[pivot], own, self.entries)
        return not any(rest)


def first_independent_rows(
    rows: Iterable[Row], max_rows: int, entries: SymbolicEntryArithmetic, columns: slice = slice(None)
) -> list[Row]:
    """Return the first rows of a matrix that are linearly independent in some of its columns.

    Args:
        rows: the rows.
        max_rows: largest number of rows returned.
        entries: arithmetic of the entries.
        columns: columns in which the rows must be independent.
    """
    chosen: list[Row] = []
    for row in rows:
        if len(chosen) == max_rows:
            break
        if EchelonForm([other[columns] for other in (*chosen, row)], entries).rank > len(chosen):
            chosen.append(row)
    return chosen


def coordinates_in_basis(row: Row, basis: Sequence[Row], entries: SymbolicEntryArithmetic) -> Row:
    """Return the coordinates of a vector (a row) in a basis of a space that contains it.

    Args:
        row: the row.
        basis: rows of the basis.
        entries: arithmetic of the entries.
    """
    inverse = right_inverse(basis, entries)
    return tuple(
        entries.to_lowest_terms(sp.Add(*[row[i] * inverse[i][j] for i in range(len(row))])) for j in range(len(basis))
    )


def right_inverse(basis: Sequence[Row], entries: SymbolicEntryArithmetic) -> list[Row]:
    """Return a right inverse of the matrix whose rows are a basis; most of its rows are zero.

    Args:
        basis: linearly independent rows.
        entries: arithmetic of the entries.
    """
    count = len(basis)
    width = len(basis[0]) if basis else 0
    rows = [(*row, *[sp.Integer(int(i == j)) for j in range(count)]) for i, row in enumerate(basis)]
    pivots: list[int] = []
    for n in reversed(range(count)):  # from below: rows with few variables keep theirs
        row_counts = [sum(row[column] != 0 for row in rows) for column in range(width)]
        pivots.append(
            min((c for c in range(width) if rows[n][c] != 0), key=lambda c: (_pivot_cost(rows[n][c]), row_counts[c], c))
        )
        column = pivots[-1]
        rows[n] = tuple(entries.to_lowest_terms(e / rows[n][column]) for e in rows[n])
        rows = [
            row if i == n else _subtract_row_multiple(row, row[column], rows[n], entries) for i, row in enumerate(rows)
        ]
    owner = dict(zip(pivots, reversed(range(count)), strict=True))
    nothing: Row = (sp.Integer(0),) * count
    return [rows[owner[column]][width:] if column in owner else nothing for column in range(width)]


def orthonormal_basis(vectors: Sequence[Sequence[float]], rank_tolerance: float = 1e-8) -> list[list[float]]:
    """Return an orthonormal basis of the span of vectors, by pivoted Gram-Schmidt orthogonalisation.

    Args:
        vectors: the vectors.
        rank_tolerance: relative length below which a remaining direction counts as a rounding error; larger values give
            a smaller basis.
    """
    scale = max((math.hypot(*v) for v in vectors), default=0.0)
    left = [[e / math.hypot(*v) for e in v] for v in vectors if math.hypot(*v) > rank_tolerance * scale]
    basis: list[list[float]] = []
    while left:
        longest = max(left, key=lambda v: math.hypot(*v))
        size = math.hypot(*longest)
        if size < rank_tolerance:
            break
        unit = [e / size for e in longest]
        for _ in range(2):
            for other in basis:
                unit = _remove_component(unit, other)
        unit = [e / math.hypot(*unit) for e in unit]
        basis.append(unit)
        left = [_remove_component(v, unit) for v in left]
    return basis


def _remove_component(vector: Sequence[float], unit: Sequence[float]) -> list[float]:
    """Return a vector without its component along a unit vector."""
    along = math.fsum(a * b for a, b in zip(vector, unit, strict=True))
    return [a - along * b for a, b in zip(vector, unit, strict=True)]


def rational_echelon_form(rows: list[list[float]], max_denominator: int = 60) -> tuple[Row, ...] | None:
    """Return the reduced row echelon form of a matrix of doubles in exact rational numbers.

    Args:
        rows: rows of the matrix, changed in place.
        max_denominator: largest denominator; larger values accept more accidental fractions.

    Returns:
        the rows; None if an entry is not a rational number with a small denominator.
    """
    width, done = len(rows[0]), 0
    for column in range(width):
        if done == len(rows):
            break
        best = max(range(done, len(rows)), key=lambda n: abs(rows[n][column]))
        if abs(rows[best][column]) < 1e-6:
            continue
        rows[done], rows[best] = rows[best], rows[done]
        rows[done] = [e / rows[done][column] for e in rows[done]]
        for n in range(len(rows)):
            if n != done:
                rows[n] = [a - rows[n][column] * b for a, b in zip(rows[n], rows[done], strict=True)]
        done += 1
    exact = tuple(tuple(sp.Rational(str(e)).limit_denominator(max_denominator) for e in row) for row in rows)
    near = all(
        abs(float(a) - b) < 1e-6
        for one, other in zip(exact, rows, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    return exact if near else None
