"""Messages for errors in an author's code: the line, and the remedy where one is known."""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any

import sympy as sp

from ..errors import did_you_mean_hint, signature_without_annotations

# Patterns of the error's message and of the line -> the remedy.
_REMEDIES = (
    (r"truth value of Relational", r"\bmax\(|maximum\(", "fields are symbols without an order: write sp.Max(a, b)"),
    (r"truth value of Relational", r"\bmin\(|minimum\(", "fields are symbols without an order: write sp.Min(a, b)"),
    (
        r"truth value of Relational",
        "",
        "fields are symbols, of which no condition holds yet: write sp.Piecewise((a, condition), (b, True)), "
        "sp.Heaviside(t) or sp.sign(t)",
    ),
    (r"no callable (\w+) method", r"\bnp\.|\bnumpy\.", "NumPy knows no symbols: write sp.{0}"),
    (r"ufunc '(\w+)' not supported for the input types", "", "SciPy and NumPy know no symbols: write sp.{0}"),
    (r"Cannot convert expression to float", r"\bmath\.(\w+)", "math takes numbers only: write sp.{0}"),
    (r"Cannot convert expression to float", "", "fields are symbols: functions of them are SymPy's, as sp.exp"),
    (r"unsupported operand type\(s\) for \^", r"\^", "powers are written **"),
    (
        r"IndexError",
        "",
        "{shapes} (tokens x columns of W or of the teacher): sizes are declared, as in @sf.model(tokens=2, student=2)",
    ),
    (r"matrix exponential", "", "of its entries it is M.applyfunc(sp.exp), over their sum sf.softmax(M)"),
    (
        r"'(\w+)' object (?:is not iterable|has no attribute '\w+')",
        r"sp\.\w+\(",
        "{shapes}, and SymPy's functions take one entry: write X.applyfunc(sp.{0}), or sum(sp.{0}(x) for x in X)",
    ),
    (
        r"not subscriptable",
        "",
        "the loss is that of one sample: X and Y hold its fields, a noise is one number (several have a name each)",
    ),
    (r"Data type not understood", "", "a parameter or trained number without a default array is one number"),
    (r"tuple indices must be integers", "", "Q and k hold one entry a token: Q[0][0, 0], k[0]"),
    (
        r"ShapeError|Matrix|NonSquare|weight has",
        "",
        "{shapes}: take entries, as X[0] - Y[0], or matrices of one shape (sizes are declared, as in "
        "@sf.model(tokens=2, student=2)); weights are a list, one number a column",
    ),
)


def describe_last_error_line(error: BaseException, file: str | Path) -> str:
    """Return the last line of a file that occurs in an error's traceback, as `line 3, "x = 1 / 0"`; empty if none.

    Args:
        error: the exception, with its traceback.
        file: path of the source file.
    """
    numbers = [number for frame, number in walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    if not numbers:
        return ""
    text = linecache.getline(str(file), numbers[-1]).strip()
    return f'line {numbers[-1]}, "{text}"' if text else f"line {numbers[-1]}"


def describe_expected_call(error: BaseException) -> str:
    """Return a hint on how to call a public function, if the error is about its arguments; else empty text."""
    if not isinstance(error, TypeError):
        return ""
    message, public = str(error), sys.modules["saddleforge"]
    called = re.search(r"(\w+)(?:\.__init__)?\(\) (?:got|takes|missing)", message)
    if called is None or called[1] not in public.__all__ or "it is called as" in message:
        return ""
    return f"; it is called as sf.{called[1]}{signature_without_annotations(getattr(public, called[1]))}"


def explain_author_error(error: Exception, function: Callable[..., Any], given: Mapping[str, Any]) -> str:
    """Return a message about an error in a model author's function: error, source line and, if known, a remedy.

    Args:
        error: the exception that the function raised.
        function: the author's function.
        given: the arguments that the function received, by name.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    message, line = (
        f"{type(error).__name__}: {error}",
        describe_last_error_line(error, code.co_filename) if code else "",
    )
    text = f"{message} ({line})" if line else message
    if isinstance(error, NameError) and error.name:
        name = error.name if error.name in given else f"{error.name}=0.5"
        close = did_you_mean_hint(error.name, given)
        return text + (close or f"; what a function uses is among its arguments: add {name}")
    text += describe_expected_call(error)
    shapes = ", ".join(f"{n} is {v.rows} x {v.cols}" for n, v in given.items() if isinstance(v, sp.MatrixBase))
    for what, where, remedy in _REMEDIES:
        if (found := re.search(what, message)) and (there := re.search(where, line)):
            return f"{text}; {remedy.format(*found.groups(), *there.groups(), shapes=shapes)}"
    return text
