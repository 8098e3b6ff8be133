"""Operands B that are integers of 8 or 4 bits in memory, and what makes elements of them, as data.

    B = q · s,  q = the integer - middle,  s = scales[n] or scales[n, k // group]

B is an int8 matrix (GemmSpec.b_dtype), or has a prologue that unpacks it. What a prologue makes of a byte is found by running
it on all 256 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.codegen import index_text
from polytile.ir import evaluate, expr, sizes
from polytile.ir.expr import Load, Node, Op
from polytile.ir.loop import Axis, Store
from polytile.matmul.cutlass.configs import STEP_BYTES
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.operands import symbol
from polytile.schedule.canonical import LoopKernel

SCALABLE = (torch.bfloat16, torch.float16)
"""Types of A: both multiply in pairs."""

CONVERSIONS = ("cast", "round_bf16", "round_f16")
BYTES = torch.arange(256)
INTEGERS: Mapping[tuple[int, str, bool], torch.Tensor] = {
    (8, "int8_t", True): (BYTES.to(torch.uint8).view(torch.int8).double())[:, None],
    (8, "uint8_t", True): BYTES.double()[:, None],
    (4, "uint8_t", True): torch.stack([BYTES & 15, BYTES >> 4], -1).double(),
    (4, "uint8_t", False): torch.stack([BYTES >> 4, BYTES & 15], -1).double(),
}
"""The integers of each byte, the first along k first, by their bits, C++ type, and whether the low half comes first."""


@dataclass(frozen=True)
class Scale:
    """Where the factor of an integer is: its index in a tensor, by the axes of B in bytes along `k` and in columns `n`. `group`:
    neighbours along k that share one; 0: all do."""

    tensor: str
    index: sympy.Expr
    k: sympy.Symbol
    n: sympy.Symbol
    group: int

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(sorted(each.name for each in self.index.free_symbols - {self.k, self.n}))


@dataclass(frozen=True)
class Weights:
    """`tensor` holds bytes side by side along k; its columns are `apart` bytes apart."""

    tensor: str
    apart: sympy.Expr
    bits: int = 8
    number: str = "int8_t"
    low_first: bool = True
    middle: int = 0
    scale: Scale | None = None

    @property
    def members(self) -> dict[str, str]:
        """Type of each argument of the scales by its name, in the order in which a launch passes them."""
        if self.scale is None:
            return {}
        return {self.scale.tensor: "const Element *__restrict__ ", **dict.fromkeys(self.scale.symbols, "long long ")}

    def text(self) -> str:
        """The struct of the scales."""
        value = "1.0f"
        if self.scale is not None:
            place = self.scale.index.xreplace({self.scale.k: sympy.Symbol("byte", integer=True, nonnegative=True)})
            place = place.xreplace({self.scale.n: sympy.Symbol("n", integer=True, nonnegative=True)})
            value = f"float({self.scale.tensor}[{index_text.index(place, dialect=index_text.CPP)}])"
        return "\n".join([
            "struct WeightScales {",
            *(f"    {kind}{name};" for name, kind in self.members.items()),
            "    CUTLASS_DEVICE float at(long long k, long long n) const",
            "    {",
            f"        [[maybe_unused]] long long byte = k / {8 // self.bits};",
            f"        return {value};",
            "    }",
            "};",
        ])  # fmt: skip


def weights(kernel: GemmKernel) -> Weights | None:
    """B as integers in memory, read along k; None if it is not."""
    spec, computed = kernel.spec, kernel.prologues[1]
    alone = not (spec.batched or spec.grouped or kernel.packed) and kernel.second is None and kernel.scales is None
    if not alone or kernel.in_dtype not in SCALABLE or kernel.layouts != ("k", "k") or kernel.prologues[0] is not None:
        return None
    if computed is not None:
        return _unpacked(computed, kernel.in_dtype)
    return Weights("B", symbol("b_stride_n")) if kernel.operand_dtypes == (kernel.in_dtype, torch.int8) else None


def _unpacked(prologue: LoopKernel, dtype: torch.dtype) -> Weights | None:
    """The integers that a prologue unpacks, its elements being of `dtype`."""
    _, k, n = (axis.symbol for axis in prologue.loop.axes)
    pairs = [_factors(store.value) for store in prologue.loop.stores]
    bytes_read = {load for number, _ in pairs for load in expr.loads(number)}
    if len(bytes_read) != 1 or prologue.loop.reduced or any(store.mode != "set" or store.mask for store in prologue.loop.stores):
        return None
    (byte,), scales = bytes_read, {scale for _, scale in pairs}
    place = _matrix_place(byte, k, n)
    if place is None or prologue.storage(byte.buffer) not in (torch.int8, torch.uint8) or len(scales) != 1:
        return None
    integers = _integers(prologue, [number for number, _ in pairs])
    (factor,) = scales
    scale = _scale(factor, prologue, dtype, len(pairs)) if factor is not None else None
    if integers is None or (factor is not None and scale is None):
        return None
    return replace(integers, tensor=byte.buffer, apart=place, scale=scale)


def _factors(node: Node) -> tuple[Node, Node | None]:
    """A number, and what it is multiplied by: a load of a float."""
    inner = _unconverted(node)
    if isinstance(inner, Op) and inner.name == "mul":
        for number, scale in (inner.args, inner.args[::-1]):
            if isinstance(_unconverted(scale), Load) and scale.dtype.is_floating_point and not _of_floats(number):
                return number, _unconverted(scale)
    return node, None


def _unconverted(node: Node) -> Node:
    while isinstance(node, Op) and node.name in CONVERSIONS:
        node = node.args[0]
    return node


def _of_floats(node: Node) -> bool:
    return any(load.dtype.is_floating_point for load in expr.loads(node))


def _matrix_place(load: Load, k: sympy.Symbol, n: sympy.Symbol) -> sympy.Expr | None:
    """The bytes between columns of a matrix that begins at its buffer's first byte, with bytes side by side along `k`."""
    apart = sizes.coefficient(load.index, n)
    begins = sizes.substitute(load.index, {k: sizes.ZERO, n: sizes.ZERO})
    plain = not load.indirect and load.mask is None and sizes.coefficient(load.index, k) == 1
    return apart if plain and begins == 0 and apart is not None and apart != 0 else None


def _integers(prologue: LoopKernel, numbers: list[Node]) -> Weights | None:
    """How the numbers of a point follow from its byte; None if they are no such integers."""
    loop, (item, k, n) = prologue.loop, (axis.symbol for axis in prologue.loop.axes)
    (byte,) = {load for number in numbers for load in expr.loads(number)}
    stores = tuple(Store("B", len(numbers) * k + place, number) for place, number in enumerate(numbers))
    axes = Axis(item, sizes.ONE), Axis(k, sympy.Integer(len(BYTES))), Axis(n, sizes.ONE)
    one = replace(loop, axes=axes, stores=stores)
    made = torch.empty(len(BYTES) * len(numbers), dtype=torch.float64)
    values = dict.fromkeys(byte.index.free_symbols - {item, k, n}, 1)
    held = BYTES.to(torch.uint8).view(prologue.storage(byte.buffer))
    evaluate.run_loop(one, {byte.buffer: held, "B": made}, values)
    for (bits, number, low_first), integers in INTEGERS.items():
        if integers.shape[1] == len(numbers):
            middle = integers - made.reshape(integers.shape)
            least, most = int(middle.min()), int(middle.max())
            if least == most == middle.flatten()[0] and 0 <= least < 1 << bits:
                return Weights("", sizes.ZERO, bits, number, low_first, least)
    return None


def _scale(load: Node, prologue: LoopKernel, dtype: torch.dtype, together: int) -> Scale | None:
    """A scale of B's type, the same for whole steps along k."""
    assert isinstance(load, Load)
    _, k, n = (axis.symbol for axis in prologue.loop.axes)
    if load.indirect or load.mask is not None or prologue.storage(load.buffer) != dtype:
        return None
    divisions = {part for part in load.index.atoms(FloorDiv) if part.args[0] == k and part.args[1].is_Integer}
    if k in load.index.xreplace(dict.fromkeys(divisions, sizes.ZERO)).free_symbols:
        return None
    group = together * int(sympy.gcd([part.args[1] for part in divisions])) if divisions else 0
    return Scale(load.buffer, load.index, k, n, group) if group % (STEP_BYTES // dtype.itemsize) == 0 else None
