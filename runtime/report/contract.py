"""JSON of the command line (docs/design.md section 5): fixed keys, null if missing or not finite, no times."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..base.errors import InputError
from ..problems.columns import split_token_and_cluster_axes
from ..problems.overlaps import OVERLAPS

if TYPE_CHECKING:
    from ..problems.overlaps import Conjugates, Overlaps
    from ..problems.problem import Problem


SCHEMA = 1
"""Of JSON objects and netCDF tables: increased when a name or an axis changes or is removed, not when one is added.
Older files stay readable: `report.tables` and `report.starting` convert them."""


def check_file_schema(path: object, found: Any) -> None:
    """Raise InputError if a file has a format (schema number) that this release cannot read.

    Args:
        path: path of the file, for the error message.
        found: schema number in the file; None is read as 1.

    Raises:
        InputError: the file was written by a later release, or its number is not valid.
    """
    try:
        number = int(1 if found is None else found)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if not 1 <= number <= SCHEMA:
        raise InputError(
            f"{path} has schema {found}, but this release reads schemas up to {SCHEMA}: install the release that wrote "
            "the file, or a later one"
        )


def to_plain_json(value: Any) -> Any:
    """Convert a value to plain Python numbers, lists and dicts for JSON; numbers that are not finite become None."""
    if isinstance(value, dict):
        return {key: to_plain_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_plain_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_plain_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def json_text(value: Any) -> str:
    """Return a value as JSON text; equal values give the same bytes."""
    return json.dumps(to_plain_json(value), indent=2, ensure_ascii=False, allow_nan=False)


def json_text_with_schema(data: dict[str, Any]) -> str:
    """Return a dict as the JSON text that commands print and write, with the schema number as its first key."""
    return json_text({"schema": SCHEMA, **data})


def parameters_json(problem: Problem, *varied: str) -> dict[str, Any]:
    """Return the parameters of a learning problem as a dict for JSON.

    These are alpha (None if not given), structural sizes, parameters of the model and, if given, spectrum and inverse
    temperature. A parameter that varies along a line between two arrays is {from, to, position}.

    Args:
        problem: the learning problem: a model with its parameters.
        varied: names of parameters to leave out, because they vary within the result.
    """
    named = {
        name.rstrip("_"): value for name, value in {**problem.parameters, **problem.parameter_lines_for_json}.items()
    }
    given = {"spectrum": problem.spectrum, "inverse_temperature": problem.inverse_temperature}
    given = {name: value for name, value in given.items() if value is not None}
    every = {"alpha": problem.sample_complexity, **problem.solver.structural_sizes, **named, **given}
    without = {name.rstrip("_") for name in varied}
    return {name: value for name, value in every.items() if name not in without}


def attributes_by_name(result: Any, *names: str) -> dict[str, Any]:
    """Return a dict of attributes of a result.

    Args:
        result: object that has the attributes.
        names: names of the attributes.
    """
    return {name: getattr(result, name) for name in names}


def error_bars_by_name(result: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return a dict of the error bars of a result: for every NAME the attribute NAME_error.

    Args:
        result: object that has the attributes NAME_error.
        names: names without the suffix _error.
    """
    return {name: getattr(result, f"{name}_error") for name in names}


def model_identity_json(problem: Problem) -> dict[str, Any]:
    """Return a dict for JSON that identifies the model of a result: its name, package version, digest of equations."""
    return {"model": problem.solver.name, "version": __version__, "digest": problem.solver.physics_digest}


def problem_json(problem: Problem, *varied: str) -> dict[str, Any]:
    """Return the first keys of the JSON of a result: model, package version, digest of equations, and parameters.

    Args:
        problem: the learning problem: a model with its parameters.
        varied: names of parameters to leave out, because they vary within the result.
    """
    return {**model_identity_json(problem), "parameters": parameters_json(problem, *varied)}


def located_parameter_value_json(
    problem: Problem, kind: Any, parameter: Any, value: Any, error: Any, status: str, error_kind: str | None
) -> dict[str, Any]:
    """Return the JSON keys of a located parameter value, such as a threshold or an optimum (found or not).

    Args:
        problem: the learning problem: a model with its parameters.
        kind: kind of the event, as "crossing".
        parameter: name of the parameter; or several names, and then kind, value and error are dicts by name.
        value: located value of the parameter; NaN or None if it was not found.
        error: error bar of the located value.
        status: word for how the search ended, as "converged".
        error_kind: "estimated" or "proved".
    """
    names = [parameter] if isinstance(parameter, str) else parameter
    return {
        **model_identity_json(problem),
        "kind": kind,
        "parameter": parameter,
        "parameters": parameters_json(problem, *names),
        "value": value,
        "error": error,
        "error_kind": error_kind,
        "status": status,
    }


def overlaps_json(problem: Problem, blocks: Overlaps | Conjugates, names: Sequence[str] = OVERLAPS) -> dict[str, Any]:
    """Return overlaps as nested lists by name, for JSON: q[token][cluster][column][column] and so on.

    Args:
        problem: the learning problem: a model with its parameters.
        blocks: overlaps, their error bars, or conjugates.
        names: names of the overlaps to return.
    """
    return {name: split_token_and_cluster_axes(problem, getattr(blocks, name)).tolist() for name in names}


def trained_numbers_json(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Return, by name, the scalar parameters that are trained together with the weights ("trained numbers").

    Args:
        problem: the learning problem: a model with its parameters.
        blocks: overlaps with the trained numbers, or their error bars.
    """
    return {number["name"]: float(value) for number, value in zip(problem.trained, blocks.phi, strict=True)}
