"""Stand-ins for the arguments that a kernel writes to, so that trying a kernel changes nothing that the caller can see.

Memory is cloned, not tensors: arguments whose memory overlaps share one block in which they overlap in the same way,
and an argument passed twice is one clone. Sizes, strides and the address modulo 64 stay as they are. Arguments that
are only read, and scratch buffers, are passed on uncloned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polytile.tuning.serial import one_thread

ALIGNMENT = 64
GUARD = 128
"""Bytes before and after each block that no kernel may touch; a multiple of ALIGNMENT."""

_GUARD_BYTE, _FLOAT_POISON, _OTHER_POISON = 0x5C, 0xFF, 0xA5
"""All-ones bytes are NaN in every floating-point format; 0xA5 bytes are no boolean and an unlikely integer."""


@dataclass(frozen=True)
class Span:
    """The bytes from a tensor's first to its last element, and the tensor's place among the arguments."""

    position: int
    tensor: torch.Tensor
    role: str
    start: int
    end: int

    @staticmethod
    def of(position: int, tensor: torch.Tensor, role: str) -> Span:
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start = tensor.data_ptr()
        return Span(position, tensor, role, start, start + (last + 1) * tensor.element_size())

    @property
    def written(self) -> bool:
        return self.role in ("out", "inout")

    @property
    def read(self) -> bool:
        return self.role in ("in", "inout")


def overlapping(args: Sequence[Any], roles: Sequence[str]) -> list[list[Span]]:
    """The tensors that have elements, in groups that share memory: each group covers one run of bytes. None is
    skipped."""
    spans = [Span.of(i, args[i], role) for i, role in enumerate(roles) if args[i] is not None and args[i].numel()]
    groups: list[list[Span]] = []
    end = -1
    for span in sorted(spans, key=lambda span: (span.tensor.device.type, span.start)):
        if groups and span.start < end and span.tensor.device == groups[-1][0].tensor.device:
            groups[-1].append(span)
            end = max(end, span.end)
        else:
            groups.append([span])
            end = span.end
    return groups


class Block:
    """One group's memory, copied between two guards."""

    def __init__(self, group: Sequence[Span]) -> None:
        self.group = group
        self.start = min(span.start for span in group)
        self.length = max(span.end for span in group) - self.start
        self.whole = torch.empty(self.length + 2 * GUARD + ALIGNMENT, dtype=torch.uint8, device=group[0].tensor.device)
        self.offset = GUARD + (self.start - self.whole.data_ptr()) % ALIGNMENT
        self.inner = self.whole[self.offset : self.offset + self.length]
        self.read = any(span.read for span in group)
        """Whether kernels read from this block, which they also write to."""
        dtype = group[0].tensor.dtype
        self._poison = _FLOAT_POISON if dtype.is_floating_point or dtype.is_complex else _OTHER_POISON

    def clone_of(self, span: Span) -> torch.Tensor:
        """The tensor of `span` in this block, with its dtype, sizes and strides."""
        tensor = span.tensor
        offset = (self.offset + span.start - self.start) // tensor.element_size()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(self.whole.untyped_storage(), offset, tensor.shape, tensor.stride())

    def restore(self) -> None:
        """Puts back what the caller's tensors hold, where a kernel reads it."""
        for span in self.group if self.read else ():
            tensor = span.tensor
            offset = tensor.storage_offset() * tensor.element_size()
            original = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            original.set_(tensor.untyped_storage(), offset, (span.end - span.start,), (1,))
            self.inner[span.start - self.start : span.end - self.start].copy_(original)

    def poison(self) -> None:
        """Fills the guards, and all between them where nothing is to be read, with values that no right result
        holds."""
        self.whole[: self.offset].fill_(_GUARD_BYTE)
        self.whole[self.offset + self.length :].fill_(_GUARD_BYTE)
        if not self.read:
            self.inner.fill_(self._poison)

    def damaged(self) -> bool:
        """Whether something was written since `poison` that is not part of an argument: a guard, or a gap between the
        elements of a strided output."""
        head, tail = self.whole[: self.offset], self.whole[self.offset + self.length :]
        if bool((head != _GUARD_BYTE).any()) or bool((tail != _GUARD_BYTE).any()):
            return True
        gaps = None if self.read else self._gaps()
        return gaps is not None and bool(((self.inner != self._poison) & gaps).any())

    def _gaps(self) -> torch.Tensor | None:
        """For each byte whether it belongs to no tensor; None where all do."""
        if any(span.tensor.numel() * span.tensor.element_size() == self.length for span in self.group):
            return None
        gaps = torch.ones(self.length, dtype=torch.bool, device=self.whole.device)
        for span in self.group:
            size, tensor = span.tensor.element_size(), span.tensor
            strides = tuple(stride * size for stride in tensor.stride())
            element_bytes = gaps.as_strided((*tensor.shape, size), (*strides, 1), span.start - self.start)
            element_bytes.zero_()
        return gaps


class Clones:
    """Arguments that a kernel may be tried on: `args` is the flat argument list with every written tensor replaced.

    `roles` gives in, out, inout or scratch for each tensor, which stand first in `args`.
    """

    def __init__(self, args: Sequence[Any], roles: Sequence[str]) -> None:
        self.roles = tuple(roles)
        flat = list(args)
        self._blocks = [Block(group) for group in overlapping(args, roles) if any(span.written for span in group)]
        for block in self._blocks:
            made: dict[tuple[Any, ...], torch.Tensor] = {}
            for span in block.group:
                tensor = span.tensor
                key = (span.start, tensor.dtype, tensor.shape, tensor.stride())
                if key not in made:
                    made[key] = block.clone_of(span)
                flat[span.position] = made[key]
        self.args = tuple(flat)
        self.restore()

    @property
    def changes_its_input(self) -> bool:
        """Whether a run finds other inputs than the run before it, unless `restore` is called in between."""
        return any(block.read for block in self._blocks)

    @property
    def written(self) -> list[int]:
        """Positions of the tensors that a kernel writes to."""
        return [i for i, role in enumerate(self.roles) if role in ("out", "inout") and self.args[i] is not None]

    def restore(self) -> None:
        """Puts back the caller's values where a kernel reads what it also writes."""
        with one_thread():
            for block in self._blocks:
                block.restore()

    def poison(self) -> None:
        """Fills outputs that no kernel reads with NaN (integers: a rare value) and sets the guards."""
        with one_thread():
            for block in self._blocks:
                block.poison()

    def damage(self) -> int | None:
        """Position of a written argument beside which a kernel wrote since `poison`; None if there is none."""
        with one_thread():
            damaged = next((block for block in self._blocks if block.damaged()), None)
        return next(span.position for span in damaged.group if span.written) if damaged else None


def widened(args: Sequence[Any], roles: Sequence[str]) -> tuple[Any, ...] | None:
    """The arguments with every floating-point tensor in float64 (complex: complex128), sharing memory as before.

    None where that is impossible: tensors of different dtypes share memory. Integer tensors are copied if written to.
    """
    flat = list(args)
    for group in overlapping(args, roles):
        dtype = group[0].tensor.dtype
        if any(span.tensor.dtype != dtype for span in group):
            return None
        wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype
        if wide == dtype and not any(span.written for span in group):
            continue
        size = group[0].tensor.element_size()
        start = min(span.start for span in group)
        if any((span.start - start) % size for span in group):
            return None
        length = (max(span.end for span in group) - start) // size
        memory = torch.zeros(length, dtype=wide, device=group[0].tensor.device)
        for span in group:
            tensor = span.tensor
            flat[span.position] = memory.as_strided(tensor.shape, tensor.stride(), (span.start - start) // size)
            flat[span.position].copy_(tensor)
    return tuple(flat)


__all__ = ["Clones", "overlapping", "widened"]
