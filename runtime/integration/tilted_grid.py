"""Averages over the channel with replica symmetry broken, for losses that depend on up to two student fields.

Y and noise have equidistant nodes. At each of them the Moreau envelope is tabulated on a grid of omega, on which
Gaussian convolutions, one per level, lead from omega to omega_0, and back. Where the proximal map jumps sums over grid
points are corrected (`loops.tilted_grid`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.threads import run_loop_in_threads
from ..channel.exchange import SymmetryReduction
from ..channel.fields import FieldLaw, block_diagonal, diagonal_blocks, field_law
from ..channel.points import noise_value_indices, proximal_points_at_nodes, response_jacobians_at_minima
from ..problems.compiled import load_compiled_loops
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from .rule import Labels
from .sampled import TeacherFieldRule
from .tilted_sums import BrokenSymmetryState, TiltedRule, TiltedSumsGivenLabels

MAX_EXPONENT = 600.0  # of the tilt: beyond, doubles overflow
_SHIFTS = np.array([0.7548776662466927, 0.5698402909980532])  # of a grid against the one before, in steps


@dataclass(frozen=True)
class TiltedGridOptions(AlgorithmOptions):
    """Options of averages with replica symmetry broken on grids of the student field omega.

    Attributes:
        max_width_ratio: largest ratio of the narrowest width of the integrand for which a grid was constructed to the
            narrowest width at the state for which it is used.
        margin_factor: factor on the margin of a grid, for states near the one for which it was constructed.
        max_grid_points: largest number of points of one grid; if Delta needs more, an error is raised.
        points_at_once: largest number of points in memory at a time.
        max_cached_points: largest number of points whose proximal points are cached.
        difference_step: step of second derivatives by finite differences, in standard deviations of a field.
    """

    max_width_ratio: float = 1.5
    margin_factor: float = 1.2
    max_grid_points: float = 4e6
    points_at_once: float = 1e6
    max_cached_points: float = 3e7
    difference_step: float = 1e-4


def widths_resolved_by_grid(problem: Problem, state: BrokenSymmetryState, labels: Labels) -> np.ndarray:
    """Return the narrowest width of the integrand along every student field, which a grid of fields has to resolve.

    The widths are the standard deviations of the fields of all levels and the width of the transition between minima.

    Args:
        problem: problem whose fields are integrated over.
        state: order parameters with replica symmetry broken.
        labels: label of every token.

    Raises:
        DomainError: V, a covariance of fields or a Delta is not positive definite.
    """
    fields = field_law(problem, state.overlaps, labels)
    own = fields.field_factor @ fields.field_factor.transpose(0, 2, 1)
    blocks = (*state.distances[:, problem.token_cluster_indices(labels)], own, fields.variance / state.rates.max())
    narrow = np.min([np.linalg.eigvalsh(each)[:, 0] for each in blocks], axis=0)
    if not narrow.min() > 0:
        raise DomainError("Delta = q within minus q between replica states is not positive definite")
    return np.repeat(np.sqrt(narrow), problem.student_rank)


class GridLayout(NamedTuple):
    """A set of rectangular grids of the student field omega, one grid for every node of the teacher field Y and noise.

    Attributes:
        nodes: standard normal coordinates of Y and noise, one grid per row.
        weights: weight of each node of Y and noise.
        steps: spacing along each field, the same for all grids.
        corners: first point of each grid.
        counts: number of points per axis of each grid.
    """

    nodes: np.ndarray
    weights: np.ndarray
    steps: np.ndarray
    corners: np.ndarray
    counts: np.ndarray

    @classmethod
    def grids_around_centres(
        cls, nodes: np.ndarray, weights: np.ndarray, centres: np.ndarray, half: np.ndarray, steps: np.ndarray
    ) -> GridLayout:
        """Return one grid of student fields around each centre, each shifted by a different fraction of a step.

        Args:
            nodes: standard normal coordinates of the teacher field Y and noise, one node per row.
            weights: weight of each node.
            centres: centre of the grid of each node.
            half: half the length of each grid along each field.
            steps: spacing along each field.

        Raises:
            DomainError: a grid would be too large.
        """
        counts = 2 * np.ceil(half / steps).astype(np.int64) + 1
        if counts.prod(axis=1).max() > TiltedGridOptions.current().max_grid_points:
            points = counts.prod(axis=1).max()
            raise DomainError(f"q within minus q between replica states is too small: a grid needs {points:.0e} points")
        shifts = np.modf(np.multiply.outer(np.arange(len(nodes)), _SHIFTS))[0][:, : len(steps)] - 0.5
        return cls(nodes, weights, steps, centres + steps * (shifts - (counts - 1) / 2), counts)

    def grid_batches(self) -> Iterator[GridLayout]:
        """Yield the grids in batches whose points fit in memory."""
        ends, size = np.cumsum(self.counts.prod(axis=1)), TiltedGridOptions.current().points_at_once
        edges = np.searchsorted(ends, np.arange(size, ends[-1] + size, size))
        edges = np.unique(np.concatenate([[0], np.minimum(edges + 1, len(ends))]))
        for begin, end in pairwise(edges):
            at = slice(begin, end)
            yield GridLayout(self.nodes[at], self.weights[at], self.steps, self.corners[at], self.counts[at])


class _GridProximalPoints(NamedTuple):
    """The proximal points at all points of a batch of grids of the student field omega, grid by grid.

    Attributes:
        starts: index of the first point of each grid, then the number of points.
        costs: Moreau envelope at each point.
        g: V^{-1} (X - omega) at each point.
        bistable: whether a second minimum was found at each point.
        features: features of the loss that depend on teacher and noise, one grid per row.
        chance: probability of the value of the discrete noise, one per grid.
    """

    starts: np.ndarray
    costs: np.ndarray
    g: np.ndarray
    bistable: np.ndarray
    features: np.ndarray
    chance: np.ndarray


@dataclass(frozen=True)
class TiltedGridRule(TiltedRule):
    """A rule that tabulates the Moreau envelope on grids of the student fields omega, for broken replica symmetry.

    The teacher fields Y and the noise have equidistant nodes; there is one grid per node.

    Args:
        points: equidistant nodes per axis of Y and noise.
        density: number of grid points per narrowest width of the integrand (`widths_resolved_by_grid`).
        reach: largest distance of teacher fields, noise and the field omega_0 of all states from their means, in
            standard deviations.
        frame: state whose grids are used for all states nearby, so that derivatives contain no grid error; None for new
            grids at each state.
        kept: cached proximal points.
    """

    search_residual: ClassVar[float] = 1e-5
    final_residual: ClassVar[float] = 1e-7
    residual_share: ClassVar[float] = 1e-2
    max_rate: ClassVar[float] = 0.5  # errors scatter with the places of cusps once they are small
    points: int = 24
    density: float = 1.3
    reach: float = 6.0
    frame: BrokenSymmetryState | None = None
    kept: dict[Any, list[_GridProximalPoints]] = field(default_factory=dict, compare=False, repr=False)

    def rule_description(self) -> dict[str, Any]:
        """Return a dict with the rule's name, nodes per teacher field, and no seed, as in the JSON output."""
        return {"rule": "grids", "points": self.points, "seed": None}

    def finer_rule(self) -> TiltedGridRule:
        """Return the rule with more nodes per teacher field Y, and denser and larger grids of student fields."""
        return replace(
            self, points=round(self.points * 4 / 3), density=self.density * 1.15, reach=self.reach + 0.25, kept={}
        )

    def coarser_rule(self) -> TiltedGridRule:
        """Return the rule with fewer nodes per teacher field Y, and coarser grids of the student field omega."""
        return replace(self, points=round(self.points * 3 / 4), density=self.density / 1.15, kept={})

    def with_grids_of_state(self, overlaps: Overlaps, distances: np.ndarray, rates: np.ndarray) -> TiltedGridRule:
        """Return the rule that uses the grids of a given state for all states nearby.

        Args:
            overlaps: overlaps q_0 (of different states), V, m, theta.
            distances: differences Delta of overlaps of successive levels, shape (levels, (token, cluster) pairs, s, s).
            rates: Parisi parameter y of each level.
        """
        return replace(self, frame=BrokenSymmetryState(overlaps, distances, rates), kept={})

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether the rule applies: at most two student fields, and no corners of the loss in them."""
        part = reduce_to_fields_of_loss(problem).solver
        return part.channel.FIELDS <= 2 and not part.proximal.CORNERS

    def cost_of_symmetry_breaking_search(self, cost: float) -> float:
        """Return the cost of a search for one-step symmetry breaking, in evaluations of replica symmetric averages.

        Args:
            cost: cost of such an evaluation, see `Rule.evaluation_cost`.
        """
        return 5e9 / cost

    def _tilted_sums_given_labels(
        self, problem: Problem, state: BrokenSymmetryState, labels: Labels, slopes: bool
    ) -> TiltedSumsGivenLabels:
        """Return the channel averages with replica symmetry broken, given the labels.

        Raises:
            DomainError: the grids were constructed for a state too far from this one, or would be too large.
        """
        frame = self.frame.state_on_reduced_problem(problem) if self.frame else state
        L, s, t, D = problem.tokens, problem.student_rank, problem.teacher_rank, problem.solver.channel.FIELDS
        allowed = TiltedGridOptions.current().max_width_ratio * widths_resolved_by_grid(problem, state, labels)
        if np.any(widths_resolved_by_grid(problem, frame, labels) > allowed):
            raise DomainError("q within minus q between replica states is too small for a grid made at other overlaps")
        fields, K = field_law(problem, state.overlaps, labels), len(state.rates)
        known = TeacherFieldRule.teacher_rule_for_loss(problem, fields, self.points, equidistant=True)
        reduction = SymmetryReduction.symmetries_of_law_and_nodes(problem, fields, labels, known.axes)
        layout = self._grids_around_state(problem, frame, labels, reduction)
        spreads = np.stack(
            [
                _pad_matrix_to_two_fields(block_diagonal(each))
                for each in state.distances[:, problem.token_cluster_indices(labels)]
            ]
        )
        conditional = block_diagonal(fields.field_factor @ fields.field_factor.transpose(0, 2, 1))
        precision = _pad_matrix_to_two_fields(np.linalg.inv(conditional))
        norm = 1 / np.sqrt(np.linalg.det(2 * np.pi * conditional))
        sums, with_teacher = np.zeros(_number_of_tilted_sums(D, K, slopes)), np.zeros((L, s, t))
        for choice in noise_value_indices(problem):
            places_of_batches = self._cached_grid_proximal_points(problem, fields, labels, reduction, layout, choice)
            for batch, places in zip(layout.grid_batches(), places_of_batches, strict=True):
                if state.rates.max() * float(np.ptp(places.costs)) > MAX_EXPONENT:
                    raise DomainError(
                        f"Parisi parameter y too large: y times the Moreau envelope varies by over {MAX_EXPONENT:g}"
                    )
                out = np.zeros((len(batch.nodes), _number_of_tilted_sums(D, K, slopes)))
                y = batch.nodes[:, : L * t].reshape(len(batch.nodes), L, t)
                run_loop_in_threads(
                    load_compiled_loops("tilted_grid").fill_tilted_sums_on_grids, len(out), places.starts,
                    _pad_to_two_fields(batch.counts, 1), _pad_to_two_fields(batch.steps, 1.0),
                    _pad_to_two_fields(batch.corners, 0.0), places.costs, places.g,
                    _bistability_and_jacobian_columns(problem, fields, batch, places, slopes), state.rates, spreads,
                    _pad_to_two_fields(_conditional_field_means(fields, y), 0.0), precision, norm,
                    _pad_to_two_fields(fields.field_mean.ravel(), 0.0), slopes, out,
                )  # fmt: skip
                weights = batch.weights * places.chance
                sums += weights @ out
                teachers = np.einsum("lbc,plc->plb", fields.teacher_factor, y)
                means = out[:, K + 2 : K + 2 + D].reshape(-1, L, s)
                with_teacher += np.einsum("p,pla,plb->lab", weights, means, teachers)
        end = K + 2 + D + (K + 2) * D * D
        mass, *costs = sums[: K + 2]
        mean, matrices = sums[K + 2 : K + 2 + D], sums[K + 2 + D : end].reshape(K + 2, D, D)
        along, *products = (diagonal_blocks(one, L, s) for one in matrices)
        bistable, *rest = sums[end:]
        loss = costs[-1] - 0.5 * float(np.sum(state.overlaps.V[problem.token_cluster_indices(labels)] * products[-1]))
        return TiltedSumsGivenLabels(
            known={"g": mean, "g*dY.T": with_teacher, "g*domega.T": along},
            products=np.array(products),
            totals=np.array([*(-cost for cost in costs[:-1]), costs[-1], loss, bistable, mass]),
            squares=tuple(np.array(rest).reshape(-1, D, D, D, D)[::-1]),
            reduction=reduction,
        )

    def _grids_around_state(
        self, problem: Problem, frame: BrokenSymmetryState, labels: Labels, reduction: SymmetryReduction
    ) -> GridLayout:
        """Return the grids of student fields for given order parameters, one for each node of teacher fields and noise.

        Raises:
            DomainError: a grid would be too large.
        """
        L, t = problem.tokens, problem.teacher_rank
        fields = field_law(problem, frame.overlaps, labels)
        nodes, weights = TeacherFieldRule.teacher_rule_for_loss(
            problem, fields, self.points, equidistant=True
        ).nodes_and_weights
        weights = weights * reduction.orbit_sizes(nodes, problem.teacher_rank)
        left = self.reach**2 - (nodes**2).sum(axis=1)
        kept = (weights > 0) & (left > 0)
        nodes, weights, left = nodes[kept], weights[kept], left[kept]
        steps = widths_resolved_by_grid(problem, frame, labels) / self.density
        own = np.linalg.norm(block_diagonal(fields.field_factor), axis=1)
        distances = frame.distances[:, problem.token_cluster_indices(labels)]
        widths = sum(np.sqrt(np.diagonal(block_diagonal(each))) for each in distances)
        slack = TiltedGridOptions.current().margin_factor
        half = (
            np.sqrt(np.maximum(left, 1.0))[:, None] * own
            + slack * load_compiled_loops("tilted_grid").MARGIN * widths
            + 2 * steps
        )
        centres = _conditional_field_means(fields, nodes[:, : L * t].reshape(len(nodes), L, t))
        return GridLayout.grids_around_centres(nodes, weights, centres, half, steps)

    def _cached_grid_proximal_points(
        self,
        problem: Problem,
        fields: FieldLaw,
        labels: Labels,
        reduction: SymmetryReduction,
        layout: GridLayout,
        choice: int,
    ) -> Iterator[_GridProximalPoints]:
        """Yield the proximal points at the grid points, batch by batch; cached for equal V and grids."""
        key = (labels, choice, reduction.exchanges, fields.variance.tobytes(), fields.constants.tobytes())
        if key in self.kept:
            yield from self.kept[key]
            return
        found = []
        for batch in layout.grid_batches():
            places = _proximal_points_on_grids(problem, fields, batch, choice)
            if self.frame is not None:
                found.append(places)
            yield places
        count = layout.counts.prod(axis=1).sum() * (1 + len(self.kept))
        if self.frame is not None and count < TiltedGridOptions.current().max_cached_points:
            self.kept[key] = found


def _number_of_tilted_sums(fields: int, levels: int, slopes: bool) -> int:
    """Return the number of sums per grid of student fields that `fill_tilted_sums_on_grids` computes."""
    return levels + 3 + fields + (levels + 2) * fields**2 + 2 * slopes * fields**4


def _pad_matrix_to_two_fields(matrix: np.ndarray) -> np.ndarray:
    """Return the matrix of one or two fields with shape (2, 2); a single field becomes the second one."""
    out = np.zeros((2, 2))
    out[2 - len(matrix) :, 2 - len(matrix) :] = matrix
    return out


def _pad_to_two_fields(values: np.ndarray, fill: float) -> np.ndarray:
    """Return the values of one or two fields with a last axis of length 2; a single field becomes the second one."""
    if values.shape[-1] == 2:
        return np.ascontiguousarray(values)
    return np.concatenate([np.full_like(values, fill), values], axis=-1)


def _conditional_field_means(fields: FieldLaw, y: np.ndarray) -> np.ndarray:
    """Return the mean E[omega_0 | Y] of the student field common to all states given the teacher field, one grid a row.

    Args:
        fields: law of the fields.
        y: standard normal coordinates of the teacher field Y, shape (grids, L, t).
    """
    return (fields.field_mean + np.einsum("lat,plt->pla", fields.field_from_teacher, y)).reshape(len(y), -1)


def grid_point_coordinates(batch: GridLayout) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid number and the field omega of every point of a batch of grids."""
    sizes = batch.counts.prod(axis=1)
    which = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(which)) - (np.cumsum(sizes) - sizes)[which]
    steps = np.stack(np.divmod(place, batch.counts[which, -1]), axis=1)
    return which, batch.corners[which] + batch.steps * steps[:, 2 - len(batch.steps) :]


def _proximal_points_on_grids(
    problem: Problem, fields: FieldLaw, batch: GridLayout, choice: int
) -> _GridProximalPoints:
    """Return the proximal points at all points of a batch of grids of student fields."""
    L, t = problem.tokens, problem.teacher_rank
    starts = np.concatenate([[0], np.cumsum(batch.counts.prod(axis=1))])
    which, omega = grid_point_coordinates(batch)
    away = omega - _conditional_field_means(fields, batch.nodes[:, : L * t].reshape(len(batch.nodes), L, t))[which]
    inner = np.linalg.solve(block_diagonal(fields.field_factor), away.T).T
    outer, noise = batch.nodes[which, : L * t], batch.nodes[which, L * t :]
    points = proximal_points_at_nodes(problem, fields, np.concatenate([outer, inner, noise], axis=1), choice=choice)
    first = starts[:-1]
    g = points.g.reshape(len(omega), -1)
    return _GridProximalPoints(starts, points.value, g, points.minima > 1, points.features[first], points.weight[first])


def _bistability_and_jacobian_columns(
    problem: Problem, fields: FieldLaw, batch: GridLayout, places: _GridProximalPoints, slopes: bool
) -> np.ndarray:
    """Return a table with one grid point per row: whether it has a second minimum, then products of Jacobians.

    The minimum is one of the Moreau objective. The products are G_ab G_ef of the Jacobian G = dg/domega of the field g,
    only if `slopes` is true.
    """
    bistable = places.bistable[:, None].astype(float)
    if not slopes:
        return bistable
    which, omega = grid_point_coordinates(batch)
    x = omega + places.g @ block_diagonal(fields.variance)
    step = TiltedGridOptions.current().difference_step * float(np.std(x))
    G, _ = response_jacobians_at_minima(problem, fields, x, places.features[which], step)
    return np.concatenate([bistable, np.einsum("nab,nef->nabef", G, G).reshape(len(G), -1)], axis=1)


GRID_SIZES = (
    TiltedGridRule(16, 1.1, 5.0),
    TiltedGridRule(32, 1.2, 5.5),
    TiltedGridRule(48, 1.3, 5.75),
    TiltedGridRule(64, 1.5, 6.0),
)
