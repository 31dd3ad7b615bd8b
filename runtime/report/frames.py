"""Datasets and curves as frames with flat columns, and as LaTeX tabulars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
import xarray

from ..base.errors import InputError
from ..base.numbers import format_value_with_error
from ..base.presenting import DatasetResult, to_dataset, to_frame, to_tabular
from ..branches.curve_results import CurveResults
from ..following.follow import Followed
from ..problems.columns import (
    QUANTITIES,
    column_suffix_of_entry,
    locations_of_overlap_entries,
    observables_of_problem,
    overlaps_and_trained_numbers_by_column,
    quantity_in_column,
    table_column_name,
)
from ..problems.problem import Problem
from ..problems.symbols import add_latex_index, symbols_of_table_columns
from .layout import format_attribute_with_error


@to_frame.register_renderer_of_class(xarray.Dataset)
def dataframe_of_dataset(dataset: xarray.Dataset) -> pandas.DataFrame:
    """Return a Dataset of results as a DataFrame: one row per point, one column per overlap entry or other quantity.

    Indices in the names of columns count from 1. `q_1` is q of token 1, `q_1_12` its entry (1, 2) where W has several
    columns, `q_1_k2` that of cluster 2, `q_1_error` an error bar, `multiplier_1` belongs to the first column of W.
    """
    lead = dataset["status"].dims if "status" in dataset else (table_column_name(dataset.attrs["parameter"]),)
    points = np.meshgrid(*(dataset[name].values for name in lead), indexing="ij")
    columns: dict[str, Any] = {str(name): values.ravel() for name, values in zip(lead, points, strict=True)}
    for key, values in dataset.data_vars.items():
        if values.dims[: len(lead)] != lead:
            continue  # of a line of the sweep, not of a point
        stem, suffix = str(key), ""
        if stem.endswith("_error") and values.ndim > len(lead):
            stem, suffix = stem.removesuffix("_error"), "_error"
        inner = values.shape[len(lead) :]
        flat = values.values.reshape(-1, *inner)
        for index in np.ndindex(inner):
            is_block = "token" in quantity_in_column(stem).axes
            entry = column_suffix_of_entry(index, inner) if is_block else "".join(f"_{i + 1}" for i in index)
            columns[stem + entry + suffix] = flat[(slice(None), *index)]
    return pandas.DataFrame(columns)


@to_frame.register_renderer_of_class(DatasetResult)
def dataframe_of_result(result: DatasetResult) -> pandas.DataFrame:
    """Return a result as a pandas DataFrame, one row per point; columns are those of `dataframe_of_dataset`."""
    return dataframe_of_dataset(result.to_xarray())


@to_frame.register_renderer_of_class(CurveResults)
@to_frame.register_renderer_of_class(Followed)
def dataframe_of_curve(
    curve: CurveResults[Any] | Followed, stability: bool = True, names: Mapping[str, str] | None = None
) -> pandas.DataFrame:
    """Return a branch as a pandas DataFrame, one row per solution; columns are those of `dataframe_of_dataset`.

    Args:
        curve: solutions along the branch.
        stability: whether to assess the stability of every solution as well.
        names: the user's own symbols by name of a quantity; None: the default symbols.

    Raises:
        InputError: the name of a quantity is unknown, or two columns would have the same symbol.
    """
    frame = dataframe_of_dataset(to_dataset(curve, stability))
    return (
        rename_columns_to_user_symbols(frame, curve.solutions[0].problem, curve.parameter, names)
        if curve.solutions
        else frame
    )


def rename_columns_to_user_symbols(
    frame: pandas.DataFrame, problem: Problem, parameter: str, names: Mapping[str, str] | None
) -> pandas.DataFrame:
    """Rename the columns of the DataFrame of a branch to the user's symbols.

    Args:
        frame: DataFrame of a branch.
        problem: learning problem of the branch.
        parameter: name of the parameter along the branch.
        names: the user's own symbols by name of a quantity; None: the default symbols.

    Raises:
        InputError: the name of a quantity is unknown, or two columns would have the same symbol.
    """
    if not names:
        return frame
    shown = symbols_of_table_columns(problem, names)
    columns = {table_column_name(parameter): shown[table_column_name(parameter)][0]}
    for suffix in ("", "_error"):
        for column, (block, place) in locations_of_overlap_entries(problem).items():
            key = table_column_name(problem.trained[place]["name"]) if block == "phi" else block
            stem, _, index = column.partition("_")
            parts = (stem, shown[key][0]) if block == "phi" else (shown[key][0], index)
            columns[column + suffix] = "_".join(parts) + suffix
    twins = {columns.get(str(name), str(name)) for name in frame.columns}
    if len(twins) < len(frame.columns):
        raise InputError(
            f"a symbol of --rename or names= is the name of another column; the columns are {', '.join(frame.columns)}"
        )
    return frame.rename(columns=columns)


@to_tabular.register_renderer_of_class(CurveResults)
def latex_tabular_of_curve(curve: CurveResults[Any], names: Mapping[str, str] | None = None) -> str:
    """Return a branch as a LaTeX tabular, values with error bars in units of the last digit.

    Args:
        curve: solutions along the branch.
        names: the user's own symbols by name of a quantity; None: the default symbols.

    Raises:
        InputError: the branch has no solutions, the name of a quantity is unknown, or a symbol is used twice.
    """
    if not curve.solutions:
        raise InputError(
            f"there is nothing to tabulate: the branch has no solution, {curve.end_text()}; try another interval"
        )
    problem = curve.solutions[0].problem
    shown = symbols_of_table_columns(problem, names)
    heads = [shown[table_column_name(curve.parameter)][1]]
    for column, (block, place) in locations_of_overlap_entries(problem).items():
        stem, *index = column.split("_")
        if block == "phi":
            heads.append(shown[table_column_name(problem.trained[place]["name"])][1])
        else:
            heads.append(add_latex_index(shown[stem][1], [part.replace("k", "k=") for part in index]))
    heads += [QUANTITIES[name].latex for name in observables_of_problem(problem)]
    rows = []
    for solution in curve.solutions:
        values, widths = (
            overlaps_and_trained_numbers_by_column(problem, blocks)
            for blocks in (solution.overlaps, solution.error_bars)
        )
        cells = [f"{solution.problem.value_of_parameter(curve.parameter):.6g}"]
        cells += [format_value_with_error(values[name], widths[name]) for name in values]
        cells += [format_attribute_with_error(solution, name) for name in observables_of_problem(problem)]
        rows.append(" & ".join(cells) + r" \\")
    head = " & ".join(f"${symbol}$" for symbol in heads) + r" \\"
    frame = [rf"\begin{{tabular}}{{{'l' * len(heads)}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join([*frame, r"\end{tabular}"]) + "\n"
