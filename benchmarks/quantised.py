"""`python -m benchmarks.quantised [--device cuda] [--parts layers model torchao] [--peer] [--json]`: weights of 8 and 4 bits.

layers   linear layers with quantised weights at one row to thousands, one dynamic compile for each weight: polytile, eager, the
         same layer in bfloat16 by ATen ("bf16"), and ATen's own operator where it has one for the case ("own"); the largest
         error of each against float64
model    a Llama of two layers with every Linear replaced: eager and one dynamic compile of polytile over changing batches and
         lengths, and the model in bfloat16 beside; with `--peer` one dynamic compile of TorchInductor too
torchao  the same for models that torchao has quantised

On a GPU there is kernel time too: of layers by calls in a CUDA graph, of models by torch's profiler, since eager's calls of
torchao's tensors abort a capture.

A contestant that refuses a size is left out of that row, with what it said. When `--seconds` are over no row is begun; kinds of
models share them. A model's row says which seconds it took: for the first calls, for measuring candidates, for timing, for the
profiler and for the explanation. `--problem-seconds` bounds how long a kernel's candidates are compiled and measured at one range
of sizes. Rows take the place of those for the same in the file that is there, so that kinds may be measured one by one. `--show`
prints them.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.compilers import copied
from benchmarks.gpu.host_time import kernels
from benchmarks.gpu.replay import kernel_times
from benchmarks.matmul import size_of
from benchmarks.quantised_model import LAYERS, TORCHAO, Int4Packed, Llama, Quantised, quantise, quantise_by_torchao
from benchmarks.timing import compare, geomean, synchronize
from polytile.report import Column, Table, show
from polytile.report.tables import ratio

ROWS = {"cpu": (1, 2, 4, 8, 16, 32, 128, 512), "cuda": (1, 4, 16, 17, 64, 256, 1024, 4096)}
WEIGHTS = {"cpu": ((1024, 4096), (4096, 1024)), "cuda": ((4096, 4096), (14336, 4096), (4096, 14336))}
"""(N, K)."""
TOKENS = {"cpu": ((1, 1), (1, 16), (1, 128), (4, 100)), "cuda": ((1, 1), (1, 16), (1, 100), (1, 300), (1, 1000))}
"""(batch, length)."""
MODEL = {"cpu": {"width": 512, "heads": 8, "inner": 1408}, "cuda": {"width": 2048, "heads": 16, "inner": 5632}}
OPTIONS: dict[str, Any] = {"persist": False, "stall": "tune"}
ONLY_ON = {"float8 dynamic": "cuda"}
"""Kinds of layers that only one device has products for."""
DTYPE = torch.bfloat16
Maker = Callable[[nn.Module], nn.Module]
PARTS = ("layers", "model", "torchao")
KINDS = (*LAYERS, *dict.fromkeys(kind for configs in TORCHAO.values() for kind in configs))


def main() -> None:
    parser = Command(__doc__, "quantised_{device}", show_all, json=True, out=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of layers and of models")
    parser.add_argument("--peer", action="store_true", help="TorchInductor's dynamic compile beside models")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", nargs="+", type=int, help="of layers")
    parser.add_argument("--shapes", nargs="+", type=size_of, help="of models: batch and length, such as 1x16")
    parser.add_argument("--problem-seconds", type=float, default=0.0, help="option problem_seconds; 0: no bound")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--cell", type=float, default=0.3, help="seconds of timing a row")
    given = parser.parsed()
    torch._dynamo.config.recompile_limit = 64
    deadline = time.monotonic() + given.seconds
    kinds = [kind for kind in given.kinds if kind in LAYERS and ONLY_ON.get(kind, given.device) == given.device]
    by_torchao = {kind: config for kind, config in TORCHAO[given.device].items() if kind in given.kinds}
    makers: dict[str, dict[str, Maker]] = {
        "model": {kind: functools.partial(quantise, layer=LAYERS[kind]) for kind in kinds},
        "torchao": {kind: functools.partial(quantise_by_torchao, config=config) for kind, config in by_torchao.items()},
    }
    file = given.out / f"quantised_{given.device}.json"
    results: dict[str, Any] = record.read(file) if given.json and file.exists() else {}
    results["device"] = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    with torch.no_grad():
        if "layers" in given.parts:
            found = layers(kinds, given.device, given.rows or ROWS[given.device], given.cell, deadline)
            results["layers"] = merged(results.get("layers", []), found, ("kind", "n", "k", "m"))
        for part in (part for part in makers if part in given.parts):
            for row in models(makers[part], given, deadline):
                results[part] = merged(results.get(part, []), [row], ("kind", "batch", "length"))
                if given.json:
                    record.write(f"quantised_{given.device}", results, given.out)
    if given.json:
        print(record.write(f"quantised_{given.device}", results, given.out))


def show_all(results: Mapping[str, Any]) -> None:
    """Prints the tables of all parts that there are."""
    if "layers" in results:
        show(table(results["layers"]))
    for part in ("model", "torchao"):
        if part in results:
            show(model_table(results[part]))


def merged(before: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]], about: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows `found`, and those `before` that are about others."""
    rows = {tuple(row[name] for name in about): row for row in (*before, *found)}
    return list(rows.values())


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """For each kind and weight the times of others over polytile's, by the number of rows."""
    counts = sorted({row["m"] for row in rows})
    body: list[tuple[Any, ...]] = []
    for kind, n, k in dict.fromkeys((row["kind"], row["n"], row["k"]) for row in rows):
        by_rows = {row["m"]: row["us"] for row in rows if (row["kind"], row["n"], row["k"]) == (kind, n, k)}
        for other in ("own", "eager", "bf16"):
            if any(other in us for us in by_rows.values()):
                ratios = [by_rows[m][other] / by_rows[m]["polytile"] if other in by_rows.get(m, {}) else None for m in counts]
                body.append((kind, f"{n}×{k}", other, *ratios))
    columns: list[Column | str] = ["weights", "N×K", "time of", *(Column(f"M = {m}", ratio) for m in counts)]
    return Table.from_rows("Quantised layers: times of others over polytile's", columns, body)


def model_table(rows: Sequence[dict[str, Any]]) -> Table:
    """For each kind eager's and the peer's time over polytile's, and the same of kernel time, by batch and length."""
    shapes = sorted({(row["batch"], row["length"]) for row in rows})
    body: list[tuple[Any, ...]] = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        for other, of in itertools.product(("eager", "peer"), ("us", "kernel_us")):
            at = {(row["batch"], row["length"]): row[of] for row in rows if row["kind"] == kind and other in row.get(of, {})}
            if at:
                ratios = [at[shape][other] / at[shape]["polytile"] if shape in at else None for shape in shapes]
                body.append((kind, other if of == "us" else f"{other}, kernels", *ratios))
    columns: list[Column | str] = ["weights", "time of", *(Column(f"{batch}×{length}", ratio) for batch, length in shapes)]
    return Table.from_rows("Quantised Llama of two layers: times of others over polytile's, by batch × length", columns, body)


def layers(kinds: Sequence[str], device: str, rows: Sequence[int], seconds: float, deadline: float) -> list[dict[str, Any]]:
    """A row for each kind of layer, weight and number of rows."""
    found: list[dict[str, Any]] = []
    for kind in kinds:
        for n, k in WEIGHTS[device]:
            torch._dynamo.reset()
            linear = nn.Linear(k, n, bias=False, device=device, dtype=DTYPE)
            layer = LAYERS[kind](linear)
            compiled = polytile.compile(layer, fullgraph=True, options=OPTIONS)
            for m in sorted(rows, key=lambda m: m == 1):  # a size of 1 gets a graph of its own, after the general one
                if time.monotonic() > deadline:
                    return found
                x = torch.randn(m, k, device=device, dtype=DTYPE)
                name = {"kind": kind, "m": m, "n": n, "k": k}
                contestants = {"polytile": compiled, "eager": layer, "bf16": linear, "own": own(layer, linear)}
                found.append(name | timed(contestants, x, layer, seconds) | chosen(compiled, x))
                print(json.dumps(found[-1]), flush=True)
        tell(kind, [row for row in found if row["kind"] == kind])
    return found


def own(layer: nn.Module, linear: nn.Linear) -> Callable[[Tensor], Tensor] | None:
    """ATen's operator for weights like the layer's, which was made of `linear`, packed as it wants them; None where it has none,
    or where the layer calls it."""
    if type(layer) is LAYERS["int4 groups"]:
        return Int4Packed(linear).forward
    if type(layer) in (LAYERS["int8 weights"], LAYERS["int8 dequantised"]):
        assert isinstance(layer, Quantised)
        return lambda x: torch._weight_int8pack_mm(x, layer.weight, layer.scale.flatten())
    return None


def timed(contestants: dict[str, Any], x: Tensor, layer: nn.Module, seconds: float) -> dict[str, Any]:
    """Microseconds of a call, and the largest error relative to the largest result in float64. Layers that round activations are
    compared with what eager makes of them too; where eager refuses, with the weights in full."""
    assert isinstance(layer, Quantised)
    wanted = F.linear(x.double(), layer.full())
    calls, errors, failed = {}, {}, {}
    for name, call in contestants.items():
        if call is None:
            continue
        try:
            result = call(x)
            synchronize()
        except Exception as error:  # a contestant refuses by an error
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        errors[name] = float((result.double() - wanted).abs().max() / wanted.abs().max())
        calls[name] = functools.partial(call, x)
    polytile.wait()
    row = {**times(calls, seconds), "error": errors, "failed": failed}
    if x.is_cuda:
        row["kernel_us"] = {name: round(us, 2) for name, us in kernel_times(calls, rounds=7, places=1).items()}
    return row


def times(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, Any]:
    """Microseconds of a call of each."""
    timings = compare(calls, seconds=seconds).timings
    return {"us": {name: round(timing.low * 1e6, 2) for name, timing in timings.items()}}


def chosen(compiled: Callable[..., Any], *given: Any) -> dict[str, Any]:
    explanation = polytile.explain(compiled, *given)
    return {"chosen": [f"{d.candidate} ({d.provenance})" for d in explanation.decisions]}


def tell(kind: str, rows: Sequence[dict[str, Any]]) -> None:
    """How many times as fast as each other contestant polytile is."""
    for name in ("eager", "bf16", "own", "peer"):
        ratios = [row["us"][name] / row["us"]["polytile"] for row in rows if name in row["us"] and "polytile" in row["us"]]
        if ratios:
            print(f"{kind}: {geomean(ratios):.2f} times as fast as {name} (least {min(ratios):.2f})", flush=True)


def models(makers: Mapping[str, Maker], given: argparse.Namespace, deadline: float) -> Iterator[dict[str, Any]]:
    """A row for each kind, batch and length: microseconds of eager, polytile and, if asked for, the peer, and polytile's mean
    distance to eager. A maker quantises a model. Each kind has an equal share of the time that is left."""
    for place, (kind, quantised) in enumerate(makers.items()):
        torch._dynamo.reset()
        plain = Llama(**MODEL[given.device]).to(given.device, DTYPE).eval()
        model = quantised(copy.deepcopy(plain))
        compiled = polytile.compile(model, fullgraph=True, options={**OPTIONS, "problem_seconds": given.problem_seconds})
        contestants: dict[str, Callable[[Tensor], Tensor]] = {"eager": model, "polytile": compiled, "bf16": plain}
        if given.peer:
            contestants["peer"] = torch.compile(copied(Llama.forward, "theirs").__get__(model), dynamic=True)
        found: list[dict[str, Any]] = []
        end = time.monotonic() + (deadline - time.monotonic()) / (len(makers) - place)
        for batch, length in sorted(given.shapes or TOKENS[given.device], key=lambda shape: 1 in shape):
            if time.monotonic() > end:
                break
            tokens = torch.randint(0, 96, (batch, length), device=given.device)
            row: dict[str, Any] = {"kind": kind, "batch": batch, "length": length, **model_row(contestants, tokens, given.cell)}
            found.append(row)
            print(json.dumps(row), flush=True)
            yield row
        tell(f"model, {kind}", found)


def model_row(contestants: Mapping[str, Callable[[Tensor], Tensor]], tokens: Tensor, seconds: float) -> dict[str, Any]:
    """The times of all contestants that take these tokens, and the seconds that finding them took."""
    row: dict[str, Any] = {"failed": {}, "took_s": {}}
    results: dict[str, Tensor] = {}
    for name, call in contestants.items():
        with clock(row, f"first call of {name}"):
            try:
                results[name] = call(tokens)
                synchronize()
            except Exception as error:  # an operator refuses the length
                if name == "polytile":
                    raise
                row["failed"][name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    if "eager" in results:
        off = (results["polytile"] - results["eager"]).double().abs().mean()
        row["mean_error"] = float(off / results["eager"].double().abs().mean())
    with clock(row, "measuring candidates"):
        polytile.wait()
    calls = {name: functools.partial(contestants[name], tokens) for name in results}
    with clock(row, "timing"):
        row |= times(calls, seconds)
    if tokens.is_cuda:
        row["kernel_us"] = {}
        for name, timed_call in calls.items():
            with clock(row, f"profiler of {name}"):
                row["kernel_us"][name] = kernels(timed_call)[0]
    with clock(row, "explanation"):
        operators = polytile.explain(contestants["polytile"], tokens).operators
    row["left"] = [f"{each.operator}: {each.reason}" for each in operators if each.how == "library"]
    return row


@contextlib.contextmanager
def clock(row: dict[str, Any], what: str) -> Iterator[None]:
    """Adds to `row` how many seconds the body takes."""
    began = time.monotonic()
    yield
    row["took_s"][what] = round(time.monotonic() - began, 2)


if __name__ == "__main__":
    main()
