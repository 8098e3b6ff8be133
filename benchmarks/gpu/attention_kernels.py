"""Generated attention kernels beside every backend of scaled_dot_product_attention, each forced: times, errors against float64.

    python -m benchmarks.gpu.attention_kernels --out DIR [--seconds 200] [--parts decode float32 prefill] [--only split]

Each cell compiles the configs that are valid at its sizes, checks all contestants on one head in float64, and times them in turns
by replayed graphs. Parts are measured in the order given. What has been measured when the time is up is written to
DIR/gpu_attention.json, or, with `--only WORD`, to DIR/gpu_attention_WORD.json, beside the cells of an earlier file that were not.
`--show` prints the prefill or, with `--parts decode`, the decode cells of result files, with the library's and the generated
kernels' times of the same run.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import record
from benchmarks.command import Command
from polytile.attention.problem import AttentionProblem, Causal
from polytile.attention.triton.configs import label, space, valid
from polytile.attention.triton.schedules import generate
from polytile.candidates.triton import TritonCandidate, Work
from polytile.cost import triton_attention as prior
from polytile.matmul.triton.unit import Chip
from polytile.report import Table, show
from polytile.runtime import launcher
from polytile.runtime.cuda import device
from polytile.runtime.cuda.timing import Timer
from polytile.schedule.facts import Facts

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}  # fmt: skip
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Names = Callable[[str], bool]
CUDA = torch.device("cuda", 0)
ROUNDS, TURN = 7, 1.5e-3
"""Turns of each contestant, and seconds of one."""
LARGE = 64e6
"""Bytes from which on a kernel of few rows is held against a copy."""
LARGEST_SCORES = 2 << 30
"""Bytes of scores in memory beyond which the math backend is left out."""


@dataclass(frozen=True)
class Cell:
    part: str
    dtype: str
    B: int
    Hq: int
    Hkv: int
    Mq: int
    Mkv: int
    D: int
    causal: bool

    @property
    def name(self) -> str:
        heads = f"{self.Hq}" if self.Hq == self.Hkv else f"{self.Hq}/{self.Hkv}"
        lengths = f"{self.Mq}" if self.Mq == self.Mkv else f"{self.Mq}×{self.Mkv}"
        return f"{self.dtype} B{self.B} H{heads} S{lengths} D{self.D}{' causal' if self.causal else ''}"

    @property
    def size(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("B", "Hq", "Hkv", "Mq", "Mkv", "D")} | {"Dv": self.D}

    @property
    def problem(self) -> AttentionProblem:
        causal = Causal.TOP_LEFT if self.causal else Causal.NO
        return AttentionProblem(DTYPES[self.dtype], None, causal)

    @property
    def flops(self) -> float:
        return 4.0 * self.B * self.Hq * self.Mq * self.Mkv * self.D * (0.5 if self.causal and self.Mq == self.Mkv else 1.0)

    @property
    def bytes(self) -> float:
        rows = 2 * self.Hq * self.Mq + 2 * self.Hkv * self.Mkv
        return float(self.B * rows * self.D * DTYPES[self.dtype].itemsize)


def prefill() -> Iterator[Cell]:
    """Of targets A1 and A2, large and telling ones first."""
    yield Cell("prefill", "bf16", 4, 8, 8, 1000, 1000, 512, True)
    lengths = [(4096, 4), (1024, 8), (8192, 2), (512, 16), (2048, 4), (300, 8), (128, 16), (1500, 4), (16384, 1), (1000, 4)]
    for (length, batch), head in itertools.product(lengths, (128, 64, 256)):
        for causal in (True, False):
            heads = 2048 // head
            yield Cell("prefill", "bf16", batch, heads, heads, length, length, head, causal)
    for group, length in itertools.product((4, 8), (4096, 300, 64)):
        yield Cell("prefill", "bf16", 2, 32, 32 // group, length, length, 128, True)


def decode() -> Iterator[Cell]:
    """Of target A3."""
    for batch, keys in ((1, 65536), (1, 4096), (8, 8192), (32, 2048), (128, 512), (4, 32768), (16, 1000), (1, 512)):
        for (heads, shared), head in (((8, 1), 256), ((32, 8), 128), ((16, 16), 128), ((32, 4), 64)):
            yield Cell("decode", "bf16", batch, heads, shared, 1, keys, head, False)
    for queries in (2, 4, 8):
        for batch in (8, 1):
            yield Cell("decode", "bf16", batch, 32, 8, queries, 8192, 128, False)
    yield Cell("decode", "bf16", 1, 32, 8, 64, 8192, 128, False)
    yield Cell("decode", "bf16", 8, 8, 1, 1, 8192, 512, False)


def float32() -> Iterator[Cell]:
    for head in (64, 128):
        yield Cell("float32", "fp32", 1, 16, 4, 1, 4096, head, False)
    for head, length, causal in ((64, 1024, True), (128, 2048, False), (64, 300, False), (256, 1024, False)):
        yield Cell("float32", "fp32", 4, 16, 16, length, length, head, causal)


PARTS = {"decode": decode, "float32": float32, "prefill": prefill}


def facts_of(problem: AttentionProblem, size: Mapping[str, int]) -> Facts:
    """What a regime knows of these sizes."""
    exact = tuple((name, size[name]) for name in ("Hq", "Hkv", "D", "Dv"))
    divisible = frozenset(name for name, value in problem.dense_strides(size).items() if value % 16 == 0)
    return Facts(divisible, frozenset(tensor.name for tensor in problem.tensors), exact=exact)


def candidates(cell: Cell, facts: device.DeviceFacts, names: Names = lambda name: True) -> list[Any]:
    """The generated kernels that are valid here, of these names, in the form of the cell's regime; none is compiled yet."""
    problem, size = cell.problem, cell.size
    chip = Chip(facts.sms, facts.capability >= 90)
    work = Work(problem, "attention", facts, 0, lambda config, known: generate(problem, config, known, chip))
    known = facts_of(problem, size)
    configs = [config for config in space(problem, facts) if valid(problem, config, size)]
    configs = [config for config in configs if names(label(config))]
    return [TritonCandidate(label(c), c, work, lambda _: True, lambda _: 1.0).specialise(known) for c in configs]


class Bench:
    """One cell: its tensors, its contestants as functions that do a number of calls, and their results."""

    def __init__(self, cell: Cell) -> None:
        self.cell, dtype = cell, DTYPES[cell.dtype]
        torch.manual_seed(0)
        shapes = ((cell.Hq, cell.Mq), (cell.Hkv, cell.Mkv), (cell.Hkv, cell.Mkv))
        self.q, self.k, self.v = (torch.randn(cell.B, h, m, cell.D, device=CUDA, dtype=dtype) for h, m in shapes)
        self.out = torch.empty_like(self.q)

    def calls_of(self, entry: Any) -> Callable[[int], Any]:
        size, problem = self.cell.size, self.cell.problem
        values = {**size, **problem.dense_strides(size)}
        args = (self.q, self.k, self.v, self.out, *[values[name] for name in problem.size_names])
        return lambda count: launcher.time_burst(entry, args, count)

    def library(self, backend: str | None) -> Callable[[int], Any] | None:
        """Calls of one backend, of the default order for None; None where it refuses or its scores would not fit."""
        cell = self.cell
        if backend == "math" and 2 * cell.B * cell.Hq * cell.Mq * cell.Mkv * 4 > LARGEST_SCORES:
            return None

        def call(count: int) -> torch.Tensor:
            chosen = list(BACKENDS.values()) if backend is None else [BACKENDS[backend]]
            for _ in range(count):
                if backend is None:
                    result = self.sdpa()
                else:
                    with sdpa_kernel(chosen):
                        result = self.sdpa()
            return result

        try:
            call(2)
        except RuntimeError:
            return None
        return call

    def sdpa(self) -> torch.Tensor:
        grouped = self.cell.Hq != self.cell.Hkv
        return F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.cell.causal, enable_gqa=grouped)

    def error(self, result: torch.Tensor) -> dict[str, float]:
        """Largest and root mean square error of the last head, against float64."""
        cell, head = self.cell, self.cell.Hq - 1
        if not hasattr(self, "_right"):
            q, (k, v) = self.q[-1, head].double(), (t[-1, head // (cell.Hq // cell.Hkv)].double() for t in (self.k, self.v))
            rows = []
            for begin in range(0, cell.Mq, 2048):
                scores = q[begin : begin + 2048] @ k.T / math.sqrt(cell.D)
                if cell.causal:
                    scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(begin + 1), -math.inf)
                rows.append(torch.softmax(scores, -1) @ v)
            self._right = torch.cat(rows)
        off = (result[-1, head].double() - self._right).abs()
        return {"max": float(off.max()), "rms": float(off.square().mean().sqrt())}


def measure(
    cell: Cell, facts: device.DeviceFacts, seconds: float, names: Names, backends: Sequence[str] = tuple(BACKENDS)
) -> dict[str, Any]:
    """Times and errors of all contestants of a cell."""
    bench, contestants = Bench(cell), {}
    errors, failed, resources, predicted = {}, {}, {}, {}
    for backend in (None, *backends):
        if (call := bench.library(backend)) is not None:
            contestants[f"sdpa {backend or 'default'}"] = call
            errors[f"sdpa {backend or 'default'}"] = bench.error(call(1))
    for candidate in candidates(cell, facts, names):
        try:
            calls = bench.calls_of(candidate.entry())
            bench.out.fill_(math.nan)
            calls(1)
            torch.cuda.synchronize()
        except Exception as error:
            failed[candidate.name] = str(error).splitlines()[0][:300]
            continue
        contestants[candidate.name] = calls
        errors[candidate.name] = bench.error(bench.out)
        resources[candidate.name] = asdict(candidate.resources)
        predicted[candidate.name] = prior.cost(cell.problem, candidate.config, cell.size, facts) * 1e6
    times = in_turns(contestants, seconds)
    return {"us": times, "errors": errors, "failed": failed, "resources": resources, "predicted_us": predicted}


def in_turns(contestants: dict[str, Callable[[int], Any]], seconds: float) -> dict[str, float]:
    """Median µs of a call of each, by replayed graphs, in turns."""
    timers = {name: Timer(CUDA) for name in contestants}
    counts: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in contestants}
    for name, calls in contestants.items():
        once = min(timers[name].seconds(calls, 1) for _ in range(2))
        counts[name] = max(1, min(200, int(TURN / once)))
    began = time.monotonic()
    for turn in range(ROUNDS):
        if turn >= 3 and time.monotonic() - began > seconds:
            break
        for name, calls in contestants.items():
            samples[name].append(timers[name].seconds(calls, counts[name]) / counts[name])
    for timer in timers.values():
        timer.release()
    return {name: round(statistics.median(each) * 1e6, 3) for name, each in samples.items()}


def report(cell: Cell, row: dict[str, Any]) -> str:
    """A line: the best of ours, the library's best, how wrong ours is beside flash, and what the prior's choice takes."""
    us, errors = row["us"], row["errors"]
    ours, theirs = ours_of(us), library_of(us)
    if not ours or not theirs:
        return f"{cell.name:40} nothing to compare: {row['failed']}"
    best, library = min(ours, key=us.__getitem__), min(theirs, key=us.__getitem__)
    flops, moved = cell.flops / us[best] * 1e-6, cell.bytes / us[best] * 1e-3
    rate = f"{flops:4.0f} TF" if cell.part != "decode" else f"{moved:4.0f} GB/s"
    wrong = max(errors[name]["rms"] for name in ours) / max(errors.get("sdpa flash", errors[library])["rms"], 1e-30)
    failed = f" {len(row['failed'])} FAILED" if row["failed"] else ""
    return (
        f"{cell.name:40} {us[best]:8.1f} us {rate} {us[library] / us[best]:.3f} of {library[5:]} err {wrong:.2f} "
        f"prior {regret(row):.2f} {best}{failed}"
    )


def ours_of(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("sdpa")]


def library_of(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith("sdpa ") and name != "sdpa default"]


def regret(row: dict[str, Any]) -> float:
    """The time of the prior's first choice over that of the best."""
    us, ours = row["us"], ours_of(row["us"])
    return us[min(ours, key=row["predicted_us"].__getitem__)] / min(us[name] for name in ours)


def main() -> None:
    parser = Command(__doc__, out=True)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--only", default="", help="a word that names of generated kernels must hold")
    parser.add_argument("--without", default="", help="a word that they must not hold")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=list(BACKENDS))
    parser.add_argument("--heads", type=int, nargs="+", help="only cells with heads of these sizes")
    parser.add_argument("--lengths", type=int, nargs="+", help="only cells with these numbers of query rows")
    parser.add_argument("--causal", action="store_true", help="only cells with a causal mask")
    parser.add_argument("--ahead", type=int, default=6, help="cells whose kernels compile ahead")
    parser.add_argument("--beside", type=Path, help="an earlier result file, whose other cells are kept")
    parser.add_argument("--show", type=Path, nargs="+", help="only print the table of result files; needs no GPU")
    options = parser.parsed()
    if options.show is not None:
        runs = [record.read(path) for path in options.show]
        (decode_table if options.parts == ["decode"] else table)(runs)
        return
    warnings.filterwarnings("ignore")  # each backend says why it refuses

    def names(name: str) -> bool:
        return options.only in name and not (options.without and options.without in name)

    end, facts = time.monotonic() + options.seconds, device.facts(0)
    cells = [cell for part in options.parts for cell in PARTS[part]() if wanted(cell, options)]
    before = record.read(options.beside)["rows"] if options.beside else []
    rows: list[dict[str, Any]] = []
    ahead: dict[Cell, list[Any]] = {}
    result: dict[str, Any] = {"device": facts.name, "torch": torch.__version__, "mm_tflops": mm_rate(), "copy_gbps": copy_rate()}
    print(f"{facts.name}, torch {torch.__version__}, mm {result['mm_tflops']:.0f} TFLOP/s, {len(cells)} cells", flush=True)
    for place, cell in enumerate(cells):
        if time.monotonic() > end:
            print(f"time is up after {place} cells", flush=True)
            break
        for other in cells[place : place + options.ahead]:
            if other not in ahead:
                ahead[other] = candidates(other, facts, names)
                for candidate in ahead[other]:
                    candidate.prepare()
        try:
            row = measure(cell, facts, 1.0, names, options.backends)
        except torch.OutOfMemoryError as error:
            row = {"us": {}, "errors": {}, "failed": {"all": str(error)[:200]}, "predicted_us": {}}
        torch.cuda.empty_cache()
        rows.append({"cell": asdict(cell), **row})
        print(report(cell, row), flush=True)
        measured = [row["cell"] for row in rows]
        result["rows"] = [row for row in before if row["cell"] not in measured] + rows
        record.write("_".join(filter(None, ("gpu_attention", options.only))), result, options.out)
    summary(rows)


def wanted(cell: Cell, options: argparse.Namespace) -> bool:
    """Whether the command line asks for a cell."""
    asked = (not options.heads or cell.D in options.heads) and (not options.lengths or cell.Mq in options.lengths)
    return asked and (cell.causal or not options.causal)


def compared(runs: Iterable[dict[str, Any]], part: str) -> Iterator[tuple[Cell, dict[str, Any], list[str], list[str]]]:
    """The cells of a part in which kernels of both kinds were timed: the row, names of ours, names of the library's."""
    for row in itertools.chain(*(run["rows"] for run in runs)):
        cell, ours, theirs = Cell(**row["cell"]), ours_of(row["us"]), library_of(row["us"])
        if cell.part == part and ours and theirs:
            yield cell, row, ours, theirs


def decode_table(runs: Sequence[dict[str, Any]]) -> None:
    """Target A3: a line for each cell of few rows, with the share of a device copy's bandwidth; how far the prior is off."""
    rows, gains, over_default, shares, regrets = [], [], [], [], []
    copy = runs[-1]["copy_gbps"]
    for cell, row, ours, theirs in compared(runs, "decode"):
        us = row["us"]
        own, library = min(ours, key=us.__getitem__), min(theirs, key=us.__getitem__)
        gains.append(us[library] / us[own])
        over_default.append(us["sdpa default"] / us[own])
        regrets.append(regret(row))
        rate = cell.bytes / us[own] * 1e-3
        shares += [rate / copy] if cell.bytes >= LARGE else []
        names = f"{library[5:]} {us[library]:.1f}", f"{us['sdpa default']:.1f}", f"{own} {us[own]:.1f}"
        rows.append((cell.name, *names, f"{gains[-1]:.2f}", f"{rate:.0f}", f"{regrets[-1]:.2f}"))
    columns = ["cell", "the library's, µs", "its default, µs", "generated, µs", "library / generated", "GB/s", "prior / best"]
    show(Table.from_rows(f"attention of few rows on an {runs[-1]['device']}; a copy on it: {copy:.0f} GB/s", columns, rows))
    for name, each in (("library / generated", gains), ("default / generated", over_default), ("prior / best", regrets)):
        print(f"{name}: geomean {statistics.geometric_mean(each):.2f}, from {min(each):.2f} to {max(each):.2f}")
    if shares:
        print(f"share of a copy's bandwidth from 64 MB on: {min(shares):.2f} to {max(shares):.2f}, {len(shares)} cells")


def table(runs: Sequence[dict[str, Any]]) -> None:
    """A line for each cell that some run has, with the generated kernel that is fastest beside the library of its own run."""
    best: dict[str, tuple[float, str, str, float, float]] = {}
    for cell, row, ours, theirs in compared(runs, "prefill"):
        us = row["us"]
        own, library = min(ours, key=us.__getitem__), min(theirs, key=us.__getitem__)
        if us[library] / us[own] > best.get(cell.name, (0.0,))[0]:
            error = row["errors"][own]["rms"] / row["errors"].get("sdpa flash", row["errors"][library])["rms"]
            names = f"{own} {us[own]:.1f}", f"{library[5:]} {us[library]:.1f}"
            best[cell.name] = us[library] / us[own], *names, cell.flops / us[own] * 1e-6, error
    rows = [
        (name, library, own, f"{ratio:.2f}", f"{flops:.0f}", f"{error:.2f}")
        for name, (ratio, own, library, flops, error) in best.items()
    ]
    columns = ["cell", "the library's, µs", "generated, µs", "library / generated", "TFLOP/s", "error / FlashAttention's"]
    show(Table.from_rows("attention's forward kernels on an H200", columns, rows))
    for head in (64, 128, 256):
        ratios = [each[0] for name, each in best.items() if f" D{head}" in name]
        mean = statistics.geometric_mean(ratios)
        print(f"D{head}: {len(ratios)} cells, library / generated {mean:.2f}, least {min(ratios):.2f}")


def mm_rate() -> float:
    """TFLOP/s of torch.mm at 8192³ in bfloat16."""
    a = torch.randn(8192, 8192, device=CUDA, dtype=torch.bfloat16)
    a @ a  # cuBLAS makes its handle, which cannot be recorded
    timer = Timer(CUDA)
    seconds = statistics.median(timer.seconds(lambda count: [a @ a for _ in range(count)], 5) / 5 for _ in range(5))
    timer.release()
    return 2 * 8192**3 / seconds * 1e-12


def copy_rate() -> float:
    """GB/s that a copy of 1 GiB on the device reads and writes."""
    a, b = (torch.empty(1 << 29, device=CUDA, dtype=torch.bfloat16) for _ in range(2))
    timer = Timer(CUDA)
    seconds = statistics.median(timer.seconds(lambda count: [b.copy_(a) for _ in range(count)], 5) / 5 for _ in range(5))
    timer.release()
    return 2 * a.nbytes / seconds * 1e-9


def summary(rows: list[dict[str, Any]]) -> None:
    """Geometric means of each part: the best library and the default over the best of ours, the worst cell."""
    for part in PARTS:
        found = compared([{"rows": rows}], part)
        cells = [(row, *(min(row["us"][name] for name in names) for names in both)) for _, row, *both in found]
        if not cells:
            continue
        ratios = {
            "library / ours": [their / our for _, our, their in cells],
            "default / ours": [row["us"]["sdpa default"] / our for row, our, _ in cells],
            "better of both / ours": [min(their, our) / our for _, our, their in cells],
            "1 / prior": [1 / regret(row) for row, *_ in cells],
        }
        means = [f"{name} {statistics.geometric_mean(each):.3f} (least {min(each):.3f})" for name, each in ratios.items()]
        print(f"{part}: {len(cells)} cells, {', '.join(means)}")


if __name__ == "__main__":
    main()
