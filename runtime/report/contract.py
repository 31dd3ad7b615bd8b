"""JSON of the command line (docs/design.md section 5): fixed keys, null for what is missing or not finite, no times."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..errors import InputError
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
    if isinstance(value, np.ndarray):
        return clean(value.tolist())
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value


def dumps(value: Any) -> str:
    """One JSON object, deterministic to the byte."""
    return json.dumps(clean(value), indent=2, ensure_ascii=False, allow_nan=False)


def document(data: dict[str, Any]) -> str:
    """An object as commands print and write it, its schema first."""
    return dumps({"schema": SCHEMA, **data})


def parameters_json(problem: Problem) -> dict[str, Any]:
    """alpha (None if left open), sizes, parameters and, where they are given, spectrum and inverse temperature.

    Of an array on a line {from, to}, and its place there.
    """
    named = {name.rstrip("_"): value for name, value in {**problem.parameters, **problem.along_lines}.items()}
    given = {"spectrum": problem.spectrum, "inverse_temperature": problem.inverse_temperature}
    given = {name: value for name, value in given.items() if value is not None}
    return {"alpha": problem.sample_complexity, **problem.solver.structure, **named, **given}


def identity_json(problem: Problem) -> dict[str, Any]:
    """Return by what a result is recognised: model, version of the package, digest of the physics."""
    return {"model": problem.solver.name, "version": __version__, "digest": problem.solver.digest}


def problem_json(problem: Problem) -> dict[str, Any]:
    """Return the keys with which an object about one problem begins."""
    return {**identity_json(problem), "parameters": parameters_json(problem)}


def blocks_json(problem: Problem, blocks: Overlaps | Conjugates) -> dict[str, Any]:
    """q[l][k][a][b], V, m[l][k][a], theta[l][k][a][b]."""
    shape = (problem.tokens, problem.clusters)
    return {name: getattr(blocks, name).reshape(shape + getattr(blocks, name).shape[1:]).tolist() for name in OVERLAPS}


def trained_json(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Numbers trained with the weights, by name."""
    return {number["name"]: float(value) for number, value in zip(problem.trained, blocks.phi, strict=True)}
