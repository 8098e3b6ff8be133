"""Products compiled for one hint and run at other sizes.

Part `matrix`: `x @ y`, square, compiled with one hint or with all three, at four sizes, beside eager and, if asked for, the peer
with one hint each and with its own hints. Each row has a process and caches of its own: nothing that one hint has compiled or
measured is known to the next.

Part `pairs`: the same for 64 hints and 64 sizes, 64 apart, from kernel times: the candidate that wins at each hint is timed at
every size, beside the one that a dynamic compile of polytile sends that size to.
"""

from __future__ import annotations

import functools
import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import polytile
from benchmarks.compilers import copied
from benchmarks.contestants import LATE, OWN, Processes, tune_in_turn, turn
from benchmarks.gpu import products
from benchmarks.gpu.candidates import Trials, generated
from benchmarks.gpu.grid import Cells, new_decisions
from benchmarks.gpu.product_cell import switch
from benchmarks.gpu.products import DTYPES
from benchmarks.gpu.replay import kernel_times
from benchmarks.timing import geomean
from polytile.dispatch.links.prior import shortlist
from polytile.report import Table, show

HINTS, RUN_AT = (64, 256, 4096), (64, 256, 1024, 4096)
STEP, LARGEST = 64, 4096
SIZES = range(STEP, LARGEST + 1, STEP)
MATRIX, AT_HINT, PAIRS = "matrix: ", "pairs: at the hint", "pairs: x @ y"
WITHIN = 1.02
PEER = "peer"
AT_A_TIME, GRACE = 4, 60.0
"""Rows of the matrix that compile side by side, and seconds that they may take beyond the deadline."""
ASKED = 0.0504
"""The average speedup over a single hint that was published for this experiment."""

Call = Callable[..., torch.Tensor]


def square(n: int, dtype: str) -> tuple[Any, ...]:
    return products.cases(STEP)[0].make(n, n, n, DTYPES[dtype])


# the matrix --------------------------------------------------------------------------------------------------------------


def contestants(peer: bool) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Rows of the matrix by name: who compiles, and for which hints."""
    return {
        f"{who}, {'hint' if len(hints) == 1 else 'hints'} {' '.join(map(str, hints))}": (who, hints)
        for who in ((OWN, PEER) if peer else (OWN,))
        for hints in (*[(hint,) for hint in HINTS], HINTS)
    }


def matrix(dtype: str, deadline: float, cells: Cells, peer: bool) -> None:
    """The rows of one type that are missing, in several processes at a time, which compile side by side and measure in turns."""
    missing = {
        name: given
        for name, given in contestants(peer).items()
        if not all(cells.has(MATRIX + name, dtype, (n, n, n)) for n in RUN_AT)
    }
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(AT_A_TIME) as pool:

        def row(name: str) -> tuple[str, dict[str, Any]]:
            left = deadline - time.monotonic()
            if left <= 0:
                return name, {"error": LATE}
            who, hints = missing[name]
            given = {"name": name, "who": who, "hints": hints, "dtype": dtype, "lock": str(Path(directory) / "lock")}
            compilers = max(1, (os.cpu_count() or 1) // AT_A_TIME)
            return name, Processes(compilers).run("benchmarks.gpu.hints:measured", given, left + GRACE)

        for name, found in pool.map(row, missing):
            if "error" in found:
                print(f"matrix, {name}, {dtype}: {found['error'][-400:]}", flush=True)
            for n in RUN_AT if "error" not in found else ():
                us, chosen = found["us"][str(n)], found["chosen"][str(n)]
                print(f"matrix, {dtype} at {n}: " + ", ".join(f"{who} {t:.1f}" for who, t in us.items()), flush=True)
                at = {"function": MATRIX + name, "part": "matrix", "dtype": dtype, "shape": [n, n, n]}
                cells.add({**at, "us": us, "chosen": chosen, "first_call_s": found["first_call_s"]})


def measured(given: Mapping[str, Any]) -> dict[str, Any]:
    """One row, in the process of its contestant: called at every size first, then timed size by size, in turns with eager."""
    lock, dtype, name = Path(given["lock"]), given["dtype"], given["name"]
    switch(dtype)
    torch._dynamo.config.recompile_limit = 256
    tune_in_turn(given["who"], lock)
    call = (_ours if given["who"] == OWN else _theirs)(given["hints"])
    known: set[str] = set()
    chosen, began = {}, time.perf_counter()
    call(*square(given["hints"][0], dtype))  # the size that the peer takes its single hint from
    took = round(time.perf_counter() - began, 2)
    for n in RUN_AT:
        call(*square(n, dtype))
        chosen[n] = "; ".join(new_decisions(known))
    us = {}
    with turn(lock):
        for n in RUN_AT:
            args = square(n, dtype)
            timed: dict[str, Call] = {"eager": torch.mm, name: call}
            us[n] = kernel_times({who: functools.partial(each, *args) for who, each in timed.items()})
    return {"us": us, "chosen": chosen, "first_call_s": took}


def _ours(hints: Sequence[int]) -> Call:
    """One dynamic compile for these hints."""
    compiled: Call = polytile.compile(products.product, hints=list(hints))
    return compiled


def _theirs(hints: Sequence[int]) -> Call:
    """The peer's dynamic compile, Triton kernels only, made at the first hint; several are its multi-kernel's."""
    settings: dict[str, Any] = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
    if len(hints) > 1:
        settings["multi_kernel_hints"] = list(hints)
    return torch.compile(products.product, dynamic=True, options=settings)


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """µs by row of the matrix and size, of one type; of what was timed several times the least."""
    at: dict[str, dict[int, float]] = {}
    for row in rows:
        n = row["shape"][0]
        for name, us in row["us"].items():
            at.setdefault(name, {})[n] = min(us, at.get(name, {}).get(n, math.inf))
    return at


def worst_of_columns(rows: Sequence[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """By type and size, polytile's worst row over the best of all that was measured there."""
    found: dict[str, dict[int, float]] = {}
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        at = _columns([row for row in rows if row["dtype"] == dtype])
        for n in RUN_AT:
            ours = [us[n] for name, us in at.items() if name.startswith("polytile") and n in us]
            if ours:
                found.setdefault(dtype, {})[n] = max(ours) / min(us[n] for us in at.values() if n in us)
    return found


def show_matrix(rows: Sequence[dict[str, Any]]) -> None:
    """A table a type: µs of every row at every size, and how far polytile's worst row is from the best of each column."""
    for dtype, over in worst_of_columns(rows).items():
        at = _columns([row for row in rows if row["dtype"] == dtype])
        body = [(name, *[f"{found[n]:.1f}" if n in found else "" for n in RUN_AT]) for name, found in at.items()]
        body.append(("polytile's worst over the best", *[f"{over[n]:.3f}" if n in over else "" for n in RUN_AT]))
        show(Table.from_rows(f"hint × size at run time, {dtype}, µs of kernel time", ["compiled for", *map(str, RUN_AT)], body))


# all pairs ---------------------------------------------------------------------------------------------------------------


def pairs(dtype: str, deadline: float, cells: Cells) -> None:
    """First what wins at each hint, then those winners at each size."""
    if all(cells.has(PAIRS, dtype, (n, n, n)) for n in SIZES) or time.monotonic() > deadline:
        return
    trials = Trials(dtype)
    for n in SIZES:
        if not cells.has(AT_HINT, dtype, (n, n, n)) and time.monotonic() < deadline:
            request = trials.request((n, n, n))
            us = trials.us(request, shortlist(request))
            cells.add({"function": AT_HINT, "part": "pairs", "dtype": dtype, "shape": [n, n, n], "us": us})
            print(f"{AT_HINT} {n}, {dtype}: {min(us, key=lambda name: us[name])}", flush=True)
    hinted = [row for row in cells.rows if row["function"] == AT_HINT and row["dtype"] == dtype]
    if len(hinted) == len(SIZES):
        _at_every_size(trials, dtype, winners(hinted), cells, deadline)


def winners(hinted: Sequence[dict[str, Any]], own: bool = False) -> dict[int, str]:
    """The fastest candidate at each hint; `own`: of those that are generated."""
    found = {}
    for row in hinted:
        us = {name: t for name, t in row["us"].items() if not own or t in generated(row["us"])}
        if us:
            found[row["shape"][0]] = min(us, key=lambda name: us[name])
    return found


def _at_every_size(trials: Trials, dtype: str, at_hint: dict[int, str], cells: Cells, until: float) -> None:
    hinted = [row for row in cells.rows if row["function"] == AT_HINT and row["dtype"] == dtype]
    names = {*at_hint.values(), *winners(hinted, own=True).values()}
    with tempfile.TemporaryDirectory() as directory:
        options = {"store": str(Path(directory) / "store.sqlite3")}
        call = polytile.compile(copied(products.product, "ours"), hints=list(HINTS), options=options)
        for n in at_hint:
            if cells.has(PAIRS, dtype, (n, n, n)) or time.monotonic() > until:
                continue
            call(*square(n, dtype))
            own = polytile.compiler.programs.compiled_programs()[-1].multikernels[0]
            request = trials.request((n, n, n))
            decision = own.decision_at(*request.args or ())
            assert decision is not None
            us = trials.us(request, trials.named(request, names | {decision.candidate}))
            row = {"function": PAIRS, "part": "pairs", "dtype": dtype, "shape": [n, n, n], "us": us}
            cells.add({**row, "chosen": decision.candidate, "link": decision.link})
            best = min(us, key=lambda name: us[name])
            print(f"{PAIRS} at {n}, {dtype}: {decision.candidate}, {best} of {len(us)} was the fastest", flush=True)


def speedups(rows: Sequence[dict[str, Any]], dtype: str, own: bool) -> list[float]:
    """What each hint's winner takes at each size over what polytile's choice takes there; `own`: winners among generated kernels,
    as the published experiment had them."""
    hinted = [row for row in rows if row["function"] == AT_HINT and row["dtype"] == dtype]
    found = winners(hinted, own)
    return [
        row["us"][name] / row["us"][row["chosen"]]
        for row in rows
        if row["function"] == PAIRS and row["dtype"] == dtype and row["chosen"] in row["us"]
        for name in found.values()
        if name in row["us"]
    ]


def show_pairs(rows: Sequence[dict[str, Any]]) -> None:
    body = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for title, own in (("generated kernels", True), ("all candidates", False)):
            found = speedups(rows, dtype, own)
            if found:
                mean = sum(found) / len(found) - 1
                near = sum(ratio >= 1 / WITHIN for ratio in found) / len(found)
                last = f"{geomean(found):.3f}", f"{near:.1%}", f"{min(found):.2f}"
                body.append((dtype, title, len(found), f"{mean:.1%}", *last))
    columns = ["type", "winners among", "pairs", "average speedup", "geomean", "within 2 % or better", "least"]
    show(Table.from_rows(f"what a single hint loses to one dynamic compile (published: {ASKED:.2%})", columns, body))


__all__ = ["matrix", "pairs", "show_matrix", "show_pairs", "speedups", "winners", "worst_of_columns"]
