"""Simulations as netCDF: written whole after every seed, and read again to go on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xarray

from .._version import __version__
from ..errors import InputError
from ..presenting import to_dataset
from ..problems.columns import block_shape
from ..simulation.controls import COUNT as CONTROLS
from ..simulation.controls import Controls
from ..simulation.run import Plan, Run
from ..simulation.simulation import POLISH, SCALARS, Simulation
from ..simulation.wells import Polish
from .contract import clean, parameters_json
from .tables import BLOCKS, describe_fields, load_dataset, overlaps_of_row

_OF_PLAN = (
    "d",
    "start",
    "method",
    "tolerance",
    "most",
    "rate",
    "inertia",
    "damping",
    "exact",
    "polish",
    "restarts",
    "project",
    "controls",
    "batch",
)


@to_dataset.register(Simulation)
def simulation_dataset(simulation: Simulation) -> xarray.Dataset:
    """Variables along `seed`: overlaps (axes as `tables.curve_dataset`), losses, how each run ended; multiplier where
    norms are given, polish_... and control_... where they were asked for."""
    problem, runs = simulation.problem, simulation.runs
    variables: dict[str, tuple[str | tuple[str, ...], np.ndarray]] = {}
    for name, axes in BLOCKS.items():
        shape = (len(runs), *block_shape(problem, name))
        values = np.array([getattr(run.overlaps, name) for run in runs], float).reshape(shape)
        variables[name] = (("seed", *axes), values)
    for number, trained in enumerate(problem.trained):
        variables[f"trained_{trained['name']}"] = ("seed", np.array([run.overlaps.phi[number] for run in runs]))
    if problem.has_sphere:
        kept = np.array([run.multipliers for run in runs], float).reshape(len(runs), problem.student_rank)
        variables["multiplier"] = (("seed", "column"), kept)
    for name in SCALARS:
        variables[name] = ("seed", np.array([getattr(run, name) for run in runs], float))
    if simulation.plan.polish:
        for name in POLISH:
            values = np.array([getattr(run.polish, name, np.nan) for run in runs], float)
            variables[f"polish_{name}"] = ("seed", values)
    if simulation.plan.controls:
        for name in ("deviations", "errors"):
            rows = [getattr(run.controls, name, np.full(CONTROLS, np.nan)) for run in runs]
            variables[f"control_{name}"] = (("seed", "control"), np.reshape(rows, (len(runs), CONTROLS)))
    variables["status"] = ("seed", np.array([run.status for run in runs], object))
    variables["branch"] = ("seed", np.array([simulation.branch(run) for run in runs], object))
    dataset = xarray.Dataset(variables, coords={"seed": np.array([run.seed for run in runs], int)})
    describe_fields(dataset, problem)
    dataset.attrs = _attributes(simulation.plan)
    return dataset


def _attributes(plan: Plan) -> dict[str, str]:
    problem = plan.problem
    return {
        "model": problem.solver.name,
        "digest": problem.solver.digest,
        "version": __version__,
        "parameter": "seed",
        "parameters": json.dumps(clean(parameters_json(problem)), ensure_ascii=False),
        "plan": json.dumps(clean({name: getattr(plan, name) for name in _OF_PLAN})),
    }


def load_runs(path: str | Path, plan: Plan) -> list[Run]:
    """The runs of a file that the same plan wrote.

    Raises:
        InputError: it cannot be read, or is of another simulation; the sentence says what differs.
    """
    dataset, wanted = load_dataset(path), _attributes(plan)
    if "plan" not in dataset.attrs:
        raise InputError(f"{path} holds no simulation")
    for name in ("model", "digest", "parameters", "plan"):
        if dataset.attrs[name] != wanted[name]:
            raise InputError(
                f"{path} holds another simulation: its {name} is {dataset.attrs[name]}, not {wanted[name]}"
            )
    runs = []
    for row, seed in enumerate(dataset["seed"].values):
        data, penalty, test_error, gradient, late, contraction = (
            float(dataset[name][row]) for name in ("data", "penalty", "test_error", "gradient", "late", "contraction")
        )
        runs.append(
            Run(
                seed=int(seed),
                overlaps=overlaps_of_row(dataset, row, plan.problem),
                data=data,
                penalty=penalty,
                test_error=test_error,
                gradient=gradient,
                iterations=int(dataset["iterations"][row]),
                status=str(dataset["status"].values[row]),
                late=late,
                contraction=contraction,
                multipliers=dataset["multiplier"].values[row] if plan.problem.has_sphere else None,
                polish=_polish(dataset, row) if plan.polish else None,
                controls=_controls(dataset, row) if plan.controls else None,
            )
        )
    return runs


def _polish(dataset: xarray.Dataset, row: int) -> Polish | None:
    known = {name: float(dataset[f"polish_{name}"][row]) for name in POLISH}
    if not np.isfinite(known["gained"]):
        return None
    counted = {name: int(known[name]) for name in ("descents", "deeper")}
    return Polish(**{**known, **counted})  # type: ignore[arg-type]


def _controls(dataset: xarray.Dataset, row: int) -> Controls:
    return Controls(*(dataset[f"control_{name}"].values[row] for name in ("deviations", "errors")))
