"""Branches, critical lines and tuned curves as xarray Datasets, and their netCDF files."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import xarray

from .._version import __version__
from ..base.errors import InputError
from ..base.files import check_file_writable, require_readable_to_end, write_atomically
from ..base.presenting import save, to_dataset
from ..branches.curve_results import Curve
from ..extensions.bayes.thresholds import BayesLine
from ..extensions.breaking.curve import BrokenCurve
from ..extensions.breaking.solution import BrokenSolution
from ..following.critical import CriticalLine
from ..following.follow import Followed
from ..problems import gauge
from ..problems.columns import (
    BROKEN,
    JUDGED,
    METRIC,
    QUANTITIES,
    SOLVED,
    add_error_bar_columns,
    overlap_array_shape,
    quantities_and_error_bars,
    quantity_in_column,
    split_token_and_cluster_axes,
    table_column_name,
)
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem
from ..responses.tuned_curve import TunedCurve
from ..solving.solution import Solution
from .contract import SCHEMA, attributes_by_name, check_file_schema, model_identity_json, parameters_json, to_plain_json

_AXIS_SIZES = {
    "token": "tokens",
    "cluster": "clusters",
    "column": "student_rank",
    "column2": "student_rank",
    "teacher": "teacher_rank",
}
"""Axes of arrays and the sizes of a problem that give their lengths."""

Record = dict[str, Any]
"""Values of a point by column: numbers, words and arrays; missing or None if unknown."""


def build_dataset(
    lead: Mapping[str, np.ndarray],
    problems: Sequence[Problem],
    names: Iterable[str],
    records: Iterable[tuple[tuple[int, ...], Record]],
) -> xarray.Dataset:
    """Return points as a Dataset along leading axes; unknown numbers are NaN, unknown words empty.

    Axes of arrays follow the leading ones and count from 1: token, cluster, column and column2 of W, teacher.

    Args:
        lead: values of the leading axes by name.
        problems: problems of the points; arrays have the largest of their sizes, columns the meaning in the first.
        names: names of the columns, in order.
        records: index along the leading axes and known values of each point.
    """
    sizes = {axis: max((getattr(p, count) for p in problems), default=0) for axis, count in _AXIS_SIZES.items()}
    arrays, dims = {}, {}
    for name in names:
        quantity = quantity_in_column(name)
        dims[name] = (*lead, *quantity.axes)
        shape = (*map(len, lead.values()), *(sizes[axis] for axis in quantity.axes))
        arrays[name] = np.full(shape, "", object) if quantity.is_word else np.full(shape, np.nan)
    for index, record in records:
        for name, value in record.items():
            if name in arrays and value is not None:
                arrays[name][index + tuple(slice(size) for size in np.shape(value))] = value
    used = {axis for own in dims.values() for axis in own}
    inner = {axis: np.arange(1, size + 1) for axis, size in sizes.items() if axis in used}
    dataset = xarray.Dataset({name: (dims[name], arrays[name]) for name in arrays}, coords={**lead, **inner})
    for name in QUANTITIES.keys() & arrays.keys():
        dataset[name].attrs["long_name"] = QUANTITIES[name].meaning
    if "training_loss" in arrays and problems and problems[0].inverse_temperature is not None:
        dataset["training_loss"].attrs["long_name"] = "free energy per d"
    if "m" in arrays and problems and {a: getattr(problems[0], n) for a, n in _AXIS_SIZES.items()} == sizes:
        add_overlap_attributes(dataset, problems[0])
    return dataset


def add_overlap_attributes(dataset: xarray.Dataset, problem: Problem) -> None:
    """Add attributes to m and theta that tell where they vanish, and whether the sign of m is free.

    `present`: 1 or 0 for every (token, cluster), the cluster fastest; 0 if the overlap vanishes by construction,
    because there is neither a mean nor an encoding, or no teacher in the loss and the law. `sign` of m: `free` if the
    loss is symmetric under a change of sign of W, else `fixed`.

    Args:
        dataset: the table, changed in place.
        problem: its problem.
    """
    dataset["m"].attrs["present"] = problem.law.contexts_with_means.astype(int)
    dataset["m"].attrs["sign"] = "free" if gauge.is_sign_symmetric(problem) else "fixed"
    dataset["theta"].attrs["present"] = np.full(problem.contexts, int(problem.has_teacher_overlap))


def overlaps_by_column(problem: Problem, overlaps: Overlaps, errors: Overlaps | None = None) -> dict[str, Any]:
    """Return overlaps, trained numbers and their error bars by column.

    Args:
        problem: the problem.
        overlaps: their values.
        errors: their error bars; None: without.
    """
    found: dict[str, Any] = {}
    for suffix, blocks in (("", overlaps), ("_error", errors)):
        if blocks is not None:
            found |= {name + suffix: split_token_and_cluster_axes(problem, getattr(blocks, name)) for name in OVERLAPS}
            found |= {
                f"{name}{suffix}": value
                for name, value in zip(trained_number_columns(problem), blocks.phi, strict=True)
            }
    return found


def trained_number_columns(problem: Problem) -> list[str]:
    """Return the columns of the numbers trained with the weights."""
    return [f"trained_{number['name']}" for number in problem.trained]


def dataset_attributes(problem: Problem | None, parameter: str, *varied: str) -> dict[str, Any]:
    """Return the attributes of every table: model, version, digest, parameter along it, other parameters (JSON).

    Args:
        problem: the problem; None if the table is empty.
        parameter: the parameter along the table.
        varied: parameters that take several values.
    """
    if problem is None:
        return {"model": "", "digest": "", "version": __version__, "parameter": parameter, "parameters": "{}"}
    held = json.dumps(to_plain_json(parameters_json(problem, *varied)), ensure_ascii=False)
    return {**model_identity_json(problem), "parameter": parameter, "parameters": held}


def _solution_by_column(solution: Solution | BrokenSolution, stability: bool) -> Record:
    """Return the quantities of a solution by column; the verdict is that of the replica symmetric solution."""
    record = overlaps_by_column(solution.problem, solution.overlaps, solution.error_bars) | quantities_and_error_bars(
        solution, SOLVED
    )
    for name, (value, error) in solution.further_test_errors_with_error_bars.items():
        record |= {METRIC + name: value, f"{METRIC}{name}_error": error}
    judged = solution.symmetric if isinstance(solution, BrokenSolution) else solution
    if stability:
        record |= quantities_and_error_bars(judged.stability, JUDGED)
    return record | _overlaps_between_states_by_column(solution) if isinstance(solution, BrokenSolution) else record


def _overlaps_between_states_by_column(solution: BrokenSolution) -> Record:
    """Return the quantities of broken replica symmetry by column; without breaking those of a single state."""
    state, errors = solution.state, solution.state_error_bars
    if state is None or errors is None:
        none = np.zeros_like(solution.overlaps.q)
        between, distance = (solution.overlaps.q, solution.error_bars.q), (none, none)
    else:
        between, distance = (state.between.q, errors.between.q), (state.total_distance, errors.total_distance)
    blocks = zip(add_error_bar_columns(["q_between", "distance"]), (*between, *distance), strict=True)
    scalars = quantities_and_error_bars(solution, (name for name, quantity in BROKEN.items() if not quantity.axes))
    return scalars | {name: split_token_and_cluster_axes(solution.problem, values) for name, values in blocks}


def overlap_column_names(
    problems: Sequence[Problem], names: Sequence[str] = OVERLAPS, errors: bool = True
) -> list[str]:
    """Return the columns of overlaps and of all numbers trained with the weights, then those of their error bars.

    Args:
        problems: problems of the points of the table.
        names: names of the overlaps.
        errors: whether to add columns of error bars.
    """
    every = [*names, *dict.fromkeys(name for problem in problems for name in trained_number_columns(problem))]
    return [*every, *(f"{name}_error" for name in every)] if errors else every


def solution_column_names(problems: Sequence[Problem], metrics: Iterable[str] = ()) -> list[str]:
    """Return the columns of solutions in order.

    Args:
        problems: problems of the points of the table.
        metrics: names of the metrics after the first.
    """
    keep_norms = any(problem.regulariser.keeps_norms for problem in problems)
    solved = [name for name in SOLVED if name != "multiplier" or keep_norms]
    further = [f"{METRIC}{name}{suffix}" for name in metrics for suffix in ("", "_error")]
    return [*overlap_column_names(problems), *add_error_bar_columns(solved), *further, *add_error_bar_columns(JUDGED)]


def empty_branch_dataset(problem: Problem, parameter: str) -> xarray.Dataset:
    """Return the table of a branch without points, which has its columns.

    Args:
        problem: the problem.
        parameter: the parameter along the branch.
    """
    columns = solution_column_names([problem], problem.metric_names[1:])
    return build_dataset({table_column_name(parameter): np.empty(0)}, [problem], columns, ()).assign_attrs(
        parameter=parameter
    )


def _branch_dataset(curve: Curve | BrokenCurve | Followed, stability: bool) -> xarray.Dataset:
    """Return the solutions of a branch, in order, as a Dataset along the parameter."""
    solutions: Sequence[Solution | BrokenSolution] = curve.solutions
    problems = [solution.problem for solution in solutions]
    problem = problems[0] if problems else None
    columns = solution_column_names(problems, problem.metric_names[1:] if problem else ())
    if isinstance(curve, BrokenCurve):
        columns += add_error_bar_columns(BROKEN)
    records = (((n,), _solution_by_column(solution, stability)) for n, solution in enumerate(solutions))
    dataset = build_dataset(
        {table_column_name(curve.parameter): np.asarray(curve.values, float)}, problems, columns, records
    )
    if isinstance(curve, BrokenCurve):
        dataset["q"].attrs["long_name"] = "overlap of a minimiser's weights with themselves, q_1"
        dataset["training_loss"].attrs["long_name"] = "training loss per d of the lowest states"
    dataset.attrs = dataset_attributes(problem, curve.parameter, curve.parameter)
    dataset.attrs |= {"branch": curve.name, "ends": curve.end_text()}
    return dataset


@to_dataset.register_renderer_of_class(Curve)
@to_dataset.register_renderer_of_class(BrokenCurve)
def curve_dataset(curve: Curve | BrokenCurve, stability: bool = True) -> xarray.Dataset:
    """Return a branch as a Dataset along the parameter.

    Axes: the parameter under its own name, then those of `build_dataset` (of length 1 if there is one token, cluster or
    column). Variables: those of `columns.SOLVED`, multiplier if norms are constrained, test_error_NAME of further
    metrics, trained_NAME, with error bars in `*_error`; and, with `stability`, those of `columns.JUDGED`. The
    attributes hold model, digest, version, parameters (JSON), branch and its ends.

    With a step of replica symmetry breaking the overlaps are those of one minimiser (q is q_1); replicon, jumps and
    verdict are those of the symmetric solution. Additional variables are those of `columns.BROKEN`; rsb is 0 if no
    breaking was found, and energy_moved is NaN if replica symmetry has no solution on the branch.

    Args:
        curve: the branch.
        stability: also assess the stability of every solution, which takes about as long as solving.
    """
    dataset = _branch_dataset(curve, stability)
    for side, end in zip(("end_below", "end_above"), curve.ends, strict=True):
        # (last value found, first value not found); empty if the branch reaches the edge of the grid.
        dataset.attrs[side] = json.dumps(list(end) if end is not None else [])
    return dataset


@to_dataset.register_renderer_of_class(Followed)
def followed_branch_dataset(followed: Followed, stability: bool = True) -> xarray.Dataset:
    """Return a branch followed by arclength as a Dataset, in order of arclength; the parameter may not be monotonic.

    Variables and attributes as of `curve_dataset`, and `arclength` in units of the block scales and of the interval;
    the attribute `events` (JSON) holds kind, type, value, error, status and words of every event.

    Args:
        followed: the branch.
        stability: also assess the stability of every solution.
    """
    dataset = _branch_dataset(followed, stability)
    dataset["arclength"] = (table_column_name(followed.parameter), followed.arclength)
    dataset.attrs["slopes"] = "; ".join(followed.slopes_by)
    events = []
    for event in followed.events:
        of_evidence = {name: event.evidence[name] for name in ("type", "toward")}
        events.append(attributes_by_name(event, "kind", "value", "error", "status") | of_evidence)
    dataset.attrs["events"] = json.dumps(events)
    return dataset


@to_dataset.register_renderer_of_class(TunedCurve)
def tuned_curve_dataset(tuned: TunedCurve, stability: bool = True) -> xarray.Dataset:
    """Return a tuned curve as a Dataset: solutions, and the best value of the parameter with its error bar and status.

    Args:
        tuned: the tuned curve.
        stability: also assess the stability of every solution.
    """
    dataset = curve_dataset(tuned.curve, stability)
    if not tuned.optima:
        return dataset
    first, axis = tuned.optima[0], table_column_name(tuned.over)
    name = first.parameter.rstrip("_")
    for column, attribute in {f"best_{name}": "value", f"best_{name}_error": "error"}.items():
        dataset[column] = (axis, np.array([getattr(optimum, attribute) for optimum in tuned.optima]))
    for column, attribute in {"optimum": "kind", "optimum_status": "status"}.items():
        dataset[column] = (axis, np.array([getattr(optimum, attribute) for optimum in tuned.optima], object))
    dataset[f"best_{name}"].attrs["long_name"] = f"{name} of least {first.minimise}"
    dataset.attrs |= dataset_attributes(first.solution.problem, tuned.over, tuned.over, name)
    dataset.attrs |= {
        "tuned": name,
        "minimise": first.minimise,
        "notes": json.dumps(list(tuned.notes), ensure_ascii=False),
    }
    return dataset


@to_dataset.register_renderer_of_class(CriticalLine)
def critical_line_dataset(line: CriticalLine) -> xarray.Dataset:
    """Return a critical line as a Dataset along `point`, with variables value, error and over.

    Attributes name the event and both parameters; `special` (JSON) holds codimension-2 points.
    """
    dataset = _critical_line_variables(line)
    dataset.attrs = {
        **dataset_attributes(line.first.problem, line.parameter, line.parameter),
        "kind": line.kind,
        "over": line.over.rstrip("_"),
        "branches": " and ".join(line.first.branches),
        "special": json.dumps(to_plain_json(list(line.special))),
        "ends": line.ending,
    }
    return dataset


@to_dataset.register_renderer_of_class(BayesLine)
def bayes_threshold_line_dataset(line: BayesLine) -> xarray.Dataset:
    """Return a line of Bayes-optimal thresholds as a Dataset like that of a critical line; NaN where there is none."""
    dataset = _critical_line_variables(line)
    dataset.attrs = {
        **dataset_attributes(line.problem, "alpha", "alpha", line.over),
        "kind": line.title,
        "over": line.over.rstrip("_"),
        "branches": "Bayes-optimal inference",
        "special": "[]",
        "evidence": json.dumps(to_plain_json(list(line.evidence))),
        "ends": line.ending,
    }
    return dataset


def _critical_line_variables(line: CriticalLine | BayesLine) -> xarray.Dataset:
    columns = {"over": line.over_values, "value": line.values, "error": line.errors}
    return xarray.Dataset({name: ("point", np.asarray(values, float)) for name, values in columns.items()})


@save.register_renderer_of_class(xarray.Dataset)
def save_dataset_as_netcdf(dataset: xarray.Dataset, path: str | Path) -> None:
    """Write a Dataset to a netCDF 4 file, never partially.

    The bytes are made in memory, since HDF5 ends the process when the disk is full.

    Args:
        dataset: the table.
        path: path of the file.

    Raises:
        InputError: the file cannot be written.
    """
    path, whole = check_file_writable(Path(path)), io.BytesIO()
    with h5netcdf.File(whole, "w") as file:
        dataset.assign_attrs(schema=SCHEMA).dump_to_store(xarray.backends.H5NetCDFStore(file))
    write_atomically(path, whole.getvalue())


def overlaps_from_dataset_row(dataset: xarray.Dataset, row: int, problem: Problem) -> Overlaps:
    """Return the overlaps of one point or run of a table.

    Args:
        dataset: the table.
        row: index along its first axis.
        problem: determines the structure.

    Raises:
        InputError: the table has another structure.
    """
    blocks = {}
    for name in OVERLAPS:
        expected = overlap_array_shape(problem, name)
        found = dataset[name].values[row] if name in dataset else np.zeros(0)
        if found.shape != expected:
            raise InputError(f"{name} has shape {found.shape} in the table; {expected} is expected")
        blocks[name] = found.reshape(problem.contexts, *expected[2:])
    names = trained_number_columns(problem)
    missing = [name for name in names if name not in dataset]
    if missing:
        raise InputError(f"the trained number {missing[0].removeprefix('trained_')!r} is missing in the table")
    return Overlaps(**blocks, phi=np.array([float(dataset[name].values[row]) for name in names]))


def loss_difference_curve(first: xarray.Dataset, second: xarray.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the difference of training losses of two branches along their parameter.

    Args:
        first: table of the first branch.
        second: table of the second branch.

    Returns:
        Values of the parameter at which both branches were found, training loss of the first minus that of the second,
        error bar of the difference; each (N,).
    """
    one, other = (dataset[table_column_name(dataset.attrs["parameter"])].values for dataset in (first, second))
    common, left, right = np.intersect1d(one, other, return_indices=True)
    difference = first["training_loss"].values[left] - second["training_loss"].values[right]
    return common, difference, first["training_loss_error"].values[left] + second["training_loss_error"].values[right]


def _read_netcdf(path: Path) -> tuple[xarray.Dataset | None, str]:
    """Return a netCDF file as a Dataset and an empty string, or None and the reason why it cannot be read."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # raised by h5netcdf for files that it could not open
    try:
        with h5py.File(require_readable_to_end(path, again=True), "r"):
            pass
        return xarray.load_dataset(path, engine="h5netcdf"), ""
    except OSError as error:
        return None, error.strerror or "it is not a netCDF 4 file"
    except Exception:  # any error of the libraries in bytes that are no table
        return None, "it is damaged, or not a netCDF 4 file"
    finally:
        sys.unraisablehook = hook


def load_netcdf_dataset(path: str | Path) -> xarray.Dataset:
    """Return a file written by `save_dataset_as_netcdf`, of this release or an earlier one, loaded into memory.

    Raises:
        InputError: the file does not exist, is damaged or not netCDF, is no table of this package, or has a later
            schema.
    """
    path = Path(path)
    dataset, reason = _read_netcdf(path)
    if dataset is None:
        raise InputError(
            f"cannot read {path}: {reason}; a table is what commands as `curve` or `sweep` write by -o FILE.nc"
        )
    if "model" not in dataset.attrs or "parameter" not in dataset.attrs:
        raise InputError(f"{path} was not written by saddleforge: it does not name a model and a parameter")
    check_file_schema(path, dataset.attrs.pop("schema", None))
    return dataset
