"""Fixed points of state evolution: what a Bayes-optimal learner knows of the teacher after n = alpha d samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ...base import budget, presenting
from ...base.errors import NotConvergedError, TimeLimitError, require_in, require_known
from ...base.presenting import Result
from ...base.progress import left, step
from ...integration.estimates import two_standard_errors
from ...problems.problem import Problem, check_is_problem
from .averages import Averages
from .prediction import errors_by_metric, test_error
from .state_evolution import State, almost_everything, free_entropy_of_recovery, growth, is_recovered, radius

if TYPE_CHECKING:
    from ...solving.solution import Solution

STARTS = ("uninformed", "informed")
_PERFECT = 1e-7  # of the teacher's overlap that is left unknown from where on perfect recovery is a question
_ROUNDING = 1e-13  # of q, relative to rho*
_LIMIT = 1e-9  # tolerance of averages over rows that take few values where almost everything is known of them
_MOST_STEPS = 4000
_MOST_REFINED = 4
_SETTLED, _WELL_KNOWN = 0.5, 1e-3  # share of what was unknown where a rule was settled, below which it is settled again
_RATE, _DOUBT = 0.7, 0.3  # binary logarithm of the factor that a doubling of draws gains, and what is doubted of it


@dataclass(frozen=True)
class BayesSolution(Result):
    """A solution of state evolution.

    Attributes:
        start: "uninformed", from what the means tell (what an algorithm reaches), or "informed", from the teacher.
        status: "converged", "perfect_recovery" (q runs into rho*, and that is a stable solution), "not_converged" or
            "time_limit".
        q, q_hat, half_widths: (C, t, t); half widths of q from a finer rule and the residual.
        free_entropy, free_entropy_error: Phi, the log-evidence of the samples per d (nats).
        residual: undamped, relative to rho*; steps: of state evolution.
        columns: of the teacher, from 0 on, that anything was learned of; the others were held at nothing.
        growth: factor by which a small change of q, that of columns held at nothing among them, grows most in a step
            of state evolution: stable below 1; NaN where there is none, as at perfect recovery.

    Example:
        >>> best = sf.bayes_optimal(sf.problem("phase_retrieval", alpha=0.4))
        >>> best.status, best.growth < 1, float(abs(best.q).max()) < 1e-6
        ('converged', True, True)
    """

    problem: Problem
    start: str
    status: str
    q: np.ndarray
    q_hat: np.ndarray
    half_widths: np.ndarray
    free_entropy: float
    free_entropy_error: float
    residual: float
    steps: int
    columns: tuple[int, ...] = (0,)
    growth: float = float("nan")

    @property
    def success(self) -> bool:
        """Whether it is a solution: converged, or perfect recovery."""
        return self.status not in ("not_converged", "time_limit")

    @property
    def advice(self) -> str:
        """What to try where it is no solution."""
        if self.success:
            return ""
        return (
            f"{self.status.replace('_', ' ')} from {self.start}: residual {self.residual:.1e} after {self.steps} "
            "steps of state evolution; try an alpha farther from a threshold, or a larger --accuracy"
        )

    @property
    def test_error(self) -> float:
        """The least error of any learner; NaN where none is known (see `prediction`)."""
        return self._least[0]

    @property
    def test_error_error(self) -> float:
        """Its half width."""
        return self._least[1]

    @cached_property
    def _least(self) -> tuple[float, float]:
        """Of the best prediction that the model's error has, else of its first metric that is a squared distance."""
        found = test_error(self.problem, self.q, self.half_widths) if self.success else None
        return found or next(iter(self.errors.values()), (float("nan"), float("nan")))

    @cached_property
    def errors(self) -> dict[str, tuple[float, float]]:
        """Metric -> least error of any prediction of what it compares, and half width (`prediction.errors_by_metric`).

        Empty where no metric of the model is the square of a distance.
        """
        return errors_by_metric(self.problem, self.q, self.half_widths) if self.success else {}

    @cached_property
    def errors_unlearned(self) -> dict[str, tuple[float, float]]:
        """The same of a learner that knows the laws alone."""
        zero = np.zeros_like(self.q)
        return errors_by_metric(self.problem, zero, zero) if self.success else {}

    def cosine(self, context: int = 0, column: int = 0) -> float:
        """sqrt(q / rho*): overlap of the posterior mean with a teacher column."""
        known = self.q[context, column, column] / self.problem.law.rho_star[context, column, column]
        return float(np.sqrt(max(known, 0.0)))

    def table(self, erm: Solution | None = None) -> str:
        """What `saddleforge bayes` prints; beside an empirical risk minimiser if one is given."""
        return presenting.table(self, erm)


def erm_cosine(erm: Solution, context: int = 0, column: int = 0) -> float:
    """theta / sqrt(q rho*) of a column of the teacher and the student's of the same number, or its first where it has
    fewer: overlap of the minimiser with the teacher."""
    o = erm.overlaps
    own = min(column, o.q.shape[1] - 1)
    if not o.q[context, own, own] > 0:
        return float("nan")  # W = 0
    rho = erm.problem.law.rho_star[context, column, column]
    return float(o.theta[context, own, column] / np.sqrt(o.q[context, own, own] * rho))


@step("state evolution of Bayes-optimal inference")
def bayes_optimal(
    problem: Problem, start: str = "uninformed", *, accuracy: float = 1e-6, columns: Sequence[int] | None = None
) -> BayesSolution:
    """The solution that state evolution reaches.

    Args:
        start: "uninformed" or "informed".
        accuracy: error bar asked of q, relative to rho*, or to what is unknown of it where averages take little.
        columns: of the teacher, from 1 on, that anything is learned of, the others being held at nothing; None for all.

    Raises:
        InputError: the model has no output channel, or an unknown start, or columns that cannot be held so.
        NotConvergedError: the averages cannot be taken to the accuracy.

    Example:
        >>> problem = sf.problem("ridge_regression", alpha=2, Delta=0.25)
        >>> best, tuned = sf.bayes_optimal(problem), sf.tune(problem, "lambda", bracket=(0.01, 1))
        >>> abs(best.test_error - tuned.observed) < 1e-5
        True
    """
    check_is_problem(problem)
    require_known("start", start, STARTS)
    require_in("accuracy", accuracy, "[1e-12, 1)")
    state = State(problem, None if columns is None else [column - 1 for column in columns])
    evolution = _Evolution(state, start, accuracy)
    try:
        return evolution.followed()
    except TimeLimitError:
        with budget.overtime():
            return evolution.result("time_limit", evolution.q, evolution.gap)


class _Evolution:
    """State evolution from a start: overlaps, by how much the last step moved them, and how many steps it took."""

    def __init__(self, state: State, start: str, accuracy: float) -> None:
        self.state, self.start, self.accuracy, self.alpha = state, start, accuracy, state.problem.alpha
        self.scale = float(np.abs(state.pack(state.rho)).max())
        self.counts, self.dear = list(state.channel.counts), state.channel.dear
        # Averages of fields that stay hidden are dear: their rules are asked no more than the half width will tell.
        self.tolerance, self.rough = (accuracy / 2, 0.01) if self.dear else (accuracy / 10, max(accuracy / 10, 1e-6))
        self.q = state.everything * (1 - 1e-3) if start == "informed" else state.nothing
        self.gap, self.steps = np.inf, 0

    def followed(self) -> BayesSolution:
        """Return the solution that it reaches.

        Raises:
            TimeLimitError: the time is used up.
        """
        state, alpha = self.state, self.alpha
        reach = 2e-2 if self.dear else 1e-3  # what a settled rule may move the solution of a rough one
        if self.start == "uninformed" and state.uninformative:
            factor, direction = growth(state)
            if alpha * factor <= 1:
                return self._nothing_learned()
            self._leave(self.q, direction)
        settled_at = self._unknown(self.q)
        state.settle(self.q, alpha, self.rough)
        state.check_held(self.q, alpha)
        last, ratio, patience = np.inf, 0.0, 0
        while self.steps < _MOST_STEPS:
            budget.check()
            asked = f"the last one moved by {last:.0e}, asked {self.tolerance:.0e}"
            left(f"step {self.steps} of at most {_MOST_STEPS}, {asked}")
            image = state.image(self.q, alpha)
            self.steps += 1
            self.gap = gap = float(np.abs(image - self.q).max()) / self.scale
            before, self.q = self.q, image
            unknown = self._unknown(image)
            if unknown < _PERFECT and unknown < 0.999 * self._unknown(before):
                if is_recovered(state):
                    return self._perfect()
                if not state.prior.continuous_dimension:
                    return self._almost_perfect()
            last_ratio, ratio, last = ratio, gap / max(last, 1e-300), gap
            falling = (self.steps > 2 and ratio < 1) or gap < 1e-13
            share = self._share(image)
            settled = abs(ratio - last_ratio) < 0.02 and self.steps > 4 and gap < 0.05 * (1 - ratio) * share
            close = settled or gap < self.tolerance * share * max(1 - ratio, 1e-3)
            if self.steps >= patience and falling and close:
                patience = int(1.5 * self.steps) + 1
                averages = state.channel.averages(image, curved=True) if self._is_inside(image) else None
                polished = self._newton(image, gap / max(1 - ratio, 1e-6) * self.scale, averages)
                # From no information the overlap only grows: Newton may not fall back to an unstable q = 0.
                kept = self.start == "informed"
                if polished is not None and (kept or state.share(polished) > 0.999 * state.share(image)):
                    share = self._share(polished)
                    state.settle(polished, alpha, max(self.tolerance * share, _ROUNDING), averages)
                    again = self._newton(polished, reach * share * self.scale, averages)
                    if again is not None:
                        averages = state.channel.averages(again, curved=True)
                        away = None if kept else self._unstable_direction(averages)
                        if away is None:
                            return self._finished(again, averages)
                        self._leave(again, away)
                        last, patience = np.inf, self.steps + 5
                        state.settle(self.q, alpha, self.rough)
            # What is known better asks for a finer rule; by one that is too rough all would seem to be known.
            least = _WELL_KNOWN if self.dear else 0.0
            finer = not state.channel.by_fields and least < unknown < _SETTLED * settled_at
            if finer or self.steps % 50 == 0:
                settled_at = unknown
                state.settle(self.q, alpha, self.rough)
        return self.result("not_converged", self.q, self.gap)

    def _leave(self, q: np.ndarray, direction: np.ndarray) -> None:
        """Go on from q and a little of a direction."""
        sizes = np.abs(np.diagonal(self.state.everything, axis1=1, axis2=2))
        self.q = q + 1e-3 * direction / np.abs(direction).max() * sizes[sizes > 0].min()
        if self.dear:
            self.state.channel.counts = list(self.counts)  # where nothing is known a rule may be fine

    def _unstable_direction(self, averages: Averages) -> np.ndarray | None:
        """The direction in which a solution is left, (C, t, t), of positive trace; None where it is stable.

        Where a column is unknown by symmetry the solution lies on a set that the map keeps, and Newton finds it whether
        or not it is stable.

        Args:
            averages: at the solution, with their derivative in q.
        """
        values, vectors = np.linalg.eig(self.state.jacobian(averages, self.alpha))
        leading = int(np.argmax(values.real))
        if not values[leading].real > 1:
            return None
        direction = self.state.unpack(vectors[:, leading].real)
        return direction * (-1.0 if np.trace(direction.sum(axis=0)) < 0 else 1.0)

    def _learned(self, q: np.ndarray) -> np.ndarray:
        """The part of overlaps of the columns that are learned."""
        return q[np.ix_(range(len(q)), self.state.columns, self.state.columns)]

    def _unknown(self, q: np.ndarray) -> float:
        """Largest share of the teacher that is unknown: eigenvalues of rho*^{-1} (rho* - q), of what is learned."""
        rho = self._learned(self.state.rho)
        return radius(np.linalg.solve(rho, rho - self._learned(q)))

    def _share(self, q: np.ndarray) -> float:
        """Return the fraction of rho* that accuracies are relative to: what is unknown, where averages are cheap."""
        return 1.0 if self.dear else min(self._unknown(q), 1.0)

    def _is_inside(self, q: np.ndarray) -> bool:
        """Whether 0 <= q < rho*, of the columns that are learned, roundings aside."""
        least = np.linalg.eigvalsh(self._learned(q)).min()
        above = np.linalg.eigvalsh(self._learned(self.state.rho - q)).min()
        return bool(least > -1e-4 * np.abs(self.state.rho).max() and above > 0)

    def _newton(self, q: np.ndarray, reach: float, near: Averages | None = None) -> np.ndarray | None:
        """Newton on the map's gap, then Broyden's method; None where it does not converge to a solution within `reach`.

        A solution that leaves less than half of what q leaves unknown is refused: q may be on its way to rho*.

        Args:
            near: averages with their derivative in q, there or close by, to begin with.
        """
        state, x = self.state, self.state.pack(q)
        # A rough rule's average of derivatives is not quite the derivative of its averages, which Broyden's update
        # learns.
        rest = self.accuracy / 30 if self.dear else 1e-13
        move, value = np.zeros_like(x), np.zeros_like(x)
        matrix = None if near is None else state.jacobian(near, self.alpha) - np.eye(len(x))
        for _ in range(24):
            if not self._is_inside(state.unpack(x)):
                return None
            budget.check()
            averages = state.channel.averages(state.unpack(x), curved=matrix is None)
            before, value = value, state.pack(state.reached(averages, self.alpha)) - x
            if np.abs(value).max() < 1e-14 * self.scale:
                break
            if matrix is None:
                matrix = state.jacobian(averages, self.alpha) - np.eye(len(x))
            elif move.any():
                matrix += np.outer(value - before - matrix @ move, move) / (move @ move)
            try:
                move = -np.linalg.solve(matrix, value)
            except np.linalg.LinAlgError:
                return None
            x = x + move
            if np.abs(move).max() < rest * self.scale:
                break
        else:
            return None
        found = state.unpack(x)
        close = np.abs(found - q).max() <= 3 * reach + 1e-9 * self.scale
        kept = close and self._is_inside(found) and self._unknown(found) > 0.5 * self._unknown(q)
        return found if kept else None

    def _residual(self, q: np.ndarray, averages: Averages) -> float:
        gap = self.state.reached(averages, self.alpha) - q
        return float(np.abs(gap).max()) / float(np.abs(self.state.rho).max())

    def _finished(self, q: np.ndarray, averages: Averages) -> BayesSolution:
        """With half widths from a finer rule on every axis, and rules refined until these are as asked; or from
        replicates.

        Args:
            averages: at q, with their derivative.
        """
        state, scale, tolerance = self.state, float(np.abs(self.state.rho).max()), self.tolerance
        if state.channel.is_sampled(q):
            return self._sampled(q, averages)
        best = None
        for refined in range(_MOST_REFINED):
            try:
                # Twice what finer rules move the solution by, and Phi.
                gap, moved = self._by_finer_rules(q, averages)
                widths = 2 * state.answer(gap, self.alpha, averages) + np.where(q == 0, 0.0, _ROUNDING * scale)
            except (NotConvergedError, np.linalg.LinAlgError):
                break
            best = self.result("converged", q, self._residual(q, averages), widths, 2 * moved, averages)
            share = self._share(q)
            asked = max(self.accuracy * share, 2 * _ROUNDING)
            if (worst := float(widths.max()) / scale) <= asked or refined == _MOST_REFINED - 1:
                break
            tolerance *= 0.3 * asked / worst
            left(f"error bar {worst:.1g}, asked {asked:.1g}")
            try:
                state.settle(q, self.alpha, max(tolerance * share, _ROUNDING), averages)
                finer = self._newton(q, scale, averages)
            except NotConvergedError:
                break
            if finer is None:
                break
            q, averages = finer, state.channel.averages(finer, curved=True)
        return best or self.result("not_converged", q, np.nan)

    def _by_finer_rules(
        self, q: np.ndarray, averages: Averages, image: np.ndarray | None = None
    ) -> tuple[np.ndarray, float]:
        """Return the most that images of q by finer rules differ from one, else from q, and that Phi moves by."""
        state, alpha = self.state, self.alpha

        def evaluate() -> tuple[np.ndarray, float]:
            finer = state.channel.averages(q)
            return state.reached(finer, alpha), state.free_entropy(q, alpha, finer)

        phi = state.free_entropy(q, alpha, averages)
        images, values = zip(*state.by_finer_rules(evaluate), strict=True)
        gap = np.abs(np.array(images) - (q if image is None else image)).max(axis=0)
        return gap, max(abs(value - phi) for value in values)

    def _sampled(self, q: np.ndarray, averages: Averages) -> BayesSolution:
        """With as many draws as bring half widths of q below the accuracy.

        Args:
            averages: at q, with their derivative.

        Raises:
            NotConvergedError: that would be too many.
        """
        state, scale = self.state, float(np.abs(self.state.rho).max())
        planted = state.channel.planted
        while True:
            widths = state.spread(q, averages, self.alpha)
            worst = float(widths.max()) / scale
            if worst <= self.accuracy:
                return self.result("converged", q, self._residual(q, averages), widths, averages=averages)
            further = max(1, int(np.ceil(np.log2(worst / self.accuracy) / _RATE)))
            most = planted.most_draws
            # Half widths of few draws are rough.
            if planted.log2 == most or planted.log2 + further > most + _DOUBT * (most - planted.log2):
                raise NotConvergedError(
                    f"q of {state.problem.solver.name} is known to {worst:.1g} of the teacher from 2^{planted.log2} "
                    f"draws a replicate; {self.accuracy:g} needs more than 2^{most}: ask for a larger --accuracy"
                )
            left(f"error bar {worst:.1g} from 2^{planted.log2} draws a replicate, asked {self.accuracy:g}")
            planted.log2 += min(further, 3, most - planted.log2)
            finer = self._newton(q, scale)
            if finer is None:
                return self.result("not_converged", q, np.nan)
            q, averages = finer, state.channel.averages(finer, curved=True)

    def _nothing_learned(self) -> BayesSolution:
        """q = 0, stable."""
        zero = np.zeros_like(self.state.rho)
        self.state.settle(zero, self.alpha, self.tolerance)
        averages = self.state.channel.averages(zero, curved=True)
        phi_error = 2 * self._by_finer_rules(zero, averages)[1]
        return self.result("converged", zero, 0.0, zero, phi_error, averages)

    def _perfect(self) -> BayesSolution:
        """q = rho*, as far as state evolution has been followed."""
        whole, phi = self.state.everything, free_entropy_of_recovery(self.state)
        return BayesSolution(
            self.state.problem, self.start, "perfect_recovery", whole, np.full_like(whole, np.inf),
            np.abs(whole - self.q), phi, 0.0, self.gap, self.steps, self.state.columns,
        )  # fmt: skip

    def _almost_perfect(self) -> BayesSolution:
        """Return the solution for rows that take few values of which a part like exp(-q^ / 2) stays unknown: q^ has
        its limit at q = rho* there."""
        state, alpha, found = self.state, self.alpha, []
        for farther in (2.0, 1.0):
            near = almost_everything(state, farther)
            state.settle(near, alpha, 1e-6)
            averages = state.channel.averages(near, curved=True)
            state.prior.settle(alpha * averages.outer, _LIMIT)
            found.append(averages)
        before, averages = found
        limit = replace(averages, outer=2 * averages.outer - before.outer)
        q, image, scale = state.reached(limit, alpha), state.reached(averages, alpha), np.abs(state.rho).max()
        by_rules, phi_moved = self._by_finer_rules(near, averages, image)
        moved = np.abs(q - image) + by_rules
        beyond = abs(float(np.einsum("cij,cij->", limit.outer - averages.outer, state.rho - near))) * alpha
        widths = 2 * moved + _ROUNDING * scale
        best = self.result("converged", near, float(moved.max() / scale), widths, 2 * phi_moved + beyond, averages)
        # Roundings aside q is below rho*.
        return replace(best, q=q / max(state.share(q), 1.0), q_hat=alpha * limit.outer)

    def result(
        self, status: str, q: np.ndarray, residual: float, widths: np.ndarray | None = None, phi_error: float = 0.0,
        averages: Averages | None = None,
    ) -> BayesSolution:  # fmt: skip
        """Return overlaps as a solution of some status, with half widths where there are any."""
        state, alpha, found = self.state, self.alpha, status == "converged"
        averages = averages or state.channel.averages(q, curved=found)
        error = phi_error + 1e-14 * (1 + alpha * abs(averages.log_evidence))
        if averages.samples:
            values = [state.free_entropy(q, alpha, sample) for sample in averages.samples]
            error += float(two_standard_errors(np.array(values)))
        most = float("nan")
        if found:
            most = max(radius(state.jacobian(averages, alpha, outside)) for outside in (False, True))
        return BayesSolution(
            state.problem, self.start, status, q, alpha * averages.outer,
            np.full_like(q, np.nan) if widths is None else widths, state.free_entropy(q, alpha, averages), error,
            residual, self.steps, state.columns, most,
        )  # fmt: skip
