"""Step 4: the ansatz, replica symmetric or with blocks of replicas, at a symbolic number n of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise, permutations
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import CONTEXTS, COORDINATE, Average, OrderParameterSymbols
from ...theory.stability import TOKENS
from ..algebra.exact import (
    ExactValues,
    NormalLaw,
    RandomRationals,
    is_exactly_zero,
    log_gaussian_integral,
    nested_block_matrix,
)
from ..algebra.levels import ReplicaAnsatz
from ..algebra.objects import (
    PAIRS,
    REPLICAS,
    LogDet,
    LogIntegral,
    beta,
    drop_symmetric_transposes,
    factor_out_scalars,
    n,
    replica_symbol,
)
from ..algebra.step import Expressions, Step, StepTest, declare_test
from .action import PENALTY

# Title, rule and source of the step, by number of steps of breaking.
_DESCRIPTIONS = (
    (
        "Replica-symmetric ansatz",
        "All replicas are alike: the overlap of two replicas does not depend on which they are, that of a replica "
        "with itself exceeds it by the variance V. Overlaps and conjugates are then block matrices of two blocks, one "
        "on the diagonal and one everywhere. A normal field shared by the replicas (Hubbard-Stratonovich) then makes "
        "their integrals independent and equal: a power n of one.",
        "arXiv 2402.03902, Appendix C; D. Sherrington, S. Kirkpatrick, Phys. Rev. Lett. 35, 1792 (1975)",
    ),
    (
        "Ansatz with one step of replica symmetry breaking",
        "The n replicas come in blocks, all alike: two replicas of one block have a larger overlap than two of "
        "different blocks. Overlaps and conjugates are then block matrices with one block on the diagonal, one within "
        "the blocks of replicas and one everywhere. One normal field is shared by all replicas, another one by those "
        "of a block (Hubbard-Stratonovich, twice), which leaves a power of a power of one integral.",
        "M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World Scientific (1987)",
    ),
    (
        "Ansatz with two steps of replica symmetry breaking",
        "The n replicas come in blocks of blocks, all alike: two replicas of one inner block have a larger overlap "
        "than two of one block, and these a larger one than two of different blocks. Overlaps and conjugates are then "
        "block matrices with one block on the diagonal, one within the inner blocks, one within the blocks and one "
        "everywhere. One normal field is shared by all replicas, another one by those of a block and a third by those "
        "of an inner one (Hubbard-Stratonovich, three times), which leaves powers of powers of one integral.",
        "M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World Scientific (1987)",
    ),
)
_CASES_IN_WORDS = (
    "n = 1 to 4",
    "n = 2, 4, 6 in blocks of 2 and n = 6 in blocks of 3",
    "n = 4, 8 in blocks of 4 of blocks of 2",
)


def replace_replica_sums_by_counts(expression: sp.Expr, ansatz: ReplicaAnsatz) -> sp.Expr:
    """Return an expression with each sum over replicas, or pairs of them, written as number of terms times one term.

    Args:
        expression: scalar whose summands are the same for all replicas.
        ansatz: grouping of the replicas into blocks.
    """
    if isinstance(expression, Average) and expression.kind in (REPLICAS, PAIRS):
        alike: list[tuple[sp.Expr, dict[Any, Any]]] = [(n, {})]
        if expression.kind == PAIRS:
            alike = [(pairs.number, pairs.symbol_replacements(ansatz.symbols)) for pairs in ansatz.replica_pairs]
        terms = [number * _single_replica_term(expression.summand.xreplace(values), ansatz) for number, values in alike]
        return sp.Add(*terms)
    if isinstance(expression, sp.Add | sp.Mul):
        return expression.func(*[replace_replica_sums_by_counts(a, ansatz) for a in expression.args])
    return expression


def _single_replica_term(summand: sp.Expr, ansatz: ReplicaAnsatz) -> sp.Expr:
    """Return a summand of a sum over replicas that is the same in all replicas.

    A summand that contains a replica index raises ValueError.
    """
    if any("|" in z.name for z in summand.atoms(sp.MatrixSymbol, sp.Symbol)):
        raise ValueError(f"the summand {summand} depends on the replica; it must be the same in all replicas")
    return drop_symmetric_transposes(factor_out_scalars(summand), ansatz.symbols)


def ansatz_step(ansatz: ReplicaAnsatz, action: Expressions, ridge: bool) -> Step:
    """Return derivation step 4: the replicated action with the ansatz for the overlaps substituted.

    Rows of W and samples of different replicas are then coupled only through the fields that they share.

    Args:
        ansatz: grouping of the replicas into blocks.
        action: results of step 3, the replicated action.
        ridge: whether the closed form of a ridge is added.
    """
    p, (name, rule, citation) = ansatz.symbols, _DESCRIPTIONS[ansatz.steps]
    (trace,) = [a for a in action["trace"].atoms(Average) if a.kind == CONTEXTS]
    alike = drop_symmetric_transposes(
        factor_out_scalars(trace.summand.xreplace(ansatz.single_replica_order_parameters)), p
    )
    after: dict[str, Any] = {
        "trace": Average(CONTEXTS, sp.expand(replace_replica_sums_by_counts(alike, ansatz))),
        "entropic": entropic_potential(ansatz, action["entropic"]),
        "energetic": energetic_potential(ansatz),
        "covariance": covariance_of_shared_fields(p),
    }
    if p.trained:
        after["trained"] = sp.expand(
            replace_replica_sums_by_counts(action["trained"].xreplace(ansatz.single_replica_order_parameters), ansatz)
        )
    where = _CASES_IN_WORDS[ansatz.steps]
    fields = "a field for all replicas, one a block" if ansatz.steps else "one field for all replicas"
    tests = [
        _check_trace_under_ansatz(ansatz, where=where),
        StepTest(
            f"rows: {fields}",
            f"normal integrals over n s weights against the power of one, {where}, s = t = 2, two contexts, exactly",
            lambda before, after: _check_row_potential(before, after, ansatz, "entropic"),
            ("entropic",),
        ),
        _check_sample_potential(ansatz, where=where, fields=fields),
    ]
    if ridge:
        after["entropic of ridge"] = ridge_entropic_potential(ansatz)
        tests.append(
            StepTest(
                "rows of ridge: block matrices",
                f"normal integral over n s weights, {where}, s = t = 2, two contexts, exactly",
                lambda before, after: _check_row_potential(before, after, ansatz, "entropic of ridge"),
                ("entropic of ridge",),
            )
        )
    return Step(4, name, dict(action), after, rule, citation, tuple(tests))


def entropic_potential(ansatz: ReplicaAnsatz, potential: sp.Expr) -> sp.Expr:
    """Return the entropic potential of the rows of W under the replica ansatz.

    The coupling exp(1/2 sum_ab w_a^T Q w_b) of the rows w_a of the replicas a is written as the average of exp(sum_a
    w_a^T h) over a normal field h of covariance Q, which the replicas share; b = B + h includes the mean field B.

    Args:
        ansatz: grouping of the replicas into blocks.
        potential: term of the rows of W in the replicated action.

    Raises:
        ValueError: the replicas of a level's blocks are not coupled through sums of w_a alone.
    """
    p = ansatz.symbols
    (integral,) = potential.atoms(LogIntegral)
    exponent = factor_out_scalars(integral.log_integrand.xreplace(ansatz.single_replica_order_parameters))
    # A sum over contexts of gamma V^ is G, and so on: the conjugates enter in no other way (a check verifies it).
    collected = {p.V_hat: p.G / p.gamma, p.m_hat: p.B / p.tau, p.theta_hat: p.theta_hat * 0}
    collected |= {level.conjugate: level.composite / p.gamma for level in ansatz.levels}
    single_replica_order_parameters: sp.Expr = sp.Integer(0)
    diagonal: sp.Expr = sp.Integer(0)
    pairs: list[sp.Expr] = [sp.Integer(0)] * len(ansatz.levels)
    w = {replica_symbol(p.w, a): p.w for a in "ab"} | {replica_symbol(PENALTY, "a"): PENALTY}
    for term in sp.Add.make_args(sp.expand(exponent)):
        (sum_,) = [a for a in term.atoms(Average) if a.kind in (REPLICAS, PAIRS)]
        number = sp.Mul(*[factor for factor in sp.Mul.make_args(term) if not isinstance(factor, Average)])
        if sum_.kind == PAIRS:
            for i, kind in enumerate(ansatz.replica_pairs):
                held = sum_.summand.xreplace(kind.symbol_replacements(p)).xreplace(collected).xreplace(w)
                pairs[i] += number * factor_out_scalars(held)
            continue
        inside = factor_out_scalars(sum_.summand.xreplace(collected).xreplace(w))
        if inside.has(*[level.composite for level in ansatz.levels]):
            diagonal += number * inside
        else:
            single_replica_order_parameters += number * inside
    for i, coupling in enumerate([*pairs, diagonal]):
        shared = [level.composite for level in ansatz.levels[: i + 1]]
        expected = sp.Add(*[sp.Trace(p.w.T * Q * p.w) / 2 for Q in shared])
        if sp.expand(_reorder_traces(coupling, p) - expected) != 0:
            raise ValueError(
                f"the coupling {coupling} of replicas is not 1/2 Tr[w^T Q w] with Q = {sp.MatAdd(*shared)}"
            )
    # The field b = B + h collects the linear term.
    shifted = _reorder_traces(single_replica_order_parameters, p).xreplace({p.B: p.b})
    return Average(COORDINATE, ansatz.log_of_averaged_power(LogIntegral(shifted, p.w), rows=True))


def _reorder_traces(expression: sp.Expr, p: OrderParameterSymbols) -> sp.Expr:
    """Return an expression with Tr[A w w^T] as Tr[w^T A w] and Tr[B^T w] as Tr[w^T B], for symmetric A."""
    result: sp.Expr = sp.Integer(0)
    for term in sp.Add.make_args(factor_out_scalars(drop_symmetric_transposes(expression, p))):
        for trace in term.atoms(sp.Trace):
            factors = list(sp.MatMul.make_args(trace.arg))
            if factors[-1] == p.w.T:
                term = term.xreplace({trace: sp.Trace(sp.MatMul(factors[-1], *factors[:-1]))})
            elif factors[-1] == p.w:
                term = term.xreplace({trace: sp.Trace(sp.MatMul(p.w.T, factors[0].T.doit()))})
        result += term
    return result


def proximal_quadratic(p: OrderParameterSymbols) -> sp.Expr:
    """Return 1/2 (x - omega)^T V^{-1} (x - omega), the quadratic term of the proximal objective."""
    x = sp.MatrixSymbol("x", p.s, 1)
    local = sp.Add(*[term for term in p.proximal_objective.args if term != p.loss])
    return local.xreplace({p.step: x - p.omega})


def energetic_potential(ansatz: ReplicaAnsatz) -> sp.Expr:
    """Return the energetic potential of all replicas: alpha times the log average of a sample's Boltzmann weight.

    The field of replica a is X_a = omega + z_a, with omega shared within a block and independent z_a of covariance V.
    """
    p = ansatz.symbols
    x = sp.MatrixSymbol("x", p.s, 1)
    norm = (LogDet(p.V) + p.s * sp.log(2 * sp.pi)) / 2
    density = -beta * p.loss - Average(TOKENS, proximal_quadratic(p) + norm)
    return p.alpha * ansatz.log_of_averaged_power(LogIntegral(density, x))


def covariance_of_shared_fields(p: OrderParameterSymbols) -> sp.BlockMatrix:
    """Return the joint covariance of the field that all replicas share and of the teacher's field."""
    return sp.BlockMatrix([[p.q, p.theta], [p.theta.T, p.rho_star]])


def ridge_entropic_potential(ansatz: ReplicaAnsatz) -> sp.Expr:
    """Return the entropic potential of the rows of W for a ridge, a normal integral (docs/theory.md (18.5)).

    The precision is beta Lambda (ridge) plus G (from the conjugates of the variances) for each replica, minus the
    covariances of the fields that replicas share. The matrix of ones of a block of k replicas has the eigenvalue k
    once, and 0 in all orthogonal directions.
    """
    p, log_det, number = ansatz.symbols, sp.Integer(0), n
    precision: MatrixExpr = beta * p.Lambda + p.G
    for level in reversed(ansatz.levels):
        log_det, number = log_det + (number - n / level.size) * LogDet(precision), n / level.size
        precision = precision + level.size * (-1 * level.composite)
    log_det = log_det + number * LogDet(precision)
    shift = n * sp.Trace(p.B.T * precision.doit().inv() * p.B) / 2
    return Average(COORDINATE, n * p.s * sp.log(2 * sp.pi) / 2 - log_det / 2 + shift)


# --- explicit matrices at integer n -----------------------------------------------------------------------------------


def random_cluster_matrices(name: str, size: int = 2) -> dict[str, Any]:
    """Return by name random exact order parameters of one (token, cluster) pair.

    They are positive definite where they must be, with q_hat small enough for eight replicas.

    Args:
        name: text that seeds the random numbers.
        size: number of columns of W and of W*.
    """
    source = RandomRationals(name)
    overlap = source.draw_spd_matrix(2 * size)
    known = {
        "q": overlap[:size, :size], "theta": overlap[:size, size:], "rho_star": overlap[size:, size:],
        "V": source.draw_spd_matrix(size), "V_hat": source.draw_spd_matrix(size),
        "q_hat": source.draw_spd_matrix(size) / 200,
        "m": source.draw_matrix(size, 1), "m_hat": source.draw_matrix(size, 1),
        "theta_hat": source.draw_matrix(size, size),
        "m_star": source.draw_matrix(size, 1), "gamma": abs(source.draw_number()), "tau": source.draw_number(),
        "phi": source.draw_matrix(size, 1), "Delta": source.draw_spd_matrix(size) / 4,
        "Delta_hat": source.draw_spd_matrix(size) / 100,
    }  # fmt: skip
    of_two = {f"Delta_{k}": source.draw_spd_matrix(size) / 6 for k in (1, 2)}
    return known | of_two | {f"{name}_hat": source.draw_spd_matrix(size) / 200 for name in of_two}


def random_common_values(name: str, contexts: list[dict[str, Any]], size: int = 2) -> dict[str, Any]:
    """Return by name random values that all (token, cluster) pairs share.

    These are a ridge, a row of the teacher, a temperature, and the row's prior parameters G, Q and B that follow from
    the given matrices.

    Args:
        name: text that seeds the random numbers.
        contexts: matrices of every (token, cluster) pair, from `random_cluster_matrices`.
        size: number of columns of W and of W*.
    """
    source = RandomRationals(name)
    pi = source.draw_matrix(size, 1)
    weights = [(own["gamma"], own) for own in contexts]
    zero, vector = sp.zeros(size, size), sp.zeros(size, 1)
    return {
        "pi": pi, "beta": sp.Rational(3, 2), "alpha": sp.Rational(5, 3), "s": sp.Integer(size),
        "Lambda": sp.diag(*[1 + abs(source.draw_number()) for _ in range(size)]),
        "G": sum((g * own["V_hat"] for g, own in weights), zero),
        "Q": sum((g * own["q_hat"] for g, own in weights), zero),
        **{f"Q_Delta{k}": sum((g * own[f"Delta{k}_hat"] for g, own in weights), zero) for k in ("", "_1", "_2")},
        "B": sum((own["tau"] * own["m_hat"] + g * own["theta_hat"] * pi for g, own in weights), vector),
        "w": sp.zeros(size, 1), "b": sp.zeros(size, 1), "x": sp.zeros(size, 1), "omega": sp.zeros(size, 1),
        "Y": vector, **{f"{field}_{k}": vector for field in ("omega", "b") for k in (0, 1)},
    }  # fmt: skip


def field_laws(ansatz: ReplicaAnsatz) -> dict[str, Callable[[ExactValues], NormalLaw]]:
    """Return the normal laws of the fields that replicas share, one per level of blocks and kind of average.

    The mean of a field is the field of the next outer level.
    """
    p, outermost = ansatz.symbols, ansatz.levels[0]

    def law_of_outermost_fields(at: ExactValues) -> NormalLaw:
        return NormalLaw(
            (outermost.field.name, "Y"), sp.Matrix.vstack(at(p.m), at(p.m_star)), at(covariance_of_shared_fields(p))
        )

    def normal_law_of_field(
        field: sp.MatrixSymbol, mean: sp.MatrixSymbol, covariance: sp.MatrixSymbol
    ) -> Callable[[ExactValues], NormalLaw]:
        """Return a function that computes the normal law of one field from the values of all symbols.

        Args:
            field: field of a level.
            mean: field of the next outer level.
            covariance: covariance of this field.
        """
        return lambda at: NormalLaw((field.name,), at(mean), at(covariance))

    law_of_row = normal_law_of_field(outermost.row_field, p.B, p.Q)
    found = {outermost.channel: law_of_outermost_fields, outermost.rows: law_of_row}
    for outer, inner in pairwise(ansatz.levels):
        found[inner.channel] = normal_law_of_field(inner.field, outer.field, inner.overlap)
        found[inner.rows] = normal_law_of_field(inner.row_field, outer.row_field, inner.composite)
    return found


def ridge_penalty(at: ExactValues, suffix: str) -> sp.Expr:
    """Return the value 1/2 w^T Lambda w of the ridge penalty of one replica's row w (docs/theory.md (1.4)).

    Args:
        at: matrices and numbers by name.
        suffix: end of the names of one replica, "|1" for example.
    """
    w = at.values[f"w{suffix}"]
    return (w.T * at.values["Lambda"] * w)[0] / 2


def penalty_with_linear_term(at: ExactValues, suffix: str) -> sp.Expr:
    """Return the value of a ridge penalty plus a linear term, which is not even in the row w.

    Args:
        at: matrices and numbers by name.
        suffix: end of the names of one replica, "|1" for example.
    """
    w = at.values[f"w{suffix}"]
    return ridge_penalty(at, suffix) + (RandomRationals("shift").draw_matrix(1, w.rows) * w)[0]


def square_loss(at: ExactValues, suffix: str) -> sp.Expr:
    """Return the value of a square loss 1/2 |C (x - E Y)|^2, with fixed random matrices C and E.

    Args:
        at: matrices and numbers by name.
        suffix: end of the names of one replica, "|1" for example.
    """
    x, y = at.values[f"x{suffix}"], at.values["Y"]
    size = x.rows
    source = RandomRationals("square loss")
    scale, mix = source.draw_matrix(size, size), source.draw_matrix(size, size)
    error = scale * (x - mix * y)
    return (error.T * error)[0] / 2


def overlap_matrices(ansatz: ReplicaAnsatz, own: dict[str, Any], numbers: Sequence[int]) -> tuple[sp.Matrix, sp.Matrix]:
    """Return the overlaps and the conjugates of all replicas as explicit matrices.

    Args:
        ansatz: grouping of the replicas into blocks.
        own: matrices of one (token, cluster) pair, by name.
        numbers: number of replicas in a block of each level, the outermost first.
    """
    replicas, blocks = numbers[0], list(zip(numbers, ansatz.levels, strict=True))
    overlap = nested_block_matrix(own["V"], [(k, own[level.overlap.name]) for k, level in blocks], replicas)
    conjugate = nested_block_matrix(own["V_hat"], [(k, -own[level.conjugate.name]) for k, level in blocks], replicas)
    return overlap, conjugate


def trace_of_replica_matrices(ansatz: ReplicaAnsatz, own: dict[str, Any], numbers: Sequence[int]) -> sp.Expr:
    """Return the trace term of the replicated action at explicit matrices of all replicas, for one pair.

    It is a sum of traces overlap times conjugate of one (token, cluster) pair; conjugates of different replicas have
    the opposite sign in it.

    Args:
        ansatz: grouping of the replicas into blocks.
        own: matrices of one (token, cluster) pair, by name.
        numbers: number of replicas in a block of each level, the outermost first.
    """
    overlap, conjugate = overlap_matrices(ansatz, own, numbers)
    linear = sp.trace(own["m_hat"].T * own["m"]) + sp.trace(own["theta_hat"].T * own["theta"])
    return sp.trace(conjugate * overlap) / 2 - numbers[0] * linear


@declare_test("trace in replica space", "block matrices written out, {where}, s = t = 2, exactly", ("trace", "trained"))
def _check_trace_under_ansatz(_before: Expressions, after: Expressions, ansatz: ReplicaAnsatz) -> bool:
    own = random_cluster_matrices("trace")
    for numbers in ansatz.numbers:
        at = ExactValues({**own, **ansatz.block_sizes(numbers)})
        expected = trace_of_replica_matrices(ansatz, own, numbers)
        if not is_exactly_zero(at(after["trace"]) - expected) or not _check_trained_parameter_potential(after, at):
            return False
    return True


def _check_trained_parameter_potential(after: Expressions, at: ExactValues) -> bool:
    """Return whether the potential of the trained numbers is that of n replicas with the same numbers."""
    if "trained" not in after:
        return True
    phi, kappa = at.values["m"], at.values["q"]
    at = at.with_added_values({"phi": phi, "Kappa": kappa})
    return is_exactly_zero(at(after["trained"]) + at(beta * n) * (phi.T * kappa * phi)[0] / 2)


def _check_row_potential(before: Expressions, after: Expressions, ansatz: ReplicaAnsatz, name: str) -> bool:
    """Return whether a potential of the rows of W agrees with the normal integral over the rows of all replicas."""
    penalty = ridge_penalty if name == "entropic of ridge" else penalty_with_linear_term
    values, _ = _random_row_values()
    (integral,) = before["entropic"].atoms(LogIntegral)
    for numbers, direct in _explicit_row_integrals(integral.log_integrand, penalty, ansatz):
        at = ExactValues({**values, "penalty": penalty, **ansatz.block_sizes(numbers)}, laws=field_laws(ansatz))
        if not is_exactly_zero(at(after[name]) - direct):
            return False
    return True


def _random_row_values() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    contexts = [random_cluster_matrices("row 1"), random_cluster_matrices("row 2")]
    return random_common_values("rows", contexts), contexts


@cache
def _explicit_row_integrals(
    exponent: sp.Expr, penalty: Any, ansatz: ReplicaAnsatz
) -> list[tuple[tuple[int, ...], sp.Expr]]:
    """Return (numbers of replicas by level, log of the normal integral over the rows of all replicas) of each case."""
    values, contexts = _random_row_values()
    results = []
    for numbers in ansatz.numbers:
        replicas = range(numbers[0])
        letters = sp.Matrix(sp.symbols(f"z:{2 * numbers[0]}", real=True))
        copies = {f"w|{a + 1}": letters[2 * a : 2 * a + 2, :] for a in replicas}
        rows = []
        for own in contexts:
            _, conjugate = overlap_matrices(ansatz, own, numbers)
            pairs = {f"q_hat|{a + 1}{b + 1}": -conjugate[2 * a : 2 * a + 2, 2 * b : 2 * b + 2]
                     for a, b in permutations(replicas, 2)}  # fmt: skip
            rows.append((1, {**own, **pairs}))
        at = ExactValues({**values, "penalty": penalty, **copies}, {CONTEXTS: rows}, replicas=numbers[0])
        results.append(
            (
                numbers,
                log_gaussian_integral(at(exponent.xreplace(ansatz.single_replica_order_parameters)), list(letters)),
            )
        )
    return results


@declare_test(
    "sentences: {fields}",
    "the joint normal law of n student fields and the teacher's against the power, {where}, exactly",
    ("energetic", "covariance"),
)
def _check_sample_potential(_before: Expressions, after: Expressions, ansatz: ReplicaAnsatz) -> bool:
    """Return whether the potential of the samples agrees with an average over the joint law of all fields.

    The average is that of exp(-beta sum_a loss(X_a, Y)) over the fields X_a of all replicas and Y.
    """
    own, p, outermost = random_cluster_matrices("sentences"), ansatz.symbols, ansatz.levels[0]
    values = {**own, **random_common_values("sentences", [own]), "loss": square_loss}
    for numbers, direct in _explicit_sample_averages(-beta * Average(REPLICAS, replica_symbol(p.loss, "a")), ansatz):
        at = ExactValues({**values, **ansatz.block_sizes(numbers)})
        joint = NormalLaw(
            (outermost.field.name, "Y"), sp.Matrix.vstack(own["m"], own["m_star"]), at(after["covariance"])
        )
        value = ExactValues(at.values, laws=field_laws(ansatz) | {outermost.channel: joint})(after["energetic"])
        if not is_exactly_zero(value - at(p.alpha) * direct):
            return False
    return True


@cache
def _explicit_sample_averages(exponent: sp.Expr, ansatz: ReplicaAnsatz) -> list[tuple[tuple[int, ...], sp.Expr]]:
    """Return (numbers of replicas by level, log average of a sample's Boltzmann weight) of each explicit case.

    The average is over the joint normal law of the fields of all replicas and of the teacher.
    """
    own = random_cluster_matrices("sentences")
    values = {**own, **random_common_values("sentences", [own])}
    results = []
    for numbers in ansatz.numbers:
        replicas, (student, _) = numbers[0], overlap_matrices(ansatz, own, numbers)
        cross = sp.Matrix.vstack(*[own["theta"]] * replicas)
        joint = NormalLaw(
            (*[f"x|{a + 1}" for a in range(replicas)], "Y"),
            sp.Matrix.vstack(*[own["m"]] * replicas, own["m_star"]),
            sp.Matrix.vstack(sp.Matrix.hstack(student, cross), sp.Matrix.hstack(cross.T, own["rho_star"])),
        )
        copies = {f"x|{a + 1}": sp.zeros(2, 1) for a in range(replicas)}
        at = ExactValues({**values, **copies, "loss": square_loss}, replicas=replicas)
        results.append((numbers, joint.log_expectation_of_exp(exponent, at)))
    return results
