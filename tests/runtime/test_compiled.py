"""What several processes compile at once is compiled once, and none loads the code of another signature."""

import subprocess
import sys
from textwrap import dedent

import pytest

from saddleforge.problems.compiled import _locked

CODE = """
import sys
from saddleforge.problems.compiled import numba_cache
sys.path.insert(0, sys.argv[1])
with numba_cache():
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
        return [process.communicate(timeout=100)[0].split() for process in running]

    return run


def test_a_function_that_two_processes_want_is_compiled_by_one(both):
    one, other = both("2.0", "2.0")
    assert one[0] == other[0] == "14.0"
    assert int(one[1]) + int(other[1]) == 2  # outer and inner, once each


def test_signatures_that_are_saved_at_once_stay_apart(both):
    for _ in range(2):  # compiled, then loaded
        assert [said[0] for said in both("2.0", "3")] == ["14.0", "21"]


def test_a_lock_is_waited_for_no_longer_than_it_takes_to_do_without(tmp_path):
    with _locked(tmp_path / "lock", 1.0):
        assert _locked(tmp_path / "lock", 0.05) is None
    again = _locked(tmp_path / "lock", 0.05)
    assert again is not None
    again.close()
