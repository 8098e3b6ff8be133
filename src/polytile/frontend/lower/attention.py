"""Lowers polytile::attention and ATen's attention operators to one attention, if only their result and log-sum-exp are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import getitem
from typing import Any

import torch
import torch.fx
from torch._ops import OpOverload

from polytile.errors import LoweringError
from polytile.frontend.attention.operator import (
    ATTENTION,
    ATTENTION_OF,
    OF_BACKWARD,
    PRODUCTS,
    WITH_LSE,
    dropout_of,
)
from polytile.frontend.attention.pages import PAGED
from polytile.frontend.attention.trained import BACKWARD as TRAINED_BACKWARD
from polytile.frontend.attention.trained import TRAINED
from polytile.frontend.attention.varlen import VARLEN, VARLEN_BACKWARD
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import traced_strides
from polytile.frontend.lower.overloads import named_arguments
from polytile.frontend.lower.positions import position, ranges_of, require_index
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, stored, widen
from polytile.frontend.lower.views import has_static_zero
from polytile.ir import expr, ops, sizes
from polytile.ir.attention import EMPTY, SCORES, SLOPES, Attention, Gradients, Sequences
from polytile.ir.buffer import View, whole
from polytile.ir.expr import Node
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.sizes import Size

aten = torch.ops.aten

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

CPU_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FORWARD = {
    CPU_FLASH: True,
    aten._scaled_dot_product_flash_attention.default: True,
    aten._scaled_dot_product_efficient_attention.default: False,
    aten._scaled_dot_product_cudnn_attention.default: False,
    aten._scaled_dot_product_fused_attention_overrideable.default: False,
}
"""ATen's attention operators, and whether their log-sum-exp may be used. Some lay it out for their own backward pass."""
BACKWARD = (
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    aten._scaled_dot_product_flash_attention_backward.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
)
FROM_BOTTOM_RIGHT = (
    aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_flash_attention_backward.default,
)  # fmt: skip
"""Operators whose causal mask is aligned to the bottom right instead of the top left."""

OPERATORS = (
    ATTENTION, ATTENTION_OF, WITH_LSE, OF_BACKWARD, TRAINED, TRAINED_BACKWARD, PAGED, VARLEN,
    VARLEN_BACKWARD, aten._flash_attention_forward.default, *FORWARD, *BACKWARD,
)  # fmt: skip
"""Operators that read q, k and v in their memory layout."""


DEAREST_BIAS = 16.0
"""Maximum cost of a bias, in multiply-adds per element (ir.ops), for kernels to compute it, once for each batch and head that
adds it. An exponential costs 12. Known wrong: a bias so large that it has to be read from main memory."""


def emit(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, causal: str,
    fill: float = EMPTY, empty_is_0: bool = True, with_lse: bool = False, output: int | None = None, table: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Emit an attention of stored operands; return its result, and its log-sum-exp if wanted.

    `output` is the index of the attention among the node's results. With `table`, k and v are pages (pages, heads, page, d), and
    it lists those of each sequence.
    """
    if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise LoweringError(f"attention of {q.dtype}, {k.dtype} and {v.dtype} is left to the library.")
    if scale is not None and not isinstance(scale, float | int):
        raise LoweringError("attention with a scale that is known only in a call is left to the library.")
    operands = [_operand(builder, tensor, place) for place, tensor in enumerate((q, k, v))]
    if any(has_static_zero(view.sizes) for view in operands):
        raise LoweringError("attention of nothing is left to the library.")
    q_view, k_view, v_view = agreed(*operands) if table is None else _with_pages(*operands)
    batch, heads, rows, _ = q_view.sizes
    placed = _pages(builder, batch, rows, k_view, table) if table is not None else None
    keys = k_view.sizes[2] if placed is None else placed.keys
    points = (batch, heads, rows, keys)
    mask, scores = None, None
    if bias is not None and is_expression(builder, bias):
        scores = scores_with(builder, bias, points, causal, fill, keys - rows)
        causal, fill = "", EMPTY
    elif bias is not None:
        mask = expanded(builder.stored(bias), points)
    return _emit_forward(
        builder, (q_view, k_view, v_view), q.device, scale, output, with_lse, causal=causal, bias=mask, fill=fill,
        empty_is_0=empty_is_0, scores=scores, sequences=placed,
    )  # fmt: skip


def _emit_forward(
    builder: Builder, operands: tuple[View, View, View], device: torch.device, scale: float | None, output: int | None,
    with_lse: bool, **how: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Emit an attention of these operands and properties (see Attention), with a result that lies as traced."""
    q, _, v = operands
    strides = traced_strides(builder.result(output))
    out = whole(builder.new_buffer((*q.sizes[:3], v.sizes[3]), q.dtype, device, strides))
    lse = whole(builder.new_buffer(q.sizes[:3], torch.float32, device)) if with_lse else None
    factor, origins = None if scale is None else float(scale), (builder.origin,)
    builder.emit(Attention(builder.name("attention"), *operands, out, factor, lse=lse, origins=origins, **how))
    return stored(out, device), stored(lse, device) if lse is not None else None


def _operand(builder: Builder, tensor: Tensor, place: int) -> View:
    """Operand number `place` in memory. If it is yet to be computed, and was traced with the heads of a token side by side, it is
    stored so: a projection has that order, and adds its bias as it stores (tests/behaviour/test_attention.py)."""
    node = builder.node
    given = node.args[place] if node is not None and node.target in (ATTENTION, ATTENTION_OF, WITH_LSE, TRAINED) else None
    if tensor.view is None and isinstance(given, torch.fx.Node):
        _, heads, rows, length = tensor.sizes
        side_by_side = (rows * heads * length, length, heads * length, sizes.ONE)
        traced = traced_strides(given.meta["val"])
        if all(sizes.equal(a, b) for a, b in zip(traced[1:], side_by_side[1:], strict=True)):
            tensor = builder.once(tensor, lambda: builder.realize(tensor, side_by_side))
    return builder.stored(tensor)


def is_expression(builder: Builder, bias: Tensor) -> bool:
    """Whether kernels compute a mask or bias where it is used: it is not in memory, its dtype is supported, and it is boolean or
    cheap."""
    if builder.place_of(bias) is not None or bias.node is None or bias.dtype not in (torch.bool, *DTYPES):
        return False
    cost = sum(ops.definition(node.name).cost for node in expr.walk(bias.node) if isinstance(node, expr.Op))
    return bias.dtype == torch.bool or cost <= DEAREST_BIAS


def scores_with(
    builder: Builder, bias: Tensor, points: tuple[Size, ...], causal: str, fill: float, shift: Size
) -> Loop:
    """The scores (batch, heads, m, n) of products with a `bias` that is computed at each point (see Attention). `shift` is the
    offset of the diagonal of a bottom-right causal mask."""
    axes = builder.axes(points)
    point = tuple(axis.symbol for axis in axes)
    own = expr.make(expr.Accumulator, dtype=torch.float32)
    value = builder.element(bias, points, point)
    if bias.dtype == torch.bool:
        score: Node = expr.op("where", torch.float32, value, own, expr.const(fill, torch.float32))
    else:
        score = expr.op("add", torch.float32, own, value)
    if causal:
        last = point[2] + (shift if causal == "bottom right" else sizes.ZERO)
        seen = expr.op("le", torch.bool, expr.index_value(point[3]), expr.index_value(last))
        score = expr.op("where", torch.float32, seen, score, expr.const(EMPTY, torch.float32))
    return scores_loop(builder, axes, score)


def scores_loop(builder: Builder, axes: tuple[Axis, ...], *values: Node) -> Loop:
    """The Loop that computes the score at each point, and its slope if that is given."""
    strides = sizes.contiguous_strides(tuple(axis.size for axis in axes))
    place = sum((axis.symbol * stride for axis, stride in zip(axes, strides, strict=True)), sizes.ZERO)
    stores = tuple(Store(name, place, value) for name, value in zip((SCORES, SLOPES), values, strict=False))
    return Loop(SCORES, axes, (), stores, (builder.origin,))


def _pages(builder: Builder, batch: Size, rows: Size, k: View, table: Tensor) -> Sequences:
    """The page table, with its entries checked: they may come from anywhere."""
    require_index(table)
    count, _, page, _ = k.sizes

    def element_at(point: Point) -> Node:
        place = position(table.at(point), count, ranges_of(point, table.sizes))
        return place if isinstance(place, Node) else expr.index_value(place)

    checked = builder.realize(computed(table.sizes, torch.int64, table.device, element_at), sizes.contiguous_strides(table.sizes))
    view = builder.stored(checked)
    view = replace(view, sizes=(batch, view.sizes[1]))
    return Sequences(batch, rows, sizes.expand(view.sizes[1] * page), table=view)


def agreed(q: View, k: View, v: View) -> tuple[View, View, View]:
    """The operands with the same expression for each size that they share. Guards hold the sizes equal, however they are written;
    a number is preferred."""
    batch, length = _common(q.sizes[0], k.sizes[0], v.sizes[0]), _common(q.sizes[3], k.sizes[3])
    heads, keys = _common(k.sizes[1], v.sizes[1]), _common(k.sizes[2], v.sizes[2])
    if sizes.equal(q.sizes[1], heads):
        heads = q.sizes[1] if q.sizes[1].is_Integer else heads
    return (
        replace(q, sizes=(batch, *q.sizes[1:3], length)),
        replace(k, sizes=(batch, heads, keys, length)),
        replace(v, sizes=(batch, heads, keys, v.sizes[3])),
    )


def _with_pages(q: View, k: View, v: View) -> tuple[View, View, View]:
    """The same for pages, whose batch size differs from that of q."""
    count, batch = _common(k.sizes[0], v.sizes[0]), q.sizes[0]
    k, v = (replace(each, sizes=(batch, *each.sizes[1:])) for each in (k, v))
    q, k, v = agreed(q, k, v)
    return q, replace(k, sizes=(count, *k.sizes[1:])), replace(v, sizes=(count, *v.sizes[1:]))


def expanded(view: View, wanted: tuple[Size, ...]) -> View:
    """A bias with at most as many dimensions, some of size 1, expanded to the sizes `wanted`. Guards hold the other sizes
    equal."""
    missing = len(wanted) - len(view.sizes)
    own, steps = (sizes.ONE,) * missing + view.sizes, (sizes.ZERO,) * missing + view.strides
    return replace(view, sizes=wanted, strides=tuple(sizes.ZERO if n == 1 else step for n, step in zip(own, steps, strict=True)))


def _common(*same: Size) -> Size:
    return next((n for n in same if n.is_Integer), same[0])


@lowers(ATTENTION)
def attention(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, causal: str, fill: float,
    empty_is_0: bool, heads_inside: bool = False,
) -> Tensor:  # fmt: skip
    """The layout of the result is that of the node's."""
    return emit(builder, q, k, v, bias, scale, causal, fill, empty_is_0)[0]


@lowers(PAGED)
def paged(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, table: Tensor, scale: float | None, causal: str,
    fill: float, empty_is_0: bool,
) -> Tensor:  # fmt: skip
    return emit(builder, q, k, v, bias, scale, causal, fill, empty_is_0, table=table)[0]


@lowers(PRODUCTS)
def products(builder: Builder, q: Tensor, k: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Computes nothing: until an attention uses the scores, their elements are loads of a buffer that does not exist."""
    name, shape = builder.name(SCORES), builder.result_sizes()
    strides = sizes.contiguous_strides(shape)

    def element_at(point: Point) -> Node:
        place = sum((i * stride for i, stride in zip(point, strides, strict=True)), sizes.ZERO)
        return expr.load(torch.float32, name, place)

    return computed(shape, dtype, q.device, element_at)


@lowers(ATTENTION_OF)
def attention_of(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, scale: float, empty_is_0: bool
) -> Tensor:
    """The attention whose scores are computed from `products` at the same points."""
    return _scored(builder, q, k, v, scores, scale, empty_is_0, None)[0]


@lowers(WITH_LSE)
def attention_with_lse(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, scale: float, empty_is_0: bool = True,
    random: Tensor | None = None, *dropout: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    return _scored(builder, q, k, v, scores, scale, empty_is_0, 0, **_dropout(builder, random, *dropout))


def _dropout(builder: Builder, random: Tensor | None, *how: Any) -> dict[str, Any]:
    """What an Attention has of the dropout that an operator's last arguments describe."""
    return {} if random is None else {"dropout": dropout_of(random, *how), "random": builder.stored(random)}


def _scored(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, scale: float, empty_is_0: bool, output: int | None,
    **dropout: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Emit the attention of scores that are computed. Its result is number `output` of the node's, and the log-sum-exp the next;
    or, if that is None, the only one."""
    operands = agreed(*(_operand(builder, tensor, place) for place, tensor in enumerate((q, k, v))))
    loop = _loop_of(builder, operands, scores)
    how = {"empty_is_0": empty_is_0, "scores": loop, **dropout}
    return _emit_forward(builder, operands, q.device, scale, output, output is not None, **how)


def _loop_of(
    builder: Builder, operands: tuple[View, View, View], scores: Tensor, slopes: Tensor | None = None
) -> Loop | None:
    """The Loop of scores, and of slopes unless they are 1, that are computed from `products` at the same points; None if scores
    are the products."""
    q, k, _ = operands
    points = (*q.sizes[:3], k.sizes[2])
    axes = builder.axes(points)
    point, own = tuple(axis.symbol for axis in axes), expr.make(expr.Accumulator, dtype=torch.float32)

    values = [widen(builder.element(each, points, point), torch.float32) for each in (scores, slopes) if each is not None]
    values = list(expr.map_loads(tuple(values), lambda load: load if load.buffer in builder.buffers else own))
    if slopes is not None and isinstance(values[1], expr.Const) and values[1].value == 1:
        values.pop()
    if values == [own]:
        return None
    return scores_loop(builder, axes, *values)


@lowers(OF_BACKWARD)
def attention_of_backward(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, slopes: Tensor, out: Tensor, lse: Tensor, grad: Tensor,
    grad_lse: Tensor | None, scale: float, random: Tensor | None = None, *dropout: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    operands, with_changes = agreed(*(builder.stored(tensor) for tensor in (q, k, v))), 3 in used_results(builder)
    made = _emit_gradients(
        builder, operands, grad, out, builder.stored(lse), float(scale), scores=_loop_of(builder, operands, scores, slopes),
        grad_lse=builder.stored(grad_lse) if grad_lse is not None else None, with_changes=with_changes,
        **_dropout(builder, random, *dropout),
    )  # fmt: skip
    return made if with_changes else (*made, None)


@lowers(TRAINED)
def attention_trained(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, causal: str,
    heads_inside: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    return emit(builder, q, k, v, bias, scale, causal, with_lse=True, output=0)


@lowers(TRAINED_BACKWARD)
def attention_trained_backward(
    builder: Builder, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor,
    scale: float | None, causal: str, with_bias: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    made = emit_backward(builder, grad, q, k, v, bias, out, builder.stored(lse), 0.0, causal, scale, with_bias)
    return made if with_bias else (*made, None)


# ATen's operators ------------------------------------------------------------------------------------------------------


def _lower_forward(operator: OpOverload) -> Callable[..., tuple[Tensor | None, ...]]:
    def lowering(builder: Builder, *args: Any, **kwargs: Any) -> tuple[Tensor | None, ...]:
        """The attention and its log-sum-exp. Raises LoweringError if other results are used."""
        given, used = named_arguments(operator, args, kwargs), used_results(builder)
        q, k, v = (given[name] for name in ("query", "key", "value"))
        if not sizes.equal(v.sizes[3], builder.result_sizes(0)[3]):
            raise LoweringError("attention of padded rows is left to the library.")
        if given["dropout_p"] != 0:
            raise LoweringError("attention with dropout is left to the library.")
        if used - ({0, 1} if FORWARD[operator] else {0}):
            raise LoweringError("attention whose saved state is used, as by its gradient, is left to the library.")
        out, lse = emit(
            builder, q, k, v, _bias(given), given["scale"], _causal(operator, given), with_lse=1 in used, output=0
        )
        if lse is not None and operator is CPU_FLASH:
            lse = with_empty_rows(lse, 0.0)  # as the CPU's backward pass expects
        return (out, lse, *[None] * (len(operator._schema.returns) - 2))

    return lowering


def _bias(given: Mapping[str, Any]) -> Tensor | None:
    return given.get("attn_bias", given.get("attn_mask"))


def _causal(operator: OpOverload, given: Mapping[str, Any]) -> str:
    return "" if not given["is_causal"] else "bottom right" if operator in FROM_BOTTOM_RIGHT else "top left"


def with_empty_rows(lse: Tensor, number: float) -> Tensor:
    """The log-sum-exp with this number for a row that attends to no key."""

    def at(point: Point) -> Node:
        value = lse.at(point)
        empty = expr.op("eq", torch.bool, value, expr.const(EMPTY, torch.float32))
        return expr.op("where", torch.float32, empty, expr.const(number, torch.float32), value)

    return computed(lse.sizes, lse.dtype, lse.device, at)


for _operator in FORWARD:
    lowers(_operator)(_lower_forward(_operator))


def used_results(builder: Builder) -> set[int]:
    """The indices of the node's results that are used."""
    assert builder.node is not None
    picked = {user.args[1] for user in builder.node.users if user.target is getitem and user.users}
    return {k for k in picked if isinstance(k, int)}


# derivatives -----------------------------------------------------------------------------------------------------------


def emit_backward(
    builder: Builder, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: View,
    dropout: float, causal: str, scale: float | None, with_bias: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Emit the gradients of q, k and v, and of the bias `with_bias`. `lse` is (batch, heads, m)."""
    if dropout != 0:
        raise LoweringError("the gradient of attention with dropout is left to the library, whose random numbers it draws again.")
    given = (q, k, v, out, grad)
    if q.dtype not in DTYPES or any(tensor.dtype != q.dtype for tensor in given) or lse.dtype != torch.float32:
        kinds = ", ".join(str(tensor.dtype) for tensor in given)
        raise LoweringError(f"the gradient of attention of {kinds} is left to the library.")
    if scale is not None and not isinstance(scale, float | int):
        raise LoweringError("the gradient of attention with a scale that is known only in a call is left to the library.")
    operands = [builder.stored(tensor) for tensor in (q, k, v)]
    if any(has_static_zero(view.sizes) for view in operands):
        raise LoweringError("the gradient of attention of nothing is left to the library.")
    views = agreed(*operands)
    factor, points = None if scale is None else float(scale), (*views[0].sizes[:3], views[1].sizes[2])
    if bias is not None and not with_bias and is_expression(builder, bias):
        scores = scores_with(builder, bias, points, causal, EMPTY, points[3] - points[2])
        return _emit_gradients(builder, views, grad, out, lse, factor, scores=scores)
    mask = expanded(builder.stored(bias), points) if bias is not None else None
    return _emit_gradients(builder, views, grad, out, lse, factor, with_changes=with_bias, causal=causal, bias=mask)


def _emit_gradients(
    builder: Builder, operands: tuple[View, View, View], grad: Tensor, out: Tensor, lse: View, scale: float | None,
    grad_lse: View | None = None, with_changes: bool = False, **masks: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Emit the backward pass of an attention with these `masks` and scores (see Attention); the gradient of the scores too if it
    is wanted."""
    strides = [traced_strides(builder.result(number)) for number in range(3)]
    if any(steps[3] != 1 for steps in strides):
        raise LoweringError("gradients of attention whose rows are not dense are left to the library.")
    q, k, v = operands
    like_lse, like_out = q.sizes[:3], (*q.sizes[:3], v.sizes[3])
    saved, change = (replace(_with_dense_rows(builder, tensor), sizes=like_out) for tensor in (out, grad))
    made = [
        builder.new_buffer(view.sizes, view.dtype, grad.device, steps)
        for view, steps in zip(operands, strides, strict=True)
    ]
    of_lse = replace(grad_lse, sizes=like_lse) if grad_lse is not None else None
    if with_changes:
        made.append(builder.new_buffer((*like_lse, k.sizes[2]), q.dtype, grad.device))
    dq, dk, dv, *dscores = map(whole, made)
    gradients = Gradients(change, dq, dk, dv, of_lse, *dscores)
    builder.emit(
        Attention(
            builder.name("attention_backward"), *operands, saved, scale, lse=replace(lse, sizes=like_lse),
            origins=(builder.origin,), gradients=gradients, **masks,
        )
    )  # fmt: skip
    return tuple(stored(each, grad.device) for each in (dq, dk, dv, *dscores))


def _with_dense_rows(builder: Builder, tensor: Tensor) -> View:
    view = builder.stored(tensor)
    return view if view.strides[-1] == 1 else builder.stored(builder.contiguous(tensor))


def _lower_backward(operator: OpOverload) -> Callable[..., tuple[Tensor | None, ...]]:
    def lowering(builder: Builder, grad: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor | None, ...]:
        """The gradients of q, k and v. The log-sum-exp may have more rows than q, and a trailing dimension of size 1."""
        given = named_arguments(operator, (grad, *args), kwargs)
        if any(given.get("grad_input_mask", ())[3:]):
            raise LoweringError("the gradient of attention's bias is left to the library.")
        q, k, v, out, lse = (given[name] for name in ("query", "key", "value", "out", "logsumexp"))
        view = builder.stored(lse)
        view = replace(view, sizes=view.sizes[:3], strides=view.strides[:3])
        causal = _causal(operator, given)
        made = emit_backward(builder, grad, q, k, v, _bias(given), out, view, given["dropout_p"], causal, given["scale"])
        return (*made, *[None] * (len(operator._schema.returns) - 3))

    return lowering


for _operator in BACKWARD:
    lowers(_operator)(_lower_backward(_operator))
