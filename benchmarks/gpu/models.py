"""`python -m benchmarks.gpu.models [--models llama bert gpt2] [--seconds 240]`: Transformers of four layers on a GPU.

Llama 2048 wide, BERT and GPT-2 of base width with random weights, bfloat16, inference, at seven shapes of batch × tokens: kernel
time (replayed graphs, in turns) and wall time of whole calls of eager, one dynamic compile of polytile and the peer's two modes,
each compiled once with both sizes dynamic; seconds of each one's first call at the first shape and of all its first calls. The
contestants come in the order of `--contestants`, the shapes with the most tokens last; when `--seconds` are over no compile and
no cell is begun.
Cells go to OUT/gpu_models_cells.jsonl as they are measured; `--resume` goes on from those of earlier runs and adds contestants.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.grid import Cells
from benchmarks.gpu.product_cell import first_call
from benchmarks.gpu.products_ahead import Compiled
from benchmarks.gpu.replay import kernel_times, wall_times
from benchmarks.timing import geomean
from polytile.report import Table, show

SHAPES = ((1, 16), (1, 128), (1, 512), (8, 64), (8, 300), (8, 512), (32, 128))
TRACED = (5, 77)
DTYPE, LABEL = torch.bfloat16, "bf16"
MOST_OFF = 0.05
"""How far results may be from eager's in the mean, relative to what they are in the mean: bfloat16 through four layers."""
MOST_CALLS = 20
OPTIONS: dict[str, Any] = {"persist": False}
SETTINGS: dict[str, Any] = {"attn_implementation": "sdpa"}


def llama(layers: int = 4) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers, num_attention_heads=32,
                    num_key_value_heads=32, max_position_embeddings=2048, use_cache=False, **SETTINGS)
    )  # fmt: skip


class Decoder(nn.Module):
    """A Llama on a GPU with a static cache of `positions` for each of `batch` sequences: from a token of each and its position,
    one element, the logits of the next."""

    def __init__(self, layers: int = 4, batch: int = 1, positions: int = 512) -> None:
        from transformers import StaticCache

        super().__init__()
        self.model = llama(layers).to("cuda", DTYPE)
        config: Any = self.model.config
        width = config.hidden_size // config.num_attention_heads
        self.cache = StaticCache(config=config, max_cache_len=positions)
        self.cache.early_initialization(batch, config.num_key_value_heads, width, DTYPE, torch.device("cuda"))

    def forward(self, words: Tensor, position: Tensor) -> tuple[Tensor]:
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(position)
        results = self.model(words, past_key_values=self.cache, use_cache=True)
        return (results.logits,)


def bert(layers: int = 4) -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(num_hidden_layers=layers, **SETTINGS))


def gpt2(layers: int = 4) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False, **SETTINGS))


def vit(layers: int = 4) -> nn.Module:
    from transformers import ViTConfig, ViTModel

    return ViTModel(ViTConfig(num_hidden_layers=layers, **SETTINGS))


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama, "bert": bert, "gpt2": gpt2}
PEERS: dict[str, dict[str, Any]] = {"peer": {}, "peer, max-autotune": {"mode": "max-autotune-no-cudagraphs"}}
CONTESTANTS = ("eager", "polytile", *PEERS)


def main() -> None:
    parser = Command(__doc__, "gpu_models", lambda found: report(found["cells"]), gpu=True)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--resume", type=Path, nargs="*", default=[])
    given = parser.parsed()
    torch._dynamo.config.recompile_limit = 64
    deadline, out = time.monotonic() + given.seconds, given.out
    cells = Cells(out / "gpu_models_cells.jsonl")
    for file in given.resume:
        cells.take(file)
    try:
        with torch.inference_mode():
            for place, name in enumerate(given.models):
                share = (deadline - time.monotonic()) / (len(given.models) - place)
                measure(name, given.contestants, cells, time.monotonic() + share)
    finally:
        path = record.write("gpu_models", {"device": torch.cuda.get_device_name(), "cells": cells.rows}, out)
        report(cells.rows)
        print(path)


def measure(name: str, contestants: Sequence[str], cells: Cells, deadline: float) -> None:
    """The cells of one model that lack some of the contestants: those are compiled and called at every shape, then all are timed
    shape by shape."""
    known = {tuple(row["shape"]): row for row in cells.rows if row["function"] == name}
    wanted = [shape for shape in SHAPES if shape not in known or not set(contestants) <= known[shape]["us"].keys()]
    if not wanted:
        return
    model = MODELS[name]().to("cuda", DTYPE).eval()
    calls: dict[str, Callable[[Tensor], Tensor]] = {}
    took: dict[str, list[float]] = {}
    for contestant in contestants:
        if time.monotonic() > deadline:
            print(f"{name}: no time left for {contestant}", flush=True)
            continue
        try:
            call = made(contestant, model, wanted)
            took[contestant] = [first_call(call, tokens(*shape))[1] for shape in wanted]
            if contestant == "polytile":
                settle(call, wanted)
        except Exception as error:
            torch.cuda.synchronize()
            print(f"{name}, {contestant}: {type(error).__name__}: {str(error)[:400]}", flush=True)
            continue
        calls[contestant] = call
        print(f"{name}, {contestant}: first call {took[contestant][0]:.1f} s, all {sum(took[contestant]):.1f} s", flush=True)
    for shape in wanted:
        bound = {who: functools.partial(call, *tokens(*shape)) for who, call in calls.items()}
        us, wall = kernel_times(bound, places=1), wall_times(bound)
        wrong = off(calls, shape)
        first = {who: round(seconds[0], 2) for who, seconds in took.items()}
        all_first = {who: round(sum(found), 2) for who, found in took.items()}
        added = {"us": us, "wall_us": wall, "first_call_s": first, "first_calls_s": all_first}
        merged = {key: {**known.get(shape, {}).get(key, {}), **found} for key, found in added.items()}
        cells.add({"function": name, "dtype": LABEL, "shape": list(shape), **merged, "wrong": wrong})
        print(f"{name} {shape}: " + ", ".join(f"{who} {t:.0f}" for who, t in us.items()) + f" µs {wrong}", flush=True)


def settle(call: Callable[[Tensor], Tensor], shapes: Sequence[tuple[int, int]]) -> None:
    """Calls until nothing is measured any more: what the first call's budget left out is measured by later ones."""
    for _ in range(MOST_CALLS):
        before = polytile.counters["candidates_benchmarked"]
        for shape in shapes:
            call(*tokens(*shape))
        if polytile.counters["candidates_benchmarked"] == before:
            return


def tokens(batch: int, length: int) -> tuple[Tensor]:
    return (torch.randint(30000, (batch, length), device="cuda"),)


def made(contestant: str, model: nn.Module, shapes: Sequence[tuple[int, int]]) -> Callable[..., Tensor]:
    """The model under one compile; for polytile what the shapes will try is being compiled when this returns."""

    def run(words: Tensor) -> Tensor:
        results: Tensor = model(words)[0]
        return results

    if contestant == "eager":
        return run
    if contestant == "polytile":
        compiled = Compiled(run, tokens, TRACED, OPTIONS)
        compiled.ask(shapes)
        return compiled.call
    return torch.compile(run, dynamic=True, **PEERS[contestant])


def off(calls: Mapping[str, Callable[[Tensor], Tensor]], shape: tuple[int, int]) -> str:
    """Whose results are far from eager's; "" where none are, or eager takes no part."""
    if "eager" not in calls:
        return ""
    words = tokens(*shape)
    right = calls["eager"](*words).float()
    scale = right.abs().mean()
    errors = {who: float((call(*words).float() - right).abs().mean() / scale) for who, call in calls.items() if who != "eager"}
    return "; ".join(f"{who} is off by {error:.2g} of the mean" for who, error in errors.items() if not error <= MOST_OFF)


def report(rows: Sequence[Mapping[str, Any]]) -> None:
    """Each cell, then for each model how polytile stands to eager and to the better of the peer's modes."""
    body: list[tuple[Any, ...]] = []
    for row in rows:
        times = [f"{row['us'][who]:.0f}" if who in row["us"] else "" for who in CONTESTANTS]
        ratios = [f"{ratio:.2f}" if ratio else "" for ratio in (_over(row, ("eager",)), _over(row, PEERS))]
        body.append((row["function"], "×".join(map(str, row["shape"])), *times, *ratios, row["wrong"]))
    columns = ["model", "shape", *CONTESTANTS, "over eager", "over the peer", ""]
    show(Table.from_rows("kernel time of a whole call, µs", columns, body))
    body = []
    for name in dict.fromkeys(row["function"] for row in rows):
        own = [row for row in rows if row["function"] == name]
        found = [[ratio for row in own if (ratio := _over(row, others))] for others in (("eager",), PEERS)]
        told = [f"{geomean(ratios):.3f}, worst {max(ratios):.2f}" if ratios else "" for ratios in found]
        seconds = [f"{own[0]['first_calls_s'][who]:.0f}" if who in own[0]["first_calls_s"] else "" for who in CONTESTANTS[1:]]
        body.append((name, len(own), *told, *seconds))
    columns = ["model", "shapes", "polytile over eager", "over the peer's better mode", *[f"s, {who}" for who in CONTESTANTS[1:]]]
    show(Table.from_rows("models of four layers: kernel time, and seconds of all first calls", columns, body))


def _over(row: Mapping[str, Any], others: Sequence[str] | Mapping[str, Any]) -> float:
    """polytile's time over the best of these; 0 where either is not known."""
    times = [row["us"][who] for who in others if who in row["us"]]
    return row["us"]["polytile"] / min(times) if times and "polytile" in row["us"] else 0.0


if __name__ == "__main__":
    main()
