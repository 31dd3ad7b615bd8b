"""Models with more than a loss of the fields (docs/theory.md (1.3)): q, trained numbers, tasks, any spectrum."""

from typing import Any

import numpy as np
import pytest
import sympy as sp

import saddleforge as sf
from saddleforge import Solution


def solved(model: Any, accuracy: float = 1e-9, start: str = "semantic", **parameters: Any) -> Solution:
    solution = sf.solve(sf.problem(model, **parameters), start, accuracy=accuracy)
    assert solution.status == "converged"
    return solution


NOISE = {"z": sf.GaussianNoise("1/4")}


# Losses that hold q


@sf.model(noise=NOISE, regulariser=sf.Ridge(0.1))
def square_with_q(X, Y, z, Q, *, c=0.2):
    """The square loss and c/2 times the student's own overlap."""
    return (X[0] - Y[0] - z) ** 2 / 2 + c * Q[0][0, 0] / 2


@pytest.mark.slow
def test_a_loss_with_half_c_q_is_a_stronger_ridge():
    """c Q / 2 a sample adds alpha c to lambda (docs/theory.md (5.5))."""
    alpha, c = 1.7, 0.2
    own = solved(square_with_q, alpha=alpha, c=c)
    ridge = solved("ridge_regression", alpha=alpha, **{"lambda": 0.1 + alpha * c})
    assert own.overlaps.pack() == pytest.approx(ridge.overlaps.pack(), rel=1e-10, abs=1e-12)
    assert own.training_loss == pytest.approx(ridge.training_loss, rel=1e-10)
    assert own.stability.replicon == pytest.approx(ridge.stability.replicon, rel=1e-8)
    assert abs(own.losses.identity_gap) < 1e-11


# Numbers trained with the weights


@sf.model(
    noise=NOISE, regulariser=sf.Ridge(0.1), metric=lambda h, Y, scale, bias: (scale * h[0] + bias - Y[0] - 1) ** 2
)
def with_trained_numbers(X, Y, z, *, scale=sf.trained(1, ridge=0.3), bias=sf.trained(0)):
    """The square loss on labels shifted by one, with a trained scale and bias."""
    return (scale * X[0] + bias - Y[0] - z - 1) ** 2 / 2


@sf.model(noise=NOISE, regulariser=sf.Ridge(0.1))
def with_given_numbers(X, Y, z, *, scale=1, bias=0):
    """The same with numbers that are given."""
    return (scale * X[0] + bias - Y[0] - z - 1) ** 2 / 2


@pytest.fixture(scope="module")
def trained() -> Solution:
    return solved(with_trained_numbers, alpha=1.7)


@pytest.mark.slow
def test_a_trained_bias_finds_the_shift_of_the_labels(trained):
    assert trained.overlaps.phi[1] == pytest.approx(1, rel=1e-9)


@pytest.mark.slow
def test_trained_numbers_minimise_the_training_loss(trained):
    """The loss with numbers given has its minimum where they were trained to: equal there, higher and even around."""
    scale, bias = trained.overlaps.phi

    def loss(scale: float, bias: float) -> float:
        return solved(with_given_numbers, alpha=1.7, scale=scale, bias=bias).training_loss + 0.3 * scale**2 / 2

    assert loss(scale, bias) == pytest.approx(trained.training_loss, rel=1e-11)
    assert abs(trained.losses.identity_gap) < 1e-10
    for step in (np.array([0.01, 0.0]), np.array([0.0, 0.01])):
        there, back = loss(*(trained.overlaps.phi + step)), loss(*(trained.overlaps.phi - step))
        assert min(there, back) > trained.training_loss + 1e-6
        assert there - back == pytest.approx(0, abs=0.02 * (there + back - 2 * trained.training_loss))


@pytest.mark.slow
def test_trained_numbers_are_reported_by_name(trained):
    out = trained.to_json()
    assert out["trained"] == {"scale": trained.overlaps.phi[0], "bias": trained.overlaps.phi[1]}
    assert 0 <= out["errors"]["trained"]["bias"] < 1e-8
    assert "  scale 0.7" in trained.table()


@pytest.mark.slow
def test_the_test_error_uses_the_trained_numbers(trained):
    q, theta, scale = trained.overlaps.q.item(), trained.overlaps.theta.item(), trained.overlaps.phi[0]
    assert trained.test_error == pytest.approx(scale**2 * q - 2 * scale * theta + 1, rel=1e-8)


def test_a_trained_number_belongs_to_the_loss():
    with pytest.raises(sf.ModelError, match=r"the trained number scale \(sf.trained\); declare it in the loss"):
        sf.model(metric=lambda h, Y, scale=sf.trained(1): h[0] * scale)(lambda X, Y: (X[0] - Y[0]) ** 2)


# Several tasks that share the weights


def task_law(structure: Any, *, share: Any = 0.5) -> sf.Tokens:
    """A label a sample says to which task it belongs; its law is the share of each task in all samples."""
    return sf.Tokens([1], [[1, 1]], [[[0, 0, 0], [0, 0, 0], [0, 0, 1]]], [share, 1 - share], [[0], [0]])


@sf.model(clusters=2, law=task_law, noise=NOISE, regulariser=sf.Ridge(0.1))
def two_tasks(X, Y, z, k, *, one=1.0, other=1.0):
    """Square losses of two weights, one a task."""
    error = (X[0] - Y[0] - z) ** 2 / 2
    return sf.by_label(k[0], one * error, other * error)


@pytest.mark.slow
def test_two_tasks_that_are_one_are_one():
    both = solved(two_tasks, alpha=1.7, share=0.3)
    single = solved("ridge_regression", alpha=1.7)
    assert both.overlaps.q.ravel() == pytest.approx([single.overlaps.q.item()] * 2, rel=1e-10)
    assert both.overlaps.theta.ravel() == pytest.approx([single.overlaps.theta.item()] * 2, rel=1e-10)
    assert both.training_loss == pytest.approx(single.training_loss, rel=1e-10)


@pytest.mark.slow
def test_a_task_without_weight_leaves_the_samples_of_the_other():
    both = solved(two_tasks, alpha=2.0, share=0.3, other=0.0)
    single = solved("ridge_regression", alpha=0.6)
    assert both.overlaps.theta[0].item() == pytest.approx(single.overlaps.theta.item(), rel=1e-9)
    assert both.training_loss == pytest.approx(single.training_loss, rel=1e-9)


@pytest.mark.slow
def test_the_hats_of_two_tasks_add_up():
    """alpha_k = share_k alpha samples of loss weight c_k: V = 1 / (lambda + sum_k alpha_k c_k / (1 + c_k V))."""
    both = solved(two_tasks, alpha=2.0, share=0.3, one=1.0, other=0.2)
    V = both.overlaps.V[0].item()
    assert pytest.approx(0.1 + 0.6 / (1 + V) + 1.4 * 0.2 / (1 + 0.2 * V), rel=1e-9) == 1 / V


# Spectra


@pytest.mark.slow
def test_equal_atoms_of_the_spectrum_are_isotropic_tokens(attention):
    base = attention(2.0, "semantic", 1e-6)
    split = solved("dot_product_attention", accuracy=1e-6, alpha=2.0, spectrum=[[0.3, 0.25], [0.7, 0.25]])
    assert split.overlaps.pack() == pytest.approx(base.overlaps.pack(), rel=1e-9, abs=1e-12)
    assert split.stability.replicon == pytest.approx(base.stability.replicon, rel=1e-6)


def test_two_atoms_of_the_spectrum_make_semantic_learning_cheaper(attention):
    """Eigenvalues 0.15 and 0.35 at the same mean 0.25: an eigenvalue a token is the same as one for all."""
    base = attention(2.0, "semantic", 1e-6)
    joint = [[0.5, 0.15, 0.15], [0.5, 0.35, 0.35]]
    one, other = (
        solved("dot_product_attention", accuracy=1e-6, alpha=2.0, spectrum=spectrum)
        for spectrum in ([[0.5, 0.15], [0.5, 0.35]], joint)
    )
    assert one.overlaps.pack() == pytest.approx(other.overlaps.pack(), rel=1e-12, abs=1e-14)
    assert one.training_loss < base.training_loss - 1e-4


def test_ridge_on_two_atoms_solves_the_equations_of_a_general_covariance():
    """Hastie et al. 2022: V = E[s R], R = 1 / (lambda + alpha s / (1 + V)), and bias and variance from it."""
    spectrum = np.array([[0.5, 0.5], [0.5, 1.5]])
    solution = solved("ridge_regression", alpha=1.3, spectrum=spectrum.tolist())
    weights, s = spectrum.T
    V, q, theta = (getattr(solution.overlaps, name).item() for name in ("V", "q", "theta"))
    shrink = 1.3 / (1 + V)
    R = 1 / (0.1 + s * shrink)
    noise = 1.3 * (1 + 0.25 + q - 2 * theta) / (1 + V) ** 2
    assert weights @ (s * R) == pytest.approx(V, rel=1e-9)
    assert weights @ (s * s * shrink * R) == pytest.approx(theta, rel=1e-9)
    assert weights @ (s * R**2 * (s**2 * shrink**2 + s * noise)) == pytest.approx(q, rel=1e-9)


@pytest.mark.parametrize(
    ("spectrum", "message"),
    [
        (
            [0.5, 0.25],
            r"spectrum has shape \(2,\); every row must be a weight and an eigenvalue, .* and 2 eigenvalues",
        ),
        ([[0.5, 0.2, 0.2, 0.2, 1]], r"spectrum has shape \(1, 5\)"),
        ([[0.5, 0.25], [0.4, 0.25]], r"spectral weights must be non-negative and add up to 1; they add up to 0.9"),
        ([[1.0, -0.25]], r"eigenvalues gamma of the token covariances must be positive"),
        ([[1.0, float("nan")]], r"spectrum contains numbers that are not finite"),
        ("flat", r"spectrum = 'flat': rows of numbers \[weight, eigenvalue\] are expected"),
    ],
)
def test_an_impossible_spectrum_is_refused(spectrum, message):
    with pytest.raises(sf.InputError, match=message):
        sf.problem("dot_product_attention", spectrum=spectrum)


# Laws from data


def sampled(n: int, d: int, rng: np.random.Generator, shared: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two tokens of two clusters: eigenvalues 0.15 and 0.35, twice that in cluster 1, opposite means of length 1.5."""
    eigenvalues = np.repeat([0.15, 0.35], d // 2)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    other = basis if shared else np.linalg.qr(rng.standard_normal((d, d)))[0]
    direction = rng.standard_normal(d)
    direction *= 1.5 / np.linalg.norm(direction)
    labels = np.where(rng.random((n, 1)) < 0.7, 0, 1) * np.ones((1, 2), int)
    z = rng.standard_normal((n, 2, d)) * np.sqrt(eigenvalues)
    x = np.where(labels[..., None] == 0, z @ basis.T + direction, np.sqrt(2) * z @ other.T - direction)
    return x, labels, direction


def test_a_law_is_found_in_data():
    x, labels, direction = sampled(8000, 100, np.random.default_rng(0))
    found = sf.law_of_data(x, labels, atoms=2)
    law = found.law
    assert law.labels == pytest.approx(np.array([[0.7, 0], [0, 0.3]]), abs=0.02)
    expected = np.array([[0.15, 0.30, 0.15, 0.30], [0.35, 0.70, 0.35, 0.70]])
    assert law.gamma == pytest.approx(expected, rel=0.03)
    gram = np.einsum("a,aij->ij", law.weights, law.gram)
    signs = np.array([1, -1, 1, -1])
    assert gram[:4, :4] == pytest.approx(np.outer(signs, signs) * (direction @ direction), abs=0.08)
    assert found.misfit == pytest.approx(found.misfit_of_noise, rel=0.2)


def test_eigenvectors_that_are_not_shared_are_noticed():
    x, labels, _ = sampled(8000, 100, np.random.default_rng(0), shared=False)
    found = sf.law_of_data(x, labels, atoms=2)
    assert found.misfit > 1.5 * found.misfit_of_noise


def test_tokens_from_arrays_solve_like_the_law_they_were_drawn_from():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((8000, 2, 200)) * np.sqrt(np.repeat([0.15, 0.35], 100))
    ones = np.ones(200) / np.sqrt(200)
    law = sf.Tokens.from_arrays(x, encodings=np.stack([ones, -ones]), atoms=2)
    spectrum = [[0.5, 0.15], [0.5, 0.35]]
    data, exact = (
        sf.solve(sf.problem("dot_product_attention", alpha=2.0, **own), accuracy=1e-3)
        for own in ({"law": law}, {"spectrum": spectrum})
    )
    assert data.training_loss == pytest.approx(exact.training_loss, rel=0.02)
    assert data.overlaps.theta == pytest.approx(exact.overlaps.theta, rel=0.02)


def test_a_teacher_in_the_data_is_kept():
    rng = np.random.default_rng(2)
    w = rng.standard_normal((100, 1)) * np.repeat([2.0, 0.0], 50)[:, None]
    x = rng.standard_normal((4000, 100)) * np.sqrt(np.repeat([0.5, 1.5], 50))
    law = sf.law_of_data(x, teacher=w, atoms=2).law
    expected = (w[:, 0] ** 2 * np.repeat([0.5, 1.5], 50)).mean()
    assert law.rho_star.item() == pytest.approx(expected, rel=0.1)


def test_data_tell_the_overlap_of_the_encodings_from_that_of_the_means():
    rng = np.random.default_rng(3)
    w = rng.standard_normal((60, 1))
    x = rng.standard_normal((600, 2, 60)) + 0.3 * w[:, 0] / np.sqrt(60)
    p = np.stack([0.5 * w[:, 0], rng.standard_normal(60)]) / np.sqrt(60)
    law = sf.law_of_data(x, encodings=p, teacher=w, atoms=4).law
    assert law.encodings_taught == pytest.approx(p @ w / np.sqrt(60), abs=1e-12)
    tokens = sf.Tokens.from_arrays(x, encodings=p, teacher=w, atoms=4)
    assert np.array(tokens.exact_arrays_of_law()["teacher_means"], float) == pytest.approx(law.teacher_means, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": np.zeros((3, 2, 4, 5))}, r"x must be finite numbers in shape \(n, L, d\)"),
        ({"x": np.full((9, 4), np.inf)}, r"x must be finite numbers"),
        ({"x": np.ones((9, 4)), "labels": np.zeros(8, int)}, r"labels must be whole numbers from 0 in shape \(9, 1\)"),
        ({"x": np.ones((9, 4)), "labels": np.zeros(9)}, r"labels must be whole numbers"),
        ({"x": np.ones((3, 4)), "labels": np.array([0, 0, 1])}, r"label 1 of token 0 was seen 1 times"),
        ({"x": np.ones((9, 4)), "atoms": 5}, r"atoms = 5 is out of range; allowed are whole numbers from 1 to 4"),
        ({"x": np.ones((9, 4)), "encodings": np.ones(3)}, r"encodings have shape \(3,\); \(1, 4\) is expected"),
    ],
)
def test_data_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(sf.InputError, match=message):
        sf.law_of_data(**arguments)


def ridge_at_finite_size(d: int, seed: int, seen_by_teacher: bool) -> tuple[float, float]:
    """Training loss and test error of a ridge regression whose inputs have a mean that overlaps the teacher by 0.9."""
    rng = np.random.default_rng(seed)
    along, across = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
    teacher, shift = np.sqrt(d) * along, 0.9 * along + np.sqrt(2 - 0.9**2) * across
    z = rng.standard_normal((2 * d, d))
    y = (z + seen_by_teacher * shift) @ teacher / np.sqrt(d) + 0.5 * rng.standard_normal(2 * d)
    x = (z + shift) / np.sqrt(d)
    w = np.linalg.solve(x.T @ x + 0.1 * np.eye(d), x.T @ y)
    loss = (np.sum((y - x @ w) ** 2) / 2 + 0.05 * w @ w) / d
    bias = shift @ (seen_by_teacher * teacher - w) / np.sqrt(d)
    return loss, np.sum((teacher - w) ** 2) / d + bias**2 + 0.25


@pytest.mark.parametrize(
    ("products", "seen"),
    [
        ({"means": [[2]], "taught": [[0.9]]}, True),
        ({"encodings": [[2]], "encodings_taught": [[0.9]]}, False),
        ({"gram": [[[2, 0.9], [0.9, 1]]]}, True),
        ({"gram": [[[2, 0.9], [0.9, 1]]], "encodings_taught": [[0.9]]}, False),
    ],
)
def test_the_teacher_sees_the_mean_and_not_the_encoding(products, seen):
    """Both make the same Gram matrix of (tau, pi), and are different problems."""
    law = sf.Tokens([1], [[1]], **({} if "gram" in products else {"teacher": [[1]]}), **products)
    found = sf.solve(sf.problem("ridge_regression", alpha=2, law=law))
    runs = np.array([ridge_at_finite_size(150, seed, seen) for seed in range(10)])
    errors = runs.std(axis=0, ddof=1) / np.sqrt(10)
    assert np.abs(runs.mean(axis=0) - [found.training_loss, found.test_error]) == pytest.approx(0, abs=4 * errors.max())


@pytest.mark.slow
def test_two_clusters_whose_means_overlap_the_teacher_agree_with_simulation():
    """Theory and simulation read one law; what the law leaves out follows."""

    def opposite(structure):
        return sf.Tokens([1], [[1, 1]], [[[1, -1, 0.8], [-1, 1, -0.8], [0.8, -0.8, 1]]], ["1/2", "1/2"])

    @sf.model(clusters=2, law=opposite, regulariser=sf.Ridge(0.1),
              metric=lambda h, Y: (1 - sp.sign(h[0]) * sp.sign(Y[0])) / 2,
              loss_kinks=lambda Y: Y[0], metric_kinks=lambda h, Y: [h[0], Y[0]])  # fmt: skip
    def shifted_labels(X, Y):
        return sf.half_square(sp.sign(Y[0]) - X[0])

    problem = sf.problem(shifted_labels, alpha=2)
    assert problem.law.teacher_means == pytest.approx(np.array([[0.8], [-0.8]]))
    theory = sf.solve(problem, accuracy=1e-5)
    runs = sf.simulate(problem, d=300, seeds=24).runs
    for name in ("training_loss", "test_error"):
        values = np.array([getattr(run, name) for run in runs])
        error = values.std(ddof=1) / np.sqrt(len(values))
        assert values.mean() == pytest.approx(getattr(theory, name), abs=4 * error + 2e-3)


def test_a_law_of_another_structure_is_refused():
    law = sf.Tokens([1], [[1]], [[[0, 0], [0, 1]]], [1], [[0]])
    with pytest.raises(sf.InputError, match=r"law has 1 .* pairs and Gram matrices of shape \(2, 2\); 2 pairs and"):
        sf.problem("dot_product_attention", law=law)
    with pytest.raises(
        sf.InputError, match=r"law.teacher_means\[0\]\[0\] is 0, but the rest of the law gives 1/2: .* encodings_taught"
    ):
        sf.problem("ridge_regression", law=sf.Tokens([1], [[1]], [[[1, 0.5], [0.5, 1]]], teacher_means=[[0]]))
    with pytest.raises(sf.InputError, match="law must be Tokens whose entries are numbers"):
        sf.problem("dot_product_attention", law=3)


# Losses that are refused


@pytest.mark.parametrize("loss", [lambda X, Y: -(X[0] ** 2), lambda X, Y: X[0] ** 3, lambda X, Y: -X[0] * Y[0]])
def test_a_loss_without_a_lower_bound_is_refused(loss):
    with pytest.raises(
        sf.InputError, match=r"the loss has no lower bound \(.* at x_0_0 = .*declare @sf.model\(unbounded"
    ):
        sf.problem(sf.model(name="falling")(loss))


@pytest.mark.slow
def test_a_loss_that_the_ridge_holds_may_be_declared():
    """Hebb's rule: loss -X Y, so that w = alpha * (mean of x y) / lambda and q = alpha (1 + alpha) / lambda^2."""
    hebb = sf.model(name="hebb", unbounded=True, regulariser=sf.Ridge(0.5))(lambda X, Y: -X[0] * Y[0])
    solution = solved(hebb, alpha=2.0)
    assert solution.overlaps.theta.item() == pytest.approx(2.0 / 0.5, rel=1e-9)
    assert solution.overlaps.q.item() == pytest.approx(2.0 * 3.0 / 0.5**2, rel=1e-9)
    assert solution.stability.replicon == 0 and solution.stability.verdict.startswith("RS stable")
