"""Products by a weight that rarely changes: the weight is packed into panels once, and every call passes the panels.

    mm(A, B, C, sizes)   →   P = find(B); mm(A, B, C, P, sizes, P is there)

`find` belongs to a Site (runtime/weights.py). It checks that the weight has not changed and packs it again (cpp/panels.py) where
it has; where there is no packed copy, P is None. Whether P is there is part of the regime: candidates that read P take part only
where it is there, beside those that read B, and a measurement says which case it was. Packing is not part of what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import sympy
import torch

from polytile import options
from polytile.ir.program import IS_PACKED, Buffer, PackedWeight, Template, View
from polytile.matmul.cpp import GemmSpec, panels
from polytile.runtime import toolchain, weights
from polytile.schedule.canonical import TensorArg

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel, ProductSite

PANELS = "P"
"""The argument's name. Its type is bytes: nothing but the kernels that read it knows what they mean."""

SMALLEST = 1 << 15
"""Elements of a weight from which on it is packed: products by smaller ones take few µs, of which copying is a small part."""


def with_packed_weight(
    kernel: GemmKernel, site: ProductSite, template: Template, buffers: Mapping[str, Buffer]
) -> tuple[GemmKernel, ProductSite]:
    """The kernel and its call with a packed B as well, where B is a weight that can be packed; otherwise as they are."""
    b, buffer = template.b, buffers[template.b.buffer]
    if not _can_pack(kernel, b, buffer):
        return kernel, site
    argument = PackedWeight(b, lanes_of(kernel.spec), buffer.weight == "constant")
    tensors = (*kernel.tensors, TensorArg(PANELS, torch.uint8, "in"))
    passed = replace(site, buffers=(*site.buffers, argument), sizes=(*site.sizes, IS_PACKED))
    return replace(kernel, tensors=tensors, packed=True), passed


def site_of(argument: PackedWeight) -> weights.Site:
    """What looks up the packed copy in each call, under the limit of the option `packed_weights_mib`; with stall="never" no call
    waits for it."""
    view, lanes = argument.view, argument.lanes
    _, k, n = (int(size) for size in view.sizes)
    recipe = weights.Recipe(
        ("panels", lanes, view.dtype), (k, n), (int(view.strides[1]), int(view.strides[2])), int(view.offset),
        panels.size_of(k, n, view.dtype, lanes), lambda matrix: panels.make(matrix, lanes),
    )  # fmt: skip
    return weights.Site(recipe, options.get("packed_weights_mib") << 20, eager=argument.constant, waits=waits_for_packing())


def waits_for_packing() -> bool:
    """Whether calls of a program that is compiled now wait until weights are packed."""
    return bool(options.get("stall") != "never")


def _can_pack(kernel: GemmKernel, b: View, buffer: Buffer) -> bool:
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
    """Operand B packed, for the kernel's integers `size`; None where these say that it is not packed."""
    if not size.get(IS_PACKED.name):
        return None
    strides = size["b_stride_k"], size["b_stride_n"]
    return panels.make(b.as_strided((size["K"], size["N"]), strides, b.storage_offset()), lanes_of(kernel.spec))


def assumed_sizes(argument: PackedWeight | None) -> dict[sympy.Symbol, int]:
    """The value of IS_PACKED that is assumed ahead of calls: 1 for weights that nothing is expected to change."""
    return {} if argument is None else {IS_PACKED: int(argument.constant)}
