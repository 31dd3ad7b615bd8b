"""One student field: omega between the places at which the proximal map jumps or bends, which are found exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ..base.errors import InputError
from ..channel.exchange import Reduction
from ..channel.fields import Fields
from ..channel.nodes import gauss_legendre, highest_coefficients
from ..channel.points import noise_choices, points_at
from ..problems.compiled import loops
from ..problems.problem import Problem
from ..problems.reduced import integrated
from .panels import Panels
from .rule import Rule
from .sampled import Integrand, NodeSets, PointRule, TeacherRule, narrow_cells, teacher_edges

REACH = 8.5  # of a line, in standard deviations
LONGEST = 3.2  # panel
_CELLS = 24  # of a line, at whose ends proximal points are looked at first
_PER_DIGIT = 1.25  # nodes of a panel for every digit of X on it
_ROUNDING = 1e-12  # of X, which no panel resolves further
_ROUNDING_OF_SQUARES = 1e-9  # of (dg/domega)^2, relative to its average, next to a cusp
_PER_CUSP = 1e3  # times what X is resolved to, averages of squares over omega are, relative to theirs
_SQUARES_OF_SUMS = 1e-4  # of their average over a sum: the search for proximal points is slow close to a cusp
_OUTER = 2.5  # nodes an axis of Y and noise for every node of a panel
_MOST_LINES = 1e6
_MOST_PANELS = 2000  # of Y
_SHORTEST = 1e-11  # of these, half of it: next to a cusp, where the root of its length counts
_OPINIONS = (12, 16, 24)
_FINE = 16  # nodes a panel, and more of them where they cost nothing
_LIGHT = 1e-18  # of the heaviest: weights that count no more
Lines = Callable[[Problem, Fields, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
# In widths, where a probability that is steep in omega is split.
_STEEP = np.array([-7.5, -5.0, -2.5, 0.0, 2.5, 5.0, 7.5])


@dataclass(frozen=True)
class Pieces(PointRule):
    """Gauss-Legendre panels of omega between jumps and bends of the proximal map, exact ones, at nodes in Y and noise.

    Where minima change places is solved for; proximal points come to an edge of a piece of the loss, and leave it, at
    x + V l'(x) of either side (docs/theory.md (11.12), (11.13)). Where the loss knows of a teacher field what is
    constant between steps, as its sign, Y is averaged over in closed form, and one dimension is left (11.14).

    Args:
        points: nodes a panel, 4 or more; squares: whether panels resolve (dg/domega)^2, too.
    """

    squares: bool = False
    name: str = "pieces"
    most_points: ClassVar[int] = 64
    splits_jumps: ClassVar[bool] = True
    resolves_squares: ClassVar[bool] = True
    at_temperature: ClassVar[bool] = False

    def lines(self, problem: Problem) -> float:
        """How many values of Y and noise it takes."""
        part = integrated(problem)
        if self.takes_lines_alone(problem):
            return 2.0 * len(part.label_choices)
        axes = 1.0 if part.solver.proximal.SUM >= 0 else part.dimension - 1.0
        return self.outer**axes * len(part.label_choices)

    def nodes(self, problem: Problem) -> float:
        """With six panels a line."""
        return 6 * self.points * self.lines(problem)

    def cost(self, problem: Problem) -> float:
        """Two proximal points a node."""
        return 2e2 * self.nodes(problem)

    def compared_with(self) -> tuple[Pieces, ...]:
        """Once."""
        return (self.coarser(),)

    @classmethod
    def sizes(cls, problem: Problem) -> tuple[Pieces, ...]:
        """Return PANELS."""
        return PANELS

    def rank(self, problem: Problem) -> float:
        """Return the first place where lines are all there is, by many nodes, which cost nothing; else one after grids
        of few nodes in X, which take many where kinks move with Y, or X bends."""
        if self.takes_lines_alone(problem):
            return 0 if self.points >= _FINE else np.inf
        return 2 if self.suits(problem) else np.inf

    @classmethod
    def opinions(cls, problem: Problem, bistable: float) -> tuple[Pieces, ...]:
        """Where there is one field."""
        levels = (cls(points) for points in _OPINIONS if cls.suits(problem))
        return tuple(level for level in levels if level.lines(problem) <= _MOST_LINES)

    @classmethod
    def suits(cls, problem: Problem) -> bool:
        """Where there is one field, and lines are not too many."""
        part = integrated(problem)
        return part.solver.channel.FIELDS == 1 and cls().lines(problem) <= _MOST_LINES / 10

    @classmethod
    def takes_lines_alone(cls, problem: Problem) -> bool:
        """Whether there is one field, and no node in Y or noise: nothing is faster."""
        part = integrated(problem)
        channel = part.solver.proximal
        return channel.FIELDS == 1 and (part.dimension == 1 or channel.TEACHER_STEPS)

    def for_differences(self, problem: Problem, sample: Rule) -> tuple[Rule, float | None, bool]:
        """One side does: averages are smooth up to what panels are halved for, and steps as short as that allows."""
        return self, float(np.sqrt(self.resolution)), True

    def tolerance(self, accuracy: float) -> float:
        """As of `Rule`, and far below what its averages are known to: another evaluation costs next to nothing."""
        return min(1e-12, super().tolerance(accuracy))

    @property
    def outer(self) -> int:
        """Nodes an axis of Y and noise."""
        return round(_OUTER * self.points)

    def node_sets(self, problem: Problem, fields: Fields, reduction: Reduction, of: Integrand = "averages") -> NodeSets:
        """Return nodes and weights, as of `Sampled`."""
        if of == "slopes" and not self.squares:
            return replace(self, squares=True).node_sets(problem, fields, reduction, of)
        channel, moments = problem.solver.proximal, 2 if of == "tangents" else 1
        if channel.FIELDS != 1:
            raise InputError(
                f"the rule {self.name} is for one student field, and the loss depends on {channel.FIELDS}; use sobol"
            )
        if channel.TEACHER_STEPS:
            return [self._between_steps(problem, fields, moments)]  # averages are affine in Y
        if self.lines(problem) > _MOST_LINES:
            raise InputError(f"{self.lines(problem):.1e} lines are too many for the rule {self.name}; use sobol")
        if problem.dimension == 2:
            edges = teacher_edges(problem, fields, REACH, LONGEST)
            return [self._resolved(problem, fields, edges, self._on_lines)]
        # Y and noise enter the loss by a sum, and nothing narrow in it asks for cells of both.
        if channel.SUM >= 0 and narrow_cells(problem, fields) is None:
            return [self._by_sum(problem, fields, moments)]
        nodes, weights = TeacherRule.of(problem, fields, self.outer, equidistant=True).rule
        heavy = weights > 1e-17 * weights.max()
        nodes, _, weights = self._on_lines(problem, fields, nodes[heavy], weights[heavy])
        return [(nodes, weights)]

    def _resolved(
        self, problem: Problem, fields: Fields, edges: np.ndarray, lines: Lines, normal: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights where one coordinate besides omega is left: panels of it between `edges`.

        They are halved until averages over omega are polynomials there: short where omega follows Y closely.
        The first nodes say how large averages over Y are that tails may dominate.

        Args:
            lines: nodes along omega at values of the coordinate (N, 1), numbers of these, weights;
            normal: whether the coordinate is a standard normal one; else `lines` hold its density.
        """
        per_cusp = _PER_CUSP if normal else max(_PER_CUSP, _SQUARES_OF_SUMS / self.resolution)
        panels, parts, visited, averages = Panels.between(edges), [], 0, [0.0, 0.0]
        while len(panels):
            z, share = (each.ravel() for each in panels.nodes(self.points))
            if normal:
                share *= np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
            nodes, row, weights = lines(problem, fields, z[:, None], share)
            sums = np.zeros((len(z), 5 if self.squares else 4))  # 1, X, X^2, the Moreau objective, (dg/domega)^2
            if self.squares:
                _, each, slopes = self._slopes(problem, fields, nodes, weights)
                squares = (each * slopes[:, 0, 0] ** 2).reshape(len(nodes), -1).sum(axis=1)
                sums[:, 4] = np.bincount(row, squares / share[row], len(z))
                averages[1] = averages[1] or float(share @ sums[:, 4])
            for choice in noise_choices(problem):
                points = points_at(problem, fields, nodes, choice=choice)
                x = points.x[:, 0, 0]
                each = np.column_stack([np.ones(len(x)), x, x**2, points.value])
                along = (points.weight * weights / share[row])[:, None] * each
                sums[:, :4] += np.stack([np.bincount(row, each, len(z)) for each in along.T], axis=1)
            averages[0] = averages[0] or float(share @ np.abs(sums[:, 3]))
            values = sums.reshape(len(panels), self.points, -1)
            tail = np.abs(np.einsum("kj,njf->nkf", highest_coefficients(self.points), values)).max(axis=1)
            # The mean may vanish by symmetry; squares of slopes are singular next to a cusp.
            most, largest = sums[:, 0].max(), np.abs(sums[:, 2]).max()
            scales = np.array([most, np.sqrt(most * largest), largest, averages[0] or 1.0, averages[1] * per_cusp])
            density = panels.density if normal else 1.0
            # What the panel is off by counts with its length: proximal points near a cusp are not known to all digits.
            off = (tail / scales[: tail.shape[1]]).max(axis=1) * panels.half * density
            open_ = (off > 3 * self.resolution) & (panels.half > _SHORTEST)
            visited += len(panels)
            if visited > _MOST_PANELS:
                open_[:] = False
            done = ~open_[row // self.points]
            parts.append((nodes[done], weights[done]))
            panels = panels.halved(open_)
        nodes, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return np.ascontiguousarray(nodes), np.ascontiguousarray(weights)

    def _by_sum(self, problem: Problem, fields: Fields, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return nodes and weights where Y and noise enter the loss by a sum S = h(Y) + c u (docs/theory.md (11.19)).

        The proximal map is that of omega and S: panels of S, lines of omega, and `count` nodes of Y given both.
        """
        mean, factor, feature = fields.teacher_mean[0], fields.teacher_factor[0, 0], problem.solver.proximal.SUM

        def sums(z: np.ndarray, noise: float = 0.0) -> np.ndarray:
            """Return S at standard normal coordinates z of Y."""
            y = mean + z[:, None] * factor
            return np.asarray(features_at(problem, fields, y, np.full((len(z), 1), noise))[:, 0, feature])

        at_mean, above = (float(sums(np.zeros(1), noise)[0]) for noise in (0.0, 1.0))
        slope = above - at_mean
        spread = abs(slope) * float(problem.noise_scale[0])
        z, share, edges = self._nodes_of_sum(problem, fields, sums, spread)
        at, largest, on_teacher = sums(z), share.max() / spread, float(fields.field_from_teacher[0, 0, 0])
        centre, width = float(fields.field_mean[0, 0]), float(fields.field_factor[0, 0, 0])

        def lines(
            problem: Problem, fields: Fields, values: np.ndarray, weights: np.ndarray
        ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            density = share * np.exp(-(((values - at) / spread) ** 2) / 2) / (np.sqrt(2 * np.pi) * spread)
            density[density < _LIGHT * largest] = 0.0
            (kept,) = np.nonzero(density.any(axis=1))
            values, density = values[kept], density[kept]
            ends = [np.where(density > 0, on_teacher * z, empty) for empty in (np.inf, -np.inf)]
            low, high = centre + ends[0].min(axis=1) - REACH * width, centre + ends[1].max(axis=1) + REACH * width
            known = features_at(problem, fields, np.broadcast_to(mean, values.shape), (values - at_mean) / slope)
            reach = (high - low) / 2
            row, place, measure = self.panels(
                problem, fields, known, (low + high) / 2, reach, longest=LONGEST * width / reach, reach=1.0
            )
            measure *= np.sqrt(2 * np.pi) * np.exp(place**2 / 2) * reach[row]
            omega = (low + high)[row] / 2 + reach[row] * place
            arrays = row, omega, measure, z, density, centre, on_teacher, width
            whose, found, weight = loops("between").given_sum(*arrays, count)
            row = row[whose]
            noise = (values[row, 0] - sums(found[:, 0])) / spread * np.sign(slope)
            return np.column_stack([found, noise]), kept[row], weights[kept[row]] * weight

        return self._resolved(problem, fields, edges, lines, normal=False)

    def _nodes_of_sum(
        self, problem: Problem, fields: Fields, sums: Callable[[np.ndarray], np.ndarray], spread: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return nodes and weights of Y, between which the density of the sum is smooth, and first panels of the sum.

        Args:
            sums: of standard normal coordinates of Y; spread: what noise adds to them.
        """
        panels, parts = Panels.between(np.arange(-np.ceil(REACH), np.ceil(REACH) + 1)), []
        while len(panels):
            z, lengths = panels.nodes(self.points)
            values = sums(z.ravel()).reshape(z.shape)
            tail = np.abs(np.einsum("kj,nj->nk", highest_coefficients(self.points), values)).max(axis=1)
            measure = panels.half * panels.density
            far = (np.ptp(values, axis=1) > LONGEST * spread) & (measure > 1e-3 * self.resolution)
            open_ = (far | (tail / spread * measure > 3 * self.resolution)) & (panels.half > _SHORTEST)
            parts.append((z[~open_].ravel(), lengths[~open_].ravel()))
            panels = panels.halved(open_)
        z, share = (np.concatenate(each) for each in zip(*parts, strict=True))
        share = share * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
        heavy = share > _LIGHT * share.max()
        places = np.sort(sums(z[heavy]))
        places = np.concatenate([places[:1] - REACH * spread, places, places[-1:] + REACH * spread])
        # One in so many spreads.
        _, first = np.unique(np.floor((places - places[0]) / (LONGEST * spread)), return_index=True)
        return z[heavy], share[heavy], np.append(places[first[:-1]], places[-1])

    def _on_lines(
        self, problem: Problem, fields: Fields, nodes: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lines of omega through nodes of Y and noise: nodes in all coordinates, numbers of their lines, weights."""
        spread = np.full(len(nodes), fields.field_factor[0, 0, 0])
        row, z, share = self.panels(problem, fields, *lines_through(problem, fields, nodes), spread)
        return np.insert(nodes[row], problem.teacher_rank, z, axis=1), row, weights[row] * share

    @property
    def resolution(self) -> float:
        """What is left of two highest coefficients where a panel is short enough."""
        return max(10.0 ** (-self.points / _PER_DIGIT), _ROUNDING)

    def panels(
        self,
        problem: Problem,
        fields: Fields,
        known: np.ndarray,
        centre: np.ndarray,
        spread: np.ndarray,
        steep: np.ndarray | None = None,
        longest: np.ndarray | float = LONGEST,
        reach: float = REACH,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The generated panels: rows of `centre`, places in units of `spread`, weights.

        Args:
            known: features of every row, see `features_at`; longest: panel, reach: of a line, in units of `spread`.
        """
        lines = known, np.ascontiguousarray(centre), spread, np.zeros(0) if steep is None else steep
        rule = _CELLS, *gauss_legendre(self.points), highest_coefficients(self.points)
        squares = max(self.resolution, _ROUNDING_OF_SQUARES) if self.squares else np.inf
        widths = np.broadcast_to(np.minimum(longest, LONGEST), len(centre)).copy()
        return problem.solver.proximal.panels(
            *lines, fields.precision, fields.constants, *rule, self.resolution, squares, reach, widths
        )

    def _between_steps(self, problem: Problem, fields: Fields, nodes: int) -> tuple[np.ndarray, np.ndarray]:
        """Nodes and weights where the loss knows of Y between which steps it lies (docs/theory.md (11.14)).

        omega comes first, then one node for the law of Y given both, or two with its first three moments.
        """
        places, inside = between_steps(problem, fields)
        y = fields.teacher_mean[0] + inside[:, None] * fields.teacher_factor[0, 0, 0]
        slope, own = float(fields.field_from_teacher[0, 0, 0]), float(fields.field_factor[0, 0, 0])
        whole = float(np.hypot(slope, own))
        # In units of their spreads: z_Y given z = (omega - m) / whole has the mean shared * z and the spread width.
        shared, width = slope / whole, own / whole
        steep = (places[1:-1, None] + _STEEP * width).ravel() / shared if width < abs(shared) else None
        centre, spread = np.repeat(fields.field_mean[0], len(inside)), np.full(len(inside), whole)
        known = features_at(problem, fields, y, np.zeros((len(inside), 0)))
        row, z, weight = self.panels(problem, fields, known, centre, spread, steep)
        return loops("between").given(row, z, weight, places, shared, width, nodes)


def between_steps(problem: Problem, fields: Fields) -> tuple[np.ndarray, np.ndarray]:
    """Places (K + 1,) of Y, in units of its spread beside its mean, between which the loss knows of nothing else,
    infinities first and last; and a point (K,) well inside each interval."""
    steps = problem.solver.proximal.steps(fields.constants)
    steps = np.sort(steps[np.isfinite(steps)])
    places = np.full(len(steps) + 2, np.inf)
    places[0] = -np.inf
    places[1:-1] = (steps - fields.teacher_mean[0, 0]) / fields.teacher_factor[0, 0, 0]
    low, high = places[:-1], places[1:]
    margin = np.minimum(1.0, (high - low) / 2)
    return places, np.clip(0.0, low + margin, high - margin)


def features_at(problem: Problem, fields: Fields, y: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Features (N, values of the labelled noise, F) of teacher fields (N, t) and Gaussian noise (N, U)."""
    channel, gaussian = problem.solver.proximal, problem.is_gaussian
    found = []
    for choice in noise_choices(problem):
        u = np.zeros((len(y), len(gaussian)))
        u[:, gaussian] = noise
        if channel.LABELLED_NOISE:
            u[:, ~gaussian] = channel.LABELLED_NOISE[choice]
        found.append(channel.features_at(np.ascontiguousarray(y), u, fields.constants))
    return found[0][:, None] if len(found) == 1 else np.stack(found, axis=1)


def lines_through(problem: Problem, fields: Fields, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return features and E[omega | Y] at nodes in Y and noise, (N, values of the labelled noise, F) and (N,)."""
    y, noise = np.split(nodes, [problem.teacher_rank], axis=1)
    teachers = fields.teacher_mean[0] + y @ fields.teacher_factor[0].T
    features = features_at(problem, fields, teachers, noise * problem.noise_scale)
    return features, fields.field_mean[0, 0] + y @ fields.field_from_teacher[0, 0]


PANELS = tuple(Pieces(points) for points in (8, 12, 16, 24, 36))
