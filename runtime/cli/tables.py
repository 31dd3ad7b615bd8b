"""Curves, thresholds and stabilities as the command line prints them, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..contract import parameters_json
from ..naming import OVERLAPS, column_of, symbols_of
from ..text import VANISHING, aligned, not_in_the_limit, with_error

if TYPE_CHECKING:
    from ..branches import Curve
    from ..critical import CriticalLine
    from ..following import Followed
    from ..landscape import Landscape
    from ..problem import Problem
    from ..solution import Solution
    from ..thresholds import Threshold
    from ..tuning import TunedCurve


def curve_table(curve: Curve | Followed, names: Mapping[str, str] | None = None) -> str:
    """One line a point, and where the branch ends; `names` as in `naming.symbols_of`."""
    if not curve.solutions:
        return curve.end_text()
    first = curve.solutions[0]
    several = first.problem.contexts > 1 or first.problem.student_rank > 1 or first.problem.teacher_rank > 1
    shown = symbols_of(first.problem, names)
    overlaps = [shown[name][0] for name in OVERLAPS]
    loss = "training loss" if first.problem.inverse_temperature is None else "free energy"
    parameter = shown[column_of(curve.parameter)][0]
    rows = [[parameter, *overlaps, loss, "test error", "status"]]
    for solution in curve.solutions:
        widths = solution.half_widths
        cells = [f"{solution.problem.value_of(curve.parameter):.6g}"]
        for name in OVERLAPS:
            value = float(getattr(solution.overlaps, name).flat[0])
            width = float(getattr(widths, name).flat[0])
            cells.append("0" if abs(value) < 1e-12 else with_error(value, width))
        cells.append(with_error(solution.training_loss, solution.training_loss_error))
        cells.append(with_error(solution.test_error, solution.test_error_error))
        cells.append(solution.status.words)
        rows.append(cells)
    lines = [f"{first.problem.solver.name}, {curve.end_text(parameter)}", *aligned(rows)]
    if several:
        lines.append(f"{', '.join(overlaps)} are those of token 1, first column; -o FILE.nc and --json hold all")
    return "\n".join(lines)


def curve_json(problem: Problem, curve: Curve, status: str, file: Path | None) -> dict[str, Any]:
    """The object of `curve --json`: every point is one of `solve --json`."""
    held = {key: value for key, value in parameters_json(problem).items() if key != curve.parameter}
    return {
        "model": problem.solver.name,
        "version": __version__,
        "digest": problem.solver.digest,
        "parameter": curve.parameter,
        "parameters": held,
        "branch": curve.name,
        "status": status,
        "ends": {
            side: {"found": end[0], "missing": end[1]} if end else None
            for side, end in zip(("below", "above"), curve.ends, strict=True)
        },
        "points": [solution.to_json() for solution in curve.solutions],
        "file": str(file) if file is not None and curve.solutions else None,
    }


def followed_table(followed: Followed, names: Mapping[str, str] | None = None) -> str:
    """As `curve_table`, then the events."""
    lines = [curve_table(followed, names)]
    if followed.events:
        symbol = symbols_of(followed.events[0].problem, names)[column_of(followed.parameter)][0]
        lines.append("events:")
    for event in followed.events:
        lines.append(f"  {event.told(symbol)}")
        lines.append(f"    {event.evidence['type']}, {event.evidence['toward']}; {event.rs_verdict}")
    return "\n".join(lines)


def followed_json(problem: Problem, followed: Followed, status: str, file: Path | None) -> dict[str, Any]:
    """The object of `follow --json`: points in the order of the arclength, events as of `threshold --json`."""
    held = {key: value for key, value in parameters_json(problem).items() if key != followed.parameter}
    return {
        "model": problem.solver.name,
        "version": __version__,
        "digest": problem.solver.digest,
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


def stability_table(solution: Solution) -> str:
    """The stability of a solution, each number with what it means."""
    from ..stability import NEGLIGIBLE_LOSS

    found = solution.stability
    assert found is not None
    problem = solution.problem
    values = found.eigenvalues
    rows = [
        ["longitudinal", f"{values[0].real:.4g}", "largest real part; below 1: stable within replica symmetry"],
        ["", f"{np.max(np.abs(values)):.4g}", "spectral radius; above 1: the iteration needs damping"],
        ["damping", f"{found.damping:.2g}", "largest weight on the new iterate under which plain iteration is stable"],
        [
            "replicon",
            with_error(found.replicon, found.replicon_error),
            "from derivatives; below 1: stable but for jumps",
        ],
        ["bistable share", f"{found.bistable_share:.2g}", "probability of a second minimum of the proximal objective"],
        ["jump weight", with_error(found.jump_weight, found.jump_weight_error), "share of V^ that comes from jumps"],
    ]
    jumps, own = found.jumps, found.self_overlap
    if jumps is not None and jumps.any:
        normal, shared = jumps.direction()
        shown = ", ".join(f"{value:.2f}" for value in normal.ravel())
        rows += [
            ["jump surface", with_error(*jumps.area()), "its Gaussian measure in the fields"],
            ["", with_error(*jumps.mean_squared_jump()), "mean of |X_1 - X_2|^2 over it"],
            ["", f"({shown})", f"its leading normal, token by token, with a share {shared:.2f} of all normals"],
        ]
    if own is not None:
        rows += [
            ["finite map", f"{own.slope:.3g}", "a in D' = a D + b D^(1/2), the replicon"],
            ["", with_error(own.root, own.root_error), "b, above 0 where the proximal map jumps; D relative to q"],
        ]
    rows += _landscape_rows(solution.landscape)
    loss = with_error(found.self_overlap_loss, found.self_overlap_loss_error)
    rows.append(["self-overlap loss", loss, f"share of q that is lost; below {NEGLIGIBLE_LOSS:g} negligible"])
    rows.append(["", "", ""])
    rows += [
        [
            "eigenvalue",
            f"{v.real:.4g}" if abs(v.imag) < 1e-12 else f"{v.real:.4g}{v.imag:+.4g}i",
            mode,
        ]
        for v, mode in zip(values, found.modes, strict=True)
        if abs(v) > VANISHING
    ]
    vanishing = int(np.sum(np.abs(values) <= VANISHING))
    if vanishing:
        rows.append([f"and {vanishing} more", "0", "tokens or columns apart: the prior adds them up"])
    return "\n".join(
        [
            f"{problem.solver.name}, {solution.branch} branch at alpha = {problem.alpha:g}: {found.verdict}",
            *(f"  {line}".rstrip() for line in aligned(rows)),
        ]
    )


def _landscape_rows(found: Landscape) -> list[list[str]]:
    """Which minima are proved global, and how far apart the two lowest are."""
    several = sum(share for n, share in found.minima.items() if n > 1)
    if found.unproved is None or found.shortfall is None:
        rows = [["unproved minima", "all", "the loss may be negative: nothing bounds where its minima lie"]]
    else:
        rows = [
            ["unproved minima", f"{found.unproved:.2g}", f"share not proved global, of {found.points} random points"],
            ["", f"{found.shortfall:.2g}", "estimate of what lower minima could do to the free entropy, at most"],
        ]
    if several:
        low, middle, high = found.gaps
        most = max(found.minima)
        rows.append(
            ["second minima", f"{several:.2g}", f"share of points with more than one minimum (up to {most} seen)"]
        )
        rows.append(["", f"{middle:.2g}", f"median gap between the two lowest; 10 % and 90 %: {low:.2g}, {high:.2g}"])
    return rows


def threshold_table(threshold: Threshold) -> str:
    """A threshold, what its half width is made of, and the stability there."""
    parts = [("integration", "integration"), ("residual", "the residual"), ("root", "the root"), ("step", "the step")]
    parts.append(("second_rule", "the second rule"))
    known = [(threshold.evidence.get(f"half_width_{name}"), words) for name, words in parts]
    shown = " + ".join(f"{value:.2g} from {words}" for value, words in known if value is not None)
    if threshold.evidence.get("proof"):
        from ..reference.solution import told  # which loads mpmath

        lines = [repr(threshold), f"  {told(threshold.evidence)}"]
    else:
        limit = not_in_the_limit(threshold.evidence)
        lines = [repr(threshold), f"  half width {threshold.error:.2g} = {shown}{limit}"]
    second = threshold.evidence.get("second_rule")
    if second:
        from ..text import with_error

        rule = second["integrator"]
        lines.append(
            f"  {rule['rule']}, {rule['points']} points: {threshold.parameter} = "
            f"{with_error(second['value'], second['gap'])} ({second['verdict']})"
        )
    lines += [f"  {part}" for part in threshold.rs_verdict.split(" | ") if part]
    return "\n".join(lines)


def tuned_table(tuned: TunedCurve) -> str:
    """One line a value of the second parameter, then what the full scans had to say."""
    if not tuned.optima:
        return "no optimum was found"
    first = tuned.optima[0]
    name = column_of(first.parameter)
    rows = [[column_of(tuned.over), f"best {name}", first.minimise.replace("_", " "), "where", "status"]]
    for value, optimum in zip(tuned.values, tuned.optima, strict=True):
        best = with_error(optimum.value, optimum.error) if optimum.kind == "minimum" else f"{optimum.value:.6g}"
        shown = with_error(optimum.observed, optimum.observed_error)
        rows.append(
            [f"{value:.6g}", best, shown, optimum.kind.replace("_", " "), optimum.status.replace("_", " ")],
        )
    return "\n".join([f"{first.problem.solver.name}, {first.branch} branch", *aligned(rows), *tuned.notes])


def tuned_json(tuned: TunedCurve, file: Path | None) -> dict[str, Any]:
    """The object of `tune --along --json`: every point is one of `tune --json`."""
    return {
        "version": __version__,
        "along": tuned.over.rstrip("_"),
        "status": (
            "interrupted"
            if tuned.interrupted
            else "done"
            if tuned.success
            else "time_limit"
            if tuned.out_of_time
            else "not_converged"
        ),
        "missing": list(tuned.missing),
        "notes": list(tuned.notes),
        "points": [optimum.to_json() for optimum in tuned.optima],
        "file": str(file) if file is not None else None,
    }
