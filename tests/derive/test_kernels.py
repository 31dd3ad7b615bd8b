"""From SymPy to a kernel and to printed code: no value is lost on the way."""

import math
from types import SimpleNamespace

import mpmath as mp
import pytest
import sympy as sp

from saddleforge.derive.authoring.language import half_square, sigmoid, softmax, softplus
from saddleforge.derive.calculus.chain import chain_rule_derivatives, two_entry_softmax_to_sigmoid
from saddleforge.derive.calculus.functions import Sigmoid, SoftmaxEntry, Softplus
from saddleforge.derive.emit.kernel import Kernel, make_kernel, split_kernel_by_inputs
from saddleforge.derive.emit.printers import mpmath as mpmath_printer
from saddleforge.derive.emit.printers import numba as numba_printer

x = sp.symbols("x0:3", real=True)
y = sp.symbols("y0:3", real=True)
WEIGHTS = sp.Matrix([[1, -2, 3]]) / 4


def attention(size: int) -> sp.Expr:
    X, Y = sp.Matrix(x[:size]), sp.Matrix(y[:size])
    return half_square(softmax(Y @ Y.T) - softmax(X @ X.T))


LOSSES = {
    "softmax rows of two": attention(2),
    "softmax rows of two as sigmoids": two_entry_softmax_to_sigmoid(attention(2)),
    "softmax rows of three": attention(3),
    "value matrix": half_square(softmax(sp.Matrix(x[:2]) @ sp.Matrix(x[:2]).T) @ sp.Matrix(x[1:]) - sp.Matrix(y[:2])),
    "softmax in softmax": (softmax([[2 * softmax([list(x)])[0, 0] * x[1], x[0] ** 2, y[0]]])[0, 1] - y[1]) ** 2,
    "repeated logit": softmax([[x[0], x[0], x[1]]])[0, 0] ** 2 + x[2] * softmax([[x[0], x[0], x[1]]])[0, 2],
    "sigmoid": (sigmoid(x[0] * x[1] - y[0]) - y[1]) ** 2 + x[2] ** 2 * sigmoid(x[2]),
    "softplus": softplus(-y[0] * x[0] + x[1] ** 2) * x[2] + softplus(x[2]),
    "softplus of a sigmoid": softplus(sigmoid(x[0]) * x[1]) + x[2] * sigmoid(x[0]),
    "polynomial": (x[0] * x[1] - y[0]) ** 2 + x[2] ** 4,
}
POINTS = [
    dict(zip((*x, *y), values, strict=True))
    for values in ((0.3, -0.7, 1.1, 0.9, -0.4, 0.2), (-1.6, 0.8, 0.1, -0.5, 1.3, -2.1))
]


def elementary(expression: sp.Expr) -> sp.Expr:
    """Without the package's own functions, whose derivatives are under test."""

    def row(index: sp.Expr, *logits: sp.Expr) -> sp.Expr:
        return sp.exp(logits[int(index)]) / sp.Add(*[sp.exp(z) for z in logits])

    return (
        expression.replace(SoftmaxEntry, row)
        .replace(Sigmoid, lambda z: 1 / (1 + sp.exp(-z)))
        .replace(Softplus, lambda z: sp.log(1 + sp.exp(z)))
    )


def exact_point(point: dict[sp.Symbol, float]) -> dict[sp.Symbol, sp.Rational]:
    return {symbol: sp.Rational(str(value)) for symbol, value in point.items()}


def staged_kernel(loss: sp.Expr) -> Kernel:
    stages = chain_rule_derivatives(loss, list(x))
    outputs = {"value": stages.value}
    outputs |= {f"d_{i}": e for i, e in enumerate(stages.gradient)}
    outputs |= {f"h_{i}_{j}": e for (i, j), e in stages.hessian.items()}
    return make_kernel(outputs, stages.definitions)


def plain_derivatives(loss: sp.Expr) -> dict[str, sp.Expr]:
    loss = elementary(loss)
    found = {"value": loss} | {f"d_{i}": loss.diff(a) for i, a in enumerate(x)}
    return found | {f"h_{i}_{j}": loss.diff(x[i], x[j]) for i in range(3) for j in range(i, 3)}


def by_mpmath(kernel: Kernel, point: dict[sp.Symbol, float]) -> dict[str, mp.mpf]:
    with mp.workdps(30):
        return mpmath_printer.evaluate_kernel(
            kernel, {str(symbol): mp.mpf(str(value)) for symbol, value in point.items()}
        )


def close(value: mp.mpf, expected: mp.mpf | sp.Expr) -> bool:
    """Do they agree to 22 digits?"""
    with mp.workdps(30):
        expected = mp.mpf(str(expected)) if isinstance(expected, sp.Basic) else expected
        return bool(abs(value - expected) < mp.mpf(10) ** -22 * (1 + abs(expected)))


@pytest.mark.parametrize("name", LOSSES)
def test_staged_derivatives_are_the_derivatives(name):
    kernel, plain = staged_kernel(LOSSES[name]), plain_derivatives(LOSSES[name])
    compiled = sp.lambdify([*x, *y], list(plain.values()), "mpmath")
    for point in POINTS:
        with mp.workdps(30):
            expected = compiled(*[mp.mpf(str(point[symbol])) for symbol in (*x, *y)])
        result = by_mpmath(kernel, point)
        for key, value in zip(plain, expected, strict=True):
            assert close(result[key], value), key


@pytest.mark.parametrize("name", LOSSES)
def test_a_frozen_loss_keeps_its_value(name):
    kernel = make_kernel({"value": LOSSES[name]})
    for point in POINTS:
        expected = LOSSES[name].subs(exact_point(point)).evalf(25)
        assert close(by_mpmath(kernel, point)["value"], expected)


FUNCTIONS = {
    "elementary": sp.exp(x[0]) * sp.sin(x[1]) + sp.log(2 + x[2] ** 2) - sp.tanh(y[0]) / sp.sqrt(1 + y[1] ** 2),
    "powers": (1 + x[0] ** 2) ** -3 + (2 + x[1]) ** sp.Rational(3, 2) - (3 + y[0]) ** -sp.Rational(1, 2) + x[2] ** -2,
    "special": sp.erf(x[0]) + sp.erfc(x[1]) + sp.atan(x[2]) * sp.pi + sp.cosh(y[0]) - sp.sinh(y[1]),
    "branches": sp.Abs(x[0]) + sp.Max(x[1], y[0]) - sp.Min(x[2], y[1]) + sp.sign(y[2]) * sp.Heaviside(x[0]),
    "piecewise": sp.Piecewise((x[0] ** 2, x[0] < x[1]), (x[1] - y[0], x[1] >= y[0]), (y[2], True)),
    "signs": -x[0] - (x[1] - y[0]) * (-y[1]) - 2 * (x[2] - (y[2] - x[0])) / (-3 * x[1]),
    "nested powers": ((-x[0]) ** 2) ** 3 - (-(x[1] ** 2)) ** 3 + (x[2] ** -1 + 1) ** -1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_of_the_language_survives_freezing(name):
    kernel = make_kernel({"value": FUNCTIONS[name]})
    for point in POINTS:
        expected = FUNCTIONS[name].subs(exact_point(point)).evalf(25)
        assert close(by_mpmath(kernel, point)["value"], expected)


def test_an_unknown_function_is_refused_by_name():
    with pytest.raises(TypeError, match="no code can be generated for the function besselj"):
        make_kernel({"value": sp.besselj(0, x[0])})


@pytest.mark.parametrize("name", ["softmax rows of two as sigmoids", "softmax rows of three", "softplus", "polynomial"])
def test_hoisting_keeps_every_value(name):
    kernel = staged_kernel(LOSSES[name])
    columns, rest = split_kernel_by_inputs(kernel, {str(symbol) for symbol in x}, "c")
    assert columns.input_names <= {str(symbol) for symbol in x}
    assert not any(result in {str(symbol) for symbol in y} for result, _ in columns.results)
    assert rest.operation_count + columns.operation_count <= kernel.operation_count + len(columns.results)
    for point in POINTS:
        whole = by_mpmath(kernel, point)
        with mp.workdps(30):
            known = {str(symbol): mp.mpf(str(value)) for symbol, value in point.items()}
            hoisted = mpmath_printer.evaluate_kernel(rest, known | mpmath_printer.evaluate_kernel(columns, known))
        for key, value in whole.items():
            assert close(hoisted[key], value), key


def run_printed(kernel: Kernel, point: dict[sp.Symbol, float]) -> dict[str, float]:
    """Printed source as plain Python, with plain definitions of the functions that the library supplies."""

    def row(*logits: float) -> tuple[float, ...]:
        weights = [math.exp(z - max(logits)) for z in logits]
        return tuple(w / math.fsum(weights) for w in weights)

    scope: dict = {str(symbol): value for symbol, value in point.items()}
    scope |= {
        "math": math,
        "special": SimpleNamespace(
            sigmoid=lambda z: 1 / (1 + math.exp(-z)),
            softplus=lambda z: math.log1p(math.exp(z)),
            step=lambda z: (z > 0) + 0.5 * (z == 0),
            softmax=row,
        ),
    }
    exec("\n".join(numba_printer.kernel_body_lines(kernel)), scope)
    return {name: scope[name] if node != ("name", name) else scope[node[1]] for name, node in kernel.results}


@pytest.mark.parametrize("name", [*LOSSES, *FUNCTIONS])
def test_printed_code_agrees_with_high_precision(name):
    kernel = staged_kernel(LOSSES[name]) if name in LOSSES else make_kernel({"value": FUNCTIONS[name]})
    for point in POINTS:
        exact = by_mpmath(kernel, point)
        for key, value in run_printed(kernel, point).items():
            assert value == pytest.approx(float(exact[key]), rel=1e-13, abs=1e-13), key


def test_freezing_is_deterministic_and_counts_operations():
    loss = LOSSES["softmax rows of three"]
    assert staged_kernel(loss) == staged_kernel(loss)
    assert make_kernel({"value": x[0] * x[1] + 2}).operation_count == 2
    assert make_kernel({"value": x[0] * x[1] + 2}).input_names == {"x0", "x1"}
