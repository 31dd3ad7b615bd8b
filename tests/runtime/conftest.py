"""What tests of the solver share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from saddleforge.branches.branch import Branch
from saddleforge.channel.exchange import SymmetryReduction


@pytest.fixture
def branch_at() -> Callable[[Callable[..., Any]], AbstractContextManager[None]]:
    """branch_at(answer): a context in which `Branch.solution_at_parameter` is answer(method, branch, value, ...)."""

    @contextmanager
    def answered(answer: Callable[..., Any]) -> Iterator[None]:
        at = Branch.solution_at_parameter
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Branch, "solution_at_parameter", lambda *given, **named: answer(at, *given, **named))
            yield

    return answered


@pytest.fixture
def without_symmetry() -> Callable[[], AbstractContextManager[None]]:
    """without_symmetry(): a context in which rules evaluate all of their nodes."""

    @contextmanager
    def context() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SymmetryReduction, "symmetries_of_field_law", classmethod(lambda cls, *_: cls(())))
            yield

    return context
