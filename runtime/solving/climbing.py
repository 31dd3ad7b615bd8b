"""Which rule comes next: from coarse to fine until the half widths are what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from .. import budget
from ..errors import DomainError
from ..integration import Averages, Lattice, Pieces, ProxSpace, Rule, Sobol, pace
from ..integration.estimates import two_standard_errors
from ..integration.lattice import affordable
from ..integration.pieces import FINE_PANELS, PANELS
from ..integration.prox_space import LINE_GRIDS, PLANE_GRIDS
from ..integration.rule import DIFFERENCE_SAFETY, NEGLIGIBLE_JUMPS
from ..integration.sampled import MOST_NODES, PRODUCTS, SAMPLES, WARM_PRODUCTS
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..problems.reduced import integrated
from ..progress import left, step
from ..saddle_point.iteration import FixedPoint, Status, damped, newton
from ..saddle_point.relaxation import relax
from ..saddle_point.slopes import HASTY, PATIENT, jacobian_by_rule
from ..saddle_point.state_map import StateMap
from .finishing import failed_solution, finish_point, replicate_shifts, rule_shift, with_sign_of
from .solution import Solution
from .task import Task

APPROACH_RULE = Sobol(log2=8, scramblings=4)  # coarse, of the damped approach
_HASTY_GRIDS = 4  # of a single field, before pieces are tried
_LIGHT = 1e-6  # weight of saddles that are not corrected at the most: the bound exceeds it a thousand times
MASS_TOLERANCE = 1e-3
SMOOTH_FLOOR = 1e-7  # a rule without nodes that swap converges further than this
_BLIND_FLOOR = 1e-2  # of the accuracy, where a few nodes may swap
_PATIENT_LEVEL = 2  # of SAMPLES, from which slopes are taken over the larger set
_TRAIL = 2  # sizes before the last that bound what a rule knows which did not reach its accuracy
_GAIN = 0.85  # error in powers of two per size of Sobol sets, each twice the one before
_COPIES = 4  # of a Sobol set, by signs
_FEW_POINTS = 1e5  # of lattices, before they are compared with Sobol sets
_CUSPED = 0.6  # digits that a lattice gains, where it would gain one of smooth averages
_LATTICES = 4  # that take the time of one size of Sobol sets, about
_FEW_JUMPS = 1e-3  # of the measure, with which sums over lattices are still better than Sobol sets
_FAR = 1e-2  # in block scales: beyond, slopes are taken anew


def newton_at(task: Task, rule: Rule, point: FixedPoint, sample: Sobol = HASTY) -> FixedPoint:
    """Newton's method on a rule, from where another one ended, to the residual that the accuracy asks of it.

    A smooth rule that stalls above a residual of 1e-7 ends with MAX_ITERATIONS, not FLOOR; one whose nodes know nothing
    of jumps, above what a hundredth of the accuracy allows. Slopes that were taken far
    from where it converged are taken anew there.

    Args:
        sample: Sobol sets over which the slopes of a sampled rule are taken.
    """
    problem = task.problem
    reached = _newton_at(task, rule, point, sample)
    how = "" if reached.status.success else f": {reached.status.words}"
    task.tell(f"{pace.words(problem, rule)}: Newton's method, residual {reached.residual:.0e}{how}")
    return reached


def _newton_at(task: Task, rule: Rule, point: FixedPoint, sample: Sobol) -> FixedPoint:
    """As `newton_at`."""
    problem, symmetry = task.problem, task.symmetry
    with step(f"Newton's method on {pace.words(problem, rule)}"):
        reached = newton(
            task.map_by(rule),
            point.moved(symmetry.project(point.u, point.sizes)),
            rule.tolerance(task.accuracy),
            lambda u, image: jacobian_by_rule(problem, rule, u, point.sizes, sample, symmetry, image),
        )
        floor = max(SMOOTH_FLOOR, _BLIND_FLOOR * task.accuracy) if rule.blind else SMOOTH_FLOOR
        if reached.status is Status.FLOOR and not rule.replicated and reached.residual > floor:
            # A smooth map has no floor: this is a slow approach, as to a point where two branches meet.
            return replace(reached, status=Status.MAX_ITERATIONS)
        if not reached.status.success or reached.drift <= _FAR:
            return reached
        # Newton converges with slopes that are off by half; half widths, (I - J)^{-1} times what other rules say, would
        # be off by more.
        with suppress(DomainError):
            matrix = jacobian_by_rule(problem, rule, reached.u, reached.sizes, sample, symmetry, reached.image)
            return replace(reached, jacobian=matrix, drift=0.0)
        return reached


def solve_auto(task: Task, approach: FixedPoint, near: Solution | None) -> Solution:
    """Prox-space for few fields, else Sobol with the global proximal map; at a finite temperature a product rule where
    few fields allow it."""
    problem, accuracy, effort = task.problem, task.accuracy, task.effort
    part = integrated(problem)
    channel = part.solver.channel
    if problem.inverse_temperature is not None:
        products = tuple(level for level in WARM_PRODUCTS if level.is_affordable_at_temperature(problem))[:effort]
        if len(products) > 1:
            task.tell("product rules: at a finite temperature averages have no jumps, and few fields allow products")
            return _refine(task, approach, products, patient=near is None)
        task.tell("samples: at a finite temperature a product rule of so many fields has too many nodes")
        return climb_samples(task, approach)
    if channel.FIELDS > 2 or not (part.solver.proximal.HAS_PROX_SPACE or channel.FIELDS == 1):
        return _in_many_fields(task, approach, near)
    # Saddles that are not corrected cost about ten times their weight, which a finer grid does not show.
    grids = tuple(
        replace(grid, neglected=min(_LIGHT, 1e-2 * accuracy))
        for grid in (LINE_GRIDS if channel.FIELDS == 1 else PLANE_GRIDS)[:effort]
    )
    families: list[Sequence[ProxSpace | Pieces]] = [grids] if part.solver.proximal.HAS_PROX_SPACE else []
    if Pieces.takes_lines_alone(problem):
        families = [FINE_PANELS[:effort], *families]
    elif Pieces.suits(problem):
        # A grid takes many nodes where kinks move with Y, or X bends.
        families = [grids[:_HASTY_GRIDS], PANELS[:effort], grids[_HASTY_GRIDS:]] if families else [PANELS[:effort]]
    task.tell(
        f"{', then '.join(dict.fromkeys(levels[0].name for levels in families if levels))}: the loss depends on "
        f"{channel.FIELDS} student field{'s' if channel.FIELDS > 1 else ''}, few enough for rules that resolve jumps"
    )
    if near is not None:
        families.sort(key=lambda levels: not any(isinstance(near.rule, type(level)) for level in levels))
    solution: Solution | None = None
    for levels in filter(None, families):
        first = _first_level(levels, accuracy, near)
        found = _refine(task, approach, levels[first:], patient=near is None)
        if found.success or found.status is Status.MINIMA_MISSED or (found.outside and found.losses is not None):
            return found
        solution = found if solution is None else min(solution, found, key=_quality)
        if solution.losses is not None:
            approach = _point_of(solution)
    if solution is None:
        task.tell("samples: none of these led to a solution")
        return climb_samples(task, approach)
    if channel.FIELDS > 1 and solution.losses is not None:
        return solution
    try:
        bistable = APPROACH_RULE.averages(problem, approach.overlaps).bistable
    except DomainError:  # as extrapolated overlaps may be
        return failed_solution(task, replace(approach, status=Status.LEFT_DOMAIN), APPROACH_RULE)
    if channel.FIELDS > 1 and bistable > NEGLIGIBLE_JUMPS:
        task.tell(f"samples: the grid does not cover the fields, and the proximal map jumps at {bistable:.1g} of them")
        return climb_samples(task, approach)
    task.tell("products of Gauss-Hermite nodes: the grid in X is too wide for a narrow law of the fields")
    # A grid in X may be too wide for a narrow law of omega given Y: nodes in omega adapt to it.
    products = tuple(level for level in PRODUCTS[:effort] if level.nodes(problem) <= MOST_NODES)
    adapted = _refine(task, approach, products)
    best = min(solution, adapted, key=_quality)
    if best.losses is not None:
        return best
    sampled = climb_samples(task, approach)
    return sampled if sampled.losses is not None or not solution.outside else solution


def finer_rules(problem: Problem, rule: Rule) -> list[Rule]:
    """The rules to go on with after one, in the order in which `solve_auto` takes them.

    Of a single field, grids that are fine already give way to pieces, which are split where the loss has kinks.
    """
    finer: list[Rule] = list(rule.beyond(problem))
    if not isinstance(rule, ProxSpace) or not Pieces.suits(problem):
        return finer
    last = LINE_GRIDS[_HASTY_GRIDS - 1].points
    grids = [grid for grid in finer if isinstance(grid, ProxSpace) and (grid.points <= last or rule.points > last)]
    return [*grids, *PANELS]


def _in_many_fields(task: Task, approach: FixedPoint, near: Solution | None) -> Solution:
    """Lattices where the proximal map hardly jumps, and Sobol sets where it does or no small one leads anywhere.

    Of nodes that exchanges take to each other, a lattice visits one.
    """
    problem = task.problem
    levels = affordable(problem)[: _LATTICES * task.effort]
    try:
        bistable = APPROACH_RULE.averages(problem, approach.overlaps).bistable
    except DomainError:  # as extrapolated overlaps may be
        return failed_solution(task, replace(approach, status=Status.LEFT_DOMAIN), APPROACH_RULE)
    orbit = 1 + len(task.symmetry.exchanges)
    fields = f"the loss depends on {integrated(problem).solver.channel.FIELDS} student fields"
    if bistable > _FEW_JUMPS or not any(level.nodes(problem) <= orbit * _FEW_POINTS for level in levels):
        why = f"the proximal map jumps at {bistable:.1g} of them" if bistable > _FEW_JUMPS else "a lattice is too large"
        task.tell(f"samples: {fields}, and {why}")
        return climb_samples(task, approach)
    levels = levels[_first_level(levels, task.accuracy, near) :]
    task.tell(f"lattices: {fields}, and the proximal map jumps at no more than {max(bistable, 1e-12):.1g} of them")
    small = max(1, sum(level.nodes(problem) <= orbit * _FEW_POINTS for level in levels))
    found = _refine(task, approach, levels[:small], near is None, to_the_end=task.effort == 1)
    if found.losses is None:
        task.tell("samples: no small lattice led to a solution")
        return climb_samples(task, approach)
    if found.success or task.effort == 1:
        return found
    point, given_up = _point_of(found), found.rule.size != levels[small - 1].size
    if given_up or not _lattices_are_faster(task, point, found):
        task.tell("samples: they reach the accuracy with fewer nodes than lattices")
        return climb_samples(task, point)
    further = _refine(task, point, levels[small:], patient=False) if levels[small:] else found
    return min(found, further, key=_quality)


def _lattices_are_faster(task: Task, point: FixedPoint, found: Solution) -> bool:
    """Whether a lattice visits fewer nodes for the accuracy than Sobol sets, by what small ones of both are off."""
    problem, sample = task.problem, SAMPLES[0]
    assert isinstance(found.rule, Lattice) and found.averages is not None
    spread = replicate_shifts(task, point, sample)
    if spread is None:
        return True
    noise = float(np.max(two_standard_errors(spread[0]) / point.overlaps.block_scales))
    points = _COPIES * sample.nodes(problem) * max(1.0, noise / task.accuracy) ** (1 / _GAIN)
    lost = float(np.log10(found.relative_error / task.accuracy))
    per_digit = 1.0 if found.averages.bistable <= NEGLIGIBLE_JUMPS else _CUSPED
    visited = replace(found.rule, digits=found.rule.digits + lost / per_digit).nodes(problem)
    return visited / (1 + len(task.symmetry.exchanges)) <= points


def _point_of(solution: Solution) -> FixedPoint:
    """Where a solution is, to begin from with another rule."""
    overlaps, known = solution.overlaps, (solution.jacobian, solution.drift)
    return FixedPoint(overlaps.pack(), overlaps.sizes, solution.residual, Status.CONVERGED, 0, *known)


def _quality(solution: Solution) -> tuple[bool, float]:
    """Sort key: solutions before failures, the most accurate first."""
    return solution.losses is None, solution.relative_error


def _first_level(levels: Sequence[Rule], accuracy: float, near: Solution | None) -> int:
    """Where to begin climbing: at the level that a neighbouring solution needed, one below if it was too good."""
    sizes = [level.describe() for level in levels]
    if near is None or near.rule.describe() not in sizes:
        return 0
    generous = near.relative_error < accuracy / 10
    return max(sizes.index(near.rule.describe()) - int(generous), 0)


def _refine(
    task: Task, approach: FixedPoint, levels: Sequence[Rule], patient: bool = True, to_the_end: bool = True
) -> Solution:
    """Climb deterministic rules, each started from the last, until the next finer one agrees.

    Args:
        patient: whether to iterate with damping where Newton fails at first, and to try the next level.
        to_the_end: whether also where the last sizes gained so little that those left do not lead to the accuracy.
    """
    problem, accuracy = task.problem, task.accuracy
    point, failures = approach, 0
    solved: tuple[FixedPoint, Rule, tuple[np.ndarray, Averages] | None] | None = None
    solution: Solution | None = None
    trail: list[np.ndarray] = []
    relaxed: FixedPoint | None = None
    known: tuple[int, float] | None = None
    ahead = 0
    for number, level in enumerate(levels):
        if number < ahead:
            continue
        point = point.moved(task.symmetry.project(point.u, point.sizes))
        covered = not level.in_x or covers(problem, level, point.overlaps)
        if not covered:
            reached = replace(point, status=Status.MAX_ITERATIONS)
        elif relaxed is not None and relaxed.status.success:
            # Where Newton's method failed on one level its slopes mean little on the next.
            reached = _relaxed(task, level, point)
        else:
            reached = newton_at(task, level, point)
        if patient and covered and not reached.status.success and failures == 0:
            # The damped iteration had a coarser rule: a soft branch may be far from there.
            nearer = damped(task.map_by(level), approach.overlaps, 1e-4, max_iterations=60, hopeful=False)
            nearer = replace(nearer, jacobian=None, iterations=reached.iterations + nearer.iterations)
            reached = newton_at(task, level, nearer)
            if not reached.status.success and integrated(problem).solver.channel.FIELDS == 1:
                relaxed = _relaxed(task, level, approach)
                reached = relaxed if relaxed.status.success else reached
        if not covered:
            task.tell(f"{pace.words(problem, level)}: the law of the fields does not fit on it")
        if not covered or not reached.status.success:
            failures += 1
            # The grid may be too wide for the law of the fields; where finer ones are cheap they are tried.
            if integrated(problem).solver.channel.FIELDS > 1 and (solved or not patient or failures >= 2):
                break
            continue
        finer = rule_shift(task, reached, level.finer())
        solved = reached, level, finer
        trail.append(reached.u)
        solution = None
        budget.offer(partial(finish_point, task, reached, level, finer))
        if finer is None:
            break
        error = DIFFERENCE_SAFETY * float(np.max(np.abs(finer[0]) / reached.overlaps.block_scales))
        ahead = min(number + level.sizes_ahead(error, accuracy), len(levels) - 1)
        if error < accuracy:
            solution = finish_point(task, reached, level, finer)
            if solution.success or solution.status is Status.MINIMA_MISSED:
                return solution
            budget.offer(partial(replace, solution))
        left(f"error bar so far about {error:.0e}, asked {accuracy:.0e}")
        task.tell(f"{pace.words(problem, level)}: a finer rule moves it by {error:.0e}, asked {accuracy:.0e}")
        point = reached.moved(reached.u + finer[0])
        if known is not None and not to_the_end:
            before, larger = known
            gain = float(np.log(larger / error)) / (number - before)
            if gain * (len(levels) - 1 - number) < float(np.log(error / accuracy)):
                task.tell("extrapolated from the last sizes, the larger ones do not reach the accuracy")
                break
        known = number, error
    if solved is None:
        return failed_solution(task, replace(reached, outside=relaxed.outside if relaxed else reached.outside), level)
    point, level, finer = solved
    solution = solution or finish_point(task, point, level, finer)
    if solution.losses is None or solution.success:
        return solution
    # Out of a rule's depth the next size may be as wrong as this one: nothing is known better than how far they moved.
    moved = [np.abs(solution.overlaps.pack() - with_sign_of(u, solution.overlaps)) for u in trail[-1 - _TRAIL : -1]]
    wider = replace(solution, errors=np.max([solution.errors, *moved], axis=0))
    share = wider.relative_error / solution.relative_error
    others = {name: (value, share * error) for name, (value, error) in solution.other_errors.items()}
    return replace(wider, test_error_error=share * solution.test_error_error, other_errors=others)


def _relaxed(task: Task, rule: Rule, start: FixedPoint) -> FixedPoint:
    """Return where implicit steps on a rule lead from a start."""
    with step(f"implicit steps on {pace.words(task.problem, rule)}"):
        reached = relax(task.map_by(rule), start, rule.tolerance(task.accuracy))
    how = "" if reached.status.success else f": {reached.status.words}"
    task.tell(f"{pace.words(task.problem, rule)}: implicit steps, residual {reached.residual:.0e}{how}")
    return reached


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


def climb_samples(task: Task, approach: FixedPoint) -> Solution:
    """Climb Sobol sets, each started from the last, until the spread of the replicates meets the accuracy.

    A soft branch with jumps may be out of reach of Newton on few points: their floor is high, and differences over them
    say little about the slope. It is then tried once on a larger set with a Jacobian from a larger one.
    """
    accuracy, last = task.accuracy, min(len(SAMPLES), task.effort) - 1
    point = approach
    position = 0
    patient = False
    while True:
        rule = replace(SAMPLES[position], seed=task.seed)
        point = newton_at(task, rule, point, PATIENT if patient else HASTY)
        if not point.status.success:
            if patient or point.status is not Status.MAX_ITERATIONS:
                return failed_solution(task, point, rule)
            patient, position, point = True, max(position, _PATIENT_LEVEL), replace(point, jacobian=None)
            continue
        found = replicate_shifts(task, point, rule)
        if found is None:
            return failed_solution(task, replace(point, status=Status.LEFT_DOMAIN), rule)
        error = float(np.max(two_standard_errors(found[0]) / point.overlaps.block_scales))
        budget.offer(partial(finish_point, task, point, rule))
        left(f"error bar so far {error:.0e}, asked {accuracy:.0e}")
        task.tell(f"{pace.words(task.problem, rule)}: replicates differ by {error:.0e}, asked {accuracy:.0e}")
        if error <= accuracy or position >= last:
            return finish_point(task, point, rule)
        position = min(last, position + max(1, round(float(np.log2(error / accuracy)) / _GAIN)))
