"""Datasets and curves as frames with flat columns, and as LaTeX tabulars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas
import xarray

from ..branches.branch import Along
from ..errors import InputError
from ..following.follow import Followed
from ..numbers import with_error
from ..presenting import to_dataset, to_frame, to_tabular
from ..problems.columns import block_columns, column_of, index_text
from ..problems.symbols import symbols_of, with_index
from .tables import BETWEEN, BLOCKS


@to_frame.register(xarray.Dataset)
def dataset_frame(dataset: xarray.Dataset) -> pandas.DataFrame:
    """One row a solution; the entries of an overlap in columns of their own.

    Columns count from 1: q_1 is token 1; q_1_12 its entry (1, 2) where W has several columns; q_1_k2 its cluster 2.
    The errors follow as q_1_error and so on; multiplier_1 belongs to the first column of W.
    """
    return flat_frame(dataset, [column_of(dataset.attrs["parameter"])])


def flat_frame(dataset: xarray.Dataset, lead: Sequence[str]) -> pandas.DataFrame:
    """One row a combination of the leading axes, which stand in front of those of every variable."""
    shape = tuple(dataset.sizes[name] for name in lead)
    columns: dict[str, Any] = {}
    for n, name in enumerate(lead):
        along = np.reshape(dataset[name].values, [-1 if m == n else 1 for m in range(len(lead))])
        columns[name] = np.broadcast_to(along, shape).ravel()
    for key, values in dataset.data_vars.items():
        if values.dims[: len(lead)] != tuple(lead):
            continue  # of a line, not of a point
        stem, suffix = str(key), ""
        if stem.endswith("_error") and values.ndim > len(lead):
            stem, suffix = stem.removesuffix("_error"), "_error"
        inner = values.shape[len(lead) :]
        flat = values.values.reshape(-1, *inner)
        for index in np.ndindex(inner):
            is_block = stem in BLOCKS or stem in BETWEEN
            entry = index_text(index, inner) if is_block else "".join(f"_{i + 1}" for i in index)
            columns[stem + entry + suffix] = flat[(slice(None), *index)]
    return pandas.DataFrame(columns)


@to_frame.register(Along)
@to_frame.register(Followed)
def curve_frame(
    curve: Along[Any] | Followed, stability: bool = True, names: Mapping[str, str] | None = None
) -> pandas.DataFrame:
    """`curve_dataset` with flat columns, see `dataset_frame`; `names` as in `naming.symbols_of`.

    Raises:
        InputError: a name is unknown, or a symbol would stand for two columns.
    """
    frame = dataset_frame(to_dataset(curve, stability))
    if not names or not curve.solutions:
        return frame
    problem = curve.solutions[0].problem
    shown = symbols_of(problem, names)
    columns = {column_of(curve.parameter): shown[column_of(curve.parameter)][0]}
    for suffix in ("", "_error"):
        for name in block_columns(problem, curve.solutions[0].overlaps):
            stem, _, index = name.partition("_")
            columns[f"{name}{suffix}"] = f"{shown[stem][0]}_{index}{suffix}"
        for number in problem.trained:
            columns[f"trained_{number['name']}{suffix}"] = f"trained_{shown[column_of(number['name'])][0]}{suffix}"
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
    for name in block_columns(problem, curve.solutions[0].overlaps):
        stem, *index = name.split("_")
        heads.append(with_index(shown[stem][1], [part.replace("k", "k=") for part in index]))
    heads += [shown[column_of(number["name"])][1] for number in problem.trained]
    heads += [r"e_{\mathrm{t}}", r"\varepsilon_{\mathrm{g}}"]
    rows = []
    for solution in curve.solutions:
        values, widths = (block_columns(problem, blocks) for blocks in (solution.overlaps, solution.half_widths))
        cells = [f"{solution.problem.value_of(curve.parameter):.6g}"]
        cells += [with_error(values[name], widths[name]) for name in values]
        cells += [with_error(*pair) for pair in zip(solution.overlaps.phi, solution.half_widths.phi, strict=True)]
        cells.append(with_error(solution.training_loss, solution.training_loss_error))
        cells.append(with_error(solution.test_error, solution.test_error_error))
        rows.append(" & ".join(cells) + r" \\")
    head = " & ".join(f"${symbol}$" for symbol in heads) + r" \\"
    frame = [rf"\begin{{tabular}}{{{'l' * len(heads)}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*frame, r"\end{tabular}"]) + "\n"
