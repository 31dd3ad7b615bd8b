"""Bayes-optimal inference, for models with an output channel."""

from __future__ import annotations

from itertools import product
from typing import Any

import sympy as sp

from ...authoring.model import FixedSizeModel
from ...authoring.outputs import ANGLE, POSITIVE, REAL, ChannelCoordinate, FixedSizeOutput
from ...calculus.averages import CONTEXTS, Average, MatrixAverage
from ...replicas import bayes_optimal as bayes
from ...replicas.algebra.objects import n
from ...replicas.algebra.step import Step
from ..blocks import Items, Relation, Section, Table, TextWithSymbols, UnindexedExpression, plain_text
from .references import Bibliography
from .steps import derivation_step_section

TITLE = "Bayes-optimal inference of the same teacher"
SPOKEN = {
    name: UnindexedExpression(symbol)
    for name, symbol in (
        ("q", bayes.q), ("q_hat", bayes.q_hat), ("Q", bayes.Q), ("b", bayes.b), ("omega", bayes.omega),
        ("pi", bayes.pi), ("f", bayes.f), ("g", bayes.g), ("Z_row", bayes.Z_row), ("Z_out", bayes.Z_out),
        ("Z", bayes.Z_any),
    )
}  # fmt: skip
EXTREMISED = "extremised over all overlaps and conjugates"
JACOBIAN, LIKELIHOOD = sp.Symbol("output_jacobian", real=True), sp.Symbol("output_likelihood", real=True)


def bayes_sections(at: FixedSizeModel, works: Bibliography) -> tuple[Section, ...]:
    """Return the sections on Bayes-optimal inference of the teacher; () if the model has no output channel.

    Args:
        at: the model at fixed sizes.
        works: bibliography to which cited works are added.
    """
    if at.output is None:
        return ()
    first, second, third = bayes.bayes_optimal_derivation().steps
    parts = (
        (first, _equations_of_bayes_replica_step(first, at.output)),
        (second, _equations_of_bayes_limit_step(second)),
        (third, _equations_of_state_evolution(third)),
    )
    return (
        Section(TITLE, (*_sentences_on_bayes_setting(works), *_equations_of_output_channel(at.output))),
        *[
            derivation_step_section(f"Bayes-optimal, step {step.number}: {step.name}", step, items, works, SPOKEN)
            for step, items in parts
        ],
    )


def _sentences_on_bayes_setting(works: Bibliography) -> Items:
    return [
        plain_text(
            "The learner of this section is given the tokens, the labels of their clusters and, of every sentence, "
            "what is said below to be observed. It is given the laws of the tokens, of the rows of the teacher's "
            "weights and of what is observed given the teacher's fields. All that can be known of the teacher is then "
            "the posterior, the law of its weights given what was observed; neither loss nor penalty enters. The "
            "teacher is one more sample of the posterior, equivalent to the others in every average (Nishimori, "
            f"{works.cite(bayes.NISHIMORI)}). The evidence is the probability of all that is observed given the "
            "tokens, a density where it is continuous: the integral that normalises the posterior."
        ),
        plain_text(
            "Assumed are (1), (2), (4) and (5) of the assumptions, with the evidence in place of the partition "
            "function, and in place of (6) that the replicas, teacher and samples of the posterior, are all alike. "
            "What carries a B belongs to this inference; letters without it mean what they meant before."
        ),
    ]


def _equations_of_output_channel(output: FixedSizeOutput) -> Items:
    """Return equations of the output channel: fields in coordinates, observed coordinates, Jacobian, likelihood."""
    every = [(c, seen) for seen, group in (("yes", output.observed), ("no", output.hidden)) for c in group]
    inside = [c.symbol for c, _ in every if c.is_continuous and output.fields.has(c.symbol)]
    items: Items = [
        TextWithSymbols(
            "The teacher's fields are a function of coordinates, some observed (obs) and others hidden (hid):"
        ),
        Relation(sp.Symbol("fields_Y"), output.fields),
        Table(
            ("coordinate", "observed", "values"), tuple((c.symbol, seen, _range_of_coordinate(c)) for c, seen in every)
        ),
    ]
    if len(inside) > len(output.fields):
        items.append(
            TextWithSymbols(
                "Where nothing depends on a coordinate it does not exist: no sum or integral is taken over it."
            )
        )
    jacobian = _simplified_log_jacobian(output)
    if jacobian == 0:
        items.append(
            TextWithSymbols(
                f"The Jacobian of the fields in {_join_placeholders(inside)} is 1 in absolute value.",
                tuple(inside),
            )
        )
    else:
        items += [
            TextWithSymbols(f"Their Jacobian in {_join_placeholders(inside)} is", tuple(inside)),
            Relation(JACOBIAN, jacobian),
        ]
    if output.log_likelihood != 0:
        number = " ({} in it is the number 3.14159..., not a row)" if output.log_likelihood.has(sp.pi) else ""
        items += [
            TextWithSymbols(f"Given the fields, what is observed has the law{number}", (sp.pi,) if number else ()),
            Relation(LIKELIHOOD, output.log_likelihood),
        ]
    if output.needs != 1:
        items.append(TextWithSymbols("The model shows this where {} is positive.", (output.needs,)))
    return items


def _range_of_coordinate(coordinate: ChannelCoordinate) -> Any:
    if coordinate.is_continuous:
        return {REAL: "(-inf, inf)", POSITIVE: "(0, inf)", ANGLE: "(-pi, pi)"}[coordinate.kind]
    return TextWithSymbols(_join_placeholders(coordinate.values, "or"), coordinate.values)


def _join_placeholders(objects: Any, last: str = "and") -> str:
    """Return a placeholder {} for each object, joined as in a sentence: "{}, {} and {}"."""
    *first, end = ["{}"] * len(objects)
    return f"{', '.join(first)} {last} {end}" if first else end


def _simplified_log_jacobian(output: FixedSizeOutput) -> sp.Expr:
    """Return the log Jacobian of the output channel, without discrete coordinates if they do not change it."""
    discrete = [c for c in (*output.observed, *output.hidden) if not c.is_continuous and output.jacobian.has(c.symbol)]
    values = {
        sp.expand_log(output.jacobian.subs(dict(zip([c.symbol for c in discrete], chosen, strict=True))))
        for chosen in product(*[c.values for c in discrete])
    }
    return values.pop() if len(values) == 1 else output.jacobian


def _evidence_of_output_channel(output: FixedSizeOutput) -> tuple[sp.Expr, TextWithSymbols]:
    """Return the evidence Z_out of one sample in the output channel, and a sentence that explains its factors."""
    density = sp.Add(
        *[JACOBIAN] * (_simplified_log_jacobian(output) != 0), *[LIKELIHOOD] * (output.log_likelihood != 0)
    )
    normal = sp.Symbol("normal_weight", positive=True)
    weight = normal * sp.exp(density)
    meant = (
        "where {} is the density, at the fields of all tokens, of normal laws of means {} and covariances {}, "
        "independent from token to token"
    )
    known = normal, bayes.omega, bayes.V
    if not output.hidden:
        return weight, TextWithSymbols(f"{meant}.", known)
    groups = {"a sum": [c.symbol for c in output.hidden if not c.is_continuous]}
    groups["an integral"] = [c.symbol for c in output.hidden if c.is_continuous]
    hidden = " and ".join(f"{name} over {_join_placeholders(symbols)}" for name, symbols in groups.items() if symbols)
    meant = f"{meant}, and the sum over what is hidden is {hidden}."
    return Average("hidden", weight), TextWithSymbols(meant, (*known, *groups["a sum"], *groups["an integral"]))


def _move_constants_out_of_sums(expression: sp.Expr) -> sp.Expr:
    """Return an expression with constant factors moved in front of sums over contexts (token, cluster)."""
    named = {}
    for average in expression.atoms(Average):
        if average.kind == CONTEXTS:
            number, summand = average.summand.as_independent(sp.Trace)
            named[average] = number * Average(CONTEXTS, summand)
    return expression.xreplace(named)


def _equations_of_bayes_replica_step(step: Step, output: FixedSizeOutput) -> Items:
    observed, meant = _evidence_of_output_channel(output)
    kinds = {c.is_continuous for c in output.observed}
    over = "sums and integrates" if len(kinds) == 2 else "integrates" if kinds == {True} else "sums"
    total = sp.Add(*[step.after[name] for name in ("trace", "entropic", "energetic")])
    return [
        TextWithSymbols(
            "{} is now the number of replicas without the teacher. {} (t x t) is the covariance of the fields of two "
            "of the n + 1 in context c; that of one with itself is {}. {} (t x 1) has mean zero and covariance {}, its "
            "average is written {mean_row_field}; {} has mean {m_star} and covariance {}, independently for each "
            f"token. {{mean_output}} averages over labels of clusters and {{}} and {over} over what is observed. Then",
            (n, bayes.q, bayes.rho, bayes.b, bayes.Q, bayes.omega, bayes.q, UnindexedExpression(bayes.omega)),
        ),
        Relation(sp.Symbol("evidence_power"), _move_constants_out_of_sums(total), f"for large d, {EXTREMISED}"),
        Relation(bayes.Q, MatrixAverage(CONTEXTS, bayes.gamma * bayes.q_hat)),
        TextWithSymbols(
            "The integral over a row {} is an average {mean_row} over the law of the teacher's row at given "
            "eigenvalues {} and mean coordinates {tau}:",
            (bayes.pi, bayes.gamma),
        ),
        Relation(bayes.Z_row, Average("row law", sp.exp(step.after["row"]))),
        TextWithSymbols(
            "Given {} the fields of each of the n + 1 are independent and normal around it with covariance",
            (bayes.omega,),
        ),
        Relation(bayes.V, step.after["variance"]),
        TextWithSymbols(
            f"so that what is observed of a sentence has the {'density' if True in kinds else 'probability'}"
        ),
        Relation(bayes.Z_out, observed),
        meant,
    ]


def _equations_of_bayes_limit_step(step: Step) -> Items:
    return [
        TextWithSymbols("The mean logarithm of the evidence, per dimension, is for large d"),
        Relation(sp.Symbol("Phi_bayes"), _move_constants_out_of_sums(step.after["free entropy"]), EXTREMISED),
        TextWithSymbols("and the law of {} given the teacher's row is", (bayes.b,)),
        Relation(sp.Symbol("law_row_field"), step.after["law of b"], "up to its normalisation"),
    ]


def _equations_of_state_evolution(step: Step) -> Items:
    slopes = step.after["gradient"].applyfunc(lambda entry: Average("of@", entry))
    return [
        TextWithSymbols(
            "With {C_any} the covariance of the field of {}, and {} and {} the derivatives in two components of this "
            "field,",
            (bayes.Z_any, *bayes.slopes),
        ),
        Relation(sp.Symbol("Z_log_Z_gradient"), slopes, "for these components, averages as in step 2"),
        TextWithSymbols(
            "The gradient of {} is {}, the posterior mean of a row given its field; that of {} is {}, the inverse of "
            "{} times the distance of the posterior mean of {Y} from {}:",
            (sp.log(bayes.Z_row), bayes.f, sp.log(bayes.Z_out), bayes.g, bayes.V, bayes.omega),
        ),
        Relation(bayes.f, sp.Function("gradient")(sp.log(bayes.Z_row), bayes.b)),
        Relation(bayes.g, sp.Function("gradient")(sp.log(bayes.Z_out), bayes.omega)),
        TextWithSymbols("and the two conditions are"),
        Relation(bayes.q, step.after["q_bayes"]),
        Relation(bayes.q_hat, step.after["q_hat_bayes"], "the average restricted to context c"),
        TextWithSymbols(
            "Where {} vanishes nothing of the teacher is known, where it is {} all of it. Of several solutions the one "
            "of largest {Phi_bayes} is that of the posterior.",
            (bayes.q, bayes.rho),
        ),
    ]
