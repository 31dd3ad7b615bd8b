"""Bayes-optimal inference from the replica calculation: n + 1 equivalent replicas, one of them the teacher.

The teacher is one more sample of the posterior (H. Nishimori, Prog. Theor. Phys. 66 (1981) 1169; Y. Iba, J. Phys. A 32
(1999) 3875), so that the ansatz has one overlap for all pairs of replicas, q, and a known diagonal, rho*. The integrals
over a row and over the fields of a sample are those that theory/bayes.py writes out and differentiates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations, product
from typing import Any

import sympy as sp

from ..calculus.averages import CONTEXTS, COORDINATE, Average, MatrixAverage
from ..theory.bayes import gaussian_component_of_teacher_row, gaussian_field_weight
from .algebra.exact import ExactValues, NormalLaw, RandomRationals, is_exactly_zero, nested_block_matrix
from .algebra.objects import n
from .algebra.step import Derivation, Expressions, Step, declare_test

CITATION = (
    "J. Barbier, F. Krzakala, N. Macris, L. Miolane, L. Zdeborova, PNAS 116, 5451 (2019); B. Aubin, A. Maillard, "
    "J. Barbier, F. Krzakala, N. Macris, L. Zdeborova, NeurIPS 2018, arXiv 1806.05451"
)
NISHIMORI = "H. Nishimori, Prog. Theor. Phys. 66, 1169 (1981); Y. Iba, J. Phys. A 32, 3875 (1999)"
REPLICA_NUMBERS = (1, 2, 3)
# Kinds of averages: over the field b of a row, normal with mean zero and covariance Q; over labels and omega, normal
# with covariance q, summed over what is observed.
ROW_FIELD, OUTPUT = "row field", "output"
# Their names differ from those of the student's quantities, which are in the same document.
Z_row, Z_out, Z_any = (sp.Symbol(name, positive=True) for name in ("Z_row", "Z_out", "Z_any"))
alpha, gamma = sp.Symbol("alpha", positive=True), sp.Symbol("gamma", positive=True)
t = sp.Symbol("t", integer=True, positive=True)
q, q_hat, Q, V = (sp.MatrixSymbol(f"{name}_bayes", t, t) for name in ("q", "q_hat", "Q", "V"))
b, omega, g = (sp.MatrixSymbol(f"{name}_bayes", t, 1) for name in ("b", "omega", "g"))
rho, pi, f = sp.MatrixSymbol("rho_star", t, t), sp.MatrixSymbol("pi", t, 1), sp.MatrixSymbol("pi_mean", t, 1)
slopes = sp.symbols("Z_slope_1 Z_slope_2", real=True)


@cache
def bayes_optimal_derivation() -> Derivation:
    """Return the derivation of Bayes-optimal inference: equivalent replicas, limit n -> 0, state evolution."""
    replicas = _equivalent_replicas_step()
    limit = _replica_limit_step(replicas.after)
    return Derivation((replicas, limit, _state_evolution_step(limit.after)))


def _equivalent_replicas_step() -> Step:
    """Return step 1 of the Bayes-optimal derivation: the potentials of the teacher and n samples of the posterior."""
    pairs = n * (n + 1) / 2
    after = {
        "trace": Average(CONTEXTS, -pairs * sp.Trace(q_hat * q)),
        "entropic": Average(COORDINATE, sp.log(Average(ROW_FIELD, Z_row ** (n + 1)))),
        "energetic": alpha * sp.log(Average(OUTPUT, Z_out ** (n + 1))),
        "row": sp.Trace(b.T * pi) - sp.Trace(pi.T * Q * pi) / 2,
        "variance": rho - q,
    }
    return Step(
        1,
        "Teacher and samples alike",
        {},
        after,
        "What is observed has the evidence for its law, so that the average of the power n of the evidence holds the "
        "power n + 1: for every row of the teacher n + 1 rows, alike and drawn from the same law. One overlap q "
        "couples each pair, with a conjugate q_hat; the mean and covariance of a replica's own fields are those of the "
        "teacher, known, and need no conjugates. A normal field b shared by the replicas makes their rows "
        "independent, and a normal field omega makes their fields independent: each time the power n + 1 of one "
        "integral, Z_row over a row and Z_out over what is hidden of a sentence.",
        CITATION,
        (_check_sum_over_replica_pairs(), _check_shared_field_of_rows(), _check_shared_field_of_samples()),
    )


def _replica_limit_step(before: Expressions) -> Step:
    """Return step 2 of the Bayes-optimal derivation: the free entropy in the limit of n = 0 replicas."""
    after = {
        "free entropy": Average(CONTEXTS, -sp.Trace(q_hat * q) / 2)
        + Average(COORDINATE, Average(ROW_FIELD, Z_row * sp.log(Z_row)))
        + alpha * Average(OUTPUT, Z_out * sp.log(Z_out)),
        "law of b": sp.Trace((b - Q * pi).T * Q.inv() * (b - Q * pi)) / 2,
    }
    return Step(
        2,
        "One sample and the teacher: n to zero",
        before,
        after,
        "The derivative at n = 0. There the averages of Z_row and Z_out are one, as total probabilities, and the slope "
        "of the logarithm of an averaged power n + 1 is the average of Z log Z, Z being either of them. The weight Z "
        "in this average turns the law of the field into that at the teacher: given the teacher's row pi, b is normal "
        "with mean Q pi and covariance Q, as one sees by completing the square.",
        CITATION,
        (_check_derivative_at_zero_replicas(), _check_field_law_given_teacher()),
    )


def entropy_gradient_in_covariance(size: int) -> sp.Matrix:
    """Return the gradient of E[Z log Z] in the covariance C of a normal x, if Z(x) obeys a heat equation.

    Z stands for the integral over a row or over the hidden fields of a sample. The equation is dZ/dC_ij = -1/2 d2Z/dx_i
    dx_j. Price's theorem gives the change of the law of x, the chain rule that of Z; E[Z] is constant.
    """
    x = sp.symbols(f"x_0:{size}", real=True)
    Z = sp.Function("Z", positive=True)(*x)
    F = Z * sp.log(Z)
    slope = sp.log(Z) + 1  # dF/dZ
    gradient = sp.Matrix(
        size,
        size,
        lambda i, j: sp.simplify(sp.diff(F, x[i], x[j]) / 2 - slope * sp.diff(Z, x[i], x[j]) / 2),
    )
    return gradient.xreplace(_symbols_for_derivatives(Z, x))


def _symbols_for_derivatives(Z: sp.Expr, x: Sequence[sp.Symbol]) -> dict[sp.Expr, sp.Expr]:
    """Return replacements of a function Z and of its derivatives by symbols."""
    return {Z: Z_any} | {sp.diff(Z, entry): slope for entry, slope in zip(x, slopes, strict=True)}


def _state_evolution_step(before: Expressions) -> Step:
    """Return step 3 of the Bayes-optimal derivation: the state evolution equations of q and q_hat."""
    after = {
        "q_bayes": MatrixAverage(COORDINATE, gamma * MatrixAverage(ROW_FIELD, Z_row * f * f.T)),
        "q_hat_bayes": alpha * MatrixAverage(OUTPUT, Z_out * g * g.T),
        "gradient": entropy_gradient_in_covariance(2),
    }
    return Step(
        3,
        "State evolution",
        before,
        after,
        "The free entropy is stationary in q_hat and q. Z_row and Z_out obey the heat equation backward in the "
        "covariance of their field, Q and q, so that the gradient of the average of Z log Z in that covariance is half "
        "the average of Z times the outer product of the gradient of log Z in the field.",
        CITATION,
        (
            _check_heat_equation_of_row_integral(),
            _check_heat_equation_of_output_weight(),
            _check_entropy_gradient(),
            _check_q_equation_for_gaussian_rows(),
            _check_q_hat_equation_for_gaussian_outputs(),
        ),
    )


# --- checks -----------------------------------------------------------------------------------------------------------


@declare_test("pairs", "the sum over pairs written out, n = 1 to 3", ("trace",))
def _check_sum_over_replica_pairs(_before: Expressions, after: Expressions) -> bool:
    source = RandomRationals("pairs")
    one, other = source.draw_symmetric_matrix(2), source.draw_symmetric_matrix(2)
    for number in REPLICA_NUMBERS:
        pairs = -sp.Add(*[sp.trace(one * other) for _ in combinations(range(number + 1), 2)])
        at = ExactValues({"q_bayes": one, "q_hat_bayes": other, "n": sp.Integer(number)})
        if not is_exactly_zero(at(after["trace"]) - pairs):
            return False
    return True


@declare_test(
    "one field for all rows",
    "rows of three values, t = 2, all configurations of n + 1 replicas, n = 1 to 3, exactly",
    ("entropic", "row"),
)
def _check_shared_field_of_rows(_before: Expressions, after: Expressions) -> bool:
    """Return whether an average over one shared field couples the rows of each pair of replicas.

    The coupling of rows pi_a and pi_b is exp(pi_a^T Q pi_b).
    """
    source = RandomRationals("alike rows")
    covariance = source.draw_spd_matrix(2)
    at = ExactValues({"Q_bayes": covariance, "b_bayes": sp.zeros(2, 1)})
    field = NormalLaw(("b_bayes",), sp.zeros(2, 1), covariance)
    rows_ = [source.draw_matrix(2, 1) for _ in range(3)]
    (power,) = [a.exp for a in after["entropic"].atoms(sp.Pow) if a.base == Z_row]
    for number in REPLICA_NUMBERS:
        if power.subs(n, number) != number + 1:
            return False
        for chosen in product(rows_, repeat=number + 1):
            weight = sp.Add(*[after["row"].xreplace({pi: sp.MatrixSymbol(f"pi{a}", t, 1)}) for a in range(number + 1)])
            here = at.with_added_values({f"pi{a}": row for a, row in enumerate(chosen)})
            coupled = sp.Add(*[(one.T * covariance * other)[0] for one, other in combinations(chosen, 2)])
            if not is_exactly_zero(field.log_expectation_of_exp(weight, here) - coupled):
                return False
    return True


@declare_test(
    "one field for all sentences",
    "the covariance of n + 1 fields as blocks, n = 1 to 3, exactly",
    ("energetic", "variance"),
)
def _check_shared_field_of_samples(_before: Expressions, after: Expressions) -> bool:
    """Return whether fields of replicas that share a normal part have variance rho* and mutual covariance q."""
    source = RandomRationals("alike fields")
    own = source.draw_spd_matrix(2) / 5
    whole = own + source.draw_spd_matrix(2)
    variance = ExactValues({"rho_star": whole, "q_bayes": own})(after["variance"])
    (power,) = [a.exp for a in after["energetic"].atoms(sp.Pow) if a.base == Z_out]
    for number in REPLICA_NUMBERS:
        size = int(power.subs(n, number))
        alike = [[whole if a == c else own for c in range(number + 1)] for a in range(number + 1)]
        given = nested_block_matrix(variance, [(size, own)], size)
        if size != number + 1 or sp.Matrix.vstack(*[sp.Matrix.hstack(*row) for row in alike]) != given:
            return False
    return True


@declare_test(
    "slope at n = 0",
    "each potential with Z taking three values of average one, differentiated at n = 0",
    ("free entropy",),
)
def _check_derivative_at_zero_replicas(before: Expressions, after: Expressions) -> bool:
    """Return whether the free entropy is the derivative of all potentials at n = 0 replicas.

    The integrals are replaced by random numbers 1/2, 1 or 2 of average one.
    """
    source = RandomRationals("slope")
    weights = {sp.Rational(1, 2): sp.Rational(2, 5), sp.Integer(1): sp.Rational(2, 5), sp.Integer(2): sp.Rational(1, 5)}
    sums = {
        kind: [(probability, {Z.name: value}) for value, probability in weights.items()]
        for kind, Z in ((ROW_FIELD, Z_row), (OUTPUT, Z_out))
    }
    at = ExactValues({"q_bayes": source.draw_symmetric_matrix(2), "q_hat_bayes": source.draw_symmetric_matrix(2)}, sums)
    action = sp.Add(*[at(before[name]) for name in ("trace", "entropic", "energetic")])
    difference = action.diff(n).subs(n, 0) - at(after["free entropy"])
    # Terms of rows and trace, and those of samples, which have the factor alpha.
    return action.subs(n, 0) == 0 and all(
        is_exactly_zero(sp.expand_log(part)) for part in (difference.subs(alpha, 0), difference.diff(alpha))
    )


@declare_test("planted field", "the square completed, t = 2, exactly", ("law of b",))
def _check_field_law_given_teacher(_before: Expressions, after: Expressions) -> bool:
    source = RandomRationals("planted")
    covariance, value = source.draw_spd_matrix(2), source.draw_matrix(2, 1)
    field = sp.Matrix(sp.symbols("b_0 b_1", real=True))
    exponent = -ExactValues({"b_bayes": field, "pi": value, "Q_bayes": covariance})(after["law of b"])
    whole = (field.T * value)[0] - (value.T * covariance * value)[0] / 2 - (field.T * covariance.inv() * field)[0] / 2
    return is_exactly_zero(sp.expand(exponent - whole))


def _obeys_heat_equation(
    log_weight: sp.Expr, field: list[sp.Symbol], covariance: sp.Matrix, sign: int, point: Any
) -> bool:
    """Return whether Z = exp(log_weight) obeys a heat equation in field x and covariance C, at a rational point.

    The equation is dZ = -sign/2 sum_ij dC_ij d2Z/dx_i dx_j for symmetric changes of C.
    """
    size = len(field)
    for i in range(size):
        for j in range(i, size):
            change = sp.diff(log_weight, covariance[i, j])
            slopes = [sp.diff(log_weight, field[k]) for k in (i, j)]
            curvature = sp.diff(log_weight, field[i], field[j]) + slopes[0] * slopes[1]
            multiplicity = 1 if i == j else 2
            if not is_exactly_zero((change + sign * multiplicity * curvature / 2).subs(point)):
                return False
    return True


@declare_test("heat equation of rows", "Gaussian component, t = 2, at rational points")
def _check_heat_equation_of_row_integral(_before: Expressions, _after: Expressions) -> bool:
    row = gaussian_component_of_teacher_row(2)
    source = RandomRationals("heat of rows")
    Q_value = source.draw_spd_matrix(2)
    point = dict(zip(row.Q, Q_value, strict=True)) | {
        s: source.draw_number() for m in (row.b, row.factor, row.mean) for s in m
    }
    return _obeys_heat_equation(row.log_integral, list(row.b), row.Q, 1, point)


@declare_test("heat equation of fields", "normal weight, t = 2, at rational points")
def _check_heat_equation_of_output_weight(_before: Expressions, _after: Expressions) -> bool:
    """Return whether the normal weight of a sample's fields obeys the heat equation in the overlap q, at fixed rho*.

    Its variance V = rho* - q, with rho* that of the teacher's fields, changes with the opposite sign.
    """
    gaussian = gaussian_field_weight(1, 2)
    V = sp.Matrix(2, 2, lambda i, j: sp.Symbol(f"v_{min(i, j)}_{max(i, j)}", real=True))
    inverse = V.inv()
    named = {gaussian.precision[0][i, j]: inverse[i, j] for i in range(2) for j in range(2)}
    log_weight = gaussian.exponent.subs(named) - sp.log(V.det()) / 2
    source = RandomRationals("heat of fields")
    point = dict(zip(V, source.draw_spd_matrix(2), strict=True))
    point |= {s: source.draw_number() for m in (gaussian.Y, gaussian.omega) for s in m}
    return _obeys_heat_equation(log_weight, list(gaussian.omega), V, -1, point)


@declare_test(
    "gradient of Z log Z",
    "symbolically, for any Z of two fields: half Z times the outer product of the gradient of log Z",
    ("gradient",),
)
def _check_entropy_gradient(_before: Expressions, after: Expressions) -> bool:
    x = sp.symbols("x_0:2", real=True)
    Z = sp.Function("Z", positive=True)(*x)
    expected = sp.Matrix(2, 2, lambda i, j: Z * sp.diff(sp.log(Z), x[i]) * sp.diff(sp.log(Z), x[j]) / 2)
    difference = after["gradient"] - expected.xreplace(_symbols_for_derivatives(Z, x))
    return all(sp.simplify(entry) == 0 for entry in difference)


@declare_test(
    "Gaussian rows",
    "t = 1: the derivative of the free entropy in closed form against the mean square of f, symbolically",
    ("q_bayes",),
)
def _check_q_equation_for_gaussian_rows(_before: Expressions, after: Expressions) -> bool:
    """Return whether the equation of q holds for standard normal teacher rows pi, where all is known in closed form.

    Z(b) is the integral over a row in its field b of covariance Q: E[Z log Z] = Q/2 - log(1 + Q)/2; under the teacher b
    is N(0, Q + Q^2), and the posterior mean of pi is b / (1 + Q).
    """
    if after["q_bayes"] != MatrixAverage(COORDINATE, gamma * MatrixAverage(ROW_FIELD, Z_row * f * f.T)):
        return False
    row = gaussian_component_of_teacher_row(1)
    unit = {row.factor[0]: 1, row.mean[0]: 0}
    K, field = row.Q[0], row.b[0]
    moment = row.moment[0].subs(unit)
    log_integral = row.log_integral.subs(unit)
    second = K + K**2
    averaged = log_integral.subs(field, 0) + sp.diff(log_integral, field, 2) * second / 2
    square = sp.diff(moment, field) ** 2 * second
    return sp.simplify(2 * sp.diff(averaged, K) - square) == 0


@declare_test(
    "Gaussian outputs",
    "t = 1, the field with normal noise: the derivative of the average of Z log Z against the mean square of g, "
    "symbolically",
    ("q_hat_bayes",),
)
def _check_q_hat_equation_for_gaussian_outputs(_before: Expressions, after: Expressions) -> bool:
    """Return whether the equation of q_hat holds for Gaussian outputs y, where all is known in closed form.

    The evidence Z_out of one output is normal in y - omega, with omega the field shared by all replicas and variance
    rho* + noise - q, rho* being the variance of the teacher's field.
    """
    if after["q_hat_bayes"] != alpha * MatrixAverage(OUTPUT, Z_out * g * g.T):
        return False
    step = sp.Symbol("step", real=True)
    overlap, whole = sp.symbols("overlap whole", positive=True)
    variance = whole - overlap
    log_integral = -(step**2) / (2 * variance) - sp.log(2 * sp.pi * variance) / 2
    square = sp.diff(log_integral, step) ** 2  # the derivative in omega, up to its sign
    averaged, mean_square = (sp.expand(e).subs(step**2, variance) for e in (log_integral, square))
    return sp.simplify(2 * sp.diff(averaged, overlap) - mean_square) == 0
