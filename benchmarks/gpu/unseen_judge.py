"""Today's prior at the sizes of benchmarks.gpu.unseen_products, without a GPU.

    python -m benchmarks.gpu.unseen_judge        replaces the predictions of the committed file, prints its tables

The constants for quantised products (cost/product_constants.py) were fitted to some of the sizes, the first of each kind in the
file (FITTED): those tables say little, the others' how good the prior is.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import Any

import torch

from benchmarks import record
from benchmarks.gpu.unseen_products import MEASURED, SUITE, report
from polytile.candidates import triton_matmul as generated
from polytile.candidates.library.cublaslt import LATER
from polytile.candidates.materialised_operands import MaterialisedOperands
from polytile.cost import cutlass as cutlass_prior
from polytile.cost import library_matmul, triton_matmul
from polytile.cost.triton_matmul import Access
from polytile.dispatch.links.prior import varied
from polytile.matmul.cutlass import configs as cutlass
from polytile.matmul.triton.configs import Kind, space
from polytile.runtime.cuda.device import named

FITTED = {"int8": 39, "fp8": 39, "w4a16": 0}
"""How many sizes of each kind took part in the fit. 60 of w4a16 did that are no longer in the file: what stores weights first has
become another kernel since."""
PRIORS = {"int8": Kind(1, int8=True), "fp8": Kind(1, float8=True), "w4a16": Kind(2, int8=True, mixed=True)}
UNPACKING = 11.0
"""What candidates.triton_matmul.prologue_work says of int4 weights."""
DEVICE = named("H200")


def judged(row: dict[str, Any]) -> dict[str, Any]:
    """The cell with what today's prior predicts, and what it would measure."""
    predict = _predictions(row)
    predicted = {name: predict(name) * 1e6 for name in row["us"]}
    ranked = sorted(predicted, key=lambda name: predicted[name])
    three = varied(ranked, MEASURED, lambda name: _traits(PRIORS[row["function"]], name))
    return {**row, "predicted_us": predicted, "three": three}


def _predictions(row: dict[str, Any]) -> Callable[[str], float]:
    """Seconds of a candidate by its name. What is stored first keeps the prediction of the run: it has kernels of its own."""
    kind, (m, n, k) = PRIORS[row["function"]], row["shape"]
    size = {"batch": 1, "M": m, "N": n, "K": k}
    a = Access(along_k=True)
    b = replace(a, work=UNPACKING, itemsize=0.5) if kind.mixed else a
    tiles, blocks = _configs(kind)

    def seconds(name: str) -> float:
        if name in tiles:
            return triton_matmul.cost(kind, tiles[name], size, DEVICE, (a, b))
        if name in blocks:
            return cutlass_prior.cost(kind, blocks[name], size, DEVICE, (a, a))
        if name == MaterialisedOperands.name:
            return float(row["predicted_us"][name]) * 1e-6
        product = library_matmul.cost(kind, size, DEVICE, (True, True), scaled=name == "aten scaled")
        if name.startswith("cublaslt"):
            return product * (1.0 + LATER * int(name.split()[1]))
        return product + (DEVICE.launch_seconds + 8 * m * n / DEVICE.bandwidth if name == "aten" else 0.0)

    return seconds


@functools.cache
def _configs(kind: Kind) -> tuple[dict[str, Any], dict[str, Any]]:
    """Generated products' configs and CUTLASS's, by their candidates' names."""
    dtype = torch.float8_e4m3fn if kind.float8 else torch.int8
    blocks = () if kind.mixed else cutlass.configs(dtype, True, DEVICE)
    tiles = {generated.label(config): config for config in space(kind, DEVICE).configs}
    return tiles, {cutlass.label(config): config for config in blocks}


def _traits(kind: Kind, name: str) -> Iterable[Hashable]:
    tiles, blocks = _configs(kind)
    if name in tiles:
        return generated.traits(tiles[name])
    return (("schedule", f"cutlass {cutlass.how(blocks[name])}"), ("n", blocks[name]["n"])) if name in blocks else ()


def main() -> None:
    file = record.RESULTS / f"{SUITE}.json"
    whole = json.loads(file.read_text())
    results = whole["results"]
    results["cells"] = [judged(row) for row in results["cells"] if len(row["us"]) > 1]
    file.write_text(json.dumps(whole, separators=(",", ":")) + "\n")
    kinds = {kind: [row for row in results["cells"] if row["function"] == kind] for kind in FITTED}
    for title, of_fit in (("sizes of the fit", True), ("sizes that took no part in the fit", False)):
        parts = (rows[: FITTED[kind]] if of_fit else rows[FITTED[kind] :] for kind, rows in kinds.items())
        print(f"\n{title}\n")
        report({**results, "cells": [row for part in parts for row in part]})


if __name__ == "__main__":
    main()
