"""Concatenations that grow: each has all the parts of the one before, and more behind them, as in a dense block of a network.

They are the beginnings of one buffer, the longest concatenation. Each part is stored once, instead of once for every
concatenation, and the kernels that read them do not depend on how many parts there are.

    a = cat((x, y), 1)              b = longest[:, :x + y + z];   store x, y, z to their places
    b = cat((x, y, z), 1)           a = longest[:, :x + y]
    c = cat((b, w), 1)              c = longest;                  store w behind z
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import traced_strides
from polytile.frontend.lower.value import Tensor, converted, stored
from polytile.ir import sizes
from polytile.ir.buffer import Buffer, View

aten = torch.ops.aten

FEWEST = 3
"""The number of concatenations from which on they share a buffer. Known wrong: three that are never stored otherwise, because
one cheap loop reads each."""


@dataclass
class Growing:
    """The buffer of a family of concatenations, and the number of parts that have been stored to it."""

    buffer: Buffer
    stored: int = 0


def beginning_of_longest(builder: Builder, tensors: Sequence[Tensor], dim: int) -> Tensor | None:
    """The current node's concatenation of `tensors` as the beginning of the longest one of its family, with the parts stored that
    no other has stored before; None if it has no such family."""
    node = builder.node
    if node is None or not _joins(node, dim) or len(tensors) != len(_tensors(node)):
        return None
    if node not in builder.longest:
        family = _family(node, dim)
        whole = max(family, key=lambda each: len(parts_of(each, dim)), default=None) if len(family) >= FEWEST else None
        builder.longest.update(dict.fromkeys([node, *family], whole))
    longest = builder.longest[node]
    if longest is None:
        return None
    growing = _growing(builder, longest)
    if growing is None:
        return None
    buffer, start, inner = growing.buffer, sizes.ZERO, _inner(node, dim)
    for number, tensor in enumerate(tensors, 1 if inner is None else len(parts_of(inner, dim))):
        if number > growing.stored:
            place = View(buffer.name, buffer.dtype, tensor.sizes, buffer.strides, sympy.expand(start * buffer.strides[dim]))
            builder.store(place, converted(tensor, buffer.dtype))
            growing.stored = number
        start = sympy.expand(start + tensor.sizes[dim])
    return stored(View(buffer.name, buffer.dtype, builder.result_sizes(), buffer.strides, sizes.ZERO), buffer.device)


def _growing(builder: Builder, longest: torch.fx.Node) -> Growing | None:
    """The buffer of a family, new if there is none; None if its sizes are not known yet."""
    growing = builder.growing.get(longest)
    if growing is None or growing.buffer.name not in builder.buffers:  # a lowering that failed has undone it
        traced = longest.meta["val"]
        shape, strides = tuple(map(sizes.as_size, traced.shape)), traced_strides(traced)
        if not all(builder.defined(symbol) for each in (*shape, *strides) for symbol in each.free_symbols):
            return None
        buffer = builder.new_buffer(shape, traced.dtype, traced.device, strides)
        growing = builder.growing[longest] = Growing(buffer)
    return growing


def parts_of(node: torch.fx.Node, dim: int) -> tuple[torch.fx.Node, ...]:
    """The tensors of a concatenation along `dim`; if the first is one too, its parts come in its place."""
    parts: list[torch.fx.Node] = []
    outer: torch.fx.Node | None = node
    while outer is not None:
        first, *rest = _tensors(outer)
        parts = [*rest, *parts]
        outer = _inner(outer, dim)
    return first, *parts


def _inner(node: torch.fx.Node, dim: int) -> torch.fx.Node | None:
    """The first tensor of a concatenation, if it is a concatenation along `dim` too, which has rounded nothing more."""
    first = _tensors(node)[0]
    return first if _joins(first, dim) and first.meta["val"].dtype == node.meta["val"].dtype else None


def _tensors(node: torch.fx.Node) -> list[torch.fx.Node]:
    tensors: Any = node.args[0]
    return list(tensors)


def _joins(node: torch.fx.Node, dim: int) -> bool:
    """Whether this is a concatenation along `dim`."""
    if node.target is not aten.cat.default or not node.args[0]:
        return False
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return bool(given % node.meta["val"].dim() == dim)


def _family(node: torch.fx.Node, dim: int) -> list[torch.fx.Node]:
    """The concatenations that are beginnings of the same longest one as `node`'s, with `node` among them; else none."""
    root = parts_of(node, dim)[0]
    members, left = dict[torch.fx.Node, None](), [root]
    while left:
        for user in left.pop().users:
            if user not in members and _joins(user, dim) and parts_of(user, dim)[0] is root and _alike(user, node, dim):
                members[user] = None
                left.append(user)
    if node not in members:
        return []
    longest = max((parts_of(each, dim) for each in members), key=len)
    family = [each for each in members if parts_of(each, dim) == longest[: len(parts_of(each, dim))]]
    return family if node in family else []


def _alike(node: torch.fx.Node, other: torch.fx.Node, dim: int) -> bool:
    """Whether the concatenation is not returned, and differs from the other in its size along `dim` alone."""
    one, two = node.meta["val"], other.meta["val"]
    returned = any(user.op == "output" for user in node.users)
    return not returned and one.dtype == two.dtype and _others(one.shape, dim) == _others(two.shape, dim)


def _others(shape: Sequence[int], dim: int) -> list[sympy.Expr]:
    return [sizes.as_size(n) for d, n in enumerate(shape) if d != dim]
