"""Outcomes of commands: text, JSON, message and exit status (docs/design.md section 4)."""

from __future__ import annotations

import errno
import functools
import inspect
import os
import re
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ..base.errors import InputError, NotConvergedError, TimeLimitError, describe_exception
from ..base.interrupts import ignore_interrupts, restore_default_signals, was_interrupted
from .signatures import apply_command_limits, command_signature
from .streams import print_error_line, redirect_stream_to_null, reserve_output_stream

if TYPE_CHECKING:
    from ..extensions.breaking.solution import BrokenSolution
    from ..extensions.reference.solution import PreciseSolution
    from ..solving.solution import Solution
    from .options import OutputFile


class ExitStatus(Enum):
    """The status with which a command ends.

    Attributes:
        code: exit status of the process.
        word: entry `status` of the JSON object.
    """

    DONE = 0, "done"
    BUG = 1, "bug"
    WRONG_INPUT = 2, "wrong_input"
    NOT_CONVERGED = 3, "not_converged"
    TIME_LIMIT = 3, "time_limit"
    INTERRUPTED = 130, "interrupted"
    BROKEN_PIPE = 141, ""  # nobody reads it

    def __init__(self, code: int, word: str) -> None:
        self.code = code
        self.word = word


@dataclass(frozen=True)
class CommandOutcome:
    """The printed output of a command, and its exit status.

    Attributes:
        text: text that is printed on stdout without --json (or a function that returns it, called if needed).
        data: JSON object that is printed on stdout with --json (or a function that returns it, called if needed).
        message: sentence that is printed on stderr, for example why the command failed.
        status: exit status; by default not converged if there is a message, otherwise done.
    """

    text: str | Callable[[], str] = ""
    data: dict[str, Any] | Callable[[], dict[str, Any]] = field(default_factory=dict)
    message: str = ""
    status: ExitStatus | None = None

    @property
    def exit_status_of_command(self) -> ExitStatus:
        """Return the exit status: the given one; by default not converged if there is a message, otherwise done."""
        return self.status or (ExitStatus.NOT_CONVERGED if self.message else ExitStatus.DONE)

    def printed_text(self) -> str:
        """Return the text that the command prints on stdout without --json."""
        return self.text() if callable(self.text) else self.text

    def json_object(self) -> dict[str, Any]:
        """Return the JSON object that the command prints on stdout with --json."""
        return self.data() if callable(self.data) else self.data


# Reasons, as messages say them.
NO_VERDICT = "the time limit ended the computation before the verdict on stability"
EARLY_EXIT_MESSAGES = {
    ExitStatus.INTERRUPTED: "interrupted",
    ExitStatus.TIME_LIMIT: "the time limit ended the computation",
}


def early_exit_status(interrupted: bool, out_of_time: bool) -> ExitStatus | None:
    """Return the exit status of a command that ended early, otherwise None; ignore further interrupts.

    Args:
        interrupted: whether Ctrl-C ended the command.
        out_of_time: whether the time limit ended the command.
    """
    ignore_interrupts()
    return ExitStatus.INTERRUPTED if interrupted else ExitStatus.TIME_LIMIT if out_of_time else None


def describe_finished_points(early: ExitStatus, finished: int, wanted: int | None, file: OutputFile | None) -> str:
    """Return a sentence that says how many points a command finished before it ended early.

    Args:
        early: exit status with which the command ended early.
        finished: number of finished points.
        wanted: number of requested points; None if unknown.
        file: file with the finished points, or None.
    """
    why, of = EARLY_EXIT_MESSAGES[early], f" of {wanted}" if wanted is not None else ""
    if not finished:
        return f"{why} before the first{of} point{'s' if of else ''} was finished"
    where = f" in {file.name}" if file is not None else ""
    if finished == 1:
        return f"{why}; the one finished point{of} is kept{where}"
    return f"{why}; the {finished} finished points{of} are kept{where}"


def explain_solution_failure(solution: Solution | PreciseSolution | BrokenSolution) -> str:
    """Return a message that says why a solve failed and what to try next; empty for a converged solution."""
    if solution.success:
        return ""
    evidence = getattr(solution, "evidence", {})
    reason = f" ({evidence['not_proved']})" if "not_proved" in evidence else ""
    return f"{solution.status.words} from start {solution.start}{reason}: {solution.advice}"


def save_result_and_report(
    save: Callable[[Path], None],
    file: OutputFile | None,
    text: str,
    data: Callable[[str, Path | None], dict[str, Any]],
    message: str,
    early: ExitStatus | None = None,
    points: tuple[int, int | None] | None = None,
) -> CommandOutcome:
    """Save a result to the file of -o and return the outcome of the command; interrupts are ignored meanwhile.

    If the file cannot be written (for example because the disk is full), the outcome says so, and the result is printed
    nevertheless.

    Args:
        save: function that writes the result to a path.
        file: the output file; None if there is none, or no result.
        text: text for stdout, as in `CommandOutcome`.
        data: function of the status word and the path of the saved file (or None) that returns the JSON object.
        message: sentence for stderr if the file can be written.
        early: exit status of a command that was stopped; None if it was not.
        points: number of finished points, and of requested points if known. Given by a command that cannot continue
            from them: if it ended early, it writes another file, and its message gives the number.
    """
    ignore_interrupts()
    if early is not None and points is not None:
        file = file.file_for_partial_result() if file is not None else None
        message = describe_finished_points(early, *points, file)
    if file is not None and points is not None and not points[0]:
        file = None
    outcome = CommandOutcome(text, status=early, message=message)
    if file is not None:
        try:
            save(file.path)
        except InputError as error:
            # The command failed, whatever was found; but a time limit is reported first.
            word = (ExitStatus.TIME_LIMIT if early is ExitStatus.TIME_LIMIT else ExitStatus.WRONG_INPUT).word
            return CommandOutcome(text, lambda: data(word, None), str(error), ExitStatus.WRONG_INPUT)
        text += f"\nwrote {file.name}"
    return replace(
        outcome,
        text=text,
        data=lambda: data(outcome.exit_status_of_command.word, file.name if file is not None else None),
    )


def command_with_options(*shared: str) -> Callable[[Callable[..., CommandOutcome]], Callable[..., int]]:
    """Return a decorator that makes a command of a function: it prints the returned `CommandOutcome`.

    The command returns the exit status. With `json=True` among its arguments, all other output goes to stderr.

    Args:
        *shared: names of shared options (--seed, --time-limit, ...) that the command has in addition to its parameters.
    """

    def wrap_command_function(function: Callable[..., CommandOutcome]) -> Callable[..., int]:
        own, name = inspect.signature(function), function.__name__ if "quiet" in shared else None

        @functools.wraps(function)
        def run_and_print_command(**arguments: Any) -> int:
            as_json = bool(arguments.get("json", False))
            with reserve_output_stream(sys.stdout, as_json) as stdout:
                try:
                    with apply_command_limits(name, **{option: arguments[option] for option in shared}):
                        given = inspect.BoundArguments(
                            own, OrderedDict((each, arguments[each]) for each in own.parameters)
                        )
                        outcome = function(*given.args, **given.kwargs)
                        printed = {"data": outcome.json_object()} if as_json else {"text": outcome.printed_text()}
                        outcome = replace(outcome, **printed)
                except BrokenPipeError:
                    return ExitStatus.BROKEN_PIPE.code
                except BaseException as error:
                    outcome = _outcome_of_exception(error, arguments)
                ignore_interrupts()
                return _print_outcome(outcome, as_json, stdout)

        # Typer reads the options of the wrapper.
        signature = command_signature(function, shared)
        run_and_print_command.__signature__ = signature  # type: ignore[attr-defined]
        run_and_print_command.__annotations__ = {
            name: parameter.annotation for name, parameter in signature.parameters.items()
        }
        run_and_print_command.__doc__ = (function.__doc__ or "").partition("\n\n    Args:")[0]
        return run_and_print_command

    return wrap_command_function


# Exhausted resources: disks, quotas, files, processes.
_EXHAUSTED_RESOURCES = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EMFILE", "ENFILE", "EAGAIN", "ENOMEM")
    if hasattr(errno, name)
}


def _outcome_of_exception(error: BaseException, arguments: dict[str, Any]) -> CommandOutcome:
    """Convert an exception that a command raised into an outcome: message and exit status."""
    known = isinstance(error, InputError | NotConvergedError | TimeLimitError | MemoryError | SystemExit)
    if isinstance(error, KeyboardInterrupt) or (was_interrupted() and not known and not _is_model_error(error)):
        return _error_outcome(ExitStatus.INTERRUPTED, "interrupted before there was a result")
    if isinstance(error, InputError) or _is_model_error(error):
        return _error_outcome(ExitStatus.WRONG_INPUT, _replace_argument_by_option_name(str(error), arguments))
    if isinstance(error, TimeLimitError | NotConvergedError):
        late = isinstance(error, TimeLimitError)
        return _error_outcome(ExitStatus.TIME_LIMIT if late else ExitStatus.NOT_CONVERGED, str(error))
    if isinstance(error, MemoryError):
        sentence = "there is not enough memory; allow larger error bars (--accuracy), or fewer points at a time"
    elif isinstance(error, OSError) and error.errno in _EXHAUSTED_RESOURCES:
        where = f"{error.filename}: " if error.filename else ""
        sentence = f"a limit of the system was reached: {where}{error.strerror}"
    elif isinstance(error, SystemExit):
        sentence = f"the model file ended the program (exit {error.code})"
    elif not isinstance(error, Exception):  # this package raises none
        sentence = f"the model file ended the program ({describe_exception(error)})"
    else:
        return _error_outcome(ExitStatus.BUG, _log_traceback(error))
    return _error_outcome(ExitStatus.WRONG_INPUT, sentence)


def _replace_argument_by_option_name(sentence: str, arguments: dict[str, Any]) -> str:
    """Return an error message with names of arguments replaced by options: `accuracy = 0` by `--accuracy 0`."""
    name, equals, rest = sentence.partition(" = ")
    assigned = [item.partition("=")[0].strip() for item in arguments.get("set_") or ()]
    options = {each: "--" + each.replace("_", "-") for each in arguments if each not in assigned}
    if equals and name in options:
        sentence = f"{options[name]} {rest}"
    for each in (each for each in options if "_" in each.strip("_")):
        sentence = re.sub(rf"(?<![\w'`-]){each}(?![\w'`])", options[each], sentence)
    return sentence


def _error_outcome(status: ExitStatus, sentence: str) -> CommandOutcome:
    return CommandOutcome(data={"status": status.word, "error": sentence}, status=status, message=sentence)


def _is_model_error(error: BaseException) -> bool:
    """Return whether an exception is a `ModelError` (a mistake in a model file), without importing `derive`."""
    errors = sys.modules.get("saddleforge.derive.errors")
    return errors is not None and isinstance(error, errors.ModelError)


def _log_traceback(error: BaseException) -> str:
    """Write the traceback of an unexpected exception to a log file and return a message for the user."""
    import platform
    import tempfile
    from datetime import datetime

    from .._version import __version__
    from ..base.cache import cache_folder

    text = "".join(
        [
            f"saddleforge {__version__}, Python {platform.python_version()}, {platform.platform()}\n",
            f"arguments: {sys.argv[1:]}\n\n",
            *traceback.format_exception(error),
        ]
    )
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.txt"
    for find in (lambda: cache_folder() / "logs", lambda: Path(tempfile.gettempdir())):
        try:
            folder = find()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        except (OSError, InputError):
            continue
        return (
            f"this is a bug in saddleforge ({describe_exception(error)}); the traceback is in {folder / name}: "
            f"please report it with that file"
        )
    sys.stderr.write(text)
    return "this is a bug in saddleforge; please report it with the traceback above"


def report_interrupt(as_json: bool) -> int:
    """Report on stderr that Ctrl-C ended the program, unless already reported; return the exit status."""
    ignore_interrupts()
    if _printed_outcomes:
        return ExitStatus.INTERRUPTED.code
    return _print_outcome(
        _error_outcome(ExitStatus.INTERRUPTED, "interrupted before there was a result"), as_json, sys.stdout
    )


_printed_outcomes: list[CommandOutcome] = []  # outcomes printed by this process


def _print_outcome(outcome: CommandOutcome, as_json: bool, stdout: TextIO) -> int:
    _printed_outcomes.append(outcome)
    code = outcome.exit_status_of_command.code
    try:
        if as_json:
            from ..report.contract import json_text_with_schema

            print(json_text_with_schema(outcome.json_object()), file=stdout)
        elif outcome.text:
            print(outcome.printed_text().rstrip("\n"), file=stdout)
        stdout.flush()
    except BrokenPipeError:
        return ExitStatus.BROKEN_PIPE.code
    except OSError as error:
        redirect_stream_to_null(stdout)
        print_error_line(f"saddleforge: cannot write to standard output: {error.strerror or error}")
        code = code or ExitStatus.WRONG_INPUT.code
    if outcome.message:
        print_error_line(f"saddleforge: {outcome.message}")
    return code


_FOREIGN_OPTION_NAMES = {
    "n": "; samples are alpha d: --set alpha=VALUE, and --d of `simulate`",
    "samples": "; samples are alpha d: --set alpha=VALUE, and --d of `simulate`",
    "temperature": "; --inverse-temperature is 1 over it",
    "beta": "; --inverse-temperature, or a parameter of the model given as --set beta=VALUE",
    "lr": "; the learning rate of `dynamics` is --rate",
    "epochs": "; `dynamics` runs over --time BEGIN:END, in samples over d",
}
"""Names that options have in other programs, and the option to use."""


def report_usage_error(error: Any, first: str, as_json: bool) -> int:
    """Report a wrong command line in one sentence on stderr (with --json as JSON); return the exit status.

    Args:
        error: exception that Typer raised.
        first: first argument of the command line.
        as_json: whether --json was given.
    """
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"saddleforge {first}"
    sentence = " ".join(error.format_message().split()).rstrip(".")
    if "unexpected extra argument" in sentence and path.endswith(" plot"):
        sentence += (
            "; plot draws one file, and other critical lines by --overlay: several curves in one picture are drawn in "
            "Python, from xarray.open_dataset of each file"
        )
    # Parameters of models are no options, and a list is one word.
    if any("--set" in each.opts for each in getattr(context and context.command, "params", ())):
        if "unexpected extra argument" in sentence:
            sentence += "; a value is one word, as --set alpha=2 or --columns q,theta"
        elif option := re.match(r"No such option: --?(\w+)", sentence):
            sentence += _FOREIGN_OPTION_NAMES.get(option[1]) or (
                f"; a parameter of the model is given as --set {option[1]}=VALUE"
            )
    sentence = f"{sentence[:1].lower()}{sentence[1:]}; `{path} --help` lists what is allowed"
    return _print_outcome(_error_outcome(ExitStatus.WRONG_INPUT, sentence), as_json, sys.stdout)


def exit_process(status: int) -> NoReturn:
    """End the process with a status, even if stdout is closed or Ctrl-C is pressed again."""
    ignore_interrupts()
    _printed_outcomes.clear()
    if status == ExitStatus.BROKEN_PIPE.code:
        redirect_stream_to_null(sys.stdout)
    restore_default_signals()
    sys.exit(status)
