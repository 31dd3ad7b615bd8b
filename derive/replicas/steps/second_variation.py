"""Step 9: the stability operators; the replicon out of the second variation of the replicated action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Average, Jacobian, MatrixAverage, Symbols, symmetrised
from ...theory.free_entropy import FreeEntropy
from ...theory.saddle_point import saddle_point
from ...theory.stability import TOKENS, Replicon, entropic_potential, longitudinal, prior_response, replicon
from ..algebra.exact import Source, Values, explicit, is_zero
from ..algebra.levels import parisi
from ..algebra.objects import PAIRS, replicated, scalars_out
from ..algebra.step import Expressions, Step, Test, declare_test
from .ansatz import example, shared


def strength() -> sp.Symbol:
    """epsilon_ab = epsilon_ba, its rows sum to zero and its diagonal vanishes: a replicon direction (n >= 4)."""
    return sp.Symbol("epsilon|ab", real=True)


def composite(p: Symbols) -> sp.MatrixSymbol:
    """Gamma = sum_c gamma_c D^_c: what a row of the weights feels of the conjugates' perturbations."""
    return sp.MatrixSymbol("Gamma", p.s, p.s)


def perturbations(p: Symbols) -> tuple[sp.MatrixSymbol, sp.MatrixSymbol]:
    """D and D_hat: q_ab = q + epsilon_ab D, q_hat_ab = q_hat + epsilon_ab D_hat."""
    return sp.MatrixSymbol("D", p.s, p.s), sp.MatrixSymbol("D_hat", p.s, p.s)


def second_cumulant(matrix: MatrixExpr, perturbation: MatrixExpr) -> MatrixExpr:
    """T with 1/4 Tr[K T] the second cumulant of 1/2 sum_ab epsilon_ab z_a^T K z_b, over sum_ab epsilon_ab^2.

    K is `perturbation`; the z_a are independent and alike, of covariance `matrix`. Means drop out: the rows of
    epsilon sum to zero.
    """
    return matrix * perturbation * matrix.T


@dataclass(frozen=True)
class Perturbed:
    """Which overlaps are moved, and what answers.

    Attributes:
        field, row: responses of g and of a row (s x s).
        sentences, rows: kinds of the averages over the states of a block around the carried covariance, where a single
            state answers; empty where a block answers as a whole.
        blocks, size: how many blocks there are of how many replicas, where matrices are written out; within: whether
            overlaps within blocks are moved (those of different blocks else).
    """

    field: MatrixExpr
    row: MatrixExpr
    sentences: str = ""
    rows: str = ""
    blocks: tuple[int, ...] = (4, 5)
    size: int = 1
    within: bool = False

    def direction(self, blocks: int) -> sp.Matrix:
        """epsilon of all replicas."""
        if self.within:
            return sp.Matrix(sp.kronecker_product(sp.diag(1, *[2] * (blocks - 1)), direction(self.size)))
        return sp.Matrix(sp.kronecker_product(direction(blocks), sp.ones(self.size, self.size)))


def variation(p: Symbols, action: Expressions, moved: Perturbed) -> dict[str, Any]:
    """The second variation of the three potentials, and where it is stationary in D and in D_hat."""
    D, _ = perturbations(p)
    Gamma = composite(p)
    through = _over_states(moved.sentences, MatrixAverage(TOKENS, second_cumulant(moved.field, D)))
    back = _over_states(moved.rows, symmetrised(second_cumulant(moved.row, Gamma), p))
    return {
        "trace": Average(CONTEXTS, trace_variation(p, action["trace"])),
        "rows": Average(COORDINATE, sp.Trace(Gamma * back) / 4),
        "sentences": p.alpha * (Average(CONTEXTS, sp.Trace(D * MatrixAverage(CHANNEL, through))) / 4),
        "D_hat": p.alpha * MatrixAverage(CHANNEL, through),
        "D_prime": MatrixAverage(COORDINATE, p.gamma * back),
    }


def _over_states(kind: str, carried: MatrixExpr) -> MatrixExpr:
    return MatrixAverage(kind, carried) if kind else carried


def step(p: Symbols, action: Expressions, zero: Expressions) -> Step:
    """Perturb the replica-symmetric point in a direction that keeps it symmetric on average; expand to second order."""
    phi = FreeEntropy(zero["Phi"], p)
    moved = Perturbed(Jacobian(p.g, p.omega), symmetrised(prior_response(phi), p))
    operator = replicon(phi)
    after = variation(p, action, moved)
    tests = [*integer_tests(p, moved), _is_gamp(operator, p)]
    if not p.trained and not p.loss_holds_q and entropic_potential(phi) != p.envelope:
        linear = longitudinal(saddle_point(phi))
        after |= {f"d{name}": change for name, change in linear.prior.items()}
        tests.append(_longitudinal_holds())
    return Step(
        9,
        "Stability of the replica-symmetric saddle point",
        given(p, action),
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


def given(p: Symbols, action: Expressions) -> dict[str, Any]:
    """What goes in: potentials of step 3, and the perturbation."""
    moved = {z.name: value for z, value in perturbed(p).items()}
    return {"trace": action["trace"], "entropic": action["entropic"], **moved}


def perturbed(p: Symbols) -> dict[sp.MatrixSymbol, MatrixExpr]:
    """Return the overlap and the conjugate of two replicas, moved."""
    moves = zip((p.q, p.q_hat), perturbations(p), strict=True)
    return {replicated(z, "ab"): z + strength() * move for z, move in moves}


def integer_tests(p: Symbols, moved: Perturbed) -> tuple[Test, ...]:
    """What holds at any integer number of replicas, whichever overlaps are moved."""
    where = "n = 4, 5"
    if moved.size > 1:
        where = " and ".join(f"n = {count * moved.size}" for count in moved.blocks) + f" in blocks of {moved.size}"
    fewest = moved.blocks[0] * moved.size
    return (
        _cumulant_holds(),
        _rows_hold(p, moved, where=where),
        _sentences_hold(moved, fewest=fewest),
        _is_stationary(),
    )


def trace_variation(p: Symbols, trace: sp.Expr) -> sp.Expr:
    """The coefficient of eps_ab^2 in the trace term of step 3, per pair."""
    (whole,) = [a for a in trace.atoms(Average) if a.kind == CONTEXTS]
    (pairs,) = [a for a in whole.atoms(Average) if a.kind == PAIRS]
    number = sp.Mul(
        *[a for term in whole.summand.args if term.has(pairs) for a in sp.Mul.make_args(term) if a != pairs]
    )
    _, D_hat = perturbations(p)
    expanded = scalars_out(pairs.summand.xreplace(perturbed(p)).xreplace({D_hat.T: D_hat}))
    return number * sp.expand(expanded).coeff(strength(), 2).xreplace({D_hat.T: D_hat})


# --- checks -----------------------------------------------------------------------------------------------------------


def direction(replicas: int) -> sp.Matrix:
    """A symmetric matrix with zero diagonal whose rows sum to zero, as general as `replicas` allows."""
    unknown = {(a, b): sp.Symbol(f"e{a}{b}") for a in range(replicas) for b in range(a + 1, replicas)}
    matrix = sp.Matrix(replicas, replicas, lambda a, b: 0 if a == b else unknown[min(a, b), max(a, b)])
    solution = sp.solve([sum(matrix.row(a)) for a in range(replicas)], list(unknown.values()), dict=True)[0]
    matrix = matrix.subs(solution)
    free = sorted(matrix.free_symbols, key=str)
    return matrix.subs({symbol: (2, -3, 5, 1, 7)[i % 5] for i, symbol in enumerate(free)})


@cache
def _written_out(replicas: int, size: int) -> sp.Expr:
    """<P^2>/2 for P = 1/2 sum_ab eps_ab z_a^T K z_b, from moments mu_i and mu_ij of each independent z_a."""
    eps, K = direction(replicas), cumulant_matrices(size)["K"]
    z = sp.Matrix(sp.symbols(f"z:{replicas * size}"))  # of replica after replica
    P = (z.T * sp.Matrix(sp.kronecker_product(eps, K)) * z)[0] / 2
    mean, second = cumulant_matrices(size)["mean"], cumulant_matrices(size)["second"]
    total: sp.Expr = sp.Integer(0)
    for powers, number in sp.Poly(sp.expand(P**2), *z).terms():
        for a in range(replicas):
            own = [i for i in range(size) for _ in range(powers[a * size + i])]  # at most two factors of a replica
            if own:
                number *= mean[own[0]] if len(own) == 1 else second[own[0], own[1]]
        total += number
    return total / 2


@cache
def cumulant_matrices(size: int) -> dict[str, sp.Matrix]:
    """K, and the first two moments of z."""
    source = Source("cumulant")
    covariance, mean = source.positive(size), source.matrix(size, 1)
    return {"K": source.symmetric(size), "mean": mean, "covariance": covariance, "second": covariance + mean * mean.T}


@declare_test(
    "second cumulant at integer n",
    "a quadratic form of independent vectors squared, moment by moment; s = 1 at n = 4, 5, s = 2 at n = 4",
    ("rows", "sentences"),
)
def _cumulant_holds(_before: Expressions, after: Expressions) -> bool:
    """For rows z = w at its field, for sentences the derivatives of exp(log I): the same algebra of moments."""
    for size, replicas in ((1, 4), (1, 5), (2, 4)):
        known = cumulant_matrices(size)
        squares = sum(e**2 for e in direction(replicas))
        values = {"Gamma": known["K"], "D": known["K"], "alpha": sp.Integer(1)}
        at = Values({**values, **_responding(known["covariance"])})
        for name in ("rows", "sentences"):
            if not is_zero(_written_out(replicas, size) - squares * at(after[name])):
                return False
    return True


def _responding(response: sp.Matrix) -> dict[str, Any]:
    """Values at which every response is a given symmetric matrix: dg/domega, dw/db, or the resolvent of ridge."""
    responses = {"dg/domega": response, "dg/domega_0": response, "dw/db": response, "dw/db_0": response}
    zero = sp.zeros(*response.shape)
    return {**responses, "G": response.inv(), "Lambda": zero, "Q_Delta": zero, parisi.name: sp.Integer(1)}


@declare_test(
    "rows at integer n",
    "normal integral over n s weights of ridge, second order in the perturbation, {where}, s = 2, exactly",
    ("trace", "rows"),
)
def _rows_hold(before: Expressions, after: Expressions, p: Symbols, moved: Perturbed) -> bool:
    """Trace and rows of step 3 at q_hat + eps D^, ridge; the response at finite temperature is that over beta."""
    own, source = example("replicon rows"), Source("replicon rows")
    values, D, D_hat = shared("replicon rows", [own]), source.symmetric(2), source.symmetric(2)
    precision, epsilon = values["beta"] * values["Lambda"] + values["G"], sp.Symbol("epsilon")
    zero = dict.fromkeys(("r", "r_hat", "theta", "theta_hat"), lambda _at, _: sp.zeros(2, 2))
    zero |= dict.fromkeys(("m", "m_hat"), lambda _at, _: sp.zeros(2, 1))

    def of_pairs(base: sp.Matrix, move: sp.Matrix, eps: sp.Matrix) -> Callable[[Values, str], sp.Matrix]:
        """Of the pair |12, say."""
        return lambda _at, suffix: base + epsilon * eps[int(suffix[1]) - 1, int(suffix[2]) - 1] * move

    for blocks in moved.blocks:
        eps, replicas = moved.direction(blocks), blocks * moved.size
        squares = sum(e**2 for e in eps)
        inner = [(moved.size, -values["Q_Delta"])] if moved.size > 1 else []
        whole = explicit(precision, [*inner, (replicas, -values["Q"])], replicas)
        stacked = sp.Matrix.vstack(*[values["B"]] * replicas)
        inverse = whole.inv()
        change = -own["gamma"] * sp.Matrix(sp.kronecker_product(eps, D_hat))
        # Second-order term of -1/2 log det and of 1/2 B^T K^{-1} B at K + epsilon change.
        second = sp.trace(inverse * change * inverse * change) / 4
        second += (stacked.T * inverse * change * inverse * change * inverse * stacked)[0] / 2
        size = sp.Integer(moved.size)
        answers = {**_responding(precision.inv()), "Q_Delta": values["Q_Delta"], parisi.name: size}
        answers["dw/db_0"] = (precision - size * values["Q_Delta"]).inv()
        at = Values({"Gamma": own["gamma"] * D_hat, **answers})
        if not is_zero(second - squares * at(after["rows"])):
            return False
        # Trace: replica by replica, out of step 3; the same overlap of all pairs beside the perturbation.
        pairs = {"q": of_pairs(own["q"], D, eps), "q_hat": of_pairs(own["q_hat"], D_hat, eps)}
        written = Values({**zero, **pairs}, replicas=replicas)(before["trace"])
        coefficient = sp.expand(written).coeff(epsilon, 2)
        if not is_zero(coefficient - squares * Values({"D": D, "D_hat": D_hat})(after["trace"])):
            return False
    return True


@declare_test(
    "sentences at integer n",
    "square loss averaged over the perturbed law of n fields, second order, n = {fewest}, s = t = 2, exactly",
    ("sentences",),
)
def _sentences_hold(_before: Expressions, after: Expressions, moved: Perturbed) -> bool:
    """log E exp(-sum_a 1/2 (X_a - E Y)^T K (X_a - E Y)) with Cov(X_a, X_b) moved by eps_ab D.

    The response is -(V + K^{-1})^{-1}, that of a block of k replicas -(V + k Delta + K^{-1})^{-1}.
    """
    own, source, s = example("replicon sentences"), Source("replicon sentences"), 2
    K, E, D = source.positive(s), source.matrix(s, s), source.symmetric(s)
    replicas = moved.blocks[0] * moved.size
    eps = moved.direction(moved.blocks[0])
    shared_by_all = own["q"] - own["theta"] * E.T - E * own["theta"].T + E * own["rho_star"] * E.T
    inner = [(moved.size, own["Delta"])] if moved.size > 1 else []
    student = explicit(own["V"], [*inner, (replicas, shared_by_all)], replicas)
    change = sp.Matrix(sp.kronecker_product(eps, D))
    mean = sp.Matrix.vstack(*[own["m"] - E * own["m_star"]] * replicas)
    stiffness = sp.Matrix(sp.kronecker_product(sp.eye(replicas), K))
    # -1/2 log det(1 + S K) - 1/2 mean^T (S + 1/K)^{-1} mean at S = Cov(X - E Y) + epsilon change, to second order.
    inverse = (student + stiffness.inv()).inv()
    second = sp.trace(inverse * change * inverse * change) / 4
    second -= (mean.T * inverse * change * inverse * change * inverse * mean)[0] / 2
    answers = _responding(-(own["V"] + K.inv()).inv())
    answers["dg/domega_0"] = -(own["V"] + moved.size * own["Delta"] + K.inv()).inv()
    at = Values({"D": D, "alpha": sp.Integer(1), **answers})
    return is_zero(second - sum(e**2 for e in eps) * at(after["sentences"]))


@declare_test(
    "stationary in the perturbations",
    "derivatives of the second variation in the perturbations of both of two tokens, s = 2, exactly",
    ("trace", "rows", "sentences", "D_hat", "D_prime"),
)
def _is_stationary(_before: Expressions, after: Expressions) -> bool:
    """Two tokens of one cluster each, s = 2: the field's responses G_ll' are the blocks of a symmetric matrix."""
    source, size, tokens = Source("stationary"), 2, range(2)
    whole = source.symmetric(size * len(tokens))
    D, H = ([_letters(f"{name}{l}", size) for l in tokens] for name in "DH")
    gammas = [abs(source.number()) for _ in tokens]
    contexts = [{"token": l, "D": D[l], "D_hat": H[l], "gamma": gammas[l]} for l in tokens]

    def responses(at: Values) -> list[tuple[int, dict[str, Any]]]:
        blocks = [whole[size * at.values["token"] :, size * k : size * k + size][:size, :] for k in tokens]
        return [(1, {"dg/domega": block, "dg/domega_0": block, "D": D[k]}) for k, block in enumerate(blocks)]

    values = {**_responding(source.symmetric(size)), "alpha": abs(source.number())}
    values["Gamma"] = sum((g * h for g, h in zip(gammas, H, strict=True)), sp.zeros(size, size))
    at = Values(values, {CONTEXTS: [(1, own) for own in contexts], TOKENS: responses})
    total = sp.Add(*[at(after[name]) for name in ("trace", "rows", "sentences")])
    for own in contexts:
        here = at.having(own)
        for variable, gap in ((own["D"], here(after["D_hat"]) - own["D_hat"]),
                              (own["D_hat"], here(after["D_prime"]) - own["D"])):  # fmt: skip
            for i in range(size):
                for j in range(i, size):
                    # The condition in D_ij: -1/2 D^ + 1/2 (what D^ is) = 0, twice off the diagonal.
                    weight = sp.Rational(1, 2) * (1 if i == j else 2)
                    if not is_zero(sp.expand(total.diff(variable[i, j]) - weight * gap[i, j])):
                        return False
    return True


def _letters(stem: str, size: int) -> sp.Matrix:
    """Return a symmetric matrix of symbols."""
    return sp.Matrix(size, size, lambda i, j: sp.Symbol(f"{stem}_{min(i, j)}{max(i, j)}"))


@declare_test(
    "equal to the map of GAMP",
    "as symbols, with the covariance of perturbations carried once through channel and prior",
    ("D_hat", "D_prime"),
)
def _is_gamp(_before: Expressions, after: Expressions, operator: Replicon, p: Symbols) -> bool:
    Gamma = MatrixAverage(CONTEXTS, p.gamma * operator.D_hat)
    prior = after["D_prime"].xreplace({composite(p): Gamma})
    return bool(after["D_hat"].doit() == operator.channel) and bool(prior.doit() == operator.prior.doit())


@declare_test(
    "longitudinal, from conjugates to overlaps",
    "the derivative of each overlap along a change of the rows' sums over conjugates, s = t = 2, exactly",
    ("dq", "dV", "dm", "dtheta"),
)
def _longitudinal_holds(_before: Expressions, after: Expressions) -> bool:
    """q = gamma R (B B^T + Q) R and so on, R = (Lambda + G)^{-1}, along G + eps dG, B + eps dB, Q + eps dQ."""
    own, source, epsilon = example("longitudinal"), Source("longitudinal"), sp.Symbol("epsilon")
    values = {**own, **shared("longitudinal", [own])}
    moves = {"dG": source.symmetric(2), "dB": source.matrix(2, 1), "dQ": source.symmetric(2)}
    G, B, Q = (values[name] + epsilon * moves[f"d{name}"] for name in "GBQ")
    R = (values["Lambda"] + G).inv()
    overlaps = {
        "dq": own["gamma"] * R * (B * B.T + Q) * R, "dV": own["gamma"] * R, "dm": own["tau"] * R * B,
        "dtheta": own["gamma"] * R * B * values["pi"].T,
    }  # fmt: skip
    at = Values({**values, **moves})
    return all(is_zero(at(after[name]) - moved.diff(epsilon).subs(epsilon, 0)) for name, moved in overlaps.items())
