"""Table, figure and page of the self-overlap loss over (alpha, omega)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...files import write_whole
from ...numbers import with_error
from ...report.contract import dumps
from ...stability.assess import NEGLIGIBLE_LOSS
from ..figures.stability_map import plot_stability_map
from ..run import BRANCHES
from ..stability_map import OMEGAS, STABILITY, StabilityRun
from .blocks import Block, Heading, Paragraph, Picture, Table
from .writing import drawn, write_page, write_rows


def write(run: StabilityRun) -> None:
    """Table, figure and page."""
    found = run.results["map"]
    rows = table_rows(found)
    write_rows(run, "stability", rows)
    write_whole(run.out / "tables" / "stability.json", dumps(rows) + "\n")
    image = drawn(run, STABILITY, lambda path: plot_stability_map(rows, ends_of(found), path))
    write_page(run, content(run.results, rows), {STABILITY: image})


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


def content(results: Mapping[str, Any], rows: list[dict[str, Any]]) -> list[Block]:
    """The report: what the map says, the figure, a table by branch and omega."""
    winners = [row for row in rows if row["lowest"]]
    stable = [row for row in winners if row["self_overlap_loss"] + row["self_overlap_loss_error"] < NEGLIGIBLE_LOSS]
    worst = max(winners, key=lambda row: row["self_overlap_loss"])
    blocks: list[Block] = [
        Heading("Is the replica-symmetric phase diagram right?", 1),
        Paragraph(
            f"{results['model']}, saddleforge {results['version']}. The self-overlap loss is the share of q that an "
            "estimate loses to itself because the proximal map jumps, or because the replicon is above 1: the largest "
            "fixed point D* of the map of two copies, over q. Zero: the replica-symmetric solution is self-consistent."
        ),
        Paragraph(
            f"On the branch of lowest training loss it is below {NEGLIGIBLE_LOSS:g} at {len(stable)} of {len(winners)} "
            f"points; its largest value there is "
            f"{with_error(worst['self_overlap_loss'], worst['self_overlap_loss_error'])}, "
            f"on the {worst['branch']} branch at alpha = {worst['alpha']:g}, omega = {worst['omega']:g}."
        ),
        Picture(
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
    blocks.append(Table(head, lines))
    return blocks
