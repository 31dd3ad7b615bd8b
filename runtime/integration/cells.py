"""Cells that cover the space of standard normal coordinates, halved until an integrand is a polynomial in each.

Each coordinate of a cell lies between two bounds that are affine in the previous coordinates: planes in any direction
may bound a cell, and the halves of a cell are cells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from ..base.options import AlgorithmOptions
from ..channel.fields import FieldLaw
from ..channel.nodes import REACH, gauss_legendre, highest_legendre_coefficient_matrix, tensor_product_rule
from ..problems.problem import Problem
from .splitting import HyperplaneSplit

_MAX_ARGUMENT = 700.0  # of an exponential in doubles
_ROUNDING = 1e-13  # of the integral of the modulus
MAX_AXES = 3  # that are divided into cells

Function = Callable[[np.ndarray], np.ndarray]
"""Nodes (N, n) in standard normal coordinates -> (N, any number of values)."""


@dataclass(frozen=True)
class AdaptiveCellOptions(AlgorithmOptions):
    """Options of adaptive quadrature on cells.

    Attributes:
        first_cut: distance from zero of the two cuts with which an axis starts if no hyperplane cuts it.
        plane_reach: multiple of the reach of the normal measure up to which a hyperplane still bounds cells.
        points: Gauss-Legendre nodes per axis of a cell, for the coarser of two rules; more nodes need fewer cells.
        max_change: largest change, within a cell, of arcsinh of an argument of a nonlinear function of the loss, or of
            the logarithm of a base; smaller values take more cells.
        negligible_measure: measure below which a cell is not halved.
        max_nodes: largest number of nodes at which arguments are evaluated; beyond it no cells are used.
        remaining_share: fraction of the requested error that cells which are not halved may have; larger values halve
            fewer cells at a time, and take more steps.
        min_cancellation: ratio of an average to the average of its modulus, below which the relative error refers to
            the modulus.
        nodes_at_once: largest number of nodes in memory at a time.
        test_lines: number of random lines along which arguments are evaluated to detect narrow features.
        test_places: number of points on each of these lines.
        test_reach: half the length of each line, in standard deviations.
        narrow_change: change of an argument between neighbouring test points above which a loss counts as narrow.
    """

    first_cut: float = 3.0
    plane_reach: float = 3.0
    points: int = 8
    max_change: float = 1.5
    negligible_measure: float = 1e-14
    max_nodes: float = 2e6
    remaining_share: float = 0.3
    min_cancellation: float = 1e-3
    nodes_at_once: float = 1e6
    test_lines: int = 64
    test_places: int = 25
    test_reach: float = 3.0
    narrow_change: float = 1.0


@dataclass(frozen=True)
class QuadratureCells:
    """A set of quadrature cells in rotated coordinates y, with z = turn @ y.

    Attributes:
        turn: orthogonal matrix from rotated to standard normal coordinates.
        low, high: lower and upper bounds of each coordinate of each cell, shape (cells, coordinates, coordinates + 1):
            a bound is an affine function of the previous coordinates, given by its coefficients and a constant.
    """

    turn: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def cells_between_planes(cls, planes: np.ndarray, dimension: int) -> QuadratureCells:
        """Return the cells between hyperplanes a . z + b = 0, all within the reach of the normal measure.

        Args:
            planes: coefficients a and constant b of one hyperplane per row.
            dimension: number of coordinates z.
        """
        split = HyperplaneSplit.split_on_planes(planes, dimension)
        cells = cls(split.turn, *np.zeros((2, 1, dimension, dimension + 1)))
        cut = AdaptiveCellOptions.current().first_cut
        for axis, at in enumerate(split.planes):
            ends = np.zeros((len(at), dimension + 1))
            for row, (coefficients, b) in zip(ends, at, strict=True):
                row[:axis], row[-1] = -coefficients[:-1] / coefficients[-1], -b / coefficients[-1]
            first = [] if ends[:, :-1].any() else [-cut, cut]
            cells = cells._cut_cells_along_axis(
                axis, np.concatenate([ends, np.outer(first, np.eye(dimension + 1)[-1])])
            )
        return cells

    def _cut_cells_along_axis(self, axis: int, ends: np.ndarray) -> QuadratureCells:
        """Return the cells cut along an axis at affine functions of the previous ones and at the measure's reach."""
        corners = self._points_from_unit_cube(np.array(list(product([0.0, 1.0], repeat=axis))).reshape(2**axis, axis))
        places = corners @ ends[:, :axis].T + ends[:, -1]
        nearest = np.where((places.min(axis=1) < 0) & (places.max(axis=1) > 0), 0.0, np.abs(places).min(axis=1))
        within = (nearest < REACH) & (np.abs(places).max(axis=1) < AdaptiveCellOptions.current().plane_reach * REACH)
        outer = np.outer([-REACH, REACH], np.eye(self.low.shape[2])[-1])
        parts = []
        for cell, (middle, kept) in enumerate(zip(places.mean(axis=1), within, strict=True)):
            own = np.concatenate([outer, ends[kept]])
            own = own[np.argsort([-REACH, REACH, *middle[kept]], kind="stable")]
            low, high = (np.repeat(each[cell : cell + 1], len(own) - 1, axis=0) for each in (self.low, self.high))
            low[:, axis], high[:, axis] = own[:-1], own[1:]
            parts.append((low, high))
        return replace(
            self, low=np.concatenate([low for low, _ in parts]), high=np.concatenate([high for _, high in parts])
        )

    def __len__(self) -> int:
        return len(self.low)

    @property
    def dimension(self) -> int:
        """The number of coordinates of the space that the cells cover."""
        return len(self.turn)

    def _points_from_unit_cube(self, t: np.ndarray) -> np.ndarray:
        """Return the images of points of the unit cube in every cell, shape (cells, points, leading coordinates)."""
        return self._map_from_unit_cube(t)[0]

    def _map_from_unit_cube(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the images of points of the unit cube in every cell, and the determinants of this map there."""
        count = t.shape[1]
        y, volume = np.zeros((len(self), len(t), count)), np.ones((len(self), len(t)))
        for axis in range(count):
            low, high = (
                np.einsum("cpk,ck->cp", y[..., :axis], ends[:, axis, :axis]) + ends[:, axis, -1:]
                for ends in (self.low, self.high)
            )
            y[..., axis] = low + t[:, axis] * (high - low)
            volume *= high - low
        return y, volume

    def gauss_legendre_rule(self, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Return Gauss-Legendre nodes in every cell, and their weights for the standard normal measure.

        Args:
            points: number of nodes per axis of a cell.

        Returns:
            nodes of shape (cells, nodes per cell, coordinates), weights of shape (cells, nodes per cell).
        """
        t, w = gauss_legendre(points)
        places, shares = tensor_product_rule([((1 + t) / 2, w / 2)] * self.dimension)
        y, volume = self._map_from_unit_cube(places)
        density = np.exp(-(y * y).sum(axis=2) / 2) / (2 * np.pi) ** (self.dimension / 2)
        return y @ self.turn.T, volume * shares * density

    def select_cells(self, which: np.ndarray) -> QuadratureCells:
        """Return the cells that an index array or a mask selects."""
        return replace(self, low=self.low[which], high=self.high[which])

    def halve_cells(self, axes: np.ndarray) -> QuadratureCells:
        """Return the two halves of every cell, halved along a given axis; all lower halves come first."""
        every = np.arange(len(self))
        middle = (self.low[every, axes] + self.high[every, axes]) / 2
        low, high = np.concatenate([self.low, self.low]), np.concatenate([self.high, self.high])
        high[every, axes], low[len(self) + every, axes] = middle, middle
        return replace(self, low=low, high=high)

    def union_with(self, other: QuadratureCells) -> QuadratureCells:
        """Return a set that contains these cells and those of another set."""
        return replace(self, low=np.concatenate([self.low, other.low]), high=np.concatenate([self.high, other.high]))

    @cached_property
    def cell_edges(self) -> np.ndarray:
        """The end points of the cells in ascending order, if there is a single coordinate."""
        return np.unique(np.concatenate([self.low[:, 0, -1], self.high[:, 0, -1]]) * self.turn[0, 0])

    def refine_until_smooth(self, scales: Function) -> QuadratureCells | None:
        """Return cells halved until no value of `scales` changes by more than about one within any cell.

        Args:
            scales: function of the nodes, such as the arguments of the nonlinear functions of a loss.

        Returns:
            the cells; None if there would be too many.
        """
        options, done, open_ = AdaptiveCellOptions.current(), self.select_cells(np.zeros(0, int)), self
        while (len(done) + len(open_)) * options.points**self.dimension <= options.max_nodes:
            nodes, weights = open_.gauss_legendre_rule(options.points)
            shape = (len(open_), *[options.points] * self.dimension, -1)
            values = scales(nodes.reshape(-1, self.dimension)).reshape(shape)
            changes = np.stack(
                [np.ptp(values, axis=1 + axis).reshape(len(open_), -1).max(axis=1) for axis in range(self.dimension)],
                axis=1,
            )
            heavy = np.abs(weights).sum(axis=1) > options.negligible_measure
            wide = (changes.max(axis=1) > options.max_change) & heavy
            done = done.union_with(open_.select_cells(~wide))
            if not wide.any():
                return done
            open_ = open_.select_cells(wide).halve_cells(changes[wide].argmax(axis=1))
        return None

    def integrate_adaptively(self, integrand: Callable[[np.ndarray, np.ndarray], np.ndarray], relative: float,
                             absolute: float, most: float) -> tuple[float, float, float]:  # fmt: skip
        """Return the average of a function over the standard normal measure, with an error estimate.

        The error of a cell is the difference between two Gauss-Legendre rules; cells of the largest error are halved.

        Args:
            integrand: function of nodes (one per row) and weights; returns weight times value for each node.
            relative: requested error relative to the scale.
            absolute: requested error in the units of the function.
            most: largest number of nodes.

        Returns:
            average, error, scale: the modulus of the average, or a thousandth of the average modulus if larger.
        """
        options, cells, known = AdaptiveCellOptions.current(), self, self._integrate_cells(integrand)
        visited = 0.0
        while True:
            visited += len(known[0]) * (options.points**self.dimension + (options.points + 1) ** self.dimension)
            value, modulus, errors = known[0].sum(), known[1].sum(), known[2]
            error = errors.sum() + _ROUNDING * modulus
            scale = max(abs(value), options.min_cancellation * modulus)
            goal = max(min(absolute, relative * scale), 2 * _ROUNDING * modulus)
            if not error > goal or visited > most:
                return float(value), float(error), float(scale)
            order = np.argsort(-errors, kind="stable")
            count = 1 + int(np.searchsorted(np.cumsum(errors[order]), error - options.remaining_share * goal))
            worst, rest = order[:count], order[count:]
            halves = cells.select_cells(worst).halve_cells(known[3][worst].astype(int))
            cells = cells.select_cells(rest).union_with(halves)
            known = np.concatenate([known[:, rest], halves._integrate_cells(integrand)], axis=1)

    def _integrate_cells(self, integrand: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return a table with one column per cell: integral, integral of the modulus, error estimate, axis to halve."""
        options = AdaptiveCellOptions.current()
        step = max(1, int(options.nodes_at_once / (options.points + 1) ** self.dimension))
        parts = [
            self.select_cells(np.arange(first, min(first + step, len(self)))) for first in range(0, len(self), step)
        ]
        return np.concatenate([part._integrate_cell_batch(integrand) for part in parts], axis=1)

    def _integrate_cell_batch(self, integrand: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        sums, points = [], AdaptiveCellOptions.current().points + 1
        for size in (points - 1, points):
            nodes, weights = self.gauss_legendre_rule(size)
            values = integrand(nodes.reshape(-1, self.dimension), weights.ravel()).reshape(weights.shape)
            sums.append(values.sum(axis=1))
        shares = gauss_legendre(points)[1]
        grid = values.reshape(len(self), *[points] * self.dimension)
        tails = []
        for axis in range(self.dimension):
            along = np.moveaxis(grid, 1 + axis, -1) / shares
            tails.append(
                np.abs(along @ highest_legendre_coefficient_matrix(points).T).reshape(len(self), -1).sum(axis=1)
            )
        return np.stack([sums[1], np.abs(values).sum(axis=1), np.abs(sums[1] - sums[0]), np.argmax(tails, axis=0)])


def nonlinearity_arguments(problem: Problem, fields: FieldLaw, of: str) -> Function | None:
    """Return a function of the nodes whose values grow with the arguments of the nonlinear functions in an integrand.

    They are arcsinh of the arguments, and logarithms of the bases of powers.

    An integrand changes little wherever all these arguments change little.

    Args:
        problem: problem that defines the integrand.
        fields: law of the fields.
        of: "teacher" for the part of the loss without the student fields, with nodes in (z_Y, noise); "metric" for the
            test error, with nodes in (z_Y, z_h, noise); z_Y and z_h are the standard normal
            coordinates of teacher and student fields.

    Returns:
        the function; None if the integrand has no such arguments.
    """
    rows = fields.planes_in_normal_coordinates(np.eye(problem.dimension + 1)[:-1], problem.noise_scale)
    inner = slice(problem.tokens * problem.teacher_rank, problem.tokens * (problem.teacher_rank + problem.student_rank))
    if of == "teacher":
        rows = np.delete(rows, inner, axis=1)
    model, constants = problem.solver.model, fields.constants
    if not any(model.scales(rows, constants)[of].values()):
        return None

    def _nonlinearity_arguments_at_nodes(nodes: np.ndarray) -> np.ndarray:
        v = rows[:, :-1] @ nodes.T + rows[:, -1:]
        with np.errstate(all="ignore"):
            found = model.scales(v, constants)[of]
            values = [*map(np.arcsinh, found["arguments"]), *(np.log(np.abs(base)) for base in found["bases"])]
        every = np.stack([np.broadcast_to(value, len(nodes)) for value in values], axis=1)
        return np.clip(np.nan_to_num(every), -_MAX_ARGUMENT, _MAX_ARGUMENT)

    return _nonlinearity_arguments_at_nodes


def has_narrow_features(scales: Function | None, dimension: int) -> bool:
    """Return whether an integrand is too narrow for a product rule, tested along random lines.

    Args:
        scales: arguments of its nonlinear functions, from `nonlinearity_arguments`; None if it has none.
        dimension: number of coordinates of a node.
    """
    if scales is None or dimension == 0:
        return False
    options, generator = AdaptiveCellOptions.current(), np.random.default_rng(11)
    through, along = generator.standard_normal((2, options.test_lines, dimension))
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    places = np.linspace(-options.test_reach, options.test_reach, options.test_places)
    values = scales((through[:, None] + places[:, None] * along[:, None]).reshape(-1, dimension))
    steps = np.abs(np.diff(values.reshape(options.test_lines, options.test_places, -1), axis=1))
    return bool(steps.max() > options.narrow_change)
