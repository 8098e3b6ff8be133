"""Compiled convolutions beside eager's: `python -m benchmarks.convolution_layers`.

Single layers as a user would compile them, with the real shapes of ResNet18, MobileNetV3, ConvNeXt and a vision transformer's
patches, and the layers that used to lose; and whole networks of such layers. Inference in float32, by the machine's own
instructions and by AVX2 (oneDNN reads `ONEDNN_MAX_CPU_ISA` once, so that each has a process of its own). Dynamo's guards are not
in the times (`direct.py`); conversions between layouts and the looking up of packed weights are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import alone, own_caches
from benchmarks.convolution_nets import convnext, mobilenet, randomised, resnet
from benchmarks.direct import Recorded
from benchmarks.timing import compare, geomean
from polytile.report import Column, Table, show
from polytile.report.tables import micros, ratio

ISAS = ("AVX512", "AVX2")
"""Of oneDNN; by "AVX512" the best that the machine has."""

Case = tuple[Callable[[], nn.Module], tuple[int, ...]]


def _conv(*given: Any, images: tuple[int, ...], **named: Any) -> Case:
    return partial(nn.Conv2d, *given, **{"bias": False, **named}), images


LAYERS: dict[str, Case] = {
    "ResNet18 7×7": _conv(3, 64, 7, 2, 3, images=(1, 3, 224, 224)),
    "ResNet18 64, 3×3": _conv(64, 64, 3, 1, 1, images=(1, 64, 56, 56)),
    "ResNet18 128, 3×3, every 2": _conv(64, 128, 3, 2, 1, images=(1, 64, 56, 56)),
    "ResNet18 128, 1×1, every 2": _conv(64, 128, 1, 2, images=(1, 64, 56, 56)),
    "ResNet18 128, 3×3": _conv(128, 128, 3, 1, 1, images=(1, 128, 28, 28)),
    "ResNet18 256, 3×3": _conv(256, 256, 3, 1, 1, images=(1, 256, 14, 14)),
    "ResNet18 256, 3×3, two images": _conv(256, 256, 3, 1, 1, images=(2, 256, 14, 14)),
    "ResNet18 512, 3×3, every 2": _conv(256, 512, 3, 2, 1, images=(1, 256, 14, 14)),
    "ResNet18 512, 3×3": _conv(512, 512, 3, 1, 1, images=(1, 512, 7, 7)),
    "MobileNetV3 3×3, every 2": _conv(3, 16, 3, 2, 1, images=(1, 3, 224, 224)),
    "MobileNetV3 16, each 3×3": _conv(16, 16, 3, 1, 1, groups=16, images=(1, 16, 112, 112)),
    "MobileNetV3 64, 1×1": _conv(16, 64, 1, images=(1, 16, 112, 112)),
    "MobileNetV3 64, each 3×3, every 2": _conv(64, 64, 3, 2, 1, groups=64, images=(1, 64, 112, 112)),
    "MobileNetV3 120, 1×1": _conv(40, 120, 1, images=(1, 40, 28, 28)),
    "MobileNetV3 960, each 5×5": _conv(960, 960, 5, 1, 2, groups=960, images=(1, 960, 7, 7)),
    "MobileNetV3 160, 1×1": _conv(960, 160, 1, images=(1, 960, 7, 7)),
    "MobileNetV3 240, squeezed": _conv(960, 240, 1, images=(1, 960, 1, 1)),
    "MobileNetV3 240, squeezed, eight images": _conv(960, 240, 1, images=(8, 960, 1, 1)),
    "ConvNeXt 40, 4×4, every 4": _conv(3, 40, 4, 4, images=(1, 3, 224, 224)),
    "ConvNeXt 40, each 7×7": _conv(40, 40, 7, 1, 3, groups=40, images=(1, 40, 56, 56)),
    "ConvNeXt 320, each 7×7": _conv(320, 320, 7, 1, 3, groups=320, images=(1, 320, 7, 7)),
    "ConvNeXt 320, 2×2, every 2": _conv(160, 320, 2, 2, images=(1, 160, 28, 28)),
    "patches of 16×16": _conv(3, 384, 16, 16, images=(1, 3, 224, 224)),
    "each 3×3": _conv(128, 128, 3, groups=128, images=(8, 128, 32, 64)),
    "1×1": _conv(128, 128, 1, images=(8, 128, 32, 64)),
    "wide, 8×6": _conv(256, 256, 3, 1, 1, images=(2, 256, 8, 6)),
    "wide, 8×6, one image": _conv(256, 256, 3, 1, 1, images=(1, 256, 8, 6)),
    "few channels": _conv(8, 8, 3, 1, 1, images=(4, 8, 9, 11)),
    "few channels, one image": _conv(8, 8, 3, 1, 1, images=(1, 8, 9, 11)),
    "transposed 3×3, every 2": (partial(nn.ConvTranspose2d, 64, 128, 3, 2), (4, 64, 32, 32)),
    "transposed 2×2, every 2": (partial(nn.ConvTranspose2d, 256, 128, 2, 2), (1, 256, 16, 16)),
}

NETWORKS: dict[str, Case] = {
    "ResNet18": (resnet, (1, 3, 224, 224)),
    "MobileNetV3 large": (mobilenet, (1, 3, 224, 224)),
    "ConvNeXt atto": (convnext, (1, 3, 224, 224)),
}


def run(case: Case, seconds: float) -> dict[str, Any]:
    """Times one module in eager, compiled, and compiled without packed weights; raises AssertionError where results differ."""
    torch.manual_seed(0)
    module, images = randomised(case[0]()).eval(), torch.randn(case[1])
    want = module.double()(images.double())
    module = module.float()
    calls: dict[str, Callable[[], object]] = {"eager": lambda: module(images)}
    for name, options in (("polytile", {}), ("without packing", {"packed_weights_mib": 0})):
        torch._dynamo.reset()
        calls[name] = Recorded(module, "polytile", options).direct(images)
        got = calls[name]()
        assert isinstance(got, Tensor)
        off = float((got.double() - want).abs().max() / want.abs().max())
        assert off <= 1e-4, f"{name} is {off:.1e} off float64."
    return compare(calls, seconds=seconds).as_json()


def cells(given: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of {"names", "threads", "seconds"} by name, in this process."""
    torch.set_num_threads(given["threads"])
    with torch.no_grad():
        return {"cells": {name: run({**LAYERS, **NETWORKS}[name], given["seconds"]) for name in given["names"]}}


def measured(names: list[str], isa: str, threads: int, seconds: float) -> dict[str, Any]:
    """Every case in one process that is limited to `isa`, by name."""
    limit = {"ONEDNN_MAX_CPU_ISA": isa} if isa == "AVX2" else {}
    given = {"names": names, "threads": threads, "seconds": seconds}
    with own_caches() as caches:
        found: dict[str, Any] = alone("benchmarks.convolution_layers:cells", given, variables={**caches, **limit})["cells"]
    return found


def table(isa: str, threads: int, cells: Mapping[str, Any]) -> Table:
    """Eager's time over polytile's."""

    def gain(cell: Any, who: str) -> float:
        return float(cell["timings"]["eager"]["seconds"] / cell["timings"][who]["seconds"])

    names = ["polytile", "without packing"]
    columns: list[Column | str] = ["layer", Column("µs, eager", micros), *(Column(name, ratio) for name in names)]
    body: list[tuple[object, ...]] = [
        (name, cell["timings"]["eager"]["seconds"], *(gain(cell, who) for who in names)) for name, cell in cells.items()
    ]
    body.append(("all", None, *(geomean(gain(cell, who) for cell in cells.values()) for who in names)))
    heading = f"Convolutions by {isa}, {threads} threads, float32, inference: eager's time over polytile's"
    return Table.from_rows(heading, columns, body, [])


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--isas", nargs="*", choices=ISAS, default=list(ISAS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cases", nargs="*", default=[*LAYERS, *NETWORKS], help="names of layers and networks")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long to measure each case")
    given = parser.parsed()
    for isa in given.isas:
        found = measured(given.cases, isa, given.threads, given.seconds)
        show(table(isa, given.threads, found))
        if given.json:
            record.add("convolution_layers", f"{isa}, {given.threads} threads", found)


if __name__ == "__main__":
    main()
