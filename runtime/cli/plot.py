"""`plot`: a figure of the file that another command wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..base import interrupts
from ..base.errors import InputError
from .outcome import CommandOutcome, command_with_options


@command_with_options("json", "quiet")
def plot(
    file: Path, /, output: Path | None = None, overlay: list[Path] | None = None, force: bool = False
) -> CommandOutcome:
    """Draw the result of another command: a branch, a critical line, dynamics, a simulation, a sweep or phases.

    A picture of the same table is replaced; any other existing file is overwritten only with --force.

    Args:
        file (FILE.nc): File written by `curve`, `follow`, `threshold --along`, `bayes --along`, `simulate`, `sweep`,
            `phases` or `dynamics`.
        output (FILE.png): File of the picture; default: the name of the table, ending in .png.
        overlay (OTHER.nc): Another critical line to draw in the same picture.
    """
    from ..base.files import check_output_file, require_readable_file

    output = output or file.with_suffix(".png")
    if output == file:
        raise InputError(
            f"-o {output}: this is the file to draw; that is a table, as `saddleforge curve -o FILE.nc` writes, and -o "
            "names its picture"
        )
    for one in (file, *(overlay or [])):
        try:
            with require_readable_file(one, again=True).open("rb"):
                pass
        except OSError as error:
            raise InputError(
                f"cannot read {one}: {error.strerror or error}; plot draws a file that `curve`, `follow`, `simulate`, "
                "`sweep` or `threshold --along` wrote by -o FILE.nc"
            ) from error
    from ..report.plots.drawing import figure_file_format, is_picture_of_table, save_figure
    from ..report.plots.figures import plot_table
    from ..report.tables import load_netcdf_dataset

    figure_file_format(output)
    source = Path(os.path.relpath(file, output.parent)).as_posix()

    def explain_refused_overwrite(path: Path) -> str:
        return "" if is_picture_of_table(path, source) else f"the file exists, and was not drawn from {file}"

    target = check_output_file(output, force, explain_refused_overwrite)
    dataset = load_netcdf_dataset(file)
    others = [load_netcdf_dataset(one) for one in overlay or []]
    if not all("special" in one.attrs for one in ([dataset, *others] if others else [])):
        raise InputError("--overlay draws critical lines, as `threshold --along` and `bayes --along` write them")
    options: dict[str, Any] = {"overlay": others} if others else {}
    try:
        figure = plot_table(dataset, **options)
    except KeyError as error:
        raise InputError(f"{file} cannot be drawn: it lacks {error.args[0]}") from error
    except InputError:
        raise
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            f"{file} cannot be drawn: it does not have the layout of a saddleforge table ({error})"
        ) from error
    interrupts.ignore_interrupts()
    save_figure(figure, target, source)
    return CommandOutcome(f"wrote {output}", {"file": str(output)})
