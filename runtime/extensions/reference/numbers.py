"""The numbers of a problem in mpmath: every float is taken as the decimal it prints as, 0.1 as one tenth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ...base.errors import InputError
from ...problems.law import TokenLaw
from ...problems.problem import Problem
from ...problems.solver_types import Reference


def decimal_mpf(value: Any) -> Any:
    """Return a float as the decimal it prints as, an mpf unchanged."""
    return value if isinstance(value, mp.mpf) else mpf(repr(float(value)))


def decimal_array(values: Any, number: Callable[[Any], Any] = decimal_mpf) -> np.ndarray:
    """Return nested numbers as an array of mpf, or of another arithmetic.

    Args:
        values: nested numbers.
        number: function that converts a number.
    """
    array = np.array(values, dtype=object)
    return np.frompyfunc(number, 1, 1)(array) if array.size else array


@dataclass(frozen=True)
class Numbers:
    """The numbers of a problem.

    Attributes:
        flat: parameters in the order of SYMBOLS; strengths: of the ridge; law: law of the tokens; noise: variances.
    """

    problem: Problem
    alpha: Any
    flat: tuple[Any, ...]
    strengths: tuple[Any, ...]
    law: TokenLaw
    noise: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        problem: Problem,
        parameter: str = "alpha",
        value: Any = None,
        *,
        number: Callable[[Any], Any] = decimal_mpf,
        reference: Reference | None = None,
    ) -> Numbers:
        """Return the numbers of a problem at the precision in force.

        Args:
            problem: the problem.
            parameter: a scalar parameter (alpha included).
            value: its value, instead of that of the problem.
            number: function that converts a number, for another arithmetic.
            reference: the generated functions for that arithmetic.

        Raises:
            InputError: probabilities of a given law or spectrum do not add up to one as decimals.
        """
        parameter = {"lambda": "lambda_"}.get(parameter, parameter)
        given = {parameter: value} if value is not None else {}
        parts = {
            spec["name"]: decimal_array(np.ravel(given.get(spec["name"], problem.parameters[spec["name"]])), number)
            for spec in problem.solver.model.PARAMETERS
        }
        flat = tuple(entry for part in parts.values() for entry in part)
        reference = reference or problem.solver.reference
        return cls(
            problem=problem,
            alpha=number(value if "alpha" in given else problem.alpha),
            flat=flat,
            strengths=tuple(entry for name in problem.solver.model.STRENGTHS for entry in parts[name]),
            law=_law(problem, flat, number, reference),
            noise=tuple(map(number, reference.noise_variances(flat))),
        )

    def constants(self, label: int) -> tuple[Any, ...]:
        """Return the constants vector of the generated functions for one token with this label."""
        return (self.law.rho[label], mpf(label), *self.flat)


def _law(problem: Problem, flat: tuple[Any, ...], number: Callable[[Any], Any], reference: Reference) -> TokenLaw:
    if problem.given_law is not None:
        given = dict(vars(problem.given_law))
    else:
        given = reference.law(flat)
        given["gamma"] = given.pop("covariance")
    given.pop("rows", None)  # a ridge sees second moments only
    law = TokenLaw(**{name: decimal_array(array, number) for name, array in given.items()})  # type: ignore[arg-type]
    if problem.spectrum is not None:
        law = law.with_spectrum(decimal_array(problem.spectrum, number))
    if number is decimal_mpf:
        _check_weights(law)
    return law


def _check_weights(law: TokenLaw) -> None:
    for name, weights in (("label probabilities", law.labels), ("spectral weights", law.weights)):
        missing = abs(weights.sum() - 1)
        if missing > mpf(10) ** (10 - mp.dps):
            raise InputError(f"{name} add up to 1 only within {mp.nstr(missing, 2)} as decimals: give ones that do")
