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
    """A relation: left `sign` right, then a note in words."""

    left: Any
    right: Any
    note: str = ""
    sign: str = "="


@dataclass(frozen=True)
class Words:
    """A sentence; each {} is replaced by the next printed object of `objects`, {NAME} by that symbol of the theory."""

    text: str
    objects: tuple[Any, ...] = ()

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


Items = list[Relation | Words | Table]


@dataclass(frozen=True)
class Section:
    """A titled part of the report."""

    title: str
    items: tuple[Relation | Words | Table, ...]


def group_by_kind(items: Iterable[object]) -> Iterator[tuple[type, list[Any]]]:
    """Yield runs of consecutive items of one kind, with their kind."""
    return ((kind, list(run)) for kind, run in groupby(items, type))


@dataclass(frozen=True)
class Report:
    """A report: all sections, and the model's own symbols: symbol -> (stem, indices), indices counted from 1."""

    title: str
    sections: tuple[Section, ...]
    names: Names


@dataclass(frozen=True)
class Stacked:
    """An expression printed without token and context indices: its symbols are those of all tokens of a sentence."""

    expression: Any


def render_value(value: Any, prose: Callable[[str], str], formula: Callable[[Any], str]) -> str:
    """Return a string, words or an object in a form, given its renderers of prose and of formulas.

    Args:
        value: a string, `Words`, or an object for `formula`.
        prose: renders a string.
        formula: renders a SymPy object.
    """
    if isinstance(value, str):
        return prose(value)
    if not isinstance(value, Words):
        return formula(value)
    objects = [render_value(part, prose, formula) for part in value.objects]
    return "".join(prose(piece) + part for piece, part in zip(value.text.split("{}"), [*objects, ""], strict=True))


def plain_words(text: str) -> Words:
    """Return words in which braces are printed as braces."""
    return Words("{}", (text,))


def insert_symbols(text: str, symbols: Mapping[str, Any]) -> Words:
    """Return words in which every name of `symbols` is printed as its symbol; a capital A may be an article.

    Args:
        text: the words.
        symbols: name -> object to be printed.
    """
    names = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
    pieces = re.split(rf"(?<!\w)(?!A [a-z])({names})(?![\w']|-[a-z])", text)
    objects = tuple(symbols[piece] if i % 2 else piece for i, piece in enumerate(pieces))
    return Words("{}" * len(objects), objects)
