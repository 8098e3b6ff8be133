"""`python -m benchmarks.gpu.grouped [--parts right products model] [--rows 16384] [--shapes 1x16]`: experts on a GPU.

right     every config of a grouped product against float64, at groups of all kinds
products  one dynamic compile beside torch._grouped_mm and a loop of torch.mm whose sizes the host knows, and the times of all
          candidates; experts of Mixtral and of Qwen3-30B-A3B, by rows that were routed to them evenly, at random or all to one,
          and the products of their weights' gradients
model     two layers of Mixtral-8x7B at several shapes, eager and the peer's dynamic compile beside

Times are kernel µs of one process, in turns. Results go to OUT/gpu_grouped.json as far as they have come; the parts that are not
asked for stay there as they are, and so do other rows and shapes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.experts import Decoder, Sizes
from benchmarks.gpu.candidates import kernel_us
from benchmarks.gpu.product_cell import first_call
from benchmarks.gpu.replay import kernel_times, wall_times
from benchmarks.matmul import size_of
from benchmarks.timing import geomean
from polytile.compiler.programs import compiled_programs
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.request import Request
from polytile.report import Table, show
from polytile.report.environment import accelerator
from polytile.runtime import launcher
from polytile.runtime.arguments import CUDA
from polytile.runtime.dispatcher import Interface

BF16, DEVICE = torch.bfloat16, "cuda"
EXPERTS = {
    "mixtral up": (8, 28672, 4096), "mixtral down": (8, 4096, 14336), "qwen up": (128, 1536, 2048), "qwen down": (128, 2048, 768),
}  # fmt: skip
"""(experts, n, k)."""
ROWS = (2, 32, 256, 1024, 4096, 16384)
ROUTED = ("random", "even", "one")
CHECKED = ((200, 5, 144, 80, "random"), (1000, 130, 272, 208, "random"), (700, 8, 528, 1024, "one"))
"""(rows, groups, n, k, routed)."""
SHAPES = ((1, 1), (1, 16), (1, 128), (1, 512), (4, 300), (8, 512))
PARTS = ("right", "products", "model")


def ends_of(kind: str, rows: int, groups: int) -> Tensor:
    """Where groups end that `rows` rows are routed to in this way."""
    if kind == "one":
        counts = torch.zeros(groups, dtype=torch.int64)
        counts[groups // 2] = rows
    elif kind == "even":
        counts = torch.full((groups,), rows // groups)
        counts[: rows % groups] += 1
    else:
        counts = torch.bincount(torch.multinomial(torch.randn(groups).softmax(0), rows, replacement=True), minlength=groups)
    return counts.cumsum(0).int().to(DEVICE)


def by_rows(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return F.grouped_mm(x, w.transpose(1, 2), offs=ends)


def by_k(x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    return F.grouped_mm(x.t(), y, offs=ends)


def looped(a: Tensor, b: Tensor, ends: list[int]) -> None:
    """A product a group, straight into the result: `a` and `b` as `by_rows`, or as `by_k`, takes them."""
    first = 0
    if b.dim() == 3:
        out = a.new_empty(len(a), b.shape[1])
        for group, end in enumerate(ends):
            if end > first:
                torch.mm(a[first:end], b[group].t(), out=out[first:end])
            first = end
    else:
        result = a.new_empty(len(ends), a.shape[1], b.shape[1])
        for group, end in enumerate(ends):
            torch.mm(a[first:end].t(), b[first:end], out=result[group])
            first = end


def arguments(form: str, rows: int, groups: int, n: int, k: int, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    ends = ends_of(kind, rows, groups)
    x = torch.randn(rows, k, device=DEVICE, dtype=BF16)
    if form == "rows":
        return x, torch.randn(groups, n, k, device=DEVICE, dtype=BF16) * k**-0.5, ends
    return x, torch.randn(rows, n, device=DEVICE, dtype=BF16), ends


def request_of(kernel: MultiKernel, args: list[Any]) -> Request:
    return kernel.request(kernel.dispatcher.key_of(*args), kernel.spec.ints_of(args), tuple(args))


def flat(form: str, x: Tensor, y: Tensor, ends: Tensor) -> list[Any]:
    """The arguments of the kernel: tensors, then integers."""
    if form == "rows":
        a, b, c = x[None], y.transpose(1, 2), x.new_full((1, len(x), y.shape[1]), float("nan"))
    else:
        a, b, c = x.t()[None], y[None], x.new_full((len(ends), x.shape[1], y.shape[1]), float("nan"))
    strides = [0 if len(tensor) == 1 else tensor.stride(0) for tensor in (a, b, c)]
    ints = [n for each, first in zip((a, b, c), strides, strict=True) for n in (first, *each.stride()[1:])]
    return [a, b, ends, c, len(ends), a.shape[1], b.shape[2], a.shape[2], *ints]


def compiled(form: str, options: dict[str, Any]) -> tuple[Callable[..., Tensor], MultiKernel]:
    """One dynamic compile of a form, and its kernel."""
    torch._dynamo.reset()
    run = torch.compile(by_rows if form == "rows" else by_k, backend="polytile", dynamic=True, options=options)
    run(*arguments(form, 48, 3, 80, 112, "even"))
    (kernel,) = compiled_programs()[-1].multikernels
    return run, kernel


def exact(form: str, x: Tensor, y: Tensor, ends: Tensor) -> Tensor:
    """The float64 product; rows behind the last group 0."""
    numbers, first = ends.tolist(), 0
    out = x.new_zeros((len(x), y.shape[1]) if form == "rows" else (len(numbers), x.shape[1], y.shape[1]), dtype=torch.float64)
    for group, end in enumerate(numbers):
        if form == "rows":
            out[first:end] = x[first:end].double() @ y[group].double().t()
        else:
            out[group] = x[first:end].double().t() @ y[first:end].double()
        first = end
    return out


def right(result: dict[str, Any], deadline: float) -> None:
    """The largest error of every candidate, relative to the largest element; what did not run, with its reason."""
    for form in ("rows", "k"):
        _, kernel = compiled(form, {"tune": "off", "persist": False})
        for rows, groups, n, k, kind in CHECKED:
            x, y, ends = arguments(form, rows, groups, n, k, kind)
            if kind == "random":
                ends = (ends - 7).clamp(min=0)  # rows behind the last group
            wanted, args = exact(form, x, y, ends), flat(form, x, y, ends)
            tensors, ints = kernel.spec.tensors_of(args), kernel.spec.ints_of(args)
            facts = kernel.spec.keys.facts_for_code(ints, [tensor.data_ptr() for tensor in tensors])
            errors: dict[str, Any] = {}
            forms = [candidate.specialise(facts) for candidate in kernel.candidates]
            for candidate in forms:
                candidate.prepare()
            for candidate in forms:
                args[3].fill_(float("nan"))
                try:
                    entry: Any = candidate.entry()
                    make = lambda key, args, entry=entry: entry  # noqa: E731
                    launcher.new_dispatcher(Interface("check", (0,) * len(ints), make, device=CUDA))(*args)
                    torch.cuda.synchronize()
                    off = (args[3].double().view(wanted.shape) - wanted).abs().max() / wanted.abs().max()
                    errors[candidate.name] = float(off)
                except polytile.PolytileError as error:
                    errors[candidate.name] = str(error)[:300]
            worst = max((error for error in errors.values() if isinstance(error, float)), default=None)
            print(f"{form} {rows} rows, {groups} groups: {len(errors)} candidates, largest error {worst}", flush=True)
            result["right"].append({"form": form, "rows": rows, "groups": groups, "n": n, "k": k, "errors": errors})
            if time.monotonic() > deadline:
                return


def cells() -> Iterator[tuple[str, str, int, str]]:
    """(form, experts, rows, routed), the most telling first."""
    for kind in ROUTED:
        for rows in ROWS:
            for name in EXPERTS:
                if kind == "random" or rows in (256, 4096):
                    yield "rows", name, rows, kind
    for rows in (256, 4096, 16384):
        for name in EXPERTS:
            yield "k", name, rows, "random"


def about(cell: dict[str, Any]) -> tuple[str, str, int, str]:
    return cell["form"], cell["experts"], cell["rows"], cell["routed"]


def product_cell(made: dict[str, Any], form: str, name: str, rows: int, kind: str) -> dict[str, Any]:
    if form not in made:
        made[form] = compiled(form, {"persist": False})
    run, kernel = made[form]
    groups, n, k = EXPERTS[name]
    args = arguments(form, rows, groups, n, k, kind)
    own = by_rows if form == "rows" else by_k
    got, took = first_call(run, args)
    polytile.wait()
    wanted = own(*args)
    error = float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())
    host = args[2].tolist()
    times = kernel_times({
        "polytile": lambda: run(*args), "torch._grouped_mm": lambda: own(*args), "loop": lambda: looped(*args[:2], host),
    })  # fmt: skip
    request = request_of(kernel, flat(form, *args))
    chosen = list(request.candidates)
    for candidate in chosen:
        candidate.prepare()
    us, predicted = kernel_us(request, chosen), {c.name: c.cost(request.sizes) * 1e6 for c in chosen}
    cell = {"form": form, "experts": name, "rows": rows, "routed": kind, "us": times, "error": error, "first_call_s": took}
    return {**cell, "candidates_us": us, "predicted_us": predicted}


def products(result: dict[str, Any], deadline: float, counts: Sequence[int] = ROWS) -> None:
    made: dict[str, Any] = {}
    for form, name, rows, kind in cells():
        if rows not in counts:
            continue
        if time.monotonic() > deadline:
            return
        result["products"] = [cell for cell in result["products"] if about(cell) != (form, name, rows, kind)]
        result["products"].append(product_cell(made, form, name, rows, kind))
        print(result["products"][-1]["us"], form, name, rows, kind, flush=True)


def model(result: dict[str, Any], deadline: float, shapes: Sequence[tuple[int, ...]] = SHAPES) -> None:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        decoder = Decoder(Sizes()).to(BF16).eval()
    calls: dict[str, Callable[[Tensor], Tensor]] = {"eager": decoder}
    torch._dynamo.reset()
    calls["polytile"] = torch.compile(decoder, backend="polytile", dynamic=True, options={"persist": False})
    calls["peer"] = torch.compile(Decoder.forward.__get__(decoder), dynamic=True)
    with torch.inference_mode():
        for shape in shapes:
            if time.monotonic() > deadline:
                return
            tokens = torch.randint(0, 32000, shape, device=DEVICE)
            wanted, took, off = decoder(tokens).float(), {}, {}
            for name in ("polytile", "peer"):
                _, took[name] = first_call(calls[name], (tokens,))
                polytile.wait()
                off[name] = float((calls[name](tokens).float() - wanted).abs().mean() / wanted.abs().mean())
            bound = {name: functools.partial(call, tokens) for name, call in calls.items()}
            result["model"].append({
                "shape": list(shape), "us": kernel_times(bound), "wall_us": wall_times(bound), "off": off, "first_call_s": took,
            })  # fmt: skip
            print(result["model"][-1], flush=True)


def report(result: dict[str, Any]) -> None:
    rows, ratios, order = [], [], {cell: place for place, cell in enumerate(cells())}
    for cell in sorted(result["products"], key=lambda cell: order[about(cell)]):
        us = cell["us"]
        if {"polytile", "torch._grouped_mm"} <= us.keys():
            ratios.append(us["torch._grouped_mm"] / us["polytile"])
            shown = [f"{us[name]:.1f}" if name in us else "" for name in ("polytile", "torch._grouped_mm", "loop")]
            rows.append((cell["form"], cell["experts"], cell["rows"], cell["routed"], *shown, f"{ratios[-1]:.2f}"))
    columns = ("form", "experts", "rows", "routed", "polytile", "torch._grouped_mm", "loop", "library / polytile")
    show(Table.from_rows("grouped products, kernel µs", columns, rows))
    if ratios:
        print(f"torch._grouped_mm / polytile: geomean {geomean(ratios):.3f}, least {min(ratios):.3f} of {len(ratios)}")
    body = []
    for cell in sorted(result["model"], key=lambda cell: (cell["shape"][0] * cell["shape"][1], cell["shape"])):
        us, wall, shape = cell["us"], cell["wall_us"], "×".join(map(str, cell["shape"]))
        times = [f"{each[name] / 1e3:.2f}" for each in (us, wall) for name in ("eager", "peer", "polytile")]
        body.append((shape, *times, f"{us['peer'] / us['polytile']:.2f}", f"{wall['peer'] / wall['polytile']:.2f}"))
    if body:
        timed = (f"{kind}, {name}" for kind in ("kernels", "wall") for name in ("eager", "peer", "polytile"))
        title = "two layers of Mixtral-8x7B in bfloat16, inference: ms a call"
        show(Table.from_rows(title, ("shape", *timed, "peer / polytile, kernels", "wall"), body))


def main() -> None:
    parser = Command(__doc__, "gpu_grouped", report, gpu=True)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, help="of products")
    parser.add_argument("--shapes", nargs="+", type=size_of, default=SHAPES, help="of the model: batch and length, such as 4x300")
    parser.add_argument("--seconds", type=float, default=480)
    given = parser.parsed()
    torch._dynamo.config.recompile_limit = 64
    began, file = time.monotonic(), given.out / "gpu_grouped.json"
    before: dict[str, Any] = record.read(file) if file.exists() else {}
    result = {"device": accelerator()} | {part: before.get(part, []) for part in PARTS}
    if "right" in given.parts:
        result["right"] = []
    if "model" in given.parts:
        result["model"] = [row for row in before.get("model", []) if tuple(row["shape"]) not in given.shapes]
    measures: dict[str, Callable[..., None]] = {
        "right": right, "products": functools.partial(products, counts=given.rows),
        "model": functools.partial(model, shapes=given.shapes),
    }  # fmt: skip
    for place, part in enumerate(given.parts):
        left = began + given.seconds - time.monotonic()
        deadline = time.monotonic() + left / (len(given.parts) - place)
        try:
            measures[part](result, deadline)
        finally:
            record.write("gpu_grouped", result, given.out)
    report(result)


if __name__ == "__main__":
    main()
