"""The content of a report as plain values: relations, words and tables in sections, whatever the output format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sympy as sp

Names = dict[sp.Symbol, tuple[str, tuple[int | str, ...]]]  # symbol -> (stem, indices from 1)


@dataclass(frozen=True)
class Relation:
    """An equation or inequality of a report: its left side, its sign (as "=" or "->"), its right side, and a note."""

    left: Any
    right: Any
    note: str = ""
    sign: str = "="


@dataclass(frozen=True)
class TextWithSymbols:
    """A sentence with symbols: each {} is printed as the next of `objects`, {NAME} as the theory's symbol NAME."""

    text: str
    objects: tuple[Any, ...] = ()
    is_quoted: bool = False  # the author's own words, which stay as they are

    def __post_init__(self) -> None:
        given = iter(self.objects)
        objects = [sp.Symbol(name) if name else next(given) for name in re.findall(r"\{(\w*)\}", self.text)]
        object.__setattr__(self, "text", re.sub(r"\{\w+\}", "{}", self.text))
        object.__setattr__(self, "objects", (*objects, *given))


@dataclass(frozen=True)
class Table:
    """A table of a report: a heading for each column, and rows of cells that are strings or SymPy objects."""

    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


Items = list[Relation | TextWithSymbols | Table]


@dataclass(frozen=True)
class Section:
    """A section of a report: a title, and equations, sentences and tables in order."""

    title: str
    items: tuple[Relation | TextWithSymbols | Table, ...]


def group_by_type(items: Iterable[object]) -> Iterator[tuple[type, list[Any]]]:
    """Yield pairs (type, list of objects) for each run of consecutive objects of one type."""
    return ((kind, list(run)) for kind, run in groupby(items, type))


@dataclass(frozen=True)
class Vocabulary:
    """The notions that a report may mention: several tokens, several pairs (token, cluster), a teacher."""

    has_tokens: bool = True
    has_contexts: bool = True
    has_teacher: bool = True


@dataclass(frozen=True)
class Report:
    """A report: title, sections, how the model's symbols are printed, and which notions the text may mention."""

    title: str
    sections: tuple[Section, ...]
    names: Names
    vocabulary: Vocabulary = Vocabulary()


@dataclass(frozen=True)
class UnindexedExpression:
    """An expression that is printed without the indices of token and context (token, cluster)."""

    expression: Any


def render_text_or_formula(value: Any, prose: Callable[[str], str], formula: Callable[[Any], str]) -> str:
    """Return a string, a sentence with symbols or a SymPy object as text, with given functions for the conversion.

    Args:
        value: a string, a `TextWithSymbols` or a SymPy object.
        prose: function that converts a string.
        formula: function that converts a SymPy object.
    """
    if isinstance(value, str):
        return prose(value)
    if not isinstance(value, TextWithSymbols):
        return formula(value)
    objects = [render_text_or_formula(part, prose, formula) for part in value.objects]
    return "".join(prose(piece) + part for piece, part in zip(value.text.split("{}"), [*objects, ""], strict=True))


def plain_text(text: str) -> TextWithSymbols:
    """Return a sentence without symbols; braces in it are ordinary characters."""
    return TextWithSymbols("{}", (text,))


def insert_symbols_into_text(text: str, symbols: Mapping[str, Any], is_quoted: bool = False) -> TextWithSymbols:
    """Return a sentence in which every name of a symbol is printed as the symbol, except for the article "A".

    Args:
        text: the sentence.
        symbols: name -> object that is printed in its place.
        is_quoted: whether the model's author wrote the sentence, so that its words must not be adapted.
    """
    names = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
    pieces = re.split(rf"(?<!\w)(?!A [a-z])({names})(?![\w']|-[a-z])", text)
    objects = tuple(symbols[piece] if i % 2 else piece for i, piece in enumerate(pieces))
    return TextWithSymbols("{}" * len(objects), objects, is_quoted)
