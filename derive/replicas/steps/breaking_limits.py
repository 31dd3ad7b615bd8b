"""Step 10 with one step of breaking: blocks that do not differ, and states of all energies alike
(docs/theory.md (18.21))."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...authoring.regulariser import Regulariser
from ...calculus.averages import COORDINATE, Average, MatrixAverage
from ...theory.free_entropy import FreeEntropy, free_entropy, split_average
from ...theory.stability import replicon
from ..algebra.exact import Law, is_zero
from ..algebra.levels import BLOCK, ROW_TILTED, TILTED, Broken, parisi
from ..algebra.objects import FIELD, LogDet, gathered, matrix_gradient, replicated, same, scalars_out
from ..algebra.step import Expressions, Step, declare_test
from .ansatz import example
from .breaking_saddle import collected
from .saddle import solvable

# What is small in the checks, and the digits to which the limits then hold.
SMALL = sp.Rational(1, 10**20)


def step(p: Broken, zero: Expressions, conditions: Expressions, regulariser: Regulariser) -> Step:
    """Delta to zero in the free entropy; y to zero in it and in the conditions for Delta; those for small Delta."""
    phi, used = zero["Phi"], free_entropy(p.s, p.t, regulariser, p.trained, p.loss_holds_q)
    small = replicon(FreeEntropy(used.expression, used.symbols))
    alike = {small.D: p.Delta, small.D_hat: p.Delta_hat}
    after = {
        "Phi without blocks": without_blocks(phi, p),
        "Phi at y = 0": at_equal_weights(phi, p),
        "Delta_hat at y = 0": equal_weights(conditions["Delta_hat"], p),
        "Delta at y = 0": equal_weights(conditions["Delta"], p),
        "small Delta_hat": small.channel.xreplace(alike),
        "small Delta": small.prior.xreplace(alike),
    }
    return Step(
        10,
        "Limits",
        {"Phi": phi, "Delta": conditions["Delta"], "Delta_hat": conditions["Delta_hat"]},
        after,
        "Where Delta and its conjugate vanish the replicas of a block are no closer than others, whatever 𝔶: the "
        "replica-symmetric free entropy is left, and small Delta is mapped by the replicon operator. Where 𝔶 vanishes "
        "the states of a block have one weight, whatever their energy: all but Delta solve the replica-symmetric "
        "equations, with q + Delta for the overlap, and Delta is the half squared distance of two copies of the "
        "estimate that share all overlaps, iterated once: a fixed point of the map whose largest one is the "
        "self-overlap loss.",
        "M. Mezard, G. Parisi, M. Virasoro, Spin Glass Theory and Beyond, World Scientific (1987)",
        (
            _equals_symmetric(used.expression, p),
            _small_blocks_hold(p),
            _equal_weights_hold(used.expression, p),
            _copies_hold(p),
            _conditions_hold(p),
            _slopes_hold(p),
        ),
    )


def _of_logarithms(expression: sp.Expr, rule: Callable[[Average, sp.Expr], sp.Expr]) -> sp.Expr:
    """(1/y) log E exp(y h) replaced by rule(E exp(y h), h)."""
    made = {}
    for term in expression.atoms(sp.Mul):
        logarithms = [a for a in term.args if isinstance(a, sp.log)]
        if len(logarithms) == 1 and isinstance(logarithms[0].args[0], Average):
            average = logarithms[0].args[0]
            made[term] = term / logarithms[0] * rule(average, average.summand.args[0])
    return expression.xreplace(made)


def without_blocks(phi: sp.Expr, p: Broken) -> sp.Expr:
    """Delta, Delta^ = 0: normal fields of no covariance stay where they are, log E exp(y h) = y h."""
    plain = _of_logarithms(phi, lambda _, exponent: exponent)
    zero = sp.ZeroMatrix(p.s, p.s)
    gone = plain.xreplace({z: zero for z in (p.Delta, p.Delta_hat, p.Q_Delta)}).doit()
    total: sp.Expr = sp.Integer(0)
    for term in sp.Add.make_args(gone):
        if not term.has(Average):
            total += term
            continue
        coefficient, average = split_average(term)
        total += coefficient * Average(average.kind, sp.expand(scalars_out(average.summand)))
    return total


def at_equal_weights(phi: sp.Expr, p: Broken) -> sp.Expr:
    """y = 0: (1/y) log E exp(y h) is E h, and so is the difference of log determinants over y their slope."""
    total: sp.Expr = sp.Integer(0)
    for term in sp.Add.make_args(_of_logarithms(phi, lambda average, h: Average(average.kind, h))):
        if not term.has(Average):
            total += term
            continue
        coefficient, average = split_average(term)
        parts = []
        for part in sp.Add.make_args(sp.expand(average.summand)):
            inner = [a for a in part.atoms(Average) if a.kind in (BLOCK, FIELD)]
            parts.append(part if not inner else _outside(part, inner[0]))
        determinants = [part for part in parts if part.has(LogDet)]
        others = sp.Add(*[part for part in parts if part not in determinants])
        slope = sp.Add(*[_first_order(part, p) for part in determinants])
        inside = scalars_out(_no_tilt(sp.expand(others), p).subs(parisi, 0).doit()) + slope
        total += coefficient * Average(average.kind, inside)
    return gathered(total)


def _outside(part: sp.Expr, average: Average) -> sp.Expr:
    """Numbers and powers of y in front of an average."""
    number, symbol = average.summand.as_independent(*average.summand.atoms(sp.Symbol) - {parisi}, as_Add=False)
    return part / average * number * Average(average.kind, symbol)


def _first_order(part: sp.Expr, p: Broken) -> sp.Expr:
    """The coefficient of y in the expansion of the log determinant of a term with 1/y in front; no y, no slope."""
    (determinant,) = part.atoms(LogDet)
    if not determinant.has(parisi):
        return sp.Integer(0)
    change = scalars_out(sp.Trace(matrix_gradient(determinant, p.Q_Delta, p) * p.Q_Delta))
    return scalars_out(_no_tilt(sp.expand(part / determinant * change), p))


def _no_tilt(expression: sp.Expr, p: Broken) -> sp.Expr:
    """R~ = R: what y multiplies within a resolvent is gone."""
    return expression.xreplace({(-parisi * p.Q_Delta).doit(): sp.ZeroMatrix(p.s, p.s)}).doit()


def equal_weights(value: MatrixExpr, p: Broken) -> MatrixExpr:
    """The condition at y = 0: tilted averages are plain, (R~ - R) / y = R Q_Delta R."""
    plain = value.replace(
        lambda a: isinstance(a, MatrixAverage) and a.kind in (TILTED, ROW_TILTED),
        lambda a: MatrixAverage(BLOCK if a.kind == TILTED else FIELD, a.summand),
    )
    R = (p.Lambda + p.G).inv()
    if not plain.has(parisi):
        return plain
    (term,) = [term for term in sp.MatAdd.make_args(plain) if term.has(p.Q_Delta)]
    expected = MatrixAverage(COORDINATE, p.gamma * (p.Lambda + p.G - parisi * p.Q_Delta).inv()) / parisi
    if not collected(term - expected, p).is_ZeroMatrix:
        raise TypeError(f"no limit of {value} is known")
    return MatrixAverage(COORDINATE, (p.gamma * R * p.Q_Delta * R).doit())


# --- checks -----------------------------------------------------------------------------------------------------------


@declare_test(
    "replica-symmetric free entropy",
    "the expression that is differentiated to generate solvers, as symbols",
    ("Phi without blocks",),
)
def _equals_symmetric(_before: Expressions, after: Expressions, used: sp.Expr, p: Broken) -> bool:
    return same(after["Phi without blocks"], used, p)


def _near(first: Any, second: Any) -> bool:
    gap = sp.Matrix([first - second]) if not isinstance(first, sp.MatrixBase) else first - second
    return all(abs(sp.N(entry, 60)) < 10**4 * SMALL for entry in gap)


@declare_test(
    "free entropy at small Delta",
    "at explicit matrices, s = t = 2, Delta and its conjugate of 1e-20",
    ("Phi without blocks",),
)
def _small_blocks_hold(before: Expressions, after: Expressions, p: Broken) -> bool:
    phi, own = before["Phi"], example("small blocks")
    little = {name: own[name] * SMALL for name in ("Delta", "Delta_hat")}
    symmetric = solvable(own, phi, replace(p, steps=0))
    return _near(solvable({**own, **little}, phi, p)(phi), symmetric(after["Phi without blocks"]))


@declare_test(
    "free entropy at small 𝔶",
    "at explicit matrices, s = t = 2 and 𝔶 of 1e-20, against the replica-symmetric one at q + Delta",
    ("Phi at y = 0",),
)
def _equal_weights_hold(before: Expressions, after: Expressions, used: sp.Expr, p: Broken) -> bool:
    """Against the limit itself, and the replica-symmetric free entropy at q + Delta and q^ + Delta^."""
    phi, own = before["Phi"], example("equal weights")
    found = solvable({**own, parisi.name: SMALL}, phi, p)(phi)
    whole = {"q": own["q"] + own["Delta"], "q_hat": own["q_hat"] + own["Delta_hat"]}
    symmetric = solvable({**own, **whole}, phi, replace(p, steps=0))(used)
    return _near(found, solvable(own, phi, p)(after["Phi at y = 0"])) and _near(found, symmetric)


@declare_test(
    "two copies",
    "half the mean squared difference of two fields and of two rows whose laws share q, and Delta beyond it, "
    "s = t = 2, exactly",
    ("Delta_hat at y = 0", "Delta at y = 0"),
)
def _copies_hold(before: Expressions, after: Expressions, p: Broken) -> bool:
    """E (f1 - f2)(f1 - f2)^T / 2 of linear functions f of two normal vectors around a common one."""
    at = solvable(example("two copies"), before["Phi"], p)
    for f, name, kind, covariance, number in (
        (p.g, "Delta_hat", "omega", at.values["Delta"], "alpha"),
        (p.w, "Delta", "b", at.values["Q_Delta"], "gamma"),
    ):
        copies = f"{kind}|1", f"{kind}|2"
        law = Law(copies, sp.zeros(4, 1), sp.diag(covariance, covariance))
        difference = replicated(f, "1") - replicated(f, "2")
        squares = law.average(difference * difference.T / 2, at.having(dict.fromkeys(copies, sp.zeros(2, 1))))
        if not is_zero(at(after[f"{name} at y = 0"]) - at.values[number] * squares):
            return False
    return True


@declare_test(
    "conditions at small 𝔶",
    "at explicit matrices, s = t = 2 and 𝔶 of 1e-20",
    ("Delta_hat at y = 0", "Delta at y = 0"),
)
def _conditions_hold(before: Expressions, after: Expressions, p: Broken) -> bool:
    own = {**example("conditions in the limit"), parisi.name: SMALL}
    at = solvable(own, before["Phi"], p)
    return all(_near(at(before[name]), at(after[f"{name} at y = 0"])) for name in ("Delta", "Delta_hat"))


@declare_test(
    "conditions at small Delta",
    "their slopes in it at explicit matrices, s = t = 2, Delta and its conjugate of 1e-20",
    ("small Delta_hat", "small Delta"),
)
def _slopes_hold(before: Expressions, after: Expressions, p: Broken) -> bool:
    own = example("conditions in the limit")
    own |= {name: own[name] * SMALL for name in ("Delta", "Delta_hat")}
    letters = {name: sp.Matrix(sp.symbols(f"{name}:2")) for name in ("omega", "b")}  # differentiated in
    at = solvable(own, before["Phi"], p).having(letters)
    return all(_near(at(before[name]) / SMALL, at(after[f"small {name}"]) / SMALL) for name in ("Delta", "Delta_hat"))
