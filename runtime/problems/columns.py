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

QUANTITIES = {
    "q": "overlap q of the student's weights with themselves",
    "V": "variance (susceptibility) V",
    "m": "positional overlap m, with means and encodings",
    "theta": "semantic overlap theta, with the teacher",
    "multiplier": "strength of the ridge that keeps the norm of a column",
    "training_loss": "training loss per d",
    "test_error": "test error",
    "baseline_error": "test error of the best linear positional layer",
    "residual": "undamped residual max |G(u) - u| / (block scale)",
    "status": "how the iteration ended",
    "branch": "branch reached",
    "replicon": "Perron root of the replicon map from derivatives; RS needs < 1",
    "bistable_share": "probability that the Moreau objective has a second minimum",
    "jump_weight": "-Tr V^_jump / |Tr V^_derivative|",
    "longitudinal_eigenvalue": "largest real part of the longitudinal spectrum; stable needs < 1",
    "verdict": "stability of the replica-symmetric solution, in words",
    "replica_symmetry": "stable, marginal (the replicon is 1 within its error), unstable or undecided",
    "longitudinal": "stable, marginal (the largest real part is 1 within its error) or unstable",
    "accuracy": "largest error bar asked of every overlap, relative to its block",
    "reason": "why there is no solution, in words",
    "lost_from": "last value of the first axis at which a line had its branch",
    "lost_to": "first value at which it had not",
    "q_between": "overlap of two of the lowest states, q_0",
    "distance": "Delta = q_1 - q_0",
    "parisi": "Parisi parameter y",
    "energy_moved": "training loss above the replica symmetric one",
    "symmetric_training_loss": "replica symmetric training loss per d",
    "symmetric_test_error": "replica symmetric test error",
    "clustering": "Perron root of type I; states cluster above 1",
    "splitting": "Perron root of type II without jumps; states fall apart above 1",
    "rsb": "steps of breaking",
}
"""Columns that a table has of its own, in words; with `_error` behind the name, the error bar."""

BROKEN = ("q", "q_between", "distance", "parisi", "training_loss", "energy_moved", "symmetric_training_loss",
          "symmetric_test_error", "clustering", "splitting", "rsb")  # fmt: skip
"""Those of solutions with broken replica symmetry."""

RESULTS = {
    *QUANTITIES,
    *("token", "cluster", "column", "column2", "teacher", "free_entropy", "self_overlap_loss", "arclength", "optimum"),
    *("optimum_status", "parameter", "value", "error", "over", "point", "seed", "start", "direction"),
}
"""All names of columns and axes."""
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
