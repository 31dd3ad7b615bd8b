"""Averages over the channel with replica symmetry broken, for losses that depend on one student field.

At omega_0 and Y, with omega = omega_0 + z and z ~ N(0, Delta), <.> is the average over z tilted by exp(-y M), and
f_1 = (1/y) log E_z exp(-y M) (docs/theory.md section 18). With two steps omega_1 lies between omega_0 and omega: the
results of the inner step, f_2 in place of -M and <g> in place of g, are averaged in the same way.
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
from ..base.threads import run_loop_in_threads
from ..channel.fields import FieldLaw, field_law
from ..channel.nodes import highest_legendre_coefficient_matrix
from ..channel.points import ProximalPoints, noise_value_indices, proximal_points_at_nodes
from ..problems.compiled import load_compiled_loops
from ..problems.problem import Problem
from .one_field import LONGEST, REACH, SmoothPiecesRule, intervals_between_teacher_steps, loss_features_and_means
from .one_field import PANELS as SYMMETRIC_PANELS
from .panels import QuadraturePanels
from .rule import Labels
from .sampled import TeacherFieldRule, teacher_panel_edges
from .tilted_sums import BrokenSymmetryState, TiltedRule, TiltedSumsGivenLabels


@dataclass(frozen=True)
class TiltedPanelOptions(AlgorithmOptions):
    """Options of the rule of panels for averages with replica symmetry broken over one student field.

    Attributes:
        max_panel: length of the longest panel, in widths of the integrand; shorter panels take more nodes, and fewer
            bisections.
        max_bisections: largest number of bisections of a panel.
        min_distance: smallest variance Delta of the student field between states, relative to q_0; a smaller
            one would need too many nodes.
        negligible_weight: weight of a negligible line, relative to the heaviest one.
    """

    max_panel: float = 2.5
    max_bisections: int = 14
    min_distance: float = 1e-7
    negligible_weight: float = 1e-18


@dataclass(frozen=True)
class _LinesOfStudentField:
    """A set of lines along which the field omega varies, one line for each node of the teacher field Y and noise.

    Attributes:
        known: features, the numbers by which the loss depends on teacher field and noise, shape (lines, values of the
            discrete noise, features).
        nodes: standard normal coordinates of Y and Gaussian noise, one line per row.
        centre: mean of omega_0, the part of omega common to all states, on each line.
        spread: standard deviation of omega_0.
        between: interval of the standardised Y for each line; None if Y has a single value, given in `nodes`.
    """

    known: np.ndarray
    nodes: np.ndarray
    centre: np.ndarray
    spread: float
    between: np.ndarray | None = None


class BreakingLevelNodes(NamedTuple):
    """A set of quadrature nodes of the field omega at one level of replica symmetry breaking, line by line.

    Attributes:
        rows: index of the first node of each line, then the number of nodes.
        omega: field at each node, ascending on a line.
        lengths: quadrature weight of each node for integrals over omega.
        columns: quantities to average, one node per row: g, g^2, free energy of the level (minus the Moreau envelope at
            the innermost level), and others.
    """

    rows: np.ndarray
    omega: np.ndarray
    lengths: np.ndarray
    columns: np.ndarray


@dataclass
class RunningMaximum:
    """The largest modulus of the average field <g> found so far, the scale of tolerances."""

    largest: float = 0.0


def _student_lines_between_teacher_steps(problem: Problem, fields: FieldLaw) -> _LinesOfStudentField:
    """Return one line of the student field for every interval of the teacher field between steps of the loss."""
    places, inside = intervals_between_teacher_steps(problem, fields)
    between, y = np.stack([places[:-1], places[1:]], axis=1), inside[:, None]
    lines = _student_lines_through_nodes(problem, fields, y)
    spread = float(np.hypot(fields.field_from_teacher[0, 0, 0], lines.spread))
    return replace(lines, centre=np.full(len(y), float(fields.field_mean[0, 0])), spread=spread, between=between)


def _student_lines_through_nodes(problem: Problem, fields: FieldLaw, nodes: np.ndarray) -> _LinesOfStudentField:
    """Return one line of the student field for every node (standard normal teacher fields and noise, one per row)."""
    features, centre = loss_features_and_means(problem, fields, nodes)
    return _LinesOfStudentField(features, nodes, centre, float(fields.field_factor[0, 0, 0]))


def _integrate_over_refined_panels(
    problem: Problem,
    fields: FieldLaw,
    rule: SmoothPiecesRule,
    on_lines: Callable[[_LinesOfStudentField], np.ndarray],
    levels: int,
) -> np.ndarray:
    """Return averages along lines of the student field, integrated over the teacher field or the noise.

    The averages are those of `_tilted_sums_along_lines`. The quadrature panels lie between kinks of the loss and are
    halved until the averages are polynomials on each.
    """
    panels, max_bisections = (
        QuadraturePanels.panels_between_edges(teacher_panel_edges(problem, fields, REACH, LONGEST)),
        TiltedPanelOptions.current().max_bisections,
    )
    total: np.ndarray | float = 0.0
    largest: np.ndarray | float = 0.0
    for level in range(max_bisections + 1):
        z, lengths = panels.gauss_legendre_nodes(rule.points)
        share = lengths * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        found = on_lines(_student_lines_through_nodes(problem, fields, z.reshape(-1, 1))).reshape(*z.shape, -1)
        values = found[..., _BETWEEN : _OUTER + 2 * levels]  # signs of others can cancel along Y
        values = np.delete(values, _SMOOTH - _BETWEEN, axis=-1)
        largest = np.maximum(largest, np.maximum(np.abs(values).max(axis=(0, 1)), 1e-300))
        tail = (
            np.abs(np.einsum("kj,njf->nkf", highest_legendre_coefficient_matrix(rule.points), values)).max(axis=1)
            / largest
        )
        open_ = tail.max(axis=1) * panels.half_lengths * panels.max_normal_density > 3 * rule.coefficient_tolerance
        if level == max_bisections:
            open_[:] = False
        total = total + np.einsum("nj,njf->f", share[~open_], found[~open_])
        if not open_.any():
            break
        panels = panels.halve_panels(open_)
    return np.asarray(total)


# Sums over lines: <g>, <g> omega_0, <g>^2, G~^2, f_1; of every level within <g>^2 and f, -M the last; <loss>, bistable,
# <G^2>, mass; then <g> Y.
_OUTER, _BETWEEN, _SMOOTH = 5, 2, 3


def _tilted_sums_along_lines(
    problem: Problem, fields: FieldLaw, variances: np.ndarray, rates: np.ndarray, rule: SmoothPiecesRule, slopes: bool,
    scale: RunningMaximum, lines: _LinesOfStudentField,
) -> np.ndarray:  # fmt: skip
    """Return the averages along every line of the student field omega with replica symmetry broken, one line per row.

    They are averages of g = (X - omega) / V, of free energies, loss and squared Jacobians, and the total weight of the
    nodes that have a proximal point X.
    """
    V, max_panel = float(fields.variance[0, 0, 0]), TiltedPanelOptions.current().max_panel
    # The variance that a level leaves to those within it, and V for them.
    softness = V + np.cumsum((rates * variances)[::-1])[::-1] - rates * variances
    widths = np.sqrt(np.minimum(variances, softness / rates))
    spreads = np.sqrt(lines.spread**2 + np.cumsum(variances))
    spread = float(spreads[-1])
    row, z, share = rule.panel_nodes(
        problem, fields, lines.known, lines.centre, np.full(len(lines.centre), spread),
        longest=max_panel * float(widths[-1]) / spread,
    )  # fmt: skip
    order, level = sort_nodes_by_line(lines.centre, spread, row, z, share)
    row, rows, omega = row[order], level.rows, level.omega
    # Coordinates of the nodes: Y and noise unchanged, omega by the remainder.
    y = lines.nodes[:, : problem.teacher_rank]
    centre = fields.field_mean[0, 0] + y @ fields.field_from_teacher[0, 0]
    z_omega = (omega - centre[row]) / fields.field_factor[0, 0, 0]
    nodes = np.insert(lines.nodes[row], problem.teacher_rank, z_omega, axis=1)
    teachers_at = y @ fields.teacher_factor[0].T
    sums = np.zeros((len(lines.centre), _OUTER + 2 * len(rates) + 4 + problem.teacher_rank))
    for choice in noise_value_indices(problem):
        points = proximal_points_at_nodes(problem, fields, nodes, choice=choice)
        seen = points.minima > 0
        if not seen.all():
            points = _interpolate_unconverged_points(points, rows, omega, seen)
        g, x = points.g[:, 0, 0], points.x[:, 0, 0]
        smooth = _field_derivative(problem, fields, omega, lines.known[row, choice]) if slopes else np.zeros(len(z))
        loss = points.value - (x - omega) ** 2 / (2 * V)
        columns = np.stack([g, g * g, -points.value, loss, points.minima > 1, smooth**2, seen], axis=1)
        chance = np.ones(len(lines.centre))
        if problem.solver.channel.LABELLED_NOISE:
            means = np.ascontiguousarray(fields.teacher_mean[0] + teachers_at)
            chance = problem.solver.proximal.noise_law_at(means, fields.constants)[:, choice]

        inner = level._replace(columns=columns)
        for k in range(len(rates) - 1, 0, -1):
            averages = partial(tilted_averages_at_fields, inner, -inner.columns[:, 2], rates[k], variances[k])
            longest = max_panel * float(widths[k - 1] / spreads[k - 1])
            inner = nodes_of_outer_breaking_level(averages, lines.centre, float(spreads[k - 1]), longest, rule, scale)
        averages = partial(tilted_averages_at_fields, inner, -inner.columns[:, 2], rates[0], variances[0])
        longest = max_panel * float(widths[0]) / lines.spread
        for which, z_0, share, out in averages_on_panels(averages, lines.centre, lines.spread, longest, rule, scale):
            mean, free, drift, with_g, _, *linear = np.moveaxis(out, -1, 0)
            weight = share * chance[which][:, None]
            if lines.between is None:
                teachers = teachers_at[which][:, None]
            else:
                low, high = lines.between[which].T[:, :, None]
                within, teachers = _teacher_interval_probability(fields, z_0, low, high)
                weight, teachers = weight * within, teachers[..., None]
            response = (with_g - drift * mean) / variances[0]
            apart = lines.centre[which][:, None] + lines.spread * z_0 - fields.field_mean[0, 0]
            values = mean, mean * apart, mean**2, response**2, free, *linear
            rest = np.broadcast_to(mean[..., None] * teachers, (*z_0.shape, problem.teacher_rank))
            all_ = np.concatenate([np.stack(values, axis=-1), rest], axis=-1)
            np.add.at(sums, which, np.einsum("pj,pjf->pf", weight, all_))
    return sums


def sort_nodes_by_line(
    centre: np.ndarray, spread: float, row: np.ndarray, z: np.ndarray, share: np.ndarray
) -> tuple[np.ndarray, BreakingLevelNodes]:
    """Return quadrature nodes of the student field omega sorted by line and by position on the line.

    Args:
        centre: mean of the normal law on every line.
        spread: standard deviation on all lines.
        row: line number of every node.
        z: standard normal position of every node.
        share: weight of every node.

    Returns:
        permutation that sorts the nodes, and the sorted nodes omega = centre + spread z, with an empty `columns`.
    """
    order = np.lexsort((z, row))
    row, z, share = row[order], z[order], share[order]
    rows = np.searchsorted(row, np.arange(len(centre) + 1))
    lengths = share * np.exp(z * z / 2) * np.sqrt(2 * np.pi) * spread
    return order, BreakingLevelNodes(rows, centre[row] + spread * z, lengths, np.empty((len(z), 0)))


def _interpolate_unconverged_points(
    points: ProximalPoints, rows: np.ndarray, omega: np.ndarray, seen: np.ndarray
) -> ProximalPoints:
    """Return the proximal points with unconverged ones replaced by interpolation along their line.

    Raises:
        DomainError: all points of a line are unconverged.
    """
    value, g, x = points.value.copy(), points.g.copy(), points.x.copy()
    for begin, end in pairwise(rows):
        lost, known = (begin + np.flatnonzero(which) for which in (~seen[begin:end], seen[begin:end]))
        if not len(known):
            raise DomainError("no proximal point converged on a line of quadrature nodes; is the loss singular?")
        for column in (value, g[:, 0, 0], x[:, 0, 0]):
            column[lost] = np.interp(omega[lost], omega[known], column[known])
    return points._replace(value=value, g=g, x=x)


def tilted_averages_at_fields(
    level: BreakingLevelNodes, costs: np.ndarray, rate: float, variance: float, which: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """Return averages over the field of one level of replica symmetry breaking, at given fields of the outer level.

    The field is omega = outer field + z with normal z, tilted by exp(-y costs).

    Args:
        level: nodes of the field that is averaged over.
        costs: minus the free energy at each of these nodes; the Moreau envelope at the innermost level.
        rate: Parisi parameter y.
        variance: variance of z.
        which: line numbers.
        places: outer fields, one row per line number.

    Returns:
        along the last axis: <g>, free energy (1/y) log E exp(-y costs), <z>, <z g>, then the averages of the columns of
        `level`; the first axes are those of `places`.
    """
    fields, columns = np.ascontiguousarray(level.columns[:, 0]), level.columns
    free, out = np.empty(places.shape), np.empty((*places.shape, 2 + columns.shape[1]))
    run_loop_in_threads(
        load_compiled_loops("tilted").fill_tilted_averages, len(which), level.rows, level.omega, level.lengths, costs,
        rate, variance, fields, columns, which, places, free, out,
    )  # fmt: skip
    return np.concatenate([out[..., 2:3], free[..., None], out], axis=-1)


def nodes_of_outer_breaking_level(
    averages: Callable[[np.ndarray, np.ndarray], np.ndarray], centre: np.ndarray, spread: float, longest: float,
    rule: SmoothPiecesRule, scale: RunningMaximum,
) -> BreakingLevelNodes:  # fmt: skip
    """Return quadrature nodes of the next outer level of replica symmetry breaking, with averages at each node.

    Args:
        averages: function from line numbers and fields (one row per line number) to averages, as
            `tilted_averages_at_fields` returns them.
        centre: mean of the outer field on every line.
        spread: standard deviation of the outer field.
        longest: length of the longest panel, in standard deviations.
        rule: rule that defines the nodes per panel and the tolerance.
        scale: largest |<g>| so far, updated here.
    """
    parts = [
        (np.repeat(which, z.shape[1]), z.ravel(), share.ravel(), out.reshape(-1, out.shape[-1]))
        for which, z, share, out in averages_on_panels(averages, centre, spread, longest, rule, scale)
    ]
    row, z, share, out = (np.concatenate(each) for each in zip(*parts, strict=True))
    order, level = sort_nodes_by_line(centre, spread, row, z, share)
    mean, free = out[order, 0], out[order, 1]
    return level._replace(columns=np.column_stack([mean, mean**2, free, out[order, 5:]]))


def averages_on_panels(
    averages: Callable[[np.ndarray, np.ndarray], np.ndarray], centre: np.ndarray, spread: float, longest: float,
    rule: SmoothPiecesRule, scale: RunningMaximum,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:  # fmt: skip
    """Yield averages at Gauss-Legendre nodes of the outer field, on panels halved until they are resolved.

    A panel is resolved if the average <g> of the field g is a polynomial on it.

    Args:
        averages: function from line numbers and fields (one row per line number) to averages, as
            `tilted_averages_at_fields` returns them.
        centre: mean of the outer field omega_0 on every line.
        spread: standard deviation of omega_0.
        longest: length of the longest panel, in standard deviations.
        rule: rule that defines the nodes per panel and the tolerance.
        scale: largest |<g>| so far, updated here.

    Yields:
        line numbers of panels; z_0 = (omega_0 - centre) / spread and weights, one row per panel; the averages there.
    """
    max_bisections, count = TiltedPanelOptions.current().max_bisections, int(np.ceil(2 * REACH / min(longest, LONGEST)))
    panels = QuadraturePanels.panels_between_edges(np.linspace(-REACH, REACH, count + 1), len(centre))
    for level in range(max_bisections + 1):
        z, lengths = panels.gauss_legendre_nodes(rule.points)
        found = averages(panels.line, centre[panels.line][:, None] + spread * z)
        share = lengths * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        scale.largest = max(scale.largest, float(np.abs(found[..., 0]).max()))
        tail = np.abs(found[..., 0] @ highest_legendre_coefficient_matrix(rule.points).T).max(axis=1) / (
            scale.largest or 1.0
        )
        open_ = tail * panels.half_lengths * panels.max_normal_density > rule.coefficient_tolerance
        if level == max_bisections:
            open_[:] = False
        yield panels.line[~open_], z[~open_], share[~open_], found[~open_]
        if not open_.any():
            return
        panels = panels.halve_panels(open_)


def _field_derivative(problem: Problem, fields: FieldLaw, omega: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the derivative dg/domega of the field g = (X - omega) / V for one student field, one per node.

    Args:
        problem: problem with one student field.
        fields: law of the fields.
        omega: field at each node.
        known: features of the loss, one node per row.
    """
    _, found = problem.solver.proximal.proximal_at(
        omega[:, None], fields.precision, fields.variance, known, fields.constants, problem.search
    )
    return found[:, 0, 0]


def _teacher_interval_probability(
    fields: FieldLaw, z_0: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability that the teacher field Y is in an interval given omega_0, and the mean of Y - E[Y] there.

    Args:
        fields: law of the fields.
        z_0: field omega_0 common to all states, standardised.
        low: lower end of the interval of the standardised Y.
        high: upper end of the interval of the standardised Y.
    """
    slope, own = float(fields.field_from_teacher[0, 0, 0]), float(fields.field_factor[0, 0, 0])
    shared, width = slope / np.hypot(slope, own), own / np.hypot(slope, own)
    a, b = (low - shared * z_0) / width, (high - shared * z_0) / width
    chance = load_compiled_loops("truncated_normal").normal_measures_of_intervals(a.ravel(), b.ravel()).reshape(a.shape)
    density = (np.exp(-a * a / 2) - np.exp(-b * b / 2)) / np.sqrt(2 * np.pi)
    mean = shared * z_0 + width * np.divide(density, chance, out=np.zeros_like(chance), where=chance > 1e-300)
    return chance, float(fields.teacher_factor[0, 0, 0]) * mean


@dataclass(frozen=True)
class TiltedPiecesRule(SmoothPiecesRule, TiltedRule):
    """A rule of panels for replica symmetry breaking in one student field, halved where averages change fast."""

    errors_cancel: ClassVar[bool] = False
    search_residual: ClassVar[float] = 1e-8
    final_residual: ClassVar[float] = 1e-11
    residual_share: ClassVar[float] = 0.0
    first_rate: ClassVar[float] = 20.0

    def _tilted_sums_given_labels(
        self, problem: Problem, state: BrokenSymmetryState, labels: Labels, slopes: bool
    ) -> TiltedSumsGivenLabels:
        """Return the channel averages with replica symmetry broken given the label, for one student field."""
        options = TiltedPanelOptions.current()
        if not np.all(state.distances > options.min_distance * state.overlaps.q):
            raise DomainError(f"q of replicas within and between states differ by less than {options.min_distance:g} q")
        levels, fields = len(state.rates), field_law(problem, state.overlaps, labels)
        variances = state.distances[:, problem.token_cluster_indices(labels)][:, 0, 0, 0]
        on_lines = partial(
            _tilted_sums_along_lines, problem, fields, variances, state.rates, self, slopes, RunningMaximum()
        )
        if problem.solver.proximal.TEACHER_STEPS:
            lines = _student_lines_between_teacher_steps(problem, fields)
            sums = np.ones(len(lines.centre)) @ on_lines(lines)
        elif problem.dimension == 2:
            sums = _integrate_over_refined_panels(problem, fields, self, on_lines, levels)
        else:
            nodes, weights = TeacherFieldRule.teacher_rule_for_loss(
                problem, fields, self.teacher_axis_points, equidistant=True
            ).nodes_and_weights
            heavy = weights > options.negligible_weight * weights.max()
            sums = weights[heavy] @ on_lines(_student_lines_through_nodes(problem, fields, nodes[heavy]))
        mean, with_omega, between, smooth, free = sums[:_OUTER]
        within, values = sums[_OUTER : _OUTER + 2 * levels].reshape(levels, 2).T
        loss, bistable, whole, mass, *with_teacher = sums[_OUTER + 2 * levels :]
        return TiltedSumsGivenLabels(
            known={"g": mean, "g*dY.T": np.array(with_teacher), "g*domega.T": with_omega},
            products=np.array([between, *within]),
            totals=np.array([free, *values[:-1], -values[-1], loss, bistable, mass]),
            squares=(smooth, whole),
        )

    def cost_of_symmetry_breaking_search(self, cost: float) -> float:
        """Return the cost of a search for one-step symmetry breaking, in evaluations of replica symmetric averages.

        Args:
            cost: cost of such an evaluation; ignored here.
        """
        return 4000.0


PANELS = tuple(TiltedPiecesRule(rule.points) for rule in SYMMETRIC_PANELS)
