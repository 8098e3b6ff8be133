"""8-bit floats in loops: converted on their way to and from memory as torch converts them, on devices that know them."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from polytile.codegen.triton import interpret
from polytile.codegen.triton.generate import generate
from polytile.ir.buffer import Buffer
from polytile.ir.dtypes import ROUNDING
from polytile.ir.loop import Loop
from polytile.ir.program import Extern
from polytile.runtime.cuda import device
from polytile.runtime.target import Target
from polytile.schedule.canonical import LoopKernel, canonicalize
from polytile.schedule.facts import Facts
from tests.codegen.helpers import BF16, F32, P0, S0, load, loop, op, store
from tests.codegen.test_triton_golden import config, resources
from tests.frontend.lowering import lower

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

TYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
EVERY = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(BF16)
"""All numbers of 16 bits, infinities, NaN and those beyond the largest of 8 bits among them."""
AROUND = torch.tensor([448.0, 463.9, 464.0, 464.1, 479.0, 480.0, 57344.0, 61439.9, 61440.0, 65536.0, 1e30])
"""Where numbers become the largest, infinity or NaN."""


def kernel_of(read: torch.dtype, written: torch.dtype, through: torch.dtype | None = None) -> LoopKernel:
    """o = x, or x rounded to a third type."""
    value = load("x", P0, F32)
    body = loop([store("o", P0, value if through is None else op(ROUNDING[through], value))], {P0: S0})
    types = {"x": read, "o": written}
    return canonicalize(body, {name: Buffer(name, dtype, (S0,), ()) for name, dtype in types.items()})[0]


def run(kernel: LoopKernel, x: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    made = generate(kernel, config(variant="pointwise", x=1024), Facts())
    tensors = {"a0": x, "a1": torch.zeros(x.numel(), dtype=out)}
    interpret.run(made, tensors, {kernel.symbols[0].name: x.numel()})
    return tensors["a1"]


def same(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_numbers_are_rounded_as_torch_rounds_them(dtype: torch.dtype) -> None:
    for x in (EVERY, EVERY.float() * 1.0009765625, torch.cat([AROUND, -AROUND])):
        same(run(kernel_of(x.dtype, dtype), x, dtype), x.to(dtype))
        same(run(kernel_of(x.dtype, F32, dtype), x, F32), x.to(dtype))
    bytes_ = torch.arange(256).to(torch.uint8).view(dtype)
    same(run(kernel_of(dtype, F32), bytes_, F32), bytes_)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_conversions_compile_where_loops_have_them(dtype: torch.dtype) -> None:
    """Both ways, with masks; for an H100 and for an AMD."""
    made = {str(k): kernel_of(*types) for k, types in enumerate([(BF16, dtype), (dtype, BF16), (dtype, dtype)])}
    for gpu in ("H100", "MI300X"):
        launches = [(name, generate(one, config(variant="pointwise", x=1024), Facts()).launches[0]) for name, one in made.items()]
        found = resources(launches, device.named(gpu))
        assert found.keys() == made.keys() and not any(facts.spills for facts in found.values())


def test_older_gpus_leave_them_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, converts in (("H100", True), ("L4", True), ("MI300X", True), ("A100", False), ("T4", False)):
        monkeypatch.setattr(device, "facts", lambda index, name=name: device.named(name))
        assert Target.of(torch.device("cuda", 0)).converts_float8 == converts
    assert not Target.of(torch.device("xpu")).converts_float8


def test_a_cpu_leaves_them_to_the_library() -> None:
    made = lower(lambda x: (x * 2).to(torch.float8_e4m3fn), torch.randn(7))
    assert {type(operation) for operation in made.operations} == {Loop, Extern}
