"""Values of options that several commands share, as they are typed."""

from __future__ import annotations

import ast
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, require_in, require_known, require_whole

if TYPE_CHECKING:
    import numpy as np

    from ..problems.overlaps import Overlaps
    from ..problems.problem import Problem


def assignments(items: list[str] | None) -> dict[str, Any]:
    """`NAME=VALUE` items as values: numbers or nested lists of numbers.

    Raises:
        InputError: an item of another form, or a name given twice.
    """
    values: dict[str, Any] = {}
    for item in items or []:
        name, equals, text = item.partition("=")
        name = name.strip()
        if not equals or not name or not text.strip():
            raise InputError(f"--set {item}: NAME=VALUE is expected, as alpha=1.5")
        if name in values:
            raise InputError(f"--set: {name} is given twice")
        values[name] = _value(name, text.strip())
    return values


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


def renamed(pairs: list[str] | None) -> dict[str, str]:
    """`--rename` as a dictionary.

    Raises:
        InputError: a pair has no sign of equality, or a name stands twice.
    """
    names: dict[str, str] = {}
    for pair in pairs or []:
        name, sign, symbol = pair.partition("=")
        if not sign:
            raise InputError(f"--rename {pair}: NAME=SYMBOL is expected, such as theta=T")
        if name in names:
            raise InputError(f"--rename {pair}: {name} is renamed twice")
        names[name] = symbol
    return names


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
    """The problem a command line describes.

    Args:
        varied, by: a parameter that the command varies by an option, and that --set may therefore not give.
        metric: of several by name, that of the test error.

    Raises:
        InputError: an unknown model, metric or parameter, or a value out of range.
    """
    from ..problems.problem import problem

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
    """Those options that were given; a function has its own defaults for the others."""
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


def check_positive(option: str, value: float) -> None:
    """Refuse an accuracy that is none.

    Raises:
        InputError: the value is not above 0.
    """
    require_in(option, value, "(0, inf)")


def checked_points(integrator: str, points: int | None) -> int | None:
    """The size of a rule, where it makes sense.

    Raises:
        InputError: out of range, or without a rule.
    """
    if points is None:
        return None
    from ..integration import FAMILIES, check_points

    if integrator == "auto":
        *others, last = FAMILIES
        raise InputError(f"--points goes with --integrator {', '.join(others)} or {last}; auto picks its own")
    if integrator in FAMILIES:
        check_points(integrator, points, "--points")
    return points


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
    """Return name and points, (N,), of `alpha=LO:HI:N`, in either order, or `alpha=0.5,1,2`, all up or all down.

    Raises:
        InputError: another form.
    """
    import numpy as np

    wrong = InputError(f"{option} {text}: NAME=LO:HI:N or a list is expected, as alpha=0.1:2:40 or alpha=0.5,1,2")
    name, _, span = (part.strip() for part in text.partition("="))
    listed = ":" not in span and "," in span
    parts = span.split("," if listed else ":")
    if span.startswith("["):
        raise InputError(
            f"{wrong}; arrays go along a line by its place, --set '{name}=[..]:[..]' {option} path_{name}=0:1:11"
        )
    if not name or not (listed or len(parts) == 3):
        raise wrong
    try:
        numbers = [float(part) for part in (parts if listed else parts[:2])]
        count = len(parts) if listed else int(parts[2])
    except ValueError:
        raise wrong from None
    if not 1 <= count <= 100_000:
        raise InputError(f"{option} {text}: the number of points must be 1 to 100000")
    steps = np.diff(numbers)
    if not np.isfinite(numbers).all() or not (np.all(steps > 0) or np.all(steps < 0) or (count == 1 and steps == 0)):
        raise InputError(f"{option} {text}: {'values must go up or down' if listed else 'LO and HI must differ'}")
    return name, np.array(numbers) if listed else np.linspace(numbers[0], numbers[1], count)


def interval(text: str, option: str = "--over") -> tuple[str, tuple[float, float] | None]:
    """Return name and ends of `alpha=LO:HI`; no ends of `alpha`.

    Raises:
        InputError: another form, or ends that are not in order.
    """
    name, equals, span = (part.strip() for part in text.partition("="))
    if not equals and name:
        return name, None
    wrong = InputError(f"{option} {text}: NAME=LO:HI is expected, as alpha=0.5:2")
    if span.startswith("["):
        raise InputError(
            f"{wrong}; arrays go along a line by its place, --set '{name}=[..]:[..]' {option} path_{name}=0:1"
        )
    try:
        low, high = (float(part) for part in span.split(":"))
    except ValueError:
        raise wrong from None
    if not name:
        raise wrong
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"{option} {text}: LO must be below HI")
    return name, (low, high)


def journey(text: str, option: str = "--over") -> tuple[str, tuple[float, float]]:
    """`alpha=FROM:TO`, in either order, as name and ends.

    Raises:
        InputError: another form, or no way to go.
    """
    name, _, span = text.partition("=")
    name, parts = name.strip(), span.split(":")
    try:
        first, last = (float(part) for part in parts)
    except ValueError:
        raise InputError(f"{option} {text}: NAME=FROM:TO is expected, as alpha=2:0.2") from None
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
        """Where a command that ended early writes: beside a file that is there, whose result may be whole."""
        if not self.path.exists():
            return self
        suffix = f".interrupted{self.path.suffix}"
        return OutputFile(self.path.with_suffix(suffix), self.name.with_suffix(suffix))


def output_file(output: Path | None, force: bool) -> OutputFile | None:
    """Before a computation: where its result is to be written (see `files.new_file`), if -o names a file.

    Raises:
        InputError: a file is there already, or nothing can be written there.
    """
    from ..files import new_file

    return None if output is None else OutputFile(new_file(output, force), output)


def netcdf_file(output: Path | None, what: str, force: bool) -> OutputFile | None:
    """As `output_file`, for `what` is written as netCDF.

    Raises:
        InputError: as `output_file`, or the name ends otherwise.
    """
    if output is not None and output.suffix != ".nc":
        raise InputError(f"-o {output}: {what} is written as netCDF, to a file that ends in .nc")
    return output_file(output, force)


def check_goes_on(file: OutputFile, what: str) -> None:
    """A file that is there is one that `what` (sweep, phases) wrote, beside the records from which it goes on.

    Raises:
        InputError: it is not.
    """
    if not file.path.exists():
        return
    from ..files import occupied
    from ..report.tables import load_dataset
    from ..sweeping.records import folder_of

    folder = folder_of(file.path)
    if not folder.is_dir():
        raise occupied(file.name, f"the file exists, and there are no records next to it in {folder.name}")
    try:
        own = what in load_dataset(file.path).attrs
    except InputError:
        own = False
    if not own:
        raise occupied(file.name, f"the file exists, and `saddleforge {what}` did not write it")
