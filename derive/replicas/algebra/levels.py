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

    Symmetric s x s matrices are Delta, its conjugate Delta_hat, Q_Delta (sum of gamma Delta_hat, with covariance
    eigenvalues gamma), the variances of blocks V_tilde = V + y Delta and V_tilde_hat = V_hat - y Delta_hat at Parisi
    parameter y, and R_tilde; s x 1 are the fields omega_0 and b_0 that all replicas share (docs/theory.md (18.3),
    (18.7)).

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
        """Return the names of the symbols with a given stem, one per step of replica symmetry breaking."""
        ends = [""] if self.steps == 1 else [f"_{k + 1}" for k in range(self.steps)]
        return [stem.format(end) if "{}" in stem else stem + end for end in ends]

    def symbols_by_breaking_step(self, stem: str) -> tuple[sp.MatrixSymbol, ...]:
        """Return the symbols with a given stem ("Delta", "Delta{}_hat"), one per step of replica symmetry breaking.

        Those of the largest blocks come first.
        """
        return tuple(getattr(self, name) for name in self._symbol_names_by_breaking_step(stem))

    @property
    def block_size_symbols(self) -> tuple[sp.Symbol, ...]:
        """Return the symbols of the numbers of replicas per block, one per breaking step."""
        return _SIZES[self.steps]

    @property
    def parisi_parameters(self) -> tuple[sp.Symbol, ...]:
        """Return the symbols of the Parisi parameters, one per breaking step."""
        return _RATES[self.steps]

    @property
    def token_field_symbols(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return the symbols of the fields of a token, from the outermost level inwards: omega_0 to omega."""
        return (*(getattr(self, f"omega_{k}") for k in range(self.steps)), self.omega)

    @property
    def row_field_symbols(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return the symbols of the fields of a row of W, from the outermost level inwards: b_0 to b."""
        return (*(getattr(self, f"b_{k}") for k in range(self.steps)), self.b)

    @property
    def symmetric_matrices(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return all symmetric matrices of symbols, with those of the steps of replica symmetry breaking last."""
        return (*super().symmetric_matrices, *(z for stem in _STEMS for z in self.symbols_by_breaking_step(stem)))

    @property
    def conjugate_order_parameters(self) -> tuple[sp.MatrixSymbol, ...]:
        """Return the symbols of the conjugate order parameters, with those of Delta last."""
        return (*super().conjugate_order_parameters, *self.symbols_by_breaking_step("Delta{}_hat"))

    @property
    def effective_prior_parameters(self) -> dict[sp.MatrixSymbol, MatrixExpr]:
        """Return definitions of the parameters of a row's effective prior: precision G, field mean B, covariance Q.

        The last one is Q_Delta = sum gamma Delta_hat, the covariance of the field that the replicas of a block share.
        """
        own = zip(self.symbols_by_breaking_step("Q_Delta"), self.symbols_by_breaking_step("Delta{}_hat"), strict=True)
        return {**super().effective_prior_parameters, **{Q: self.gamma * hat for Q, hat in own}}

    def block_variances(self) -> dict[sp.MatrixSymbol, MatrixExpr]:
        """Return the definitions of V_tilde = V + y Delta and V_tilde_hat = V_hat - y Delta_hat.

        V_tilde is the variance V of a replica's field plus the Parisi parameter y times the excess overlap Delta in its
        block. There is one per step of replica symmetry breaking, with the terms of inner steps added.
        """
        found: dict[sp.MatrixSymbol, MatrixExpr] = {}
        for end, V, sign in (("", self.V, 1), ("{}_hat", self.V_hat, -1)):
            for tilde, Delta, rate in reversed(
                [
                    *zip(
                        self.symbols_by_breaking_step(f"V_tilde{end}"),
                        self.symbols_by_breaking_step(f"Delta{end}"),
                        self.parisi_parameters,
                        strict=True,
                    )
                ]
            ):
                V = V + sign * rate * Delta
                found[tilde] = V
        return found

    def resolvent_symbols(self) -> dict[MatrixExpr, sp.MatrixSymbol]:
        """Return a map from the resolvents of a ridge to their symbols: R, and R_tilde of every step."""
        stiffness: MatrixExpr = self.Lambda + self.G
        found = {stiffness.inv(): self.R}
        for R, Q, rate in reversed(
            [
                *zip(
                    self.symbols_by_breaking_step("R_tilde"),
                    self.symbols_by_breaking_step("Q_Delta"),
                    self.parisi_parameters,
                    strict=True,
                )
            ]
        ):
            stiffness = stiffness - rate * Q
            found[stiffness.inv()] = R
        return found


@dataclass(frozen=True)
class ReplicaLevel:
    """One level of blocks of replicas; the replicas of a block share a field, which makes them overlap.

    Attributes:
        size: number of replicas in a block of this level.
        overlap: overlap of two replicas of a block, in excess of that of the outer levels.
        conjugate: conjugate of this overlap.
        composite: covariance of the row's field of this level.
        field: field of a token that the replicas of a block share.
        row_field: field of a row of W that they share.
        channel: kind of the average over the token's field.
        rows: kind of the average over the row's field.
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
    """Ordered pairs of different replicas that all have the same overlap.

    Attributes:
        number: how many pairs there are.
        overlap: overlap of the two replicas of a pair.
        conjugate: conjugate of this overlap.
    """

    number: sp.Expr
    overlap: MatrixExpr
    conjugate: MatrixExpr

    def symbol_replacements(self, p: OrderParameterSymbols) -> dict[Any, Any]:
        """Return a map from the overlap and conjugate of two replicas a and b to their values for such a pair."""
        return {replica_symbol(p.q, "ab"): self.overlap, replica_symbol(p.q_hat, "ab"): self.conjugate}


@dataclass(frozen=True)
class ReplicaAnsatz:
    """How a replica ansatz groups replicas in blocks, and blocks in larger ones (docs/theory.md (3.7), (18.1), (18.2)).

    Attributes:
        symbols: symbols of the order parameters.
        levels: levels of blocks, from the block of all replicas inwards.
        numbers: number of replicas in a block of each level, for every case in which matrices are written out.
    """

    symbols: ReplicaBreakingSymbols
    levels: tuple[ReplicaLevel, ...]
    numbers: tuple[tuple[int, ...], ...]

    @property
    def steps(self) -> int:
        """Return the number of steps of replica symmetry breaking."""
        return self.symbols.steps

    def block_sizes(self, numbers: Sequence[Any]) -> dict[str, Any]:
        """Return a map from names of block-size symbols to given numbers of replicas, for the innermost levels."""
        sizes = [level.size for level in self.levels][len(self.levels) - len(numbers) :]
        return {size.name: sp.sympify(number) for size, number in zip(sizes, numbers, strict=True)}

    @property
    def single_replica_order_parameters(self) -> dict[Any, Any]:
        """Return a map from the order parameters of one replica to their values in the ansatz.

        V is the excess of the self-overlap over the overlaps with other replicas.
        """
        p, r = self.symbols, sp.MatrixSymbol("r", self.symbols.s, self.symbols.s)
        r_hat = sp.MatrixSymbol("r_hat", *r.shape)
        return {
            replica_symbol(r, "a"): sp.MatAdd(p.V, *[level.overlap for level in self.levels]),
            replica_symbol(r_hat, "a"): sp.MatAdd(p.V_hat, *[-1 * level.conjugate for level in self.levels]),
            **{replica_symbol(z, "a"): z for z in (p.m, p.theta, p.m_hat, p.theta_hat, p.phi)},
        }

    @property
    def replica_pairs(self) -> tuple[ReplicaPairs, ...]:
        """Return the kinds of pairs of replicas, from pairs in different blocks inwards."""
        found: list[ReplicaPairs] = []
        overlap, conjugate = sp.ZeroMatrix(*self.symbols.q.shape), sp.ZeroMatrix(*self.symbols.q.shape)
        sizes = [*[level.size for level in self.levels], sp.Integer(1)]
        for level, (size, inner) in zip(self.levels, pairwise(sizes), strict=True):
            overlap, conjugate = (overlap + level.overlap).doit(), (conjugate + level.conjugate).doit()
            found.append(ReplicaPairs(n * (size - inner), overlap, conjugate))
        return tuple(found)

    def log_of_averaged_power(self, integral: sp.Expr, rows: bool = False) -> sp.Expr:
        """Return log E of the n-th power of an integral, for replicas in blocks (docs/theory.md (18.4)).

        Every block is averaged over the field that its replicas share.

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
    """Return the replica-symmetric ansatz: one level of replicas, without blocks."""
    return replica_block_ansatz(ReplicaBreakingSymbols(p.s, p.t, p.trained, p.loss_depends_on_q, steps=0))


def replica_block_ansatz(p: ReplicaBreakingSymbols) -> ReplicaAnsatz:
    """Return the ansatz with replicas in blocks; for two steps of breaking, in blocks of blocks."""
    fields, kind = (p.token_field_symbols[0], p.row_field_symbols[0]), OUTER_FIELD if p.steps else FIELD
    whole = ReplicaLevel(n, p.q, p.q_hat, p.Q, *fields, CHANNEL, kind)
    stems = "Delta", "Delta{}_hat", "Q_Delta"
    known = (
        p.block_size_symbols,
        *map(p.symbols_by_breaking_step, stems),
        p.token_field_symbols[1:],
        p.row_field_symbols[1:],
        _BLOCKS[p.steps],
        _ROWS[p.steps],
    )
    return ReplicaAnsatz(p, (whole, *(ReplicaLevel(*each) for each in zip(*known, strict=True))), _NUMBERS[p.steps])


@dataclass(frozen=True)
class TiltedAverage:
    """Averages over the states of a block, tilted by their weights exp(y h(z)) (docs/theory.md (18.11), (18.12)).

    h(z) is the extremum of a replica in its field z, normal around z_0 with covariance C; the averages are derivatives
    of (1/y) log E exp(y h). With two steps of breaking such a logarithm replaces h, and z is normal around z_1, z_1
    around z_0.

    Attributes:
        kinds: kinds of the tilted averages < . >, from the field z_0 inwards.
        parisi_parameters: Parisi parameter y of each of these averages.
        fields: symbols of the fields z_0, ..., z (s x 1).
        slope: symbol of the derivative dh/dz at z (s x 1).
    """

    kinds: tuple[str, ...]
    parisi_parameters: tuple[sp.Symbol, ...]
    fields: tuple[sp.MatrixSymbol, ...]
    slope: sp.MatrixSymbol

    def tilted_mean(self, value: Any, levels: slice = slice(None)) -> Any:
        """Return the mean of a matrix or scalar over the states of a block, weighted by exp(y h) (a tilted mean).

        Args:
            value: expression to average.
            levels: levels to average over, counted from the outermost; all by default.
        """
        average = MatrixAverage if value.is_Matrix else Average
        for kind in reversed(self.kinds[levels]):
            value = average(kind, value)
        return value

    def mean_gradient_at_level(self, level: int) -> MatrixExpr:
        """Return the slope dh/dz averaged over the levels inside a given one: the gradient in this level's field."""
        return self.tilted_mean(self.slope, slice(level, None))

    def gradient_outer_product_at_level(self, level: int) -> MatrixExpr:
        """Return v v^T for the gradient v at one level of blocks: the slope averaged over the levels inside it."""
        return self.mean_gradient_at_level(level) * self.mean_gradient_at_level(level).T

    def response_of_mean_gradient(self, level: int) -> MatrixExpr:
        """Return the derivative, in a level's field, of the slope averaged over the levels inside.

        It is smooth even where the slope jumps, except at the innermost level, where it is a distribution.
        """
        return Jacobian(self.mean_gradient_at_level(level), self.fields[level])

    @property
    def tilted_mean_gradient(self) -> MatrixExpr:
        """Return the slope averaged over all levels: the gradient of (1/y) log E exp(y h) in the outermost z_0."""
        return self.mean_gradient_at_level(0)

    def covariance_gradient(self, level: int) -> MatrixExpr:
        """Return the gradient of (1/y) log E exp(y h) in the covariance of a level's field.

        By the heat equation it is 1/2 < ds/dz + y s s^T >, with s the slope averaged over the levels inside and y the
        Parisi parameter.
        """
        outer = slice(level)
        response, square = (
            self.tilted_mean(self.response_of_mean_gradient(level), outer),
            self.tilted_mean(self.gradient_outer_product_at_level(level), outer),
        )
        return (response + self.parisi_parameters[level - 1] * square) / 2

    @property
    def outermost_response(self) -> MatrixExpr:
        """Return the derivative in the outermost field z_0 of the slope averaged over all levels.

        It is smooth even where the slope jumps.
        """
        return self.response_of_mean_gradient(0)

    @property
    def fluctuation_forms_of_responses(self) -> dict[MatrixExpr, MatrixExpr]:
        """Return a map from each level's response to its form as a mean response plus a covariance.

        The response is the derivative of the slope's mean in the level's field; the form is < ds/dz > + y Cov(s), with
        the slope s averaged over the levels inside and the Parisi parameter y. Levels are from the outermost field z_0
        inwards.
        """
        found = {}
        for level, (kind, rate) in enumerate(zip(self.kinds, self.parisi_parameters, strict=True)):
            inner = MatrixAverage(kind, self.response_of_mean_gradient(level + 1))
            spread = MatrixAverage(
                kind, self.gradient_outer_product_at_level(level + 1)
            ) - self.gradient_outer_product_at_level(level)
            found[self.response_of_mean_gradient(level)] = inner + rate * spread
        return found


def tilted_averages(p: ReplicaBreakingSymbols) -> tuple[TiltedAverage, TiltedAverage]:
    """Return the averages over states with their weights, for a sample and for a row of W.

    The slope of the first is the field g of the sample, that of the second the row w.
    """
    return TiltedAverage(_TILTED[p.steps], p.parisi_parameters, p.token_field_symbols, p.g), TiltedAverage(
        _ROWS_TILTED[p.steps], p.parisi_parameters, p.row_field_symbols, p.w
    )


def exponents_of_tilted_averages(p: ReplicaBreakingSymbols) -> tuple[dict[str, sp.Expr], dict[str, sp.Expr]]:
    """Return the exponents of the weights of tilted averages by kind: a map for a sample, and one for a row of W."""
    found = []
    for extremum, tilted, plain in (
        (-p.moreau, _TILTED[p.steps], _BLOCKS[p.steps]),
        (p.envelope, _ROWS_TILTED[p.steps], _ROWS[p.steps]),
    ):
        exponents: dict[str, sp.Expr] = {}
        inner: sp.Expr = extremum
        for kind, average, rate in reversed([*zip(tilted, plain, p.parisi_parameters, strict=True)]):
            exponents[kind] = rate * inner
            inner = sp.log(Average(average, sp.exp(rate * inner))) / rate
        found.append(exponents)
    return found[0], found[1]
