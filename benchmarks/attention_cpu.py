"""Attention on a CPU against ATen's kernels: `python -m benchmarks.attention_cpu [--parts forward backward training] [--json]`.

forward    attention without gradients, in turns with `aten._scaled_dot_product_flash_attention_for_cpu`
backward   its derivative, in turns with ATen's kernel for that
training   scaled_dot_product_attention, or attention that is written out, and the gradients of q, k, v and the bias through
           autograd, in turns with eager, with and without dropout: wall time of both, Dynamo's share included

Forward and backward are one dynamic compile for each kind of mask, without Dynamo's share of a call (`direct.py`). ATen's kernels
are given masks in the form that they add. Errors are the largest differences from float64; in training, from eager, whose random
numbers the dropout has to draw. `--json` puts the cells into benchmarks/results/attention_cpu.json, beside those of other parts;
`--show` prints what that file has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import record
from benchmarks.command import Command
from benchmarks.direct import Recorded
from benchmarks.loops import chosen
from benchmarks.timing import compare, disturbance_of, geomean
from polytile.ir.attention import EMPTY, attend, attend_backward
from polytile.report import Column, Table, show
from polytile.report.tables import ratio
from polytile.runtime import compile

aten = torch.ops.aten

SUITE = "attention_cpu"
OWN = "polytile"
OPTIONS: dict[str, Any] = {"persist": False, "stall": "tune"}
LARGEST_CHECKED = 1 << 22
"""Scores up to which results are compared with float64."""
SETTLED = 30.0
"""Seconds to wait for kernels that are still being compiled beside."""
Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """q (batch, heads, rows, size), k and v (batch, groups, keys, size). `mask`: "", "causal", "keys" (booleans for each key of
    each batch), "bias" (one for each head). In training: `dropout` is its probability; `written` is by softmax and products."""

    name: str
    batch: int
    heads: int
    groups: int
    rows: int
    keys: int
    size: int
    mask: str = ""
    dtype: torch.dtype = torch.float32
    dropout: float = 0.0
    written: bool = False

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


TRAINED = (
    Case("BERT 4×128", 4, 12, 12, 128, 128, 64), Case("BERT 4×384, padding", 4, 12, 12, 384, 384, 64, "keys"),
    Case("GPT-2 1×512", 1, 12, 12, 512, 512, 64, "causal"), Case("GPT-2 4×1000", 4, 12, 12, 1000, 1000, 64, "causal"),
    Case("Llama 1×1024, groups of 4", 1, 16, 4, 1024, 1024, 128, "causal"),
    Case("BERT 4×384, dropout", 4, 12, 12, 384, 384, 64, dropout=0.1),
    Case("GPT-2 1×512, dropout", 1, 12, 12, 512, 512, 64, "causal", dropout=0.1),
    Case("BERT 4×384, padding, written out", 4, 12, 12, 384, 384, 64, "keys", written=True),
    Case("GPT-2 1×512, written out", 1, 12, 12, 512, 512, 64, "causal", written=True),
    Case("T5 4×256, bias, written out", 4, 8, 8, 256, 256, 64, "bias", written=True),
)  # fmt: skip


# what is compared ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """Forward or backward: its cases, what is compiled for each kind of mask, and functions of a case and its tensors: ATen's
    kernel and the definition in float64. `inputs` are the tensors."""

    cases: tuple[Case, ...]
    inputs: Callable[[Case], tuple[Tensor, ...]]
    functions: Mapping[str, Callable[..., Any]]
    peer: Callable[..., Call]
    exact: Callable[..., Sequence[Tensor]]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, enable_gqa=True)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def added(case: Case, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor | None:
    """The mask as ATen's kernels add it."""
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(mask.logical_not(), EMPTY)
    return mask.expand(*q.shape[:3], k.shape[2]) if mask is not None else None


def of_aten(case: Case, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Call:
    mask, operator = added(case, q, k, mask), aten._scaled_dot_product_flash_attention_for_cpu
    return lambda: operator(q, k, v, 0.0, case.mask == "causal", attn_mask=mask)[:1]


def exact(case: Case, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
    return attend(q, k, v, mask, scale=None, causal=_kind(case), precision=torch.float64)[:1]


def with_results(case: Case) -> tuple[Tensor, ...]:
    """The gradient of the result, q, k, v, the result, its log-sum-exp and the mask, as ATen's operator of the derivative has
    them."""
    q, k, v, *masks = case.tensors()
    mask = added(case, q, k, masks[0] if masks else None)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, case.mask == "causal", attn_mask=mask)
    return torch.randn_like(out), q, k, v, out, lse, *([mask] if mask is not None else [])


def _derivative(is_causal: bool) -> Callable[..., Any]:
    operator = aten._scaled_dot_product_flash_attention_for_cpu_backward

    def derivative(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None = None
    ) -> Any:  # fmt: skip
        return operator(grad, q, k, v, out, lse, 0.0, is_causal, attn_mask=mask)

    return derivative


def derivative_of_aten(case: Case, *given: Tensor) -> Call:
    return lambda: DERIVATIVES[case.mask](*given)


def exact_derivative(
    case: Case, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, ...]:  # fmt: skip
    out, lse = attend(q, k, v, mask, scale=None, causal=_kind(case), precision=torch.float64)
    return attend_backward(q, k, v, out, lse, grad, mask, scale=None, causal=_kind(case), precision=torch.float64)


def _kind(case: Case) -> str:
    return "top left" if case.mask == "causal" else ""


FUNCTIONS: dict[str, Callable[..., Any]] = {"": plain, "causal": causal, "keys": masked, "bias": masked}
DERIVATIVES = {mask: _derivative(mask == "causal") for mask in FUNCTIONS}
PASSES = {
    "forward": Pass(CASES, Case.tensors, FUNCTIONS, of_aten, exact),
    "backward": Pass(
        tuple(case for case in CASES if case.rows > 1), with_results, DERIVATIVES, derivative_of_aten, exact_derivative
    ),
}

# measuring -------------------------------------------------------------------------------------------------------------


def named(cases: Sequence[Case], words: Sequence[str]) -> list[Case]:
    return [case for case in cases if any(word in case.name for word in words)]


def cells(part: str, dtype: torch.dtype, seconds: float, words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is found for each case of a pass that has one of these words, by name."""
    run = PASSES[part]
    made = {mask: Recorded(function, OWN, OPTIONS) for mask, function in run.functions.items()}
    return {
        name_of(case, dtype): measured(run, replace(case, dtype=dtype), made[case.mask], seconds)
        for case in named(run.cases, words)
    }


def measured(run: Pass, case: Case, made: Recorded, seconds: float) -> dict[str, Any]:
    """One cell. Raises AssertionError where a result is more than twice as far from float64 as ATen's, and one last place."""
    torch.manual_seed(0)
    given = run.inputs(case)
    peer = run.peer(case, *given)
    made(*given)
    compile.settle(SETTLED)
    errors: dict[str, float] = {}
    if case.batch * case.heads * case.rows * case.keys <= LARGEST_CHECKED:
        right = run.exact(case, *given)
        results = made(*given)
        mine = results if isinstance(results, tuple) else (results,)
        errors = {OWN: _distance(mine, right), "aten": _distance(peer(), right)}
        assert errors[OWN] <= 2 * errors["aten"] + torch.finfo(case.dtype).eps, f"{case}: {errors}"
    call = made.direct(*given)
    return _cell(compare({OWN: call, "aten": peer}, seconds=seconds), "aten", chosen(made)[0], errors)


def _distance(results: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    return max(float((one.double() - other.double()).abs().max()) for one, other in zip(results, right, strict=True))


def _cell(comparison: Any, peer: str, candidate: str, errors: Mapping[str, float]) -> dict[str, Any]:
    ratio_of_times = round(comparison.ratio(OWN, peer), 4)
    return {"ratio": ratio_of_times, "candidate": candidate, "errors": dict(errors), **comparison.as_json()}


def name_of(case: Case, dtype: torch.dtype) -> str:
    return f"{case.name}, {str(dtype).removeprefix('torch.')}"


def training(part: str, dtype: torch.dtype, seconds: float, words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What is found for each case of training that has one of these words, by name. One dynamic compile for each kind of mask and
    dropout."""
    functions = {_sort(case): trained(case) for case in TRAINED}
    made = {kind: torch.compile(each, backend="polytile", dynamic=True, options=OPTIONS) for kind, each in functions.items()}
    found = {}
    for case in named(TRAINED, words):
        kind = _sort(case)
        found[name_of(case, dtype)] = steps(replace(case, dtype=dtype), functions[kind], made[kind], seconds)
    return found


def _sort(case: Case) -> tuple[str, float, bool]:
    return case.mask, case.dropout, case.written


def trained(case: Case) -> Callable[..., Tensor]:
    """Attention of a case's kind."""
    is_causal, dropout = case.mask == "causal", case.dropout

    def written(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if is_causal:
            rows = torch.arange(q.shape[2])
            scores = scores.masked_fill(rows[None, :] > rows[:, None], -torch.inf)
        elif mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(q.dtype).min) if mask.dtype == torch.bool else scores + mask
        return torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ v

    def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        return scaled_dot_product_attention(q, k, v, mask, dropout, is_causal, enable_gqa=True)

    return written if case.written else attention


def steps(case: Case, eager: Callable[..., Tensor], compiled: Callable[..., Tensor], seconds: float) -> dict[str, Any]:
    """One cell. Raises AssertionError where results or gradients are not eager's."""
    torch.manual_seed(0)
    q, k, v, *mask = case.tensors()
    leaves = [each.requires_grad_() for each in (q, k, v, *(each for each in mask if each.is_floating_point()))]
    grad = torch.randn_like(eager(q, k, v, *mask).detach())

    def step(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        out = function(q, k, v, *mask)
        return out.detach(), *torch.autograd.grad(out, leaves, grad)

    step(compiled)
    compile.settle(SETTLED)
    results = []
    for function in (compiled, eager):
        torch.manual_seed(1)
        results.append(step(function))
    error, largest = _distance(*results), max(float(each.abs().max()) for each in results[1])
    assert error <= 16 * torch.finfo(case.dtype).eps * max(1.0, largest), f"{case}: {error}"
    comparison = compare({OWN: lambda: step(compiled), "eager": lambda: step(eager)}, seconds=seconds)
    return _cell(comparison, "eager", "", {OWN: error})


# tables ----------------------------------------------------------------------------------------------------------------

TITLES = {
    "forward": ("Attention on a CPU", "aten"),
    "backward": ("The derivative of attention on a CPU", "aten"),
    "training": ("Attention in training on a CPU, forward and backward", "eager"),
}


def table(part: str, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """A row for each cell, and the geomeans of types."""
    title, peer = TITLES[part]
    body: list[tuple[Any, ...]] = []
    for name, cell in found.items():
        mine, theirs = (f"{cell['timings'][each]['seconds'] * 1e6:.0f}" for each in (OWN, peer))
        errors = cell["errors"]
        off = ratio(errors[OWN] / errors[peer]) if errors.get(peer) else "–"
        body.append((name, mine, theirs, cell["ratio"], *([cell["candidate"], off] if part != "training" else [])))
    for dtype in dict.fromkeys(name.rsplit(", ", 1)[1] for name in found):
        of_type = [cell["ratio"] for name, cell in found.items() if name.endswith(dtype)]
        row = (f"geomean, {dtype}", "", "", geomean(of_type), f"least {min(of_type):.2f}", "")
        body.append(row if part != "training" else row[:4])
    columns: list[Column | str] = ["case", "polytile, µs", f"{peer}, µs", Column("ratio", ratio)]
    columns += ["runs", f"error / {peer}'s"] if part != "training" else []
    notes = [disturbance_of(cell["cores_used_by_others"] for cell in found.values())]
    return Table.from_rows(title, columns, body, notes)


def show_all(results: Mapping[str, Any]) -> None:
    for part in filter(results.__contains__, TITLES):
        show(table(part, results[part]))


def main() -> None:
    parser = Command(__doc__, SUITE, show_all, json=True)
    parser.add_argument("--parts", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--cases", nargs="+", default=[""], help="words, of which one is in the name of a case that is run")
    parser.add_argument("--seconds", type=float, default=0.6, help="of timing a cell")
    given = parser.parsed()
    torch._dynamo.config.recompile_limit = 64
    dtypes = [getattr(torch, name) for name in given.dtypes]
    for part in given.parts:
        found: dict[str, Any] = {}
        for dtype in dtypes:
            with torch.set_grad_enabled(part == "training"):
                new = (training if part == "training" else cells)(part, dtype, given.seconds, given.cases)
            found |= new
            if given.json:
                record.add(SUITE, part, new)
        show(table(part, found))


if __name__ == "__main__":
    main()
