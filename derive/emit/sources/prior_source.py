"""Context of the prior's template: the saddle point's equations as lines of scalar code.

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
from ..kernel import ArrayEntryName, Kernel, add_origin_comment, array_entries, as_kernel, model_function_location
from ..printers.dialect import SourceCodeDialect
from ..printers.numba import NUMBA
from . import rows
from .channel import joined_factor_names, saddle_point_of_model

BY_TEMPERATURE = {beta: 1 / sp.Symbol("temperature", positive=True)}
# Points an axis of the grids that find a Boltzmann weight, by the number of variables.
SCAN = {1: 25, 2: 12, 3: 8, 4: 7}


def _explicit_matrix(matrix: sp.MatrixExpr) -> sp.Matrix:
    return sp.Matrix(to_explicit_matrix(matrix.doit()))


def _with_entry_symbols(expression: sp.Expr) -> sp.Expr:
    """Return an expression with matrix elements A[i, j] as plain symbols A_i_j."""
    return expression.xreplace(
        {e: ArrayEntryName(e.parent.name, int(e.i), int(e.j)).symbol for e in expression.atoms(MatrixElement)}
    )


def context_array_layout(saddle: SaddlePoint) -> dict[ArrayEntryName, str]:
    """Return, for the entries of overlaps, conjugates and rho*, their indices in the array of one context."""
    p = saddle.symbols
    found = {}
    for matrix in (*p.overlaps, *p.conjugates, p.rho_star):
        for entry in array_entries(matrix.name, *map(int, matrix.shape)):
            found[entry] = str(entry.place[0]) if matrix in (p.m, p.m_hat) else entry.subscript
    return found


def _context_array_load_lines(names: Iterable[str], places: Mapping[ArrayEntryName, str]) -> list[str]:
    """Return lines that read A_i_j from the array A of context n."""
    read = set(names)
    return add_origin_comment(
        [f"{entry} = {entry.array}[n, {place}]" for entry, place in sorted(places.items()) if entry in read]
    )


@dataclass(frozen=True)
class ConjugateEquations:
    """The equations for the conjugates of one context, entry by entry, with named averages and inverses.

    Attributes:
        averages: entry of an average -> column of the moment row.
        inverses: (name, matrix whose inverse it is), innermost first; later matrices use the names of earlier ones.
        targets: conjugates, symmetrised where they must be.
    """

    averages: dict[ArrayEntryName, int]
    inverses: tuple[tuple[str, sp.Matrix], ...]
    targets: dict[str, sp.Matrix]


@cache
def conjugate_equations(saddle: SaddlePoint) -> ConjugateEquations:
    """Return the equations for the conjugates of one context, with names for averages and inverses."""
    p = saddle.symbols
    named_averages: dict[sp.MatrixExpr, sp.MatrixSymbol] = {}
    averages: list[ArrayEntryName] = []
    for average in channel_averages(saddle):
        name, shape = f"mean_{joined_factor_names(average.summand)}", [int(n) for n in average.shape]
        named_averages[average] = sp.MatrixSymbol(name, *shape)
        averages += array_entries(name, *shape)
    equations = {e.target.name: e.value.xreplace(named_averages) for e in saddle.equations if e.target in p.conjugates}
    inverses: list[tuple[str, sp.Matrix]] = []
    while True:
        found = sorted({i for e in equations.values() for i in e.atoms(sp.Inverse)}, key=str)
        found = [i for i in found if not i.arg.has(sp.Inverse)]
        if not found:
            break
        for inverse in found:
            name, size = f"inverse{len(inverses)}", int(inverse.shape[0])
            inverses.append((name, _explicit_matrix(inverse.arg).applyfunc(_with_entry_symbols)))
            symbol = sp.MatrixSymbol(name, size, size)
            equations = {k: e.xreplace({inverse: symbol}) for k, e in equations.items()}
    targets = {}
    for target, value in equations.items():
        matrix = _explicit_matrix(value)
        if target == p.V_hat.name:
            matrix = (matrix + matrix.T) / 2
        targets[target] = matrix.applyfunc(_with_entry_symbols)
    return ConjugateEquations({entry: column for column, entry in enumerate(averages)}, tuple(inverses), targets)


def prior_template_context(model: FixedSizeModel, dialect: SourceCodeDialect = NUMBA) -> dict[str, Any]:
    """Return the variables of the prior's template, in the variant for the model's regulariser.

    Args:
        model: model at its structure.
        dialect: printer of the lines.
    """
    structure = model.structure
    s, t = structure.student_rank, structure.teacher_rank
    saddle = saddle_point_of_model(model)
    places = context_array_layout(saddle)
    stages = conjugate_equations(saddle)
    names: set[str] = set()
    inverses: list[tuple[str, int, list[str]]] = []
    for name, matrix in stages.inverses:
        kernel = as_kernel(
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
    conjugate_kernel = as_kernel(
        outputs, equations="docs/theory.md (5.2) to (5.5)", formulas=[conjugate_equations, saddle_point]
    )
    names |= conjugate_kernel.input_names
    loads = _context_array_load_lines(names, places)
    loads += add_origin_comment([f"{n} = moments[n, {k}]" for n, k in stages.averages.items() if n in names])

    return {
        "s": s,
        "t": t,
        "channel_inverses": inverses,
        "conjugate_loads": loads,
        "conjugate_lines": dialect.kernel_body_lines(conjugate_kernel),
        "composite_lines": _composite_lines(saddle, places, dialect),
        "trace_lines": _overlap_conjugate_trace_lines(saddle, model, places, dialect),
        "thermal_trace_lines": _thermal_trace_lines(saddle, places, dialect),
        **(
            _penalty_template_context(model, model.penalty, saddle, places, dialect)
            if model.penalty
            else _ridge_template_context(model, saddle, places, dialect)
        ),
    }


@cache
def composite_entries(saddle: SaddlePoint) -> dict[tuple[str, str], sp.Expr]:
    """Return one context's contributions to G, Q and the coefficients of z = (tau, pi) in B, by (array, indices).

    The last are entries of `field`; all are linear in the conjugates (docs/theory.md (3.8)).
    """
    p: OrderParameterSymbols = saddle.symbols
    s, t = int(p.s), int(p.t)
    gamma_n = sp.Symbol("gamma_n", real=True)
    found: dict[tuple[str, str], sp.Expr] = {}
    for composite, summand in p.composites.items():
        matrix = _explicit_matrix(summand)
        if composite == p.B:
            for a in range(s):
                coefficients = {"n": sp.diff(matrix[a, 0], p.tau)}
                coefficients |= {f"contexts + {b}": sp.diff(matrix[a, 0], p.pi[b, 0]) for b in range(t)}
                for column, e in coefficients.items():
                    found["field", f"{a}, {column}"] = _with_entry_symbols(e.subs(p.gamma, gamma_n))
        else:
            for i, j in product(range(s), range(s)):
                found[composite.name, f"{i}, {j}"] = _with_entry_symbols(matrix[i, j].subs(p.gamma, gamma_n))
    return found


def _composite_lines(
    saddle: SaddlePoint, places: Mapping[ArrayEntryName, str], dialect: SourceCodeDialect
) -> list[str]:
    """Return lines that add one context's contributions to G, Q and B."""
    kernel = as_kernel(
        {f"{array}[{place}]": e for (array, place), e in composite_entries(saddle).items()},
        equations="docs/theory.md (3.8)",
        formulas=[composite_entries, OrderParameterSymbols.composites],
    )
    return _context_array_load_lines(kernel.input_names, places) + dialect.kernel_body_lines(kernel, "{} += {}".format)


def _overlap_conjugate_trace_lines(
    saddle: SaddlePoint, model: FixedSizeModel, places: Mapping[ArrayEntryName, str], dialect: SourceCodeDialect
) -> list[str]:
    """Return lines of one context's trace terms of Phi, products of overlaps and conjugates."""
    phi = free_entropy(int(saddle.symbols.s), int(saddle.symbols.t), model.regulariser)
    trace = sp.Integer(0)
    for term in sp.Add.make_args(phi.expression):
        coefficient, average = split_coefficient_and_average(term)
        if average.kind == CONTEXTS:
            trace += coefficient * _explicit_trace(average.summand)
    kernel = as_kernel(
        {"trace_n": _with_entry_symbols(trace)}, equations="docs/theory.md (4.2)", formulas=[free_entropy]
    )
    return [*_context_array_load_lines(kernel.input_names, places), *dialect.kernel_body_lines(kernel)]


def _thermal_trace_lines(
    saddle: SaddlePoint, places: Mapping[ArrayEntryName, str], dialect: SourceCodeDialect
) -> list[str]:
    """Return lines of the trace terms' correction at a finite temperature, for one context."""
    trace = _explicit_trace(thermal_corrections(saddle.symbols, ridge=False).trace)
    kernel = as_kernel(
        {"fluctuation_n": _with_entry_symbols(trace).xreplace(BY_TEMPERATURE)},
        equations="docs/theory.md (12.1)",
        formulas=[thermal_corrections],
    )
    return [*_context_array_load_lines(kernel.input_names, places), *dialect.kernel_body_lines(kernel)]


def overlap_contributions(
    saddle: SaddlePoint, summand_in_named_entries: Callable[[sp.MatrixExpr], sp.Matrix]
) -> dict[sp.MatrixSymbol, sp.Matrix]:
    """Return the contributions of a coordinate to the overlaps of context n.

    Args:
        saddle: saddle point.
        summand_in_named_entries: function that expresses a summand by named entries.

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
                    f"the equation of {equation.target} contains {term}, which is no average over a coordinate"
                )
            matrix += scalar * summand_in_named_entries(average.summand)
        found[equation.target] = matrix.applyfunc(lambda e: _with_entry_symbols(e.subs(p.gamma, gamma_n)))
    return found


def _overlap_accumulation_lines(
    saddle: SaddlePoint,
    places: Mapping[ArrayEntryName, str],
    summand_in_named_entries: Callable[[sp.MatrixExpr], sp.Matrix],
    dialect: SourceCodeDialect,
    equations: str,
) -> list[str]:
    """Return lines that add the contributions of a coordinate to the overlaps of context n."""
    outputs = {
        f"{target.name}[n, {places[entry]}]": matrix[entry.place]
        for target, matrix in overlap_contributions(saddle, summand_in_named_entries).items()
        for entry in array_entries(target.name, *matrix.shape)
    }
    kernel = as_kernel(outputs, equations=equations, formulas=[overlap_contributions, saddle_point])
    return dialect.kernel_body_lines(kernel, "{} += weight * ({})".format)


def _penalty_template_context(
    model: FixedSizeModel,
    penalty: FixedSizePenalty,
    saddle: SaddlePoint,
    places: Mapping[ArrayEntryName, str],
    dialect: SourceCodeDialect,
) -> dict[str, Any]:
    """Return template variables of a penalty: overlaps are averages over a row's field b and, if r contains it, pi."""
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
        "value": as_kernel({"value": value}, equations="docs/theory.md (1.3)", formulas=own),
        "slopes": as_kernel(slopes, equations="docs/theory.md (6.1), (6.2)", formulas=own),
        "corners": as_kernel({f"corner_{n}": e for n, e in enumerate(penalty.kinks)}, formulas=own),
    }
    if penalty.bounds:
        kernels["bounds"] = as_kernel(dict(zip(("lowest", "highest"), penalty.bounds, strict=True)), formulas=own)
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

    def penalty_parameter_load_lines(kernel: Kernel) -> str:
        read = add_origin_comment([f"{name} = c[{i}]" for i, name in enumerate(names) if name in kernel.input_names])
        return "\n".join(f"    {line}" for line in read)

    square, response = sp.MatrixSymbol("ww", s, s), sp.MatrixSymbol("response", s, s)
    means, taught = sp.MatrixSymbol("wtau", s, 1), sp.MatrixSymbol("wpi", s, t)

    def summand_in_named_entries(summand: sp.MatrixExpr) -> sp.Matrix:
        scalar, factors = summand.as_coeff_matrices() if isinstance(summand, sp.MatMul) else (sp.Integer(1), [summand])
        if factors == [Jacobian(p.w, p.b)]:
            return scalar * _explicit_matrix(response)
        if factors == [p.w] and scalar.has(p.tau):
            return scalar / p.tau * _explicit_matrix(means)
        known = {(p.w, p.w.T): square, (p.w, p.pi.T): taught}
        return scalar * _explicit_matrix(known[tuple(factors)])

    lines = [f"{e} = {e.array}[{e.subscript}]" for e in (*array_entries("ww", s, s), *array_entries("response", s, s))]
    lines += [f"wtau_{a}_0 = wz[{a}, n]" for a in range(s)]
    lines += [f"wpi_{a}_{b} = wz[{a}, contexts + {b}]" for a in range(s) for b in range(t)]
    return {
        "prior_side": "penalty.py.jinja",
        "kernels": kernels | row_kernels,
        "unpack": penalty_parameter_load_lines,
        "corners": penalty.kinks,
        "bounds": penalty.bounds,
        "known_teachers": t if penalty.depends_on_teacher else 0,
        "few_values": model.has_discrete_teacher,
        "given": t if model.averages_over_teacher else 0,
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
            *_overlap_accumulation_lines(saddle, places, summand_in_named_entries, dialect, "docs/theory.md (6.3)"),
        ],
    }


def ridge_second_moments(
    saddle: SaddlePoint,
) -> tuple[sp.MatrixSymbol, sp.MatrixSymbol, sp.MatrixSymbol, sp.MatrixSymbol, Callable[[sp.MatrixExpr], sp.Matrix]]:
    """Return symbols of R, E[B B^T], E[B tau] and E[B pi^T], and a function that writes a summand in terms of them.

    The summand is averaged over a coordinate.
    """
    p: OrderParameterSymbols = saddle.symbols
    s, t = int(p.s), int(p.t)
    resolvent = sp.MatrixSymbol("R", s, s)
    product_BB, product_tau = sp.MatrixSymbol("BB", s, s), sp.MatrixSymbol("Btau", s, 1)
    product_pi = sp.MatrixSymbol("Bpi", s, t)

    def summand_in_named_entries(summand: sp.MatrixExpr) -> sp.Matrix:
        known = summand.xreplace({(p.Lambda + p.G).inv(): resolvent})
        return _product_as_second_moments(known, p, product_BB, product_tau, product_pi)

    return resolvent, product_BB, product_tau, product_pi, summand_in_named_entries


def _ridge_template_context(
    model: FixedSizeModel, saddle: SaddlePoint, places: Mapping[ArrayEntryName, str], dialect: SourceCodeDialect
) -> dict[str, Any]:
    """Return template variables of a ridge: overlaps as second moments of (tau, pi), and entropic terms of Phi."""
    s, t = model.structure.student_rank, model.structure.teacher_rank
    *_, summand_in_named_entries = ridge_second_moments(saddle)
    reads = [f"Btau_{a}_0 = product[{a}, n]" for a in range(s)]
    reads += [f"Bpi_{a}_{b} = product[{a}, contexts + {b}]" for a in range(s) for b in range(t)]
    return {
        "prior_side": "ridge.py.jinja",
        "prefix": "",
        "second_moment_lines": _second_moment_lines(s),
        "overlap_lines": [
            *add_origin_comment(reads),
            *_overlap_accumulation_lines(
                saddle, places, summand_in_named_entries, dialect, "docs/theory.md (5.8) to (5.11)"
            ),
        ],
        "entropic_lines": _entropic_term_lines(model, saddle, dialect),
        "thermal_lines": _thermal_correction_lines(model, saddle, dialect),
        **(
            _sphere_template_context(model.regulariser, saddle, dialect)
            if isinstance(model.regulariser, Sphere)
            else {}
        ),
    }


def norm_excess_entries(saddle: SaddlePoint) -> tuple[sp.Matrix, sp.Matrix]:
    """Return the mean squares of a row's entries minus the squared norms, and their derivatives in the multipliers.

    Both are contributions of one coordinate, in the entries of `ridge_second_moments`: (s, 1), and the slopes in the
    multipliers (s, s).
    """
    s = int(saddle.symbols.s)
    condition, (*_, summand_in_named_entries) = row_norm_condition(saddle.symbols), ridge_second_moments(saddle)
    moved = array_entries(condition.change.name, s)
    diagonal = _diagonal_entry_values("Norms", _squared_norm_symbols(s)) | _diagonal_entry_values(
        condition.change.name, [e.symbol for e in moved]
    )
    excess, answer = (
        summand_in_named_entries(part).applyfunc(lambda e: _with_entry_symbols(e).xreplace(diagonal))
        for part in (condition.excess, condition.slope)
    )
    return (
        sp.Matrix([excess[a, a] for a in range(s)]),
        sp.Matrix(s, s, lambda a, b: sp.diff(answer[a, a], moved[b].symbol)),
    )


def _diagonal_entry_values(name: str, values: Sequence[sp.Expr]) -> dict[sp.Symbol, sp.Expr]:
    """Return the values of the entries of a diagonal matrix, by symbol."""
    size = len(values)
    return {
        e.symbol: values[e.place[0]] if len(set(e.place)) == 1 else sp.Integer(0)
        for e in array_entries(name, size, size)
    }


def _squared_norm_symbols(s: int) -> list[sp.Expr]:
    """Return the squares of the symbols of the fixed norms."""
    return [e.symbol**2 for e in array_entries("norm", s)]


def _sphere_template_context(sphere: Sphere, saddle: SaddlePoint, dialect: SourceCodeDialect) -> dict[str, Any]:
    """Return template variables of fixed norms: equations of the multipliers, and their terms in the free entropy."""
    s = int(saddle.symbols.s)
    excess, slope = norm_excess_entries(saddle)
    outputs = {f"excess[{a}]": excess[a] for a in range(s)}
    outputs |= {f"slope[{a}, {b}]": slope[a, b] for a, b in product(range(s), range(s))}
    kernel = as_kernel(
        {place: e.xreplace(BY_TEMPERATURE) for place, e in outputs.items()},
        equations="docs/theory.md (6.6), (6.7)",
        formulas=[row_norm_condition],
    )
    held = [e for name in ("R", "BB", "Q") for e in array_entries(name, s, s) if e in kernel.input_names]
    reads = [f"{e} = R[{e.subscript}]" if e.array == "R" else f"{e} = {e.array}[atom, {e.subscript}]" for e in held]
    diagonal = _diagonal_entry_values("Norms", _squared_norm_symbols(s)) | _diagonal_entry_values(
        "Lambda", [e.symbol for e in _ridge_strength_entries(s)]
    )
    multiplied = as_kernel(
        {
            "multiplied": _with_entry_symbols(_explicit_trace(sphere.norm_multiplier_term(saddle.symbols))).xreplace(
                diagonal
            )
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
        "multiplied_lines": [*_ridge_strength_load_lines(s), *norms, *dialect.kernel_body_lines(multiplied)],
    }


def _second_moment_lines(s: int) -> list[str]:
    """Return lines that define the entries of R, Q and E[B B^T] of an atom."""
    lines: list[str] = []
    for a, b in product(range(s), range(s)):
        lines += [f"R_{a}_{b} = R[{a}, {b}]", f"Q_{a}_{b} = Q[{a}, {b}]", f"BB_{a}_{b} = 0.0"]
    lines.append("for i in range(contexts + TEACHER):")
    lines += [f"    BB_{a}_{b} += product[{a}, i] * field[{b}, i]" for a, b in product(range(s), range(s))]
    return add_origin_comment(lines)


def _ridge_strength_entries(s: int) -> list[ArrayEntryName]:
    """Return names of the ridge strengths, the diagonal of Lambda."""
    return array_entries("ridge", s)


def _ridge_strength_load_lines(s: int) -> list[str]:
    return add_origin_comment([f"{name} = ridge[{name.subscript}]" for name in _ridge_strength_entries(s)])


def _entropic_term_lines(model: FixedSizeModel, saddle: SaddlePoint, dialect: SourceCodeDialect) -> list[str]:
    """Return lines of an atom's entropic term of Phi at zero temperature, and of the average ridge penalty."""
    p: OrderParameterSymbols = saddle.symbols
    s, t = model.structure.student_rank, model.structure.teacher_rank
    resolvent, product_BB, product_tau, product_pi, _ = ridge_second_moments(saddle)
    phi = free_entropy(s, t, model.regulariser.row_regulariser)
    entropic = sp.Integer(0)
    for term in sp.Add.make_args(phi.expression):
        coefficient, average = split_coefficient_and_average(term)
        if average.kind == COORDINATE:
            summand = average.summand.xreplace({(p.Lambda + p.G).inv(): resolvent})
            entropic += coefficient * _second_moment_trace(summand, p, product_BB)
    second = _product_as_second_moments(
        resolvent * (p.B * p.B.T + p.Q) * resolvent, p, product_BB, product_tau, product_pi
    )
    ridge = [sp.Symbol(str(name), positive=True) for name in _ridge_strength_entries(s)]
    penalty = sp.Add(*[ridge[a] * _with_entry_symbols(second[a, a]) for a in range(s)]) / 2
    kernel = as_kernel(
        {"entropic_n": _with_entry_symbols(entropic), "penalty_n": penalty},
        equations="docs/theory.md (4.6), (7.3)",
        formulas=[type(model.regulariser.row_regulariser).averaged_envelope],
    )
    return [*_ridge_strength_load_lines(s), *dialect.kernel_body_lines(kernel)]


def _thermal_correction_lines(model: FixedSizeModel, saddle: SaddlePoint, dialect: SourceCodeDialect) -> list[str]:
    """Return lines of the entropic corrections at a finite temperature."""
    p: OrderParameterSymbols = saddle.symbols
    s = model.structure.student_rank
    resolvent, *_ = ridge_second_moments(saddle)
    own, ridge = (
        thermal_corrections(p, ridge=True),
        [sp.Symbol(str(name), positive=True) for name in _ridge_strength_entries(s)],
    )
    spread = _explicit_trace(own.penalty.xreplace({(p.Lambda + p.G).inv(): resolvent}))
    spread = spread.xreplace(
        {_explicit_matrix(p.Lambda)[a, b]: ridge[a] if a == b else sp.Integer(0) for a in range(s) for b in range(s)}
    )
    volume = (own.log_volume + own.log_det * sp.Symbol("log_det", real=True)).xreplace(BY_TEMPERATURE)
    kernel = as_kernel(
        {"volume_n": volume, "spread_n": _with_entry_symbols(spread).xreplace(BY_TEMPERATURE)},
        equations="docs/theory.md (12.3), (12.9)",
        formulas=[thermal_corrections],
    )
    return dialect.kernel_body_lines(kernel)


@cache
def _product_as_second_moments(
    expression: sp.MatrixExpr,
    p: OrderParameterSymbols,
    BB: sp.MatrixSymbol,
    Btau: sp.MatrixSymbol,
    Bpi: sp.MatrixSymbol,
) -> sp.Matrix:
    """Return a product that is quadratic in (tau, pi), with B B^T, tau B and B pi^T replaced by their names.

    Raises:
        TypeError: a factor B remains.
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
            raise TypeError(f"{term} is not quadratic in (tau, pi)")
        total += scalar * _explicit_matrix(sp.MatMul(*named).doit())
    return total


def _second_moment_trace(scalar: sp.Expr, p: OrderParameterSymbols, BB: sp.MatrixSymbol) -> sp.Expr:
    total = sp.Integer(0)
    for term in sp.Add.make_args(scalar):
        coefficient, traced = term.as_independent(sp.Trace)
        empty = sp.MatrixSymbol("unused", *p.B.shape)
        total += coefficient * sp.trace(_product_as_second_moments(traced.arg, p, BB, empty, empty))
    return total


def _explicit_trace(scalar: sp.Expr) -> sp.Expr:
    total = sp.Integer(0)
    for term in sp.Add.make_args(scalar):
        coefficient, traced = term.as_independent(sp.Trace)
        total += coefficient * sp.trace(_explicit_matrix(traced.arg))
    return total
