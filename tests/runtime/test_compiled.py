"""What several processes compile at once is compiled once, and none loads the code of another signature; a cache
that is damaged, full or not to be written costs a compilation, and one that others may write in is not read."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import numpy as np
import pytest

from saddleforge.base import budget, cache, progress
from saddleforge.base.errors import InputError, TimeLimitError
from saddleforge.base.files import lock_file
from saddleforge.problems.compiled import use_numba_cache

CODE = """
import sys
from saddleforge.problems.compiled import use_numba_cache
sys.path.insert(0, sys.argv[1])
with use_numba_cache():
    import compiled_here
value = compiled_here.outer(eval(sys.argv[2]))
print(value, sum(sum(f.stats.cache_misses.values()) for f in (compiled_here.outer, compiled_here.inner)))
"""


@pytest.fixture
def both(tmp_path, monkeypatch):
    """both(one, other): what two processes say that call a function that is new at once, of these arguments."""
    (tmp_path / "compiled_here.py").write_text(
        dedent("""
            from numba import njit

            @njit(cache=True)
            def inner(x):
                total = 0 * x
                for i in range(4):
                    total += x * i
                return total

            @njit(cache=True)
            def outer(x):
                return inner(x) + x
        """)
    )
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)

    def run(*arguments: str) -> list[list[str]]:
        commands = [[sys.executable, "-c", CODE, str(tmp_path), argument] for argument in arguments]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
        return [process.communicate(timeout=300)[0].split() for process in running]

    return run


@pytest.fixture
def alone(both, tmp_path):
    """alone(argument): what a process says that calls it: this one, which reads the source and the cache again."""
    path = tmp_path / "compiled_here.py"

    def run(argument: str) -> list[str]:
        module = sys.modules[path.stem] = ModuleType(path.stem)
        with use_numba_cache():
            exec(compile(path.read_text(), path, "exec"), vars(module))
        value = module.outer(eval(argument))
        return [str(value), str(sum(sum(f.stats.cache_misses.values()) for f in (module.outer, module.inner)))]

    yield run
    sys.modules.pop(path.stem, None)


def test_a_function_that_two_processes_want_is_compiled_by_one(both):
    one, other = both("2.0", "2.0")
    assert one[0] == other[0] == "14.0"
    assert int(one[1]) + int(other[1]) == 2  # outer and inner, once each


def test_signatures_that_are_saved_at_once_stay_apart(both, alone):
    assert [said[0] for said in both("2.0", "3")] == ["14.0", "21"]
    assert [alone(argument) for argument in ("2.0", "3")] == [["14.0", "0"], ["21", "0"]]  # loaded


def test_a_lock_is_waited_for_no_longer_than_it_takes_to_do_without(tmp_path):
    with lock_file(tmp_path / "lock", 1.0):
        assert lock_file(tmp_path / "lock", 0.05) is None
    again = lock_file(tmp_path / "lock", 0.05)
    assert again is not None
    again.close()


def _files(folder: Path, suffix: str) -> list[Path]:
    found = sorted(folder.rglob(f"*{suffix}"))
    assert found
    return found


def test_damaged_machine_code_is_compiled_again_and_replaced(alone, tmp_path):
    alone("2.0")
    for suffix, damage in (
        (".nbi", lambda content: b"cos\nsystem\n(S'exit 1'\ntR."),  # a pickle of somebody else's
        (".nbc", lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]),
        (".nb?", lambda content: b""),
    ):
        for file in _files(tmp_path / "cache", suffix):
            file.write_bytes(damage(file.read_bytes()))
        assert alone("2.0") == ["14.0", "2"]
    assert alone("2.0") == ["14.0", "0"]


def test_machine_code_of_another_source_is_not_taken_for_that_of_this_one(alone, tmp_path):
    """As a process leaves it that is killed between index and data, in Numba's own order."""
    alone("2.0")
    old = {file.name: file for file in _files(tmp_path / "cache", ".nbc")}
    source = tmp_path / "compiled_here.py"
    source.write_text(source.read_text().replace("0 * x", "1 * x"))
    assert alone("2.0") == ["16.0", "2"]
    for file in set(_files(tmp_path / "cache", ".nbc")) - set(old.values()):
        file.write_bytes(old[file.name].read_bytes())
    assert alone("2.0") == ["16.0", "2"]


@pytest.mark.skipif(os.name != "posix", reason="needs limits of file sizes")
def test_a_disk_without_room_costs_a_compilation_and_says_so_once(both, tmp_path):
    command = f"ulimit -f 0; exec {sys.executable} -c '{CODE}' {tmp_path} 2.0"
    both()  # writes the source
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["14.0", "2"]
    assert done.stderr == (
        f"compiled code cannot be saved in {tmp_path / 'cache' / 'numba'} (File too large): the next run compiles it "
        "again, unless SADDLEFORGE_CACHE is set to a folder that can be written\n"
    )


def test_a_cache_that_is_only_to_be_read_is_read(alone, tmp_path):
    alone("2.0")
    folder = tmp_path / "cache" / "numba"
    places = [folder, *folder.rglob("*")]
    for place in places:
        place.chmod(0o500 if place.is_dir() else 0o400)
    if os.access(folder, os.W_OK):  # root may write whatever the mode says: of a file system, then
        mounted = subprocess.run(["unshare", "-m", "true"], capture_output=True)
        if mounted.returncode:
            pytest.skip("needs a user that may not write, or a mount")
        line = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && exec {sys.executable}"
        command = ["unshare", "-m", "bash", "-c", f"{line} -c '{CODE}' {tmp_path} 2.0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert (done.stdout.split(), done.stderr) == (["14.0", "0"], "")
    else:
        assert alone("2.0") == ["14.0", "0"]
    for place in places:
        place.chmod(0o700)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners and modes")
def test_a_cache_folder_that_others_may_write_in_is_not_read(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(folder))
    assert cache.cache_folder() == folder and folder.stat().st_mode & 0o777 == 0o700
    (folder / "planted").write_text("")
    folder.chmod(0o770)
    cache._ensure_private_folder.cache_clear()
    with pytest.raises(InputError, match="others may write in the cache folder"):
        cache.cache_folder()
    (folder / "planted").unlink()
    assert cache.cache_folder() == folder and folder.stat().st_mode & 0o777 == 0o700  # empty: made private
    cache._ensure_private_folder.cache_clear()
    if os.geteuid() == 0:  # who alone can give a folder to somebody else
        os.chown(folder, 123456, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 123456)
    with pytest.raises(InputError, match="belongs to another user"):
        cache.cache_folder()


def test_no_home_folder_is_no_cache_in_the_working_directory(monkeypatch):
    monkeypatch.delenv("SADDLEFORGE_CACHE", raising=False)
    monkeypatch.setattr(cache.platformdirs, "user_cache_dir", lambda _: "~/.cache/saddleforge")
    with pytest.raises(InputError, match="there is no home folder for the cache: set HOME"):
        cache.cache_folder()


def test_a_compilation_is_said_and_ended_by_a_time_limit(tmp_path, monkeypatch):
    """Nothing in Numba looks at the clock; the function is compiled when there is time for it."""
    (tmp_path / "slow_here.py").write_text(
        dedent("""
            from numba import njit

            @njit(cache=True)
            def _many_sums(x):
                total = 0.0
        """)
        + "".join(f"    total += x[{n}:].sum() if x[{n}] > {n} else x[:{n}].max()\n" for n in range(1, 20))
        + "    return total\n"
    )
    monkeypatch.setenv("SADDLEFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    with use_numba_cache():
        import slow_here
    said = []
    monkeypatch.setattr(progress, "_display_current_steps", lambda: said.append(progress.describe_current_steps()))
    with pytest.raises(TimeLimitError), budget.time_limit(0.3):
        slow_here._many_sums(np.ones(40))
    assert "Numba compiles the function many_sums, once on this machine" in said and not said[-1]
    assert not slow_here._many_sums.signatures  # nothing has been compiled
    assert slow_here._many_sums(np.ones(40)) > 0 and slow_here._many_sums.signatures
