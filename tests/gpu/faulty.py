"""Kernels for y = 2 x on a GPU, as a user might write them, with what may be wrong with a kernel there."""

from __future__ import annotations

from dataclasses import dataclass

import sympy
import torch
import triton
import triton.language as tl

from polytile.candidates.triton import Specialised, TritonCandidate, Work
from polytile.codegen.triton.kernel import Argument, Kind, Launch, TritonKernel
from polytile.problem import Config
from polytile.runtime.cuda import device
from polytile.schedule.canonical import TensorArg
from polytile.schedule.facts import Facts


@triton.jit
def _beyond(y, distance):
    tl.store(y + distance.to(tl.int64) * 4096, 1.0)


@triton.jit
def _until_it_changes(y):
    before = tl.load(y)
    while tl.load(y, volatile=True) == before:
        pass


def double(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.copy_(x * 2)


def illegal_address(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.zero_()
    _beyond[(1,)](y, 1 << 30)


def endless_loop(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.zero_()
    _until_it_changes[(1,)](y)


def out_of_memory(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    torch.empty(1 << 42, dtype=torch.uint8, device=x.device)


# The same as they would be generated.

HEAD = """
import triton
import triton.language as tl

@triton.jit
def polytile_kernel(x, y, n, X: tl.constexpr):
    at = tl.program_id(0) * X + tl.arange(0, X)
    inside = at < n
"""
BODIES = {
    "right": "tl.store(y + at, tl.load(x + at, mask=inside) * 2, mask=inside)",
    "illegal_address": "tl.store(y + at + (n.to(tl.int64) << 40), tl.load(x + at, mask=inside), mask=inside)",
    "beyond_the_tail": "tl.store(y + at, tl.load(x + at, mask=inside) * 2)",
    "endless_loop": "before = tl.load(y)\n    while tl.load(y, volatile=True) == before:\n        pass",
    "traps": 'tl.inline_asm_elementwise("trap; mov.u32 $0, $1;", "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1)',
}


@dataclass(frozen=True)
class Doubling:
    """y = 2 x over n numbers, as a generator is given it."""

    tensors: tuple[TensorArg, ...] = (TensorArg("x", torch.float32, "in"), TensorArg("y", torch.float32, "out"))
    symbols: tuple[sympy.Symbol, ...] = (sympy.Symbol("n", integer=True, positive=True),)
    text: str = "y = 2 x"


def generated(name: str, facts: device.DeviceFacts, index: int | None = 0) -> Specialised:
    """A candidate made of the Triton source of that name."""
    kernel = Doubling()
    (n,) = kernel.symbols
    arguments = (
        Argument(Kind.TENSOR, "x", "*fp32"), Argument(Kind.TENSOR, "y", "*fp32"), Argument(Kind.SYMBOL, "n", "i32"),
    )  # fmt: skip
    grid = ((n + 255) // 256, sympy.Integer(1), sympy.Integer(1))
    one = Launch(f"{HEAD}    {BODIES[name]}\n", arguments, (("X", 256),), (("x", 16), ("y", 16)), 4, 1, grid)
    work = Work(kernel, "double", facts, index, lambda config, known: TritonKernel((one,)))
    return TritonCandidate(name, Config.of(name=name), work, lambda sizes: True, lambda sizes: 1e-5).specialise(Facts())
