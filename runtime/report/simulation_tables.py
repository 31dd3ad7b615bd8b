"""Simulations as netCDF: written whole after every seed, and read again to continue."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from ..base.errors import InputError
from ..base.presenting import to_dataset
from ..extensions.descent.dynamics import Dynamics
from ..extensions.simulation.controls import COUNT as CONTROLS
from ..extensions.simulation.controls import Controls
from ..extensions.simulation.method import PolishRecord
from ..extensions.simulation.methods import METHODS
from ..extensions.simulation.plan import Plan
from ..extensions.simulation.run import Run
from ..extensions.simulation.simulation import POLISH, SCALARS, Simulation
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from .contract import to_plain_json
from .tables import build_table, load_dataset, overlap_columns, overlaps_from_row, overlaps_record, table_attributes

PATH_OVERLAPS = ("q", "m", "theta")
"""Overlaps that one-pass runs store in time."""
_PLAN_FIELDS = [known.name for known in fields(Plan) if known.name not in ("problem", "memory")]


@to_dataset.register(Simulation)
def simulation_dataset(simulation: Simulation) -> xarray.Dataset:
    """Return a simulation as a Dataset along `seed`: overlaps, losses, status and branch of each run.

    Axes of overlaps as of `tables.build_table`. With constrained norms multiplier, with the respective options
    polish_... and control_...; of one-pass methods overlaps in `time` as path_...
    """
    problem, plan, runs = simulation.problem, simulation.plan, simulation.runs
    names = [*overlap_columns([problem], errors=False), *["multiplier"] * problem.regulariser.keeps_norms, *SCALARS]
    names += [f"polish_{name}" for name in POLISH if plan.polish] + ["status", "branch"]
    seeds = {"seed": np.array([run.seed for run in runs], int)}
    records = (((n,), _run_record(simulation, run)) for n, run in enumerate(runs))
    dataset = build_table(seeds, [problem], names, records)
    for name in ("deviations", "errors") if plan.controls else ():
        rows = [getattr(run.controls, name, np.full(CONTROLS, np.nan)) for run in runs]
        dataset[f"control_{name}"] = (("seed", "control"), np.reshape(rows, (len(runs), CONTROLS)))
    if METHODS[plan.method].one_pass:
        paths = _path_table(simulation, seeds)
        dataset = dataset.assign({own: paths[name] for own, name in _path_columns(problem).items()})
    dataset.attrs = _plan_attributes(plan)
    return dataset


def _run_record(simulation: Simulation, run: Run) -> dict[str, Any]:
    return {
        **overlaps_record(simulation.problem, run.overlaps),
        **{name: getattr(run, name) for name in ("status", *SCALARS)},
        "multiplier": run.multipliers,
        "branch": simulation.branch(run),
        **{f"polish_{name}": getattr(run.polish, name) for name in POLISH if run.polish is not None},
    }


def _path_table(simulation: Simulation, seeds: dict[str, np.ndarray]) -> xarray.Dataset:
    """Return the overlaps of every one-pass run in time; NaN after its end."""
    problem, times = simulation.problem, np.asarray(simulation.plan.times)
    records = (
        ((row, n), overlaps_record(problem, Overlaps.unpack(u, problem.sizes)))
        for row, run in enumerate(simulation.runs)
        for n, u in enumerate(run.path if run.path is not None else ())
    )
    return build_table({**seeds, "time": times}, [problem], overlap_columns([problem], PATH_OVERLAPS, False), records)


def add_theory_dynamics(simulation: Simulation, dynamics: Dynamics) -> xarray.Dataset:
    """Return the dataset of one-pass runs with the dynamics of infinite d as theory_..., along `time`.

    Args:
        simulation: the runs.
        dynamics: the dynamics of infinite d.
    """
    theory = to_dataset(dynamics).reindex(time=simulation.plan.times)
    dataset = simulation_dataset(simulation)
    dataset = dataset.assign({f"theory_{name}": theory[name] for name in theory.data_vars})
    dataset.attrs["theory"] = theory.attrs["dynamics"]
    return dataset


def _plan_attributes(plan: Plan) -> dict[str, str]:
    problem = plan.problem
    return {
        **table_attributes(problem, "seed"),
        "plan": json.dumps(to_plain_json({name: getattr(plan, name) for name in _PLAN_FIELDS})),
        "metric": problem.metric_name if problem.solver.base else "",  # older files lack the first metric
    }


def load_runs(path: str | Path, plan: Plan) -> list[Run]:
    """Return the runs of a file written with the same plan.

    Args:
        path: of the file.
        plan: the plan of the simulation.

    Raises:
        InputError: the file cannot be read or belongs to another simulation; the message names the difference.
    """
    dataset, wanted = load_dataset(path), _plan_attributes(plan)
    if "plan" not in dataset.attrs:
        raise InputError(f"{path} contains no simulation")
    for name in ("model", "metric", "digest", "parameters", "plan"):
        there = dataset.attrs.get(name, "")
        if there != wanted[name]:
            raise InputError(f"{path} contains another simulation: its {name} is {there}, not {wanted[name]}")
    runs = []
    for row, seed in enumerate(dataset["seed"].values):
        names = ("data", "penalty", "test_error", "gradient", "late", "contraction")
        numbers: dict[str, Any] = {name: float(dataset[name][row]) for name in names}
        runs.append(
            Run(
                seed=int(seed),
                overlaps=overlaps_from_row(dataset, row, plan.problem),
                iterations=int(dataset["iterations"][row]),
                status=str(dataset["status"].values[row]),
                multipliers=dataset["multiplier"].values[row] if plan.problem.regulariser.keeps_norms else None,
                path=_load_path(dataset, row, plan.problem)
                if METHODS[plan.method].one_pass and "path_q" in dataset
                else None,
                polish=_load_polish(dataset, row) if plan.polish else None,
                controls=_load_controls(dataset, row) if plan.controls else None,
                **numbers,
            )
        )
    return runs


def _load_path(dataset: xarray.Dataset, row: int, problem: Problem) -> np.ndarray:
    """Return the packed overlaps of a one-pass run up to its end."""
    columns = _path_columns(problem)
    path = dataset[list(columns)].isel(seed=row).rename(columns)
    path["V"] = path["q"] * np.nan
    known = np.flatnonzero(np.isfinite(path["q"].values).all(axis=(1, 2, 3, 4)))
    return np.array([overlaps_from_row(path, int(n), problem).pack() for n in known])


def _path_columns(problem: Problem) -> dict[str, str]:
    """Return the names of the overlaps and trained numbers of a one-pass run -> those of `overlap_columns`."""
    return {f"path_{name.removeprefix('trained_')}": name for name in overlap_columns([problem], PATH_OVERLAPS, False)}


def _load_polish(dataset: xarray.Dataset, row: int) -> PolishRecord | None:
    known = {name: float(dataset[f"polish_{name}"][row]) for name in POLISH}
    if not np.isfinite(known["gained"]):
        return None
    counted = {name: int(known[name]) for name in ("descents", "deeper")}
    return PolishRecord(**{**known, **counted})  # type: ignore[arg-type]


def _load_controls(dataset: xarray.Dataset, row: int) -> Controls:
    return Controls(*(dataset[f"control_{name}"].values[row] for name in ("deviations", "errors")))
