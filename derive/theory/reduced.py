"""A model as its averages need it: what a loss or a metric reads of the fields as the fields of one token.

The proximal map, the averages and their derivatives are those of z and y; overlaps go there by z = A X + B Y + E u and
averages come back by the chain rule and by regression on (z, y), see docs/theory.md (11.7) to (11.10).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import sympy as sp

from ..authoring.language import by_label
from ..authoring.model import ModelAt
from ..authoring.parameters import DiscreteNoise, Structure, leaves
from ..authoring.regulariser import Ridge
from .reads import Assignment, Reading, metric_reading, reading

CASE = sp.Symbol("case", integer=True, nonnegative=True)


@dataclass(frozen=True)
class ReducedModel(ModelAt):
    """A model of one token, whose student fields are z and teacher fields y, with the constants of another.

    Its label is the case: an assignment of the other's labels and, where combinations hold it, of the labelled noise.

    Attributes:
        full: the model that it is of; cases: one a label, with as many rows z and y each.
    """

    full: ModelAt = field(kw_only=True)
    cases: tuple[Assignment, ...] = field(kw_only=True)

    @property
    def constants(self) -> tuple[sp.Symbol, ...]:
        """Those of the full model, then the case."""
        return (*self.full.constants, *self.labels)

    @property
    def own(self) -> list[sp.Symbol]:
        """The trained numbers."""
        return [s for s, _ in self.trained.values()]

    def parameter_symbols(self) -> list[sp.Symbol]:
        """Of the full model."""
        return self.full.parameter_symbols()

    def parameter_defaults(self) -> list[sp.Expr]:
        """Of the full model."""
        return self.full.parameter_defaults()


def reduced_loss(model: ModelAt) -> ReducedModel | None:
    """The problem of one token that averages over the channel are those of, where it has fewer dimensions; else None.

    A loss that holds overlaps, and declared kinks, ask for the fields themselves.
    """
    if model.loss_kinks or model.loss_holds_q:
        return None
    return _reduced(model, "loss")


def reduced_metric(model: ModelAt) -> ReducedModel | None:
    """The same of the test error; its student fields are combinations of h."""
    if model.metric is None or model.metric_kinks or model.metric.has(*leaves(model.Q)):
        return None
    return _reduced(model, "metric")


def _reduced(model: ModelAt, integrand: str) -> ReducedModel | None:
    found = _fewest(model, integrand)
    rows = found.students, found.dimension - found.students
    sizes = max(len(case.z) for case in found.assignments), max(len(case.y) for case in found.assignments)
    if sizes == rows:
        return None
    cases = tuple(_filled(case, sizes, model) for case in found.assignments)
    structure = Structure(1, sizes[0], sizes[1], len(cases))
    X = sp.Matrix(1, sizes[0], lambda l, a: sp.Symbol(f"x_{l}_{a}", real=True))
    Y = sp.Matrix(1, sizes[1], lambda l, b: sp.Symbol(f"y_{l}_{b}", real=True))

    def here(e: sp.Expr) -> sp.Expr:
        return e.xreplace(dict(zip([*cases[0].z, *cases[0].y], [*X, *Y], strict=True)))

    expressions: dict[str, Any] = {"loss": sp.Integer(0), "metric": None}
    return ReducedModel(
        **expressions | {integrand: _by_case([here(case.loss) for case in cases])},
        name=model.name,
        structure=structure,
        parameters=model.parameters,
        X=X,
        Y=Y,
        noise=_noise(model, found, [[here(e) for e in case.probabilities] for case in cases]),
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


def _fewest(model: ModelAt, integrand: str) -> Reading:
    """What is read at any value of the labelled noise, or at each on its own, where that is less and its law known."""
    read = {"loss": reading, "metric": metric_reading}[integrand]
    found = read(model)
    assert found is not None
    laws = [p for u, law in model.noise.values() if isinstance(law, DiscreteNoise) for p in law.probabilities]
    if not found.discrete or any(sp.sympify(p).has(*model.Y) for p in laws):
        return found
    drawn = read(model, drawn=True)
    assert drawn is not None

    def size(one: Reading) -> int:
        return max(len(case.z) + len(case.y) for case in one.assignments)

    return drawn if size(drawn) < size(found) else found


def _filled(case: Assignment, sizes: tuple[int, int], model: ModelAt) -> Assignment:
    """The case with single fields beside its combinations, until there are as many as sizes say."""
    defaults = dict(zip(model.parameter_symbols(), model.parameter_defaults(), strict=True))

    def extended(parts: Sequence[sp.ImmutableMatrix], leading: int, count: int) -> list[sp.ImmutableMatrix]:
        """Rows of matrices side by side; the first `leading` of them together are to keep full row rank."""
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

    A, B, E = extended((case.A, case.B, case.E), 1, sizes[0])
    F, H = extended((case.F, case.H), 2, sizes[1])
    return replace(case, A=A, B=B, E=E, F=F, H=H)


def _by_case(values: Sequence[sp.Expr]) -> sp.Expr:
    return values[0] if len(set(values)) == 1 else by_label(CASE, *values)


def _noise(
    model: ModelAt, found: Reading, probabilities: Sequence[Sequence[sp.Expr]]
) -> dict[str, tuple[sp.Symbol, DiscreteNoise]]:
    """The labelled noise that no case stands for, its probabilities in y, those of each from the joint ones."""
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
        own = [_by_case(values) for values in zip(*parts, strict=True)]
        laws[name] = (u, DiscreteNoise(law.values, tuple(own)))
    return laws
