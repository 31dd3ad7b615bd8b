"""Interval arithmetic and generated bounds, run as plain Python: enclosures, and what branch and bound drops."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest
import sympy as sp

from saddleforge.derive.calculus.functions import Sigmoid, SoftmaxEntry, Softplus
from saddleforge.derive.emit.kernel import make_kernel
from saddleforge.derive.emit.printers.interval import kernel_body_lines
from saddleforge.derive.emit.writer import _jinja_environment

COUNTS = {1: 30, 2: 5}  # random polynomials, by fields
Interval = tuple[float, float]


@pytest.fixture
def intervals(loops: Any) -> Any:
    return loops["intervals"]


def bounds(fields: int) -> str:
    """The templates, without expressions of a model."""
    names = [f"x_0_{a}" for a in range(fields)]
    pairs = [(i, j) for i in range(fields) for j in range(i, fields)]
    results = ["value", *[f"d_{i}" for i in range(fields)], *[f"h_{i}_{j}" for i, j in pairs]]
    context = {"header": "", "D": fields, "x_names": names, "results": results, "corners": False}
    context |= {name: [] for name in ("w_names", "p_names", "features", "used_constants", "lines")}
    templates = map(_jinja_environment().get_template, ("bounds.py.jinja", "bounds_loops.py.jinja"))
    return "\n".join(template.render(context) for template in templates)


def softmax(*logits: Any) -> Any:
    weights = [mp.exp(z - max(logits)) for z in logits]
    return weights[0] / mp.fsum(weights)


def mills(z: Any) -> Any:
    return mp.sqrt(2 / mp.pi) * mp.exp(-z * z / 2) / mp.erfc(-z / mp.sqrt(2))


SCALAR: dict[str, tuple[Callable[..., Any], float, float]] = {
    "exp": (mp.exp, -40, 40),
    "log": (mp.log, 1e-6, 50),
    "tanh": (mp.tanh, -20, 20),
    "cosh": (mp.cosh, -20, 20),
    "sinh": (mp.sinh, -20, 20),
    "sin": (mp.sin, -50, 50),
    "cos": (mp.cos, -50, 50),
    "atan": (mp.atan, -50, 50),
    "erf": (mp.erf, -5, 5),
    "erfc": (mp.erfc, -5, 20),
    "sqrt": (mp.sqrt, 0, 50),
    "magnitude": (abs, -5, 5),
    "sigmoid": (lambda z: 1 / (1 + mp.exp(-z)), -40, 40),
    "softplus": (lambda z: mp.log1p(mp.exp(z)), -30, 30),
    "asinh": (mp.asinh, -50, 50),
    "atanh": (mp.atanh, -0.999, 0.999),
    "tan": (mp.tan, -1.5, 1.5),
    "log_softplus": (lambda z: mp.log(mp.log1p(mp.exp(z))), -60, 60),
    "sigmoid_over_softplus": (lambda z: 1 / ((1 + mp.exp(-z)) * mp.log1p(mp.exp(z))), -60, 60),
    "log_normal_cdf": (lambda z: mp.log(mp.erfc(-z / mp.sqrt(2)) / 2), -60, 8),
    "inverse_mills_ratio": (mills, -60, 8),
    "truncated_normal_mean": (lambda z: z + mills(z), -60, 8),
    "log_gumbel_cdf": (lambda z: mp.log(-mp.expm1(-mp.exp(z))), -60, 4),
    "inverse": (lambda z: 1 / z, 0.01, 30),
    "minus": (lambda z: -z, -5, 5),
    "sign": (lambda z: mp.mpf(1 if z >= 0 else -1), -1, 1),
    "heaviside": (lambda z: mp.mpf(1 if z > 0 else 0 if z < 0 else 0.5), -1, 1),
}


def draw(generator: random.Random, low: float, high: float) -> tuple[Interval, list[float]]:
    """An interval, thin in half of the cases, and points of it, its ends included."""
    middle = generator.uniform(low, high)
    half = generator.choice([0.0, 10 ** generator.uniform(-9, 0.5)])
    a, b = max(low, middle - half), min(high, middle + half)
    return (a, b), [a, b, *[min(max(generator.uniform(a, b), a), b) for _ in range(6)]]


@pytest.mark.parametrize("name", SCALAR)
def test_every_function_encloses_its_values(name, intervals):
    """Against 40 digits and without any tolerance."""
    function, low, high = SCALAR[name]
    enclosed = getattr(intervals, name)
    generator = random.Random(name)
    with mp.workdps(40):
        for _ in range(60):
            interval, points = draw(generator, low, high)
            lower, upper = enclosed(interval)
            for point in points:
                assert lower <= function(mp.mpf(point)) <= upper, (name, interval, point)


@pytest.mark.parametrize("n", [2, 3, 4, 6, 7, 12])
def test_powers_enclose_their_values(n, intervals):
    generator = random.Random(n)
    with mp.workdps(60):
        for _ in range(60):
            interval, points = draw(generator, -3, 3)
            lower, upper = intervals.power(interval, n)
            assert all(lower <= mp.mpf(point) ** n <= upper for point in points)


@pytest.mark.parametrize("name", ["plus", "times", "greatest", "least", "raised", "interval_hull"])
def test_functions_of_two_enclose_their_values(name, intervals):
    function = {
        "plus": lambda a, b: a + b,
        "times": lambda a, b: a * b,
        "greatest": max,
        "least": min,
        "raised": lambda a, b: a**b,
        "interval_hull": lambda a, b: a,
    }[name]
    generator = random.Random(name)
    with mp.workdps(40):
        for _ in range(60):
            one, points = draw(generator, 0.01 if name == "raised" else -4, 4)
            other, others = draw(generator, -4, 4)
            lower, upper = getattr(intervals, name)(one, other)
            for a, b in zip(points, others, strict=True):
                assert lower <= function(mp.mpf(a), mp.mpf(b)) <= upper


def test_rows_of_softmax_enclose_their_values(intervals):
    generator = random.Random(1)
    with mp.workdps(40):
        for scale in (1, 5, 20, 200):
            for _ in range(100):
                drawn = [draw(generator, -scale, scale) for _ in range(3)]
                rows = intervals.softmax(*[interval for interval, _ in drawn])
                for n in range(8):
                    logits = [mp.mpf(points[n]) for _, points in drawn]
                    for i, (lower, upper) in enumerate(rows):
                        assert lower <= softmax(logits[i], *logits[:i], *logits[i + 1 :]) <= upper


@pytest.mark.parametrize("n", [1, 2, 3])
def test_slopes_of_the_complementary_log_log_enclose_their_values(n, intervals):
    generator = random.Random(n)
    with mp.workdps(60):
        for _ in range(60):
            interval, points = draw(generator, -50, 9)
            lower, upper = intervals.gumbel_ratio((float(n),) * 2, interval)
            for point in points:
                assert lower <= mp.exp(n * mp.mpf(point)) / mp.expm1(mp.exp(mp.mpf(point))) <= upper, (interval, point)


def test_logarithms_of_sums_enclose_their_values(intervals):
    generator = random.Random(2)
    with mp.workdps(60):
        for scale in (1, 20, 200):
            for _ in range(50):
                drawn = [draw(generator, -scale, scale) for _ in range(3)]
                lower, upper = intervals.log_sum_exp(*[interval for interval, _ in drawn])
                for n in range(8):
                    value = mp.log(mp.fsum(mp.exp(mp.mpf(points[n])) for _, points in drawn))
                    assert lower <= value <= upper


def test_an_undefined_interval_operation_returns_the_whole_line(intervals):
    everything = (-math.inf, math.inf)
    assert intervals.times((0.0, 1.0), everything) == everything
    assert intervals.inverse((-1.0, 1.0)) == everything
    assert intervals.plus(everything, everything) == everything
    assert intervals.log((-2.0, -1.0)) == everything


def test_an_undecided_condition_takes_both_pieces(intervals):
    m = intervals
    one, other = (1.0, 2.0), (-3.0, -2.0)
    assert m.where(m.gt((2.0, 3.0), (0.0, 1.0)), one, other) == one
    assert m.where(m.gt((-1.0, 0.0), (0.5, 1.0)), one, other) == other
    assert m.where(m.gt((0.0, 3.0), (1.0, 1.0)), one, other) == (-3.0, 2.0)
    undecided, sure, never = (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)
    assert (m.both(undecided, sure), m.both(undecided, never), m.either(undecided, sure)) == (undecided, never, sure)
    for name, truth in (("lt", (1.0, 1.0)), ("le", (1.0, 1.0)), ("gt", never), ("ge", never)):
        assert getattr(m, name)((0.0, 1.0), (1.5, 2.0)) == truth
        assert getattr(m, name)((0.0, 1.6), (1.5, 2.0)) == undecided


@pytest.mark.parametrize(
    "expression",
    [
        "(x - 1)**2/2 + 3*sin(2*x) + exp(-x**2)",
        "Piecewise((x**2/2, x < 1), (x - 1/2, True)) + Abs(x)**3/7",
        "Max(x, 0)**2 - x/(2 + x**2) + cosh(x)/5",
        "Sigmoid(3*x)*(1 - Sigmoid(3*x)) + Softplus(x - 1)",
        "SoftmaxEntry(1, x, 2*x, 1 - x)**2 - x",
    ],
)
def test_printed_kernels_enclose_the_expression(expression, intervals):
    """From SymPy through the printer, on boxes of all widths."""
    x = sp.Symbol("x", real=True)
    names = {"x": x, "Sigmoid": Sigmoid, "Softplus": Softplus, "SoftmaxEntry": SoftmaxEntry}
    truth = sp.sympify(expression, locals=names)
    kernel = make_kernel({"value": truth})
    space: dict[str, Any] = {"intervals": intervals}
    exec("def run(x):\n    " + "\n    ".join(kernel_body_lines(kernel)) + "\n    return value\n", space)
    generator = random.Random(expression)
    for _ in range(15):
        interval, points = draw(generator, -3, 3)
        lower, upper = space["run"](interval)
        for point in points[:4]:
            assert lower <= truth.subs(x, sp.Float(point, 40)).evalf(30) <= upper


# Branch and bound, on polynomials whose minima are known


def enclosing(coefficients: np.ndarray, m: Any) -> Callable[..., None]:
    """An `enclose` of sum_i c[i, n] x_i^n + c_mixed x_0 x_1, term by term."""

    def polynomial(row: np.ndarray, x: Interval, order: int) -> Interval:
        total = (0.0, 0.0)
        for n in range(order, len(row)):
            factor = float(row[n]) * math.perm(n, order)
            power = m.power(x, n - order) if n > order else (1.0, 1.0)
            total = m.plus(total, m.times((factor, factor), power))
        return total

    def enclose(low: Any, high: Any, omega: Any, precision: Any, known: Any, c: Any, out: np.ndarray) -> None:
        boxes = [(float(a), float(b)) for a, b in zip(low, high, strict=True)]
        D, mixed = len(boxes), (float(c), float(c))
        value = (0.0, 0.0)
        for row, box in zip(coefficients, boxes, strict=True):
            value = m.plus(value, polynomial(row, box, 0))
        if D == 2:
            value = m.plus(value, m.times(mixed, m.times(*boxes)))
        out[0] = value
        for i, (row, box) in enumerate(zip(coefficients, boxes, strict=True)):
            slope = polynomial(row, box, 1)
            out[1 + i] = m.plus(slope, m.times(mixed, boxes[1 - i])) if D == 2 else slope
        second = [polynomial(row, box, 2) for row, box in zip(coefficients, boxes, strict=True)]
        out[1 + D :] = second if D == 1 else [second[0], mixed, second[1]]

    return enclose


@pytest.mark.parametrize("fields", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_only_the_global_minimum_is_proved(fields, plain):
    """Random quartics, brute force on a fine grid: the lowest point is proved, and any other lacks what it lacks."""
    space = plain(bounds(fields))
    generator = np.random.default_rng(fields)
    proved = 0
    for _ in range(COUNTS[fields]):
        coefficients = generator.standard_normal((fields, 5))
        coefficients[:, 4] = 0.1 + np.abs(coefficients[:, 4])
        mixed = 0.5 * generator.standard_normal() * (fields - 1)
        grid = np.linspace(-8, 8, 4001 if fields == 1 else 401)
        axes = np.stack(np.meshgrid(*[grid] * fields, indexing="ij"), axis=-1).reshape(-1, fields)

        def of(x: np.ndarray, coefficients=coefficients, mixed=mixed) -> np.ndarray:
            powers = sum(coefficients[i, n] * x[..., i] ** n for i in range(fields) for n in range(5))
            return powers + mixed * np.prod(x, axis=-1) * (fields > 1)

        values = of(axes)
        # A constant makes the lowest value 1, as that of a loss: the box around omega = 0 then holds every minimum.
        coefficients[0, 0] += 1 - values.min()
        space["enclose"] = enclosing(coefficients, space["intervals"])
        lowest = float(of(descended(of, axes[values.argmin()])))
        places = [axes[values.argmin()], *axes[generator.integers(0, len(axes), 6)]]
        for place in places:
            best = descended(of, place)
            rows = np.array([of(best)])
            spread = np.full(fields, 12.0)
            arguments = (np.zeros((1, fields)), None, spread, [None], mixed, best[None], rows, 1e-6, 4000)
            out = space["shortfalls"](*arguments)
            excess = float(of(best) - lowest)
            if excess > 1e-4:
                assert out[0, 0] >= excess * (1 - 1e-3) - 1e-5
            elif out[0, 0] == 0:
                proved += 1
    assert proved > COUNTS[fields] / 2


def descended(of: Callable[[np.ndarray], Any], start: np.ndarray) -> np.ndarray:
    from scipy.optimize import minimize

    return minimize(of, start, method="BFGS", options={"gtol": 1e-10}).x
