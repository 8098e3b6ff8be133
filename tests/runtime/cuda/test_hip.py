"""What is compiled for AMD's GPUs is launched as on NVIDIA's, by functions of HIP. No device: a library keeps what is asked."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import sympy
import torch

from polytile.candidates import triton_matmul as candidates
from polytile.candidates import triton_variants as variants
from polytile.candidates.entries import NativeEntry
from polytile.candidates.products import gpu_candidates
from polytile.candidates.triton import TritonCandidate, Work, triton_version
from polytile.codegen.triton.generate import generate
from polytile.errors import DeviceLost, LaunchFailed
from polytile.matmul.triton.operands import EVEN_K
from polytile.runtime import compile as compiler
from polytile.runtime.cuda import device, driver, hip, launch, workers
from polytile.runtime.formula import encode
from polytile.runtime.launcher import time_burst
from polytile.runtime.target import Target
from polytile.schedule.facts import Facts
from polytile.schedule.nest import nest_of
from polytile.tuning.isolation.device import Device
from tests.codegen.triton_gemm import product
from tests.runtime.cuda.conftest import Loaded, Stub
from tests.runtime.cuda.test_candidate import kernel_of, twice

GPU = torch.device("cuda", 0)
X = torch.arange(8.0)
ONE = encode(sympy.Integer(1), {})
MI300X = {
    "name": "AMD Instinct MI300X", "major": 9, "minor": 4, "multi_processor_count": 304, "total_memory": 192 << 30,
    "gcnArchName": "gfx942:sramecc+:xnack-", "warp_size": 64, "L2_cache_size": 4 << 20, "clock_rate": 2_100_000,
}  # fmt: skip


class Call(ctypes.Structure):
    _fields_ = [
        ("function", ctypes.c_void_p), ("stream", ctypes.c_void_p), ("device", ctypes.c_int), ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("values", ctypes.c_uint64 * 16),
    ]  # fmt: skip


class Amd(Loaded):
    """The loaded stand-in for HIP's library."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Call, {"count": 0, "parameters": 4, "launch_error": 0, "blocks": 0})


@pytest.fixture
def amd(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Amd]:
    """A process with PyTorch for ROCm and an MI300X; `stub` stands for torch's own C functions."""
    library = compiler.compile_c("stub_hip", Path(__file__).with_name("hip_stub.c").read_text(), ("-w",)).result()
    monkeypatch.setattr(torch.version, "hip", "6.4.43483")
    monkeypatch.setattr(hip, "runtime", lambda: str(library.path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(**MI300X))
    for each in (driver.reset, launch.reset, device.facts.cache_clear):
        each()
    yield Amd(library.path)
    for each in (driver.reset, launch.reset, device.facts.cache_clear, workers.reset):
        each()


def test_a_gpu_of_amds_is_known_by_its_architecture(amd: Amd) -> None:
    found = device.facts(0)
    assert (found.target, found.family, found.warp, found.capability) == ("gfx942", "rocm", 64, 0)
    assert found == device.named("MI300X") and device.fingerprint(0).startswith("cuda-gfx942-304sm-")
    assert driver.release() == "HIP 60443483" and not Target.of(GPU).unavailable


def test_an_architecture_without_a_row_takes_the_nearest_of_the_same_maker(amd: Amd, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {**MI300X, "name": "AMD Radeon", "gcnArchName": "gfx1201", "warp_size": 32, "multi_processor_count": 64}
    found = device.described(types.SimpleNamespace(**told))
    assert (found.target, found.warp, found.sms, found.memory_bytes) == ("gfx1201", 32, 64, 192 << 30)
    assert found.l2_bytes == 4 << 20 and found.shared_per_block == 64 << 10


def test_a_launch_has_its_arguments_grid_block_and_stream(amd: Amd) -> None:
    function = driver.load(1, b"hsaco", "kernel", 256, 1024)
    parameters = ((launch.TENSOR, 0), (launch.INT32, 1), (launch.INT64, 0), (launch.NOTHING, 0))
    grid = encode(sympy.Integer(7), {}), ONE, ONE
    plan = launch.Plan("kernel", 1, [launch.Launch(function, 256, 1024, parameters, grid)])
    time_burst(NativeEntry.of_plan(plan), (X, -3, 5), 1)
    [call] = amd.calls()
    assert (call.values[0], call.values[1] & 0xFFFFFFFF, call.values[2], call.values[3]) == (X.data_ptr(), 5, 2**64 - 3, 0)
    assert (*call.grid, *call.block, call.shared, call.stream) == (7, 1, 1, 256, 1, 1, 1024, 0x77)
    current = ctypes.c_int()
    assert amd.library.hipGetDevice(ctypes.byref(current)) == 0  # type: ignore[attr-defined]
    assert (call.device, current.value) == (1, 0), "on its own device, and the other one is current again"


def test_a_refused_launch_names_kernel_and_error(amd: Amd) -> None:
    function = driver.load(0, b"hsaco", "kernel", 64, 0)
    plan = launch.Plan("kernel", 0, [launch.Launch(function, 64, 0, ((launch.TENSOR, 0),), (ONE, ONE, ONE))])
    clustered = launch.Plan("kernel", 0, [launch.Launch(function, 64, 0, ((launch.TENSOR, 0),), (ONE, ONE, ONE), cluster=2)])
    for made, code, kind, word in ((plan, 719, DeviceLost, "rocm-smi"), (clustered, 0, LaunchFailed, "hipError ")):
        amd.launch_error = code
        with pytest.raises(kind, match=word):
            time_burst(NativeEntry.of_plan(made), (X,), 1)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_a_kernel_is_compiled_for_it_and_launched(amd: Amd, empty_cache: Path) -> None:
    kernel = kernel_of(twice, torch.randn(6, 10))
    mine = device.facts(0)
    work = Work(kernel, "twice", mine, 0, functools.partial(generate, kernel))
    made = TritonCandidate("first", variants.configs(kernel, nest_of(kernel.loop), mine)[0], work, lambda _: True, lambda _: 1e-6)
    special = made.specialise(Facts(aligned=frozenset({"a0", "a1"})))
    x, y = torch.randn(6, 10), torch.empty(6, 10)
    time_burst(special.entry(), (x, y, *([60] if len(kernel.symbols) == 1 else [6, 10])), 1)
    [call] = amd.calls()
    assert {x.data_ptr(), y.data_ptr()} <= set(call.values) and call.block[0] == 64 * int(special.config["warps"])
    assert bytes((ctypes.c_ubyte * 4).in_dll(amd.library, "stub_image")) == b"\x7fELF"  # type: ignore[arg-type]
    assert (special.resources.spilled_bytes, special.resources.shared_bytes) == (0, 0) and special.resources.registers


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_products_follow_the_familys_table_and_tell_its_compiler(amd: Amd, empty_cache: Path) -> None:
    kernel = product(torch.bfloat16, "k", "k")
    found = candidates.gemm_candidates(kernel, "mm", GPU)
    able = [c for c in found if c.valid({**kernel.dense_strides({"M": 512, "N": 512, "K": 512}), "M": 512, "N": 512, "K": 512})]
    rows = [c for c in able if c.name.endswith(" i16 u2")]
    assert rows and not [c for c in found if c.name.startswith("persistent")]
    assert len({c.name for c in found}) == len(found)
    special = rows[0].specialise(Facts(frozenset({"M", "N", "K"}), frozenset("ABC"), holding=frozenset({EVEN_K})))
    [one] = special.kernel.launches
    assert dict(one.own) == {"matrix_instr_nonkdim": 16, "waves_per_eu": 2, "kpack": 2}
    assert special.entry() and not special.resources.spilled_bytes


def test_the_library_has_no_algorithms_of_cublaslts(amd: Amd) -> None:
    found = gpu_candidates(product(torch.bfloat16), "mm", GPU, None, ("library", "cublaslt"))
    assert "aten" in [c.name for c in found] and not [c for c in found if c.name.startswith("cublaslt")]


def test_a_worker_tries_kernels_there(amd: Amd) -> None:
    made = Device(driver.where(), 0)
    image = ctypes.create_string_buffer(b"\x7fELF")
    made.place([{"bytes": 64, "lead": 0, "offset": None}], 0)
    one = {"image": 0, "symbol": "kernel", "threads": 64, "shared": 0, "grid": [3, 1, 1], "parameters": [[launch.TENSOR, 0]],
           "descriptors": [], "cluster": 1}  # fmt: skip
    amd.parameters = 1
    request = {"scratch": [], "integers": [], "tensors": [[0, 16]], "seconds": 1.0, "threads": 1, "launches": [one]}
    answer = made.launch(request, ctypes.addressof(image))
    assert (answer["code"], answer["beside"]) == (0, None)
    [call] = amd.calls()
    assert (*call.grid, *call.block) == (3, 1, 1, 64, 1, 1) and call.values[0] % 16 == 0
    made.clear()
    assert amd.blocks == 0


def test_triton_is_known_by_whatever_name_it_was_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package != "pytorch-triton-rocm":
            raise importlib.metadata.PackageNotFoundError(package)
        return "3.6.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    triton_version.cache_clear()
    assert triton_version() == "3.6.0", "part of the key of every kernel"
    triton_version.cache_clear()
