"""What losses and metrics read of the fields, found in their expressions and held against them at random points."""

import random

import pytest
import sympy as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import saddleforge as sf
from saddleforge.derive.authoring.language import token_variance_symbol
from saddleforge.derive.catalogue import SHIPPED, catalogue_model, structures_with_shipped_solver
from saddleforge.derive.report.text import report_text
from saddleforge.derive.theory.active_subspace import active_subspace, metric_active_subspace

SIGN, WHOLE = True, False
# Model and structure -> fields and Gaussian noises, z, y and whether these are read by sign; loss, then metric.
CATALOGUE = {
    ("attention_on_mixture", "l2_s1_t1_k2"): ((4, 2, (WHOLE, WHOLE)), (4, 2, (WHOLE, WHOLE))),
    ("amplitude_retrieval", "l1_s1_t1_k1"): ((2, 1, (WHOLE,)), (2, 1, (WHOLE,))),
    ("causal_attention", "l2_s1_t1_k1"): ((4, 2, (WHOLE, WHOLE)), (4, 2, (WHOLE, WHOLE))),
    ("committee_machine", "l1_s2_t2_k1"): ((5, 2, (WHOLE, WHOLE, WHOLE)), (5, 2, (WHOLE, WHOLE))),
    ("dot_product_attention", "l2_s1_t1_k1"): ((4, 2, (WHOLE, WHOLE)), (4, 2, (WHOLE, WHOLE))),
    ("dot_product_attention", "l2_s2_t1_k1"): ((6, 4, (WHOLE, WHOLE)), (6, 4, (WHOLE, WHOLE))),
    ("dot_product_attention", "l3_s1_t1_k1"): ((6, 3, (WHOLE, WHOLE, WHOLE)), (6, 3, (WHOLE, WHOLE, WHOLE))),
    ("elastic_net_regression", "l1_s1_t1_k1"): ((3, 1, ()), (3, 1, ())),
    ("hard_attention", "l2_s1_t1_k1"): ((4, 2, (WHOLE, WHOLE)), (4, 2, (WHOLE, WHOLE))),
    ("hinge", "l1_s1_t1_k1"): ((2, 1, (SIGN,)), (2, 1, (SIGN,))),
    ("huber_regression", "l1_s1_t1_k1"): ((3, 1, ()), (3, 1, ())),
    ("l1_regression", "l1_s1_t1_k1"): ((3, 1, ()), (3, 1, ())),
    ("lasso_regression", "l1_s1_t1_k1"): ((3, 1, ()), (3, 1, ())),
    ("linear_attention", "l2_s1_t1_k1"): ((4, 2, (WHOLE, WHOLE)), (4, 2, (WHOLE, WHOLE))),
    ("logistic_regression", "l1_s1_t1_k1"): ((2, 1, (SIGN,)), (2, 1, (SIGN,))),
    ("mixture_classification", "l1_s1_t1_k2"): ((2, 1, ()), (2, 1, ())),
    ("mixture_classification", "l1_s2_t1_k3"): ((3, 2, ()), (3, 2, ())),
    ("perceptron", "l1_s1_t1_k1"): ((2, 1, (SIGN,)), (2, 1, (SIGN,))),
    ("phase_retrieval", "l1_s1_t1_k1"): ((2, 1, (WHOLE,)), (2, 1, (WHOLE,))),
    ("quantile_regression", "l1_s1_t1_k1"): ((3, 1, ()), (3, 1, ())),
    ("ridge_regression", "l1_s1_t1_k1"): ((3, 1, ()), (3, 1, ())),
    ("squared_hinge", "l1_s1_t1_k1"): ((2, 1, (SIGN,)), (2, 1, (SIGN,))),
    ("tempered_attention", "l2_s1_t1_k1"): ((4, 2, (WHOLE, WHOLE)), (4, 2, (WHOLE, WHOLE))),
    ("tukey_regression", "l1_s1_t1_k1"): ((3, 1, ()), (3, 1, ())),
    ("untied_attention", "l2_s2_t1_k1"): ((6, 3, (WHOLE, WHOLE)), (6, 3, (WHOLE, WHOLE))),
    ("value_attention", "l2_s2_t2_k1"): ((8, 4, (WHOLE,) * 4), (8, 4, (WHOLE,) * 4)),
}  # fmt: skip
MODELS = [(name, structure) for name in SHIPPED for structure in structures_with_shipped_solver(name)]


def made(loss, **fields):
    return sf.model(**fields)(loss).at()


def two_clusters(structure):
    """Correlated teachers, labels of unequal weight."""
    t = structure.teacher_rank
    gram = sp.Matrix(t, t, lambda a, b: 1 if a == b else sp.Rational(1, 2))
    return sf.Tokens(weights=[1], covariance=[[1, 1]], labels=["7/10", "3/10"], teacher=gram)


def combinations(found, number=0):
    """The rows of an assignment as expressions."""
    case = found.assignments[number]
    return [sp.expand(e) for e in case.coefficients * sp.Matrix(found.variables)]


def symbols(text):
    return [sp.Symbol(name, real=True) for name in text.split()]


def agree(at, found, integrand, points=6, seed=0):
    """The integrand in its combinations is the integrand: by SymPy's own numbers, at every label and noise."""
    generator = random.Random(seed)
    for case in found.assignments:
        labels = dict(zip(at.labels, map(sp.Integer, case.labels), strict=True))
        given = labels | dict(zip(found.drawn, case.noise, strict=True))
        for _ in range(points):
            fields = {v: sp.Float(generator.gauss(0, 1.5)) for v in found.variables}
            values = {s: sp.Float(generator.uniform(0.2, 0.9)) for s in at.parameter_symbols()}
            values |= {
                token_variance_symbol(l): sp.Float(generator.uniform(0.5, 2)) for l in range(at.structure.tokens)
            }
            values |= {s: sp.Float(generator.uniform(0.2, 0.9)) for s in at.symbols_of_order_parameters}
            values |= {
                u: generator.choice(law.values)
                for u, law in at.noise.values()
                if isinstance(law, sf.DiscreteNoise) and u not in found.drawn
            }
            read = case.coefficients.xreplace(values) * sp.Matrix([fields[v] for v in found.variables])
            combined = dict(
                zip([*case.student_combinations, *case.teacher_combinations], [e.evalf() for e in read], strict=True)
            )
            direct = integrand.subs(given).xreplace(fields | values).evalf()
            written = case.loss.xreplace(combined | values).evalf()
            assert abs(direct - written) < 1e-9 * (1 + abs(direct))


@pytest.mark.parametrize(("name", "structure"), MODELS, ids=[f"{name}-{s.folder_name}" for name, s in MODELS])
def test_active_subspaces_of_catalogue_models_have_known_dimensions(name, structure):
    at = catalogue_model(name).at(structure)
    for found, known in zip(
        (active_subspace(at), metric_active_subspace(at)), CATALOGUE[name, structure.folder_name], strict=True
    ):
        assert all(
            (found.full_dimension, len(case.student_combinations), case.by_sign) == known for case in found.assignments
        )
        before, students, signs = known
        assert found.has_lower_dimension == (students + len(signs) < before or SIGN in signs)
        assert found.active_dimension == students + signs.count(WHOLE)


@pytest.mark.parametrize("name", ["hinge", "huber_regression", "mixture_classification", "tukey_regression",
                                  "untied_attention"])  # fmt: skip
def test_the_loss_in_its_combinations_is_the_loss(name):
    at = catalogue_model(name).at()
    agree(at, active_subspace(at), at.loss)
    agree(at, metric_active_subspace(at), at.metric)


def test_queries_meet_differences_of_keys_alone():
    """A softmax forgets what all scores of a row share."""
    x, key, other, *_ = combinations(active_subspace(catalogue_model("untied_attention").at()))
    assert [x, key, other] == [*symbols("x_0_0"), sp.Add(*symbols("x_0_1")) - symbols("x_1_1")[0], *symbols("x_1_0")]


def test_pooled_tokens_are_one_field():
    def pooled(X, Y, u):
        return sf.softplus(-sp.sign(sum(Y) / 3 + u) * sum(X) / 3)

    found = active_subspace(made(pooled, tokens=3, noise={"u": sf.GaussianNoise(1)}))
    x, y = symbols("x_0_0 x_1_0 x_2_0"), symbols("y_0_0 y_1_0 y_2_0 u_u")
    assert combinations(found) == [sum(x), sum(y[:3]) + 3 * y[3]]
    assert (found.full_dimension, found.active_dimension) == (7, 1)
    assert sp.Matrix([[1, 1, 1]]) == found.assignments[0].A
    assert sp.Matrix([[3]]) == found.assignments[0].H and found.assignments[0].by_sign == (True,)


def test_weights_of_a_pool_are_parameters():
    def pooled(X, Y, *, p=(1.0, 0.5, 0.0)):
        return (sp.Add(*[p[l] * X[l, 0] for l in range(3)]) - Y[0, 0]) ** 2

    at = made(pooled, tokens=3)
    found = active_subspace(at)
    p = symbols("p_0_ p_1_ p_2_")
    assert sp.Matrix([p]) == found.assignments[0].A and found.active_dimension == 1
    agree(at, found, at.loss)


def test_rows_that_vanish_at_the_defaults_are_not_used():
    def pooled(X, Y, *, a=0.0, b=0.0):
        return (a * X[0, 0] + b * X[1, 0] - Y[0, 0]) ** 2

    assert combinations(active_subspace(made(pooled, tokens=2)))[:2] == symbols("x_0_0 x_1_0")


def test_each_group_reads_its_own_teacher():
    def groups(X, Y, k):
        return sf.by_label(k[0], *[sf.softplus(-sp.sign(Y[0, b]) * X[0, 0]) for b in (0, 1)])

    found = active_subspace(made(groups, teacher=2, clusters=2, law=two_clusters))
    assert [combinations(found, n) for n in (0, 1)] == [symbols("x_0_0 y_0_0"), symbols("x_0_0 y_0_1")]
    assert [case.by_sign for case in found.assignments] == [(True,), (True,)]
    assert (found.full_dimension, found.active_dimension) == (3, 1)


def test_outliers_leave_one_dimension_for_each_value_of_their_label():
    def huber(X, Y, z, outlier, *, width=1.0, share=0.3, spread=5.0):
        error = (1 - outlier) * (Y[0, 0] + z) + outlier * sp.sqrt(spread) * z - X[0, 0]
        return sp.Piecewise((error**2 / 2, sp.Abs(error) < width), (width * sp.Abs(error) - width**2 / 2, True))

    noise = {
        "z": sf.GaussianNoise(1),
        "outlier": sf.DiscreteNoise((0, 1), lambda Y, share: (1 - share, share)),
    }
    at = made(huber, noise=noise)
    x, y, z, spread, share = symbols("x_0_0 y_0_0 u_z spread_ share_")
    together, apart = active_subspace(at), active_subspace(at, drawn=True)
    assert combinations(together) == [x - y - z, sp.expand(y + (1 - sp.sqrt(spread)) * z)]
    assert [combinations(apart, n) for n in (0, 1)] == [[x - y - z], [x - sp.sqrt(spread) * z]]
    assert (together.active_dimension, apart.active_dimension) == (2, 1)
    assert [case.probabilities for case in apart.assignments] == [(1 - share,), (share,)]
    agree(at, together, at.loss)
    agree(at, apart, at.loss)


def test_the_same_combinations_for_every_label_where_they_can_be():
    """One task is written in x_1 + x_2 + x_3 and x_1 - x_2, another in what follows from these."""

    def tasks(X, Y, k):
        one, other = X[0, 0] + X[0, 1] + X[0, 2], X[0, 0] - X[0, 1]
        first = sp.tanh(one) + sp.cos(other - Y[0, 0])
        return sf.by_label(k[0], first, sp.tanh(one + 2 * other) + sp.sin(one - other + Y[0, 0]))

    at = made(tasks, student=3, clusters=2, law=two_clusters)
    found = active_subspace(at)
    assert len({case.A for case in found.assignments}) == 1 and found.assignments[0].A.shape == (2, 3)
    assert found.assignments[0].B != found.assignments[1].B
    agree(at, found, at.loss)


def test_trained_numbers_and_overlaps_are_in_no_combination():
    def loss(X, Y, Q, *, beta=sf.trained(1), bias=sf.trained(0)):
        return (X[0, 0] + beta * X[1, 0] - Y[0, 0] + bias) ** 2 + sf.softplus(Q[0][0, 0] * X[0, 0] + Y[1, 0])

    at = made(loss, tokens=2)
    found = active_subspace(at)
    assert not found.assignments[0].coefficients.free_symbols
    x, other, y, last = symbols("x_0_0 x_1_0 y_0_0 y_1_0")
    assert set(combinations(found)) == {x, other, y, last}
    agree(at, found, at.loss)


def test_a_common_shift_of_scores_is_not_read():
    def loss(X, Y, u):
        return -sp.log(sf.softmax([[X[0, a] + u + Y[0, 0] ** 2 for a in range(3)]])[0])

    at = made(loss, student=3, noise={"u": sf.GaussianNoise(1)})
    found = active_subspace(at)
    assert (found.full_dimension, found.active_dimension, len(found.assignments[0].teacher_combinations)) == (5, 2, 0)
    agree(at, found, at.loss)


@pytest.mark.parametrize(
    "hidden",
    [
        lambda x, a: sp.expand((x[0] + 2 * x[1]) ** 4),
        lambda x, a: sp.expand((x[0] + a * x[1]) ** 3),
        lambda x, a: sf.softplus(sp.expand((x[0] - a * x[1]) ** 2)),
        lambda x, a: sp.exp(x[0]) * sp.exp(3 * x[1], evaluate=False),
        lambda x, a: sp.log(sp.exp(x[0]) + sp.exp(x[1])) - x[0],
        lambda x, a: sp.Max(x[0], x[1]) - x[1],
    ],
)
def test_combinations_are_found_in_expressions_that_hide_them(hidden):
    def loss(X, Y, *, a=2.0):
        return hidden(list(X), a) + Y[0, 0] ** 2

    at = made(loss, tokens=2)
    found = active_subspace(at)
    assert (len(found.assignments[0].student_combinations), len(found.assignments[0].teacher_combinations)) == (1, 1)
    agree(at, found, at.loss)


def test_a_piece_that_is_hardly_ever_visited_is_read():
    def loss(X, Y):
        return sp.Piecewise((X[1, 0], X[0, 0] > 60), (X[0, 0] ** 2, True)) + Y[0, 0] ** 2

    assert combinations(active_subspace(made(loss, tokens=2))) == symbols("x_0_0 x_1_0 y_0_0")


def test_fields_in_a_law_of_labels_belong_to_the_active_subspace():
    def flips(Y):
        return [sf.sigmoid(Y[0, 0] - Y[0, 1]), 1 - sf.sigmoid(Y[0, 0] - Y[0, 1])]

    at = made(lambda X, Y, u: sf.softplus(-u * X[0, 0]), name="flips", teacher=2,
              noise={"u": sf.DiscreteNoise((-1, 1), flips)})  # fmt: skip
    found = active_subspace(at)
    x, y, other = symbols("x_0_0 y_0_0 y_0_1")
    assert combinations(found) == [x, y - other]
    (case,) = found.assignments
    assert case.probabilities[0] == sf.sigmoid(case.teacher_combinations[0]) and case.by_sign == (False,)


@pytest.mark.parametrize(
    ("labelled", "known"),
    [
        (lambda x, y: sp.Max(0, 1 - sp.sign(y) * x), True),
        (lambda x, y: sp.Max(0, 1 - x * y / sp.Abs(y)), True),
        (lambda x, y: sp.Piecewise((sf.softplus(x), y < 0), (sf.softplus(-x), True)), True),
        (lambda x, y: (x - sp.Heaviside(3 * y)) ** 2, True),
        (lambda x, y: sp.Piecewise((1, x * sp.sign(y) < 1), (0, True)), True),
        (lambda x, y: (x - sp.sign(x * y)) ** 2, True),
        (lambda x, y: sp.Max(0, 1 - sp.sign(y - 1) * x), False),
        (lambda x, y: sp.Max(0, 1 - sp.sign(y) * x) + y**2, False),
        (lambda x, y: sp.Max(0, 1 - y * x), False),
        (lambda x, y: (x - sp.Abs(y)) ** 2, False),
        (lambda x, y: sp.Piecewise((x**2, sp.Abs(y) < 40), (sp.Abs(x), True)), False),
    ],
)
def test_a_field_that_is_read_by_its_sign(labelled, known):
    at = made(lambda X, Y: labelled(X[0, 0], Y[0, 0]), name="labelled")
    found = active_subspace(at)
    assert found.assignments[0].by_sign == (known,) and found.has_lower_dimension == known
    agree(at, found, at.loss)


def test_a_loss_is_chosen_by_the_value_of_a_noise_as_by_a_label():
    def chosen(X, Y, s):
        return sp.Max(0, 1 - sf.by_label(s, 1, -1) * X[0]) + sf.by_label(s, 0, sp.Abs(Y[0] - X[0]))

    shares = (sp.Rational(1, 3), sp.Rational(2, 3))
    found = active_subspace(made(chosen, noise={"s": sf.DiscreteNoise((0, 1), shares)}), drawn=True)
    assert found.assignments[0].loss == sp.Max(0, 1 - found.assignments[0].student_combinations[0])
    assert len(found.assignments[1].student_combinations) == 1 and len(found.assignments[1].teacher_combinations) == 1
    active_subspace(made(chosen, noise={"s": sf.DiscreteNoise((0, 1), shares)}))


def test_a_metric_reads_less_than_its_loss():
    found = metric_active_subspace(catalogue_model("committee_machine").at())
    assert symbols("u_u")[0] not in sum(combinations(found)).free_symbols
    assert metric_active_subspace(made(lambda X, Y: (X[0, 0] - Y[0, 0]) ** 2, name="bare")) is None


SMOOTH = (sp.tanh, sp.sin, sf.softplus, sp.atan, lambda z: sp.exp(-(z**2)), lambda z: sp.expand(z**3), sp.Abs)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=5, max_size=5), min_size=1, max_size=4),
    st.lists(st.sampled_from(SMOOTH), min_size=4, max_size=4),
    st.booleans(),
)
def test_integer_combinations_are_found_back(rows, functions, multiplied):
    """Of two tokens, two teacher fields and a noise, by any functions of them, in a sum or with a product."""
    rows = [row for row in rows if any(row)]
    if not any(any(row[:2]) for row in rows):
        rows.append([1, 2, 0, 0, 1])

    def loss(X, Y, u):
        terms = [f(sp.Add(*[c * v for c, v in zip(row, [*X, *Y, u], strict=True)]))
                 for f, row in zip(functions * 2, rows, strict=False)]  # fmt: skip
        return sp.Add(*terms) + (sp.Mul(*terms) if multiplied else 0)

    noise = {"u": sf.GaussianNoise(1)}
    found = active_subspace(made(loss, tokens=2, noise=noise, metric=lambda h, Y, u: u * h[0]))
    written, (case,) = sp.Matrix(rows), found.assignments
    assert (
        case.coefficients.rank()
        == case.coefficients.rows
        == written.rank()
        == written.col_join(sp.Matrix(case.coefficients)).rank()
    )
    assert case.A.rank() == len(case.student_combinations) == written[:, :2].rank()


def test_a_function_without_a_derivative_is_read_as_it_is_written():
    at = made(lambda X, Y: (X[0, 0] - sp.floor(Y[0, 0] + 2 * Y[1, 0])) ** 2, name="floored", tokens=2)
    found = active_subspace(at)
    x, y, other = symbols("x_0_0 y_0_0 y_1_0")
    assert combinations(found) == [x, y + 2 * other]
    agree(at, found, at.loss)


def test_the_derivation_says_what_is_read_where_that_is_less():
    shown = report_text(catalogue_model("ridge_regression"))
    for line in ("r_1 = x - u - y", "loss(X, Y, u) = r_1²/2", "Of the 3 dimensions of its average 1 is left."):
        assert line in shown
    shown = report_text(catalogue_model("logistic_regression"))
    assert "loss(X, Y, u) = softplus(-r_1 sign(r_2))" in shown and "Of r_2 the sign alone is read" in shown
    assert "What the loss reads" not in report_text(catalogue_model("dot_product_attention"))


def test_the_derivation_tells_labels_apart():
    def groups(X, Y, k, *, r=2.0):
        return sf.by_label(k[0], *[(r * Y[0, b] - X[0, 0]) ** 2 for b in (0, 1)])

    shown = report_text(sf.model(teacher=2, clusters=2, law=two_clusters)(groups))
    first, second = shown.index("Where k is 0:"), shown.index("Where k is 1:")
    assert first < shown.index("v_1 = x - r y_1") < second < shown.index("v_1 = x - r y_2")


@pytest.mark.parametrize("width", [1e-2, 1e-4])
def test_a_field_of_a_narrow_bump_belongs_to_the_active_subspace(width):
    """A bump in the second teacher field, and a metric that is nothing but a bump."""

    def loss(X, Y):
        return (Y[0, 0] + sp.exp(-(((Y[0, 1] + 0.3) / width) ** 2)) - X[0, 0]) ** 2

    def metric(h, Y):
        return sp.exp(-(((h[0, 0] - 1) / width) ** 2))

    at = made(loss, teacher=2, metric=metric)
    assert "y_0_1" in str(combinations(active_subspace(at)))
    assert combinations(metric_active_subspace(at)) == symbols("x_0_0")
