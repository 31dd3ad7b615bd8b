"""Random values for tests of a loss or a metric: labels and labelled noise, constants within their ranges."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product

import sympy as sp

from ..authoring.language import token_variance_symbol
from ..authoring.model import FixedSizeModel
from ..authoring.parameters import DiscreteNoise, flatten_entries


@dataclass(frozen=True)
class ConstantSymbol:
    """A symbol that stays constant in averages over the fields, as a parameter: default, range or list of values."""

    symbol: sp.Symbol
    default: sp.Expr
    low: float | None = None
    high: float | None = None
    values: tuple[sp.Expr, ...] = ()

    def draw_value(self, generator: random.Random) -> float:
        """Return a random value of the symbol, within its range."""
        low, high, default = self.low, self.high, float(self.default)
        if low is not None and high is not None:
            return low + (high - low) * generator.uniform(0.05, 0.95)
        if low is not None:
            return low + max(1.0, default - low) * generator.uniform(0.3, 1.7)
        if high is not None:
            return high - max(1.0, high - default) * generator.uniform(0.3, 1.7)
        return default * generator.uniform(0.6, 1.5) if default else generator.gauss(0, 1)


def parameter_constants(model: FixedSizeModel) -> tuple[ConstantSymbol, ...]:
    """Return the symbols of token variances rho_l and all model parameters, with their defaults and ranges."""
    weights = [ConstantSymbol(token_variance_symbol(l), sp.Integer(1), low=0.0) for l in range(model.structure.tokens)]
    named = [
        ConstantSymbol(symbol, default, parameter.low, parameter.high)
        for parameter in model.parameters.values()
        for symbol, default in zip(
            flatten_entries(parameter.argument_symbols(model.structure)),
            flatten_entries(parameter.exact_default(model.structure)),
            strict=True,
        )
    ]
    return (*weights, *named)


def order_parameter_constants(model: FixedSizeModel) -> tuple[ConstantSymbol, ...]:
    """Return the symbols of overlaps q and trained numbers in loss and metric, with typical values and ranges."""
    diagonal = {matrix[a, a] for matrix in model.Q for a in range(matrix.rows)}
    starts = {symbol: sp.sympify(value.start) for symbol, value in model.trained.values()}
    return tuple(
        ConstantSymbol(s, starts[s]) if s in starts
        else ConstantSymbol(s, sp.Integer(1), low=0.0) if s in diagonal else ConstantSymbol(s, sp.Integer(0), -0.2, 0.2)
        for s in model.symbols_of_order_parameters
    )  # fmt: skip


def joint_label_and_noise_values(model: FixedSizeModel, *expressions: sp.Expr) -> list[dict[sp.Symbol, sp.Expr]]:
    """Return all joint values (symbol -> value) of the cluster labels and discrete noise in the expressions.

    Args:
        model: the model.
        *expressions: the expressions; labels and noise that occur in none of them get no values.
    """
    ranges = {k: [sp.Integer(n) for n in range(model.structure.clusters)] for k in model.labels}
    ranges |= {u: list(law.values) for u, law in model.noise.values() if isinstance(law, DiscreteNoise)}
    held = {s: values for s, values in ranges.items() if any(e.has(s) for e in expressions)}
    return [dict(zip(held, values, strict=True)) for values in product(*held.values())]
