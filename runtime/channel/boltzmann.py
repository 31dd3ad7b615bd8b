"""Averages at nodes at a finite temperature: over the Boltzmann law of the fields X in place of the proximal point."""

from __future__ import annotations

import numpy as np

from ..base.threads import share
from ..problems.problem import Problem
from .fields import Fields
from .nodes import gauss_legendre
from .shared import rows, slopes_of

# Nodes an axis of X (a panel, where the loss has a kink), by the number of fields, at refinement 1: the boxes that hold
# the weight are some thirty widths of it across at the most.
NODES = {1: 64, 2: 40, 3: 30, 4: 22}


def nodes_in_fields(problem: Problem, refinement: float) -> int:
    """Nodes an axis of X."""
    return max(8, round(NODES[problem.solver.thermal.FIELDS] * refinement))


def sums(problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray, refinement: float) -> np.ndarray:
    """As the generated `sample` fills them at zero temperature: token rows, then totals, a row a chunk."""
    channel = problem.solver.thermal
    law = *fields.sampling, fields.precision, fields.variance, _norm(problem, fields)
    return rows(channel, channel.averages, nodes, weights, *law, *_inner(problem, fields, refinement))


def slopes(
    problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray, refinement: float
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (M,) and G = dg/domega (M, D, D), a row a node and value of labelled noise."""
    channel = problem.solver.thermal
    shares, matrices = slopes_of(channel, nodes)
    law = *fields.sampling, fields.precision, fields.variance, *_inner(problem, fields, refinement)
    share(channel.field_slopes, len(nodes), nodes, weights, *law, shares, matrices)
    return shares, matrices


def _norm(problem: Problem, fields: Fields) -> float:
    """T log of the norm of the normal density of X, the integral of exp(-(X - omega)^T V^{-1} (X - omega) / (2 T))."""
    count = problem.solver.thermal.FIELDS
    volume = count * np.log(2 * np.pi * problem.temperature) + float(np.linalg.slogdet(fields.variance)[1].sum())
    return problem.temperature * volume / 2


def _inner(problem: Problem, fields: Fields, refinement: float) -> tuple[np.ndarray | float, ...]:
    """Scales of the noise, constants, temperature, kinks of the loss in X, as (number of the field, place), and
    Gauss-Legendre nodes and weights (N, 2)."""
    rule = np.stack(gauss_legendre(nodes_in_fields(problem, refinement)), axis=1)
    kinks = np.array(problem.kinked_fields(fields.constants), float).reshape(-1, 2)
    return problem.noise_scale, fields.constants, problem.temperature, kinks, rule
