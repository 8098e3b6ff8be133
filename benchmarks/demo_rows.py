"""Demo, part three: softmax and RMSNorm from many short rows to two very long ones, one dynamic compile each."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import polytile
from benchmarks.compilers import Account, compiled, decisions, forget
from benchmarks.environment import DEVICE
from benchmarks.timing import Comparison, compare, disturbance, geomean
from polytile.report import Column, Table
from polytile.report.tables import micros, ratio

SHAPES = (
    (128, 64),
    (1024, 64),
    (8192, 64),
    (65536, 64),
    (512, 300),
    (128, 1024),
    (2048, 1024),
    (16, 4096),
    (512, 4096),
    (256, 16384),
    (8, 131072),
    (2, 1048576),
)
TOLERANCE = 2e-6


def softmax(x: Tensor) -> Tensor:
    """x: [rows, columns]; each row of the result sums to one."""
    return torch.softmax(x, -1)


def rms_norm(x: Tensor) -> Tensor:
    """x: [rows, columns], each row divided by the root of its mean square; written out, as models have it."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"softmax": softmax, "RMSNorm": rms_norm}


def checked(name: str, function: Callable[[Tensor], Tensor], compiled_function: Callable[..., Any], x: Tensor) -> float:
    """Largest difference from float64, relative to the largest value; raises AssertionError where it is too large."""
    exact = function(x.double())
    off = float((compiled_function(x).double() - exact).abs().max() / exact.abs().max())
    assert off <= TOLERANCE, f"{name} of {tuple(x.shape)} is {off:.1e} off float64; {TOLERANCE:.0e} is allowed."
    return off


def run_function(name: str, backend: str, seconds: float) -> dict[str, Any]:
    """Checks and times one function at every shape."""
    function = FUNCTIONS[name]
    forget()
    account = Account(backend)
    made = compiled(function, backend)
    data = {shape: torch.randn(shape, device=DEVICE) for shape in SHAPES}
    errors, first_calls = {}, []
    for shape, x in data.items():
        started = time.perf_counter()
        made(x)
        first_calls.append(time.perf_counter() - started)
        errors[shape] = checked(name, function, made, x)
    comparisons: dict[tuple[int, int], Comparison] = {}
    for shape, x in data.items():
        calls = {"eager": functools.partial(function, x), "compiled": functools.partial(made, x)}
        comparisons[shape] = compare(calls, seconds=seconds)
    chosen = []
    if backend == "polytile":
        chosen = decisions(polytile.explain(made, data[SHAPES[0]]))
    return {
        "comparisons": comparisons,
        "errors": errors,
        "first_call_seconds": first_calls[0],
        "new_shape_seconds": sum(first_calls[1:]),
        "account": account.closed(),
        "decisions": chosen,
    }


def speed_table(backend: str, results: dict[str, dict[str, Any]]) -> Table:
    """One row a shape: eager, compiled and their ratio for each function."""
    columns: list[Column | str] = ["rows × columns"]
    for name in results:
        columns += [Column(f"{name}: eager µs", micros), Column(f"{backend} µs", micros), Column("ratio", ratio)]
    rows: list[tuple[Any, ...]] = []
    means: dict[str, list[float]] = {name: [] for name in results}
    for shape in SHAPES:
        row: list[Any] = [f"{shape[0]} × {shape[1]}"]
        for name, result in results.items():
            comparison = result["comparisons"][shape]
            speedup = comparison.ratio("compiled", "eager")
            means[name].append(speedup)
            row += [comparison["eager"].low, comparison["compiled"].low, speedup]
        rows.append(tuple(row))
    rows.append(("geomean", *(value for name in results for value in (None, None, geomean(means[name])))))
    notes = [disturbance(one for result in results.values() for one in result["comparisons"].values())]
    for name, result in results.items():
        graphs = result["account"]["graphs_compiled"]
        compiled_once = f"{graphs} graph{'s' if graphs != 1 else ''}, " if graphs is not None else ""
        notes.append(
            f"{name}: {compiled_once}first call {result['first_call_seconds']:.2f} s, first calls at the other "
            f"{len(SHAPES) - 1} shapes {result['new_shape_seconds']:.2f} s together, "
            f"error at most {max(result['errors'].values()):.1e}."
        )
    return Table.from_rows("Rows, float32: one dynamic compile for each function", columns, rows, notes)


def variant_table(results: dict[str, dict[str, Any]]) -> Table:
    """Every decision: at which sizes which variant runs, and on what grounds."""
    body = [
        (name, row["sizes"], row["candidate"], row["provenance"], row["seconds"])
        for name, result in results.items()
        for row in result["decisions"]
    ]
    columns: list[Column | str] = ["function", "sizes", "candidate", "chosen by", Column("µs when chosen", micros)]
    return Table.from_rows("Rows: which variant runs where", columns, body, folded=True)


def run(backend: str, quick: bool = False) -> tuple[list[Table], dict[str, Any]]:
    """Tables to show and results to keep."""
    results = {name: run_function(name, backend, 0.05 if quick else 0.5) for name in FUNCTIONS}
    tables = [speed_table(backend, results)]
    if any(result["decisions"] for result in results.values()):
        tables.append(variant_table(results))
    kept = {
        name: {
            "first_call_seconds": result["first_call_seconds"],
            "new_shape_seconds": result["new_shape_seconds"],
            "counters": result["account"].as_json(),
            "decisions": result["decisions"],
            "shapes": {
                f"{rows}x{columns}": {"error": result["errors"][rows, columns], **comparison.as_json()}
                for (rows, columns), comparison in result["comparisons"].items()
            },
        }
        for name, result in results.items()
    }
    return tables, kept
