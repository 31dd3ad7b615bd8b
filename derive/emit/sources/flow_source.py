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

from ...authoring.model import ModelAt
from ...calculus.averages import CHANNEL, CONTEXTS, Average, MatrixAverage, Symbols, to_explicit
from ...theory import descent
from ..kernel import Entry, add_stamp, as_kernel, cached_with_record
from ..printers.numba import body

OWN = sp.Symbol("gamma_n", real=True)  # eigenvalue of context n
_GRAM = "gram"


def flow_context(model: ModelAt) -> dict[str, Any]:
    """Return the sizes, and the lines of drift, slope and step."""
    return _flow_lines(
        model.structure.student_rank, model.structure.teacher_rank, len(model.trained), model.loss_holds_q
    )


@cached_with_record
def _flow_lines(s: int, t: int, trained: int, holds_q: bool) -> dict[str, Any]:
    rows = descent.RowMoments(Symbols(s, t, trained, holds_q))
    row, closed = descent.row_equations(rows), descent.moment_equations(rows)
    slopes, steps = ("dS", "dT", "dP"), ("S after a batch", "T after a batch", "P after a batch")
    return {
        "s": s,
        "t": t,
        "trained": trained,
        "drift": _sums(rows, {"A": row["A_drift"]}, "docs/theory.md (19.4)", "atom, {}, {}", descent.row_equations),
        "fields": _fields(rows, row["b_drift"]),
        "slope": _motion_lines(rows, {name[1:]: closed[name] for name in slopes}, "docs/theory.md (19.6), (19.7)"),
        "step": _motion_lines(rows, {name[0]: closed[name] for name in steps}, "docs/theory.md (19.10)"),
        "own": _trained_lines(rows, row["trained"]) if trained else [],
    }


def _array_symbols(rows: descent.RowMoments) -> dict[sp.Expr, sp.Expr]:
    """Return the array entries that stand for averages of a sample, and over the rows of an atom."""
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


def _array_entry(entry: Entry) -> str:
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


def _loads(names: Iterable[str], entries: Mapping[str, Entry]) -> list[str]:
    return add_stamp([f"{name} = {_array_entry(entries[name])}" for name in sorted(names) if name in entries])


def _named_entries(matrix: sp.MatrixExpr, read: dict[str, Entry]) -> sp.Matrix:
    """Return the entries of a matrix as symbols; the entries of arrays that these are, are added to `read`."""
    entries = to_explicit(matrix.doit())
    found: dict[sp.Expr, sp.Expr] = {}
    for element in entries.atoms(MatrixElement):
        name, i, j = element.parent.name, int(element.i), int(element.j)
        if name == "Lambda" and i != j:
            found[element] = sp.Integer(0)
            continue
        if name == "S_atom" and i > j:
            i, j = j, i
        entry = Entry(name, i, j)
        read[str(entry)], found[element] = entry, entry.symbol
    for symbol in entries.free_symbols:
        if symbol.name == "tau_other":
            read["tau_other"] = Entry("tau_other")
    return entries.xreplace(found)


def _extract_sums(
    rows: descent.RowMoments, expression: sp.MatrixExpr
) -> tuple[sp.MatrixExpr, dict[sp.MatrixSymbol, sp.MatrixExpr]]:
    """Return an expression with sums over contexts as symbols, and their summands."""
    expression = expression.xreplace(_array_symbols(rows))
    sums: dict[sp.MatrixSymbol, sp.MatrixExpr] = {}
    found = sorted((a for a in expression.atoms(MatrixAverage) if a.kind == CONTEXTS), key=str)
    for number, average in enumerate(found):
        symbol = sp.MatrixSymbol(f"sum{number}", *map(int, average.shape))
        sums[symbol] = average.summand
        expression = expression.xreplace({average: symbol})
    return expression, sums


def _sums(
    rows: descent.RowMoments,
    equations: Mapping[str, sp.MatrixExpr],
    cited: str,
    place: str,
    source: Any = descent.moment_equations,
) -> dict[str, Any]:
    """Return lines that initialise sums, those of one context, and those of the results.

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
    read_inside: dict[str, Entry] = {}
    read_outside: dict[str, Entry] = {}
    for target, expression in equations.items():
        rest, sums = _extract_sums(rows, expression)
        for symbol, summand in sums.items():
            matrix = _named_entries(summand, read_inside)
            for i, j in product(*map(range, matrix.shape)):
                name = f"{target}_{symbol.name}_{i}_{j}"
                begin.append(f"{name} = 0.0")
                inside[name] = matrix[i, j]
        renamed = {x: sp.MatrixSymbol(f"{target}_{x.name}", *x.shape) for x in sums}
        matrix = _named_entries(rest.xreplace(renamed), read_outside)
        for i, j in product(*map(range, matrix.shape)):
            outside[f"{target}[{place.format(i, j)}]"] = matrix[i, j]
    within = as_kernel(inside, prefix="c", equations=cited, formulas=[source])
    whole = as_kernel(outside, equations=cited, formulas=[source])
    return {
        "begin": add_stamp(begin),
        "inside": [*_loads(within.names, read_inside), *body(within, "{} += {}".format)],
        "outside": [*_loads(whole.names - set(inside), read_outside), *body(whole)],
    }


def _motion_lines(rows: descent.RowMoments, equations: Mapping[str, sp.MatrixExpr], cited: str) -> dict[str, Any]:
    """Return the lines for S and P of an atom, and for T of it and a second context."""
    of_rows = {name: equations[name] for name in ("S", "P")}
    atom = _sums(rows, {f"new_{name}": e for name, e in of_rows.items()}, cited, "atom, {}, {}")
    other = _sums(rows, {"new_T": equations["T"]}, cited, "atom, other, {}")
    return {"atom": atom, "other": other}


def _fields(rows: descent.RowMoments, b: sp.MatrixExpr) -> list[str]:
    """Return lines that add a context's terms to the coefficients of (tau, pi) in b."""
    p = rows.p
    read: dict[str, Entry] = {}
    _, sums = _extract_sums(rows, b)
    ((_, summand),) = sums.items()
    entries = to_explicit(summand.doit())
    outputs: dict[str, sp.Expr] = {}
    for i in range(int(p.s)):
        columns = {"n": sp.diff(entries[i, 0], p.tau)}
        columns |= {f"contexts + {k}": sp.diff(entries[i, 0], p.pi[k, 0]) for k in range(int(p.t))}
        for column, value in columns.items():
            outputs[f"b[atom, {i}, {column}]"] = _named_entries(sp.ImmutableMatrix([[value]]), read)[0]
    kernel = as_kernel(outputs, equations="docs/theory.md (19.4)", formulas=[descent.row_equations])
    return [*_loads(kernel.names, read), *body(kernel, "{} += {}".format)]


def _trained_lines(rows: descent.RowMoments, expression: sp.MatrixExpr) -> list[str]:
    """Return the lines for the trained numbers, without the rate."""
    p = rows.p
    count = int(p.trained)
    named = {MatrixAverage(CHANNEL, p.loss_phi): sp.MatrixSymbol("in_phi", count, 1)}
    read: dict[str, Entry] = {}
    entries = to_explicit(expression.xreplace(named).doit())
    entries = entries.applyfunc(lambda e: e.xreplace({p.Kappa[i, j]: sp.Integer(0) for i in range(count)
                                                        for j in range(count) if i != j}))  # fmt: skip
    outputs = {
        f"new_phi[{i}]": _named_entries(sp.ImmutableMatrix([[entries[i, 0]]]), read)[0].xreplace(
            {descent.RATE_TRAINED: descent.RATE}
        )
        for i in range(count)
    }
    kernel = as_kernel(outputs, equations="docs/theory.md (19.2)", formulas=[descent.row_equations])
    return [*_loads(kernel.names, read), *body(kernel)]
