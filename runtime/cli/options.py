"""Options that several commands share, and the reading of their values."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError, require_in, require_known, require_whole

if TYPE_CHECKING:
    import numpy as np

    from ..problems.overlaps import Overlaps
    from ..problems.problem import Problem

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A catalogue name, or a path to a model file; FILE.py:NAME picks one of several."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="alpha (α, samples over the dimension), lambda (λ, the ridge), a parameter of the model's own, or a "
        "structural size; repeat for several. Arrays as JSON: 'A=[[.6,.4],[.4,.6]]', two of them for the line "
        "between, [..]:[..], on which --over path_A=0:1:11 goes.",
    ),
]
RenameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="NAME=SYMBOL",
        help="A symbol of your own for one of the theory or a parameter: theta=T, in LaTeX theta='\\chi'. Repeats.",
    ),
]
StructureOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SIZE=NUMBER",
        help="A structural size: tokens, student_rank, teacher_rank, clusters; repeat for several.",
    ),
]
StartOption = Annotated[
    str | None, typer.Option("--start", help="A named start of the model: semantic (default), positional, ...")
]
OnOption = Annotated[
    str | None,
    typer.Option("--start", "--on", metavar="A", help="The branch, by the start that leads to it; --on is the same."),
]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="NAME,...",
        help="What the table shows, as theta_21,test_error,replicon: overlaps (theta all of its entries), losses, "
        "verdicts, trained numbers, as -o FILE.nc names them.",
    ),
]
FromOption = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="Start from a file: a solution of `solve -o`, the runs of `simulate -o`, or the nearest point of a curve.",
    ),
]
AccuracyOption = Annotated[
    float, typer.Option("--accuracy", help="Largest error bar of an overlap, relative to the size of its block.")
]
IntegratorOption = Annotated[
    str,
    typer.Option(
        "--integrator",
        metavar="RULE",
        help="auto, gauss-hermite, sobol, prox-space, lines, pieces or lattice.",
    ),
]
PointsOption = Annotated[
    int | None,
    typer.Option(
        "--points",
        help="Size of the rule: nodes an axis, but n of 2^n nodes (sobol), digits aimed at (lattice).",
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option("--metric", metavar="NAME", help="Which of the model's named metrics `test_error` is (the first)."),
]
ProofOption = Annotated[
    bool,
    typer.Option(
        "--proof", help="Prove it in ball arithmetic: one token, s = t = 1, a ridge, labels or a loss of X - Y."
    ),
]
RsbOption = Annotated[
    int,
    typer.Option(
        "--rsb",
        metavar="0|1|2",
        help="Steps of replica symmetry breaking; 2 not with `curve`, for losses of one or two fields.",
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--inverse-temperature",
        metavar="B",
        help="Of the Gibbs measure exp(-B risk) over the weights; without it, the minimum of the risk.",
    ),
]
NetcdfOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE.nc", help="Write netCDF, for `saddleforge plot`.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", help="Number of threads (default: all cores); results do not depend on it.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the sampled rules.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print no progress and no warnings.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")]

TimeLimitOption = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="SECONDS",
        help="End after so many seconds with the best so far (exit status 3); a step begun has a tenth more, or 5 s.",
    ),
]

MemoryOption = Annotated[
    float | None,
    typer.Option(
        "--memory",
        metavar="GB",
        help="Gigabytes a process may use for its data; a computation that needs more ends with a message.",
    ),
]


def prepare(threads: int | None = None, quiet: bool = False, seed: int = 0) -> None:
    """Before a computation: silence, the number of threads, and a cache folder that is the user's.

    Raises:
        InputError: more threads than there are, a negative seed, or a cache folder that others may write in.
    """
    from ..cache import cache_folder
    from ..progress import set_quiet
    from ..threads import available, limit

    set_quiet(quiet)
    require_whole("--seed", seed, 0)
    if threads is not None:
        require_whole("--threads", threads, 1, available())
        limit(threads)
    cache_folder()


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
    without: str | None = None,
    inverse_temperature: float | None = None,
    metric: str | None = None,
) -> Problem:
    """The problem a command line describes.

    Args:
        without: a parameter that the command varies, and that --set may therefore not give.
        metric: of several by name, that of the test error.

    Raises:
        InputError: an unknown model, metric or parameter, or a value out of range.
    """
    from ..problems.problem import problem

    values = assignments(items)
    if without is not None and without in values:
        raise InputError(f"{without} is given by --set and varied by --over; leave one out")
    if "inverse_temperature" in values:
        raise InputError("--set inverse_temperature: give it as --inverse-temperature")
    described = problem(model, inverse_temperature=inverse_temperature, **values)
    return described if metric is None else described.by_metric(metric)


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
    """Return name and points, (N,), of `alpha=LO:HI:N`, `lambda=LO:HI:N:log` (equal ratios), in either order, or
    `alpha=0.5,1,2`, all up or all down.

    Raises:
        InputError: another form.
    """
    import numpy as np

    wrong = InputError(
        f"{option} {text}: NAME=LO:HI:N, NAME=LO:HI:N:log or a list is expected, as alpha=0.1:2:40, "
        "lambda=1e-4:1:9:log or alpha=0.5,1,2"
    )
    name, _, span = (part.strip() for part in text.partition("="))
    listed = ":" not in span
    parts = span.split("," if listed else ":")
    by_ratio = len(parts) == 4 and parts[3] == "log"
    if span.startswith("["):
        raise InputError(
            f"{wrong}; arrays go along a line by its place, --set '{name}=[..]:[..]' {option} path_{name}=0:1:11"
        )
    if not name or not (listed or by_ratio or len(parts) == 3):
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
    if by_ratio and min(numbers) <= 0:
        raise InputError(f"{option} {text}: LO and HI must be above 0 where the steps are ratios")
    if not (by_ratio or listed) and min(numbers) > 0 and max(numbers) >= 1000 * min(numbers) and count > 2:
        from ..progress import say

        say(f"{option} {text}: the steps are equal; {text}:log has equal ratios")
    space = np.geomspace if by_ratio else np.linspace
    return name, np.array(numbers) if listed else space(numbers[0], numbers[1], count)


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


def netcdf_file(output: Path | None, what: str, force: bool) -> Path | None:
    """Before a computation: where `what` is to be written as netCDF (see `files.new_file`), if -o names a file.

    Raises:
        InputError: the name ends otherwise, a file is there already, or nothing can be written there.
    """
    from ..files import new_file

    if output is None:
        return None
    if output.suffix != ".nc":
        raise InputError(f"-o {output}: {what} is written as netCDF, to a file that ends in .nc")
    return new_file(output, force)


def check_goes_on(target: Path | None, output: Path | None, what: str, force: bool) -> None:
    """A file that is there is one that `what` (sweep, phases) wrote, beside the records from which it goes on.

    Raises:
        InputError: it is not, and --force is not given.
    """
    if target is None or force or not target.exists():
        return
    from ..files import occupied
    from ..report.tables import load_dataset
    from ..sweeping.records import folder_of

    folder = folder_of(target)
    if not folder.is_dir():
        raise occupied(output or target, f"the file exists, and there are no records next to it in {folder.name}")
    try:
        own = what in load_dataset(target).attrs
    except InputError:
        own = False
    if not own:
        raise occupied(output or target, f"the file exists, and `saddleforge {what}` did not write it")
