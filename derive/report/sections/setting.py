"""The setting of a derivation: the model, its fields, loss and parameters, and the law of its tokens."""

from __future__ import annotations

from typing import Any

import sympy as sp

from ...authoring.language import token_variance_symbol
from ...authoring.model import FixedSizeModel, Model
from ...authoring.parameters import GaussianNoise
from ...calculus.functions import SoftmaxEntry
from ...replicas.steps.partition import minimised_risk
from ...theory.kinks import loss_kinks, metric_kinks
from ..blocks import Items, Relation, Section, Table, TextWithSymbols, insert_symbols_into_text
from ..own_symbols import indexed_parameter_symbol, metric_field_symbols, symbols_named_in_descriptions
from ..symbols import THEORY
from ..wording import vocabulary_of_model
from .steps import order_parameter_symbols_of_model


def sections_on_model_setting(model: Model, at: FixedSizeModel) -> tuple[Section, ...]:
    """Return the report sections on the model, its fields and loss, its parameters, and the law of the tokens.

    Args:
        model: the model.
        at: the model at the structure.
    """
    return _model_section(model, at), _fields_and_loss_section(at), _parameter_section(at), _token_law_section(at)


def _model_section(model: Model, at: FixedSizeModel) -> Section:
    sizes = at.structure
    return Section(
        "Model",
        (
            insert_symbols_into_text(
                model.summary or "No summary was given.", symbols_named_in_descriptions(at), is_quoted=True
            ),
            TextWithSymbols("Source: {}.", (model.source,), is_quoted=True)
            if model.source
            else TextWithSymbols("No source was given."),
            TextWithSymbols(
                f"Structure: L = {sizes.tokens} (tokens), s = {sizes.student_rank} (columns of the student's weights), "
                f"t = {sizes.teacher_rank} (columns of the teacher's), K = {sizes.clusters} (clusters a token)."
            ),
            *_equations_of_risk(at),
            *_equations_of_penalty(at),
        ),
    )


def _equations_of_risk(at: FixedSizeModel) -> Items:
    """Return the equation of the empirical risk, with sentences on the variables that minimise it."""
    held = [
        TextWithSymbols(
            "where {phi} are numbers trained with the weights, {Kappa} the diagonal matrix of their ridges."
        )
    ]
    return [
        TextWithSymbols(
            "The weights {W} (d x s) minimise, over a data set of {alpha_d} sentences (counted by {sample_index}) in d "
            "dimensions,"
        ),
        Relation(sp.Symbol("risk"), minimised_risk(order_parameter_symbols_of_model(at))),
        *(held if at.trained else []),
        TextWithSymbols(
            "with a penalty {penalty} of each row {w} of the weights (counted by {row_index}); d is large at fixed "
            "{alpha}. X and Y are the fields of student and teacher defined below, k the labels of the tokens' "
            "clusters and u the noise of a sentence, where there are any. The penalty of a row is"
        ),
    ]


def _equations_of_penalty(at: FixedSizeModel) -> Items:
    """Return the equation of the penalty of a row of W, with sentences on its parameters and kinks."""
    if at.penalty is None:
        p = order_parameter_symbols_of_model(at)
        strengths = (
            "with the diagonal matrix {Lambda} of Lagrange multipliers of either sign, one a column of the weights, "
            "which keep its squared norm over d at the entry of the diagonal matrix {Norms}; the training loss holds "
            "no penalty."
            if at.norm_multipliers
            else "with the diagonal matrix {Lambda} of the strengths of the ridge penalty."
        )
        return [Relation(sp.Symbol("penalty"), sp.Trace(p.w.T * p.Lambda * p.w) / 2), TextWithSymbols(strengths)]
    kinks = sp.Tuple(*[place for place in at.penalty.kinks if place not in at.penalty.bounds])
    held = [TextWithSymbols("Its slope jumps where {w} = {}.", (kinks,))] if kinks else []
    if at.penalty.bounds:
        held.append(TextWithSymbols("It is infinite where {w} is less than {} or more than {}.", at.penalty.bounds))
    return [
        Relation(sp.Symbol("penalty"), at.penalty.expression, "the convex penalty of a row of the weights, per d"),
        *held,
    ]


def _fields_and_loss_section(at: FixedSizeModel) -> Section:
    sizes = at.structure
    items: Items = [
        TextWithSymbols(
            "Local fields of the student (L x s) and of the teacher (L x t). Row l is {} times a token, with its "
            "positional encoding for the student and without it for the teacher, over the root of d; {W_star} (d x t) "
            "are the weights of the teacher.",
            (sp.MatrixSymbol("W", 1, 1).T,),
        ),
        Relation(sp.Symbol("fields_X"), at.X),
        Relation(sp.Symbol("fields_Y"), at.Y),
    ]
    for symbol, law in at.noise.values():
        if isinstance(law, GaussianNoise):
            items.append(TextWithSymbols("Noise {} is Gaussian with mean 0 and variance {}.", (symbol, law.variance)))
        else:
            rows = tuple(zip(law.values, law.probabilities, strict=True))
            items += [TextWithSymbols("Noise {} is discrete:", (symbol,)), Table(("value", "probability"), rows)]
    if at.trained:
        symbols = sp.Tuple(*[symbol for symbol, _ in at.trained.values()])
        strengths = sp.Tuple(*[value.ridge for _, value in at.trained.values()])
        items.append(
            TextWithSymbols("Trained with the weights: {}, with ridges of strengths {}.", (symbols, strengths))
        )
    if sizes.clusters > 1:
        items.append(TextWithSymbols("Cluster labels, counted from 0 in formulas: {}.", (sp.Tuple(*at.labels),)))
    fresh = dict(zip(at.X, metric_field_symbols(at), strict=True))
    notes = {
        "loss": "the loss of one sentence",
        "metric": "the test error of one sentence, h the student's fields of a fresh one",
        "baseline": "the error of a constant prediction matrix",
    }
    parts = {"loss": at.loss}
    parts |= {"metric": at.metric.xreplace(fresh)} if at.metric is not None else {}
    parts |= {"baseline": at.baseline[0]} if at.baseline else {}
    softmax, parts = _replace_softmax_entries_by_symbols(parts)
    if softmax:
        items.append(
            TextWithSymbols("Rows of softmax, the first entry of row 2 being written {softmax_2_1}, and so on:")
        )
        items += [Relation(sp.Symbol(f"softmax_{n}"), sp.Function("softmax")(*logits)) for n, logits in softmax]
    if any(e.has(*[token_variance_symbol(l) for l in range(sizes.tokens)]) for e in parts.values()):
        items.append(TextWithSymbols("{rho_token} is the trace of the covariance of token l over d, given below."))
    items += [Relation(sp.Symbol(name), part, notes[name]) for name, part in parts.items()]
    for name, kinks in (("loss", loss_kinks(at)), ("metric", metric_kinks(at))):
        corners = (*map(sp.expand, kinks.planes), *kinks.curved)  # planes are linear in the fields
        shown = tuple(e.xreplace(fresh) if name == "metric" else e for e in corners)
        if shown:
            listed = ", ".join(["{}"] * len(shown))
            items.append(TextWithSymbols(f"The {name} is not smooth where one of these vanishes: {listed}.", shown))
    return Section("Fields and loss", tuple(items))


def _replace_softmax_entries_by_symbols(
    parts: dict[str, sp.Expr],
) -> tuple[list[tuple[int, tuple[sp.Expr, ...]]], dict[str, sp.Expr]]:
    """Return the numbered argument vectors of all softmax functions, and the parts with symbols for their entries."""
    rows: list[tuple[int, tuple[sp.Expr, ...]]] = []
    while any(part.has(SoftmaxEntry) for part in parts.values()):
        first: dict[tuple[sp.Expr, ...], None] = {}
        for part in parts.values():  # numbered in the order in which the parts are read
            inner = {e.args[1:] for e in part.atoms(SoftmaxEntry) if not any(z.has(SoftmaxEntry) for z in e.args[1:])}
            first |= dict.fromkeys(sorted(inner, key=lambda logits: [sp.default_sort_key(z) for z in logits]))
        named = {}
        for number, logits in enumerate(first, len(rows) + 1):
            rows.append((number, logits))
            for j in range(len(logits)):
                named[SoftmaxEntry(sp.Integer(j), *logits)] = sp.Symbol(f"softmax_{number}_{j + 1}", real=True)
        parts = {name: e.xreplace(named) for name, e in parts.items()}
    return rows, parts


def _parameter_section(at: FixedSizeModel) -> Section:
    rows: list[tuple[Any, ...]] = [
        ("alpha", sp.Symbol("alpha"), "none", "(0, inf)", "number of samples over the dimension d")
    ]
    for parameter in at.parameters.values():
        value = parameter.exact_default(at.structure)
        while isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        shape = parameter.default_shape(at.structure)
        default = sp.Matrix(value) if isinstance(value, tuple) and len(shape) == 2 else sp.sympify(value)
        meaning = insert_symbols_into_text(parameter.doc, symbols_named_in_descriptions(at), is_quoted=True)
        name = parameter.name.rstrip("_")
        rows.append((name, indexed_parameter_symbol(parameter.name), default, parameter.allowed, meaning))
    items: Items = [Table(("name", "symbol", "default", "allowed", "meaning"), tuple(rows))]
    shared = {entry[1] for entry in THEORY.values()} - {r"\alpha"}
    if any({name, rf"\{name}"} & shared for name, *_ in rows[1:]):
        items.append(
            TextWithSymbols("A parameter whose letter means something else here has the symbol of this table.")
        )
    return Section("Parameters", tuple(items))


def _token_law_section(at: FixedSizeModel) -> Section:
    sizes, law = at.structure, at.law
    clusters, teachers = sizes.clusters, sizes.teacher_rank if vocabulary_of_model(at).has_teacher else 0
    contexts = [(l, k) for l in range(sizes.tokens) for k in range(clusters)]
    order = ", ".join(f"({l + 1},{k + 1})" if clusters > 1 else f"{l + 1}" for l, k in contexts)
    what = "Contexts c = (token, cluster)" if clusters > 1 else "Contexts c are the tokens"
    z = [*[sp.Symbol(f"tau_{n}") for n in range(len(contexts))], *[sp.Symbol(f"pi_{b}") for b in range(teachers)]]
    first, rest = len(contexts), len(contexts) + teachers
    grams = [sp.Matrix(gram)[:rest, :rest] for gram in law["gram"]]
    atoms = list(zip(law["weights"], law["covariance"], grams, strict=True))
    items: Items = [
        TextWithSymbols(
            f"{what}, in the order {order}. One coordinate of the common eigenbasis carries the eigenvalue {{gamma}} "
            "of each covariance, the mean coordinate {tau} with the positional encoding, and the teacher's row {pi}."
        ),
        Relation(sp.Symbol("z_vector"), sp.Matrix([z])),
    ]
    for weight, covariance, gram in atoms:
        items += [
            TextWithSymbols("Spectral atom of weight {}:", (weight,)),
            Relation(sp.Symbol("gamma_vector"), sp.Matrix([covariance])),
            Relation(sp.Symbol("gram"), gram),
        ]
    if clusters > 1:
        items.append(TextWithSymbols("Joint law of the labels, last label fastest: {}.", (sp.Tuple(*law["labels"]),)))
    if teachers:
        items.append(Relation(sp.Symbol("teacher_means"), sp.Matrix(law["teacher_means"])))
    for n, (token, cluster) in enumerate(contexts):
        trace = sp.Add(*[weight * covariance[n] for weight, covariance, _ in atoms])
        rho_star = sp.zeros(teachers, teachers)
        for weight, covariance, gram in atoms:
            rho_star += weight * covariance[n] * gram[first:, first:]
        note = f"cluster {cluster + 1}" if clusters > 1 else ""
        items.append(Relation(token_variance_symbol(token), trace, note))
        if teachers:
            items.append(Relation(sp.Symbol(f"rhostar_{n}"), rho_star[0, 0] if teachers == 1 else rho_star, note))
    return Section("Law of the tokens", tuple(items))
