"""`generate`: solvers written to a tree, to a folder or into the cache, the check that they are fresh, and where a line
of theirs comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..base.budget import sharp
from ..base.errors import InputError
from . import options
from .outcome import Exit, Outcome, command


@command("time_limit", "memory_limit", "json", "quiet")
def generate(
    model: str | None = None,
    /,
    out: Path | None = None,
    check: bool = False,
    force: bool = False,
    origin: str | None = None,
    sizes: list[str] | None = None,
) -> Outcome:
    """Derive and write the Numba solvers; --check compares them with what is there.

    Args:
        model ([MODEL]): A catalogue name or a model file; default, the whole catalogue.
        out (DIR): Where to write: DIR/MODEL/SIZES/; default, saddleforge's own tree.
        check: Write nothing; fail if a file is stale.
        force: With MODEL and --out: write over files that were not generated.
        origin (FILE:LINE): Show where a line of a generated file comes from.
    """
    from ..base.progress import say
    from ..problems.catalogue import catalogue

    if origin is not None:
        if model is not None or out is not None or check or force or sizes:
            raise InputError("--origin FILE:LINE stands alone")
        return _origin(origin)
    chosen = options.sizes_only(sizes)
    if model is None and chosen:
        raise InputError("--set goes with a MODEL; without one the whole catalogue is generated")
    if model is not None and (model not in catalogue() or chosen):
        return _generate_one(model, chosen, out, check, force)
    from importlib.metadata import version

    from ..derive.emit.tree import differences, write_tree, written_with

    root, fix = _tree(out)
    names = None if model is None else [model]
    if out is None and not check:
        names = None  # files of one model stand with others
    elif model is not None and out is not None:
        fix += f" {model}"
    if not check:
        _check_tree(root)
    say(f"deriving and generating {model if names else 'the catalogue'} (some seconds a model)")
    if check:
        with sharp():
            found = differences(root, names)
        wanted, here = written_with(root) if found else None, version("sympy")
        if wanted and wanted != here:
            fix = f"pip install sympy=={wanted}` first (it was written with it, this is {here}), then `{fix}"
        return _compared(root, {"folder": str(root)}, found, fix)
    with sharp():  # what is written is whole, and the rest is for the next time
        touched = write_tree(root, names)
    text = [f"{root}: " + ("nothing to do, it is up to date" if not touched else f"{len(touched)} files changed")]
    return Outcome("\n".join([*text, *(f"  {path}" for path in touched)]), {"folder": str(root), "changed": touched})


def _compared(folder: Path, data: dict[str, Any], found: list[str], fix: str) -> Outcome:
    """Return what --check prints of a folder: the differences found, and the command that brings it up to date."""
    data = {**data, "status": "stale" if found else "fresh", "differences": found}
    if not found:
        return Outcome(f"{folder} is up to date", data)
    return Outcome("\n".join(found), data, f"{folder} is stale; `{fix}` brings it up to date", Exit.WRONG_INPUT)


def _origin(place: str) -> Outcome:
    """Who wrote a line of a generated file, of which formulas; FILE may be below the tree of the catalogue."""
    from ..derive.emit.stamps import origin_of
    from ..problems.catalogue import GENERATED, generated_file

    file, _, number = place.rpartition(":")
    places = (generated_file(place) for place in (Path(file).absolute(), GENERATED / file))
    path = next((place for place in places if place.is_file()), None)
    if path is None or not number.isdecimal():
        raise InputError(
            f"--origin {place}: FILE:LINE of a generated file is expected, as hinge/l1_s1_t1_k1/channel.py:46"
        )
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = origin_of(path, int(number)) if 1 <= int(number) <= len(lines) else None
    except (OSError, ValueError, LookupError) as error:
        raise InputError(f"--origin {place}: {error}") from error
    if found is None:
        raise InputError(f"--origin {place}: no sources.json beside the file tells of line {number} of {len(lines)}")
    told = {
        "written by": found.writer,
        "formulas": ", ".join(found.formulas),
        "equations": found.equations,
        "leads to": found.result,
    }
    text = [f"{place}: {lines[int(number) - 1].strip()}", *(f"  {k:<11} {v}" for k, v in told.items() if v)]
    return Outcome("\n".join(text), {"file": str(path), "line": int(number), **found._asdict()})


def _tree(out: Path | None) -> tuple[Path, str]:
    """The folder of the generated tree, and the command that rewrites it."""
    if out is not None:
        from ..base.files import absolute

        return absolute(out), f"saddleforge generate --out {out}"
    from ..problems.catalogue import GENERATED

    return GENERATED, "saddleforge generate"


def _check_tree(root: Path) -> None:
    """Refuse to write into site-packages, into a folder that is no tree of solvers, or where nothing can be written."""
    from ..base.files import check_folder

    if {"site-packages", "dist-packages"} & set(root.absolute().parts):
        raise InputError(f"{root} is an installed copy, which is never written; give --out DIR")
    if root.is_dir() and any(root.iterdir()) and not _is_generated(root / "catalogue.py"):
        raise InputError(
            f"{root} contains other files, and files that no model generates are deleted; give an empty or new folder"
        )
    check_folder(root)


def _is_generated(path: Path) -> bool:
    """Whether the generator wrote a file, by its first line."""
    try:
        return b"Generated by saddleforge" in path.read_bytes().partition(b"\n")[0]
    except OSError:
        return False


def _generate_one(name: str, sizes: dict[str, int], out: Path | None, check: bool, force: bool) -> Outcome:
    """The solver of one model at one structure: into the user's cache, or under a folder."""
    from ..base.files import absolute, check_folder, occupied, write_whole
    from ..base.progress import say
    from ..problems.model_file import model_path, symbolic_model
    from ..problems.solver import load_solver

    if out is None:
        if check:
            raise InputError(
                f"--check needs --out DIR for {name}: solvers in the cache are keyed by their sources, never stale"
            )
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
        chosen = "".join(f" --set {key}={value}" for key, value in sizes.items())
        return _compared(shown, data, found, f"saddleforge generate {name}{chosen} --out {given}")
    for file in stale:
        if not force and (folder / file).exists() and not _is_generated(folder / file):
            raise occupied(shown / file, "the file exists, and saddleforge did not generate it")
    for file in stale:
        write_whole(folder / file, files[file])
    text = f"{shown}: " + (f"wrote {', '.join(stale)}" if stale else "nothing to do, it is up to date")
    return Outcome(text, {**data, "changed": stale})
