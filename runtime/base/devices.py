"""The device that averages over many nodes run on, as an option of every public function."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

from .errors import InputError
from .options import AlgorithmOptions

DEVICE_VARIABLE = "SADDLEFORGE_DEVICE"
_NAMES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class DeviceOptions(AlgorithmOptions):
    """Options of averages over many nodes: where they run, and in which portions.

    Attributes:
        device: "cpu" or "cuda"; "auto" for what the environment variable SADDLEFORGE_DEVICE names, without it "cpu".
        min_nodes: number of nodes from which on an average runs on the CUDA device; fewer take longer there.
        max_threads: largest number of threads of the device among which the nodes of an average are divided.
        block: threads per block of the device; from 64 to 256 alike on an H100.
        memory_fraction: fraction of the device's memory that an average may use; larger sets of nodes are divided.

    Raises:
        InputError: the device has another name, or is "cuda" where no CUDA device can be used.
    """

    device: str = "auto"
    min_nodes: int = 4096
    max_threads: int = 2**18
    block: int = 128
    memory_fraction: float = 0.5

    def __post_init__(self) -> None:
        if self.name not in _NAMES[1:]:
            asked = "device" if self.device != "auto" else DEVICE_VARIABLE
            raise InputError(f"{asked} = {self.name!r} is none of {', '.join(_NAMES)}")
        if self.uses_cuda and (missing := _missing_for_cuda()):
            raise InputError(f"the device cuda cannot be used: {missing}; give cpu, or leave the device out")

    @property
    def name(self) -> str:
        """The device: "cpu" or "cuda"."""
        if self.device != "auto":
            return self.device
        asked = os.environ.get(DEVICE_VARIABLE, "").strip() or "cpu"
        return "cpu" if asked == "auto" else asked

    @property
    def uses_cuda(self) -> bool:
        """Whether averages run on a CUDA device."""
        return self.name == "cuda"


@cache
def _missing_for_cuda() -> str:
    """Return what is missing for averages on a CUDA device, in words; an empty string if nothing is."""
    from importlib.util import find_spec

    simulated = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") == "1"
    if not simulated and find_spec("numba_cuda") is None:
        return "the package numba-cuda is not installed (pip install 'saddleforge[cuda]')"
    from numba import cuda  # slow to load

    return "" if cuda.is_available() else "no CUDA device with a driver is found on this machine"
