"""The problem of one token that averages are those of: which it is, and that its loss is the model's."""

import random

import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.derive.authoring.language import token_variance_symbol
from saddleforge.derive.authoring.parameters import Structure
from saddleforge.derive.catalogue import SHIPPED, catalogue_model, structures_with_shipped_solver
from saddleforge.derive.emit.sources.channel import channel_constant_names
from saddleforge.derive.errors import ModelError
from saddleforge.derive.theory.reduced import reduce_model_for_loss, reduce_model_for_metric

LOSSES = {
    "elastic_net_regression": "l1_s1_t0_k1",
    "huber_regression": "l1_s1_t0_k1",
    "l1_regression": "l1_s1_t0_k1",
    "lasso_regression": "l1_s1_t0_k1",
    "mixture_classification": "l1_s1_t0_k2",
    "quantile_regression": "l1_s1_t0_k1",
    "ridge_regression": "l1_s1_t0_k1",
    "tukey_regression": "l1_s1_t0_k1",
    "untied_attention": "l1_s3_t2_k1",
}


def made(loss, **fields):
    return sf.model(**fields)(loss).at()


def assert_the_same(at, reduced, integrand, seed=3):
    """The integrand at random fields is that of the reduced problem at its combinations of them, case by case."""
    generator = random.Random(seed)
    expression = {"loss": reduced.loss, "metric": reduced.metric}[integrand]
    whole = {"loss": at.loss, "metric": at.metric}[integrand]
    for number, case in enumerate(reduced.cases):
        for _ in range(4):
            known = {
                s: sp.Float(generator.uniform(0.2, 0.9))
                for s in (*at.parameter_symbols(), *at.symbols_of_order_parameters)
            }
            known |= {token_variance_symbol(l): sp.Float(generator.uniform(0.5, 2)) for l in range(at.structure.tokens)}
            known |= dict(zip(at.labels, map(sp.Integer, case.labels), strict=True))
            held = [u for u, law in at.noise.values() if isinstance(law, sf.DiscreteNoise)]
            noise = dict(zip(held, case.noise, strict=True)) if case.noise else {u: sp.Integer(1) for u in held}
            gaussian = [u for u, law in at.noise.values() if isinstance(law, sf.GaussianNoise)]
            fields = {v: sp.Float(generator.gauss(0, 1.5)) for v in (*at.X, *at.Y, *gaussian)}
            combined = case.coefficients.subs(known) * sp.Matrix([fields[v] for v in (*at.X, *at.Y, *gaussian)])
            there = dict(zip([*reduced.X, *reduced.Y], combined, strict=True))
            one = whole.subs(known | noise | fields).evalf()
            other = expression.subs(known | noise | {reduced.labels[0]: sp.Integer(number)} | there).evalf()
            assert abs(one - other) < 1e-9 * (1 + abs(one))


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_which_models_of_the_catalogue_are_averaged_over_fewer_fields(name):
    at = catalogue_model(name).at()
    reduced = reduce_model_for_loss(at)
    assert (reduced.structure.folder_name if reduced else None) == LOSSES.get(name)
    if reduced is not None:
        assert_the_same(at, reduced, "loss")


def test_all_structures_of_the_catalogue_have_their_test_error():
    for name in SHIPPED:
        for structure in structures_with_shipped_solver(name):
            at = catalogue_model(name).at(structure)
            reduced = reduce_model_for_metric(at)
            if reduced is not None:
                assert_the_same(at, reduced, "metric")


def test_constants_are_those_of_the_model_and_the_case():
    at = catalogue_model("untied_attention").at()
    reduced = reduce_model_for_loss(at)
    assert channel_constant_names(reduced) == (*channel_constant_names(at), "case")


def test_cases_that_read_less_have_single_fields_next_to_it():
    """Label 0 reads one combination of the two fields and no teacher, label 1 all three."""

    def uneven(X, Y, k):
        x, y = X[0, 0], X[0, 1]
        return sf.by_label(k[0], (x + y) ** 2, x**2 + (y - Y[0, 0]) ** 4)

    def law(structure):
        return sf.Tokens(weights=[1], covariance=[[1, 1]], labels=["1/2", "1/2"], teacher=[[1]])

    noise = {"unread": sf.GaussianNoise(1)}
    at = made(uneven, student=2, clusters=2, law=law, noise=noise, metric=lambda h, Y, unread: unread * h[0])
    reduced = reduce_model_for_loss(at)
    assert reduced.structure == Structure(1, 2, 0, 2)
    assert [case.A.rank() for case in reduced.cases] == [2, 2]
    assert_the_same(at, reduced, "loss")


def test_noise_of_labels_that_combinations_hold_is_a_case_each():
    def outliers(X, Y, g, v):
        return (X[0, 0] - Y[0, 0] - v * g) ** 4

    noise = {"g": sf.GaussianNoise(1), "v": sf.DiscreteNoise((1, 5), ("9/10", "1/10"))}
    at = made(outliers, noise=noise)
    reduced = reduce_model_for_loss(at)
    assert reduced.structure == Structure(1, 1, 0, 2) and not reduced.noise
    assert [case.probabilities for case in reduced.cases] == [(sp.Rational(9, 10),), (sp.Rational(1, 10),)]
    assert_the_same(at, reduced, "loss")


def test_noise_whose_law_asks_for_the_teacher_keeps_it():
    """Labels drawn with a probability that depends on the sum of two teacher fields, which is all that is read of Y."""

    def sign(X, Y, v):
        return sf.softplus(-v * sum(X))

    def law(Y):
        plus = 1 / (1 + sp.exp(-sum(Y)))
        return plus, 1 - plus

    at = made(sign, tokens=2, noise={"v": sf.DiscreteNoise((1, -1), law)})
    reduced = reduce_model_for_loss(at)
    assert reduced.structure == Structure(1, 1, 1, 1)
    ((_, noise),) = reduced.noise.values()
    assert sp.simplify(sp.Add(*noise.probabilities)) == 1
    assert noise.probabilities[0].free_symbols == set(reduced.Y)
    assert_the_same(at, reduced, "loss")


def test_losses_that_hold_overlaps_and_declared_kinks_are_averaged_over_all_fields():
    def holding(X, Y, Q):
        return (X[0, 0] - Y[0, 0]) ** 2 + Q[0][0, 0]

    def plain(X, Y):
        return (X[0, 0] - Y[0, 0]) ** 2

    assert reduce_model_for_loss(made(holding)) is None
    assert reduce_model_for_loss(made(plain)) is not None
    assert reduce_model_for_loss(made(plain, loss_kinks=lambda X: X[0, 0])) is None


def test_a_model_has_a_teacher_column_at_least():
    with pytest.raises(ModelError, match="teacher_rank"):
        sf.model(teacher=0)(lambda X: X[0, 0] ** 2)
