"""A model reduced to the combinations of fields that a loss or a metric depends on, as the fields of one token.

The proximal map, the averages and their derivatives are those of z and y; overlaps are mapped by z = A X + B Y + E u
and averages are mapped back by the chain rule and by regression on (z, y), see docs/theory.md (11.7) to (11.10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import sympy as sp

from ..authoring.language import by_label
from ..authoring.model import FixedSizeModel
from ..authoring.parameters import DiscreteNoise, Structure, flatten_entries
from ..authoring.regulariser import Ridge
from .active_subspace import ActiveSubspace, LabelAssignmentSubspace, active_subspace, metric_active_subspace

CASE = sp.Symbol("case", integer=True, nonnegative=True)


@dataclass(frozen=True)
class ReducedModel(FixedSizeModel):
    """A model with fewer fields: one token, whose fields are the combinations z and y that the full loss depends on.

    Its single label numbers the cases: assignments of labels to the full model's tokens and, if fixed, noise values.

    Attributes:
        full: the original model.
        cases: the combinations z and y in each case, equally many in all cases.
    """

    full: FixedSizeModel = field(kw_only=True)
    cases: tuple[LabelAssignmentSubspace, ...] = field(kw_only=True)

    @property
    def constants_in_channel_averages(self) -> tuple[sp.Symbol, ...]:
        """Return the constants of the full model's channel averages, then the label that numbers the cases."""
        return (*self.full.constants_in_channel_averages, *self.labels)

    @property
    def symbols_of_order_parameters(self) -> list[sp.Symbol]:
        """Return the symbols of the numbers trained with the weights, the only order parameters in the loss."""
        return [s for s, _ in self.trained.values()]

    def parameter_symbols(self) -> list[sp.Symbol]:
        """Return the symbols of the parameters, which are those of the full model."""
        return self.full.parameter_symbols()

    def parameter_defaults(self) -> list[sp.Expr]:
        """Return the default values of the parameters, which are those of the full model."""
        return self.full.parameter_defaults()


def reduce_model_for_loss(model: FixedSizeModel) -> ReducedModel | None:
    """Return a model with fewer fields and the same averages of the loss; None if no dimension is saved.

    A loss that contains overlaps q, or has kinks declared by the author, is not reduced.
    """
    if model.loss_kinks or model.loss_depends_on_q:
        return None
    return _reduce_model_for_integrand(model, "loss")


def reduce_model_for_metric(model: FixedSizeModel) -> ReducedModel | None:
    """Return a model with fewer fields and the same average of the metric; None if no dimension is saved."""
    if model.metric is None or model.metric_kinks or model.metric.has(*flatten_entries(model.Q)):
        return None
    return _reduce_model_for_integrand(model, "metric")


def _reduce_model_for_integrand(model: FixedSizeModel, integrand: str) -> ReducedModel | None:
    """Return a model with fewer fields and the same averages of "loss" or "metric"; None if no dimension is saved."""
    found = _smallest_active_subspace_of_fields(model, integrand)
    rows = found.students, found.full_dimension - found.students
    sizes = (
        max(len(case.student_combinations) for case in found.assignments),
        max(len(case.teacher_combinations) for case in found.assignments),
    )
    if sizes == rows:
        return None
    cases = tuple(_pad_combinations_with_fields(case, sizes, model) for case in found.assignments)
    structure = Structure(1, sizes[0], sizes[1], len(cases))
    X = sp.Matrix(1, sizes[0], lambda l, a: sp.Symbol(f"x_{l}_{a}", real=True))
    Y = sp.Matrix(1, sizes[1], lambda l, b: sp.Symbol(f"y_{l}_{b}", real=True))

    def rename_combinations_to_fields(e: sp.Expr) -> sp.Expr:
        combinations = *cases[0].student_combinations, *cases[0].teacher_combinations
        return e.xreplace(dict(zip(combinations, [*X, *Y], strict=True)))

    expressions: dict[str, Any] = {"loss": sp.Integer(0), "metric": None}
    return ReducedModel(
        **expressions
        | {integrand: _select_value_by_case([rename_combinations_to_fields(case.loss) for case in cases])},
        name=model.name,
        structure=structure,
        parameters=model.parameters,
        X=X,
        Y=Y,
        noise=_marginal_noise_distributions(
            model, found, [[rename_combinations_to_fields(e) for e in case.probabilities] for case in cases]
        ),
        labels=(CASE,),
        Q=(),
        trained=model.trained,
        baseline=None,
        law={},
        regulariser=Ridge(),
        loss_kinks=(),
        metric_kinks=(),
        unbounded=model.unbounded,
        written=model.written,
        full=model,
        cases=cases,
    )


def _smallest_active_subspace_of_fields(model: FixedSizeModel, integrand: str) -> ActiveSubspace:
    """Return the combinations common to all discrete noise, or those for each noise value if these are fewer.

    Separate combinations for each noise value require noise probabilities that do not depend on the fields Y.
    """
    read = {"loss": active_subspace, "metric": metric_active_subspace}[integrand]
    found = read(model)
    assert found is not None
    laws = [p for u, law in model.noise.values() if isinstance(law, DiscreteNoise) for p in law.probabilities]
    if not found.discrete or any(sp.sympify(p).has(*model.Y) for p in laws):
        return found
    drawn = read(model, drawn=True)
    assert drawn is not None

    def combination_count(one: ActiveSubspace) -> int:
        return max(len(case.student_combinations) + len(case.teacher_combinations) for case in one.assignments)

    return drawn if combination_count(drawn) < combination_count(found) else found


def _pad_combinations_with_fields(
    case: LabelAssignmentSubspace, sizes: tuple[int, int], model: FixedSizeModel
) -> LabelAssignmentSubspace:
    """Return the combinations of fields in one case, with single fields added up to the given numbers of z and y."""
    defaults = dict(zip(model.parameter_symbols(), model.parameter_defaults(), strict=True))

    def _extend_to_full_row_rank(
        parts: Sequence[sp.ImmutableMatrix], leading: int, count: int
    ) -> list[sp.ImmutableMatrix]:
        """Return matrices, side by side, extended to `count` rows by unit vectors; the first ones keep full rank."""
        rows = sp.Matrix.hstack(*parts)
        width = sum(part.cols for part in parts[:leading])
        for n in range(width):
            if rows.rows == count:
                break
            longer = rows.col_join(sp.Matrix(1, rows.cols, lambda _, j, n=n: sp.Integer(int(j == n))))
            if longer[:, :width].subs(defaults).rank() == longer.rows:
                rows = longer
        ends = [sum(part.cols for part in parts[: n + 1]) for n in range(len(parts))]
        return [sp.ImmutableMatrix(rows[:, e - part.cols : e]) for part, e in zip(parts, ends, strict=True)]

    A, B, E = _extend_to_full_row_rank((case.A, case.B, case.E), 1, sizes[0])
    F, H = _extend_to_full_row_rank((case.F, case.H), 2, sizes[1])
    return replace(case, A=A, B=B, E=E, F=F, H=H)


def _select_value_by_case(values: Sequence[sp.Expr]) -> sp.Expr:
    return values[0] if len(set(values)) == 1 else by_label(CASE, *values)


def _marginal_noise_distributions(
    model: FixedSizeModel, found: ActiveSubspace, probabilities: Sequence[Sequence[sp.Expr]]
) -> dict[str, tuple[sp.Symbol, DiscreteNoise]]:
    """Return the discrete noises that a case does not fix, with their probabilities in the teacher combinations y."""
    if found.drawn or not found.discrete:
        return {}
    held = [(name, u, law) for name, (u, law) in model.noise.items() if u in found.discrete]
    choices = list(product(*[range(len(law.values)) for *_, law in held if isinstance(law, DiscreteNoise)]))
    laws: dict[str, tuple[sp.Symbol, DiscreteNoise]] = {}
    for place, (name, u, law) in enumerate(held):
        assert isinstance(law, DiscreteNoise)
        parts = [[sp.Integer(0)] * len(law.values) for _ in probabilities]
        for part, joint in zip(parts, probabilities, strict=True):
            for probability, choice in zip(joint, choices, strict=True):
                part[choice[place]] += probability
        own = [_select_value_by_case(values) for values in zip(*parts, strict=True)]
        laws[name] = (u, DiscreteNoise(law.values, tuple(own)))
    return laws
