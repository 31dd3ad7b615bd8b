"""Variables of the template of one-pass descent: equations of motion of the rows' second moments as scalar lines.

Sums over contexts are named and added up context by context; averages over the rows of an atom are its moments, or
entries of the Gram matrix of (tau, pi).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixElement

from ...authoring.model import FixedSizeModel
from ...calculus.averages import CHANNEL, CONTEXTS, Average, MatrixAverage, OrderParameterSymbols, to_explicit_matrix
from ...theory import descent
from ..kernel import ArrayEntryName, add_origin_comment, cache_and_record_kernels, make_kernel
from ..printers.numba import kernel_body_lines

OWN = sp.Symbol("gamma_n", real=True)  # eigenvalue of context n
_GRAM = "gram"


def descent_template_variables(model: FixedSizeModel) -> dict[str, Any]:
    """Return the variables of the code template of one-pass gradient descent: sizes and equations of motion."""
    return _lines_of_motion_equations(
        model.structure.student_rank, model.structure.teacher_rank, len(model.trained), model.loss_depends_on_q
    )


@cache_and_record_kernels
def _lines_of_motion_equations(s: int, t: int, trained: int, holds_q: bool) -> dict[str, Any]:
    rows = descent.RowMoments(OrderParameterSymbols(s, t, trained, holds_q))
    row, closed = descent.weight_row_drift_and_noise(rows), descent.row_moment_equations(rows)
    slopes, steps = ("dS", "dT", "dP"), ("S after a batch", "T after a batch", "P after a batch")
    return {
        "s": s,
        "t": t,
        "trained": trained,
        "drift": _lines_of_sums_over_clusters(
            rows, {"A": row["A_drift"]}, "docs/theory.md (19.4)", "atom, {}, {}", descent.weight_row_drift_and_noise
        ),
        "fields": _lines_of_row_field(rows, row["b_drift"]),
        "slope": _lines_of_moment_motion(
            rows, {name[1:]: closed[name] for name in slopes}, "docs/theory.md (19.6), (19.7)"
        ),
        "step": _lines_of_moment_motion(rows, {name[0]: closed[name] for name in steps}, "docs/theory.md (19.10)"),
        "own": _motion_lines_of_trained_numbers(rows, row["trained"]) if trained else [],
    }


def _array_symbols_of_averages(rows: descent.RowMoments) -> dict[sp.Expr, sp.Expr]:
    """Return a map from averages over samples or over an atom's rows to symbols of the arrays that store them."""
    p = rows.p
    s, t = int(p.s), int(p.t)
    return {
        rows.mean: sp.MatrixSymbol("mean", s, 1),
        rows.mean.T.doit(): sp.MatrixSymbol("mean", s, 1).T,
        rows.square: sp.MatrixSymbol("square", s, s),
        MatrixAverage(CHANNEL, p.loss_q): sp.MatrixSymbol("in_q", s, s),
        Average(descent.ATOM, p.tau * rows.tau_other): sp.Symbol("tau_other", real=True),
        rows.T_other: sp.MatrixSymbol("other", s, 1),
        MatrixAverage(descent.ATOM, rows.tau_other * p.pi): sp.MatrixSymbol("other_pi", t, 1),
        MatrixAverage(descent.ATOM, p.tau * p.pi.T): sp.MatrixSymbol("tau_pi", 1, t),
        MatrixAverage(descent.ATOM, p.pi * p.pi.T): sp.MatrixSymbol("pi_pi", t, t),
        MatrixAverage(descent.ATOM, rows.b * rows.b.T): sp.MatrixSymbol("bb", s, s),
        p.gamma: OWN,
    }


def _source_of_array_entry(entry: ArrayEntryName) -> str:
    i, j = (*entry.place, 0)[:2] if entry.place else (0, 0)
    return {
        "A_drift": f"A[atom, {i}, {j}]", "S_atom": f"S[atom, {i}, {j}]", "P_atom": f"P[atom, {i}, {j}]",
        "T_atom": f"T[atom, n, {i}]", "other": f"T[atom, other, {i}]", "mean": f"mean[n, {i}]",
        "K_slope": f"K[n, {i}, {j}]", "H_slope": f"H[n, {i}, {j}]", "square": f"square[n, {i}, {j}]",
        "in_q": f"in_q[n, {i}, {j}]", "tau_other": f"{_GRAM}[atom, n, other]",
        "other_pi": f"{_GRAM}[atom, other, contexts + {i}]", "tau_pi": f"{_GRAM}[atom, n, contexts + {j}]",
        "pi_pi": f"{_GRAM}[atom, contexts + {i}, contexts + {j}]", "bb": f"bb[{i}, {j}]",
        "Lambda": f"ridge[{i}]", "phi": f"phi[{i}]", "in_phi": f"in_phi[{i}]", "Kappa": f"own_ridge[{i}]",
    }[entry.array]  # fmt: skip


def _lines_loading_entries(names: Iterable[str], entries: Mapping[str, ArrayEntryName]) -> list[str]:
    return add_origin_comment(
        [f"{name} = {_source_of_array_entry(entries[name])}" for name in sorted(names) if name in entries]
    )


def _replace_entries_by_symbols(matrix: sp.MatrixExpr, read: dict[str, ArrayEntryName]) -> sp.Matrix:
    """Return a matrix with symbols for its array entries; `read` collects the entries that code must load."""
    entries = to_explicit_matrix(matrix.doit())
    found: dict[sp.Expr, sp.Expr] = {}
    for element in entries.atoms(MatrixElement):
        name, i, j = element.parent.name, int(element.i), int(element.j)
        if name == "Lambda" and i != j:
            found[element] = sp.Integer(0)
            continue
        if name == "S_atom" and i > j:
            i, j = j, i
        entry = ArrayEntryName(name, i, j)
        read[str(entry)], found[element] = entry, entry.symbol
    for symbol in entries.free_symbols:
        if symbol.name == "tau_other":
            read["tau_other"] = ArrayEntryName("tau_other")
    return entries.xreplace(found)


def _extract_sums_over_clusters(
    rows: descent.RowMoments, expression: sp.MatrixExpr
) -> tuple[sp.MatrixExpr, dict[sp.MatrixSymbol, sp.MatrixExpr]]:
    """Return an expression with symbols for sums over (token, cluster) pairs, and the summand of each symbol."""
    expression = expression.xreplace(_array_symbols_of_averages(rows))
    sums: dict[sp.MatrixSymbol, sp.MatrixExpr] = {}
    found = sorted((a for a in expression.atoms(MatrixAverage) if a.kind == CONTEXTS), key=str)
    for number, average in enumerate(found):
        symbol = sp.MatrixSymbol(f"sum{number}", *map(int, average.shape))
        sums[symbol] = average.summand
        expression = expression.xreplace({average: symbol})
    return expression, sums


def _lines_of_sums_over_clusters(
    rows: descent.RowMoments,
    equations: Mapping[str, sp.MatrixExpr],
    cited: str,
    place: str,
    source: Any = descent.row_moment_equations,
) -> dict[str, Any]:
    """Return the source lines of equations that contain sums over (token, cluster) pairs, in three parts.

    "begin" sets the sums to zero, "inside" adds the terms of one pair, "outside" evaluates the equations.

    Args:
        rows: symbols of the rows.
        equations: right sides by the name of the array that stores them.
        cited: numbers of the equations, as generated lines cite them.
        place: format of the indices of atom, row and column.
        source: function that returns the equations.
    """
    begin: list[str] = []
    inside: dict[str, sp.Expr] = {}
    outside: dict[str, sp.Expr] = {}
    read_in: dict[str, ArrayEntryName] = {}
    read_out: dict[str, ArrayEntryName] = {}
    for target, expression in equations.items():
        rest, sums = _extract_sums_over_clusters(rows, expression)
        for symbol, summand in sums.items():
            matrix = _replace_entries_by_symbols(summand, read_in)
            for i, j in product(*map(range, matrix.shape)):
                name = f"{target}_{symbol.name}_{i}_{j}"
                begin.append(f"{name} = 0.0")
                inside[name] = matrix[i, j]
        renamed = {x: sp.MatrixSymbol(f"{target}_{x.name}", *x.shape) for x in sums}
        matrix = _replace_entries_by_symbols(rest.xreplace(renamed), read_out)
        for i, j in product(*map(range, matrix.shape)):
            outside[f"{target}[{place.format(i, j)}]"] = matrix[i, j]
    within = make_kernel(inside, prefix="c", equations=cited, formulas=[source])
    whole = make_kernel(outside, equations=cited, formulas=[source])
    return {
        "begin": add_origin_comment(begin),
        "inside": [*_lines_loading_entries(within.input_names, read_in), *kernel_body_lines(within, "{} += {}".format)],
        "outside": [*_lines_loading_entries(whole.input_names - set(inside), read_out), *kernel_body_lines(whole)],
    }


def _lines_of_moment_motion(
    rows: descent.RowMoments, equations: Mapping[str, sp.MatrixExpr], cited: str
) -> dict[str, Any]:
    """Return source lines of the equations of motion of a row's second moments S, P and T in gradient descent.

    S = E[w w^T] and P = E[w pi^T], with w a row of W and pi the teacher's, have one matrix per spectral atom, T = E[w
    tau_c] one per atom and (token, cluster) pair c of mean coordinate tau_c.
    """
    of_rows = {name: equations[name] for name in ("S", "P")}
    atom = _lines_of_sums_over_clusters(rows, {f"new_{name}": e for name, e in of_rows.items()}, cited, "atom, {}, {}")
    other = _lines_of_sums_over_clusters(rows, {"new_T": equations["T"]}, cited, "atom, other, {}")
    return {"atom": atom, "other": other}


def _lines_of_row_field(rows: descent.RowMoments, b: sp.MatrixExpr) -> list[str]:
    """Return source lines that add the terms of one (token, cluster) pair to the vector b of a row's drift.

    The drift of a row w of W is -rate (A w + b). The vector b is linear in the mean coordinates tau and the teacher's
    row pi; the lines add to its coefficients.
    """
    p = rows.p
    read: dict[str, ArrayEntryName] = {}
    _, sums = _extract_sums_over_clusters(rows, b)
    ((_, summand),) = sums.items()
    entries = to_explicit_matrix(summand.doit())
    outputs: dict[str, sp.Expr] = {}
    for i in range(int(p.s)):
        columns = {"n": sp.diff(entries[i, 0], p.tau)}
        columns |= {f"contexts + {k}": sp.diff(entries[i, 0], p.pi[k, 0]) for k in range(int(p.t))}
        for column, value in columns.items():
            outputs[f"b[atom, {i}, {column}]"] = _replace_entries_by_symbols(sp.ImmutableMatrix([[value]]), read)[0]
    kernel = make_kernel(outputs, equations="docs/theory.md (19.4)", formulas=[descent.weight_row_drift_and_noise])
    return [*_lines_loading_entries(kernel.input_names, read), *kernel_body_lines(kernel, "{} += {}".format)]


def _motion_lines_of_trained_numbers(rows: descent.RowMoments, expression: sp.MatrixExpr) -> list[str]:
    """Return source lines of the gradient-descent equations of trained numbers, without the learning rate."""
    p = rows.p
    count = int(p.trained)
    named = {MatrixAverage(CHANNEL, p.loss_phi): sp.MatrixSymbol("in_phi", count, 1)}
    read: dict[str, ArrayEntryName] = {}
    entries = to_explicit_matrix(expression.xreplace(named).doit())
    entries = entries.applyfunc(lambda e: e.xreplace({p.Kappa[i, j]: sp.Integer(0) for i in range(count)
                                                        for j in range(count) if i != j}))  # fmt: skip
    outputs = {
        f"new_phi[{i}]": _replace_entries_by_symbols(sp.ImmutableMatrix([[entries[i, 0]]]), read)[0].xreplace(
            {descent.RATE_TRAINED: descent.RATE}
        )
        for i in range(count)
    }
    kernel = make_kernel(outputs, equations="docs/theory.md (19.2)", formulas=[descent.weight_row_drift_and_noise])
    return [*_lines_loading_entries(kernel.input_names, read), *kernel_body_lines(kernel)]
