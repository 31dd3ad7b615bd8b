"""Step 8 with steps of breaking: the saddle point by differentiation, at given Parisi parameters
(docs/theory.md (18.11) to (18.17), (18.28) to (18.30))."""

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
    differentiate,
    envelope_gradient,
    stein,
    symmetrised,
    trace_gradient,
)
from ...theory.free_entropy import split_average
from ..algebra.exact import Source
from ..algebra.levels import ALL_RATES, Broken, Tilt, tilts
from ..algebra.objects import distributed, matrix_gradient, same
from ..algebra.step import Expressions, Step, Test, declare_test
from .ansatz import example
from .saddle import moved, partner, solvable, spoken

DIGITS = 60  # of the differences that check derivatives; their steps are 1e-15


def step(p: Broken, zero: Expressions) -> Step:
    """Differentiate in all matrices; conditions for q, V and Delta are solved together, on either side."""
    after = {"Phi": in_variances(zero["Phi"], p), **equations(zero["Phi"], p)}
    Deltas, hats = p.of_steps("Delta"), p.of_steps("Delta{}_hat")
    conjugates = ("q_hat", *(z.name for z in hats), "V_hat")
    overlaps = ("q", *(z.name for z in Deltas), "V")
    judged: dict[sp.MatrixSymbol, tuple[str, ...]] = dict.fromkeys((p.V, p.q, *Deltas), conjugates)
    judged |= {source: (partner(source, p).name,) for source in (p.m, p.theta)}
    judged |= dict.fromkeys((p.V_hat, p.q_hat, *hats), overlaps)
    judged |= {source: (partner(source, p).name,) for source in (p.m_hat, p.theta_hat)}
    tests = [
        *[_condition_test(source, names, p) for source, names in judged.items()],
        _variances_put_in(p),
        Test(
            "response of a tilted average",
            "the variance of whole blocks and its conjugate in both of their forms, for a square loss and a quadratic "
            "penalty, s = t = 2, exactly",
            lambda before, after: _responses_hold(before["Phi"], after, p),
            (*_outermost(p), "V", "V_hat", *(z.name for z in (*Deltas, *hats))),
        ),
        *([_trained_holds(p)] if p.trained else []),
    ]
    return Step(
        8,
        "Saddle point",
        dict(zero),
        after,
        f"The derivatives of the free entropy vanish, at {_GIVEN[p.steps]}. Those of the logarithm of a block "
        "are averages with the weight of its states: the heat equation gives the derivative in the covariance of its "
        "field, the theorems of Price and Stein those in the law of the field of all replicas. The response of such an "
        "average is that of what is averaged and that of the weight. The conditions in "
        f"{_TOGETHER[p.steps]} conjugates; they are solved together, and so are those in the conjugates.",
        "M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World Scientific (1987); R. Price, IRE "
        "Trans. Inf. Theory 4, 69 (1958); C. M. Stein, Ann. Statist. 9, 1135 (1981)",
        tuple(tests),
    )


_GIVEN = {1: "a given Parisi parameter", 2: "given Parisi parameters"}
_TOGETHER = {1: "q, V and Delta hold the same three", 2: "q, V, Delta_1 and Delta_2 hold the same four"}


def _outermost(p: Broken) -> tuple[str, str]:
    """V~ and V~^ of the largest blocks, by name."""
    return p.of_steps("V_tilde")[0].name, p.of_steps("V_tilde{}_hat")[0].name


def in_variances(phi: sp.Expr, p: Broken) -> sp.Expr:
    """Phi with V~ = V + y Delta and V~^ = V^ - y Delta^ in the trace (docs/theory.md (18.8), (18.28))."""
    (trace,) = [a for a in phi.atoms(Average) if a.kind == CONTEXTS]
    linear = sp.Add(*[term for term in sp.Add.make_args(trace.summand) if term.has(p.m, p.theta)])
    V, V_hat = (*p.of_steps("V_tilde"), p.V), (*p.of_steps("V_tilde{}_hat"), p.V_hat)
    outer = sp.Trace(V_hat[0] * p.q) / 2 - sp.Trace(p.q_hat * V[0]) / 2
    products = [sp.Trace(hat * own) for hat, own in zip(V_hat, V, strict=True)]
    inner = sp.Add(
        *[(one - other) / (2 * rate) for (one, other), rate in zip(pairwise(products), p.rates, strict=True)]
    )
    return phi.xreplace({trace: Average(CONTEXTS, outer + inner + linear)})


@declare_test("free entropy in the variances", "with the variances of whole blocks put in, as symbols", ("Phi",))
def _variances_put_in(before: Expressions, after: Expressions, p: Broken) -> bool:
    return same(after["Phi"].xreplace(p.variances()), before["Phi"], p)


@cache
def equations(phi: sp.Expr, p: Broken) -> dict[str, MatrixExpr]:
    """Name of an order parameter -> the right side of its condition, derivatives of < g > removed by Stein's lemma."""
    found: dict[str, MatrixExpr] = {}
    sentences, rows = tilts(p)
    sources_of = (p.q, p.V, *p.of_steps("Delta")), (p.q_hat, p.V_hat, *p.of_steps("Delta{}_hat"))
    for tilt, sources in zip((sentences, rows), sources_of, strict=True):
        targets = [partner(source, p) for source in sources]
        gradients = [gradient(phi, source, p) for source in sources]
        raw = _solved(gradients, targets, p)
        V, Deltas = partner(sources[0], p), [partner(source, p) for source in sources[2:]]
        sign = 1 if tilt is rows else -1
        parts = [sign * rate * raw[Delta.name] for rate, Delta in zip(p.rates, Deltas, strict=True)]
        total = collected(sp.MatAdd(raw[V.name], *parts), p)
        found[_outermost(p)[tilt is sentences]] = _without_derivatives(total, tilt, p)
        for response, written in tilt.written_out.items():
            raw = {name: value.xreplace({response: written}) for name, value in raw.items()}
        found |= {name: collected(value, p) for name, value in raw.items()}
    for source in (p.m, p.theta, p.m_hat, p.theta_hat):
        target = partner(source, p)
        (value,) = _solved([gradient(phi, source, p)], [target], p).values()
        found[target.name] = _without_derivatives(value, sentences, p)
    if p.trained:
        found["trained"] = gradient(phi, p.phi, p)
    return found


# --- derivatives ------------------------------------------------------------------------------------------------------


def gradient(phi: sp.Expr, variable: sp.MatrixSymbol, p: Broken) -> MatrixExpr:
    """d Phi / d variable, as of calculus/averages.py.

    Raises:
        TypeError: a term holds something no rule is known for.
    """
    total: MatrixExpr = sp.ZeroMatrix(*variable.shape)
    for term in sp.Add.make_args(phi):
        if not term.has(Average):
            total = total + trace_gradient(term, variable, p)
            continue
        coefficient, average = split_average(term)
        if average.kind == CONTEXTS:
            part = trace_gradient(average.summand, variable, p)
        elif average.kind == COORDINATE:
            part = _through_composites(average.summand, variable, p)
        else:
            part = MatrixAverage(CHANNEL, of_sentence(average.summand, variable, p))
            part = sp.ZeroMatrix(*variable.shape) if part.summand.is_ZeroMatrix else part
        total = total + coefficient * part
    return collected(total.doit(), p)


def of_block(potential: sp.Expr, extremum: sp.Symbol) -> sp.Expr:
    """The number c of c y (1/y) log E exp(y h), h the extremum or minus it, or such a logarithm.

    Raises:
        TypeError: it is not of this form.
    """
    number, logarithm = sp.sympify(potential).as_independent(sp.log, as_Add=False)
    if not isinstance(logarithm, sp.log) or not isinstance(logarithm.args[0], Average):
        raise TypeError(f"no logarithm of an average: {potential}")
    weight = logarithm.args[0].summand.args[0]
    if weight.has(sp.log):
        return number * of_block(weight, extremum)
    return number * weight / (-extremum if extremum.name == "M" else extremum)  # minima stand with a minus


def of_sentence(integrand: sp.Expr, variable: sp.MatrixSymbol, p: Broken) -> MatrixExpr:
    """Of (1/y) log E exp(-y M): envelope theorem for V and phi, mean rule for m, heat equation for Delta, Price's
    theorem for q and theta; a loss that holds the overlap of a replica with itself holds q + Delta."""
    tilt, _ = tilts(p)
    beside = -tilt.mean(p.loss_q) if p.loss_holds_q else sp.ZeroMatrix(p.s, p.s)
    rules = {
        p.V: tilt.mean(-1 * envelope_gradient(p.V, p)),
        p.m: tilt.first,
        **{Delta: tilt.second(k + 1) + beside for k, Delta in enumerate(p.of_steps("Delta"))},
        p.q: tilt.response / 2 + beside,
        p.theta: Jacobian(tilt.first, p.Y),
        p.phi: -tilt.mean(p.loss_phi),
    }
    if variable not in rules:
        return sp.ZeroMatrix(*variable.shape)
    return (of_block(integrand, p.moreau) * rules[variable]).doit()


def _through_composites(potential: sp.Expr, variable: sp.MatrixSymbol, p: Broken) -> MatrixExpr:
    """Chain rule: that of the potential's linear part in G, B, Q and Q_Delta, its coefficients put in afterwards."""
    slopes = {sp.MatrixSymbol(f"slope_{z.name}", *z.shape): z for z in p.composites}
    linear = sp.Add(*[sp.Trace(slope.T * z) for slope, z in slopes.items()])
    chain = differentiate(Average(COORDINATE, linear), variable, p)
    held = {slope: of_potential(potential, z, p) for slope, z in slopes.items() if chain.has(slope)}
    return chain.xreplace(held).doit()


def of_potential(potential: sp.Expr, composite: sp.MatrixSymbol, p: Broken) -> MatrixExpr:
    """Of the rows in one of G, B, Q and Q_Delta: the same rules for (1/y) log E exp(y N), or matrix calculus."""
    if potential.has(p.envelope):
        _, tilt = tilts(p)
        rules = {p.G: -tilt.mean(p.w * p.w.T) / 2, p.B: tilt.first, p.Q: tilt.response / 2}
        rules |= {Q: tilt.second(k + 1) for k, Q in enumerate(p.of_steps("Q_Delta"))}
        return (of_block(potential, p.envelope) * rules[composite]).doit()
    return matrix_gradient(potential, composite, p)


# --- algebra ----------------------------------------------------------------------------------------------------------


def collected(matrix: MatrixExpr, p: Broken) -> MatrixExpr:
    """Multiplied out, alpha and y in front of averages, equal terms as one."""
    numbers: dict[MatrixExpr, sp.Expr] = {}
    for term in sp.MatAdd.make_args(distributed(matrix)):
        if term.is_ZeroMatrix:
            continue
        scalar, bare = _number(term)
        inner, bare = _out_of_averages(bare)
        bare = symmetrised(bare, p)
        numbers[bare] = numbers.get(bare, sp.Integer(0)) + scalar * inner
    terms = [sp.simplify(number) * bare for bare, number in numbers.items() if sp.simplify(number) != 0]
    return sp.MatAdd(sp.ZeroMatrix(*matrix.shape), *terms).doit()


def _number(term: MatrixExpr) -> tuple[sp.Expr, MatrixExpr]:
    """(c, A) of c A."""
    if not isinstance(term, sp.MatMul):
        return sp.Integer(1), term
    scalar, factors = term.as_coeff_matrices()
    return scalar, factors[0] if len(factors) == 1 else sp.MatMul(*factors)


def _out_of_averages(matrix: MatrixExpr) -> tuple[sp.Expr, MatrixExpr]:
    """(number, matrix): numbers, alpha and y pass an average, what belongs to a coordinate does not."""
    if not isinstance(matrix, MatrixAverage):
        return sp.Integer(1), matrix
    scalar, bare = _number(matrix.summand)
    inner, bare = _out_of_averages(bare)
    stays, passes = sp.Integer(1), inner
    for factor in sp.Mul.make_args(sp.factor(scalar)):
        if factor.free_symbols - ALL_RATES - {sp.Symbol("alpha", positive=True)}:
            stays *= factor
        else:
            passes *= factor
    return passes, MatrixAverage(matrix.kind, (stays * bare).doit())


def _solved(gradients: list[MatrixExpr], targets: list[sp.MatrixSymbol], p: Broken) -> dict[str, MatrixExpr]:
    """The conditions, linear in the targets with numbers as coefficients, solved for them.

    Raises:
        ValueError: they do not determine the targets.
    """
    coefficients, rest = sp.zeros(len(targets), len(targets)), []
    for i, condition in enumerate(gradients):
        others: MatrixExpr = sp.ZeroMatrix(*condition.shape)
        for term in sp.MatAdd.make_args(condition):
            scalar, bare = _number(term)
            if bare in targets:
                coefficients[i, targets.index(bare)] += scalar
            elif term.atoms(sp.MatrixSymbol) & set(targets):
                raise ValueError(f"the condition {condition} = 0 is not linear in {targets}")
            else:
                others = others + term
        rest.append(others)
    if coefficients.det() == 0:
        raise ValueError(f"the conditions do not determine {targets}")
    inverse = coefficients.inv()
    return {
        target.name: collected(sp.MatAdd(*[-inverse[i, j] * rest[j] for j in range(len(rest))]), p)
        for i, target in enumerate(targets)
    }


def _without_derivatives(value: MatrixExpr, tilt: Tilt, p: Broken) -> MatrixExpr:
    """Stein's lemma in omega_0 and Y for the tilted field, as `stein` has it for the field."""
    plain = {MatrixAverage(CHANNEL, Jacobian(tilt.first, z)): w for z, w in ((p.omega_0, p.omega), (p.Y, p.Y))}
    removed = {
        average: stein(MatrixAverage(CHANNEL, Jacobian(p.g, z)), p).xreplace({p.g: tilt.first})
        for average, z in plain.items()
    }
    return value.xreplace(removed).doit()


# --- a square loss and a quadratic penalty ----------------------------------------------------------------------------


def slope(phi: sp.Expr, at: Callable[[sp.Expr], dict[str, Any]], p: Broken) -> Any:
    """d Phi / d epsilon at 0 by a central difference at exact matrices, to 20 digits and more.

    Args:
        at: epsilon -> explicit matrices.
    """
    epsilon = sp.Rational(1, 10**15)
    up, down = (solvable(at(sign * epsilon), phi, p)(phi) for sign in (1, -1))
    return (sp.N(up, DIGITS) - sp.N(down, DIGITS)) / (2 * epsilon)


def vanishes(number: Any) -> bool:
    """To the digits of `slope`."""
    return bool(abs(sp.N(number, DIGITS)) < sp.Float("1e-20"))


def _condition_test(source: sp.MatrixSymbol, judged: tuple[str, ...], p: Broken) -> Test:
    return Test(
        f"slope in {spoken(source)}",
        "the derivative of the free entropy along a direction at random, at the given right sides, for a square loss "
        "and a quadratic penalty, s = t = 2, by differences to 20 digits",
        lambda before, after: vanishes(slope(before["Phi"], moved(before["Phi"], after, source, judged, p), p)),
        judged,
    )


def _responses_hold(phi: sp.Expr, after: Expressions, p: Broken) -> bool:
    own = example("blocks")
    at = solvable(own, phi, p)
    for end, tilde, sign in zip(("", "{}_hat"), _outermost(p), (1, -1), strict=True):
        gap = at(after["V" + end.format("")]) - at(after[tilde])
        for Delta, rate in zip(p.of_steps(f"Delta{end}"), p.rates, strict=True):
            gap = gap + sign * at(rate) * at(after[Delta.name])
        if sp.Matrix((gap + gap.T) / 2).applyfunc(sp.cancel) != sp.zeros(2, 2):
            return False
    return True


@declare_test(
    "condition for the trained numbers",
    "the derivative of Phi along a direction at random, for a loss linear in them, by differences",
    ("trained",),
)
def _trained_holds(before: Expressions, after: Expressions, p: Broken) -> bool:
    phi, own = before["Phi"], example("blocks")
    at, start = solvable(own, phi, p)(after["trained"]), own["phi"]
    towards = Source("phi").matrix(start.rows, 1)
    found = slope(phi, lambda epsilon: {**own, "phi": start + epsilon * towards}, p)
    return vanishes(found - (at.T * towards)[0])
