"""`python -m tests.packages.on_stub FOLDER`: writes a package of a model on a GPU that is not there, and calls it. The driver
and cuBLASLt are those of tests/runtime/cuda, which run no kernel and keep what they are asked. Prints what it saw, as JSON."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from polytile.packages import capture, load, write
from polytile.packages.capture import exported
from polytile.runtime import compile as compiler
from polytile.runtime import symbols
from polytile.runtime.cuda import cublaslt, device, driver, launch, products
from tests.runtime.cuda.conftest import Stub

CUDA = Path(__file__).parents[1] / "runtime" / "cuda"
RELEASE = 99
"""Of the stand-in for cuBLASLt. NVIDIA's has none so high: torch's builds for CUDA load theirs under its own name first."""
CUBLASLT = f"libcublasLt.so.{RELEASE}"
H200 = {
    "name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 141 << 30, "warp_size": 32,
    "L2_cache_size": 60 << 20, "regs_per_multiprocessor": 65536, "shared_memory_per_multiprocessor": 228 << 10,
    "shared_memory_per_block_optin": 227 << 10, "max_threads_per_multi_processor": 2048,
}  # fmt: skip


class Model(nn.Module):
    """A product with a bias, which cuBLASLt makes as a whole; one with an epilogue that it lacks; rows of a table, whose numbers
    are checked."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.other, self.table = nn.Linear(64, 128), nn.Linear(64, 128), nn.Embedding(50, 128)

    def forward(self, x: Tensor, words: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.linear(x), torch.sigmoid(self.other(x)), self.table(words) * 2.0


def stand_in(folder: Path) -> Stub:
    """A process with a GPU that runs nothing, under the names that programs find the driver and cuBLASLt by."""
    made = {}
    for name, source in (("libcuda.so.1", "stub.c"), (CUBLASLT, "cublaslt_stub.c")):
        flags = ("-w", f"-Wl,-soname,{name}", f"-DSTUB_RELEASE={RELEASE}")
        made[name] = compiler.compile_c(f"package_{source[:-2]}", (CUDA / source).read_text(), flags).result().path
        (folder / name).symlink_to(made[name])
        ctypes.CDLL(str(made[name]), mode=ctypes.RTLD_GLOBAL)
    stub = Stub(made["libcuda.so.1"])
    library: Any = ctypes.CDLL(str(made["libcuda.so.1"]))
    driver.LIBRARY, cublaslt.NAMES = str(made["libcuda.so.1"]), (str(made[CUBLASLT]),)
    cublaslt._beside_torch = lambda: iter(())
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 2
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(**H200)  # type: ignore[assignment,return-value]
    torch.cuda.device = lambda index: contextlib.nullcontext()  # type: ignore[assignment,misc]
    launch.torch_functions = lambda: symbols.addresses(library, launch._TORCH_FUNCTIONS)
    names = (*products._DRIVER, products._STREAM, *products._MEMORY[:3])
    products._of_torch = lambda index: [*symbols.addresses(library, names), *[None] * 4]
    device.facts.cache_clear()
    return stub


class OnGpu:
    """An exported program whose decomposed form is on a GPU, as if it had been exported there."""

    def __init__(self, program: ExportedProgram) -> None:
        self.decomposed = program.run_decompositions(capture._table())
        for node in self.decomposed.graph.nodes:
            if isinstance(node.meta.get("val"), Tensor):
                node.meta["val"].fake_device = torch.device("cuda", 0)

    def run_decompositions(self, table: Any) -> ExportedProgram:
        return self.decomposed


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


def called(package: load.Package, stub: Stub, rows: int, place: int, stream: int) -> dict[str, Any]:
    """What a call with so many rows on GPU number `place` returned and asked of the driver."""
    inputs = torch.randn(rows, 64), torch.randint(0, 50, (rows,))
    given = load.packed(inputs)
    for number in range(len(inputs)):  # as if they were on that GPU
        given[len(inputs) + load.WORDS * number + 1] = 2 | place << 32
    outputs, why, before = (ctypes.c_void_p * 3)(), ctypes.create_string_buffer(load.ROOM), (stub.count, products_made())
    library, handle = package._library, package._handle
    status = library.polytile_call_on(handle, stream, given.buffer_info()[0], 2, outputs, 3, why, load.ROOM)
    found: dict[str, Any] = {"status": status, "why": why.value.decode(), "outputs": []}
    for output in outputs if status == load.OK else ():
        tensor = DLTensor.from_address(output)
        found["outputs"].append([list(tensor.shape[: tensor.ndim]), tensor.device_type, tensor.device_id])
        if not found["outputs"][1:]:  # the product, which the stand-in for cuBLASLt has made in the host's memory
            content = (ctypes.c_float * (rows * 128)).from_address(tensor.data)
            with torch.no_grad():
                want = MODEL.linear(inputs[0])
            found["off"] = float((torch.frombuffer(content, dtype=torch.float32).view(rows, 128) - want).abs().max())
    found["launches"] = [[call.stream, call.context] for call in stub.calls()[before[0] :]]
    found["products"] = products_made() - before[1]
    for output in outputs if status == load.OK else ():
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ctypes.c_void_p.from_address(output + 56).value or 0)(output)
    return found


def products_made() -> int:
    """How often cuBLASLt was asked to multiply."""
    return ctypes.c_int.in_dll(ctypes.CDLL(CUBLASLT), "stub_products").value


MODEL = Model().eval()


def main(folder: Path) -> None:
    rows = Dim("rows", min=40, max=64)
    example = torch.randn(48, 64), torch.randint(0, 50, (48,))
    program = OnGpu(exported(MODEL, example, None, {"x": {0: rows}, "words": {0: rows}}))
    stub = stand_in(folder)
    write.exported = lambda *_: program  # type: ignore[assignment,return-value]
    options = {"sources": "cublaslt,triton", "force": "cublaslt 0"}
    path = write.package(MODEL, example, folder / "model.ptp", check=False, architectures=(80, 90), options=options)
    package = load.load_package(path)
    calls = {f"{count} on {place}": called(package, stub, count, place, 0x55) for count, place in ((48, 0), (41, 1), (7, 0))}
    stub.architecture = 86
    calls["48 on an older one"] = called(package, stub, 48, 2, 0x66)
    stub.architecture = 120
    calls["48 on a later one"] = called(package, stub, 48, 3, 0x66)
    stub.capturing = 1
    calls["recorded"] = called(package, stub, 48, 0, 0x55)
    stub.capturing = 0
    del package
    print(json.dumps({"manifest": load.read_manifest(path), "calls": calls, "blocks": stub.blocks}))


if __name__ == "__main__":
    os.environ.setdefault("TRITON_INTERPRET", "0")
    main(Path(sys.argv[1]))
