"""Simulations as netCDF: written whole after every seed, and read again to go on."""

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
from ..extensions.simulation.method import Polish
from ..extensions.simulation.methods import METHODS
from ..extensions.simulation.plan import Plan
from ..extensions.simulation.run import Run
from ..extensions.simulation.simulation import POLISH, SCALARS, Simulation
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from .contract import clean
from .tables import filled_table, load_dataset, overlap_columns, overlaps_of_row, overlaps_record, table_attributes

PASSED = ("q", "m", "theta")
"""Overlaps that passes keep in time."""
_OF_PLAN = [known.name for known in fields(Plan) if known.name not in ("problem", "memory")]


@to_dataset.register(Simulation)
def simulation_dataset(simulation: Simulation) -> xarray.Dataset:
    """Variables along `seed`: overlaps (axes as `tables.filled_table`), losses, how each run ended; multiplier where
    norms are given, polish_... and control_... where they were asked for; of passes overlaps in `time` as path_..."""
    problem, plan, runs = simulation.problem, simulation.plan, simulation.runs
    names = [*overlap_columns([problem], errors=False), *["multiplier"] * problem.regulariser.keeps_norms, *SCALARS]
    names += [f"polish_{name}" for name in POLISH if plan.polish] + ["status", "branch"]
    seeds = {"seed": np.array([run.seed for run in runs], int)}
    records = (((n,), _record(simulation, run)) for n, run in enumerate(runs))
    dataset = filled_table(seeds, [problem], names, records)
    for name in ("deviations", "errors") if plan.controls else ():
        rows = [getattr(run.controls, name, np.full(CONTROLS, np.nan)) for run in runs]
        dataset[f"control_{name}"] = (("seed", "control"), np.reshape(rows, (len(runs), CONTROLS)))
    if METHODS[plan.method].one_pass:
        paths = _paths(simulation, seeds)
        dataset = dataset.assign({own: paths[name] for own, name in _path_columns(problem).items()})
    dataset.attrs = _attributes(plan)
    return dataset


def _record(simulation: Simulation, run: Run) -> dict[str, Any]:
    return {
        **overlaps_record(simulation.problem, run.overlaps),
        **{name: getattr(run, name) for name in ("status", *SCALARS)},
        "multiplier": run.multipliers,
        "branch": simulation.branch(run),
        **{f"polish_{name}": getattr(run.polish, name) for name in POLISH if run.polish is not None},
    }


def _paths(simulation: Simulation, seeds: dict[str, np.ndarray]) -> xarray.Dataset:
    """Overlaps of every pass in time; not a number where it ended before."""
    problem, times = simulation.problem, np.asarray(simulation.plan.times)
    records = (
        ((row, n), overlaps_record(problem, Overlaps.unpack(u, problem.sizes)))
        for row, run in enumerate(simulation.runs)
        for n, u in enumerate(run.path if run.path is not None else ())
    )
    return filled_table({**seeds, "time": times}, [problem], overlap_columns([problem], PASSED, False), records)


def beside_dynamics(simulation: Simulation, dynamics: Dynamics) -> xarray.Dataset:
    """The dataset of passes with the dynamics of infinite d beside them: its variables as theory_..., along `time`."""
    theory = to_dataset(dynamics).reindex(time=simulation.plan.times)
    dataset = simulation_dataset(simulation)
    dataset = dataset.assign({f"theory_{name}": theory[name] for name in theory.data_vars})
    dataset.attrs["theory"] = theory.attrs["dynamics"]
    return dataset


def _attributes(plan: Plan) -> dict[str, str]:
    problem = plan.problem
    return {
        **table_attributes(problem, "seed"),
        "plan": json.dumps(clean({name: getattr(plan, name) for name in _OF_PLAN})),
        "metric": problem.metric_name if problem.solver.base else "",  # of the first there is nothing in older files
    }


def load_runs(path: str | Path, plan: Plan) -> list[Run]:
    """The runs of a file that the same plan wrote.

    Raises:
        InputError: it cannot be read, or is of another simulation; the sentence says what differs.
    """
    dataset, wanted = load_dataset(path), _attributes(plan)
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
                overlaps=overlaps_of_row(dataset, row, plan.problem),
                iterations=int(dataset["iterations"][row]),
                status=str(dataset["status"].values[row]),
                multipliers=dataset["multiplier"].values[row] if plan.problem.regulariser.keeps_norms else None,
                path=_path(dataset, row, plan.problem)
                if METHODS[plan.method].one_pass and "path_q" in dataset
                else None,
                polish=_polish(dataset, row) if plan.polish else None,
                controls=_controls(dataset, row) if plan.controls else None,
                **numbers,
            )
        )
    return runs


def _path(dataset: xarray.Dataset, row: int, problem: Problem) -> np.ndarray:
    """Packed overlaps of a pass up to where it ended."""
    columns = _path_columns(problem)
    path = dataset[list(columns)].isel(seed=row).rename(columns)
    path["V"] = path["q"] * np.nan
    known = np.flatnonzero(np.isfinite(path["q"].values).all(axis=(1, 2, 3, 4)))
    return np.array([overlaps_of_row(path, int(n), problem).pack() for n in known])


def _path_columns(problem: Problem) -> dict[str, str]:
    """Return names of overlaps and trained numbers of a pass -> those of a run."""
    return {f"path_{name.removeprefix('trained_')}": name for name in overlap_columns([problem], PASSED, False)}


def _polish(dataset: xarray.Dataset, row: int) -> Polish | None:
    known = {name: float(dataset[f"polish_{name}"][row]) for name in POLISH}
    if not np.isfinite(known["gained"]):
        return None
    counted = {name: int(known[name]) for name in ("descents", "deeper")}
    return Polish(**{**known, **counted})  # type: ignore[arg-type]


def _controls(dataset: xarray.Dataset, row: int) -> Controls:
    return Controls(*(dataset[f"control_{name}"].values[row] for name in ("deviations", "errors")))
