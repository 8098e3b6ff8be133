"""torch's profiler shows the kernels of a compiled program under their names and the operators that they came from."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import polytile
from polytile.runtime import native


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1)


def kernels_seen(compiled, x: torch.Tensor) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        compiled(x)
    return [event.name for event in seen.events() if "aten.exp" in event.name]


@pytest.mark.parametrize("wrapper", ["cpp", "python"])
@pytest.mark.parametrize("extension", [True, False], ids=["C", "ctypes"])
def test_profiler_shows_kernels(wrapper, extension, monkeypatch):
    if not extension:
        monkeypatch.setattr(native, "module", lambda quietly=False: None)
    torch._dynamo.reset()
    polytile.reset()
    compiled = torch.compile(scaled, backend="polytile", dynamic=True, options={"stall": "compile", "wrapper": wrapper})
    compiled(torch.randn(5, 7))
    for rows in (5, 40):
        [name] = kernels_seen(compiled, torch.randn(rows, 9))
        assert name.startswith("amax_exp") and "aten.amax" in name


def test_a_kernel_that_raises_ends_its_record():
    compiled = torch.compile(lambda x, i: x[i] * 2, backend="polytile", dynamic=True, options={"stall": "compile"})
    x, indices = torch.randn(5), torch.tensor([1, 2, 3])
    compiled(x, indices)
    with profile(activities=[ProfilerActivity.CPU]) as seen, pytest.raises(IndexError):
        compiled(x, indices + 5)
    assert any("aten.mul" in event.name for event in seen.events())
