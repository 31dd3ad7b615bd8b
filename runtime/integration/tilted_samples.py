"""Averages over the channel with one step of replica symmetry breaking, for losses of several student fields.

The nodes of (Y, noise, omega_0) are scrambled Sobol sets. At each node omega is sampled around omega_0 from a mixture
of normal laws, one per minimum of the Moreau objective, which approximates exp(-y M) (docs/theory.md (18.32), (18.33)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..base.errors import DomainError
from ..base.options import AlgorithmOptions
from ..channel.fields import FieldLaw, block_diagonal, diagonal_blocks, field_law
from ..channel.nodes import sobol_normal_points
from ..channel.points import ProximalPoints, noise_value_indices, proximal_points_at_nodes, response_jacobians_at_minima
from ..problems.problem import Problem
from ..problems.reduced import reduce_to_fields_of_loss
from .rule import Labels
from .sampled import NodeRuleOptions, Sobol, extrapolate_squares_to_cusps
from .tilted_sums import BrokenSymmetryState, TiltedRule, TiltedSumsGivenLabels

_NODES_AT_ONCE = 2**13  # outer nodes, which bounds the memory
_TOTALS = "free", "moreau", "loss", "bistable", "mass", "drift"
_EDGE = 2.0**-40  # of the unit cube, left out
_STREAM = 71_000_003  # seed word that separates the shifts of samples from the scramblings of sets


@dataclass(frozen=True)
class TiltedSampleOptions(AlgorithmOptions):
    """Options of averages with replica symmetry broken by nested Sobol sets.

    Attributes:
        max_minima: largest number of minima of the Moreau objective in a mixture; more minima need more samples.
        negligible_log_weight: logarithm of the ratio of the largest weight to that of a minimum above which the minimum
            is left out.
        min_precision: lower bound on the inverse variance of a component of a mixture; lower values allow wider
            components.
        same_minimum_distance: relative distance up to which two minima count as one.
        log2_larger: logarithm to base 2 of the ratio of sizes of the larger Sobol sets, over which a quadratic
            approximation is averaged, to the outer sets.
        min_log2: logarithm to base 2 of the fewest points of a set.
        difference_step: step of second derivatives by finite differences, in standard deviations of a field.
    """

    max_minima: int = 3
    negligible_log_weight: float = 14.0
    min_precision: float = 0.8
    same_minimum_distance: float = 1e-4
    log2_larger: int = 3
    min_log2: int = 6
    difference_step: float = 1e-4


class _NestedSamplingParameters(NamedTuple):
    """The parameters that are common to all nodes of nested sampling, given the labels.

    Attributes:
        problem: problem whose fields are integrated over.
        fields: law of the fields.
        root: Cholesky factor of Delta, the variance of the student field omega between states.
        y: Parisi parameter.
    """

    problem: Problem
    fields: FieldLaw
    root: np.ndarray
    y: float


class _NormalMixtures(NamedTuple):
    """The normal mixtures from which student fields omega are sampled, one mixture per outer node omega_0.

    A mixture has one normal component per local minimum of the Moreau objective. Around a minimum, in terms of zeta
    with omega = omega_0 + Delta^(1/2) zeta,

        -y M = height + pull^T zeta - 1/2 zeta^T bend zeta,

    so that exp(-y M) times the standard normal density of zeta is exp(weight) times a normal density.

    Attributes:
        minima: number of components of each mixture.
        height, weight: the constants above, shape (outer nodes, components), -inf for missing components.
        pull, bend: the vector and matrix above for each component.
        centre: mean of each component.
        precision_root: upper triangular U of each component; its precision matrix is U^T U.
    """

    minima: np.ndarray
    height: np.ndarray
    weight: np.ndarray
    pull: np.ndarray
    bend: np.ndarray
    centre: np.ndarray
    precision_root: np.ndarray

    def select_components(self, at: np.ndarray, count: int) -> _NormalMixtures:
        """Return the first components of the normal mixtures at some of the outer nodes (values of omega_0).

        Args:
            at: indices of the outer nodes.
            count: number of components of each mixture.
        """
        return _NormalMixtures(self.minima[at], *(each[at, :count] for each in self[1:]))

    def add_standard_normal_component(self) -> _NormalMixtures:
        """Return mixtures of two components: the first component of each mixture and the standard normal law."""
        out = _NormalMixtures(
            np.full_like(self.minima, 2), *(np.concatenate([each[:, :1]] * 2, axis=1) for each in self[1:])
        )
        out.centre[:, 1], out.precision_root[:, 1] = 0.0, np.eye(out.centre.shape[2])
        return out

    @property
    def log_determinants(self) -> np.ndarray:
        """The logarithm of det U of each component of the mixtures, where U^T U is its precision matrix."""
        return np.log(np.diagonal(self.precision_root, axis1=2, axis2=3)).sum(axis=-1)


class _TiltedFieldAverages(NamedTuple):
    """The averages <.> over the student field omega of the states, tilted by exp(-y M), for each outer node omega_0.

    Attributes:
        free: (1/y) log E exp(-y M).
        moreau: average of the Moreau envelope M.
        bistable: probability of a second minimum.
        drift: <z g> - <z> <g>, z = omega - omega_0.
        g, square: <g> and <g g^T>.
        response: d<g>/domega_0, if requested.
        slopes: averages of G_ab G_ef, G = dg/domega: away from cusps, in a shell around cusps, and near cusps.
        cusps: weight of the shell around cusps, weight of the points near cusps.
        uneven: deviation of y M from a quadratic function at the samples; infinite where the proximal map may jump.
    """

    free: np.ndarray
    moreau: np.ndarray
    bistable: np.ndarray
    drift: np.ndarray
    g: np.ndarray
    square: np.ndarray
    response: np.ndarray
    slopes: np.ndarray
    cusps: np.ndarray
    uneven: np.ndarray

    @classmethod
    def allocate_averages(cls, count: int, D: int, slopes: bool) -> _TiltedFieldAverages:
        """Return averages with zero arrays, to be filled.

        Args:
            count: number of outer nodes.
            D: number of student fields.
            slopes: whether averages of the Jacobian dg/domega of g = V^(-1) (X - omega) are requested.
        """
        asked = [(D,) * 2, (3, *(D,) * 4), (2,)] if slopes else [()] * 3
        sizes = [(), (), (), (), (D,), (D, D), *asked, ()]
        return cls(*(np.zeros((count, *size)) for size in sizes))


@dataclass(frozen=True)
class NestedSobolRule(TiltedRule):
    """A rule of nested Sobol sets: nodes of teacher fields, noise and mean fields of states, samples within states.

    Args:
        log2, scramblings, seed, first: parameters of the outer sets, see `Sobol`.
        inner: number of samples of omega at an outer node near which the Moreau envelope M is not smooth.
        uneven: deviation of y M from a quadratic function (y the Parisi parameter) above which a node counts as such.
    """

    replicated: ClassVar[bool] = True
    search_residual: ClassVar[float] = 3e-3
    final_residual: ClassVar[float] = 1e-4
    residual_share: ClassVar[float] = 0.1
    step: ClassVar[float] = 2e-2  # samples change their minimum within one
    max_residual_ratio: ClassVar[float] = 0.7
    log2: int = 10
    scramblings: int = 16
    seed: int = 0
    first: int = 0
    inner: int = 48
    uneven: float = 1.0

    def rule_description(self) -> dict[str, Any]:
        """Return a dict with the rule's name, number of points of all scramblings, and seed, as in the JSON output."""
        return {"rule": "nested-sobol", "points": self.scramblings * 2**self.log2, "seed": self.seed}

    @property
    def replicates(self) -> tuple[NestedSobolRule, ...]:
        """The rules that use one scrambling each."""
        return tuple(replace(self, scramblings=1, first=self.first + number) for number in range(self.scramblings))

    def with_fewer_points(self) -> NestedSobolRule:
        """Return the rule with a quarter of the nodes for a state's mean field, for results that need fewer digits."""
        return replace(self, log2=max(self.log2 - 2, TiltedSampleOptions.current().min_log2))

    def with_more_samples(self) -> NestedSobolRule:
        """Return the rule with twice as many samples of the student fields of states, at the same fields omega_0."""
        return replace(self, inner=2 * self.inner, uneven=self.uneven / 4)

    def replica_symmetric_rule(self) -> Sobol:
        """Return the rule for replica symmetric averages, whose Sobol sets are larger than those of this rule."""
        return Sobol(
            self.log2 + TiltedSampleOptions.current().log2_larger, self.scramblings, self.seed, first=self.first
        )

    @classmethod
    def is_applicable(cls, problem: Problem) -> bool:
        """Return whether the rule applies: the loss has no corners in the student fields."""
        return not reduce_to_fields_of_loss(problem).solver.proximal.CORNERS

    def cost_of_symmetry_breaking_search(self, cost: float) -> float:
        """Return the cost of a search for one-step symmetry breaking, in evaluations of replica symmetric averages.

        Args:
            cost: cost of such an evaluation, see `Rule.evaluation_cost`.
        """
        return 2e10 / cost

    def _tilted_sums_given_labels(
        self, problem: Problem, state: BrokenSymmetryState, labels: Labels, slopes: bool
    ) -> TiltedSumsGivenLabels:
        """Return the channel averages with one step of replica symmetry breaking, given the labels.

        They are averages of a quadratic approximation over a large Sobol set of outer nodes, plus the mean difference
        between sampled averages and this approximation over a smaller set.
        """
        (y,), (apart,) = state.rates, state.distances
        fields = field_law(problem, state.overlaps, labels)
        try:
            root = np.linalg.cholesky(block_diagonal(apart[problem.token_cluster_indices(labels)]))
        except np.linalg.LinAlgError:
            raise DomainError("Delta = q within minus q between replica states is not positive definite") from None
        sums: dict[str, Any] = {}
        for number in range(self.first, self.first + self.scramblings):
            for part in self._sums_over_sobol_set(_NestedSamplingParameters(problem, fields, root, y), number, slopes):
                for name, value in part.items():
                    sums[name] = sums.get(name, 0.0) + value / self.scramblings
        return TiltedSumsGivenLabels(
            known=sums,
            products=np.array([sums["between"], sums["within"]]),
            totals=np.array([sums[name] for name in _TOTALS]),
            squares=(sums["smooth"], extrapolate_squares_to_cusps(*sums["whole"], *sums["cusps"])) if slopes else (),
        )

    def _sums_over_sobol_set(
        self, setting: _NestedSamplingParameters, number: int, slopes: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the sums over one Sobol set of outer nodes, then those over the larger set with the same seed.

        An outer node is a value of the teacher fields, the noise and the student field common to all states.
        """
        problem, fields, *_ = setting
        L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
        groups = tuple(filter(None, (tuple(range(L * t)), tuple(range(L * t, L * (t + s))))))
        for more in (0, TiltedSampleOptions.current().log2_larger):
            nodes = sobol_normal_points(problem.dimension, self.log2 + more, 1000 * self.seed + number, groups)
            shifts = np.random.default_rng((_STREAM, self.seed, number)).random((0 if more else len(nodes), L * s))
            for begin in range(0, len(nodes), _NODES_AT_ONCE):
                at = slice(begin, begin + _NODES_AT_ONCE)
                for choice in noise_value_indices(problem):
                    points = proximal_points_at_nodes(problem, fields, nodes[at], choice=choice)
                    laws, weight = _normal_mixtures_of_minima(setting, points), points.weight / len(nodes)
                    expected = _averages_of_quadratic_minima(setting, laws)
                    sign = 1.0 if more else -1.0
                    yield _sum_over_outer_nodes(fields, nodes[at], points, sign * weight, expected)
                    if not more:
                        found = self._sampled_averages(setting, nodes[at], shifts[at], laws, choice, slopes)
                        yield _sum_over_outer_nodes(fields, nodes[at], points, weight, found)
                        yield {"bistable": weight @ found.bistable, "mass": weight @ (points.minima > 0)}
                        if slopes:
                            yield {
                                "smooth": np.einsum("n,nab,nef->abef", weight, found.response, found.response),
                                "whole": np.einsum("n,nzabef->zabef", weight, found.slopes),
                                "cusps": weight @ found.cusps,
                            }

    def _sampled_averages(
        self,
        setting: _NestedSamplingParameters,
        nodes: np.ndarray,
        shifts: np.ndarray,
        laws: _NormalMixtures,
        choice: int,
        slopes: bool,
    ) -> _TiltedFieldAverages:
        """Return averages over the student fields of states, for many values of omega_0, by importance sampling."""
        D = len(setting.root)
        found = _TiltedFieldAverages.allocate_averages(len(nodes), D, slopes)

        def _fill_averages(at: np.ndarray, own: _NormalMixtures, normal: np.ndarray, shares: np.ndarray) -> None:
            """Store the averages over the student fields of states, at some of the outer nodes, in `found`.

            Args:
                at: indices of the outer nodes.
                own: mixtures at these nodes.
                normal: standard normal samples.
                shares: weights of the samples.
            """
            if len(at):
                each = _importance_sampling_averages(setting, nodes[at], own, normal, shares, choice, slopes)
                for out, values in zip(found, each, strict=True):
                    out[at] = values

        alone = np.flatnonzero(laws.minima == 1)
        _fill_averages(alone, laws.select_components(alone, 1), *_normal_rule_of_degree_five(D))
        # A minimum that is absent at omega_0 may be the lowest nearby.
        beyond = alone[found.uneven[alone] > self.uneven]
        _fill_averages(
            beyond,
            laws.select_components(beyond, 1).add_standard_normal_component(),
            *_kronecker_normal_samples(self.inner // 4, shifts[beyond]),
        )
        for count in range(2, TiltedSampleOptions.current().max_minima + 1):
            at = np.flatnonzero(laws.minima == count)
            _fill_averages(
                at, laws.select_components(at, count), *_kronecker_normal_samples(self.inner // (2 * count), shifts[at])
            )
        return found


def _sum_over_outer_nodes(
    fields: FieldLaw, nodes: np.ndarray, points: ProximalPoints, weight: np.ndarray, found: _TiltedFieldAverages
) -> dict[str, np.ndarray | float]:
    """Return weighted sums over outer nodes of the averages over the student fields of states.

    An outer node is a value of the teacher fields, the noise and the student field omega_0 of all states.
    """
    N, L, s = points.omega.shape
    t = fields.teacher_factor.shape[1]
    g, away = found.g.reshape(N, L, s), points.omega - fields.field_mean
    teachers = np.einsum("lbc,plc->plb", fields.teacher_factor, nodes[:, : L * t].reshape(N, L, t))
    square, moreau = np.einsum("n,nab->ab", weight, found.square), float(weight @ found.moreau)
    return {
        "g": np.einsum("n,nla->la", weight, g),
        "g*dY.T": np.einsum("n,nla,nlb->lab", weight, g, teachers),
        "g*domega.T": np.einsum("n,nla,nlb->lab", weight, g, away),
        "between": np.einsum("n,nla,nlb->lab", weight, g, g),
        "within": diagonal_blocks(square, L, s),
        "free": float(weight @ found.free),
        "moreau": moreau,
        "drift": float(weight @ found.drift),
        "loss": moreau - 0.5 * float(np.sum(square * block_diagonal(fields.variance))),
    }


def _normal_mixtures_of_minima(setting: _NestedSamplingParameters, points: ProximalPoints) -> _NormalMixtures:
    """Return the normal mixtures with one component per local minimum of the Moreau objective at outer nodes."""
    problem, fields, root, _ = setting
    N, D = len(points.value), len(root)
    omega, x = points.omega.reshape(N, D), points.x.reshape(N, D)
    options = TiltedSampleOptions.current()
    W = options.max_minima
    sizes = (), (), (D,), (D, D), (D,), (D, D)
    laws = _NormalMixtures(np.ones(N, np.int64), *(np.zeros((N, W, *size)) for size in sizes))
    laws.height[:], laws.weight[:] = -np.inf, -np.inf
    laws.precision_root[:] = np.eye(D)
    for out, values in zip(
        laws[1:], _normal_laws_around_minima(setting, omega, x, points.value, points.features), strict=True
    ):
        out[:, 0] = values
    at = np.flatnonzero(points.minima > 1)
    _, minima = problem.solver.proximal.all_minima(
        omega[at], fields.precision, points.features[at], fields.constants, W
    )
    for k in range(W):
        # The lowest has a law; the next ones take the places behind it where they weigh something.
        there, value = minima[:, k, :D], minima[:, k, D]
        distance, size = np.abs(there - x[at]).max(axis=1), np.abs(x[at]).max(axis=1)
        other = np.isfinite(value) & (distance > options.same_minimum_distance * size)
        which, known = at[other], points.features[at[other]]
        law = _normal_laws_around_minima(setting, omega[which], there[other], value[other], known)
        kept = (law[1] > laws.weight[which, 0] - options.negligible_log_weight) & (laws.minima[which] < W)
        which = which[kept]
        for out, values in zip(laws[1:], law, strict=True):
            out[which, laws.minima[which]] = values[kept]
        laws.minima[which] += 1
    return laws


def _normal_laws_around_minima(
    setting: _NestedSamplingParameters, omega: np.ndarray, x: np.ndarray, value: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return the normal mixture components around given minima of the Moreau objective, one minimum per row.

    The arrays are height, weight, pull, bend, centre and precision root, see `_NormalMixtures`.
    """
    problem, fields, root, y = setting
    g = (x - omega) @ block_diagonal(fields.precision)
    bend = -y * np.einsum("ab,nac,cd->nbd", root, _field_jacobians_at_minima(problem, fields, x, known)[0], root)
    values, vectors = np.linalg.eigh(np.eye(len(root)) + bend)
    softest = TiltedSampleOptions.current().min_precision
    precision = (vectors * np.clip(values, softest, None)[:, None, :]) @ vectors.transpose(0, 2, 1)
    bend = precision - np.eye(len(root))
    upper = np.linalg.cholesky(precision).transpose(0, 2, 1)
    pull = y * g @ root
    centre = np.linalg.solve(precision, pull[..., None])[..., 0]
    log_determinants = np.log(np.diagonal(upper, axis1=1, axis2=2)).sum(axis=1)
    height = -y * value
    return height, height + 0.5 * (pull * centre).sum(axis=1) - log_determinants, pull, bend, centre, upper


def _averages_of_quadratic_minima(setting: _NestedSamplingParameters, laws: _NormalMixtures) -> _TiltedFieldAverages:
    """Return averages over the student fields of states, with a quadratic Moreau envelope around each minimum.

    A minimum contributes where it is lower than all other minima; differences of minima are linearised.
    """
    from scipy.special import log_ndtr, logsumexp  # slow to load

    root, y = setting.root, setting.y
    W, D = laws.centre.shape[1:]
    inverse = np.linalg.inv(laws.precision_root)
    spread = inverse @ np.swapaxes(inverse, -1, -2)
    weight = laws.weight.copy()
    for i, k in permutations(range(W), 2):
        at = np.flatnonzero(laws.minima > max(i, k))
        bend, centre, S = laws.bend[at, i] - laws.bend[at, k], laws.centre[at, i], spread[at, i]
        pull = laws.pull[at, i] - laws.pull[at, k]
        half = np.einsum("nab,nb->na", bend, centre) / 2
        lower = laws.height[at, i] - laws.height[at, k] + ((pull - half) * centre).sum(axis=1)
        lower -= np.einsum("nab,nab->n", bend, S) / 2
        slope = pull - 2 * half
        width = np.sqrt(np.einsum("na,nab,nb->n", slope, S, slope))
        weight[at, i] += log_ndtr(lower / np.maximum(width, 1e-300))
    free = logsumexp(weight, axis=1)
    share = np.exp(weight - free[:, None])
    bent = np.einsum("nkab,nkb->nka", laws.bend, laws.centre)
    back = np.linalg.inv(root) / y
    g = (laws.pull - bent) @ back
    vary = np.swapaxes(inverse, -1, -2) @ laws.bend @ back
    square = np.einsum("nk,nkab->nab", share, g[..., :, None] * g[..., None, :] + np.swapaxes(vary, -1, -2) @ vary)
    cost = ((bent / 2 - laws.pull) * laws.centre).sum(axis=-1) + np.einsum("nkab,nkab->nk", laws.bend, spread) / 2
    cost -= np.where(np.isfinite(laws.height), laws.height, 0.0)
    empty = _TiltedFieldAverages.allocate_averages(0, D, False)
    mean = np.einsum("nk,nka->na", share, laws.centre)
    drift = ((laws.pull - bent) * (laws.centre - mean[:, None])).sum(axis=-1)
    drift -= np.einsum("nkab,nkab->nk", laws.bend, spread)
    drift = (share * drift).sum(axis=1) / y
    moreau, g = (share * cost).sum(axis=1) / y, np.einsum("nk,nka->na", share, g)
    return empty._replace(free=free / y, moreau=moreau, drift=drift, g=g, square=square)


def _field_jacobians_at_minima(
    problem: Problem, fields: FieldLaw, x: np.ndarray, known: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return dg/domega, with g = V^(-1) (X - omega), and 1 + H V with the Hessian H of the loss, at given minima."""
    step = TiltedSampleOptions.current().difference_step
    return response_jacobians_at_minima(
        problem, fields, x, known, step * float(np.sqrt(np.mean(x * x)) if x.size else 1.0)
    )


def _importance_sampling_averages(
    setting: _NestedSamplingParameters,
    nodes: np.ndarray,
    laws: _NormalMixtures,
    normal: np.ndarray,
    shares: np.ndarray,
    choice: int,
    slopes: bool,
) -> _TiltedFieldAverages:
    """Return averages over the student field omega of the states, by importance sampling from normal mixtures.

    The mixtures of all outer nodes have the same number of components. The samples of each component are linear images
    of standard normal samples.
    """
    from scipy.special import logsumexp  # slow to load

    problem, fields, root, y = setting
    far = TiltedSampleOptions.current().negligible_log_weight
    N, K, D = laws.centre.shape
    away = normal[:, None] @ np.swapaxes(np.linalg.inv(laws.precision_root), -1, -2)
    zeta = (laws.centre[:, :, None] + away).reshape(N, -1, D)
    count, shares = zeta.shape[1], np.tile(shares / K, K)
    # Of the mixture of all laws: no weight exceeds that of a single law by more than their number.
    apart = (zeta[:, None] - laws.centre[:, :, None]) @ np.swapaxes(laws.precision_root, -1, -2)
    mixture = logsumexp(laws.log_determinants[:, :, None] - 0.5 * (apart**2).sum(axis=-1), axis=1) - np.log(K)
    points = _proximal_points_of_samples(setting, nodes, zeta, choice)
    value, minima, gap = (each.reshape(N, count) for each in (points.value, points.minima, points.gap))
    exponent = np.where(minima > 0, -y * value, -np.inf) - 0.5 * (zeta**2).sum(axis=-1) - mixture
    top = exponent.max(axis=1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    weight = shares * np.exp(exponent - top)
    total = weight.sum(axis=1, keepdims=True)
    weight /= total
    g = points.g.reshape(N, count, D)
    pulls = g @ root
    mean, square = np.einsum("nj,nja->na", weight, g), np.swapaxes(weight[..., None] * g, 1, 2) @ g
    response, products, cusps = np.zeros(N), np.zeros(N), np.zeros(N)
    if slopes:
        G, matrix = _field_jacobians_at_minima(problem, fields, points.x.reshape(-1, D), points.features)
        G, det = G.reshape(N, count, D, D), np.linalg.det(matrix).reshape(N, 1, count)
        response = np.einsum("nj,njab->nab", weight, G) + y * (square - mean[:, :, None] * mean[:, None, :])
        cusp = NodeRuleOptions.current().cusp_determinant
        inside, shell = det < cusp, (det >= cusp) & (det < 2 * cusp)
        parts = weight[:, None] * np.concatenate([~(inside | shell), shell, inside], axis=1)
        products = np.einsum("nzj,njab,njef->nzabef", parts, G, G, optimize=True)
        cusps = parts[:, 1:].sum(axis=-1)
    return _TiltedFieldAverages(
        free=(top[:, 0] + np.log(total[:, 0])) / y,
        moreau=np.einsum("nj,nj->n", weight, value),
        bistable=np.einsum("nj,nj->n", weight, (minima > 1).astype(float)),
        drift=(weight * (zeta * pulls).sum(axis=-1)).sum(axis=1)
        - (np.einsum("nj,nja->na", weight, zeta) * np.einsum("nj,nja->na", weight, pulls)).sum(axis=1),
        g=mean, square=square, response=response, slopes=products, cusps=cusps,
        uneven=np.where(((minima > 1) & (y * gap < far)).any(axis=1), np.inf, np.ptp(exponent, axis=1)),
    )  # fmt: skip


def _proximal_points_of_samples(
    setting: _NestedSamplingParameters, nodes: np.ndarray, zeta: np.ndarray, choice: int
) -> ProximalPoints:
    """Return the proximal points at student fields omega_0 + Delta^(1/2) zeta for standard normal samples zeta.

    omega_0 is the field of all states at every outer node, Delta the variance between states.
    """
    problem, fields, root, _ = setting
    L, s, t = problem.tokens, problem.student_rank, problem.teacher_rank
    N, count, D = zeta.shape
    z = (zeta @ root.T).reshape(N, count, L, s)
    inner = np.tile(nodes[:, None], (1, count, 1))
    inner[:, :, L * t : L * (t + s)] += np.einsum("lab,njlb->njla", np.linalg.inv(fields.field_factor), z).reshape(
        N, count, D
    )
    return proximal_points_at_nodes(problem, fields, inner.reshape(N * count, -1), choice=choice)


def _kronecker_normal_samples(pairs: int, shifts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return standard normal samples in mirrored pairs, shape (outer nodes, samples, fields), and their weights.

    They come from a Kronecker sequence in the unit cube, which is shifted by a different vector at each outer node.
    """
    from scipy.special import ndtri  # slow to load

    D = shifts.shape[1]
    base = float(np.roots([1.0, *[0.0] * (D - 1), -1.0, -1.0]).real.max())  # base^(D + 1) = base + 1
    steps = np.outer(np.arange(pairs), base ** -np.arange(1.0, D + 1))
    normal = ndtri(np.clip(np.modf(steps + shifts[:, None])[0], _EDGE, 1 - _EDGE))
    return np.concatenate([normal, -normal], axis=1), np.full(2 * pairs, 0.5 / pairs)


def _normal_rule_of_degree_five(D: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes and weights of a quadrature rule of degree five for the standard normal law in D dimensions.

    The nodes are the centre and, on a sphere, the axes and the bisectors of pairs of axes (Stroud, E_n^(r^2) 5-2).
    """
    axes = np.sqrt(D + 2.0) * np.eye(D)
    bisectors = [(one + sign * other) / np.sqrt(2.0) for one, other in combinations(axes, 2) for sign in (1, -1)]
    sides = np.concatenate([axes, np.reshape(bisectors, (-1, D))])
    weights = np.repeat([(4.0 - D) / (2 * (D + 2) ** 2), 1.0 / (D + 2) ** 2], [D, D * (D - 1)])
    nodes = np.concatenate([np.zeros((1, D)), sides, -sides])
    return nodes[None], np.concatenate([[2.0 / (D + 2)], weights, weights])


SAMPLES = tuple(NestedSobolRule(log2) for log2 in (6, 8, 9, 10, 11))
