"""One Task's arguments in memory that the worker shares, and a candidate's run on them there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from polytile.candidates.handles import NativeHandle, PythonHandle
from polytile.tuning.clones import ALIGNMENT, Block, Clones, overlapping, rounded, size_of
from polytile.tuning.isolation.memory import Unavailable, kept, taken
from polytile.tuning.isolation.worker import Finished, Kind, borrowed, for_all_running

MOST_BYTES = 1 << 30
"""Larger arguments are not copied for an isolated trial: the copy would take longer than the tuning itself."""


class Arena:
    """Copies of all the arguments, also those that are only read, in shared memory: `clones.args` are what the gate compares.

    Raises Unavailable if there is not enough memory. Whoever is done calls `close`; the caller's memory is never written to.
    """

    def __init__(self, args: Sequence[Any], roles: Sequence[str]) -> None:
        sizes = [rounded(size_of(group)) for group in overlapping(args, roles)]
        total = rounded(sum(sizes) + torch.get_rng_state().numel() + ALIGNMENT)
        if total > MOST_BYTES:
            raise Unavailable(f"its arguments take {total >> 20} MiB, and at most {MOST_BYTES >> 20} are copied")
        self.args, self.roles = tuple(args), tuple(roles)
        self.memory = taken(total)
        self._whole = self.memory.whole
        self._taken = 0
        self.random = self._take(torch.get_rng_state().numel(), torch.device("cpu"))
        self.random.copy_(torch.get_rng_state())
        self.clones = Clones(args, roles, self._take)

    def run(self, handle: NativeHandle | PythonHandle, seconds: float, repeats: int = 1) -> Finished:
        """Runs the kernel in the worker, on `clones.args`. Raises Failure and Unavailable as Worker.run does."""
        request = self._native(handle) if isinstance(handle, NativeHandle) else self._python(handle)
        kind = Kind.NATIVE if isinstance(handle, NativeHandle) else Kind.PYTHON
        with borrowed(kind) as worker:
            return worker.run(self.memory, {**request, "integers": self._integers, "repeats": repeats}, seconds)

    def close(self) -> None:
        """Lets go of the memory, here and in the workers, if the next trial has no use for it."""
        if not kept(self.memory):
            for_all_running(lambda worker: worker.unmap(self.memory))
            self.memory.close()

    @property
    def _integers(self) -> list[int]:
        return [int(value) for value in self.args[len(self.roles) :]]

    def _native(self, handle: NativeHandle) -> dict[str, Any]:
        tensors = self.clones.args[: len(self.roles)]
        pointers = [None if t is None or not t.numel() else self._offset(t.data_ptr()) for t in tensors]
        return {**_fields(handle), "do": "native", "pointers": pointers}

    def _python(self, handle: PythonHandle) -> dict[str, Any]:
        blocks = [block for block in self.clones.blocks if isinstance(block, Block)]
        described = [
            {
                "offset": self._offset(block.whole.data_ptr()),
                "bytes": block.whole.numel(),
                "device": str(block.group[0].tensor.device),
            }
            for block in blocks
        ]
        places = {span.position: number for number, block in enumerate(blocks) for span in block.group}
        tensors = [
            None if tensor is None else self._tensor(tensor, self.args[position], places.get(position), blocks)
            for position, tensor in enumerate(self.clones.args[: len(self.roles)])
        ]
        return {
            **_fields(handle),
            "do": "python",
            "path": sys.path,
            "threads": torch.get_num_threads(),
            "random": self._offset(self.random.data_ptr()),
            "blocks": described,
            "tensors": tensors,
        }

    def _tensor(self, clone: torch.Tensor, own: torch.Tensor, place: int | None, blocks: list[Block]) -> dict[str, Any]:
        offset = None if place is None else clone.data_ptr() - blocks[place].whole.data_ptr()
        return {
            "block": place,
            "offset": offset,
            "dtype": str(clone.dtype).removeprefix("torch."),
            "shape": list(clone.shape),
            "stride": list(clone.stride()),
            "device": str(own.device),
        }

    def _take(self, size: int, device: torch.device) -> torch.Tensor:
        """The next `size` bytes, aligned."""
        start, self._taken = self._taken, self._taken + rounded(size)
        return self._whole[start : start + size]

    def _offset(self, address: int) -> int:
        return address - self._whole.data_ptr()


def _fields(handle: NativeHandle | PythonHandle) -> dict[str, Any]:
    return dict(vars(handle))
