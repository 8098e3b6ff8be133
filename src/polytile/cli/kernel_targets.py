"""`polytile tune` of a kernel by `polytile.autotune` or `polytile.kernel`: at sizes, on arguments that it says how to make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import polytile
from polytile.dispatch.handwritten import Kernel

Launch = Callable[[Mapping[str, int]], None]


def launch_of(value: Any, dtype: torch.dtype | None, device: str) -> tuple[Launch, Sequence[Mapping[str, int]]] | None:
    """What calls a kernel at given sizes, and the sizes that its `hints` name; None of a value that is no kernel. Tensors of a
    `polytile.kernel` without make_args= have this element type and are on this device."""
    if isinstance(value, Kernel):
        return _of_functions(value, dtype or torch.float32, torch.device(device)), value.hints
    tuner = _autotuner_below(value)
    return None if tuner is None else (_of_triton(value, tuner), tuner.extras.hints)


def sizes_of(text: str) -> dict[str, int]:
    """Sizes as "M=16,N=4096". Raises ValueError for anything else."""
    pairs = [item.split("=") for item in text.split(",")]
    return {name.strip(): int(size) for name, size in pairs}


def _of_functions(kernel: Kernel, dtype: torch.dtype, device: torch.device) -> Launch:
    def launch(sizes: Mapping[str, int]) -> None:
        kernel(*kernel.tensors_at(sizes, dtype, device))
        polytile.wait()

    return launch


def _of_triton(value: Any, tuner: Any) -> Launch:
    def launch(sizes: Mapping[str, int]) -> None:
        arguments = tuner.samples.arguments_at(sizes)
        value[arguments.pop("grid")](**arguments)
        polytile.wait()

    return launch


def _autotuner_below(value: Any) -> Any:
    """The autotuner of polytile's that a value is, or that is below its heuristics; None where there is none."""
    if not type(value).__module__.startswith(("triton.", "polytile.autotuner")):
        return None  # and Triton need not be installed
    from polytile.autotuner.tuner import Autotuner

    while value is not None and not isinstance(value, Autotuner):
        value = getattr(value, "fn", None)
    return value
