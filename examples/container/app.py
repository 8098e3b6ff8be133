"""Fills a cache directory where there is a compiler, and serves from it where there is none.

`python app.py warm` runs while the image is built (see the Dockerfile beside this file). `python app.py` runs in the image, which
has neither a compiler nor a toolchain. Both need POLYTILE_CACHE_DIR; the model lies beside that folder as a package, which is
loaded without any tracing. Both print whether a compiler was found, what came from the cache directory, how often a compiler ran,
and how many operators run as ATen calls. docs/serving.md says what such a cache directory depends on, docs/packages.md what
packages are.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import torch
from torch import nn

import polytile

ROWS = (4, 40, 400)
if "POLYTILE_CACHE_DIR" not in os.environ:
    raise SystemExit("Set POLYTILE_CACHE_DIR to an empty folder; run `app.py warm`, then `app.py`.")
PACKAGE = Path(os.environ["POLYTILE_CACHE_DIR"]).with_name("model.ptp")


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128), nn.Softmax(-1)).eval()


@torch.no_grad()
def main(warm: bool) -> None:
    model = build()
    serve = polytile.compile(model)
    for _ in range(2):  # the program takes over at the second call, and then meets the sizes
        for rows in ROWS:
            x = torch.randn(rows, 128)
            torch.testing.assert_close(serve(x), model(x), rtol=1e-4, atol=1e-4)
        polytile.wait()
    compiler = shutil.which("g++") or shutil.which("clang++")
    seen = polytile.counters
    print("warm:" if warm else "serve:", "a compiler is installed" if compiler else "no compiler is installed")
    print(f"  {seen['programs_loaded']} of {seen['graphs_compiled']} programs from the cache directory")
    print(f"  {seen['compiler_runs']} compiler runs, {seen['candidates_benchmarked']} candidates timed")
    if warm:
        polytile.package(model, (torch.randn(40, 128),), PACKAGE)
    packaged = polytile.load_package(PACKAGE)
    for rows in ROWS:
        x = torch.randn(rows, 128)
        torch.testing.assert_close(packaged(x), model(x), rtol=1e-4, atol=1e-4)
    print(f"  {PACKAGE.name} gives eager's results at {len(ROWS)} sizes")
    print(f"  {sum(seen['library_calls'].values())} operators run as ATen calls, {seen['failures']} failures")


if __name__ == "__main__":
    if sys.argv[1:] != ["warm"] and not PACKAGE.exists():
        raise SystemExit(f"{PACKAGE} is missing; run `app.py warm` first.")
    main(warm=sys.argv[1:] == ["warm"])
