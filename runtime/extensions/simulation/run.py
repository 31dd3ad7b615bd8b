"""A run of one seed: draw an instance, train, measure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError, InputError, require_in, require_known, require_whole
from ...base.options import AlgorithmOptions
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point import observables
from .constraints import overlap_entries, zero_constrained
from .controls import Controls, controls_of
from .instance import Instance
from .method import DescentSettings, Method, PolishRecord, TrainingResult
from .methods import METHODS, exact_method
from .orientation import classify_state, nearest_image
from .plan import MINIMA, RANDOM, Plan, initial_weights
from .polishing import polish_minimum
from .risk import Risk, Weights, overlaps_of


@dataclass(frozen=True)
class RunOptions(AlgorithmOptions):
    """Options of single runs.

    Attributes:
        metric_error: relative error of the test error; smaller is dearer, and is seldom seen next to fluctuations.
        collapse_fraction: norm of the weights, relative to the start, below which a stalled descent may be at W = 0.
    """

    metric_error: float = 1e-3
    collapse_fraction: float = 1e-3


@dataclass(frozen=True)
class Run:
    """A run: the state that one seed ended in.

    Attributes:
        overlaps: overlaps in their canonical image (`orientation`), V nan but for gamp.
        data, penalty: parts of the training loss per d; nan for sgd, which uses a sample once.
        test_error: exact test error at these overlaps; nan without a metric.
        multipliers: strengths (s,) of the ridge that keeps given norms; None for other regularisers.
        gradient: norm of the risk's gradient, root mean square over the weights.
        late, contraction: for gamp, squared distance of late iterates, and if it converged the measured replicon
            (`gamp.contraction`); nan otherwise.
        path: packed overlaps, (times, n), not oriented: of gamp before the first iteration and after each, of sgd at
            `Plan.times`; None otherwise, and for gamp if the run was read from a file.
        polish: record of polishing; None if it was not asked for, or the descent before it did not converge.
        controls: control variates; None if they were not asked for.
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
    polish: PolishRecord | None = None
    controls: Controls | None = None

    @property
    def training_loss(self) -> float:
        """The training loss per d."""
        return self.data + self.penalty


def run(plan: Plan, seed: int) -> Run:
    """Run one seed: draw an instance, train, and measure.

    Args:
        plan: a plan that `validate_plan` returned.
        seed: the seed.

    Raises:
        InputError: d is too small.
    """
    problem, method = plan.problem, METHODS[plan.method]
    instance = Instance(problem, plan.d, seed, plan.exact, plan.memory)
    trained = method.train(plan, instance) if method.train else _minimise_from_start(method, plan, instance)
    overlaps = zero_constrained(problem, overlaps_of(instance, trained.weights, trained.V), plan.project)
    return Run(
        seed=seed,
        overlaps=nearest_image(problem, overlaps),
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


def _minimise_from_start(method: Method, plan: Plan, instance: Instance) -> TrainingResult:
    """Return the minimum that a descent from the start finds, polished if the plan asks for it."""
    minimise = method.minimise
    assert minimise is not None
    problem, risk, start = plan.problem, Risk(instance, plan.project), initial_weights(plan, instance)[0]
    descent = DescentSettings(
        plan.tolerance, plan.most or DescentSettings.most, None if plan.rate is None else float(plan.rate)
    )

    def descend(weights: Weights) -> TrainingResult:
        return minimise(risk, weights, descent)

    def classify(weights: Weights) -> str:
        return classify_state(problem, plan.d, overlaps_of(instance, weights))

    found = descend(start)
    if plan.polish == MINIMA and found.status == "converged":
        found = polish_minimum(risk, found, descend, classify, plan.restarts)
    collapsed = found.status == "stalled" and _is_near_zero(risk, start, found)
    return replace(found, status="collapsed") if collapsed else found


def _is_near_zero(risk: Risk, start: Weights, minimum: TrainingResult) -> bool:
    """Return whether a stalled minimum lies near W = 0, not below it: a loss that contains |W| has a corner there."""
    nothing = replace(minimum.weights, W=np.zeros_like(minimum.weights.W))
    if not np.linalg.norm(minimum.weights.W) < RunOptions.current().collapse_fraction * np.linalg.norm(start.W):
        return False
    with np.errstate(all="ignore"):
        there = risk(nothing).training_loss
    return bool(there <= minimum.value.training_loss + 1e-12 * abs(minimum.value.training_loss))


def _test_error(instance: Instance, overlaps: Overlaps) -> float:
    """Return the metric on new data, averaged over the Gaussian law of the fields at these overlaps."""
    if not np.isfinite(overlaps.q).all():
        return np.nan
    problem = replace(instance.problem, given_law=instance.law, spectrum=None)
    at = replace(overlaps, V=np.broadcast_to(np.eye(problem.student_rank), overlaps.q.shape))
    try:
        value, error, _ = observables.test_error(problem, at)
        allowed = RunOptions.current().metric_error * abs(value)
        if error > allowed:
            value, _, _ = observables.test_error(problem, at, allowed)
    except (DomainError, np.linalg.LinAlgError):
        return np.nan  # weights in the span of the teacher: the fields have no density
    return value


def validate_plan(plan: Plan) -> Plan:
    """Return the plan with its method chosen, after checking all its options.

    Raises:
        InputError: an unknown start or method, an option that the method lacks, or a number out of range; the message
            says what is allowed.
    """
    problem, model = plan.problem, plan.problem.solver.model
    problem.require_zero_temperature("weights of finite d are trained")
    if problem.regulariser.keeps_norms and model.LOSS_JUMPS:
        raise InputError(
            f"simulations keep given norms by gradient descent; the loss of {problem.solver.name} jumps, and has no "
            "slope to descend"
        )
    require_known("method", plan.method, ["auto", *METHODS])
    asked = plan
    if plan.method == "auto":
        asked = replace(plan, method=exact_method(*_has_corners(problem), problem.regulariser.keeps_norms))
    method = METHODS[asked.method]
    if not method.one_pass:
        if plan.batch != "1":
            passes = ", ".join(name for name, other in METHODS.items() if other.one_pass)
            raise InputError(f"batch {plan.batch}: batches are those of {passes}; {plan.method} takes all data at once")
        if isinstance(plan.rate, str):
            raise InputError(f"rate {plan.rate!r}: {plan.method} takes a number")
        require_known("start", plan.start, [*model.STARTS, RANDOM], problem.solver.name)
    _require_capabilities(asked, method)
    if method.check:
        method.check(asked)
    if plan.controls and plan.start == RANDOM:
        raise InputError(f"control variates need a named start: one of {', '.join(model.STARTS)}")
    if plan.project is not None:
        overlap_entries(problem, plan.project)
    if plan.polish is not None:
        require_known("value", plan.polish, [MINIMA], "polish")
    require_whole("restarts", plan.restarts, 0)
    if plan.restarts and plan.polish is None:
        raise InputError(f"restarts = {plan.restarts} goes with polish = {MINIMA!r}")
    require_whole("d", plan.d, 2)
    require_in("tolerance", plan.tolerance, "(0, inf)")
    require_in("memory", plan.memory, "[0, inf] bytes")
    if plan.most is not None:
        require_whole("most", plan.most, 1)
    return asked


def _has_corners(problem: Problem) -> tuple[bool, bool]:
    """Return whether the loss has corners, and whether the penalty does."""
    return problem.solver.proximal.CORNERS, problem.regulariser.has_corners


def _require_capabilities(plan: Plan, method: Method) -> None:
    """Raise InputError if the plan needs what the method cannot do; the message lists the methods that can."""
    problem, name, used = plan.problem, plan.problem.solver.name, method.name
    (loss, penalty), keeps_norms = _has_corners(problem), problem.regulariser.keeps_norms
    cornered = f"the penalty of {name} has corners"
    if loss:
        cornered = f"the loss of {name} has corners, which {used} does not handle"
    if loss and penalty:
        cornered = f"both the loss and the penalty of {name} have corners"
    q_or_phi = f"{used}: the loss of {name} contains q or trained numbers"
    needs = {
        "norms": (keeps_norms, f"{used} does not keep the given norms of {name}"),
        "loss_corners": (loss and (penalty or keeps_norms), cornered),
        "penalty_corners": (penalty, cornered),
        "any_penalty": (
            not problem.regulariser.is_quadratic,
            f"{used} steps down the slope of a ridge; the penalty of {name} is another",
        ),
        "q_in_loss": (bool(problem.solver.model.HOLDS_Q), q_or_phi),
        "trained_numbers": (bool(problem.trained), q_or_phi),
        "fixes_overlaps": (plan.project is not None, f"{used} cannot fix {plan.project} at zero"),
        "can_be_polished": (plan.polish is not None, f"polish: {used} ends at no minimum to polish"),
        "ends_at_minimum": (plan.controls, f"control variates: {used} ends at no minimum"),
    }
    needed = [capability for capability, (is_needed, _) in needs.items() if is_needed]
    for capability in needed:
        if not getattr(method, capability):
            able = [m.name for m in METHODS.values() if all(getattr(m, one) for one in needed)]
            raise InputError(f"{needs[capability][1]}; allowed methods are {', '.join(able) or 'none'}")
