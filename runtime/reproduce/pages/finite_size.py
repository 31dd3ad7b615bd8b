"""Table, figure and page of theory beside finite d."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...comparison.compare import LOSSES, Extrapolation, Measured
from ...numbers import with_error
from ..figures.finite_size import plot_finite_size
from ..finite_size import FINITE_SIZE, FOUND, JUDGE_STEPS, OVERLAPS, SCALING_ALPHA, SEARCHES, SEEDS, D, FiniteSizeRun
from ..run import BRANCHES, SHOWN_OMEGA
from .blocks import Block, Heading, Paragraph, Picture, Table
from .writing import drawn, number_or_nan, write_page, write_rows

CLEAR = 3.0  # standard errors


def write(run: FiniteSizeRun) -> None:
    """Table, figure and page."""
    theory = {name: theory_of(run, name) for name in BRANCHES}
    rows = comparison_rows(run.results["points"], theory)
    write_rows(run, "finite_size", rows)
    image = drawn(run, FINITE_SIZE, lambda path: plot_finite_size(shown(run.results, theory), path))
    write_page(run, content(run.results, rows), {FINITE_SIZE: image})


def theory_of(run: FiniteSizeRun, name: str) -> dict[str, Any]:
    """The theory curve of a branch, first token, absolute values."""
    dataset = run.dataset(name)
    found: dict[str, Any] = {"alpha": dataset["alpha"].values}
    for key in OVERLAPS:
        flat = np.abs(dataset[key].values.reshape(len(found["alpha"]), -1)[:, 0])
        found[key], found[f"{key}_error"] = flat, dataset[f"{key}_error"].values.reshape(len(flat), -1)[:, 0]
    for key in LOSSES:
        found[key], found[f"{key}_error"] = dataset[key].values, dataset[f"{key}_error"].values
    found["verdict"] = dataset["verdict"].values
    return found


def shown(results: Mapping[str, Any], theory: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What `plot_finite_size` draws."""
    points: dict[str, Any] = {search: {} for search in SEARCHES}
    for search, branches in results["points"].items():
        for name, rows in branches.items():
            here = [row for row in rows if row["on_branch"] > 1]
            keys = [key + end for key in (*OVERLAPS, *LOSSES) for end in ("", "_error")]
            points[search][name] = {key: [row[key] for row in here] for key in ("alpha", *keys)}
    scaled = results["scaling"][FOUND]["semantic"]
    rows_scaled = {}
    for key, row in scaled["rows"].items():
        if abs(row["theory"]) < 1e-6 or key.endswith("_2"):
            continue
        limit = Measured(row["theory"], row["half_width"], row["value"], row["error"])
        fit = Extrapolation(row["value"], row["error"], row["slope"], row["power"], row["chi2"], 0)
        every = [
            {key: Measured(row["theory"], row["half_width"], number_or_nan(mean), number_or_nan(error))}
            for mean, error in zip(row["means"], row["errors"], strict=True)
        ]
        rows_scaled[key] = ((limit, fit), every)
    known = results["thresholds"]["alpha_c"][f"{SHOWN_OMEGA:g}"]
    return {
        "d": D,
        "seeds": SEEDS,
        "theory": theory,
        "points": points,
        "transition": results["transition"],
        "alpha_c": float(known["value"]),
        "scaling": {
            "dims": scaled["dims"],
            "rows": rows_scaled,
            "title": f"semantic branch, alpha = {SCALING_ALPHA:g}: scaling in d",
        },
        "plane": results["plane"],
        "random": results["random"],
        "gamp": results["gamp"],
    }


def comparison_rows(
    points: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], theory: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """A row a branch, alpha and search: theory if it has the branch, simulation, deviation in combined standard errors.

    Overlaps that vanish in theory are left out: |m| of a simulation cannot.
    """
    rows = []
    for search, name, row in [(s, n, row) for s, found in points.items() for n, many in found.items() for row in many]:
        branch = theory[name]
        at = np.flatnonzero(np.abs(np.asarray(branch["alpha"]) - row["alpha"]) < 1e-9)
        for key in (*OVERLAPS, *LOSSES):
            value = float(branch[key][at[0]]) if len(at) else np.nan
            if key in OVERLAPS and len(at) and value < 1e-6:
                continue
            width = float(branch[f"{key}_error"][at[0]]) if len(at) else np.nan
            simulated, standard_error = number_or_nan(row[key]), number_or_nan(row[f"{key}_error"])
            rows.append(
                {
                    "branch": name,
                    "search": search,
                    "alpha": row["alpha"],
                    "observable": key,
                    "runs": row["on_branch"],
                    "of": row["of"],
                    "theory": value,
                    "half_width": width,
                    "simulation": simulated,
                    "standard_error": standard_error,
                    "deviation": (simulated - value) / float(np.hypot(standard_error, width / 2)),
                    "verdict": str(branch["verdict"][at[0]]) if len(at) else "no such solution in theory",
                }
            )
    return rows


def content(results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The report: what was found, the figure, and tables."""
    known = results["thresholds"]["alpha_c"][f"{SHOWN_OMEGA:g}"]
    stable = [r for r in rows if r["verdict"].startswith("RS stable") and np.isfinite(r["deviation"])]
    far = [r for r in stable if abs(r["deviation"]) > CLEAR]
    blocks: list[Block] = [
        Heading("Theory meets finite size", 1),
        Paragraph(
            f"{results['model']}, saddleforge {results['version']}, omega = {SHOWN_OMEGA:g}, d = {D}. Simulations "
            "minimise the risk by L-BFGS on data drawn from the law of the tokens; the overlaps of teacher and "
            "encodings are those of the law exactly, and test errors are exactly those of the overlaps found. Where "
            "minima are polished, samples in the wrong well of their own Moreau objective are moved until none lowers "
            "the risk, and the overlap that vanishes on the branch is held at zero. In parentheses: half widths for "
            "theory, one standard error over seeds for simulations, with control variates."
        ),
        Paragraph(
            "Equal training loss of the two minima, seed by seed on the same data: alpha_c = "
            + " and ".join(f"{with_error(t['value'], t['error'])} ({s})" for s, t in results["transition"].items())
            + f" at d = {D}; replica theory "
            f"{with_error(float(known['value']), float(known['error']))}. Where theory calls the solution stable, "
            f"{len(stable) - len(far)} of {len(stable)} observables lie within {CLEAR:g} standard errors at this d."
        ),
        Picture(
            FINITE_SIZE,
            "Lines are theory, points simulations with one standard error. Below alpha = 0.72 theory has no semantic "
            "solution, while minimisation still finds semantic minima: metastable states that replica symmetry does "
            "not describe.",
        ),
        Heading("Both branches", 2),
        Table(
            (
                "branch",
                "alpha",
                "search",
                "runs",
                "observable",
                "theory",
                "simulation",
                "deviation",
                "verdict of theory",
            ),
            [
                (
                    row["branch"],
                    f"{row['alpha']:g}",
                    row["search"],
                    f"{row['runs']} of {row['of']}",
                    row["observable"].replace("_", " "),
                    with_error(row["theory"], row["half_width"]),
                    with_error(row["simulation"], row["standard_error"]),
                    f"{row['deviation']:+.1f}" if np.isfinite(row["deviation"]) else "-",
                    row["verdict"],
                )
                for row in rows
            ],
        ),
    ]
    for search, name, scaled in [(s, n, one) for s, found in results["scaling"].items() for n, one in found.items()]:
        blocks += [
            Heading(f"d to infinity, {name} branch, alpha = {SCALING_ALPHA:g}, {search}", 2),
            Paragraph(f"Verdict of theory: {scaled['verdict']}."),
            Table(
                ("observable", "theory", *[f"d = {d}" for d in scaled["dims"]], "d to infinity", "deviation"),
                [
                    (
                        key.replace("_", " ") if key in LOSSES else key,
                        with_error(row["theory"], row["half_width"]),
                        *[with_error(m, e) for m, e in zip(row["means"], row["errors"], strict=True)],
                        with_error(row["value"], row["error"]) + (" 1/d" if row["power"] == 1 else " 1/sqrt(d)"),
                        f"{row['deviation']:+.1f}",
                    )
                    for key, row in scaled["rows"].items()
                ],
            ),
        ]
    blocks += [
        Heading("Random starts", 2),
        Table(
            ("method", "alpha", "converged", "minima reached"),
            [
                (
                    row["method"],
                    f"{row['alpha']:g}",
                    f"{row['runs']} of {row['of']}",
                    ", ".join(f"{count} {name}" for name, count in row["reached"].items()),
                )
                for row in results["random"]
            ],
        ),
        Heading("GAMP as the judge of stability", 2),
        Paragraph(
            f"Point-wise convergence (squared relative step below 1e-12 within {JUDGE_STEPS} iterations) is expected "
            "where the proximal map does not jump and the replicon is below 1; where it jumps, iterates are expected "
            "to stay apart by 2 D*, twice the self-overlap loss times q. Measured: the factor by which the squared "
            "distance of two estimates with the same overlaps shrinks, which theory calls the replicon."
        ),
        Table(
            (
                "branch",
                "alpha",
                "verdict",
                "stayed",
                "converged",
                "replicon",
                "measured",
                "late distance / q",
                "2 D*/q",
            ),
            [
                (
                    row["branch"],
                    f"{row['alpha']:g}",
                    row["verdict"],
                    f"{row['stayed']} of {row['of']}",
                    f"{row['converged']}",
                    "-" if row["replicon"] is None else f"{row['replicon']:.3f}",
                    "-" if row["measured"] is None else f"{row['measured']:.3f}",
                    "-" if row["late_over_q"] is None else f"{row['late_over_q']:.2g}",
                    "-" if row["self_overlap_loss"] is None else f"{2 * row['self_overlap_loss']:.2g}",
                )
                for row in results["judged"]
            ],
        ),
    ]
    return blocks
