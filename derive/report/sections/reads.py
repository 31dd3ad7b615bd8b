"""The combinations of fields and noise that the loss and the metric depend on."""

from __future__ import annotations

import sympy as sp

from ...authoring.model import FixedSizeModel
from ...theory.active_subspace import ActiveSubspace, LabelAssignmentSubspace, active_subspace, metric_active_subspace
from ..blocks import Items, Relation, Section, TextWithSymbols
from ..own_symbols import active_combination_symbol, metric_field_symbols
from ..wording import vocabulary_of_model

TITLE = "What the loss reads"
_MAX_ASSIGNMENTS = 27  # of labels that are written out


def active_subspace_sections(at: FixedSizeModel) -> tuple[Section, ...]:
    """Return the section on the combinations of fields that loss and metric depend on; () if there are not fewer.

    Separate combinations for each value of discrete noise are shown if they leave fewer dimensions.
    """
    if at.structure.clusters**at.structure.tokens > _MAX_ASSIGNMENTS:
        return (
            Section(
                TITLE,
                (
                    TextWithSymbols(
                        f"It is not written out here: at most {_MAX_ASSIGNMENTS} assignments of labels are."
                    ),
                ),
            ),
        )
    items: Items = []
    for name in ("loss", "metric"):
        find = active_subspace if name == "loss" else metric_active_subspace
        found, apart = find(at), find(at, drawn=True)
        if found is not None and apart is not None:
            chosen = apart if apart.active_dimension < found.active_dimension else found
            dimension = chosen.full_dimension - (0 if vocabulary_of_model(at).has_teacher else len(at.Y))
            is_shorter = chosen.has_lower_dimension and (
                dimension == chosen.full_dimension or chosen.active_dimension < dimension
            )
            items += _equations_of_active_combinations(at, chosen, name, dimension) if is_shorter else []
    return (Section(TITLE, tuple(items)),) if items else ()


def _equations_of_active_combinations(at: FixedSizeModel, found: ActiveSubspace, name: str, dimension: int) -> Items:
    """Return equations of the combinations of fields that the loss or metric `name` depends on."""
    fresh = dict(zip(at.X, metric_field_symbols(at), strict=True)) if name == "metric" else {}
    variables = [v.xreplace(fresh) for v in found.variables]
    items: Items = [
        TextWithSymbols(
            f"Of the fields and the Gaussian noise, {{}}, the {name} depends on these combinations alone"
            f"{', a set for each case' if _count_distinct_assignments(found) > 1 else ''}:",
            (sp.Tuple(*[v for v in variables if vocabulary_of_model(at).has_teacher or v not in at.Y]),),
        )
    ]
    seen: dict[tuple[sp.Expr, ...], None] = {}
    for case in found.assignments:
        symbols = [active_combination_symbol(n) for n in range(case.coefficients.rows)]
        rows = [
            sp.Add(*[e * v for e, v in zip(case.coefficients.row(n), variables, strict=True)])
            for n in range(len(symbols))
        ]
        written = case.loss.xreplace(
            dict(zip([*case.student_combinations, *case.teacher_combinations], symbols, strict=True))
        )
        if (key := (*rows, written)) in seen:
            continue
        seen.setdefault(key)
        items += _sentence_on_equivalent_labels(at, found, case) if _count_distinct_assignments(found) > 1 else []
        items += [Relation(symbol, row) for symbol, row in zip(symbols, rows, strict=True)]
        items.append(Relation(sp.Symbol(name), written))
        signs = [s for s, only in zip(symbols[len(case.student_combinations) :], case.by_sign, strict=True) if only]
        if signs:
            listed = ", ".join(["{}"] * len(signs))
            text = f"Of {listed} the sign alone is read: given the others, its average is a closed form."
            items.append(TextWithSymbols(text, tuple(signs)))
    left = (
        "no integral is left"
        if found.active_dimension == 0
        else f"{found.active_dimension} {'is' if found.active_dimension == 1 else 'are'} left"
    )
    items.append(TextWithSymbols(f"Of the {dimension} dimensions of its average {left}."))
    return items


def _count_distinct_assignments(found: ActiveSubspace) -> int:
    """Return how many different sets of combinations and loss there are over all assignments of labels."""
    return len({(case.coefficients, case.loss) for case in found.assignments})


def _sentence_on_equivalent_labels(at: FixedSizeModel, found: ActiveSubspace, case: LabelAssignmentSubspace) -> Items:
    """Return a sentence on all labels and noise values with the same combinations of fields as a given case."""
    alike = [other for other in found.assignments if (other.coefficients, other.loss) == (case.coefficients, case.loss)]
    given = [*(at.labels if at.structure.clusters > 1 else ()), *found.drawn]
    values = [[*(other.labels if at.structure.clusters > 1 else ()), *other.noise] for other in alike]
    listed = " or ".join(["{}"] * len(values))
    return [
        TextWithSymbols(f"Where {{}} is {listed}:", tuple(_unwrap_single_value(value) for value in [given, *values]))
    ]


def _unwrap_single_value(values: list[sp.Expr]) -> sp.Basic:
    """Return the only value of a list, or several values as a tuple."""
    return sp.sympify(values[0]) if len(values) == 1 else sp.Tuple(*values)
