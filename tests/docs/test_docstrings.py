"""How docstrings, constants and pages are written: counted over the whole package."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(file for folder in ("derive", "runtime") for file in (ROOT / folder).rglob("*.py"))
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "notes" not in page.parts)]
NO_FIRST_WORD = {"What", "Of", "Where", "As", "Those", "From", "By", "At", "Which", "Whoever"}
PRIVATE = re.compile(
    r"\b(?:told|untold|beside|anew|suspects?|doubts?|doubtful|meetings?|carrier|wells|afar|surely|whoever|begun"
    r"|half widths?)\b",
    re.IGNORECASE,
)


def definitions() -> Iterator[tuple[str, ast.FunctionDef | ast.ClassDef, str]]:
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield f"{file.relative_to(ROOT)}:{node.lineno} {node.name}", node, ast.get_docstring(node) or ""


def test_no_docstring_begins_with_a_fragment():
    assert not [place for place, _, text in definitions() if text and text.split()[0] in NO_FIRST_WORD]


def test_public_functions_of_two_parameters_and_more_explain_their_parameters():
    """All but models, whose docstrings are printed by commands, commands without options, and overloads."""
    functions = [
        (place, text)
        for place, node, text in definitions()
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if len([a for a in (*node.args.args, *node.args.kwonlyargs) if a.arg not in ("self", "cls")]) >= 2
    ]
    without = [place for place, text in functions if "Args:" not in text]
    assert len(without) <= 0.03 * len(functions), without


def test_numbers_that_tune_an_algorithm_are_fields_of_options():
    constants = [
        f"{file.relative_to(ROOT)}: {ast.unparse(node)}"
        for file in SOURCES
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and type(node.value.value) in (int, float)
    ]
    assert len(constants) <= 150, constants


def test_docstrings_and_pages_use_the_words_of_the_field():
    texts = [*definitions(), *((page.name, None, page.read_text(encoding="utf-8")) for page in PAGES)]
    found = [(place, word) for place, _, text in texts for word in PRIVATE.findall(text)]
    assert len(found) <= 20, found
