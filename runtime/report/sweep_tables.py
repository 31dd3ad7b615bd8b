"""Sweeps as xarray Datasets along their parameters, and as frames with a row a point."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray

from ..base.presenting import to_dataset
from ..extensions.sweeping.line import Record
from ..extensions.sweeping.plan import Line
from ..extensions.sweeping.sweep import Sweep
from ..problems.columns import column_of
from ..problems.overlaps import Overlaps
from .contract import clean
from .tables import filled_table, overlaps_record, solution_columns, table_attributes


@to_dataset.register(Sweep)
def sweep_dataset(sweep: Sweep, stability: bool = True) -> xarray.Dataset:
    """A sweep along start, direction (where lines are gone both ways) and every parameter, or along start and point.

    Variables: q, V, m, theta with the axes of a curve's behind them, trained_NAME and multiplier where there are any,
    training_loss and test_error, all with half widths in `*_error`; baseline_error, residual, bistable_share; of a
    verdict replicon, jump_weight (both with errors), longitudinal_eigenvalue, verdict in words, replica_symmetry
    (stable, marginal, unstable or undecided), unstable (through the replicon, through jumps, or empty) and longitudinal
    (stable, marginal or unstable); accuracy, status, branch and reason. Where there is no solution numbers are nan.
    lost_from and lost_to, without the first parameter, say where a line lost its branch. Of a table the parameters are
    variables along point, arrays as JSON.
    """
    plan, lead = sweep.plan, _lead(sweep)
    described = plan.problem_at(plan.values_at((0,) * (len(plan.shape) - 2)))
    problems = [described, plan.problem, *plan.sized.values()]
    columns = [*solution_columns(problems), "unstable", "accuracy", "reason"]
    records = [(_place(sweep, index), _point_record(line, record)) for index, line, record in sweep.points()]
    dataset = filled_table(lead, problems, columns, records)
    if plan.axes and plan.ask != "simulate":
        at = list(lead).index(column_of(plan.axes[0].name))
        around = {name: values for n, (name, values) in enumerate(lead.items()) if n != at}
        ends = (((*index[:at], *index[at + 1 :]), record) for index, record in records)
        dataset = dataset.assign(filled_table(around, [], ("lost_from", "lost_to"), ends).data_vars)
    dataset = dataset.assign(_row_columns(sweep))
    dataset.attrs = _attributes(sweep)
    return dataset


def _lead(sweep: Sweep) -> dict[str, np.ndarray]:
    """The axes of points with their values."""
    plan = sweep.plan
    directions = {"direction": np.array(plan.directions, object)} if plan.both_ways else {}
    axes = {column_of(axis.name): np.array(axis.values) for axis in plan.axes}
    rows = {"point": np.arange(1, len(plan.rows) + 1)} if plan.rows else {}
    return {"start": np.array(plan.starts, object), **directions, **axes, **rows}


def _place(sweep: Sweep, index: tuple[int, ...]) -> tuple[int, ...]:
    """Return where a point of the plan stands along the axes."""
    return index if sweep.plan.both_ways else (index[0], *index[2:])


def _point_record(line: Line, record: Record) -> dict[str, Any]:
    """Return what a table holds of a point, out of its record."""
    found = dict(record)
    if "overlaps" in record:
        packed = (np.array(record[name], float) for name in ("overlaps", "errors"))
        found |= overlaps_record(line.problem, *(Overlaps.unpack(u, line.problem.sizes) for u in packed))
    for pair, columns in (("multipliers", ("multiplier", "multiplier_error")), ("lost", ("lost_from", "lost_to"))):
        if pair in record:
            found |= zip(columns, record[pair], strict=True)
    return found


def _row_columns(sweep: Sweep) -> dict[str, Any]:
    """The parameters of a table: what a row does not give has the value of the problem."""
    plan, columns = sweep.plan, {}
    for name in plan.swept if plan.rows else ():
        values = [row.get(name, plan.problem.parameters.get(name, np.nan)) for row in plan.rows]
        if all(np.ndim(value) == 0 for value in values):
            column = np.array(values, float)
        else:
            column = np.array([json.dumps(np.asarray(value).tolist()) for value in values], object)
        columns[column_of(name)] = ("point", column)
    return columns


def _attributes(sweep: Sweep) -> dict[str, Any]:
    plan, said = sweep.plan, sweep.plan.identity
    return {
        **table_attributes(plan.problem, plan.axes[0].shown if plan.axes else "point"),
        "parameters": json.dumps(clean(said["parameters"]), ensure_ascii=False),
        "sweep": json.dumps(
            {"ask": plan.ask, "seed": plan.seed, **said.get("simulated", {}), "axes": [a.shown for a in plan.axes]}
        ),
    }
