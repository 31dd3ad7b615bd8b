"""Table, figure and page of one-pass descent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..dynamics import DIMENSIONS, DYNAMICS, IN_PLANE, RATE, SEEDS, SIMULATED, START, DynamicsRun
from ..figures.dynamics import plot_dynamics_figure
from .blocks import Block, Heading, Paragraph, Picture, Table
from .writing import drawn, write_page, write_rows


def write(run: DynamicsRun) -> None:
    """Table, figure and page."""
    rows = table_rows(run.results["basins"])
    write_rows(run, DYNAMICS, rows)
    image = drawn(run, DYNAMICS, lambda path: plot_dynamics_figure(run.results, path))
    write_page(run, content(run.results), {DYNAMICS: image})


def table_rows(basins: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a start of a plane: what it has reached."""
    return [
        {"rate": float(rate), "omega": float(omega), "theta": theta, "m": m, "reached": name}
        for (rate, omega), found in ((key.split(","), value) for key, value in basins.items())
        for theta, line in zip(found["theta"], found["reached"], strict=True)
        for m, name in zip(found["m"], line, strict=True)
        if name
    ]


def distances(found: Mapping[str, Any]) -> np.ndarray:
    """Simulated means less theory at the measured times, in standard errors, (times, q m theta)."""
    times, path = np.array(found["times"]), np.array(found["path"])
    theory = np.array([[np.interp(t, times, column) for column in path.T] for t in found["measured"]])
    errors = np.array(found["errors"])
    known = errors > 1e-12
    return np.where(known, (np.array(found["means"]) - theory) / np.where(known, errors, 1.0), 0.0)


def agreeing(plane: Mapping[str, Any]) -> tuple[int, int]:
    """How many passes at finite d end as the dynamics of infinite d say, and of how many."""
    reached = {
        (theta, m): name
        for theta, line in zip(plane["theta"], plane["reached"], strict=True)
        for m, name in zip(plane["m"], line, strict=True)
    }
    return sum(reached[theta, m] == name for theta, m, name in plane["simulated"]), len(plane["simulated"])


def content(results: Mapping[str, Any]) -> list[Block]:
    """The report: the trajectory and what simulations say of it, what planes reach, times of escape."""
    escape, off = results["escape"], distances(results["trajectory"])
    growths = ", ".join(f"{rate:.4g} along {words}" for rate, words in escape["growths"])
    medians = [
        [f"{d:g}", f"{np.median(row):.4g}" if (row := [t for t in times if t is not None]) else "-",
         ", ".join(f"{count} {name}" for name, count in reached.items())]
        for d, times, reached in zip(escape["d"], escape["times"], escape["reached"], strict=True)
    ]  # fmt: skip
    lines = []
    for name, found in results["basins"].items():
        rate, omega = name.split(",")
        counts = Counter(word for line in found["reached"] for word in line if word)
        said = ", ".join(f"{count} {word}" for word, count in counts.most_common())
        same, every = agreeing(found)
        lines.append([rate, omega.strip(), said, str(len(found["boundary"])), f"{same} of {every}"])
    return [
        Heading("Which solution does one-pass descent reach?", 1),
        Paragraph(
            f"{results['model']}, saddleforge {results['version']}. From {START} at rate {RATE:g}, {SEEDS} simulations "
            f"at d = {SIMULATED} are off theory by {np.abs(off).max():.1f} standard errors at the most."
        ),
        Paragraph(
            f"From no overlap what grows is {growths} per unit of time; the information exponent is "
            f"{escape['information_exponent']}. Draws of a random start at {len(DIMENSIONS)} dimensions are followed."
        ),
        Picture(
            DYNAMICS,
            "Above: overlaps in time and simulations; times of escape against d. Below: what starts of given overlaps "
            f"reach, with the boundary refined (black); diamonds: one pass at d = {IN_PLANE}.",
        ),
        Table(("rate", "omega", "starts that reach", "points of the boundary", "passes that end alike"), lines),
        Table(("d", "median time of escape", "reached"), medians),
    ]
