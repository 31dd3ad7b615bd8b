"""Step 9 with one step of breaking: the derivative in the Parisi parameter, complexity and energy of the states.

The equations are docs/theory.md (18.18) to (18.20).
"""

from __future__ import annotations

from typing import Any

import sympy as sp

from ...calculus.averages import Average
from ...theory.free_entropy import split_coefficient_and_average
from ..algebra.levels import ROW_TILTED, TILTED, ReplicaBreakingSymbols, parisi
from ..algebra.objects import LogDet, factor_out_scalars, matrix_gradient
from ..algebra.step import Expressions, Step, declare_test
from .ansatz import random_cluster_matrices
from .breaking_saddle import free_entropy_gradient, is_negligible, numerical_free_entropy_derivative
from .saddle import check_scaling_of_free_entropy, training_loss, values_for_quadratic_model

# Energy e of metastable states per dimension, on which their complexity depends.
ENERGY = sp.Symbol("energy", real=True)


def complexity_step(p: ReplicaBreakingSymbols, zero: Expressions) -> Step:
    """Return derivation step 9: the derivative in the Parisi parameter, complexity, energy and training loss.

    A factor on loss and penalty gives the energy.

    Args:
        p: symbols of the order parameters.
        zero: results of step 7, the limit of zero temperature.
    """
    phi = zero["Phi"]
    change = parisi_derivative(phi, p)
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
        (_check_parisi_derivative(p), _check_legendre_transform(), check_scaling_of_free_entropy(p), _check_energy(p)),
    )


def parisi_derivative(phi: sp.Expr, p: ReplicaBreakingSymbols) -> sp.Expr:
    """Return the derivative of the free entropy in the Parisi parameter, at given overlaps and conjugates.

    Args:
        phi: free entropy at zero temperature, from step 7.
        p: symbols of the order parameters.
    """
    total: sp.Expr = sp.Integer(0)
    for term in sp.Add.make_args(phi):
        if not term.has(parisi):
            continue
        coefficient, average = split_coefficient_and_average(term)
        inside = sp.Add(*[_derivative_of_term_in_y(part, p) for part in sp.Add.make_args(average.summand)])
        total += coefficient * Average(average.kind, inside)
    return total


def _derivative_of_term_in_y(term: sp.Expr, p: ReplicaBreakingSymbols) -> sp.Expr:
    """Return the derivative of one term of Phi in the Parisi parameter y.

    The term is a number times a trace, a log determinant or log E exp(y h), whose derivative is < h >.
    """
    (factor,) = [a for a in sp.Mul.make_args(term) if isinstance(a, sp.Trace | LogDet | sp.log)]
    number = term / factor
    total = number.diff(parisi) * factor
    if not factor.has(parisi):
        return total
    if isinstance(factor, sp.log):
        kind = TILTED if factor.has(p.moreau) else ROW_TILTED
        return total + number * Average(kind, factor.args[0].summand.args[0].diff(parisi))
    # y is a factor of Q_Delta in the resolvent: - y Q_Delta.
    change = factor_out_scalars(sp.Trace(matrix_gradient(factor, p.Q_Delta, p) * p.Q_Delta)) / parisi
    return total + sp.expand(number * change)


# --- checks -----------------------------------------------------------------------------------------------------------


@declare_test(
    "slope in the Parisi parameter",
    "the derivative of the free entropy at given order parameters, for a square loss and a quadratic penalty, "
    "s = t = 2, by differences to 20 digits",
    ("dPhi_dy",),
)
def _check_parisi_derivative(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    phi, own, y = before["Phi"], random_cluster_matrices("Parisi parameter"), sp.Rational(2, 7)
    found = numerical_free_entropy_derivative(phi, lambda epsilon: {**own, parisi.name: y + epsilon}, p)
    return is_negligible(found - values_for_quadratic_model(own, phi, p)(after["dPhi_dy"]))


@declare_test(
    "Legendre transform",
    "the free entropy of a complexity that is quadratic in the energy gives it back, with the energy, as symbols",
    ("complexity", "energy"),
)
def _check_legendre_transform(_before: Expressions, after: Expressions) -> bool:
    """Return whether energy and complexity are recovered from the free entropy of a quadratic complexity.

    For Sigma(e) = a - (e - b)^2 / (2 c), y Phi(y) is the maximum of Sigma(e) - y e over the energies e.
    """
    a, b, c = sp.symbols("a b c", positive=True)
    complexity = a - (ENERGY - b) ** 2 / (2 * c)
    (where,) = sp.solve((complexity - parisi * ENERGY).diff(ENERGY), ENERGY)
    phi = (complexity - parisi * ENERGY).subs(ENERGY, where) / parisi
    known = {sp.Symbol("Phi"): phi, sp.Symbol("dPhi_dy"): phi.diff(parisi)}
    energy, entropy = (after[name].xreplace(known) for name in ("energy", "complexity"))
    return sp.simplify(energy - where) == 0 and sp.simplify(entropy - complexity.subs(ENERGY, where)) == 0


@declare_test(
    "energy off the saddle",
    "training loss minus energy is a sum of conditions, each of which vanishes at the saddle, exactly",
    ("training_loss", "energy", "dPhi_dy"),
)
def _check_energy(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    """Return whether training loss minus energy is a sum of saddle-point conditions, at a point off the saddle.

    Training loss + Phi + y dPhi/dy is sum_A k_A Tr[A^T dPhi/dA] over the order parameters A, which scale like the power
    k_A of a factor on loss and penalty; y is the Parisi parameter.
    """
    phi, own = before["Phi"], random_cluster_matrices("energy of blocks")
    at = values_for_quadratic_model(own, phi, p)
    degrees = {p.V: -1, p.V_hat: 1, p.q_hat: 2, p.Delta_hat: 2, p.m_hat: 1, p.theta_hat: 1}  # the others do not scale
    conditions = sp.Add(
        *[k * sp.trace(own[A.name].T * at(free_entropy_gradient(phi, A, p))) for A, k in degrees.items()]
    )
    known: dict[Any, Any] = {sp.Symbol("Phi"): at(phi), sp.Symbol("dPhi_dy"): at(after["dPhi_dy"])}
    energy = at(after["energy"]).xreplace(known)
    return bool(abs(sp.N(at(after["training_loss"]) - energy - conditions, 40)) < sp.Float("1e-30"))
