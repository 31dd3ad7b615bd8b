"""What the tangent template needs: differentials of the saddle point's equations, entry by entry.

Every entry a of a matrix has a change d_a; an inverse changes by -M^(-1) dM M^(-1). The lines are NumPy's, over all
contexts and directions at once: beside the averages over the channel they take no time, and nothing is compiled.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from ...authoring.model import ModelAt
from ...authoring.regulariser import Sphere
from ...theory.norms import norm_condition
from ...theory.saddle_point import SaddlePoint, saddle_point
from ...theory.thermal import beta
from ..kernel import Entry, entries, freeze, stamped
from ..printers.numba import NUMBA
from .channel import Channel, saddle_for
from .prior_source import composite_entries, conjugate_stages, norm_entries, overlap_entries, ridge_moments, stored


@cache
def differential(expression: sp.Expr, still: frozenset[str] = frozenset()) -> sp.Expr:
    """Sum of derivative times d_<name> over the symbols of an expression, those named in `still` left out."""
    moving = sorted((x for x in expression.free_symbols if x.name not in still), key=lambda x: x.name)
    return sp.Add(*[sp.diff(expression, x) * sp.Symbol(f"d_{x.name}", real=True) for x in moving])


_DIFFERENTIALS = (differential, saddle_point)


def tangent_context(model: ModelAt, channel: Channel) -> dict[str, Any]:
    """Lines of the tangent template."""
    structure = model.structure
    s, t = structure.student_rank, structure.teacher_rank
    saddle = saddle_for(model)
    p = saddle.symbols
    context = {"s": s, "t": t, "weights": True, "ridge": model.penalty is None, **_moments(channel)}
    stages = conjugate_stages(saddle)
    still = frozenset(map(str, entries(p.rho_star.name, t, t)))
    read: set[str] = set()
    inverses = []
    for name, matrix in stages.inverses:
        value_lines, rows, first = _matrix_lines(f"{name}_of", matrix)
        d_lines, d_rows, second = _matrix_lines(f"d_{name}_of", matrix.applyfunc(lambda e: differential(e, still)))
        read |= first | second
        inverses.append((name, int(matrix.shape[0]), value_lines, rows, d_lines, d_rows))
    changes = {
        entry: differential(matrix[entry.place], still)
        for target, matrix in stages.targets.items()
        for entry in entries(f"d_{target}", *matrix.shape)
    }
    kernel = freeze(changes, prefix="x", equations="docs/theory.md (5.2) to (5.5)", formulas=_DIFFERENTIALS)
    read |= kernel.names
    loads = []
    for entry, place in sorted(stored(saddle).items()):
        loads += [f"{entry} = {entry.array}[:, {place}]"] if entry in read else []
        loads += [f"d_{entry} = d_{entry.array}[:, :, {place}]"] if f"d_{entry}" in read else []
    for entry, column in stages.averages.items():
        loads += [f"{entry} = moments[:, {column}]"] if entry in read else []
        loads += [f"d_{entry} = d_moments[:, :, {column}]"] if f"d_{entry}" in read else []
    context |= {
        "inverses": inverses,
        "conjugate_loads": stamped(loads),
        "conjugate_lines": NUMBA.body(kernel),
        "conjugate_rows": [
            _rows(f"d_{target.name}", stages.targets[target.name].shape)
            for target in (p.q_hat, p.V_hat, p.m_hat, p.theta_hat)
        ],
    }
    if model.penalty is None:
        sphere = isinstance(model.regulariser, Sphere)
        context |= _ridge_context(saddle) | {"sphere": sphere} | (_norm_context(saddle) if sphere else {})
    return context


def moment_tangent_context(channel: Channel) -> dict[str, Any]:
    """Lines of the tangent template for the moments alone, of a problem that has no weights of its own."""
    return {"weights": False, **_moments(channel)}


def _moments(channel: Channel) -> dict[str, Any]:
    return {
        "own": [name for name, _ in channel.own_slopes.results] if channel.own_slopes else [],
        "row": sum(m.shape[0] * m.shape[1] for m in channel.moments),
        **_row_lines(channel),
    }


def _matrix_lines(name: str, matrix: sp.Matrix) -> tuple[list[str], str, set[str]]:
    """Lines that define the entries of a matrix, its rows as text, and the names they read."""
    outputs = {entry: matrix[entry.place] for entry in entries(name, *matrix.shape)}
    kernel = freeze(outputs, prefix=f"{name}_t", equations="docs/theory.md (5.4)", formulas=_DIFFERENTIALS)
    return NUMBA.body(kernel), _rows(name, matrix.shape), set(kernel.names)


def _rows(name: str, shape: tuple[int, int]) -> str:
    rows = ["[" + ", ".join(Entry(name, i, j) for j in range(shape[1])) + "]" for i in range(shape[0])]
    return "[" + ", ".join(rows) + "]"


def _row_lines(channel: Channel) -> dict[str, list[str]]:
    """Derivatives of the moment rows where the loss holds nothing of the solution itself."""
    structure, kernel = channel.model.structure, channel.moment_slopes
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank

    def stored_slope(slope: Entry, value: str) -> str:
        return f"{slope.array}[:, {slope.subscript}] = {value}"

    fields = [*entries("g", L, s), *entries("dw", L, s), *entries("dy", L, t)]
    loads = [f"{e} = {e.array}[:, {e.subscript}]" for e in sorted(fields) if e in kernel.names]
    return {"row_loads": stamped(loads), "row_lines": NUMBA.body(kernel, stored_slope)}


def _ridge_context(saddle: SaddlePoint) -> dict[str, Any]:
    """Composites and overlaps of a ridge over all atoms at once."""
    composites = composite_entries(saddle)
    kernel = freeze(
        {f"{array}[..., :, {place}]": e for (array, place), e in composites.items()},
        equations="docs/theory.md (8.5)",
        formulas=[composite_entries],
    )
    places = stored(saddle)
    lines = stamped(
        [f"{e} = {e.array}[..., n, {place}, None]" for e, place in sorted(places.items()) if e in kernel.names]
    )
    lines += NUMBA.body(kernel, "{} += {}".format)

    resolvent, square, Btau, Bpi, entries_of = ridge_moments(saddle)
    outputs = {
        f"d_{overlap.name}[:, n, {places[entry]}]": differential(matrix[entry.place], frozenset({"gamma_n"}))
        for overlap, matrix in overlap_entries(saddle, entries_of).items()
        for entry in entries(overlap.name, *matrix.shape)
    }
    kernel = freeze(
        outputs, prefix="x", equations="docs/theory.md (8.6), (8.7)", formulas=[differential, overlap_entries]
    )
    p = saddle.symbols
    loads: list[str] = []
    own: list[str] = []
    for matrix in sorted((resolvent, square, p.Q, Btau, Bpi), key=str):
        for entry in entries(matrix.name, *map(int, matrix.shape)):
            for d in [d for d in ("", "d_") if f"{d}{entry}" in kernel.names]:
                i, j = entry.place
                if matrix == Btau:
                    own.append(f"{d}{entry} = {d}product[..., {i}, n]")
                elif matrix == Bpi:
                    own.append(f"{d}{entry} = {d}product[..., {i}, contexts + {j}]")
                else:
                    loads.append(f"{d}{entry} = {d}{matrix.name}[..., {i}, {j}]")
    changes = NUMBA.body(kernel, "{} = ({}) @ weights".format)
    return {"composite_lines": lines, "overlap_loads": stamped(loads), "overlap_lines": stamped(own) + changes}


def _norm_context(saddle: SaddlePoint) -> dict[str, Any]:
    """How mean squares of the columns' entries change where the multipliers do not, and their slopes in these, at zero
    temperature."""
    s = int(saddle.symbols.s)
    excess, slope = (part.applyfunc(lambda e: e.subs(beta, sp.oo)) for part in norm_entries(saddle))
    outputs = {f"change[:, {a}]": differential(excess[a]) for a in range(s)}
    outputs |= {f"slope[{a}, {b}]": slope[a, b] for a in range(s) for b in range(s)}
    formulas = [differential, norm_condition]
    kernel = freeze(outputs, prefix="n", equations="docs/theory.md (6.6), (6.7)", formulas=formulas)
    loads = [
        f"{d}{e} = {d}{name}[..., {e.subscript}]"
        for name in ("R", "BB", "Q")
        for e in entries(name, s, s)
        for d in ("", "d_")
        if f"{d}{e}" in kernel.names
    ]
    loads += [f"{e} = norm[{e.subscript}]" for e in entries("norm", s)]
    loads += [f"d_{e} = d_norm[:, {e.subscript}, None]" for e in entries("norm", s)]
    return {"norm_loads": stamped(loads), "norm_lines": NUMBA.body(kernel, "{} = ({}) @ weights".format)}
