"""Current state of a GPU: clocks, temperature and power, from NVIDIA's management library (NVML) through ctypes.

The library comes with the driver. Values that it does not report (in some containers and virtual machines, on parts of
a GPU) are left out. They affect no decision; they are stored beside measurements for later inspection.
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
"""Name of a fact, the NVML function that reports it as an unsigned number, its arguments, and the unit of that number."""


def clocks(index: int) -> dict[str, float]:
    """The facts of QUESTIONS for this process's GPU `index`, in MHz, °C and W. Values that NVML does not report are
    left out."""
    nvml = _library()
    device = _device(index) if nvml is not None else None
    if nvml is None or device is None:
        return {}
    told = {}
    for name, function, arguments, unit in QUESTIONS:
        number = ctypes.c_uint()
        if getattr(nvml, function)(device, *arguments, ctypes.byref(number)) == 0:
            told[name] = number.value * unit
    return told


def utilisation(index: int) -> float | None:
    """The percentage of its last sampling period, a second at most, in which GPU `index` had a kernel running; None where NVML
    does not report it."""
    nvml, shares = _library(), (ctypes.c_uint * 2)()
    device = _device(index) if nvml is not None else None
    if nvml is None or device is None or nvml.nvmlDeviceGetUtilizationRates(device, shares) != 0:
        return None
    return float(shares[0])


@functools.cache
def _library() -> Any:
    """NVML, initialised; None if that fails."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
        return nvml if nvml.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


@functools.cache
def _device(index: int) -> Any:
    """NVML's handle of torch's GPU `index`, found by its UUID, since the two number GPUs differently."""
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    handle = ctypes.c_void_p()
    code = _library().nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode(), ctypes.byref(handle))
    return handle if code == 0 else None
