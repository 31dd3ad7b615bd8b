"""Fixed points of state evolution: what a Bayes-optimal learner knows of the teacher after n = alpha d samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import budget, presenting
from ..errors import NotConvergedError, TimeLimitError, require_in, require_known
from ..hints import AttributeHints
from ..integration.estimates import two_standard_errors
from ..problems.problem import Problem, check_is_problem
from ..progress import left, step
from .averages import Averages
from .linear import growth, radius
from .perfect import almost_everything, free_entropy_of_recovery, is_recovered
from .prediction import errors_by_metric, test_error
from .state import State

if TYPE_CHECKING:
    from ..solving.solution import Solution

STARTS = ("uninformed", "informed")
_PERFECT = 1e-7  # of the teacher's overlap that is left unknown from where on perfect recovery is a question
_ROUNDING = 1e-13  # of q, relative to rho*
_LIMIT = 1e-9  # tolerance of averages over rows that take few values where almost everything is known of them
_MOST_STEPS = 4000
_MOST_REFINED = 4
_SETTLED, _WELL_KNOWN = 0.5, 1e-3  # share of what was unknown where a rule was settled, below which it is settled again
_RATE, _DOUBT = 0.7, 0.3  # binary logarithm of the factor that a doubling of draws gains, and what is doubted of it


@dataclass(frozen=True)
class BayesSolution(AttributeHints):
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

    def to_json(self) -> dict[str, Any]:
        """The object that --json prints."""
        return presenting.to_json(self)


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
    alpha = problem.alpha
    state = State(problem, None if columns is None else [column - 1 for column in columns])
    whole = state.everything
    q = whole * (1 - 1e-3) if start == "informed" else state.nothing
    latest = _Latest(q)
    try:
        return _evolved(state, q, start, alpha, accuracy, latest)
    except TimeLimitError:
        unknown = np.full_like(latest.q, np.nan)
        with budget.overtime():
            return _result(state, latest.q, start, "time_limit", latest.gap, latest.steps, unknown)


@dataclass
class _Latest:
    """How far state evolution has come: overlaps, by how much the last step moved them, and how many it took."""

    q: np.ndarray
    gap: float = np.inf
    steps: int = 0


def _evolved(state: State, q: np.ndarray, start: str, alpha: float, accuracy: float, latest: _Latest) -> BayesSolution:
    """Return what `bayes_optimal` does, and note every step in `latest`.

    Raises:
        TimeLimitError: the time is used up.
    """
    whole = state.everything
    # Averages of fields that stay hidden are dear: their rules are asked no more than the half width will tell.
    tolerance, rough = (accuracy / 2, 0.01) if state.channel.dear else (accuracy / 10, max(accuracy / 10, 1e-6))
    reach = 2e-2 if state.channel.dear else 1e-3  # what a settled rule may move the solution of a rough one
    counts = list(state.channel.counts)
    if start == "uninformed" and state.uninformative:
        factor, direction = growth(state)
        if alpha * factor <= 1:
            return _nothing_learned(state, tolerance)
        q = _nudged(state, q, direction)
        if state.channel.dear:
            state.channel.counts = list(counts)  # where nothing is known a rule may be fine
    scale = float(np.abs(state.pack(whole)).max())
    settled_at = unknown = _left(state, q)
    state.settle(q, alpha, rough)
    state.check_held(q, alpha)
    steps, last, ratio, patience = 0, np.inf, 0.0, 0
    gap = np.inf
    while steps < _MOST_STEPS:
        latest.q, latest.gap, latest.steps = q, gap, steps
        budget.check()
        left(f"step {steps} of at most {_MOST_STEPS}, the last one moved by {last:.0e}, asked {tolerance:.0e}")
        steps += 1
        image = state.image(q, alpha)
        gap = float(np.abs(image - q).max()) / scale
        unknown = _left(state, image)
        if unknown < _PERFECT and unknown < 0.999 * _left(state, q):
            if is_recovered(state):
                return _perfect(state, image, gap, start, steps)
            if not state.prior.continuous_dimension:
                return _almost_perfect(state, start, steps)
        before, ratio = ratio, gap / max(last, 1e-300)
        last = gap
        q = image
        falling = (steps > 2 and ratio < 1) or gap < 1e-13
        share = _share(state, q)
        settled = abs(ratio - before) < 0.02 and steps > 4 and gap < 0.05 * (1 - ratio) * share
        if steps >= patience and falling and (settled or gap < tolerance * share * max(1 - ratio, 1e-3)):
            patience = int(1.5 * steps) + 1
            averages = state.channel.averages(q, curved=True) if _inside(state, q) else None
            polished = _newton(state, q, alpha, gap / max(1 - ratio, 1e-6) * scale, accuracy, averages)
            # From no information the overlap only grows: Newton may not fall back to an unstable q = 0.
            if polished is not None and (start == "informed" or state.share(polished) > 0.999 * state.share(q)):
                share = _share(state, polished)
                state.settle(polished, alpha, max(tolerance * share, _ROUNDING), averages)
                again = _newton(state, polished, alpha, reach * share * scale, accuracy, averages)
                if again is not None:
                    averages = state.channel.averages(again, curved=True)
                    away = _unstable(state, averages, alpha) if start == "uninformed" else None
                    if away is None:
                        return _finished(state, again, averages, start, steps, tolerance, accuracy)
                    q, last, patience = _nudged(state, again, away), np.inf, steps + 5
                    if state.channel.dear:
                        state.channel.counts = list(counts)
                    state.settle(q, alpha, rough)
        # What is known better asks for a finer rule; by one that is too rough all would seem to be known.
        least = _WELL_KNOWN if state.channel.dear else 0.0
        finer = not state.channel.by_fields and least < unknown < _SETTLED * settled_at
        if finer or steps % 50 == 0:
            settled_at = unknown
            state.settle(q, alpha, rough)
    return _result(state, q, start, "not_converged", gap, steps, np.full_like(q, np.nan))


def _nudged(state: State, q: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """q, and a little of a direction."""
    sizes = np.abs(np.diagonal(state.everything, axis1=1, axis2=2))
    return q + 1e-3 * direction / np.abs(direction).max() * sizes[sizes > 0].min()


def _unstable(state: State, averages: Averages, alpha: float) -> np.ndarray | None:
    """The direction in which a solution is left, (C, t, t), of positive trace; None where it is stable.

    Where a column is unknown by symmetry the solution lies on a set that the map keeps, and Newton finds it whether or
    not it is stable.

    Args:
        averages: at the solution, with their derivative in q.
    """
    matrix = state.jacobian(averages, alpha)
    values, vectors = np.linalg.eig(matrix)
    leading = int(np.argmax(values.real))
    if not values[leading].real > 1:
        return None
    direction = state.unpack(vectors[:, leading].real)
    trace = float(np.trace(direction.sum(axis=0)))
    return direction * (-1.0 if trace < 0 else 1.0)


def _left(state: State, q: np.ndarray) -> float:
    """Largest share of the teacher that is unknown: eigenvalues of rho*^{-1} (rho* - q), of what is learned."""
    block = np.ix_(range(len(q)), state.columns, state.columns)
    rho = state.rho[block]
    return float(np.max(np.abs(np.linalg.eigvals(np.linalg.solve(rho, rho - q[block])))))


def _share(state: State, q: np.ndarray) -> float:
    """Return the fraction of rho* that accuracies are relative to: what is unknown, where averages are cheap."""
    return 1.0 if state.channel.dear else min(_left(state, q), 1.0)


def _inside(state: State, q: np.ndarray) -> bool:
    """Whether 0 <= q < rho*, of the columns that are learned, roundings aside."""
    block = np.ix_(range(len(q)), state.columns, state.columns)
    scale = np.abs(state.rho).max()
    return bool(
        np.linalg.eigvalsh(q[block]).min() > -1e-4 * scale and np.linalg.eigvalsh((state.rho - q)[block]).min() > 0
    )


def _newton(
    state: State, q: np.ndarray, alpha: float, reach: float, accuracy: float, near: Averages | None = None
) -> np.ndarray | None:
    """Newton on the map's gap, then Broyden's method; None where it does not converge to a solution within `reach`.

    A solution that leaves less than half of what q leaves unknown is refused: q may be on its way to rho*.

    Args:
        near: averages with their derivative in q, there or close by, to begin with.
    """
    x = state.pack(q)
    scale = np.abs(state.pack(state.rho)).max()
    # A rough rule's average of derivatives is not quite the derivative of its averages, which Broyden's update learns.
    rest = accuracy / 30 if state.channel.dear else 1e-13
    move, value = np.zeros_like(x), np.zeros_like(x)
    matrix = None if near is None else state.jacobian(near, alpha) - np.eye(len(x))
    for _ in range(24):
        if not _inside(state, state.unpack(x)):
            return None
        budget.check()
        averages = state.channel.averages(state.unpack(x), curved=matrix is None)
        before, value = value, state.pack(state.reached(averages, alpha)) - x
        if np.abs(value).max() < 1e-14 * scale:
            break
        if matrix is None:
            matrix = state.jacobian(averages, alpha) - np.eye(len(x))
        elif move.any():
            matrix += np.outer(value - before - matrix @ move, move) / (move @ move)
        try:
            move = -np.linalg.solve(matrix, value)
        except np.linalg.LinAlgError:
            return None
        x = x + move
        if np.abs(move).max() < rest * scale:
            break
    else:
        return None
    found = state.unpack(x)
    close = np.abs(found - q).max() <= 3 * reach + 1e-9 * scale
    return found if close and _inside(state, found) and _left(state, found) > 0.5 * _left(state, q) else None


def _finished(
    state: State, q: np.ndarray, averages: Averages, start: str, steps: int, tolerance: float, accuracy: float
) -> BayesSolution:
    """With half widths from a finer rule on every axis, and rules refined until these are as asked; or from replicates.

    Args:
        averages: at q, with their derivative.
    """
    if state.channel.is_sampled(q):
        return _sampled(state, q, averages, start, steps, accuracy)
    alpha, scale = state.problem.alpha, float(np.abs(state.rho).max())
    best = None
    for refined in range(_MOST_REFINED):
        try:
            widths, phi_error = _half_widths(state, q, averages)
        except (NotConvergedError, np.linalg.LinAlgError):
            break
        residual = float(np.abs(state.reached(averages, alpha) - q).max()) / scale
        best = _result(state, q, start, "converged", residual, steps, widths, phi_error, averages)
        share = _share(state, q)
        asked = max(accuracy * share, 2 * _ROUNDING)
        if (worst := float(widths.max()) / scale) <= asked or refined == _MOST_REFINED - 1:
            break
        tolerance *= 0.3 * asked / worst
        left(f"error bar {worst:.1g}, asked {asked:.1g}")
        try:
            state.settle(q, alpha, max(tolerance * share, _ROUNDING), averages)
            finer = _newton(state, q, alpha, scale, accuracy, averages)
        except NotConvergedError:
            break
        if finer is None:
            break
        q, averages = finer, state.channel.averages(finer, curved=True)
    return best or _result(state, q, start, "not_converged", np.nan, steps, np.full_like(q, np.nan))


def _half_widths(state: State, q: np.ndarray, averages: Averages) -> tuple[np.ndarray, float]:
    """Twice what finer rules move a solution by, (C, t, t), and Phi."""
    gap, moved = _by_finer_rules(state, q, averages)
    widths = 2 * state.answer(gap, state.problem.alpha, averages)
    return widths + np.where(q == 0, 0.0, _ROUNDING * np.abs(state.rho).max()), 2 * moved


def _by_finer_rules(
    state: State, q: np.ndarray, averages: Averages, image: np.ndarray | None = None
) -> tuple[np.ndarray, float]:
    """Return the most that images of q by finer rules differ from one, else from q, and that Phi moves by."""
    alpha, gap, moved = state.problem.alpha, np.zeros_like(q), 0.0
    phi = state.free_entropy(q, alpha, averages)
    for factor in state.refinements:
        with state.finer(factor):
            finer = state.channel.averages(q)
            gap = np.maximum(gap, np.abs(state.reached(finer, alpha) - (q if image is None else image)))
            moved = max(moved, abs(state.free_entropy(q, alpha, finer) - phi))
    return gap, moved


def _sampled(state: State, q: np.ndarray, averages: Averages, start: str, steps: int, accuracy: float) -> BayesSolution:
    """With as many draws as bring half widths of q below the accuracy.

    Args:
        averages: at q, with their derivative.

    Raises:
        NotConvergedError: that would be too many.
    """
    alpha, scale = state.problem.alpha, float(np.abs(state.rho).max())
    planted = state.channel.planted
    while True:
        widths = state.spread(q, averages, alpha)
        worst = float(widths.max()) / scale
        if worst <= accuracy:
            residual = float(np.abs(state.reached(averages, alpha) - q).max()) / scale
            return _result(state, q, start, "converged", residual, steps, widths, averages=averages)
        further, most = max(1, int(np.ceil(np.log2(worst / accuracy) / _RATE))), planted.most_draws
        # Half widths of few draws are rough.
        if planted.log2 == most or planted.log2 + further > most + _DOUBT * (most - planted.log2):
            raise NotConvergedError(
                f"q of {state.problem.solver.name} is known to {worst:.1g} of the teacher from 2^{planted.log2} draws "
                f"a replicate; {accuracy:g} needs more than 2^{most}: ask for a larger --accuracy"
            )
        left(f"error bar {worst:.1g} from 2^{planted.log2} draws a replicate, asked {accuracy:g}")
        planted.log2 += min(further, 3, most - planted.log2)
        finer = _newton(state, q, alpha, scale, accuracy)
        if finer is None:
            return _result(state, q, start, "not_converged", np.nan, steps, np.full_like(q, np.nan))
        q, averages = finer, state.channel.averages(finer, curved=True)


def _nothing_learned(state: State, tolerance: float) -> BayesSolution:
    """q = 0, stable."""
    alpha, zero = state.problem.alpha, np.zeros_like(state.rho)
    state.settle(zero, alpha, tolerance)
    averages = state.channel.averages(zero, curved=True)
    phi_error = 2 * _by_finer_rules(state, zero, averages)[1]
    return _result(state, zero, "uninformed", "converged", 0.0, 0, zero, phi_error, averages)


def _perfect(state: State, q: np.ndarray, gap: float, start: str, steps: int) -> BayesSolution:
    """q = rho*, as far as state evolution has been followed."""
    whole, phi = state.everything, free_entropy_of_recovery(state)
    nothing = np.full_like(q, np.inf)
    return BayesSolution(
        state.problem, start, "perfect_recovery", whole, nothing, np.abs(whole - q), phi, 0.0, gap, steps,
        state.columns,
    )  # fmt: skip


def _almost_perfect(state: State, start: str, steps: int) -> BayesSolution:
    """Return the solution for rows that take few values of which a part like exp(-q^ / 2) stays unknown: q^ has
    its limit at q = rho* there."""
    alpha, found = state.problem.alpha, []
    for farther in (2.0, 1.0):
        near = almost_everything(state, farther)
        state.settle(near, alpha, 1e-6)
        averages = state.channel.averages(near, curved=True)
        state.prior.settle(state.hats(averages.outer, alpha), _LIMIT)
        found.append(averages)
    before, averages = found
    limit = replace(averages, outer=2 * averages.outer - before.outer)
    q, image, scale = state.reached(limit, alpha), state.reached(averages, alpha), np.abs(state.rho).max()
    by_rules, phi_moved = _by_finer_rules(state, near, averages, image)
    moved = np.abs(q - image) + by_rules
    best = _result(
        state, near, start, "converged", float(moved.max() / scale), steps, 2 * moved + _ROUNDING * scale,
        2 * phi_moved + abs(float(np.einsum("cij,cij->", limit.outer - averages.outer, state.rho - near))) * alpha,
        averages,
    )  # fmt: skip
    # Roundings aside q is below rho*.
    return replace(best, q=q / max(state.share(q), 1.0), q_hat=state.hats(limit.outer, alpha))


def _result(
    state: State, q: np.ndarray, start: str, status: str, residual: float, steps: int, widths: np.ndarray,
    phi_error: float = 0.0, averages: Averages | None = None,
) -> BayesSolution:  # fmt: skip
    alpha = state.problem.alpha
    found = status == "converged"
    averages = averages or state.channel.averages(q, curved=found)
    phi = state.free_entropy(q, alpha, averages)
    hats = state.hats(averages.outer, alpha)
    error = phi_error + 1e-14 * (1 + alpha * abs(averages.log_evidence))
    if averages.samples:
        values = [state.free_entropy(q, alpha, sample) for sample in averages.samples]
        error += float(two_standard_errors(np.array(values)))
    most = float("nan")
    if found:
        most = max(radius(state.jacobian(averages, alpha, outside)) for outside in (False, True))
    return BayesSolution(
        state.problem, start, status, q, hats, widths, phi, error, residual, steps, state.columns, most
    )
