"""JSON of the command line (docs/design.md section 5): fixed keys, null for what is missing or not finite, no times."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..base.errors import InputError
from ..problems.columns import by_context
from ..problems.overlaps import OVERLAPS

if TYPE_CHECKING:
    from ..problems.overlaps import Conjugates, Overlaps
    from ..problems.problem import Problem


SCHEMA = 1
"""Of JSON objects and netCDF tables: raised where a name or an axis changes or goes, not where one is added. What an
older file lacks or calls otherwise is put right by `report.tables` and `report.starting` as they read it, for ever."""


def check_schema(path: object, found: Any) -> None:
    """Refuse a file that a later release wrote; without a number it is of the first.

    Raises:
        InputError: its schema is none that is known here.
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


def clean(value: Any) -> Any:
    """Plain Python numbers, lists and dicts; numbers that are not finite become None."""
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return clean(value.tolist())
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dumps(value: Any) -> str:
    """One JSON object, deterministic to the byte."""
    return json.dumps(clean(value), indent=2, ensure_ascii=False, allow_nan=False)


def document(data: dict[str, Any]) -> str:
    """An object as commands print and write it, its schema first."""
    return dumps({"schema": SCHEMA, **data})


def parameters_json(problem: Problem, *varied: str) -> dict[str, Any]:
    """alpha (None if left open), sizes, parameters and, where they are given, spectrum and inverse temperature.

    Of an array on a line {from, to}, and its place there.

    Args:
        varied: parameters that are left out, since a result is about several values of them.
    """
    named = {name.rstrip("_"): value for name, value in {**problem.parameters, **problem.along_lines}.items()}
    given = {"spectrum": problem.spectrum, "inverse_temperature": problem.inverse_temperature}
    given = {name: value for name, value in given.items() if value is not None}
    every = {"alpha": problem.sample_complexity, **problem.solver.structure, **named, **given}
    without = {name.rstrip("_") for name in varied}
    return {name: value for name, value in every.items() if name not in without}


def chosen(result: Any, *names: str) -> dict[str, Any]:
    """Return attributes of a result by their names."""
    return {name: getattr(result, name) for name in names}


def errors_of(result: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the error bars of attributes of a result, NAME_error, by the names of these."""
    return {name: getattr(result, f"{name}_error") for name in names}


def identity_json(problem: Problem) -> dict[str, Any]:
    """Return by what a result is recognised: model, version of the package, digest of the physics."""
    return {"model": problem.solver.name, "version": __version__, "digest": problem.solver.digest}


def problem_json(problem: Problem, *varied: str) -> dict[str, Any]:
    """Return the keys with which an object about one problem begins; `varied` as of `parameters_json`."""
    return {**identity_json(problem), "parameters": parameters_json(problem, *varied)}


def located_json(
    problem: Problem, kind: Any, parameter: Any, value: Any, error: Any, status: str, error_kind: str | None
) -> dict[str, Any]:
    """Return the keys of a value of a parameter at which something holds, or of one that was not found.

    Args:
        parameter: its name, or those of several; kind, value and error then hold one for each by name.
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
    """q[l][k][a][b], V, m[l][k][a], theta[l][k][a][b]."""
    return {name: by_context(problem, getattr(blocks, name)).tolist() for name in names}


def trained_json(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Numbers trained with the weights, by name."""
    return {number["name"]: float(value) for number, value in zip(problem.trained, blocks.phi, strict=True)}
