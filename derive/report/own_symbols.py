"""The symbols of a model: those of its fields, noise, labels and parameters, and those that words about it name."""

from __future__ import annotations

from typing import Any

import sympy as sp

from ..authoring.language import token_variance_symbol
from ..authoring.model import FixedSizeModel
from ..theory.kinks import integration_variables
from .blocks import Names
from .names import GREEK


def metric_field_symbols(at: FixedSizeModel) -> sp.Matrix:
    """Return the L x s symbols h under which reports print the student's fields in the metric."""
    return sp.Matrix(*at.X.shape, lambda l, a: sp.Symbol(f"h_{l}_{a}", real=True))


def active_combination_symbol(number: int) -> sp.Symbol:
    """Return the symbol of a linear combination of fields and noise that a loss depends on; numbers start at 0."""
    return sp.Symbol(f"combination_{number}", real=True)


def indexed_parameter_symbol(name: str) -> sp.Symbol:
    """Return the symbol that is printed as a parameter with indices i, j, ... for the axes of an array."""
    return sp.Symbol(f"entry {name}")


def _unindexed_parameter_symbol(name: str) -> sp.Symbol:
    """Return the symbol that is printed as a parameter without indices, also for an array."""
    return sp.Symbol(f"bare {name}")


def symbols_named_in_descriptions(at: FixedSizeModel) -> dict[str, Any]:
    """Return the symbols (by name) that replace names in descriptions: W, w and parameters named by one letter."""
    letters = {name.rstrip("_"): _unindexed_parameter_symbol(name) for name in at.parameters}
    weights = {name: sp.Symbol(name) for name in ("W", "w")}
    return weights | {name: symbol for name, symbol in letters.items() if len(name) == 1 or name in GREEK}


def model_symbols(at: FixedSizeModel) -> Names:
    """Return how the model's symbols are printed: symbol -> (name with its kind, indices counted from 1).

    They are fields, noise, labels, overlaps, weights and parameters. Axes of length 1 have no index.
    """
    names: Names = {}

    def _add_matrix_symbols(matrix: sp.MatrixBase, stem: str) -> None:
        for i in range(matrix.rows):
            for j in range(matrix.cols):
                both = (i + 1, j + 1)
                names[matrix[i, j]] = (stem, tuple(n for n, size in zip(both, matrix.shape, strict=True) if size > 1))

    _add_matrix_symbols(at.X, "x")
    _add_matrix_symbols(at.Y, "y")
    _add_matrix_symbols(metric_field_symbols(at), "h")
    if at.baseline:
        _add_matrix_symbols(at.baseline[1], "B0")
    names |= {symbol: (f"noise {name}", ()) for name, (symbol, _) in at.noise.items()}
    given = {name.rstrip("_") for name in (*at.noise, *at.trained, *at.parameters)}
    letter = next(letter for letter in ("r", "v", "combination") if letter not in given)
    names |= {active_combination_symbol(n): (letter, (n + 1,)) for n in range(len(integration_variables(at)))}
    _add_matrix_symbols(sp.Matrix(at.labels), "k")
    _add_matrix_symbols(sp.Matrix([token_variance_symbol(l) for l in range(len(at.labels))]), "rho")
    for group, short in (("observed", "obs"), ("hidden", "hid")):
        for coordinate in getattr(at.output, group, ()):
            word = coordinate.name.rstrip("0123456789")
            number = coordinate.name.removeprefix(word)
            names[coordinate.symbol] = (f"{group} {word.rstrip('_')}", (int(number), short) if number else (short,))

    def _add_parameter_symbols(value: Any, stem: str, indices: tuple[int, ...]) -> None:
        if isinstance(value, sp.MatrixBase):
            value = tuple(tuple(value.row(i)) for i in range(value.rows))
        if isinstance(value, tuple):
            for i, inner in enumerate(value):
                _add_parameter_symbols(inner, stem, (*indices, i + 1) if len(value) > 1 else indices)
        else:
            names[value] = stem, indices

    for l, matrix in enumerate(at.Q):
        for a in range(matrix.rows):
            for b in range(a, matrix.cols):
                both = (l + 1, a + 1, b + 1) if matrix.rows > 1 else (l + 1,)
                names[matrix[a, b]] = ("overlap q", both)
    _add_matrix_symbols(sp.Matrix(at.norm_multipliers), "parameter lambda")
    names |= {symbol: (f"parameter {name}", ()) for name, (symbol, _) in at.trained.items()}
    if at.penalty is not None:
        _add_matrix_symbols(at.penalty.w, "row w")
        _add_matrix_symbols(at.penalty.pi, "row pi")
    for known in at.parameters.values():
        stem = f"parameter {known.name.rstrip('_')}"
        _add_parameter_symbols(known.argument_symbols(at.structure), stem, ())
        axes = [size for size in known.default_shape(at.structure) if size > 1]
        names[indexed_parameter_symbol(known.name)] = stem, tuple("ijkl"[: len(axes)])
        names[_unindexed_parameter_symbol(known.name)] = stem, ()
    return names
