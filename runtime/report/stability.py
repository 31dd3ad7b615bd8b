"""Stability of a solution, its jumps and the minima behind them: as `stability` prints them, for people and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..channel.landscape import Landscape
from ..numbers import aligned, with_error
from ..presenting import to_json
from ..stability.assess import NEGLIGIBLE_LOSS, Stability
from ..stability.jumps import Jumps

if TYPE_CHECKING:
    from ..solving.solution import Solution

VANISHING = 1e-9  # an eigenvalue below is shown as zero


def stability_table(solution: Solution) -> str:
    """The stability of a solution, each number with what it means."""
    found = solution.stability
    assert found is not None
    problem = solution.problem
    values = found.eigenvalues
    rows = [
        ["longitudinal", f"{values[0].real:.4g}", "largest real part; below 1: stable within replica symmetry"],
        ["", f"{np.max(np.abs(values)):.4g}", "spectral radius; above 1: the iteration needs damping"],
        ["damping", f"{found.damping:.2g}", "largest weight on the new iterate under which plain iteration is stable"],
        [
            "replicon",
            with_error(found.replicon, found.replicon_error),
            "from derivatives; below 1: stable but for jumps",
        ],
        ["bistable share", f"{found.bistable_share:.2g}", "probability of a second minimum of the proximal objective"],
        ["jump weight", with_error(found.jump_weight, found.jump_weight_error), "share of V^ that comes from jumps"],
    ]
    jumps, own = found.jumps, found.self_overlap
    if jumps is not None and jumps.any:
        normal, shared = jumps.direction()
        shown = ", ".join(f"{value:.2f}" for value in normal.ravel())
        rows += [
            ["jump surface", with_error(*jumps.area()), "its Gaussian measure in the fields"],
            ["", with_error(*jumps.mean_squared_jump()), "mean of |X_1 - X_2|^2 over it"],
            ["", f"({shown})", f"its leading normal, token by token, with a share {shared:.2f} of all normals"],
        ]
    if own is not None:
        rows += [
            ["finite map", f"{own.slope:.3g}", "a in D' = a D + b D^(1/2), the replicon"],
            ["", with_error(own.root, own.root_error), "b, above 0 where the proximal map jumps; D relative to q"],
        ]
    rows += _landscape_rows(solution.landscape)
    loss = with_error(found.self_overlap_loss, found.self_overlap_loss_error)
    rows.append(["self-overlap loss", loss, f"share of q that is lost; below {NEGLIGIBLE_LOSS:g} negligible"])
    rows.append(["", "", ""])
    rows += [
        [
            "eigenvalue",
            f"{v.real:.4g}" if abs(v.imag) < 1e-12 else f"{v.real:.4g}{v.imag:+.4g}i",
            mode,
        ]
        for v, mode in zip(values, found.modes, strict=True)
        if abs(v) > VANISHING
    ]
    vanishing = int(np.sum(np.abs(values) <= VANISHING))
    if vanishing:
        rows.append([f"and {vanishing} more", "0", "tokens or columns apart: the prior adds them up"])
    return "\n".join(
        [
            f"{problem.solver.name}, {solution.branch} branch at alpha = {problem.alpha:g}: {found.verdict}",
            *(f"  {line}".rstrip() for line in aligned(rows)),
        ]
    )


def _landscape_rows(found: Landscape) -> list[list[str]]:
    """Which minima are proved global, and how far apart the two lowest are."""
    several = sum(share for n, share in found.minima.items() if n > 1)
    if found.unproved is None or found.shortfall is None:
        rows = [["unproved minima", "all", "the loss may be negative: nothing bounds where its minima lie"]]
    else:
        rows = [
            ["unproved minima", f"{found.unproved:.2g}", f"share not proved global, of {found.points} random points"],
            ["", f"{found.shortfall:.2g}", "estimate of what lower minima could do to the free entropy, at most"],
        ]
    if several:
        low, middle, high = found.gaps
        most = max(found.minima)
        rows.append(
            ["second minima", f"{several:.2g}", f"share of points with more than one minimum (up to {most} seen)"]
        )
        rows.append(["", f"{middle:.2g}", f"median gap between the two lowest; 10 % and 90 %: {low:.2g}, {high:.2g}"])
    return rows


@to_json.register(Stability)
def stability_json(stability: Stability) -> dict[str, Any]:
    """The object `stability`; spectral radius and damping are null where eigenvalues were not asked for."""
    values = stability.eigenvalues
    own = stability.self_overlap
    return {
        "longitudinal": {
            "spectral_radius": float(np.max(np.abs(values))) if len(values) else np.nan,
            "eigenvalues": [[float(v.real), float(v.imag)] for v in values],
        },
        "modes": list(stability.modes),
        "slopes": stability.slopes_by,
        "damping": stability.damping if len(values) else np.nan,
        "replicon": stability.replicon,
        "replicon_error": stability.replicon_error,
        "bistable_share": stability.bistable_share,
        "jump_weight": stability.jump_weight,
        "jump_weight_error": stability.jump_weight_error,
        "jump_set": stability.jumps.to_json() if stability.jumps else None,
        "self_overlap_loss": stability.self_overlap_loss,
        "self_overlap_loss_error": stability.self_overlap_loss_error,
        "finite_map": {"a": own.slope, "b": own.root, "b_error": own.root_error} if own else None,
        "verdict": stability.verdict,
    }


@to_json.register(Jumps)
def jumps_json(jumps: Jumps) -> dict[str, Any]:
    """The object `jump_set` within `stability`."""
    area, square = jumps.area(), jumps.mean_squared_jump()
    normal, shared = jumps.direction()
    return {
        "area": area[0],
        "area_error": area[1],
        "mean_squared_jump": square[0],
        "mean_squared_jump_error": square[1],
        "normal": normal.tolist(),
        "normal_share": shared,
        "lines_found": len(jumps.weights),
    }


@to_json.register(Landscape)
def landscape_json(found: Landscape) -> dict[str, Any]:
    """The object `landscape`."""
    return {
        "points": found.points,
        "unproved_share": found.unproved,
        "free_entropy_shortfall": found.shortfall,
        "boxes": found.boxes,
        "missed_share": found.missed,
        "minima": {str(n): share for n, share in found.minima.items()},
        "gap_quantiles": dict(zip(("0.1", "0.5", "0.9"), found.gaps, strict=True)),
    }
