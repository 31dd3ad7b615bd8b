"""Finite temperature: the free entropy is that of step 6 of the replica calculation; equations keep their form."""

from dataclasses import replace

import pytest
import sympy as sp

from saddleforge.derive.authoring.regulariser import Ridge, penalty
from saddleforge.derive.calculus.averages import CONTEXTS, COORDINATE, Average, OrderParameterSymbols
from saddleforge.derive.replicas.algebra.objects import (
    FIELD,
    LogDet,
    LogIntegral,
    factor_out_scalars,
    is_equal_up_to_trace_cycles,
    merge_averages,
)
from saddleforge.derive.replicas.steps.derivation import replica_calculation
from saddleforge.derive.replicas.steps.zero_temperature import growth_exponents_in_beta
from saddleforge.derive.theory import thermal
from saddleforge.derive.theory.free_entropy import free_entropy
from saddleforge.derive.theory.thermal import beta, thermal_corrections

REGULARISERS = {"ridge": Ridge(), "penalty": penalty(lambda w: w[0] ** 2)}


def named_integrals(expression, p):
    """Log integrals over X as -beta M, those over a row, averaged over its field, as beta N."""
    rows = {
        a: beta * p.envelope
        for a in expression.atoms(Average)
        if a.kind == FIELD and isinstance(a.summand, LogIntegral)
    }
    expression = expression.xreplace(rows)
    return expression.xreplace({a: -beta * p.moreau for a in expression.atoms(LogIntegral)})


def equals_step_6(kind, corrections=thermal_corrections):
    finite = replica_calculation(kind)[6].after["Phi_beta"]
    phi = free_entropy(regulariser=REGULARISERS[kind])
    p = phi.symbols
    derived = factor_out_scalars(
        named_integrals(factor_out_scalars(finite.xreplace(growth_exponents_in_beta(p))), p) / beta
    )
    extra = corrections(p, ridge=kind == "ridge")
    log_det = extra.log_det * LogDet(p.Lambda + p.G)
    expected = phi.expression + Average(CONTEXTS, extra.trace) + Average(COORDINATE, extra.log_volume + log_det)
    difference = sp.expand_log(factor_out_scalars(derived) - factor_out_scalars(expected), force=True)
    difference = difference.replace(
        lambda e: isinstance(e, Average), lambda e: Average(e.kind, sp.expand_log(sp.expand(e.summand), force=True))
    )
    return is_equal_up_to_trace_cycles(merge_averages(factor_out_scalars(difference)), sp.Integer(0), p)


KINDS = ["ridge", pytest.param("penalty", marks=pytest.mark.slow)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_free_entropy_is_that_of_the_replica_calculation(kind):
    assert equals_step_6(kind)


@pytest.mark.parametrize("name", ["trace", "log_volume", "log_det"])
def test_it_is_not_with_a_term_halved(name):
    def halved(p, ridge):
        own = thermal_corrections(p, ridge)
        return replace(own, **{name: getattr(own, name) / 2})

    assert not equals_step_6("ridge", halved)


@pytest.mark.parametrize("kind", KINDS)
def test_the_saddle_point_reads_as_at_zero_temperature(kind):
    assert thermal.equals_zero_temperature_theory(free_entropy(regulariser=REGULARISERS[kind]), kind == "ridge")


@pytest.mark.slow
@pytest.mark.parametrize("kind", REGULARISERS)
def test_so_it_does_with_trained_numbers_and_overlaps_in_the_loss(kind):
    phi = free_entropy(regulariser=REGULARISERS[kind], trained=2, loss_depends_on_q=True)
    assert thermal.equals_zero_temperature_theory(phi, kind == "ridge")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda own: replace(own, trace=-own.trace),
        lambda own: replace(own, trace=own.trace / 2),
        lambda own: replace(own, log_det=-own.log_det),
        lambda own: replace(own, log_det=own.log_det / 2),
    ],
)
def test_it_does_not_with_a_wrong_correction(wrong, monkeypatch):
    monkeypatch.setattr(thermal, "thermal_corrections", lambda p, ridge: wrong(thermal_corrections(p, ridge)))
    assert not thermal.equals_zero_temperature_theory.__wrapped__(free_entropy(), True)


def test_fluctuations_of_the_ridge_are_its_slope_in_the_strength():
    """The average of r = Lambda w^2 / 2 is -Lambda d/dLambda of the free entropy per beta."""
    p = OrderParameterSymbols(1, 1)
    own = thermal_corrections(p, ridge=True)
    strength, stiffness = sp.symbols("strength stiffness", positive=True)
    spread = own.penalty.xreplace({p.Lambda: sp.Matrix([[strength]]), p.G: sp.Matrix([[stiffness]])}).doit()
    assert sp.simplify(spread + strength * (own.log_det * sp.log(strength + stiffness)).diff(strength)) == 0
