"""Convolutions by layout: `python -m benchmarks.convolutions`, with `--device cuda` on a GPU.

The measurement behind `polytile/frontend/channels_last.py`: ATen's convolution of images that lie plane by plane, of the same
images with their channels last, and (on a CPU) by a weight that is kept in oneDNN's layout besides; and its backward pass in
both layouts. What it costs to bring images from one layout into the other is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.command import Command
from benchmarks.timing import Comparison, compare, disturbance, geomean
from polytile.report import Column, Table, show
from polytile.report.tables import micros, ratio
from polytile.runtime.convolution import PackedConvolution, can_pack

PLANES, LAST, KEPT, BACK, BACK_LAST = "planes", "channels last", "kept weight", "backward, planes", "backward, channels last"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
REPEATS = 16  # calls behind one another before a GPU is waited for
LIMIT = 1 << 30  # bytes for kept weights


@dataclass(frozen=True)
class Case:
    """Images [images, channels, rows, columns] by `filters` of `window`² points; `groups` of channels."""

    images: int
    channels: int
    rows: int
    columns: int
    filters: int
    window: int
    stride: int = 1
    groups: int = 1

    def __str__(self) -> str:
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        step = f", every {self.stride}" if self.stride > 1 else ""
        size = f"{self.images}×{self.channels}×{self.rows}×{self.columns}"
        return f"{size} → {self.filters}, {self.window}×{self.window}{step}{groups}"

    def given(self) -> tuple[list[int], list[int], list[int], bool, list[int], int]:
        """What aten.convolution takes behind the bias."""
        around = self.window // 2
        return [self.stride] * 2, [around] * 2, [1, 1], False, [0, 0], self.groups


CASES = (
    Case(4, 3, 34, 44, 8, 7, 2), Case(4, 8, 9, 11, 8, 3), Case(4, 8, 9, 11, 16, 3, 2), Case(4, 8, 9, 11, 16, 1, 2),
    Case(4, 64, 2, 2, 64, 3), Case(4, 8, 25, 45, 8, 3), Case(4, 8, 56, 56, 2, 1), Case(4, 64, 25, 45, 64, 3),
    Case(4, 64, 56, 56, 64, 3), Case(4, 64, 56, 56, 256, 1), Case(1, 256, 14, 14, 256, 3), Case(2, 128, 28, 28, 128, 3, 1, 128),
    Case(1, 3, 224, 224, 64, 7, 2), Case(8, 512, 7, 7, 512, 3), Case(8, 512, 7, 7, 2048, 1),
)  # fmt: skip


def run(case: Case, dtype: torch.dtype, device: str, seconds: float) -> Comparison:
    """Times one convolution in every layout; raises AssertionError where results differ."""
    torch.manual_seed(0)
    images = torch.randn(case.images, case.channels, case.rows, case.columns, dtype=dtype, device=device)
    weight = torch.randn(case.filters, case.channels // case.groups, case.window, case.window, dtype=dtype, device=device)
    last, given = images.contiguous(memory_format=torch.channels_last), case.given()
    result = torch.convolution(images, weight, None, *given)
    gradient = torch.randn_like(result, memory_format=torch.contiguous_format)
    gradient_last = gradient.contiguous(memory_format=torch.channels_last)

    def backward(gradient: Tensor, images: Tensor) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(gradient, images, weight, None, *given, [True, True, False])

    calls: dict[str, Callable[[], object]] = {
        PLANES: lambda: torch.convolution(images, weight, None, *given),
        LAST: lambda: torch.convolution(last, weight, None, *given),
        BACK: backward(gradient, images),
    }
    if case.window > 1 or case.stride == 1:  # else oneDNN writes past its memory (channels_last.py)
        calls[BACK_LAST] = backward(gradient_last, last)
    if device == "cpu" and can_pack(dtype):
        by_kept = PackedConvolution(tuple(weight.shape), weight.stride(), dtype, given, LIMIT)
        calls[KEPT] = lambda: by_kept(last, weight, None, *given)
    for name in (LAST, *([KEPT] if KEPT in calls else [])):
        got = calls[name]()
        assert isinstance(got, Tensor)
        off = float((got.double() - result.double()).abs().max() / result.double().abs().max())
        assert off <= 32 * _rounding(dtype, device), f"{case}, {name}: {off:.1e} off the result of {PLANES}."
    if device == "cpu":
        return compare(calls, seconds=seconds)
    return compare({name: _waited_for(call) for name, call in calls.items()}, seconds=seconds)


def _rounding(dtype: torch.dtype, device: str) -> float:
    """Relative, of one product; cuDNN rounds float32 to TF32 unless it is told not to."""
    by_tf32 = device == "cuda" and dtype == torch.float32 and torch.backends.cudnn.allow_tf32
    return 2.0**-10 if by_tf32 else torch.finfo(dtype).eps


def _waited_for(call: Callable[[], object]) -> Callable[[], object]:
    def burst() -> None:
        for _ in range(REPEATS):
            call()
        torch.cuda.synchronize()

    return burst


def table(dtype: str, device: str, cells: Sequence[tuple[Case, Comparison]]) -> Table:
    """The times of planes over those of the others, forward and backward."""
    names = [name for name in (LAST, KEPT) if name in cells[0][1].timings]
    calls = 1 if device == "cpu" else REPEATS
    columns: list[Column | str] = ["convolution", Column(f"µs, {PLANES}", micros), *(Column(name, ratio) for name in names)]
    columns += [Column(f"µs, {BACK}", micros), Column(BACK_LAST, ratio)]

    def row(case: Case, times: Comparison) -> tuple[object, ...]:
        gains = [times.ratio(name, PLANES) for name in names]
        back = times.ratio(BACK_LAST, BACK) if BACK_LAST in times.timings else None
        return str(case), times[PLANES].low / calls, *gains, times[BACK].low / calls, back

    body = [row(*cell) for cell in cells]
    means = [geomean(times.ratio(name, PLANES) for _, times in cells) for name in names]
    backward = [times.ratio(BACK_LAST, BACK) for _, times in cells if BACK_LAST in times.timings]
    body.append(("all", None, *means, None, geomean(backward)))
    notes = [disturbance(times for _, times in cells)] if device == "cpu" else []
    return Table.from_rows(f"Convolutions, {dtype}, {device}: time of {PLANES} over others", columns, body, notes)


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtypes", nargs="*", choices=DTYPES, default=["float32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=0.3, help="how long to measure each convolution")
    given = parser.parsed()
    for dtype in given.dtypes:
        cells = [(case, run(case, DTYPES[dtype], given.device, given.seconds)) for case in CASES]
        show(table(dtype, given.device, cells))
        if given.json:
            found = {f"{given.device} {dtype} {case}": times.as_json() for case, times in cells}
            record.add("convolutions", "cells", found)


if __name__ == "__main__":
    main()
