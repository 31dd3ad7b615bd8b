"""JSON of the command line (docs/design.md section 5): fixed keys, null if missing or not finite, no times."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..base.errors import InputError
from ..problems.columns import split_contexts
from ..problems.overlaps import OVERLAPS

if TYPE_CHECKING:
    from ..problems.overlaps import Conjugates, Overlaps
    from ..problems.problem import Problem


SCHEMA = 1
"""Of JSON objects and netCDF tables: increased when a name or an axis changes or is removed, not when one is added.
Older files stay readable: `report.tables` and `report.starting` convert them."""


def check_schema(path: object, found: Any) -> None:
    """Raise InputError for a file of a later release; a file without a number has the first schema.

    Args:
        path: of the file, for the message.
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
            f"{path} has schema {found}, and this release reads up to {SCHEMA}: read it with the release that wrote it "
            "or a later one"
        )


def to_plain_json(value: Any) -> Any:
    """Return plain Python numbers, lists and dicts, in which numbers that are not finite are None."""
    if isinstance(value, dict):
        return {key: to_plain_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_plain_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_plain_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dumps(value: Any) -> str:
    """Return one JSON object as text, deterministic to the byte."""
    return json.dumps(to_plain_json(value), indent=2, ensure_ascii=False, allow_nan=False)


def versioned_document(data: dict[str, Any]) -> str:
    """Return the object that commands print and write, its schema first."""
    return dumps({"schema": SCHEMA, **data})


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
    every = {"alpha": problem.sample_complexity, **problem.solver.structure, **named, **given}
    without = {name.rstrip("_") for name in varied}
    return {name: value for name, value in every.items() if name not in without}


def select_attributes(result: Any, *names: str) -> dict[str, Any]:
    """Return attributes of a result by name.

    Args:
        result: the result.
        names: of the attributes.
    """
    return {name: getattr(result, name) for name in names}


def select_errors(result: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the error bars of attributes of a result, NAME_error, by NAME.

    Args:
        result: the result.
        names: of the attributes.
    """
    return {name: getattr(result, f"{name}_error") for name in names}


def identity_json(problem: Problem) -> dict[str, Any]:
    """Return model, version of the package and digest of the physics, which identify a result."""
    return {"model": problem.solver.name, "version": __version__, "digest": problem.solver.digest}


def problem_json(problem: Problem, *varied: str) -> dict[str, Any]:
    """Return the first keys of an object about one problem.

    Args:
        problem: the problem.
        varied: see `parameters_json`.
    """
    return {**identity_json(problem), "parameters": parameters_json(problem, *varied)}


def location_json(
    problem: Problem, kind: Any, parameter: Any, value: Any, error: Any, status: str, error_kind: str | None
) -> dict[str, Any]:
    """Return the keys of a located value of a parameter, or of one that was not found.

    Args:
        problem: the problem.
        kind: of the event, or one for each parameter by name.
        parameter: its name, or names of several; then kind, value and error hold one for each by name.
        value: of the parameter; NaN if not found.
        error: its error bar.
        status: how the search ended.
        error_kind: "estimated" or "proved".
    """
    names = [parameter] if isinstance(parameter, str) else parameter
    return {
        **identity_json(problem),
        "kind": kind,
        "parameter": parameter,
        "parameters": parameters_json(problem, *names),
        "value": value,
        "error": error,
        "error_kind": error_kind,
        "status": status,
    }


def blocks_json(problem: Problem, blocks: Overlaps | Conjugates, names: Sequence[str] = OVERLAPS) -> dict[str, Any]:
    """Return q[l][k][a][b], V, m[l][k][a], theta[l][k][a][b] by name.

    Args:
        problem: the problem.
        blocks: overlaps or their error bars.
        names: of the overlaps.
    """
    return {name: split_contexts(problem, getattr(blocks, name)).tolist() for name in names}


def trained_json(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Return the numbers trained with the weights by name.

    Args:
        problem: the problem.
        blocks: overlaps or their error bars.
    """
    return {number["name"]: float(value) for number, value in zip(problem.trained, blocks.phi, strict=True)}
