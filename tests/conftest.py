"""Shared by the rooms of tests: when numbers agree, and solutions of the paper's case, solved once a session."""

import importlib.util
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import settings

import saddleforge as sf
from saddleforge import Solution
from saddleforge.base.progress import set_quiet_mode
from saddleforge.solving import compilation

# The default suite draws the same examples each time, so that it passes or fails for its code alone; `make test-all`
# draws others.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of generation come first: pytest-xdist gives them to one process, which generates the catalogue once."""
    items.sort(key=lambda item: "generated" not in item.path.parts)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """The command line ignores Ctrl-C from its last sentence on, being the end of its process; not of this one.

    Nor does this one if it was started in the background, where a shell has it ignored. What workers run here leaves
    progress quiet, as in a process of their own.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    set_quiet_mode(False)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def one_compiler() -> None:
    """Tests share the processors: those next to this one compile what it would be helped with."""
    compilation.processes = 1


LEVELS = {"error bars": 1.0, "three standard errors": 1.5}
Number = tuple[Any, Any] | str


def _agree(one: Number, other: Number, level: str, *, rounding: Any = 0.0) -> None:
    """Assert |a - b| <= level * (error bar of a + error bar of b), entry by entry.

    Linear, not in quadrature: an error bar may be a bound, and two numbers may be off by the same cause (a rule and the
    next finer one, a solution and an average taken at it), and only a sum covers both. It is the one reading that asks
    for no knowledge of where error bars come from: at "error bars", the two intervals meet.

    Args:
        one, other: (value, error bar), numbers or arrays; error bar 0 for what is exact. A string is a number as it
            is printed: to half a unit of its last digit, or to what "1.25(3)" says.
        level: "error bars"; or "three standard errors" (an error bar being two) where many are compared, or few
            replicates tell the error bar.
        rounding: a difference up to it is none.
    """
    __tracebackhide__ = True
    (a, width_a), (b, width_b) = (_printed(n) if isinstance(n, str) else n for n in (one, other))
    every = np.broadcast_arrays(*(np.asarray(n, float) for n in (a, width_a, b, width_b, rounding)))
    assert every[0].size, "nothing to compare"
    a, width_a, b, width_b, floor = every
    assert np.all(width_a >= 0) and np.all(width_b >= 0), f"error bars {width_a} and {width_b}"
    gap, width = np.abs(a - b), width_a + width_b
    apart = [f"{level}: at most {LEVELS[level]} times the sum of the error bars apart"]
    for at in np.argwhere(~(gap <= np.maximum(LEVELS[level] * width, floor))):
        i = tuple(at)
        ratio = gap[i] / width[i] if width[i] else np.inf
        where = f"entry {', '.join(map(str, i))}: " if i else ""
        apart.append(f"{where}{a[i]:.12g} +- {width_a[i]:.2g} and {b[i]:.12g} +- {width_b[i]:.2g}: {ratio:.3g} times")
    if len(apart) > 1:
        raise AssertionError("\n".join(apart))  # not by assert, which pytest would add to


def _printed(text: str) -> tuple[float, float]:
    match = re.fullmatch(r"(-?\d+(?:\.(\d+))?)(?:\((\d+)\))?", text)
    assert match, f"{text!r} is no printed number"
    unit = 10.0 ** -len(match[2] or "")
    return float(match[1]), unit * (int(match[3]) if match[3] else 0.5)


@pytest.fixture(scope="session")
def agree() -> Callable[..., None]:
    """agree((value, error bar), (value, error bar), level): see `_agree`."""
    return _agree


@cache
def _attention(alpha: float, start: str, accuracy: float) -> Solution:
    return sf.solve(sf.problem("dot_product_attention", alpha=alpha), start, accuracy=accuracy)


@pytest.fixture(scope="session")
def attention() -> Callable[[float, str, float], Solution]:
    """attention(alpha, start, accuracy): the paper's base case, omega = 0.3."""
    return _attention


def _plain(text: str, given: dict[str, Any]) -> dict[str, Any]:
    """The names of a source without its imports of Numba and of the library of loops."""
    scope = {"njit": lambda **_: lambda function: function, **given}
    exec("\n".join(line for line in text.splitlines() if not line.startswith("from ")), scope)
    return scope


# As `bind_loss_functions` is given them.
_BY_ADDRESS = (
    "loss_piece_at",
    "fill_piece_edges",
    "derivative_bounds_on",
    "least_curvature",
    "positions_of_rapid_variation",
    "implicit_kinks",
)


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an intrinsic of the loops in plain Python, where a model is its functions, not their addresses."""
    if function.__name__ == "bind_loss_functions":
        return lambda *functions: tuple(0 if given is None else given for given in functions)
    return lambda model, *values: model[_BY_ADDRESS.index(function.__name__)](*values)


@cache
def _loops() -> dict[str, SimpleNamespace]:
    given = {
        "tuple_setitem": lambda row, i, value: (*row[:i], value, *row[i + 1 :]),
        "intrinsic": _intrinsic,
        "types": MagicMock(),
        **dict.fromkeys(("type_callable", "lower_builtin"), lambda *_: lambda function: function),
    }
    files = (Path(sf.__path__[0]) / "loops").glob("*.py")
    return {file.stem: SimpleNamespace(**_plain(file.read_text(encoding="utf-8"), given)) for file in files}


@pytest.fixture(scope="session")
def loops() -> dict[str, SimpleNamespace]:
    """The library of loops as plain Python, by file: what is tested is the text, and nothing is compiled."""
    return _loops()


@pytest.fixture(scope="session")
def plain() -> Callable[[str], dict[str, Any]]:
    """plain(text): the names of a generated Numba module as plain Python, on the library as plain Python."""
    return lambda text: _plain(text, dict(_loops()))


@pytest.fixture(scope="session")
def handwritten() -> ModuleType:
    """The hand-written Numba loop of tests/benchmarks, an implementation that shares no code with the generator."""
    path = Path(__file__).parent / "benchmarks" / "handwritten.py"
    spec = importlib.util.spec_from_file_location("saddleforge_tests_handwritten", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where Numba looks when it reads its cache
    spec.loader.exec_module(module)
    return module
