"""The commands of `saddleforge`, one function each; heavy imports are inside, so that help and version are instant."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import interrupts
from .._version import __version__
from ..errors import InputError, NotConvergedError, NotProvedError, TimeLimitError
from . import options
from .options import (
    AccuracyOption,
    ForceOption,
    IntegratorOption,
    JsonOption,
    ModelArgument,
    PointsOption,
    ProofOption,
    QuietOption,
    RenameOption,
    SeedOption,
    SetOption,
    StartOption,
    StructureOption,
    TemperatureOption,
    ThreadsOption,
    TimeLimitOption,
)
from .outcome import Exit, Outcome, command

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..overlaps import Overlaps
    from ..problem import Problem
    from ..reference.solution import PreciseSolution
    from ..solution import Solution

app = typer.Typer(
    name="saddleforge",
    help="Saddle-point equations of learning models: derive them, generate a solver, solve with an error bar.\n\n"
    "MODEL is a name from `saddleforge models`, or a path to a model file (which is executed).\n\n"
    "Exit status: 0 done; 1 a bug; 2 wrong input; 3 not converged, or not to the accuracy asked; 130 interrupted.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _put_away(save: Callable[[Path], None], target: Path | None) -> str:
    """Write a result to the file of -o, if any, and let nothing come between that and saying so.

    Returns:
        Why it could not be written (the disk has filled up, say: what was found is printed all the same), or nothing.
    """
    interrupts.ignore()
    if target is not None:
        try:
            save(target)
        except InputError as error:
            return str(error)
    return ""


_LATE = "the time limit came"


def _kept(finished: int, wanted: int | None, what: str, output: Path | None, why: str = "interrupted") -> str:
    """What a command that ended early has, in a sentence; `wanted` None where nobody knows how many there would be."""
    of = f" of {wanted}" if wanted is not None else ""
    if not finished:
        return f"{why} before the first{of} {what}{'s' if of else ''} was finished"
    where = f" in {output}" if output is not None else ""
    if finished == 1:
        return f"{why}; the one finished {what}{of} is kept{where}"
    return f"{why}; the {finished} finished {what}s{of} are kept{where}"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"saddleforge {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command()
@command
def models(json: JsonOption = False) -> Outcome:
    """List the catalogue: name, sizes, what it is, source."""
    from ..solver import STRUCTURAL, catalogue

    entries = catalogue()
    width = max(len(name) for name in entries)

    def size(spec: tuple[int, int, int | None]) -> str:
        default, low, high = spec
        return f"{default}" if low == high else f"{default}*"

    lines = [f"{'name':<{width}}   L    s    t    summary and source"]
    for name, entry in entries.items():
        sizes = "".join(f"{size(entry['sizes'][key]):<5}" for key in STRUCTURAL[:3])
        lines += [f"{name:<{width}}   {sizes}{entry['summary']}", f"{'':<{width + 18}}{entry['source']}"]
    lines += [
        "",
        "L tokens, s student and t teacher columns; * a default that --set tokens=, student_rank= or teacher_rank=",
        "changes. `saddleforge derive NAME` prints a model's parameters and equations, `solve NAME` solves them.",
    ]
    data = [
        {
            "name": name,
            "summary": entry["summary"],
            "source": entry["source"],
            "sizes": {
                key: dict(zip(("default", "low", "high"), spec, strict=True)) for key, spec in entry["sizes"].items()
            },
        }
        for name, entry in entries.items()
    ]
    return Outcome("\n".join(lines), {"version": __version__, "models": data})


@app.command()
@command
def derive(
    model: ModelArgument,
    format: Annotated[str, typer.Option("--format", metavar="text|latex", help="text, or a LaTeX document.")] = "text",
    steps: Annotated[
        bool, typer.Option("--steps", help="With the replica calculation, its checks carried out.")
    ] = False,
    rename: RenameOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write it to a file.")] = None,
    force: ForceOption = False,
    set_: StructureOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> Outcome:
    """Print the free entropy, the saddle-point equations, the proximal objective and the stability operator."""
    from ..files import new_file, write_whole
    from ..progress import set_quiet
    from ..solver import symbolic_model

    set_quiet(quiet)
    if format not in ("text", "latex"):
        raise InputError(f"--format {format}: text or latex is expected")
    target = new_file(output, force) if output is not None else None
    sizes = options.sizes_only(set_)
    loaded = symbolic_model(model)
    structure = loaded.structure(**sizes)
    if format == "latex":
        from ..derive.report.latex import document as render
    else:
        from ..derive.report.text import describe as render
    narrow = {"width": _columns()} if format == "text" and output is None and not json else {}
    text = render(loaded, structure, steps, options.renamed(rename), **narrow)
    data = {"model": loaded.name, "version": __version__, "structure": _sizes_json(structure), "format": format}
    if target is not None:
        interrupts.ignore()
        write_whole(target, text)
        return Outcome(f"wrote {output}", {**data, "file": str(output)})
    return Outcome(text, {**data, "text": text})


def _columns() -> int:
    """Columns of text for the terminal at hand, 80 to 100; 100 where the text goes elsewhere."""
    return min(100, max(80, get_terminal_size().columns)) if sys.stdout.isatty() else 100


def _sizes_json(structure: Any) -> dict[str, int]:
    from ..solver import STRUCTURAL

    return {name: getattr(structure, name) for name in STRUCTURAL}


@app.command()
@command
def generate(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="A catalogue name or a model file; default, the whole catalogue."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write: DIR/MODEL/SIZES/; default, saddleforge's own tree."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is stale.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With MODEL and --out: write over files that were not generated.")
    ] = False,
    set_: StructureOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> Outcome:
    """Derive and write the Numba solvers; --check compares them with what is there."""
    from ..progress import say, set_quiet
    from ..solver import catalogue

    set_quiet(quiet)
    sizes = options.sizes_only(set_)
    if model is None and sizes:
        raise InputError("--set goes with a MODEL; without one the whole catalogue is generated")
    if model is not None and (model not in catalogue() or sizes):
        return _generate_one(model, sizes, out, check, force)
    from importlib.metadata import version

    from ..derive.emit.tree import differences, write_tree, written_with

    root, fix = _tree(out)
    names = None if model is None else [model]
    if model is not None:
        fix += f" {model}"
    if not check:
        _check_tree(root)
    say(f"deriving and generating {model or 'the catalogue'} (some seconds a model)")
    if check:
        found = differences(root, names)
        data = {"folder": str(root), "status": "stale" if found else "fresh", "differences": found}
        if found:
            wanted, here = written_with(root), version("sympy")
            if wanted and wanted != here:
                fix = f"pip install sympy=={wanted}` first (it was written with it, this is {here}), then `{fix}"
            return Outcome("\n".join(found), data, Exit.WRONG_INPUT, f"{root} is stale; `{fix}` brings it up to date")
        return Outcome(f"{root} is up to date", data)
    touched = write_tree(root, names)
    text = [f"{root}: " + ("nothing to do, it is up to date" if not touched else f"{len(touched)} files changed")]
    return Outcome("\n".join([*text, *(f"  {path}" for path in touched)]), {"folder": str(root), "changed": touched})


def _tree(out: Path | None) -> tuple[Path, str]:
    """The folder of the generated tree, and the command that rewrites it."""
    if out is not None:
        from ..files import absolute

        return absolute(out), f"saddleforge generate --out {out}"
    import saddleforge.generated

    return Path(saddleforge.generated.__path__[0]), "saddleforge generate"


def _check_tree(root: Path) -> None:
    """Refuse to write into site-packages, into a folder that is no tree of solvers, or where nothing can be written."""
    from ..files import check_folder

    if {"site-packages", "dist-packages"} & set(root.absolute().parts):
        raise InputError(f"{root} is an installed copy, which is never written; give --out DIR")
    if root.is_dir() and any(root.iterdir()) and not _is_generated(root / "catalogue.py"):
        raise InputError(
            f"{root} holds other files, and what no model generates is deleted; give an empty or new folder"
        )
    check_folder(root)


def _is_generated(path: Path) -> bool:
    """Whether the generator wrote a file, by its first line."""
    try:
        return path.read_bytes().startswith(b"# Generated by saddleforge")
    except OSError:
        return False


def _generate_one(name: str, sizes: dict[str, int], out: Path | None, check: bool, force: bool) -> Outcome:
    """The solver of one model at one structure: into the user's cache, or under a folder."""
    from ..files import absolute, check_folder, occupied, write_whole
    from ..progress import say
    from ..solver import load_solver, model_path, symbolic_model

    if out is None:
        if check:
            raise InputError(
                f"--check needs --out DIR for {name}: solvers in the cache are keyed by their sources, never stale"
            )
        options.prepare()
        model_path(name)
        solver = load_solver(name, **sizes)
        return Outcome(f"the solver is in {solver.folder}", {"folder": str(solver.folder), "model": solver.name})
    from ..derive.emit.writer import generate as generate_solver

    given, out = out, absolute(out)
    if not check:
        check_folder(out)
    model = symbolic_model(name)
    structure = model.structure(**sizes)
    folder, shown = (place / model.name / structure.key for place in (out, given))
    say(f"deriving and generating {model.name} at {structure.key}")
    files = generate_solver(model, structure).files
    stale = [
        file
        for file, text in files.items()
        if not (folder / file).exists() or (folder / file).read_bytes() != text.encode()
    ]
    data: dict[str, Any] = {"folder": str(shown), "model": model.name}
    if check:
        found = [f"{shown / file} is {'stale' if (folder / file).exists() else 'missing'}" for file in stale]
        data |= {"status": "stale" if found else "fresh", "differences": found}
        if found:
            chosen = "".join(f" --set {key}={value}" for key, value in sizes.items())
            fix = f"saddleforge generate {name}{chosen} --out {given}"
            return Outcome("\n".join(found), data, Exit.WRONG_INPUT, f"{shown} is stale; `{fix}` brings it up to date")
        return Outcome(f"{shown} is up to date", data)
    for file in stale:
        if not force and (folder / file).exists() and not _is_generated(folder / file):
            raise occupied(shown / file, "the file exists, and saddleforge did not generate it")
    for file in stale:
        write_whole(folder / file, files[file])
    text = f"{shown}: " + (f"wrote {', '.join(stale)}" if stale else "nothing to do, it is up to date")
    return Outcome(text, {**data, "changed": stale})


@app.command()
@command
def solve(
    model: ModelArgument,
    set_: SetOption = None,
    inverse_temperature: TemperatureOption = None,
    start: StartOption = None,
    all_branches: Annotated[
        bool, typer.Option("--all-branches", help="Solve from every start and rank what is found by training loss.")
    ] = False,
    deflate: Annotated[
        int,
        typer.Option("--deflate", min=0, help="With --all-branches: further attempts, known solutions divided out."),
    ] = 0,
    accuracy: AccuracyOption = 1e-4,
    integrator: IntegratorOption = "auto",
    points: PointsOption = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Start from a solution that solve -o or --json wrote.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the JSON object to a file as well.")
    ] = None,
    force: ForceOption = False,
    derivatives: Annotated[
        str | None,
        typer.Option(
            "--sensitivities",
            metavar="NAME,NAME|all",
            help="Add the derivatives of everything reported with respect to these parameters, as alpha,lambda.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Solve with a second, different rule: error bars hold if either's do.")
    ] = False,
    proof: ProofOption = False,
    rename: RenameOption = None,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Solve the saddle point from one start, or find and rank all branches."""
    from ..contract import dumps
    from ..files import absolute, new_file, write_whole

    if sum([start is not None, from_ is not None, all_branches]) > 1:
        raise InputError("--start, --from and --all-branches exclude one another")
    if output is not None and output.suffix == ".nc":
        raise InputError(f"-o {output}: solve writes JSON; for netCDF use `saddleforge curve`")
    target = new_file(output, force) if output is not None else None
    from_ = absolute(from_) if from_ is not None else None
    points = options.checked_points(integrator, points)
    options.prepare(threads, quiet, seed)
    problem = options.problem_of(model, set_, inverse_temperature=inverse_temperature)
    own = options.own_symbols(problem, rename)
    wanted = options.names(derivatives)
    if deflate and not all_branches:
        raise InputError("--deflate goes with --all-branches")
    if wanted is not None:
        from ..sensitivity import directions
        from ..thresholds import DOUBLES

        if accuracy < DOUBLES or proof:
            raise InputError(f"--sensitivities are for accuracies of {DOUBLES:g} and above, without --proof")
        directions(problem, *wanted)
    if all_branches and (verify or proof or wanted is not None):
        raise InputError("--sensitivities, --proof and --verify go with one start, not with --all-branches")
    chosen: dict[str, Any] = {"accuracy": accuracy, "integrator": integrator, "points": points, "seed": seed}
    if all_branches:
        outcome = _solve_all(problem, {**chosen, "deflate": deflate}, own)
    else:
        begin = options.saved_overlaps(from_, problem) if from_ is not None else options.start_of(problem, start)
        try:
            outcome = _solved(_solve_one(problem, begin, chosen, verify, proof), wanted, json, own)
        except NotProvedError as error:
            outcome = _not_proved(error, json, own)
    if target is None:
        return outcome
    data = outcome.data() if callable(outcome.data) else outcome.data
    failed = _put_away(lambda path: write_whole(path, dumps(data) + "\n"), target)
    if failed:
        return Outcome(outcome.text, data, Exit.WRONG_INPUT, failed)
    return Outcome(f"{outcome.text}\nwrote {output}", data, outcome.status, outcome.message)


def _solved(solution: Solution | PreciseSolution, wanted: list[str] | None, json: bool, own: dict[str, str]) -> Outcome:
    """A solution, with its sensitivities to the parameters named (an empty list names all)."""
    text, status, message = ("" if json else solution.table(own)), Exit.DONE, ""
    if not solution.success:
        status, message = Exit.NOT_CONVERGED, _advice(solution)
    from ..solution import Solution as InDoubles

    if solution.success and isinstance(solution, InDoubles) and solution.stability is None:
        status, message = Exit.NOT_CONVERGED, "the time limit came before the verdict on stability"
    if wanted is None or not isinstance(solution, InDoubles) or solution.losses is None:
        return Outcome(text, lambda: {**solution.to_json(), "sensitivities": None}, status, message)
    from ..sensitivity import sensitivities

    try:
        found = sensitivities(solution, *wanted)
    except (NotConvergedError, TimeLimitError) as error:
        return Outcome(text, lambda: {**solution.to_json(), "sensitivities": None}, Exit.NOT_CONVERGED, str(error))
    text = "\n".join([text, "", found.table()])
    return Outcome(text, lambda: {**solution.to_json(), "sensitivities": found.to_json()}, status, message)


def _not_proved(error: NotProvedError, json: bool, own: dict[str, str]) -> Outcome:
    """The estimate in double precision, and why there is no proof.

    Raises:
        NotProvedError: there is no estimate either.
    """
    from ..solution import Solution

    if not isinstance(error.estimate, Solution):
        raise error
    solution, reason = error.estimate, str(error)
    return Outcome(
        "" if json else solution.table(own),
        lambda: {**solution.to_json(), "status": "not_proved", "not_proved": reason},
        Exit.NOT_CONVERGED,
        f"not proved: {reason}; what is shown is the estimate in double precision",
    )


def _solve_one(
    problem: Problem, begin: str | Overlaps, chosen: dict[str, Any], verify: bool, proof: bool
) -> Solution | PreciseSolution:
    """In double precision, or beyond it (and verified whether asked for or not) where accuracy or a proof ask for that.

    Where a time limit comes first, what there is in double precision.

    Raises:
        InputError: an integrator is chosen at an accuracy beyond double precision.
    """
    from dataclasses import replace

    from ..fixed_point import Status
    from ..thresholds import DOUBLES

    if not (0 < chosen["accuracy"] < DOUBLES or proof):
        from ..solution import solve

        solution = solve(problem, begin, **chosen)
        if verify and solution.losses is not None and solution.status is not Status.TIME_LIMIT:
            from ..verification import verified

            try:
                solution = verified(solution, seed=chosen["seed"] + 1)
            except TimeLimitError:
                return replace(solution, status=Status.TIME_LIMIT)
        return solution
    if chosen["integrator"] != "auto" or chosen["points"] is not None:
        raise InputError(f"--integrator and --points are for accuracies of {DOUBLES:g} and above, without --proof")
    from ..reference.solution import solve_precisely

    try:
        return solve_precisely(problem, begin, accuracy=chosen["accuracy"], proof=proof)
    except TimeLimitError as error:
        return replace(error.point, status=Status.TIME_LIMIT)


def _advice(solution: Solution | PreciseSolution) -> str:
    """Why a solution is none, and what to try next."""
    evidence = getattr(solution, "evidence", {})
    reason = f" ({evidence['not_proved']})" if "not_proved" in evidence else ""
    return f"{solution.status.words} from start {solution.start}{reason}: {solution.status.advice}"


def _solve_all(problem: Problem, chosen: dict[str, Any], own: dict[str, str]) -> Outcome:
    from ..contract import parameters_json
    from ..solution import solutions
    from ..text import with_error

    failed: list[Solution] = []
    found = solutions(problem, on_failure=failed.append, **chosen)
    if not found and all(s.status is failed[0].status for s in failed):
        raise NotConvergedError(
            f"every start of {problem.solver.name}: {failed[0].status.words}; {failed[0].status.advice}"
        )
    if not found:
        raise NotConvergedError(
            f"no start of {problem.solver.name} led to a solution; `solve --start` with one of "
            f"{', '.join(problem.solver.model.STARTS)} shows its last iterate and what to try next"
        )
    lines = [f"{len(found)} branches found, ranked by training loss:"]
    for s in found:
        loss = with_error(s.training_loss, s.training_loss_error)
        lines.append(f"  {s.rank}  {s.branch:<11} training loss {loss}  {s.status.words}, from start {s.start}")
    lines += [line for s in found for line in ("", s.table(own))]
    weak = [s for s in found if not s.success]
    return Outcome(
        "\n".join(lines),
        lambda: {
            "model": problem.solver.name,
            "version": __version__,
            "digest": problem.solver.digest,
            "parameters": parameters_json(problem),
            "solutions": [s.to_json() for s in found],
        },
        Exit.NOT_CONVERGED if weak else Exit.DONE,
        "; ".join(f"{s.branch}: {_advice(s)}" for s in weak),
    )


@app.command()
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
    alone: Annotated[
        bool, typer.Option("--alone", help="Without the solution of empirical risk minimisation beside it.")
    ] = False,
    start: StartOption = None,
    accuracy: Annotated[
        float | None,
        typer.Option("--accuracy", help="Half width asked of q, relative to rho* (1e-6), or of a threshold (1e-9)."),
    ] = None,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    quiet: QuietOption = False,
) -> Outcome:
    """What the best possible learner knows of the teacher, beside what risk minimisation reaches."""
    from ..bayes.solution import STARTS, bayes_optimal
    from ..bayes.thresholds import KINDS, bayes_threshold
    from ..fixed_point import Status

    kind = None if threshold is None else threshold.replace("-", "_")
    if kind is not None and kind not in KINDS:
        allowed = ", ".join(k.replace("_", "-") for k in KINDS)
        raise InputError(f"--threshold {threshold}: {allowed} are known")
    if from_ not in STARTS:
        raise InputError(f"--from {from_}: {' or '.join(STARTS)} is expected")
    if kind is not None and "alpha" in options.assignments(set_):
        raise InputError("--threshold looks for alpha; leave --set alpha out")
    options.prepare(threads, quiet)
    problem = options.problem_of(model, set_)
    if kind is not None:
        found = bayes_threshold(problem, kind, accuracy=1e-9 if accuracy is None else accuracy)
        return Outcome(found.table(), found.to_json)
    begin = options.start_of(problem, start)
    best = bayes_optimal(problem, from_, accuracy=1e-6 if accuracy is None else accuracy)
    erm = None
    if not alone:
        from ..solution import solve as solve_erm

        erm = solve_erm(problem, begin)
    failed = [best.advice] if not best.success else []
    # Where risk minimisation loses what its start holds, that is what it reaches.
    reached = erm is None or erm.success or erm.status is Status.ENDED_ELSEWHERE
    failed += [f"risk minimisation: {_advice(erm)}"] if erm is not None and not reached else []
    return Outcome(
        "" if json else best.table(erm),
        lambda: {**best.to_json(), "risk_minimisation": erm.to_json() if erm is not None else None},
        Exit.NOT_CONVERGED if failed else Exit.DONE,
        "; ".join(failed),
    )


@app.command()
@command
def stability(
    model: ModelArgument,
    set_: SetOption = None,
    start: StartOption = None,
    accuracy: AccuracyOption = 1e-4,
    integrator: IntegratorOption = "auto",
    points: PointsOption = None,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Start from a solution that solve -o or --json wrote.")
    ] = None,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Solve, then print spectrum, replicon, proximal jumps and the self-overlap they cost, with their meaning."""
    from ..contract import parameters_json
    from ..files import absolute
    from ..solution import solve as solve_from

    if start is not None and from_ is not None:
        raise InputError("--start and --from exclude one another")
    from_ = absolute(from_) if from_ is not None else None
    points = options.checked_points(integrator, points)
    options.prepare(threads, quiet, seed)
    problem = options.problem_of(model, set_)
    begin = options.saved_overlaps(from_, problem) if from_ is not None else options.start_of(problem, start)
    solution = solve_from(problem, begin, accuracy=accuracy, integrator=integrator, points=points, seed=seed)
    found = solution.stability
    data = {
        "model": problem.solver.name,
        "version": __version__,
        "digest": problem.solver.digest,
        "parameters": parameters_json(problem),
        "start": solution.start,
        "branch": solution.branch,
        "status": solution.status.value,
        "residual": solution.residual,
        "stability": found.to_json() if found else None,
        "landscape": solution.landscape.to_json() if found else None,
    }
    if found is None and solution.success:
        late = "the time limit came before the verdict on stability"
        return Outcome(solution.table(), data, Exit.NOT_CONVERGED, late)
    if found is None:
        return Outcome(solution.table(), data, Exit.NOT_CONVERGED, f"there is no solution: {_advice(solution)}")
    from .tables import stability_table

    if not solution.success:
        return Outcome(stability_table(solution), data, Exit.NOT_CONVERGED, _advice(solution))
    return Outcome(stability_table(solution), data)


@app.command()
@command
def curve(
    model: ModelArgument,
    over: Annotated[
        str, typer.Option("--over", metavar="NAME=LO:HI:N", help="The parameter to follow, as alpha=0.1:2:40.")
    ],
    set_: SetOption = None,
    inverse_temperature: TemperatureOption = None,
    start: StartOption = None,
    accuracy: AccuracyOption = 1e-3,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.nc", help="Write netCDF, for `saddleforge plot`.")
    ] = None,
    force: ForceOption = False,
    rename: RenameOption = None,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Follow a branch along a parameter, as far as it exists, and say where it ends; Ctrl-C keeps what is finished."""
    import numpy as np

    name, ends, count = options.interval(over, counted=True)
    assert ends is not None and count is not None
    target = options.netcdf_file(output, "a curve", force)
    options.prepare(threads, quiet)
    problem = options.problem_of(model, set_, name, inverse_temperature)
    own = options.own_symbols(problem, rename)
    begin = options.start_of(problem, start)
    grid = np.linspace(*ends, count)

    from ..branches import Curve
    from ..branches import curve as follow

    kept: list[Solution] = []

    def finish(solution: Solution) -> None:
        """What is printed and written of a point is part of it."""
        _finish(solution)
        _ = solution.thermal if json else None

    def keep(solution: Solution) -> None:
        finish(solution)
        kept.append(solution)

    interrupted = False
    try:
        with interrupts.recognised():
            found = follow(problem, start=begin, over=name, values=grid, accuracy=accuracy, seed=seed, on_point=keep)
            with suppress(TimeLimitError):
                for solution in found.solutions:  # those by which an end was narrowed down, too
                    finish(solution)
        interrupts.ignore()
    except KeyboardInterrupt:
        interrupts.ignore()
        interrupted = True
        ordered = sorted(kept, key=lambda s: s.problem.value_of(name))
        found = Curve(name, begin, tuple(ordered), (None, None))
    from .tables import curve_json, curve_table

    status, message = Exit.DONE, ""
    weak = [s for s in found.solutions if not s.success]
    if interrupted:
        status, message = Exit.INTERRUPTED, _kept(len(kept), count, "point", output)
    elif found.out_of_time:
        status, message = Exit.NOT_CONVERGED, _kept(len(found.solutions), count, "point", output, _LATE)
    elif not found.solutions:
        status = Exit.NOT_CONVERGED
        message = (
            f"the {begin} branch was found neither at the ends nor in the middle of {name} = {ends[0]:g}..{ends[1]:g}; "
            f"try another interval, or `saddleforge solve {model} --start {begin}` to see where the iteration goes"
        )
    elif weak:
        status = Exit.NOT_CONVERGED
        values = ", ".join(f"{s.problem.value_of(name):g}" for s in weak)
        message = f"the accuracy {accuracy:g} was not reached at {name} = {values}; {weak[0].status.advice}"
    text = curve_table(found, own) if found.solutions or not interrupted else ""
    failed = _put_away(found.save, target if found.solutions else None)
    if failed:
        status, message, output = Exit.WRONG_INPUT, failed, None
    elif target is not None and found.solutions:
        text += f"\nwrote {output}"
    word = {Exit.DONE: "done", Exit.INTERRUPTED: "interrupted"}.get(status, "not_converged")
    word = "time_limit" if found.out_of_time else word
    return Outcome(text, lambda: curve_json(problem, found, word, output), status, message)


def _finish(solution: Solution) -> None:
    """The verdict on stability, a part of a finished point.

    Raises:
        TimeLimitError: the time ended before it.
    """
    if solution.stability is None:
        raise TimeLimitError("the time limit came before the verdict on stability")


@app.command()
@command
def follow(
    model: ModelArgument,
    over: Annotated[
        str,
        typer.Option(
            "--over", metavar="NAME=FROM:TO", help="The parameter, where to begin and where to head, alpha=2:0.2."
        ),
    ],
    set_: SetOption = None,
    start: StartOption = None,
    accuracy: AccuracyOption = 1e-3,
    event_accuracy: Annotated[
        float, typer.Option("--event-accuracy", help="Half width asked of every event, in the parameter.")
    ] = 1e-3,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.nc", help="Write netCDF, for `saddleforge plot`.")
    ] = None,
    force: ForceOption = False,
    rename: RenameOption = None,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Follow a branch by arclength, through folds and over unstable stretches; Ctrl-C keeps what is finished."""
    name, ends = options.journey(over)
    if not event_accuracy > 0:
        raise InputError(f"--event-accuracy {event_accuracy:g} is out of range; allowed is (0, inf)")
    target = options.netcdf_file(output, "a branch", force)
    options.prepare(threads, quiet, seed)
    problem = options.problem_of(model, set_, without=name)
    own = options.own_symbols(problem, rename)
    begin = options.start_of(problem, start)

    from ..following import follow as walk
    from .tables import followed_json, followed_table

    found = walk(
        problem,
        start=begin,
        over=name,
        between=ends,
        accuracy=accuracy,
        event_accuracy=event_accuracy,
        seed=seed,
        on_point=_finish,
    )
    interrupts.ignore()
    status, message = Exit.DONE, ""
    weak = [s for s in found.solutions if not s.success]
    if found.interrupted:
        status, message = Exit.INTERRUPTED, _kept(len(found.solutions), None, "point", output)
    elif found.out_of_time:
        status, message = Exit.NOT_CONVERGED, _kept(len(found.solutions), None, "point", output, _LATE)
    elif weak:
        status = Exit.NOT_CONVERGED
        values = sorted(s.problem.value_of(name) for s in weak)
        message = (
            f"the accuracy {accuracy:g} was not reached at {len(weak)} of {len(found.solutions)} points, {name} = "
            f"{values[0]:.4g} to {values[-1]:.4g}: a branch is soft near its end; their half widths say how soft"
        )
    elif not all(event.success for event in found.events):
        status = Exit.NOT_CONVERGED
        message = f"an event was not located to {event_accuracy:g}; ask for less with --event-accuracy"
    text = followed_table(found, own) if found.solutions else ""
    failed = _put_away(found.save, target if found.solutions else None)
    if failed:
        status, message, output = Exit.WRONG_INPUT, failed, None
    elif target is not None and found.solutions:
        text += f"\nwrote {output}"
    word = {Exit.DONE: "done", Exit.INTERRUPTED: "interrupted"}.get(status, "not_converged")
    word = "time_limit" if found.out_of_time else word
    return Outcome(text, lambda: followed_json(problem, found, word, output), status, message)


@app.command()
@command
def simulate(
    model: ModelArgument,
    set_: SetOption = None,
    d: Annotated[int, typer.Option("--d", help="Dimension of the embeddings; n = alpha d samples.")] = 1000,
    start: Annotated[
        str | None, typer.Option("--start", help="A named start of the model (default: semantic), or random.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="auto|lbfgs|gd|adam|fista|admm|gamp",
            help="How the risk is minimised; gamp passes messages; auto: lbfgs, or where penalty or loss have "
            "corners fista or admm.",
        ),
    ] = "auto",
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, help="How many draws of the data, from seed --first on.")
    ] = 16,
    first: Annotated[int, typer.Option("--first", min=0, help="The first seed.")] = 0,
    theory: Annotated[
        bool, typer.Option("--theory", help="Solve the saddle point from the same start and print it beside.")
    ] = False,
    tolerance: Annotated[float, typer.Option("--tolerance", help="Gradient norm at which a run has converged.")] = 1e-6,
    most: Annotated[
        int | None, typer.Option("--most", min=1, help="Iterations at the most (default 20000, or 1000 of gamp).")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Step of gd, times the inverse of the largest curvature, or rate of adam."),
    ] = None,
    inertia: Annotated[
        float | None, typer.Option("--inertia", help="gamp: weight on the old conjugates and V.")
    ] = None,
    damping: Annotated[float | None, typer.Option("--damping", help="gamp: weight on the old messages.")] = None,
    free_teacher: Annotated[
        bool,
        typer.Option("--free-teacher", help="Let the Gram matrix of teacher and means fluctuate, as 1/sqrt(d)."),
    ] = False,
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory",
            min=0,
            metavar="GB",
            help="Gigabytes of data a seed may hold (default 1.5); what is beyond is drawn again, the same, each step.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE.nc", help="Write every finished seed; go on from what is there."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that holds anything else than this simulation.")
    ] = False,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Seeds side by side (default: all cores).")
    ] = None,
    quiet: QuietOption = False,
) -> Outcome:
    """Draw data at finite d, minimise the risk from a start, and report means and standard errors over seeds."""
    from ..files import occupied
    from ..simulation.run import RANDOM, Plan, Run, checked
    from ..simulation.simulation import Simulation
    from ..simulation.simulation import simulate as run_all
    from ..simulation.storage import load_runs

    target = options.netcdf_file(output, "a simulation", force=True)  # what is there is looked at below
    options.prepare(None, quiet)
    problem = options.problem_of(model, set_)
    begin = RANDOM if start == RANDOM else options.start_of(problem, start)
    chosen: dict[str, Any] = {"tolerance": tolerance, "most": most, "rate": rate, "exact": not free_teacher}
    limit = None if memory is None else 1e9 * memory
    given = (("inertia", inertia), ("damping", damping), ("memory", limit))
    chosen |= {name: value for name, value in given if value is not None}
    plan = checked(Plan(problem, d, begin, method, **chosen))
    if theory and begin == RANDOM:
        raise InputError("--theory needs a named start: theory has no random one")
    known: list[Run] = []
    if target is not None and target.exists():
        try:
            known = load_runs(target, plan)
        except InputError as error:
            if not force:
                raise occupied(output or target, str(error)) from None
    kept = {run.seed: run for run in known}

    def keep(run: Run) -> None:
        every = {**kept, run.seed: run}
        if target is not None:
            Simulation(plan, tuple(every[seed] for seed in sorted(every))).save(target)
        kept[run.seed] = run

    wanted = range(first, first + seeds)
    solution = None
    try:
        found = run_all(
            problem,
            d=d,
            seeds=wanted,
            start=begin,
            method=method,
            threads=threads,
            known=known,
            on_run=keep,
            **chosen,
        )
        if theory and not (found.interrupted or found.out_of_time):
            from ..solution import solve as solve_saddle_point

            with interrupts.recognised():
                beside = solve_saddle_point(problem, begin, accuracy=1e-3)
                _ = beside.stability
                solution = beside
        interrupts.ignore()
    except KeyboardInterrupt:
        interrupts.ignore()
        found = Simulation(plan, tuple(kept[seed] for seed in sorted(kept) if seed in wanted), interrupted=True)
    text, data = found.table(), found.to_json()
    data["theory"] = None
    if solution is not None:
        text += "\n\nsaddle point\n" + solution.table()
        data["theory"] = solution.to_json()
    if target is not None and kept:
        text += f"\nwrote {output}"
        data["file"] = str(output)
    if found.interrupted or found.out_of_time:
        why = "interrupted" if found.interrupted else _LATE
        message = f"{why}; {len(found.runs)} of {seeds} seeds are kept"
        if target is None or not kept:
            message = message if found.runs else f"{why} before the first of {seeds} seeds was finished"
        else:
            more = f", which holds {len(kept)}" if len(kept) != len(found.runs) else ""
            message += f" in {output}{more}"
        return Outcome(text, data, Exit.INTERRUPTED if found.interrupted else Exit.NOT_CONVERGED, message)
    missing = seeds - len(found.converged)
    if missing:
        message = f"{missing} of {seeds} seeds did not converge ({found.status.replace('_', ' ')})"
        return Outcome(text, data, Exit.NOT_CONVERGED, f"{message}; try --most, --tolerance or another --method")
    if solution is not None and not solution.success:
        return Outcome(text, data, Exit.NOT_CONVERGED, f"the saddle point beside it: {_advice(solution)}")
    return Outcome(text, data)


@app.command()
@command
def plot(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.nc", help="What `curve`, `follow`, `threshold --along` or `simulate` wrote.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.png", help="Default: the same name, ending in .png.")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> Outcome:
    """Draw a branch, overlaps and errors along the parameter, a critical line, or the seeds of a simulation.

    A picture that it drew from the same table is drawn anew; another file is not written over without --force.
    """
    from ..files import new_file
    from ..progress import set_quiet

    set_quiet(quiet)
    output = output or file.with_suffix(".png")
    if output == file:
        raise InputError(f"-o {output}: this is the file to draw")
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    from ..plots import format_of, is_drawn_from, plot_critical_line, plot_dataset, save_figure
    from ..tables import load_dataset

    format_of(output)
    source = Path(os.path.relpath(file, output.parent)).as_posix()

    def foreign(path: Path) -> str:
        return "" if is_drawn_from(path, source) else f"the file exists, and was not drawn from {file}"

    target = new_file(output, force, foreign)
    dataset = load_dataset(file)
    draw: Any = plot_critical_line if "special" in dataset.attrs else plot_dataset
    if "plan" in dataset.attrs:
        from ..simulation.figures import plot_runs as draw
    figure = draw(dataset)
    interrupts.ignore()
    save_figure(figure, target, source)
    return Outcome(f"wrote {output}", {"file": str(output)})


_KINDS = {
    "crossing": "two branches have equal training loss",
    "where": "a condition holds on one branch",
    "at": "the replicon passes 1 on one branch (de Almeida and Thouless)",
    "spinodal": "a branch ends, in a fold or in a more symmetric branch",
    "instability": "a longitudinal eigenvalue of a branch passes 1",
}


@app.command()
@command
def threshold(
    model: ModelArgument,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="|".join(_KINDS),
            help="; ".join(f"{kind}: {meaning}" for kind, meaning in _KINDS.items()) + ".",
        ),
    ] = None,
    between: Annotated[
        str | None, typer.Option("--between", metavar="A,B", help="The two branches of a crossing.")
    ] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="A", help="The branch on which a condition holds.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", metavar="CONDITION", help="As 'test_error = baseline_error'.")
    ] = None,
    over: Annotated[
        str, typer.Option("--over", metavar="NAME[=LO:HI]", help="The parameter, and where to look for the threshold.")
    ] = "alpha=0.1:2.5",
    set_: SetOption = None,
    accuracy: Annotated[
        float,
        typer.Option(
            "--accuracy", help="Half width asked of the threshold; below 1e-12, --kind where of models of one token."
        ),
    ] = 1e-3,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            help="Confirm it by a rule of another family (default: where the accuracy is below 1e-6).",
        ),
    ] = None,
    proof: ProofOption = False,
    along: Annotated[
        str | None,
        typer.Option("--along", metavar="NAME=FROM:TO", help="Follow it in a second parameter: a critical line."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.nc", help="Write the critical line, for `plot`.")
    ] = None,
    force: ForceOption = False,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Locate a phase transition: the value of a parameter, with a half width that includes the integration error."""
    kind = kind or ("where" if where is not None else "crossing")
    available = ", ".join(_KINDS)
    if kind not in _KINDS:
        raise InputError(f"--kind {kind}: available are {available}")
    name, bracket, _ = options.interval(over, counted=False)
    if not accuracy > 0:
        raise InputError(f"--accuracy {accuracy:g} is out of range; allowed is (0, inf)")
    names = _threshold_branches(kind, between, on, where)
    second = options.journey(along, "--along") if along is not None else None
    if proof and (kind != "where" or second is not None):
        raise InputError("--proof goes with --kind where and a single threshold")
    if second is None and output is not None:
        raise InputError("-o goes with --along: a single threshold is printed, or JSON with --json")
    target = options.netcdf_file(output, "a critical line", force)
    options.prepare(threads, quiet)
    problem = options.problem_of(model, set_, without=name)

    from .. import thresholds
    from ..contract import parameters_json

    how: dict[str, Any] = {"bracket": bracket, "accuracy": accuracy, "seed": seed, "verify": verify}
    try:
        if second is not None:
            return _critical_line(problem, kind, name, second, names, where, how, output, target)
        if kind == "crossing":
            found = thresholds.crossing(problem, name, between=(names[0], names[-1]), **how)
        elif kind == "where":
            found = thresholds.where(problem, where or "", name, on=names[0], proof=proof, **how)
        elif kind == "at":
            found = thresholds.almeida_thouless(problem, name, on=names[0], **how)
        else:
            from .. import following

            located = {"spinodal": following.spinodal, "instability": following.instability}[kind]
            found = located(problem, name, on=names[0], **how)
    except (NotConvergedError, TimeLimitError) as error:
        held = {key: value for key, value in parameters_json(problem).items() if key != name}
        data = {
            "model": problem.solver.name,
            "digest": problem.solver.digest,
            "kind": f"where {where}" if kind == "where" else kind,
            "parameter": name,
            "parameters": held,
            "value": None,
            "error": None,
            "error_kind": None,
            "status": "time_limit" if isinstance(error, TimeLimitError) else "not_found",
            "branches": list(names),
            "rs_verdict": None,
            "evidence": {"reason": str(error)},
        }
        return Outcome("", data, Exit.NOT_CONVERGED, str(error))
    from .tables import threshold_table

    message = ""
    if found.status == "not_proved":
        message = f"not proved: {found.evidence['not_proved']}; the half width shown is {found.error_kind}"
    elif found.status == "time_limit":
        message = (
            "the time limit came first: the half width reaches to the ends of the interval that holds the threshold"
        )
    elif not found.success:
        message = f"the accuracy {accuracy:g} was not reached; ask for less, or look at the evidence with --json"
    return Outcome(
        "" if json else threshold_table(found),
        found.to_json,
        Exit.DONE if found.success else Exit.NOT_CONVERGED,
        message,
    )


def _critical_line(
    problem: Problem,
    kind: str,
    parameter: str,
    second: tuple[str, tuple[float, float]],
    names: tuple[str, ...],
    condition: str | None,
    how: dict[str, Any],
    output: Path | None,
    target: Path | None,
) -> Outcome:
    """A threshold along a second parameter; -o writes it."""
    from ..critical import critical_line
    from .tables import line_json, line_table

    over, (first, last) = second
    if kind == "at":
        kind, condition = "where", "replicon = 1"
    line = critical_line(
        problem,
        kind,
        parameter,
        over=(over, first, last),
        between=(names[0], names[-1]) if len(names) > 1 else None,
        on=names[0],
        condition=condition,
        bracket=how["bracket"],
        accuracy=how["accuracy"],
        seed=how["seed"],
    )
    failed = _put_away(line.save, target)
    text = line_table(line) + (f"\nwrote {output}" if target is not None and not failed else "")
    status, message = Exit.DONE, ""
    if failed:
        status, message, output = Exit.WRONG_INPUT, failed, None
    elif line.interrupted:
        status, message = Exit.INTERRUPTED, _kept(len(line.values), None, "point", output)
    elif line.out_of_time:
        status, message = Exit.NOT_CONVERGED, _kept(len(line.values), None, "point", output, _LATE)
    elif not max(line.errors) <= how["accuracy"]:
        status = Exit.NOT_CONVERGED
        message = f"the accuracy {how['accuracy']:g} was not reached at every point of the line; ask for less"
    word = {Exit.DONE: "converged", Exit.INTERRUPTED: "interrupted"}.get(status, "accuracy_not_reached")
    word = "time_limit" if line.out_of_time else word
    return Outcome(text, lambda: line_json(line, word, output), status, message)


def _threshold_branches(kind: str, between: str | None, on: str | None, where: str | None) -> tuple[str, ...]:
    """The branches that a kind of threshold is about, and whether the options that were given are its own.

    Raises:
        InputError: an option is missing, belongs to another kind, or holds a condition that cannot be read.
    """
    if kind == "crossing":
        if where is not None or on is not None:
            raise InputError("--kind crossing takes --between A,B; --on and --where go with other kinds")
        names = tuple(part.strip() for part in (between or "").split(","))
        if len(names) != 2 or not all(names) or names[0] == names[1]:
            raise InputError("--kind crossing needs --between A,B: two different branches, as semantic,positional")
        return names
    if between is not None:
        raise InputError(f"--kind {kind} takes --on A; --between goes with --kind crossing")
    if kind == "where":
        if where is None or on is None:
            raise InputError("--kind where needs --where CONDITION and --on BRANCH")
        from ..conditions import parse_condition

        parse_condition(where)
        return (on,)
    if where is not None:
        raise InputError(f"--kind {kind} takes --on A; --where goes with --kind where")
    if on is None:
        raise InputError(f"--kind {kind} needs --on BRANCH")
    return (on,)


@app.command()
@command
def tune(
    model: ModelArgument,
    over: Annotated[
        str, typer.Option("--over", metavar="NAME[=LO:HI]", help="The parameter to tune, and where, as lambda=1e-3:10.")
    ],
    minimise: Annotated[
        str,
        typer.Option("--minimise", metavar="OBSERVABLE", help="As test_error; with a minus, as -theta, maximised."),
    ] = "test_error",
    on: Annotated[str | None, typer.Option("--on", metavar="A", help="The branch, by its start.")] = None,
    along: Annotated[
        str | None,
        typer.Option(
            "--along", metavar="NAME=LO:HI:N", help="Tune at every value of another parameter: lambda*(alpha)."
        ),
    ] = None,
    set_: SetOption = None,
    accuracy: Annotated[
        float,
        typer.Option("--accuracy", help="Half width asked of the parameter, relative to it where it must be positive."),
    ] = 1e-4,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.nc", help="With --along: write the curve as netCDF.")
    ] = None,
    force: ForceOption = False,
    time_limit: TimeLimitOption = None,
    json: JsonOption = False,
    threads: ThreadsOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> Outcome:
    """Find where an observable is least on a branch: the regularisation of least test error, or any other parameter."""
    import numpy as np

    name, bracket, _ = options.interval(over, counted=False)
    if output is not None and along is None:
        raise InputError("-o goes with --along NAME=LO:HI:N")
    target = options.netcdf_file(output, "a curve", force)
    options.prepare(threads, quiet, seed)
    problem = options.problem_of(model, set_, without=name)
    chosen: dict[str, Any] = {
        "minimise": minimise,
        "on": options.start_of(problem, on),
        "bracket": bracket,
        "accuracy": accuracy,
        "seed": seed,
    }
    from ..tuning import tune as tune_one
    from ..tuning import tuned_curve

    if along is None:
        found = tune_one(problem, name, **chosen)
        status = Exit.DONE if found.success else Exit.NOT_CONVERGED
        return Outcome(found.table(), found.to_json, status, found.advice)
    from .tables import tuned_json, tuned_table

    second, ends, count = options.interval(along, counted=True, option="--along")
    assert ends is not None and count is not None
    if second in options.assignments(set_):
        raise InputError(f"{second} is given by --set and varied by --along; leave one out")
    curve = tuned_curve(
        problem,
        name,
        over=second,
        values=np.linspace(*ends, count),
        on_point=lambda optimum: optimum.solution.stability,
        **chosen,
    )
    failed = _put_away(curve.save, target)
    text = tuned_table(curve) + (f"\nwrote {output}" if target is not None and not failed else "")
    if failed:
        return Outcome(text, lambda: tuned_json(curve, None), Exit.WRONG_INPUT, failed)
    if curve.interrupted:
        message = _kept(len(curve.optima), count, "point", output)
        return Outcome(text, lambda: tuned_json(curve, output), Exit.INTERRUPTED, message)
    weak = [_kept(len(curve.optima), count, "point", output, _LATE)] if curve.out_of_time else []
    weak += [o.advice for o in curve.optima if not o.success] + [f"no optimum at {v:g}" for v in curve.missing]
    return Outcome(
        text,
        lambda: tuned_json(curve, output),
        Exit.DONE if curve.success else Exit.NOT_CONVERGED,
        "; ".join(weak[:1] + ([f"and {len(weak) - 1} more"] if len(weak) > 1 else [])),
    )


@app.command()
@command
def reproduce(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where tables, figures and the report go.")],
    figure: Annotated[
        list[str] | None,
        typer.Option(
            "--figure",
            metavar="NAME",
            help="Only this figure; repeat for several. On request only, each a job of its own: `extensions` (half an "
            "hour), `stability` (ten minutes).",
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
    from ..reproduce import refuse_foreign
    from ..reproduce import reproduce as run

    if not force:
        refuse_foreign(folder)
    try:
        with interrupts.recognised():
            found = run(folder, figure)
    except KeyboardInterrupt:
        sentence = f"interrupted; what is finished is kept in {out}, and the same command continues from there"
        return Outcome("", {"status": "interrupted", "out": str(out)}, Exit.INTERRUPTED, sentence)
    if not found.complete:
        message = (
            f"not every number was reached to its accuracy, or the generated solver is stale: {found.report} says which"
        )
        return Outcome(f"results are in {out}", found.to_json, Exit.NOT_CONVERGED, message)
    return Outcome(f"results are in {out}; begin with {found.report}", found.to_json)
