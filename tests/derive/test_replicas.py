"""The replica calculation: every step's checks hold, and every wrong term is seen by one of them."""

from dataclasses import replace

import pytest
import sympy as sp

from saddleforge.derive.calculus.averages import Average, Jacobian, MatrixAverage
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.replicas import dynamics, message_passing
from saddleforge.derive.replicas.algebra.objects import LogDet, LogIntegral
from saddleforge.derive.replicas.model_equations import specialisation
from saddleforge.derive.replicas.steps.derivation import replica_calculation

KINDS = {"ridge": ("ridge", 0, False), "penalty": ("penalty", 2, True)}


@pytest.mark.slow
@pytest.mark.parametrize("rsb", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_check_of_every_step_holds(kind, rsb):
    """Of ridges, `undetected` says so too, before it looks at wrong terms."""
    count = len(replica_calculation(*KINDS[kind], rsb=rsb).steps)
    assert count == (9, 12, 8)[rsb]
    steps = [numbered(kind, number + 1, rsb) for number in range(count)]
    assert [(step.name, check) for step in steps for check in step.check() if not check.passed] == []


def test_names_of_checks_are_unique():
    names = [test.name for step in replica_calculation().steps for test in step.tests]
    assert len(names) == len(set(names)) >= 9


def replaced(expression, path, new):
    """The expression with the part at a path of argument positions replaced."""
    if not path:
        return new
    position, *rest = path
    args = list(expression.args)
    args[position] = replaced(args[position], rest, new)
    if isinstance(expression, sp.BlockMatrix):
        return sp.BlockMatrix(args[0])
    return expression.func(*args)


def parts(expression, path=()):
    """Every part of an expression with its path."""
    yield path, expression
    for position, argument in enumerate(getattr(expression, "args", ())):
        yield from parts(argument, (*path, position))


def mutations(expression):
    """Signs flipped, terms halved and dropped, thetas transposed."""
    scalars = (sp.Trace, Average, LogDet, LogIntegral)
    for path, part in parts(expression):
        if isinstance(part, scalars) and not (path and isinstance(expression, sp.log)):
            yield f"sign of {part}", path, -part
            yield f"half of {part}", path, part / 2
            yield f"without {part}", path, sp.Integer(0)
        elif isinstance(part, MatrixAverage | Jacobian):
            yield f"sign of {part}", path, -1 * part
            yield f"half of {part}", path, part / 2
        if isinstance(part, sp.MatrixSymbol) and part.name.startswith("theta"):
            yield f"{part} transposed", path, part.T
        if isinstance(part, sp.MatMul | sp.MatAdd) and not path:
            yield f"sign of {part}", path, -1 * part
            yield f"half of {part}", path, part / 2


def mutants(step):
    for name, expression in step.after.items():
        for label, path, new in mutations(expression):
            try:
                mutated = replaced(expression, path, new)
            except (TypeError, ValueError, AttributeError):
                continue  # not an expression at all
            if mutated != expression:
                yield name, label, replace(step, after={**step.after, name: mutated})


def survives(step, name):
    tests = [test for test in step.tests if not test.judges or name in test.judges]
    return all(test(step.before, step.after).passed for test in tests)


def undetected(step, every, mutated=mutants):
    """Labels of mutants that no check notices."""
    tried = list(mutated(step))
    assert len(tried) >= 3 and [check for check in step.check() if not check.passed] == []
    return [f"{name}: {label}" for name, label, mutant in tried[::every] if survives(mutant, name)]


def numbered(kind, number, rsb=0):
    """A step at sizes that are numbers: a transposed theta is then of the right shape. Checks of steps 6 and 7 put
    s = 1 in."""
    sizes = {} if number in (6, 7) else {"s": 2, "t": 2}
    return replica_calculation(*KINDS[kind], **sizes, rsb=rsb)[number]


@pytest.mark.parametrize("number", range(1, 10))
def test_a_wrong_term_fails_a_named_check(number):
    assert undetected(numbered("ridge", number), every=7) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 10))
@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_term_fails_a_named_check(kind, number):
    assert undetected(numbered(kind, number), every=1) == []


BROKEN = range(4, 13)  # the first three steps are before any ansatz
# How many mutants are left out next to each that is tried, where one takes seconds.
EVERY = {4: 11, 5: 9, 6: 16, 7: 9, 8: 12, 9: 7, 10: 9, 11: 5, 12: 5}


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), *range(2, BROKEN.start)])
def test_steps_before_any_ansatz_hold_with_blocks_to_come(number):
    assert [check for check in numbered("ridge", number, rsb=1).check() if not check.passed] == []


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.slow if n in (4, 6, 8, 9) else ()) for n in BROKEN]
)
def test_a_wrong_term_with_blocks_fails_a_named_check(number):
    assert undetected(numbered("ridge", number, rsb=1), every=EVERY[number]) == []


@pytest.mark.slow
def test_the_saddle_point_holds_with_blocks_of_blocks():
    """The outermost response, which counts jumps, and the innermost overlap."""
    step = replica_calculation("penalty", s=2, t=2, rsb=2)[8]
    titles = "free entropy in the variances", "response of a tilted average", "slope in Delta_2"
    tests = [test for test in step.tests if test.name in titles]
    assert [test(step.before, step.after).passed for test in tests] == [True] * 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [4, 5, 7, 8])
def test_a_wrong_term_with_blocks_of_blocks_fails_a_named_check(number):
    assert undetected(numbered("ridge", number, rsb=2), every=EVERY[number]) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", BROKEN)
@pytest.mark.parametrize("kind", KINDS)
def test_every_wrong_term_with_blocks_fails_a_named_check(kind, number):
    assert undetected(numbered(kind, number, rsb=1), every=1) == []


@pytest.mark.parametrize("kind", KINDS)
def test_message_passing_holds(kind):
    """Fixed points are stationary points of the risk for any V and A; state evolution is the saddle point."""
    assert [check for check in message_passing.message_passing_step(*KINDS[kind]).check() if not check.passed] == []


def message_mutants(step):
    """The generic ones, and every term of a sum with its sign flipped, halved or left out: the Onsager terms."""
    yield from mutants(step)
    for name, expression in step.after.items():
        for term in expression.args if isinstance(expression, sp.MatAdd) else ():
            for label, factor in (("sign", -1), ("half", sp.Rational(1, 2)), ("without", 0)):
                rest = [other for other in expression.args if other != term]
                changed = sp.MatAdd(*rest, factor * term) if factor else sp.MatAdd(*rest)
                yield name, f"{label} of {term}", replace(step, after={**step.after, name: changed.doit()})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("omega", lambda e: sp.MatAdd(*[-a if "g_previous" in str(a) else a for a in e.args])),
        ("b", lambda e: sp.MatAdd(*[a for a in e.args if "A_row" not in str(a)])),
    ],
    ids=["sign of the Onsager term", "without A w"],
)
def test_a_wrong_reaction_is_no_fixed_point(name, wrong):
    step = message_passing.message_passing_step(s=2, t=2)
    mutant = replace(step, after={**step.after, name: wrong(step.after[name])})
    failed = {check.name for check in mutant.check() if not check.passed}
    assert failed == {"fixed points of message passing", "minimum of a risk is a fixed point"}


@pytest.mark.parametrize("kind", ["ridge", pytest.param("penalty", marks=pytest.mark.slow)])
def test_a_wrong_term_of_message_passing_fails_a_named_check(kind):
    every = 4 if kind == "ridge" else 1
    assert undetected(message_passing.message_passing_step(*KINDS[kind], s=2, t=2), every, message_mutants) == []


ONE_PASS = {"plain": (0, False), "trained numbers and a loss that holds q": (2, True)}


@pytest.mark.parametrize("kind", ONE_PASS)
def test_a_wrong_term_of_one_pass_descent_fails_a_named_check(kind):
    assert undetected(dynamics.descent_step(*ONE_PASS[kind], s=2, t=2), 20, message_mutants) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ONE_PASS)
def test_every_wrong_term_of_one_pass_descent_fails_a_named_check(kind):
    assert undetected(dynamics.descent_step(*ONE_PASS[kind], s=2, t=2), 1, message_mutants) == []


def written_mutants(step):
    """Signs flipped, halves taken, terms left out and symbols exchanged in scalar and matrix expressions alike."""
    for name, expression in step.after.items():
        for path, part in parts(expression):
            changes = []
            if isinstance(part, sp.Add | sp.MatAdd):
                for i, term in enumerate(part.args):
                    others = [a for n, a in enumerate(part.args) if n != i]
                    changes += [(f"{label} of {term} in {part}", part.func(*others, factor * term))
                                for label, factor in (("sign", -1), ("half", sp.Rational(1, 2)))]  # fmt: skip
                    changes.append((f"without {term} in {part}", part.func(*others)))
            elif isinstance(part, Average | MatrixAverage | sp.Trace):
                changes += [(f"half of {part}", part / 2), (f"sign of {part}", -1 * part)]
            elif part.is_Symbol and (path or expression != part):
                changes += [(f"half of {part}", part / 2), (f"sign of {part}", -part)]
            elif isinstance(part, sp.MatrixSymbol) and len(set(part.shape)) == 1 and "theta" in part.name:
                changes.append((f"{part} transposed", part.T))
            for label, new in changes:
                try:
                    mutated = replaced(expression, path, new)
                except (TypeError, ValueError, AttributeError):
                    continue
                if getattr(mutated, "doit", lambda e=mutated: e)() != expression:
                    yield name, label, replace(step, after={**step.after, name: mutated})


WRITTEN = ["dot_product_attention", "lasso_regression", "mixture_classification", "committee_machine"]


@pytest.mark.parametrize("name", [*WRITTEN[:2], *[pytest.param(name, marks=pytest.mark.slow) for name in WRITTEN[2:]]])
def test_the_equations_of_a_model_agree_with_the_matrix_form(name):
    step = specialisation.specialisation_step(catalogue_model(name).at())
    assert [check for check in step.check() if not check.passed] == []


@pytest.mark.parametrize("name", [WRITTEN[0], *[pytest.param(name, marks=pytest.mark.slow) for name in WRITTEN[1:]]])
def test_a_wrong_term_in_the_equations_of_a_model_fails_a_named_check(name):
    every = 30 if name == WRITTEN[0] else 1
    assert undetected(specialisation.specialisation_step(catalogue_model(name).at()), every, written_mutants) == []
