"""The ATen operators that AOTAutograd decomposes before lowering, and their decompositions.

The table has torch's core ATen decompositions, further ones of torch's for operators that fuse well when decomposed, and this
project's own where torch's cost precision, a guard, a copy or a symbolic float. It lacks operators that are lowered whole or stay
library calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._decomp
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion
from torch._prims_common import (
    compute_elementwise_output_logical_to_physical_perm,
    elementwise_dtypes,
    get_computation_dtype,
    is_contiguous_or_false,
    suggest_memory_format,
)
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false, statically_known_true

from polytile.frontend.circular_pads import PAD_CIRCULAR
from polytile.frontend.lower import foreach, norms, pads
from polytile.frontend.lower.overloads import all_overloads, overloads

# Decomposed by torch's own rules, beyond the core table.
FROM_TORCH = """
    _log_softmax_backward_data _native_batch_norm_legit _batch_norm_with_update
    addmv dist elu gelu hardtanh huber_loss leaky_relu linalg_vector_norm native_batch_norm
    rrelu_with_noise_backward tril_indices triu_indices
    permute_copy view_copy unbind_copy narrow_copy as_strided_copy
""".split()

# Lowered whole, or better as a library call than as torch decomposes them. torch's scan tells the values that it saves for the
# backward pass from its results by their `detach`.
KEPT = """
    _scaled_dot_product_flash_attention_for_cpu _unsafe_index _unsafe_index_put _unsafe_masked_index
    _unsafe_masked_index_put_accumulate all baddbmm bernoulli detach embedding_bag embedding_dense_backward
    floor_divide roll rrelu_with_noise rrelu_with_noise_ rsub select_scatter stack std
""".split()


def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """exp(x - max) / Σ exp(x - max), in float32 for 16-bit dtypes; row-major as in eager."""
    if not _taken_apart(x, dim):
        return NotImplemented
    dtype = torch.float32 if half_to_float else x.dtype
    wide = x.contiguous().to(get_computation_dtype(x.dtype))
    e = torch.exp(wide - _largest(wide, dim))
    return (e / torch.sum(e, dim, keepdim=True)).to(dtype)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """x - max - log Σ exp(x - max)."""
    if not _taken_apart(x, dim):
        return NotImplemented
    dtype = torch.float32 if half_to_float else x.dtype
    wide = x.contiguous().to(get_computation_dtype(x.dtype))
    shifted = wide - _largest(wide, dim)
    return (shifted - torch.log(torch.sum(torch.exp(shifted), dim, keepdim=True))).to(dtype)


def _taken_apart(x: Tensor, dim: int) -> bool:
    """Whether to decompose: a maximum over a size known only at run time would need a guard against 0. Of a dimension that is not
    there the operator itself tells, as in eager."""
    if not -max(x.ndim, 1) <= dim < max(x.ndim, 1):
        return False
    return x.ndim == 0 or not free_unbacked_symbols(x.shape[dim])


def _largest(x: Tensor, dim: int) -> Tensor | float:
    return 0.0 if guard_or_false(x.numel() == 0) else torch.amax(x, dim, keepdim=True)


def _softmax_backward_data(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """(g - Σ g·y)·y, eager's own formula."""
    g, y = (t.to(get_computation_dtype(t.dtype)) for t in (grad_output, output))
    return ((g - torch.sum(g * y, dim, keepdim=True)) * y).to(input_dtype).contiguous()


def _adaptive_avg_pool2d(x: Tensor, output_size: list[int]) -> Tensor:
    """torch's own rule, unless it compares a size that is known only at run time, which would make a graph for each. For dtypes
    that the operator does not support, its error would differ from eager's."""
    if not x.is_floating_point():
        return NotImplemented
    pairs = zip(x.shape[-2:], output_size, strict=True)
    if not all((isinstance(n, int) and isinstance(m, int)) or statically_known_true(n % m == 0) for n, m in pairs):
        return NotImplemented
    return torch._decomp.decompositions.adaptive_avg_pool2d(x, output_size)


def _elsewhere(operator: OpOverload) -> Callable[..., Any]:
    """torch's own rule for devices other than the CPU.

    On the CPU the operator is lowered whole to one loop, for which the library's kernel is a candidate, or is a library call:
    overlapping windows summed by colliding stores took 350 µs instead of 140.
    """

    def rule(x: Tensor, *args: Any) -> Any:
        return NotImplemented if x.device.type == "cpu" else torch._decomp.decomposition_table[operator](x, *args)

    return rule


def _max_unpool2d(x: Tensor, indices: Tensor, output_size: list[int]) -> Tensor:
    """torch's own rule in eager's layout: that of the input on a CPU, row-major elsewhere."""
    result = torch._decomp.decompositions.max_unpool2d(x, indices, output_size)
    layout = suggest_memory_format(x) if x.device.type == "cpu" else torch.contiguous_format
    return result.contiguous(memory_format=layout)


def _constant_pad_nd(x: Tensor, pad: list[int], value: float = 0) -> Tensor:
    """Amounts that are sizes, none above 0.

    Eager then crops and copies, which keeps the layout of `x`; with any amount above 0 its result is row-major. The operator's
    fake implementation says row-major for both, so a guard distinguishes them here.
    """
    if all(isinstance(n, int) for n in pad) or is_contiguous_or_false(x):
        return NotImplemented
    if not guard_or_false(functools.reduce(torch.sym_max, pad) <= 0):
        return NotImplemented
    for k in range(len(pad) // 2):
        before, after = pad[2 * k : 2 * k + 2]
        x = x.narrow(-1 - k, -before, x.shape[-1 - k] + before + after)
    return x.clone()


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
    """Writes one value to some indices of a dimension, in the layout of a copy of `x`, without a second copy into that layout."""
    if not isinstance(value, Tensor):
        value = torch.scalar_tensor(value, dtype=x.dtype, device=x.device)
    row = x if x.ndim else x.unsqueeze(0)
    places: list[Tensor | None] = [None] * (dim % row.ndim)
    filled = torch.ops.aten.index_put(row, [*places, index.reshape(-1)], value.to(x.dtype))
    return filled if x.ndim else filled.squeeze(0).clone()


def _ordered_alike(operator: OpOverload) -> Callable[..., Any]:
    """A rule for a binary operator whose fake implementation takes the result's layout from the last operand.

    Eager, like every elementwise operator, takes it from the first operand that determines one. Operands in other layouts are
    copied to eager's order.
    """

    def rule(x: Tensor | float, y: Tensor | float, **more: Any) -> Any:
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.ndim * y.ndim == 0:
            return NotImplemented
        operands = torch.broadcast_tensors(x, y)
        order = _order(*operands)
        if all(_order(t) == order for t in operands):
            return NotImplemented
        alike = [t if _order(t) == order else _laid_out(t, order) for t in operands]
        return operator(*alike, **more) if all(_order(t) == order for t in alike) else NotImplemented

    return rule


def _order(*tensors: Tensor) -> list[int]:
    """The dimensions of an elementwise result, outermost in memory first."""
    return list(compute_elementwise_output_logical_to_physical_perm(*tensors)[0])


def _laid_out(x: Tensor, order: list[int]) -> Tensor:
    """A copy of `x` whose dimensions are in this memory order, outermost first."""
    return x.permute(order).contiguous().permute([order.index(k) for k in range(x.ndim)])


def _times_log(logarithm: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """x·log y, and 0 for x = 0 unless y is NaN; the layout of x takes precedence over that of y."""

    def rule(x: Tensor, y: Tensor) -> Tensor:
        _, dtype = elementwise_dtypes(x, y, type_promotion_kind=Promotion.INT_TO_FLOAT)
        x, y = x.to(dtype), y.to(dtype)
        return torch.where((x == 0) & (y == y), 0.0, x * logarithm(y))

    return rule


def _log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """min(x, 0) - log(1 + e^-|x|), row-major on a CPU as in eager; the second result is for eager's own gradient."""
    if x.device.type != "cpu":
        return torch._decomp.decomposition_table[torch.ops.aten.log_sigmoid_forward.default](x)
    x = x.contiguous()
    z = torch.exp(-x.abs())
    return x.clamp(max=0) - torch.log1p(z), z


def _nan_to_num(x: Tensor, *replacements: float | None, **more: float | None) -> Tensor:
    """torch's own rule, which has no infinities of complex numbers."""
    return NotImplemented if x.is_complex() else torch._refs.nan_to_num(x, *replacements, **more)


def _unique(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    """The operator whose number of values all versions of torch leave to run time. Up to 2.11, the fake implementation of this
    one has as many values as a tensor of zeros, which the backward of a fill then takes as a fact."""
    values, inverse, _ = torch.ops.aten._unique2(x, sorted, return_inverse)
    return values, inverse


def _scaled_mm(a: Tensor, b: Tensor, *rest: Any, **more: Any) -> Any:
    """Not decomposed; adds a check that the operands fit, which the operator's fake implementation lacks."""
    if a.ndim == b.ndim == 2 and not more.get("contraction_dim"):
        fits = a.shape[1] == b.shape[0]
        torch._check(fits, lambda: f"mat1 and mat2 shapes cannot be multiplied ({tuple(a.shape)} and {tuple(b.shape)})")
    return NotImplemented


def _scaled_mm_v2(
    a: Tensor, b: Tensor, scale_a: Sequence[Tensor], recipe_a: Sequence[int], swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor], recipe_b: Sequence[int], swizzle_b: Sequence[int], bias: Tensor | None, dtype: torch.dtype | None,
    dimension: Sequence[int] = (), use_fast_accum: bool = False,
) -> Any:  # fmt: skip
    """Scales by blocks become those of `_scaled_mm`, whose blocks follow A's rows and B's columns; other recipes are not
    decomposed.

    Here they lie as cuBLAS has them: (rows of A or columns of B, blocks along k), or, for blocks of 128 rows, (blocks along k, up
    to a multiple of 4, blocks of rows). PyTorch has checked their shapes when the graph was traced.
    """
    recipes = tuple(recipe_a), tuple(recipe_b)
    if recipes not in SCALED_BY_BLOCKS or any((*swizzle_a, *swizzle_b)) or tuple(dimension) not in ((), (1, 0)):
        return _scaled_mm(a, b, contraction_dim=dimension)
    both = (scale_a[0], recipes[0]), (scale_b[0], recipes[1])
    along = next(scale.shape[1] for scale, recipe in both if recipe == (BY_128,))
    left, right = (scale if recipe == (BY_128,) else scale[:along].t() for scale, recipe in both)
    return torch.ops.aten._scaled_mm.default(a, b, left, right.t(), bias, None, dtype, use_fast_accum)


BY_128, BY_128_BY_128 = 4, 5
"""Recipes as `torch.nn.functional.ScalingType` numbers them: blocks of 128 elements along k, of 1 or of 128 rows."""
SCALED_BY_BLOCKS = (((BY_128,), (BY_128,)), ((BY_128,), (BY_128_BY_128,)), ((BY_128_BY_128,), (BY_128,)))
"""The pairs of recipes that PyTorch has a product for."""


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The positions where `mask` is true take the elements of `source` in order; too few of them raise an IndexError."""
    x, mask = torch.broadcast_tensors(x, mask)
    if guard_or_false(source.numel() == 0):
        return x.clone(memory_format=torch.contiguous_format)
    flat = mask.reshape(-1)
    taken = source.reshape(-1)[(torch.cumsum(flat, 0) - 1).clamp(min=0)]
    return torch.where(flat, taken, x.reshape(-1)).view(x.shape)


def _masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    """Each element of the source gets the gradient of the position that took it; unused ones get 0."""
    grad, mask = torch.broadcast_tensors(grad, mask)
    flat, given = mask.reshape(-1), grad.new_zeros(sizes).view(-1)
    order = torch.cumsum(flat, 0) - 1
    return torch.ops.aten._unsafe_masked_index_put_accumulate(given, flat, [order], grad.reshape(-1)).view(sizes)


def _addbmm(x: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """The sum of a batch of products is one product with the batches' k concatenated."""
    batch, m, k = batch1.shape
    rows = batch1.permute(1, 0, 2).reshape(m, batch * k)
    return torch.addmm(x, rows, batch2.reshape(batch * k, batch2.shape[2]), beta=beta, alpha=alpha)


# gradients of losses, for which torch's own rules would make the mean's factor a symbolic float; here the count divides as an
# integer

MEAN = 1  # the reduction code that ATen passes: 0 none, 1 mean, 2 sum


def _of_loss(
    grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, derivative: Callable[[Tensor], Tensor]
) -> Tensor:
    """derivative(input - target)·grad_output, over the number of elements for a mean; computed in float32 for the
    16-bit types."""
    grad, x, t = (v.to(get_computation_dtype(v.dtype)) for v in (grad_output, input, target))
    result = derivative(x - t) * grad
    return (result / input.numel() if reduction == MEAN else result).to(input.dtype)


def _mse_loss_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int) -> Tensor:
    return _of_loss(grad_output, input, target, reduction, lambda d: d * 2)


def _smooth_l1_loss_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """d / beta where |d| < beta, else the sign of d."""
    if beta == 0:
        return _of_loss(grad_output, input, target, reduction, torch.sign)
    return _of_loss(grad_output, input, target, reduction, lambda d: torch.where(d.abs() < beta, d / beta, torch.sign(d)))


def _huber_loss_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """d between -delta and delta, else the nearer of them."""
    return _of_loss(grad_output, input, target, reduction, lambda d: torch.clamp(d, -delta, delta))


OWN: dict[str, Callable[..., Any]] = {
    "copysign.Tensor": _ordered_alike(torch.ops.aten.copysign.Tensor),
    "floor_divide.default": _ordered_alike(torch.ops.aten.floor_divide.default),
    "div.Tensor_mode": _ordered_alike(torch.ops.aten.div.Tensor_mode),
    "xlogy.Tensor": _times_log(torch.log),
    "special_xlog1py.default": _times_log(torch.log1p),
    "log_sigmoid_forward.default": _log_sigmoid_forward,
    "_unique.default": _unique,
    "nan_to_num.default": _nan_to_num,
    "_scaled_mm.default": _scaled_mm,
    "_scaled_mm_v2.default": _scaled_mm_v2,
    "_adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "pixel_shuffle.default": _elsewhere(torch.ops.aten.pixel_shuffle.default),
    "pixel_unshuffle.default": _elsewhere(torch.ops.aten.pixel_unshuffle.default),
    "col2im.default": _elsewhere(torch.ops.aten.col2im.default),
    "max_unpool2d.default": _max_unpool2d,
    "masked_scatter.default": _masked_scatter,
    "masked_scatter_backward.default": _masked_scatter_backward,
    "addbmm.default": _addbmm,
    "constant_pad_nd.default": _constant_pad_nd,
    "index_fill.int_Scalar": _index_fill,
    "index_fill.int_Tensor": _index_fill,
    "_softmax.default": _softmax,
    "_log_softmax.default": _log_softmax,
    "_softmax_backward_data.default": _softmax_backward_data,
    "mse_loss_backward.default": _mse_loss_backward,
    "smooth_l1_loss_backward.default": _smooth_l1_loss_backward,
    "huber_loss_backward.default": _huber_loss_backward,
    **foreach.DECOMPOSITIONS,
    **norms.DECOMPOSITIONS,
    **pads.DECOMPOSITIONS,
}


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """The table for AOTAutograd, without operators that this torch lacks."""
    return dict(_table())


@functools.cache
def _table() -> Mapping[OpOverload, Callable[..., Any]]:
    """The table itself. The public list of core decompositions also has composite operators, which the tracer decomposes anyway;
    that list takes 100 ms more."""
    table: dict[Any, Callable[..., Any]] = dict(torch._decomp._core_aten_decompositions_post_autograd())
    table.update(torch._decomp.get_decompositions([op for name in FROM_TORCH for op in all_overloads(name)]))
    for op in [op for name in KEPT for op in all_overloads(name)]:
        table.pop(op, None)
    for name, rule in OWN.items():
        table.update(dict.fromkeys(overloads(name), rule))
    table[PAD_CIRCULAR] = functools.partial(pads.padded, kind=pads.CIRCULAR)
    return table
