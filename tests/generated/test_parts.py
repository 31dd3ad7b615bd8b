"""What the runtime declares that a generated solver has is what every committed one has."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import sympy as sp

import saddleforge as sf
import saddleforge.generated
from saddleforge import InputError
from saddleforge.problems import solver_types
from saddleforge.problems.solver import Solver

FOLDERS = sorted(path.parent for path in Path(saddleforge.generated.__path__[0]).glob("*/*/model.py"))

REDUCED = {"LABELS", "combinations"}
PRIOR_BY_KIND = {
    "sphere": {"multipliers", "thermal_overlaps", "thermal_responses"},
    "penalty": {"CORNERS", "KNOWN", "GIVEN", "regulariser", "slopes", "penalties_at", "minimisers_at"}
    | {"thermal_overlaps", "thermal_responses"},
}
PROX_SPACE = {"LAW", "student_table", "teacher_table", "prox_space", "prox_space_slopes", "prox_space_jump_slopes"}
PRECISE = {"CORNERS", "loss_kinks", "piece", "loss_weights", "loss_steps"}
RIDGE_REFERENCE = {"resolvents", "overlaps", "free_entropy"}


def absent_from_channel(solver: Solver) -> set[str]:
    channel = solver.proximal
    own = solver.linear_response.OWN if hasattr(solver.linear_response, "OWN") else False
    absent = set() if channel.FIELDS == 1 else {"panels"}
    absent |= set() if channel.FIELDS == 1 and channel.TEACHER_STEPS else {"steps"}
    absent |= set() if channel.HAS_PROX_SPACE else PROX_SPACE
    absent |= {"prox_space_jump_slopes"} if own else {"own_gradients_at"}
    return absent | (set() if channel.LABELLED_NOISE else {"noise_law_at"})


def offered(solver: Solver) -> Iterator[tuple[Any, type, set[str]]]:
    """Every part of a solver, its type, and what of it this solver need not have."""
    model, kind = solver.model, solver.model.REGULARISER
    yield model, solver_types.ModelMetadata, REDUCED
    yield (
        solver.thermal_channel,
        solver_types.ThermalChannelFunctions,
        set() if solver.thermal_channel.HAS_AVERAGES else {"averages", "field_slopes"},
    )
    of_others = set().union(*PRIOR_BY_KIND.values()) - PRIOR_BY_KIND.get(kind, set())
    yield solver.prior_functions, solver_types.PriorFunctions, of_others
    yield solver.moreau_objective_bounds, solver_types.MoreauObjectiveBounds, set()
    if not model.NO_PROXIMAL_MAP:
        yield solver.proximal, solver_types.ProximalChannelFunctions, absent_from_channel(solver)
        yield solver.linear_response, solver_types.LinearResponseFunctions, set() if kind != "penalty" else {"overlaps"}
    if solver.source_file_of_solver_part("flow").exists():
        yield (
            solver.one_pass_descent_equations,
            solver_types.FlowEquations,
            set() if model.TRAINED else {"trained_slope"},
        )
    metric, reference = solver.metric_functions, solver.multiprecision_functions
    absent = set() if metric.HAS_METRIC else {"metric", "test_error"}
    yield metric, solver_types.MetricFunctions, absent | (set() if metric.HAS_BASELINE else {"baseline_terms"})
    absent = set() if "loss" in reference.DRIVES else set(PRECISE)
    absent |= set() if kind != "penalty" else RIDGE_REFERENCE
    absent |= set() if metric.HAS_METRIC else {"metric"}
    yield (
        reference,
        solver_types.MultiprecisionFunctions,
        absent | (set() if reference.NOISE_VALUES else {"probabilities"}),
    )
    if solver.has_output_channel:
        yield (
            solver.bayes_functions,
            solver_types.BayesFunctions,
            {"observed_at"} | (set() if metric.HAS_METRIC else {"errors_at"}),
        )


def offered_of_reduced(solver: Solver) -> Iterator[tuple[Any, type, set[str]]]:
    """The same of the problems that averages are those of."""
    facts = {
        name for name in declared(solver_types.ModelMetadata) if name.isupper() or name in ("law", "noise_variances")
    }
    for reduced in solver.solvers_of_reduced_problems.values():
        kept = {"STRUCTURE", "LABELS", "TRAINED", "NOISE", "HOLDS_Q", "NO_PROXIMAL_MAP", "CURVED", "METRIC_IS_STEPS"}
        yield reduced.model, solver_types.ModelMetadata, facts - kept
    if loss := solver.solvers_of_reduced_problems.get("loss"):
        yield loss.thermal_channel, solver_types.ThermalChannelFunctions, set()
        yield loss.proximal, solver_types.ProximalChannelFunctions, absent_from_channel(loss)
    if metric := solver.solvers_of_reduced_problems.get("metric"):
        yield metric.metric_functions, solver_types.MetricFunctions, {"baseline_terms"}


def declared(protocol: type) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(protocol).items() if not name.startswith("_")}


def missing(part: Any, protocol: type, absent: set[str]) -> list[str]:
    """What a part has not of its type, or has of another type."""
    hints = declared(protocol).items()
    return [name for name, hint in hints if name not in absent and not fits(getattr(part, name, None), hint)]


def fits(value: Any, hint: Any) -> bool:
    if hint in (int, bool, str):
        return type(value) is hint
    return (
        inspect.isfunction(getattr(value, "py_func", None))
        if hint is solver_types.CompiledFunction
        else value is not None
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_committed_solver_has_what_its_types_declare(folder):
    solver = Solver(folder.parent.name, folder.name, folder)
    found = [*offered(solver), *offered_of_reduced(solver)]
    assert not [(of.__name__, lacking) for part, of, absent in found if (lacking := missing(part, of, absent))]


def test_a_part_that_lacks_a_function_is_reported():
    ridge, lasso = (sf.problem(name).solver for name in ("ridge_regression", "lasso_regression"))
    assert missing(lasso.linear_response, solver_types.LinearResponseFunctions, set()) == ["overlaps"]
    assert {"KNOWN", "slopes", "minimisers_at"} <= set(
        missing(ridge.prior_functions, solver_types.PriorFunctions, set())
    )


@pytest.mark.slow
def test_solvers_with_labelled_noise_and_with_numbers_of_their_own_have_what_their_types_declare():
    noise = sf.DiscreteNoise((1, -1), ("9/10", "1/10"))

    @sf.model(noise={"u": noise})
    def flipped(X, Y, u):
        return sf.softplus(-u * sp.sign(Y[0, 0]) * X[0, 0])

    @sf.model()
    def shifted(X, Y, Q, *, shift=sf.trained(0)):
        return sf.half_square(Y[0, 0] - X[0, 0] - shift) * (1 + Q[0][0, 0])

    for model, name in ((flipped, "noise_law_at"), (shifted, "own_gradients_at")):
        solver = sf.problem(model, alpha=1.0).solver
        assert hasattr(solver.proximal, name)
        found = list(offered(solver))
        assert not [(of.__name__, lacking) for part, of, absent in found if (lacking := missing(part, of, absent))]


def test_without_a_proximal_map_only_a_finite_temperature_is_offered():
    class Jumping(Solver):
        model = SimpleNamespace(NO_PROXIMAL_MAP="its loss jumps in X")

    solver = Jumping("hinge", FOLDERS[0].name, next(f for f in FOLDERS if f.parent.name == "hinge"))
    assert solver.channel is solver.thermal_channel
    with pytest.raises(InputError, match=r"model hinge: its loss jumps in X; .* give inverse_temperature"):
        _ = solver.proximal
