"""Sweeps as xarray Datasets along their parameters, and as frames with one row per point."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray

from ..base.presenting import to_dataset
from ..extensions.sweeping.line import Record
from ..extensions.sweeping.plan import SweepLine
from ..extensions.sweeping.sweep import Sweep
from ..problems.columns import table_column_name
from ..problems.overlaps import Overlaps
from .contract import to_plain_json
from .tables import build_dataset, dataset_attributes, overlaps_by_column_name, solution_column_names


@to_dataset.register_renderer_of_class(Sweep)
def sweep_dataset(sweep: Sweep, stability: bool = True) -> xarray.Dataset:
    """Return a sweep as an xarray Dataset along start, direction (if there are two) and parameters, or start and point.

    Variables of every point, with error bars as NAME_error; numbers are NaN without a solution:
        q, V, m, theta, trained_NAME, multiplier, training_loss, test_error, baseline_error;
        residual, accuracy, status, branch, reason, bistable_fraction;
        replicon, jump_weight, longitudinal_eigenvalue, verdict (in words);
        replica_symmetry and longitudinal: stable, marginal, unstable or undecided;
        unstable: through the replicon, through jumps, or empty.
    Variables of every line: lost_from and lost_to, the interval in which it lost its branch.
    Of a sweep over a list of points the parameters are variables along `point`.

    Args:
        sweep: sweep over parameters, or over a list of points.
        stability: ignored, since stability was assessed when the sweep was computed.
    """
    plan, lead = sweep.plan, _sweep_axes(sweep)
    described = plan.problem_with_values(plan.swept_values_of_point((0,) * (len(plan.shape) - 2)))
    problems = [described, plan.problem, *plan.sized.values()]
    columns = [*solution_column_names(problems), "unstable", "accuracy", "reason"]
    records = [
        (_dataset_index_of_sweep_point(sweep, index), _sweep_point_by_column_name(line, record))
        for index, line, record in sweep.points()
    ]
    dataset = build_dataset(lead, problems, columns, records)
    if plan.axes and plan.ask != "simulate":
        at = list(lead).index(table_column_name(plan.axes[0].name))
        around = {name: values for n, (name, values) in enumerate(lead.items()) if n != at}
        ends = (((*index[:at], *index[at + 1 :]), record) for index, record in records)
        dataset = dataset.assign(build_dataset(around, [], ("lost_from", "lost_to"), ends).data_vars)
    dataset = dataset.assign(_parameter_columns_of_point_list(sweep))
    dataset.attrs = _sweep_attributes(sweep)
    return dataset


def _sweep_axes(sweep: Sweep) -> dict[str, np.ndarray]:
    """Return, by name, the values along each axis of a sweep: starts, directions, and parameters or points."""
    plan = sweep.plan
    directions = {"direction": np.array(plan.continuation_directions, object)} if plan.both_ways else {}
    axes = {table_column_name(axis.name): np.array(axis.values) for axis in plan.axes}
    rows = {"point": np.arange(1, len(plan.rows) + 1)} if plan.rows else {}
    return {"start": np.array(plan.starts, object), **directions, **axes, **rows}


def _dataset_index_of_sweep_point(sweep: Sweep, index: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index in the Dataset of a point of the sweep; it has no axis of directions if only one is followed."""
    return index if sweep.plan.both_ways else (index[0], *index[2:])


def _sweep_point_by_column_name(line: SweepLine, record: Record) -> dict[str, Any]:
    """Return the stored record of a point of a sweep as values by column of the Dataset."""
    found = dict(record)
    if "overlaps" in record:
        packed = (np.array(record[name], float) for name in ("overlaps", "errors"))
        found |= overlaps_by_column_name(line.problem, *(Overlaps.unpack(u, line.problem.sizes) for u in packed))
    for pair, columns in (("multipliers", ("multiplier", "multiplier_error")), ("lost", ("lost_from", "lost_to"))):
        if pair in record:
            found |= zip(columns, record[pair], strict=True)
    return found


def _parameter_columns_of_point_list(sweep: Sweep) -> dict[str, Any]:
    """Return the parameter values of a sweep over a list of points as columns of the Dataset."""
    plan, columns = sweep.plan, {}
    for name in plan.swept_parameters if plan.rows else ():
        values = [row.get(name, plan.problem.parameters.get(name, np.nan)) for row in plan.rows]
        if all(np.ndim(value) == 0 for value in values):
            column = np.array(values, float)
        else:
            column = np.array([json.dumps(np.asarray(value).tolist()) for value in values], object)
        columns[table_column_name(name)] = ("point", column)
    return columns


def _sweep_attributes(sweep: Sweep) -> dict[str, Any]:
    plan, said = sweep.plan, sweep.plan.settings_that_identify_sweep
    return {
        **dataset_attributes(plan.problem, plan.axes[0].parameter_name_for_users if plan.axes else "point"),
        "parameters": json.dumps(to_plain_json(said["parameters"]), ensure_ascii=False),
        "sweep": json.dumps(
            {
                "ask": plan.ask,
                "seed": plan.seed,
                **said.get("simulated", {}),
                "axes": [a.parameter_name_for_users for a in plan.axes],
            }
        ),
    }
