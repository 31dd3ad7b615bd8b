"""Files that every release wrote are read by this one; `write.py` adds those of a release before it goes out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.cli import main
from saddleforge.report.contract import SCHEMA
from saddleforge.report.tables import load_netcdf_dataset

HERE = Path(__file__).parent
RELEASES = sorted(path for path in HERE.iterdir() if path.name[0].isdigit())
TABLES = [pytest.param(file, id=f"{file.parent.name}-{file.stem}") for r in RELEASES for file in sorted(r.glob("*.nc"))]


def status(*arguments):
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return left.value.code


def test_this_release_has_left_its_files():
    folder = HERE / sf.__version__
    assert {path.stem for path in folder.iterdir()} >= {"solve", "curve", "follow", "tune", "simulate", "sweep", "line"}
    assert json.loads((folder / "solve.json").read_text())["schema"] <= SCHEMA


@pytest.mark.parametrize("file", TABLES)
def test_a_table_is_read(file):
    assert load_netcdf_dataset(file).attrs["model"] in ("ridge_regression", "tukey_regression")


@pytest.mark.slow
@pytest.mark.parametrize("file", TABLES)
def test_a_table_is_drawn(file, tmp_path):
    assert status("plot", file, "-o", tmp_path / "drawn.png", "--quiet") == 0
    assert (tmp_path / "drawn.png").stat().st_size > 1000


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_its_numbers_are_those_of_today(release, agree):
    """Least squares in closed form, to the error bars of both."""
    table = load_netcdf_dataset(release / "curve.nc")
    solution = sf.solve(sf.problem("ridge_regression", alpha=2, Delta=0.3), "semantic", accuracy=1e-4)
    row = table.sel(alpha=2.0)
    for name in ("training_loss", "test_error"):
        one = float(row[name]), float(row[f"{name}_error"])
        agree(one, (getattr(solution, name), getattr(solution, f"{name}_error")), "error bars", rounding=1e-12)
    stored = json.loads((release / "solve.json").read_text())
    assert np.allclose(stored["overlaps"]["q"], row["q"].values, rtol=1e-6)


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_commands_continue_from_files_of_an_earlier_release(release, tmp_path, capsys):
    at = ["ridge_regression", "--set", "Delta=0.3", "--set", "alpha=2", "--quiet"]
    assert status("solve", *at, "--from", release / "solve.json") == 0
    shutil.copy(release / "simulate.nc", tmp_path / "simulate.nc")
    capsys.readouterr()
    simulated = ["simulate", *at, "--d", "50", "--seeds", "2", "-o", tmp_path / "simulate.nc", "--json"]
    # One of another version is gone on from, or refused in a sentence.
    assert status(*simulated) in ((0,) if release.name == sf.__version__ else (0, 2))
    assert "bug" not in capsys.readouterr().out


def test_a_file_of_a_later_schema_is_refused_in_a_sentence(tmp_path, capsys):
    table = xarray.load_dataset(HERE / sf.__version__ / "curve.nc", engine="h5netcdf")
    assert table.attrs["schema"] == SCHEMA
    table.assign_attrs(schema=SCHEMA + 1).to_netcdf(tmp_path / "later.nc", engine="h5netcdf")
    with pytest.raises(InputError, match=f"has schema {SCHEMA + 1}, but this release reads schemas up to {SCHEMA}"):
        load_netcdf_dataset(tmp_path / "later.nc")
    stored = json.loads((HERE / sf.__version__ / "solve.json").read_text())
    (tmp_path / "later.json").write_text(json.dumps({**stored, "schema": "x"}))
    assert status("solve", "ridge_regression", "--set", "alpha=2", "--from", tmp_path / "later.json") == 2
    assert "has schema x" in capsys.readouterr().err
