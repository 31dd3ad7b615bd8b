"""The ansatz as a value: which overlaps replicas have, level by level of blocks, and which fields they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import CHANNEL, Average, Jacobian, MatrixAverage, Symbols
from .objects import FIELD, n, replicated

# The average over omega around omega_0, which the replicas of a block share; that over b_0, b around it being of FIELD.
BLOCK, OUTER_FIELD = "sentences of a block", "outer field"
# The same averages with the weight that the replicas of a block add, written < . >: of omega and of b.
TILTED, ROW_TILTED = "tilted", "row tilted"
# Kinds of averages over what blocks share, from the largest blocks inwards, by how often replica symmetry is broken: of
# sentences, of rows, and both with the weight of the replicas.
_BLOCKS = (), (BLOCK,), ("sentences of a block of blocks", BLOCK)
_ROWS = (), (FIELD,), ("field between", FIELD)
_TILTED = (), (TILTED,), ("outer tilted", TILTED)
_ROWS_TILTED = (), (ROW_TILTED,), ("outer row tilted", ROW_TILTED)
# How many replicas a block holds, and the Parisi parameter: this number times the inverse temperature.
block = sp.Symbol("replicas_of_block", positive=True)
parisi = sp.Symbol("parisi_parameter", positive=True)
_SIZES = (), (block,), sp.symbols("replicas_of_block_1 replicas_of_block_2", positive=True)
_RATES = (), (parisi,), sp.symbols("parisi_parameter_1 parisi_parameter_2", positive=True)
# (replicas, replicas in a block, in a block of these) at which matrices are written out.
_NUMBERS = ((1,), (2,), (3,), (4,)), ((2, 2), (4, 2), (6, 2), (6, 3)), ((4, 4, 2), (8, 4, 2))
ALL_RATES = frozenset(rate for rates in _RATES for rate in rates)
_STEMS = "Delta", "Delta{}_hat", "Q_Delta", "V_tilde", "V_tilde{}_hat", "R_tilde"  # of each step


@dataclass(frozen=True)
class Broken(Symbols):
    """Symbols with steps of breaking: q is the overlap of replicas in different blocks, q + Delta that within one.

    Shapes: Delta, Delta_hat, Q_Delta (sum of gamma Delta^), V_tilde = V + y Delta and V_tilde_hat = V^ - y Delta^,
    R_tilde s x s (symmetric); omega_0, b_0 s x 1, the fields that all replicas share (docs/theory.md (18.3), (18.7)).
    Of two steps Delta_1, Delta_2 and so on, from the larger blocks inwards, and omega_1, b_1, which those of a larger
    block share; V_tilde_1 = V_tilde_2 + y_1 Delta_1 (docs/theory.md (18.25), (18.26)).

    Args:
        steps: how often replica symmetry is broken, 0, 1 or 2.
    """

    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for stem in _STEMS:
            for name in self._names(stem):
                object.__setattr__(self, name, sp.MatrixSymbol(name, self.s, self.s))
        for name in (f"{stem}_{k}" for stem in ("omega", "b") for k in range(self.steps)):
            object.__setattr__(self, name, sp.MatrixSymbol(name, self.s, 1))

    def _names(self, stem: str) -> list[str]:
        """Of what there is one of a step."""
        ends = [""] if self.steps == 1 else [f"_{k + 1}" for k in range(self.steps)]
        return [stem.format(end) if "{}" in stem else stem + end for end in ends]

    def of_steps(self, stem: str) -> tuple[sp.MatrixSymbol, ...]:
        """One a step, from the largest blocks inwards: of "Delta", "Delta{}_hat", "Q_Delta", "V_tilde", ..."""
        return tuple(getattr(self, name) for name in self._names(stem))

    @property
    def sizes(self) -> tuple[sp.Symbol, ...]:
        """How many replicas a block of every step holds."""
        return _SIZES[self.steps]

    @property
    def rates(self) -> tuple[sp.Symbol, ...]:
        """Parisi parameters."""
        return _RATES[self.steps]

    @property
    def fields(self) -> tuple[sp.MatrixSymbol, ...]:
        """Of a token, from omega_0 to omega."""
        return (*(getattr(self, f"omega_{k}") for k in range(self.steps)), self.omega)

    @property
    def row_fields(self) -> tuple[sp.MatrixSymbol, ...]:
        """Of a row, from b_0 to b."""
        return (*(getattr(self, f"b_{k}") for k in range(self.steps)), self.b)

    @property
    def symmetric(self) -> tuple[sp.MatrixSymbol, ...]:
        """As of `Symbols`."""
        return (*super().symmetric, *(z for stem in _STEMS for z in self.of_steps(stem)))

    @property
    def conjugates(self) -> tuple[sp.MatrixSymbol, ...]:
        """As of `Symbols`, those of Delta the last."""
        return (*super().conjugates, *self.of_steps("Delta{}_hat"))

    @property
    def composites(self) -> dict[sp.MatrixSymbol, MatrixExpr]:
        """As of `Symbols`, and Q_Delta = sum gamma Delta^."""
        own = zip(self.of_steps("Q_Delta"), self.of_steps("Delta{}_hat"), strict=True)
        return {**super().composites, **{Q: self.gamma * hat for Q, hat in own}}

    def variances(self) -> dict[sp.MatrixSymbol, MatrixExpr]:
        """V_tilde = V + y Delta and V_tilde_hat = V^ - y Delta^ of every step, summed over it and those within."""
        found: dict[sp.MatrixSymbol, MatrixExpr] = {}
        for end, V, sign in (("", self.V, 1), ("{}_hat", self.V_hat, -1)):
            for tilde, Delta, rate in reversed(
                [*zip(self.of_steps(f"V_tilde{end}"), self.of_steps(f"Delta{end}"), self.rates, strict=True)]
            ):
                V = V + sign * rate * Delta
                found[tilde] = V
        return found

    def resolvents(self) -> dict[MatrixExpr, sp.MatrixSymbol]:
        """Those of the ridge, by their names."""
        stiffness: MatrixExpr = self.Lambda + self.G
        found = {stiffness.inv(): self.R}
        for R, Q, rate in reversed([*zip(self.of_steps("R_tilde"), self.of_steps("Q_Delta"), self.rates, strict=True)]):
            stiffness = stiffness - rate * Q
            found[stiffness.inv()] = R
        return found


@dataclass(frozen=True)
class Level:
    """Replicas that share a field, which gives each two of them an overlap.

    Attributes:
        size: how many replicas a block of this level holds.
        overlap, conjugate: what two of them have in common beyond the levels outside, and its conjugate.
        composite: covariance of the row's field of this level; field, row_field: fields of a token and of a row.
        channel, rows: kinds of the averages over the two.
    """

    size: sp.Expr
    overlap: sp.MatrixSymbol
    conjugate: sp.MatrixSymbol
    composite: sp.MatrixSymbol
    field: sp.MatrixSymbol
    row_field: sp.MatrixSymbol
    channel: str
    rows: str


@dataclass(frozen=True)
class Pairs:
    """Ordered pairs of different replicas that have one overlap: how many, the overlap and its conjugate."""

    number: sp.Expr
    overlap: MatrixExpr
    conjugate: MatrixExpr

    def values(self, p: Symbols) -> dict[Any, Any]:
        """What the symbols of a pair are there."""
        return {replicated(p.q, "ab"): self.overlap, replicated(p.q_hat, "ab"): self.conjugate}


@dataclass(frozen=True)
class Ansatz:
    """Blocks in blocks (docs/theory.md (3.7), (18.1), (18.2)).

    Attributes:
        levels: from the one of all replicas inwards.
        numbers: how many replicas each holds where matrices are written out.
    """

    symbols: Broken
    levels: tuple[Level, ...]
    numbers: tuple[tuple[int, ...], ...]

    @property
    def steps(self) -> int:
        """How often replica symmetry is broken."""
        return self.symbols.steps

    def holding(self, numbers: Sequence[Any]) -> dict[str, Any]:
        """The sizes of levels as values by name, those of all replicas among them where as many are given."""
        sizes = [level.size for level in self.levels][len(self.levels) - len(numbers) :]
        return {size.name: sp.sympify(number) for size, number in zip(sizes, numbers, strict=True)}

    @property
    def single(self) -> dict[Any, Any]:
        """The order parameters of one replica; V is what its overlap with itself exceeds the largest other by."""
        p, r = self.symbols, sp.MatrixSymbol("r", self.symbols.s, self.symbols.s)
        r_hat = sp.MatrixSymbol("r_hat", *r.shape)
        return {
            replicated(r, "a"): sp.MatAdd(p.V, *[level.overlap for level in self.levels]),
            replicated(r_hat, "a"): sp.MatAdd(p.V_hat, *[-1 * level.conjugate for level in self.levels]),
            **{replicated(z, "a"): z for z in (p.m, p.theta, p.m_hat, p.theta_hat, p.phi)},
        }

    @property
    def pairs(self) -> tuple[Pairs, ...]:
        """From those in different blocks inwards."""
        found: list[Pairs] = []
        overlap, conjugate = sp.ZeroMatrix(*self.symbols.q.shape), sp.ZeroMatrix(*self.symbols.q.shape)
        sizes = [*[level.size for level in self.levels], sp.Integer(1)]
        for level, (size, inner) in zip(self.levels, pairwise(sizes), strict=True):
            overlap, conjugate = (overlap + level.overlap).doit(), (conjugate + level.conjugate).doit()
            found.append(Pairs(n * (size - inner), overlap, conjugate))
        return tuple(found)

    def power(self, integral: sp.Expr, rows: bool = False) -> sp.Expr:
        """log E of the n-th power, each block averaged over its own field (docs/theory.md (18.4))."""
        size: sp.Expr = sp.Integer(1)
        for level in reversed(self.levels):
            kind = level.rows if rows else level.channel
            integral, size = sp.log(Average(kind, sp.exp(level.size / size * integral))), level.size
        return integral


def replica_symmetric(p: Symbols) -> Ansatz:
    """All replicas are alike: one level."""
    return in_blocks(Broken(p.s, p.t, p.trained, p.loss_holds_q, steps=0))


def in_blocks(p: Broken) -> Ansatz:
    """Replicas in blocks, of two steps in blocks of blocks: a level more than steps."""
    whole = Level(n, p.q, p.q_hat, p.Q, p.fields[0], p.row_fields[0], CHANNEL, OUTER_FIELD if p.steps else FIELD)
    stems = "Delta", "Delta{}_hat", "Q_Delta"
    known = p.sizes, *map(p.of_steps, stems), p.fields[1:], p.row_fields[1:], _BLOCKS[p.steps], _ROWS[p.steps]
    return Ansatz(p, (whole, *(Level(*each) for each in zip(*known, strict=True))), _NUMBERS[p.steps])


@dataclass(frozen=True)
class Tilt:
    """(1/y) log E exp(y h(z)) over a normal z around z_0, of covariance C (docs/theory.md (18.11), (18.12)).

    Of two steps with such a function in place of h, z around z_1 around z_0.

    Attributes:
        kinds: of the averages < . > with weight exp(y h), from z_0 inwards; rates: their y.
        fields: z_0, ..., z (s x 1); slope: dh/dz at z (s x 1).
    """

    kinds: tuple[str, ...]
    rates: tuple[sp.Symbol, ...]
    fields: tuple[sp.MatrixSymbol, ...]
    slope: sp.MatrixSymbol

    def mean(self, value: Any, levels: slice = slice(None)) -> Any:
        """Return < value > of a matrix or a scalar: of all levels, or of some, counted from the outermost."""
        average = MatrixAverage if value.is_Matrix else Average
        for kind in reversed(self.kinds[levels]):
            value = average(kind, value)
        return value

    def slope_at(self, level: int) -> MatrixExpr:
        """The slope averaged over the levels within: d/dz_level of the logarithms so far."""
        return self.mean(self.slope, slice(level, None))

    def square_at(self, level: int) -> MatrixExpr:
        """slope slope^T there."""
        return self.slope_at(level) * self.slope_at(level).T

    def response_at(self, level: int) -> MatrixExpr:
        """dslope/dz there: smooth where the slope jumps, but for the innermost, which is a distribution."""
        return Jacobian(self.slope_at(level), self.fields[level])

    @property
    def first(self) -> MatrixExpr:
        """d/dz_0: the tilted slope."""
        return self.slope_at(0)

    def second(self, level: int) -> MatrixExpr:
        """d/dC of a level = 1/2 < dslope/dz + y slope slope^T > there: the heat equation of E exp(y h)."""
        outer = slice(level)
        response, square = self.mean(self.response_at(level), outer), self.mean(self.square_at(level), outer)
        return (response + self.rates[level - 1] * square) / 2

    @property
    def response(self) -> MatrixExpr:
        """d< slope >/dz_0, smooth where the slope jumps."""
        return self.response_at(0)

    @property
    def written_out(self) -> dict[MatrixExpr, MatrixExpr]:
        """The responses as < dslope/dz > + y Cov(slope), of the slope and of the weight, from z_0 inwards."""
        found = {}
        for level, (kind, rate) in enumerate(zip(self.kinds, self.rates, strict=True)):
            inner = MatrixAverage(kind, self.response_at(level + 1))
            spread = MatrixAverage(kind, self.square_at(level + 1)) - self.square_at(level)
            found[self.response_at(level)] = inner + rate * spread
        return found


def tilts(p: Broken) -> tuple[Tilt, Tilt]:
    """Of a sentence (h = -M, its slope g) and of a row (h = N, its slope w)."""
    return Tilt(_TILTED[p.steps], p.rates, p.fields, p.g), Tilt(_ROWS_TILTED[p.steps], p.rates, p.row_fields, p.w)


def weights(p: Broken) -> tuple[dict[str, sp.Expr], dict[str, sp.Expr]]:
    """The exponent of each kind of tilted average, y f of what lies within: of a sentence and of a row."""
    found = []
    for extremum, tilted, plain in (
        (-p.moreau, _TILTED[p.steps], _BLOCKS[p.steps]),
        (p.envelope, _ROWS_TILTED[p.steps], _ROWS[p.steps]),
    ):
        exponents: dict[str, sp.Expr] = {}
        inner: sp.Expr = extremum
        for kind, average, rate in reversed([*zip(tilted, plain, p.rates, strict=True)]):
            exponents[kind] = rate * inner
            inner = sp.log(Average(average, sp.exp(rate * inner))) / rate
        found.append(exponents)
    return found[0], found[1]
