"""Who wrote which line of a generated file: the comments by which every statement is found again in its source.

A stamp names a template or a function of derive/emit, and holds for the lines below it that are indented as deep as
itself or deeper, down to the next stamp that is indented no deeper. `return` is always the template's of the function.
Templates leave a mark where text of their own goes on; `traced` turns it into a stamp where the reader would take the
text for another's.
"""

from __future__ import annotations

import re

from jinja2.ext import Extension

TEMPLATES = "derive/emit/templates"
_MARK = "#@ "
_FUNCTION = re.compile(r"^(def .*\):)(?:  # (.*))?$", re.MULTILINE)
# What may yield lines that another has written: an expression that stands alone, an included file, a macro's begin.
_ELSEWHERE = re.compile(r"^ *(?:\{\{(?:(?!\}\}).)*\}\}|\{% (?:include|macro) .*%\})$", re.MULTILINE)
_STAMP = re.compile(r"# (derive/emit/[^,]+)(?:, docs/theory\.md .*)?$")
_NO_EQUATION = re.compile(rf"^    # {TEMPLATES}/\w+\.py\.jinja$", re.MULTILINE)
_EQUATIONS = re.compile(r"docs/theory\.md \(\d+\.\d+\)(?:, \(\d+\.\d+\))*")
_NOT_OURS = ("@", "def ", "import ", "from ")


class Origins(Extension):
    """Every function says first which template it is from, and the equations that the template names beside it."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """A line after `def f(...):  # docs/theory.md (4.3)`; what follows the colon may be missing."""
        own = f"{TEMPLATES}/{name}"
        stamped = _FUNCTION.sub(
            lambda found: f"{found[1]}\n    # {own}{', ' if found[2] else ''}{found[2] or ''}", source
        )
        return f"{_MARK}{own}\n" + _ELSEWHERE.sub(lambda found: f"{found[0]}\n{_MARK}{own}", stamped)


def with_equations(text: str) -> str:
    """Functions that name no equation of their own get those that the file names."""
    equations = _EQUATIONS.search(text)
    return _NO_EQUATION.sub(lambda found: f"{found[0]}, {equations[0]}", text) if equations else text


def traced(text: str) -> str:
    """The text with a stamp wherever a line would be taken for that of another source."""
    lines: list[str] = []
    source = ""  # what writes the next line
    told: list[tuple[int, str]] = []  # indentation and source of the stamps that hold
    quoted = in_function = False
    for line in text.splitlines():
        bare = line.strip()
        depth = len(line) - len(line.lstrip())
        if bare.startswith(_MARK):
            source = bare.removeprefix(_MARK)
            told = told or [(0, source)]  # the file's own template, which its first lines name
            continue
        docstring = bare.startswith('"""') or quoted
        if bare.count('"""') == 1:
            quoted = not quoted
        if not bare or docstring or (not depth and bare.startswith(_NOT_OURS)):
            in_function = bare.startswith("def ") or (in_function and bool(depth or not bare))
        elif stamp := _STAMP.match(bare):
            source = stamp[1]
            told = _with(told, depth, source)
        elif lines and (depth == 0 or in_function):
            in_function = in_function and depth > 0
            told = [(at, name) for at, name in told if at <= depth]
            if bare.startswith("return"):
                told = _with(told, depth, source)
            elif told[-1][1] != source:
                lines.append(f"{' ' * depth}# {source}")
                told = _with(told, depth, source)
        lines.append(line)
    return "\n".join(lines) + "\n"


def _with(told: list[tuple[int, str]], depth: int, source: str) -> list[tuple[int, str]]:
    return [(at, name) for at, name in told if at < depth] + [(depth, source)]
