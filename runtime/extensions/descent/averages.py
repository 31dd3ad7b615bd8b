"""Averages of the loss gradient over samples, at the fields X of the current weights.

They are the channel averages of the saddle point in the limit V = 0, in which the proximal map is the identity
(docs/theory.md (19.4)).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import DomainError, InputError
from ...base.options import AlgorithmOptions
from ...channel.exchange import SymmetryReduction
from ...channel.fields import FieldLaw
from ...channel.points import noise_value_indices
from ...integration.lattice import LatticeRule
from ...integration.rule import moments_by_token_and_cluster, moments_of_full_problem
from ...integration.sampled import MAX_PRODUCT_DIMENSION, MAX_PRODUCT_NODES, NodeBasedRule, Sobol
from ...integration.splitting import HyperplaneSplit
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...problems.reduced import ReducedProblem, reduce_to_fields_of_loss

_SIZES = (8, 12, 18, 28, 42, 64, 96, 144, 216)  # nodes a panel, or an axis
_SETS = tuple(Sobol(log2) for log2 in range(10, 19))


@dataclass(frozen=True)
class LossGradientAverageOptions(AlgorithmOptions):
    """Options of averages of the loss gradient over samples.

    Attributes:
        max_negative: largest negative eigenvalue that is accepted of the covariance of the student fields given the
            teacher fields, relative to their variance; trial steps in time may need it.
        max_split_dimension: largest dimension in which product rules are split at the kinks of the loss.
        max_cached_nodes: largest number of nodes of a product rule that are kept in memory.
        array_size: entries of an array that is allocated at every average, few enough for the memory to be reused.
        many_lattices: number of lattice sizes above which only every second one is used.
    """

    max_negative: float = 1e-2
    max_split_dimension: int = 6
    max_cached_nodes: float = 2e5
    array_size: int = 12_288
    many_lattices: int = 4


@dataclass(frozen=True)
class LossGradientAverages:
    """Averages over samples of the loss gradient D = dloss/dX in the student fields X, by (token, cluster) pair.

    Attributes:
        mean: mean of D, shape (pairs, s).
        square: mean of D D^T, shape (pairs, s, s).
        with_fields: mean of D (X - m)^T, with m the mean of X, shape (pairs, s, s).
        with_teacher: mean of D (Y - m*)^T, with Y the teacher fields and m* their mean, shape (pairs, s, t).
        loss: mean loss.
        in_q: mean derivative of the loss in the overlap q, shape (pairs, s, s).
        in_phi: mean derivatives of the loss in the trained numbers phi.
    """

    mean: np.ndarray
    square: np.ndarray
    with_fields: np.ndarray
    with_teacher: np.ndarray
    loss: float
    in_q: np.ndarray
    in_phi: np.ndarray


@dataclass(frozen=True)
class _QuadratureNodeSet:
    """N quadrature nodes for one assignment of labels and one value of discrete noise; they serve for all weights W.

    Attributes:
        z: standard normal coordinates of the student fields, shape (L, s, N nodes).
        z_teacher: standard normal coordinates of the teacher fields, shape (L, t, N nodes).
        dY: teacher fields minus their mean, shape (L, t, N nodes).
        known: features of teacher fields and noise on which the loss depends, shape (N nodes, features).
        weights: quadrature weights, shape (N nodes,).
    """

    z: np.ndarray
    z_teacher: np.ndarray
    dY: np.ndarray
    known: np.ndarray
    weights: np.ndarray


class _TeacherFieldDistribution(NamedTuple):
    """The Gaussian distribution of the teacher fields of all tokens, for one assignment of labels.

    Attributes:
        contexts: index of the (token, cluster) pair of each of the L tokens, (L,).
        mean: means of the teacher fields, (L, t).
        factor: Cholesky factors of their covariance, (L, t, t).
        inverse: transposed inverses of these factors, (L, t, t).
        identity: identity matrices of the size of the student fields, (L, s, s).
    """

    contexts: np.ndarray
    mean: np.ndarray
    factor: np.ndarray
    inverse: np.ndarray
    identity: np.ndarray


class GradientAverageRule:
    """A quadrature rule of one size for averages of the loss gradient.

    Args:
        problem: the problem.
        rule: Sobol sets or a lattice; or the number of nodes per panel of a product rule, split at kinks of the loss.
    """

    def __init__(self, problem: Problem, rule: NodeBasedRule | int) -> None:
        self.problem, self.rule = problem, rule
        self.part = reduce_to_fields_of_loss(problem)
        self._cached_nodes: dict[Any, list[_QuadratureNodeSet]] = {}
        self._teacher_laws: dict[tuple[int, ...], _TeacherFieldDistribution] = {}
        self.evaluations = 0

    def describe_quadrature_rule(self) -> dict[str, Any]:
        """Return the name of the quadrature rule, its number of points and its seed, for JSON."""
        if isinstance(self.rule, NodeBasedRule):
            return self.rule.rule_description()
        return {"rule": "product", "points": self.rule, "seed": None}

    def __call__(self, overlaps: Overlaps) -> LossGradientAverages:
        """Return averages of the loss gradient over samples, for weights with given overlaps q, m and theta.

        Raises:
            DomainError: no weights have these overlaps.
        """
        self.evaluations += 1
        problem, part = self.problem, self.part
        there = (
            part.maps_of_overlaps_to_combinations.map_overlaps_to_combinations(overlaps.pack())
            if isinstance(part, ReducedProblem)
            else overlaps
        )
        if not np.isfinite(overlaps.q.sum() + overlaps.m.sum() + overlaps.theta.sum() + overlaps.phi.sum()):
            raise DomainError("an overlap is infinite or not a number: the dynamics have diverged")
        channel, rows, loss = part.solver.channel, [], 0.0
        for labels, probability in part.label_probabilities:
            if labels not in self._teacher_laws:
                self._teacher_laws[labels] = _teacher_field_distribution(part, labels)
            fields = gaussian_distribution_of_fields(part, there, labels, self._teacher_laws[labels])
            total, value = self._sum_loss_gradient_moments(fields, labels)
            rows.append(total)
            loss += probability * value
        moments = moments_by_token_and_cluster(part, rows, channel.ROW)
        if isinstance(part, ReducedProblem):
            try:
                moments = moments_of_full_problem(part, overlaps, moments)
            except np.linalg.LinAlgError:
                raise DomainError(
                    "the combinations of fields that the loss depends on are linearly dependent at these overlaps"
                ) from None
        return _loss_gradient_averages(problem, moments, loss)

    def _sum_loss_gradient_moments(self, fields: FieldLaw, labels: tuple[int, ...]) -> tuple[np.ndarray, float]:
        """Return the moments of the loss gradient for every token, as one vector, and the mean loss."""
        part, channel = self.part, self.part.solver.channel
        total, loss = np.zeros(part.tokens * channel.ROW), 0.0
        sets: Iterable[_QuadratureNodeSet]
        if isinstance(self.rule, NodeBasedRule):
            reduction, sets = self._sobol_or_lattice_nodes(self.rule, fields, labels)
        else:
            reduction, sets = SymmetryReduction(()), self._product_rule_nodes(fields, labels, self.rule)
        for each in sets:
            rows, value = _loss_gradient_moments(part, fields, each)
            total += rows
            loss += value
        return reduction.average_moments_over_group(total, channel.ROW, channel.MOMENTS), loss

    def _sobol_or_lattice_nodes(
        self, rule: NodeBasedRule, fields: FieldLaw, labels: tuple[int, ...]
    ) -> tuple[SymmetryReduction, list[_QuadratureNodeSet]]:
        """Return Sobol or lattice nodes (cached), and the symmetries by which their number is reduced."""
        reduction = rule.symmetry_reduction(self.part, fields, labels)
        key = reduction, labels
        if key not in self._cached_nodes:
            sets = rule.nodes_and_weights_by_replicate(self.part, fields, reduction)
            shares = 1 / len(sets)
            self._cached_nodes[key] = [
                known
                for nodes, weights in sets
                for known in _make_quadrature_node_sets(self.part, fields, nodes, shares * weights)
            ]
        return reduction, self._cached_nodes[key]

    def _product_rule_nodes(
        self, fields: FieldLaw, labels: tuple[int, ...], points: int
    ) -> Iterable[_QuadratureNodeSet]:
        """Return nodes of a product rule that is split at the hyperplanes on which the loss has kinks."""
        part = self.part
        planes = part.kink_planes("loss", fields.constants)
        if len(planes):
            return self._split_product_rule_nodes(
                fields.planes_in_normal_coordinates(planes, part.noise_scale), fields, points
            )
        if float(points) ** part.dimension > LossGradientAverageOptions.current().max_cached_nodes:
            return self._split_product_rule_nodes(planes, fields, points)
        if labels not in self._cached_nodes:
            self._cached_nodes[labels] = list(self._split_product_rule_nodes(planes, fields, points))
        return self._cached_nodes[labels]

    def _split_product_rule_nodes(
        self, planes: np.ndarray, fields: FieldLaw, points: int
    ) -> Iterator[_QuadratureNodeSet]:
        """Yield sets of nodes of a product rule that is split at given hyperplanes."""
        for nodes, weights in HyperplaneSplit.split_on_planes(planes, self.part.dimension).node_batches(points):
            yield from _make_quadrature_node_sets(self.part, fields, nodes, weights)


def gradient_average_rules(problem: Problem) -> tuple[GradientAverageRule, ...]:
    """Return the quadrature rules for averages of the loss gradient of a problem, from coarse to fine.

    These are product rules for few fields, split at kinks of the loss; for more fields lattices if the loss is smooth,
    else Sobol sets.

    Raises:
        InputError: the solver of the problem was generated without a loss at given fields.
    """
    options = LossGradientAverageOptions.current()
    part = reduce_to_fields_of_loss(problem)
    if not callable(getattr(part.solver.channel, "losses_at", None)):
        raise InputError(
            f"the generated solver of {problem.solver.name} has no function `losses_at` (the loss at given fields), "
            "which the dynamics need: generate it again"
        )
    kinked, curved, dimension = _loss_has_kinks(part), bool(part.solver.model.CURVED["loss"]), part.dimension
    if not curved and (dimension <= MAX_PRODUCT_DIMENSION or (kinked and dimension <= options.max_split_dimension)):
        return tuple(GradientAverageRule(problem, n) for n in _SIZES if float(n) ** dimension <= MAX_PRODUCT_NODES)
    lattices = LatticeRule.rules_coarse_to_fine(part)
    chosen = (
        lattices[2::2] if len(lattices) > options.many_lattices else lattices[1:3]
    )  # the largest of few takes minutes
    if len(chosen) > 1:  # one alone has no error bar
        return tuple(GradientAverageRule(problem, rule) for rule in chosen)
    return tuple(GradientAverageRule(problem, rule) for rule in _SETS)


def _loss_has_kinks(part: Problem) -> bool:
    return any(len(part.kink_planes("loss", part.constants(labels))) for labels, _ in part.label_probabilities)


def describe_treatment_of_kinks(problem: Problem, rule: Any) -> str:
    """Return a sentence on how averages of the loss gradient treat kinks of the loss; empty for a smooth loss.

    Args:
        problem: the problem.
        rule: name of the quadrature rule, such as product or sobol.
    """
    part = reduce_to_fields_of_loss(problem)
    if not (_loss_has_kinks(part) or part.solver.model.CURVED["loss"]):
        return ""
    where = "panel by panel between the planes" if rule == "product" else "by nodes on all sides of"
    return f"the loss is not smooth: averages are taken {where} where it is not, and hold no derivative of its slope"


def _teacher_field_distribution(problem: Problem, labels: tuple[int, ...]) -> _TeacherFieldDistribution:
    contexts = problem.token_cluster_indices(labels)
    factor = np.linalg.cholesky(problem.law.rho_star[contexts])
    mean = np.ascontiguousarray(problem.law.teacher_means[contexts])
    identity = np.broadcast_to(np.eye(problem.student_rank), (len(contexts), *[problem.student_rank] * 2))
    return _TeacherFieldDistribution(contexts, mean, factor, np.swapaxes(np.linalg.inv(factor), 1, 2), identity)


def gaussian_distribution_of_fields(
    problem: Problem, overlaps: Overlaps, labels: tuple[int, ...], teacher: _TeacherFieldDistribution
) -> FieldLaw:
    """Return the joint Gaussian distribution of student and teacher fields of weights with given overlaps.

    Args:
        problem: the problem.
        overlaps: overlaps of the weights.
        labels: label of every token.
        teacher: distribution of the teacher fields.

    Raises:
        DomainError: no weights have these overlaps.
    """
    contexts, identity = teacher.contexts, teacher.identity
    q, from_teacher = overlaps.q[contexts], overlaps.theta[contexts] @ teacher.inverse
    left = q - from_teacher @ np.swapaxes(from_teacher, 1, 2)
    values, vectors = np.linalg.eigh((left + np.swapaxes(left, 1, 2)) / 2)
    scale = np.trace(q, axis1=1, axis2=2)[:, None] + np.finfo(float).tiny
    if np.any(values < -LossGradientAverageOptions.current().max_negative * scale):
        raise DomainError("no weights have these overlaps: q - theta rho*^(-1) theta^T has a negative eigenvalue")
    roots = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return FieldLaw(
        teacher_mean=teacher.mean,
        teacher_factor=teacher.factor,
        field_mean=np.ascontiguousarray(overlaps.m[contexts]),
        field_from_teacher=from_teacher,
        field_factor=roots,
        variance=identity,
        precision=identity,
        field_precision=identity,
        log_normalisation=np.nan,
        constants=problem.constants(labels, overlaps),
    )


def _make_quadrature_node_sets(
    part: Problem, fields: FieldLaw, nodes: np.ndarray, weights: np.ndarray
) -> Iterator[_QuadratureNodeSet]:
    """Yield sets of quadrature nodes: one for every value of the discrete noise and every small batch of nodes."""
    L, s, t = part.tokens, part.student_rank, part.teacher_rank
    channel: Any = part.solver.channel
    gaussian = part.is_gaussian_noise
    room = max(1, LossGradientAverageOptions.current().array_size // (L * max(s, t)))
    for first in range(0, len(nodes), room):
        block, shares = nodes[first : first + room], weights[first : first + room]
        count = len(block)
        z_teacher, z, noise = np.split(block, [L * t, L * (t + s)], axis=1)
        z_teacher, z = (
            np.ascontiguousarray(part_of_z.reshape(count, L, size).transpose(1, 2, 0))
            for part_of_z, size in ((z_teacher, t), (z, s))
        )
        dY = np.einsum("lab,lbn->lan", fields.teacher_factor, z_teacher)
        teachers = (dY + fields.teacher_mean[..., None]).transpose(2, 0, 1)
        teachers = np.ascontiguousarray(teachers.reshape(count, L * t))
        u = np.zeros((count, len(gaussian)))
        u[:, gaussian] = noise * part.noise_scale
        laws = part.solver.proximal.noise_law_at(teachers, fields.constants) if channel.LABELLED_NOISE else None
        for choice in noise_value_indices(part):
            if laws is not None:
                u[:, ~gaussian] = channel.LABELLED_NOISE[choice]
            known = channel.features_at(teachers, u, fields.constants)
            yield _QuadratureNodeSet(z, z_teacher, dY, known, shares if laws is None else shares * laws[:, choice])


def _loss_gradient_moments(part: Problem, fields: FieldLaw, at: _QuadratureNodeSet) -> tuple[np.ndarray, float]:
    """Return the moments of the loss gradient for every token, as one vector, and the mean loss."""
    channel: Any = part.solver.channel
    L, s = part.tokens, part.student_rank
    count = len(at.weights)
    # Sums of products of few rows over many nodes: einsum does them without threads of its own.
    dX = np.einsum("lab,lbn->lan", fields.field_factor, at.z)
    dX += np.einsum("lab,lbn->lan", fields.field_from_teacher, at.z_teacher)
    x = np.empty((count, L, s))
    np.add(dX, fields.field_mean[..., None], out=x.transpose(1, 2, 0))
    flat = x.reshape(count, L * s)
    values, slopes = channel.losses_at(flat, at.known, fields.constants)
    D = np.ascontiguousarray(slopes.reshape(count, L, s).transpose(1, 2, 0))
    weighted = D * at.weights
    parts = {
        "g": weighted.sum(axis=2)[..., None],
        "g*g.T": np.einsum("lan,lbn->lab", weighted, D),
        "g*domega.T": np.einsum("lan,lbn->lab", weighted, dX),
        "g*dY.T": np.einsum("lan,lbn->lab", weighted, at.dY),
    }
    if part.solver.model.HOLDS_Q or part.trained:
        parts |= _loss_gradients_in_q_and_phi(
            part, part.solver.proximal.own_gradients_at(flat, at.known, fields.constants), at.weights
        )
    rows = np.zeros((L, channel.ROW))
    for text, shape, offset in channel.MOMENTS:
        if text in parts:
            size = prod(shape)
            rows[:, offset : offset + size] = parts[text].reshape(L, size)
    return rows.ravel(), float(np.einsum("n,n->", values, at.weights))


def _loss_gradients_in_q_and_phi(part: Problem, slopes: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return mean derivatives of the loss in q, shape (tokens, s, s), and in trained numbers, by name of the moment."""
    slopes = np.einsum("nk,n->k", slopes, weights)
    L, s, trained = part.tokens, part.student_rank, len(part.trained)
    found: dict[str, np.ndarray] = {}
    in_phi = np.zeros((L, trained))
    in_phi[0] = slopes[len(slopes) - trained :]
    found["loss_phi"] = in_phi
    if part.solver.model.HOLDS_Q:
        rows, columns = np.triu_indices(s)
        triangles = slopes[: len(slopes) - trained].reshape(L, len(rows))
        matrices = np.zeros((L, s, s))
        matrices[:, rows, columns] += triangles / 2
        matrices[:, columns, rows] += triangles / 2
        found["loss_q"] = matrices
    return found


@cache
def _slices_by_moment_name(moments: tuple[tuple[str, tuple[int, ...], int], ...]) -> dict[str, slice]:
    return {name: slice(offset, offset + prod(size)) for name, size, offset in moments}


def _loss_gradient_averages(problem: Problem, moments: np.ndarray, loss: float) -> LossGradientAverages:
    contexts, s, t, trained = problem.sizes
    places = _slices_by_moment_name(problem.solver.channel.MOMENTS)

    def loss_gradient_moment(text: str, *shape: int) -> np.ndarray:
        """Return one moment of the loss gradient for all (token, cluster) pairs; zeros if the loss has none.

        Args:
            text: name of the moment in the generated solver, such as g*g.T.
            shape: shape of the moment of one pair.
        """
        if text not in places:
            return np.zeros((contexts, *shape))
        return np.ascontiguousarray(moments[:, places[text]].reshape(contexts, *shape))

    return LossGradientAverages(
        mean=loss_gradient_moment("g", s),
        square=loss_gradient_moment("g*g.T", s, s),
        with_fields=loss_gradient_moment("g*domega.T", s, s),
        with_teacher=loss_gradient_moment("g*dY.T", s, t),
        loss=loss,
        in_q=loss_gradient_moment("loss_q", s, s),
        in_phi=loss_gradient_moment("loss_phi", trained).sum(axis=0),
    )
