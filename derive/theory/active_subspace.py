"""The active subspace of a loss: the fewest combinations of X, Y and Gaussian noise that determine its value.

The loss is a function of its affine subexpressions, so that their rows span the active subspace, and possibly more: the
subspace itself is the span of the loss's gradients, piece by piece, and of those of the switching functions between
pieces. Where a sample of these has a lower rank, the coefficients of polynomials are used next, then the null space of
the sample. The result is compared with the loss itself at random points.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, product
from typing import Any

import sympy as sp
from sympy.core.relational import Relational

from ..authoring.model import FixedSizeModel
from ..authoring.parameters import DiscreteNoise
from ..calculus.forms import AffineForms, affine_coefficients, factors_deciding_sign, normalise_coefficient_row
from ..calculus.piecewise import switching_functions
from ..calculus.spans import (
    EchelonForm,
    Row,
    SymbolicEntryArithmetic,
    coordinates_in_basis,
    first_independent_rows,
    linear_combination_of_rows,
    orthonormal_basis,
    rational_echelon_form,
    right_inverse,
)
from ..calculus.tape import EvaluationTape
from .draws import ConstantSymbol, order_parameter_constants, parameter_constants
from .kinks import integration_variables
from .scales import iterate_arguments_and_bases


@dataclass(frozen=True)
class ActiveSubspaceOptions:
    """Options of the search for combinations of fields that a loss depends on; more points are safer, but slower.

    Attributes:
        batches: number of random parameter values at which gradients of the loss are sampled.
        narrow_points: number of extra points for each function in the loss, at which its argument is below one.
        max_newton_steps: maximal number of Newton steps to such a point.
        comparison_points: number of points at which the result is compared with the original loss.
        min_compared: minimal number of these points at which the loss must have a finite value.
        tolerance: maximal difference, relative or absolute, of values that count as equal.
        field_scales: standard deviations of the fields at random points.
    """

    batches: int = 3
    narrow_points: int = 4
    max_newton_steps: int = 60
    comparison_points: int = 64
    min_compared: int = 12
    tolerance: float = 1e-8
    field_scales: tuple[float, ...] = (0.3, 1.0, 2.5)


_OPTIONS = ActiveSubspaceOptions()


@dataclass(frozen=True)
class LabelAssignmentSubspace:
    """The linear combinations of fields and noise that the loss depends on, at given cluster labels of the tokens.

    They are z = A X + B Y + E u and y = F Y + H u, with X and Y the fields of student and teacher, flattened row by
    row, and u the Gaussian noise. Entries are exact and may contain parameters: the rows are independent at the
    parameters' defaults and at almost all other values, and must not be used where they are not.

    Attributes:
        labels: the cluster labels of the tokens.
        noise: values of the discrete noise, in the order of `ActiveSubspace.drawn`; empty if it is not fixed.
        A, B, E: coefficients of z, one row for each combination; A has full row rank.
        F, H: coefficients of y, one row for each combination; (F, H) has full row rank.
        loss: the loss as a function of z, y, discrete noise, parameters, rho_l, q and trained numbers.
        probabilities: probabilities of the joint values of the discrete noise (last noise fastest), functions of y;
            the one probability of `noise` where that is fixed.
        by_sign: for each y, whether loss and probabilities depend on its sign alone.
    """

    labels: tuple[int, ...]
    noise: tuple[sp.Expr, ...]
    A: sp.ImmutableMatrix
    B: sp.ImmutableMatrix
    E: sp.ImmutableMatrix
    F: sp.ImmutableMatrix
    H: sp.ImmutableMatrix
    loss: sp.Expr
    probabilities: tuple[sp.Expr, ...]
    by_sign: tuple[bool, ...]

    @property
    def student_combinations(self) -> tuple[sp.Symbol, ...]:
        """Return the symbols z_0, z_1, ... of the combinations that contain fields X of the student."""
        return tuple(_symbol_of_combination("z", n) for n in range(self.A.rows))

    @property
    def teacher_combinations(self) -> tuple[sp.Symbol, ...]:
        """Return the symbols y_0, y_1, ... of the combinations of teacher fields Y and noise alone."""
        return tuple(_symbol_of_combination("y", n) for n in range(self.F.rows))

    @property
    def coefficients(self) -> sp.ImmutableMatrix:
        """Return the coefficients of all combinations (rows: z, then y) in fields and noise.

        The columns are the student's fields X, the teacher's fields Y and the Gaussian noise.
        """
        above = sp.Matrix.hstack(self.A, self.B, self.E)
        below = sp.Matrix.hstack(sp.zeros(self.F.rows, self.A.cols), self.F, self.H)
        return sp.ImmutableMatrix(sp.Matrix.vstack(above, below))


@dataclass(frozen=True)
class ActiveSubspace:
    """The linear combinations of fields and noise that a loss or a metric depends on, for all cluster labels.

    Attributes:
        variables: the student's fields X (h in a metric), the teacher's fields Y, each row by row, Gaussian noise.
        students: number of student fields among the variables, L s.
        teachers: number of teacher fields among the variables, L t.
        discrete: symbols of the discrete noise in the loss or metric.
        drawn: symbols of discrete noise that have a fixed value in each assignment: none, or all of `discrete`.
        assignments: combinations for each assignment of labels to the tokens (last token fastest) and, where
            discrete noise is fixed, for each of its joint values (last noise fastest).
    """

    variables: tuple[sp.Symbol, ...]
    students: int
    teachers: int
    discrete: tuple[sp.Symbol, ...]
    drawn: tuple[sp.Symbol, ...]
    assignments: tuple[LabelAssignmentSubspace, ...]

    @property
    def full_dimension(self) -> int:
        """Return the number of integration variables of the original average: all fields and Gaussian noise."""
        return len(self.variables)

    @cached_property
    def active_dimension(self) -> int:
        """Return the largest number of active combinations in an assignment, the dimension of the reduced average.

        Combinations whose sign alone matters are not counted: their average is a sum over two values.
        """
        return max(len(a.student_combinations) + a.by_sign.count(False) for a in self.assignments)

    @cached_property
    def has_lower_dimension(self) -> bool:
        """Return whether some assignment of labels needs fewer combinations than fields, or the mere sign of one."""
        others = self.full_dimension - self.students
        return any(
            len(a.student_combinations) < self.students or len(a.teacher_combinations) < others or any(a.by_sign)
            for a in self.assignments
        )


def active_subspace(model: FixedSizeModel, drawn: bool = False) -> ActiveSubspace:
    """Return the linear combinations of fields and noise that the loss and its noise probabilities depend on.

    Args:
        model: the model at fixed sizes.
        drawn: whether to find separate combinations for each joint value of the discrete noise.

    Raises:
        RuntimeError: the loss as a function of the combinations differs from the original loss, which is a bug.
    """
    return _find_active_subspaces(model, model.loss, drawn)


def metric_active_subspace(model: FixedSizeModel, drawn: bool = False) -> ActiveSubspace | None:
    """Return the linear combinations of fields and noise that the metric depends on; None without a metric.

    Args:
        model: the model at fixed sizes; its symbols X stand for the metric's fields h.
        drawn: whether to find separate combinations for each joint value of the discrete noise.
    """
    return None if model.metric is None else _find_active_subspaces(model, model.metric, drawn)


@dataclass(frozen=True)
class _SubspaceProblem:
    """A loss or metric at fixed cluster labels, with the probabilities `laws` of the joint values of discrete noise."""

    integrand: sp.Expr
    laws: tuple[sp.Expr, ...]
    variables: tuple[sp.Symbol, ...]
    students: int
    noise: tuple[ConstantSymbol, ...]
    parameters: tuple[ConstantSymbol, ...]
    own: tuple[ConstantSymbol, ...]

    @property
    def integrands(self) -> tuple[sp.Expr, ...]:
        """Return the loss or metric, followed by the probabilities of the values of its discrete noise."""
        return (self.integrand, *self.laws)

    @property
    def constants_excluded_from_coefficients(self) -> tuple[ConstantSymbol, ...]:
        """Return the constants (noise, overlaps, trained numbers) that coefficients of combinations may not contain."""
        return (*self.noise, *self.own)


@dataclass(frozen=True)
class _SubspaceSolution:
    """A solution of the search for active combinations: coefficients of z (with student fields) and of y (without).

    It contains the integrands as functions of z and y, and whether they depend on each y by its sign alone.
    """

    z: tuple[Row, ...]
    y: tuple[Row, ...]
    integrands: tuple[sp.Expr, ...]
    by_sign: tuple[bool, ...]


def _find_active_subspaces(model: FixedSizeModel, integrand: sp.Expr, drawn: bool) -> ActiveSubspace:
    structure = model.structure
    variables = tuple(integration_variables(model))
    held = [(u, law) for u, law in model.noise.values() if isinstance(law, DiscreteNoise) and integrand.has(u)]
    discrete = tuple(u for u, _ in held)
    laws = [
        sp.Mul(*[law.probabilities[n] for (_, law), n in zip(held, choice, strict=True)])
        for choice in product(*[range(len(law.values)) for _, law in held])
    ]
    noise = tuple(ConstantSymbol(u, law.values[0], values=tuple(law.values)) for u, law in held)
    constants = parameter_constants(model), order_parameter_constants(model)
    questions: list[tuple[tuple[int, ...], tuple[sp.Expr, ...], _SubspaceProblem]] = []
    for labels in product(range(structure.clusters), repeat=structure.tokens):
        known: dict[sp.Basic, sp.Basic] = {k: sp.Integer(n) for k, n in zip(model.labels, labels, strict=True)}
        here = _substitute_labels_and_noise(integrand, known)
        shape = variables, structure.tokens * structure.student_rank
        if not drawn:
            question = _SubspaceProblem(here, tuple(laws) if held else (), *shape, noise, *constants)
            questions.append((labels, (), question))
            continue
        for law, values in zip(laws, product(*[law.values for _, law in held]), strict=True):
            there = _substitute_labels_and_noise(here, dict(zip(discrete, values, strict=True)))
            question = _SubspaceProblem(there, (law,) if held else (), *shape, (), *constants)
            questions.append((labels, values, question))
    answers = _use_common_student_basis(
        [_find_smallest_active_subspace(question) for *_, question in questions],
        [question for *_, question in questions],
    )
    teachers = structure.tokens * structure.teacher_rank
    return ActiveSubspace(
        variables=variables,
        students=structure.tokens * structure.student_rank,
        teachers=teachers,
        discrete=discrete,
        drawn=discrete if drawn else (),
        assignments=tuple(
            _build_label_subspace(labels, values, question, answer, teachers)
            for (labels, values, question), answer in zip(questions, answers, strict=True)
        ),
    )


def _build_label_subspace(
    labels: tuple[int, ...],
    noise: tuple[sp.Expr, ...],
    question: _SubspaceProblem,
    answer: _SubspaceSolution,
    teachers: int,
) -> LabelAssignmentSubspace:
    width, first, last = len(question.variables), question.students, question.students + teachers

    def _block_of_coefficients(rows: Sequence[Row], begin: int, end: int) -> sp.ImmutableMatrix:
        return sp.ImmutableMatrix(len(rows), end - begin, [e for row in rows for e in row[begin:end]])

    return LabelAssignmentSubspace(
        labels=labels,
        noise=noise,
        A=_block_of_coefficients(answer.z, 0, first),
        B=_block_of_coefficients(answer.z, first, last),
        E=_block_of_coefficients(answer.z, last, width),
        F=_block_of_coefficients(answer.y, first, last),
        H=_block_of_coefficients(answer.y, last, width),
        loss=answer.integrands[0],
        probabilities=answer.integrands[1:],
        by_sign=answer.by_sign,
    )


def _substitute_labels_and_noise(expression: sp.Expr, known: Mapping[sp.Basic, sp.Basic]) -> sp.Expr:
    """Return an expression with the given values substituted for cluster labels or discrete noise."""
    return expression.subs(known) if expression.has(*known) else expression


def _symbols_of_combinations(z: Sequence[Row], y: Sequence[Row]) -> list[sp.Symbol]:
    return [
        *[_symbol_of_combination("z", n) for n in range(len(z))],
        *[_symbol_of_combination("y", n) for n in range(len(y))],
    ]


def _symbol_of_combination(stem: str, number: int) -> sp.Symbol:
    return sp.Symbol(f"{stem}_{number}", real=True)


@lru_cache(maxsize=256)
def _find_smallest_active_subspace(question: _SubspaceProblem) -> _SubspaceSolution:
    """Return the fewest combinations of fields and noise that determine the integrand, as sparse as possible."""
    entries, sample = _exact_coefficient_arithmetic(question), _sample_gradients(question)
    written = _affine_forms_in_integrand(question, entries)
    spanned = [EchelonForm(written.coefficient_rows, entries)]
    ranks = [len(orthonormal_basis(batch.gradients)) for batch in sample]
    if not all(ranks):  # narrow features vanish at all points
        ranks = []
    if ranks and ranks[0] < spanned[-1].rank:
        spanned.append(
            EchelonForm(_affine_forms_in_integrand(question, entries, by_coefficients=True).coefficient_rows, entries)
        )
    if ranks and ranks[0] < spanned[-1].rank and len(set(ranks)) == 1:
        fewer = _span_of_gradients(question, sample, spanned[-1], entries)
        spanned += [EchelonForm(fewer, entries)] if fewer is not None else []
    for span in reversed(spanned):
        z, y = _sparse_subspace_basis(span, written.coefficient_rows, question, entries)
        if not _has_full_row_rank(z, y, question):
            continue
        try:
            answer = _rewrite_integrand_in_combinations(z, y, question, entries)
        except (ValueError, TypeError):  # no value where a missing direction is zero
            continue
        if _equals_original_at_random_points(question, answer):
            return answer
    count = len(question.variables)
    units = [tuple(sp.Integer(int(i == j)) for j in range(count)) for i in range(count)]
    read = [row for row, v in zip(units, question.variables, strict=True) if any(p.has(v) for p in question.integrands)]
    z, y = ([row for row in read if any(row[: question.students]) is student] for student in (True, False))
    answer = _rewrite_integrand_in_combinations(z, y, question, entries)
    if not _equals_original_at_random_points(question, answer):
        raise RuntimeError(
            f"no combinations of fields were found that determine {question.integrand}; please report this error"
        )
    return answer


def _affine_forms_in_integrand(
    question: _SubspaceProblem, entries: SymbolicEntryArithmetic, by_coefficients: bool = False
) -> AffineForms:
    """Return all affine functions of fields and noise that occur inside the integrand and its probabilities."""
    drawn = [
        dict(zip([c.symbol for c in question.noise], values, strict=True))
        for values in product(*[c.values for c in question.noise])
    ]
    expressions = [_substitute_labels_and_noise(part, known) for part in question.integrands for known in drawn]
    excluded = [c.symbol for c in question.constants_excluded_from_coefficients]
    return AffineForms(expressions, question.variables, entries, excluded, by_coefficients)


def _exact_coefficient_arithmetic(question: _SubspaceProblem) -> SymbolicEntryArithmetic:
    generator, constants = random.Random(3), (*question.parameters, *question.own)
    joint = list(product(*[c.values for c in question.noise]))  # an indicator of one value is zero at any other
    draws = [
        {c.symbol: sp.Rational(round(1e6 * c.draw_value(generator)), 10**6) for c in constants}
        | dict(zip([c.symbol for c in question.noise], joint[n % len(joint)], strict=True))
        for n in range(max(_OPTIONS.batches, len(joint)))
    ]
    return SymbolicEntryArithmetic(draws)


def _sparse_subspace_basis(
    span: EchelonForm, written: list[Row], question: _SubspaceProblem, entries: SymbolicEntryArithmetic
) -> tuple[list[Row], list[Row]]:
    """Return a sparse basis of a subspace as two lists of rows: those with student fields (z), those without (y)."""
    first = question.students
    derived = [normalise_coefficient_row(row, entries) for row in span.rows]
    rows = list(dict.fromkeys([*[row for row in written if row in span], *derived]))

    def sparsity_sort_key(row: Row) -> tuple[bool, int, bool, int, bool]:
        symbolic = any(e.free_symbols for e in row)
        return (
            symbolic and row not in written,
            sum(e != 0 for e in row[:first]),
            symbolic,
            _nonzero_coefficient_count(row),
            row in derived,
        )

    rows.sort(key=sparsity_sort_key)
    count = sum(pivot < first for pivot in span.pivots)
    z = first_independent_rows([row for row in rows if any(row[:first])], count, entries, slice(first))
    y = first_independent_rows([row for row in rows if not any(row[:first])], span.rank - count, entries)
    return sorted(z, key=_indices_of_nonzero_columns), sorted(y, key=_indices_of_nonzero_columns)


def _nonzero_coefficient_count(row: Row) -> int:
    return sum(e != 0 for e in row)


def _indices_of_nonzero_columns(row: Row) -> list[int]:
    return [n for n, e in enumerate(row) if e != 0]


def _has_full_row_rank(z: Sequence[Row], y: Sequence[Row], question: _SubspaceProblem) -> bool:
    """Return whether the coefficient rows are linearly independent at the parameters' default values."""
    defaults = {c.symbol: sp.sympify(c.default) for c in question.parameters}
    entries = SymbolicEntryArithmetic([{}])
    at = [[tuple(e.xreplace(defaults) for e in row) for row in rows] for rows in (z, y)]
    if any(e.has(sp.nan, sp.zoo, sp.oo) for rows in at for row in rows for e in row):
        return False
    return all(
        EchelonForm(rows, entries).rank == len(rows) for rows in ([row[: question.students] for row in at[0]], at[1])
    )


def _rewrite_integrand_in_combinations(
    z: Sequence[Row], y: Sequence[Row], question: _SubspaceProblem, entries: SymbolicEntryArithmetic
) -> _SubspaceSolution:
    """Return the integrand and its probabilities rewritten as functions of the combinations z and y."""
    basis = [*z, *y]
    symbols = _symbols_of_combinations(z, y)
    inverse = right_inverse(basis, entries) if basis else [()] * len(question.variables)
    columns = dict(zip(question.variables, inverse, strict=True))
    held, written = set(columns), {}

    def rewrite_in_combinations(e: Any) -> Any:
        if not e.free_symbols & held:
            return e
        if e not in written:
            row = affine_coefficients(e, held)
            if row is None:
                written[e] = e.func(*[rewrite_in_combinations(a) for a in e.args])
            else:
                weights = [
                    entries.to_lowest_terms(sp.Add(*[coefficient * columns[v][j] for v, coefficient in row.items()]))
                    for j in range(len(basis))
                ]
                rest = e.xreplace(dict.fromkeys(row, sp.Integer(0)))
                written[e] = sp.Add(*[c * s for c, s in zip(weights, symbols, strict=True)], rest)
        return written[e]

    parts = tuple(rewrite_in_combinations(part) for part in question.integrands)
    chosen = symbols[len(z) :]
    by_sign = tuple(all(_depends_on_sign_only(part, s) for part in parts) for s in chosen)
    if any(by_sign):
        by_sign = _verify_sign_only_dependence(question, parts, symbols, by_sign)
    return _SubspaceSolution(tuple(z), tuple(y), parts, by_sign)


def _use_common_student_basis(
    answers: list[_SubspaceSolution], questions: list[_SubspaceProblem]
) -> list[_SubspaceSolution]:
    """Return the subspaces of all labels, with one common basis for student combinations that span the same space."""
    found: list[_SubspaceSolution] = []
    for answer, question in zip(answers, questions, strict=True):
        first, entries = question.students, _exact_coefficient_arithmetic(question)
        own = tuple(row[:first] for row in answer.z)
        for other in found:
            wanted = tuple(row[:first] for row in other.z)
            if wanted == own:
                break
            if len(wanted) == len(own) and EchelonForm([*wanted, *own], entries).rank == len(own):
                z = [
                    linear_combination_of_rows(coordinates_in_basis(row, own, entries), answer.z, entries)
                    for row in wanted
                ]
                changed = _rewrite_integrand_in_combinations(z, answer.y, question, entries)
                if _has_full_row_rank(z, answer.y, question) and _equals_original_at_random_points(question, changed):
                    answer = changed
                break
        found.append(answer)
    return found


# --- numerical values: points, gradients piece by piece, comparisons


class _RandomPointGenerator:
    """A generator of random values of all symbols of an integrand."""

    def __init__(self, question: _SubspaceProblem, seed: int) -> None:
        self.question, self.generator = question, random.Random(seed)
        constants = (*question.parameters, *question.constants_excluded_from_coefficients)
        self.symbols = [*question.variables, *[c.symbol for c in constants]]

    @cached_property
    def function_arguments(self) -> EvaluationTape:
        """Return an evaluation tape of the arguments of all functions in the integrand and its probabilities."""
        found = iterate_arguments_and_bases(self.question.integrands, self.question.variables)
        return EvaluationTape(self.symbols, list(dict.fromkeys(each for kind, each in found if kind == "arguments")))

    def draw_random_parameters(self) -> list[float]:
        """Return one random value for each model parameter, within its range."""
        return [c.draw_value(self.generator) for c in self.question.parameters]

    def draw_random_point(self, parameters: Sequence[float]) -> list[float]:
        """Return a random value for every symbol of the integrand, with the given parameter values."""
        draw = self.generator
        scale = draw.choice(_OPTIONS.field_scales)
        fields = [draw.gauss(0, scale) for _ in self.question.variables]
        noise = [float(draw.choice(c.values)) for c in self.question.noise]
        return [*fields, *parameters, *noise, *[c.draw_value(draw) for c in self.question.own]]

    def points_with_arguments_of_order_one(self, parameters: Sequence[float]) -> Iterator[list[float]]:
        """Yield one random point per function argument, moved by Newton steps to where the argument is below 1."""
        width = len(self.question.variables)
        for n in range(len(self.function_arguments.outputs)):
            point, wanted = self.draw_random_point(parameters), self.generator.uniform(0.2, 1)
            for _ in range(_OPTIONS.max_newton_steps):
                values = self.function_arguments.evaluate_nodes(point)
                slopes = self.function_arguments.output_gradient(values, n)
                size = sum(slope * slope for slope in slopes[:width]) if slopes else 0.0  # ** raises where it overflows
                if not slopes or not 0 < size < math.inf:
                    break
                away = float(self.function_arguments.output_values_from_nodes(values)[n])
                if abs(away) < 1:
                    yield point
                    break
                step = (math.copysign(wanted, away) - away) / size
                point = [z + step * slope * (i < width) for i, (z, slope) in enumerate(zip(point, slopes, strict=True))]


@dataclass(frozen=True)
class _GradientBatch:
    """Gradients of the integrand at random points that share one random choice of the parameters."""

    parameters: list[float]
    gradients: list[list[float]]


def _sample_gradients(question: _SubspaceProblem) -> list[_GradientBatch]:
    """Return gradients of the integrand and its switching functions at random points; [] if there is no value."""
    points, variables = _RandomPointGenerator(question, 17), question.variables
    boundaries = [
        factor for switch in switching_functions(question.integrands) for factor in factors_deciding_sign(switch)
    ]
    functions = [e for e in dict.fromkeys([*question.integrands, *boundaries]) if e.has(*variables)]
    try:
        tape = EvaluationTape(points.symbols, functions)
    except NotImplementedError:
        return []
    wanted = 3 * len(variables) + 2 * len(boundaries) + 8
    batches = []
    for _ in range(_OPTIONS.batches):
        batch = _GradientBatch(points.draw_random_parameters(), [])
        drawn = (points.draw_random_point(batch.parameters) for _ in range(wanted))
        narrow = (
            point
            for _ in range(_OPTIONS.narrow_points)
            for point in points.points_with_arguments_of_order_one(batch.parameters)
        )
        for point in chain(drawn, narrow):
            values = tape.evaluate_nodes(point, points.generator.randrange)
            found = [tape.output_gradient(values, n) for n in range(len(functions))]
            batch.gradients.extend(slope[: len(variables)] for slope in found if slope is not None)
        if len(batch.gradients) < wanted * len(functions) // 4:
            return []
        batches.append(batch)
    return batches


def _span_of_gradients(
    question: _SubspaceProblem, sample: list[_GradientBatch], span: EchelonForm, entries: SymbolicEntryArithmetic
) -> list[Row] | None:
    """Return rows that span the sampled gradients at all sampled parameters; None if no common rows do."""
    found: set[tuple[Row, ...]] = set()
    for batch in sample:
        # Coordinates stand at the pivots, where the rows of an echelon form are those of a unit matrix.
        inside = [[vector[p] for p in span.pivots] for vector in orthonormal_basis(batch.gradients)]
        reduced = rational_echelon_form(inside)
        if reduced is None:
            return None
        found.add(reduced)
    if len(found) != 1:
        return None
    return [linear_combination_of_rows(row, span.rows, entries) for row in found.pop()]


def _equals_original_at_random_points(question: _SubspaceProblem, answer: _SubspaceSolution) -> bool:
    """Return whether the integrand as a function of the combinations equals the original at random points.

    If the integrand has a finite value at too few points, only combinations that are single fields are accepted.
    """
    points, count = _RandomPointGenerator(question, 29), len(question.variables)
    basis = [*answer.z, *answer.y]
    symbols = _symbols_of_combinations(answer.z, answer.y)
    forms = [sp.Add(*[e * v for e, v in zip(row, question.variables, strict=True)]) for row in basis]
    compared = 0
    try:
        before, read = EvaluationTape(points.symbols, question.integrands), EvaluationTape(points.symbols, forms)
        after = EvaluationTape([*symbols, *points.symbols[count:]], answer.integrands)
    except NotImplementedError:
        return all(_nonzero_coefficient_count(row) == 1 for row in basis)
    drawn = (points.draw_random_point(points.draw_random_parameters()) for _ in range(_OPTIONS.comparison_points))
    narrow = (
        point
        for _ in range(_OPTIONS.narrow_points)
        for point in points.points_with_arguments_of_order_one(points.draw_random_parameters())
    )
    for point in chain(drawn, narrow):
        known, combinations = before.output_values_at_point(point), read.output_values_at_point(point)
        if known is None or combinations is None:
            continue
        found = after.output_values_at_point([*combinations, *point[count:]])
        if found is None or not _agree_within_tolerance(known, found):
            return False
        compared += 1
    return compared >= _OPTIONS.min_compared or all(_nonzero_coefficient_count(row) == 1 for row in basis)


def _agree_within_tolerance(known: Sequence[float], found: Sequence[float]) -> bool:
    """Return whether two lists of values agree pairwise, to the relative or absolute tolerance of the options."""
    return all(abs(a - b) <= _OPTIONS.tolerance * (1 + abs(a)) for a, b in zip(known, found, strict=True))


# --- combinations that count through their sign alone


def _depends_on_sign_only(expression: sp.Expr, symbol: sp.Symbol) -> bool:
    """Return whether an expression depends on a symbol through its sign alone."""
    side = sp.Symbol(f"side of {symbol}", real=True)

    def sign_of_product(e: sp.Expr) -> sp.Expr:
        factors = [side if factor == symbol else sp.sign(reduce_to_sign(factor)) for factor in sp.Mul.make_args(e)]
        return sp.Mul(*factors)

    def reduce_to_sign(e: Any) -> Any:
        if e.is_Atom or not e.has(symbol):
            return e
        if isinstance(e, sp.sign):
            return sign_of_product(e.args[0])
        if isinstance(e, sp.Heaviside):
            return (1 + sign_of_product(e.args[0])) / 2
        if isinstance(e, sp.Abs):
            return sp.Mul(
                *[f * side if f == symbol else sp.Abs(reduce_to_sign(f)) for f in sp.Mul.make_args(e.args[0])]
            )
        if isinstance(e, Relational):
            factors = [side if f == symbol else reduce_to_sign(f) for f in sp.Mul.make_args(e.lhs - e.rhs)]
            return e.func(sp.Mul(*factors), 0)
        return e.func(*[reduce_to_sign(a) for a in e.args])

    return not reduce_to_sign(expression).has(symbol)


def _verify_sign_only_dependence(
    question: _SubspaceProblem, parts: Sequence[sp.Expr], symbols: Sequence[sp.Symbol], claimed: Sequence[bool]
) -> tuple[bool, ...]:
    """Return, for each combination y, whether rescaling y by positive factors leaves the integrands unchanged."""
    points, count = _RandomPointGenerator(question, 41), len(question.variables)
    tape = EvaluationTape([*symbols, *points.symbols[count:]], parts)
    held = list(claimed)
    for _ in range(_OPTIONS.comparison_points):
        fields = [points.generator.gauss(0, 1) for _ in symbols]
        rest = points.draw_random_point(points.draw_random_parameters())[count:]
        known = tape.output_values_at_point([*fields, *rest])
        for n, claim in enumerate(claimed):
            position, factor = len(symbols) - len(claimed) + n, 10 ** points.generator.uniform(-3, 3)
            found = tape.output_values_at_point(
                [*[factor * e if i == position else e for i, e in enumerate(fields)], *rest]
            )
            if known is not None and (found is None or not _agree_within_tolerance(known, found)):
                held[n] = held[n] and not claim
    return tuple(held)
