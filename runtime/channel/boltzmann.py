"""Averages at nodes at a finite temperature: over the Boltzmann law of the fields X in place of the proximal point."""

from __future__ import annotations

import numpy as np

from ..base.threads import run_in_threads
from ..problems.problem import Problem
from .fields import Fields
from .nodes import gauss_legendre
from .shared import allocate_slopes, moment_sums

# Nodes per axis of X (per panel, where the loss has a kink), by the number of fields, at refinement 1: the boxes that
# contain the weight are at most about thirty of its widths across.
NODES = {1: 64, 2: 40, 3: 30, 4: 22}


def boltzmann_node_count(problem: Problem, refinement: float) -> int:
    """Return the number of Gauss-Legendre nodes per axis of X.

    Args:
        problem: problem at a finite temperature; its number of fields decides.
        refinement: factor on the default number of nodes.
    """
    return max(8, round(NODES[problem.solver.thermal.FIELDS] * refinement))


def boltzmann_sums(
    problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray, refinement: float
) -> np.ndarray:
    """Return the Boltzmann averages summed over nodes: token rows, then totals, one row a chunk of nodes.

    Args:
        problem: problem at a finite temperature.
        fields: law of the fields.
        nodes: (N, dimension), standard normal coordinates.
        weights: (N,).
        refinement: of the integral over X, see `boltzmann_node_count`.
    """
    channel = problem.solver.thermal
    law = *fields.sampling_arguments, fields.precision, fields.variance, _log_normalisation(problem, fields)
    return moment_sums(
        channel, channel.averages, nodes, weights, *law, *_inner_loop_arguments(problem, fields, refinement)
    )


def boltzmann_slopes(
    problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray, refinement: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights (M,) and G = dg/domega (M, D, D), a row for each node and value of the labelled noise.

    Args:
        problem: problem at a finite temperature.
        fields: law of the fields.
        nodes: (N, dimension), standard normal coordinates.
        weights: (N,).
        refinement: of the integral over X, see `boltzmann_node_count`.
    """
    channel = problem.solver.thermal
    shares, matrices = allocate_slopes(channel, nodes)
    law = (
        *fields.sampling_arguments,
        fields.precision,
        fields.variance,
        *_inner_loop_arguments(problem, fields, refinement),
    )
    run_in_threads(channel.field_slopes, len(nodes), nodes, weights, *law, shares, matrices)
    return shares, matrices


def _log_normalisation(problem: Problem, fields: Fields) -> float:
    """Return T log of the integral of exp(-(X - omega)^T V^{-1} (X - omega) / (2 T)) over X."""
    count = problem.solver.thermal.FIELDS
    volume = count * np.log(2 * np.pi * problem.temperature) + float(np.linalg.slogdet(fields.variance)[1].sum())
    return problem.temperature * volume / 2


def _inner_loop_arguments(problem: Problem, fields: Fields, refinement: float) -> tuple[np.ndarray | float, ...]:
    """Return the arguments of the generated loops that belong to the integral over X.

    They are the scales of the noise, the constants, the temperature, kinks of the loss in X as (number of the field,
    place), and Gauss-Legendre nodes and weights (N, 2).
    """
    rule = np.stack(gauss_legendre(boltzmann_node_count(problem, refinement)), axis=1)
    kinks = np.array(problem.single_field_kinks(fields.constants), float).reshape(-1, 2)
    return problem.noise_scale, fields.constants, problem.temperature, kinks, rule
