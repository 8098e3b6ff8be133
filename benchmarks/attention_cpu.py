"""Attention on a CPU against ATen's kernel for it: the part `cells` of `python -m benchmarks.attention --device cpu`.

One dynamic compile for each kind of mask, in turns with `aten._scaled_dot_product_flash_attention_for_cpu`, which is given masks
in the form that it adds. Dynamo's share of a call is left out (`direct.py`). Errors are the largest differences from float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.direct import Recorded
from benchmarks.loops import chosen
from benchmarks.timing import Comparison, compare, disturbance, geomean
from polytile.ir.attention import EMPTY, attend
from polytile.report import Column, Table, show
from polytile.report.tables import ratio
from polytile.runtime import compile

OWN, PEER = "polytile", "aten"
OPTIONS = {"persist": False, "stall": "tune"}
LARGEST_CHECKED = 1 << 22
"""Scores up to which results are compared with float64."""
SETTLED = 30.0
"""Seconds to wait for kernels that are still being compiled beside."""


@dataclass(frozen=True)
class Case:
    """q (batch, heads, rows, size), k and v (batch, groups, keys, size). `mask`: "", "causal", "keys" (booleans for each key of
    each batch), "bias" (one for each head)."""

    name: str
    batch: int
    heads: int
    groups: int
    rows: int
    keys: int
    size: int
    mask: str = ""
    dtype: torch.dtype = torch.float32

    def tensors(self) -> tuple[Tensor, ...]:
        """q, k, v and the mask, if there is one. Heads of a row lie side by side, as projections leave them."""
        shapes = ((self.rows, self.heads), (self.keys, self.groups), (self.keys, self.groups))
        qkv = [torch.randn(self.batch, n, h, self.size).to(self.dtype).transpose(1, 2) for n, h in shapes]
        if self.mask == "keys":
            return *qkv, torch.arange(self.keys) < torch.randint(self.keys // 2, self.keys, (self.batch, 1, 1, 1))
        if self.mask == "bias":
            return *qkv, torch.randn(1, self.heads, self.rows, self.keys).to(self.dtype)
        return tuple(qkv)


CASES = (
    Case("BERT 1×128", 1, 12, 12, 128, 128, 64), Case("BERT 8×384, padding", 8, 12, 12, 384, 384, 64, "keys"),
    Case("ViT 4×197", 4, 12, 12, 197, 197, 64), Case("Swin, 32 windows", 32, 4, 4, 49, 49, 32, "bias"),
    Case("T5 2×256", 2, 8, 8, 256, 256, 64, "bias"), Case("GPT-2 1×512", 1, 12, 12, 512, 512, 64, "causal"),
    Case("GPT-2 4×1000", 4, 12, 12, 1000, 1000, 64, "causal"), Case("long 1×4096", 1, 4, 4, 4096, 4096, 64, "causal"),
    Case("Llama 1×1024, groups of 4", 1, 16, 4, 1024, 1024, 128, "causal"),
    Case("heads of 128, 1×1500", 1, 4, 4, 1500, 1500, 128), Case("heads of 80, 2×300", 2, 16, 16, 300, 300, 80),
    Case("heads of 32, 8×200", 8, 8, 8, 200, 200, 32), Case("Whisper, across", 2, 8, 8, 448, 1500, 64),
    Case("decoding 1×1000", 1, 12, 12, 1, 1000, 64),
    Case("decoding 8×2000, groups of 4", 8, 32, 8, 1, 2000, 128), Case("decoding 32×500", 32, 12, 12, 1, 500, 64),
    Case("decoding 1×16000, groups of 4", 1, 32, 8, 1, 16000, 128),
    Case("decoding 4×700, padding", 4, 12, 12, 1, 700, 64, "keys"), Case("drafts of 5, groups of 4", 1, 32, 8, 5, 3000, 128),
    Case("decoding 2×1024, groups of 16", 2, 32, 2, 1, 1024, 128),
)  # fmt: skip


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, enable_gqa=True)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


FUNCTIONS: dict[str, Callable[..., Tensor]] = {"": plain, "causal": causal, "keys": masked, "bias": masked}


@dataclass(frozen=True)
class Cell:
    case: Case
    comparison: Comparison
    candidate: str
    errors: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.comparison.ratio(OWN, PEER)


def of_aten(case: Case, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Callable[[], Tensor]:
    """A call of ATen's kernel."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(mask.logical_not(), EMPTY)
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return lambda: operator(q, k, v, 0.0, case.mask == "causal", attn_mask=mask)[0]


def measured(case: Case, made: Recorded, seconds: float) -> Cell:
    """One cell. Raises AssertionError where the result is more than twice as far from float64 as ATen's, and one last place."""
    torch.manual_seed(0)
    given = case.tensors()
    peer = of_aten(case, *given)
    made(*given)
    compile.settle(SETTLED)
    call = made.direct(*given)
    errors: dict[str, float] = {}
    if case.batch * case.heads * case.rows * case.keys <= LARGEST_CHECKED:
        right = exact(case, *given)
        errors = {name: float((run().double() - right).abs().max()) for name, run in ((OWN, call), (PEER, peer))}
        assert errors[OWN] <= 2 * errors[PEER] + torch.finfo(case.dtype).eps, f"{case}: {errors}"
    return Cell(case, compare({OWN: call, PEER: peer}, seconds=seconds), chosen(made)[0], errors)


def exact(case: Case, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The definition in float64."""
    kind = "top left" if case.mask == "causal" else ""
    return attend(q, k, v, mask, scale=None, causal=kind, precision=torch.float64)[0]


def cells(dtypes: Sequence[torch.dtype], seconds: float, deadline: float) -> list[Cell]:
    """A cell for each case and dtype, as long as there is time."""
    found: list[Cell] = []
    made = {(mask, dtype): Recorded(function, OWN, OPTIONS) for mask, function in FUNCTIONS.items() for dtype in dtypes}
    for case in CASES:
        for dtype in dtypes:
            if time.monotonic() > deadline:
                print("no time left for further cells", flush=True)
                break
            found.append(measured(replace(case, dtype=dtype), made[case.mask, dtype], seconds))
    return sorted(found, key=lambda cell: dtypes.index(cell.case.dtype))


def table(found: Sequence[Cell]) -> Table:
    """A row for each cell, and the geomeans of types."""
    body: list[tuple[Any, ...]] = []
    for cell in found:
        mine, theirs = (f"{cell.comparison[name].low * 1e6:.0f}" for name in (OWN, PEER))
        body.append((cell.case.name, str(cell.case.dtype).removeprefix("torch."), mine, theirs, cell.ratio, cell.candidate))
    for dtype in dict.fromkeys(cell.case.dtype for cell in found):
        of_type = [cell.ratio for cell in found if cell.case.dtype == dtype]
        body.append(("geomean", str(dtype).removeprefix("torch."), "", "", geomean(of_type), f"least {min(of_type):.2f}"))
    columns: list[Column | str] = ["case", "dtype", "polytile, µs", "ATen, µs", Column("ratio", ratio), "runs"]
    notes = [
        f"Time of ATen's kernel over polytile's call, without Dynamo's share, {torch.get_num_threads()} threads. "
        f"All: {geomean(cell.ratio for cell in found):.3f}.",
        disturbance(cell.comparison for cell in found),
    ]
    return Table.from_rows("Attention on a CPU", columns, body, notes)


def run(device: str, seconds: float, deadline: float) -> dict[str, Any]:
    """The part: shows the table and gives the cells by name. Nothing where the device is no CPU."""
    if device != "cpu":
        return {}
    found = cells((torch.float32, torch.bfloat16), seconds, deadline)
    if found:
        show(table(found))
    return {
        f"{cell.case.name}, {str(cell.case.dtype).removeprefix('torch.')}": {
            "ratio": round(cell.ratio, 4), "candidate": cell.candidate, "errors": cell.errors, **cell.comparison.as_json()
        }
        for cell in found
    }  # fmt: skip
