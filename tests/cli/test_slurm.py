"""Sweeps under Slurm, where one answers: the job array and the cluster file of docs/sweeps.md."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("saddleforge")
ASKED = ["logistic_regression", "--over", "alpha=3:0.5:20", "--over", "lambda=0.01,0.1,0.3,1", "--ask", "solve"]


def answers():
    """Whether there is a Slurm with a node."""
    if shutil.which("sbatch") is None:
        return False
    try:
        nodes = subprocess.run(["sinfo", "-h", "-o", "%D"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return nodes.returncode == 0 and nodes.stdout.strip() not in ("", "0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the whole sweep is, solved by one process."""
    if not answers():
        pytest.skip("no Slurm answers here")
    folder = tmp_path_factory.mktemp("slurm")
    done = ran(folder, "sweep", *ASKED, "--processes", "1", "-o", "whole.nc", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["statuses"] == {"converged": 80}
    return folder


def ran(folder, *arguments):
    return subprocess.run([SCRIPT, *arguments], cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_a_job_array_is_collected_to_the_bytes_of_the_whole(folder):
    script = ["#!/bin/sh", "#SBATCH --array=1-4", "#SBATCH --cpus-per-task=1"]
    share = f'{SCRIPT} sweep {" ".join(ASKED)} -o plane.nc --shard "$SLURM_ARRAY_TASK_ID/4" --quiet'
    (folder / "sweep.sh").write_text("\n".join([*script, share, ""]))
    done = subprocess.run(["sbatch", "--wait", "sweep.sh"], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert ran(folder, "collect", "plane.records", "-o", "plane.nc").returncode == 0
    assert (folder / "plane.nc").read_bytes() == (folder / "whole.nc").read_bytes()


CLUSTER = {"kind": "SLURM", "jobs": 2, "cores": 1, "processes": 1, "memory": "1GB", "walltime": "00:10:00"}


@pytest.mark.slow
def test_a_cluster_of_jobs_gives_the_bytes_of_one_process(folder):
    pytest.importorskip("dask_jobqueue")
    (folder / "slurm.yaml").write_text(json.dumps(CLUSTER))
    done = ran(folder, "sweep", *ASKED, "--cluster", "slurm.yaml", "-o", "cluster.nc")
    assert done.returncode == 0, done.stderr
    assert (folder / "cluster.nc").read_bytes() == (folder / "whole.nc").read_bytes()


@pytest.mark.slow
def test_jobs_that_slurm_does_not_take_are_said(folder):
    pytest.importorskip("dask_jobqueue")
    (folder / "other.yaml").write_text(json.dumps({**CLUSTER, "queue": "nosuch"}))
    done = ran(folder, "sweep", *ASKED, "--cluster", "other.yaml", "-o", "other.nc", "--quiet")
    sentence = "saddleforge: other.yaml: SLURM does not accept the jobs: sbatch: error: invalid partition"
    assert done.returncode == 2 and done.stderr.startswith(sentence)
