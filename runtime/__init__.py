"""Saddle-point equations of learning models: derived symbolically, generated as Numba code, solved with an error bar.

    import saddleforge as sf

    problem = sf.problem("dot_product_attention", alpha=2.0)
    sf.solutions(problem)

Names are imported when first touched, so that neither SymPy nor Numba is loaded before it is needed. The stub
`__init__.pyi` lists them, for type checkers and here.
"""

from __future__ import annotations

import ast
from importlib import import_module
from inspect import isfunction
from pathlib import Path
from typing import Any

from . import report
from .base import deprecation, hints

_WHERE = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.level
    for alias in node.names
}

# Commands and terms whose functions have other names.
_COMMANDS = {
    **dict.fromkeys(("Lasso", "L1"), "sf.penalty(lambda w, *, strength=0.1: strength * sp.Abs(w[0]))"),
    "bayes": "bayes_optimal, bayes_threshold, bayes_line, bayes_messages",
    "derive": "derivation",
    "models": "`saddleforge models`",
    "plot": "result.plot(path)",
    "stability": "solve(problem).stability",
    "threshold": "where, crossing, spinodal, instability, almeida_thouless, critical_line",
}

__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name in deprecation.NAMES:
        gone = deprecation.NAMES[name]
        deprecation.warn_deprecated(f"{__name__}.{name}", gone, 1)
        return __getattr__(gone.instead)
    if name not in _WHERE:
        near = _COMMANDS.get(name, "")
        near = f"; in Python: {near}" if near else hints.did_you_mean_hint(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    if isfunction(value) and not _WHERE[name].startswith("derive."):
        value = hints.explain_wrong_calls(name, value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


report.register_renderer_modules()
