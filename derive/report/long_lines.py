"""Formulas of LaTeX's mathematics mode that do not fit on a line: how wide they are, and where they may be broken."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator

_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|[{}_^]|\s+|.", re.DOTALL)
_WIDE = {"log", "det", "exp", "min", "max", "lim", "sum", "int", "prod"}
_NOTHING = {
    "displaystyle", "tfrac", "hat", "check", "tilde", "bar", "nonumber", "notag", "operatorname", "mathrm", "mathtt",
    "mathsf", "text", "mathbf", "mathcal", "mathbb",
}  # fmt: skip
_SMALL = 0.65  # of an index
_THIN = 0.35  # the space that \, is, and that TeX puts around \left and \right
_DEPTH = {"{": 1, r"\begin": 1, "}": -1, r"\end": -1}
_BRACKET = re.compile(r"\\(left|right)(?![a-z])")


def visible(text: str) -> float:
    """Width of a formula in letters, about."""
    return _width(deque(_TOKEN.findall(text)))


def _width(tokens: deque[str]) -> float:
    """Width of all that comes up to the closing brace of the group."""
    width = 0.0
    while tokens and (token := tokens.popleft()) != "}":
        width += _width_of(token, tokens)
    return width


def _width_of(token: str, tokens: deque[str]) -> float:
    """Width of a token with its arguments, which are taken from those that come."""
    name = token[1:] if token.startswith("\\") and token[1:].isalpha() else ""
    if token == "{":
        return _width(tokens)
    if token in ("_", "^"):
        return _SMALL * _argument(tokens)
    if name in ("frac", "tfrac", "dfrac"):
        return max(_argument(tokens), _argument(tokens)) * (_SMALL if name == "tfrac" else 1) + 0.5
    if name in ("begin", "end"):
        _argument(tokens)
        return 1.0
    if name in ("left", "right") or token in (r"\,", r"\;"):
        return _THIN
    if name in _NOTHING or token.isspace() or token == r"\!":
        return 0.0
    return 3.0 if name in _WIDE else 2.0 if token in ("+", "-", "=") or name in ("quad", "to", "succ") else 1.0


def _argument(tokens: deque[str]) -> float:
    """Width of the braced group or of the one token that comes next."""
    while tokens and tokens[0].isspace():
        tokens.popleft()
    return _width_of(tokens.popleft(), tokens) if tokens else 0.0


def packed(pieces: Iterable[str], widths: Iterable[float], room: float, between: str = "") -> list[str]:
    """The pieces in as few lines as hold them, each of as many as fit."""
    lines: list[str] = []
    used = room
    for piece, width in zip(pieces, widths, strict=True):
        if not lines or used + width > room:
            lines.append(piece)
            used = width
        else:
            lines[-1] += between + piece
            used += width
    return lines


def broken(text: str, room: float) -> list[str]:
    """A formula as lines that fit, broken before + and - outside of braces and matrices, brackets or not.

    Brackets that reach from one line to another have a fixed size, since TeX asks for both of \\left and \\right on one
    line. What has no such place stays whole.
    """
    if visible(text) <= room:
        return [text]
    pieces = list(_pieces(text))
    lines = _with_fixed_brackets("\n".join(packed(pieces, map(visible, pieces), room))).split("\n")
    return [line.strip() for line in lines]


def _pieces(text: str) -> Iterator[str]:
    """Parts that may begin a line, each with its sign in front."""
    depth = begun = 0
    before = ""
    for found in _TOKEN.finditer(text):
        token, place = found[0], found.start()
        depth += _DEPTH.get(token, 0)
        if token in ("+", "-") and depth == 0 and _binary(before) and place > begun:
            yield text[begun:place]
            begun = place
        if not token.isspace():
            before = token
    yield text[begun:]


def _binary(before: str) -> bool:
    """Whether a sign behind this token joins two terms."""
    return bool(before) and before not in ("(", "[", ",", "=", "+", "-", r"\{", r"\left", r"\,")


def _with_fixed_brackets(text: str) -> str:
    """The lines, with \\left and \\right whose partner is on another line as brackets of a fixed size."""
    opened: list[int] = []
    fixed: dict[int, str] = {}
    for found in _BRACKET.finditer(text):
        if found[1] == "left":
            opened.append(found.start())
        elif opened and "\n" in text[(begun := opened.pop()) : found.start()]:
            fixed |= {begun: r"\Bigl", found.start(): r"\Bigr"}
    return _BRACKET.sub(lambda found: fixed.get(found.start(), found[0]), text)
