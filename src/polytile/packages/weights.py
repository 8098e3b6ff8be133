"""The file of a package's weights: safetensors, which is a length, a JSON header, and the bytes of all tensors.

Tensors whose bytes are a multiple of 64 come first, so that they begin at multiples of 64: the format has no gaps.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from polytile.errors import PackageError

ALIGNMENT = 64
HEADER = 8
"""Bytes of the length of the header."""

TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
}  # fmt: skip
"""The format's names of element types."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor on its way to the file: its name there, and all bytes between its first and its last element."""

    name: str
    tensor: torch.Tensor

    @property
    def elements(self) -> int:
        """From the first element to the last."""
        if self.tensor.numel() == 0:
            return 0
        return 1 + sum((n - 1) * step for n, step in zip(self.tensor.shape, self.tensor.stride(), strict=True))

    @property
    def bytes(self) -> int:
        return self.elements * self.tensor.element_size()

    @property
    def shape(self) -> list[int]:
        """Its sizes, or the number of its elements if it is not dense in row-major order."""
        return list(self.tensor.shape) if self.tensor.is_contiguous() else [self.elements]

    def content(self) -> memoryview:
        flat = self.tensor.as_strided((self.elements,), (1,)).cpu()
        array = (ctypes.c_char * self.bytes).from_address(flat.data_ptr())
        array.keep = flat  # type: ignore[attr-defined]
        return memoryview(array).cast("B")


class Weights:
    """The tensors of one package. Equal views of one memory are written once."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        own = {name: Stored(name, tensor.detach()) for name, tensor in tensors.items()}
        first: dict[object, Stored] = {}
        self._shared = {name: first.setdefault(_identity(each.tensor), each) for name, each in own.items()}
        self._order = sorted(first.values(), key=lambda each: each.bytes % ALIGNMENT != 0)
        for each in self._order:
            if each.tensor.dtype not in TYPES:
                raise PackageError(f"the weight {each.name!r} has the type {each.tensor.dtype}, for which packages have no form.")
        self.header = self._header()
        ends = HEADER + len(self.header)
        self._offsets: dict[str, int] = {}
        for each in self._order:
            self._offsets[each.name] = ends
            ends += each.bytes
        self.bytes = ends

    def offset(self, name: str) -> int:
        """Where a tensor begins in the file, in bytes."""
        return self._offsets[self._shared[name].name]

    def size(self, name: str) -> int:
        """The bytes of a tensor in the file."""
        return self._shared[name].bytes

    def chunks(self) -> Iterator[bytes | memoryview]:
        """The content of the file."""
        yield len(self.header).to_bytes(HEADER, "little") + self.header
        for each in self._order:
            if each.bytes:
                yield each.content()

    def _header(self) -> bytes:
        entries, begin = dict[str, object](), 0
        for each in self._order:
            ends: Sequence[int] = (begin, begin + each.bytes)
            entries[each.name] = {"dtype": TYPES[each.tensor.dtype], "shape": each.shape, "data_offsets": ends}
            begin += each.bytes
        text = json.dumps(entries).encode()
        return text + b" " * (-(HEADER + len(text)) % ALIGNMENT)


def _identity(tensor: torch.Tensor) -> object:
    return tensor.data_ptr() or id(tensor), tensor.shape, tensor.stride(), tensor.dtype
