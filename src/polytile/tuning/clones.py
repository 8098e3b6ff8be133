"""Stand-ins for the arguments that a kernel writes, so that trying a kernel changes nothing that the caller can see.

Memory is cloned, not tensors: arguments with overlapping memory share one block in which they overlap in the same way, and an
argument passed twice is one clone. Sizes, strides and the address modulo 64 stay the same. Arguments that are only read, and
scratch buffers, are passed on without a clone.

Clones take no more of a device's memory than it can spare (headroom.py). If a clone would, kernels are tried on the memory
itself, and its content is kept on the host. Copies are of bytes, so that a tensor with any strides keeps its layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polytile.runtime import openmp
from polytile.tuning.headroom import fits

ALIGNMENT = 64
"""Bytes: a line of the cache, at the beginning of which blocks begin."""

GUARD = 128
"""Bytes before and after each block that no kernel may touch; a multiple of ALIGNMENT."""

_GUARD_BYTE, _FLOAT_POISON, _OTHER_POISON = 0x5C, 0xFF, 0xA5
"""All-ones bytes are NaN in every floating-point format; 0xA5 bytes are no boolean and an unlikely integer."""


@dataclass(frozen=True)
class Span:
    """The bytes from a tensor's first to its last element, and the tensor's position among the arguments."""

    position: int
    tensor: torch.Tensor
    role: str
    start: int
    end: int

    @staticmethod
    def from_tensor(position: int, tensor: torch.Tensor, role: str) -> Span:
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
    """The tensors with elements, in groups that share memory: each group covers one run of bytes. None is skipped."""
    spans = [Span.from_tensor(i, args[i], role) for i, role in enumerate(roles) if args[i] is not None and args[i].numel()]
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


Allocate = Callable[[int, torch.device], torch.Tensor]
"""(bytes, device of the caller's tensors) → that many bytes, as uint8, on that device or on the CPU."""


def new_memory(size: int, device: torch.device) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


class Block:
    """One group's memory, copied between two guards."""

    def __init__(self, group: Sequence[Span], allocate: Allocate = new_memory) -> None:
        self.group = group
        self.start, self.length = extent(group)
        self.whole = allocate(size_of(group), group[0].tensor.device)
        self.offset = GUARD + (self.start - self.whole.data_ptr()) % ALIGNMENT
        self.inner = self.whole[self.offset : self.offset + self.length]
        self.read = any(span.read for span in group)
        self.written = any(span.written for span in group)
        self._poison = poison_of(group[0].tensor.dtype)
        self.filled = False

    def clone_of(self, span: Span) -> torch.Tensor:
        """The tensor of `span` in this block, with its dtype, sizes and strides."""
        tensor = span.tensor
        offset = (self.whole.storage_offset() + self.offset + span.start - self.start) // tensor.element_size()
        empty = torch.empty(0, dtype=tensor.dtype, device=self.whole.device)
        return empty.set_(self.whole.untyped_storage(), offset, tensor.shape, tensor.stride())

    def restore(self) -> None:
        """Puts back what the caller's tensors hold, where a kernel reads it and may have changed it."""
        if not self.read or (self.filled and not self.written):
            return
        for span in self.group:
            self.inner[span.start - self.start : span.end - self.start].copy_(bytes_of(span))
        self.filled = True

    def poison(self) -> None:
        """Fills the guards, and all between them where nothing is to be read, with values that no right result
        holds."""
        self.whole[: self.offset].fill_(_GUARD_BYTE)
        self.whole[self.offset + self.length :].fill_(_GUARD_BYTE)
        if not self.read:
            self.inner.fill_(self._poison)

    def damaged(self, inputs: bool) -> bool:
        """Whether something was written since `poison` that is not part of an argument that kernels write to: a guard, a gap
        between the elements of a strided output, and, if they are to be looked at, an input."""
        head, tail = self.whole[: self.offset], self.whole[self.offset + self.length :]
        if bool((head != _GUARD_BYTE).any()) or bool((tail != _GUARD_BYTE).any()):
            return True
        if self.read and not self.written:
            if not inputs:
                return False
            same = (same_bytes(self._inner_of(span), bytes_of(span).to(self.inner.device)) for span in self.group)
            self.filled = all(same)
            return not self.filled
        gaps = None if self.read or not self.written else self._gaps()
        return gaps is not None and bool(((self.inner != self._poison) & gaps).any())

    def give_back(self) -> None:
        """Nothing of the caller's was touched."""

    def _inner_of(self, span: Span) -> torch.Tensor:
        return self.inner[span.start - self.start : span.end - self.start]

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


class Lent:
    """One group's memory itself, used if its device has no room for a copy. A copy of what kernels read of it is kept on the
    host, and `give_back` restores it. An output that nobody reads need not be kept, since the chosen kernel writes all of it.
    There are no guards."""

    def __init__(self, group: Sequence[Span]) -> None:
        self.group = group
        self.read = any(span.read for span in group)
        self.written = any(span.written for span in group)
        self._kept = [bytes_of(span).to("cpu", copy=True) for span in group] if self.read and self.written else []

    def clone_of(self, span: Span) -> torch.Tensor:
        return span.tensor.detach()

    def restore(self) -> None:
        for span, kept in zip(self.group, self._kept, strict=False):
            bytes_of(span).copy_(kept)

    def poison(self) -> None:
        if self.read or not self.written:
            return
        for span in self.group:
            own = span.tensor.detach()
            numbers = as_integers(torch.view_as_real(own) if own.is_complex() else own)
            byte = poison_of(own.dtype)
            numbers.fill_(int.from_bytes(bytes([byte]) * numbers.itemsize, "little", signed=numbers.dtype.is_signed))

    def damaged(self, inputs: bool) -> bool:
        return False

    def give_back(self) -> None:
        self.restore()


def extent(group: Sequence[Span]) -> tuple[int, int]:
    """(address, bytes) of a group."""
    start = min(span.start for span in group)
    return start, max(span.end for span in group) - start


def size_of(group: Sequence[Span]) -> int:
    """Bytes of a group's block."""
    return extent(group)[1] + 2 * GUARD + ALIGNMENT


def rounded(size: int) -> int:
    """Bytes that a block takes of memory in which others follow."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def bytes_of(span: Span) -> torch.Tensor:
    """The caller's memory from the tensor's first to its last element, as bytes; no copy."""
    tensor = span.tensor
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    offset = tensor.storage_offset() * tensor.element_size()
    return whole.set_(tensor.untyped_storage(), offset, (span.end - span.start,), (1,))


def same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two runs of bytes are equal. Compares eight bytes at a time if they are aligned alike: on a CPU, in an eighth of
    the time."""
    head = -first.storage_offset() % 8
    if (first.storage_offset() - second.storage_offset()) % 8 == 0 and first.numel() >= head + 8:
        end = head + (first.numel() - head) // 8 * 8
        parts = [(run[:head], run[head:end].view(torch.int64), run[end:]) for run in (first, second)]
        return all(torch.equal(one, other) for one, other in zip(*parts, strict=True))
    return torch.equal(first, second)


INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of integers by their bytes."""


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of real elements as integers; no copy."""
    return tensor.view(INTEGERS[tensor.itemsize])


def poison_of(dtype: torch.dtype) -> int:
    return _FLOAT_POISON if dtype.is_floating_point or dtype.is_complex else _OTHER_POISON


class Clones:
    """Arguments to try a kernel on: `args` is the flat argument list with every written tensor replaced.

    `roles` gives in, out, inout or scratch for each tensor; tensors come first in `args`. With `allocate`, all tensors are
    replaced by ones in the memory that it gives. With `lent_outputs`, kernels write outputs that nobody reads to the caller's
    own memory, which the waiting call needs anyway. Whoever is done with the clones calls `close`.
    """

    def __init__(
        self, args: Sequence[Any], roles: Sequence[str], allocate: Allocate | None = None, lent_outputs: bool = False
    ) -> None:
        self.roles = tuple(roles)
        flat = list(args)
        groups = overlapping(args, roles)
        if allocate is not None:
            self.blocks: list[Block | Lent] = [Block(group, allocate) for group in groups]
        else:
            written = [group for group in groups if any(span.written for span in group)]
            lent = [lent_outputs and not any(span.read for span in group) for group in written]
            own = [fits(size_of(g), g[0].tensor.device) and not at for g, at in zip(written, lent, strict=True)]
            self.blocks = [Block(g) if cloned else Lent(g) for g, cloned in zip(written, own, strict=True)]
        for block in self.blocks:
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
        return any(block.read and block.written for block in self.blocks)

    @property
    def written(self) -> list[int]:
        """Positions of the tensors that a kernel writes to."""
        return written_positions(self.args, self.roles)

    def restore(self) -> None:
        """Restores the caller's values where a kernel reads what it also writes."""
        with openmp.at_most(1):
            for block in self.blocks:
                block.restore()

    def poison(self) -> None:
        """Fills outputs that no kernel reads with NaN (integers: a rare value) and sets the guards."""
        with openmp.at_most(1):
            for block in self.blocks:
                block.poison()

    def damage(self, inputs: bool = True) -> int | None:
        """Position of an argument beside which a kernel wrote since `poison`, or in which, if the argument is only read; None
        if there is none. Reading all inputs takes time: a kernel that left them alone once may be trusted to."""
        with openmp.at_most(1):
            damaged = next((block for block in self.blocks if block.damaged(inputs)), None)
        if damaged is None:
            return None
        return next((span.position for span in damaged.group if span.written), damaged.group[0].position)

    def close(self) -> None:
        """Restores what the caller's tensors held, except outputs that the device had no room to clone."""
        for block in self.blocks:
            block.give_back()


def written_positions(args: Sequence[Any], roles: Sequence[str]) -> list[int]:
    """Positions of the tensors that a kernel writes to."""
    return [i for i, role in enumerate(roles) if role in ("out", "inout") and args[i] is not None]


def _unrepeated(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without the repetitions of expanded dimensions, which must not be written to."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def stand_ins(args: Sequence[Any], roles: Sequence[str], wide: bool = True, on_host: bool = False) -> tuple[Any, ...] | None:
    """The arguments copied for a reference to run on, sharing memory as before: with `wide` every floating-point tensor in
    float64 (complex: complex128), with `on_host` on the host.

    None where that is impossible: tensors of different dtypes share memory. What is only read and would stay as it is, where it
    is, is passed on uncopied.
    """
    flat = list(args)
    for group in overlapping(args, roles):
        own, there = group[0].tensor.dtype, group[0].tensor.device
        if any(span.tensor.dtype != own for span in group):
            return None
        dtype = _widest(own) if wide else own
        device = torch.device("cpu") if on_host else there
        if (dtype, device) == (own, there) and not any(span.written for span in group):
            continue
        size = group[0].tensor.element_size()
        start, length = extent(group)
        if any((span.start - start) % size for span in group):
            return None
        memory = torch.zeros(length // size, dtype=dtype, device=device)
        for span in group:
            tensor = span.tensor
            flat[span.position] = memory.as_strided(tensor.shape, tensor.stride(), (span.start - start) // size)
            _unrepeated(flat[span.position]).copy_(_unrepeated(tensor))
    if on_host:
        for position, tensor in enumerate(flat[: len(roles)]):
            if tensor is not None and not tensor.numel():
                flat[position] = tensor.cpu()
    return tuple(flat)


def _widest(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype
