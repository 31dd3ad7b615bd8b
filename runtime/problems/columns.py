"""What tables call their columns: parameters, and the entries of overlaps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .overlaps import OVERLAPS, shapes_of

if TYPE_CHECKING:
    from .overlaps import Overlaps
    from .problem import Problem

RESULTS = {
    *(*OVERLAPS, "token", "cluster", "column", "column2", "teacher"),
    *("training_loss", "test_error", "baseline_error", "free_entropy", "residual", "status", "branch", "verdict"),
    *("replica_symmetry", "longitudinal"),
    *("rsb", "parisi", "q_between", "distance", "energy_moved", "clustering", "splitting"),
    *("symmetric_training_loss", "symmetric_test_error"),
    *("replicon", "bistable_share", "jump_weight", "longitudinal_eigenvalue", "self_overlap_loss"),
    *("multiplier", "arclength", "optimum", "optimum_status", "parameter", "value", "error", "over", "point", "seed"),
    *("start", "direction", "reason", "accuracy", "lost_from", "lost_to"),
}
"""Names of columns and axes that a table has of its own, with `_error` behind them for half widths."""
_STEMS = (*OVERLAPS, "q_between", "distance", "multiplier")
_ENTRIES = re.compile(rf"(?:{'|'.join(_STEMS)})_\d.*|(?:trained|best|parameter)_.*")


def column_of(name: str) -> str:
    """What a table calls a parameter or a trained number: its name, or parameter_NAME where a result has that one."""
    name = name.rstrip("_")
    stem = name.removesuffix("_error")
    return f"parameter_{name}" if {name, stem} & RESULTS or _ENTRIES.fullmatch(stem) else name


def block_shape(problem: Problem, name: str) -> tuple[int, ...]:
    """(L, K) and the axes behind, of an overlap."""
    return (problem.tokens, problem.clusters, *shapes_of(problem.sizes)[name][1:])


def block_columns(problem: Problem, blocks: Overlaps, suffix: str = "") -> dict[str, float]:
    """The entries of q, V, m, theta under the names of the columns of a curve's frame."""
    places = entry_columns(problem).items()
    return {name + suffix: float(getattr(blocks, of).flat[place]) for name, (of, place) in places if of in OVERLAPS}


def entry_columns(problem: Problem) -> dict[str, tuple[str, int]]:
    """Return what every entry of q, V, m, theta and every trained number is called: column -> (block, flat index)."""
    found = {}
    for of in OVERLAPS:
        shape = block_shape(problem, of)
        for place, index in enumerate(np.ndindex(shape)):
            found[of + index_text(index, shape)] = of, place
    return found | {f"trained_{number['name']}": ("phi", place) for place, number in enumerate(problem.trained)}


def index_text(index: Sequence[int], shape: Sequence[int]) -> str:
    """_1 for a token, then the cluster and the entry where there are several."""
    text = f"_{index[0] + 1}"
    if shape[1] > 1:
        text += f"_k{index[1] + 1}"
    if any(size > 1 for size in shape[2:]):
        text += "_" + "".join(str(i + 1) for i in index[2:])
    return text
