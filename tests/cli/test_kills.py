"""Killed or interrupted at any moment, a command loses nothing that it had finished: the next run gives the bits of an
undisturbed one, whatever was left in its folder and in the cache."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = str(Path(sys.executable).with_name("saddleforge"))
MODEL, AT = "ridge_regression", ["--set", "Delta=0.3"]
COMMANDS = {  # name -> arguments, and what lets a second run write where a first one did
    "solve": (["solve", MODEL, *AT, "--set", "alpha=2", "-o", "out.json"], ["--force"]),
    "curve": (["curve", MODEL, *AT, "--over", "alpha=1:3:40", "-o", "out.nc"], ["--force"]),
    "follow": (["follow", MODEL, *AT, "--over", "alpha=3:1", "-o", "out.nc"], ["--force"]),
    "simulate": (["simulate", MODEL, *AT, "--set", "alpha=2", "--d", "300", "--seeds", "8", "-o", "out.nc"], []),
    "sweep": (["sweep", MODEL, *AT, "--over", "alpha=3:1:20", "--processes", "1", "-o", "out.nc"], []),
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts on signals and process groups"),
]


def begun(arguments, folder, cache):
    folder.mkdir(exist_ok=True, parents=True)
    environment = {**os.environ, "SADDLEFORGE_CACHE": str(cache)}
    environment.pop("NUMBA_CACHE_DIR", None)
    return subprocess.Popen(
        [PROGRAM, *arguments, "--json"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(arguments, folder, cache):
    """Standard output and the file of a run that nothing disturbs, and the seconds it takes."""
    start = time.monotonic()
    running = begun(arguments, folder, cache)
    stdout, stderr = running.communicate(timeout=600)
    assert running.returncode == 0, stderr
    file = folder / arguments[arguments.index("-o") + 1]
    return (stdout, file.read_bytes()), time.monotonic() - start


def test_twenty_moments_at_which_a_command_is_ended(tmp_path):
    warm = tmp_path / "cache"
    undisturbed, lasting = {}, {}
    for name, (arguments, _) in COMMANDS.items():
        undisturbed[name], first = finished(arguments, tmp_path / name / "cold", warm)
        again, lasting[name, False] = finished(arguments, tmp_path / name / "warm", warm)
        assert again == undisturbed[name]
        lasting[name, True] = max(first, 25.0) if name == "solve" else 25.0
    rng = random.Random(26)
    for moment in range(20):
        name = list(COMMANDS)[moment % len(COMMANDS)]
        arguments, on = COMMANDS[name]
        compiling, sign = moment % 4 == 1, (signal.SIGKILL, signal.SIGINT)[moment // 5 % 2]
        folder, cache = tmp_path / f"{moment}", tmp_path / f"cache{moment}"
        if not compiling:
            shutil.copytree(warm, cache)
        running = begun(arguments, folder, cache)
        seconds = rng.uniform(0.2, lasting[name, compiling])
        time.sleep(seconds)
        running.send_signal(sign)
        stdout, stderr = running.communicate(timeout=300)
        what = f"{name} after {sign.name} at {seconds:.2f} s{' of compilation' * compiling}: {stderr}"
        print(what.splitlines()[0], running.returncode)
        assert running.returncode in (0, 130 if sign is signal.SIGINT else -sign), what
        assert "Traceback" not in stderr and "bug" not in stderr, what
        if sign is signal.SIGINT:
            json.loads(stdout)
        there = {path: path.read_bytes() for path in folder.glob("out.*") if path.is_file()}
        assert finished([*arguments, *on], folder, cache)[0] == undisturbed[name], what
        for path, content in there.items():  # what stood in a file goes into the next one, or stays aside
            assert path.exists() and (path.read_bytes() == content or path.suffix in (".nc", ".json"))


def test_steps_of_reproduce_that_is_ended_again_and_again_have_the_bits_of_one_run(tmp_path):
    """Up to its first branch, while a second process is at the other one."""
    arguments, last = ["reproduce", "--figure", "overlaps", "--out", "out"], Path("out", "steps", "curve_semantic.json")

    def kept(folder):
        with (folder / last).open():
            return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.glob("out/*/*semantic*"))}

    def until_kept(folder, cache, longest):
        """Whether the step is kept; ends what runs by Ctrl-C or, before that, by a signal that nobody heeds."""
        running, end = begun(arguments, folder, cache), time.monotonic() + longest
        while time.monotonic() < end and not (folder / last).exists() and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(rng.choice([signal.SIGKILL, signal.SIGINT]))
        stdout, stderr = running.communicate(timeout=300)
        assert running.returncode in (130, -signal.SIGKILL), stderr
        assert "Traceback" not in stderr and "bug" not in stderr, stderr
        if running.returncode == 130:
            assert json.loads(stdout)["status"] == "interrupted"
        return (folder / last).exists()

    rng = random.Random(27)
    assert until_kept(tmp_path / "undisturbed", tmp_path / "cache", 3000)
    ended = 0
    while not until_kept(tmp_path / "ended", tmp_path / "another", rng.uniform(0.3, 15) if ended < 20 else 3000):
        ended += 1
    assert ended and kept(tmp_path / "ended") == kept(tmp_path / "undisturbed")
