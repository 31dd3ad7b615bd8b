"""Bayes-optimal inference of one field against quadrature in one dimension, written without the package: solutions in
ln V, V what is unknown, from no information on; thresholds by the curve alpha(V)."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfc, expit, log_ndtr, logsumexp, ndtr

import saddleforge as sf
from saddleforge.extensions.bayes.state_evolution import (
    StateEvolutionMap,
    count_noiseless_numbers_per_sample,
    is_information_unbounded_at_recovery,
    is_perfect_recovery_stable,
)

NODES, WEIGHTS = np.polynomial.legendre.leggauss(40)
AROUND = np.array([-12, -6, -3, -1, 0, 1, 3, 6, 12])


def normal(x):
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def panels(breaks):
    low, high = np.array(breaks[:-1])[:, None], np.array(breaks[1:])[:, None]
    return ((high + low + (high - low) * NODES) / 2).ravel(), ((high - low) / 2 * WEIGHTS).ravel()


def by_sign(V):
    """E g^2 of the label sign z: 2 E phi(x)^2 / (V Phi(x)) over x = omega / sqrt V."""
    width = np.sqrt((1 - V) / V)

    def integrand(x):
        return np.exp(-((x / width) ** 2) / 2 - x * x - log_ndtr(x)) / (2 * np.pi)

    far = 12 * width
    breaks = [place for place in (-10, -3, 0, 3) if abs(place) < far]
    found = quad(integrand, -far, min(far, 30), points=breaks, epsabs=0, epsrel=1e-11, limit=400)[0]
    return 2 * found / (V * width * np.sqrt(2 * np.pi))


def by_noise(Delta):
    return lambda V: 1 / (Delta + V)


class Intervals:
    """Labels that say in which of several sets z lies, each a union of intervals; or, by mistake, the other of two."""

    def __init__(self, sets, mistakes=(0.0, 0.0)):
        self.sets, self.mistakes = sets, mistakes
        self.edges = sorted({edge for one in sets for ends in one for edge in ends if np.isfinite(edge)})

    def averages(self, V):
        """E g^2 and E log Z."""
        far, width = 12 * np.sqrt(1 - V), np.sqrt(V)
        breaks = {-far, far, *(np.clip(edge + width * k, -far, far) for edge in self.edges for k in AROUND)}
        omega, weights = panels(sorted(breaks))
        weights = weights * normal(omega / np.sqrt(1 - V)) / np.sqrt(1 - V)
        inside, slopes = [], []
        for one in self.sets:
            low, high = ((np.array([ends[k] for ends in one])[:, None] - omega) / width for k in (0, 1))
            inside.append(np.where(low > 0, ndtr(-low) - ndtr(-high), ndtr(high) - ndtr(low)).sum(axis=0))
            slopes.append((normal(low) - normal(high)).sum(axis=0) / width)
        if any(self.mistakes):
            wrong, other = self.mistakes
            inside = [(1 - wrong) * inside[0] + other * inside[1], wrong * inside[0] + (1 - other) * inside[1]]
            slopes = [(1 - wrong) * slopes[0] + other * slopes[1], wrong * slopes[0] + (1 - other) * slopes[1]]
        squares = evidence = 0.0
        for value, slope in zip(inside, slopes, strict=True):
            there = value > 1e-280
            squares += np.sum((weights * slope**2)[there] / value[there])
            evidence += np.sum((weights * value)[there] * np.log(value[there]))
        return squares, evidence

    def __call__(self, V):
        return self.averages(V)[0]

    @property
    def entropy_of_labels(self):
        shares = [sum(ndtr(high) - ndtr(low) for low, high in one) for one in self.sets]
        return -sum(share * np.log(share) for share in shares)


class Shown(Intervals):
    """Labels that say in which of several intervals z lies, and z itself in some of them."""

    def __init__(self, hidden, shown):
        super().__init__([[ends] for ends in hidden])
        self.shown = shown
        self.edges += [edge for ends in shown for edge in ends if np.isfinite(edge)]

    def averages(self, V):
        squares, evidence = super().averages(V)
        for ends in self.shown:  # z is N(0, 1), and z - omega is N(0, V), given the other
            low, high = np.clip(ends, -12, 12)
            z, weights = panels(np.linspace(low, high, 20))
            x, shares = panels(np.linspace(-12, 12, 20))
            omega = (1 - V) * z[:, None] + np.sqrt(V * (1 - V)) * x
            law = (weights * normal(z))[:, None] * shares * normal(x)
            squares += np.sum(law * ((z[:, None] - omega) / V) ** 2)
            evidence -= np.sum(law * ((z[:, None] - omega) ** 2 / V + np.log(2 * np.pi * V))) / 2
        return squares, evidence


def door(K):
    return Intervals([[(-K, K)], [(-np.inf, -K), (K, np.inf)]])


def smoothly(laws):
    """E g^2 of labels with probabilities that are smooth in z."""
    x, weights = panels(np.linspace(-9, 9, 9))
    omega, shares = panels(np.linspace(-9, 9, 17))

    def squares(V):
        total = 0.0
        for law in laws:
            values = law(np.sqrt(1 - V) * omega[:, None] + np.sqrt(V) * x)
            value = values @ (weights * normal(x))
            slope = values @ (weights * normal(x) * x) / np.sqrt(V)
            total += np.sum((shares * normal(omega) * slope**2)[value > 1e-280] / value[value > 1e-280])
        return total

    return squares


def gaussian(hat):
    return 1 / (1 + hat)


class Mixture:
    """Rows of a mixture of centred or sharp components: what is unknown of them, and E log Z_w."""

    def __init__(self, shares, means, variances):
        self.shares, self.means, self.variances = map(np.array, (shares, means, variances))
        self.entropy = -float(np.sum(self.shares * np.log(self.shares)))

    def both(self, hat):
        widest = np.sqrt(1 + hat * self.variances.max()) + np.sqrt(hat) * np.abs(self.means).max()
        t = np.linspace(-10, 10, 2 * int(50 * widest) + 401)
        unknown = evidence = 0.0
        for share, mean, variance in zip(self.shares, self.means, self.variances, strict=True):
            b = hat * mean + np.sqrt(hat + hat**2 * variance) * t
            left = self.variances[:, None] / (1 + hat * self.variances[:, None])
            centres = self.means[:, None] + (b - hat * self.means[:, None]) * left
            logs = np.log(self.shares)[:, None] - np.log1p(hat * self.variances)[:, None] / 2
            logs = logs + b * self.means[:, None] - hat * self.means[:, None] ** 2 / 2
            logs = logs + (b - hat * self.means[:, None]) ** 2 * left / 2
            total = logsumexp(logs, axis=0)
            posterior = np.exp(logs - total)
            # Differences of pairs, so that little variance is no difference of large numbers.
            spread = sum(
                posterior[i] * posterior[j] * (centres[i] - centres[j]) ** 2
                for i in range(len(centres))
                for j in range(i)
            )
            weights = share * normal(t) * (t[1] - t[0])
            unknown += np.sum(weights * (spread + np.sum(posterior * left, axis=0)))
            evidence += np.sum(weights * total)
        return unknown, evidence

    def __call__(self, hat):
        return self.both(hat)[0]


def sparse(density):
    return Mixture([1 - density, density], [0, 0], [0, 1 / density])


def two_values(p=0.5):
    return Mixture([p, 1 - p], [1, -1], [0, 0])


def unknown(channel, rows, alpha):
    """The solution that state evolution reaches from no information."""
    log_V = np.log(0.999)
    for _ in range(5000):
        before, log_V = log_V, np.log(max(rows(alpha * channel(np.exp(log_V))), 1e-300))
        if log_V < -32 or abs(log_V - before) < 1e-12:
            break
    return np.exp(log_V)


def is_the_solution(problem, V, **how):
    """Compare V with quadrature for rows of variance one: as well known as asked, and within its error bar."""
    best = sf.bayes_optimal(problem, **how)
    assert best.status == "converged"
    assert abs(1 - best.q.item() - V) <= best.error_bars.item()
    assert best.error_bars.item() <= 1e-6 * V + 3e-13
    return best


SIGNS = ("logistic_regression", "hinge", "perceptron")
NOISY = ("ridge_regression", "huber_regression", "l1_regression")
SPARSE = ("lasso_regression", "elastic_net_regression")


@pytest.mark.parametrize("alpha", [8.0, 100.0])
def test_signs_do_not_tell_the_teacher_exactly(alpha):
    V = unknown(by_sign, gaussian, alpha)
    best = is_the_solution(sf.problem("logistic_regression", alpha=alpha), V)
    assert abs(best.test_error - np.arccos(np.sqrt(1 - V)) / np.pi) <= best.test_error_error < 1e-7


def test_noise_does_not_leave_the_teacher_known():
    V = unknown(by_noise(0.25), gaussian, 100.0)
    best = is_the_solution(sf.problem("ridge_regression", alpha=100.0, Delta=0.25), V)
    assert abs(best.test_error - (0.25 + V)) <= best.test_error_error < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("name", [*SIGNS, *NOISY, *SPARSE])
def test_the_remaining_uncertainty_matches_quadrature_down_to_small_values(name, alpha):
    channel = by_sign if name in SIGNS else by_noise(0.25)
    problem = sf.problem(name, alpha=alpha)
    rows = sparse(problem.value_of_parameter("density")) if name in SPARSE else gaussian
    is_the_solution(problem, unknown(channel, rows, alpha))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1e-1, 1e3])
def test_noiseless_teachers_are_recovered_perfectly_with_enough_samples(alpha):
    for name in ("phase_retrieval", "dot_product_attention", "linear_attention"):
        best = sf.bayes_optimal(sf.problem(name, alpha=alpha), accuracy=1e-4)
        assert best.status == ("converged" if alpha < 1 else "perfect_recovery")
        assert np.abs(best.q).max() == (0 if alpha < 1 else best.problem.law.rho_star.max())


def test_numbers_are_counted_that_are_seen_without_noise():
    for name, known in (("ridge_regression", 0), ("hinge", 0), ("phase_retrieval", 1), ("dot_product_attention", 2)):
        assert count_noiseless_numbers_per_sample(StateEvolutionMap(sf.problem(name, alpha=1.0))) == known, name


HEAD = "import saddleforge as sf\nimport sympy as sp\n\n"
DOOR = (
    "def fields(label, side, s, K):\n"
    "    return side * ((1 + label) / 2 * K * (1 - sp.exp(-s)) + (1 - label) / 2 * (K + s))\n\n"
    "output = sf.Output(fields, {'label': (-1, 1)}, {'side': (-1, 1), 's': 'positive'})\n\n"
)
OF_TWO_VALUES = (
    "def law(structure, *, p=sf.Parameter(0.5, 0, 1), sigma=sf.Parameter(1, 0)):\n"
    "    return sf.Tokens(weights=[1], covariance=[[sigma**2]], rows=([p, 1 - p], [(1,), (-1,)]))\n\n"
)
WINDOW = (  # of a < z < b and its complement
    "def fields(label, side, s, a, b):\n"
    "    middle, half = (a + b) / 2, (b - a) / 2\n"
    "    return middle + side * ((1 + label) / 2 * half * (1 - sp.exp(-s)) + (1 - label) / 2 * (half + s))\n\n"
    "output = sf.Output(fields, {'label': (-1, 1)}, {'side': (-1, 1), 's': 'positive'})\n\n"
)
SMOOTH = (
    "output = sf.Output(lambda z: z, {'label': (-1, 1)}, {'z': 'real'}, log_likelihood=lambda label, z, b: LAW)\n\n"
)
PROBIT = SMOOTH.replace("LAW", "sp.log(sp.erfc(-label * z / sp.sqrt(2 * b)) / 2)")
LOGISTIC = SMOOTH.replace("LAW", "-sp.log(1 + sp.exp(-b * label * z))")
FLIPPED = (  # a positive z is mistaken with probability e, a negative one with f
    "output = sf.Output(lambda label, flip, size: label * flip * size, {'label': (-1, 1)}, "
    "{'flip': (-1, 1), 'size': 'positive'}, log_likelihood=lambda label, flip, e, f: "
    "(1 - flip) / 2 * sp.log((1 - label) / 2 * e + (1 + label) / 2 * f) "
    "+ (1 + flip) / 2 * sp.log(1 - (1 + label) / 2 * e - (1 - label) / 2 * f))\n\n"
)
NORMAL = (
    "output = sf.Output(lambda z: z, {'y': 'real'}, {'z': 'real'}, log_likelihood="
    "lambda y, z, b: -((y - z) ** 2) / (2 * b) - sp.log(2 * sp.pi * b) / 2, needs=lambda b: b)\n\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model by its channel and parameters, of Gaussian rows or those that take two values."""
    folder, made = tmp_path_factory.mktemp("channels"), {}

    def of(channel, parameters, rows=True, **values):
        key = (channel, rows)
        if key not in made:
            name = f"channel_{len(made)}"
            made[key] = folder / f"{name}.py"
            law = "law=law, " if rows else ""
            made[key].write_text(
                f"{HEAD}{channel}{OF_TWO_VALUES if rows else ''}@sf.model({law}output=output)\n"
                f"def {name}(X, Y{', *' * bool(parameters)}{''.join(f', {p}=sf.Parameter(1)' for p in parameters)}):\n"
                "    return sf.half_square(Y - X)\n"
            )
        return sf.problem(made[key], **{"alpha": 1.0, **values})

    return of


RECTIFIER = (  # y = max(0, z)
    "output = sf.Output(lambda active, y, s: sp.Piecewise((y, sp.Eq(active, 1)), (-s, True)), "
    "{'active': (0, 1), 'y': 'positive'}, {'s': 'positive'})\n\n"
)
BY_ARITHMETIC = RECTIFIER.replace("sp.Piecewise((y, sp.Eq(active, 1)), (-s, True))", "active * y - (1 - active) * s")
CLIPPED = (  # y = min(K, max(-K, z))
    "output = sf.Output(lambda part, y, s, K: sp.Piecewise((K * sp.tanh(y), sp.Eq(part, 0)), (part * (K + s), True)), "
    "{'part': (-1, 0, 1), 'y': 'real'}, {'s': 'positive'})\n\n"
)
THRESHOLD = (  # y = max(0, |z| - K)
    "output = sf.Output(lambda active, y, side, s, K: "
    "side * sp.Piecewise((K + y, sp.Eq(active, 1)), (K * sp.exp(-s), True)), "
    "{'active': (0, 1), 'y': 'positive'}, {'side': (-1, 1), 's': 'positive'})\n\n"
)
LEAKY = (
    "output = sf.Output(lambda side, y, K: sp.Piecewise((y, sp.Eq(side, 1)), (-y / K, True)), "
    "{'side': (-1, 1), 'y': 'positive'})\n\n"
)


@pytest.mark.parametrize(
    ("channel", "parameters", "hidden", "shown"),
    [
        (RECTIFIER, "", [(-np.inf, 0)], [(0, np.inf)]),
        (BY_ARITHMETIC, "", [(-np.inf, 0)], [(0, np.inf)]),
        (CLIPPED, "K", [(-np.inf, -0.7), (0.7, np.inf)], [(-0.7, 0.7)]),
        (LEAKY, "K", [], [(-np.inf, 0), (0, np.inf)]),
    ],
)
def test_labels_of_an_atom_and_a_continuous_part_are_coordinates_by_cases(model, channel, parameters, hidden, shown):
    by_hand = Shown(hidden, shown)
    problem = model(channel, parameters, rows=False, alpha=0.8, **dict.fromkeys(parameters, 0.7))
    V = unknown(by_hand, gaussian, 0.8)
    best = is_the_solution(problem, V)
    if channel in (RECTIFIER, BY_ARITHMETIC):
        hat, evidence = 0.8 * by_hand(V), by_hand.averages(V)[1]
        phi = (hat * V - np.log1p(hat)) / 2 + 0.8 * evidence
        assert abs(best.free_entropy - phi) <= best.free_entropy_error < 1e-7


def test_numbers_are_counted_where_they_are_seen(model):
    """Barbier et al.: a rectifier's teacher is known from two samples an unknown on."""
    problem = model(RECTIFIER, "", rows=False, alpha=2.2)
    found = sf.bayes_threshold(problem, "information_theoretic")
    assert abs(found.value - 2) <= found.error < 1e-10
    assert is_perfect_recovery_stable(StateEvolutionMap(problem)) and not is_perfect_recovery_stable(
        StateEvolutionMap(problem.with_(alpha=1.9))
    )


def test_a_threshold_of_the_size_has_a_weak_recovery_of_its_own(model):
    """Of max(0, |z| - K): alpha_c = 1 / E[(E[z^2 | y] - 1)^2]."""
    K = 0.7
    inside = 1 - 2 * K * normal(K) / (ndtr(K) - ndtr(-K)) - 1
    square = (ndtr(K) - ndtr(-K)) * inside**2 + 2 * quad(lambda z: normal(z) * (z * z - 1) ** 2, K, np.inf)[0]
    found = sf.bayes_threshold(model(THRESHOLD, "K", rows=False, K=K), "weak_recovery", accuracy=1e-8)
    assert abs(found.value - 1 / square) <= found.error + 1e-12


LONG = (
    "output = sf.Output(lambda label, side, s, K: side * FIELD, {'label': (-1, 1)}, "
    "{'side': (-1, 1), 's': 'positive'})\n\n"
)


@pytest.mark.parametrize(
    "field",
    [
        "((1 + label) / 2 * K * s / (1 + s) + (1 - label) / 2 * (K + s))",
        "K * ((1 + label) / 2 * s / (1 + s) + (1 - label) / 2 * (1 + s) / s)",
        "sp.Piecewise((2 * K * sp.atan(s) / sp.pi, sp.Eq(label, 1)), (K + 1 / s, True))",
        "sp.Piecewise((K * s**3 / sp.sqrt(1 + s**6), sp.Eq(label, 1)), (K * sp.exp(s), True))",
    ],
)
def test_tails_of_coordinates_are_followed_as_far_as_they_reach(model, field):
    """The label of a door is the same in whatever coordinates, also where these have tails of powers."""
    problem = model(LONG.replace("FIELD", field), "K", rows=False, K=0.7, alpha=2.0)
    is_the_solution(problem, unknown(door(0.7), gaussian, 2.0))


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        ("lambda side, s: side * s, {'side': (-1, 1)}, {'s': 'real'}", sf.InputError, "add up to 2,.*more than once"),
        ("lambda side, s: sp.exp(side * s), {'side': (-1, 1)}, {'s': 'positive'}", sf.InputError, "0.5,.*not reach"),
        (
            "lambda side, s: side * sp.log(1 + sp.log(1 + s)) / 4, {'side': (-1, 1)}, {'s': 'positive'}",
            sf.NotConvergedError, "does not converge: .* add up to 0",
        ),
    ],
)  # fmt: skip
def test_a_rule_that_is_too_coarse_is_no_fault_of_the_channel(model, output, error, message):
    with pytest.raises(error, match=message):
        sf.bayes_optimal(model(f"output = sf.Output({output})\n\n", "", rows=False))


@pytest.mark.slow
def test_a_quotient_of_fields_is_an_angle_modulo_pi(tmp_path):
    """In four kinds of coordinates, of which the law of some has tails of powers and is not smooth at zero."""
    found = []
    for name, output in (
        ("angle", "lambda a, r, e: [[e * r * sp.cos(a / 2), e * r * sp.sin(a / 2)]], {'a': 'angle'}, "
         "{'r': 'positive', 'e': (-1, 1)}"),
        ("quotient", "lambda y, z: [[y * z, z]], {'y': 'real'}, {'z': 'real'}"),
        ("divided", "lambda y, z, e: [[e * y * z, e * z]], {'y': 'real'}, {'z': 'positive', 'e': (-1, 1)}"),
        ("logarithm", "lambda u, side, v, e: [[e * sp.exp((v + u) / 2), e * side * sp.exp((v - u) / 2)]], "
         "{'u': 'real', 'side': (-1, 1)}, {'v': 'real', 'e': (-1, 1)}"),
    ):  # fmt: skip
        file = tmp_path / f"{name}.py"
        file.write_text(
            f"{HEAD}@sf.model(student=2, teacher=2, output=sf.Output({output}))\ndef {name}(X, Y):\n"
            "    return sf.half_square(Y[0] - X[0]) + sf.half_square(Y[1] - X[1])\n"
        )
        problem = sf.problem(file, alpha=1.2)
        onset = sf.bayes_threshold(problem, "weak_recovery", accuracy=1e-5)
        assert abs(onset.value - 1) <= onset.error <= 1e-5, name
        found.append(sf.bayes_optimal(problem, accuracy=1e-4))
    angle, *others = found
    for other in others:
        assert (np.abs(other.q - angle.q) <= other.error_bars + angle.error_bars).all()


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0, 1000.0])
def test_channels_of_users_with_noise_leave_something_unknown(model, alpha):
    """Gaussian rows: of a probit, a steep logistic function, labels flipped unequally often, a door without noise."""
    flipped = Intervals([[(0, np.inf)], [(-np.inf, 0)]], (0.1, 0.02))
    for problem, channel in (
        (
            model(PROBIT, "b", rows=False, b=0.25),
            smoothly([lambda z: erfc(z / np.sqrt(0.5)) / 2, lambda z: erfc(-z / np.sqrt(0.5)) / 2]),
        ),
        (model(LOGISTIC, "b", rows=False, b=20.0), smoothly([lambda z: expit(20 * z), lambda z: expit(-20 * z)])),
        (model(FLIPPED, "ef", rows=False, e=0.1, f=0.02), flipped),
        (model(WINDOW, "ab", rows=False, a=-0.4, b=1.1), Intervals([[(-0.4, 1.1)], [(-np.inf, -0.4), (1.1, np.inf)]])),
    ):
        is_the_solution(problem.with_(alpha=alpha), unknown(channel, gaussian, alpha))


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "noise"), [(1.0, 0.2), (3.0, 0.2), (100.0, 0.2), (1000.0, 0.05)])
def test_rows_of_two_values_seen_through_noise_are_never_called_known(model, alpha, noise):
    """Less than 1e-100 of the rows is unknown in the last two cases: q is 1 in doubles, and q^ its limit."""
    problem = model(NORMAL, "b", alpha=alpha, b=noise)
    V = unknown(by_noise(noise), two_values(), alpha)
    best = is_the_solution(problem, V)
    assert not is_information_unbounded_at_recovery(StateEvolutionMap(problem)) and best.q.item() <= 1
    assert best.q_hat.item() == pytest.approx(alpha / (noise + V), rel=1e-5)
    if V < 1e-20:
        phi = -np.log(2) - alpha / 2 * (np.log(2 * np.pi * noise) + 1)
        assert abs(best.free_entropy - phi) <= best.free_entropy_error < 1e-6 * alpha


@pytest.mark.slow
def test_rows_of_two_values_are_known_exactly_from_flipped_labels(model):
    """Information on small changes is unbounded at an edge, noise or not: perfect recovery beyond a fold."""
    problem = model(FLIPPED, "ef", alpha=10.0, e=0.1, f=0.02)
    assert is_information_unbounded_at_recovery(StateEvolutionMap(problem))
    assert sf.bayes_optimal(problem).status == "perfect_recovery"
    perfect = sf.bayes_optimal(problem.with_(alpha=1.0), "informed")
    noise = -(0.1 * np.log(0.1) + 0.9 * np.log(0.9) + 0.02 * np.log(0.02) + 0.98 * np.log(0.98)) / 2
    assert perfect.status == "perfect_recovery"
    assert perfect.free_entropy == pytest.approx(-np.log(2) - noise, rel=1e-9)
    channel = Intervals([[(0, np.inf)], [(-np.inf, 0)]], (0.1, 0.02))
    is_the_solution(problem.with_(alpha=1.0), unknown(channel, two_values(), 1.0))


def curve(channel, rows, V):
    """alpha, free entropy and hat at which so much is unknown."""
    squares, evidence = channel.averages(V)
    hat = brentq(
        lambda h: np.log(max(rows(h), 1e-300) / V), 1e-9, 2 * np.log(4 / V) + 50 / np.sqrt(V), xtol=1e-14, rtol=1e-14
    )
    alpha = hat / squares
    return alpha, rows.both(hat)[1] - hat * (1 - V) / 2 + alpha * evidence


def largest_fold(channel, rows, least=0.03):
    grid = np.exp(np.linspace(np.log(least), np.log(0.98), 120))
    values = [curve(channel, rows, V)[0] for V in grid]
    place = int(np.argmax(values[1:-1])) + 1
    ends = np.log(grid[place - 1]), np.log(grid[place + 1])
    found = minimize_scalar(
        lambda v: -curve(channel, rows, np.exp(v))[0], bounds=ends, method="bounded", options={"xatol": 1e-9}
    )
    return -found.fun, np.exp(found.x)


def is_held(found, expected, accuracy):
    """The error bar is as asked, and holds the truth."""
    assert found.error <= accuracy * expected * (1 + 1e-9)
    assert abs(found.value - expected) <= found.error + 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("K", [0.3, 0.67449])
def test_no_information_is_compared_with_perfect_recovery(model, K):
    """-alpha H(labels) and -H(row): the former is the solution beyond the crossing, too, up to weak recovery."""
    problem, channel = model(DOOR, "K", K=K), door(K)
    expected = np.log(2) / channel.entropy_of_labels
    is_held(sf.bayes_threshold(problem, "information_theoretic", accuracy=1e-6), expected, 1e-6)
    less = sf.bayes_optimal(problem.with_(alpha=0.9 * expected))
    assert less.free_entropy == pytest.approx(-0.9 * np.log(2), rel=1e-6) and less.free_entropy > -np.log(2)


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", [1e-3, 1e-4, 1e-5, 1e-6, 1e-9])
def test_error_bars_of_thresholds_hold_the_truth_however_little_is_asked(model, accuracy):
    """A door and rows of two values of unequal probability, seen at K = 1.5; and of equal ones."""
    problem, channel, rows = model(DOOR, "K", K=1.5, p=0.51), door(1.5), two_values(0.51)
    fold, V = largest_fold(channel, rows)
    assert fold == pytest.approx(2.24143790554, rel=1e-11)
    is_held(sf.bayes_threshold(problem, "algorithmic", accuracy=accuracy), fold, accuracy)

    def excess(v):
        return curve(channel, rows, np.exp(v))[1] + rows.entropy

    crossing = curve(channel, rows, np.exp(brentq(excess, np.log(V) + 1e-3, np.log(0.9), xtol=1e-14)))[0]
    is_held(sf.bayes_threshold(problem, "information_theoretic", accuracy=accuracy), crossing, accuracy)
    slope = 2 * 0.67449 * normal(0.67449)
    inside = 2 * ndtr(0.67449) - 1
    onset = inside * (1 - inside) / slope**2
    even = model(DOOR, "K", K=0.67449, p=0.5)
    is_held(sf.bayes_threshold(even, "weak_recovery", accuracy=accuracy), onset, accuracy)
    is_held(
        sf.bayes_threshold(even, "algorithmic", accuracy=accuracy),
        largest_fold(door(0.67449), two_values())[0],
        accuracy,
    )


@pytest.mark.slow
def test_of_a_window_the_solution_that_knows_a_part_is_compared_with_perfect_recovery(model):
    problem = model(WINDOW, "ab", a=-0.4, b=1.1)
    channel, rows = Intervals([[(-0.4, 1.1)], [(-np.inf, -0.4), (1.1, np.inf)]]), two_values()
    fold, V = largest_fold(channel, rows)
    is_held(sf.bayes_threshold(problem, "algorithmic", accuracy=1e-6), fold, 1e-6)

    def excess(v):
        return curve(channel, rows, np.exp(v))[1] + rows.entropy

    expected = curve(channel, rows, np.exp(brentq(excess, np.log(V) + 1e-3, np.log(0.98), xtol=1e-14)))[0]
    is_held(sf.bayes_threshold(problem, "information_theoretic", accuracy=1e-6), expected, 1e-6)


@pytest.mark.slow
def test_gaussian_rows_seen_through_a_door_never_jump(model):
    with pytest.raises(sf.NotConvergedError, match="never jumps"):
        sf.bayes_threshold(model(DOOR, "K", rows=False, K=0.67449), "information_theoretic", accuracy=1e-6)


class Noise:
    """y = z + noise."""

    def __init__(self, Delta):
        self.Delta = Delta

    def averages(self, V):
        return 1 / (self.Delta + V), -(np.log(2 * np.pi * (self.Delta + V)) + 1) / 2


def between_two(channel, rows, low, high):
    """alpha at which the two solutions around the folds of alpha(V) have the same free entropy, by splines in ln V."""
    knots = np.linspace(np.log(low), np.log(high), 160)
    spline = CubicSpline(knots, [curve(channel, rows, np.exp(v)) for v in knots])
    v = np.linspace(knots[0], knots[-1], 200_001)
    alphas, phis = spline(v).T
    top = np.flatnonzero((alphas[1:-1] > alphas[:-2]) & (alphas[1:-1] > alphas[2:]))[-1] + 1
    bottom = int(np.argmin(alphas[:top]))
    at = np.linspace(alphas[bottom] * 1.0001, alphas[top] * 0.9999, 4001)
    more = np.interp(at, alphas[bottom::-1], phis[bottom::-1])
    less = np.interp(at, alphas[: top - 1 : -1], phis[: top - 1 : -1])
    return np.interp(0.0, more - less, at)


@pytest.mark.slow
def test_sparse_rows_seen_through_little_noise_jump_between_two_solutions():
    """Density 0.2: both know a part; the one that knows more begins where 1 - q is 0.01."""
    problem = sf.problem("lasso_regression", density=0.2, Delta=1e-3)
    found = sf.bayes_threshold(problem, "information_theoretic", accuracy=1e-6)
    assert found.value == pytest.approx(between_two(Noise(1e-3), sparse(0.2), 1e-4, 0.95), rel=1e-5)
    assert found.error <= 1e-6 * found.value


@pytest.mark.slow
def test_rows_of_two_values_jump_to_where_next_to_nothing_is_unknown(model):
    """Noise of variance 0.02: beyond the jump 1e-8 and less is unknown, farther than alpha(s) is looked at."""
    channel, rows = Noise(0.02), two_values()
    found = sf.bayes_threshold(model(NORMAL, "b", b=0.02), "information_theoretic", accuracy=1e-6)
    assert found.value == pytest.approx(between_two(channel, rows, 1e-10, 0.95), rel=1e-5)
    assert found.error <= 1e-6 * found.value
