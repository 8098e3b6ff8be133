"""From an operation of a Program to the MultiKernel that runs it and the way it is called there.

What a GPU needs (define_gpu.py, and Triton's rooms below it) is imported where a program has a tensor on one: elsewhere it
would add a sixth to what importing the compiler takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from polytile import options as settings
from polytile.errors import IRError
from polytile.ir import evaluate, expr, sizes
from polytile.ir.program import Buffer, Kept, Loop, Template, View
from polytile.kernels import apart, gemm_args, gemm_kernel, kept, loops, roundings, templates, variants
from polytile.kernels.canonical import LoopKernel, canonicalize, precision_of
from polytile.kernels.facts import index_limit
from polytile.kernels.nest import Form, nest_of
from polytile.kernels.prologue import Stored
from polytile.multikernel.multikernel import MultiKernel
from polytile.multikernel.registry import define
from polytile.multikernel.spec import ArgInfo, KernelSpec
from polytile.runtime import regime

Call = tuple[MultiKernel, tuple[str | View | Kept, ...], tuple[sympy.Expr, ...]]


def define_loop(loop: Loop, buffers: Mapping[str, Buffer], options: Mapping[str, Any]) -> Call:
    """The MultiKernel of a loop, the buffers to pass and the integers to pass."""
    kernel, site = canonicalize(loop, buffers)
    made = _multikernel(kernel, loop.origins, target_of(loop, buffers), options)
    return made, site.buffers, site.sizes


def _multikernel(
    kernel: LoopKernel, origins: tuple[str, ...], target: torch.device, options: Mapping[str, Any]
) -> MultiKernel:
    if target.type == "cpu" and not settings.get("interpret"):
        return define(
            loop_spec(kernel, origins), loops.loop_candidates(kernel, origins, variants.most_threads()), options
        )
    from polytile.multikernel import define_gpu

    made = [_multikernel(part, origins, target, options) for part, _ in apart.parts(kernel)]
    candidates = define_gpu.loops(kernel, origins, target)
    if made:
        candidates = (apart.Apart(kernel, made), *candidates)
    return define(define_gpu.loop_spec(kernel, origins, target), candidates, options)


def target_of(loop: Loop, buffers: Mapping[str, Buffer]) -> torch.device:
    """The one device whose memory a loop reads and writes. Raises IRError where there are several."""
    devices = {buffers[name].device for name in loop.reads() | loop.writes()}
    if len(devices) != 1:
        raise IRError(f"loop {loop.name} uses memory of {', '.join(sorted(map(str, devices)))}; a loop has one device.")
    return devices.pop()


def loop_spec(kernel: LoopKernel, origins: tuple[str, ...]) -> KernelSpec:
    """What a loop's MultiKernel knows of it. A regime is of the sizes that axes depend on; strides and offsets decide nothing."""
    names, rounded = tuple(s.name for s in kernel.symbols), roundings.of_loop(kernel.loop)
    domain: set[sympy.Symbol] = set().union(*[a.size.free_symbols for a in kernel.loop.axes + kernel.loop.reduced])
    return KernelSpec(
        name=loops.kernel_name(kernel, origins),
        family="loop",
        kernel=kernel.digest,
        args=tuple(ArgInfo(t.name, t.dtype, t.role, rounded.get(t.name)) for t in kernel.tensors),
        size_names=names,
        size_keys=tuple(regime.BUCKET if s in domain else regime.IGNORE for s in kernel.symbols),
        reduction=reduction_terms(kernel),
        reduction_hint=_hint(kernel),
        source_ops=origins,
        checks=loops.check_messages(kernel),
        reference=_reference(kernel),
        make_args=lambda size: make_args(kernel, size),
    )


def reduction_terms(kernel: LoopKernel) -> tuple[str | int, ...]:
    """Names and numbers whose product bounds the number of terms that one output element sums."""
    across = kernel.loop.axes if any(store.sums for store in kernel.loop.stores) else ()
    return roundings.terms_of(kernel.loop.reduced + across)


def _hint(kernel: LoopKernel) -> str:
    form = nest_of(kernel.loop).form
    return {Form.ROW: "inner", Form.COLUMN: "outer", Form.POINTWISE: ""}[form]


def _reference(kernel: LoopKernel) -> Any:
    """The interpreter on this kernel's flat arguments: in float64 where they were widened, else in their own types."""

    def run(*args: Any) -> None:
        tensors = dict(zip([t.name for t in kernel.tensors], args, strict=False))
        values = dict(zip(kernel.symbols, args[len(kernel.tensors) :], strict=True))
        evaluate.run_loop(kernel.loop, tensors, values, precision_of(kernel.tensors, args))

    return run


def make_args(kernel: LoopKernel, size: Mapping[str, int], target: torch.device | None = None) -> Sequence[Any]:
    """Random flat arguments for the given sizes: tensors just large enough (on `target`, or the CPU), of no elements for a loop
    without points, then the integers."""
    values = {s: size[s.name] for s in kernel.symbols}
    ranges = {a.symbol: sizes.evaluate(a.size, values) for a in kernel.loop.axes + kernel.loop.reduced}
    empty = not all(ranges[a.symbol] for a in kernel.loop.axes)
    extents: dict[str, int] = {t.name: 0 if empty else 1 for t in kernel.tensors}
    for access in () if empty else kernel.loop.accesses():
        top = {s: max(0, ranges[s] - 1) for s in access.index.free_symbols if s in ranges}
        for k, node in enumerate(access.indirect):
            top[expr.indirect_symbol(k)] = max(0, _index_limit(node, values) - 1)
        extents[access.buffer] = max(extents[access.buffer], sizes.evaluate(access.index, {**values, **top}) + 1)
    for view in kernel.library.views() if kernel.library is not None else ():
        last = view.index(tuple(n - 1 for n in view.sizes))
        extents[view.buffer] = max(extents[view.buffer], sizes.evaluate(last, values) + 1)
    divides = {load.buffer for n in expr.walk(*kernel.loop.roots) if expr.is_check(n) for load in _divisors(n)}
    ends = _ends(kernel, values)
    tensors = [_random(extents[t.name], t.dtype, target, int(t.name in divides), ends.get(t.name, 1)) for t in kernel.tensors]
    return [*tensors, *[values[s] for s in kernel.symbols]]


def _ends(kernel: LoopKernel, values: Mapping[sympy.Symbol, int]) -> dict[str, int]:
    """The tensors whose elements are indices, and below what they must lie."""
    found: dict[str, int] = {}
    for node in expr.walk(*kernel.loop.roots):
        if isinstance(node, expr.Op) and node.name == "check_index":
            read, limit = expr.loads(node.args[0]), max(1, _index_limit(node, values))
            as_it_is = all(below.name in UNCHANGED for below in expr.walk(node.args[0]) if isinstance(below, expr.Op))
            if len(read) == 1 and as_it_is:
                found[read[0].buffer] = min(limit, found.get(read[0].buffer, limit))
    return found


UNCHANGED = ("where", "lt", "ne", "cast")
"""Operations by which an index that is not negative stays what it is, on its way to its check."""


def _divisors(check: expr.Op) -> list[expr.Load]:
    return expr.loads(check) if check.name == "check_divisor" else []


def _index_limit(node: expr.Node, values: Mapping[sympy.Symbol, int]) -> int:
    """The size that an indirect index is checked against; 1 where there is none to see."""
    limit = index_limit(node)
    return 1 if limit is None else sizes.evaluate(limit, values)


def _random(count: int, dtype: torch.dtype, target: torch.device | None, least: int, end: int) -> torch.Tensor:
    """Numbers; of integers, which may be indices, from `least` on and, where `end` lies above it, below that."""
    if dtype.is_floating_point:
        return torch.randn(count, device=target).to(dtype)
    if dtype == torch.bool or end <= least + 1:
        return torch.full((count,), least, dtype=dtype, device=target)
    return torch.randint(least, min(end, 1 + torch.iinfo(dtype).max), (count,), dtype=dtype, device=target)


def define_template(template: Template, buffers: Mapping[str, Buffer], options: Mapping[str, Any]) -> Call:
    """The MultiKernel of a matmul with its epilogue, the views to pass and the integers to pass."""
    kernel, site = gemm_kernel.canonicalize(template, buffers)
    sources = settings.parts(options.get("sources", settings.get("sources")))
    if "cpp" in sources and not settings.get("interpret"):
        kernel, site = kept.with_kept(kernel, site, template, buffers)
    target = buffers[template.a.buffer].device
    first = [
        define_loop(loop, buffers, options)[0] if loop is not None else None for loop in template.prologues
    ]
    return _product(kernel, template.origins, target, options, sources, first), site.buffers, site.sizes


def _product(
    kernel: gemm_kernel.GemmKernel,
    origins: tuple[str, ...],
    target: torch.device,
    options: Mapping[str, Any],
    sources: Sequence[str],
    first: Sequence[MultiKernel | None] = (),
) -> MultiKernel:
    """The MultiKernel of a product; `first` are those that store the operands that have prologues."""
    fallback = _unfused(kernel, options, target)
    name = gemm_kernel.kernel_name(kernel, origins)
    if target.type == "cpu" and not settings.get("interpret"):
        threads = variants.thread_counts(variants.most_threads())
        candidates = templates.candidates(kernel, name, threads, fallback, sources)
        return define(template_spec(kernel, name, origins), candidates, options)
    from polytile.multikernel import define_gpu

    stored = None
    if any(kernel.prologues):
        stored = Stored(kernel, first, _product(kernel.plain, origins, target, options, sources))
    candidates = templates.gpu_candidates(kernel, name, target, fallback, sources, stored)
    return define(define_gpu.template_spec(kernel, name, origins, target), candidates, options)


def template_spec(kernel: gemm_kernel.GemmKernel, name: str, origins: tuple[str, ...]) -> KernelSpec:
    """What a product's MultiKernel, called `name`, knows of it. Of its integers those of gemm_kernel.DECIDING make a regime."""
    rounded = roundings.of_product(kernel)
    return KernelSpec(
        name=name,
        family=kernel.family,
        kernel=kernel.digest,
        args=tuple(ArgInfo(t.name, t.dtype, t.role, rounded.get(t.name)) for t in kernel.tensors),
        size_names=kernel.size_names,
        size_keys=tuple(gemm_kernel.DECIDING.get(name, regime.IGNORE) for name in kernel.size_names),
        layouts=kernel.layouts,
        reduction=("K", "N") if kernel.epilogue is not None and kernel.epilogue.reduced else ("K",),
        source_ops=origins,
        reference=templates.reference(kernel),
        make_args=lambda size: gemm_args.make_args(kernel, size),
    )


def _unfused(kernel: gemm_kernel.GemmKernel, options: Mapping[str, Any], target: torch.device) -> Any:
    """The epilogue as a kernel of its own, for the library's product: called with the product and the epilogue's
    arguments."""
    if kernel.epilogue is None:
        return None
    alone = templates.epilogue_alone(kernel)
    return _multikernel(alone, alone.loop.origins, target, options)
