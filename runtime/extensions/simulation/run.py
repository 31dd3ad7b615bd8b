"""A run of one seed: draw an instance, train, measure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...base.errors import DomainError, InputError, require_in_interval, require_known_name, require_whole_number
from ...base.options import AlgorithmOptions
from ...problems.overlaps import Overlaps
from ...problems.problem import Problem
from ...saddle_point import observables
from ...saddle_point.starts import find_start_name, named_starts
from .constraints import entries_of_named_overlaps, set_constrained_overlaps_to_zero
from .controls import ControlVariates, compute_control_variates
from .instance import Instance
from .method import DescentSettings, PolishRecord, TrainingMethod, TrainingResult
from .methods import METHODS, exact_training_method
from .orientation import classify_state, nearest_mirror_image
from .plan import MINIMA, RANDOM, SimulationPlan, initial_weights
from .polishing import polish_minimum
from .risk import Risk, Weights, overlaps_of_weights


@dataclass(frozen=True)
class RunOptions(AlgorithmOptions):
    """Options of the run of a simulation at one seed.

    Attributes:
        metric_error: relative error of the test error; smaller costs more, and is mostly hidden by fluctuations.
        collapse_fraction: norm of the weights, relative to the start, below which a stalled descent may be at W = 0.
    """

    metric_error: float = 1e-3
    collapse_fraction: float = 1e-3


@dataclass(frozen=True)
class SeedRun:
    """A run of a simulation: the state that one seed ended in, and its observables.

    Attributes:
        overlaps: overlaps of the canonical one among mirror images of the state; V is nan except for gamp.
        data: data term of the training loss per d; nan for sgd, which uses a sample once.
        penalty: penalty in the training loss per d; nan for sgd.
        test_error: exact test error at these overlaps; nan without a metric.
        gradient: root mean square over the weights of the gradient of the risk.
        late: squared distance of late iterates of gamp; nan for other methods.
        contraction: replicon measured by gamp if it converged; nan otherwise.
        multipliers: strengths (s,) of the ridge that keeps given norms; None for other regularisers.
        path: packed overlaps, shape (times, overlaps): of gamp before the first iteration and after each, of sgd at its
            recording times; None otherwise, and for gamp if the run was read from a file.
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
    controls: ControlVariates | None = None

    @property
    def training_loss(self) -> float:
        """The training loss per d."""
        return self.data + self.penalty


def train_one_seed(plan: SimulationPlan, seed: int) -> SeedRun:
    """Run one seed of a simulation: draw an instance, train the weights, and measure overlaps and errors.

    Args:
        plan: plan of the simulation, validated.
        seed: seed of the random numbers.

    Raises:
        InputError: d is too small.
    """
    problem, method = plan.problem, METHODS[plan.method]
    instance = Instance(problem, plan.d, seed, plan.exact, plan.memory)
    trained = method.train(plan, instance) if method.train else _minimise_from_start(method, plan, instance)
    overlaps = set_constrained_overlaps_to_zero(
        problem, overlaps_of_weights(instance, trained.weights, trained.V), plan.project
    )
    return SeedRun(
        seed=seed,
        overlaps=nearest_mirror_image(problem, overlaps),
        data=trained.value.data,
        penalty=trained.value.penalty,
        test_error=_exact_test_error(instance, overlaps),
        gradient=trained.gradient,
        iterations=trained.iterations,
        status=trained.status,
        late=trained.late,
        contraction=trained.contraction,
        multipliers=trained.value.multipliers,
        path=trained.path,
        polish=trained.polish,
        controls=compute_control_variates(instance, plan.start) if plan.controls else None,
    )


def _minimise_from_start(method: TrainingMethod, plan: SimulationPlan, instance: Instance) -> TrainingResult:
    """Return the minimum at which training from the start ends, moved to lower ones if the plan has polishing."""
    minimise = method.minimise
    assert minimise is not None
    problem, risk, start = plan.problem, Risk(instance, plan.project), initial_weights(plan, instance)[0]
    descent = DescentSettings(
        plan.tolerance, plan.most or DescentSettings.most, None if plan.rate is None else float(plan.rate)
    )

    def minimise_from_weights(weights: Weights) -> TrainingResult:
        return minimise(risk, weights, descent)

    def classify_weights(weights: Weights) -> str:
        return classify_state(problem, plan.d, overlaps_of_weights(instance, weights))

    found = minimise_from_weights(start)
    if plan.polish == MINIMA and found.status == "converged":
        found = polish_minimum(risk, found, minimise_from_weights, classify_weights, plan.restarts)
    trivial = found.status == "stalled" and _is_trivial_minimum(risk, start, found)
    return replace(found, status="trivial") if trivial else found


def _is_trivial_minimum(risk: Risk, start: Weights, minimum: TrainingResult) -> bool:
    """Return whether training stalled at weights W = 0, where a loss that contains |W| has a kink."""
    nothing = replace(minimum.weights, W=np.zeros_like(minimum.weights.W))
    if not np.linalg.norm(minimum.weights.W) < RunOptions.current().collapse_fraction * np.linalg.norm(start.W):
        return False
    with np.errstate(all="ignore"):
        there = risk(nothing).training_loss
    return bool(there <= minimum.value.training_loss + 1e-12 * abs(minimum.value.training_loss))


def _exact_test_error(instance: Instance, overlaps: Overlaps) -> float:
    """Return the test error of trained weights, averaged over new data exactly, as a function of their overlaps."""
    if not np.isfinite(overlaps.q).all():
        return np.nan
    problem = replace(instance.problem, given_law=instance.empirical_token_law, spectrum=None)
    at = replace(overlaps, V=np.broadcast_to(np.eye(problem.student_rank), overlaps.q.shape))
    try:
        value, error, _ = observables.test_error(problem, at)
        allowed = RunOptions.current().metric_error * abs(value)
        if error > allowed:
            value, _, _ = observables.test_error(problem, at, allowed)
    except (DomainError, np.linalg.LinAlgError):
        return np.nan  # weights in the span of the teacher: the fields have no density
    return value


def validate_simulation_plan(plan: SimulationPlan) -> SimulationPlan:
    """Return the plan of a simulation after checking all its options, with method "auto" replaced by a method.

    Raises:
        InputError: the start or the method is unknown, the method lacks an option, or a number is out of range; the
            message says what is allowed.
    """
    problem, model = plan.problem, plan.problem.solver.model
    problem.require_zero_temperature("weights of finite d are trained")
    if problem.regulariser.keeps_norms and model.LOSS_JUMPS:
        raise InputError(
            f"the loss of {problem.solver.name} is discontinuous, so that gradient descent, by which simulations keep "
            "given norms, is not defined for it"
        )
    require_known_name("method", plan.method, ["auto", *METHODS])
    asked = plan
    if plan.method == "auto":
        asked = replace(
            plan,
            method=exact_training_method(*_kinks_of_loss_and_penalty(problem), problem.regulariser.keeps_norms),
        )
    method = METHODS[asked.method]
    if not method.one_pass:
        if plan.batch != "1":
            passes = ", ".join(name for name, other in METHODS.items() if other.one_pass)
            raise InputError(
                f"batch {plan.batch}: only the method {passes} uses batches, and {plan.method} takes all data at once; "
                "leave batch out"
            )
        if isinstance(plan.rate, str):
            raise InputError(f"rate {plan.rate!r}: the method {plan.method} takes a number as rate, not a schedule")
        asked = replace(asked, start=find_start_name(problem, plan.start, others=[RANDOM]))
    _require_method_capabilities(asked, method)
    if method.check:
        method.check(asked)
    if plan.controls and plan.start == RANDOM:
        raise InputError(
            f"control variates need a named start, not a random one: give one of {', '.join(named_starts(problem))}"
        )
    if plan.project is not None:
        entries_of_named_overlaps(problem, plan.project)
    if plan.polish is not None:
        require_known_name("value", plan.polish, [MINIMA], "polish")
    require_whole_number("restarts", plan.restarts, 0)
    if plan.restarts and plan.polish is None:
        raise InputError(
            f"restarts = {plan.restarts} has no effect without polishing: give polish = {MINIMA!r} too, or "
            "leave restarts out"
        )
    require_whole_number("d", plan.d, 2)
    require_in_interval("tolerance", plan.tolerance, "(0, inf)")
    require_in_interval("memory", plan.memory, "[0, inf] bytes")
    if plan.most is not None:
        require_whole_number("most", plan.most, 1)
    return asked


def _kinks_of_loss_and_penalty(problem: Problem) -> tuple[bool, bool]:
    """Return two booleans: whether the loss of a problem has kinks, and whether its penalty has."""
    return problem.solver.proximal.CORNERS, problem.regulariser.has_kinks


def _require_method_capabilities(plan: SimulationPlan, method: TrainingMethod) -> None:
    """Raise InputError if the plan of a simulation needs what its training method cannot do, listing those that can."""
    problem, name, used = plan.problem, plan.problem.solver.name, method.name
    (loss, penalty), keeps_norms = _kinks_of_loss_and_penalty(problem), problem.regulariser.keeps_norms
    cornered = f"the penalty of {name} has kinks"
    if loss:
        cornered = f"the loss of {name} has kinks, which {used} does not handle"
    if loss and penalty:
        cornered = f"both the loss and the penalty of {name} have kinks"
    q_or_phi = f"the loss of {name} contains q or trained numbers, which the method {used} does not handle"
    needs = {
        "norms": (keeps_norms, f"the method {used} does not keep the given norms of {name}"),
        "loss_corners": (loss and (penalty or keeps_norms), cornered),
        "penalty_corners": (penalty, cornered),
        "any_penalty": (
            not problem.regulariser.is_quadratic,
            f"the method {used} needs a ridge penalty, and {name} has another",
        ),
        "q_in_loss": (bool(problem.solver.model.HOLDS_Q), q_or_phi),
        "trained_numbers": (bool(problem.trained), q_or_phi),
        "fixes_overlaps": (plan.project is not None, f"the method {used} cannot fix {plan.project} at zero"),
        "can_be_polished": (
            plan.polish is not None,
            f"polish: the method {used} does not end at a minimum that could be polished",
        ),
        "ends_at_minimum": (
            plan.controls,
            f"control variates are for minima, and the method {used} does not end at one",
        ),
    }
    needed = [capability for capability, (is_needed, _) in needs.items() if is_needed]
    for capability in needed:
        if not getattr(method, capability):
            able = [m.name for m in METHODS.values() if all(getattr(m, one) for one in needed)]
            _, reason = needs[capability]
            raise InputError(f"{reason}; allowed methods are {', '.join(able) or 'none'}")
