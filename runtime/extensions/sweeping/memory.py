"""What of a solution its neighbour on a line begins from, as JSON and back to the bit.

A line goes on from its records after it was killed: the neighbour of a point is always what its record says, also where
nothing was interrupted, so that both ways give the same bytes.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import asdict
from typing import Any

import numpy as np

from ...integration import FAMILIES, Rule
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...problems.symmetry import Exchange, Symmetry
from ...saddle_point.iteration import Status
from ...solving.solution import Solution


def remembered(solution: Solution) -> dict[str, Any]:
    """Rule, symmetry, slopes and how far they are from the solution."""
    symmetry = solution.symmetry
    return {
        "rule": {"name": solution.rule.name, **asdict(solution.rule)},  # type: ignore[call-overload]
        "residual": solution.residual,
        "symmetry": None if symmetry is None else _of_symmetry(symmetry),
        "slopes": None if solution.jacobian is None else _text(solution.jacobian),
        "drift": solution.drift,
    }


def recalled(problem: Problem, start: str, record: dict[str, Any]) -> Solution:
    """A solution to begin from, which is none to report: it has no losses."""
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
        rule=_rule(memory["rule"]),
        errors=np.array(record["errors"], float),
        jacobian=None if slopes is None else _array(slopes).reshape(len(u), len(u)),
        drift=memory["drift"],
        symmetry=None if memory["symmetry"] is None else _to_symmetry(memory["symmetry"], len(u)),
    )


def _rule(values: dict[str, Any]) -> Rule:
    known = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items() if name != "name"}
    return FAMILIES[values["name"]](**known)


def _of_symmetry(symmetry: Symmetry) -> dict[str, Any]:
    frozen = symmetry.frozen
    return {
        "frozen": None if frozen is None else np.flatnonzero(frozen).tolist(),
        "exchanges": [[list(e.tokens), list(e.student), list(e.teacher), e.noise] for e in symmetry.exchanges],
        "clusters": symmetry.clusters,
    }


def _to_symmetry(values: dict[str, Any], count: int) -> Symmetry:
    frozen = None
    if values["frozen"] is not None:
        frozen = np.zeros(count, bool)
        frozen[values["frozen"]] = True
    exchanges = [Exchange(tuple(a), tuple(b), tuple(c), noise) for a, b, c, noise in values["exchanges"]]
    return Symmetry(frozen, tuple(exchanges), values["clusters"])


def _text(values: np.ndarray) -> str:
    return b64encode(np.ascontiguousarray(values, "<f8").tobytes()).decode("ascii")


def _array(text: str) -> np.ndarray:
    return np.frombuffer(b64decode(text), "<f8").astype(float)
