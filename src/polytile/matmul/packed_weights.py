"""Products by a weight that stays as it is: panels of it are made once, kept, and passed to every call.

    mm(A, B, C, sizes)   →   P = site.find(B); mm(A, B, C, P, sizes, P is there)

`site` (runtime/weights.py) looks whether the weight is what it was and makes its panels (cpp/gemm/panels.py) anew when it is
not; where it has none, P is absent. Whether P is there is part of the regime, so that candidates which read it take part where
it is there, beside those which read B, and what is chosen and measured says so. Making the panels is no part of what is
measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import sympy
import torch

from polytile import options
from polytile.ir.program import KEPT, Buffer, Kept, Template, View
from polytile.matmul.cpp import GemmSpec, panels
from polytile.runtime import toolchain, weights
from polytile.schedule.canonical import TensorArg

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel, ProductSite

PANELS = "P"
"""The argument's name. Its type is bytes: nothing but the kernels that read it knows what they mean."""

SMALLEST = 1 << 15
"""Elements of a weight from which on its panels are kept: products by smaller ones take few µs, and copying is little of it."""


def with_kept(
    kernel: GemmKernel, site: ProductSite, template: Template, buffers: Mapping[str, Buffer]
) -> tuple[GemmKernel, ProductSite]:
    """The kernel and its call with panels of B besides, where B is a weight of which they can be kept; else as they are."""
    b, buffer = template.b, buffers[template.b.buffer]
    if not _keepable(kernel, b, buffer):
        return kernel, site
    _, k, n = (int(size) for size in b.sizes)
    lanes, limit = lanes_of(kernel.spec), options.get("packed_weights_mib") << 20
    recipe = weights.Recipe(
        ("panels", lanes, b.dtype), (k, n), (int(b.strides[1]), int(b.strides[2])), int(b.offset),
        panels.size_of(k, n, b.dtype, lanes), lambda matrix: panels.make(matrix, lanes),
    )  # fmt: skip
    argument = Kept(b, weights.Site(recipe, limit, eager=buffer.weight == "constant"))
    tensors = (*kernel.tensors, TensorArg(PANELS, torch.uint8, "in"))
    passed = replace(site, buffers=(*site.buffers, argument), sizes=(*site.sizes, KEPT))
    return replace(kernel, tensors=tensors, kept=True), passed


def _keepable(kernel: GemmKernel, b: View, buffer: Buffer) -> bool:
    numbers = (*b.sizes, *b.strides, b.offset)
    if not buffer.weight or not all(number.is_Integer for number in numbers) or buffer.dtype != b.dtype:
        return False
    single = not kernel.spec.batched and kernel.second is None
    plain = single and not any(kernel.prologues) and b.dtype == kernel.in_dtype in panels.TOGETHER
    large = int(b.sizes[1]) * int(b.sizes[2]) >= SMALLEST and int(b.sizes[2]) > 1
    return plain and large and buffer.device.type == "cpu" and options.get("packed_weights_mib") > 0 and weights.available()


def lanes_of(spec: GemmSpec) -> int:
    """Sums in a vector of this machine. Raises CompilerMissing where there is no compiler to ask."""
    lanes = toolchain.find().lanes
    return max(1, lanes // 2) if spec.accumulator == "float64" else lanes


def panels_for(kernel: GemmKernel, b: torch.Tensor, size: Mapping[str, int]) -> torch.Tensor | None:
    """The panels of an operand B of the kernel's integers, None where they say that there are none."""
    if not size.get(KEPT.name):
        return None
    strides = size["b_stride_k"], size["b_stride_n"]
    return panels.make(b.as_strided((size["K"], size["N"]), strides, b.storage_offset()), lanes_of(kernel.spec))


def assumed(argument: Kept | None) -> dict[sympy.Symbol, int]:
    """What is taken for KEPT ahead of calls: weights that nothing is expected to change will be there."""
    return {} if argument is None else {KEPT: int(argument.site.eager)}


__all__ = ["PANELS", "assumed", "lanes_of", "panels_for", "with_kept"]
