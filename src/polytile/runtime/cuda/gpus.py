"""Which GPUs torch sees: told by the cache where nothing has changed, so that commands which only read need not import it."""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path

from polytile.runtime.cuda import device
from polytile.runtime.pytorch import kept, set_variables

GPU_VARIABLES = ("CUDA_", "HIP_", "ROCR_", "NVIDIA_", "HSA_")
"""Beginnings of the names of what may change which GPUs there are."""

DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")
"""What is there where a driver of NVIDIA's (in a container, on Tegra, on WSL) or AMD's is."""

DEVICES = ("/proc/driver/nvidia/gpus/*", "/proc/driver/nvidia/capabilities/gpu*/mig/gi*", "/dev/dri/render*")
"""A file for each GPU, or part of one."""


def gpus() -> tuple[str, ...]:
    """The fingerprints of the GPUs that torch sees (runtime/cuda/device.py), in its order."""
    if "torch" in sys.modules:
        return tuple(_asked_gpus())
    devices = sorted(found for pattern in DEVICES for found in glob.glob(pattern))
    return tuple(kept("gpus", [drivers(), devices, set_variables(GPU_VARIABLES)], _asked_gpus)) if drivers() else ()


def drivers() -> list[str]:
    """What the system says of each driver of GPUs that it has."""
    return [Path(file).read_text() if file.startswith("/proc") else file for file in DRIVERS if os.path.exists(file)]


def _asked_gpus() -> list[str]:
    return [device.fingerprint(index) for index in range(device.count())]
