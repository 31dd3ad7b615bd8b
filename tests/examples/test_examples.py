"""The examples: each is short, runs by the command it ends with, and obeys one exact statement."""

import ast
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge.cli import main
from saddleforge.derive.authoring.model import Model
from saddleforge.problems.model_file import execute_model_file
from saddleforge.solving.solution import Solution

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SLOW = {
    "adversarial_training", "autoencoder", "binary_perceptron", "committee", "cross_attention", "deep_attention",
    "fine_tuning", "flipped_labels", "linear_attention", "pooled_hinge", "product_of_two", "single_location",
    "three_layers", "trained_temperature", "two_tasks",
}  # fmt: skip


def example(name: str) -> Path:
    return ROOT / "examples" / f"{name}.py"


def written(name: str) -> Model:
    """The model of an example, as an object whose fields a test may replace."""
    return execute_model_file(example(name))


def solved(model: Any, start: str = "semantic", *, integrator: str = "auto", points: int | None = None,
           accuracy: float = 1e-8, **parameters: Any) -> Solution:  # fmt: skip
    problem = sf.problem(model, **parameters)
    solution = sf.solve(problem, start, accuracy=accuracy, integrator=integrator, points=points)
    assert solution.residual < 1e-6
    return solution


def assert_same(one: Solution, other: Solution, context: int = 0, teacher: int = 0) -> None:
    """The state of `one`, in one of its contexts and for one of its teacher columns, is that of `other`."""
    for name in ("q", "V", "m"):
        assert getattr(one.overlaps, name)[context] == pytest.approx(
            getattr(other.overlaps, name)[0], rel=1e-7, abs=1e-9
        )
    assert one.overlaps.theta[context, :, teacher] == pytest.approx(other.overlaps.theta[0, :, 0], rel=1e-7, abs=1e-9)
    assert one.training_loss == pytest.approx(other.training_loss, rel=1e-8)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_is_a_short_file_of_physics(path):
    lines = path.read_text().splitlines()
    assert len(lines) <= 40
    tree = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= {"saddleforge", "sympy"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert ast.get_docstring(tree)
    commands = [f"# saddleforge {command} examples/{path.name} --set alpha=" for command in ("solve", "bayes")]
    assert lines[-1].startswith(tuple(commands))


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in SLOW else []) for p in EXAMPLES]
)
def test_the_command_at_its_end_converges(path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    command = path.read_text().splitlines()[-1].removeprefix("# saddleforge ")
    with pytest.raises(SystemExit) as left:
        main([*shlex.split(command), "--threads", "1"])
    printed = capsys.readouterr()
    assert left.value.code == 0, printed.err
    assert "converged" in printed.out


# Regression and classification


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "sigma"), [(2.0, 1.0), (0.7, 0.5)])
def test_an_attack_beyond_its_threshold_leaves_w_at_zero(alpha, sigma):
    """|sum y x| = n sigma sqrt(2 / pi + 1 / alpha): what labels tell at W = 0, against n eps; on both sides of it."""
    threshold = sigma * np.sqrt(2 / np.pi + 1 / alpha)
    model = example("adversarial_training")
    for eps, trivial in ((0.95, False), (1.05, True), (1.3, True)):
        solution = sf.solve(sf.problem(model, alpha=alpha, sigma=sigma, eps=eps * threshold), accuracy=1e-4)
        assert solution.status == ("trivial" if trivial else "converged"), eps
        assert (solution.overlaps.q.item() == 0) is trivial
        assert solution.success is not trivial


@pytest.mark.slow
def test_simulations_end_at_zero_where_theory_has_only_the_trivial_solution():
    """n = 4000 samples: at 1.3 times the threshold no draw of the data moves W away from zero; at half of it all do."""
    model, threshold = example("adversarial_training"), np.sqrt(2 / np.pi + 1 / 2)
    beyond, within = (
        sf.simulate(sf.problem(model, alpha=2.0, eps=share * threshold), d=2000, seeds=3) for share in (1.3, 0.5)
    )
    assert [run.status for run in beyond.runs] == ["trivial"] * 3
    assert all(run.overlaps.q.max() < 1e-6 for run in beyond.runs)
    assert all(run.training_loss == pytest.approx(2 * np.log(2), rel=1e-6) for run in beyond.runs)
    assert within.status == "converged"
    theory = sf.solve(within.problem, accuracy=1e-4)
    assert within.estimate("training_loss").mean == pytest.approx(theory.training_loss, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "overlap"), [(0.5, 0.9), (2.0, 0.8), (2.0, -0.5)])
def test_fine_tuning_is_ridge_regression_of_what_is_left_to_learn(alpha, overlap):
    """w - w_0 is the ridge estimator of w* - w_0, whose squared length is 2 (1 - overlap)."""
    strength, Delta, left = 0.5, 0.25, 2 * (1 - overlap)
    solution = solved(example("fine_tuning"), "pre_trained", alpha=alpha, overlap=overlap, strength=strength)
    b = strength + alpha - 1
    V = 2 / (b + np.sqrt(b * b + 4 * strength))  # V = 1 / (strength + alpha / (1 + V))
    spread = V**2 / (1 + V) ** 2 * alpha
    E = (strength**2 * V**2 * left + spread * Delta) / (1 - spread)
    assert solution.overlaps.V.item() == pytest.approx(V, rel=1e-10)
    assert solution.test_error == pytest.approx(E, rel=1e-10)


@pytest.mark.slow
def test_labels_that_are_never_flipped_give_logistic_regression():
    assert_same(
        solved(example("flipped_labels"), alpha=2.0, flip=0.0), solved("logistic_regression", "semantic", alpha=2.0)
    )


@pytest.mark.slow
def test_labels_flipped_half_of_the_time_teach_nothing():
    solution = solved(example("flipped_labels"), alpha=2.0, flip=0.5)
    assert abs(solution.overlaps.theta.item()) < 1e-9
    assert solution.test_error == pytest.approx(0.5, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "alone", "teacher", "given"),
    [(1.0, "logistic_regression", 0, {}), (0.0, "ridge_regression", 1, {"Delta": 0.0})],
)
def test_a_task_without_samples_changes_nothing(share, alone, teacher, given):
    assert_same(solved(example("two_tasks"), alpha=1.5, share=share), solved(alone, alpha=1.5, **given), 0, teacher)


@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.slow
def test_two_tasks_of_one_loss_are_one_task_with_all_samples(share):
    def twice(X: Any, Y: Any, k: Any) -> Any:
        return sf.by_label(k[0], *[sf.half_square(Y[1] - X[0])] * 2)

    both = replace(written("two_tasks"), name="one_task_twice", loss=twice, loss_kinks=None)
    alone = solved("ridge_regression", alpha=1.5, Delta=0, lambda_=0.2)
    assert_same(solved(both, alpha=1.5, share=share, lambda_=0.2), alone, 1, 1)


POOL = np.array([1, 0.5, 0.25])


@pytest.mark.slow
def test_a_pooled_score_is_that_of_one_token_with_noise_in_its_label():
    """Of covariance |pool|^2: of the teacher's sum it knows the share sum(pool) / (3^(1/2) |pool|)."""
    known = POOL.sum() / np.sqrt(3) / np.linalg.norm(POOL)

    @sf.model(
        noise={"u": sf.GaussianNoise(1)},
        regulariser=sf.Ridge(0.1),
        metric=lambda h, Y, u: (1 - sp.sign(h[0]) * sp.sign(known * Y[0] + np.sqrt(1 - known**2) * u)) / 2,
        starts={"semantic": sf.Start(teacher=0.6)},
    )
    def of_one_token(X: Any, Y: Any, u: Any) -> Any:
        label = sp.sign(known * Y[0] + np.sqrt(1 - known**2) * u)
        return sp.Max(0, 1 - label * np.linalg.norm(POOL) * X[0])

    pooled, alone = (solved(model, alpha=2.0, accuracy=1e-9) for model in (example("pooled_hinge"), of_one_token))
    for name in ("q", "theta"):
        assert getattr(pooled.overlaps, name)[2].item() == pytest.approx(getattr(alone.overlaps, name).item(), rel=1e-8)
    assert pooled.training_loss == pytest.approx(alone.training_loss, rel=1e-8)
    cosine = known * pooled.overlaps.theta[0].item() / np.sqrt(pooled.overlaps.q[0].item())
    assert pooled.test_error == pytest.approx(np.arccos(cosine) / np.pi, rel=1e-9)


@pytest.mark.slow
def test_a_pooled_score_at_finite_size_is_that_of_theory():
    found = sf.simulate(sf.problem(example("pooled_hinge"), alpha=2.0), d=300, seeds=12)
    assert found.plan.method == "newton" and len(found.converged) == 12
    theory, (means, errors) = solved(example("pooled_hinge"), alpha=2.0), found.overlaps
    for name in ("q", "theta"):
        off = getattr(means, name)[0] - getattr(theory.overlaps, name)[0]
        assert np.abs(off).item() < 4 * getattr(errors, name)[0].item()
    loss = found.estimate("training_loss")
    assert abs(loss.mean - theory.training_loss) < 4 * loss.standard_error


# Networks


def linear(X: Any, Q: Any, sigma: Any) -> Any:
    """The autoencoder's loss with the identity in the place of tanh."""
    return (-2 * X[0] ** 2 + X[0] ** 2 * Q[0][0, 0] / sigma**2) / 2


@pytest.mark.parametrize(("alpha", "sigma"), [(2.0, 0.5), (3.0, 0.8)])
@pytest.mark.slow
def test_a_linear_autoencoder_finds_the_principal_component(alpha, sigma):
    """Largest eigenvalue and eigenvector of a spiked covariance: Baik, Ben Arous, Péché 2005; Paul 2007.

    At |W|^2 / d = Q along that eigenvector the risk per d is -(1 - Q/2) Q top + lambda Q / 2.
    """
    ridge, spike = 0.1, 1 / sigma**2
    top = alpha * sigma**2 * (1 + spike) * (1 + 1 / (alpha * spike))
    cosine2 = (1 - 1 / (alpha * spike**2)) / (1 + 1 / (alpha * spike))
    Q = 1 - ridge / (2 * top)
    model = replace(written("autoencoder"), name="linear_autoencoder", loss=linear, metric=None)
    solution = solved(model, "positional", alpha=alpha, sigma=sigma, lambda_=ridge)
    assert solution.overlaps.q[0].item() / sigma**2 == pytest.approx(Q, rel=1e-8)
    assert solution.overlaps.m[0].item() ** 2 == pytest.approx(Q * cosine2, rel=1e-8)
    assert solution.training_loss == pytest.approx(-top * Q**2 / 2, rel=1e-8)


@pytest.mark.slow
def test_the_autoencoder_reconstructs_better_than_no_weights():
    """W = 0 has risk 0 in these units; both clusters are seen with opposite signs."""
    solution = solved(example("autoencoder"), "positional", alpha=2.0)
    m = solution.overlaps.m.ravel()
    assert solution.training_loss < -1 and solution.test_error < -1
    assert m[0] == pytest.approx(-m[1], rel=1e-9)
    assert m[0] > 1


@pytest.mark.slow
def test_the_units_of_a_committee_are_exchangeable():
    """Exchange of both units in student and teacher is a symmetry, and of those of the student another one."""
    one = solved(example("committee"), "specialised", integrator="gauss-hermite", points=12, alpha=8.0)
    q, theta = one.overlaps.q[0], one.overlaps.theta[0]
    assert [q[0, 0], theta[0, 0], theta[0, 1]] == pytest.approx([q[1, 1], theta[1, 1], theta[1, 0]], rel=1e-7)
    assert theta[0, 0] > 0.9 > 0.1 > theta[0, 1]
    crossed = replace(written("committee"), starts={"crossed": sf.Start(teacher=((0, 0.6), (0.6, 0)))})
    other = solved(crossed, "crossed", integrator="gauss-hermite", points=12, alpha=8.0)
    assert other.overlaps.theta[0] == pytest.approx(theta[::-1], rel=1e-7)
    assert other.training_loss == pytest.approx(one.training_loss, rel=1e-9)


# Attention


@pytest.mark.slow
def test_linear_attention_is_that_of_the_catalogue():
    rule: dict[str, Any] = {"integrator": "gauss-hermite", "points": 10, "alpha": 2.0}
    own, known = solved(example("linear_attention"), **rule), solved("linear_attention", **rule)
    assert own.overlaps.pack() == pytest.approx(known.overlaps.pack(), rel=1e-9, abs=1e-12)
    assert [own.training_loss, own.test_error] == pytest.approx([known.training_loss, known.test_error], rel=1e-9)
    assert own.baseline_error == pytest.approx(known.baseline_error, rel=1e-9)


def fixed_temperature() -> Model:
    """The model of trained_temperature with the trained numbers as parameters."""
    model = written("trained_temperature")

    def loss(X: Any, Y: Any, *, omega: Any = 0.3, A: Any = ((0.6, 0.4), (0.4, 0.6)), beta: Any = 1.0, bias: Any = 0.0):  # type: ignore[no-untyped-def]
        return model.loss(X, Y, omega=omega, A=A, beta=beta, bias=bias)

    return replace(model, name="fixed_temperature", loss=loss)


@pytest.mark.slow
def test_the_training_loss_is_stationary_in_the_trained_numbers():
    """Total derivative of the training loss at fixed beta and bias, W minimised: -ridge beta and 0."""
    rule: dict[str, Any] = {"integrator": "prox-space", "points": 56, "alpha": 2.0}
    trained = solved(example("trained_temperature"), **rule)
    beta, bias = trained.overlaps.phi
    free, step = fixed_temperature(), 1e-2
    loss: Callable[..., float] = lambda **at: solved(free, **rule, **at).training_loss  # noqa: E731
    at = {"beta": beta, "bias": bias}
    slopes = [(loss(**at | {n: v + step}) - loss(**at | {n: v - step})) / (2 * step) for n, v in at.items()]
    assert slopes == pytest.approx([-0.002 * beta, 0], abs=2e-6)
    assert trained.training_loss == pytest.approx(loss(**at) + 0.002 * beta**2 / 2, rel=1e-6)


@pytest.mark.slow
def test_query_and_key_share_the_penalty_evenly():
    """W_1 -> a W_1, W_2 -> W_2 / a leaves every attention unchanged, so that lambda_1 |W_1|^2 = lambda_2 |W_2|^2."""
    ridges = np.array([0.01, 0.02])
    problem = sf.problem(example("cross_attention"), alpha=3.0, lambda_=ridges)
    solution = sf.solve(problem, "positional", accuracy=2e-2)
    assert solution.status == "converged"
    parts, widths = (ridges * np.diagonal(o.q[0]) for o in (solution.overlaps, solution.error_bars))
    assert abs(parts[0] - parts[1]) <= 2 * widths.sum()
    assert widths.max() < 0.03 * parts.min()
