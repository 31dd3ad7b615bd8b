"""What the channel template needs: kernels, names and unrolled linear algebra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy as sp

from ...authoring.model import ModelAt
from ...authoring.parameters import Structure
from ..kernel import Kernel, freeze
from ..printers.interval import body as interval_body
from ..printers.numba import body
from .channel import Channel, discrete_noise, gaussian_noise, precision


def names_of(matrix: sp.Matrix) -> list[str]:
    """Names of a matrix of symbols, row by row."""
    return [symbol.name for symbol in matrix]


def channel_context(channel: Channel, unpack: Callable[[Kernel], str]) -> dict[str, Any]:
    """What the channel template needs; fields are flattened token by token, x_<token>_<column>.

    Args:
        unpack: lines that read the constants of a kernel out of the vector c.
    """
    model = channel.model
    structure = model.structure
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank
    D = L * s
    upper = [(i, j) for i in range(D) for j in range(i, D)]
    row = sum(m.shape[0] * m.shape[1] for m in channel.moments)

    kernels: dict[str, Kernel | None] = {
        "features": channel.features,
        "objective": channel.objective,
        "derivatives": channel.derivatives,
        "loss": channel.loss,
        "loss_gradient": channel.loss_gradient,
        "loss_hessian": channel.loss_hessian,
        "moment_rows": channel.moment_rows,
        "moment_slopes": channel.moment_slopes,
        "moment_moves": Kernel(
            channel.moment_slopes.statements, tuple(r for r in channel.moment_slopes.results if "_dw_" in r[0])
        ),
        "own_slopes": channel.own_slopes,
        "own_gradient": channel.own_gradient,
        "noise_probabilities": channel.noise_probabilities,
        "columns": channel.columns,
        "critical": channel.critical,
        "determinant": channel.determinant,
        "determinant_slopes": channel.determinant_slopes,
        "exponent": _exponent(model) if channel.critical else None,
        "exponent_slopes": _exponent_slopes(model) if channel.critical else None,
    }
    context = {
        "D": D,
        "L": L,
        "s": s,
        "t": t,
        "row": row,
        "constants": channel.constants,
        "unpack": unpack,
        "branch": noise_branch(model, channel.noise_probabilities, channel.noise_values, unpack),
        "operations": {n: k.operations for n, k in kernels.items() if k is not None},
        "kernels": kernels,
        "moments": tuple((m.text, m.shape, m.offset) for m in channel.moments),
        "features": list(channel.feature_names),
        "noise_values": channel.noise_values,
        "own": [name for name, _ in channel.own_slopes.results] if channel.own_slopes else [],
        "own_gradient": [name for name, _ in channel.own_gradient.results] if channel.own_gradient else [],
        "columns": list(channel.column_names),
        "has_prox_space": channel.critical is not None,
        "x_names": names_of(model.X),
        "y_names": names_of(model.Y),
        "g_names": [f"g_{l}_{a}" for l in range(L) for a in range(s)],
        "w_names": [f"w_{l}_{a}" for l in range(L) for a in range(s)],
        "u_names": [symbol.name for symbol, _ in model.noise.values()],
        "gaussian_noise": [name for name, _ in gaussian_noise(model)],
        "discrete_noise": discrete_noise(model),
        "p_names": blocks_of(structure, "p"),
        "v_names": blocks_of(structure, "v"),
        "r_names": blocks_of(structure, "r"),
        "d_names": [f"d_{i}" for i in range(D)],
        "h_names": [f"h_{i}_{j}" for i, j in upper],
        "accumulators": [f"s_r_{l}_{i}" for l in range(L) for i in range(row)],
        "scores": _scores(structure) if channel.critical else [],
        "moves": _moves(channel) if channel.critical else [],
        "variance_columns": _variance_columns(structure),
        "turns": _turns(channel) if channel.critical else [],
        "mirrors": _mirrors(structure),
        "probes": _probes(D),
        "pivot_product": " * ".join(f"e_{i}" for i in range(D)),
        "diagonal_sum": " + ".join(f"h_{i}_{i}" for i in range(D)),
        "factor_lines": _factor_lines(D, modified=True),
        "factor_lines_unmodified": _factor_lines(D, modified=False),
        "solve_lines": _solve_lines(D),
    }
    context["keep"] = lambda: _keep(names_of(model.X), [f"h_{i}_{j}" for i, j in upper])
    return context


def bounds_context(channel: Channel) -> dict[str, Any]:
    """What the template of interval bounds needs."""
    model = channel.model
    s = model.structure.student_rank
    kernel = channel.derivatives
    used = kernel.names
    return {
        "D": len(model.X),
        "constants": channel.constants,
        "used_constants": [(n, name) for n, name in enumerate(channel.constants) if name in used],
        "features": list(channel.feature_names),
        "x_names": names_of(model.X),
        "w_names": [f"w_{l}_{a}" for l in range(model.structure.tokens) for a in range(s)],
        "p_names": blocks_of(model.structure, "p"),
        "lines": interval_body(kernel),
        "results": [name for name, _ in kernel.results],
    }


def blocks_of(structure: Structure, name: str) -> list[str]:
    """Names of the entries of one symmetric s x s block a token, upper triangles."""
    s = structure.student_rank
    return [f"{name}_{l}_{a}_{b}" for l in range(structure.tokens) for a in range(s) for b in range(a, s)]


def _exponent_of(model: ModelAt) -> sp.Expr:
    """1/2 (w - mu)^T r (w - mu) summed over tokens, r the precision of omega given Y."""
    total = sp.Integer(0)
    s = model.structure.student_rank
    for token in range(model.structure.tokens):
        step = sp.Matrix(s, 1, lambda a, _, token=token: sp.Symbol(f"w_{token}_{a}") - sp.Symbol(f"mu_{token}_{a}"))
        total += (step.T * precision(model, token, "r") * step)[0, 0] / 2
    return total


def _exponent(model: ModelAt) -> Kernel:
    return freeze({"exponent": _exponent_of(model)}, prefix="o")


def _exponent_slopes(model: ModelAt) -> Kernel:
    """Derivatives of the exponent in w, minus those in mu."""
    s = model.structure.student_rank
    total = _exponent_of(model)
    places = [(token, a) for token in range(model.structure.tokens) for a in range(s)]
    return freeze({f"e_{l}_{a}": sp.diff(total, sp.Symbol(f"w_{l}_{a}")) for l, a in places}, prefix="b")


def law_columns(structure: Structure) -> dict[str, int]:
    """Positions of the numbers that the law of the fields depends on, as the slopes of the averages list them.

    Per token: m_a, then b_ab of E[omega | Y] = m + b (Y - m*), then the upper triangles of C = Cov(omega | Y) and V.
    """
    s, t = structure.student_rank, structure.teacher_rank
    upper = [(a, b) for a in range(s) for b in range(a, s)]
    names: list[str] = []
    for l in range(structure.tokens):
        names += [f"m_{l}_{a}" for a in range(s)]
        names += [f"b_{l}_{a}_{b}" for a in range(s) for b in range(t)]
        names += [f"{block}_{l}_{a}_{b}" for block in "CV" for a, b in upper]
    return {name: n for n, name in enumerate(names)}


def _scores(structure: Structure) -> list[str]:
    """Derivatives of weight = density determinant in what `law_columns` lists, X and Y held fixed.

    omega = X + V grad loss moves with V, and E[omega | Y] with m and b; of log N(omega; ., C) the derivative in C is
    (e e^T - C^(-1)) / 2 with e = C^(-1) (omega - E[omega | Y]).
    """
    s = structure.student_rank
    found = []
    for name in law_columns(structure):
        block, l, *place = name.split("_")
        e = [f"e_{l}_{a}" for a in place]
        if block == "m":
            found.append(f"weight * {e[0]}")
        elif block == "b":
            found.append(f"weight * {e[0]} * dy_{l}_{place[1]}")
        elif block == "C":
            share = "0.5 * weight" if place[0] == place[1] else "weight"
            found.append(f"{share} * ({e[0]} * {e[1]} - r_{l}_{place[0]}_{place[1]})")
        else:
            a, b = (f"d_{int(l) * s + int(index)}" for index in place)
            moved = f"{e[0]} * {a}" if place[0] == place[1] else f"({e[0]} * {b} + {e[1]} * {a})"
            found.append(f"density * det_{l}_{place[0]}_{place[1]} - weight * {moved}")
    return found


def _variance_columns(structure: Structure) -> list[tuple[int, int, int, int]]:
    """(column of `law_columns`, token, a, b) of every entry of V."""
    found = []
    for name, column in law_columns(structure).items():
        block, l, *place = name.split("_")
        if block == "V":
            found.append((column, int(l), int(place[0]), int(place[1])))
    return found


def _turns(channel: Channel) -> list[tuple[int, str, int]]:
    """(row, its derivative in an entry of g, number of that field)."""
    row = sum(m.shape[0] * m.shape[1] for m in channel.moments)
    s = channel.model.structure.student_rank
    places = ((name, name.split("_")) for name, _ in channel.moment_slopes.results)
    return [
        (int(l) * row + int(index), name, int(l) * s + int(a))
        for name, (_, l, index, field, a) in places
        if field == "g"
    ]


def _moves(channel: Channel) -> list[tuple[int, str, list[tuple[int, str]]]]:
    """What moves the moment rows with omega at fixed X: (row, its derivative in an entry of omega - m,
    (column of `law_columns`, derivative of that entry))."""
    structure = channel.model.structure
    s, columns = structure.student_rank, law_columns(structure)
    row = sum(m.shape[0] * m.shape[1] for m in channel.moments)
    found = []
    for name, _ in channel.moment_slopes.results:
        _, l, index, field, a = name.split("_")
        if field == "dw":
            by = [(columns[f"m_{l}_{a}"], "-1.0")]
            for b in range(s):
                low, high = sorted((int(a), b))
                by.append((columns[f"V_{l}_{low}_{high}"], f"d_{int(l) * s + b}"))
            found.append((int(l) * row + int(index), name, by))
    return found


def _mirrors(structure: Structure) -> list[tuple[int, ...]]:
    """Sign patterns of further starts: all fields; each column if there are several; each token if more than two."""
    L, s = structure.tokens, structure.student_rank
    patterns = [(-1,) * (L * s)]
    if s > 1:
        patterns += [tuple(-1 if a == column else 1 for _ in range(L) for a in range(s)) for column in range(s)]
    if L > 2:
        patterns += [tuple(-1 if l == token else 1 for l in range(L) for _ in range(s)) for token in range(L)]
    return patterns


def _probes(D: int) -> list[list[tuple[str, ...]]]:
    """Points of the unit ball in parts: intervals of a line, or sectors around the signs of the first coordinates.

    Digits are fixed here, by arithmetic that is exact in every library: multiples of square roots of primes, modulo 1.
    """
    if D == 1:
        return [[(f"{(-1 + (part + (k + 0.5) / 6) / 3):.6f}",) for k in range(6)] for part in range(6)]
    from math import isqrt

    primes = (2, 3, 5, 7, 11, 13, 17, 19)[:D]
    scale = 10**12
    steps = [isqrt(p * scale * scale) % scale for p in primes]
    parts: list[list[tuple[str, ...]]] = [[] for _ in range(4)]
    index = 0
    while min(len(part) for part in parts) < 8 * min(D, 4):
        index += 1
        point = [2 * (index * step % scale) / scale - 1 for step in steps]
        if sum(x * x for x in point) > 1:
            continue
        part = parts[(point[0] > 0) + 2 * (point[1] > 0)]
        if len(part) < 8 * min(D, 4):
            part.append(tuple(f"{x:.6f}" for x in point))
    return parts


def _factor_lines(D: int, modified: bool) -> list[str]:
    """Unrolled H = L diag(e) L^T; non-positive pivots are replaced where `modified`."""
    lines: list[str] = []
    for j in range(D):
        terms = "".join(f" - l_{j}_{k} * l_{j}_{k} * e_{k}" for k in range(j))
        lines.append(f"e_{j} = h_{j}_{j}{terms}")
        if modified:
            lines += [f"if e_{j} < tiny:", f"    e_{j} = max(floor, -e_{j})", "    modified = True"]
        for i in range(j + 1, D):
            terms = "".join(f" - l_{i}_{k} * l_{j}_{k} * e_{k}" for k in range(j))
            lines.append(f"l_{i}_{j} = (h_{j}_{i}{terms}) / e_{j}")
    return lines


def _solve_lines(D: int) -> list[str]:
    """Unrolled step = -(L diag(e) L^T)^{-1} d."""
    lines = []
    for i in range(D):
        lines.append(f"b_{i} = -d_{i}" + "".join(f" - l_{i}_{k} * b_{k}" for k in range(i)))
    for i in reversed(range(D)):
        lines.append(f"step_{i} = b_{i} / e_{i}" + "".join(f" - l_{k}_{i} * step_{k}" for k in range(i + 1, D)))
    return lines


def _keep(x_names: list[str], h_names: list[str]) -> str:
    """Compare a new minimum with the best one: count it if distinct, keep the lower, remember the gap."""
    distance = " + ".join(f"(new_{x} - {x}) * (new_{x} - {x})" for x in x_names)
    moves = [f"            {n} = new_{n}" for n in [*x_names, *h_names]]
    lines = [
        f"    if new_size >= 0.0 and {distance} > merge:",
        "        minima = 2",
        "        difference = abs(new_value - value)",
        "        if not difference >= gap:",
        "            gap = difference",
        "        if new_value < value or size < 0.0:",
        *moves,
        "            value = new_value",
        "            size = new_size",
        "            lowest = new_lowest",
    ]
    return "\n".join(lines)


def noise_branch(
    model: ModelAt,
    probabilities: Kernel | None,
    values: tuple[tuple[float, ...], ...],
    unpack: Callable[[Kernel], str],
) -> str:
    """The loop over values of labelled noise, or a loop of one."""
    if probabilities is None:
        return "        for _ in range(1):\n            weight = weights[n]"
    lines = ["    " + line for line in unpack(probabilities).splitlines()]
    lines += ["        " + line for line in body(probabilities)]
    lines.append(f"        for choice in range({len(values)}):")
    for n, row in enumerate(values):
        lines.append(f"            {'if' if n == 0 else 'elif'} choice == {n}:")
        lines.append(f"                weight = weights[n] * probability_{n}")
        lines += [f"                {u} = {v}" for u, v in zip(discrete_noise(model), row, strict=True)]
    lines += ["            if weight == 0.0:", "                continue"]
    return "\n".join(lines)
