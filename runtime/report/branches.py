"""Branches and critical lines as text and JSON of the commands `curve`, `follow` and `threshold --along`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, describe_unknown
from ..base.numbers import align_columns, format_near_zero, format_with_error
from ..extensions.breaking.curve import BrokenCurve
from ..problems.columns import METRIC, column_name, observed_quantities
from ..problems.overlaps import OVERLAPS
from ..problems.quantities import matching_columns
from ..problems.symbols import Symbols, symbols_of
from ..solving.solution import Solution
from .ansatz import branch_warning_lines, has_nonstable_verdict, verdict_cell
from .contract import identity_json, parameters_json
from .layout import format_attribute

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
    """Return a branch as text, a line a point, and where it ends.

    With a step of replica symmetry breaking: overlaps of one minimiser and between states, y, and the change of the
    training loss.

    Args:
        curve: the branch.
        names: symbols of the user's own, see `symbols.symbols_of`.
        columns: columns to show, see `select_columns`; None: the default ones.
        descending: whether the last point comes first.
    """
    if not curve.solutions:
        return curve.end_text()
    if columns is not None:
        return _selected_columns_table(curve, names, columns, descending)
    problem = curve.solutions[0].problem
    shown = symbols_of(problem, names)
    parameter, overlaps = shown[column_name(curve.parameter)][0], [shown[name][0] for name in OVERLAPS]
    prefix = "one step of breaking, " if isinstance(curve, BrokenCurve) else ""
    order: Sequence[Any] = curve.solutions[::-1] if descending else curve.solutions
    found = _broken_columns(shown) if prefix else _symmetric_columns(shown, order)
    rows = [[parameter, *(head for head, _ in found)]]
    for solution in order:
        rows.append([f"{solution.problem.value_of(curve.parameter):.6g}", *(cell(solution) for _, cell in found)])
    warned = [] if prefix else branch_warning_lines(order)
    lines = [f"{problem.solver.name}, {prefix}{curve.end_text(parameter)}", *warned, *align_columns(rows)]
    if problem.contexts > 1 or problem.student_rank > 1 or problem.teacher_rank > 1:
        lines.append(
            f"{', '.join(overlaps)} are those of token 1, first column; --columns shows others, -o FILE.nc all"
        )
    return "\n".join(lines)


Column = tuple[str, Callable[[Any], str]]
"""Header of a column, and the function that formats its cell of a solution."""


def _symmetric_columns(shown: Symbols, solutions: Sequence[Solution]) -> list[Column]:
    thermal = solutions[0].problem.inverse_temperature is not None
    observed = observed_quantities(solutions[0].problem)
    return [
        *[("verdict", verdict_cell)] * has_nonstable_verdict(solutions),
        *_overlap_columns(shown),
        *(
            ("free energy" if thermal and n == "training_loss" else n.replace("_", " "), _format_quantity(n))
            for n in observed
        ),
        ("status", lambda s: s.status.words),
    ]


def _broken_columns(shown: Symbols) -> list[Column]:
    def format_of_states(cell: Callable[[BrokenSolution], str]) -> Callable[[BrokenSolution], str]:
        return lambda s: "-" if s.state is None else cell(s)

    def format_state_overlap(name: str) -> Callable[[BrokenSolution], str]:
        part = attrgetter(name)
        return format_of_states(lambda s: _format_first_entry(part(s.state), part(s.state_error_bars)))

    return [
        *_overlap_columns(shown),
        (f"{shown['q'][0]} between", format_state_overlap("between.q")),
        ("Delta", format_state_overlap("distance")),
        ("y", format_of_states(_format_quantity("parisi"))),
        ("training loss", _format_quantity("training_loss")),
        (
            "moved by",
            lambda s: "no RS" if s.alone else format_of_states(lambda s: format_with_error(*s.energy_moved))(s),
        ),
        ("test error", _format_quantity("test_error")),
        ("status", lambda s: s.status.words + ("" if s.state is not None else "; no breaking found")),
    ]


def _overlap_columns(shown: Symbols) -> list[Column]:
    """Return columns with the first entry of every overlap."""

    def format_overlap(name: str) -> Callable[[Any], str]:
        return lambda s: _format_first_entry(getattr(s.overlaps, name), getattr(s.error_bars, name))

    return [(shown[name][0], format_overlap(name)) for name in OVERLAPS]


def _format_quantity(name: str) -> Callable[[Any], str]:
    return lambda solution: format_attribute(solution, name)


def _format_first_entry(values: np.ndarray, widths: np.ndarray) -> str:
    """Return the first entry of an array with its error bar; 0 if it vanishes."""
    return format_near_zero(float(values.flat[0]), float(widths.flat[0]))


def _selected_columns_table(
    curve: Curve | BrokenCurve | Followed, names: Mapping[str, str] | None, columns: Sequence[str], descending: bool
) -> str:
    """Return the chosen columns of the frame of a branch as text, a line a point."""
    frame = curve.to_pandas(names=names)
    parameter = str(frame.columns[0])
    metric = curve.solutions[0].problem.metric_name
    shown = [parameter, *select_columns([str(name) for name in frame.columns[1:]], columns, metric)]
    rows = [shown]
    for _, point in frame[::-1].iterrows() if descending else frame.iterrows():
        cells = [f"{point[parameter]:.6g}"]
        for name in shown[1:]:
            value = point[name]
            if isinstance(value, str):
                cells.append(value)
            elif f"{name}_error" in frame.columns:
                cells.append(format_near_zero(float(value), float(point[f"{name}_error"])))
            else:
                cells.append(f"{float(value):.6g}")
        rows.append(cells)
    name = curve.solutions[0].problem.solver.name
    symmetric = [s for s in curve.solutions if isinstance(s, Solution)]
    return "\n".join([f"{name}, {curve.end_text(parameter)}", *branch_warning_lines(symmetric), *align_columns(rows)])


def check_columns(
    problem: Problem, parameter: str, names: Mapping[str, str] | None, columns: Sequence[str] | None, *more: str
) -> None:
    """Raise InputError unless the frame of a branch will have these columns; called before the branch is followed.

    Args:
        problem: the problem.
        parameter: the parameter along the branch.
        names: symbols of the user's own, see `symbols.symbols_of`.
        columns: names of columns.
        more: columns in addition to those of a replica symmetric curve.

    Raises:
        InputError: see `select_columns`.
    """
    if columns is None:
        return
    from .frames import dataset_frame, rename_columns
    from .tables import empty_branch_table

    frame = rename_columns(dataset_frame(empty_branch_table(problem, parameter)), problem, parameter, names)
    select_columns([*map(str, frame.columns[1:]), *more], columns, problem.metric_name)


def select_columns(known: Sequence[str], wanted: Sequence[str], metric: str = "") -> list[str]:
    """Return the columns of a frame that names stand for, see `matching_columns`.

    Args:
        known: columns of the frame, with error bars (_error).
        wanted: names given by the user.
        metric: name of the metric of `test_error`; empty if metrics have no names.

    Raises:
        InputError: there is no such column; the message lists the known ones.
    """
    values = [name for name in known if not (name.endswith("_error") and name.removesuffix("_error") in known)]
    found: list[str] = []
    for name in wanted:
        is_first = metric and name.removeprefix(METRIC) == metric
        matching = matching_columns("test_error" if is_first else name, values)
        if not matching:
            raise InputError(describe_unknown("column", name, values))
        found += [column for column in matching if column not in found]
    return found


def curve_json(
    problem: Problem, curve: Curve | BrokenCurve, status: str, file: Path | None, descending: bool = False
) -> dict[str, Any]:
    """Return the object of `curve --json`, whose points are objects of `solve --json`.

    Args:
        problem: the problem.
        curve: the branch.
        status: how the command ended.
        file: the file written with -o; None: none.
        descending: whether the last point comes first.
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
        **identity_json(problem),
        "parameter": branch.parameter,
        "parameters": parameters_json(problem, branch.parameter),
        "branch": branch.name,
        "status": status,
    }


def followed_table(
    followed: Followed, names: Mapping[str, str] | None = None, columns: Sequence[str] | None = None
) -> str:
    """Return a branch followed by arclength as text: `curve_table`, then the events.

    Args:
        followed: the branch.
        names: symbols of the user's own, see `symbols.symbols_of`.
        columns: columns to show; None: the default ones.
    """
    lines = [curve_table(followed, names, columns)]
    if followed.events:
        symbol = symbols_of(followed.events[0].problem, names)[column_name(followed.parameter)][0]
        lines.append("events:")
    for event in followed.events:
        lines.append(f"  {event.describe(symbol)}")
        lines.append(f"    {event.rs_verdict}; {event.evidence['type']}, {event.evidence['toward']}")
    return "\n".join(lines)


def followed_json(problem: Problem, followed: Followed, status: str, file: Path | None) -> dict[str, Any]:
    """Return the object of `follow --json`: points in order of arclength, events as objects of `threshold --json`.

    Args:
        problem: the problem.
        followed: the branch.
        status: how the command ended.
        file: the file written with -o; None: none.
    """
    return {
        **_branch_json(problem, followed, status),
        "ending": followed.ending,
        "arclength": followed.arclength,
        "events": [event.to_json() for event in followed.events],
        "points": [solution.to_json() for solution in followed.solutions],
        "file": str(file) if file is not None else None,
    }


def line_table(line: CriticalLine) -> str:
    """Return a critical line as text, a line a point, and where it ends."""
    rows = [[line.over, line.parameter]]
    for second, value, error in zip(line.over_values, line.values, line.errors, strict=True):
        rows.append([f"{second:.6g}", format_with_error(float(value), float(error))])
    return "\n".join([repr(line), *align_columns(rows)])


def line_json(line: CriticalLine, status: str, file: Path | None) -> dict[str, Any]:
    """Return the object of `threshold --along --json`: that of the first event, with the line.

    Args:
        line: the critical line.
        status: how the command ended.
        file: the file written with -o; None: none.
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
