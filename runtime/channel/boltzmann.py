"""Channel averages at a finite temperature: the Boltzmann law of the fields X replaces the proximal point."""

from __future__ import annotations

import numpy as np

from ..device.loops import fill_at_nodes
from ..problems.problem import Problem
from .fields import FieldLaw
from .nodes import gauss_legendre
from .shared import allocate_response_jacobians, channel_moment_sums, runs_on_cpu_alone

# Nodes per axis of X (per panel, where the loss has a kink), by the number of fields, at refinement 1: the boxes that
# contain the weight are at most about thirty of its widths across.
NODES = {1: 64, 2: 40, 3: 30, 4: 22}


def boltzmann_node_count(problem: Problem, refinement: float) -> int:
    """Return the number of Gauss-Legendre nodes per student field in an average over the Boltzmann law.

    Args:
        problem: problem at a finite temperature.
        refinement: factor on the default number of nodes.
    """
    return max(8, round(NODES[problem.solver.thermal_channel.FIELDS] * refinement))


def boltzmann_moment_sums(
    problem: Problem, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray, refinement: float
) -> np.ndarray:
    """Return sums of Boltzmann averages, one row per chunk of nodes: the moments of all tokens, then all others.

    Args:
        problem: problem at a finite temperature.
        fields: law of the fields.
        nodes: standard normal coordinates, one node per row.
        weights: weight of each node.
        refinement: factor on the default number of nodes of the student field X, see `boltzmann_node_count`.
    """
    channel = problem.solver.thermal_channel
    law = (
        *fields.sampling_loop_arguments,
        fields.precision,
        fields.variance,
        _gaussian_log_normalisation(problem, fields),
    )
    integral = _thermal_integral_arguments(problem, fields, refinement)
    return channel_moment_sums(channel, channel.averages, nodes, weights, *law, *integral)


def boltzmann_response_jacobians(
    problem: Problem, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray, refinement: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and Jacobians dg/domega of the field g at a finite temperature, per node and discrete noise value.

    Args:
        problem: problem at a finite temperature.
        fields: law of the fields.
        nodes: standard normal coordinates, one node per row.
        weights: weight of each node.
        refinement: factor on the default number of nodes of the student field X, see `boltzmann_node_count`.
    """
    channel = problem.solver.thermal_channel
    shares, matrices = allocate_response_jacobians(channel, nodes)
    law = (
        *fields.sampling_loop_arguments,
        fields.precision,
        fields.variance,
        *_thermal_integral_arguments(problem, fields, refinement),
    )
    filled, on_cpu = [shares, matrices], runs_on_cpu_alone(channel)
    fill_at_nodes(channel.field_slopes, (nodes, weights), *law, filled=filled, on_cpu=on_cpu)
    return shares, matrices


def _gaussian_log_normalisation(problem: Problem, fields: FieldLaw) -> float:
    """Return T log Z at temperature T, Z being the integral of exp(-x^T V^{-1} x / (2 T)) over all fields x."""
    count = problem.solver.thermal_channel.FIELDS
    volume = count * np.log(2 * np.pi * problem.temperature) + float(np.linalg.slogdet(fields.variance)[1].sum())
    return problem.temperature * volume / 2


def _thermal_integral_arguments(
    problem: Problem, fields: FieldLaw, refinement: float
) -> tuple[np.ndarray | float, ...]:
    """Return arguments of the compiled loops for the Boltzmann integral over the student fields X.

    They are the standard deviations of the noise, the model's constants, the temperature, the kinks of the loss as
    (number of the field, position), and a table of Gauss-Legendre nodes and weights.
    """
    rule = np.stack(gauss_legendre(boltzmann_node_count(problem, refinement)), axis=1)
    kinks = np.array(problem.kinks_along_single_fields(fields.constants), float).reshape(-1, 2)
    return problem.noise_scale, fields.constants, problem.temperature, kinks, rule
