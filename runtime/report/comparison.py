"""Simulation beside theory, for people and as frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base.numbers import aligned, with_error
from ..base.presenting import table, to_frame
from ..extensions.comparison.compare import LOSSES, Comparison, Measured, Scaling
from ..extensions.comparison.own_points import Beside

if TYPE_CHECKING:
    import pandas


_OF_MEASURED = ("theory", "half_width", "mean", "standard_error", "deviation")


def _cells(item: Measured) -> list[str]:
    """Theory, simulation or measurement, and by how many standard errors they differ."""
    deviation = f"{item.deviation:+.1f}" if np.isfinite(item.deviation) else "-"
    return [with_error(item.theory, item.half_width), with_error(item.mean, item.standard_error), deviation]


def _named(name: str) -> str:
    return name.replace("_", " ") if name in LOSSES else name


@table.register(Comparison)
def comparison_table(comparison: Comparison) -> str:
    """For a terminal: losses and first overlaps of both."""
    rows = [[comparison.curve.parameter, "runs", "observable", "theory", "simulation", "deviation"]]
    for value, reached, found in zip(comparison.values, comparison.reached, comparison.measurements(), strict=True):
        own = [f"{value:g}", f"{reached[0]} of {reached[1]}"]
        for number, (name, item) in enumerate(found.items()):
            rows.append([*(own if number == 0 else ["", ""]), _named(name), *_cells(item)])
    return "\n".join(aligned(rows))


@table.register(Beside)
def beside_table(beside: Beside) -> str:
    """A line a point: theory, measured, and by how many standard errors they differ."""
    rows = [[beside.over, f"{beside.observable.replace('_', ' ')}, theory", "measured", "deviation"]]
    rows += [[f"{value:g}", *_cells(item)] for value, item in zip(beside.values, beside.measured, strict=True)]
    return "\n".join(aligned(rows))


@to_frame.register(Beside)
def beside_frame(beside: Beside) -> pandas.DataFrame:
    """A row a point."""
    import pandas  # slow to load

    columns = {name: [getattr(one, name) for one in beside.measured] for name in _OF_MEASURED}
    return pandas.DataFrame({beside.over: beside.values, **columns})


@to_frame.register(Comparison)
def comparison_frame(comparison: Comparison) -> pandas.DataFrame:
    """A row a point and observable: value of the parameter, d, runs, theory, simulation, deviation, verdict."""
    import pandas  # slow to load

    points = zip(comparison.solutions, comparison.simulations, comparison.reached, strict=True)
    rows = []
    for value, found, (solution, simulation, reached) in zip(
        comparison.values, comparison.measurements(), points, strict=True
    ):
        for name, item in found.items():
            rows.append(
                {
                    comparison.curve.parameter: value,
                    "observable": name,
                    "d": simulation.plan.d,
                    **dict(zip(("runs", "of"), reached, strict=True)),
                    "theory": item.theory,
                    "half_width": item.half_width,
                    "simulation": item.mean,
                    "standard_error": item.standard_error,
                    "deviation": item.deviation,
                    "self_overlap_loss": solution.stability.self_overlap_loss if solution.stability else np.nan,
                }
            )
    return pandas.DataFrame(rows)


@table.register(Scaling)
def scaling_table(scaling: Scaling) -> str:
    """For a terminal."""
    rows = [["observable", "theory", *[f"d = {d}" for d in scaling.dims], "d -> infinity", "deviation", "law"]]
    every = scaling.measurements()
    for name, (limit, fit) in scaling.limits().items():
        theory, *found = _cells(limit)
        measured = [with_error(one[name].mean, one[name].standard_error) for one in every]
        rows.append([_named(name), theory, *measured, *found, "1/d" if fit.power == 1 else "1/sqrt(d)"])
    return "\n".join(aligned(rows))
