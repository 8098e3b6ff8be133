"""Products compiled for one hint and run at other sizes.

Part `matrix`: `x @ y`, square, compiled with one hint or with all three, at four sizes, beside eager and, if asked for, the peer
with one hint each and with its own hints. Every compile begins with an empty store: nothing that one hint has measured is known
to the next.

Part `pairs`: the same for 64 hints and 64 sizes, 64 apart, from kernel times: the candidate that wins at each hint is timed at
every size, beside the one that a dynamic compile of polytile sends that size to.
"""

from __future__ import annotations

import contextlib
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
from benchmarks.gpu.product_cell import switch
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


def matrix(dtype: str, deadline: float, cells: Cells, peer: bool) -> None:
    """The rows of one type that are missing. All of them are called at every size first; then they are timed size by size, in
    turns with eager: the device's own pace, which changes from second to second, meets all alike."""
    switch(dtype)
    known: set[str] = set()
    chosen: dict[tuple[str, int], str] = {}
    with contextlib.ExitStack() as made:
        calls: dict[str, Call] = {}
        for name, make in contestants(peer).items():
            if all(cells.has(MATRIX + name, dtype, (n, n, n)) for n in RUN_AT) or time.monotonic() > deadline:
                continue
            calls[name] = made.enter_context(make(dtype))
            for n in RUN_AT:
                calls[name](*square(n, dtype))
                chosen[name, n] = "; ".join(new_decisions(known))
        for n in RUN_AT if calls else ():
            args = square(n, dtype)
            timed: dict[str, Call] = {"eager": torch.mm, **calls}
            us = kernel_times({name: functools.partial(call, *args) for name, call in timed.items()})
            print(f"matrix, {dtype} at {n}: " + ", ".join(f"{who} {t:.1f}" for who, t in us.items()), flush=True)
            for name in (name for name in calls if name in us):
                own = {"eager": us["eager"], name: us[name]}
                row = {"function": MATRIX + name, "part": "matrix", "dtype": dtype, "shape": [n, n, n], "us": own}
                cells.add({**row, "chosen": chosen[name, n]})


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
        show(Table.of(f"hint × size at run time, {dtype}, µs of kernel time", ["compiled for", *map(str, RUN_AT)], body))


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


__all__ = ["matrix", "pairs", "show_matrix", "show_pairs", "speedups", "winners", "worst_of_columns"]
