"""Values of options that several commands share, as they are typed."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, require_known, require_whole

if TYPE_CHECKING:
    import numpy as np

    from ..problems.overlaps import Overlaps
    from ..problems.problem import Problem


def converted(option: str, text: str, form: str, parts: Sequence[str], *kinds: Callable[[str], Any]) -> tuple[Any, ...]:
    """Return the parts of an option's value, each as its kind, as float, has it.

    Args:
        text: the value, as it was typed; form: what is expected, a sentence.

    Raises:
        InputError: a part is of another kind, or there are more or fewer of them.
    """
    try:
        return tuple(kind(part) for kind, part in zip(kinds, parts, strict=True))
    except ValueError:
        raise InputError(f"{option} {text}: {form}") from None


def pairs(option: str, items: list[str] | None, form: str) -> dict[str, str]:
    """Return the NAME=VALUE items of an option that repeats, by name.

    Args:
        form: what is expected, a sentence.

    Raises:
        InputError: an item of another form, or a name given twice.
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


def assignments(items: list[str] | None) -> dict[str, Any]:
    """`--set` items as values: numbers or nested lists of numbers.

    Raises:
        InputError: an item of another form, or a name given twice.
    """
    texts = pairs("--set", items, "NAME=VALUE is expected, as alpha=1.5")
    return {name: _value(name, text) for name, text in texts.items()}


def _value(name: str, text: str) -> Any:
    from ..problems.between import Between

    try:
        value = ast.literal_eval(text)  # JSON's numbers and arrays, and .6 beside 0.6
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if _numeric(value):
        return value
    ends = text.split(":")
    if len(ends) == 2 and all(end.strip().startswith("[") for end in ends):
        return Between(*(_value(name, end.strip()) for end in ends))
    if "=" in text:
        instead = "repeat --set, as --set alpha=2 --set lambda=0.1"
    elif ":" in text and "[" not in text:
        instead = "a range goes with --over of a command that has it, as `curve`"
    else:
        instead = "as 0.5 or [[0.6, 0.4], [0.4, 0.6]]"
    raise InputError(
        f"--set {name}={text}: a number, a JSON array of numbers, or a line [..]:[..] is expected; {instead}"
    )


def _numeric(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_numeric(item) for item in value)
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return False
    return isinstance(value, int | float) and not isinstance(value, bool)


def renamed(items: list[str] | None) -> dict[str, str]:
    """`--rename` as a dictionary.

    Raises:
        InputError: as `pairs`.
    """
    return pairs("--rename", items, "NAME=SYMBOL is expected, such as theta=T")


def own_symbols(problem: Problem, pairs: list[str] | None) -> dict[str, str]:
    """`--rename` of a command that prints tables of a problem.

    Raises:
        InputError: as `renamed`; a name is unknown, or a symbol would stand for two things.
    """
    from ..problems.symbols import symbols_of

    symbols_of(problem, names := renamed(pairs))
    return names


def sizes_only(items: list[str] | None) -> dict[str, int]:
    """`--set` of a command for which only structural sizes mean something.

    Raises:
        InputError: another name, or no whole number.
    """
    from ..problems.catalogue import STRUCTURAL

    values = assignments(items)
    for name, value in values.items():
        if name not in STRUCTURAL:
            raise InputError(f"--set {name}: a derivation depends only on the sizes {', '.join(STRUCTURAL)}")
        require_whole(name, value, 1)
    return {name: int(value) for name, value in values.items()}


def problem_of(
    model: str,
    items: list[str] | None,
    varied: str | None = None,
    by: str = "--over",
    *,
    inverse_temperature: float | None = None,
    metric: str | None = None,
) -> Problem:
    """The problem a command line describes, once the cache folder is known to be the user's.

    Args:
        varied, by: a parameter that the command varies by an option, and that --set may therefore not give.
        metric: of several by name, that of the test error.

    Raises:
        InputError: an unknown model, metric or parameter, a value out of range, or a cache folder of others.
    """
    from ..base.cache import cache_folder
    from ..problems.problem import problem

    cache_folder()
    values = assignments(items)
    check_varied(items, varied, by)
    if "inverse_temperature" in values:
        raise InputError("--set inverse_temperature: give it as --inverse-temperature")
    described = problem(model, inverse_temperature=inverse_temperature, **values)
    return described if metric is None else described.by_metric(metric)


def check_varied(items: list[str] | None, name: str | None, option: str) -> None:
    """Refuse a parameter that --set gives and another option varies.

    Raises:
        InputError: it is such a one.
    """
    if name in assignments(items):
        raise InputError(f"{name} is given by --set and varied by {option}; leave one out")


def starts(text: str | None) -> list[str] | None:
    """Named starts, as `semantic,positional`; None where none were given."""
    return None if text is None else [name.strip() for name in text.split(",")]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given; a function has its own defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def start_of(problem: Problem, start: str | None) -> str:
    """The start asked for; by default semantic, or the model's first where it has no such start.

    Raises:
        InputError: the model has no such start.
    """
    from ..saddle_point.starts import default_start

    known = list(problem.solver.model.STARTS)
    if start is None:
        return default_start(problem)
    require_known("start", start, known, problem.solver.name)
    return start


def beginning(problem: Problem, start: str | None, path: Path | None) -> str | Overlaps:
    """Where to start: what the file of --from holds, or else a named start.

    Raises:
        InputError: as `report.starting.saved_overlaps`, as `start_of`.
    """
    if path is None:
        return start_of(problem, start)
    from ..report.starting import saved_overlaps

    return saved_overlaps(path, problem)


def names(option: str, text: str | None, what: str) -> list[str] | None:
    """`alpha,lambda`, as an option has it, as names; None where it was not given.

    Args:
        what: is expected, for the sentence.

    Raises:
        InputError: an empty name.
    """
    if text is None:
        return None
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise InputError(f"{option} {text}: names of {what}")
    return found


def grid(text: str, option: str = "--over") -> tuple[str, np.ndarray]:
    """Return name and points, (N,), of `alpha=LO:HI:N`, `lambda=LO:HI:N:log` (equal ratios), in either order, or
    `alpha=0.5,1,2`, all up or all down.

    Raises:
        InputError: another form.
    """
    import numpy as np

    form = (
        "NAME=LO:HI:N, NAME=LO:HI:N:log or a list is expected, as alpha=0.1:2:40, lambda=1e-4:1:9:log or alpha=0.5,1,2"
    )
    name, span, form = _place(option, text, form, ":11")
    by_ratio = span.endswith(":log")
    if listed := ":" not in span:
        parts = span.split(",")
        numbers, count = converted(option, text, form, parts, *[float] * len(parts)), len(parts)
    else:
        *ends, count = converted(option, text, form, span.removesuffix(":log").split(":"), float, float, int)
        numbers = tuple(ends)
    if not 1 <= count <= 100_000:
        raise InputError(f"{option} {text}: the number of points must be 1 to 100000")
    steps = np.diff(numbers)
    if not np.isfinite(numbers).all() or not (np.all(steps > 0) or np.all(steps < 0) or (count == 1 and steps == 0)):
        raise InputError(f"{option} {text}: {'values must go up or down' if listed else 'LO and HI must differ'}")
    if by_ratio and min(numbers) <= 0:
        raise InputError(f"{option} {text}: LO and HI must be above 0 where the steps are ratios")
    if not (by_ratio or listed) and min(numbers) > 0 and max(numbers) >= 1000 * min(numbers) and count > 2:
        from ..base.progress import say

        say(f"{option} {text}: the steps are equal; {text}:log has equal ratios")
    space = np.geomspace if by_ratio else np.linspace
    return name, np.array(numbers) if listed else space(numbers[0], numbers[1], count)


def interval(text: str, option: str = "--over") -> tuple[str, tuple[float, float] | None]:
    """Return name and ends of `alpha=LO:HI`; no ends of `alpha`.

    Raises:
        InputError: another form, or ends that are not in order.
    """
    if "=" not in text and text.strip():
        return text.strip(), None
    name, span, form = _place(option, text, "NAME=LO:HI is expected, as alpha=0.5:2")
    low, high = converted(option, text, form, span.split(":"), float, float)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"{option} {text}: LO must be below HI")
    return name, (low, high)


def _place(option: str, text: str, form: str, points: str = "") -> tuple[str, str, str]:
    """Return name, values and what is expected of `alpha=VALUES`, where arrays go along a line.

    Raises:
        InputError: there is no name.
    """
    name, _, span = (part.strip() for part in text.partition("="))
    if not name:
        raise InputError(f"{option} {text}: {form}")
    if span.startswith("["):
        along = f"--set '{name}=[..]:[..]' {option} path_{name}=0:1{points}"
        form += f"; arrays go along a line by its place, {along}"
    return name, span, form


def journey(text: str, option: str = "--over") -> tuple[str, tuple[float, float]]:
    """`alpha=FROM:TO`, in either order, as name and ends.

    Raises:
        InputError: another form, or no way to go.
    """
    name, _, span = (part.strip() for part in text.partition("="))
    first, last = converted(option, text, "NAME=FROM:TO is expected, as alpha=2:0.2", span.split(":"), float, float)
    if not name or not (math.isfinite(first) and math.isfinite(last)) or first == last:
        raise InputError(f"{option} {text}: NAME=FROM:TO is expected, with two different numbers, as alpha=2:0.2")
    return name, (first, last)


@dataclass(frozen=True)
class OutputFile:
    """The file of -o.

    Attributes:
        path: where it is, whichever the working directory becomes.
        name: as the user typed it.
    """

    path: Path
    name: Path

    def aside(self) -> OutputFile:
        """Return the file that a command that ended early writes: next to one that may be whole."""
        if not self.path.exists():
            return self
        suffix = f".interrupted{self.path.suffix}"
        return OutputFile(self.path.with_suffix(suffix), self.name.with_suffix(suffix))


def output_file(output: Path | None, force: bool) -> OutputFile | None:
    """Before a computation: where its result is to be written (see `files.new_file`), if -o names a file.

    Raises:
        InputError: a file is there already, or nothing can be written there.
    """
    from ..base.files import new_file

    return None if output is None else OutputFile(new_file(output, force), output)


def netcdf_file(output: Path | None, what: str, force: bool) -> OutputFile | None:
    """Return `output_file` of a result that is written as netCDF.

    Raises:
        InputError: as `output_file`, or the name ends otherwise.
    """
    if output is not None and output.suffix != ".nc":
        raise InputError(
            f"-o {output}: {what} is written as netCDF, to a file that ends in .nc; in Python "
            "result.to_pandas().to_csv(...) writes a table"
        )
    return output_file(output, force)


def check_goes_on(file: OutputFile, what: str) -> None:
    """A file that is there is one that `what` (sweep, phases) wrote, beside the records from which it goes on.

    Raises:
        InputError: it is not.
    """
    if not file.path.exists():
        return
    from ..base.files import occupied
    from ..extensions.sweeping.records import folder_of
    from ..report.tables import load_dataset

    folder = folder_of(file.path)
    if not folder.is_dir():
        raise occupied(file.name, f"the file exists, and there are no records next to it in {folder.name}")
    try:
        own = what in load_dataset(file.path).attrs
    except InputError:
        own = False
    if not own:
        raise occupied(file.name, f"the file exists, and `saddleforge {what}` did not write it")
