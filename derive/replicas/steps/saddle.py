"""Step 8: the saddle point by differentiation, and the training loss at it."""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, Symbols, symmetrised, trace_gradient
from ...theory.free_entropy import FreeEntropy
from ...theory.saddle_point import SaddlePoint, saddle_point
from ...theory.stability import entropic_potential
from ..algebra.exact import Law, Source, Values, is_zero
from ..algebra.levels import Broken
from ..algebra.objects import beta, same, scalars_out
from ..algebra.step import Expressions, Step, Test
from .action import PENALTY
from .ansatz import example, shared
from .zero_temperature import minimum, rescaling


def step(p: Symbols, zero: Expressions) -> Step:
    """Differentiate in all eight matrices; in a factor of loss and penalty for the training loss."""
    phi = FreeEntropy(zero["Phi"], p)
    saddle = saddle_point(phi)
    after: dict[str, Any] = {equation.target.name: equation.value for equation in saddle.equations}
    if saddle.trained is not None:
        after["trained"] = saddle.trained
    return Step(
        8,
        "Saddle point and training loss",
        dict(zero),
        {**after, "training_loss": training_loss(phi)},
        "The derivatives of the free entropy vanish: envelope theorem for the variance, mean rule for the means, "
        "Price's theorem for covariances, the chain rule for the conjugates; Stein's lemma removes derivatives of the "
        "field. A factor on loss and penalty is undone by the rescaling of step 7, so that it multiplies the "
        "extremum; the slope in this factor is minus the training loss by the envelope theorem, which therefore is "
        "minus the free entropy.",
        "arXiv 2402.03902, Appendix C, eq. C.9; R. Price, IRE Trans. Inf. Theory 4, 69 (1958); "
        "C. M. Stein, Ann. Statist. 9, 1135 (1981)",
        (
            *[_condition_test(source, target, p) for source, target in partners(p)],
            *([_trained_test(p)] if p.trained else []),
            Test(
                "a factor on loss and penalty",
                "the free entropy at rescaled order parameters takes the factor, as symbols",
                lambda before, _after: _scales(before["Phi"], p),
                ("training_loss",),
            ),
            Test(
                "training loss off the saddle",
                "training loss plus free entropy is a sum of conditions, each of which vanishes at the saddle, exactly",
                lambda before, after: _training_loss_holds(before["Phi"], after, saddle),
            ),
        ),
    )


def training_loss(phi: FreeEntropy) -> sp.Expr:
    """-d Phi / dc for c loss and c penalty, at fixed order parameters: alpha E[loss] + E[r(w)], at the minima."""
    p, potential = phi.symbols, entropic_potential(phi)
    rows: sp.Expr = PENALTY
    if potential != p.envelope:  # c Lambda instead of Lambda
        gradient = symmetrised(trace_gradient(potential, p.Lambda, p), p)
        rows = scalars_out(-sp.Trace(p.Lambda * gradient))
    total = p.alpha * Average(CHANNEL, p.loss) + Average(COORDINATE, rows)
    return total + sp.Trace(p.phi.T * p.Kappa * p.phi) / 2 if p.trained else total


def _scales(phi: sp.Expr, p: Symbols) -> bool:
    """c is written beta; M and N scale because what they are extrema of does."""
    scaling = {**rescaling(p), p.Lambda: beta * p.Lambda, p.Kappa: beta * p.Kappa}
    objective = minimum(p).xreplace({**scaling, p.loss: beta * p.loss})
    if not same(objective, beta * minimum(p), p):
        return False
    extrema = {p.moreau: beta * p.moreau, p.envelope: beta * p.envelope}
    return same(phi.xreplace({**scaling, **extrema}), beta * phi, p)


# --- a square loss and a quadratic penalty: every average is exact ----------------------------------------------------


@cache
def _quadratic(size: int) -> dict[str, sp.Matrix]:
    """1/2 (x - E Y)^T K (x - E Y) + 1/2 Tr[H q] + eta^T phi and 1/2 w^T Lambda w + c^T w: K, E, H, eta, c."""
    source = Source("quadratic")
    names = {"K": source.positive(size), "E": source.matrix(size, size), "c": source.matrix(size, 1)}
    return {**names, "H": source.symmetric(size), "eta": source.matrix(size, 1)}


def solvable(own: dict[str, Any], ridge: bool, p: Symbols) -> Values:
    """Values of everything in Phi and its conditions, in terms of one context's matrices.

    Prox: x = omega + V g, g = -(V + K^{-1})^{-1} (omega - E Y); w = (Lambda + G)^{-1} (b - c).
    """
    size = own["q"].rows
    known = _quadratic(size)
    shift = known["c"] * (0 if ridge else 1)
    values = {**own, **{name: value for name, value in shared("solvable", [own], size).items() if name not in own}}
    # What the loss holds beside the fields, where it does.
    within = p.of_steps("Delta") if isinstance(p, Broken) else ()
    self_overlap = sum((values[Delta.name] for Delta in within), values["q"])
    beside = sp.trace(known["H"] * self_overlap) / 2 if p.loss_holds_q else sp.Integer(0)
    beside += (known["eta"].T * values["phi"])[0] if p.trained else 0
    stiffness = (values["V"] + known["K"].inv()).inv()
    resolvent = (values["Lambda"] + values["G"]).inv()

    def error(at: Values) -> sp.Matrix:
        return at.values["omega"] - known["E"] * at.values["Y"]

    def field(at: Values, _suffix: str = "") -> sp.Matrix:
        return -stiffness * error(at)

    def row(at: Values, _suffix: str = "") -> sp.Matrix:
        return resolvent * (at.values["b"] - shift)

    def half(vector: sp.Matrix, matrix: sp.Matrix) -> sp.Expr:
        return (vector.T * matrix * vector)[0] / 2

    values |= {
        "g": field,
        "w": row,
        "M": lambda at, _: half(error(at), stiffness) + beside,
        "N": lambda at, _: half(at.values["b"] - shift, resolvent),
        "loss": lambda at, _: half(error(at) + values["V"] * field(at), known["K"]) + beside,
        "penalty": lambda at, _: half(row(at), values["Lambda"]) + (shift.T * row(at))[0],
        "domega": lambda at, _: at.values["omega"] - values["m"],
        "dY": lambda at, _: at.values["Y"] - values["m_star"],
        "Kappa": values["rho_star"],
        "loss_q": known["H"] / 2,
        "loss_phi": known["eta"],
    }
    covariance = sp.Matrix.vstack(
        sp.Matrix.hstack(values["q"], values["theta"]), sp.Matrix.hstack(values["theta"].T, values["rho_star"])
    )
    laws = {CHANNEL: Law(("omega", "Y"), sp.Matrix.vstack(values["m"], values["m_star"]), covariance)}
    if not ridge:
        laws[COORDINATE] = Law(("b",), values["B"], values["Q"])
    return Values(values, laws=laws)


def _spoken(matrix: sp.MatrixSymbol) -> str:
    stem = matrix.name.removesuffix("_hat")
    return stem if stem == matrix.name else f"conjugate {stem}"


def partners(p: Symbols) -> list[tuple[sp.MatrixSymbol, sp.MatrixSymbol]]:
    """(the matrix in which Phi is differentiated, the one its condition determines)."""
    pairs = [(p.V, p.q_hat), (p.q, p.V_hat), (p.m, p.m_hat), (p.theta, p.theta_hat)]
    return pairs + [(target, source) for source, target in pairs]


def _condition_test(source: sp.MatrixSymbol, target: sp.MatrixSymbol, p: Symbols) -> Test:
    return Test(
        f"condition for {_spoken(target)}",
        "the derivative of the free entropy in the conjugate matrix along a direction at random, at the given right "
        "side, for a square loss and a quadratic penalty, s = t = 2, exactly",
        lambda before, after: _vanishes(before["Phi"], after, source, target, p),
        (target.name,),
    )


def _trained_test(p: Symbols) -> Test:
    return Test(
        "condition for the trained numbers",
        "the derivative of Phi in each of them, for a loss linear in them, exactly",
        lambda before, after: _trained_vanishes(before["Phi"], after, p),
        ("trained",),
    )


def _vanishes(phi: sp.Expr, after: Expressions, source: Any, target: Any, p: Symbols) -> bool:
    own, epsilon = example("conditions"), sp.Symbol("epsilon")
    at = solvable(own, not phi.has(p.envelope), p)
    value, direction = at(after[target.name]), Source(source.name).matrix(*own[source.name].shape)
    if source in p.symmetric:
        value, direction = (value + value.T) / 2, direction + direction.T
    moved = {**own, target.name: value, source.name: own[source.name] + epsilon * direction}
    return is_zero(_slope(phi, moved, source, epsilon, p))


def _trained_vanishes(phi: sp.Expr, after: Expressions, p: Symbols) -> bool:
    own, epsilon = example("conditions"), sp.Symbol("epsilon")
    gradient, start = solvable(own, not phi.has(p.envelope), p)(after["trained"]), own["phi"]
    for i in range(start.rows):
        moved = {**own, "phi": start + epsilon * sp.eye(start.rows)[:, i]}
        if not is_zero(_slope(phi, moved, p.phi, epsilon, p) - gradient[i]):
            return False
    return True


def _slope(phi: sp.Expr, moved: dict[str, Any], source: Any, epsilon: sp.Symbol, p: Symbols) -> sp.Expr:
    """d/d epsilon of the terms of Phi in which the source stands, by itself or in a law or composite."""
    at = solvable(moved, not phi.has(p.envelope), p)
    inside = COORDINATE if source in p.conjugates else CHANNEL
    terms = [a for a in sp.Add.make_args(phi) if {z.kind for z in a.atoms(Average)} <= {CONTEXTS, inside}]
    return sp.Add(*[at(term).diff(epsilon).subs(epsilon, 0) for term in terms])


def _training_loss_holds(phi: sp.Expr, after: Expressions, saddle: SaddlePoint) -> bool:
    """With degree k_A of A under the scaling, e_t + Phi = sum_A k_A Tr[A^T dPhi/dA]: here at a point off the saddle."""
    p, own = saddle.symbols, example("training loss")
    at = solvable(own, not phi.has(p.envelope), p)
    degrees = {p.V: -1, p.V_hat: 1, p.q_hat: 2, p.m_hat: 1, p.theta_hat: 1}  # q, m and theta do not scale
    # dPhi/dA = number * (partner - value), the number from the trace term of the two.
    partners = {
        p.V: (p.q_hat, -1),
        p.V_hat: (p.q, 1),
        p.q_hat: (p.V, -1),
        p.m_hat: (p.m, -2),
        p.theta_hat: (p.theta, -2),
    }
    conditions: sp.Expr = sp.Integer(0)
    for matrix, (partner, twice) in partners.items():
        gap = own[partner.name] - at(after[partner.name])
        conditions += sp.Rational(twice, 2) * degrees[matrix] * sp.trace(own[matrix.name].T * gap)
    return is_zero(at(after["training_loss"]) + at(phi) - conditions)
