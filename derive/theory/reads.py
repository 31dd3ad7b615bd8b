"""What a loss reads of the fields: the fewest combinations of X, Y and Gaussian noise that decide its value.

The loss is a function of the rows of its affine subexpressions, so that these span what it reads, and possibly more:
rows that are read in truth are the span of its gradients, piece by piece, and of the switches between pieces. Where a
sample of these has a lower rank, polynomials are looked at by their coefficients, then the sample by its null space.
Whatever comes out is compared with the loss itself at random points.
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

from ..authoring.model import ModelAt
from ..authoring.parameters import DiscreteNoise
from ..calculus.forms import Forms, affine_row, deciding, scaled
from ..calculus.piecewise import switches
from ..calculus.spans import (
    Echelon,
    Entries,
    Row,
    combined,
    coordinates,
    independent,
    orthonormal,
    rational_echelon,
    right_inverse,
)
from ..calculus.tape import Tape
from .draws import Constant, constants_of, own_of
from .kinks import integration_variables
from .scales import scales

_BATCHES = 3  # values of the parameters at which gradients are sampled
_NARROW, _NEWTON_STEPS = 4, 60  # points at which every argument is of order one, and steps that lead to one
_POINTS = 64  # at which what is written is compared
_FEWEST = 12  # of them at which the loss has a value
_SCALES = (0.3, 1.0, 2.5)
_AGREEMENT = 1e-8


@dataclass(frozen=True)
class Assignment:
    """What is read where the tokens have these labels.

    Fields z = A X + B Y + E u and y = F Y + H u, where X, Y (rows first) and u (Gaussian) are `Reading.variables`.
    Entries are exact and may hold parameters: rows are independent at their defaults and at almost all values, and are
    not to be used at values where they are not.

    Attributes:
        labels: of the tokens; noise: values of the discrete noise, in the order of `Reading.drawn`, else empty.
        A, B, E: d_z x L s of full row rank, d_z x L t, d_z x U; F, H: d_y x L t, d_y x U, rows of both independent.
        loss: the loss in z and y, with what else it holds: discrete noise, parameters, rho_l, q, trained numbers.
        probabilities: of the joint values of `Reading.discrete`, last fastest, in y; of `noise` alone if that is given.
        by_sign: whether loss and probabilities read an entry of y through its sign alone.
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
    def z(self) -> tuple[sp.Symbol, ...]:
        """The symbols z_0, z_1, ... of its combinations that hold X."""
        return tuple(_symbol("z", n) for n in range(self.A.rows))

    @property
    def y(self) -> tuple[sp.Symbol, ...]:
        """The symbols y_0, y_1, ... of those of teacher and noise alone."""
        return tuple(_symbol("y", n) for n in range(self.F.rows))

    @property
    def rows(self) -> sp.ImmutableMatrix:
        """Coefficients of z, then y, in all variables."""
        above = sp.Matrix.hstack(self.A, self.B, self.E)
        below = sp.Matrix.hstack(sp.zeros(self.F.rows, self.A.cols), self.F, self.H)
        return sp.ImmutableMatrix(sp.Matrix.vstack(above, below))


@dataclass(frozen=True)
class Reading:
    """What a loss or a metric reads of the variables of its average (fields h in place of X in a metric).

    Attributes:
        variables: X, Y, rows first, and Gaussian noise.
        students, teachers: how many of them are X and Y, L s and L t; the rest is noise.
        discrete: symbols of the discrete noise that is held.
        drawn: those of them that `Assignment.noise` gives values; none, or all.
        assignments: one for each assignment of labels, in the order of product(range(K), repeat=L), and for each
            of the joint values of `drawn`, last fastest.
    """

    variables: tuple[sp.Symbol, ...]
    students: int
    teachers: int
    discrete: tuple[sp.Symbol, ...]
    drawn: tuple[sp.Symbol, ...]
    assignments: tuple[Assignment, ...]

    @property
    def dimension(self) -> int:
        """Of the average over all variables."""
        return len(self.variables)

    @cached_property
    def read(self) -> int:
        """Of the average over what is read, the largest of all assignments; what is read by sign is left out."""
        return max(len(a.z) + a.by_sign.count(False) for a in self.assignments)

    @cached_property
    def reduced(self) -> bool:
        """Whether an assignment reads fewer combinations than there are variables, or one of them by sign."""
        others = self.dimension - self.students
        return any(len(a.z) < self.students or len(a.y) < others or any(a.by_sign) for a in self.assignments)


def reading(model: ModelAt, drawn: bool = False) -> Reading:
    """What the loss and the probabilities of its labelled noise read.

    Args:
        drawn: for each joint value of the discrete noise on its own, or for any of them.

    Raises:
        RuntimeError: the loss in its combinations is not the loss; a bug.
    """
    return _reading(model, model.loss, drawn)


def metric_reading(model: ModelAt, drawn: bool = False) -> Reading | None:
    """The same of the metric, where X stands for its h; None without one."""
    return None if model.metric is None else _reading(model, model.metric, drawn)


@dataclass(frozen=True)
class _Question:
    """An integrand at fixed labels; `laws` are the probabilities of all joint values of `noise`."""

    integrand: sp.Expr
    laws: tuple[sp.Expr, ...]
    variables: tuple[sp.Symbol, ...]
    students: int
    noise: tuple[Constant, ...]
    parameters: tuple[Constant, ...]
    own: tuple[Constant, ...]

    @property
    def parts(self) -> tuple[sp.Expr, ...]:
        """Everything that is to be written in the combinations."""
        return (self.integrand, *self.laws)

    @property
    def varying(self) -> tuple[Constant, ...]:
        """What no coefficient may hold."""
        return (*self.noise, *self.own)


@dataclass(frozen=True)
class _Answer:
    """Rows z, rows y, the parts written in them, and which y are read by their sign."""

    z: tuple[Row, ...]
    y: tuple[Row, ...]
    parts: tuple[sp.Expr, ...]
    by_sign: tuple[bool, ...]


def _reading(model: ModelAt, integrand: sp.Expr, drawn: bool) -> Reading:
    structure = model.structure
    variables = tuple(integration_variables(model))
    held = [(u, law) for u, law in model.noise.values() if isinstance(law, DiscreteNoise) and integrand.has(u)]
    discrete = tuple(u for u, _ in held)
    laws = [
        sp.Mul(*[law.probabilities[n] for (_, law), n in zip(held, choice, strict=True)])
        for choice in product(*[range(len(law.values)) for _, law in held])
    ]
    noise = tuple(Constant(u, law.values[0], values=tuple(law.values)) for u, law in held)
    questions: list[tuple[tuple[int, ...], tuple[sp.Expr, ...], _Question]] = []
    for labels in product(range(structure.clusters), repeat=structure.tokens):
        known: dict[sp.Basic, sp.Basic] = {k: sp.Integer(n) for k, n in zip(model.labels, labels, strict=True)}
        here = _at(integrand, known)
        shape = variables, structure.tokens * structure.student_rank
        if not drawn:
            question = _Question(here, tuple(laws) if held else (), *shape, noise, constants_of(model), own_of(model))
            questions.append((labels, (), question))
            continue
        for law, values in zip(laws, product(*[law.values for _, law in held]), strict=True):
            there = _at(here, dict(zip(discrete, values, strict=True)))
            question = _Question(there, (law,) if held else (), *shape, (), constants_of(model), own_of(model))
            questions.append((labels, values, question))
    answers = _alike([_answer(question) for *_, question in questions], [question for *_, question in questions])
    teachers = structure.tokens * structure.teacher_rank
    return Reading(
        variables=variables,
        students=structure.tokens * structure.student_rank,
        teachers=teachers,
        discrete=discrete,
        drawn=discrete if drawn else (),
        assignments=tuple(
            _assignment(labels, values, question, answer, teachers)
            for (labels, values, question), answer in zip(questions, answers, strict=True)
        ),
    )


def _assignment(
    labels: tuple[int, ...], noise: tuple[sp.Expr, ...], question: _Question, answer: _Answer, teachers: int
) -> Assignment:
    width, first, last = len(question.variables), question.students, question.students + teachers

    def part(rows: Sequence[Row], begin: int, end: int) -> sp.ImmutableMatrix:
        return sp.ImmutableMatrix(len(rows), end - begin, [e for row in rows for e in row[begin:end]])

    return Assignment(
        labels=labels,
        noise=noise,
        A=part(answer.z, 0, first),
        B=part(answer.z, first, last),
        E=part(answer.z, last, width),
        F=part(answer.y, first, last),
        H=part(answer.y, last, width),
        loss=answer.parts[0],
        probabilities=answer.parts[1:],
        by_sign=answer.by_sign,
    )


def _at(expression: sp.Expr, known: Mapping[sp.Basic, sp.Basic]) -> sp.Expr:
    """With labels or noise put in, and what is constant then worked out."""
    return expression.subs(known) if expression.has(*known) else expression


def _symbols(z: Sequence[Row], y: Sequence[Row]) -> list[sp.Symbol]:
    return [*[_symbol("z", n) for n in range(len(z))], *[_symbol("y", n) for n in range(len(y))]]


def _symbol(stem: str, number: int) -> sp.Symbol:
    return sp.Symbol(f"{stem}_{number}", real=True)


@lru_cache(maxsize=256)
def _answer(question: _Question) -> _Answer:
    """The smallest span that passes the comparison, in a basis that reads well."""
    entries, sample = _entries(question), _sample(question)
    written = _forms(question, entries)
    spanned = [Echelon(written.rows, entries)]
    ranks = [len(orthonormal(batch.gradients)) for batch in sample]
    if not all(ranks):  # what is narrow vanishes at all points
        ranks = []
    if ranks and ranks[0] < spanned[-1].rank:
        spanned.append(Echelon(_forms(question, entries, by_coefficients=True).rows, entries))
    if ranks and ranks[0] < spanned[-1].rank and len(set(ranks)) == 1:
        fewer = _annihilated(question, sample, spanned[-1], entries)
        spanned += [Echelon(fewer, entries)] if fewer is not None else []
    for span in reversed(spanned):
        z, y = _basis(span, written.rows, question, entries)
        if not _keeps_rank(z, y, question):
            continue
        try:
            answer = _in_basis(z, y, question, entries)
        except (ValueError, TypeError):  # no value where a direction that was missed is put to zero
            continue
        if _agrees(question, answer):
            return answer
    count = len(question.variables)
    units = [tuple(sp.Integer(int(i == j)) for j in range(count)) for i in range(count)]
    read = [row for row, v in zip(units, question.variables, strict=True) if any(p.has(v) for p in question.parts)]
    z, y = ([row for row in read if any(row[: question.students]) is student] for student in (True, False))
    answer = _in_basis(z, y, question, entries)
    if not _agrees(question, answer):
        raise RuntimeError(f"what is read of {question.integrand} does not decide it; please report this")
    return answer


def _forms(question: _Question, entries: Entries, by_coefficients: bool = False) -> Forms:
    """The forms of all parts, at any values of the noise."""
    drawn = [
        dict(zip([c.symbol for c in question.noise], values, strict=True))
        for values in product(*[c.values for c in question.noise])
    ]
    expressions = [_at(part, known) for part in question.parts for known in drawn]
    return Forms(expressions, question.variables, entries, [c.symbol for c in question.varying], by_coefficients)


def _entries(question: _Question) -> Entries:
    generator = random.Random(3)
    joint = list(product(*[c.values for c in question.noise]))  # an indicator of one value is zero at any other
    draws = [
        {c.symbol: sp.Rational(round(1e6 * c.drawn(generator)), 10**6) for c in (*question.parameters, *question.own)}
        | dict(zip([c.symbol for c in question.noise], joint[n % len(joint)], strict=True))
        for n in range(max(_BATCHES, len(joint)))
    ]
    return Entries(draws)


def _basis(span: Echelon, written: list[Row], question: _Question, entries: Entries) -> tuple[list[Row], list[Row]]:
    """Rows z and rows y of a span: the sparsest, those that the expression holds before others."""
    first = question.students
    derived = [scaled(row, entries) for row in span.rows]
    rows = list(dict.fromkeys([*[row for row in written if row in span], *derived]))

    def rank_of(row: Row) -> tuple[bool, int, bool, int, bool]:
        symbolic = any(e.free_symbols for e in row)
        return symbolic and row not in written, sum(e != 0 for e in row[:first]), symbolic, _size(row), row in derived

    rows.sort(key=rank_of)
    count = sum(pivot < first for pivot in span.pivots)
    z = independent([row for row in rows if any(row[:first])], count, entries, slice(first))
    y = independent([row for row in rows if not any(row[:first])], span.rank - count, entries)
    return sorted(z, key=_place), sorted(y, key=_place)


def _size(row: Row) -> int:
    return sum(e != 0 for e in row)


def _place(row: Row) -> list[int]:
    return [n for n, e in enumerate(row) if e != 0]


def _keeps_rank(z: Sequence[Row], y: Sequence[Row], question: _Question) -> bool:
    """Whether no row depends on others at the defaults of the parameters."""
    defaults = {c.symbol: sp.sympify(c.default) for c in question.parameters}
    entries = Entries([{}])
    at = [[tuple(e.xreplace(defaults) for e in row) for row in rows] for rows in (z, y)]
    if any(e.has(sp.nan, sp.zoo, sp.oo) for rows in at for row in rows for e in row):
        return False
    return all(
        Echelon(rows, entries).rank == len(rows) for rows in ([row[: question.students] for row in at[0]], at[1])
    )


def _in_basis(z: Sequence[Row], y: Sequence[Row], question: _Question, entries: Entries) -> _Answer:
    """The parts in z and y: every affine form by its coordinates, whatever is not read put to zero."""
    basis = [*z, *y]
    symbols = _symbols(z, y)
    inverse = right_inverse(basis, entries) if basis else [()] * len(question.variables)
    columns = dict(zip(question.variables, inverse, strict=True))
    held, written = set(columns), {}

    def write(e: Any) -> Any:
        if not e.free_symbols & held:
            return e
        if e not in written:
            row = affine_row(e, held)
            if row is None:
                written[e] = e.func(*[write(a) for a in e.args])
            else:
                weights = [
                    entries.tidy(sp.Add(*[coefficient * columns[v][j] for v, coefficient in row.items()]))
                    for j in range(len(basis))
                ]
                rest = e.xreplace(dict.fromkeys(row, sp.Integer(0)))
                written[e] = sp.Add(*[c * s for c, s in zip(weights, symbols, strict=True)], rest)
        return written[e]

    parts = tuple(write(part) for part in question.parts)
    chosen = symbols[len(z) :]
    by_sign = tuple(all(_reads_sign(part, s) for part in parts) for s in chosen)
    if any(by_sign):
        by_sign = _seen_by_sign(question, parts, symbols, by_sign)
    return _Answer(tuple(z), tuple(y), parts, by_sign)


def _alike(answers: list[_Answer], questions: list[_Question]) -> list[_Answer]:
    """Those that read the same combinations of the student's fields with the same A, that of the first."""
    found: list[_Answer] = []
    for answer, question in zip(answers, questions, strict=True):
        first, entries = question.students, _entries(question)
        own = tuple(row[:first] for row in answer.z)
        for other in found:
            wanted = tuple(row[:first] for row in other.z)
            if wanted == own:
                break
            if len(wanted) == len(own) and Echelon([*wanted, *own], entries).rank == len(own):
                z = [combined(coordinates(row, own, entries), answer.z, entries) for row in wanted]
                changed = _in_basis(z, answer.y, question, entries)
                if _keeps_rank(z, answer.y, question) and _agrees(question, changed):
                    answer = changed
                break
        found.append(answer)
    return found


# Numbers: points, gradients piece by piece, comparisons.


class _Points:
    """Random values of everything that an integrand holds."""

    def __init__(self, question: _Question, seed: int) -> None:
        self.question, self.generator = question, random.Random(seed)
        constants = (*question.parameters, *question.varying)
        self.symbols = [*question.variables, *[c.symbol for c in constants]]

    @cached_property
    def arguments(self) -> Tape:
        """Return the arguments of functions in the parts."""
        found = scales(self.question.parts, self.question.variables)
        return Tape(self.symbols, list(dict.fromkeys(each for kind, each in found if kind == "arguments")))

    def parameters(self) -> list[float]:
        return [c.drawn(self.generator) for c in self.question.parameters]

    def point(self, parameters: Sequence[float]) -> list[float]:
        draw = self.generator
        scale = draw.choice(_SCALES)
        fields = [draw.gauss(0, scale) for _ in self.question.variables]
        noise = [float(draw.choice(c.values)) for c in self.question.noise]
        return [*fields, *parameters, *noise, *[c.drawn(draw) for c in self.question.own]]

    def within(self, parameters: Sequence[float]) -> Iterator[list[float]]:
        """Yield points at which one argument of a function after the other is of order one."""
        width = len(self.question.variables)
        for n in range(len(self.arguments.outputs)):
            point, wanted = self.point(parameters), self.generator.uniform(0.2, 1)
            for _ in range(_NEWTON_STEPS):
                values = self.arguments.run(point)
                slopes = self.arguments.gradient(values, n)
                size = sum(slope * slope for slope in slopes[:width]) if slopes else 0.0  # ** raises where it overflows
                if not slopes or not 0 < size < math.inf:
                    break
                away = float(self.arguments.values(values)[n])
                if abs(away) < 1:
                    yield point
                    break
                step = (math.copysign(wanted, away) - away) / size
                point = [z + step * slope * (i < width) for i, (z, slope) in enumerate(zip(point, slopes, strict=True))]


@dataclass(frozen=True)
class _Batch:
    """Gradients at one value of the parameters."""

    parameters: list[float]
    gradients: list[list[float]]


def _sample(question: _Question) -> list[_Batch]:
    """Gradients of the parts, any piece at any point, and of switches between pieces; none without a rule."""
    points, variables = _Points(question, 17), question.variables
    meets = [factor for switch in switches(question.parts) for factor in deciding(switch)]
    functions = [e for e in dict.fromkeys([*question.parts, *meets]) if e.has(*variables)]
    try:
        tape = Tape(points.symbols, functions)
    except NotImplementedError:
        return []
    wanted = 3 * len(variables) + 2 * len(meets) + 8
    batches = []
    for _ in range(_BATCHES):
        batch = _Batch(points.parameters(), [])
        drawn = (points.point(batch.parameters) for _ in range(wanted))
        narrow = (point for _ in range(_NARROW) for point in points.within(batch.parameters))
        for point in chain(drawn, narrow):
            values = tape.run(point, points.generator.randrange)
            found = [tape.gradient(values, n) for n in range(len(functions))]
            batch.gradients.extend(slope[: len(variables)] for slope in found if slope is not None)
        if len(batch.gradients) < wanted * len(functions) // 4:
            return []
        batches.append(batch)
    return batches


def _annihilated(question: _Question, sample: list[_Batch], span: Echelon, entries: Entries) -> list[Row] | None:
    """The rows that the gradients span, if they are the same rational combinations of a span's at all parameters."""
    found: set[tuple[Row, ...]] = set()
    for batch in sample:
        # Coordinates stand at the pivots, where the rows of an echelon form are those of a unit matrix.
        inside = [[vector[p] for p in span.pivots] for vector in orthonormal(batch.gradients)]
        reduced = rational_echelon(inside)
        if reduced is None:
            return None
        found.add(reduced)
    if len(found) != 1:
        return None
    return [combined(row, span.rows, entries) for row in found.pop()]


def _agrees(question: _Question, answer: _Answer) -> bool:
    """Whether the parts in z and y are the parts, at random points; where too few have a value, unless it is plain."""
    points, count = _Points(question, 29), len(question.variables)
    basis = [*answer.z, *answer.y]
    symbols = _symbols(answer.z, answer.y)
    forms = [sp.Add(*[e * v for e, v in zip(row, question.variables, strict=True)]) for row in basis]
    compared = 0
    try:
        before, read = Tape(points.symbols, question.parts), Tape(points.symbols, forms)
        after = Tape([*symbols, *points.symbols[count:]], answer.parts)
    except NotImplementedError:
        return all(_size(row) == 1 for row in basis)
    drawn = (points.point(points.parameters()) for _ in range(_POINTS))
    narrow = (point for _ in range(_NARROW) for point in points.within(points.parameters()))
    for point in chain(drawn, narrow):
        known, combinations = before.at(point), read.at(point)
        if known is None or combinations is None:
            continue
        found = after.at([*combinations, *point[count:]])
        if found is None or not _equal(known, found):
            return False
        compared += 1
    return compared >= _FEWEST or all(_size(row) == 1 for row in basis)


def _equal(known: Sequence[float], found: Sequence[float]) -> bool:
    return all(abs(a - b) <= _AGREEMENT * (1 + abs(a)) for a, b in zip(known, found, strict=True))


# What is read by its sign alone.


def _reads_sign(expression: sp.Expr, symbol: sp.Symbol) -> bool:
    """Whether the symbol stands nowhere but where its sign alone counts."""
    side = sp.Symbol(f"side of {symbol}", real=True)

    def sign_of(e: sp.Expr) -> sp.Expr:
        factors = [side if factor == symbol else sp.sign(write(factor)) for factor in sp.Mul.make_args(e)]
        return sp.Mul(*factors)

    def write(e: Any) -> Any:
        if e.is_Atom or not e.has(symbol):
            return e
        if isinstance(e, sp.sign):
            return sign_of(e.args[0])
        if isinstance(e, sp.Heaviside):
            return (1 + sign_of(e.args[0])) / 2
        if isinstance(e, sp.Abs):
            return sp.Mul(*[f * side if f == symbol else sp.Abs(write(f)) for f in sp.Mul.make_args(e.args[0])])
        if isinstance(e, Relational):
            factors = [side if f == symbol else write(f) for f in sp.Mul.make_args(e.lhs - e.rhs)]
            return e.func(sp.Mul(*factors), 0)
        return e.func(*[write(a) for a in e.args])

    return not write(expression).has(symbol)


def _seen_by_sign(
    question: _Question, parts: Sequence[sp.Expr], symbols: Sequence[sp.Symbol], claimed: Sequence[bool]
) -> tuple[bool, ...]:
    """Which of the claims hold at random points, where y is multiplied by positive numbers."""
    points, count = _Points(question, 41), len(question.variables)
    tape = Tape([*symbols, *points.symbols[count:]], parts)
    held = list(claimed)
    for _ in range(_POINTS):
        fields = [points.generator.gauss(0, 1) for _ in symbols]
        rest = points.point(points.parameters())[count:]
        known = tape.at([*fields, *rest])
        for n, claim in enumerate(claimed):
            position, factor = len(symbols) - len(claimed) + n, 10 ** points.generator.uniform(-3, 3)
            found = tape.at([*[factor * e if i == position else e for i, e in enumerate(fields)], *rest])
            if known is not None and (found is None or not _equal(known, found)):
                held[n] = held[n] and not claim
    return tuple(held)
