"""Memory: buffers, and strided views of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
import torch

from polytile.ir import sizes as algebra

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Buffer:
    """A strided block of memory.

    Attributes
    ----------
    sizes, strides
        Sympy expressions; strides are in elements.
    role
        "input", "temp", or "constant" for a tensor that the graph holds.
    weight
        Set for inputs and constants that rarely change between calls, such as a module's parameters and buffers: "constant" if
        nothing is expected to change the tensor, "trained" if training does. None for all others.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    device: torch.device = CPU
    role: str = "temp"
    weight: str | None = None

    @property
    def numel(self) -> sympy.Expr:
        return algebra.product(self.sizes)

    @property
    def storage_size(self) -> sympy.Expr:
        """Number of elements from the first to the last inclusive, if no size is 0."""
        return sum(((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True)), algebra.ONE)

    @property
    def emptied_by(self) -> frozenset[sympy.Expr]:
        """Factors of the sizes that may be 0. If one is, the buffer has no memory, regardless of `storage_size`."""
        factors = {factor for n in self.sizes for factor in sympy.Mul.make_args(n)}
        return frozenset(factor for factor in factors if not algebra.is_nonnegative(factor - 1))

    def index(self, point: tuple[sympy.Expr, ...]) -> sympy.Expr:
        """Offset, in elements, of the element at `point`."""
        return sum((i * s for i, s in zip(point, self.strides, strict=True)), algebra.ZERO)


@dataclass(frozen=True)
class View:
    """A strided view of a buffer. `offset` and `strides` count elements of the buffer's own dtype. `dtype` differs from the
    buffer's only in a bit-cast view."""

    buffer: str
    dtype: torch.dtype
    sizes: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    offset: sympy.Expr = algebra.ZERO

    def index(self, point: tuple[sympy.Expr, ...]) -> sympy.Expr:
        return self.offset + sum((i * s for i, s in zip(point, self.strides, strict=True)), algebra.ZERO)

    def passed(self, buffers: Mapping[str, Buffer]) -> str | View:
        """What a kernel is given that takes strides as integers: the name of the buffer if the view starts at its first element,
        else the view."""
        return self.buffer if self.offset == 0 and self.dtype == buffers[self.buffer].dtype else self


def whole(buffer: Buffer) -> View:
    """The view of all of a buffer, in its own sizes and strides."""
    return View(buffer.name, buffer.dtype, buffer.sizes, buffer.strides)
