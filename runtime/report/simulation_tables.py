"""Simulations as netCDF: written whole after every seed, and read again to go on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import xarray

from ..descent.dynamics import Dynamics
from ..errors import InputError
from ..presenting import to_dataset
from ..problems.columns import block_shape
from ..problems.overlaps import Overlaps, packed_length
from ..simulation.controls import COUNT as CONTROLS
from ..simulation.controls import Controls
from ..simulation.method import Polish
from ..simulation.methods import METHODS
from ..simulation.plan import Plan
from ..simulation.run import Run
from ..simulation.simulation import POLISH, SCALARS, Simulation
from .contract import clean, identity_json, parameters_json
from .tables import BLOCKS, describe_fields, load_dataset, overlaps_of_row

PASSED = ("q", "m", "theta")
"""Overlaps that passes keep in time."""
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
    norms are given, polish_... and control_... where they were asked for; of passes overlaps in `time` as path_..."""
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
    if METHODS[simulation.plan.method].one_pass:
        variables |= _paths(simulation)
    variables["status"] = ("seed", np.array([run.status for run in runs], object))
    variables["branch"] = ("seed", np.array([simulation.branch(run) for run in runs], object))
    dataset = xarray.Dataset(variables, coords={"seed": np.array([run.seed for run in runs], int)})
    if METHODS[simulation.plan.method].one_pass:
        dataset = dataset.assign_coords(time=simulation.plan.times)
    describe_fields(dataset, problem)
    dataset.attrs = _attributes(simulation.plan)
    return dataset


def _paths(simulation: Simulation) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Overlaps of every pass in time; not a number where it ended before."""
    problem, runs, times = simulation.problem, simulation.runs, simulation.plan.times
    packed = np.full((len(runs), len(times), packed_length(problem.sizes)), np.nan)
    for row, run in zip(packed, runs, strict=True):
        if run.path is not None:
            row[: len(run.path)] = run.path
    every = [[Overlaps.unpack(u, problem.sizes) for u in row] for row in packed]
    variables: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name in PASSED:
        values = np.array([[getattr(overlaps, name) for overlaps in row] for row in every], float)
        shape = (len(runs), len(times), *block_shape(problem, name))
        variables[f"path_{name}"] = (("seed", "time", *BLOCKS[name]), values.reshape(shape))
    for number, trained in enumerate(problem.trained):
        values = np.array([[overlaps.phi[number] for overlaps in row] for row in every], float)
        variables[f"path_{trained['name']}"] = (("seed", "time"), values.reshape(packed.shape[:2]))
    return variables


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
        **identity_json(problem),
        "parameter": "seed",
        "parameters": json.dumps(clean(parameters_json(problem)), ensure_ascii=False),
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
        passed = _path(dataset, row, plan) if METHODS[plan.method].one_pass and "path_q" in dataset else None
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
                path=passed,
                polish=_polish(dataset, row) if plan.polish else None,
                controls=_controls(dataset, row) if plan.controls else None,
            )
        )
    return runs


def _path(dataset: xarray.Dataset, row: int, plan: Plan) -> np.ndarray:
    """Packed overlaps of a pass up to where it ended."""
    contexts, s, t, _ = plan.problem.sizes
    shapes = {"q": (contexts, s, s), "m": (contexts, s), "theta": (contexts, s, t)}
    names = [number["name"] for number in plan.problem.trained]
    packed = []
    for n in range(dataset.sizes["time"]):
        blocks = {name: dataset[f"path_{name}"].values[row, n].reshape(shape) for name, shape in shapes.items()}
        phi = np.array([float(dataset[f"path_{name}"].values[row, n]) for name in names])
        if np.isfinite(blocks["q"]).all():
            packed.append(Overlaps(V=np.full(shapes["q"], np.nan), phi=phi, **blocks).pack())
    return np.array(packed)


def _polish(dataset: xarray.Dataset, row: int) -> Polish | None:
    known = {name: float(dataset[f"polish_{name}"][row]) for name in POLISH}
    if not np.isfinite(known["gained"]):
        return None
    counted = {name: int(known[name]) for name in ("descents", "deeper")}
    return Polish(**{**known, **counted})  # type: ignore[arg-type]


def _controls(dataset: xarray.Dataset, row: int) -> Controls:
    return Controls(*(dataset[f"control_{name}"].values[row] for name in ("deviations", "errors")))
