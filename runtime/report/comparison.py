"""Simulation compared with theory, as text and frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..base.numbers import align_text_columns, format_value_with_error
from ..base.presenting import table, to_frame
from ..extensions.comparison.compare import LOSSES, FiniteSizeScaling, SimulationComparison, TheoryWithMeasurement
from ..extensions.comparison.measurements import MeasurementComparison

if TYPE_CHECKING:
    import pandas


_MEASURED_COLUMNS = ("theory", "theory_error", "mean", "standard_error", "deviation")


def _comparison_cells(item: TheoryWithMeasurement) -> list[str]:
    """Return three cells of a table as text: theory, measured mean, and their difference in standard errors."""
    deviation = f"{item.deviation:+.1f}" if np.isfinite(item.deviation) else "-"
    return [
        format_value_with_error(item.theory, item.theory_error),
        format_value_with_error(item.mean, item.standard_error),
        deviation,
    ]


def _readable_observable_name(name: str) -> str:
    return name.replace("_", " ") if name in LOSSES else name


@table.register_renderer_of_class(SimulationComparison)
def comparison_table(comparison: SimulationComparison) -> str:
    """Return a comparison of theory and simulations as text: losses, and first entries of overlaps, at each point."""
    rows = [[comparison.curve.parameter, "runs", "observable", "theory", "simulation", "deviation"]]
    for value, reached, found in zip(comparison.values, comparison.reached, comparison.measurements(), strict=True):
        own = [f"{value:g}", f"{reached[0]} of {reached[1]}"]
        for number, (name, item) in enumerate(found.items()):
            rows.append(
                [*(own if number == 0 else ["", ""]), _readable_observable_name(name), *_comparison_cells(item)]
            )
    return "\n".join(align_text_columns(rows))


@table.register_renderer_of_class(MeasurementComparison)
def measurement_comparison_table(matched: MeasurementComparison) -> str:
    """Return a comparison of the user's measurements with theory as text, one line per measurement."""
    rows = [[matched.over, f"{matched.observable.replace('_', ' ')}, theory", "measured", "deviation"]]
    rows += [
        [f"{value:g}", *_comparison_cells(item)] for value, item in zip(matched.values, matched.measured, strict=True)
    ]
    return "\n".join(align_text_columns(rows))


@to_frame.register_renderer_of_class(MeasurementComparison)
def measurement_comparison_dataframe(matched: MeasurementComparison) -> pandas.DataFrame:
    """Return a comparison of the user's measurements with theory as a DataFrame, one row per measurement."""
    import pandas  # slow to load

    columns = {name: [getattr(one, name) for one in matched.measured] for name in _MEASURED_COLUMNS}
    return pandas.DataFrame({matched.over: matched.values, **columns})


@to_frame.register_renderer_of_class(SimulationComparison)
def comparison_dataframe(comparison: SimulationComparison) -> pandas.DataFrame:
    """Return a comparison of theory and simulations as a DataFrame, one row per point and observable."""
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
                    "theory_error": item.theory_error,
                    "simulation": item.mean,
                    "standard_error": item.standard_error,
                    "deviation": item.deviation,
                    "self_overlap_loss": solution.stability.self_overlap_loss if solution.stability else np.nan,
                }
            )
    return pandas.DataFrame(rows)


@table.register_renderer_of_class(FiniteSizeScaling)
def finite_size_scaling_table(scaling: FiniteSizeScaling) -> str:
    """Return simulated observables at several d, and their extrapolation to infinite d, as text."""
    rows = [["observable", "theory", *[f"d = {d}" for d in scaling.dims], "d -> infinity", "deviation", "law"]]
    every = scaling.measurements()
    for name, (limit, fit) in scaling.limits().items():
        theory, *found = _comparison_cells(limit)
        measured = [format_value_with_error(one[name].mean, one[name].standard_error) for one in every]
        rows.append(
            [_readable_observable_name(name), theory, *measured, *found, "1/d" if fit.power == 1 else "1/sqrt(d)"]
        )
    return "\n".join(align_text_columns(rows))
