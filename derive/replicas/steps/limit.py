"""Step 5: n -> 0. The derivative of each potential at n = 0, symbolically."""

from __future__ import annotations

from typing import Any

import sympy as sp

from ...calculus.averages import CHANNEL, Average, Symbols
from ..algebra.blocks import explicit
from ..algebra.exact import Values, is_zero
from ..algebra.objects import FIELD, LogDet, LogIntegral, n, scalars_out
from ..algebra.step import Expressions, Step, Test
from .ansatz import REPLICA_NUMBERS, example, shared


def at_zero(expression: sp.Expr) -> sp.Expr:
    """The value at n = 0."""
    if isinstance(expression, LogDet):
        return LogDet(_matrix_at_zero(expression.matrix))
    if isinstance(expression, sp.Trace):
        return sp.Trace(_matrix_at_zero(expression.arg))
    if isinstance(expression, sp.log) and isinstance(expression.args[0], Average):
        return sp.Integer(0) if _replica_exponent(expression) is not None else expression
    if isinstance(expression, Average):
        inside = at_zero(expression.summand)
        return sp.Integer(0) if inside == 0 else Average(expression.kind, inside)
    if isinstance(expression, sp.Add | sp.Mul | sp.Pow):
        return expression.func(*[at_zero(a) for a in expression.args])
    return sp.Integer(0) if expression == n else expression


def derivative_at_zero(expression: sp.Expr) -> sp.Expr:
    """d/dn at n = 0.

    Three rules beyond those of sums and products: d log det M = Tr[M^{-1} dM]; averages are linear; and the
    logarithm of an average of n-th powers has the average of the logarithm for its derivative.

    Raises:
        TypeError: no rule is known.
    """
    if not expression.has(n):
        return sp.Integer(0)
    if expression.is_polynomial(n) and not expression.has(sp.MatrixSymbol, Average):
        return expression.diff(n).subs(n, 0)
    if isinstance(expression, sp.Add):
        return sp.Add(*[derivative_at_zero(a) for a in expression.args])
    if isinstance(expression, sp.Mul):
        terms = []
        for position, factor in enumerate(expression.args):
            others = [at_zero(a) for i, a in enumerate(expression.args) if i != position]
            if 0 not in others:
                terms.append(sp.Mul(derivative_at_zero(factor), *others))
        return sp.Add(*terms)
    if isinstance(expression, Average):
        return Average(expression.kind, derivative_at_zero(expression.summand))
    if isinstance(expression, sp.log) and _replica_exponent(expression) is not None:
        return Average(expression.args[0].kind, _replica_exponent(expression))
    if isinstance(expression, LogDet):
        matrix = expression.matrix
        return sp.Trace(_matrix_at_zero(matrix).inv() * matrix.diff(n).doit())
    raise TypeError(f"no rule for the derivative of {expression} in n")


def _matrix_at_zero(matrix: Any) -> Any:
    return matrix.subs(n, 0).doit()


def _replica_exponent(logarithm: sp.log) -> sp.Expr | None:
    """f in log E[exp(n f)], where it is of this form."""
    average = logarithm.args[0]
    if not isinstance(average, Average) or not isinstance(average.summand, sp.exp):
        return None
    per_replica = average.summand.args[0] / n
    return None if per_replica.has(n) else per_replica


def step(p: Symbols, symmetric: Expressions) -> Step:
    """E log Z is the derivative of E Z^n at n = 0; at n = 0 each potential vanishes."""
    potentials = {name: value for name, value in symmetric.items() if name != "covariance"}
    after = {name: _tidy(derivative_at_zero(value)) for name, value in potentials.items()}
    tests = [
        Test(
            "potentials vanish at n = 0", "every potential of step 4 at n = 0", lambda before, _after: _vanish(before)
        ),
        Test(
            "trace from integer n",
            "the polynomial through explicit matrices at n = 1, 2, 3, confirmed at n = 4; its slope at 0",
            _trace_from_integers,
            ("trace", "trained"),
        ),
        Test(
            "logarithm of a power, rows",
            "averaged powers of a variable of three values, n = 1 to 4 written out, differentiated at n = 0",
            lambda before, after: _power_holds(before["entropic"], after["entropic"], FIELD),
            ("entropic",),
        ),
        Test(
            "logarithm of a power, sentences",
            "averaged powers of a variable of three values, n = 1 to 4 written out, differentiated at n = 0",
            lambda before, after: _power_holds(before["energetic"], after["energetic"], CHANNEL),
            ("energetic",),
        ),
    ]
    if "entropic of ridge" in potentials:
        tests.append(
            Test(
                "block matrices from integer n",
                "det and summed inverse interpolated through explicit matrices at integer n, confirmed at the next; "
                "the slope of their logarithm at 0",
                _ridge_from_integers,
                ("entropic of ridge",),
            )
        )
    return Step(
        5,
        "No replicas: n to zero",
        potentials,
        after,
        "The average of the logarithm of the partition function is the derivative of its averaged power n at n = 0, "
        "so each potential, known for integer n, is taken as a function of n and differentiated at n = 0, where all "
        "of them vanish. The exchange of this limit with that of large d is the replica assumption.",
        "S. F. Edwards, P. W. Anderson, J. Phys. F 5, 965 (1975); arXiv 2402.03902, Appendix C",
        tuple(tests),
    )


def _tidy(expression: sp.Expr) -> sp.Expr:
    """Traces as sums of traces, within every average."""
    if isinstance(expression, Average):
        return Average(expression.kind, _tidy(expression.summand))
    if isinstance(expression, sp.Add | sp.Mul):
        return sp.expand_mul(expression.func(*[_tidy(a) for a in expression.args]), deep=False)
    return scalars_out(expression) if isinstance(expression, sp.Trace) else expression


def _vanish(before: Expressions) -> bool:
    return all(is_zero(sp.expand(at_zero(value))) or at_zero(value) == 0 for value in map(_plain, before.values()))


def _plain(expression: sp.Expr) -> sp.Expr:
    """Log determinants multiplied out, so that equal ones cancel."""
    return expression.xreplace({a: Average(a.kind, sp.expand(a.summand)) for a in expression.atoms(Average)})


def _interpolated(points: list[tuple[int, sp.Expr]]) -> sp.Expr:
    return sp.interpolate(points, n)


def _trace_from_integers(before: Expressions, after: Expressions) -> bool:
    own = example("trace in the limit")

    def value(replicas: int) -> sp.Expr:
        matrices = (own["V_hat"], -own["q_hat"]), (own["V"], own["q"])
        linear = sp.trace(own["m_hat"].T * own["m"]) + sp.trace(own["theta_hat"].T * own["theta"])
        conjugate, overlap = (explicit(a, c, replicas) for a, c in matrices)
        return sp.trace(conjugate * overlap) / 2 - replicas * linear

    *known, last = REPLICA_NUMBERS
    polynomial = _interpolated([(replicas, value(replicas)) for replicas in known])
    confirmed = polynomial.subs(n, last) == value(last) and polynomial.subs(n, 0) == 0
    if not confirmed or not is_zero(Values(own)(after["trace"]) - polynomial.diff(n).subs(n, 0)):
        return False
    if "trained" not in after:
        return True
    at = Values({**own, "phi": own["m"], "Kappa": own["q"]})
    return is_zero(at(before["trained"]).diff(n) - at(after["trained"]))


def _power_holds(before: sp.Expr, after: sp.Expr, kind: str) -> bool:
    """The log integral takes the logarithms of 2, 3 and 5 with given chances, whatever it stands for."""
    (integral,) = before.atoms(LogIntegral)
    outcome = sp.Symbol("outcome")
    chances = (sp.Rational(1, 2), sp.Rational(1, 3), sp.Rational(1, 6))
    sums = {kind: tuple((c, {"outcome": sp.log(v)}) for c, v in zip(chances, (2, 3, 5), strict=True))}
    at = Values({}, sums)
    power = at(before.xreplace({integral: outcome}))
    for replicas in REPLICA_NUMBERS:
        written_out = sp.Add(*[c * sp.Integer(v) ** replicas for c, v in zip(chances, (2, 3, 5), strict=True)])
        factor = _prefactor(before)
        if not is_zero((power.subs(n, replicas) - factor * sp.log(written_out)).subs(factor, 1)):
            return False
    slope = sp.expand(power.diff(n).subs(n, 0))
    return sp.expand(slope - at(after.xreplace({integral: outcome}))) == 0


def _prefactor(expression: sp.Expr) -> sp.Expr:
    """What multiplies the potential: alpha for sentences."""
    return sp.Mul(*[a for a in sp.Mul.make_args(expression) if a.is_Symbol])


def _ridge_from_integers(_before: Expressions, after: Expressions) -> bool:
    """det(I (x) A + J (x) C) / det(A)^n is a polynomial of degree s in n; times the summed inverse, of degree s - 1."""
    own = example("ridge in the limit")
    values = shared("ridge in the limit", [own])
    A, C, B = values["beta"] * values["Lambda"] + values["G"], -values["Q"], values["B"]
    size = A.rows

    def written_out(replicas: int) -> tuple[sp.Expr, sp.Expr]:
        matrix = explicit(A, C, replicas)
        stacked = sp.Matrix.vstack(*[B] * replicas)
        determinant = matrix.det() / A.det() ** replicas
        return determinant, determinant * (stacked.T * matrix.inv() * stacked)[0] / replicas

    points = {replicas: written_out(replicas) for replicas in range(1, size + 3)}
    determinant, weighted = (_interpolated([(k, points[k][i]) for k in range(1, size + 2)]) for i in range(2))
    last = size + 2
    if determinant.subs(n, last) != points[last][0] or weighted.subs(n, last) != points[last][1]:
        return False
    rational = -determinant.diff(n) / determinant / 2 + weighted / determinant / 2
    expected = rational.subs(n, 0) - sp.log(A.det()) / 2 + sp.Rational(size, 2) * sp.log(2 * sp.pi)
    return is_zero(Values(values)(after["entropic of ridge"]) - expected)
