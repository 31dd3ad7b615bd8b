"""`reproduce`: the tables and figures of the attention paper."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from ..base import interrupts
from ..base.budget import has_time_limit, remaining_seconds, without_time_limit
from .outcome import EARLY_EXIT_MESSAGES, CommandOutcome, ExitStatus, command_with_options


@command_with_options("time_limit", "memory_limit", "json", "threads", "quiet")
def reproduce(*, out: Path, figure: list[str] | None = None, force: bool = False) -> CommandOutcome:
    """Compute the tables and figures of the attention paper and compare them with the published numbers.

    Args:
        out (DIR): Where tables, figures and the report go.
        figure (NAME): Only this figure; repeat for several. On request only, each a job of its own: `extensions` (half
            an hour), `stability` (ten minutes), `finite-size` (twenty minutes), `rsb` (a quarter of an hour),
            `dynamics` (ten minutes).
    """
    from ..base.files import absolute_path, check_output_folder

    folder = absolute_path(check_output_folder(out))
    from ..reproduce.jobs import refuse_to_overwrite_foreign_files
    from ..reproduce.jobs import reproduce as run

    if not force:
        refuse_to_overwrite_foreign_files(folder)
    rang = False

    def raise_interrupt_at_time_limit() -> None:
        nonlocal rang
        rang = True
        raise KeyboardInterrupt

    try:
        # A step is done or is not: at its limit it is interrupted, never handed over as far as it has come.
        with (
            interrupts.interrupt_after_seconds(remaining_seconds(), raise_interrupt_at_time_limit)
            if has_time_limit()
            else nullcontext(),
            without_time_limit(),
            interrupts.restore_keyboard_interrupt(),
        ):
            reproduction = run(folder, figure)
    except KeyboardInterrupt:
        early = ExitStatus.TIME_LIMIT if rang else ExitStatus.INTERRUPTED
        kept = f"what is finished is kept in {out}, and the same command continues from there"
        sentence = f"{EARLY_EXIT_MESSAGES[early]}; {kept}"
        return CommandOutcome("", {"status": early.word, "out": str(out)}, sentence, early)
    if not reproduction.complete:
        message = (
            "not every number was reached to its accuracy, or the generated solver is stale: "
            f"{reproduction.report} says which"
        )
        return CommandOutcome(f"results are in {out}", reproduction.to_json, message)
    return CommandOutcome(f"results are in {out}; begin with {reproduction.report}", reproduction.to_json)
