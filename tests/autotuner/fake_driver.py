"""A GPU for Triton that is none: kernels are compiled for sm_90, and what a launch does is a Python function of its arguments.

For the host's side of launches: which kernel is launched with which arguments, and how long that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

Effect = Callable[..., Any]


class FakeDriver:
    """Launches call the effect of the kernel's name with the grid, the compiled kernel's metadata and the arguments."""

    def __init__(self) -> None:
        self.effects: dict[str, Effect] = {}
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 232448, "multiprocessor_count": 132},
            load_binary=lambda name, image, shared, device: (object(), name, 32, 0, 1024),
        )

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        effect = self.effects[source.fn.__name__]

        def launch(x: int, y: int, z: int, stream: int, function: Any, packed: Any, launched: Any, enter: Any, leave: Any,
                   *args: Any) -> None:  # fmt: skip
            effect((x, y, z), metadata, *args)

        return launch

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., Any]:
        from triton.testing import do_bench

        return do_bench


def install() -> FakeDriver:
    """Makes it Triton's driver in this process."""
    fake = FakeDriver()
    driver.set_active(fake)
    return fake
