"""A decoder with a mixture of experts in each layer: Mixtral's, its experts by grouped products of tokens sorted by expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Mixtral-8x7B's, but for the vocabulary and the number of layers."""

    vocabulary: int = 32000
    width: int = 4096
    inner: int = 14336
    heads: int = 32
    shared_heads: int = 8
    experts: int = 8
    chosen: int = 2
    layers: int = 2


SMALL = Sizes(256, 64, 96, 4, 2, 4, 2)


class Experts(nn.Module):
    """Each token's `chosen` experts, weighted: gate and up projections, SiLU, down projection."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.count, self.chosen = sizes.experts, sizes.chosen
        self.router = nn.Linear(sizes.width, sizes.experts, bias=False)
        self.up = nn.Parameter(torch.randn(sizes.experts, 2 * sizes.inner, sizes.width) * sizes.width**-0.5)
        self.down = nn.Parameter(torch.randn(sizes.experts, sizes.width, sizes.inner) * sizes.inner**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x: (tokens, width)."""
        weights, experts = torch.softmax(self.router(x).float(), -1).topk(self.chosen, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype).reshape(-1)
        sorted_experts, order = experts.reshape(-1).sort()
        ends = (sorted_experts[:, None] == torch.arange(self.count, device=x.device)).sum(0).cumsum(0, dtype=torch.int32)
        gate, up = F.grouped_mm(x[order // self.chosen], self.up.transpose(1, 2), offs=ends).chunk(2, -1)
        out = F.grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends) * weights[order][:, None]
        back = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
        return out[back].view(len(x), self.chosen, -1).sum(1)


class Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, self.shared = sizes.heads, sizes.shared_heads
        head = sizes.width // sizes.heads
        self.qkv = nn.Linear(sizes.width, (sizes.heads + 2 * sizes.shared_heads) * head, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(sizes.width, 1e-5) for _ in range(2))
        self.experts = Experts(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, tokens, width)."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.norms[0](x)).split([width, *[self.shared * width // self.heads] * 2], -1)
        q, k, v = (part.view(batch, tokens, -1, width // self.heads).transpose(1, 2) for part in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.experts(self.norms[1](x).view(-1, width)).view(x.shape)


class Decoder(nn.Module):
    """Logits of the next tokens."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, 1e-5)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (batch, length) of integers."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
