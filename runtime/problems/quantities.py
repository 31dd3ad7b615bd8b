"""Names of the quantities of a solution, the same in conditions, tables, minima and derivatives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..base.errors import InputError, describe_unknown_name
from .columns import METRIC, OBSERVED, overlap_entry_locations, quantity_in_column
from .overlaps import OVERLAPS

if TYPE_CHECKING:
    from .overlaps import Overlaps
    from .problem import Problem

LOSSES = ("free_entropy", *OBSERVED, "baseline_error")


def solution_quantity_names(problem: Problem, more: Iterable[str] = ()) -> list[str]:
    """Return the names of losses and errors, of overlaps (|first entry|), of their entries and of trained numbers.

    Args:
        problem: problem of the solution.
        more: further names of the caller, listed after the overlaps.
    """
    losses = [name for name in LOSSES if quantity_in_column(name).is_defined(problem)]
    return [
        *losses,
        *(METRIC + name for name in problem.metric_names),
        *OVERLAPS,
        *more,
        *overlap_entry_locations(problem),
    ]


def columns_matching_name(name: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that a name stands for; none if it is unknown.

    Args:
        name: a column; theta_21 for that entry of every token; theta for all its entries; b for the column trained_b of
            a trained number; minority for the column test_error_minority of a metric.
        columns: all columns.
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


def resolve_quantity_name(problem: Problem, name: str, what: str, more: Iterable[str] = ()) -> str:
    """Return the one of `solution_quantity_names` that a name stands for.

    Args:
        problem: problem of the solution.
        name: name of a quantity, see `columns_matching_name`.
        what: beginning of the error message, as "condition 'x = 1'".
        more: further names of the caller.

    Raises:
        InputError: it stands for none or for several; the message lists them.
    """
    names = solution_quantity_names(problem, more)
    found = columns_matching_name(name, names)
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{what}: {name!r} stands for {', '.join(found)}; name one of them")
    if name in LOSSES:
        reason = quantity_in_column(name).missing
        raise InputError(f"{what}: {problem.solver.name} has no {name.replace('_', ' ')}, {reason}")
    raise InputError(f"{what}: {describe_unknown_name('quantity', name, names)}")


def overlap_entry_by_name(problem: Problem, overlaps: Overlaps, name: str) -> float:
    """Return the entry of overlaps, or of their error bars or derivatives, that the name of a quantity stands for.

    Args:
        problem: problem of the overlaps.
        overlaps: the overlaps, error bars or derivatives.
        name: name of an entry; q, V, m or theta for its first entry.
    """
    block, place = (name, 0) if name in OVERLAPS else overlap_entry_locations(problem)[name]
    return float(getattr(overlaps, block).flat[place])
