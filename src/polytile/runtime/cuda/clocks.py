"""What a GPU is doing at this moment: its clocks, temperature and power, from NVIDIA's management library through ctypes.

The library comes with the driver. What it does not tell (in some containers and virtual machines, on parts of a GPU) is left
out: none of it decides anything, it is kept beside measurements for whoever wonders about one.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

LIBRARY = "libnvidia-ml.so.1"

_SM, _MEMORY, _GPU_TEMPERATURE = 1, 2, 0
"""NVML_CLOCK_SM, NVML_CLOCK_MEM and NVML_TEMPERATURE_GPU."""

QUESTIONS: tuple[tuple[str, str, tuple[int, ...], float], ...] = (
    ("mhz", "nvmlDeviceGetClockInfo", (_SM,), 1.0),
    ("memory_mhz", "nvmlDeviceGetClockInfo", (_MEMORY,), 1.0),
    ("max_mhz", "nvmlDeviceGetMaxClockInfo", (_SM,), 1.0),
    ("celsius", "nvmlDeviceGetTemperature", (_GPU_TEMPERATURE,), 1.0),
    ("watts", "nvmlDeviceGetPowerUsage", (), 1e-3),
)
"""Name of a fact, the function that tells it as an unsigned number, its arguments, and what one of that number is."""


def clocks(index: int) -> dict[str, float]:
    """The facts of QUESTIONS for GPU number `index` of this process, in MHz, °C and W; those that are not told are left
    out."""
    found = _library()
    device = _device(index) if found is not None else None
    if found is None or device is None:
        return {}
    told = {}
    for name, function, arguments, unit in QUESTIONS:
        number = ctypes.c_uint()
        if getattr(found, function)(device, *arguments, ctypes.byref(number)) == 0:
            told[name] = number.value * unit
    return told


@functools.cache
def _library() -> Any:
    """NVML, initialised; None where it cannot be."""
    try:
        found = ctypes.CDLL(LIBRARY)
        return found if found.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


@functools.cache
def _device(index: int) -> Any:
    """NVML's handle of the GPU that torch counts as `index`, by its UUID: the two count differently."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    handle = ctypes.c_void_p()
    code = _library().nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle))
    return handle if code == 0 else None
