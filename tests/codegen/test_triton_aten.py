"""On a GPU too the ATen calls that a loop came from are among its candidates, timed as kernels are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from polytile.candidates import triton_loops as loops
from polytile.candidates.entries import PythonEntry
from polytile.compiler.programs import compiled_programs
from polytile.dispatch import gpu_specs
from polytile.dispatch.example_inputs import make_args
from polytile.ir.calls import calls_of
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.runtime import regime
from polytile.runtime.cuda import device as devices
from polytile.schedule.canonical import LoopKernel, canonicalize

pytest.importorskip("triton")

GPU = torch.device("cuda", 0)

ASKED: dict[str, Callable[[Tensor], Any]] = {
    "column sum": lambda x: x.sum(0),
    "row sum": lambda x: x.sum(1),
    "greatest of rows": lambda x: x.amax(1),
    "mean": lambda x: x.mean(0, keepdim=True),
    "cumsum": lambda x: x.cumsum(1),
    "turned": lambda x: x.t().contiguous(),
    "pointwise": lambda x: x.relu(),
    "fused": lambda x: (x * 2).sum(0),
    "the middle of three axes": lambda x: (x.view(3, 3, 12) + 1).amin(1),
}
LEFT_ALONE: dict[str, Callable[[Tensor], Any]] = {
    "indices": lambda x: x.gather(1, (x * 0).long()),
}


def program_of(function: Callable[[Tensor], Any], dtype: torch.dtype = torch.float32) -> Program:
    torch.compile(function, backend="polytile", dynamic=True, options={"tune": "off"})(torch.randn(9, 12).to(dtype))
    program = compiled_programs()[-1].program
    assert program is not None
    return program


def on_gpu(function: Callable[[Tensor], Any], dtype: torch.dtype = torch.float32) -> Program:
    program = program_of(function, dtype)
    return replace(program, buffers={name: replace(b, device=GPU) for name, b in program.buffers.items()})


def kernel_of(program: Program) -> LoopKernel:
    (loop,) = program.operations
    assert isinstance(loop, Loop)
    return canonicalize(loop, program.buffers)[0]


@pytest.mark.parametrize("name", ASKED)
def test_what_came_from_operators_asks_the_library(name: str) -> None:
    assert kernel_of(on_gpu(ASKED[name])).library
    assert (not kernel_of(on_gpu(ASKED[name], torch.bfloat16)).library) == (name == "cumsum"), "added up in 16 bits"


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_the_library_may_do_harm_with_does_not(name: str) -> None:
    program = on_gpu(LEFT_ALONE[name])
    assert not any(calls_of(op, program.buffers) for op in program.operations if isinstance(op, Loop))


@pytest.mark.parametrize("name", ASKED)
def test_its_calls_stand_behind_the_generated_and_can_be_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "facts", lambda index: devices.named("H100"))
    kernel = kernel_of(on_gpu(ASKED[name]))
    found = loops.loop_candidates(kernel, ("aten.op",), GPU)
    assert [candidate.name for candidate in found[-2:]] == ["aten", "interpreted"]
    size = {symbol.name: 6 for symbol in kernel.symbols}
    assert found[-2].cost(size) > min(c.cost(size) for c in found[:-2] if c.valid(size)), "unmeasured, generated code runs"
    entry = found[-2].entry()
    assert isinstance(entry, PythonEntry) and entry.recordable
    args = make_args(kernel, size)
    entry.call(*args)
    own = [a.clone() if isinstance(a, Tensor) else a for a in args]
    found[-1].entry().call(*own)  # type: ignore[union-attr]
    for mine, right in zip(args, own, strict=True):
        torch.testing.assert_close(mine, right)


def test_under_the_interpreter_no_library_is_asked() -> None:
    kernel = kernel_of(on_gpu(ASKED["column sum"]))
    assert "aten" not in {candidate.name for candidate in loops.loop_candidates(kernel, (), torch.device("cpu"))}


def test_sizes_that_only_the_operator_has_are_part_of_no_regime() -> None:
    program = program_of(lambda x: torch.lgamma(x))
    (loop,) = program.operations
    kernel = canonicalize(loop, program.buffers)[0]
    assert len(kernel.own_symbols) < len(kernel.symbols)
    spec = gpu_specs.loop_spec(kernel, (), torch.device("cpu"))
    for symbol, code in zip(kernel.symbols, spec.size_codes, strict=True):
        assert (code == regime.IGNORE) == (symbol not in kernel.own_symbols)
