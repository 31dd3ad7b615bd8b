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
from ..algebra.levels import ReplicaBreakingSymbols, exponents_of_tilted_averages, replica_block_ansatz, tilted_averages
from ..algebra.objects import beta, factor_out_scalars, is_equal_up_to_trace_cycles, matrix_gradient
from ..algebra.step import Expressions, Step, StepTest, declare_test
from .action import PENALTY
from .ansatz import field_laws, random_cluster_matrices, random_common_values
from .zero_temperature import growth_exponents_in_beta, objective_minimised_by_fields


def saddle_point_step(p: ReplicaBreakingSymbols, zero: Expressions) -> Step:
    """Return derivation step 8: the saddle-point equations, and the training loss at the saddle point.

    Args:
        p: symbols of the order parameters.
        zero: results of step 7, the limit of zero temperature.
    """
    saddle, sources = saddle_point(FreeEntropy(zero["Phi"], p)), (p.V, p.q, p.m, p.theta, *p.conjugate_order_parameters)
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
            *[_saddle_point_condition_test(source, target_order_parameter(source, p), p) for source in sources],
            *([_check_trained_parameter_condition(p)] if p.trained else []),
            check_scaling_of_free_entropy(p),
            _check_training_loss(p),
        ),
    )


def training_loss(phi: sp.Expr, p: ReplicaBreakingSymbols) -> sp.Expr:
    """Return the training loss alpha E[loss] + E[r(w)], a derivative of the free entropy Phi.

    It is -dPhi/dc for a factor c on loss and penalty, at fixed order parameters. With blocks the averages have the
    weight of the states that dominate.

    Args:
        phi: free entropy at zero temperature, from step 7.
        p: symbols of the order parameters.
    """
    potential = entropic_potential(FreeEntropy(phi, p))
    loss, rows = (tilt.tilted_mean(value) for tilt, value in zip(tilted_averages(p), (p.loss, PENALTY), strict=True))
    if not potential.has(p.envelope):  # c Lambda instead of Lambda
        rows = factor_out_scalars(-sp.Trace(p.Lambda * matrix_gradient(potential, p.Lambda, p)))
    total = p.alpha * Average(CHANNEL, loss) + Average(COORDINATE, rows)
    return total + sp.Trace(p.phi.T * p.Kappa * p.phi) / 2 if p.trained else total


@declare_test(
    "a factor on loss and penalty",
    "the free entropy at rescaled order parameters takes the factor, as symbols",
    ("training_loss",),
)
def check_scaling_of_free_entropy(before: Expressions, _after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    """Return whether Phi is multiplied by c for a factor c on loss and penalty, at rescaled order parameters.

    The factor is written beta; the extrema M (of a sample) and N (of a row) scale because their objectives do. A Parisi
    parameter y scales as 1/c, so that y M is unchanged when M has the factor.

    Args:
        before: input of the derivation step, by name.
        _after: not used.
        p: symbols of the order parameters.
    """
    scaling = {**growth_exponents_in_beta(p), p.Lambda: beta * p.Lambda, p.Kappa: beta * p.Kappa}
    scaling |= {rate: rate / beta for rate in p.parisi_parameters}
    objective = objective_minimised_by_fields(p).xreplace({**scaling, p.loss: beta * p.loss})
    extrema = {p.moreau: beta * p.moreau, p.envelope: beta * p.envelope}
    return is_equal_up_to_trace_cycles(
        objective, beta * objective_minimised_by_fields(p), p
    ) and is_equal_up_to_trace_cycles(before["Phi"].xreplace({**scaling, **extrema}), beta * before["Phi"], p)


# --- a square loss and a quadratic penalty: every average is exact ----------------------------------------------------


@cache
def _quadratic_model(size: int) -> dict[str, sp.Matrix]:
    """Return by name random coefficients of a square loss and a quadratic penalty.

    The loss is 1/2 (x - E Y)^T K (x - E Y) + 1/2 Tr[H q] + eta^T phi, the penalty 1/2 w^T Lambda w + c^T w.
    """
    source = RandomRationals("quadratic")
    names = {"K": source.draw_spd_matrix(size), "E": source.draw_matrix(size, size), "c": source.draw_matrix(size, 1)}
    return {**names, "H": source.draw_symmetric_matrix(size), "eta": source.draw_matrix(size, 1)}


def values_for_quadratic_model(own: dict[str, Any], phi: sp.Expr, p: ReplicaBreakingSymbols) -> ExactValues:
    """Return exact values of all symbols of Phi and its saddle-point conditions, for a model with closed forms.

    Its loss is square and its penalty quadratic (`_quadratic_model`), so that the proximal point x and the row w of W
    are linear in their fields omega and b, and all averages are over normal laws.

    Args:
        own: matrices of one (token, cluster) pair, by name.
        phi: free entropy at zero temperature.
        p: symbols of the order parameters.
    """
    size, ridge = own["q"].rows, not phi.has(p.envelope)
    known = _quadratic_model(size)
    shift = known["c"] * (0 if ridge else 1)
    values = {**random_common_values("solvable", [own], size), **own}
    ansatz = replica_block_ansatz(p)
    outermost = ansatz.levels[0]
    # Terms of the loss that do not depend on the fields.
    self_overlap = sum((values[Delta.name] for Delta in p.symbols_by_breaking_step("Delta")), values["q"])
    extra_loss = sp.trace(known["H"] * self_overlap) / 2 if p.loss_depends_on_q else sp.Integer(0)
    extra_loss += (known["eta"].T * values["phi"])[0] if p.trained else 0
    stiffness = (values["V"] + known["K"].inv()).inv()
    resolvent = (values["Lambda"] + values["G"]).inv()

    def exponentially_tilted_law(kind: str, exponent: sp.Expr) -> Callable[[ExactValues], NormalLaw]:
        """Return a function that computes, from the values of all symbols, a normal law with an additional weight.

        Args:
            kind: kind of the average without the tilting weight.
            exponent: logarithm of the tilting weight.
        """
        return lambda at: field_laws(ansatz)[kind](at).exponentially_tilted_law(exponent, at)

    def _field_residual(at: ExactValues, copy: str = "") -> sp.Matrix:
        """Return the residual omega - E Y of the test's square loss: student field omega, teacher field Y, matrix E.

        Args:
            at: matrices and numbers by name.
            copy: end of the names of one replica; empty without replicas.
        """
        return at.values[f"omega{copy}"] - known["E"] * at.values["Y"]

    def proximal_field(at: ExactValues, copy: str = "") -> sp.Matrix:
        """Return g = V^{-1} (x - omega) at the proximal point x of the test's square loss.

        Args:
            at: matrices and numbers by name.
            copy: end of the names of one replica; empty without replicas.
        """
        return -stiffness * _field_residual(at, copy)

    def row_minimiser(at: ExactValues, copy: str = "") -> sp.Matrix:
        """Return the row w that minimises the quadratic penalty's objective in its field b.

        Args:
            at: matrices and numbers by name.
            copy: end of the names of one replica; empty without replicas.
        """
        return resolvent * (at.values[f"b{copy}"] - shift)

    def quadratic_energy(vector: sp.Matrix, matrix: sp.Matrix) -> sp.Expr:
        """Return half the quadratic form v^T A v of a vector v and a matrix A.

        Args:
            vector: vector v.
            matrix: matrix A.
        """
        return (vector.T * matrix * vector)[0] / 2

    values |= {
        "g": proximal_field,
        "w": row_minimiser,
        "M": lambda at, _: quadratic_energy(_field_residual(at), stiffness) + extra_loss,
        "N": lambda at, _: quadratic_energy(at.values["b"] - shift, resolvent),
        "loss": lambda at, _: (
            quadratic_energy(_field_residual(at) + values["V"] * proximal_field(at), known["K"]) + extra_loss
        ),
        "penalty": lambda at, _: (
            quadratic_energy(row_minimiser(at), values["Lambda"]) + (shift.T * row_minimiser(at))[0]
        ),
        "domega": lambda at, _: at.values[outermost.field.name] - values["m"],
        "dY": lambda at, _: at.values["Y"] - values["m_star"],
        "Kappa": values["rho_star"],
        "loss_q": known["H"] / 2,
        "loss_phi": known["eta"],
    }
    of_fields: dict[str, Any] = field_laws(ansatz)
    values |= {y.name: own.get(y.name, sp.Rational(2 + k, 7)) for k, y in enumerate(p.parisi_parameters)}
    blocks = ansatz.levels[1:]
    plain = [level.channel for level in blocks], [level.rows for level in blocks]
    for tilt, kinds, exponents in zip(tilted_averages(p), plain, exponents_of_tilted_averages(p), strict=True):
        of_fields |= {
            own: exponentially_tilted_law(kind, exponents[own]) for own, kind in zip(tilt.kinds, kinds, strict=True)
        }
    if not ridge:
        of_fields[COORDINATE] = of_fields[outermost.rows]
    return ExactValues(values, laws=of_fields)


def order_parameter_in_words(matrix: sp.MatrixSymbol) -> str:
    """Return the name of an order parameter in words: "conjugate q" for q_hat."""
    stem = matrix.name.removesuffix("_hat")
    return stem if stem == matrix.name else f"conjugate {stem}"


def target_order_parameter(source: sp.MatrixSymbol, p: ReplicaBreakingSymbols) -> sp.MatrixSymbol:
    """Return the order parameter that is determined by the vanishing derivative of Phi in another one.

    q and V are determined by each other's conjugate, other order parameters by their own.

    Args:
        source: order parameter in which Phi is differentiated.
        p: symbols of the order parameters.
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
    """Return a function from a small number epsilon to values of the order parameters, by name.

    `source` is displaced by epsilon along a random direction; those in `targets` solve their saddle-point conditions.

    Args:
        phi: free entropy at zero temperature.
        after: results of the step, by name.
        source: order parameter in which Phi is differentiated.
        targets: names of the order parameters that solve their conditions.
        p: symbols of the order parameters.
    """
    own, symmetric = random_cluster_matrices("blocks"), {z.name for z in p.symmetric_matrices}
    at = values_for_quadratic_model(own, phi, p)
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
    phi, own, epsilon = before["Phi"], random_cluster_matrices("conditions"), sp.Symbol("epsilon")
    gradient, start = values_for_quadratic_model(own, phi, p)(after["trained"]), own["phi"]
    for i in range(start.rows):
        moved = {**own, "phi": start + epsilon * sp.eye(start.rows)[:, i]}
        if not is_exactly_zero(_derivative_along_path(phi, moved, p.phi, epsilon, p) - gradient[i]):
            return False
    return True


def _derivative_along_path(
    phi: sp.Expr, moved: dict[str, Any], source: Any, epsilon: sp.Symbol, p: ReplicaBreakingSymbols
) -> sp.Expr:
    """Return the derivative in epsilon, at 0, of the terms of Phi with the order parameter displaced by epsilon."""
    at = values_for_quadratic_model(moved, phi, p)
    inside = COORDINATE if source in p.conjugate_order_parameters else CHANNEL
    terms = [a for a in sp.Add.make_args(phi) if {z.kind for z in a.atoms(Average)} <= {CONTEXTS, inside}]
    return sp.Add(*[at(term).diff(epsilon).subs(epsilon, 0) for term in terms])


@declare_test(
    "training loss off the saddle",
    "training loss plus free entropy is a sum of conditions, each of which vanishes at the saddle, exactly",
)
def _check_training_loss(before: Expressions, after: Expressions, p: ReplicaBreakingSymbols) -> bool:
    """Return whether training loss plus Phi is a sum of saddle-point conditions, at a point off the saddle.

    The sum is sum_A k_A Tr[A^T dPhi/dA] over the order parameters A, which scale like the power k_A of a factor on the
    loss and penalty.
    """
    phi, own = before["Phi"], random_cluster_matrices("training loss")
    at = values_for_quadratic_model(own, phi, p)
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
    return is_exactly_zero(at(after["training_loss"]) + at(phi) - conditions)
