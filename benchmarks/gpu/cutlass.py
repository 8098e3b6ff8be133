"""CUTLASS's products: right at every config and layout, and beside Triton's, cuBLASLt's and ATen's over a grid of sizes.

    python -m benchmarks.gpu.cutlass --seconds 300          measures, writes OUT/gpu_cutlass.json, prints its tables
    python -m benchmarks.gpu.cutlass --suite gpu_cutlass_epilogues      the same of int8 and fp8 with scales, bias and activation;
                                                                        gpu_cutlass_blocks, gpu_cutlass_batches, gpu_cutlass_long,
                                                                        gpu_cutlass_mixed (weights of 8 and 4 bits)
    python -m benchmarks.gpu.cutlass --show                 only prints the tables of the committed file

Needs CUTLASS's headers (`polytile[cutlass]`, or the option `cutlass`). It compiles each config once for each layout; `compile_s`
has the seconds of each. Errors are relative to the largest element of the float64 product; the library's stand beside. Times are
kernel µs of one process, in turns.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.candidates import Trials, Tried, kernel_us
from benchmarks.gpu.products import BATCH, LONG, Shape, at_weights
from benchmarks.timing import geomean
from polytile.candidates.candidate import Candidate
from polytile.dispatch.request import Request
from polytile.report import Table, show
from polytile.report.environment import accelerator
from polytile.runtime import launcher
from polytile.runtime.arguments import CUDA
from polytile.runtime.cuda import cutlass as toolkit
from polytile.runtime.dispatcher import Interface

CHECKED: tuple[Shape, ...] = ((3, 64, 64), (130, 272, 80), (257, 528, 1008), (1024, 4096, 512), (3000, 1008, 2048))
"""Sizes whose rows the copy engine takes, most of them no multiple of any block."""

SQUARES = tuple((n, n, n) for n in (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192))
ROWS = at_weights((16, 64, 128, 256, 512, 1024, 2048, 4096))
PUBLISHED = tuple(
    (m, n, k)
    for m, k in ((4096, 11008), (12288, 4096), (22016, 4096), (4096, 4096), (65536, 4096))
    for n in (16, 64, 256, 1024)
)
"""SPEC.md C4."""
BATCHES: tuple[Shape, ...] = ((1024, 1024, 64), (1024, 64, 1024), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 128))
"""Of 16 items each: heads of attention, and squares."""
SERVED = at_weights((1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192))
"""Tokens of a step by the weights of a language model."""
SCALED: tuple[Shape, ...] = ((4096, 7168, 16384), (1024, 4096, 4096), *at_weights((64, 256, 4096)))
"""The first is that of DeepGEMM's published rates."""
DECODED = tuple((m, n, k) for m in (16, 128, 1, 64, 1024, 32, 256, 4096) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336)))
"""Tokens of a step by three weights."""


@dataclass(frozen=True)
class Suite:
    """Products, each with its type, that are timed at `shapes`; tables have the times at `listed`. Of products `beside` them, the
    libraries' kernels alone are timed. `checked`: sizes whose results are checked."""

    products: tuple[tuple[Tried, str], ...]
    shapes: tuple[Shape, ...]
    listed: tuple[Shape, ...]
    beside: tuple[tuple[Tried, str], ...] = ()
    checked: tuple[Shape, ...] = CHECKED


SUITES = {
    "gpu_cutlass": Suite(
        (
            (Tried("llm", "linear", ("bf16",)), "bf16"), (Tried("square", "x @ y", ("bf16",)), "bf16"),
            (Tried("llm", "linear", ("tf32",)), "tf32"), (Tried("square", "x @ y", ("fp16",)), "fp16"),
        ),
        (*SQUARES, *ROWS, *PUBLISHED),
        PUBLISHED,
    ),
    "gpu_cutlass_epilogues": Suite(
        (
            (Tried("int8", "int8 × int8, scaled", ("int8",)), "int8"), (Tried("fp8", "fp8, scaled by rows", ("fp8",)), "fp8"),
            (Tried("epilogue", "bias + gelu", ("bf16",)), "bf16"),
        ),
        SERVED,
        SERVED,
    ),
    "gpu_cutlass_blocks": Suite(((Tried("fp8", "fp8, scaled by blocks", ("fp8",)), "fp8"),), SCALED, SCALED),
    "gpu_cutlass_batches": Suite(((Tried("batch", "batches", ("bf16",), batch=BATCH), "bf16"),), BATCHES, BATCHES),
    "gpu_cutlass_long": Suite(((Tried("long", "x @ y", ("bf16",)), "bf16"),), LONG, LONG),
    "gpu_cutlass_mixed": Suite(
        (
            (Tried("prologue", "int8 weights", ("bf16",)), "bf16"),
            (Tried("prologue", "int4 weights, groups of 128", ("bf16",)), "bf16"),
        ),
        DECODED,
        (),
        beside=((Tried("llm", "linear", ("bf16",)), "bf16"),),
        checked=((3, 64, 128), (130, 272, 256), (257, 528, 1152), (1024, 4096, 512), (3000, 1008, 2048)),
    ),
}  # fmt: skip
"""The last four: 8-bit floats with scales by blocks, batches, few blocks of long K, which are split, and weights of 8 and 4 bits
beside the library's product of 16-bit weights."""

ORIGINS = ("cublaslt", "triton", "library")
"""Sources beside CUTLASS."""
LIBRARIES = ("cublaslt", "library")


def checks(trials: Trials, shape: Shape) -> dict[str, Any]:
    """The largest error of each of CUTLASS's candidates, and of the library's where it takes the size."""
    request, spec = trials.request(shape), trials.kernel.spec
    tensors, ints = spec.tensors_of(request.args or ()), spec.ints_of(request.args or ())
    result = spec.roles.index("out")
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]
    assert spec.reference is not None
    spec.reference(*wide, *ints)
    exact, made = wide[result], tensors[result]
    wanted = [c.name for c in trials.kernel.candidates if c.origin == "cutlass"]
    wanted += ["aten"] if any(c.name == "aten" for c in request.candidates) else []
    errors: dict[str, Any] = {}
    for candidate in trials.named(request, wanted):
        made.fill_(float("nan"))
        try:
            entry: Any = candidate.entry()
            _dispatcher(entry, len(ints))(*tensors, *ints)
            torch.cuda.synchronize()
        except (polytile.PolytileError, RuntimeError) as error:  # a library refuses by the latter
            errors[candidate.name] = str(error)[:600]
            continue
        errors[candidate.name] = float((made.double() - exact).abs().max() / exact.abs().max())
    return {"shape": list(shape), "errors": errors}


def _dispatcher(entry: Any, ints: int) -> Any:
    return launcher.new_dispatcher(Interface("check", (0,) * ints, lambda key, args: entry, device=CUDA))


def resources(trials: Trials, shape: Shape) -> dict[str, Any]:
    """Registers, spilled bytes and seconds of compiling each of CUTLASS's kernels."""
    request = trials.request(shape)
    found = {}
    for candidate in trials.named(request, [c.name for c in trials.kernel.candidates if c.origin == "cutlass"]):
        taken = candidate.resources
        found[candidate.name] = [taken.registers, taken.spilled_bytes, candidate.compile_seconds] if taken else None
    return found


def times(trials: Trials, shape: Shape, origins: Sequence[str] = ()) -> dict[str, Any]:
    """Kernel µs of all candidates of CUTLASS's and of the libraries, and of the eight of Triton's that are predicted best; or of
    all candidates of these origins."""
    request = trials.request(shape)
    triton = sorted((c for c in request.candidates if c.origin == "triton"), key=lambda c: c.cost(request.sizes))[:8]
    chosen = [*(c for c in request.candidates if c.origin != "triton"), *triton]
    chosen = [c for c in request.candidates if c.origin in origins] if origins else chosen
    us = _timed(trials, request, chosen)
    predicted = {c.name: c.cost(request.sizes) * 1e6 for c in chosen}
    origin = {c.name: c.origin for c in chosen}
    best = {o: min((us[name] for name in us if origin[name] == o), default=None) for o in sorted(set(origin.values()))}
    return {"shape": list(shape), "best": best, "us": us, "predicted_us": predicted}


def _timed(trials: Trials, request: Request, chosen: Sequence[Candidate]) -> dict[str, float]:
    for candidate in chosen:
        candidate.prepare()
    return kernel_us(request, chosen)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """CUTLASS's best against each other origin's best (above 1: CUTLASS is faster), and the prior's first against CUTLASS's
    best."""
    found: dict[str, Any] = {}
    for origin in ORIGINS:
        both = [row["best"] for row in rows if row["best"].get(origin) and row["best"].get("cutlass")]
        ratios = [best[origin] / best["cutlass"] for best in both]
        if ratios:
            found[f"{origin} / cutlass"] = [
                round(geomean(ratios), 3),
                round(min(ratios), 3),
                round(max(ratios), 3),
                len(ratios),
            ]
    regrets = []
    for row in rows:
        own = [name for name in row["us"] if name.startswith("cutlass ")]
        if own:
            first = min(own, key=lambda name: row["predicted_us"][name])
            regrets.append(row["us"][first] / min(row["us"][name] for name in own))
    found["first ranked / best of cutlass"] = round(geomean(regrets), 3) if regrets else None
    return found


def measured(suite: Suite, seconds: float, partly: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """All parts, as far as `seconds` allow. `partly` gets what there is after each shape: a run that is cut off loses little."""
    began = time.monotonic()
    result: dict[str, Any] = {"device": accelerator(), "tools": toolkit.find().identity, "parts": []}
    with polytile.options.override(cutlass_configs=99):
        made: list[tuple[Trials, dict[str, Any]]] = [
            (Trials(dtype, tried), {"name": tried.name, "dtype": dtype, "times": []}) for tried, dtype in suite.products
        ]
        for trials, part in made:
            check_all(trials, part, suite.checked)
            result["parts"].append(part)
            partly(result)
        libraries = [Trials(dtype, tried) for tried, dtype in suite.beside]
        result |= {"beside": []} if libraries else {}
        for shape in suite.shapes:
            if time.monotonic() - began > seconds:
                break
            for trials, part in made:
                part["times"].append(times(trials, shape))
                print(
                    f"{part['name']} {part['dtype']} {shape}: {part['times'][-1]['best']}", file=sys.stderr, flush=True
                )
            for trials in libraries:
                result["beside"].append(times(trials, shape, LIBRARIES))
            partly(result)
        for _, part in made:
            part["summary"] = summary(part["times"])
    return result


def against_16_bits(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """By the rows of A, geomeans over the weights: the library's time with 16-bit weights over that of each source, and of the
    best, with weights of fewer bits."""
    plain = {tuple(row["shape"]): min(row["us"].values()) for row in result["beside"]}
    rows = []
    for part in result["parts"]:
        for m in sorted({shape[0] for shape in plain}):
            at = [row for row in part["times"] if row["shape"][0] == m and tuple(row["shape"]) in plain]
            ratios = []
            for origin in ("cutlass", "triton", "library"):
                known = [(plain[tuple(row["shape"])], row["best"].get(origin)) for row in at]
                faster = [library / us for library, us in known if us]
                ratios.append(f"{geomean(faster):.2f}" if faster else "–")
            best = [plain[tuple(row["shape"])] / min(row["us"].values()) for row in at]
            rows.append((part["name"], str(m), *ratios, f"{geomean(best):.2f}", f"{min(best):.2f}"))
    return rows


def report(result: dict[str, Any], suite: Suite) -> None:
    """Prints the tables."""
    checked, beside, listed = [], [], []
    for part in result["parts"]:
        what = (part["name"], part["dtype"])
        errors = [e for row in part["checks"] for e in row["errors"].values()]
        taken = [each for each in part["resources"].values() if each and each[2]]
        seconds = f"{statistics.median(each[2] for each in taken):.1f}" if taken else "–"
        largest = max((e for e in errors if not isinstance(e, str)), default=math.nan)
        checked.append((*what, len(errors), f"{largest:.1e}", sum(isinstance(e, str) for e in errors), seconds))
        for versus in ORIGINS:
            if found := part["summary"].get(f"{versus} / cutlass"):
                beside.append((*what, versus, *(f"{number:.2f}" for number in found[:3]), found[3]))
        for row in part["times"]:
            if tuple(row["shape"]) in suite.listed:
                m, n, k = row["shape"]
                us = [row["best"].get(origin) for origin in ("cutlass", *ORIGINS)]
                listed.append(
                    (part["name"], part["dtype"], f"{m}×{n}×{k}", *(f"{each:.1f}" if each else "–" for each in us))
                )
    first = [
        (part["name"], part["dtype"], part["summary"]["first ranked / best of cutlass"]) for part in result["parts"]
    ]
    columns = ["function", "type", "checks", "largest error", "refused", "compile s, median"]
    show(
        Table.from_rows(f"CUTLASS's products against float64, {result['device']}, {result['tools']}", columns, checked)
    )
    columns = ["function", "type", "other", "geomean", "least", "most", "sizes"]
    show(
        Table.from_rows(
            "kernel time of the other's best over that of CUTLASS's best: above 1, CUTLASS is faster", columns, beside
        )
    )
    columns = ["function", "type", "time of the first ranked over the best"]
    show(Table.from_rows("the prior among CUTLASS's configs", columns, first))
    if result.get("beside"):
        columns = ["function", "M", "cutlass", "triton", "weights converted first", "best", "least"]
        title = "the library's time with 16-bit weights over that with weights of fewer bits: above 1, the latter is faster"
        show(Table.from_rows(title, columns, against_16_bits(result)))
    columns = ["function", "type", "M×N×K", "cutlass", *ORIGINS]
    where = " at the published sizes (SPEC.md C4)" if suite.listed == PUBLISHED else ""
    show(Table.from_rows(f"kernel µs{where}, each source's best", columns, listed))


def main() -> None:
    parser = Command(__doc__, out=True)
    parser.add_argument("--show", action="store_true", help="only print the tables of the suite's file")
    parser.add_argument("--suite", choices=SUITES, default="gpu_cutlass", help="what is measured, and the name of its file")
    parser.add_argument("--seconds", type=float, default=300.0, help="when no new size is begun")
    given = parser.parsed()
    suite = SUITES[given.suite]
    if given.show:
        report(record.read(given.suite, given.out), suite)
        return
    result = measured(suite, given.seconds, lambda found: record.write(given.suite, found, given.out))
    record.write(given.suite, result, given.out)
    report(result, suite)


def check_all(trials: Trials, part: dict[str, Any], checked: Sequence[Shape]) -> None:
    """Errors at every one of these sizes, then what the kernels take."""
    own = [c.name for c in trials.kernel.candidates if c.origin == "cutlass"]
    for candidate in trials.named(trials.request(checked[1]), own):
        candidate.prepare()  # all at once
    part["checks"] = [checks(trials, shape) for shape in checked]
    for row in part["checks"]:
        wrong = {name: error for name, error in row["errors"].items() if isinstance(error, str) or not error < 0.02}
        print(
            f"{part['name']} {part['dtype']} {row['shape']}: {len(row['errors'])} checked, wrong: {wrong}",
            file=sys.stderr,
            flush=True,
        )
    part["resources"] = resources(trials, checked[1])


if __name__ == "__main__":
    main()
