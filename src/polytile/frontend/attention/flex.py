"""Writes flex_attention out on its way through AOTAutograd.

    flex_attention(q, k, v, score_mod, block_mask)
        →   softmax(where(mask_mod(b, h, m, n), score_mod(scale · q kᵀ, b, h, m, n), -inf)) v

PyTorch's operator is a higher-order one: score_mod and mask_mod are graphs of their own, over one score and its position. Written
out, they are operators over all scores at once, which autograd differentiates as usual. The result is then recognised as in any
graph: a mask of positions becomes a causal kernel (masks.py), unmodified or biased scores become attention as one operation
(patterns.py), and any other score_mod an epilogue of the first product.

Where gradients of q, k and v or the log-sum-exp are wanted, the call stays PyTorch's operator until autograd has differentiated
the graph, and is written out then (flex_whole.py).

As in eager, a BlockMask stands for its mask_mod: its list of blocks is not read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from operator import getitem
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from polytile.errors import LoweringError

aten = torch.ops.aten

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of attentions that kernels run whole."""
PLACES = ((2, 1, 1, 1), (3, 1, 1), (5, 1), (7,))
"""Shapes of positions (batch, head, query, key) that broadcast to those of scores, on which functions are tried."""
CAPTURED = 11
"""The size of a captured tensor's dimensions in that trial. No dimension of a result may have this size."""


def write_out(module: torch.fx.GraphModule) -> bool:
    """Make a Dynamo graph call `written_out` in place of flex_attention; returns whether there was any."""
    calls = [node for node in module.graph.nodes if node.op == "call_function" and node.target is flex_attention]
    for node in calls:
        wanted = {user.args[1] for user in node.users if user.target is getitem and user.users}
        score_mod, block_mask = node.args[3], node.args[4]
        captured = (tuple(node.args[7]) if len(node.args) > 7 else (), tuple(node.args[8]) if len(node.args) > 8 else ())
        functions = (_module(module, score_mod), True, captured[0]), (_module(module, block_mask[-1]), False, captured[1])
        node.target = written_out
        node.kwargs = {
            "elementwise": tuple(is_elementwise(*each) for each in functions),
            "differentiable": is_elementwise(*functions[0], derivative=True),
            "wanted": tuple(index in wanted for index in range(3)),
        }
    return bool(calls)


def written_out(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor], block_mask: Sequence[Any], scale: float,
    kernel_options: dict[str, Any], score_captured: Sequence[Any] = (), mask_captured: Sequence[Any] = (), *,
    elementwise: tuple[bool, bool] = (False, False), differentiable: bool = False,
    wanted: tuple[bool, bool, bool] = (True, True, True),
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The operator's results: out (b, heads, m, dv), and the log-sum-exp and maximum of each row's scores (b, heads, m), in base
    2 unless FLASH kernels are requested.

    `elementwise`: whether score_mod and mask_mod accept tensors of many scores and positions. `differentiable`: whether so does
    the derivative of score_mod by the score. `wanted`: which results are used.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (each.to(torch.get_autocast_dtype(device)) for each in (query, key, value))
    with torch.autocast(device, enabled=False):
        captured = (*score_captured, *mask_captured)
        if all(elementwise) and _stays_whole((query, key, value), captured, differentiable, wanted):
            without_blocks = (*[1] * (len(block_mask) - 1), block_mask[-1])
            if not isinstance(scale, float):  # the operator takes a number that is known
                factor = torch.full((), scale, dtype=torch.float32, device=query.device)
                score_mod, score_captured, scale = _scaled(score_mod), (*score_captured, factor), 1.0
            return flex_attention(
                query, key, value, score_mod, without_blocks, scale, kernel_options, tuple(score_captured),
                tuple(mask_captured),
            )  # fmt: skip
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        key, value = (_for_each_head(each, query) for each in (key, value))
        scores = (query.to(dtype) @ key.to(dtype).transpose(-2, -1)) * scale
        places = [torch.arange(n, device=scores.device) for n in scores.shape]
        changed = at_all(score_mod, scores, places, score_captured, elementwise[0]).to(dtype)
        seen = at_all(block_mask[-1], None, places, mask_captured, elementwise[1])
        scores = torch.where(seen, changed, torch.full((), -math.inf, dtype=dtype, device=scores.device))
        shares = torch._safe_softmax(scores, -1)
        out = _laid_out_as(query, shares.to(query.dtype) @ value.to(query.dtype))
        unit = 1.0 if kernel_options.get("BACKEND") == "FLASH" else 1 / math.log(2)
        largest, logarithm = _statistics(scores)
        return out, logarithm * unit, largest * unit


def _stays_whole(
    tensors: tuple[Tensor, Tensor, Tensor], captured: Sequence[Any], differentiable: bool, wanted: tuple[bool, bool, bool]
) -> bool:
    """Whether the call stays PyTorch's operator while autograd differentiates the graph (flex_whole.py): its gradients or its
    log-sum-exp are wanted, but no gradient of what the functions have captured."""
    query = tensors[0]
    alike = all(each.dtype == query.dtype and statically_known_true(each.shape[0] == query.shape[0]) for each in tensors)
    if not alike or query.dtype not in DTYPES or wanted[2]:
        return False
    if any(statically_known_true(n == 0) for each in tensors for n in each.shape):
        return False
    if not torch.is_grad_enabled():
        return wanted[1]
    if any(isinstance(each, Tensor) and each.requires_grad for each in captured):
        return False
    return differentiable if any(each.requires_grad for each in tensors) else wanted[1]


def _scaled(score_mod: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """score_mod of a score times the last tensor that is captured."""
    return lambda score, *rest: score_mod(score * rest[-1], *rest[:-1])


def _statistics(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum and the log-sum-exp of each row's scores: -inf for a row that attends to no key, with zero gradients."""
    if statically_known_true(scores.shape[-1] == 0):
        nothing = scores.new_full(scores.shape[:-1], -math.inf)
        return nothing, nothing
    largest = scores.amax(-1)
    base = torch.where(largest.abs() == math.inf, 0.0, largest).detach()
    total = (scores - base.unsqueeze(-1)).exp().sum(-1)
    empty = total == 0
    return largest, torch.where(empty, -math.inf, torch.where(empty, 1.0, total).log() + base)


def _for_each_head(keys: Tensor, query: Tensor) -> Tensor:
    """Keys or values (b or 1, heads of k, n, d), expanded to every batch and head of the queries."""
    _, heads, length, width = keys.shape
    batch, group = query.shape[0], query.shape[1] // heads
    keys = keys.expand(batch, heads, length, width)
    if statically_known_true(query.shape[1] == heads):
        return keys
    return keys[:, :, None].expand(batch, heads, group, length, width).reshape(batch, heads * group, length, width)


def _laid_out_as(query: Tensor, out: Tensor) -> Tensor:
    """`out` with its dimensions in the memory order of `query`, the last one innermost."""

    def compared(a: int, b: int) -> int:
        larger, smaller = (statically_known_true(query.stride(x) > query.stride(y)) for x, y in ((a, b), (b, a)))
        return smaller - larger

    order = [*sorted(range(3), key=functools.cmp_to_key(compared)), 3]
    return out if order == [0, 1, 2, 3] else out.permute(order).contiguous().permute([order.index(d) for d in range(4)])


# the functions ---------------------------------------------------------------------------------------------------------


def at_all(
    function: Callable[..., Tensor], scores: Tensor | None, places: Sequence[Tensor], captured: Sequence[Any], elementwise: bool
) -> Tensor:
    """`function` at all positions, with a result (b, heads, m, n) or broadcastable to it. `scores` is its first argument, if it
    has one."""
    if elementwise:
        axes = [place[(..., *[None] * (3 - d))] for d, place in enumerate(places)]  # as masks.py reads positions
        result: Tensor = function(*_first(scores), *axes, *map(_of_rank_1, captured))
        return result if scores is None else result.expand(scores.shape)
    mapped, first = function, len(_first(scores))
    for axis in reversed(range(4)):
        dims = (*[0] * first, *[0 if d == axis else None for d in range(4)], *[None] * len(captured))
        mapped = torch.vmap(mapped, in_dims=dims)
    with _LookUps():
        return mapped(*_first(scores), *places, *captured)


def _first(scores: Tensor | None) -> tuple[Tensor, ...]:
    return () if scores is None else (scores,)


def _of_rank_1(captured: Any) -> Any:
    """A captured number as a tensor of rank 1, so that its dtype has the same weight in promotion as that of a score, which has
    rank 0 in PyTorch."""
    return captured.reshape(1) if isinstance(captured, Tensor) and captured.ndim == 0 else captured


class _LookUps(TorchFunctionMode):
    """Makes x[i] look up the position that a rank-0 tensor i names; PyTorch would read its value and make a view."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            tensor, places = args[0], args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(place, Tensor | int) for place in places) and any(isinstance(place, Tensor) for place in places):
                whole = [torch.full((), p, device=tensor.device) if isinstance(p, int) else p for p in places]
                return aten.index(tensor, whole)
        return func(*args, **(kwargs or {}))


def is_elementwise(
    function: Callable[..., Any], scored: bool, captured: Sequence[Any], derivative: bool = False
) -> bool:
    """Whether a function of a score (if `scored`) and its position can be applied to tensors of many of them; with `derivative`,
    whether its derivative by the score can.

    That is so if it consists of elementwise operators, and looks up captured tensors at one position. Otherwise it is mapped.
    """
    with unset_fake_temporarily(), torch.set_grad_enabled(derivative):
        places = [torch.empty(shape, dtype=torch.int64, device="meta") for shape in PLACES]
        scores = torch.broadcast_tensors(*places)[0].to(torch.float32).requires_grad_(derivative)
        given = (*_first(scores if scored else None), *places, *_tried(captured))
        try:
            with _ByElements():
                result = function(*given)
                if derivative and result.requires_grad:
                    (result,) = torch.autograd.grad(result, scores, result.detach())
        except Exception:  # a function that fails here is mapped, which raises its own errors
            return False
    return isinstance(result, Tensor) and all(n in (1, all_) for n, all_ in zip(result.shape[::-1], (7, 5, 3, 2), strict=False))


def _tried(captured: Sequence[Any]) -> Iterator[Any]:
    """Placeholders for what a function has captured: nodes of a graph, tensors or numbers."""
    for each in captured:
        value = each.meta.get("example_value", each.meta.get("val")) if isinstance(each, torch.fx.Node) else each
        if isinstance(value, Tensor):
            yield torch.empty([CAPTURED] * value.ndim if value.ndim else [1], dtype=value.dtype, device="meta")
        else:
            yield 3 if isinstance(value, torch.SymInt) else 0.5 if isinstance(value, torch.SymFloat) else value


class _ByElements(TorchDispatchMode):
    """Raises LoweringError at an operator that is not elementwise."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = torch.Tag.pointwise in func.tags or func in _UNTAGGED or func in _COPIES
        if not known and not _makes_number(func, args) and not _looks_up(func, args):
            raise LoweringError(f"{func} is no operator by elements.")
        return func(*args, **(kwargs or {}))


_UNTAGGED = (aten.floor_divide.default, aten.floor_divide.Scalar, aten.masked_fill.Tensor)
"""Elementwise operators that PyTorch does not mark as pointwise."""
_COPIES = (
    aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)  # fmt: skip
_MAKERS = (aten.full.default, aten.ones.default, aten.zeros.default, aten.new_ones.default, aten.new_zeros.default,
           aten.new_full.default, aten.scalar_tensor.default)  # fmt: skip


def _makes_number(func: Any, args: Sequence[Any]) -> bool:
    """Whether it creates a tensor of rank 0."""
    sizes = next((arg for arg in args if isinstance(arg, list | tuple)), [])
    return func in _MAKERS and not sizes


def _looks_up(func: Any, args: Sequence[Any]) -> bool:
    """Whether it reads a tensor at one position of every dimension."""
    if func is not aten.index.Tensor:
        return False
    tensor, places = args
    return len(places) == tensor.ndim and all(isinstance(p, Tensor) and p.dtype in (torch.int32, torch.int64) for p in places)


def _module(module: torch.fx.GraphModule, node: Any) -> Callable[..., Any]:
    """The function that a node of a graph stands for."""
    return module.get_submodule(str(node.target)) if isinstance(node, torch.fx.Node) else node
