"""Layers of convolutions on a GPU, compiled and in eager: `python -m benchmarks.gpu.convolutions [--seconds 60]`.

Single layers of ResNet50, MobileNetV3, ConvNeXt, generators and 3-D networks, and whole networks, in inference, at several batch
sizes, by one dynamic compile. Beside eager stand eager with `torch.backends.cudnn.benchmark`, by which cuDNN times its kernels at
each new size, and both on images with their channels last. PyTorch keeps one plan for a size and the flag `deterministic`,
whether it was timed or not, so what is timed is deterministic here. Times are those of the device's work: calls in a CUDA graph,
in turns. What has been measured when the time is up is written to OUT/gpu_convolutions.json, with the other rows of a result file
that `--beside` names. `--backward` times eager's derivative of the layers, and writes OUT/gpu_convolutions_backward.json.
`--show` prints a result file.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.convolution_nets import convnext, mobilenet, randomised, resnet
from benchmarks.gpu.replay import kernel_times
from polytile.dispatch.convolution import define_convolution
from polytile.report import Column, Table, show
from polytile.report.tables import ratio
from polytile.runtime.chosen_convolution import ChosenGradients, ConvolutionProblem, GradientProblem

SUITE = "gpu_convolutions"
EAGER, TIMED, LAST, BOTH = "eager", "eager, benchmark", "eager, channels last", "eager, channels last, benchmark"
POLYTILE = "polytile"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
"""By name; "fp32" is float32 that cuDNN may not round to TF32."""
BATCHES = (1, 16, 64)
CUDA = torch.device("cuda", 0)
ROUNDS = 7
"""Turns of each contestant."""
CALLS, WARM_SECONDS = 20, 1.5
"""Calls in which a layer may go on choosing its kernels, and for how many seconds."""
OTHERS = (EAGER, TIMED, LAST, BOTH)
MEASURING_SECONDS = 12.0
"""Seconds in which a network's kernels are measured at each batch size; then the best on record serves."""


def _conv(*given: Any, **named: Any) -> Callable[[], nn.Module]:
    return partial(nn.Conv2d, *given, **{"bias": False, **named})


def _block(*given: Any, **named: Any) -> Callable[[], nn.Module]:
    """A convolution as networks have it, with what follows."""
    return lambda: nn.Sequential(_conv(*given, **named)(), nn.BatchNorm2d(given[1]), nn.SiLU())


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet 7×7, every 2": (_conv(3, 64, 7, 2, 3), (3, 224, 224)),
    "ResNet 64, 3×3": (_conv(64, 64, 3, 1, 1), (64, 56, 56)),
    "ResNet 64 → 256, 1×1": (_conv(64, 256, 1), (64, 56, 56)),
    "ResNet 256 → 64, 1×1, norm, SiLU": (_block(256, 64, 1), (256, 56, 56)),
    "ResNet 256 → 512, 1×1, every 2": (_conv(256, 512, 1, 2), (256, 56, 56)),
    "ResNet 256, 3×3, norm, SiLU": (_block(256, 256, 3, 1, 1), (256, 14, 14)),
    "ResNet 512 → 2048, 1×1": (_conv(512, 2048, 1), (512, 7, 7)),
    "MobileNet 16 → 64, 1×1, norm, SiLU": (_block(16, 64, 1), (16, 112, 112)),
    "MobileNet 64, each 3×3, every 2": (_conv(64, 64, 3, 2, 1, groups=64), (64, 112, 112)),
    "MobileNet 240, each 3×3, norm, SiLU": (_block(240, 240, 3, 1, 1, groups=240), (240, 28, 28)),
    "MobileNet 960, each 5×5": (_conv(960, 960, 5, 1, 2, groups=960), (960, 7, 7)),
    "MobileNet 960 → 160, 1×1": (_conv(960, 160, 1), (960, 7, 7)),
    "ConvNeXt 4×4, every 4": (_conv(3, 96, 4, 4, bias=True), (3, 224, 224)),
    "ConvNeXt 96, each 7×7": (_conv(96, 96, 7, 1, 3, groups=96, bias=True), (96, 56, 56)),
    "ConvNeXt 96 → 384, 1×1, bias": (_conv(96, 384, 1, bias=True), (96, 56, 56)),
    "U-Net 128 → 64, transposed 2×2": (lambda: nn.ConvTranspose2d(128, 64, 2, 2), (128, 56, 56)),
    "generator 256 → 128, transposed 4×4": (lambda: nn.ConvTranspose2d(256, 128, 4, 2, 1, bias=False), (256, 16, 16)),
    "video 3 → 64, 3×7×7": (lambda: nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), (3, 8, 112, 112)),
    "video 64, 3×3×3": (lambda: nn.Conv3d(64, 64, 3, 1, 1, bias=False), (64, 8, 28, 28)),
    "ResNet18": (lambda: randomised(resnet()), (3, 224, 224)),
    "MobileNetV3": (lambda: randomised(mobilenet()), (3, 224, 224)),
    "ConvNeXt atto": (convnext, (3, 224, 224)),
}


NETWORKS = ("ResNet18", "MobileNetV3", "ConvNeXt atto")


def timed_by_cudnn(call: Callable[[], Any]) -> Callable[[], Any]:
    """`call`, where cuDNN times its deterministic kernels at each new size."""

    def benchmarked() -> Any:
        switches = torch.backends.cudnn
        switches.benchmark = switches.deterministic = True
        try:
            return call()
        finally:
            switches.benchmark = switches.deterministic = False

    return benchmarked


def channels_last(x: Tensor) -> Tensor:
    """Images or weights over two or three dimensions with their channels innermost; other tensors as they are."""
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=layouts[x.ndim]) if x.ndim in layouts else x


def precise(dtype: str) -> None:
    """Lets cuDNN round float32 to TF32, or not."""
    torch.backends.cudnn.conv.fp32_precision = "ieee" if dtype == "fp32" else "tf32"  # type: ignore[attr-defined]


def measure(name: str, dtype: str, batches: list[int], end: float) -> list[dict[str, Any]]:
    """A row for each batch size: microseconds of each contestant, polytile's error and eager's against float64."""
    make, shape = LAYERS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = make().cuda().to(DTYPES[dtype]).eval().requires_grad_(False)
    exact, last = copy.deepcopy(module).double(), copy.deepcopy(module)
    for weight in last.parameters():
        weight.data = channels_last(weight)
    budget = {"program_seconds": MEASURING_SECONDS} if name in NETWORKS else {}
    given: dict[str, Any] = {"persist": False, "stall": "tune", "convolutions": "measured", **budget}
    compiled = torch.compile(module, backend="polytile", dynamic=True, options=given)
    rows = []
    for batch in batches:
        if time.monotonic() > end:
            break
        x = torch.randn(batch, *shape, device="cuda", dtype=DTYPES[dtype])
        ours, plain, lasting = partial(compiled, x), partial(module, x), partial(last, channels_last(x))
        calls: dict[str, Callable[[], Tensor]] = {
            POLYTILE: ours, EAGER: plain, TIMED: timed_by_cudnn(plain), LAST: lasting, BOTH: timed_by_cudnn(lasting)
        }
        settle(calls)
        want = exact(x.double())
        errors = {who: float((calls[who]().double() - want).abs().max() / want.abs().max()) for who in (POLYTILE, EAGER)}
        us = {who: round(time, 2) for who, time in kernel_times(calls, rounds=ROUNDS, places=1).items()}
        rows.append({"layer": name, "dtype": dtype, "batch": batch, "us": us, "errors": errors, "runs": runs(compiled, x)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def measure_backward(name: str, dtype: str, batches: list[int], end: float) -> list[dict[str, Any]]:
    """A row for each batch size: microseconds of the gradients of images and weights, in eager and by the kernels that polytile
    chooses; those of transposed layers are left to the library."""
    make, shape = LAYERS[name]
    module = make().cuda().to(DTYPES[dtype])
    convolution: Any = module[0] if isinstance(module, nn.Sequential) else module
    over = convolution.stride, convolution.padding, convolution.dilation
    given = (None, *over, convolution.transposed, convolution.output_padding, convolution.groups, (True, True, False))
    problem = ConvolutionProblem(
        DTYPES[dtype], tuple(convolution.weight.shape), *over, convolution.groups, bias=False, last=False, tf32=dtype == "tf32"
    )
    chosen = ChosenGradients(GradientProblem(problem, True, True, False), CUDA)
    with polytile.options.override(persist=False, stall="tune"):
        kernel = define_convolution(chosen)
    rows = []
    for batch in batches:
        if time.monotonic() > end:
            break
        x, w = torch.randn(batch, *shape, device="cuda", dtype=DTYPES[dtype]), convolution.weight.detach()
        grad = torch.randn_like(convolution(x).detach())
        gradients = torch.ops.aten.convolution_backward
        plain = partial(gradients, grad, x, w, *given)
        lasting = partial(gradients, *map(channels_last, (grad, x, w)), *given)
        calls: dict[str, Callable[[], Any]] = {
            EAGER: plain, TIMED: timed_by_cudnn(plain), LAST: lasting, BOTH: timed_by_cudnn(lasting),
            **({} if convolution.transposed else {POLYTILE: partial(chosen, grad, x, w, *given)}),
        }  # fmt: skip
        settle({POLYTILE: calls[POLYTILE]} if POLYTILE in calls else {})
        us = {who: round(time, 2) for who, time in kernel_times(calls, rounds=ROUNDS, places=1).items()}
        runs = [decision.candidate for decision in kernel.decisions if dict(decision.sizes).get("N") == batch]
        rows.append({"layer": name, "dtype": dtype, "batch": batch, "us": us, "runs": runs[-1] if runs else "library"})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def settle(calls: Mapping[str, Callable[[], Tensor]]) -> None:
    """Call each until it has chosen its kernels for the size at hand."""
    until = time.monotonic() + WARM_SECONDS
    for _ in range(CALLS):
        for call in calls.values():
            call()
        torch.cuda.synchronize()
        polytile.wait()
        if time.monotonic() > until:
            break


def runs(compiled: Any, x: Tensor) -> str:
    """What `explain` says that the layer runs."""
    lines = str(polytile.explain(compiled, x)).splitlines()
    chosen = [line.split("→")[1].split(":")[0].strip() for line in lines if "→" in line]
    return (chosen[0] if len(chosen) == 1 else f"{len(chosen)} kernels") if chosen else "library"


def table(found: dict[str, Any]) -> None:
    """The times, and those of the others over polytile's."""
    columns: list[Column | str] = ["layer", "type", "images", "µs, polytile"]
    columns += [*(Column(f"{who} / polytile", ratio) for who in OTHERS), "runs", "error / eager's"]
    body = [
        (row["layer"], row["dtype"], row["batch"], f"{row['us'][POLYTILE]:.1f}", *(gain(row, who) for who in OTHERS), row["runs"],
         f"{row['errors'][POLYTILE] / max(row['errors'][EAGER], 1e-30):.2f}")
        for row in found["rows"]
    ]  # fmt: skip
    show(Table.from_rows(f"convolutions on an {found['device']}, inference", columns, body))
    for dtype in DTYPES:
        rows = [row for row in found["rows"] if row["dtype"] == dtype]
        for who in OTHERS if rows else ():
            gains = [gain(row, who) for row in rows]
            mean = statistics.geometric_mean(gains)
            print(f"{dtype}, {who} / polytile: {len(rows)} cells, geomean {mean:.2f}, least {min(gains):.2f}")


def backward_table(found: dict[str, Any]) -> None:
    """Eager's times, over those of polytile's choice, of what cuDNN times and of other layouts."""
    columns: list[Column | str] = ["layer", "type", "images", "µs, eager"]
    columns += [*(Column(f"eager / {who.removeprefix('eager, ')}", ratio) for who in (POLYTILE, *OTHERS[1:])), "runs"]
    body = []
    for row in found["rows"]:
        us = {POLYTILE: row["us"][EAGER], **row["us"]}
        gains = (us[EAGER] / us[who] for who in (POLYTILE, *OTHERS[1:]))
        body.append((row["layer"], row["dtype"], row["batch"], f"{us[EAGER]:.1f}", *gains, row["runs"]))
    show(Table.from_rows(f"gradients of convolutions on an {found['device']}", columns, body))
    for who in (POLYTILE, *OTHERS[1:]):
        found_gains = [row["us"][EAGER] / row["us"].get(who, row["us"][EAGER]) for row in found["rows"]]
        mean = statistics.geometric_mean(found_gains)
        print(f"eager / {who}: {len(found_gains)} cells, geomean {mean:.2f}, least {min(found_gains):.2f}")


def gain(row: dict[str, Any], who: str) -> float:
    """The time of a contestant over polytile's."""
    return float(row["us"][who] / row["us"][POLYTILE])


def _key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    return row["layer"], row["dtype"], row["batch"]


def main() -> None:
    parser = Command(__doc__, out=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCHES))
    parser.add_argument("--layers", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--beside", type=Path, help="a result file whose other rows are kept")
    parser.add_argument("--backward", action="store_true", help="time eager's derivative of the layers")
    parser.add_argument("--show", type=Path, help="only print the table of a result file; needs no GPU")
    options = parser.parsed()
    show_table = backward_table if options.backward else table
    if options.show is not None:
        show_table(record.read(options.show))
        return
    rows: list[dict[str, Any]] = []
    for _ in measured(options, rows):
        every = [row for row in kept_rows(options.beside) if _key(row) not in map(_key, rows)] + rows
        found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": every}
        record.write(f"{SUITE}_backward" if options.backward else SUITE, found, options.out)
    show_table({"device": torch.cuda.get_device_name(), "rows": rows})


def kept_rows(beside: Path | None) -> list[dict[str, Any]]:
    """The rows of an earlier result file, if one is given."""
    rows: list[dict[str, Any]] = record.read(beside)["rows"] if beside is not None else []
    return rows


def measured(options: argparse.Namespace, rows: list[dict[str, Any]]) -> Iterator[str]:
    """Adds the rows of one layer after the other, in each type, until the time is up; yields the layers' names."""
    end = time.monotonic() + options.seconds
    layers = [name for name in options.layers if not (options.backward and name in NETWORKS)]
    for dtype, name in itertools.product(options.dtypes, layers):
        if time.monotonic() > end:
            return
        precise(dtype)
        try:
            with torch.no_grad():
                rows += (measure_backward if options.backward else measure)(name, dtype, options.batches, end)
        except Exception as error:  # the other layers are still worth their time
            print(f"{name}, {dtype}: {type(error).__name__}: {error}"[:300], flush=True)
        yield name


if __name__ == "__main__":
    main()
