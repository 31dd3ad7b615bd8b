"""What the runtime is told that a generated solver offers is what every committed one does."""

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
from saddleforge.problems import parts
from saddleforge.problems.solver import Solver

FOLDERS = sorted(path.parent for path in Path(saddleforge.generated.__path__[0]).glob("*/*/model.py"))


def offered(solver: Solver) -> Iterator[tuple[Any, type]]:
    """Every part of a solver, with the type that the runtime takes it for."""
    model = solver.model
    yield model, parts.ModelFacts
    yield solver.channel, parts.Channel
    yield solver.thermal, parts.ThermalChannel
    if solver.thermal.HAS_AVERAGES:
        yield solver.thermal_averages, parts.ThermalAverages
    yield solver.bounds, parts.Bounds
    yield solver.reference, parts.Reference
    if not model.NO_PROXIMAL_MAP:
        yield from offered_by_pieces(solver)
        if solver.channel.LABELLED_NOISE:
            yield solver.labelled, parts.LabelledChannel
        if solver.tangent.OWN:
            yield solver.holding_own, parts.OwnChannel
        if solver.proximal.HAS_PROX_SPACE:
            yield solver.prox_space, parts.ProxSpaceChannel
            if not solver.tangent.OWN:
                yield solver.jumps, parts.JumpChannel
    if solver.has_sphere:
        yield solver.sphere, parts.SpherePrior
        yield solver.sphere_tangent, parts.SphereTangent
    elif solver.has_ridge:
        yield solver.prior, parts.RidgePrior
        yield solver.ridge_tangent, parts.RidgeTangent
    if solver._path("flow").exists():
        yield solver.flow, parts.FlowEquations
        if solver.model.TRAINED:
            yield solver.own_flow, parts.OwnFlow
    if solver.has_ridge:
        yield solver.reference, parts.RidgeReference
        if "loss" in solver.reference.DRIVES:
            yield solver.precise_reference, parts.PreciseReference
    else:
        yield solver.penalty, parts.PenaltyPrior
        yield solver.tangent, parts.Tangent
    yield solver.metric, parts.Metric
    if solver.metric.HAS_METRIC:
        yield solver.error_metric, parts.ErrorMetric
        yield solver.reference, parts.ErrorReference
    if solver.metric.HAS_BASELINE:
        yield solver.baseline_metric, parts.BaselineMetric
    if solver.reference.NOISE_VALUES:
        yield solver.reference, parts.LabelledReference
    if solver.has_output:
        yield solver.bayes, parts.Bayes
        if solver.metric.HAS_METRIC:
            yield solver.error_bayes, parts.ErrorBayes


def offered_of_reduced(solver: Solver) -> Iterator[tuple[Any, type]]:
    """The same of the problems that averages are those of."""
    loss, metric = (solver.reduced.get(integrand) for integrand in ("loss", "metric"))
    for reduced in filter(None, (loss, metric)):
        yield reduced.facts, parts.ReducedFacts
    if loss is not None:
        yield loss.thermal, parts.ThermalAverages
        yield from offered_by_pieces(loss)
        if loss.proximal.HAS_PROX_SPACE:
            yield loss.jumps, parts.JumpChannel
    if metric is not None:
        yield metric.error_metric, parts.ErrorMetric


def offered_by_pieces(solver: Solver) -> Iterator[tuple[Any, type]]:
    yield solver.proximal, parts.ProximalChannel
    if solver.proximal.FIELDS == 1:
        yield solver.pieces, parts.PiecesChannel
        if solver.proximal.TEACHER_STEPS:
            yield solver.stepped, parts.SteppedChannel


def missing(part: Any, protocol: type) -> list[str]:
    """What a part does not offer of a protocol, or offers with other arguments."""
    found = [name for name, hint in annotated(protocol).items() if not fits(getattr(part, name, None), hint)]
    for name, declared in functions(protocol).items():
        value = getattr(part, name, None)
        own = None if value is None else list(inspect.signature(getattr(value, "py_func", value)).parameters)
        if own != list(inspect.signature(declared).parameters)[1:]:
            found.append(name if own is None else f"{name}({', '.join(own)})")
    return found


def fits(value: Any, hint: Any) -> bool:
    if hint in (int, bool, str):
        return type(value) is hint
    return inspect.isfunction(getattr(value, "py_func", None)) if hint is parts.Compiled else value is not None


def annotated(protocol: type) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(protocol).items() if not name.startswith("_")}


def functions(protocol: type) -> dict[str, Any]:
    every = inspect.getmembers(protocol, inspect.isfunction)
    return {name: function for name, function in every if not name.startswith("_")}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_committed_solver_offers_what_its_types_say(folder):
    solver = Solver(folder.parent.name, folder.name, folder)
    found = [*offered(solver), *offered_of_reduced(solver)]
    assert not [(of.__name__, missing(part, of)) for part, of in found if missing(part, of)]


def test_a_part_that_lacks_a_function_or_names_its_arguments_otherwise_is_told():
    ridge, lasso = (sf.problem(name).solver for name in ("ridge_regression", "lasso_regression"))
    assert missing(lasso.tangent, parts.RidgeTangent) == ["overlaps"]
    assert {"KNOWN", "slopes", "minimisers_at"} <= set(missing(ridge.prior, parts.PenaltyPrior))
    told = missing(ridge.thermal, parts.ProximalChannel)
    assert [name for name in told if "(" in name and "temperature, kinks, rule, weight_of, slopes)" in name]


@pytest.mark.slow
def test_solvers_with_labelled_noise_and_with_numbers_of_their_own_offer_what_their_types_say():
    noise = sf.DiscreteNoise((1, -1), ("9/10", "1/10"))

    @sf.model(noise={"u": noise})
    def flipped(X, Y, u):
        return sf.softplus(-u * sp.sign(Y[0, 0]) * X[0, 0])

    @sf.model()
    def shifted(X, Y, Q, *, shift=sf.trained(0)):
        return sf.half_square(Y[0, 0] - X[0, 0] - shift) * (1 + Q[0][0, 0])

    for model, protocol in ((flipped, parts.LabelledChannel), (shifted, parts.OwnChannel)):
        solver = sf.problem(model, alpha=1.0).solver
        found = list(offered(solver))
        assert protocol in {of for _, of in found}
        assert not [(of.__name__, missing(part, of)) for part, of in found if missing(part, of)]


def test_without_a_proximal_map_only_a_finite_temperature_is_offered():
    class Jumping(Solver):
        model = SimpleNamespace(NO_PROXIMAL_MAP="its loss jumps in X")

    solver = Jumping("hinge", FOLDERS[0].name, next(f for f in FOLDERS if f.parent.name == "hinge"))
    assert solver.channel is solver.thermal
    with pytest.raises(InputError, match=r"model hinge: its loss jumps in X; .* give inverse_temperature"):
        _ = solver.proximal
