"""Step 9: the stability operators; the replicon from the second variation of the replicated action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
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
    OrderParameterSymbols,
    drop_transposes_of_symmetric_matrices,
)
from ...theory.free_entropy import FreeEntropy
from ...theory.saddle_point import saddle_point
from ...theory.stability import (
    TOKENS,
    RepliconMap,
    entropic_potential,
    longitudinal_derivatives,
    replicon_map,
    response_of_weights_to_field,
)
from ..algebra.exact import ExactValues, RandomRationals, is_exactly_zero, nested_block_matrix
from ..algebra.levels import parisi
from ..algebra.objects import PAIRS, factor_out_scalars, replica_symbol
from ..algebra.step import Expressions, Step, StepTest, declare_test
from .ansatz import random_cluster_matrices, random_common_values


def perturbation_strength() -> sp.Symbol:
    """Return the symbol epsilon_ab, the strength with which the overlap of replicas a and b is perturbed.

    It is symmetric, with zero diagonal and rows that sum to zero: a replicon direction (four replicas or more).
    """
    return sp.Symbol("epsilon|ab", real=True)


def prior_perturbation(p: OrderParameterSymbols) -> sp.MatrixSymbol:
    """Return the symbol Gamma of the perturbation that acts on one row of the weights W.

    It is the sum of gamma_c D_hat_c over (token, cluster) pairs c, with covariance eigenvalues gamma_c and
    perturbations D_hat_c of the conjugates.
    """
    return sp.MatrixSymbol("Gamma", p.s, p.s)


def perturbation_matrices(p: OrderParameterSymbols) -> tuple[sp.MatrixSymbol, sp.MatrixSymbol]:
    """Return the symbols D and D_hat of the perturbations of the overlap q and of its conjugate.

    Perturbed overlaps of replicas a and b are q + epsilon_ab D and q_hat + epsilon_ab D_hat.
    """
    return sp.MatrixSymbol("D", p.s, p.s), sp.MatrixSymbol("D_hat", p.s, p.s)


def second_cumulant(matrix: MatrixExpr, perturbation: MatrixExpr) -> MatrixExpr:
    """Return the matrix T = C K C^T of the second cumulant of a random quadratic form over the replicas.

    The form is 1/2 sum_ab epsilon_ab z_a^T K z_b, with independent vectors z_a of covariance C. Half its second
    cumulant is Tr[K T] / 4 times sum_ab epsilon_ab^2; the mean of z_a has no effect, as rows of epsilon sum to zero.

    Args:
        matrix: covariance C.
        perturbation: matrix K.
    """
    return matrix * perturbation * matrix.T


@dataclass(frozen=True)
class OverlapPerturbation:
    """A perturbation of the overlaps of replicas, and the linear responses to it.

    Attributes:
        field: response of the proximal field g to its argument (s x s).
        row: response of a row of W to its field (s x s).
        samples: kind of average over the states of a block that g is in; empty where a block responds as a whole.
        rows: kind of average over the states of a block that a row is in; empty where a block responds as a whole.
        blocks: numbers of blocks for which matrices of all replicas are written out.
        size: number of replicas in each of these blocks.
        within: whether overlaps within blocks are perturbed, rather than those of different blocks.
    """

    field: MatrixExpr
    row: MatrixExpr
    samples: str = ""
    rows: str = ""
    blocks: tuple[int, ...] = (4, 5)
    size: int = 1
    within: bool = False

    def replicon_direction(self, blocks: int) -> sp.Matrix:
        """Return the matrix of the perturbation's strengths epsilon_ab for all replicas a and b of the blocks."""
        if self.within:
            return sp.Matrix(sp.kronecker_product(sp.diag(1, *[2] * (blocks - 1)), replicon_direction(self.size)))
        return sp.Matrix(sp.kronecker_product(replicon_direction(blocks), sp.ones(self.size, self.size)))


def second_variation(p: OrderParameterSymbols, action: Expressions, moved: OverlapPerturbation) -> dict[str, Any]:
    """Return by name the second variation of the three potentials, and its stationary perturbations.

    Args:
        p: symbols of the order parameters.
        action: results of step 3, the replicated action.
        moved: perturbed overlaps, and the responses to them.
    """
    D, _ = perturbation_matrices(p)
    Gamma = prior_perturbation(p)
    through = _average_over_states(moved.samples, MatrixAverage(TOKENS, second_cumulant(moved.field, D)))
    back = _average_over_states(moved.rows, drop_transposes_of_symmetric_matrices(second_cumulant(moved.row, Gamma), p))
    return {
        "trace": Average(CONTEXTS, second_variation_of_trace(p, action["trace"])),
        "rows": Average(COORDINATE, sp.Trace(Gamma * back) / 4),
        "sentences": p.alpha * (Average(CONTEXTS, sp.Trace(D * MatrixAverage(CHANNEL, through))) / 4),
        "D_hat": p.alpha * MatrixAverage(CHANNEL, through),
        "D_prime": MatrixAverage(COORDINATE, p.gamma * back),
    }


def _average_over_states(kind: str, carried: MatrixExpr) -> MatrixExpr:
    """Return a matrix averaged over the states of a block of replicas; the matrix itself if `kind` is empty."""
    return MatrixAverage(kind, carried) if kind else carried


def second_variation_step(p: OrderParameterSymbols, action: Expressions, zero: Expressions) -> Step:
    """Return derivation step 9: the second variation of the replicated action at the replica-symmetric point.

    Args:
        p: symbols of the order parameters.
        action: results of step 3, the replicated action.
        zero: results of step 7, the limit of zero temperature.
    """
    phi = FreeEntropy(zero["Phi"], p)
    moved = OverlapPerturbation(
        Jacobian(p.g, p.omega), drop_transposes_of_symmetric_matrices(response_of_weights_to_field(phi), p)
    )
    operator = replicon_map(phi)
    after = second_variation(p, action, moved)
    tests = [*tests_at_integer_replica_numbers(p, moved), _check_message_passing_stability(operator, p)]
    if not p.trained and not p.loss_depends_on_q and entropic_potential(phi) != p.envelope:
        linear = longitudinal_derivatives(saddle_point(phi))
        after |= {f"d{name}": change for name, change in linear.prior.items()}
        tests.append(_check_longitudinal_stability())
    return Step(
        9,
        "Stability of the replica-symmetric saddle point",
        inputs_of_stability_step(p, action),
        after,
        "Overlaps of different replicas and their conjugates are perturbed by a symmetric matrix that is zero on the "
        "diagonal of the replicas and whose rows sum to zero. This leaves all averages over replicas alone and "
        "decouples from every other direction. Relative to the sum of its squared entries the second variation does "
        "not depend on n except through the weight of the shared field, which is 1 at n = 0; at zero temperature a "
        "susceptibility is a response over the inverse temperature. Where the second variation is singular, the map "
        "below has the eigenvalue 1. Longitudinal directions: the eight equations are differentiated once more.",
        "J. R. L. de Almeida, D. J. Thouless, J. Phys. A 11, 983 (1978); M. Bayati, A. Montanari, "
        "IEEE Trans. Inf. Theory 57, 764 (2011), arXiv 1001.3448",
        tuple(tests),
    )


def inputs_of_stability_step(p: OrderParameterSymbols, action: Expressions) -> dict[str, Any]:
    """Return the input of a stability step: the potentials of the replicated action and the perturbed overlaps.

    Args:
        p: symbols of the order parameters.
        action: results of step 3, the replicated action.
    """
    moved = {z.name: value for z, value in perturbed_overlaps(p).items()}
    return {"trace": action["trace"], "entropic": action["entropic"], **moved}


def perturbed_overlaps(p: OrderParameterSymbols) -> dict[sp.MatrixSymbol, MatrixExpr]:
    """Return a map from the overlap and the conjugate of two replicas to their perturbed values."""
    moves = zip((p.q, p.q_hat), perturbation_matrices(p), strict=True)
    return {replica_symbol(z, "ab"): z + perturbation_strength() * move for z, move in moves}


def tests_at_integer_replica_numbers(p: OrderParameterSymbols, moved: OverlapPerturbation) -> tuple[StepTest, ...]:
    """Return the tests that write out matrices of all replicas, at integer numbers of replicas.

    Args:
        p: symbols of the order parameters.
        moved: perturbed overlaps, and the responses to them.
    """
    where = "n = 4, 5"
    if moved.size > 1:
        where = " and ".join(f"n = {count * moved.size}" for count in moved.blocks) + f" in blocks of {moved.size}"
    fewest = moved.blocks[0] * moved.size
    return (
        _check_second_cumulant(),
        _check_row_variation(p, moved, where=where),
        _check_sample_variation(moved, fewest=fewest),
        _check_stationary_perturbation(),
    )


def second_variation_of_trace(p: OrderParameterSymbols, trace: sp.Expr) -> sp.Expr:
    """Return the second-order coefficient of the action's trace term in the perturbation of one pair of replicas.

    Args:
        p: symbols of the order parameters.
        trace: trace term of the replicated action.
    """
    (whole,) = [a for a in trace.atoms(Average) if a.kind == CONTEXTS]
    (pairs,) = [a for a in whole.atoms(Average) if a.kind == PAIRS]
    number = sp.Mul(
        *[a for term in whole.summand.args if term.has(pairs) for a in sp.Mul.make_args(term) if a != pairs]
    )
    _, D_hat = perturbation_matrices(p)
    expanded = factor_out_scalars(pairs.summand.xreplace(perturbed_overlaps(p)).xreplace({D_hat.T: D_hat}))
    return number * sp.expand(expanded).coeff(perturbation_strength(), 2).xreplace({D_hat.T: D_hat})


# --- checks -----------------------------------------------------------------------------------------------------------


def replicon_direction(replicas: int) -> sp.Matrix:
    """Return a symmetric matrix with zero diagonal whose rows sum to zero, otherwise with arbitrary entries."""
    unknown = {(a, b): sp.Symbol(f"e{a}{b}") for a in range(replicas) for b in range(a + 1, replicas)}
    matrix = sp.Matrix(replicas, replicas, lambda a, b: 0 if a == b else unknown[min(a, b), max(a, b)])
    solution = sp.solve([sum(matrix.row(a)) for a in range(replicas)], list(unknown.values()), dict=True)[0]
    matrix = matrix.subs(solution)
    free = sorted(matrix.free_symbols, key=str)
    return matrix.subs({symbol: (2, -3, 5, 1, 7)[i % 5] for i, symbol in enumerate(free)})


@cache
def _cumulant_from_moments(replicas: int, size: int) -> sp.Expr:
    """Return half the mean square of a random quadratic form over the replicas, moment by moment.

    The form is 1/2 sum_ab epsilon_ab z_a^T K z_b, with independent vectors z_a of known first and second moments.
    """
    eps, K = replicon_direction(replicas), random_matrix_and_moments(size)["K"]
    z = sp.Matrix(sp.symbols(f"z:{replicas * size}"))  # replica by replica
    P = (z.T * sp.Matrix(sp.kronecker_product(eps, K)) * z)[0] / 2
    mean, second = random_matrix_and_moments(size)["mean"], random_matrix_and_moments(size)["second"]
    total: sp.Expr = sp.Integer(0)
    for powers, number in sp.Poly(sp.expand(P**2), *z).terms():
        for a in range(replicas):
            own = [i for i in range(size) for _ in range(powers[a * size + i])]  # at most two factors of a replica
            if own:
                number *= mean[own[0]] if len(own) == 1 else second[own[0], own[1]]
        total += number
    return total / 2


@cache
def random_matrix_and_moments(size: int) -> dict[str, sp.Matrix]:
    """Return by name a random symmetric matrix K, and mean, covariance and second moments of a random vector."""
    source = RandomRationals("cumulant")
    covariance, mean = source.draw_spd_matrix(size), source.draw_matrix(size, 1)
    return {
        "K": source.draw_symmetric_matrix(size),
        "mean": mean,
        "covariance": covariance,
        "second": covariance + mean * mean.T,
    }


@declare_test(
    "second cumulant at integer n",
    "a quadratic form of independent vectors squared, moment by moment; s = 1 at n = 4, 5, s = 2 at n = 4",
    ("rows", "sentences"),
)
def _check_second_cumulant(_before: Expressions, after: Expressions) -> bool:
    """Return whether the second variation of rows and samples is half the second cumulant of a quadratic form.

    The cumulant is computed from products of moments of independent vectors, one per replica.
    """
    for size, replicas in ((1, 4), (1, 5), (2, 4)):
        known = random_matrix_and_moments(size)
        squares = sum(e**2 for e in replicon_direction(replicas))
        values = {"Gamma": known["K"], "D": known["K"], "alpha": sp.Integer(1)}
        at = ExactValues({**values, **_values_at_given_response(known["covariance"])})
        for name in ("rows", "sentences"):
            if not is_exactly_zero(_cumulant_from_moments(replicas, size) - squares * at(after[name])):
                return False
    return True


def _values_at_given_response(response: sp.Matrix) -> dict[str, Any]:
    """Return values by name at which the responses of fields, of rows and of a ridge are one given matrix."""
    responses = {"dg/domega": response, "dg/domega_0": response, "dw/db": response, "dw/db_0": response}
    zero = sp.zeros(*response.shape)
    return {**responses, "G": response.inv(), "Lambda": zero, "Q_Delta": zero, parisi.name: sp.Integer(1)}


@declare_test(
    "rows at integer n",
    "normal integral over n s weights of ridge, second order in the perturbation, {where}, s = 2, exactly",
    ("trace", "rows"),
)
def _check_row_variation(
    before: Expressions, after: Expressions, p: OrderParameterSymbols, moved: OverlapPerturbation
) -> bool:
    """Return whether the second variation of trace and rows of W agrees with exact normal integrals for a ridge.

    The conjugates of replicas a and b are displaced by epsilon_ab D_hat. The response of a row to its field is its
    covariance (beta Lambda + G)^{-1}.
    """
    own, source = random_cluster_matrices("replicon rows"), RandomRationals("replicon rows")
    values, D, D_hat = (
        random_common_values("replicon rows", [own]),
        source.draw_symmetric_matrix(2),
        source.draw_symmetric_matrix(2),
    )
    precision, epsilon = values["beta"] * values["Lambda"] + values["G"], sp.Symbol("epsilon")
    zero = dict.fromkeys(("r", "r_hat", "theta", "theta_hat"), lambda _at, _: sp.zeros(2, 2))
    zero |= dict.fromkeys(("m", "m_hat"), lambda _at, _: sp.zeros(2, 1))

    def matrix_of_pair(base: sp.Matrix, move: sp.Matrix, eps: sp.Matrix) -> Callable[[ExactValues, str], sp.Matrix]:
        """Return a function that returns the perturbed matrix of two replicas, which a suffix as "|12" names.

        Args:
            base: matrix without the perturbation.
            move: matrix of the perturbation.
            eps: strength of the perturbation for every pair of replicas.
        """
        return lambda _at, suffix: base + epsilon * eps[int(suffix[1]) - 1, int(suffix[2]) - 1] * move

    for blocks in moved.blocks:
        eps, replicas = moved.replicon_direction(blocks), blocks * moved.size
        squares = sum(e**2 for e in eps)
        inner = [(moved.size, -values["Q_Delta"])] if moved.size > 1 else []
        whole = nested_block_matrix(precision, [*inner, (replicas, -values["Q"])], replicas)
        stacked = sp.Matrix.vstack(*[values["B"]] * replicas)
        inverse = whole.inv()
        change = -own["gamma"] * sp.Matrix(sp.kronecker_product(eps, D_hat))
        # Second-order term of -1/2 log det and of 1/2 B^T K^{-1} B at K + epsilon change.
        second = sp.trace(inverse * change * inverse * change) / 4
        second += (stacked.T * inverse * change * inverse * change * inverse * stacked)[0] / 2
        size = sp.Integer(moved.size)
        answers = {**_values_at_given_response(precision.inv()), "Q_Delta": values["Q_Delta"], parisi.name: size}
        answers["dw/db_0"] = (precision - size * values["Q_Delta"]).inv()
        at = ExactValues({"Gamma": own["gamma"] * D_hat, **answers})
        if not is_exactly_zero(second - squares * at(after["rows"])):
            return False
        # Trace: replica by replica, from step 3; all pairs have one overlap plus the perturbation.
        pairs = {"q": matrix_of_pair(own["q"], D, eps), "q_hat": matrix_of_pair(own["q_hat"], D_hat, eps)}
        written = ExactValues({**zero, **pairs}, replicas=replicas)(before["trace"])
        coefficient = sp.expand(written).coeff(epsilon, 2)
        if not is_exactly_zero(coefficient - squares * ExactValues({"D": D, "D_hat": D_hat})(after["trace"])):
            return False
    return True


@declare_test(
    "sentences at integer n",
    "square loss averaged over the perturbed law of n fields, second order, n = {fewest}, s = t = 2, exactly",
    ("sentences",),
)
def _check_sample_variation(_before: Expressions, after: Expressions, moved: OverlapPerturbation) -> bool:
    """Return whether the second variation of the samples agrees with exact averages for a square loss.

    The covariance of the fields of replicas a and b is displaced by epsilon_ab D. The loss 1/2 (x - E Y)^T K (x - E Y),
    with teacher field Y, has the response dg/domega = -(V + K^{-1})^{-1}, in a block of k replicas that with V + k
    Delta for V.
    """
    own, source, s = random_cluster_matrices("replicon sentences"), RandomRationals("replicon sentences"), 2
    K, E, D = source.draw_spd_matrix(s), source.draw_matrix(s, s), source.draw_symmetric_matrix(s)
    replicas = moved.blocks[0] * moved.size
    eps = moved.replicon_direction(moved.blocks[0])
    shared_by_all = own["q"] - own["theta"] * E.T - E * own["theta"].T + E * own["rho_star"] * E.T
    inner = [(moved.size, own["Delta"])] if moved.size > 1 else []
    student = nested_block_matrix(own["V"], [*inner, (replicas, shared_by_all)], replicas)
    change = sp.Matrix(sp.kronecker_product(eps, D))
    mean = sp.Matrix.vstack(*[own["m"] - E * own["m_star"]] * replicas)
    stiffness = sp.Matrix(sp.kronecker_product(sp.eye(replicas), K))
    # -1/2 log det(1 + S K) - 1/2 mean^T (S + 1/K)^{-1} mean at S = Cov(X - E Y) + epsilon change, to second order.
    inverse = (student + stiffness.inv()).inv()
    second = sp.trace(inverse * change * inverse * change) / 4
    second -= (mean.T * inverse * change * inverse * change * inverse * mean)[0] / 2
    answers = _values_at_given_response(-(own["V"] + K.inv()).inv())
    answers["dg/domega_0"] = -(own["V"] + moved.size * own["Delta"] + K.inv()).inv()
    at = ExactValues({"D": D, "alpha": sp.Integer(1), **answers})
    return is_exactly_zero(second - sum(e**2 for e in eps) * at(after["sentences"]))


@declare_test(
    "stationary in the perturbations",
    "derivatives of the second variation in the perturbations of both of two tokens, s = 2, exactly",
    ("trace", "rows", "sentences", "D_hat", "D_prime"),
)
def _check_stationary_perturbation(_before: Expressions, after: Expressions) -> bool:
    """Return whether the second variation is stationary at the perturbations that the step returns.

    There are two tokens and s = 2; the responses of their fields to each other are the blocks of one symmetric matrix.
    """
    source, size, tokens = RandomRationals("stationary"), 2, range(2)
    whole = source.draw_symmetric_matrix(size * len(tokens))
    D, H = ([_symmetric_matrix_of_symbols(f"{name}{l}", size) for l in tokens] for name in "DH")
    gammas = [abs(source.draw_number()) for _ in tokens]
    contexts = [{"token": l, "D": D[l], "D_hat": H[l], "gamma": gammas[l]} for l in tokens]

    def responses(at: ExactValues) -> list[tuple[int, dict[str, Any]]]:
        blocks = [whole[size * at.values["token"] :, size * k : size * k + size][:size, :] for k in tokens]
        return [(1, {"dg/domega": block, "dg/domega_0": block, "D": D[k]}) for k, block in enumerate(blocks)]

    values = {**_values_at_given_response(source.draw_symmetric_matrix(size)), "alpha": abs(source.draw_number())}
    values["Gamma"] = sum((g * h for g, h in zip(gammas, H, strict=True)), sp.zeros(size, size))
    at = ExactValues(values, {CONTEXTS: [(1, own) for own in contexts], TOKENS: responses})
    total = sp.Add(*[at(after[name]) for name in ("trace", "rows", "sentences")])
    for own in contexts:
        here = at.with_added_values(own)
        for variable, gap in ((own["D"], here(after["D_hat"]) - own["D_hat"]),
                              (own["D_hat"], here(after["D_prime"]) - own["D"])):  # fmt: skip
            for i in range(size):
                for j in range(i, size):
                    # The condition in D_ij: -1/2 D^ + 1/2 (right side of D^) = 0, twice off the diagonal.
                    weight = sp.Rational(1, 2) * (1 if i == j else 2)
                    if not is_exactly_zero(sp.expand(total.diff(variable[i, j]) - weight * gap[i, j])):
                        return False
    return True


def _symmetric_matrix_of_symbols(stem: str, size: int) -> sp.Matrix:
    """Return a symmetric matrix of symbols whose names start with a given stem."""
    return sp.Matrix(size, size, lambda i, j: sp.Symbol(f"{stem}_{min(i, j)}{max(i, j)}"))


@declare_test(
    "equal to the map of GAMP",
    "as symbols, with the covariance of perturbations carried once through channel and prior",
    ("D_hat", "D_prime"),
)
def _check_message_passing_stability(
    _before: Expressions, after: Expressions, operator: RepliconMap, p: OrderParameterSymbols
) -> bool:
    Gamma = MatrixAverage(CONTEXTS, p.gamma * operator.D_hat)
    prior = after["D_prime"].xreplace({prior_perturbation(p): Gamma})
    return bool(after["D_hat"].doit() == operator.channel) and bool(prior.doit() == operator.prior.doit())


@declare_test(
    "longitudinal, from conjugates to overlaps",
    "the derivative of each overlap along a change of the rows' sums over conjugates, s = t = 2, exactly",
    ("dq", "dV", "dm", "dtheta"),
)
def _check_longitudinal_stability(_before: Expressions, after: Expressions) -> bool:
    """Return whether the derivatives of the overlaps in G, B and Q agree with those of closed formulas for a ridge.

    G is a row's precision, B and Q are mean and covariance of its field. The formulas are q = gamma R (B B^T + Q) R and
    so on, with the resolvent R = (Lambda + G)^{-1}.
    """
    own, source, epsilon = (
        random_cluster_matrices("longitudinal"),
        RandomRationals("longitudinal"),
        sp.Symbol("epsilon"),
    )
    values = {**own, **random_common_values("longitudinal", [own])}
    moves = {
        "dG": source.draw_symmetric_matrix(2),
        "dB": source.draw_matrix(2, 1),
        "dQ": source.draw_symmetric_matrix(2),
    }
    G, B, Q = (values[name] + epsilon * moves[f"d{name}"] for name in "GBQ")
    R = (values["Lambda"] + G).inv()
    overlaps = {
        "dq": own["gamma"] * R * (B * B.T + Q) * R, "dV": own["gamma"] * R, "dm": own["tau"] * R * B,
        "dtheta": own["gamma"] * R * B * values["pi"].T,
    }  # fmt: skip
    at = ExactValues({**values, **moves})
    return all(
        is_exactly_zero(at(after[name]) - moved.diff(epsilon).subs(epsilon, 0)) for name, moved in overlaps.items()
    )
