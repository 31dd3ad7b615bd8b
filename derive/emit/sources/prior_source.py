"""Variables of the prior's template: the saddle point's equations as lines of scalar code.

Averages over the channel become entries of the moment rows, inverses are named innermost first, and averages over a
coordinate are reduced to second moments of (tau, pi).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixElement

from ...authoring.model import FixedSizeModel
from ...authoring.parameters import flatten_entries
from ...authoring.regulariser import FixedSizePenalty, Sphere
from ...calculus.averages import (
    CONTEXTS,
    COORDINATE,
    Jacobian,
    MatrixAverage,
    OrderParameterSymbols,
    to_explicit_matrix,
)
from ...calculus.piecewise import drop_delta_functions
from ...calculus.stable_functions import rewrite_without_overflow
from ...theory.free_entropy import free_entropy, split_coefficient_and_average
from ...theory.norms import row_norm_condition
from ...theory.saddle_point import SaddlePoint, channel_averages, saddle_point
from ...theory.thermal import beta, thermal_corrections
from ..kernel import ArrayEntryName, Kernel, add_origin_comment, array_entries, make_kernel, model_function_location
from ..printers.dialect import SourceCodeDialect
from ..printers.numba import NUMBA
from . import rows
from .channel import join_names_of_factors, saddle_point_of_model

BY_TEMPERATURE = {beta: 1 / sp.Symbol("temperature", positive=True)}
# Points an axis of the grids that find a Boltzmann weight, by the number of variables.
SCAN = {1: 25, 2: 12, 3: 8, 4: 7}


def _write_out_matrix(matrix: sp.MatrixExpr) -> sp.Matrix:
    return sp.Matrix(to_explicit_matrix(matrix.doit()))


def _replace_entries_by_symbols(expression: sp.Expr) -> sp.Expr:
    """Return an expression with the entries A[i, j] of matrices replaced by scalar symbols A_i_j."""
    return expression.xreplace(
        {e: ArrayEntryName(e.parent.name, int(e.i), int(e.j)).symbol for e in expression.atoms(MatrixElement)}
    )


def indices_in_overlap_arrays(saddle: SaddlePoint) -> dict[ArrayEntryName, str]:
    """Return a map from entries of overlaps, conjugates and the teacher's rho* to their indices in generated arrays."""
    p = saddle.symbols
    found = {}
    for matrix in (*p.overlaps, *p.conjugate_order_parameters, p.rho_star):
        for entry in array_entries(matrix.name, *map(int, matrix.shape)):
            found[entry] = str(entry.place[0]) if matrix in (p.m, p.m_hat) else entry.subscript
    return found


def _lines_loading_overlaps(names: Iterable[str], places: Mapping[ArrayEntryName, str]) -> list[str]:
    """Return source lines that assign the entries A[n, i, j] of overlaps and conjugates to variables A_i_j."""
    read = set(names)
    return add_origin_comment(
        [f"{entry} = {entry.array}[n, {place}]" for entry, place in sorted(places.items()) if entry in read]
    )


@dataclass(frozen=True)
class ConjugateEquations:
    """The equations of the conjugates of one (token, cluster) pair, with names for averages and inverses.

    Attributes:
        averages: column in the array of channel averages, by entry of an average.
        inverses: (name, matrix whose inverse it is), innermost first; later matrices use the names of earlier ones.
        targets: right sides of the equations by conjugate, symmetrised where they must be.
    """

    averages: dict[ArrayEntryName, int]
    inverses: tuple[tuple[str, sp.Matrix], ...]
    targets: dict[str, sp.Matrix]


@cache
def conjugate_equations(saddle: SaddlePoint) -> ConjugateEquations:
    """Return the equations of the conjugates of one (token, cluster) pair, with named averages and inverses."""
    p = saddle.symbols
    named_averages: dict[sp.MatrixExpr, sp.MatrixSymbol] = {}
    averages: list[ArrayEntryName] = []
    for average in channel_averages(saddle):
        name, shape = f"mean_{join_names_of_factors(average.summand)}", [int(n) for n in average.shape]
        named_averages[average] = sp.MatrixSymbol(name, *shape)
        averages += array_entries(name, *shape)
    equations = {
        e.target.name: e.value.xreplace(named_averages)
        for e in saddle.equations
        if e.target in p.conjugate_order_parameters
    }
    inverses: list[tuple[str, sp.Matrix]] = []
    while True:
        found = sorted({i for e in equations.values() for i in e.atoms(sp.Inverse)}, key=str)
        found = [i for i in found if not i.arg.has(sp.Inverse)]
        if not found:
            break
        for inverse in found:
            name, size = f"inverse{len(inverses)}", int(inverse.shape[0])
            inverses.append((name, _write_out_matrix(inverse.arg).applyfunc(_replace_entries_by_symbols)))
            symbol = sp.MatrixSymbol(name, size, size)
            equations = {k: e.xreplace({inverse: symbol}) for k, e in equations.items()}
    targets = {}
    for target, value in equations.items():
        matrix = _write_out_matrix(value)
        if target == p.V_hat.name:
            matrix = (matrix + matrix.T) / 2
        targets[target] = matrix.applyfunc(_replace_entries_by_symbols)
    return ConjugateEquations({entry: column for column, entry in enumerate(averages)}, tuple(inverses), targets)


def prior_template_variables(model: FixedSizeModel, dialect: SourceCodeDialect = NUMBA) -> dict[str, Any]:
    """Return the variables of the code template of the rows of W, for the model's regulariser.

    Args:
        model: model with fixed sizes L, s, t.
        dialect: printer of the lines.
    """
    structure = model.structure
    s, t = structure.student_rank, structure.teacher_rank
    saddle = saddle_point_of_model(model)
    places = indices_in_overlap_arrays(saddle)
    stages = conjugate_equations(saddle)
    names: set[str] = set()
    inverses: list[tuple[str, int, list[str]]] = []
    for name, matrix in stages.inverses:
        kernel = make_kernel(
            {f"{name}_of[{i}, {j}]": matrix[i, j] for i, j in product(*map(range, matrix.shape))},
            prefix=f"{name}_t",
            equations="docs/theory.md (5.4)",
            formulas=[conjugate_equations, saddle_point],
        )
        names |= kernel.input_names
        inverses.append((name, int(matrix.shape[0]), dialect.kernel_body_lines(kernel)))
    outputs: dict[str, sp.Expr] = {}
    for target, matrix in stages.targets.items():
        for entry in array_entries(target, *matrix.shape):
            outputs[f"{target}[n, {places[entry]}]"] = matrix[entry.place]
    conjugate_kernel = make_kernel(
        outputs, equations="docs/theory.md (5.2) to (5.5)", formulas=[conjugate_equations, saddle_point]
    )
    names |= conjugate_kernel.input_names
    loads = _lines_loading_overlaps(names, places)
    loads += add_origin_comment([f"{n} = moments[n, {k}]" for n, k in stages.averages.items() if n in names])

    return {
        "s": s,
        "t": t,
        "channel_inverses": inverses,
        "conjugate_loads": loads,
        "conjugate_lines": dialect.kernel_body_lines(conjugate_kernel),
        "composite_lines": _lines_of_prior_parameters(saddle, places, dialect),
        "trace_lines": _lines_of_trace_terms(saddle, model, places, dialect),
        "thermal_trace_lines": _lines_of_thermal_trace(saddle, places, dialect),
        **(
            _penalty_template_variables(model, model.penalty, saddle, places, dialect)
            if model.penalty
            else _ridge_template_variables(model, saddle, places, dialect)
        ),
    }


@cache
def contributions_to_prior_parameters(saddle: SaddlePoint) -> dict[tuple[str, str], sp.Expr]:
    """Return what a (token, cluster) pair adds to a row's prior parameters G, Q, B, by (array name, indices as text).

    G is a precision, Q and B are covariance and mean of the row's field. B is linear in (tau, pi), the mean coordinates
    and the teacher's row; its coefficients are entries of the array `field`. All are linear in the conjugates
    (docs/theory.md (3.8)).
    """
    p: OrderParameterSymbols = saddle.symbols
    s, t = int(p.s), int(p.t)
    gamma_n = sp.Symbol("gamma_n", real=True)
    found: dict[tuple[str, str], sp.Expr] = {}
    for composite, summand in p.effective_prior_parameters.items():
        matrix = _write_out_matrix(summand)
        if composite == p.B:
            for a in range(s):
                coefficients = {"n": sp.diff(matrix[a, 0], p.tau)}
                coefficients |= {f"contexts + {b}": sp.diff(matrix[a, 0], p.pi[b, 0]) for b in range(t)}
                for column, e in coefficients.items():
                    found["field", f"{a}, {column}"] = _replace_entries_by_symbols(e.subs(p.gamma, gamma_n))
        else:
            for i, j in product(range(s), range(s)):
                found[composite.name, f"{i}, {j}"] = _replace_entries_by_symbols(matrix[i, j].subs(p.gamma, gamma_n))
    return found


def _lines_of_prior_parameters(
    saddle: SaddlePoint, places: Mapping[ArrayEntryName, str], dialect: SourceCodeDialect
) -> list[str]:
    """Return source lines that add one (token, cluster) pair's terms to a row's prior parameters G, Q and B."""
    kernel = make_kernel(
        {f"{array}[{place}]": e for (array, place), e in contributions_to_prior_parameters(saddle).items()},
        equations="docs/theory.md (3.8)",
        formulas=[contributions_to_prior_parameters, OrderParameterSymbols.effective_prior_parameters],
    )
    return _lines_loading_overlaps(kernel.input_names, places) + dialect.kernel_body_lines(kernel, "{} += {}".format)


def _lines_of_trace_terms(
    saddle: SaddlePoint, model: FixedSizeModel, places: Mapping[ArrayEntryName, str], dialect: SourceCodeDialect
) -> list[str]:
    """Return source lines of the trace term of Phi for one (token, cluster) pair: overlaps times conjugates."""
    phi = free_entropy(int(saddle.symbols.s), int(saddle.symbols.t), model.regulariser)
    trace = sp.Integer(0)
    for term in sp.Add.make_args(phi.expression):
        coefficient, average = split_coefficient_and_average(term)
        if average.kind == CONTEXTS:
            trace += coefficient * _write_out_traces(average.summand)
    kernel = make_kernel(
        {"trace_n": _replace_entries_by_symbols(trace)}, equations="docs/theory.md (4.2)", formulas=[free_entropy]
    )
    return [*_lines_loading_overlaps(kernel.input_names, places), *dialect.kernel_body_lines(kernel)]


def _lines_of_thermal_trace(
    saddle: SaddlePoint, places: Mapping[ArrayEntryName, str], dialect: SourceCodeDialect
) -> list[str]:
    """Return source lines of the trace terms' correction at a finite temperature, for one (token, cluster) pair."""
    trace = _write_out_traces(thermal_corrections(saddle.symbols, ridge=False).trace)
    kernel = make_kernel(
        {"fluctuation_n": _replace_entries_by_symbols(trace).xreplace(BY_TEMPERATURE)},
        equations="docs/theory.md (12.1)",
        formulas=[thermal_corrections],
    )
    return [*_lines_loading_overlaps(kernel.input_names, places), *dialect.kernel_body_lines(kernel)]


def contributions_to_overlaps(
    saddle: SaddlePoint, express_summand: Callable[[sp.MatrixExpr], sp.Matrix]
) -> dict[sp.MatrixSymbol, sp.Matrix]:
    """Return the contributions of one coordinate to the overlaps of one (token, cluster) pair.

    Args:
        saddle: saddle-point equations.
        express_summand: function that writes a summand's average in scalar symbols.

    Raises:
        TypeError: an equation is not a sum of averages over a coordinate.
    """
    p: OrderParameterSymbols = saddle.symbols
    gamma_n = sp.Symbol("gamma_n", real=True)
    found: dict[sp.MatrixSymbol, sp.Matrix] = {}
    for equation in saddle.equations:
        if equation.target not in p.overlaps:
            continue
        matrix = sp.zeros(*(int(n) for n in equation.target.shape))
        for term in sp.MatAdd.make_args(equation.value):
            scalar, average = term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
            if not isinstance(average, MatrixAverage) or average.kind != COORDINATE:
                raise TypeError(
                    f"the equation of {equation.target} contains the term {term}, which is no average over rows of W"
                )
            matrix += scalar * express_summand(average.summand)
        found[equation.target] = matrix.applyfunc(lambda e: _replace_entries_by_symbols(e.subs(p.gamma, gamma_n)))
    return found


def _lines_adding_to_overlaps(
    saddle: SaddlePoint,
    places: Mapping[ArrayEntryName, str],
    express_summand: Callable[[sp.MatrixExpr], sp.Matrix],
    dialect: SourceCodeDialect,
    equations: str,
) -> list[str]:
    """Return source lines that add one coordinate's terms to the overlaps, which are averages over coordinates."""
    outputs = {
        f"{target.name}[n, {places[entry]}]": matrix[entry.place]
        for target, matrix in contributions_to_overlaps(saddle, express_summand).items()
        for entry in array_entries(target.name, *matrix.shape)
    }
    kernel = make_kernel(outputs, equations=equations, formulas=[contributions_to_overlaps, saddle_point])
    return dialect.kernel_body_lines(kernel, "{} += weight * ({})".format)


def _penalty_template_variables(
    model: FixedSizeModel,
    penalty: FixedSizePenalty,
    saddle: SaddlePoint,
    places: Mapping[ArrayEntryName, str],
    dialect: SourceCodeDialect,
) -> dict[str, Any]:
    """Return the template variables of a penalty, with overlaps as averages over a row's field b.

    If the penalty depends on the teacher, the averages are over its row pi, too.
    """
    p: OrderParameterSymbols = saddle.symbols
    s, t = int(p.s), int(p.t)
    w, own = list(penalty.w), [model_function_location(model, penalty.written)]
    upper = [ArrayEntryName("h", i, j) for i in range(s) for j in range(i, s)]
    # A delta in the curvature belongs to a corner, at which w can be stationary, not to the smooth pieces.
    value = rewrite_without_overflow(penalty.expression_where_finite)
    gradient = [drop_delta_functions(sp.diff(value, a)) for a in w]
    slopes = {ArrayEntryName("d", i): e for i, e in enumerate(gradient)}
    slopes |= {h: drop_delta_functions(sp.diff(gradient[h.place[0]], w[h.place[1]])) for h in upper}
    kernels = {
        "value": make_kernel({"value": value}, equations="docs/theory.md (1.3)", formulas=own),
        "slopes": make_kernel(slopes, equations="docs/theory.md (6.1), (6.2)", formulas=own),
        "corners": make_kernel({f"corner_{n}": e for n, e in enumerate(penalty.kinks)}, formulas=own),
    }
    if penalty.bounds:
        kernels["bounds"] = make_kernel(dict(zip(("lowest", "highest"), penalty.bounds, strict=True)), formulas=own)
    pi_names = [b.name for b in penalty.pi] if penalty.depends_on_teacher else []
    row_kernels = {
        "stationarity": rows.row_stationarity_kernel(s),
        "envelope": rows.row_envelope_kernel(s),
        "density": rows.normal_density_kernel(),
        "known_teachers": rows.teacher_row_kernel(pi_names),
    }
    if s == 1:
        row_kernels["resting_field"] = rows.stationary_row_field_kernel()
    names = [
        symbol.name
        for key in penalty.parameters.values()
        for symbol in flatten_entries(key.argument_symbols(model.structure))
    ]

    def lines_loading_penalty_parameters(kernel: Kernel) -> str:
        read = add_origin_comment([f"{name} = c[{i}]" for i, name in enumerate(names) if name in kernel.input_names])
        return "\n".join(f"    {line}" for line in read)

    square, response = sp.MatrixSymbol("ww", s, s), sp.MatrixSymbol("response", s, s)
    means, taught = sp.MatrixSymbol("wtau", s, 1), sp.MatrixSymbol("wpi", s, t)

    def express_summand(summand: sp.MatrixExpr) -> sp.Matrix:
        scalar, factors = summand.as_coeff_matrices() if isinstance(summand, sp.MatMul) else (sp.Integer(1), [summand])
        if factors == [Jacobian(p.w, p.b)]:
            return scalar * _write_out_matrix(response)
        if factors == [p.w] and scalar.has(p.tau):
            return scalar / p.tau * _write_out_matrix(means)
        known = {(p.w, p.w.T): square, (p.w, p.pi.T): taught}
        return scalar * _write_out_matrix(known[tuple(factors)])

    lines = [f"{e} = {e.array}[{e.subscript}]" for e in (*array_entries("ww", s, s), *array_entries("response", s, s))]
    lines += [f"wtau_{a}_0 = wz[{a}, n]" for a in range(s)]
    lines += [f"wpi_{a}_{b} = wz[{a}, contexts + {b}]" for a in range(s) for b in range(t)]
    return {
        "prior_side": "penalty.py.jinja",
        "kernels": kernels | row_kernels,
        "unpack": lines_loading_penalty_parameters,
        "corners": penalty.kinks,
        "bounds": penalty.bounds,
        "known_teachers": t if penalty.depends_on_teacher else 0,
        "few_values": model.has_discrete_teacher,
        "given": t if model.has_average_over_teacher else 0,
        "parameters": len(names),
        "w_names": [a.name for a in w],
        "pi_names": pi_names,
        "b_names": array_entries("b", s),
        "G_names": [ArrayEntryName("G", a, b) for a in range(s) for b in range(a, s)],
        "factor_names": [
            e
            for e in (*array_entries("factor", len(pi_names), len(pi_names)), *array_entries("zeta", len(pi_names)))
            if e in row_kernels["known_teachers"].input_names
        ],
        "d_names": array_entries("d", s),
        "h_names": upper,
        "scan": SCAN[min(s, max(SCAN))],
        "overlap_lines": [
            *add_origin_comment(lines),
            *_lines_adding_to_overlaps(saddle, places, express_summand, dialect, "docs/theory.md (6.3)"),
        ],
    }


def ridge_second_moments(
    saddle: SaddlePoint,
) -> tuple[sp.MatrixSymbol, sp.MatrixSymbol, sp.MatrixSymbol, sp.MatrixSymbol, Callable[[sp.MatrixExpr], sp.Matrix]]:
    """Return symbols of the resolvent R, E[B B^T], E[B tau] and E[B pi^T], and a function that uses them.

    B is the mean field of a row of W, tau a mean coordinate and pi the teacher's row. The function writes the average
    of a matrix over one coordinate in these symbols.
    """
    p: OrderParameterSymbols = saddle.symbols
    s, t = int(p.s), int(p.t)
    resolvent = sp.MatrixSymbol("R", s, s)
    product_BB, product_tau = sp.MatrixSymbol("BB", s, s), sp.MatrixSymbol("Btau", s, 1)
    product_pi = sp.MatrixSymbol("Bpi", s, t)

    def express_summand(summand: sp.MatrixExpr) -> sp.Matrix:
        known = summand.xreplace({(p.Lambda + p.G).inv(): resolvent})
        return _express_by_second_moments(known, p, product_BB, product_tau, product_pi)

    return resolvent, product_BB, product_tau, product_pi, express_summand


def _ridge_template_variables(
    model: FixedSizeModel, saddle: SaddlePoint, places: Mapping[ArrayEntryName, str], dialect: SourceCodeDialect
) -> dict[str, Any]:
    """Return the template variables of a ridge: source lines of the overlaps and of the entropic terms of Phi.

    Overlaps are written in second moments of (tau, pi), the mean coordinates and the teacher's row.
    """
    s, t = model.structure.student_rank, model.structure.teacher_rank
    *_, express_summand = ridge_second_moments(saddle)
    reads = [f"Btau_{a}_0 = product[{a}, n]" for a in range(s)]
    reads += [f"Bpi_{a}_{b} = product[{a}, contexts + {b}]" for a in range(s) for b in range(t)]
    return {
        "prior_side": "ridge.py.jinja",
        "prefix": "",
        "second_moment_lines": _lines_defining_second_moments(s),
        "overlap_lines": [
            *add_origin_comment(reads),
            *_lines_adding_to_overlaps(saddle, places, express_summand, dialect, "docs/theory.md (5.8) to (5.11)"),
        ],
        "entropic_lines": _lines_of_entropic_term(model, saddle, dialect),
        "thermal_lines": _lines_of_thermal_corrections(model, saddle, dialect),
        **(
            _fixed_norm_template_variables(model.regulariser, saddle, dialect)
            if isinstance(model.regulariser, Sphere)
            else {}
        ),
    }


def norm_constraint_residuals(saddle: SaddlePoint) -> tuple[sp.Matrix, sp.Matrix]:
    """Return residuals and derivatives of the conditions that fix the norms of the columns of W.

    Residuals (s x 1): mean squares of a row's entries minus the prescribed squared norms. Derivatives (s x s): those in
    the Lagrange multipliers. Both are the terms of one coordinate, in the second moments that `ridge_second_moments`
    names.
    """
    s = int(saddle.symbols.s)
    condition, (*_, express_summand) = row_norm_condition(saddle.symbols), ridge_second_moments(saddle)
    moved = array_entries(condition.change.name, s)
    diagonal = _entries_of_diagonal_matrix("Norms", _squared_norm_symbols(s)) | _entries_of_diagonal_matrix(
        condition.change.name, [e.symbol for e in moved]
    )
    excess, answer = (
        express_summand(part).applyfunc(lambda e: _replace_entries_by_symbols(e).xreplace(diagonal))
        for part in (condition.excess, condition.slope)
    )
    return (
        sp.Matrix([excess[a, a] for a in range(s)]),
        sp.Matrix(s, s, lambda a, b: sp.diff(answer[a, a], moved[b].symbol)),
    )


def _entries_of_diagonal_matrix(name: str, values: Sequence[sp.Expr]) -> dict[sp.Symbol, sp.Expr]:
    """Return a map from the symbols of a diagonal matrix's entries to their values, zero off the diagonal."""
    size = len(values)
    return {
        e.symbol: values[e.place[0]] if len(set(e.place)) == 1 else sp.Integer(0)
        for e in array_entries(name, size, size)
    }


def _squared_norm_symbols(s: int) -> list[sp.Expr]:
    """Return the squared symbols of the fixed norms of the columns of W."""
    return [e.symbol**2 for e in array_entries("norm", s)]


def _fixed_norm_template_variables(sphere: Sphere, saddle: SaddlePoint, dialect: SourceCodeDialect) -> dict[str, Any]:
    """Return the template variables of fixed column norms: equations of the multipliers and terms of Phi."""
    s = int(saddle.symbols.s)
    excess, slope = norm_constraint_residuals(saddle)
    outputs = {f"excess[{a}]": excess[a] for a in range(s)}
    outputs |= {f"slope[{a}, {b}]": slope[a, b] for a, b in product(range(s), range(s))}
    kernel = make_kernel(
        {place: e.xreplace(BY_TEMPERATURE) for place, e in outputs.items()},
        equations="docs/theory.md (6.6), (6.7)",
        formulas=[row_norm_condition],
    )
    held = [e for name in ("R", "BB", "Q") for e in array_entries(name, s, s) if e in kernel.input_names]
    reads = [f"{e} = R[{e.subscript}]" if e.array == "R" else f"{e} = {e.array}[atom, {e.subscript}]" for e in held]
    diagonal = _entries_of_diagonal_matrix("Norms", _squared_norm_symbols(s)) | _entries_of_diagonal_matrix(
        "Lambda", [e.symbol for e in _names_of_ridge_strengths(s)]
    )
    multiplied = make_kernel(
        {
            "multiplied": _replace_entries_by_symbols(
                _write_out_traces(sphere.norm_multiplier_term(saddle.symbols))
            ).xreplace(diagonal)
        },
        equations="docs/theory.md (6.5)",
        formulas=[Sphere.norm_multiplier_term],
    )
    norms = add_origin_comment([f"{e} = {e.array}[{e.subscript}]" for e in array_entries("norm", s)])
    return {
        "prior_side": "sphere.py.jinja",
        "prefix": "ridge_",
        "norm_lines": norms,
        "excess_lines": [
            *add_origin_comment(reads),
            *dialect.kernel_body_lines(kernel, "{} += weights[atom] * ({})".format),
        ],
        "multiplied_lines": [*_lines_loading_ridge_strengths(s), *norms, *dialect.kernel_body_lines(multiplied)],
    }


def _lines_defining_second_moments(s: int) -> list[str]:
    """Return source lines that define the entries of R, Q and E[B B^T] in one spectral atom.

    R is the resolvent (Lambda + G)^{-1} of a ridge, B the mean and Q the covariance of the field b of a row of W.
    """
    lines: list[str] = []
    for a, b in product(range(s), range(s)):
        lines += [f"R_{a}_{b} = R[{a}, {b}]", f"Q_{a}_{b} = Q[{a}, {b}]", f"BB_{a}_{b} = 0.0"]
    lines.append("for i in range(contexts + TEACHER):")
    lines += [f"    BB_{a}_{b} += product[{a}, i] * field[{b}, i]" for a, b in product(range(s), range(s))]
    return add_origin_comment(lines)


def _names_of_ridge_strengths(s: int) -> list[ArrayEntryName]:
    """Return the names of the ridge strengths, which are the diagonal of Lambda."""
    return array_entries("ridge", s)


def _lines_loading_ridge_strengths(s: int) -> list[str]:
    return add_origin_comment([f"{name} = ridge[{name.subscript}]" for name in _names_of_ridge_strengths(s)])


def _lines_of_entropic_term(model: FixedSizeModel, saddle: SaddlePoint, dialect: SourceCodeDialect) -> list[str]:
    """Return source lines of an atom's entropic term of Phi at zero temperature, and of the mean ridge penalty."""
    p: OrderParameterSymbols = saddle.symbols
    s, t = model.structure.student_rank, model.structure.teacher_rank
    resolvent, product_BB, product_tau, product_pi, _ = ridge_second_moments(saddle)
    phi = free_entropy(s, t, model.regulariser.row_regulariser)
    entropic = sp.Integer(0)
    for term in sp.Add.make_args(phi.expression):
        coefficient, average = split_coefficient_and_average(term)
        if average.kind == COORDINATE:
            summand = average.summand.xreplace({(p.Lambda + p.G).inv(): resolvent})
            entropic += coefficient * _express_traces_by_second_moments(summand, p, product_BB)
    second = _express_by_second_moments(
        resolvent * (p.B * p.B.T + p.Q) * resolvent, p, product_BB, product_tau, product_pi
    )
    ridge = [sp.Symbol(str(name), positive=True) for name in _names_of_ridge_strengths(s)]
    penalty = sp.Add(*[ridge[a] * _replace_entries_by_symbols(second[a, a]) for a in range(s)]) / 2
    kernel = make_kernel(
        {"entropic_n": _replace_entries_by_symbols(entropic), "penalty_n": penalty},
        equations="docs/theory.md (4.6), (7.3)",
        formulas=[type(model.regulariser.row_regulariser).entropic_potential_of_row],
    )
    return [*_lines_loading_ridge_strengths(s), *dialect.kernel_body_lines(kernel)]


def _lines_of_thermal_corrections(model: FixedSizeModel, saddle: SaddlePoint, dialect: SourceCodeDialect) -> list[str]:
    """Return source lines of the entropic corrections to Phi at a finite temperature."""
    p: OrderParameterSymbols = saddle.symbols
    s = model.structure.student_rank
    resolvent, *_ = ridge_second_moments(saddle)
    own, ridge = (
        thermal_corrections(p, ridge=True),
        [sp.Symbol(str(name), positive=True) for name in _names_of_ridge_strengths(s)],
    )
    spread = _write_out_traces(own.penalty.xreplace({(p.Lambda + p.G).inv(): resolvent}))
    spread = spread.xreplace(
        {_write_out_matrix(p.Lambda)[a, b]: ridge[a] if a == b else sp.Integer(0) for a in range(s) for b in range(s)}
    )
    volume = (own.log_volume + own.log_det * sp.Symbol("log_det", real=True)).xreplace(BY_TEMPERATURE)
    kernel = make_kernel(
        {"volume_n": volume, "spread_n": _replace_entries_by_symbols(spread).xreplace(BY_TEMPERATURE)},
        equations="docs/theory.md (12.3), (12.9)",
        formulas=[thermal_corrections],
    )
    return dialect.kernel_body_lines(kernel)


@cache
def _express_by_second_moments(
    expression: sp.MatrixExpr,
    p: OrderParameterSymbols,
    BB: sp.MatrixSymbol,
    Btau: sp.MatrixSymbol,
    Bpi: sp.MatrixSymbol,
) -> sp.Matrix:
    """Return a matrix quadratic in (tau, pi), with the products B B^T, tau B and B pi^T replaced by symbols.

    B is the mean field of a row of W, linear in the mean coordinates tau and the teacher's row pi.

    Raises:
        TypeError: the product is not quadratic in (tau, pi).
    """
    total = sp.zeros(*(int(n) for n in expression.shape))
    expanded = expression.expand() if hasattr(expression, "expand") else expression
    for term in sp.MatAdd.make_args(expanded.doit()):
        scalar, factors = term.as_coeff_matrices() if isinstance(term, sp.MatMul) else (sp.Integer(1), [term])
        named: list[Any] = []
        for factor in factors:
            if named and named[-1] == p.B and factor == p.B.T:
                named[-1] = BB
            elif named and named[-1] == p.B and factor == p.pi.T:
                named[-1] = Bpi
            else:
                named.append(factor)
        if p.B in named and scalar.has(p.tau):
            scalar, named[named.index(p.B)] = scalar / p.tau, Btau
        if p.B in named or scalar.has(p.tau):
            raise TypeError(f"{term} is not quadratic in tau (means) and pi (teacher): no second moment is its average")
        total += scalar * _write_out_matrix(sp.MatMul(*named).doit())
    return total


def _express_traces_by_second_moments(scalar: sp.Expr, p: OrderParameterSymbols, BB: sp.MatrixSymbol) -> sp.Expr:
    total = sp.Integer(0)
    for term in sp.Add.make_args(scalar):
        coefficient, traced = term.as_independent(sp.Trace)
        empty = sp.MatrixSymbol("unused", *p.B.shape)
        total += coefficient * sp.trace(_express_by_second_moments(traced.arg, p, BB, empty, empty))
    return total


def _write_out_traces(scalar: sp.Expr) -> sp.Expr:
    total = sp.Integer(0)
    for term in sp.Add.make_args(scalar):
        coefficient, traced = term.as_independent(sp.Trace)
        total += coefficient * sp.trace(_write_out_matrix(traced.arg))
    return total
