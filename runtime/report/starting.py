"""Initial overlaps read from files of commands: a solution, the runs of a simulation, a curve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ..base.budget import interrupt_at_time_limit
from ..base.errors import InputError, TimeLimitError
from ..base.files import require_readable_to_end
from ..problems.columns import overlap_array_shape, table_column_name
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem


def load_initial_overlaps(path: Path, problem: Problem) -> Overlaps:
    """Return initial overlaps from a file of `solve -o`, `simulate -o` (the mean) or a curve (the nearest point).

    Of runs, the most frequent kind among the converged ones is averaged, after the symmetries of the problem are
    aligned; their V is unknown (see `Overlaps.measured`).

    Args:
        path: path of the file.
        problem: the problem to start.

    Raises:
        InputError: the file cannot be read, has another form, or belongs to another structure.
    """
    try:
        return (
            _load_overlaps_from_netcdf(path, problem)
            if path.suffix == ".nc"
            else _load_overlaps_from_json(path, problem)
        )
    except InputError as error:
        text = str(error)
        raise InputError(text if str(path) in text else f"--from {path}: {text}") from error


def _load_overlaps_from_netcdf(path: Path, problem: Problem) -> Overlaps:
    from ..extensions.simulation.simulation import mean_overlaps_of_most_frequent_kind
    from .tables import load_netcdf_dataset, overlaps_from_dataset_row

    dataset = load_netcdf_dataset(path)
    runs = dataset.attrs["parameter"] == "seed"
    axis = "seed" if runs else table_column_name(dataset.attrs["parameter"])
    if axis not in dataset.coords or "q" not in dataset:
        raise InputError("the file contains neither runs of a simulation nor a curve")
    values = dataset[axis].values
    if runs:
        rows = np.flatnonzero(dataset["status"].values == "converged")
        kinds = dataset["branch"].values
        return mean_overlaps_of_most_frequent_kind(
            problem, [(str(kinds[row]), overlaps_from_dataset_row(dataset, int(row), problem)) for row in rows]
        )
    if not len(values):
        raise InputError("the curve has no points")
    at = problem.value_of(dataset.attrs["parameter"])
    return overlaps_from_dataset_row(dataset, int(np.argmin(np.abs(values - at))), problem)


def _load_overlaps_from_json(path: Path, problem: Problem) -> Overlaps:
    from .contract import check_file_schema

    try:
        with interrupt_at_time_limit():
            data = json.loads(require_readable_to_end(path).read_text(encoding="utf-8"))
    except TimeLimitError:  # it is a subclass of OSError
        raise
    except OSError as error:
        raise InputError(f"{error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError("not a JSON file written by `saddleforge solve -o`") from error
    check_file_schema(path, data.get("schema") if isinstance(data, dict) else None)
    blocks = data.get("overlaps") if isinstance(data, dict) else None
    if not isinstance(blocks, dict):
        raise InputError("the file contains no `overlaps` of one solution, as `saddleforge solve -o` writes")
    arrays = {}
    for name in OVERLAPS:
        expected = overlap_array_shape(problem, name)
        try:
            array = np.asarray(blocks.get(name), float)
        except (TypeError, ValueError):
            raise InputError(f"{name} is not an array of numbers") from None
        if array.shape != expected:
            raise InputError(f"{name} has shape {array.shape}; {expected} is expected")
        if not np.isfinite(array).all():
            raise InputError(f"{name} contains numbers that are not finite")
        arrays[name] = array.reshape(problem.contexts, *expected[2:])
    numbers = data.get("trained") or {}
    missing = [number["name"] for number in problem.trained if not isinstance(numbers.get(number["name"]), int | float)]
    if missing:
        raise InputError(f"the trained number {missing[0]!r} is missing in the file")
    return Overlaps(**arrays, phi=np.array([float(numbers[number["name"]]) for number in problem.trained]))
