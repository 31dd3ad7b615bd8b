"""Parsers of option values that several commands share."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, require_whole_number

if TYPE_CHECKING:
    import numpy as np

    from ..problems.overlaps import Overlaps
    from ..problems.problem import Problem


def convert_option_parts(
    option: str, text: str, form: str, parts: Sequence[str], *kinds: Callable[[str], Any]
) -> tuple[Any, ...]:
    """Return the parts of an option's value, each converted by its kind (for example float).

    Args:
        option: name of the option, for messages.
        text: the value as it was typed.
        form: the expected form, a sentence.
        parts: the parts of the value, as strings.
        *kinds: conversion of each part.

    Raises:
        InputError: a part cannot be converted, or the number of parts is wrong.
    """
    try:
        return tuple(kind(part) for kind, part in zip(kinds, parts, strict=True))
    except ValueError:
        raise InputError(f"{option} {text}: {form}") from None


def parse_name_value_pairs(option: str, items: list[str] | None, form: str) -> dict[str, str]:
    """Return the NAME=VALUE items of an option that repeats, by name.

    Args:
        option: name of the option, for messages.
        items: the values as they were typed.
        form: the expected form, a sentence.

    Raises:
        InputError: an item has another form, or a name is given twice.
    """
    values: dict[str, str] = {}
    for item in items or []:
        name, equals, text = (part.strip() for part in item.partition("="))
        if not (name and equals and text):
            raise InputError(f"{option} {item}: {form}")
        if name in values:
            raise InputError(f"{option} {item}: {name} is given twice")
        values[name] = text
    return values


def parse_set_options(items: list[str] | None) -> dict[str, Any]:
    """Return `--set` items as values: numbers or nested lists of numbers.

    Raises:
        InputError: an item has another form, or a name is given twice.
    """
    texts = parse_name_value_pairs("--set", items, "NAME=VALUE is expected, as alpha=1.5")
    return {name: _parse_set_value(name, text) for name, text in texts.items()}


def _parse_set_value(name: str, text: str) -> Any:
    from ..problems.interpolation import Between

    try:
        value = ast.literal_eval(text)  # JSON's numbers and arrays, and .6 as 0.6
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if _is_number_or_nested_list(value):
        return value
    ends = text.split(":")
    if len(ends) == 2 and all(end.strip().startswith("[") for end in ends):
        return Between(*(_parse_set_value(name, end.strip()) for end in ends))
    if "=" in text:
        instead = "repeat --set, as --set alpha=2 --set lambda=0.1"
    elif ":" in text and "[" not in text:
        instead = "a range is given to --over, of a command as `curve`"
    else:
        instead = "as 0.5 or [[0.6, 0.4], [0.4, 0.6]]"
    raise InputError(
        f"--set {name}={text}: a number, a JSON array of numbers, or a line [..]:[..] is expected; {instead}"
    )


def _is_number_or_nested_list(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_is_number_or_nested_list(item) for item in value)
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return False
    return isinstance(value, int | float) and not isinstance(value, bool)


def parse_rename_options(items: list[str] | None) -> dict[str, str]:
    """Return `--rename` items as a dictionary.

    Raises:
        InputError: see `parse_name_value_pairs`.
    """
    return parse_name_value_pairs("--rename", items, "NAME=SYMBOL is expected, such as theta=T")


def parse_user_symbols(problem: Problem, pairs: list[str] | None) -> dict[str, str]:
    """Return `--rename` items of a command that prints tables of a problem.

    Args:
        problem: the problem.
        pairs: the items.

    Raises:
        InputError: see `parse_rename_options`; a name is unknown, or a symbol would stand for two things.
    """
    from ..problems.symbols import symbols_in_tables

    symbols_in_tables(problem, names := parse_rename_options(pairs))
    return names


def parse_structural_sizes(items: list[str] | None) -> dict[str, int]:
    """Return `--set` items of a command that takes structural sizes only.

    Raises:
        InputError: another name, or not a whole number.
    """
    from ..problems.catalogue import STRUCTURAL

    values = parse_set_options(items)
    for name, value in values.items():
        if name not in STRUCTURAL:
            raise InputError(f"--set {name}: a derivation depends only on the sizes {', '.join(STRUCTURAL)}")
        require_whole_number(name, value, 1)
    return {name: int(value) for name, value in values.items()}


def build_problem_from_options(
    model: str,
    items: list[str] | None,
    varied: str | None = None,
    by: str = "--over",
    *,
    inverse_temperature: float | None = None,
    metric: str | None = None,
) -> Problem:
    """Return the problem that a command line describes, after checking the cache folder.

    Args:
        model: name in the catalogue, or path of a model file.
        items: values of --set.
        varied: a parameter that the command varies by an option, which --set must not give.
        by: the option that varies it.
        inverse_temperature: inverse temperature of the Gibbs measure; None: zero temperature.
        metric: name of the metric of the test error; None: the first one.

    Raises:
        InputError: an unknown model, metric or parameter, a value out of range, or an unsafe cache folder.
    """
    from ..base.cache import cache_folder
    from ..problems.problem import problem

    cache_folder()
    values = parse_set_options(items)
    refuse_set_and_varied_parameter(items, varied, by)
    if "inverse_temperature" in values:
        raise InputError("--set inverse_temperature: give it as --inverse-temperature")
    described = problem(model, inverse_temperature=inverse_temperature, **values)
    return described if metric is None else described.with_metric(metric)


def refuse_set_and_varied_parameter(items: list[str] | None, name: str | None, option: str) -> None:
    """Raise InputError if --set gives a parameter that another option varies.

    Args:
        items: values of --set.
        name: name of the varied parameter.
        option: the option that varies it.
    """
    if name in parse_set_options(items):
        raise InputError(f"{name} is fixed by --set and varied by {option}; leave one out")


def parse_start_names(text: str | None) -> list[str] | None:
    """Return named starts from `informed,uninformed`; None if the option was not given."""
    return None if text is None else [name.strip() for name in text.split(",")]


def options_that_were_given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None; functions have their own defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def select_start(problem: Problem, start: str | None) -> str:
    """Return the requested start or the default one by `find_start`, which is imported when a command needs it."""
    from ..saddle_point.starts import find_start

    return find_start(problem, start)


def load_initial_point(problem: Problem, start: str | None, path: Path | None) -> str | Overlaps:
    """Return the initial point: the overlaps of the file of --from, else a named start.

    Args:
        problem: the problem.
        start: as it was typed.
        path: file of --from, or None.

    Raises:
        InputError: see `report.starting.load_initial_overlaps` and `select_start`.
    """
    if path is None:
        return select_start(problem, start)
    from ..report.starting import load_initial_overlaps

    return load_initial_overlaps(path, problem)


def parse_name_list(option: str, text: str | None, what: str) -> list[str] | None:
    """Return the names of an option like `alpha,lambda`; None if it was not given.

    Args:
        option: name of the option, for messages.
        text: as it was typed.
        what: the kind of names, for the message.

    Raises:
        InputError: an empty name.
    """
    if text is None:
        return None
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise InputError(f"{option} {text}: names of {what}")
    return found


def parse_parameter_grid(text: str, option: str = "--over") -> tuple[str, np.ndarray]:
    """Return name and points, (N,), of `alpha=LO:HI:N`, `lambda=LO:HI:N:log` or `alpha=0.5,1,2`.

    Points are equally spaced, in equal ratios with `log`, or listed in ascending or descending order.

    Args:
        text: as it was typed.
        option: name of the option, for messages.

    Raises:
        InputError: another form.
    """
    import numpy as np

    form = (
        "NAME=LO:HI:N, NAME=LO:HI:N:log or a list is expected, as alpha=0.1:2:40, lambda=1e-4:1:9:log or alpha=0.5,1,2"
    )
    name, span, form = _split_parameter_values(option, text, form, ":11")
    by_ratio = span.endswith(":log")
    if listed := ":" not in span:
        parts = span.split(",")
        numbers, count = convert_option_parts(option, text, form, parts, *[float] * len(parts)), len(parts)
    else:
        *ends, count = convert_option_parts(option, text, form, span.removesuffix(":log").split(":"), float, float, int)
        numbers = tuple(ends)
    if not 1 <= count <= 100_000:
        raise InputError(f"{option} {text}: the number of points must be 1 to 100000")
    steps = np.diff(numbers)
    if not np.isfinite(numbers).all() or not (np.all(steps > 0) or np.all(steps < 0) or (count == 1 and steps == 0)):
        raise InputError(f"{option} {text}: {'values must go up or down' if listed else 'LO and HI must differ'}")
    if by_ratio and min(numbers) <= 0:
        raise InputError(f"{option} {text}: LO and HI must be above 0 where the steps are ratios")
    if not (by_ratio or listed) and min(numbers) > 0 and max(numbers) >= 1000 * min(numbers) and count > 2:
        from ..base.progress import print_message

        print_message(f"{option} {text}: the steps are equal; {text}:log has equal ratios")
    space = np.geomspace if by_ratio else np.linspace
    return name, np.array(numbers) if listed else space(numbers[0], numbers[1], count)


def parse_parameter_interval(text: str, option: str = "--over") -> tuple[str, tuple[float, float] | None]:
    """Return name and ends of `alpha=LO:HI`; None for the ends of `alpha`.

    Args:
        text: as it was typed.
        option: name of the option, for messages.

    Raises:
        InputError: another form, or ends that are not in order.
    """
    if "=" not in text and text.strip():
        return text.strip(), None
    name, span, form = _split_parameter_values(option, text, "NAME=LO:HI is expected, as alpha=0.5:2")
    low, high = convert_option_parts(option, text, form, span.split(":"), float, float)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"{option} {text}: LO must be below HI")
    return name, (low, high)


def _split_parameter_values(option: str, text: str, form: str, points: str = "") -> tuple[str, str, str]:
    """Return name, values and expected form of `alpha=VALUES`, also for the position on a line of arrays.

    Raises:
        InputError: there is no name.
    """
    name, _, span = (part.strip() for part in text.partition("="))
    if not name:
        raise InputError(f"{option} {text}: {form}")
    if span.startswith("["):
        along = f"--set '{name}=[..]:[..]' {option} path_{name}=0:1{points}"
        form += f"; an array moves along a line by its position, {along}"
    return name, span, form


def parse_parameter_endpoints(text: str, option: str = "--over") -> tuple[str, tuple[float, float]]:
    """Return name and ends of `alpha=FROM:TO`, in either order.

    Args:
        text: as it was typed.
        option: name of the option, for messages.

    Raises:
        InputError: another form, or equal ends.
    """
    name, _, span = (part.strip() for part in text.partition("="))
    first, last = convert_option_parts(
        option, text, "NAME=FROM:TO is expected, as alpha=2:0.2", span.split(":"), float, float
    )
    if not name or not (math.isfinite(first) and math.isfinite(last)) or first == last:
        raise InputError(f"{option} {text}: NAME=FROM:TO is expected, with two different numbers, as alpha=2:0.2")
    return name, (first, last)


@dataclass(frozen=True)
class OutputFile:
    """The output file of -o.

    Attributes:
        path: absolute path, independent of the working directory.
        name: path as the user typed it.
    """

    path: Path
    name: Path

    def file_for_partial_result(self) -> OutputFile:
        """Return the file that a command that ended early writes: next to one that may be complete."""
        if not self.path.exists():
            return self
        suffix = f".interrupted{self.path.suffix}"
        return OutputFile(self.path.with_suffix(suffix), self.name.with_suffix(suffix))


def check_output_option(output: Path | None, force: bool) -> OutputFile | None:
    """Check before a computation where its result is to be written (see `files.check_output_file`); None without -o.

    Args:
        output: of -o.
        force: whether an existing file may be overwritten.

    Raises:
        InputError: the file exists, or cannot be written.
    """
    from ..base.files import check_output_file

    return None if output is None else OutputFile(check_output_file(output, force), output)


def check_netcdf_output_option(output: Path | None, what: str, force: bool) -> OutputFile | None:
    """Return `check_output_option` of a result that is written as netCDF.

    Args:
        output: of -o.
        what: the kind of result, for the message.
        force: whether an existing file may be overwritten.

    Raises:
        InputError: see `check_output_option`; or the name has another suffix.
    """
    if output is not None and output.suffix != ".nc":
        raise InputError(
            f"-o {output}: {what} is written as netCDF, to a file that ends in .nc; in Python "
            "result.to_pandas().to_csv(...) writes a table"
        )
    return check_output_option(output, force)


def check_file_can_be_continued(file: OutputFile, what: str) -> None:
    """Raise InputError unless an existing file was written by this command (sweep or phases) with its records.

    Args:
        file: the output file, or None.
        what: the command.

    Raises:
        InputError: the file is foreign.
    """
    if not file.path.exists():
        return
    from ..base.files import file_exists_error
    from ..extensions.sweeping.records import records_folder
    from ..report.tables import load_netcdf_dataset

    folder = records_folder(file.path)
    if not folder.is_dir():
        raise file_exists_error(file.name, f"the file exists, and there are no records next to it in {folder.name}")
    try:
        own = what in load_netcdf_dataset(file.path).attrs
    except InputError:
        own = False
    if not own:
        raise file_exists_error(file.name, f"the file exists, and `saddleforge {what}` did not write it")
