"""Names of entries, the order in which kernels are printed, and what is computed at a node next to the loss."""

import math
from functools import cache

import mpmath as mp
import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.authoring.parameters import Structure
from saddleforge.derive.calculus.averages import OrderParameterSymbols
from saddleforge.derive.calculus.chain import chain_rule_derivatives
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.emit.kernel import (
    ArrayEntryName,
    Kernel,
    array_entries,
    definition_location,
    make_kernel,
    model_function_location,
    upper_triangle_entries,
)
from saddleforge.derive.emit.printers import mpmath as mpmath_printer
from saddleforge.derive.emit.printers import numba as numba_printer
from saddleforge.derive.emit.sources import nodes
from saddleforge.derive.theory.saddle_point import saddle_point

x = sp.symbols("x0:2", real=True)


def test_a_name_of_an_entry_knows_the_array_and_the_place():
    entry = ArrayEntryName("V_hat", 1, 0)
    assert (entry, entry.array, entry.place, entry.subscript) == ("V_hat_1_0", "V_hat", (1, 0), "1, 0")
    assert entry.matching_entry("d_V_hat") == "d_V_hat_1_0"
    assert entry.symbol == sp.Symbol("V_hat_1_0", real=True)
    assert array_entries("q", 2, 1) == ["q_0_0", "q_1_0"]
    assert upper_triangle_entries("p", 1, 2) == ["p_0_0_0", "p_0_0_1", "p_0_1_1"]
    kernel = make_kernel({ArrayEntryName("d", 2): x[0] ** 2})
    assert [name.place for name, _ in kernel.results] == [(2,)]


def test_every_statement_stands_once_before_the_first_result_that_needs_it():
    kernel = nodes.critical_weight_derivatives_kernel(Structure(2, 2, 1, 1))
    printed = [statement for statements, _, _ in kernel.results_with_needed_statements for statement in statements]
    assert sorted(printed, key=kernel.statements.index) == list(kernel.statements)
    assert len(set(printed)) == len(printed)
    assert [name for _, name, _ in kernel.results_with_needed_statements] == [name for name, _ in kernel.results]


def test_printed_code_says_who_built_it_and_what_is_built():
    kernel = nodes.conditional_field_mean_kernel(Structure(2, 1, 1, 1))
    assert (
        numba_printer.kernel_body_lines(kernel)[0]
        == "# derive/emit/sources/nodes.py:conditional_field_mean_kernel, docs/theory.md (3.14)"
    )
    assert make_kernel({"value": x[0]}).builder == ""
    shared = make_kernel(
        {"first": sp.exp(x[0]), "second": sp.exp(x[0]) * x[1], "third": sp.exp(x[1]) + sp.sin(sp.exp(x[1]))}
    )
    assert numba_printer.kernel_body_lines(shared) == [
        "# -> first",
        "t0 = math.exp(x0)",
        "first = t0",
        "second = t0 * x1",
        "# -> third",
        "t1 = math.exp(x1)",
        "third = t1 + math.sin(t1)",
    ]


def test_a_stamp_names_formulas_where_they_are_and_a_users_model_by_its_name():
    assert definition_location(chain_rule_derivatives) == "derive/calculus/chain.py:chain_rule_derivatives"
    assert (
        definition_location(OrderParameterSymbols.effective_prior_parameters)
        == "derive/calculus/averages.py:OrderParameterSymbols.effective_prior_parameters"
    )
    assert definition_location(saddle_point) == "derive/theory/saddle_point.py:saddle_point"  # cached
    hinge = catalogue_model("hinge")
    assert model_function_location(hinge.at()) == "derive/models/hinge.py:hinge"

    @sf.model()
    def mine(X, Y):
        return sf.half_square(Y[0, 0] - X[0, 0])

    assert model_function_location(mine.at()) == "model mine"
    kernel = make_kernel(
        {"value": x[0]}, formulas=[chain_rule_derivatives, mine.loss, model_function_location(mine.at())]
    )
    assert kernel.formulas == ("derive/calculus/chain.py:chain_rule_derivatives", "model mine")


def test_a_definition_gives_its_name_to_the_temporary_that_it_is():
    """The temporary, used twice, is the definition s0; another definition of the same value keeps a name of its own."""
    shared = x[0] * x[1]
    s0, s1 = sp.symbols("s0 s1", real=True)
    kernel = make_kernel({"value": s0 + s1 + sp.exp(shared)}, {"s0": shared, "s1": shared})
    assert numba_printer.kernel_body_lines(kernel) == [
        "# -> value",
        "s0 = x0 * x1",
        "s1 = s0",
        "value = s0 + s1 + math.exp(s0)",
    ]


@pytest.mark.parametrize("structure", [Structure(1, 1, 1, 1), Structure(1, 2, 1, 1)], ids=["one field", "two columns"])
def test_scores_are_the_derivatives_of_the_weight(structure):
    """Of N(omega; m + b (Y - m*), C) det(1 + V H) at omega = X + V grad loss, by differences at 40 digits."""
    L, s = structure.tokens, structure.student_rank
    columns = nodes.parameters_of_field_law(structure)

    def point(moved: str = "", by: float = 0) -> dict[str, mp.mpf]:
        value = {name: mp.mpf(n % 7 - 3) / 10 + mp.mpf(n) / 90 for n, name in enumerate(columns)}
        value |= {name: 2 + value[name] for name in columns if name.array in "CV" and name.place[1] == name.place[2]}
        value[moved] = value.get(moved, 0) + by
        for n, name in enumerate([*array_entries("x", L, s), *array_entries("d", L * s), *array_entries("dy", L, 1)]):
            value[name] = mp.mpf(n % 5 - 2) / 7 + mp.mpf(1) / 9
        for i in range(L * s):
            value |= {ArrayEntryName("h", i, j): mp.mpf((i + 2 * j) % 4) / 6 + (i == j) for j in range(i, L * s)}
        value |= {name.matching_entry("v"): value[name] for name in columns if name.array == "V"}
        norm = mp.mpf(1)
        for l in range(L):
            C = mp.matrix(s, s)
            for a in range(s):
                value[ArrayEntryName("mu", l, a)] = (
                    value[ArrayEntryName("m", l, a)]
                    + value[ArrayEntryName("b", l, a, 0)] * value[ArrayEntryName("dy", l, 0)]
                )
                for b in range(s):
                    C[a, b] = value[ArrayEntryName("C", l, min(a, b), max(a, b))]
            r = C**-1
            norm /= mp.sqrt(mp.det(C))
            value |= {
                name: r[name.place[1], name.place[2]]
                for name in upper_triangle_entries("r", L, s)
                if name.place[0] == l
            }
        return value | {"norm": norm, "copies": mp.mpf(3), "density": mp.mpf(0)}

    polynomial = nodes.response_determinant(structure)
    slopes = {v.matching_entry("det"): sp.diff(polynomial, v.symbol) for v in upper_triangle_entries("v", L, s)}
    kernels = [
        make(structure)
        for make in (
            nodes.field_of_critical_point_kernel,
            nodes.gaussian_exponent_kernel,
            nodes.gaussian_exponent_gradient_kernel,
        )
    ]
    kernels += [make_kernel({"determinant": polynomial, **slopes}), nodes.critical_point_weight_kernel()]

    def evaluated(value: dict[str, mp.mpf]) -> dict[str, mp.mpf]:
        for kernel in kernels:
            value = value | mpmath_printer.evaluate_kernel(kernel, value)
        return value

    with mp.workdps(40):
        step = mp.mpf(10) ** -12
        kernel = nodes.critical_weight_derivatives_kernel(structure)
        plain = Kernel(kernel.statements, tuple((f"s{n}", node) for n, (_, node) in enumerate(kernel.results)))
        scores = mpmath_printer.evaluate_kernel(plain, evaluated(point()))
        for n, name in enumerate(columns):
            up, down = (evaluated(point(name, by))["weight"] for by in (step, -step))
            assert mp.almosteq(scores[f"s{n}"], (up - down) / (2 * step), 1e-18, 1e-18), name


def test_the_smoothed_step_keeps_the_digits_of_a_small_share():
    found = step_between_minima(-6.0, 1.0)
    with mp.workdps(30):
        z = mp.mpf(-6)
        bell = mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi)
        share = mp.erfc(-z / mp.sqrt(2)) / 2 + bell * z * (7 - z * z) / 8
        slope = bell * (15 - 10 * z * z + z**4) / 8
    assert found == pytest.approx((float(share), float(slope)), rel=1e-13)


def run(kernel: Kernel, names: dict) -> dict:
    """What is printed of a kernel, run as plain Python."""
    scope = {"math": math, **names}
    exec("\n".join(numba_printer.kernel_body_lines(kernel)), scope)
    return scope


def upper_named(array: str, matrix: np.ndarray) -> dict[str, float]:
    size = len(matrix)
    return {ArrayEntryName(array, i, j): float(matrix[i, j]) for i in range(size) for j in range(i, size)}


def blocks_named(array: str, blocks: np.ndarray) -> dict[str, float]:
    names = upper_triangle_entries(array, len(blocks), len(blocks[0]))
    return {name: float(blocks[name.place]) for name in names}


def positive(rng: np.random.Generator, tokens: int, student: int) -> tuple[np.ndarray, np.ndarray]:
    """A positive definite block a token, and the block diagonal matrix of them."""
    roots = rng.normal(size=(tokens, student, student))
    blocks = roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(student)
    whole = np.zeros((tokens * student, tokens * student))
    for l, block in enumerate(blocks):
        whole[l * student : (l + 1) * student, l * student : (l + 1) * student] = block
    return blocks, whole


def symmetric(rng: np.random.Generator, size: int) -> np.ndarray:
    matrix = rng.normal(size=(size, size))
    return matrix + matrix.T


SIZES = [(1, 1), (2, 1), (1, 3), (3, 2)]


@pytest.mark.parametrize(("tokens", "student"), SIZES)
def test_the_jacobian_of_the_proximal_map_solves_its_linear_system(tokens, student):
    """dg/domega = -(I + H V)^(-1) H, which solves (x - omega) V^(-1) + grad = 0 differentiated."""
    rng, size = np.random.default_rng(3), tokens * student
    hessian, (blocks, V) = symmetric(rng, size), positive(rng, tokens, student)
    arrays = {"work": np.empty((size, size)), "slopes": np.empty((size, size))}
    names = upper_named("h", hessian) | blocks_named("v", blocks) | arrays
    run(nodes.field_response_kernel(Structure(tokens, student, 1)), names)
    slopes = np.linalg.solve(arrays["work"], arrays["slopes"])
    moved = np.linalg.solve(np.linalg.inv(V) + hessian, np.linalg.inv(V))  # dx/domega
    assert np.linalg.det(arrays["work"]) == pytest.approx(np.linalg.det(np.eye(size) + hessian @ V), rel=1e-11)
    assert slopes == pytest.approx(np.linalg.inv(V) @ (moved - np.eye(size)), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize(("tokens", "student"), SIZES)
def test_the_field_answers_by_the_spread_of_the_boltzmann_law(tokens, student):
    rng, size = np.random.default_rng(4), tokens * student
    (blocks, P), (_, spread) = positive(rng, tokens, student), positive(rng, 1, size)
    out = np.empty((1, size, size))
    names = upper_named("spread", spread) | blocks_named("p", blocks) | {"slopes": out, "row": 0}
    run(nodes.thermal_response_kernel(Structure(tokens, student, 1)), names)
    assert out[0] == pytest.approx(P @ (spread @ P - np.eye(size)), rel=1e-11, abs=1e-12)


@cache
def step_kernel() -> Kernel:
    return nodes.kernels_selecting_lower_minimum(Structure(1, 1, 1))["share"]


def step_between_minima(difference: float, width: float) -> tuple[float, float]:
    scope = run(step_kernel(), {"difference": difference, "width": width})
    return scope["share"], scope["share_slope"]


def test_the_step_between_two_minima_has_its_own_slope_and_is_odd():
    width, h = 0.7, 1e-5
    assert step_between_minima(0.0, width)[0] == 0.5
    for z in (-3.1, -0.4, 0.9, 2.5):
        share, slope = step_between_minima(z * width, width)
        above, below = (step_between_minima((z + side) * width, width)[0] for side in (h, -h))
        assert slope == pytest.approx((above - below) / (2 * h * width), rel=1e-7)
        assert share + step_between_minima(-z * width, width)[0] == pytest.approx(1, abs=1e-14)
    assert step_between_minima(7 * width, width) == pytest.approx((1, 0), abs=1e-8)


@pytest.mark.parametrize(("tokens", "student"), SIZES)
def test_the_step_is_as_wide_as_blurs_in_x_are_in_the_difference(tokens, student):
    """The difference has slope -jump in omega, and omega = X + V grad loss the slope I + V H in X."""
    rng, size = np.random.default_rng(5), tokens * student
    hessian, (blocks, V) = symmetric(rng, size), positive(rng, tokens, student)
    jump, blur = rng.normal(size=size), rng.uniform(0.1, 1, size)
    names = upper_named("h", hessian) | blocks_named("v", blocks)
    names |= dict(zip(array_entries("jump", tokens, student), jump, strict=True))
    names |= dict(zip(array_entries("blur", size), blur, strict=True))
    width = run(nodes.kernels_selecting_lower_minimum(Structure(tokens, student, 1))["width"], names)["width"]
    assert width == pytest.approx(np.linalg.norm(jump @ (np.eye(size) + V @ hessian) * blur), rel=1e-11)


def test_the_step_is_smoothed_by_a_kernel_of_sixth_order():
    """Its slope integrates to 1, and its moments 2 and 4 vanish but for what is cut beyond seven widths."""
    points, weights = np.polynomial.legendre.leggauss(200)
    z = 7 * points
    slope = np.array([step_between_minima(float(d), 1.0)[1] for d in z])
    moments = [float(7 * np.sum(weights * slope * z**n)) for n in (0, 2, 4, 6)]
    assert moments[:3] == pytest.approx([1, 0, 0], abs=1e-5)
    assert moments[3] == pytest.approx(15, rel=1e-4)
