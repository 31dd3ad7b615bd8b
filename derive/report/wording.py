"""The words and symbols of a report as its model needs them.

Sections are composed for sentences of several tokens, and with a teacher. A model of one token has samples and inputs
in their place, and no index of a token; one of a single context has no index of a context; one whose loss, penalty, law
and output do not depend on the teacher has none of its symbols.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import sympy as sp

from ..authoring.model import FixedSizeModel
from ..calculus.averages import CHANNEL, CONTEXTS, Average, MatrixAverage
from ..theory.stability import TOKENS
from .blocks import Relation, Report, Section, Table, TextWithSymbols, UnindexedExpression, Vocabulary
from .symbols import CONTEXT_INDEX, LATEX, NO_INDEX, TOKEN_INDEX, Entry, rename_symbols

_TEACHER_SYMBOLS = frozenset((
    "theta", "theta_hat", "dtheta", "dtheta_hat", "Y", "dY", "pi", "m_star", "rho_star", "W_star", "fields_Y", "b_pi",
    "omega_teacher", "K_slope", "P_atom", "rate_of_P", "moved_P",
))  # fmt: skip
# (Pattern, replacement), in order; a symbol in the words is written <number:name>.
_WITHOUT_TEACHER = (
    (r"Given by the law of the tokens: [^.]*teacher's fields\. ?", ""),
    (r"It is even in the teacher's fields.*", ""),
    (r".* in pairs that differ in the sign of <\d+:theta>, <\d+:theta_hat>\.", ""),
    (r", t = \d+ \(columns of the teacher's\)", ""),
    (r"X and Y are the fields of student and teacher", "X are the fields of the student"),
    (r" and of the teacher \(L x t\)", ""),
    (r" for the student and without it for the teacher", ""),
    (r"; <\d+:W_star> \(d x t\) are the weights of the teacher", ""),
    (r", (the mean coordinate .*), and the teacher's row <\d+:pi>", r" and \1"),
    (r"data and teacher", "the data"),
    (r" and of the teacher\b", ""),
    (r"Eigenvalues, coordinates", "Eigenvalues and coordinates"),
    (r" and rows of the teacher's weights", ""),
    (r"s, t and K are", "s and K are"),
    (r" that the student sees and the teacher does not", ""),
    (r"(<\d+:omega\w*>) and <\d+:Y> of token l are jointly normal", r"\1 of token l are normal"),
    (r"student fields and the teacher's", "student fields"),
    (r"covariance and covariance with the teacher", "and covariance"),
    (r"mean, and covariance", "mean and covariance"),
    (r"the teacher's fields and the noise", "the noise"),
    (r", <\d+:rho_star> the covariance of the teacher's\)", ")"),
    (r"(<\d+:\w+>) and <\d+:dY> are", r"\1 are"),
    (r"<(\d+):domega> and <\d+:dY> the deviations of (<\d+:\w+>) and <\d+:Y> from their means",
     r"<\1:domega> the deviation of \2 from its mean"),
    (r" and <\d+:dY>", ""),
    (r", their covariance with the teacher.s is as before", ""),
    (r"(<\d+:\w+>), (<\d+:\w+>) and <\d+:theta>", r"\1 and \2"),
    (r", (condition for )?<\d+:theta>", ""),
    (r"the eight equations", "the six equations"),
)  # fmt: skip
_ONE_TOKEN = (
    (r"L = \d+ \(tokens\), ", ""),
    (r"\(clusters a token\)", "(clusters)"),
    (r"labels of the tokens' clusters", "label of the sample's cluster"),
    (r"Cluster labels", "Cluster label"),
    (r"Joint law of the labels, last label fastest", "Law of the label"),
    (r"\(L x (\w)\)", r"(1 x \1)"),
    (r"Row l is (<\d+:\w*>) times a token, with its positional encoding", r"They are \1 times an input"),
    (r" for the student and without it for the teacher, over the root of d; (<\d+:W_star> \(d x t\)) are the weights "
     r"of the teacher", r" over the root of d, for the teacher with its own weights \1"),
    (r", over the root of d\.", " over the root of d."),
    (r"c = \(token, cluster\), in the order ((?:\(1,\d+\)(?:, )?)+)", r"c are the clusters, in the order \1"),
    (r"\(1,(\d+)\)", r"\1"),
    (r"(of its context), and a positional encoding <\d+:\w+>( that the student sees and the teacher does not)?", r"\1"),
    (r"( and| with) the positional encoding|(,)? with its encoding(,)?", r"\3"),
    (r"means and encodings", "means"),
    (r" and independent of the other tokens of its sentence", ""),
    (r"L, s(, t)? and K", r"s\1 and K"),
    (r"L = s = ", "s = "),
    (r"context c = \(l, k\), where token l has label k", "context c, the sample having label c"),
    (r"; a quantity of token l with an index c is that of its context", ""),
    (r"all L s fields of a sentence, stacked; <\d+:V> is block diagonal over tokens and H the Hessian",
     "the s fields of a sample, H being the Hessian"),
    (r", independently for each token", ""),
    (r"fields of all tokens, of normal laws of means (<\d+:\w+>) and covariances (<\d+:\w+>), independent from token "
     r"to token", r"fields of the sample, of the normal law of mean \1 and covariance \2"),
    (r"labels of their clusters", "label of its cluster"),
    (r"which labels the tokens have", "which label the sample has"),
    (r"the sum over tokens of the first term, and by the second one", "the sum of two terms"),
    (r"\bof two tokens( at d)", r"of two vectors\1"),
    (r"sentence", "sample"),
    (r"(fields (?:<\d+:\w+> and )?<\d+:\w+>|label) of (?:the token|token l)", r"\1 of a sample"),
    (r"\b(a|the) token(?: l)?(?!\w)", lambda found: {"a": "an", "the": "the"}[found[1]] + " input"),
    (r"A token", "An input"),
    (r"token( l\b)?", "input"),
)  # fmt: skip
_ONE_CONTEXT = (
    (r"Contexts c are the inputs, in the order 1\. ", ""),
    (r"common eigenbasis carries the eigenvalue (<\d+:gamma>) of each covariance",
     r"eigenbasis of the covariance carries the eigenvalue \1"),
    (r", K = 1 \(clusters\)|, K = 1(?= the)", ""),
    (r" = K = 1", " = 1"),
    (r", k the label of the sample's cluster and u the noise of a sample, where there are any",
     ", u the noise of a sample, where there is any"),
    (r"s, t and K are", "s and t are"),
    (r"s and K are of", "s is of"),
    (r"Given its label an input", "An input"),
    (r"All covariances have one eigenbasis\. ", ""),
    (r"Given the label of a sample they", "They"),
    (r", hence jointly normal given the label", ", hence jointly normal"),
    (r"mean (<\d+:\w+>) and covariance (<\d+:\w+>) of its context", r"mean \1 and covariance \2"),
    (r", the label of its cluster and, of every sample,", " and, of every sample,"),
    (r"labels of clusters and ", ""),
    (r" of context c\b| of every context\b| in context c\b|the average restricted to context c", ""),
    (r" restricted to (a context|context c)(, the sample having label c)?", ""),
    (r"feels the sum over contexts", "feels"),
    (r"matrices (<\d+:D>) of all contexts to new ones", r"matrix \1 to a new one"),
    (r"<(\d+):D> and <(\d+):D_hat> symmetric s x s matrices", r"<\1:D> and <\2:D_hat> two symmetric s x s matrices"),
)  # fmt: skip


def vocabulary_of_model(at: FixedSizeModel) -> Vocabulary:
    """Return which notions a report on the model has to mention: tokens, contexts (token, cluster), a teacher."""
    sizes, law = at.structure, at.law
    contexts, penalty = sizes.tokens * sizes.clusters, at.penalty
    metrics = [metric for metric in (at.metric, *(metric for metric, *_ in at.others.values())) if metric is not None]
    products = [e for gram in law["gram"] for row in gram[:contexts] for e in row[contexts:]]
    return Vocabulary(
        has_tokens=sizes.tokens > 1,
        has_contexts=contexts > 1,
        has_teacher=any(e.has(*at.Y) for e in (at.loss, *metrics))
        or at.output is not None
        or (penalty is not None and (penalty.depends_on_teacher or at.has_discrete_teacher))
        or any(e != 0 for e in (*products, *(e for mean in law["teacher_means"] for e in mean))),
    )


def adapt_report_to_model(report: Report) -> Report:
    """Return the report with words and symbols adapted to its model, for example without its absent teacher."""
    return replace(
        report, sections=tuple(_adapt_section_to_model(section, report.vocabulary) for section in report.sections)
    )


def symbols_of_report(report: Report, names: Mapping[str, str] | None = None, column: int = LATEX) -> dict[str, Entry]:
    """Return the printed symbols of the theory in a report, without token or context indices of one value only.

    Args:
        report: the report.
        names: symbols that the reader prefers: name -> LaTeX, as {"theta": "M"}.
        column: TEXT or LATEX, the form in which a symbol must not stand for two things.
    """
    known, removed, unused = report.vocabulary, [], set()
    if not known.has_tokens:
        removed += [(r"_l(?!\w)|_\{\\ell\}", ""), ("sentences|sent\\.", "samples")]
        unused.add(TOKEN_INDEX)
    if not known.has_contexts:
        removed += [
            (r" \(one row a context\)", "ᵀ"), (r"\((.*)_c\)\^\{T\}_\{c\}", r"{\1}^{T}"),
            (r"_c(?!\w)'?|_\{c'?\}|,c", ""), (r", k(\^[^,)]*)?(?=[,)])", ""),
        ]  # fmt: skip
        unused.add(CONTEXT_INDEX)
    if not known.has_teacher:
        removed += [(r", Y(\^[^,)]*|_l|_\{\\ell\})?(?=[,)])", ""), (r"\(Y, ", "(")]
    symbols: dict[str, Entry] = {}
    for name, (text, latex, index) in rename_symbols(names or {}, report.names, column).items():
        text, latex = _apply_text_replacements(text, removed), _apply_text_replacements(latex, removed)
        symbols[name] = text, latex, NO_INDEX if index in unused else index
    return symbols


def adapt_expression_to_model(expression: Any, known: Vocabulary) -> Any:
    """Return an expression without sums over a single token or context and without symbols of an absent teacher.

    The result is None if nothing is left of the expression.

    Args:
        expression: a SymPy object.
        known: which of tokens, contexts and teacher the model has.
    """
    if isinstance(expression, sp.Symbol | sp.MatrixSymbol):
        return _remove_unneeded_symbol_index(expression, known)
    if isinstance(expression, UnindexedExpression):
        return UnindexedExpression(adapt_expression_to_model(expression.expression, known))
    if isinstance(expression, sp.BlockMatrix):
        return _drop_teacher_blocks(expression.blocks, known)
    if not isinstance(expression, sp.Basic) or not expression.args:
        return expression
    parts = [adapt_expression_to_model(part, known) for part in expression.args]
    if isinstance(expression, sp.Add | sp.MatAdd | sp.Tuple):
        parts = [part for part in parts if part is not None]
    if any(part is None for part in parts) or not parts:
        return None
    if isinstance(expression, Average | MatrixAverage):
        if expression.kind in (TOKENS,) * (not known.has_tokens) + (CONTEXTS,) * (not known.has_contexts):
            return parts[1]
        if expression.kind == CHANNEL and isinstance(expression, MatrixAverage) and not known.has_contexts:
            return MatrixAverage("of@", parts[1])  # without the index of a context
    if parts == list(expression.args):
        return expression
    rebuilt = expression.func(*parts)
    return rebuilt.doit(deep=False) if isinstance(rebuilt, sp.MatMul | sp.MatAdd) else rebuilt


def _remove_unneeded_symbol_index(symbol: sp.Symbol | sp.MatrixSymbol, known: Vocabulary) -> Any:
    stem = re.split("[|@]", symbol.name)[0]
    if (stem == "encoding" and not known.has_tokens) or (stem in _TEACHER_SYMBOLS and not known.has_teacher):
        return None
    of_context = {"tau_0": "tau", "rhostar_0": "rho_star"}.get(symbol.name, symbol.name.removesuffix("@c'"))
    if known.has_contexts or of_context == symbol.name:
        return symbol
    return sp.MatrixSymbol(of_context, *symbol.shape) if isinstance(symbol, sp.MatrixSymbol) else sp.Symbol(of_context)


def _drop_teacher_blocks(blocks: sp.MatrixBase, known: Vocabulary) -> Any:
    """Return a block matrix of fields without its teacher rows and columns if the model has no teacher."""
    entries = [[adapt_expression_to_model(entry, known) for entry in row] for row in blocks.tolist()]
    if known.has_teacher:
        return sp.BlockMatrix(entries)
    return entries[0][0]  # the teacher's fields stand below and right of the student's


def _adapt_section_to_model(section: Section, known: Vocabulary) -> Section:
    adapted = (_adapt_content_to_model(item, known) for item in section.items)
    return Section(_adapt_text_to_model(section.title, known), tuple(item for item in adapted if item is not None))


def _adapt_content_to_model(item: Any, known: Vocabulary) -> Any:
    """Return an equation, sentence, table, text or expression adapted to the model; None if nothing is left."""
    if isinstance(item, str):
        return _adapt_text_to_model(item, known)
    if isinstance(item, TextWithSymbols):
        return item if item.is_quoted else _adapt_sentence_to_model(item, known)
    if isinstance(item, Table):
        rows = [[_adapt_content_to_model(cell, known) for cell in row] for row in item.rows]
        return Table(item.head, tuple(tuple(row) for row in rows if row[0] is not None))
    if not isinstance(item, Relation):
        return adapt_expression_to_model(item, known)
    left, right = item.left, item.right
    if isinstance(left, sp.Function) and left.func.__name__ in ("mean", "Cov") and not known.has_teacher:
        blocks = right.blocks if isinstance(right, sp.BlockMatrix) else right
        left, right = left.func(left.args[0]), blocks[0, 0]
    left, right = adapt_expression_to_model(left, known), adapt_expression_to_model(right, known)
    return None if left is None or right is None else replace(
        item, left=left, right=right, note=_adapt_text_to_model(item.note, known)
    )  # fmt: skip


def _adapt_sentence_to_model(words: TextWithSymbols, known: Vocabulary) -> TextWithSymbols | None:
    """Return a sentence adapted to the model, with its remaining symbols; None if no text is left."""
    numbered = iter(range(len(words.objects)))

    def replace_by_numbered_placeholder(_: re.Match[str]) -> str:
        number = next(numbered)
        named = words.objects[number]
        if isinstance(named, str):
            return named
        named = named.expression if isinstance(named, UnindexedExpression) else named
        stem = getattr(named, "name", "").partition("@")[0]
        return f"<{number}:{stem if stem.isidentifier() else ''}>"

    text = _adapt_text_to_model(re.sub(r"\{\}", replace_by_numbered_placeholder, words.text), known)
    pieces = re.split(r"<(\d+):\w*>", text)
    kept = [words.objects[int(number)] for number in pieces[1::2]]
    objects = [part for piece in zip(pieces[::2], [*kept, ""], strict=True) for part in piece]
    adapted = [part if isinstance(part, str) else _adapt_content_to_model(part, known) for part in objects]
    return TextWithSymbols("{}" * len(adapted), tuple(adapted)) if text else None


def _adapt_text_to_model(text: str, known: Vocabulary) -> str:
    """Return text adapted to the model; a symbol in the text is written <number:name>."""
    for needed, replacements in (
        (known.has_teacher, _WITHOUT_TEACHER), (known.has_tokens, _ONE_TOKEN), (known.has_contexts, _ONE_CONTEXT),
    ):  # fmt: skip
        text = text if needed else _apply_text_replacements(text, replacements)
    return text


def _apply_text_replacements(text: str, replacements: Iterable[tuple[str, Any]]) -> str:
    for pattern, replacement in replacements:
        text = re.sub(pattern, replacement, text)
    return text
