"""The steps, assumptions and message passing, with every symbol explained where it first occurs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import sympy as sp

from ...authoring.model import FixedSizeModel
from ...calculus.averages import COORDINATE, Average, MatrixAverage, OrderParameterSymbols
from ...replicas import message_passing
from ...replicas.algebra.levels import ReplicaAnsatz, parisi, replica_symmetric_ansatz
from ...replicas.algebra.objects import LogDet, LogIntegral, beta, factor_out_scalars, n, replica_symbol
from ...replicas.algebra.step import Derivation, Step
from ...replicas.steps.derivation import derivation
from ...replicas.steps.fields import TokenAndWeights
from ...replicas.steps.second_variation import perturbation_matrices, perturbation_strength, prior_perturbation
from ...replicas.steps.zero_temperature import growth_exponents_in_beta
from ..blocks import (
    Items,
    Relation,
    Section,
    TextWithSymbols,
    UnindexedExpression,
    insert_symbols_into_text,
    plain_text,
)
from ..printing import MEANS
from .references import Bibliography

# Symbols that the words of a step name, printed without the index of a context.
SPOKEN = {
    name: UnindexedExpression(sp.MatrixSymbol(name.replace("^", "_hat"), 1, 1))
    for name in ("q", "V", "m", "theta", "G", "B", "Q", "b", "Delta", "Delta^", "Delta_1", "Delta_2", "V^")
} | {"𝔶": parisi}


def derivation_step_sections(at: FixedSizeModel, works: Bibliography) -> dict[int, Section]:
    """Return the report sections of the replica-symmetric derivation by step number, with outcomes of checks.

    Args:
        at: the model at fixed sizes.
        works: bibliography to which cited works are added.
    """
    steps, p = derivation(at), order_parameter_symbols_of_model(at)
    last = {8: _equations_of_training_loss(steps[8]), 9: equations_of_replica_stability(steps[9], p)}
    return sections_by_step_number(
        steps, equations_up_to_zero_temperature(steps, replica_symmetric_ansatz(p)) | last, works
    )


def equations_up_to_zero_temperature(steps: Derivation, ansatz: ReplicaAnsatz) -> dict[int, Items]:
    """Return equations and explanations of steps 1 to 7 (up to zero temperature) by step number.

    Args:
        steps: the derivation.
        ansatz: the replica ansatz, with or without replica symmetry breaking.
    """
    p = ansatz.symbols
    return {
        1: _equations_of_partition_function(steps[1], p), 2: _equations_of_field_distribution(steps[2], p),
        3: _equations_of_replicated_action(steps[3], p),
        4: _equations_of_replica_ansatz(steps[4], ansatz),
        5: _equations_of_replica_limit(steps[5], ansatz), 6: _equations_at_finite_temperature(steps[6]),
        7: _equations_at_zero_temperature(steps[7], p),
    }  # fmt: skip


def sections_by_step_number(steps: Derivation, items: Mapping[int, Items], works: Bibliography) -> dict[int, Section]:
    """Return the report sections of all steps of a derivation, by step number.

    Args:
        steps: the derivation.
        items: step number -> equations and explanations of the step.
        works: bibliography to which cited works are added.
    """
    return {
        step.number: derivation_step_section(f"Step {step.number}: {step.name}", step, items[step.number], works)
        for step in steps.steps
    }


def derivation_step_section(
    title: str, step: Step, items: Items, works: Bibliography, spoken: Mapping[str, Any] = SPOKEN
) -> Section:
    """Return the report section of a derivation step: rule, equations, outcome of the checks and citation.

    Args:
        title: title of the section.
        step: the derivation step.
        items: equations and explanations, printed between the rule and the checks.
        works: bibliography to which cited works are added.
        spoken: name in the texts of the step -> symbol that is printed for it.
    """
    return Section(
        title,
        (insert_symbols_into_text(step.rule, spoken), *items, *sentences_on_checks_and_citation(step, works, spoken)),
    )


def sentences_on_checks_and_citation(step: Step, works: Bibliography, spoken: Mapping[str, Any]) -> Items:
    """Return a sentence with the outcome of the checks of a derivation step, and one with its citation.

    Args:
        step: the derivation step.
        works: bibliography to which cited works are added.
        spoken: name in the texts of the step -> symbol that is printed for it.
    """
    return [run_checks_of_step(step, spoken), plain_text(f"See {works.cite(step.citation)}.")]


def order_parameter_symbols_of_model(at: FixedSizeModel) -> OrderParameterSymbols:
    """Return the matrix symbols of the order parameters for a model of this kind, with symbolic sizes s and t."""
    s, t = (sp.Symbol(name, integer=True, positive=True) for name in "st")
    return OrderParameterSymbols(s, t, len(at.trained), at.loss_depends_on_q)


def run_checks_of_step(step: Step, spoken: Mapping[str, Any] = SPOKEN) -> TextWithSymbols:
    """Run all checks of a derivation step and return a sentence with the outcomes.

    Args:
        step: the derivation step.
        spoken: name in the texts of the step -> symbol that is printed for it.
    """
    outcomes = []
    checks = step.check()
    for word, outcome in (("Checked", True), ("FAILED", False)):
        names: dict[str, list[str]] = {}
        for check in checks:
            if check.passed == outcome:
                names.setdefault(check.detail, []).append(check.name)
        if names:
            outcomes.append(
                f"{word}: {'; '.join(f'{_join_check_names(known)} ({detail})' for detail, known in names.items())}."
            )
    return insert_symbols_into_text(" ".join(outcomes), spoken)


def _join_check_names(names: list[str]) -> str:
    """Return names of checks as one text, separated by commas, with common first words printed once."""
    first, *rest = names
    start = first.rpartition(" ")[0] + " "
    return ", ".join([first, *[name.removeprefix(start) for name in rest]])


def _equations_of_partition_function(step: Step, p: OrderParameterSymbols) -> Items:
    weights = TokenAndWeights(p).weight_matrix("a")
    W = sp.MatrixSymbol("W", *weights.shape)
    return [
        TextWithSymbols(
            "{beta} is the inverse temperature, {n} the number of replicas, counted by {a} and {}; sums over "
            "{sample_index} run over the {alpha_d} sentences, those over {row_index} over the rows of the weights.",
            (sp.Symbol("a'"),),
        ),
        Relation(sp.log(sp.Symbol("Z")), LogIntegral(step.before["weight"], W)),
        Relation(sp.log(sp.Symbol("Z") ** n), LogIntegral(step.after["weight"], weights)),
    ]


def _equations_of_field_distribution(step: Step, p: OrderParameterSymbols) -> Items:
    given, x = TokenAndWeights(p), sp.MatrixSymbol("x", p.s, 1)
    left = {
        "m|a": replica_symbol(p.m, "a"), "q|ab": replica_symbol(p.q, "ab"), "theta|a": replica_symbol(p.theta, "a"),
        "m_star": p.m_star, "rho_star": p.rho_star,
    }  # fmt: skip
    return [
        TextWithSymbols(
            "A token {} has the mean {} and covariance {} of its context, and a positional encoding {} that the "
            "student sees and the teacher does not.",
            (given.token, given.mean, given.covariance, given.encoding),
        ),
        Relation(replica_symbol(x, "a"), step.before["X|a"]),
        Relation(p.Y, step.before["Y"]),
        TextWithSymbols("Given the label of the token they are jointly normal, with means and covariances"),
        *[Relation(left[name], value) for name, value in step.after.items()],
    ]


_POTENTIALS = {"trace": "S_trace", "entropic": "S_rows", "energetic": "S_sentences", "trained": "S_trained"}


def _equations_of_action_terms(step: Step, prefix: str = "") -> Items:
    """Return the equations of the terms of the replicated action (prefix "slope_": of their derivatives at n = 0)."""
    items: Items = []
    for name, value in step.after.items():
        if name in _POTENTIALS:
            short, exponents = _replace_integral_exponents_by_symbols(value)
            items.append(Relation(sp.Symbol(f"{prefix}{_POTENTIALS[name]}"), short))
            items += [] if prefix else exponents  # those of single integrals are the same before and after the limit
    return items + _equations_of_ridge_potential(step, prefix)


def _equations_of_ridge_potential(step: Step, prefix: str) -> Items:
    """Return the equations of the rows' term in the action, integrated over the weights; [] without a ridge."""
    if "entropic of ridge" not in step.after:
        return []
    done = "For the ridge penalty the integral over the weights is done, too, and the rows' part is"
    return [
        TextWithSymbols("and for ridge" if prefix else done),
        Relation(sp.Symbol(f"{prefix}S_rows"), step.after["entropic of ridge"]),
    ]


def _replace_integral_exponents_by_symbols(expression: sp.Expr) -> tuple[sp.Expr, Items]:
    """Return an expression with symbols for the exponents in its integrals, and equations that define the symbols."""
    relations: Items = []
    for integral in expression.atoms(LogIntegral):
        stem, _, replicas = integral.integration_variable.name.partition("|")
        named = sp.Symbol(f"{'H' if replicas else 'h'}_{stem}")
        expression = expression.xreplace({integral: LogIntegral(named, integral.integration_variable)})
        # Replicas occur in sums over sums, which are split to fit on lines.
        exponent = factor_out_scalars(integral.log_integrand) if replicas else integral.log_integrand
        relations.append(Relation(named, exponent))
    return expression, relations


def _equations_of_replicated_action(step: Step, p: OrderParameterSymbols) -> Items:
    r = sp.MatrixSymbol("r|a", p.s, p.s)
    definitions = [
        Relation(sp.MatrixSymbol(name.partition(" ")[0], *value.shape), MatrixAverage(COORDINATE, value))
        for name, value in step.before.items()
        if name != "weight"
    ]
    total = [sp.Symbol(symbol) for name, symbol in _POTENTIALS.items() if name in step.after]
    return [
        TextWithSymbols(
            "In the common eigenbasis the overlaps are averages over the coordinates, {} being that of a replica with "
            "itself and {} a row of its weights:",
            (r, replica_symbol(p.w, "a")),
        ),
        *definitions,
        TextWithSymbols(
            "With a conjugate, written with a hat, for each of them, the average is a sum of a term {S_trace} of "
            "overlaps and conjugates, one of the rows of the weights, {S_rows}, in which {H_w} is the exponent of one "
            "row in all replicas, and one of the sentences, {S_sentences}:"
        ),
        Relation(sp.Symbol("replicated_action"), sp.Add(*total), "for large d, extremised over all of them"),
        *_equations_of_action_terms(step),
    ]


# Places of the pairs of an ansatz, in its order, by the number of steps of replica symmetry breaking.
PLACES = (("",), ("in different blocks", "in one block"), ("in different blocks", "in one block", "in one inner block"))


def _equations_of_replica_ansatz(step: Step, ansatz: ReplicaAnsatz) -> Items:
    """Return the equations of the replica ansatz and the terms of the replicated action under it."""
    p, outermost = ansatz.symbols, ansatz.levels[0]
    trained = [] if p.trained else [replica_symbol(p.phi, "a")]
    mean = sp.BlockMatrix([[p.m], [p.m_star]])
    single_replica_order_parameters = [
        Relation(left, right) for left, right in ansatz.single_replica_order_parameters.items() if left not in trained
    ]
    pairs = [
        Relation(left, right, note)
        for kind, note in zip(ansatz.replica_pairs, PLACES[ansatz.steps], strict=True)
        for left, right in kind.symbol_replacements(p).items()
    ]
    shared = "outer_field" if ansatz.steps else "field"
    average = sp.Symbol(f"mean_{shared}")
    sizes = tuple(level.size for level in ansatz.levels[1:])
    held = ("", "A block holds {} replicas.", "A block holds {} replicas, an inner one {}.")[ansatz.steps]
    return [
        *([TextWithSymbols(held, sizes)] if sizes else []),
        *single_replica_order_parameters[:2],
        *pairs,
        *single_replica_order_parameters[2:],
        TextWithSymbols("The conjugates act on a row through their sums"),
        *[Relation(z, MatrixAverage("contexts", summand)) for z, summand in p.effective_prior_parameters.items()],
        TextWithSymbols(
            "and the field {} of a row is normal with mean {B} and covariance {Q}, its average written {}. The fields "
            "{} and {Y} of token l are jointly normal with mean and covariance",
            (outermost.row_field, average, outermost.field),
        ),
        Relation(sp.Symbol(f"{shared}_mean"), mean),
        Relation(sp.Symbol(f"{shared}_covariance"), step.after["covariance"]),
        *_sentences_on_block_fields(ansatz),
        TextWithSymbols("In each replica, {x} is normal around the shared {omega} with covariance {V}. Then"),
        *_equations_of_action_terms(step),
    ]


def _sentences_on_block_fields(ansatz: ReplicaAnsatz) -> Items:
    """Return sentences on the random fields shared by the replicas of one block; none without symmetry breaking."""
    return [
        TextWithSymbols(
            "Within {}, {} is normal around {} with covariance {}, and {} around {} with covariance {}; their averages "
            "are written {} and {}.".replace("{}", place, 1),
            (
                *(
                    inner.row_field,
                    outer.row_field,
                    inner.composite,
                    inner.field,
                    outer.field,
                    inner.overlap,
                ),
                *(sp.Symbol(MEANS[kind]) for kind in (inner.rows, inner.channel)),
            ),
        )
        for (outer, inner), place in zip(pairwise(ansatz.levels), ("a block", "an inner block"), strict=False)
    ]


def _equations_of_replica_limit(step: Step, ansatz: ReplicaAnsatz) -> Items:
    A, U = sp.MatrixSymbol("J", 1, 1), sp.MatrixSymbol("U", 1, 1)
    power = sp.log(Average("of@", sp.Symbol("I") ** n))
    slope = LogDet(A) + sp.Trace(A.inv() * U)
    used = TextWithSymbols(
        "The slope of {} at n = 0 is the average of {} over whatever {I} depends on; that of the log det of the "
        "n by n block matrix with {} on the diagonal and {U} off it is {}. Hence",
        (power, sp.log(sp.Symbol("I")), A + U, slope),
    )
    if ansatz.steps:
        used = TextWithSymbols(
            "The slope of {} at n = 0 is the average of {} over whatever {I} depends on, here the average over a block "
            "to the power 1/{}. Determinants are differentiated as they stand. Hence",
            (power, sp.log(sp.Symbol("I")), ansatz.levels[1].size),
        )
    return [used, *_equations_of_action_terms(step, "slope_")]


def _equations_at_finite_temperature(step: Step) -> Items:
    value, _ = _replace_integral_exponents_by_symbols(step.after["Phi_beta"])
    return [Relation(sp.Symbol("Phi_beta"), value, "extremised over all overlaps and conjugates")]


def _equations_at_zero_temperature(step: Step, p: OrderParameterSymbols) -> Items:
    rows: Items = []
    if "N" in step.after:
        rows = [
            TextWithSymbols("and {N}, averaged over a coordinate and its field, the maximum over {w} of"),
            Relation(sp.Symbol("row_objective"), step.after["N"]),
        ]
    shown = [z for z in growth_exponents_in_beta(p) if f"{z.name} becomes" in step.before]
    return [
        *[Relation(z, growth_exponents_in_beta(p)[z], sign="->") for z in shown],
        TextWithSymbols("The free entropy at zero temperature is the limit of {Phi_beta} over {beta}:"),
        Relation(sp.Symbol("Phi"), step.after["Phi"]),
        TextWithSymbols("where {M} is the minimum over the fields X of one sentence of"),
        Relation(sp.Symbol("objective"), step.after["M"]),
        *rows,
    ]


def _equations_of_training_loss(step: Step) -> Items:
    return [
        TextWithSymbols("The training loss, per dimension and with loss and penalty at their minimisers, is"),
        Relation(sp.Symbol("training_loss"), step.after["training_loss"]),
        Relation(sp.Symbol("training_loss"), -sp.Symbol("Phi"), "at the saddle point"),
        TextWithSymbols("The conditions themselves follow."),
    ]


def equations_of_replica_stability(step: Step, p: OrderParameterSymbols, pairs: Items | None = None) -> Items:
    """Return the equations of a stability step: perturbed overlaps, second variation of the action, stationary point.

    Args:
        step: the step on stability.
        p: matrix symbols of the order parameters.
        pairs: equations of the perturbed overlaps; by default those of all pairs of replicas.
    """
    D, D_hat = perturbation_matrices(p)
    parts = [step.after[name] for name in ("trace", "rows", "sentences")]
    moved = [
        Relation(replica_symbol(z, "ab"), z + perturbation_strength() * change)
        for z, change in ((p.q, D), (p.q_hat, D_hat))
    ]
    return [
        TextWithSymbols(
            "{} are the entries of that symmetric matrix, {D} and {D_hat} symmetric s x s matrices of every context.",
            (perturbation_strength(),),
        ),
        *(moved if pairs is None else pairs),
        TextWithSymbols("A row of the weights feels the sum over contexts"),
        Relation(prior_perturbation(p), MatrixAverage("contexts", p.gamma * D_hat)),
        TextWithSymbols(
            "To second order the action changes by the sum of all {}, times {}, times",
            (perturbation_strength() ** 2, beta**2),
        ),
        Relation(sp.Symbol("second_variation"), factor_out_scalars(sp.Add(*parts))),
        TextWithSymbols("which is stationary where {D_hat} and {D} are"),
        Relation(D_hat, step.after["D_hat"]),
        Relation(D, step.after["D_prime"]),
        TextWithSymbols(
            "Read one after the other they map the matrices {D} of all contexts to new ones, linearly"
            + (
                ": the replicon operator of the section on stability."
                if pairs is None
                else ". The ansatz is stable against them where no eigenvalue exceeds 1."
            )
        ),
    ]


# Assumptions on the replicas, by the number of steps of replica symmetry breaking.
_SYMMETRY_ASSUMPTIONS = (
    "Replica symmetry: no permutation of the replicas changes the dominant saddle point. Step 9 tests this "
    "against small perturbations.",
    "One step of replica symmetry breaking: the dominant saddle point groups the replicas in blocks of one size; "
    "permuting blocks, or the replicas of one, does not change it. Steps 11 and 12 test this against "
    "small perturbations.",
    "Two steps of replica symmetry breaking: the dominant saddle point groups the replicas in blocks of blocks, of one "
    "size each; permuting these, or the replicas of one, does not change it.",
)


def assumption_section(at: FixedSizeModel, rsb: int = 0) -> Section:
    """Return the section that lists the assumptions of the replica calculation.

    Args:
        at: the model at fixed sizes.
        rsb: number of steps of replica symmetry breaking.
    """
    assumed = [
        "The calculation that follows is the replica method of theoretical physics and not a proof. It assumes:",
        "(1) Size: d and the number of sentences are large at a fixed ratio; L, s, t and K are of order one.",
        "(2) Data: sentences are independent. Given its label a token is normal and independent of the other tokens of "
        "its sentence. All covariances have one eigenbasis. Eigenvalues, coordinates of means and encodings (times the "
        "root of d) and rows of the teacher's weights have a joint law; means and encodings have norms of order one.",
        "(3) Penalty: it is a sum over the rows of the weights"
        + ("." if at.penalty is None else ", convex in each of them."),
        "(4) Concentration: for large d the logarithm of the partition function, per dimension, and the overlaps do "
        "not depend on the draw of the data and of the teacher.",
        "(5) Replicas: moments of the partition function, computed for integer n, are continued to n = 0, and this "
        "limit is exchanged with that of large d.",
        f"(6) {_SYMMETRY_ASSUMPTIONS[rsb]}",
        "(7) Zero temperature: its limit is exchanged with that of large d, and integrals are dominated by the largest "
        "value of their exponent.",
        "Where the loss is not convex several solutions may coexist: minima and saddle points of the risk, of which "
        "the one of least training loss is the global minimum. None of them describes the course of a training.",
    ]
    return Section("Assumptions", tuple(plain_text(text) for text in assumed))


def message_passing_section(at: FixedSizeModel, works: Bibliography) -> Section:
    """Return the section on generalised approximate message passing at finite d (docs/theory.md section 10).

    Args:
        at: the model at fixed sizes.
        works: bibliography to which cited works are added.
    """
    step = message_passing.message_passing_step(
        at.regulariser.row_regulariser.kind, len(at.trained), at.loss_depends_on_q
    )
    p, after = order_parameter_symbols_of_model(at), step.after
    A = message_passing.onsager_matrix_symbol(p)
    moments = [Relation(sp.Symbol(left), after[name], sign="->") for left, name in _MOMENTS if name in after]
    names = {p.omega: "omega", p.V: "V", p.g: "g", A: "A_row", p.b: "b", sp.MatrixSymbol("N_row", p.s, p.s): "N_row"}
    items: Items = [
        TextWithSymbols(
            "{} is coordinate {row_index} of a token with its encoding, over the root of d, {} the field of the step "
            "before; {}, {b} and {w} belong to row {row_index} of the weights, and {mean_coordinate} is here the mean "
            "over the d coordinates.",
            (message_passing.ENTRY, message_passing.previous_field_symbol(p), A),
        ),
        *[Relation(left, after[name]) for left, name in names.items() if name in after],
        TextWithSymbols("where {x} and the row {w} solve"),
        *[Relation(after[name], sp.Integer(0)) for name in ("proximal", "row", "trained") if name in after],
        TextWithSymbols(
            "that is, they minimise the objective of the Moreau envelope and {penalty} plus half the quadratic form of "
            "{} minus the product with {b}.",
            (A,),
        ),
        TextWithSymbols("For large d the fields and the rows are normal with the moments"),
        *moments,
        TextWithSymbols(
            "These are {m}, {q} and {theta}, and {G}, {B} and {Q} of the saddle point."
            + (" ({G} is the sum of the two limits.)" if "N_row" in after else "")
        ),
    ]
    return derivation_step_section("Message passing", step, items, works)


_MOMENTS = (
    ("omega_mean", "mean of omega"), ("omega_covariance", "covariance of omega"), ("omega_teacher", "omega with Y"),
    ("A_row", "limit of A"), ("N_row", "limit of N"), ("b_mean", "mean of b"), ("b_covariance", "covariance of b"),
)  # fmt: skip
