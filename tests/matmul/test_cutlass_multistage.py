"""CUTLASS's products for devices before Hopper: nobody here can run them, so they are compiled, and what they take is read."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest
import torch

from polytile import options
from polytile.candidates import cutlass
from polytile.candidates.cutlass import CutlassCandidate
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.operands import EVEN_K
from polytile.runtime.cuda import device
from polytile.schedule.facts import Facts
from tests.candidates.test_cutlass import installed
from tests.candidates.test_cutlass import refusing as refusing
from tests.codegen.triton_gemm import product

BF16, F16, F32, INT8 = torch.bfloat16, torch.float16, torch.float32, torch.int8
DEVICES = "A100-SXM4-80GB", "RTX 3090", "RTX 4090"


def candidates(kernel: GemmKernel, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[CutlassCandidate, ...]:
    """Those on a device."""
    there = SimpleNamespace(facts=device.named(name))
    monkeypatch.setattr(cutlass, "Target", SimpleNamespace(of=lambda target: there))
    return cutlass.product_candidates(kernel, "product", torch.device("cpu"))


def facts(kernel: GemmKernel, even: bool = True) -> Facts:
    aligned = frozenset(kernel.size_names) - {"K"}
    return Facts(aligned, frozenset("ABC"), holding=frozenset([EVEN_K]) if even else frozenset())


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("kernel", [product(BF16, "k", "k"), product(INT8, "k", "k", out=torch.int32)])
def test_blocks_fit_the_device(kernel: GemmKernel, name: str, refusing: object, monkeypatch: pytest.MonkeyPatch) -> None:
    own = candidates(kernel, name, monkeypatch)
    assert len({candidate.name for candidate in own}) == len(own) >= 7
    for candidate in own:
        (launch,) = candidate.specialise(facts(kernel)).kernel.launches
        m, n, threads = int(candidate.config["m"]), int(candidate.config["n"]), 32 * int(candidate.config["warps"])
        assert dict(launch.own)["shared"] <= device.named(name).shared_per_block and m * n / threads <= 128
        assert not launch.descriptors and launch.num_warps * 32 == threads
        assert candidate.cost({"batch": 1, "M": 512, "N": 4096, "K": 4096}) > 0


def test_steps_along_k_are_whole(refusing: object, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = product(BF16, "k", "k", batched=True)
    candidate = candidates(kernel, DEVICES[0], monkeypatch)[0]
    assert not candidate.specialise(facts(kernel)).failed() and candidate.specialise(facts(kernel, even=False)).failed()


@pytest.mark.parametrize(
    "kernel", [product(BF16, "k", "n"), product(F32, "k", "k"), product(BF16, "k", "k", stored=(BF16, INT8))]
)
def test_other_products_are_left_to_others(kernel: GemmKernel, refusing: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not candidates(kernel, DEVICES[0], monkeypatch)


def test_code_is_for_the_device(refusing: object, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = product(F16, "k", "k")
    for name, arch in zip(DEVICES, ("sm_80", "sm_86", "sm_89"), strict=True):
        work = candidates(kernel, name, monkeypatch)[0].work
        launch = candidates(kernel, name, monkeypatch)[0].specialise(facts(kernel)).kernel.launches[0]
        assert work.order(launch, "f").job["arch"] == arch


@pytest.mark.slow
@pytest.mark.skipif(bool(installed()), reason=installed())
@pytest.mark.parametrize(
    ("block", "kernel", "on"),
    [
        ("64x64x32", product(BF16, "k", "k"), DEVICES[0]),
        ("64x64x64", product(INT8, "k", "k", out=torch.int32), DEVICES[0]),
        ("32x64x32", product(F16, "k", "k", out=F32, batched=True), DEVICES[2]),
    ],
)
def test_code_for_earlier_devices_spills_nothing(
    block: str, kernel: GemmKernel, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small blocks: the largest take nvcc minutes on a busy machine. What spills is not run."""
    with options.override(nvcc=shutil.which("nvcc") or ""):
        candidate = next(c for c in candidates(kernel, on, monkeypatch) if f" {block} " in c.name).specialise(facts(kernel))
        assert candidate.handle() is not None
    taken = candidate.resources
    assert taken.registers is not None and taken.registers <= 255 and taken.spilled_bytes == 0
