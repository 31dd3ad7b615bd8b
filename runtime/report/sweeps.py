"""Sweeps as text and JSON: results along every line, and where branches are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from ..base.presenting import table, to_json
from ..extensions.sweeping.line import UNFINISHED, Record, is_solution_record
from ..extensions.sweeping.plan import BACK, SweepLine
from ..extensions.sweeping.sweep import Sweep
from ..stability.assess import MARGINAL, STABLE, UNDECIDED, UNSTABLE
from .ansatz import HEADING
from .contract import attributes_by_name, model_identity_json, to_plain_json
from .layout import ReportOptions

VERDICT_ORDER = (UNSTABLE, MARGINAL, UNDECIDED, STABLE)


@table.register_renderer_of_class(Sweep)
def sweep_table(sweep: Sweep) -> str:
    """Return a sweep as text: how far the branch was found on each line, and the number of points by status."""
    plan = sweep.plan
    axes = (
        " x ".join(f"{len(axis.values)} {axis.parameter_name_for_users}" for axis in plan.axes)
        or f"{len(plan.rows)} rows"
    )
    ways = ", both ways" if plan.both_ways else ""
    text = [f"{plan.problem.solver.name}  {axes}  from {', '.join(plan.starts)}{ways}: {plan.point_count} points"]
    text += lines_with_stability_counts(record for _, _, record in sweep.points())
    most = ReportOptions.current().max_lines
    for line, known in islice(sweep.lines(), most) if plan.axes else ():
        text.append(f"  {_sweep_line_label(sweep, line)}: {_describe_sweep_line(line, known)}")
    if plan.axes and len(plan.lines) > most:
        text.append(f"  and {len(plan.lines) - most} lines more")
    reasons = Counter(r["reason"] for _, _, r in sweep.points() if r["status"] in sweep.weak and r.get("reason"))
    text.append(f"  {describe_point_counts_by_status(sweep)}")
    text += [f"  {count} x {reason}" for reason, count in reasons.most_common(3) if reason != "it was not computed"]
    return "\n".join(text)


def lines_with_stability_counts(records: Iterable[Record]) -> list[str]:
    """Return a line of text that counts stable, marginal and unstable points; an empty list if none has a verdict."""
    words = Counter(record["replica_symmetry"] for record in records if record.get("replica_symmetry"))
    if not words:
        return []
    line = f"  replica symmetry: {', '.join(f'{words[word]} x {word}' for word in VERDICT_ORDER if words[word])}"
    if words[UNSTABLE]:
        line += f"; numbers are {HEADING}, `solve --rsb 1` says at a point how far off they are"
    return [line]


def describe_point_counts_by_status(sweep: Sweep) -> str:
    """Return the number of points of a sweep by status as text, as "12 converged, 1 not found"."""
    return ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in sweep.statuses.items())


def _sweep_line_label(sweep: Sweep, line: SweepLine) -> str:
    plan = sweep.plan
    others = [
        f"{a.parameter_name_for_users} = {a.values[i]:g}" for a, i in zip(plan.axes[1:], line.place[2:], strict=True)
    ]
    back = ["back"] if line.direction == BACK else []
    return ", ".join([line.start, *others, *back])


def _describe_sweep_line(line: SweepLine, known: Mapping[int, Record]) -> str:
    """Describe in words at which points along a line of a sweep the branch was found, and where it was lost."""
    name = next(iter(line.points[0]))
    found = [n for n in sorted(known) if is_solution_record(known[n])]
    missing = len(line.points) - len(known)
    description = f"found at {len(found)} of {len(line.points)} points"
    if found:
        first, last = (float(line.points[n][name]) for n in (found[0], found[-1]))
        description += f", {name.rstrip('_')} = {first:.4g} to {last:.4g}"
    lost = interval_where_branch_ends(known)
    if lost is not None:
        description += f"; lost between {lost[0]:.4g} and {lost[1]:.4g}"
    return description + (f"; {missing} {UNFINISHED}" if missing else "")


def interval_where_branch_ends(known: Mapping[int, Record]) -> list[float] | None:
    """Return the last parameter value with a branch and the first without it, along a line of a sweep, or None."""
    return next((record["lost"] for record in known.values() if "lost" in record), None)


@to_json.register_renderer_of_class(Sweep)
def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as the dict that `sweep --json` prints: its plan, points by status, and every line."""
    plan, said = sweep.plan, sweep.plan.settings_that_identify_sweep
    lines = [
        {
            "start": line.start,
            "direction": line.direction,
            "fixed": {
                a.parameter_name_for_users: a.values[i] for a, i in zip(plan.axes[1:], line.place[2:], strict=True)
            },
            "points": len(line.points),
            "finished": len(known),
            "found": sum(map(is_solution_record, known.values())),
            "lost": interval_where_branch_ends(known),
        }
        for line, known in sweep.lines()
    ]
    return {
        **model_identity_json(plan.problem),
        "parameters": to_plain_json(said["parameters"]),
        "varied": to_plain_json(said["varied"]),
        "starts": list(plan.starts),
        **attributes_by_name(plan, "both_ways", "ask"),
        "points": plan.point_count,
        "statuses": sweep.statuses,
        "lines": lines if plan.axes else [],
    }
