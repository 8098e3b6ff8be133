"""Takes a Triton kernel of your own from its source to tunings that are shipped with it, and says how long each step takes.

Without arguments, the program walks the path: it looks for hazards, tunes the kernel at some sizes from the command line,
writes what was chosen to one file, and runs the kernel in a process that has that file and an empty cache. It prints each
command with its seconds and its output. Without a GPU, Triton interprets the kernel: the path is the same, the choices mean
nothing. docs/autotune.md has more.
"""

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

TUNINGS = Path(os.environ.get("SWIGLU_TUNINGS", Path(__file__).with_name("swiglu_tunings.json")))
SIZES = (100, 3000, 50_000)
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
    y = torch.empty_like(x)
    swiglu_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, gate, y, x.numel())
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
    with tempfile.TemporaryDirectory() as folder:
        total = 0.0
        here = {**os.environ, "SWIGLU_TUNINGS": f"{folder}/swiglu_tunings.json"}
        sizes = [word for size in SIZES for word in ("--at", f"N={size}")]
        kernel, plan = f"{__file__}:swiglu_kernel", ["--save-plan", here["SWIGLU_TUNINGS"]]
        for words, cache in (
            (["-m", "polytile", "autotune", "--scan", __file__], "cache"),
            (["-m", "polytile", "tune", kernel, "--quick", *sizes, *plan], "cache"),
            ([__file__, "run"], "another machine's cache"),
        ):
            begin, options = time.perf_counter(), {**here, "POLYTILE_CACHE_DIR": f"{folder}/{cache}"}
            done = subprocess.run([sys.executable, *words], env=options, stdout=subprocess.PIPE, text=True, check=True)
            seconds = time.perf_counter() - begin
            total += seconds
            shown = " ".join(Path(word).name if os.sep in word else word for word in words)
            print(f"python {shown} ({seconds:.1f} s)")
            print("\n".join(f"    {line}" for line in done.stdout.splitlines() if line and not line.startswith(("|", "**"))))
        print(f"swiglu_tunings.json: {Path(here['SWIGLU_TUNINGS']).stat().st_size} bytes to ship, after {total / 60:.1f} minutes")


if __name__ == "__main__":
    torch.manual_seed(0)
    if sys.argv[1:] == ["run"]:
        run()
    else:
        walk()
