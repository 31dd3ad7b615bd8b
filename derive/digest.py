"""Digests of the sources that decide what is written: of their code, so that words change none. No SymPy needed.

Numba's cache does not see a change in another file: what generated files import of the library of loops is among the
sources of what writes them.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import sys
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parent
_LOOPS = Path(sys.modules["saddleforge"].__path__[0]) / "loops"  # by its path: no room of the package is imported
_WRITER = "emit/writer.py"
_TEMPLATES = "emit/templates"
_TEMPLATE = re.compile(r"""["'](?:\w+/)*(\w+(?:\.\w+)*\.jinja)["']""")
_LOOP = re.compile(r"^from saddleforge\.loops import (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


@cache
def generator_digest(*part: str) -> str:
    """Digest (hex, 16) of what decides the bytes of generated files, models excluded.

    Args:
        part: the sources that one file is written by, as "emit/sides/prior_source.py", beside the writer; default, all
            files of a solver, and whether there are any.
    """
    return _digest(closure(*part) | {_ROOT / _WRITER} if part else closure(_WRITER), _ROOT)


def syntax_digest(root: Path, *sources: str) -> str:
    """Digest (hex, 16) of sources in a folder and of all in it that they import, by whatever way."""
    return _digest(closure(*sources, root=root), root)


@cache
def sources_digest() -> str:
    """Digest (hex, 16) of all sources of this package as they are, and of the library of loops, in a hundredth of the
    time of `generator_digest`."""
    digest = hashlib.sha256()
    files = [path for suffix in ("*.py", "*.jinja") for path in _ROOT.rglob(suffix)]
    for path in sorted([*files, *_LOOPS.rglob("*.py")], key=_named):
        digest.update(_named(path).encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def closure(*sources: str, root: Path = _ROOT) -> frozenset[Path]:
    """These files of a package, those of it that they import, wherever they do, templates that they name, loops that
    templates import, and so on."""
    found: set[Path] = set()
    waiting = [root / source for source in sources]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [used for used in _read(path)[1] if used.is_relative_to(root) or used.is_relative_to(_LOOPS)]
    return frozenset(found)


def _digest(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: _named(path, root)):
        digest.update(_named(path, root).encode() + _read(path)[0])
    return digest.hexdigest()[:16]


def _named(path: Path, root: Path = _ROOT) -> str:
    """Where a source is, the same from wherever the package is installed."""
    return path.relative_to(root if path.is_relative_to(root) else _LOOPS.parent).as_posix()


@cache
def _read(path: Path) -> tuple[bytes, tuple[Path, ...]]:
    """Digest of a source without comments and docstrings (of a template without its own), and what it uses."""
    text = path.read_text(encoding="utf-8")
    used = [_ROOT / _TEMPLATES / name for name in _TEMPLATE.findall(text)]
    if path.suffix == ".py":
        tree = ast.parse(text)
        used += _imported(tree, path)
        text = _without_words(text, tree)
    else:
        text = _COMMENT.sub("", text)
        used += [_LOOPS / f"{name}.py" for names in _LOOP.findall(text) for name in names.split(", ")]
    return hashlib.sha256(text.encode()).digest(), tuple(used)


def _without_words(text: str, tree: ast.AST) -> str:
    """Source without docstrings, comments and blank lines: dumps of the tree differ from Python to Python."""
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            begin, end = node.body[0].lineno - 1, node.body[0].end_lineno or node.body[0].lineno
            lines[begin:end] = [""] * (end - begin)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _imported(tree: ast.AST, path: Path) -> Iterable[Path]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        names = node.module.split(".") if node.module else []
        if node.level:
            base = path.parents[node.level - 1]
        elif names[:2] == ["saddleforge", "derive"]:
            base, names = _ROOT, names[2:]
        else:
            continue
        module = base.joinpath(*names)
        inside = [module / f"{alias.name}.py" for alias in node.names]
        # What is imported from a package by the names of its modules takes nothing from its own file.
        own = [] if all(path.is_file() for path in inside) else [module / "__init__.py"]
        yield from (candidate for candidate in [module.with_suffix(".py"), *own, *inside] if candidate.is_file())
