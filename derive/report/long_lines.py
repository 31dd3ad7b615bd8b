"""Formulas of LaTeX's mathematics mode that do not fit on a line: their widths, and the places to break them."""

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
_INDEX_SIZE = 0.65  # scale of an index
_THIN_SPACE = 0.35  # width of \, and of the space around \left and \right, in letters
_DEPTH = {"{": 1, r"\begin": 1, "}": -1, r"\end": -1}
_BRACKET = re.compile(r"\\(left|right)(?![a-z])")


def formula_width(text: str) -> float:
    """Return the approximate width of a LaTeX formula, in letters."""
    return _braced_group_width(deque(_TOKEN.findall(text)))


def _braced_group_width(tokens: deque[str]) -> float:
    """Return the width of the LaTeX tokens up to the next closing brace, and remove these from the queue."""
    width = 0.0
    while tokens and (token := tokens.popleft()) != "}":
        width += _latex_token_width(token, tokens)
    return width


def _latex_token_width(token: str, tokens: deque[str]) -> float:
    """Return the width of a LaTeX token and its arguments, and remove the arguments from the queue of tokens."""
    name = token[1:] if token.startswith("\\") and token[1:].isalpha() else ""
    if token == "{":
        return _braced_group_width(tokens)
    if token in ("_", "^"):
        return _INDEX_SIZE * _latex_argument_width(tokens)
    if name in ("frac", "tfrac", "dfrac"):
        return (
            max(_latex_argument_width(tokens), _latex_argument_width(tokens)) * (_INDEX_SIZE if name == "tfrac" else 1)
            + 0.5
        )
    if name in ("begin", "end"):
        _latex_argument_width(tokens)
        return 1.0
    if name in ("left", "right") or token in (r"\,", r"\;"):
        return _THIN_SPACE
    if name in _NOTHING or token.isspace() or token == r"\!":
        return 0.0
    return 3.0 if name in _WIDE else 2.0 if token in ("+", "-", "=") or name in ("quad", "to", "succ") else 1.0


def _latex_argument_width(tokens: deque[str]) -> float:
    """Return the width of the next LaTeX argument, a braced group or one token, and remove it from the queue."""
    while tokens and tokens[0].isspace():
        tokens.popleft()
    return _latex_token_width(tokens.popleft(), tokens) if tokens else 0.0


def pack_formula_lines(pieces: Iterable[str], widths: Iterable[float], room: float, between: str = "") -> list[str]:
    """Return the pieces of a formula joined to lines, with as many pieces on each line as fit.

    Args:
        pieces: pieces of the formula, in order.
        widths: width of each piece.
        room: width of a line.
        between: text between two pieces on one line.
    """
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


def break_formula(text: str, room: float) -> list[str]:
    r"""Return a LaTeX formula as lines of a given width, broken before + and - outside of braces and matrices.

    Brackets that open and close on different lines get a fixed size, since TeX requires \left and \right on one line.
    A formula without a + or - at which it may be broken stays on one line.

    Args:
        text: the formula.
        room: width of a line, in letters.
    """
    if formula_width(text) <= room:
        return [text]
    pieces = list(_split_formula_at_signs(text))
    lines = _fix_brackets_across_lines("\n".join(pack_formula_lines(pieces, map(formula_width, pieces), room))).split(
        "\n"
    )
    return [line.strip() for line in lines]


def _split_formula_at_signs(text: str) -> Iterator[str]:
    """Yield the pieces of a LaTeX formula between + and - signs at which a line may break, each with its sign."""
    depth = start = 0
    before = ""
    for found in _TOKEN.finditer(text):
        token, place = found[0], found.start()
        depth += _DEPTH.get(token, 0)
        if token in ("+", "-") and depth == 0 and _is_binary_operator_sign(before) and place > start:
            yield text[start:place]
            start = place
        if not token.isspace():
            before = token
    yield text[start:]


def _is_binary_operator_sign(before: str) -> bool:
    """Return whether a + or - that follows the given LaTeX token is a binary operator."""
    return bool(before) and before not in ("(", "[", ",", "=", "+", "-", r"\{", r"\left", r"\,")


def _fix_brackets_across_lines(text: str) -> str:
    r"""Return LaTeX lines with brackets of a fixed size where \left and \right would stand on different lines."""
    opened: list[int] = []
    fixed: dict[int, str] = {}
    for found in _BRACKET.finditer(text):
        if found[1] == "left":
            opened.append(found.start())
        elif opened and "\n" in text[(start := opened.pop()) : found.start()]:
            fixed |= {start: r"\Bigl", found.start(): r"\Bigr"}
    return _BRACKET.sub(lambda found: fixed.get(found.start(), found[0]), text)
