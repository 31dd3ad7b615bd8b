"""What the loss and the law of a model do not notice, by values at random points: signs of fields, exchanged tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import sympy as sp

from ...authoring.language import token_weight
from ...authoring.model import ModelAt
from ...authoring.parameters import DiscreteNoise, leaves
from ...calculus.numeric import vanishes


def number_of_contexts(at: ModelAt) -> int:
    """Pairs of a token and a cluster."""
    return at.structure.tokens * at.structure.clusters


def _unchanged(expressions: list[sp.Expr], move: Mapping[Any, Any], at: ModelAt) -> bool:
    """Return whether a change of variables leaves expressions alone at random points, whatever the labels."""
    changes = [e - e.xreplace(dict(move)) for e in expressions]
    for labels in product(range(at.structure.clusters), repeat=len(at.labels)):
        chosen = dict(zip(at.labels, map(sp.Integer, labels), strict=True))
        if not all(vanishes(change.xreplace(chosen).doit()) for change in changes):
            return False
    return True


def _of_sentence(at: ModelAt) -> list[sp.Expr]:
    """The loss and the probabilities of discrete noise."""
    laws = [law for _, law in at.noise.values() if isinstance(law, DiscreteNoise)]
    return [at.loss, *[sp.sympify(p) for law in laws for p in law.probabilities]]


def is_even(at: ModelAt, students: bool) -> bool:
    """Whether the loss is even in all fields of the student, or of a centred teacher that no mean coordinate knows."""
    fields = at.X if students else at.Y
    if not students:
        count = number_of_contexts(at)
        known = [e for gram in at.law["gram"] for row in gram[:count] for e in row[count:]]
        if any(e != 0 for e in (*known, *leaves(at.law["teacher_means"]))):
            return False
    penalty = at.penalty
    if penalty is not None and not students and at.has_few_values:
        probabilities, values = at.law["rows"]
        opposite = [tuple(-v for v in row) for row in values]
        one, other = (Counter(zip(probabilities, rows, strict=True)) for rows in (values, opposite))
        if one != other:
            return False
    if penalty is not None:
        w = list(penalty.w) if students else list(penalty.pi)
        if penalty.expression.has(*penalty.pi) or (not students and penalty.expression.has(*w)):
            return False
        flipped = penalty.expression.xreplace({z: -z for z in w})
        if not vanishes(flipped - penalty.expression):
            return False
    return _unchanged(_of_sentence(at), {z: -z for z in fields}, at)


def exchange(at: ModelAt, first: int, second: int) -> dict[Any, Any]:
    """Fields, weights, overlaps, labels and entries of the parameters with two tokens exchanged."""
    tokens, order = at.structure.tokens, list(range(at.structure.tokens))
    order[first], order[second] = second, first
    move: dict[Any, Any] = {}
    for matrix in (at.X, at.Y):
        move |= {matrix[l, a]: matrix[order[l], a] for l in range(tokens) for a in range(matrix.cols)}
    move |= {token_weight(l): token_weight(order[l]) for l in range(tokens)}
    move |= {k: at.labels[order[l]] for l, k in enumerate(at.labels)}
    for l, q in enumerate(at.Q):
        move |= dict(zip(q, at.Q[order[l]], strict=True))
    for parameter in at.parameters.values():
        symbols = parameter.symbols(at.structure)
        if isinstance(symbols, sp.MatrixBase):
            rows = order if symbols.rows == tokens else range(symbols.rows)
            columns = order if symbols.cols == tokens else range(symbols.cols)
            move |= dict(zip(symbols, symbols.extract(list(rows), list(columns)), strict=True))
        elif isinstance(symbols, tuple) and len(symbols) == tokens > 1 and parameter.name != "lambda_":
            move |= {z: symbols[order[l]] for l, z in enumerate(symbols)}
    return {old: new for old, new in move.items() if old != new}


def is_exchangeable(at: ModelAt, first: int, second: int) -> bool:
    """Whether loss and law take the exchange of two tokens, with the parameters' entries, as no change."""
    if at.structure.clusters > 1:
        return False  # the parameters of a law of clusters do not tell which of their axes are tokens
    move = exchange(at, first, second)
    order = list(range(number_of_contexts(at) + at.structure.teacher_rank))
    order[first], order[second] = second, first

    def moved(e: Any) -> Any:
        return sp.sympify(e).xreplace(move)

    law = at.law
    for spectrum, gram in zip(law["covariance"], law["gram"], strict=True):
        if any(moved(spectrum[c]) != spectrum[order[c]] for c in range(number_of_contexts(at))):
            return False
        if any(moved(gram[a][b]) != gram[order[a]][order[b]] for a in range(len(gram)) for b in range(len(gram))):
            return False
    if any(moved(e) != f for c, row in enumerate(law["teacher_means"])
           for e, f in zip(row, law["teacher_means"][order[c]], strict=True)):  # fmt: skip
        return False
    return _unchanged(_of_sentence(at), move, at)


def keeps_defaults(at: ModelAt, first: int, second: int) -> bool:
    """Whether the exchange of two tokens leaves the parameters' defaults alone."""
    values = dict(zip(at.parameter_symbols(), at.parameter_defaults(), strict=True))
    move = exchange(at, first, second)
    return all(values[new] == values[old] for old, new in move.items() if old in values)
