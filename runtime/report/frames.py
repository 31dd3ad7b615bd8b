"""Datasets and curves as frames with flat columns, and as LaTeX tabulars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
import xarray

from ..base.errors import InputError
from ..base.numbers import with_error
from ..base.presenting import Recorded, to_dataset, to_frame, to_tabular
from ..branches.along import Along
from ..following.follow import Followed
from ..problems.columns import QUANTITIES, column_of, entry_columns, entry_values, index_text, observed_by, quantity_of
from ..problems.problem import Problem
from ..problems.symbols import symbols_of, with_index
from .layout import text_of


@to_frame.register(xarray.Dataset)
def dataset_frame(dataset: xarray.Dataset) -> pandas.DataFrame:
    """One row a point; the entries of an overlap in columns of their own.

    Columns count from 1: q_1 is token 1; q_1_12 its entry (1, 2) where W has several columns; q_1_k2 its cluster 2.
    The errors follow as q_1_error and so on; multiplier_1 belongs to the first column of W.
    """
    lead = dataset["status"].dims if "status" in dataset else (column_of(dataset.attrs["parameter"]),)
    points = np.meshgrid(*(dataset[name].values for name in lead), indexing="ij")
    columns: dict[str, Any] = {str(name): values.ravel() for name, values in zip(lead, points, strict=True)}
    for key, values in dataset.data_vars.items():
        if values.dims[: len(lead)] != lead:
            continue  # of a line, not of a point
        stem, suffix = str(key), ""
        if stem.endswith("_error") and values.ndim > len(lead):
            stem, suffix = stem.removesuffix("_error"), "_error"
        inner = values.shape[len(lead) :]
        flat = values.values.reshape(-1, *inner)
        for index in np.ndindex(inner):
            is_block = "token" in quantity_of(stem).axes
            entry = index_text(index, inner) if is_block else "".join(f"_{i + 1}" for i in index)
            columns[stem + entry + suffix] = flat[(slice(None), *index)]
    return pandas.DataFrame(columns)


@to_frame.register(Recorded)
def table_frame(result: Recorded) -> pandas.DataFrame:
    """`dataset_frame` of a result that is a table of points."""
    return dataset_frame(result.to_xarray())


@to_frame.register(Along)
@to_frame.register(Followed)
def curve_frame(
    curve: Along[Any] | Followed, stability: bool = True, names: Mapping[str, str] | None = None
) -> pandas.DataFrame:
    """`curve_dataset` with flat columns, see `dataset_frame`; `names` as in `symbols.symbols_of`.

    Raises:
        InputError: a name is unknown, or a symbol would stand for two columns.
    """
    frame = dataset_frame(to_dataset(curve, stability))
    return renamed(frame, curve.solutions[0].problem, curve.parameter, names) if curve.solutions else frame


def renamed(
    frame: pandas.DataFrame, problem: Problem, parameter: str, names: Mapping[str, str] | None
) -> pandas.DataFrame:
    """Return the frame of a branch with symbols of a reader's own among its columns, see `curve_frame`."""
    if not names:
        return frame
    shown = symbols_of(problem, names)
    columns = {column_of(parameter): shown[column_of(parameter)][0]}
    for suffix in ("", "_error"):
        for column, (block, place) in entry_columns(problem).items():
            key = column_of(problem.trained[place]["name"]) if block == "phi" else block
            stem, _, index = column.partition("_")
            parts = (stem, shown[key][0]) if block == "phi" else (shown[key][0], index)
            columns[column + suffix] = "_".join(parts) + suffix
    twins = {columns.get(str(name), str(name)) for name in frame.columns}
    if len(twins) < len(frame.columns):
        raise InputError(f"a new symbol is the name of another column; the columns are {', '.join(frame.columns)}")
    return frame.rename(columns=columns)


@to_tabular.register(Along)
def curve_tabular(curve: Along[Any], names: Mapping[str, str] | None = None) -> str:
    """A branch as a LaTeX tabular, values with their half widths in the last digits.

    Raises:
        InputError: the branch was not found, a name is unknown, or a symbol would stand for two things.
    """
    if not curve.solutions:
        raise InputError(f"there is nothing to tabulate: {curve.end_text()}")
    problem = curve.solutions[0].problem
    shown = symbols_of(problem, names)
    heads = [shown[column_of(curve.parameter)][1]]
    for column, (block, place) in entry_columns(problem).items():
        stem, *index = column.split("_")
        if block == "phi":
            heads.append(shown[column_of(problem.trained[place]["name"])][1])
        else:
            heads.append(with_index(shown[stem][1], [part.replace("k", "k=") for part in index]))
    heads += [QUANTITIES[name].latex for name in observed_by(problem)]
    rows = []
    for solution in curve.solutions:
        values, widths = (entry_values(problem, blocks) for blocks in (solution.overlaps, solution.half_widths))
        cells = [f"{solution.problem.value_of(curve.parameter):.6g}"]
        cells += [with_error(values[name], widths[name]) for name in values]
        cells += [text_of(solution, name) for name in observed_by(problem)]
        rows.append(" & ".join(cells) + r" \\")
    head = " & ".join(f"${symbol}$" for symbol in heads) + r" \\"
    frame = [rf"\begin{{tabular}}{{{'l' * len(heads)}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*frame, r"\end{tabular}"]) + "\n"
