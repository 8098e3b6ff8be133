"""What the Triton generator hands out: launches, each one module text with one kernel, and the scratch memory they share.

    tensors, integers ──► launch 0 ──► (scratch) ──► launch 1

The launches of a TritonKernel run one after another on one stream. Grid and scratch sizes are sympy expressions in the
kernel's size symbols, made of +, *, floor-division, Min and Max.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from polytile.problem import digest

if TYPE_CHECKING:  # processes that compile import neither
    import sympy
    import torch

KERNEL = "polytile_kernel"
"""Name of the `@triton.jit` function in every source."""


class Kind(enum.Enum):
    """What an argument of a launch is. ERROR is one int32 in memory that the kernel sets to the number (from 1) of a
    run-time check that failed, and otherwise leaves alone. A DESCRIPTOR tells hardware where the blocks of a matrix are."""

    TENSOR = "tensor"
    SYMBOL = "symbol"
    SCRATCH = "scratch"
    ERROR = "error"
    DESCRIPTOR = "descriptor"


@dataclass(frozen=True)
class Argument:
    """One run-time argument of the function, in order: `name` is that in the source and, for tensors and symbols, in the
    LoopKernel; `index` numbers scratch and descriptors; `type` is Triton's ("*bf16", "*i1", "i32", "i64",
    "tensordesc<bf16[128,64]>")."""

    kind: Kind
    name: str
    type: str
    index: int = 0


@dataclass(frozen=True)
class Scratch:
    """Device memory for the duration of one call: `size` elements of `dtype`, which may be 0. `zeroed`: all bits must be
    zero before the first launch; the kernel then leaves it zero again, so that memory kept from call to call on one
    stream needs zeroing once only."""

    dtype: torch.dtype
    size: sympy.Expr
    zeroed: bool = False


@dataclass(frozen=True)
class Descriptor:
    """The matrix `tensor`, whose elements lie side by side along its rows, as hardware copies blocks of it (TMA): its rows and
    columns, how many elements its rows are apart, and rows and columns of a block. It is made on the host for each launch and
    passed by value."""

    tensor: str
    shape: tuple[sympy.Expr, sympy.Expr]
    stride: sympy.Expr
    block: tuple[int, int]


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `source` imports triton and tl alone; `arguments` are what is passed, in order; `constants` are the
    constexpr parameters that follow them; `divisible` has the powers of two up to 16 that divide arguments, by name (integers:
    their value; pointers: their address). A grid with a dimension of 0 launches nothing. `overlaps`: the kernel itself waits
    for the one before it on the stream ahead of its first access to memory, and may be started before that one has ended.
    `cluster`: so many programs that follow each other run at the same time and may wait for each other. `own`: what a config says
    to one maker's compiler alone."""

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
        """Digest of everything that decides the compiled code (not the grid)."""
        parts = (self.source, self.arguments, self.constants, self.divisible, self.num_warps, self.num_stages, self.own)
        return digest(repr(parts))


@dataclass(frozen=True)
class TritonKernel:
    """A generated kernel: what to launch, in order, and the scratch memory shared by the launches."""

    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...] = ()

    @property
    def text(self) -> str:
        """All that decides what the kernel does, in one text. Comments are left out: the same kernel from another operator is the
        same."""
        return repr((tuple(replace(launch, source=_code(launch.source)) for launch in self.launches), self.scratch))


def _code(source: str) -> str:
    return "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))
