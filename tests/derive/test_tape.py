"""Values and gradients in doubles against SymPy's own, and row spaces whose entries hold parameters."""

import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.calculus.spans import EchelonForm, SymbolicEntryArithmetic, orthonormal_basis, right_inverse
from saddleforge.derive.calculus.tape import EvaluationTape

x, y, a = sp.symbols("x y a", real=True)
POINTS = [(0.7, -1.3), (-0.4, 0.9), (2.1, 0.3)]
EXPRESSIONS = [
    (x + 2 * y) ** 3 / (1 + x**2),
    sp.exp(-x * y) + sp.erf(x / sp.sqrt(2)) * sp.tanh(y),
    sp.sqrt(1 + x**2) ** y,
    sf.softplus(x - y) * sf.sigmoid(3 * y),
    sf.softmax([[x, x * y, y]])[1],
    sp.log(1 + sp.cos(x) ** 2) * sp.besselj(0, y),
    sp.Abs(x - y) + sp.Max(0, x, 2 * y) ** 2 + sp.Min(x, y),
    sp.sign(x) * y + sp.Heaviside(y) * x,
    sp.Piecewise((x**2, sp.And(x > 0, y < 0)), (x * y, sp.Or(x >= 1, sp.Ne(y, 0))), (y, True)),
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_values_and_gradients_are_those_of_sympy(expression):
    tape = EvaluationTape([x, y], [expression])
    for point in POINTS:
        at = dict(zip((x, y), point, strict=True))
        (value,) = tape.output_values_at_point(point)
        assert value == pytest.approx(float(expression.subs(at).evalf()), rel=1e-13)
        step = sp.Rational(1, 10**8)  # of differences at forty digits
        exact = {s: sp.Rational(str(e)) for s, e in at.items()}
        slopes = [
            float(
                (expression.subs(exact | {s: e + step}) - expression.subs(exact | {s: e - step})).evalf(40) / (2 * step)
            )
            for s, e in exact.items()
        ]
        assert tape.output_gradient(tape.evaluate_nodes(point), 0) == pytest.approx(slopes, rel=1e-7, abs=1e-9)


def test_a_tape_can_evaluate_every_piece_at_every_point():
    tape = EvaluationTape([x, y], [sp.Max(x, sp.Abs(y)) * sp.sign(x)])
    pieces = {
        tuple(tape.output_gradient(tape.evaluate_nodes((2.0, 1.0), lambda count, n=n: n % count), 0)) for n in range(2)
    }
    signs = {
        tape.output_gradient(tape.evaluate_nodes((2.0, 1.0), lambda count, n=n: n % count), 0)[0] != 0 for n in range(2)
    }
    assert len(pieces) == 2 and signs == {True, False}
    assert tape.output_values_at_point((2.0, 1.0)) == [2.0]


def test_a_tape_returns_none_without_a_value_and_refuses_unknown_functions():
    assert EvaluationTape([x], [sp.log(x)]).output_values_at_point([-1.0]) is None
    assert EvaluationTape([x], [sp.Piecewise((sp.log(x), x > 0), (0, True))]).output_values_at_point([-1.0]) == [0.0]
    with pytest.raises(NotImplementedError, match="cannot be evaluated"):
        EvaluationTape([x], [sp.Integral(sp.exp(-(y**2)), (y, 0, x))])


def test_echelon_forms_hold_parameters():
    entries = SymbolicEntryArithmetic([{a: sp.Rational(7, 5)}, {a: sp.Rational(-3, 11)}])
    one, root = sp.Integer(1), sp.sqrt(2)
    span = EchelonForm([(one, a, one), (2 * one, 2 * a, one), (root, root * a, 3 * root)], entries)
    assert span.rows == [(1, a, 0), (0, 0, 1)] and span.pivots == [0, 2]
    assert (a, a**2, one) in span and (one, one, one) not in span
    basis = [(one, a, -one), (0 * one, one - a, one)]
    inverse = right_inverse(basis, entries)
    assert (sp.Matrix(basis) * sp.Matrix(inverse)).applyfunc(sp.cancel) == sp.eye(2)


def test_the_basis_of_samples_has_their_numerical_rank():
    assert len(orthonormal_basis([[1, 2, 3], [2, 4, 6.0000000000001], [0, 1, 0]])) == 2
    assert orthonormal_basis([[0.0, 0.0]]) == []
