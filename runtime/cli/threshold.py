"""`threshold`: a phase transition, and with --along its critical line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError, NotConvergedError, TimeLimitError, require_known_name
from . import options
from .outcome import CommandOutcome, ExitStatus, command_with_options, early_exit_status, save_result_and_report

if TYPE_CHECKING:
    from ..problems.problem import Problem


_KINDS = "crossing", "where", "at", "spinodal", "instability"


@command_with_options("time_limit", "memory_limit", "json", "threads", "seed", "device", "quiet")
def threshold(
    model: str,
    /,
    kind: str | None = None,
    between: str | None = None,
    on: str | None = None,
    where: str | None = None,
    over: str = "alpha=0.1:2.5",
    set_: list[str] | None = None,
    accuracy: float = 1e-3,
    verify: bool | None = None,
    proof: bool = False,
    rsb: int = 0,
    along: str | None = None,
    output: Path | None = None,
    force: bool = False,
    seed: int = 0,
) -> CommandOutcome:
    """Locate a phase transition: the parameter value, with an error bar that includes the integration error.

    Args:
        kind (crossing|where|at|spinodal|instability): crossing: two branches have equal training loss; where: a
            condition holds on one branch; at: the replicon passes 1 on one branch (de Almeida and Thouless); spinodal:
            a branch ends, in a fold or in a more symmetric branch; instability: a longitudinal eigenvalue of a branch
            passes 1.
        between (A,B): The two branches of a crossing.
        where (CONDITION): As 'test_error = baseline_error' or 'q_1_12 = 0.2': losses, errors, overlaps (theta: |first
            entry|), their entries as tables name them, trained numbers, replicon, parameters.
        over (NAME[=LO:HI]): The parameter, and where to look for the threshold.
        accuracy: Largest error bar of the threshold; below 1e-12, --kind where of models of one token.
        verify: Confirm it by another family of quadrature rules (default: if the accuracy is below 1e-6).
        along (NAME=FROM:TO): Continue it in a second parameter, as a critical line.
        output (FILE.nc): Write the critical line, for `plot`.
    """
    kind = kind or ("where" if where is not None else "crossing")
    require_known_name("value", kind, _KINDS, "--kind")
    name, bracket = options.parse_parameter_interval(over)
    names = _branches_required_by_kind(kind, between, on, where)
    second = options.parse_parameter_endpoints(along, "--along") if along is not None else None
    if proof and (kind != "where" or second is not None):
        raise InputError("--proof needs --kind where, without --along")
    if rsb and (kind != "crossing" or second is not None or verify):
        raise InputError("--rsb needs --kind crossing, without --along and --verify")
    if second is None and output is not None:
        raise InputError("-o needs --along: a single threshold is only printed (with --json as JSON)")
    file = options.check_netcdf_output_option(output, "a critical line", force)
    problem = options.build_problem_from_options(model, set_, name)

    from ..extensions import digits
    from ..extensions.breaking.crossing import crossing
    from ..report.contract import located_parameter_value_json
    from ..thresholds.along_branch import almeida_thouless

    branches = {"between": names} if kind == "crossing" else {"on": names[0]}
    how: dict[str, Any] = {**branches, "bracket": bracket, "accuracy": accuracy, "seed": seed}
    try:
        if second is not None:
            return _critical_line_outcome(problem, kind, name, second, where, how, file)
        how["verify"] = verify
        if kind == "crossing":
            result = crossing(problem, name, rsb=rsb, **how)
        elif kind == "where":
            result = digits.where(problem, where or "", name, proof=proof, **how)
        elif kind == "at":
            result = almeida_thouless(problem, name, **how)
        else:
            from ..following.first_event import instability, spinodal

            located = {"spinodal": spinodal, "instability": instability}[kind]
            result = located(problem, name, **how)
    except (NotConvergedError, TimeLimitError) as error:
        status = ExitStatus.TIME_LIMIT.word if isinstance(error, TimeLimitError) else "not_found"
        shown = f"where {where}" if kind == "where" else kind
        data = {
            **located_parameter_value_json(problem, shown, name, None, None, status, None),
            "branches": list(names),
            "rs_verdict": None,
            "evidence": {"reason": str(error)},
        }
        return CommandOutcome("", data, str(error))

    message = ""
    if result.status == "not_proved":
        message = f"not proved: {result.evidence['not_proved']}; the error bar shown is {result.error_kind}"
    elif result.status == "time_limit":
        message = "the time limit ended the search: the error bar covers the whole interval in which the threshold lies"
    elif not result.success:
        message = (
            f"the accuracy {accuracy:g} was not reached; allow larger error bars (--accuracy) or see evidence (--json)"
        )
    return CommandOutcome(result.table, result.to_json, message)


def _critical_line_outcome(
    problem: Problem,
    kind: str,
    parameter: str,
    second: tuple[str, tuple[float, float]],
    condition: str | None,
    how: dict[str, Any],
    file: options.OutputFile | None,
) -> CommandOutcome:
    """Continue a threshold in a second parameter and return the outcome of the command; -o writes the line."""
    from ..following.critical import critical_line
    from ..report.branches import critical_line_json, critical_line_table
    from ..saddle_point.iteration import Status

    over, (first, last) = second
    if kind == "at":
        kind, condition = "where", "replicon = 1"
    line = critical_line(problem, kind, parameter, over=(over, first, last), condition=condition, **how)
    early, message = early_exit_status(line.interrupted, line.out_of_time), ""
    if not max(line.errors, default=0.0) <= how["accuracy"]:
        message = (
            f"the accuracy {how['accuracy']:g} was not reached at every point of the line; allow larger error bars"
        )

    def _result_json_with_status(word: str, path: Path | None) -> dict[str, Any]:
        # A complete line has the status words of a threshold.
        own = {ExitStatus.DONE.word: Status.CONVERGED, ExitStatus.NOT_CONVERGED.word: Status.ACCURACY_NOT_REACHED}
        return critical_line_json(line, own[word].value if word in own else word, path)

    return save_result_and_report(
        line.save, file, critical_line_table(line), _result_json_with_status, message, early, (len(line.values), None)
    )


def _branches_required_by_kind(kind: str, between: str | None, on: str | None, where: str | None) -> tuple[str, ...]:
    """Return the branches that a kind of threshold needs, after checking that the options fit the kind.

    Raises:
        InputError: an option is missing or belongs to another kind, or the condition cannot be parsed.
    """
    if kind == "crossing":
        if where is not None or on is not None:
            raise InputError("--kind crossing takes --between A,B; --start and --where are for other kinds")
        names = tuple(part.strip() for part in (between or "").split(","))
        if len(names) != 2 or not all(names) or names[0] == names[1]:
            raise InputError(
                "--kind crossing needs --between A,B: two different starts of the model, as informed,uninformed"
            )
        return names
    if between is not None:
        raise InputError(f"--kind {kind} takes --start A; --between is for --kind crossing")
    if kind == "where":
        from ..thresholds.conditions import parse_condition_sides

        if where is not None:
            parse_condition_sides(where)
        if where is None or on is None:
            missing = "--where CONDITION" if where is None else "--start BRANCH"
            raise InputError(f"--kind where needs {missing}, too, as --where 'test_error = 0.1' --start informed")
        return (on,)
    if where is not None:
        raise InputError(f"--kind {kind} takes --start A; --where is for --kind where")
    if on is None:
        raise InputError(f"--kind {kind} needs --start BRANCH")
    return (on,)
