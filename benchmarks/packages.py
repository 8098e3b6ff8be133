"""`python -m benchmarks.packages [--device cuda] [--layers 2] [--json]`: what a package takes to write, load and call.

Layers of a transformer, for sequences of 1 to 1024 tokens, measured at three lengths. Bytes of the package, without its weights
too; milliseconds to load it, thrice, and of the first call; at lengths of which some were measured and some were not,
microseconds of a call by the package, by its C function alone, by the live program, which measures, and by eager, device work
included, and until the C function returns; and whether package and live program give the same bits.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import polytile
from benchmarks import record
from benchmarks.timing import compare, geomean, synchronize
from polytile.packages import load
from polytile.packages.load import Package
from polytile.report import Column, Table, show
from polytile.report.tables import micros

HINTS = (16, 128, 512)
LENGTHS = (1, 33, 128, 512, 1000)
WIDTH, HEADS = 512, 8


class Layer(nn.Module):
    """A layer of an encoder: attention and a feed-forward part, each behind a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mixed(self.norms[0](x)).view(1, -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.out(mixed.transpose(1, 2).reshape(1, -1, WIDTH))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    synchronize()
    return time.perf_counter() - began, found


def in_c(package: Package, x: Tensor) -> Callable[[], None]:
    """A call by the package's C function, without what Python does for tensors."""
    struct, library = load._struct(x), package._library
    inputs, outputs = (ctypes.c_void_p * 1)(ctypes.addressof(struct)), (ctypes.c_void_p * 1)()
    why, stream = ctypes.create_string_buffer(load.ROOM), package._stream([x])
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    place = ctypes.sizeof(load._Tensor) + 8  # of the deleter in a DLManagedTensor

    def call() -> None:
        status = library.polytile_call_on(package._handle, stream, inputs, 1, outputs, 1, why, load.ROOM)
        assert status == load.OK, why.value
        made = outputs[0] or 0
        delete(ctypes.c_void_p.from_address(made + place).value or 0)(made)

    call.reads = x, struct  # type: ignore[attr-defined]
    return call


def host_time(call: Callable[[], None], calls: int = 20) -> float:
    """Seconds until a call returns, while the device has work left; the least of some bursts."""
    found = []
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - began) / calls)
        synchronize()
    return min(found)


def measured(device: str, layers: int, dtype: torch.dtype, options: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer() for _ in range(layers)]).eval().to(device, dtype)
    shapes = ({1: Dim("length", min=1, max=1024)},)
    folder = Path(tempfile.mkdtemp())
    example = torch.randn(1, 128, WIDTH).to(device, dtype)
    writing, path = seconds(
        lambda: polytile.package(model, (example,), folder / "model.ptp", dynamic_shapes=shapes, hints=HINTS, options=options)
    )
    loads = [seconds(lambda: polytile.load_package(path)) for _ in range(3)]
    package = loads[-1][1]
    first, _ = seconds(lambda: package(example))
    files = package.manifest["files"]
    total, weights = sum(each["bytes"] for each in files.values()), files["weights.safetensors"]["bytes"]
    kernels = len(package.manifest["kernels"])
    live = torch.compile(model, backend="polytile", dynamic=True, options=options)
    rows = {}
    with torch.no_grad():
        for length in LENGTHS:
            x = torch.randn(1, length, WIDTH).to(device, dtype)
            live(x)
            polytile.wait()
            got, want, eager = package(x), live(x), model(x)
            scale = float(eager.double().abs().max())
            calls = {name: functools.partial(run, x) for name, run in (("package", package), ("live", live), ("eager", model))}
            times = compare({**calls, "C": in_c(package, x)}, seconds=1.0)
            rows[str(length)] = {
                "same_bits": torch.equal(got, want),
                "off": float((got.double() - eager.double()).abs().max()) / scale,
                "host": host_time(in_c(package, x)),
                **{name: times[name].low for name in ("package", "C", "live", "eager")},
            }
    return {
        "writing": writing, "loading": [each for each, _ in loads], "first_call": first, "bytes": total,
        "bytes_without_weights": total - weights, "kernels": kernels, "files": len(files), "rows": rows,
    }  # fmt: skip


def table(device: str, found: dict[str, Any]) -> Table:
    loads = ", ".join(f"{1e3 * each:.1f}" for each in found["loading"])
    names = ("package", "C", "live", "eager", "host")
    times = [Column(f"{name}, µs", micros) for name in names]
    columns = [Column("tokens"), *times, Column("same bits"), Column("off eager")]
    rows = [
        (length, *[row[name] for name in names], "yes" if row["same_bits"] else "no", f"{row['off']:.1e}")
        for length, row in found["rows"].items()
    ]
    apart = [row["package"] / row["live"] for length, row in found["rows"].items() if int(length) not in HINTS]
    notes = (
        f"{found['kernels']} kernels, {found['files']} files, {found['bytes_without_weights'] / 1e6:.2f} MB without weights; "
        f"written in {found['writing']:.1f} s, loaded in {loads} ms, first call {1e3 * found['first_call']:.1f} ms.",
        f"Measured when it was written: {', '.join(map(str, HINTS))} tokens; elsewhere the package takes {geomean(apart):.2f} of "
        "the live program's time.",
    )
    return Table(f"Calls of a package, {device}", tuple(columns), tuple(rows), notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sources", default="")
    parser.add_argument("--json", action="store_true", help="write benchmarks/results/packages.json")
    parser.add_argument("--show", action="store_true", help="only print the tables of the file there")
    given = parser.parse_args()
    if given.show:
        kept = json.loads((record.RESULTS / "packages.json").read_text())
        for device, found in kept["results"].items():
            show(table(kept["environment"]["accelerator"] if device == "cuda" else device, found))
        return
    dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
    found = measured(given.device, given.layers, dtype, {"sources": given.sources} if given.sources else {})
    show(table(given.device, found))
    if given.json:
        record.add("packages", given.device, found)


if __name__ == "__main__":
    main()
