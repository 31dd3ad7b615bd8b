"""The kernels of the channel of a model, which are evaluated at every node of an integral.

For one assignment of cluster labels: features of the teacher (maximal subexpressions of Y and u), the Moreau objective
with gradient and Hessian in X, the raw channel averages of the saddle point, and the loss's own derivatives for the
quadrature in proximal space (docs/theory.md section 11), split into columns that depend on X alone and the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixElement

from ...authoring.model import FixedSizeModel
from ...authoring.parameters import DiscreteNoise, GaussianNoise
from ...calculus.averages import OrderParameterSymbols
from ...calculus.chain import chain_rule_derivatives
from ...calculus.piecewise import drop_delta_functions
from ...calculus.stable_functions import rewrite_without_overflow
from ...calculus.subexpressions import extract_maximal_subexpressions
from ...theory.corners import has_gradient_jump_only, split_loss_by_signs
from ...theory.free_entropy import free_entropy
from ...theory.piecewise_losses import (
    find_feature_with_additive_noise,
    jump_positions_in_teacher_field,
    smooth_loss_pieces,
)
from ...theory.saddle_point import SaddlePoint, channel_averages, saddle_point
from ...theory.scales import centres_of_narrow_features
from ..kernel import (
    ArrayEntryName,
    Kernel,
    array_entries,
    make_kernel,
    model_function_location,
    split_kernel_by_inputs,
    upper_triangle_entries,
)
from . import nodes

PROX_SPACE_LIMIT = 4


@dataclass(frozen=True)
class ChannelAverage:
    """An average over samples in the saddle-point equations: text, name, shape, and offset among those of a token."""

    text: str
    name: str
    shape: tuple[int, int]
    offset: int

    def names_of_summand_entries(self, token: int) -> list[ArrayEntryName]:
        """Return the names of the entries of this average's summand, for one token."""
        return [ArrayEntryName(f"row_{self.name}", token, *place) for place in product(*map(range, self.shape))]


def join_names_of_factors(summand: sp.MatrixExpr) -> str:
    """Return the names of a matrix product's factors joined by underscores: g_dY for g dY^T."""
    return "_".join(part.name for part in sp.preorder_traversal(summand) if isinstance(part, sp.MatrixSymbol))


def names_of_channel_summands(moments: tuple[ChannelAverage, ...], tokens: int) -> list[ArrayEntryName]:
    """Return the names of the functions averaged over samples in the channel averages, token by token.

    Args:
        moments: channel averages.
        tokens: number L of tokens.
    """
    return [name for token in range(tokens) for moment in moments for name in moment.names_of_summand_entries(token)]


@dataclass(frozen=True)
class ChannelKernels:
    """The kernels of a model's channel averages, at fixed sizes, with D = L s student fields.

    Attributes:
        constants: names of the entries of the constants vector: token variances, labels, parameters.
        features: kernel of the teacher features f0, f1, ... from teacher fields and noise.
        objective: kernel of the proximal objective's value.
        derivatives: kernel of the objective's value, gradient (D) and Hessian (upper triangle, row by row).
        planes: kernel of the coefficients of X, and offsets, of planes on which narrow minima may lie.
        moments: channel averages, in the order in which their entries are stored.
        moment_rows: kernel of the channel summands, row_<name>[token, a, b]; token 0 has those of trained numbers.
        moment_slopes: kernel of the summands' derivatives in g and omega - m of their token, to_g and
            to_dw[token, index, column].
        moment_moves: kernel of the summands' derivatives in the law of the fields through omega - m.
        moment_turns: kernel of the summands' derivatives in the law of the fields through g.
        own_slopes: kernel of the loss's derivatives in q and in trained numbers, own_<n>; None without either. The
            second derivatives in trained numbers follow.
        own_gradient: kernel of the loss's derivatives in the model's order parameters, for the risk at finite d.
        columns: kernel of quantities at a critical point that depend on X alone; None as `determinant_slopes`.
        critical: kernel of loss, gradient and Hessian at a critical point, from `columns`.
        determinant: kernel of det(I + V H), with H the loss's Hessian.
        determinant_slopes: kernel of its derivatives in the entries of V, det[token, row, column]; None above
            PROX_SPACE_LIMIT fields, and where the slope of the loss jumps.
    """

    model: FixedSizeModel
    planes: Kernel
    constants: tuple[str, ...]
    features: Kernel
    feature_names: tuple[str, ...]
    objective: Kernel
    derivatives: Kernel
    loss: Kernel
    loss_gradient: Kernel
    loss_hessian: Kernel
    moments: tuple[ChannelAverage, ...]
    moment_rows: Kernel
    moment_slopes: Kernel
    moment_moves: Kernel
    moment_turns: Kernel
    own_slopes: Kernel | None
    own_gradient: Kernel | None
    noise_probabilities: Kernel | None
    noise_values: tuple[tuple[float, ...], ...]
    columns: Kernel | None
    column_names: tuple[str, ...]
    critical: Kernel | None
    determinant: Kernel | None
    determinant_slopes: Kernel | None
    pieces: PiecewiseLossKernels | None
    sides: CornerLossKernels | None


@dataclass(frozen=True)
class CornerLossKernels:
    """The kernels of a loss of several student fields whose slope jumps at corners (see `theory.corners`).

    Attributes:
        names: names of the sides, one sign per corner.
        held: proximal objective, gradient and Hessian on the smooth piece that the sides choose.
        switches: the n functions whose signs are the sides.
        normals: gradients of these functions in the fields X (n functions x L s fields).
        bends: upper triangle of the Hessian of their sum with Lagrange multipliers.
    """

    names: tuple[ArrayEntryName, ...]
    held: Kernel
    switches: Kernel
    normals: Kernel
    bends: Kernel


@dataclass(frozen=True)
class PiecewiseLossKernels:
    """The kernels of a loss of one student field, piece by piece, see `theory.piecewise_losses.SmoothLossPieces`.

    Attributes:
        piece: kernel of value, slope and curvature of the loss in x, on the piece that contains a reference point.
        slopes: kernel of its slope and curvature, to be bounded on an interval.
        derivatives: kernel of value, slope and curvature of the proximal objective on this piece.
        places: kernel of the ends of the pieces, from the teacher features.
        implicit_kinks: kernel of functions that vanish at ends of pieces without a closed formula.
        narrow: kernel of places around which the loss may change within a width, and the width.
        least: kernel of a lower bound of the loss's curvature; None if pieces are quadratic or no formula is known.
        steps: kernel of places at which features of the only teacher field step; None if they do not only step.
        sum: index of the feature that is the sum of a function of Y and noise and decides all, or None.
    """

    piece: Kernel
    slopes: Kernel
    derivatives: Kernel
    places: Kernel
    implicit_kinks: Kernel
    narrow: Kernel
    least: Kernel | None
    steps: Kernel | None
    sum: int | None
    quadratic: bool
    corners: bool


def saddle_point_of_model(model: FixedSizeModel) -> SaddlePoint:
    """Return the saddle-point equations for the model's numbers s and t of columns."""
    structure = model.structure
    sizes = structure.student_rank, structure.teacher_rank
    return saddle_point(free_entropy(*sizes, model.regulariser, len(model.trained), model.loss_depends_on_q))


def channel_constant_names(model: FixedSizeModel) -> tuple[str, ...]:
    """Return the names of the constants (parameters, labels, variances) that code of channel averages receives."""
    return tuple(symbol.name for symbol in model.constants_in_channel_averages)


def build_channel_kernels(model: FixedSizeModel) -> ChannelKernels:
    """Differentiate the loss and return all kernels of the averages over samples (channel averages).

    Raises:
        ModelError: the slope of the loss in X jumps where no proximal map is known.
    """
    structure = model.structure
    X = list(model.X)
    definitions, loss = extract_teacher_features(model)
    features, feature_names = teacher_feature_kernel(model, definitions)
    sides = _build_corner_loss_kernels(model)
    planes = centres_of_narrow_features(loss, X) if len(X) > 1 and not sides else ()
    quadratic, own = nodes.proximal_quadratic_form(structure), model_function_location(model)
    stages = chain_rule_derivatives(loss, X)
    # The quadratic part is differentiated on its own: as one expression the two would be expanded together.
    value = {"value": quadratic + stages.value}
    first: dict[str, sp.Expr] = {
        ArrayEntryName("d", i): sp.factor_terms(sp.diff(quadratic, x)) + stages.gradient[i] for i, x in enumerate(X)
    }
    second: dict[str, sp.Expr] = {
        ArrayEntryName("h", i, j): sp.diff(quadratic, X[i], X[j]) + e for (i, j), e in stages.hessian.items()
    }
    own_gradient: dict[str, sp.Expr] = {ArrayEntryName("d", i): e for i, e in enumerate(stages.gradient)}
    own_hessian: dict[str, sp.Expr] = {ArrayEntryName("h", i, j): e for (i, j), e in stages.hessian.items()}

    saddle = saddle_point_of_model(model)
    moments, rows, slopes = channel_summands(model, saddle, loss)
    probabilities, values = joint_law_of_discrete_noise(model)

    columns = critical = determinant = determinant_slopes = None
    column_names: tuple[str, ...] = ()
    pieces = _build_piecewise_loss_kernels(model, loss, definitions)
    if len(X) <= PROX_SPACE_LIMIT and not (pieces and pieces.corners) and not sides:
        constants = set(channel_constant_names(model))
        whole = make_kernel(
            {"loss": stages.value, **own_gradient, **own_hessian},
            stages.definitions,
            equations="docs/theory.md (11.1), (11.2)",
            formulas=(chain_rule_derivatives, own),
        )
        columns, critical = split_kernel_by_inputs(whole, {*[x.name for x in X], *constants}, "c")
        column_names = tuple(name for name, _ in columns.results)
        polynomial = nodes.response_determinant(structure)
        of_determinant: dict[str, Any] = {
            "equations": "docs/theory.md (11.2)",
            "formulas": [nodes.response_determinant],
        }
        determinant = make_kernel({"determinant": polynomial}, prefix="e", **of_determinant)
        variances = upper_triangle_entries("v", structure.tokens, structure.student_rank)
        determinant_slopes = make_kernel(
            {v.matching_entry("det"): sp.diff(polynomial, v.symbol) for v in variances},
            prefix="a",
            **of_determinant,
        )
    staged, both = [chain_rule_derivatives, own], [nodes.proximal_quadratic_form, chain_rule_derivatives, own]
    return ChannelKernels(
        model=model,
        planes=make_kernel(
            {
                ArrayEntryName("plane", n, i): sp.diff(plane, X[i])
                if i < len(X)
                else plane.xreplace(dict.fromkeys(X, sp.S.Zero))
                for n, plane in enumerate(planes)
                for i in range(len(X) + 1)
            },
            prefix="b",
            equations="docs/theory.md (4.3)",
            formulas=[centres_of_narrow_features, own],
        ),
        constants=channel_constant_names(model),
        features=features,
        feature_names=feature_names,
        objective=make_kernel(value, stages.definitions, equations="docs/theory.md (4.3)", formulas=both),
        derivatives=make_kernel(
            {**value, **first, **second}, stages.definitions, equations="docs/theory.md (4.3), (4.8)", formulas=both
        ),
        loss=make_kernel({"loss": stages.value}, stages.definitions, equations="docs/theory.md (1.3)", formulas=staged),
        loss_gradient=make_kernel(
            {"loss": stages.value, **own_gradient},
            stages.definitions,
            equations="docs/theory.md (1.3), (4.8)",
            formulas=staged,
        ),
        loss_hessian=make_kernel(own_hessian, stages.definitions, equations="docs/theory.md (8.1)", formulas=staged),
        moments=moments,
        moment_rows=channel_summands_kernel(rows),
        moment_slopes=_derivatives_of_channel_summands(model, rows),
        moment_moves=nodes.summand_derivatives_through_omega_kernel(structure, rows),
        moment_turns=nodes.summand_derivatives_through_g_kernel(structure, rows),
        own_slopes=slopes,
        own_gradient=_loss_gradient_in_order_parameters(model, loss),
        noise_probabilities=probabilities,
        noise_values=values,
        columns=columns,
        column_names=column_names,
        critical=critical,
        determinant=determinant,
        determinant_slopes=determinant_slopes,
        pieces=pieces,
        sides=sides,
    )


def _build_piecewise_loss_kernels(
    model: FixedSizeModel, loss: sp.Expr, features: Sequence[tuple[sp.Symbol, sp.Expr]]
) -> PiecewiseLossKernels | None:
    found = smooth_loss_pieces(model, loss)
    if found is None:
        return None
    stages = chain_rule_derivatives(found.loss, list(model.X))
    # x^p / x^2 is no number at an edge at which x^(p - 2) is infinite.
    own = {
        name: sp.powsimp(e, deep=True, combine="exp") if any(not a.exp.is_Integer for a in e.atoms(sp.Pow)) else e
        for name, e in ((ArrayEntryName("d", 0), stages.gradient[0]), (ArrayEntryName("h", 0, 0), stages.hessian[0, 0]))
    }
    written: dict[str, Any] = {
        "equations": "docs/theory.md (11.11)",
        "formulas": [smooth_loss_pieces, model_function_location(model)],
    }
    quadratic, x = nodes.proximal_quadratic_form(model.structure), model.X[0]
    objective = {"value": quadratic + stages.value} | {
        name: sp.diff(quadratic, *order) + own[name] for name, order in zip(own, ([x], [x, x]), strict=True)
    }
    known = [e for _, e in features]
    steps = jump_positions_in_teacher_field(model, known)
    unknown = found.quadratic or found.least == -sp.oo
    return PiecewiseLossKernels(
        piece=make_kernel({"loss": stages.value, **own}, stages.definitions, **written),
        slopes=make_kernel(own, stages.definitions, **written),
        derivatives=make_kernel(objective, stages.definitions, **written),
        places=make_kernel({f"place_{n}": e for n, e in enumerate(found.places)}, prefix="b", **written),
        implicit_kinks=make_kernel(
            {f"switch_{n}": e for n, e in enumerate(found.implicit_kinks)}, prefix="b", **written
        ),
        narrow=make_kernel(
            {
                name: e
                for n, pair in enumerate(found.narrow)
                for name, e in zip((f"narrow_{n}", f"width_{n}"), pair, strict=True)
            },
            prefix="b",
            **written,
        ),
        least=None if unknown else make_kernel({"least": found.least}, prefix="b", **written),
        steps=None
        if steps is None
        else make_kernel({f"step_{n}": e for n, e in enumerate(steps)}, prefix="b", **written),
        sum=find_feature_with_additive_noise(model, known),
        quadratic=found.quadratic,
        corners=found.corners,
    )


def _build_corner_loss_kernels(model: FixedSizeModel) -> CornerLossKernels | None:
    if not has_gradient_jump_only(model):
        return None
    X, size = list(model.X), len(model.X)
    sides, (_, loss, *switches) = split_loss_by_signs(model), _extract_features_and_loss(model)[1]
    quadratic, stages = nodes.proximal_quadratic_form(model.structure), chain_rule_derivatives(loss, X)
    objective: dict[str, sp.Expr] = {"value": quadratic + stages.value}
    objective |= {ArrayEntryName("d", i): sp.diff(quadratic, x) + stages.gradient[i] for i, x in enumerate(X)}
    objective |= {ArrayEntryName("h", i, j): sp.diff(quadratic, X[i], X[j]) + e for (i, j), e in stages.hessian.items()}
    lagrangian = sp.Add(*[ArrayEntryName("strength", n).symbol * e for n, e in enumerate(switches)])
    pairs = [(i, j) for i in range(size) for j in range(i, size)]
    written: dict[str, Any] = {
        "equations": "docs/theory.md (11.15)",
        "formulas": [split_loss_by_signs, model_function_location(model)],
    }
    response: dict[str, Any] = written | {"equations": "docs/theory.md (11.16)"}
    return CornerLossKernels(
        names=tuple(ArrayEntryName("side", n) for n in range(len(sides.sides))),
        held=make_kernel(objective, stages.definitions, **written),
        switches=make_kernel({f"switches[{n}]": e for n, e in enumerate(switches)}, prefix="b", **written),
        normals=make_kernel(
            {f"normals[{n}, {i}]": sp.diff(e, x) for n, e in enumerate(switches) for i, x in enumerate(X)},
            prefix="b",
            **written,
        ),
        bends=make_kernel(
            {ArrayEntryName("h", i, j): sp.diff(lagrangian, X[i], X[j]) for i, j in pairs}, prefix="b", **response
        ),
    )


def teacher_feature_kernel(
    model: FixedSizeModel, definitions: Sequence[tuple[sp.Symbol, sp.Expr]]
) -> tuple[Kernel, tuple[str, ...]]:
    """Return a kernel of the loss's largest subexpressions of teacher fields and noise (features), and their names.

    Args:
        model: model with fixed sizes L, s, t.
        definitions: (symbol, expression) of each feature.
    """
    features = {symbol.name: e for symbol, e in definitions}
    kernel = make_kernel(
        features, inner=True, equations="docs/theory.md (1.3)", formulas=[model_function_location(model)]
    )
    return kernel, tuple(features)


def extract_teacher_features(model: FixedSizeModel) -> tuple[list[tuple[sp.Symbol, sp.Expr]], sp.Expr]:
    """Return the teacher features, maximal subexpressions of teacher fields and noise, and the loss in them."""
    definitions, (loss, *_) = _extract_features_and_loss(model)
    return definitions, loss


def _extract_features_and_loss(model: FixedSizeModel) -> tuple[list[tuple[sp.Symbol, sp.Expr]], list[sp.Expr]]:
    """Return the loss's largest subexpressions of teacher fields and noise (features), and the loss in terms of them.

    If the slope of the loss jumps in several fields, two more results follow: the loss of one smooth piece, and the
    functions whose signs choose the piece.
    """
    inner = {*model.Y, *[symbol for symbol, _ in model.noise.values()]}
    outer, expressions = {*model.X, *model.symbols_of_order_parameters}, [rewrite_without_overflow(model.loss)]
    if has_gradient_jump_only(model):
        sides = split_loss_by_signs(model)
        outer |= set(sides.sides)
        expressions += [sides.loss, *sides.switches]
    return extract_maximal_subexpressions(expressions, inner, outer, "f")


def _loss_gradient_in_order_parameters(model: FixedSizeModel, loss: sp.Expr) -> Kernel | None:
    """Return a kernel of the loss's derivatives in the overlaps q and trained numbers; None if it has neither."""
    slopes = {
        f"o_{i}": drop_delta_functions(sp.diff(loss, symbol))
        for i, symbol in enumerate(model.symbols_of_order_parameters)
    }
    return (
        make_kernel(slopes, equations="docs/theory.md (1.3)", formulas=[model_function_location(model)])
        if slopes
        else None
    )


def channel_summands_kernel(rows: Mapping[ArrayEntryName, sp.Expr]) -> Kernel:
    """Return a kernel that evaluates the functions averaged over samples in the channel averages (summands)."""
    return make_kernel(
        rows, prefix="z", equations="docs/theory.md (5.2) to (5.5)", formulas=[channel_summands, channel_averages]
    )


def channel_summands(
    model: FixedSizeModel, saddle: SaddlePoint, loss: sp.Expr
) -> tuple[tuple[ChannelAverage, ...], dict[ArrayEntryName, sp.Expr], Kernel | None]:
    """Return channel averages, their summands by name, and a kernel of the loss's derivatives in q and phi.

    q are overlaps of the student, phi numbers trained with the weights. A summand is the function averaged over
    samples: an expression in a token's fields g, omega - m and Y - m* and in those derivatives.

    Args:
        model: model with fixed sizes L, s, t.
        saddle: saddle-point equations of the model.
        loss: loss in terms of the teacher features.
    """
    p: OrderParameterSymbols = saddle.symbols
    moments: list[ChannelAverage] = []
    results: dict[ArrayEntryName, sp.Expr] = {}
    own: dict[sp.Expr, ArrayEntryName] = {}
    structure = model.structure
    g, dw = (nodes.student_field_symbols(structure, array) for array in ("g", "dw"))
    dy = nodes.teacher_field_symbols(structure, "dy")
    phi = [symbol for symbol, _ in model.trained.values()]

    def symbol_of_derivative(expression: sp.Expr) -> sp.Expr:
        derivative = drop_delta_functions(expression)
        return own.setdefault(derivative, ArrayEntryName("own", len(own))).symbol if derivative != 0 else derivative

    offset = 0
    for average in channel_averages(saddle):
        matrix = average.summand
        rows, columns = (int(n) for n in matrix.shape)
        moments.append(ChannelAverage(str(matrix), join_names_of_factors(matrix), (rows, columns), offset))
        # SymPy 1.13 cannot write out a matrix without columns, which a problem has if no integrand depends on Y alone.
        explicit = sp.Matrix(matrix.as_explicit()) if columns else sp.zeros(rows, 0)
        for token in range(model.structure.tokens):
            named: dict[sp.Expr, sp.Expr] = {}
            for entry in explicit.atoms(MatrixElement):
                if entry.parent == p.loss_q:
                    # Off the diagonal one symbol is two entries of the symmetric matrix.
                    share = 1 if entry.i == entry.j else sp.Rational(1, 2)
                    named[entry] = symbol_of_derivative(sp.diff(loss, model.Q[token][entry.i, entry.j])) * share
                elif entry.parent == p.loss_phi:
                    named[entry] = symbol_of_derivative(sp.diff(loss, phi[entry.i])) if token == 0 else sp.Integer(0)
                else:
                    named[entry] = {p.g: g, p.domega: dw, p.dY: dy}[entry.parent][token, entry.i]
            for name in moments[-1].names_of_summand_entries(token):
                results[name] = explicit[name.place[1:]].xreplace(named)
        offset += rows * columns
    if phi:
        # Not part of the saddle point: a scale for steps in phi.
        moments.append(ChannelAverage("loss_phi_phi", "loss_phi_phi", (len(phi), 1), offset))
        for token in range(model.structure.tokens):
            for name, symbol in zip(moments[-1].names_of_summand_entries(token), phi, strict=True):
                results[name] = symbol_of_derivative(sp.diff(loss, symbol, 2)) if token == 0 else sp.Integer(0)
    slopes = None
    if own:
        slopes = make_kernel(
            {name: expression for expression, name in own.items()},
            prefix="o",
            inner=True,
            equations="docs/theory.md (5.5), (5.12)",
            formulas=[model_function_location(model)],
        )
    return (
        tuple(moments),
        {name: results[name] for name in names_of_channel_summands(tuple(moments), structure.tokens)},
        slopes,
    )


def _derivatives_of_channel_summands(model: FixedSizeModel, rows: Mapping[ArrayEntryName, sp.Expr]) -> Kernel:
    """Return a kernel of the non-zero derivatives of channel averages' integrands in their token's g and omega - m."""
    slopes: dict[ArrayEntryName, sp.Expr] = {}
    length = len(rows) // model.structure.tokens
    for n, row in enumerate(rows.values()):
        token, index = divmod(n, length)
        for field in ("g", "dw"):
            for column, symbol in enumerate(nodes.student_field_symbols(model.structure, field)[token, :]):
                if (slope := sp.diff(row, symbol)) != 0:
                    slopes[ArrayEntryName(f"to_{field}", token, index, column)] = slope
    return make_kernel(slopes, prefix="y", equations="docs/theory.md (8.4)", formulas=[channel_summands])


def joint_law_of_discrete_noise(model: FixedSizeModel) -> tuple[Kernel | None, tuple[tuple[float, ...], ...]]:
    """Return a kernel of the probabilities of all joint values of the discrete noises, and these values.

    The probabilities may depend on the teacher's fields Y.
    """
    discrete = [law for _, law in model.noise.values() if isinstance(law, DiscreteNoise)]
    if not discrete:
        return None, ()
    combinations = list(product(*[range(len(law.values)) for law in discrete]))
    probabilities = {
        ArrayEntryName("probability", n): sp.Mul(
            *[
                rewrite_without_overflow(sp.sympify(law.probabilities[i]))
                for law, i in zip(discrete, choice, strict=True)
            ]
        )
        for n, choice in enumerate(combinations)
    }
    values = tuple(
        tuple(float(law.values[i]) for law, i in zip(discrete, choice, strict=True)) for choice in combinations
    )
    return make_kernel(
        probabilities, equations="docs/theory.md (1.5)", formulas=[model_function_location(model)]
    ), values


def names_of_noise_coordinates(model: FixedSizeModel) -> dict[str, list[str]]:
    """Return the names u_0, u_1, ... of the noises, by group: all, Gaussian and discrete ones."""
    drawn = {
        name: law for name, (_, law) in zip(array_entries("u", len(model.noise)), model.noise.values(), strict=True)
    }
    return {
        "drawn": [*drawn],
        "gaussian_noise": [name for name, law in drawn.items() if isinstance(law, GaussianNoise)],
        "discrete_noise": [name for name, law in drawn.items() if isinstance(law, DiscreteNoise)],
    }


def gaussian_noise_variances(model: FixedSizeModel) -> list[tuple[str, sp.Expr]]:
    """Return (symbol name, variance) of the Gaussian noises, in order of declaration."""
    return [(symbol.name, law.variance) for symbol, law in model.noise.values() if isinstance(law, GaussianNoise)]


def discrete_noise_names(model: FixedSizeModel) -> list[str]:
    """Return the symbol names of the discrete noises, in order of declaration."""
    return [symbol.name for symbol, law in model.noise.values() if isinstance(law, DiscreteNoise)]
