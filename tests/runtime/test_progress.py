"""What long steps say, and when: the rules of the process that speaks, and that it speaks over compiled loops."""

import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest

import saddleforge
from saddleforge import progress
from saddleforge.heartbeat import SIZE, Board, Notes, Teller, messages

SCRIPT = Path(saddleforge.__path__[0]) / "heartbeat.py"


def lines_of(messages: list[tuple[float, str]], until: float, live: bool = False) -> list[tuple[float, str]]:
    """What a Teller writes, and when, if it hears messages at given times."""
    teller, now, written = Teller(live, 0.0), 0.0, []
    for at, message in [*messages, (until, "")]:
        while (due := teller.due()) is not None and max(due, now) < at:
            now = max(due, now)
            written.append((now, teller.speak(now, 80)))
        now = at
        if message:
            written += [(now, text)] if (text := teller.hear(message, now)) else []
    return written


def test_what_is_short_is_silent():
    steps = [(0.1 * i, f"Tstep {i}") for i in range(30)]
    assert lines_of([*steps, (3.0, "T")], 100.0) == []


def test_a_long_step_is_said_within_five_seconds_and_then_ever_less_often():
    told = lines_of([(1.0, "Tsolving")], 400.0)
    times = [at for at, _ in told]
    assert times[0] == 5.0
    assert told[0][1] == "... solving [4 s]\n"
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps == sorted(gaps) and gaps[0] == 8.0 and gaps[-1] == 30.0


def test_every_new_step_that_lasts_is_said_within_five_seconds():
    """However long the whole has taken before."""
    steps = [(60.0 * i, f"Tstep {i}") for i in range(10)]
    told = lines_of(steps, 600.0)
    for at, text in steps:
        first = next(when for when, line in told if text[1:] in line)
        assert first - at <= 5.0


def test_many_short_steps_are_not_a_flood():
    told = lines_of([(0.5 * i, f"Tstep {i}") for i in range(1200)], 600.0)
    gaps = [b - a for (a, _), (b, _) in pairwise(told)]
    assert min(gaps) >= 4.0 and max(gaps) <= 30.5
    assert 20 < len(told) < 60


def test_what_is_printed_otherwise_counts():
    told = lines_of([(0.0, "Tsolving"), (3.0, "O"), (6.0, "O"), (9.0, "T")], 20.0)
    assert told == []


def test_a_terminal_has_one_line_that_is_wiped_away():
    told = lines_of([(0.0, "Tsolving"), (7.5, "T")], 20.0, live=True)
    assert [at for at, _ in told] == [4.0, 5.0, 6.0, 7.0, 7.5]
    assert all(text.startswith("\r\x1b[2K") and "\n" not in text for _, text in told)
    assert told[-1][1] == "\r\x1b[2K"


def test_steps_within_steps_are_said_together_with_what_is_left():
    with progress.step("solving"):
        with progress.step("Newton's method"):
            progress.left("error bar so far 1e-2, asked 1e-3")
            assert progress.doing() == "solving: Newton's method (error bar so far 1e-2, asked 1e-3)"
        assert progress.doing() == "solving"
        with pytest.raises(ZeroDivisionError), progress.step("failing"):
            _ = 1 / 0
        assert progress.doing() == "solving"
    assert progress.doing() == ""


def test_the_process_speaks_and_ends_with_its_input():
    with tempfile.TemporaryFile() as shared:
        shared.truncate(SIZE)
        board = Board(shared.fileno())
        helper = subprocess.Popen(
            [sys.executable, "-I", "-S", SCRIPT, str(shared.fileno()), "0.1"],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=(shared.fileno(),),
        )  # fmt: skip
    assert helper.stdin is not None and helper.stderr is not None
    now = monotonic()
    board.write(Notes(now, now, 0.0, b"a grid of 6000 x 500 nodes"))
    assert helper.stderr.readline().startswith(b"... a grid of 6000 x 500 nodes [")
    helper.stdin.close()
    assert helper.wait(10) == 0
    helper.stderr.close()


def test_a_board_says_of_many_short_steps_only_when_the_last_began():
    """Looked at once a second, it has seen others in between, each of which began and ended."""
    seen = [Notes(), *(Notes(at, at + 0.5, 0.0, b"solving") for at in (1.0, 9.0)), Notes(9.0, 9.7, 0.0, b"")]
    heard = [message for before, now in pairwise(seen) for message in messages(before, now)]
    teller = Teller(False, 0.0)
    for at, message in heard[:-1]:
        teller.hear(message, at)
    assert (teller.text, teller.begun, teller.changed) == ("solving", 9.0, 9.5)
    assert teller.hear(heard[-1][1], heard[-1][0]) == "" and teller.due() is None


def test_a_board_that_is_being_written_is_not_read():
    with tempfile.TemporaryFile() as shared:
        shared.truncate(SIZE)
        writer, reader = Board(shared.fileno()), Board(shared.fileno())
    writer.write(Notes(1.0, 2.0, 3.0, b"x" * 5000))
    assert reader.read() == Notes(1.0, 2.0, 3.0, b"x" * len(reader.read().text)) and not writer.shown
    reader.shown = True
    assert writer.shown
    writer._memory[0] += 1
    assert reader.read() is None


HOLDS_THE_LOCK = """
import sys, time
from saddleforge import progress
if "quiet" in sys.argv: progress.set_quiet(True)
with progress.step("counting"):
    begin = time.monotonic()
    while time.monotonic() - begin < 6:
        sum(range(10**8))  # compiled: no other thread of Python runs meanwhile
print("done")
"""


@pytest.mark.slow
def test_a_loop_that_holds_the_lock_is_spoken_over():
    def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", HOLDS_THE_LOCK, *arguments], capture_output=True, text=True)

    loud, silent = ended(), ended("quiet")
    assert (loud.stdout, silent.stdout, silent.stderr) == ("done\n", "done\n", "")
    assert loud.stderr.startswith("... counting [4 s]")
