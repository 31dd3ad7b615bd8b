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
from .tables import build_dataset, dataset_attributes, overlaps_by_column, solution_column_names


@to_dataset.register_renderer_of_class(Sweep)
def sweep_dataset(sweep: Sweep, stability: bool = True) -> xarray.Dataset:
    """Return a sweep as a Dataset along start, direction (if run both ways) and its parameters, or start and point.

    Variables: q, V, m, theta with the axes of a curve's after those of the sweep, trained_NAME and multiplier if there
    are any, training_loss and test_error, all with error bars in `*_error`; baseline_error, residual, bistable_share;
    of a verdict replicon, jump_weight (both with errors), longitudinal_eigenvalue, verdict in words, replica_symmetry
    (stable, marginal, unstable or undecided), unstable (through the replicon, through jumps, or empty) and longitudinal
    (stable, marginal or unstable); accuracy, status, branch and reason. Without a solution numbers are NaN. lost_from
    and lost_to, without the first parameter, give the interval in which a line lost its branch. Of a table the
    parameters are variables along point, arrays as JSON.

    Args:
        sweep: the sweep.
        stability: ignored; the sweep was judged when it was computed.
    """
    plan, lead = sweep.plan, _sweep_axes(sweep)
    described = plan.problem_with_values(plan.swept_values_at((0,) * (len(plan.shape) - 2)))
    problems = [described, plan.problem, *plan.sized.values()]
    columns = [*solution_column_names(problems), "unstable", "accuracy", "reason"]
    records = [
        (_index_in_sweep_dataset(sweep, index), _sweep_point_by_column(line, record))
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
    """Return the axes of a sweep with their values: start, direction, and parameters or points."""
    plan = sweep.plan
    directions = {"direction": np.array(plan.continuation_directions, object)} if plan.both_ways else {}
    axes = {table_column_name(axis.name): np.array(axis.values) for axis in plan.axes}
    rows = {"point": np.arange(1, len(plan.rows) + 1)} if plan.rows else {}
    return {"start": np.array(plan.starts, object), **directions, **axes, **rows}


def _index_in_sweep_dataset(sweep: Sweep, index: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index along the axes of the Dataset of a point of the plan."""
    return index if sweep.plan.both_ways else (index[0], *index[2:])


def _sweep_point_by_column(line: SweepLine, record: Record) -> dict[str, Any]:
    """Return the values of a point of a sweep by column, from its record."""
    found = dict(record)
    if "overlaps" in record:
        packed = (np.array(record[name], float) for name in ("overlaps", "errors"))
        found |= overlaps_by_column(line.problem, *(Overlaps.unpack(u, line.problem.sizes) for u in packed))
    for pair, columns in (("multipliers", ("multiplier", "multiplier_error")), ("lost", ("lost_from", "lost_to"))):
        if pair in record:
            found |= zip(columns, record[pair], strict=True)
    return found


def _parameter_columns_of_point_list(sweep: Sweep) -> dict[str, Any]:
    """Return the parameters of a sweep over a list of points as columns; missing values are those of the problem."""
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
    plan, said = sweep.plan, sweep.plan.sweep_identity
    return {
        **dataset_attributes(plan.problem, plan.axes[0].user_name if plan.axes else "point"),
        "parameters": json.dumps(to_plain_json(said["parameters"]), ensure_ascii=False),
        "sweep": json.dumps(
            {"ask": plan.ask, "seed": plan.seed, **said.get("simulated", {}), "axes": [a.user_name for a in plan.axes]}
        ),
    }
