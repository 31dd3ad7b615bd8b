"""Initial overlaps read from files of commands: a solution, the runs of a simulation, a curve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ..base.budget import interrupt_at_time_limit
from ..base.errors import InputError, TimeLimitError
from ..base.files import require_readable_file
from ..problems.columns import overlap_array_shape, table_column_name
from ..problems.overlaps import OVERLAPS, Overlaps
from ..problems.problem import Problem


def load_initial_overlaps(path: Path, problem: Problem) -> Overlaps:
    """Read overlaps from which a problem is to be started from a file of `solve`, `simulate` or `curve`.

    Of a curve the nearest point is taken. Of a simulation the converged runs that end in the most frequent state are
    averaged, after the symmetries of the problem are aligned; their V is unknown (see `Overlaps.measured`).

    Args:
        path: JSON file of `solve -o`, or netCDF file of `simulate -o` or `curve -o`.
        problem: learning problem that starts from the overlaps.

    Raises:
        InputError: the file cannot be read, or its overlaps do not fit the sizes of the problem.
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
    from ..extensions.simulation.simulation import mean_overlaps_of_most_frequent_state
    from .tables import load_netcdf_dataset, overlaps_from_dataset_row

    dataset = load_netcdf_dataset(path)
    runs = dataset.attrs["parameter"] == "seed"
    axis = "seed" if runs else table_column_name(dataset.attrs["parameter"])
    if axis not in dataset.coords or "q" not in dataset:
        raise InputError("the file contains no overlaps to start from; give a file of `curve -o` or `simulate -o`")
    values = dataset[axis].values
    if runs:
        rows = np.flatnonzero(dataset["status"].values == "converged")
        kinds = dataset["branch"].values
        return mean_overlaps_of_most_frequent_state(
            problem, [(str(kinds[row]), overlaps_from_dataset_row(dataset, int(row), problem)) for row in rows]
        )
    if not len(values):
        raise InputError("the curve in the file has no solution to start from; give a curve whose branch was found")
    at = problem.value_of_parameter(dataset.attrs["parameter"])
    return overlaps_from_dataset_row(dataset, int(np.argmin(np.abs(values - at))), problem)


def _load_overlaps_from_json(path: Path, problem: Problem) -> Overlaps:
    from .contract import check_file_schema

    try:
        with interrupt_at_time_limit():
            data = json.loads(require_readable_file(path).read_text(encoding="utf-8"))
    except TimeLimitError:  # it is a subclass of OSError
        raise
    except OSError as error:
        raise InputError(f"{error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError("it is not a JSON file; give a file that `saddleforge solve -o` wrote") from error
    check_file_schema(path, data.get("schema") if isinstance(data, dict) else None)
    blocks = data.get("overlaps") if isinstance(data, dict) else None
    if not isinstance(blocks, dict):
        raise InputError("the file contains no `overlaps` of a solution; give a file that `saddleforge solve -o` wrote")
    arrays = {}
    for name in OVERLAPS:
        expected = overlap_array_shape(problem, name)
        try:
            array = np.asarray(blocks.get(name), float)
        except (TypeError, ValueError):
            raise InputError(f"the overlap {name} in the file is not an array of numbers; give a valid file") from None
        if array.shape != expected:
            raise InputError(
                f"the overlap {name} in the file has shape {array.shape}, but the problem needs {expected}: give a "
                "solution of a problem with the same sizes"
            )
        if not np.isfinite(array).all():
            raise InputError(f"the overlap {name} contains numbers that are not finite; give a converged solution")
        arrays[name] = array.reshape(problem.contexts, *expected[2:])
    numbers = data.get("trained") or {}
    missing = [number["name"] for number in problem.trained if not isinstance(numbers.get(number["name"]), int | float)]
    if missing:
        raise InputError(
            f"the file lacks {missing[0]!r}, which this model trains (sf.trained); give a solution of this model"
        )
    return Overlaps(**arrays, phi=np.array([float(numbers[number["name"]]) for number in problem.trained]))
