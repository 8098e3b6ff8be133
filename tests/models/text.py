"""Models of sequences: a decoder in the manner of GPT, recurrent cells."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Causal attention, written out, and a perceptron, each after a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, future: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5).masked_fill(future, float("-inf"))
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Decoder(nn.Module):
    """Scores of the next token at each place, from the embedding's own weights, and their cross-entropy."""

    def __init__(self, words: int = 61, width: int = 32, heads: int = 4, layers: int = 2, longest: int = 128) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens: int64 [batch, length]."""
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        future = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        for block in self.blocks:
            x = block(x, future)
        scores = self.norm(x) @ self.tokens.weight.t()
        return scores, F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Recurrent(nn.Module):
    """Four steps of an LSTM cell whose outputs a GRU cell reads."""

    def __init__(self, inputs: int = 11, width: int = 24) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(inputs, width), nn.GRUCell(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: float [batch, 4, inputs]."""
        h = c = x.new_zeros(x.shape[0], self.lstm.hidden_size)
        g = torch.zeros_like(h)
        for step in x.unbind(1):
            h, c = self.lstm(step, (h, c))
            g = self.gru(h, g)
        return h, c, g
