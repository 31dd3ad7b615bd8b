"""Which device averages run on, and what is said where there is none."""

import numpy as np
import pytest

import saddleforge as sf
from saddleforge.base import devices
from saddleforge.base.devices import DEVICE_VARIABLE, DeviceOptions
from saddleforge.base.options import options_in_force
from saddleforge.device import loops
from saddleforge.device.constants import declare_constant, is_constant


def test_without_a_device_one_sentence_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(devices, "_missing_for_cuda", lambda: "no CUDA device with a driver is found on this machine")
    with pytest.raises(sf.InputError, match="cuda cannot be used: no CUDA device with a driver is found"):
        sf.solve(sf.problem("dot_product_attention", alpha=2.0), device="cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:1", ""])
def test_a_device_has_one_of_three_names(name):
    with pytest.raises(sf.InputError, match="is none of auto, cpu, cuda"):
        DeviceOptions(name)


def test_the_environment_names_the_device_of_auto(monkeypatch):
    monkeypatch.setattr(devices, "_missing_for_cuda", str)
    assert DeviceOptions().name == "cpu"
    monkeypatch.setenv(DEVICE_VARIABLE, "cuda")
    assert DeviceOptions().uses_cuda and not DeviceOptions("cpu").uses_cuda
    monkeypatch.setenv(DEVICE_VARIABLE, "gpu")
    with pytest.raises(sf.InputError, match=f"{DEVICE_VARIABLE} = 'gpu' is none of"):
        DeviceOptions()


def test_what_is_small_stays_on_the_cpu(monkeypatch):
    monkeypatch.setattr(devices, "_missing_for_cuda", str)
    with options_in_force(DeviceOptions("cuda", min_nodes=100)):
        assert not loops.runs_on_cuda(99) and loops.runs_on_cuda(100)
    assert not loops.runs_on_cuda(10**9)


def test_a_copy_of_a_constant_array_is_not_taken_for_it():
    nodes = declare_constant(np.arange(3.0))
    assert is_constant(nodes) and not is_constant(nodes.copy()) and not is_constant(nodes[:])
