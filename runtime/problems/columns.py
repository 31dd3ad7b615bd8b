"""The quantities of solutions that tables contain: their axes, error bars, meanings and column names."""

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
        meaning: description in words.
        axes: names of the axes of an array; `column` and `column2` run over the columns of W, `teacher` over W*.
        has_error: whether a column NAME_error holds its error bar.
        is_word: whether it is a word instead of a number.
        source: dotted name of the attribute of the result that holds the value, or the pair of value and error bar, if
            it differs from the quantity's name.
        latex: symbol in LaTeX.
        is_defined: function that returns whether a problem has the quantity.
        missing: end of a message about a problem that has not: the reason.
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
    "residual": TableQuantity("undamped residual: the largest |G(u) - u| relative to the size of its overlap"),
    "baseline_error": TableQuantity(
        "test error of the best linear positional layer",
        source="symmetric.baseline_error",
        is_defined=lambda problem: problem.solver.metric_functions.HAS_BASELINE,
        missing="since its model gives no baseline=",
    ),
    "status": TableQuantity("how the iteration ended", is_word=True, source="status.value"),
    "branch": TableQuantity("branch reached", is_word=True),
    "bistable_fraction": TableQuantity(
        "probability that the Moreau objective has a second minimum", source="symmetric.averages.bistable"
    ),
}
"""Quantities of every solution in addition to its overlaps, in the order of tables; `symmetric`: without breaking."""

RENAMED_COLUMNS = {"bistable_share": "bistable_fraction"}
"""Columns of stored files whose names changed after 0.1.0, and their names now."""

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
    """Return the names of the observables (losses, errors, formulas of overlaps) that are defined for a problem."""
    return [name for name in OBSERVED if name not in FORMULAS or FORMULAS[name].is_defined(problem)]


def table_column_name(name: str) -> str:
    """Return the name of a parameter's table column: its own name, or parameter_NAME if a quantity has that name."""
    name = name.rstrip("_")
    stem = name.removesuffix("_error")
    return f"parameter_{name}" if {name, stem} & RESULTS or _ENTRIES.fullmatch(stem) else name


def quantity_in_column(column: str) -> TableQuantity:
    """Return the quantity in a table column; for an unknown column, a plain number of that name."""
    stem = column if column in QUANTITIES else column.removesuffix("_error")
    return QUANTITIES.get(stem, TableQuantity(column))


def add_error_bar_columns(names: Iterable[str]) -> list[str]:
    """Return names of columns, each followed by the name of its error bar's column if it has one."""
    found = []
    for name in names:
        found += [name, f"{name}_error"] if quantity_in_column(name).has_error else [name]
    return found


def quantities_and_error_bars(result: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the values and error bars of quantities by column name; None for those that the result lacks.

    Args:
        result: a solution or a verdict on stability.
        names: names of the quantities.
    """
    found = {}
    for name in names:
        source = QUANTITIES[name].source or name
        found[name] = _attribute_at_dotted_path(result, source)
        if isinstance(found[name], tuple):
            found[name], found[f"{name}_error"] = found[name]
        elif QUANTITIES[name].has_error:
            found[f"{name}_error"] = _attribute_at_dotted_path(result, f"{source}_error")
    return found


def _attribute_at_dotted_path(result: Any, source: str) -> Any:
    """Return the attribute of a result at a dotted path; a result without `symmetric` takes its place in the path."""
    found = result
    for attribute in source.split("."):
        if attribute == "symmetric":
            found = getattr(found, attribute, found)
        elif found is not None:
            found = getattr(found, attribute)
    return found


def split_token_and_cluster_axes(problem: Problem, values: np.ndarray) -> np.ndarray:
    """Return an array whose first axis, contexts, is split into two: tokens and clusters.

    Args:
        problem: problem with the numbers of tokens and clusters.
        values: the array, (contexts, ...).
    """
    return values.reshape(problem.tokens, problem.clusters, *values.shape[1:])


def overlap_array_shape(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the shape of an overlap whose axis of contexts is split into two: (tokens, clusters, ...).

    Args:
        problem: problem that the overlap belongs to.
        name: name of the overlap: q, V, m or theta.
    """
    return (problem.tokens, problem.clusters, *overlap_array_shapes(problem.sizes)[name][1:])


def overlaps_and_trained_numbers_by_column(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Return the entries of q, V, m, theta and the trained numbers by the names of their table columns.

    Args:
        problem: problem that the overlaps belong to.
        blocks: the overlaps, or their error bars or derivatives.
    """
    places = locations_of_overlap_entries(problem)
    return {name: float(getattr(blocks, of).flat[place]) for name, (of, place) in places.items()}


def overlap_entries_by_column(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Return the entries of q, V, m and theta by the names of their table columns.

    Args:
        problem: problem that the overlaps belong to.
        blocks: the overlaps, or their error bars or derivatives.
    """
    return {
        name: value
        for name, value in overlaps_and_trained_numbers_by_column(problem, blocks).items()
        if not name.startswith("trained_")
    }


def locations_of_overlap_entries(problem: Problem) -> dict[str, tuple[str, int]]:
    """Return the array (q, V, m, theta or phi) and the flat index of every overlap entry, by its column name."""
    found = {}
    for of in OVERLAPS:
        shape = overlap_array_shape(problem, of)
        for place, index in enumerate(np.ndindex(shape)):
            found[of + column_suffix_of_entry(index, shape)] = of, place
    return found | {f"trained_{number['name']}": ("phi", place) for place, number in enumerate(problem.trained)}


def column_suffix_of_entry(index: Sequence[int], shape: Sequence[int]) -> str:
    """Return the end of an overlap entry's column name: _2_k1_12 for token 2, cluster 1, entry (1, 2); _1 for token 1.

    Args:
        index: index of the entry, (token, cluster, ...), from 0.
        shape: shape of the overlap, (tokens, clusters, ...).
    """
    text = f"_{index[0] + 1}"
    if shape[1] > 1:
        text += f"_k{index[1] + 1}"
    if any(size > 1 for size in shape[2:]):
        text += "_" + "".join(str(i + 1) for i in index[2:])
    return text
