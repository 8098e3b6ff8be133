"""Dual matmul: fuses two products that are added into one kernel, which continues to accumulate where the first product ends.

    matmul mm0: buf0 = x @ y                         matmul mm1: out = v @ w + x @ y
    matmul mm1: buf1 = v @ w                   →       epilogue for b, m, n
      epilogue for b, m, n                               out[m, n] = maximum accumulator 0
        out[m, n] = maximum (buf0[m, n] + accumulator) 0

The first product qualifies if only the second's epilogue reads it, at the same point, as a term of sums with the accumulator, and
if nothing between the two writes its operands. Terms are accumulated unrounded, whereas eager rounds each product to its dtype.
The pass applies to GPU products only: generated CPU kernels have no such loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from polytile.ir import expr, sizes
from polytile.ir.buffer import View
from polytile.ir.dtypes import ROUNDING
from polytile.ir.expr import Accumulator, Load, Node, Op
from polytile.ir.loop import Loop
from polytile.ir.program import Operation, Program
from polytile.ir.template import Template
from polytile.passes.fusion.epilogue import plain_epilogue
from polytile.passes.loops import merged_origins, on_gpu, touching


def fuse_dual_matmul(program: Program) -> Program:
    """`program` with each product that is added to another product's result fused into that one."""
    operations: list[Operation | None] = list(program.operations)
    readers = touching(program.operations)
    observed = program.observed_buffers()
    for j, operation in enumerate(program.operations):
        if not isinstance(operation, Template) or not _takes_one_more(operation, program):
            continue
        for i, first in _alike(operation, operations[:j]):
            changed = set().union(*[between.writes() for between in operations[i + 1 : j] if between is not None])
            alone = first.out.buffer not in observed and readers[first.out.buffer] == [i, j]
            epilogue = _added(operation, first) if alone and not first.reads() & changed else None
            if epilogue is not None:
                origins = merged_origins(first.origins, operation.origins)
                fused = replace(operation, epilogue=epilogue, second=(first.a, first.b), origins=origins)
                operations[i], operations[j] = None, _without_epilogue(fused, epilogue, program)
                break
    return replace(program, operations=tuple(o for o in operations if o is not None))


def _takes_one_more(template: Template, program: Program) -> bool:
    return on_gpu(program.buffers[template.a.buffer].device) and template.epilogue is not None and _plain(template)


def _plain(template: Template) -> bool:
    """Whether it is a product of two floating-point matrices of one dtype in memory."""
    dtype = template.a.dtype
    same = dtype == template.b.dtype and dtype.is_floating_point and dtype.itemsize > 1
    return same and template.prologues == (None, None) and template.second is None and template.grouping is None


def _alike(second: Template, before: Sequence[Operation | None]) -> Iterator[tuple[int, Template]]:
    """Earlier products without an epilogue whose results have the same sizes and dtype, the nearest first."""
    for i, first in reversed(list(enumerate(before))):
        if isinstance(first, Template) and first.epilogue is None and _plain(first):
            same = all(sizes.equal(a, b) for a, b in zip(first.out.sizes, second.out.sizes, strict=True))
            if same and first.a.dtype == second.a.dtype and first.out.dtype == second.out.dtype:
                yield i, first


def _added(second: Template, first: Template) -> Loop | None:
    """The epilogue of `second` without the element of `first` in the sums that contain both it and the accumulator. None if the
    epilogue reads either of them in any other way."""
    loop, dtype = second.epilogue, first.out.dtype
    assert loop is not None
    alone = plain_epilogue(first)
    place = alone.stores[0].index.xreplace({a.symbol: b.symbol for a, b in zip(alone.axes, loop.axes, strict=True)})

    def is_first(node: Node) -> bool:
        return isinstance(node, Load) and node.buffer == first.out.buffer and sizes.equal(node.index, place)

    sums, inside = _sums_of_both(loop, dtype, is_first)

    def read(node: Node) -> bool:
        own = isinstance(node, Accumulator) or (isinstance(node, Load) and node.buffer == first.out.buffer)
        return own or (id(node) in inside and id(node) not in sums)

    outside = [node for node in expr.walk(*loop.roots) if id(node) not in inside]
    if not sums or any(read(child) for node in outside for child in node.children) or any(map(read, loop.roots)):
        return None
    return loop.exchange(sums)


def _sums_of_both(loop: Loop, dtype: torch.dtype, is_first: Callable[[Node], bool]) -> tuple[dict[int, Node], set[int]]:
    """The smallest sums that contain both the accumulator and the first product's element, and the nodes inside them.

    Returns a map from each sum's identity to the sum without that element, and the identities of the nodes of these sums, except
    other terms.
    """
    inside: set[int] = set()
    sums: dict[int, Node] = {}
    for node in expr.walk(*loop.roots):
        terms = list(_terms(node, dtype))
        firsts, accumulators = [t for t in terms if is_first(t)], [t for t in terms if isinstance(t, Accumulator)]
        if not (isinstance(node, Op) and node.name == "add" and len(firsts) == len(accumulators) == 1):
            continue
        within = {id(n) for n in _nodes(node, dtype)}
        if within & sums.keys():
            continue  # a larger sum around one that contains both
        others = [t for t in terms if not is_first(t) and not isinstance(t, Accumulator)]
        total: Node = expr.make(Accumulator, dtype=node.dtype)
        for term in others:
            total = expr.op("add", node.dtype, total, term)
        sums[id(node)] = total
        inside |= within - {id(term) for term in others}
    return sums, inside


def _terms(node: Node, dtype: torch.dtype) -> Iterator[Node]:
    """The terms of a sum, looking through roundings to the products' own dtype."""
    if _rounds(node, dtype) or (isinstance(node, Op) and node.name == "add"):
        for child in node.children:
            yield from _terms(child, dtype)
    else:
        yield node


def _nodes(node: Node, dtype: torch.dtype) -> Iterator[Node]:
    """The nodes of a sum, including its terms."""
    yield node
    if _rounds(node, dtype) or (isinstance(node, Op) and node.name == "add"):
        for child in node.children:
            yield from _nodes(child, dtype)


def _without_epilogue(template: Template, epilogue: Loop, program: Program) -> Template:
    """`template` without an epilogue that only stores the accumulator; the template then writes there itself."""
    (store, *others), out = epilogue.stores, template.out
    buffer = program.buffers[store.buffer]
    strides = [sizes.coefficient(store.index, axis.symbol) for axis in epilogue.axes]
    if others or not isinstance(_bare(store.value, out.dtype), Accumulator) or buffer.dtype != out.dtype or None in strides:
        return template
    offset = store.index.xreplace({axis.symbol: sizes.ZERO for axis in epilogue.axes})
    view = View(store.buffer, out.dtype, out.sizes, tuple(s for s in strides if s is not None), offset)
    return replace(template, out=view, epilogue=None)


def _bare(node: Node, dtype: torch.dtype) -> Node:
    while _rounds(node, dtype):
        node = node.children[0]
    return node


def _rounds(node: Node, dtype: torch.dtype) -> bool:
    return isinstance(node, Op) and node.name == ROUNDING.get(dtype)
