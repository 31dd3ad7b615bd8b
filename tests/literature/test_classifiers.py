"""Hinge loss, Gaussian mixtures, committee machines and hard targets: other methods for the same numbers."""

from typing import Any

import numpy as np
import pytest
import sympy as sp
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import norm

import saddleforge as sf
from saddleforge import Solution
from saddleforge.branches.branch import Branch
from saddleforge.derive.catalogue import catalogue_model
from saddleforge.derive.models.logistic_regression import zero_one_error
from saddleforge.integration import Sobol
from saddleforge.problems.overlaps import Overlaps
from saddleforge.report.solution import describe_parameters_kept_finite


def solved(model: Any, accuracy: float = 1e-6, start: str = "semantic", **parameters: Any) -> Solution:
    solution = sf.solve(sf.problem(model, **parameters), start, accuracy=accuracy)
    assert solution.status == "converged"
    return solution


# Hinge


def hinge_equations(solution: Solution, strength: float) -> np.ndarray:
    """V, q, theta that follow from those of a solution, with the exact proximal map of the hinge, less these.

    With a = sign(Y) omega the proximal point is a + V below 1 - V, 1 up to 1, a beyond. Y given a is a normal law, cut
    at zero: E[Y - mean; Y > 0] is its variance times its density at zero.
    """
    alpha = solution.problem.alpha
    q, V, theta = (float(getattr(solution.overlaps, name).item()) for name in ("q", "V", "theta"))
    spread = np.sqrt(1 - theta**2 / q)

    def field(a: float) -> float:
        return min(1.0, max(0.0, (1 - a) / V))

    def average(function: Any) -> float:
        edges = [1 - V, 1.0]
        whole = (-12 * np.sqrt(q), 12 * np.sqrt(q))
        return quad(lambda a: norm.pdf(a, 0, np.sqrt(q)) * function(a), *whole, points=edges, epsabs=1e-12, limit=400)[
            0
        ]

    sign = lambda a: 2 * norm.cdf(theta * a / q / spread)  # noqa: E731
    q_hat = alpha * average(lambda a: field(a) ** 2 * sign(a))
    theta_hat = alpha * average(lambda a: field(a) * 2 * norm.pdf(theta * a / q / spread)) / spread
    V_hat = alpha / V * quad(lambda a: norm.pdf(a, 0, np.sqrt(q)) * sign(a), 1 - V, 1, epsabs=1e-12)[0]
    R = 1 / (strength + V_hat)
    return np.array([R, R**2 * (theta_hat**2 + q_hat), R * theta_hat]) - [V, q, theta]


@pytest.mark.parametrize("alpha", [0.7, 2.0])
def test_hinge_solves_the_equations_of_its_exact_proximal_map(alpha):
    solution = solved("hinge", alpha=alpha, accuracy=1e-10)
    assert np.abs(hinge_equations(solution, 0.1)).max() < 1e-9


@sf.model(
    regulariser=sf.Ridge(0.1),
    metric=zero_one_error,
    starts={"semantic": sf.Start(teacher="3/5")},
)
def rounded(X, Y, *, rounding=sf.Parameter("1e-7", 0, 1, True, True, vanishing=True)):  # noqa: B008
    """The hinge with its corner rounded, as one may do in several fields."""
    return sf.rounded_hinge(1 - sp.sign(Y[0, 0]) * X[0, 0], rounding)


@pytest.mark.slow
def test_the_hinge_of_a_vanishing_ridge_has_the_largest_margin():
    """Data that are separable: W tends to the classifier of largest margin, V to infinity as 1 / lambda.

    Reference: the hard margin of a teacher's labels, Gardner's stability as in Engel, Van den Broeck (2001), chapter
    3, at alpha = 3: with kappa = 1 / sqrt(q), alpha times the mean of 2 H(- R t / sqrt(1 - R^2)) (kappa - t)^2 over
    normal t < kappa, along the teacher and in all.
    """
    found = sf.solve(sf.problem("hinge", alpha=3.0, lambda_=1e-8))
    assert found.success
    q, theta, V = (float(block.item()) for block in (found.overlaps.q, found.overlaps.theta, found.overlaps.V))
    alpha, R, kappa = 3.0, theta / np.sqrt(q), 1 / np.sqrt(q)

    def mean(f):
        t = lambda x: norm.pdf(x) * 2 * norm.cdf(R * x / np.sqrt(1 - R**2)) * f(x)  # noqa: E731
        return quad(t, -12, kappa, epsabs=1e-13, epsrel=1e-12)[0]

    assert alpha * mean(lambda x: (kappa - x) ** 2) == pytest.approx(1 - R**2, rel=1e-8)
    along = quad(lambda x: norm.pdf(x / np.sqrt(1 - R**2)) * (kappa - x), -12, kappa, epsrel=1e-12)[0]
    assert 2 * alpha / (2 * np.pi) ** 0.5 * along == pytest.approx(R * (1 - R**2) ** 0.5, rel=1e-8)
    weak = sf.solve(sf.problem("hinge", alpha=3.0, lambda_=1e-5))
    assert pytest.approx(1e-5 * float(weak.overlaps.V.item()), rel=1e-9) == 1e-8 * V


def test_a_nearly_noiseless_classifier_with_many_samples_converges():
    """Along the norm of the weights the map contracts by 0.7 per cent, and 1 - cos^2 is 2e-4.

    Reference: the stationarity of the risk in the scale of the weights, E[g X] alpha = lambda q, at the solution.
    """
    found = sf.solve(sf.problem("squared_hinge", alpha=241.0, lambda_=0.047))
    assert found.success and found.relative_error < 1e-6
    q, theta, V = (float(block.item()) for block in (found.overlaps.q, found.overlaps.theta, found.overlaps.V))
    left = np.sqrt(q - theta**2)

    def power(y):  # of max(0, 1 - X) X over X = prox(omega), omega = theta y + left z; (1 + V) X = omega + V below 1
        at = lambda z: norm.pdf(z) * (1 - (theta * y + left * z)) * (theta * y + left * z + V) / (1 + V) ** 2  # noqa: E731
        end = (1 - theta * y) / left
        return 0.0 if end < -12 else 2 * norm.pdf(y) * quad(at, -12, min(end, 12.0), epsrel=1e-11)[0]

    total = quad(power, 0, 3, points=[1 / theta], epsrel=1e-10)[0]
    assert 241 * total == pytest.approx(0.047 * q, rel=1e-6)


def test_error_bars_of_a_rounded_hinge_hold_the_hinge():
    """Also where a branch was followed to the point: error bars take its slopes, not those of where it began."""
    sharp = solved("hinge", alpha=2.0, accuracy=1e-9)
    branch = Branch(sf.problem(rounded, rounding=1e-2), "alpha", "semantic", accuracy=1e-6)
    branch.solution_at_parameter(4.0)
    followed, alone = (
        branch.solution_at_parameter(2.0),
        sf.solve(sf.problem(rounded, alpha=2.0, rounding=1e-2), accuracy=1e-6),
    )
    assert followed.errors == pytest.approx(alone.errors, rel=0.15, abs=1e-8)
    assert (alone.start, alone.rule, followed.rule) == ("informed", sharp.rule, sharp.rule)
    moved = np.abs(alone.overlaps.pack() - sharp.overlaps.pack())
    assert np.all(moved <= alone.errors) and np.all(alone.errors <= 2 * moved + 1e-8)
    assert abs(alone.training_loss - sharp.training_loss) <= alone.training_loss_error
    assert abs(alone.test_error - sharp.test_error) <= alone.test_error_error


@pytest.mark.slow
def test_a_threshold_of_the_rounded_hinge_holds_that_of_the_hinge():
    sharp = sf.where(sf.problem("hinge"), "q = 4", on="semantic", bracket=(2.0, 2.5), accuracy=1e-9)
    found = sf.where(sf.problem(rounded, rounding=1e-2), "q = 4", on="semantic", bracket=(2.0, 2.5), accuracy=1e-3)
    assert sharp.success and found.success and sharp.error < 1e-9
    assert abs(found.value - sharp.value) <= found.error + sharp.error < 1e-3


def test_digits_beyond_double_precision_say_at_which_rounding_they_hold():
    assert sf.problem(rounded).nonzero_vanishing_parameters == {"not_in_the_limit": {"rounding": 1e-7}}
    assert sf.problem("hinge").nonzero_vanishing_parameters == {}
    assert "at rounding = 1e-07 as it stands" in describe_parameters_kept_finite(
        sf.problem(rounded).nonzero_vanishing_parameters
    )
    assert describe_parameters_kept_finite(sf.problem("hinge").nonzero_vanishing_parameters) == ""


# Gaussian mixtures


@pytest.mark.parametrize(("alpha", "sigma"), [(1.0, 1.0), (3.0, 0.7)])
@pytest.mark.slow
def test_strong_ridges_reach_the_bayes_optimal_error_on_two_clusters(alpha, sigma):
    """Mignacco et al., arXiv 2002.11544: for balanced clusters W tends to the mean of y x, whose error is optimal."""
    solution = solved("mixture_classification", alpha=alpha, sigma=sigma, start="positional", **{"lambda": 1e5})
    optimal = norm.sf(1 / (sigma * np.sqrt(1 + sigma**2 / alpha)))
    assert solution.test_error == pytest.approx(optimal, rel=2e-5)


@pytest.mark.slow
def test_weaker_ridges_do_not_reach_it():
    errors = [
        solved("mixture_classification", alpha=1.0, start="positional", **{"lambda": strength}).test_error
        for strength in (0.01, 0.1, 1e5)
    ]
    assert errors[0] > errors[1] > errors[2]


@pytest.fixture(scope="module")
def three_classes() -> Solution:
    problem = sf.problem("mixture_classification", alpha=2.0, clusters=3, student_rank=2)
    return sf.solve(problem, "positional", accuracy=1e-4)


@pytest.mark.slow
def test_three_equal_classes_are_alike(three_classes):
    """The fields' means form a regular simplex again, and every class has the same q and V."""
    assert three_classes.status == "converged"
    overlaps = three_classes.overlaps
    gram = overlaps.m @ overlaps.m.T
    assert gram == pytest.approx(gram[0, 0] * (1.5 * np.eye(3) - 0.5), abs=1e-4)
    assert overlaps.q == pytest.approx(overlaps.q[0, 0, 0] * np.stack([np.eye(2)] * 3), abs=1e-4)


@pytest.mark.slow
def test_three_classes_agree_with_minimisation_at_finite_size(three_classes):
    """Full multinomial logistic regression of three columns, d = 400, 6 data sets, scipy's L-BFGS."""
    d, alpha, K = 400, 2.0, 3
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        frame = np.linalg.qr(rng.standard_normal((d, 2)))[0]
        means = np.array([[np.cos(a), np.sin(a)] for a in 2 * np.pi * np.arange(K) / K]) @ frame.T
        labels = rng.permutation(np.arange(int(alpha * d)) % K)
        x = means[labels] + rng.standard_normal((len(labels), d))
        onehot = np.eye(K)[labels]

        def risk(flat: np.ndarray, x: np.ndarray = x, onehot: np.ndarray = onehot) -> tuple[float, np.ndarray]:
            W = flat.reshape(d, K)
            scores = x @ W / np.sqrt(d)
            log = scores - logsumexp(scores, axis=1, keepdims=True)
            gradient = x.T @ (np.exp(log) - onehot) / np.sqrt(d) + 0.1 * W
            return -(onehot * log).sum() + 0.05 * (W**2).sum(), gradient.ravel()

        best = minimize(risk, np.zeros(d * K), jac=True, method="L-BFGS-B", options={"maxiter": 2000, "gtol": 1e-8})
        W = best.x.reshape(d, K)
        found.append((best.fun / d, (W**2).sum() / d / 2))
    loss, q = np.mean(found, axis=0)
    spread = 3 * np.std(found, axis=0, ddof=1) / np.sqrt(6)
    assert three_classes.training_loss == pytest.approx(loss, abs=spread[0] + 0.01 * loss)
    assert three_classes.overlaps.q[0, 0, 0] == pytest.approx(q, abs=spread[1] + 0.01 * q)


def test_the_wrong_number_of_columns_is_named():
    with pytest.raises(sf.InputError, match="3 clusters need student_rank = 2, not 1"):
        sf.problem("mixture_classification", clusters=3)


# Committee machines


@pytest.mark.slow
def test_a_committee_specialises_with_enough_samples():
    """Every hidden unit finds one of the teacher's, and the two solutions that differ by their order are one."""
    found = sf.solutions(sf.problem("committee_machine", alpha=15.0), accuracy=1e-2)
    best = found[0].overlaps
    theta = np.abs(best.theta[0])
    assert sorted(theta.ravel())[2] > 0.95
    assert max(theta[0].min(), theta[1].min()) < 0.03
    assert best.q[0, 0, 0] == pytest.approx(best.q[0, 1, 1], rel=0.01)
    assert found[0].test_error < 0.003


# Hard targets


@pytest.mark.slow
def test_hard_targets_are_those_of_a_cold_teacher():
    """Averages at given overlaps: softmax at zero temperature is the limit of colder and colder teachers."""
    q, m, theta = np.full((2, 1, 1), 0.2), np.array([[0.05], [-0.05]]), np.full((2, 1, 1), 0.1)
    state = Overlaps(q, np.full((2, 1, 1), 3.0), m, theta)
    rule = Sobol(13, 8)
    hard = rule.averages(sf.problem("hard_attention", alpha=2.0), state)
    gaps = []
    for beta in (30.0, 300.0, 3000.0):
        cold = rule.averages(sf.problem("tempered_attention", alpha=2.0, beta_teacher=beta), state)
        gaps.append(abs(cold.moreau.mean() - hard.moreau.mean()))
    assert gaps[0] > 3 * gaps[1] > 9 * gaps[2]
    assert gaps[2] < 0.02 * hard.moreau.mean()


# Longer sentences and higher rank


@pytest.mark.parametrize(
    "sizes",
    [{"tokens": 4}, {"tokens": 3, "student_rank": 2}, {"student_rank": 3, "teacher_rank": 2}, {"teacher_rank": 2}],
    ids=str,
)
def test_attention_is_well_posed_at_any_length_and_rank(sizes):
    model = catalogue_model("dot_product_attention")
    at = model.at(model.structure(**sizes))
    assert at.X.shape == (sizes.get("tokens", 2), sizes.get("student_rank", 1))
    assert at.Y.shape == (sizes.get("tokens", 2), sizes.get("teacher_rank", 1))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["semantic", "positional"])
def test_three_exchangeable_tokens_have_equal_semantic_overlaps(start):
    """Tokens are exchangeable: semantic overlaps are equal; no stable positional solution was found at alpha = 1.5."""
    solution = sf.solve(sf.problem("dot_product_attention", tokens=3, alpha=1.5), start, accuracy=5e-3)
    assert solution.problem.law.gram[0, :3, :3] == pytest.approx(1.5 * np.eye(3) - 0.5)
    if start == "semantic":
        assert solution.branch == "semantic"
        theta = solution.overlaps.theta.ravel()
        assert theta == pytest.approx([theta.mean()] * 3, abs=3 * solution.errors.max())
    else:
        assert (
            solution.losses is None or not solution.stability.longitudinally_stable or solution.branch != "positional"
        )


@pytest.mark.slow
def test_four_exchangeable_tokens_have_equal_semantic_overlaps():
    solution = sf.solve(sf.problem("dot_product_attention", tokens=4, alpha=2.0), "semantic", accuracy=1e-2)
    assert solution.success
    theta = solution.overlaps.theta.ravel()
    assert theta == pytest.approx([theta.mean()] * 4, abs=3 * solution.errors.max())
