"""Generalised approximate message passing at finite d: its equations, fixed points and state evolution (docs/theory.md
section 10), from the proximal objective and the row's objective that the free entropy holds."""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ..authoring.regulariser import Penalty, Regulariser, Ridge
from ..calculus.averages import CHANNEL, CONTEXTS, COORDINATE, Jacobian, MatrixAverage, Symbols, trace_gradient
from ..theory.free_entropy import free_entropy
from ..theory.saddle_point import SaddlePoint, saddle_point
from ..theory.stability import TOKENS
from .algebra.exact import Law, Source, Values, is_zero
from .algebra.objects import SAMPLES
from .algebra.step import Expressions, Step, Test
from .steps.fields import Inputs
from .steps.partition import DIMENSION

ENTRY = sp.Symbol("xi_row", real=True)  # coordinate i of token l of a sentence with its encoding, over the root of d


def previous(p: Symbols) -> sp.MatrixSymbol:
    """The field of the step before."""
    return sp.MatrixSymbol("g_previous", p.s, 1)


def reaction(p: Symbols) -> sp.MatrixSymbol:
    """A of a row: its own reaction through the fields."""
    return sp.MatrixSymbol("A_row", p.s, p.s)


def loss_gradient(p: Symbols) -> sp.MatrixSymbol:
    """d loss / dX of a token."""
    return sp.MatrixSymbol("loss_gradient", p.s, 1)


def penalty_gradient(p: Symbols) -> sp.MatrixSymbol:
    """d r / dw of a row, a subgradient at a corner."""
    return sp.MatrixSymbol("penalty_gradient", p.s, 1)


@cache
def step(kind: str = "ridge", trained: int = 0, loss_holds_q: bool = False, s: Any = None, t: Any = None) -> Step:
    """GAMP of a kind of model, as `replica_calculation` takes it."""
    s = sp.Symbol("s", integer=True, positive=True) if s is None else s
    t = sp.Symbol("t", integer=True, positive=True) if t is None else t
    regulariser: Regulariser = Ridge() if kind == "ridge" else Penalty(lambda w: w)
    saddle = saddle_point(free_entropy(s, t, regulariser, trained, loss_holds_q))
    p = saddle.symbols
    after = {**_iteration(p, kind), **_state_evolution(p)}
    tests = [
        Test(
            "fixed points of message passing",
            "eliminated from its equations, the fields are those of the weights and the gradient of the risk "
            "vanishes, for any V and G, as symbols",
            lambda _before, after: _eliminated(after, p, kind),
            ("omega", "b", "g", "proximal", "row"),
        ),
        Test(
            "minimum of a risk is a fixed point",
            "square loss, quadratic penalty, two sentences of two tokens at d = 3, s = 2, V and G at random, exactly",
            lambda _before, after: _minimum_is_fixed(after, kind, p),
            ("omega", "b", "g", "proximal", "row", "N_row", "trained"),
        ),
        Test(
            "reactions of message passing",
            "V against its saddle-point equation, G against the sum over contexts of the conjugates of V with averages "
            "over three sentences, exactly",
            lambda before, after: _reactions_hold(before, after),
            ("V", "A_row", "N_row"),
        ),
        Test(
            "state evolution, fields",
            "mean, covariance and covariance with the teacher against the saddle-point equations of m, q and theta, at "
            "a linear row, s = t = 2, exactly",
            lambda before, after: _fields_evolve(before, after, kind),
            ("mean of omega", "covariance of omega", "omega with Y", "V"),
        ),
        Test(
            "state evolution, rows",
            "limit of G, mean and covariance of b against G, B and Q at the conjugates of the saddle point, two "
            "contexts, s = t = 2, exactly",
            lambda before, after: _rows_evolve(before, after, p),
            ("limit of A", "limit of N", "mean of b", "covariance of b"),
        ),
    ]
    return Step(
        11,
        "Message passing at finite dimension",
        {"objective": p.proximal_objective, **_needed(saddle)},
        after,
        "On one data set the same quantities are iterated. A sum over coordinates or sentences contains the reaction "
        "of each summand to the sum itself: of second order in the entries of the tokens, it is subtracted (Onsager). "
        "At a fixed point the subtraction undoes itself, so that the gradient of the risk vanishes whatever V and G "
        "are; what is left without it are sums of independent terms, normal for large d, whose moments are the "
        "saddle-point equations where the proximal map does not jump.",
        "arXiv 2402.03902, Appendix B.4; M. Bayati, A. Montanari, IEEE Trans. Inf. Theory 57, 764 (2011), "
        "arXiv 1001.3448; S. Rangan, Proc. IEEE ISIT, 2168 (2011), arXiv 1010.5141",
        tuple(tests),
    )


def _needed(saddle: SaddlePoint) -> dict[str, MatrixExpr]:
    """Saddle-point equations in derivative form: reactions are responses."""
    return {equation.target.name: equation.jacobian_form for equation in saddle.equations}


def _second_moment(p: Symbols) -> sp.Expr:
    """E[xi^2] of one coordinate to leading order: the covariance of a token over d."""
    return p.gamma / DIMENSION


def _iteration(p: Symbols, kind: str) -> dict[str, Any]:
    given, A = Inputs(p), reaction(p)
    # A weight answers to the field that its own coordinate helped to make, and a field to its own weight.
    by_rows = MatrixAverage(COORDINATE, DIMENSION * _second_moment(p) * Jacobian(p.w, p.b))
    by_sentences = _over_data(_second_moment(p) * Jacobian(p.g, p.omega))
    through = given.weights("a").xreplace({given.weights("a"): sp.MatrixSymbol("W", given.d, p.s)}).T
    gradient = trace_gradient(p.proximal_objective, p.step, p)
    field = gradient.xreplace({p.step: sp.MatrixSymbol("x", p.s, 1) - p.omega})
    stiffness = A + sp.MatrixSymbol("N_row", p.s, p.s) if p.loss_holds_q else A
    slope = trace_gradient(sp.Trace(p.w.T * p.Lambda * p.w) / 2, p.w, p) if kind == "ridge" else penalty_gradient(p)
    found: dict[str, Any] = {
        "omega": (through * (given.token + given.encoding) / sp.sqrt(given.d) - p.V * previous(p)).doit(),
        "V": by_rows,
        "g": field,
        "proximal": field + loss_gradient(p),
        "A_row": -1 * by_sentences,
        "b": _over_data(ENTRY * p.g) + A * p.w,
        "row": (slope + stiffness * p.w - p.b).doit(),
    }
    if p.loss_holds_q:  # q is a mean over the rows: each of them moves it
        found["N_row"] = 2 * _over_data(_second_moment(p) * p.loss_q)
    if p.trained:
        found["trained"] = p.Kappa * p.phi + MatrixAverage(SAMPLES, p.loss_phi) / DIMENSION
    return found


def _over_data(matrix: MatrixExpr) -> MatrixExpr:
    """Sum over the tokens of all sentences."""
    return MatrixAverage(SAMPLES, MatrixAverage(TOKENS, matrix))


def _state_evolution(p: Symbols) -> dict[str, MatrixExpr]:
    """Moments of omega and b for large d: xi = tau/d + sqrt(gamma/d) times a normal number, Stein's lemma for it.

    Where a sum holds its own reaction the response to xi cancels the Onsager term.
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
        **(found if p.loss_holds_q else {}),
    }


# --- checks -----------------------------------------------------------------------------------------------------------


def _eliminated(after: Expressions, p: Symbols, kind: str) -> bool:
    """x = omega + V g is the field of the weights, and the row's condition is the gradient of the risk."""
    given, x = Inputs(p), sp.MatrixSymbol("x", p.s, 1)
    omega = after["omega"].xreplace({previous(p): p.g})
    field = sp.MatrixSymbol("W", given.d, p.s).T * (given.token + given.encoding) / sp.sqrt(given.d)
    if (omega + p.V * p.g - field).expand().doit() != sp.ZeroMatrix(p.s, 1):
        return False
    if (p.V * after["g"] - (x - p.omega)).expand().doit() != sp.ZeroMatrix(p.s, 1):
        return False
    # At the proximal point g = -grad loss.
    if (after["proximal"] - after["g"] - loss_gradient(p)).doit() != sp.ZeroMatrix(p.s, 1):
        return False
    condition = after["row"].xreplace({p.b: after["b"]}).xreplace({p.g: -loss_gradient(p)}).doit()
    slope = p.Lambda * p.w if kind == "ridge" else penalty_gradient(p)
    gradient = slope + _over_data(ENTRY * loss_gradient(p))
    if p.loss_holds_q:
        gradient = gradient + sp.MatrixSymbol("N_row", p.s, p.s) * p.w
    negative = _over_data(-ENTRY * loss_gradient(p))
    condition = condition.xreplace({negative: -1 * _over_data(ENTRY * loss_gradient(p))})
    return (condition - gradient).expand().doit() == sp.ZeroMatrix(p.s, 1)


@cache
def _data() -> dict[str, Any]:
    """Two sentences of two tokens in three dimensions; square loss with a part linear in q and in two numbers phi."""
    source, d, samples, tokens = Source("message passing"), 3, 2, 2
    both = [(m, l) for m in range(samples) for l in range(tokens)]
    return {
        "d": d, "both": both, "samples": samples, "tokens": tokens,
        "xi": {place: source.matrix(d, 1) for place in both},
        "y": {place: source.matrix(2, 1) for place in both},
        "V": {place: source.positive(2) for place in both},
        "A": [source.positive(2) for _ in range(d)],
        "gamma": [[abs(source.number()) for _ in range(d)] for _ in range(tokens)],
        "K": source.positive(2), "E": source.matrix(2, 2), "Lambda": source.positive(2, 9), "c": source.matrix(2, 1),
        "H": [source.positive(2) for _ in range(samples)], "eta": source.matrix(2, 1), "Kappa": source.positive(2),
    }  # fmt: skip


@cache
def _minimum(kind: str, loss_holds_q: bool, trained: int) -> tuple[sp.Matrix, sp.Matrix]:
    """Weights (d x 2) and trained numbers at the minimum of the risk, by linear algebra."""
    data = _data()
    d = data["d"]
    W = sp.Matrix(d, 2, lambda i, a: sp.Symbol(f"w{i}{a}"))
    phi = sp.Matrix(2, 1, lambda i, _: sp.Symbol(f"phi{i}"))
    risk: sp.Expr = sp.Integer(0)
    for place in data["both"]:
        error = W.T * data["xi"][place] - data["E"] * data["y"][place]
        risk += (error.T * data["K"] * error)[0] / 2
        if loss_holds_q:
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


def _minimum_is_fixed(after: Expressions, kind: str, p: Symbols) -> bool:
    """Carry the minimiser's fields once through the iteration."""
    data = _data()
    d = data["d"]
    W, phi = _minimum(kind, p.loss_holds_q, p.trained)
    fields: dict[tuple[int, int], sp.Matrix] = {}
    for place in data["both"]:
        target = data["E"] * data["y"][place]
        g = -data["K"] * (W.T * data["xi"][place] - target)
        V = data["V"][place]
        values = {
            "W": W, "token": sp.sqrt(d) * data["xi"][place], "encoding": sp.zeros(d, 1), "V": V, "g_previous": g,
            "d": sp.Integer(d),
        }  # fmt: skip
        omega = Values(values)(after["omega"]).applyfunc(sp.expand)
        x = (V.inv() + data["K"]).inv() * (V.inv() * omega + data["K"] * target)
        at = Values({"V": V, "omega": omega, "x": x, "loss_gradient": data["K"] * (x - target)})
        if not is_zero(at(after["proximal"])) or not is_zero(at(after["g"]) - g):
            return False
        fields[place] = g
    for i in range(d):
        sums = _sums(
            lambda place, i=i: {"xi_row": data["xi"][place][i], "g": fields[place],
                                "loss_q": data["H"][place[0]] / 2, "gamma": data["gamma"][place[1]][i]}
        )  # fmt: skip
        w = W[i, :].T
        values = {"A_row": data["A"][i], "w": w, "Lambda": data["Lambda"], "d": sp.Integer(d)}
        values["penalty_gradient"] = data["Lambda"] * w + data["c"]
        at = _nested({**values}, sums)
        if p.loss_holds_q:
            values["N_row"] = at(after["N_row"])
        if not is_zero(Values({**values, "b": at(after["b"])})(after["row"])):
            return False
    if not p.trained:
        return True
    sentences = {SAMPLES: ((1, {"loss_phi": data["eta"]}),) * data["samples"]}
    at, away = [
        Values({"phi": point, "Kappa": data["Kappa"], "d": sp.Integer(d)}, sentences)(after["trained"])
        for point in (phi, phi + sp.ones(2, 1))
    ]
    return is_zero(at) and is_zero(away - data["Kappa"] * sp.ones(2, 1))


def _sums(values_at: Any) -> list[list[dict[str, Any]]]:
    data = _data()
    return [[values_at((m, l)) for l in range(data["tokens"])] for m in range(data["samples"])]


def _nested(values: dict[str, Any], sums: list[list[dict[str, Any]]]) -> Any:
    """Values in which the sum over tokens of a sentence is taken inside that over sentences."""

    def evaluate(expression: Any) -> Any:
        total: Any = None
        for term in sp.MatAdd.make_args(expression):
            scalar, factors = term.as_coeff_matrices() if isinstance(term, sp.MatMul) else (sp.Integer(1), [term])
            if not isinstance(factors[0], MatrixAverage):
                value = Values(values)(term)
            else:
                inner = factors[0].summand
                parts = [Values(values, {TOKENS: tuple((1, own) for own in sentence)})(inner) for sentence in sums]
                value = Values(values)(scalar) * sum(parts[1:], parts[0])
            total = value if total is None else total + value
        return total

    return evaluate


def _reactions_hold(before: Expressions, after: Expressions) -> bool:
    """A = sum_c gamma_c V^_c with averages over the sentences at hand: alpha E_c is the sum over those of c over d."""
    source, d, gammas = Source("reactions"), 3, [sp.Rational(3, 7), sp.Rational(5, 2)]
    responses = [[source.symmetric(2) for _ in gammas] for _ in range(3)]
    slopes = [[source.symmetric(2) for _ in gammas] for _ in range(3)]
    sums = [
        [{"dg/domega": G, "gamma": gamma, "loss_q": H} for G, H, gamma in zip(row, own, gammas, strict=True)]
        for row, own in zip(responses, slopes, strict=True)
    ]
    given = _nested({"d": sp.Integer(d)}, sums)(after["A_row"])
    if "N_row" in after:
        given = given + _nested({"d": sp.Integer(d)}, sums)(after["N_row"])
    expected = sp.zeros(2, 2)
    for l, gamma in enumerate(gammas):
        states = tuple(
            (sp.Rational(1, 3), {"dg/domega": row[l], "loss_q": own[l]})
            for row, own in zip(responses, slopes, strict=True)
        )
        expected += gamma * Values({"alpha": sp.Rational(3, d)}, {CHANNEL: states})(before["V_hat"])
    if not is_zero(given - expected):
        return False
    values = _linear_row()
    return is_zero(values(after["V"]) - values(before["V"]))


def _linear_row(with_law: bool = True, shift: int = 1) -> Values:
    """w = (Lambda + G)^{-1} (b - c) at b normal with mean B and covariance Q."""
    source = Source("linear row")
    values: dict[str, Any] = {z: source.positive(2) for z in ("Lambda", "G", "Q")}
    values |= {
        "B": source.matrix(2, 1),
        "pi": source.matrix(2, 1),
        "gamma": abs(source.number()),
        "tau": source.number(),
    }
    values["d"] = sp.Integer(3)
    J, c = (values["Lambda"] + values["G"]).inv(), source.matrix(2, 1) * shift
    values |= {"dw/db": J, "b": sp.zeros(2, 1), "w": lambda at, _: J * (at.values["b"] - c)}
    return Values(values, laws={COORDINATE: Law(("b",), values["B"], values["Q"])} if with_law else {})


def _fields_evolve(before: Expressions, after: Expressions, kind: str) -> bool:
    """The saddle point of ridge holds B and Q themselves, that of a penalty the averages over b."""
    pairs = {"mean of omega": "m", "covariance of omega": "q", "omega with Y": "theta", "V": "V"}
    given = _linear_row(shift=0 if kind == "ridge" else 1)
    expected = _linear_row(with_law=kind != "ridge", shift=0 if kind == "ridge" else 1)
    return all(is_zero(given(after[name]) - expected(before[target])) for name, target in pairs.items())


def _rows_evolve(before: Expressions, after: Expressions, p: Symbols) -> bool:
    source = Source("rows evolve")
    contexts, own = [], []
    pi, alpha = source.matrix(2, 1), abs(source.number())
    for _ in range(2):
        states = tuple(
            (chance, {"g": source.matrix(2, 1), "dg/domega": source.symmetric(2), "dg/dY": source.matrix(2, 2),
                      "loss_q": source.symmetric(2)})
            for chance in (sp.Rational(1, 4), sp.Rational(1, 2))
        )  # fmt: skip
        here = {
            "gamma": abs(source.number()),
            "tau": source.number(),
            "pi": pi,
            "alpha": alpha,
            "w": source.matrix(2, 1),
        }
        contexts.append((here, states))
        at = Values(here, {CHANNEL: states})
        own.append({**here, **{f"{z}_hat": at(before[f"{z}_hat"]) for z in ("q", "V", "m", "theta")}})
    pairs = {"limit of A": p.G, "mean of b": p.B, "covariance of b": p.Q}
    for name, composite in pairs.items():
        expected = [Values(values)(p.composites[composite]) for values in own]
        given = _over_contexts(after[name], contexts)
        if composite == p.G and "limit of N" in after:
            given = given + _over_contexts(after["limit of N"], contexts)
        if not is_zero(given - sum(expected[1:], expected[0])):
            return False
    return True


def _over_contexts(expression: MatrixExpr, contexts: list[Any]) -> sp.Matrix:
    """A multiple of a sum over contexts, each with values and channel averages of its own.

    Raises:
        TypeError: it is something else.
    """
    scalar, factors = expression.as_coeff_matrices() if isinstance(expression, sp.MatMul) else (1, [expression])
    if len(factors) != 1 or not isinstance(factors[0], MatrixAverage) or factors[0].kind != CONTEXTS:
        raise TypeError(f"{expression} is no sum over contexts")
    parts = [Values(here, {CHANNEL: states})(factors[0].summand) for here, states in contexts]
    return scalar * sum(parts[1:], parts[0])
