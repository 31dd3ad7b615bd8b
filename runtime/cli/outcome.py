"""How a command ends: what it prints, on which stream, and with which exit status (docs/design.md section 4)."""

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

from ..base.errors import InputError, NotConvergedError, TimeLimitError, told
from ..base.interrupts import ignore, pressed, yield_to_threads
from .signatures import command_signature, prepared
from .streams import drop, kept_for, tell

if TYPE_CHECKING:
    from ..extensions.breaking.solution import BrokenSolution
    from ..extensions.reference.solution import PreciseSolution
    from ..solving.solution import Solution
    from .options import OutputFile


class Exit(Enum):
    """How a command ends as a whole; how an iteration does is `saddle_point.iteration.Status`.

    Attributes:
        code: the exit status of the process.
        word: `status` in the JSON object.
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
class Outcome:
    """What a command has to say.

    Attributes:
        text: printed for people on stdout, and not with --json; a function is called only where it is printed.
        data: the JSON object, printed on stdout with --json; a function is called only then.
        message: one sentence on stderr, as why the command did not succeed.
        status: how the command ends; default, not converged where there is a message, or else done.
    """

    text: str | Callable[[], str] = ""
    data: dict[str, Any] | Callable[[], dict[str, Any]] = field(default_factory=dict)
    message: str = ""
    status: Exit | None = None

    @property
    def ending(self) -> Exit:
        """Return how the command ends."""
        return self.status or (Exit.NOT_CONVERGED if self.message else Exit.DONE)

    def printed_text(self) -> str:
        """Return the text for stdout."""
        return self.text() if callable(self.text) else self.text

    def json_object(self) -> dict[str, Any]:
        """Return the object for stdout with --json."""
        return self.data() if callable(self.data) else self.data


# Reasons, as messages say them.
NO_VERDICT = "the time limit ended the verdict on stability"
WHY = {Exit.INTERRUPTED: "interrupted", Exit.TIME_LIMIT: "the time limit ended the computation"}


def cut_short(interrupted: bool, out_of_time: bool) -> Exit | None:
    """Return how a command ended that was not let finish, or None; from here on nothing interrupts it."""
    ignore()
    return Exit.INTERRUPTED if interrupted else Exit.TIME_LIMIT if out_of_time else None


def kept(early: Exit, finished: int, wanted: int | None, file: OutputFile | None) -> str:
    """Which points a command that ended early has, in a sentence; `wanted` None where nobody knows their number."""
    why, of = WHY[early], f" of {wanted}" if wanted is not None else ""
    if not finished:
        return f"{why} before the first{of} point{'s' if of else ''} was finished"
    where = f" in {file.name}" if file is not None else ""
    if finished == 1:
        return f"{why}; the one finished point{of} is kept{where}"
    return f"{why}; the {finished} finished points{of} are kept{where}"


def advice(solution: Solution | PreciseSolution | BrokenSolution) -> str:
    """Why a solution is none, and what to try next; nothing where it is one."""
    if solution.success:
        return ""
    evidence = getattr(solution, "evidence", {})
    reason = f" ({evidence['not_proved']})" if "not_proved" in evidence else ""
    return f"{solution.status.words} from start {solution.start}{reason}: {solution.advice}"


def saved(
    save: Callable[[Path], None],
    file: OutputFile | None,
    text: str,
    data: Callable[[str, Path | None], dict[str, Any]],
    message: str,
    early: Exit | None = None,
    points: tuple[int, int | None] | None = None,
) -> Outcome:
    """The outcome of a command once its result is in the file of -o; nothing comes between that and saying so.

    Where the file cannot be written (the disk has filled up, say) that is the outcome: what was found is printed all
    the same.

    Args:
        file: None where no file is asked for, or nothing was found.
        data: the JSON object, by the word for its `status` and the file that holds the result.
        message: why the command did not succeed, where that file can be written.
        early: how the command ended that was not let finish.
        points: how many points are finished, of how many if that is known: of a command that does not go on from them,
            whose file is therefore another one, and whose message is about them, where it ended early.
    """
    ignore()
    if early is not None and points is not None:
        file = file.aside() if file is not None else None
        message = kept(early, *points, file)
    if file is not None and points is not None and not points[0]:
        file = None
    outcome = Outcome(text, status=early, message=message)
    if file is not None:
        try:
            save(file.path)
        except InputError as error:
            # Not done, whatever was found; but that the time ended is said first.
            word = (Exit.TIME_LIMIT if early is Exit.TIME_LIMIT else Exit.WRONG_INPUT).word
            return Outcome(text, lambda: data(word, None), str(error), Exit.WRONG_INPUT)
        text += f"\nwrote {file.name}"
    return replace(outcome, text=text, data=lambda: data(outcome.ending.word, file.name if file is not None else None))


def command(*shared: str) -> Callable[[Callable[..., Outcome]], Callable[..., int]]:
    """A decorator: a command that returns an Outcome as one that prints it and returns the exit status.

    With `json=True` among its arguments, whatever it or a model file prints goes to stderr. A time limit counts from
    here on.

    Args:
        shared: options of `signatures.prepared` that the command has; it need not name them among its parameters.
    """

    def decorate(function: Callable[..., Outcome]) -> Callable[..., int]:
        own, name = inspect.signature(function), function.__name__ if "quiet" in shared else None

        @functools.wraps(function)
        def run(**arguments: Any) -> int:
            as_json = bool(arguments.get("json", False))
            with kept_for(sys.stdout, as_json) as stdout:
                try:
                    with prepared(name, **{option: arguments[option] for option in shared}):
                        given = inspect.BoundArguments(
                            own, OrderedDict((each, arguments[each]) for each in own.parameters)
                        )
                        outcome = function(*given.args, **given.kwargs)
                        printed = {"data": outcome.json_object()} if as_json else {"text": outcome.printed_text()}
                        outcome = replace(outcome, **printed)
                except BrokenPipeError:
                    return Exit.BROKEN_PIPE.code
                except BaseException as error:
                    outcome = _failure(error, arguments)
                ignore()
                return _print(outcome, as_json, stdout)

        # Typer reads the options off the wrapper.
        signature = command_signature(function, shared)
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        run.__doc__ = (function.__doc__ or "").partition("\n\n    Args:")[0]
        return run

    return decorate


# Of disks, quotas, files, processes: what the machine has no more of, or a limit of the user's forbids.
_EXHAUSTED = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EMFILE", "ENFILE", "EAGAIN", "ENOMEM")
    if hasattr(errno, name)
}


def _failure(error: BaseException, arguments: dict[str, Any]) -> Outcome:
    """The outcome of a command with these arguments that raised."""
    known = isinstance(error, InputError | NotConvergedError | TimeLimitError | MemoryError | SystemExit)
    if isinstance(error, KeyboardInterrupt) or (pressed() and not known and not _is_model_error(error)):
        return _failed(Exit.INTERRUPTED, "interrupted before there was a result")
    if isinstance(error, InputError) or _is_model_error(error):
        return _failed(Exit.WRONG_INPUT, _name_option(str(error), arguments))
    if isinstance(error, TimeLimitError | NotConvergedError):
        late = isinstance(error, TimeLimitError)
        return _failed(Exit.TIME_LIMIT if late else Exit.NOT_CONVERGED, str(error))
    if isinstance(error, MemoryError):
        sentence = "there is not enough memory; ask for a larger --accuracy, or fewer points at a time"
    elif isinstance(error, OSError) and error.errno in _EXHAUSTED:
        where = f"{error.filename}: " if error.filename else ""
        sentence = f"the system does not allow more: {where}{error.strerror}"
    elif isinstance(error, SystemExit):
        sentence = f"the model file ended the program (exit {error.code})"
    elif not isinstance(error, Exception):  # nothing here raises such
        sentence = f"the model file ended the program ({told(error)})"
    else:
        return _failed(Exit.BUG, _logged(error))
    return _failed(Exit.WRONG_INPUT, sentence)


def _name_option(sentence: str, arguments: dict[str, Any]) -> str:
    """Return what a function says of its argument, as `accuracy = 0`, about the option, unless --set has that name."""
    name, equals, rest = sentence.partition(" = ")
    assigned = [item.partition("=")[0].strip() for item in arguments.get("set_") or ()]
    return f"--{name.replace('_', '-')} {rest}" if equals and name in arguments and name not in assigned else sentence


def _failed(status: Exit, sentence: str) -> Outcome:
    return Outcome(data={"status": status.word, "error": sentence}, status=status, message=sentence)


def _is_model_error(error: BaseException) -> bool:
    """Whether a model's author is at fault, without importing `derive` to find out."""
    errors = sys.modules.get("saddleforge.derive.errors")
    return errors is not None and isinstance(error, errors.ModelError)


def _logged(error: BaseException) -> str:
    """Write the traceback to a log file; returns the sentence for the user."""
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
            f"this is a bug in saddleforge ({told(error)}); the traceback is in {folder / name}: "
            f"please report it with that file"
        )
    sys.stderr.write(text)
    return "this is a bug in saddleforge; please report it with the traceback above"


def interrupted(as_json: bool) -> int:
    """Say that the program was interrupted before a command began, or after it was done; nothing where one said so."""
    ignore()
    if _told:
        return Exit.INTERRUPTED.code
    return _print(_failed(Exit.INTERRUPTED, "interrupted before there was a result"), as_json, sys.stdout)


_told: list[Outcome] = []  # what this process has printed


def _print(outcome: Outcome, as_json: bool, stdout: TextIO) -> int:
    _told.append(outcome)
    code = outcome.ending.code
    try:
        if as_json:
            from ..report.contract import document

            print(document(outcome.json_object()), file=stdout)
        elif outcome.text:
            print(outcome.printed_text().rstrip("\n"), file=stdout)
        stdout.flush()
    except BrokenPipeError:
        return Exit.BROKEN_PIPE.code
    except OSError as error:
        drop(stdout)
        tell(f"saddleforge: cannot write to standard output: {error.strerror or error}")
        code = code or Exit.WRONG_INPUT.code
    if outcome.message:
        tell(f"saddleforge: {outcome.message}")
    return code


_OTHER_NAMES = {
    "n": "; samples are alpha d: --set alpha=VALUE, and --d of `simulate`",
    "samples": "; samples are alpha d: --set alpha=VALUE, and --d of `simulate`",
    "temperature": "; --inverse-temperature is 1 over it",
    "beta": "; --inverse-temperature, or a parameter of the model given as --set beta=VALUE",
    "lr": "; the learning rate of `dynamics` is --rate",
    "epochs": "; `dynamics` runs over --time BEGIN:END, in samples over d",
}
"""Options by names that they have elsewhere, and what to write."""


def usage_error(error: Any, first: str, as_json: bool) -> int:
    """Report what Typer found wrong with the arguments, of which one is the first, in one sentence."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"saddleforge {first}"
    sentence = " ".join(error.format_message().split()).rstrip(".")
    if "unexpected extra argument" in sentence and path.endswith(" plot"):
        sentence += (
            "; plot draws one file, and other critical lines by --beside: several curves in one picture are drawn in "
            "Python, from xarray.open_dataset of each file"
        )
    # Parameters of models are no options, and a list is one word.
    if any("--set" in each.opts for each in getattr(context and context.command, "params", ())):
        if "unexpected extra argument" in sentence:
            sentence += "; a value is one word, as --set alpha=2 or --columns q,theta"
        elif option := re.match(r"No such option: --?(\w+)", sentence):
            sentence += _OTHER_NAMES.get(option[1]) or (
                f"; a parameter of the model is given as --set {option[1]}=VALUE"
            )
    sentence = f"{sentence[:1].lower()}{sentence[1:]}; `{path} --help` lists what is allowed"
    return _print(_failed(Exit.WRONG_INPUT, sentence), as_json, sys.stdout)


def leave(status: int) -> NoReturn:
    """End the process with a status, quietly where the reader of stdout has gone or Ctrl-C is pressed again."""
    ignore()
    _told.clear()
    if status == Exit.BROKEN_PIPE.code:
        drop(sys.stdout)
    yield_to_threads()
    sys.exit(status)
