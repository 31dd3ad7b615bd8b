"""What is in the cache, what of it no source asks for any more, and that clearing it leaves the rest."""

import json
import os
import subprocess
import sys
import time

import pytest

from saddleforge.problems import cache_contents, solver
from saddleforge.problems.compiled import machine_code_folder

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from saddleforge.problems.compiled import use_numba_cache
with use_numba_cache():
    import counted
print(counted.twice(2.0), sum(counted.twice.stats.cache_misses.values()))
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    return tmp_path / "cache"


def compiled(folder):
    done = subprocess.run([sys.executable, "-c", CODE, str(folder)], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_machine_code_of_a_source_that_has_changed_is_old(cache, tmp_path):
    source = tmp_path / "counted.py"
    source.write_text("from numba import njit\n\n@njit(cache=True)\ndef twice(x):\n    return 2 * x\n")
    assert compiled(tmp_path) == ["4.0", "1"]
    first = machine_code_folder(source)
    assert [(part.path, part.old) for part in cache_contents.cached_files()] == [(first, False)]
    # Of another length: Python tells bytecode by seconds and size.
    source.write_text(source.read_text().replace("2 * x", "2 * x + x"))
    assert compiled(tmp_path) == ["6.0", "1"]
    assert [part.path for part in cache_contents.cached_files() if part.old] == [first]
    assert [part.path for part in cache_contents.clear_cache(everything=False)] == [first]
    assert compiled(tmp_path) == ["6.0", "0"]
    source.unlink()
    assert [part.old for part in cache_contents.cached_files()] == [True]
    cache_contents.clear_cache(everything=False)
    assert cache_contents.cached_files() == [] and not (cache / "numba").exists()


def test_solvers_of_another_generator_records_of_files_that_have_gone_and_what_was_left_half_written_are_old(cache):
    for name, generator in (("now-1", solver.cached_generator_digest()), ("then-2", "another")):
        folder = cache / "solvers" / name / "l1_s1_t1_k1"
        folder.mkdir(parents=True)
        (folder / "model.json").write_text(json.dumps({"generator": generator, "files": {}}))
    left = cache / "solvers" / "now-1" / ".writing-abcdefgh"
    left.mkdir()
    records = cache / "model-files"
    records.mkdir()
    for name, files in (("now", {}), ("gone", {str(cache / "gone.py"): "0"})):
        answer = ["now", "l1_s1_t1_k1", "solvers/now-1/l1_s1_t1_k1", "model"]
        (records / f"{name}.json").write_text(json.dumps({"answer": answer, "files": files}))
    (cache / "generator-0000").write_text("another")
    assert {part.path.name for part in cache_contents.cached_files() if part.old} == {
        "gone.json",
        "generator-0000",
        "l1_s1_t1_k1",
    }
    old = time.time() - 2 * 3600
    os.utime(left, (old, old))
    gone = {part.path.relative_to(cache).as_posix() for part in cache_contents.clear_cache(everything=False)}
    assert gone == {
        "generator-0000",
        "model-files/gone.json",
        "solvers/now-1/.writing-abcdefgh",
        "solvers/then-2/l1_s1_t1_k1",
    }
    assert not (cache / "solvers" / "then-2").exists()
    assert {part.name for part in cache_contents.cached_files()} >= {"now-1 l1_s1_t1_k1", "now.json"}


def test_the_command_lists_sizes_and_clears(cache, call):
    (cache / "sobol").mkdir(parents=True)
    (cache / "sobol" / "one.npy").write_bytes(bytes(2_000_000))
    assert "nodes                      1      2.0 MB" in call("cache").stdout
    assert "one.npy" in call("cache", "--list").stdout
    done = call("cache", "--clear", "old")
    assert done.status == 0 and "removed 0.0 kB in 0 parts" in done.stdout
    data = json.loads(call("cache", "--clear", "all", "--json").stdout)
    assert data["removed_bytes"] == 2_000_000 and data["bytes"] == 0 and not (cache / "sobol").exists()
    assert call("cache", "--clear", "some").status == 2
