"""Variables of the channel's template: kernels, names and unrolled linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

from ...authoring.parameters import Structure
from ...theory.piecewise_losses import REFERENCE
from ..kernel import ArrayEntryName, Kernel, add_origin_comment, array_entries, upper_triangle_entries
from ..printers.interval import kernel_body_lines as interval_body_lines
from ..printers.numba import kernel_body_lines
from . import nodes
from .channel import ChannelKernels, names_of_channel_summands, names_of_noise_coordinates
from .descent import minimum_search_kernels


def channel_template_variables(channel: ChannelKernels, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """Return the variables of the code template of channel averages.

    Fields are flattened token by token, as x_<token>_<column>.

    Args:
        channel: kernels of the model's channel averages.
        unpack: function that returns the lines which read a kernel's constants from their vector.
    """
    model = channel.model
    structure = model.structure
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    D = L * s
    drawn = names_of_noise_coordinates(model)
    noise = drawn["gaussian_noise"]
    d_names, h_names = array_entries("d", D), [ArrayEntryName("h", i, j) for i in range(D) for j in range(i, D)]
    rows = names_of_channel_summands(channel.moments, L)

    kernels: dict[str, Kernel | None] = {
        "features": channel.features,
        "objective": channel.objective,
        "derivatives": channel.derivatives,
        "loss": channel.loss,
        "loss_gradient": channel.loss_gradient,
        "loss_hessian": channel.loss_hessian,
        "moment_rows": channel.moment_rows,
        "node": nodes.fields_at_node_kernel(structure, noise, "w"),
        "field": nodes.proximal_field_kernel(structure),
        "loss_at_minimum": nodes.loss_at_minimum_kernel(structure, "value"),
        "linear_response": nodes.field_response_kernel(structure),
        "planes": channel.planes,
        **minimum_search_kernels(structure),
        "own_slopes": channel.own_slopes,
        "own_gradient": channel.own_gradient,
        "noise_probabilities": channel.noise_probabilities,
        "columns": channel.columns,
        "critical": channel.critical,
        "determinant": channel.determinant,
        "determinant_slopes": channel.determinant_slopes,
    }
    pieces = channel.pieces
    enclosed = pieces.slopes.input_names if pieces and not pieces.quadratic else ()
    if pieces:
        kernels |= {
            "piece": pieces.piece,
            "places": pieces.places,
            "implicit_kinks": pieces.implicit_kinks,
            "narrow": pieces.narrow,
            "least": pieces.least,
            "steps": pieces.steps,
        }
    if pieces and pieces.places.results:
        kernels["corner_response"] = nodes.response_at_corner_kernel(structure)
    if sides := channel.sides:
        kernels |= {"held": sides.held, "switches": sides.switches, "normals": sides.normals, "bends": sides.bends}
    if channel.critical:
        kernels |= {
            "teacher_node": nodes.fields_at_node_kernel(structure, noise),
            "field_means": nodes.conditional_field_mean_kernel(structure),
            "critical_point": nodes.field_of_critical_point_kernel(structure),
            "critical_field": nodes.proximal_field_at_critical_point_kernel(structure),
            "moreau": nodes.moreau_objective_kernel(structure),
            "exponent": nodes.gaussian_exponent_kernel(structure),
            "exponent_slopes": nodes.gaussian_exponent_gradient_kernel(structure),
            "weight": nodes.critical_point_weight_kernel(),
            "scores": nodes.critical_weight_derivatives_kernel(structure),
            "turns": nodes.minimum_weight_derivatives_kernel(structure),
            "moves": nodes.derivatives_of_minimum_field_kernel(structure),
            "moment_moves": channel.moment_moves,
            "moment_turns": channel.moment_turns,
            **nodes.kernels_selecting_lower_minimum(structure),
        }
        for side in ("one", "two"):
            kernels[f"{side}_field"] = nodes.proximal_field_kernel(structure, f"{side}_x", f"{side}_g")
            kernels[f"{side}_loss"] = nodes.loss_at_minimum_kernel(structure, "moreau", f"{side}_x")
    context = {
        "D": D,
        "L": L,
        "s": s,
        "t": t,
        "rows": rows,
        "row": len(rows) // L,
        "unpack": unpack,
        "operations": {n: k.operation_count for n, k in kernels.items() if k is not None},
        "kernels": kernels,
        "moments": tuple((m.text, m.shape, m.offset) for m in channel.moments),
        "features": list(channel.feature_names),
        "noise_values": channel.noise_values,
        "own": [name for name, _ in channel.own_slopes.results] if channel.own_slopes else [],
        "own_gradient": [name for name, _ in channel.own_gradient.results] if channel.own_gradient else [],
        "columns": list(channel.column_names),
        "reference": REFERENCE.name,
        "places": [name for name, _ in pieces.places.results] if pieces else [],
        "implicit_kinks": [name for name, _ in pieces.implicit_kinks.results] if pieces else [],
        "narrow": [name for name, _ in pieces.narrow.results] if pieces else [],
        "steps": None if pieces is None or pieces.steps is None else [name for name, _ in pieces.steps.results],
        "sum": pieces.sum if pieces else None,
        "planes": [name for name, _ in channel.planes.results],
        "quadratic": bool(pieces and pieces.quadratic),
        "enclosed": [(n, name) for n, name in enumerate(channel.constants) if name in enclosed],
        "enclosed_lines": interval_body_lines(pieces.slopes) if pieces and not pieces.quadratic else [],
        "corners": bool(pieces and pieces.corners),
        "guided": D > 1 and not sides,
        "side_names": list(sides.names) if sides else [],
        "strength_names": array_entries("strength", len(sides.names)) if sides else [],
        "of": lambda array: "".join(f"{array}[{i}], " for i in range(D)),
        "has_prox_space": channel.critical is not None,
        "x_names": array_entries("x", L, s),
        "y_names": array_entries("y", L, t),
        "g_names": array_entries("g", L, s),
        "w_names": array_entries("w", L, s),
        "dy_names": array_entries("dy", L, t),
        "mu_names": array_entries("mu", L, s),
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        **drawn,
        "p_names": upper_triangle_entries("p", L, s),
        "v_names": upper_triangle_entries("v", L, s),
        "r_names": upper_triangle_entries("r", L, s),
        "d_names": d_names,
        "h_names": h_names,
        "arrays": nodes.entries_of_field_law_arrays(structure, len(noise)),
        "coordinates": nodes.standard_normal_coordinates(structure, len(noise)),
        "teacher_coordinates": nodes.standard_normal_coordinates(structure, len(noise), fields=False),
        "law": nodes.parameters_of_field_law(structure),
        "jump_names": array_entries("jump", L, s),
        "blur_names": array_entries("blur", D),
        "response_names": array_entries("D", D),
        "move_names": array_entries("move", D),
        "mirrors": _sign_patterns_of_starts(structure),
        "probes": _probe_points_in_unit_ball(D, 2 if sides else 1),
        "factor_lines": _ldl_factorisation_lines(D, modified=True),
        "factor_lines_unmodified": _ldl_factorisation_lines(D, modified=False),
        "solve_lines": _newton_step_lines(D),
    }
    apart = kernels["apart"]
    assert apart is not None
    context["keep"] = lambda: _lines_updating_lowest_minimum(array_entries("x", L, s), h_names, apart)
    return context


def bounds_template_variables(channel: ChannelKernels, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """Return the variables of the code template of interval bounds on the proximal objective.

    Args:
        channel: kernels of the model's channel averages.
        unpack: function that returns the lines which read a kernel's constants from their vector.
    """
    model, pieces = channel.model, channel.pieces
    L, s = model.structure.tokens, model.structure.student_rank
    corners = bool(pieces and pieces.corners)
    kernel = pieces.derivatives if pieces and corners else channel.derivatives
    used = kernel.input_names
    return {
        "D": len(model.X),
        "used_constants": [(n, name) for n, name in enumerate(channel.constants) if name in used],
        "features": list(channel.feature_names),
        "x_names": array_entries("x", L, s),
        "w_names": array_entries("w", L, s),
        "p_names": upper_triangle_entries("p", L, s),
        "lines": interval_body_lines(kernel),
        "results": [name for name, _ in kernel.results],
        "corners": corners,
        "places": [name for name, _ in pieces.places.results] if pieces else [],
        "kernels": {"places": pieces.places} if pieces else {},
        "reference": REFERENCE.name,
        "unpack": unpack,
    }


def _sign_patterns_of_starts(structure: Structure) -> list[tuple[int, ...]]:
    """Return signs that mirror a start of the search for minima: of all fields, of one column, or of one token."""
    L, s = structure.tokens, structure.student_rank
    patterns = [(-1,) * (L * s)]
    if s > 1:
        patterns += [tuple(-1 if a == column else 1 for _ in range(L) for a in range(s)) for column in range(s)]
    if L > 2:
        patterns += [tuple(-1 if l == token else 1 for l in range(L) for _ in range(s)) for token in range(L)]
    return patterns


def _probe_points_in_unit_ball(D: int, shells: int) -> list[list[tuple[str, ...]]]:
    """Return probe points of the search for minima: points of the unit ball in D dimensions by sectors, as text.

    The sectors are intervals (D = 1) or signs of the first two coordinates, in one shell or in two of equal volume.
    Digits are fixed here, by arithmetic that is exact in every library: multiples of square roots of primes, modulo 1.
    """
    if D == 1:
        return [[(f"{(-1 + (part + (k + 0.5) / 6) / 3):.6f}",) for k in range(6)] for part in range(6)]
    primes = (2, 3, 5, 7, 11, 13, 17, 19)[:D]
    scale = 10**12
    steps = [isqrt(p * scale * scale) % scale for p in primes]
    parts: list[list[tuple[str, ...]]] = [[] for _ in range(4 * shells)]
    index = 0
    while min(len(part) for part in parts) < 8 * min(D, 4):
        index += 1
        point = [2 * (index * step % scale) / scale - 1 for step in steps]
        square = sum(x * x for x in point)
        if square > 1:
            continue
        outside = shells > 1 and square**D > 1 / 4
        part = parts[(point[0] > 0) + 2 * (point[1] > 0) + 4 * outside]
        if len(part) < 8 * min(D, 4):
            part.append(tuple(f"{x:.6f}" for x in point))
    return parts


def _ldl_factorisation_lines(D: int, modified: bool) -> list[str]:
    """Return unrolled source lines of the factorisation H = L diag(e) L^T of a Hessian.

    If `modified`, pivots that are not positive are replaced by positive ones.
    """
    lines: list[str] = []
    for j in range(D):
        terms = "".join(f" - l_{j}_{k} * l_{j}_{k} * e_{k}" for k in range(j))
        lines.append(f"e_{j} = h_{j}_{j}{terms}")
        if modified:
            lines += [f"if e_{j} < tiny:", f"    e_{j} = max(floor, -e_{j})", "    modified = True"]
        for i in range(j + 1, D):
            terms = "".join(f" - l_{i}_{k} * l_{j}_{k} * e_{k}" for k in range(j))
            lines.append(f"l_{i}_{j} = (h_{j}_{i}{terms}) / e_{j}")
    return add_origin_comment(lines)


def _newton_step_lines(D: int) -> list[str]:
    """Return unrolled source lines of the Newton step -H^{-1} d, for a factorised Hessian H = L diag(e) L^T."""
    lines = []
    for i in range(D):
        lines.append(f"b_{i} = -d_{i}" + "".join(f" - l_{i}_{k} * b_{k}" for k in range(i)))
    for i in reversed(range(D)):
        lines.append(f"step_{i} = b_{i} / e_{i}" + "".join(f" - l_{k}_{i} * step_{k}" for k in range(i + 1, D)))
    return add_origin_comment(lines)


def _lines_updating_lowest_minimum(x_names: list[ArrayEntryName], h_names: list[ArrayEntryName], apart: Kernel) -> str:
    """Return source lines that keep the lower of a new minimum and the lowest so far, and their difference."""
    moves = [f"        {n} = new_{n}" for n in [*x_names, *h_names]]
    lines = [
        "if new_size >= 0.0 and apart > merge:",
        "    minima = 2",
        "    difference = abs(new_value - value)",
        "    if not difference >= gap:",
        "        gap = difference",
        "    if new_value < value or size < 0.0:",
        *moves,
        "        value = new_value",
        "        size = new_size",
        "        lowest = new_lowest",
    ]
    return "\n".join(f"    {line}" for line in [*kernel_body_lines(apart), *add_origin_comment(lines)])
