"""Options of a command, read off its function: flags, types and defaults from its parameters, texts from its docstring.

A parameter before `/` is an argument, every other one an option of the same name; `Annotated[int, {"min": 1}]` passes
more to Typer. What --help says of it stands under Args in the docstring, a metavar in parentheses, or, where several
commands share the option, in that of `SharedOptionTexts`. Names in braces are those of `_LISTS`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from ..base import environment, interrupts, progress
from ..base.budget import time_limit as limited_time
from ..base.devices import DeviceOptions
from ..base.errors import require_whole_number
from ..base.options import options_in_force


class SharedOptionTexts:
    r"""The help texts of options that several commands share, by the name of the parameter.

    Args:
        model (MODEL): A catalogue name, or a path to a model file; FILE.py:NAME picks one of several.
        set_ (NAME=VALUE): alpha (α, samples over the dimension), lambda (λ, the ridge), a parameter of the model's own,
            or a structural size; repeat for several. Arrays as JSON: 'A=[[.6,.4],[.4,.6]]'; two arrays [..]:[..] are
            the ends of a line, along which --over path_A=0:1:11 moves.
        sizes (SIZE=NUMBER): A structural size: tokens, student_rank, teacher_rank, clusters; repeat for several.
        rename (NAME=SYMBOL): A symbol of your own for one of the theory or a parameter: theta=T, in LaTeX
            theta='\chi'. Repeats.
        start: A named start of the model: informed, uninformed, ...; default: informed, semantic with several tokens.
        on (A): The branch, by the start that leads to it; --on is the same.
        columns (NAME,...): Columns of the table, as theta_21,test_error,replicon: overlaps (theta: all its entries),
            losses, verdicts, trained numbers, named as in -o FILE.nc.
        from_ (FILE): Start from a file: a solution of `solve -o`, the runs of `simulate -o`, or the nearest point of a
            curve.
        accuracy: Largest error bar of an overlap, relative to the size of q, V, m or theta.
        integrator (RULE): auto, {rules}.
        points: Size of the quadrature rule: {units}.
        metric (NAME): The named metric of the model that `test_error` stands for; default: the first.
        proof: Prove it in ball arithmetic; for one token, s = t = 1, a ridge, and a loss of labels or of X - Y.
        rsb (0|1|2): Steps of replica symmetry breaking; 2 is for losses of one or two fields, and not for `curve`.
        inverse_temperature (B): B of the Gibbs measure exp(-B risk) over the weights; without it, the minimum of the
            risk.
        output (FILE.nc): Write netCDF, for `saddleforge plot`.
        processes: Worker processes on this machine (default: one per core).
        force: Overwrite an existing file.
        time_limit (SECONDS): End after so many seconds with the best so far (exit status 3); a step in progress may
            take 5 s longer.
        memory_limit (GB): Gigabytes a process may use for its data; a computation that needs more ends with a message.
        json: Print one JSON object on stdout and nothing else.
        threads: Number of threads (default: all cores); results do not depend on it.
        seed: Seed of the sampled rules.
        device: Where averages over many nodes run: cpu, cuda, or auto: SADDLEFORGE_DEVICE, without it cpu.
        quiet: Print no progress and no warnings.
    """


@contextmanager
def apply_command_limits(
    name: str | None,
    time_limit: float | None = None,
    memory_limit: float | None = None,
    json: bool = False,
    threads: int | None = None,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
) -> Iterator[None]:
    """Return a context in which a command runs with limits of time, memory and threads; parameters are its options.

    Args:
        name: name of the command in progress reports; None for a quick command.
        time_limit: time limit in seconds, or None.
        memory_limit: memory limit in gigabytes, or None.
        json: whether --json was given.
        threads: number of threads, or None.
        seed: seed of the sampled quadrature rules.
        device: where averages over many nodes run.
        quiet: whether progress reports are off.

    Raises:
        InputError: a limit is invalid, there are too many threads, the seed is negative, or there is no such device.
    """
    environment.check_thread_and_memory_settings()
    with (
        environment.memory_limit(memory_limit),
        interrupts.restore_keyboard_interrupt(),
        limited_time(time_limit),
        options_in_force(DeviceOptions(device)),
        nullcontext() if name is None or quiet else progress.progress_step(name),
    ):
        progress.set_quiet_mode(quiet)
        require_whole_number("--seed", seed, 0)
        if threads is not None:
            from ..base.threads import available_thread_count, set_thread_limit

            require_whole_number("--threads", threads, 1, available_thread_count())
            set_thread_limit(threads)
        yield


_FLAGS = {"memory_limit": "--memory", "on": "--start --on", "output": "-o --output", "sizes": "--set"}
"""Options whose flags differ from the names of their parameters."""
_BRACES = re.compile(r"{(\w+)}")
_ARGS_ENTRY = re.compile(r"^    (\w+)(?: \((.+?)\))?: (.+(?:\n {8}.+)*)", re.MULTILINE)


def command_signature(function: Callable[..., object], shared: Sequence[str]) -> inspect.Signature:
    """Return the signature from which Typer takes the options of a command: its own and shared ones.

    Args:
        function: function of the command.
        shared: names of the shared options.
    """
    every = dict(inspect.signature(function, eval_str=True).parameters)
    common = inspect.signature(apply_command_limits, eval_str=True).parameters
    for name in common:  # last, in this order
        if name in every or name in shared:
            every[name] = every.pop(name, common[name])
    texts = {
        name: (metavar or None, " ".join(text.split()))
        for source in (SharedOptionTexts, function)
        for name, metavar, text in _ARGS_ENTRY.findall(inspect.getdoc(source) or "")
    }
    described = [_typer_parameter(parameter, *texts.get(name, (None, None))) for name, parameter in every.items()]
    return inspect.Signature(described)


def _typer_parameter(parameter: inspect.Parameter, metavar: str | None, text: str | None) -> inspect.Parameter:
    """Return a parameter of a command, annotated so that Typer makes an option or argument of it."""
    kind, *more = (
        get_args(parameter.annotation) if hasattr(parameter.annotation, "__metadata__") else [parameter.annotation]
    )
    if parameter.kind is parameter.POSITIONAL_ONLY:
        described = typer.Argument(metavar=metavar, help=text)
    else:
        flag = "--" + parameter.name.strip("_").replace("_", "-")
        if kind in (bool, bool | None) and parameter.default is not False:
            flag += f"/--no-{flag[2:]}"
        flags = _FLAGS.get(parameter.name, flag).split()
        described = typer.Option(*flags, metavar=metavar, help=text, **(more[0] if more else {}))
    return parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=Annotated[kind, described])


def _list_quadrature_rules() -> str:
    from ..integration import FAMILIES

    *others, last = FAMILIES
    return f"{', '.join(others)} or {last}"


def _describe_units_of_rule_sizes() -> str:
    from ..integration import FAMILIES, Rule

    other = (f"{family.unit} ({name})" for name, family in FAMILIES.items() if family.unit != Rule.unit)
    return f"{Rule.unit}, but {', '.join(other)}"


def _list_simulation_methods() -> str:
    from ..extensions.simulation.methods import METHODS

    return "|".join(["auto", *METHODS])


def _describe_simulation_methods() -> str:
    from ..extensions.simulation.methods import METHODS, exact_training_method

    special = (f"{name} {method.summary}" for name, method in METHODS.items() if method.summary)
    cornered, bent = exact_training_method(loss_corners=True), exact_training_method(penalty_corners=True)
    auto = f"{exact_training_method()}, where the loss has kinks {cornered}, where only the penalty has {bent}"
    return f"{'; '.join(special)}; auto: {auto}"


def _describe_learning_rates_by_method() -> str:
    from ..extensions.simulation.methods import METHODS

    return "; ".join(f"{name}: {method.rate}" for name, method in METHODS.items() if method.rate)


_LISTS = {
    "rules": _list_quadrature_rules,
    "units": _describe_units_of_rule_sizes,
    "methods": _list_simulation_methods,
    "trainings": _describe_simulation_methods,
    "rates": _describe_learning_rates_by_method,
}
"""Functions that compose the lists named in braces, from the descriptions of rules and methods."""


class CommandWithComposedHelp(TyperCommand):
    """A command whose help text has lists that are composed only when it is shown, since that imports NumPy."""

    def format_help(self, *page: Any) -> None:
        """Write the help text, with each placeholder in braces replaced by its list."""
        for option in self.params:
            for attribute in ("help", "metavar"):
                text = getattr(option, attribute) or ""
                setattr(option, attribute, _BRACES.sub(lambda name: _LISTS[name[1]](), text) or None)
        super().format_help(*page)
