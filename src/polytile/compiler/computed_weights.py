"""What loops compute from one constant weight, such as its scales in float32, is kept until the weight changes.

    loop sb for p0, p1: buf0[p0, p1] = float(scale[p1, p0])     →     buf0 = find(scale)

`find` belongs to a Site (runtime/weights.py), as that of packed weights does, and within the same limit. Where there is no copy,
the loop's kernel runs.
"""

from __future__ import annotations

import sympy
import torch

from polytile import options
from polytile.dispatch.multikernel import MultiKernel
from polytile.ir import evaluate
from polytile.ir.buffer import Buffer, View
from polytile.ir.loop import Loop
from polytile.ir.program import Extern, Program
from polytile.ir.template import ComputedWeight, PackedWeight
from polytile.matmul import packed_weights
from polytile.runtime import weights
from polytile.wrapper import KernelCall


def computed_weight(loop: Loop, program: Program) -> ComputedWeight | None:
    """The loop's result as an argument that calls look up; None if it is not of one constant weight alone, or if others than
    kernels could see or change it."""
    reads, writes = loop.reads(), loop.writes()
    if len(reads) != 1 or len(writes) != 1 or reads & writes or options.get("interpret") or not options.get("packed_weights_mib"):
        return None
    weight, result = (program.buffers[next(iter(names))] for names in (reads, writes))
    others = [each for each in program.operations if each is not loop and result.name in each.reads() | each.writes()]
    seen = any(isinstance(each, Extern) or result.name in each.writes() for each in others)
    if seen or result.name in program.observed_buffers() or weight.weight != "constant":
        return None
    numbers = (*_layout(weight), *_layout(result), *(axis.size for axis in (*loop.axes, *loop.reduced)))
    native = all(buffer.device.type == "cpu" for buffer in (weight, result))
    if not native or result.role != "temp" or not all(number.is_Integer for number in numbers):
        return None
    return ComputedWeight(result, weight, loop)


Arguments = tuple[str | View | PackedWeight | ComputedWeight, ...]


def kernel_call(multikernel: MultiKernel, tensors: Arguments, extents: tuple[sympy.Expr, ...]) -> KernelCall:
    """A call of the kernel with these arguments, and what looks up the one that is kept between calls."""
    site = None
    for tensor in tensors:
        if isinstance(tensor, PackedWeight):
            site = packed_weights.site_of(tensor)
        elif isinstance(tensor, ComputedWeight):
            site = site_of(tensor, multikernel, tensors, tuple(map(int, extents)))
    return KernelCall(multikernel.spec.name, multikernel.dispatch, tensors, extents, site)


def site_of(argument: ComputedWeight, multikernel: MultiKernel, tensors: Arguments, numbers: tuple[int, ...]) -> weights.Site:
    """Looks the result up at each call; where it is not kept, its `find` makes it by the kernel with these arguments."""
    weight, result, loop = argument.weight, argument.result, argument.loop
    sizes, strides = (tuple(map(int, each)) for each in (result.sizes, result.strides))

    def interpreted(given: torch.Tensor) -> torch.Tensor:
        out = torch.empty(int(result.storage_size), dtype=result.dtype)
        evaluate.run_loop(loop, {weight.name: given, result.name: out}, {}, None)
        return out.as_strided(sizes, strides)

    recipe = weights.Recipe(
        ("computed", multikernel.spec.kernel, numbers, sizes, strides), tuple(map(int, weight.sizes)),
        tuple(map(int, weight.strides)), 0, int(result.storage_size) * result.dtype.itemsize, interpreted,
    )  # fmt: skip
    site = weights.Site(recipe, options.get("packed_weights_mib") << 20, eager=True, waits=packed_weights.waits_for_packing())
    find = site.find

    def found_or_computed(given: torch.Tensor) -> torch.Tensor:
        kept = find(given)
        if kept is not None:
            return kept
        out = torch.empty_strided(sizes, strides, dtype=result.dtype)
        multikernel.dispatch(*(out if tensor is argument else given for tensor in tensors), *numbers)
        return out

    site.find = found_or_computed
    return site


def _layout(buffer: Buffer) -> tuple[sympy.Expr, ...]:
    return (*buffer.sizes, *buffer.strides)
