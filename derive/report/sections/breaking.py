"""The derivation with steps of replica symmetry breaking: its sections, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy as sp

from ...authoring.model import FixedSizeModel
from ...authoring.regulariser import Sphere
from ...calculus.averages import COORDINATE, Average, MatrixAverage
from ...replicas.algebra.levels import (
    ReplicaBreakingSymbols,
    TiltedAverage,
    exponents_of_tilted_averages,
    parisi,
    replica_block_ansatz,
    tilted_averages,
)
from ...replicas.algebra.objects import replica_symbol
from ...replicas.algebra.step import Step
from ...replicas.steps.breaking_saddle import collect_terms, matrix_gradient
from ...replicas.steps.derivation import derivation
from ...replicas.steps.second_variation import perturbation_matrices, perturbation_strength
from ..blocks import Items, Relation, Section, TextWithSymbols, plain_text
from .references import Bibliography
from .steps import (
    PLACES,
    assumption_section,
    equations_of_replica_stability,
    equations_up_to_zero_temperature,
    order_parameter_symbols_of_model,
    sections_by_step_number,
)
from .theory import order_parameter_table


def replica_symmetry_breaking_sections(at: FixedSizeModel, works: Bibliography, rsb: int) -> tuple[Section, ...]:
    """Return the report sections of the derivation with replica symmetry breaking, with outcomes of checks.

    Args:
        at: the model at fixed sizes.
        works: bibliography to which cited works are added.
        rsb: number of steps of replica symmetry breaking, 1 or 2.
    """
    steps = derivation(at, rsb=rsb)
    plain = order_parameter_symbols_of_model(at)
    p = ReplicaBreakingSymbols(plain.s, plain.t, plain.trained, plain.loss_depends_on_q, rsb)
    items = equations_up_to_zero_temperature(steps, replica_block_ansatz(p)) | {
        8: _equations_of_saddle_point_step(steps[8], at, p)
    }
    if rsb == 1:
        between, within = _equations_of_perturbed_overlaps(p)
        items |= {
            9: _replace_resolvents_by_symbols(_equations_of_complexity(steps[9]), p),
            10: _equations_of_parisi_limits(steps[10], p),
            11: _replace_resolvents_by_symbols(equations_of_replica_stability(steps[11], p, between), p),
            12: _replace_resolvents_by_symbols(equations_of_replica_stability(steps[12], p, within), p),
        }
    sections = sections_by_step_number(steps, items, works)
    return (
        _order_parameter_section(p),
        assumption_section(at, rsb=rsb),
        *[sections[step.number] for step in steps.steps],
        _omitted_results_section(rsb),
    )


def _equations_of_perturbed_overlaps(p: ReplicaBreakingSymbols) -> list[Items]:
    """Return equations of perturbed overlaps and conjugates: of replicas in different blocks, and in one block."""
    moves = zip((p.q, p.q_hat), perturbation_matrices(p), strict=True)
    changes = {replica_symbol(z, "ab"): perturbation_strength() * move for z, move in moves}
    return [
        [Relation(left, value + changes[left], note) for left, value in pairs.symbol_replacements(p).items()]
        for pairs, note in zip(replica_block_ansatz(p).replica_pairs, PLACES[p.steps], strict=True)
    ]


_EXCESS_TEXTS = {
    1: ("what the overlap of a state with itself exceeds it by",),
    2: (
        "what the overlap of two states of one cluster exceeds it by",
        "what that of a state with itself exceeds this by",
    ),
}


def _order_parameter_section(p: ReplicaBreakingSymbols) -> Section:
    of_two = "states" if p.steps == 1 else "states of different clusters"
    covariances = {
        p.q: f"overlap of two {of_two}: covariance of what their fields have in common",
        **dict(zip(p.symbols_by_breaking_step("Delta"), _EXCESS_TEXTS[p.steps], strict=True)),
    }
    return Section(
        "Order parameters",
        (
            order_parameter_table(p, covariances, "a state"),
            TextWithSymbols(
                f"Further unknowns: {_PARISI_TEXTS[p.steps]}. States are clusters of near-minima; fields of "
                "one minimiser have the covariance {}. Given by the law of the tokens: {rho_star} and {m_star}, the "
                "covariance and mean of the teacher's fields. {mean_coordinate} is the average over one coordinate, "
                "{mean_context} that over a sentence and its noise restricted to context c = (l, k), where token l has "
                "label k.",
                (*p.parisi_parameters, sp.MatAdd(p.q, *p.symbols_by_breaking_step("Delta"))),
            ),
        ),
    )


_PARISI_TEXTS = {
    1: "the Parisi parameter {}, an inverse energy",
    2: "the Parisi parameters {} and {}, inverse energies",
}


def _replace_resolvents_by_symbols(items: Items, p: ReplicaBreakingSymbols) -> Items:
    """Return equations and sentences in which every resolvent (Lambda + ...)^{-1} is replaced by its symbol."""
    short = p.resolvent_symbols()

    def replace_resolvents_by_symbols(item: Any) -> Any:
        if not isinstance(item, Relation):
            return item
        return replace(item, left=item.left.xreplace(short), right=item.right.xreplace(short))

    return [replace_resolvents_by_symbols(item) for item in items]


def _equations_of_saddle_point_step(step: Step, at: FixedSizeModel, p: ReplicaBreakingSymbols) -> Items:
    ridge = not step.before["Phi"].has(p.envelope)
    levels = replica_block_ansatz(p).levels[1:]
    (sentences, rows), (exponents, row_exponents) = tilted_averages(p), exponents_of_tilted_averages(p)
    Deltas, hats, tildes, tilde_hats = map(
        p.symbols_by_breaking_step, ("Delta", "Delta{}_hat", "V_tilde", "V_tilde{}_hat")
    )
    overlaps = [p.q_hat, *hats, p.V_hat, p.m_hat, p.theta_hat, p.q, *Deltas, p.V, p.m, p.theta]
    notes = {
        p.V_hat: "derivative form: what is averaged is a distribution where the field jumps",
        tilde_hats[0]: "Stein form: jumps of the field are counted",
    }
    named: Items = [
        TextWithSymbols("Averages with the weight of the states of a block are written in angle brackets,"),
        *_definitions_of_tilted_averages(sentences, exponents, [level.channel for level in levels]),
        *([] if ridge else _definitions_of_tilted_averages(rows, row_exponents, [level.rows for level in levels])),
        TextWithSymbols("and what answers as V and its conjugate where blocks answer as a whole is"),
        *[Relation(short, value) for short, value in p.block_variances().items()],
        *([Relation(short, value) for value, short in reversed(p.resolvent_symbols().items())] if ridge else []),
    ]
    items: Items = [
        TextWithSymbols("With them the free entropy and its conditions are"),
        Relation(sp.Symbol("Phi"), step.after["Phi"]),
        *[Relation(z, step.after[z.name], notes.get(z, "")) for z in (*overlaps, tilde_hats[0], tildes[0])],
        *([Relation(step.after["trained"], sp.Integer(0))] if "trained" in step.after else []),
        TextWithSymbols("with {domega} and {dY} the deviations of {omega_0} and {Y} from their means."),
    ]
    if ridge:
        items.append(plain_text(
            "The last conditions of the rows are those of the replica-symmetric prior at the variance of whole blocks; "
            "at that of a state it returns V."
        ))  # fmt: skip
    if isinstance(at.regulariser, Sphere):
        (potential,) = [a.summand for a in step.before["Phi"].atoms(Average) if a.kind == COORDINATE]
        held = collect_terms(MatrixAverage(COORDINATE, -2 * matrix_gradient(potential, p.Lambda, p)), p)
        items += [
            TextWithSymbols(
                "Norms of the columns are given: half the trace of {Lambda} times their squares is added to {Phi}, and "
                "the derivative in the multipliers {Lambda} vanishes,"
            ),
            Relation(held, p.Norms, "on the diagonal"),
        ]
    return [*named, *_replace_resolvents_by_symbols(items, p)]


def _definitions_of_tilted_averages(
    tilt: TiltedAverage, exponents: Mapping[str, sp.Expr], kinds: Sequence[str]
) -> Items:
    """Return equations that define the tilted averages of a gradient, one for each level of symmetry breaking."""
    items: Items = []
    for level, (tilted, plain) in reversed([*enumerate(zip(tilt.kinds, kinds, strict=True))]):
        weight = sp.exp(exponents[tilted])
        mean = MatrixAverage(plain, weight * tilt.mean_gradient_at_level(level + 1)) / Average(plain, weight)
        items.append(Relation(tilt.mean_gradient_at_level(level), mean))
    return items


def _equations_of_complexity(step: Step) -> Items:
    notes = {
        "dPhi_dy": "at given order parameters",
        "complexity": "logarithm of the number of states, per dimension",
        "energy": "their energy, per dimension",
    }
    return [
        *[Relation(sp.Symbol(name), step.after[name], note) for name, note in notes.items()],
        TextWithSymbols(
            "With loss and penalty at the minimisers of these states the same energy is, at the saddle point,"
        ),
        Relation(sp.Symbol("training_loss"), step.after["training_loss"]),
        TextWithSymbols("The states of least energy, which is minus the free entropy there, are those where"),
        Relation(sp.Symbol("dPhi_dy"), sp.Integer(0)),
    ]


def _equations_of_parisi_limits(step: Step, p: ReplicaBreakingSymbols) -> Items:
    return _replace_resolvents_by_symbols([
        Relation(sp.Symbol("Phi_symmetric"), step.after["Phi without blocks"]),
        TextWithSymbols("For small {Delta} and {Delta_hat} the conditions for them are, whatever {},", (parisi,)),
        Relation(p.Delta_hat, step.after["small Delta_hat"]),
        Relation(p.Delta, step.after["small Delta"]),
        TextWithSymbols("States of one weight, {} = 0, have", (parisi,)),
        Relation(sp.Symbol("Phi_equal"), step.after["Phi at y = 0"]),
        Relation(p.Delta_hat, step.after["Delta_hat at y = 0"]),
        Relation(p.Delta, step.after["Delta at y = 0"]),
    ], p)  # fmt: skip


def _omitted_results_section(rsb: int) -> Section:
    said_before = (
        "The equations with the model's own symbols, message passing and Bayes-optimal inference are those of the "
        "replica-symmetric derivation, which --rsb 0 prints. A test error is that of the fields of one minimiser: the "
        "covariance of its fields is that of a state with itself, their covariance with the teacher's is as before."
    )
    if rsb > 1:
        said_before += (
            " Energies, limits and the stability of levels are those of one step, level by level, which --rsb 1 "
            "prints: the slope of the free entropy vanishes in every Parisi parameter."
        )
    return Section("What is not repeated", (plain_text(said_before),))
