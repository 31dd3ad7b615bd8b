"""`bayes`: what the best possible learner reaches, compared with risk minimisation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, require_known_name
from . import options
from .outcome import (
    CommandOutcome,
    ExitStatus,
    command_with_options,
    early_exit_status,
    explain_solution_failure,
    save_result_and_report,
)

if TYPE_CHECKING:
    import numpy as np

    from ..problems.problem import Problem


@command_with_options("time_limit", "memory_limit", "json", "threads", "device", "quiet")
def bayes(
    model: str,
    /,
    set_: list[str] | None = None,
    from_: str = "uninformed",
    threshold: str | None = None,
    columns: str | None = None,
    of: int | None = None,
    given: list[str] | None = None,
    along: str | None = None,
    output: Path | None = None,
    force: bool = False,
    d: int | None = None,
    seeds: int | None = None,
    alone: bool = False,
    start: str | None = None,
    accuracy: float | None = None,
) -> CommandOutcome:
    """Compare the Bayes-optimal learner of the teacher with risk minimisation, or locate a threshold of the former.

    Args:
        from_ (START): Start of state evolution: uninformed (what an algorithm reaches) or informed.
        threshold (KIND): Locate a threshold in alpha: weak-recovery, algorithmic or information-theoretic.
        columns (N,N): Columns of the teacher, as 2, whose overlaps may be nonzero; all others are fixed at 0.
        of (N): With weak-recovery: the column of the teacher that is to be recovered.
        given (N=FRACTION): With --of: known fraction of another column, as 2=0.5, or 2=branch for the fraction learned.
        along (NAME=FROM:TO:N): With --threshold: locate it at N values of a parameter.
        output (FILE.nc): Write the line of --along, for `plot`.
        d (D): Run message passing on random data of this dimension instead.
        seeds (N): With --d: number of draws of the data (4).
        alone: Leave out the comparison with empirical risk minimisation.
        accuracy: Largest error bar of q, relative to rho* (1e-6), or of a threshold (1e-9).
    """
    from ..extensions.bayes.solution import STARTS, bayes_optimal
    from ..extensions.bayes.thresholds import KINDS, bayes_threshold
    from ..saddle_point.iteration import Status

    kind = None if threshold is None else threshold.replace("-", "_")
    if threshold is not None:
        require_known_name("value", threshold, [kind.replace("_", "-") for kind in KINDS], "--threshold")
    require_known_name("value", from_, STARTS, "--from")
    if (of is not None or given) and kind != "weak_recovery":
        raise InputError("--of and --given need --threshold weak-recovery")
    held = None if columns is None else [_parse_teacher_column(part) for part in columns.split(",")]
    form = "N=FRACTION or N=branch is expected, as 2=0.5"
    known = {
        _parse_teacher_column(name): text
        if text == "branch"
        else options.convert_parts_of_option("--given", f"{name}={text}", form, [text], float)[0]
        for name, text in options.parse_name_value_pairs("--given", given, form).items()
    }
    if along is not None and kind is None:
        raise InputError("--along needs --threshold: it is a line of thresholds")
    if along is None and output is not None:
        raise InputError("-o needs --along: a single threshold is only printed (with --json as JSON)")
    way = options.parse_parameter_grid(along, "--along") if along is not None else None
    file = options.check_netcdf_output_option(output, "a critical line", force)
    if d is not None and (kind is not None or held is not None or from_ != STARTS[0] or accuracy is not None):
        raise InputError(
            "--d runs message passing: leave --threshold, --columns, --from, --accuracy out, which need state evolution"
        )
    if d is None and seeds is not None:
        raise InputError("--seeds needs --d: it is the number of draws of message passing")
    if start in STARTS and start != "uninformed":
        raise InputError(
            f"--start {start} is for risk minimisation; give the start of state evolution by --from {start}"
        )
    problem = options.build_problem_from_options(model, set_, "alpha" if kind is not None else None, "--threshold")
    to_accuracy = options.options_that_were_given(accuracy=accuracy)
    if kind is not None:
        how = {**to_accuracy, "of": of, "given": known}
        if way is not None:
            return _threshold_line_outcome(problem, kind, way, how, file)
        found = bayes_threshold(problem, kind, **how)
        return CommandOutcome(found.table, found.to_json)
    if d is not None:
        from ..extensions.bayes.messages import bayes_messages

        passed = bayes_messages(problem, d, **options.options_that_were_given(seeds=seeds))
        late = sum(run.status != "converged" for run in passed.runs)
        message = f"{late} of {len(passed.runs)} draws did not converge" if late else ""
        return CommandOutcome(passed.table, passed.to_json, message)
    begin = options.select_start(problem, start)
    best = bayes_optimal(problem, from_, columns=held, **to_accuracy)
    erm = None
    if not alone:
        from ..solving.solve import solve as solve_erm

        erm = solve_erm(problem, begin)
    failed = [best.advice] if not best.success else []
    # Where risk minimisation loses what its start holds, that is what it reaches.
    reached = erm is None or erm.success or erm.status is Status.LEFT_BASIN
    failed += [f"risk minimisation: {explain_solution_failure(erm)}"] if erm is not None and not reached else []
    return CommandOutcome(
        lambda: best.table(erm),
        lambda: {**best.to_json(), "risk_minimisation": erm.to_json() if erm is not None else None},
        "; ".join(failed),
    )


def _threshold_line_outcome(
    problem: Problem,
    kind: str,
    over: tuple[str, np.ndarray],
    how: dict[str, Any],
    file: options.OutputFile | None,
) -> CommandOutcome:
    """Locate a threshold at several values of another parameter and return the outcome; -o writes the line."""
    from ..extensions.bayes.thresholds import bayes_line
    from ..report.bayes import bayes_threshold_line_json

    line = bayes_line(problem, kind, over=over, **how)
    early = early_exit_status(line.interrupted, bool(line.ending))
    message = "" if line.success else "at some points no threshold was found, or not to the accuracy asked"

    def _result_json_with_status(word: str, path: Path | None) -> dict[str, Any]:
        return bayes_threshold_line_json(line, "converged" if word == ExitStatus.DONE.word else word, path)

    return save_result_and_report(
        line.save, file, line.table(), _result_json_with_status, message, early, (len(line.values), len(over[1]))
    )


def _parse_teacher_column(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{text!r} is not a column of the teacher; columns are numbers from 1") from None
