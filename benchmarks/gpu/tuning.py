"""What tuning takes: the first call of polytile at each of some shapes, beside the peer's max-autotune compiled for that shape
alone. In a process of its own with empty caches, so that nothing that is compiled elsewhere counts; a call of each compiler on
another function comes first, so that what it imports does not count either.

`python -m benchmarks.gpu.tuning FILE [--seconds 100]` is that process: it adds cells of the part `tuning` to FILE.
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

from benchmarks.command import Command
from benchmarks.compilers import copied
from benchmarks.gpu import products
from benchmarks.gpu.grid import Cells
from benchmarks.gpu.host import plus_one
from benchmarks.gpu.product_cell import cell, switch
from benchmarks.gpu.products import Case, Shape

CELLS: tuple[tuple[str, str, str, Shape], ...] = (
    ("square", "x @ y", "bf16", (4096, 4096, 4096)), ("epilogue", "residual", "bf16", (1024, 4096, 4096)),
    ("square", "x @ y", "bf16", (1024, 1024, 1024)), ("thin", "linear", "bf16", (16, 4096, 4096)),
    ("epilogue", "bias + gelu", "bf16", (4096, 4096, 4096)), ("square", "x @ y", "fp32", (1024, 1024, 1024)),
    ("llm", "linear", "bf16", (1024, 14336, 4096)), ("epilogue", "relu", "bf16", (2048, 4096, 14336)),
    ("square", "x @ y", "fp32", (4096, 4096, 4096)), ("thin", "linear", "bf16", (1, 4096, 14336)),
)  # fmt: skip
"""(part, function, type, shape), the most telling first."""
STARTING = 30.0
"""Seconds that the process is given beyond its time for cells."""


def key(part: str, name: str) -> str:
    return f"tuning: {part}, {name}"


def measure(_: str, deadline: float, cells: Cells) -> None:
    """Has a process measure what is missing until then, and takes what it has measured, whatever becomes of it."""
    seconds = deadline - time.monotonic()
    if seconds <= 0 or all(cells.has(key(part, name), dtype, shape) for part, name, dtype, shape in CELLS):
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cells.jsonl"
        file.write_text(cells.path.read_text() if cells.path.exists() else "")
        caches = {name: f"{folder}/{name}" for name in ("POLYTILE_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        command = [sys.executable, "-m", __name__, str(file), "--seconds", str(seconds), "--again", *cells.again]
        try:
            subprocess.run(command, env={**os.environ, **caches}, timeout=seconds + STARTING)
        except subprocess.TimeoutExpired:
            print(f"tuning: the process was ended after {seconds + STARTING:.0f} s", flush=True)
        cells.take(file)


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--again", nargs="*", default=[])
    given = parser.parsed()
    deadline, cells = time.monotonic() + given.seconds, Cells(given.file, given.again)
    x = torch.randn(64, 64, device="cuda")
    torch.compile(copied(plus_one, "ours"), backend="polytile", dynamic=True)(x)
    torch.compile(copied(plus_one, "theirs"), dynamic=False)(x)
    cases = {(case.part, case.name): case for case in products.cases(256)}
    for part, name, dtype, shape in CELLS:
        if time.monotonic() < deadline and not cells.has(key(part, name), dtype, shape):
            cells.add(_row(cases[part, name], key(part, name), dtype, shape))


def _row(case: Case, function: str, dtype: str, shape: Shape) -> dict[str, Any]:
    switch(dtype)
    row: dict[str, Any] = {"function": function, "part": "tuning", "dtype": dtype, "shape": list(shape)}
    ours = torch.compile(copied(case.run, "ours"), backend="polytile", dynamic=True, options={"persist": False})
    try:
        row.update(cell(case, ours, shape, dtype, peer=True))
    except Exception as error:
        torch.cuda.synchronize()
        row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
    print({name: value for name, value in row.items() if name not in ("part", "bytes")}, flush=True)
    return row


if __name__ == "__main__":
    main()
