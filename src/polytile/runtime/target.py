"""The Target: the device that a program is compiled for, with every fact about it that the compiler needs.

One Target exists per device and process. The frontend asks it which kernels can be generated; candidates ask it for the
GPU's numbers. For generated Triton code, a CPU device means Triton's interpreter, which uses the configs of
INTERPRETED_AS.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass

import torch

from polytile import options
from polytile.runtime.cuda import device as devices

INTERPRETED_AS = "H100"
"""The GPU whose configs Triton's interpreter uses."""

OLDEST = 70
"""Lowest compute capability (times 10) that Triton supports."""

OVERLAPPING = 90
"""Lowest compute capability (times 10) on which a kernel may start before its predecessor on the stream has ended."""

FLOAT8_FROM = 89
"""Lowest compute capability (times 10) on which kernels convert to and from all 8-bit floats."""


@dataclass(frozen=True)
class Target:
    """A device, as the compiler sees it. `Target.of` creates each one once."""

    device: torch.device

    @staticmethod
    @functools.cache
    def of(device: torch.device) -> Target:
        return Target(device)

    @property
    def gpu(self) -> bool:
        """Whether the device is an NVIDIA or AMD GPU; PyTorch calls both "cuda"."""
        return self.device.type == "cuda"

    @property
    def native(self) -> bool:
        """Whether kernels are C++ for this CPU: on a CPU, unless the option `interpret` selects Triton's interpreter."""
        return self.device.type == "cpu" and not options.get("interpret")

    @property
    def facts(self) -> devices.DeviceFacts:
        """The GPU's numbers, or those of INTERPRETED_AS for a CPU. Raises DeviceError for a GPU that this process does
        not have."""
        return devices.facts(self.device.index or 0) if self.gpu else devices.named(INTERPRETED_AS)

    @property
    def overlaps(self) -> bool:
        """Whether a kernel may start before its predecessor on the stream has ended."""
        return self.gpu and self.facts.capability >= OVERLAPPING

    @property
    def unavailable(self) -> str:
        """Why no kernels can be generated for the device; "" if they can."""
        if self.native:
            return ""
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed (pip install polytile[gpu])"
        if self.device.type == "cpu":
            return ""
        if not self.gpu:
            return f"polytile launches no kernels on {self.device.type} yet"
        if not devices.available():
            return "there is no CUDA device in this process"
        if not self.facts.arch and self.facts.capability < OLDEST:
            return f"Triton makes no kernels for {self.facts.name}: its capability is {self.facts.capability / 10}, 7.0 is needed"
        return ""

    @property
    def reads_float8(self) -> bool:
        """Whether generated kernels convert from 8-bit floats."""
        return self.native or self.converts_float8

    @property
    def converts_float8(self) -> bool:
        """Whether generated kernels convert to and from 8-bit floats: in Triton's interpreter, and on GPUs that have
        both types."""
        if not self.gpu:
            return self.device.type == "cpu" and not self.native
        return bool(self.facts.arch) or self.facts.capability >= FLOAT8_FROM
