"""Does tuning add to the peak of memory? `python -m benchmarks.peak_memory [--device cuda]`.

A GPT-2-like model is trained for a few steps in a process of its own, with nothing known, so that every kernel is measured; then
in another, which finds everything measured and measures nothing. Eager stands beside them.

On a GPU the peak is what torch's allocator had in use at most; beside it stands what it had reserved. On the CPU it is the
largest resident set of the process, which holds Python and torch too and varies by some megabytes from run to run (--repeat;
the smallest counts). There measuring is not bound to the peak. --bound has it bound as on a GPU, to see that the rule holds: the
resident set stands in for the allocator's account, nothing is moved to the host, as that is the device here, and trials
apart are left out, whose memory on a GPU is another process's. What has no room is tried in place, or measured by a later step.

Each process says what it found when it ends. --layers makes the model smaller: a layer's kernels are those of the others, so
there is as much to measure, and less to trace.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import alone, own_caches
from polytile.report import Column, Table, show
from polytile.report.tables import count, ratio

STEPS = 5
MODES = {"eager": "eager", "cold": "polytile, everything is measured", "warm": "polytile, everything is known"}


@dataclass(frozen=True)
class Size:
    """The model and its batch. GPT-2's own numbers are 12 layers, 768 wide, 50257 tokens, 1024 positions."""

    layers: int
    width: int
    tokens: int
    batch: int
    length: int


SIZES = {"cpu": Size(2, 128, 8192, 8, 256), "cuda": Size(12, 768, 50257, 8, 1024)}


class Block(nn.Module):
    """Attention to earlier positions and a two-layer GELU network, each normalised before and added after, as in GPT-2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result: [batch, length, width]."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)), 0.1, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), 0.1, self.training)


class Gpt(nn.Module):
    """Tokens in, the mean cross entropy of each token given those before it out."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.tokens, size.width)
        self.positions = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size.width) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        scores = self.norm(x) @ self.tokens.weight.t()
        return F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@dataclass(frozen=True)
class Peak:
    """Bytes at most, bytes reserved (on the CPU the same), the loss after the last step, and how many candidates were measured
    on the way."""

    bytes: int
    reserved: int
    loss: float
    measured: int


def train(given: Mapping[str, Any]) -> dict[str, Any]:
    """The Peak of STEPS steps in this process, of {"mode", "device", "size", "bound"}; with `bound` measuring may not raise the
    process's resident set."""
    import polytile
    from polytile.tuning import headroom

    mode, device, bound, size = given["mode"], given["device"], given["bound"], Size(**given["size"])
    if bound:
        headroom.HEADROOM["cpu"] = lambda _: resident("VmHWM") - resident("VmRSS")
        headroom.HOST_SECONDS = 0.0

    torch.manual_seed(0)
    model = Gpt(size).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = {"isolation": "never"} if bound else {}
    step = model if mode == "eager" else polytile.compile(model, options=options)
    for _ in range(STEPS):
        tokens = torch.randint(0, size.tokens, (size.batch, size.length), device=device)
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            loss = step(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    most, reserved = (
        (resident("VmHWM"), resident("VmHWM"))
        if device == "cpu"
        else (torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device))
    )
    return asdict(Peak(most, reserved, float(loss.detach()), polytile.counters["candidates_benchmarked"]))


def resident(which: str) -> int:
    """Bytes of this process's resident set: "VmRSS" now, "VmHWM" at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(which)).split()[1])


def in_process(mode: str, device: str, size: Size, bound: bool, caches: Mapping[str, str]) -> Peak:
    begun, given = time.perf_counter(), {"mode": mode, "device": device, "size": asdict(size), "bound": bound}
    found = alone("benchmarks.peak_memory:train", given, variables=caches)
    peak, seconds = Peak(**{field.name: found[field.name] for field in fields(Peak)}), time.perf_counter() - begun
    print(f"{MODES[mode]}: {peak.bytes / 1e6:.0f} MB, {peak.measured} measured, {seconds:.0f} s", flush=True)
    return peak


def measure(device: str, size: Size, repeat: int, bound: bool) -> dict[str, Peak]:
    """The smallest peak of each mode. Each cold run has an empty cache, and the warm run after it that cache."""
    found: dict[str, list[Peak]] = {mode: [] for mode in MODES}
    for _ in range(repeat):
        with own_caches() as caches:
            for mode, peaks in found.items():
                peaks.append(in_process(mode, device, size, bound, caches))
    return {mode: min(peaks, key=lambda peak: peak.bytes) for mode, peaks in found.items()}


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--layers", type=int, help="of the model; if not given 2 on a CPU, 12 on a GPU")
    parser.add_argument("--bound", action="store_true", help="on the CPU: measuring may not raise the resident set")
    given = parser.parsed()
    kind = torch.device(given.device).type
    size = replace(SIZES[kind], layers=given.layers or SIZES[kind].layers)
    found = measure(given.device, size, given.repeat, given.bound)
    columns: list[Column | str] = [
        "way", Column("peak MB", count), Column("× known", ratio), Column("reserved MB", count),
        Column("measured", count), Column("loss", ratio),
    ]  # fmt: skip
    rows = [
        (MODES[mode], peak.bytes / 1e6, peak.bytes / found["warm"].bytes, peak.reserved / 1e6, peak.measured, peak.loss)
        for mode, peak in found.items()
    ]
    how = ", measuring bound to the resident set" if given.bound else ""
    show(Table.from_rows(f"Peak of memory, {STEPS} training steps, {size}{how}", columns, rows))
    if given.json:
        results = {"size": asdict(size), "bound": given.bound, **{m: asdict(p) for m, p in found.items()}}
        record.write(f"peak_memory_{kind}", results)


if __name__ == "__main__":
    main()
