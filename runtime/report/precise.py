"""Solutions beyond double precision as text and JSON, with numbers as decimal strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mpmath import mp

from ..base.presenting import table, to_json
from ..extensions.reference.improve import decimal_strings
from ..extensions.reference.solution import PreciseSolution
from ..problems.columns import block_shape
from ..problems.overlaps import OVERLAPS
from ..problems.problem import Problem
from ..problems.symbols import symbols_of
from .contract import problem_json
from .thresholds import describe_error_bars


@table.register(PreciseSolution)
def precise_table(solution: PreciseSolution, names: Mapping[str, str] | None = None) -> str:
    """Return a solution beyond double precision as text.

    Args:
        solution: the solution.
        names: symbols of the user's own, see `symbols.symbols_of`.
    """
    evidence, shown = solution.evidence, symbols_of(solution.problem, names)
    lines = [
        f"{solution.problem.solver.name}  {shown['alpha'][0]} = {solution.problem.alpha:g}",
        f"start {solution.start}, reached {solution.near.branch}; {solution.status.words}, "
        f"residual {evidence['residuals'][0]:.2g}, {evidence['digits']} digits carried",
    ]
    for name, entries in _decimal_overlaps(solution).items():
        lines += [f"  {shown[name][0]:<14}{value} +- {error}" for value, error in entries]
    for name, (value, error) in solution.observables.items():
        with mp.workdps(evidence["digits"]):
            lines.append("  {:<14}{} +- {}".format(name.replace("_", " "), *decimal_strings(value, error)))
    for name, reason in evidence.get("observables_not_proved", {}).items():
        lines.append(f"  {name.replace('_', ' ')} is not proved: {reason}")
    lines.append(f"errors are {solution.error_kind}: {describe_error_bars(evidence)}")
    return "\n".join(lines)


@to_json.register(PreciseSolution)
def precise_json(solution: PreciseSolution) -> dict[str, Any]:
    """Return the object of `solve` with decimal strings for numbers, of the quantities known at this precision."""
    problem = solution.problem
    values, errors = (
        {
            name: _nest_entries(problem, [entry[part] for entry in entries], name)
            for name, entries in _decimal_overlaps(solution).items()
        }
        for part in (0, 1)
    )
    with mp.workdps(solution.evidence["digits"]):
        shown = {name: decimal_strings(*pair) for name, pair in solution.observables.items()}
    return {
        **problem_json(problem),
        "start": solution.start,
        "branch": solution.near.branch,
        "status": solution.status.value,
        "residual": solution.evidence["residuals"][0],
        "overlaps": values,
        **{name: value for name, (value, _) in shown.items()},
        "errors": {"overlaps": errors, **{name: error for name, (_, error) in shown.items()}},
        "error_kind": solution.error_kind,
        "evidence": solution.evidence,
    }


def _nest_entries(problem: Problem, column: list[str], name: str) -> list[Any]:
    """Return the entries of an overlap as nested lists, as in the object of `solve`."""
    return np.reshape(np.array(column, object), block_shape(problem, name)).tolist()


def _decimal_overlaps(solution: PreciseSolution) -> dict[str, list[tuple[str, str]]]:
    """Return value and error of every entry of the overlaps as decimal strings."""
    found = {}
    with mp.workdps(solution.evidence["digits"]):
        for name in OVERLAPS:
            pairs = zip(getattr(solution.overlaps, name).flat, getattr(solution.errors, name).flat, strict=True)
            found[name] = [decimal_strings(*pair) for pair in pairs]
    return found
