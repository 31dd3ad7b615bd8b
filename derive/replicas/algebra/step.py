"""A step of a derivation: its input and output, the rule, its source, and checks that can fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Expressions = Mapping[str, Any]


@dataclass(frozen=True)
class CheckOutcome:
    """The outcome of a test of a step's result; `detail` says what was compared, or how it failed."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class StepTest:
    """A test of a derivation step: a statement in words, and a function that decides whether it holds.

    The function must judge the output it is given, and compute its reference in another way.

    Attributes:
        name: title of the test.
        statement: what is compared, in words.
        holds: (before, after) -> whether the statement holds.
        judges: names of the outputs that it examines; all of them if empty.
    """

    name: str
    statement: str
    holds: Callable[[Expressions, Expressions], bool]
    judges: tuple[str, ...] = ()

    def __call__(self, before: Expressions, after: Expressions) -> CheckOutcome:
        """Return the outcome of the test.

        An error of arithmetic, names or shapes counts as a failure, with its own message.

        Args:
            before: input of the derivation step, by name.
            after: output of the derivation step, by name.
        """
        try:
            passed = bool(self.holds(before, after))
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:  # such as a term of the wrong shape
            return CheckOutcome(self.name, False, f"{type(error).__name__}: {error}")
        return CheckOutcome(self.name, passed, self.statement)


def declare_test(
    name: str, statement: str, judges: tuple[str, ...] = ()
) -> Callable[[Callable[..., bool]], Callable[..., StepTest]]:
    """Return a decorator that turns a check of a derivation step into a function that returns its `StepTest`.

    The check takes (before, after, *known), the returned function takes *known.

    Args:
        name: title; fields in braces are filled with the keywords of that function.
        statement: what is compared, with such fields.
        judges: names of the outputs that the check examines.
    """

    def _decorate_check(holds: Callable[..., bool]) -> Callable[..., StepTest]:
        def make_test(*known: Any, **words: Any) -> StepTest:
            said = name.format(**words), statement.format(**words)
            return StepTest(*said, lambda before, after: holds(before, after, *known), judges)

        return make_test

    return _decorate_check


@dataclass(frozen=True)
class Step:
    """One step of a derivation.

    Attributes:
        number, name: its place and a title; 1 to 9 are the replica calculation, 10 the equations of one model, 11
            message passing; with broken replica symmetry 1 to 12 are the calculation. The steps of Bayes-optimal
            inference have their own numbers from 1.
        before: input of the step, SymPy expressions by name.
        after: output of the step, SymPy expressions by name.
        rule: what the step does, in words.
        citation: published source of the step.
        tests: tests that `check` carries out.
    """

    number: int
    name: str
    before: Expressions
    after: Expressions
    rule: str
    citation: str
    tests: tuple[StepTest, ...]

    def check(self) -> tuple[CheckOutcome, ...]:
        """Return the outcome of every test on this step's input and output."""
        return tuple(test(self.before, self.after) for test in self.tests)


@dataclass(frozen=True)
class Derivation:
    """The steps of a derivation in their order, from 1."""

    steps: tuple[Step, ...]

    def __getitem__(self, number: int) -> Step:
        return self.steps[number - 1]

    def check(self) -> tuple[tuple[Step, CheckOutcome], ...]:
        """Return (step, outcome) for every test of every step."""
        return tuple((step, check) for step in self.steps for check in step.check())
