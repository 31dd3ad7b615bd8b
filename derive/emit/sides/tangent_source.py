"""What the tangent template needs: differentials of the saddle point's equations, entry by entry.

Every entry a of a matrix has a change d_a; an inverse changes by -M^(-1) dM M^(-1). The lines are NumPy's, over all
contexts and directions at once: beside the averages over the channel they take no time, and nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import sympy as sp

from ...authoring.model import ModelAt
from ..kernel import freeze
from ..printers.numba import NUMBA
from .channel import Channel, saddle_for
from .prior_source import composite_entries, conjugate_stages, overlap_entries, ridge_moments


def differential(expression: sp.Expr, still: Iterable[str] = ()) -> sp.Expr:
    """Sum of derivative times d_<name> over the symbols of an expression, those named in `still` left out."""
    moving = sorted((x for x in expression.free_symbols if x.name not in set(still)), key=lambda x: x.name)
    return sp.Add(*[sp.diff(expression, x) * sp.Symbol(f"d_{x.name}", real=True) for x in moving])


def tangent_context(model: ModelAt, channel: Channel) -> dict[str, Any]:
    """Lines of the tangent template."""
    structure = model.structure
    s, t = structure.student_rank, structure.teacher_rank
    saddle = saddle_for(model)
    p = saddle.symbols
    context = {
        "s": s,
        "t": t,
        "own": [name for name, _ in channel.own_slopes.results] if channel.own_slopes else [],
        "row": sum(m.shape[0] * m.shape[1] for m in channel.moments),
        "ridge": model.penalty is None,
        **_row_lines(channel),
    }
    stages = conjugate_stages(saddle)
    vectors = {p.m.name, p.m_hat.name}
    arrays = {a.name for a in (*p.overlaps, p.rho_star)}
    still = {f"{p.rho_star.name}_{i}_{j}" for i, j in product(range(t), range(t))}
    read: set[str] = set()
    inverses = []
    for name, matrix in stages.inverses:
        value_lines, rows, first = _matrix_lines(f"{name}_of", matrix)
        d_lines, d_rows, second = _matrix_lines(f"d_{name}_of", matrix.applyfunc(lambda e: differential(e, still)))
        read |= first | second
        inverses.append((name, int(matrix.shape[0]), value_lines, rows, d_lines, d_rows))
    changes = {
        f"d_{target}_{i}_{j}": differential(matrix[i, j], still)
        for target, matrix in stages.targets.items()
        for i, j in product(*map(range, matrix.shape))
    }
    kernel = freeze(changes, prefix="x")
    read |= kernel.names
    loads = _context_loads(read, arrays, vectors)
    for name, column in stages.averages:
        if name in read:
            loads.append(f"{name} = moments[:, {column}]")
        if f"d_{name}" in read:
            loads.append(f"d_{name} = d_moments[:, :, {column}]")
    context |= {
        "inverses": inverses,
        "conjugate_loads": loads,
        "conjugate_lines": NUMBA.body(kernel),
        "conjugate_rows": [
            _rows(f"d_{target.name}", stages.targets[target.name].shape)
            for target in (p.q_hat, p.V_hat, p.m_hat, p.theta_hat)
        ],
    }
    return context | (_ridge_context(model, saddle) if model.penalty is None else {})


def _matrix_lines(name: str, matrix: sp.Matrix) -> tuple[list[str], str, set[str]]:
    """Lines that define the entries of a matrix, its rows as text, and the names they read."""
    entries = {f"{name}_{i}_{j}": matrix[i, j] for i, j in product(*map(range, matrix.shape))}
    kernel = freeze(entries, prefix=f"{name}_t")
    return NUMBA.body(kernel), _rows(name, matrix.shape), set(kernel.names)


def _rows(name: str, shape: tuple[int, int]) -> str:
    rows = ["[" + ", ".join(f"{name}_{i}_{j}" for j in range(shape[1])) + "]" for i in range(shape[0])]
    return "[" + ", ".join(rows) + "]"


def _context_loads(names: Iterable[str], arrays: set[str], vectors: set[str]) -> list[str]:
    """Lines that read A_i_j (C,) and d_A_i_j (n, C) from the arrays A and d_A."""
    lines = []
    for name in sorted(names):
        stem, *indices = name.rsplit("_", 2)
        array = stem.removeprefix("d_")
        if array in arrays and len(indices) == 2:
            context = ":, :" if stem != array else ":"
            place = indices[0] if array in vectors else ", ".join(indices)
            lines.append(f"{name} = {stem}[{context}, {place}]")
    return lines


def _row_lines(channel: Channel) -> dict[str, list[str]]:
    """Derivatives of the moment rows where the loss holds nothing of the solution itself."""
    lines = []
    for line in NUMBA.body(channel.moment_slopes):
        target, expression = line.split(" = ", 1)
        if target.startswith("r_"):
            _, l, index, field, column = target.split("_")
            target = f"to_{field}[:, {l}, {index}, {column}]"
        lines.append(f"{target} = {expression}")
    loads = []
    for name in sorted(channel.moment_slopes.names):
        stem, *place = name.split("_")
        if stem in ("g", "dw", "dy"):
            loads.append(f"{name} = {stem}[:, {', '.join(place)}]")
    return {"row_loads": loads, "row_lines": lines}


def _ridge_context(model: ModelAt, saddle: Any) -> dict[str, Any]:
    """Composites and overlaps of a ridge over all atoms at once."""
    p = saddle.symbols
    vectors = {p.m.name, p.m_hat.name}
    entries = composite_entries(saddle)
    kernels = {target: freeze({target: e}) for target, e in entries.items()}
    read = sorted(set().union(*[kernel.names for kernel in kernels.values()]) - {"gamma_n"})
    lines = []
    for name in read:
        stem, i, j = name.rsplit("_", 2)
        place = i if stem in vectors else f"{i}, {j}"
        lines.append(f"{name} = {stem}[..., n, {place}, None]")
    for target, kernel in kernels.items():
        (line,) = NUMBA.body(kernel)
        array, place = target.rstrip("]").split("[")
        lines.append(f"{array}[..., :, {place}] += {line.removeprefix(f'{target} = ')}")

    _, _, Btau, Bpi, entries_of = ridge_moments(saddle)
    outputs = {}
    for overlap, matrix in overlap_entries(saddle, entries_of).items():
        for a, b in product(*map(range, matrix.shape)):
            place = f"{a}" if overlap.name in vectors else f"{a}, {b}"
            outputs[f"d_{overlap.name}[:, n, {place}]"] = differential(matrix[a, b], {"gamma_n"})
    kernel = freeze(outputs, prefix="x")
    loads: list[str] = []
    own: list[str] = []
    for name in sorted(kernel.names - {"gamma_n"}):
        bare = name.removeprefix("d_")
        stem, i, j = bare.rsplit("_", 2)
        prefix = "d_" if bare != name else ""
        if stem == Btau.name:
            own.append(f"{name} = {prefix}product[..., {i}, n]")
        elif stem == Bpi.name:
            own.append(f"{name} = {prefix}product[..., {i}, contexts + {j}]")
        else:
            loads.append(f"{name} = {prefix}{stem}[..., {i}, {j}]")
    changes = []
    for line in NUMBA.body(kernel):
        target, expression = line.split(" = ", 1)
        changes.append(f"{target} = ({expression}) @ weights" if "[" in target else line)
    return {"composite_lines": lines, "overlap_loads": loads, "overlap_lines": own + changes}
