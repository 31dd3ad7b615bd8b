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
    """An equation or inequality of a report: left side, `sign`, right side, and a note."""

    left: Any
    right: Any
    note: str = ""
    sign: str = "="


@dataclass(frozen=True)
class TextWithSymbols:
    """A sentence with symbols: each {} is printed as the next of `objects`, {NAME} as that symbol of the theory."""

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
    """A table: rows of cells, each a string or a SymPy object."""

    head: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


Items = list[Relation | TextWithSymbols | Table]


@dataclass(frozen=True)
class Section:
    """A titled part of the report."""

    title: str
    items: tuple[Relation | TextWithSymbols | Table, ...]


def group_items_by_type(items: Iterable[object]) -> Iterator[tuple[type, list[Any]]]:
    """Yield (type, items) for each run of consecutive report items of one type."""
    return ((kind, list(run)) for kind, run in groupby(items, type))


@dataclass(frozen=True)
class Vocabulary:
    """The notions that a model needs: several tokens of a sample, several contexts (token, cluster), a teacher."""

    has_tokens: bool = True
    has_contexts: bool = True
    has_teacher: bool = True


@dataclass(frozen=True)
class Report:
    """A report: all sections, and the model's own symbols: symbol -> (stem, indices), indices counted from 1."""

    title: str
    sections: tuple[Section, ...]
    names: Names
    vocabulary: Vocabulary = Vocabulary()


@dataclass(frozen=True)
class WithoutIndices:
    """An expression that is printed without indices of tokens and contexts."""

    expression: Any


def render_text_or_formula(value: Any, prose: Callable[[str], str], formula: Callable[[Any], str]) -> str:
    """Return a string, a sentence or a SymPy object rendered with the given functions for prose and formulas.

    Args:
        value: a string, `TextWithSymbols`, or an object for `formula`.
        prose: renders a string.
        formula: renders a SymPy object.
    """
    if isinstance(value, str):
        return prose(value)
    if not isinstance(value, TextWithSymbols):
        return formula(value)
    objects = [render_text_or_formula(part, prose, formula) for part in value.objects]
    return "".join(prose(piece) + part for piece, part in zip(value.text.split("{}"), [*objects, ""], strict=True))


def plain_text(text: str) -> TextWithSymbols:
    """Return a sentence without symbols, in which braces are ordinary characters."""
    return TextWithSymbols("{}", (text,))


def insert_symbols_into_text(text: str, symbols: Mapping[str, Any], is_quoted: bool = False) -> TextWithSymbols:
    """Return a sentence in which names are printed as symbols; a capital A may be an article.

    Args:
        text: the words.
        symbols: name -> object to be printed.
        is_quoted: whether the words are the author's of the model.
    """
    names = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
    pieces = re.split(rf"(?<!\w)(?!A [a-z])({names})(?![\w']|-[a-z])", text)
    objects = tuple(symbols[piece] if i % 2 else piece for i, piece in enumerate(pieces))
    return TextWithSymbols("{}" * len(objects), objects, is_quoted)
