"""Observables of a solution that are formulas of its overlaps.

To add one, write a function here and its entry in `FORMULAS`: tables, text, JSON, figures, conditions, minima,
derivatives and sweeps then include it, with an error bar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .overlaps import Overlaps
    from .problem import Problem


@dataclass(frozen=True)
class ObservableFormula:
    """An observable of a solution that is a formula of its overlaps.

    Attributes:
        meaning: description in words.
        latex: symbol in LaTeX.
        value: function of problem and overlaps that returns the observable.
        needs: requirement on the problem, in words.
        is_defined: function that returns whether a problem meets the requirement.
    """

    meaning: str
    latex: str
    value: Callable[[Problem, Overlaps], float]
    needs: str = ""
    is_defined: Callable[[Problem], bool] = lambda _: True


def alignment(problem: Problem, overlaps: Overlaps) -> float:
    """Return the alignment with the teacher: the mean squared canonical correlation of student and teacher fields.

    It is in [0, 1] (docs/theory.md (7.9)); for one column each it is the squared cosine of the angle between W and W*.
    It is nan if q is singular, as for W = 0.

    Args:
        problem: problem that the overlaps belong to.
        overlaps: overlaps of the student and the teacher.
    """
    try:
        fitted = np.linalg.solve(overlaps.q, overlaps.theta)
        explained = np.linalg.solve(problem.law.rho_star, np.einsum("cat,cau->ctu", overlaps.theta, fitted))
    except np.linalg.LinAlgError:
        return np.nan
    shares = np.zeros(problem.contexts)
    for labels, probability in problem.label_probabilities:
        np.add.at(shares, problem.token_cluster_indices(labels), probability / problem.tokens)
    return float(shares @ np.trace(explained, axis1=1, axis2=2) / problem.teacher_rank)


FORMULAS = {
    "alignment": ObservableFormula(
        meaning="alignment with the teacher",
        latex="R^2",
        value=alignment,
        needs="a teacher that the weights can learn",
        is_defined=lambda problem: problem.has_teacher_overlap,
    )
}


class ObservablesMixin:
    """Base class of results: observables of the overlaps as attributes NAME (value) and NAME_error (error bar).

    Attributes:
        observed: pairs of value and error bar by name: `test_error`, further metrics `test_error_NAME`, and the
            formulas in `FORMULAS`. Undefined ones are missing here; as attributes they are nan.
    """

    observed: Mapping[str, tuple[float, float]]

    def _observable_with_error(self, name: str) -> tuple[float, float]:
        return self.observed.get(name, (np.nan, np.nan))

    @property
    def test_error(self) -> float:
        """Test error: the average of the first metric over new samples (docs/theory.md section 7); nan without one."""
        return self._observable_with_error("test_error")[0]

    @property
    def test_error_error(self) -> float:
        """Error bar of the test error."""
        return self._observable_with_error("test_error")[1]


def _observable_property(name: str, place: int, doc: str) -> property:
    return property(lambda self: self._observable_with_error(name)[place], doc=doc)


for _name, _formula in FORMULAS.items():
    setattr(
        ObservablesMixin, _name, _observable_property(_name, 0, f"{_formula.meaning[0].upper()}{_formula.meaning[1:]}.")
    )
    setattr(ObservablesMixin, f"{_name}_error", _observable_property(_name, 1, f"Error bar of `{_name}`."))
