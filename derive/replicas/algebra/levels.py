"""The ansatz as a value: the overlaps of replicas, level by level of blocks, and the fields that replicas share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import sympy as sp
from sympy.matrices.expressions.matexpr import MatrixExpr

from ...calculus.averages import CHANNEL, Average, Jacobian, MatrixAverage, OrderParameterSymbols
from .objects import FIELD, n, replica_symbol

# Kinds of averages: over omega around omega_0, shared by the replicas of a block; over b_0 (over b around it: FIELD).
BLOCK, OUTER_FIELD = "sentences of a block", "outer field"
# The same with the weight of the replicas of a block, written < . >: over omega and over b.
TILTED, ROW_TILTED = "tilted", "row tilted"
# Kinds of averages over fields of blocks, from the largest inwards, by number of steps of breaking: of samples, of
# rows, and both with the weight of the replicas.
_BLOCKS = (), (BLOCK,), ("sentences of a block of blocks", BLOCK)
_ROWS = (), (FIELD,), ("field between", FIELD)
_TILTED = (), (TILTED,), ("outer tilted", TILTED)
_ROWS_TILTED = (), (ROW_TILTED,), ("outer row tilted", ROW_TILTED)
# Number of replicas in a block, and the Parisi parameter: this number times the inverse temperature.
block = sp.Symbol("replicas_of_block", positive=True)
parisi = sp.Symbol("parisi_parameter", positive=True)
_SIZES = (), (block,), sp.symbols("replicas_of_block_1 replicas_of_block_2", positive=True)
_RATES = (), (parisi,), sp.symbols("parisi_parameter_1 parisi_parameter_2", positive=True)
# (replicas, replicas in a block, in a block of these) at which matrices are written out.
_NUMBERS = ((1,), (2,), (3,), (4,)), ((2, 2), (4, 2), (6, 2), (6, 3)), ((4, 4, 2), (8, 4, 2))
ALL_RATES = frozenset(rate for rates in _RATES for rate in rates)
_STEMS = "Delta", "Delta{}_hat", "Q_Delta", "V_tilde", "V_tilde{}_hat", "R_tilde"  # of each step


@dataclass(frozen=True)
class ReplicaBreakingSymbols(OrderParameterSymbols):
    """Symbols with steps of replica symmetry breaking: q is the overlap between blocks, q + Delta that within a block.

    Shapes: Delta, Delta_hat, Q_Delta (sum of gamma Delta^), V_tilde = V + y Delta and V_tilde_hat = V^ - y Delta^,
    R_tilde s x s (symmetric); omega_0, b_0 s x 1, the fields that all replicas share (docs/theory.md (18.3), (18.7)).
    Two steps have Delta_1, Delta_2 and so on, from the larger blocks inwards, and omega_1, b_1, which the replicas of a
    larger block share; V_tilde_1 = V_tilde_2 + y_1 Delta_1 (docs/theory.md (18.25), (18.26)).

    Args:
        steps: number of steps of breaking, 0, 1 or 2.
    """

    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for stem in _STEMS:
            for name in self._symbol_names_by_breaking_step(stem):
                object.__setattr__(self, name, sp.MatrixSymbol(name, self.s, self.s))
        for name in (f"{stem}_{k}" for stem in ("omega", "b") for k in range(self.steps)):
            object.__setattr__(self, name, sp.MatrixSymbol(name, self.s, 1))

    def _symbol_names_by_breaking_step(self, stem: str) -> list[str]:
        """Return the symbol names of a stem, one per breaking step."""
        ends = [""] if self.steps == 1 else [f"_{k + 1}" for k in range(self.steps)]
        return [stem.format(end) if "{}" in stem else stem + end for end in ends]

    def symbols_by_breaking_step(self, stem: str) -> tuple[sp.MatrixSymbol, ...]:
        """Return the symbols of a stem ("Delta", "Delta{}_hat", ...), one per breaking step, largest blocks first."""
        return tuple(getattr(self, name) for name in self._symbol_names_by_breaking_step(stem))

    @property
    def sizes(self) -> tuple[sp.Symbol, ...]:
        """Return the symbols of the numbers of replicas per block, one per breaking step."""
        return _SIZES[self.steps]

    @property
    def rates(self) -> tuple[sp.Symbol, ...]:
        """Return the symbols of the Parisi parameters, one per breaking step."""
        return _RATES[self.steps]

    @property
    def fields(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return the fields of a token, from omega_0 to omega."""
        return (*(getattr(self, f"omega_{k}") for k in range(self.steps)), self.omega)

    @property
    def row_fields(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return the fields of a row, from b_0 to b."""
        return (*(getattr(self, f"b_{k}") for k in range(self.steps)), self.b)

    @property
    def symmetric_matrices(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return the symmetric matrices: those of `OrderParameterSymbols` and those of the steps."""
        return (*super().symmetric_matrices, *(z for stem in _STEMS for z in self.symbols_by_breaking_step(stem)))

    @property
    def conjugates(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return the conjugates: those of `OrderParameterSymbols`, then those of Delta."""
        return (*super().conjugates, *self.symbols_by_breaking_step("Delta{}_hat"))

    @property
    def composites(self) -> dict[sp.MatrixSymbol, MatrixExpr]:
        """Return the composites of `OrderParameterSymbols`, and Q_Delta = sum gamma Delta^."""
        own = zip(self.symbols_by_breaking_step("Q_Delta"), self.symbols_by_breaking_step("Delta{}_hat"), strict=True)
        return {**super().composites, **{Q: self.gamma * hat for Q, hat in own}}

    def variances(self) -> dict[sp.MatrixSymbol, MatrixExpr]:
        """Return V_tilde = V + y Delta and V_tilde_hat = V^ - y Delta^ of every step, summed over inner steps."""
        found: dict[sp.MatrixSymbol, MatrixExpr] = {}
        for end, V, sign in (("", self.V, 1), ("{}_hat", self.V_hat, -1)):
            for tilde, Delta, rate in reversed(
                [
                    *zip(
                        self.symbols_by_breaking_step(f"V_tilde{end}"),
                        self.symbols_by_breaking_step(f"Delta{end}"),
                        self.rates,
                        strict=True,
                    )
                ]
            ):
                V = V + sign * rate * Delta
                found[tilde] = V
        return found

    def resolvents(self) -> dict[MatrixExpr, sp.MatrixSymbol]:
        """Return resolvent of a ridge -> its symbol: R, and R_tilde of every step."""
        stiffness: MatrixExpr = self.Lambda + self.G
        found = {stiffness.inv(): self.R}
        for R, Q, rate in reversed(
            [
                *zip(
                    self.symbols_by_breaking_step("R_tilde"),
                    self.symbols_by_breaking_step("Q_Delta"),
                    self.rates,
                    strict=True,
                )
            ]
        ):
            stiffness = stiffness - rate * Q
            found[stiffness.inv()] = R
        return found


@dataclass(frozen=True)
class ReplicaLevel:
    """Replicas that share a field, from which any two of them have an overlap.

    Attributes:
        size: number of replicas in a block of this level.
        overlap: overlap of two of them in excess of the outer levels; conjugate: its conjugate.
        composite: covariance of the row's field of this level; field, row_field: fields of a token and of a row.
        channel, rows: kinds of the averages over these two fields.
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
class ReplicaPairs:
    """Ordered pairs of different replicas that have one overlap.

    Attributes:
        number: how many pairs there are.
        overlap, conjugate: their overlap and its conjugate.
    """

    number: sp.Expr
    overlap: MatrixExpr
    conjugate: MatrixExpr

    def values(self, p: OrderParameterSymbols) -> dict[Any, Any]:
        """Return the replacements of q|ab and q_hat|ab for these pairs."""
        return {replica_symbol(p.q, "ab"): self.overlap, replica_symbol(p.q_hat, "ab"): self.conjugate}


@dataclass(frozen=True)
class ReplicaAnsatz:
    """Blocks in blocks of replicas (docs/theory.md (3.7), (18.1), (18.2)).

    Attributes:
        levels: from the one of all replicas inwards.
        numbers: replicas in each level, for every case in which matrices are written out.
    """

    symbols: ReplicaBreakingSymbols
    levels: tuple[ReplicaLevel, ...]
    numbers: tuple[tuple[int, ...], ...]

    @property
    def steps(self) -> int:
        """Return the number of steps of replica symmetry breaking."""
        return self.symbols.steps

    def block_sizes(self, numbers: Sequence[Any]) -> dict[str, Any]:
        """Return name -> number of replicas for the sizes of the innermost levels, as many as numbers are given."""
        sizes = [level.size for level in self.levels][len(self.levels) - len(numbers) :]
        return {size.name: sp.sympify(number) for size, number in zip(sizes, numbers, strict=True)}

    @property
    def single_replica_order_parameters(self) -> dict[Any, Any]:
        """Return the order parameters of one replica; V is the excess of its self-overlap over other overlaps."""
        p, r = self.symbols, sp.MatrixSymbol("r", self.symbols.s, self.symbols.s)
        r_hat = sp.MatrixSymbol("r_hat", *r.shape)
        return {
            replica_symbol(r, "a"): sp.MatAdd(p.V, *[level.overlap for level in self.levels]),
            replica_symbol(r_hat, "a"): sp.MatAdd(p.V_hat, *[-1 * level.conjugate for level in self.levels]),
            **{replica_symbol(z, "a"): z for z in (p.m, p.theta, p.m_hat, p.theta_hat, p.phi)},
        }

    @property
    def pairs(self) -> tuple[ReplicaPairs, ...]:
        """Return the kinds of pairs, from those in different blocks inwards."""
        found: list[ReplicaPairs] = []
        overlap, conjugate = sp.ZeroMatrix(*self.symbols.q.shape), sp.ZeroMatrix(*self.symbols.q.shape)
        sizes = [*[level.size for level in self.levels], sp.Integer(1)]
        for level, (size, inner) in zip(self.levels, pairwise(sizes), strict=True):
            overlap, conjugate = (overlap + level.overlap).doit(), (conjugate + level.conjugate).doit()
            found.append(ReplicaPairs(n * (size - inner), overlap, conjugate))
        return tuple(found)

    def log_average_power(self, integral: sp.Expr, rows: bool = False) -> sp.Expr:
        """Return log E of the n-th power of an integral, every block averaged over its field (docs/theory.md (18.4)).

        Args:
            integral: log integral of one replica.
            rows: True to average over fields of rows, False over those of tokens.
        """
        size: sp.Expr = sp.Integer(1)
        for level in reversed(self.levels):
            kind = level.rows if rows else level.channel
            integral, size = sp.log(Average(kind, sp.exp(level.size / size * integral))), level.size
        return integral


def replica_symmetric_ansatz(p: OrderParameterSymbols) -> ReplicaAnsatz:
    """Return the replica-symmetric ansatz, of one level."""
    return replica_block_ansatz(ReplicaBreakingSymbols(p.s, p.t, p.trained, p.loss_depends_on_q, steps=0))


def replica_block_ansatz(p: ReplicaBreakingSymbols) -> ReplicaAnsatz:
    """Return the ansatz with replicas in blocks, for two steps in blocks of blocks: one level more than steps."""
    whole = ReplicaLevel(n, p.q, p.q_hat, p.Q, p.fields[0], p.row_fields[0], CHANNEL, OUTER_FIELD if p.steps else FIELD)
    stems = "Delta", "Delta{}_hat", "Q_Delta"
    known = (
        p.sizes,
        *map(p.symbols_by_breaking_step, stems),
        p.fields[1:],
        p.row_fields[1:],
        _BLOCKS[p.steps],
        _ROWS[p.steps],
    )
    return ReplicaAnsatz(p, (whole, *(ReplicaLevel(*each) for each in zip(*known, strict=True))), _NUMBERS[p.steps])


@dataclass(frozen=True)
class TiltedAverage:
    """Averages under the tilted law: (1/y) log E exp(y h(z)) over a normal z around z_0, of covariance C.

    With two steps, such a function replaces h and z lies around z_1 around z_0 (docs/theory.md (18.11), (18.12)).

    Attributes:
        kinds: kinds of the averages < . > with weight exp(y h), from z_0 inwards; rates: their y.
        fields: z_0, ..., z (s x 1); slope: dh/dz at z (s x 1).
    """

    kinds: tuple[str, ...]
    rates: tuple[sp.Symbol, ...]
    fields: tuple[sp.MatrixSymbol, ...]
    slope: sp.MatrixSymbol

    def mean(self, value: Any, levels: slice = slice(None)) -> Any:
        """Return < value > of a matrix or a scalar.

        Args:
            value: expression to average.
            levels: levels to average over, counted from the outermost; all by default.
        """
        average = MatrixAverage if value.is_Matrix else Average
        for kind in reversed(self.kinds[levels]):
            value = average(kind, value)
        return value

    def mean_gradient_at_level(self, level: int) -> MatrixExpr:
        """Return the slope averaged over the inner levels: d/dz_level of the logarithms so far."""
        return self.mean(self.slope, slice(level, None))

    def gradient_outer_product_at_level(self, level: int) -> MatrixExpr:
        """Return the outer product of the mean gradient at a level with itself."""
        return self.mean_gradient_at_level(level) * self.mean_gradient_at_level(level).T

    def gradient_response_at_level(self, level: int) -> MatrixExpr:
        """Return dslope/dz of a level: smooth even where the slope jumps, except for the innermost, a distribution."""
        return Jacobian(self.mean_gradient_at_level(level), self.fields[level])

    @property
    def tilted_mean_gradient(self) -> MatrixExpr:
        """Return d/dz_0: the tilted average of the slope."""
        return self.mean_gradient_at_level(0)

    def covariance_gradient(self, level: int) -> MatrixExpr:
        """Return d/dC of a level = 1/2 < dslope/dz + y slope slope^T >, by the heat equation of E exp(y h)."""
        outer = slice(level)
        response, square = (
            self.mean(self.gradient_response_at_level(level), outer),
            self.mean(self.gradient_outer_product_at_level(level), outer),
        )
        return (response + self.rates[level - 1] * square) / 2

    @property
    def response(self) -> MatrixExpr:
        """Return d< slope >/dz_0, smooth even where the slope jumps."""
        return self.gradient_response_at_level(0)

    @property
    def expanded_responses(self) -> dict[MatrixExpr, MatrixExpr]:
        """Return response -> < dslope/dz > + y Cov(slope), for every level from z_0 inwards."""
        found = {}
        for level, (kind, rate) in enumerate(zip(self.kinds, self.rates, strict=True)):
            inner = MatrixAverage(kind, self.gradient_response_at_level(level + 1))
            spread = MatrixAverage(
                kind, self.gradient_outer_product_at_level(level + 1)
            ) - self.gradient_outer_product_at_level(level)
            found[self.gradient_response_at_level(level)] = inner + rate * spread
        return found


def tilted_averages(p: ReplicaBreakingSymbols) -> tuple[TiltedAverage, TiltedAverage]:
    """Return the tilted averages of a sample (h = -M, its slope g) and of a row (h = N, its slope w)."""
    return TiltedAverage(_TILTED[p.steps], p.rates, p.fields, p.g), TiltedAverage(
        _ROWS_TILTED[p.steps], p.rates, p.row_fields, p.w
    )


def tilt_exponents(p: ReplicaBreakingSymbols) -> tuple[dict[str, sp.Expr], dict[str, sp.Expr]]:
    """Return kind of tilted average -> exponent y f of the inner levels, for a sample and for a row."""
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
