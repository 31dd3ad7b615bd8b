"""Solutions: as `solve` prints them, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._version import __version__
from ..numbers import aligned, near_zero, with_error
from ..presenting import table, to_json
from ..problems.columns import column_of
from ..problems.symbols import Symbols, symbols_of
from ..solving.solution import Solution
from ..stability.assess import NEGLIGIBLE_LOSS
from .contract import blocks_json, parameters_json, trained_json

if TYPE_CHECKING:
    from ..channel.landscape import Landscape
    from ..problems.overlaps import Overlaps
    from ..problems.problem import Problem


VANISHING = 1e-9  # an eigenvalue below is shown as zero


@table.register(Solution)
def solution_table(solution: Solution, names: Mapping[str, str] | None = None) -> str:
    """What `solve` prints: overlaps, losses, errors, rule and the RS verdict; `names` as in `naming.symbols_of`."""
    problem = solution.problem
    shown = symbols_of(problem, names)
    lines = [
        problem_line(problem, shown),
        f"start {solution.start}, reached {solution.branch}"
        + (f", rank {solution.rank} by training loss" if solution.rank else "")
        + f"; {solution.status.words}, residual "
        + (f"{solution.residual:.1e}" if np.isfinite(solution.residual) else "not known"),
    ]
    if solution.status.advice:
        lines.append(f"  {solution.status.advice}")
    lines += overlap_lines(problem, solution.overlaps, solution.half_widths, shown)
    if solution.thermal:
        lines += thermal_lines(solution)
    elif solution.losses:
        lines.append(f"  training loss {with_error(solution.training_loss, solution.training_loss_error)} per d")
        if math.isfinite(solution.test_error):
            text = f"  test error    {with_error(solution.test_error, solution.test_error_error)}"
            if math.isfinite(solution.baseline_error):
                text += f"   (linear baseline {solution.baseline_error:.12g})"
            lines.append(text)
    rule = solution.rule.describe()
    lines.append(f"  integrator {rule['rule']}, {rule['points']} points; errors are {solution.error_kind}")
    if solution.stability:
        lines.append(f"  {solution.stability.verdict}")
        leading = [v.real if abs(v) > VANISHING else 0.0 for v in solution.stability.eigenvalues[:3]]
        top = ", ".join(f"{value:.3g}" for value in leading)
        lines.append(f"  longitudinal eigenvalues {top}, ..., {np.min(solution.stability.eigenvalues.real):.3g}")
    return "\n".join(lines)


def thermal_lines(solution: Solution) -> list[str]:
    """Free energy, energy and entropy, and the test errors of drawn weights and of their mean."""
    found = solution.thermal
    assert found is not None
    lines = []
    for context, (matrix, widths) in enumerate(zip(found.self_overlap, found.self_overlap_error, strict=True)):
        values = [with_error(matrix[a, a], widths[a, a]) for a in range(len(matrix))]
        label = f"context {context + 1}: " if len(found.self_overlap) > 1 else ""
        lines.append(f"  {label}overlap of a sample with itself {', '.join(values)}")
    lines += [
        f"  free entropy  {with_error(found.free_entropy, found.free_entropy_error)} per d",
        f"  training loss {with_error(found.energy, found.energy_error)} per d, of a sample",
        f"  entropy       {with_error(found.entropy, found.entropy_error)} per d",
    ]
    if math.isfinite(found.test_error):
        mean = with_error(solution.test_error, solution.test_error_error)
        lines.append(
            f"  test error    {with_error(found.test_error, found.test_error_error)} of a sample, {mean} of their mean"
        )
    return lines


def problem_line(problem: Problem, shown: Symbols | None = None) -> str:
    """Model and parameters."""
    shown = shown or symbols_of(problem)
    return (
        f"{problem.solver.name}  {shown['alpha'][0]} = {problem.alpha:g}  "
        + "  ".join(f"{shown[column_of(n)][0]} = {_short(v)}" for n, v in problem.parameters.items())
        + ("" if problem.spectrum is None else f"  spectrum = {_short(problem.spectrum)}")
        + ("" if problem.inverse_temperature is None else f"  inverse temperature = {problem.inverse_temperature:g}")
    )


def overlap_lines(problem: Problem, overlaps: Overlaps, widths: Overlaps, shown: Symbols | None = None) -> list[str]:
    """The overlaps of every context with their errors, a line a column of W; what is not a number is left out."""
    shown = shown or symbols_of(problem)
    lines = []
    s, t = problem.student_rank, problem.teacher_rank
    for context in range(problem.contexts):
        token, cluster = divmod(context, problem.clusters)
        label = f"token {token + 1}" + (f", cluster {cluster + 1}" if problem.clusters > 1 else "")
        for a in range(s):
            parts = []
            for name in ("q", "V"):
                for b in range(a, s):
                    index = "" if s == 1 else f"_{a + 1}{b + 1}"
                    value, width = getattr(overlaps, name)[context, a, b], getattr(widths, name)[context, a, b]
                    if math.isfinite(value):
                        parts.append(f"{shown[name][0]}{index} {with_error(value, width)}")
            index = "" if s == 1 else f"_{a + 1}"
            parts.append(f"{shown['m'][0]}{index} {near_zero(overlaps.m[context, a], widths.m[context, a])}")
            for b in range(t):
                index = "" if s == t == 1 else f"_{a + 1}{b + 1}"
                value = near_zero(overlaps.theta[context, a, b], widths.theta[context, a, b])
                parts.append(f"{shown['theta'][0]}{index} {value}")
            lines.append(f"  {label if a == 0 else '':<10} " + "   ".join(parts))
    for number, value, width in zip(problem.trained, overlaps.phi, widths.phi, strict=True):
        lines.append(f"  {shown[column_of(number['name'])][0]} {with_error(value, width)} (trained)")
    return lines


def _short(value: object) -> str:
    array = np.asarray(value)
    return (
        f"{array.item():g}"
        if array.size == 1
        else np.array2string(array, separator=",").replace("\n", "").replace(" ", "")
    )


def not_in_the_limit(evidence: Mapping[str, Any]) -> str:
    """Which parameters are taken as they stand though they are meant to vanish: the end of a sentence, or nothing."""
    held = ", ".join(f"{name} = {value:g}" for name, value in evidence.get("not_in_the_limit", {}).items())
    return f"; at {held} as it stands: these half widths do not hold its limit 0" if held else ""


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


@to_json.register(Solution)
def solution_json(solution: Solution) -> dict[str, Any]:
    """The object `solve --json` prints; `thermal` beside it at a finite temperature."""
    problem = solution.problem
    stability = solution.stability
    found: dict[str, Any] = {
        "model": problem.solver.name,
        "version": __version__,
        "digest": problem.solver.digest,
        "parameters": parameters_json(problem),
        "start": solution.start,
        "branch": solution.branch,
        "rank": solution.rank,
        "status": solution.status.value,
        "residual": solution.residual,
        "iterations": solution.iterations,
        "overlaps": blocks_json(problem, solution.overlaps),
        "trained": trained_json(problem, solution.overlaps),
        "conjugates": blocks_json(problem, solution.conjugates) if solution.conjugates else None,
        "free_entropy": solution.free_entropy,
        "training_loss": solution.training_loss,
        "training_loss_parts": (
            {
                "data": solution.losses.data,
                "penalty": solution.losses.penalty,
                "identity_gap": solution.losses.identity_gap,
            }
            if solution.losses
            else None
        ),
        "test_error": solution.test_error,
        "baseline_error": solution.baseline_error,
        "errors": {
            "overlaps": blocks_json(problem, solution.half_widths),
            "trained": trained_json(problem, solution.half_widths),
            "training_loss": solution.training_loss_error,
            "test_error": solution.test_error_error,
        },
        "error_kind": solution.error_kind,
        "integrator": solution.rule.describe(),
        "stability": stability.to_json() if stability else None,
    }
    if problem.inverse_temperature is None:
        return found
    # The training loss is that of weights drawn from the measure; the test error that of their mean.
    thermal, parts, errors = solution.thermal, found["training_loss_parts"], found["errors"]
    found["thermal"] = None if thermal is None else shaped(problem, thermal.to_json())
    found["free_entropy"] = None if thermal is None else thermal.free_entropy
    found["training_loss"] = None if thermal is None else thermal.energy
    found["training_loss_parts"] = parts and {**parts, "identity_gap": None}
    found["errors"] = {**errors, "training_loss": None if thermal is None else thermal.energy_error}
    return found


def shaped(problem: Problem, thermal: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a Gibbs measure with its matrices as r[l][k][a][b]."""
    shape = (problem.tokens, problem.clusters, *[problem.student_rank] * 2)

    def blocks(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "self_overlap": np.reshape(values["self_overlap"], shape).tolist()}

    return {**blocks(thermal), "errors": blocks(thermal["errors"])}
