"""Every method that trains weights does what its description says on every kind of problem, or refuses it."""

import re
from pathlib import Path

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.extensions.simulation.instance import Instance
from saddleforge.extensions.simulation.methods import METHODS
from saddleforge.extensions.simulation.plan import SimulationPlan
from saddleforge.extensions.simulation.run import train_one_seed, validate_simulation_plan
from saddleforge.problems.problem import problem

EXAMPLES = Path(__file__).parents[2] / "examples"
TOLERANCE = 1e-7


@sf.penalty
def absolute(w, *, strength=0.3):
    return strength * sp.Abs(w[0])


@sf.model(regulariser=absolute, starts={"semantic": sf.Start(teacher=0.6)})
def hinge_with_sparse_weights(X, Y):
    return sp.Max(0, 1 - sp.sign(Y[0]) * X[0])


@sf.model(regulariser=sf.Sphere("4/5"), noise={"u": sf.GaussianNoise("1/4")}, starts={"semantic": sf.Start(teacher=1)})
def least_squares_of_given_norm(X, Y, u):
    return (X[0] - Y[0] - u) ** 2 / 2


@sf.model(regulariser=sf.Sphere(2), starts={"semantic": sf.Start(teacher=1, noise="2/5")})
def hinge_of_given_norm(X, Y):
    return sp.Max(0, 1 - sp.sign(Y[0]) * X[0])


KINDS = {
    "smooth": ("ridge_regression", {"alpha": 3.0, "lambda_": 0.5}, ()),
    "of several tokens with means": ("dot_product_attention", {"alpha": 2.0}, ()),
    "with corners of the penalty": ("lasso_regression", {"alpha": 1.5}, ("any_penalty", "penalty_corners")),
    "with corners of both": (
        hinge_with_sparse_weights,
        {"alpha": 2.0},
        ("any_penalty", "loss_corners", "penalty_corners"),
    ),
    "of given norm": (least_squares_of_given_norm, {"alpha": 3.0}, ("norms",)),
    "of given norm with corners": (hinge_of_given_norm, {"alpha": 4.0}, ("norms", "loss_corners")),
    "of q": (EXAMPLES / "autoencoder.py", {"alpha": 2.0}, ("q_in_loss",)),
    "of trained numbers": (EXAMPLES / "trained_temperature.py", {"alpha": 2.0}, ("trained_numbers",)),
}


def planned(method, at, **options):
    """A plan of a method, with what a pass through the data cannot do without."""
    own = {"rate": 0.2} if method != "auto" and METHODS[method].one_pass else {"tolerance": TOLERANCE}
    return SimulationPlan(at, 60, next(iter(at.solver.model.STARTS)), method, **own | options)


def named(error):
    """The methods that a refusal allows."""
    return re.search(r"allowed methods are (.*)", str(error.value)).group(1).split(", ")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_ends_at_the_minimum_of_every_kind_of_problem_that_it_takes_and_refuses_the_others(name, kind):
    model, parameters, needs = KINDS[kind]
    at, method = problem(model, **parameters), METHODS[name]
    able = [one for one in METHODS if all(getattr(METHODS[one], need) for need in needs)]
    if name not in able:
        with pytest.raises(InputError) as error:
            validate_simulation_plan(planned(name, at))
        assert named(error) == able
        return
    found = train_one_seed(validate_simulation_plan(planned(name, at)), 1)
    assert found.status == "converged" and np.isfinite(found.overlaps.q).all()
    if method.one_pass:
        assert found.iterations == Instance(at, 60, 1).sample_count and len(found.path) == len(
            planned(name, at).recording_times
        )
        assert np.isnan(found.training_loss)
        return
    best = train_one_seed(validate_simulation_plan(planned("auto", at)), 1)
    assert found.gradient < 10 * TOLERANCE
    assert found.training_loss == pytest.approx(best.training_loss, rel=1e-7)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.one_pass])
def test_a_method_finds_the_ridge_estimator(name):
    """By the normal equations, from the data alone."""
    at = problem("ridge_regression", alpha=3.0, lambda_=0.5)
    found, instance = (
        train_one_seed(validate_simulation_plan(planned(name, at, tolerance=1e-8)), 1),
        Instance(at, 60, seed=1),
    )
    tokens = np.concatenate([block for _, block in instance.iterate_blocks_of_samples()])[:, 0] / np.sqrt(60)
    c = at.constants(instance.samples_by_label_assignment[0][0])
    # dloss/dx at x = 0 is -(Y + u).
    target = -at.solver.channel.losses_at(np.zeros((instance.sample_count, 1)), instance.teacher_and_noise_features, c)[
        1
    ][:, 0]
    exact = np.linalg.solve(tokens.T @ tokens + at.strengths[0] * np.eye(60), tokens.T @ target)
    assert found.status == "converged" and found.gradient < 1e-6
    assert found.overlaps.q[0, 0, 0] == pytest.approx(exact @ exact / 60, rel=1e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("options", "need"),
    [
        ({"project": "theta"}, "fixes_overlaps"),
        ({"polish": "minima"}, "can_be_polished"),
        ({"controls": True}, "ends_at_minimum"),
    ],
)
def test_a_method_does_what_a_plan_asks_of_it_or_refuses(name, options, need):
    plan = planned(name, problem("ridge_regression", alpha=2.0), **options)
    able = [one for one in METHODS if getattr(METHODS[one], need)]
    if name not in able:
        with pytest.raises(InputError) as error:
            validate_simulation_plan(plan)
        assert named(error) == able
        return
    found = train_one_seed(validate_simulation_plan(plan), 0)
    assert found.status == "converged"
    assert (np.abs(found.overlaps.theta).max() == 0) == ("project" in options)
    assert (found.polish is None) == ("polish" not in options)
    assert (found.controls is None) == ("controls" not in options)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_takes_what_belongs_to_it_alone(name):
    at = problem("ridge_regression", alpha=2.0)
    passes = [({"batch": "2"}, "only the method sgd uses batches"), ({"rate": "0.1,power=0.5"}, "takes a number")]
    for options, sentence in passes:
        if METHODS[name].one_pass:
            assert train_one_seed(validate_simulation_plan(planned(name, at, **options)), 0).status == "converged"
        else:
            with pytest.raises(InputError, match=sentence):
                validate_simulation_plan(planned(name, at, **options))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.one_pass])
def test_a_method_that_is_not_given_enough_iterations_says_so(name):
    model = "hinge" if METHODS[name].loss_corners else "ridge_regression"
    found = train_one_seed(validate_simulation_plan(planned(name, problem(model, alpha=2.0), most=2)), 0)
    assert (found.status, found.iterations) == ("max_iterations", 2)
    assert found.gradient > TOLERANCE


@pytest.mark.parametrize(
    ("name", "model", "parameters", "options", "sentence"),
    [
        (
            "newton",
            "hinge",
            {"lambda_": 0.0},
            {},
            "newton needs a ridge of positive strength, and the ridge of hinge has strength 0",
        ),
        ("gamp", "hinge", {}, {"inertia": 1.5}, r"inertia = 1.5 is out of range; allowed is \[0, 1\)"),
        ("sgd", "ridge_regression", {}, {"rate": None}, "sgd needs a learning rate"),
        ("sgd", "ridge_regression", {}, {"rate": "flow"}, "gradient flow does not go through samples"),
        ("sgd", "ridge_regression", {}, {"batch": "3d"}, "alpha = 2 gives fewer samples than one batch of 3d"),
    ],
)
def test_a_method_refuses_what_it_cannot_work_with(name, model, parameters, options, sentence):
    with pytest.raises(InputError, match=sentence):
        validate_simulation_plan(planned(name, problem(model, alpha=2.0, **parameters), **options))


@pytest.mark.parametrize(
    ("model", "name"), [("ridge_regression", "lbfgs"), ("lasso_regression", "fista"), ("hinge", "newton")]
)
def test_the_first_method_that_is_exact_is_chosen(model, name):
    assert validate_simulation_plan(SimulationPlan(problem(model, alpha=2.0), 60, "semantic", "auto")).method == name
