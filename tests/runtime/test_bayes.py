"""Bayes-optimal inference in numbers: gradients of the free entropy, limits, bounds, and published thresholds.

Real phase retrieval: J. Barbier, F. Krzakala, N. Macris, L. Miolane, L. Zdeborova, PNAS 116 (2019) 5451 (weak recovery
at 1/2, algorithmic threshold 1.13). Binary perceptron: the same; G. Gyorgyi, Phys. Rev. A 41 (1990) 7097. Product of
two: E. Troiani et al., arXiv 2405.15480. Nine digits of each are those of the issue this was written for.
"""

from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import block_diag

import saddleforge as sf
from saddleforge.base.options import options_in_force
from saddleforge.channel.nodes import tensor_product_rule
from saddleforge.extensions.bayes import sampling
from saddleforge.extensions.bayes.averages import (
    DecorrelatingBasis,
    SumTruncation,
    average_channel_by_matrix_products,
    sum_weighted_squares,
)
from saddleforge.extensions.bayes.channel import OutputChannel, OutputChannelOptions, find_shift_coordinate
from saddleforge.extensions.bayes.prediction import is_metric_squared_distance, least_errors_by_metric
from saddleforge.extensions.bayes.prior import TeacherRowPrior
from saddleforge.extensions.bayes.sampling import UnknownColumnRule, find_half_line_posterior
from saddleforge.extensions.bayes.state_evolution import StateEvolutionMap, count_noiseless_numbers_per_sample

EXAMPLES = Path(__file__).parents[2] / "examples"


def nine_digits(found, expected):
    assert abs(found.value - expected) < 6e-10 + found.error
    assert found.error < 1e-9


@pytest.fixture(scope="module")
def phase_retrieval():
    state = StateEvolutionMap(sf.problem("phase_retrieval"))
    state.refine_quadrature(0.4 * state.rho, 1.0, 1e-10)
    return state


@pytest.mark.parametrize("share", [0.05, 0.4, 0.7])
def test_the_update_is_the_gradient_of_the_free_entropy(phase_retrieval, share):
    """2 d/dq E log Z_out = E g^2 and 2 d/dq^ E log Z_w = E f^2 (Nishimori)."""
    state, step = phase_retrieval, 1e-3
    unit = np.ones_like(state.rho)

    def fourth_order(function):
        near, far = (function(step) - function(-step)), (function(2 * step) - function(-2 * step))
        return (8 * near - far) / (12 * step)

    q = share * state.rho
    slope = fourth_order(lambda e: state.channel.channel_averages(q + e * unit).log_evidence)
    assert 2 * slope == pytest.approx(state.channel.channel_averages(q).outer.item(), rel=1e-8)
    slope = fourth_order(lambda e: state.prior.overlaps_and_log_partition(q + e * unit)[1])
    assert 2 * slope == pytest.approx(state.prior.posterior_overlaps(q).item(), rel=1e-8)


def test_the_response_is_the_derivative_of_the_averages(phase_retrieval):
    """d E g^2 / dq = E (dg/domega)^2, docs/theory.md (13.9)."""
    state, step = phase_retrieval, 1e-4
    q = 0.4 * state.rho
    slope = (state.channel.channel_averages(q + step).outer - state.channel.channel_averages(q - step).outer) / (
        2 * step
    )
    assert state.channel.channel_averages(q, curved=True).response.item() == pytest.approx(slope.item(), rel=1e-6)


DEEP = EXAMPLES / "deep_attention.py"


@pytest.fixture(scope="module")
def deep():
    return sf.problem(DEEP, alpha=0.4, c=1)


@pytest.mark.slow
def test_products_and_draws_agree_where_fields_stay_hidden(deep):
    """Second column known to 0.3: two ways to integrate that share no nodes."""
    state = StateEvolutionMap(deep)
    q = np.repeat(np.diag([0.0, 0.3])[None], deep.contexts, axis=0)
    state.channel.counts = [24, 18, 18, 16, 16]
    product = state.channel.channel_averages(q, curved=True)
    drawn = state.channel.planted.channel_averages(q, curved=True)
    assert product.norm == pytest.approx(1, abs=1e-3)
    for one, other in (
        (product.outer[0, 1, 1], [sample.outer[0, 1, 1] for sample in drawn.samples]),
        (product.response[0, 0, 0, 0, 0, 0], [sample.response[0, 0, 0, 0, 0, 0] for sample in drawn.samples]),
    ):
        assert one == pytest.approx(np.mean(other), abs=4 * np.std(other) / np.sqrt(7) + 2e-3 * one)
    assert product.outer[:, 0] == pytest.approx(0, abs=1e-12)


def _by_sums(fields, measure, log_weights, known, unknown, nodes, weights):
    """The averages of `average_channel_by_matrix_products` by the sum over all hidden nodes at every omega."""
    t = known.shape[1]
    precision = block_diag(*np.linalg.inv(unknown))
    log_norm = -np.linalg.slogdet(2 * np.pi * unknown)[1].sum() / 2
    rows = []
    for some, log_measure, log_weight in zip(fields, measure, log_weights, strict=True):
        step = some - nodes[:, None]
        exponent = log_measure + log_norm - np.einsum("mhi,ij,mhj->mh", step, precision, step) / 2
        value = np.logaddexp.reduce(exponent, axis=1)
        posterior = np.exp(exponent - value[:, None])
        mean = np.einsum("mh,mhi->mi", posterior, step)
        spread = np.einsum("mh,mhi,mhj->mij", posterior, step, step) - mean[:, :, None] * mean[:, None]
        share = weights * np.exp(value + log_weight)
        curvature = precision @ spread @ precision - precision
        rows.append([share.sum(), share @ value, *sum_weighted_squares(share, mean @ precision, curvature, t)])
    return np.sum(rows, axis=0)


@pytest.mark.parametrize("columns", [(0.0, 0.6), (0.3, 0.6)])
def test_products_of_matrices_are_the_sums_over_all_hidden_nodes(columns):
    """Of one token, with correlated columns; of the second case both directions vary."""
    random = np.random.default_rng(3)
    turn = np.linalg.cholesky([[1.0, 0.4], [0.4, 1.0]])
    known = turn @ np.diag(columns) @ turn.T
    unknown = turn @ (np.eye(2) - np.diag(columns)) @ turn.T
    fields, measure, log_weights = random.normal(size=(5, 300, 2)), random.normal(size=(5, 300)), np.full(5, -3.0)
    found = DecorrelatingBasis.from_covariances(known[None], unknown[None])
    grid = found.omega_grid(30, SumTruncation())
    axes = [a for a in (grid.first, *grid.others)]
    nodes, weights = tensor_product_rule([(a.nodes, a.weights) for a in axes])
    omega = nodes @ found.to_fields[:, [a.direction for a in axes]].T
    assert weights.sum() == pytest.approx(1, abs=1e-6)
    assert np.cov(omega.T, aweights=weights, bias=True) == pytest.approx(known, abs=1e-6)
    whole = average_channel_by_matrix_products(
        fields, measure, log_weights, measure, np.zeros(300), found, grid, (1, 2), SumTruncation(), curved=True
    )
    assert whole == pytest.approx(
        _by_sums(fields, measure, log_weights, known[None], unknown[None], omega, weights), rel=1e-9, abs=1e-12
    )


def test_a_sign_that_no_hidden_node_has_does_not_count():
    """All nodes are shifted by + m: on a grid of both signs, and of the one that is there."""
    random = np.random.default_rng(5)
    fields, measure = random.normal(size=(4, 40, 1)), random.normal(size=(4, 40))
    found, shifts = (
        DecorrelatingBasis.from_covariances(np.full((1, 1, 1), 0.6), np.full((1, 1, 1), 0.4)),
        np.ones(40),
    )
    cut = SumTruncation()
    both, one = (
        average_channel_by_matrix_products(
            fields, measure, np.zeros(4), measure, shifts, found,
            found.shifted_omega_grid(0, np.array(factors), 6.0, 24, 30, cut), (1, 1), cut, curved=True,
        )
        for factors in ((-1.0, 1.0), (1.0,))
    )  # fmt: skip
    assert both == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("share", [1e-4, 1e-7])
@pytest.mark.slow
def test_no_more_is_left_out_of_sums_by_products_than_is_said(deep, share):
    channel, q = OutputChannel(deep), np.repeat(np.diag([0.2, 0.9])[None], deep.contexts, axis=0)
    channel.counts = [10] * len(channel.counts)
    whole = channel.channel_averages(q, curved=True)
    channel.cut = SumTruncation(share)
    less = channel.channel_averages(q, curved=True)
    for name in ("outer", "response", "log_evidence", "norm"):
        lost = np.abs(getattr(less, name) - getattr(whole, name)).max() / np.abs(getattr(whole, name)).max()
        assert lost < share, name
    assert np.abs(less.outer - whole.outer).max() > 1e-3 * share * whole.outer.max()


def test_labels_with_the_same_sums_are_summed_once(monkeypatch):
    """Two clusters with opposite means: what is observed tells no common sign, so that two of four choices are new."""
    problem = sf.problem("attention_on_mixture", taught=[[-0.2], [0.2]] * 2)
    channel, q = OutputChannel(problem), np.full((4, 1, 1), 0.1)
    assert len({channel._key_of_equal_averages(q, labels) for labels, _ in problem.label_probabilities}) == 2
    once = channel.channel_averages(q, curved=True)
    monkeypatch.setattr(OutputChannel, "_key_of_equal_averages", lambda self, q, labels: labels)
    each = OutputChannel(problem).channel_averages(q, curved=True)
    for name in ("outer", "response", "log_evidence", "norm"):
        assert getattr(once, name) == pytest.approx(getattr(each, name), rel=1e-12), name


@pytest.mark.slow
@pytest.mark.parametrize("accuracy", [1e-2, 1e-4])
def test_a_solution_is_known_as_well_as_asked_and_as_is_said(deep, accuracy):
    """The second layer alone at alpha = 0.4, compared with the one at 1e-5; and where nothing is learned, Phi."""
    best = sf.bayes_optimal(deep, columns=[2], accuracy=accuracy)
    assert abs(best.q[0, 1, 1] - 0.486202) <= best.error_bars[0, 1, 1] + 2e-6
    assert best.error_bars.max() <= accuracy
    assert abs(best.free_entropy + 0.9562432) <= best.free_entropy_error + 4e-7
    nothing = sf.bayes_optimal(deep.with_(alpha=0.15), accuracy=accuracy)
    assert np.abs(nothing.q).max() == 0
    assert abs(nothing.free_entropy + 0.3642289787) <= nothing.free_entropy_error
    assert nothing.free_entropy_error < accuracy


@pytest.mark.slow
@pytest.mark.parametrize("curved", [False, True])
def test_a_shift_of_the_fields_is_integrated_with_or_without_a_coordinate(deep, curved):
    """Mean of u with the sign of u open, known of the second column to one half: on a grid of omega - v m, and with m a
    coordinate like all others."""
    q = np.repeat(np.diag([0.0, 0.5])[None], deep.contexts, axis=0)
    found = []
    for little in (0.01, np.inf):
        with options_in_force(OutputChannelOptions(min_known_variance=little)):
            channel = OutputChannel(deep)
            channel.counts = [20, 26, 26, 20, 20]
            found.append(channel.channel_averages(q, curved))
    shifted, plain = found
    assert shifted.norm == pytest.approx(1, abs=1e-5) and plain.norm == pytest.approx(1, abs=1e-5)
    assert shifted.outer == pytest.approx(plain.outer, rel=1e-4, abs=1e-12)
    assert shifted.log_evidence == pytest.approx(plain.log_evidence, abs=1e-5)
    if curved:
        assert shifted.response == pytest.approx(plain.response, rel=1e-3, abs=1e-9)


def test_shifts_are_found_where_there_are_any(deep):
    """The mean of u moves both fields of the second layer alike, with the sign of u; half the difference is divided by
    what stays hidden, and the output of phase retrieval is multiplied with a sign."""
    (labels, _), *_ = deep.label_probabilities
    shift = find_shift_coordinate(deep, labels)
    assert deep.solver.bayes_functions.OBSERVED[shift.axis][0] == "mean"
    assert np.abs(shift.direction) == pytest.approx([0, 0.5, 0, 0.5])  # 1 / (1 + c)
    assert sorted(shift.factors) == [-1, 1]
    other = sf.problem("phase_retrieval")
    assert find_shift_coordinate(other, other.label_probabilities[0][0]) is None


def test_the_least_error_of_a_field_is_the_variance_that_is_left():
    """Metric (h - Y)^2 of ridge regression without its noise: rho* - q; error bars of q move it one to one."""
    problem = sf.problem("ridge_regression", alpha=2.0)
    q, width = 0.3 * problem.law.rho_star, np.full_like(problem.law.rho_star, 1e-3)
    known = is_metric_squared_distance(problem)
    found = least_errors_by_metric(problem, q, width)
    assert known is bool(found)
    for value, error in found.values():
        assert value == pytest.approx(0.7 * problem.law.rho_star.item(), rel=1e-9)
        assert error == pytest.approx(1e-3, rel=1e-6)


def test_errors_against_a_target_that_no_student_reaches_are_no_distances():
    """Attention next to a positional target errs at h = Y, too."""
    problem = sf.problem("dot_product_attention", alpha=1.0)
    assert not is_metric_squared_distance(problem)
    assert least_errors_by_metric(problem, 0 * problem.law.rho_star, 0 * problem.law.rho_star) == {}


@pytest.mark.slow
def test_errors_of_layers_are_those_of_nested_draws(deep):
    """Second layer known to 0.486: variances of what layers read, given what is known, by draws within draws."""
    q, nothing = np.zeros((2, 2, 2)), np.zeros((2, 2, 2))
    q[:, 1, 1] = 0.486
    found, before = least_errors_by_metric(deep, q, nothing), least_errors_by_metric(deep, nothing, nothing)
    assert list(found) == ["y", "first", "second"]
    assert found["first"] == before["first"] and before["first"][0] == pytest.approx(before["second"][0], rel=1e-3)

    def attention(z):
        weights = np.exp(z[..., :, None] * z[..., None, :] - (z * z)[..., :, None].clip(0))
        return weights / weights.sum(-1, keepdims=True)

    random = np.random.default_rng(1)
    omega = random.normal(size=(8000, 1, 2, 2)) * np.sqrt([0, 0.486])
    z = omega + random.normal(size=(8000, 100, 2, 2)) * np.sqrt([1, 0.514])
    mixed = ((attention(z[..., 0]) + np.eye(2)) @ z[..., 1, None])[..., 0]
    for name, read in (("y", attention(mixed)), ("second", attention(z[..., 1]))):
        drawn = read.var(axis=1, ddof=1).sum(axis=(1, 2))
        assert found[name][0] == pytest.approx(drawn.mean(), abs=4 * drawn.std() / np.sqrt(8000) + found[name][1])


def test_a_line_of_thresholds_keeps_what_is_not_there():
    """Weak recovery of phase retrieval is 1/2 at any scale of inputs; labels never tell continuous rows exactly."""
    line = sf.bayes_line(sf.problem("phase_retrieval"), "weak_recovery", over=("sigma", 0.5, 2.0, 3), accuracy=1e-6)
    assert line.success and list(line.over_values) == [0.5, 1.25, 2.0]
    assert np.abs(line.values - 0.5).max() < 1e-6
    dataset = line.to_xarray()
    assert (dataset.attrs["over"], dataset.attrs["parameter"]) == ("sigma", "alpha")
    noisy = sf.bayes_line(sf.problem("logistic_regression"), "information_theoretic", over=("sigma", 1.0, 2.0, 2))
    assert not noisy.success and np.isnan(noisy.values).all()
    assert "never reached" in noisy.evidence[1]["reason"] and "never reached" in noisy.table()
    with pytest.raises(sf.InputError, match="value of alpha"):
        sf.bayes_line(sf.problem("phase_retrieval"), "weak_recovery", over=("alpha", 0.5, 2.0, 3))


def test_messages_end_where_state_evolution_does():
    """Perfect recovery beyond 1.13; what messages say of their overlap is what it is (Nishimori)."""
    passed = sf.bayes_messages(sf.problem("phase_retrieval", alpha=3.0), 300, seeds=2)
    assert passed.success
    assert passed.estimate("overlaps")[0].item() == pytest.approx(1, abs=1e-3)
    assert passed.estimate("known")[0].item() == pytest.approx(1, abs=1e-3)
    below = sf.bayes_messages(sf.problem("phase_retrieval", alpha=0.3), 300, seeds=2)
    assert below.success and np.abs(below.estimate("overlaps")[0]).max() < 0.05
    assert "seed" in below.table() and below.to_json()["status"] == "converged"


def test_above_the_algorithmic_threshold_messages_find_all_binary_weights():
    """Perceptron, threshold 1.4926: what they say of themselves is true on the way, and they rest there."""
    passed = sf.bayes_messages(sf.problem(EXAMPLES / "binary_perceptron.py", alpha=2.0), 500, seeds=3)
    assert passed.success
    for run in passed.runs:
        assert run.overlaps.item() == pytest.approx(1, abs=1e-5) and run.known.item() == pytest.approx(1, abs=1e-5)


def test_a_length_that_stays_hidden_is_integrated_in_closed_form():
    """The sign of a field: log Z, g and dg/domega compared with sums over nodes, on both sides."""
    planted = OutputChannel(sf.problem(EXAMPLES / "binary_perceptron.py", alpha=1.0)).planted
    observed, omega = np.array([[1.0], [-1.0], [1.0], [-1.0]]), np.array([[0.3], [0.3], [-2.0], [1.5]])
    q = np.full((1, 1, 1), 0.6)
    closed = planted.log_evidence_and_derivatives(observed, omega, q, (0,), curved=True)
    assert not planted.has_sum_over_hidden_nodes
    planted._half_line_posteriors[(0,)] = None
    planted.inner = 0.02
    for one, other in zip(
        closed, planted.log_evidence_and_derivatives(observed, omega, q, (0,), curved=True), strict=True
    ):
        assert one == pytest.approx(other, rel=1e-7)
    assert planted.has_sum_over_hidden_nodes


LENGTHS = {
    "from a place on": ("lambda y, s: y * sp.exp(s) + 0.3 * y", "", True),
    "however it is told": ("lambda y, s: y * sp.exp(s) + (1 + y) * sp.exp(2 * s)", "", True),
    "up to an end": ("lambda y, s: y / (1 + sp.exp(-s))", "", False),
    "not alike along it": ("lambda y, s: y * sp.exp(s)", "log_likelihood=lambda y, s: -sp.exp(-s), ", False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LENGTHS)
def test_half_lines_are_found_by_what_the_channel_does(name, tmp_path):
    fields, likelihood, there = LENGTHS[name]
    (tmp_path / "lengths.py").write_text(
        "import saddleforge as sf\nimport sympy as sp\n\n"
        f"output = sf.Output({fields}, {{'y': (-1, 1)}}, {{'s': 'real'}}, {likelihood}"
        "read=lambda Y: [sp.sign(Y[0])])\n\n"
        "@sf.model(output=output)\ndef lengths(X, Y):\n    return sf.half_square(Y - X)\n"
    )
    found = find_half_line_posterior(sf.problem(tmp_path / "lengths.py", alpha=1.0), (0,))
    assert (found is not None) == there


@pytest.mark.slow
def test_next_to_a_length_other_fields_are_seen_and_signs_of_them_add_up(tmp_path):
    """Two tokens: the sign of one field, the size of the other; compared with sums over nodes."""
    (tmp_path / "beside.py").write_text(
        "import saddleforge as sf\nimport sympy as sp\n\n"
        "output = sf.Output(lambda y, u, s, sign: sf.Matrix([y * sp.exp(s), sign * u]), "
        "{'y': (-1, 1), 'u': 'positive'}, {'s': 'real', 'sign': (-1, 1)}, "
        "read=lambda Y: [sp.sign(Y[0]), abs(Y[1])])\n\n"
        "@sf.model(tokens=2, output=output)\ndef beside(X, Y):\n    return sf.half_square(Y[0] - X[0])\n"
    )
    planted = OutputChannel(sf.problem(tmp_path / "beside.py", alpha=1.0)).planted
    observed = np.array([[1.0, 0.4], [-1.0, 0.2], [1.0, 1.5]])
    omega, q = np.array([[0.3, 0.1], [0.6, -0.5], [-2.0, 1.0]]), np.array([[[0.6]], [[0.3]]])
    assert not planted.has_sum_over_hidden_nodes
    closed = planted.log_evidence_and_derivatives(observed, omega, q, (0, 0), curved=True)
    planted._half_line_posteriors[(0, 0)] = None
    planted.inner = 0.02
    for one, other in zip(
        closed, planted.log_evidence_and_derivatives(observed, omega, q, (0, 0), curved=True), strict=True
    ):
        assert one == pytest.approx(other, rel=1e-6)


@pytest.mark.slow
def test_messages_that_become_sure_on_too_coarse_a_sum_say_so():
    """Binary rows far above the threshold, with the closed form taken away."""
    problem = sf.problem(EXAMPLES / "binary_perceptron.py", alpha=4.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "find_half_line_posterior", lambda problem, labels: None)
        passed = sf.bayes_messages(problem, 200, seeds=2)
    assert not passed.success and {run.status for run in passed.runs} == {"unresolved"}


def test_messages_want_a_linear_channel_and_numbers_in_range():
    with pytest.raises(sf.InputError, match="linear equations"):
        sf.bayes_messages(sf.problem("perceptron", alpha=1.0), 100)
    with pytest.raises(sf.InputError, match="whole numbers from 1"):
        sf.bayes_messages(sf.problem("phase_retrieval", alpha=1.0), 100, seeds=0)
    with pytest.raises(sf.InputError, match=r"allowed is \[0, 1\)"):
        sf.bayes_messages(sf.problem("phase_retrieval", alpha=1.0), 100, damping=1.0)


@pytest.mark.slow
def test_messages_learn_the_second_layer_as_far_as_state_evolution(deep):
    """alpha = 0.6: q_22 = 0.9232 of an infinite d, and nothing of the first layer."""
    passed = sf.bayes_messages(deep.with_(alpha=0.6), 1000, seeds=2)
    assert passed.success
    assert passed.estimate("overlaps")[0][0, 1, 1] == pytest.approx(0.9232, abs=0.03)
    assert np.abs(passed.estimate("overlaps")[0][0, 0, 0]) < 0.01


@pytest.mark.parametrize("c", [0.01, 0.5, 4.0])
def test_who_knows_the_second_layer_knows_the_fields_of_the_first_up_to_a_sign(c):
    """u = A z2 gives A_12 and A_21, whose logits are a (b - a) and b (a - b); the other sign of u would need a sum of
    these above 1. What is left is attention of one layer, so that weak recovery is at 1/6 for every c."""
    random = np.random.default_rng(5)
    z1, z2 = random.normal(size=(2, 1000, 2))
    (a, b), difference = z1.T, z2[:, 1] - z2[:, 0]
    k, h = 1 / (1 + np.exp(-a * (b - a))), 1 / (1 + np.exp(-b * (a - b)))
    u = np.stack([(1 + c) * z2[:, 0] + k * difference, (1 + c) * z2[:, 1] - h * difference], axis=1)
    for sign in (1, -1):
        found = (sign * u - (1 + c) * z2) / difference[:, None] * [1, -1]
        admissible = (found > 0).all(axis=1) & (found.sum(axis=1) < 1)
        assert admissible.all() if sign == 1 else not admissible.any()
    p, r = (np.log(x / (1 - x)) for x in (k, h))
    apart = np.sqrt(-(p + r))
    assert np.abs(-p / apart) == pytest.approx(np.abs(a), rel=1e-6)
    assert np.abs(r / apart) == pytest.approx(np.abs(b), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("c", [0.5, 3.0])
def test_next_to_the_second_layer_known_exactly_the_first_is_attention_of_one_layer(deep, c):
    """Sums over preimages by Newton's method: two, z1 and -z1, so that 1 / alpha = 2 * 3 as of the one column."""
    found = sf.bayes_threshold(deep.with_(c=c), "weak_recovery", of=1, given={2: 1}, accuracy=1e-6)
    assert found.value == pytest.approx(1 / 6, rel=1e-8) and found.error < 1e-6


FOLDED = """
import saddleforge as sf

def fields(y, z):
    return sf.Matrix([[z, y / (z**4 - 2 * z**2)]])

@sf.model(student=2, teacher=2, output=sf.Output(fields, {"y": "real"}, hidden={"z": "real"}))
def folded(X, Y):
    return sf.square(Y - X) / 2
"""


@pytest.mark.slow
def test_preimages_of_a_polynomial_output_are_its_roots(tmp_path):
    """y = z2 (z1^4 - 2 z1^2) at a known z2: of density exp(-z1^2 / 2) / |slope| at two or four roots."""
    (tmp_path / "folded.py").write_text(FOLDED)
    problem = sf.problem(tmp_path / "folded.py", alpha=1)
    rule, counts = UnknownColumnRule(problem, 0, even=True, starts=12), set()
    for z1, z2 in ((0.4, 1.3), (1.2, -0.7), (1.7, 0.9), (-0.9, 2.0)):
        value = z1**4 - 2 * z1**2
        _, values, weights = rule.field_values_given_outputs(np.array([[z1, z2]]), problem.label_probabilities[0][0])
        roots = np.roots([1, 0, -2, 0, -value])
        roots = np.sort(roots[np.abs(roots.imag) < 1e-9].real)
        density = np.exp(-(roots**2) / 2) / np.abs(4 * roots**3 - 4 * roots)
        order = np.argsort(values[:, 0])
        assert values[order, 0] == pytest.approx(roots, abs=1e-7)
        assert weights[order] == pytest.approx(density / density.sum(), rel=1e-6)
        counts.add(len(roots))
    assert counts == {2, 4}


@pytest.mark.slow
def test_the_first_layer_is_learned_at_a_sample_complexity_that_hardly_depends_on_the_skip_connection(deep):
    """On the branch of the second layer; it needs more samples than the second one for every c."""
    for c, expected in ((0.5, 0.718956927), (2.0, 0.72052224)):
        found = sf.bayes_threshold(deep.with_(c=c), "weak_recovery", of=1, given={2: "branch"}, accuracy=1e-5)
        assert abs(found.value - expected) <= found.error < 1e-5


@pytest.mark.slow
def test_nothing_of_the_second_layer_is_learned_below_one_sixth(deep):
    """Its fields are known up to a sign at most: E |Cov - 1|^2 is 6 at most, for any first layer (Jensen)."""
    few = sf.bayes_threshold(deep, "weak_recovery", of=2, accuracy=1e-3)
    assert abs(few.value - 0.18547784) <= few.error < 1e-3 * few.value
    assert few.value > 1 / 6
    assert sf.bayes_threshold(deep, "weak_recovery", of=1, accuracy=1e-2).value == pytest.approx(6.157, abs=0.02)
    wide = sf.bayes_threshold(deep.with_(c=30.0), "weak_recovery", of=2, accuracy=1e-2)
    assert wide.value == pytest.approx(1 / 6, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "given", "sentence"),
    [
        (3, {}, "columns of the teacher are 1 to 2"),
        (1, {1: 0.5}, "is not among the given"),
        (1, {2: 1.5}, r"allowed is \[0, 1\] or"),
        (1, {2: "known"}, r"allowed is \[0, 1\] or"),
        (1, {2: -0.5}, r"allowed is \[0, 1\] or"),
    ],
)
def test_columns_and_shares_that_are_not_there_are_named(deep, of, given, sentence):
    with pytest.raises(sf.InputError, match=sentence):
        sf.bayes_threshold(deep, "weak_recovery", of=of, given=given)


@pytest.mark.slow
def test_the_first_layer_is_learned_after_the_second_alone(deep):
    """With nothing known of it, the second layer's solution is unstable from its own threshold on."""
    second = sf.bayes_optimal(deep, accuracy=1e-5, columns=[2])
    assert second.status == "converged" and second.growth < 1 and second.error_bars.max() <= 1e-5
    assert second.q[0, 1, 1] == pytest.approx(0.486200, abs=1.5e-5) and second.q[0, 0, 0] == 0


def test_probabilities_of_outputs_add_up_to_one(phase_retrieval):
    assert phase_retrieval.channel.channel_averages(0.4 * phase_retrieval.rho).norm == pytest.approx(1, abs=1e-12)


def test_phase_retrieval_begins_at_one_half_and_jumps_at_the_published_alpha():
    problem = sf.problem("phase_retrieval")
    nine_digits(sf.bayes_threshold(problem, "weak_recovery"), 0.5)
    nine_digits(sf.bayes_threshold(problem, "algorithmic"), 1.128471407)
    assert sf.bayes_threshold(problem, "information_theoretic").value == 1


@pytest.mark.slow
def test_more_samples_tell_more_and_the_informed_start_tells_no_less():
    shares = []
    for alpha in (0.4, 0.7, 1.05, 1.3):
        found = sf.bayes_optimal(sf.problem("phase_retrieval", alpha=alpha))
        assert found.success
        shares.append(found.q.item())
        informed = sf.bayes_optimal(found.problem, "informed")
        assert informed.q.item() >= found.q.item() - 1e-6
    assert shares[0] == 0 and shares[3] == 1
    assert shares == sorted(shares)
    assert informed.status == "perfect_recovery" and informed.test_error == pytest.approx(0, abs=1e-6)


def test_a_loose_accuracy_does_not_fall_back_to_the_unstable_zero():
    found = sf.bayes_optimal(sf.problem("phase_retrieval", alpha=0.7), accuracy=0.05)
    assert found.status == "converged" and found.q.item() > 0.1


@pytest.mark.slow
def test_the_free_entropy_grows_with_alpha_like_the_evidence():
    """dPhi/dalpha = E log Z_out at the saddle."""
    problem, step = sf.problem("phase_retrieval", alpha=0.9), 1e-3
    high, low = (sf.bayes_optimal(problem.with_(alpha=0.9 + s), accuracy=1e-9) for s in (step, -step))
    middle = sf.bayes_optimal(problem, accuracy=1e-9)
    state = StateEvolutionMap(problem)
    state.refine_quadrature(middle.q, 0.9, 1e-10)
    evidence = state.channel.channel_averages(middle.q).log_evidence
    assert (high.free_entropy - low.free_entropy) / (2 * step) == pytest.approx(evidence, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_ridge_regression_at_the_right_strength_is_bayes_optimal(alpha):
    problem = sf.problem("ridge_regression", alpha=alpha, Delta=0.25, lambda_=0.25)
    best, ridge = sf.bayes_optimal(problem, accuracy=1e-9), sf.solve(problem, accuracy=1e-8)
    assert best.q.item() == pytest.approx(ridge.overlaps.q.item(), rel=1e-8)
    assert best.q.item() == pytest.approx(ridge.overlaps.theta.item(), rel=1e-8)
    assert best.test_error == pytest.approx(ridge.test_error, rel=1e-8)
    assert best.q_hat.item() == pytest.approx(alpha / (0.25 + 1 - best.q.item()), rel=1e-8)


@pytest.mark.slow
def test_another_strength_is_worse():
    problem = sf.problem("ridge_regression", alpha=2.0, Delta=0.25, lambda_=0.5)
    assert sf.bayes_optimal(problem).test_error < sf.solve(problem).test_error - 1e-3


@pytest.mark.slow
def test_the_law_of_inputs_scales_out():
    one = sf.bayes_optimal(sf.problem("ridge_regression", alpha=2.0, Delta=0.25))
    other = sf.bayes_optimal(sf.problem("ridge_regression", alpha=2.0, Delta=4.0, sigma=4.0))
    assert other.q.item() == pytest.approx(16 * one.q.item(), rel=1e-6)


@pytest.mark.slow
def test_a_spectrum_of_one_value_is_the_isotropic_law_and_two_are_distinguished():
    plain = sf.problem("ridge_regression", alpha=2.0, Delta=0.25)
    assert sf.bayes_optimal(plain.with_(spectrum=[[0.5, 1.0], [0.5, 1.0]])).q.item() == pytest.approx(
        sf.bayes_optimal(plain).q.item(), rel=1e-7
    )
    spread = sf.problem("ridge_regression", alpha=2.0, Delta=0.25, lambda_=0.25, spectrum=[[0.5, 0.5], [0.5, 1.5]])
    assert len(TeacherRowPrior(spread).eigenvalue_groups) == 2
    assert sf.bayes_optimal(spread).q.item() == pytest.approx(sf.solve(spread).overlaps.q.item(), rel=1e-6)


def test_models_without_a_channel_are_refused_with_those_that_have_one():
    with pytest.raises(sf.InputError, match=r"hard_attention has no output channel .* dot_product_attention"):
        sf.bayes_optimal(sf.problem("hard_attention", alpha=1))


@pytest.mark.slow
def test_a_channel_with_noise_has_neither_weak_recovery_nor_solutions_that_coexist():
    with pytest.raises(sf.InputError, match="no weak-recovery threshold"):
        sf.bayes_threshold(sf.problem("ridge_regression"), "weak_recovery")
    with pytest.raises(sf.NotConvergedError, match="no fold"):
        sf.bayes_threshold(sf.problem("ridge_regression"), "information_theoretic")


SIGNS = """
import saddleforge as sf
import sympy as sp

fields = lambda label, s: label * sp.exp(s)
output = sf.Output(fields, {"label": (-1, 1)}, {"s": "real"}, read=lambda Y: [sp.sign(Y[0, 0])])

@sf.model(law=sf.binary_teacher, output=output)
def signs(X, Y):
    return sf.square(Y - X) / 2
"""


@pytest.mark.slow
def test_messages_of_a_binary_perceptron_know_what_state_evolution_says(tmp_path):
    """Of weights +1 and -1, below the alpha at which all of them are found; teachers are drawn from these."""
    (tmp_path / "signs.py").write_text(SIGNS)
    problem = sf.problem(tmp_path / "signs.py", alpha=1.2)
    expected = sf.bayes_optimal(problem).q.item()
    assert expected == pytest.approx(
        sf.bayes_optimal(sf.problem(EXAMPLES / "binary_perceptron.py", alpha=1.2)).q.item()
    )
    passed = sf.bayes_messages(problem, d=2000, seeds=6)
    mean, error = passed.estimate("overlaps")
    assert passed.success and abs(mean.item() - expected) < 4 * error.item() < 0.06


NOISY = """
import saddleforge as sf
import sympy as sp

def gaussian(y, z, Delta):
    return -((y - z) ** 2) / (2 * Delta) - sp.log(2 * sp.pi * Delta) / 2

output = sf.Output(lambda z: z, {"y": "real"}, {"z": "real"}, log_likelihood=gaussian, needs=lambda Delta: Delta)

@sf.model(law=sf.binary_teacher, output=output)
def code_division(X, Y, *, Delta=sf.Parameter(0.05, 0)):
    return sf.square(Y - X) / 2
"""


@pytest.mark.slow
def test_solutions_that_coexist_with_noise_are_compared(tmp_path):
    """Binary rows seen through noise, where alpha(q) = q^ (Delta + 1 - q), q = E tanh(q^ + sqrt(q^) xi) and the free
    entropy is a sum of two terms (T. Tanaka, IEEE Trans. Inf. Theory 48 (2002) 2888)."""
    (tmp_path / "noisy.py").write_text(NOISY)
    noise, (x, w) = 0.05, np.polynomial.hermite_e.hermegauss(200)
    w = w / w.sum()

    def overlap(hat):
        return w @ np.tanh(hat + np.sqrt(hat) * x)

    def points(hats):
        q = np.array([overlap(hat) for hat in hats])
        alpha = hats * (noise + 1 - q)
        rows = np.array([w @ np.log(np.cosh(hat + np.sqrt(hat) * x)) for hat in hats]) - hats / 2
        return alpha, rows - hats * q / 2 - alpha / 2 * (np.log(2 * np.pi * (noise + 1 - q)) + 1)

    hats = np.exp(np.linspace(-2, 4.5, 20001))
    alpha, entropy = points(hats)
    top = np.flatnonzero((alpha[1:-1] > alpha[:-2]) & (alpha[1:-1] > alpha[2:]))[0] + 1
    bottom = top + int(np.argmin(alpha[top : top + 8000]))
    grid = np.linspace(alpha[bottom] * 1.001, alpha[top] * 0.999, 4001)
    less = np.interp(grid, alpha[:top], entropy[:top])
    more = np.interp(grid, alpha[bottom:], entropy[bottom:])
    expected = np.interp(0.0, more - less, grid)
    problem = sf.problem(tmp_path / "noisy.py", alpha=1, Delta=noise)
    found = sf.bayes_threshold(problem, "information_theoretic", accuracy=1e-6)
    assert found.value == pytest.approx(expected, rel=2e-6)
    assert found.error < 1e-5
    assert found.evidence["coexist_from"] == pytest.approx(alpha[bottom], rel=1e-5)
    assert found.evidence["coexist_to"] == pytest.approx(alpha[top], rel=1e-5)


def test_noise_must_be_there_and_names_must_be_known():
    with pytest.raises(sf.InputError, match="valid only where Delta is positive"):
        sf.bayes_optimal(sf.problem("ridge_regression", alpha=1, Delta=0))
    with pytest.raises(sf.InputError, match="known are weak_recovery, algorithmic"):
        sf.bayes_threshold(sf.problem("ridge_regression"), "spinodal")
    with pytest.raises(sf.InputError, match="known are uninformed, informed"):
        sf.bayes_optimal(sf.problem("ridge_regression", alpha=1), "semantic")


@pytest.mark.slow
def test_the_binary_perceptron_jumps_at_the_published_alphas():
    problem = sf.problem(EXAMPLES / "binary_perceptron.py")
    nine_digits(sf.bayes_threshold(problem, "algorithmic"), 1.492631818)
    nine_digits(sf.bayes_threshold(problem, "information_theoretic"), 1.244683990)


@pytest.mark.slow
def test_free_entropies_of_the_binary_perceptron_add_up():
    """Phi = -log 2 alone: perfect recovery is a solution at every alpha, and -H(labels) the bound at small alpha."""
    problem = sf.problem(EXAMPLES / "binary_perceptron.py", alpha=1.3)
    assert sf.bayes_optimal(problem, "informed").free_entropy == pytest.approx(-np.log(2), rel=1e-12)
    below = sf.bayes_optimal(problem.with_(alpha=1e-3))
    assert below.free_entropy == pytest.approx(-1e-3 * np.log(2), rel=1e-3)
    assert below.test_error == pytest.approx(np.arccos(below.cosine()) / np.pi, rel=1e-6)


@pytest.mark.slow
def test_the_product_of_two_projections_is_first_seen_at_the_published_alpha():
    nine_digits(sf.bayes_threshold(sf.problem(EXAMPLES / "product_of_two.py"), "weak_recovery"), 0.593751098)


@pytest.mark.slow
def test_attention_is_first_seen_at_one_sixth():
    """E_y |Cov(Y_l, Y_l' | y) - delta rho*|^2 / rho*^2 adds up to 2 + 1 + 1 + 2 over two tokens."""
    nine_digits(sf.bayes_threshold(sf.problem("dot_product_attention"), "weak_recovery"), 1 / 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sizes", "expected"),
    [
        ("dot_product_attention", {"tokens": 3}, 1 / 12),
        ("dot_product_attention", {"teacher_rank": 2}, 2 / 5),
        ("linear_attention", {"teacher_rank": 2}, 1 / 3),
        ("linear_attention", {"teacher_rank": 2, "tokens": 3}, 1 / 6),
    ],
)
def test_attention_is_first_seen_where_second_moments_of_its_fields_say(model, sizes, expected):
    """Y Y^T of L tokens and t columns: covariances y_l.y_m / t, of which the squared sum has the mean L (L + 1) / t;
    softmax of two tokens at t = 2: (4 t + 2) / t^2, by moments of the length of y_1 - y_2 and of y_1 + y_2 along it."""
    found = sf.bayes_threshold(sf.problem(model, **sizes), "weak_recovery", accuracy=3e-3)
    assert found.error < 3e-3 * found.value
    assert abs(found.value - expected) <= 2 * found.error


def drawn_by_hand(share, count, seed=7):
    """E g_l g_l^T of two tokens and columns of variance 1/4 and the standard error, at q = share rho*: the part of
    y_1 + y_2 across the difference by its normal law, the angle by a sum."""
    random, rho = np.random.default_rng(seed), 0.25
    V = rho * (1 - share)
    omega = random.normal(size=(count, 2, 2)) * np.sqrt(rho * share)
    Y = omega + random.normal(size=(count, 2, 2)) * np.sqrt(V)
    angles = 2 * np.pi * np.arange(200) / 200
    unit, normal = np.stack([np.cos(angles), np.sin(angles)]), np.stack([-np.sin(angles), np.cos(angles)])
    sums, parts = omega.sum(axis=1), omega[:, 0] - omega[:, 1]
    length = np.linalg.norm(Y[:, 0] - Y[:, 1], axis=1)[:, None]
    along = (Y.sum(axis=1) * (Y[:, 0] - Y[:, 1])).sum(axis=1)[:, None] / length
    exponent = (2 * length * (parts @ unit) - (along - sums @ unit) ** 2) / (4 * V)
    weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    difference = length * (weights @ unit.T)
    total = along * (weights @ unit.T) + np.einsum("nk,nk,ik->ni", weights, sums @ normal, normal)
    g = (np.stack([total + difference, total - difference], axis=1) / 2 - omega) / V
    squares = g[:, :, :, None] * g[:, :, None]
    return squares.mean(axis=0), squares.std(axis=0) / np.sqrt(count)


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_attention_of_two_columns_tells_what_draws_by_hand_say(share):
    state = StateEvolutionMap(sf.problem("dot_product_attention", teacher_rank=2))
    planted, q = state.channel.planted, share * state.rho
    planted.refine_quadrature(q, 1e-3)
    planted.log2 = 11
    drawn = planted.channel_averages(q)
    spread = np.std([sample.outer for sample in drawn.samples], axis=0) / np.sqrt(7)
    expected, error = drawn_by_hand(share, 60_000)
    assert np.abs(drawn.outer - expected).max() < 4 * np.hypot(spread, error).max()
    assert np.hypot(spread, error).max() < 0.02 * np.abs(expected).max()
    assert not state.channel.is_averaged_by_sampling(q)
    found, change = state.channel.refine_quadrature(q, 1e-3)
    assert change < 5e-3 and np.abs(found.outer - expected).max() < 4 * error.max() + 2e-3 * expected.max()


@pytest.mark.slow
def test_two_columns_perfect_or_not_begin_at_two_fifths():
    """Nothing below weak recovery; above it both columns alike, and stable."""
    problem = sf.problem("dot_product_attention", teacher_rank=2)
    assert np.abs(sf.bayes_optimal(problem.with_(alpha=0.39), accuracy=3e-3).q).max() == 0
    best = sf.bayes_optimal(problem.with_(alpha=0.6), accuracy=1e-3)
    assert best.status == "converged" and best.growth < 1 and best.error_bars.max() < 1e-3 * 0.25
    for column in (0, 1):  # of a finer rule: 0.0545520(5)
        assert abs(best.q[0, column, column] - 0.0545520) <= best.error_bars[0, column, column] + 5e-7
    assert best.q[0, 0, 1] == 0


@pytest.mark.slow
def test_of_both_layers_products_say_what_draws_do(deep):
    """alpha = 0.8, above both thresholds: by products of matrices, and the same map by draws at that solution."""
    problem = deep.with_(alpha=0.8)
    best = sf.bayes_optimal(problem, accuracy=1e-3)
    assert best.status == "converged" and best.growth < 1 and best.error_bars.max() < 1e-3
    first, second = best.q[0].diagonal()
    assert abs(first - 0.20007) <= best.error_bars[0, 0, 0] + 6e-5
    assert abs(second - 0.985554) <= best.error_bars[0, 1, 1] + 4e-6
    state = StateEvolutionMap(problem)
    planted = state.channel.planted
    planted.refine_quadrature(best.q, 1e-3)
    planted.log2 = 12
    outer = np.array([sample.outer for sample in planted.channel_averages(best.q).samples])
    spread = outer.std(axis=0, ddof=1) / np.sqrt(len(outer))
    assert np.abs(outer.mean(axis=0) - best.q_hat / 0.8)[:, [0, 1], [0, 1]] == pytest.approx(
        0, abs=4 * spread.max() + 1e-3 * outer.max()
    )


@pytest.mark.slow
def test_messages_about_two_columns_are_right_up_to_a_rotation():
    """alpha = 0.6: overlaps with the teacher, turned, are those of state evolution, 0.05455 each."""
    problem = sf.problem("dot_product_attention", teacher_rank=2, alpha=0.6)
    assert StateEvolutionMap(problem).channel.is_rotation_invariant
    assert not StateEvolutionMap(sf.problem("linear_attention")).channel.is_rotation_invariant
    passed = sf.bayes_messages(problem, 1000, seeds=2)
    assert passed.success
    overlaps = passed.estimate("overlaps")[0][0]
    assert np.trace(overlaps) == pytest.approx(0.109, abs=0.03)
    assert overlaps[0, 1] == pytest.approx(overlaps[1, 0], abs=1e-9)


@pytest.mark.slow
def test_attention_of_three_tokens_is_an_integral_over_a_length_and_a_projection():
    """q of the product y.omega given |y|: posterior mean of the sign tanh(y.omega / V)."""
    alpha, nodes = 0.15, np.polynomial.hermite_e.hermegauss(80)
    lengths = np.linspace(1e-3, 9, 4000)
    law = lengths**2 * np.exp(-(lengths**2) / 2)
    law /= law.sum()
    r, x = lengths[:, None], nodes[0]
    weight = law[:, None] * nodes[1] / nodes[1].sum()
    q = 0.3
    for _ in range(400):
        V = 1 - q
        product = q * r**2 + r * np.sqrt(q * V) * x
        sign = np.tanh(product / V)
        hat = alpha * ((weight * (sign**2 * r**2 - 2 * sign * product)).sum() + 3 * q) / V**2
        q = hat / (1 + hat)
    best = sf.bayes_optimal(sf.problem("dot_product_attention", tokens=3, alpha=alpha), accuracy=2e-4)
    assert best.status == "converged"
    assert best.error_bars.max() < 2e-4 * 0.25
    assert best.q[0, 0, 0] / 0.25 == pytest.approx(q, abs=2 * best.error_bars.max() / 0.25)


@pytest.mark.slow
def test_draws_and_products_agree_on_mixtures():
    """Attention of one column on two clusters: fields first and omega given them, or both drawn."""
    state = StateEvolutionMap(sf.problem("attention_on_mixture"))
    q = 0.6 * state.rho
    state.channel.refine_quadrature(q, 1e-5)
    product = state.channel.channel_averages(q, curved=True)
    state.channel.planted.log2 = 10
    drawn = state.channel.planted.channel_averages(q, curved=True)
    for name in ("outer", "log_evidence", "response"):
        values = np.array([getattr(sample, name) for sample in drawn.samples])
        spread = values.std(axis=0) / np.sqrt(7)
        assert np.abs(values.mean(axis=0) - getattr(product, name)).max() < 5 * spread.max(), name


@pytest.mark.slow
def test_means_along_one_column_are_means_along_any_direction_of_both():
    """Attention with two teacher columns tells no rotation of them: with the means turned so is what is known, whether
    or not one column keeps its sign."""
    turn = np.array([[np.cos(0.6), -np.sin(0.6)], [np.sin(0.6), np.cos(0.6)]])
    means = np.array([[-0.25, 0.0], [0.25, 0.0]] * 2)
    along, turned = (
        OutputChannel(sf.problem("attention_on_mixture", teacher_rank=2, taught=taught))
        for taught in (means, means @ turn.T)
    )
    assert along.sign_symmetric_teacher_columns == [1] and turned.sign_symmetric_teacher_columns == []
    q = np.repeat(np.diag([0.11339, 0.05866])[None], 4, axis=0)
    found = []
    for channel, known in ((along, q), (turned, turn @ q @ turn.T)):
        channel.counts = [16, 18, 16, 16, 16]
        channel.truncate_sums_to_accuracy(1e-3)
        found.append(channel.channel_averages(known))
    one, other = found
    assert turn @ one.outer @ turn.T == pytest.approx(other.outer, abs=1e-3)
    assert one.log_evidence == pytest.approx(other.log_evidence, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 2.0])
def test_the_attention_layer_is_no_better_than_optimal(alpha, attention):
    layer = attention(alpha, "semantic", 1e-4)
    best = sf.bayes_optimal(layer.problem, accuracy=1e-4)
    assert best.success
    assert best.test_error < min(layer.test_error, layer.baseline_error)
    if alpha == 2.0:
        assert best.status == "perfect_recovery"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [("logistic_regression", {}), ("lasso_regression", {"density": 0.2, "Delta": 0.1}), ("huber_regression", {})],
)
@pytest.mark.parametrize("alpha", [0.7, 2.0])
def test_no_learner_of_the_catalogue_beats_it(name, values, alpha):
    problem = sf.problem(name, alpha=alpha, **values)
    best, learner = sf.bayes_optimal(problem), sf.solve(problem)
    assert best.test_error < learner.test_error
    theta, q = learner.overlaps.theta.item(), learner.overlaps.q.item()
    assert abs(theta) / np.sqrt(q) < best.cosine()


@pytest.mark.slow
def test_a_dense_sparse_teacher_is_a_gaussian_one():
    dense = sf.bayes_optimal(sf.problem("lasso_regression", alpha=1.0, density=1.0))
    assert dense.q.item() == pytest.approx(
        sf.bayes_optimal(sf.problem("ridge_regression", alpha=1.0)).q.item(), rel=1e-6
    )


@pytest.mark.slow
def test_signs_are_predicted_with_the_angle():
    best = sf.bayes_optimal(sf.problem("logistic_regression", alpha=2.0))
    assert best.test_error == pytest.approx(np.arccos(best.cosine()) / np.pi, rel=1e-8)


def test_of_the_second_layer_alone_no_number_is_seen_without_noise(deep):
    """Two numbers are seen of four fields; what is unknown of the first layer is noise to who looks at the second."""
    assert count_noiseless_numbers_per_sample(StateEvolutionMap(deep)) == 2
    assert count_noiseless_numbers_per_sample(StateEvolutionMap(deep, [1])) == 0


def test_columns_that_what_is_observed_does_not_tell_apart_are_those_that_may_be_exchanged():
    """z1 z2 is the same of (z2, z1); a first and a second layer are distinguished, as are columns of other length."""
    swaps_of_teachers = {
        name: OutputChannel(sf.problem(EXAMPLES / f"{name}.py", alpha=1)).symmetric_column_permutations
        for name in ("product_of_two", "deep_attention")
    }
    assert [exchange.tolist() for exchange in swaps_of_teachers["product_of_two"]] == [
        [[1, 0], [0, 1]],
        [[0, 1], [1, 0]],
    ]
    assert len(swaps_of_teachers["deep_attention"]) == 1
