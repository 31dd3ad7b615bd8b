"""Names of the quantities of a solution, the same in conditions, tables, minima and derivatives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..base.errors import InputError, describe_unknown_name
from .columns import METRIC, OBSERVED, locations_of_overlap_entries, quantity_in_column
from .overlaps import OVERLAPS

if TYPE_CHECKING:
    from .overlaps import Overlaps
    from .problem import Problem

LOSSES = ("free_entropy", *OBSERVED, "baseline_error")


def solution_quantity_names(problem: Problem, more: Iterable[str] = ()) -> list[str]:
    """Return the names of all quantities that conditions, tables and derivatives of a solution may use.

    These are losses and errors, overlaps (for the modulus of their first entry), entries of overlaps, trained numbers.

    Args:
        problem: the problem that the solution solves.
        more: further names that the caller accepts, listed after the overlaps.
    """
    losses = [name for name in LOSSES if quantity_in_column(name).is_defined(problem)]
    return [
        *losses,
        *(METRIC + name for name in problem.metric_names),
        *OVERLAPS,
        *more,
        *locations_of_overlap_entries(problem),
    ]


def columns_matching_name(name: str, columns: Sequence[str]) -> list[str]:
    """Return the columns of a table that a name stands for; none if it is unknown.

    Args:
        name: the name of a column; theta_21 for that entry of every token; theta for all entries of theta; b for the
            column trained_b of a trained number; minority for the column test_error_minority of a metric.
        columns: names of all columns of the table.
    """
    if name in columns:
        return [name]
    stem, _, entry = name.partition("_")
    of_entry = re.compile(rf"{re.escape(stem)}_\d+(_k\d+)?_{entry}")
    of_block = re.compile(rf"{re.escape(name)}(_k?\d+)+")
    for found in (
        [column for column in columns if entry.isdigit() and of_entry.fullmatch(column)],
        [column for column in columns if of_block.fullmatch(column)],
        [column for column in columns if column in (f"trained_{name}", METRIC + name)],
    ):
        if found:
            return found
    return []


def resolve_quantity_name(problem: Problem, name: str, beginning: str, more: Iterable[str] = ()) -> str:
    """Return the full name of the quantity that an abbreviated name stands for (one of `solution_quantity_names`).

    Args:
        problem: the problem that the solution solves.
        name: name of a quantity, see `columns_matching_name`.
        beginning: beginning of the error message, such as "condition 'x = 1'".
        more: further names that the caller accepts.

    Raises:
        InputError: the name stands for no quantity or for several; the message lists the choices.
    """
    names = solution_quantity_names(problem, more)
    found = columns_matching_name(name, names)
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{beginning}: {name!r} stands for {', '.join(found)}; name one of them")
    if name in LOSSES:
        reason = quantity_in_column(name).missing
        raise InputError(f"{beginning}: {problem.solver.name} has no {name.replace('_', ' ')}, {reason}")
    raise InputError(f"{beginning}: {describe_unknown_name('quantity', name, names)}")


def overlap_entry_by_name(problem: Problem, overlaps: Overlaps, name: str) -> float:
    """Return one entry of the overlaps, of their error bars or of their derivatives, given its name.

    Args:
        problem: the problem that the overlaps belong to.
        overlaps: the overlaps, their error bars or their derivatives.
        name: name of an entry, such as theta_1; q, V, m or theta for the first entry of that overlap.
    """
    block, place = (name, 0) if name in OVERLAPS else locations_of_overlap_entries(problem)[name]
    return float(getattr(overlaps, block).flat[place])
