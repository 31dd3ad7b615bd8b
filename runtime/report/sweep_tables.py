"""Sweeps as xarray Datasets along their parameters, and as frames with a row a point."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas
import xarray

from ..presenting import to_dataset, to_frame
from ..problems.columns import block_shape, column_of
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem
from ..sweeping.line import SCALARS, VERDICTS
from ..sweeping.sweep import Sweep
from .contract import clean, identity_json
from .frames import flat_frame
from .tables import BLOCKS, describe_columns, describe_fields

_WORDS = ("status", "branch", *VERDICTS, "reason")
_AXES = {"token": "tokens", "cluster": "clusters", "column": "student_rank", "column2": "student_rank"}
_SIZES = {**_AXES, "teacher": "teacher_rank"}


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
    plan = sweep.plan
    problems = [plan.problem, *plan.sized.values()]
    sizes = {axis: max(getattr(p, count) for p in problems) for axis, count in _SIZES.items()}
    lead = lead_of(sweep)
    wide, shape = plan.shape, _shape(sweep)
    blocks = {
        name + suffix: np.full((*wide, *(sizes[axis] for axis in axes)), np.nan)
        for suffix in ("", "_error")
        for name, axes in BLOCKS.items()
    }
    names = list(dict.fromkeys(number["name"] for p in problems for number in p.trained))
    scalars = {name: np.full(wide, np.nan) for name in (*SCALARS, "accuracy")}
    scalars |= {f"trained_{name}{suffix}": np.full(wide, np.nan) for name in names for suffix in ("", "_error")}
    words = {name: np.full(wide, "", object) for name in _WORDS}
    kept = {f"multiplier{suffix}": np.full((*wide, sizes["column"]), np.nan) for suffix in ("", "_error")}
    ends = {name: np.full((*wide[:2], *wide[3:]), np.nan) for name in ("lost_from", "lost_to")}
    for index, line, record in sweep.points():
        for name in _WORDS:
            words[name][index] = record.get(name, "")
        for name in ("accuracy", *SCALARS):
            scalars[name][index] = record.get(name, np.nan)
        if "lost" in record and plan.axes:
            for name, value in zip(ends, record["lost"], strict=True):
                ends[name][(*index[:2], *index[3:])] = value
        if "overlaps" in record:
            for suffix, packed in (("", record["overlaps"]), ("_error", record["errors"])):
                _fill(blocks, scalars, index, line.problem, np.array(packed, float), suffix)
        if "multipliers" in record:
            for name, row in zip(kept, record["multipliers"], strict=True):
                kept[name][index][: len(row)] = row
    variables: dict[str, Any] = {}
    for name, values in blocks.items():
        axes = BLOCKS[name.removesuffix("_error")]
        variables[name] = ((*lead, *axes), values.reshape(*shape, *values.shape[len(wide) :]))
    if any(p.has_sphere for p in problems):
        variables |= {name: ((*lead, "column"), v.reshape(*shape, sizes["column"])) for name, v in kept.items()}
    variables |= {name: (lead, values.reshape(shape)) for name, values in {**scalars, **words}.items()}
    if plan.axes and plan.ask != "simulate":
        around = tuple(name for name in lead if name != column_of(plan.axes[0].name))
        inner = tuple(n for name, n in zip(lead, shape, strict=True) if name in around)
        variables |= {name: (around, values.reshape(inner)) for name, values in ends.items()}
    variables |= _row_columns(sweep)
    coordinates = {name: np.arange(1, size + 1) for name, size in sizes.items()}
    dataset = xarray.Dataset(variables, coords={**_coordinates(sweep), **coordinates})
    describe_columns(dataset, plan.problem)
    described = plan.problem_at(plan.values_at((0,) * (len(wide) - 2)))
    if all(getattr(described, count) == sizes[axis] for axis, count in _SIZES.items()):
        describe_fields(dataset, described)
    dataset.attrs = _attributes(sweep)
    return dataset


def lead_of(sweep: Sweep) -> tuple[str, ...]:
    """Names of the axes of points."""
    directions = ("direction",) if sweep.plan.both_ways else ()
    return ("start", *directions, *([column_of(axis.name) for axis in sweep.plan.axes] or ["point"]))


@to_frame.register(Sweep)
def sweep_frame(sweep: Sweep) -> pandas.DataFrame:
    """`sweep_dataset` with a row a point and flat columns, see `frames.dataset_frame`."""
    return flat_frame(sweep_dataset(sweep), lead_of(sweep))


def _fill(
    blocks: dict[str, np.ndarray],
    scalars: dict[str, np.ndarray],
    index: tuple[int, ...],
    problem: Problem,
    packed: np.ndarray,
    suffix: str,
) -> None:
    overlaps = Overlaps.unpack(packed, problem.sizes)
    for name in OVERLAPS:
        values = getattr(overlaps, name).reshape(block_shape(problem, name))
        blocks[name + suffix][index][tuple(slice(n) for n in values.shape)] = values
    for number, value in zip(problem.trained, overlaps.phi, strict=True):
        scalars[f"trained_{number['name']}{suffix}"][index] = value


def _shape(sweep: Sweep) -> tuple[int, ...]:
    shape = sweep.plan.shape
    return shape if sweep.plan.both_ways else (shape[0], *shape[2:])


def _coordinates(sweep: Sweep) -> dict[str, Any]:
    plan = sweep.plan
    found: dict[str, Any] = {"start": np.array(plan.starts, object)}
    if plan.both_ways:
        found["direction"] = np.array(plan.directions, object)
    found |= {column_of(axis.name): np.array(axis.values) for axis in plan.axes}
    if plan.rows:
        found["point"] = np.arange(1, len(plan.rows) + 1)
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
        **identity_json(plan.problem),
        "parameter": plan.axes[0].shown if plan.axes else "point",
        "parameters": json.dumps(clean(said["parameters"]), ensure_ascii=False),
        "sweep": json.dumps(
            {"ask": plan.ask, "seed": plan.seed, **said.get("simulated", {}), "axes": [a.shown for a in plan.axes]}
        ),
    }
