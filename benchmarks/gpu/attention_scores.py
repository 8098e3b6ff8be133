"""`python -m benchmarks.gpu.attention_scores [--cases ALiBi ...] [--triples 40] [--seconds 240]`: scores and masks in kernels.

Each case is a score_mod and a mask_mod of positions, in inference, bf16. Contestants have a process and caches of their own:
`polytile` (one dynamic compile for all sizes, which makes the mask in each call), the peer's flex_attention compiled for each
size with max-autotune (`static`), and compiled once for all (`dynamic`), both with a block mask that was made before. Beside
polytile are timed, in turns, `dense` (scaled_dot_product_attention with the mask or bias as a tensor, its making included),
`made` (with the tensor made before), and `causal` (with its own causal mask). `error` is the largest difference from float64,
`dense_error` that of scaled_dot_product_attention.

polytile's process also calls each case at so many `--triples` of a batch and of numbers of rows and keys that differ, waiting for
nothing: the graphs that are compiled for all of them, first and second calls, and the most memory that a call takes beside its
operands, over that of a tensor with a byte for each score. Results go to OUT/attention_scores.json, with the cases of an earlier
file that `--beside` names.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import OWN, Processes
from benchmarks.timing import compare, geomean
from polytile.report import Table, show

SUITE, CONTESTANT = "attention_scores", "benchmarks.gpu.attention_scores:contestant"
Function = Callable[..., Tensor]
Size = tuple[int, int, int]
SIZES: tuple[Size, ...] = ((4, 1024, 1024), (2, 2048, 2048), (1, 4096, 4096), (2, 1531, 1531))
"""Batches, rows and keys; heads are HEADS, of WIDTH, those of keys GROUPS."""
HEADS, GROUPS, WIDTH = 16, 16, 128
STATIC, DYNAMIC = "static", "dynamic"
CONTESTANTS = (OWN, STATIC, DYNAMIC)
WARM_SECONDS = 4.0
"""How long polytile may measure at a size before its calls are timed."""
FURTHEST = 4096
"""The largest difference of positions."""
GRACE = 30.0
"""Seconds beyond its share after which a process is ended."""


@dataclass(frozen=True)
class Case:
    """`score` and `mask` of flex_attention, None for none, of what `captured` makes for a batch and the more of rows and keys."""

    name: str
    score: Callable[..., Function] | None = None
    mask: Callable[..., Function] | None = None
    captured: Callable[[int, int], tuple[Tensor, ...]] = lambda batch, length: ()


def _window(*_: Tensor) -> Function:
    return lambda b, h, m, n: (m >= n) & (m - n < 256)


def _causal(*_: Tensor) -> Function:
    return lambda b, h, m, n: m >= n


def _prefix(*_: Tensor) -> Function:
    return lambda b, h, m, n: (m >= n) | (n < 200)


def _padding(lengths: Tensor) -> Function:
    return lambda b, h, m, n: (n < lengths[b]) & (m >= n)


def _documents(ids: Tensor) -> Function:
    return lambda b, h, m, n: (ids[m] == ids[n]) & (m >= n)


def _soft_cap(*_: Tensor) -> Function:
    return lambda score, b, h, m, n: 20 * torch.tanh(score / 20)


def _alibi(slopes: Tensor) -> Function:
    return lambda score, b, h, m, n: score + slopes[h] * (n - m)


def _relative(table: Tensor) -> Function:
    return lambda score, b, h, m, n: score + table[h, m - n + FURTHEST]


def _lengths(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.linspace(length // 2, length, batch, device="cuda").to(torch.int64),)


def _ids(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.arange(length, device="cuda") // 300,)


CASES = (
    Case("sliding window", mask=_window),
    Case("prefix", mask=_prefix),
    Case("causal and lengths", mask=_padding, captured=_lengths),
    Case("documents", mask=_documents, captured=_ids),
    Case("soft cap, causal", _soft_cap, _causal),
    Case("ALiBi", _alibi, captured=lambda b, n: (torch.rand(HEADS, device="cuda"),)),
    Case("ALiBi, causal", _alibi, lambda slopes: _causal(), lambda b, n: (torch.rand(HEADS, device="cuda"),)),
    Case("relative table", _relative, captured=lambda b, n: (torch.randn(HEADS, 2 * FURTHEST + 1, device="cuda"),)),
)


def triples(count: int) -> list[Size]:
    """Batches, rows and keys that differ. A batch of one would be a graph of its own: PyTorch's rule for sizes."""
    drawn = random.Random(0)
    return [(drawn.randint(2, 8), drawn.randint(33, 1500), drawn.randint(1501, 3000)) for _ in range(count)]


def operands(size: Size) -> tuple[Tensor, Tensor, Tensor]:
    batch, rows, keys = size
    torch.manual_seed(rows)
    shapes = (HEADS, rows), (GROUPS, keys), (GROUPS, keys)
    q, k, v = (torch.randn(batch, *each, WIDTH, device="cuda", dtype=torch.bfloat16) for each in shapes)
    return q, k, v


def captured_of(case: Case, size: Size) -> tuple[Tensor, ...]:
    return case.captured(size[0], max(size[1:]))


def functions(case: Case, captured: tuple[Tensor, ...]) -> tuple[Function | None, Function | None]:
    return (case.score(*captured) if case.score else None), (case.mask(*captured) if case.mask else None)


def attend(case: Case, q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> Tensor:
    """The case as a program that polytile compiles: flex_attention with its mask_mod alone."""
    score, mask = functions(case, captured)
    # `is not None`: torch 2.11 ends the graph where a function that it traces is asked for its truth
    block = create_block_mask(mask, None, None, q.shape[2], k.shape[2], device="cuda") if mask is not None else None
    return flex_attention(q, k, v, score_mod=score, block_mask=block, enable_gqa=HEADS != GROUPS)


def dense_scores(case: Case, scores: Tensor, captured: tuple[Tensor, ...]) -> Tensor:
    """The scores by the definition."""
    score, mask = functions(case, captured)
    places = [torch.arange(n, device="cuda").view(-1, *[1] * (3 - d)) for d, n in enumerate(scores.shape)]
    changed = score(scores, *places) if score else scores
    return torch.where(mask(*places), changed, -float("inf")) if mask else changed


def dense_bias(case: Case, q: Tensor, k: Tensor, captured: tuple[Tensor, ...]) -> Tensor | None:
    """What is added to the scores, in q's type; None where the case is more than an addition."""
    if case.score is _soft_cap:
        return None
    shape = (q.shape[0], q.shape[1] if case.score else 1, q.shape[2], k.shape[2])
    return dense_scores(case, torch.zeros(shape, device="cuda"), captured).to(q.dtype).expand(-1, q.shape[1], -1, -1)


def right(case: Case, q: Tensor, k: Tensor, v: Tensor, captured: tuple[Tensor, ...]) -> Tensor:
    """The result in float64, one batch at a time."""
    out = torch.empty(q.shape, dtype=torch.float64, device="cuda")
    for b in range(q.shape[0]):
        products = q[b : b + 1].double() @ k[b : b + 1].double().transpose(2, 3) * WIDTH**-0.5
        own = tuple(t[b : b + 1] if case.captured is _lengths else t for t in captured)
        out[b : b + 1] = torch.softmax(dense_scores(case, products, own), -1) @ v[b : b + 1].double()
    return out


def microseconds(contestants: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    return {name: round(timing.median * 1e6, 2) for name, timing in compare(contestants).timings.items()}


def largest(difference: Tensor) -> float:
    return float(difference.abs().max())


def polytiles(case: Case, stall: str = "tune") -> Callable[..., Tensor]:
    def program(q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> Tensor:
        return attend(case, q, k, v, *captured)

    return torch.compile(program, backend="polytile", dynamic=True, options={"persist": False, "stall": stall})


def own_row(case: Case, call: Callable[..., Tensor], size: Size) -> dict[str, Any]:
    """One case at one size, beside scaled_dot_product_attention."""
    q, k, v = operands(size)
    captured = captured_of(case, size)
    began = time.perf_counter()
    out = call(q, k, v, *captured)
    torch.cuda.synchronize()
    found: dict[str, Any] = {"case": case.name, "size": size, "first_s": round(time.perf_counter() - began, 3)}
    polytile.wait()
    while time.perf_counter() - began < WARM_SECONDS:
        out = call(q, k, v, *captured)
        torch.cuda.synchronize()
    wanted = right(case, q, k, v, captured)
    contestants: dict[str, Callable[[], Any]] = {OWN: lambda: call(q, k, v, *captured)}
    found["error"] = largest(out.double() - wanted)
    bias = dense_bias(case, q, k, captured)
    if bias is not None:
        found["dense_error"] = largest(scaled_dot_product_attention(q, k, v, attn_mask=bias).double() - wanted)
        contestants["dense"] = lambda: scaled_dot_product_attention(q, k, v, attn_mask=dense_bias(case, q, k, captured))
        contestants["made"] = lambda: scaled_dot_product_attention(q, k, v, attn_mask=bias)
    contestants["causal"] = lambda: scaled_dot_product_attention(q, k, v, is_causal=True)
    found["us"] = microseconds(contestants)
    text = str(polytile.explain(call, q, k, v, *captured))
    found["chosen"] = [line.strip() for line in text.splitlines() if "attention_" in line][:2]
    return found


def peers_row(case: Case, call: Callable[..., Tensor], size: Size) -> dict[str, Any]:
    """The same of a compiled flex_attention."""
    q, k, v = operands(size)
    captured = captured_of(case, size)
    score, mask = functions(case, captured)
    block = create_block_mask(mask, size[0] if captured else None, None, *size[1:], device="cuda") if mask else None

    def attention() -> Tensor:
        return call(q, k, v, score_mod=score, block_mask=block)

    began = time.perf_counter()
    out = attention()
    torch.cuda.synchronize()
    first = round(time.perf_counter() - began, 3)
    error = largest(out.double() - right(case, q, k, v, captured))
    return {"case": case.name, "size": size, "first_s": first, "error": error, "us": microseconds({"flex": attention})}


def all_sizes(case: Case, sizes: list[Size]) -> dict[str, Any]:
    """Calls of a new function at each of `sizes`, twice, with what is said of them at the top."""
    torch._dynamo.reset()
    call, before_all, rows = polytiles(case, "never"), graphs(), []
    for size in sizes:
        given = (*operands(size), *captured_of(case, size))
        took = []
        for _ in range(2):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before, began = torch.cuda.memory_allocated(), time.perf_counter()
            call(*given)
            torch.cuda.synchronize()
            took.append(round((time.perf_counter() - began) * 1e3, 3))
        most = torch.cuda.max_memory_allocated() - before
        rows.append({"size": size, "ms": took, "memory": most, "scores": size[0] * HEADS * size[1] * size[2]})
    return {"case": case.name, "sizes": rows, "graphs": graphs() - before_all}


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def contestant(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What {"who", "cases", "triples", "seconds"} finds, in a process of its own."""
    who, until = asked["who"], time.perf_counter() + asked["seconds"]
    rows: list[dict[str, Any]] = []
    every: list[dict[str, Any]] = []
    mode = "max-autotune-no-cudagraphs" if who == STATIC else None
    for case in (case for case in CASES if case.name in asked["cases"]):
        torch._dynamo.reset()
        call = polytiles(case) if who == OWN else torch.compile(flex_attention, dynamic=who == DYNAMIC, mode=mode)
        with torch.no_grad():
            for size in SIZES:
                if time.perf_counter() > until:
                    return {"rows": rows, "triples": every}
                try:
                    rows.append((own_row if who == OWN else peers_row)(case, call, size))
                except Exception as why:  # what a contestant cannot do is a row too
                    rows.append({"case": case.name, "size": size, "failed": f"{type(why).__name__}: {why}"[:300]})
            if who == OWN and asked["triples"]:
                every.append(all_sizes(case, triples(asked["triples"])))
    return {"rows": rows, "triples": every}


def report(found: Mapping[str, Any]) -> None:
    times = {
        who: {(row["case"], *row["size"]): row["us"] for row in one["rows"] if "us" in row}
        for who, one in found["contestants"].items()
    }
    own, others = times.get(OWN, {}), [who for who in times if who != OWN]
    ratios: dict[str, list[float]] = {who: [] for who in others}
    body = []
    for key, us in own.items():
        cells = []
        for who in others:
            flex = times.get(who, {}).get(key, {}).get("flex")
            ratios[who] += [flex / us[OWN]] if flex else []
            cells.append(f"{flex / us[OWN]:.2f}" if flex else "–")
        more = [f"{us[name] / us[OWN]:.2f}" if name in us else "–" for name in ("dense", "made")]
        body.append((key[0], "×".join(map(str, key[1:])), f"{us[OWN]:.0f}", *cells, *more))
    columns = ["case", "size", "polytile µs", *(f"{who} / polytile" for who in (*others, "dense", "made"))]
    show(Table.from_rows("scores and masks inside attention kernels", columns, body))
    for who, each in ratios.items():
        if each:
            print(f"{who} / polytile: {len(each)} cells, geomean {geomean(each):.2f}, least {min(each):.2f}")
    for one in found["contestants"].get(OWN, {}).get("triples", ()):
        later, first = ([row["ms"][k] for row in one["sizes"]] for k in (1, 0))
        share = max(row["memory"] / row["scores"] for row in one["sizes"])
        print(
            f"{one['case']}: {len(later)} sizes, {one['graphs']} graphs; first calls {statistics.median(first):.2f} ms (median), "
            f"second ones {statistics.median(later):.2f}; memory of a call at most {share:.2f} bytes a score"
        )


def main() -> None:
    parser = Command(__doc__, SUITE, report, gpu=True)
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="+", default=names, choices=names)
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--triples", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=240, help="for all contestants; each has an equal share")
    parser.add_argument("--beside", type=Path, help="a result file whose other cases are kept")
    given = parser.parsed()
    earlier = record.read(given.beside)["contestants"] if given.beside is not None else {}
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "contestants": dict(earlier)}
    share = given.seconds / len(given.contestants)
    for who in given.contestants:
        asked = {"who": who, "cases": given.cases, "triples": given.triples, "seconds": share}
        made = Processes().run(CONTESTANT, asked, share + GRACE)
        kept = earlier.get(who, {})
        found["contestants"][who] = made | {
            part: [row for row in kept.get(part, ()) if row["case"] not in given.cases] + made.get(part, [])
            for part in ("rows", "triples")
        }
        record.write(SUITE, found, given.out)
    report(found)


if __name__ == "__main__":
    main()
