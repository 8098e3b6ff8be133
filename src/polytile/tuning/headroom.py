"""Headroom: the memory that a device has to spare for measuring. It is the memory up to the most that the process has used
there so far, or up to a modest share of the device.

A process whose peak is lower than that share is not short of memory. Without the share a server would never measure its
largest products: its own peak is little above the weights, and comparing results takes more memory than producing them.

Where the headroom does not suffice, kernels are tried on the caller's memory instead of clones of it, and the reference runs in
the arguments' own precision, or on the host. Where that would take long, nothing is measured until a later call finds memory to
spare. In a training step most calls do: its first kernels run with little allocated, below the peak that the previous step left
behind. Only the kernels at the peak itself do not. After enough failed attempts the host may work for longer.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

WIDE_BYTES = 16
"""Bytes for each element of an argument that a reference in float64 needs: the element, and an intermediate of its size."""

OWN_TIMES = 3
"""How many times the arguments' bytes a reference in their own precision needs: intermediates, and its results."""

COMPARED_AT_ONCE = 1 << 22
"""Elements on a device that are compared at once: each comparison costs a few launches."""

COMPARED_BYTES = 40
"""Bytes that comparing takes for each of them."""


class NoHeadroom(Exception):
    """Measuring would take more memory than the device has to spare now. The message says what for."""


SHARE = 16
"""The modest share is one part in this many of a device: 5 GiB of 80. Comparing 2400 rows of 32000 logits takes 2.3 GB, in
float64."""


def _below_the_peak(device: torch.device) -> int:
    free, total = torch.cuda.mem_get_info(device)
    modest = min(total // SHARE, torch.cuda.memory_reserved(device) + free // 2)
    return max(torch.cuda.max_memory_allocated(device), modest) - torch.cuda.memory_allocated(device)


HEADROOM: dict[str, Callable[[torch.device], int]] = {"cuda": _below_the_peak}
"""Bytes that may be allocated on a device, by its type, without raising the most that was allocated there so far above what is
modest, nor taking more than half of what others left. Where there is no entry memory is no concern: the host's."""


FREE: dict[str, Callable[[torch.device], int]] = {"cuda": lambda device: torch.cuda.mem_get_info(device)[0] // 2}
"""The same for a process that is there for measuring, and has no peak to keep."""

_for_measuring: contextvars.ContextVar[bool] = contextvars.ContextVar("polytile_for_measuring", default=False)


@contextlib.contextmanager
def for_measuring() -> Iterator[None]:
    """Within the block, in this thread, measuring may use what a device has free: it is what the process is there for."""
    token = _for_measuring.set(True)
    try:
        yield
    finally:
        _for_measuring.reset(token)


def fits(size: int, device: torch.device) -> bool:
    """Whether `device` has `size` bytes more to spare."""
    headroom = (FREE if _for_measuring.get() else HEADROOM).get(device.type)
    return headroom is None or size <= headroom(device)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, on the host where its device has no memory to spare."""
    return tensor.clone() if fits(tensor.numel() * tensor.element_size(), tensor.device) else tensor.to("cpu", copy=True)


def wide_fits(args: Sequence[Any], roles: Sequence[str]) -> bool:
    """Whether the arguments in float64, a reference's work on them, and the comparison fit."""
    return _all_fit(args, roles, lambda tensor: WIDE_BYTES * tensor.numel())


def own_fits(args: Sequence[Any], roles: Sequence[str]) -> bool:
    """The same for a reference in the arguments' own precision."""
    return _all_fit(args, roles, lambda tensor: OWN_TIMES * tensor.numel() * tensor.element_size())


def _all_fit(args: Sequence[Any], roles: Sequence[str], need: Callable[[torch.Tensor], int]) -> bool:
    needed: dict[torch.device, int] = {}
    largest = 0
    for tensor in args[: len(roles)]:
        if tensor is not None and tensor.device.type in HEADROOM:
            needed[tensor.device] = needed.get(tensor.device, 0) + need(tensor)
            largest = max(largest, tensor.numel())
    comparing = COMPARED_BYTES * min(largest, COMPARED_AT_ONCE)
    return all(fits(size + comparing, device) for device, size in needed.items())


HOST_SLOWER = 2000
"""How many times longer than a GPU's best kernel the host takes for a reference in float64, about: a product of 4096³ in bfloat16
takes 0.18 ms there, and 0.1-0.3 s of sixteen cores in float64."""

HOST_SECONDS = 1.0
"""What a reference on the host may take where no later call will find memory either."""

HOST_AT_ONCE = 0.02
"""What it may take where one may: half of the first minute of a GPT-2 training went into comparing results on the host."""

MOST_POSTPONED = 6
"""How often measuring is put off because memory is short, each time for twice as many calls: what many layers share is called
as often before the first step has shown how much memory it takes."""


def host_is_quick(predicted: Sequence[float], last_chance: bool = True) -> bool:
    """Whether the host may well run the reference of a problem whose candidates are predicted to take so long. `last_chance`: it
    will not be measured otherwise."""
    best = min(predicted, default=math.inf)
    return best * HOST_SLOWER <= (HOST_SECONDS if last_chance else min(HOST_AT_ONCE, HOST_SECONDS))
