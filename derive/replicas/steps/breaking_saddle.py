"""Step 8 with steps of breaking: the saddle point by differentiation, at given Parisi parameters.

The equations are docs/theory.md (18.11) to (18.17), (18.28) to (18.30).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import (
    CHANNEL,
    CONTEXTS,
    COORDINATE,
    Average,
    Jacobian,
    MatrixAverage,
    differentiate_averages,
    drop_transposes_of_symmetric_matrices,
    gaussian_integration_by_parts,
    gradient_of_trace,
    moreau_envelope_gradient,
)
from ...theory.free_entropy import split_coefficient_and_average
from ..algebra.exact import RandomRationals
from ..algebra.levels import ALL_RATES, ReplicaBreakingSymbols, TiltedAverage, tilted_averages
from ..algebra.objects import is_equal_up_to_trace_cycles, matrix_gradient, multiply_out_matrix
from ..algebra.step import Expressions, Step, StepTest, declare_test
from .ansatz import random_cluster_matrices
from .saddle import displacement_path, order_parameter_in_words, target_order_parameter, values_for_quadratic_model

DIGITS = 60  # of the differences that check derivatives; their steps are 1e-15


def broken_saddle_point_step(p: ReplicaBreakingSymbols, zero: Expressions) -> Step:
    """Return derivation step 8: the saddle-point conditions with replica symmetry breaking.

    Those for q, V and Delta are solved together, and so are those for their conjugates.

    Args:
        p: symbols of the order parameters.
        zero: results of step 7, the limit of zero temperature.
    """
    after = {"Phi": express_trace_in_variances(zero["Phi"], p), **saddle_point_conditions(zero["Phi"], p)}
    Deltas, hats = p.symbols_by_breaking_step("Delta"), p.symbols_by_breaking_step("Delta{}_hat")
    conjugates = ("q_hat", *(z.name for z in hats), "V_hat")
    overlaps = ("q", *(z.name for z in Deltas), "V")
    judged: dict[sp.MatrixSymbol, tuple[str, ...]] = dict.fromkeys((p.V, p.q, *Deltas), conjugates)
    judged |= {source: (target_order_parameter(source, p).name,) for source in (p.m, p.theta)}
    judged |= dict.fromkeys((p.V_hat, p.q_hat, *hats), overlaps)
    judged |= {source: (target_order_parameter(source, p).name,) for source in (p.m_hat, p.theta_hat)}
    tests = [
        *[_saddle_point_condition_test(source, names, p) for source, names in judged.items()],
        _check_substituted_variances(p),
        StepTest(
            "response of a tilted average",
            "the variance of whole blocks and its conjugate in both of their forms, for a square loss and a quadratic "
            "penalty, s = t = 2, exactly",
            lambda before, after: _check_response_identities(before["Phi"], after, p),
            (*_names_of_outermost_variances(p), "V", "V_hat", *(z.name for z in (*Deltas, *hats))),
        ),
        *([_check_trained_parameter_condition(p)] if p.trained else []),
    ]
    return Step(
        8,
        "Saddle point",
        dict(zero),
        after,
        f"The derivatives of the free entropy vanish, at {_AT_GIVEN[p.steps]}. Those of the logarithm of a block "
        "are averages with the weight of its states: the heat equation gives the derivative in the covariance of its "
        "field, the theorems of Price and Stein those in the law of the field of all replicas. The response of such an "
        "average is that of what is averaged and that of the weight. The conditions in "
        f"{_SHARED_MATRICES[p.steps]} conjugates; they are solved together, and so are those in the conjugates.",
        "M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World Scientific (1987); R. Price, IRE "
        "Trans. Inf. Theory 4, 69 (1958); C. M. Stein, Ann. Statist. 9, 1135 (1981)",
        tuple(tests),
    )


_AT_GIVEN = {1: "a given Parisi parameter", 2: "given Parisi parameters"}
_SHARED_MATRICES = {1: "q, V and Delta hold the same three", 2: "q, V, Delta_1 and Delta_2 hold the same four"}


def _names_of_outermost_variances(p: ReplicaBreakingSymbols) -> tuple[str, str]:
    """Return the names of the variance of the largest blocks, V_tilde, and of its conjugate V_tilde_hat."""
    return p.symbols_by_breaking_step("V_tilde")[0].name, p.symbols_by_breaking_step("V_tilde{}_hat")[0].name


def express_trace_in_variances(phi: sp.Expr, p: ReplicaBreakingSymbols) -> sp.Expr:
    """Return the free entropy Phi with its trace term written in V_tilde = V + y Delta and its conjugate V_tilde_hat.

    V is the variance of a replica's field, Delta the excess overlap within a block, y the Parisi parameter; V_tilde_hat
    is V_hat - y Delta_hat. See docs/theory.md (18.8), (18.28).

    Args:
        phi: free entropy at zero temperature, from step 7.
        p: symbols of the order parameters.
    """
    (trace,) = [a for a in phi.atoms(Average) if a.kind == CONTEXTS]
    linear = sp.Add(*[term for term in sp.Add.make_args(trace.summand) if term.has(p.m, p.theta)])
    V, V_hat = (*p.symbols_by_breaking_step("V_tilde"), p.V), (*p.symbols_by_breaking_step("V_tilde{}_hat"), p.V_hat)
    outer = sp.Trace(V_hat[0] * p.q) / 2 - sp.Trace(p.q_hat * V[0]) / 2
    products = [sp.Trace(hat * own) for hat, own in zip(V_hat, V, strict=True)]
    inner = sp.Add(
        *[(a - b) / (2 * rate) for (a, b), rate in zip(pairwise(products), p.parisi_parameters, strict=True)]
    )
    return phi.xreplace({trace: Average(CONTEXTS, outer + inner + linear)})


@declare_test("free entropy in the variances", "with the variances of whole blocks put in, as symbols", ("Phi",))
def _check_substituted_variances(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    return is_equal_up_to_trace_cycles(after["Phi"].xreplace(p.block_variances()), before["Phi"], p)


@cache
def saddle_point_conditions(phi: sp.Expr, p: ReplicaBreakingSymbols) -> dict[str, MatrixExpr]:
    """Return a map from order parameters to the right sides of their saddle-point conditions.

    Derivatives of tilted fields are removed by Stein's lemma.

    Args:
        phi: free entropy at zero temperature, from step 7.
        p: symbols of the order parameters.
    """
    found: dict[str, MatrixExpr] = {}
    samples, rows = tilted_averages(p)
    sources_of = (
        (p.q, p.V, *p.symbols_by_breaking_step("Delta")),
        (p.q_hat, p.V_hat, *p.symbols_by_breaking_step("Delta{}_hat")),
    )
    for tilt, sources in zip((samples, rows), sources_of, strict=True):
        targets = [target_order_parameter(source, p) for source in sources]
        gradients = [free_entropy_gradient(phi, source, p) for source in sources]
        raw = _solve_for_order_parameters(gradients, targets, p)
        V, *Deltas = (target_order_parameter(source, p) for source in (sources[0], *sources[2:]))
        sign = 1 if tilt is rows else -1
        parts = [sign * rate * raw[Delta.name] for rate, Delta in zip(p.parisi_parameters, Deltas, strict=True)]
        total = collect_terms(sp.MatAdd(raw[V.name], *parts), p)
        found[_names_of_outermost_variances(p)[tilt is samples]] = _apply_steins_lemma(total, tilt, p)
        for response, written in tilt.fluctuation_forms_of_responses.items():
            raw = {name: value.xreplace({response: written}) for name, value in raw.items()}
        found |= {name: collect_terms(value, p) for name, value in raw.items()}
    for source in (p.m, p.theta, p.m_hat, p.theta_hat):
        target = target_order_parameter(source, p)
        (value,) = _solve_for_order_parameters([free_entropy_gradient(phi, source, p)], [target], p).values()
        found[target.name] = _apply_steins_lemma(value, samples, p)
    if p.trained:
        found["trained"] = free_entropy_gradient(phi, p.phi, p)
    return found


# --- derivatives ------------------------------------------------------------------------------------------------------


def free_entropy_gradient(phi: sp.Expr, variable: sp.MatrixSymbol, p: ReplicaBreakingSymbols) -> MatrixExpr:
    """Return the derivative of the free entropy Phi in one order parameter.

    A symmetric matrix A counts as a full one, as in calculus/averages.py: dPhi = Tr[(dPhi/dA)^T dA].

    Args:
        phi: free entropy at zero temperature, from step 7.
        variable: overlap, conjugate or vector of trained numbers.
        p: symbols of the order parameters.

    Raises:
        TypeError: the derivative of a term of Phi is not known.
    """
    total: MatrixExpr = sp.ZeroMatrix(*variable.shape)
    for term in sp.Add.make_args(phi):
        if not term.has(Average):
            total = total + gradient_of_trace(term, variable, p)
            continue
        coefficient, average = split_coefficient_and_average(term)
        if average.kind == CONTEXTS:
            part = gradient_of_trace(average.summand, variable, p)
        elif average.kind == COORDINATE:
            part = _row_potential_gradient(average.summand, variable, p)
        else:
            part = MatrixAverage(CHANNEL, sample_potential_gradient(average.summand, variable, p))
            part = sp.ZeroMatrix(*variable.shape) if part.summand.is_ZeroMatrix else part
        total = total + coefficient * part
    return collect_terms(total.doit(), p)


def coefficient_of_block_average(potential: sp.Expr, extremum: sp.Symbol) -> sp.Expr:
    """Return the factor c of a potential c (1/y) log E exp(y h) of a block of replicas.

    The exponent h is plus or minus an extremum (M or N), or such a logarithm itself.

    Args:
        potential: number times the logarithm of an average.
        extremum: symbol M of a sample or N of a row.

    Raises:
        TypeError: the potential is not of this form.
    """
    number, logarithm = sp.sympify(potential).as_independent(sp.log, as_Add=False)
    if not isinstance(logarithm, sp.log) or not isinstance(logarithm.args[0], Average):
        raise TypeError(f"the potential {potential} is not a number times the logarithm of an average")
    weight = logarithm.args[0].summand.args[0]
    if weight.has(sp.log):
        return number * coefficient_of_block_average(weight, extremum)
    return number * weight / (-extremum if extremum.name == "M" else extremum)  # minima have a minus sign


def sample_potential_gradient(integrand: sp.Expr, variable: sp.MatrixSymbol, p: ReplicaBreakingSymbols) -> MatrixExpr:
    """Return the derivative of a sample's potential (1/y) log E exp(-y M) in an order parameter.

    M is the minimum of the proximal objective, y the Parisi parameter. Rules: envelope theorem for V and phi, mean rule
    for m, heat equation for Delta, Price's theorem for q and theta; a loss that contains the self-overlap of a replica
    contains q + Delta.

    Args:
        integrand: potential of a sample, a multiple of log E exp(-y M).
        variable: overlap or trained numbers; the derivative in others is zero.
        p: symbols of the order parameters.
    """
    tilt, _ = tilted_averages(p)
    overlap_term = -tilt.tilted_mean(p.loss_q) if p.loss_depends_on_q else sp.ZeroMatrix(p.s, p.s)
    rules = {
        p.V: tilt.tilted_mean(-1 * moreau_envelope_gradient(p.V, p)),
        p.m: tilt.tilted_mean_gradient,
        **{
            Delta: tilt.covariance_gradient(k + 1) + overlap_term
            for k, Delta in enumerate(p.symbols_by_breaking_step("Delta"))
        },
        p.q: tilt.outermost_response / 2 + overlap_term,
        p.theta: Jacobian(tilt.tilted_mean_gradient, p.Y),
        p.phi: -tilt.tilted_mean(p.loss_phi),
    }
    if variable not in rules:
        return sp.ZeroMatrix(*variable.shape)
    return (coefficient_of_block_average(integrand, p.moreau) * rules[variable]).doit()


def _row_potential_gradient(potential: sp.Expr, variable: sp.MatrixSymbol, p: ReplicaBreakingSymbols) -> MatrixExpr:
    """Return the derivative of the rows' potential in an order parameter, through the parameters of their prior.

    These are the precision G, the mean field B, its covariance Q and the covariance Q_Delta of a block's field.
    """
    slopes = {sp.MatrixSymbol(f"slope_{z.name}", *z.shape): z for z in p.effective_prior_parameters}
    linear = sp.Add(*[sp.Trace(slope.T * z) for slope, z in slopes.items()])
    chain = differentiate_averages(Average(COORDINATE, linear), variable, p)
    held = {slope: prior_parameter_gradient(potential, z, p) for slope, z in slopes.items() if chain.has(slope)}
    return chain.xreplace(held).doit()


def prior_parameter_gradient(potential: sp.Expr, composite: sp.MatrixSymbol, p: ReplicaBreakingSymbols) -> MatrixExpr:
    """Return the derivative of the rows' potential in G, B, Q or Q_Delta, parameters of their effective prior.

    G is a precision, B and Q are mean and covariance of the row's field that all replicas share, Q_Delta is the
    covariance of the field of a block. The rules are those of (1/y) log E exp(y N), N being the row's maximum, or
    matrix calculus for a ridge.

    Args:
        potential: potential of the rows.
        composite: symbol G, B, Q or Q_Delta.
        p: symbols of the order parameters.
    """
    if potential.has(p.envelope):
        _, tilt = tilted_averages(p)
        rules = {p.G: -tilt.tilted_mean(p.w * p.w.T) / 2, p.B: tilt.tilted_mean_gradient}
        rules[p.Q] = tilt.outermost_response / 2
        rules |= {Q: tilt.covariance_gradient(k + 1) for k, Q in enumerate(p.symbols_by_breaking_step("Q_Delta"))}
        return (coefficient_of_block_average(potential, p.envelope) * rules[composite]).doit()
    return matrix_gradient(potential, composite, p)


# --- algebra ----------------------------------------------------------------------------------------------------------


def collect_terms(matrix: MatrixExpr, p: ReplicaBreakingSymbols) -> MatrixExpr:
    """Return a sum of matrix products, multiplied out, with equal terms collected.

    Numbers, alpha and Parisi parameters are in front of averages.

    Args:
        matrix: sum of products.
        p: symbols of the order parameters.
    """
    numbers: dict[MatrixExpr, sp.Expr] = {}
    for term in sp.MatAdd.make_args(multiply_out_matrix(matrix)):
        if term.is_ZeroMatrix:
            continue
        scalar, bare = _split_off_scalar(term)
        inner, bare = _pull_scalars_out_of_average(bare)
        bare = drop_transposes_of_symmetric_matrices(bare, p)
        numbers[bare] = numbers.get(bare, sp.Integer(0)) + scalar * inner
    terms = [sp.simplify(number) * bare for bare, number in numbers.items() if sp.simplify(number) != 0]
    return sp.MatAdd(sp.ZeroMatrix(*matrix.shape), *terms).doit()


def _split_off_scalar(term: MatrixExpr) -> tuple[sp.Expr, MatrixExpr]:
    """Return the scalar c and the matrix A of a term c A."""
    if not isinstance(term, sp.MatMul):
        return sp.Integer(1), term
    scalar, factors = term.as_coeff_matrices()
    return scalar, factors[0] if len(factors) == 1 else sp.MatMul(*factors)


def _pull_scalars_out_of_average(matrix: MatrixExpr) -> tuple[sp.Expr, MatrixExpr]:
    """Return the factors that can stand in front of a matrix average, and the average without them.

    These are numbers, alpha and Parisi parameters; symbols of a coordinate stay in the average.
    """
    if not isinstance(matrix, MatrixAverage):
        return sp.Integer(1), matrix
    scalar, bare = _split_off_scalar(matrix.summand)
    inner, bare = _pull_scalars_out_of_average(bare)
    stays, passes = sp.Integer(1), inner
    for factor in sp.Mul.make_args(sp.factor(scalar)):
        if factor.free_symbols - ALL_RATES - {sp.Symbol("alpha", positive=True)}:
            stays *= factor
        else:
            passes *= factor
    return passes, MatrixAverage(matrix.kind, (stays * bare).doit())


def _solve_for_order_parameters(
    gradients: list[MatrixExpr], targets: list[sp.MatrixSymbol], p: ReplicaBreakingSymbols
) -> dict[str, MatrixExpr]:
    """Return by name the order parameters that solve conditions which are linear in them.

    Raises:
        ValueError: the conditions are not linear, or do not determine the order parameters.
    """
    coefficients, rest = sp.zeros(len(targets), len(targets)), []
    for i, condition in enumerate(gradients):
        others: MatrixExpr = sp.ZeroMatrix(*condition.shape)
        for term in sp.MatAdd.make_args(condition):
            scalar, bare = _split_off_scalar(term)
            if bare in targets:
                coefficients[i, targets.index(bare)] += scalar
            elif term.atoms(sp.MatrixSymbol) & set(targets):
                raise ValueError(f"the condition {condition} = 0 is not linear in the order parameters {targets}")
            else:
                others = others + term
        rest.append(others)
    if coefficients.det() == 0:
        raise ValueError(f"the conditions do not determine the order parameters {targets}: they are dependent")
    inverse = coefficients.inv()
    return {
        target.name: collect_terms(sp.MatAdd(*[-inverse[i, j] * rest[j] for j in range(len(rest))]), p)
        for i, target in enumerate(targets)
    }


def _apply_steins_lemma(value: MatrixExpr, tilt: TiltedAverage, p: ReplicaBreakingSymbols) -> MatrixExpr:
    """Return an expression in which Stein's lemma replaces derivatives of tilted averages in the fields.

    These fields are omega_0, shared by all replicas, and the teacher's field Y.
    """
    plain = {
        MatrixAverage(CHANNEL, Jacobian(tilt.tilted_mean_gradient, z)): w for z, w in ((p.omega_0, p.omega), (p.Y, p.Y))
    }
    removed = {
        average: gaussian_integration_by_parts(MatrixAverage(CHANNEL, Jacobian(p.g, z)), p).xreplace(
            {p.g: tilt.tilted_mean_gradient}
        )
        for average, z in plain.items()
    }
    return value.xreplace(removed).doit()


# --- a square loss and a quadratic penalty ----------------------------------------------------------------------------


def numerical_free_entropy_derivative(
    phi: sp.Expr, at: Callable[[sp.Expr], dict[str, Any]], p: ReplicaBreakingSymbols
) -> Any:
    """Return the derivative of Phi along a path of matrices, by a central difference to 20 digits or more.

    Args:
        phi: free entropy at zero temperature.
        at: function from a small number epsilon to explicit matrices by name.
        p: symbols of the order parameters.
    """
    epsilon = sp.Rational(1, 10**15)
    up, down = (values_for_quadratic_model(at(sign * epsilon), phi, p)(phi) for sign in (1, -1))
    return (sp.N(up, DIGITS) - sp.N(down, DIGITS)) / (2 * epsilon)


def is_negligible(number: Any) -> bool:
    """Return whether a number is zero to the accuracy of `numerical_free_entropy_derivative`."""
    return bool(abs(sp.N(number, DIGITS)) < sp.Float("1e-20"))


def _saddle_point_condition_test(
    source: sp.MatrixSymbol, judged: tuple[str, ...], p: ReplicaBreakingSymbols
) -> StepTest:
    return StepTest(
        f"slope in {order_parameter_in_words(source)}",
        "the derivative of the free entropy along a direction at random, at the given right sides, for a square loss "
        "and a quadratic penalty, s = t = 2, by differences to 20 digits",
        lambda before, after: is_negligible(
            numerical_free_entropy_derivative(
                before["Phi"], displacement_path(before["Phi"], after, source, judged, p), p
            )
        ),
        judged,
    )


def _check_response_identities(phi: sp.Expr, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    own = random_cluster_matrices("blocks")
    at = values_for_quadratic_model(own, phi, p)
    for end, tilde, sign in zip(("", "{}_hat"), _names_of_outermost_variances(p), (1, -1), strict=True):
        gap = at(after["V" + end.format("")]) - at(after[tilde])
        for Delta, rate in zip(p.symbols_by_breaking_step(f"Delta{end}"), p.parisi_parameters, strict=True):
            gap = gap + sign * at(rate) * at(after[Delta.name])
        if sp.Matrix((gap + gap.T) / 2).applyfunc(sp.cancel) != sp.zeros(2, 2):
            return False
    return True


@declare_test(
    "condition for the trained numbers",
    "the derivative of Phi along a direction at random, for a loss linear in them, by differences",
    ("trained",),
)
def _check_trained_parameter_condition(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    phi, own = before["Phi"], random_cluster_matrices("blocks")
    at, start = values_for_quadratic_model(own, phi, p)(after["trained"]), own["phi"]
    towards = RandomRationals("phi").draw_matrix(start.rows, 1)
    found = numerical_free_entropy_derivative(phi, lambda epsilon: {**own, "phi": start + epsilon * towards}, p)
    return is_negligible(found - (at.T * towards)[0])
