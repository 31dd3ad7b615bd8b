"""Symbols of a reader's own in tables: what stands for q, V, m, theta and the parameters, as text and in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..derive.report.names import GREEK, RENAMED, both_forms
from ..errors import InputError

if TYPE_CHECKING:
    from .overlaps import Overlaps
    from .problem import Problem


OVERLAPS = ("q", "V", "m", "theta")
Symbols = dict[str, tuple[str, str]]  # name -> (text, LaTeX), of parameters and trained numbers as `column_of` has it
RESULTS = {
    *(*OVERLAPS, "token", "cluster", "column", "column2", "teacher"),
    *("training_loss", "test_error", "baseline_error", "free_entropy", "residual", "status", "branch", "verdict"),
    *("replicon", "bistable_share", "jump_weight", "longitudinal_eigenvalue", "self_overlap_loss"),
    *("arclength", "optimum", "optimum_status", "parameter", "value", "error", "over", "point", "seed"),
}
"""Names of columns and axes that a table has of its own, with `_error` behind them for half widths."""
_ENTRIES = re.compile(rf"(?:{'|'.join(OVERLAPS)})_\d.*|(?:trained|best|parameter)_.*")


def column_of(name: str) -> str:
    """What a table calls a parameter or a trained number: its name, or parameter_NAME where a result has that one."""
    name = name.rstrip("_")
    stem = name.removesuffix("_error")
    return f"parameter_{name}" if {name, stem} & RESULTS or _ENTRIES.fullmatch(stem) else name


def symbols_of(problem: Problem, names: Mapping[str, str] | None = None) -> Symbols:
    """Every name that a table may show, and its symbol. The same `names` do for a derivation, whose other symbols pass.

    Args:
        names: {"theta": "T", "omega": "a"}: of a parameter, or else of the theory (theory.theta is that of the theory,
            too); in LaTeX.

    Raises:
        InputError: a name is unknown, or a symbol would stand for two things.
    """
    own = [*problem.parameters, *(str(number["name"]) for number in problem.trained)]
    columns = {"alpha": "alpha", **{name.rstrip("_"): column_of(name) for name in own}}
    symbols: Symbols = {name: (name, _latex(name)) for name in (*OVERLAPS, *columns.values())}

    def key_of(name: str) -> str:
        return columns.get(name.rstrip("_"), name.removeprefix("theory."))

    for name, symbol in (names or {}).items():
        key = key_of(name)
        if not symbol.strip():
            raise InputError(f"the new symbol for {name} is empty")
        if key in symbols and not (name.startswith("theory.") and key in columns.values()):
            symbols[key] = both_forms(symbol)
        elif key not in RENAMED:
            raise InputError(f"no symbol {name!r} to rename in a table; known are {', '.join(symbols)}")
    for name in names or {}:
        key = key_of(name)
        for other in symbols:
            if key in symbols and other != key and symbols[other][0] == symbols[key][0]:
                raise InputError(f"{symbols[key][0]} would stand for {name} and for {other}; rename {other}, too")
    return symbols


def _latex(name: str) -> str:
    if name in GREEK:
        return rf"\{name}"
    return name if len(name) == 1 else rf"\mathrm{{{name.replace('_', ' ')}}}"


def with_index(symbol: str, index: Sequence[str]) -> str:
    """A LaTeX symbol with an index behind it, its own kept apart."""
    base = f"{{{symbol}}}" if "_" in symbol else symbol
    return f"{base}_{{{','.join(index)}}}" if index else base


def block_shape(problem: Problem, name: str) -> tuple[int, ...]:
    """(L, K) and the axes behind, of an overlap."""
    s, t = problem.student_rank, problem.teacher_rank
    behind = {"q": (s, s), "V": (s, s), "m": (s,), "theta": (s, t)}[name]
    return (problem.tokens, problem.clusters, *behind)


def block_columns(problem: Problem, blocks: Overlaps, suffix: str = "") -> dict[str, float]:
    """The entries of q, V, m, theta under the names of the columns of a curve's frame."""
    columns = {}
    for name in OVERLAPS:
        shape = block_shape(problem, name)
        for index, value in np.ndenumerate(getattr(blocks, name).reshape(shape)):
            columns[name + index_text(index, shape) + suffix] = float(value)
    return columns


def index_text(index: Sequence[int], shape: Sequence[int]) -> str:
    """_1 for a token, then the cluster and the entry where there are several."""
    text = f"_{index[0] + 1}"
    if shape[1] > 1:
        text += f"_k{index[1] + 1}"
    if any(size > 1 for size in shape[2:]):
        text += "_" + "".join(str(i + 1) for i in index[2:])
    return text
