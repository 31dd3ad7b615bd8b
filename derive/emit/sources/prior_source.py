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

from ...authoring.model import ModelAt
from ...authoring.parameters import leaves
from ...authoring.regulariser import PenaltyAt, Sphere
from ...calculus.averages import CONTEXTS, COORDINATE, Jacobian, MatrixAverage, Symbols, to_explicit
from ...calculus.piecewise import drop_deltas
from ...calculus.stable_functions import stabilise
from ...theory.free_entropy import free_entropy, split_average
from ...theory.norms import norm_condition
from ...theory.saddle_point import SaddlePoint, channel_averages, saddle_point
from ...theory.thermal import beta, thermal_corrections
from ..kernel import Entry, Kernel, add_stamp, as_kernel, entries, model_source
from ..printers.dialect import Dialect
from ..printers.numba import NUMBA
from . import rows
from .channel import joined_name, saddle_of_model

BY_TEMPERATURE = {beta: 1 / sp.Symbol("temperature", positive=True)}
# Points an axis of the grids that find a Boltzmann weight, by the number of variables.
SCAN = {1: 25, 2: 12, 3: 8, 4: 7}


def _explicit_matrix(matrix: sp.MatrixExpr) -> sp.Matrix:
    return sp.Matrix(to_explicit(matrix.doit()))


def _with_entry_symbols(expression: sp.Expr) -> sp.Expr:
    """Return an expression with matrix elements A[i, j] as plain symbols A_i_j."""
    return expression.xreplace(
        {e: Entry(e.parent.name, int(e.i), int(e.j)).symbol for e in expression.atoms(MatrixElement)}
    )


def layout(saddle: SaddlePoint) -> dict[Entry, str]:
    """Return entries of overlaps, conjugates and rho* -> indices in the array of a context (vectors: one index)."""
    p = saddle.symbols
    found = {}
    for matrix in (*p.overlaps, *p.conjugates, p.rho_star):
        for entry in entries(matrix.name, *map(int, matrix.shape)):
            found[entry] = str(entry.place[0]) if matrix in (p.m, p.m_hat) else entry.subscript
    return found


def _loads(names: Iterable[str], places: Mapping[Entry, str]) -> list[str]:
    """Return lines that read A_i_j from the array A of context n."""
    read = set(names)
    return add_stamp(
        [f"{entry} = {entry.array}[n, {place}]" for entry, place in sorted(places.items()) if entry in read]
    )


@dataclass(frozen=True)
class ConjugateStages:
    """The computation of the conjugates of one context from channel averages and overlaps, entry by entry.

    Attributes:
        averages: entry of an average -> column of the moment row.
        inverses: (name, matrix whose inverse it is), innermost first; later matrices use the names of earlier ones.
        targets: conjugates, symmetrised where they must be.
    """

    averages: dict[Entry, int]
    inverses: tuple[tuple[str, sp.Matrix], ...]
    targets: dict[str, sp.Matrix]


@cache
def conjugate_stages(saddle: SaddlePoint) -> ConjugateStages:
    """Return the equations for the conjugates with names for averages and inverses."""
    p = saddle.symbols
    named_averages: dict[sp.MatrixExpr, sp.MatrixSymbol] = {}
    averages: list[Entry] = []
    for average in channel_averages(saddle):
        name, shape = f"mean_{joined_name(average.summand)}", [int(n) for n in average.shape]
        named_averages[average] = sp.MatrixSymbol(name, *shape)
        averages += entries(name, *shape)
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
    return ConjugateStages({entry: column for column, entry in enumerate(averages)}, tuple(inverses), targets)


def prior_context(model: ModelAt, dialect: Dialect = NUMBA) -> dict[str, Any]:
    """Return lines and kernels of the prior's template, of the variant that the regulariser needs.

    Args:
        model: model at its structure.
        dialect: printer of the lines.
    """
    structure = model.structure
    s, t = structure.student_rank, structure.teacher_rank
    saddle = saddle_of_model(model)
    places = layout(saddle)
    stages = conjugate_stages(saddle)
    names: set[str] = set()
    inverses: list[tuple[str, int, list[str]]] = []
    for name, matrix in stages.inverses:
        kernel = as_kernel(
            {f"{name}_of[{i}, {j}]": matrix[i, j] for i, j in product(*map(range, matrix.shape))},
            prefix=f"{name}_t",
            equations="docs/theory.md (5.4)",
            formulas=[conjugate_stages, saddle_point],
        )
        names |= kernel.names
        inverses.append((name, int(matrix.shape[0]), dialect.body(kernel)))
    outputs: dict[str, sp.Expr] = {}
    for target, matrix in stages.targets.items():
        for entry in entries(target, *matrix.shape):
            outputs[f"{target}[n, {places[entry]}]"] = matrix[entry.place]
    conjugate_kernel = as_kernel(
        outputs, equations="docs/theory.md (5.2) to (5.5)", formulas=[conjugate_stages, saddle_point]
    )
    names |= conjugate_kernel.names
    loads = _loads(names, places)
    loads += add_stamp([f"{n} = moments[n, {k}]" for n, k in stages.averages.items() if n in names])

    return {
        "s": s,
        "t": t,
        "channel_inverses": inverses,
        "conjugate_loads": loads,
        "conjugate_lines": dialect.body(conjugate_kernel),
        "composite_lines": _composite_lines(saddle, places, dialect),
        "trace_lines": _trace_lines(saddle, model, places, dialect),
        "thermal_trace_lines": _thermal_trace_lines(saddle, places, dialect),
        **(
            _penalty_context(model, model.penalty, saddle, places, dialect)
            if model.penalty
            else _ridge_context(model, saddle, places, dialect)
        ),
    }


@cache
def composite_entries(saddle: SaddlePoint) -> dict[tuple[str, str], sp.Expr]:
    """Return (array, place) -> contribution of one context to G, Q and the coefficients of z = (tau, pi) in B.

    The last are entries of `field`; all are linear in the conjugates (docs/theory.md (3.8)).
    """
    p: Symbols = saddle.symbols
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


def _composite_lines(saddle: SaddlePoint, places: Mapping[Entry, str], dialect: Dialect) -> list[str]:
    """Return lines that add up `composite_entries`."""
    kernel = as_kernel(
        {f"{array}[{place}]": e for (array, place), e in composite_entries(saddle).items()},
        equations="docs/theory.md (3.8)",
        formulas=[composite_entries, Symbols.composites],
    )
    return _loads(kernel.names, places) + dialect.body(kernel, "{} += {}".format)


def _trace_lines(saddle: SaddlePoint, model: ModelAt, places: Mapping[Entry, str], dialect: Dialect) -> list[str]:
    """Return lines of the part of Phi that pairs overlaps with conjugates, for one context."""
    phi = free_entropy(int(saddle.symbols.s), int(saddle.symbols.t), model.regulariser)
    trace = sp.Integer(0)
    for term in sp.Add.make_args(phi.expression):
        coefficient, average = split_average(term)
        if average.kind == CONTEXTS:
            trace += coefficient * _explicit_trace(average.summand)
    kernel = as_kernel(
        {"trace_n": _with_entry_symbols(trace)}, equations="docs/theory.md (4.2)", formulas=[free_entropy]
    )
    return [*_loads(kernel.names, places), *dialect.body(kernel)]


def _thermal_trace_lines(saddle: SaddlePoint, places: Mapping[Entry, str], dialect: Dialect) -> list[str]:
    """Return lines of the correction of this part at a finite temperature."""
    trace = _explicit_trace(thermal_corrections(saddle.symbols, ridge=False).trace)
    kernel = as_kernel(
        {"fluctuation_n": _with_entry_symbols(trace).xreplace(BY_TEMPERATURE)},
        equations="docs/theory.md (12.1)",
        formulas=[thermal_corrections],
    )
    return [*_loads(kernel.names, places), *dialect.body(kernel)]


def overlap_entries(
    saddle: SaddlePoint, entries_of: Callable[[sp.MatrixExpr], sp.Matrix]
) -> dict[sp.MatrixSymbol, sp.Matrix]:
    """Return the contributions of a coordinate to the overlaps of context n.

    Args:
        saddle: saddle point.
        entries_of: expresses a summand by named entries.

    Raises:
        TypeError: an equation is not a sum of averages over a coordinate.
    """
    p: Symbols = saddle.symbols
    gamma_n = sp.Symbol("gamma_n", real=True)
    found: dict[sp.MatrixSymbol, sp.Matrix] = {}
    for equation in saddle.equations:
        if equation.target not in p.overlaps:
            continue
        matrix = sp.zeros(*(int(n) for n in equation.target.shape))
        for term in sp.MatAdd.make_args(equation.value):
            scalar, average = term.as_coeff_mmul() if isinstance(term, sp.MatMul) else (sp.Integer(1), term)
            if not isinstance(average, MatrixAverage) or average.kind != COORDINATE:
                raise TypeError(f"{equation.target}: no rule for {term}")
            matrix += scalar * entries_of(average.summand)
        found[equation.target] = matrix.applyfunc(lambda e: _with_entry_symbols(e.subs(p.gamma, gamma_n)))
    return found


def _overlap_lines(
    saddle: SaddlePoint,
    places: Mapping[Entry, str],
    entries_of: Callable[[sp.MatrixExpr], sp.Matrix],
    dialect: Dialect,
    equations: str,
) -> list[str]:
    """Return lines that add `overlap_entries` to the overlaps of context n."""
    outputs = {
        f"{target.name}[n, {places[entry]}]": matrix[entry.place]
        for target, matrix in overlap_entries(saddle, entries_of).items()
        for entry in entries(target.name, *matrix.shape)
    }
    kernel = as_kernel(outputs, equations=equations, formulas=[overlap_entries, saddle_point])
    return dialect.body(kernel, "{} += weight * ({})".format)


def _penalty_context(
    model: ModelAt, penalty: PenaltyAt, saddle: SaddlePoint, places: Mapping[Entry, str], dialect: Dialect
) -> dict[str, Any]:
    """Return the context for overlaps as averages over a row's field b and, if the penalty depends on it, pi."""
    p: Symbols = saddle.symbols
    s, t = int(p.s), int(p.t)
    w, own = list(penalty.w), [model_source(model, penalty.written)]
    upper = [Entry("h", i, j) for i in range(s) for j in range(i, s)]
    # A delta in the curvature belongs to a corner, at which w can be stationary, not to the smooth pieces.
    value = stabilise(penalty.finite_part)
    gradient = [drop_deltas(sp.diff(value, a)) for a in w]
    slopes = {Entry("d", i): e for i, e in enumerate(gradient)}
    slopes |= {h: drop_deltas(sp.diff(gradient[h.place[0]], w[h.place[1]])) for h in upper}
    kernels = {
        "value": as_kernel({"value": value}, equations="docs/theory.md (1.3)", formulas=own),
        "slopes": as_kernel(slopes, equations="docs/theory.md (6.1), (6.2)", formulas=own),
        "corners": as_kernel({f"corner_{n}": e for n, e in enumerate(penalty.kinks)}, formulas=own),
    }
    if penalty.bounds:
        kernels["bounds"] = as_kernel(dict(zip(("lowest", "highest"), penalty.bounds, strict=True)), formulas=own)
    pi_names = [b.name for b in penalty.pi] if penalty.depends_on_teacher else []
    row_kernels = {
        "stationarity": rows.stationarity(s),
        "envelope": rows.envelope(s),
        "density": rows.normal_density(),
        "known_teachers": rows.known_teachers(pi_names),
    }
    if s == 1:
        row_kernels["resting_field"] = rows.resting_field()
    names = [symbol.name for key in penalty.parameters.values() for symbol in leaves(key.symbols(model.structure))]

    def unpack(kernel: Kernel) -> str:
        read = add_stamp([f"{name} = c[{i}]" for i, name in enumerate(names) if name in kernel.names])
        return "\n".join(f"    {line}" for line in read)

    square, response = sp.MatrixSymbol("ww", s, s), sp.MatrixSymbol("response", s, s)
    means, taught = sp.MatrixSymbol("wtau", s, 1), sp.MatrixSymbol("wpi", s, t)

    def entries_of(summand: sp.MatrixExpr) -> sp.Matrix:
        scalar, factors = summand.as_coeff_matrices() if isinstance(summand, sp.MatMul) else (sp.Integer(1), [summand])
        if factors == [Jacobian(p.w, p.b)]:
            return scalar * _explicit_matrix(response)
        if factors == [p.w] and scalar.has(p.tau):
            return scalar / p.tau * _explicit_matrix(means)
        known = {(p.w, p.w.T): square, (p.w, p.pi.T): taught}
        return scalar * _explicit_matrix(known[tuple(factors)])

    lines = [f"{e} = {e.array}[{e.subscript}]" for e in (*entries("ww", s, s), *entries("response", s, s))]
    lines += [f"wtau_{a}_0 = wz[{a}, n]" for a in range(s)]
    lines += [f"wpi_{a}_{b} = wz[{a}, contexts + {b}]" for a in range(s) for b in range(t)]
    return {
        "prior_side": "penalty.py.jinja",
        "kernels": kernels | row_kernels,
        "unpack": unpack,
        "corners": penalty.kinks,
        "bounds": penalty.bounds,
        "known_teachers": t if penalty.depends_on_teacher else 0,
        "few_values": model.has_discrete_teacher,
        "given": t if model.averages_over_teacher else 0,
        "parameters": len(names),
        "w_names": [a.name for a in w],
        "pi_names": pi_names,
        "b_names": entries("b", s),
        "G_names": [Entry("G", a, b) for a in range(s) for b in range(a, s)],
        "factor_names": [
            e
            for e in (*entries("factor", len(pi_names), len(pi_names)), *entries("zeta", len(pi_names)))
            if e in row_kernels["known_teachers"].names
        ],
        "d_names": entries("d", s),
        "h_names": upper,
        "scan": SCAN[min(s, max(SCAN))],
        "overlap_lines": [
            *add_stamp(lines),
            *_overlap_lines(saddle, places, entries_of, dialect, "docs/theory.md (6.3)"),
        ],
    }


def ridge_moments(
    saddle: SaddlePoint,
) -> tuple[sp.MatrixSymbol, sp.MatrixSymbol, sp.MatrixSymbol, sp.MatrixSymbol, Callable[[sp.MatrixExpr], sp.Matrix]]:
    """Return names of R, E[B B^T], E[B tau] and E[B pi^T], and a function that writes a summand in terms of them.

    The summand is averaged over a coordinate.
    """
    p: Symbols = saddle.symbols
    s, t = int(p.s), int(p.t)
    resolvent = sp.MatrixSymbol("R", s, s)
    product_BB, product_tau = sp.MatrixSymbol("BB", s, s), sp.MatrixSymbol("Btau", s, 1)
    product_pi = sp.MatrixSymbol("Bpi", s, t)

    def entries_of(summand: sp.MatrixExpr) -> sp.Matrix:
        known = summand.xreplace({(p.Lambda + p.G).inv(): resolvent})
        return _second_moments(known, p, product_BB, product_tau, product_pi)

    return resolvent, product_BB, product_tau, product_pi, entries_of


def _ridge_context(
    model: ModelAt, saddle: SaddlePoint, places: Mapping[Entry, str], dialect: Dialect
) -> dict[str, Any]:
    """Return the context for overlaps as second moments of (tau, pi), and the entropic part of Phi."""
    s, t = model.structure.student_rank, model.structure.teacher_rank
    *_, entries_of = ridge_moments(saddle)
    reads = [f"Btau_{a}_0 = product[{a}, n]" for a in range(s)]
    reads += [f"Bpi_{a}_{b} = product[{a}, contexts + {b}]" for a in range(s) for b in range(t)]
    return {
        "prior_side": "ridge.py.jinja",
        "prefix": "",
        "second_moment_lines": _second_moment_lines(s),
        "overlap_lines": [
            *add_stamp(reads),
            *_overlap_lines(saddle, places, entries_of, dialect, "docs/theory.md (5.8) to (5.11)"),
        ],
        "entropic_lines": _entropic_lines(model, saddle, dialect),
        "thermal_lines": _thermal_lines(model, saddle, dialect),
        **(_sphere_context(model.regulariser, saddle, dialect) if isinstance(model.regulariser, Sphere) else {}),
    }


def norm_entries(saddle: SaddlePoint) -> tuple[sp.Matrix, sp.Matrix]:
    """Return the excess of the mean squares of a row's entries over those of the norms, and its slopes.

    Both are contributions of one coordinate, in the entries of `ridge_moments`: (s, 1), and the slopes in the
    multipliers (s, s).
    """
    s = int(saddle.symbols.s)
    condition, (*_, entries_of) = norm_condition(saddle.symbols), ridge_moments(saddle)
    moved = entries(condition.change.name, s)
    diagonal = _diagonal("Norms", _squared_norms(s)) | _diagonal(condition.change.name, [e.symbol for e in moved])
    excess, answer = (
        entries_of(part).applyfunc(lambda e: _with_entry_symbols(e).xreplace(diagonal))
        for part in (condition.excess, condition.slope)
    )
    return (
        sp.Matrix([excess[a, a] for a in range(s)]),
        sp.Matrix(s, s, lambda a, b: sp.diff(answer[a, a], moved[b].symbol)),
    )


def _diagonal(name: str, values: Sequence[sp.Expr]) -> dict[sp.Symbol, sp.Expr]:
    """Return symbols of the entries of a diagonal matrix -> their values."""
    size = len(values)
    return {
        e.symbol: values[e.place[0]] if len(set(e.place)) == 1 else sp.Integer(0) for e in entries(name, size, size)
    }


def _squared_norms(s: int) -> list[sp.Expr]:
    """Return the squares of the given norms."""
    return [e.symbol**2 for e in entries("norm", s)]


def _sphere_context(sphere: Sphere, saddle: SaddlePoint, dialect: Dialect) -> dict[str, Any]:
    """Return the context for the multipliers of fixed norms, and their terms of the free entropy of the ridge."""
    s = int(saddle.symbols.s)
    excess, slope = norm_entries(saddle)
    outputs = {f"excess[{a}]": excess[a] for a in range(s)}
    outputs |= {f"slope[{a}, {b}]": slope[a, b] for a, b in product(range(s), range(s))}
    kernel = as_kernel(
        {place: e.xreplace(BY_TEMPERATURE) for place, e in outputs.items()},
        equations="docs/theory.md (6.6), (6.7)",
        formulas=[norm_condition],
    )
    held = [e for name in ("R", "BB", "Q") for e in entries(name, s, s) if e in kernel.names]
    reads = [f"{e} = R[{e.subscript}]" if e.array == "R" else f"{e} = {e.array}[atom, {e.subscript}]" for e in held]
    diagonal = _diagonal("Norms", _squared_norms(s)) | _diagonal("Lambda", [e.symbol for e in _strengths(s)])
    multiplied = as_kernel(
        {"multiplied": _with_entry_symbols(_explicit_trace(sphere.multiplier_term(saddle.symbols))).xreplace(diagonal)},
        equations="docs/theory.md (6.5)",
        formulas=[Sphere.multiplier_term],
    )
    norms = add_stamp([f"{e} = {e.array}[{e.subscript}]" for e in entries("norm", s)])
    return {
        "prior_side": "sphere.py.jinja",
        "prefix": "ridge_",
        "norm_lines": norms,
        "excess_lines": [*add_stamp(reads), *dialect.body(kernel, "{} += weights[atom] * ({})".format)],
        "multiplied_lines": [*_strength_loads(s), *norms, *dialect.body(multiplied)],
    }


def _second_moment_lines(s: int) -> list[str]:
    """Return lines of R, Q and E[B B^T] of an atom, entry by entry."""
    lines: list[str] = []
    for a, b in product(range(s), range(s)):
        lines += [f"R_{a}_{b} = R[{a}, {b}]", f"Q_{a}_{b} = Q[{a}, {b}]", f"BB_{a}_{b} = 0.0"]
    lines.append("for i in range(contexts + TEACHER):")
    lines += [f"    BB_{a}_{b} += product[{a}, i] * field[{b}, i]" for a, b in product(range(s), range(s))]
    return add_stamp(lines)


def _strengths(s: int) -> list[Entry]:
    """Return names of the diagonal of Lambda."""
    return entries("ridge", s)


def _strength_loads(s: int) -> list[str]:
    return add_stamp([f"{name} = ridge[{name.subscript}]" for name in _strengths(s)])


def _entropic_lines(model: ModelAt, saddle: SaddlePoint, dialect: Dialect) -> list[str]:
    """Return lines of an atom's terms of Phi at zero temperature, and of the average of the ridge."""
    p: Symbols = saddle.symbols
    s, t = model.structure.student_rank, model.structure.teacher_rank
    resolvent, product_BB, product_tau, product_pi, _ = ridge_moments(saddle)
    phi = free_entropy(s, t, model.regulariser.rows)
    entropic = sp.Integer(0)
    for term in sp.Add.make_args(phi.expression):
        coefficient, average = split_average(term)
        if average.kind == COORDINATE:
            summand = average.summand.xreplace({(p.Lambda + p.G).inv(): resolvent})
            entropic += coefficient * _second_moment_trace(summand, p, product_BB)
    second = _second_moments(resolvent * (p.B * p.B.T + p.Q) * resolvent, p, product_BB, product_tau, product_pi)
    ridge = [sp.Symbol(str(name), positive=True) for name in _strengths(s)]
    penalty = sp.Add(*[ridge[a] * _with_entry_symbols(second[a, a]) for a in range(s)]) / 2
    kernel = as_kernel(
        {"entropic_n": _with_entry_symbols(entropic), "penalty_n": penalty},
        equations="docs/theory.md (4.6), (7.3)",
        formulas=[type(model.regulariser.rows).potential],
    )
    return [*_strength_loads(s), *dialect.body(kernel)]


def _thermal_lines(model: ModelAt, saddle: SaddlePoint, dialect: Dialect) -> list[str]:
    """Return lines of their corrections at a finite temperature: volume of the rows, ridge of their covariance."""
    p: Symbols = saddle.symbols
    s = model.structure.student_rank
    resolvent, *_ = ridge_moments(saddle)
    own, ridge = (thermal_corrections(p, ridge=True), [sp.Symbol(str(name), positive=True) for name in _strengths(s)])
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
    return dialect.body(kernel)


@cache
def _second_moments(
    expression: sp.MatrixExpr, p: Symbols, BB: sp.MatrixSymbol, Btau: sp.MatrixSymbol, Bpi: sp.MatrixSymbol
) -> sp.Matrix:
    """Return a product that is quadratic in (tau, pi), with names for B B^T, tau B and B pi^T (B is linear in them).

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


def _second_moment_trace(scalar: sp.Expr, p: Symbols, BB: sp.MatrixSymbol) -> sp.Expr:
    total = sp.Integer(0)
    for term in sp.Add.make_args(scalar):
        coefficient, traced = term.as_independent(sp.Trace)
        empty = sp.MatrixSymbol("unused", *p.B.shape)
        total += coefficient * sp.trace(_second_moments(traced.arg, p, BB, empty, empty))
    return total


def _explicit_trace(scalar: sp.Expr) -> sp.Expr:
    total = sp.Integer(0)
    for term in sp.Add.make_args(scalar):
        coefficient, traced = term.as_independent(sp.Trace)
        total += coefficient * sp.trace(_explicit_matrix(traced.arg))
    return total
