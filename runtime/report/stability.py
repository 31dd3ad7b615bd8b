"""Stability of a solution, its jumps and the minima behind them, as text and JSON of the command `stability`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import TimeLimitError
from ..base.numbers import align_text_columns, format_value_with_error
from ..base.presenting import to_json
from ..channel.landscape import Landscape
from ..stability.assess import NEGLIGIBLE_LOSS, Stability
from ..stability.jumps import Jumps
from .contract import attributes_by_name
from .layout import format_attribute_with_error

if TYPE_CHECKING:
    from ..solving.solution import Solution

EIGENVALUE_ROUNDING = 1e-9  # rounding of an eigenvalue: below it is shown as zero


def stability_table(solution: Solution) -> str:
    """Return the stability of a solution as text: eigenvalues, replicon, jumps and minima, each with its meaning.

    Minima are left out if a time limit ends the search for them.
    """
    stability = solution.stability
    assert stability is not None
    problem = solution.problem
    values = stability.eigenvalues
    known = np.isfinite(stability.longitudinal_error)
    lead = format_value_with_error(values[0].real, stability.longitudinal_error) if known else f"{values[0].real:.4g}"
    radius, damping = f"{np.max(np.abs(values)):.4g}", f"{stability.damping:.2g}"
    rows = [
        ["longitudinal", lead, "largest real part; below 1: stable within replica symmetry"],
        ["", radius, "spectral radius; above 1: the iteration needs damping"],
        ["damping", damping, "largest weight on the new iterate under which plain iteration is stable"],
        [
            "replicon",
            format_attribute_with_error(stability, "replicon"),
            "from derivatives; below 1: stable but for jumps",
        ],
        [
            "bistable fraction",
            f"{stability.bistable_fraction:.2g}",
            "probability of a second minimum of the proximal objective",
        ],
        ["jump weight", format_attribute_with_error(stability, "jump_weight"), "fraction of V^ that comes from jumps"],
    ]
    jumps, lost = stability.jumps, stability.self_overlap
    if jumps is not None and jumps.has_any_jump:
        normal, shared = jumps.principal_normal_direction()
        shown = ", ".join(f"{value:.2f}" for value in normal.ravel())
        rows += [
            [
                "jump surface",
                format_value_with_error(*jumps.area_of_jump_surface()),
                "its Gaussian measure in the fields",
            ],
            ["", format_value_with_error(*jumps.mean_squared_jump()), "mean of |X_1 - X_2|^2 over it"],
            ["", f"({shown})", f"its leading normal, token by token, with a fraction {shared:.2f} of all normals"],
        ]
    if lost is not None:
        rows += [
            ["finite map", f"{lost.slope:.3g}", "a in D' = a D + b D^(1/2), the replicon"],
            ["", format_attribute_with_error(lost, "root"), "b, above 0 where the proximal map jumps; D relative to q"],
        ]
    with suppress(TimeLimitError):
        rows += _local_minima_table_rows(solution.landscape)
    loss = format_attribute_with_error(stability, "self_overlap_loss")
    rows.append(["self-overlap loss", loss, f"fraction by which q drops, D*; below {NEGLIGIBLE_LOSS:g} negligible"])
    rows.append(["", "", ""])
    for v, mode in zip(values, stability.modes, strict=True):
        if abs(v) > EIGENVALUE_ROUNDING:
            imaginary = "" if abs(v.imag) < 1e-12 else f"{v.imag:+.4g}i"
            rows.append(["eigenvalue", f"{v.real:.4g}{imaginary}", mode])
    vanishing = int(np.sum(np.abs(values) <= EIGENVALUE_ROUNDING))
    if vanishing:
        rows.append([f"and {vanishing} more", "0", "directions on which the map does not depend"])
    return "\n".join(
        [
            f"{problem.solver.name}, {solution.branch} branch at alpha = {problem.alpha:g}: {stability.verdict}",
            *(f"  {line}".rstrip() for line in align_text_columns(rows)),
        ]
    )


def _local_minima_table_rows(minima: Landscape) -> list[list[str]]:
    """Return table rows on minima of the proximal objective: how many are not proved global, and their gaps."""
    several = sum(share for n, share in minima.minima.items() if n > 1)
    if minima.unproved is None or minima.shortfall is None:
        rows = [["unproved minima", "all", "no bounds: the loss may be negative, or its slope jumps in several fields"]]
    else:
        rows = [
            [
                "unproved minima",
                f"{minima.unproved:.2g}",
                f"fraction not proved global, of {minima.points} random points",
            ],
            ["", f"{minima.shortfall:.2g}", "estimate of what lower minima could do to the free entropy, at most"],
        ]
    if several:
        low, middle, high = minima.gaps
        most = max(minima.minima)
        rows += [
            ["second minima", f"{several:.2g}", f"fraction of points with more than one minimum (up to {most} seen)"],
            ["", f"{middle:.2g}", f"median gap between the two lowest; 10 % and 90 %: {low:.2g}, {high:.2g}"],
        ]
    return rows


@to_json.register_renderer_of_class(Stability)
def stability_json(stability: Stability) -> dict[str, Any]:
    """Return the stability of a solution as a dict for JSON; eigenvalues that were not computed are NaN."""
    values = stability.eigenvalues
    lost = stability.self_overlap
    return {
        "longitudinal": {
            "spectral_radius": float(np.max(np.abs(values))) if len(values) else np.nan,
            "eigenvalues": [[float(v.real), float(v.imag)] for v in values],
            "error": stability.longitudinal_error,
            "verdict": stability.longitudinal,
        },
        "modes": list(stability.modes),
        "slopes": stability.slopes_by,
        "damping": stability.damping if len(values) else np.nan,
        **attributes_by_name(
            stability, "replicon", "replicon_error", "bistable_fraction", "jump_weight", "jump_weight_error"
        ),
        "jump_set": stability.jumps.to_json() if stability.jumps else None,
        **attributes_by_name(stability, "self_overlap_loss", "self_overlap_loss_error"),
        "finite_map": {"a": lost.slope, "b": lost.root, "b_error": lost.root_error} if lost else None,
        **attributes_by_name(stability, "replica_symmetry", "verdict"),
    }


@to_json.register_renderer_of_class(Jumps)
def proximal_jumps_json(jumps: Jumps) -> dict[str, Any]:
    """Return jumps of the proximal map as a dict for JSON: area of the set of jumps, mean jump, main direction."""
    area, square = jumps.area_of_jump_surface(), jumps.mean_squared_jump()
    normal, shared = jumps.principal_normal_direction()
    return {
        "area": area[0],
        "area_error": area[1],
        "mean_squared_jump": square[0],
        "mean_squared_jump_error": square[1],
        "normal": normal.tolist(),
        "normal_share": shared,
        "lines_found": len(jumps.weights),
    }


@to_json.register_renderer_of_class(Landscape)
def proximal_minima_json(landscape: Landscape) -> dict[str, Any]:
    """Return how often the proximal objective has several minima at random points, and their gaps, as a dict."""
    return {
        "points": landscape.points,
        "unproved_share": landscape.unproved,
        "free_entropy_shortfall": landscape.shortfall,
        "boxes": landscape.boxes,
        "missed_share": landscape.missed,
        "minima": {str(n): share for n, share in landscape.minima.items()},
        "gap_quantiles": dict(zip(("0.1", "0.5", "0.9"), landscape.gaps, strict=True)),
    }
