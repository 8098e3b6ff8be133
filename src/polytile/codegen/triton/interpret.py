"""Runs generated kernels without a GPU: their launches on CPU tensors under Triton's interpreter.

Triton decides when it is imported whether functions are interpreted, so TRITON_INTERPRET=1 must be set by then. torch
and numpy compute what its interpreter lacks or does one element at a time (standins.py).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sympy
import torch

from polytile.codegen.function_names import ENTRY
from polytile.codegen.triton import standins
from polytile.codegen.triton.cluster_interpreter import cluster_executor
from polytile.codegen.triton.kernel import Argument, Descriptor, Kind, Launch, TritonKernel
from polytile.codegen.triton.module import load
from polytile.ir import sizes


def available() -> bool:
    """Whether this process interprets Triton functions."""
    import triton

    return bool(triton.knobs.runtime.interpret) and not isinstance(triton.language.sum, triton.JITFunction)


def run(kernel: TritonKernel, tensors: Mapping[str, torch.Tensor], values: Mapping[str, int]) -> int:
    """Runs the launches on `tensors` (by name, starting at the buffer's first element) with the integers `values`.
    Returns the number of a failed run-time check, or 0. Raises RuntimeError in a process that compiles Triton
    functions."""
    if not available():
        raise RuntimeError(
            "Triton kernels cannot be interpreted in this process: set TRITON_INTERPRET=1 in its environment before it starts."
        )
    numbers = {sympy.Symbol(name, integer=True, positive=sign): n for name, n in values.items() for sign in (True, None)}
    scratch = [
        torch.zeros(max(1, sizes.evaluate(s.size, numbers)), dtype=s.dtype, device="cpu") if s.zeroed
        else torch.full((max(1, sizes.evaluate(s.size, numbers)),), 77, dtype=s.dtype, device="cpu")
        for s in kernel.scratch
    ]  # fmt: skip
    error = torch.zeros(1, dtype=torch.int32, device="cpu")
    for launch in kernel.launches:
        grid = tuple(sizes.evaluate(g, numbers) for g in launch.grid)
        if 0 not in grid:
            described = [_described(each, tensors, numbers) for each in launch.descriptors]
            args = [_value(a, tensors, values, scratch, described, error) for a in launch.arguments]
            function = _function(launch)
            run_grid = function[grid] if launch.cluster == 1 else cluster_executor(function, launch.cluster, grid)
            run_grid(*args, **dict(launch.constants))
    for memory, kind in zip(scratch, kernel.scratch, strict=True):
        if kind.zeroed and bool(memory.view(torch.uint8).any()):
            raise AssertionError("a kernel left scratch memory nonzero that it must leave zero")
    return int(error)


def _value(
    argument: Argument,
    tensors: Mapping[str, torch.Tensor],
    values: Mapping[str, int],
    scratch: Sequence[torch.Tensor],
    described: Sequence[Any],
    error: torch.Tensor,
) -> Any:
    match argument.kind:
        case Kind.TENSOR:
            return tensors[argument.name]
        case Kind.SYMBOL:
            return _integer(values[argument.name], argument.type)
        case Kind.SCRATCH:
            return scratch[argument.index]
        case Kind.DESCRIPTOR:
            return described[argument.index]
    return error


def _described(what: Descriptor, tensors: Mapping[str, torch.Tensor], numbers: Mapping[sympy.Symbol, int]) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    shape = [max(1, sizes.evaluate(size, numbers)) for size in what.shape]
    strides = [sizes.evaluate(stride, numbers) for stride in what.strides]
    return TensorDescriptor(tensors[what.tensor], shape, [*strides, 1], list(what.block))


@functools.lru_cache(maxsize=256)
def _function(launch: Launch) -> Any:
    from triton.runtime import interpreter

    interpreter._convert_float = standins.convert_float
    standins.multiply_bfloat16()
    standins.spread_as_blocks()
    source = launch.source
    for name, standin in standins.CALLS.items():
        source = source.replace(f"{name}(", f"{standin.__name__}(")
    names = load(source)
    names.update({standin.__name__: standin for standin in standins.CALLS.values()})
    names.update(libdevice=standins.Libdevice(), range=standins.interpreted_range)
    return names[ENTRY]


def _integer(value: int, kind: str) -> Any:
    """A scalar argument of Triton's type `kind`, which Triton would otherwise derive from its value."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    dtype, array = (tl.int64, np.int64) if kind == "i64" else (tl.int32, np.int32)
    return tl.tensor(TensorHandle(np.array([value], dtype=array), dtype), dtype)
