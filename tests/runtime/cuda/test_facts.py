"""What is kept about a GPU: the facts its fingerprint stands for, its driver, and its clocks at the moment of measuring."""

from __future__ import annotations

import ctypes
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from polytile.runtime.cuda import clocks, driver
from polytile.runtime.cuda import device as gpu
from polytile.runtime.device import described
from tests.runtime.cuda.conftest import Stub

PROPERTIES = {
    "name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 85_000_000_000,
    "L2_cache_size": 50 << 20, "regs_per_multiprocessor": 65536, "shared_memory_per_multiprocessor": 233_472,
    "shared_memory_per_block_optin": 232_448, "max_threads_per_multi_processor": 2048, "clock_rate": 1_980_000,
    "memory_clock_rate": 2_619_000, "memory_bus_width": 5120, "uuid": "12-34",
}  # fmt: skip


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A GPU with these properties, which a test may change."""
    properties = dict(PROPERTIES)
    monkeypatch.setattr(gpu, "available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(**properties))
    forget()
    yield properties
    forget()


def forget() -> None:
    for once in (gpu.facts, clocks._library, clocks._device):
        once.cache_clear()


CHANGES = {
    "name": ("name", "NVIDIA H100 PCIe"), "capability": ("minor", 3), "sms": ("multi_processor_count", 114),
    "memory_bytes": ("total_memory", 1), "l2_bytes": ("L2_cache_size", 1), "clock": ("clock_rate", 1_755_000),
    "registers_per_sm": ("regs_per_multiprocessor", 1), "shared_per_sm": ("shared_memory_per_multiprocessor", 1),
    "shared_per_block": ("shared_memory_per_block_optin", 1), "threads_per_sm": ("max_threads_per_multi_processor", 1),
    "memory_clock": ("memory_clock_rate", 1_593_000), "memory_bus_bits": ("memory_bus_width", 4096),
}  # fmt: skip
"""Fact → the property that tells it, and another value."""


@pytest.mark.parametrize("fact", CHANGES)
def test_another_gpu_is_another_fingerprint_and_the_store_says_what_it_was(present: dict[str, Any], fact: str) -> None:
    before = gpu.fingerprint(0)
    name, value = CHANGES[fact]
    present[name] = value
    gpu.facts.cache_clear()
    after = gpu.fingerprint(0)
    assert after != before
    assert fact in {name for name, said in described(after) if dict(described(before))[name] != said}


def test_the_fingerprint_stands_for_name_clocks_and_sizes_but_for_no_estimate(
    present: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gpu.fingerprint(0)
    facts = dict(described(before))
    assert before.startswith("cuda-sm90-132sm-") and {*CHANGES, "kind"} <= set(facts)
    assert facts["name"] == "NVIDIA H100 80GB HBM3" and float(facts["clock"]) == 1.98e9
    assert not set(gpu.ESTIMATES) & set(facts)
    better = tuple(gpu.replace(row, bandwidth=1.0, launch_seconds=1.0) for row in gpu.TABLE)
    monkeypatch.setattr(gpu, "TABLE", better)
    gpu.facts.cache_clear()
    assert gpu.fingerprint(0) == before, "a better table measures nothing anew"


@pytest.mark.parametrize(
    "text, release",
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 23:34:32 UTC 2025\nGCC version: 12.2.0\n",
         "570.86.15 (CUDA 13000)"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.183  Release Build\n", "535.183 (CUDA 13000)"),
        (None, "CUDA 13000"),
    ],
)  # fmt: skip
def test_the_driver_is_told_by_its_release(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, release: str
) -> None:
    monkeypatch.setattr(driver, "RELEASE", tmp_path / "version")
    if text is not None:
        driver.RELEASE.write_text(text)
    assert driver.release() == release


def test_without_a_driver_there_is_no_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libnone.so")
    driver.reset()
    assert driver.release() == "none"
    driver.reset()


class Management:
    """NVML that answers by function and first argument; what it lacks it refuses."""

    ANSWERS = {("nvmlDeviceGetClockInfo", 1): 1755, ("nvmlDeviceGetClockInfo", 2): 2619,
               ("nvmlDeviceGetMaxClockInfo", 1): 1980, ("nvmlDeviceGetPowerUsage",): 312_500}  # fmt: skip
    asked: bytes = b""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        Management.asked = uuid
        return 0

    def __getattr__(self, function: str) -> Any:
        def answer(device: Any, *arguments: Any) -> int:
            *which, number = arguments
            found = self.ANSWERS.get((function, *which))
            if found is None:
                return 3  # NVML_ERROR_NOT_SUPPORTED
            ctypes.cast(number, ctypes.POINTER(ctypes.c_uint))[0] = found
            return 0

        return answer


def test_clocks_are_those_of_the_gpu_that_torch_means(present: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks.ctypes, "CDLL", lambda name: Management())
    assert clocks.clocks(0) == {"mhz": 1755.0, "memory_mhz": 2619.0, "max_mhz": 1980.0, "watts": 312.5}
    assert Management.asked == b"GPU-12-34"


def test_where_nothing_tells_the_clocks_there_are_none(present: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "LIBRARY", "libnone.so")
    assert clocks.clocks(0) == {}


@pytest.mark.gpu
def test_a_real_gpu_tells_its_clocks() -> None:
    forget()
    found = clocks.clocks(0)
    assert 100 < found["mhz"] <= found["max_mhz"] < 5000
