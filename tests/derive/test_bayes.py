"""Bayes-optimal inference: the derivation's checks hold and see wrong terms; channels are changes of coordinates."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.calculus.averages import Average
from saddleforge.derive.calculus.functions import SoftmaxEntry
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.replicas.algebra.objects import n
from saddleforge.derive.replicas.bayes_optimal import Z_out, Z_row, bayes_optimal_derivation
from saddleforge.derive.theory.bayes import (
    gaussian_component_of_teacher_row,
    gaussian_field_weight,
    gaussian_log_integral,
)
from saddleforge.problems.model_file import execute_model_file

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_check_of_the_derivation_holds():
    assert [(step.name, check) for step, check in bayes_optimal_derivation().check() if not check.passed] == []


def passes(number, name, change, test):
    """Whether a step with one result changed passes the named check."""
    step = bayes_optimal_derivation()[number]
    mutant = replace(step, after={**step.after, name: change(step.after[name])})
    (chosen,) = [t for t in mutant.tests if t.name == test]
    return chosen(mutant.before, mutant.after).passed


def without_sign(expression):
    """Traces with the other sign."""
    return expression.xreplace({trace: -trace for trace in expression.atoms(sp.Trace)})


@pytest.mark.parametrize(
    ("number", "name", "change", "seen"),
    [
        (1, "trace", lambda e: 2 * e.args[0] if not e.args else e.func(e.args[0], 2 * e.args[1]), "pairs"),
        (1, "trace", lambda e: e.xreplace({n: n - 1}), "pairs"),
        (1, "entropic", lambda e: e.xreplace({Z_row ** (n + 1): Z_row**n}), "one field for all rows"),
        (1, "row", without_sign, "one field for all rows"),
        (1, "energetic", lambda e: e.xreplace({Z_out ** (n + 1): Z_out**n}), "one field for all sentences"),
        (1, "variance", lambda e: 2 * e, "one field for all sentences"),
        (2, "free entropy", without_sign, "slope at n = 0"),
        (2, "free entropy", lambda e: e.xreplace({sp.log(Z_row): 2 * sp.log(Z_row)}), "slope at n = 0"),
        (2, "free entropy", lambda e: e.xreplace({sp.log(Z_out): sp.log(Z_out) / 2}), "slope at n = 0"),
        (2, "law of b", lambda e: 2 * e, "planted field"),
        (3, "gradient", lambda e: 2 * e, "gradient of Z log Z"),
        (3, "q_bayes", lambda e: 2 * e, "Gaussian rows"),
        (3, "q_hat_bayes", lambda e: 2 * e, "Gaussian outputs"),
    ],
)
def test_a_wrong_term_fails_a_named_check(number, name, change, seen):
    assert not passes(number, name, change, seen)


def test_a_gaussian_integral_is_that_of_quadrature():
    x, y = sp.symbols("x y", real=True)
    exponent = -(x**2) - sp.Rational(3, 4) * y**2 + x * y / 2 + x - 2 * y + 1
    own = float(sp.exp(gaussian_log_integral(exponent, [x, y])) * 2 * sp.pi)
    places = np.linspace(-12, 12, 241)  # the trapezoid rule, exact here to the last digit
    grid = sp.lambdify((x, y), sp.exp(exponent))(places[:, None], places)
    assert own == pytest.approx(grid.sum() * 0.01, rel=1e-12)


def test_a_quartic_exponent_is_refused():
    x = sp.Symbol("x", real=True)
    with pytest.raises(ValueError, match="not quadratic"):
        gaussian_log_integral(-(x**4), [x])


def test_posterior_means_are_gradients():
    row, gaussian = gaussian_component_of_teacher_row(2), gaussian_field_weight(2, 1)
    assert list(row.moment) == [sp.diff(row.log_integral, b) for b in row.b]
    step = gaussian.Y - gaussian.omega
    precision = sp.diag(*gaussian.precision)
    assert (sp.Matrix(gaussian.slope) - precision * step).expand().is_zero_matrix


# Channels


def channel(**changes):
    output = sf.Output(
        **{"fields": lambda y, sign: sign * y, "observed": {"y": "positive"}, "hidden": {"sign": (-1, 1)}} | changes
    )
    return sf.model(name="channel", output=output)(lambda X, Y: sf.half_square(Y[0] - X[0]))


def test_the_jacobian_is_that_of_the_change_of_coordinates():
    def both(u, v, sigma, e):
        return [[e * sp.exp((u + v) / 2), e * sigma * sp.exp((u - v) / 2)]]

    output = sf.Output(both, {"u": "real", "sigma": (-1, 1)}, {"v": "real", "e": (-1, 1)})
    model = sf.model(name="product", teacher=2, output=output)(lambda X, Y: sf.half_square(Y[0] * Y[1] - X[0]))
    at = model.at().output
    (u,) = [c.symbol for c in at.observed if c.name == "u"]
    signs = {c.symbol: 1 for c in (*at.observed, *at.hidden) if not c.is_continuous}
    assert sp.simplify(sp.exp(at.jacobian.subs(signs)) - sp.exp(u) / 2) == 0


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"observed": {"y": "negative"}}, "domain 'negative'; allowed are 'real', 'positive', 'angle' or a tuple of"),
        ({"fields": lambda sign: sign}, "contain 0 continuous coordinates"),
        ({"fields": lambda y, sign: [[y, sign]]}, r"fields returns shape \(1, 2\); .* = \(1, 1\) is expected"),
        ({"fields": lambda y, sign: sign * y + sp.Symbol("z")}, "uses z, which is not a field"),
        ({"observed": {"y": "positive", "x": "real"}}, "nothing depends on the observed coordinate 'x'|hold 1"),
        ({"fields": lambda y, sign: y**0 * sp.Integer(1)}, "contain 0 continuous"),
        ({"read": lambda Y: [2 * Y[0]]}, "does not return the coordinate 'y'"),
        ({"read": lambda Y: [Y[0], Y[0]]}, "read returns 2 values; one for each of the 1 observed"),
        ({"observed": {}, "hidden": {"y": "real", "sign": (1,)}}, "must declare at least one observed coordinate"),
    ],
)
def test_a_model_that_is_no_output_channel_is_refused(changes, sentence):
    with pytest.raises(sf.ModelError, match=sentence):
        channel(**changes)


def test_a_channel_is_part_of_the_physics():
    own, other = channel(), channel(hidden={"sign": (1, -1)})
    assert own.at().equations_digest() != other.at().equations_digest()


def test_attention_tells_the_teacher_up_to_a_sign_at_rank_one():
    model = catalogue_model("dot_product_attention")
    at = model.at()
    (sign,) = [c.symbol for c in at.output.hidden]
    flipped = at.output.fields.subs(sign, -sign)
    assert flipped == -at.output.fields
    assert model.at(model.structure(teacher_rank=3)).output is None


@pytest.mark.parametrize(
    ("name", "tokens", "jacobian"),
    [("dot_product_attention", 2, 4), ("dot_product_attention", 3, 1), ("linear_attention", 2, 1)],
)
def test_logits_of_two_columns_hold_nothing_that_is_hidden(name, tokens, jacobian):
    """y_l.(y_l - y_m), or y_l.y_m where there is no softmax; their rank in what is observed is all of it."""
    model = catalogue_model(name)
    output = model.at(model.structure(teacher_rank=2, tokens=tokens)).output
    gram = output.fields * output.fields.T
    if name == "dot_product_attention":
        gram = sp.Matrix(tokens, tokens, lambda l, m: gram[l, l] - gram[l, m])
    seen, hidden = ([c.symbol for c in group if c.is_continuous] for group in (output.observed, output.hidden))
    (side,) = [c.symbol for c in output.hidden if not c.is_continuous] or [sp.Symbol("none")]
    entries = sp.Matrix([sp.trigsimp(sp.expand(e)).subs(side**2, 1) for e in gram])
    assert not entries.has(*hidden, side)
    at = {s: sp.Rational(3 + 2 * i, 7) for i, s in enumerate(seen)}
    assert entries.jacobian(seen).subs(at).rank() == len(seen)
    length = next(s for s in seen if "length" in s.name)
    assert sp.simplify(sp.exp(output.jacobian.subs(side, 1)) - length / jacobian) == 0


def test_the_law_of_a_row_is_an_average():
    assert {a.kind for a in bayes_optimal_derivation()[2].after["free entropy"].atoms(Average)} == {
        "contexts",
        "coordinate",
        "row field",
        "output",
    }


@pytest.mark.parametrize("name", ["deep_attention", "three_layers"])
def test_the_jacobian_of_layers_is_that_of_differences(name):
    """Hidden fields stand for themselves; the rest follows from what is observed by matrices of the layers."""
    at = execute_model_file(EXAMPLES / f"{name}.py").at()
    symbols = [c.symbol for c in (*at.output.observed, *at.output.hidden) if c.is_continuous]
    others = sorted((at.output.fields.free_symbols | at.output.jacobian.free_symbols) - set(symbols), key=str)
    numbers = np.linspace(0.9, -0.7, len(symbols))
    rest = [1.3 if symbol.name == "c_" else -1.0 for symbol in others]  # the skip connection and the sign
    plain = {SoftmaxEntry: lambda i, *z: np.exp(z[i]) / sum(np.exp(each) for each in z)}
    modules = [{SoftmaxEntry.__name__: plain[SoftmaxEntry]}, "numpy"]
    fields_ = sp.lambdify([*symbols, *others], list(at.output.fields), modules)
    jacobian = sp.lambdify([*symbols, *others], at.output.jacobian, modules)
    step, columns = 1e-5, []
    for unit in np.eye(len(symbols)):
        ends = [np.array(fields_(*(numbers + way * step * unit), *rest), float) for way in (1, -1)]
        columns.append((ends[0] - ends[1]) / (2 * step))
    expected = np.linalg.slogdet(np.array(columns))[1]
    assert jacobian(*numbers, *rest) == pytest.approx(expected, abs=1e-7)
    assert (
        at.output.has_affine_observations
        and min(place for place in at.output.field_indices_of_hidden_coordinates[:-1]) >= 0
    )
