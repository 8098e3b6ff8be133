"""The Triton generator's results: launches, each one source text with one kernel, and the scratch memory they share.

    tensors, integers ──► launch 0 ──► (scratch) ──► launch 1

The launches of a TritonKernel run one after another on one stream. Grid and scratch sizes are sympy expressions in the
kernel's size symbols, made of +, *, floor division, Min and Max.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polytile.problem import digest

if TYPE_CHECKING:  # compiler processes import neither
    import sympy
    import torch


class Kind(enum.Enum):
    """The kind of a launch argument. ERROR is an int32 in memory, which the kernel sets to the number (from 1) of a
    failed run-time check. A DESCRIPTOR tells the hardware where the blocks of a matrix are."""

    TENSOR = "tensor"
    SYMBOL = "symbol"
    SCRATCH = "scratch"
    ERROR = "error"
    DESCRIPTOR = "descriptor"


@dataclass(frozen=True)
class Argument:
    """One run-time argument of the function, in order.

    `name` is its name in the source and, for tensors and symbols, in the LoopKernel. `index` numbers scratch memory and
    descriptors. `type` is Triton's ("*bf16", "*i1", "i32", "i64", "tensordesc<bf16[128,64]>").
    """

    kind: Kind
    name: str
    type: str
    index: int = 0


@dataclass(frozen=True)
class Scratch:
    """Device memory for the duration of one call: `size` elements of `dtype`, possibly 0. `zeroed` memory must be all
    zero before the first launch, and the kernel leaves it so. Memory reused on one stream thus needs zeroing only once."""

    dtype: torch.dtype
    size: sympy.Expr
    zeroed: bool = False


@dataclass(frozen=True)
class Descriptor:
    """The tensor `tensor`, contiguous along its last axis, whose blocks the hardware copies (TMA): its shape, the strides
    in elements of all axes but the last, and the shape of a block. The host makes the descriptor for each launch and
    passes it by value."""

    tensor: str
    shape: tuple[sympy.Expr, ...]
    strides: tuple[sympy.Expr, ...]
    block: tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """One kernel launch. A grid with a dimension of 0 launches nothing.

    Attributes
    ----------
    source : str
        Imports only triton and tl.
    arguments : tuple of Argument
        The arguments, in order.
    constants : tuple of (str, int)
        The constexpr parameters that follow them.
    divisible : tuple of (str, int)
        Powers of two up to 16 that divide arguments: the value of an integer, the address of a pointer.
    num_warps, num_stages : int
        Triton's options.
    grid : tuple of sympy.Expr
        The launch grid.
    overlaps : bool
        Whether the kernel waits for the preceding one on the stream before its first memory access, so that it may
        start before that one has ended.
    descriptors : tuple of Descriptor
        The descriptors among the arguments.
    cluster : int
        Number of consecutive programs that run concurrently and may synchronise.
    own : tuple of (str, int)
        Options for one vendor's compiler.
    """

    source: str
    arguments: tuple[Argument, ...]
    constants: tuple[tuple[str, int], ...]
    divisible: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    grid: tuple[sympy.Expr, sympy.Expr, sympy.Expr]
    overlaps: bool = False
    descriptors: tuple[Descriptor, ...] = ()
    cluster: int = 1
    own: tuple[tuple[str, int], ...] = ()

    @property
    def signature(self) -> dict[str, str]:
        """Triton's signature: argument name → type, constants last."""
        return {a.name: a.type for a in self.arguments} | {name: "constexpr" for name, _ in self.constants}

    @property
    def identity(self) -> str:
        """Digest of everything that determines the compiled code (without the grid)."""
        parts = (self.source, self.arguments, self.constants, self.divisible, self.num_warps, self.num_stages, self.own)
        return digest(repr(parts))


@dataclass(frozen=True)
class TritonKernel:
    """A generated kernel: its launches, in order, and the scratch memory that they share."""

    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()

    @property
    def text(self) -> str:
        """Everything that determines what the kernel does, as one text. Comments are omitted, so that equal kernels of
        different operators have equal texts."""
        return repr((tuple(replace(launch, source=_code(launch.source)) for launch in self.launches), self.scratch))


def _code(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))
