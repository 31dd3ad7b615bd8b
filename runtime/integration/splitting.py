"""Product rules for N(0, I) that are split on hyperplanes of any direction, on which an integrand is not smooth.

Coordinates are rotated so that the first plane depends on the first axis, the second plane on the first two axes, and
so on. A plane breaks the last axis that it depends on, at a position that the previous axes determine. Where two breaks
of an axis exchange their order the integral over it is not smooth in the previous axes: the rule is split there, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..base.options import AlgorithmOptions
from ..channel.nodes import REACH, gauss_hermite, gauss_legendre, tensor_product_rule, trapezoid_rule
from ..problems.compiled import load_compiled_loops

Axis = tuple[np.ndarray, np.ndarray]
Plane = tuple[np.ndarray, float, int]  # coefficients, constant, one of the following kinds
_REAL, _CENTRE, _NEIGHBOURHOOD = 2, 1, 0  # a plane; the middle of a steep stretch of a break, and its surroundings
_PARALLEL = 1e-9  # rounding of unit normals: planes closer than that are parallel


@dataclass(frozen=True)
class HyperplaneSplitOptions(AlgorithmOptions):
    """Options of product rules that are split on hyperplanes.

    Attributes:
        max_planes: number of hyperplanes beyond which the rule is not split at their intersections; larger values are
            more accurate at a higher cost.
        steep_slope: derivative of a break (position of a hyperplane on an axis) with respect to the previous axes above
            which the rule is split around it in these axes.
        panel_edges: edges of panels around such a steep break, in standard deviations of the axis.
        negligible_weight: weight of a negligible node, relative to the heaviest one.
    """

    max_planes: int = 48
    steep_slope: float = 2.0
    panel_edges: tuple[float, ...] = (-6.0, -2.0, 2.0, 6.0)
    negligible_weight: float = 1e-22


@dataclass(frozen=True)
class HyperplaneSplit:
    """A split of the space of standard normal coordinates z by hyperplanes, between which integrands are smooth.

    Attributes:
        turn: orthogonal matrix with z = turn @ y, y being rotated coordinates.
        planes: for each axis of y the hyperplanes that cut it: coefficients of y up to that axis, and a constant.
    """

    turn: np.ndarray
    planes: tuple[tuple[tuple[np.ndarray, float], ...], ...]

    @classmethod
    def split_on_planes(cls, planes: np.ndarray, dimension: int) -> HyperplaneSplit:
        """Return the split of the space of coordinates z by hyperplanes a . z + b = 0.

        Args:
            planes: coefficients a and constant b of one hyperplane per row; those beyond the reach of the normal
                measure are left out.
            dimension: number of coordinates z.
        """
        planes = np.asarray(planes, float).reshape(-1, dimension + 1)
        if not len(planes):
            return cls(np.eye(dimension), ((),) * dimension)
        lengths = np.linalg.norm(planes[:, :-1], axis=1)
        there = (lengths > 0) & (np.abs(planes[:, -1]) < REACH * lengths) & np.isfinite(planes).all(axis=1)
        unit = planes[there] / lengths[there, None]
        turn, count = _orthonormal_basis(unit[:, :-1], dimension)
        known: list[list[Plane]] = [[] for _ in range(dimension)]
        _add_cutting_planes(known, [(row[:-1] @ turn, float(row[-1]), _REAL) for row in unit])
        for axis in range(count - 1, 0, -1):
            _add_cutting_planes(
                known, [*_plane_intersections(known[axis], axis), *_planes_around_steep_breaks(known[axis], axis)]
            )
        return cls(turn, tuple(tuple((row[: axis + 1], b) for row, b, _ in at) for axis, at in enumerate(known)))

    @property
    def number_of_cut_axes(self) -> int:
        """The number of axes of the rotated coordinates y up to the last axis that a hyperplane cuts."""
        return max((axis + 1 for axis, at in enumerate(self.planes) if at), default=0)

    @property
    def is_product_rule(self) -> bool:
        """Return whether a quadrature rule is a product: every hyperplane is perpendicular to a coordinate axis."""
        axes = np.all((self.turn == 0) | (np.abs(self.turn) == 1))
        return bool(axes) and all(not np.any(row[:-1]) for at in self.planes for row, _ in at)

    def cut_positions(self, reach: float) -> list[float]:
        """Return the ascending positions in [-reach, reach] at which hyperplanes cut the axis; for a single axis."""
        found = sorted(-b / row[0] * self.turn[0, 0] for row, b in self.planes[0])
        return [float(place) for place in found if abs(place) < reach]

    def rule_for_each_axis(self, points: int, equidistant: bool = False) -> list[Axis]:
        """Return quadrature nodes and weights of each coordinate; only if every hyperplane is perpendicular to an axis.

        Args:
            points: nodes per panel and per smooth axis.
            equidistant: whether smooth axes have equidistant nodes.
        """
        found: list[Axis] = [_smooth_axis_rule(points, equidistant)] * len(self.turn)
        for axis, at in enumerate(self.planes):
            if at:
                place = int(np.argmax(np.abs(self.turn[:, axis])))
                breaks = np.array([[-b / row[-1] * self.turn[place, axis] for row, b in at]])
                _, nodes, weights = _gauss_legendre_between_breaks(breaks, points)
                found[place] = nodes, weights
        return found

    def node_batches(
        self, points: int, equidistant: bool = False, most: float = 1e6, steps: bool = False
    ) -> Iterator[Axis]:
        """Yield quadrature nodes (one per row) and weights, in batches of about `most` nodes.

        Args:
            points: nodes per panel and per smooth axis.
            equidistant: whether smooth axes have equidistant nodes.
            most: nodes per batch.
            steps: whether the integrand is constant between the hyperplanes: each interval of the last axis that is cut
                then has one node, and so has each later axis.
        """
        negligible, nodes, weights = HyperplaneSplitOptions.current().negligible_weight, np.zeros((1, 0)), np.ones(1)
        for axis in range(self.number_of_cut_axes):
            at = self.planes[axis]
            if not at:
                z, w = _smooth_axis_rule(points, equidistant)
                rows, along, shares = np.repeat(np.arange(len(nodes)), len(z)), np.tile(z, len(nodes)), None
                weights = (weights[:, None] * w).ravel()
            else:
                breaks = np.stack([-(nodes @ row[:-1] + b) / row[-1] for row, b in at], axis=1)
                last = steps and axis == self.number_of_cut_axes - 1
                rows, along, shares = (
                    _normal_measures_between_breaks(breaks) if last else _gauss_legendre_between_breaks(breaks, points)
                )
                weights = weights[rows] * shares
            nodes = np.concatenate([nodes[rows], along[:, None]], axis=1)
            heavy = weights > negligible * weights.max()
            nodes, weights = nodes[heavy], weights[heavy]
        smooth = (np.zeros(1), np.ones(1)) if steps else _smooth_axis_rule(points, equidistant)
        rest = [smooth] * (len(self.turn) - self.number_of_cut_axes)
        for others, shares in _product_rule_in_batches(rest, max(most / len(nodes), 1.0)):
            step = max(1, int(min(most, 1e12) / len(others)))
            for begin in range(0, len(nodes), step):
                own = nodes[begin : begin + step]
                y = np.concatenate([np.repeat(own, len(others), axis=0), np.tile(others, (len(own), 1))], axis=1)
                yield (
                    y if self.number_of_cut_axes == 0 else y @ self.turn.T,
                    np.multiply.outer(weights[begin : begin + step], shares).ravel(),
                )

    def nodes_and_weights(self, points: int, equidistant: bool = False) -> Axis:
        """Return all quadrature nodes (one per row) and weights.

        Args:
            points: nodes per panel and per smooth axis.
            equidistant: whether smooth axes have equidistant nodes.
        """
        parts = list(self.node_batches(points, equidistant, np.inf))
        return np.concatenate([nodes for nodes, _ in parts]), np.concatenate([weights for _, weights in parts])


def _orthonormal_basis(normals: np.ndarray, dimension: int) -> tuple[np.ndarray, int]:
    """Return an orthonormal basis whose first columns span the normals of hyperplanes, and the number of these columns.

    The first k normals depend on the first k columns only. Other basis vectors are coordinate axes where possible.
    """
    if dimension == 0:
        return np.zeros((0, 0)), 0
    columns: list[np.ndarray] = []

    def _append_orthonormal_columns(candidates: np.ndarray, least: float) -> None:
        for candidate in candidates:
            rest = candidate.copy()
            for _ in range(2):
                for column in columns:
                    rest = rest - (column @ rest) * column
            if (size := np.linalg.norm(rest)) > least:
                columns.append(rest / size)

    _append_orthonormal_columns(normals, _PARALLEL)
    count = len(columns)
    _append_orthonormal_columns(
        np.eye(dimension), 1 / (2 * dimension)
    )  # of the remainder of an axis, while any is missing
    _append_orthonormal_columns(np.eye(dimension), _PARALLEL)
    return np.stack(columns[:dimension], axis=1), count


def _add_cutting_planes(planes: list[list[Plane]], new: list[Plane]) -> None:
    """Add each new hyperplane to the list of the last axis that it cuts, unless it is known or out of reach."""
    max_planes = HyperplaneSplitOptions.current().max_planes
    for row, b, kind in new:
        size = np.linalg.norm(row)
        if size < _PARALLEL or abs(b) > REACH * size or sum(map(len, planes)) >= max_planes:
            continue
        row = np.where(np.abs(row) < _PARALLEL * size, 0.0, row)
        axis = int(np.flatnonzero(row)[-1])
        sign = float(np.sign(row[axis]) / size)
        row, b = row * sign, b * sign
        known = planes[axis]
        if not any(np.abs(row - other).max() < _PARALLEL and abs(b - c) < _PARALLEL for other, c, _ in known):
            known.append((row, b, kind))


def _plane_intersections(planes: list[Plane], axis: int) -> list[Plane]:
    """Return the intersections of hyperplanes that cut an axis, as hyperplanes in the previous axes."""
    found = []
    for (one, b, kind), (other, c, its) in combinations(planes, 2):
        if kind == its == _REAL:
            row = one / one[axis] - other / other[axis]
            row[axis] = 0.0
            found.append((row, b / one[axis] - c / other[axis], _REAL))
    return found


def _planes_around_steep_breaks(planes: list[Plane], axis: int) -> list[Plane]:
    """Return hyperplanes in the previous axes around the points where a steep break is near the centre of its axis.

    A break is the position at which a hyperplane cuts the axis; it is steep if it changes fast with the previous axes.
    """
    options, found = HyperplaneSplitOptions.current(), []
    for row, b, kind in planes:
        before = np.where(np.arange(len(row)) == axis, 0.0, row)
        if kind != _NEIGHBOURHOOD and np.linalg.norm(before) > options.steep_slope * abs(row[axis]):
            found.append((before, b, _CENTRE))
            found += [(before, b + edge * row[axis], _NEIGHBOURHOOD) for edge in options.panel_edges]
    return found


def _smooth_axis_rule(points: int, equidistant: bool) -> Axis:
    return trapezoid_rule(points) if equidistant else gauss_hermite(points)


def _gauss_legendre_between_breaks(breaks: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return Gauss-Legendre nodes for N(0, 1) on the panels between the breaks in each row of a table.

    Returns:
        row number, position and weight of each node.
    """
    inner = np.sort(np.clip(breaks, -REACH, REACH), axis=1)
    edges = np.pad(inner, ((0, 0), (1, 1)), constant_values=(-REACH, REACH))
    x, w = gauss_legendre(points)
    row, panel = np.nonzero(np.diff(edges, axis=1) > 0)
    low, high = edges[row, panel], edges[row, panel + 1]
    middle, half = (low + high) / 2, (high - low) / 2
    nodes = (middle[:, None] + half[:, None] * x).ravel()
    weights = (half[:, None] * w).ravel() * np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)
    return np.repeat(row, points), nodes, weights


def _normal_measures_between_breaks(breaks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the intervals between the breaks in each row of a table.

    Returns:
        row number, inner point and probability under N(0, 1) of each interval.
    """
    inner = np.sort(breaks, axis=1)
    edge = np.full((len(breaks), 1), np.inf)
    low, high = np.hstack([-edge, inner]), np.hstack([inner, edge])
    places = np.clip(0.0, low + np.minimum(1.0, (high - low) / 2), high - np.minimum(1.0, (high - low) / 2))
    measures = load_compiled_loops("truncated_normal").normal_measures_of_intervals(low.ravel(), high.ravel())
    return np.repeat(np.arange(len(breaks)), low.shape[1]), places.ravel(), measures


def _product_rule_in_batches(axes: list[Axis], most: float) -> Iterator[Axis]:
    """Yield nodes and weights of the product of one-dimensional rules, in batches of at most `most` nodes."""
    leading = 0
    while np.prod([float(len(nodes)) for nodes, _ in axes[leading:]]) > most:
        leading += 1
    nodes, weights = tensor_product_rule(axes[leading:])
    for first, weight in zip(*tensor_product_rule(axes[:leading]), strict=True):
        yield np.concatenate([np.tile(first, (len(nodes), 1)), nodes], axis=1), weight * weights
