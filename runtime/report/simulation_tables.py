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
from ..extensions.simulation.controls import ControlVariates
from ..extensions.simulation.method import PolishRecord
from ..extensions.simulation.methods import METHODS
from ..extensions.simulation.plan import SimulationPlan
from ..extensions.simulation.run import SeedRun
from ..extensions.simulation.simulation import POLISH, SCALARS, Simulation
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point.starts import translate_start_name
from .contract import to_plain_json
from .tables import (
    build_dataset,
    dataset_attributes,
    load_netcdf_dataset,
    overlap_column_names,
    overlaps_by_column_name,
    overlaps_from_dataset_row,
)

PATH_OVERLAPS = ("q", "m", "theta")
"""Overlaps that one-pass runs store in time."""
_PLAN_FIELDS = [known.name for known in fields(SimulationPlan) if known.name not in ("problem", "memory")]


@to_dataset.register_renderer_of_class(Simulation)
def simulation_dataset(simulation: Simulation) -> xarray.Dataset:
    """Return a simulation as an xarray Dataset along `seed`: overlaps, losses, status and branch of each run.

    Overlaps have the axes of `tables.build_dataset`. Further variables:
        multiplier: ridge strengths that fix the norms, if norms are constrained;
        polish_NAME: record of the refinement of minima, if it was asked for;
        control_NAME: control variates, if they were asked for;
        path_NAME: overlaps along `time`, of one-pass methods.
    """
    problem, plan, runs = simulation.problem, simulation.plan, simulation.runs
    names = [
        *overlap_column_names([problem], errors=False),
        *["multiplier"] * problem.regulariser.keeps_norms,
        *SCALARS,
    ]
    names += [f"polish_{name}" for name in POLISH if plan.polish] + ["status", "branch"]
    seeds = {"seed": np.array([run.seed for run in runs], int)}
    records = (((n,), _simulation_run_by_column_name(simulation, run)) for n, run in enumerate(runs))
    dataset = build_dataset(seeds, [problem], names, records)
    for name in ("deviations", "errors") if plan.controls else ():
        rows = [getattr(run.controls, name, np.full(CONTROLS, np.nan)) for run in runs]
        dataset[f"control_{name}"] = (("seed", "control"), np.reshape(rows, (len(runs), CONTROLS)))
    if METHODS[plan.method].one_pass:
        paths = _trajectory_dataset(simulation, seeds)
        dataset = dataset.assign({own: paths[name] for own, name in _trajectory_column_names(problem).items()})
    dataset.attrs = _simulation_plan_attributes(plan)
    return dataset


def _simulation_run_by_column_name(simulation: Simulation, run: SeedRun) -> dict[str, Any]:
    return {
        **overlaps_by_column_name(simulation.problem, run.overlaps),
        **{name: getattr(run, name) for name in ("status", *SCALARS)},
        "multiplier": run.multipliers,
        "branch": simulation.branch(run),
        **{f"polish_{name}": getattr(run.polish, name) for name in POLISH if run.polish is not None},
    }


def _trajectory_dataset(simulation: Simulation, seeds: dict[str, np.ndarray]) -> xarray.Dataset:
    """Return the overlaps of all one-pass runs as a Dataset along seed and time; NaN after the end of a run."""
    problem, times = simulation.problem, np.asarray(simulation.plan.recording_times)
    records = (
        ((row, n), overlaps_by_column_name(problem, Overlaps.unpack(u, problem.sizes)))
        for row, run in enumerate(simulation.runs)
        for n, u in enumerate(run.path if run.path is not None else ())
    )
    return build_dataset(
        {**seeds, "time": times}, [problem], overlap_column_names([problem], PATH_OVERLAPS, False), records
    )


def add_dynamics_at_infinite_d(simulation: Simulation, dynamics: Dynamics) -> xarray.Dataset:
    """Return the Dataset of one-pass runs, with the dynamics at infinite d added as variables theory_NAME along `time`.

    Args:
        simulation: one-pass runs at finite d.
        dynamics: dynamics at infinite d.
    """
    theory = to_dataset(dynamics).reindex(time=simulation.plan.recording_times)
    dataset = simulation_dataset(simulation)
    dataset = dataset.assign({f"theory_{name}": theory[name] for name in theory.data_vars})
    dataset.attrs["theory"] = theory.attrs["dynamics"]
    return dataset


def _simulation_plan_attributes(plan: SimulationPlan) -> dict[str, str]:
    problem, settings = plan.problem, {name: getattr(plan, name) for name in _PLAN_FIELDS}
    return {
        **dataset_attributes(problem, "seed"),
        "plan": json.dumps(to_plain_json(settings | {"start": translate_start_name(problem, plan.start)})),
        "metric": problem.metric_name if problem.solver.base else "",  # older files lack the first metric
    }


def load_simulation_runs(path: str | Path, plan: SimulationPlan) -> list[SeedRun]:
    """Read the runs of an unfinished simulation from its file, so that it can be continued.

    Args:
        path: netCDF file of the simulation.
        plan: plan of the simulation, which must be the one that the file was written with.

    Raises:
        InputError: the file cannot be read or belongs to another simulation; the message names the difference.
    """
    dataset, wanted = load_netcdf_dataset(path), _simulation_plan_attributes(plan)
    if "plan" not in dataset.attrs:
        raise InputError(f"{path} contains no simulation; give a file that `simulate` wrote with -o, or a new name")
    for name in ("model", "metric", "digest", "parameters", "plan"):
        there = dataset.attrs.get(name, "")
        if name == "plan":  # before 0.1.0 the start had the same name whatever the number of tokens
            stored = json.loads(there)
            there = json.dumps(stored | {"start": translate_start_name(plan.problem, stored["start"])})
        if there != wanted[name]:
            raise InputError(
                f"{path} contains another simulation: its {name} is {there}, not {wanted[name]}; give another file, or "
                "the settings of that simulation to continue it"
            )
    runs = []
    for row, seed in enumerate(dataset["seed"].values):
        names = ("data", "penalty", "test_error", "gradient", "late", "contraction")
        numbers: dict[str, Any] = {name: float(dataset[name][row]) for name in names}
        runs.append(
            SeedRun(
                seed=int(seed),
                overlaps=overlaps_from_dataset_row(dataset, row, plan.problem),
                iterations=int(dataset["iterations"][row]),
                status=str(dataset["status"].values[row]),
                multipliers=dataset["multiplier"].values[row] if plan.problem.regulariser.keeps_norms else None,
                path=_load_trajectory(dataset, row, plan.problem)
                if METHODS[plan.method].one_pass and "path_q" in dataset
                else None,
                polish=_load_record_of_refinement(dataset, row) if plan.polish else None,
                controls=_load_control_variates(dataset, row) if plan.controls else None,
                **numbers,
            )
        )
    return runs


def _load_trajectory(dataset: xarray.Dataset, row: int, problem: Problem) -> np.ndarray:
    """Return the packed overlaps (`Overlaps.pack`) of a one-pass run at its recording times up to its end."""
    columns = _trajectory_column_names(problem)
    path = dataset[list(columns)].isel(seed=row).rename(columns)
    path["V"] = path["q"] * np.nan
    known = np.flatnonzero(np.isfinite(path["q"].values).all(axis=(1, 2, 3, 4)))
    return np.array([overlaps_from_dataset_row(path, int(n), problem).pack() for n in known])


def _trajectory_column_names(problem: Problem) -> dict[str, str]:
    """Return a dict from the variables path_NAME of a trajectory to the names of overlaps and trained numbers."""
    return {
        f"path_{name.removeprefix('trained_')}": name for name in overlap_column_names([problem], PATH_OVERLAPS, False)
    }


def _load_record_of_refinement(dataset: xarray.Dataset, row: int) -> PolishRecord | None:
    known = {name: float(dataset[f"polish_{name}"][row]) for name in POLISH}
    if not np.isfinite(known["gained"]):
        return None
    counted = {name: int(known[name]) for name in ("descents", "deeper")}
    return PolishRecord(**{**known, **counted})  # type: ignore[arg-type]


def _load_control_variates(dataset: xarray.Dataset, row: int) -> ControlVariates:
    return ControlVariates(*(dataset[f"control_{name}"].values[row] for name in ("deviations", "errors")))
