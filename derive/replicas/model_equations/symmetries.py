"""Symmetries of the loss and the law of a model, tested at random points: signs of fields, exchanged tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

import sympy as sp

from ...authoring.language import token_variance_symbol
from ...authoring.model import FixedSizeModel
from ...authoring.parameters import DiscreteNoise, flatten_entries
from ...calculus.numeric import is_identically_zero


def count_token_cluster_pairs(at: FixedSizeModel) -> int:
    """Return the number of pairs of token and cluster of a model."""
    return at.structure.tokens * at.structure.clusters


def _is_invariant_under_map(expressions: list[sp.Expr], move: Mapping[Any, Any], at: FixedSizeModel) -> bool:
    """Return whether a change of variables leaves the expressions unchanged at random points, whatever the labels."""
    changes = [e - e.xreplace(dict(move)) for e in expressions]
    for labels in product(range(at.structure.clusters), repeat=len(at.labels)):
        chosen = dict(zip(at.labels, map(sp.Integer, labels), strict=True))
        if not all(is_identically_zero(change.xreplace(chosen).doit()) for change in changes):
            return False
    return True


def _loss_and_noise_probabilities(at: FixedSizeModel) -> list[sp.Expr]:
    """Return the loss of a model and the probabilities of its discrete noise, as expressions."""
    laws = [law for _, law in at.noise.values() if isinstance(law, DiscreteNoise)]
    return [at.loss, *[sp.sympify(p) for law in laws for p in law.probabilities]]


def is_even_in_fields(at: FixedSizeModel, students: bool) -> bool:
    """Return whether loss, penalty and law stay the same when all fields of student or teacher change sign.

    For the teacher, this requires that no mean coordinate is correlated with its weights.

    Args:
        at: model with fixed sizes L, s, t.
        students: True for the fields of the student, False for those of the teacher.
    """
    fields = at.X if students else at.Y
    if not students:
        count = count_token_cluster_pairs(at)
        known = [e for gram in at.law["gram"] for row in gram[:count] for e in row[count:]]
        if any(e != 0 for e in (*known, *flatten_entries(at.law["teacher_means"]))):
            return False
    penalty = at.penalty
    if penalty is not None and not students and at.has_discrete_teacher:
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
        if not is_identically_zero(flipped - penalty.expression):
            return False
    return _is_invariant_under_map(_loss_and_noise_probabilities(at), {z: -z for z in fields}, at)


def _token_exchange_map(at: FixedSizeModel, first: int, second: int) -> dict[Any, Any]:
    """Map fields, weights, overlaps, labels and entries of parameters to their images when two tokens are exchanged.

    Args:
        at: model with fixed sizes L, s, t.
        first: index of a token, from 0.
        second: index of the other token.
    """
    tokens, order = at.structure.tokens, list(range(at.structure.tokens))
    order[first], order[second] = second, first
    move: dict[Any, Any] = {}
    for matrix in (at.X, at.Y):
        move |= {matrix[l, a]: matrix[order[l], a] for l in range(tokens) for a in range(matrix.cols)}
    move |= {token_variance_symbol(l): token_variance_symbol(order[l]) for l in range(tokens)}
    move |= {k: at.labels[order[l]] for l, k in enumerate(at.labels)}
    for l, q in enumerate(at.Q):
        move |= dict(zip(q, at.Q[order[l]], strict=True))
    for parameter in at.parameters.values():
        symbols = parameter.argument_symbols(at.structure)
        if isinstance(symbols, sp.MatrixBase):
            rows = order if symbols.rows == tokens else range(symbols.rows)
            columns = order if symbols.cols == tokens else range(symbols.cols)
            move |= dict(zip(symbols, symbols.extract(list(rows), list(columns)), strict=True))
        elif isinstance(symbols, tuple) and len(symbols) == tokens > 1 and parameter.name != "lambda_":
            move |= {z: symbols[order[l]] for l, z in enumerate(symbols)}
    return {old: new for old, new in move.items() if old != new}


def is_invariant_under_token_exchange(at: FixedSizeModel, first: int, second: int) -> bool:
    """Return whether loss and law are invariant when two tokens are exchanged together with the parameters' entries.

    Args:
        at: model with fixed sizes L, s, t.
        first: index of a token, from 0.
        second: index of the other token.
    """
    if at.structure.clusters > 1:
        return False  # it is not known which axes of the parameters are tokens
    move = _token_exchange_map(at, first, second)
    order = list(range(count_token_cluster_pairs(at) + at.structure.teacher_rank))
    order[first], order[second] = second, first

    def _exchange_tokens(e: Any) -> Any:
        return sp.sympify(e).xreplace(move)

    law = at.law
    for spectrum, gram in zip(law["covariance"], law["gram"], strict=True):
        if any(_exchange_tokens(spectrum[c]) != spectrum[order[c]] for c in range(count_token_cluster_pairs(at))):
            return False
        if any(
            _exchange_tokens(gram[a][b]) != gram[order[a]][order[b]] for a in range(len(gram)) for b in range(len(gram))
        ):
            return False
    if any(_exchange_tokens(e) != f for c, row in enumerate(law["teacher_means"])
           for e, f in zip(row, law["teacher_means"][order[c]], strict=True)):  # fmt: skip
        return False
    return _is_invariant_under_map(_loss_and_noise_probabilities(at), move, at)


def has_exchange_invariant_defaults(at: FixedSizeModel, first: int, second: int) -> bool:
    """Return whether the default values of the parameters are invariant when two tokens are exchanged.

    Args:
        at: model with fixed sizes L, s, t.
        first: index of a token, from 0.
        second: index of the other token.
    """
    values = dict(zip(at.parameter_symbols(), at.parameter_defaults(), strict=True))
    move = _token_exchange_map(at, first, second)
    return all(values[new] == values[old] for old, new in move.items() if old in values)
