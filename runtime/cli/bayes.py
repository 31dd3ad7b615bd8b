"""`bayes`: what the best possible learner knows, beside risk minimisation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import interrupts
from ..errors import InputError, require_known
from . import options
from .options import (
    ForceOption,
    JsonOption,
    MemoryOption,
    ModelArgument,
    QuietOption,
    SetOption,
    StartOption,
    ThreadsOption,
    TimeLimitOption,
)
from .outcome import Exit, Outcome, advice, aside, command, cut_short, kept, saved

if TYPE_CHECKING:
    import numpy as np

    from ..problems.problem import Problem


@command
def bayes(
    model: ModelArgument,
    set_: SetOption = None,
    from_: Annotated[
        str, typer.Option("--from", metavar="START", help="uninformed, what an algorithm reaches, or informed.")
    ] = "uninformed",
    threshold: Annotated[
        str | None,
        typer.Option(
            "--threshold",
            metavar="KIND",
            help="A threshold in alpha instead: weak-recovery, algorithmic or information-theoretic.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="N,N", help="Fix the overlaps of all other columns at 0, as 2."),
    ] = None,
    of: Annotated[
        int | None, typer.Option("--of", metavar="N", help="With weak-recovery: of this column of the teacher.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--given",
            metavar="N=SHARE",
            help="With --of: the known share of another column, as 2=0.5, or 2=branch, what is learned of it.",
        ),
    ] = None,
    along: Annotated[
        str | None,
        typer.Option(
            "--along", metavar="NAME=FROM:TO:N", help="With --threshold: a line of N thresholds in a parameter."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.nc", help="Write the line of --along, for `plot`.")
    ] = None,
    force: ForceOption = False,
    d: Annotated[
        int | None, typer.Option("--d", metavar="D", help="Run message passing on data of this dimension instead.")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", metavar="N", help="With --d: number of draws (4).")] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Leave out the comparison with empirical risk minimisation.")
    ] = False,
    start: StartOption = None,
    accuracy: Annotated[
        float | None,
        typer.Option("--accuracy", help="Largest error bar of q, relative to rho* (1e-6), or of a threshold (1e-9)."),
    ] = None,
    time_limit: TimeLimitOption = None,
    memory_limit: MemoryOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> Outcome:
    """Compare the best possible learner of the teacher with risk minimisation, or locate a threshold of it."""
    from ..bayes.solution import STARTS, bayes_optimal
    from ..bayes.thresholds import KINDS, bayes_threshold
    from ..saddle_point.iteration import Status

    kind = None if threshold is None else threshold.replace("-", "_")
    if threshold is not None:
        require_known("value", threshold, [kind.replace("_", "-") for kind in KINDS], "--threshold")
    require_known("value", from_, STARTS, "--from")
    if kind is not None and "alpha" in options.assignments(set_):
        raise InputError("alpha is given by --set and varied by --threshold; leave one out")
    if (of is not None or given) and kind != "weak_recovery":
        raise InputError("--of and --given go with --threshold weak-recovery")
    held = None if columns is None else [_column(part) for part in columns.split(",")]
    known = dict(_given(text) for text in given or [])
    if along is not None and kind is None:
        raise InputError("--along goes with --threshold")
    if along is None and output is not None:
        raise InputError("-o goes with --along: a single threshold is printed, or JSON with --json")
    way = options.grid(along, "--along") if along is not None else None
    target = options.netcdf_file(output, "a critical line", force)
    if d is not None and (kind is not None or held is not None or from_ != STARTS[0] or accuracy is not None):
        raise InputError("--d goes without --threshold, --columns, --from and --accuracy, which are of state evolution")
    if d is None and seeds is not None:
        raise InputError("--seeds goes with --d")
    if start in STARTS and start != "uninformed":
        raise InputError(f"--start is that of risk minimisation; state evolution begins by --from {start}")
    options.prepare(threads, quiet)
    problem = options.problem_of(model, set_)
    if kind is not None and way is not None:
        how = {"accuracy": 1e-9 if accuracy is None else accuracy, "of": of, "given": known}
        return _line(problem, kind, way, how, output, target)
    if kind is not None:
        found = bayes_threshold(problem, kind, accuracy=1e-9 if accuracy is None else accuracy, of=of, given=known)
        return Outcome(found.table(), found.to_json)
    if d is not None:
        from ..bayes.messages import bayes_messages

        passed = bayes_messages(problem, d, seeds=4 if seeds is None else seeds)
        late = sum(run.status != "converged" for run in passed.runs)
        if not late:
            return Outcome(passed.table(), passed.to_json)
        message = f"{late} of {len(passed.runs)} draws did not converge"
        return Outcome(passed.table(), passed.to_json, Exit.NOT_CONVERGED, message)
    begin = options.start_of(problem, start)
    best = bayes_optimal(problem, from_, accuracy=1e-6 if accuracy is None else accuracy, columns=held)
    erm = None
    if not alone:
        from ..solving.solve import solve as solve_erm

        erm = solve_erm(problem, begin)
    failed = [best.advice] if not best.success else []
    # Where risk minimisation loses what its start holds, that is what it reaches.
    reached = erm is None or erm.success or erm.status is Status.ENDED_ELSEWHERE
    failed += [f"risk minimisation: {advice(erm)}"] if erm is not None and not reached else []
    return Outcome(
        "" if json else best.table(erm),
        lambda: {**best.to_json(), "risk_minimisation": erm.to_json() if erm is not None else None},
        Exit.NOT_CONVERGED if failed else Exit.DONE,
        "; ".join(failed),
    )


def _line(
    problem: Problem,
    kind: str,
    over: tuple[str, np.ndarray],
    how: dict[str, Any],
    output: Path | None,
    target: Path | None,
) -> Outcome:
    """A threshold at values of a parameter; -o writes it."""
    from ..bayes.thresholds import bayes_line
    from ..report.bayes import bayes_line_json

    line = bayes_line(problem, kind, over=over, **how)
    interrupts.ignore()
    status, message = Exit.DONE, ""
    early = cut_short(line.interrupted, bool(line.ending))
    if early is not None:
        target, output = aside(target, output)
        status, message = early, kept(early, len(line.values), len(over[1]), output)
    elif not line.success:
        status, message = Exit.NOT_CONVERGED, "at some points there is no threshold, or not to the accuracy"

    def data(word: str, file: Path | None) -> dict[str, Any]:
        return bayes_line_json(line, "converged" if word == Exit.DONE.word else word, file)

    return saved(line.save, target if len(line.values) else None, output, line.table(), data, status, message)


def _column(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{text!r} is no column of the teacher; columns are numbered from 1") from None


def _given(text: str) -> tuple[int, float | str]:
    name, _, value = text.partition("=")
    if value == "branch":
        return _column(name), value
    try:
        return _column(name), float(value)
    except ValueError:
        raise InputError(f"--given {text}: N=SHARE or N=branch is expected, as 2=0.5") from None
