"""Digests of the sources that determine generated files: of their code, without comments and docstrings.

SymPy is not needed. Numba's cache does not notice a change in another file: modules of `loops` that generated files
import are among the sources of the writer.
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
_LOOPS = Path(sys.modules["saddleforge"].__path__[0]) / "loops"  # by its path, so that no package is imported
_WRITER = "emit/writer.py"
_TEMPLATES = "emit/templates"
_TEMPLATE = re.compile(r"""["'](?:\w+/)*(\w+(?:\.\w+)*\.jinja)["']""")
_LOOP = re.compile(r"^from saddleforge\.loops import (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


@cache
def generator_code_digest(*part: str) -> str:
    """Return a digest (16 hex digits) of the code that generates solvers; the models' own code is not included.

    Args:
        *part: source files of one generated file, as "emit/sources/prior_source.py"; by default those of a solver.
    """
    return _digest_of_code_files(
        source_dependency_closure(*part) | {_ROOT / _WRITER} if part else source_dependency_closure(_WRITER), _ROOT
    )


def imported_code_digest(root: Path, *sources: str) -> str:
    """Return a digest (16 hex digits) of the code of source files and of all files in a folder that they import.

    Args:
        root: the folder.
        *sources: paths of the source files, relative to the folder.
    """
    return _digest_of_code_files(source_dependency_closure(*sources, root=root), root)


@cache
def all_sources_digest() -> str:
    """Return a digest (16 hex digits) of the bytes of all sources of this package and of the library of loops.

    It is much faster to compute than `generator_code_digest`, but changes with comments, too.
    """
    digest = hashlib.sha256()
    files = [path for suffix in ("*.py", "*.jinja") for path in _ROOT.rglob(suffix)]
    for path in sorted([*files, *_LOOPS.rglob("*.py")], key=_path_in_package):
        digest.update(_path_in_package(path).encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def source_dependency_closure(*sources: str, root: Path = _ROOT) -> frozenset[Path]:
    """Return all files of a package that the given source files depend on, directly or not, and these files.

    A file depends on the modules that it imports, the templates that it names, and the loops that templates import.

    Args:
        *sources: paths in `root`.
        root: folder of the package.
    """
    found: set[Path] = set()
    waiting = [root / source for source in sources]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [
                used
                for used in _source_digest_and_imports(path)[1]
                if used.is_relative_to(root) or used.is_relative_to(_LOOPS)
            ]
    return frozenset(found)


def _digest_of_code_files(files: Iterable[Path], root: Path) -> str:
    """Return a digest (16 hex digits) of the code in files, without comments and docstrings."""
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: _path_in_package(path, root)):
        digest.update(_path_in_package(path, root).encode() + _source_digest_and_imports(path)[0])
    return digest.hexdigest()[:16]


def _path_in_package(path: Path, root: Path = _ROOT) -> str:
    """Return the path of a source file relative to the folder of its package."""
    return path.relative_to(root if path.is_relative_to(root) else _LOOPS.parent).as_posix()


@cache
def _source_digest_and_imports(path: Path) -> tuple[bytes, tuple[Path, ...]]:
    """Return the digest of a source file without comments and docstrings, and the files that it imports or names."""
    text = path.read_text(encoding="utf-8")
    used = [_ROOT / _TEMPLATES / name for name in _TEMPLATE.findall(text)]
    if path.suffix == ".py":
        tree = ast.parse(text)
        used += _imported_files(tree, path)
        text = _strip_comments_and_docstrings(text, tree)
    else:
        text = _COMMENT.sub("", text)
        used += [_LOOPS / f"{name}.py" for names in _LOOP.findall(text) for name in names.split(", ")]
    return hashlib.sha256(text.encode()).digest(), tuple(used)


def _strip_comments_and_docstrings(text: str, tree: ast.AST) -> str:
    """Return Python source text without docstrings, comments and blank lines."""
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


def _imported_files(tree: ast.AST, path: Path) -> Iterable[Path]:
    """Yield the files of this package that a source file imports."""
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
        # An import of a package's modules takes nothing from its `__init__.py`.
        own = [] if all(path.is_file() for path in inside) else [module / "__init__.py"]
        yield from (candidate for candidate in [module.with_suffix(".py"), *own, *inside] if candidate.is_file())
