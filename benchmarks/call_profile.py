"""The time line of a call: `python -m benchmarks.call_profile`.

A transformer's layer is compiled and profiled on this machine's GPU, or on its CPU where there is none. Its profile goes to
OUT/call_DEVICE.json, and the report of it to OUT/call_DEVICE.html.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

import polytile
from benchmarks.command import OUT, Command
from benchmarks.encoder import Layer

ON_GPU = torch.cuda.is_available()
WIDTH, HEADS, TOKENS = (1024, 16, 256) if ON_GPU else (256, 4, 64)
CALLS = 30
"""Calls before the profile: launches that come again are captured as CUDA graphs meanwhile."""


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("--out", type=Path, default=OUT / "reports")
    out = parser.parsed().out
    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
    layer, x = Layer(WIDTH, HEADS).to(device, dtype).eval(), torch.randn(1, TOKENS, WIDTH, device=device, dtype=dtype)
    compiled = polytile.compile(layer, options={"stall": "tune", "race_eager": False})
    with torch.no_grad():
        for _ in range(CALLS):
            compiled(x)
        polytile.wait()
        found = polytile.profile(compiled, x)
    file = out / f"call_{device}.json"
    found.save(file)
    print(found, f"{polytile.counters['cuda_graphs']} CUDA graphs were made", sep="\n")
    words = ["report", file.name, "-o", file.with_suffix(".html").name]
    subprocess.run([sys.executable, "-m", "polytile", *words], check=True, cwd=out)


if __name__ == "__main__":
    main()
