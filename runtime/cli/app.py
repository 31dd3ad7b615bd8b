"""The Typer application `saddleforge`: options of the program itself, and its commands in the order of the help."""

from __future__ import annotations

from typing import Annotated

import typer

from .._version import __version__
from .bayes import bayes
from .branches import curve, follow
from .cache import cache
from .dynamics import dynamics
from .generate import generate
from .models import derive, models
from .phases import phases
from .plot import plot
from .reproduce import reproduce
from .signatures import CommandWithComposedHelp
from .simulate import simulate
from .solve import solve, stability
from .sweep import collect, sweep
from .threshold import threshold
from .tune import tune

app = typer.Typer(
    name="saddleforge",
    help="Saddle-point equations of learning models: derive them, generate a solver, solve with an error bar.\n\n"
    "MODEL is a name from `saddleforge models`, or a path to a model file (which is executed).\n\n"
    "Exit status: 0 done; 1 a bug; 2 wrong input; 3 not converged, or not to the accuracy asked; 130 interrupted.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"saddleforge {__version__}")
        raise typer.Exit()


@app.callback()
def _handle_global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


for each in (
    models,
    derive,
    generate,
    solve,
    bayes,
    stability,
    curve,
    follow,
    sweep,
    collect,
    phases,
    dynamics,
    simulate,
    plot,
    threshold,
    tune,
    reproduce,
    cache,
):
    app.command(cls=CommandWithComposedHelp)(each)
