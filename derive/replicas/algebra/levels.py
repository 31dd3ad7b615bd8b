"""The ansatz as a value: which overlaps replicas have, level by level of blocks, and which fields they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import CHANNEL, Average, Jacobian, MatrixAverage, Symbols
from .objects import FIELD, n, replicated

# The average over omega around omega_0, which the replicas of a block share; that over b_0, b around it being of FIELD.
BLOCK, OUTER_FIELD = "sentences of a block", "outer field"
# The same averages with the weight that the replicas of a block add, written < . >: of omega and of b.
TILTED, ROW_TILTED = "tilted", "row tilted"
# How many replicas a block holds, and the Parisi parameter: this number times the inverse temperature.
block = sp.Symbol("replicas_of_block", positive=True)
parisi = sp.Symbol("parisi_parameter", positive=True)


@dataclass(frozen=True)
class Broken(Symbols):
    """Symbols with one step of breaking: q is the overlap of replicas in different blocks, q + Delta that within one.

    Shapes: Delta, Delta_hat, Q_Delta (sum of gamma Delta^), V_tilde = V + y Delta and V_tilde_hat = V^ - y Delta^,
    R_tilde s x s (symmetric); omega_0, b_0 s x 1, the fields that all replicas share (docs/theory.md (18.3), (18.7)).
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("Delta", "Delta_hat", "Q_Delta", "V_tilde", "V_tilde_hat", "R_tilde"):
            object.__setattr__(self, name, sp.MatrixSymbol(name, self.s, self.s))
        for name in ("omega_0", "b_0"):
            object.__setattr__(self, name, sp.MatrixSymbol(name, self.s, 1))

    @property
    def symmetric(self) -> tuple[sp.MatrixSymbol, ...]:
        """As of `Symbols`."""
        own = (self.Delta, self.Delta_hat, self.Q_Delta, self.V_tilde, self.V_tilde_hat, self.R_tilde)
        return (*super().symmetric, *own)

    @property
    def conjugates(self) -> tuple[sp.MatrixSymbol, ...]:
        """As of `Symbols`, Delta_hat the last."""
        return (*super().conjugates, self.Delta_hat)

    @property
    def composites(self) -> dict[sp.MatrixSymbol, MatrixExpr]:
        """As of `Symbols`, and Q_Delta = sum gamma Delta^."""
        return {**super().composites, self.Q_Delta: self.gamma * self.Delta_hat}


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
        numbers: (replicas, replicas in a block) at which matrices are written out.
    """

    symbols: Symbols
    levels: tuple[Level, ...]
    numbers: tuple[tuple[int, int], ...]

    @property
    def steps(self) -> int:
        """How often replica symmetry is broken."""
        return len(self.levels) - 1

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
        found, outer = [], len(self.levels)
        for i, level in enumerate(self.levels):
            shared = self.levels[: i + 1]
            inner = self.levels[i + 1].size if i + 1 < outer else sp.Integer(1)
            overlap, conjugate = (
                sp.MatAdd(*parts).doit() for parts in zip(*[(z.overlap, z.conjugate) for z in shared], strict=True)
            )
            found.append(Pairs(n * (level.size - inner), overlap, conjugate))
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
    whole = Level(n, p.q, p.q_hat, p.Q, p.omega, p.b, CHANNEL, FIELD)
    return Ansatz(p, (whole,), ((1, 1), (2, 1), (3, 1), (4, 1)))


def one_step(p: Broken) -> Ansatz:
    """Blocks of `block` replicas: two levels."""
    whole = Level(n, p.q, p.q_hat, p.Q, p.omega_0, p.b_0, CHANNEL, OUTER_FIELD)
    blocks = Level(block, p.Delta, p.Delta_hat, p.Q_Delta, p.omega, p.b, BLOCK, FIELD)
    return Ansatz(p, (whole, blocks), ((2, 2), (4, 2), (6, 2), (6, 3)))


@dataclass(frozen=True)
class Tilt:
    """(1/y) log E exp(y h(z)) over a normal z around z_0, of covariance C (docs/theory.md (18.11), (18.12)).

    Attributes:
        kind: of the average < . > with weight exp(y h); variable, outer: z and z_0 (s x 1).
        slope: dh/dz at z (s x 1).
    """

    kind: str
    variable: sp.MatrixSymbol
    outer: sp.MatrixSymbol
    slope: sp.MatrixSymbol

    def mean(self, matrix: MatrixExpr) -> MatrixExpr:
        """< matrix >, numbers in front."""
        return MatrixAverage(self.kind, matrix)

    @property
    def first(self) -> MatrixExpr:
        """d/dz_0: the tilted slope."""
        return self.mean(self.slope)

    @property
    def second(self) -> MatrixExpr:
        """d/dC = 1/2 < dslope/dz + y slope slope^T >: the heat equation of E exp(y h)."""
        return (self.mean(self.derivative) + parisi * self.mean(self.square)) / 2

    @property
    def square(self) -> MatrixExpr:
        """slope slope^T."""
        return self.slope * self.slope.T

    @property
    def derivative(self) -> MatrixExpr:
        """dslope/dz, a distribution where the slope jumps."""
        return Jacobian(self.slope, self.variable)

    @property
    def response(self) -> MatrixExpr:
        """d< slope >/dz_0, smooth where the slope jumps."""
        return Jacobian(self.first, self.outer)

    @property
    def written_out(self) -> MatrixExpr:
        """The response as < dslope/dz > + y Cov(slope): of the slope, and of the weight."""
        return self.mean(self.derivative) + parisi * (self.mean(self.square) - self.first * self.first.T)


def tilts(p: Broken) -> tuple[Tilt, Tilt]:
    """Of a sentence (h = -M, its slope g) and of a row (h = N, its slope w)."""
    return Tilt(TILTED, p.omega, p.omega_0, p.g), Tilt(ROW_TILTED, p.b, p.b_0, p.w)
