"""Branches and critical lines: as `curve`, `follow` and `threshold --along` print them, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, describe_unknown
from ..numbers import aligned, near_zero, with_error
from ..problems.columns import column_of
from ..problems.overlaps import OVERLAPS
from ..problems.quantities import METRIC, matching_columns
from ..problems.symbols import symbols_of
from ..solving.solution import Solution
from .ansatz import is_judged_other_than_stable, verdict_cell, warning_along
from .contract import identity_json, parameters_json

if TYPE_CHECKING:
    import numpy as np

    from ..branches.branch import Curve
    from ..breaking.curve import BrokenCurve
    from ..following.critical import CriticalLine
    from ..following.follow import Followed
    from ..problems.problem import Problem


def curve_table(
    curve: Curve | Followed,
    names: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    descending: bool = False,
) -> str:
    """One line a point, and where the branch ends; `names` as in `naming.symbols_of`.

    Args:
        columns: what is shown beside the parameter, as of `chosen_columns`.
        descending: the last point first.
    """
    if not curve.solutions:
        return curve.end_text()
    order = curve.solutions[::-1] if descending else curve.solutions
    first = curve.solutions[0]
    if columns is not None:
        return _chosen_table(curve, names, columns, descending)
    several = first.problem.contexts > 1 or first.problem.student_rank > 1 or first.problem.teacher_rank > 1
    shown = symbols_of(first.problem, names)
    overlaps = [shown[name][0] for name in OVERLAPS]
    loss = "training loss" if first.problem.inverse_temperature is None else "free energy"
    parameter = shown[column_of(curve.parameter)][0]
    judged = is_judged_other_than_stable(order)
    rows = [[parameter, *["verdict"] * judged, *overlaps, loss, "test error", "status"]]
    for solution in order:
        widths = solution.half_widths
        cells = [f"{solution.problem.value_of(curve.parameter):.6g}", *[verdict_cell(solution)] * judged]
        for name in OVERLAPS:
            cells.append(_first(getattr(solution.overlaps, name), getattr(widths, name)))
        cells.append(with_error(solution.training_loss, solution.training_loss_error))
        cells.append(with_error(solution.test_error, solution.test_error_error))
        cells.append(solution.status.words)
        rows.append(cells)
    lines = [f"{first.problem.solver.name}, {curve.end_text(parameter)}", *warning_along(order), *aligned(rows)]
    if several:
        lines.append(
            f"{', '.join(overlaps)} are those of token 1, first column; --columns shows others, -o FILE.nc all"
        )
    return "\n".join(lines)


def _chosen_table(
    curve: Curve | Followed | BrokenCurve, names: Mapping[str, str] | None, columns: Sequence[str], descending: bool
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
    from ..branches.branch import Curve
    from ..problems.symmetry import NO_SYMMETRY
    from ..saddle_point.iteration import FixedPoint, Status
    from ..saddle_point.starts import start_overlaps
    from ..solving.approach import APPROACH_RULE
    from ..solving.error_bars import failed_solution
    from ..solving.task import Task

    problem = problem if problem.sample_complexity is not None else problem.with_(alpha=1.0)
    at = start_overlaps(problem, next(iter(problem.solver.model.STARTS))).pack()
    point = FixedPoint(at, problem.sizes, 0.0, Status.MAX_ITERATIONS, 0, None)
    unknown = failed_solution(Task(problem, "", NO_SYMMETRY, 1e-3, 0, 1), point, APPROACH_RULE)
    curve = Curve(parameter, "", (unknown,), (None, None))
    known = [str(name) for name in curve.to_pandas(stability=False, names=names).columns[1:]]
    chosen_columns([*known, *more], columns, problem.metric_name)


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


def broken_curve_table(
    curve: BrokenCurve,
    names: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    descending: bool = False,
) -> str:
    """One line a point: overlaps of one minimiser and between states, y, and how far the training loss moved.

    `columns` and `descending` as of `curve_table`.
    """
    if not curve.solutions:
        return curve.end_text()
    if columns is not None:
        return _chosen_table(curve, names, columns, descending)
    order = curve.solutions[::-1] if descending else curve.solutions
    first = curve.solutions[0]
    several = first.problem.contexts > 1 or first.problem.student_rank > 1 or first.problem.teacher_rank > 1
    shown = symbols_of(first.problem, names)
    overlaps, parameter = [shown[name][0] for name in OVERLAPS], shown[column_of(curve.parameter)][0]
    heads = [f"{overlaps[0]} between", "Delta", "y", "training loss", "moved by", "test error", "status"]
    rows = [[parameter, *overlaps, *heads]]
    for solution in order:
        pairs = [(getattr(solution.overlaps, name), getattr(solution.half_widths, name)) for name in OVERLAPS]
        cells = [f"{solution.problem.value_of(curve.parameter):.6g}", *(_first(*pair) for pair in pairs)]
        state, widths = solution.state, solution.state_half_widths
        if state is None or widths is None:
            cells += ["-"] * 3
        else:
            cells += [_first(state.between.q, widths.between.q), _first(state.distance, widths.distance)]
            cells.append(with_error(solution.parisi, solution.parisi_error))
        cells.append(with_error(solution.training_loss, solution.training_loss_error))
        cells.append("no RS" if solution.alone else "-" if state is None else with_error(*solution.energy_moved))
        cells.append(with_error(solution.test_error, solution.test_error_error))
        rows.append([*cells, solution.status.words + ("" if state is not None else "; no breaking found")])
    name = first.problem.solver.name
    lines = [f"{name}, one step of breaking, {curve.end_text(parameter)}", *aligned(rows)]
    if several:
        lines.append(
            f"{', '.join(overlaps)} are those of token 1, first column; --columns shows others, -o FILE.nc all"
        )
    return "\n".join(lines)


def _first(values: np.ndarray, widths: np.ndarray) -> str:
    """The first entry with its half width; 0 where it vanishes."""
    value, width = float(values.flat[0]), float(widths.flat[0])
    return "0" if abs(value) < 1e-12 else with_error(value, width)


def curve_json(
    problem: Problem, curve: Curve | BrokenCurve, status: str, file: Path | None, descending: bool = False
) -> dict[str, Any]:
    """The object of `curve --json`: every point is one of `solve --json`, the last one first where `descending`."""
    order = curve.solutions[::-1] if descending else curve.solutions
    held = {key: value for key, value in parameters_json(problem).items() if key != curve.parameter}
    return {
        **identity_json(problem),
        "parameter": curve.parameter,
        "parameters": held,
        "branch": curve.name,
        "status": status,
        "ends": {
            side: {"found": end[0], "missing": end[1]} if end else None
            for side, end in zip(("below", "above"), curve.ends, strict=True)
        },
        "points": [solution.to_json() for solution in order],
        "file": str(file) if file is not None and curve.solutions else None,
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
    held = {key: value for key, value in parameters_json(problem).items() if key != followed.parameter}
    return {
        **identity_json(problem),
        "parameter": followed.parameter,
        "parameters": held,
        "branch": followed.name,
        "status": status,
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
    return {
        **line.first.to_json(),
        "status": status,
        "line": {
            "over": line.over.rstrip("_"),
            "points": [
                {"over": second, "value": value, "error": error}
                for second, value, error in zip(
                    line.over_values.tolist(), line.values.tolist(), line.errors.tolist(), strict=True
                )
            ],
            "special": list(line.special),
            "ending": line.ending,
        },
        "file": str(file) if file is not None else None,
    }
