"""Mistakes in model files: the message shows the line and what to write instead."""

import math

import numpy as np
import pytest
import scipy.special
import sympy as sp

import saddleforge as sf
from saddleforge.derive.errors import ModelError

ONE = {"X is 1 x 1, Y is 1 x 1"}
MISTAKES = {
    "a condition": (lambda X, Y: X[0] if abs(Y[0]) > 1 else -X[0], {"sp.Piecewise(", "sp.Heaviside(t)"}),
    "max": (lambda X, Y: max(X[0], Y[0]), {"sp.Max(a, b)", "max(X[0], Y[0])"}),
    "np.minimum": (lambda X, Y: np.minimum(Y[0], X[0]), {"sp.Min(a, b)"}),
    "np.where": (lambda X, Y: np.where(Y[0] > 0, X[0], 1), {"sp.Piecewise("}),
    "np.exp": (lambda X, Y: np.exp(-Y[0] * X[0]), {"write sp.exp"}),
    "math.exp": (lambda X, Y: math.exp(-Y[0] * X[0]), {"write sp.exp"}),
    "no index": (lambda X, Y: 1 + sp.exp(-Y[0] * X), ONE | {"X[0]"}),
    "a matrix": (lambda X, Y: X * Y.T + sp.Matrix([[1, 2]]), ONE | {"X[0]"}),
    "a row": (lambda X, Y: (X - Y).row_join(X), {"(1, 2) matrix", "X is (1, 1)", "X[0]"}),
    "no size": (lambda X, Y: X[0, 0] * X[0, 1], ONE | {"@sf.model(tokens=2, student=2"}),
    "weights": (lambda X, Y: sf.square(Y - X, weight=sp.eye(3)), {"one number a column"}),
    "a power": (lambda X, Y: (X[0] - Y[0]) ^ 2, {"powers are written **"}),
    "noise": (lambda X, Y: X[0] - Y[0] - u, {"'u' is not defined", "among its arguments: add u"}),  # noqa: F821
    "a name": (lambda X, Y: X[0] * kappa, {"add kappa=0.5"}),  # noqa: F821
    "another case": (lambda X, Y, *, Delta=0.5: delta * X[0], {"'delta' is not defined", "did you mean Delta?"}),  # noqa: F821
    "samples": (lambda X, Y: sum((Y[0] - X[0])[i] ** 2 for i in range(9)), {"the loss is that of one sample"}),
    "SciPy": (lambda X, Y: scipy.special.erf(X[0]), {"write sp.erf"}),
    "a noise by its token": (lambda X, Y, u: X[0] - u[0], {"a noise is one number"}),
    "an entry of Q": (lambda X, Y, Q: X[0] ** 2 + Q[0, 0], {"Q[0][0, 0]"}),
    "another option": (lambda X, Y: sf.softmax([X[0], 0], axis=0)[0], {"it is called as sf.softmax(scores)"}),
    "no return": (lambda X, Y: None, {"is there a return?"}),
    "a score": (lambda X, Y: sf.softmax(X[0])[0], {"of the single score"}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_message_shows_the_line_and_the_remedy(mistake):
    loss, words = MISTAKES[mistake]
    with pytest.raises(ModelError) as caught:
        sf.model(name="wrong", noise={"u": sf.GaussianNoise(0.25)})(loss)
    message = str(caught.value)
    assert all(word in message for word in {"model wrong: loss", *words}), message
    if "failed at" in message:
        assert f"(line {loss.__code__.co_firstlineno}, " in message


def test_a_function_of_a_row_is_taken_entry_by_entry():
    loss = lambda X, Y: (sum(sp.tanh(Y)) - sum(sp.tanh(X))) ** 2  # noqa: E731
    with pytest.raises(ModelError, match=r"X is 1 x 2, .*X\.applyfunc\(sp\.tanh\), or sum\(sp\.tanh\(x\) for x in X\)"):
        sf.model(name="committee", student=2)(loss)


LEAST_SQUARES = lambda X, Y: sf.half_square(Y[0] - X[0])  # noqa: E731
BY_LABEL = lambda X, Y, k: sf.by_label(k[0], sf.half_square(Y[0] - X[0]), sp.Abs(X[0]))  # noqa: E731
BY_X = lambda X, Y, k: sf.by_label(k[0], X[0] ** 2, sp.Abs(X[0]))  # noqa: E731
REFUSED = {
    "noise not taken": ({"noise": {"u": sf.GaussianNoise(1)}}, LEAST_SQUARES, "nothing depends on the noise 'u'"),
    "random loss": ({}, lambda X, Y: LEAST_SQUARES(X, Y - sp.ones(1) * np.random.rand()), "drew random numbers"),
    "start with a comma": ({"starts": {"a, b": sf.Start()}}, LEAST_SQUARES, "name 'a, b' of a start is not allowed"),
    "label of no cluster": ({}, lambda X, Y, k: sf.softplus(-k[0] * X[0]), "label k of the only cluster is 0"),
    "too few losses": (
        {"clusters": 3, "law": sf.clustered_tokens},
        BY_LABEL,
        "by_label has 2 values, .* the model has 3 clusters",
    ),
    "too many losses": ({}, BY_LABEL, r"the model has 1 clusters: .*clusters=2\)"),
    "labels in an if": (
        {"clusters": 3, "law": sf.clustered_tokens},
        lambda X, Y, k: sp.Abs(X[0]) if k[0] == 0 else X[0] ** 2,
        r"takes the labels k, but nothing depends on them: .*sf\.by_label",
    ),
    "two defaults": (
        {"tokens": 2, "law": sf.isotropic_tokens},
        lambda X, Y, *, sigma=1.0: sigma * X[0] ** 2,
        "'sigma' has two defaults, 1.0 in loss and 0.5 elsewhere",
    ),
    "means of a row": (
        {"law": lambda structure: sf.Tokens(weights=[1], covariance=[[1]], means=[1, 2], teacher=[[1]])},
        LEAST_SQUARES,
        r"law\.means has shape \(2,\), expected .*products of the means of any two contexts",
    ),
    "labels of all tokens": (
        {"clusters": 2, "law": sf.clustered_tokens},
        lambda X, Y, k: sf.by_label(k, X[0] ** 2, sp.Abs(X[0])),
        r"by_label takes the label of one token, as k\[0\]",
    ),
    "clusters without a law": (
        {"clusters": 2},
        lambda X, Y, k: sf.by_label(k[0], X[0] ** 2, sp.Abs(X[0])),
        r"law\.covariance has shape \(1, 1\), expected \(1, 2\): .* \(token, cluster\) pair, as sf\.clustered_tokens",
    ),
    "noise that is not declared": ({}, lambda X, Y, eps: (Y[0] + eps - X[0]) ** 2, r"noise=\{'eps': sf\.GaussianNoise"),
    "weights in the loss": ({}, lambda X, Y, W: X[0] ** 2, "a penalty of the weights is the model's regulariser"),
    "clusters that are not declared": (
        {"law": lambda structure: sf.Tokens(weights=[1], covariance=[[1, 1]], labels=["1/2", "1/2"], teacher=[[1]])},
        LEAST_SQUARES,
        r"has shape \(1, 2\), expected \(1, 1\): .*, or @sf\.model\(clusters=2\)",
    ),
    "labels from 1": (
        {"clusters": 2, "law": sf.clustered_tokens},
        lambda X, Y, k: sp.Piecewise((X[0] ** 2, sp.Eq(k[0], 1)), (sp.Abs(X[0]), sp.Eq(k[0], 2))),
        "loss has no value for some labels, which are 0 to 1",
    ),
    "a probability above one": (
        {"noise": {"u": sf.DiscreteNoise((1, -1), (1.2, -0.2))}},
        lambda X, Y, u: (u - X[0]) ** 2,
        r"noise u: the probability 6/5 is not in \[0, 1\]",
    ),
    "one probability": (
        {"noise": {"u": sf.DiscreteNoise((1, -1), "flip")}},
        lambda X, Y, u, *, flip=0.1: (u - X[0]) ** 2 * flip,
        r"one for each value, as \('1 - flip', 'flip'\), not 'flip'",
    ),
    "matrix exponential": (
        {"tokens": 2},
        lambda X, Y: sf.half_square(sp.exp(X * X.T) - Y * Y.T),
        r"of its entries it is M\.applyfunc\(sp\.exp\)",
    ),
    "student's fields of a metric": ({"metric": lambda X, Y: Y[0] - X[0]}, LEAST_SQUARES, "fields are h there"),
    "regulariser's parameter": ({}, lambda X, Y, *, lambda_=1: lambda_ * X[0] ** 2, "regulariser's: remove it"),
    "two variances": (
        {"noise": {"u": sf.GaussianNoise([1, 2])}},
        lambda X, Y, u: (u - X[0]) ** 2,
        "declare several noises",
    ),
    "one value": (
        {"noise": {"u": sf.DiscreteNoise(1, -1)}},
        lambda X, Y, u: (u - X[0]) ** 2,
        "not -1; declare several",
    ),
    "strength by name": ({"regulariser": sf.Ridge("a")}, LEAST_SQUARES, r"'lambda' is \('a',\), but must be a"),
    "start by name": ({"starts": {"a": sf.Start(teacher="b")}}, LEAST_SQUARES, "start 'a': teacher of a start is 'b'"),
    "infinite default": ({}, lambda X, Y, *, c=np.inf: c * X[0] ** 2, "default of the parameter 'c' is inf, but must"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_model_is_refused_in_its_own_words(mistake):
    fields, loss, words = REFUSED[mistake]
    with pytest.raises(ModelError, match=words):
        sf.model(name="wrong", **fields)(loss)


def test_a_loss_chosen_by_comparing_a_label_is_that_of_by_label():
    def written(X, Y, k):
        return sp.Piecewise((X[0] ** 2, sp.Eq(k[0], 0)), (sp.Abs(X[0]), True))

    fields = {"clusters": 2, "law": sf.clustered_tokens}
    compared = sf.model(name="chosen", **fields)(written)
    assert compared.at().loss == sf.model(name="chosen", **fields)(BY_X).at().loss


def test_probabilities_beyond_one_are_named_with_their_values():
    """They were solved, and ended in advice about something else."""
    noise = {"u": sf.DiscreteNoise((1, -1), ("1 - flip", "flip"))}
    model = sf.model(name="flipped", noise=noise)(lambda X, Y, u, *, flip=0.1: (u * Y[0] - X[0]) ** 2)
    with pytest.raises(sf.InputError, match=r"values 1, -1 of the noise u are -9, 10 at Y = \(.*must be in \[0, 1\]"):
        sf.problem(model, alpha=2, flip=10)
    assert sf.problem(model, alpha=2, flip=1).parameters["flip"] == 1


def test_a_negative_variance_of_noise_is_named():
    model = sf.model(name="noisy", noise={"u": sf.GaussianNoise("Delta")})(
        lambda X, Y, u, *, Delta=1: sf.half_square(Y[0] + u - X[0])
    )
    with pytest.raises(sf.InputError, match="the variance of the noise u is -2; choose parameters"):
        sf.problem(model, alpha=2, Delta=-2)


def test_a_penalty_raises_the_same_error():
    penalty = sf.penalty(lambda w: max(w[0], 0))
    with pytest.raises(ModelError, match=r"penalty .* failed .*\(line \d+, .*write sp\.Max\(a, b\)"):
        sf.model(regulariser=penalty)(lambda X, Y: sf.half_square(Y - X))


def test_a_file_that_fails_says_in_which_line(tmp_path):
    file = tmp_path / "early.py"
    file.write_text("import saddleforge as sf\n\nlaw = sf.Tokens(weights=[1 / 0])\n")
    with pytest.raises(sf.InputError, match=r'early\.py fails in line 3, "law = .*": ZeroDivisionError'):
        sf.problem(str(file), alpha=2)


def test_the_decorator_stands_without_arguments_too():
    @sf.model
    def plain(X, Y):
        """Least squares."""
        return sf.half_square(Y - X)

    assert plain.summary == "Least squares." and plain.at(plain.structure()).loss.has(sp.Symbol("x_0_0", real=True))


def test_a_trained_number_is_not_set():
    model = sf.model(name="scaled")(lambda X, Y, beta=sf.trained(1, ridge=0.1): sf.half_square(Y - beta * X))
    problem = sf.problem(model, alpha=2)
    for ask in (
        lambda: sf.problem(model, alpha=2, beta=3),
        lambda: sf.curve(problem, beta=(1, 2, 3)),
        lambda: sf.tune(problem, "beta", minimise="theta"),
        lambda: sf.where(problem, "q = 1", "beta", on="semantic"),
    ):
        with pytest.raises(
            sf.InputError, match=r"beta is trained with the weights, so its value is a result .*beta=1\.0"
        ):
            ask()


def test_a_list_of_scores_is_one_row_of_softmax():
    x, y = sp.symbols("x y", real=True)
    assert sf.softmax([x, y]) == sf.softmax(sp.Matrix([[x, y]])) and sf.softmax([[x, y]]).shape == (1, 2)


WRONG = {
    "law": (3.0, "law must be a function of structure and parameters that returns Tokens, .*law=data.law.*not float"),
    "metric": (1.0, r"metric must be a function, as lambda h, Y: .* or several by name, .*not float"),
    "metrics": ({"a": 1.0}, "metric 'a' must be a function, .*not float"),
    "regulariser": (0.1, r"regulariser must be Ridge\(0\.1\), .*not float"),
    "the class": (sf.Ridge, r"regulariser must be Ridge\(0\.1\), .*not the class Ridge"),
    "starts": (("a", sf.Start()), r'starts must be Starts by name, \{"semantic": Start\(teacher=0\.6\)\}, not tuple'),
    "a start": ({"a": 0.5}, r"start 'a' must be a Start, as Start\(teacher=0\.6\), not float"),
    "noise": (
        sf.GaussianNoise(0.5),
        r'noise must be a law by the name that the loss takes, \{"u": .*not GaussianNoise',
    ),
    "one noise": ({"u": 0.5}, r"noise 'u' must be GaussianNoise\(variance\) or DiscreteNoise.*not float"),
    "output": (lambda y: y[0], r"output failed \(.*not subscriptable.* an Output, as Output\("),
    "baseline": (1.0, "baseline must be a function of B, .*not float"),
    "loss_kinks": ([0], r"loss_kinks must be a function that returns expressions, .*not list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_field_of_another_kind_raises_an_error_that_says_what_is_allowed(name):
    value, words = WRONG[name]
    field = {"metrics": "metric", "the class": "regulariser", "a start": "starts", "one noise": "noise"}.get(name, name)
    with pytest.raises(ModelError, match=words):
        sf.model(**{field: value})(lambda X, Y: sf.half_square(Y - X))


def test_an_invalid_law_is_refused_with_the_allowed_kinds():
    data = sf.law_of_data(np.random.default_rng(0).standard_normal((60, 4)))
    for value, words in (
        (data, "not DataLaw; give law=data.law"),
        (3.0, r"not float; make them by Tokens\.from_arrays"),
    ):
        with pytest.raises(sf.InputError, match=f"law must be Tokens whose entries are numbers, {words}"):
            sf.problem("ridge_regression", alpha=2, law=value)
    for ask in (sf.solve, sf.solutions, sf.simulate, sf.dynamics, sf.bayes_optimal, sf.curve):
        options = {sf.simulate: {"d": 10}, sf.dynamics: {"rate": 1, "time": 1}, sf.curve: {"alpha": (1, 2, 3)}}.get(
            ask, {}
        )
        with pytest.raises(sf.InputError, match=r"not str; make one by sf\.problem\('ridge_regression', alpha=2\)"):
            ask("ridge_regression", **options)


def test_metrics_that_are_constant_and_unknown_arguments_are_refused():
    """Both led to messages about something else: != of expressions is a boolean, a misspelt keyword a TypeError."""
    with pytest.raises(ModelError, match="metric is 1, which depends on none of h, Y and Q"):
        metric = lambda h, Y: sp.sign(h[0]) != sp.sign(Y[0])  # noqa: E731
        sf.model(metric=metric)(lambda X, Y: sf.half_square(Y[0] - X[0])).at()
    with pytest.raises(ModelError, match=r"no argument 'regularizer'; it has .*regulariser"):
        sf.model(regularizer=sf.Ridge(0.1))(lambda X, Y: sf.half_square(Y[0] - X[0]))
