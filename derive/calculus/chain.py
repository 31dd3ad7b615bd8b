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
from .piecewise import drop_delta_functions


@dataclass(frozen=True)
class ChainRuleDerivatives:
    """A loss with its gradient and Hessian, written in terms of named subexpressions.

    Attributes:
        definitions: name -> subexpression, in the order of evaluation.
        value: the loss.
        gradient: its first derivatives, one per variable.
        hessian: (i, j) with i <= j -> second derivative.
    """

    definitions: dict[str, sp.Expr]
    value: sp.Expr
    gradient: list[sp.Expr]
    hessian: dict[tuple[int, int], sp.Expr]


def two_entry_softmax_to_sigmoid(expression: sp.Expr) -> sp.Expr:
    """Return an expression with every softmax of two logits a, b replaced by sigmoid(a - b) and 1 - sigmoid(a - b).

    Logarithms of softmax entries become -softplus(b - a) and -softplus(a - b), which are accurate where the entries
    round to zero.
    """
    replacement = {}
    for entry in expression.atoms(SoftmaxEntry):
        index, *logits = entry.args
        if len(logits) == 2:
            first = Sigmoid(logits[0] - logits[1])
            replacement[entry] = first if index == 0 else 1 - first
            replacement[sp.log(entry)] = -Softplus((logits[1] - logits[0]) * (1 if index == 0 else -1))
    return expression.xreplace(replacement)


def chain_rule_derivatives(loss: sp.Expr, variables: list[sp.Symbol]) -> ChainRuleDerivatives:
    """Return gradient and Hessian of a loss, by the chain rule through its outermost nonlinear functions.

    Args:
        loss: a scalar expression; apply `two_entry_softmax_to_sigmoid` first for shorter results.
        variables: variables with respect to which it is differentiated.
    """
    variable_set = set(variables)
    definitions: dict[str, sp.Expr] = {}

    def _define_symbol(stem: str, expression: sp.Expr) -> sp.Expr:
        if expression.is_Number or expression.is_Symbol:
            return expression
        definitions[stem] = expression
        return sp.Symbol(stem, real=True)

    atoms = _outermost_nonlinear_functions(loss, variable_set)
    symbols = {atom: sp.Symbol(f"n{i}", real=True) for i, atom in enumerate(atoms)}
    for atom, symbol in symbols.items():
        definitions[symbol.name] = atom
    value = loss.xreplace(symbols)

    arguments = sorted({z for atom in atoms for z in _arguments_without_softmax_index(atom)}, key=sp.default_sort_key)
    first_of = {
        z: {
            a: _derivative_of_nonlinear_function(atom, z, symbols)
            for atom, a in symbols.items()
            if z in _arguments_without_softmax_index(atom)
        }
        for z in arguments
    }
    gradient_atom = {
        a: _define_symbol(f"l{i}", sp.factor_terms(sp.diff(value, a))) for i, a in enumerate(symbols.values())
    }
    hessian_atom = {
        (a, b): e
        for i, a in enumerate(symbols.values())
        for j, b in enumerate(symbols.values())
        if i <= j and (e := sp.diff(value, a, b)) != 0
    }
    slope: dict[sp.Expr, sp.Expr] = {}
    for n, z in enumerate(arguments):
        slope[z] = _define_symbol(f"s{n}", sp.Add(*[gradient_atom[a] * d for a, d in first_of[z].items()]))
    curvature: dict[tuple[int, int], sp.Expr] = {}
    for n, z in enumerate(arguments):
        for m in range(n, len(arguments)):
            y = arguments[m]
            terms = [
                gradient_atom[a] * _second_derivative_of_nonlinear_function(atom, z, y, symbols)
                for atom, a in symbols.items()
                if z in _arguments_without_softmax_index(atom) and y in _arguments_without_softmax_index(atom)
            ]
            for (a, b), e in hessian_atom.items():
                da_z, db_z = first_of[z].get(a, 0), first_of[z].get(b, 0)
                da_y, db_y = first_of[y].get(a, 0), first_of[y].get(b, 0)
                terms.append(e * da_z * db_y if a == b else e * (da_z * db_y + db_z * da_y))
            total = sp.Add(*terms)
            if total != 0:
                curvature[n, m] = _define_symbol(f"k{n}_{m}", total)

    jacobian = {
        (n, i): _define_symbol(f"j{n}_{i}", e)
        for n, z in enumerate(arguments)
        for i, x in enumerate(variables)
        if (e := sp.diff(z, x)) != 0
    }
    direct = [sp.diff(value, x) for x in variables]
    gradient = [
        drop_delta_functions(
            direct[i] + sp.Add(*[slope[z] * jacobian[n, i] for n, z in enumerate(arguments) if (n, i) in jacobian])
        )
        for i in range(len(variables))
    ]
    mixed = {
        (n, i): _define_symbol(f"q{n}_{i}", total)
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
                columns[n, i] = _define_symbol(f"m{n}_{i}", total) if sp.count_ops(total) > 2 else total
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
            hessian[i, j] = drop_delta_functions(sp.Add(*terms))
    definitions = {symbol: drop_delta_functions(e) for symbol, e in definitions.items()}
    return ChainRuleDerivatives(definitions, value, gradient, hessian)


def _outermost_nonlinear_functions(expression: sp.Expr, variable_set: set[sp.Symbol]) -> list[sp.Expr]:
    """Return the softmax entries, sigmoids and softpluses of variables that lie inside no other one, sorted."""
    found: set[sp.Expr] = set()

    def collect_nonlinear_functions(e: sp.Expr) -> None:
        if not e.free_symbols & variable_set:
            return
        if isinstance(e, SoftmaxEntry | Sigmoid | Softplus):
            found.add(e)
            return
        for a in e.args:
            collect_nonlinear_functions(a)

    collect_nonlinear_functions(expression)
    return sorted(found, key=sp.default_sort_key)


def _arguments_without_softmax_index(atom: sp.Expr) -> tuple[sp.Expr, ...]:
    """Return the arguments of a softmax entry (without its index), a sigmoid or a softplus."""
    return atom.args[1:] if isinstance(atom, SoftmaxEntry) else atom.args


def _derivative_of_nonlinear_function(atom: sp.Expr, z: sp.Expr, symbols: dict[sp.Expr, sp.Symbol]) -> sp.Expr:
    """Return the derivative of a softmax entry, sigmoid or softplus with respect to its argument z.

    Args:
        atom: the function.
        z: the argument.
        symbols: nonlinear function -> the symbol by which it is named in the result.
    """
    if isinstance(atom, SoftmaxEntry):
        entries = _softmax_row_entries(atom, symbols)
        positions = [b for b, argument in enumerate(atom.args[1:]) if argument == z]
        j = int(atom.args[0])
        return sp.Add(*[entries[j] * (int(j == b) - entries[b]) for b in positions])
    if isinstance(atom, Sigmoid):
        a = symbols[atom]
        return a * (1 - a)
    return Sigmoid(atom.args[0])


def _second_derivative_of_nonlinear_function(
    atom: sp.Expr, z: sp.Expr, y: sp.Expr, symbols: dict[sp.Expr, sp.Symbol]
) -> sp.Expr:
    """Return the second derivative of a softmax entry, sigmoid or softplus with respect to two arguments.

    Args:
        atom: the function.
        z: first argument.
        y: second argument.
        symbols: nonlinear function -> the symbol by which it is named in the result.
    """
    if isinstance(atom, SoftmaxEntry):
        entries = _softmax_row_entries(atom, symbols)
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


def _softmax_row_entries(atom: sp.Expr, symbols: dict[sp.Expr, sp.Symbol]) -> list[sp.Expr]:
    """Return all entries of the softmax to which an entry belongs; an entry that has a symbol, as that symbol."""
    entries: Iterable[sp.Expr] = (SoftmaxEntry(sp.Integer(b), *atom.args[1:]) for b in range(len(atom.args) - 1))
    return [symbols.get(entry, entry) for entry in entries]
