"""The symbols of a model: what its fields, noise, labels and parameters are called, and what words about it name."""

from __future__ import annotations

from typing import Any

import sympy as sp

from ..authoring.language import token_weight
from ..authoring.model import ModelAt
from ..theory.kinks import integration_variables
from .blocks import Names
from .names import GREEK


def fresh_fields(at: ModelAt) -> sp.Matrix:
    """Symbols h of the student's fields in the metric, L x s, which at.metric writes like those of the loss."""
    return sp.Matrix(*at.X.shape, lambda l, a: sp.Symbol(f"h_{l}_{a}", real=True))


def combination_symbol(number: int) -> sp.Symbol:
    """The symbol of a combination of fields and noise that a loss reads, counted from 0."""
    return sp.Symbol(f"combination_{number}", real=True)


def entry_symbol(name: str) -> sp.Symbol:
    """The symbol that stands for a parameter, or a general entry of it, in a table."""
    return sp.Symbol(f"entry {name}")


def _bare_symbol(name: str) -> sp.Symbol:
    """The symbol that stands for a parameter as a whole."""
    return sp.Symbol(f"bare {name}")


def spoken(at: ModelAt) -> dict[str, Any]:
    """What words about the model call by a letter: its parameters, the weights and a row of them."""
    letters = {name.rstrip("_"): _bare_symbol(name) for name in at.parameters}
    weights = {name: sp.Symbol(name) for name in ("W", "w")}
    return weights | {name: symbol for name, symbol in letters.items() if len(name) == 1 or name in GREEK}


def symbols_of(at: ModelAt) -> Names:
    """symbol -> (stem, indices from 1) of fields, noise, labels, weights and parameters; axes of length 1 drop."""
    names: Names = {}

    def add(matrix: sp.MatrixBase, stem: str) -> None:
        for i in range(matrix.rows):
            for j in range(matrix.cols):
                both = (i + 1, j + 1)
                names[matrix[i, j]] = (stem, tuple(n for n, size in zip(both, matrix.shape, strict=True) if size > 1))

    add(at.X, "x")
    add(at.Y, "y")
    add(fresh_fields(at), "h")
    if at.baseline:
        add(at.baseline[1], "B0")
    names |= {symbol: (f"noise {name}", ()) for name, (symbol, _) in at.noise.items()}
    given = {name.rstrip("_") for name in (*at.noise, *at.trained, *at.parameters)}
    letter = next(letter for letter in ("r", "v", "combination") if letter not in given)
    names |= {combination_symbol(n): (letter, (n + 1,)) for n in range(len(integration_variables(at)))}
    names |= {label: ("k", (l + 1,)) for l, label in enumerate(at.labels)}
    add(sp.Matrix([token_weight(l) for l in range(len(at.labels))]), "rho")
    for group, short in (("observed", "obs"), ("hidden", "hid")):
        for coordinate in getattr(at.output, group, ()):
            word = coordinate.name.rstrip("0123456789")
            number = coordinate.name.removeprefix(word)
            names[coordinate.symbol] = (f"{group} {word.rstrip('_')}", (int(number), short) if number else (short,))

    def parameter(value: Any, stem: str, indices: tuple[int, ...]) -> None:
        if isinstance(value, sp.MatrixBase):
            value = tuple(tuple(value.row(i)) for i in range(value.rows))
        if isinstance(value, tuple):
            for i, inner in enumerate(value):
                parameter(inner, stem, (*indices, i + 1) if len(value) > 1 else indices)
        else:
            names[value] = stem, indices

    for l, matrix in enumerate(at.Q):
        for a in range(matrix.rows):
            for b in range(a, matrix.cols):
                both = (l + 1, a + 1, b + 1) if matrix.rows > 1 else (l + 1,)
                names[matrix[a, b]] = ("overlap q", both)
    add(sp.Matrix(at.multipliers), "parameter lambda")
    names |= {symbol: (f"parameter {name}", ()) for name, (symbol, _) in at.trained.items()}
    if at.penalty is not None:
        add(at.penalty.w, "row w")
        add(at.penalty.pi, "row pi")
    for known in at.parameters.values():
        stem = f"parameter {known.name.rstrip('_')}"
        parameter(known.symbols(at.structure), stem, ())
        axes = [size for size in known.shape(at.structure) if size > 1]
        names[entry_symbol(known.name)] = stem, tuple("ijkl"[: len(axes)])
        names[_bare_symbol(known.name)] = stem, ()
    return names
