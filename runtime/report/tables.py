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
from ..base.files import check_file_writable, require_readable_file, write_atomically
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
    RENAMED_COLUMNS,
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
    """Arrange the values of many points in an xarray Dataset; missing numbers are NaN, missing texts empty.

    Every variable has the leading axes. Arrays have further ones, numbered from 1: token, cluster, column and column2
    (columns of W), teacher.

    Args:
        lead: leading axes of every variable: name of the axis -> values along it.
        problems: learning problems of the points, which give the sizes of arrays (the largest ones) and, the first of
            them, descriptions of the variables.
        names: names of the variables, in order.
        records: for every point its index along the leading axes, and its known values by name of the variable.
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
    """Add attributes to m and theta that say for which tokens they vanish, and whether the sign of m is free.

    `present` is a list with 1 or 0 for every (token, cluster) pair (clusters run fastest): 0 if the overlap vanishes
    because there is neither a mean nor an encoding, or no teacher. `sign` of m is "free" if the loss does not change
    with the sign of W, else "fixed".

    Args:
        dataset: table of solutions, changed in place.
        problem: learning problem of the solutions.
    """
    dataset["m"].attrs["present"] = problem.law.contexts_with_nonzero_mean.astype(int)
    dataset["m"].attrs["sign"] = "free" if gauge.is_loss_sign_symmetric(problem) else "fixed"
    dataset["theta"].attrs["present"] = np.full(problem.contexts, int(problem.has_teacher_overlap))


def overlaps_by_column_name(problem: Problem, overlaps: Overlaps, errors: Overlaps | None = None) -> dict[str, Any]:
    """Return overlaps and trained numbers, with their error bars, by name of the column of a table.

    Args:
        problem: the learning problem: a model with its parameters.
        overlaps: overlaps and trained numbers.
        errors: error bars of these; None: no columns of error bars.
    """
    found: dict[str, Any] = {}
    for suffix, blocks in (("", overlaps), ("_error", errors)):
        if blocks is not None:
            found |= {name + suffix: split_token_and_cluster_axes(problem, getattr(blocks, name)) for name in OVERLAPS}
            found |= {
                f"{name}{suffix}": value
                for name, value in zip(columns_of_trained_numbers(problem), blocks.phi, strict=True)
            }
    return found


def columns_of_trained_numbers(problem: Problem) -> list[str]:
    """Return the column names, trained_NAME, of the scalar parameters that are trained together with the weights."""
    return [f"trained_{number['name']}" for number in problem.trained]


def dataset_attributes(problem: Problem | None, parameter: str, *varied: str) -> dict[str, Any]:
    """Return the attributes of every Dataset: model, version, digest of equations, varied parameter, other parameters.

    Args:
        problem: the learning problem: a model with its parameters; None if the table is empty.
        parameter: name of the parameter along the table.
        varied: names of all parameters that vary in the table, which `parameters` leaves out.
    """
    if problem is None:
        return {"model": "", "digest": "", "version": __version__, "parameter": parameter, "parameters": "{}"}
    held = json.dumps(to_plain_json(parameters_json(problem, *varied)), ensure_ascii=False)
    return {**model_identity_json(problem), "parameter": parameter, "parameters": held}


def _solution_by_column_name(solution: Solution | BrokenSolution, stability: bool) -> Record:
    """Return the quantities of a solution by name of the column.

    With broken symmetry, those of stability are of the replica symmetric solution.
    """
    record = overlaps_by_column_name(
        solution.problem, solution.overlaps, solution.error_bars
    ) | quantities_and_error_bars(solution, SOLVED)
    for name, (value, error) in solution.further_test_errors_with_error_bars.items():
        record |= {METRIC + name: value, f"{METRIC}{name}_error": error}
    judged = solution.symmetric if isinstance(solution, BrokenSolution) else solution
    if stability:
        record |= quantities_and_error_bars(judged.stability, JUDGED)
    return record | _state_overlaps_by_column_name(solution) if isinstance(solution, BrokenSolution) else record


def _state_overlaps_by_column_name(solution: BrokenSolution) -> Record:
    """Return quantities of broken replica symmetry by table column; q_between is q if symmetry is not broken."""
    state, errors = solution.state, solution.state_error_bars
    if state is None or errors is None:
        none = np.zeros_like(solution.overlaps.q)
        between, distance = (solution.overlaps.q, solution.error_bars.q), (none, none)
    else:
        between, distance = (
            (state.between.q, errors.between.q),
            (state.overlap_difference, errors.overlap_difference),
        )
    blocks = zip(add_error_bar_columns(["q_between", "distance"]), (*between, *distance), strict=True)
    scalars = quantities_and_error_bars(solution, (name for name, quantity in BROKEN.items() if not quantity.axes))
    return scalars | {name: split_token_and_cluster_axes(solution.problem, values) for name, values in blocks}


def overlap_column_names(
    problems: Sequence[Problem], names: Sequence[str] = OVERLAPS, errors: bool = True
) -> list[str]:
    """Return the column names of overlaps and trained numbers, then those of their error bars.

    Args:
        problems: learning problems of the points of the table.
        names: names of the overlaps.
        errors: whether to add the columns of error bars, NAME_error.
    """
    every = [*names, *dict.fromkeys(name for problem in problems for name in columns_of_trained_numbers(problem))]
    return [*every, *(f"{name}_error" for name in every)] if errors else every


def solution_column_names(problems: Sequence[Problem], metrics: Iterable[str] = ()) -> list[str]:
    """Return the column names of a table of solutions, in order.

    Args:
        problems: learning problems of the points of the table.
        metrics: names of the metrics (kinds of test error) after the first.
    """
    keep_norms = any(problem.regulariser.keeps_norms for problem in problems)
    solved = [name for name in SOLVED if name != "multiplier" or keep_norms]
    further = [f"{METRIC}{name}{suffix}" for name in metrics for suffix in ("", "_error")]
    return [*overlap_column_names(problems), *add_error_bar_columns(solved), *further, *add_error_bar_columns(JUDGED)]


def empty_branch_dataset(problem: Problem, parameter: str) -> xarray.Dataset:
    """Return an empty table with the columns of a branch.

    Args:
        problem: the learning problem: a model with its parameters.
        parameter: name of the parameter along the branch.
    """
    columns = solution_column_names([problem], problem.metric_names[1:])
    return build_dataset({table_column_name(parameter): np.empty(0)}, [problem], columns, ()).assign_attrs(
        parameter=parameter
    )


def _branch_dataset(curve: Curve | BrokenCurve | Followed, stability: bool) -> xarray.Dataset:
    """Return a table of the solutions of a branch: an xarray Dataset along its parameter."""
    solutions: Sequence[Solution | BrokenSolution] = curve.solutions
    problems = [solution.problem for solution in solutions]
    problem = problems[0] if problems else None
    columns = solution_column_names(problems, problem.metric_names[1:] if problem else ())
    if isinstance(curve, BrokenCurve):
        columns += add_error_bar_columns(BROKEN)
    records = (((n,), _solution_by_column_name(solution, stability)) for n, solution in enumerate(solutions))
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
    """Return a branch as an xarray Dataset along its parameter.

    Axes: the parameter under its own name, then those of `build_dataset`.

    Variables, with error bars as NAME_error:
        those of `columns.SOLVED`;
        multiplier, if norms are constrained;
        test_error_NAME of further metrics, trained_NAME of trained numbers;
        those of `columns.JUDGED`, with `stability`;
        those of `columns.BROKEN`, with a step of replica symmetry breaking; q then is q_1, that of one minimiser, and
        stability that of the replica symmetric solution.

    Attributes: model, digest, version, parameters (JSON), branch, and its ends.

    Args:
        curve: solutions along the branch.
        stability: whether to assess the stability of every solution as well, which takes about as long as solving.
    """
    dataset = _branch_dataset(curve, stability)
    for side, end in zip(("end_below", "end_above"), curve.ends, strict=True):
        # (last value found, first value not found); empty if the branch reaches the edge of the grid.
        dataset.attrs[side] = json.dumps(list(end) if end is not None else [])
    return dataset


@to_dataset.register_renderer_of_class(Followed)
def followed_branch_dataset(followed: Followed, stability: bool = True) -> xarray.Dataset:
    """Return a branch followed by arclength as an xarray Dataset; its parameter need not be monotonic.

    Solutions are in order of arclength. Variables and attributes are those of `curve_dataset`, the variable `arclength`
    (in units of the scales of the overlaps and of the parameter interval), and the attribute `events`: as JSON, kind,
    type, value, error and status of every event (fold, crossing, instability).

    Args:
        followed: branch followed by arclength.
        stability: whether to assess the stability of every solution as well.
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
    """Return a tuned curve as an xarray Dataset: solutions, and the optimal value of the tuned parameter.

    Args:
        tuned: curve whose solutions have an optimal parameter value each.
        stability: whether to assess the stability of every solution as well.
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
    """Return a critical line (an event along a second parameter) as an xarray Dataset along `point`.

    Variables: `over` (second parameter), `value` (first parameter at the event), `error`. Attributes name the event and
    both parameters; `special` contains codimension-2 points as JSON.
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
    """Return a line of Bayes-optimal thresholds as a Dataset with the variables of `critical_line_dataset`.

    `value` is NaN where there is no threshold.
    """
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
    """Write an xarray Dataset to a netCDF 4 file, which is never partially written.

    The file is first made in memory, since HDF5 ends the process when the disk is full.

    Args:
        dataset: table of a result.
        path: path of the file.

    Raises:
        InputError: the file cannot be written.
    """
    path, whole = check_file_writable(Path(path)), io.BytesIO()
    with h5netcdf.File(whole, "w") as file:
        dataset.assign_attrs(schema=SCHEMA).dump_to_store(xarray.backends.H5NetCDFStore(file))
    write_atomically(path, whole.getvalue())


def overlaps_from_dataset_row(dataset: xarray.Dataset, row: int, problem: Problem) -> Overlaps:
    """Return the overlaps of one point of a table of solutions, or of one run of a table of simulations.

    Args:
        dataset: table of a branch or of a simulation.
        row: index of the point or run along the first axis.
        problem: learning problem, which determines the expected shapes.

    Raises:
        InputError: overlaps of the table have other shapes, or a trained number is missing.
    """
    blocks = {}
    for name in OVERLAPS:
        expected = overlap_array_shape(problem, name)
        found = dataset[name].values[row] if name in dataset else np.zeros(0)
        if found.shape != expected:
            raise InputError(
                f"{name} has shape {found.shape} in the table, but the problem needs {expected}: give a table of a "
                "problem with the same sizes"
            )
        blocks[name] = found.reshape(problem.contexts, *expected[2:])
    names = columns_of_trained_numbers(problem)
    missing = [name for name in names if name not in dataset]
    if missing:
        raise InputError(
            f"the table has no column {missing[0]!r}, which this model trains (sf.trained): give a table of the model"
        )
    return Overlaps(**blocks, phi=np.array([float(dataset[name].values[row]) for name in names]))


def loss_difference_curve(first: xarray.Dataset, second: xarray.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the difference of the training losses of two branches along their parameter.

    Args:
        first: table of the first branch.
        second: table of the second branch.

    Returns:
        Three arrays of shape (N points,): values of the parameter at which both branches were found, training loss of
        the first branch minus that of the second, error bar of the difference.
    """
    one, other = (dataset[table_column_name(dataset.attrs["parameter"])].values for dataset in (first, second))
    common, left, right = np.intersect1d(one, other, return_indices=True)
    difference = first["training_loss"].values[left] - second["training_loss"].values[right]
    return common, difference, first["training_loss_error"].values[left] + second["training_loss_error"].values[right]


def _read_netcdf(path: Path) -> tuple[xarray.Dataset | None, str]:
    """Read a netCDF file: return its Dataset and "", or None and the reason why it cannot be read."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # raised by h5netcdf for files that it could not open
    try:
        with h5py.File(require_readable_file(path, again=True), "r"):
            pass
        return xarray.load_dataset(path, engine="h5netcdf"), ""
    except OSError as error:
        return None, error.strerror or "it is not a netCDF 4 file"
    except Exception:  # any error of the libraries in bytes that are no table
        return None, "it is damaged, or not a netCDF 4 file"
    finally:
        sys.unraisablehook = hook


def load_netcdf_dataset(path: str | Path) -> xarray.Dataset:
    """Load a netCDF file written by `save_dataset_as_netcdf`, of this release or an earlier one, into memory.

    Raises:
        InputError: the file cannot be read, is no table of this package, or was written by a later release.
    """
    path = Path(path)
    dataset, reason = _read_netcdf(path)
    if dataset is None:
        raise InputError(f"cannot read {path}: {reason}; give a table that `curve` or `sweep` wrote with -o FILE.nc")
    if "model" not in dataset.attrs or "parameter" not in dataset.attrs:
        raise InputError(
            f"{path} was not written by saddleforge: its attributes `model` and `parameter` are missing; give a table "
            "that `curve` or `sweep` wrote with -o FILE.nc"
        )
    check_file_schema(path, dataset.attrs.pop("schema", None))
    return dataset.rename({old: new for old, new in RENAMED_COLUMNS.items() if old in dataset})
