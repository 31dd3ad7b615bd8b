"""The derivation with one step of replica symmetry breaking: its sections, in their order."""

from __future__ import annotations

import sympy as sp

from ...authoring.model import ModelAt
from ...authoring.regulariser import Sphere
from ...calculus.averages import COORDINATE, Average, MatrixAverage
from ...replicas.algebra.levels import BLOCK, Broken, one_step, parisi, tilts
from ...replicas.algebra.objects import FIELD, replicated
from ...replicas.algebra.step import Step
from ...replicas.steps.breaking_saddle import collected, matrix_gradient
from ...replicas.steps.derivation import derivation
from ...replicas.steps.second_variation import perturbations, strength
from ..blocks import Items, Relation, Section, Table, Words, said
from .references import Bibliography, reference_section
from .steps import PLACES, assumption_section, first_items, generic_symbols, sections_of, stability_items


def breaking_sections(at: ModelAt, works: Bibliography) -> tuple[Section, ...]:
    """Order parameters, assumptions and the twelve steps; every check is carried out and its outcome said."""
    steps = derivation(at, rsb=1)
    plain = generic_symbols(at)
    p = Broken(plain.s, plain.t, plain.trained, plain.loss_holds_q)
    between, within = _moved_pairs(p)
    items = first_items(steps, one_step(p)) | {
        8: _saddle(steps[8], at, p),
        9: _shortened(_complexity(steps[9]), p),
        10: _limits(steps[10], p),
        11: _shortened(stability_items(steps[11], p, between), p),
        12: _shortened(stability_items(steps[12], p, within), p),
    }
    sections = sections_of(steps, items, works)
    return (
        _order_parameters(p),
        assumption_section(at, rsb=1),
        *[sections[step.number] for step in steps.steps],
        _left_out(),
        reference_section(works),
    )


def _moved_pairs(p: Broken) -> list[Items]:
    """The perturbed overlaps and conjugates: of different blocks, then within one."""
    moves = zip((p.q, p.q_hat), perturbations(p), strict=True)
    changes = {replicated(z, "ab"): strength() * move for z, move in moves}
    return [
        [Relation(left, value + changes[left], note) for left, value in pairs.values(p).items()]
        for pairs, note in zip(one_step(p).pairs, PLACES, strict=True)
    ]


def _order_parameters(p: Broken) -> Section:
    meaning = {
        p.q: (p.q_hat, "overlap of two states: covariance of what their fields have in common"),
        p.Delta: (p.Delta_hat, "what the overlap of a state with itself exceeds it by"),
        p.V: (p.V_hat, "variance: the susceptibility of a state"),
        p.m: (p.m_hat, "overlap with the mean and the positional encoding"),
        p.theta: (p.theta_hat, "covariance of the student's with the teacher's fields"),
    }
    rows = tuple((z, " x ".join(map(str, z.shape)), hat, words) for z, (hat, words) in meaning.items())
    return Section(
        "Order parameters",
        (
            Table(("overlap", "shape", "conjugate", "meaning"), rows),
            Words(
                "Beside them the Parisi parameter {}, an inverse energy. States are clusters of near-minima; fields of "
                "one minimiser have the covariance {}. Given by the law of the tokens: {} and {}, the covariance and "
                "mean of the teacher's fields. {} is the average over one coordinate, {} that over a sentence and its "
                "noise restricted to context c = (l, k), where token l has label k.",
                (parisi, p.q + p.Delta, p.rho_star, p.m_star, sp.Symbol("mean_coordinate"), sp.Symbol("mean_context")),
            ),
        ),
    )


def _short(p: Broken) -> dict[sp.MatrixExpr, sp.MatrixExpr]:
    """Resolvents by their names."""
    return {(p.Lambda + p.G - parisi * p.Q_Delta).inv(): p.R_tilde, (p.Lambda + p.G).inv(): p.R}


def _shortened(items: Items, p: Broken) -> Items:
    return [
        Relation(item.left.xreplace(_short(p)), item.right.xreplace(_short(p)), item.note, item.sign, item.stacked)
        if isinstance(item, Relation)
        else item
        for item in items
    ]


def _saddle(step: Step, at: ModelAt, p: Broken) -> Items:
    ridge = not step.before["Phi"].has(p.envelope)
    sentences, rows = tilts(p)
    names = [p.q_hat, p.Delta_hat, p.V_hat, p.m_hat, p.theta_hat, p.q, p.Delta, p.V, p.m, p.theta]
    derivative = {p.V_hat: "derivative form: what is averaged is a distribution where the field jumps"}
    trained = step.after.get("trained")
    named: Items = [
        Words("Averages with the weight of the states of a block are written in angle brackets,"),
        Relation(sentences.mean(p.g), _weighted(p.g, -p.moreau, BLOCK)),
        *([] if ridge else [Relation(rows.mean(p.w), _weighted(p.w, p.envelope, FIELD))]),
        Words("and what answers as V and its conjugate where blocks answer as a whole is"),
        Relation(p.V_tilde, p.V + parisi * p.Delta),
        Relation(p.V_tilde_hat, p.V_hat - parisi * p.Delta_hat),
        *([Relation(short, value) for value, short in _short(p).items()] if ridge else []),
    ]
    items: Items = [
        Words("With them the free entropy and its conditions are"),
        Relation(sp.Symbol("Phi"), step.after["Phi"]),
        *[Relation(z, step.after[z.name], derivative.get(z, "")) for z in names],
        Relation(p.V_tilde_hat, step.after["V_tilde_hat"], "Stein form: jumps of the field are counted"),
        Relation(p.V_tilde, step.after["V_tilde"]),
        *([] if trained is None else [Relation(trained, sp.Integer(0))]),
        Words("with {} and {} the deviations of {} and {} from their means.", (p.domega, p.dY, p.omega_0, p.Y)),
    ]
    if ridge:
        items.append(said(
            "The last conditions of the rows are those of the replica-symmetric prior at the variance of whole blocks; "
            "at that of a state it returns V."
        ))  # fmt: skip
    if isinstance(at.regulariser, Sphere):
        (potential,) = [a.summand for a in step.before["Phi"].atoms(Average) if a.kind == COORDINATE]
        held = collected(MatrixAverage(COORDINATE, -2 * matrix_gradient(potential, p.Lambda, p)), p)
        items += [
            Words(
                "Norms of the columns are given: half the trace of {} times their squares is added to {}, and the "
                "derivative in the multipliers {} vanishes,",
                (p.Lambda, sp.Symbol("Phi"), p.Lambda),
            ),
            Relation(held, p.Norms, "on the diagonal"),
        ]  # fmt: skip
    return [*named, *_shortened(items, p)]


def _weighted(slope: sp.MatrixSymbol, h: sp.Expr, kind: str) -> sp.MatrixExpr:
    """E[slope exp(y h)] / E[exp(y h)]."""
    weight = sp.exp(parisi * h)
    return MatrixAverage(kind, weight * slope) / Average(kind, weight)


def _complexity(step: Step) -> Items:
    dPhi, complexity, energy = (sp.Symbol(name) for name in ("dPhi_dy", "complexity", "energy"))
    return [
        Relation(dPhi, step.after["dPhi_dy"], "at given order parameters"),
        Relation(complexity, step.after["complexity"], "logarithm of the number of states, per dimension"),
        Relation(energy, step.after["energy"], "their energy, per dimension"),
        Words("With loss and penalty at the minimisers of these states the same energy is, at the saddle point,"),
        Relation(sp.Symbol("training_loss"), step.after["training_loss"]),
        Words("The states of least energy, which is minus the free entropy there, are those where"),
        Relation(dPhi, sp.Integer(0)),
    ]


def _limits(step: Step, p: Broken) -> Items:
    return _shortened([
        Relation(sp.Symbol("Phi_symmetric"), step.after["Phi without blocks"]),
        Words("For small {} and {} the conditions for them are, whatever {},", (p.Delta, p.Delta_hat, parisi)),
        Relation(p.Delta_hat, step.after["small Delta_hat"]),
        Relation(p.Delta, step.after["small Delta"]),
        Words("States of one weight, {} = 0, have", (parisi,)),
        Relation(sp.Symbol("Phi_equal"), step.after["Phi at y = 0"]),
        Relation(p.Delta_hat, step.after["Delta_hat at y = 0"]),
        Relation(p.Delta, step.after["Delta at y = 0"]),
    ], p)  # fmt: skip


def _left_out() -> Section:
    return Section(
        "What is not repeated",
        (
            said(
                "The equations with the model's own symbols, message passing and Bayes-optimal inference are those of "
                "the replica-symmetric derivation, which --rsb 0 prints. A test error is that of the fields of one "
                "minimiser: the covariance of its fields is that of a state with itself, their covariance with the "
                "teacher's is as before."
            ),
        ),
    )
