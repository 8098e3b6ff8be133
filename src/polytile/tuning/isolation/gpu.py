"""First runs of kernels on a GPU, in a worker with its own context: many per message, on arguments made there.

The user's context, memory and stream are not involved: a fault ends only the worker's context, and none of the memory is
torch's. Only arguments that may be positions (integers, booleans) are copied; the others hold one harmless number (device.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from polytile.candidates.handles import DeviceHandle
from polytile.runtime.cuda.launch import Descriptor
from polytile.runtime.formula import evaluate
from polytile.tuning.clones import ALIGNMENT, Span, bytes_of, extent, overlapping, rounded
from polytile.tuning.isolation.device import GUARD
from polytile.tuning.isolation.endings import Failure
from polytile.tuning.isolation.memory import Memory, Unavailable
from polytile.tuning.isolation.worker import Finished, Kind, borrowed

CONTEXT_BYTES = 1 << 30
"""The most GPU memory that a context takes without any kernel or argument."""

RESERVE = 1 / 16
"""The share of a GPU's memory that a worker leaves free for the user's program."""


def run_all(
    args: Sequence[Any], roles: Sequence[str], handles: Sequence[DeviceHandle], index: int, seconds: float
) -> list[Finished | Failure]:
    """The result of each kernel when it ran on arguments like these. A kernel that ends the worker has the last result. Raises
    Unavailable if there is no worker, or no room for it on the device."""
    groups = overlapping(args, roles)
    with borrowed(Kind.DEVICE, index) as worker:
        running = 0 if worker.pid is None else CONTEXT_BYTES
        needed = CONTEXT_BYTES - running + sum(extent(group)[1] + 2 * GUARD + ALIGNMENT for group in groups)
        free, total = memory_of(index)
        if needed > free - RESERVE * total:
            raise Unavailable(f"the GPU has {free >> 20} MiB free, and the trial takes {needed >> 20}")
        shared = _Shared(groups, handles)
        try:
            place = {"do": "place", "blocks": shared.blocks}
            pairs = zip(handles, shared.images, strict=True)
            requests = [_request(handle, images, args, groups, len(roles)) for handle, images in pairs]
            return worker.run_all(shared.memory, place, requests, seconds)
        finally:
            worker.unmap(shared.memory)
            shared.memory.close()
            worker.rest()


def block_name(args: Sequence[Any], roles: Sequence[str], names: Sequence[str], block: int) -> str:
    """The argument to blame for a write outside a block: one that kernels write to, if the block has one."""
    group = overlapping(args, roles)[block]
    return names[next((span.position for span in group if span.written), group[0].position)]


def memory_of(index: int) -> tuple[int, int]:
    """(free, all) bytes of a GPU."""
    return torch.cuda.mem_get_info(index)


class _Shared:
    """What the worker reads: arguments that may be positions, and machine code. `blocks` describes the arguments' memory,
    `images` has for each handle where the machine code of each launch begins."""

    def __init__(self, groups: Sequence[Sequence[Span]], handles: Sequence[DeviceHandle]) -> None:
        copied = [_is_copied(group) for group in groups]
        sizes = [extent(group)[1] for group, wanted in zip(groups, copied, strict=True) if wanted]
        images = [launch.function.image for handle in handles for launch in handle.launches]
        self.memory = Memory(sum(rounded(size) for size in [*sizes, *map(len, images), 1]))
        self._taken = 0
        self.blocks = [self._block(group, wanted) for group, wanted in zip(groups, copied, strict=True)]
        self.images = [[self._image(launch.function.image) for launch in handle.launches] for handle in handles]

    def _block(self, group: Sequence[Span], copied: bool) -> dict[str, Any]:
        start, length = extent(group)
        described = {"bytes": length, "lead": start % ALIGNMENT, "offset": None}
        if copied:
            described["offset"] = offset = self._take(length)
            for span in group:
                there = self.memory.whole[offset + span.start - start : offset + span.end - start]
                there.copy_(bytes_of(span))
        return described

    def _image(self, image: bytes) -> int:
        offset = self._take(len(image))
        self.memory.whole[offset : offset + len(image)].copy_(torch.frombuffer(bytearray(image), dtype=torch.uint8))
        return offset

    def _take(self, size: int) -> int:
        offset, self._taken = self._taken, self._taken + rounded(size)
        return offset


def _is_copied(group: Sequence[Span]) -> bool:
    return any(span.read and not (span.tensor.is_floating_point() or span.tensor.is_complex()) for span in group)


def _request(
    handle: DeviceHandle, images: Sequence[int], args: Sequence[Any], groups: Sequence[Sequence[Span]], tensors: int
) -> dict[str, Any]:
    """One kernel, all its formulas worked out."""
    integers = [int(value) for value in args[tensors:]]
    places: list[list[int] | None] = [None] * tensors
    for number, group in enumerate(groups):
        start, _ = extent(group)
        for span in group:
            places[span.position] = [number, span.start - start]
    launches = [
        {
            "image": image,
            "symbol": one.function.symbol,
            "threads": one.threads,
            "shared": one.shared,
            "grid": [evaluate(formula, integers) for formula in one.grid],
            "parameters": one.parameters,
            "descriptors": [_described(each, integers) for each in one.descriptors],
            "cluster": one.cluster,
        }
        for one, image in zip(handle.launches, images, strict=True)
    ]
    scratch = [[evaluate(each.bytes, integers), each.zeroed] for each in handle.scratch]
    return {"do": "launch", "launches": launches, "scratch": scratch, "integers": integers, "tensors": places, "threads": 1}


def _described(one: Descriptor, integers: Sequence[int]) -> dict[str, Any]:
    """A descriptor, its innermost axis first."""
    sizes = [max(1, evaluate(size, integers)) for size in reversed(one.shape)]
    told = {"tensor": one.tensor, "type": one.type, "swizzle": one.swizzle, "block": one.block[::-1]}
    return {**told, "sizes": sizes, "strides": [evaluate(stride, integers) * one.bytes for stride in reversed(one.strides)]}
