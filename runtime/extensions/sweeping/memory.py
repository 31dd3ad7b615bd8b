"""Conversion to JSON and back of the part of a solution from which the next point of a sweep line starts.

An interrupted line continues from its records. The next point is therefore always started from a restored record, even
without an interruption, so that the results are the same, bit by bit.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import asdict
from typing import Any

import numpy as np

from ...integration import FAMILIES, Rule
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...problems.symmetry import SignedPermutation, StateSymmetry
from ...saddle_point.iteration import Status
from ...solving.solution import Solution


def encode_solution(solution: Solution) -> dict[str, Any]:
    """Return, for JSON, the part of a solution that the next point of a line starts from, without its overlaps.

    It contains quadrature rule, residual, symmetry, Jacobian, and the change of the overlaps since the latter.
    """
    symmetry = solution.symmetry
    return {
        "rule": {"name": solution.rule.name, **asdict(solution.rule)},  # type: ignore[call-overload]
        "residual": solution.residual,
        "symmetry": None if symmetry is None else _encode_symmetry(symmetry),
        "slopes": None if solution.jacobian is None else _encode_array_as_base64(solution.jacobian),
        "drift": solution.drift,
    }


def restore_solution(problem: Problem, start: str, record: dict[str, Any]) -> Solution:
    """Return the solution in a record, to be used as a start of other solutions; losses are not computed.

    Args:
        problem: problem of the point.
        start: start of the line.
        record: record of the point.
    """
    memory = record["memory"]
    u = np.array(record["overlaps"], float)
    slopes = memory["slopes"]
    return Solution(
        problem=problem,
        start=start,
        overlaps=Overlaps.unpack(u, problem.sizes),
        conjugates=None,
        status=Status(record["status"]),
        residual=memory["residual"],
        iterations=0,
        rule=_decode_quadrature_rule(memory["rule"]),
        errors=np.array(record["errors"], float),
        jacobian=None if slopes is None else _decode_array_from_base64(slopes).reshape(len(u), len(u)),
        drift=memory["drift"],
        symmetry=None if memory["symmetry"] is None else _decode_symmetry(memory["symmetry"], len(u)),
    )


def _decode_quadrature_rule(values: dict[str, Any]) -> Rule:
    known = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name != "name"}
    return FAMILIES[values["name"]](**known)


def _encode_symmetry(symmetry: StateSymmetry) -> dict[str, Any]:
    frozen = symmetry.frozen
    return {
        "frozen": None if frozen is None else np.flatnonzero(frozen).tolist(),
        "exchanges": [[list(e.tokens), list(e.student), list(e.teacher), e.noise] for e in symmetry.exchanges],
        "clusters": symmetry.clusters,
    }


def _decode_symmetry(values: dict[str, Any], count: int) -> StateSymmetry:
    frozen = None
    if values["frozen"] is not None:
        frozen = np.zeros(count, bool)
        frozen[values["frozen"]] = True
    exchanges = [SignedPermutation(tuple(a), tuple(b), tuple(c), noise) for a, b, c, noise in values["exchanges"]]
    return StateSymmetry(frozen, tuple(exchanges), values["clusters"])


def _encode_array_as_base64(values: np.ndarray) -> str:
    return b64encode(np.ascontiguousarray(values, "<f8").tobytes()).decode("ascii")


def _decode_array_from_base64(text: str) -> np.ndarray:
    return np.frombuffer(b64decode(text), "<f8").astype(float)
