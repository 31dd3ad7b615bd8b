"""Stochastic gradient descent in one pass (docs/theory.md section 19)."""

from __future__ import annotations

import sympy as sp

from ...authoring.model import FixedSizeModel
from ...calculus.averages import MatrixAverage
from ...replicas import dynamics
from ...theory import descent
from ..blocks import Items, Relation, Section, TextWithSymbols, UnindexedExpression, plain_text
from .references import Bibliography
from .steps import order_parameter_symbols_of_model, sentences_on_checks_and_citation

TITLE = "Stochastic gradient descent in one pass"


def dynamics_sections(at: FixedSizeModel, works: Bibliography) -> tuple[Section, ...]:
    """Return the report sections on one-pass stochastic gradient descent, with outcomes of checks.

    Args:
        at: the model at fixed sizes.
        works: bibliography to which cited works are added.

    Raises:
        ModelError: the equations of the moments do not close for this model.
    """
    dynamics.require_closed_equations_of_motion(at)
    step = dynamics.descent_step(len(at.trained), at.loss_depends_on_q)
    p, after = order_parameter_symbols_of_model(at), step.after
    rows = descent.RowMoments(p)
    update: Items = [
        plain_text(step.rule),
        TextWithSymbols(
            "{} is the learning rate. A sentence moves row {row_index} of the weights, {} being coordinate {row_index} "
            "of a token with its encoding over the root of d, by the sum over tokens of the first term, and by the "
            "second one:",
            (descent.RATE, dynamics.ENTRY),
        ),
        Relation(sp.Symbol("step_of_row"), step.before["step"]),
        TextWithSymbols(
            "{} is the slope of the loss in the fields {} of a token, taken at the fields of the weights themselves. "
            "Its derivatives, on average over a sentence restricted to a context,",
            (rows.D, rows.X),
        ),
        Relation(rows.H, after["H_slope"]),
        Relation(rows.K, after["K_slope"]),
        TextWithSymbols(
            "({} and {dY} are the fields less their means, {rho_star} the covariance of the teacher's), give the drift "
            "of a row and the noise that it feels:",
            (rows.dX,),
        ),
        Relation(sp.Symbol("mean_drift"), after["drift"]),
        Relation(sp.Symbol("covariance_drift"), after["noise"], "a batch of B sentences a step; 1 for one"),
    ]
    moments = {rows.S: p.w * p.w.T, rows.T: p.tau * p.w, rows.P: p.w * p.pi.T}
    closed: Items = [
        TextWithSymbols(
            "With {mean_atom} the average over the rows of one spectral atom, at given eigenvalues {gamma}, and"
        ),
        *[Relation(moment, MatrixAverage(descent.ATOM, product)) for moment, product in moments.items()],
        Relation(rows.A, after["A_drift"]),
        TextWithSymbols("the moments of each atom follow"),
        *[Relation(sp.Symbol(f"rate_of_{name}"), after[f"d{name}"]) for name in ("S", "T", "P")],
        *([Relation(sp.Symbol("rate_of_phi"), after["trained"])] if at.trained else []),
        TextWithSymbols("and the overlaps, of which the law of the fields is made, are averages over the atoms:"),
        *[Relation(overlap, after[overlap.name]) for overlap in (p.q, p.m, p.theta)],
        TextWithSymbols(
            "Gradient flow on the population risk is the limit of a small {}, time times {} being kept: the noise of "
            "order {} is absent. Its stationary points are those of the risk for n / d to infinity, with a penalty "
            "n / d times as strong.",
            (descent.RATE, descent.RATE, descent.RATE**2),
        ),
    ]
    batch: Items = [
        TextWithSymbols(
            "A step on the mean of {} d sentences, of rate {} d, moves weights by amounts of order one: with",
            (descent.SHARE, descent.RATE),
        ),
        Relation(rows.b, after["b_drift"]),
        Relation(sp.Symbol("covariance_batch"), after["batch noise"]),
        TextWithSymbols("one such step takes the moments to"),
        *[Relation(sp.Symbol(f"moved_{name}"), after[f"{name} after a batch"]) for name in ("S", "T", "P")],
        plain_text(
            "A sentence that is seen again, as in descent on fixed data, is correlated with the weights: no such "
            "equations hold there."
        ),
        *sentences_on_checks_and_citation(
            step, works, {"X": UnindexedExpression(rows.X), "Y": UnindexedExpression(p.Y)}
        ),
    ]
    return (
        Section(TITLE, tuple(update)),
        Section("Closed equations", tuple(closed)),
        Section("Batches of order d", tuple(batch)),
    )
