"""Branches and critical lines as text and JSON of the commands `curve`, `follow` and `threshold --along`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, describe_unknown_name
from ..base.numbers import align_text_columns, format_value_or_zero, format_value_with_error
from ..extensions.breaking.curve import BrokenCurve
from ..problems.columns import METRIC, observables_of_problem, table_column_name
from ..problems.overlaps import OVERLAPS
from ..problems.quantities import columns_matching_name
from ..problems.symbols import Symbols, symbols_of_table_columns
from ..solving.solution import Solution
from .ansatz import has_unstable_or_marginal_solution, stability_verdict_cell, warning_about_unstable_branch
from .contract import model_identity_json, parameters_json
from .layout import format_attribute_with_error

if TYPE_CHECKING:
    import numpy as np

    from ..branches.curve_results import Curve
    from ..extensions.breaking.solution import BrokenSolution
    from ..following.critical import CriticalLine
    from ..following.follow import Followed
    from ..problems.problem import Problem


def curve_table(
    curve: Curve | BrokenCurve | Followed,
    names: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    descending: bool = False,
) -> str:
    """Return a branch as text: where it ends, then one line per solution.

    With a step of replica symmetry breaking, the columns are overlaps of one minimiser and between states, the Parisi
    parameter y, and the change of the training loss.

    Args:
        curve: solutions along the branch.
        names: the user's own symbols by name of a quantity; None: the default symbols.
        columns: names of the columns to show, see `select_columns_by_user_names`; None: the default columns.
        descending: whether solutions are listed from the last to the first.
    """
    if not curve.solutions:
        return curve.end_text()
    if columns is not None:
        return _selected_columns_table(curve, names, columns, descending)
    problem = curve.solutions[0].problem
    shown = symbols_of_table_columns(problem, names)
    parameter, overlaps = shown[table_column_name(curve.parameter)][0], [shown[name][0] for name in OVERLAPS]
    prefix = "one step of breaking, " if isinstance(curve, BrokenCurve) else ""
    order: Sequence[Any] = curve.solutions[::-1] if descending else curve.solutions
    found = _broken_symmetry_columns(shown) if prefix else _replica_symmetric_columns(shown, order)
    rows = [[parameter, *(head for head, _ in found)]]
    for solution in order:
        rows.append(
            [f"{solution.problem.value_of_parameter(curve.parameter):.6g}", *(cell(solution) for _, cell in found)]
        )
    warned = [] if prefix else warning_about_unstable_branch(order)
    lines = [f"{problem.solver.name}, {prefix}{curve.end_text(parameter)}", *warned, *align_text_columns(rows)]
    if problem.contexts > 1 or problem.student_rank > 1 or problem.teacher_rank > 1:
        first = f"{problem.describe_token_and_cluster(0)}, first column".removeprefix(", ")
        lines.append(f"{', '.join(overlaps)} are those of {first}; --columns shows others, -o FILE.nc all")
    return "\n".join(lines)


Column = tuple[str, Callable[[Any], str]]
"""Header of a column, and the function that formats its cell of a solution."""


def _replica_symmetric_columns(shown: Symbols, solutions: Sequence[Solution]) -> list[Column]:
    thermal = solutions[0].problem.inverse_temperature is not None
    observed = observables_of_problem(solutions[0].problem)
    return [
        *[("verdict", stability_verdict_cell)] * has_unstable_or_marginal_solution(solutions),
        *_overlap_column_formatters(shown),
        *(
            ("free energy" if thermal and n == "training_loss" else n.replace("_", " "), _quantity_formatter(n))
            for n in observed
        ),
        ("status", lambda s: s.status.words),
    ]


def _broken_symmetry_columns(shown: Symbols) -> list[Column]:
    def format_cell_if_symmetry_is_broken(cell: Callable[[BrokenSolution], str]) -> Callable[[BrokenSolution], str]:
        return lambda s: "-" if s.state is None else cell(s)

    def format_overlap_between_states(name: str) -> Callable[[BrokenSolution], str]:
        part = attrgetter(name)
        return format_cell_if_symmetry_is_broken(
            lambda s: _format_first_array_entry(part(s.state), part(s.state_error_bars))
        )

    return [
        *_overlap_column_formatters(shown),
        (f"{shown['q'][0]} between", format_overlap_between_states("between.q")),
        ("Delta", format_overlap_between_states("distance")),
        ("y", format_cell_if_symmetry_is_broken(_quantity_formatter("parisi"))),
        ("training loss", _quantity_formatter("training_loss")),
        (
            "moved by",
            lambda s: (
                "no RS"
                if s.alone
                else format_cell_if_symmetry_is_broken(lambda s: format_value_with_error(*s.energy_moved))(s)
            ),
        ),
        ("test error", _quantity_formatter("test_error")),
        ("status", lambda s: s.status.words + ("" if s.state is not None else "; no breaking found")),
    ]


def _overlap_column_formatters(shown: Symbols) -> list[Column]:
    """Return a column for every overlap: its header, and the function that formats its first entry with error bar."""

    def format_overlap(name: str) -> Callable[[Any], str]:
        return lambda s: _format_first_array_entry(getattr(s.overlaps, name), getattr(s.error_bars, name))

    return [(shown[name][0], format_overlap(name)) for name in OVERLAPS]


def _quantity_formatter(name: str) -> Callable[[Any], str]:
    return lambda solution: format_attribute_with_error(solution, name)


def _format_first_array_entry(values: np.ndarray, widths: np.ndarray) -> str:
    """Return the first entry of an array with its error bar as text, or "0" if it vanishes."""
    return format_value_or_zero(float(values.flat[0]), float(widths.flat[0]))


def _selected_columns_table(
    curve: Curve | BrokenCurve | Followed, names: Mapping[str, str] | None, columns: Sequence[str], descending: bool
) -> str:
    """Return the chosen columns of a branch as text, one line per solution."""
    frame = curve.to_pandas(names=names)
    parameter = str(frame.columns[0])
    metric = curve.solutions[0].problem.metric_name
    shown = [parameter, *select_columns_by_user_names([str(name) for name in frame.columns[1:]], columns, metric)]
    rows = [shown]
    for _, point in frame[::-1].iterrows() if descending else frame.iterrows():
        cells = [f"{point[parameter]:.6g}"]
        for name in shown[1:]:
            value = point[name]
            if isinstance(value, str):
                cells.append(value)
            elif f"{name}_error" in frame.columns:
                cells.append(format_value_or_zero(float(value), float(point[f"{name}_error"])))
            else:
                cells.append(f"{float(value):.6g}")
        rows.append(cells)
    name = curve.solutions[0].problem.solver.name
    symmetric = [s for s in curve.solutions if isinstance(s, Solution)]
    return "\n".join(
        [
            f"{name}, {curve.end_text(parameter)}",
            *warning_about_unstable_branch(symmetric),
            *align_text_columns(rows),
        ]
    )


def check_branch_columns(
    problem: Problem, parameter: str, names: Mapping[str, str] | None, columns: Sequence[str] | None, *more: str
) -> None:
    """Check, before a branch is computed, that its DataFrame will have the given columns.

    Args:
        problem: the learning problem: a model with its parameters.
        parameter: name of the parameter along the branch.
        names: the user's own symbols by name of a quantity; None: the default symbols.
        columns: names of the columns that the user asks for; None: nothing is checked.
        more: further columns that the DataFrame will have, beyond those of a replica symmetric branch.

    Raises:
        InputError: there will be no such column; the message lists the columns.
    """
    if columns is None:
        return
    from .frames import dataframe_of_dataset, rename_columns_to_user_symbols
    from .tables import empty_branch_dataset

    frame = rename_columns_to_user_symbols(
        dataframe_of_dataset(empty_branch_dataset(problem, parameter)), problem, parameter, names
    )
    select_columns_by_user_names([*map(str, frame.columns[1:]), *more], columns, problem.metric_name)


def select_columns_by_user_names(known: Sequence[str], wanted: Sequence[str], metric: str = "") -> list[str]:
    """Return the columns of a DataFrame that match names given by the user (rules: `columns_matching_name`).

    Args:
        known: columns of the DataFrame, including error bars (NAME_error).
        wanted: names given by the user, as "q" for all entries of q.
        metric: name of the metric of `test_error`; empty if metrics have no names.

    Raises:
        InputError: no column matches a name; the message lists the columns.
    """
    values = [name for name in known if not (name.endswith("_error") and name.removesuffix("_error") in known)]
    found: list[str] = []
    for name in wanted:
        is_first = metric and name.removeprefix(METRIC) == metric
        matching = columns_matching_name("test_error" if is_first else name, values)
        if not matching:
            raise InputError(describe_unknown_name("column", name, values))
        found += [column for column in matching if column not in found]
    return found


def curve_json(
    problem: Problem, curve: Curve | BrokenCurve, status: str, file: Path | None, descending: bool = False
) -> dict[str, Any]:
    """Return a branch as the dict that `curve --json` prints; every point is a dict of `solve --json`.

    Args:
        problem: the learning problem: a model with its parameters.
        curve: solutions along the branch.
        status: word for how the command ended, as "done" or "interrupted".
        file: the file that the command has written (option -o), or None.
        descending: whether solutions are listed from the last to the first.
    """
    order = curve.solutions[::-1] if descending else curve.solutions
    ends = zip(("below", "above"), curve.ends, strict=True)
    return {
        **_branch_json(problem, curve, status),
        "ends": {side: {"found": end[0], "missing": end[1]} if end else None for side, end in ends},
        "points": [solution.to_json() for solution in order],
        "file": str(file) if file is not None and curve.solutions else None,
    }


def _branch_json(problem: Problem, branch: Curve | BrokenCurve | Followed, status: str) -> dict[str, Any]:
    return {
        **model_identity_json(problem),
        "parameter": branch.parameter,
        "parameters": parameters_json(problem, branch.parameter),
        "branch": branch.name,
        "status": status,
    }


def followed_branch_table(
    followed: Followed, names: Mapping[str, str] | None = None, columns: Sequence[str] | None = None
) -> str:
    """Return a branch followed by arclength as text: the table of `curve_table`, then its events (folds, crossings).

    Args:
        followed: branch followed by arclength.
        names: the user's own symbols by name of a quantity; None: the default symbols.
        columns: names of the columns to show; None: the default columns.
    """
    lines = [curve_table(followed, names, columns)]
    if followed.events:
        symbol = symbols_of_table_columns(followed.events[0].problem, names)[table_column_name(followed.parameter)][0]
        lines.append("events:")
    for event in followed.events:
        lines.append(f"  {event.describe(symbol)}")
        lines.append(f"    {event.rs_verdict}; {event.evidence['type']}, {event.evidence['toward']}")
    return "\n".join(lines)


def followed_branch_json(problem: Problem, followed: Followed, status: str, file: Path | None) -> dict[str, Any]:
    """Return a branch followed by arclength as the dict that `follow --json` prints.

    Points are in order of arclength; every event is a dict of `threshold --json`.

    Args:
        problem: the learning problem: a model with its parameters.
        followed: branch followed by arclength.
        status: word for how the command ended, as "done" or "interrupted".
        file: the file that the command has written (option -o), or None.
    """
    return {
        **_branch_json(problem, followed, status),
        "ending": followed.ending,
        "arclength": followed.arclength,
        "events": [event.to_json() for event in followed.events],
        "points": [solution.to_json() for solution in followed.solutions],
        "file": str(file) if file is not None else None,
    }


def critical_line_table(line: CriticalLine) -> str:
    """Return a critical line (an event along a second parameter) as text, one line per point."""
    rows = [[line.over, line.parameter]]
    for second, value, error in zip(line.over_values, line.values, line.errors, strict=True):
        rows.append([f"{second:.6g}", format_value_with_error(float(value), float(error))])
    return "\n".join([repr(line), *align_text_columns(rows)])


def critical_line_json(line: CriticalLine, status: str, file: Path | None) -> dict[str, Any]:
    """Return a critical line as the dict that `threshold --along --json` prints: its first event, and the line.

    Args:
        line: critical line: parameter values of an event along a second parameter.
        status: word for how the command ended, as "done" or "interrupted".
        file: the file that the command has written (option -o), or None.
    """
    points = zip(line.over_values.tolist(), line.values.tolist(), line.errors.tolist(), strict=True)
    return {
        **line.first.to_json(),
        "status": status,
        "line": {
            "over": line.over.rstrip("_"),
            "points": [{"over": second, "value": value, "error": error} for second, value, error in points],
            "special": list(line.special),
            "ending": line.ending,
        },
        "file": str(file) if file is not None else None,
    }
