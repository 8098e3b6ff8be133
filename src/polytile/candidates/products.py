"""All candidates for a matmul, from every source in use, and the reference that they are checked against."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from polytile.candidates import own_sources, sources
from polytile.candidates.candidate import Candidate
from polytile.candidates.inner_kernel import InnerKernel
from polytile.candidates.materialised_operands import MaterialisedOperands
from polytile.candidates.sources import ProductRequest
from polytile.ir import evaluate, expr, sizes
from polytile.ir.dtypes import compute_dtype
from polytile.ir.products import grouped_product, scaled_operand
from polytile.matmul import prologue, scales
from polytile.matmul.gemm_args import operands
from polytile.matmul.gemm_kernel import ENDS, GemmKernel
from polytile.matmul.triton.unit import epilogue_kernel
from polytile.schedule import canonical
from polytile.schedule.canonical import LoopKernel, TensorArg

PRODUCT = "product"
"""The name of the stored product in an epilogue that runs as a kernel of its own."""
LAST = "LAST_END"
"""The name of the end of the last group in it."""


def candidates(
    kernel: GemmKernel,
    name: str,
    threads: Sequence[int],
    unfused: InnerKernel | None,
    names: Sequence[str],
    materialised: MaterialisedOperands | None = None,
) -> tuple[Candidate, ...]:
    """The candidates on a CPU, from the sources of these names, in their order; the library's if none of these sources has any.
    For a product with a prologue, which computes a weight, `materialised` replaces the library's candidate, and the generated
    kernels are those that read the packed weight."""
    asked = ProductRequest(kernel, name, torch.device("cpu"), True, unfused, threads, materialised)
    return sources.gather(sources.in_order(names), lambda source: source.products(asked), own_sources.LIBRARY)


def gpu_candidates(
    kernel: GemmKernel,
    name: str,
    target: torch.device,
    unfused: InnerKernel | None,
    names: Sequence[str],
    materialised: MaterialisedOperands | None = None,
) -> tuple[Candidate, ...]:
    """The candidates on a GPU, or under Triton's interpreter if `target` is a CPU, from the sources of these names, in their
    order. The library's come in addition if no source has any that run at all sizes, and always for dual products, scaled
    products and products with prologues (`materialised`)."""
    asked = ProductRequest(kernel, name, target, False, unfused, materialised=materialised)
    always = own_sources.alone(asked) is not None and not kernel.spec.grouped
    return sources.gather(sources.in_order(names), lambda source: source.products(asked), own_sources.LIBRARY, always)


def reference(kernel: GemmKernel) -> Callable[..., None]:
    """The product and the epilogue on the kernel's flat arguments, in float64 if these were widened, otherwise in the type of
    the sums. Operands with prologues are computed first."""
    plain = kernel.plain

    def run(*args: Any) -> None:
        precision = canonical.precision_of(kernel.tensors, args)
        makers = [p if p is None else functools.partial(p.interpret, precision=precision) for p in kernel.prologues]
        tensors, ints = operands(plain, prologue.materialise_operands(kernel, args, makers, precision is not None))
        sums = precision or compute_dtype(kernel.in_dtype)
        sums = sums if sums.is_floating_point else torch.float64  # exact up to 2^53
        left, right = tensors["A"].to(sums), tensors["B"].to(sums)
        blocks = scales.blocks(kernel)
        if "SA" in blocks:
            left = scaled_operand(left, blocks["SA"], tensors["SA"].to(sums))
        if "SB" in blocks:
            right = scaled_operand(right, blocks["SB"], *[tensors[name].to(sums) for name in ("SB", "ZB") if name in blocks])
        if kernel.spec.grouped:
            product = grouped_product(left, right, tensors[ENDS], kernel.spec.grouped)
        else:
            product = torch.matmul(left, right)
        if kernel.second is not None:
            product = product + torch.matmul(tensors["P"].to(sums), tensors["Q"].to(sums))
        if kernel.epilogue is None:
            tensors["C"].copy_(product)
            return
        values = dict(zip(kernel.symbols, ints, strict=True))
        shape = [sizes.evaluate(a.size, values) for a in kernel.epilogue.axes + kernel.epilogue.reduced]
        evaluate.run_loop(kernel.epilogue, tensors, values, precision, product.reshape(shape))

    return run


def epilogue_alone(kernel: GemmKernel) -> LoopKernel:
    """The epilogue, or the store of a single matrix, as a loop kernel over a stored product (row-major batch × M × N, named
    `product`), then its own tensors. If groups divide the rows, the end of the last group (LAST) comes second, and the product
    counts as 0 in rows beyond it."""
    loop, symbols = kernel.epilogue, kernel.symbols
    if loop is None:
        stored, symbols = epilogue_kernel(kernel).loop, epilogue_kernel(kernel).symbols
        loop = replace(stored, axes=(replace(stored.axes[0], size=sizes.ONE), *stored.axes[1:]))
    axes = loop.axes + loop.reduced
    strides = sizes.contiguous_strides([a.size for a in axes])
    index = sum((a.symbol * s for a, s in zip(axes, strides, strict=True)), sizes.ZERO)
    covered: expr.Node | None = None
    more: list[TensorArg] = []
    if kernel.spec.grouped == "m":
        last = expr.op("cast", torch.int64, expr.load(torch.int32, LAST, sizes.ZERO))
        covered = expr.op("lt", torch.bool, expr.index_value(axes[1].symbol), last)
        more.append(TensorArg(LAST, torch.int32, "in"))
    product = expr.load(compute_dtype(kernel.product_dtype), PRODUCT, index, mask=covered)

    def rule(node: expr.Node, children: tuple[expr.Node, ...]) -> expr.Node:
        return product if isinstance(node, expr.Accumulator) else expr.rebuild(node, children)

    body = loop.map_roots(lambda roots: expr.rewrite(roots, rule))
    tensors = (TensorArg(PRODUCT, kernel.product_storage, "in"), *more, *kernel.outer)
    return LoopKernel(body, tensors, symbols)
