"""How a solution answers to the numbers of its problem: d(any observable)/d(any parameter).

At a saddle point u = G(u; p), so that x = du/dp solves x = J x + dG/dp, J = dG/du (docs/theory.md (7.8)). The
right-hand side is the slope of G along the line (u + s x, p + s): one difference of the map over common nodes, whatever
the number of overlaps. From x = 0 on, x moves by (I - J)^{-1} times what is left, with a rough J; the slope along the
line is what counts. Phi is stationary, so that the training loss needs its explicit dependence on p alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from . import observables, presenting
from .errors import InputError, NotConvergedError
from .fixed_point import StateMap
from .integration import ProxSpace, Rule, Sobol
from .integration.estimates import DIFFERENCE_SAFETY, difference_factors, two_standard_errors
from .integration.fields import DomainError
from .naming import OVERLAPS
from .overlaps import Conjugates, Overlaps, Sizes
from .problem import Problem
from .progress import bar, step
from .solution import (
    COARSER_SHARE,
    Solution,
    coarser_rules,
    is_replicated,
    jacobian_by_rule,
    wide_steps,
)
from .stability import NEGLIGIBLE_JUMPS
from .symmetry import Symmetry, exchanges

if TYPE_CHECKING:
    import pandas

SCALARS = ("free_entropy", "training_loss", "test_error", "baseline_error")

# Relative steps: over a set of nodes whose minima swap, wide enough for many to swap.
_NARROW, _WIDE = 1e-3, 1e-2
# (place in steps, weight): the slope from values around a point, or, at the edge of a range, on one side of it.
_CENTRAL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))
_ONE_SIDED = ((1, -77 / 12), (2, 107 / 6), (3, -39 / 2), (4, 61 / 6), (5, -25 / 12))
_ONE_SIDED_WIDE = ((0, -3 / 2), (1, 2), (2, -1 / 2))
_ROUNDING = 2e-15  # of one value of the map, relative to its blocks
_ROUNDS = 12
_SHORTER = 4  # tries with steps shorter by a factor of four where the domain ends
_FINE, _COARSE = 1.5e5, 5e4  # nodes for the test error; rules and replicates are compared over the fewer


@dataclass(frozen=True)
class Sensitivity:
    """Derivatives with respect to one number of a problem, each with a half width.

    Attributes:
        parameter: its name; entries of an array count from 1, as A[1,2].
        at: its value.
        overlaps, half_widths: dq, dV, dm, dtheta, dphi in the shape of the overlaps. Where rotations of the student's
            columns are symmetries, the part across them.
        training_loss, test_error, baseline_error: derivatives (nan where the model has none), half widths in *_error.
        remaining: what the last round still moved, relative to the largest change of an overlap.
    """

    parameter: str
    at: float
    problem: Problem
    reached: Overlaps
    overlaps: Overlaps
    half_widths: Overlaps
    training_loss: float
    training_loss_error: float
    test_error: float
    test_error_error: float
    baseline_error: float
    remaining: float

    @property
    def free_entropy(self) -> float:
        return -self.training_loss

    def of(self, observable: str) -> tuple[float, float]:
        """Derivative and half width of an observable: a loss or error, or |first entry| of q, V, m, theta.

        Raises:
            InputError: no such observable; those that can be differentiated are listed.
        """
        if observable in ("training_loss", "free_entropy"):
            return getattr(self, observable), self.training_loss_error
        if observable == "test_error":
            return self.test_error, self.test_error_error
        if observable == "baseline_error":
            return self.baseline_error, 0.0
        if observable not in OVERLAPS:
            raise InputError(f"no derivative of {observable!r}; known are {', '.join((*SCALARS, *OVERLAPS))}")
        sign = -1.0 if getattr(self.reached, observable).flat[0] < 0 else 1.0
        entry, width = (float(getattr(blocks, observable).flat[0]) for blocks in (self.overlaps, self.half_widths))
        return sign * entry, width

    def to_json(self) -> dict[str, Any]:
        """As the object of a solution: derivatives in place of values."""
        return presenting.to_json(self)


@dataclass(frozen=True)
class Sensitivities:
    """Sensitivities of one solution, by name: `found["lambda"].test_error`, `found["A[1,2]"].overlaps.theta`."""

    solution: Solution
    entries: tuple[Sensitivity, ...]

    def __getitem__(self, parameter: str) -> Sensitivity:
        for entry in self.entries:
            if entry.parameter == parameter.rstrip("_"):
                return entry
        raise KeyError(parameter)

    def __iter__(self) -> Iterator[Sensitivity]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def table(self) -> str:
        """The derivatives for a terminal: a row an observable, a column a parameter."""
        return presenting.table(self)

    def __repr__(self) -> str:
        return self.table()

    def to_json(self) -> dict[str, Any]:
        """Parameter -> derivatives."""
        return presenting.to_json(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row a parameter; columns as those of a curve, derivatives in place of values."""
        return presenting.to_frame(self)


@dataclass
class Direction:
    """One number of a problem that moves while the others stay.

    Attributes:
        name: of the parameter; index: entry of an array, or None for all of its entries together.
        mirrored: whether the transposed entry moves along, as in a matrix that must be symmetric.
    """

    problem: Problem
    name: str
    index: tuple[int, ...] | None = None
    mirrored: bool = False
    _known: dict[float, Problem] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        shown = self.name.rstrip("_")
        several = self.index is not None and np.size(self.problem.parameters[self.name]) > 1
        return f"{shown}[{','.join(str(i + 1) for i in self.index or ())}]" if several else shown

    @property
    def value(self) -> float:
        if self.name == "alpha":
            return self.problem.alpha
        values = np.asarray(self.problem.parameters[self.name], float)
        return float(values[self.index] if self.index is not None else values.flat[0])

    @property
    def range(self) -> tuple[float, float]:
        """Ends of what is allowed."""
        if self.name == "alpha":
            return 0.0, np.inf
        spec = next(spec for spec in self.problem.solver.model.PARAMETERS if spec["name"] == self.name)
        return (
            -np.inf if spec["low"] is None else spec["low"],
            np.inf if spec["high"] is None else spec["high"],
        )

    def moved(self, by: float) -> Problem:
        """The problem with the number moved, the search of the proximal map kept.

        Raises:
            InputError: there is no such problem.
        """
        if by not in self._known:
            if self.name == "alpha":
                found = self.problem.with_(alpha=self.problem.alpha + by)
            else:
                values = np.array(self.problem.parameters[self.name], float)
                values[self.index if self.index is not None else ...] += by
                if self.mirrored and self.index is not None:
                    values[self.index[::-1]] = values[self.index]
                found = self.problem.with_(**{self.name: values if values.shape else float(values)})
            self._known[by] = replace(found, search=self.problem.search)
        return self._known[by]

    def differences(self, wide: bool) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Step and stencil that stay within what is allowed. A number that must be positive moves by a share of itself.

        Raises:
            InputError: the number can move neither way.
        """
        low, high = self.range
        value = self.value
        if low == 0 and value > 0:
            scale = min(value, (high - low) / 2)
        else:
            scale = max(abs(value), 1.0) if np.isinf(low) or np.isinf(high) else (high - low) / 2
        step = (_WIDE if wide else _NARROW) * scale
        if self.possible(step, _CENTRAL):
            return step, _CENTRAL
        one_sided = _ONE_SIDED_WIDE if wide else _ONE_SIDED
        for toward in (step, -step):
            if self.possible(toward, one_sided):
                return toward, one_sided
        raise InputError(f"{self.label} = {value:g} can be moved neither up nor down while the rest stays")

    def possible(self, step: float, stencil: tuple[tuple[int, float], ...]) -> bool:
        """Whether there is a problem at every place of a stencil."""
        try:
            for place, _ in stencil:
                self.moved(place * step)
        except InputError:
            return False
        return True


def directions(problem: Problem, *names: str) -> list[Direction]:
    """A direction for every number of the named parameters; without names, alpha and all of them.

    An entry of a matrix that must be symmetric moves together with its mirror image and is named once; one that cannot
    move at all is left out.

    Raises:
        InputError: an unknown name; the known ones are listed.
    """
    own = list(problem.parameters)
    found = []
    for name in names or ("alpha", *own):
        wanted = {"lambda": "lambda_"}.get(name, name)
        if wanted == "alpha":
            found.append(Direction(problem, "alpha"))
            continue
        if wanted not in own:
            known = ", ".join(("alpha", *(n.rstrip("_") for n in own)))
            raise InputError(f"no derivative with respect to {name!r}; known are {known}")
        for index in np.ndindex(np.shape(problem.parameters[wanted])):
            for mirrored in (False, True):
                direction = Direction(problem, wanted, index, mirrored)
                if mirrored and (len(index) != 2 or index[0] >= index[1]):
                    continue
                with suppress(InputError):
                    direction.differences(wide=False)
                    found.append(direction)
                    break
    return found


def sensitivities(solution: Solution, *parameters: str) -> Sensitivities:
    """Derivatives of overlaps, losses and errors with respect to parameters, along the solution's branch.

    Args:
        parameters: alpha or names of the model's parameters, arrays entry by entry; without any, all of them.

    Raises:
        InputError: an unknown parameter, or a solution that is none.
        NotConvergedError: 1 is an eigenvalue of the Jacobian (the branch ends or meets another one here), or the map
            cannot be evaluated around the solution.
    """
    if solution.losses is None:
        raise InputError(f"there is no solution to differentiate: {solution.status.words}")
    wanted = directions(solution.problem, *parameters)
    solution.problem.only_at_zero_temperature("derivatives with respect to parameters are known")
    with bar("sensitivities", len(wanted)) as task:
        found = []
        for direction in wanted:
            found.append(sensitivity(solution, direction))
            task.advance(f"sensitivity to {direction.label}")
    return Sensitivities(solution, tuple(found))


def sensitivity(solution: Solution, direction: Direction) -> Sensitivity:
    """Derivatives along one direction (see `sensitivities`)."""
    try:
        with step(f"derivatives with respect to {direction.label}"):
            return _Tangent.of(solution, direction).found()
    except np.linalg.LinAlgError:
        raise NotConvergedError(
            f"no derivative with respect to {direction.label}: 1 is an eigenvalue of the Jacobian, the branch ends or "
            "meets another one here"
        ) from None
    except DomainError as error:
        raise NotConvergedError(f"no derivative with respect to {direction.label}: {error}") from error


@dataclass(frozen=True)
class _Answer:
    """What one rule, or one replicate, says: x = du/dp, and the derivatives of the training loss and the test error."""

    x: np.ndarray
    loss: float
    test: float


@dataclass
class _Tangent:
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
    def of(cls, solution: Solution, direction: Direction) -> _Tangent:
        rule, averages = solution.rule, solution.averages
        assert averages is not None
        swaps = not isinstance(rule, ProxSpace) and averages.bistable > NEGLIGIBLE_JUMPS
        wide = is_replicated(rule) or swaps
        step, stencil = direction.differences(wide)
        symmetry, whole = _kept_symmetry(solution, direction.moved(step))
        matrix = solution.jacobian if whole else None
        if matrix is None:
            overlaps = solution.overlaps
            matrix = jacobian_by_rule(solution.problem, rule, overlaps.pack(), overlaps.sizes, symmetry=symmetry)
        return cls(solution, direction, StateMap(solution.problem, rule, symmetry), matrix, wide, step, stencil)

    @cached_property
    def u(self) -> np.ndarray:
        return self.solution.overlaps.pack()

    @cached_property
    def scales(self) -> np.ndarray:
        return self.solution.overlaps.block_scales

    @property
    def sizes(self) -> Sizes:
        return self.solution.overlaps.sizes

    def found(self) -> Sensitivity:
        """The derivatives and their half widths."""
        solution, losses = self.solution, self.solution.losses
        assert solution.conjugates is not None and losses is not None
        if is_replicated(solution.rule):
            best, (widths, loss_error, test_error), remaining = self.of_replicates()
        else:
            best, (widths, loss_error, test_error), remaining = self.of_rules(solution.conjugates)
        test = self.test(self.u, best.x, _FINE)
        rounding = _ROUNDING / abs(self.step)
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
            test_error=test,
            test_error_error=test_error + abs(test - best.test) + rounding * abs(solution.test_error),
            baseline_error=self.baseline(),
            remaining=remaining / size if size > 0 else 0.0,
        )

    def of_rules(self, hats: Conjugates) -> tuple[_Answer, tuple[np.ndarray, float, float], float]:
        """The rule's own answer, half widths from other rules of the family (as for the overlaps), what remains."""
        rule, averages = self.solution.rule, self.solution.averages
        assert averages is not None
        x, remaining = self.solved(rule, self.u, np.zeros_like(self.u), 1e-3 if self.wide else 1e-11)
        best = self.answer(rule, self.u, x, hats)
        others = [self.elsewhere(rule.finer(), x)]
        for other in coarser_rules(rule):
            with suppress(DomainError):  # too coarse for the law of the fields
                others.append(self.elsewhere(other, x))
        jumps = isinstance(rule, ProxSpace) and averages.bistable > NEGLIGIBLE_JUMPS

        def half_width(*differences: np.ndarray) -> np.ndarray:
            factors = (DIFFERENCE_SAFETY, COARSER_SHARE) if jumps else difference_factors(*differences)
            return np.max([f * np.abs(d) for f, d in zip(factors, differences, strict=False)], axis=0)

        widths = self.scales * half_width(*((answer.x - x) / self.scales for answer in others))
        loss_error = half_width(*(np.array(answer.loss - best.loss) for answer in others))
        test_error = half_width(*(np.array(answer.test - best.test) for answer in others))
        return best, (widths, float(loss_error), float(test_error)), remaining

    def elsewhere(self, rule: Rule, x: np.ndarray) -> _Answer:
        """What another rule answers at its own solution."""
        there = self.u + self.moved_by(self.u, self.image(self.solution.problem, rule, self.u) - self.u)
        return self.answer(rule, there, self.solved(rule, there, x, 1e-7)[0], self.hats(rule, there))

    def of_replicates(self) -> tuple[_Answer, tuple[np.ndarray, float, float], float]:
        """The mean of what every replicate says at its own solution, its half widths, what remains."""
        rule = self.solution.rule
        assert isinstance(rule, Sobol)
        tolerance = min(0.03, max(1e-4, self.solution.relative_error))
        x, remaining = self.solved(rule, self.u, np.zeros_like(self.u), tolerance)
        images, _ = self.base.replicates(self.u, self.sizes)
        answers = []
        for number, shift in enumerate(self.moved_by(self.u, images - self.u)):
            own, there = rule.replicate(number), self.u + shift
            own_x = x + self.moved_by(self.u, self.along(own, there, x) - x)
            answers.append(self.answer(own, there, own_x, self.hats(own, there)))
        every = [np.array([getattr(answer, name) for answer in answers]) for name in ("x", "loss", "test")]
        best = _Answer(every[0].mean(axis=0), float(every[1].mean()), float(every[2].mean()))
        widths, loss_error, test_error = (two_standard_errors(values) for values in every)
        # The replicates' own step is one more round.
        return best, (widths, float(loss_error), float(test_error)), remaining / 2

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
                if refreshed or is_replicated(rule):
                    break
                self.matrix, refreshed, x = self.exact_jacobian(rule, u), True, best
        return best, least * rate / (1 - rate)

    def moved_by(self, u: np.ndarray, gap: np.ndarray) -> np.ndarray:
        """(I - J)^{-1} gap."""
        return self.base.correction(self.matrix, u, gap, self.sizes)

    def image(self, problem: Problem, rule: Rule, u: np.ndarray) -> np.ndarray:
        """G(u), with what the solution's symmetry keeps."""
        overlaps, there = Overlaps.unpack(u, self.sizes), StateMap(problem, rule)
        image = there.image(overlaps, there.averages(overlaps).moments.mean(axis=0))
        return self.base.kept(u, image, self.sizes)

    def hats(self, rule: Rule, u: np.ndarray) -> Conjugates:
        overlaps, there = Overlaps.unpack(u, self.sizes), StateMap(self.solution.problem, rule)
        return there.conjugates(overlaps, there.averages(overlaps).moments.mean(axis=0))

    def exact_jacobian(self, rule: Rule, u: np.ndarray) -> np.ndarray:
        """dG/du of this rule by the same differences, for where the solver's rough one does not contract."""
        steps = wide_steps(self.solution.overlaps, _WIDE if self.wide else _NARROW)
        matrix = np.zeros((len(u), len(u)))
        for along in self.base.symmetry.directions(self.sizes, len(u)):
            i = int(np.argmax(along != 0))
            size = steps[i] * self.scales[i]
            values = [w * self.image(self.solution.problem, rule, u + k * size * along) for k, w in _CENTRAL]
            matrix += np.outer(np.sum(values, axis=0) / size, along / (along @ along))
        return matrix

    def slope(self, x: np.ndarray, value: Callable[[float], np.ndarray | float]) -> np.ndarray:
        """d value(s)/ds at s = 0, over steps within which neither p nor u + s x moves far or leaves the domain."""
        limits = wide_steps(self.solution.overlaps, _WIDE if self.wide else _NARROW) * self.scales
        excess = float(np.max(np.abs(self.step * x) / limits))
        step = self.step / 2 ** max(0, int(np.ceil(np.log2(max(excess, 1.0)))))
        for _ in range(_SHORTER):
            with suppress(DomainError):
                return np.sum([weight * np.asarray(value(k * step)) for k, weight in self.stencil], axis=0) / step
            step /= 4
        raise DomainError("the solution is too close to the end of the domain")

    def along(self, rule: Rule, u: np.ndarray, x: np.ndarray) -> np.ndarray:
        """d G(u + s x; p + s)/ds = J x + dG/dp."""
        return self.slope(x, lambda s: self.image(self.direction.moved(s), rule, u + s * x))

    def answer(self, rule: Rule, u: np.ndarray, x: np.ndarray, hats: Conjugates) -> _Answer:
        overlaps = Overlaps.unpack(u, self.sizes)

        def loss(s: float) -> float:
            """At fixed overlaps and conjugates, where Phi is stationary."""
            there = self.direction.moved(s)
            return observables.losses(there, overlaps, hats, rule.averages(there, overlaps)).training_loss

        return _Answer(x, float(self.slope(np.zeros_like(x), loss)), self.test(u, x, _COARSE))

    def test(self, u: np.ndarray, x: np.ndarray, budget: float) -> float:
        """d(test error)/dp; nan without a metric."""
        if not self.solution.problem.solver.metric.HAS_METRIC:
            return np.nan
        size = observables.metric_size(self.solution.problem, budget)

        def error(s: float) -> float:
            there = Overlaps.unpack(u + s * x, self.sizes)
            return observables.average_metric(self.direction.moved(s), there, size)

        return float(self.slope(x, error))

    def baseline(self) -> float:
        if not self.solution.problem.solver.metric.HAS_BASELINE:
            return np.nan
        if self.direction.name == "alpha":
            return 0.0  # a layer that learns from no sample
        still = np.zeros_like(self.u)
        return float(self.slope(still, lambda s: observables.baseline_error(self.direction.moved(s))))

    def spread(self, noise: float) -> np.ndarray:
        """What an error of the map's slope, relative to its blocks, does to x at most, (n,)."""
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
        image = there.image(overlaps, there.averages(overlaps).moments.mean(axis=0))
        grown = np.abs(image - overlaps.pack())[own.frozen] / overlaps.block_scales[own.frozen]
        if np.all(grown < 1e-9):
            return own, True
    return Symmetry(None, kept, own.clusters), False


__all__ = ["Direction", "Sensitivities", "Sensitivity", "directions", "sensitivities", "sensitivity"]
