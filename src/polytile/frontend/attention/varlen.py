"""Attention of packed sequences, torch.nn.attention.varlen.varlen_attn, as operators that run on every device.

    varlen_attention(q, k, v, q_starts, k_starts, k_used, table, max_q, max_k, scale, before, after) -> (out, lse)
    varlen_attention_backward(grad, q, k, v, out, lse, q_starts, k_starts, max_q, max_k, scale, before, after) -> (dq, dk, dv)

q is (total rows, heads, d); k and v are (total keys, heads of k, d), or pages (pages, page, heads of k, d) with a `table`. lse is
(heads, total rows), with inf for rows that attend to no key. attention.layout explains q_starts, k_starts, k_used and table. Row
m of a sequence attends to the keys from m + keys - rows - before to m + keys - rows + after; -1 means unbounded on that side.

Dynamo's graph calls torch_attn::_varlen_attn, which runs only on GPUs and in 16-bit dtypes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch import Tensor

from polytile.ir.attention import EMPTY, attend_sequences, attend_sequences_backward

TORCH = "torch_attn::_varlen_attn"
OURS = "polytile::varlen_attention"
_library = torch.library.Library("polytile", "FRAGMENT")
_library.define(
    "varlen_attention(Tensor q, Tensor k, Tensor v, Tensor q_starts, Tensor? k_starts, Tensor? k_used, Tensor? table, "
    "SymInt max_q, SymInt max_k, float? scale, SymInt before, SymInt after) -> (Tensor, Tensor)"
)
_library.define(
    "varlen_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor q_starts, "
    "Tensor k_starts, SymInt max_q, SymInt max_k, float? scale, SymInt before, SymInt after) -> (Tensor, Tensor, Tensor)"
)


def replace_calls(module: torch.fx.GraphModule) -> bool:
    """Make Dynamo's graph call the operator above in place of torch's; returns whether it did."""
    replaced = False
    for node in module.graph.nodes:
        packet = getattr(node.target, "overloadpacket", node.target)
        of_torch = node.op == "call_function" and getattr(packet, "_qualified_op_name", "") == TORCH
        if of_torch and _is_ours(arguments := given(node)):
            before, after = (-1, 0) if arguments["is_causal"] else arguments["window_size"] or (-1, -1)
            node.args = (
                *[arguments[name] for name in ("query", "key", "value", "cu_seq_q", "cu_seq_k", "seqused_k", "block_table")],
                arguments["max_q"], arguments["max_k"], arguments["scale"], before, after,
            )  # fmt: skip
            node.kwargs, node.target, replaced = {}, VARLEN, True
    return replaced


KNOWN = frozenset((
    "query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "is_causal", "scale", "window_size", "enable_gqa",
    "seqused_k", "block_table", "backend",
))  # fmt: skip
"""Supported arguments. `backend` is the kernel that torch would run."""


def _is_ours(arguments: dict[str, Any]) -> bool:
    """Whether no other feature is requested, such as caches that are written, or a number of splits."""
    return all(name in KNOWN or value is None for name, value in arguments.items())


def given(node: torch.fx.Node) -> dict[str, Any]:
    """The arguments of a call of torch's operator by name; None for those that this version of torch lacks."""
    packet: Any = getattr(node.target, "overloadpacket", node.target)
    names = [argument.name for argument in packet.default._schema.arguments]
    later = dict.fromkeys(("scale", "window_size", "seqused_k", "block_table", "is_causal"))
    return {**later, **dict(zip(names, node.args, strict=False)), **node.kwargs}


def _new_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:2], v.shape[-1])), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@torch.library.register_fake(OURS, lib=_library)
def _fake(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _new_results(q, v)


def _run(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor | None, k_used: Tensor | None, table: Tensor | None,
    max_q: int, max_k: int, scale: float | None, before: int, after: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Runs the operator before a program exists: by FlashAttention's kernel if it applies, else sequence by sequence."""
    if q.is_cuda and table is None and q.dtype.itemsize == 2:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, q_starts, k_starts, max_q, max_k, 0.0, (before, after) == (-1, 0), False, scale=scale,
            window_size_left=before, window_size_right=after, seqused_k=k_used,
        )  # fmt: skip
        return out, lse
    out, lse = _new_results(q, v)
    named = {"q_starts": q_starts, "k_starts": k_starts, "table": table, "k_used": k_used}
    indices = {name: tensor for name, tensor in named.items() if tensor is not None}
    if table is not None:
        indices.pop("k_starts", None)
    q, k, v, like_q = (tensor.transpose(-2, -3) for tensor in (q, k, v, out))
    count = q_starts.shape[0] - 1
    attend_sequences(q, k, v, like_q, lse, indices, count, max_k, scale=scale, window=(before, after))
    return out, lse.masked_fill_(lse == EMPTY, -EMPTY)


@torch.library.register_fake("polytile::varlen_attention_backward", lib=_library)
def _fake_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v))
    return dq, dk, dv


def _run_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, q_starts: Tensor, k_starts: Tensor,
    max_q: int, max_k: int, scale: float | None, before: int, after: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if q.is_cuda and q.dtype.itemsize == 2:
        state = torch.zeros(2, dtype=torch.uint64, device=q.device), torch.empty(0, device=q.device)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            grad, q, k, v, out, lse, q_starts, k_starts, max_q, max_k, 0.0, (before, after) == (-1, 0), *state, scale=scale,
            window_size_left=before, window_size_right=after,
        )  # fmt: skip
        return dq, dk, dv
    gradients = _fake_backward(grad, q, k, v)
    like_q, like_k, like_v = (tensor.transpose(0, 1) for tensor in gradients)
    q, k, v, out, grad = (tensor.transpose(0, 1) for tensor in (q, k, v, out, grad))
    indices, count = {"q_starts": q_starts, "k_starts": k_starts}, q_starts.shape[0] - 1
    attend_sequences_backward(
        q, k, v, out, lse, grad, (like_q, like_k, like_v), indices, count, scale=scale, window=(before, after)
    )
    return gradients


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, q_starts, k_starts, k_used, table, *rest = inputs
    if k_used is not None or table is not None:
        raise RuntimeError(
            "varlen_attn has no gradient with seqused_k or block_table, as in eager: call it under no_grad()."
        )
    ctx.save_for_backward(q, k, v, *output, q_starts, k_starts)
    ctx.rest = rest


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    """As in eager, the log-sum-exp has no gradient."""
    gradients = VARLEN_BACKWARD(grad, *ctx.saved_tensors, *ctx.rest)
    return (*gradients, *[None] * 9)


_library.impl("varlen_attention", _run, "CompositeExplicitAutograd")
_library.impl("varlen_attention_backward", _run_backward, "CompositeExplicitAutograd")
torch.library.register_autograd(OURS, _differentiate, setup_context=_keep, lib=_library)

VARLEN = torch.ops.polytile.varlen_attention.default
VARLEN_BACKWARD = torch.ops.polytile.varlen_attention_backward.default
