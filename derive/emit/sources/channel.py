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

from ...authoring.model import ModelAt
from ...authoring.parameters import DiscreteNoise, GaussianNoise
from ...calculus.averages import Symbols
from ...calculus.chain import staged_derivatives
from ...calculus.piecewise import drop_deltas
from ...calculus.stable_functions import stabilise
from ...calculus.subexpressions import extract_subexpressions
from ...theory.corners import has_slope_jump_only, split_by_signs
from ...theory.free_entropy import free_entropy
from ...theory.piecewise_losses import additive_noise_feature, loss_pieces, teacher_step_places
from ...theory.saddle_point import SaddlePoint, channel_averages, saddle_point
from ...theory.scales import narrow_planes
from ..kernel import Entry, Kernel, as_kernel, entries, hoist, model_source, upper_entries
from . import nodes

PROX_SPACE_LIMIT = 4


@dataclass(frozen=True)
class Moment:
    """One raw channel average: its summand as text and as a name, its shape, and its offset in a token's row."""

    text: str
    name: str
    shape: tuple[int, int]
    offset: int

    def summand_entries(self, token: int) -> list[Entry]:
        """Return names of the entries of its summand for a token."""
        return [Entry(f"row_{self.name}", token, *place) for place in product(*map(range, self.shape))]


def joined_name(summand: sp.MatrixExpr) -> str:
    """Return the factors of a summand joined by underscores: g_dY for g dY^T."""
    return "_".join(part.name for part in sp.preorder_traversal(summand) if isinstance(part, sp.MatrixSymbol))


def moment_row_names(moments: tuple[Moment, ...], tokens: int) -> list[Entry]:
    """Return names of all summands of the channel averages, token by token.

    Args:
        moments: the averages.
        tokens: number of tokens.
    """
    return [name for token in range(tokens) for moment in moments for name in moment.summand_entries(token)]


@dataclass(frozen=True)
class Channel:
    """Kernels of one model at one structure; D = L s student fields.

    Attributes:
        constants: names of the entries of the constants vector: rho_l, labels k_l, parameters.
        features: teacher features f0, f1, ... from Y, u.
        objective: value only; derivatives: value, gradient (D), Hessian (upper triangle, rows first).
        planes: coefficients of X and offset of planes on which narrow minima may lie.
        moments: layout; moment_rows: kernel whose results are row_<name>[token, a, b]; token 0 carries those of phi.
        moment_slopes: kernel of the non-zero derivatives of those results in g and dw of the token,
            to_g and to_dw[token, index, column].
        moment_moves, moment_turns: kernels of their slopes in the law of the fields, see sources/nodes.py.
        own_slopes: kernel of the loss's derivatives in its own q and phi, own_<n>; None without either. After the
            entries that `moments` lists, the second derivatives in phi follow.
        own_gradient: kernel of the loss's derivatives in `solution_symbols` of the model, for the risk at finite d.
        columns, critical, determinant, determinant_slopes: kernels of the quadrature in proximal space; None above
            PROX_SPACE_LIMIT fields, and where the slope of the loss jumps; the last has the derivatives of det(I + V H)
            in the entries of V, det[token, row, column].
    """

    model: ModelAt
    planes: Kernel
    constants: tuple[str, ...]
    features: Kernel
    feature_names: tuple[str, ...]
    objective: Kernel
    derivatives: Kernel
    loss: Kernel
    loss_gradient: Kernel
    loss_hessian: Kernel
    moments: tuple[Moment, ...]
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
    pieces: PieceKernels | None
    sides: SideKernels | None


@dataclass(frozen=True)
class SideKernels:
    """The kernels of a loss of several student fields whose slope jumps, see `theory.corners.SignPieces`.

    Attributes:
        names: names of the sides.
        held: objective, gradient and Hessian of the piece that the sides choose.
        switches, normals: functions whose signs the sides are, (n,), and their slopes in X, (n, D).
        bends: upper triangle of the Hessian of their sum with multipliers.
    """

    names: tuple[Entry, ...]
    held: Kernel
    switches: Kernel
    normals: Kernel
    bends: Kernel


@dataclass(frozen=True)
class PieceKernels:
    """The kernels of a loss of one student field, piece by piece, see `theory.piecewise_losses.LossPieces`.

    Attributes:
        piece: value, slope and curvature in x of the piece that contains r; slopes: the latter two, to be bounded on an
            interval; derivatives: all three of the objective.
        places: ends of the pieces, in the features.
        implicit_kinks: functions that vanish at ends of pieces without a closed formula.
        narrow: places around which the loss may change within a width, and the width, in the features.
        least: a lower bound of the curvature of the loss, in the features; None if pieces are quadratic or no formula
            is known.
        steps: places at which features of the only teacher field step; None if they do not only step.
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


def saddle_of_model(model: ModelAt) -> SaddlePoint:
    """Return the saddle point of the model at its concrete s and t."""
    structure = model.structure
    sizes = structure.student_rank, structure.teacher_rank
    return saddle_point(free_entropy(*sizes, model.regulariser, len(model.trained), model.loss_holds_q))


def constant_names(model: ModelAt) -> tuple[str, ...]:
    """Return names of the constants vector of every channel function, constant over its averages."""
    return tuple(symbol.name for symbol in model.constants)


def build_channel(model: ModelAt) -> Channel:
    """Differentiate the loss and freeze every kernel of the channel.

    Raises:
        ModelError: the slope of the loss in X jumps where no proximal map is known.
    """
    structure = model.structure
    X = list(model.X)
    definitions, loss = extract_features(model)
    features, feature_names = teacher_features(model, definitions)
    sides = _side_kernels(model)
    planes = narrow_planes(loss, X) if len(X) > 1 and not sides else ()
    quadratic, own = nodes.quadratic(structure), model_source(model)
    stages = staged_derivatives(loss, X)
    # The quadratic part is differentiated on its own: as one expression the two would be expanded together.
    value = {"value": quadratic + stages.value}
    first: dict[str, sp.Expr] = {
        Entry("d", i): sp.factor_terms(sp.diff(quadratic, x)) + stages.gradient[i] for i, x in enumerate(X)
    }
    second: dict[str, sp.Expr] = {
        Entry("h", i, j): sp.diff(quadratic, X[i], X[j]) + e for (i, j), e in stages.hessian.items()
    }
    own_gradient: dict[str, sp.Expr] = {Entry("d", i): e for i, e in enumerate(stages.gradient)}
    own_hessian: dict[str, sp.Expr] = {Entry("h", i, j): e for (i, j), e in stages.hessian.items()}

    saddle = saddle_of_model(model)
    moments, rows, slopes = moment_rows(model, saddle, loss)
    probabilities, values = joint_discrete_noise(model)

    columns = critical = determinant = determinant_slopes = None
    column_names: tuple[str, ...] = ()
    pieces = _piece_kernels(model, loss, definitions)
    if len(X) <= PROX_SPACE_LIMIT and not (pieces and pieces.corners) and not sides:
        constants = set(constant_names(model))
        whole = as_kernel(
            {"loss": stages.value, **own_gradient, **own_hessian},
            stages.definitions,
            equations="docs/theory.md (11.1), (11.2)",
            formulas=(staged_derivatives, own),
        )
        columns, critical = hoist(whole, {*[x.name for x in X], *constants}, "c")
        column_names = tuple(name for name, _ in columns.results)
        polynomial = nodes.determinant(structure)
        of_determinant: dict[str, Any] = {"equations": "docs/theory.md (11.2)", "formulas": [nodes.determinant]}
        determinant = as_kernel({"determinant": polynomial}, prefix="e", **of_determinant)
        variances = upper_entries("v", structure.tokens, structure.student_rank)
        determinant_slopes = as_kernel(
            {v.in_array("det"): sp.diff(polynomial, v.symbol) for v in variances}, prefix="a", **of_determinant
        )
    staged, both = [staged_derivatives, own], [nodes.quadratic, staged_derivatives, own]
    return Channel(
        model=model,
        planes=as_kernel(
            {
                Entry("plane", n, i): sp.diff(plane, X[i])
                if i < len(X)
                else plane.xreplace(dict.fromkeys(X, sp.S.Zero))
                for n, plane in enumerate(planes)
                for i in range(len(X) + 1)
            },
            prefix="b",
            equations="docs/theory.md (4.3)",
            formulas=[narrow_planes, own],
        ),
        constants=constant_names(model),
        features=features,
        feature_names=feature_names,
        objective=as_kernel(value, stages.definitions, equations="docs/theory.md (4.3)", formulas=both),
        derivatives=as_kernel(
            {**value, **first, **second}, stages.definitions, equations="docs/theory.md (4.3), (4.8)", formulas=both
        ),
        loss=as_kernel({"loss": stages.value}, stages.definitions, equations="docs/theory.md (1.3)", formulas=staged),
        loss_gradient=as_kernel(
            {"loss": stages.value, **own_gradient},
            stages.definitions,
            equations="docs/theory.md (1.3), (4.8)",
            formulas=staged,
        ),
        loss_hessian=as_kernel(own_hessian, stages.definitions, equations="docs/theory.md (8.1)", formulas=staged),
        moments=moments,
        moment_rows=moment_kernel(rows),
        moment_slopes=_moment_slopes(model, rows),
        moment_moves=nodes.moment_moves(structure, rows),
        moment_turns=nodes.moment_turns(structure, rows),
        own_slopes=slopes,
        own_gradient=_own_gradient(model, loss),
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


def _piece_kernels(model: ModelAt, loss: sp.Expr, features: Sequence[tuple[sp.Symbol, sp.Expr]]) -> PieceKernels | None:
    found = loss_pieces(model, loss)
    if found is None:
        return None
    stages = staged_derivatives(found.loss, list(model.X))
    # x^p / x^2 is no number at an edge at which x^(p - 2) is infinite.
    own = {
        name: sp.powsimp(e, deep=True, combine="exp") if any(not a.exp.is_Integer for a in e.atoms(sp.Pow)) else e
        for name, e in ((Entry("d", 0), stages.gradient[0]), (Entry("h", 0, 0), stages.hessian[0, 0]))
    }
    written: dict[str, Any] = {"equations": "docs/theory.md (11.11)", "formulas": [loss_pieces, model_source(model)]}
    quadratic, x = nodes.quadratic(model.structure), model.X[0]
    objective = {"value": quadratic + stages.value} | {
        name: sp.diff(quadratic, *order) + own[name] for name, order in zip(own, ([x], [x, x]), strict=True)
    }
    known = [e for _, e in features]
    steps = teacher_step_places(model, known)
    unknown = found.quadratic or found.least == -sp.oo
    return PieceKernels(
        piece=as_kernel({"loss": stages.value, **own}, stages.definitions, **written),
        slopes=as_kernel(own, stages.definitions, **written),
        derivatives=as_kernel(objective, stages.definitions, **written),
        places=as_kernel({f"place_{n}": e for n, e in enumerate(found.places)}, prefix="b", **written),
        implicit_kinks=as_kernel({f"switch_{n}": e for n, e in enumerate(found.implicit_kinks)}, prefix="b", **written),
        narrow=as_kernel(
            {
                name: e
                for n, pair in enumerate(found.narrow)
                for name, e in zip((f"narrow_{n}", f"width_{n}"), pair, strict=True)
            },
            prefix="b",
            **written,
        ),
        least=None if unknown else as_kernel({"least": found.least}, prefix="b", **written),
        steps=None
        if steps is None
        else as_kernel({f"step_{n}": e for n, e in enumerate(steps)}, prefix="b", **written),
        sum=additive_noise_feature(model, known),
        quadratic=found.quadratic,
        corners=found.corners,
    )


def _side_kernels(model: ModelAt) -> SideKernels | None:
    if not has_slope_jump_only(model):
        return None
    X, size = list(model.X), len(model.X)
    sides, (_, loss, *switches) = split_by_signs(model), _extract_loss_and_switches(model)[1]
    quadratic, stages = nodes.quadratic(model.structure), staged_derivatives(loss, X)
    objective: dict[str, sp.Expr] = {"value": quadratic + stages.value}
    objective |= {Entry("d", i): sp.diff(quadratic, x) + stages.gradient[i] for i, x in enumerate(X)}
    objective |= {Entry("h", i, j): sp.diff(quadratic, X[i], X[j]) + e for (i, j), e in stages.hessian.items()}
    lagrangian = sp.Add(*[Entry("strength", n).symbol * e for n, e in enumerate(switches)])
    pairs = [(i, j) for i in range(size) for j in range(i, size)]
    written: dict[str, Any] = {"equations": "docs/theory.md (11.15)", "formulas": [split_by_signs, model_source(model)]}
    response: dict[str, Any] = written | {"equations": "docs/theory.md (11.16)"}
    return SideKernels(
        names=tuple(Entry("side", n) for n in range(len(sides.sides))),
        held=as_kernel(objective, stages.definitions, **written),
        switches=as_kernel({f"switches[{n}]": e for n, e in enumerate(switches)}, prefix="b", **written),
        normals=as_kernel(
            {f"normals[{n}, {i}]": sp.diff(e, x) for n, e in enumerate(switches) for i, x in enumerate(X)},
            prefix="b",
            **written,
        ),
        bends=as_kernel({Entry("h", i, j): sp.diff(lagrangian, X[i], X[j]) for i, j in pairs}, prefix="b", **response),
    )


def teacher_features(
    model: ModelAt, definitions: Sequence[tuple[sp.Symbol, sp.Expr]]
) -> tuple[Kernel, tuple[str, ...]]:
    """Return the definitions of `extract_features` as a kernel, and their names.

    Args:
        model: model at its structure.
        definitions: (symbol, expression) of each feature.
    """
    features = {symbol.name: e for symbol, e in definitions}
    kernel = as_kernel(features, inner=True, equations="docs/theory.md (1.3)", formulas=[model_source(model)])
    return kernel, tuple(features)


def extract_features(model: ModelAt) -> tuple[list[tuple[sp.Symbol, sp.Expr]], sp.Expr]:
    """Return named maximal subexpressions of Y and u, and the loss in terms of them."""
    definitions, (loss, *_) = _extract_loss_and_switches(model)
    return definitions, loss


def _extract_loss_and_switches(model: ModelAt) -> tuple[list[tuple[sp.Symbol, sp.Expr]], list[sp.Expr]]:
    """Return features, and the loss in terms of them.

    If its slope jumps in several fields, the loss of the piece that the sides choose and the switches follow.
    """
    inner = {*model.Y, *[symbol for symbol, _ in model.noise.values()]}
    outer, expressions = {*model.X, *model.solution_symbols}, [stabilise(model.loss)]
    if has_slope_jump_only(model):
        sides = split_by_signs(model)
        outer |= set(sides.sides)
        expressions += [sides.loss, *sides.switches]
    return extract_subexpressions(expressions, inner, outer, "f")


def _own_gradient(model: ModelAt, loss: sp.Expr) -> Kernel | None:
    """Return the loss's derivatives in the overlaps q and the trained numbers that it contains."""
    slopes = {f"o_{i}": drop_deltas(sp.diff(loss, symbol)) for i, symbol in enumerate(model.solution_symbols)}
    return as_kernel(slopes, equations="docs/theory.md (1.3)", formulas=[model_source(model)]) if slopes else None


def moment_kernel(rows: Mapping[Entry, sp.Expr]) -> Kernel:
    """Return the summands of `moment_rows` as a kernel."""
    return as_kernel(
        rows, prefix="z", equations="docs/theory.md (5.2) to (5.5)", formulas=[moment_rows, channel_averages]
    )


def moment_rows(
    model: ModelAt, saddle: SaddlePoint, loss: sp.Expr
) -> tuple[tuple[Moment, ...], dict[Entry, sp.Expr], Kernel | None]:
    """Return the channel averages of the saddle point, their summands, and the loss's derivatives in its own q and phi.

    The summands, per token, are expressions in g, dw, dy and in those derivatives.

    Args:
        model: model at its structure.
        saddle: its saddle point.
        loss: loss in terms of the features.
    """
    p: Symbols = saddle.symbols
    moments: list[Moment] = []
    results: dict[Entry, sp.Expr] = {}
    own: dict[sp.Expr, Entry] = {}
    structure = model.structure
    g, dw = (nodes.student_fields(structure, array) for array in ("g", "dw"))
    dy = nodes.teacher_fields(structure, "dy")
    phi = [symbol for symbol, _ in model.trained.values()]

    def slope(expression: sp.Expr) -> sp.Expr:
        derivative = drop_deltas(expression)
        return own.setdefault(derivative, Entry("own", len(own))).symbol if derivative != 0 else derivative

    offset = 0
    for average in channel_averages(saddle):
        matrix = average.summand
        rows, columns = (int(n) for n in matrix.shape)
        moments.append(Moment(str(matrix), joined_name(matrix), (rows, columns), offset))
        # SymPy 1.13 cannot write out a matrix without columns, which a problem has if no integrand depends on Y alone.
        explicit = sp.Matrix(matrix.as_explicit()) if columns else sp.zeros(rows, 0)
        for token in range(model.structure.tokens):
            named: dict[sp.Expr, sp.Expr] = {}
            for entry in explicit.atoms(MatrixElement):
                if entry.parent == p.loss_q:
                    # Off the diagonal one symbol is two entries of the symmetric matrix.
                    share = 1 if entry.i == entry.j else sp.Rational(1, 2)
                    named[entry] = slope(sp.diff(loss, model.Q[token][entry.i, entry.j])) * share
                elif entry.parent == p.loss_phi:
                    named[entry] = slope(sp.diff(loss, phi[entry.i])) if token == 0 else sp.Integer(0)
                else:
                    named[entry] = {p.g: g, p.domega: dw, p.dY: dy}[entry.parent][token, entry.i]
            for name in moments[-1].summand_entries(token):
                results[name] = explicit[name.place[1:]].xreplace(named)
        offset += rows * columns
    if phi:
        # Not part of the saddle point: a scale for steps in phi.
        moments.append(Moment("loss_phi_phi", "loss_phi_phi", (len(phi), 1), offset))
        for token in range(model.structure.tokens):
            for name, symbol in zip(moments[-1].summand_entries(token), phi, strict=True):
                results[name] = slope(sp.diff(loss, symbol, 2)) if token == 0 else sp.Integer(0)
    slopes = None
    if own:
        slopes = as_kernel(
            {name: expression for expression, name in own.items()},
            prefix="o",
            inner=True,
            equations="docs/theory.md (5.5), (5.12)",
            formulas=[model_source(model)],
        )
    return tuple(moments), {name: results[name] for name in moment_row_names(tuple(moments), structure.tokens)}, slopes


def _moment_slopes(model: ModelAt, rows: Mapping[Entry, sp.Expr]) -> Kernel:
    """Return the non-zero derivatives of the moment rows in the g and dw of their token."""
    slopes: dict[Entry, sp.Expr] = {}
    length = len(rows) // model.structure.tokens
    for n, row in enumerate(rows.values()):
        token, index = divmod(n, length)
        for field in ("g", "dw"):
            for column, symbol in enumerate(nodes.student_fields(model.structure, field)[token, :]):
                if (slope := sp.diff(row, symbol)) != 0:
                    slopes[Entry(f"to_{field}", token, index, column)] = slope
    return as_kernel(slopes, prefix="y", equations="docs/theory.md (8.4)", formulas=[moment_rows])


def joint_discrete_noise(model: ModelAt) -> tuple[Kernel | None, tuple[tuple[float, ...], ...]]:
    """Return a kernel for the probabilities, given Y, of the joint values of discrete noise, and these values."""
    discrete = [law for _, law in model.noise.values() if isinstance(law, DiscreteNoise)]
    if not discrete:
        return None, ()
    combinations = list(product(*[range(len(law.values)) for law in discrete]))
    probabilities = {
        Entry("probability", n): sp.Mul(
            *[stabilise(sp.sympify(law.probabilities[i])) for law, i in zip(discrete, choice, strict=True)]
        )
        for n, choice in enumerate(combinations)
    }
    values = tuple(
        tuple(float(law.values[i]) for law, i in zip(discrete, choice, strict=True)) for choice in combinations
    )
    return as_kernel(probabilities, equations="docs/theory.md (1.5)", formulas=[model_source(model)]), values


def noise_names(model: ModelAt) -> dict[str, list[str]]:
    """Return generic names of the coordinates of u, in order: of all, of Gaussian and of discrete ones."""
    drawn = {name: law for name, (_, law) in zip(entries("u", len(model.noise)), model.noise.values(), strict=True)}
    return {
        "drawn": [*drawn],
        "gaussian_noise": [name for name, law in drawn.items() if isinstance(law, GaussianNoise)],
        "discrete_noise": [name for name, law in drawn.items() if isinstance(law, DiscreteNoise)],
    }


def gaussian_noise(model: ModelAt) -> list[tuple[str, sp.Expr]]:
    """Return (symbol name, variance) of the Gaussian coordinates of u, in order."""
    return [(symbol.name, law.variance) for symbol, law in model.noise.values() if isinstance(law, GaussianNoise)]


def discrete_noise(model: ModelAt) -> list[str]:
    """Return symbol names of the discrete coordinates of u, in order."""
    return [symbol.name for symbol, law in model.noise.values() if isinstance(law, DiscreteNoise)]
