"""Descent in time as an xarray Dataset, and as a frame."""

from __future__ import annotations

import json

import numpy as np
import pandas
import xarray

from ..descent.dynamics import Dynamics
from ..presenting import to_dataset, to_frame, to_json
from ..problems.columns import block_shape
from .contract import clean, identity_json, parameters_json
from .frames import flat_frame
from .tables import BLOCKS, describe_fields

_SHOWN = ("q", "m", "theta")
_KEPT = ("start", "rate", "batch", "status", "events", "plateaus", "branch", "reached", "integrator", "method")


@to_dataset.register(Dynamics)
def dynamics_dataset(dynamics: Dynamics) -> xarray.Dataset:
    """Variables along `time`: q, m, theta (axes as `tables.curve_dataset`), trained_NAME, loss and test_error, each
    with half widths in `*_error`. The attribute `dynamics` holds rate, batch, events and plateaus, as JSON."""
    problem, count = dynamics.problem, len(dynamics.times)
    variables: dict[str, tuple[str | tuple[str, ...], np.ndarray]] = {}
    for suffix, every in (("", dynamics.overlaps), ("_error", dynamics.overlap_errors)):
        for name in _SHOWN:
            shape = (count, *block_shape(problem, name))
            values = np.array([getattr(overlaps, name) for overlaps in every]).reshape(shape)
            variables[name + suffix] = (("time", *BLOCKS[name]), values)
        for number, trained in enumerate(problem.trained):
            values = np.array([overlaps.phi[number] for overlaps in every])
            variables[f"trained_{trained['name']}{suffix}"] = ("time", values)
    for name in ("loss", "test_error"):
        variables[name] = ("time", getattr(dynamics, name))
        variables[f"{name}_error"] = ("time", getattr(dynamics, f"{name}_error"))
    dataset = xarray.Dataset(variables, coords={"time": dynamics.times})
    describe_fields(dataset, problem)
    whole = to_json(dynamics)
    dataset.attrs = {
        **identity_json(problem),
        "parameter": "time",
        "parameters": json.dumps(clean(parameters_json(problem)), ensure_ascii=False),
        "dynamics": json.dumps(clean({name: whole[name] for name in _KEPT}), ensure_ascii=False),
    }
    return dataset


@to_frame.register(Dynamics)
def dynamics_frame(dynamics: Dynamics) -> pandas.DataFrame:
    """A row a time; columns as `frames.dataset_frame` names them."""
    return flat_frame(dynamics_dataset(dynamics), ["time"])
