"""Shared by the rooms of tests: solutions of the paper's case, solved once a session."""

import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import saddleforge as sf
from saddleforge import Solution


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of generation come first: pytest-xdist gives them to one process, which generates the catalogue once."""
    items.sort(key=lambda item: "generated" not in item.path.parts)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """The command line ignores Ctrl-C from its last sentence on, being the end of its process; not of this one.

    Nor does this one if it was started in the background, where a shell has it ignored.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, signal.default_int_handler)


@cache
def _attention(alpha: float, start: str, accuracy: float) -> Solution:
    return sf.solve(sf.problem("dot_product_attention", alpha=alpha), start, accuracy=accuracy)


@pytest.fixture(scope="session")
def attention() -> Callable[[float, str, float], Solution]:
    """attention(alpha, start, accuracy): the paper's base case, omega = 0.3."""
    return _attention


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
