"""Phi in components, context by context, is the matrix form: its derivatives are the matrix equations' components."""

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixElement

from saddleforge.derive.authoring.parameters import Structure
from saddleforge.derive.calculus.averages import (
    CHANNEL,
    CONTEXTS,
    COORDINATE,
    Average,
    MatrixAverage,
    differentiate_averages,
)
from saddleforge.derive.theory.free_entropy import free_entropy

STRUCTURES = [Structure(1, 1, 1), Structure(2, 1, 1), Structure(2, 2, 1), Structure(3, 1, 1), Structure(2, 1, 1, 2)]


def random_values(structure, generator):
    """Exact random values of every matrix of every context, symmetric where the matrix is, and of the coordinate."""
    s, t = structure.student_rank, structure.teacher_rank
    shapes = {"q": (s, s), "V": (s, s), "m": (s, 1), "theta": (s, t)}
    values = {}

    def matrix(rows, columns, symmetric):
        entries = [[sp.Rational(int(generator.integers(1, 20)), 10) for _ in range(columns)] for _ in range(rows)]
        made = sp.Matrix(entries)
        return made + made.T + 3 * sp.eye(rows) if symmetric else made

    for l in range(structure.tokens):
        for k in range(structure.clusters):
            for name, shape in shapes.items():
                for hat in ("", "_hat"):
                    values[f"{name}{hat}_{l}{k}"] = matrix(*shape, name in ("q", "V"))
            values[f"gamma_{l}{k}"] = sp.Rational(int(generator.integers(1, 20)), 10)
            values[f"tau_{l}{k}"] = sp.Rational(int(generator.integers(-20, 20)), 10)
    values["pi"] = matrix(t, 1, False)
    values["Lambda"] = sp.diag(*[sp.Rational(1, 3)] * s)
    return values


def entry(values, element):
    return values[element.parent.name][element.i, element.j]


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda structure: structure.folder_name)
def test_derivatives_of_the_component_form_agree_with_the_equations(structure, numeric):
    phi = free_entropy(structure.student_rank, structure.teacher_rank)
    p = phi.symbols
    values = random_values(structure, np.random.default_rng(3))
    whole = phi.free_entropy_in_components(structure)
    averages = {a for a in whole.atoms(Average) if a.kind == COORDINATE}
    explicit = whole.xreplace({a: a.summand for a in averages})
    explicit = explicit.xreplace({a: sp.Integer(0) for a in explicit.atoms(Average)})
    elements = sorted(explicit.atoms(MatrixElement), key=str)
    scalars = {symbol: values[symbol.name] for symbol in explicit.atoms(sp.Symbol) if symbol.name in values}

    letters = sp.symbols(f"e0:{len(elements)}")
    in_letters = explicit.xreplace(scalars).xreplace(dict(zip(elements, letters, strict=True)))
    value = sp.lambdify(letters, in_letters, "mpmath", cse=True)
    with mp.workdps(40):
        point = [mp.mpf(int(entry(values, e).p)) / int(entry(values, e).q) for e in elements]

    contexts = [(l, k) for l in range(structure.tokens) for k in range(structure.clusters)]
    array = {name: np.array(value, dtype=float) for name, value in values.items()}
    G = sum(array[f"gamma_{l}{k}"] * array[f"V_hat_{l}{k}"] for l, k in contexts)
    Q = sum(array[f"gamma_{l}{k}"] * array[f"q_hat_{l}{k}"] for l, k in contexts)
    B = sum(
        array[f"tau_{l}{k}"] * array[f"m_hat_{l}{k}"]
        + array[f"gamma_{l}{k}"] * array[f"theta_hat_{l}{k}"] @ array["pi"]
        for l, k in contexts
    )
    parts = [a for a in phi.expression.atoms(Average) if a.kind in (CONTEXTS, COORDINATE)]
    l, k = contexts[-1]
    for variable in (*p.overlaps, *p.conjugate_order_parameters):
        known = {z: array[f"{z.name}_{l}{k}"] for z in (*p.overlaps, *p.conjugate_order_parameters)}
        known |= {p.G: G, p.Q: Q, p.B: B, p.Lambda: array["Lambda"], p.pi: array["pi"]}
        known |= {p.gamma: float(values[f"gamma_{l}{k}"]), p.tau: float(values[f"tau_{l}{k}"])}
        by_matrices = np.zeros([int(n) for n in variable.shape])
        for part in parts:
            gradient = differentiate_averages(part, variable, p)
            gradient = gradient.xreplace({a: a.summand for a in gradient.atoms(MatrixAverage)})
            by_matrices = by_matrices + numeric(gradient, known)
        for (i, j), expected in np.ndenumerate(by_matrices):
            position = elements.index(sp.MatrixSymbol(f"{variable.name}_{l}{k}", *variable.shape)[i, j])
            with mp.workdps(40):
                moved = [[*point] for _ in range(2)]
                moved[0][position] += mp.mpf(10) ** -12
                moved[1][position] -= mp.mpf(10) ** -12
                derivative = float((value(*moved[0]) - value(*moved[1])) / (2 * mp.mpf(10) ** -12))
            assert derivative == pytest.approx(expected, rel=1e-10, abs=1e-12), (variable, i, j)


def test_every_context_has_its_own_matrices_and_the_channel_appears_once():
    form = free_entropy(1, 1).free_entropy_in_components(Structure(2, 1, 1, 2))
    names = {e.parent.name for e in form.atoms(MatrixElement)}
    for name in ("q", "V", "m", "theta", "q_hat", "V_hat", "m_hat", "theta_hat"):
        assert {f"{name}_{l}{k}" for l in range(2) for k in range(2)} <= names
    assert len([a for a in form.atoms(Average) if a.kind == CHANNEL]) == 1


def test_a_free_entropy_knows_the_sizes_it_was_built_for():
    with pytest.raises(ValueError, match="derived for s = 1 and t = 1"):
        free_entropy(1, 1).free_entropy_in_components(Structure(2, 2, 1))
