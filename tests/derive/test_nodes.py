"""Names of entries, the order in which kernels are printed, and what is computed at a node beside the loss."""

import math

import mpmath as mp
import pytest
import sympy as sp

from saddleforge.derive.authoring.parameters import Structure
from saddleforge.derive.emit.kernel import Entry, Kernel, entries, freeze, upper_entries
from saddleforge.derive.emit.printers import mpmath as mpmath_printer
from saddleforge.derive.emit.printers import numba as numba_printer
from saddleforge.derive.emit.sides import nodes

x = sp.symbols("x0:2", real=True)


def test_a_name_of_an_entry_knows_the_array_and_the_place():
    entry = Entry("V_hat", 1, 0)
    assert (entry, entry.array, entry.place, entry.index) == ("V_hat_1_0", "V_hat", (1, 0), "1, 0")
    assert entry.of("d_V_hat") == "d_V_hat_1_0"
    assert entry.symbol == sp.Symbol("V_hat_1_0", real=True)
    assert entries("q", 2, 1) == ["q_0_0", "q_1_0"]
    assert upper_entries("p", 1, 2) == ["p_0_0_0", "p_0_0_1", "p_0_1_1"]
    kernel = freeze({Entry("d", 2): x[0] ** 2})
    assert [name.place for name, _ in kernel.results] == [(2,)]


def test_every_statement_stands_once_before_the_first_result_that_needs_it():
    kernel = nodes.scores(Structure(2, 2, 1, 1))
    printed = [statement for statements, _, _ in kernel.groups for statement in statements]
    assert sorted(printed, key=kernel.statements.index) == list(kernel.statements)
    assert len(set(printed)) == len(printed)
    assert [name for _, name, _ in kernel.groups] == [name for name, _ in kernel.results]


def test_printed_code_says_who_built_it_and_what_is_built():
    kernel = nodes.field_means(Structure(2, 1, 1, 1))
    assert numba_printer.body(kernel)[0] == "# sides/nodes.py:field_means"
    assert freeze({"value": x[0]}).builder == ""
    shared = freeze(
        {"first": sp.exp(x[0]), "second": sp.exp(x[0]) * x[1], "third": sp.exp(x[1]) + sp.sin(sp.exp(x[1]))}
    )
    assert numba_printer.body(shared) == [
        "# -> first",
        "t0 = math.exp(x0)",
        "first = t0",
        "second = t0 * x1",
        "# -> third",
        "t1 = math.exp(x1)",
        "third = t1 + math.sin(t1)",
    ]


@pytest.mark.parametrize("structure", [Structure(1, 1, 1, 1), Structure(1, 2, 1, 1)], ids=["one field", "two columns"])
def test_scores_are_the_derivatives_of_the_weight(structure):
    """Of N(omega; m + b (Y - m*), C) det(1 + V H) at omega = X + V grad loss, by differences at 40 digits."""
    L, s = structure.tokens, structure.student_rank
    columns = nodes.law(structure)

    def point(moved: str = "", by: float = 0) -> dict[str, mp.mpf]:
        value = {name: mp.mpf(n % 7 - 3) / 10 + mp.mpf(n) / 90 for n, name in enumerate(columns)}
        value |= {name: 2 + value[name] for name in columns if name.array in "CV" and name.place[1] == name.place[2]}
        value[moved] = value.get(moved, 0) + by
        for n, name in enumerate([*entries("x", L, s), *entries("d", L * s), *entries("dy", L, 1)]):
            value[name] = mp.mpf(n % 5 - 2) / 7 + mp.mpf(1) / 9
        for i in range(L * s):
            value |= {Entry("h", i, j): mp.mpf((i + 2 * j) % 4) / 6 + (i == j) for j in range(i, L * s)}
        value |= {name.of("v"): value[name] for name in columns if name.array == "V"}
        norm = mp.mpf(1)
        for l in range(L):
            C = mp.matrix(s, s)
            for a in range(s):
                value[Entry("mu", l, a)] = (
                    value[Entry("m", l, a)] + value[Entry("b", l, a, 0)] * value[Entry("dy", l, 0)]
                )
                for b in range(s):
                    C[a, b] = value[Entry("C", l, min(a, b), max(a, b))]
            r = C**-1
            norm /= mp.sqrt(mp.det(C))
            value |= {name: r[name.place[1], name.place[2]] for name in upper_entries("r", L, s) if name.place[0] == l}
        return value | {"norm": norm, "copies": mp.mpf(3), "density": mp.mpf(0)}

    polynomial = nodes.determinant(structure)
    slopes = {v.of("det"): sp.diff(polynomial, v.symbol) for v in upper_entries("v", L, s)}
    kernels = [make(structure) for make in (nodes.critical_point, nodes.exponent, nodes.exponent_slopes)]
    kernels += [freeze({"determinant": polynomial, **slopes}), nodes.weight()]

    def evaluated(value: dict[str, mp.mpf]) -> dict[str, mp.mpf]:
        for kernel in kernels:
            value = value | mpmath_printer.evaluate(kernel, value)
        return value

    with mp.workdps(40):
        step = mp.mpf(10) ** -12
        kernel = nodes.scores(structure)
        plain = Kernel(kernel.statements, tuple((f"s{n}", node) for n, (_, node) in enumerate(kernel.results)))
        scores = mpmath_printer.evaluate(plain, evaluated(point()))
        for n, name in enumerate(columns):
            up, down = (evaluated(point(name, by))["weight"] for by in (step, -step))
            assert mp.almosteq(scores[f"s{n}"], (up - down) / (2 * step), 1e-18, 1e-18), name


def test_the_smoothed_step_keeps_the_digits_of_a_small_share():
    kernel = nodes.share_of_one(Structure(1, 1, 1, 1))["share"]
    value: dict = {"math": math, "difference": -6.0, "width": 1.0}
    exec("\n".join(numba_printer.body(kernel)), value)
    with mp.workdps(30):
        z = mp.mpf(-6)
        bell = mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi)
        share = mp.erfc(-z / mp.sqrt(2)) / 2 + bell * z * (7 - z * z) / 8
        slope = bell * (15 - 10 * z * z + z**4) / 8
    assert value["share"] == pytest.approx(float(share), rel=1e-13)
    assert value["share_slope"] == pytest.approx(float(slope), rel=1e-13)
