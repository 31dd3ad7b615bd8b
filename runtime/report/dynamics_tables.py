"""Descent in time as an xarray Dataset."""

from __future__ import annotations

import json

import numpy as np
import xarray

from ..base.presenting import to_dataset, to_json
from ..extensions.descent.dynamics import Dynamics
from .contract import clean
from .dynamics import SHOWN
from .tables import filled_table, overlap_columns, overlaps_record, table_attributes

_KEPT = ("start", "rate", "batch", "status", "events", "plateaus", "branch", "reached", "integrator", "method")


@to_dataset.register(Dynamics)
def dynamics_dataset(dynamics: Dynamics) -> xarray.Dataset:
    """Variables along `time`: q, m, theta (axes as `tables.filled_table`), trained_NAME, loss and test_error, each
    with half widths in `*_error`. The attribute `dynamics` holds rate, batch, events and plateaus, as JSON."""
    problem, losses = dynamics.problem, ("loss", "loss_error", "test_error", "test_error_error")
    records = (
        (
            (n,),
            overlaps_record(problem, dynamics.overlaps[n], dynamics.overlap_errors[n])
            | {name: getattr(dynamics, name)[n] for name in losses},
        )
        for n in range(len(dynamics.times))
    )
    names = [*overlap_columns([problem], SHOWN), *losses]
    dataset = filled_table({"time": np.asarray(dynamics.times)}, [problem], names, records)
    whole = to_json(dynamics)
    dataset.attrs = {
        **table_attributes(problem, "time"),
        "dynamics": json.dumps(clean({name: whole[name] for name in _KEPT}), ensure_ascii=False),
    }
    return dataset
