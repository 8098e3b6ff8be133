"""Which GPUs torch sees. The answer is cached as long as nothing has changed, so that commands which only read need not
import torch."""

from __future__ import annotations

import glob
import os
import sys
from pathlib import Path

from polytile.runtime.cuda import device
from polytile.runtime.pytorch import cached_answer, set_variables

GPU_VARIABLES = ("CUDA_", "HIP_", "ROCR_", "NVIDIA_", "HSA_")
"""Prefixes of the environment variables that may change the set of GPUs."""

DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")
"""Files that exist where there is an NVIDIA driver (in a container, on Tegra, on WSL) or an AMD driver."""

DEVICES = ("/proc/driver/nvidia/gpus/*", "/proc/driver/nvidia/capabilities/gpu*/mig/gi*", "/dev/dri/render*")
"""Patterns of files that exist once per GPU, or once per part of one."""


def gpus() -> tuple[str, ...]:
    """Fingerprints of the GPUs that torch sees (runtime/cuda/device.py), in its order."""
    if "torch" in sys.modules:
        return tuple(_query_gpus())
    devices = sorted(node for pattern in DEVICES for node in glob.glob(pattern))
    return tuple(cached_answer("gpus", [drivers(), devices, set_variables(GPU_VARIABLES)], _query_gpus)) if drivers() else ()


def drivers() -> list[str]:
    """The system's information about each GPU driver."""
    return [Path(file).read_text() if file.startswith("/proc") else file for file in DRIVERS if os.path.exists(file)]


def _query_gpus() -> list[str]:
    return [device.fingerprint(index) for index in range(device.count())]
