"""Branches, critical lines and tuned curves as xarray Datasets, and their netCDF files, written whole."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5netcdf
import h5py
import numpy as np
import xarray

from .._version import __version__
from ..bayes.thresholds import BayesLine
from ..branches.branch import Curve
from ..breaking.curve import BrokenCurve
from ..breaking.solution import BrokenSolution
from ..errors import InputError
from ..files import check_writable, finite, write_whole
from ..following.critical import CriticalLine
from ..following.follow import Followed
from ..presenting import save, to_dataset
from ..problems import gauge
from ..problems.columns import BROKEN, QUANTITIES, block_shape, column_of
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..responses.tuned_curve import TunedCurve
from .contract import SCHEMA, check_schema, clean, identity_json, parameters_json

if TYPE_CHECKING:
    from ..stability.assess import Stability


BLOCKS: dict[str, tuple[str, ...]] = {
    "q": ("token", "cluster", "column", "column2"),
    "V": ("token", "cluster", "column", "column2"),
    "m": ("token", "cluster", "column"),
    "theta": ("token", "cluster", "column", "teacher"),
}
"""Overlaps and their axes behind the parameter; `column` and `column2` run over W, `teacher` over W*."""

BETWEEN = ("q_between", "distance")
"""Of two states, with the axes of q."""

# Of a solution with broken symmetry, in place of what they mean otherwise.
_OF_LOWEST_STATES = {
    "q": "overlap of a minimiser's weights with themselves, q_1",
    "training_loss": "training loss per d of the lowest states",
}
# Scalars of a solution's stability; not a number where there is none or it was not asked for.
_STABILITY: dict[str, Callable[[Stability], float]] = {
    "replicon": lambda s: s.replicon,
    "replicon_error": lambda s: s.replicon_error,
    "jump_weight": lambda s: s.jump_weight,
    "jump_weight_error": lambda s: s.jump_weight_error,
    "longitudinal_eigenvalue": lambda s: float(np.max(s.eigenvalues.real)),
}


@to_dataset.register(Curve)
def curve_dataset(curve: Curve, stability: bool = True) -> xarray.Dataset:
    """A branch as a Dataset along the parameter.

    Axes: the parameter under its own name, then token, cluster, column, column2, teacher (of length 1 where there is
    one), counted from 1. Variables: q, V, m, theta, training_loss, test_error and trained_NAME with half widths in
    `*_error`, and multiplier where norms are given;
    baseline_error, residual, status, branch, bistable_share; and, with `stability`, replicon, jump_weight (both with
    errors), longitudinal_eigenvalue, verdict, replica_symmetry and longitudinal. The attributes name model, digest,
    version, parameters (JSON), branch and where it ends.

    Args:
        stability: also judge the stability of every solution, which takes about as long as solving.
    """
    return _with_ends(curve, stability)


def _with_ends(curve: Curve | BrokenCurve, stability: bool) -> xarray.Dataset:
    """`_dataset`, and where the branch ends."""
    dataset = _dataset(curve, stability)
    for side, end in zip(("end_below", "end_above"), curve.ends, strict=True):
        # (where found, where not found); empty where the branch reaches the edge of the grid.
        dataset.attrs[side] = json.dumps(list(end) if end is not None else [])
    return dataset


@to_dataset.register(BrokenCurve)
def broken_dataset(curve: BrokenCurve, stability: bool = True) -> xarray.Dataset:
    """As `curve_dataset`, of one minimiser (q is q_1); replicon, jumps and verdict are of the solution beside.

    Variables more: q_between and distance (Delta), parisi, energy_moved, with half widths; symmetric_training_loss and
    symmetric_test_error of the solution beside; clustering and splitting (types I and II); rsb, 0 where no breaking was
    found. `energy_moved` is not a number where replica symmetry has no solution on the branch.
    """
    dataset = _with_ends(curve, stability)
    axis, problem = column_of(curve.parameter), curve.solutions[0].problem if curve.solutions else None
    shape = block_shape(problem, "q") if problem is not None else (0,) * len(BLOCKS["q"])
    none = np.zeros(shape)

    def block(name: str, rows: list[np.ndarray]) -> None:
        values = np.array([np.reshape(row, shape) for row in rows], float).reshape((len(rows), *shape))
        dataset[name] = ((axis, *BLOCKS["q"]), values)

    known = [(s.state, s.state_half_widths, s) for s in curve.solutions]
    block("q_between", [state.between.q if state else s.overlaps.q for state, _, s in known])
    block("q_between_error", [widths.between.q if widths else s.half_widths.q for _, widths, s in known])
    block("distance", [state.distance if state else none for state, _, _ in known])
    block("distance_error", [widths.distance if widths else none for _, widths, _ in known])
    scalars: dict[str, Callable[[BrokenSolution], float]] = {
        "parisi": lambda s: s.parisi,
        "parisi_error": lambda s: s.parisi_error,
        "energy_moved": lambda s: s.energy_moved[0],
        "energy_moved_error": lambda s: s.energy_moved[1],
        "symmetric_training_loss": lambda s: s.symmetric.training_loss,
        "symmetric_training_loss_error": lambda s: s.symmetric.training_loss_error,
        "symmetric_test_error": lambda s: s.symmetric.test_error,
        "symmetric_test_error_error": lambda s: s.symmetric.test_error_error,
        "clustering": lambda s: s.stability.clustering if s.stability else np.nan,
        "splitting": lambda s: s.stability.splitting if s.stability else np.nan,
        "rsb": lambda s: 0.0 if s.state is None else 1.0,
    }
    for name, pick in scalars.items():
        dataset[name] = (axis, np.array([pick(s) for s in curve.solutions], float))
    for name in BROKEN:
        dataset[name].attrs["long_name"] = _OF_LOWEST_STATES.get(name, QUANTITIES[name])
    return dataset


@to_dataset.register(Followed)
def followed_dataset(followed: Followed, stability: bool = True) -> xarray.Dataset:
    """As `curve_dataset`, in the order in which the branch was followed, so that the parameter may go back and forth.

    One variable more, `arclength`, in units of the block scales and of the interval; the attribute `events` (JSON)
    holds kind, type, value, error, status and words of every event.
    """
    dataset = _dataset(followed, stability)
    axis = column_of(followed.parameter)
    dataset["arclength"] = (axis, followed.arclength)
    dataset.attrs["slopes"] = "; ".join(followed.slopes_by)
    dataset.attrs["events"] = json.dumps(
        [
            {
                "kind": event.kind,
                "type": event.evidence["type"],
                "value": event.value,
                "error": event.error,
                "status": event.status,
                "toward": event.evidence["toward"],
            }
            for event in followed.events
        ]
    )
    return dataset


@to_dataset.register(CriticalLine)
def line_dataset(line: CriticalLine) -> xarray.Dataset:
    """A critical line: variables value, error and over along `point`; attributes name the event and both parameters.

    `special` (JSON) holds points of codimension 2.
    """
    dataset = _points_of(line)
    dataset.attrs = {
        **_attributes(line.first.problem, line.parameter),
        "kind": line.kind,
        "over": line.over.rstrip("_"),
        "branches": " and ".join(line.first.branches),
        "special": json.dumps(clean(list(line.special))),
        "ends": line.ending,
    }
    return dataset


@to_dataset.register(BayesLine)
def bayes_line_dataset(line: BayesLine) -> xarray.Dataset:
    """A threshold of Bayes-optimal inference along a parameter: as a critical line; NaN where there is none."""
    dataset = _points_of(line)
    varied = ("alpha", line.over.rstrip("_"))
    held = {name: value for name, value in parameters_json(line.problem).items() if name not in varied}
    dataset.attrs = {
        **_attributes(line.problem, "alpha"),
        "parameters": json.dumps(clean(held), ensure_ascii=False),
        "kind": line.title,
        "over": line.over.rstrip("_"),
        "branches": "Bayes-optimal inference",
        "special": "[]",
        "evidence": json.dumps(clean(list(line.evidence))),
        "ends": line.ending,
    }
    return dataset


def _points_of(line: CriticalLine | BayesLine) -> xarray.Dataset:
    columns = {"over": line.over_values, "value": line.values, "error": line.errors}
    return xarray.Dataset({name: ("point", np.asarray(values, float)) for name, values in columns.items()})


def _dataset(curve: Curve | BrokenCurve | Followed, stability: bool) -> xarray.Dataset:
    """The solutions of a branch in their order, along the parameter."""
    beside = {id(s): s.symmetric if isinstance(s, BrokenSolution) else s for s in curve.solutions}
    problem = curve.solutions[0].problem if curve.solutions else None
    axis = column_of(curve.parameter)
    variables: dict[str, Any] = {}

    def blocks(pick: Callable[[Any], Overlaps], suffix: str) -> None:
        for name, axes in BLOCKS.items():
            shape = block_shape(problem, name) if problem is not None else (0,) * len(axes)
            rows = [np.asarray(getattr(pick(s), name), float).reshape(shape) for s in curve.solutions]
            variables[name + suffix] = ((axis, *axes), np.array(rows, float).reshape((len(rows), *shape)))

    def scalars(name: str, pick: Callable[[Any], float]) -> None:
        variables[name] = (axis, np.array([pick(s) for s in curve.solutions], float))

    def words(name: str, pick: Callable[[Any], str]) -> None:
        variables[name] = (axis, np.array([pick(s) for s in curve.solutions], object))

    for n, number in enumerate(problem.trained if problem is not None else ()):
        values = np.array([(s.overlaps.phi[n], s.half_widths.phi[n]) for s in curve.solutions])
        for suffix, column in zip(("", "_error"), values.T, strict=True):
            variables[f"trained_{number['name']}{suffix}"] = (axis, column)
    if problem is not None and problem.has_sphere:
        none = np.full(problem.student_rank, np.nan)
        for suffix, attribute in (("", "multipliers"), ("_error", "multipliers_error")):
            found = [getattr(s, attribute) for s in curve.solutions]
            rows = np.array([none if row is None else row for row in found])
            variables[f"multiplier{suffix}"] = ((axis, "column"), rows)
    blocks(lambda s: s.overlaps, "")
    blocks(lambda s: s.half_widths, "_error")
    for name in (
        "training_loss",
        "training_loss_error",
        "test_error",
        "test_error_error",
        "residual",
    ):
        scalars(name, attrgetter(name))
    for name in problem.metric_names[1:] if problem is not None else ():
        for suffix, part in (("", 0), ("_error", 1)):
            scalars(f"test_error_{name}{suffix}", partial(_of_metric, name, part))
    scalars("baseline_error", lambda s: beside[id(s)].baseline_error)
    words("status", lambda s: s.status.value)
    words("branch", lambda s: s.branch)
    bistable = {at: s.averages.bistable if s.averages is not None else np.nan for at, s in beside.items()}
    scalars("bistable_share", lambda s: bistable[id(s)])
    judged = {at: s.stability if stability else None for at, s in beside.items()}
    for name, pick in _STABILITY.items():
        scalars(name, partial(_stability_scalar, judged, pick))
    for name in ("verdict", "replica_symmetry", "longitudinal"):
        words(name, partial(_stability_word, judged, name))
    dataset = xarray.Dataset(variables, coords=_coordinates(problem, axis, curve.values))
    describe_columns(dataset, problem)
    if problem is not None:
        describe_fields(dataset, problem)
    dataset.attrs = {**_attributes(problem, curve.parameter), "branch": curve.name, "ends": curve.end_text()}
    return dataset


@to_dataset.register(TunedCurve)
def tuned_dataset(tuned: TunedCurve, stability: bool = True) -> xarray.Dataset:
    """`curve_dataset` of a tuned curve, with the best value of the tuned parameter, its half width, kind and status."""
    dataset = curve_dataset(tuned.curve, stability)
    if not tuned.optima:
        return dataset
    axis, name = column_of(tuned.over), tuned.optima[0].parameter.rstrip("_")
    dataset[f"best_{name}"] = (axis, np.array([optimum.value for optimum in tuned.optima]))
    dataset[f"best_{name}_error"] = (axis, np.array([optimum.error for optimum in tuned.optima]))
    dataset["optimum"] = (axis, np.array([optimum.kind for optimum in tuned.optima], object))
    dataset["optimum_status"] = (axis, np.array([optimum.status for optimum in tuned.optima], object))
    dataset[f"best_{name}"].attrs["long_name"] = f"{name} of least {tuned.optima[0].minimise}"
    held = json.loads(dataset.attrs["parameters"])
    held.pop(name, None)
    dataset.attrs |= {
        "parameters": json.dumps(held, ensure_ascii=False),
        "tuned": name,
        "minimise": tuned.optima[0].minimise,
        "notes": json.dumps(list(tuned.notes), ensure_ascii=False),
    }
    return dataset


def describe_columns(dataset: xarray.Dataset, problem: Problem | None) -> None:
    """Give columns that a table has of its own their `long_name`."""
    for name in set(QUANTITIES) & set(map(str, dataset.data_vars)):
        dataset[name].attrs["long_name"] = QUANTITIES[name]
    if problem is not None and problem.inverse_temperature is not None:
        dataset["training_loss"].attrs["long_name"] = "free energy per d"


def describe_fields(dataset: xarray.Dataset, problem: Problem) -> None:
    """Give m and theta the attributes that a reader needs.

    `present`: 1 or 0 for every (token, cluster), the cluster fastest; 0 where the overlap is 0 by construction, since
    there is neither a mean nor an encoding, or no teacher in the loss and the law. `sign` of m: whether the sign of W
    is `free` or `fixed` by the loss.
    """
    law, contexts = problem.law, problem.contexts
    dataset["m"].attrs["present"] = law.has_means.astype(int)
    dataset["m"].attrs["sign"] = "free" if gauge.sign_is_free(problem) else "fixed"
    taught = (
        problem.solver.channel.FEATURES > 0  # of the teacher's fields and the noise
        or (not problem.has_ridge and problem.solver.prior.KNOWN > 0)
        or bool(np.any(law.gram[:, :contexts, contexts:]) or np.any(law.teacher_means))
    )
    dataset["theta"].attrs["present"] = np.full(contexts, int(taught))


def _stability_scalar(
    judged: Mapping[int, Stability | None], pick: Callable[[Stability], float], solution: object
) -> float:
    stability = judged[id(solution)]
    return np.nan if stability is None else pick(stability)


def _stability_word(judged: Mapping[int, Stability | None], name: str, solution: object) -> str:
    return str(getattr(judged[id(solution)], name, ""))


def _of_metric(name: str, part: int, solution: Any) -> float:
    """Value (0) or half width (1) of a named test error; nan where there is none."""
    return float(solution.other_errors.get(name, (np.nan, np.nan))[part])


def _coordinates(problem: Problem | None, axis: str, values: np.ndarray) -> dict[str, Any]:
    counts = {"token": "tokens", "cluster": "clusters", "column": "student_rank", "column2": "student_rank"}
    counts["teacher"] = "teacher_rank"
    sizes = {name: getattr(problem, count) if problem is not None else 0 for name, count in counts.items()}
    return {axis: np.asarray(values, float), **{name: np.arange(1, size + 1) for name, size in sizes.items()}}


def _attributes(problem: Problem | None, parameter: str) -> dict[str, Any]:
    if problem is None:
        return {"model": "", "digest": "", "version": __version__, "parameter": parameter, "parameters": "{}"}
    others = {name: value for name, value in parameters_json(problem).items() if name != parameter.rstrip("_")}
    return {
        **identity_json(problem),
        "parameter": parameter,
        "parameters": json.dumps(clean(others), ensure_ascii=False),
    }


@save.register(xarray.Dataset)
def save_dataset(dataset: xarray.Dataset, path: str | Path) -> None:
    """Write netCDF 4, whole or not at all.

    Its bytes are made in memory: HDF5 ends the process on a disk that is full.

    Raises:
        InputError: the file cannot be written.
    """
    path, whole = check_writable(Path(path)), io.BytesIO()
    with h5netcdf.File(whole, "w") as file:
        dataset.assign_attrs(schema=SCHEMA).dump_to_store(xarray.backends.H5NetCDFStore(file))
    write_whole(path, whole.getvalue())


def overlaps_of_row(dataset: xarray.Dataset, row: int, problem: Problem) -> Overlaps:
    """The overlaps of one point or run of a table of this problem's structure.

    Raises:
        InputError: it is of another structure.
    """
    blocks = {}
    for name in BLOCKS:
        expected = block_shape(problem, name)
        found = dataset[name].values[row] if name in dataset else np.zeros(0)
        if found.shape != expected:
            raise InputError(f"{name} has shape {found.shape} in the table; {expected} is expected")
        blocks[name] = found.reshape(problem.contexts, *expected[2:])
    names = [f"trained_{number['name']}" for number in problem.trained]
    missing = [name for name in names if name not in dataset]
    if missing:
        raise InputError(f"the trained number {missing[0].removeprefix('trained_')!r} is missing in the table")
    return Overlaps(**blocks, phi=np.array([float(dataset[name].values[row]) for name in names]))


def loss_difference_along(first: xarray.Dataset, second: xarray.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values of the parameter at which both branches were found, training loss of the first less that of the second,
    half width."""
    one, other = (dataset[column_of(dataset.attrs["parameter"])].values for dataset in (first, second))
    common, left, right = np.intersect1d(one, other, return_indices=True)
    difference = first["training_loss"].values[left] - second["training_loss"].values[right]
    return common, difference, first["training_loss_error"].values[left] + second["training_loss_error"].values[right]


def _read(path: Path) -> tuple[xarray.Dataset | None, str]:
    """A file of netCDF, or why there is none."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None  # h5netcdf closes what it could not open
    try:
        with h5py.File(finite(path, again=True), "r"):
            pass
        return xarray.load_dataset(path, engine="h5netcdf"), ""
    except OSError as error:
        return None, error.strerror or "it is not a netCDF 4 file"
    except Exception:  # whatever the libraries meet in bytes that are no table
        return None, "it is damaged, or not a netCDF 4 file"
    finally:
        sys.unraisablehook = hook


def load_dataset(path: str | Path) -> xarray.Dataset:
    """Read a file written by `save_dataset`, of this release or an earlier one, into memory.

    Raises:
        InputError: no such file, damaged or not netCDF, not a table of this package, or one of a later schema.
    """
    path = Path(path)
    dataset, reason = _read(path)
    if dataset is None:
        raise InputError(
            f"cannot read {path}: {reason}; curves, lines, simulations and sweeps are written as such by -o FILE.nc"
        )
    if "model" not in dataset.attrs or "parameter" not in dataset.attrs:
        raise InputError(f"{path} is no table of saddleforge: it does not name its model and parameter")
    check_schema(path, dataset.attrs.pop("schema", None))
    return dataset
