"""Products compiled for an H100 by worker processes: the default configs spill nothing."""

from __future__ import annotations

import importlib.util
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from polytile import options
from polytile.candidates.triton import WORKER, Work, job_of, triton_version
from polytile.candidates.triton_matmul import Arguments, GemmCandidate, label
from polytile.codegen.triton import elf
from polytile.errors import ResourcesExceeded
from polytile.matmul import gemm_kernel
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.configs import Kind, space
from polytile.matmul.triton.operands import EVEN_K
from polytile.matmul.triton.schedules import generate
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.runtime.cuda import cubins, device, launch, workers
from polytile.runtime.formula import evaluate
from polytile.schedule.facts import Facts
from tests.codegen.test_triton_gemm_prologue import lowered
from tests.codegen.triton_gemm import PLAIN, grouped_product, product, small

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

H100 = device.named("H100")
CHIP = Chip(H100.sms, overlaps=True)
ALIGNED = Facts(
    frozenset({"M", "N", "K", "a_stride_m", "a_stride_k", "b_stride_k", "b_stride_n", "b_stride_b", "c_stride_m"}),
    frozenset("ABC"),
    holding=frozenset({EVEN_K}),
)  # fmt: skip
ONE_ROW = Facts(ALIGNED.divisible, ALIGNED.aligned, exact=(("M", 1),), holding=ALIGNED.holding)

BF16, F32, F16 = torch.bfloat16, torch.float32, torch.float16
FP8 = torch.float8_e4m3fn
CASES: dict[str, tuple[GemmKernel, Facts]] = {
    "tile 128x128x64 s3 w4": (product(BF16, "k", "k"), ALIGNED),
    "tile 64x128x64 s3 w4": (product(F16, "k", "n"), ALIGNED),
    "persistent 128x256x64 s3 w8": (product(BF16, "k", "n"), ALIGNED),
    "persistent 128x128x64 s4 w8": (product(BF16, "m", "k"), ALIGNED),
    "persistent 128x256x64 s4 w8 4 stores flat": (product(BF16, "k", "k"), ALIGNED),
    "persistent 256x128x64 s4 w8 4 stores flat": (product(F16, "k", "n"), ALIGNED),
    "persistent 128x256x64 s3 w8 2 stores": (product(BF16, "k", "k"), ALIGNED),
    "split 64x64x64 s4 w4 4 parts": (product(BF16, "k", "k"), ALIGNED),
    "stream 128x128x64 s4 w8": (product(BF16, "k", "k"), ALIGNED),
    "stream 128x256x64 s3 w8": (product(F16, "k", "n"), ALIGNED),
    "tile swapped 16x64x128 s8 w4": (product(BF16, "k", "k"), ALIGNED),
    "split swapped 16x128x64 s5 w4 4 parts": (product(F16, "k", "k"), ALIGNED),
    "tile swapped 16x128x128 s3 w4": (product(BF16, "k", "k"), ALIGNED),
    "tile 16x64x128 s4 w4": (product(BF16, "k", "k"), ALIGNED),
    "rows 1x16x256 s5 w4": (product(BF16, "k", "k"), ONE_ROW),
    "rows 1x16x512 s3 w4": (product(BF16, "k", "k"), ONE_ROW),
    "tile 64x64x32 s2 w4": (product(F32, "k", "n"), ALIGNED),
    "tile 128x256x128 s3 w8": (product(torch.int8, "k", "k", out=torch.int32), ALIGNED),
    "tile 128x64x32 s4 w8": (product(F16, "k", "k", stored=(F16, torch.int8)), ALIGNED),
    "persistent 128x128x128 s4 w8": (product(FP8, "k", "k", out=BF16), ALIGNED),
    "tile 128x64x64 s4 w4": (product(FP8, "k", "k", out=BF16), ALIGNED),
    "grouped 128x256x64 s3 w8": (grouped_product("m", BF16, "k", "k"), ALIGNED),
    "grouped 128x128x64 s3 w4": (grouped_product("m", BF16, "k", "n"), ALIGNED),
    "grouped 64x128x64 s4 w4": (grouped_product("m", F16, "k", "n"), ALIGNED),
    "grouped 16x128x128 s3 w4": (grouped_product("m", BF16, "k", "k"), ALIGNED),
    "grouped swapped 16x128x64 s5 w4": (grouped_product("m", BF16, "k", "k"), ALIGNED),
    "grouped 128x128x64 s4 w8": (grouped_product("k", BF16, "m", "n"), ALIGNED),
    "grouped_tma 128x256x64 s4 w8 4 stores": (grouped_product("m", BF16, "k", "k"), ALIGNED),
    "grouped_tma 64x128x64 s3 w4": (grouped_product("m", F16, "k", "n"), ALIGNED),
    "grouped_tma 64x256x64 s4 w4 2 stores": (grouped_product("m", BF16, "k", "n"), ALIGNED),
    "grouped_tma 128x128x64 s3 w4": (grouped_product("m", BF16, "k", "k"), ALIGNED),
}


@pytest.fixture(scope="module", autouse=True)
def workers_end() -> Iterator[None]:
    yield
    workers.reset()


def orders(kernel: GemmKernel, config: Config, facts: Facts) -> list[cubins.Order]:
    launches = generate(kernel, config, facts, CHIP).launches
    return [cubins.Order("product", WORKER, job_of(each, 90), triton_version()) for each in launches]


def named(name: str) -> list[cubins.Order]:
    kernel, facts = CASES[name]
    config = next(c for c in space(Kind.of(kernel), H100).configs if label(c) == name)
    return orders(kernel, config, facts)


def test_default_configs_fit_in_registers_and_shared_memory(empty_cache: Path) -> None:
    asked = {name: [cubins.request(order) for order in named(name)] for name in CASES}
    spilled = {}
    for name, promises in asked.items():
        for promise in promises:
            facts = promise.result().facts
            assert facts.shared <= H100.shared_per_block, name
            assert not facts.global_scratch, "descriptors are made on the host"
            assert len(facts.descriptors) == 2 * name.startswith(("persistent", "grouped_tma"))
            if facts.spills:
                spilled[name] = facts.spills
    assert not spilled


PASSED = {launch.TENSOR: 8, launch.INT32: 4, launch.INT64: 8, launch.SCRATCH: 8, launch.DESCRIPTOR: 128}
"""Bytes of a parameter of each kind; of one that is nothing they do not matter."""
PARAMETER = 0x17
"""The attribute of a cubin that tells of one parameter: its number, its place, its bytes."""


def parameters(cubin: bytes) -> list[int]:
    """Bytes of each parameter that the cubin's kernel takes."""
    [content] = [content for name, content in elf.sections(cubin) if name.startswith(".nv.info.")]
    found, at = {}, 0
    while at < len(content):
        kind, number, size = struct.unpack_from("<BBH", content, at)
        if kind == elf.LONG_FORMAT and number == PARAMETER:
            _, ordinal, _, flags = struct.unpack_from("<IHHI", content, at + 4)
            found[ordinal] = flags >> 18
        at += 4 + (size if kind == elf.LONG_FORMAT else 0)
    return [found[ordinal] for ordinal in sorted(found)]


@pytest.mark.parametrize(
    ("name", "described"),
    [
        ("persistent 128x256x64 s3 w8", [((128, 64), (300, 200), 1000), ((64, 64), (200, 500), 4000)]),
        ("persistent 128x128x64 s4 w8", [((64, 64), (200, 300), 2000), ((128, 64), (500, 200), 3000)]),
        ("tile 128x128x64 s3 w4", []),
    ],
)
def test_a_launch_passes_what_the_machine_code_takes(
    name: str, described: list[tuple[tuple[int, ...], tuple[int, ...], int]], empty_cache: Path
) -> None:
    """`described`: what is copied at once, rows and columns of the operand in memory, and elements between its rows."""
    kernel, facts = CASES[name]
    config = next(c for c in space(Kind.of(kernel), H100).configs if label(c) == name)
    work = Work(Arguments(kernel), "product", H100, 0, lambda config, facts: generate(kernel, config, facts, CHIP))
    handle = GemmCandidate(name, config, work, lambda size: True, lambda size: 1e-6).specialise(facts).handle()
    assert handle is not None
    [one] = handle.launches
    taken = parameters(one.function.image)
    passed = [PASSED.get(kind, size) for (kind, _), size in zip(one.parameters, taken, strict=True)]
    assert passed == taken
    size = {"M": 300, "N": 500, "K": 200, "a_stride_m": 1000, "a_stride_k": 2000, "b_stride_n": 3000, "b_stride_k": 4000}
    integers = [size.get(each, 1) for each in kernel.size_names]
    assert [(each.tensor, each.type, each.bytes) for each in one.descriptors] == [(k, 9, 2) for k in range(len(described))]
    assert described == [
        (each.block, tuple(evaluate(n, integers) for n in each.shape), *(evaluate(stride, integers) for stride in each.strides))
        for each in one.descriptors
    ]


REGIMES = {
    "tiny sizes": Facts(exact=(("M", 3), ("N", 5), ("K", 7))),
    "64-bit positions": Facts(wide=True, exact=(("M", 2),)),
    "64-bit positions, aligned": Facts(ALIGNED.divisible - {"M"}, ALIGNED.aligned, True, (("M", 4),), ALIGNED.holding),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_every_schedule_compiles_in_regimes_at_the_edge(regime: str, empty_cache: Path) -> None:
    kernels = (product(BF16, "k", "n"), product(F32, "m", "k", batched=True), product(FP8, "k", "k", out=BF16))
    asked = [
        cubins.request(order)
        for kernel in kernels
        for variant in PLAIN
        for order in orders(kernel, small(variant, k=32, n=32), REGIMES[regime])
    ]
    assert all(promise.result().binary for promise in asked)


def test_no_config_holds_more_sums_than_a_thread_has_registers_for() -> None:
    for kernel, _ in CASES.values():
        for config in space(Kind.of(kernel), H100).configs:
            if config["variant"] != "rows":
                sums = int(config["m"]) * int(config["n"]) / (32 * int(config["warps"]))
                assert sums <= (64 if kernel.in_dtype in (F32, FP8) else 128)


@pytest.mark.parametrize(
    ("dtype", "blocks", "reason"),
    [
        (F32, {"m": 128, "n": 128, "k": 32, "stages": 2, "warps": 4}, r"spill \d+ bytes"),
        (BF16, {"m": 128, "n": 128, "k": 128, "stages": 5, "warps": 8}, "327680 bytes of shared memory"),
    ],
)
def test_what_a_block_cannot_hold_is_refused_by_its_compiled_form(
    dtype: torch.dtype, blocks: dict[str, int], reason: str, empty_cache: Path
) -> None:
    kernel = product(dtype)
    work = Work(Arguments(kernel), "product", H100, 0, lambda config, facts: generate(kernel, config, facts, CHIP))
    config = Config.of(variant="tile", group=8, **blocks)
    special = GemmCandidate("large", config, work, lambda size: True, lambda size: 1e-6).specialise(ALIGNED)
    assert not special.excess
    with pytest.raises(ResourcesExceeded, match=f"'product', candidate 'large': .*{reason}"):
        special.entry()
    assert special.failed()


def dequantised(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x @ (w.to(x.dtype) * s).t()


def unpacked(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x @ ((torch.stack([w & 15, w >> 4], -1).reshape(w.shape[0], -1).to(x.dtype) - 8) * s).t()


def activated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x) @ w.t()


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


COMPUTED: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "int8 weights": (dequantised, (half(5, 24), torch.zeros(9, 24, dtype=torch.int8), half(9, 1))),
    "int4 weights": (unpacked, (half(5, 24), torch.zeros(9, 12, dtype=torch.uint8), half(9, 1))),
    "activations": (activated, (half(5, 24), half(9, 24))),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_operands_fit_in_registers(name: str, empty_cache: Path) -> None:
    function, args = COMPUTED[name]
    with options.override(interpret=True):
        program, template = lowered(function, args)
    kernel = gemm_kernel.canonicalize(template, program.buffers)[0]
    assert any(kernel.prologues)
    facts = Facts(frozenset(kernel.size_names), frozenset(t.name for t in kernel.tensors), holding=frozenset({EVEN_K}))
    for m, n, k, stages, warps in ((16, 64, 128, 4, 4), (64, 64, 64, 3, 4), (64, 128, 64, 3, 8)):
        config = Config.of(variant="tile", m=m, n=n, k=k, stages=stages, warps=warps, group=8)
        for order in orders(kernel, config, facts):
            compiled = cubins.request(order).result().facts
            assert compiled.shared <= H100.shared_per_block and not compiled.spills, (config, compiled)
