"""The equations of all models of a kind: order parameters, free entropy, saddle point, domain and stability."""

from __future__ import annotations

from collections.abc import Mapping

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...authoring.model import FixedSizeModel
from ...authoring.regulariser import Regulariser, Sphere
from ...calculus.averages import (
    CONTEXTS,
    COORDINATE,
    Average,
    Jacobian,
    MatrixAverage,
    OrderParameterSymbols,
    moreau_envelope_gradient,
)
from ...theory.free_entropy import FreeEntropy, free_entropy
from ...theory.norms import row_norm_condition
from ...theory.saddle_point import SaddlePoint, saddle_point, write_V_hat_with_theta_hat
from ...theory.stability import (
    TOKENS,
    entropic_potential,
    field_response,
    longitudinal_derivatives,
    replicon_eigenvalue,
    replicon_map,
)
from ..blocks import Items, Relation, Section, Table, TextWithSymbols, UnindexedExpression

_THEORY_SECTIONS: dict[tuple[str, int, bool], tuple[Section, ...]] = {}


def theory_sections(at: FixedSizeModel) -> tuple[Section, ...]:
    """Return the sections with equations in matrix form, common to all models of one kind and cached for it."""
    kind = at.regulariser.kind, len(at.trained), at.loss_depends_on_q
    if kind not in _THEORY_SECTIONS:
        _THEORY_SECTIONS[kind] = _sections_of_model_kind(at.regulariser, len(at.trained), at.loss_depends_on_q)
    return _THEORY_SECTIONS[kind]


def _sections_of_model_kind(regulariser: Regulariser, trained: int, loss_depends_on_q: bool) -> tuple[Section, ...]:
    phi = free_entropy(regulariser=regulariser, trained=trained, loss_depends_on_q=loss_depends_on_q)
    saddle = saddle_point(phi)
    short: dict[MatrixExpr, MatrixExpr] = {replicon_map(phi).response: phi.symbols.R}
    return (
        _order_parameter_section(phi.symbols),
        _free_entropy_section(phi, regulariser, short),
        _saddle_point_section(saddle, regulariser, short),
        _training_loss_and_domain_section(saddle, short),
        _stability_section(phi, saddle, regulariser, short),
    )


def order_parameter_table(p: OrderParameterSymbols, covariances: Mapping[MatrixExpr, str], variance_of: str) -> Table:
    """Return a table of the overlaps, with the shape, conjugate and meaning of each.

    Args:
        p: matrix symbols of the order parameters.
        covariances: symbol of an overlap that is a covariance -> its meaning.
        variance_of: name of the quantity whose susceptibility is V.
    """
    meaning = {
        **covariances,
        p.V: f"variance: the susceptibility of {variance_of}",
        p.m: "overlap with the mean and the positional encoding",
        p.theta: "covariance of the student's with the teacher's fields",
    }
    rows = [
        (z, _matrix_shape_in_words(z), sp.MatrixSymbol(f"{z.name}_hat", *z.shape), words)
        for z, words in meaning.items()
    ]
    return Table(("overlap", "shape", "conjugate", "meaning"), tuple(rows))


def _order_parameter_section(p: OrderParameterSymbols) -> Section:
    trained = (
        [TextWithSymbols("A further order parameter is the vector {phi} of numbers trained with the weights.")]
        if p.trained
        else []
    )
    return Section(
        "Order parameters",
        (
            order_parameter_table(p, {p.q: "covariance of the student's fields of context c"}, "the estimate"),
            *trained,
            TextWithSymbols(
                "Given by the law of the tokens: {rho_star} ({}) and {m_star} ({}), the covariance and mean of the "
                "teacher's fields.",
                (_matrix_shape_in_words(p.rho_star), _matrix_shape_in_words(p.m_star)),
            ),
            TextWithSymbols(
                "{mean_coordinate} is the average over one coordinate, {mean_context} that over a sentence and its "
                "noise restricted to context c = (l, k), where token l has label k; a quantity of token l with an "
                "index c is that of its context."
            ),
        ),
    )


def _matrix_shape_in_words(matrix: MatrixExpr) -> str:
    return " x ".join(map(str, matrix.shape))


def _free_entropy_section(phi: FreeEntropy, regulariser: Regulariser, short: dict[MatrixExpr, MatrixExpr]) -> Section:
    p = phi.symbols
    step = sp.MatrixSymbol("x", p.s, 1) - p.omega
    local = (p.proximal_objective - p.loss).xreplace({p.step: step})
    gradient = sp.Function("gradient")
    return Section(
        "Free entropy",
        (
            Relation(sp.Symbol("Phi"), phi.expression.xreplace(short), "extremised over all overlaps and conjugates"),
            *[Relation(z, MatrixAverage(CONTEXTS, summand)) for z, summand in p.effective_prior_parameters.items()],
            *[Relation(named, value) for value, named in short.items()],
            *_definition_of_row_envelope(phi),
            Relation(
                p.moreau,
                sp.Function("minimum")(Average(TOKENS, local) + p.loss),
                "Moreau envelope; the global minimum over the fields X is the proximal point",
            ),
            Relation(p.g, sp.MatMul(p.V.inv(), step), "at the proximal point"),
            *[
                Relation(gradient(p.moreau, z), moreau_envelope_gradient(z, p), "envelope theorem")
                for z in (p.omega, p.V)
            ],
        ),
    )


def _definition_of_row_envelope(phi: FreeEntropy) -> Items:
    """Return the equation that defines the envelope N of a general penalty, and a sentence on trained numbers."""
    p = phi.symbols
    items: Items = []
    if entropic_potential(phi) == p.envelope:
        w, quadratic = sp.Symbol("w"), sp.Trace(p.w.T * p.G * p.w) / 2
        items += [
            Relation(p.envelope, sp.Function("maximum")(-sp.Function("r")(w) - quadratic + sp.Trace(p.w.T * p.b))),
            TextWithSymbols("{b} is normal with mean {B} and covariance {Q}; {w} is the maximiser."),
        ]
    if p.trained:
        items.append(TextWithSymbols("{Kappa} is the diagonal matrix of the ridges of {phi}."))
    return items


def _saddle_point_section(
    saddle: SaddlePoint, regulariser: Regulariser, short: dict[MatrixExpr, MatrixExpr]
) -> Section:
    p = saddle.symbols
    items: Items = [
        TextWithSymbols("Each line is the condition that the derivative of {Phi} vanishes; with {domega} and {dY}:"),
        Relation(p.domega, p.omega - p.m),
        Relation(p.dY, p.Y - p.m_star),
    ]
    for equation in saddle.equations:
        value = write_V_hat_with_theta_hat(saddle) if equation.target == p.V_hat else equation.value
        forms = {value: ""}
        if equation.jacobian_form != equation.value:
            forms = {
                equation.jacobian_form: "derivative form: the derivative is a distribution where the field jumps",
                value: "Stein form: jumps of the field are counted",
            }
        items += [Relation(equation.target, form.xreplace(short), note) for form, note in forms.items()]
    if isinstance(regulariser, Sphere):
        norms = MatrixAverage(COORDINATE, row_norm_condition(p).excess_at_zero_temperature + p.Norms)
        items += [
            TextWithSymbols(
                "The derivative of {Phi} in the multipliers {Lambda} vanishes, one equation more a column of the "
                "weights:"
            ),
            Relation(norms.xreplace(short), p.Norms, "on the diagonal"),
        ]
    if saddle.trained is not None:
        items.append(Relation(saddle.trained, sp.Integer(0), "the trained numbers; derivatives at the proximal point"))
    return Section("Saddle-point equations", tuple(items))


def _training_loss_and_domain_section(saddle: SaddlePoint, short: dict[MatrixExpr, MatrixExpr]) -> Section:
    p = saddle.symbols
    values = [*(equation.value for equation in saddle.equations), p.proximal_objective]
    held = {inverse.arg for value in values for inverse in value.atoms(sp.Inverse)}
    inverted = {v.arg for v in short if isinstance(v, sp.Inverse)}
    convex = [TextWithSymbols("{penalty} plus half the quadratic form of {G} must be strictly convex in {w}.")]
    conditions = sorted(held, key=lambda a: (sp.count_ops(a), str(a)))
    return Section(
        "Training loss and domain",
        (
            Relation(sp.Symbol("training_loss"), -sp.Symbol("Phi"), "per dimension d, at the saddle point"),
            TextWithSymbols("The equations invert these matrices, which must be positive definite:"),
            *[
                Relation(matrix, sp.Integer(0), "for every coordinate" if matrix in inverted else "", ">")
                for matrix in conditions
            ],
            *(convex if not inverted else []),
        ),
    )


def _stability_section(
    phi: FreeEntropy, saddle: SaddlePoint, regulariser: Regulariser, short: dict[MatrixExpr, MatrixExpr]
) -> Section:
    field, operator = field_response(), replicon_map(phi)
    p = phi.symbols
    scalar = replicon_eigenvalue(regulariser)
    scalar = scalar.subs({sp.Symbol("G") + sp.Symbol("Lambda"): 1 / sp.Symbol("R")})
    return Section(
        "Stability",
        (
            TextWithSymbols(
                "Response of all L s fields of a sentence, stacked; {} is block diagonal over tokens and H the Hessian "
                "of the loss. The proximal condition is {} = 0, whose implicit derivative is",
                (UnindexedExpression(field.V), UnindexedExpression(field.condition)),
            ),
            Relation(UnindexedExpression(Jacobian(p.g, p.omega)), UnindexedExpression(field.jacobian)),
            TextWithSymbols(
                "Replicon: perturbations that keep all overlaps, {D} symmetric s x s blocks; replica symmetry is "
                "stable only if the spectral radius of the map is below 1."
            ),
            Relation(operator.D_hat, operator.channel),
            Relation(sp.Symbol("D_prime"), operator.prior.xreplace(short)),
            TextWithSymbols("At L = s = K = 1 the map is one number:"),
            Relation(sp.Symbol("replicon"), scalar),
            *_equations_of_longitudinal_stability(phi, saddle, short),
        ),
    )


def _equations_of_longitudinal_stability(
    phi: FreeEntropy, saddle: SaddlePoint, short: dict[MatrixExpr, MatrixExpr]
) -> Items:
    p = phi.symbols
    meaning = (
        "Longitudinal: the Jacobian of the map from the overlaps to their conjugates and back, whose eigenvalues need "
        "real part below 1 to be stable under damping."
    )
    if p.trained or p.loss_depends_on_q or entropic_potential(phi) == p.envelope:
        return [TextWithSymbols(f"{meaning} For this kind of model it is taken by differences.")]
    linear = longitudinal_derivatives(saddle)
    changes = [Relation(_differential_symbol(z), e) for z, e in linear.composites.items()]
    changes += [
        Relation(_differential_symbol(saddle[name].target), e.xreplace(short)) for name, e in linear.prior.items()
    ]
    multipliers = TextWithSymbols(
        "where the change of the diagonal matrix {Lambda} by which the norms stay what they are is to be added to {dG}."
    )
    return [
        TextWithSymbols(
            f"{meaning} A change of the overlaps changes the channel's averages through the score {{S}} of the law of "
            "the fields (mean and covariance below) and through {dV},"
        ),
        Relation(sp.Symbol("z"), sp.BlockMatrix([[p.domega], [p.dY]])),
        Relation(sp.Symbol("C"), linear.covariance_blocks),
        Relation(sp.Symbol("dmean"), linear.mean_change),
        Relation(sp.Symbol("dC"), linear.covariance_change),
        Relation(sp.Symbol("S"), linear.score),
        *[Relation(sp.Function("change")(average), change) for average, change in linear.moments.items()],
        TextWithSymbols("the conjugates follow from these by their equations, and return to the overlaps by"),
        *changes,
        *([multipliers] if phi.expression.has(p.Norms) else []),
    ]


def _differential_symbol(symbol: sp.MatrixSymbol) -> sp.MatrixSymbol:
    return sp.MatrixSymbol(f"d{symbol.name}", *symbol.shape)
