"""`generate`: writes solvers to a tree, a folder or the cache, checks them, and shows the origin of a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..base.budget import interrupt_at_time_limit
from ..base.errors import InputError
from . import options
from .outcome import CommandOutcome, ExitStatus, command_with_options


@command_with_options("time_limit", "memory_limit", "json", "quiet")
def generate(
    model: str | None = None,
    /,
    out: Path | None = None,
    check: bool = False,
    force: bool = False,
    origin: str | None = None,
    sizes: list[str] | None = None,
) -> CommandOutcome:
    """Derive and write the Numba solvers; with --check compare them with the existing files.

    Args:
        model ([MODEL]): A catalogue name or a model file; default, the whole catalogue.
        out (DIR): Where to write: DIR/MODEL/SIZES/; default, saddleforge's own tree.
        check: Write nothing; fail if an existing file is out of date.
        force: With MODEL and --out: write over files that were not generated.
        origin (FILE:LINE): Show where a line of a generated file comes from.
    """
    from ..base.environment import processor_count
    from ..base.progress import print_message
    from ..problems.catalogue import model_catalogue

    if origin is not None:
        if model is not None or out is not None or check or force or sizes:
            raise InputError("--origin FILE:LINE cannot be combined with other options or a MODEL")
        return _describe_origin_of_line(origin)
    chosen = options.parse_structural_sizes(sizes)
    if model is None and chosen:
        raise InputError("--set needs a MODEL; without one the whole catalogue is generated at its default sizes")
    if model is not None and (model not in model_catalogue() or chosen):
        return _generate_solver_of_model(model, chosen, out, check, force)
    from importlib.metadata import version

    from ..derive.emit.tree import find_tree_differences, sympy_version_of_tree, write_generated_tree

    root, fix = _solver_tree_folder(out)
    names = None if model is None else [model]
    if out is None and not check:
        names = None  # the folder holds other files as well
    elif model is not None and out is not None:
        fix += f" {model}"
    if not check:
        _check_solver_tree_folder(root)
    print_message(f"deriving and generating {model if names else 'the catalogue'} (some seconds a model)")
    if check:
        with interrupt_at_time_limit():
            found = find_tree_differences(root, names, processor_count())
        wanted, here = sympy_version_of_tree(root) if found else None, version("sympy")
        if wanted and wanted != here:
            fix = f"pip install sympy=={wanted}` first (it was written with it, this is {here}), then `{fix}"
        return _outcome_of_staleness_check(root, {"folder": str(root)}, found, fix)
    with interrupt_at_time_limit():  # written files are complete; the next run writes the rest
        touched = write_generated_tree(root, names, processor_count())
    text = [f"{root}: " + ("nothing to do, it is up to date" if not touched else f"{len(touched)} files changed")]
    return CommandOutcome(
        "\n".join([*text, *(f"  {path}" for path in touched)]), {"folder": str(root), "changed": touched}
    )


def _outcome_of_staleness_check(folder: Path, data: dict[str, Any], found: list[str], fix: str) -> CommandOutcome:
    """Return the outcome of `generate --check`: the stale files in a folder, and the command that updates them."""
    data = {**data, "status": "stale" if found else "fresh", "differences": found}
    if not found:
        return CommandOutcome(f"{folder} is up to date", data)
    return CommandOutcome(
        "\n".join(found), data, f"{folder} is stale; `{fix}` brings it up to date", ExitStatus.WRONG_INPUT
    )


def _describe_origin_of_line(place: str) -> CommandOutcome:
    """Return the outcome of `generate --origin`: the template and the formulas that a generated line comes from."""
    from ..derive.emit.line_origins import find_line_origin
    from ..problems.catalogue import GENERATED, resolve_shared_file

    file, _, number = place.rpartition(":")
    places = (resolve_shared_file(place) for place in (Path(file).absolute(), GENERATED / file))
    path = next((place for place in places if place.is_file()), None)
    if path is None or not number.isdecimal():
        raise InputError(
            f"--origin {place}: FILE:LINE of a generated file is expected, as hinge/l1_s1_t1_k1/channel.py:46"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = find_line_origin(path, int(number)) if 1 <= int(number) <= len(lines) else None
    except (OSError, ValueError, LookupError) as error:
        raise InputError(f"--origin {place}: {error}") from error
    if found is None:
        raise InputError(f"--origin {place}: no sources.json next to the file describes line {number} of {len(lines)}")
    facts = {
        "written by": found.writer,
        "formulas": ", ".join(found.formulas),
        "equations": found.equations,
        "leads to": found.result,
    }
    text = [f"{place}: {lines[int(number) - 1].strip()}", *(f"  {k:<11} {v}" for k, v in facts.items() if v)]
    return CommandOutcome("\n".join(text), {"file": str(path), "line": int(number), **found._asdict()})


def _solver_tree_folder(out: Path | None) -> tuple[Path, str]:
    """Return the folder in which generated solvers are written, and the command that rewrites it."""
    if out is not None:
        from ..base.files import absolute_path

        return absolute_path(out), f"saddleforge generate --out {out}"
    from ..problems.catalogue import GENERATED

    return GENERATED, "saddleforge generate"


def _check_solver_tree_folder(root: Path) -> None:
    """Check that generated solvers may be written to a folder; raise InputError if it contains anything else."""
    from ..base.files import check_output_folder

    if {"site-packages", "dist-packages"} & set(root.absolute().parts):
        raise InputError(f"{root} is an installed copy, which is never written; give --out DIR")
    if root.is_dir() and any(root.iterdir()) and not _is_generated_file(root / "catalogue.py"):
        raise InputError(
            f"{root} contains other files, and files that no model generates are deleted; give an empty or new folder"
        )
    check_output_folder(root)


def _is_generated_file(path: Path) -> bool:
    """Return whether the first line of a file says that the generator wrote it."""
    try:
        return b"Generated by saddleforge" in path.read_bytes().partition(b"\n")[0]
    except OSError:
        return False


def _generate_solver_of_model(
    name: str, sizes: dict[str, int], out: Path | None, check: bool, force: bool
) -> CommandOutcome:
    """Write the solver of one model at given sizes into the user's cache or a folder, or check the one there."""
    from ..base.files import absolute_path, check_output_folder, file_exists_error, write_atomically
    from ..base.progress import print_message
    from ..problems.model_file import load_symbolic_model, parse_model_path
    from ..problems.solver import load_solver

    if out is None:
        if check:
            raise InputError(
                f"--check needs --out DIR for {name}: solvers in the cache are keyed by their sources, never stale"
            )
        parse_model_path(name)
        solver = load_solver(name, **sizes)
        return CommandOutcome(f"the solver is in {solver.folder}", {"folder": str(solver.folder), "model": solver.name})
    from ..derive.emit.writer import generate as generate_solver

    given, out = out, absolute_path(out)
    if not check:
        check_output_folder(out)
    model = load_symbolic_model(name)
    structure = model.structure(**sizes)
    folder, shown = (place / model.name / structure.folder_name for place in (out, given))
    print_message(f"deriving and generating {model.name} at {structure.folder_name}")
    files = generate_solver(model, structure).files
    stale = [
        file
        for file, text in files.items()
        if not (folder / file).exists() or (folder / file).read_bytes() != text.encode()
    ]
    data: dict[str, Any] = {"folder": str(shown), "model": model.name}
    if check:
        found = [f"{shown / file} is {'stale' if (folder / file).exists() else 'missing'}" for file in stale]
        chosen = "".join(f" --set {key}={value}" for key, value in sizes.items())
        return _outcome_of_staleness_check(shown, data, found, f"saddleforge generate {name}{chosen} --out {given}")
    for file in stale:
        if not force and (folder / file).exists() and not _is_generated_file(folder / file):
            raise file_exists_error(shown / file, "the file exists, and saddleforge did not generate it")
    for file in stale:
        write_atomically(folder / file, files[file])
    text = f"{shown}: " + (f"wrote {', '.join(stale)}" if stale else "nothing to do, it is up to date")
    return CommandOutcome(text, {**data, "changed": stale})
