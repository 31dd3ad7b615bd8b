"""Averages over a sample of the slope D of the loss, at the fields of the weights themselves.

They are the channel averages of the saddle point with g replaced by -D at X = omega, the limit of the proximal map for
V to 0 (docs/theory.md (19.4)): the same moments over the same nodes, and no proximal map to solve.
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
from ...channel.exchange import Reduction
from ...channel.fields import Fields
from ...channel.points import noise_values
from ...integration.lattice import Lattice
from ...integration.rule import moments_by_context, moments_of_full_problem
from ...integration.sampled import MAX_PRODUCT_DIMENSION, MAX_PRODUCT_NODES, Sampled, Sobol
from ...integration.splitting import HyperplaneSplit
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...problems.reduced import ReducedProblem, reduce_to_loss

_SIZES = (8, 12, 18, 28, 42, 64, 96, 144, 216)  # nodes a panel, or an axis
_SETS = tuple(Sobol(log2) for log2 in range(8, 17))


@dataclass(frozen=True)
class SlopeAverageOptions(AlgorithmOptions):
    """Options of averages of the slope of the loss.

    Attributes:
        max_negative: negative eigenvalue of the covariance of X given Y, relative to that of X, that is accepted: trial
            steps in time may need it.
        max_split_dimension: dimensions up to which product rules are split at the kinks of the loss.
        max_cached_nodes: nodes of a product rule up to which they are cached; more take memory.
        array_size: numbers of an array that is allocated at every average, small enough for the allocator to reuse it.
        many_lattices: sizes of a lattice above which every second one is used.
    """

    max_negative: float = 1e-2
    max_split_dimension: int = 6
    max_cached_nodes: float = 2e5
    array_size: int = 12_288
    many_lattices: int = 4


@dataclass(frozen=True)
class SlopeAverages:
    """Averages of D_l = dloss/dX_l, restricted to each of C contexts (docs/theory.md (19.3)).

    Attributes:
        mean: E_c[D], (C, s). square: E_c[D D^T], (C, s, s).
        with_fields, with_teacher: E_c[D (X - m)^T] and E_c[D (Y - m*)^T], (C, s, s) and (C, s, t).
        loss: E[loss]. in_q, in_phi: E_c[dloss/dq], symmetrised, and E[dloss/dphi]: (C, s, s), (P,).
    """

    mean: np.ndarray
    square: np.ndarray
    with_fields: np.ndarray
    with_teacher: np.ndarray
    loss: float
    in_q: np.ndarray
    in_phi: np.ndarray


@dataclass(frozen=True)
class _NodeSet:
    """A set of nodes of one assignment of labels and one value of labelled noise, independent of the model's weights.

    Attributes:
        z, z_teacher: standard normal coordinates of omega and Y, (L, s, N), (L, t, N).
        dY: Y less its mean, (L, t, N); known: features, (N, FEATURES); weights: (N,).
    """

    z: np.ndarray
    z_teacher: np.ndarray
    dY: np.ndarray
    known: np.ndarray
    weights: np.ndarray


class _TeacherLaw(NamedTuple):
    """The law of the teacher's fields for one assignment of labels.

    Attributes:
        contexts: (L,); mean, factor: means and Cholesky factors of Y, (L, t), (L, t, t).
        inverse: the transposed inverse of the factors; identity: (L, s, s).
    """

    contexts: np.ndarray
    mean: np.ndarray
    factor: np.ndarray
    inverse: np.ndarray
    identity: np.ndarray


class AverageRule:
    """A rule of integration for `SlopeAverages`, of one size.

    Args:
        problem: the problem.
        rule: Sobol sets or a lattice; or the nodes of a panel of a product rule that is split at kinks of the loss.
    """

    def __init__(self, problem: Problem, rule: Sampled | int) -> None:
        self.problem, self.rule = problem, rule
        self.part = reduce_to_loss(problem)
        self._cached_nodes: dict[Any, list[_NodeSet]] = {}
        self._teacher_laws: dict[tuple[int, ...], _TeacherLaw] = {}
        self.evaluations = 0

    def describe(self) -> dict[str, Any]:
        """Return rule, points and seed for JSON."""
        if isinstance(self.rule, Sampled):
            return self.rule.describe()
        return {"rule": "product", "points": self.rule, "seed": None}

    def __call__(self, overlaps: Overlaps) -> SlopeAverages:
        """Return the averages at overlaps, whose V is not used.

        Raises:
            DomainError: the fields have no law with these overlaps.
        """
        self.evaluations += 1
        problem, part = self.problem, self.part
        there = part.overlap_maps.overlaps_at(overlaps.pack()) if isinstance(part, ReducedProblem) else overlaps
        if not np.isfinite(overlaps.q.sum() + overlaps.m.sum() + overlaps.theta.sum() + overlaps.phi.sum()):
            raise DomainError("an overlap is not finite")
        channel, rows, loss = part.solver.channel, [], 0.0
        for labels, probability in part.label_choices:
            if labels not in self._teacher_laws:
                self._teacher_laws[labels] = _teacher_law_of(part, labels)
            fields = law_of_fields(part, there, labels, self._teacher_laws[labels])
            total, value = self._sum_moments(fields, labels)
            rows.append(total)
            loss += probability * value
        moments = moments_by_context(part, rows, channel.ROW)
        if isinstance(part, ReducedProblem):
            try:
                moments = moments_of_full_problem(part, overlaps, moments)
            except np.linalg.LinAlgError:
                raise DomainError(
                    "the combinations of fields that the loss depends on are linearly dependent"
                ) from None
        return _slope_averages(problem, moments, loss)

    def _sum_moments(self, fields: Fields, labels: tuple[int, ...]) -> tuple[np.ndarray, float]:
        """Return token rows (L ROW,) of the moments of D, and E[loss]."""
        part, channel = self.part, self.part.solver.channel
        total, loss = np.zeros(part.tokens * channel.ROW), 0.0
        sets: Iterable[_NodeSet]
        if isinstance(self.rule, Sampled):
            reduction, sets = self._sampled_node_sets(self.rule, fields, labels)
        else:
            reduction, sets = Reduction(()), self._product_node_sets(fields, labels, self.rule)
        for each in sets:
            rows, value = _slope_moments(part, fields, each)
            total += rows
            loss += value
        return reduction.average_moments(total, channel.ROW, channel.MOMENTS), loss

    def _sampled_node_sets(
        self, rule: Sampled, fields: Fields, labels: tuple[int, ...]
    ) -> tuple[Reduction, list[_NodeSet]]:
        """Return nodes that are fixed in standard normal coordinates, with the teacher's fields computed once."""
        reduction = rule.reduction_of(self.part, fields, labels)
        key = reduction, labels
        if key not in self._cached_nodes:
            sets = rule.node_sets(self.part, fields, reduction)
            shares = 1 / len(sets)
            self._cached_nodes[key] = [
                known
                for nodes, weights in sets
                for known in _make_node_sets(self.part, fields, nodes, shares * weights)
            ]
        return reduction, self._cached_nodes[key]

    def _product_node_sets(self, fields: Fields, labels: tuple[int, ...], points: int) -> Iterable[_NodeSet]:
        """Return nodes of product rules, split at the kink planes of the loss, which move with the weights."""
        part = self.part
        planes = part.kink_planes("loss", fields.constants)
        if len(planes):
            return self._split_node_sets(fields.planes_in_normal_coordinates(planes, part.noise_scale), fields, points)
        if float(points) ** part.dimension > SlopeAverageOptions.current().max_cached_nodes:
            return self._split_node_sets(planes, fields, points)
        if labels not in self._cached_nodes:
            self._cached_nodes[labels] = list(self._split_node_sets(planes, fields, points))
        return self._cached_nodes[labels]

    def _split_node_sets(self, planes: np.ndarray, fields: Fields, points: int) -> Iterator[_NodeSet]:
        """Yield nodes of a product rule that is split at planes."""
        for nodes, weights in HyperplaneSplit.on_planes(planes, self.part.dimension).rule_in_blocks(points):
            yield from _make_node_sets(self.part, fields, nodes, weights)


def average_rules_for(problem: Problem) -> tuple[AverageRule, ...]:
    """Return the rules of integration for a problem, from coarse to fine.

    These are product rules for few fields, split at kinks of the loss; lattices for more where it is smooth; else Sobol
    sets.

    Raises:
        InputError: the solver of the problem was generated without a loss at given fields.
    """
    options = SlopeAverageOptions.current()
    part = reduce_to_loss(problem)
    if not callable(getattr(part.solver.channel, "losses_at", None)):
        raise InputError(f"{problem.solver.name}: its solver has no loss at given fields")
    kinked, curved, dimension = _has_kinks(part), bool(part.solver.model.CURVED["loss"]), part.dimension
    if not curved and (dimension <= MAX_PRODUCT_DIMENSION or (kinked and dimension <= options.max_split_dimension)):
        return tuple(AverageRule(problem, n) for n in _SIZES if float(n) ** dimension <= MAX_PRODUCT_NODES)
    lattices = Lattice.sizes(part)
    chosen = (
        lattices[2::2] if len(lattices) > options.many_lattices else lattices[1:3]
    )  # the largest of few takes minutes
    if len(chosen) > 1:  # one alone has no error bar
        return tuple(AverageRule(problem, rule) for rule in chosen)
    return tuple(AverageRule(problem, rule) for rule in _SETS)


def _has_kinks(part: Problem) -> bool:
    return any(len(part.kink_planes("loss", part.constants(labels))) for labels, _ in part.label_choices)


def describe_kinks(problem: Problem, rule: Any) -> str:
    """Return a sentence on how averages are taken across jumps of the slope of the loss; empty for a smooth loss.

    Args:
        problem: the problem.
        rule: name of the rule, as of `AverageRule.describe`.
    """
    part = reduce_to_loss(problem)
    if not (_has_kinks(part) or part.solver.model.CURVED["loss"]):
        return ""
    where = "panel by panel between the planes" if rule == "product" else "by nodes on all sides of"
    return f"the loss is not smooth: averages are taken {where} where it is not, and hold no derivative of its slope"


def _teacher_law_of(problem: Problem, labels: tuple[int, ...]) -> _TeacherLaw:
    contexts = problem.context_indices(labels)
    factor = np.linalg.cholesky(problem.law.rho_star[contexts])
    mean = np.ascontiguousarray(problem.law.teacher_means[contexts])
    identity = np.broadcast_to(np.eye(problem.student_rank), (len(contexts), *[problem.student_rank] * 2))
    return _TeacherLaw(contexts, mean, factor, np.swapaxes(np.linalg.inv(factor), 1, 2), identity)


def law_of_fields(problem: Problem, overlaps: Overlaps, labels: tuple[int, ...], teacher: _TeacherLaw) -> Fields:
    """Return the law of the fields, where X may be a function of Y: its covariance given Y may be singular.

    Args:
        problem: the problem.
        overlaps: the overlaps.
        labels: the assignment of labels.
        teacher: the law of the teacher's fields.

    Raises:
        DomainError: it has a negative eigenvalue.
    """
    contexts, identity = teacher.contexts, teacher.identity
    q, from_teacher = overlaps.q[contexts], overlaps.theta[contexts] @ teacher.inverse
    left = q - from_teacher @ np.swapaxes(from_teacher, 1, 2)
    values, vectors = np.linalg.eigh((left + np.swapaxes(left, 1, 2)) / 2)
    scale = np.trace(q, axis1=1, axis2=2)[:, None] + np.finfo(float).tiny
    if np.any(values < -SlopeAverageOptions.current().max_negative * scale):
        raise DomainError("q - theta rho*^(-1) theta^T has a negative eigenvalue: there are no such weights")
    roots = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return Fields(
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


def _make_node_sets(part: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray) -> Iterator[_NodeSet]:
    """Yield node sets, one for every value of labelled noise and batch of nodes.

    Batches are small, as the allocator returns larger arrays to the system after every average.
    """
    L, s, t = part.tokens, part.student_rank, part.teacher_rank
    channel: Any = part.solver.channel
    gaussian = part.is_gaussian
    room = max(1, SlopeAverageOptions.current().array_size // (L * max(s, t)))
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
        for choice in noise_values(part):
            if laws is not None:
                u[:, ~gaussian] = channel.LABELLED_NOISE[choice]
            known = channel.features_at(teachers, u, fields.constants)
            yield _NodeSet(z, z_teacher, dY, known, shares if laws is None else shares * laws[:, choice])


def _slope_moments(part: Problem, fields: Fields, at: _NodeSet) -> tuple[np.ndarray, float]:
    """Return token rows of the moments, with D in place of g, and E[loss]."""
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
        parts |= _own_gradients(
            part, part.solver.proximal.own_gradients_at(flat, at.known, fields.constants), at.weights
        )
    rows = np.zeros((L, channel.ROW))
    for text, shape, offset in channel.MOMENTS:
        if text in parts:
            size = prod(shape)
            rows[:, offset : offset + size] = parts[text].reshape(L, size)
    return rows.ravel(), float(np.einsum("n,n->", values, at.weights))


def _own_gradients(part: Problem, slopes: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return derivatives in q of every token as symmetric matrices, and those in phi with the first token."""
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
def _moment_slices(moments: tuple[tuple[str, tuple[int, ...], int], ...]) -> dict[str, slice]:
    return {name: slice(offset, offset + prod(size)) for name, size, offset in moments}


def _slope_averages(problem: Problem, moments: np.ndarray, loss: float) -> SlopeAverages:
    contexts, s, t, trained = problem.sizes
    places = _moment_slices(problem.solver.channel.MOMENTS)

    def block(text: str, *shape: int) -> np.ndarray:
        """Return a moment of all contexts, zero where the loss has none.

        Args:
            text: its name.
            shape: its shape in a context.
        """
        if text not in places:
            return np.zeros((contexts, *shape))
        return np.ascontiguousarray(moments[:, places[text]].reshape(contexts, *shape))

    return SlopeAverages(
        mean=block("g", s),
        square=block("g*g.T", s, s),
        with_fields=block("g*domega.T", s, s),
        with_teacher=block("g*dY.T", s, t),
        loss=loss,
        in_q=block("loss_q", s, s),
        in_phi=block("loss_phi", trained).sum(axis=0),
    )
