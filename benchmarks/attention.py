"""`python -m benchmarks.attention [--parts shapes lengths models] [--device cuda] [--seconds 140]`: attention, alone and in
models.

shapes   scaled_dot_product_attention at shapes of real models: PyTorch's choice ("default"), each of its backends by force, and
         one dynamic compile of polytile; wall time of a call, contestants in turns, and the largest error of each against float64
lengths  calls at lengths that come once, in a fresh compile: seconds of all calls together, for the default and for polytile
models   BERT and ViT (transformers), two layers, bfloat16 on a GPU and float32 on a CPU: eager, polytile, and how many operators
         of each kind polytile's program has

A backend that does not take a shape is left out of its row. When `--seconds` are over no row is begun. `attention_cpu.py`
compares kernels on a CPU.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import polytile
from benchmarks import record
from benchmarks.timing import compare, geomean, synchronize

BACKENDS = {
    "cuda": {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION,
             "efficient": SDPBackend.EFFICIENT_ATTENTION, "math": SDPBackend.MATH},
    "cpu": {"flash": SDPBackend.FLASH_ATTENTION, "math": SDPBackend.MATH},
}  # fmt: skip
OPTIONS: dict[str, Any] = {"persist": False, "stall": "tune"}
LARGEST_MATH = 1 << 28
"""Scores up to which those in memory are timed and compared with float64."""
LENGTHS = tuple(64 + 37 * k for k in range(40))


@dataclass(frozen=True)
class Shape:
    """q (batch, heads, rows, size), k and v (batch, groups, keys, size); `mask` is "", "causal", "keys" (booleans for each key of
    each batch) or "bias" (one for each head)."""

    name: str
    batch: int
    heads: int
    groups: int
    rows: int
    keys: int
    size: int
    mask: str = ""
    dtype: torch.dtype = torch.bfloat16

    def tensors(self, device: str) -> dict[str, Any]:
        """Arguments of scaled_dot_product_attention. Heads of a row lie side by side, as projections leave them."""
        q, k, v = (
            torch.randn(self.batch, n, h, self.size, device=device, dtype=self.dtype).transpose(1, 2)
            for n, h in ((self.rows, self.heads), (self.keys, self.groups), (self.keys, self.groups))
        )
        masks = {
            "keys": lambda: torch.rand(self.batch, 1, 1, self.keys, device=device) < 0.9,
            "bias": lambda: torch.randn(1, self.heads, self.rows, self.keys, device=device, dtype=self.dtype),
        }
        mask = masks[self.mask]() if self.mask in masks else None
        return {"query": q, "key": k, "value": v, "attn_mask": mask, "is_causal": self.mask == "causal",
                "enable_gqa": self.heads != self.groups}  # fmt: skip


GPU = (
    Shape("BERT 32x384", 32, 12, 12, 384, 384, 64), Shape("BERT 32x384, padding", 32, 12, 12, 384, 384, 64, "keys"),
    Shape("ViT-B/16 64", 64, 12, 12, 197, 197, 64), Shape("Swin 64 windows", 512, 4, 4, 49, 49, 32, "bias"),
    Shape("T5 8x512", 8, 12, 12, 512, 512, 64, "bias"), Shape("GPT-2 8x1024", 8, 12, 12, 1024, 1024, 64, "causal"),
    Shape("Llama 1x4096", 1, 32, 8, 4096, 4096, 128, "causal"), Shape("Llama 8x1000", 8, 32, 8, 1000, 1000, 128, "causal"),
    Shape("Llama 1x128", 1, 32, 8, 128, 128, 128, "causal"), Shape("Gemma 4x2048", 4, 8, 4, 2048, 2048, 256, "causal"),
    Shape("dense 2x16384", 2, 8, 8, 16384, 16384, 128), Shape("diffusion 2x4096", 2, 24, 24, 4096, 4096, 64),
    Shape("Whisper, across", 8, 16, 16, 448, 1500, 64), Shape("decoding 8x4000", 8, 32, 8, 1, 4000, 128),
    Shape("decoding 1x32000", 1, 32, 8, 1, 32000, 128), Shape("float32 8x512", 8, 12, 12, 512, 512, 64, "", torch.float32),
)  # fmt: skip
CPU = tuple(
    Shape(f"{name}{', bf16' if dtype == torch.bfloat16 else ''}", batch, heads, heads, rows, keys, size, mask, dtype)
    for dtype in (torch.float32, torch.bfloat16)
    for name, batch, heads, rows, keys, size, mask in (
        ("BERT 1x128", 1, 12, 128, 128, 64, ""), ("BERT 4x384, padding", 4, 12, 384, 384, 64, "keys"),
        ("ViT-B/16 2", 2, 12, 197, 197, 64, ""), ("Swin 16 windows", 16, 4, 49, 49, 32, "bias"),
        ("GPT-2 1x512", 1, 12, 512, 512, 64, "causal"), ("decoding 1x1000", 1, 12, 1, 1000, 64, ""),
    )
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=140)
    parser.add_argument("--cell", type=float, default=0.6, help="seconds of timing a row")
    parser.add_argument("--out", default=os.environ.get("OUT"), help="where the results are written")
    parser.add_argument("--json", action="store_true", help=f"also write the results to {record.RESULTS}")
    given = parser.parse_args()
    torch._dynamo.config.recompile_limit = 64
    deadline = time.monotonic() + given.seconds
    results: dict[str, Any] = {"device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu"}
    with torch.no_grad():
        for part in given.parts:
            results[part] = PARTS[part](given.device, given.cell, deadline)
    if given.json or given.out:
        print(record.write(f"attention_shapes_{given.device}", results, Path(given.out or record.RESULTS)))


# shapes ------------------------------------------------------------------------------------------------------------------


def shapes(device: str, seconds: float, deadline: float) -> list[dict[str, Any]]:
    """A row for each shape: microseconds a call and errors of every contestant."""
    rows: list[dict[str, Any]] = []
    for shape in GPU if device == "cuda" else CPU:
        if time.monotonic() > deadline:
            print("no time left for further shapes", flush=True)
            break
        rows.append(row := _row(shape, device, seconds))
        print(json.dumps(row), flush=True)
    ours = [row for row in rows if "polytile" in row["us"]]
    if ours:
        best = [min(us for name, us in row["us"].items() if name not in ("polytile", "default")) for row in ours]
        against = {
            "the default": geomean(row["us"]["default"] / row["us"]["polytile"] for row in ours),
            "the best of the backends": geomean(us / row["us"]["polytile"] for us, row in zip(best, ours, strict=True)),
        }
        print(", ".join(f"{ratio:.3f} times as fast as {name}" for name, ratio in against.items()), flush=True)
    return rows


def _row(shape: Shape, device: str, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    given = shape.tensors(device)
    small = shape.batch * shape.heads * shape.rows * shape.keys <= LARGEST_MATH
    calls: dict[str, Callable[[], Any]] = {"default": lambda: scaled_dot_product_attention(**given)}
    for name, backend in BACKENDS[device].items():
        if name != "math" or small:
            calls[name] = forced(backend, given)
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="polytile", dynamic=True, options=OPTIONS)
    calls["polytile"] = lambda: compiled(**given)
    errors, failed = {}, {}
    floating = {name: x.double() for name, x in given.items() if isinstance(x, Tensor) and x.is_floating_point()}
    wide: dict[str, Any] = {**given, **floating}
    with sdpa_kernel(SDPBackend.MATH):
        wanted = scaled_dot_product_attention(**wide) if small else None
    for name, call in list(calls.items()):
        try:
            result = call()
            synchronize()
            if wanted is not None:
                errors[name] = float((result.double() - wanted).abs().max())
        except Exception as error:  # a backend refuses by an error
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            del calls[name]
    del wanted
    polytile.wait()
    timings = compare(calls, seconds=seconds).timings
    chosen = [f"{d.candidate} ({d.provenance})" for d in polytile.explain(compiled, **given).decisions]
    us = {name: round(timing.low * 1e6, 2) for name, timing in timings.items()}
    return {"shape": shape.name, "us": us, "error": errors, "failed": failed, "chosen": chosen}


def attention(**given: Any) -> Tensor:
    """What is compiled."""
    return scaled_dot_product_attention(**given)


def forced(backend: SDPBackend, given: Mapping[str, Any]) -> Callable[[], Any]:
    """A call by one backend alone."""

    def call() -> Any:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(**given)

    return call


# lengths -----------------------------------------------------------------------------------------------------------------


def lengths(device: str, seconds: float, deadline: float) -> dict[str, Any]:
    """Seconds of calls at lengths that come once each."""
    size = (4, 8) if device == "cuda" else (1, 4)
    shapes = [Shape("", *size, size[1], n, n, 64, "causal", torch.bfloat16) for n in LENGTHS]
    given = [shape.tensors(device) for shape in shapes]
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="polytile", dynamic=True, options={**OPTIONS, "stall": "never"})
    compiled(**given[0])
    took: dict[str, Any] = {}
    for name, call in (("polytile", compiled), ("default", scaled_dot_product_attention)):
        each = []
        for arguments in given[1:]:
            synchronize()
            begun = time.perf_counter()
            call(**arguments)
            synchronize()
            each.append(time.perf_counter() - begun)
        took[name] = {"seconds": sum(each), "slowest": max(each)}
    print(json.dumps(took), flush=True)
    return took


# models ------------------------------------------------------------------------------------------------------------------


def models(device: str, seconds: float, deadline: float) -> list[dict[str, Any]]:
    """A row for each model."""
    rows = []
    for name, make in MODELS.items():
        if time.monotonic() > deadline:
            break
        try:
            model, arguments = make(device)
        except ImportError as error:
            print(f"{name}: {error}", flush=True)
            continue
        rows.append(row := _model_row(name, model, arguments, seconds))
        print(json.dumps(row), flush=True)
    return rows


def _model_row(name: str, model: Any, arguments: Mapping[str, Tensor], seconds: float) -> dict[str, Any]:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="polytile", dynamic=True, options=OPTIONS)
    got, wanted = compiled(**arguments)[0], model(**arguments)[0]
    off = float((got.float() - wanted.float()).abs().mean() / wanted.float().abs().mean())
    polytile.wait()
    calls = {"eager": lambda: model(**arguments), "polytile": lambda: compiled(**arguments)}
    timings = compare(calls, seconds=2 * seconds).timings
    told = polytile.explain(compiled, **arguments)
    kinds = collections.Counter({row.operator: row.count for row in told.operators if "attention" in row.operator})
    chosen = [f"{d.candidate} ({d.provenance})" for d in told.decisions if d.kernel.startswith("attention")]
    us = {contestant: round(timing.low * 1e6, 1) for contestant, timing in timings.items()}
    return {"model": name, "us": us, "mean_error": off, "attention": dict(kinds), "chosen": chosen}


def bert(device: str) -> tuple[Any, dict[str, Tensor]]:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=6 if device == "cuda" else 2, attn_implementation="sdpa"))
    batch, length = (32, 384) if device == "cuda" else (2, 128)
    return _ready(model, device), {"input_ids": torch.randint(1, 1000, (batch, length), device=device)}


def vit(device: str) -> tuple[Any, dict[str, Tensor]]:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(num_hidden_layers=6 if device == "cuda" else 2, attn_implementation="sdpa")
    model = ViTModel(config, add_pooling_layer=False)
    dtype, batch = (torch.bfloat16, 64) if device == "cuda" else (torch.float32, 2)
    return _ready(model, device), {"pixel_values": torch.randn(batch, 3, 224, 224, device=device, dtype=dtype)}


def _ready(model: Any, device: str) -> Any:
    return model.to(device, torch.bfloat16 if device == "cuda" else torch.float32).eval()


MODELS = {"BERT": bert, "ViT": vit}
PARTS: dict[str, Callable[[str, float, float], Any]] = {
    "shapes": shapes, "lengths": lengths, "models": models,
}  # fmt: skip

if __name__ == "__main__":
    main()
