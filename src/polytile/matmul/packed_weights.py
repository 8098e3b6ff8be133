"""Products by a weight that rarely changes: the weight is packed into panels once, and every call passes the panels.

    mm(A, B, C, sizes)   →   P = find(B); mm(A, B, C, P, sizes, P is there)

`find` belongs to a Site (runtime/weights.py). It checks that the weight has not changed, and repacks it (cpp/panels.py) if it
has. P is None if there is no packed copy. Whether P exists is part of the regime: candidates that read P compete with those that
read B only if it exists, and measurements record which case it was. Packing time is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import sympy
import torch

from polytile import options
from polytile.ir import evaluate
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.loop import Loop
from polytile.ir.printer import loop_text
from polytile.ir.ranges import integer_range
from polytile.ir.template import IS_PACKED, PackedWeight, Template
from polytile.matmul.cpp import GemmSpec, panels
from polytile.runtime import toolchain, weights
from polytile.schedule.canonical import TensorArg

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel, ProductSite

PANELS = "P"
"""The argument's name. Its dtype is bytes: only the kernels that read it know its layout."""

SMALLEST = 1 << 15
"""Minimum number of elements of a weight for it to be packed. Products by smaller ones take a few µs, of which copying is a small
part."""


def with_packed_weight(
    kernel: GemmKernel, site: ProductSite, template: Template, buffers: Mapping[str, Buffer]
) -> tuple[GemmKernel, ProductSite]:
    """The kernel and its call with a packed B added, if B is a weight that can be packed, or computed from one; otherwise
    unchanged."""
    b, loop = template.b, template.prologues[1]
    source = whole(buffers[next(iter(loop.reads()))]) if loop is not None and len(loop.reads()) == 1 else b
    buffer = buffers[source.buffer]
    if not _can_pack(kernel, b, source, buffer):
        return kernel, site
    unpacked = (b, loop) if loop is not None else None
    kernel = replace(kernel, spec=replace(kernel.spec, nibbles_from=_nibbles_from(kernel, b, loop)))
    lanes, together, least = lanes_of(kernel.spec), together_of(kernel), kernel.spec.nibbles_from
    argument = PackedWeight(source, lanes, together, buffer.weight == "constant", unpacked, least)
    tensors = (*kernel.tensors, TensorArg(PANELS, torch.uint8, "in"))
    passed = replace(site, buffers=(*site.buffers, argument), sizes=(*site.sizes, IS_PACKED))
    return replace(kernel, tensors=tensors, packed=True), passed


def _nibbles_from(kernel: GemmKernel, b: View, loop: Loop | None) -> int | None:
    """The least value of operand `b`, which `loop` computes, if 4 bits hold any; None if they do not, or `loop` is None."""
    if loop is None or b.sizes[1] % panels.NIBBLES_TOGETHER or kernel.spec.group % panels.NIBBLES_TOGETHER:
        return None
    limits = [integer_range(store.value) for store in loop.stores]
    known = [each for each in limits if each is not None]
    least, most = min((low for low, _ in known), default=0), max((high for _, high in known), default=0)
    return least if len(known) == len(limits) and most - least < 16 else None


def site_of(argument: PackedWeight) -> weights.Site:
    """Looks up the packed copy at each call, within the limit of option `packed_weights_mib`. With stall="never" no call waits
    for it."""
    view, lanes, together, least = argument.view, argument.lanes, argument.together, argument.nibbles_from
    b, loop = argument.unpacked or (view, None)
    matrices, k, n = (int(size) for size in b.sizes)
    matrix = 1 if loop is None and matrices == 1 else 0  # one matrix, or all of them, or all of the weight

    def make(weight: torch.Tensor) -> torch.Tensor:
        return _panels(weight if loop is None else _computed(weight, view.buffer, b, loop), lanes, together, least)

    recipe = weights.Recipe(
        ("panels", lanes, together, least, b.dtype, loop and loop_text(loop)), tuple(map(int, view.sizes[matrix:])),
        tuple(map(int, view.strides[matrix:])), int(view.offset),
        matrices * panels.size_of(k, n, b.dtype, lanes, together, least), make,
    )  # fmt: skip
    return weights.Site(recipe, options.get("packed_weights_mib") << 20, eager=argument.constant, waits=waits_for_packing())


def _panels(matrices: torch.Tensor, lanes: int, together: int, least: int | None) -> torch.Tensor:
    """The panels of a matrix, or of each of several, one after the other."""
    if matrices.dim() == 2:
        return panels.make(matrices, lanes, together, least)
    return torch.cat([panels.make(matrix, lanes, together, least) for matrix in matrices])


def _computed(weight: torch.Tensor, name: str, b: View, loop: Loop) -> torch.Tensor:
    """The operand `b` (K x N) that `loop` computes from the weight."""
    (_, k, n), (_, *strides) = (tuple(map(int, numbers)) for numbers in (b.sizes, b.strides))
    out = torch.empty(k * n, dtype=b.dtype, device=weight.device)
    evaluate.run_loop(loop, {name: weight, b.buffer: out}, {}, None)
    return out.as_strided((k, n), strides)


def waits_for_packing() -> bool:
    """Whether calls of a program compiled now wait until weights are packed."""
    return bool(options.get("stall") != "never")


def _can_pack(kernel: GemmKernel, b: View, source: View, buffer: Buffer) -> bool:
    """Whether operand `b` can be packed into panels. `source`, a view of a buffer, is `b` itself or what it is computed from."""
    numbers = (*b.sizes, *b.strides, b.offset, *source.sizes, *source.strides, source.offset)
    if not buffer.weight or not all(number.is_Integer for number in numbers) or buffer.dtype != source.dtype:
        return False
    experts = kernel.spec.grouped == "m" and kernel.prologues[1] is None and not kernel.spec.b_dtype
    single = not kernel.spec.batched and kernel.second is None and (experts or not kernel.spec.grouped)
    typed = b.dtype == (torch.int8 if kernel.spec.b_dtype else kernel.in_dtype) in panels.TOGETHER
    plain = single and typed and kernel.prologues[0] is None and (source is b) == (kernel.prologues[1] is None)
    large = int(b.sizes[1]) * int(b.sizes[2]) >= SMALLEST and int(b.sizes[2]) > 1
    return plain and large and buffer.device.type == "cpu" and options.get("packed_weights_mib") > 0


def lanes_of(spec: GemmSpec) -> int:
    """Number of accumulators in a vector of this machine. Raises CompilerMissing without a compiler to ask."""
    lanes = toolchain.find().lanes
    return max(1, lanes // 2) if spec.accumulator == "float64" else lanes


def together_of(kernel: GemmKernel) -> int:
    """Number of consecutive k of B in a lane of its panels."""
    return 1 if kernel.spec.b_dtype else panels.TOGETHER[kernel.in_dtype]


def panels_for(kernel: GemmKernel, b: torch.Tensor, size: Mapping[str, int]) -> torch.Tensor | None:
    """Operand B, packed, for the kernel's integers `size`; None if these say that it is not packed."""
    if not size.get(IS_PACKED.name):
        return None
    prologue_b = kernel.prologues[1]
    if prologue_b is not None:
        weight, b = b, torch.empty(size["K"] * size["N"], dtype=prologue_b.tensors[-1].dtype)
        prologue_b.interpret(weight, b)
    matrices = size["batch"] if kernel.spec.grouped else 1
    strides = size["b_stride_b"], size["b_stride_k"], size["b_stride_n"]
    each = b.as_strided((matrices, size["K"], size["N"]), strides, b.storage_offset())
    return _panels(each, lanes_of(kernel.spec), together_of(kernel), kernel.spec.nibbles_from)


def assumed_sizes(argument: PackedWeight | None) -> dict[sympy.Symbol, int]:
    """The value of IS_PACKED to assume before any call: 1 for weights that nothing is expected to change."""
    return {} if argument is None else {IS_PACKED: int(argument.constant)}
