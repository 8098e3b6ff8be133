"""What serves the requests of a stream: a decoder, its training, a recommender; and the requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[..., Any]


@dataclass(frozen=True)
class Request:
    """`batch` sequences of `length` tokens, or users with a history of so many items."""

    batch: int
    length: int


class RMSNorm(nn.Module):
    """Written out, as models have it: ATen has no kernel of it on a CPU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * self.weight


class Layer(nn.Module):
    """Rotary attention to earlier positions and a gated network, each normalised before and added after, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads, inner = width // 64, 64 * (width * 8 // 3 // 64)
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x and the result: [batch, length, width]; cos and sin: [length, 64]."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        q, k = (one * cos + torch.cat((-one[..., 32:], one[..., :32]), -1) * sin for one in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    """Tokens in, int64 [batch, length]; scores of the next token out, [batch, tokens], or, with `training`, their mean cross
    entropy at every position."""

    def __init__(self, layers: int, width: int, tokens: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = RMSNorm(width)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        turns = torch.arange(32, device=x.device, dtype=torch.float32) / -32
        angles = torch.arange(tokens.shape[1], device=x.device)[:, None] * 10000.0**turns
        cos, sin = (torch.cat((part, part), -1).to(x.dtype) for part in (angles.cos(), angles.sin()))
        for layer in self.layers:
            x = layer(x, cos, sin)
        if not self.training:
            return self.norm(x[:, -1]) @ self.tokens.weight.t()
        scores = self.norm(x) @ self.tokens.weight.t()
        return F.cross_entropy(scores[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class Recommender(nn.Module):
    """Numbers [batch, 13], categories int64 [batch, 8] and a history of items int64 [batch, length] in; the probability of a
    click out, [batch]. Each pair of embeddings is multiplied, as in DLRM."""

    first: Tensor
    second: Tensor

    def __init__(self, items: int = 20000, width: int = 32) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.bottom = nn.Sequential(nn.Linear(13, 128), nn.ReLU(), nn.Linear(128, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 45, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
        first, second = torch.triu_indices(10, 10, 1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, numbers: Tensor, categories: Tensor, history: Tensor) -> Tensor:
        dense = self.bottom(torch.log1p(numbers))
        features = torch.cat((dense[:, None], self.items(categories), self.items(history).mean(1, keepdim=True)), 1)
        pairs = (features @ features.transpose(1, 2))[:, self.first, self.second]
        return torch.sigmoid(self.top(torch.cat((dense, pairs), 1)).squeeze(1))


@dataclass(frozen=True)
class Workload:
    """`model` gives a model for a type of device, in evaluation mode unless `trains`; `inputs` what it is called with. `most`
    are the largest batch and length by type of device; `tolerance` is how far a number of a result may be from eager's, as a part
    of itself and of the mean of all. A stream of `times` as many requests takes about as long as others."""

    what: str
    model: Callable[[str], nn.Module]
    inputs: Callable[[Request, torch.Generator], Sequence[Tensor]]
    most: dict[str, Request]
    trains: bool
    tolerance: dict[str, float]
    times: int = 1

    def requests(self, device: str, number: int, seed: int) -> list[Request]:
        """The first requests of the stream: batch and length are uniformly random; a length is at least 2."""
        most, chance = self.most[device], random.Random(seed)
        return [Request(chance.randint(1, most.batch), chance.randint(2, most.length)) for _ in range(number * self.times)]

    def arguments(self, request: Request, number: int, device: str) -> list[Tensor]:
        """What the model is called with for the request of this number: the same in every process."""
        made = self.inputs(request, torch.Generator().manual_seed(number))
        return [tensor.to(device) for tensor in made]


LAYERS = {"cpu": (3, 256, 2048), "cuda": (6, 1024, 32000)}
"""Of the decoder: layers, width, tokens."""


def _decoder(device: str) -> nn.Module:
    model = Decoder(*LAYERS[device]).eval()
    return model.to(device, torch.bfloat16) if device == "cuda" else model


def _trained(device: str) -> nn.Module:
    return Decoder(*LAYERS[device]).to(device).train()


def _tokens(request: Request, generator: torch.Generator) -> Sequence[Tensor]:
    return [torch.randint(2000, (request.batch, request.length), generator=generator)]


def _users(request: Request, generator: torch.Generator) -> Sequence[Tensor]:
    numbers = torch.rand(request.batch, 13, generator=generator) * 100
    ids = (torch.randint(20000, (request.batch, many), generator=generator) for many in (8, request.length))
    return [numbers, *ids]


WORKLOADS = {
    "decoder": Workload(
        "decoder, inference", _decoder, _tokens, {"cpu": Request(8, 256), "cuda": Request(8, 512)}, False,
        {"cpu": 1e-4, "cuda": 0.05},
    ),
    "training": Workload(
        "decoder, training", _trained, _tokens, {"cpu": Request(4, 128), "cuda": Request(8, 512)}, True,
        {"cpu": 1e-2, "cuda": 0.1},
    ),
    "mlp": Workload(
        "recommender, inference", lambda device: Recommender().eval().to(device), _users,
        {"cpu": Request(256, 50), "cuda": Request(2048, 200)}, False, {"cpu": 1e-4, "cuda": 1e-2}, times=20,
    ),
}  # fmt: skip


class Server:
    """A model and what it does with a request: a forward pass, or a step of training by SGD."""

    def __init__(self, workload: Workload, device: str, compiled: Callable[[nn.Module], Step]) -> None:
        torch.manual_seed(0)
        self.workload, self.device = workload, device
        self.model = workload.model(device)
        self._compile = compiled
        self._step: Step | None = None
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3) if workload.trains else None

    def make(self) -> None:
        """Has the model compiled."""
        self._step = self._compile(self.model)

    def __call__(self, arguments: Sequence[Tensor]) -> Tensor:
        """The result, or the loss."""
        assert self._step is not None
        if self._optimizer is None:
            with torch.no_grad():
                found: Tensor = self._step(*arguments)
            return found
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss: Tensor = self._step(*arguments)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def sample(self, result: Tensor, numbers: int = 16) -> Tensor:
        """Numbers that tell a wrong result: some of the result's own, or the loss and the norm of each weight's gradient."""
        if self._optimizer is not None:
            sizes = torch._foreach_norm([p.grad for p in self.model.parameters() if p.grad is not None])
            return torch.stack([result, *sizes])
        flat = result.flatten().float()
        return torch.cat((flat.abs().mean()[None], flat[:: max(1, len(flat) // numbers)][:numbers]))


__all__ = ["WORKLOADS", "Request", "Server", "Step", "Workload"]
