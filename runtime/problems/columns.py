"""The quantities of solutions in tables, with axes, error bars and meaning, and names of their columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .observables import FORMULAS
from .overlaps import OVERLAPS, overlap_array_shapes

if TYPE_CHECKING:
    from .overlaps import Overlaps
    from .problem import Problem

_MATRIX_AXES = ("token", "cluster", "column", "column2")  # axes of a matrix of the columns of W


@dataclass(frozen=True)
class TableQuantity:
    """A number, an array or a word that describes a solution in tables.

    Attributes:
        meaning: in words.
        axes: axes of an array, after those of the table; `column` and `column2` run over W, `teacher` over W*.
        has_error: whether a column NAME_error holds its error bar.
        is_word: whether it is a word instead of a number.
        source: dotted attribute of the result, if it is not its name: of the value (its error bar is the attribute with
            `_error` appended), or of the pair of both.
        latex: its symbol.
        is_defined: problem -> whether the problem has it.
        missing: end of a sentence about a problem that has not.
    """

    meaning: str
    axes: tuple[str, ...] = ()
    has_error: bool = False
    is_word: bool = False
    source: str = ""
    latex: str = ""
    is_defined: Callable[[Problem], bool] = lambda _: True
    missing: str = ""


SOLVED = {
    "multiplier": TableQuantity(
        "strength of the ridge that keeps the norm of a column", ("column",), True, False, "multipliers"
    ),
    "training_loss": TableQuantity("training loss per d", has_error=True, latex=r"e_{\mathrm{t}}"),
    "test_error": TableQuantity(
        "test error",
        has_error=True,
        latex=r"\varepsilon_{\mathrm{g}}",
        is_defined=lambda problem: problem.solver.metric_functions.HAS_METRIC,
        missing="since its model gives no metric=",
    ),
    **{
        name: TableQuantity(
            known.meaning,
            has_error=True,
            latex=known.latex,
            is_defined=known.is_defined,
            missing=f"which takes {known.needs}",
        )
        for name, known in FORMULAS.items()
    },
    "residual": TableQuantity("undamped residual max |G(u) - u| / (block scale)"),
    "baseline_error": TableQuantity(
        "test error of the best linear positional layer",
        source="symmetric.baseline_error",
        is_defined=lambda problem: problem.solver.metric_functions.HAS_BASELINE,
        missing="since its model gives no baseline=",
    ),
    "status": TableQuantity("how the iteration ended", is_word=True, source="status.value"),
    "branch": TableQuantity("branch reached", is_word=True),
    "bistable_share": TableQuantity(
        "probability that the Moreau objective has a second minimum", source="symmetric.averages.bistable"
    ),
}
"""Quantities of every solution in addition to its overlaps, in the order of tables; `symmetric`: without breaking."""

OBSERVED = tuple(name for name, quantity in SOLVED.items() if quantity.has_error and not quantity.axes)
"""Losses, errors and formulas of the overlaps, each with an error bar."""

METRIC = "test_error_"
"""Prefix of the column of one of several metrics."""

JUDGED = {
    "replicon": TableQuantity("Perron root of the replicon map from derivatives; RS needs < 1", has_error=True),
    "jump_weight": TableQuantity("-Tr V^_jump / |Tr V^_derivative|", has_error=True),
    "longitudinal_eigenvalue": TableQuantity("largest real part of the longitudinal spectrum; stable needs < 1"),
    "verdict": TableQuantity("stability of the replica-symmetric solution, in words", is_word=True),
    "replica_symmetry": TableQuantity(
        "stable, marginal (the replicon is 1 within its error), unstable or undecided", is_word=True
    ),
    "longitudinal": TableQuantity(
        "stable, marginal (the largest real part is 1 within its error) or unstable", is_word=True
    ),
}
"""Quantities of a verdict on stability."""

BROKEN = {
    "q_between": TableQuantity("overlap of two of the lowest states, q_0", _MATRIX_AXES, has_error=True),
    "distance": TableQuantity("Delta = q_1 - q_0", _MATRIX_AXES, has_error=True),
    "parisi": TableQuantity("Parisi parameter y", has_error=True),
    "energy_moved": TableQuantity("training loss above the replica symmetric one", has_error=True),
    "symmetric_training_loss": TableQuantity(
        "replica symmetric training loss per d", has_error=True, source="symmetric.training_loss"
    ),
    "symmetric_test_error": TableQuantity(
        "replica symmetric test error", has_error=True, source="symmetric.test_error"
    ),
    "clustering": TableQuantity("Perron root of type I; states cluster above 1", source="stability.clustering"),
    "splitting": TableQuantity(
        "Perron root of type II without jumps; states fall apart above 1", source="stability.splitting"
    ),
    "rsb": TableQuantity("steps of breaking", source="steps"),
}
"""Quantities of solutions with broken replica symmetry."""

QUANTITIES = {
    "q": TableQuantity("overlap q of the student's weights with themselves", _MATRIX_AXES, has_error=True),
    "V": TableQuantity("variance (susceptibility) V", _MATRIX_AXES, has_error=True),
    "m": TableQuantity("positional overlap m, with means and encodings", _MATRIX_AXES[:3], has_error=True),
    "theta": TableQuantity("overlap theta with the teacher", (*_MATRIX_AXES[:3], "teacher"), has_error=True),
    **SOLVED,
    **JUDGED,
    **BROKEN,
    "unstable": TableQuantity("what replica symmetry is unstable through: replicon, jumps or nothing", is_word=True),
    "accuracy": TableQuantity("largest error bar asked of every overlap, relative to its block"),
    "reason": TableQuantity("why there is no solution, in words", is_word=True),
    "lost_from": TableQuantity("last value of the first axis at which a line had its branch"),
    "lost_to": TableQuantity("first value at which it had not"),
}
"""Columns that a table has of its own; with `_error` behind the name, the error bar."""

RESULTS = {
    *QUANTITIES,
    *("token", "cluster", "column", "column2", "teacher", "free_entropy", "self_overlap_loss", "arclength", "optimum"),
    *("optimum_status", "parameter", "value", "error", "over", "point", "seed", "start", "direction"),
}
"""All names of columns and axes."""
_STEMS = [name for name, quantity in QUANTITIES.items() if quantity.axes]
_ENTRIES = re.compile(rf"(?:{'|'.join(_STEMS)})_\d.*|(?:trained|best|parameter)_.*")


def observables_of_problem(problem: Problem) -> list[str]:
    """Return the names of the losses, errors and formulas of the overlaps that are defined for a problem."""
    return [name for name in OBSERVED if name not in FORMULAS or FORMULAS[name].is_defined(problem)]


def table_column_name(name: str) -> str:
    """Return the column name of a parameter or trained number: its own name, or parameter_NAME if that is taken."""
    name = name.rstrip("_")
    stem = name.removesuffix("_error")
    return f"parameter_{name}" if {name, stem} & RESULTS or _ENTRIES.fullmatch(stem) else name


def quantity_in_column(column: str) -> TableQuantity:
    """Return the quantity that a column of values or error bars holds; a plain number for undeclared columns."""
    stem = column if column in QUANTITIES else column.removesuffix("_error")
    return QUANTITIES.get(stem, TableQuantity(column))


def add_error_bar_columns(names: Iterable[str]) -> list[str]:
    """Return the columns, each followed by the column of its error bar if it has one."""
    found = []
    for name in names:
        found += [name, f"{name}_error"] if quantity_in_column(name).has_error else [name]
    return found


def quantities_and_error_bars(result: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return quantities and their error bars by column; None for those that the result lacks.

    Args:
        result: a solution or a verdict on stability.
        names: names of quantities.
    """
    found = {}
    for name in names:
        source = QUANTITIES[name].source or name
        found[name] = _nested_attribute(result, source)
        if isinstance(found[name], tuple):
            found[name], found[f"{name}_error"] = found[name]
        elif QUANTITIES[name].has_error:
            found[f"{name}_error"] = _nested_attribute(result, f"{source}_error")
    return found


def _nested_attribute(result: Any, source: str) -> Any:
    """Return the attribute of a result at a dotted path; `symmetric` of a symmetric solution is the solution itself."""
    found = result
    for attribute in source.split("."):
        if attribute == "symmetric":
            found = getattr(found, attribute, found)
        elif found is not None:
            found = getattr(found, attribute)
    return found


def split_token_and_cluster_axes(problem: Problem, values: np.ndarray) -> np.ndarray:
    """Return an array with its first axis, contexts, split into tokens and clusters.

    Args:
        problem: with L tokens and K clusters.
        values: (C, ...), C = L K.
    """
    return values.reshape(problem.tokens, problem.clusters, *values.shape[1:])


def overlap_array_shape(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the shape of an overlap with contexts split into tokens and clusters: (L, K, ...).

    Args:
        problem: that the overlap belongs to.
        name: q, V, m or theta.
    """
    return (problem.tokens, problem.clusters, *overlap_array_shapes(problem.sizes)[name][1:])


def overlaps_and_trained_numbers_by_column(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Return the entries of q, V, m, theta and the trained numbers by column, see `overlap_entry_locations`.

    Args:
        problem: that the overlaps belong to.
        blocks: overlaps, or their error bars or derivatives.
    """
    return {
        name: float(getattr(blocks, of).flat[place]) for name, (of, place) in overlap_entry_locations(problem).items()
    }


def overlap_entries_by_column(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Return the entries of q, V, m and theta by column.

    Args:
        problem: that the overlaps belong to.
        blocks: overlaps, or their error bars or derivatives.
    """
    return {
        name: value
        for name, value in overlaps_and_trained_numbers_by_column(problem, blocks).items()
        if not name.startswith("trained_")
    }


def overlap_entry_locations(problem: Problem) -> dict[str, tuple[str, int]]:
    """Return the location of every entry of q, V, m, theta and every trained number: column -> (block, flat index)."""
    found = {}
    for of in OVERLAPS:
        shape = overlap_array_shape(problem, of)
        for place, index in enumerate(np.ndindex(shape)):
            found[of + overlap_entry_suffix(index, shape)] = of, place
    return found | {f"trained_{number['name']}": ("phi", place) for place, number in enumerate(problem.trained)}


def overlap_entry_suffix(index: Sequence[int], shape: Sequence[int]) -> str:
    """Return the suffix of an entry's column: _1 for the token, then cluster and entry if there are several.

    Args:
        index: (token, cluster, ...) of the entry, from 0.
        shape: shape of the overlap, (L, K, ...).
    """
    text = f"_{index[0] + 1}"
    if shape[1] > 1:
        text += f"_k{index[1] + 1}"
    if any(size > 1 for size in shape[2:]):
        text += "_" + "".join(str(i + 1) for i in index[2:])
    return text
