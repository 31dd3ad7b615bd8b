"""The zero-temperature replica-symmetric free entropy Phi of a model, as a SymPy object (docs/theory.md (4.2))."""

from __future__ import annotations

from dataclasses import dataclass

import sympy as sp

from ..authoring.parameters import Structure
from ..authoring.regulariser import Regulariser, Ridge
from ..calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, OrderParameterSymbols


@dataclass(frozen=True)
class FreeEntropy:
    """The free entropy Phi = trace + entropic - alpha * energetic, extremised over the overlaps and their conjugates.

    Attributes:
        expression: a SymPy expression in `symbols`, with unevaluated sums and averages.
        symbols: the matrices of a generic context.
    """

    expression: sp.Expr
    symbols: OrderParameterSymbols

    def free_entropy_in_components(self, structure: Structure) -> sp.Expr:
        """Return Phi with every matrix of every context c written in components, for the structure's (L, s, t, K).

        Averages stay unevaluated: over a coordinate of (tau, pi, gamma), and over the channel of M.
        """
        generic = OrderParameterSymbols(
            structure.student_rank, structure.teacher_rank, self.symbols.trained, self.symbols.loss_depends_on_q
        )
        if self.symbols != generic:
            raise ValueError(
                f"this free entropy was derived for s, t = {self.symbols.s}, {self.symbols.t}, not {structure}"
            )
        contexts = [(l, k) for l in range(structure.tokens) for k in range(structure.clusters)]
        total: sp.Expr = sp.Integer(0)
        for term in sp.Add.make_args(self.expression):
            if not term.has(Average):
                total += _write_traces_in_components(term)
                continue
            coefficient, average = split_coefficient_and_average(term)
            if average.kind == CONTEXTS:
                total += coefficient * sp.Add(
                    *[
                        _write_traces_in_components(_rename_symbols_to_context(average.summand, generic, c))
                        for c in contexts
                    ]
                )
            elif average.kind == COORDINATE:
                composites = {
                    composite: sum(
                        (sp.Matrix(_rename_symbols_to_context(summand, generic, c).as_explicit()) for c in contexts),
                        sp.zeros(*composite.shape),
                    )
                    for composite, summand in generic.composites.items()
                }
                total += coefficient * Average(COORDINATE, _write_traces_in_components(average.summand, composites))
            else:
                total += coefficient * average
        return total


def split_coefficient_and_average(term: sp.Expr) -> tuple[sp.Expr, Average]:
    """Return a term of the free entropy as a pair (coefficient, average)."""
    (average,) = [a for a in sp.Mul.make_args(term) if isinstance(a, Average)]
    return sp.Mul(*[a for a in sp.Mul.make_args(term) if a is not average]), average


def _rename_symbols_to_context(
    expression: sp.Basic, symbols: OrderParameterSymbols, context: tuple[int, int]
) -> sp.Basic:
    """Rename the generic context's matrices and its gamma and tau to those of context (l, k)."""
    token, cluster = context
    names: dict[sp.Basic, sp.Basic] = {
        a: sp.MatrixSymbol(f"{a.name}_{token}{cluster}", *a.shape) for a in symbols.overlaps + symbols.conjugates
    }
    names[symbols.gamma] = sp.Symbol(f"gamma_{token}{cluster}", positive=True)
    names[symbols.tau] = sp.Symbol(f"tau_{token}{cluster}", real=True)
    return expression.xreplace(names)


def _write_traces_in_components(scalar: sp.Expr, composites: dict[sp.MatrixSymbol, sp.Matrix] | None = None) -> sp.Expr:
    """Return a sum of matrix traces written in matrix entries."""
    total: sp.Expr = sp.Integer(0)
    for term in sp.Add.make_args(scalar):
        factors = []
        for factor in sp.Mul.make_args(term):
            if isinstance(factor, sp.Trace):
                matrix = factor.arg
                explicit = {name: sp.ImmutableDenseMatrix(value) for name, value in (composites or {}).items()}
                matrix = matrix.xreplace(explicit) if explicit else matrix
                matrix = matrix.doit() if explicit else matrix
                factors.append(sp.trace(sp.Matrix(matrix.as_explicit())))
            else:
                factors.append(factor)
        total += sp.Mul(*factors)
    return total


def free_entropy(
    s: sp.Expr | int | None = None,
    t: sp.Expr | int | None = None,
    regulariser: Regulariser | None = None,
    trained: int = 0,
    loss_depends_on_q: bool = False,
) -> FreeEntropy:
    """Return Phi at zero temperature, replica symmetric, for any loss and a regulariser.

    Args:
        s: columns of W; a symbol by default, for printing.
        t: columns of W*; a symbol by default.
        regulariser: the regulariser; default ridge.
        trained: number of O(1) entries of phi that are trained with the weights; each has a ridge of its own.
        loss_depends_on_q: whether the loss depends on the overlaps q of its tokens.
    """
    s = sp.Symbol("s", integer=True, positive=True) if s is None else s
    t = sp.Symbol("t", integer=True, positive=True) if t is None else t
    p = OrderParameterSymbols(s, t, trained, loss_depends_on_q)
    trace = (
        sp.Trace(p.V_hat * p.q) / 2
        - sp.Trace(p.q_hat * p.V) / 2
        - sp.Trace(p.m_hat.T * p.m)
        - sp.Trace(p.theta_hat.T * p.theta)
    )
    entropic = (regulariser or Ridge()).averaged_envelope(p)
    expression = Average(CONTEXTS, trace) + Average(COORDINATE, entropic) - p.alpha * Average(CHANNEL, p.moreau)
    if trained:
        expression = expression - sp.Trace(p.phi.T * p.Kappa * p.phi) / 2
    return FreeEntropy(expression, p)
