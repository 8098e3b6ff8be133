"""A store of real measurements and what `polytile report` shows of it: `python -m benchmarks.kept_store [--seconds 45]`.

A campaign measures the products and loops of a transformer's block on this machine's GPU, or on its CPU where there is none, and
is stopped after so many seconds. Its store goes to OUT/kept_DEVICE.sqlite3, and the report of it to OUT/kept_DEVICE.html.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.command import OUT, Command
from benchmarks.contestants import interrupt
from benchmarks.encoder import FeedForward

ON_GPU = torch.cuda.is_available()
WIDTH, LENGTHS = (1024, range(64, 4096, 96)) if ON_GPU else (128, (9, 48, 200, 777))
END_SECONDS = 20.0


def block() -> tuple[FeedForward, list[tuple[Tensor, ...]]]:
    """What the campaign measures, as its spec names it."""
    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if ON_GPU else ("cpu", torch.float32)
    return FeedForward(WIDTH).to(device, dtype).eval(), [(torch.randn(100, WIDTH, device=device, dtype=dtype),)]


def measured(folder: Path, seconds: float) -> Path:
    """The store of a campaign that had so many seconds."""
    device = "cuda" if ON_GPU else "cpu"
    target, spec = f"{Path(__file__).resolve()}:block", folder / "kept.toml"
    sizes = f"sizes = {{s0 = {list(LENGTHS)}}}\nmost = {len(LENGTHS)}"
    spec.write_text(f'[campaign]\ndevice = "{device}"\n[[model]]\ntarget = "{target}"\n{sizes}\n')
    process = subprocess.Popen([sys.executable, "-m", "polytile", "campaign", "run", str(spec)])
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        interrupt(process, END_SECONDS)
    return folder / "kept" / "store.sqlite3"


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("--seconds", type=float, default=45.0, help="after which the campaign is stopped")
    parser.add_argument("--out", type=Path, default=OUT / "reports")
    given = parser.parsed()
    name = f"kept_{'cuda' if ON_GPU else 'cpu'}"
    with tempfile.TemporaryDirectory() as folder:
        store = measured(Path(folder), given.seconds)
        page = given.out / f"{name}.html"
        subprocess.run([sys.executable, "-m", "polytile", "report", str(store), "-o", str(page)], check=True)
        shutil.copy(store, given.out / f"{name}.sqlite3")
    print(page, f"{page.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
