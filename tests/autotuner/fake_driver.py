"""A GPU for Triton that is none: nothing is compiled, and what a launch does is a Python function of its arguments.

For the host's side of launches: which kernel is launched with which arguments, and how long that takes.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

Effect = Callable[..., Any]


class FakeKernel:
    """As triton.compiler.CompiledKernel. Launches call `effect` with the grid, the options, and the arguments. With a stub of the
    driver there is polytile's own launcher, whose launches go to the stub."""

    def __init__(self, source: Any, effect: Effect, options: dict[str, Any]) -> None:
        self.src, self.effect, self.options = source, effect, options
        self.function, self.packed_metadata, self._run = 0x3000, (), self.run
        self.metadata = SimpleNamespace(name="fake", num_warps=options["num_warps"], shared=0)

    def launch_metadata(self, grid: Any, stream: int, *args: Any) -> Any:
        return None if triton.knobs.runtime.launch_enter_hook is None else {"grid": grid}

    def run(self, x: int, y: int, z: int, stream: int, function: Any, packed: Any, launched: Any, enter: Any, leave: Any,
            *args: Any) -> None:  # fmt: skip
        if enter is not None:
            enter(launched)
        self.effect((x, y, z), self.options, *args)


class FakeDriver:
    """`effects`: what kernels do, by their names. `compiling` is called where a kernel is compiled."""

    def __init__(self) -> None:
        self.effects: dict[str, Effect] = {}
        self.compiling: Callable[[], Any] = lambda: None

    def compile(self, source: Any, target: GPUTarget, options: dict[str, Any], _env_vars: Any = None) -> FakeKernel:
        self.compiling()
        return FakeKernel(source, lambda *args: self.effects[source.fn.__name__](*args), options)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def install() -> FakeDriver:
    """Makes it Triton's driver and compiler in this process."""
    fake = FakeDriver()
    driver.set_active(fake)
    triton.compiler.compile = fake.compile
    return fake
