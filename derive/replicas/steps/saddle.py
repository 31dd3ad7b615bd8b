"""Step 8: the saddle point by differentiation, and the training loss at it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import sympy as sp

from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average
from ...theory.free_entropy import FreeEntropy
from ...theory.saddle_point import saddle_point
from ...theory.stability import entropic_potential
from ..algebra.exact import Law, Source, Values, is_zero
from ..algebra.levels import Broken, in_blocks, tilts, weights
from ..algebra.objects import beta, matrix_gradient, same, scalars_out
from ..algebra.step import Expressions, Step, Test, declare_test
from .action import PENALTY
from .ansatz import example, laws, shared
from .zero_temperature import minimum, rescaling


def step(p: Broken, zero: Expressions) -> Step:
    """Differentiate in all eight matrices; in a factor of loss and penalty for the training loss."""
    saddle, sources = saddle_point(FreeEntropy(zero["Phi"], p)), (p.V, p.q, p.m, p.theta, *p.conjugates)
    after: dict[str, Any] = {equation.target.name: equation.value for equation in saddle.equations}
    if saddle.trained is not None:
        after["trained"] = saddle.trained
    return Step(
        8,
        "Saddle point and training loss",
        dict(zero),
        {**after, "training_loss": training_loss(zero["Phi"], p)},
        "The derivatives of the free entropy vanish: envelope theorem for the variance, mean rule for the means, "
        "Price's theorem for covariances, the chain rule for the conjugates; Stein's lemma removes derivatives of the "
        "field. A factor on loss and penalty is undone by the rescaling of step 7, so that it multiplies the "
        "extremum; the slope in this factor is minus the training loss by the envelope theorem, which therefore is "
        "minus the free entropy.",
        "arXiv 2402.03902, Appendix C, eq. C.9; R. Price, IRE Trans. Inf. Theory 4, 69 (1958); "
        "C. M. Stein, Ann. Statist. 9, 1135 (1981)",
        (
            *[_condition_test(source, partner(source, p), p) for source in sources],
            *([_trained_vanishes(p)] if p.trained else []),
            takes_a_factor(p),
            _training_loss_holds(p),
        ),
    )


def training_loss(phi: sp.Expr, p: Broken) -> sp.Expr:
    """Return -d Phi / dc for c loss and c penalty at fixed order parameters: alpha E[loss] + E[r(w)], at the minima.

    With blocks these are averages with the weight of the states that dominate.
    """
    potential = entropic_potential(FreeEntropy(phi, p))
    loss, rows = (tilt.mean(value) for tilt, value in zip(tilts(p), (p.loss, PENALTY), strict=True))
    if not potential.has(p.envelope):  # c Lambda instead of Lambda
        rows = scalars_out(-sp.Trace(p.Lambda * matrix_gradient(potential, p.Lambda, p)))
    total = p.alpha * Average(CHANNEL, loss) + Average(COORDINATE, rows)
    return total + sp.Trace(p.phi.T * p.Kappa * p.phi) / 2 if p.trained else total


@declare_test(
    "a factor on loss and penalty",
    "the free entropy at rescaled order parameters takes the factor, as symbols",
    ("training_loss",),
)
def takes_a_factor(before: Expressions, _after: Expressions, p: Broken) -> bool:
    """Check that Phi takes the factor c, written beta; M and N scale because what they are extrema of does.

    A Parisi parameter y falls as 1/c, so that y M stays where M takes the factor.
    """
    scaling = {**rescaling(p), p.Lambda: beta * p.Lambda, p.Kappa: beta * p.Kappa}
    scaling |= {rate: rate / beta for rate in p.rates}
    objective = minimum(p).xreplace({**scaling, p.loss: beta * p.loss})
    extrema = {p.moreau: beta * p.moreau, p.envelope: beta * p.envelope}
    return same(objective, beta * minimum(p), p) and same(
        before["Phi"].xreplace({**scaling, **extrema}), beta * before["Phi"], p
    )


# --- a square loss and a quadratic penalty: every average is exact ----------------------------------------------------


@cache
def _quadratic(size: int) -> dict[str, sp.Matrix]:
    """1/2 (x - E Y)^T K (x - E Y) + 1/2 Tr[H q] + eta^T phi and 1/2 w^T Lambda w + c^T w: K, E, H, eta, c."""
    source = Source("quadratic")
    names = {"K": source.positive(size), "E": source.matrix(size, size), "c": source.matrix(size, 1)}
    return {**names, "H": source.symmetric(size), "eta": source.matrix(size, 1)}


def solvable(own: dict[str, Any], phi: sp.Expr, p: Broken) -> Values:
    """Return the values of everything in Phi and its conditions, in terms of one context's matrices.

    Prox: x = omega + V g, g = -(V + K^{-1})^{-1} (omega - E Y); w = (Lambda + G)^{-1} (b - c). With blocks the tilted
    laws are normal, their weights those of Phi.
    """
    size, ridge = own["q"].rows, not phi.has(p.envelope)
    known = _quadratic(size)
    shift = known["c"] * (0 if ridge else 1)
    values = {**own, **{name: value for name, value in shared("solvable", [own], size).items() if name not in own}}
    ansatz = in_blocks(p)
    outermost = ansatz.levels[0]
    # What the loss holds beside the fields, where it does.
    self_overlap = sum((values[Delta.name] for Delta in p.of_steps("Delta")), values["q"])
    beside = sp.trace(known["H"] * self_overlap) / 2 if p.loss_holds_q else sp.Integer(0)
    beside += (known["eta"].T * values["phi"])[0] if p.trained else 0
    stiffness = (values["V"] + known["K"].inv()).inv()
    resolvent = (values["Lambda"] + values["G"]).inv()

    def tilted(kind: str, exponent: sp.Expr) -> Callable[[Values], Law]:
        return lambda at: laws(ansatz)[kind](at).tilted(exponent, at)

    def error(at: Values, copy: str = "") -> sp.Matrix:
        return at.values[f"omega{copy}"] - known["E"] * at.values["Y"]

    def field(at: Values, copy: str = "") -> sp.Matrix:
        return -stiffness * error(at, copy)

    def row(at: Values, copy: str = "") -> sp.Matrix:
        return resolvent * (at.values[f"b{copy}"] - shift)

    def half(vector: sp.Matrix, matrix: sp.Matrix) -> sp.Expr:
        return (vector.T * matrix * vector)[0] / 2

    values |= {
        "g": field,
        "w": row,
        "M": lambda at, _: half(error(at), stiffness) + beside,
        "N": lambda at, _: half(at.values["b"] - shift, resolvent),
        "loss": lambda at, _: half(error(at) + values["V"] * field(at), known["K"]) + beside,
        "penalty": lambda at, _: half(row(at), values["Lambda"]) + (shift.T * row(at))[0],
        "domega": lambda at, _: at.values[outermost.field.name] - values["m"],
        "dY": lambda at, _: at.values["Y"] - values["m_star"],
        "Kappa": values["rho_star"],
        "loss_q": known["H"] / 2,
        "loss_phi": known["eta"],
    }
    of_fields: dict[str, Any] = laws(ansatz)
    values |= {y.name: own.get(y.name, sp.Rational(2 + k, 7)) for k, y in enumerate(p.rates)}
    blocks = ansatz.levels[1:]
    plain = [level.channel for level in blocks], [level.rows for level in blocks]
    for tilt, kinds, exponents in zip(tilts(p), plain, weights(p), strict=True):
        of_fields |= {own: tilted(kind, exponents[own]) for own, kind in zip(tilt.kinds, kinds, strict=True)}
    if not ridge:
        of_fields[COORDINATE] = of_fields[outermost.rows]
    return Values(values, laws=of_fields)


def spoken(matrix: sp.MatrixSymbol) -> str:
    """Return the name of an order parameter in words."""
    stem = matrix.name.removesuffix("_hat")
    return stem if stem == matrix.name else f"conjugate {stem}"


def partner(source: sp.MatrixSymbol, p: Broken) -> sp.MatrixSymbol:
    """Return what a condition is solved for: q and V go with each other's conjugate, the others with their own."""
    crossed = {p.q: p.V_hat, p.V: p.q_hat, p.q_hat: p.V, p.V_hat: p.q}
    own = {z: sp.MatrixSymbol(f"{z.name}_hat", *z.shape) for z in (*p.of_steps("Delta"), p.m, p.theta)}
    return (crossed | own | {hat: z for z, hat in own.items()})[source]


def _condition_test(source: sp.MatrixSymbol, target: sp.MatrixSymbol, p: Broken) -> Test:
    epsilon = sp.Symbol("epsilon")
    return Test(
        f"condition for {spoken(target)}",
        "the derivative of the free entropy in the conjugate matrix along a direction at random, at the given right "
        "side, for a square loss and a quadratic penalty, s = t = 2, exactly",
        lambda before, after: is_zero(
            _slope(before["Phi"], moved(before["Phi"], after, source, (target.name,), p)(epsilon), source, epsilon, p)
        ),
        (target.name,),
    )


def moved(
    phi: sp.Expr, after: Expressions, source: sp.MatrixSymbol, targets: tuple[str, ...], p: Broken
) -> Callable[[sp.Expr], dict[str, Any]]:
    """Return a function of epsilon that gives explicit matrices.

    Targets are at the right sides of their conditions, the source is moved by epsilon along a direction at random.
    """
    own, symmetric = example("blocks"), {z.name for z in p.symmetric}
    at = solvable(own, phi, p)
    values = {name: at(after[name]) for name in targets}
    values = {name: (value + value.T) / 2 if name in symmetric else value for name, value in values.items()}
    direction = Source(source.name).matrix(*own[source.name].shape)
    direction = direction + direction.T if source in p.symmetric else direction
    return lambda epsilon: {**own, **values, source.name: own[source.name] + epsilon * direction}


@declare_test(
    "condition for the trained numbers",
    "the derivative of Phi in each of them, for a loss linear in them, exactly",
    ("trained",),
)
def _trained_vanishes(before: Expressions, after: Expressions, p: Broken) -> bool:
    phi, own, epsilon = before["Phi"], example("conditions"), sp.Symbol("epsilon")
    gradient, start = solvable(own, phi, p)(after["trained"]), own["phi"]
    for i in range(start.rows):
        moved = {**own, "phi": start + epsilon * sp.eye(start.rows)[:, i]}
        if not is_zero(_slope(phi, moved, p.phi, epsilon, p) - gradient[i]):
            return False
    return True


def _slope(phi: sp.Expr, moved: dict[str, Any], source: Any, epsilon: sp.Symbol, p: Broken) -> sp.Expr:
    """d/d epsilon of the terms of Phi in which the source stands, by itself or in a law or composite."""
    at = solvable(moved, phi, p)
    inside = COORDINATE if source in p.conjugates else CHANNEL
    terms = [a for a in sp.Add.make_args(phi) if {z.kind for z in a.atoms(Average)} <= {CONTEXTS, inside}]
    return sp.Add(*[at(term).diff(epsilon).subs(epsilon, 0) for term in terms])


@declare_test(
    "training loss off the saddle",
    "training loss plus free entropy is a sum of conditions, each of which vanishes at the saddle, exactly",
)
def _training_loss_holds(before: Expressions, after: Expressions, p: Broken) -> bool:
    """With degree k_A of A under the scaling, e_t + Phi = sum_A k_A Tr[A^T dPhi/dA]: here at a point off the saddle."""
    phi, own = before["Phi"], example("training loss")
    at = solvable(own, phi, p)
    # dPhi/dA = number * (partner - value), the number from the trace term of the two; q, m and theta do not scale.
    factors = {
        (p.V, p.q_hat): sp.Rational(1, 2),
        (p.V_hat, p.q): sp.Rational(1, 2),
        (p.q_hat, p.V): -1,
        (p.m_hat, p.m): -1,
        (p.theta_hat, p.theta): -1,
    }
    conditions = sp.Add(*[
        factor * sp.trace(own[matrix.name].T * (own[partner.name] - at(after[partner.name])))
        for (matrix, partner), factor in factors.items()
    ])  # fmt: skip
    return is_zero(at(after["training_loss"]) + at(phi) - conditions)
