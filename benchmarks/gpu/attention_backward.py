"""The derivative of attention: generated kernels beside the library's, each called by itself: times, errors against float64.

    python -m benchmarks.gpu.attention_backward --out DIR [--seconds 200] [--only specialised] [--without math efficient]

Each cell runs every candidate that says it is valid there, compares the gradients with the definition in float64, and times all
in turns by replayed graphs. Kernels of all cells compile ahead. What has been measured when the time is up is written to
DIR/gpu_attention_backward.json. `--show` prints the table of a result file.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.attention_kernels import CUDA, DTYPES, facts_of, in_turns
from polytile.attention.arguments import make_args, operands, reference
from polytile.attention.problem import AttentionProblem, Causal
from polytile.candidates.attention import candidates
from polytile.report import Table, show
from polytile.runtime import launcher
from polytile.runtime.cuda import device

SOURCES = ("library", "triton")
CHECKED = 1 << 26
"""Scores up to which a cell is compared with float64."""
Cell = dict[str, Any]
Names = Callable[[str], bool]


def cells() -> Iterator[Cell]:
    """Training shapes, telling ones first."""
    for (length, batch), head, causal in itertools.product(
        ((4096, 2), (8192, 1), (1024, 8), (2048, 4), (384, 32), (300, 8), (128, 16)), (128, 64), (True, False)
    ):
        yield cell("bf16", batch, 2048 // head, 2048 // head, length, head, causal)
    for (length, batch), causal in itertools.product(((1024, 4), (4096, 2), (300, 4), (2048, 4)), (True, False)):
        yield cell("bf16", batch, 8, 8, length, 256, causal)
    for length in (1024, 300):
        yield cell("bf16", 4, 32, 8, length, 128, True)
        yield cell("fp32", 4, 16, 16, length, 64, True)


def cell(dtype: str, batch: int, heads: int, shared: int, length: int, head: int, causal: bool) -> Cell:
    size = {"B": batch, "Hq": heads, "Hkv": shared, "Mq": length, "Mkv": length, "D": head, "Dv": head}
    return {"dtype": dtype, "causal": causal, "size": size}


def problem_of(cell: Cell) -> AttentionProblem:
    causal = Causal.BOTTOM_RIGHT if cell["causal"] else Causal.NO
    return AttentionProblem(DTYPES[cell["dtype"]], None, causal, backward=True)


def contestants(cell: Cell, names: Names) -> list[Any]:
    """The candidates that are valid, in the form of the cell's regime; the generated ones begin to compile."""
    problem, size = problem_of(cell), cell["size"]
    whole, known = {**problem.dense_strides(size), **size}, facts_of(problem, size)
    found = [each for each in candidates(problem, CUDA, SOURCES, None) if each.valid(whole) and names(each.name)]
    made = [each.specialise(known) for each in found]
    for each in made:
        each.prepare()
    return made


def measured(cell: Cell, made: list[Any], seconds: float) -> dict[str, Any]:
    """Times and errors of candidates."""
    problem, size = problem_of(cell), cell["size"]
    args = make_args(problem, size, CUDA)
    right = exact(problem, args) if size["B"] * size["Hq"] * size["Mq"] * size["Mkv"] <= CHECKED else None
    runs: dict[str, Callable[[int], Any]] = {}
    row: dict[str, Any] = {"errors": {}, "failed": {}, "predicted_us": {}}
    whole = {**problem.dense_strides(size), **size}
    for candidate in made:
        try:
            calls = repeated(candidate.entry(), args)
            for gradient in operands(problem, args).gradients:
                gradient.fill_(float("nan"))
            calls(1)
            torch.cuda.synchronize()
        except Exception as error:
            row["failed"][candidate.name] = str(error).splitlines()[0][:300]
            continue
        if right is not None:
            row["errors"][candidate.name] = [
                float((mine.double() - other).norm() / other.norm())
                for mine, other in zip(operands(problem, args).gradients, right, strict=True)
            ]
        runs[candidate.name] = calls
        row["predicted_us"][candidate.name] = candidate.cost(whole) * 1e6
    return {"cell": cell, "us": in_turns(runs, seconds), **row}


def exact(problem: AttentionProblem, args: list[Any]) -> list[torch.Tensor]:
    """The gradients by the definition, in float64."""
    wide = [each.double() if isinstance(each, torch.Tensor) else each for each in args]
    reference(problem)(*wide)
    return list(operands(problem, wide).gradients)


def repeated(entry: Any, args: list[Any]) -> Callable[[int], float]:
    return lambda count: launcher.time_burst(entry, args, count)


def title(cell: Cell) -> str:
    size = cell["size"]
    heads = f"{size['Hq']}" if size["Hq"] == size["Hkv"] else f"{size['Hq']}/{size['Hkv']}"
    return f"{cell['dtype']} B{size['B']} H{heads} S{size['Mq']} D{size['D']}{' causal' if cell['causal'] else ''}"


def flops(cell: Cell) -> float:
    """Of the five products that the backward pass needs."""
    size = cell["size"]
    return 10.0 * size["B"] * size["Hq"] * size["Mq"] * size["Mkv"] * size["D"] * (0.5 if cell["causal"] else 1.0)


def line(row: dict[str, Any]) -> str:
    """The best of ours beside the library's best, the largest error, what the prior would choose."""
    us = row["us"]
    if not best(row, True) or not best(row, False):
        return f"{title(row['cell']):34} nothing to compare: {row['failed']}"
    own, other = (min((name for name in us if is_ours(name) == ours), key=us.__getitem__) for ours in (True, False))
    wrong = {name: max(each) for name, each in row["errors"].items()}
    chosen = min(filter(is_ours, us), key=row["predicted_us"].__getitem__)
    errors = " and ".join(f"{wrong[name]:.1e}" if name in wrong else "not compared" for name in (own, other))
    compared = f"{us[own]:9.1f} us {own}, {us[other] / us[own]:.3f} of {other}, errors {errors}"
    return f"{title(row['cell']):34} {compared}, prior {us[chosen] / us[own]:.2f}, failed {len(row['failed'])}"


def main() -> None:
    parser = Command(__doc__, "gpu_attention_backward", lambda found: table(found["rows"]), out=True)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--only", default="", help="a word that names of generated kernels must hold")
    parser.add_argument("--without", nargs="+", default=[], help="words that no name may hold")
    parser.add_argument("--cells", type=int, default=None, help="how many cells")
    parser.add_argument("--heads", type=int, nargs="+", help="only cells with heads of these sizes")
    parser.add_argument("--add", type=Path, help="only add the cells of this result file to the one in --out; needs no GPU")
    options = parser.parsed()
    if options.add is not None:
        add(options.add, options.out / "gpu_attention_backward.json")
        return
    end, facts, rows = time.monotonic() + options.seconds, device.facts(0), list[dict[str, Any]]()

    def names(name: str) -> bool:
        return (not is_ours(name) or options.only in name) and not any(word in name for word in options.without)

    wanted = (each for each in cells() if not options.heads or each["size"]["D"] in options.heads)
    ahead = [(each, contestants(each, names)) for each in itertools.islice(wanted, options.cells)]
    for each, made in ahead:
        if time.monotonic() > end:
            print("time is up", flush=True)
            break
        rows.append(measured(each, made, 1.0))
        print(line(rows[-1]), flush=True)
        torch.cuda.empty_cache()
        record.write("gpu_attention_backward", {"device": facts.name, "torch": torch.__version__, "rows": rows}, options.out)
    if ratios := [best(row, False) / best(row, True) for row in rows if best(row, True) and best(row, False)]:
        print(f"library / ours {statistics.geometric_mean(ratios):.3f} (least {min(ratios):.3f}), {len(ratios)} cells")


def add(run: Path, file: Path) -> None:
    """Add a run's cells to those of a result file, in place of the same cells. The environment is then that of the run."""
    found, kept = (json.loads(path.read_text()) for path in (run, file))
    rows = {title(row["cell"]): row for row in (*kept["results"]["rows"], *found["results"]["rows"])}
    whole = {**found, "results": {**found["results"], "rows": list(rows.values())}}
    file.write_text(json.dumps(whole, indent=1) + "\n")


def table(rows: list[dict[str, Any]]) -> None:
    """A line for each cell: the library's fastest kernel, and the generated one that is fastest."""
    lines, rows = [], [row for row in rows if best(row, True) and best(row, False)]
    for row in rows:
        us = row["us"]
        own, other = (min((name for name in us if is_ours(name) == ours), key=us.__getitem__) for ours in (True, False))
        names = f"{other} {us[other]:.1f}", f"{own} {us[own]:.1f}"
        rate = flops(row["cell"]) / us[own] * 1e-6
        lines.append((title(row["cell"]), *names, f"{us[other] / us[own]:.2f}", f"{rate:.0f}"))
    columns = ["cell", "the library's, µs", "generated, µs", "library / generated", "TFLOP/s"]
    show(Table.from_rows("attention's backward kernels", columns, lines))
    for head in (64, 128, 256):
        ratios = [best(row, False) / best(row, True) for row in rows if row["cell"]["size"]["D"] == head]
        mean = statistics.geometric_mean(ratios)
        print(f"D{head}: {len(ratios)} cells, library / generated {mean:.2f}, least {min(ratios):.2f}")


def is_ours(name: str) -> bool:
    return name.startswith("backward")


def best(row: dict[str, Any], generated: bool) -> float:
    """The least time of generated kernels, or of the others; 0 where there are none."""
    return min((us for name, us in row["us"].items() if is_ours(name) == generated), default=0.0)


if __name__ == "__main__":
    main()
