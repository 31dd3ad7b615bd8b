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
from .active_subspace import ActiveSubspace, AssignmentSubspace, active_subspace, metric_active_subspace

CASE = sp.Symbol("case", integer=True, nonnegative=True)


@dataclass(frozen=True)
class ReducedModel(FixedSizeModel):
    """A model reduced to one token whose fields are the active combinations z and y of a full model.

    Its label is the case: an assignment of the other's labels and, where combinations contain it, the labelled noise.

    Attributes:
        full: the original model; cases: one for each label, all with the same numbers of rows z and y.
    """

    full: FixedSizeModel = field(kw_only=True)
    cases: tuple[AssignmentSubspace, ...] = field(kw_only=True)

    @property
    def channel_constants(self) -> tuple[sp.Symbol, ...]:
        """Return the constants of the full model, then the symbol of the case."""
        return (*self.full.channel_constants, *self.labels)

    @property
    def solution_symbols(self) -> list[sp.Symbol]:
        """Return the trained numbers."""
        return [s for s, _ in self.trained.values()]

    def parameter_symbols(self) -> list[sp.Symbol]:
        """Return the parameter symbols of the full model."""
        return self.full.parameter_symbols()

    def parameter_defaults(self) -> list[sp.Expr]:
        """Return the parameter defaults of the full model."""
        return self.full.parameter_defaults()


def reduced_loss(model: FixedSizeModel) -> ReducedModel | None:
    """Return the reduced model of the loss with the same channel averages; None if no dimension is saved.

    A loss that contains overlaps, and declared kinks, need the fields themselves.
    """
    if model.loss_kinks or model.loss_depends_on_q:
        return None
    return _reduce_integrand(model, "loss")


def reduced_metric(model: FixedSizeModel) -> ReducedModel | None:
    """Return the reduced model of the metric; None if no dimension is saved."""
    if model.metric is None or model.metric_kinks or model.metric.has(*flatten_entries(model.Q)):
        return None
    return _reduce_integrand(model, "metric")


def _reduce_integrand(model: FixedSizeModel, integrand: str) -> ReducedModel | None:
    """Return the reduced model of an integrand; None if no dimension is saved."""
    found = _smallest_subspace(model, integrand)
    rows = found.students, found.dimension - found.students
    sizes = max(len(case.z) for case in found.assignments), max(len(case.y) for case in found.assignments)
    if sizes == rows:
        return None
    cases = tuple(_pad_assignment_with_fields(case, sizes, model) for case in found.assignments)
    structure = Structure(1, sizes[0], sizes[1], len(cases))
    X = sp.Matrix(1, sizes[0], lambda l, a: sp.Symbol(f"x_{l}_{a}", real=True))
    Y = sp.Matrix(1, sizes[1], lambda l, b: sp.Symbol(f"y_{l}_{b}", real=True))

    def rename_fields_to_combinations(e: sp.Expr) -> sp.Expr:
        return e.xreplace(dict(zip([*cases[0].z, *cases[0].y], [*X, *Y], strict=True)))

    expressions: dict[str, Any] = {"loss": sp.Integer(0), "metric": None}
    return ReducedModel(
        **expressions
        | {integrand: _select_by_assignment([rename_fields_to_combinations(case.loss) for case in cases])},
        name=model.name,
        structure=structure,
        parameters=model.parameters,
        X=X,
        Y=Y,
        noise=_marginal_noise_law(
            model, found, [[rename_fields_to_combinations(e) for e in case.probabilities] for case in cases]
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


def _smallest_subspace(model: FixedSizeModel, integrand: str) -> ActiveSubspace:
    """Return the active subspace for all values of the discrete noise, or one for each value if that is smaller.

    The latter need a law of the noise that does not depend on Y.
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
        return max(len(case.z) + len(case.y) for case in one.assignments)

    return drawn if combination_count(drawn) < combination_count(found) else found


def _pad_assignment_with_fields(
    case: AssignmentSubspace, sizes: tuple[int, int], model: FixedSizeModel
) -> AssignmentSubspace:
    """Return active combinations padded with single fields up to the given numbers of z and y."""
    defaults = dict(zip(model.parameter_symbols(), model.parameter_defaults(), strict=True))

    def _extend_to_full_row_rank(
        parts: Sequence[sp.ImmutableMatrix], leading: int, count: int
    ) -> list[sp.ImmutableMatrix]:
        """Return matrix rows extended by unit vectors that keep the first `leading` columns of full row rank."""
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


def _select_by_assignment(values: Sequence[sp.Expr]) -> sp.Expr:
    return values[0] if len(set(values)) == 1 else by_label(CASE, *values)


def _marginal_noise_law(
    model: FixedSizeModel, found: ActiveSubspace, probabilities: Sequence[Sequence[sp.Expr]]
) -> dict[str, tuple[sp.Symbol, DiscreteNoise]]:
    """Return the discrete noise that a case does not fix, with its marginal probabilities as functions of y."""
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
        own = [_select_by_assignment(values) for values in zip(*parts, strict=True)]
        laws[name] = (u, DiscreteNoise(law.values, tuple(own)))
    return laws
