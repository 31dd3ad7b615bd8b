"""Linear stability of a saddle point, as SymPy objects: all that can be derived is derived.

See docs/theory.md section 8.

Three rules produce everything here:

- `matrix_differential` writes the first-order change of a matrix expression; solved for dx it differentiates implicitly
  the proximal condition V^{-1}(x - omega) + grad loss(x) = 0;
- `covariance` carries the covariance of independent perturbations through a linear map: the replicon;
- the change of a Gaussian average with its law is the average with the score of that law, which, like Stein's lemma,
  keeps the jumps of the proximal map: the longitudinal operator. (Its response to V alone contains dg/domega,
  which is a distribution where the proximal map jumps.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..calculus.averages import (
    CHANNEL,
    CONTEXTS,
    COORDINATE,
    Average,
    Jacobian,
    MatrixAverage,
    OrderParameterSymbols,
    expand_matrix_product,
    gradient_of_trace,
    replace_symmetric_transposes,
)
from .free_entropy import FreeEntropy, free_entropy
from .saddle_point import SaddlePoint, channel_averages, saddle_point

TOKENS = "tokens"  # a sum over the tokens l' of a sample, as a kind of `MatrixAverage` and `Average`


def matrix_change_symbol(symbol: sp.MatrixSymbol) -> sp.MatrixSymbol:
    """Return the symbol of the change of a matrix, of the same shape."""
    return sp.MatrixSymbol(f"d{symbol.name}", *symbol.shape)


def matrix_differential(expression: MatrixExpr, changes: Mapping[sp.MatrixSymbol, MatrixExpr]) -> MatrixExpr:
    """Return the first-order change of a matrix expression.

    Args:
        expression: a matrix expression.
        changes: symbol -> its change; other symbols are constant.

    Raises:
        TypeError: the expression contains something that no rule covers.
    """
    zero = sp.ZeroMatrix(*expression.shape)
    if not expression.atoms(sp.MatrixSymbol) & set(changes):
        return zero
    if isinstance(expression, sp.MatrixSymbol):
        return changes[expression].doit()
    if isinstance(expression, sp.MatAdd):
        return _expand_matrix_sum([matrix_differential(term, changes) for term in expression.args], expression.shape)
    if isinstance(expression, sp.MatMul):
        scalar, factors = expression.as_coeff_matrices()
        terms = []
        for position, factor in enumerate(factors):
            change = matrix_differential(factor, changes)
            if not change.is_ZeroMatrix:
                terms.append(sp.MatMul(scalar, *factors[:position], change, *factors[position + 1 :]))
        return _expand_matrix_sum(terms, expression.shape)
    if isinstance(expression, sp.Transpose):
        return matrix_differential(expression.arg, changes).T.doit()
    if isinstance(expression, sp.Inverse):
        return sp.MatMul(-1, expression, matrix_differential(expression.arg, changes), expression).doit()
    if isinstance(expression, MatrixAverage) and expression.kind != CHANNEL:
        return _average_matrix_terms(expression.kind, matrix_differential(expression.summand, changes))
    raise TypeError(f"no rule to differentiate the matrix expression {expression}")


def _expand_matrix_sum(terms: list[MatrixExpr], shape: tuple[Any, Any]) -> MatrixExpr:
    """Return the sum of matrices with products expanded; the zero matrix if there are none."""
    return sp.MatAdd(sp.ZeroMatrix(*shape), *map(expand_matrix_product, terms)).doit(deep=False)


def _average_matrix_terms(kind: str, matrix: MatrixExpr) -> MatrixExpr:
    """Return the average of a matrix sum as a sum of averages of its terms."""
    terms = [MatrixAverage(kind, term) for term in sp.MatAdd.make_args(matrix) if not term.is_ZeroMatrix]
    return _expand_matrix_sum(terms, matrix.shape)


def extract_linear_coefficient(change: sp.MatrixSymbol, linear: MatrixExpr) -> MatrixExpr:
    """Return the matrix A of a linear expression A change + (terms without `change`).

    Args:
        change: the vector whose coefficient is wanted.
        linear: an expression linear in it.

    Raises:
        ValueError: `change` stands somewhere else than at the right end of a product.
    """
    total: MatrixExpr | None = None
    for term in sp.MatAdd.make_args(linear.expand().doit()):
        if not term.has(change):
            continue
        scalar, factors = term.as_coeff_matrices() if isinstance(term, sp.MatMul) else (sp.Integer(1), [term])
        if factors[-1] != change or any(factor.has(change) for factor in factors[:-1]):
            raise ValueError(f"{term} is not of the form A {change}")
        rest = sp.MatMul(*factors[:-1]) if len(factors) > 1 else sp.Identity(change.shape[0])
        total = scalar * rest if total is None else total + scalar * rest
    if total is None:
        return sp.ZeroMatrix(linear.shape[0], change.shape[0])
    return total.doit()


@dataclass(frozen=True)
class FieldResponse:
    """The response of all D = L s fields g = V^{-1}(x - omega) of a sample, wherever the proximal map is smooth.

    Attributes:
        x, omega, loss_gradient: D x 1; V (block diagonal over tokens), loss_hessian: D x D, symmetric.
        condition: V^{-1} (x - omega) + loss_gradient, zero at the proximal point (D x 1).
        proximal: dx/domega^T, D x D.
        jacobian: dg/domega^T = -H (I + V H)^{-1}, D x D; its block (l, l') is the response of token l to token l'.
    """

    x: sp.MatrixSymbol
    omega: sp.MatrixSymbol
    V: sp.MatrixSymbol
    loss_gradient: sp.MatrixSymbol
    loss_hessian: sp.MatrixSymbol
    condition: MatrixExpr
    proximal: MatrixExpr
    jacobian: MatrixExpr


def field_response(size: Any = None) -> FieldResponse:
    """Return the response of the fields, by implicit differentiation of the proximal condition (docs/theory.md (8.1)).

    Args:
        size: D = L s; a symbol by default.
    """
    size = sp.Symbol("D", integer=True, positive=True) if size is None else size
    p = OrderParameterSymbols(size, 1)
    x, omega, V = sp.MatrixSymbol("x", size, 1), p.omega, p.V
    gradient, hessian = sp.MatrixSymbol("loss_gradient", size, 1), sp.MatrixSymbol("H", size, size)
    # The objective's quadratic part in step = x - omega is the one the free entropy uses; the loss contains x alone.
    field = gradient_of_trace(p.proximal_objective, p.step, p)
    condition = (field + gradient).subs(p.step, x - omega).doit()

    dx, domega = matrix_change_symbol(x), sp.MatrixSymbol("domega", size, 1)
    change = matrix_differential(condition, {x: dx, omega: domega, gradient: hessian * dx})
    left, right = extract_linear_coefficient(dx, change), (-1 * extract_linear_coefficient(domega, change)).doit()
    proximal = _left_divide_matrix(left, right)
    # At the proximal point the field equals minus the loss's gradient, which changes by H dx.
    solved = (field - (field + gradient)).doit()
    jacobian = extract_linear_coefficient(domega, matrix_differential(solved, {gradient: hessian * proximal * domega}))
    return FieldResponse(x, omega, V, gradient, hessian, condition, proximal, jacobian)


def _left_divide_matrix(left: MatrixExpr, right: MatrixExpr) -> MatrixExpr:
    """Return left^{-1} right, simplified to (W left)^{-1} where right = W^{-1}."""
    if isinstance(right, sp.Inverse):
        return (right.arg * left).expand().doit().inv()
    return (left.inv() * right).doit()


def covariance(linear: MatrixExpr, laws: Mapping[sp.MatrixSymbol, MatrixExpr]) -> MatrixExpr:
    """Return the covariance of a linear combination of independent centred random vectors.

    Args:
        linear: products whose last factor is a vector of `laws`, sums over tokens or contexts of them.
        laws: vector -> its covariance.

    Raises:
        TypeError: the map is not of that form.
    """
    if isinstance(linear, MatrixAverage) and linear.kind in (TOKENS, CONTEXTS):
        return MatrixAverage(linear.kind, covariance(linear.summand, laws))
    scalar, factors = linear.as_coeff_matrices() if isinstance(linear, sp.MatMul) else (sp.Integer(1), [linear])
    if isinstance(factors[-1], MatrixAverage):
        inner = covariance(factors[-1], laws)
    elif factors[-1] in laws:
        inner = laws[factors[-1]]
    else:
        raise TypeError(f"{linear} is not a linear map of {', '.join(str(z) for z in laws)}")
    if any(factor.atoms(sp.MatrixSymbol) & set(laws) for factor in factors[:-1]):
        raise TypeError(f"{linear} is not linear in {', '.join(str(z) for z in laws)}")
    matrix = sp.MatMul(*factors[:-1]) if len(factors) > 1 else None
    carried = inner if matrix is None else (matrix * inner * matrix.T).doit()
    return (scalar**2 * carried).doit()


@dataclass(frozen=True)
class RepliconMap:
    """The replicon map D -> D' of replica-symmetry-breaking perturbations (docs/theory.md (8.11), (8.12)).

    Attributes:
        D, D_hat: s x s symmetric; in a sum over tokens l' D is that of (l', k_l').
        channel: D^_c = alpha E_c[sum_l' (dg_l/domega_l') D (dg_l/domega_l')^T], s x s.
        prior: D'_c = E_nu[gamma_c J (sum_c' gamma_c' D^_c') J^T], s x s, J = `response` = dw/db.
        response: J as a matrix expression of G and the regulariser, s x s.
        symbols: the matrices of a generic context.
    """

    D: sp.MatrixSymbol
    D_hat: sp.MatrixSymbol
    channel: MatrixExpr
    prior: MatrixExpr
    response: MatrixExpr
    symbols: OrderParameterSymbols


def entropic_potential(phi: FreeEntropy) -> sp.Expr:
    """Return the summand of the average over coordinates in the free entropy."""
    return sp.Add(*[a.summand for a in phi.expression.atoms(Average) if a.kind == COORDINATE])


def prior_response(phi: FreeEntropy) -> MatrixExpr:
    """Return J = dw/db, s x s: the estimate is w = d(potential)/dB, and b enters as B does."""
    p = phi.symbols
    if entropic_potential(phi) == p.envelope:
        return Jacobian(p.w, p.b)
    estimate = gradient_of_trace(entropic_potential(phi), p.B, p)
    change = matrix_change_symbol(p.B)
    return extract_linear_coefficient(change, matrix_differential(estimate, {p.B: change}))


def replicon(phi: FreeEntropy | None = None) -> RepliconMap:
    """Return the replicon map: a perturbation covariance D passed through channel and prior."""
    phi = phi or free_entropy()
    p = phi.symbols
    D, D_hat = sp.MatrixSymbol("D", p.s, p.s), sp.MatrixSymbol("D_hat", p.s, p.s)
    # Channel: dg_l = sum_l' (dg_l/domega_l') domega_l', tokens independent; alpha d such samples add up in b.
    field_change = MatrixAverage(TOKENS, Jacobian(p.g, p.omega) * p.domega)
    channel = p.alpha * MatrixAverage(CHANNEL, covariance(field_change, {p.domega: D}))
    # Prior: each context adds sqrt(gamma_c) times a vector of covariance D^_c to b, and sqrt(gamma_c) w feeds omega.
    noise = sp.MatrixSymbol("noise", p.s, 1)
    response = prior_response(phi)
    perturbation = sp.sqrt(p.gamma) * response * MatrixAverage(CONTEXTS, sp.sqrt(p.gamma) * noise)
    prior = replace_symmetric_transposes(covariance(perturbation.doit(), {noise: D_hat}).doit(), p)
    if isinstance(response, Jacobian):
        return RepliconMap(D, D_hat, channel.doit(), MatrixAverage(COORDINATE, prior), response, p)
    symmetric = replace_symmetric_transposes(response, p)
    if replace_symmetric_transposes(symmetric.T.doit(), p) == symmetric:
        prior = prior.xreplace({symmetric.T.doit(): symmetric, response.T.doit(): symmetric})
    return RepliconMap(D, D_hat, channel.doit(), MatrixAverage(COORDINATE, prior), symmetric, p)


def replicon_eigenvalue(regulariser: Any = None) -> sp.Expr:
    """Return the eigenvalue alpha E[(dg/domega)^2] E_nu[gamma^2 J^2] of the replicon map at L = s = K = 1.

    It is the coefficient of D in the composed map of the only context. Matrices appear as scalars.
    """
    operator = replicon(free_entropy(1, 1, regulariser))
    channel = _matrix_as_scalar(operator.channel)
    prior = _matrix_as_scalar(operator.prior)
    D, D_hat = _scalar_symbol_of_matrix(operator.D), _scalar_symbol_of_matrix(operator.D_hat)
    composed = _move_constant_out_of_averages(prior, D_hat).xreplace(
        {D_hat: _move_constant_out_of_averages(channel, D)}
    )
    return _move_constant_out_of_averages(composed, D) / D


def _scalar_symbol_of_matrix(symbol: sp.MatrixSymbol) -> sp.Symbol:
    # Without assumptions: a model's parameters are real, and one of them may be called omega.
    return sp.Symbol(symbol.name)


def _matrix_as_scalar(expression: MatrixExpr) -> sp.Expr:
    """Return a 1 x 1 matrix expression as a scalar, without sums over the only token or context."""
    if isinstance(expression, MatrixAverage):
        inside = _matrix_as_scalar(expression.summand)
        return inside if expression.kind in (TOKENS, CONTEXTS) else Average(expression.kind, inside)
    if isinstance(expression, sp.MatAdd):
        return sp.Add(*[_matrix_as_scalar(term) for term in expression.args])
    if isinstance(expression, sp.MatMul):
        return sp.Mul(*[_matrix_as_scalar(a) if getattr(a, "is_Matrix", False) else a for a in expression.args])
    if isinstance(expression, sp.MatPow):
        return _matrix_as_scalar(expression.base) ** expression.exp
    if isinstance(expression, sp.Transpose):
        return _matrix_as_scalar(expression.arg)
    if isinstance(expression, Jacobian):
        g, omega = (_scalar_symbol_of_matrix(symbol) for symbol in expression.args)
        return sp.Derivative(sp.Function(g.name)(omega), omega)
    if isinstance(expression, sp.MatrixSymbol):
        return _scalar_symbol_of_matrix(expression)
    raise TypeError(f"the matrix expression {expression} cannot be written as a scalar at L = s = K = 1")


def _move_constant_out_of_averages(expression: sp.Expr, constant: sp.Symbol) -> sp.Expr:
    """Return an expression with a constant factor moved out of every average."""
    averages = {}
    for average in expression.atoms(Average):
        inside, outside = average.summand.as_independent(constant)
        averages[average] = outside * Average(average.kind, inside)
    return expression.xreplace(averages)


@dataclass(frozen=True)
class LongitudinalDerivatives:
    """The Jacobian of the map (q, V, m, theta) -> conjugates -> (q, V, m, theta), docs/theory.md (8.2)-(8.7).

    Attributes:
        score: S(l'), the relative change of the density of (omega_l', Y_l') for changes of its mean and covariance;
            it multiplies the summand of a channel average, summed over tokens.
        mean_change, covariance_change: d(mean) ((s+t) x 1) and d(covariance) ((s+t) x (s+t)) in terms of
            the changes of m, q and theta, as block matrices; `covariance_blocks` is the covariance itself.
        moments: channel average -> its change.
        prior: overlap name -> its change, in the changes of the composites G, B, Q.
        composites: composite -> its change, in the changes of the conjugates.
        conjugates: name of a conjugate -> its change, in the changes of the moments (named d_moment_0, ...) and of q
            and theta.
    """

    score: sp.Expr
    mean_change: sp.BlockMatrix
    covariance_blocks: sp.BlockMatrix
    covariance_change: sp.BlockMatrix
    moments: dict[MatrixExpr, MatrixExpr]
    prior: dict[str, MatrixExpr]
    composites: dict[sp.MatrixSymbol, MatrixExpr]
    conjugates: dict[str, MatrixExpr]
    moment_symbols: dict[MatrixExpr, sp.MatrixSymbol]
    symbols: OrderParameterSymbols


def longitudinal(saddle: SaddlePoint | None = None) -> LongitudinalDerivatives:
    """Return the derivatives of the eight saddle-point equations."""
    saddle = saddle or saddle_point(free_entropy())
    p = saddle.symbols
    size = p.s + p.t
    deviation, law = sp.MatrixSymbol("z", size, 1), sp.MatrixSymbol("C", size, size)
    dmean, dlaw = sp.MatrixSymbol("dmean", size, 1), matrix_change_symbol(law)
    score = _gaussian_score(deviation, law, dmean, dlaw)
    dq, dm, dtheta = matrix_change_symbol(p.q), matrix_change_symbol(p.m), matrix_change_symbol(p.theta)

    # V moves the field at fixed omega as a shift of omega by dV g would: V^{-1} dx - V^{-1} dV g + H dx = 0.
    field_change = MatrixAverage(TOKENS, Jacobian(p.g, p.omega) * matrix_change_symbol(p.V) * p.g)
    moving = {p.g: field_change, p.domega: -dm}
    weight = Average(TOKENS, sp.Symbol("S", real=True))
    moments = {}
    for average in channel_averages(saddle):
        inside = matrix_differential(average.summand, moving)
        moments[average] = (
            _average_matrix_terms(CHANNEL, inside) + MatrixAverage(CHANNEL, weight * average.summand)
        ).doit()

    prior = {}
    for name in ("q", "V", "m", "theta"):
        prior[name] = matrix_differential(saddle[name].value, {z: matrix_change_symbol(z) for z in p.composites})
    composites = {}
    for composite, summand in p.composites.items():
        change = matrix_differential(summand, {z: matrix_change_symbol(z) for z in p.conjugates})
        composites[composite] = MatrixAverage(CONTEXTS, change)

    names = {a: sp.MatrixSymbol(f"moment_{i}", *a.shape) for i, a in enumerate(moments)}
    changes = {symbol: matrix_change_symbol(symbol) for symbol in (*names.values(), p.q, p.theta)}
    conjugates = {}
    for name in ("q_hat", "V_hat", "m_hat", "theta_hat"):
        conjugates[name] = matrix_differential(saddle[name].value.xreplace(names), changes)
    return LongitudinalDerivatives(
        score=score,
        mean_change=sp.BlockMatrix([[dm], [sp.ZeroMatrix(p.t, 1)]]),
        covariance_blocks=sp.BlockMatrix([[p.q, p.theta], [p.theta.T, p.rho_star]]),
        covariance_change=sp.BlockMatrix([[dq, dtheta], [dtheta.T, sp.ZeroMatrix(p.t, p.t)]]),
        moments=moments,
        prior=prior,
        composites=composites,
        conjugates=conjugates,
        moment_symbols=names,
        symbols=p,
    )


def _gaussian_score(
    deviation: sp.MatrixSymbol, law: sp.MatrixSymbol, dmean: sp.MatrixSymbol, dlaw: sp.MatrixSymbol
) -> sp.Expr:
    """Return the change of the log density -1/2 Tr[z^T C^{-1} z] - 1/2 log det C when z -> z - dmean, C -> C + dC."""
    exponent = deviation.T * law.inv() * deviation
    change = matrix_differential(exponent, {deviation: -dmean, law: dlaw})
    # d log det C = Tr[C^{-1} dC] (Jacobi); a number equals its transpose, so the two terms in dmean are one.
    terms = {sp.Trace(law.inv() * dlaw): -sp.Rational(1, 2)}
    for term in sp.MatAdd.make_args(change):
        scalar, factors = term.as_coeff_matrices()
        if factors[0] == dmean.T:
            factors = [deviation.T, *factors[1:-1], dmean]
        product = sp.Trace(sp.MatMul(*factors))
        terms[product] = terms.get(product, sp.Integer(0)) - scalar / 2
    return sp.Add(*[number * trace for trace, number in terms.items()])
