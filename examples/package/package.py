"""Writes a model as a package, and runs it from Python and from C++ at changing sizes.

It prints what the package holds, and for some numbers of rows what eager, the package in Python and the program in C++
(main.cpp) give: the sum of all results and the largest one. The C++ program is built with the runtime's source, which polytile
brings; it uses neither Python nor torch. `package.py FOLDER` leaves the package and the program there.
docs/packages.md explains packages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import polytile
from polytile.cli.package import write_runtime

ROWS, COLUMNS = (2, 40, 333), 64


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(COLUMNS, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, COLUMNS), nn.Softmax(-1)).eval()


def input_of(rows: int) -> torch.Tensor:
    return torch.sin(0.001 * torch.arange(rows * COLUMNS, dtype=torch.float64)).float().reshape(rows, COLUMNS)


def told(results: torch.Tensor) -> str:
    return f"{len(results)} rows: sum {results.double().sum():.4f}, largest {results.max():.4f}"


def built(folder: Path) -> Path:
    """The C++ program."""
    write_runtime(folder)
    subprocess.run(["gcc", "-O2", "-c", "polytile_package.c"], cwd=folder, check=True)
    source = Path(__file__).with_name("main.cpp")
    subprocess.run(
        ["g++", "-O2", "-I.", str(source), "polytile_package.o", "-o", "main", "-ldl", "-lpthread"], cwd=folder, check=True
    )
    return folder / "main"


@torch.no_grad()
def main(folder: Path) -> None:
    model = build()
    path = polytile.package(model, (input_of(40),), folder / "model.ptp")
    package = polytile.load_package(path)
    print(f"{path.name}: {len(package.manifest['kernels'])} kernels")
    for name, run in (("eager", model), ("package in Python", package)):
        print(name)
        for rows in ROWS:
            print("  " + told(run(input_of(rows))))
            torch.testing.assert_close(run(input_of(rows)), model(input_of(rows)), rtol=1e-4, atol=1e-5)
    if shutil.which("g++") and shutil.which("gcc"):
        print("package in C++")
        words = [str(built(folder)), str(path), *map(str, ROWS)]
        print("  " + subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip().replace("\n", "\n  "))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(*(sys.argv[1:] or [temporary]))
        folder.mkdir(parents=True, exist_ok=True)
        main(folder)
