"""Where two branches have equal training loss, replica symmetric or with one or two steps of breaking."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..branches.branch import Branch
from ..breaking.curve import BrokenBranch
from ..breaking.deeper import deepened
from ..breaking.solution import BrokenSolution
from ..breaking.solve import checked_steps
from ..errors import InputError, NotConvergedError, TimeLimitError
from ..problems.problem import Problem, check_is_problem
from ..progress import bar
from ..saddle_point.iteration import Status
from .locating import Evaluation, symmetric_crossing
from .search import Search
from .threshold import Threshold

_EVALUATIONS = 8  # of both energies
_OVERLAPS, _FINEST = 1e-3, 1e-5  # accuracy of the overlaps, at first and at last
_FINER = 5.0  # from one to the next
_ENOUGH = 0.1  # of the accuracy, which the last step may take


def crossing(
    problem: Problem,
    parameter: str = "alpha",
    *,
    between: tuple[str, str],
    bracket: tuple[float, float] | None = None,
    accuracy: float = 1e-3,
    seed: int = 0,
    rsb: int = 0,
    branches: tuple[Branch, Branch] | None = None,
    verify: bool | None = None,
) -> Threshold:
    """Where two branches have equal training loss: a first-order transition.

    Args:
        between: names of the branches.
        bracket: interval to search; default [0.1, 2.5] for alpha.
        accuracy: half width asked for; seed: of the scramblings.
        rsb: 0 for replica symmetry; 1 for the energies of one step of breaking it, as of `solve`, by secants that begin
            at the replica symmetric crossing; 2 for those of two, by what the second moves them there.
        branches: replica symmetric followers to reuse, with the solutions they already know.
        verify: compare with a rule of another family; by default where the accuracy is below 1e-6, and never with
            rsb > 0.

    Raises:
        InputError: unknown names, or with rsb > 0 a model that is out of its reach or a second rule asked for.
        NotConvergedError: no sign change of the difference where both branches exist.

    Example:
        >>> problem = sf.problem("dot_product_attention", omega=0.3)
        >>> found = sf.crossing(problem, between=("semantic", "positional"), bracket=(1, 1.5), accuracy=1e-2)
        >>> round(found.value, 2), found.success
        (1.25, True)
    """
    check_is_problem(problem)
    if rsb != 0:
        checked_steps(rsb, problem, along=True)
        if verify:
            raise InputError("verify = True goes with rsb = 0: steps of breaking have no second family of rules")
    one, other = branches or (Branch(problem, parameter, name, seed=seed) for name in between)
    search = Search("crossing", problem, parameter, tuple(between), bracket, accuracy, verify)
    symmetric = symmetric_crossing(search, one, other)
    if rsb == 0:
        return symmetric
    followers = [BrokenBranch(problem, parameter, f.name, f.at, _OVERLAPS, seed) for f in (one, other)]
    once = _Secants(symmetric, (followers[0], followers[1]), accuracy).located()
    return once if rsb == 1 else _moved(once, accuracy)


def _moved(once: Threshold, accuracy: float) -> Threshold:
    """The crossing of two steps, from what the second moves the energies by where those of one step were compared.

    Raises:
        NotConvergedError: a second step is looked for and lost.
        TimeLimitError: the time limit came first.
    """
    slope, pair = float(once.evidence["slope"]), []
    with bar("crossing, two steps of breaking", len(once.broken)) as task:
        for solution in once.broken:
            task.describe(f"crossing, two steps of breaking, {solution.branch}")
            found = deepened(solution, _OVERLAPS)
            if found.status is Status.TIME_LIMIT:
                raise TimeLimitError("the time limit ended the search for a second step")
            if found.steps == 1 and not found.success:
                why = found.found or f"one step of breaking: {found.status.words}"
                raise NotConvergedError(f"crossing: on the {solution.branch} branch {why}")
            pair.append(found)
            task.advance()
    # None moves where there is no second step.
    moves = [found.energy_moved_further if found.steps == 2 else (0.0, 0.0) for found in pair]
    moved = -(moves[0][0] - moves[1][0]) / slope
    further = sum(width for _, width in moves) / abs(slope)
    error = once.error + further
    return replace(
        once,
        value=once.value + moved,
        error=error,
        status="converged" if error <= accuracy else "accuracy_not_reached",
        broken=tuple(pair),
        evidence={
            **once.evidence,
            "rsb": 2,
            "half_width_second_step": further,
            "energies_moved_further": [list(move) for move in moves],
            "integrators": [found.rule.describe() for found in pair],
            "found": [found.found or ("two steps of breaking" if found.steps == 2 else "one step") for found in pair],
            "residuals": [found.residual for found in pair],
            "one_step": {"value": once.value, "error": once.error},
        },
    )


@dataclass
class _Secants:
    """Steps to equal energies from the replica symmetric crossing, whose slope serves until two values give another.

    Attributes:
        doubt: of the slope, relative: what the last evaluation has changed of it.
    """

    symmetric: Threshold
    followers: tuple[BrokenBranch, BrokenBranch]
    accuracy: float
    doubt: float = 1.0
    seen: list[Evaluation] = field(default_factory=list)

    def located(self) -> Threshold:
        """The crossing.

        Raises:
            NotConvergedError: a branch is lost, or the steps come to no end.
            TimeLimitError: the time limit came first.
        """
        value, slope = self.symmetric.value, float(self.symmetric.evidence["slope"])
        with bar("crossing, one step of breaking", _EVALUATIONS) as task:
            for _ in range(_EVALUATIONS):
                here = self._compared(value, slope)
                task.advance(f"crossing, one step of breaking, {self.symmetric.parameter} = {value:.4g}")
                slope = self._slope(here, slope)
                self.seen.append(here)
                step = -here.difference / slope
                value = here.value + step
                if self.doubt * abs(step) <= max(_ENOUGH * self.accuracy, here.error / abs(slope)):
                    return self._threshold(here, value, slope, self.doubt * abs(step))
        raise NotConvergedError(
            f"crossing: {_EVALUATIONS} secant steps did not converge; the last led from {here.value:.6g} to {value:.6g}"
        )

    def _slope(self, here: Evaluation, slope: float) -> float:
        """From the last two values, where the difference has changed by more than its half widths."""
        if not self.seen:
            return slope
        before = self.seen[-1]
        change, errors = here.difference - before.difference, here.error + before.error
        if here.value == before.value or abs(change) <= errors:
            return slope
        secant = change / (here.value - before.value)
        # Noise of both differences is a doubt as much as what the slope has changed by.
        self.doubt = min(1.0, 2 * abs(secant - slope) / abs(secant) + errors / abs(change))
        return secant

    def _compared(self, value: float, slope: float) -> Evaluation:
        """Both branches at a value, solved as finely as the accuracy of the crossing asks for and is to be had."""
        first, second = (self._energy(follower, value, 0.3 * self.accuracy * abs(slope)) for follower in self.followers)
        error = first.energy_error + second.energy_error
        return Evaluation(value, first.energy - second.energy, error, 0.0, None, (first, second))

    def _energy(self, follower: BrokenBranch, value: float, tolerance: float) -> BrokenSolution:
        found = follower.at(value)
        while found is not None and found.energy_error > tolerance and follower.accuracy > _FINEST:
            follower.accuracy /= _FINER
            found = follower.refined(found)
        if found is None or found.status is Status.MAX_ITERATIONS:
            why = "was not found" if found is None else found.found or "did not converge"
            raise NotConvergedError(
                f"crossing: with one step of breaking the {follower.start} branch {why} at "
                f"{follower.parameter} = {value:.6g}"
            )
        return found

    def _threshold(self, best: Evaluation, value: float, slope: float, root: float) -> Threshold:
        integration = best.error / abs(slope)
        error = integration + root
        return Threshold(
            kind="crossing",
            parameter=self.symmetric.parameter,
            value=value,
            error=error,
            error_kind="estimated",
            status="converged" if error <= self.accuracy else "accuracy_not_reached",
            branches=self.symmetric.branches,
            problem=self.symmetric.problem,
            solutions=tuple(solution.symmetric for solution in best.solutions),
            broken=best.solutions,
            evidence={
                "rsb": 1,
                "slope": slope,
                "evaluated_at": best.value,
                "difference": best.difference,
                "half_width_integration": integration,
                "half_width_root": root,
                "visited": [[one.value, one.difference, one.error] for one in self.seen],
                "energies": [[s.energy, s.energy_error] for s in best.solutions],
                "integrators": [s.rule.describe() for s in best.solutions],
                "found": [s.found or "one step of breaking" for s in best.solutions],
                "residuals": [s.residual for s in best.solutions],
                "symmetric": {"value": self.symmetric.value, "error": self.symmetric.error},
            },
        )
