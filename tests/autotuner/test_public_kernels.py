"""Twelve kernels of the kinds that people publish (benchmarks/gpu/public), with the import of their decorator changed alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.public import NAMES, loaded
from tests.autotuner.processes import run_compiling


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_computes_what_torch_does_while_it_is_tuned_and_after(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYTILE_ISOLATION", "never")
    torch.manual_seed(0)
    run, right = loaded(name, tmp_path).make(0, "cuda" if torch.cuda.is_available() else "cpu", torch.float32)
    for _ in range(2):
        torch.testing.assert_close(list(run()), [each.float() for each in right()], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_every_config_of_each_compiles_for_an_h100(tmp_path: Path) -> None:
    assert run_compiling("tests.autotuner.compiling", tmp_path).stdout.split() == list(NAMES)
