"""A step of a derivation: what goes in, what comes out, the rule, where it is written, and checks that can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Expressions = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """Whether a statement about a step's result holds; `detail` says what was compared, or how it failed."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Test:
    """A statement about a step: a function of its input and output that says whether it holds, and in which words.

    It must judge the output it is given, and compute what it compares with by another way.

    Attributes:
        judges: names of the outputs it looks at; all of them if empty.
    """

    name: str
    statement: str
    holds: Callable[[Expressions, Expressions], bool]
    judges: tuple[str, ...] = ()

    def __call__(self, before: Expressions, after: Expressions) -> Check:
        """What became of the statement; an error of arithmetic, names or shapes is a failure, in its own words."""
        try:
            passed = bool(self.holds(before, after))
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:  # a term of the wrong shape, say
            return Check(self.name, False, f"{type(error).__name__}: {error}")
        return Check(self.name, passed, self.statement)


def declare_test(
    name: str, statement: str, judges: tuple[str, ...] = ()
) -> Callable[[Callable[..., bool]], Callable[..., Test]]:
    """Return a decorator: a check (before, after, *known) -> bool becomes a function of `known` that returns its test.

    Args:
        name, statement, judges: as of `Test`; fields in braces are filled with the keywords of that function.
    """

    def declare(holds: Callable[..., bool]) -> Callable[..., Test]:
        def test(*known: Any, **words: Any) -> Test:
            said = name.format(**words), statement.format(**words)
            return Test(*said, lambda before, after: holds(before, after, *known), judges)

        return test

    return declare


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        number, name: its place and a title; 1 to 9 are the replica calculation, 10 the equations of one model, 11
            message passing; with broken replica symmetry 1 to 12 are the calculation. The steps of Bayes-optimal
            inference count from 1 on their own.
        before, after: named SymPy expressions that go in and come out.
        rule: what was done, in words.
        citation: where it is written.
        tests: what `check` carries out.
    """

    number: int
    name: str
    before: Expressions
    after: Expressions
    rule: str
    citation: str
    tests: tuple[Test, ...]

    def check(self) -> tuple[Check, ...]:
        """Carry out every check on this step's input and output."""
        return tuple(test(self.before, self.after) for test in self.tests)


@dataclass(frozen=True)
class Derivation:
    """Steps in their order, from 1."""

    steps: tuple[Step, ...]

    def __getitem__(self, number: int) -> Step:
        return self.steps[number - 1]

    def check(self) -> tuple[tuple[Step, Check], ...]:
        """All checks of all steps."""
        return tuple((step, check) for step in self.steps for check in step.check())
