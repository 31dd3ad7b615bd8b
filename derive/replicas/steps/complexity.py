"""Step 9 with one step of breaking: the slope in the Parisi parameter, the complexity and the energy of the states
(docs/theory.md (18.18) to (18.20))."""

from __future__ import annotations

from typing import Any

import sympy as sp

from ...calculus.averages import CHANNEL, COORDINATE, Average
from ...theory.free_entropy import split_average
from ..algebra.levels import ROW_TILTED, TILTED, Broken, parisi
from ..algebra.objects import LogDet, beta, same, scalars_out
from ..algebra.step import Expressions, Step, Test
from .action import PENALTY
from .ansatz import example
from .breaking_saddle import gradient, matrix_gradient, slope, solvable_blocks, vanishes
from .zero_temperature import minimum, rescaling

# Of the trapped states, as functions of their energy e per dimension.
ENERGY = sp.Symbol("energy", real=True)


def step(p: Broken, zero: Expressions) -> Step:
    """Differentiate in y at given order parameters; a factor on loss and penalty gives the energy."""
    phi = zero["Phi"]
    change = parisi_slope(phi, p)
    after = {
        "dPhi_dy": change,
        "complexity": -(parisi**2) * sp.Symbol("dPhi_dy"),
        "energy": -sp.Symbol("Phi") - parisi * sp.Symbol("dPhi_dy"),
        "training_loss": training_loss(phi, p),
    }
    return Step(
        9,
        "Parisi parameter, complexity and energy",
        {"Phi": phi},
        after,
        "The free entropy times 𝔶 is the logarithm of a sum over states, each with the weight that its energy gives "
        "it: the Legendre transform of their complexity, the logarithm of their number per dimension. Its slope "
        "therefore is minus the energy of the states that dominate. By stationarity only the dependence on 𝔶 at given "
        "order parameters counts. States of least energy have no complexity: there the slope of the free entropy "
        "vanishes, minus which is greatest.",
        "M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World Scientific (1987); R. Monasson, Phys. "
        "Rev. Lett. 75, 2847 (1995)",
        (
            Test(
                "slope in the Parisi parameter",
                "the derivative of the free entropy at given order parameters, for a square loss and a quadratic "
                "penalty, s = t = 2, by differences to 20 digits",
                lambda before, after: _slope_holds(before["Phi"], after, p),
                ("dPhi_dy",),
            ),
            Test(
                "Legendre transform",
                "the free entropy of a complexity that is quadratic in the energy gives it back, with the energy, as "
                "symbols",
                lambda _before, after: _transforms(after),
                ("complexity", "energy"),
            ),
            Test(
                "a factor on loss and penalty",
                "the free entropy at rescaled order parameters takes the factor, as symbols",
                lambda before, _after: _scales(before["Phi"], p),
                ("training_loss",),
            ),
            Test(
                "energy off the saddle",
                "training loss minus energy is a sum of conditions, each of which vanishes at the saddle, exactly",
                lambda before, after: _energy_holds(before["Phi"], after, p),
                ("training_loss", "energy", "dPhi_dy"),
            ),
        ),
    )


def parisi_slope(phi: sp.Expr, p: Broken) -> sp.Expr:
    """d Phi / d y at given overlaps and conjugates."""
    total: sp.Expr = sp.Integer(0)
    for term in sp.Add.make_args(phi):
        if not term.has(parisi):
            continue
        coefficient, average = split_average(term)
        inside = sp.Add(*[_slope(part, p) for part in sp.Add.make_args(average.summand)])
        total += coefficient * Average(average.kind, inside)
    return total


def _slope(term: sp.Expr, p: Broken) -> sp.Expr:
    """Of number(y) f(y), f a trace, a log determinant or log E exp(y h), whose slope is the tilted average of h."""
    factors = [a for a in sp.Mul.make_args(term) if isinstance(a, sp.Trace | LogDet | sp.log)]
    if not factors:
        raise TypeError(f"no rule for the derivative of {term} in the Parisi parameter")
    (factor,) = factors
    number = term / factor
    total = number.diff(parisi) * factor
    if not factor.has(parisi):
        return total
    if isinstance(factor, sp.log):
        kind = TILTED if factor.has(p.moreau) else ROW_TILTED
        return total + number * Average(kind, factor.args[0].summand.args[0].diff(parisi))
    # y stands beside Q_Delta in the resolvent, as its factor: - y Q_Delta.
    change = scalars_out(sp.Trace(matrix_gradient(factor, p.Q_Delta, p) * p.Q_Delta)) / parisi
    return total + sp.expand(number * change)


def training_loss(phi: sp.Expr, p: Broken) -> sp.Expr:
    """-d Phi / dc for c loss and c penalty, at fixed order parameters: loss and penalty of the states that dominate."""
    total: sp.Expr = p.alpha * Average(CHANNEL, Average(TILTED, p.loss))
    (potential,) = [a.summand for a in phi.atoms(Average) if a.kind == COORDINATE]
    rows = Average(ROW_TILTED, PENALTY)
    if not potential.has(p.envelope):  # c Lambda instead of Lambda
        rows = scalars_out(-sp.Trace(p.Lambda * matrix_gradient(potential, p.Lambda, p)))
    total += Average(COORDINATE, rows)
    return total + sp.Trace(p.phi.T * p.Kappa * p.phi) / 2 if p.trained else total


# --- checks -----------------------------------------------------------------------------------------------------------


def _slope_holds(phi: sp.Expr, after: Expressions, p: Broken) -> bool:
    own, y, ridge = example("Parisi parameter"), sp.Rational(2, 7), not phi.has(p.envelope)
    found = slope(phi, lambda epsilon: {**own, parisi.name: y + epsilon}, ridge, p)
    return vanishes(found - solvable_blocks(own, ridge, p)(after["dPhi_dy"]))


def _transforms(after: Expressions) -> bool:
    """Sigma(e) = a - (e - b)^2 / (2 c): y Phi(y) is the maximum of Sigma(e) - y e, and e where it lies."""
    a, b, c = sp.symbols("a b c", positive=True)
    complexity = a - (ENERGY - b) ** 2 / (2 * c)
    (where,) = sp.solve((complexity - parisi * ENERGY).diff(ENERGY), ENERGY)
    phi = (complexity - parisi * ENERGY).subs(ENERGY, where) / parisi
    known = {sp.Symbol("Phi"): phi, sp.Symbol("dPhi_dy"): phi.diff(parisi)}
    energy, entropy = (after[name].xreplace(known) for name in ("energy", "complexity"))
    return sp.simplify(energy - where) == 0 and sp.simplify(entropy - complexity.subs(ENERGY, where)) == 0


def _scales(phi: sp.Expr, p: Broken) -> bool:
    """c is written beta: y falls as 1/c, so that y M stays where M takes the factor."""
    scaling = {**rescaling(p), p.Lambda: beta * p.Lambda, p.Kappa: beta * p.Kappa, parisi: parisi / beta}
    objective = minimum(p).xreplace({**scaling, p.loss: beta * p.loss})
    if not same(objective, beta * minimum(p), p):
        return False
    extrema = {p.moreau: beta * p.moreau, p.envelope: beta * p.envelope}
    return same(phi.xreplace({**scaling, **extrema}), beta * phi, p)


def _energy_holds(phi: sp.Expr, after: Expressions, p: Broken) -> bool:
    """With degree k_A of A under the scaling, e_t + Phi + y dPhi/dy = sum_A k_A Tr[A^T dPhi/dA], off the saddle."""
    own = example("energy of blocks")
    at = solvable_blocks(own, not phi.has(p.envelope), p)
    degrees = {p.V: -1, p.V_hat: 1, p.q_hat: 2, p.Delta_hat: 2, p.m_hat: 1, p.theta_hat: 1}  # the others do not scale
    conditions: sp.Expr = sp.Integer(0)
    for matrix, degree in degrees.items():
        conditions += degree * sp.trace(own[matrix.name].T * at(gradient(phi, matrix, p)))
    known: dict[Any, Any] = {sp.Symbol("Phi"): at(phi), sp.Symbol("dPhi_dy"): at(after["dPhi_dy"])}
    energy = at(after["energy"]).xreplace(known)
    return bool(abs(sp.N(at(after["training_loss"]) - energy - conditions, 40)) < sp.Float("1e-30"))
