"""Commands about models: `models` lists the catalogue, `derive` prints the derivation of one."""

from __future__ import annotations

import sys
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from .._version import __version__
from ..base import interrupts
from ..base.budget import interrupt_at_time_limit
from ..base.errors import InputError, require_known_name, require_whole_number
from . import options
from .outcome import CommandOutcome, command_with_options


@command_with_options("json")
def models() -> CommandOutcome:
    """List the catalogue of models: name, sizes, description and source of each."""
    from ..problems.catalogue import STRUCTURAL, model_catalogue

    entries = model_catalogue()
    width = max(len(name) for name in entries)

    def format_structural_size(spec: tuple[int, int, int | None]) -> str:
        default, low, high = spec
        return f"{default}" if low == high else f"{default}*"

    lines = [f"{'name':<{width}}   L    s    t    summary and source"]
    for name, entry in entries.items():
        sizes = "".join(f"{format_structural_size(entry['sizes'][key]):<5}" for key in STRUCTURAL[:3])
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
    return CommandOutcome("\n".join(lines), {"version": __version__, "models": data})


@command_with_options("time_limit", "memory_limit", "json", "quiet")
def derive(
    model: str,
    /,
    format: str | None = None,
    steps: bool = False,
    rsb: int = 0,
    dynamics: bool = False,
    rename: list[str] | None = None,
    output: Path | None = None,
    force: bool = False,
    sizes: list[str] | None = None,
    json: bool = False,
) -> CommandOutcome:
    """Print the free entropy, the saddle-point equations, the proximal objective and the stability operator.

    Args:
        format (text|latex): text, or a LaTeX document; default: by the ending of -o.
        steps: Show and check the steps of the replica calculation.
        rsb (0|1|2): Steps of replica symmetry breaking in --steps.
        dynamics: Show and check the equations of one-pass stochastic gradient descent.
        output (FILE): Write the derivation to a file.
    """
    from ..base.files import write_atomically
    from ..problems.model_file import load_symbolic_model

    if output is not None and output.suffix in (".pdf", ".docx", ".html"):
        raise InputError(f"-o {output}: derive writes text, or LaTeX to a file that ends in .tex")
    format = format or ("latex" if output is not None and output.suffix == ".tex" else "text")
    require_known_name("value", format, ("text", "latex"), "--format")
    require_whole_number("--rsb", rsb, 0, 2)
    if rsb and not steps:
        raise InputError(f"--rsb {rsb} breaks replica symmetry in the steps of the derivation: give --steps, too")
    if dynamics and steps:
        raise InputError("--steps is for the static theory, --dynamics has its own checks: give one of them")
    file = options.check_output_option(output, force)
    chosen = options.parse_structural_sizes(sizes)
    loaded = load_symbolic_model(model)
    structure = loaded.structure(**chosen)
    if format == "latex":
        from ..derive.report.latex import latex_document as render
    else:
        from ..derive.report.text import report_text as render
    narrow = {"width": _terminal_text_width()} if format == "text" and output is None and not json else {}
    try:
        with interrupt_at_time_limit():
            text = render(
                loaded, structure, steps, options.parse_rename_options(rename), rsb=rsb, dynamics=dynamics, **narrow
            )
    except TypeError as error:  # raised by SymPy, for example for infinities in a loss
        raise InputError(f"model {loaded.name} cannot be derived: {error}") from error
    data = {
        "model": loaded.name,
        "version": __version__,
        "structure": _structural_sizes_json(structure),
        "format": format,
    }
    if file is not None:
        interrupts.ignore_interrupts()
        write_atomically(file.path, text)
        return CommandOutcome(f"wrote {output}", {**data, "file": str(output)})
    return CommandOutcome(text, {**data, "text": text})


def _terminal_text_width() -> int:
    """Return the width in characters of text for the terminal, 80 to 100; 100 if the output is no terminal."""
    return min(100, max(80, get_terminal_size().columns)) if sys.stdout.isatty() else 100


def _structural_sizes_json(structure: Any) -> dict[str, int]:
    from ..problems.catalogue import STRUCTURAL

    return {name: getattr(structure, name) for name in STRUCTURAL}
