"""What a page is made of, as plain values: relations, words and tables in sections, whoever shows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy as sp

Names = dict[sp.Symbol, tuple[str, tuple[int | str, ...]]]  # symbol -> (stem, indices from 1)


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


Items = list[Relation | Words | Table]


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


@dataclass(frozen=True)
class Stacked:
    """An expression printed without token and context indices."""

    expression: Any


def said(text: str) -> Words:
    """Words in which braces are braces."""
    return Words("{}", (text,))


def with_symbols(text: str, symbols: Mapping[str, Any]) -> Words:
    """Words of which those in `symbols` are printed as what they stand for; a capital A may be an article."""
    names = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
    pieces = re.split(rf"(?<!\w)(?!A [a-z])({names})(?![\w']|-[a-z])", text)
    objects = tuple(symbols[piece] if i % 2 else piece for i, piece in enumerate(pieces))
    return Words("{}" * len(objects), objects)
