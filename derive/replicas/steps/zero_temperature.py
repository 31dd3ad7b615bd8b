"""Step 7: the limit beta -> infinity, in which Laplace's method turns log integrals into Moreau envelopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mpmath as mp
import sympy as sp

from ...authoring.regulariser import Regulariser
from ...calculus.averages import Average, OrderParameterSymbols
from ...calculus.numeric import rational_to_mpf
from ...theory.free_entropy import free_entropy
from ...theory.stability import TOKENS
from ..algebra.exact import ExactValues, RandomRationals, is_exactly_zero
from ..algebra.levels import OUTER_FIELD, ReplicaAnsatz, ReplicaBreakingSymbols
from ..algebra.objects import (
    FIELD,
    LogIntegral,
    apply_function_outside_traces,
    beta,
    factor_out_scalars,
    is_equal_up_to_trace_cycles,
    merge_averages,
)
from ..algebra.step import Expressions, Step, declare_test
from .action import PENALTY
from .ansatz import proximal_quadratic, random_cluster_matrices, random_common_values


def growth_exponents_in_beta(p: OrderParameterSymbols) -> dict[Any, Any]:
    """Return a map from each order parameter to itself times the power of beta with which it grows.

    With these powers all terms of Phi / beta remain at large beta.
    """
    broken: dict[Any, Any] = {}
    if isinstance(p, ReplicaBreakingSymbols):
        broken = {z: beta**2 * z for stem in ("Delta{}_hat", "Q_Delta") for z in p.symbols_by_breaking_step(stem)}
        broken |= {size: rate / beta for size, rate in zip(p.block_size_symbols, p.parisi_parameters, strict=True)}
        broken |= {field: beta * field for field in p.row_field_symbols}
    return {
        p.V: p.V / beta,
        **{z: beta * z for z in (p.V_hat, p.m_hat, p.theta_hat)},
        p.q_hat: beta**2 * p.q_hat,
        # Composites follow their conjugates, the field of a row its mean B and covariance Q.
        p.G: beta * p.G,
        p.B: beta * p.B,
        p.Q: beta**2 * p.Q,
        p.b: beta * p.b,
        **broken,
    }


def zero_temperature_step(ansatz: ReplicaAnsatz, finite: sp.Expr, regulariser: Regulariser) -> Step:
    """Return derivation step 7: the free entropy for large inverse temperature, with rescaled order parameters.

    Args:
        ansatz: grouping of the replicas into blocks.
        finite: free entropy at a finite temperature, from step 6.
        regulariser: regulariser of the rows.
    """
    p, blocks = ansatz.symbols, ansatz.levels[1:]
    phi = merge_averages(factor_out_scalars(leading_order_in_beta(finite.xreplace(growth_exponents_in_beta(p)), p)))
    after = {"Phi": phi, "M": objective_minimised_by_fields(p)}
    tests = [_check_leading_order(p), _check_laplace_limit("M", p.loss, 1, p, what="sentences")]
    if after["Phi"].has(p.envelope):
        after["N"] = objective_maximised_by_row(p)
        tests.append(_check_laplace_limit("N", PENALTY, -1, p, what="rows"))
    given = (p.V, *p.conjugate_order_parameters, *[level.size for level in blocks])  # composites and fields follow
    again = " of averaged powers" * (ansatz.steps - 1)
    if blocks:
        tests.append(
            _check_limit_of_averaged_powers([level.channel for level in blocks], p, what="sentences", again=again)
        )
    if blocks and "N" in after:
        tests.append(_check_limit_of_averaged_powers([level.rows for level in blocks], p, what="rows", again=again))
    if not blocks:
        tests.append(_check_used_free_entropy(p, regulariser))
    return Step(
        7,
        "Zero temperature",
        {
            "Phi_beta": finite,
            **{f"{z.name} becomes": value for z, value in growth_exponents_in_beta(p).items() if z in given},
        },
        after,
        "Order parameters are rescaled so that every term of the free entropy grows like the inverse temperature; what "
        "remains of their ratio is kept. To this order the logarithm of an integral is the largest exponent (Laplace's "
        "method), which leaves "
        "the Moreau envelope of the loss and, for a general penalty, the penalty's; the minimum is the global one."
        + _BLOCKS_SHRINK[ansatz.steps],
        "arXiv 2402.03902, Appendix C; J. J. Moreau, Bull. Soc. Math. France 93, 273 (1965)",
        tuple(tests),
    )


_BLOCKS_SHRINK = (
    "",
    " The number of replicas in a block shrinks like the temperature, so that a block, too, weighs its states by their "
    "energies; 𝔶, their ratio, is the Parisi parameter.",
    " The numbers of replicas in blocks shrink like the temperature, so that blocks, too, weigh their states by their "
    "energies; the ratios are the Parisi parameters.",
)


def objective_minimised_by_fields(p: OrderParameterSymbols) -> sp.Expr:
    """Return the objective that the fields X of a sample minimise: the loss and a quadratic distance to omega."""
    return p.loss + Average(TOKENS, proximal_quadratic(p))


def objective_maximised_by_row(p: OrderParameterSymbols) -> sp.Expr:
    """Return the objective that a row of W maximises: its field's term minus penalty and quadratic term."""
    return -PENALTY - sp.Trace(p.w.T * p.G * p.w) / 2 + sp.Trace(p.w.T * p.b)


def leading_order_in_beta(expression: sp.Expr, p: OrderParameterSymbols) -> sp.Expr:
    """Return the limit of expression / beta for a large inverse temperature beta.

    Args:
        expression: scalar at the rescaled order parameters.
        p: symbols of the order parameters.

    Raises:
        TypeError: a log integral is not of Laplace's form with a known minimum.
    """
    if isinstance(expression, Average):
        inside = leading_order_in_beta(expression.summand, p)
        if expression.kind == OUTER_FIELD or (expression.kind == FIELD and inside == p.envelope):
            return inside  # the coordinate's average includes that over its field
        return sp.Integer(0) if inside == 0 else Average(expression.kind, inside)
    if isinstance(expression, sp.Add):  # single determinants grow like beta log beta, not their sum
        integrals = [term for term in expression.args if term.has(Average, LogIntegral)]
        plain = sp.Add(*[term for term in expression.args if term not in integrals])
        return sp.Add(*[leading_order_in_beta(term, p) for term in integrals]) + (
            _limit_of_ratio_to_beta(factor_out_scalars(plain)) if plain else 0
        )
    if isinstance(expression, sp.Mul) and expression.has(Average):
        (average,) = [a for a in expression.args if a.has(Average)]
        if isinstance(average, sp.log):
            return expression / average / beta * _leading_order_of_log_average(average, p)
        return expression / average * leading_order_in_beta(average, p)
    if isinstance(expression, LogIntegral):
        return laplace_limit(expression, p)
    return _limit_of_ratio_to_beta(factor_out_scalars(expression))


def _leading_order_of_log_average(logarithm: sp.log, p: OrderParameterSymbols) -> sp.Expr:
    """Return the limit of log E[exp(y I / beta)] for large beta and the log integral I of a replica.

    Only the part of I that grows like beta remains. With two steps of replica symmetry breaking such a logarithm is in
    the exponent, with a ratio of Parisi parameters y as its factor.
    """
    average = logarithm.args[0]
    exponent = average.summand.args[0]
    within = [a for a in sp.Mul.make_args(exponent) if isinstance(a, sp.log)]
    if within:
        exponent = exponent / within[0] * _leading_order_of_log_average(within[0], p)
    else:
        (integral,) = exponent.atoms(LogIntegral)
        exponent = exponent / integral * beta * leading_order_in_beta(integral, p)
    return sp.log(Average(average.kind, sp.exp(exponent)))


def _limit_of_ratio_to_beta(expression: sp.Expr) -> sp.Expr:
    """Return the limit of expression / beta for large beta; traces and averages are taken as symbols."""
    return apply_function_outside_traces(expression, lambda e: sp.limit(sp.expand_log(e) / beta, beta, sp.oo))


def laplace_limit(integral: LogIntegral, p: OrderParameterSymbols) -> sp.Expr:
    """Return the limit of (1/beta) log of the integral of exp(-beta f) for large beta: minus the minimum of f.

    Args:
        integral: log integral at the rescaled order parameters.
        p: symbols of the order parameters.

    Raises:
        TypeError: f is neither the loss with its quadratic term nor the penalty of a row.
    """
    f = -leading_order_in_beta(integral.log_integrand, p)
    if is_equal_up_to_trace_cycles(f, objective_minimised_by_fields(p), p):
        return -p.moreau
    if is_equal_up_to_trace_cycles(f, -objective_maximised_by_row(p), p):
        return p.envelope
    raise TypeError(f"the minimum of {f} is not known: it is the objective neither of the fields nor of a row of W")


@declare_test(
    "leading order at explicit matrices",
    "trace, and rows of ridge, as functions of the inverse temperature at s = t = 2; its coefficient, by a limit",
)
def _check_leading_order(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    """Return whether all terms without an integral agree with their limit at explicit matrices.

    They are polynomials in beta, 1/beta and log beta.
    """
    own = random_cluster_matrices("leading order")
    values = {**own, **random_common_values("leading order", [own]), "Kappa": own["rho_star"]}
    del values["beta"]
    values |= {z.name: sp.Rational(k + 1, 15) for k, z in enumerate((*p.block_size_symbols, *p.parisi_parameters))}

    def evaluate_terms_without_integrals(expression: sp.Expr, at: ExactValues) -> sp.Expr:
        """Return the value of a sum of terms, without those that contain an integral or an extremum.

        Args:
            expression: sum of terms.
            at: matrices and numbers by name.
        """
        return sp.Add(
            *[at(term) for term in sp.Add.make_args(expression) if not term.has(LogIntegral, p.moreau, p.envelope)]
        )

    at = ExactValues(values)
    scaled = ExactValues(
        {**values, **{z.name: at(value) for z, value in growth_exponents_in_beta(p).items() if z.name in values}}
    )
    finite = sp.expand_log(sp.simplify(evaluate_terms_without_integrals(before["Phi_beta"], scaled)), force=True)
    limit = sp.limit(sp.expand(finite) / beta, beta, sp.oo)
    return is_exactly_zero(evaluate_terms_without_integrals(after["Phi"], at) - limit)


@declare_test(
    "powers of a block, {what}",
    "averaged powers{again} of an integral of three values as the temperature vanishes, by a limit",
    ("Phi",),
)
def _check_limit_of_averaged_powers(
    before: Expressions, after: Expressions, kinds: Sequence[str], p: ReplicaBreakingSymbols
) -> bool:
    """Return whether log averages of powers have the given limit at large beta, for an integral of three values.

    The values are exp(-beta e + c) with numbers e and c, the Parisi parameter y is 1/2, 1 and 2. With two steps of
    replica symmetry breaking the outer field shifts e.
    """
    energies, shifts, probabilities = (2, 1, 3), (1, 4, 2), (sp.Rational(1, 2), sp.Rational(1, 3), sp.Rational(1, 6))
    inner = kinds[-1]
    finite, zero = (
        sp.Add(*[term for term in sp.Add.make_args(e) if inner in {a.kind for a in term.atoms(Average)}])
        for e in (before["Phi_beta"], after["Phi"])
    )
    (integral,) = finite.atoms(LogIntegral)
    extremum = p.moreau if zero.has(p.moreau) else p.envelope
    sign = -1 if extremum == p.moreau else 1

    def _outcome_energy(at: ExactValues) -> sp.Integer:
        return sp.Integer(energies[at.values[inner]] + sum(at.values[kind] for kind in kinds[:-1]))

    sums = {kind: tuple((probability, {kind: i}) for i, probability in enumerate(probabilities)) for kind in kinds}
    outcome, temperature = sp.Symbol("outcome"), sp.Symbol("temperature", positive=True)
    for y in (sp.Rational(1, 2), sp.Integer(1), sp.Integer(2)):
        parisi_parameters = [y * (k + 1) for k in range(p.steps)]
        values = {
            "outcome": lambda at, _: shifts[at.values[inner]] - beta * _outcome_energy(at),
            extremum.name: lambda at, _: -sign * _outcome_energy(at),
            "alpha": sp.Integer(3),
            **{size.name: rate / beta for size, rate in zip(p.block_size_symbols, parisi_parameters, strict=True)},
            **{symbol.name: rate for symbol, rate in zip(p.parisi_parameters, parisi_parameters, strict=True)},
        }
        at = ExactValues(values, sums)
        scaled = sp.powsimp(sp.expand(at(finite.xreplace({integral: outcome})) / beta).subs(beta, 1 / temperature))
        limit = sp.limit(scaled, temperature, 0)
        if abs(sp.N(at(zero) - limit, 30)) > sp.Float("1e-25"):
            return False
    return True


@declare_test(
    "Laplace's method, {what}",
    "the log integral of a quartic at low temperature against its extremum and the next order; the error halves with "
    "the temperature",
)
def _check_laplace_limit(
    before: Expressions, after: Expressions, name: str, energy: sp.Symbol, sign: int, p: OrderParameterSymbols
) -> bool:
    """Return whether Laplace's method gives the log integral of exp(-beta f) up to O(1/beta), for a quartic energy.

    The log integral is -beta min f - 1/2 log(f''/(2 pi)) - (s/2) log beta; for a sample the norm of a normal density is
    added. L = s = 1, and the energy, a part of f, is x^4/4 - x y.
    """
    source = RandomRationals("laplace")
    numbers = {name: abs(source.draw_number()) for name in ("V", "G")} | {
        name: source.draw_number() for name in ("omega", "b")
    }
    (integral,) = [a for a in before["Phi_beta"].atoms(LogIntegral) if a.has(energy)]
    x, y = sp.Symbol("z", real=True), source.draw_number()
    values: dict[str, Any] = {name: sp.Matrix([[value]]) for name, value in numbers.items()}
    values |= {integral.integration_variable.name: sp.Matrix([[x]]), energy.name: x**4 / 4 - x * y, "s": sp.Integer(1)}
    at = ExactValues(values)
    scaled = ExactValues(
        {**values, **{z.name: at(value) for z, value in growth_exponents_in_beta(p).items() if z.name in values}}
    )
    exponent, f = scaled(integral.log_integrand), at(sign * after[name])
    norm = mp.log(rational_to_mpf(numbers["V"])) if integral.has(p.V) else None
    errors = []
    with mp.workdps(25):
        value, curvature = sp.lambdify(x, f, "mpmath"), sp.lambdify(x, f.diff(x, 2), "mpmath")
        (least,) = [mp.mpf(root) for root in sp.Poly(f.diff(x), x).nroots(30) if abs(sp.im(root)) < 1e-25]
        for temperature in (400, 800):
            density = sp.lambdify(x, exponent.subs(beta, temperature), "mpmath")
            width = 1 / mp.sqrt(temperature * curvature(least))
            top = density(least)
            points = [mp.exp(density(least + width * mp.mpf(k) / 4) - top) for k in range(-48, 49)]
            found = top + mp.log(mp.fsum(points) * width / 4)
            expected = -temperature * value(least) - mp.log(curvature(least)) / 2
            expected += mp.log(2 * mp.pi / temperature) / 2 if norm is None else -norm / 2
            errors.append(found - expected)
    return abs(errors[0]) < 1e-2 and abs(errors[0] / errors[1] - 2) < 0.02


@declare_test("equal to the free entropy in use", "the very expression that is differentiated to generate solvers")
def _check_used_free_entropy(
    _before: Expressions, after: Expressions, p: OrderParameterSymbols, regulariser: Regulariser
) -> bool:
    used = free_entropy(p.s, p.t, regulariser, p.trained, p.loss_depends_on_q).expression
    return is_equal_up_to_trace_cycles(after["Phi"], used, p)
