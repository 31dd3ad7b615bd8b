"""User-defined symbols in tables for q, V, m, theta and the parameters, as text and in LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import InputError, describe_unknown_name
from ..derive.report.names import GREEK, RENAMED, symbol_in_text_and_latex
from .columns import table_column_name
from .overlaps import OVERLAPS

if TYPE_CHECKING:
    from .problem import Problem

Symbols = dict[
    str, tuple[str, str]
]  # name -> (text, LaTeX), of parameters and trained numbers as `table_column_name` has it


def symbols_of_table_columns(problem: Problem, names: Mapping[str, str] | None = None) -> Symbols:
    """Return the symbols, as text and in LaTeX, of all overlaps, parameters and trained numbers in tables, by name.

    Args:
        problem: problem with the parameters.
        names: symbols of the user's own in LaTeX, such as {"theta": "T"}, for parameters or for overlaps (explicitly
            theory.theta); symbols that only derivations use are ignored.

    Raises:
        InputError: a name is unknown, or a symbol would stand for two things.
    """
    own = [*problem.parameters, *(str(number["name"]) for number in problem.trained)]
    columns = {"alpha": "alpha", **{name.rstrip("_"): table_column_name(name) for name in own}}
    symbols: Symbols = {name: (name, _default_latex_symbol(name)) for name in (*OVERLAPS, *columns.values())}
    known = list(symbols)
    columns |= {name: name for name in problem.lines}
    symbols |= {name: (name, _default_latex_symbol(name)) for name in problem.lines}

    def canonical_symbol_key(name: str) -> str:
        return columns.get(name.rstrip("_"), name.removeprefix("theory."))

    for name, symbol in (names or {}).items():
        key = canonical_symbol_key(name)
        if not symbol.strip():
            raise InputError(f"the new symbol for {name} is empty; give a LaTeX symbol, such as {name}=T")
        if key in symbols and not (name.startswith("theory.") and key in columns.values()):
            symbols[key] = symbol_in_text_and_latex(symbol)
        elif key not in RENAMED:
            raise InputError(describe_unknown_name("symbol", name, known, "a table"))
    for name in names or {}:
        key = canonical_symbol_key(name)
        for other in symbols:
            if key in symbols and other != key and symbols[other][0] == symbols[key][0]:
                raise InputError(f"{symbols[key][0]} would stand for {name} and for {other}; rename {other}, too")
    for name, value in problem.parameters.items():
        _add_array_entry_symbols(symbols, name.rstrip("_"), columns.get(name.rstrip("_"), name), np.shape(value))
    return symbols


def _add_array_entry_symbols(symbols: Symbols, name: str, column: str, shape: tuple[int, ...]) -> None:
    """Add the symbols of an array parameter's entries and of a factor on it, which a curve may vary."""
    if not shape:
        return
    text, latex = symbols[column]
    symbols.setdefault(f"scale_{name}", (f"scale_{name}", _default_latex_symbol(f"scale_{name}")))
    for index in np.ndindex(shape):
        place = [str(i + 1) for i in index]
        symbols[f"{name}[{','.join(place)}]"] = f"{text}[{','.join(place)}]", add_latex_index(latex, place)


def _default_latex_symbol(name: str) -> str:
    if name in GREEK:
        return rf"\{name}"
    return name if len(name) == 1 else rf"\mathrm{{{name.replace('_', ' ')}}}"


def add_latex_index(symbol: str, index: Sequence[str]) -> str:
    """Return a LaTeX symbol with an index appended, braced if it has a subscript already.

    Args:
        symbol: the symbol in LaTeX.
        index: parts of the index, which are joined by commas; empty for no index.
    """
    base = f"{{{symbol}}}" if "_" in symbol else symbol
    return f"{base}_{{{','.join(index)}}}" if index else base
