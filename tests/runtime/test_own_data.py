"""One's own arrays: the law estimated of them and how far they are from it, a teacher fitted, curves next to points."""

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base.errors import InputError


def power_inputs(n, d, decay, seed=0):
    scale = np.arange(1, d + 1) ** (-decay / 2)
    return np.random.default_rng(seed).standard_normal((n, d)) * scale, scale**2


def test_bins_are_as_many_as_a_power_law_asks_for_and_too_few_are_said(capsys):
    x, _ = power_inputs(6000, 120, 1.5)
    chosen = sf.law_of_data(x)
    assert chosen.binning <= 5e-4 and "warning" not in capsys.readouterr().err
    few = sf.law_of_data(x, atoms=8)
    assert few.binning > 0.05
    assert "warning: 8 bins move averages over the spectrum by" in capsys.readouterr().err
    exact, binned, rough = (
        sf.solve(sf.problem("ridge_regression", alpha=0.5, law=found.law, lambda_=1e-3)).test_error
        for found in (sf.law_of_data(x, atoms=120), chosen, few)
    )
    assert abs(binned / exact - 1) < 1e-3 < 0.02 < abs(rough / exact - 1)


def test_how_far_fields_are_from_gaussian_is_measured(capsys):
    x, _ = power_inputs(4000, 60, 0.5)
    gaussian = sf.law_of_data(x)
    assert abs(gaussian.kurtosis[0]) < 3 * gaussian.kurtosis[1] and gaussian.norms == pytest.approx(1, abs=0.1)
    assert gaussian.spread == pytest.approx(2 * np.sqrt(60 / 4000))
    capsys.readouterr()
    heavy = sf.law_of_data(x * np.random.default_rng(1).exponential(size=(4000, 1)))
    # Of a scale s of its own for every sample: 3 E s^4 / (E s^2)^2 - 3 = 15 for an exponential one.
    assert heavy.kurtosis[0] == pytest.approx(15, rel=0.4) and heavy.norms > 5
    assert "fields are not Gaussian" in capsys.readouterr().err
    assert "excess kurtosis of fields 1" in str(heavy) and "times that of a Gaussian" in str(heavy)


def test_a_teacher_is_fitted_with_its_noise_and_its_length_is_freed_of_it():
    """E gamma pi^2 of the fitted rows is too large by noise d / n or so; what the law has of them is not."""
    noises, seen, freed = [], [], []
    for seed in range(40):
        rng = np.random.default_rng([1, seed])
        x, gamma = power_inputs(400, 40, 0.5, seed)
        w = rng.standard_normal(40)
        fit = sf.fitted_teacher(x, x @ w / np.sqrt(40) + np.sqrt(0.5) * rng.standard_normal(400))
        true = np.mean(gamma * w**2)
        noises.append(fit.noise)
        seen.append(np.mean(gamma * fit.rows[:, 0] ** 2) / true)
        freed.append(sf.law_of_data(x, teacher=fit).law.rho_star.item() / true)
    assert np.mean(noises) == pytest.approx(0.5, rel=0.05)
    width = np.std(freed, ddof=1) / np.sqrt(40)
    assert np.mean(seen) > 1.15 and abs(np.mean(freed) - 1) < 3.5 * width < 0.2
    for bad in ({"ridge": 0.0}, {"y": np.zeros(5)}):
        with pytest.raises(InputError):
            sf.fitted_teacher(**{"x": x, "y": x[:, 0], **bad})


def test_a_measured_curve_lies_on_that_of_theory(tmp_path):
    """Ridge regression on arrays with a given teacher, all of it from the arrays."""
    rng = np.random.default_rng(4)
    x, _ = power_inputs(4000, 100, 0.8, 4)
    y = x @ rng.standard_normal(100) / 10 + 0.5 * rng.standard_normal(4000)
    ridge = 0.3

    def learner(x, y):
        A = x / 10
        w = np.linalg.solve(A.T @ A + ridge * np.eye(100), A.T @ y)
        return lambda fresh: fresh @ w / 10

    fit = sf.fitted_teacher(x, y)
    law = sf.law_of_data(x, teacher=fit).law
    points = sf.learning_curve(x, y, learner, alphas=(0.5, 1, 2), draws=24)
    found = sf.compare_measurements(
        sf.problem("ridge_regression", law=law, Delta=fit.noise, lambda_=ridge), points, points=4
    )
    assert np.all(np.abs(found.deviations) < 4) and np.all(np.abs(found.relative) < 0.05)
    assert len(found.to_pandas()) == 3 and "deviation" in found.table()
    found.plot(tmp_path / "measured.png")
    assert (tmp_path / "measured.png").stat().st_size > 5000


def test_curves_and_points_that_do_not_fit_are_refused():
    x = np.ones((20, 10))
    with pytest.raises(InputError, match="needs 30 training samples"):
        sf.learning_curve(x, x[:, 0], lambda x, y: lambda z: z[:, 0], alphas=[3])
    problem = sf.problem("ridge_regression")
    with pytest.raises(InputError, match="of the same length"):
        sf.compare_measurements(problem, [1, 2], [1], [1])
    with pytest.raises(InputError, match="observable 'q'"):
        sf.compare_measurements(problem, [1], [1], [1], observable="q")


@pytest.mark.parametrize("source", [None, 0.5])
def test_a_binned_power_law_has_the_errors_of_the_whole_spectrum(source):
    whole = sf.power_law(400, 1.6, source, atoms=400)
    binned = sf.power_law(400, 1.6, source)
    assert len(whole) == 400 and len(binned) <= 60
    for rows in (whole, binned):
        assert rows[:, 0].sum() == pytest.approx(1)
    assert binned[:, 0] @ binned[:, 1] == pytest.approx(whole[:, 0] @ whole[:, 1])
    errors = [
        sf.solve(sf.problem("ridge_regression", alpha=0.1, spectrum=rows, lambda_=1e-3)).test_error
        for rows in (whole, binned)
    ]
    assert errors[1] == pytest.approx(errors[0], rel=1e-3)


def test_a_teacher_variance_an_eigenvalue_is_that_of_a_law_with_two_atoms():
    """theta = E gamma pi^2 (1 - lambda R): the third column is the same as a law written out."""
    rows = [[0.3, 2.0, 1.5], [0.7, 0.5, 0.2]]
    law = sf.Tokens(weights=[0.3, 0.7], covariance=[[2.0], [0.5]], teacher=[[[1.5]], [[0.2]]])
    one, other = (
        sf.solve(sf.problem("ridge_regression", alpha=2.0, **given)) for given in ({"spectrum": rows}, {"law": law})
    )
    assert np.allclose(one.overlaps.pack(), other.overlaps.pack(), rtol=1e-9)
    shifted = sf.Tokens([1], [[1]], means=[[1]], taught=[[0.5]], teacher=[[1]])
    with pytest.raises(InputError, match="Gaussian teacher rows that overlap neither"):
        sf.problem("ridge_regression", alpha=2.0, spectrum=rows, law=shifted)


def features(ratio, n, seed, noise, ridge, d=250):
    """Test error of ridge regression on tanh features, of one draw."""
    rng = np.random.default_rng(seed)
    p = round(ratio * d)
    F, t = rng.standard_normal((p, d)), rng.standard_normal(d)

    def drawn(m):
        x = rng.standard_normal((m, d))
        return np.tanh(x @ F.T / np.sqrt(d)), x @ t / np.sqrt(d)

    (phi, y), (fresh, truth) = drawn(n), drawn(4000)
    A = phi / np.sqrt(p)
    w = np.linalg.solve(A.T @ A + ridge * np.eye(p), A.T @ (y + np.sqrt(noise) * rng.standard_normal(n)))
    return np.mean((fresh @ w / np.sqrt(p) - truth) ** 2) + noise


@pytest.mark.parametrize("ratio", [0.6, 2.0])
def test_random_features_learn_as_their_spectrum_says(ratio):
    noise, ridge, d, n = 0.1, 0.02, 250, 300
    found = sf.random_features(ratio)
    p = round(ratio * d)
    chosen = {"spectrum": found.spectrum, "Delta": noise + found.unexplained, "lambda_": ridge}
    theory = sf.solve(sf.problem("ridge_regression", alpha=n / p, **chosen))
    errors = [features(ratio, n, seed, noise, ridge) for seed in range(12)]
    width = np.std(errors, ddof=1) / np.sqrt(12)
    assert abs(np.mean(errors) - theory.test_error) < 4 * width + 0.01 * theory.test_error


def test_random_features_of_a_linear_activation_are_inputs_again():
    """Fewer features than inputs, s(z) = z: eigenvalues of Marchenko and Pastur, min(1, p/d) of the teacher is seen."""
    found = sf.random_features(0.5, lambda z: z)
    assert found.moments == pytest.approx((0, 1, 1), abs=1e-6)
    assert found.unexplained == pytest.approx(0.5, abs=1e-6)
    assert found.spectrum[:, 0] @ found.spectrum[:, 1] == pytest.approx(1.0, abs=1e-6)
    for bad in (lambda z: z**2, lambda z: np.full_like(z, np.nan)):
        with pytest.raises(InputError, match="linear part"):
            sf.random_features(0.5, bad)


def test_an_entry_of_an_array_is_a_parameter():
    problem = sf.problem("committee_machine", alpha=2.0).with_(**{"lambda[2]": 0.3})
    assert problem.parameters["lambda_"].tolist() == [0.01, 0.3] and problem.value_of_parameter("lambda[2]") == 0.3
    for name in ("lambda[3]", "lambda[1,1]", "nothing[1]"):
        with pytest.raises(InputError, match="unknown entry"):
            problem.value_of_parameter(name)
    attention = sf.problem("dot_product_attention", alpha=2.0)
    assert attention.value_of_parameter("A[1,2]") == 0.4
    with pytest.raises(InputError, match=r"for an array A: an entry, as A\[1,2\]"):
        attention.value_of_parameter("A")


def test_a_curve_goes_along_an_entry_of_an_array():
    """The ridge of the only column, by its entry and as a whole."""
    problem = sf.problem("ridge_regression", alpha=2.0)
    entry = sf.curve(problem, over="lambda[1]", values=[0.1, 0.4])
    whole = sf.curve(problem, over="lambda", values=[0.1, 0.4])
    assert [s.test_error for s in entry.solutions] == [s.test_error for s in whole.solutions]
    assert "lambda[1]" in entry.to_pandas().columns
    tuned = sf.tune(problem, "lambda[1]", bracket=(0.05, 1), accuracy=1e-3)
    assert tuned.value == pytest.approx(0.25, rel=3e-3)


def sentences(kind: str, n: int = 1000, d: int = 40) -> np.ndarray:
    """Two tokens, the second as the first, mixed with it, or independent of it."""
    rng = np.random.default_rng(3)
    one, other = rng.standard_normal((2, n, d))
    second = {
        "independent": other,
        "correlated": 0.5 * one + np.sqrt(0.75) * other,
        "shifted": np.roll(one, 1, axis=1),
        "of random sign": one * rng.choice([-1, 1], size=(n, 1)),
    }
    return np.stack([one, second[kind]], axis=1)


def test_tokens_that_depend_on_each_other_are_warned_of_with_their_correlation(capsys):
    known = {"correlated": (0.5, 0.5, 0.25), "shifted": (0, 1, 0), "of random sign": (0, 0, 1)}
    for kind, (value, norm, squares) in known.items():
        found = sf.law_of_data(sentences(kind)).dependence
        assert found.tokens == (1, 2)
        assert found.correlation[0] == pytest.approx(value, abs=4 * found.correlation[1])
        assert found.norm[0] == pytest.approx(norm, abs=max(found.norm[1], 0.02))
        assert found.squares[0] == pytest.approx(squares, abs=4 * found.squares[1])
        words = capsys.readouterr().err
        assert "warning: tokens of a sample depend on each other: tokens 1 and 2" in words
        assert f"the correlation {found.correlation[0]:.3g} +- {found.correlation[1]:.1g}" in words


def test_independent_tokens_are_not_warned_of_whatever_their_labels_and_means(capsys):
    x = sentences("independent")
    labels = np.random.default_rng(4).integers(0, 2, size=len(x))  # of both tokens: what labels explain is allowed
    x[labels == 1] += 0.5
    found = sf.law_of_data(x, np.stack([labels, labels], axis=1))
    assert abs(found.dependence.correlation[0]) < 4 * found.dependence.correlation[1]
    assert "depend on each other" not in capsys.readouterr().err
    assert sf.law_of_data(x[:, 0]).dependence is None
    sf.law_of_data(x)
    assert "depend on each other" in capsys.readouterr().err


def with_constants() -> np.ndarray:
    x = np.random.default_rng(5).standard_normal((90, 1, 20))
    x[:, 0, [0, 7]] = 3.0
    return x


def with_a_sum() -> np.ndarray:
    x = np.random.default_rng(6).standard_normal((90, 20))
    x[:, 5] = x[:, :5].sum(axis=1)
    return x


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((64, 2, 500)), r"x has shape \(64, 2, 500\): its 64 samples have 500 coordinates.*transpose"),
        (np.zeros((50, 2000)), r"x has shape \(50, 2000\): its 50 samples have 2000 coordinates.*transpose"),
        (np.zeros((500, 64, 2)), r"64 tokens of 2 coordinates.*transpose the last two axes"),
        (with_constants(), r"2 of 20 columns of x are constant, counted from 0: 0, 7; .*leave these columns out"),
        (with_a_sum(), r"does not vary in 1 of 20 directions .*linear combinations of others"),
        ([[1.0, 2.0], [3.0]], r"x must be an array of numbers"),
        (np.zeros((0, 3)), r"x must be finite numbers in shape"),
    ],
)
def test_arrays_that_cannot_be_a_law_are_refused_in_a_sentence(x, words):
    with pytest.raises(InputError, match=words):
        sf.law_of_data(x)
