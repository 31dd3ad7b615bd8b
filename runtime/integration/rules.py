"""The rules: product Gauss-Hermite and scrambled Sobol with the proximal map, and the prox-space rule without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import InputError
from ..overlaps import Overlaps
from ..problem import Problem
from .averages import Averages, JacobianAverages, Rule
from .fields import Fields, fields_of
from .nodes import gauss_hermite, panels, sobol_normal, tensor

CHUNKS = 64  # fixed, so that sums do not depend on the number of threads
_TOTALS = 6


@dataclass(frozen=True)
class Axis:
    """A one-dimensional rule for N(0, 1); `step` is that of an equidistant rule, which may be shifted."""

    nodes: np.ndarray
    weights: np.ndarray
    step: float = 0.0

    def moved(self, offset: float) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights with an equidistant rule shifted by `offset` steps."""
        if self.step == 0.0:
            return self.nodes, self.weights
        nodes = self.nodes + offset * self.step
        return nodes, self.step * np.exp(-nodes * nodes / 2) / np.sqrt(2 * np.pi)


def teacher_axes(
    problem: Problem, fields: Fields, points: int, which: str = "loss", shifted: bool = False
) -> list[Axis]:
    """One rule for each coordinate of z_Y and each Gaussian noise.

    Panels where the model has a kink; else Gauss-Hermite, or an equidistant rule to be shifted. A kink in Y_lb is one
    in the coordinate z_lb if Y_lb depends on that coordinate alone.
    """
    tokens, teachers = problem.tokens, problem.teacher_rank
    breaks: dict[int, list[float]] = {}
    for kind, row, column, value in problem.solver.model.kinks(problem.flat)[which]:
        if kind == "y":
            factor = fields.teacher_factor[row]
            if np.any(factor[column, :column] != 0):
                continue
            z = (value - fields.teacher_mean[row, column]) / factor[column, column]
            breaks.setdefault(row * teachers + column, []).append(float(z))
        elif kind == "u" and problem.noise_scale[row] > 0:
            breaks.setdefault(tokens * teachers + row, []).append(value / problem.noise_scale[row])
    reach = 7.5
    step = 2 * reach / points
    equidistant = Axis(-reach + step * np.arange(points), np.empty(0), step)
    smooth = equidistant if shifted else Axis(*gauss_hermite(points))
    count = tokens * teachers + len(problem.noise_scale)
    return [Axis(*panels(breaks[i], points)) if i in breaks else smooth for i in range(count)]


def _contexts(problem: Problem, rows: list[np.ndarray], row: int) -> np.ndarray:
    """Token rows of every label assignment to (C, row), weighted with the probability of the labels."""
    moments = np.zeros((problem.contexts, row))
    for (labels, probability), values in zip(problem.label_choices, rows, strict=True):
        for token, context in enumerate(problem.context_of(labels)):
            moments[context] += probability * values[token * row : (token + 1) * row]
    return moments


class _Sampled:
    """Shared by the rules that visit nodes in (Y, noise, omega) and solve for the proximal point there."""

    starts: int

    def _sets(self, problem: Problem, fields: Fields) -> list[tuple[np.ndarray, np.ndarray]]:
        raise NotImplementedError

    def averages(self, problem: Problem, overlaps: Overlaps) -> Averages:
        channel = problem.solver.channel
        row = channel.ROW
        cut = problem.tokens * row
        results: list[list[np.ndarray]] = []
        shares: list[float] = []
        for labels, probability in problem.label_choices:
            fields = fields_of(problem, overlaps, labels)
            sums = []
            for nodes, weights in self._sets(problem, fields):
                out = channel.sample(
                    CHUNKS,
                    nodes,
                    weights,
                    *fields.sampling,
                    fields.precision,
                    problem.noise_scale,
                    fields.constants,
                    self.starts,
                )
                sums.append(out.sum(axis=0))
                shares.append(probability * out[:, cut + 4].sum() / len(nodes))
            results.append(sums)
        replicates = len(results[0])
        totals = np.zeros((replicates, _TOTALS))
        moments = np.zeros((replicates, problem.contexts, row))
        for r in range(replicates):
            moments[r] = _contexts(problem, [sums[r] for sums in results], row)
            for (_, probability), sums in zip(problem.label_choices, results, strict=True):
                totals[r] += probability * sums[r][cut:]
        return Averages(
            moments=moments,
            moreau=totals[:, 0],
            loss=totals[:, 1],
            bistable=float(totals[:, 2].mean()),
            gap=float(totals[:, 3].mean()),
            unconverged=sum(shares) / replicates,
            mass=1.0,
        )

    def jacobians(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        channel = problem.solver.channel
        slopes, squares = [], []
        for labels, _ in problem.label_choices:
            fields = fields_of(problem, overlaps, labels)
            parts = [
                channel.sample_stability(
                    CHUNKS,
                    nodes,
                    weights,
                    *fields.sampling,
                    fields.precision,
                    fields.variance,
                    problem.noise_scale,
                    fields.constants,
                    self.starts,
                )
                for nodes, weights in self._sets(problem, fields)
            ]
            slopes.append(np.stack([slope.sum(axis=0) for slope, _ in parts]))
            squares.append(np.stack([square.sum(axis=0) for _, square in parts]))
        return JacobianAverages(np.stack(slopes, axis=1), np.stack(squares, axis=1))


@dataclass(frozen=True)
class GaussHermite(_Sampled):
    """Product rule with `points` nodes an axis (split at the model's kinks in Y), proximal map at every node.

    Args:
        starts: 1 looks for the global minimum; 0 follows the first start only, as coarse solvers do.
    """

    points: int = 16
    starts: int = 1
    name: str = "gauss-hermite"

    def describe(self) -> dict[str, Any]:
        return {"rule": self.name, "points": self.points, "seed": None}

    def _sets(self, problem: Problem, fields: Fields) -> list[tuple[np.ndarray, np.ndarray]]:
        outer = [axis.moved(0.0) for axis in teacher_axes(problem, fields, self.points)]
        tokens = problem.tokens * problem.teacher_rank
        inner = [gauss_hermite(self.points)] * (problem.tokens * problem.student_rank)
        count = self.points ** (len(outer) + len(inner))
        if count > 2e8:
            raise InputError(f"Gauss-Hermite with {self.points} nodes an axis needs {count:.1e} nodes; use Sobol")
        return [tensor([*outer[:tokens], *inner, *outer[tokens:]])]

    def finer(self) -> GaussHermite:
        return replace(self, points=max(self.points + 2, self.points * 3 // 2))


@dataclass(frozen=True)
class Sobol(_Sampled):
    """`scramblings` independent scrambled Sobol sets of 2^log2 points each (times sign flips), proximal map at each.

    The spread over scramblings is the error estimate. Teacher and student coordinates are flipped separately.
    """

    log2: int = 12
    scramblings: int = 16
    seed: int = 0
    starts: int = 1
    name: str = "sobol"

    def describe(self) -> dict[str, Any]:
        return {"rule": self.name, "points": self.scramblings * 2**self.log2, "seed": self.seed}

    def _sets(self, problem: Problem, fields: Fields) -> list[tuple[np.ndarray, np.ndarray]]:
        teacher = tuple(range(problem.tokens * problem.teacher_rank))
        student = tuple(range(len(teacher), len(teacher) + problem.tokens * problem.student_rank))
        dimension = len(teacher) + len(student) + len(problem.noise_scale)
        sets = []
        for k in range(self.scramblings):
            nodes = sobol_normal(dimension, self.log2, 1000 * self.seed + k, (teacher, student))
            sets.append((nodes, np.full(len(nodes), 1 / len(nodes))))
        return sets

    def finer(self) -> Sobol:
        return replace(self, log2=self.log2 + 1)


@dataclass(frozen=True)
class ProxSpace:
    """No proximal map: trapezoid rule in X, Gauss-Hermite (or panels) in Y (theory.md section 11).

    Sums over all critical points with the sign of det(I + V H): exact to all digits where the minimum is unique.
    Where there are two, the rule descends from every saddle to both and takes the higher one away. What is left of
    the sum is smooth but for a jump across the line of equal depth inside the bistable set, so that it converges like
    a power of the grid step there, with the small bistable weight in front.

    Args:
        points: trapezoid points an axis of X; teacher: nodes an axis of Y and of Gaussian noise (a panel).
        shifts: number of pairs of grids, shifted at random in X and Y (trapezoid rule in both); where the integrand
            jumps their spread is the error estimate, while for smooth integrands all agree.
        cutoff: saddles of smaller weight are not corrected (infinity: none, which leaves the signed sum, off by about
            ten times the bistable weight); 1e-12 leaves an error of a few 1e-8 where the bistable share is percents.
    """

    points: int = 80
    teacher: int = 32
    shifts: int = 1
    seed: int = 0
    cutoff: float = 1e-12
    name: str = "prox-space"

    def describe(self) -> dict[str, Any]:
        seed = self.seed if self.shifts > 1 else None
        return {"rule": self.name, "points": [self.points, self.teacher, self.shifts], "seed": seed}

    def finer(self) -> ProxSpace:
        return replace(self, points=self.points * 7 // 5, teacher=self.teacher * 7 // 5)

    def _offsets(self, axes: int) -> np.ndarray:
        """Offsets of the grid in units of its step, (shifts, axes): a scrambled Sobol set, or zero for one grid."""
        from scipy.stats import qmc

        if self.shifts == 1:
            return np.zeros((1, axes))
        levels = int(np.ceil(np.log2(self.shifts)))
        sample = qmc.Sobol(axes, scramble=True, rng=np.random.default_rng(90_000 + self.seed)).random_base2(levels)
        return sample[: self.shifts]

    def _prepared(
        self, problem: Problem, fields: Fields
    ) -> list[list[tuple[np.ndarray, np.ndarray, np.ndarray, float]]]:
        channel = problem.solver.channel
        if not channel.HAS_PROX_SPACE:
            raise InputError(f"the prox-space rule handles few fields; {channel.FIELDS} are too many, use Sobol")
        if self.points**channel.FIELDS > 5e6:
            raise InputError(f"the prox-space rule would need {self.points}^{channel.FIELDS} grid points; use Sobol")
        box = prox_box(problem, fields)
        axes = [np.linspace(-edge, edge, self.points) for edge in box]
        steps = np.array([axis[1] - axis[0] for axis in axes])
        centred = np.stack([g.ravel() for g in np.meshgrid(*axes, indexing="ij")], axis=1)
        norm = float(np.exp(fields.log_normalisation) * np.prod(steps))
        teacher = teacher_axes(problem, fields, self.teacher, shifted=self.shifts > 1)
        prepared = []
        for offset in self._offsets(channel.FIELDS + len(teacher)):
            grids = []
            # Opposite shifts go together: what a jump adds is odd in the shift to first order.
            signs = (1,) if self.shifts == 1 else (1, -1)
            for sign in signs:
                grid = centred + sign * offset[: channel.FIELDS] * steps
                moved = [axis.moved(sign * o) for axis, o in zip(teacher, offset[channel.FIELDS :], strict=True)]
                nodes, weights = tensor(moved)
                keep = weights > 1e-20 * weights.max()
                table = channel.teacher_table(
                    np.ascontiguousarray(nodes[keep]),
                    np.ascontiguousarray(weights[keep]),
                    fields.teacher_mean,
                    fields.teacher_factor,
                    fields.field_mean,
                    fields.field_from_teacher,
                    problem.noise_scale,
                    fields.constants,
                )
                grids.append((grid, channel.student_table(grid, fields.constants), table, norm / len(signs)))
            prepared.append(grids)
        return prepared

    def averages(self, problem: Problem, overlaps: Overlaps) -> Averages:
        channel = problem.solver.channel
        row = channel.ROW
        cut = problem.tokens * row
        results, totals = [], np.zeros((self.shifts, 5))
        for labels, probability in problem.label_choices:
            fields = fields_of(problem, overlaps, labels)
            rows = []
            for r, grids in enumerate(self._prepared(problem, fields)):
                out = sum(
                    channel.prox_space(
                        CHUNKS,
                        grid,
                        students,
                        teachers,
                        fields.variance,
                        fields.precision,
                        fields.field_mean,
                        fields.field_precision,
                        norm,
                        fields.constants,
                        self.cutoff,
                    ).sum(axis=0)
                    for grid, students, teachers, norm in grids
                )
                rows.append(out)
                totals[r] += probability * out[cut:]
            results.append(rows)
        moments = [_contexts(problem, [rows[r] for rows in results], row) for r in range(self.shifts)]
        return Averages(
            moments=np.stack(moments),
            moreau=totals[:, 0],
            loss=totals[:, 1],
            bistable=float(totals[:, 2].mean()),
            gap=np.nan,
            unconverged=float(totals[:, 4].mean()),
            mass=float(totals[:, 3].mean()),
        )

    def jacobians(self, problem: Problem, overlaps: Overlaps) -> JacobianAverages:
        channel = problem.solver.channel
        slopes, squares = [], []
        for labels, _ in problem.label_choices:
            fields = fields_of(problem, overlaps, labels)
            parts = []
            for grids in self._prepared(problem, fields):
                found = [
                    channel.prox_space_stability(
                        CHUNKS,
                        grid,
                        students,
                        teachers,
                        fields.variance,
                        fields.precision,
                        fields.field_mean,
                        fields.field_precision,
                        norm,
                        fields.constants,
                    )
                    for grid, students, teachers, norm in grids
                ]
                parts.append((sum(slope for slope, _ in found), sum(square for _, square in found)))
            slopes.append(np.stack([slope.sum(axis=0) for slope, _ in parts]))
            squares.append(np.stack([square.sum(axis=0) for _, square in parts]))
        return JacobianAverages(np.stack(slopes, axis=1), np.stack(squares, axis=1))


def prox_box(problem: Problem, fields: Fields) -> list[float]:
    """Largest |X_prox| of each field over omega and Y out to where the measure is below 1e-13.

    Found from proximal points on spheres in standard normal coordinates, with a margin for what lies between them.
    """
    channel = problem.solver.channel
    count = problem.tokens * (problem.teacher_rank + problem.student_rank)
    directions = sobol_normal(count + len(problem.noise_scale), 7, 77, (tuple(range(count)),))
    norms = np.linalg.norm(directions, axis=1, keepdims=True)
    nodes = np.concatenate([directions / norms * radius for radius in (2.0, 5.0, 7.8)])
    found = channel.proximal_points(
        np.ascontiguousarray(nodes), *fields.sampling, fields.precision, problem.noise_scale, fields.constants, 0
    )
    start = channel.FIELDS + channel.FEATURES
    points = found[:, start : start + channel.FIELDS]
    points = points[np.isfinite(points).all(axis=1)]
    return [float(1.06 * edge + 1e-9) for edge in np.abs(points).max(axis=0)]


def rule_named(name: str, points: int | None = None, seed: int = 0) -> Rule:
    """A rule by its name on the command line; `points` an axis (Gauss-Hermite, prox-space) or log2 of a Sobol set.

    Raises:
        InputError: no such rule.
    """
    if name == "gauss-hermite":
        return GaussHermite(points or 16)
    if name == "sobol":
        return Sobol(points or 13, seed=seed)
    if name == "prox-space":
        return ProxSpace(points or 80, max(12, 2 * (points or 80) // 5))
    raise InputError(f"no integrator {name!r}; known are auto, gauss-hermite, sobol, prox-space")
