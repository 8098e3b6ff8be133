"""Keeps scaled_dot_product_attention whole on its way through AOTAutograd.

PyTorch decomposes the function while a graph is traced, by the rules of the backend that it would choose for the traced tensors.
For the backend with scores in memory, only two products and a softmax are left. So Dynamo's graph calls `attention` instead,
which emits the operator polytile::attention wherever that is equivalent and no gradient is wanted. With a gradient it emits that
of trained.py; not in graphs inside the graph, such as those of checkpointed regions, whose policies name PyTorch's operators.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import _disable_current_modes

from polytile.frontend.attention import varlen
from polytile.frontend.attention.flex import write_out
from polytile.frontend.attention.operator import ATTENTION
from polytile.frontend.attention.trained import TRAINED, is_trained
from polytile.frontend.hints import traced_size
from polytile.ir.attention import EMPTY

FUNCTIONS = (scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MANY = 512
"""Rows up to which PyTorch is asked about tensors as long as the traced ones."""


def keep_whole(graph: torch.fx.GraphModule) -> None:
    """Make Dynamo's graph, and the graphs inside it, call `attention` and `varlen_attention`, and write out flex_attention."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            calls = [node for node in module.graph.nodes if node.op == "call_function" and node.target in FUNCTIONS]
            for node in calls:
                node.target = attention if module is graph else attention_inside
            changed = [bool(calls), write_out(module), varlen.replace_calls(module)]
            if any(changed):
                module.recompile()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """scaled_dot_product_attention, as one operator where possible."""
    if torch.is_autocast_enabled(query.device.type):
        query, key, value, attn_mask = (_cast_as_autocast(tensor, query.device.type) for tensor in (query, key, value, attn_mask))
    tensors = (query, key, value)
    trains = _wants_gradient(*tensors, attn_mask)
    ours = _is_ours(tensors, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if not ours or (trains and not is_trained(*tensors, is_causal)):
        return scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    q, k, v = (_of_rank_4(tensor) for tensor in tensors)
    bias = None
    if attn_mask is not None:
        bias = (attn_mask if query.ndim == 4 else _of_rank_4(attn_mask)).expand(*q.shape[:3], k.shape[2])
    causal = "top left" if is_causal else ""
    heads_inside = query.is_cuda and _serves_efficiently(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if trains:
        return TRAINED(q, k, v, bias, scale, causal, heads_inside)[0]
    out = ATTENTION(q, k, v, bias, scale, causal, EMPTY, True, heads_inside)
    return out.squeeze(1) if query.ndim == 3 else out


def _serves_efficiently(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float | None, grouped: bool
) -> bool:
    """Whether PyTorch serves the call by its memory-efficient kernels, whose result has the heads of a row contiguous.

    PyTorch is asked about real tensors like the traced ones, but of one batch and fewer rows: for fake ones it names the math
    backend. This adds no guard. The choice depends on dtypes, layouts and the lengths of heads, which a graph is compiled for;
    a size on which it depends too is rare."""
    if query.ndim != 4 or not torch.cuda.is_available():
        return False
    rows, columns = (traced_size(each.shape[2]) for each in (query, key))
    few, columns_few = (n if n <= MANY else MANY + n % 128 for n in (rows, columns))
    columns_few += 128 if rows != columns and few == columns_few else 0
    with _disable_current_modes():
        q, k, v = (_shorter(each, n) for each, n in ((query, few), (key, columns_few), (value, columns_few)))
        bias = None
        if mask is not None:
            bias = torch.empty((1, 1, few, columns_few), dtype=mask.dtype, device=q.device).expand(1, q.shape[1], -1, -1)
        choice = torch._fused_sdp_choice(q, k, v, bias, 0.0, causal, scale=scale, enable_gqa=grouped)
    return choice == SDPBackend.EFFICIENT_ATTENTION.value


def _shorter(traced: Tensor, rows: int) -> Tensor:
    """An empty tensor of one batch and `rows` rows, whose dimensions lie in the order of those of a traced tensor of rank 4."""
    steps = [traced_size(step) for step in traced.stride()]
    order = sorted(range(4), key=lambda dimension: -steps[dimension])
    heads, columns = traced_size(traced.shape[1]), traced_size(traced.shape[3])
    return torch.empty_permuted((1, heads, rows, columns), order, dtype=traced.dtype, device=traced.device)


def attention_inside(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The same in a graph inside Dynamo's graph: PyTorch's operator if a gradient is wanted."""
    if _wants_gradient(query, key, value, *args[:1], kwargs.get("attn_mask")):
        return scaled_dot_product_attention(query, key, value, *args, **kwargs)
    return attention(query, key, value, *args, **kwargs)


def _cast_as_autocast(tensor: Any, device: str) -> Any:
    """A tensor in the dtype in which autocast has the function compute."""
    cast = isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype(device)) if cast else tensor


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _is_ours(tensors: tuple[Tensor, ...], mask: Tensor | None, dropout: float, causal: bool, scale: Any, grouped: bool) -> bool:
    """Whether the operator is equivalent to the function for these arguments."""
    query, key, value = tensors
    if dropout != 0 or (causal and mask is not None) or isinstance(scale, torch.SymFloat):
        return False
    alike = all(t.dtype == query.dtype and t.device == query.device and t.ndim == query.ndim for t in tensors)
    able = alike and query.ndim in (3, 4) and query.dtype in DTYPES and query.device.type in ("cpu", "cuda")
    if not able or (mask is not None and (mask.dtype not in (torch.bool, query.dtype) or mask.ndim > query.ndim)):
        return False
    if mask is not None and query.ndim == 3 and mask.ndim == 1:
        return False
    leading = 2 if query.ndim == 4 and not grouped else 1
    same = torch.fx.experimental.symbolic_shapes.statically_known_true
    return all(same(t.shape[d] == query.shape[d]) for t in (key, value) for d in range(leading)) and (
        not grouped or query.ndim == 4
    )


def _of_rank_4(tensor: Tensor) -> Tensor:
    """(batch, rows, columns), or (rows, columns), with a head dimension of 1."""
    return tensor if tensor.ndim == 4 else tensor.unsqueeze(-3)
