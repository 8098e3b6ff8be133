"""Takes a Triton kernel of your own from its source to tunings that are shipped with it, and prints how long each step takes.

The steps: look for hazards, tune at some sizes, write the choices to a file, and run with that file and an empty cache. Without a
GPU, Triton interprets the kernel: the path is the same, the choices mean nothing. docs/autotune.md has more."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import polytile

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported
try:
    import triton
    import triton.language as tl
except ImportError:
    raise SystemExit("This example needs Triton: pip install 'polytile[gpu]'.") from None

TUNINGS, SIZES = Path(os.environ.get("SWIGLU_TUNINGS", Path(__file__).with_name("swiglu_tunings.json"))), (100, 3000, 50_000)
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((128, 1), (1024, 4), (4096, 8))]


def make_args(N: int) -> dict[str, Any]:
    """What `polytile tune` launches the kernel with."""
    x, gate, y = torch.randn(3, N, device=DEVICE)
    return {"x": x, "gate": gate, "y": y, "grid": lambda meta: (triton.cdiv(N, meta["BLOCK"]),)}


@polytile.autotune(CONFIGS, key=["N"], make_args=make_args, plan=str(TUNINGS) if TUNINGS.exists() else "")
@triton.jit
def swiglu_kernel(x, gate, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < N
    value = tl.load(gate + at, inside)
    tl.store(y + at, tl.load(x + at, inside) * value / (1 + tl.exp(-value)), inside)


def swiglu(x: Tensor, gate: Tensor) -> Tensor:
    """x * silu(gate), for contiguous float32 tensors of one shape."""
    y, N = torch.empty_like(x), x.numel()
    swiglu_kernel[lambda meta: (triton.cdiv(N, meta["BLOCK"]),)](x, gate, y, N)
    return y


def run() -> None:
    """Calls the kernel at each size; prints how many configs were timed, and what was chosen."""
    for size in SIZES:
        x, gate = torch.randn(2, size, device=DEVICE)
        torch.testing.assert_close(swiglu(x, gate), x * torch.nn.functional.silu(gate))
    print(f"{polytile.counters['candidates_benchmarked']} configs timed")
    for decision in swiglu_kernel.decisions:
        print(f"N={dict(decision.sizes)['N']} -> {decision.candidate}")


def walk() -> None:
    """Each step in a process of its own; the last has an empty cache."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        plan = f"{folder}/swiglu_tunings.json"
        sizes = [word for size in SIZES for word in ("--at", f"N={size}")]
        for words, cache in (
            (["-m", "polytile", "autotune", "--scan", __file__], "cache"),
            (["-m", "polytile", "tune", f"{__file__}:swiglu_kernel", "--quick", *sizes, "--save-plan", plan], "cache"),
            ([__file__, "run"], "another machine's cache"),
        ):
            begin, extra = time.perf_counter(), {"SWIGLU_TUNINGS": plan, "POLYTILE_CACHE_DIR": f"{folder}/{cache}"}
            done = subprocess.run([sys.executable, *words], env=os.environ | extra, stdout=subprocess.PIPE, text=True, check=True)
            shown, seconds = (Path(word).name if os.sep in word else word for word in words), time.perf_counter() - begin
            print(f"python {' '.join(shown)} ({seconds:.1f} s)")
            said = done.stdout.replace(folder, "...").splitlines()
            print("\n".join(f"    {line}" for line in said if line and not line.startswith(("|", "**"))))
        size, minutes = Path(plan).stat().st_size, (time.perf_counter() - began) / 60
        print(f"swiglu_tunings.json: {size} bytes to ship, after {minutes:.1f} minutes")


if __name__ == "__main__":
    torch.manual_seed(0)
    run() if sys.argv[1:] == ["run"] else walk()
