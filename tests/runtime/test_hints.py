"""What is said of attributes that a result has not, and of calls that do not fit."""

import pickle

import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.base.hints import AttributeErrorHints


def test_a_missing_attribute_is_answered_by_where_it_is_or_what_there_is():
    solution = sf.solve(sf.problem("ridge_regression", alpha=2))
    with pytest.raises(AttributeError, match=r"Solution has no attribute 'theta': use overlaps\.theta"):
        _ = solution.theta
    with pytest.raises(
        AttributeError, match=r"no attribute 'testerror' \(did you mean test_error\?\); it has .*training_loss"
    ):
        _ = solution.testerror
    with pytest.raises(AttributeError, match=r"Solution has no method 'plot': a curve has it, as sf\.curve\(problem"):
        solution.plot("x.png")
    assert not hasattr(solution, "_repr_html_")
    assert pickle.loads(pickle.dumps(solution.overlaps)).q == solution.overlaps.q


def test_an_attribute_that_fails_says_why():
    class Failing(AttributeErrorHints):
        @property
        def value(self):
            return self.missing_inside.real

    with pytest.raises(AttributeError, match="no attribute 'missing_inside'"):
        _ = Failing().value


def test_a_call_that_does_not_fit_is_answered_by_the_signature():
    problem = sf.problem("ridge_regression", alpha=2)
    with pytest.raises(
        TypeError, match=r"called as sf\.solve\(problem, start=None, \*, .*sf\.problem\(model, alpha=2\)"
    ):
        sf.solve(problem, alpha=3)
    with pytest.raises(TypeError, match=r"did you mean start\?"):
        sf.solve(problem, starts=["semantic"])
    with pytest.raises(TypeError, match=r"a parameter is a keyword, as alpha=\(0\.5, 3, 26\)"):
        sf.curve(problem, "alpha", 0.5, 3)
    with pytest.raises(AttributeError, match="in Python: bayes_optimal"):
        sf.__getattr__("bayes")  # a package of that name may be loaded
    assert pickle.loads(pickle.dumps(sf.solve)) is sf.solve


def test_a_type_error_from_inside_is_left_as_it_is():
    with pytest.raises(TypeError) as caught:
        sf.curve(sf.problem("ridge_regression", alpha=2), alpha=(1, 2, 2), on_point=lambda: None)
    assert "called as" not in str(caught.value)


def test_a_problem_that_is_assigned_to_names_another_one():
    problem = sf.problem("ridge_regression", alpha=2)
    with pytest.raises(AttributeError, match=r"problem\.with_\(alpha=3\) returns a changed copy"):
        problem.alpha = 3
    assert problem.with_(alpha=3).alpha == 3
    with pytest.raises(TypeError, match=r"as sf\.tune\(problem, 'lambda', bracket=\(1e-3, 10\)\)"):
        sf.tune(problem, lambda_=(1e-3, 10))
    with pytest.raises(sf.InputError, match="accuracy = '1e-6' is a text, where a number is expected"):
        sf.solve(problem, accuracy="1e-6")
    with pytest.raises(sf.InputError, match=r"overlaps, as sf\.Overlaps\.measured\(q=0\.8, theta=0\.4\)"):
        sf.solve(problem, {"q": 0.8})


def test_overlaps_of_no_weights_are_answered_by_what_is_wrong_with_them():
    """Not by the digits of a difference that is far from zero."""
    found = sf.solve(sf.problem("ridge_regression", alpha=2), sf.Overlaps.measured(q=0.1, theta=0.9))
    assert not found.success and "is -0.71, not positive" in found.advice and "double precision" not in found.advice


def test_a_curve_has_its_columns_and_solutions():
    curve = sf.curve(sf.problem("ridge_regression"), alpha=(1, 2, 2))
    assert curve["test_error"].tolist() == [s.test_error for s in curve] and len(list(curve)) == 2
    with pytest.raises(KeyError, match="unknown column 'tst'; known are alpha, q_1"):
        _ = curve["tst"]


def test_options_by_another_spelling_and_learners_that_are_objects_are_answered():
    problem = sf.problem("ridge_regression", alpha=2)
    with pytest.raises(sf.InputError, match=r"tune has no option 'minimize' \(did you mean minimise\?\)"):
        sf.tune(problem, "lambda", minimize="test_error")
    with pytest.raises(sf.InputError, match=r"lambda x, y: model\.fit\(x, y\)\.predict"):
        sf.learning_curve([[1.0]], [1.0], object(), alphas=[1])
    with pytest.raises(TypeError, match=r"called as sf\.dynamics\(problem"):
        sf.dynamics(problem, lr=0.1, time=1)


def test_wrong_argument_types_are_refused_with_the_expected_type():
    with pytest.raises(sf.InputError, match=r"sf\.compare needs a Curve, not Solution: make one by sf\.curve\(problem"):
        sf.compare(sf.solve(sf.problem("ridge_regression", alpha=2)))
    with pytest.raises(sf.InputError, match=r"activation = 'tanh': a function of an array is expected, as np\.tanh"):
        sf.random_features(2, "tanh")


def test_an_output_that_shows_sizes_as_if_they_were_fields_is_refused():
    """y = |Y| as one real coordinate reaches positive fields twice and negative ones never: once on average."""
    model = sf.model(name="sizes", output=sf.Output(lambda y: sp.Abs(y), observed={"y": "real"}))(
        lambda X, Y: (sp.Abs(Y[0]) - X[0]) ** 2
    )
    with pytest.raises(sf.InputError, match=r"the mean of field 1 of Y is 0\.8 .*hidden=\{\"sign\""):
        sf.bayes_optimal(sf.problem(model, alpha=0.8))


def test_a_loss_without_targets_says_that_nothing_is_learned():
    """Labels that an author took from the student: the scale of what may be narrow held the place of a piece."""
    model = sf.model(name="blind", starts={"informed": sf.Start(teacher=0.6)}, regulariser=sf.Ridge(0.1))(
        lambda X, Y: sf.softplus(-sp.sign(X[0]) * X[0])
    )
    found = sf.solve(sf.problem(model, alpha=2))
    assert not found.success and found.advice.startswith("the loss depends on neither Y nor a label")
    assert abs(found.overlaps.theta[0, 0, 0]) < 1e-9


def test_a_curve_names_what_it_has_and_computes_nothing_for_it(monkeypatch):
    """A column would take the verdicts of all points."""
    found = sf.curve(sf.problem("ridge_regression"), alpha=[1, 2])
    monkeypatch.setattr(type(found), "to_pandas", lambda self: pytest.fail("computed"))
    assert not hasattr(found, "table") and not hasattr(found, "to_json")
    with pytest.raises(AttributeError, match=r"read by name, result\['test_error'\]"):
        _ = found.test_error
