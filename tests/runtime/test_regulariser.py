"""What a kind of regulariser has to define, and that it is a ridge for nobody to whom it does not say so."""

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.extensions.breaking.rows import weight_row_averages
from saddleforge.extensions.reference.channel import check_high_precision_supported
from saddleforge.extensions.simulation.plan import SimulationPlan
from saddleforge.extensions.simulation.run import train_one_seed, validate_simulation_plan
from saddleforge.integration.one_field import SmoothPiecesRule
from saddleforge.problems import regulariser, symmetry
from saddleforge.problems.overlaps import Conjugates

PARAMETERS = {"alpha": 2.0, "lambda": 0.3}


class Written(regulariser.Regulariser):
    """The ridge by its values and minimisers alone."""

    def penalties_and_gradients(self, W, known):
        return self.declared_parameter_values[0] * np.sum(W**2, axis=1) / 2, self.declared_parameter_values[0] * W

    def minimisers_and_derivatives(self, b, G, known):
        response = np.linalg.inv(G + self.declared_parameter_values[0] * np.eye(b.shape[1]))
        return np.einsum("iab,ib->ia", response, b), response


def ridge():
    return sf.problem("ridge_regression", **PARAMETERS)


@pytest.fixture
def written(monkeypatch):
    """The same problem with `Written` in place of the ridge, for what is called from then on."""

    def problem():
        monkeypatch.setitem(regulariser._KINDS, "ridge", Written)
        return ridge()

    return problem


@pytest.mark.parametrize("method", ["lbfgs", "fista", "newton", "gamp"])
def test_values_and_minimisers_are_enough_to_simulate(written, method):
    runs = [
        train_one_seed(validate_simulation_plan(SimulationPlan(each(), 40, "semantic", method, tolerance=1e-7)), 0)
        for each in (ridge, written)
    ]
    one, other = ((np.nan_to_num(found.overlaps.pack()), found.data, found.penalty) for found in runs)
    assert [found.status for found in runs] == ["converged", "converged"]
    assert one[0] == pytest.approx(other[0], rel=1e-6, abs=1e-7)
    assert one[1:] == pytest.approx(other[1:], rel=1e-6)


def test_values_and_minimisers_are_enough_for_rows_with_replica_symmetry_broken(written):
    one, zero = np.ones((1, 1, 1)), np.zeros((1, 1))
    hats = [Conjugates(0.5 * one, 0.8 * one, zero, 0.4 * one), Conjugates(0.7 * one, 1.0 * one, zero, 0.4 * one)]
    closed, by_quadrature = (
        weight_row_averages(each(), hats, np.array([1.0]), SmoothPiecesRule(16)) for each in (ridge, written)
    )
    assert by_quadrature.between.pack() == pytest.approx(closed.between.pack(), rel=1e-9, abs=1e-12)
    assert by_quadrature.distances == pytest.approx(closed.distances, rel=1e-9)
    assert by_quadrature.free == pytest.approx(closed.free, rel=1e-9)
    assert by_quadrature.penalty() == pytest.approx(closed.penalty(), rel=1e-9)


def test_values_are_enough_to_see_which_exchanges_leave_a_problem_as_it_is(written):
    exchanges = symmetry.symmetries_of_problem(ridge())
    assert exchanges and symmetry.symmetries_of_problem(written()) == exchanges


def test_values_are_enough_to_see_which_columns_rotate_and_change_places():
    pair = sf.problem("committee_machine", alpha=2.0)
    basis = np.sqrt(0.5) * np.array([[[0.0, 1.0], [-1.0, 0.0]]])
    for strengths, changes in (([0.1, 0.1], False), ([0.1, 0.2], True)):
        own = pair.with_(**{"lambda": strengths}).regulariser
        by_values, closed = (
            kind.rotation_invariance_conditions(own, basis)
            for kind in (regulariser.Regulariser, regulariser.RidgeRegulariser)
        )
        assert (np.abs(by_values).max() > 1e-8) == (np.abs(closed).max() > 1e-8) == changes
        assert own.is_invariant_under(lambda w: w[[1, 0]]) == (not changes)


def test_functions_for_a_ridge_only_refuse_other_regularisers(written):
    problem = written()
    with pytest.raises(
        sf.InputError, match=r"descent has closed equations for a ridge penalty, and .* has another: its regulariser"
    ):
        sf.dynamics(problem, 0.5, 1.0)
    with pytest.raises(sf.InputError, match="high precision is for ridge penalties"):
        check_high_precision_supported(problem)
    with pytest.raises(sf.InputError, match="the method sgd needs a ridge penalty"):
        validate_simulation_plan(SimulationPlan(problem, 40, "semantic", "sgd", rate=0.2))
    with pytest.raises(sf.InputError, match="ridge_regression has no ridge strengths"):
        _ = problem.regulariser.ridge_strengths
    with pytest.raises(sf.InputError, match="ridge_regression does not fix the norms"):
        _ = problem.regulariser.fixed_column_norms


def test_given_norms_are_no_ridge():
    kept = sf.problem("perceptron", alpha=2.0).regulariser
    with pytest.raises(sf.InputError, match="perceptron has no ridge strengths"):
        _ = kept.ridge_strengths
    with pytest.raises(sf.InputError, match="perceptron has no minimiser of a single row of W: the fixed norms"):
        kept.minimisers_and_derivatives(np.ones((1, 1)), np.ones((1, 1, 1)), np.ones((1, 0)))


def test_a_kind_that_is_not_known_is_refused(monkeypatch):
    monkeypatch.delitem(regulariser._KINDS, "ridge")
    with pytest.raises(sf.InputError, match="unknown regulariser 'ridge' of ridge_regression; known are sphere"):
        sf.problem("ridge_regression", alpha=2)
