"""Common parts of figures: colours, lines with error bars, equal entries of overlaps, legends, files.

Figures are built without pyplot, so that no global state is left behind. Colours are those of Okabe and Ito, which
colour-blind readers can distinguish. Lines are solid where the solution is stable (every longitudinal eigenvalue and
the replicon below 1), dash-dotted where it is marginal (the replicon or the largest eigenvalue is 1 within its error),
dashed where it is unstable or was not judged; shading marks where the proximal map jumps, so that replica symmetry
fails in the strict sense (docs/theory.md section 8).

m is drawn as |m| where the sign of W is free, since W and -W then are the same state (attention), and with its sign
where the loss fixes it (classification of a mixture); m and theta are left out where they vanish by construction,
without means and encodings or without a teacher in the loss. An axis of losses begins at 0 unless something on it is
negative.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any
from urllib.parse import quote

import numpy as np
import xarray
from matplotlib import rc_context, rcParams
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ...base.errors import InputError
from ...base.files import check_file_writable, write_atomically
from ...base.options import AlgorithmOptions
from ...base.progress import print_message
from ...integration.rule import NEGLIGIBLE_JUMPS
from ...problems.columns import table_column_name
from ...stability.assess import MARGINAL, STABLE, UNSTABLE, stability_verdict

BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#555555"
BRANCH_COLOURS = {
    "semantic": BLUE, "informed": BLUE, "positional": RED, "mean": RED, "mixed": GREEN, "uninformed": GREY,
}  # fmt: skip
OVERLAP_STYLES = {"m": (RED, "o", "|m|"), "theta": (BLUE, "s", "θ"), "q": (GREEN, "^", "q")}
LOSS_STYLES = {"training_loss": (ORANGE, "o"), "test_error": (PINK, "s")}
SYMBOLS = {"alpha": "α", "omega": "ω", "sigma": "σ", "lambda": "λ"}
_PLAIN_TEXT: Any = {"text.usetex": False}  # LaTeX would misread labels: they hold Unicode symbols, _ and %
STYLE: Any = {
    **_PLAIN_TEXT,
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
}


@dataclass(frozen=True)
class FigureOptions(AlgorithmOptions):
    """Options of all figures.

    Attributes:
        dots_per_inch: resolution of PNG files; more is sharper, but the files are larger.
        mean_points: number of times at which means of one-pass runs are drawn.
        max_curves: largest number of curves in a panel of a sweep, one for each value of the second parameter.
    """

    dots_per_inch: int = 130
    mean_points: int = 11
    max_curves: int = 12


_STYLES: dict[str, Any] = {UNSTABLE: "--", MARGINAL: "-.", STABLE: "-"}  # the worst first
_LABELS = {
    STABLE: "stable",
    MARGINAL: "marginal: replicon or eigenvalue 1 within its error",
    UNSTABLE: "unstable, or not judged",
}
_REPLICON_ROUNDING = 1e-9  # of a replicon


@contextmanager
def new_figure(width: float, height: float, path: str | Path | None) -> Iterator[Figure]:
    """Create a Matplotlib figure in the style of the package, and write it at the end of the block if a path is given.

    Args:
        width: width in inches.
        height: height in inches.
        path: PNG, PDF or SVG file to write; None: the figure is only returned.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
    if path is not None:
        save_figure(figure, path)


def create_overlap_panels(figure: Figure, below: int, ratio: float = 3.4) -> tuple[Axes, list[Axes]]:
    """Create axes for overlaps and smaller axes below, with a common horizontal axis; return the first and the others.

    Args:
        figure: Matplotlib figure.
        below: number of smaller axes.
        ratio: relative height of the first axes; that of the smaller ones is 1.6.
    """
    upper, *lower = figure.subplots(1 + below, 1, sharex=True, height_ratios=(ratio, *[1.6] * below))
    upper.set_ylabel("overlap")
    return upper, lower


def parameter_axis_label(parameter: str) -> str:
    """Return the label of an axis along a parameter: its symbol and, if known, its meaning."""
    name = parameter.rstrip("_")
    meaning = {"alpha": "samples per dimension", "omega": "weight of the positional part of the target"}.get(name)
    return SYMBOLS.get(name, name) + (f"  ({meaning})" if meaning else "")


def save_figure(figure: Figure, path: str | Path, source: str | None = None) -> None:
    """Write a figure as PNG, PDF or SVG, by the suffix of the file; equal figures give equal bytes.

    Args:
        figure: Matplotlib figure.
        path: file to write; it is never partially written.
        source: path of the table that the figure shows, stored in the file for `is_picture_of_table`.

    Raises:
        InputError: the file cannot be written, or its suffix is not .png, .pdf or .svg.
    """
    path = check_file_writable(Path(path))
    kind = figure_file_format(path)
    mark = {_DESCRIPTIONS[kind]: _metadata_text_of_table(source)} if source is not None else {}
    stream = io.BytesIO()
    if rcParams["text.usetex"]:
        print_message(
            "matplotlib is set to use LaTeX (text.usetex); the figure is drawn without it: its labels are plain text"
        )
    with rc_context({**_PLAIN_TEXT, "svg.hashsalt": "saddleforge"}):
        figure.savefig(
            stream, format=kind, dpi=FigureOptions.current().dots_per_inch, metadata={_CHANGING[kind]: None, **mark}
        )
    write_atomically(path, stream.getvalue())


def figure_file_format(path: Path) -> str:
    """Return the file format of a figure, "png", "pdf" or "svg", by the suffix of its path.

    Raises:
        InputError: the path has another suffix, or none.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in _DESCRIPTIONS:
        raise InputError(f"cannot write {path}: a name that ends in .png, .pdf or .svg is expected")
    return kind


def is_picture_of_table(path: Path, source: str) -> bool:
    """Return whether a file is a figure that `save_figure` wrote with this table as its source.

    Args:
        path: path of the figure.
        source: path of the table.
    """
    try:
        return _metadata_text_of_table(source).encode() in path.read_bytes()
    except OSError:
        return False


def _metadata_text_of_table(source: str) -> str:
    return f"drawn by saddleforge from [{quote(os.fsencode(source))}]"


# Metadata of each format: the field that names the table, and the one that differs between runs.
_DESCRIPTIONS = {"png": "Description", "pdf": "Subject", "svg": "Description"}
_CHANGING = {"png": "Software", "pdf": "CreationDate", "svg": "Date"}


def start_axis_at_zero(axes: Axes) -> None:
    """Let the vertical axis begin at 0, unless something drawn on it is negative."""
    low, high = axes.dataLim.intervaly
    if low >= 0 and 0 < high < np.inf:
        axes.set_ylim(0, 1.07 * high)  # room for markers, also if all values are nearly equal


def stability_verdicts_of_points(dataset: xarray.Dataset) -> np.ndarray:
    """Return STABLE, MARGINAL or UNSTABLE for every solution of a table, by replicon and longitudinal eigenvalues.

    Solutions with one step of symmetry breaking are judged by their own stability (type I: clustering of states).
    Solutions without a verdict count as unstable, unless the table has no verdicts at all.
    """
    replicon, eigenvalue = dataset["replicon"].values, dataset["longitudinal_eigenvalue"].values
    if not np.isfinite(replicon).any():
        found = np.full(replicon.shape, STABLE, object)
    else:
        error = dataset["replicon_error"].values
        if "replica_symmetry" not in dataset:  # of a release whose error bars left out the errors of the overlaps
            error = np.maximum(error, _REPLICON_ROUNDING)
        found = _stability_verdicts_of_eigenvalues(replicon, error)
        along = _stability_verdicts_of_eigenvalues(eigenvalue, np.zeros(eigenvalue.shape))
        if "longitudinal" in dataset:
            along = np.where(np.isfinite(eigenvalue), dataset["longitudinal"].values, UNSTABLE)
        found = np.where((found == UNSTABLE) | (along == STABLE), found, along)
    if "rsb" in dataset:
        broken = np.where(dataset["clustering"].values < 1, STABLE, UNSTABLE)
        found = np.where(dataset["rsb"].values == 1, broken, found)
    return found


def _stability_verdicts_of_eigenvalues(values: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return, for every eigenvalue of a stability matrix, STABLE (below 1), MARGINAL or UNSTABLE (above 1, or NaN)."""
    pairs = zip(values.ravel(), np.nan_to_num(errors).ravel(), strict=True)
    words = [stability_verdict(value, error) if np.isfinite(value) else UNSTABLE for value, error in pairs]
    return np.array(words, object).reshape(values.shape)


def intervals_of_proximal_jumps(dataset: xarray.Dataset) -> list[tuple[float, float]]:
    """Return the disjoint intervals of the parameter of a branch in which its proximal map jumps.

    The parameter need not be monotonic along the branch.
    """
    values = parameter_values_along_table(dataset)
    if not len(values):
        return []
    edges = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2, values[-1:]])
    intervals: list[tuple[float, float]] = []
    jumping = dataset["bistable_fraction"].values > NEGLIGIBLE_JUMPS
    spans = np.sort(np.column_stack([edges[:-1], edges[1:]])[jumping], axis=1)
    for left, right in spans[np.argsort(spans[:, 0])]:
        if intervals and left <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], float(right)))
        else:
            intervals.append((float(left), float(right)))
    return intervals


def parameter_values_along_table(dataset: xarray.Dataset) -> np.ndarray:
    """Return the values of the parameter along a table, shape (N points,)."""
    return dataset[table_column_name(dataset.attrs["parameter"])].values


@dataclass(frozen=True)
class PlottedOverlapEntry:
    """A curve of a figure: an entry of an overlap along a branch, drawn once for all entries that are equal to it.

    Attributes:
        name: name of the overlap, as "q".
        number: number of this curve among those of the overlap, from 0.
        values: values of the entry, shape (N points,); |m| if the sign of W is free.
        errors: error bars of the values, shape (N points,).
        indices: indices (token, cluster, column, ...) of all equal entries, from 0.
        label: text of the legend, which names the equal entries.
    """

    name: str
    number: int
    values: np.ndarray
    errors: np.ndarray
    indices: tuple[tuple[int, ...], ...]
    label: str

    @property
    def colour(self) -> str:
        """The colour of this curve: a shade of the colour of the overlap."""
        return overlap_entry_colour(OVERLAP_STYLES[self.name][0], self.number)

    @property
    def marker(self) -> str:
        """The Matplotlib marker of this curve, the same for all entries of the overlap."""
        return OVERLAP_STYLES[self.name][1]


def overlap_entries_to_draw(dataset: xarray.Dataset) -> list[PlottedOverlapEntry]:
    """Return the curves to draw for the overlaps m, theta and q: one for every group of equal entries."""
    return [entry for name in OVERLAP_STYLES for entry in distinct_overlap_entries(dataset, name)]


def distinct_overlap_entries(dataset: xarray.Dataset, name: str) -> list[PlottedOverlapEntry]:
    """Return the curves to draw for an overlap along a branch: one for each group of entries that are equal everywhere.

    Entries are equal if they agree within their error bars, between tokens and clusters or within a matrix. Of the
    symmetric q only the upper triangle is used.

    Args:
        dataset: table of a branch, from `tables.curve_dataset`.
        name: name of the overlap, as "q".
    """
    block, errors = overlap_values_to_draw(dataset, name), dataset[f"{name}_error"].values
    tolerance = 1e-6 * np.nanmax(np.abs(block), initial=0.0)

    def are_equal_within_errors(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """Return whether two entries of the overlap are equal within their error bars along the whole branch.

        Args:
            one: index (token, cluster, column, ...) of the first entry.
            other: index of the second entry.
        """
        apart = np.abs(overlap_entry_along_curve(block, one) - overlap_entry_along_curve(block, other))
        known = np.nan_to_num(overlap_entry_along_curve(errors, one)) + np.nan_to_num(
            overlap_entry_along_curve(errors, other)
        )
        return bool(np.all((apart <= tolerance + known) | np.isnan(apart)))

    groups: list[list[tuple[int, ...]]] = []
    for entry in independent_overlap_entries(block.shape[3:], name):
        own: list[list[tuple[int, ...]]] = []
        for context in token_cluster_pairs_with_overlap(dataset, name):
            index = (*context, *entry)
            group = next((one for one in own if are_equal_within_errors(one[0], index)), None)
            own.append([index]) if group is None else group.append(index)
        for new in own:
            same = [index[:2] for index in new]
            group = next(
                (
                    g
                    for g in groups
                    if token_cluster_pairs_of_entries(g) == same and are_equal_within_errors(g[0], new[0])
                ),
                None,
            )
            groups.append(new) if group is None else group.extend(new)
    found = []
    for number, group in enumerate(groups):
        label = overlap_entry_label(overlap_symbol(dataset, name), group, block.shape[1:])
        found.append(
            PlottedOverlapEntry(
                name,
                number,
                overlap_entry_along_curve(block, group[0]),
                overlap_entry_along_curve(errors, group[0]),
                tuple(group),
                label,
            )
        )
    return found


def overlap_entry_along_curve(block: np.ndarray, index: tuple[int, ...]) -> np.ndarray:
    """Return an entry of an overlap at all points of a table, shape (N points,).

    Args:
        block: values of the overlap, shape (N points, tokens, clusters, columns, ...).
        index: index (token, cluster, column, ...) of the entry.
    """
    return block.reshape(len(block), -1)[:, np.ravel_multi_index(index, block.shape[1:])]


def overlap_values_to_draw(dataset: xarray.Dataset, name: str) -> np.ndarray:
    """Return the values of an overlap as they are drawn: absolute values |m| if the sign of W is free.

    Args:
        dataset: table of a branch, from `tables.curve_dataset`.
        name: name of the overlap, as "q".
    """
    values = dataset[name].values
    return np.abs(values) if overlap_symbol(dataset, name).startswith("|") else values


def overlap_symbol(dataset: xarray.Dataset, name: str) -> str:
    """Return the symbol of an overlap: m, |m| if the sign of W is free (or unknown), θ or q.

    Args:
        dataset: table of a branch, from `tables.curve_dataset`.
        name: name of the overlap, as "q".
    """
    return "m" if name == "m" and dataset["m"].attrs.get("sign") == "fixed" else OVERLAP_STYLES[name][2]


def independent_overlap_entries(shape: Sequence[int], name: str) -> list[tuple[int, ...]]:
    """Return the indices of the independent entries of an overlap matrix: of q, which is symmetric, the upper triangle.

    Args:
        shape: shape of the overlap matrix of one token and cluster.
        name: name of the overlap, as "q".
    """
    return [index for index in np.ndindex(*shape) if name != "q" or index[0] <= index[1]]


def token_cluster_pairs_with_overlap(dataset: xarray.Dataset, name: str) -> list[tuple[int, ...]]:
    """Return the (token, cluster) pairs in which an overlap need not vanish.

    Args:
        dataset: table of a branch, from `tables.curve_dataset`.
        name: name of the overlap, as "q".
    """
    shape = dataset[name].sizes["token"], dataset[name].sizes["cluster"]
    known = np.atleast_1d(dataset[name].attrs.get("present", np.ones(shape, int)))
    return [index for index, there in np.ndenumerate(known.reshape(shape)) if there]


def token_cluster_pairs_of_entries(group: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the distinct (token, cluster) pairs among the indices of entries of an overlap."""
    return list(dict.fromkeys(index[:2] for index in group))


def overlap_entry_label(symbol: str, group: Sequence[tuple[int, ...]], shape: Sequence[int]) -> str:
    """Return the legend text of equal entries of an overlap, as 'q', 'θ, token 2' or 'q₁₁ = q₂₂, tokens 1-3'.

    Args:
        symbol: symbol of the overlap.
        group: indices (token, cluster, column, ...) of the entries; every matrix entry occurs for the same pairs.
        shape: shape of the overlap, (tokens, clusters, columns, ...).
    """
    entries = list(dict.fromkeys(index[2:] for index in group))
    parts = [_overlap_entries_text(symbol, entries, shape[2:])]
    contexts, several = token_cluster_pairs_of_entries(group), any(size > 1 for size in shape[2:])
    if shape[0] * shape[1] == 1 or (len(contexts) == shape[0] * shape[1] and not several):
        return parts[0]
    tokens, clusters = (sorted({context[axis] for context in contexts}) for axis in (0, 1))
    if len(contexts) < len(tokens) * len(clusters):
        named = [f"token {token + 1} cluster {cluster + 1}" for token, cluster in contexts]
        return ", ".join([*parts, " and ".join(named)])
    for axis, numbers, size in (("token", tokens, shape[0]), ("cluster", clusters, shape[1])):
        if size > 1:
            parts.append(f"{axis}{'s' if len(numbers) > 1 else ''} {_format_number_range(numbers)}")
    return ", ".join(parts)


def _overlap_entries_text(symbol: str, entries: Sequence[tuple[int, ...]], shape: Sequence[int]) -> str:
    if all(size == 1 for size in shape):
        return symbol
    size = shape[0]
    if len(shape) == 2 and size == shape[1] > 2:
        diagonal = [entry for entry in entries if entry[0] == entry[1]]
        others = size * (size - 1) // (2 if symbol == "q" else 1)
        if len(entries) == len(diagonal) == size:
            return f"{symbol}_aa for all a"
        if not diagonal and len(entries) == others:
            return f"{symbol}_ab for all a ≠ b"
    bare, bar = (symbol[1:-1], "|") if symbol.startswith("|") else (symbol, "")
    return " = ".join(f"{bar}{bare}{_subscript_digits(entry)}{bar}" for entry in entries)


def _subscript_digits(entry: Sequence[int]) -> str:
    numbers = [str(i + 1) for i in entry]
    return ("" if all(len(n) == 1 for n in numbers) else ",").join(numbers).translate(_SUBSCRIPTS)


_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def _format_number_range(numbers: Sequence[int]) -> str:
    """Return indices from 0 as text that counts from 1: "1-3" if they are consecutive, else "1, 3"."""
    first, last = numbers[0] + 1, numbers[-1] + 1
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{first}-{last}"
    return ", ".join(str(n + 1) for n in numbers)


def draw_error_band(axes: Axes, x: Any, y: np.ndarray, error: np.ndarray, colour: Any, **style: Any) -> None:
    """Shade the band of error bars around a curve.

    Args:
        axes: Matplotlib axes to draw on.
        x: values of the parameter, shape (N points,).
        y: values of the quantity, shape (N points,).
        error: error bars of the quantity, shape (N points,).
        colour: colour of the band.
        **style: further options of Matplotlib's `fill_between`.
    """
    known = np.nan_to_num(error)
    axes.fill_between(x, y - known, y + known, color=colour, linewidth=0, **{"alpha": 0.25, **style})


def draw_overlaps_between_states(axes: Axes, dataset: xarray.Dataset) -> None:
    """Draw overlaps q_0 between states of broken replica symmetry as thin dotted lines, for all tokens and clusters.

    Args:
        axes: Matplotlib axes to draw on.
        dataset: table of a branch with broken symmetry.
    """
    x, between = parameter_values_along_table(dataset), dataset["q_between"].values
    _, _, _, *columns = between.shape
    for number, (a, b) in enumerate((a, b) for a, b in np.ndindex(*columns) if a <= b):
        for context in np.ndindex(*between.shape[1:3]):
            label = None if number or any(context) else "q between states"
            y = between[:, context[0], context[1], a, b]
            axes.plot(x, y, color=GREEN, linewidth=0.9, linestyle=":", marker="v", markersize=3, label=label)


def overlap_entry_colour(colour: str, number: int) -> str:
    """Return the colour of a curve of an overlap: a shade of the colour of the overlap.

    Args:
        colour: colour of the overlap.
        number: number of the curve among those of the overlap, from 0.
    """
    toward, share = (("black", 0.0), ("black", 0.45), ("white", 0.45), ("black", 0.75), ("white", 0.65))[number % 5]
    red, green, blue = ((1 - share) * a + share * b for a, b in zip(to_rgb(colour), to_rgb(toward), strict=True))
    return to_hex((red, green, blue))


def draw_line_with_verdicts(
    axes: Axes,
    x: np.ndarray,
    y: np.ndarray,
    error: np.ndarray,
    verdicts: np.ndarray,
    colour: str,
    marker: str,
    label: str | None,
    *,
    hollow: bool = False,
) -> None:
    """Draw points with error bars, joined by lines whose style shows the stability (the worse of both ends).

    Args:
        axes: Matplotlib axes to draw on.
        x: values of the parameter, shape (N points,).
        y: values of the quantity, shape (N points,).
        error: error bars of the quantity, shape (N points,).
        verdicts: stability of every point, from `stability_verdicts_of_points`.
        colour: colour of line and markers.
        marker: Matplotlib's marker.
        label: text in the legend.
        hollow: whether markers are filled with white.
    """
    look: dict[str, Any] = {"color": colour, "marker": marker, "markerfacecolor": "white" if hollow else colour}
    axes.errorbar(x, y, yerr=np.nan_to_num(error), linestyle="none", capsize=2, elinewidth=1, **look)
    for left in range(len(x) - 1):
        style = next(style for verdict, style in _STYLES.items() if verdict in verdicts[left : left + 2])
        axes.plot(x[left : left + 2], y[left : left + 2], color=colour, linestyle=style, zorder=1.9)
    if label:
        axes.plot([], [], label=label, **look)


def draw_linear_baseline(axes: Axes, dataset: xarray.Dataset) -> None:
    """Draw the test error of the linear baseline as a dotted line, if the table has one.

    Args:
        axes: Matplotlib axes to draw on.
        dataset: table of a branch, from `tables.curve_dataset`.
    """
    baseline = dataset["baseline_error"].values
    if np.isfinite(baseline).any():
        axes.plot(
            parameter_values_along_table(dataset), baseline, color="black", linestyle=":", label="linear baseline"
        )


def draw_branch_ends(axes: Axes, dataset: xarray.Dataset, colour: str) -> None:
    """Draw a dotted vertical line where a branch ends, in the middle of the interval that is known.

    Args:
        axes: Matplotlib axes to draw on.
        dataset: table of a branch, from `tables.curve_dataset`.
        colour: colour of the line.
    """
    for side in ("end_below", "end_above"):
        end = json.loads(dataset.attrs.get(side, "[]"))
        if end:
            axes.axvline(sum(end) / 2, color=colour, linestyle=(0, (1, 2)), linewidth=1.1)


def legend_entries_of_branch_ends(datasets: Iterable[xarray.Dataset]) -> list[Line2D]:
    """Return a legend entry for the ends of branches in a list; empty if no branch ends inside the grid."""
    if not any(d.attrs.get(side, "[]") != "[]" for d in datasets for side in ("end_below", "end_above")):
        return []
    return [Line2D([], [], color=GREY, linestyle=(0, (1, 2)), linewidth=1.1, label="branch ends")]


def draw_thresholds(axes: Axes, marks: Sequence[Mapping[str, Any]]) -> None:
    """Draw vertical lines at thresholds, shaded by their error bars.

    Args:
        axes: Matplotlib axes to draw on.
        marks: thresholds: dicts with `value`, `error` and `label`.
    """
    for mark, style in zip(marks, MARK_STYLES, strict=False):
        value, error = mark["value"], mark.get("error")
        axes.axvline(value, color="black", linewidth=1.0, linestyle=style)
        if error:
            axes.axvspan(value - error, value + error, color="black", alpha=0.15, linewidth=0)


MARK_STYLES: tuple[Any, ...] = ("-.", (0, (6, 2)), (0, (3, 1, 1, 1, 1, 1)))


def legend_entries_of_thresholds(marks: Sequence[Mapping[str, Any]]) -> list[Line2D]:
    """Return the legend entries of the vertical lines that `draw_thresholds` draws."""
    return [
        Line2D([], [], color="black", linewidth=1.0, linestyle=style, label=mark["label"])
        for mark, style in zip(marks, MARK_STYLES, strict=False)
    ]


def legend_entries_of_stability(verdicts: np.ndarray) -> list[Any]:
    """Return legend entries that explain line styles by stability; an empty list if all points are stable."""
    if np.all(verdicts == STABLE):
        return []
    shown = [verdict for verdict in _LABELS if verdict != MARGINAL or MARGINAL in verdicts]
    return [Line2D([], [], color=GREY, linestyle=_STYLES[verdict], label=_LABELS[verdict]) for verdict in shown]


def draw_legend(axes: Axes, extra: Sequence[Any]) -> None:
    """Draw the legend to the right of the axes: first the labelled lines, then further entries.

    Args:
        axes: Matplotlib axes to draw on.
        extra: further legend entries.
    """
    handles, _ = axes.get_legend_handles_labels()
    if handles or extra:
        axes.legend(handles=[*handles, *extra], loc="center left", bbox_to_anchor=(1.01, 0.5))


def describe_model_and_omega(dataset: xarray.Dataset) -> str:
    """Return the name of the model of a table, with omega if it has one, for the title of a figure."""
    parameters = json.loads(dataset.attrs["parameters"])
    named = {"omega": parameters.get("omega")} if "omega" in parameters else {}
    numbers = ", ".join(f"{SYMBOLS.get(n, n)} = {v:g}" for n, v in named.items() if isinstance(v, int | float))
    name = dataset.attrs["model"].replace("_", " ")
    return f"{name}, {numbers}" if numbers else name


def describe_scalar_parameters(dataset: xarray.Dataset) -> list[str]:
    """Return lines of text with the scalar parameters of a table, except omega, which the title contains."""
    shown = []
    for name, value in json.loads(dataset.attrs["parameters"]).items():
        if isinstance(value, list) and value and all(entry == value[0] for entry in value):
            value = value[0]  # for example a ridge for each column
        if name == "omega" or not isinstance(value, int | float) or (name in _SIZES and value == 1):
            continue
        shown.append(f"{SYMBOLS.get(name, name.replace('_', ' '))} = {value:g}")
    return wrap(",  ".join(shown), 110)


def replica_symmetry_warning(dataset: xarray.Dataset) -> list[str]:
    """Return a line of warning if replica symmetry is unstable at some points of a table; else an empty list."""
    if "rsb" in dataset or "replica_symmetry" not in dataset or not (dataset["replica_symmetry"] == UNSTABLE).any():
        return []
    return ["replica symmetric numbers, though replica symmetry is unstable where marked"]


_SIZES = ("tokens", "student_rank", "teacher_rank", "clusters")


def branch_figure_title(dataset: xarray.Dataset) -> str:
    """Return the title of a figure of a branch: the branch, the model and its scalar parameters."""
    return f"{dataset.attrs['branch'].capitalize()} branch, {describe_model_and_omega(dataset)}"
