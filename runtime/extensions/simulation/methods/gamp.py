"""Generalised approximate message passing at finite d, and its state evolution (docs/theory.md section 10).

Tokens are the sum of a fluctuating part, z_l with E z_l z_l^T = Sigma_c, and of means and encodings, which enter the
fields by m_c = W^T tau_c / d. Only the former has an Onsager term: with labels k_l and contexts c = (l, k_l),

    omega_l = z_l W / sqrt(d) - V_c g_l(previous) + m_c         g = U^{-1} (prox(omega; U) - omega)
    V^_c    = -(1/d) sum_mu 1(k_l = c) dg_l/domega_l            m^_c = (1/d) sum_mu 1(k_l = c) g_l
    b_i     = sum_mu sum_l z_{l,i} g_l / sqrt(d) + sum_c tau_{c,i} m^_c + A_i w_i,   A_i = sum_c gamma_{c,i} V^_c
    w_i     = argmin r(w) + w^T G_i w / 2 - w^T b_i             V_c = (1/d) sum_i gamma_{c,i} dw_i/db_i

U follows V, G_i follows A_i and the m^ that enters b follows the one above, with a weight `inertia` on their old
values. State evolution, damped in the same way, holds for any weight, since the Onsager terms are the responses of
the actual updates; it damps the mean mode and the alternation of V and V^, whose eigenvalues lie below -1. `damping`, a
weight on the old g and W themselves, damps other modes; the fixed point is the same, but the iterates no longer follow
state evolution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ....base.errors import DomainError, require_in_interval
from ....base.options import AlgorithmOptions
from ....channel.search import choose_proximal_search
from ....integration.rule import Rule
from ....problems.overlaps import Overlaps
from ....problems.problem import Problem
from ....saddle_point.state_map import SaddlePointMap
from ..design import DesignMatrix
from ..instance import Instance, random_stream
from ..method import TrainingMethod, TrainingResult
from ..plan import SimulationPlan, initial_weights
from ..risk import Risk, Weights, overlaps_of_weights

_STREAM = 7  # stream of random numbers


@dataclass(frozen=True)
class GampOptions(AlgorithmOptions):
    """Options of generalised approximate message passing (GAMP).

    Attributes:
        max_iterations: default of the largest number of iterations.
        transient: iterations after which the conjugate of V is averaged over iterations for losses with kinks: this
            converges better, but is no longer the exact response.
    """

    max_iterations: int = 1000
    transient: int = 100


@dataclass(frozen=True)
class GampTrajectory:
    """The sequence of iterates of approximate message passing (GAMP) on one instance.

    Attributes:
        weights: last weights W.
        V: last responses V, shape ((token, cluster) pairs, s, s).
        overlaps: overlaps, V included, before the first iteration and after every iteration.
        steps: mean square change of W relative to its mean square, for every iteration.
        late: mean squared distance of the last fields from those of a dozen iterates in the second half of the run,
            largest over (token, cluster) pairs: 0 if the iterates converged, docs/theory.md (8.23) for jumps.
        g: last messages of the samples, proximal residuals in units of the variance, shape (n, L, s).
        m_hat: last conjugates of m, shape ((token, cluster) pairs, s).
        V_hat: last conjugates of V, shape ((token, cluster) pairs, s, s).
        status: converged, max_iterations, left_domain (a matrix is not positive definite) or not_finite.
    """

    weights: Weights
    V: np.ndarray
    overlaps: tuple[Overlaps, ...]
    steps: np.ndarray
    late: float
    g: np.ndarray
    m_hat: np.ndarray
    V_hat: np.ndarray
    status: str


def gamp(
    instance: Instance,
    start: Weights,
    V: np.ndarray,
    *,
    iterations: int = 500,
    tolerance: float = 1e-8,
    inertia: float = SimulationPlan.inertia,
    damping: float = SimulationPlan.damping,
) -> GampTrajectory:
    """Return the iterates of generalised approximate message passing from weights independent of the data.

    Args:
        instance: teacher and data drawn with one seed.
        start: initial weights.
        V: initial response, shape ((token, cluster) pairs, s, s).
        iterations: largest number of iterations.
        tolerance: relative change of the weights in one iteration below which GAMP has converged.
        inertia: weight on old values of V and of the conjugates, in [0, 1).
        damping: weight on old weights and messages, in [0, 1); state evolution holds only for 0.
    """
    transient = GampOptions.current().transient
    problem = instance.problem
    d, L, s = instance.d, problem.tokens, problem.student_rank
    known, has_corners = instance.eigenbasis_coordinates, problem.solver.proximal.CORNERS
    W, g = start.W, np.zeros((instance.sample_count, L, s))
    U, means, averaged_V_hat = V, np.zeros(0), np.zeros(0)
    path = [overlaps_of_weights(instance, Weights(W, start.phi), V)]
    steps: list[float] = []
    older: list[np.ndarray] = []
    every = max(1, iterations // 24)
    status = "max_iterations"
    for iteration in range(iterations):
        try:
            keep = damping if iteration else 0.0
            field, V_hat, new_means = _output_channel_step(instance, W, V, U, g, path[-1].m, keep)
        except np.linalg.LinAlgError:
            status = "left_domain"
            break
        means = inertia * means + (1 - inertia) * new_means if iteration else new_means
        averaged_V_hat = inertia * averaged_V_hat + (1 - inertia) * V_hat if iteration else V_hat
        onsager = averaged_V_hat if has_corners and iteration > transient else V_hat
        field += known.tau @ means + np.einsum("ic,cab,ib->ia", known.gamma, onsager, W)
        stiffness = np.einsum("ic,cab->iab", known.gamma, averaged_V_hat)
        new, response = problem.regulariser.minimisers_and_derivatives(field, stiffness, instance.teacher_in_penalty)
        new = keep * W + (1 - keep) * new
        if not np.isfinite(new).all():
            status = "left_domain"
            break
        steps.append(float(np.sum((new - W) ** 2) / max(np.sum(new**2), 1e-300)))
        W = new
        V = np.einsum("ic,iab->cab", known.gamma, response) / d
        U = inertia * U + (1 - inertia) * V
        path.append(overlaps_of_weights(instance, Weights(W, start.phi), V))
        if 2 * iteration >= iterations and iteration % every == 0:
            older.append(W)
        if steps[-1] <= tolerance**2:
            status, older = "converged", [W]
            break
    distances = [overlaps_of_weights(instance, Weights(W - other, start.phi)).q for other in older or [W]]
    late = float(np.max(np.trace(np.mean(distances, axis=0), axis1=1, axis2=2)))
    weights = Weights(W, start.phi)
    return GampTrajectory(weights, V, tuple(path), np.array(steps), late, g, means, averaged_V_hat, status)


def squared_distance_contraction(
    instance: Instance, fixed: GampTrajectory, iterations: int = 10, seed: int = 0
) -> float:
    """Return the factor per iteration of message passing of the squared distance of two iterates with equal overlaps.

    It measures the replicon eigenvalue. A small perturbation of the fixed point is kept orthogonal to the means, to
    the teacher and to the estimate itself, so that no overlap changes. The factor is averaged over the second half of
    few iterations: after many, one direction of this draw of the data dominates.

    Args:
        instance: teacher and data drawn with one seed.
        fixed: a converged sequence of iterates.
        iterations: number of iterations.
        seed: seed of the perturbation.
    """
    problem, known = instance.problem, instance.eigenbasis_coordinates
    W, d = fixed.weights.W, instance.d
    G = np.einsum("ic,cab->iab", known.gamma, fixed.V_hat)
    constrained = np.linalg.qr(np.concatenate([known.tau, known.pi, W], axis=1))[0]
    size = 1e-5 * np.linalg.norm(W)

    def _iterate_messages_once(at: np.ndarray, g: np.ndarray) -> np.ndarray:
        field, V_hat, _ = _output_channel_step(instance, at, fixed.V, fixed.V, g, fixed.overlaps[-1].m, 0.0)
        field += known.tau @ fixed.m_hat + np.einsum("ic,cab,ib->ia", known.gamma, V_hat, at)
        return problem.regulariser.minimisers_and_derivatives(field, G, instance.teacher_in_penalty)[0]

    still, g = fixed.g.copy(), fixed.g.copy()
    delta = random_stream(seed, _STREAM).standard_normal((d, problem.student_rank))
    factors = []
    for _ in range(iterations):
        delta -= constrained @ (constrained.T @ delta)
        scale = size / np.linalg.norm(delta)
        g = still + scale * (g - still)
        # The unperturbed messages are iterated as well: they may not have converged fully.
        delta = _iterate_messages_once(W + scale * delta, g) - _iterate_messages_once(W, still)
        moved = delta - constrained @ (constrained.T @ delta)
        factors.append((np.linalg.norm(moved) / size) ** 2)
    return float(np.exp(np.mean(np.log(factors[len(factors) // 2 :]))))


def _output_channel_step(
    instance: Instance, W: np.ndarray, V: np.ndarray, U: np.ndarray, g: np.ndarray, m: np.ndarray, keep: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Update the messages g from the samples in place (one step of GAMP), and return what the weights need of them.

    Returns:
        The sum of g times the tokens, shape (d, s columns of W), and the conjugates of the overlaps V and m, a matrix
        (s, s) and a vector (s,) for each (token, cluster) pair.
    """
    problem, d = instance.problem, instance.d
    L, s = problem.tokens, problem.student_rank
    omega = m[instance.token_contexts] - np.einsum("nlab,nlb->nla", V[instance.token_contexts], g)
    instance.add_centred_fields(omega, W)
    V_hat, m_hat = np.zeros_like(V), np.zeros_like(m)
    for labels, rows, at, known in instance.group_samples_by_labels(omega):
        contexts = problem.token_cluster_indices(labels)
        variance = np.ascontiguousarray(U[contexts])
        np.linalg.cholesky(variance)
        precision = np.linalg.inv(variance)
        constants = problem.constants(labels)
        x, slopes = problem.solver.proximal.proximal_at(at, precision, variance, known, constants, problem.search)
        g[rows] = keep * g[rows] + (1 - keep) * np.einsum("lab,nlb->nla", precision, (x - at).reshape(-1, L, s))
        whole = slopes.sum(axis=0)
        for l, c in enumerate(contexts):
            block = whole[l * s : (l + 1) * s, l * s : (l + 1) * s]
            V_hat[c] -= (block + block.T) / (2 * d)
            m_hat[c] += g[rows, l].sum(axis=0) / d
    return instance.sum_weighted_tokens(g), V_hat, m_hat


def state_evolution(
    problem: Problem,
    start: Overlaps,
    rule: Rule,
    iterations: int,
    inertia: float = SimulationPlan.inertia,
) -> list[Overlaps]:
    """Return the overlaps that message passing (GAMP) without damping has in every iteration for d -> infinity.

    The first are those of the start. The list is shorter if the iteration leaves the domain of the overlaps.

    Args:
        problem: the problem.
        start: initial overlaps.
        rule: quadrature rule of the averages.
        iterations: number of iterations.
        inertia: weight on old values of V and of the conjugates, in [0, 1).
    """
    state_map = SaddlePointMap(problem, rule)
    path = [start]
    U = start.V
    means, averaged_V_hat = np.zeros(0), np.zeros(0)
    for _ in range(iterations):
        at = replace(path[-1], V=U)
        try:
            hats = state_map.conjugates_at_overlaps(at, state_map.channel_averages(at).means)
            means = inertia * means + (1 - inertia) * hats.m if len(path) > 1 else hats.m
            averaged_V_hat = inertia * averaged_V_hat + (1 - inertia) * hats.V if len(path) > 1 else hats.V
            path.append(state_map.overlaps_from_conjugates(replace(hats, m=means, V=averaged_V_hat), at.phi))
        except DomainError:
            break
        U = inertia * U + (1 - inertia) * path[-1].V
    return path


def _train_by_gamp(plan: SimulationPlan, instance: Instance) -> TrainingResult:
    problem = instance.problem
    start, V = initial_weights(plan, instance)
    instance_at = replace(instance, problem=choose_proximal_search(problem, overlaps_of_weights(instance, start, V)))
    trajectory = gamp(
        instance_at,
        start,
        V,
        iterations=plan.most or GampOptions.current().max_iterations,
        tolerance=plan.tolerance,
        inertia=plan.inertia,
        damping=plan.damping,
    )
    value = Risk(instance)(trajectory.weights)
    gradient = value.gradient
    regulariser = problem.regulariser
    if problem.solver.proximal.CORNERS and not regulariser.has_kinks:  # at corners of the loss -g are its subgradients
        _, slope = regulariser.penalties_and_gradients(trajectory.weights.W, instance.teacher_in_penalty)
        gradient = replace(gradient, W=slope + DesignMatrix(instance).apply_design_transpose(-trajectory.g))
    return TrainingResult(
        trajectory.weights,
        value,
        gradient.typical_entry_size,
        len(trajectory.steps),
        trajectory.status,
        V=trajectory.V,
        late=trajectory.late,
        contraction=squared_distance_contraction(instance_at, trajectory)
        if trajectory.status == "converged"
        else np.nan,
        path=np.array([overlaps.pack() for overlaps in trajectory.overlaps]),
    )


def _check_message_damping(plan: SimulationPlan) -> None:
    """Raise InputError if inertia or damping, the weights of old values in GAMP, lie outside [0, 1)."""
    require_in_interval("inertia", plan.inertia, "[0, 1)")
    require_in_interval("damping", plan.damping, "[0, 1)")


METHOD = TrainingMethod(
    "gamp",
    train=_train_by_gamp,
    loss_corners=True,
    penalty_corners=True,
    check=_check_message_damping,
    summary="passes messages",
)
