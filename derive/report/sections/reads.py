"""Through which combinations of fields and noise the loss and the metric depend on them."""

from __future__ import annotations

import sympy as sp

from ...authoring.model import ModelAt
from ...theory.reads import Assignment, Reading, metric_reading, reading
from ..blocks import Items, Relation, Section, Words
from ..own_symbols import combination_symbol, fresh_fields

TITLE = "What the loss reads"
_MOST = 27


def reads_sections(at: ModelAt) -> tuple[Section, ...]:
    """The combinations, loss and metric written in them, and the dimension that is left; none where nothing is gained.

    Values of discrete noise are told apart where that leaves fewer dimensions.
    """
    if at.structure.clusters**at.structure.tokens > _MOST:
        return (Section(TITLE, (Words(f"It is not written out here: at most {_MOST} assignments of labels are."),)),)
    items: Items = []
    for name in ("loss", "metric"):
        ask = reading if name == "loss" else metric_reading
        found, apart = ask(at), ask(at, drawn=True)
        if found is not None and apart is not None:
            chosen = apart if apart.read < found.read else found
            items += _items(at, chosen, name) if chosen.reduced else []
    return (Section(TITLE, tuple(items)),) if items else ()


def _items(at: ModelAt, found: Reading, name: str) -> Items:
    fresh = dict(zip(at.X, fresh_fields(at), strict=True)) if name == "metric" else {}
    variables = [v.xreplace(fresh) for v in found.variables]
    items: Items = [
        Words(
            f"Of the fields and the Gaussian noise, {{}}, the {name} depends on these combinations alone"
            f"{', a set for each case' if _cases(found) > 1 else ''}:",
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
        items += _case(at, found, case) if _cases(found) > 1 else []
        items += [Relation(symbol, row) for symbol, row in zip(symbols, rows, strict=True)]
        items.append(Relation(sp.Symbol(name), written))
        signs = [s for s, only in zip(symbols[len(case.z) :], case.by_sign, strict=True) if only]
        if signs:
            listed = ", ".join(["{}"] * len(signs))
            text = f"Of {listed} the sign alone is read: given the others, its average is a closed form."
            items.append(Words(text, tuple(signs)))
    left = "no integral is left" if found.read == 0 else f"{found.read} {'is' if found.read == 1 else 'are'} left"
    items.append(Words(f"Of the {found.dimension} dimensions of its average {left}."))
    return items


def _cases(found: Reading) -> int:
    """How many assignments differ in what is shown of them."""
    return len({(case.rows, case.loss) for case in found.assignments})


def _case(at: ModelAt, found: Reading, case: Assignment) -> Items:
    """Of which labels and values of the noise: of the first that reads so."""
    alike = [other for other in found.assignments if (other.rows, other.loss) == (case.rows, case.loss)]
    given = [*(at.labels if at.structure.clusters > 1 else ()), *found.drawn]
    values = [[*(other.labels if at.structure.clusters > 1 else ()), *other.noise] for other in alike]
    listed = " or ".join(["{}"] * len(values))
    return [Words(f"Where {{}} is {listed}:", tuple(_bare(value) for value in [given, *values]))]


def _bare(values: list[sp.Expr]) -> sp.Basic:
    """Without brackets around one."""
    return sp.sympify(values[0]) if len(values) == 1 else sp.Tuple(*values)
