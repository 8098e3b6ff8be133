"""The text of a product for a config and the facts of a regime, and how it is launched (docs/decisions/0020)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sympy
import torch
from sympy import Min
from torch.utils._sympy.functions import FloorDiv

from polytile.codegen.triton.kernel import Argument, Descriptor, Kind, Launch, TritonKernel
from polytile.errors import LoweringError
from polytile.matmul.cutlass.configs import WARPS, shared_bytes
from polytile.matmul.cutlass.finish import epilogue
from polytile.matmul.cutlass.numbers import NUMBERS
from polytile.matmul.triton.operands import symbol
from polytile.problem import Config
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

BODY, ARITHMETIC = (Path(__file__).with_name(name) for name in ("product.h", "arithmetic.h"))

SWIZZLE_128_BYTES = 3

GROUP = 8
"""Rows of clusters whose blocks follow each other, column by column: what they read of B stays in the L2 cache."""


@dataclass(frozen=True)
class Operand:
    """A or B as it lies in memory: its tensor, the length of its rows' axis, whether k is the axis of stride 1, and the stride of
    the other axis."""

    tensor: str
    length: str
    along_k: bool
    stride: str

    def descriptor(self, rows: int, config: Config) -> Descriptor:
        """Of copies of `rows` rows, or of a run of them where the operand lies along them."""
        k, wide = symbol("K"), int(config["k"])
        if self.along_k:
            return Descriptor(self.tensor, (symbol(self.length), k), (symbol(self.stride),), (rows, wide))
        return Descriptor(self.tensor, (k, symbol(self.length)), (symbol(self.stride),), (wide, wide))


def operands(kernel: GemmKernel) -> tuple[Operand, Operand]:
    """A and B."""
    a, b = (layout == "k" for layout in kernel.layouts)
    return (
        Operand("A", "M", a, "a_stride_m" if a else "a_stride_k"),
        Operand("B", "N", b, "b_stride_n" if b else "b_stride_k"),
    )


def able(kernel: GemmKernel) -> bool:
    """Whether CUTLASS has a product of these types and layouts, and its epilogue has a text: one item, operands in memory as the
    tensor cores take them. Of other types than 16-bit floats they read both along k alone."""
    spec, dtype = kernel.spec, kernel.in_dtype
    plain = not any(kernel.prologues) and kernel.second is None and kernel.scales is None and not kernel.packed
    types = dtype in NUMBERS and kernel.operand_dtypes == (dtype, dtype) and (dtype != torch.float32 or kernel.tf32)
    if not plain or spec.grouped or spec.batched or not types or "any" in kernel.layouts:
        return False
    if NUMBERS[dtype].along_k and kernel.layouts != ("k", "k"):
        return False
    try:
        epilogue(kernel)
    except LoweringError:
        return False
    return True


def generate(kernel: GemmKernel, config: Config, facts: Facts, sms: int) -> TritonKernel:
    """The launch. Raises LoweringError where the facts do not say that the copy engine takes the operands: they begin at
    multiples of 16 bytes, and so do their rows. Of a regime's rows it is only known whether they are a multiple of 16 elements
    apart."""
    a, b = operands(kernel)
    for operand in (a, b):
        if operand.tensor not in facts.aligned or not facts.divides(operand.stride):
            raise LoweringError(
                f"{operand.tensor} does not begin at a multiple of 16 bytes, or its rows are not a multiple of 16 elements apart"
            )
    last = epilogue(kernel)
    cluster, m, n = (int(config[name]) for name in ("cluster", "m", "n"))
    arguments = (
        Argument(Kind.DESCRIPTOR, "a", "map", 0), Argument(Kind.DESCRIPTOR, "b", "map", 1),
        *(Argument(Kind.SYMBOL, name, "i32") for name in "MNK"),
        *(Argument(Kind.TENSOR, name, "*") for name in (last.stored, *last.read)),
        *(Argument(Kind.SYMBOL, name, "i64") for name in last.symbols),
    )  # fmt: skip
    clusters = FloorDiv(symbol("M") + m * cluster - 1, m * cluster) * FloorDiv(symbol("N") + n - 1, n)
    grid = Min(clusters, sympy.Integer(sms // cluster)) * cluster
    one = sympy.Integer(1)
    return TritonKernel((
        Launch(
            source(kernel, config, last.vectors(facts)), arguments, (), (), WARPS, 0,
            (grid, one, one), descriptors=(a.descriptor(m, config), b.descriptor(n // cluster, config)), cluster=cluster,
            own=(("shared", shared_bytes(config, kernel.in_dtype.itemsize)),),
        ),
    ))  # fmt: skip


def copied(kernel: GemmKernel, descriptor: Descriptor) -> tuple[int, ...]:
    """How elements are copied by a descriptor, in the form of codegen/triton/compile.py's reports."""
    dtype = kernel.in_dtype
    return SWIZZLE_128_BYTES, dtype.itemsize, NUMBERS[dtype].driver, *descriptor.block


def source(kernel: GemmKernel, config: Config, vectors: bool) -> str:
    """CUDA C++. `vectors`: rows of C begin at multiples of 16 bytes."""
    (a, b), number, last = operands(kernel), NUMBERS[kernel.in_dtype], epilogue(kernel)
    numbers = {
        "BM": config["m"], "BN": config["n"], "BK": config["k"], "STAGES": config["stages"], "CLUSTER": config["cluster"],
        "GROUP": GROUP, "SHARED": shared_bytes(config, kernel.in_dtype.itemsize),
    }  # fmt: skip
    flags = {
        "PINGPONG": bool(config["pingpong"]), "A_ALONG_K": a.along_k, "B_ALONG_K": b.along_k, "PROMOTED": number.promoted,
        "C_VECTORS": vectors,
    }  # fmt: skip
    lines = [
        "#include <cutlass/numeric_types.h>",
        f"using Element = {number.name};",
        f"using Sum = {number.sums};",
        f"using Output = {last.output};",
        *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
        *(f"constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()),
    ]
    return "\n".join([*lines, "", ARITHMETIC.read_text(), last.text(number.sums), "", BODY.read_text()])
