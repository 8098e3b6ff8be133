"""Creates dispatchers, times bursts of calls, pairs kernels and allocates tensors: in C if the C extension can be
built, else in Python."""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from polytile.runtime import forks, native
from polytile.runtime.arguments import CPU, CUDA
from polytile.runtime.dispatcher import DECLINED, Dispatcher, Entry, Interface, NativeEntry
from polytile.runtime.python_dispatcher import OncePerKey, PythonDispatcher, Reporter, native_call, parse_arguments


def new_dispatcher(interface: Interface) -> Dispatcher:
    """Returns the C dispatcher of a kernel, or a PythonDispatcher where the C extension cannot be built.

    Its calls raise TypeError for wrong arguments and InvalidInput for tensors that the kernel cannot read.

    Raises
    ------
    ValueError
        If a code of `key` or `tensor_key` is out of range.
    """
    module = native.module()
    if module is None:
        return PythonDispatcher(interface)
    if not issubclass(module.Dispatcher, Dispatcher):
        Dispatcher.register(module.Dispatcher)
    dispatcher: Dispatcher = module.Dispatcher(
        interface.name,
        tuple(interface.key),
        tuple(interface.tensor_key),
        OncePerKey(interface.on_miss),
        Reporter(interface.name, interface.on_error),
        tuple(struct.pack(f"{len(code)}q", *code) for code in interface.formulas),
        interface.device,
        interface.on_due,
        interface.label or interface.name,
    )
    return dispatcher


def time_burst(entry: Entry, arguments: Sequence[Any], repeats: int) -> float:
    """Times `repeats` back-to-back calls of `entry`.

    Only the kernel is timed: the arguments are read before the clock starts, and the GIL is released once. For a GPU
    kernel this is the time of the launches.

    Parameters
    ----------
    entry : Entry
        A loaded kernel or a Python callable.
    arguments : sequence
        The kernel's arguments: tensors (or None), then integers.
    repeats : int
        Number of calls, at least 1.

    Returns
    -------
    float
        Seconds on a monotonic clock.

    Raises
    ------
    ValueError
        If `repeats` is less than 1.
    IndexError
        If a call's run-time check fails.
    LaunchFailed
        If the GPU driver refuses a launch.
    """
    if repeats < 1:
        raise ValueError(f"time_burst was asked for {repeats} repeats; it needs at least 1.")
    given = tuple(arguments)
    tensors = sum(1 for argument in given if argument is None or isinstance(argument, torch.Tensor))
    module = native.module()
    timer = _time_burst_in_python if module is None else module.time_burst
    on_cuda = any(isinstance(argument, torch.Tensor) and argument.is_cuda for argument in given)
    seconds, code = timer("time_burst", entry, given, tensors, repeats, CUDA if on_cuda else CPU)
    if code:
        Reporter("time_burst", None)(code)
    return float(seconds)


def product_with_epilogue(
    product: NativeEntry, epilogue: Callable[..., None], leading: int, element_size: int, device: int
) -> tuple[Any, int, int] | None:
    """Combines a product into scratch memory and the epilogue kernel that reads it into one native kernel.

    Parameters
    ----------
    product : NativeEntry
        The product. Its integers are the first `leading` of the pair's.
    epilogue : callable
        Dispatcher of the kernel that reads the scratch memory. If it has no native entry for a call, the pair declines.
    leading : int
        Number of integers of the product.
    element_size : int
        Bytes per element of the product's result.
    device : int
        Index of the GPU that holds the scratch memory.

    Returns
    -------
    tuple or None
        The owner that must outlive the entry, and the entry's `address` and `threads`. None without the C extension.
    """
    module = native.module()
    if module is None:
        return None
    pair: tuple[Any, int, int] | None = module.new_pair(
        product.address, product.threads, epilogue, leading, element_size, device
    )
    return pair


def region_seconds(threads: int) -> float:
    """Seconds that an empty parallel region of `threads` threads takes now; about 0.1 ms to measure. NaN without the C
    extension, without an OpenMP runtime, or if no core is free at the moment."""
    module = native.module()
    seconds = None if module is None else module.region_seconds(threads)
    return math.nan if seconds is None else float(seconds)


def _time_burst_in_python(
    name: str, entry: Any, arguments: tuple[Any, ...], tensors: int, repeats: int, device: int
) -> tuple[float, int]:
    pointers, integers = parse_arguments(name, arguments, tensors, device)
    in_python = hasattr(entry, "call")
    call = (lambda: entry.call(*arguments)) if in_python else native_call(entry, pointers, integers)
    begin = time.perf_counter()
    for _ in range(repeats):
        code = call()
        if code == DECLINED and not in_python and entry.otherwise is not None:
            entry.otherwise(*arguments)
        elif code and not in_python:
            return time.perf_counter() - begin, code
    return time.perf_counter() - begin, 0


def _allocator(device: str) -> Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]:
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    fast = getattr(guards, f"_empty_strided_{device}", None)
    if fast is not None:
        return fast
    return lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype, device=device)


empty_strided_cpu = _allocator("cpu")
"""(sizes, strides, dtype) -> new CPU tensor. Takes half the time of torch.empty_strided if torch has this helper."""

empty_strided_cuda = _allocator("cuda")
"""The same on the current CUDA device."""

os.register_at_fork(after_in_child=forks.use_one_thread)
