"""`polytile package`: a function with example inputs, or the first call that a function names, as a package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

import polytile
from polytile.cli.targets import Kind, calls_of
from polytile.packages import text


def written(
    target: str, shapes: Sequence[str], kind: Kind, output: Path, hints: Sequence[int] | None, apart: bool, folder: bool,
    architectures: Sequence[int] = (),
) -> str:
    """Writes the package; a sentence about it. Raises PolytileError as its parts do."""
    function, calls = calls_of(target, shapes, kind)
    path = polytile.package(
        function, calls[0], output, hints=hints, weights_apart=apart, folder=folder, architectures=architectures
    )
    files = polytile.load_package(path).manifest["files"]
    total = sum(each["bytes"] for each in files.values())
    weights = files["weights.safetensors"]["bytes"]
    return f"{path} written: {len(files)} files, {total / 1e6:.2f} MB, of which {weights / 1e6:.2f} MB are weights."


def checked(target: str, shapes: Sequence[str], kind: Kind, package: Path) -> str:
    """Makes every call by the package and by eager; a sentence about the largest difference. Raises PolytileError as its parts
    do."""
    function, calls = calls_of(target, shapes, kind)
    loaded, largest = polytile.load_package(package, verify=True), 0.0
    with torch.no_grad():
        for args in calls:
            for one, other in zip(tree_leaves(loaded(*args)), tree_leaves(function(*args)), strict=True):
                if isinstance(other, torch.Tensor) and other.numel():
                    scale = float(other.double().abs().max()) or 1.0
                    largest = max(largest, float((one.double() - other.double()).abs().max()) / scale)
    return f"{package}: {len(calls)} calls, the largest difference from eager is {largest:.1e} of the largest result."


def write_runtime(folder: Path) -> list[Path]:
    """Writes the source and the header of the C runtime; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / "polytile_package.c": text.runtime_source(), folder / "polytile_package.h": text.header()}
    for path, content in files.items():
        path.write_text(content)
    return list(files)
