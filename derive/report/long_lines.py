"""Formulas of LaTeX's mathematics mode that do not fit on a line: how wide they are, and where they may be broken."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|[{}_^]|\s+|.", re.DOTALL)
_NAMED = {
    "operatorname",
    "mathrm",
    "mathtt",
    "mathsf",
    "text",
    "mathbf",
    "mathcal",
    "mathbb",
}  # as wide as their letters
_WIDE = {"log", "det", "exp", "min", "max", "lim", "sum", "int", "prod"}
_NOTHING = {"displaystyle", "tfrac", "hat", "check", "tilde", "bar", "mathrm", "nonumber", "notag"}
_SMALL = 0.65  # of an index
_THIN = 0.35  # the space that \, is, and that TeX puts around \left and \right
_RELATIVE = {"{": 1, "}": -1}


def visible(text: str) -> float:
    """Width of a formula in letters, about."""
    width, _ = _measured(_TOKEN.findall(text), 0)
    return width


def _measured(tokens: list[str], start: int, until: str = "") -> tuple[float, int]:
    """Width from a place on, to a closing brace where `until` is one, and the place behind it."""
    width, n = 0.0, start
    while n < len(tokens):
        token = tokens[n]
        if token == until:
            return width, n + 1
        if token == "{":
            inner, n = _measured(tokens, n + 1, "}")
            width += inner
            continue
        if token in ("_", "^"):
            inner, n = _argument(tokens, n + 1)
            width += _SMALL * inner
            continue
        name = token[1:] if token.startswith("\\") and token[1:].isalpha() else ""
        if name in ("frac", "tfrac", "dfrac"):
            above, n = _argument(tokens, n + 1)
            below, n = _argument(tokens, n)
            width += max(above, below) * (_SMALL if name == "tfrac" else 1) + 0.5
            continue
        if name in ("begin", "end"):
            _, n = _argument(tokens, n + 1)
            width += 1
            continue
        n += 1
        if name in ("left", "right") or token in (r"\,", r"\;"):
            width += _THIN
            continue
        if name in _NOTHING or token.isspace() or name in _NAMED or token == r"\!":
            continue
        width += 3 if name in _WIDE else 2 if token in ("+", "-", "=") or name in ("quad", "to", "succ") else 1
    return width, n


def _argument(tokens: list[str], start: int) -> tuple[float, int]:
    """Width of a braced group, or of the one token there."""
    while start < len(tokens) and tokens[start].isspace():
        start += 1
    if start < len(tokens) and tokens[start] == "{":
        return _measured(tokens, start + 1, "}")
    return visible(tokens[start]) if start < len(tokens) else 0.0, start + 1


def broken(text: str, room: float) -> list[str]:
    """A formula as lines that fit, broken before + and - outside of braces and matrices, brackets or not.

    Brackets that reach from one line to another have a fixed size, since TeX asks for both of \\left and \\right on one
    line. What has no such place stays whole.
    """
    if visible(text) <= room:
        return [text]
    pieces = list(_pieces(text))
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if visible(lines[-1] + piece) > room and lines[-1].strip():
            lines.append(piece)
        else:
            lines[-1] += piece
    return [line.strip() for line in _with_fixed_brackets(lines)]


def _pieces(text: str) -> Iterator[str]:
    """Parts that may begin a line, each with its sign in front."""
    depth = matrices = 0
    begun, place = 0, 0
    before = ""
    for found in _TOKEN.finditer(text):
        token, place = found[0], found.start()
        if token in _RELATIVE:
            depth += _RELATIVE[token]
        elif token in (r"\begin", r"\end"):
            matrices += 1 if token == r"\begin" else -1
        elif token in ("+", "-") and depth == matrices == 0 and _binary(before) and place > begun:
            yield text[begun:place]
            begun = place
        if not token.isspace():
            before = token
    yield text[begun:]


def _binary(before: str) -> bool:
    """Whether a sign behind this token joins two terms."""
    return bool(before) and before not in ("(", "[", ",", "=", "+", "-", r"\{", r"\left", r"\,")


def _with_fixed_brackets(lines: list[str]) -> list[str]:
    """The lines, with \\left and \\right whose partner is on another line as brackets of a fixed size."""
    opened: list[tuple[int, int]] = []
    changed: dict[int, list[tuple[int, int, str]]] = {n: [] for n in range(len(lines))}
    for n, line in enumerate(lines):
        for found in re.finditer(r"\\(left|right)(?![a-z])", line):
            if found[1] == "left":
                opened.append((n, found.start()))
            elif opened:
                other, place = opened.pop()
                if other != n:
                    changed[other].append((place, place + len(r"\left"), r"\Bigl"))
                    changed[n].append((found.start(), found.end(), r"\Bigr"))
    out = []
    for n, line in enumerate(lines):
        for start, end, size in sorted(changed[n], reverse=True):
            line = line[:start] + size + line[end:]
        out.append(line)
    return out
