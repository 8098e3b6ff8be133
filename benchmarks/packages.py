"""`python -m benchmarks.packages [--device cuda] [--layers 2] [--json]`: what a package takes to write, load and call.

Layers of a transformer, for sequences of 1 to 1024 tokens, measured at three lengths. Bytes of the package, without its weights
too; milliseconds to load it, thrice, and of the first call; at lengths of which some were measured and some were not,
microseconds of a call by the package, by its C function alone, by the live program, which measures, and by eager, device work
included, and until the C function returns; and whether package and live program give the same bits.

With --peer FILE, beside the package that AOTInductor makes of the same model, in a process of its own: its calls from Python,
and those of its loader alone, which is in C++. FILE is where that package is, or is written to. --layers 0 has five softmaxes
in place of layers: what a call takes besides its kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import Calls, Entrant
from benchmarks.encoder import Layer
from benchmarks.environment import environment
from benchmarks.timing import Call, compare, geomean, synchronize
from polytile.packages import load
from polytile.packages.load import Package
from polytile.report import Column, Table, show
from polytile.report.tables import micros

HINTS = (16, 128, 512)
EXAMPLE = 128
"""The length that the model is exported with: the peer's hint."""
LENGTHS = (1, 33, 128, 512, 1000)
PEER = {"peer": "AOTInductor", "loader": "its loader"}
WIDTH, HEADS = 512, 8


class Softmaxes(nn.Module):
    """Five small kernels, none fused with the next."""

    def forward(self, x: Tensor) -> Tensor:
        for step in range(5):
            x = torch.softmax(x, 1 + step % 2)
        return x


def subject(layers: int, device: str) -> tuple[nn.Module, int]:
    """The model, with the same weights in each process, and the width of its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer(WIDTH, HEADS) for _ in range(layers)]) if layers else Softmaxes()
    return model.eval().to(device, DTYPES[device]), WIDTH if layers else 16


def tokens(length: int, width: int, device: str) -> Tensor:
    torch.manual_seed(length)
    return torch.randn(1, length, width).to(device, DTYPES[device])


DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}
SHAPES = ({1: Dim("length", min=1, max=1024)},)


class Peer(Calls):
    """The package that AOTInductor makes of the model of {"layers"} on {"device"}, at {"path"}."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        import torch._inductor as inductor  # noqa: TID251 (the peer itself)

        torch.set_grad_enabled(False)
        self.device, path = given["device"], Path(given["path"])
        self.model, self.width = subject(given["layers"], self.device)
        if not path.exists():
            exported = torch.export.export(self.model, (tokens(EXAMPLE, self.width, self.device),), dynamic_shapes=SHAPES)
            inductor.aoti_compile_and_package(exported, package_path=str(path))
        self.loading = []
        for _ in range(3):
            took, self.package = seconds(lambda: inductor.aoti_load_package(str(path)))
            self.loading.append(took)
        self.bytes = path.stat().st_size

    def about(self) -> dict[str, Any]:
        weights = sum(one.numel() * one.element_size() for one in self.model.parameters())
        return {"loading": self.loading, "bytes": self.bytes, "bytes_without_weights": self.bytes - weights}

    def at(self, length: int) -> float:
        """Makes the calls at a length; how far the result is off eager's, relative to its largest element."""
        x = tokens(length, self.width, self.device)
        self.calls = {"peer": functools.partial(self.package, x), "loader": functools.partial(self.package.loader.run, [x])}
        want = self.model(x).double()
        return float((self.package(x).double() - want).abs().max() / want.abs().max())


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    synchronize()
    return time.perf_counter() - began, found


def in_c(package: Package, x: Tensor) -> Callable[[], None]:
    """A call by the package's C function, without what Python does for tensors."""
    words, library = load.packed([x]), package._library
    inputs, outputs = words.buffer_info()[0], (ctypes.c_void_p * 1)()
    why, stream = ctypes.create_string_buffer(load.ROOM), package._stream([x])
    delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    place = ctypes.sizeof(ctypes.c_int64) * load.WORDS + 8  # of the deleter in a DLManagedTensor

    def call() -> None:
        status = library.polytile_call_on(package._handle, stream, inputs, 1, outputs, 1, why, load.ROOM)
        assert status == load.OK, why.value
        made = outputs[0] or 0
        delete(ctypes.c_void_p.from_address(made + place).value or 0)(made)

    call.reads = x, words  # type: ignore[attr-defined]
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


def measured(device: str, layers: int, options: dict[str, Any], peer: Entrant | None) -> dict[str, Any]:
    model, width = subject(layers, device)
    example = tokens(EXAMPLE, width, device)
    target = Path(tempfile.mkdtemp()) / "model.ptp"
    writing, path = seconds(
        lambda: polytile.package(model, (example,), target, dynamic_shapes=SHAPES, hints=HINTS, options=options)
    )
    loads = [seconds(lambda: polytile.load_package(path)) for _ in range(3)]
    package = loads[-1][1]
    first, _ = seconds(lambda: package(example))
    files = package.manifest["files"]
    total = sum(each["bytes"] for each in files.values())
    weights = files["weights.safetensors"]["bytes"] if "weights.safetensors" in files else 0
    live = torch.compile(model, backend="polytile", dynamic=True, options=options)
    with torch.no_grad():
        rows = {str(length): at_length(tokens(length, width, device), package, live, model, peer) for length in LENGTHS}
    here = environment()
    return {
        "device": here["accelerator"] if device == "cuda" else f"{here['processor']}, {here['threads']} threads",
        "date": here["date"], "writing": writing, "loading": [each for each, _ in loads], "first_call": first, "bytes": total,
        "bytes_without_weights": total - weights, "kernels": len(package.manifest["kernels"]), "files": len(files), "rows": rows,
        **({"peer": peer.ask("about")} if peer is not None else {}),
    }  # fmt: skip


def at_length(
    x: Tensor, package: Package, live: Callable[..., Tensor], model: nn.Module, peer: Entrant | None
) -> dict[str, Any]:
    """A row: times of a call at one length, and how the results compare."""
    live(x)
    polytile.wait()
    got, want, eager = package(x), live(x), model(x)
    runs: tuple[tuple[str, Callable[..., Tensor]], ...] = (("package", package), ("live", live), ("eager", model))
    calls: dict[str, Call] = {name: functools.partial(run, x) for name, run in runs}
    others: dict[str, Call] = {}
    row = {
        "same_bits": torch.equal(got, want),
        "off": float((got.double() - eager.double()).abs().max()) / float(eager.double().abs().max()),
        "host": host_time(in_c(package, x)),
    }
    if peer is not None:
        row["peer_off"] = peer.ask("at", x.shape[1])
        others = {name: peer.call(name) for name in PEER}
    found = compare({**calls, "C": in_c(package, x), **others}, seconds=1.0)
    return row | {name: timing.low for name, timing in found.timings.items()}


def table(found: dict[str, Any]) -> Table:
    loads = _milliseconds(found["loading"])
    names = ("package", "C", "live", "eager", *(("peer", "loader") if "peer" in found else ("host",)))
    times = [Column(f"{PEER.get(name, name)}, µs", micros) for name in names]
    columns = [Column("tokens"), *times, Column("same bits"), Column("off eager")]
    rows = [
        (length, *[row[name] for name in names], "yes" if row["same_bits"] else "no", f"{row['off']:.1e}")
        for length, row in found["rows"].items()
    ]
    apart = [row["package"] / row["live"] for length, row in found["rows"].items() if int(length) not in HINTS]
    notes = [
        f"{found['kernels']} kernels, {found['files']} files, {found['bytes_without_weights'] / 1e6:.2f} MB without weights; "
        f"written in {found['writing']:.1f} s, loaded in {loads} ms, first call {1e3 * found['first_call']:.1f} ms.",
        f"Measured when it was written: {', '.join(map(str, HINTS))} tokens; elsewhere the package takes {geomean(apart):.2f} of "
        "the live program's time.",
    ]
    if "peer" in found:
        peer, others = found["peer"], [row for length, row in found["rows"].items() if int(length) != EXAMPLE]
        times_of = {way: geomean(row[theirs] / row[own] for row in others) for way, own, theirs in VERSUS}
        notes.append(
            f"AOTInductor's package: {peer['bytes_without_weights'] / 1e6:.2f} MB without weights, loaded in "
            f"{_milliseconds(peer['loading'])} ms. At lengths other than its hint of {EXAMPLE} it takes "
            f"{' and '.join(f'{ratio:.2f} times as long {way}' for way, ratio in times_of.items())}."
        )
    return Table(f"Calls of a package, {found['device']}", tuple(columns), tuple(rows), tuple(notes))


VERSUS = (("from Python", "package", "peer"), ("from C", "C", "loader"))
"""A way to call, and whose times are compared."""


def _milliseconds(times: list[float]) -> str:
    return ", ".join(f"{1e3 * each:.1f}" for each in times)


def show_all(kept: dict[str, Any]) -> None:
    for found in kept.values():
        show(table(found))


def main() -> None:
    parser = Command(__doc__, "packages", show_all, json=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sources", default="")
    parser.add_argument("--peer", metavar="FILE", help="AOTInductor's package (.pt2)")
    given = parser.parsed()
    with contextlib.ExitStack() as stack:
        peer = None
        if given.peer:
            asked = {"device": given.device, "layers": given.layers, "path": str(Path(given.peer).absolute())}
            peer = stack.enter_context(Entrant("benchmarks.packages:Peer", asked))
            peer.ask("about")
        found = measured(given.device, given.layers, {"sources": given.sources} if given.sources else {}, peer)
    show(table(found))
    if given.json:
        record.add("packages", given.device if given.layers else f"{given.device}, small", found)


if __name__ == "__main__":
    main()
