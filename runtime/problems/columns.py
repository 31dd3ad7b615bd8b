"""The quantities of solutions in tables, with axes, error bars and meaning, and names of their columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .observables import FORMULAS
from .overlaps import OVERLAPS, block_shapes

if TYPE_CHECKING:
    from .overlaps import Overlaps
    from .problem import Problem

_MATRIX_AXES = ("token", "cluster", "column", "column2")  # axes of a matrix of the columns of W


@dataclass(frozen=True)
class Quantity:
    """A number, an array or a word that describes a solution in tables.

    Attributes:
        meaning: in words.
        axes: of an array, after those of the table; `column` and `column2` run over W, `teacher` over W*.
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
    "multiplier": Quantity(
        "strength of the ridge that keeps the norm of a column", ("column",), True, False, "multipliers"
    ),
    "training_loss": Quantity("training loss per d", has_error=True, latex=r"e_{\mathrm{t}}"),
    "test_error": Quantity(
        "test error",
        has_error=True,
        latex=r"\varepsilon_{\mathrm{g}}",
        is_defined=lambda problem: problem.solver.metric.HAS_METRIC,
        missing="since its model gives no metric=",
    ),
    **{
        name: Quantity(
            known.meaning,
            has_error=True,
            latex=known.latex,
            is_defined=known.is_defined,
            missing=f"which takes {known.needs}",
        )
        for name, known in FORMULAS.items()
    },
    "residual": Quantity("undamped residual max |G(u) - u| / (block scale)"),
    "baseline_error": Quantity(
        "test error of the best linear positional layer",
        source="symmetric.baseline_error",
        is_defined=lambda problem: problem.solver.metric.HAS_BASELINE,
        missing="since its model gives no baseline=",
    ),
    "status": Quantity("how the iteration ended", is_word=True, source="status.value"),
    "branch": Quantity("branch reached", is_word=True),
    "bistable_share": Quantity(
        "probability that the Moreau objective has a second minimum", source="symmetric.averages.bistable"
    ),
}
"""Quantities of every solution in addition to its overlaps, in the order of tables; `symmetric`: without breaking."""

OBSERVED = tuple(name for name, quantity in SOLVED.items() if quantity.has_error and not quantity.axes)
"""Losses, errors and formulas of the overlaps, each with an error bar."""

METRIC = "test_error_"
"""Prefix of the column of one of several metrics."""

JUDGED = {
    "replicon": Quantity("Perron root of the replicon map from derivatives; RS needs < 1", has_error=True),
    "jump_weight": Quantity("-Tr V^_jump / |Tr V^_derivative|", has_error=True),
    "longitudinal_eigenvalue": Quantity("largest real part of the longitudinal spectrum; stable needs < 1"),
    "verdict": Quantity("stability of the replica-symmetric solution, in words", is_word=True),
    "replica_symmetry": Quantity(
        "stable, marginal (the replicon is 1 within its error), unstable or undecided", is_word=True
    ),
    "longitudinal": Quantity(
        "stable, marginal (the largest real part is 1 within its error) or unstable", is_word=True
    ),
}
"""Quantities of a verdict on stability."""

BROKEN = {
    "q_between": Quantity("overlap of two of the lowest states, q_0", _MATRIX_AXES, has_error=True),
    "distance": Quantity("Delta = q_1 - q_0", _MATRIX_AXES, has_error=True),
    "parisi": Quantity("Parisi parameter y", has_error=True),
    "energy_moved": Quantity("training loss above the replica symmetric one", has_error=True),
    "symmetric_training_loss": Quantity(
        "replica symmetric training loss per d", has_error=True, source="symmetric.training_loss"
    ),
    "symmetric_test_error": Quantity("replica symmetric test error", has_error=True, source="symmetric.test_error"),
    "clustering": Quantity("Perron root of type I; states cluster above 1", source="stability.clustering"),
    "splitting": Quantity(
        "Perron root of type II without jumps; states fall apart above 1", source="stability.splitting"
    ),
    "rsb": Quantity("steps of breaking", source="steps"),
}
"""Quantities of solutions with broken replica symmetry."""

QUANTITIES = {
    "q": Quantity("overlap q of the student's weights with themselves", _MATRIX_AXES, has_error=True),
    "V": Quantity("variance (susceptibility) V", _MATRIX_AXES, has_error=True),
    "m": Quantity("positional overlap m, with means and encodings", _MATRIX_AXES[:3], has_error=True),
    "theta": Quantity("semantic overlap theta, with the teacher", (*_MATRIX_AXES[:3], "teacher"), has_error=True),
    **SOLVED,
    **JUDGED,
    **BROKEN,
    "unstable": Quantity("what replica symmetry is unstable through: replicon, jumps or nothing", is_word=True),
    "accuracy": Quantity("largest error bar asked of every overlap, relative to its block"),
    "reason": Quantity("why there is no solution, in words", is_word=True),
    "lost_from": Quantity("last value of the first axis at which a line had its branch"),
    "lost_to": Quantity("first value at which it had not"),
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


def observed_quantities(problem: Problem) -> list[str]:
    """Return the `OBSERVED` quantities of a problem: all but formulas that it does not define."""
    return [name for name in OBSERVED if name not in FORMULAS or FORMULAS[name].is_defined(problem)]


def column_name(name: str) -> str:
    """Return the column of a parameter or a trained number: its name, or parameter_NAME if that name is taken."""
    name = name.rstrip("_")
    stem = name.removesuffix("_error")
    return f"parameter_{name}" if {name, stem} & RESULTS or _ENTRIES.fullmatch(stem) else name


def quantity_of(column: str) -> Quantity:
    """Return the quantity in a column (of values or of error bars); a plain number for undeclared columns."""
    stem = column if column in QUANTITIES else column.removesuffix("_error")
    return QUANTITIES.get(stem, Quantity(column))


def add_error_columns(names: Iterable[str]) -> list[str]:
    """Return the columns, each followed by the column of its error bar if it has one."""
    found = []
    for name in names:
        found += [name, f"{name}_error"] if quantity_of(name).has_error else [name]
    return found


def quantity_values(result: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return quantities and their error bars by column; None for those that the result lacks.

    Args:
        result: a solution or a verdict on stability.
        names: of quantities.
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
    """Return a dotted attribute; `symmetric` of a replica symmetric solution is the solution itself."""
    found = result
    for attribute in source.split("."):
        if attribute == "symmetric":
            found = getattr(found, attribute, found)
        elif found is not None:
            found = getattr(found, attribute)
    return found


def split_contexts(problem: Problem, values: np.ndarray) -> np.ndarray:
    """Return an array with its first axis, contexts, split into tokens and clusters.

    Args:
        problem: with L tokens and K clusters.
        values: (C, ...), C = L K.
    """
    return values.reshape(problem.tokens, problem.clusters, *values.shape[1:])


def block_shape(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the shape of an overlap with contexts split into tokens and clusters: (L, K, ...).

    Args:
        problem: that the overlap belongs to.
        name: q, V, m or theta.
    """
    return (problem.tokens, problem.clusters, *block_shapes(problem.sizes)[name][1:])


def entry_values(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Return the entries of q, V, m, theta and the trained numbers by column, see `entry_columns`.

    Args:
        problem: that the overlaps belong to.
        blocks: overlaps, or their error bars or derivatives.
    """
    return {name: float(getattr(blocks, of).flat[place]) for name, (of, place) in entry_columns(problem).items()}


def block_columns(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Return the entries of q, V, m and theta by column.

    Args:
        problem: that the overlaps belong to.
        blocks: overlaps, or their error bars or derivatives.
    """
    return {name: value for name, value in entry_values(problem, blocks).items() if not name.startswith("trained_")}


def entry_columns(problem: Problem) -> dict[str, tuple[str, int]]:
    """Return the location of every entry of q, V, m, theta and every trained number: column -> (block, flat index)."""
    found = {}
    for of in OVERLAPS:
        shape = block_shape(problem, of)
        for place, index in enumerate(np.ndindex(shape)):
            found[of + entry_suffix(index, shape)] = of, place
    return found | {f"trained_{number['name']}": ("phi", place) for place, number in enumerate(problem.trained)}


def entry_suffix(index: Sequence[int], shape: Sequence[int]) -> str:
    """Return the suffix of an entry's column: _1 for the token, then cluster and entry if there are several.

    Args:
        index: (token, cluster, ...) of the entry, from 0.
        shape: of the overlap, (L, K, ...).
    """
    text = f"_{index[0] + 1}"
    if shape[1] > 1:
        text += f"_k{index[1] + 1}"
    if any(size > 1 for size in shape[2:]):
        text += "_" + "".join(str(i + 1) for i in index[2:])
    return text
