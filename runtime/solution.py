"""Solving a problem: starts, rule selection, errors of everything reported, and all branches ranked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from . import observables
from .errors import InputError
from .fixed_point import FixedPoint, StateMap, Status, damped, jacobian, newton, residual_of
from .integration import Averages, GaussHermite, ProxSpace, Rule, Sobol, rule_named
from .integration.fields import DomainError
from .overlaps import Conjugates, Overlaps
from .problem import Problem
from .progress import bar, say
from .stability import Stability, assess

COARSE = Sobol(log2=8, scramblings=4)
BRANCH_NAMES = ("semantic", "positional", "mixed", "uninformed")
# Half widths from two rules are their difference times this: the finer rule has an error of its own.
DIFFERENCE_SAFETY = 1.5
# One prox-space grid is off by at most this times the bistable weight (measured: 0.03, the signed sum alone: 10).
PROX_SPACE_BIAS = 1.0
_PLANE = (ProxSpace(48, 20), ProxSpace(64, 26), ProxSpace(90, 36), ProxSpace(126, 50), ProxSpace(176, 70))
_LINE = (ProxSpace(80, 32), ProxSpace(128, 48), ProxSpace(192, 72), ProxSpace(288, 108), ProxSpace(432, 162))
_SHIFTED_PLANE = (
    ProxSpace(40, 18, shifts=4),
    ProxSpace(48, 22, shifts=8),
    ProxSpace(56, 26, shifts=16),
    ProxSpace(64, 32, shifts=32),
)
_SHIFTED_LINE = (ProxSpace(64, 24, shifts=16), ProxSpace(128, 32, shifts=16), ProxSpace(256, 48, shifts=16))
_PRODUCT = tuple(GaussHermite(points) for points in (12, 18, 28, 42, 64))
_SAMPLES = tuple(Sobol(log2) for log2 in range(10, 17))


@dataclass(frozen=True)
class Solution:
    """A solution of the saddle point with error bars; or, where `status` says so, the last iterate.

    Attributes:
        errors: half widths of the packed overlaps, two standard errors or the difference of two rules.
        training_loss_error, test_error_error: half widths.
        error_kind: "estimated" or "verified" (two different rules agree within it).
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
    error_kind: str = "estimated"
    rank: int | None = None
    jacobian: np.ndarray | None = field(default=None, repr=False)
    averages: Averages | None = field(default=None, repr=False)
    frozen: np.ndarray | None = field(default=None, repr=False)

    @property
    def training_loss(self) -> float:
        """-Phi, per d."""
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
    def branch(self) -> str:
        """What was reached: semantic, positional, mixed or uninformed."""
        return branch_of(self.overlaps, self.errors)

    @cached_property
    def stability(self) -> Stability | None:
        """Longitudinal spectrum, replicon, jumps; None without a solution. Computed when first asked for."""
        if self.averages is None:
            return None
        rule = _capped(self.rule, self.averages.bistable)
        matrix = _jacobian(self.problem, self.rule, self.overlaps.pack(), self.overlaps.sizes, scramblings=16)
        return assess(self.problem, self.overlaps, rule, matrix, self.averages.bistable)

    def table(self) -> str:
        """The solution for a terminal."""
        from .text import solution_table

        return solution_table(self)

    def __repr__(self) -> str:
        return self.table()

    def to_json(self) -> dict[str, Any]:
        """The object of the command line's contract (design.md)."""
        from .contract import solution_json

        return solution_json(self)


def branch_of(overlaps: Overlaps, errors: np.ndarray | None = None) -> str:
    """Name a state by which of theta (semantic) and m (positional) stand out.

    Non-zero means above 1e-3 of the scale of the fields, and above the error where that is known.
    """
    q = np.sqrt(np.abs(np.diagonal(overlaps.q, axis1=1, axis2=2)).max())
    widths = Overlaps.unpack(errors, overlaps.sizes) if errors is not None and np.isfinite(errors).all() else None
    theta_floor = max(1e-3 * q**2, float(np.max(widths.theta)) if widths else 0.0)
    m_floor = max(1e-3 * q, float(np.max(widths.m)) if widths else 0.0)
    semantic = np.abs(overlaps.theta).max() > theta_floor
    positional = np.abs(overlaps.m).max() > m_floor
    return {(True, False): "semantic", (False, True): "positional", (True, True): "mixed"}.get(
        (bool(semantic), bool(positional)), "uninformed"
    )


def start_overlaps(problem: Problem, name: str) -> Overlaps:
    """The overlaps of a named start: those of weights mixed from teacher rows, encodings and noise.

    Raises:
        InputError: the model has no start of this name.
    """
    starts = problem.solver.model.STARTS
    if name not in starts:
        raise InputError(f"no start {name!r} for {problem.solver.name}; known are {', '.join(starts)}")
    spec, law = starts[name], problem.law
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
    mix[:, :contexts] = np.repeat(encodings, problem.clusters, axis=1) / problem.clusters
    noise = float(spec["noise"])
    q = np.zeros((contexts, s, s))
    m = np.zeros((contexts, s))
    theta = np.zeros((contexts, s, t))
    for weight, gamma, gram in zip(law.weights, law.gamma, law.gram, strict=True):
        with_fields = mix @ gram
        square = with_fields @ mix.T + noise**2 * np.eye(s)
        q += weight * gamma[:, None, None] * square
        m += weight * with_fields[:, :contexts].T
        theta += weight * gamma[:, None, None] * with_fields[:, contexts:]
    V = float(spec["susceptibility"]) * law.rho[:, None, None] * np.eye(s)
    return Overlaps(q, V, m, theta)


def is_replicated(rule: Rule) -> bool:
    """Whether a rule comes in replicates whose spread is its error: sampled rules and shifted grids."""
    return isinstance(rule, Sobol) or (isinstance(rule, ProxSpace) and rule.shifts > 1)


def _capped(rule: Rule, bistable: float) -> Rule:
    """The rule with its size limited, for quantities that need few digits (replicon, jump weight)."""
    if isinstance(rule, Sobol):
        return replace(rule, log2=min(rule.log2, 12))
    if isinstance(rule, ProxSpace) and rule.shifts > 1:
        # Near a fold the field's slope has a heavy tail that a grid in X resolves badly; where jumps are rare it wins.
        return ProxSpace(48, 22, shifts=8, seed=rule.seed) if bistable < 2e-3 else Sobol(12, seed=rule.seed)
    return rule


def _jacobian(
    problem: Problem, rule: Rule, u: np.ndarray, sizes: tuple[int, int, int], scramblings: int = 4
) -> np.ndarray:
    """dG/du by differences: narrow steps for smooth rules; for rules whose map jumps where a node's minimum swaps,
    wide steps over a sampled set of `scramblings` parts, so that many nodes swap within a step."""
    if is_replicated(rule):
        return jacobian(StateMap(problem, Sobol(10, scramblings, getattr(rule, "seed", 0))), u, sizes, 1e-2)
    return jacobian(StateMap(problem, rule), u, sizes, 1e-4)


def solve(
    problem: Problem,
    start: str | Overlaps | Solution = "semantic",
    *,
    accuracy: float = 1e-4,
    integrator: str = "auto",
    points: int | None = None,
    seed: int = 0,
    effort: int = 100,
) -> Solution:
    """Solve the saddle point from a start.

    Args:
        start: a named start of the model, overlaps, or an earlier solution (then without the damped approach).
        accuracy: half width asked of every overlap, relative to the size of its block.
        integrator: auto, gauss-hermite, sobol or prox-space; points as for `rule_named`.
        seed: of the scramblings.
        effort: how many sizes of a rule to climb at the most before reporting the accuracy as not reached.

    Returns:
        A Solution; look at `status`. Not converging is a status, not an exception.

    Raises:
        InputError: an unknown start or integrator, or an accuracy that is not positive.
    """
    if not 0 < accuracy < 1:
        raise InputError(f"accuracy = {accuracy!r} is out of range; allowed is (0, 1)")
    name = start if isinstance(start, str) else (start.start if isinstance(start, Solution) else "given")
    _announce_compilation(problem)
    rule = None if integrator == "auto" else rule_named(integrator, points, seed)
    approach = _approach(problem, start, seed)
    if not approach.status.success and not approach.residual < 0.05:
        return _failed(problem, name, approach, COARSE)
    frozen = _symmetric_zeros(approach)
    if rule is None:
        return _solve_auto(problem, name, approach, frozen, accuracy, seed, effort)
    if isinstance(rule, Sobol) and points is None:
        return _climb(problem, name, approach, frozen, accuracy, seed, _SAMPLES, effort)
    point = _newton(problem, rule, approach, frozen, accuracy)
    return _finish(problem, name, point, rule, accuracy, frozen)


_announced: set[str] = set()


def _announce_compilation(problem: Problem) -> None:
    """Say so before Numba compiles a solver for the first time on this machine."""
    key = str(problem.solver.folder)
    if key not in _announced:
        _announced.add(key)
        if not problem.solver.compiled_before():
            say(f"compiling the solver of {problem.solver.name} (once on this machine, up to half a minute)")


def _approach(problem: Problem, start: str | Overlaps | Solution, seed: int) -> FixedPoint:
    """From the start to the neighbourhood of a solution, by damped iteration with a coarse global rule."""
    if isinstance(start, Solution):
        overlaps = start.overlaps
        if overlaps.sizes != (problem.contexts, problem.student_rank, problem.teacher_rank):
            raise InputError("the solution to start from belongs to another structure")
    else:
        overlaps = start_overlaps(problem, start) if isinstance(start, str) else start
    point = damped(StateMap(problem, replace(COARSE, seed=seed)), overlaps, 2e-3)
    if point.status.success or point.residual < 0.05:
        # A soft branch needs the finer set before Newton may take over.
        point = damped(StateMap(problem, Sobol(10, 4, seed=seed)), point.overlaps, 3e-4, max_iterations=200)
    return point


def _symmetric_zeros(point: FixedPoint) -> np.ndarray:
    """Components of m and theta that are zero to rounding under the sign-symmetric coarse rule."""
    scales = point.overlaps.block_scales
    frozen = np.abs(point.u) < 1e-11 * scales
    contexts, s, _ = point.sizes
    frozen[: contexts * s * (s + 1)] = False
    return frozen


def _newton(problem: Problem, rule: Rule, point: FixedPoint, frozen: np.ndarray, accuracy: float) -> FixedPoint:
    u = point.u.copy()
    u[frozen] = 0.0
    return newton(
        StateMap(problem, rule, frozen),
        replace(point, u=u),
        _tolerance(rule, accuracy),
        lambda u: _jacobian(problem, rule, u, point.sizes),
        max_iterations=8 if is_replicated(rule) else 12,
    )


def _tolerance(rule: Rule, accuracy: float) -> float:
    """Residual asked of Newton: 1e-9 or less for smooth rules, a fiftieth of the accuracy for replicated ones."""
    return max(1e-9, 0.02 * accuracy) if is_replicated(rule) else max(2e-14, min(1e-9, 1e-2 * accuracy))


def _solve_auto(
    problem: Problem, name: str, approach: FixedPoint, frozen: np.ndarray, accuracy: float, seed: int, effort: int
) -> Solution:
    """Prox-space for few fields (shifted grids where the proximal map jumps), else Sobol with the global map."""
    channel = problem.solver.channel
    if not channel.HAS_PROX_SPACE or channel.FIELDS > 2:
        return _climb(problem, name, approach, frozen, accuracy, seed, _SAMPLES, effort)
    smooth, shifted = (_LINE, _SHIFTED_LINE) if channel.FIELDS == 1 else (_PLANE, _SHIFTED_PLANE)
    solution, share = _solve_smooth(problem, name, approach, frozen, accuracy, smooth)
    if solution is not None and solution.success:
        return solution
    if share == 0.0 and channel.FIELDS == 1:
        # No jumps, yet a grid in X is too wide for the law of the fields: nodes in omega adapt to it.
        adapted, _ = _solve_smooth(problem, name, approach, frozen, accuracy, _PRODUCT)
        if adapted is not None and (adapted.success or solution is None):
            return adapted
    if solution is not None:
        return solution
    return _climb(problem, name, approach, frozen, accuracy, seed, shifted, effort)


def _solve_smooth(
    problem: Problem,
    name: str,
    approach: FixedPoint,
    frozen: np.ndarray,
    accuracy: float,
    levels: tuple[ProxSpace, ...],
) -> Solution | None:
    """Climb the levels until the next finer rule agrees.

    Returns the solution, or None where jumps forbid one grid at this accuracy or Newton fails; and the bistable share.
    """
    point = replace(approach, jacobian=None)
    share = np.nan
    for level in levels:
        try:
            share = level.averages(problem, point.overlaps).bistable
        except DomainError:
            return None, share
        if PROX_SPACE_BIAS * share > accuracy / 2:
            return None, share
        point = _newton(problem, level, point, frozen, accuracy)
        if not point.status.success:
            return None, share
        error = _finer_error(problem, point, level, frozen)
        if error is not None and error < accuracy / 2:
            break
    return _finish(problem, name, point, level, accuracy, frozen), share


def _finer_error(problem: Problem, point: FixedPoint, rule: Rule, frozen: np.ndarray | None) -> float | None:
    shift = _finer_shift(problem, point, rule, frozen)
    return None if shift is None else float(np.max(np.abs(shift) / point.overlaps.block_scales))


def _finer_shift(problem: Problem, point: FixedPoint, rule: Rule, frozen: np.ndarray | None) -> np.ndarray | None:
    """How far the next finer rule would move the solution: (I - J)^{-1} (G_finer(u) - u)."""
    try:
        image = StateMap(problem, rule.finer(), frozen)(point.u, point.sizes)
        matrix = point.jacobian if point.jacobian is not None else _jacobian(problem, rule, point.u, point.sizes)
    except DomainError:
        return None
    return np.linalg.solve(np.eye(len(point.u)) - matrix, image - point.u)


def _climb(
    problem: Problem,
    name: str,
    approach: FixedPoint,
    frozen: np.ndarray,
    accuracy: float,
    seed: int,
    levels: tuple[Rule, ...],
    effort: int,
) -> Solution:
    """Climb replicated rules, each started from the last, until the spread of the replicates meets the accuracy."""
    point = approach
    position = 0
    while True:
        rule = replace(levels[position], seed=seed)  # type: ignore[type-var]
        point = _newton(problem, rule, point, frozen, accuracy)
        if not point.status.success:
            return _failed(problem, name, point, rule)
        found = _replicate_shifts(problem, point, rule, frozen)
        if found is None:
            return _failed(problem, name, replace(point, status=Status.LEFT_DOMAIN), rule)
        error = float(np.max(_two_standard_errors(found[0]) / point.overlaps.block_scales))
        if error <= accuracy or position + 1 >= min(len(levels), effort):
            return _finish(problem, name, point, rule, accuracy, frozen)
        # Sobol sets gain about 2^-0.85 a level, shifted grids about 2^-1.2.
        gain = 0.85 if isinstance(rule, Sobol) else 1.2
        position = min(len(levels), effort, position + 1 + max(1, round(float(np.log2(error / accuracy)) / gain))) - 1


def _replicate_shifts(
    problem: Problem, point: FixedPoint, rule: Rule, frozen: np.ndarray | None
) -> tuple[np.ndarray, Averages] | None:
    """Solution of every replicate to first order less u, (R, n): (I - J)^{-1} (G_r(u) - u)."""
    state_map = StateMap(problem, rule, frozen)
    try:
        images, averages = state_map.replicates(point.u, point.sizes)
        matrix = point.jacobian if point.jacobian is not None else _jacobian(problem, rule, point.u, point.sizes)
    except DomainError:
        return None
    return np.linalg.solve(np.eye(len(point.u)) - matrix, (images - point.u).T).T, averages


def _two_standard_errors(samples: np.ndarray) -> np.ndarray:
    return 2 * samples.std(axis=0, ddof=1) / np.sqrt(len(samples))


def _finish(
    problem: Problem, name: str, point: FixedPoint, rule: Rule, accuracy: float, frozen: np.ndarray | None
) -> Solution:
    """Observables and errors at a converged point; the residual is recomputed here."""
    if not point.status.success:
        return _failed(problem, name, point, rule)
    if not point.overlaps.free_sign_is_positive and sign_is_free(problem):
        point = replace(point, u=point.overlaps.flipped().pack(), jacobian=None)
    state_map = StateMap(problem, rule, frozen)
    sizes, overlaps = point.sizes, point.overlaps
    try:
        if is_replicated(rule):
            found = _replicate_shifts(problem, point, rule, frozen)
            if found is None:
                raise DomainError("a replicate's map leaves the domain")
            shifts, averages = found
            errors = _two_standard_errors(shifts)
            loss_error = problem.alpha * float(_two_standard_errors(averages.moreau[:, None])[0])
            test, test_own = observables.test_error(problem, overlaps)
            tests = [_test_or_nan(problem, point.u + shift, sizes) for shift in shifts]
            test_error_error = float(_two_standard_errors(np.array(tests)[:, None])[0]) + test_own
        else:
            averages = state_map.averages(overlaps)
            shift = _finer_shift(problem, point, rule, frozen)
            if shift is None:
                raise DomainError("the finer rule's map leaves the domain")
            finer = rule.finer().averages(problem, overlaps)
            bias = PROX_SPACE_BIAS * averages.bistable if isinstance(rule, ProxSpace) else 0.0
            errors = DIFFERENCE_SAFETY * np.abs(shift) + bias * overlaps.block_scales
            loss_error = DIFFERENCE_SAFETY * problem.alpha * abs(float(finer.moreau.mean() - averages.moreau.mean()))
            loss_error += bias * abs(problem.alpha * float(averages.moreau.mean()))
            test, test_own = observables.test_error(problem, overlaps)
            moved = abs(_test_or_nan(problem, point.u + shift, sizes) - test)
            test_error_error = DIFFERENCE_SAFETY * moved + test_own + bias * abs(test)
        hats = state_map.conjugates(overlaps, averages.moments.mean(axis=0))
        image = state_map.overlaps(hats).pack()
        if frozen is not None:
            image[frozen] = 0.0
    except DomainError:
        return _failed(problem, name, replace(point, status=Status.LEFT_DOMAIN), rule)
    residual = residual_of(image, point.u, sizes)
    scales = overlaps.block_scales
    relative = float(np.max(errors / scales))
    errors = errors + residual * scales
    loss = observables.losses(problem, overlaps, hats, averages)
    loss_error += relative**2 * abs(loss.training_loss)
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
        jacobian=point.jacobian,
        averages=averages,
        frozen=frozen,
    )


def refine_losses(solution: Solution, tolerance: float) -> Solution:
    """The same overlaps with the training loss integrated until its error is below `tolerance` (absolute, per d).

    Phi is stationary, so that the error of the overlaps enters to second order only (theory.md section 9).
    """
    if solution.losses is None or solution.training_loss_error <= tolerance:
        return solution
    problem, overlaps = solution.problem, solution.overlaps
    if isinstance(solution.rule, ProxSpace):
        plane = problem.solver.channel.FIELDS > 1
        bias = PROX_SPACE_BIAS * solution.averages.bistable * abs(solution.training_loss) if solution.averages else 0.0
        if is_replicated(solution.rule) or bias > tolerance / 2:
            levels: tuple[Rule, ...] = _SHIFTED_PLANE if plane else _SHIFTED_LINE
        else:
            levels = _PLANE if plane else _LINE
    else:
        levels = _SAMPLES
    best = solution
    relative = float(np.max(solution.errors / overlaps.block_scales))
    for level in levels:
        rule = replace(level, seed=getattr(solution.rule, "seed", 0))  # type: ignore[type-var]
        same_kind = is_replicated(rule) == is_replicated(solution.rule)
        if same_kind and isinstance(rule, ProxSpace) and rule.points <= getattr(solution.rule, "points", 0):
            continue
        if isinstance(rule, Sobol) and isinstance(solution.rule, Sobol) and rule.log2 <= solution.rule.log2:
            continue
        averages = rule.averages(problem, overlaps)
        if is_replicated(rule):
            error = problem.alpha * float(_two_standard_errors(averages.moreau[:, None])[0])
        else:
            error = problem.alpha * abs(float(rule.finer().averages(problem, overlaps).moreau[0] - averages.moreau[0]))
            error += PROX_SPACE_BIAS * averages.bistable * problem.alpha * float(averages.moreau[0])
        hats = StateMap(problem, rule).conjugates(overlaps, averages.moments.mean(axis=0))
        loss = observables.losses(problem, overlaps, hats, averages)
        error += relative**2 * abs(loss.training_loss)
        best = replace(best, losses=loss, training_loss_error=error, averages=averages)
        if error <= tolerance:
            break
    return best


def _test_or_nan(problem: Problem, u: np.ndarray, sizes: tuple[int, int, int]) -> float:
    try:
        return observables.test_error(problem, Overlaps.unpack(u, sizes))[0]
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


def sign_is_free(problem: Problem) -> bool:
    """Whether the loss is even in X, so that the sign of W is a matter of choice (probed at random points)."""
    channel = problem.solver.channel
    generator = np.random.default_rng(7)
    constants = problem.constants(problem.label_choices[0][0])
    for _ in range(5):
        x = generator.standard_normal(channel.FIELDS)
        features = generator.standard_normal(channel.FEATURES)
        if abs(channel.loss(*x, *features, constants) - channel.loss(*-x, *features, constants)) > 1e-12:
            return False
    return True


def solutions(problem: Problem, *, starts: Iterable[str] | None = None, **options: Any) -> list[Solution]:
    """All solutions found from the named starts (default: all of the model), ranked by training loss, [0] the best.

    Solutions that agree within their errors are reported once. Starts that fail are named on stderr and left out.
    """
    found: list[Solution] = []
    names = list(starts or problem.solver.model.STARTS)
    with bar("solving", len(names)) as task:
        for name in names:
            task.describe(f"solving from the start {name}")
            solution = solve(problem, name, **options)
            task.advance()
            if solution.losses is None:
                say(f"start {name}: {solution.status.value.replace('_', ' ')}; {solution.status.advice}")
            elif not any(_same(solution, other) for other in found):
                found.append(solution)
    found.sort(key=lambda s: s.training_loss)
    return [replace(s, rank=i) for i, s in enumerate(found, start=1)]


def _same(one: Solution, other: Solution) -> bool:
    scales = one.overlaps.block_scales
    tolerance = 3 * (one.errors + other.errors) + 1e-6 * scales
    return bool(np.all(np.abs(one.overlaps.pack() - other.overlaps.pack()) <= tolerance))


__all__ = ["Solution", "branch_of", "solutions", "solve", "start_overlaps"]
