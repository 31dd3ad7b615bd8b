"""How a fixed point moves with a number of its problem."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..base.errors import DomainError
from ..integration import Rule
from ..integration.estimates import Change, Comparison, compared, half_width, two_standard_errors
from ..integration.rule import NEGLIGIBLE_JUMPS, Averages
from ..problems.overlaps import Conjugates, Overlaps, Sizes
from ..problems.problem import Problem
from ..problems.symmetry import Symmetry, exchanges
from ..saddle_point import observables
from ..saddle_point.observables import Observable, first_observables
from ..saddle_point.slopes import jacobian, jacobian_by_rule, wide_steps
from ..saddle_point.state_map import StateMap
from ..solving.solution import Solution
from .answers import Sensitivity
from .direction import NARROW, WIDE, Direction

_ROUNDING = 2e-15  # of one value of the map, relative to its blocks
_ROUNDS = 12
_SHORTER = 4  # tries with steps shorter by a factor of four where the domain ends
_FINE, _COARSE = 1.5e5, 5e4  # nodes for the test error; rules and replicates are compared over the fewer


@dataclass(frozen=True)
class _Answer:
    """The answer of one rule or replicate: x = du/dp, and the derivatives of the training loss and of what the
    overlaps determine, (k,)."""

    x: np.ndarray
    loss: float
    observed: np.ndarray


@dataclass
class Tangent:
    """The line (u + s x, p + s) through a solution and its neighbours.

    Attributes:
        base: the solution's map, for what a step keeps, whatever the rule.
        matrix: J, roughly.
        wide, step, stencil: of the differences.
    """

    solution: Solution
    direction: Direction
    base: StateMap
    matrix: np.ndarray
    wide: bool
    step: float
    stencil: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, solution: Solution, direction: Direction) -> Tangent:
        """Steps wide where replicates or swapping minima make the map rough, and J the solver's where symmetry allows.

        Raises:
            InputError: the number can move neither way.
        """
        rule, averages = solution.rule, solution.averages
        assert averages is not None
        swaps = not rule.in_x and averages.bistable > NEGLIGIBLE_JUMPS
        wide = rule.replicated or swaps
        step, stencil = direction.differences(wide)
        symmetry, whole = _kept_symmetry(solution, direction.moved(step))
        matrix = solution.jacobian if whole else None
        if matrix is None:
            overlaps = solution.overlaps
            matrix = jacobian_by_rule(solution.problem, rule, overlaps.pack(), overlaps.sizes, symmetry=symmetry)
        return cls(solution, direction, StateMap(solution.problem, rule, symmetry), matrix, wide, step, stencil)

    @cached_property
    def u(self) -> np.ndarray:
        """Packed overlaps of the solution, (n,)."""
        return self.solution.overlaps.pack()

    @cached_property
    def scales(self) -> np.ndarray:
        """Sizes of the blocks that packed components belong to, (n,)."""
        return self.solution.overlaps.block_scales

    @property
    def sizes(self) -> Sizes:
        """(C, s, t, P)."""
        return self.solution.overlaps.sizes

    @cached_property
    def observables(self) -> list[Observable]:
        """Return what is differentiated in addition to overlaps and training loss, (k,)."""
        return first_observables(self.solution.problem)

    def found(self) -> Sensitivity:
        """The derivatives and their error bars."""
        solution, losses = self.solution, self.solution.losses
        assert solution.conjugates is not None and losses is not None
        if solution.rule.replicated:
            best, (widths, loss_error, errors), remaining = self.of_replicates()
        else:
            best, (widths, loss_error, errors), remaining = self.of_rules(solution.conjugates)
        observed = self.observed(self.u, best.x, _FINE)
        rounding = _ROUNDING / abs(self.step)
        errors = errors + np.abs(observed - best.observed)
        size = float(np.max(np.abs(best.x) / self.scales))
        return Sensitivity(
            parameter=self.direction.label,
            at=self.direction.value,
            problem=solution.problem,
            reached=solution.overlaps,
            overlaps=Overlaps.unpack(best.x, self.sizes),
            half_widths=Overlaps.unpack(widths + self.spread(rounding) + remaining * self.scales, self.sizes),
            training_loss=best.loss,
            training_loss_error=loss_error
            + rounding * (abs(losses.data) + abs(losses.penalty) + abs(losses.free_entropy)),
            observed={
                each.name: (float(value), float(error) + rounding * abs(solution.observed[each.name][0]))
                for each, value, error in zip(self.observables, observed, errors, strict=True)
            },
            baseline_error=self.baseline(),
            remaining=remaining / size if size > 0 else 0.0,
        )

    def of_rules(self, hats: Conjugates) -> tuple[_Answer, tuple[np.ndarray, float, np.ndarray], float]:
        """The rule's own answer, error bars from other rules of the family (as for the overlaps), what remains."""
        rule, averages = self.solution.rule, self.solution.averages
        assert averages is not None
        x, remaining = self.solved(rule, self.u, np.zeros_like(self.u), 1e-3 if self.wide else 1e-11)
        best = self.answer(rule, self.u, x, hats)
        size = float(np.max(np.abs(x) / self.scales))  # of a relative change
        losses = self.solution.losses
        assert losses is not None

        def unit(slope: float, value: float) -> float:
            return max(abs(slope), size * abs(value)) or 1.0

        values = (self.solution.observed[each.name][0] for each in self.observables)
        of_observed = np.array(list(map(unit, best.observed, values)))
        units = self.scales * (size or 1.0), unit(best.loss, losses.training_loss), of_observed

        def ask(change: Change) -> Comparison:
            answer, there = self.elsewhere(change(rule), x)
            moved = answer.x - x, np.array(answer.loss - best.loss), answer.observed - best.observed
            return Comparison(tuple(part / unit for part, unit in zip(moved, units, strict=True)), (there,))

        known = compared([rule], [averages], ask, derivative=True)
        widths, loss_error, errors = (half_width(known, n) * unit for n, unit in enumerate(units))
        return best, (widths, float(loss_error), errors), remaining

    def elsewhere(self, rule: Rule, x: np.ndarray) -> tuple[_Answer, Averages]:
        """Return what another rule answers at its own solution, and its averages at this one."""
        image, averages = self.visited(self.solution.problem, rule, self.u)
        there = self.u + self.moved_by(self.u, image - self.u)
        return self.answer(rule, there, self.solved(rule, there, x, 1e-7)[0], self.hats(rule, there)), averages

    def of_replicates(self) -> tuple[_Answer, tuple[np.ndarray, float, np.ndarray], float]:
        """The mean of what every replicate says at its own solution, its error bars, what remains."""
        rule = self.solution.rule
        tolerance = min(0.03, max(1e-4, self.solution.relative_error))
        x, remaining = self.solved(rule, self.u, np.zeros_like(self.u), tolerance)
        images, _ = self.base.replicates(self.u, self.sizes)
        answers = []
        for shift, own in zip(self.moved_by(self.u, images - self.u), rule.replicates, strict=True):
            there = self.u + shift
            own_x = x + self.moved_by(self.u, self.along(own, there, x) - x)
            answers.append(self.answer(own, there, own_x, self.hats(own, there)))
        every = [np.array([getattr(answer, name) for answer in answers]) for name in ("x", "loss", "observed")]
        best = _Answer(every[0].mean(axis=0), float(every[1].mean()), every[2].mean(axis=0))
        widths, loss_error, errors = (two_standard_errors(values) for values in every)
        # The replicates' own step is one more round.
        return best, (widths, float(loss_error), errors), remaining / 2

    def solved(self, rule: Rule, u: np.ndarray, x: np.ndarray, tolerance: float) -> tuple[np.ndarray, float]:
        """x = du/dp for a rule, and how far it may still be off, relative to the blocks; the tolerance to x itself.

        Rounds that no longer halve what they move end it, with a Jacobian of its own tried once before.
        """
        best, least, rate, refreshed = x, np.inf, 0.5, False
        for _ in range(_ROUNDS):
            move = self.moved_by(u, self.along(rule, u, x) - x)
            x, moved = x + move, float(np.max(np.abs(move) / self.scales))
            if not np.isfinite(moved):
                raise DomainError("the slope of the saddle-point map is not finite")
            improved = moved < least / 2
            if moved < least:
                best, least, rate = x, moved, min(0.5, moved / least) if np.isfinite(least) else 0.5
            if moved <= tolerance * float(np.max(np.abs(x) / self.scales)):
                break
            if not improved:
                if refreshed or rule.replicated:
                    break
                self.matrix, refreshed, x = self.exact_jacobian(rule, u), True, best
        return best, least * rate / (1 - rate)

    def moved_by(self, u: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """(I - J)^{-1} gap."""
        return self.base.correction(self.matrix, u, gap, self.sizes)

    def visited(self, problem: Problem, rule: Rule, u: np.ndarray) -> tuple[np.ndarray, Averages]:
        """G(u), with what the solution's symmetry keeps, and the averages that gave it."""
        overlaps, there = Overlaps.unpack(u, self.sizes), StateMap(problem, rule)
        averages = there.averages(overlaps)
        return self.base.kept(u, there.image(overlaps, averages.means), self.sizes), averages

    def hats(self, rule: Rule, u: np.ndarray) -> Conjugates:
        """Conjugates (docs/theory.md (5.2) to (5.5)) at packed overlaps by a rule, averaged over its replicates."""
        overlaps, there = Overlaps.unpack(u, self.sizes), StateMap(self.solution.problem, rule)
        return there.conjugates(overlaps, there.averages(overlaps).means)

    def exact_jacobian(self, rule: Rule, u: np.ndarray) -> np.ndarray:
        """dG/du of this rule by differences, for where the solver's rough one does not contract."""
        there = StateMap(self.solution.problem, rule, self.base.symmetry)
        return jacobian(there, u, self.sizes, wide_steps(self.solution.overlaps, WIDE if self.wide else NARROW))

    def slope(self, x: np.ndarray, value: Callable[[float], np.ndarray | float]) -> np.ndarray:
        """d value(s)/ds at s = 0, over steps within which neither p nor u + s x moves far or leaves the domain."""
        limits = wide_steps(self.solution.overlaps, WIDE if self.wide else NARROW) * self.scales
        excess = float(np.max(np.abs(self.step * x) / limits))
        step = self.step / 2 ** max(0, int(np.ceil(np.log2(max(excess, 1.0)))))
        for _ in range(_SHORTER):
            with suppress(DomainError):
                return np.sum([weight * np.asarray(value(k * step)) for k, weight in self.stencil], axis=0) / step
            step /= 4
        raise DomainError("the solution is too close to the end of the domain")

    def along(self, rule: Rule, u: np.ndarray, x: np.ndarray) -> np.ndarray:
        """d G(u + s x; p + s)/ds = J x + dG/dp."""
        return self.slope(x, lambda s: self.visited(self.direction.moved(s), rule, u + s * x)[0])

    def answer(self, rule: Rule, u: np.ndarray, x: np.ndarray, hats: Conjugates) -> _Answer:
        """Derivatives of the training loss and of what the overlaps determine that go with x = du/dp at u."""
        overlaps = Overlaps.unpack(u, self.sizes)

        def loss(s: float) -> float:
            """Return the training loss at fixed overlaps and conjugates, where Phi is stationary."""
            there = self.direction.moved(s)
            return observables.losses(there, overlaps, hats, rule.averages(there, overlaps)).training_loss

        return _Answer(x, float(self.slope(np.zeros_like(x), loss)), self.observed(u, x, _COARSE))

    def observed(self, u: np.ndarray, x: np.ndarray, budget: float) -> np.ndarray:
        """Return the derivatives of `observables`, (k,), test errors over about `budget` nodes."""

        def slope(observable: Observable) -> float:
            rule = observable.rule(Overlaps.unpack(u, self.sizes), budget)

            def value(s: float) -> float:
                there = Overlaps.unpack(u + s * x, self.sizes)
                return replace(observable, problem=self.direction.moved(s)).value(there, rule)

            return float(self.slope(x, value))

        return np.array([slope(each) for each in self.observables])

    def baseline(self) -> float:
        """d(baseline error)/dp (docs/theory.md (7.7)); nan without a baseline, 0 along alpha."""
        if not self.solution.problem.solver.metric.HAS_BASELINE:
            return np.nan
        if self.direction.name == "alpha":
            return 0.0  # a layer that learns from no sample
        still = np.zeros_like(self.u)
        return float(self.slope(still, lambda s: observables.baseline_error(self.direction.moved(s))))

    def spread(self, noise: float) -> np.ndarray:
        """Return by how much an error of the map's slope, relative to its blocks, moves x at most, (n,)."""
        return np.abs(self.moved_by(self.u, np.diag(noise * self.scales))).sum(axis=0)


def _kept_symmetry(solution: Solution, moved: Problem) -> tuple[Symmetry, bool]:
    """The part of the solution's symmetry that the moved problem has, too, and whether that is all of it.

    An entry of a matrix may tell tokens apart; zeros by symmetry then begin to grow.
    """
    own = solution.symmetry or Symmetry()
    kept = tuple(exchange for exchange in own.exchanges if exchange in exchanges(moved))
    if len(kept) == len(own.exchanges):
        if own.frozen is None or not own.frozen.any():
            return own, True
        there = StateMap(moved, solution.rule)
        overlaps = solution.overlaps
        image = there.image(overlaps, there.averages(overlaps).means)
        grown = np.abs(image - overlaps.pack())[own.frozen] / overlaps.block_scales[own.frozen]
        if np.all(grown < 1e-9):
            return own, True
    return Symmetry(None, kept, own.clusters), False
