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


def convert_parts_of_option(
    option: str, text: str, form: str, parts: Sequence[str], *kinds: Callable[[str], Any]
) -> tuple[Any, ...]:
    """Convert the parts of the value of an option, each by its own function (for example float).

    Args:
        option: name of the option, for error messages.
        text: value of the option, as typed.
        form: sentence that describes the expected form, for error messages.
        parts: parts of the value, as strings.
        *kinds: function that converts each part.

    Raises:
        InputError: a part cannot be converted, or the number of parts is wrong.
    """
    try:
        return tuple(kind(part) for kind, part in zip(kinds, parts, strict=True))
    except ValueError:
        raise InputError(f"cannot read {option} {text}: {form}") from None


def parse_name_value_pairs(option: str, items: list[str] | None, form: str) -> dict[str, str]:
    """Parse an option that may be repeated, with values NAME=VALUE, into a dictionary.

    Args:
        option: name of the option, for error messages.
        items: values of the option, as typed.
        form: sentence that describes the expected form, for error messages.

    Raises:
        InputError: a value has another form, or a name is given twice.
    """
    values: dict[str, str] = {}
    for item in items or []:
        name, equals, text = (part.strip() for part in item.partition("="))
        if not (name and equals and text):
            raise InputError(f"cannot read {option} {item}: {form}")
        if name in values:
            raise InputError(f"{option} {item}: {name} is given twice")
        values[name] = text
    return values


def parse_set_options(items: list[str] | None) -> dict[str, Any]:
    """Parse the values NAME=VALUE of --set into a dictionary of numbers or nested lists of numbers.

    Raises:
        InputError: a value has another form, or a name is given twice.
    """
    texts = parse_name_value_pairs("--set", items, "NAME=VALUE is expected, as alpha=1.5")
    return {name: _parse_value_of_set_option(name, text) for name, text in texts.items()}


def _parse_value_of_set_option(name: str, text: str) -> Any:
    from ..problems.interpolation import Between

    try:
        value = ast.literal_eval(text)  # JSON's numbers and arrays, and .6 as 0.6
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if _is_number_or_nested_list(value):
        return value
    ends = text.split(":")
    if len(ends) == 2 and all(end.strip().startswith("[") for end in ends):
        return Between(*(_parse_value_of_set_option(name, end.strip()) for end in ends))
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
    """Parse the values NAME=SYMBOL of --rename into a dictionary.

    Raises:
        InputError: a value has another form, or a name is given twice.
    """
    return parse_name_value_pairs("--rename", items, "NAME=SYMBOL is expected, such as theta=T")


def parse_user_symbols(problem: Problem, pairs: list[str] | None) -> dict[str, str]:
    """Parse the values NAME=SYMBOL of --rename; check that no two columns of a table would have the same symbol.

    Args:
        problem: the problem.
        pairs: values of --rename, as typed.

    Raises:
        InputError: a value has another form, a name is unknown, or a symbol would stand for two quantities.
    """
    from ..problems.symbols import symbols_of_table_columns

    symbols_of_table_columns(problem, names := parse_rename_options(pairs))
    return names


def parse_structural_sizes(items: list[str] | None) -> dict[str, int]:
    """Parse the values NAME=VALUE of --set for a command that takes only structural sizes (tokens, ranks, clusters).

    Raises:
        InputError: a name is no structural size, or a value is not a whole number.
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
    """Return the problem that the options of a command describe, after checking the cache folder.

    Args:
        model: name in the catalogue, or path of a model file.
        items: values of --set.
        varied: name of a parameter that another option varies and that --set must not fix.
        by: name of that other option.
        inverse_temperature: inverse temperature of the Gibbs measure; None: temperature zero.
        metric: name of the metric of the test error; None: the first metric of the model.

    Raises:
        InputError: an unknown model, metric or parameter, a value out of range, or an unsafe cache folder.
    """
    from ..base.cache import cache_folder
    from ..problems.problem import problem

    cache_folder()
    values = parse_set_options(items)
    refuse_parameter_set_and_varied(items, varied, by)
    if "inverse_temperature" in values:
        raise InputError("--set inverse_temperature: give it as --inverse-temperature")
    described = problem(model, inverse_temperature=inverse_temperature, **values)
    return described if metric is None else described.with_metric(metric)


def refuse_parameter_set_and_varied(items: list[str] | None, name: str | None, option: str) -> None:
    """Raise InputError if --set fixes a parameter that another option varies.

    Args:
        items: values of --set.
        name: name of the varied parameter.
        option: name of the option that varies the parameter.
    """
    if name in parse_set_options(items):
        raise InputError(f"{name} is fixed by --set and varied by {option}; leave one out")


def parse_start_names(text: str | None) -> list[str] | None:
    """Parse a list of starts like `informed,uninformed` into names; None if the option was not given."""
    return None if text is None else [name.strip() for name in text.split(",")]


def options_that_were_given(**options: Any) -> dict[str, Any]:
    """Return the keyword arguments that are not None, so that a function uses its own defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def select_start(problem: Problem, start: str | None) -> str:
    """Return the name that the model has for the requested start, or for its default start."""
    from ..saddle_point.starts import find_start_name

    return find_start_name(problem, start)


def load_initial_point(problem: Problem, start: str | None, path: Path | None) -> str | Overlaps:
    """Return the start of a solve: overlaps from the file of --from, otherwise the name of a start.

    Args:
        problem: the problem.
        start: name of the start, as typed, or None.
        path: file of --from, or None.

    Raises:
        InputError: the file cannot be read or does not fit the problem, or the start is unknown.
    """
    if path is None:
        return select_start(problem, start)
    from ..report.starting import load_initial_overlaps

    return load_initial_overlaps(path, problem)


def parse_name_list(option: str, text: str | None, what: str) -> list[str] | None:
    """Parse a list of names like `alpha,lambda`; return None if the option was not given.

    Args:
        option: name of the option, for error messages.
        text: value of the option, as typed.
        what: noun for the names, for the error message.

    Raises:
        InputError: a name is empty.
    """
    if text is None:
        return None
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise InputError(f"{option} {text}: names of {what}, separated by commas, are expected")
    return found


def parse_parameter_grid(text: str, option: str = "--over") -> tuple[str, np.ndarray]:
    """Parse a grid like `alpha=LO:HI:N`, `lambda=LO:HI:N:log` or `alpha=0.5,1,2` into name and values.

    Values are equally spaced, in equal ratios with `log`, or listed in ascending or descending order.

    Args:
        text: value of the option, as typed.
        option: name of the option, for error messages.

    Raises:
        InputError: the text has another form.
    """
    import numpy as np

    form = (
        "NAME=LO:HI:N, NAME=LO:HI:N:log or a list is expected, as alpha=0.1:2:40, lambda=1e-4:1:9:log or alpha=0.5,1,2"
    )
    name, span, form = _split_name_from_values(option, text, form, ":11")
    by_ratio = span.endswith(":log")
    if listed := ":" not in span:
        parts = span.split(",")
        numbers, count = convert_parts_of_option(option, text, form, parts, *[float] * len(parts)), len(parts)
    else:
        *ends, count = convert_parts_of_option(
            option, text, form, span.removesuffix(":log").split(":"), float, float, int
        )
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
    """Parse an interval like `alpha=LO:HI` into name and ends; for `alpha` alone the ends are None.

    Args:
        text: value of the option, as typed.
        option: name of the option, for error messages.

    Raises:
        InputError: the text has another form, or LO is not below HI.
    """
    if "=" not in text and text.strip():
        return text.strip(), None
    name, span, form = _split_name_from_values(option, text, "NAME=LO:HI is expected, as alpha=0.5:2")
    low, high = convert_parts_of_option(option, text, form, span.split(":"), float, float)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"{option} {text}: LO must be below HI")
    return name, (low, high)


def _split_name_from_values(option: str, text: str, form: str, points: str = "") -> tuple[str, str, str]:
    """Split `alpha=VALUES` into name and values; return with them the expected form, for error messages.

    Raises:
        InputError: there is no name before the equals sign.
    """
    name, _, span = (part.strip() for part in text.partition("="))
    if not name:
        raise InputError(f"cannot read {option} {text}: {form}")
    if span.startswith("["):
        along = f"--set '{name}=[..]:[..]' {option} path_{name}=0:1{points}"
        form += f"; an array moves along a line by its position, {along}"
    return name, span, form


def parse_parameter_endpoints(text: str, option: str = "--over") -> tuple[str, tuple[float, float]]:
    """Parse endpoints like `alpha=FROM:TO`, in either order, into name and ends.

    Args:
        text: value of the option, as typed.
        option: name of the option, for error messages.

    Raises:
        InputError: the text has another form, or both ends are equal.
    """
    name, _, span = (part.strip() for part in text.partition("="))
    first, last = convert_parts_of_option(
        option, text, "NAME=FROM:TO is expected, as alpha=2:0.2", span.split(":"), float, float
    )
    if not name or not (math.isfinite(first) and math.isfinite(last)) or first == last:
        raise InputError(f"{option} {text}: NAME=FROM:TO is expected, with two different numbers, as alpha=2:0.2")
    return name, (first, last)


@dataclass(frozen=True)
class OutputFile:
    """The output file that a user named with the option -o.

    Attributes:
        path: absolute path.
        name: path as typed, for messages.
    """

    path: Path
    name: Path

    def file_for_partial_result(self) -> OutputFile:
        """Return the file for the result of a command that ended early, next to the one for a complete result."""
        if not self.path.exists():
            return self
        suffix = f".interrupted{self.path.suffix}"
        return OutputFile(self.path.with_suffix(suffix), self.name.with_suffix(suffix))


def check_output_option(output: Path | None, force: bool) -> OutputFile | None:
    """Check, before a computation, that its result can be written to the file of -o; None without that option.

    Args:
        output: value of -o, or None.
        force: whether an existing file may be overwritten.

    Raises:
        InputError: the file exists, or cannot be written.
    """
    from ..base.files import check_output_file

    return None if output is None else OutputFile(check_output_file(output, force), output)


def check_netcdf_output_option(output: Path | None, what: str, force: bool) -> OutputFile | None:
    """Check, before a computation, that its result can be written to the file of -o as netCDF; None without it.

    Args:
        output: value of -o, or None.
        what: noun for the result, for the error message.
        force: whether an existing file may be overwritten.

    Raises:
        InputError: the file exists, cannot be written, or does not end in .nc.
    """
    if output is not None and output.suffix != ".nc":
        raise InputError(
            f"-o {output}: {what} is written as netCDF, to a file that ends in .nc; in Python "
            "result.to_pandas().to_csv(...) writes a table"
        )
    return check_output_option(output, force)


def check_file_can_be_continued(file: OutputFile, what: str) -> None:
    """Raise InputError if a file exists that the command (sweep or phases) did not write and cannot continue.

    Args:
        file: the output file, or None.
        what: name of the command.

    Raises:
        InputError: the file exists and has no records of this command.
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
