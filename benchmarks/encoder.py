"""A Transformer of BERT base width over bytes, in plain PyTorch; the demo and the compile-time benchmark compile it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BYTES = 256
LONGEST = 512


class Block(nn.Module):
    """Self-attention and a two-layer GELU network, each added to its input and normalised after, as in BERT."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result: [batch, length, width]. A position attends to itself and those before it."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        x = self.norm1(x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width))))
        return self.norm2(x + self.drop(self.down(F.gelu(self.up(x)))))


class FeedForward(nn.Module):
    """The second half of a layer that normalises before: x + down(gelu(up(norm(x))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Layer(nn.Module):
    """Attention of all positions to all, and a two-layer GELU network, each normalised before, for one sequence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.network(x + self.out(mixed.transpose(1, 2).flatten(-2)))


class Encoder(nn.Module):
    """Bytes in, a score for each possible next byte out: int64 [batch, length] → float [batch, length, 256]."""

    def __init__(
        self, layers: int = 4, width: int = 768, heads: int = 12, inner: int = 3072, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BYTES, width)
        self.positions = nn.Embedding(LONGEST, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, inner, dropout) for _ in range(layers))
        self.dropout = dropout
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        where = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.positions(where))
        x = F.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x)
        return x @ self.tokens.weight.t()

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross entropy of each byte given those before it; a scalar."""
        scores = self(tokens[:, :-1])
        return F.cross_entropy(scores.reshape(-1, BYTES), tokens[:, 1:].reshape(-1))


def encoder(seed: int = 0, device: str = "cpu", dropout: float = 0.1) -> Encoder:
    """The encoder with random weights that depend on `seed` alone, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Encoder(dropout=dropout).to(device).eval()


__all__ = ["Encoder", "encoder"]
