"""Graphs are compiled for a GPU where there is none: what only a GPU's kernels ask for fails here too."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = [
    pytest.mark.skipif(torch.version.cuda is not None or torch.version.hip is not None, reason="torch has its own CUDA"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None or shutil.which("g++") is None, reason="needs triton and g++"),
]

ATTENTION, PRODUCTS = ["attention", "attention_backward", "loop"], ["loop", "mm"]
FAMILIES = {
    "dropout": ATTENTION,
    "dropout by the library": PRODUCTS,
    "dropout, heads of any size": PRODUCTS,
    "masked attention": ATTENTION,
    "biased attention": ATTENTION,
    "feed-forward": PRODUCTS,
    "norm after a product": PRODUCTS,
    "a number of any sign": PRODUCTS,
    "experts": PRODUCTS,
    "dequantised weights": PRODUCTS,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder, torchs = tmp_path_factory.mktemp("absent_gpu"), Path(torch.__file__).parent
    source, library = Path(__file__).with_name("absent_gpu.cpp"), folder / "absent_gpu.so"
    words = ["g++", "-std=c++20", "-w", "-shared", "-fPIC", f"-I{torchs / 'include'}", str(source), "-o", str(library)]
    subprocess.run([*words, f"-L{torchs / 'lib'}", f"-Wl,-rpath,{torchs / 'lib'}", "-lc10", "-ltorch_cpu"], check=True)
    words = [sys.executable, "-m", "tests.compiler.for_absent_gpu", str(folder)]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "LD_PRELOAD": str(library)}
    told = subprocess.run(words, cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    cases: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return cases


def test_all_cases_are_expected(found: dict[str, Any]) -> None:
    assert list(found) == list(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_graph_is_compiled_for_a_gpu_that_is_not_there(found: dict[str, Any], name: str) -> None:
    case = found[name]
    assert (case["failures"], case["warnings"], case["programs"]) == (0, [], 2), "a program for each pass"
    assert case["families"] == FAMILIES[name] and case["texts"] > 0
