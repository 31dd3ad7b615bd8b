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
    """Raise InputError for a file whose schema belongs to a later release; files without a schema number have schema 1.

    Args:
        path: path of the file, for the message.
        found: the number in the file, or None.

    Raises:
        InputError: the schema is unknown to this release.
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
    """Return a value as plain Python numbers, lists and dicts for JSON; numbers that are not finite become None."""
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
    """Return an object as JSON text, the same to the byte each time."""
    return json.dumps(to_plain_json(value), indent=2, ensure_ascii=False, allow_nan=False)


def json_text_with_schema(data: dict[str, Any]) -> str:
    """Return an object as the JSON text that commands print and write, with its schema number first."""
    return json_text({"schema": SCHEMA, **data})


def parameters_json(problem: Problem, *varied: str) -> dict[str, Any]:
    """Return alpha (None if left open), sizes, parameters and, if given, spectrum and inverse temperature.

    An array on a line is {from, to}, with the position on the line.

    Args:
        problem: the problem.
        varied: parameters to leave out, because the result has several values of them.
    """
    named = {name.rstrip("_"): value for name, value in {**problem.parameters, **problem.line_parameters}.items()}
    given = {"spectrum": problem.spectrum, "inverse_temperature": problem.inverse_temperature}
    given = {name: value for name, value in given.items() if value is not None}
    every = {"alpha": problem.sample_complexity, **problem.solver.structural_sizes, **named, **given}
    without = {name.rstrip("_") for name in varied}
    return {name: value for name, value in every.items() if name not in without}


def attributes_by_name(result: Any, *names: str) -> dict[str, Any]:
    """Return attributes of a result by name.

    Args:
        result: the result.
        names: names of the attributes.
    """
    return {name: getattr(result, name) for name in names}


def error_bars_by_name(result: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the error bars of attributes of a result, NAME_error, by NAME.

    Args:
        result: the result.
        names: names of the attributes.
    """
    return {name: getattr(result, f"{name}_error") for name in names}


def model_identity_json(problem: Problem) -> dict[str, Any]:
    """Return model, version of the package and digest of the physics, which identify a result."""
    return {"model": problem.solver.name, "version": __version__, "digest": problem.solver.physics_digest}


def problem_json(problem: Problem, *varied: str) -> dict[str, Any]:
    """Return model, version, digest and parameters of a problem, the first keys of JSON objects.

    Args:
        problem: the problem.
        varied: see `parameters_json`.
    """
    return {**model_identity_json(problem), "parameters": parameters_json(problem, *varied)}


def located_value_json(
    problem: Problem, kind: Any, parameter: Any, value: Any, error: Any, status: str, error_kind: str | None
) -> dict[str, Any]:
    """Return the JSON keys of a located value of a parameter, as a threshold, or of one that was not found.

    Args:
        problem: the problem.
        kind: kind of the event.
        parameter: name of the parameter, or several names; then kind, value and error are dicts by name.
        value: value of the parameter; NaN if not found.
        error: its error bar.
        status: how the search ended.
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
    """Return overlaps as nested lists by name: q[l][k][a][b], V, m[l][k][a], theta[l][k][a][b].

    Args:
        problem: the problem.
        blocks: overlaps or their error bars.
        names: names of the overlaps.
    """
    return {name: split_token_and_cluster_axes(problem, getattr(blocks, name)).tolist() for name in names}


def trained_numbers_json(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Return the numbers trained with the weights by name.

    Args:
        problem: the problem.
        blocks: overlaps or their error bars.
    """
    return {number["name"]: float(value) for number, value in zip(problem.trained, blocks.phi, strict=True)}
