"""Variables of the tangent template: differentials of the saddle point's equations, entry by entry.

Every entry a of a matrix has a change d_a; an inverse changes by -M^(-1) dM M^(-1). The lines are NumPy's, over all
contexts and directions at once: compared with the averages over the channel they take no time, and nothing is compiled.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from ...authoring.model import FixedSizeModel
from ...authoring.regulariser import Sphere
from ...theory.norms import row_norm_condition
from ...theory.saddle_point import SaddlePoint, saddle_point
from ...theory.thermal import beta
from ..kernel import ArrayEntryName, add_origin_comment, array_entries, make_kernel
from ..printers.numba import NUMBA
from .channel import ChannelKernels, saddle_point_of_model
from .prior_source import (
    conjugate_equations,
    contributions_to_overlaps,
    contributions_to_prior_parameters,
    indices_in_overlap_arrays,
    norm_constraint_residuals,
    ridge_second_moments,
)


@cache
def total_differential(expression: sp.Expr, still: frozenset[str] = frozenset()) -> sp.Expr:
    """Return the total differential of an expression, with the symbol d_<name> as the differential of <name>.

    Args:
        expression: scalar expression.
        still: names of the symbols that do not change.
    """
    moving = sorted((x for x in expression.free_symbols if x.name not in still), key=lambda x: x.name)
    return sp.Add(*[sp.diff(expression, x) * sp.Symbol(f"d_{x.name}", real=True) for x in moving])


_DIFFERENTIALS = (total_differential, saddle_point)


def tangent_template_variables(model: FixedSizeModel, channel: ChannelKernels) -> dict[str, Any]:
    """Return the variables of the tangent code template: differentials of the saddle-point equations.

    Args:
        model: model with fixed sizes L, s, t.
        channel: kernels of the model's channel averages.
    """
    structure = model.structure
    s, t = structure.student_rank, structure.teacher_rank
    saddle = saddle_point_of_model(model)
    p = saddle.symbols
    context = {"s": s, "t": t, "weights": True, "ridge": model.penalty is None, **_moment_template_variables(channel)}
    stages = conjugate_equations(saddle)
    still = frozenset(map(str, array_entries(p.rho_star.name, t, t)))
    read: set[str] = set()
    inverses = []
    for name, matrix in stages.inverses:
        value_lines, rows, first = _lines_defining_matrix(f"{name}_of", matrix)
        d_lines, d_rows, second = _lines_defining_matrix(
            f"d_{name}_of", matrix.applyfunc(lambda e: total_differential(e, still))
        )
        read |= first | second
        inverses.append((name, int(matrix.shape[0]), value_lines, rows, d_lines, d_rows))
    changes = {
        entry: total_differential(matrix[entry.place], still)
        for target, matrix in stages.targets.items()
        for entry in array_entries(f"d_{target}", *matrix.shape)
    }
    kernel = make_kernel(changes, prefix="x", equations="docs/theory.md (5.2) to (5.5)", formulas=_DIFFERENTIALS)
    read |= kernel.input_names
    loads = []
    for entry, place in sorted(indices_in_overlap_arrays(saddle).items()):
        loads += [f"{entry} = {entry.array}[:, {place}]"] if entry in read else []
        loads += [f"d_{entry} = d_{entry.array}[:, :, {place}]"] if f"d_{entry}" in read else []
    for entry, column in stages.averages.items():
        loads += [f"{entry} = moments[:, {column}]"] if entry in read else []
        loads += [f"d_{entry} = d_moments[:, :, {column}]"] if f"d_{entry}" in read else []
    context |= {
        "inverses": inverses,
        "conjugate_loads": add_origin_comment(loads),
        "conjugate_lines": NUMBA.kernel_body_lines(kernel),
        "conjugate_rows": [
            _matrix_literal(f"d_{target.name}", stages.targets[target.name].shape)
            for target in (p.q_hat, p.V_hat, p.m_hat, p.theta_hat)
        ],
    }
    if model.penalty is None:
        sphere = isinstance(model.regulariser, Sphere)
        context |= (
            _ridge_template_variables(saddle)
            | {"sphere": sphere}
            | (_norm_template_variables(saddle) if sphere else {})
        )
    return context


def reduced_problem_tangent_variables(channel: ChannelKernels) -> dict[str, Any]:
    """Return the variables of the tangent code template for a problem with fewer fields (channel averages only)."""
    return {"weights": False, **_moment_template_variables(channel)}


def _moment_template_variables(channel: ChannelKernels) -> dict[str, Any]:
    return {
        "own": [name for name, _ in channel.own_slopes.results] if channel.own_slopes else [],
        "row": sum(m.shape[0] * m.shape[1] for m in channel.moments),
        **_lines_of_summand_derivatives(channel),
    }


def _lines_defining_matrix(name: str, matrix: sp.Matrix) -> tuple[list[str], str, set[str]]:
    """Return source lines that define a matrix's entries, the matrix's literal, and the names that the lines use."""
    outputs = {entry: matrix[entry.place] for entry in array_entries(name, *matrix.shape)}
    kernel = make_kernel(outputs, prefix=f"{name}_t", equations="docs/theory.md (5.4)", formulas=_DIFFERENTIALS)
    return NUMBA.kernel_body_lines(kernel), _matrix_literal(name, matrix.shape), set(kernel.input_names)


def _matrix_literal(name: str, shape: tuple[int, int]) -> str:
    rows = ["[" + ", ".join(ArrayEntryName(name, i, j) for j in range(shape[1])) + "]" for i in range(shape[0])]
    return "[" + ", ".join(rows) + "]"


def _lines_of_summand_derivatives(channel: ChannelKernels) -> dict[str, list[str]]:
    """Return source lines of derivatives of the channel averages' integrands in the fields g, omega - m, Y - m*."""
    structure, kernel = channel.model.structure, channel.moment_slopes
    L, s, t = structure.tokens, structure.student_rank, structure.teacher_rank

    def assign_derivative(slope: ArrayEntryName, value: str) -> str:
        """Return the source line that stores a derivative in its array.

        Args:
            slope: name of the derivative, an entry of an array.
            value: source text of its value.
        """
        return f"{slope.array}[:, {slope.subscript}] = {value}"

    fields = [*array_entries("g", L, s), *array_entries("dw", L, s), *array_entries("dy", L, t)]
    loads = [f"{e} = {e.array}[:, {e.subscript}]" for e in sorted(fields) if e in kernel.input_names]
    return {"row_loads": add_origin_comment(loads), "row_lines": NUMBA.kernel_body_lines(kernel, assign_derivative)}


def _ridge_template_variables(saddle: SaddlePoint) -> dict[str, Any]:
    """Return template variables of the differentials of overlaps and of a row's prior parameters, for a ridge.

    These parameters are the precision G, the mean B and the covariance Q of the row's field. All spectral atoms are
    computed at once.
    """
    composites = contributions_to_prior_parameters(saddle)
    kernel = make_kernel(
        {f"{array}[..., :, {place}]": e for (array, place), e in composites.items()},
        equations="docs/theory.md (8.5)",
        formulas=[contributions_to_prior_parameters],
    )
    places = indices_in_overlap_arrays(saddle)
    lines = add_origin_comment(
        [f"{e} = {e.array}[..., n, {place}, None]" for e, place in sorted(places.items()) if e in kernel.input_names]
    )
    lines += NUMBA.kernel_body_lines(kernel, "{} += {}".format)

    resolvent, square, Btau, Bpi, express_summand = ridge_second_moments(saddle)
    outputs = {
        f"d_{overlap.name}[:, n, {places[entry]}]": total_differential(matrix[entry.place], frozenset({"gamma_n"}))
        for overlap, matrix in contributions_to_overlaps(saddle, express_summand).items()
        for entry in array_entries(overlap.name, *matrix.shape)
    }
    kernel = make_kernel(
        outputs,
        prefix="x",
        equations="docs/theory.md (8.6), (8.7)",
        formulas=[total_differential, contributions_to_overlaps],
    )
    p = saddle.symbols
    loads: list[str] = []
    own: list[str] = []
    for matrix in sorted((resolvent, square, p.Q, Btau, Bpi), key=str):
        for entry in array_entries(matrix.name, *map(int, matrix.shape)):
            for d in [d for d in ("", "d_") if f"{d}{entry}" in kernel.input_names]:
                i, j = entry.place
                if matrix == Btau:
                    own.append(f"{d}{entry} = {d}product[..., {i}, n]")
                elif matrix == Bpi:
                    own.append(f"{d}{entry} = {d}product[..., {i}, contexts + {j}]")
                else:
                    loads.append(f"{d}{entry} = {d}{matrix.name}[..., {i}, {j}]")
    changes = NUMBA.kernel_body_lines(kernel, "{} = ({}) @ weights".format)
    return {
        "composite_lines": lines,
        "overlap_loads": add_origin_comment(loads),
        "overlap_lines": add_origin_comment(own) + changes,
    }


def _norm_template_variables(saddle: SaddlePoint) -> dict[str, Any]:
    """Return variables of the tangent code's template: differentials of the mean squares of the columns of W.

    They are those at zero temperature, with the derivatives in the Lagrange multipliers of the fixed norms.
    """
    s = int(saddle.symbols.s)
    excess, slope = (part.applyfunc(lambda e: e.subs(beta, sp.oo)) for part in norm_constraint_residuals(saddle))
    outputs = {f"change[:, {a}]": total_differential(excess[a]) for a in range(s)}
    outputs |= {f"slope[{a}, {b}]": slope[a, b] for a in range(s) for b in range(s)}
    formulas = [total_differential, row_norm_condition]
    kernel = make_kernel(outputs, prefix="n", equations="docs/theory.md (6.6), (6.7)", formulas=formulas)
    loads = [
        f"{d}{e} = {d}{name}[..., {e.subscript}]"
        for name in ("R", "BB", "Q")
        for e in array_entries(name, s, s)
        for d in ("", "d_")
        if f"{d}{e}" in kernel.input_names
    ]
    loads += [f"{e} = norm[{e.subscript}]" for e in array_entries("norm", s)]
    loads += [f"d_{e} = d_norm[:, {e.subscript}, None]" for e in array_entries("norm", s)]
    return {
        "norm_loads": add_origin_comment(loads),
        "norm_lines": NUMBA.kernel_body_lines(kernel, "{} = ({}) @ weights".format),
    }
