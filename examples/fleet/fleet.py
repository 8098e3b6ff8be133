"""A fleet in small: two machines measure, a third takes what both found, and a fourth runs the package that it ships.

Each machine is a process with a cache directory of its own, and measurements travel as files. `measure` compiles a model
and measures it at some numbers of rows. `ship` serves every number of rows with the merged stores of the two, and writes a
package. `edge` runs it where no compiler is found. Each prints what it compiled and measured; the third measures nothing.
docs/store.md explains stores, docs/packages.md packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import polytile

SHARES = {"a": (8, 100), "b": (1000, 4000)}
"""The numbers of rows that each of the two machines measures."""


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64)).eval()


def serve(name: str, rows: tuple[int, ...]) -> nn.Module:
    """Calls the compiled model; each call waits until its kernels are compiled and measured."""
    model, seen = build(), polytile.counters
    compiled = polytile.compile(model, options={"stall": "tune"})
    for count in rows:
        x = torch.randn(count, 64)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    print(f"machine {name}, rows {', '.join(map(str, rows))}: {seen['compiler_runs']} compiler runs, "
          f"{seen['candidates_benchmarked']} candidates timed")
    return model


def ship(name: str) -> None:
    model = serve(name, sum(SHARES.values(), ()))
    package = polytile.load_package(polytile.package(model, (torch.randn(100, 64),), "model.ptp"))
    print(f"machine {name} ships a package of {len(package.manifest['kernels'])} kernels")


def edge(name: str) -> None:
    package, model = polytile.load_package("model.ptp"), build()
    for count in (3, 100, 2500):
        x = torch.randn(count, 64)
        torch.testing.assert_close(package(x), model(x), rtol=1e-4, atol=1e-4)
    print(f"machine {name}: {'a' if shutil.which('g++') else 'no'} compiler is found; the package gives eager's results")


TASKS = {"measure": lambda name: serve(name, SHARES[name]), "ship": ship, "edge": edge}


def machine(folder: Path, name: str, *words: str, **variables: str) -> None:
    """Runs a command in `folder` on a machine of this name, and prints what it prints."""
    (folder / name).mkdir(exist_ok=True)
    environment = {**os.environ, "POLYTILE_CACHE_DIR": str(folder / name), **variables}
    done = subprocess.run([sys.executable, *words], env=environment, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")


@torch.no_grad()
def main(words: list[str]) -> None:
    if words:
        task, name = words
        return TASKS[task](name)
    with tempfile.TemporaryDirectory() as folder:
        script, place = str(Path(__file__).resolve()), Path(folder)
        for name in SHARES:
            machine(place, name, script, "measure", name)
        machine(place, "c", "-m", "polytile", "store", "merge", *SHARES, "--store", "c")
        machine(place, "c", script, "ship", "c")
        machine(place, "d", script, "edge", "d", PATH=folder, CXX="")


if __name__ == "__main__":
    main(sys.argv[1:])
