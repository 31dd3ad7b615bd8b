"""Stochastic gradient descent in one pass (docs/theory.md section 19)."""

from __future__ import annotations

import sympy as sp

from ...authoring.model import ModelAt
from ...calculus.averages import MatrixAverage
from ...replicas import dynamics
from ...theory import descent
from ..blocks import Items, Relation, Section, Stacked, Words, said
from .references import Bibliography
from .steps import checked, generic_symbols

TITLE = "Stochastic gradient descent in one pass"


def dynamics_sections(at: ModelAt, works: Bibliography) -> tuple[Section, ...]:
    """The equations with the outcome of their checks.

    Raises:
        ModelError: they do not close.
    """
    dynamics.refuse(at)
    step = dynamics.step(len(at.trained), at.loss_holds_q)
    p, after = generic_symbols(at), step.after
    rows = descent.Rows(p)
    S, P, T, D, X = rows.S, rows.P, rows.T, rows.D, rows.X
    w, pi = p.w, p.pi
    update: Items = [
        said(step.rule),
        Words(
            "{} is the learning rate. A sentence moves row {} of the weights, {} being coordinate {} of a token with "
            "its encoding over the root of d, by the sum over tokens of the first term, and by the second one:",
            (descent.RATE, sp.Symbol("row_index"), dynamics.ENTRY, sp.Symbol("row_index")),
        ),
        Relation(sp.Symbol("step_of_row"), step.before["step"]),
        Words(
            "{} is the slope of the loss in the fields {} of a token, taken at the fields of the weights themselves. "
            "Its derivatives, on average over a sentence restricted to a context,",
            (D, X),
        ),
        Relation(rows.H, after["H_slope"]),
        Relation(rows.K, after["K_slope"]),
        Words(
            "({} and {} are the fields less their means, {} the covariance of the teacher's), give the drift of a row "
            "and the noise that it feels:",
            (rows.dX, p.dY, p.rho_star),
        ),
        Relation(sp.Symbol("mean_drift"), after["drift"]),
        Relation(sp.Symbol("covariance_drift"), after["noise"], "a batch of B sentences a step; 1 for one"),
    ]
    short = {
        S: MatrixAverage(descent.ATOM, w * w.T),
        T: MatrixAverage(descent.ATOM, p.tau * w),
        P: MatrixAverage(descent.ATOM, w * pi.T),
    }
    closed: Items = [
        Words(
            "With {} the average over the rows of one spectral atom, at given eigenvalues {}, and",
            (sp.Symbol("mean_atom"), p.gamma),
        ),
        *[Relation(moment, meaning) for moment, meaning in short.items()],
        Relation(rows.A, after["A_drift"]),
        Words("the moments of each atom follow"),
        *[Relation(sp.Symbol(f"rate_of_{name}"), after[f"d{name}"]) for name in ("S", "T", "P")],
        *([Relation(sp.Symbol("rate_of_phi"), after["trained"])] if at.trained else []),
        Words("and the overlaps, of which the law of the fields is made, are averages over the atoms:"),
        *[Relation(overlap, after[name]) for overlap, name in ((p.q, "q"), (p.m, "m"), (p.theta, "theta"))],
        Words(
            "Gradient flow on the population risk is the limit of a small {}, time times {} being kept: the noise of "
            "order {} is absent. Its stationary points are those of the risk for n / d to infinity, with a penalty "
            "n / d times as strong.",
            (descent.RATE, descent.RATE, descent.RATE**2),
        ),
    ]
    batch: Items = [
        Words(
            "A step on the mean of {} d sentences, of rate {} d, moves weights by amounts of order one: with",
            (descent.SHARE, descent.RATE),
        ),
        Relation(rows.b, after["b_drift"]),
        Relation(sp.Symbol("covariance_batch"), after["batch noise"]),
        Words("one such step takes the moments to"),
        *[Relation(sp.Symbol(f"moved_{name}"), after[f"{name} after a batch"]) for name in ("S", "T", "P")],
        said(
            "A sentence that is seen again, as in descent on fixed data, is correlated with the weights: no such "
            "equations hold there."
        ),
        checked(step, {"X": Stacked(X), "Y": Stacked(p.Y)}),
        said(f"See {works.cite(step.citation)}."),
    ]
    return (
        Section(TITLE, tuple(update)),
        Section("Closed equations", tuple(closed)),
        Section("Batches of order d", tuple(batch)),
    )
