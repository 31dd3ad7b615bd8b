"""Output channels: what is observed of the teacher's fields, as a change of coordinates Y = Psi(observed, hidden).

The posterior of the fields Y of a sentence given what is observed needs sums over what stays hidden, never a delta
function: for y = |z| one observes y > 0, the sign stays hidden, and z = sign y. With the Gaussian law of Y around a
cavity field omega,

    Z_out(observed; omega, V) = sum over hidden of  N(Psi; omega, V) |det dPsi| P(observed | Y),

sums over discrete coordinates, integrals over the others. The determinant is that of the continuous coordinates in
which Psi is written; those of `observed` that Psi does not hold carry a density P(observed | Y) of their own.

Psi may hold other coordinates at other values of the discrete ones, and those that it does not hold there do not exist
there: of y = max(0, z) one observes whether z > 0, and y where it is; else |z| stays hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import sympy as sp
from sympy.polys.matrices import DomainMatrix

from ..calculus.numeric import vanishes
from ..errors import ModelError
from .language import exact
from .parameters import Structure

REAL, POSITIVE, ANGLE = "real", "positive", "angle"
DOMAINS = {REAL: {}, POSITIVE: {"positive": True}, ANGLE: {}}  # and what SymPy is told of a symbol beside being real
_PROBES = 3  # points at which what is read of the fields is compared with what they were made of


@dataclass(frozen=True)
class Output:
    """What a learner sees of the teacher's fields, as an author writes it.

    Args:
        fields: function of the coordinates by name that returns Y: L x t, or a number where both are 1.
        observed, hidden: name -> "real", "positive", "angle" (in radians, once around), or a tuple of the values that a
            discrete coordinate takes. A continuous one does not exist at values of the discrete ones at which neither
            fields nor log_likelihood depend on it.
        log_likelihood: function of the coordinates by name, log P(observed | Y); 0 where Psi alone says everything.
        needs: function of parameters, positive where the channel is the one written, as Delta for noise of variance
            Delta; None where it always is.
        read: function of Y, L x t, that returns what is observed in the order of `observed`. With it averages can be
            drawn from the teacher's side where what is observed does not follow from Y by linear equations.

    The functions may take the model's parameters by name.

    Example:
        >>> seen = sf.Output(lambda y: y, observed={"y": "real"})
        >>> @sf.model(output=seen)
        ... def regression(X, Y):
        ...     return sf.half_square(Y - X)
        >>> sf.bayes_threshold(sf.problem(regression), "information_theoretic").value
        1.0
    """

    fields: Callable[..., Any]
    observed: Mapping[str, Any]
    hidden: Mapping[str, Any] = field(default_factory=dict)
    log_likelihood: Callable[..., Any] | None = None
    needs: Callable[..., Any] | None = None
    read: Callable[..., Any] | None = None


def sign_of_field() -> Output:
    """y = sign z of one field: the label is seen, |z| is not."""
    return Output(lambda label, size: label * size, observed={"label": (-1, 1)}, hidden={"size": POSITIVE})


def noisy_field() -> Output:
    """y = z + noise of variance Delta, a parameter of the model."""
    return Output(
        lambda z: z,
        observed={"y": REAL},
        hidden={"z": REAL},
        log_likelihood=lambda y, z, Delta: -((y - z) ** 2) / (2 * Delta) - sp.log(2 * sp.pi * Delta) / 2,
        needs=lambda Delta: Delta,
    )


def products_of_fields(structure: Structure, needs: Callable[..., Any] | None = None) -> Output | None:
    """What the matrix Y Y^T tells: everything but a common sign of the fields at t = 1, a rotation of them at t = 2.

    softmax(Y Y^T) tells as much but for t = 2 and two tokens (`attention_scores`): its rows give products with
    differences, y_l (y_l - y_m), hence Y Y^T up to a constant, of which one alone leaves a matrix of rank t.
    """
    if structure.tokens < 2:
        return None
    return {1: known_up_to_sign, 2: known_up_to_rotation}.get(structure.teacher_rank, _unknown)(structure, needs)


def attention_scores(structure: Structure, needs: Callable[..., Any] | None = None) -> Output | None:
    """What softmax(Y Y^T) tells: Y Y^T, but for two tokens and t = 2.

    There it is y_1 d and y_2 d, d = y_1 - y_2: the length of d and the sum's part along d, neither the direction of d
    nor the sum's part across it.
    """
    if structure.teacher_rank != 2 or structure.tokens != 2:
        return products_of_fields(structure, needs)

    def fields(length: sp.Symbol, along: sp.Symbol, across: sp.Symbol, angle: sp.Symbol) -> sp.Matrix:
        unit, normal = _turned(angle)
        total, difference = along * unit + across * normal, length * unit
        return sp.Matrix.vstack(total + difference, total - difference) / 2

    def read(Y: sp.Matrix) -> list[sp.Expr]:
        total, difference = Y[0, :] + Y[1, :], Y[0, :] - Y[1, :]
        length = sp.sqrt(difference.dot(difference))
        return [length, total.dot(difference) / length]

    observed, hidden = {"length": POSITIVE, "along": REAL}, {"across": REAL, "angle": ANGLE}
    return Output(fields, observed, hidden, needs=needs, read=read)


def _unknown(structure: Structure, needs: Callable[..., Any] | None) -> None:
    """Of more columns no coordinates are written down."""


def known_up_to_sign(structure: Structure, needs: Callable[..., Any] | None = None) -> Output:
    """Everything but a common sign of the fields of one column."""
    names = [f"y{l + 1}" for l in range(structure.tokens)]

    def fields(sign: sp.Symbol, **y: sp.Symbol) -> list[list[sp.Expr]]:
        return [[sign * y[name]] for name in names]

    observed = {name: POSITIVE if l == 0 else REAL for l, name in enumerate(names)}
    return Output(fields, observed, hidden={"sign": (-1, 1)}, needs=needs)


def known_up_to_rotation(structure: Structure, needs: Callable[..., Any] | None = None) -> Output:
    """Everything but a common rotation of the fields of two columns: the length of the first token's, and of every
    other token's the parts along and across it."""
    others = range(2, structure.tokens + 1)

    def fields(length: sp.Symbol, angle: sp.Symbol, side: sp.Symbol, **parts: sp.Symbol) -> sp.Matrix:
        unit, normal = _turned(angle)
        rows = [parts[f"along{l}"] * unit + side * parts[f"across{l}"] * normal for l in others]
        return sp.Matrix.vstack(length * unit, *rows)

    def read(Y: sp.Matrix) -> list[sp.Expr]:
        first = Y[0, :]
        length = sp.sqrt(first.dot(first))
        along = [Y[l - 1, :].dot(first) / length for l in others]
        across = [(first[0] * Y[l - 1, 1] - first[1] * Y[l - 1, 0]) / length for l in others]
        # The second token is on the positive side.
        across = [sp.sqrt(across[0] ** 2), *(part * sp.sign(across[0]) for part in across[1:])]
        return [length, *(part for pair in zip(along, across, strict=True) for part in pair)]

    observed: dict[str, Any] = {"length": POSITIVE}
    for l in others:
        observed |= {f"along{l}": REAL, f"across{l}": POSITIVE if l == 2 else REAL}
    return Output(fields, observed, hidden={"angle": ANGLE, "side": (-1, 1)}, needs=needs, read=read)


def _turned(angle: sp.Symbol) -> tuple[sp.Matrix, sp.Matrix]:
    """A direction and the one across it, 1 x 2."""
    return sp.Matrix([[sp.cos(angle), sp.sin(angle)]]), sp.Matrix([[-sp.sin(angle), sp.cos(angle)]])


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of the channel: its symbol, and its values if discrete (else None and its kind)."""

    name: str
    symbol: sp.Symbol
    kind: str
    values: tuple[sp.Expr, ...] = ()

    @property
    def continuous(self) -> bool:
        """Whether it runs over R or the positive numbers, hence is summed out by an integral."""
        return self.kind != "discrete"


@dataclass(frozen=True)
class OutputAt:
    """An output channel at one structure.

    Attributes:
        fields: Psi, L x t.
        jacobian: log |det dPsi| of the continuous coordinates in Psi.
        log_likelihood: log P(observed | Y).
        needs: expression in parameters that must be positive.
        written: as its author wrote it.
        read: what is observed as functions of the fields, whose symbols are `fields_read`; empty where it is not told.
    """

    observed: tuple[Coordinate, ...]
    hidden: tuple[Coordinate, ...]
    fields: sp.Matrix
    jacobian: sp.Expr
    log_likelihood: sp.Expr
    needs: sp.Expr
    written: Output
    read: tuple[sp.Expr, ...] = ()

    @property
    def free(self) -> tuple[int, ...]:
        """Of every hidden coordinate the field, counted token by token, that it is itself; -1 where it is none."""
        places = {field: place for place, field in enumerate(self.fields)}
        return tuple(places.get(c.symbol, -1) if c.continuous else -1 for c in self.hidden)

    @property
    def affine(self) -> bool:
        """Whether the observed coordinates follow from the fields by linear equations, the hidden ones being known."""
        seen = [c.symbol for c in self.observed]
        if self.log_likelihood != 0 or not all(c.continuous for c in self.observed):
            return False
        slopes = self.fields.reshape(len(self.fields), 1).jacobian(seen)
        return all(vanishes(sp.diff(entry, symbol)) for entry in slopes for symbol in seen)

    @property
    def identity(self) -> str:
        """What a digest must see of it."""
        parts = [(c.name, c.kind, repr(c.values)) for c in (*self.observed, *self.hidden)]
        told = (self.fields, self.jacobian, self.log_likelihood, self.needs, *self.read)
        return repr([parts, *map(sp.srepr, told)])


def coordinates(model: str, group: str, given: Mapping[str, Any]) -> tuple[Coordinate, ...]:
    """Symbols of the coordinates of a group.

    Raises:
        ModelError: a domain is none of those allowed.
    """
    made = []
    for name, domain in given.items():
        if isinstance(domain, str) and domain in DOMAINS:
            symbol = sp.Symbol(f"c_{name}", real=True, **DOMAINS[domain])
            made.append(Coordinate(name, symbol, domain))
        elif isinstance(domain, tuple | list) and len(domain) > 0:
            made.append(Coordinate(name, sp.Symbol(f"c_{name}", real=True), "discrete", exact(domain)))
        else:
            raise ModelError(
                f"model {model}: output: {group} coordinate {name!r} has domain {domain!r}; allowed are "
                f"{', '.join(map(repr, DOMAINS))} or a tuple of values"
            )
    return tuple(made)


def _squared_determinant(fields: sp.Matrix, coordinates: list[sp.Symbol]) -> sp.Expr:
    """Of the Jacobian, in lowest terms.

    Fields that are coordinates themselves leave the block of the others. Of that block everything that is no quotient
    of polynomials is one symbol: SymPy would look into it at every step.
    """
    free = [symbol for symbol in coordinates if symbol in list(fields)]
    bound = [entry for entry in fields if entry not in free]
    others = [symbol for symbol in coordinates if symbol not in free]
    if not others:
        return sp.Integer(1)
    block = sp.Matrix(bound).jacobian(others).replace(sp.DiracDelta, lambda *_: sp.Integer(0))  # where a sign is smooth
    opaque: dict[sp.Expr, sp.Symbol] = {}
    functions = block.atoms(sp.Function, sp.exp)
    for function in sorted(functions, key=lambda f: (-len(list(sp.preorder_traversal(f))), sp.srepr(f))):
        if block.has(function):
            block = block.xreplace({function: opaque.setdefault(function, sp.Dummy(f"f{len(opaque)}", positive=True))})
    quotients = DomainMatrix.from_Matrix(block).to_field()
    determinant = sp.factor(quotients.domain.to_sympy(quotients.det()))
    square = (determinant**2).xreplace({symbol: function for function, symbol in opaque.items()})
    return sp.trigsimp(square) if square.has(sp.cos, sp.sin) else square


def _change_of_coordinates(model: str, fields: sp.Matrix, every: tuple[Coordinate, ...]) -> tuple[sp.Matrix, sp.Expr]:
    """Return the fields and log |det dPsi|, by cases where discrete coordinates decide on more than signs of them.

    Raises:
        ModelError: Psi is no change of coordinates.
    """
    discrete = [c for c in every if not c.continuous]
    symbols = [c.symbol for c in discrete]
    cases = [dict(zip(symbols, choice, strict=True)) for choice in product(*[c.values for c in discrete])]
    found = []
    for case in cases:
        psi = fields.subs(case)
        inside = [c.symbol for c in every if c.continuous and psi.has(c.symbol)]
        if len(inside) != len(fields):
            where = ", ".join(f"{c.name} = {case[c.symbol]}" for c in discrete)
            raise ModelError(
                f"model {model}: output: the fields contain {len(inside)} continuous coordinates "
                f"({', '.join(symbol.name.removeprefix('c_') for symbol in inside) or 'none'})"
                f"{f' at {where}' if where else ''}, a change of coordinates needs {len(fields)}. Where something is "
                "observed in one case and hidden in the other, as of a rectifier, write a coordinate for each: see "
                "docs/bayes-optimal.md"
            )
        square = _squared_determinant(psi, inside)
        if square == 0:
            raise ModelError(
                f"model {model}: output: the Jacobian of the fields vanishes: two coordinates change the fields in the "
                "same way; leave one out"
            )
        found.append((inside, square))
    deciding = [
        c.symbol
        for c in discrete
        if any(
            one != other and all(a[s] == b[s] for s in a if s != c.symbol)
            for (a, one), (b, other) in combinations(zip(cases, found, strict=True), 2)
        )
    ]
    if not deciding:
        # Signs, which are discrete coordinates, drop out of it in the kernel.
        square = _squared_determinant(fields, [c.symbol for c in every if c.continuous and fields.has(c.symbol)])
        return fields, _half_log(square)
    parts: dict[sp.Basic, tuple[sp.Matrix, sp.Expr]] = {}
    for case, (_, square) in zip(cases, found, strict=True):
        at = {symbol: case[symbol] for symbol in deciding}
        parts.setdefault(sp.And(*[sp.Eq(symbol, value) for symbol, value in at.items()]), (fields.subs(at), square))
    *conditions, _ = parts

    def by_case(values: list[sp.Expr]) -> sp.Expr:
        return sp.Piecewise(*zip(values, [*conditions, True], strict=True))

    return (
        sp.Matrix(*fields.shape, [by_case([psi[i] for psi, _ in parts.values()]) for i in range(len(fields))]),
        by_case([_half_log(square) for _, square in parts.values()]),
    )


def _half_log(square: sp.Expr) -> sp.Expr:
    return sp.expand_log(sp.log(square)) / 2


def fields_read(structure: Structure) -> sp.Matrix:
    """Symbols y_l_a of the fields, L x t."""
    return sp.Matrix(structure.tokens, structure.teacher_rank, lambda l, a: sp.Symbol(f"y_{l}_{a}", real=True))


def _check_read(model: str, read: tuple[sp.Expr, ...], Y: sp.Matrix, psi: sp.Matrix, every: list[Coordinate]) -> None:
    """Whether the coordinates are read of the fields that are made of them.

    Raises:
        ModelError: they are not.
    """
    others = sorted(psi.free_symbols.union(*(e.free_symbols for e in read)) - set(Y), key=str)
    for probe in range(_PROBES):
        at = {s: sp.Rational(3 + 7 * i + 5 * probe, 11 + 4 * i) for i, s in enumerate(others)}
        at |= {c.symbol: c.values[probe % len(c.values)] for c in every if not c.continuous}
        made = dict(zip(Y, psi.subs(at), strict=True))
        for coordinate, expression in zip(every, read, strict=False):
            expected = sp.sympify(at.get(coordinate.symbol, coordinate.symbol))
            if not abs(sp.N(expression.subs(at).subs(made) - expected)) < 1e-9:
                raise ModelError(
                    f"model {model}: output: read returns another {coordinate.name!r} than the one given to fields"
                )


def output_at(
    model: str, output: Output, structure: Structure, call: Callable[..., Any], known: Callable[..., None]
) -> OutputAt:
    """The channel at a structure, checked.

    Args:
        call: calls a function of the model with fields and parameters by name.
        known: refuses symbols that are neither coordinates nor parameters.

    Raises:
        ModelError: Psi is no change of coordinates.
    """
    observed = coordinates(model, "observed", output.observed)
    hidden = coordinates(model, "hidden", output.hidden)
    every = (*observed, *hidden)
    if len({c.name for c in every}) != len(every) or not observed:
        raise ModelError(f"model {model}: output: one observed coordinate or more is expected, each named once")
    names = {c.name: c.symbol for c in every}
    value = call("output", output.fields, **names)
    tokens, teachers = structure.tokens, structure.teacher_rank
    fields = sp.Matrix(value) if isinstance(value, sp.MatrixBase | list | tuple) else sp.Matrix([[value]])
    fields = exact(fields)
    if fields.shape != (tokens, teachers):
        raise ModelError(f"model {model}: output: fields has shape {fields.shape}; {(tokens, teachers)} is expected")
    fields, jacobian = _change_of_coordinates(model, fields, every)
    likelihood = sp.Integer(0)
    if output.log_likelihood is not None:
        likelihood = exact(call("output", output.log_likelihood, **names))
    lonely = [c for c in observed if c.continuous and not fields.has(c.symbol) and not likelihood.has(c.symbol)]
    if lonely:
        raise ModelError(
            f"model {model}: output: nothing depends on the observed coordinate {lonely[0].name!r}; leave it out"
        )
    for expression in (*fields, likelihood):
        known(expression.free_symbols, "output", fields=set(names.values()))
    read: tuple[sp.Expr, ...] = ()
    if output.read is not None:
        Y = fields_read(structure)
        read = tuple(exact(sp.Matrix(list(call("output", output.read, Y=Y)))))
        if len(read) != len(observed):
            raise ModelError(f"model {model}: output: read returns {len(read)} values; {len(observed)} are expected")
        for expression in read:
            known(expression.free_symbols, "output", fields=set(Y))
        _check_read(model, read, Y, fields, list(every))
    needs = sp.Integer(1) if output.needs is None else exact(call("output", output.needs))
    known(needs.free_symbols, "output", fields=set())
    return OutputAt(observed, hidden, fields, jacobian, likelihood, needs, output, read)
