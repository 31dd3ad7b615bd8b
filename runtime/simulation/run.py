"""One seed: draw an instance, start, descend or pass messages, measure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..channel.search import searched
from ..descent.schedule import batch_of, schedule_of
from ..descent.state import start_of
from ..errors import DomainError, InputError, require_in, require_known, require_whole
from ..problems.overlaps import Overlaps
from ..problems.problem import Problem
from ..saddle_point import observables
from ..saddle_point.starts import start_mixture
from .augmented import gradient_of, has_corners, refuse_weak_ridge
from .controls import Controls, controls_of
from .gamp import DAMPING, INERTIA, contraction, gamp
from .held import entries, without
from .instance import DEFAULT_MEMORY, STARTS, Instance, stream
from .kinds import kind_of
from .minimisers import METHODS, Descent, Minimum, gradient_norm
from .online import one_pass, record_times, weights_with
from .orientation import oriented
from .risk import Risk, Weights, on_sphere, overlaps_of, refuse_own
from .wells import Polish, polished

RANDOM = "random"
WELLS = "wells"
NEWTON, GAMP, SGD = "newton", "gamp", "sgd"
_HOLDING = ("lbfgs", "gd", "adam")
_KEEPING = (*_HOLDING, NEWTON)
_MOST = {"descent": 20000, GAMP: 1000}
_METRIC_ERROR = 1e-3
_BESIDE_ZERO = 1e-3  # of the size of the start


@dataclass(frozen=True)
class Plan:
    """What every seed of a simulation does.

    Attributes:
        start: a named start of the model, or `random`: W standard normal; of sgd also overlaps, as `q=0.1,theta=0.05`.
        method: lbfgs, gd, adam, fista, newton or gamp; or sgd, one pass through the data.
        tolerance: of the gradient norm (of the relative step, for gamp).
        most: iterations, by default 20000, or 1000 of gamp.
        rate: step size of gd or adam in their units, learning rate of sgd (also a text as of `dynamics`); inertia,
            damping: of gamp.
        exact: whether the teacher's and the means' Gram matrix is that of the law exactly (`instance.coordinates`).
        memory: bytes of data a seed may hold.
        polish: `wells` moves samples out of wrong wells of their own objectives (`wells.polished`); None ends where the
            method does.
        project: name of overlaps that are held at zero, as theta (`held.entries`); None lets all of them be.
        controls: whether means are taken with control variates (`controls`).
        batch: of sgd, sentences of a step, or a share of d as 0.5d.
        restarts: how often polishing begins anew from its lowest minimum so far, with a few samples moved.
    """

    problem: Problem
    d: int
    start: str
    method: str
    tolerance: float = 1e-6
    most: int | None = None
    rate: float | str | None = None
    inertia: float = INERTIA
    damping: float = DAMPING
    exact: bool = True
    memory: float = DEFAULT_MEMORY
    polish: str | None = None
    restarts: int = 0
    project: str | None = None
    controls: bool = False
    batch: str = "1"

    @property
    def end(self) -> float:
        """When a pass through the data ends: in steps over d, or steps where batches are of order d."""
        share = batch_of(self.batch).share
        sentences = batch_of(self.batch).sentences
        return float(int(self.problem.alpha / share + 1e-9)) if share is not None else self.problem.alpha / sentences

    @property
    def times(self) -> np.ndarray:
        """At which a pass keeps its overlaps."""
        return record_times(self.end, whole=batch_of(self.batch).share is not None)


@dataclass(frozen=True)
class Run:
    """Where one seed ended.

    Attributes:
        overlaps: in their canonical image (`orientation`), V nan but for gamp.
        data, penalty: parts of the training loss per d; nan of sgd, which sees a sentence once.
        test_error: exactly that of these overlaps on new data; nan without a metric.
        multipliers: strengths (s,) of the ridge that keeps given norms; None of any other regulariser.
        gradient: norm of the risk's gradient, root mean square over the weights.
        late, contraction: gamp: squared distance of late iterates, and where it converged the measured replicon
            (`gamp.contraction`); nan otherwise.
        path: packed overlaps, (times, n), not oriented: of gamp before the first iteration and after each, of sgd at
            `online.record_times`; None otherwise, and of gamp where the run was read from a file.
        polish: what polishing did; None where it was not asked for, or the descent before it did not converge.
        controls: averages over the data that are known to vanish; None where they were not asked for.
    """

    seed: int
    overlaps: Overlaps
    data: float
    penalty: float
    test_error: float
    gradient: float
    iterations: int
    status: str
    late: float = np.nan
    contraction: float = np.nan
    multipliers: np.ndarray | None = None
    path: np.ndarray | None = None
    polish: Polish | None = None
    controls: Controls | None = None

    @property
    def training_loss(self) -> float:
        """Per d."""
        return self.data + self.penalty


def begin(plan: Plan, instance: Instance) -> tuple[Weights, np.ndarray]:
    """Weights of the start, independent of the data, and the V (C, s, s) that theory begins from.

    Columns whose norms are given have these.
    """
    problem, known = plan.problem, instance.coordinates
    s, d = problem.student_rank, plan.d
    noise = stream(instance.seed, STARTS).standard_normal((d, s))
    phi = np.array([float(number["start"]) for number in problem.trained])
    if plan.start == RANDOM:
        W, susceptibility = noise, 20.0
    else:
        mix, deviation, susceptibility = start_mixture(problem, plan.start)
        W = np.concatenate([known.tau, known.pi], axis=1) @ mix.T + deviation * noise
    weights = on_sphere(problem, Weights(np.ascontiguousarray(W), phi))
    return weights, susceptibility * problem.law.rho[:, None, None] * np.eye(s)


def run(plan: Plan, seed: int) -> Run:
    """Do one seed.

    Raises:
        InputError: the method does not fit the model, or d is too small.
    """
    problem = plan.problem
    instance = Instance(problem, plan.d, seed, plan.exact, plan.memory)
    if plan.method == SGD:
        return _passed(plan, instance)
    start, V = begin(plan, instance)
    late, replicon, path, polish = np.nan, np.nan, None, None
    if plan.method == GAMP:
        at = searched(problem, overlaps_of(instance, start, V))
        trajectory = gamp(
            replace(instance, problem=at),
            start,
            V,
            iterations=plan.most or _MOST[GAMP],
            tolerance=plan.tolerance,
            inertia=plan.inertia,
            damping=plan.damping,
        )
        weights, V_end, late, status = trajectory.weights, trajectory.V, trajectory.late, trajectory.status
        iterations, path = len(trajectory.steps), np.array([o.pack() for o in trajectory.overlaps])
        if status == "converged":
            replicon = contraction(replace(instance, problem=at), trajectory)
        value = Risk(instance)(weights)
        slope = value.gradient
        if has_corners(problem) and problem.has_ridge:
            slope = Weights(gradient_of(instance, weights.W, -trajectory.g), slope.phi)
        gradient = gradient_norm(slope)
    else:
        rate = None if plan.rate is None else float(plan.rate)
        risk, how = Risk(instance, plan.project), Descent(plan.tolerance, plan.most or _MOST["descent"], rate)

        def descend(weights: Weights) -> Minimum:
            return METHODS[plan.method](risk, weights, how)

        def kind(weights: Weights) -> str:
            return kind_of(problem, plan.d, overlaps_of(instance, weights))

        found = descend(start)
        if plan.polish == WELLS and found.status == "converged":
            found, polish = polished(risk, found, descend, kind, plan.restarts)
        weights, value, status, iterations = found.weights, found.value, found.status, found.iterations
        if status == "stalled" and _is_beside_zero(risk, start, found):
            status = "collapsed"
        V_end, gradient = None, found.gradient
    overlaps = without(problem, overlaps_of(instance, weights, V_end), plan.project)
    return Run(
        seed=seed,
        overlaps=oriented(problem, overlaps),
        data=value.data,
        penalty=value.penalty,
        test_error=_test_error(instance, overlaps),
        gradient=gradient,
        iterations=iterations,
        status=status,
        late=late,
        contraction=replicon,
        multipliers=value.multipliers,
        path=path,
        polish=polish,
        controls=controls_of(instance, plan.start) if plan.controls else None,
    )


def _passed(plan: Plan, instance: Instance) -> Run:
    """One pass through the data."""
    problem = plan.problem
    begin = weights_with(instance, start_of(problem, plan.start)[1])
    found = one_pass(instance, begin, schedule_of(plan.rate or 0.0), batch_of(plan.batch), plan.times)
    overlaps = overlaps_of(instance, found.weights)
    return Run(
        seed=instance.seed,
        overlaps=oriented(problem, overlaps),
        data=np.nan,
        penalty=np.nan,
        test_error=_test_error(instance, overlaps),
        gradient=np.nan,
        iterations=found.steps,
        status=found.status,
        path=found.path,
    )


def _is_beside_zero(risk: Risk, start: Weights, minimum: Minimum) -> bool:
    """Whether what stalls does so beside W = 0, as low as that: a loss that holds |W| has a corner there."""
    nothing = replace(minimum.weights, W=np.zeros_like(minimum.weights.W))
    if not np.linalg.norm(minimum.weights.W) < _BESIDE_ZERO * np.linalg.norm(start.W):
        return False
    with np.errstate(all="ignore"):
        there = risk(nothing).training_loss
    return bool(there <= minimum.value.training_loss + 1e-12 * abs(minimum.value.training_loss))


def _test_error(instance: Instance, overlaps: Overlaps) -> float:
    """The metric on new data, averaged over the Gaussian law of the fields that the overlaps give."""
    if not np.isfinite(overlaps.q).all():
        return np.nan
    problem = replace(instance.problem, given_law=instance.law, spectrum=None)
    at = replace(overlaps, V=np.broadcast_to(np.eye(problem.student_rank), overlaps.q.shape))
    try:
        value, error, _ = observables.test_error(problem, at)
        if error > _METRIC_ERROR * abs(value):
            value, _, _ = observables.test_error(problem, at, _METRIC_ERROR * abs(value))
    except (DomainError, np.linalg.LinAlgError):
        return np.nan  # weights in the span of the teacher: the fields have no density
    return value


def _refuse_on_sphere(problem: Problem, method: str, in_loss: bool) -> None:
    """
    Raises:
        InputError: the method does not keep given norms, or not those of a loss with corners, or the loss jumps:
            between its jumps nothing leads down, where a penalty would.
    """
    name = problem.solver.name
    if problem.solver.model.LOSS_JUMPS:
        raise InputError(
            f"simulations keep given norms by gradient descent; the loss of {name} jumps, and has no slope to descend"
        )
    if method in (GAMP, "fista"):
        raise InputError(f"{method} does not keep the given norms of {name}; allowed methods are {', '.join(_KEEPING)}")
    if in_loss and method not in ("auto", NEWTON):
        raise InputError(
            f"the loss of {name} has corners, which {method} does not handle; use newton, which keeps the given norms"
        )


def _checked_pass(plan: Plan) -> Plan:
    """
    Raises:
        InputError: the options are not those of a pass through the data.
    """
    problem, name = plan.problem, plan.problem.solver.name
    if not problem.has_ridge:
        raise InputError(f"sgd steps down the slope of a ridge; the penalty of {name} is another")
    if problem.solver.model.LOSS_JUMPS:
        raise InputError(f"the loss of {name} jumps, and has no slope to descend")
    if plan.rate is None:
        raise InputError("sgd needs a learning rate; give a number, as rate=0.5, or --rate 0.5 to a command")
    rate, batch = schedule_of(plan.rate), batch_of(plan.batch)
    if rate.flow:
        raise InputError(
            "rate flow: gradient flow is no pass through data; give a number, as rate=0.5, or --rate 0.5 to a command"
        )
    start_of(problem, plan.start)
    given = {
        "polish": plan.polish,
        "project": plan.project,
        "restarts": plan.restarts,
        "control variates": plan.controls,
    }
    for what, value in given.items():
        if value:
            raise InputError(f"{what}: sgd ends at no minimum; it is for methods that minimise the risk")
    require_whole("d", plan.d, 2)
    if batch.share is not None and problem.alpha < batch.share:
        raise InputError(f"alpha = {problem.alpha:g} is less than one batch of {batch.words}")
    return plan


def _refuse_polish(plan: Plan, method: str) -> None:
    """
    Raises:
        InputError: no such polish, or none of this method.
    """
    require_known("value", plan.polish, [WELLS], "polish")
    if method == GAMP:
        raise InputError("polish: gamp ends at no minimum to polish; allowed methods are those that descend")


def checked(plan: Plan) -> Plan:
    """The plan with its method chosen and its start known.

    Raises:
        InputError: an unknown start or method, or numbers out of range; the sentence says what is allowed.
    """
    problem = plan.problem
    problem.only_at_zero_temperature("weights of finite d are trained")
    corners, in_loss = not problem.has_ridge and problem.solver.prior.CORNERS > 0, has_corners(problem)
    method = plan.method
    if method == SGD:
        return _checked_pass(plan)
    if plan.batch != "1":
        raise InputError(f"batch {plan.batch}: batches are those of sgd; {method} takes all data at once")
    if isinstance(plan.rate, str):
        raise InputError(f"rate {plan.rate!r}: {method} takes a number")
    if problem.has_sphere:
        _refuse_on_sphere(problem, method, in_loss)
    if method == "auto":
        method = NEWTON if in_loss else "fista" if corners else "lbfgs"
    known = [*METHODS, GAMP, SGD]
    name = problem.solver.name
    require_known("method", method, ["auto", *known])
    require_known("start", plan.start, [*problem.solver.model.STARTS, RANDOM], name)
    allowed = ["fista", NEWTON, GAMP][int(in_loss) :]
    if corners and method not in allowed:
        what = f"both the loss and the penalty of {name} have" if in_loss else f"the penalty of {name} has"
        raise InputError(f"{what} corners; allowed methods are {', '.join(allowed)}")
    if method in (NEWTON, GAMP):
        refuse_own(problem, method)
    if method == NEWTON:
        refuse_weak_ridge(problem)
    if plan.controls and plan.start == RANDOM:
        raise InputError(f"control variates need a named start: one of {', '.join(problem.solver.model.STARTS)}")
    if plan.project is not None:
        entries(problem, plan.project)
        if method not in _HOLDING:
            raise InputError(f"{method} cannot fix {plan.project} at zero; allowed methods are {', '.join(_HOLDING)}")
    if plan.polish is not None:
        _refuse_polish(plan, method)
    require_whole("restarts", plan.restarts, 0)
    if plan.restarts and plan.polish is None:
        raise InputError(f"restarts = {plan.restarts} goes with polish = {WELLS!r}")
    require_whole("d", plan.d, 2)
    require_in("tolerance", plan.tolerance, "(0, inf)")
    require_in("memory", plan.memory, "[0, inf] bytes")
    if plan.most is not None:
        require_whole("most", plan.most, 1)
    return replace(plan, method=method)
