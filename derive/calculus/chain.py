"""Gradient and Hessian of a loss in stages: loss(atoms(z(X)), X), with every stage's derivatives named.

The atoms are the model's nonlinear functions (softmax entries, sigmoid, softplus). Their derivatives are polynomials
of the atoms themselves, so that no exponential is evaluated twice and no expression is expanded; the number of
statements grows like that of hand-written code.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sympy as sp

from .functions import Sigmoid, SoftmaxEntry, Softplus
from .piecewise import almost_everywhere


@dataclass(frozen=True)
class Derivatives:
    """value, gradient[i], hessian[i, j] (i <= j) in terms of the symbols that `definitions` defines, in order."""

    definitions: dict[str, sp.Expr]
    value: sp.Expr
    gradient: list[sp.Expr]
    hessian: dict[tuple[int, int], sp.Expr]


def rows_of_two_as_sigmoids(expression: sp.Expr) -> sp.Expr:
    """softmax(a, b) = (sigmoid(a - b), 1 - sigmoid(a - b)): one exponential and one derivative less a row.

    Their logarithms are -softplus(b - a) and -softplus(a - b), which hold where 1 - sigmoid rounds to zero.
    """
    replacement = {}
    for entry in expression.atoms(SoftmaxEntry):
        index, *logits = entry.args
        if len(logits) == 2:
            first = Sigmoid(logits[0] - logits[1])
            replacement[entry] = first if index == 0 else 1 - first
            replacement[sp.log(entry)] = -Softplus((logits[1] - logits[0]) * (1 if index == 0 else -1))
    return expression.xreplace(replacement)


def staged_derivatives(loss: sp.Expr, variables: list[sp.Symbol]) -> Derivatives:
    """Chain rule through the outermost nonlinear atoms that hold a variable.

    Args:
        loss: a scalar; softmax rows of two are best turned into sigmoids before.
        variables: what to differentiate in, D of them.
    """
    held = set(variables)
    definitions: dict[str, sp.Expr] = {}

    def name(stem: str, expression: sp.Expr) -> sp.Expr:
        if expression.is_Number or expression.is_Symbol:
            return expression
        definitions[stem] = expression
        return sp.Symbol(stem, real=True)

    atoms = _outermost(loss, held)
    symbols = {atom: sp.Symbol(f"n{i}", real=True) for i, atom in enumerate(atoms)}
    for atom, symbol in symbols.items():
        definitions[symbol.name] = atom
    value = loss.xreplace(symbols)

    arguments = sorted({z for atom in atoms for z in _arguments(atom)}, key=sp.default_sort_key)
    first_of = {
        z: {a: _first(atom, z, symbols) for atom, a in symbols.items() if z in _arguments(atom)} for z in arguments
    }
    gradient_atom = {a: name(f"l{i}", sp.factor_terms(sp.diff(value, a))) for i, a in enumerate(symbols.values())}
    hessian_atom = {
        (a, b): e
        for i, a in enumerate(symbols.values())
        for j, b in enumerate(symbols.values())
        if i <= j and (e := sp.diff(value, a, b)) != 0
    }
    slope: dict[sp.Expr, sp.Expr] = {}
    for n, z in enumerate(arguments):
        slope[z] = name(f"s{n}", sp.Add(*[gradient_atom[a] * d for a, d in first_of[z].items()]))
    curvature: dict[tuple[int, int], sp.Expr] = {}
    for n, z in enumerate(arguments):
        for m in range(n, len(arguments)):
            y = arguments[m]
            terms = [
                gradient_atom[a] * _second(atom, z, y, symbols)
                for atom, a in symbols.items()
                if z in _arguments(atom) and y in _arguments(atom)
            ]
            for (a, b), e in hessian_atom.items():
                da_z, db_z = first_of[z].get(a, 0), first_of[z].get(b, 0)
                da_y, db_y = first_of[y].get(a, 0), first_of[y].get(b, 0)
                terms.append(e * da_z * db_y if a == b else e * (da_z * db_y + db_z * da_y))
            total = sp.Add(*terms)
            if total != 0:
                curvature[n, m] = name(f"k{n}_{m}", total)

    jacobian = {
        (n, i): name(f"j{n}_{i}", e)
        for n, z in enumerate(arguments)
        for i, x in enumerate(variables)
        if (e := sp.diff(z, x)) != 0
    }
    direct = [sp.diff(value, x) for x in variables]
    gradient = [
        almost_everywhere(
            direct[i] + sp.Add(*[slope[z] * jacobian[n, i] for n, z in enumerate(arguments) if (n, i) in jacobian])
        )
        for i in range(len(variables))
    ]
    mixed = {
        (n, i): name(f"q{n}_{i}", total)
        for n, z in enumerate(arguments)
        for i, x in enumerate(variables)
        if (total := sp.Add(*[d * sp.diff(value, a, x) for a, d in first_of[z].items()])) != 0
    }
    columns = {}
    for n in range(len(arguments)):
        for i in range(len(variables)):
            total = sp.Add(
                *[
                    curvature[min(n, m), max(n, m)] * jacobian[m, i]
                    for m in range(len(arguments))
                    if (min(n, m), max(n, m)) in curvature and (m, i) in jacobian
                ]
            )
            if total != 0:
                columns[n, i] = name(f"m{n}_{i}", total) if sp.count_ops(total) > 2 else total
    hessian = {}
    for i in range(len(variables)):
        for j in range(i, len(variables)):
            terms = [sp.diff(direct[i], variables[j])]
            for n, z in enumerate(arguments):
                terms.append(slope[z] * sp.diff(z, variables[i], variables[j]))
                if (n, i) in jacobian and (n, j) in columns:
                    terms.append(jacobian[n, i] * columns[n, j])
                if (n, j) in mixed and (n, i) in jacobian:
                    terms.append(jacobian[n, i] * mixed[n, j])
                if (n, i) in mixed and (n, j) in jacobian:
                    terms.append(jacobian[n, j] * mixed[n, i])
            hessian[i, j] = almost_everywhere(sp.Add(*terms))
    definitions = {symbol: almost_everywhere(e) for symbol, e in definitions.items()}
    return Derivatives(definitions, value, gradient, hessian)


def _outermost(expression: sp.Expr, held: set[sp.Symbol]) -> list[sp.Expr]:
    """Nonlinear atoms that hold a variable and stand inside no other such atom, in a fixed order."""
    found: set[sp.Expr] = set()

    def walk(e: sp.Expr) -> None:
        if not e.free_symbols & held:
            return
        if isinstance(e, SoftmaxEntry | Sigmoid | Softplus):
            found.add(e)
            return
        for a in e.args:
            walk(a)

    walk(expression)
    return sorted(found, key=sp.default_sort_key)


def _arguments(atom: sp.Expr) -> tuple[sp.Expr, ...]:
    return atom.args[1:] if isinstance(atom, SoftmaxEntry) else atom.args


def _first(atom: sp.Expr, z: sp.Expr, symbols: dict[sp.Expr, sp.Symbol]) -> sp.Expr:
    """d atom / dz, written with the atoms' symbols."""
    if isinstance(atom, SoftmaxEntry):
        entries = _row(atom, symbols)
        positions = [b for b, argument in enumerate(atom.args[1:]) if argument == z]
        j = int(atom.args[0])
        return sp.Add(*[entries[j] * (int(j == b) - entries[b]) for b in positions])
    if isinstance(atom, Sigmoid):
        a = symbols[atom]
        return a * (1 - a)
    return Sigmoid(atom.args[0])


def _second(atom: sp.Expr, z: sp.Expr, y: sp.Expr, symbols: dict[sp.Expr, sp.Symbol]) -> sp.Expr:
    """d2 atom / dz dy, written with the atoms' symbols."""
    if isinstance(atom, SoftmaxEntry):
        entries = _row(atom, symbols)
        j = int(atom.args[0])
        total: sp.Expr = sp.Integer(0)
        for b in [n for n, argument in enumerate(atom.args[1:]) if argument == z]:
            for c in [n for n, argument in enumerate(atom.args[1:]) if argument == y]:
                outer = (int(j == c) - entries[c]) * (int(j == b) - entries[b])
                total += entries[j] * (outer - entries[b] * (int(b == c) - entries[c]))
        return total
    if isinstance(atom, Sigmoid):
        a = symbols[atom]
        return a * (1 - a) * (1 - 2 * a)
    return Sigmoid(atom.args[0]) * (1 - Sigmoid(atom.args[0]))


def _row(atom: sp.Expr, symbols: dict[sp.Expr, sp.Symbol]) -> list[sp.Expr]:
    """All entries of an atom's softmax row, as symbols where they occur in the loss."""
    entries: Iterable[sp.Expr] = (SoftmaxEntry(sp.Integer(b), *atom.args[1:]) for b in range(len(atom.args) - 1))
    return [symbols.get(entry, entry) for entry in entries]
