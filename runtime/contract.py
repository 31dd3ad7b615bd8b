"""JSON of the command line (docs/design.md section 5): fixed keys, null for what is missing or not finite, no times."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ._version import __version__

if TYPE_CHECKING:
    from .overlaps import Conjugates, Overlaps
    from .problem import Problem
    from .solution import Solution


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


def parameters_json(problem: Problem) -> dict[str, Any]:
    """alpha (None if left open), sizes, parameters and, where they are given, spectrum and inverse temperature."""
    named = {name.rstrip("_"): value for name, value in problem.parameters.items()}
    given = {"spectrum": problem.spectrum, "inverse_temperature": problem.inverse_temperature}
    given = {name: value for name, value in given.items() if value is not None}
    return {"alpha": problem.sample_complexity, **problem.solver.structure, **named, **given}


def blocks_json(problem: Problem, blocks: Overlaps | Conjugates) -> dict[str, Any]:
    """q[l][k][a][b], V, m[l][k][a], theta[l][k][a][b]."""
    shape = (problem.tokens, problem.clusters)
    return {
        name: getattr(blocks, name).reshape(shape + getattr(blocks, name).shape[1:]).tolist()
        for name in ("q", "V", "m", "theta")
    }


def trained_json(problem: Problem, blocks: Overlaps) -> dict[str, float]:
    """Numbers trained with the weights, by name."""
    return {number["name"]: float(value) for number, value in zip(problem.trained, blocks.phi, strict=True)}


def solution_json(solution: Solution) -> dict[str, Any]:
    """The object `solve --json` prints; `thermal` beside it at a finite temperature."""
    problem = solution.problem
    stability = solution.stability
    found: dict[str, Any] = {
        "model": problem.solver.name,
        "version": __version__,
        "digest": problem.solver.digest,
        "parameters": parameters_json(problem),
        "start": solution.start,
        "branch": solution.branch,
        "rank": solution.rank,
        "status": solution.status.value,
        "residual": solution.residual,
        "iterations": solution.iterations,
        "overlaps": blocks_json(problem, solution.overlaps),
        "trained": trained_json(problem, solution.overlaps),
        "conjugates": blocks_json(problem, solution.conjugates) if solution.conjugates else None,
        "free_entropy": solution.free_entropy,
        "training_loss": solution.training_loss,
        "training_loss_parts": (
            {
                "data": solution.losses.data,
                "penalty": solution.losses.penalty,
                "identity_gap": solution.losses.identity_gap,
            }
            if solution.losses
            else None
        ),
        "test_error": solution.test_error,
        "baseline_error": solution.baseline_error,
        "errors": {
            "overlaps": blocks_json(problem, solution.half_widths),
            "trained": trained_json(problem, solution.half_widths),
            "training_loss": solution.training_loss_error,
            "test_error": solution.test_error_error,
        },
        "error_kind": solution.error_kind,
        "integrator": solution.rule.describe(),
        "stability": stability.to_json() if stability else None,
    }
    if problem.inverse_temperature is None:
        return found
    # The training loss is that of weights drawn from the measure; the test error that of their mean.
    thermal, parts, errors = solution.thermal, found["training_loss_parts"], found["errors"]
    found["thermal"] = None if thermal is None else shaped(problem, thermal.to_json())
    found["free_entropy"] = None if thermal is None else thermal.free_entropy
    found["training_loss"] = None if thermal is None else thermal.energy
    found["training_loss_parts"] = parts and {**parts, "identity_gap": None}
    found["errors"] = {**errors, "training_loss": None if thermal is None else thermal.energy_error}
    return found


def shaped(problem: Problem, thermal: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a Gibbs measure with its matrices as r[l][k][a][b]."""
    shape = (problem.tokens, problem.clusters, *[problem.student_rank] * 2)

    def blocks(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "self_overlap": np.reshape(values["self_overlap"], shape).tolist()}

    return {**blocks(thermal), "errors": blocks(thermal["errors"])}
