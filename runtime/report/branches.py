"""Branches and critical lines: as `curve`, `follow` and `threshold --along` print them, for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, describe_unknown
from ..base.numbers import aligned, near_zero, with_error
from ..extensions.breaking.curve import BrokenCurve
from ..problems.columns import METRIC, column_of, observed_by
from ..problems.overlaps import OVERLAPS
from ..problems.quantities import matching_columns
from ..problems.symbols import Symbols, symbols_of
from ..solving.solution import Solution
from .ansatz import is_judged_other_than_stable, verdict_cell, warning_along
from .contract import identity_json, parameters_json
from .layout import text_of

if TYPE_CHECKING:
    import numpy as np

    from ..branches.along import Curve
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
    """One line a point, and where the branch ends; `names` as in `symbols.symbols_of`.

    With a step of breaking: overlaps of one minimiser and between states, y, and how far the training loss moved.

    Args:
        columns: what is shown beside the parameter, as of `chosen_columns`.
        descending: the last point first.
    """
    if not curve.solutions:
        return curve.end_text()
    if columns is not None:
        return _chosen_table(curve, names, columns, descending)
    problem = curve.solutions[0].problem
    shown = symbols_of(problem, names)
    parameter, overlaps = shown[column_of(curve.parameter)][0], [shown[name][0] for name in OVERLAPS]
    told = "one step of breaking, " if isinstance(curve, BrokenCurve) else ""
    order: Sequence[Any] = curve.solutions[::-1] if descending else curve.solutions
    found = _broken_columns(shown) if told else _symmetric_columns(shown, order)
    rows = [[parameter, *(head for head, _ in found)]]
    for solution in order:
        rows.append([f"{solution.problem.value_of(curve.parameter):.6g}", *(cell(solution) for _, cell in found)])
    warned = [] if told else warning_along(order)
    lines = [f"{problem.solver.name}, {told}{curve.end_text(parameter)}", *warned, *aligned(rows)]
    if problem.contexts > 1 or problem.student_rank > 1 or problem.teacher_rank > 1:
        lines.append(
            f"{', '.join(overlaps)} are those of token 1, first column; --columns shows others, -o FILE.nc all"
        )
    return "\n".join(lines)


Column = tuple[str, Callable[[Any], str]]
"""Head of a column, and what it shows of a solution."""


def _symmetric_columns(shown: Symbols, solutions: Sequence[Solution]) -> list[Column]:
    thermal = solutions[0].problem.inverse_temperature is not None
    observed = observed_by(solutions[0].problem)
    return [
        *[("verdict", verdict_cell)] * is_judged_other_than_stable(solutions),
        *_overlap_columns(shown),
        *(("free energy" if thermal and n == "training_loss" else n.replace("_", " "), _number(n)) for n in observed),
        ("status", lambda s: s.status.words),
    ]


def _broken_columns(shown: Symbols) -> list[Column]:
    def of_states(cell: Callable[[BrokenSolution], str]) -> Callable[[BrokenSolution], str]:
        return lambda s: "-" if s.state is None else cell(s)

    def of_both(name: str) -> Callable[[BrokenSolution], str]:
        part = attrgetter(name)
        return of_states(lambda s: _first(part(s.state), part(s.state_half_widths)))

    return [
        *_overlap_columns(shown),
        (f"{shown['q'][0]} between", of_both("between.q")),
        ("Delta", of_both("distance")),
        ("y", of_states(_number("parisi"))),
        ("training loss", _number("training_loss")),
        ("moved by", lambda s: "no RS" if s.alone else of_states(lambda s: with_error(*s.energy_moved))(s)),
        ("test error", _number("test_error")),
        ("status", lambda s: s.status.words + ("" if s.state is not None else "; no breaking found")),
    ]


def _overlap_columns(shown: Symbols) -> list[Column]:
    """The first entry of every overlap."""

    def first(name: str) -> Callable[[Any], str]:
        return lambda s: _first(getattr(s.overlaps, name), getattr(s.half_widths, name))

    return [(shown[name][0], first(name)) for name in OVERLAPS]


def _number(name: str) -> Callable[[Any], str]:
    return lambda solution: text_of(solution, name)


def _first(values: np.ndarray, widths: np.ndarray) -> str:
    """The first entry with its half width; 0 where it vanishes."""
    return near_zero(float(values.flat[0]), float(widths.flat[0]))


def _chosen_table(
    curve: Curve | BrokenCurve | Followed, names: Mapping[str, str] | None, columns: Sequence[str], descending: bool
) -> str:
    """One line a point of columns that were chosen of those of the frame."""
    frame = curve.to_pandas(names=names)
    parameter = str(frame.columns[0])
    metric = curve.solutions[0].problem.metric_name
    shown = [parameter, *chosen_columns([str(name) for name in frame.columns[1:]], columns, metric)]
    rows = [shown]
    for _, point in frame[::-1].iterrows() if descending else frame.iterrows():
        cells = [f"{point[parameter]:.6g}"]
        for name in shown[1:]:
            value = point[name]
            if isinstance(value, str):
                cells.append(value)
            elif f"{name}_error" in frame.columns:
                cells.append(near_zero(float(value), float(point[f"{name}_error"])))
            else:
                cells.append(f"{float(value):.6g}")
        rows.append(cells)
    name = curve.solutions[0].problem.solver.name
    symmetric = [s for s in curve.solutions if isinstance(s, Solution)]
    return "\n".join([f"{name}, {curve.end_text(parameter)}", *warning_along(symmetric), *aligned(rows)])


def check_columns(
    problem: Problem, parameter: str, names: Mapping[str, str] | None, columns: Sequence[str] | None, *more: str
) -> None:
    """That there will be columns of these names in the frame of a branch, before it is followed.

    Args:
        more: columns beside those of a replica symmetric curve.

    Raises:
        InputError: as `chosen_columns`.
    """
    if columns is None:
        return
    from .frames import dataset_frame, renamed
    from .tables import empty_branch

    frame = renamed(dataset_frame(empty_branch(problem, parameter)), problem, parameter, names)
    chosen_columns([*map(str, frame.columns[1:]), *more], columns, problem.metric_name)


def chosen_columns(known: Sequence[str], wanted: Sequence[str], metric: str = "") -> list[str]:
    """Columns of a frame by name, as `matching_columns` reads them.

    Args:
        known: of the frame, half widths (_error) among them.
        metric: the name of that of `test_error`, where metrics have names.

    Raises:
        InputError: there is no such column; the sentence lists those that there are.
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
    """The object of `curve --json`: every point is one of `solve --json`, the last one first where `descending`."""
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
    """As `curve_table`, then the events."""
    lines = [curve_table(followed, names, columns)]
    if followed.events:
        symbol = symbols_of(followed.events[0].problem, names)[column_of(followed.parameter)][0]
        lines.append("events:")
    for event in followed.events:
        lines.append(f"  {event.told(symbol)}")
        lines.append(f"    {event.rs_verdict}; {event.evidence['type']}, {event.evidence['toward']}")
    return "\n".join(lines)


def followed_json(problem: Problem, followed: Followed, status: str, file: Path | None) -> dict[str, Any]:
    """The object of `follow --json`: points in the order of the arclength, events as of `threshold --json`."""
    return {
        **_branch_json(problem, followed, status),
        "ending": followed.ending,
        "arclength": followed.arclength,
        "events": [event.to_json() for event in followed.events],
        "points": [solution.to_json() for solution in followed.solutions],
        "file": str(file) if file is not None else None,
    }


def line_table(line: CriticalLine) -> str:
    """One line a point, and how far it goes."""
    rows = [[line.over, line.parameter]]
    for second, value, error in zip(line.over_values, line.values, line.errors, strict=True):
        rows.append([f"{second:.6g}", with_error(float(value), float(error))])
    return "\n".join([repr(line), *aligned(rows)])


def line_json(line: CriticalLine, status: str, file: Path | None) -> dict[str, Any]:
    """The object of `threshold --along --json`: that of the first event, and the line."""
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
