"""Averages with replica symmetry broken over the channel, of losses that depend on one student field.

At omega_0 and Y, with omega = omega_0 + z and z ~ N(0, Delta), <.> is the average over z tilted by exp(-y M), and
f_1 = (1/y) log E_z exp(-y M) (docs/theory.md section 18). With two steps omega_1 lies between the two, and the results
of the inner one there, f_2 in place of -M and <g> in place of g, are averaged in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..base.threads import run_in_threads
from ..channel.fields import Fields, field_law
from ..channel.nodes import highest_legendre_coefficients
from ..channel.points import ProximalPoints, noise_values, proximal_points_at
from ..problems.compiled import load_loops
from ..problems.problem import Problem
from .one_field import LONGEST, REACH, Pieces, features_and_means_at, step_intervals
from .one_field import PANELS as SYMMETRIC_PANELS
from .panels import Panels
from .rule import Labels
from .sampled import TeacherRule, teacher_edges
from .tilted_sums import LabelSums, TiltedRule, TiltedState


@dataclass(frozen=True)
class TiltedOptions(AlgorithmOptions):
    """Options of averages with replica symmetry broken over one student field.

    Attributes:
        max_panel: longest, in widths of the integrand; shorter takes more nodes, and fewer bisections.
        max_bisections: of a panel.
        min_distance: of Delta, relative to q_0: the root of a smaller one takes too many nodes to resolve.
        negligible_weight: relative to the heaviest line.
    """

    max_panel: float = 2.5
    max_bisections: int = 14
    min_distance: float = 1e-7
    negligible_weight: float = 1e-18


@dataclass(frozen=True)
class _Lines:
    """A set of lines of omega, one for each of N values of the features of Y and noise.

    Attributes:
        known: features, (N, values of the labelled noise, F); nodes: coordinates of Y and Gaussian noise, (N, t + U).
        centre: of omega_0, (N,), whose law is normal with this `spread`.
        between: interval of Y, (N, 2), in units of its spread, from its mean; None where Y is that of the nodes.
    """

    known: np.ndarray
    nodes: np.ndarray
    centre: np.ndarray
    spread: float
    between: np.ndarray | None = None


class LevelNodes(NamedTuple):
    """A set of nodes of the fields of a level, line by line.

    Attributes:
        rows: where each line begins, and the end, (R + 1,); omega: fields (M,), ascending in a line; lengths: weights
            of domega.
        columns: numbers to average, (M, K): g, g^2, f of the level and more; f of the innermost one is -M.
    """

    rows: np.ndarray
    omega: np.ndarray
    lengths: np.ndarray
    columns: np.ndarray


@dataclass
class RunningMaximum:
    """A running maximum of |<g>|."""

    largest: float = 0.0


def _lines_between_steps(problem: Problem, fields: Fields) -> _Lines:
    """Return a line for every interval of Y that the loss distinguishes."""
    places, inside = step_intervals(problem, fields)
    between, y = np.stack([places[:-1], places[1:]], axis=1), inside[:, None]
    lines = _lines_through_nodes(problem, fields, y)
    spread = float(np.hypot(fields.field_from_teacher[0, 0, 0], lines.spread))
    return replace(lines, centre=np.full(len(y), float(fields.field_mean[0, 0])), spread=spread, between=between)


def _lines_through_nodes(problem: Problem, fields: Fields, nodes: np.ndarray) -> _Lines:
    """Return the lines at nodes in Y and Gaussian noise, (N, t + U)."""
    features, centre = features_and_means_at(problem, fields, nodes)
    return _Lines(features, nodes, centre, float(fields.field_factor[0, 0, 0]))


def _integrate_refined_panels(
    problem: Problem, fields: Fields, rule: Pieces, on_lines: Callable[[_Lines], np.ndarray], levels: int
) -> np.ndarray:
    """Return the sums where one coordinate of Y or noise is left: panels of it between the kinks of the loss.

    They are halved until the sums along lines are polynomials there: they are not at a cusp of the Moreau envelope,
    where proximal points begin to jump.
    """
    panels, max_bisections = (
        Panels.between_edges(teacher_edges(problem, fields, REACH, LONGEST)),
        TiltedOptions.current().max_bisections,
    )
    total: np.ndarray | float = 0.0
    largest: np.ndarray | float = 0.0
    for level in range(max_bisections + 1):
        z, lengths = panels.gauss_legendre_nodes(rule.points)
        share = lengths * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        found = on_lines(_lines_through_nodes(problem, fields, z.reshape(-1, 1))).reshape(*z.shape, -1)
        values = found[..., _BETWEEN : _OUTER + 2 * levels]  # signs of others can cancel along Y
        values = np.delete(values, _SMOOTH - _BETWEEN, axis=-1)
        largest = np.maximum(largest, np.maximum(np.abs(values).max(axis=(0, 1)), 1e-300))
        tail = (
            np.abs(np.einsum("kj,njf->nkf", highest_legendre_coefficients(rule.points), values)).max(axis=1) / largest
        )
        open_ = tail.max(axis=1) * panels.half_lengths * panels.max_density > 3 * rule.resolution
        if level == max_bisections:
            open_[:] = False
        total = total + np.einsum("nj,njf->f", share[~open_], found[~open_])
        if not open_.any():
            break
        panels = panels.halve(open_)
    return np.asarray(total)


# Sums over lines: <g>, <g> omega_0, <g>^2, G~^2, f_1; of every level within <g>^2 and f, -M the last; <loss>, bistable,
# <G^2>, mass; then <g> Y.
_OUTER, _BETWEEN, _SMOOTH = 5, 2, 3


def _sums_along_lines(
    problem: Problem, fields: Fields, variances: np.ndarray, rates: np.ndarray, rule: Pieces, slopes: bool,
    scale: RunningMaximum, lines: _Lines,
) -> np.ndarray:  # fmt: skip
    """Return sums along every line, (N, S). The mass is that of nodes whose proximal point was found."""
    V, max_panel = float(fields.variance[0, 0, 0]), TiltedOptions.current().max_panel
    # The variance that a level leaves to those within it, and V for them.
    softness = V + np.cumsum((rates * variances)[::-1])[::-1] - rates * variances
    widths = np.sqrt(np.minimum(variances, softness / rates))
    spreads = np.sqrt(lines.spread**2 + np.cumsum(variances))
    spread = float(spreads[-1])
    row, z, share = rule.panel_nodes(
        problem, fields, lines.known, lines.centre, np.full(len(lines.centre), spread),
        longest=max_panel * float(widths[-1]) / spread,
    )  # fmt: skip
    order, level = sort_into_level(lines.centre, spread, row, z, share)
    row, rows, omega = row[order], level.rows, level.omega
    # Coordinates of the nodes: Y and noise unchanged, omega by the remainder.
    y = lines.nodes[:, : problem.teacher_rank]
    centre = fields.field_mean[0, 0] + y @ fields.field_from_teacher[0, 0]
    z_omega = (omega - centre[row]) / fields.field_factor[0, 0, 0]
    nodes = np.insert(lines.nodes[row], problem.teacher_rank, z_omega, axis=1)
    teachers_at = y @ fields.teacher_factor[0].T
    sums = np.zeros((len(lines.centre), _OUTER + 2 * len(rates) + 4 + problem.teacher_rank))
    for choice in noise_values(problem):
        points = proximal_points_at(problem, fields, nodes, choice=choice)
        seen = points.minima > 0
        if not seen.all():
            points = _interpolate_unconverged(points, rows, omega, seen)
        g, x = points.g[:, 0, 0], points.x[:, 0, 0]
        smooth = _field_slope_at(problem, fields, omega, lines.known[row, choice]) if slopes else np.zeros(len(z))
        loss = points.value - (x - omega) ** 2 / (2 * V)
        columns = np.stack([g, g * g, -points.value, loss, points.minima > 1, smooth**2, seen], axis=1)
        chance = np.ones(len(lines.centre))
        if problem.solver.channel.LABELLED_NOISE:
            means = np.ascontiguousarray(fields.teacher_mean[0] + teachers_at)
            chance = problem.solver.proximal.noise_law_at(means, fields.constants)[:, choice]

        inner = level._replace(columns=columns)
        for k in range(len(rates) - 1, 0, -1):
            averages = partial(tilted_averages_at, inner, -inner.columns[:, 2], rates[k], variances[k])
            longest = max_panel * float(widths[k - 1] / spreads[k - 1])
            inner = average_to_outer_level(averages, lines.centre, float(spreads[k - 1]), longest, rule, scale)
        averages = partial(tilted_averages_at, inner, -inner.columns[:, 2], rates[0], variances[0])
        longest = max_panel * float(widths[0]) / lines.spread
        for which, z_0, share, out in refine_panels(averages, lines.centre, lines.spread, longest, rule, scale):
            mean, free, drift, with_g, _, *linear = np.moveaxis(out, -1, 0)
            weight = share * chance[which][:, None]
            if lines.between is None:
                teachers = teachers_at[which][:, None]
            else:
                low, high = lines.between[which].T[:, :, None]
                within, teachers = _interval_probability(fields, z_0, low, high)
                weight, teachers = weight * within, teachers[..., None]
            response = (with_g - drift * mean) / variances[0]
            apart = lines.centre[which][:, None] + lines.spread * z_0 - fields.field_mean[0, 0]
            values = mean, mean * apart, mean**2, response**2, free, *linear
            rest = np.broadcast_to(mean[..., None] * teachers, (*z_0.shape, problem.teacher_rank))
            all_ = np.concatenate([np.stack(values, axis=-1), rest], axis=-1)
            np.add.at(sums, which, np.einsum("pj,pjf->pf", weight, all_))
    return sums


def sort_into_level(
    centre: np.ndarray, spread: float, row: np.ndarray, z: np.ndarray, share: np.ndarray
) -> tuple[np.ndarray, LevelNodes]:
    """Return the order of nodes of a normal law on lines, and a level of centre + spread z.

    Args:
        centre: of every line, (R,).
        spread: of all lines.
        row: line of every node, (M,).
        z: standard normal place of every node, (M,).
        share: weight of every node, (M,).
    """
    order = np.lexsort((z, row))
    row, z, share = row[order], z[order], share[order]
    rows = np.searchsorted(row, np.arange(len(centre) + 1))
    lengths = share * np.exp(z * z / 2) * np.sqrt(2 * np.pi) * spread
    return order, LevelNodes(rows, centre[row] + spread * z, lengths, np.empty((len(z), 0)))


def _interpolate_unconverged(
    points: ProximalPoints, rows: np.ndarray, omega: np.ndarray, seen: np.ndarray
) -> ProximalPoints:
    """Return the points with neighbours in place of nodes whose descent did not converge, next to a cusp.

    Raises:
        DomainError: a row has no other nodes.
    """
    value, g, x = points.value.copy(), points.g.copy(), points.x.copy()
    for begin, end in pairwise(rows):
        lost, known = (begin + np.flatnonzero(which) for which in (~seen[begin:end], seen[begin:end]))
        if not len(known):
            raise DomainError("no proximal point was found along a line of omega")
        for column in (value, g[:, 0, 0], x[:, 0, 0]):
            column[lost] = np.interp(omega[lost], omega[known], column[known])
    return points._replace(value=value, g=g, x=x)


def tilted_averages_at(
    level: LevelNodes, costs: np.ndarray, rate: float, variance: float, which: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """Return <g>, f, <z>, <z g> and <columns> at places, (P, n, ...), see `loops.tilted`.

    Args:
        level: nodes that are averaged over.
        costs: -f at these, (M,).
        rate: Parisi parameter y.
        variance: of z.
        which: lines, (P,).
        places: fields on them, (P, n).
    """
    fields, columns = np.ascontiguousarray(level.columns[:, 0]), level.columns
    free, out = np.empty(places.shape), np.empty((*places.shape, 2 + columns.shape[1]))
    run_in_threads(
        load_loops("tilted").tilted, len(which), level.rows, level.omega, level.lengths, costs, rate, variance, fields,
        columns, which, places, free, out,
    )  # fmt: skip
    return np.concatenate([out[..., 2:3], free[..., None], out], axis=-1)


def average_to_outer_level(
    averages: Callable[[np.ndarray, np.ndarray], np.ndarray], centre: np.ndarray, spread: float, longest: float,
    rule: Pieces, scale: RunningMaximum,
) -> LevelNodes:  # fmt: skip
    """Return averages at nodes of the next level outwards, over which they are averaged in turn.

    Args:
        averages: as of `refine_panels`.
        centre: as of `refine_panels`.
        spread: as of `refine_panels`.
        longest: as of `refine_panels`.
        rule: as of `refine_panels`.
        scale: as of `refine_panels`.
    """
    parts = [
        (np.repeat(which, z.shape[1]), z.ravel(), share.ravel(), out.reshape(-1, out.shape[-1]))
        for which, z, share, out in refine_panels(averages, centre, spread, longest, rule, scale)
    ]
    row, z, share, out = (np.concatenate(each) for each in zip(*parts, strict=True))
    order, level = sort_into_level(centre, spread, row, z, share)
    mean, free = out[order, 0], out[order, 1]
    return level._replace(columns=np.column_stack([mean, mean**2, free, out[order, 5:]]))


def refine_panels(
    averages: Callable[[np.ndarray, np.ndarray], np.ndarray], centre: np.ndarray, spread: float, longest: float,
    rule: Pieces, scale: RunningMaximum,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:  # fmt: skip
    """Yield panels of omega_0, halved until <g> is a polynomial there: it changes fast where two minima exchange order.

    Args:
        averages: of lines (P,) at places (P, n), (P, n, ...) with <g> first.
        centre: of omega_0, of all lines (R,).
        spread: of omega_0.
        longest: panel, in units of the spread.
        rule: its points and resolution.
        scale: of <g> on all lines so far.

    Yields:
        Numbers of the lines (P,), z_0 = (omega_0 - centre) / spread and weights (P, n), and the averages.
    """
    max_bisections, count = TiltedOptions.current().max_bisections, int(np.ceil(2 * REACH / min(longest, LONGEST)))
    panels = Panels.between_edges(np.linspace(-REACH, REACH, count + 1), len(centre))
    for level in range(max_bisections + 1):
        z, lengths = panels.gauss_legendre_nodes(rule.points)
        found = averages(panels.line, centre[panels.line][:, None] + spread * z)
        share = lengths * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        scale.largest = max(scale.largest, float(np.abs(found[..., 0]).max()))
        tail = np.abs(found[..., 0] @ highest_legendre_coefficients(rule.points).T).max(axis=1) / (scale.largest or 1.0)
        open_ = tail * panels.half_lengths * panels.max_density > rule.resolution
        if level == max_bisections:
            open_[:] = False
        yield panels.line[~open_], z[~open_], share[~open_], found[~open_]
        if not open_.any():
            return
        panels = panels.halve(open_)


def _field_slope_at(problem: Problem, fields: Fields, omega: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return dg/domega at omega (N,), for features (N, F)."""
    _, found = problem.solver.proximal.proximal_at(
        omega[:, None], fields.precision, fields.variance, known, fields.constants, problem.search
    )
    return found[:, 0, 0]


def _interval_probability(
    fields: Fields, z_0: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability that Y lies in an interval, given omega_0, and the average of Y - E[Y] there.

    Args:
        fields: law of the fields.
        z_0: omega_0 from its mean, in units of its spread.
        low: end of the interval of Y, likewise.
        high: the other end.
    """
    slope, own = float(fields.field_from_teacher[0, 0, 0]), float(fields.field_factor[0, 0, 0])
    shared, width = slope / np.hypot(slope, own), own / np.hypot(slope, own)
    a, b = (low - shared * z_0) / width, (high - shared * z_0) / width
    chance = load_loops("truncated_normal").normal_measures(a.ravel(), b.ravel()).reshape(a.shape)
    density = (np.exp(-a * a / 2) - np.exp(-b * b / 2)) / np.sqrt(2 * np.pi)
    mean = shared * z_0 + width * np.divide(density, chance, out=np.zeros_like(chance), where=chance > 1e-300)
    return chance, float(fields.teacher_factor[0, 0, 0]) * mean


@dataclass(frozen=True)
class TiltedPieces(Pieces, TiltedRule):
    """A rule of pieces of omega, and of the remainder at every level, halved where averages at a level change fast."""

    errors_cancel: ClassVar[bool] = False
    search_residual: ClassVar[float] = 1e-8
    final_residual: ClassVar[float] = 1e-11
    residual_share: ClassVar[float] = 0.0
    first_rate: ClassVar[float] = 20.0

    def _tilted_sums(self, problem: Problem, state: TiltedState, labels: Labels, slopes: bool) -> LabelSums:
        """Return the sums over one assignment of labels, of one token and one column."""
        options = TiltedOptions.current()
        if not np.all(state.distances > options.min_distance * state.overlaps.q):
            raise DomainError("Delta is not positive definite, or too close to zero")
        levels, fields = len(state.rates), field_law(problem, state.overlaps, labels)
        variances = state.distances[:, problem.context_indices(labels)][:, 0, 0, 0]
        on_lines = partial(_sums_along_lines, problem, fields, variances, state.rates, self, slopes, RunningMaximum())
        if problem.solver.proximal.TEACHER_STEPS:
            lines = _lines_between_steps(problem, fields)
            sums = np.ones(len(lines.centre)) @ on_lines(lines)
        elif problem.dimension == 2:
            sums = _integrate_refined_panels(problem, fields, self, on_lines, levels)
        else:
            nodes, weights = TeacherRule.for_loss(problem, fields, self.outer_points, equidistant=True).rule
            heavy = weights > options.negligible_weight * weights.max()
            sums = weights[heavy] @ on_lines(_lines_through_nodes(problem, fields, nodes[heavy]))
        mean, with_omega, between, smooth, free = sums[:_OUTER]
        within, values = sums[_OUTER : _OUTER + 2 * levels].reshape(levels, 2).T
        loss, bistable, whole, mass, *with_teacher = sums[_OUTER + 2 * levels :]
        return LabelSums(
            known={"g": mean, "g*dY.T": np.array(with_teacher), "g*domega.T": with_omega},
            products=np.array([between, *within]),
            totals=np.array([free, *values[:-1], -values[-1], loss, bistable, mass]),
            squares=(smooth, whole),
        )

    def search_effort(self, cost: float) -> float:
        """Return the effort of a search in replica symmetric averages: some hundred, one a place of omega_0, each."""
        return 4000.0


PANELS = tuple(TiltedPieces(rule.points) for rule in SYMMETRIC_PANELS)
