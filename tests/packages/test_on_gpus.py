"""Packages of models on GPUs where there is none: what is written, and what their calls ask of a stand-in for the driver."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import polytile
from polytile.errors import PackageError

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.cuda.is_available(), reason="needs triton, and no GPU"
)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("on_stub")
    words = [sys.executable, "-m", "tests.packages.on_stub", str(folder)]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    root = Path(__file__).parents[2]
    told = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found


def test_a_package_holds_code_for_each_architecture(seen: dict[str, Any]) -> None:
    manifest = seen["manifest"]
    assert (manifest["device"], manifest["architectures"], manifest["features"]) == ("cuda", [90, 80], [])
    cubins = [name for name in manifest["files"] if name.endswith(".cubin")]
    assert len(cubins) >= 4, "of a kernel and of the form that is right at all sizes, for both"
    assert any("cublaslt 0" in kernel["forms"] for kernel in manifest["kernels"])


@pytest.mark.parametrize(("call", "rows", "place"), [("48 on 0", 48, 0), ("41 on 1", 41, 1), ("48 on an older one", 48, 2)])
def test_a_call_runs_on_the_gpu_of_its_inputs(seen: dict[str, Any], call: str, rows: int, place: int) -> None:
    made = seen["calls"][call]
    assert (made["status"], made["why"]) == (0, "")
    assert made["outputs"] == [[[rows, 128], 2, place]] * 3
    assert made["off"] < 1e-5, "cuBLASLt multiplies by the weights in the device's memory"
    on = [0x66 if place == 2 else 0x55, 0x1000 + place]
    assert made["launches"] == [on] * 2, "the epilogue that cuBLASLt lacks, and the rows of the table"
    assert made["products"] == 2


@pytest.mark.parametrize(
    ("call", "status", "why"),
    [
        ("7 on 0", 1, "input 'x' in dimension 0 has to be 40 or more"),
        ("recorded", 1, "recorded for a CUDA graph"),
        ("48 on a later one", 1, "has no form of kernel .* for these sizes on this GPU"),
    ],
)
def test_what_cannot_run_is_refused_with_the_reason(seen: dict[str, Any], call: str, status: int, why: str) -> None:
    made = seen["calls"][call]
    assert made["status"] == status and not made["launches"]
    assert re.search(why, made["why"])


def test_all_memory_is_let_go(seen: dict[str, Any]) -> None:
    assert seen["blocks"] == 0


def test_architectures_are_those_of_gpus(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="architectures= are those of GPUs"):
        polytile.package(torch.neg, (torch.randn(8),), tmp_path / "neg.ptp", architectures=(80,))
