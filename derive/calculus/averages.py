"""Unevaluated averages and sums, and the rules by which they are differentiated.

Three linear operations appear in a free entropy: the sum over contexts c = (token, cluster), the average over one
coordinate of the common eigenbasis (E_nu), and the average over the channel (labels, fields, noise). They stay
unevaluated here; `differentiate_averages` has a rule for each of them:

- a context sum: by ordinary matrix calculus on its summand;
- a coordinate average: by the chain rule through the composites G, B, Q that collect the conjugates;
- a channel average: through its integrand (envelope theorem, for V) and through the Gaussian law of the fields
  (mean rule for m, Price's theorem for q and theta).

`gaussian_integration_by_parts` then removes the remaining derivatives of the field g by Stein's lemma, which keeps the
contribution of jumps of the proximal map. All rules are those of arXiv 2402.03902, Appendix C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from operator import add, mul
from typing import Any

import sympy as sp
from sympy.core.symbol import Str
from sympy.matrices.expressions.matexpr import MatrixExpr

CONTEXTS, COORDINATE, CHANNEL = "contexts", "coordinate", "channel"


class Average(sp.Expr):
    """An unevaluated sum or average of a scalar, `Average(kind, summand)`.

    The kind is CONTEXTS for the sum over (token, cluster) pairs, COORDINATE for the average over a coordinate of the
    weights, or CHANNEL for the average over fields and noise.
    """

    is_commutative = True

    def __new__(cls, kind: str | Str, summand: sp.Expr) -> sp.Expr:
        """Return the average without evaluating it.

        Args:
            kind: what is summed or averaged over, see `kind`.
            summand: the expression under the sum or average.
        """
        return sp.Expr.__new__(cls, Str(str(kind)), sp.sympify(summand))

    @property
    def kind(self) -> str:
        """Return the kind: CONTEXTS ((token, cluster) pairs), COORDINATE, CHANNEL (samples), or one of replicas."""
        return str(self.args[0])

    @property
    def summand(self) -> sp.Expr:
        """Return the scalar under the sum or average."""
        return self.args[1]


class MatrixAverage(MatrixExpr):
    """An unevaluated sum or average of a matrix, `MatrixAverage(kind, summand)`, with the kinds of `Average`.

    The CHANNEL average for token l and cluster k is E[1(label of token l is k) summand].
    """

    def __new__(cls, kind: str | Str, summand: MatrixExpr) -> MatrixExpr:
        """Return the average without evaluating it.

        Args:
            kind: what is summed or averaged over, see `kind`.
            summand: the expression under the sum or average.
        """
        return MatrixExpr.__new__(cls, Str(str(kind)), sp.sympify(summand))

    @property
    def kind(self) -> str:
        """Return the kind: CONTEXTS ((token, cluster) pairs), COORDINATE, CHANNEL (samples), or one of replicas."""
        return str(self.args[0])

    @property
    def summand(self) -> MatrixExpr:
        """Return the matrix under the sum or average."""
        return self.args[1]

    @property
    def shape(self) -> tuple[sp.Expr, sp.Expr]:
        """Return the shape (rows, columns) of the matrix under the sum or average."""
        return self.summand.shape

    def _entry(self, i: Any, j: Any, **kwargs: Any) -> sp.Expr:
        return Average(self.kind, self.summand[i, j])

    def _eval_transpose(self) -> MatrixExpr:
        return MatrixAverage(self.kind, self.summand.T.doit())


class Jacobian(MatrixExpr):
    """The unevaluated Jacobian d field / d variable^T of a vector; it has delta functions where the field jumps."""

    def __new__(cls, field: MatrixExpr, variable: MatrixExpr) -> MatrixExpr:
        """Return the Jacobian without evaluating it.

        Args:
            field: column vector that is differentiated.
            variable: column vector with respect to which it is differentiated.
        """
        return MatrixExpr.__new__(cls, field, variable)

    @property
    def shape(self) -> tuple[sp.Expr, sp.Expr]:
        """Return the shape: one row per component of the field, one column per component of the variable."""
        return (self.args[0].shape[0], self.args[1].shape[0])

    def _entry(self, i: Any, j: Any, **kwargs: Any) -> sp.Expr:
        return sp.Derivative(self.args[0][i, 0], self.args[1][j, 0])


@dataclass(frozen=True)
class OrderParameterSymbols:
    """The SymPy symbols of the saddle-point equations for a generic (token, cluster) pair.

    - overlaps q, V (s x s), m (s x 1), theta (s x t), rho_star (t x t), and conjugates q_hat, V_hat, m_hat, theta_hat;
    - parameters of the effective prior of a row of W: G, Q (s x s), B (s x 1);
    - row w of W at the minimum, and its field b (s x 1);
    - fields omega, g and step = x - omega of the student (s x 1), Y of the teacher (t x 1);
    - parameters phi that are trained with the weights, and derivatives loss_phi, loss_q of the loss.

    Args:
        s: number of columns of the student's weights.
        t: number of columns of the teacher's weights.
        trained: number of entries of phi.
        loss_depends_on_q: whether the loss depends on the overlap q explicitly.
    """

    s: Any
    t: Any
    trained: Any = 0
    loss_depends_on_q: bool = False

    def __post_init__(self) -> None:
        s, t = self.s, self.t
        shapes = {
            **dict.fromkeys(("q", "V", "q_hat", "V_hat", "G", "Q", "Lambda", "Norms", "R", "loss_q"), (s, s)),
            **dict.fromkeys(("m", "m_hat", "B", "step", "omega", "g", "domega", "w", "b"), (s, 1)),
            **dict.fromkeys(("theta", "theta_hat"), (s, t)),
            **dict.fromkeys(("Y", "dY", "pi", "m_star"), (t, 1)),
            "rho_star": (t, t),
            **dict.fromkeys(("phi", "loss_phi"), (self.trained, 1)),
            "Kappa": (self.trained, self.trained),
        }
        for name, shape in shapes.items():
            object.__setattr__(self, name, sp.MatrixSymbol(name, *shape))
        object.__setattr__(self, "gamma", sp.Symbol("gamma", positive=True))
        object.__setattr__(self, "tau", sp.Symbol("tau", real=True))
        object.__setattr__(self, "alpha", sp.Symbol("alpha", positive=True))
        object.__setattr__(self, "loss", sp.Symbol("loss", real=True))
        object.__setattr__(self, "moreau", sp.Symbol("M", real=True))
        object.__setattr__(self, "envelope", sp.Symbol("N", real=True))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    @property
    def symmetric_matrices(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return those symbols that stand for symmetric matrices."""
        own = (self.q, self.V, self.q_hat, self.V_hat, self.G, self.Q, self.Lambda, self.Norms, self.R, self.rho_star)
        return (*own, self.loss_q, self.Kappa)

    @property
    def overlaps(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return the symbols of the overlaps q, V, m, theta (docs/theory.md (2.1) to (2.4))."""
        return (self.q, self.V, self.m, self.theta)

    @property
    def conjugate_order_parameters(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return the symbols of the conjugate order parameters q_hat, V_hat, m_hat, theta_hat."""
        return (self.q_hat, self.V_hat, self.m_hat, self.theta_hat)

    @property
    def effective_prior_parameters(self) -> dict[sp.MatrixSymbol, MatrixExpr]:
        """Return the terms of one (token, cluster) pair in the parameters G, B, Q of a row's effective prior.

        G = sum gamma V_hat is its precision, B = sum (tau m_hat + gamma theta_hat pi) and Q = sum gamma q_hat are mean
        and covariance of its field, with sums over pairs.
        """
        return {
            self.G: self.gamma * self.V_hat,
            self.B: self.tau * self.m_hat + self.gamma * self.theta_hat * self.pi,
            self.Q: self.gamma * self.q_hat,
        }

    @property
    def proximal_objective(self) -> sp.Expr:
        """Return the objective of the proximal map of one token, 1/2 step^T V^{-1} step + loss, step = x - omega."""
        return sp.Trace(self.step.T * self.V.inv() * self.step) / 2 + self.loss


def drop_transposes_of_symmetric_matrices(expression: MatrixExpr, symbols: OrderParameterSymbols) -> MatrixExpr:
    """Return a matrix expression with A^T replaced by A for every symmetric matrix A.

    Args:
        expression: a matrix expression.
        symbols: symbols, with the list `symmetric_matrices`.
    """
    transposed = {a.T: a for a in symbols.symmetric_matrices}
    previous = None
    while previous != expression:
        previous = expression
        expression = expression.xreplace(transposed).doit()
    return expression


def expand_matrix_product(term: MatrixExpr) -> MatrixExpr:
    """Return a matrix product expanded over those factors that are sums; factors themselves are not expanded."""
    # SymPy's `expand` would visit every subexpression.
    flat = term.doit(deep=False)
    scalar, factors = flat.as_coeff_matrices() if isinstance(flat, sp.MatMul) else (sp.Integer(1), [flat])
    choices = product(*[sp.MatAdd.make_args(factor) for factor in factors])
    return sp.MatAdd(*[sp.MatMul(scalar, *chosen) for chosen in choices]).doit(deep=False)


@cache
def to_explicit_matrix(matrix: MatrixExpr) -> sp.ImmutableDenseMatrix:
    """Return a matrix expression as an explicit matrix of entries.

    Products are multiplied factor by factor, which is much faster than SymPy's `as_explicit`.
    """
    if isinstance(matrix, sp.MatMul):
        scalar, factors = matrix.as_coeff_matrices()
        return scalar * reduce(mul, map(to_explicit_matrix, factors))
    if isinstance(matrix, sp.MatAdd):
        return reduce(add, map(to_explicit_matrix, matrix.args))
    if isinstance(matrix, sp.Transpose):
        return to_explicit_matrix(matrix.arg).T
    return sp.ImmutableDenseMatrix(matrix.as_explicit())


@cache
def gradient_of_trace(scalar: sp.Expr, variable: sp.MatrixSymbol, symbols: OrderParameterSymbols) -> MatrixExpr:
    """Return the gradient of a sum of traces with respect to a matrix, by SymPy's matrix calculus.

    Sums are differentiated term by term, since SymPy 1.14 silently returns zero for a sum of traces.

    Args:
        scalar: a sum of traces.
        variable: matrix with respect to which it is differentiated.
        symbols: symbols, with the list `symmetric_matrices`.
    """
    gradient: MatrixExpr = sp.ZeroMatrix(*variable.shape)
    for term in sp.Add.make_args(scalar):
        if term.has(variable):
            gradient = gradient + term.diff(variable)
    return drop_transposes_of_symmetric_matrices(gradient.doit(), symbols)


def _apply_linear_map_to_terms(function: Callable[[MatrixExpr], MatrixExpr], expression: MatrixExpr) -> MatrixExpr:
    """Return the image of a matrix expression under a linear map, term by term, with numerical factors in front."""
    if isinstance(expression, sp.MatAdd):
        return sp.MatAdd(*[_apply_linear_map_to_terms(function, term) for term in expression.args]).doit()
    if isinstance(expression, sp.MatMul):
        scalar, matrix = expression.as_coeff_matrices()
        number, rest = scalar.as_coeff_Mul()
        if number != 1:
            return number * function(sp.MatMul(rest, *matrix).doit())
    return function(expression)


def moreau_envelope_gradient(variable: sp.MatrixSymbol, symbols: OrderParameterSymbols) -> MatrixExpr:
    """Return the gradient of the Moreau envelope with respect to omega or V, by the envelope theorem.

    The result is written in terms of the field g = V^{-1} (x - omega).

    Args:
        variable: the symbol omega or V.
        symbols: the symbols of a generic (token, cluster) pair.
    """
    p = symbols
    if variable == p.omega:  # step = x - omega, the loss does not contain omega
        return _substitute_proximal_field(-gradient_of_trace(p.proximal_objective, p.step, p), p)
    return _substitute_proximal_field(gradient_of_trace(p.proximal_objective, variable, p), p)


def _substitute_proximal_field(gradient: MatrixExpr, symbols: OrderParameterSymbols) -> MatrixExpr:
    """Return a product of matrices with V^{-1} (x - omega), or its transpose, replaced by the proximal field g."""
    inverse, step = symbols.V.inv(), symbols.step
    scalar, factors = gradient.as_coeff_matrices()
    named: list[MatrixExpr] = []
    for factor in factors:
        if named and (named[-1], factor) == (inverse, step):
            named[-1] = symbols.g
        elif named and (named[-1], factor) == (step.T, inverse):
            named[-1] = symbols.g.T
        else:
            named.append(factor)
    return (scalar * sp.MatMul(*named)).doit()


def differentiate_averages(
    expression: sp.Expr, variable: sp.MatrixSymbol, symbols: OrderParameterSymbols
) -> MatrixExpr:
    """Return the derivative of a free entropy with unevaluated averages with respect to an order parameter.

    A symmetric matrix A is treated as a full matrix: d f = Tr[(d f / d A)^T dA] (docs/theory.md (4.7), (5.1)).

    Args:
        expression: a scalar of averages and traces.
        variable: an overlap, a conjugate order parameter, or phi.
        symbols: the symbols of a generic (token, cluster) pair.

    Raises:
        TypeError: the expression contains a term for which there is no rule.
    """
    if isinstance(expression, sp.Add):
        terms = [differentiate_averages(term, variable, symbols) for term in expression.args]
        return sp.MatAdd(*terms).doit()
    if isinstance(expression, sp.Mul):
        averages = [a for a in expression.args if a.has(Average)]
        if len(averages) == 1:
            scalar = sp.Mul(*[a for a in expression.args if a is not averages[0]])
            return (scalar * differentiate_averages(averages[0], variable, symbols)).doit()
    if isinstance(expression, Average):
        if expression.kind == CONTEXTS:
            return gradient_of_trace(expression.summand, variable, symbols)
        rule = {COORDINATE: _differentiate_coordinate_average, CHANNEL: _differentiate_channel_average}[expression.kind]
        return rule(expression.summand, variable, symbols)
    if not expression.has(variable):
        return sp.ZeroMatrix(*variable.shape)
    if variable == symbols.phi and not expression.has(Average):
        return gradient_of_trace(expression, variable, symbols)
    raise TypeError(f"cannot differentiate {expression} with respect to {variable}: no rule for such a term")


def _differentiate_coordinate_average(
    potential: sp.Expr, variable: sp.MatrixSymbol, symbols: OrderParameterSymbols
) -> MatrixExpr:
    """Return the derivative of a COORDINATE average, by the chain rule through the prior parameters G, B and Q."""
    total: MatrixExpr = sp.ZeroMatrix(*variable.shape)
    for composite, summand in symbols.effective_prior_parameters.items():
        if not summand.has(variable):
            continue
        outer = _prior_envelope_gradient(composite, symbols) if potential == symbols.envelope else None
        outer = gradient_of_trace(potential, composite, symbols) if outer is None else outer
        frozen = sp.MatrixSymbol("frozen", *composite.shape)
        inner = gradient_of_trace(sp.Trace(frozen.T * summand), variable, symbols)
        total = total + inner.subs(frozen, outer).doit()
    if total.is_ZeroMatrix:
        return total
    return _apply_linear_map_to_terms(
        lambda matrix: MatrixAverage(COORDINATE, matrix), drop_transposes_of_symmetric_matrices(total.doit(), symbols)
    )


def _prior_envelope_gradient(composite: sp.MatrixSymbol, symbols: OrderParameterSymbols) -> MatrixExpr:
    """Return the gradient of E_eta N(B + Q^{1/2} eta; G) with respect to one of G, B and Q.

    N(b; G) = max_w {-r(w) - w^T G w / 2 + w^T b} is the envelope of the penalty r, and eta is standard normal. The
    envelope theorem gives the gradient for G and B, Price's theorem that for the covariance Q of b.
    """
    p = symbols
    rules = {p.G: -p.w * p.w.T / 2, p.B: p.w, p.Q: Jacobian(p.w, p.b) / 2}
    return rules[composite]


def _differentiate_channel_average(
    integrand: sp.Expr, variable: sp.MatrixSymbol, symbols: OrderParameterSymbols
) -> MatrixExpr:
    """Return the derivative of a CHANNEL average with respect to an order parameter.

    The rules are the envelope theorem for V, phi and a loss that contains q, the derivative of the mean for m, and
    Price's theorem for the covariances q and theta of the fields.
    """
    coefficient = integrand.coeff(symbols.moreau)
    if sp.expand(integrand - coefficient * symbols.moreau).has(symbols.moreau) or coefficient.has(symbols.moreau):
        raise TypeError(
            f"the channel average of {integrand} cannot be differentiated: it must be linear in the Moreau envelope"
        )
    if variable == symbols.V:
        gradient = moreau_envelope_gradient(symbols.V, symbols)
    elif variable == symbols.m:
        gradient = moreau_envelope_gradient(symbols.omega, symbols)
    elif variable in (symbols.q, symbols.theta):
        field = moreau_envelope_gradient(symbols.omega, symbols)
        half, other = (sp.Rational(1, 2), symbols.omega) if variable == symbols.q else (sp.Integer(1), symbols.Y)
        gradient = half * _apply_linear_map_to_terms(lambda matrix: Jacobian(matrix, other), field)
        if variable == symbols.q and symbols.loss_depends_on_q:
            gradient = gradient + symbols.loss_q  # envelope theorem: M depends on q through the loss, too
    elif variable == symbols.phi:
        gradient = symbols.loss_phi
    else:
        return sp.ZeroMatrix(*variable.shape)
    return (coefficient * _apply_linear_map_to_terms(lambda matrix: MatrixAverage(CHANNEL, matrix), gradient)).doit()


def gaussian_integration_by_parts(expression: MatrixExpr, symbols: OrderParameterSymbols) -> MatrixExpr:
    """Return an expression with averages of derivatives of the field g replaced by averages of g (Stein's lemma).

    The field g is V^{-1} (x - omega) at the proximal point x, and may jump. For z = (omega - m, Y - m*) with covariance
    [[q, theta], [theta^T, rho*]] the lemma is E[g z^T] = E[dg/dz^T] Cov(z), solved for the two blocks with the Schur
    complement S = rho* - theta^T q^{-1} theta:
    E[dg/dY^T] = (E[g dY^T] - E[g domega^T] q^{-1} theta) S^{-1},
    E[dg/domega^T] = (E[g domega^T] - E[dg/dY^T] theta^T) q^{-1}.

    Args:
        expression: an expression with channel averages of Jacobians of g.
        symbols: the symbols of a generic (token, cluster) pair.
    """
    p = symbols
    with_omega = MatrixAverage(CHANNEL, p.g * p.domega.T)
    with_teacher = MatrixAverage(CHANNEL, p.g * p.dY.T)
    inverse = p.q.inv()
    schur = (p.rho_star - p.theta.T * inverse * p.theta).inv()
    by_teacher = (with_teacher - with_omega * inverse * p.theta) * schur
    by_omega = (with_omega - by_teacher * p.theta.T) * inverse
    return expression.xreplace(
        {
            MatrixAverage(CHANNEL, Jacobian(p.g, p.Y)): by_teacher,
            MatrixAverage(CHANNEL, Jacobian(p.g, p.omega)): by_omega,
        }
    )
