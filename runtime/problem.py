"""A problem: a generated solver, a sample complexity and values of the model's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from .errors import InputError
from .law import TokenLaw
from .solver import STRUCTURAL, Solver, load_solver


@dataclass(frozen=True)
class Problem:
    """Everything a solution depends on, checked on construction (use `problem`).

    Attributes:
        alpha: sample complexity n / d.
        parameters: name -> value as float or array of the parameter's shape.
    """

    solver: Solver
    alpha: float
    parameters: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        return self.solver.structure["tokens"]

    @property
    def student_rank(self) -> int:
        return self.solver.structure["student_rank"]

    @property
    def teacher_rank(self) -> int:
        return self.solver.structure["teacher_rank"]

    @property
    def clusters(self) -> int:
        return self.solver.structure["clusters"]

    @property
    def contexts(self) -> int:
        return self.tokens * self.clusters

    @cached_property
    def flat(self) -> np.ndarray:
        """All parameters in the order of the generated SYMBOLS."""
        values = [np.ravel(self.parameters[spec["name"]]) for spec in self.solver.model.PARAMETERS]
        return np.concatenate(values) if values else np.zeros(0)

    @cached_property
    def law(self) -> TokenLaw:
        return TokenLaw.from_arrays(self.solver.model.law(self.flat), self.tokens, self.clusters)

    @cached_property
    def ridge(self) -> np.ndarray:
        """lambda_a, (s,)."""
        return np.asarray(self.parameters["lambda_"], float).reshape(self.student_rank)

    @cached_property
    def noise_scale(self) -> np.ndarray:
        """Standard deviations of the Gaussian coordinates of u."""
        return np.sqrt(np.asarray(self.solver.model.noise_variances(self.flat), float).reshape(-1))

    @cached_property
    def label_choices(self) -> list[tuple[tuple[int, ...], float]]:
        """(labels, probability) of every assignment of positive probability."""
        choices = product(range(self.clusters), repeat=self.tokens)
        return [(k, float(self.law.labels[k])) for k in choices if self.law.labels[k] > 0]

    def constants(self, labels: tuple[int, ...]) -> np.ndarray:
        """The constants vector of the generated channel: rho_l, k_l, parameters."""
        contexts = self.context_of(labels)
        return np.concatenate([self.law.rho[contexts], np.asarray(labels, float), self.flat])

    def context_of(self, labels: tuple[int, ...]) -> np.ndarray:
        """Context index of every token, (L,)."""
        return np.arange(self.tokens) * self.clusters + np.asarray(labels, int)

    def with_(self, **changes: Any) -> Problem:
        """The same problem with some parameters (alpha included) changed."""
        alpha = float(changes.pop("alpha", self.alpha))
        return _build(self.solver, alpha, {**self.parameters, **_renamed(changes)})

    def value_of(self, name: str) -> float:
        """A scalar parameter, alpha included.

        Raises:
            InputError: no such scalar parameter.
        """
        name = {"lambda": "lambda_"}.get(name, name)
        if name == "alpha":
            return self.alpha
        if name not in self.parameters or np.size(self.parameters[name]) != 1:
            scalars = [n for n, v in self.parameters.items() if np.size(v) == 1]
            raise InputError(f"{name!r} is not a scalar parameter; these are alpha, {', '.join(scalars)}")
        return float(np.ravel(self.parameters[name])[0])


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"lambda_" if name == "lambda" else name: value for name, value in values.items()}


def problem(model: Any, *, alpha: float = 1.0, **values: Any) -> Problem:
    """A problem from a catalogue name, a path or a Model, with parameters by name.

    Args:
        alpha: sample complexity n / d, positive.
        values: parameters and structural sizes (tokens, student_rank, teacher_rank, clusters); the rest keep defaults.

    Raises:
        InputError: an unknown name or a value out of range; the sentence lists what is allowed.
    """
    sizes = {name: values.pop(name) for name in STRUCTURAL if name in values}
    for name, value in sizes.items():
        if isinstance(value, bool) or not float(value).is_integer():
            raise InputError(f"{name} = {value!r}: a whole number is expected")
    return _build(load_solver(model, **sizes), alpha, _renamed(values))


def _build(solver: Solver, alpha: Any, values: Mapping[str, Any]) -> Problem:
    specs = {spec["name"]: spec for spec in solver.model.PARAMETERS}
    unknown = [name for name in values if name not in specs]
    if unknown:
        known = "; ".join(
            [
                "alpha in (0, inf)",
                *[f"{n.rstrip('_')} in {s['allowed']}" for n, s in specs.items()],
                *_size_names(solver),
            ]
        )
        raise InputError(f"unknown parameter {unknown[0]!r} of {solver.name}; known are {known}")
    checked = {name: _checked(spec, values.get(name, spec["default"])) for name, spec in specs.items()}
    number = _number("alpha", alpha)
    if not 0 < number < np.inf:
        raise InputError(f"alpha = {alpha!r} is out of range; allowed is (0, inf)")
    built = Problem(solver, number, checked)
    _ = built.law
    if np.any(~(built.noise_scale >= 0)):
        raise InputError("a noise variance is negative")
    return built


def _size_names(solver: Solver) -> list[str]:
    return [f"{name} (structural, here {value})" for name, value in solver.structure.items()]


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} = {value!r}: a number is expected") from None


def _checked(spec: Mapping[str, Any], value: Any) -> Any:
    """A value in the parameter's shape and range; a scalar fills a vector."""
    name, shape = spec["name"], tuple(spec["shape"])
    shown = name.rstrip("_")
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        raise InputError(f"{shown} = {value!r}: a number or a nested list of numbers is expected") from None
    if array.shape == () and len(shape) == 1:
        array = np.full(shape, float(array))
    if array.shape != shape:
        expected = f"an array of shape {shape}" if shape else "a number"
        raise InputError(f"{shown} has shape {array.shape}; {expected} is expected")
    low, high = spec["low"], spec["high"]
    bad = ~np.isfinite(array)
    if low is not None:
        bad |= (array <= low) if spec["open_low"] else (array < low)
    if high is not None:
        bad |= (array >= high) if spec["open_high"] else (array > high)
    if bad.any():
        raise InputError(f"{shown} = {value!r} is out of range; allowed is {spec['allowed']}")
    if not shape:
        return float(array)
    array.setflags(write=False)
    return array


__all__ = ["Problem", "problem"]
