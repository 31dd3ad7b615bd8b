"""What is given: the model, its fields, loss and parameters, and the law of its tokens."""

from __future__ import annotations

from typing import Any

import sympy as sp

from ...authoring.language import token_weight
from ...authoring.model import Model, ModelAt
from ...authoring.parameters import GaussianNoise
from ...calculus.averages import Symbols
from ...calculus.functions import SoftmaxEntry
from ...replicas.steps.partition import DIMENSION, risk
from ...theory.kinks import loss_kinks, metric_kinks
from ..blocks import Items, Relation, Section, Table, Words, with_symbols
from ..own_symbols import entry_symbol, fresh_fields, spoken
from ..symbols import THEORY


def setting_sections(model: Model, at: ModelAt) -> tuple[Section, ...]:
    """Model, fields and loss, parameters, law of the tokens."""
    return _model_section(model, at), _fields_section(at), _parameter_section(at), _law_section(at)


def _model_section(model: Model, at: ModelAt) -> Section:
    sizes = at.structure
    return Section(
        "Model",
        (
            with_symbols(model.summary or "No summary was given.", spoken(at)),
            Words("Source: {}.", (model.source,)) if model.source else Words("No source was given."),
            Words(
                f"Structure: L = {sizes.tokens} (tokens), s = {sizes.student_rank} (columns of the student's weights), "
                f"t = {sizes.teacher_rank} (columns of the teacher's), K = {sizes.clusters} (clusters a token)."
            ),
            *_risk_items(at),
            *_penalty_items(at),
        ),
    )


def _risk_items(at: ModelAt) -> Items:
    """What is minimised, and over what."""
    p = Symbols(sp.Symbol("s", integer=True), sp.Symbol("t", integer=True), len(at.trained), at.loss_holds_q)
    W, names = sp.MatrixSymbol("W", DIMENSION, p.s), ("alpha_d", "sample_index", "row_index")
    held = [
        Words(
            "where {} are numbers trained with the weights, {} the diagonal matrix of their ridges.", (p.phi, p.Kappa)
        )
    ]
    return [
        Words(
            "The weights {} (d x s) minimise, over a data set of {} sentences (counted by {}) in d dimensions,",
            (W, sp.Symbol(names[0]), sp.Symbol(names[1])),
        ),
        Relation(sp.Symbol("risk"), risk(p)),
        *(held if at.trained else []),
        Words(
            "with a penalty {} of each row {} of the weights (counted by {}); d is large at fixed {}. X and Y are the "
            "fields of student and teacher defined below, k the labels of the tokens' clusters and u the noise of a "
            "sentence, where there are any. The penalty of a row is",
            (sp.Symbol("penalty"), sp.Symbol("w"), sp.Symbol("row_index"), p.alpha),
        ),
    ]


def _penalty_items(at: ModelAt) -> Items:
    """The penalty of a row of W."""
    if at.penalty is None:
        p = Symbols(sp.Symbol("s", integer=True), sp.Symbol("t", integer=True))
        strengths: Items = [
            Words("with the diagonal matrix {} of the strengths of the ridge penalty.", (p.Lambda,)),
        ]
        if at.multipliers:
            strengths = [
                Words(
                    "with the diagonal matrix {} of Lagrange multipliers of either sign, one a column of the weights, "
                    "which keep its squared norm over d at the entry of the diagonal matrix {}; the training loss "
                    "holds no penalty.",
                    (p.Lambda, p.Norms),
                )
            ]
        return [Relation(sp.Symbol("penalty"), sp.Trace(p.w.T * p.Lambda * p.w) / 2), *strengths]
    kinks = sp.Tuple(*[place for place in at.penalty.kinks if place not in at.penalty.bounds])
    held = [Words("Its slope jumps where {} = {}.", (sp.Symbol("w"), kinks))] if kinks else []
    if at.penalty.bounds:
        ends = sp.Symbol("w"), *at.penalty.bounds
        held.append(Words("It is infinite where {} is less than {} or more than {}.", ends))
    return [
        Relation(sp.Symbol("penalty"), at.penalty.expression, "the convex penalty of a row of the weights, per d"),
        *held,
    ]


def _fields_section(at: ModelAt) -> Section:
    sizes = at.structure
    items: Items = [
        Words(
            "Local fields of the student (L x s) and of the teacher (L x t). Row l is {} times a token, with its "
            "positional encoding for the student and without it for the teacher, over the root of d; {} (d x t) are "
            "the weights of the teacher.",
            (_weights("W").T, _weights("W_star")),
        ),
        Relation(sp.Symbol("fields_X"), at.X),
        Relation(sp.Symbol("fields_Y"), at.Y),
    ]
    for symbol, law in at.noise.values():
        if isinstance(law, GaussianNoise):
            items.append(Words("Noise {} is Gaussian with mean 0 and variance {}.", (symbol, law.variance)))
        else:
            chances = tuple(zip(law.values, law.probabilities, strict=True))
            items += [Words("Noise {} is discrete:", (symbol,)), Table(("value", "probability"), chances)]
    if at.trained:
        symbols = sp.Tuple(*[symbol for symbol, _ in at.trained.values()])
        strengths = sp.Tuple(*[value.ridge for _, value in at.trained.values()])
        items.append(Words("Trained with the weights: {}, with ridges of strengths {}.", (symbols, strengths)))
    if sizes.clusters > 1:
        items.append(Words("Cluster labels, counted from 0 in formulas: {}.", (sp.Tuple(*at.labels),)))
    baseline = at.baseline[0] if at.baseline else None
    fresh = dict(zip(at.X, fresh_fields(at), strict=True))
    metric = at.metric.xreplace(fresh) if at.metric is not None else None
    parts = {"loss": at.loss, "metric": metric, "baseline": baseline}
    rows, parts = _named_softmax({name: e for name, e in parts.items() if e is not None})
    if rows:
        items.append(
            Words(
                "Rows of softmax, the first entry of row 2 being written {}, and so on:",
                (sp.Symbol("softmax_2_1"),),
            )
        )
        items += [Relation(sp.Symbol(f"softmax_{n}"), sp.Function("softmax")(*logits)) for n, logits in rows]
    if any(e.has(*[token_weight(l) for l in range(sizes.tokens)]) for e in parts.values()):
        items.append(
            Words("{} is the trace of the covariance of token l over d, given below.", (sp.Symbol("rho_token"),))
        )
    items.append(Relation(sp.Symbol("loss"), parts["loss"], "the loss of one sentence"))
    if "metric" in parts:
        items.append(
            Relation(
                sp.Symbol("metric"),
                parts["metric"],
                "the test error of one sentence, h the student's fields of a fresh one",
            )
        )
    if "baseline" in parts:
        items.append(Relation(sp.Symbol("baseline"), parts["baseline"], "the error of a constant prediction matrix"))
    found = {"loss": loss_kinks(at), "metric": metric_kinks(at)}
    for name, kinks in found.items():
        corners = (*map(sp.expand, kinks.planes), *kinks.curved)  # planes are linear in the fields
        shown = tuple(e.xreplace(fresh) if name == "metric" else e for e in corners)
        if shown:
            listed = ", ".join(["{}"] * len(shown))
            items.append(Words(f"The {name} is not smooth where one of these vanishes: {listed}.", shown))
    return Section("Fields and loss", tuple(items))


def _weights(name: str) -> sp.MatrixSymbol:
    return sp.MatrixSymbol(name, sp.Symbol("d", integer=True, positive=True), sp.Symbol("s", integer=True))


def _named_softmax(parts: dict[str, sp.Expr]) -> tuple[list[tuple[int, tuple[sp.Expr, ...]]], dict[str, sp.Expr]]:
    """Replace softmax entries, innermost first, by symbols softmax_<row>_<entry>, rows and entries from 1."""
    rows: list[tuple[int, tuple[sp.Expr, ...]]] = []
    while True:
        entries: set[sp.Expr] = set()
        first: dict[tuple[sp.Expr, ...], int] = {}
        for part in parts.values():  # numbered in the order in which the parts are read
            inner = {e for e in part.atoms(SoftmaxEntry) if not any(z.has(SoftmaxEntry) for z in e.args[1:])}
            own = sorted({e.args[1:] for e in inner}, key=lambda z: [sp.default_sort_key(a) for a in z])
            for logits in own:
                first.setdefault(logits, len(first))
            entries |= inner
        if not entries:
            return rows, parts
        replacement = {}
        for logits in first:
            number = len(rows) + 1
            rows.append((number, logits))
            for j in range(len(logits)):
                name = sp.Symbol(f"softmax_{number}_{j + 1}", real=True)
                replacement[SoftmaxEntry(sp.Integer(j), *logits)] = name
        parts = {name: e.xreplace(replacement) for name, e in parts.items()}


def _parameter_section(at: ModelAt) -> Section:
    rows: list[tuple[Any, ...]] = [
        ("alpha", sp.Symbol("alpha"), "none", "(0, inf)", "number of samples over the dimension d")
    ]
    for parameter in at.parameters.values():
        value = parameter.value(at.structure)
        while isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        shape = parameter.shape(at.structure)
        default = sp.Matrix(value) if isinstance(value, tuple) and len(shape) == 2 else sp.sympify(value)
        symbol = entry_symbol(parameter.name)
        meaning = with_symbols(parameter.doc, spoken(at))
        rows.append((parameter.name.rstrip("_"), symbol, default, parameter.allowed, meaning))
    table = Table(("name", "symbol", "default", "allowed", "meaning"), tuple(rows))
    shared = {entry[1] for entry in THEORY.values()} - {r"\alpha"}
    names = [parameter.name.rstrip("_") for parameter in at.parameters.values()]
    if any({name, rf"\{name}"} & shared for name in names):
        note = "A parameter whose letter means something else here has the symbol of this table."
        return Section("Parameters", (table, Words(note)))
    return Section("Parameters", (table,))


def _law_section(at: ModelAt) -> Section:
    sizes, law = at.structure, at.law
    clusters, teachers = sizes.clusters, sizes.teacher_rank
    contexts = [(l, k) for l in range(sizes.tokens) for k in range(clusters)]
    order = ", ".join(f"({l + 1},{k + 1})" if clusters > 1 else f"{l + 1}" for l, k in contexts)
    what = "Contexts c = (token, cluster)" if clusters > 1 else "Contexts c are the tokens"
    z = sp.Matrix(
        [[*[_indexed("tau", n) for n in range(len(contexts))], *[_indexed("pi", b) for b in range(teachers)]]]
    )
    items: Items = [
        Words(
            f"{what}, in the order {order}. One coordinate of the common eigenbasis carries the eigenvalue {{}} of "
            "each covariance, the mean coordinate {} with the positional encoding, and the teacher's row {}.",
            (sp.Symbol("gamma"), sp.Symbol("tau"), sp.Symbol("pi")),
        ),
        Relation(sp.Symbol("z_vector"), z),
    ]
    for weight, covariance, gram in zip(law["weights"], law["covariance"], law["gram"], strict=True):
        items += [
            Words("Spectral atom of weight {}:", (weight,)),
            Relation(sp.Symbol("gamma_vector"), sp.Matrix([covariance])),
            Relation(sp.Symbol("gram"), sp.Matrix(gram)),
        ]
    if clusters > 1:
        items.append(Words("Joint law of the labels, last label fastest: {}.", (sp.Tuple(*law["labels"]),)))
    items.append(Relation(sp.Symbol("teacher_means"), sp.Matrix(law["teacher_means"])))
    first = len(contexts)
    for n, (token, cluster) in enumerate(contexts):
        weighted = list(zip(law["weights"], law["covariance"], law["gram"], strict=True))
        trace = sp.Add(*[weight * covariance[n] for weight, covariance, _ in weighted])
        rho_star = sum(
            (weight * covariance[n] * sp.Matrix(gram)[first:, first:] for weight, covariance, gram in weighted),
            sp.zeros(teachers, teachers),
        )
        note = f"cluster {cluster + 1}" if clusters > 1 else ""
        items.append(Relation(token_weight(token), trace, note))
        items.append(Relation(sp.Symbol(f"rhostar_{n}"), rho_star[0, 0] if teachers == 1 else rho_star, note))
    return Section("Law of the tokens", tuple(items))


def _indexed(stem: str, position: int) -> sp.Symbol:
    return sp.Symbol(f"{stem}_{position}")
