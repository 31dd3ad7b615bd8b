"""What long steps say, and when: the rules of the thread that speaks, and that it speaks over compiled loops."""

import subprocess
import sys
from itertools import pairwise

import pytest

from saddleforge.base import progress
from saddleforge.base.heartbeat import ProgressReporter


def lines_of(messages: list[tuple[float, str | None]], until: float, live: bool = False) -> list[tuple[float, str]]:
    """Return what a ProgressReporter writes, and when, for steps at given times (None: something was printed)."""
    teller, now, written = ProgressReporter(live, 0.0), 0.0, []
    for at, step in [*messages, (until, None)]:
        while (due := teller.next_progress_line_time()) is not None and max(due, now) < at:
            now = max(due, now)
            written.append((now, teller.compose_progress_line(now, 80)))
        now = at
        if step is None:
            teller.record_printed_output(now)
        else:
            written += [(now, text)] if (text := teller.set_activity_text(step, now)) else []
    return written


def test_a_short_computation_prints_no_progress():
    steps = [(0.1 * i, f"step {i}") for i in range(30)]
    assert lines_of([*steps, (3.0, "")], 100.0) == []


def test_a_long_step_is_said_within_five_seconds_and_then_ever_less_often():
    printed_lines = lines_of([(1.0, "solving")], 400.0)
    times = [at for at, _ in printed_lines]
    assert times[0] == 5.0
    assert printed_lines[0][1] == "... solving [4 s]\n"
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps == sorted(gaps) and gaps[0] == 8.0 and gaps[-1] == 30.0


def test_every_new_step_that_lasts_is_said_within_five_seconds():
    """However long the whole has taken before."""
    steps = [(60.0 * i, f"step {i}") for i in range(10)]
    printed_lines = lines_of(steps, 600.0)
    for at, text in steps:
        first = next(when for when, line in printed_lines if text in line)
        assert first - at <= 5.0


def test_many_short_steps_are_not_a_flood():
    printed_lines = lines_of([(0.5 * i, f"step {i}") for i in range(1200)], 600.0)
    gaps = [b - a for (a, _), (b, _) in pairwise(printed_lines)]
    assert min(gaps) >= 4.0 and max(gaps) <= 30.5
    assert 20 < len(printed_lines) < 60


def test_other_printed_lines_postpone_progress_lines():
    printed_lines = lines_of([(0.0, "solving"), (3.0, None), (6.0, None), (9.0, "")], 20.0)
    assert printed_lines == []


def test_a_terminal_has_one_line_that_is_wiped_away():
    printed_lines = lines_of([(0.0, "solving"), (7.5, "")], 20.0, live=True)
    assert [at for at, _ in printed_lines] == [4.0, 5.0, 6.0, 7.0, 7.5]
    assert all(text.startswith("\r\x1b[2K") and "\n" not in text for _, text in printed_lines)
    assert printed_lines[-1][1] == "\r\x1b[2K"


def test_steps_within_steps_are_said_together_with_what_is_left():
    with progress.progress_step("solving"):
        with progress.progress_step("Newton's method"):
            progress.report_remaining_work("error bar so far 1e-2, asked 1e-3")
            assert progress.describe_current_steps() == "solving: Newton's method (error bar so far 1e-2, asked 1e-3)"
        assert progress.describe_current_steps() == "solving"
        with pytest.raises(ZeroDivisionError), progress.progress_step("failing"):
            _ = 1 / 0
        assert progress.describe_current_steps() == "solving"
    assert progress.describe_current_steps() == ""


LASTS = """
import sys, time
from numba import njit
from saddleforge.base import progress
if "quiet" in sys.argv: progress.set_quiet_mode(True)

@njit(nogil=True)
def count(last):
    total = 0
    for n in range(last):
        total = 3 * total + n
    return total

with progress.progress_step("counting"):
    begin = time.monotonic()
    while time.monotonic() - begin < 6:
        count(2 * 10**9)
print("done")
"""


@pytest.mark.slow
def test_a_compiled_loop_is_spoken_over():
    def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", LASTS, *arguments], capture_output=True, text=True)

    loud, silent = ended(), ended("quiet")
    assert (loud.stdout, silent.stdout, silent.stderr) == ("done\n", "done\n", "")
    assert loud.stderr.startswith("... counting [4 s]")
