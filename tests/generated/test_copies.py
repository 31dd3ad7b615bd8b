"""What no model decides is in the library of loops: no two solvers hold a copy of it."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import saddleforge.derive.emit
import saddleforge.generated

ROOT = Path(saddleforge.generated.__path__[0])
TEMPLATES = Path(saddleforge.derive.emit.__path__[0]) / "templates"
# model.py has no template: it is the model's own numbers.
SOLVERS = [path for path in sorted(ROOT.glob("*/*/**/*.py")) if path.name != "model.py"]
# A top-level function: from its name to what is next in the first column. Templates may fill in a prefix.
FUNCTION = re.compile(r"^def ([^(\n]+)\((.*?)(?=^(?:def |@|[A-Z#]|\{\{ (?:maps|function)|\{% macro|\Z))", re.M | re.S)
# What lays out expressions: those of a kernel, sums over contexts, lines of the equations, numbers of the model.
# Which features and columns there are is the model's, too.
EXPRESSIONS = re.compile(
    r"\b(?:code|sums|add_to_sums)\(|\{% for \w+ in (?:features|columns) %\}|\bblock\((?!factor_|solve_)[\w.]*lines\b"
    r"|\{\{ \w+_parameters \}\}"
)
CALLED = re.compile(r"(?<![\w.])(\w+(?=\()|_\w+)")  # or handed on, as to `pieces.bind`
MACRO = re.compile(r'\{\{ function\((name ~ )?"(\w+)"')


def read() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.glob("*.jinja"))]


def laid_out(templates: Iterable[str]) -> re.Pattern[str]:
    """Names of the functions that hold expressions of the model."""
    names = set()
    for text in templates:
        named = [name for name, body in FUNCTION.findall(text) if EXPRESSIONS.search(body)]
        names |= {re.sub(r"\{\{.*?\}\}", r"\\w*", name) for name in named}
        names |= {rf"\w+{name}" if ending else name for ending, name in MACRO.findall(text)}
    return re.compile("|".join(sorted(names - {r"\w*"})))  # but for the macro itself


def without_a_model(text: str, expressions: re.Pattern[str]) -> dict[str, str]:
    """Name -> text of the functions of a file that neither hold expressions nor call, however deep, one that does, of
    this file or of the one that it is executed behind."""
    functions = dict(FUNCTION.findall(text))
    calls = {name: set(CALLED.findall(body)) for name, body in functions.items()}
    called = functions.keys() | set().union(*calls.values())
    own = {name for name in called if expressions.fullmatch(name)}
    own |= {name for name in called - functions.keys() if name.startswith("_")}  # of the file in front
    while more := {name for name in functions.keys() - own if calls[name] & own}:
        own |= more
    return {name: body.strip() for name, body in functions.items() if name not in own}


def copies(solvers: dict[str, str], expressions: re.Pattern[str]) -> dict[str, list[str]]:
    """Name of a function -> the files that hold the same text of it, of those that no model decides."""
    holders = defaultdict(list)
    for path, text in solvers.items():
        for name, body in without_a_model(text, expressions).items():
            holders[name, body].append(path)
    return {name: paths for (name, _), paths in holders.items() if len(paths) > 1}


def test_no_function_that_calls_no_code_of_the_model_is_in_two_solvers():
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in SOLVERS}
    assert copies(texts, laid_out(read())) == {}


def test_a_template_that_grows_a_copy_again_is_seen():
    """A helper that is called, and that calls another, next to what a kernel is laid out in."""
    helper = "@njit\ndef _twice(x):\n    return _same(x) + x\n\n\n@njit\ndef _same(x):\n    return x\n\n\n"
    driver = "\n\n@njit\ndef sample(x):\n    return loss(x)\n"
    template = helper + "@njit\ndef loss(x):\n{{ code(kernels.loss) }}\n    return _twice(loss)\n" + driver
    solvers = {n: helper + f"@njit\ndef loss(x):\n    loss = x**{n}\n    return _twice(loss)\n" + driver for n in "23"}
    assert copies(solvers, laid_out([template])) == {"_twice": ["2", "3"], "_same": ["2", "3"]}


def test_expressions_are_found_where_templates_lay_them_out():
    found = laid_out(read())
    for name in (
        "objective",
        "enclose",
        "_newton",
        "thermal_overlaps",
        "conjugates",
        "moment_slopes",
        "loss_weights",
        "sample",
    ):
        assert found.fullmatch(name), name
    for name in ("all_minima", "_shortfall", "proximal_at", "responses", "_weights"):
        assert not found.fullmatch(name), name
