"""A derivation as plain text: what it says (`report`, shared with latex.py) and how a terminal shows it.

Every formula is printed from the SymPy object that the generator uses; only words stand here.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr
from sympy.printing.str import StrPrinter

from ..authoring.language import token_weight
from ..authoring.model import Model, ModelAt
from ..authoring.parameters import GaussianNoise, Structure
from ..authoring.regulariser import Regulariser
from ..calculus.averages import (
    CHANNEL,
    CONTEXTS,
    COORDINATE,
    Average,
    Jacobian,
    MatrixAverage,
    Symbols,
    envelope_gradient,
)
from ..calculus.functions import SoftmaxEntry
from ..errors import ModelError
from ..theory.free_entropy import FreeEntropy, free_entropy
from ..theory.kinks import loss_kinks, metric_kinks
from ..theory.saddle_point import SaddlePoint, in_terms_of_teacher_conjugate, saddle_point
from ..theory.stability import TOKENS, entropic_potential, field_response, longitudinal, replicon, replicon_eigenvalue
from .names import GREEK, RENAMED, both_forms

WIDTH = 100
Names = dict[sp.Symbol, tuple[str, tuple[int | str, ...]]]  # symbol -> (stem, indices from 1)


# --- what a derivation says -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relation:
    """left `sign` right, then words. Stacked: the symbols are those of all tokens of a sentence, without an index."""

    left: Any
    right: Any
    note: str = ""
    sign: str = "="
    stacked: bool = False


@dataclass(frozen=True)
class Words:
    """A sentence; each {} is replaced by the printed object of `objects`."""

    text: str
    objects: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Table:
    """Rows of cells; a cell is a string or a SymPy object."""

    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Section:
    """A titled part of the report."""

    title: str
    items: tuple[Relation | Words | Table, ...]


@dataclass(frozen=True)
class Report:
    """All sections, and the model's own symbols: symbol -> (stem, indices), indices counted from 1."""

    title: str
    sections: tuple[Section, ...]
    names: Names


_THEORY_SECTIONS: dict[tuple[str, int, bool], tuple[Section, ...]] = {}


def _theory(at: ModelAt) -> tuple[Section, ...]:
    """The sections that depend on the kind of model only, derived once a kind."""
    kind = at.regulariser.kind, len(at.trained), at.loss_holds_q
    if kind not in _THEORY_SECTIONS:
        _THEORY_SECTIONS[kind] = _derived_sections(at.regulariser, len(at.trained), at.loss_holds_q)
    return _THEORY_SECTIONS[kind]


def _derived_sections(regulariser: Regulariser, trained: int, loss_holds_q: bool) -> tuple[Section, ...]:
    phi = free_entropy(regulariser=regulariser, trained=trained, loss_holds_q=loss_holds_q)
    saddle = saddle_point(phi)
    short: dict[MatrixExpr, MatrixExpr] = {replicon(phi).response: phi.symbols.R}
    return (
        _order_parameter_section(phi.symbols),
        _free_entropy_section(phi, regulariser, short),
        _saddle_section(saddle, short),
        _observable_section(saddle, short),
        _stability_section(phi, saddle, regulariser, short),
    )


def report(model: Model, structure: Structure | None = None, steps: bool = False) -> Report:
    """The derivation of a model at a structure (default: its own).

    Args:
        steps: with the replica calculation, step by step, and every check of it carried out.

    Raises:
        ModelError: the model is not well posed at the structure.
    """
    at = model.at(structure)
    theory = _theory(at)
    return Report(
        title=model.name,
        sections=(
            _model_section(model, at),
            _fields_section(at),
            _parameter_section(at),
            _law_section(at),
            *(_with_steps(model, at, theory) if steps else _with_own(at, theory)),
        ),
        names=symbols_of(at),
    )


def _with_own(at: ModelAt, theory: tuple[Section, ...]) -> tuple[Section, ...]:
    """The equations in matrix form and with the model's own symbols."""
    from .sections.own import model_section

    *sections, stability = theory
    return (*sections, model_section(at), stability)


def _with_steps(model: Model, at: ModelAt, theory: tuple[Section, ...]) -> tuple[Section, ...]:
    """Each step before the sections that hold its result."""
    from .sections.bayes import bayes_sections
    from .sections.references import Bibliography
    from .sections.steps import assumption_section, gamp_section, own_section, reference_section, step_sections

    works = Bibliography()
    if model.source:
        works.cite(model.source)
    overlaps, free, saddle, observables, stability = theory
    step = step_sections(at, works)
    return (
        overlaps, assumption_section(at), *[step[number] for number in range(1, 8)], free, step[8], saddle,
        observables, own_section(at), step[9], stability, gamp_section(at, works),
        *bayes_sections(at, works), reference_section(works),
    )  # fmt: skip


def _model_section(model: Model, at: ModelAt) -> Section:
    sizes = at.structure
    return Section(
        "Model",
        (
            with_symbols(model.summary or "No summary was given.", _spoken(at)),
            Words("Source: {}.", (model.source,)) if model.source else Words("No source was given."),
            Words(
                f"Structure: L = {sizes.tokens} (tokens), s = {sizes.student_rank} (columns of the student's weights), "
                f"t = {sizes.teacher_rank} (columns of the teacher's), K = {sizes.clusters} (clusters a token)."
            ),
            *_risk_items(at),
            *_penalty_items(at),
        ),
    )


def _risk_items(at: ModelAt) -> list[Relation | Words]:
    """What is minimised, and over what."""
    from ..replicas.steps.partition import DIMENSION, risk

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


def _penalty_items(at: ModelAt) -> list[Relation | Words]:
    """The penalty of a row of W."""
    if at.penalty is None:
        p = Symbols(sp.Symbol("s", integer=True), sp.Symbol("t", integer=True))
        return [
            Relation(sp.Symbol("penalty"), sp.Trace(p.w.T * p.Lambda * p.w) / 2),
            Words("with the diagonal matrix {} of the strengths of the ridge penalty.", (p.Lambda,)),
        ]
    kinks = sp.Tuple(*at.penalty.kinks)
    held = [Words("Its slope jumps where {} = {}.", (sp.Symbol("w"), kinks))] if at.penalty.kinks else []
    return [
        Relation(sp.Symbol("penalty"), at.penalty.expression, "the convex penalty of a row of the weights, per d"),
        *held,
    ]


def _fields_section(at: ModelAt) -> Section:
    sizes = at.structure
    items: list[Relation | Words | Table] = [
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
    fresh = dict(zip(at.X, _fresh(at), strict=True))
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
        shown = tuple(e.xreplace(fresh) if name == "metric" else e for e in (*kinks.planes, *kinks.curved))
        if shown:
            listed = ", ".join(["{}"] * len(shown))
            items.append(Words(f"The {name} is not smooth where one of these vanishes: {listed}.", shown))
    return Section("Fields and loss", tuple(items))


def _weights(name: str) -> sp.MatrixSymbol:
    return sp.MatrixSymbol(name, sp.Symbol("d", integer=True, positive=True), sp.Symbol("s", integer=True))


def _fresh(at: ModelAt) -> sp.Matrix:
    """Symbols h of the student's fields in the metric, L x s, which at.metric writes like those of the loss."""
    return sp.Matrix(*at.X.shape, lambda l, a: sp.Symbol(f"h_{l}_{a}", real=True))


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
        symbol = _entry_symbol(parameter.name)
        meaning = with_symbols(parameter.doc, _spoken(at))
        rows.append((parameter.name.rstrip("_"), symbol, default, parameter.allowed, meaning))
    table = Table(("name", "symbol", "default", "allowed", "meaning"), tuple(rows))
    shared = {entry[1] for entry in THEORY.values()} - {r"\alpha"}
    names = [parameter.name.rstrip("_") for parameter in at.parameters.values()]
    if any({name, rf"\{name}"} & shared for name in names):
        note = "The name of a parameter whose letter means something else here stands for it."
        return Section("Parameters", (table, Words(note)))
    return Section("Parameters", (table,))


def _entry_symbol(name: str) -> sp.Symbol:
    """The symbol that stands for a parameter, or a general entry of it, in a table."""
    return sp.Symbol(f"entry {name}")


def _bare_symbol(name: str) -> sp.Symbol:
    """The symbol that stands for a parameter as a whole."""
    return sp.Symbol(f"bare {name}")


def _spoken(at: ModelAt) -> dict[str, Any]:
    """What words about the model call by a letter: its parameters, the weights and a row of them."""
    letters = {name.rstrip("_"): _bare_symbol(name) for name in at.parameters}
    weights = {name: sp.Symbol(name) for name in ("W", "w")}
    return weights | {name: symbol for name, symbol in letters.items() if len(name) == 1 or name in GREEK}


def with_symbols(text: str, symbols: Mapping[str, Any]) -> Words:
    """Words of which those in `symbols` are printed as what they stand for; a capital A may be an article."""
    names = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
    pieces = re.split(rf"(?<!\w)(?!A [a-z])({names})(?![\w']|-[a-z])", text)
    objects = tuple(symbols[piece] if i % 2 else piece for i, piece in enumerate(pieces))
    return Words("{}" * len(objects), objects)


def _law_section(at: ModelAt) -> Section:
    sizes, law = at.structure, at.law
    clusters, teachers = sizes.clusters, sizes.teacher_rank
    contexts = [(l, k) for l in range(sizes.tokens) for k in range(clusters)]
    order = ", ".join(f"({l + 1},{k + 1})" if clusters > 1 else f"{l + 1}" for l, k in contexts)
    what = "Contexts c = (token, cluster)" if clusters > 1 else "Contexts c are the tokens"
    z = sp.Matrix(
        [[*[_indexed("tau", n) for n in range(len(contexts))], *[_indexed("pi", b) for b in range(teachers)]]]
    )
    items: list[Relation | Words | Table] = [
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


def _order_parameter_section(p: Symbols) -> Section:
    meaning = {
        p.q: "covariance of the student's fields of context c",
        p.V: "variance: the susceptibility of the estimate",
        p.m: "overlap with the mean and the positional encoding",
        p.theta: "covariance of the student's with the teacher's fields",
    }
    partners = dict(zip(p.overlaps, p.conjugates, strict=True))
    rows = tuple((a, _shape(a), partners[a], words) for a, words in meaning.items())
    return Section(
        "Order parameters",
        (
            Table(("overlap", "shape", "conjugate", "meaning"), rows),
            *([Words("Beside them the vector {} of numbers trained with the weights.", (p.phi,))] if p.trained else []),
            Words(
                "Given by the law of the tokens: {} ({}) and {} ({}), the covariance and mean of the teacher's fields.",
                (p.rho_star, _shape(p.rho_star), p.m_star, _shape(p.m_star)),
            ),
            Words(
                "{} is the average over one coordinate, {} that over a sentence and its noise restricted to context "
                "c = (l, k), where token l has label k; a quantity of token l with an index c is that of its context.",
                (sp.Symbol("mean_coordinate"), sp.Symbol("mean_context")),
            ),
        ),
    )


def _shape(matrix: MatrixExpr) -> str:
    return " x ".join(str(n) for n in matrix.shape)


def _free_entropy_section(phi: FreeEntropy, regulariser: Regulariser, short: dict[MatrixExpr, MatrixExpr]) -> Section:
    p = phi.symbols
    step = sp.MatrixSymbol("x", p.s, 1) - p.omega
    field = sp.MatMul(p.V.inv(), step)
    local = sp.Add(*[term for term in p.proximal_objective.args if term != p.loss]).xreplace({p.step: step})
    composites = [Relation(z, MatrixAverage(CONTEXTS, summand)) for z, summand in p.composites.items()]
    return Section(
        "Free entropy",
        (
            Relation(sp.Symbol("Phi"), phi.expression.xreplace(short), "extremised over all overlaps and conjugates"),
            *composites,
            *[Relation(named, value) for value, named in short.items()],
            *_row_items(phi),
            Relation(
                p.moreau,
                sp.Function("minimum")(Average(TOKENS, local) + p.loss),
                "Moreau envelope; the global minimum over the fields X is the proximal point",
            ),
            Relation(p.g, field, "at the proximal point"),
            Relation(sp.Function("gradient")(p.moreau, p.omega), envelope_gradient(p.omega, p), "envelope theorem"),
            Relation(sp.Function("gradient")(p.moreau, p.V), envelope_gradient(p.V, p), "envelope theorem"),
        ),
    )


def _row_items(phi: FreeEntropy) -> list[Relation | Words]:
    """What N is, where the regulariser's potential is the envelope of a row; and the ridges of phi."""
    p = phi.symbols
    items: list[Relation | Words] = []
    if entropic_potential(phi) == p.envelope:
        w, quadratic = sp.Symbol("w"), sp.Trace(p.w.T * p.G * p.w) / 2
        items += [
            Relation(p.envelope, sp.Function("maximum")(-sp.Function("r")(w) - quadratic + sp.Trace(p.w.T * p.b))),
            Words("{} is normal with mean {} and covariance {}; {} is the maximiser.", (p.b, p.B, p.Q, p.w)),
        ]
    if p.trained:
        items.append(Words("{} is the diagonal matrix of the ridges of {}.", (p.Kappa, p.phi)))
    return items


def _saddle_section(saddle: SaddlePoint, short: dict[MatrixExpr, MatrixExpr]) -> Section:
    p = saddle.symbols
    items: list[Relation | Words | Table] = [
        Words(
            "Each line is the condition that the derivative of {} vanishes; with {} and {}:",
            (sp.Symbol("Phi"), p.domega, p.dY),
        ),
        Relation(p.domega, p.omega - p.m),
        Relation(p.dY, p.Y - p.m_star),
    ]
    for equation in saddle.equations:
        value = in_terms_of_teacher_conjugate(saddle) if equation.target == p.V_hat else equation.value
        note = ""
        if equation.jacobian_form != equation.value:
            note = "Stein form: jumps of the field are counted"
            items.append(
                Relation(
                    equation.target,
                    equation.jacobian_form.xreplace(short),
                    "derivative form: the derivative is a distribution where the field jumps",
                )
            )
        items.append(Relation(equation.target, value.xreplace(short), note))
    if saddle.trained is not None:
        items.append(Relation(saddle.trained, sp.Integer(0), "the trained numbers; derivatives at the proximal point"))
    return Section("Saddle-point equations", tuple(items))


def _observable_section(saddle: SaddlePoint, short: dict[MatrixExpr, MatrixExpr]) -> Section:
    p = saddle.symbols
    held = {a.arg for e in saddle.equations for a in e.value.atoms(sp.Inverse)}
    held |= {a.arg for a in p.proximal_objective.atoms(sp.Inverse)}
    inverted = {v.arg for v in short if isinstance(v, sp.Inverse)}
    convex = [
        Words("{} plus half the quadratic form of {} must be strictly convex in {}.", (sp.Symbol("penalty"), p.G, p.w))
    ]
    conditions = sorted(held, key=lambda a: (sp.count_ops(a), str(a)))
    return Section(
        "Training loss and domain",
        (
            Relation(sp.Symbol("training_loss"), -sp.Symbol("Phi"), "per dimension d, at the saddle point"),
            Words("The equations invert these matrices, which must be positive definite:"),
            *[
                Relation(matrix, sp.Integer(0), "for every coordinate" if matrix in inverted else "", ">")
                for matrix in conditions
            ],
            *(convex if not inverted else []),
        ),
    )


def _stability_section(
    phi: FreeEntropy, saddle: SaddlePoint, regulariser: Regulariser, short: dict[MatrixExpr, MatrixExpr]
) -> Section:
    field, operator = field_response(), replicon(phi)
    p = phi.symbols
    scalar = replicon_eigenvalue(regulariser)
    scalar = scalar.subs({sp.Symbol("G") + sp.Symbol("Lambda"): 1 / sp.Symbol("R")})
    return Section(
        "Stability",
        (
            Words(
                "Response of all L s fields of a sentence, stacked; {} is block diagonal over tokens and H the Hessian "
                "of the loss. The proximal condition is {} = 0, whose implicit derivative is",
                (Stacked(field.V), Stacked(field.condition)),
            ),
            Relation(Jacobian(p.g, p.omega), field.jacobian, stacked=True),
            Words(
                "Replicon: perturbations that keep all overlaps, {} symmetric s x s blocks; replica symmetry is stable "
                "only if the spectral radius of the map is below 1.",
                (operator.D,),
            ),
            Relation(operator.D_hat, operator.channel),
            Relation(sp.Symbol("D_prime"), operator.prior.xreplace(short)),
            Words("At L = s = K = 1 the map is one number:"),
            Relation(sp.Symbol("replicon"), scalar),
            *_longitudinal_items(phi, saddle, short),
        ),
    )


def _longitudinal_items(
    phi: FreeEntropy, saddle: SaddlePoint, short: dict[MatrixExpr, MatrixExpr]
) -> list[Relation | Words | Table]:
    p = phi.symbols
    if p.trained or p.loss_holds_q or entropic_potential(phi) == p.envelope:
        return [
            Words(
                "Longitudinal: the Jacobian of the map from the overlaps to their conjugates and back, whose "
                "eigenvalues need real part below 1 to be stable under damping. For this kind of model it is taken "
                "by differences."
            )
        ]
    linear = longitudinal(saddle)
    changes = [Relation(_change(z), e) for z, e in linear.composites.items()]
    changes += [Relation(_change(saddle[name].target), e.xreplace(short)) for name, e in linear.prior.items()]
    moments = [Relation(sp.Function("change")(average), change) for average, change in linear.moments.items()]
    return [
        Words(
            "Longitudinal: the Jacobian of the map from the overlaps to their conjugates and back, whose "
            "eigenvalues need real part below 1 to be stable under damping. A change of the overlaps changes the "
            "channel's averages through the score {} of the law of the fields (mean and covariance below) and "
            "through {},",
            (sp.Symbol("S"), _change(p.V)),
        ),
        Relation(sp.Symbol("z"), sp.BlockMatrix([[p.domega], [p.dY]])),
        Relation(sp.Symbol("C"), linear.covariance_blocks),
        Relation(sp.Symbol("dmean"), linear.mean_change),
        Relation(sp.Symbol("dC"), linear.covariance_change),
        Relation(sp.Symbol("S"), linear.score),
        *moments,
        Words("the conjugates follow from these by their equations, and return to the overlaps by"),
        *changes,
    ]


@dataclass(frozen=True)
class Stacked:
    """An expression printed without token and context indices."""

    expression: Any


def _change(symbol: sp.MatrixSymbol) -> sp.MatrixSymbol:
    return sp.MatrixSymbol(f"d{symbol.name}", *symbol.shape)


def symbols_of(at: ModelAt) -> dict[sp.Symbol, tuple[str, tuple[int | str, ...]]]:
    """symbol -> (stem, indices from 1) of fields, noise, labels, weights and parameters; axes of length 1 drop."""
    names: dict[sp.Symbol, tuple[str, tuple[int | str, ...]]] = {}

    def add(matrix: sp.MatrixBase, stem: str) -> None:
        for i in range(matrix.rows):
            for j in range(matrix.cols):
                both = (i + 1, j + 1)
                names[matrix[i, j]] = (stem, tuple(n for n, size in zip(both, matrix.shape, strict=True) if size > 1))

    add(at.X, "x")
    add(at.Y, "y")
    add(_fresh(at), "h")
    if at.baseline:
        add(at.baseline[1], "B0")
    for name, (symbol, _) in at.noise.items():
        names[symbol] = (f"noise {name}", ())
    for l, label in enumerate(at.labels):
        names[label] = ("k", (l + 1,))
        names[token_weight(l)] = ("rho", (l + 1,) if len(at.labels) > 1 else ())
    for group, short in (("observed", "obs"), ("hidden", "hid")):
        for coordinate in getattr(at.output, group, ()):
            word = coordinate.name.rstrip("0123456789")
            number = coordinate.name.removeprefix(word)
            names[coordinate.symbol] = (f"{group} {word.rstrip('_')}", (int(number), short) if number else (short,))

    def parameter(value: Any, stem: str, indices: tuple[int, ...]) -> None:
        if isinstance(value, sp.MatrixBase):
            value = tuple(tuple(value.row(i)) for i in range(value.rows))
        if isinstance(value, tuple):
            for i, inner in enumerate(value):
                parameter(inner, stem, (*indices, i + 1) if len(value) > 1 else indices)
        else:
            names[value] = (f"parameter {stem}", indices)

    for l, matrix in enumerate(at.Q):
        for a in range(matrix.rows):
            for b in range(a, matrix.cols):
                both = (l + 1, a + 1, b + 1) if matrix.rows > 1 else (l + 1,)
                names[matrix[a, b]] = ("overlap q", both)
    for name, (symbol, _) in at.trained.items():
        names[symbol] = (f"parameter {name}", ())
    if at.penalty is not None:
        for matrix, stem in ((at.penalty.w, "w"), (at.penalty.pi, "pi")):
            for i, symbol in enumerate(matrix):
                names[symbol] = (f"row {stem}", (i + 1,) if len(matrix) > 1 else ())
    for known in at.parameters.values():
        parameter(known.symbols(at.structure), known.name.rstrip("_"), ())
        axes = [size for size in known.shape(at.structure) if size > 1]
        names[_entry_symbol(known.name)] = (f"parameter {known.name.rstrip('_')}", tuple("ijkl"[: len(axes)]))
        names[_bare_symbol(known.name)] = (f"parameter {known.name.rstrip('_')}", ())
    return names


# --- symbols of the theory: name -> (text, LaTeX, index) --------------------------------------------------------------

CONTEXT_INDEX, TOKEN_INDEX, NO_INDEX = "context", "token", ""
Entry = tuple[str, str, str]
THEORY: dict[str, Entry] = {
    "q": ("q", "q", CONTEXT_INDEX),
    "V": ("V", "V", CONTEXT_INDEX),
    "m": ("m", "m", CONTEXT_INDEX),
    "theta": ("θ", r"\theta", CONTEXT_INDEX),
    "q_hat": ("q^", r"\hat{q}", CONTEXT_INDEX),
    "V_hat": ("V^", r"\hat{V}", CONTEXT_INDEX),
    "m_hat": ("m^", r"\hat{m}", CONTEXT_INDEX),
    "theta_hat": ("θ^", r"\hat{\theta}", CONTEXT_INDEX),
    "rho_star": ("ρ⋆", r"\rho^{\star}", CONTEXT_INDEX),
    "m_star": ("m⋆", r"m^{\star}", CONTEXT_INDEX),
    "gamma": ("γ", r"\gamma", CONTEXT_INDEX),
    "tau": ("τ", r"\tau", CONTEXT_INDEX),
    "D": ("D", r"D", CONTEXT_INDEX),
    "D_hat": ("D^", r"\hat{D}", CONTEXT_INDEX),
    "D_prime": ("D'", r"D'", CONTEXT_INDEX),
    "x": ("x", "x", TOKEN_INDEX),
    "g": ("g", "g", TOKEN_INDEX),
    "omega": ("ω", r"\omega", TOKEN_INDEX),
    "Y": ("Y", "Y", TOKEN_INDEX),
    "domega": ("δω", r"\delta\omega", TOKEN_INDEX),
    "dY": ("δY", r"\delta Y", TOKEN_INDEX),
    "z": ("z", "z", TOKEN_INDEX),
    "C": ("C", "C", TOKEN_INDEX),
    "dmean": ("dz̄", r"\mathrm{d}\bar{z}", TOKEN_INDEX),
    "S": ("𝒮", r"\mathcal{S}", TOKEN_INDEX),
    "G": ("G", "G", NO_INDEX),
    "B": ("B", "B", NO_INDEX),
    "Q": ("Q", "Q", NO_INDEX),
    "R": ("R", "R", NO_INDEX),
    "H": ("H", "H", NO_INDEX),
    "w": ("w", "w", NO_INDEX),
    "b": ("b", "b", NO_INDEX),
    "N": ("N", r"\mathcal{N}", NO_INDEX),
    "phi": ("φ", r"\varphi", NO_INDEX),
    "Kappa": ("κ", r"\kappa", NO_INDEX),
    "loss_q": ("∂loss/∂q", r"\tfrac{\partial\ell}{\partial q}", CONTEXT_INDEX),
    "loss_phi": ("∂loss/∂φ", r"\tfrac{\partial\ell}{\partial\varphi}", NO_INDEX),
    "penalty": ("r(w)", "r(w)", NO_INDEX),
    "Lambda": ("Λ", r"\Lambda", NO_INDEX),
    "pi": ("π", r"\pi", NO_INDEX),
    "alpha": ("α", r"\alpha", NO_INDEX),
    "Phi": ("Φ", r"\Phi", NO_INDEX),
    "M": ("M", r"\mathcal{M}", NO_INDEX),
    "loss": ("loss(X, Y, k, u)", r"\ell(X, Y, k, u)", NO_INDEX),
    "loss_gradient": ("∇loss(x)", r"\nabla\ell(x)", NO_INDEX),
    "metric": ("error(h, Y, k, u)", r"\varepsilon(h, Y, k, u)", NO_INDEX),
    "baseline": ("error of B₀", r"\varepsilon_{B_0}(Y, k, u)", NO_INDEX),
    "training_loss": ("e_t", r"e_{\mathrm{t}}", NO_INDEX),
    "replicon": ("replicon", r"\lambda_{\mathrm{R}}", NO_INDEX),
    "beta": ("β", r"\beta", NO_INDEX),
    "Z": ("Z", "Z", NO_INDEX),
    "W": ("W", "W", NO_INDEX),
    "W_star": ("W⋆", r"W^{\star}", NO_INDEX),
    "Sigma": ("Σ", r"\Sigma", CONTEXT_INDEX),
    "mu": ("x̄", r"\bar{\mathbf{x}}", CONTEXT_INDEX),
    "encoding": ("p", "p", TOKEN_INDEX),
    "token": ("𝐱", r"\mathbf{x}", TOKEN_INDEX),
    "sample_loss": ("loss(X^μ, Y^μ, k^μ, u^μ)", r"\ell(X^{\mu}, Y^{\mu}, k^{\mu}, u^{\mu})", NO_INDEX),
    "row_penalty": ("r(w^i)", "r(w^{i})", NO_INDEX),
    "replica_index": ("a", "a", NO_INDEX),
    "replica_pair": ("a≠a'", r"a \neq a'", NO_INDEX),
    "sample_index": ("μ", r"\mu", NO_INDEX),
    "row_index": ("i", "i", NO_INDEX),
    "risk": ("risk", r"\mathcal{R}(W)", NO_INDEX),
    "alpha_d": ("α d", r"\alpha d", NO_INDEX),
    "replicated_action": ("log(E[Zⁿ])/d", r"\tfrac{1}{d} \log \mathbb{E}\left[Z^{n}\right]", NO_INDEX),
    "S_trace": ("S_trace", r"S_{\mathrm{trace}}", NO_INDEX),
    "S_rows": ("S_rows", r"S_{\mathrm{rows}}", NO_INDEX),
    "S_sentences": ("S_sentences", r"S_{\mathrm{sent.}}", NO_INDEX),
    "S_trained": ("S_trained", r"S_{\mathrm{trained}}", NO_INDEX),
    "mean_field": ("E_b", r"\mathbb{E}_{b}", NO_INDEX),
    "field_mean": ("mean of (ω_l, Y_l)", r"\mathbb{E}[(\omega_{\ell}, Y_{\ell})]", NO_INDEX),
    "field_covariance": ("Cov(ω_l, Y_l)", r"\operatorname{Cov}(\omega_{\ell}, Y_{\ell})", NO_INDEX),
    "Phi_beta": ("Φ_β", r"\Phi_{\beta}", NO_INDEX),
    "objective": ("F(X)", "F(X)", NO_INDEX),
    "row_objective": ("f(w)", "f(w)", NO_INDEX),
    "H_w": ("ℋⁿ_w", r"\mathcal{H}^{(n)}_{w}", NO_INDEX),
    "h_w": ("ℋ_w", r"\mathcal{H}_{w}", NO_INDEX),
    "h_x": ("ℋ_X", r"\mathcal{H}_{X}", NO_INDEX),
    "epsilon": ("η", r"\eta", NO_INDEX),
    "Gamma": ("Γ", r"\Gamma", NO_INDEX),
    "second_variation": ("δ²S", r"\delta^{2} S", NO_INDEX),
    "A_row": ("G_i", "G_{i}", NO_INDEX),
    "xi": ("ξ", r"\xi", NO_INDEX),
    "xi_row": ("ξ_i", r"\xi_{i}", NO_INDEX),
    "N_row": ("N_i", "N_{i}", NO_INDEX),
    "penalty_gradient": ("∇r(w)", r"\nabla r(w)", NO_INDEX),
    "omega_mean": ("E[ω_l]", r"\mathbb{E}[\omega_{\ell}]", NO_INDEX),
    "omega_covariance": ("Cov(ω_l)", r"\operatorname{Cov}(\omega_{\ell})", NO_INDEX),
    "omega_teacher": ("Cov(ω_l, Y_l)", r"\operatorname{Cov}(\omega_{\ell}, Y_{\ell})", NO_INDEX),
    "b_mean": ("E[b]", r"\mathbb{E}[b]", NO_INDEX),
    "b_covariance": ("Cov(b)", r"\operatorname{Cov}(b)", NO_INDEX),
    "g_previous": ("g'", "g'", TOKEN_INDEX),
    "fields_X": ("X", "X", NO_INDEX),
    "fields_Y": ("Y", "Y", NO_INDEX),
    "z_vector": ("ζ", r"\zeta", NO_INDEX),
    "gram": ("E[ζᵀ ζ]", r"\mathbb{E}[\zeta^{T} \zeta]", NO_INDEX),
    "gamma_vector": ("γ", r"\gamma", NO_INDEX),
    "teacher_means": ("m⋆ (one row a context)", r"(m^{\star}_c)^{T}_{c}", NO_INDEX),
    "mean_coordinate": ("E_ν", r"\mathbb{E}_{\nu}", NO_INDEX),
    "mean_context": ("E_c", r"\mathbb{E}_{c}", NO_INDEX),
    "Omega": ("Ω", r"\Omega", NO_INDEX),
    "psi": ("ψ", r"\psi", NO_INDEX),
    "psi_star": ("ψ⋆", r"\psi^{\star}", NO_INDEX),
    "moment": ("𝒯", r"\mathcal{T}", NO_INDEX),
    "b_pi": ("E[b πᵀ]", r"\mathbb{E}[b \, \pi^{T}]", NO_INDEX),
    "b_tau": ("E[b τ]", r"\mathbb{E}[b \, \tau]", NO_INDEX),
    "dw/db": ("∂w/∂b", r"\tfrac{\partial w}{\partial b}", NO_INDEX),
    "rho_token": ("ρ_l", r"\rho_{\ell}", NO_INDEX),
    "q_bayes": ("qᴮ", r"q^{\mathrm{B}}", CONTEXT_INDEX),
    "q_hat_bayes": ("q^ᴮ", r"\hat{q}^{\mathrm{B}}", CONTEXT_INDEX),
    "V_bayes": ("Vᴮ", r"V^{\mathrm{B}}", CONTEXT_INDEX),
    "omega_bayes": ("ωᴮ", r"\omega^{\mathrm{B}}", TOKEN_INDEX),
    "g_bayes": ("gᴮ", r"g^{\mathrm{B}}", TOKEN_INDEX),
    "Q_bayes": ("Qᴮ", r"Q^{\mathrm{B}}", NO_INDEX),
    "b_bayes": ("bᴮ", r"b^{\mathrm{B}}", NO_INDEX),
    "pi_mean": ("⟨π⟩", r"\langle\pi\rangle", NO_INDEX),
    "Phi_bayes": ("Φᴮ", r"\Phi^{\mathrm{B}}", NO_INDEX),
    "Z_row": ("Z_π", r"Z_{\pi}", NO_INDEX),
    "Z_out": ("Z_out", r"Z_{\mathrm{out}}", NO_INDEX),
    "Z_any": ("Z_•", r"Z_{\bullet}", NO_INDEX),
    "Z_slope_1": ("(∂₁Z_•)", r"(\partial_{1} Z_{\bullet})", NO_INDEX),
    "Z_slope_2": ("(∂₂Z_•)", r"(\partial_{2} Z_{\bullet})", NO_INDEX),
    "C_any": ("C_•", r"C_{\bullet}", NO_INDEX),
    "Z_log_Z_gradient": (
        "∂E[Z_• log(Z_•)]/∂C_•",
        r"\tfrac{\partial}{\partial C_{\bullet}} \mathbb{E}\left[Z_{\bullet} \log Z_{\bullet}\right]",
        NO_INDEX,
    ),
    "mean_row_field": ("E_bᴮ", r"\mathbb{E}_{b^{\mathrm{B}}}", NO_INDEX),
    "mean_row": ("E_π", r"\mathbb{E}_{\pi}", NO_INDEX),
    "mean_output": ("E_out", r"\mathbb{E}_{\mathrm{out}}", NO_INDEX),
    "mean_output_context": ("E_out,c", r"\mathbb{E}_{\mathrm{out},c}", NO_INDEX),
    "law_row_field": ("-log Pr(bᴮ; π)", r"-\log \Pr(b^{\mathrm{B}} \mid \pi)", NO_INDEX),
    "evidence_power": (
        "log(E[evidenceⁿ])/d",
        r"\tfrac{1}{d} \log \mathbb{E}\left[\mathrm{evidence}^{n}\right]",
        NO_INDEX,
    ),
    "hidden_index": ("hidden", r"\mathrm{hidden}", NO_INDEX),
    "normal_weight": ("normal(Y; ωᴮ, Vᴮ)", r"\operatorname{normal}(Y; \omega^{\mathrm{B}}, V^{\mathrm{B}})", NO_INDEX),
    "output_jacobian": ("log abs(det ∂Y)", r"\log \left|\det \partial Y\right|", NO_INDEX),
    "output_likelihood": ("log Pr(observed; Y)", r"\log \Pr(\mathrm{observed} \mid Y)", NO_INDEX),
}


_SELF_OVERLAP = {"r": "q", "r_hat": "q_hat"}  # the overlap of a replica with itself is q_aa


def theory_entry(name: str, theory: Mapping[str, Entry]) -> tuple[str, Entry, str] | None:
    """("d" of a change or nothing, its entry, replica indices) of a symbol's name; None if it has none.

    An index of the symbol's own stands behind an @ and replaces that of a generic context or token.
    """
    name, at, own = name.partition("@")
    stem, _, replicas = name.removeprefix("slope_").partition("|")
    if stem in _SELF_OVERLAP:
        stem, replicas = _SELF_OVERLAP[stem], replicas * 2
    replicas = replicas.replace("b", "a'")
    if at:
        replicas = own.rstrip(";").replace(";", "; ")
        entry = theory.get(stem)
        return None if entry is None else ("", (entry[0], entry[1], NO_INDEX), replicas)
    change = "d" if stem not in theory and stem[:1] == "d" and stem[1:] in theory else ""
    entry = theory.get(stem.removeprefix(change))
    return None if entry is None else (change, entry, replicas)


# Of symbols with an index -> their entry.
STEMS = {"tau": "tau", "pi": "pi", "rhostar": "rho_star", "psi": "psi", "psistar": "psi_star"}


def own_entry(stem: str, theory: Mapping[str, Entry], default: str) -> tuple[str, str]:
    """(text, LaTeX) of a symbol of the model, "parameter omega" say: the reader's, or else a default."""
    kind, _, word = stem.rpartition(" ")
    known = word if kind in ("row", "overlap") else stem
    return theory[known][:2] if known in theory else (default, default)


# Entries that are written with the symbol of another.
_MADE_OF = {
    "loss_q": "q", "loss_phi": "phi", "D_prime": "D", "domega": "omega", "field_mean": "omega", "H_w": "w", "h_w": "w",
    "field_covariance": "omega", "penalty": "w", "row_penalty": "w", "row_objective": "w", "penalty_gradient": "w",
    "mean_field": "b", "b_mean": "b", "b_covariance": "b", "b_pi": ("b", "pi"), "b_tau": ("b", "tau"),
    "dw/db": ("w", "b"), "alpha_d": "alpha", "Phi_beta": ("Phi", "beta"), "teacher_means": "m_star",
    "gamma_vector": "gamma", "gram": "z_vector", "risk": "W", "sample_loss": "sample_index", "A_row": "G",
    "xi_row": "xi", "g_previous": "g", "omega_mean": "omega", "omega_covariance": "omega", "omega_teacher": "omega",
    "q_bayes": "q", "q_hat_bayes": "q", "V_bayes": "V", "omega_bayes": "omega", "g_bayes": "g", "Q_bayes": "Q",
    "b_bayes": "b", "mean_row_field": "b", "Phi_bayes": "Phi", "pi_mean": "pi", "Z_row": "pi", "mean_row": "pi",
    "law_row_field": ("b", "pi"), "normal_weight": ("omega", "V"),
}  # fmt: skip
# What a formula may hold that keeps its symbol: fields, labels, noise, sizes, indices, rho of a token and the like.
_FIXED = (*"XYhxykuLKstdnlciIEZSCHzJUN", r"\ell", r"\rho")
TEXT, LATEX = 0, 1


def renamed(names: Mapping[str, str], own: Names, column: int = LATEX) -> dict[str, Entry]:
    """The symbols of a report with some replaced by a reader's own, given in LaTeX; \\mu, or mu, is μ in text.

    Args:
        names: the name of a parameter of the model, or else of a symbol of the theory (`theory.NAME`, where a parameter
            has the name) -> its new symbol.
        own: symbols of the model.
        column: TEXT or LATEX, the form in which a symbol must not stand for two things.

    Raises:
        ModelError: a name is unknown, or a symbol would stand for two things.
    """
    theory = dict(THEORY)
    if not names:
        return theory
    of_model = {stem.rpartition(" ")[2]: stem for stem, _ in own.values() if stem.startswith(("parameter ", "noise "))}
    changed: dict[str, str] = {}  # entry -> what the reader calls it
    for name, symbol in names.items():
        key = name.removeprefix("theory.") if name.startswith("theory.") else of_model.get(name.rstrip("_"), name)
        if key not in RENAMED and key not in of_model.values():
            known = f"known are {', '.join(RENAMED)}" + (f" and of the model {', '.join(of_model)}" if of_model else "")
            raise ModelError(f"no symbol {name!r} to rename; {known}")
        if not symbol.strip():
            raise ModelError(f"the new symbol for {name} is empty")
        if key in changed:
            raise ModelError(f"{name} is renamed twice")
        text, symbol = both_forms(symbol)
        hat = rf"\hat{{{symbol}}}"
        # An index or exponent of its own is followed by that of a context or of Bayes-optimal inference.
        symbol = f"{{{symbol}}}" if re.search("[_^]", symbol) else symbol
        theory[key] = (text, symbol, THEORY[key][2] if key in THEORY else NO_INDEX)
        if f"{key}_hat" in THEORY:
            theory[f"{key}_hat"] = (f"{text}^", hat, THEORY[key][2])
        changed[key] = name
    for key, parts in _MADE_OF.items():
        new = {part: theory[part] for part in ([parts] if isinstance(parts, str) else parts) if part in changed}
        text, symbol = (
            _put({THEORY[p][i]: entry[i] for p, entry in new.items()}, THEORY[key][i]) for i in (TEXT, LATEX)
        )
        theory[key] = (text, symbol, THEORY[key][2])
    for key, name in changed.items():
        taken = _taken(theory, of_model, column)
        twins = [other for other, symbol in taken if other != key and symbol == theory[key][column]]
        if twins:
            other = next((called for stem, called in changed.items() if stem == twins[0]), twins[0])
            why = f"for {other}; rename {other}, too" if other else "keeps its meaning in every formula"
            raise ModelError(f"{theory[key][column]} would stand for {name} and {why}")
    return theory


def _put(new: Mapping[str, str], whole: str) -> str:
    """A symbol that holds others, old -> new, with these replaced all at once; letters of a word are no symbols."""
    if not new:
        return whole
    ways = [("" if old.startswith("\\") else r"(?<![A-Za-z\\])") + re.escape(old) for old in new]
    return re.sub(rf"(?:{'|'.join(ways)})(?![A-Za-z])", lambda found: new[found[0]], whole)


def _taken(theory: Mapping[str, Entry], of_model: Mapping[str, str], column: int) -> Iterator[tuple[str, str]]:
    """(what it is, symbol) of everything that a formula may hold."""
    for name in RENAMED:
        yield name, theory[name][column]
    for name, stem in of_model.items():
        greek = rf"\{name}" if column == LATEX else GREEK.get(name, name)
        yield (stem, theory[stem][column]) if stem in theory else (name, greek if name in GREEK else name)
    for symbol in _FIXED:
        yield "", both_forms(symbol)[column]


# Kind of a sum -> the entry of its index.
SUMS = {
    "replicas": "replica_index", "pairs": "replica_pair", "samples": "sample_index", "rows": "row_index",
    "hidden": "hidden_index",
}  # fmt: skip
# Kind of an average with a symbol of its own -> the entry of it.
MEANS = {
    COORDINATE: "mean_coordinate", "field": "mean_field", "row field": "mean_row_field", "row law": "mean_row",
    "output": "mean_output",
}  # fmt: skip


class Indices:
    """Which context and token a generic symbol carries at this place: primed inside an inner sum."""

    def __init__(self) -> None:
        self.context, self.token, self.depth = "c", "l", 0


def terms_positive_first(terms: Any) -> list[Any]:
    """The same terms, those with a minus sign last."""
    return sorted(terms, key=lambda term: bool(term.as_coeff_Mul()[0].is_negative or _matrix_negative(term)))


def _matrix_negative(term: Any) -> bool:
    if isinstance(term, MatrixAverage):
        return _matrix_negative(term.summand)
    if not isinstance(term, sp.MatMul):
        return False
    scalar, _ = term.as_coeff_matrices()
    return bool(scalar.could_extract_minus_sign())


def signed(term: Any) -> tuple[bool, Any]:
    """(is there a minus sign in front, the term without it); a minus inside an average is taken out."""
    if isinstance(term, MatrixAverage) and _matrix_negative(term):
        return True, MatrixAverage(term.kind, signed(term.summand)[1])
    if isinstance(term, MatrixExpr):
        if not _matrix_negative(term):
            return False, term
        scalar, factors = term.as_coeff_matrices()
        rest = factors[0] if len(factors) == 1 and scalar == -1 else None
        return True, rest if rest is not None else sp.MatMul(*([-scalar] if scalar != -1 else []), *factors)
    negative = bool(term.could_extract_minus_sign()) and not isinstance(term, sp.Add)
    return negative, -term if negative else term


# --- how a terminal shows it ------------------------------------------------------------------------------------------

_TIE = "\u00a0"  # a blank at which a line is not broken if it can be helped
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


class TextPrinter(StrPrinter):
    """SymPy objects of this package as one line of Unicode text."""

    form = TEXT

    def __init__(self, names: Names, theory: Mapping[str, Entry] | None = None, width: int = WIDTH) -> None:
        self.width = width
        super().__init__({"order": "none"})  # of factors, which come in an order of their own
        self.names, self.entries, self.at = names, THEORY if theory is None else theory, Indices()
        self.stacked = False

    def theory(self, name: str) -> str | None:
        found = theory_entry(name, self.entries)
        if found is None:
            return None
        change, (text, _, index), replicas = found
        if name.startswith("slope_"):
            return f"∂{text}/∂n at n = 0"
        label = {CONTEXT_INDEX: self.at.context, TOKEN_INDEX: self.at.token}.get(index, "")
        labels = [part for part in (replicas, "" if self.stacked else label) if part]
        if replicas and "(" in text:  # loss(X_a, Y, k, u)
            return re.sub(r"\((\w)", rf"(\1_{replicas}", text, count=1)
        return change + text + (f"_{','.join(labels)}" if labels else "")

    def _print_MatrixSymbol(self, expr: sp.MatrixSymbol) -> str:
        return self.theory(expr.name) or expr.name

    def _print_Symbol(self, expr: sp.Symbol) -> str:
        if expr in self.names:
            stem, indices = self.names[expr]
            kind, _, word = stem.rpartition(" ")
            shown = {"B0": "B₀", "rho": "ρ"}.get(word, word) if not kind else own_entry(stem, self.entries, word)[TEXT]
            separator = "," if any(len(str(n)) > 1 for n in indices) else ""
            return shown + (f"_{separator.join(str(n) for n in indices)}" if indices else "")
        found = re.fullmatch(r"softmax_(\w+?)(?:_(\w+))?", expr.name)
        if found:
            return f"S{found[1]}" + (f"[{found[2]}]" if found[2] else "")
        found = re.fullmatch(r"(tau|pi|rhostar|psi|psistar)_(\d+)", expr.name)
        if found:
            return f"{self.entries[STEMS[found[1]]][TEXT]}_{int(found[2]) + 1}"
        if expr.name.startswith("slope@"):
            return f"∂loss/∂{self._print_Symbol(sp.Symbol(expr.name.removeprefix('slope@'), real=True))}"
        return self.theory(expr.name) or expr.name

    def _sum(self, terms: Any) -> str:
        text = ""
        for term in terms_positive_first(terms):
            negative, bare = signed(term)
            printed = self._print(bare)
            if negative and isinstance(bare, sp.Add | sp.MatAdd):
                printed = f"({printed})"
            text += (f" {'-' if negative else '+'}{_TIE}" if text else "-" if negative else "") + printed
        return text

    def _print_Add(self, expr: sp.Add, order: Any = None) -> str:
        return self._sum(expr.as_ordered_terms())

    def _print_MatAdd(self, expr: sp.MatAdd) -> str:
        return self._sum(expr.args)

    def _print_MatMul(self, expr: sp.MatMul) -> str:
        negative, bare = signed(expr)
        if not isinstance(bare, sp.MatMul):
            return ("-" if negative else "") + self._print(bare)
        scalar, factors = bare.as_coeff_matrices()
        numbers = [] if scalar == 1 else [scalar] if not scalar.has(Average) else list(sp.Mul.make_args(scalar))
        parts = [f"({self._print(a)})" if is_sum(a) else self._print(a) for a in (*numbers, *factors)]
        return ("-" if negative else "") + _TIE.join(parts)

    def _print_Mul(self, expr: sp.Mul) -> str:
        return super()._print_Mul(parameters_first(expr, self.names)).replace("*", _TIE)

    def _print_Pow(self, expr: sp.Pow, rational: bool = False) -> str:
        base, exponent = expr.args
        if exponent.is_Integer and exponent > 1:
            printed = self._print(base)
            bare = base.is_Symbol or (base.is_Function and not isinstance(base, sp.Derivative))
            return (printed if bare else f"({printed})") + str(exponent).translate(_SUPERSCRIPT)
        return super()._print_Pow(expr, rational=rational).replace("**", "^").replace("*", _TIE)

    def _print_Transpose(self, expr: sp.Transpose) -> str:
        return self._tight(expr.arg) + "ᵀ"

    def _print_Inverse(self, expr: sp.Inverse) -> str:
        return self._tight(expr.arg) + "⁻¹"

    def _print_MatPow(self, expr: sp.MatPow) -> str:
        return self._tight(expr.base) + str(expr.exp).translate(_SUPERSCRIPT)

    def _tight(self, expr: MatrixExpr) -> str:
        printed = self._print(expr)
        bare = isinstance(expr, sp.MatrixSymbol) and not printed.endswith("ᴮ")  # Qᴮ⁻¹ is no power
        return printed if bare else f"({printed})"

    def _print_Identity(self, expr: sp.Identity) -> str:
        return "I"

    def _print_ZeroMatrix(self, expr: sp.ZeroMatrix) -> str:
        return "0"

    def _print_Trace(self, expr: sp.Trace) -> str:
        return f"Tr[{self._print(expr.arg)}]"

    def _print_Jacobian(self, expr: Jacobian) -> str:
        field, variable = print_jacobian(self, expr)
        return f"∂{field}/∂{variable}"

    def _print_Derivative(self, expr: sp.Derivative) -> str:
        function, variable = (self.entries[name][TEXT] for name in (expr.expr.func.__name__, expr.variables[0].name))
        return f"∂{function}/∂{variable}"

    def _print_average(self, expr: Average | MatrixAverage) -> str:
        return print_average(self, expr)

    _print_Average = _print_MatrixAverage = _print_average

    def wrap_average(self, kind: str, label: str, body: str, several: bool) -> str:
        if kind == CHANNEL:
            return f"E{label}[{body}]"
        if kind in MEANS:
            return f"{self.entries[mean_entry(kind, label)][TEXT]}[{body}]"
        if "@" in kind:
            return f"E{'_' * bool(label)}{label}[{body}]"
        label = self.entries[SUMS[kind]][TEXT] if kind in SUMS else label
        return f"Σ_{label}{_TIE}{f'[{body}]' if several else body}"

    def _print_LogDet(self, expr: sp.Expr) -> str:
        return f"log{_TIE}det({self._print(expr.args[0])})"

    def _print_LogIntegral(self, expr: sp.Expr) -> str:
        several = "Π_a " if "|" in expr.args[1].name else ""
        variable = "X" if expr.args[1].name == "x" else self._print(expr.args[1])
        return f"log ∫ {several}d{variable} exp{{ {self._print(expr.args[0])} }}"

    def _print_softmax(self, expr: sp.Expr) -> str:
        return f"softmax({', '.join(self._print(z) for z in expr.args)})"

    def _print_Function(self, expr: sp.Function) -> str:
        name = expr.func.__name__
        if name == "minimum":
            return f"min_X {{ {self._print(expr.args[0])} }}"
        if name == "maximum":
            return f"max_{self.entries['w'][TEXT]} {{ {self._print(expr.args[0])} }}"
        if name == "gradient":
            return f"∂{self._print(expr.args[0])}/∂{self._print(expr.args[1])}"
        if name == "change":
            return f"d{_TIE}{self._print(expr.args[0])}"
        if name == "softmax":
            return self._print_softmax(expr)
        shown = name if name in ("Cov", "mean") else name.lower()
        return f"{shown}({', '.join(self._print(z) for z in expr.args)})"

    def _print_SoftmaxEntry(self, expr: SoftmaxEntry) -> str:
        return f"{self._print_softmax(sp.Function('softmax')(*expr.args[1:]))}[{int(expr.args[0]) + 1}]"

    def _print_Piecewise(self, expr: sp.Piecewise) -> str:
        cases = [f"{self._print(e)} {'else' if c == True else f'if {self._print(c)}'}" for e, c in expr.args]  # noqa: E712
        return "{ " + "; ".join(cases) + " }"

    def _print_MatrixBase(self, expr: sp.MatrixBase) -> str:
        rows = [", ".join(self._print(e) for e in expr.row(i)) for i in range(expr.rows)]
        return f"({rows[0]})" if expr.rows == 1 else "[" + "; ".join(rows) + "]"

    _print_ImmutableDenseMatrix = _print_MutableDenseMatrix = _print_MatrixBase

    def _print_BlockMatrix(self, expr: sp.BlockMatrix) -> str:
        return self._print_MatrixBase(expr.blocks)

    def _print_Tuple(self, expr: sp.Tuple) -> str:
        return "(" + ", ".join(self._print(e) for e in expr) + ")"

    def _print_Stacked(self, expr: Stacked) -> str:
        return self.show(expr.expression, stacked=True)

    def show(self, value: Any, stacked: bool = False) -> str:
        """Print an object of a report; strings pass unchanged."""
        if isinstance(value, str):
            return value
        if isinstance(value, Words):
            return value.text.format(*[self.show(e) for e in value.objects])
        if isinstance(value, Stacked):
            return self.show(value.expression, stacked=True)
        self.stacked = stacked
        try:
            return self.doprint(value)
        finally:
            self.stacked = False


def parameters_first(product: sp.Mul, names: Names) -> sp.Mul:
    """Numbers, alpha and parameters of the model, then the rest, each in SymPy's order."""

    def rank(factor: sp.Expr) -> int:
        base = factor.as_base_exp()[0]
        if factor.is_number or not base.is_Symbol:
            return 0 if factor.is_number else 3
        if base.name == "alpha" or names.get(base, ("",))[0].startswith(("parameter", "rho")):
            return 1
        return 2 if base.name.startswith("moment@") else 3

    number, rest = product.as_coeff_Mul()
    factors = sorted(rest.as_ordered_factors(), key=rank)
    return sp.Mul(*([number] if number != 1 else []), *factors, evaluate=False)


def print_average(printer: Any, expr: Average | MatrixAverage) -> str:
    """An average in a printer of this package: sums bind the index of what stands in them, primed when nested."""
    at, kind, summand = printer.at, expr.kind, expr.summand
    before = (at.context, at.token, at.depth)
    # What belongs to a sentence as a whole is averaged over all of them.
    whole = isinstance(summand, sp.MatrixSymbol) and summand.name == "loss_phi"
    label = "_c" if isinstance(expr, MatrixAverage) and not whole else ""
    if kind == CONTEXTS:
        label = at.context = "c'" if at.depth else "c"
    elif kind == TOKENS and at.depth:
        label = at.token = at.context = "l'"
    elif kind == TOKENS:
        label = "l"
    elif kind in SUMS:
        label = kind
    elif "@" in kind:  # given labels of a sentence, or a row in an atom of the spectrum
        stem, _, own = kind.partition("@")
        label = ",".join(part for part in (printer.entries["b"][printer.form] if stem == "row" else "", own) if part)
    elif kind != "field":
        at.depth += 1
    body = printer._print(summand)
    at.context, at.token, at.depth = before
    return printer.wrap_average(kind, label, body, isinstance(summand, sp.Add | sp.MatAdd))


def mean_entry(kind: str, label: str) -> str:
    """The entry of an average, in one context if it has a label."""
    return MEANS[kind] + ("_context" if kind == "output" and label else "")


def print_jacobian(printer: Any, expr: Jacobian) -> tuple[str, str]:
    """Field and variable of a Jacobian; inside a sum over l' the field keeps the outer token l."""
    variable = printer._print(expr.args[1])
    inner, printer.at.token = printer.at.token, "l"
    field = printer._print(expr.args[0])
    printer.at.token = inner
    return field, variable


def is_sum(factor: Any) -> bool:
    """Does a factor need brackets in a product?"""
    if isinstance(factor, Average | MatrixAverage):
        return factor.kind in (CONTEXTS, TOKENS, *SUMS)
    return isinstance(factor, sp.MatAdd | sp.Add)


def describe(
    model: Model,
    structure: Structure | None = None,
    steps: bool = False,
    names: Mapping[str, str] | None = None,
    width: int = WIDTH,
) -> str:
    """The derivation of a model as text of at most `width` columns, 80 or more.

    Args:
        structure: default, the model's own.
        steps: with the replica calculation, step by step.
        names: symbols of the reader's own in LaTeX, {"theta": "T", "omega": "a"}, as `renamed` takes them.

    Raises:
        ModelError: the model is not well posed at the structure, or a name is unknown or taken.
    """
    return shown(report(model, structure, steps), names, width)


def shown(content: Report, names: Mapping[str, str] | None = None, width: int = WIDTH) -> str:
    """A report as text, as `describe` returns it."""
    printer = TextPrinter(content.names, renamed(names or {}, content.names, TEXT), width)
    blocks = [f"{content.title}\n{'=' * len(content.title)}"]
    for section in content.sections:
        blocks.append(f"{section.title}\n{'-' * len(section.title)}")
        blocks.append("\n".join(line for item in section.items for line in _lines(item, printer)))
    return "\n\n".join(blocks) + "\n"


def _lines(item: Relation | Words | Table, printer: TextPrinter) -> list[str]:
    if isinstance(item, Words):
        return _wrapped(printer.show(item), "", "", printer.width)
    if isinstance(item, Table):
        return _table(item, printer)
    sign = {">": "≻", "->": "→"}.get(item.sign, item.sign)
    left = f"{printer.show(item.left, item.stacked)} {sign} "
    right = printer.show(item.right, item.stacked)
    lines = _wrapped(right, f"    {left}", " " * (4 + min(len(left), 16)), printer.width, formula=True)
    if not item.note:
        return lines
    if len(lines[-1]) + len(item.note) + 5 <= printer.width:
        return [*lines[:-1], f"{lines[-1]}   ({item.note})"]
    return lines + _wrapped(f"({item.note})", " " * 8, " " * 8, printer.width)


def _wrapped(text: str, first: str, following: str, width: int, formula: bool = False) -> list[str]:
    """Lines of at most `width` columns; a formula is broken in the outermost brackets that make it fit."""
    lines: list[str] = []
    for level in range(4) if formula else [0]:
        lines = textwrap.wrap(
            _tied(text, level) if formula else text.replace(_TIE, " "),
            width,
            initial_indent=first.replace(" ", _TIE),
            subsequent_indent=following,
            break_long_words=False,
            break_on_hyphens=False,
        )
        if all(len(line) <= width for line in lines):
            break
    else:
        return _wrapped(text, first, following, width)
    return [line.replace(_TIE, " ").rstrip() for line in lines]


def _tied(formula: str, level: int) -> str:
    """Tie what stands more than `level` brackets deep together."""
    depth, characters = 0, []
    for character in formula:
        depth += (character in "([{") - (character in ")]}")
        characters.append(_TIE if character == " " and depth > level else character)
    return "".join(characters)


def _table(table: Table, printer: TextPrinter) -> list[str]:
    rows = [table.head, *[tuple(printer.show(cell).replace(_TIE, " ") for cell in row) for row in table.rows]]
    most = 34 - (WIDTH - printer.width) * 7 // 10  # of a column, so that the last one keeps its share
    widths = [min(max(len(row[i]) for row in rows), most) for i in range(len(table.head))]
    widths[-1] = max(12, printer.width - 4 - sum(widths[:-1]) - 2 * (len(widths) - 1))
    lines: list[str] = []
    for row in rows:
        cells = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
        for n in range(max(len(cell) for cell in cells)):
            parts = [(cell[n] if n < len(cell) else "").ljust(w) for cell, w in zip(cells, widths, strict=True)]
            lines.append(("    " + "  ".join(parts)).rstrip())
    return lines
