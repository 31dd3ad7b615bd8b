"""Saddle-point equations of learning models: derived symbolically, generated as Numba code, solved with an error bar.

    import saddleforge as sf

    problem = sf.problem("dot_product_attention", alpha=2.0)
    sf.solutions(problem)

Names are imported when first touched, so that neither SymPy nor Numba is loaded before it is needed.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from . import deprecation, hints, report
from ._version import __version__

if TYPE_CHECKING:
    from .bayes.messages import BayesMessages, bayes_messages
    from .bayes.solution import BayesSolution, bayes_optimal
    from .bayes.thresholds import BayesLine, BayesThreshold, bayes_line, bayes_threshold
    from .branches.branch import Curve
    from .breaking.curve import BrokenCurve, curve
    from .breaking.solution import BrokenSolution
    from .breaking.solve import solve
    from .budget import time_limit
    from .comparison.compare import compare, scaling
    from .comparison.own_points import Beside, LearningCurve, beside, learning_curve
    from .derive.authoring.language import (
        Matrix,
        box,
        by_label,
        half_square,
        rho,
        rounded_hinge,
        sigmoid,
        softmax,
        softplus,
        square,
    )
    from .derive.authoring.model import Model, model
    from .derive.authoring.outputs import Output
    from .derive.authoring.parameters import DiscreteNoise, GaussianNoise, Parameter, Start, structural, trained
    from .derive.authoring.regulariser import Ridge, Sphere, penalty
    from .derive.authoring.tokens import (
        Tokens,
        binary_teacher,
        clustered_tokens,
        isotropic_tokens,
        sparse_teacher,
        unstructured_tokens,
    )
    from .derive.errors import ModelError
    from .descent.dynamics import Dynamics, dynamics
    from .descent.escape import Escape, escape
    from .descent.stationary import RateLimit, StationaryPoint, rate_limit, stationary
    from .digits import solve_precisely, where
    from .errors import InputError, NotConvergedError, NotProvedError, SaddleforgeError, TimeLimitError
    from .following.critical import CriticalLine, critical_line
    from .following.first_event import instability, spinodal
    from .following.follow import Followed, follow
    from .planes.diagram import PhaseDiagram, phases
    from .problems.between import Between
    from .problems.data import DataLaw, FittedTeacher, fitted_teacher, law_of_data
    from .problems.model_file import derivation
    from .problems.overlaps import Overlaps
    from .problems.problem import Problem, problem
    from .problems.spectra import RandomFeatures, power_law, random_features
    from .reference.solution import PreciseSolution
    from .reference.thresholds import PreciseThreshold
    from .responses.answers import Sensitivities, Sensitivity
    from .responses.joint import JointOptimum, Trial
    from .responses.sensitivity import sensitivities
    from .responses.tuned_curve import TunedCurve, tuned_curve
    from .responses.tuning import Optimum, tune
    from .simulation.finite_transition import finite_transition
    from .simulation.simulation import Simulation, simulate
    from .solving.solution import Solution
    from .solving.solutions import solutions
    from .solving.verification import verified
    from .sweeping.sweep import Sweep, collect, sweep
    from .thresholds.crossing import crossing
    from .thresholds.locating import almeida_thouless
    from .thresholds.threshold import Threshold

# Runtime: no SymPy.
_WHERE = {
    "time_limit": "budget",
    "TimeLimitError": "errors",
    "derivation": "problems.model_file",
    "bayes_line": "bayes.thresholds",
    "bayes_messages": "bayes.messages",
    "bayes_optimal": "bayes.solution",
    "bayes_threshold": "bayes.thresholds",
    "BayesLine": "bayes.thresholds",
    "BayesMessages": "bayes.messages",
    "BayesSolution": "bayes.solution",
    "BayesThreshold": "bayes.thresholds",
    "Between": "problems.between",
    "Overlaps": "problems.overlaps",
    "problem": "problems.problem",
    "Problem": "problems.problem",
    "solve": "breaking.solve",
    "BrokenSolution": "breaking.solution",
    "solutions": "solving.solutions",
    "Solution": "solving.solution",
    "sensitivities": "responses.sensitivity",
    "Sensitivities": "responses.answers",
    "Sensitivity": "responses.answers",
    "verified": "solving.verification",
    "tune": "responses.tuning",
    "tuned_curve": "responses.tuned_curve",
    "Optimum": "responses.tuning",
    "TunedCurve": "responses.tuned_curve",
    "curve": "breaking.curve",
    "BrokenCurve": "breaking.curve",
    "Curve": "branches.branch",
    "follow": "following.follow",
    "Followed": "following.follow",
    "spinodal": "following.first_event",
    "instability": "following.first_event",
    "dynamics": "descent.dynamics",
    "Dynamics": "descent.dynamics",
    "escape": "descent.escape",
    "Escape": "descent.escape",
    "stationary": "descent.stationary",
    "StationaryPoint": "descent.stationary",
    "rate_limit": "descent.stationary",
    "RateLimit": "descent.stationary",
    "critical_line": "following.critical",
    "CriticalLine": "following.critical",
    "almeida_thouless": "thresholds.locating",
    "solve_precisely": "digits",
    "PreciseSolution": "reference.solution",
    "PreciseThreshold": "reference.thresholds",
    "crossing": "thresholds.crossing",
    "phases": "planes.diagram",
    "PhaseDiagram": "planes.diagram",
    "sweep": "sweeping.sweep",
    "collect": "sweeping.sweep",
    "Sweep": "sweeping.sweep",
    "where": "digits",
    "Threshold": "thresholds.threshold",
    "law_of_data": "problems.data",
    "DataLaw": "problems.data",
    "FittedTeacher": "problems.data",
    "fitted_teacher": "problems.data",
    "RandomFeatures": "problems.spectra",
    "power_law": "problems.spectra",
    "random_features": "problems.spectra",
    "Beside": "comparison.own_points",
    "LearningCurve": "comparison.own_points",
    "beside": "comparison.own_points",
    "learning_curve": "comparison.own_points",
    "JointOptimum": "responses.joint",
    "Trial": "responses.joint",
    "compare": "comparison.compare",
    "finite_transition": "simulation.finite_transition",
    "scaling": "comparison.compare",
    "simulate": "simulation.simulation",
    "Simulation": "simulation.simulation",
    "InputError": "errors",
    "NotConvergedError": "errors",
    "NotProvedError": "errors",
    "SaddleforgeError": "errors",
    # Writing a model: SymPy, but no NumPy and no Numba.
    "model": "derive.authoring.model",
    "Model": "derive.authoring.model",
    "Parameter": "derive.authoring.parameters",
    "structural": "derive.authoring.parameters",
    "Start": "derive.authoring.parameters",
    "GaussianNoise": "derive.authoring.parameters",
    "DiscreteNoise": "derive.authoring.parameters",
    "trained": "derive.authoring.parameters",
    "Ridge": "derive.authoring.regulariser",
    "Sphere": "derive.authoring.regulariser",
    "penalty": "derive.authoring.regulariser",
    "Output": "derive.authoring.outputs",
    "Tokens": "derive.authoring.tokens",
    "binary_teacher": "derive.authoring.tokens",
    "clustered_tokens": "derive.authoring.tokens",
    "sparse_teacher": "derive.authoring.tokens",
    "isotropic_tokens": "derive.authoring.tokens",
    "unstructured_tokens": "derive.authoring.tokens",
    "box": "derive.authoring.language",
    "by_label": "derive.authoring.language",
    "rounded_hinge": "derive.authoring.language",
    "softmax": "derive.authoring.language",
    "sigmoid": "derive.authoring.language",
    "softplus": "derive.authoring.language",
    "square": "derive.authoring.language",
    "half_square": "derive.authoring.language",
    "Matrix": "derive.authoring.language",
    "rho": "derive.authoring.language",
    "ModelError": "derive.errors",
}

# Commands and terms whose functions have other names.
_COMMANDS = {
    **dict.fromkeys(("Lasso", "L1"), "sf.penalty(lambda w, *, strength=0.1: strength * sp.Abs(w[0]))"),
    "bayes": "bayes_optimal, bayes_threshold, bayes_line, bayes_messages",
    "derive": "derivation",
    "models": "`saddleforge models`",
    "plot": "result.plot(path)",
    "stability": "solve(problem).stability",
    "threshold": "where, crossing, spinodal, instability, almeida_thouless, critical_line",
}

__all__ = [
    "BayesLine",
    "BayesMessages",
    "BayesSolution",
    "BayesThreshold",
    "Beside",
    "Between",
    "BrokenCurve",
    "BrokenSolution",
    "CriticalLine",
    "Curve",
    "DataLaw",
    "DiscreteNoise",
    "Dynamics",
    "Escape",
    "FittedTeacher",
    "Followed",
    "GaussianNoise",
    "InputError",
    "JointOptimum",
    "LearningCurve",
    "Matrix",
    "Model",
    "ModelError",
    "NotConvergedError",
    "NotProvedError",
    "Optimum",
    "Output",
    "Overlaps",
    "Parameter",
    "PhaseDiagram",
    "PreciseSolution",
    "PreciseThreshold",
    "Problem",
    "RandomFeatures",
    "RateLimit",
    "Ridge",
    "SaddleforgeError",
    "Sensitivities",
    "Sensitivity",
    "Simulation",
    "Solution",
    "Sphere",
    "Start",
    "StationaryPoint",
    "Sweep",
    "Threshold",
    "TimeLimitError",
    "Tokens",
    "Trial",
    "TunedCurve",
    "__version__",
    "almeida_thouless",
    "bayes_line",
    "bayes_messages",
    "bayes_optimal",
    "bayes_threshold",
    "beside",
    "binary_teacher",
    "box",
    "by_label",
    "clustered_tokens",
    "collect",
    "compare",
    "critical_line",
    "crossing",
    "curve",
    "derivation",
    "dynamics",
    "escape",
    "finite_transition",
    "fitted_teacher",
    "follow",
    "half_square",
    "instability",
    "isotropic_tokens",
    "law_of_data",
    "learning_curve",
    "model",
    "penalty",
    "phases",
    "power_law",
    "problem",
    "random_features",
    "rate_limit",
    "rho",
    "rounded_hinge",
    "scaling",
    "sensitivities",
    "sigmoid",
    "simulate",
    "softmax",
    "softplus",
    "solutions",
    "solve",
    "solve_precisely",
    "sparse_teacher",
    "spinodal",
    "square",
    "stationary",
    "structural",
    "sweep",
    "time_limit",
    "trained",
    "tune",
    "tuned_curve",
    "unstructured_tokens",
    "verified",
    "where",
]


def __getattr__(name: str) -> Any:
    if name in deprecation.NAMES:
        gone = deprecation.NAMES[name]
        deprecation.warn(f"{__name__}.{name}", gone, 1)
        return __getattr__(gone.instead)
    if name not in _WHERE:
        near = _COMMANDS.get(name, "")
        near = f"; in Python: {near}" if near else hints.suggestion(name, __all__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{near}")
    value = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    if isfunction(value) and not _WHERE[name].startswith("derive."):
        value = hints.explain_calls(name, value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


report.register()
