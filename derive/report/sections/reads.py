"""The combinations of fields and noise that the loss and the metric depend on."""

from __future__ import annotations

import sympy as sp

from ...authoring.model import ModelAt
from ...theory.active_subspace import ActiveSubspace, Assignment, active_subspace, metric_active_subspace
from ..blocks import Items, Relation, Section, Words
from ..own_symbols import combination_symbol, metric_fields

TITLE = "What the loss reads"
_MAX_ASSIGNMENTS = 27  # of labels that are written out


def active_subspace_sections(at: ModelAt) -> tuple[Section, ...]:
    """Return the combinations, loss and metric in them, and the remaining dimension; none where nothing is gained.

    Values of discrete noise have combinations of their own where that leaves fewer dimensions.
    """
    if at.structure.clusters**at.structure.tokens > _MAX_ASSIGNMENTS:
        return (
            Section(
                TITLE, (Words(f"It is not written out here: at most {_MAX_ASSIGNMENTS} assignments of labels are."),)
            ),
        )
    items: Items = []
    for name in ("loss", "metric"):
        find = active_subspace if name == "loss" else metric_active_subspace
        found, apart = find(at), find(at, drawn=True)
        if found is not None and apart is not None:
            chosen = apart if apart.active_dimension < found.active_dimension else found
            items += _combination_items(at, chosen, name) if chosen.is_reduced else []
    return (Section(TITLE, tuple(items)),) if items else ()


def _combination_items(at: ModelAt, found: ActiveSubspace, name: str) -> Items:
    """Return the combinations of a loss or a metric."""
    fresh = dict(zip(at.X, metric_fields(at), strict=True)) if name == "metric" else {}
    variables = [v.xreplace(fresh) for v in found.variables]
    items: Items = [
        Words(
            f"Of the fields and the Gaussian noise, {{}}, the {name} depends on these combinations alone"
            f"{', a set for each case' if _count_cases(found) > 1 else ''}:",
            (sp.Tuple(*variables),),
        )
    ]
    seen: dict[tuple[sp.Expr, ...], None] = {}
    for case in found.assignments:
        symbols = [combination_symbol(n) for n in range(case.rows.rows)]
        rows = [sp.Add(*[e * v for e, v in zip(case.rows.row(n), variables, strict=True)]) for n in range(len(symbols))]
        written = case.loss.xreplace(dict(zip([*case.z, *case.y], symbols, strict=True)))
        if (key := (*rows, written)) in seen:
            continue
        seen.setdefault(key)
        items += _case_items(at, found, case) if _count_cases(found) > 1 else []
        items += [Relation(symbol, row) for symbol, row in zip(symbols, rows, strict=True)]
        items.append(Relation(sp.Symbol(name), written))
        signs = [s for s, only in zip(symbols[len(case.z) :], case.by_sign, strict=True) if only]
        if signs:
            listed = ", ".join(["{}"] * len(signs))
            text = f"Of {listed} the sign alone is read: given the others, its average is a closed form."
            items.append(Words(text, tuple(signs)))
    left = (
        "no integral is left"
        if found.active_dimension == 0
        else f"{found.active_dimension} {'is' if found.active_dimension == 1 else 'are'} left"
    )
    items.append(Words(f"Of the {found.dimension} dimensions of its average {left}."))
    return items


def _count_cases(found: ActiveSubspace) -> int:
    """Return the number of assignments that differ in the text shown."""
    return len({(case.rows, case.loss) for case in found.assignments})


def _case_items(at: ModelAt, found: ActiveSubspace, case: Assignment) -> Items:
    """Return the labels and values of the noise of all assignments with the same combinations."""
    alike = [other for other in found.assignments if (other.rows, other.loss) == (case.rows, case.loss)]
    given = [*(at.labels if at.structure.clusters > 1 else ()), *found.drawn]
    values = [[*(other.labels if at.structure.clusters > 1 else ()), *other.noise] for other in alike]
    listed = " or ".join(["{}"] * len(values))
    return [Words(f"Where {{}} is {listed}:", tuple(_as_object(value) for value in [given, *values]))]


def _as_object(values: list[sp.Expr]) -> sp.Basic:
    """Return values as one object, a single one without brackets."""
    return sp.sympify(values[0]) if len(values) == 1 else sp.Tuple(*values)
