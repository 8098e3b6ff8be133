"""Attention of packed and paged sequences: generated kernels beside the library's, each called by itself: times, errors against
float64.

    python -m benchmarks.gpu.attention_layouts [--out DIR] [--seconds 240]
    python -m benchmarks.gpu.attention_layouts --show          only prints the tables of the committed file

Each cell runs every candidate that says it is valid there, compares what it writes with the definition in float64, and times
all in turns. `whole` is varlen_attn through the backend, forward and backward, beside
eager. Results go to DIR/gpu_attention_layouts.json after each cell.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.attention_backward import repeated
from benchmarks.gpu.attention_kernels import CUDA, in_turns
from benchmarks.timing import compare
from polytile.attention.arguments import make_args, operands, reference
from polytile.attention.layout import Layout
from polytile.attention.problem import AttentionProblem, Causal
from polytile.candidates.attention import candidates
from polytile.report import Table, show
from polytile.runtime.cuda import device
from polytile.schedule.facts import Facts

I32, BF16 = torch.int32, torch.bfloat16
PACKED, PAGED = Layout(q_starts=I32, k_starts=I32), Layout(q_starts=I32, table=I32, k_used=I32)
SOURCES = ("library", "triton")


@dataclass(frozen=True)
class Cell:
    name: str
    problem: AttentionProblem
    size: dict[str, int]


def cells() -> Iterator[Cell]:
    """Packed sequences forward and backward, then decode from pages of a cache."""
    packed = AttentionProblem(BF16, None, Causal.BOTTOM_RIGHT, layout=PACKED)
    for (count, most, total), head in itertools.product(((8, 2048, 8192), (32, 1024, 8192), (4, 300, 900)), (128, 64)):
        size = {"B": count, "Hq": 2048 // head, "Hkv": 2048 // head, "Mq": most, "Mkv": most, "D": head, "Dv": head}
        size |= {"Tq": total, "Tk": total, "Ends": count + 1}
        name = f"{count} sequences up to {most} of {total}, D{head}"
        yield Cell(name, packed, size)
        yield Cell(f"{name}, backward", replace(packed, backward=True), size)
    yield Cell("8 sequences, window 256", replace(packed, causal=Causal.NO, window=(256, 0)), {
        "B": 8, "Hq": 16, "Hkv": 4, "Mq": 2048, "Mkv": 2048, "D": 128, "Dv": 128, "Tq": 8192, "Tk": 8192, "Ends": 9,
    })  # fmt: skip
    paged = AttentionProblem(BF16, None, Causal.BOTTOM_RIGHT, layout=PAGED)
    for (count, keys), page, rows in itertools.product(((8, 8192), (64, 2048), (1, 32768)), (16, 128), (1, 4)):
        slots = -(-keys // page)
        size = {"B": count, "Hq": 32, "Hkv": 8, "Mq": rows, "Mkv": keys, "D": 128, "Dv": 128, "Tq": rows * count}
        size |= {"Ends": count + 1, "Page": page, "Slots": slots, "Pages": count * slots}
        yield Cell(f"{count} × {rows} rows, {keys} keys in pages of {page}", paged, size)


def measured(cell: Cell, seconds: float) -> dict[str, Any]:
    """Times in µs, errors (relative to the norm) and failures of every candidate that is valid."""
    problem = cell.problem
    args = make_args(problem, cell.size, CUDA)
    whole = dict(zip(problem.size_names, args[len(problem.tensors) :], strict=True))
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    reference(problem)(*wide)
    known = [name for name in ("Hq", "Hkv", "D", "Dv", "Page") if name in whole]
    facts = Facts(
        frozenset(n for n, value in whole.items() if value % 16 == 0 and n not in ("B", "Mq", "Mkv")),
        frozenset(tensor.name for tensor in problem.tensors), exact=tuple((name, whole[name]) for name in known),
    )  # fmt: skip
    row: dict[str, Any] = {"cell": cell.name, "errors": {}, "failed": {}, "predicted_us": {}}
    runs = {}
    for candidate in candidates(problem, CUDA, SOURCES, None):
        if not candidate.valid(whole) or candidate.name == "math":
            continue
        try:
            call = repeated(candidate.specialise(facts).entry(), args)
            call(1)
            torch.cuda.synchronize()
        except Exception as error:
            row["failed"][candidate.name] = str(error).splitlines()[0][:300]
            continue
        got, right = operands(problem, args), operands(problem, wide)
        written = ("dq", "dk", "dv") if problem.backward else ("out",)
        errors = [
            float((getattr(got, n).double() - getattr(right, n)).norm() / getattr(right, n).norm()) for n in written
        ]
        row["errors"][candidate.name] = max(errors)
        row["predicted_us"][candidate.name] = candidate.cost(whole) * 1e6
        runs[candidate.name] = call
    return {**row, "us": in_turns(runs, seconds)}


def line(row: dict[str, Any]) -> str:
    """The best of ours beside the library's, their errors, what failed."""
    us = row["us"]
    library, ours = us.get("flash"), {name: value for name, value in us.items() if name != "flash"}
    if not ours:
        return f"{row['cell']:48} nothing runs: {row['failed']}"
    best = min(ours, key=ours.__getitem__)
    beside = f"{library / ours[best]:.3f} of flash" if library else "no library's kernel"
    chosen = min(row["predicted_us"], key=row["predicted_us"].__getitem__)
    wrong = " and ".join(f"{row['errors'][name]:.1e}" for name in (best, *(["flash"] if library else [])))
    return f"{row['cell']:48} {ours[best]:9.1f} us {best}, {beside}, errors {wrong}, prior {chosen}, {len(row['failed'])} failed"


def program() -> dict[str, Any]:
    """varlen_attn through the backend beside eager: µs of a call of new lengths each, and the graphs that were compiled."""
    from torch.nn.attention.varlen import varlen_attn

    import polytile

    def attend(q: Any, k: Any, v: Any, starts: Any, most: int) -> Any:
        return varlen_attn(q, k, v, starts, starts, most, most, **causal)

    older = (
        "is_causal"
        in varlen_attn.__code__.co_varnames[: varlen_attn.__code__.co_argcount + varlen_attn.__code__.co_kwonlyargcount]
    )
    causal: dict[str, Any] = {"is_causal": True} if older else {"window_size": (-1, 0)}
    compiled = torch.compile(attend, backend="polytile", dynamic=True)
    found: dict[str, Any] = {"us": {}, "difference": 0.0}
    for total, count in ((8192, 8), (3000, 5), (777, 3)):
        starts = torch.linspace(0, total, count + 1, device="cuda").to(I32)
        most = int(starts.diff().max())
        q, k, v = (torch.randn(total, 16, 128, device="cuda", dtype=BF16, requires_grad=True) for _ in range(3))
        grad = torch.randn_like(q)

        def both(call: Any, given: tuple[Any, ...] = (q, k, v, starts, most), grad: Any = grad) -> list[torch.Tensor]:
            out = call(*given)
            return [out, *torch.autograd.grad(out, given[:3], grad)]

        mine = both(compiled)
        polytile.wait()
        mine = both(compiled)
        difference = max(float((a - b).abs().max()) for a, b in zip(mine, both(attend), strict=True))
        found["difference"] = max(found["difference"], difference)
        times = compare({"polytile": lambda: both(compiled), "eager": lambda: both(attend)}).timings
        found["us"][f"{count} of {total}"] = {name: timing.median * 1e6 for name, timing in times.items()}
    return {**found, "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}


def report(result: dict[str, Any]) -> None:
    """Prints the tables."""
    whole = result["whole"]["us"].items()
    body = [(name, f"{us['eager']:.0f}", f"{us['polytile']:.0f}", f"{us['eager'] / us['polytile']:.2f}") for name, us in whole]
    show(Table.from_rows("varlen_attn, forward and backward: wall µs", ("tokens", "eager", "polytile", "eager / polytile"), body))
    rows = []
    for row in result["rows"]:
        library, ours = row["us"].get("flash"), {name: us for name, us in row["us"].items() if name != "flash"}
        best = min(ours, key=ours.__getitem__)
        ratio = [f"{library:.1f}", f"{library / ours[best]:.2f}"] if library else ["–", "–"]
        rows.append((row["cell"], best, f"{ours[best]:.1f}", *ratio, f"{row['errors'][best]:.1e}"))
    columns = ("sequences", "fastest generated kernel", "µs", "FlashAttention's µs", "over ours", "error")
    show(Table.from_rows("kernels of packed and paged sequences, errors against float64", columns, rows))


def main() -> None:
    parser = Command(__doc__, "gpu_attention_layouts", report, gpu=True)
    parser.add_argument("--seconds", type=float, default=240.0)
    options = parser.parsed()
    end = time.monotonic() + options.seconds
    result: dict[str, Any] = {"device": device.facts(0).name, "whole": program(), "rows": []}
    for cell in cells():
        if time.monotonic() > end:
            print("time is up", flush=True)
            break
        result["rows"].append(measured(cell, 0.6))
        print(line(result["rows"][-1]), flush=True)
        torch.cuda.empty_cache()
        record.write("gpu_attention_layouts", result, options.out)
    report(result)


if __name__ == "__main__":
    main()
