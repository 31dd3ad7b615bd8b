"""Output channels: the observed part of the teacher's fields, by a change of coordinates Y = Psi(observed, hidden).

The posterior of the fields Y of a sample given the observed coordinates needs sums over the hidden ones, never a delta
function: for y = |z| one observes y > 0, the sign stays hidden, and z = sign y. With the Gaussian law of Y around a
cavity field omega,

    Z_out(observed; omega, V) = sum over hidden of  N(Psi; omega, V) |det dPsi| P(observed | Y),

sums over discrete coordinates, integrals over the others. The determinant is that of the continuous coordinates in
which Psi is written; observed coordinates that Psi does not depend on have a density P(observed | Y) of their own.

Psi may depend on different coordinates at different values of the discrete ones; a coordinate that it does not depend
on does not exist there: of y = max(0, z) one observes whether z > 0, and y where it is; else |z| stays hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

import sympy as sp
from sympy.polys.matrices import DomainMatrix

from ..calculus.numeric import is_identically_zero
from ..errors import ModelError
from .language import to_exact_rationals
from .parameters import Structure

REAL, POSITIVE, ANGLE = "real", "positive", "angle"
DOMAINS = {REAL: {}, POSITIVE: {"positive": True}, ANGLE: {}}  # and SymPy's assumptions in addition to `real`


@dataclass(frozen=True)
class Output:
    """An output channel as its author writes it: the learner's observation of the teacher's fields.

    Args:
        fields: function of the coordinates by name that returns Y: L x t, or a number where both are 1.
        observed, hidden: name -> "real", "positive", "angle" (in radians, once around), or a tuple of the values that a
            discrete coordinate takes. A continuous one does not exist at values of the discrete ones at which neither
            fields nor log_likelihood depend on it.
        log_likelihood: function of the coordinates by name that returns log P(observed | Y); None for 0.
        needs: function of parameters that must be positive for the channel to be valid, as Delta for noise of variance
            Delta; None if it always is.
        read: function of Y, L x t, that returns the observed coordinates in the order of `observed`. It lets averages
            be sampled from the teacher's fields where the observed coordinates are no linear functions of Y.

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


def sign_output_channel() -> Output:
    """Return the output channel y = sign z of one teacher field z: the sign is observed, |z| is hidden."""
    return Output(lambda label, size: label * size, observed={"label": (-1, 1)}, hidden={"size": POSITIVE})


def noisy_output_channel() -> Output:
    """Return the output channel y = z + Gaussian noise, whose variance Delta is a parameter of the model."""
    return Output(
        lambda z: z,
        observed={"y": REAL},
        hidden={"z": REAL},
        log_likelihood=lambda y, z, Delta: -((y - z) ** 2) / (2 * Delta) - sp.log(2 * sp.pi * Delta) / 2,
        needs=lambda Delta: Delta,
    )


def field_products_output_channel(structure: Structure, needs: Callable[..., Any] | None = None) -> Output | None:
    """Return the channel that observes Y Y^T, the fields up to a common sign (t = 1) or a common rotation (t = 2).

    softmax(Y Y^T) gives the same information as Y Y^T, except for t = 2 and two tokens: see
    `attention_output_channel`.

    Args:
        structure: sizes of the model.
        needs: function of parameters that must be positive for the channel to be valid, or None.

    Returns:
        The channel; None for one token or for t > 2, which are not implemented.
    """
    if structure.tokens < 2:
        return None
    return {1: output_channel_up_to_sign, 2: output_channel_up_to_rotation}.get(
        structure.teacher_rank, _no_output_channel
    )(structure, needs)


def attention_output_channel(structure: Structure, needs: Callable[..., Any] | None = None) -> Output | None:
    """Return the channel that observes softmax(Y Y^T), where Y are the teacher's fields.

    It is the channel of Y Y^T, except for two tokens and t = 2: then the length of y_1 - y_2 and the component of
    y_1 + y_2 along it are observed, where y_l is the field of token l; direction and other component are hidden.

    Args:
        structure: sizes of the model.
        needs: function of parameters that must be positive for the channel to be valid, or None.
    """
    if structure.teacher_rank != 2 or structure.tokens != 2:
        return field_products_output_channel(structure, needs)

    def _fields_from_coordinates(length: sp.Symbol, along: sp.Symbol, across: sp.Symbol, angle: sp.Symbol) -> sp.Matrix:
        unit, normal = _rotated_orthonormal_vectors(angle)
        total, difference = along * unit + across * normal, length * unit
        return sp.Matrix.vstack(total + difference, total - difference) / 2

    def observed_coordinates_of_fields(Y: sp.Matrix) -> list[sp.Expr]:
        total, difference = Y[0, :] + Y[1, :], Y[0, :] - Y[1, :]
        length = sp.sqrt(difference.dot(difference))
        return [length, total.dot(difference) / length]

    observed, hidden = {"length": POSITIVE, "along": REAL}, {"across": REAL, "angle": ANGLE}
    return Output(_fields_from_coordinates, observed, hidden, needs=needs, read=observed_coordinates_of_fields)


def _no_output_channel(structure: Structure, needs: Callable[..., Any] | None) -> None:
    """Return None, since no output channel is implemented for more than two columns of the teacher."""


def output_channel_up_to_sign(structure: Structure, needs: Callable[..., Any] | None = None) -> Output:
    """Return the channel that observes the teacher's fields of all tokens up to a common sign, for t = 1.

    Args:
        structure: sizes of the model, with teacher_rank 1.
        needs: function of parameters that must be positive for the channel to be valid, or None.
    """
    names = [f"y{l + 1}" for l in range(structure.tokens)]

    def _fields_from_coordinates(sign: sp.Symbol, **y: sp.Symbol) -> list[list[sp.Expr]]:
        return [[sign * y[name]] for name in names]

    observed = {name: POSITIVE if l == 0 else REAL for l, name in enumerate(names)}
    return Output(_fields_from_coordinates, observed, hidden={"sign": (-1, 1)}, needs=needs)


def output_channel_up_to_rotation(structure: Structure, needs: Callable[..., Any] | None = None) -> Output:
    """Return the channel that observes the teacher's fields of all tokens up to a common rotation, for t = 2.

    Observed are the length of the first token's field, and the components of all others along and across it.

    Args:
        structure: sizes of the model, with teacher_rank 2.
        needs: function of parameters that must be positive for the channel to be valid, or None.
    """
    others = range(2, structure.tokens + 1)

    def _fields_from_coordinates(length: sp.Symbol, angle: sp.Symbol, side: sp.Symbol, **parts: sp.Symbol) -> sp.Matrix:
        unit, normal = _rotated_orthonormal_vectors(angle)
        rows = [parts[f"along{l}"] * unit + side * parts[f"across{l}"] * normal for l in others]
        return sp.Matrix.vstack(length * unit, *rows)

    def observed_coordinates_of_fields(Y: sp.Matrix) -> list[sp.Expr]:
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
    return Output(
        _fields_from_coordinates,
        observed,
        hidden={"angle": ANGLE, "side": (-1, 1)},
        needs=needs,
        read=observed_coordinates_of_fields,
    )


def _rotated_orthonormal_vectors(angle: sp.Symbol) -> tuple[sp.Matrix, sp.Matrix]:
    """Return the unit vector (cos, sin) of an angle and the unit vector orthogonal to it, each 1 x 2."""
    return sp.Matrix([[sp.cos(angle), sp.sin(angle)]]), sp.Matrix([[-sp.sin(angle), sp.cos(angle)]])


@dataclass(frozen=True)
class ChannelCoordinate:
    """A coordinate of an output channel: name, symbol, kind ("real", "discrete", ...), and values if discrete."""

    name: str
    symbol: sp.Symbol
    kind: str
    values: tuple[sp.Expr, ...] = ()

    @property
    def is_continuous(self) -> bool:
        """Return whether the coordinate is continuous, so that it is integrated over and not summed over."""
        return self.kind != "discrete"


@dataclass(frozen=True)
class FixedSizeOutput:
    """An output channel at fixed structural sizes.

    Attributes:
        observed, hidden: the coordinates of the channel.
        fields: the teacher's fields Y as functions of the coordinates, L x t.
        jacobian: log of the absolute Jacobian determinant of the fields in the continuous coordinates.
        log_likelihood: log P(observed | Y).
        needs: expression in parameters that must be positive for the channel to be valid.
        written: the channel as its author wrote it.
        read: the observed coordinates as functions of Y (`teacher_field_symbols`); empty if not known.
    """

    observed: tuple[ChannelCoordinate, ...]
    hidden: tuple[ChannelCoordinate, ...]
    fields: sp.Matrix
    jacobian: sp.Expr
    log_likelihood: sp.Expr
    needs: sp.Expr
    written: Output
    read: tuple[sp.Expr, ...] = ()

    @property
    def field_indices_of_hidden_coordinates(self) -> tuple[int, ...]:
        """Return the index (row by row) of the teacher field that each hidden coordinate equals; -1 if none."""
        places = {field: place for place, field in enumerate(self.fields)}
        return tuple(places.get(c.symbol, -1) if c.is_continuous else -1 for c in self.hidden)

    @property
    def has_affine_observations(self) -> bool:
        """Return whether all observed coordinates are continuous and the fields are affine functions of them."""
        seen = [c.symbol for c in self.observed]
        if self.log_likelihood != 0 or not all(c.is_continuous for c in self.observed):
            return False
        slopes = self.fields.reshape(len(self.fields), 1).jacobian(seen)
        return all(is_identically_zero(sp.diff(entry, symbol)) for entry in slopes for symbol in seen)

    @property
    def text_for_digest(self) -> str:
        """Return a text of the channel's definition, to be hashed by digests."""
        parts = [(c.name, c.kind, repr(c.values)) for c in (*self.observed, *self.hidden)]
        definitions = (self.fields, self.jacobian, self.log_likelihood, self.needs, *self.read)
        return repr([parts, *map(sp.srepr, definitions)])


def build_channel_coordinates(model: str, group: str, given: Mapping[str, Any]) -> tuple[ChannelCoordinate, ...]:
    """Return the observed or the hidden coordinates of an output channel, with their symbols.

    Args:
        model: name of the model, for messages.
        group: "observed" or "hidden", for messages.
        given: name of a coordinate -> "real", "positive", "angle" or a tuple of values.

    Raises:
        ModelError: a domain is none of these.
    """
    made = []
    for name, domain in given.items():
        if isinstance(domain, str) and domain in DOMAINS:
            symbol = sp.Symbol(f"c_{name}", real=True, **DOMAINS[domain])
            made.append(ChannelCoordinate(name, symbol, domain))
        elif isinstance(domain, tuple | list) and len(domain) > 0:
            made.append(
                ChannelCoordinate(name, sp.Symbol(f"c_{name}", real=True), "discrete", to_exact_rationals(domain))
            )
        else:
            raise ModelError(
                f"model {model}: output: {group} coordinate {name!r} has domain {domain!r}; allowed are "
                f"{', '.join(map(repr, DOMAINS))} or a tuple of values"
            )
    return tuple(made)


def _squared_jacobian_determinant(fields: sp.Matrix, coordinates: list[sp.Symbol]) -> sp.Expr:
    """Return the squared determinant of the Jacobian of the fields, in lowest terms.

    Rows and columns of fields that are themselves coordinates are left out. For speed, functions other than
    quotients of polynomials are replaced by symbols while the determinant is computed.
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


def _fields_and_log_jacobian(
    model: str, fields: sp.Matrix, every: tuple[ChannelCoordinate, ...]
) -> tuple[sp.Matrix, sp.Expr]:
    """Return the teacher's fields and the log of their absolute Jacobian determinant, as functions of coordinates.

    Both are piecewise in discrete coordinates that change more than the signs of fields.

    Raises:
        ModelError: the fields are not a change of coordinates.
    """
    discrete = [c for c in every if not c.is_continuous]
    symbols = [c.symbol for c in discrete]
    cases = [dict(zip(symbols, choice, strict=True)) for choice in product(*[c.values for c in discrete])]
    found = []
    for case in cases:
        psi = fields.subs(case)
        inside = [c.symbol for c in every if c.is_continuous and psi.has(c.symbol)]
        if len(inside) != len(fields):
            where = ", ".join(f"{c.name} = {case[c.symbol]}" for c in discrete)
            coordinate_names = ", ".join(symbol.name.removeprefix("c_") for symbol in inside) or "none"
            raise ModelError(
                f"model {model}: output: the fields contain {len(inside)} continuous coordinates ({coordinate_names})"
                f"{f' at {where}' if where else ''}; {len(fields)} are needed, one for each field. If a quantity is "
                "observed in one case and hidden in another, as for a rectifier, declare a coordinate for each: see "
                "docs/bayes-optimal.md"
            )
        square = _squared_jacobian_determinant(psi, inside)
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
        square = _squared_jacobian_determinant(
            fields, [c.symbol for c in every if c.is_continuous and fields.has(c.symbol)]
        )
        return fields, _half_logarithm(square)
    parts: dict[sp.Basic, tuple[sp.Matrix, sp.Expr]] = {}
    for case, (_, square) in zip(cases, found, strict=True):
        at = {symbol: case[symbol] for symbol in deciding}
        parts.setdefault(sp.And(*[sp.Eq(symbol, value) for symbol, value in at.items()]), (fields.subs(at), square))
    *conditions, _ = parts

    def piecewise_in_discrete_coordinates(values: list[sp.Expr]) -> sp.Expr:
        return sp.Piecewise(*zip(values, [*conditions, True], strict=True))

    return (
        sp.Matrix(
            *fields.shape,
            [piecewise_in_discrete_coordinates([psi[i] for psi, _ in parts.values()]) for i in range(len(fields))],
        ),
        piecewise_in_discrete_coordinates([_half_logarithm(square) for _, square in parts.values()]),
    )


def _half_logarithm(square: sp.Expr) -> sp.Expr:
    """Return log(square) / 2 for the square of a determinant, with logarithms of products expanded."""
    return sp.expand_log(sp.log(square)) / 2


def teacher_field_symbols(structure: Structure) -> sp.Matrix:
    """Return the L x t matrix of the symbols y_l_a of the teacher's fields."""
    return sp.Matrix(structure.tokens, structure.teacher_rank, lambda l, a: sp.Symbol(f"y_{l}_{a}", real=True))


def _check_recovered_coordinates(
    model: str, read: tuple[sp.Expr, ...], Y: sp.Matrix, psi: sp.Matrix, every: list[ChannelCoordinate], points: int = 3
) -> None:
    """Raise ModelError if the author's function `read` does not give back the observed coordinates of the fields."""
    others = sorted(psi.free_symbols.union(*(e.free_symbols for e in read)) - set(Y), key=str)
    for probe in range(points):
        at = {s: sp.Rational(3 + 7 * i + 5 * probe, 11 + 4 * i) for i, s in enumerate(others)}
        at |= {c.symbol: c.values[probe % len(c.values)] for c in every if not c.is_continuous}
        made = dict(zip(Y, psi.subs(at), strict=True))
        for coordinate, expression in zip(every, read, strict=False):
            expected = sp.sympify(at.get(coordinate.symbol, coordinate.symbol))
            if not abs(sp.N(expression.subs(at).subs(made) - expected)) < 1e-9:
                raise ModelError(
                    f"model {model}: output: read(fields(...)) does not return the coordinate {coordinate.name!r}: "
                    "correct one of them"
                )


def build_output_channel(
    model: str, output: Output, structure: Structure, call: Callable[..., Any], known: Callable[..., None]
) -> FixedSizeOutput:
    """Return an author's output channel at fixed structural sizes, after checks.

    Args:
        model: name of the model, for messages.
        output: the channel as its author wrote it.
        structure: sizes of the model.
        call: function that calls an author's function with coordinates and parameters by name.
        known: function that raises ModelError for symbols that are neither coordinates nor parameters.

    Raises:
        ModelError: the fields are not a change of coordinates, have a wrong shape or unknown symbols, or the
            author's function `read` does not give back the observed coordinates.
    """
    observed = build_channel_coordinates(model, "observed", output.observed)
    hidden = build_channel_coordinates(model, "hidden", output.hidden)
    every = (*observed, *hidden)
    if len({c.name for c in every}) != len(every) or not observed:
        raise ModelError(
            f"model {model}: output must declare at least one observed coordinate, and every coordinate under a name "
            "of its own"
        )
    names = {c.name: c.symbol for c in every}
    value = call("output", output.fields, **names)
    tokens, teachers = structure.tokens, structure.teacher_rank
    fields = sp.Matrix(value) if isinstance(value, sp.MatrixBase | list | tuple) else sp.Matrix([[value]])
    fields = to_exact_rationals(fields)
    if fields.shape != (tokens, teachers):
        raise ModelError(
            f"model {model}: output: the function fields returns shape {fields.shape}; (tokens, columns of the "
            f"teacher) = {(tokens, teachers)} is expected"
        )
    fields, jacobian = _fields_and_log_jacobian(model, fields, every)
    likelihood = sp.Integer(0)
    if output.log_likelihood is not None:
        likelihood = to_exact_rationals(call("output", output.log_likelihood, **names))
    unused = [c for c in observed if c.is_continuous and not fields.has(c.symbol) and not likelihood.has(c.symbol)]

    if unused:
        raise ModelError(
            f"model {model}: output: nothing depends on the observed coordinate {unused[0].name!r}; leave it out"
        )
    for expression in (*fields, likelihood):
        known(expression.free_symbols, "output", fields=set(names.values()))
    read: tuple[sp.Expr, ...] = ()
    if output.read is not None:
        Y = teacher_field_symbols(structure)
        read = tuple(to_exact_rationals(sp.Matrix(list(call("output", output.read, Y=Y)))))
        if len(read) != len(observed):
            raise ModelError(
                f"model {model}: output: read returns {len(read)} values; one for each of the {len(observed)} observed "
                "coordinates is expected"
            )
        for expression in read:
            known(expression.free_symbols, "output", fields=set(Y))
        _check_recovered_coordinates(model, read, Y, fields, list(every))
    needs = sp.Integer(1) if output.needs is None else to_exact_rationals(call("output", output.needs))
    known(needs.free_symbols, "output", fields=set())
    return FixedSizeOutput(observed, hidden, fields, jacobian, likelihood, needs, output, read)
