"""`python -m benchmarks.gpu.sub_kernels [--functions matmul softmax] [--seconds 300]`: every kernel that a first call would
measure, forced one after the other at the specification's sizes, compared with float64 and timed beside eager.

Writes benchmarks/results/gpu_sub_kernels.json, or $OUT/gpu_sub_kernels.json.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.compilers import copied
from polytile.dispatch.multikernel import MultiKernel
from polytile.report import Column, Table, show


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def matmul(x: Tensor, y: Tensor) -> Tensor:
    return x @ y


def relu_of_matmul(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x @ y)


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b)


def scaled_matmul(x: Tensor, y: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True) * (y @ y)


def scratch(x: Tensor) -> Tensor:
    """Two reductions over a row with a costly intermediate between them, used by both and by the result."""
    weight = torch.exp(torch.sin(x) - x.mean(-1, keepdim=True))
    return weight / (1 + weight.sum(-1, keepdim=True))


def cumsum(x: Tensor) -> Tensor:
    return torch.cumsum(x, -1)


@dataclass(frozen=True)
class Case:
    """A function and the shapes of its arguments."""

    run: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def name(self) -> str:
        return self.run.__name__


CASES = (
    Case(softmax, ((2, 1024),)),
    Case(matmul, ((4096, 4096), (4096, 4096))),
    Case(relu_of_matmul, ((4096, 4096), (4096, 4096))),
    Case(layer_norm, ((4096, 1024), (1024,), (1024,))),
    Case(scaled_matmul, ((4096, 64), (4096, 4096))),
    Case(scratch, ((4096, 1024),)),
    Case(cumsum, ((1024, 16384),)),
)
SLACK = 4.0
"""How many times as far from float64 as eager a kernel may be."""


def sub_kernels(case: Case, args: Sequence[Tensor]) -> dict[str, list[str]]:
    """The names of what a first call measures, by kernel."""
    call = compiled(case, {"tune": "thorough", "persist": False})
    call(*args)
    found: dict[str, list[str]] = {}
    for kernel in kernels():
        for decision in kernel.decisions:
            found[kernel.spec.name] = [s.candidate for s in decision.standings if math.isfinite(s.seconds) and not s.note]
    return found


def kernels() -> list[MultiKernel]:
    return [kernel for program in polytile.compiler.programs.compiled_programs() for kernel in program.multikernels]


def compiled(case: Case, options: dict[str, Any]) -> Callable[..., Tensor]:
    torch._dynamo.reset()
    polytile.reset()
    return torch.compile(copied(case.run, "sub_kernels"), backend="polytile", dynamic=True, options=options)


def forced(case: Case, args: Sequence[Tensor]) -> Iterator[dict[str, Any]]:
    """A row for each sub-kernel: whether it ran, how far it is off beside eager, and µs of the whole call beside eager's."""
    exact = case.run(*[a.double() for a in args])
    eager = case.run(*args)
    own, eager_us = distance(eager, exact), microseconds(case.run, args)
    for kernel, names in sub_kernels(case, args).items():
        for name in names:
            call = compiled(case, {"force": f"{kernel}={name}", "tune": "off", "persist": False})
            off = distance(call(*args), exact)
            ran = [d.candidate for k in kernels() if k.spec.name == kernel for d in k.decisions]
            yield {
                "function": case.name, "shapes": [list(shape) for shape in case.shapes], "kernel": kernel, "candidate": name,
                "ran": ran == [name], "right": off <= SLACK * own + 16 * torch.finfo(eager.dtype).eps, "off": off,
                "eager_off": own, "us": microseconds(call, args), "eager_us": eager_us,
            }  # fmt: skip


def distance(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-30))


def microseconds(call: Callable[..., Tensor], args: Sequence[Tensor], calls: int = 20, rounds: int = 5) -> float:
    """µs of a call by the device's clock, back to back; the least of some rounds."""
    call(*args)
    least = math.inf
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call(*args)
        end.record()
        end.synchronize()
        least = min(least, begin.elapsed_time(end) * 1e3 / calls)
    return least


def table(rows: Sequence[dict[str, Any]]) -> Table:
    headings = ("sub-kernels", "forced and ran", "right", "best µs", "worst µs", "eager µs")
    columns = (Column("function", align="left"), *map(Column, headings))
    found = []
    for name in dict.fromkeys(row["function"] for row in rows):
        own = [row for row in rows if row["function"] == name]
        times = [row["us"] for row in own]
        ran, right = (sum(bool(row[key]) for row in own) for key in ("ran", "right"))
        found.append((name, len(own), ran, right, f"{min(times):.1f}", f"{max(times):.1f}", f"{own[0]['eager_us']:.1f}"))
    return Table("each sub-kernel forced", columns, tuple(found))


def main() -> None:
    parser = Command(__doc__, gpu=True)
    parser.add_argument("--functions", nargs="+", choices=[case.name for case in CASES], default=[case.name for case in CASES])
    parser.add_argument("--seconds", type=float, default=300, help="when no new function is begun")
    given = parser.parsed()
    torch.manual_seed(0)
    torch._dynamo.config.recompile_limit = 10_000
    began, rows = time.monotonic(), list[dict[str, Any]]()
    with torch.no_grad():
        for case in CASES:
            if case.name in given.functions and time.monotonic() - began < given.seconds:
                rows += forced(case, [torch.randn(shape, device="cuda") for shape in case.shapes])
                record.write("gpu_sub_kernels", {"device": torch.cuda.get_device_name(), "rows": rows}, given.out)
    show(table(rows))


if __name__ == "__main__":
    main()
