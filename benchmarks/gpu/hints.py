"""Products compiled for one hint and run at other sizes (SPEC H5).

Part `matrix`: `x @ y`, square, compiled with one hint or with all three, at four sizes, beside eager and, if asked for, the peer
with one hint each and with its own hints. Every compile begins with an empty store: nothing that one hint has measured is known
to the next.

Part `pairs`: the same for 64 hints and 64 sizes, 64 apart, from kernel times: the candidate that wins at each hint is timed at
every size, beside the one that a dynamic compile of polytile sends that size to.
"""

from __future__ import annotations

import functools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import polytile
from benchmarks.compilers import copied
from benchmarks.gpu import products
from benchmarks.gpu.candidates import Trials, generated
from benchmarks.gpu.grid import Cells, new_decisions
from benchmarks.gpu.products import DTYPES
from benchmarks.gpu.replay import kernel_times
from benchmarks.timing import geomean
from polytile.multikernel.links.prior import shortlist
from polytile.report import Table, show

HINTS, RUN_AT = (64, 256, 4096), (64, 256, 1024, 4096)
STEP, LARGEST = 64, 4096
SIZES = range(STEP, LARGEST + 1, STEP)
MATRIX, AT_HINT, PAIRS = "matrix: ", "pairs: at the hint", "pairs: x @ y"
WITHIN = 1.02
ASKED = 0.0504
"""The average speedup over a single hint that was published for this experiment."""

Call = Callable[..., torch.Tensor]


def square(n: int, dtype: str) -> tuple[Any, ...]:
    return products.cases(STEP)[0].make(n, n, n, DTYPES[dtype])


def _switch(dtype: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"


# the matrix --------------------------------------------------------------------------------------------------------------


@contextmanager
def _ours(hints: Sequence[int], dtype: str) -> Iterator[Call]:
    """One dynamic compile for these hints, whose measurements are its own."""
    with tempfile.TemporaryDirectory() as directory:
        options = {"store": str(Path(directory) / "store.sqlite3")}
        yield polytile.compile(copied(products.product, "ours"), hints=list(hints), options=options)


@contextmanager
def _theirs(hints: Sequence[int], dtype: str) -> Iterator[Call]:
    """The peer's dynamic compile, Triton kernels only, made at the first hint; several are its multi-kernel's."""
    settings: dict[str, Any] = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
    if len(hints) > 1:
        settings["multi_kernel_hints"] = list(hints)
    call = torch.compile(copied(products.product, "theirs"), dynamic=True, options=settings)
    call(*square(hints[0], dtype))
    yield call


def contestants(peer: bool) -> dict[str, Callable[[str], Any]]:
    """Rows of the matrix by name: type → context of a callable."""
    rows: dict[str, Callable[[str], Any]] = {}
    for who, made in (("polytile", _ours), ("peer", _theirs)) if peer else (("polytile", _ours),):
        for hints in (*[(hint,) for hint in HINTS], HINTS):
            rows[f"{who}, {'hint' if len(hints) == 1 else 'hints'} {' '.join(map(str, hints))}"] = functools.partial(made, hints)
    return rows


def matrix(dtypes: Sequence[str], cells: Cells, deadline: float, peer: bool) -> None:
    """The cells that are missing, row by row: kernel µs beside eager's, taken in turns."""
    for dtype in dtypes:
        _switch(dtype)
        for name, made in contestants(peer).items():
            wanted = [n for n in RUN_AT if not cells.has(MATRIX + name, dtype, (n, n, n))]
            if not wanted or time.monotonic() > deadline:
                continue
            with made(dtype) as call:
                known: set[str] = set()
                for n in wanted:
                    args = square(n, dtype)
                    call(*args)
                    us = kernel_times({"eager": functools.partial(torch.mm, *args), name: functools.partial(call, *args)})
                    row = {"function": MATRIX + name, "part": "matrix", "dtype": dtype, "shape": [n, n, n], "us": us}
                    cells.add({**row, "chosen": "; ".join(new_decisions(known))})
                    print(f"{name}, {dtype} at {n}: " + ", ".join(f"{who} {t:.1f}" for who, t in us.items()), flush=True)


def show_matrix(rows: Sequence[dict[str, Any]]) -> None:
    """A table a type: µs of every row at every size, and how far polytile's worst row is from the best of each column."""
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        at: dict[str, dict[int, float]] = {}
        for row in (row for row in rows if row["dtype"] == dtype):
            for name, us in row["us"].items():
                own = at.setdefault(name, {})
                own[row["shape"][0]] = min(us, own.get(row["shape"][0], math.inf))
        body = [(name, *[f"{found[n]:.1f}" if n in found else "" for n in RUN_AT]) for name, found in at.items()]
        over = []
        for n in RUN_AT:
            column = {name: found[n] for name, found in at.items() if n in found}
            ours = [us for name, us in column.items() if name.startswith("polytile")]
            over.append(f"{max(ours) / min(column.values()):.3f}" if ours else "")
        body.append(("polytile's worst over the best", *over))
        show(Table.of(f"hint × size at run time, {dtype}, µs of kernel time", ["compiled for", *map(str, RUN_AT)], body))


# all pairs ---------------------------------------------------------------------------------------------------------------


def pairs(dtypes: Sequence[str], cells: Cells, deadline: float) -> None:
    """First what wins at each hint, then those winners at each size; one type after the other."""
    for dtype in dtypes:
        if all(cells.has(PAIRS, dtype, (n, n, n)) for n in SIZES):
            continue
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
    with _ours(HINTS, dtype) as call:
        for n in at_hint:
            if cells.has(PAIRS, dtype, (n, n, n)) or time.monotonic() > until:
                continue
            call(*square(n, dtype))
            own = polytile.compiler.compiled_programs()[-1].multikernels[0]
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
    show(Table.of(f"what a single hint loses to one dynamic compile (published: {ASKED:.2%})", columns, body))


__all__ = ["matrix", "pairs", "show_matrix", "show_pairs", "speedups", "winners"]
