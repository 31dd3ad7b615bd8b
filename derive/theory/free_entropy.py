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
        expression: Phi as a SymPy expression in `symbols`, with unevaluated sums and averages.
        symbols: the matrix symbols of the order parameters, which stand for those of any context (token, cluster).
    """

    expression: sp.Expr
    symbols: OrderParameterSymbols

    def free_entropy_in_components(self, structure: Structure) -> sp.Expr:
        """Return the free entropy in the entries of the order-parameter matrices of all contexts (token, cluster).

        Averages over coordinates and over samples stay unevaluated.
        """
        generic = OrderParameterSymbols(
            structure.student_rank, structure.teacher_rank, self.symbols.trained, self.symbols.loss_depends_on_q
        )
        if self.symbols != generic:
            raise ValueError(
                f"this free entropy was derived for s = {self.symbols.s} and t = {self.symbols.t} columns of student "
                f"and teacher; derive it for the sizes {structure}"
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
                        _write_traces_in_components(_index_symbols_by_context(average.summand, generic, c))
                        for c in contexts
                    ]
                )
            elif average.kind == COORDINATE:
                composites = {
                    composite: sum(
                        (sp.Matrix(_index_symbols_by_context(summand, generic, c).as_explicit()) for c in contexts),
                        sp.zeros(*composite.shape),
                    )
                    for composite, summand in generic.effective_prior_parameters.items()
                }
                total += coefficient * Average(COORDINATE, _write_traces_in_components(average.summand, composites))
            else:
                total += coefficient * average
        return total


def split_coefficient_and_average(term: sp.Expr) -> tuple[sp.Expr, Average]:
    """Return a term of the free entropy, a multiple of one average, as a pair (coefficient, average)."""
    (average,) = [a for a in sp.Mul.make_args(term) if isinstance(a, Average)]
    return sp.Mul(*[a for a in sp.Mul.make_args(term) if a is not average]), average


def _index_symbols_by_context(
    expression: sp.Basic, symbols: OrderParameterSymbols, context: tuple[int, int]
) -> sp.Basic:
    """Return an expression with the matrices, gamma and tau replaced by those of one context (token, cluster)."""
    token, cluster = context
    names: dict[sp.Basic, sp.Basic] = {
        a: sp.MatrixSymbol(f"{a.name}_{token}{cluster}", *a.shape)
        for a in symbols.overlaps + symbols.conjugate_order_parameters
    }
    names[symbols.gamma] = sp.Symbol(f"gamma_{token}{cluster}", positive=True)
    names[symbols.tau] = sp.Symbol(f"tau_{token}{cluster}", real=True)
    return expression.xreplace(names)


def _write_traces_in_components(scalar: sp.Expr, composites: dict[sp.MatrixSymbol, sp.Matrix] | None = None) -> sp.Expr:
    """Return a sum of products of matrix traces, written in the entries of the matrices."""
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
    """Return the replica-symmetric free entropy Phi at zero temperature, for any loss.

    Args:
        s: number of columns of the student's weights W; a symbol by default.
        t: number of columns of the teacher's weights W*; a symbol by default.
        regulariser: the regulariser; a ridge by default.
        trained: how many numbers of order one are trained with the weights; each has a ridge of its own.
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
    entropic = (regulariser or Ridge()).entropic_potential_of_row(p)
    expression = Average(CONTEXTS, trace) + Average(COORDINATE, entropic) - p.alpha * Average(CHANNEL, p.moreau)
    if trained:
        expression = expression - sp.Trace(p.phi.T * p.Kappa * p.phi) / 2
    return FreeEntropy(expression, p)
