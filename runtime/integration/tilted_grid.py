"""Averages with replica symmetry broken over the channel, of losses that depend on up to two student fields.

Y and noise take equidistant nodes, and at each the Moreau envelope is tabulated on a grid of omega, on which Gaussian
convolutions, one a level, lead from omega to omega_0, and back. Where the proximal map jumps sums over grid points are
corrected (`loops.tilted_grid`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.threads import run_in_threads
from ..channel.exchange import Reduction
from ..channel.fields import Fields, block_diagonal, diagonal_blocks, field_law
from ..channel.points import noise_values, proximal_points_at, slopes_at_minima
from ..problems.compiled import load_loops
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_loss
from .rule import Labels
from .sampled import TeacherRule
from .tilted_sums import LabelSums, TiltedRule, TiltedState

MAX_EXPONENT = 600.0  # of the tilt: beyond, doubles overflow
_SHIFTS = np.array([0.7548776662466927, 0.5698402909980532])  # of a grid against the one before, in steps


@dataclass(frozen=True)
class TiltedGridOptions(AlgorithmOptions):
    """Options of averages with replica symmetry broken on grids of omega.

    Attributes:
        max_width_ratio: by which the narrowest width may fall below that of the grid, before the grid is refused.
        margin_factor: on the margin of a grid, for states near the one that it was made for.
        max_grid_points: of one grid; beyond, Delta is too small.
        points_at_once: which bounds the memory.
        max_cached_points: whose proximal points are cached.
        difference_step: of second derivatives by differences, in the spread of a field.
    """

    max_width_ratio: float = 1.5
    margin_factor: float = 1.2
    max_grid_points: float = 4e6
    points_at_once: float = 1e6
    max_cached_points: float = 3e7
    difference_step: float = 1e-4


def widths_to_resolve(problem: Problem, state: TiltedState, labels: Labels) -> np.ndarray:
    """Return the narrowest width that a grid has to resolve along every field, (L s,).

    The widths are those of z of any level, of omega_0 and of the transition between two minima.

    Args:
        problem: problem that is integrated over.
        state: state with replica symmetry broken.
        labels: label of every token.

    Raises:
        DomainError: the state is outside the domain.
    """
    fields = field_law(problem, state.overlaps, labels)
    own = fields.field_factor @ fields.field_factor.transpose(0, 2, 1)
    blocks = (*state.distances[:, problem.context_indices(labels)], own, fields.variance / state.rates.max())
    narrow = np.min([np.linalg.eigvalsh(each)[:, 0] for each in blocks], axis=0)
    if not narrow.min() > 0:
        raise DomainError("Delta is not positive definite")
    return np.repeat(np.sqrt(narrow), problem.student_rank)


class GridLayout(NamedTuple):
    """A set of grids of one assignment of labels and one value of the labelled noise: points corner + steps (i, j).

    Attributes:
        nodes: of Y and noise, (P, L t + U); weights: (P,); steps: (D,); corners, counts: (P, D).
    """

    nodes: np.ndarray
    weights: np.ndarray
    steps: np.ndarray
    corners: np.ndarray
    counts: np.ndarray

    @classmethod
    def around_centres(
        cls, nodes: np.ndarray, weights: np.ndarray, centres: np.ndarray, half: np.ndarray, steps: np.ndarray
    ) -> GridLayout:
        """Return grids around centres, each shifted against the one before.

        Args:
            nodes: of Y and noise, (P, L t + U).
            weights: (P,).
            centres: (P, D).
            half: reach to either side, (P, D).
            steps: (D,).

        Raises:
            DomainError: they would be too large.
        """
        counts = 2 * np.ceil(half / steps).astype(np.int64) + 1
        if counts.prod(axis=1).max() > TiltedGridOptions.current().max_grid_points:
            raise DomainError(f"Delta is too small: a grid would have {counts.prod(axis=1).max():.0e} places")
        shifts = np.modf(np.multiply.outer(np.arange(len(nodes)), _SHIFTS))[0][:, : len(steps)] - 0.5
        return cls(nodes, weights, steps, centres + steps * (shifts - (counts - 1) / 2), counts)

    def batches(self) -> Iterator[GridLayout]:
        """Yield parts of few enough points for the memory."""
        ends, size = np.cumsum(self.counts.prod(axis=1)), TiltedGridOptions.current().points_at_once
        edges = np.searchsorted(ends, np.arange(size, ends[-1] + size, size))
        edges = np.unique(np.concatenate([[0], np.minimum(edges + 1, len(ends))]))
        for begin, end in pairwise(edges):
            at = slice(begin, end)
            yield GridLayout(self.nodes[at], self.weights[at], self.steps, self.corners[at], self.counts[at])


class _GridPoints(NamedTuple):
    """A set of proximal points on the grids of a batch, one after another.

    Attributes:
        starts: where each grid begins, and the end, (P + 1,); costs: the Moreau envelope, (N,); g: (N, D).
        bistable: whether a second minimum was found, (N,); features: (P, F); chance: of the labelled noise, (P,).
    """

    starts: np.ndarray
    costs: np.ndarray
    g: np.ndarray
    bistable: np.ndarray
    features: np.ndarray
    chance: np.ndarray


@dataclass(frozen=True)
class Grids(TiltedRule):
    """A rule of grids.

    Args:
        points: equidistant nodes an axis of Y and noise.
        density: grid points on the narrowest width to resolve.
        reach: of Y, noise and omega_0 together, in standard deviations.
        frame: state whose grids are used for other states nearby: with grids that moved with the state a derivative
            would contain the error of a grid. Those of the state itself where it is None.
        kept: proximal points computed so far.
    """

    search_residual: ClassVar[float] = 1e-5
    final_residual: ClassVar[float] = 1e-7
    residual_share: ClassVar[float] = 1e-2
    max_rate: ClassVar[float] = 0.5  # errors scatter with the places of cusps once they are small
    points: int = 24
    density: float = 1.3
    reach: float = 6.0
    frame: TiltedState | None = None
    kept: dict[Any, list[_GridPoints]] = field(default_factory=dict, compare=False, repr=False)

    def describe(self) -> dict[str, Any]:
        """Return rule, points, seed for the JSON contract; `points` are those an axis of Y."""
        return {"rule": "grids", "points": self.points, "seed": None}

    def finer_rule(self) -> Grids:
        """Return the rule with more nodes on every axis, and farther out; grids converge faster than Y does."""
        return replace(
            self, points=round(self.points * 4 / 3), density=self.density * 1.15, reach=self.reach + 0.25, kept={}
        )

    def coarser_rule(self) -> Grids:
        """Return the rule with fewer nodes on every axis."""
        return replace(self, points=round(self.points * 3 / 4), density=self.density / 1.15, kept={})

    def with_grids_of(self, overlaps: Overlaps, distances: np.ndarray, rates: np.ndarray) -> Grids:
        """Return the same rule on the grids of a state.

        Args:
            overlaps: q_0, V, m, theta.
            distances: Delta of every level, (K, C, s, s).
            rates: Parisi parameters y, (K,).
        """
        return replace(self, frame=TiltedState(overlaps, distances, rates), kept={})

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether the loss depends on at most two student fields, and does not bend in them."""
        part = reduce_to_loss(problem).solver
        return part.channel.FIELDS <= 2 and not part.proximal.CORNERS

    def search_effort(self, cost: float) -> float:
        """Return the effort relative to the other rule's cost: the size of grids does not depend on that rule."""
        return 5e9 / cost

    def _tilted_sums(self, problem: Problem, state: TiltedState, labels: Labels, slopes: bool) -> LabelSums:
        """Return the sums over one assignment of labels.

        Raises:
            DomainError: the state has moved too far from that of the grids, or they would be too large.
        """
        frame = self.frame.on_reduced_problem(problem) if self.frame else state
        L, s, t, D = problem.tokens, problem.student_rank, problem.teacher_rank, problem.solver.channel.FIELDS
        allowed = TiltedGridOptions.current().max_width_ratio * widths_to_resolve(problem, state, labels)
        if np.any(widths_to_resolve(problem, frame, labels) > allowed):
            raise DomainError("Delta became too small for its grid")
        fields, K = field_law(problem, state.overlaps, labels), len(state.rates)
        known = TeacherRule.for_loss(problem, fields, self.points, equidistant=True)
        reduction = Reduction.of_rule(problem, fields, labels, known.axes)
        layout = self._layout_around(problem, frame, labels, reduction)
        spreads = np.stack(
            [_as_plane_matrix(block_diagonal(each)) for each in state.distances[:, problem.context_indices(labels)]]
        )
        conditional = block_diagonal(fields.field_factor @ fields.field_factor.transpose(0, 2, 1))
        precision = _as_plane_matrix(np.linalg.inv(conditional))
        norm = 1 / np.sqrt(np.linalg.det(2 * np.pi * conditional))
        sums, with_teacher = np.zeros(_row_length(D, K, slopes)), np.zeros((L, s, t))
        for choice in noise_values(problem):
            places_of_batches = self._grid_proximal_points(problem, fields, labels, reduction, layout, choice)
            for batch, places in zip(layout.batches(), places_of_batches, strict=True):
                if state.rates.max() * float(np.ptp(places.costs)) > MAX_EXPONENT:
                    raise DomainError("exp(-y M) is beyond double precision")
                out = np.zeros((len(batch.nodes), _row_length(D, K, slopes)))
                y = batch.nodes[:, : L * t].reshape(len(batch.nodes), L, t)
                run_in_threads(
                    load_loops("tilted_grid").tilted_on_grids, len(out), places.starts, _pad_fields(batch.counts, 1),
                    _pad_fields(batch.steps, 1.0), _pad_fields(batch.corners, 0.0), places.costs, places.g,
                    _further_columns(problem, fields, batch, places, slopes), state.rates, spreads,
                    _pad_fields(_conditional_means(fields, y), 0.0), precision, norm,
                    _pad_fields(fields.field_mean.ravel(), 0.0), slopes, out,
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
        loss = costs[-1] - 0.5 * float(np.sum(state.overlaps.V[problem.context_indices(labels)] * products[-1]))
        return LabelSums(
            known={"g": mean, "g*dY.T": with_teacher, "g*domega.T": along},
            products=np.array(products),
            totals=np.array([*(-cost for cost in costs[:-1]), costs[-1], loss, bistable, mass]),
            squares=tuple(np.array(rest).reshape(-1, D, D, D, D)[::-1]),
            reduction=reduction,
        )

    def _layout_around(self, problem: Problem, frame: TiltedState, labels: Labels, reduction: Reduction) -> GridLayout:
        """Return the grids around a state.

        Raises:
            DomainError: they would be too large.
        """
        L, t = problem.tokens, problem.teacher_rank
        fields = field_law(problem, frame.overlaps, labels)
        nodes, weights = TeacherRule.for_loss(problem, fields, self.points, equidistant=True).rule
        weights = weights * reduction.orbit_sizes(nodes, problem.teacher_rank)
        left = self.reach**2 - (nodes**2).sum(axis=1)
        kept = (weights > 0) & (left > 0)
        nodes, weights, left = nodes[kept], weights[kept], left[kept]
        steps = widths_to_resolve(problem, frame, labels) / self.density
        own = np.linalg.norm(block_diagonal(fields.field_factor), axis=1)
        widths = sum(
            np.sqrt(np.diagonal(block_diagonal(each))) for each in frame.distances[:, problem.context_indices(labels)]
        )  # fmt: skip
        slack = TiltedGridOptions.current().margin_factor
        half = (
            np.sqrt(np.maximum(left, 1.0))[:, None] * own
            + slack * load_loops("tilted_grid").MARGIN * widths
            + 2 * steps
        )
        centres = _conditional_means(fields, nodes[:, : L * t].reshape(len(nodes), L, t))
        return GridLayout.around_centres(nodes, weights, centres, half, steps)

    def _grid_proximal_points(
        self, problem: Problem, fields: Fields, labels: Labels, reduction: Reduction, layout: GridLayout, choice: int
    ) -> Iterator[_GridPoints]:
        """Yield proximal points on the grids, batch by batch: cached ones for the same V, and with the same grids."""
        key = (labels, choice, reduction.exchanges, fields.variance.tobytes(), fields.constants.tobytes())
        if key in self.kept:
            yield from self.kept[key]
            return
        found = []
        for batch in layout.batches():
            places = _proximal_points_on_batch(problem, fields, batch, choice)
            if self.frame is not None:
                found.append(places)
            yield places
        count = layout.counts.prod(axis=1).sum() * (1 + len(self.kept))
        if self.frame is not None and count < TiltedGridOptions.current().max_cached_points:
            self.kept[key] = found


def _row_length(fields: int, levels: int, slopes: bool) -> int:
    """Return the length of a row that `tilted_on_grids` fills."""
    return levels + 3 + fields + (levels + 2) * fields**2 + 2 * slopes * fields**4


def _as_plane_matrix(matrix: np.ndarray) -> np.ndarray:
    """Return a matrix as (2, 2): a single field is the second."""
    out = np.zeros((2, 2))
    out[2 - len(matrix) :, 2 - len(matrix) :] = matrix
    return out


def _pad_fields(values: np.ndarray, fill: float) -> np.ndarray:
    """Return values as (..., 2), of which a single field is the second."""
    if values.shape[-1] == 2:
        return np.ascontiguousarray(values)
    return np.concatenate([np.full_like(values, fill), values], axis=-1)


def _conditional_means(fields: Fields, y: np.ndarray) -> np.ndarray:
    """Return E[omega_0 | Y] at coordinates (P, L, t) of Y, (P, D)."""
    return (fields.field_mean + np.einsum("lat,plt->pla", fields.field_from_teacher, y)).reshape(len(y), -1)


def grid_points_of(batch: GridLayout) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the grid of every point of a batch, (N,), and the point, (N, D)."""
    sizes = batch.counts.prod(axis=1)
    which = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(which)) - (np.cumsum(sizes) - sizes)[which]
    steps = np.stack(np.divmod(place, batch.counts[which, -1]), axis=1)
    return which, batch.corners[which] + batch.steps * steps[:, 2 - len(batch.steps) :]


def _proximal_points_on_batch(problem: Problem, fields: Fields, batch: GridLayout, choice: int) -> _GridPoints:
    """Return proximal points at all grid points of a batch."""
    L, t = problem.tokens, problem.teacher_rank
    starts = np.concatenate([[0], np.cumsum(batch.counts.prod(axis=1))])
    which, omega = grid_points_of(batch)
    away = omega - _conditional_means(fields, batch.nodes[:, : L * t].reshape(len(batch.nodes), L, t))[which]
    inner = np.linalg.solve(block_diagonal(fields.field_factor), away.T).T
    outer, noise = batch.nodes[which, : L * t], batch.nodes[which, L * t :]
    points = proximal_points_at(problem, fields, np.concatenate([outer, inner, noise], axis=1), choice=choice)
    first = starts[:-1]
    g = points.g.reshape(len(omega), -1)
    return _GridPoints(starts, points.value, g, points.minima > 1, points.features[first], points.weight[first])


def _further_columns(
    problem: Problem, fields: Fields, batch: GridLayout, places: _GridPoints, slopes: bool
) -> np.ndarray:
    """Return further columns to average: whether a second minimum was found, and G_ab G_ef of G = dg/domega."""
    bistable = places.bistable[:, None].astype(float)
    if not slopes:
        return bistable
    which, omega = grid_points_of(batch)
    x = omega + places.g @ block_diagonal(fields.variance)
    step = TiltedGridOptions.current().difference_step * float(np.std(x))
    G, _ = slopes_at_minima(problem, fields, x, places.features[which], step)
    return np.concatenate([bistable, np.einsum("nab,nef->nabef", G, G).reshape(len(G), -1)], axis=1)


GRID_SIZES = (Grids(16, 1.1, 5.0), Grids(32, 1.2, 5.5), Grids(48, 1.3, 5.75), Grids(64, 1.5, 6.0))
