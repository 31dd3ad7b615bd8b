"""Table, figure and page of one-pass descent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...report.plots.drawing import BLUE, GREEN, GREY, RED
from ...report.plots.simulation import draw_simulation_means
from ..dynamics import DIMENSIONS, DYNAMICS, IN_PLANE, RATE, SEEDS, SIMULATED, START, DynamicsRun
from .content import Block, Picture, Table, describe_counts, write_page, write_table
from .drawing import branch_colour, legend_entry, styled_figure

_DRAWN = (("q", GREEN, "^"), ("m", RED, "o"), ("θ", BLUE, "s"))


def write_report(run: DynamicsRun) -> None:
    """Write the table, the figure and the report of a run on one-pass descent."""
    planes = {name: map(float, name.split(",")) for name in run.results["basins"]}
    rows = [
        {"rate": rate, "omega": omega, "theta": theta, "m": m, "reached": name}
        for plane, (rate, omega) in planes.items()
        for (theta, m), name in initial_overlaps_with_final_states(run.results["basins"][plane])
    ]
    write_table(run, DYNAMICS, rows)
    write_page(run, build_page(run.results), {DYNAMICS: lambda path: plot_dynamics_figure(run.results, path)})


def initial_overlaps_with_final_states(plane: Mapping[str, Any]) -> Iterator[tuple[tuple[float, float], str]]:
    """Yield the initial (theta, m) that weights can have, each with the name of the state that descent reaches."""
    for theta, line in zip(plane["theta"], plane["reached"], strict=True):
        yield from (((theta, m), name) for m, name in zip(plane["m"], line, strict=True) if name)


def deviations_from_theory(found: Mapping[str, Any]) -> np.ndarray:
    """Return simulated overlaps minus theory in units of the standard error, shape (times, 3) for q, m and theta."""
    path, errors = np.array(found["path"]), np.array(found["errors"])
    theory = np.column_stack([np.interp(found["measured"], found["times"], column) for column in path.T])
    known = errors > 1e-12
    return np.where(known, (np.array(found["means"]) - theory) / np.where(known, errors, 1.0), 0.0)


def count_runs_agreeing_with_theory(plane: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of simulated runs that reach the state predicted by theory, and the number of all runs."""
    reached = dict(initial_overlaps_with_final_states(plane))
    return sum(reached[theta, m] == name for theta, m, name in plane["simulated"]), len(plane["simulated"])


def plot_dynamics_figure(results: Mapping[str, Any], path: Path) -> None:
    """Draw the figure of one-pass descent.

    Above: overlaps in time with simulations, and escape times against d. Below: basins of attraction in the plane of
    initial (theta, m), for each learning rate and omega.

    Args:
        results: results of `reproduce.dynamics.DynamicsRun`.
        path: PNG file to write.
    """
    basins = {tuple(map(float, name.split(","))): found for name, found in results["basins"].items()}
    rates, omegas = (sorted({place[n] for place in basins}) for n in (0, 1))
    with styled_figure(path, 3.6 * max(len(rates), 2) + 1.0, 4.0 + 3.0 * len(omegas)) as figure:
        parts: Any = figure.subfigures(2, 1, height_ratios=(4.0, 3.0 * len(omegas)))
        above, below = parts
        left, right = above.subplots(1, 2)
        _draw_trajectory(left, results["trajectory"])
        _draw_escape_times(right, results["escape"])
        panels = below.subplots(len(omegas), len(rates), sharex=True, sharey=True, squeeze=False)
        for row, omega in zip(panels, omegas, strict=True):
            for axes, rate in zip(row, rates, strict=True):
                _draw_basins(axes, basins[rate, omega])
                axes.set_title(f"rate {rate:g}, ω = {omega:g}")
            row[0].set_ylabel("initial m")
        for axes in panels[-1]:
            axes.set_xlabel("initial θ")
        names = {name for found in basins.values() for _, name in initial_overlaps_with_final_states(found)}
        names |= {name for found in basins.values() for *_, name in found["simulated"]}
        handles = [legend_entry(name, branch_colour(name), marker="o", linestyle="") for name in sorted(names)]
        handles.append(legend_entry("one pass at finite d", marker="D", markerfacecolor="none", linestyle=""))
        below.legend(handles=handles, fontsize=8, loc="outside upper right", ncols=len(handles))


def _draw_trajectory(axes: Any, found: Mapping[str, Any]) -> None:
    path, means, errors = (np.array(found[name]) for name in ("path", "means", "errors"))
    for n, (label, colour, marker) in enumerate(_DRAWN):
        axes.plot(found["times"], path[:, n], color=colour, label=label)
        draw_simulation_means(axes, found["measured"], means[:, n], errors[:, n], colour, marker)
    axes.set(xlabel="time (steps / d)", ylabel="overlap", title="base case, rate 4; points: d = 500")
    axes.legend()


def _finite_escape_times(found: Mapping[str, Any]) -> list[np.ndarray]:
    """Return, for every dimension d, the times at which runs left zero overlap, without the runs that never did."""
    return [np.array([t for t in row if t is not None], float) for row in found["times"]]


def _median_escape_time(times: np.ndarray) -> float:
    return float(np.median(times)) if len(times) else np.nan


def _draw_escape_times(axes: Any, found: Mapping[str, Any]) -> None:
    d, times = np.array(found["d"], float), _finite_escape_times(found)
    for x, row in zip(d, times, strict=True):
        axes.plot(np.full(len(row), x), row, ".", color=GREY, markersize=4)
    medians = [_median_escape_time(row) for row in times]
    axes.plot(d, medians, "o-", color=BLUE, label="median")
    for (rate, words), style in zip(found["growths"][:2], ("--", ":"), strict=False):
        line = medians[-1] + (np.log(d) - np.log(d[-1])) / (2 * rate)
        axes.plot(d, line, style, linewidth=1.2, color=GREY, label=words)
    axes.legend(fontsize=8, loc="upper left")
    axes.set_xscale("log")
    axes.set(xlabel="d", ylabel="time of escape", title="from a random start; broken: log(d) / (2 growth)")


def _draw_basins(axes: Any, found: Mapping[str, Any]) -> None:
    for place, name in initial_overlaps_with_final_states(found):
        axes.plot(*place, "o", color=branch_colour(name), markersize=5)
    for *place, name in found["simulated"]:
        axes.plot(*place, "D", color=branch_colour(name), markerfacecolor="none", markersize=11)
    if found["boundary"]:
        x, y, error = np.transpose(found["boundary"])
        axes.errorbar(x, y, yerr=error, fmt="k_", markersize=9)


def build_page(results: Mapping[str, Any]) -> list[Block]:
    """Return the report on one-pass descent as a list of paragraphs, tables and pictures."""
    escape, off = results["escape"], deviations_from_theory(results["trajectory"])
    growths = ", ".join(f"{rate:.4g} along {words}" for rate, words in escape["growths"])
    medians = [
        [f"{d:g}", f"{_median_escape_time(times):.4g}" if len(times) else None, describe_counts(reached)]
        for d, times, reached in zip(escape["d"], _finite_escape_times(escape), escape["reached"], strict=True)
    ]
    planes = []
    for name, found in results["basins"].items():
        counts = dict(Counter(word for _, word in initial_overlaps_with_final_states(found)).most_common())
        same, every = count_runs_agreeing_with_theory(found)
        planes.append([*name.split(", "), describe_counts(counts), len(found["boundary"]), f"{same} of {every}"])
    return [
        "# Which solution does one-pass descent reach?",
        f"{results['model']}, saddleforge {results['version']}. From {START} at rate {RATE:g}, {SEEDS} simulations "
        f"at d = {SIMULATED} are off theory by {np.abs(off).max():.1f} standard errors at the most.",
        f"From no overlap what grows is {growths} per unit of time; the information exponent is "
        f"{escape['information_exponent']}. Draws of a random start at {len(DIMENSIONS)} dimensions are followed.",
        Picture(
            DYNAMICS,
            "Above: overlaps in time and simulations; times of escape against d. Below: what starts of given overlaps "
            f"reach, with the boundary refined (black); diamonds: one pass at d = {IN_PLANE}.",
        ),
        Table("rate | omega | starts that reach | points of the boundary | passes that end alike", planes),
        Table("d | median time of escape | reached", medians),
    ]
