"""Is the replica-symmetric phase diagram right? The self-overlap loss over (alpha, omega) on both branches.

Each branch is followed down in alpha at every omega, and every solution judged (docs/theory.md (8.23)): where the
proximal map jumps, D* / q says how far replica symmetry is from self-consistent. What is finished is kept, a branch at
an omega being one step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from . import plots, report
from .branches import curve
from .files import write_whole
from .numbers import with_error
from .reproduce import BRANCHES, BUDGET, SHOWN_OMEGA, STABILITY, Plan, Run, unpacked
from .self_overlap import ABSOLUTE, RELATIVE
from .shown.contract import dumps
from .solution import Solution
from .stability import NEGLIGIBLE_LOSS

ALPHAS = tuple(round(0.1 + 0.12 * n, 10) for n in range(21))  # 0.1 to 2.5
OMEGAS = tuple(round(0.05 * n, 10) for n in range(11))  # 0 to 0.5
ACCURACY = 5e-3  # of the overlaps
LINES = 9  # log2 of the lines a replicate, for the jump set


class StabilityRun(Run):
    """Both branches over the plane, then figure, table and report."""

    page = "stability.html"

    def __init__(self, out: Path) -> None:
        super().__init__(out, (STABILITY,))
        self.results["map"] = {name: {} for name in BRANCHES}

    def _plan(self) -> Plan:
        plan: Plan = [
            (f"judging the {name} branch at omega = {omega:g}", 24, partial(self._row, name, omega))
            for omega in sorted(OMEGAS, key=lambda w: (w > SHOWN_OMEGA, abs(w - SHOWN_OMEGA)))
            for name in BRANCHES
        ]
        plan.append(("writing table, figure and the report", BUDGET["report"], self._write))
        return plan

    def _row(self, name: str, omega: float) -> None:
        rows = self.results["map"][name]
        nearest = min(rows, key=lambda text: abs(float(text) - omega), default=None)
        beside = rows[nearest] if nearest else {"points": []}

        def work() -> dict[str, Any]:
            at = self.base.with_(omega=omega)
            seeds = {p["alpha"]: unpacked(self.base, p["overlaps"]) for p in beside["points"]}
            found = curve(at, start=name, over="alpha", values=ALPHAS, accuracy=ACCURACY, refine_end=2, seeds=seeds)
            return {
                "points": [point_of(s) for s in found.solutions if s.problem.alpha in ALPHAS],
                "ends": [list(end) if end else None for end in found.ends],
            }

        settings = {"alphas": ALPHAS, "accuracy": ACCURACY, "lines": LINES, "asked": [ABSOLUTE, RELATIVE]}
        step = f"stability_{name}_{omega:g}"
        after = [f"stability_{name}_{nearest}"] if nearest else []
        rows[f"{omega:g}"] = self.steps.run(step, {"omega": omega, **settings}, work, after=after)

    def _complete(self) -> bool:
        return all(
            point["self_overlap_loss_error"] is not None
            and _met(point["self_overlap_loss"], point["self_overlap_loss_error"])
            for rows in self.results["map"].values()
            for row in rows.values()
            for point in row["points"]
        )

    def _write(self) -> None:
        rows = table_rows(self.results["map"])
        frame = pandas.DataFrame(rows)
        write_whole(self.out / "tables" / "stability.csv", frame.to_csv(index=False, lineterminator="\n"))
        write_whole(self.out / "tables" / "stability.json", dumps(rows) + "\n")
        path = self.out / "figures" / f"{STABILITY}.png"
        plots.plot_stability_map(rows, ends_of(self.results["map"]), path)
        blocks = content(self.results, rows)
        write_whole(self.out / "stability.md", report.markdown_of(blocks))
        write_whole(self.out / self.page, report.html_of(blocks, {STABILITY: path.read_bytes()}))
        write_whole(self.out / "stability_map.json", dumps(self.results) + "\n")


def _met(loss: float, error: float) -> bool:
    """Whether a self-overlap loss is known as well as asked."""
    return error <= max(ABSOLUTE, RELATIVE * loss)


def point_of(solution: Solution) -> dict[str, Any]:
    """What the map keeps of a solution."""
    found = solution.judged(spectrum=False, log2_lines=LINES)
    if found is not None and not _met(found.self_overlap_loss, found.self_overlap_loss_error):
        found = solution.judged(spectrum=False, log2_lines=LINES + 2)
    assert found is not None
    return {
        "alpha": solution.problem.alpha,
        "training_loss": solution.training_loss,
        "training_loss_error": solution.training_loss_error,
        "status": solution.status.value,
        "self_overlap_loss": found.self_overlap_loss,
        "self_overlap_loss_error": found.self_overlap_loss_error,
        "replicon": found.replicon,
        "replicon_error": found.replicon_error,
        "bistable_share": found.bistable_share,
        "jump_weight": found.jump_weight,
        "verdict": found.verdict,
        "overlaps": solution.overlaps.pack(),
    }


def table_rows(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One row a branch, omega and alpha; `lowest`: of the branches found there it has the lowest training loss."""
    rows = [
        {"branch": name, "omega": float(omega), **{key: value for key, value in point.items() if key != "overlaps"}}
        for name, by_omega in found.items()
        for omega, row in by_omega.items()
        for point in row["points"]
    ]
    best: dict[tuple[float, float], float] = {}
    for row in rows:
        place = (row["omega"], row["alpha"])
        best[place] = min(best.get(place, np.inf), row["training_loss"])
    for row in rows:
        row["lowest"] = row["training_loss"] == best[row["omega"], row["alpha"]]
    return sorted(rows, key=lambda row: (row["branch"], row["omega"], row["alpha"]))


def ends_of(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, list[list[tuple[float, float]]]]:
    """Branch -> the (omega, alpha) at which it ends below, and those above, halfway between found and missing."""
    return {
        name: [
            [(float(omega), float(np.mean(row["ends"][side]))) for omega, row in by_omega.items() if row["ends"][side]]
            for side in (0, 1)
        ]
        for name, by_omega in found.items()
    }


def content(results: Mapping[str, Any], rows: list[dict[str, Any]]) -> list[report.Block]:
    """The report: what the map says, the figure, a table by branch and omega."""
    winners = [row for row in rows if row["lowest"]]
    stable = [row for row in winners if row["self_overlap_loss"] + row["self_overlap_loss_error"] < NEGLIGIBLE_LOSS]
    worst = max(winners, key=lambda row: row["self_overlap_loss"])
    blocks: list[report.Block] = [
        report.Heading("Is the replica-symmetric phase diagram right?", 1),
        report.Paragraph(
            f"{results['model']}, saddleforge {results['version']}. The self-overlap loss is the share of q that an "
            "estimate loses to itself because the proximal map jumps, or because the replicon is above 1: the largest "
            "fixed point D* of the map of two copies, over q. Zero: the replica-symmetric solution is self-consistent."
        ),
        report.Paragraph(
            f"On the branch of lowest training loss it is below {NEGLIGIBLE_LOSS:g} at {len(stable)} of {len(winners)} "
            f"points; its largest value there is "
            f"{with_error(worst['self_overlap_loss'], worst['self_overlap_loss_error'])}, "
            f"on the {worst['branch']} branch at alpha = {worst['alpha']:g}, omega = {worst['omega']:g}."
        ),
        report.Picture(
            STABILITY,
            "Colour: self-overlap loss; light grey: negligible. Black: where a branch ends, and on the right where the "
            "branches change places. Hatched: no solution found.",
        ),
    ]
    lines = []
    for name in BRANCHES:
        for omega in OMEGAS:
            here = [row for row in rows if row["branch"] == name and row["omega"] == omega]
            if not here:
                lines.append([name, f"{omega:g}", "-", "-", "-"])
                continue
            losses = [row["self_overlap_loss"] for row in here]
            calm = [row["alpha"] for row in here if row["self_overlap_loss"] < NEGLIGIBLE_LOSS]
            lines.append(
                [
                    name,
                    f"{omega:g}",
                    f"{here[0]['alpha']:g} to {here[-1]['alpha']:g}",
                    f"{max(losses):.2g}",
                    f"{min(calm):g}" if calm else "nowhere",
                ]
            )
    head = ("branch", "omega", "found at alpha", "largest loss", "negligible from alpha")
    blocks.append(report.Table(head, lines))
    return blocks


__all__ = ["StabilityRun", "content", "ends_of", "point_of", "table_rows"]
