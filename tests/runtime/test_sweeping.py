"""Sweeps: what a line does, what is kept of it, and that neither processes nor interruptions show in the result."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray

import saddleforge as sf
from saddleforge.base.errors import InputError
from saddleforge.extensions.sweeping import records
from saddleforge.extensions.sweeping.line import run_sweep_line
from saddleforge.extensions.sweeping.memory import encode_solution, restore_solution
from saddleforge.extensions.sweeping.plan import MOST_POINTS
from saddleforge.report.tables import load_netcdf_dataset
from saddleforge.solving.solve import solve

GRID = {"alpha": (3, 1, 4), "lambda": [0.1, 0.3]}


def logistic(**options):
    return sf.sweep("logistic_regression", **{"grid": GRID, "ask": "solve", "processes": 1, **options})


@pytest.fixture(scope="module")
def swept():
    return logistic()


def written(sweep, path):
    sweep.save(path)
    return Path(path).read_bytes()


@pytest.fixture(scope="module")
def file(swept, tmp_path_factory):
    """The sweep as it is written."""
    path = tmp_path_factory.mktemp("swept") / "sweep.nc"
    swept.save(path)
    return path


def test_a_sweep_holds_what_solving_each_point_gives(swept, agree):
    dataset = swept.to_xarray()
    assert dataset["training_loss"].dims == ("start", "alpha", "lambda")
    at = dataset.sel(start="informed", alpha=3, **{"lambda": 0.3})
    alone = sf.solve(sf.problem("logistic_regression", alpha=3, **{"lambda": 0.3}), accuracy=1e-3)
    for name in ("training_loss", "test_error"):
        found = float(at[name]), float(at[f"{name}_error"])
        agree(found, (getattr(alone, name), getattr(alone, f"{name}_error")), "error bars")
    assert swept.statuses == {"converged": 8} and not swept.weak


def test_its_frame_has_a_row_a_point_and_its_table_a_line_a_line(swept):
    frame = swept.to_pandas()
    assert len(frame) == 8 and {"start", "alpha", "lambda", "q_1", "theta_1_error", "status"} <= set(frame.columns)
    row = frame[(frame.alpha == 1) & (frame["lambda"] == 0.3)].iloc[0]
    assert row.q_1 == float(swept.to_xarray()["q"].sel(alpha=1, **{"lambda": 0.3}).item())
    assert "informed, lambda = 0.3: found at 4 of 4 points, alpha = 3 to 1" in swept.table()


def test_it_comes_back_from_its_file_as_it_was(swept, file):
    back = load_netcdf_dataset(file)
    xarray.testing.assert_equal(back, swept.to_xarray())
    assert back.attrs == swept.to_xarray().attrs


@pytest.mark.parametrize(
    "model, start, values",
    [
        ("logistic_regression", "informed", {"alpha": 2}),
        ("dot_product_attention", "positional", {"alpha": 1.5, "omega": 0.3}),
        ("phase_retrieval", "informed", {"alpha": 3}),
    ],
)
def test_a_stored_solution_is_restored_bit_for_bit(model, start, values):
    at = sf.problem(model, **values)
    found = solve(at, start if start in at.solver.model.STARTS else next(iter(at.solver.model.STARTS)), accuracy=1e-2)
    record = {
        "status": found.status.value,
        "overlaps": found.overlaps.pack().tolist(),
        "errors": found.errors.tolist(),
        "memory": encode_solution(found),
    }
    back = restore_solution(at, start, json.loads(json.dumps(record)))
    assert back.rule == found.rule and back.symmetry == found.symmetry and back.drift == found.drift
    assert np.array_equal(back.overlaps.pack(), found.overlaps.pack()) and np.array_equal(back.errors, found.errors)
    assert (back.jacobian is None) == (found.jacobian is None)
    assert found.jacobian is None or np.array_equal(back.jacobian, found.jacobian)
    frozen = None if found.symmetry is None else found.symmetry.frozen
    assert frozen is None or np.array_equal(back.symmetry.frozen, frozen)


def test_a_line_that_is_taken_up_anywhere_ends_with_the_same_records(swept):
    line = swept.plan.lines[0]
    whole = list(run_sweep_line(line, 1e-3, {}))
    for kept in range(len(whole)):
        known = {record["n"]: json.loads(json.dumps(record)) for record in whole[:kept]}
        assert list(run_sweep_line(line, 1e-3, known)) == whole[kept:]


def test_records_that_a_kill_tore_off_are_dropped_and_computed_again(file, tmp_path):
    target = tmp_path / "sweep.nc"
    logistic(output=target)
    files = sorted(tmp_path.glob("sweep.records/*.jsonl"))
    before = {path: path.read_bytes() for path in files}
    first, second = files
    first.write_bytes(before[first][: len(before[first]) * 2 // 3])  # within a record
    second.write_bytes(before[second][:10])  # within its head
    again = logistic(output=target)
    assert {path: path.read_bytes() for path in files} == before
    assert written(again, tmp_path / "again.nc") == file.read_bytes()


def test_finished_points_are_not_computed_again(tmp_path, branch_at):
    first = logistic(output=tmp_path / "sweep.nc")
    with branch_at(lambda *_, **__: pytest.fail("a point was computed")):
        assert logistic(output=tmp_path / "sweep.nc", accuracy=1e-2).to_xarray().identical(first.to_xarray())


def test_a_finer_accuracy_begins_from_the_coarse_solutions(tmp_path, branch_at):
    logistic(output=tmp_path / "sweep.nc", accuracy=1e-2)
    guesses = []

    def watched(at, branch, value, accuracy=None, guess=None):
        guesses.append(guess)
        return at(branch, value, accuracy, guess)

    with branch_at(watched):
        fine = logistic(output=tmp_path / "sweep.nc", accuracy=1e-5)
    assert len(guesses) >= 8 and all(guess is not None for guess in guesses)
    dataset = fine.to_xarray()
    assert np.all(dataset["accuracy"] == 1e-5) and np.all(dataset["q_error"] <= 1e-5 * dataset["q"])


def ends_below(limit):
    """Of a branch that ends at a value, and below leads to no solution."""
    return lambda at, branch, value, *rest, **options: at(branch, value, *rest, **options) if value >= limit else None


def test_a_line_says_where_it_loses_its_branch_and_goes_back_over_it(branch_at):
    with branch_at(ends_below(1.3)):
        dataset = logistic(grid={"alpha": [3, 2, 0.5, 0.3]}, both_ways=True).to_xarray().isel(start=0)
    forward, back = (dataset.sel(direction=way) for way in ("forward", "back"))
    assert list(forward["status"].values) == ["converged", "converged", "max_iterations", "lost"]
    last, first = float(forward["lost_from"]), float(forward["lost_to"])
    assert 0.5 <= first < 1.3 <= last <= 2 and last - first == pytest.approx(1.5 / 2**4)
    assert f"lost between alpha = {last:.6g} and {first:.6g}" in str(forward["reason"].values[-1])
    assert list(np.isfinite(back["training_loss"].values)) == [True, True, False, False]
    assert np.isnan(back["lost_from"])  # it begins where there is none


def test_nothing_is_wrong_where_a_line_has_not_met_its_branch_yet_if_it_meets_it(branch_at):
    with branch_at(ends_below(1.3)):
        met = logistic(grid={"alpha": [0.3, 0.5, 2, 3]})
        lost = logistic(grid={"alpha": [3, 2, 0.5, 0.3]})
        never = logistic(grid={"alpha": [0.3, 0.5]})
    assert met.statuses == {"converged": 2, "max_iterations": 2} and not met.weak
    assert "the informed branch has not been found yet on this line of the sweep: " in str(
        met.to_xarray()["reason"].values[0, 0]
    )
    assert lost.statuses["max_iterations"] == 1 and not lost.weak
    assert never.weak == {"max_iterations": 2}


@pytest.mark.slow
def test_a_line_says_where_phase_retrieval_loses_its_teacher():
    grid = {"alpha": [3, 2, 0.5, 0.3]}
    found = sf.sweep("phase_retrieval", grid=grid, both_ways=True, ask="solve", accuracy=1e-2, processes=1)
    dataset = found.to_xarray().isel(start=0)
    forward, back = (dataset.sel(direction=way) for way in ("forward", "back"))
    assert list(forward["status"].values) == ["converged", "converged", "left_basin", "lost"]
    assert 0.5 <= float(forward["lost_to"]) < float(forward["lost_from"]) <= 2
    assert list(np.isfinite(back["training_loss"].values)) == [True, True, False, False]
    assert np.isnan(back["lost_from"])


def test_a_point_that_raises_has_a_status_and_its_line_goes_on(branch_at):
    def raising(at, branch, value, *rest, **options):
        if abs(value - 7 / 3) < 1e-9:
            raise ArithmeticError("no such number")
        return at(branch, value, *rest, **options)

    with branch_at(raising):
        found = logistic(grid={"alpha": (3, 1, 4)})
    assert found.statuses == {"converged": 3, "failed": 1}
    assert (
        str(found.to_xarray()["reason"].values[0, 1])
        == "ArithmeticError: no such number (in extensions.sweeping.line.compute_record_of_point)"
    )


def test_a_point_that_failed_is_tried_again_by_the_same_command(tmp_path, branch_at, swept):
    with branch_at(lambda *_, **__: 1 / 0):
        assert logistic(output=tmp_path / "sweep.nc").statuses == {"failed": 8}
    assert logistic(output=tmp_path / "sweep.nc").to_xarray().identical(swept.to_xarray())


def test_rows_of_parameters_may_hold_arrays_and_sizes(agree):
    rows = [
        {"alpha": 2.0, "lambda": 0.1},
        {"alpha": 2.0, "lambda": 0.1, "spectrum": [[0.5, 0.5], [0.5, 1.5]]},
        {"alpha": 1.0, "lambda": 0.1},
    ]
    found = sf.sweep("ridge_regression", points=rows, ask="solve", processes=1).to_xarray()
    assert found["training_loss"].dims == ("start", "point") and list(found["alpha"].values) == [2, 2, 1]
    for row, at in zip(rows, found["training_loss"].values[0], strict=True):
        alone = sf.solve(sf.problem("ridge_regression", **row), accuracy=1e-3)
        agree((at, 0), (alone.training_loss, alone.training_loss_error), "error bars", rounding=1e-9)


def test_a_structural_size_is_an_axis_of_a_sweep():
    found = sf.sweep(
        "ridge_regression", grid={"alpha": [2.0], "student_rank": [1]}, ask="solve", processes=1
    ).to_xarray()
    assert found["q"].dims[:3] == ("start", "alpha", "student_rank") and found["status"].item() == "converged"
    with pytest.raises(InputError, match="along which no branch can be followed"):
        sf.sweep("dot_product_attention", grid={"student_rank": [1, 2], "alpha": [1]})


def test_simulations_are_swept_with_standard_errors():
    found = sf.sweep("ridge_regression", grid={"alpha": [2, 3]}, ask="simulate", d=50, seeds=2, processes=1)
    alone = sf.simulate(sf.problem("ridge_regression", alpha=3), d=50, seeds=2, threads=1)
    at = found.to_xarray().sel(start="informed", alpha=3)
    assert float(at["training_loss"]) == alone.estimate("training_loss").mean
    assert float(at["test_error_error"]) == alone.estimate("test_error").standard_error


def test_shards_are_joined_to_the_same_bytes(tmp_path, file):
    for i in (1, 2):
        share = logistic(output=tmp_path / f"{i}.nc", shard=(i, 2))
        assert share.statuses == {"converged": 4, "unfinished": 4}
    joined = sf.collect(tmp_path / "1.records", tmp_path / "2.records")
    assert written(joined, tmp_path / "joined.nc") == file.read_bytes()


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"grid": {"alfa": (1, 2, 3)}}, "'alfa' of logistic_regression|unknown parameter 'alfa'"),
        ({"grid": {"alpha": (1, 2, 0)}}, "contains no value"),
        ({"grid": {"alpha": []}}, "contains no value"),
        ({"grid": {"alpha": (1, 1, 5)}}, "contains a value twice"),
        ({"grid": {"alpha": (1, 2, 10**5), "lambda": (1, 2, 10**4)}}, "1e\\+09 points in all, is too large"),
        ({"grid": {"alpha": (-1, 2, 4)}}, "alpha = -1.0 is out of range"),
        ({"grid": {"lambda": (1, 2, 4)}}, "alpha = n / d is not given"),
        ({"alpha": 2}, "alpha is both given a value and swept"),
        ({"starts": ["nowhere"]}, "unknown start 'nowhere'"),
        ({"ask": "guess"}, "known are solve, stability, simulate"),
        ({"accuracy": 2}, "allowed is \\(0, 1\\)"),
        ({"shard": (3, 2), "output": "s.nc"}, "1 <= I <= N"),
        ({"processes": 0}, "processes = 0"),
        ({"scheduler": "tcp://a:1", "cluster": "b"}, "give one of them"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused_before_it_begins(options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence):
        logistic(**options)
    assert not list(tmp_path.glob("*/*.jsonl"))


def test_the_largest_grid_is_bounded():
    assert MOST_POINTS < 10**9


def test_records_of_another_sweep_are_refused_and_kept(tmp_path, swept):
    logistic(output=tmp_path / "sweep.nc")
    before = {path: path.read_bytes() for path in tmp_path.glob("sweep.records/*")}
    with pytest.raises(
        InputError, match=r'with parameters = \{"sigma": 1.0\} instead of \{"sigma": 2.0\}; give another'
    ):
        logistic(output=tmp_path / "sweep.nc", sigma=2.0)
    with pytest.raises(InputError, match=r'contains the records of another sweep, with varied = \{"alpha": .*--force'):
        logistic(output=tmp_path / "sweep.nc", grid={"alpha": (3, 1, 5)})
    assert {path: path.read_bytes() for path in tmp_path.glob("sweep.records/*")} == before
    other = logistic(output=tmp_path / "sweep.nc", grid={"alpha": (3, 1, 2)}, force=True)
    assert other.statuses == {"converged": 2}


def test_a_record_that_finds_no_room_is_refused_and_the_finished_ones_stay(tmp_path, monkeypatch, swept):
    class Full:
        """A file on a disk with room for a few bytes more."""

        def __init__(self, stream):
            self._stream, self._room = stream, 3000

        def write(self, data):
            written = self._stream.write(data[: max(self._room, 0)])
            self._room -= written
            return written

        def __getattr__(self, name):
            return getattr(self._stream, name)

    opened = records.SweepRecords._open_records_file
    monkeypatch.setattr(
        records.SweepRecords, "_open_records_file", lambda self, path, line: Full(opened(self, path, line))
    )
    with pytest.raises(InputError, match=r"cannot write .*No space left on device; finished points are kept"):
        logistic(output=tmp_path / "sweep.nc")
    monkeypatch.undo()
    kept = [record for path in tmp_path.glob("sweep.records/*.jsonl") for record in records.read_records(path)]
    assert 0 < len(kept) < 8
    assert logistic(output=tmp_path / "sweep.nc").to_xarray().identical(swept.to_xarray())


def test_of_several_records_of_a_point_the_most_accurate_of_this_version_counts():
    base = {"n": 0, "status": "converged", "version": sf.__version__, "accuracy": 1e-3}
    old = base | {"version": "0.0.1", "accuracy": 1e-9}
    fine, failed = base | {"accuracy": 1e-5}, base | {"status": "failed", "accuracy": 1e-7}
    assert records.best_record_of_each_point([old, base, fine, failed])[0] is fine
    assert records.best_record_of_each_point([base, old, failed])[0] is base
    assert records.best_record_of_each_point([failed])[0] is failed


def test_ctrl_c_keeps_what_is_finished(tmp_path, branch_at, swept):
    asked = []

    def interrupted(at, branch, value, *rest, **options):
        asked.append(value)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return at(branch, value, *rest, **options)

    with branch_at(interrupted):
        found = logistic(output=tmp_path / "sweep.nc")
    assert found.interrupted and found.statuses == {"unfinished": 5, "converged": 3}
    again = logistic(output=tmp_path / "sweep.nc")
    assert not again.interrupted and again.to_xarray().identical(swept.to_xarray())


def test_ctrl_c_that_compiled_code_made_another_error_of_ends_the_sweep(branch_at):
    def interrupted(*_, **__):
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    with branch_at(interrupted):
        found = logistic()
    assert found.interrupted and found.statuses == {"unfinished": 8}


def test_sweeps_are_drawn_as_maps_and_as_curves(swept, tmp_path):
    drawn = swept.plot(tmp_path / "maps.png")
    assert (tmp_path / "maps.png").stat().st_size > 1000
    titles = {axes.get_title() for axes in drawn.axes}
    assert {"θ", "q", "training loss", "test error"} <= titles
    plan = replace(swept.plan, axes=swept.plan.axes[:1])
    one = replace(swept, plan=plan, records=swept.records[:1])
    labels = {axes.get_ylabel() for axes in one.plot().axes}
    assert {"θ", "q", "training loss", "test error"} <= labels


def test_both_words_for_a_start_are_one_start():
    found = sf.sweep("ridge_regression", grid={"alpha": (2, 1, 2)}, starts=["semantic", "informed"], processes=1)
    assert found.plan.starts == ("informed",) and found.statuses == {"converged": 2}
