"""Linear stability of a saddle point, as SymPy objects: all that can be derived is derived.

See docs/theory.md section 8.

Three rules produce everything here:

- `matrix_differential` writes the first-order change of a matrix expression; solved for dx it differentiates implicitly
  the proximal condition V^{-1}(x - omega) + grad loss(x) = 0;
- `propagate_covariance` carries the covariance of independent perturbations through a linear map: the replicon;
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
    drop_transposes_of_symmetric_matrices,
    expand_matrix_product,
    gradient_of_trace,
)
from .free_entropy import FreeEntropy, free_entropy
from .saddle_point import SaddlePoint, channel_averages, saddle_point

TOKENS = "tokens"  # a sum over the tokens l' of a sample, as a kind of `MatrixAverage` and `Average`


def differential_symbol(symbol: sp.MatrixSymbol) -> sp.MatrixSymbol:
    """Return the symbol dA of the differential of a matrix symbol A, of the same shape."""
    return sp.MatrixSymbol(f"d{symbol.name}", *symbol.shape)


def matrix_differential(expression: MatrixExpr, changes: Mapping[sp.MatrixSymbol, MatrixExpr]) -> MatrixExpr:
    """Return the first-order change (differential) of a matrix expression.

    Args:
        expression: a matrix expression.
        changes: matrix symbol -> its differential; all other symbols are constant.

    Raises:
        TypeError: the expression contains a function without a differentiation rule here.
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
        return _average_each_matrix_term(expression.kind, matrix_differential(expression.summand, changes))
    raise TypeError(f"no rule to differentiate the matrix expression {expression}")


def _expand_matrix_sum(terms: list[MatrixExpr], shape: tuple[Any, Any]) -> MatrixExpr:
    """Return the sum of matrix terms with all products expanded; the zero matrix of this shape for no terms."""
    return sp.MatAdd(sp.ZeroMatrix(*shape), *map(expand_matrix_product, terms)).doit(deep=False)


def _average_each_matrix_term(kind: str, matrix: MatrixExpr) -> MatrixExpr:
    """Return the average of a sum of matrices as the sum of the averages of its terms."""
    terms = [MatrixAverage(kind, term) for term in sp.MatAdd.make_args(matrix) if not term.is_ZeroMatrix]
    return _expand_matrix_sum(terms, matrix.shape)


def extract_linear_coefficient(change: sp.MatrixSymbol, linear: MatrixExpr) -> MatrixExpr:
    """Return the coefficient matrix A of a vector v in an expression A v + (terms without v).

    Args:
        change: the vector symbol v.
        linear: an expression linear in v.

    Raises:
        ValueError: v is not the last factor of a product that contains it.
    """
    total: MatrixExpr | None = None
    for term in sp.MatAdd.make_args(linear.expand().doit()):
        if not term.has(change):
            continue
        scalar, factors = term.as_coeff_matrices() if isinstance(term, sp.MatMul) else (sp.Integer(1), [term])
        if factors[-1] != change or any(factor.has(change) for factor in factors[:-1]):
            raise ValueError(f"the term {term} is not a matrix times the vector {change}")
        rest = sp.MatMul(*factors[:-1]) if len(factors) > 1 else sp.Identity(change.shape[0])
        total = scalar * rest if total is None else total + scalar * rest
    if total is None:
        return sp.ZeroMatrix(linear.shape[0], change.shape[0])
    return total.doit()


@dataclass(frozen=True)
class FieldResponse:
    """The derivatives of the proximal point x and of g = V^{-1}(x - omega) in the cavity fields omega of a sample.

    All L s fields of a sample are stacked in one vector. The derivatives hold where the proximal map is smooth.

    Attributes:
        x: proximal point, shape (L s, 1).
        omega: cavity fields, shape (L s, 1).
        V: variance of the fields, symmetric, one block for each token.
        loss_gradient: gradient of the loss at x, shape (L s, 1).
        loss_hessian: Hessian H of the loss at x, symmetric.
        condition: V^{-1} (x - omega) + loss_gradient, which is zero at the proximal point.
        proximal: the derivative dx/domega^T, square.
        jacobian: the derivative dg/domega^T = -H (I + V H)^{-1}; block (l, l') is the response of token l to l'.
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
    """Return the derivatives of the proximal point in the cavity fields (docs/theory.md (8.1)).

    They follow by implicit differentiation of the proximal condition.

    Args:
        size: number L s of fields of a sample; the symbol D by default.
    """
    size = sp.Symbol("D", integer=True, positive=True) if size is None else size
    p = OrderParameterSymbols(size, 1)
    x, omega, V = sp.MatrixSymbol("x", size, 1), p.omega, p.V
    gradient, hessian = sp.MatrixSymbol("loss_gradient", size, 1), sp.MatrixSymbol("H", size, size)
    # The objective's quadratic part in step = x - omega is the one the free entropy uses; the loss contains x alone.
    field = gradient_of_trace(p.proximal_objective, p.step, p)
    condition = (field + gradient).subs(p.step, x - omega).doit()

    dx, domega = differential_symbol(x), sp.MatrixSymbol("domega", size, 1)
    change = matrix_differential(condition, {x: dx, omega: domega, gradient: hessian * dx})
    left, right = extract_linear_coefficient(dx, change), (-1 * extract_linear_coefficient(domega, change)).doit()
    proximal = _left_divide_matrix(left, right)
    # At the proximal point the field equals minus the loss's gradient, which changes by H dx.
    solved = (field - (field + gradient)).doit()
    jacobian = extract_linear_coefficient(domega, matrix_differential(solved, {gradient: hessian * proximal * domega}))
    return FieldResponse(x, omega, V, gradient, hessian, condition, proximal, jacobian)


def _left_divide_matrix(left: MatrixExpr, right: MatrixExpr) -> MatrixExpr:
    """Return left^{-1} right; if right is an inverse A^{-1}, in the simpler form (A left)^{-1}."""
    if isinstance(right, sp.Inverse):
        return (right.arg * left).expand().doit().inv()
    return (left.inv() * right).doit()


def propagate_covariance(linear: MatrixExpr, laws: Mapping[sp.MatrixSymbol, MatrixExpr]) -> MatrixExpr:
    """Return the covariance M C M^T of a linear map M z of a random vector z with mean zero and covariance C.

    Args:
        linear: the product M z, or a sum of such products over tokens or contexts, whose vectors are independent.
        laws: symbol of a random vector -> its covariance.

    Raises:
        TypeError: the expression is not a linear map of one of the random vectors.
    """
    if isinstance(linear, MatrixAverage) and linear.kind in (TOKENS, CONTEXTS):
        return MatrixAverage(linear.kind, propagate_covariance(linear.summand, laws))
    scalar, factors = linear.as_coeff_matrices() if isinstance(linear, sp.MatMul) else (sp.Integer(1), [linear])
    if isinstance(factors[-1], MatrixAverage):
        inner = propagate_covariance(factors[-1], laws)
    elif factors[-1] in laws:
        inner = laws[factors[-1]]
    else:
        raise TypeError(f"{linear} is not a linear map of a random vector ({', '.join(str(z) for z in laws)})")
    if any(factor.atoms(sp.MatrixSymbol) & set(laws) for factor in factors[:-1]):
        raise TypeError(f"{linear} is not linear in the random vectors {', '.join(str(z) for z in laws)}")
    matrix = sp.MatMul(*factors[:-1]) if len(factors) > 1 else None
    carried = inner if matrix is None else (matrix * inner * matrix.T).doit()
    return (scalar**2 * carried).doit()


@dataclass(frozen=True)
class RepliconMap:
    """The replicon map D -> D' of replica-symmetry-breaking perturbations (docs/theory.md (8.11), (8.12)).

    Attributes:
        D: covariance of the field perturbations of a context (token, cluster), symmetric, s x s.
        D_hat: covariance of the resulting perturbation of the conjugates, symmetric, s x s.
        channel: D_hat as a function of D: alpha times an average over samples, with the derivatives dg/domega.
        prior: the new D as a function of D_hat: an average over coordinates, with the response J = dw/db.
        response: J, the derivative of a row w of W in its field b, s x s.
        symbols: the matrix symbols of the order parameters.
    """

    D: sp.MatrixSymbol
    D_hat: sp.MatrixSymbol
    channel: MatrixExpr
    prior: MatrixExpr
    response: MatrixExpr
    symbols: OrderParameterSymbols


def entropic_potential(phi: FreeEntropy) -> sp.Expr:
    """Return the entropic part of the free entropy: the function that is averaged over coordinates."""
    return sp.Add(*[a.summand for a in phi.expression.atoms(Average) if a.kind == COORDINATE])


def response_of_weights_to_field(phi: FreeEntropy) -> MatrixExpr:
    """Return the derivative dw/db of a row w of W in its field b, an s x s matrix expression."""
    p = phi.symbols
    if entropic_potential(phi) == p.envelope:
        return Jacobian(p.w, p.b)
    estimate = gradient_of_trace(entropic_potential(phi), p.B, p)
    change = differential_symbol(p.B)
    return extract_linear_coefficient(change, matrix_differential(estimate, {p.B: change}))


def replicon_map(phi: FreeEntropy | None = None) -> RepliconMap:
    """Return the replicon map: one iteration takes the covariance D of perturbed fields through channel and prior."""
    phi = phi or free_entropy()
    p = phi.symbols
    D, D_hat = sp.MatrixSymbol("D", p.s, p.s), sp.MatrixSymbol("D_hat", p.s, p.s)
    # Channel: dg_l = sum_l' (dg_l/domega_l') domega_l', tokens independent; alpha d such samples add up in b.
    field_change = MatrixAverage(TOKENS, Jacobian(p.g, p.omega) * p.domega)
    channel = p.alpha * MatrixAverage(CHANNEL, propagate_covariance(field_change, {p.domega: D}))
    # Prior: each context adds sqrt(gamma_c) times a vector of covariance D^_c to b, and sqrt(gamma_c) w feeds omega.
    noise = sp.MatrixSymbol("noise", p.s, 1)
    response = response_of_weights_to_field(phi)
    perturbation = sp.sqrt(p.gamma) * response * MatrixAverage(CONTEXTS, sp.sqrt(p.gamma) * noise)
    prior = drop_transposes_of_symmetric_matrices(propagate_covariance(perturbation.doit(), {noise: D_hat}).doit(), p)
    if isinstance(response, Jacobian):
        return RepliconMap(D, D_hat, channel.doit(), MatrixAverage(COORDINATE, prior), response, p)
    symmetric = drop_transposes_of_symmetric_matrices(response, p)
    if drop_transposes_of_symmetric_matrices(symmetric.T.doit(), p) == symmetric:
        prior = prior.xreplace({symmetric.T.doit(): symmetric, response.T.doit(): symmetric})
    return RepliconMap(D, D_hat, channel.doit(), MatrixAverage(COORDINATE, prior), symmetric, p)


def replicon_eigenvalue(regulariser: Any = None) -> sp.Expr:
    """Return the eigenvalue of the replicon map for one token, one cluster and s = 1, as a scalar expression.

    It is alpha E[(dg/domega)^2] E[gamma^2 (dw/db)^2]: averages over samples and over coordinates of the squared
    responses of the field g and of a row w, with covariance eigenvalues gamma.
    """
    operator = replicon_map(free_entropy(1, 1, regulariser))
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
    """Return a 1 x 1 matrix as a scalar, without sums over a single token or a single (token, cluster) pair."""
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
    raise TypeError(f"{expression} is not a scalar for one token, one column of W and one cluster")


def _move_constant_out_of_averages(expression: sp.Expr, constant: sp.Symbol) -> sp.Expr:
    """Return an expression with a constant factor moved out of every average."""
    averages = {}
    for average in expression.atoms(Average):
        inside, outside = average.summand.as_independent(constant)
        averages[average] = outside * Average(average.kind, inside)
    return expression.xreplace(averages)


@dataclass(frozen=True)
class LongitudinalDerivatives:
    """Derivatives of one iteration of the saddle-point equations, overlaps -> conjugates -> overlaps.

    See docs/theory.md (8.2) to (8.7). Every entry is a first-order change, linear in the changes that it depends on.

    Attributes:
        score: relative change of the Gaussian density of a token's fields (omega, Y); it multiplies the averaged
            function in a channel average.
        mean_change: change of the mean of (omega, Y), shape (s + t, 1), in the change of m.
        covariance_blocks: covariance of (omega, Y), shape (s + t, s + t).
        covariance_change: change of that covariance in the changes of q and theta.
        moments: channel average -> its change.
        prior: name of an overlap -> its change, in the changes of the sums G, B, Q of conjugates.
        composites: G, B or Q -> its change, in the changes of the conjugates.
        conjugates: name of a conjugate -> its change, in the changes of the channel averages, q and theta.
        moment_symbols: channel average -> the matrix symbol that replaces it in `conjugates`.
        symbols: the matrix symbols of the order parameters.
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


def longitudinal_derivatives(saddle: SaddlePoint | None = None) -> LongitudinalDerivatives:
    """Return the first-order changes in one iteration of the saddle-point equations, for its linear stability.

    Without `saddle` the equations are those of a ridge.
    """
    saddle = saddle or saddle_point(free_entropy())
    p = saddle.symbols
    size = p.s + p.t
    deviation, law = sp.MatrixSymbol("z", size, 1), sp.MatrixSymbol("C", size, size)
    dmean, dlaw = sp.MatrixSymbol("dmean", size, 1), differential_symbol(law)
    score = _gaussian_score(deviation, law, dmean, dlaw)
    dq, dm, dtheta = (
        differential_symbol(p.q),
        differential_symbol(p.m),
        differential_symbol(p.theta),
    )

    # V moves the field at fixed omega as a shift of omega by dV g would: V^{-1} dx - V^{-1} dV g + H dx = 0.
    field_change = MatrixAverage(TOKENS, Jacobian(p.g, p.omega) * differential_symbol(p.V) * p.g)
    moving = {p.g: field_change, p.domega: -dm}
    weight = Average(TOKENS, sp.Symbol("S", real=True))
    moments = {}
    for average in channel_averages(saddle):
        inside = matrix_differential(average.summand, moving)
        moments[average] = (
            _average_each_matrix_term(CHANNEL, inside) + MatrixAverage(CHANNEL, weight * average.summand)
        ).doit()

    prior = {}
    for name in ("q", "V", "m", "theta"):
        prior[name] = matrix_differential(
            saddle[name].value, {z: differential_symbol(z) for z in p.effective_prior_parameters}
        )
    composites = {}
    for composite, summand in p.effective_prior_parameters.items():
        change = matrix_differential(summand, {z: differential_symbol(z) for z in p.conjugate_order_parameters})
        composites[composite] = MatrixAverage(CONTEXTS, change)

    names = {a: sp.MatrixSymbol(f"moment_{i}", *a.shape) for i, a in enumerate(moments)}
    changes = {symbol: differential_symbol(symbol) for symbol in (*names.values(), p.q, p.theta)}
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
    """Return the first-order change of a centred Gaussian log density at z when its mean and covariance C change."""
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
