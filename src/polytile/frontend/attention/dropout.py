"""Dropout between the softmax and the second product of an attention.

    softmax → native_dropout → product                      →        state = dropout_state(shape, threads), attention
    grad → product → · mask / (1 - p) → softmax's derivative         attention's derivative

The kernels of both passes compute the mask from `state`, int64 [2]: the seed and the offset at which eager's kernel would draw it
(ir/dropout.py). The state is taken where the graph draws the mask, and the generator advances as in eager. Which number eager's
kernel gives to an element depends on the version of PyTorch, so each process compares some once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from polytile import options
from polytile.frontend.attention.scores import NotAttention
from polytile.frontend.attention.views import VIEWS, number, source, value
from polytile.ir import sizes
from polytile.ir.dropout import VECTORS, Dropout, advance, kept_from
from polytile.runtime.cuda.seeds import next_state, signed
from polytile.runtime.target import Target

aten = torch.ops.aten

BLOCK, BYTES = 256, 16
"""Threads of a block of eager's kernel, and bytes that one of its threads loads at once."""
PROBED = 4096
"""Number of elements of which the numbers are compared, at each of three places."""

DROPPED = "polytile_dropped"
"""The key in a node's `meta` of dropout that an attention draws itself."""

_library = torch.library.Library("polytile", "FRAGMENT")
_library.define(
    "dropout_state(SymInt[] shape, int threads, *, Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)


@torch.library.register_fake("polytile::dropout_state", lib=_library)
def _fake(shape: list[int], threads: int, *, device: torch.device) -> torch.Tensor:
    return torch.empty(2, dtype=torch.int64, device=device)


def _run(shape: list[int], threads: int, *, device: torch.device) -> torch.Tensor:
    """The state of torch's default generator, which advances. A CPU, whose generator has no offset, has two random numbers."""
    if device.type != "cuda":
        return torch.empty(2, dtype=torch.int64, device=device).random_()
    return next_state(device, advance(math.prod(shape), threads))


_library.impl("dropout_state", _run, "CompositeExplicitAutograd")

STATE = torch.ops.polytile.dropout_state.default


@dataclass(frozen=True)
class Dropped:
    """The dropout of an attention's weights: the node that draws, its boolean mask if that is used, and the numbers it draws."""

    node: torch.fx.Node
    mask: torch.fx.Node | None
    how: Dropout


def dropped_input(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node that draws, if `node` is the result of dropout in training."""
    if node.target is not getitem or node.args[1] != 0:
        return None
    drawn = source(node)
    return drawn if drawn.target == aten.native_dropout.default and drawn.args[2] is not False else None


def dropout_of(path: list[torch.fx.Node]) -> Dropped | None:
    """The dropout among the nodes between a softmax and a product. Raises NotAttention if kernels cannot draw its numbers."""
    dropouts = [node for node in path if node.target == aten.native_dropout.default]
    if not dropouts:
        return None
    if options.get("attention_dropout") == "library":
        raise NotAttention("eager's kernel drops its weights, as the option attention_dropout says")
    (node,) = dropouts if len(dropouts) == 1 else [None]
    if node is None:
        raise NotAttention("its weights are dropped twice")
    weights, p = value(source(node)), node.args[1]
    shape, strides = (tuple(map(sizes.as_size, each)) for each in (weights.shape, weights.stride()))
    if not all(map(sizes.equal, strides, sizes.contiguous_strides(shape))):
        raise NotAttention("its weights are dropped in another layout")
    if not isinstance(p, float) or not 0 < p < 1:
        raise NotAttention(f"its weights are dropped with probability {p}")
    vector = served(weights.device, weights.dtype)
    if vector is None:
        raise NotAttention(f"its weights are dropped by numbers that eager draws one after another on {weights.device.type}")
    mask = next((user for user in node.users if user.args[1] == 1), None)
    return Dropped(node, mask, Dropout(p, vector, threads_of(weights.device)))


def before_dropout(node: torch.fx.Node, dropped: Dropped | None, module: torch.fx.GraphModule) -> torch.fx.Node | None:
    """What is multiplied by the mask and the factor of dropout, if `node` is that product."""
    if dropped is None or node.target != aten.mul.Tensor:
        return None
    for given, other in (node.args, reversed(node.args)):
        if isinstance(given, torch.fx.Node) and _is_mask(other, dropped, module):
            return given
    return None


def _is_mask(node: Any, dropped: Dropped, module: torch.fx.GraphModule) -> bool:
    """Whether a node is the mask of dropout multiplied by its factor."""
    factor = 1.0
    while isinstance(node, torch.fx.Node) and node is not dropped.mask:
        if node.target in (aten.mul.Tensor, aten.mul.Scalar):
            factor *= number(node.args[1], module) or math.nan
        elif node.target not in VIEWS:
            return False
        node = source(node)
    return node is dropped.mask is not None and math.isclose(factor, dropped.how.factor, rel_tol=1e-6)


def erase_dropped(graph: torch.fx.Graph) -> None:
    """Erase dropout that attention draws itself and of which nothing uses a result."""
    for node in reversed(list(graph.nodes)):
        if DROPPED in node.meta:
            for user in [user for user in node.users if not user.users]:
                graph.erase_node(user)
            if not node.users:
                graph.erase_node(node)


# eager's kernel --------------------------------------------------------------------------------------------------------


def threads_of(device: torch.device) -> int:
    """The most threads that eager's kernel runs with."""
    facts = Target.of(device).facts
    return facts.sms * (facts.threads_per_sm // BLOCK) * BLOCK


def served(device: torch.device, dtype: torch.dtype) -> int | None:
    """The most neighbouring elements that a thread of eager's kernel serves per step; None if its numbers are not those of
    ir/dropout.py. Triton's interpreter draws those of a GPU."""
    if Target.of(device).native:
        return None
    return _served(device, dtype) if device.type == "cuda" else max(VECTORS[0], BYTES // dtype.itemsize)


@functools.cache
def _served(device: torch.device, dtype: torch.dtype) -> int | None:
    """The same, by drawing with the kernel. torch's default generator is left as it was."""
    threads = threads_of(device)
    widest = max(VECTORS[0], BYTES // dtype.itemsize)
    count = 2 * threads * widest + PROBED
    generator = torch.cuda.default_generators[device.index or 0]
    before, offset = generator.get_state(), generator.get_offset()
    with unset_fake_temporarily(), torch.no_grad():
        state = torch.tensor([signed(generator.initial_seed()), offset], device=device)
        drawn = aten.native_dropout(torch.ones(count, dtype=dtype, device=device), 0.5, True)[1]
        advanced = generator.get_offset() - offset
        generator.set_state(before)
        for vector in (each for each in VECTORS if each <= widest):
            how = Dropout(0.5, vector, threads)
            places = (0, threads * vector - PROBED // 2, count - PROBED)
            alike = (torch.equal(drawn[p : p + PROBED], kept_from(how, state, count, p, PROBED)) for p in places)
            if advance(count, threads) == advanced and all(alike):
                return vector
    return None

