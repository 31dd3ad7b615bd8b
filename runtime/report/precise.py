"""Solutions beyond double precision, for people and as JSON: numbers as decimals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpmath import mp

from ..presenting import table, to_json
from ..problems.overlaps import OVERLAPS
from ..problems.symbols import symbols_of
from ..reference.improve import decimal_strings
from ..reference.solution import PreciseSolution
from .contract import parameters_json
from .thresholds import told


@table.register(PreciseSolution)
def precise_table(solution: PreciseSolution, names: Mapping[str, str] | None = None) -> str:
    """For a terminal; `names` are symbols of the reader's own."""
    evidence, shown = solution.evidence, symbols_of(solution.problem, names)
    lines = [
        f"{solution.problem.solver.name}  {shown['alpha'][0]} = {solution.problem.alpha:g}",
        f"start {solution.start}, reached {solution.near.branch}; {solution.status.words}, "
        f"residual {evidence['residuals'][0]:.2g}, {evidence['digits']} digits carried",
    ]
    for name, entries in _blocks(solution).items():
        lines += [f"  {shown[name][0]:<14}{value} +- {error}" for value, error in entries]
    for name, (value, error) in solution.observables.items():
        with mp.workdps(evidence["digits"]):
            lines.append("  {:<14}{} +- {}".format(name.replace("_", " "), *decimal_strings(value, error)))
    for name, reason in evidence.get("observables_not_proved", {}).items():
        lines.append(f"  {name.replace('_', ' ')} is not proved: {reason}")
    lines.append(f"errors are {solution.error_kind}: {told(evidence)}")
    return "\n".join(lines)


@to_json.register(PreciseSolution)
def precise_json(solution: PreciseSolution) -> dict[str, Any]:
    """As `solve`, with decimal strings for numbers, of what there is at this precision."""
    shape = solution.problem.clusters
    blocks = _blocks(solution)

    def nested(part: int) -> dict[str, Any]:
        wrap = {"q": 2, "V": 2, "m": 1, "theta": 2}
        out = {}
        for name, entries in blocks.items():
            column: list[Any] = [entry[part] for entry in entries]
            for _ in range(wrap[name]):
                column = [[entry] for entry in column]
            out[name] = [column[:shape]]
        return out

    with mp.workdps(solution.evidence["digits"]):
        shown = {name: decimal_strings(*pair) for name, pair in solution.observables.items()}
    return {
        "model": solution.problem.solver.name,
        "digest": solution.problem.solver.digest,
        "parameters": parameters_json(solution.problem),
        "start": solution.start,
        "branch": solution.near.branch,
        "status": solution.status.value,
        "residual": solution.evidence["residuals"][0],
        "overlaps": nested(0),
        **{name: value for name, (value, _) in shown.items()},
        "errors": {"overlaps": nested(1), **{name: error for name, (_, error) in shown.items()}},
        "error_kind": solution.error_kind,
        "evidence": solution.evidence,
    }


def _blocks(solution: PreciseSolution) -> dict[str, list[tuple[str, str]]]:
    with mp.workdps(solution.evidence["digits"]):
        return {
            name: [
                decimal_strings(value, error)
                for value, error in zip(
                    getattr(solution.overlaps, name).flat, getattr(solution.errors, name).flat, strict=True
                )
            ]
            for name in OVERLAPS
        }
