"""`reproduce`: the tables and figures of the attention paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import interrupts
from . import options
from .options import ForceOption, JsonOption, QuietOption, ThreadsOption
from .outcome import Exit, Outcome, command


@command
def reproduce(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where tables, figures and the report go.")],
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="NAME",
            help="Only this figure; repeat for several. On request only, each a job of its own: `extensions` (half an "
            "hour), `stability` (ten minutes), `finite-size` (twenty minutes), `rsb` (a quarter of an hour), "
            "`dynamics` (ten minutes).",
        ),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> Outcome:
    """Compute the tables and figures of the attention paper and set them beside the published numbers."""
    from ..files import absolute, check_folder

    folder = absolute(check_folder(out))
    options.prepare(threads, quiet)
    from ..reproduce.jobs import refuse_foreign
    from ..reproduce.jobs import reproduce as run

    if not force:
        refuse_foreign(folder)
    try:
        with interrupts.recognised():
            reproduction = run(folder, figure)
    except KeyboardInterrupt:
        sentence = f"interrupted; what is finished is kept in {out}, and the same command continues from there"
        return Outcome("", {"status": Exit.INTERRUPTED.word, "out": str(out)}, Exit.INTERRUPTED, sentence)
    if not reproduction.complete:
        message = (
            "not every number was reached to its accuracy, or the generated solver is stale: "
            f"{reproduction.report} says which"
        )
        return Outcome(f"results are in {out}", reproduction.to_json, Exit.NOT_CONVERGED, message)
    return Outcome(f"results are in {out}; begin with {reproduction.report}", reproduction.to_json)
