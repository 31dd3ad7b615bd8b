"""Row spaces whose entries hold symbols: echelon forms for generic values, coordinates in a basis, right inverses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import sympy as sp

Row = tuple[sp.Expr, ...]
_DIGITS = 30
_ZERO = sp.Float("1e-18")
_LOST = 1e-8  # of a vector, below which a direction is rounding
_DENOMINATOR = 60


class Entries:
    """Arithmetic of entries: what vanishes is seen at values of the symbols, what is left is brought to lowest terms.

    Args:
        draws: generic exact values of every symbol that entries hold.
    """

    def __init__(self, draws: Sequence[Mapping[sp.Symbol, sp.Expr]]) -> None:
        self.draws = draws
        self._tidied: dict[sp.Expr, sp.Expr] = {}

    def vanishes(self, entry: sp.Expr) -> bool:
        """Whether it is zero at every draw."""
        if entry.is_Rational:
            return bool(entry == 0)
        values = [entry.xreplace(dict(draw)) for draw in (self.draws if entry.free_symbols else [{}])]
        return all(bool(abs(value.evalf(_DIGITS)) < _ZERO) for value in values)

    def tidy(self, entry: sp.Expr) -> sp.Expr:
        """The same in lowest terms."""
        if entry.is_Rational:
            return entry
        if entry not in self._tidied:
            self._tidied[entry] = self._lowest(entry)
        return self._tidied[entry]

    def _lowest(self, entry: sp.Expr) -> sp.Expr:
        if self.vanishes(entry):
            return sp.Integer(0)
        try:
            lowest = sp.cancel(entry) if entry.free_symbols else sp.radsimp(entry)
        except sp.PolynomialError:
            return entry
        if not lowest.free_symbols and not lowest.is_Rational:
            near = sp.Rational(str(lowest.evalf(_DIGITS))).limit_denominator(1000)
            lowest = near if self.vanishes(lowest - near) else lowest
        return sp.factor_terms(lowest)


def combined(coefficients: Iterable[sp.Expr], rows: Iterable[Row], entries: Entries) -> Row:
    """The sum of multiples of rows."""
    pairs = [(c, row) for c, row in zip(coefficients, rows, strict=True) if c != 0]
    return tuple(entries.tidy(sp.Add(*[c * e for (c, _), e in zip(pairs, column, strict=True)]))
                 for column in zip(*[row for _, row in pairs], strict=True))  # fmt: skip


def _less(row: Row, factor: sp.Expr, other: Row, entries: Entries) -> Row:
    return tuple(entries.tidy(a - factor * b) if b != 0 else a for a, b in zip(row, other, strict=True))


def _cost(entry: sp.Expr) -> tuple[bool, bool, int]:
    return entry not in (1, -1), bool(entry.free_symbols), int(sp.count_ops(entry))


class Echelon:
    """The reduced echelon form of a row space; columns are taken in their order.

    Attributes:
        rows: its rows, 1 at their pivots, where all others are 0; a unit vector of the space is one of them.
        pivots: their columns, in order.
    """

    def __init__(self, rows: Iterable[Row], entries: Entries) -> None:
        self.entries = entries
        left = [row for row in dict.fromkeys(tuple(entries.tidy(e) for e in row) for row in rows) if any(row)]
        self.rows: list[Row] = []
        self.pivots: list[int] = []
        for column in range(len(left[0]) if left else 0):
            here = [row for row in left if row[column] != 0]
            if not here:
                continue
            chosen = min(here, key=lambda row: (_cost(row[column]), sum(e != 0 for e in row)))
            left.remove(chosen)
            pivot = tuple(entries.tidy(e / chosen[column]) for e in chosen)
            left = [row for row in (_less(row, row[column], pivot, entries) for row in left) if any(row)]
            self.rows = [*[_less(row, row[column], pivot, entries) for row in self.rows], pivot]
            self.pivots.append(column)

    @property
    def rank(self) -> int:
        """Dimension of the space."""
        return len(self.rows)

    def __contains__(self, row: Row) -> bool:
        rest = tuple(self.entries.tidy(e) for e in row)
        for own, pivot in zip(self.rows, self.pivots, strict=True):
            rest = _less(rest, rest[pivot], own, self.entries)
        return not any(rest)


def independent(rows: Iterable[Row], most: int, entries: Entries, columns: slice = slice(None)) -> list[Row]:
    """The first rows of which no one depends on those before it, seen in some of the columns; at most so many."""
    chosen: list[Row] = []
    for row in rows:
        if len(chosen) == most:
            break
        if Echelon([other[columns] for other in (*chosen, row)], entries).rank > len(chosen):
            chosen.append(row)
    return chosen


def coordinates(row: Row, basis: Sequence[Row], entries: Entries) -> Row:
    """Of a row in a basis of a space that holds it."""
    inverse = right_inverse(basis, entries)
    return tuple(entries.tidy(sp.Add(*[row[i] * inverse[i][j] for i in range(len(row))])) for j in range(len(basis)))


def right_inverse(basis: Sequence[Row], entries: Entries) -> list[Row]:
    """R of basis R = 1, n x r, with rows of zeros for all columns of the basis but r, the simplest ones."""
    count = len(basis)
    width = len(basis[0]) if basis else 0
    rows = [(*row, *[sp.Integer(int(i == j)) for j in range(count)]) for i, row in enumerate(basis)]
    pivots: list[int] = []
    for n in reversed(range(count)):  # from below: rows that hold few variables leave theirs alone
        crowd = [sum(row[column] != 0 for row in rows) for column in range(width)]
        pivots.append(min((c for c in range(width) if rows[n][c] != 0), key=lambda c: (_cost(rows[n][c]), crowd[c], c)))
        column = pivots[-1]
        rows[n] = tuple(entries.tidy(e / rows[n][column]) for e in rows[n])
        rows = [row if i == n else _less(row, row[column], rows[n], entries) for i, row in enumerate(rows)]
    owner = dict(zip(pivots, reversed(range(count)), strict=True))
    nothing: Row = (sp.Integer(0),) * count
    return [rows[owner[column]][width:] if column in owner else nothing for column in range(width)]


def orthonormal(vectors: Sequence[Sequence[float]]) -> list[list[float]]:
    """A basis of their span, the longest part that is left first."""
    scale = max((math.hypot(*v) for v in vectors), default=0.0)
    left = [[e / math.hypot(*v) for e in v] for v in vectors if math.hypot(*v) > _LOST * scale]
    basis: list[list[float]] = []
    while left:
        longest = max(left, key=lambda v: math.hypot(*v))
        size = math.hypot(*longest)
        if size < _LOST:
            break
        unit = [e / size for e in longest]
        for _ in range(2):
            for other in basis:
                unit = _without(unit, other)
        unit = [e / math.hypot(*unit) for e in unit]
        basis.append(unit)
        left = [_without(v, unit) for v in left]
    return basis


def _without(vector: Sequence[float], unit: Sequence[float]) -> list[float]:
    along = math.fsum(a * b for a, b in zip(vector, unit, strict=True))
    return [a - along * b for a, b in zip(vector, unit, strict=True)]


def rational_echelon(rows: list[list[float]]) -> tuple[Row, ...] | None:
    """Reduced echelon form, if its entries are rationals of small denominator."""
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
    exact = tuple(tuple(sp.Rational(str(e)).limit_denominator(_DENOMINATOR) for e in row) for row in rows)
    near = all(
        abs(float(a) - b) < 1e-6
        for one, other in zip(exact, rows, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    return exact if near else None
