"""Bayes-optimal message passing at finite d, on draws of teacher and data; its overlaps follow state evolution.

With centred tokens z, posterior means g of (13.4) and f of (13.3) (docs/theory.md section 13) and contexts c,

    omega_l = m*_c + z_l f / sqrt(d) - V_c g_l(previous)
    V^_c    = -(1/d) sum_mu sum_{l in c} dg_l/domega_l
    b_i     = sum_mu sum_l z_{l,i} g_l / sqrt(d) + A_i f_i,     A_i = sum_c gamma_{c,i} V^_c
    f_i, S_i: posterior mean and covariance of a row at (b_i, A_i),   V_c = (1/d) sum_i gamma_{c,i} S_i

(D. Donoho, A. Maleki, A. Montanari, PNAS 106 (2009) 18914; S. Rangan, arXiv 1010.5141; several columns: B. Aubin et
al., arXiv 1806.05451). The channel is one whose observed coordinates follow from the fields by linear equations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...base import budget
from ...base.errors import InputError, NotConvergedError, require_in_interval, require_whole_number
from ...base.options import AlgorithmOptions
from ...base.presenting import PresentableResult
from ...base.progress import progress_bar
from ...problems.problem import Problem
from ..simulation.instance import DEFAULT_MEMORY, STARTS, Instance, random_stream
from .channel import OutputChannel
from .prior import TeacherRowPrior
from .sampling import PlantedSamplingRule, supports_planted_sampling


@dataclass(frozen=True)
class BayesMessageOptions(AlgorithmOptions):
    """Options of Bayes-optimal message passing.

    Attributes:
        check_interval: iterations between two checks of the sum over hidden coordinates.
        sum_tolerance: accuracy of the sum over hidden coordinates; smaller costs more evaluations.
        recovered_fraction: posterior variance, relative to the prior one, below which the teacher counts as recovered.
        recovered_entries: the same threshold times d for rows with few values: much less than one of them is wrong.
        initial_size: size of the random posterior means at the start, in units of the teacher's rows.
    """

    check_interval: int = 10
    sum_tolerance: float = 2e-2
    recovered_fraction: float = 1e-12
    recovered_entries: float = 1e-3
    initial_size: float = 0.1


@dataclass(frozen=True)
class MessageRun:
    """A run of Bayes-optimal message passing on one random instance of teacher and data.

    Attributes:
        status: "converged", "max_iterations", "not_finite", or "unresolved" where the variance of the messages is so
            small in the end that the sum over hidden coordinates is too coarse.
        overlaps: overlaps q of the estimate with the teacher, shape (pairs, t, t), after the permutation, sign
            change or rotation of the estimate's columns, among symmetries of the model, that aligns it best.
        known: overlaps q that the messages predict from their own variances, shape ((token, cluster) pairs, t, t).
        change: change of the estimate in the last iteration, relative to the teacher's size.
    """

    seed: int
    status: str
    iterations: int
    overlaps: np.ndarray
    known: np.ndarray
    change: float


@dataclass(frozen=True)
class BayesMessages(PresentableResult):
    """Results of Bayes-optimal message passing on several random instances of teacher and data at one d.

    There is one `MessageRun` for each seed.

    Example:
        >>> runs = sf.bayes_messages(sf.problem("phase_retrieval", alpha=2), d=200, seeds=2)
        >>> print(runs.table().splitlines()[-1].strip())
        mean                            1.0000 +- 0.0000
    """

    problem: Problem
    d: int
    runs: tuple[MessageRun, ...]

    @property
    def success(self) -> bool:
        """Whether every run converged."""
        return all(run.status == "converged" for run in self.runs)

    def estimate(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean over the runs of a quantity and its standard error (NaN for a single run).

        The quantity is "overlaps" or "known", an attribute of `MessageRun`.
        """
        values = np.array([getattr(run, name) for run in self.runs])
        if len(values) < 2:
            return values[0], np.full_like(values[0], np.nan)
        return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def bayes_messages(
    problem: Problem,
    d: int,
    *,
    seeds: int = 4,
    first_seed: int = 0,
    most: int = 400,
    tolerance: float = 1e-5,
    damping: float = 0.0,
) -> BayesMessages:
    """Run Bayes-optimal message passing on draws of teacher and data at the problem's alpha.

    Args:
        problem: the problem with its alpha.
        d: input dimension.
        seeds: number of draws.
        first_seed: seed of the first draw.
        most: largest number of iterations.
        tolerance: relative change of the posterior means of the teacher's rows in an iteration at which to stop.
        damping: weight of the previous messages, in [0, 1).

    Raises:
        InputError: the model has no output channel, or one whose observed coordinates are not linear in the fields, or
            rows that depend on the means, or numbers out of range.

    Example:
        >>> runs = sf.bayes_messages(sf.problem("phase_retrieval", alpha=2), d=200, seeds=2)
        >>> runs.success, [run.status for run in runs.runs]
        (True, ['converged', 'converged'])
    """
    for name, value, lowest in (("d", d, 2), ("seeds", seeds, 1), ("most", most, 1)):
        require_whole_number(name, value, lowest)
    require_in_interval("damping", damping, "[0, 1)")
    module = problem.solver.bayes_functions
    if not supports_planted_sampling(module):
        raise InputError(
            f"message passing is not available for {problem.solver.name}: the observed coordinates of its output "
            "channel do not follow from the fields by linear equations"
        )
    if any(group.known.any() for group in TeacherRowPrior(problem).eigenvalue_groups):
        raise InputError("message passing is implemented only for teacher rows independent of the cluster means")
    runs = []
    with progress_bar("message passing", seeds) as task:
        for seed in range(first_seed, first_seed + seeds):
            runs.append(
                _pass_messages_on_instance(Instance(problem, d, seed, memory=DEFAULT_MEMORY), most, tolerance, damping)
            )
            task.count_finished_step(
                f"seed {seed}: {runs[-1].status.replace('_', ' ')} after {runs[-1].iterations} iterations"
            )
    return BayesMessages(problem, d, tuple(runs))


def _pass_messages_on_instance(instance: Instance, most: int, tolerance: float, damping: float) -> MessageRun:
    problem, known, d = instance.problem, instance.eigenbasis_coordinates, instance.d
    channel = OutputChannel(instance.problem)
    rho, t, planted = problem.law.rho_star, problem.teacher_rank, channel.planted
    fields = _fields_at_weights(instance, known.pi)
    observed = [
        planted.outputs_of_fields(fields[rows].reshape(len(rows), -1), labels)
        for labels, rows in instance.samples_by_label_assignment
    ]
    size = np.sqrt(np.mean(known.pi**2))
    options = BayesMessageOptions.current()
    recovered = options.recovered_fraction if problem.law.rows is None else options.recovered_entries / d
    f = options.initial_size * size * random_stream(instance.seed, STARTS).standard_normal((d, t))
    g = np.zeros((instance.sample_count, problem.tokens, t))
    V, status, change = rho.copy(), "max_iterations", np.inf
    done = 0
    while done < most and status == "max_iterations":
        budget.check_time_limit()
        if done % options.check_interval == 0:
            _is_hidden_sum_resolved(planted, rho - V)
        done += 1
        field, V_hat, g = _update_channel_messages(instance, planted, observed, f, V, g, damping)
        A = np.einsum("ic,cab->iab", known.gamma, V_hat)
        field += np.einsum("iab,ib->ia", A, f)
        new, spread = _update_row_posteriors(problem, known.gamma, field, A)
        if not (np.isfinite(new).all() and np.isfinite(spread).all()):
            status = "not_finite"
            continue
        change = float(np.sqrt(np.mean((new - f) ** 2))) / size
        f = damping * f + (1 - damping) * new
        V = np.einsum("ic,iab->cab", known.gamma, spread) / d
        if change < tolerance or np.linalg.eigvalsh(V).max() < recovered * rho.max():
            status = "converged"
    if status != "not_finite" and not _is_hidden_sum_resolved(planted, rho - V):
        status = "unresolved"
    with_teacher = np.einsum("ic,ia,ib->cab", known.gamma, f, known.pi) / d
    if channel.is_rotation_invariant:
        left, _, right = np.linalg.svd(with_teacher.sum(axis=0))
        turn = (left @ right).T
    else:
        turn = max(
            channel.symmetric_column_permutations,
            key=lambda turn: np.abs(np.einsum("ab,cba->ca", turn, with_teacher)).sum(),
        )
        signs = np.einsum("ab,cba->a", turn, with_teacher)
        turn = np.where(signs < 0, -1.0, 1.0)[:, None] * turn
    return MessageRun(instance.seed, status, done, turn @ with_teacher, turn @ (rho - V) @ turn.T, change)


def _is_hidden_sum_resolved(planted: PlantedSamplingRule, known: np.ndarray) -> bool:
    """Return whether a sample's posterior is resolved by the sum over hidden coordinates, refined where possible."""
    if not planted.has_sum_over_hidden_nodes:
        return True
    try:
        planted.refine_quadrature(known, BayesMessageOptions.current().sum_tolerance)
    except (NotConvergedError, np.linalg.LinAlgError):  # the finest sum is too coarse; or V = 0
        return False
    return True


def _fields_at_weights(instance: Instance, weights: np.ndarray) -> np.ndarray:
    """Return the fields of all samples at given weights (d, t), plus the mean of the teacher's fields."""
    fields = instance.problem.law.teacher_means[instance.token_contexts]
    instance.add_centred_fields(fields, weights)
    return fields


def _update_channel_messages(
    instance: Instance, planted: PlantedSamplingRule, observed: list[np.ndarray], f: np.ndarray, V: np.ndarray,
    old: np.ndarray, damping: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return the messages that the samples send in one step of message passing.

    These are the sum of tokens times g over sqrt(d), shape (d, t), the positive part of the conjugates V^, ((token,
    cluster) pairs, t, t), and g, the derivative of the log evidence of each sample in omega, (n samples, L tokens, t).
    """
    problem, d = instance.problem, instance.d
    L, t, rho = problem.tokens, problem.teacher_rank, problem.law.rho_star
    omega = _fields_at_weights(instance, f) - np.einsum("nlab,nlb->nla", V[instance.token_contexts], old)
    g, V_hat = old.copy(), np.zeros_like(V)
    for (labels, rows), seen in zip(instance.samples_by_label_assignment, observed, strict=True):
        at = omega[rows].reshape(len(rows), -1)
        _, slopes, curvature = planted.log_evidence_and_derivatives(seen, at, rho - V, labels, curved=True)
        g[rows] = damping * old[rows] + (1 - damping) * slopes.reshape(-1, L, t)
        whole = curvature.sum(axis=0).reshape(L, t, L, t)
        for l, c in enumerate(problem.token_cluster_indices(labels)):
            V_hat[c] -= (whole[l, :, l] + whole[l, :, l].T) / (2 * d)
    values, vectors = np.linalg.eigh(V_hat)
    V_hat = (vectors * np.maximum(values, 0.0)[:, None]) @ np.swapaxes(vectors, 1, 2)
    return instance.sum_weighted_tokens(g), V_hat, g


def _update_row_posteriors(
    problem: Problem, gamma: np.ndarray, fields: np.ndarray, A: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return posterior means (d, t) and covariances (d, t, t) of the teacher's rows, given effective fields (d, t)."""
    means, spreads = np.empty_like(fields), np.empty_like(A)
    for group in TeacherRowPrior(problem).eigenvalue_groups:
        own = np.flatnonzero(np.abs(gamma - group.gamma).max(axis=1) < 1e-9 * np.abs(group.gamma).max())
        if not len(own):
            continue
        components = np.broadcast_to(group.means, (len(own), *group.means.shape))
        _, means[own], spreads[own] = problem.solver.bayes_functions.rows_at(
            np.ascontiguousarray(fields[own]), group.shares, A[own[0]], np.ascontiguousarray(components), group.factors
        )
    return means, spreads
