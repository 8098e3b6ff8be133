"""A decorator in the place of an autotuner's that compiles each config for an H100 and launches nothing. test_public_kernels.py
runs this in a process where Triton does not interpret."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.gpu.public import NAMES, loaded
from tests.autotuner import fake_driver

real_compile = triton.compiler.compile
fake_driver.install()
triton.compiler.compile = lambda source, target, options, _env_vars=None: real_compile(source, target, options)


class Compiled:
    def __init__(self, kernel: Any, configs: Sequence[Any]) -> None:
        self.kernel, self.configs = kernel, configs

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            for config in self.configs:
                made = self.kernel.run(*args, grid=grid, warmup=True, **kwargs, **config.all_kwargs())
                assert made.asm["cubin"], config

        return launch


def autotune(configs: Sequence[Any], key: Sequence[str], **_: Any) -> Callable[[Any], Compiled]:
    return lambda kernel: Compiled(kernel, configs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or NAMES:
            module = loaded(name, Path(folder), "from tests.autotuner.compiling import autotune\n")
            module.make(0, "cpu", torch.bfloat16)[0]()
            print(name, flush=True)
