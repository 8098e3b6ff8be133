"""A decoder with a mixture of experts in each layer, Mixtral's, on a CPU: `python -m benchmarks.experts --json`.

Its experts are grouped products of tokens sorted by expert, or a loop over the experts that have tokens, as transformers writes
them by default and with `experts_implementation="eager"`. Each is timed by eager and by one compile of polytile for all shapes,
in turns. The loop breaks the graph, since tokens decide how often it turns.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.timing import compare
from polytile.report import Column, Table, show
from polytile.report.tables import ratio


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
ON_CPU = Sizes(256, 512, 1792, 8, 2, 8, 2)
SHAPES = ((1, 1), (1, 16), (1, 128), (4, 300))
"""(batch, tokens)."""
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
OPTIONS: dict[str, Any] = {"persist": False, "stall": "tune"}


class Experts(nn.Module):
    """Each token's `chosen` experts, weighted: gate and up projections, SiLU, down projection."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.count, self.chosen = sizes.experts, sizes.chosen
        self.router = nn.Linear(sizes.width, sizes.experts, bias=False)
        self.up = nn.Parameter(torch.randn(sizes.experts, 2 * sizes.inner, sizes.width) * sizes.width**-0.5)
        self.down = nn.Parameter(torch.randn(sizes.experts, sizes.width, sizes.inner) * sizes.inner**-0.5)

    def routed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's share of its experts, and their numbers: (tokens, chosen)."""
        weights, experts = torch.softmax(self.router(x).float(), -1).topk(self.chosen, -1)
        return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), experts

    def forward(self, x: Tensor) -> Tensor:
        """x: (tokens, width)."""
        weights, experts = self.routed(x)
        weights = weights.reshape(-1)
        sorted_experts, order = experts.reshape(-1).sort()
        ends = (sorted_experts[:, None] == torch.arange(self.count, device=x.device)).sum(0).cumsum(0, dtype=torch.int32)
        gate, up = F.grouped_mm(x[order // self.chosen], self.up.transpose(1, 2), offs=ends).chunk(2, -1)
        out = F.grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends) * weights[order][:, None]
        back = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
        return out[back].view(len(x), self.chosen, -1).sum(1)


class LoopedExperts(Experts):
    """The same in a loop over the experts that have tokens."""

    def forward(self, x: Tensor) -> Tensor:
        weights, experts = self.routed(x)
        out = torch.zeros_like(x)
        with torch.no_grad():
            mask = F.one_hot(experts, self.count).permute(2, 1, 0)
            hit = mask.sum((-1, -2)).greater(0).nonzero()
        for each in hit:
            expert = each[0]
            place, token = torch.where(mask[expert])
            gate, up = F.linear(x[token], self.up[expert]).chunk(2, -1)
            own = F.linear(F.silu(gate) * up, self.down[expert]) * weights[token, place, None]
            out.index_add_(0, token, own.to(out.dtype))
        return out


class Layer(nn.Module):
    def __init__(self, sizes: Sizes, experts: type[Experts]) -> None:
        super().__init__()
        self.heads, self.shared = sizes.heads, sizes.shared_heads
        head = sizes.width // sizes.heads
        self.qkv = nn.Linear(sizes.width, (sizes.heads + 2 * sizes.shared_heads) * head, bias=False)
        self.out = nn.Linear(sizes.width, sizes.width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(sizes.width, 1e-5) for _ in range(2))
        self.experts = experts(sizes)

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

    def __init__(self, sizes: Sizes, experts: type[Experts] = Experts) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes, experts) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.width, 1e-5)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: (batch, length) of integers."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


WAYS: dict[str, type[Experts]] = {"loop": LoopedExperts, "grouped": Experts}


def measured(dtype: str, shapes: Sequence[tuple[int, int]], seconds: float) -> list[dict[str, Any]]:
    """A row for each shape: µs of a call of each way by eager and by polytile, and how far each is from eager's loop."""
    torch.manual_seed(0)
    grouped = Decoder(ON_CPU).to(DTYPES[dtype]).eval()
    calls: dict[str, Any] = {}
    for way, experts in WAYS.items():
        decoder = Decoder(ON_CPU, experts).to(DTYPES[dtype]).eval()
        decoder.load_state_dict(grouped.state_dict())
        calls |= {f"eager, {way}": decoder, f"polytile, {way}": polytile.compile(decoder, options=OPTIONS)}
    rows = []
    for batch, length in sorted(shapes, key=lambda shape: 1 in shape):
        tokens = torch.randint(0, ON_CPU.vocabulary, (batch, length))
        right = calls["eager, loop"](tokens).double()
        off = {name: float((call(tokens).double() - right).abs().mean() / right.abs().mean()) for name, call in calls.items()}
        polytile.wait()
        timings = compare({name: functools.partial(call, tokens) for name, call in calls.items()}, seconds=seconds)
        us = {name: round(timing.low * 1e6, 1) for name, timing in timings.timings.items()}
        rows.append({"dtype": dtype, "batch": batch, "length": length, "us": us, "off": off, "others": round(timings.others, 2)})
        print(rows[-1], flush=True)
    return rows


def show_results(results: Mapping[str, Any]) -> None:
    rows = sorted(results["rows"], key=lambda row: (row["dtype"], row["batch"], row["length"]))
    body = []
    for row in rows:
        us = row["us"]
        loop, grouped = us["eager, loop"] / us["polytile, loop"], us["eager, grouped"] / us["polytile, grouped"]
        both = us["eager, loop"] / us["polytile, grouped"]
        body.append((row["dtype"], f"{row['batch']}×{row['length']}", us["eager, loop"] / 1e3, loop, grouped, both))
    columns: list[Column | str] = [
        "type", "tokens", Column("eager's loop, ms", lambda ms: f"{ms:.2f}"), Column("loop", ratio), Column("grouped", ratio),
        Column("eager's loop over polytile's grouped", ratio),
    ]  # fmt: skip
    show(Table.from_rows("Two layers with eight experts: eager's time over polytile's", columns, body))


def main() -> None:
    parser = Command(__doc__, "experts", show_results, json=True)
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing a shape")
    given = parser.parsed()
    torch._dynamo.config.recompile_limit = 64
    with torch.no_grad():
        results = {"rows": [row for dtype in given.dtypes for row in measured(dtype, SHAPES, given.seconds)]}
    if given.json:
        record.write("experts", results)
    show_results(results)


if __name__ == "__main__":
    main()
