"""Generalised approximate message passing at finite d: its equations, fixed points and state evolution.

They follow from the proximal objective and the row's objective of the free entropy (docs/theory.md section 10).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..authoring.regulariser import Penalty, Regulariser, Ridge
from ..calculus.averages import (
    CHANNEL,
    CONTEXTS,
    COORDINATE,
    Jacobian,
    MatrixAverage,
    OrderParameterSymbols,
    gradient_of_trace,
)
from ..theory.free_entropy import free_entropy
from ..theory.saddle_point import saddle_point
from ..theory.stability import TOKENS
from .algebra.exact import ExactValues, NormalLaw, RandomRationals, is_exactly_zero
from .algebra.objects import SAMPLES
from .algebra.step import Expressions, Step, declare_test
from .steps.ansatz import random_cluster_matrices, random_common_values
from .steps.fields import TokenAndWeights
from .steps.partition import DIMENSION

ENTRY = sp.Symbol("xi_row", real=True)  # coordinate i of token l plus its encoding, over the root of d


def previous_field_symbol(p: OrderParameterSymbols) -> sp.MatrixSymbol:
    """Return the symbol of the field g of message passing at the previous iteration, s x 1."""
    return sp.MatrixSymbol("g_previous", p.s, 1)


def onsager_matrix_symbol(p: OrderParameterSymbols) -> sp.MatrixSymbol:
    """Return the symbol A (s x s) of the Onsager reaction term of one row of W."""
    return sp.MatrixSymbol("A_row", p.s, p.s)


def loss_gradient_symbol(p: OrderParameterSymbols) -> sp.MatrixSymbol:
    """Return the symbol of the loss gradient d loss / dX of one token, s x 1."""
    return sp.MatrixSymbol("loss_gradient", p.s, 1)


def penalty_gradient_symbol(p: OrderParameterSymbols) -> sp.MatrixSymbol:
    """Return the symbol of the penalty gradient d r / dw of one row of W, s x 1."""
    return sp.MatrixSymbol("penalty_gradient", p.s, 1)


@cache
def message_passing_step(
    kind: str = "ridge", trained: int = 0, loss_depends_on_q: bool = False, s: Any = None, t: Any = None
) -> Step:
    """Return derivation step 11: generalised approximate message passing for a kind of regulariser.

    Args:
        kind: "ridge", or "penalty" for any convex one.
        trained: number of O(1) numbers that are trained with the weights.
        loss_depends_on_q: whether the loss depends on the overlaps q of its tokens.
        s: columns of W; a symbol by default.
        t: columns of W*; a symbol by default.
    """
    regulariser: Regulariser = Ridge() if kind == "ridge" else Penalty(lambda w: w)
    saddle = saddle_point(free_entropy(s, t, regulariser, trained, loss_depends_on_q))
    p = saddle.symbols
    after = {**_gamp_iteration_equations(p, kind), **_state_evolution_moments(p)}
    tests = (
        _check_risk_gradient_vanishes(p, kind),
        _check_minimiser_is_fixed_point(kind, p),
        _check_onsager_terms(),
        _check_state_evolution_of_fields(kind),
        _check_state_evolution_of_rows(p),
    )
    return Step(
        11,
        "Message passing at finite dimension",
        {"objective": p.proximal_objective, **{e.target.name: e.jacobian_form for e in saddle.equations}},
        after,
        "On one data set the same quantities are iterated. A sum over coordinates or sentences contains the reaction "
        "of each summand to the sum itself: of second order in the entries of the tokens, it is subtracted (Onsager). "
        "At a fixed point the subtraction undoes itself, so that the gradient of the risk vanishes whatever V and G "
        "are; what is left without it are sums of independent terms, normal for large d, whose moments are the "
        "saddle-point equations where the proximal map does not jump.",
        "arXiv 2402.03902, Appendix B.4; M. Bayati, A. Montanari, IEEE Trans. Inf. Theory 57, 764 (2011), "
        "arXiv 1001.3448; S. Rangan, Proc. IEEE ISIT, 2168 (2011), arXiv 1010.5141",
        tests,
    )


def _token_entry_variance(p: OrderParameterSymbols) -> sp.Expr:
    """Return the leading-order variance gamma / d of a token's coordinate, gamma an eigenvalue of its covariance."""
    return p.gamma / DIMENSION


def _gamp_iteration_equations(p: OrderParameterSymbols, kind: str) -> dict[str, Any]:
    """Return by name the equations of one iteration of generalised approximate message passing."""
    A = onsager_matrix_symbol(p)
    # Responses of a weight to the field that depends on it, and of a field to a weight that depends on it.
    by_rows = MatrixAverage(COORDINATE, DIMENSION * _token_entry_variance(p) * Jacobian(p.w, p.b))
    by_samples = _sum_over_all_tokens(_token_entry_variance(p) * Jacobian(p.g, p.omega))
    gradient = gradient_of_trace(p.proximal_objective, p.step, p)
    field = gradient.xreplace({p.step: sp.MatrixSymbol("x", p.s, 1) - p.omega})
    stiffness = A + sp.MatrixSymbol("N_row", p.s, p.s) if p.loss_depends_on_q else A
    slope = (
        gradient_of_trace(sp.Trace(p.w.T * p.Lambda * p.w) / 2, p.w, p)
        if kind == "ridge"
        else penalty_gradient_symbol(p)
    )
    found: dict[str, Any] = {
        "omega": (_field_of_weights(p) - p.V * previous_field_symbol(p)).doit(),
        "V": by_rows,
        "g": field,
        "proximal": field + loss_gradient_symbol(p),
        "A_row": -1 * by_samples,
        "b": _sum_over_all_tokens(ENTRY * p.g) + A * p.w,
        "row": (slope + stiffness * p.w - p.b).doit(),
    }
    if p.loss_depends_on_q:  # q is a mean over the rows and depends on each of them
        found["N_row"] = 2 * _sum_over_all_tokens(_token_entry_variance(p) * p.loss_q)
    if p.trained:
        found["trained"] = p.Kappa * p.phi + MatrixAverage(SAMPLES, p.loss_phi) / DIMENSION
    return found


def _field_of_weights(p: OrderParameterSymbols) -> MatrixExpr:
    """Return the student's field W^T (x + p) / sqrt(d) of one token x with encoding p."""
    given = TokenAndWeights(p)
    return sp.MatrixSymbol("W", given.d, p.s).T * (given.token + given.encoding) / sp.sqrt(given.d)


def _sum_over_all_tokens(matrix: MatrixExpr) -> MatrixExpr:
    """Return the sum of a matrix over the tokens of all samples."""
    return MatrixAverage(SAMPLES, MatrixAverage(TOKENS, matrix))


def _state_evolution_moments(p: OrderParameterSymbols) -> dict[str, MatrixExpr]:
    """Return by name the moments of message passing's fields omega and b at large dimension d.

    Stein's lemma gives them for a token entry xi = tau/d + sqrt(gamma/d) z with standard normal z. Where a sum contains
    its own reaction, the response to xi cancels the Onsager term.
    """
    field, teacher = Jacobian(p.g, p.omega), Jacobian(p.g, p.Y)
    of_A = p.alpha * MatrixAverage(CHANNEL, field)
    direct = p.tau * p.alpha * MatrixAverage(CHANNEL, p.g)
    through_teacher = p.gamma * p.alpha * MatrixAverage(CHANNEL, teacher) * p.pi
    found = {"limit of N": MatrixAverage(CONTEXTS, 2 * p.alpha * p.gamma * MatrixAverage(CHANNEL, p.loss_q))}
    own, onsager = p.gamma * of_A * p.w, -1 * p.gamma * of_A * p.w
    return {
        "limit of A": -1 * MatrixAverage(CONTEXTS, p.gamma * of_A),
        "mean of b": MatrixAverage(CONTEXTS, (direct + through_teacher + own + onsager).doit()),
        "covariance of b": MatrixAverage(CONTEXTS, p.gamma * p.alpha * MatrixAverage(CHANNEL, p.g * p.g.T)),
        "mean of omega": MatrixAverage(COORDINATE, p.tau * p.w),
        "covariance of omega": MatrixAverage(COORDINATE, p.gamma * p.w * p.w.T),
        "omega with Y": MatrixAverage(COORDINATE, p.gamma * p.w * p.pi.T),
        **(found if p.loss_depends_on_q else {}),
    }


# --- checks -----------------------------------------------------------------------------------------------------------


@declare_test(
    "fixed points of message passing",
    "eliminated from its equations, the fields are those of the weights and the gradient of the risk vanishes, for any "
    "V and G, as symbols",
    ("omega", "b", "g", "proximal", "row"),
)
def _check_risk_gradient_vanishes(
    _before: Expressions, after: Expressions, p: OrderParameterSymbols, kind: str
) -> bool:
    """Return whether the gradient of the risk vanishes at every fixed point of message passing."""
    x, slope = sp.MatrixSymbol("x", p.s, 1), loss_gradient_symbol(p)
    omega = after["omega"].xreplace({previous_field_symbol(p): p.g})
    condition = after["row"].xreplace({p.b: after["b"]}).xreplace({p.g: -slope}).doit()
    gradient = (p.Lambda * p.w if kind == "ridge" else penalty_gradient_symbol(p)) + _sum_over_all_tokens(ENTRY * slope)
    if p.loss_depends_on_q:
        gradient = gradient + sp.MatrixSymbol("N_row", p.s, p.s) * p.w
    vanishing = (
        omega + p.V * p.g - _field_of_weights(p),
        p.V * after["g"] - (x - p.omega),
        after["proximal"] - after["g"] - slope,  # at the proximal point g = -grad loss
        condition.xreplace({_sum_over_all_tokens(-ENTRY * slope): -1 * _sum_over_all_tokens(ENTRY * slope)}) - gradient,
    )
    return all(value.expand().doit() == sp.ZeroMatrix(p.s, 1) for value in vanishing)


@cache
def _random_small_data_set() -> dict[str, Any]:
    """Return a small data set for exact tests: two samples of two tokens in three dimensions.

    The loss is square, with a part linear in the overlaps q and in two trained numbers phi.
    """
    source, d, samples, tokens = RandomRationals("message passing"), 3, 2, 2
    both = [(m, l) for m in range(samples) for l in range(tokens)]
    return {
        "d": d, "both": both, "samples": samples, "tokens": tokens,
        "xi": {place: source.draw_matrix(d, 1) for place in both},
        "y": {place: source.draw_matrix(2, 1) for place in both},
        "V": {place: source.draw_spd_matrix(2) for place in both},
        "A": [source.draw_spd_matrix(2) for _ in range(d)],
        "gamma": [[abs(source.draw_number()) for _ in range(d)] for _ in range(tokens)],
        "K": source.draw_spd_matrix(2), "E": source.draw_matrix(2, 2), "Lambda": source.draw_spd_matrix(2, 9),
        "c": source.draw_matrix(2, 1), "H": [source.draw_spd_matrix(2) for _ in range(samples)],
        "eta": source.draw_matrix(2, 1),
        "Kappa": source.draw_spd_matrix(2),
    }  # fmt: skip


@cache
def _risk_minimiser(kind: str, loss_depends_on_q: bool, trained: int) -> tuple[sp.Matrix, sp.Matrix]:
    """Return weights (d x 2) and trained numbers at the minimum of a small quadratic risk, by linear algebra."""
    data = _random_small_data_set()
    d = data["d"]
    W = sp.Matrix(d, 2, lambda i, a: sp.Symbol(f"w{i}{a}"))
    phi = sp.Matrix(2, 1, lambda i, _: sp.Symbol(f"phi{i}"))
    risk: sp.Expr = sp.Integer(0)
    for place in data["both"]:
        error = W.T * data["xi"][place] - data["E"] * data["y"][place]
        risk += (error.T * data["K"] * error)[0] / 2
        if loss_depends_on_q:
            q = W.T * sp.diag(*data["gamma"][place[1]]) * W / d
            risk += sp.trace(data["H"][place[0]] * q) / 2
    for i in range(d):
        row = W[i, :].T
        risk += (row.T * data["Lambda"] * row)[0] / 2 + (0 if kind == "ridge" else (data["c"].T * row)[0])
    unknown = list(W)
    if trained:
        risk += data["samples"] * (data["eta"].T * phi)[0] + d * (phi.T * data["Kappa"] * phi)[0] / 2
        unknown += list(phi)
    zero = dict.fromkeys(unknown, 0)
    gradient = sp.Matrix([sp.diff(risk, z) for z in unknown])
    solution = gradient.jacobian(unknown).LUsolve(-gradient.xreplace(zero))
    return sp.Matrix(solution[: 2 * d]).reshape(d, 2), sp.Matrix(solution[2 * d :])


@declare_test(
    "minimum of a risk is a fixed point",
    "square loss, quadratic penalty, two sentences of two tokens at d = 3, s = 2, V and G at random, exactly",
    ("omega", "b", "g", "proximal", "row", "N_row", "trained"),
)
def _check_minimiser_is_fixed_point(
    _before: Expressions, after: Expressions, kind: str, p: OrderParameterSymbols
) -> bool:
    """Return whether one iteration leaves the fields of a risk minimiser unchanged."""
    data = _random_small_data_set()
    d, K = data["d"], data["K"]
    W, phi = _risk_minimiser(kind, p.loss_depends_on_q, p.trained)
    fields: dict[tuple[int, int], sp.Matrix] = {}
    for place in data["both"]:
        target, V = data["E"] * data["y"][place], data["V"][place]
        g = fields[place] = -K * (W.T * data["xi"][place] - target)
        values = {
            "W": W, "token": sp.sqrt(d) * data["xi"][place], "encoding": sp.zeros(d, 1), "V": V, "g_previous": g,
            "d": sp.Integer(d),
        }  # fmt: skip
        omega = ExactValues(values)(after["omega"]).applyfunc(sp.expand)
        x = (V.inv() + K).inv() * (V.inv() * omega + K * target)
        at = ExactValues({"V": V, "omega": omega, "x": x, "loss_gradient": K * (x - target)})
        if not is_exactly_zero(at(after["proximal"])) or not is_exactly_zero(at(after["g"]) - g):
            return False

    def _tokens_of_sample(at: ExactValues) -> list[tuple[int, dict[str, Any]]]:
        """Return the tokens of one sample in this test, each with its coupling to a row of the weights."""
        m, i = at.values["sentence"], at.values["row"]
        return [(1, {"xi_row": data["xi"][m, l][i], "g": fields[m, l], "gamma": data["gamma"][l][i],
                     "loss_q": data["H"][m] / 2}) for l in range(data["tokens"])]  # fmt: skip

    sentences = [(1, {"sentence": m, "loss_phi": data["eta"]}) for m in range(data["samples"])]
    common = {name: data[name] for name in ("Lambda", "Kappa")} | {"d": sp.Integer(d)}
    at = ExactValues(common, {SAMPLES: sentences, TOKENS: _tokens_of_sample})
    for i in range(d):
        w = W[i, :].T
        here = at.with_added_values(
            {"row": i, "A_row": data["A"][i], "w": w, "penalty_gradient": data["Lambda"] * w + data["c"]}
        )
        sums = {name: here(after[name]) for name in ("b", "N_row") if name in after}
        if not is_exactly_zero(here.with_added_values(sums)(after["row"])):
            return False
    if not p.trained:
        return True
    slope, away = (at.with_added_values({"phi": point})(after["trained"]) for point in (phi, phi + sp.ones(2, 1)))
    return is_exactly_zero(slope) and is_exactly_zero(away - data["Kappa"] * sp.ones(2, 1))


@declare_test(
    "reactions of message passing",
    "V against its saddle-point equation, G against the sum over contexts of the conjugates of V with averages over "
    "three sentences, exactly",
    ("V", "A_row", "N_row"),
)
def _check_onsager_terms(before: Expressions, after: Expressions) -> bool:
    """Return whether the reaction terms of message passing agree with the conjugates of the saddle point.

    The Onsager matrix A of a row is the sum of gamma_c V_hat_c over clusters c, with eigenvalues gamma_c of the
    covariances; averages are sums over the given samples.
    """
    source, d, gammas = RandomRationals("reactions"), 3, [sp.Rational(3, 7), sp.Rational(5, 2)]
    states = [
        [{"dg/domega": source.draw_symmetric_matrix(2), "loss_q": source.draw_symmetric_matrix(2)} for _ in gammas]
        for _ in range(3)
    ]

    def _tokens_of_sample(at: ExactValues) -> list[tuple[int, dict[str, Any]]]:
        own = states[at.values["sentence"]]
        return [(1, {**state, "gamma": gamma}) for state, gamma in zip(own, gammas, strict=True)]

    at = ExactValues(
        {"d": sp.Integer(d)}, {SAMPLES: [(1, {"sentence": m}) for m in range(3)], TOKENS: _tokens_of_sample}
    )
    given = sum((at(after[name]) for name in ("A_row", "N_row") if name in after), sp.zeros(2, 2))
    expected = sp.zeros(2, 2)
    for l, gamma in enumerate(gammas):
        own = [(sp.Rational(1, 3), sentence[l]) for sentence in states]
        expected += gamma * ExactValues({"alpha": sp.Rational(3, d)}, {CHANNEL: own})(before["V_hat"])
    values = _values_for_linear_row()
    return is_exactly_zero(given - expected) and is_exactly_zero(values(after["V"]) - values(before["V"]))


def _values_for_linear_row(with_law: bool = True, shift: int = 1) -> ExactValues:
    """Return values of all symbols for a test row w = (Lambda + G)^{-1} (b - c), linear in its field b.

    Lambda is a ridge, G the precision of the row and c a constant; b is normal with mean B and covariance Q.
    """
    own = random_cluster_matrices("linear row")
    values = {**own, **random_common_values("linear row", [own]), "d": sp.Integer(3)}
    J, c = (values["Lambda"] + values["G"]).inv(), own["m_star"] * shift
    values |= {"dw/db": J, "w": lambda at, _: J * (at.values["b"] - c)}
    return ExactValues(values, laws={COORDINATE: NormalLaw(("b",), values["B"], values["Q"])} if with_law else {})


@declare_test(
    "state evolution, fields",
    "mean, covariance and covariance with the teacher against the saddle-point equations of m, q and theta, at a "
    "linear row, s = t = 2, exactly",
    ("mean of omega", "covariance of omega", "omega with Y", "V"),
)
def _check_state_evolution_of_fields(before: Expressions, after: Expressions, kind: str) -> bool:
    """Return whether the moments of the fields omega in message passing agree with the saddle-point equations.

    The test row is linear in its field b, of mean B and covariance Q. For a ridge the equations contain B and Q
    themselves, for a penalty averages over b.
    """
    pairs = {"mean of omega": "m", "covariance of omega": "q", "omega with Y": "theta", "V": "V"}
    given = _values_for_linear_row(shift=0 if kind == "ridge" else 1)
    expected = _values_for_linear_row(with_law=kind != "ridge", shift=0 if kind == "ridge" else 1)
    return all(is_exactly_zero(given(after[name]) - expected(before[target])) for name, target in pairs.items())


@declare_test(
    "state evolution, rows",
    "limit of G, mean and covariance of b against G, B and Q at the conjugates of the saddle point, two contexts, "
    "s = t = 2, exactly",
    ("limit of A", "limit of N", "mean of b", "covariance of b"),
)
def _check_state_evolution_of_rows(before: Expressions, after: Expressions, p: OrderParameterSymbols) -> bool:
    source = RandomRationals("rows evolve")
    contexts, states = [random_cluster_matrices("rows 1"), random_cluster_matrices("rows 2")], []
    for _ in contexts:
        states.append([
            (probability, {"g": source.draw_matrix(2, 1), "dg/domega": source.draw_symmetric_matrix(2),
                      "dg/dY": source.draw_matrix(2, 2), "loss_q": source.draw_symmetric_matrix(2)})
            for probability in (sp.Rational(1, 4), sp.Rational(1, 2))
        ])  # fmt: skip
    common = {"pi": source.draw_matrix(2, 1), "alpha": abs(source.draw_number()), "w": source.draw_matrix(2, 1)}
    terms = [(1, {**own, "context": c}) for c, own in enumerate(contexts)]
    at = ExactValues(common, {CONTEXTS: terms, CHANNEL: lambda at: states[at.values["context"]]})
    for names, composite in ((("limit of A", "limit of N"), p.G), (("mean of b",), p.B), (("covariance of b",), p.Q)):
        given = [at(after[name]) for name in names if name in after]
        conjugates = {f"{z}_hat": before[f"{z}_hat"] for z in ("q", "V", "m", "theta")}
        expected = []
        for _, own in terms:
            here = at.with_added_values(own)
            found = {name: here(value) for name, value in conjugates.items()}
            expected.append(here.with_added_values(found)(p.effective_prior_parameters[composite]))
        if not is_exactly_zero(sum(given[1:], given[0]) - sum(expected[1:], expected[0])):
            return False
    return True
