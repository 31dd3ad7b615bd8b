"""Parameters and law of a problem in mpmath: every float is taken as the decimal it prints as, 0.1 as one tenth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ...base.errors import InputError
from ...problems.law import TokenLaw
from ...problems.problem import Problem
from ...problems.solver_types import MultiprecisionFunctions


def mpf_from_decimal(value: Any) -> Any:
    """Return the multiprecision number (mpf) with exactly the decimal value that a float prints as.

    The float 0.1 becomes one tenth; an mpf is returned unchanged.
    """
    return value if isinstance(value, mp.mpf) else mpf(repr(float(value)))


def array_from_decimals(values: Any, number: Callable[[Any], Any] = mpf_from_decimal) -> np.ndarray:
    """Return an array of the multiprecision numbers (mpf) with exactly the decimal values of nested floats.

    Args:
        values: nested floats.
        number: function that converts a float, for another arithmetic.
    """
    array = np.array(values, dtype=object)
    return np.frompyfunc(number, 1, 1)(array) if array.size else array


@dataclass(frozen=True)
class PreciseParameters:
    """The parameters of a problem and the law of its tokens, as numbers of any precision.

    Attributes:
        alpha: sample complexity.
        flat: entries of all parameters, in the order of the model's generated functions.
        strengths: strengths of the ridge.
        law: law of the tokens.
        noise: variances of the noise.
    """

    problem: Problem
    alpha: Any
    flat: tuple[Any, ...]
    strengths: tuple[Any, ...]
    law: TokenLaw
    noise: tuple[Any, ...]

    @classmethod
    def from_problem(
        cls,
        problem: Problem,
        parameter: str = "alpha",
        value: Any = None,
        *,
        number: Callable[[Any], Any] = mpf_from_decimal,
        reference: MultiprecisionFunctions | None = None,
    ) -> PreciseParameters:
        """Return the parameters of a problem and the law of its tokens at the current precision of mpmath.

        Args:
            problem: problem that gives the parameters.
            parameter: scalar parameter whose value is replaced (alpha included).
            value: new value of the parameter; None for the value in the problem.
            number: function that converts a float to another arithmetic.
            reference: generated functions in that arithmetic.

        Raises:
            InputError: probabilities of a given law or spectrum do not add up to one as decimals.
        """
        parameter = {"lambda": "lambda_"}.get(parameter, parameter)
        given = {parameter: value} if value is not None else {}
        parts = {
            spec["name"]: array_from_decimals(
                np.ravel(given.get(spec["name"], problem.parameters[spec["name"]])), number
            )
            for spec in problem.solver.model.PARAMETERS
        }
        flat = tuple(entry for part in parts.values() for entry in part)
        reference = reference or problem.solver.multiprecision_functions
        return cls(
            problem=problem,
            alpha=number(value if "alpha" in given else problem.alpha),
            flat=flat,
            strengths=tuple(entry for name in problem.solver.model.STRENGTHS for entry in parts[name]),
            law=_token_law(problem, flat, number, reference),
            noise=tuple(map(number, reference.noise_variances(flat))),
        )

    def loss_constants(self, label: int) -> tuple[Any, ...]:
        """Return the constants in the loss of samples with a given cluster label, at any precision."""
        return (self.law.rho[label], mpf(label), *self.flat)


def _token_law(
    problem: Problem, flat: tuple[Any, ...], number: Callable[[Any], Any], reference: MultiprecisionFunctions
) -> TokenLaw:
    if problem.given_law is not None:
        given = dict(vars(problem.given_law))
    else:
        given = reference.law(flat)
        given["gamma"] = given.pop("covariance")
    given.pop("rows", None)  # a ridge sees second moments only
    law = TokenLaw(**{name: array_from_decimals(array, number) for name, array in given.items()})  # type: ignore[arg-type]
    if problem.spectrum is not None:
        law = law.with_spectrum(array_from_decimals(problem.spectrum, number))
    if number is mpf_from_decimal:
        _check_weights_sum_to_one(law)
    return law


def _check_weights_sum_to_one(law: TokenLaw) -> None:
    for name, weights in (("label probabilities", law.labels), ("spectral weights", law.weights)):
        missing = abs(weights.sum() - 1)
        if missing > mpf(10) ** (10 - mp.dps):
            raise InputError(
                f"the {name} add up to 1 only to within {mp.nstr(missing, 2)}; give decimals that add up to 1 exactly"
            )
