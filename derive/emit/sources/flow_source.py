"""Context of the template of one-pass descent: equations of motion of the rows' second moments as scalar lines.

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
from ..kernel import ArrayEntryName, add_origin_comment, as_kernel, cache_and_record_kernels
from ..printers.numba import kernel_body_lines

OWN = sp.Symbol("gamma_n", real=True)  # eigenvalue of context n
_GRAM = "gram"


def descent_flow_template_context(model: FixedSizeModel) -> dict[str, Any]:
    """Return the variables of the template of one-pass descent: sizes, and lines of the equations of motion."""
    return _equations_of_motion_lines(
        model.structure.student_rank, model.structure.teacher_rank, len(model.trained), model.loss_depends_on_q
    )


@cache_and_record_kernels
def _equations_of_motion_lines(s: int, t: int, trained: int, holds_q: bool) -> dict[str, Any]:
    rows = descent.RowMoments(OrderParameterSymbols(s, t, trained, holds_q))
    row, closed = descent.weight_row_drift_and_noise(rows), descent.row_moment_equations(rows)
    slopes, steps = ("dS", "dT", "dP"), ("S after a batch", "T after a batch", "P after a batch")
    return {
        "s": s,
        "t": t,
        "trained": trained,
        "drift": _context_sum_lines(
            rows, {"A": row["A_drift"]}, "docs/theory.md (19.4)", "atom, {}, {}", descent.weight_row_drift_and_noise
        ),
        "fields": _row_field_lines(rows, row["b_drift"]),
        "slope": _second_moment_motion_lines(
            rows, {name[1:]: closed[name] for name in slopes}, "docs/theory.md (19.6), (19.7)"
        ),
        "step": _second_moment_motion_lines(rows, {name[0]: closed[name] for name in steps}, "docs/theory.md (19.10)"),
        "own": _trained_number_lines(rows, row["trained"]) if trained else [],
    }


def _averages_as_array_symbols(rows: descent.RowMoments) -> dict[sp.Expr, sp.Expr]:
    """Return the array symbols that replace averages over samples and over the rows of an atom."""
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


def _array_entry_text(entry: ArrayEntryName) -> str:
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


def _array_load_lines(names: Iterable[str], entries: Mapping[str, ArrayEntryName]) -> list[str]:
    return add_origin_comment(
        [f"{name} = {_array_entry_text(entries[name])}" for name in sorted(names) if name in entries]
    )


def _matrix_of_entry_symbols(matrix: sp.MatrixExpr, read: dict[str, ArrayEntryName]) -> sp.Matrix:
    """Return a matrix with array entries replaced by symbols; the entries are added to `read`."""
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


def _extract_context_sums(
    rows: descent.RowMoments, expression: sp.MatrixExpr
) -> tuple[sp.MatrixExpr, dict[sp.MatrixSymbol, sp.MatrixExpr]]:
    """Replace sums over contexts in an expression by symbols; return it with the summands by symbol."""
    expression = expression.xreplace(_averages_as_array_symbols(rows))
    sums: dict[sp.MatrixSymbol, sp.MatrixExpr] = {}
    found = sorted((a for a in expression.atoms(MatrixAverage) if a.kind == CONTEXTS), key=str)
    for number, average in enumerate(found):
        symbol = sp.MatrixSymbol(f"sum{number}", *map(int, average.shape))
        sums[symbol] = average.summand
        expression = expression.xreplace({average: symbol})
    return expression, sums


def _context_sum_lines(
    rows: descent.RowMoments,
    equations: Mapping[str, sp.MatrixExpr],
    cited: str,
    place: str,
    source: Any = descent.row_moment_equations,
) -> dict[str, Any]:
    """Return lines that initialise sums over contexts, add one context, and compute results from the sums.

    Args:
        rows: symbols of the rows.
        equations: results by the name of their array.
        cited: the equations, as the generated lines cite them.
        place: format of the indices of atom, row and column.
        source: the function that the equations come from.
    """
    begin: list[str] = []
    inside: dict[str, sp.Expr] = {}
    outside: dict[str, sp.Expr] = {}
    read_inside: dict[str, ArrayEntryName] = {}
    read_outside: dict[str, ArrayEntryName] = {}
    for target, expression in equations.items():
        rest, sums = _extract_context_sums(rows, expression)
        for symbol, summand in sums.items():
            matrix = _matrix_of_entry_symbols(summand, read_inside)
            for i, j in product(*map(range, matrix.shape)):
                name = f"{target}_{symbol.name}_{i}_{j}"
                begin.append(f"{name} = 0.0")
                inside[name] = matrix[i, j]
        renamed = {x: sp.MatrixSymbol(f"{target}_{x.name}", *x.shape) for x in sums}
        matrix = _matrix_of_entry_symbols(rest.xreplace(renamed), read_outside)
        for i, j in product(*map(range, matrix.shape)):
            outside[f"{target}[{place.format(i, j)}]"] = matrix[i, j]
    within = as_kernel(inside, prefix="c", equations=cited, formulas=[source])
    whole = as_kernel(outside, equations=cited, formulas=[source])
    return {
        "begin": add_origin_comment(begin),
        "inside": [*_array_load_lines(within.input_names, read_inside), *kernel_body_lines(within, "{} += {}".format)],
        "outside": [*_array_load_lines(whole.input_names - set(inside), read_outside), *kernel_body_lines(whole)],
    }


def _second_moment_motion_lines(
    rows: descent.RowMoments, equations: Mapping[str, sp.MatrixExpr], cited: str
) -> dict[str, Any]:
    """Return the lines of the equations of motion of S and P (per atom), and of T (per atom and context)."""
    of_rows = {name: equations[name] for name in ("S", "P")}
    atom = _context_sum_lines(rows, {f"new_{name}": e for name, e in of_rows.items()}, cited, "atom, {}, {}")
    other = _context_sum_lines(rows, {"new_T": equations["T"]}, cited, "atom, other, {}")
    return {"atom": atom, "other": other}


def _row_field_lines(rows: descent.RowMoments, b: sp.MatrixExpr) -> list[str]:
    """Return lines that add a context's terms to the coefficients of (tau, pi) in the field b of a row."""
    p = rows.p
    read: dict[str, ArrayEntryName] = {}
    _, sums = _extract_context_sums(rows, b)
    ((_, summand),) = sums.items()
    entries = to_explicit_matrix(summand.doit())
    outputs: dict[str, sp.Expr] = {}
    for i in range(int(p.s)):
        columns = {"n": sp.diff(entries[i, 0], p.tau)}
        columns |= {f"contexts + {k}": sp.diff(entries[i, 0], p.pi[k, 0]) for k in range(int(p.t))}
        for column, value in columns.items():
            outputs[f"b[atom, {i}, {column}]"] = _matrix_of_entry_symbols(sp.ImmutableMatrix([[value]]), read)[0]
    kernel = as_kernel(outputs, equations="docs/theory.md (19.4)", formulas=[descent.weight_row_drift_and_noise])
    return [*_array_load_lines(kernel.input_names, read), *kernel_body_lines(kernel, "{} += {}".format)]


def _trained_number_lines(rows: descent.RowMoments, expression: sp.MatrixExpr) -> list[str]:
    """Return the lines of the equations of motion of trained numbers, without the learning rate."""
    p = rows.p
    count = int(p.trained)
    named = {MatrixAverage(CHANNEL, p.loss_phi): sp.MatrixSymbol("in_phi", count, 1)}
    read: dict[str, ArrayEntryName] = {}
    entries = to_explicit_matrix(expression.xreplace(named).doit())
    entries = entries.applyfunc(lambda e: e.xreplace({p.Kappa[i, j]: sp.Integer(0) for i in range(count)
                                                        for j in range(count) if i != j}))  # fmt: skip
    outputs = {
        f"new_phi[{i}]": _matrix_of_entry_symbols(sp.ImmutableMatrix([[entries[i, 0]]]), read)[0].xreplace(
            {descent.RATE_TRAINED: descent.RATE}
        )
        for i in range(count)
    }
    kernel = as_kernel(outputs, equations="docs/theory.md (19.2)", formulas=[descent.weight_row_drift_and_noise])
    return [*_array_load_lines(kernel.input_names, read), *kernel_body_lines(kernel)]
