"""One seed: draw an instance, train, measure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError, InputError, require_in, require_known, require_whole
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point import observables
from .controls import Controls, controls_of
from .held import entries, without
from .instance import Instance
from .method import Descent, Method, Polish, Trained
from .methods import METHODS, exact_method
from .orientation import kind_of, oriented
from .plan import RANDOM, WELLS, Plan, begin
from .risk import Risk, Weights, overlaps_of
from .wells import polished

_METRIC_ERROR = 1e-3
_BESIDE_ZERO = 1e-3  # of the size of the start


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
            `Plan.times`; None otherwise, and of gamp where the run was read from a file.
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


def run(plan: Plan, seed: int) -> Run:
    """Return what one seed ends with.

    Args:
        plan: as `checked` returns it.

    Raises:
        InputError: d is too small.
    """
    problem, method = plan.problem, METHODS[plan.method]
    instance = Instance(problem, plan.d, seed, plan.exact, plan.memory)
    trained = method.train(plan, instance) if method.train else _descend(method, plan, instance)
    overlaps = without(problem, overlaps_of(instance, trained.weights, trained.V), plan.project)
    return Run(
        seed=seed,
        overlaps=oriented(problem, overlaps),
        data=trained.value.data,
        penalty=trained.value.penalty,
        test_error=_test_error(instance, overlaps),
        gradient=trained.gradient,
        iterations=trained.iterations,
        status=trained.status,
        late=trained.late,
        contraction=trained.contraction,
        multipliers=trained.value.multipliers,
        path=trained.path,
        polish=trained.polish,
        controls=controls_of(instance, plan.start) if plan.controls else None,
    )


def _descend(method: Method, plan: Plan, instance: Instance) -> Trained:
    """Return the minimum that a descent from the start finds, polished where the plan asks for it."""
    minimise = method.minimise
    assert minimise is not None
    problem, risk, start = plan.problem, Risk(instance, plan.project), begin(plan, instance)[0]
    how = Descent(plan.tolerance, plan.most or Descent.most, None if plan.rate is None else float(plan.rate))

    def descend(weights: Weights) -> Trained:
        return minimise(risk, weights, how)

    def kind(weights: Weights) -> str:
        return kind_of(problem, plan.d, overlaps_of(instance, weights))

    found = descend(start)
    if plan.polish == WELLS and found.status == "converged":
        found = polished(risk, found, descend, kind, plan.restarts)
    collapsed = found.status == "stalled" and _is_beside_zero(risk, start, found)
    return replace(found, status="collapsed") if collapsed else found


def _is_beside_zero(risk: Risk, start: Weights, minimum: Trained) -> bool:
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


def checked(plan: Plan) -> Plan:
    """The plan with its method chosen and its start known.

    Raises:
        InputError: an unknown start or method, what the method cannot do, or numbers out of range; the sentence says
            what is allowed.
    """
    problem, model = plan.problem, plan.problem.solver.model
    problem.only_at_zero_temperature("weights of finite d are trained")
    if problem.regulariser.keeps_norms and model.LOSS_JUMPS:
        raise InputError(
            f"simulations keep given norms by gradient descent; the loss of {problem.solver.name} jumps, and has no "
            "slope to descend"
        )
    require_known("method", plan.method, ["auto", *METHODS])
    asked = plan
    if plan.method == "auto":
        asked = replace(plan, method=exact_method(*_corners(problem), problem.regulariser.keeps_norms))
    method = METHODS[asked.method]
    if not method.one_pass:
        if plan.batch != "1":
            passes = ", ".join(name for name, other in METHODS.items() if other.one_pass)
            raise InputError(f"batch {plan.batch}: batches are those of {passes}; {plan.method} takes all data at once")
        if isinstance(plan.rate, str):
            raise InputError(f"rate {plan.rate!r}: {plan.method} takes a number")
        require_known("start", plan.start, [*model.STARTS, RANDOM], problem.solver.name)
    _require_able(asked, method)
    if method.check:
        method.check(asked)
    if plan.controls and plan.start == RANDOM:
        raise InputError(f"control variates need a named start: one of {', '.join(model.STARTS)}")
    if plan.project is not None:
        entries(problem, plan.project)
    if plan.polish is not None:
        require_known("value", plan.polish, [WELLS], "polish")
    require_whole("restarts", plan.restarts, 0)
    if plan.restarts and plan.polish is None:
        raise InputError(f"restarts = {plan.restarts} goes with polish = {WELLS!r}")
    require_whole("d", plan.d, 2)
    require_in("tolerance", plan.tolerance, "(0, inf)")
    require_in("memory", plan.memory, "[0, inf] bytes")
    if plan.most is not None:
        require_whole("most", plan.most, 1)
    return asked


def _corners(problem: Problem) -> tuple[bool, bool]:
    """Return whether the loss has corners, and whether the penalty does."""
    return problem.solver.proximal.CORNERS, problem.regulariser.has_corners


def _require_able(plan: Plan, method: Method) -> None:
    """
    Raises:
        InputError: the plan needs what the method cannot do; the sentence lists the methods that can.
    """
    problem, name, how = plan.problem, plan.problem.solver.name, method.name
    (loss, penalty), keeps_norms = _corners(problem), problem.regulariser.keeps_norms
    cornered = f"the penalty of {name} has corners"
    if loss:
        cornered = f"the loss of {name} has corners, which {how} does not handle"
    if loss and penalty:
        cornered = f"both the loss and the penalty of {name} have corners"
    own = f"{how}: the loss of {name} contains q or trained numbers"
    needs = {
        "norms": (keeps_norms, f"{how} does not keep the given norms of {name}"),
        "loss_corners": (loss and (penalty or keeps_norms), cornered),
        "penalty_corners": (penalty, cornered),
        "any_penalty": (
            not problem.regulariser.is_quadratic,
            f"{how} steps down the slope of a ridge; the penalty of {name} is another",
        ),
        "q_in_loss": (bool(problem.solver.model.HOLDS_Q), own),
        "trained_numbers": (bool(problem.trained), own),
        "fixes_overlaps": (plan.project is not None, f"{how} cannot fix {plan.project} at zero"),
        "can_be_polished": (plan.polish is not None, f"polish: {how} ends at no minimum to polish"),
        "ends_at_minimum": (plan.controls, f"control variates: {how} ends at no minimum"),
    }
    needed = [capability for capability, (is_needed, _) in needs.items() if is_needed]
    for capability in needed:
        if not getattr(method, capability):
            able = [m.name for m in METHODS.values() if all(getattr(m, one) for one in needed)]
            raise InputError(f"{needs[capability][1]}; allowed methods are {', '.join(able) or 'none'}")
