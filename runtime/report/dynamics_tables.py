"""Dynamics of one-pass descent as an xarray Dataset."""

from __future__ import annotations

import json

import numpy as np
import xarray

from ..base.presenting import to_dataset, to_json
from ..extensions.descent.dynamics import Dynamics
from .contract import to_plain_json
from .dynamics import DYNAMIC_OVERLAPS
from .tables import build_table, overlap_columns, overlaps_record, table_attributes

_KEPT = ("start", "rate", "batch", "status", "events", "plateaus", "branch", "reached", "integrator", "method")


@to_dataset.register(Dynamics)
def dynamics_dataset(dynamics: Dynamics) -> xarray.Dataset:
    """Return the dynamics as a Dataset along `time`: q, m, theta, trained_NAME, loss, test_error and their `*_error`.

    Axes of overlaps as of `tables.build_table`. The attribute `dynamics` (JSON) holds rate, batch, events and
    plateaus.
    """
    problem, losses = dynamics.problem, ("loss", "loss_error", "test_error", "test_error_error")
    records = (
        (
            (n,),
            overlaps_record(problem, dynamics.overlaps[n], dynamics.overlap_errors[n])
            | {name: getattr(dynamics, name)[n] for name in losses},
        )
        for n in range(len(dynamics.times))
    )
    names = [*overlap_columns([problem], DYNAMIC_OVERLAPS), *losses]
    dataset = build_table({"time": np.asarray(dynamics.times)}, [problem], names, records)
    whole = to_json(dynamics)
    dataset.attrs = {
        **table_attributes(problem, "time"),
        "dynamics": json.dumps(to_plain_json({name: whole[name] for name in _KEPT}), ensure_ascii=False),
    }
    return dataset
