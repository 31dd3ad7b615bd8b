"""The equations of one model, the outcome of their checks, and the consequences of its symmetries."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import sympy as sp

from ...authoring.language import token_variance_symbol
from ...authoring.model import FixedSizeModel
from ...replicas.model_equations import specialisation
from ...replicas.model_equations.specialised import MOST, ModelEquations
from ...replicas.model_equations.symmetries import (
    count_token_cluster_pairs,
    has_exchange_invariant_defaults,
    is_even_in_fields,
    is_invariant_under_token_exchange,
)
from ..blocks import Items, Relation, Section, TextWithSymbols, insert_symbols_into_text
from .steps import run_checks_of_step

TITLE = "The equations of this model"


def model_equation_section(at: FixedSizeModel, outcome: TextWithSymbols | None = None) -> Section:
    """Return the section with all saddle-point equations in the model's own symbols, explained in words.

    Args:
        at: the model at fixed sizes.
        outcome: sentence on the outcome of checks of the equations; None if they were not checked.
    """
    written = ModelEquations(at)
    if written.is_too_large_to_write_out:
        limits = ", ".join(f"{count} {name}" for name, count in MOST.items())
        return Section(TITLE, (TextWithSymbols(f"They are not written out here: at most {limits} (of labels) are."),))
    trained: Items = [
        Relation(sp.Integer(0), -e) for name, e in written.equations.items() if name.startswith("trained@")
    ]
    return Section(
        TITLE,
        (
            *_sentences_on_shared_overlaps(written),
            *_equations_of_field_distribution(written),
            *_equations_of_conjugates(written),
            *_equations_of_weight_row(written),
            TextWithSymbols("The overlaps are"),
            *_equations_of_order_parameters(written, "q", "V", "theta", "m"),
            *([TextWithSymbols("The numbers trained with the weights obey"), *trained] if trained else ()),
            TextWithSymbols("Both halves are conditions for an extremum of"),
            Relation(sp.Symbol("Phi"), written.equations["Phi"]),
            *_sentences_on_model_symmetries(at),
            *([outcome] if outcome else []),
        ),
    )


def checked_model_equation_section(at: FixedSizeModel) -> Section:
    """Return the section of equations in the model's own symbols, with the outcome of their checks."""
    try:
        return model_equation_section(at, run_checks_of_step(specialisation.specialisation_step(at)))
    except ValueError:  # too many to be written out, which the section says
        return model_equation_section(at)


def _equations_of_order_parameters(written: ModelEquations, *stems: str) -> Items:
    """Return the equations of the order parameters of given names (q, V, ...), for all their indices."""
    return [
        Relation(sp.Symbol(name, real=True) if written.has_scalar_equations else written.matrix_symbol(name), value)
        for name, value in written.equations.items()
        if name.partition("@")[0] in stems
    ]


def _sentences_on_shared_overlaps(written: ModelEquations) -> Items:
    """Return sentences on which contexts (token, cluster) share their overlaps, and which have mean zero."""
    token_cluster_pairs, sizes = written.token_cluster_pairs, written.at.structure
    said = "The symbols of the model are put in for the general ones."
    if len(token_cluster_pairs) > 1:
        kind = "tokens" if sizes.clusters == 1 else "clusters" if sizes.tokens == 1 else "contexts"
        index = {
            "contexts": "Two indices are those of token and cluster",
            "tokens": "An index is that of the token",
            "clusters": "An index is that of the cluster",
        }[kind]
        said += f" {index}."
        groups = [
            [c.own for c in token_cluster_pairs if c.shared == shared]
            for shared in dict.fromkeys(c.shared for c in token_cluster_pairs)
        ]
        if len(groups) == 1:
            said += f" All {kind} have one covariance, hence one q, V and theta."
        elif any(len(group) > 1 for group in groups):
            alike = "; ".join(" and ".join(f"({own})" for own in group) for group in groups if len(group) > 1)
            said += f" The {kind} {alike} have one covariance, hence one q, V and theta, with the index of the first."
    items: Items = [insert_symbols_into_text(said, {name: sp.Symbol(f"{name}@") for name in ("q", "V", "theta")})]
    centred = [c for c in token_cluster_pairs if not written.has_nonzero_mean(c)]
    if centred:
        which = "" if len(centred) == len(token_cluster_pairs) else " of " + ", ".join(f"({c.own})" for c in centred)
        symbols = sp.Symbol("m@"), sp.Symbol("m_hat@")
        items.append(TextWithSymbols(f"Mean coordinates{which} vanish, hence {{}} = 0, and {{}} drops out.", symbols))
    return items


def _equations_of_field_distribution(written: ModelEquations) -> Items:
    """Return equations of mean and covariance of the Gaussian fields (omega, Y), and of the proximal point."""
    at = written.at
    opening = "With" if at.structure.tokens == 1 else "Tokens are independent, and with"
    if at.structure.tokens > 1 and at.structure.clusters > 1:
        opening = "Given the labels tokens are independent, and with"
    items: Items = [TextWithSymbols(opening)]
    for context in written.token_cluster_pairs:
        index = str(context.token + 1) if at.structure.tokens > 1 else ""
        omega, Y = written.matrix_symbol(f"omega@{index}"), sp.MatrixSymbol(f"Y@{index}", *written.matrix_shape("Y"))
        theta, q, m = (written.overlap(name, context) for name in ("theta", "q", "m"))
        means = sp.ImmutableDenseMatrix(at.law["teacher_means"][context.position])
        rho = written.simplified_teacher_covariance(context)
        mean: Any
        if written.has_scalar_equations:
            pair = sp.Symbol(omega.name, real=True), at.Y[context.token, 0]
            m_, q_, theta_ = (written.to_written_form(e) for e in (m, q, theta))
            mean = sp.Matrix([m_, means[0]])
            covariance: Any = sp.Matrix([[q_, theta_], [theta_, written.to_written_form(rho)]])
        else:
            pair = omega, Y
            mean = sp.BlockMatrix([[m], [means if any(means) else sp.ZeroMatrix(*means.shape)]])
            covariance = sp.BlockMatrix([[q, theta], [theta.T, rho]])
        label = f"cluster {context.cluster + 1}" if at.structure.clusters > 1 else ""
        items.append(Relation(sp.Function("mean")(*pair), mean, label))
        items.append(Relation(sp.Function("Cov")(*pair), covariance))
    return items + _equations_of_proximal_point(written)


def _equations_of_proximal_point(written: ModelEquations) -> Items:
    at = written.at
    one = at.structure.tokens == 1
    end = "@" if one else ""
    x, g, omega = (sp.MatrixSymbol(f"{name}{end}", 1, 1) for name in ("x", "g", "omega"))
    V = sp.MatrixSymbol("V@" if one and len({c.shared for c in written.token_cluster_pairs}) == 1 else "V", 1, 1)
    items: Items = [
        TextWithSymbols(
            f"the proximal point solves {{}} = {{}}{'' if one else ' for every token l'}, with the field {{}} as a "
            "function of {} below; of several solutions it is the one of least objective.",
            (x, omega + V * g, g, sp.MatrixSymbol("x@", 1, 1)),
        )
    ]
    stars = any(s.name.startswith("psistar") for f in written.field_equations for s in f.features)
    plain = any(s.name.startswith("psi_") for f in written.field_equations for s in f.features)
    about = ["{psi} (functions of the student's fields)"] if plain else []
    about += (
        [f"{{psi_star}} (functions of the teacher's fields{' and the noise' if at.noise else ''})"] if stars else []
    )
    if about:
        items.append(TextWithSymbols(f"Written for short are {' and '.join(about)}:"))
    shown: set[sp.Symbol] = set()
    for found in written.field_equations:
        if found.labels is not None:
            said = ", ".join(str(k + 1) for k in found.labels)
            items.append(TextWithSymbols(f"In cluster{'s' if len(found.labels) > 1 else ''} {said}:"))
        items += [Relation(z, definition) for z, definition in found.features.items() if z not in shown]
        shown |= set(found.features)
        items += [Relation(sp.Symbol(name), value) for name, value in found.components.items()]
    token_variances = [token_variance_symbol(l) for l in range(at.structure.tokens)]
    if any(weight not in written.token_variances(None) for weight in token_variances) and at.loss.has(*token_variances):
        items.append(TextWithSymbols("{rho_token} is that of the token's cluster, given with the law of the tokens."))
    return items


def _equations_of_conjugates(written: ModelEquations) -> Items:
    at = written.at
    said = "The conjugates are averages over the fields"
    said += " and the noise" if at.noise else ""
    if at.structure.clusters > 1:
        said += "; an index of the average says which labels the tokens have, and the factors are their probabilities"
    return [
        TextWithSymbols(f"{said}:"),
        *_equations_of_order_parameters(written, "q_hat", "V_hat", "m_hat", "theta_hat"),
    ]


def _equations_of_weight_row(written: ModelEquations) -> Items:
    """Return equations of a row of W: second moments of its field, and the minimiser for a general penalty."""
    at, equations = written.at, written.equations
    items: Items = []
    matrix_symbol = [name for name in equations if name.startswith("moment@")]
    if matrix_symbol:
        items += [
            TextWithSymbols(
                "Second moments of the mean coordinates, numbered as in the law of the tokens, have the names {} (an "
                "index 0 is the teacher's row):",
                (sp.Symbol("moment@"),),
            ),
            *[Relation(sp.Symbol(name), equations[name]) for name in matrix_symbol],
        ]
    several = len(written.spectral_atoms) > 1
    w, G = sp.Symbol("w"), sp.Symbol("G@")
    each = ", one for each spectral atom" if several else ""
    items += [
        TextWithSymbols(
            f"A row of the weights feels a field {{b}} whose second moment is {{}}{each}.", (sp.Symbol("Omega@"),)
        ),
        *_equations_of_order_parameters(written, "R", "G", "Omega", "b_pi", "b_tau"),
    ]
    if at.penalty is None:
        return items
    normal = "It is normal with mean zero"
    if at.has_discrete_teacher:
        probabilities, values = (sp.Matrix(part) for part in at.law["rows"])
        taken = "The teacher's row takes the values {} (one a row) with the probabilities {}."
        items.append(TextWithSymbols(taken, (values, probabilities.T)))
        normal = "Given it, the field is normal, jointly with the mean coordinates, with means linear in it,"
    elif at.has_average_over_teacher:
        normal += ", jointly with the teacher's row and the mean coordinates,"
    normal += " in each atom; {mean_field} is the average over it"
    minimised: tuple[sp.Expr, ...] = ()
    if len(at.penalty.w) == 1:
        minimised = G * w**2, sp.Symbol("b") * w
        normal += ", its index the atom's" if several else ""
        normal += ", and {w} the minimiser of the penalty plus {}/2 minus {}"
    items.append(TextWithSymbols(f"{normal}.", minimised))
    if "w@" in equations:
        items.append(Relation(w, equations["w@"]))
    return items


def _sentences_on_model_symmetries(at: FixedSizeModel) -> Items:
    """Return sentences on the symmetries of loss and token law, found by tests at random points."""
    items: Items = []
    m, theta, m_hat, theta_hat = (sp.Symbol(f"{name}@") for name in ("m", "theta", "m_hat", "theta_hat"))
    odd = is_even_in_fields(at, students=True)
    alone = is_even_in_fields(at, students=False)
    count = count_token_cluster_pairs(at)
    means = any(not e.is_zero for gram in at.law["gram"] for row in gram[:count] for e in row[:count])
    if odd:
        items.append(
            TextWithSymbols(
                "The loss is even in the student's fields: solutions come in pairs that differ in the sign of {}, {}.",
                (m, theta) if means else (theta, theta_hat),
            )
        )
    if odd and alone and means:
        zero = "It is even in the teacher's fields, too, so that {} = 0 and {} = 0 are each kept by the equations."
        items.append(TextWithSymbols(zero, (m, theta)))
    pairs = [
        pair for pair in combinations(range(at.structure.tokens), 2) if is_invariant_under_token_exchange(at, *pair)
    ]
    if pairs:
        every = len(pairs) == at.structure.tokens * (at.structure.tokens - 1) // 2
        which = ", ".join(f"tokens {a + 1} and {b + 1}" for a, b in pairs)
        which = "any two tokens" if every and len(pairs) > 1 else which
        default = (
            ", as at their defaults," if all(has_exchange_invariant_defaults(at, *pair) for pair in pairs) else ","
        )
        items.append(
            TextWithSymbols(
                f"Loss and law are unchanged if {which} are exchanged together with the entries of the parameters. "
                f"Where the parameters are themselves unchanged by this{default} the equations of one of the tokens "
                f"are those of the other. A solution that the exchange leaves alone{' up to that sign' if odd else ''} "
                f"has the same conjugates for both{', with {} and {} up to one sign in common' if odd else ''}"
                f"{': half of the averages are then enough' if at.structure.tokens == 2 else ''}.",
                (m_hat, theta_hat) if odd else (),
            )
        )
    return items
