"""Small models of the usual kinds. Each says what its inputs are for a given size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Encoder(nn.Module):
    """One Transformer layer over tokens, with attention written out (matmul, softmax, matmul) or as one operator."""

    def __init__(
        self, width: int = 32, heads: int = 4, words: int = 50, dropout: float = 0.0, fused: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.dropout, self.fused = heads, dropout, fused
        self.tokens = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(128, width) * 0.1)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        return scores.softmax(-1) @ v

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: int64 [batch, length]; result: float [batch, length, width]."""
        batch, length = tokens.shape
        x = self.tokens(tokens) + self.positions[:length]
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, -1))
        x = self.norm1(x + F.dropout(mixed, self.dropout, self.training))
        return self.norm2(x + F.dropout(self.down(F.gelu(self.up(x))), self.dropout, self.training))


class Head(nn.Module):
    """Class scores and their softmax cross-entropy with the targets, a scalar."""

    def __init__(self, width: int = 24, classes: int = 37) -> None:
        super().__init__()
        self.scores = nn.Linear(width, classes)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(x), targets)


class Normed(nn.Module):
    """Convolution, BatchNorm and ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.convolution(x)))


class Bag(nn.Module):
    """Mean of word vectors, then a projection."""

    def __init__(self, words: int = 60, width: int = 16) -> None:
        super().__init__()
        self.words, self.project = nn.Embedding(words, width), nn.Linear(width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.project(torch.tanh(self.words(tokens)).mean(1))


class TwoNorms(nn.Module):
    """Two residual steps of a Transformer, each linear → dropout → add → LayerNorm; the dropped tensors are returned
    too."""

    def __init__(self, width: int = 64, p: float = 0.5) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.p = p

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one = F.dropout(self.first(x), self.p, self.training)
        x = self.norm1(x + one)
        two = F.dropout(F.gelu(self.second(x)), self.p, self.training)
        return self.norm2(x + two), one, two


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 48), nn.GELU(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 7))


def tokens(batch: int, length: int, words: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    return torch.randint(words, (batch, length), generator=generator)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def head_inputs(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 24, generator=generator), torch.randint(37, (size,), generator=generator)


Inputs = Callable[[int], tuple[Any, ...]]

MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "encoder": (Encoder, lambda n: (tokens(2 + n % 5, n, 50),)),
    "encoder with one attention operator": (lambda: Encoder(fused=True), lambda n: (tokens(2 + n % 5, n, 50),)),
    "mlp": (mlp, lambda n: (rows(n, 20),)),
    "cross entropy": (Head, head_inputs),
    "layer norm": (lambda: nn.LayerNorm(40), lambda n: (rows(n, 40),)),
    "batch norm": (Normed, lambda n: (rows(2 + n % 4, 3, n, n + 3),)),
    "embedding": (Bag, lambda n: (tokens(n, 3 + n % 7, 60),)),
}
"""Model and its inputs for a size ≥ 2; no two sizes within one input of the first call are equal."""


def made(name: str) -> nn.Module:
    """The model `name` with weights that depend on nothing else."""
    torch.manual_seed(7)
    return MODELS[name][0]()
