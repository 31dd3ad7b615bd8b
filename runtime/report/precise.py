"""Solutions beyond double precision as text and JSON, with numbers as decimal strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mpmath import mp

from ..base.presenting import table, to_json
from ..extensions.reference.improve import value_and_error_strings
from ..extensions.reference.solution import PreciseSolution
from ..problems.columns import overlap_array_shape
from ..problems.overlaps import OVERLAPS
from ..problems.problem import Problem
from ..problems.symbols import symbols_of_table_columns
from .contract import problem_json
from .thresholds import describe_how_errors_were_bounded


@table.register_renderer_of_class(PreciseSolution)
def precise_solution_table(solution: PreciseSolution, names: Mapping[str, str] | None = None) -> str:
    """Return a solution computed beyond double precision as text: overlaps and observables with error bars.

    Args:
        solution: solution of the saddle-point equations.
        names: the user's own symbols by name of a quantity; None: the default symbols.
    """
    evidence, shown = solution.evidence, symbols_of_table_columns(solution.problem, names)
    lines = [
        f"{solution.problem.solver.name}  {shown['alpha'][0]} = {solution.problem.alpha:g}",
        f"start {solution.start}, reached {solution.near.branch}; {solution.status.words}, "
        f"residual {evidence['residuals'][0]:.2g}, {evidence['digits']} digits carried",
    ]
    for name, entries in _overlaps_as_decimal_strings(solution).items():
        lines += [f"  {shown[name][0]:<14}{value} +- {error}" for value, error in entries]
    for name, (value, error) in solution.observables.items():
        with mp.workdps(evidence["digits"]):
            lines.append("  {:<14}{} +- {}".format(name.replace("_", " "), *value_and_error_strings(value, error)))
    for name, reason in evidence.get("observables_not_proved", {}).items():
        lines.append(f"  {name.replace('_', ' ')} is not proved: {reason}")
    lines.append(f"errors are {solution.error_kind}: {describe_how_errors_were_bounded(evidence)}")
    return "\n".join(lines)


@to_json.register_renderer_of_class(PreciseSolution)
def precise_solution_json(solution: PreciseSolution) -> dict[str, Any]:
    """Return a solution of more digits than a double as a dict for JSON, with numbers as decimal strings."""
    problem = solution.problem
    values, errors = (
        {
            name: _overlap_as_nested_lists(problem, [entry[part] for entry in entries], name)
            for name, entries in _overlaps_as_decimal_strings(solution).items()
        }
        for part in (0, 1)
    )
    with mp.workdps(solution.evidence["digits"]):
        shown = {name: value_and_error_strings(*pair) for name, pair in solution.observables.items()}
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


def _overlap_as_nested_lists(problem: Problem, column: list[str], name: str) -> list[Any]:
    """Return the entries of an overlap as nested lists, by token, cluster and columns."""
    return np.reshape(np.array(column, object), overlap_array_shape(problem, name)).tolist()


def _overlaps_as_decimal_strings(solution: PreciseSolution) -> dict[str, list[tuple[str, str]]]:
    """Return, by name of the overlap, value and error bar of every entry as decimal strings."""
    found = {}
    with mp.workdps(solution.evidence["digits"]):
        for name in OVERLAPS:
            pairs = zip(getattr(solution.overlaps, name).flat, getattr(solution.errors, name).flat, strict=True)
            found[name] = [value_and_error_strings(*pair) for pair in pairs]
    return found
