"""Solving a problem: starts, rule selection, errors of everything reported, and all branches ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np

from . import budget, gauge, observables, pace, presenting
from .collapse import at_rest
from .errors import InputError, TimeLimitError
from .fixed_point import CAUTIOUS, FixedPoint, StateMap, Status, best_weight, damped, jacobian, newton, residual_of
from .integration import Averages, GaussHermite, Lines, ProxSpace, Rule, Sobol, SparseGrid, rule_named
from .integration.boltzmann import nodes_in_fields
from .integration.estimates import DIFFERENCE_SAFETY, difference_factors, two_standard_errors
from .integration.fields import DomainError
from .landscape import Landscape, landscape
from .overlaps import Conjugates, Overlaps, Sizes
from .problem import Problem
from .progress import bar, left, say, step
from .search import searched
from .stability import NEGLIGIBLE_JUMPS, Stability, assess
from .symmetry import NO_SYMMETRY, Symmetry, of_state
from .tangents import map_slopes, why_not
from .thermal import Gibbs, gibbs

COARSE = Sobol(log2=8, scramblings=4)
BRANCH_NAMES = ("semantic", "positional", "mixed", "uninformed")
# Where the proximal map jumps a grid's error falls like its step cubed, with changing sign: the difference to a coarser
# grid, scaled down by this, guards against a chance agreement with the finer one.
COARSER_SHARE = 0.35
MASS_TOLERANCE = 1e-3
_MOST_NODES = 3e6  # of a product rule in omega, each with a proximal point
# Half a grid step of smoothing aliases the kink that a jump leaves in M: a third order. A wider one costs hats more on
# coarse grids, but M less on the fine ones.
LOSS_BLUR = 0.8
_MOST_LOSS_NODES = 1.5e10  # of a grid for the training loss alone
_BEYOND = 3  # finer rules to ask at the most where the differences grow with them
_STEP_ROUNDING = 1e-12  # of differences, in block scales
_MASS_ROUNDING = 1e-12  # of the total weight of a grid, what lies beyond its box included
SMOOTH_FLOOR = 1e-7  # a rule without nodes that swap converges further than this
_PLANE = (ProxSpace(48, 24), ProxSpace(64, 32), ProxSpace(88, 44), ProxSpace(120, 60), ProxSpace(168, 84))
_LINE = tuple(
    ProxSpace(*sizes) for sizes in ((96, 48), (144, 72), (216, 108), (432, 160), (1000, 240), (2400, 360), (6000, 500))
)
_PRODUCT = tuple(GaussHermite(points) for points in (12, 18, 28, 42, 64))
_SPLIT = tuple(Lines(points) for points in (24, 32, 48, 72, 108))
_MOST_LINES = 1e5
_VANISHING = 2.2  # times what half of a parameter moves: its limit to first order, and a tenth more
_TRAIL = 2  # sizes before the last that bound what a rule knows which did not reach its accuracy
_FIRST_ORDER = 1e-2  # half widths, in block scales, that are trusted to first order
_CURVED_STEPS, _UNKNOWN_CURVATURE = 3, 3.0
_FAR = 1e-2  # in block scales: beyond, slopes are taken anew
_HASTY_GRIDS = 4  # of a single field, before lines are tried
# At a finite temperature everything is smooth; the colder, the more nodes.
_PRODUCT_WARM = tuple(GaussHermite(points) for points in (8, 12, 18, 28, 42, 64, 96, 144))
_MOST_WARM = 2e9  # losses evaluated by a product rule, X and omega together
_SAMPLES = tuple(Sobol(log2) for log2 in range(10, 17))
# Sets over which the Jacobian of a sampled map is taken, and the level of _SAMPLES to try with the larger one.
_HASTY, _PATIENT, _PATIENT_LEVEL = Sobol(10, 4), Sobol(12, 8), 2


@dataclass(frozen=True)
class Solution:
    """A solution of the saddle point with error bars; or, where `status` says so, the last iterate.

    Attributes:
        errors: half widths of the packed overlaps, two standard errors or the difference of two rules.
        training_loss_error, test_error_error: half widths.
        error_kind: "estimated" or "verified" (two different rules agree within it).
        second_order: the part of `training_loss_error` that comes from the errors of the overlaps; Phi is stationary.
        shifts: how far other rules (or each replicate) would move the packed overlaps, the factors of the half widths
            included, (k, n).
        residual_shift: how far what is left of the residual would move them, (n,).
        jacobian, drift: dG/du that Newton's method used, and how far the overlaps have moved since, in block scales.
        loss_rule: of the training loss, where that is another one than of the overlaps.
        rank: 1 for the lowest training loss of the branches found; None if others were not sought.
    """

    problem: Problem
    start: str
    overlaps: Overlaps
    conjugates: Conjugates | None
    status: Status
    residual: float
    iterations: int
    rule: Rule
    errors: np.ndarray
    losses: observables.Losses | None
    training_loss_error: float
    test_error: float
    test_error_error: float
    second_order: float = 0.0
    error_kind: str = "estimated"
    rank: int | None = None
    jacobian: np.ndarray | None = field(default=None, repr=False)
    drift: float = field(default=0.0, repr=False)
    averages: Averages | None = field(default=None, repr=False)
    symmetry: Symmetry | None = field(default=None, repr=False)
    shifts: np.ndarray | None = field(default=None, repr=False)
    residual_shift: np.ndarray | None = field(default=None, repr=False)
    loss_rule: Rule | None = None

    @property
    def training_loss(self) -> float:
        """-Phi, per d; at a finite temperature the free energy (`thermal` holds the energy)."""
        return self.losses.training_loss if self.losses else np.nan

    @property
    def free_entropy(self) -> float:
        return self.losses.free_entropy if self.losses else np.nan

    @cached_property
    def baseline_error(self) -> float:
        return observables.baseline_error(self.problem)

    @property
    def success(self) -> bool:
        return self.status.success

    @property
    def half_widths(self) -> Overlaps:
        """Errors in the shape of the overlaps."""
        return Overlaps.unpack(self.errors, self.overlaps.sizes)

    @property
    def relative_error(self) -> float:
        """Largest half width of an overlap relative to the size of its block, as `accuracy` is counted."""
        return float(np.max(self.errors / self.overlaps.block_scales))

    @property
    def residual_loss(self) -> float:
        """What the residual is worth in the training loss, to second order: Phi is stationary."""
        shift = self.residual * self.overlaps.block_scales if self.residual_shift is None else self.residual_shift
        return float(np.max(np.abs(shift) / self.overlaps.block_scales)) ** 2 * abs(self.training_loss)

    @property
    def branch(self) -> str:
        """What was reached: semantic, positional, mixed or uninformed."""
        return branch_of(self.overlaps, self.errors)

    @cached_property
    def stability(self) -> Stability | None:
        """Longitudinal spectrum, replicon, jumps; None without a solution. Computed when first asked for."""
        return self.judged()

    def judged(self, spectrum: bool = True, log2_lines: int | None = None) -> Stability | None:
        """As `stability`, the longitudinal spectrum or the effort on the jump set chosen; None without a solution, or
        where a time limit comes first.

        Args:
            log2_lines: of the lines a replicate on which jumps are sought, default by the number of fields.
        """
        if self.averages is None or self.status is Status.TIME_LIMIT:
            return None
        try:
            with step("verdict on stability"):
                budget.check()
                return self._judged(self.averages, spectrum, log2_lines)
        except TimeLimitError:
            return None

    def _judged(self, averages: Averages, spectrum: bool, log2_lines: int | None) -> Stability:
        rules = rules_for_slopes(self.problem, self.rule, averages.bistable)
        if not spectrum:
            return assess(self.problem, self.overlaps, rules, None, averages, log2_lines)
        u, sizes = self.overlaps.pack(), self.overlaps.sizes
        state_map, slopes_by = StateMap(self.problem, self.rule), "differences"
        if isinstance(self.rule, ProxSpace) and rules[0] == self.rule and why_not(self.problem) is None:
            # The loop that the replicon asks for brings the slopes along.
            with step("slopes of the saddle-point map"):
                matrix, slopes_by = map_slopes(state_map, u).state, "printed derivatives"
        else:
            matrix = jacobian_by_rule(self.problem, self.rule, u, sizes)
        matrix = state_map.across(matrix, u, sizes)
        if is_replicated(self.rule) and np.linalg.eigvals(matrix).real.max() > 1:
            # Noise over few points looks like an instability: a verdict asks for more.
            matrix = state_map.across(jacobian_by_rule(self.problem, self.rule, u, sizes, _PATIENT), u, sizes)
        found = assess(self.problem, self.overlaps, rules, matrix, averages, log2_lines)
        return replace(found, slopes_by=slopes_by)

    @cached_property
    def thermal(self) -> Gibbs | None:
        """Energy, entropy and what weights drawn from the Gibbs measure do; None at zero temperature."""
        with step("averages over the Gibbs measure"):
            return gibbs(self)

    @cached_property
    def landscape(self) -> Landscape:
        """Minima of the Moreau objective at random points: which are proved global, how many there are."""
        with step("minima of the Moreau objective at random points"):
            return landscape(self.problem, self.overlaps)

    def table(self, names: Mapping[str, str] | None = None) -> str:
        """The solution for a terminal; `names` are symbols of the reader's own, {"theta": "T", "omega": "a"}."""
        return presenting.table(self, names)

    def __repr__(self) -> str:
        return self.table()

    def to_json(self) -> dict[str, Any]:
        """The object of the command line's contract (docs/design.md section 5)."""
        return presenting.to_json(self)


def branch_of(overlaps: Overlaps, errors: np.ndarray | None = None) -> str:
    """Name a state by which of theta (semantic) and m (positional) stand out.

    Non-zero means above 1e-3 of the scale of the fields, and above the error where that is known.
    """
    return _NAMES[overlaps_held(overlaps, errors)]


_NAMES = {(True, False): "semantic", (False, True): "positional", (True, True): "mixed", (False, False): "uninformed"}


def overlaps_held(overlaps: Overlaps, errors: np.ndarray | None = None) -> tuple[bool, bool]:
    """Whether theta and whether m stand out, as `branch_of` counts it."""
    q = np.sqrt(np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2)).max())
    widths = Overlaps.unpack(errors, overlaps.sizes) if errors is not None and np.isfinite(errors).all() else None
    theta_floor = max(1e-3 * q**2, float(np.max(widths.theta)) if widths else 0.0)
    m_floor = max(1e-3 * q, float(np.max(widths.m)) if widths else 0.0)
    semantic = np.abs(overlaps.theta).max() > theta_floor
    positional = np.abs(overlaps.m).max() > m_floor
    return bool(semantic), bool(positional)


def has_lost(problem: Problem, start: str | Overlaps | Solution, solution: Solution) -> bool:
    """Whether theta or m, which a start holds, is zero within its error at the solution that it led to.

    What a start by name holds is what its weights do in this problem: encodings that a model lacks promise nothing.
    """
    if isinstance(start, Solution):
        held = overlaps_held(start.overlaps, start.errors)
    else:
        held = overlaps_held(start_overlaps(problem, start) if isinstance(start, str) else start)
    there = overlaps_held(solution.overlaps, solution.errors)
    return any(before and not after for before, after in zip(held, there, strict=True))


def start_overlaps(problem: Problem, name: str) -> Overlaps:
    """The overlaps of a named start: those of weights mixed from teacher rows, encodings and noise.

    Raises:
        InputError: the model has no start of this name.
    """
    mix, noise, susceptibility = start_mixture(problem, name)
    law, contexts, s, t = problem.law, problem.contexts, problem.student_rank, problem.teacher_rank
    q = np.zeros((contexts, s, s))
    m = np.zeros((contexts, s))
    theta = np.zeros((contexts, s, t))
    for weight, gamma, gram in zip(law.weights, law.gamma, law.gram, strict=True):
        with_fields = mix @ gram
        square = with_fields @ mix.T + noise**2 * np.eye(s)
        q += weight * gamma[:, None, None] * square
        m += weight * with_fields[:, :contexts].T
        theta += weight * gamma[:, None, None] * with_fields[:, contexts:]
    V = susceptibility * law.rho[:, None, None] * np.eye(s)
    return Overlaps(q, V, m, theta, np.array([float(number["start"]) for number in problem.trained]))


def start_mixture(problem: Problem, name: str) -> tuple[np.ndarray, float, float]:
    """Of a named start: coefficients (s, C + t) of a row's (tau, pi), deviation of its noise, and V / rho.

    Raises:
        InputError: the model has no start of this name.
    """
    starts = problem.solver.model.STARTS
    if name not in starts:
        raise InputError(f"no start {name!r} for {problem.solver.name}; known are {', '.join(starts)}")
    spec = starts[name]
    contexts, s, t, tokens = problem.contexts, problem.student_rank, problem.teacher_rank, problem.tokens
    mix = np.zeros((s, contexts + t))
    teacher, encodings = np.asarray(spec["teacher"], float), np.asarray(spec["encodings"], float)
    if teacher.ndim == 0:
        teacher = float(teacher) * np.eye(s, t)
    if encodings.ndim == 0:
        first = np.zeros((s, tokens))
        first[-1, 0] = float(encodings)
        encodings = first
    mix[:, contexts:] = teacher
    if encodings.shape[1] != contexts:
        encodings = np.repeat(encodings, problem.clusters, axis=1) / problem.clusters
    mix[:, :contexts] = encodings
    return mix, float(spec["noise"]), float(spec["susceptibility"])


def is_replicated(rule: Rule) -> bool:
    """Whether a rule comes in replicates whose spread is its error."""
    return isinstance(rule, Sobol)


def rules_for_slopes(problem: Problem, rule: Rule, bistable: float) -> tuple[Rule, ...]:
    """Rules for the averages of the field's slope (replicon, jump weight), which need few digits."""
    if isinstance(rule, Sobol):
        return (replace(rule, log2=min(rule.log2, 12)),)
    if isinstance(rule, ProxSpace) and bistable > NEGLIGIBLE_JUMPS:
        # A grid does not know which of its minima is the global one.
        return (Sobol(12),)
    if isinstance(rule, GaussHermite) and rule.finer().points ** problem.dimension > _MOST_NODES:
        return (Sobol(12),)
    return rule, rule.finer()


def jacobian_by_rule(
    problem: Problem,
    rule: Rule,
    u: np.ndarray,
    sizes: Sizes,
    sample: Sobol = _HASTY,
    symmetry: Symmetry = NO_SYMMETRY,
) -> np.ndarray:
    """dG/du by differences over the nodes and with the steps of `slope_settings`."""
    rule, steps, one_sided = slope_settings(problem, rule, Overlaps.unpack(u, sizes), sample)
    return jacobian(StateMap(problem, rule, symmetry), u, sizes, steps, one_sided)


def slope_settings(
    problem: Problem, rule: Rule, overlaps: Overlaps, sample: Sobol = _HASTY
) -> tuple[Rule, float | np.ndarray, bool]:
    """Rule, steps (in block scales) and whether one side will do, for the slope of the map under a rule.

    Narrow steps for smooth rules; for sampled rules, whose map jumps where a node's minimum swaps, wide steps over a
    smaller set `sample`, so that many nodes swap within a step.
    """
    if is_replicated(rule):
        return replace(sample, seed=getattr(rule, "seed", 0)), wide_steps(overlaps), False
    if isinstance(rule, ProxSpace) and problem.solver.channel.FIELDS > 1:
        return min(rule, _PLANE[1], key=lambda r: r.points), 1e-6, True
    if isinstance(rule, Lines):
        return min(rule, _SPLIT[0], key=lambda r: r.points), 1e-4, True
    if isinstance(rule, GaussHermite) and problem.inverse_temperature is not None and problem.dimension > 2:
        return min(rule, _PRODUCT_WARM[1], key=lambda r: r.points), 1e-5, True
    return rule, 1e-4, False


def wide_steps(overlaps: Overlaps, width: float = 1e-2) -> np.ndarray:
    """Steps relative to the blocks, (n,); along q no wider than a tenth of its narrowest direction.

    Query and key of untied attention are nearly the same: the map is far from a straight line over such a width of q.
    """
    contexts, s, *_ = overlaps.sizes
    values = np.linalg.eigvalsh(overlaps.q)
    steps = np.full(len(overlaps.block_scales), width)
    steps[: contexts * s * (s + 1) // 2] = min(width, 0.1 * max(float(values.min() / values.max()), 1e-4))
    return steps


def solve(
    problem: Problem,
    start: str | Overlaps | Solution = "semantic",
    *,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    seed: int = 0,
    effort: int = 100,
    time_limit: float | None = None,
) -> Solution:
    """Solve the saddle point from a start.

    Args:
        start: a named start of the model, overlaps, or a solution of a problem nearby (tried first without the damped
            approach).
        accuracy: half width asked of every overlap, relative to the size of its block.
        integrator: auto, gauss-hermite, sobol, prox-space, lines or sparse-grid; points as for `rule_named`.
        seed: of the scramblings.
        effort: how many sizes of a rule to climb at the most before reporting the accuracy as not reached.
        time_limit: seconds after which the best so far is returned, with the status TIME_LIMIT.

    Returns:
        A Solution; look at `status`. Not converging is a status, not an exception; so is ENDED_ELSEWHERE, a solution
        without an overlap that the start holds.

    Raises:
        InputError: an unknown start or integrator, or an accuracy that is not positive.
    """
    chosen: dict[str, Any] = {"integrator": integrator, "points": points, "seed": seed, "effort": effort}
    with budget.time_limit(time_limit):
        found = reach(problem, start, accuracy=accuracy, **chosen)
    if found.success and has_lost(problem, start, found):
        return replace(found, status=Status.ENDED_ELSEWHERE)
    return found


def reach(
    problem: Problem,
    start: str | Overlaps | Solution = "semantic",
    *,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    seed: int = 0,
    effort: int = 100,
) -> Solution:
    """As `solve`, for those who tell branches apart themselves: whatever solution a start leads to has converged."""
    if not 0 < accuracy < 1:
        raise InputError(f"accuracy = {accuracy!r} is out of range; allowed is (0, 1)")
    _ = problem.alpha  # is there before anything is compiled
    name = start if isinstance(start, str) else (start.start if isinstance(start, Solution) else "given")
    begun = start_overlaps(problem, start) if isinstance(start, str) else start
    with step(f"solving from the start {name}"), budget.offers() as best:
        try:
            return _reached(problem, name, begun, accuracy, integrator, points, seed, effort)
        except TimeLimitError as error:
            with budget.overtime():
                if best[0] is not None:
                    found: Solution = best[0]()
                    return found if found.success else replace(found, status=Status.TIME_LIMIT)
                overlaps = begun.overlaps if isinstance(begun, Solution) else begun
                nowhere = FixedPoint(overlaps.pack(), overlaps.sizes, np.nan, Status.TIME_LIMIT, 0, None)
                point = error.point if isinstance(error.point, FixedPoint) else nowhere
                return _failed(problem, name, replace(point, status=Status.TIME_LIMIT), COARSE)


def _reached(
    problem: Problem,
    name: str,
    start: Overlaps | Solution,
    accuracy: float,
    integrator: str,
    points: int | None,
    seed: int,
    effort: int,
) -> Solution:
    """Where a start leads.

    Raises:
        TimeLimitError: the time ended; a finished level, if any, has been offered.
    """
    rule = None if integrator == "auto" else rule_named(integrator, points, seed)
    _announce_compilation(problem)

    def finish(problem: Problem, point: FixedPoint, symmetry: Symmetry, near: Solution | None = None) -> Solution:
        if rule is None:
            return _solve_auto(problem, name, point, symmetry, accuracy, seed, effort, near)
        if isinstance(rule, Sobol) and points is None:
            return _climb(problem, name, point, symmetry, accuracy, seed, effort)
        return finish_point(problem, name, _newton(problem, rule, point, symmetry, accuracy), rule, accuracy, symmetry)

    if integrator in ("prox-space", "lines"):
        problem.only_at_zero_temperature(f"the rule {integrator} integrates")
    if isinstance(start, Solution):
        if start.overlaps.sizes != problem.sizes:
            raise InputError("the solution to start from belongs to another structure")
        if start.symmetry is not None:
            problem = searched(problem, start.overlaps)
            u, sizes = start.overlaps.pack(), start.overlaps.sizes
            symmetry = replace(start.symmetry, exchanges=of_state(problem, start.overlaps))
            known = start.jacobian if symmetry == start.symmetry else None
            point = FixedPoint(u, sizes, start.residual, Status.CONVERGED, 0, known, start.drift)
            found = finish(problem, point, symmetry, start)
            if found.losses is not None:
                return found
    approach = _approach(problem, start, seed)
    if not _is_near(approach):
        return _collapsed_or(_failed(problem, name, approach, COARSE), approach, seed)
    thorough = searched(problem, approach.overlaps)
    if thorough.search != problem.search:
        # The quick search missed minima: what it led to solves another map.
        again = _approach(thorough, approach.overlaps, seed)
        approach = replace(again, iterations=approach.iterations + again.iterations)
        if not _is_near(approach):
            return _collapsed_or(_failed(thorough, name, approach, COARSE), approach, seed)
    found = finish(thorough, approach, _symmetry_of(thorough, approach))
    return found if found.losses is not None else _collapsed_or(found, approach, seed)


def _is_near(approach: FixedPoint) -> bool:
    """Whether Newton's method may take over."""
    return approach.status.success or approach.residual < 0.05


def _collapsed_or(failed: Solution, approach: FixedPoint, seed: int) -> Solution:
    """W = 0 where that is what the approach falls into; what failed else."""
    rules = _approach_rules(failed.problem, seed)
    rest = at_rest(failed.problem, approach.overlaps, *rules)
    if rest is None:
        return failed
    overlaps, errors = rest
    return replace(failed, overlaps=overlaps, errors=errors, status=Status.COLLAPSED)


_announced: set[str] = set()


def _announce_compilation(problem: Problem) -> None:
    """Say so before Numba compiles a solver for the first time on this machine."""
    part = "channel" if problem.inverse_temperature is None else "thermal"
    key = f"{problem.solver.folder} {part}"
    if key not in _announced:
        _announced.add(key)
        if not problem.solver.compiled_before(part):
            say(f"compiling the solver of {problem.solver.name} (once on this machine, up to half a minute)")


@step("approaching by damped iteration")
def _approach(problem: Problem, start: Overlaps | Solution, seed: int) -> FixedPoint:
    """From the start to the neighbourhood of a solution, by damped iteration with a coarse global rule."""
    overlaps = start.overlaps if isinstance(start, Solution) else start
    symmetry = Symmetry(None, of_state(problem, overlaps), problem.clusters)
    rules = _approach_rules(problem, seed)
    coarse = StateMap(problem, rules[0], symmetry)
    point = damped(coarse, overlaps, 0.1)
    visited, weight = point.iterations, CAUTIOUS
    if point.status.success:
        with suppress(DomainError, np.linalg.LinAlgError):
            matrix = jacobian(coarse, point.u, point.sizes, 1e-2, one_sided=True)
            weight = best_weight(np.linalg.eigvals(coarse.across(matrix, point.u, point.sizes)))
        point = damped(coarse, point.overlaps, 2e-3, weight=weight)
        visited += point.iterations
    if point.status.success or point.residual < 0.05:
        # A soft branch needs the finer set before Newton may take over.
        fine = StateMap(problem, rules[1], symmetry)
        point = damped(fine, point.overlaps, 3e-4, max_iterations=200, weight=weight)
        visited += point.iterations
    canonical = gauge.canonical(problem, point.overlaps, gauge.generators(problem))
    return replace(point, u=canonical.pack(), iterations=visited)


def _approach_rules(problem: Problem, seed: int) -> tuple[Rule, Rule]:
    """A coarse rule and a finer one, both even, from which zeros by symmetry are read off."""
    warm = _PRODUCT_WARM[0]
    if problem.inverse_temperature is not None and evaluations(problem, warm) <= _MOST_WARM:
        return replace(warm.coarser(), inner=0.75), warm
    return replace(COARSE, seed=seed), Sobol(10, 4, seed=seed)


def _symmetry_of(problem: Problem, point: FixedPoint) -> Symmetry:
    """Exchanges that leave the state as it is, and components of m and theta that are zero to rounding under the
    sign-symmetric coarse rule."""
    scales = point.overlaps.block_scales
    frozen = np.abs(point.u) < 1e-11 * scales
    contexts, s, _, trained = point.sizes
    frozen[: contexts * s * (s + 1)] = False
    frozen[len(frozen) - trained :] = False
    return Symmetry(frozen, of_state(problem, point.overlaps), problem.clusters)


def _newton(
    problem: Problem, rule: Rule, point: FixedPoint, symmetry: Symmetry, accuracy: float, sample: Sobol = _HASTY
) -> FixedPoint:
    with step(f"Newton's method on {pace.words(problem, rule)}"):
        found = newton(
            StateMap(problem, rule, symmetry),
            replace(point, u=symmetry.project(point.u, point.sizes)),
            tolerance_of(rule, accuracy),
            lambda u: jacobian_by_rule(problem, rule, u, point.sizes, sample, symmetry),
        )
        if found.status is Status.FLOOR and not is_replicated(rule) and found.residual > SMOOTH_FLOOR:
            # A smooth map has no floor: this is a slow approach, as to a point where two branches meet.
            return replace(found, status=Status.MAX_ITERATIONS)
        if not found.status.success or found.drift <= _FAR:
            return found
        # Newton converges with slopes that are off by half; half widths, (I - J)^{-1} times what other rules say, would
        # be off by more.
        with suppress(DomainError):
            matrix = jacobian_by_rule(problem, rule, found.u, found.sizes, sample, symmetry)
            return replace(found, jacobian=matrix, drift=0.0)
        return found


def tolerance_of(rule: Rule, accuracy: float) -> float:
    """Residual asked of Newton: 1e-9 or less for smooth rules, a fiftieth of the accuracy for replicated ones."""
    return max(1e-9, 0.02 * accuracy) if is_replicated(rule) else max(2e-14, min(1e-9, 1e-2 * accuracy))


def _solve_auto(
    problem: Problem,
    name: str,
    approach: FixedPoint,
    symmetry: Symmetry,
    accuracy: float,
    seed: int,
    effort: int,
    near: Solution | None,
) -> Solution:
    """Prox-space for few fields, else Sobol with the global proximal map; at a finite temperature a product rule where
    few fields allow it."""
    channel = problem.solver.channel
    if problem.inverse_temperature is not None:
        products = tuple(level for level in _PRODUCT_WARM if evaluations(problem, level) <= _MOST_WARM)[:effort]
        if len(products) > 1:
            return _refine(problem, name, approach, symmetry, accuracy, products, patient=near is None)
        return _climb(problem, name, approach, symmetry, accuracy, seed, effort)
    if not channel.HAS_PROX_SPACE or channel.FIELDS > 2:
        return _climb(problem, name, approach, symmetry, accuracy, seed, effort)
    # Saddles that are not corrected cost about ten times their weight, which a finer grid does not show.
    grids = tuple(
        replace(grid, neglected=min(grid.neglected, 1e-2 * accuracy))
        for grid in (_LINE if channel.FIELDS == 1 else _PLANE)[:effort]
    )
    lines = tuple(rule for rule in _SPLIT[:effort] if channel.FIELDS == 1 and _lines(problem, rule) <= _MOST_LINES)
    families: list[Sequence[ProxSpace | Lines]] = [grids]
    if len(lines) > 1:
        # Lines are split where kinks move with the labels, and refined where X bends, which takes a grid many nodes.
        families = [grids[:_HASTY_GRIDS], lines, grids[_HASTY_GRIDS:]]
    if near is not None:
        families.sort(key=lambda levels: not any(isinstance(near.rule, type(level)) for level in levels))
    solution: Solution | None = None
    for levels in filter(None, families):
        if levels is lines and solution is not None and not (problem.has_moving_kinks or _bends_alone(solution)):
            continue
        first = _first_level(levels, accuracy, near)
        found = _refine(problem, name, approach, symmetry, accuracy, levels[first:], patient=near is None)
        if found.success:
            return found
        solution = found if solution is None else min(solution, found, key=_quality)
        if solution.losses is not None:
            u, residual = solution.overlaps.pack(), solution.residual
            known = solution.jacobian, solution.drift
            approach = FixedPoint(u, solution.overlaps.sizes, residual, Status.CONVERGED, 0, *known)
    assert solution is not None
    if channel.FIELDS > 1 and (solution.losses is not None or covers(problem, solution.rule, solution.overlaps)):
        return solution
    try:
        bistable = COARSE.averages(problem, approach.overlaps).bistable
    except DomainError:  # as extrapolated overlaps may be
        return _failed(problem, name, replace(approach, status=Status.LEFT_DOMAIN), COARSE)
    if channel.FIELDS > 1 and bistable > NEGLIGIBLE_JUMPS:
        return _climb(problem, name, approach, symmetry, accuracy, seed, effort)
    # A grid in X may be too wide for a narrow law of omega given Y: nodes in omega adapt to it.
    products = tuple(level for level in _PRODUCT[:effort] if level.points**problem.dimension <= _MOST_NODES)
    adapted = _refine(problem, name, approach, symmetry, accuracy, products)
    best = min(solution, adapted, key=_quality)
    return best if best.losses is not None else _climb(problem, name, approach, symmetry, accuracy, seed, effort)


def evaluations(problem: Problem, rule: GaussHermite) -> float:
    """Losses that a product rule evaluates at a finite temperature, about."""
    inner = float(nodes_in_fields(problem, rule.inner)) ** problem.solver.thermal.FIELDS
    return float(rule.points) ** problem.dimension * len(problem.label_choices) * inner


def _bends_alone(solution: Solution) -> bool:
    """Whether what a grid was too coarse for are bends of the proximal map, not its jumps or a narrow law of X."""
    return solution.averages is not None and solution.averages.bistable <= NEGLIGIBLE_JUMPS


def _quality(solution: Solution) -> tuple[bool, float]:
    """Sort key: solutions before failures, the most accurate first."""
    return solution.losses is None, solution.relative_error


def _lines(problem: Problem, rule: Lines) -> float:
    """How many lines a rule visits where nothing is split, about."""
    return float(rule.points) ** (problem.dimension - 1) * len(problem.label_choices)


def _first_level(levels: Sequence[ProxSpace | Lines], accuracy: float, near: Solution | None) -> int:
    """Where to begin climbing: at the level that a neighbouring solution needed, one below if it was too good."""
    sizes = [level.points for level in levels]
    if near is None or not isinstance(near.rule, type(levels[0])) or near.rule.points not in sizes:
        return 0
    generous = near.relative_error < accuracy / 10
    return max(sizes.index(near.rule.points) - int(generous), 0)


def _refine(
    problem: Problem,
    name: str,
    approach: FixedPoint,
    symmetry: Symmetry,
    accuracy: float,
    levels: Sequence[Rule],
    patient: bool = True,
) -> Solution:
    """Climb deterministic rules, each started from the last, until the next finer one agrees.

    Args:
        patient: whether to iterate with damping where Newton fails at first, and to try the next level.
    """
    point, failures = approach, 0
    solved: tuple[FixedPoint, Rule, tuple[np.ndarray, Averages] | None] | None = None
    solution: Solution | None = None
    trail: list[np.ndarray] = []
    for level in levels:
        covered = not isinstance(level, ProxSpace) or covers(problem, level, point.overlaps)
        reached = (
            _newton(problem, level, point, symmetry, accuracy)
            if covered
            else replace(point, status=Status.MAX_ITERATIONS)
        )
        if patient and covered and not reached.status.success and failures == 0:
            # The damped iteration had a coarser rule: a soft branch may be far from there.
            nearer = damped(StateMap(problem, level, symmetry), approach.overlaps, 1e-4, max_iterations=60)
            nearer = replace(nearer, jacobian=None, iterations=reached.iterations + nearer.iterations)
            reached = _newton(problem, level, nearer, symmetry, accuracy)
        if not covered or not reached.status.success:
            failures += 1
            # The grid may be too wide for the law of the fields; where finer ones are cheap they are tried.
            if problem.solver.channel.FIELDS > 1 and (solved or not patient or failures >= 2):
                break
            continue
        finer = _shift(problem, reached, level.finer(), symmetry)
        solved = reached, level, finer
        trail.append(reached.u)
        solution = None
        budget.offer(partial(finish_point, problem, name, reached, level, accuracy, symmetry, finer))
        if finer is None:
            break
        if DIFFERENCE_SAFETY * np.max(np.abs(finer[0]) / reached.overlaps.block_scales) < accuracy:
            solution = finish_point(problem, name, reached, level, accuracy, symmetry, finer)
            if solution.success:
                return solution
            budget.offer(partial(replace, solution))
        left(_so_far(finer[0], reached, accuracy))
        point = replace(reached, u=reached.u + finer[0])
    if solved is None:
        return _failed(problem, name, reached, level)
    point, level, finer = solved
    solution = solution or finish_point(problem, name, point, level, accuracy, symmetry, finer)
    if solution.losses is None or solution.success:
        return solution
    # Out of a rule's depth the next size may be as wrong as this one: nothing is known better than how far they moved.
    moved = [np.abs(solution.overlaps.pack() - _alike(u, solution.overlaps)) for u in trail[-1 - _TRAIL : -1]]
    wider = replace(solution, errors=np.max([solution.errors, *moved], axis=0))
    share = wider.relative_error / solution.relative_error
    return replace(wider, test_error_error=share * solution.test_error_error)


def _so_far(shift: np.ndarray, point: FixedPoint, accuracy: float) -> str:
    """The half width that the difference to a finer rule tells, beside the one asked for."""
    reached = DIFFERENCE_SAFETY * float(np.max(np.abs(shift) / point.overlaps.block_scales))
    return f"half width so far about {reached:.0e}, asked {accuracy:.0e}"


def covers(problem: Problem, rule: Rule, overlaps: Overlaps, tolerance: float = MASS_TOLERANCE) -> bool:
    """Whether a rule's weights add up to one and its saddles lead to two minima each.

    A grid too wide for the law of the fields may miss it, and sharply bent losses have more critical points than that.
    """
    try:
        with step(f"whether the fields fit on {pace.words(problem, rule)}"):
            averages = StateMap(problem, rule).averages(overlaps)
        return abs(averages.mass - 1) + averages.unconverged < tolerance
    except DomainError:
        return False


def _shift(problem: Problem, point: FixedPoint, rule: Rule, symmetry: Symmetry) -> tuple[np.ndarray, Averages] | None:
    """How far another rule would move the solution, (I - J)^{-1} (G(u) - u), and its averages."""
    try:
        state_map = StateMap(problem, rule, symmetry)
        with step(f"comparing with {pace.words(problem, rule)}"):
            images, averages = state_map.replicates(point.u, point.sizes)
        matrix = (
            point.jacobian
            if point.jacobian is not None
            else jacobian_by_rule(problem, rule, point.u, point.sizes, _HASTY, symmetry)
        )
    except DomainError:
        return None
    return state_map.correction(matrix, point.u, images.mean(axis=0) - point.u, point.sizes), averages


def _climb(
    problem: Problem,
    name: str,
    approach: FixedPoint,
    symmetry: Symmetry,
    accuracy: float,
    seed: int,
    effort: int,
) -> Solution:
    """Climb Sobol sets, each started from the last, until the spread of the replicates meets the accuracy.

    A soft branch with jumps may be out of reach of Newton on few points: their floor is high, and differences over them
    say little about the slope. It is then tried once on a larger set with a Jacobian from a larger one.
    """
    point = approach
    position = 0
    patient = False
    while True:
        rule = replace(_SAMPLES[position], seed=seed)
        point = _newton(problem, rule, point, symmetry, accuracy, _PATIENT if patient else _HASTY)
        if not point.status.success:
            if patient or point.status is not Status.MAX_ITERATIONS:
                return _failed(problem, name, point, rule)
            patient, position, point = True, max(position, _PATIENT_LEVEL), replace(point, jacobian=None)
            continue
        found = _replicate_shifts(problem, point, rule, symmetry)
        if found is None:
            return _failed(problem, name, replace(point, status=Status.LEFT_DOMAIN), rule)
        error = float(np.max(two_standard_errors(found[0]) / point.overlaps.block_scales))
        budget.offer(partial(finish_point, problem, name, point, rule, accuracy, symmetry))
        left(f"half width so far {error:.0e}, asked {accuracy:.0e}")
        if error <= accuracy or position + 1 >= min(len(_SAMPLES), effort):
            return finish_point(problem, name, point, rule, accuracy, symmetry)
        gain = 0.85  # error in powers of two per level
        position = min(len(_SAMPLES), effort, position + 1 + max(1, round(float(np.log2(error / accuracy)) / gain))) - 1


def _replicate_shifts(
    problem: Problem, point: FixedPoint, rule: Rule, symmetry: Symmetry
) -> tuple[np.ndarray, Averages] | None:
    """Solution of every replicate to first order less u, (R, n): (I - J)^{-1} (G_r(u) - u)."""
    state_map = StateMap(problem, rule, symmetry)
    try:
        images, averages = state_map.replicates(point.u, point.sizes)
        matrix = (
            point.jacobian
            if point.jacobian is not None
            else jacobian_by_rule(problem, rule, point.u, point.sizes, _HASTY, symmetry)
        )
    except DomainError:
        return None
    return state_map.correction(matrix, point.u, images - point.u, point.sizes), averages


def finish_point(
    problem: Problem,
    name: str,
    point: FixedPoint,
    rule: Rule,
    accuracy: float,
    symmetry: Symmetry,
    finer: tuple[np.ndarray, Averages] | None = None,
) -> Solution:
    """Observables and errors at a converged point; the residual is recomputed here.

    Args:
        finer: shift and averages of the next finer rule at this point, where they are known already.
    """
    if not point.status.success:
        return _failed(problem, name, point, rule)
    budget.check(pace.expected(problem, rule))
    # One step for the clock: half of it would have to be done again.
    with step(f"half widths, losses and test error on {pace.words(problem, rule)}"), budget.overtime():
        return _finished(problem, name, point, rule, accuracy, symmetry, finer)


def _finished(
    problem: Problem,
    name: str,
    point: FixedPoint,
    rule: Rule,
    accuracy: float,
    symmetry: Symmetry,
    finer: tuple[np.ndarray, Averages] | None,
) -> Solution:
    """`finish_point` of a point that has converged."""
    state_map = StateMap(problem, rule, symmetry)
    if not point.overlaps.free_sign_is_positive and gauge.sign_is_free(problem):
        point, finer = replace(point, u=point.overlaps.flipped().pack(), jacobian=None), None
    sizes, overlaps = point.sizes, point.overlaps
    try:
        if is_replicated(rule):
            found = _replicate_shifts(problem, point, rule, symmetry)
            if found is None:
                raise DomainError("a replicate's map leaves the domain")
            shifts, averages = found
            errors = two_standard_errors(shifts)
            if float(np.max(errors / overlaps.block_scales)) > _FIRST_ORDER:
                farther = _curvature(state_map, point, shifts)
                errors, shifts = farther * errors, shifts.mean(axis=0) + farther * (shifts - shifts.mean(axis=0))
            loss_error = problem.alpha * float(two_standard_errors(averages.moreau))
            test, test_own, nodes = observables.test_error(problem, overlaps)
            tests = [_test_or_nan(problem, point.u + shift, sizes, nodes) for shift in shifts]
            test_error_error = float(two_standard_errors(np.array(tests))) + test_own
        else:
            averages = state_map.averages(overlaps)
            differences = _differences(problem, point, rule, symmetry, averages, finer)
            test, test_own, nodes = observables.test_error(problem, overlaps)
            errors, loss_error, second_order, test_error_error = np.zeros(len(point.u)), 0.0, 0.0, test_own
            # Weights that do not add up to one: nothing is known better than that.
            errors += abs(averages.mass - 1) * overlaps.block_scales
            reached = free_entropy_at(state_map, overlaps, averages)
            shifts = np.stack([factor * shift for shift, _, factor, _ in differences])
            for shift, other, factor, loss_factor in differences:
                errors = np.maximum(errors, factor * np.abs(shift))
                moreau = abs(float(other.moreau.mean() - averages.moreau.mean()))
                loss_error = max(loss_error, loss_factor * problem.alpha * moreau)
                there = Overlaps.unpack(point.u + factor * shift, sizes)
                second_order = max(second_order, _change(state_map, there, reached))
                moved = abs(_test_or_nan(problem, point.u + shift, sizes, nodes) - test)
                test_error_error = max(test_error_error, factor * moved + test_own)
        left = np.zeros(len(point.u))  # no part of the accuracy, which is that of the integrals
        for parameter in problem.vanishing:
            shift, other = _halved(problem, point, rule, symmetry, parameter)
            left += _VANISHING * np.abs(shift)
            loss_error += _VANISHING * problem.alpha * abs(float((other.moreau - averages.moreau).mean()))
            test_error_error += _VANISHING * abs(_test_or_nan(problem, point.u + shift, sizes, nodes) - test)
        hats = state_map.conjugates(overlaps, averages.moments.mean(axis=0))
        image = state_map.kept(point.u, state_map.image(overlaps, averages.moments.mean(axis=0)), sizes)
    except DomainError:
        return _failed(problem, name, replace(point, status=Status.LEFT_DOMAIN), rule)
    residual = residual_of(image, point.u, sizes)
    scales = overlaps.block_scales
    relative = float(np.max(errors / scales))
    errors = errors + residual * scales + left
    loss = observables.losses(problem, overlaps, hats, averages)
    if is_replicated(rule):
        second_order = _second_order(state_map, point, shifts, loss.free_entropy, relative)
    loss_error += second_order
    status = point.status
    if status is Status.FLOOR and residual > max(0.1 * relative, 1e-9):
        status = Status.MAX_ITERATIONS if residual > relative else Status.ACCURACY_NOT_REACHED
    if status.success and relative > accuracy:
        status = Status.ACCURACY_NOT_REACHED
    if averages.unconverged > 1e-3 * accuracy:
        say(f"warning: the proximal map did not converge at a share {averages.unconverged:.2g} of the measure")
    return Solution(
        problem=problem,
        start=name,
        overlaps=overlaps,
        conjugates=hats,
        status=status,
        residual=residual,
        iterations=point.iterations,
        rule=rule,
        errors=errors,
        losses=loss,
        training_loss_error=loss_error,
        test_error=test,
        test_error_error=test_error_error,
        second_order=second_order,
        jacobian=point.jacobian,
        drift=point.drift,
        averages=averages,
        symmetry=symmetry,
        shifts=shifts,
        residual_shift=_correction(state_map, point, image - point.u),
    )


def _alike(u: np.ndarray, overlaps: Overlaps) -> np.ndarray:
    """A packed state with the free sign of the weights that another one has."""
    own = Overlaps.unpack(u, overlaps.sizes)
    return u if own.free_sign_is_positive == overlaps.free_sign_is_positive else own.flipped().pack()


def _halved(
    problem: Problem, point: FixedPoint, rule: Rule, symmetry: Symmetry, name: str
) -> tuple[np.ndarray, Averages]:
    """How far half of a parameter that is meant to vanish would move the solution, and the averages with it.

    Raises:
        DomainError: its map leaves the domain.
    """
    half = replace(problem.with_(**{name: np.asarray(problem.parameters[name]) / 2}), search=problem.search)
    found = _shift(half, point, rule, symmetry)
    if found is None:
        raise DomainError(f"half of {name} leaves the domain")
    return found


def _curvature(state_map: StateMap, point: FixedPoint, shifts: np.ndarray) -> float:
    """How much farther than to first order replicates spread, at least 1, along the direction in which they do most.

    The averages are off by what moves the solution by two standard errors, either way, and the equations are solved
    with that. It also mends what a rough Jacobian makes of a soft direction. Beyond the domain nothing is known: 3.
    """
    if point.jacobian is None:
        return 1.0
    scales = point.overlaps.block_scales
    width = _widest(shifts, scales)
    gap = width - point.jacobian @ width
    farthest = 1.0
    for way in (1.0, -1.0):
        u = point.u + way * width
        try:
            for _ in range(_CURVED_STEPS):
                u = u + state_map.correction(point.jacobian, u, state_map(u, point.sizes) - u + way * gap, point.sizes)
        except (DomainError, np.linalg.LinAlgError):
            return _UNKNOWN_CURVATURE
        farthest = max(farthest, float(np.linalg.norm((u - point.u) / scales) / np.linalg.norm(width / scales)))
    return min(farthest, _UNKNOWN_CURVATURE)


def _widest(shifts: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Two standard errors of the mean of replicates (R, n) along the direction in which they spread most."""
    scaled = (shifts - shifts.mean(axis=0)) / scales
    _, sizes, directions = np.linalg.svd(scaled, full_matrices=False)
    return 2 * sizes[0] / np.sqrt(len(shifts) * (len(shifts) - 1)) * directions[0] * scales


def _correction(state_map: StateMap, point: FixedPoint, gap: np.ndarray) -> np.ndarray:
    """(I - J)^{-1} gap, where J is known; the gap itself else."""
    if point.jacobian is None:
        return gap
    try:
        return state_map.correction(point.jacobian, point.u, gap, point.sizes)
    except np.linalg.LinAlgError:
        return gap


def _second_order(state_map: StateMap, point: FixedPoint, shifts: np.ndarray, reached: float, relative: float) -> float:
    """What the spread of the replicates costs in Phi, from the direction (R, n) in which they spread most.

    A soft branch spreads far along few directions in which Phi is flat. Beyond the domain, the square of the relative
    error stands in.
    """
    width = _widest(shifts, point.overlaps.block_scales)
    try:
        ends = [Overlaps.unpack(point.u + way * width, point.sizes) for way in (1, -1)]
        return DIFFERENCE_SAFETY * max(abs(free_entropy_at(state_map, end) - reached) for end in ends)
    except DomainError:
        return relative**2 * abs(reached)


def _change(state_map: StateMap, there: Overlaps, reached: float) -> float:
    """|Phi(there) - Phi reached|; beyond the domain the loss itself bounds what is not known."""
    try:
        return abs(free_entropy_at(state_map, there) - reached)
    except DomainError:
        return abs(reached)


def free_entropy_at(state_map: StateMap, overlaps: Overlaps, averages: Averages | None = None) -> float:
    """Phi at overlaps that need not solve the saddle point, with the conjugates that belong to them."""
    averages = averages or state_map.averages(overlaps)
    hats = state_map.conjugates(overlaps, averages.moments.mean(axis=0))
    return observables.losses(state_map.problem, overlaps, hats, averages).free_entropy


def _differences(
    problem: Problem,
    point: FixedPoint,
    rule: Rule,
    symmetry: Symmetry,
    averages: Averages,
    finer: tuple[np.ndarray, Averages] | None,
) -> list[tuple[np.ndarray, Averages, float, float]]:
    """(shift, averages, factors): what other rules of the family say, and what their difference counts for in the
    overlaps and in the training loss, each with its own rate of convergence.

    Raises:
        DomainError: their map leaves the domain.
    """
    fine = finer or _shift(problem, point, rule.finer(), symmetry)
    if fine is None:
        raise DomainError("the finer rule's map leaves the domain")
    scales = point.overlaps.block_scales
    coarser = [_shift(problem, point, other, symmetry) for other in coarser_rules(rule)]
    known = [fine, *(other for other in coarser if other is not None)]
    bistable = max(abs(other.bistable) for other in (averages, *(other for _, other in known)))
    if isinstance(rule, GaussHermite | SparseGrid):
        if bistable > NEGLIGIBLE_JUMPS:
            # Nodes that know nothing of the jumps fall on either side of them by chance: nothing decays from rule to
            # rule, and each difference is as good as another.
            return [(*other, DIFFERENCE_SAFETY, DIFFERENCE_SAFETY) for other in known]
        known[0], steps = _beyond_growth(problem, point, rule.finer(), symmetry, known, averages)
    else:
        steps = [(shift / scales, other.moreau - averages.moreau) for shift, other in known]
    factors, losses = (difference_factors(*one) for one in zip(*steps, strict=True))
    if isinstance(rule, SparseGrid):
        # Shells of a sparse grid add up with changing signs: a level may agree by chance with the next.
        factors, losses = ((one[0], max(one[1], DIFFERENCE_SAFETY)) for one in (factors, losses))
    if isinstance(rule, ProxSpace) and averages.bistable > 0:
        # What jumps can cost is at most of the order of the share that sees them; grids may agree by chance there.
        relative = float(np.max(np.abs(known[-1][0]) / scales))
        share = min(COARSER_SHARE, averages.bistable / max(relative, 1e-300))
        jumps = DIFFERENCE_SAFETY, share
        if averages.bistable > NEGLIGIBLE_JUMPS:
            factors = losses = jumps
        else:
            factors, losses = ((one[0], max(one[1], share)) for one in (factors, losses))
    elif isinstance(rule, ProxSpace):
        share = mass_share(averages, *(other for _, other in known))
        factors, losses = ((max(one[0], share), max(one[1], share)) for one in (factors, losses))
    return [(*other, one, two) for other, one, two in zip(known, factors, losses, strict=False)]


def mass_share(own: Averages, *others: Averages) -> float:
    """What differences between grids in X count for at the least, by the one integral that is known: the total weight.

    Kinks of the loss leave steps in the weight |det(I + V H)|, so that it converges as slowly, and as irregularly, as
    the averages do: what it is off by, relative to how much it differs between the rules, cannot agree by chance.
    """
    missing = max(abs(own.mass - 1) - _MASS_ROUNDING, 0.0)
    return DIFFERENCE_SAFETY * missing / max(*(abs(other.mass - own.mass) for other in others), _MASS_ROUNDING)


def _beyond_growth(
    problem: Problem,
    point: FixedPoint,
    rule: Rule,
    symmetry: Symmetry,
    known: Sequence[tuple[np.ndarray, Averages]],
    averages: Averages,
) -> tuple[tuple[np.ndarray, Averages], list[tuple[np.ndarray, np.ndarray]]]:
    """The difference to a finer rule, and the steps (overlaps in block scales, Moreau average) that tell the rate.

    Rules that are all too coarse to see a kink agree, and differ the more the finer they are: finer ones are asked for
    as long as the steps from one to the next grow.

    Args:
        rule: the finer one; known: (shift, averages) of it and of the coarser ones.
    """
    scales = point.overlaps.block_scales
    steps = [(shift / scales, other.moreau - averages.moreau) for shift, other in known]
    fine = known[0]
    for _ in range(_BEYOND):
        last, before = (float(np.max(np.abs(step[0]))) for step in steps[:2]) if len(steps) > 1 else (0.0, 0.0)
        if last <= max(before, _STEP_ROUNDING):
            break
        rule = rule.finer()
        try:
            further = _shift(problem, point, rule, symmetry)
        except InputError:  # too large
            break
        if further is None:
            break
        steps = [((further[0] - fine[0]) / scales, further[1].moreau - fine[1].moreau), steps[0]]
        fine = further
    return fine, steps


def coarser_rules(rule: Rule) -> tuple[Rule, ...]:
    """What a rule is compared with beside the next finer one; twice where its nodes know nothing of the integrand."""
    return (rule.coarser(),) if isinstance(rule, ProxSpace) else (rule.coarser(), rule.coarser().coarser())


def refine_losses(solution: Solution, tolerance: float) -> Solution:
    """The same overlaps with the training loss integrated until its error is below `tolerance` (absolute, per d).

    Phi is stationary, so that the error of the overlaps enters to second order only (docs/theory.md section 15). Where
    that alone is above the tolerance, nothing is done: the overlaps are to be solved to more digits first.
    """
    if solution.losses is None or solution.training_loss_error <= tolerance or solution.second_order > tolerance:
        return solution
    for finer in _by_finer_rules(solution):
        solution = finer
        if solution.training_loss_error <= tolerance:
            break
    return solution


def finer_rules(rule: Rule, fields: int) -> list[Rule]:
    """The rules of the same family beyond this one, as far as solving goes."""
    if isinstance(rule, Sobol):
        return [replace(level, seed=rule.seed) for level in _SAMPLES if level.log2 > rule.log2]
    if isinstance(rule, ProxSpace):
        return [level for level in (_PLANE if fields > 1 else _LINE) if level.points > rule.points]
    if isinstance(rule, GaussHermite):
        return [level for level in _PRODUCT if level.points > rule.points]
    return [rule.finer(), rule.finer().finer()]


def _by_finer_rules(solution: Solution) -> Iterator[Solution]:
    """The training loss by ever finer rules of the same family, each compared with the one before."""
    problem, averages = solution.problem, solution.averages
    rule = solution.loss_rule or solution.rule
    if isinstance(rule, Sobol):
        for level in _SAMPLES:
            if level.log2 > rule.log2:
                yield with_losses(solution, replace(level, seed=rule.seed))
        return
    if averages is None:
        return
    jumps = averages.bistable > NEGLIGIBLE_JUMPS
    if isinstance(rule, ProxSpace) and averages.bistable > 0:
        rule = replace(rule, blur=max(rule.blur, LOSS_BLUR))
        averages = rule.averages(problem, solution.overlaps)
    coarser = [rule.coarser()] if jumps else [rule.coarser(), rule.coarser().coarser()]
    known = [averages, *(other.averages(problem, solution.overlaps) for other in coarser)]
    while _nodes(problem, rule.finer()) <= _MOST_LOSS_NODES:
        rule = rule.finer()
        finer = with_losses(solution, rule)
        assert finer.averages is not None
        known = [finer.averages, *known[:3]]
        yield replace(finer, training_loss_error=problem.alpha * _loss_error(rule, known) + solution.second_order)


def _loss_error(rule: Rule, known: Sequence[Averages]) -> float:
    """Half width of E[M] by a rule, from how it changed with the last ones: averages of the finest, its own, first."""
    steps = [abs(float(one.moreau[0] - other.moreau[0])) for one, other in pairwise(known)]
    bistable = known[1].bistable
    if isinstance(rule, GaussHermite | SparseGrid) and bistable > NEGLIGIBLE_JUMPS:
        return DIFFERENCE_SAFETY * max(steps)
    # The finer rule is the one used: the difference counts as that to a coarser one does.
    rated = difference_factors(*(np.array(step) for step in steps))[1] * steps[0]
    if not isinstance(rule, ProxSpace):
        return rated
    # Of the order of the share that sees the jumps at the most, as for the overlaps.
    chance = min(COARSER_SHARE * steps[1], bistable * abs(float(known[1].moreau[0])))
    if bistable > NEGLIGIBLE_JUMPS:
        return max(steps[0], chance)
    return max(rated, chance, 0.0 if bistable > 0 else mass_share(*known) * steps[0])


def with_losses(solution: Solution, rule: Rule) -> Solution:
    """The training loss by another rule at the same overlaps; its error is the spread of the replicates, if any.

    Raises:
        InputError: the rule is too large, or not made for such a problem.
    """
    problem, overlaps = solution.problem, solution.overlaps
    with step(f"losses on {pace.words(problem, rule)}"):
        averages = StateMap(problem, rule).averages(overlaps)
    hats = StateMap(problem, rule).conjugates(overlaps, averages.moments.mean(axis=0))
    sampled = problem.alpha * float(two_standard_errors(averages.moreau)) if is_replicated(rule) else 0.0
    return replace(
        solution,
        losses=observables.losses(problem, overlaps, hats, averages),
        training_loss_error=sampled + solution.second_order,
        conjugates=hats,
        averages=averages,
        loss_rule=rule,
    )


def _nodes(problem: Problem, rule: Rule) -> float:
    """How many nodes a deterministic rule visits, about."""
    if isinstance(rule, ProxSpace):
        known = problem.tokens * problem.teacher_rank + len(problem.noise_scale)
        return float(rule.points**problem.solver.channel.FIELDS * rule.teacher ** min(known, 2))
    if isinstance(rule, GaussHermite):
        return 1e2 * float(rule.points) ** problem.dimension  # each with a proximal point
    if isinstance(rule, Lines):
        return 4e4 * _lines(problem, rule)  # hundreds of proximal points a line
    return 1e9


def by_rule(solution: Solution, rule: Rule) -> Solution | None:
    """What another rule makes of a solution; None where its averages leave the domain.

    The overlaps move by one Newton step, (I - J)^{-1} (G(u) - u), and everything else is averaged there. `shifts` holds
    the spread of the replicates, if any; no other half width is known.

    Raises:
        InputError: the rule is too large, or not made for such a problem.
    """
    problem, u, sizes = solution.problem, solution.overlaps.pack(), solution.overlaps.sizes
    symmetry = solution.symmetry or NO_SYMMETRY
    point = FixedPoint(u, sizes, solution.residual, Status.CONVERGED, 0, solution.jacobian, solution.drift)
    found = _replicate_shifts(problem, point, rule, symmetry)
    if found is None:
        return None
    shift = found[0].mean(axis=0)
    spread = found[0] - shift if is_replicated(rule) else np.zeros((0, len(u)))
    moved = replace(
        solution,
        overlaps=Overlaps.unpack(u + shift, sizes),
        rule=rule,
        errors=two_standard_errors(spread) if len(spread) else np.zeros(len(u)),
        shifts=spread,
        residual_shift=np.zeros(len(u)),
        second_order=0.0,
    )
    try:
        return with_losses(moved, rule)
    except DomainError:
        return None


def _test_or_nan(problem: Problem, u: np.ndarray, sizes: Sizes, nodes: int) -> float:
    """Test error at other overlaps, by the rule of this size; nan without a metric or outside the domain."""
    if not nodes:
        return np.nan
    try:
        return observables.average_metric(problem, Overlaps.unpack(u, sizes), nodes)
    except DomainError:
        return np.nan


def _failed(problem: Problem, name: str, point: FixedPoint, rule: Rule) -> Solution:
    status = point.status if not point.status.success else Status.MAX_ITERATIONS
    return Solution(
        problem=problem,
        start=name,
        overlaps=point.overlaps,
        conjugates=None,
        status=status,
        residual=point.residual,
        iterations=point.iterations,
        rule=rule,
        errors=np.full(len(point.u), np.nan),
        losses=None,
        training_loss_error=np.nan,
        test_error=np.nan,
        test_error_error=np.nan,
    )


def solutions(
    problem: Problem,
    *,
    starts: Iterable[str] | None = None,
    deflate: int = 0,
    on_failure: Callable[[Solution], None] | None = None,
    **options: Any,
) -> list[Solution]:
    """All solutions found from the named starts (default: all of the model), ranked by training loss, [0] the best.

    Args:
        deflate: attempts to find others, with the known ones divided out (`deflation`): saddles, too.
        on_failure: called with the last iterate of every start that fails.
        options: as for `solve`.

    Solutions that agree within their errors are reported once, from a start that holds their overlaps where one of
    them does. Starts that fail are named on stderr and left out.
    """
    found: list[Solution] = []
    names = list(starts or problem.solver.model.STARTS)
    with bar("solving", len(names)) as task:
        for name in names:
            task.describe(f"solving from the start {name}")
            solution = reach(problem, name, **options)
            task.advance()
            if solution.losses is None:
                say(f"start {name}: {solution.status.words}; {solution.status.advice}")
                if on_failure:
                    on_failure(solution)
                continue
            twin = next((i for i, other in enumerate(found) if same(solution, other)), None)
            if twin is None:
                found.append(solution)
            elif _is_own(solution) and not _is_own(found[twin]):
                found[twin] = solution
    if deflate and found:
        from .deflation import deflated

        known = {name: options[name] for name in ("accuracy", "seed") if name in options}
        found += deflated(problem, found, deflate, **known)
    found.sort(key=lambda s: s.training_loss)
    return [replace(s, rank=i) for i, s in enumerate(found, start=1)]


def _is_own(solution: Solution) -> bool:
    """Whether the start of a solution, by name, holds the overlaps that the solution does."""
    problem = solution.problem
    return branch_of(start_overlaps(problem, solution.start)) == solution.branch


def same(one: Solution, other: Solution) -> bool:
    """Whether two solutions of a problem agree within their errors."""
    scales = one.overlaps.block_scales
    tolerance = 3 * (one.errors + other.errors) + 1e-6 * scales
    return bool(np.all(np.abs(one.overlaps.pack() - other.overlaps.pack()) <= tolerance))


__all__ = [
    "Solution",
    "branch_of",
    "by_rule",
    "has_lost",
    "reach",
    "refine_losses",
    "same",
    "solutions",
    "solve",
    "start_overlaps",
    "with_losses",
]
