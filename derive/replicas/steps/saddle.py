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
from ..algebra.exact import ExactValues, NormalLaw, RandomRationals, is_exactly_zero
from ..algebra.levels import ReplicaBreakingSymbols, replica_block_ansatz, tilt_exponents, tilted_averages
from ..algebra.objects import beta, extract_scalars, is_equal_up_to_trace_cycles, matrix_gradient
from ..algebra.step import Expressions, Step, StepTest, declare_test
from .action import PENALTY
from .ansatz import context_independent_values, field_laws, random_context_matrices
from .zero_temperature import growth_exponents_in_beta, minimised_objective


def saddle_point_step(p: ReplicaBreakingSymbols, zero: Expressions) -> Step:
    """Return step 8: derivatives in all eight matrices, and in a factor of loss and penalty for the training loss.

    Args:
        p: symbols.
        zero: results of step 7.
    """
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
            *[_saddle_point_condition_test(source, solved_variable(source, p), p) for source in sources],
            *([_check_trained_parameter_condition(p)] if p.trained else []),
            check_scaling_of_free_entropy(p),
            _check_training_loss(p),
        ),
    )


def training_loss(phi: sp.Expr, p: ReplicaBreakingSymbols) -> sp.Expr:
    """Return -d Phi / dc for c loss and c penalty at fixed order parameters: alpha E[loss] + E[r(w)], at the minima.

    With blocks these are averages with the weight of the states that dominate.

    Args:
        phi: free entropy of step 7.
        p: symbols.
    """
    potential = entropic_potential(FreeEntropy(phi, p))
    loss, rows = (tilt.mean(value) for tilt, value in zip(tilted_averages(p), (p.loss, PENALTY), strict=True))
    if not potential.has(p.envelope):  # c Lambda instead of Lambda
        rows = extract_scalars(-sp.Trace(p.Lambda * matrix_gradient(potential, p.Lambda, p)))
    total = p.alpha * Average(CHANNEL, loss) + Average(COORDINATE, rows)
    return total + sp.Trace(p.phi.T * p.Kappa * p.phi) / 2 if p.trained else total


@declare_test(
    "a factor on loss and penalty",
    "the free entropy at rescaled order parameters takes the factor, as symbols",
    ("training_loss",),
)
def check_scaling_of_free_entropy(before: Expressions, _after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    """Check that Phi is multiplied by a factor c, written beta; M and N scale because their objectives do.

    A Parisi parameter y scales as 1/c, so that y M is unchanged when M has the factor.

    Args:
        before: input of the step.
        _after: not used.
        p: symbols.
    """
    scaling = {**growth_exponents_in_beta(p), p.Lambda: beta * p.Lambda, p.Kappa: beta * p.Kappa}
    scaling |= {rate: rate / beta for rate in p.rates}
    objective = minimised_objective(p).xreplace({**scaling, p.loss: beta * p.loss})
    extrema = {p.moreau: beta * p.moreau, p.envelope: beta * p.envelope}
    return is_equal_up_to_trace_cycles(objective, beta * minimised_objective(p), p) and is_equal_up_to_trace_cycles(
        before["Phi"].xreplace({**scaling, **extrema}), beta * before["Phi"], p
    )


# --- a square loss and a quadratic penalty: every average is exact ----------------------------------------------------


@cache
def _quadratic_model(size: int) -> dict[str, sp.Matrix]:
    """Return K, E, H, eta, c of 1/2 (x - E Y)^T K (x - E Y) + 1/2 Tr[H q] + eta^T phi and 1/2 w^T Lambda w + c^T w."""
    source = RandomRationals("quadratic")
    names = {"K": source.draw_spd_matrix(size), "E": source.draw_matrix(size, size), "c": source.draw_matrix(size, 1)}
    return {**names, "H": source.draw_symmetric_matrix(size), "eta": source.draw_matrix(size, 1)}


def quadratic_model_values(own: dict[str, Any], phi: sp.Expr, p: ReplicaBreakingSymbols) -> ExactValues:
    """Return the values of everything in Phi and its conditions for a square loss and a quadratic penalty.

    Prox: x = omega + V g, g = -(V + K^{-1})^{-1} (omega - E Y); w = (Lambda + G)^{-1} (b - c). With blocks the tilted
    laws are normal, with the weights that Phi contains.

    Args:
        own: matrices of one context.
        phi: free entropy.
        p: symbols.
    """
    size, ridge = own["q"].rows, not phi.has(p.envelope)
    known = _quadratic_model(size)
    shift = known["c"] * (0 if ridge else 1)
    values = {**context_independent_values("solvable", [own], size), **own}
    ansatz = replica_block_ansatz(p)
    outermost = ansatz.levels[0]
    # Terms of the loss that do not depend on the fields.
    self_overlap = sum((values[Delta.name] for Delta in p.symbols_by_breaking_step("Delta")), values["q"])
    extra_loss = sp.trace(known["H"] * self_overlap) / 2 if p.loss_depends_on_q else sp.Integer(0)
    extra_loss += (known["eta"].T * values["phi"])[0] if p.trained else 0
    stiffness = (values["V"] + known["K"].inv()).inv()
    resolvent = (values["Lambda"] + values["G"]).inv()

    def exponentially_tilted_law(kind: str, exponent: sp.Expr) -> Callable[[ExactValues], NormalLaw]:
        """Return the tilted law of a kind of average.

        Args:
            kind: kind of the average without the tilt.
            exponent: exponent of its weight.
        """
        return lambda at: field_laws(ansatz)[kind](at).exponentially_tilted_law(exponent, at)

    def _field_residual(at: ExactValues, copy: str = "") -> sp.Matrix:
        """Return omega - E Y.

        Args:
            at: values.
            copy: suffix of a replica.
        """
        return at.values[f"omega{copy}"] - known["E"] * at.values["Y"]

    def field_value(at: ExactValues, copy: str = "") -> sp.Matrix:
        """Return g.

        Args:
            at: values.
            copy: suffix of a replica.
        """
        return -stiffness * _field_residual(at, copy)

    def row_value(at: ExactValues, copy: str = "") -> sp.Matrix:
        """Return w.

        Args:
            at: values.
            copy: suffix of a replica.
        """
        return resolvent * (at.values[f"b{copy}"] - shift)

    def half_form(vector: sp.Matrix, matrix: sp.Matrix) -> sp.Expr:
        """Return half a quadratic form.

        Args:
            vector: its vector.
            matrix: its matrix.
        """
        return (vector.T * matrix * vector)[0] / 2

    values |= {
        "g": field_value,
        "w": row_value,
        "M": lambda at, _: half_form(_field_residual(at), stiffness) + extra_loss,
        "N": lambda at, _: half_form(at.values["b"] - shift, resolvent),
        "loss": lambda at, _: half_form(_field_residual(at) + values["V"] * field_value(at), known["K"]) + extra_loss,
        "penalty": lambda at, _: half_form(row_value(at), values["Lambda"]) + (shift.T * row_value(at))[0],
        "domega": lambda at, _: at.values[outermost.field.name] - values["m"],
        "dY": lambda at, _: at.values["Y"] - values["m_star"],
        "Kappa": values["rho_star"],
        "loss_q": known["H"] / 2,
        "loss_phi": known["eta"],
    }
    of_fields: dict[str, Any] = field_laws(ansatz)
    values |= {y.name: own.get(y.name, sp.Rational(2 + k, 7)) for k, y in enumerate(p.rates)}
    blocks = ansatz.levels[1:]
    plain = [level.channel for level in blocks], [level.rows for level in blocks]
    for tilt, kinds, exponents in zip(tilted_averages(p), plain, tilt_exponents(p), strict=True):
        of_fields |= {
            own: exponentially_tilted_law(kind, exponents[own]) for own, kind in zip(tilt.kinds, kinds, strict=True)
        }
    if not ridge:
        of_fields[COORDINATE] = of_fields[outermost.rows]
    return ExactValues(values, laws=of_fields)


def order_parameter_in_words(matrix: sp.MatrixSymbol) -> str:
    """Return the name of an order parameter in words."""
    stem = matrix.name.removesuffix("_hat")
    return stem if stem == matrix.name else f"conjugate {stem}"


def solved_variable(source: sp.MatrixSymbol, p: ReplicaBreakingSymbols) -> sp.MatrixSymbol:
    """Return the order parameter that a condition is solved for.

    q and V belong to each other's conjugate, the others to their own.

    Args:
        source: variable of the derivative.
        p: symbols.
    """
    crossed = {p.q: p.V_hat, p.V: p.q_hat, p.q_hat: p.V, p.V_hat: p.q}
    own = {z: sp.MatrixSymbol(f"{z.name}_hat", *z.shape) for z in (*p.symbols_by_breaking_step("Delta"), p.m, p.theta)}
    return (crossed | own | {hat: z for z, hat in own.items()})[source]


def _saddle_point_condition_test(
    source: sp.MatrixSymbol, target: sp.MatrixSymbol, p: ReplicaBreakingSymbols
) -> StepTest:
    epsilon = sp.Symbol("epsilon")
    return StepTest(
        f"condition for {order_parameter_in_words(target)}",
        "the derivative of the free entropy in the conjugate matrix along a direction at random, at the given right "
        "side, for a square loss and a quadratic penalty, s = t = 2, exactly",
        lambda before, after: is_exactly_zero(
            _derivative_along_path(
                before["Phi"],
                displacement_path(before["Phi"], after, source, (target.name,), p)(epsilon),
                source,
                epsilon,
                p,
            )
        ),
        (target.name,),
    )


def displacement_path(
    phi: sp.Expr, after: Expressions, source: sp.MatrixSymbol, targets: tuple[str, ...], p: ReplicaBreakingSymbols
) -> Callable[[sp.Expr], dict[str, Any]]:
    """Return a function of epsilon that gives explicit matrices.

    Targets are at the right sides of their conditions; the source is displaced by epsilon along a random direction.

    Args:
        phi: free entropy.
        after: results of the step.
        source: variable of the derivative.
        targets: names of the order parameters at the right sides.
        p: symbols.
    """
    own, symmetric = random_context_matrices("blocks"), {z.name for z in p.symmetric_matrices}
    at = quadratic_model_values(own, phi, p)
    values = {name: at(after[name]) for name in targets}
    values = {name: (value + value.T) / 2 if name in symmetric else value for name, value in values.items()}
    direction = RandomRationals(source.name).draw_matrix(*own[source.name].shape)
    direction = direction + direction.T if source in p.symmetric_matrices else direction
    return lambda epsilon: {**own, **values, source.name: own[source.name] + epsilon * direction}


@declare_test(
    "condition for the trained numbers",
    "the derivative of Phi in each of them, for a loss linear in them, exactly",
    ("trained",),
)
def _check_trained_parameter_condition(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    phi, own, epsilon = before["Phi"], random_context_matrices("conditions"), sp.Symbol("epsilon")
    gradient, start = quadratic_model_values(own, phi, p)(after["trained"]), own["phi"]
    for i in range(start.rows):
        moved = {**own, "phi": start + epsilon * sp.eye(start.rows)[:, i]}
        if not is_exactly_zero(_derivative_along_path(phi, moved, p.phi, epsilon, p) - gradient[i]):
            return False
    return True


def _derivative_along_path(
    phi: sp.Expr, moved: dict[str, Any], source: Any, epsilon: sp.Symbol, p: ReplicaBreakingSymbols
) -> sp.Expr:
    """Return d/d epsilon of the terms of Phi that contain the source, by itself or in a law or composite."""
    at = quadratic_model_values(moved, phi, p)
    inside = COORDINATE if source in p.conjugates else CHANNEL
    terms = [a for a in sp.Add.make_args(phi) if {z.kind for z in a.atoms(Average)} <= {CONTEXTS, inside}]
    return sp.Add(*[at(term).diff(epsilon).subs(epsilon, 0) for term in terms])


@declare_test(
    "training loss off the saddle",
    "training loss plus free entropy is a sum of conditions, each of which vanishes at the saddle, exactly",
)
def _check_training_loss(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    """Compare with the conditions at a point that is no saddle.

    With degree k_A of A under the scaling, e_t + Phi = sum_A k_A Tr[A^T dPhi/dA].
    """
    phi, own = before["Phi"], random_context_matrices("training loss")
    at = quadratic_model_values(own, phi, p)
    # dPhi/dA = number * (partner - value), the number from the trace term of the two; q, m and theta do not scale.
    factors = {
        (p.V, p.q_hat): sp.Rational(1, 2),
        (p.V_hat, p.q): sp.Rational(1, 2),
        (p.q_hat, p.V): -1,
        (p.m_hat, p.m): -1,
        (p.theta_hat, p.theta): -1,
    }
    conditions = sp.Add(*[
        factor * sp.trace(own[matrix.name].T * (own[solved_variable.name] - at(after[solved_variable.name])))
        for (matrix, solved_variable), factor in factors.items()
    ])  # fmt: skip
    return is_exactly_zero(at(after["training_loss"]) + at(phi) - conditions)
