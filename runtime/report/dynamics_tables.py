"""Dynamics of one-pass descent as an xarray Dataset."""

from __future__ import annotations

import json

import numpy as np
import xarray

from ..base.presenting import to_dataset, to_json
from ..extensions.descent.dynamics import Dynamics
from .contract import to_plain_json
from .dynamics import DYNAMIC_OVERLAPS
from .tables import build_dataset, dataset_attributes, overlap_column_names, overlaps_by_column_name

_KEPT = ("start", "rate", "batch", "status", "events", "plateaus", "branch", "reached", "integrator", "method")


@to_dataset.register_renderer_of_class(Dynamics)
def dynamics_dataset(dynamics: Dynamics) -> xarray.Dataset:
    """Return the dynamics of descent as an xarray Dataset along `time`: overlaps, trained numbers, losses, error bars.

    Overlaps have the axes of `tables.build_dataset`; an error bar is NAME_error. The attribute `dynamics` contains, as
    JSON, learning rate, batch size, events and plateaus.
    """
    problem, losses = dynamics.problem, ("loss", "loss_error", "test_error", "test_error_error")
    records = (
        (
            (n,),
            overlaps_by_column_name(problem, dynamics.overlaps[n], dynamics.overlap_errors[n])
            | {name: getattr(dynamics, name)[n] for name in losses},
        )
        for n in range(len(dynamics.times))
    )
    names = [*overlap_column_names([problem], DYNAMIC_OVERLAPS), *losses]
    dataset = build_dataset({"time": np.asarray(dynamics.times)}, [problem], names, records)
    whole = to_json(dynamics)
    dataset.attrs = {
        **dataset_attributes(problem, "time"),
        "dynamics": json.dumps(to_plain_json({name: whole[name] for name in _KEPT}), ensure_ascii=False),
    }
    return dataset
