"""Configs as machine code that a worker runs. test_isolation.py runs this in a process where Triton does not interpret. The GPU
is tests/tuning/device.c, the host with faults: the code of a config is a C function there. What Triton itself compiles is looked
at."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget

import polytile
from polytile.autotuner import isolated
from polytile.autotuner.call import Call
from polytile.runtime import compile as compiler
from polytile.runtime.cuda import driver
from polytile.runtime.cuda.launch import LITERAL, NOTHING, TENSOR
from polytile.tuning.isolation import gpu
from polytile.tuning.isolation.memory import Unavailable
from tests.autotuner import fake_driver
from tests.autotuner.fake_driver import FakeKernel

real_compile = triton.compiler.compile
fake = fake_driver.install()

BODY = """
int kernel(void **p, unsigned grid)
{ float *x = *(float **)p[0], *y = *(float **)p[1]; int n = *(int *)p[2]; float by = *(float *)p[3];
  if (n != 500 || by != 2.5f || grid != 4 || *(void **)p[4] || *(void **)p[5]) return 1;
  for (int i = 0; i < n; ++i) y[i] = x[i] * by;
  return FAULT; }
"""
CONFIGS = [triton.Config({"BLOCK": 128}, num_warps=warps) for warps in (1, 2, 4, 8)]
ILLEGAL_ADDRESS = 700


@triton.jit
def scale(src, dst, N, one, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N) * factor * one, at < N)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["N"], meta["BLOCK"]),)


def compiled(source: Any, target: GPUTarget, options: dict[str, Any], _env_vars: Any = None) -> FakeKernel:
    """A config of eight warps has a fault on the device; here it would end the process."""
    warps = options["num_warps"]

    def effect(grid: Any, options: Any, src: torch.Tensor, dst: torch.Tensor, N: int, one: int, factor: float, *_: Any) -> None:
        assert warps != 8, "a config that failed in the worker runs nowhere else"
        dst[:N] = src[:N] * factor

    kernel: Any = FakeKernel(source, effect, options)
    code = compiler.compile_c("config", BODY.replace("FAULT", str(ILLEGAL_ADDRESS if warps == 8 else 0)), ("-w",)).result()
    kernel.asm = {"cubin": code.path.read_bytes()}
    kernel.metadata = SimpleNamespace(name="kernel", num_warps=warps, shared=0)
    return kernel


def a_config_with_a_fault_on_the_device_is_left_out() -> None:
    library = compiler.compile_c("host_as_device", (Path(__file__).parents[1] / "tuning/device.c").read_text(), ("-w",)).result()
    driver.LIBRARY = str(library.path)
    gpu.memory_of = lambda index: (80 << 30, 80 << 30)
    triton.compiler.compile = compiled
    kernel = polytile.autotune(CONFIGS, ["N"], options={"persist": False})(scale)
    src, dst = torch.randn(500), torch.zeros(500)
    kernel[grid](src, dst, 500, 1, 2.5)
    torch.testing.assert_close(dst, src * 2.5)
    (decision,) = kernel.decisions
    notes = {one.candidate: one.note for one in decision.standings}
    assert "illegal memory access" in notes["BLOCK=128 w8 s3"], notes
    assert sum(not note for note in notes.values()) == 3, notes


def what_triton_compiles_gets_its_arguments() -> None:
    triton.compiler.compile = lambda source, target, options, _env_vars=None: real_compile(source, target, options)
    kernel = polytile.autotune(CONFIGS, ["N"])(scale)
    src, dst = torch.randn(500), torch.zeros(500)
    args = (src, dst, 500, 1, 2.5)
    call = Call(kernel.arg_names, kernel.keys, args, {"grid": grid})
    handle: Any = isolated.handle(kernel, CONFIGS[1], call, args, {"grid": grid})
    (launch,) = handle.launches
    number = int.from_bytes(struct.pack("f", 2.5), "little")
    assert launch.parameters == ((TENSOR, 0), (TENSOR, 1), (LITERAL, 500), (LITERAL, number), (NOTHING, 0), (NOTHING, 0))
    assert launch.threads == 64 and launch.function.symbol == "scale" and launch.function.image[:4] == b"\x7fELF"
    assert [formula[1] for formula in launch.grid] == [4, 1, 1]


def replaced_code_is_compiled_in_place_of_the_kernels() -> None:
    """As Triton's `ir_override` has it, at each stage of compiling."""
    triton.compiler.compile = lambda source, target, options, _env_vars=None: real_compile(source, target, options)
    args = (torch.randn(500), torch.zeros(500), 500, 1, 2.5)
    plain = polytile.autotune(CONFIGS, ["N"])(scale).compiled(CONFIGS[1], args, {"grid": grid})
    with tempfile.TemporaryDirectory() as folder:
        for stage, product, total in (("ttir", "arith.mulf", "arith.addf"), ("ttgir", "arith.mulf", "arith.addf"),
                                      ("ptx", "mul.f32", "add.f32")):  # fmt: skip
            file = Path(folder) / f"replaced.{stage}"
            file.write_text(plain.asm[stage].replace(product, total))
            config = triton.Config({"BLOCK": 128}, num_warps=2, ir_override=str(file))
            made = polytile.autotune([*CONFIGS, config], ["N"])(scale).compiled(config, args, {"grid": grid})
            assert "mul.f32" in plain.asm["ptx"] and "mul.f32" not in made.asm["ptx"] and "add.f32" in made.asm["ptx"], stage
            assert made.asm["cubin"] != plain.asm["cubin"], stage


def what_no_other_process_can_launch_says_why() -> None:
    hooked = triton.Config({"BLOCK": 128}, pre_hook=lambda given: None)
    kernel = polytile.autotune([*CONFIGS, hooked], ["N"])(scale)
    args = (torch.randn(500), torch.zeros(500), 500, 1, 2.5)
    call = Call(kernel.arg_names, kernel.keys, args, {"grid": grid})
    try:
        isolated.handle(kernel, hooked, call, args, {"grid": grid})
    except Unavailable as reason:
        assert "hook" in str(reason)
    else:
        raise AssertionError("a hook runs in this process alone")


TESTS = [
    a_config_with_a_fault_on_the_device_is_left_out, what_triton_compiles_gets_its_arguments,
    what_no_other_process_can_launch_says_why, replaced_code_is_compiled_in_place_of_the_kernels,
]  # fmt: skip

if __name__ == "__main__":
    for test in TESTS:
        scale.device_caches.clear()
        test()
        print(test.__name__.replace("_", " "))
