"""The grid: every function at every shape, kernel time, wall time and correctness, one cell after another.

Cells are written as they are measured (a JSON object a line); a run that is given the same file goes on where the last
one ended, so that a suite can be spread over several short sessions.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import polytile
from benchmarks.compilers import copied
from benchmarks.environment import revision
from benchmarks.gpu.functions import DTYPES, SHAPES, TRACED, Function, Shape
from benchmarks.gpu.product_cell import first_call
from benchmarks.gpu.replay import kernel_times, wall_times

OPTIONS = {"random": "philox"}
"""Dropout draws from polytile's own generator, as the peer draws from its own."""
PEERS = ("dynamic", "static")
PEER = {"autotune_local_cache": False}
"""The peer measures its configs anew in each process: another may have shared the GPU."""


class Cells:
    """The cells measured so far, in a file to which each is written as it is measured; the last of a function, type and shape
    counts. Those of the revisions that begin with one of `again` are kept, but are to be measured once more."""

    def __init__(self, path: Path, again: Sequence[str] = ()) -> None:
        self.path, self.again = path, tuple(again)
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._rows = {_key(row): row for row in map(json.loads, filter(str.strip, lines))}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self._rows.values())

    def has(self, function: str, dtype: str, shape: tuple[int, ...]) -> bool:
        """Whether there is a cell that need not be measured again."""
        row = self._rows.get((function, dtype, shape))
        return row is not None and not (self.again and row.get("revision", "").startswith(self.again))

    def take(self, path: Path) -> None:
        """Adds the cells of another file that are missing here, but for those that ended with an error: a line each, or those of
        a result file."""
        text = path.read_text()
        whole = path.suffix == ".json"
        for row in json.loads(text)["results"]["cells"] if whole else map(json.loads, filter(str.strip, text.splitlines())):
            if "error" not in row and not self.has(*_key(row)):
                self._append(row)

    def add(self, row: dict[str, Any]) -> None:
        """Adds a cell measured now, with the revision that was measured."""
        self._append({**row, "revision": self._revision})

    @functools.cached_property
    def _revision(self) -> str:
        return revision()

    def _append(self, row: dict[str, Any]) -> None:
        self._rows[_key(row)] = row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _key(row: Mapping[str, Any]) -> tuple[str, str, tuple[int, ...]]:
    return row["function"], row["dtype"], tuple(row["shape"])


@dataclass(frozen=True)
class Earlier:
    """The peers' times of an earlier run on a device of the same name, by function, type and shape; `origin` says which run."""

    times: Mapping[tuple[str, str, tuple[int, ...]], Mapping[str, float]]
    origin: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path, device: str) -> Earlier:
        """Those of a result file. Raises SystemExit where it is of another device."""
        content = json.loads(path.read_text())
        results = content["results"]
        if results["device"] != device:
            raise SystemExit(f"{path} was measured on {results['device']}, this is {device}; leave out --peers-of.")
        origin = {"revision": content["environment"].get("revision", ""), "copy": results["copy_bytes_per_second"]}
        times = {
            (row["function"], row["dtype"], tuple(row["shape"])): {k: v for k, v in row["us"].items() if k in PEERS}
            for row in results["cells"]
            if "us" in row
        }
        return cls(times, results.get("peers_of", origin))

    def beside(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A cell of this run with the earlier times of the peers."""
        known = self.times.get((row["function"], row["dtype"], tuple(row["shape"])), {})
        return {**row, "us": {**known, **row["us"]}} if "us" in row else dict(row)


def run(
    functions: list[Function], dtypes: list[str], shapes: list[Shape], peers: set[str], cells: Cells, seconds: float
) -> None:
    """Measures the cells that are missing, until `seconds` have passed. `peers`: "dynamic", "static"."""
    deadline = time.monotonic() + seconds
    for dtype in dtypes:
        for function in functions:
            defined = [shape for shape in shapes if shape[0] >= function.rows]
            wanted = [shape for shape in defined if not cells.has(function.name, dtype, shape)]
            if wanted and time.monotonic() < deadline:
                for row in _cells(function, dtype, wanted, peers, deadline):
                    cells.add(row)


def _cells(
    function: Function, dtype: str, shapes: list[Shape], peers: set[str], deadline: float
) -> Iterator[dict[str, Any]]:
    compiled = fresh(function, peers)
    known: set[str] = set()
    first = {name: first_call(call, function.make(TRACED, DTYPES[dtype]))[1] for name, call in compiled.items()}
    at_first = new_decisions(known)
    for shape in shapes:
        if time.monotonic() > deadline:
            return
        torch.manual_seed(0)
        args = function.make(shape, DTYPES[dtype])
        row: dict[str, Any] = {"function": function.name, "dtype": dtype, "shape": list(shape), "first_call_s": first}
        try:
            row.update(_cell(function, compiled, args, "static" in peers))
            row["chosen"] = new_decisions(known) or (at_first if shape == TRACED else ["as in a regime met before"])
        except Exception as error:
            torch.cuda.synchronize()
            row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
        megabytes = function.traffic(*shape, DTYPES[dtype].itemsize)
        row["bytes"] = megabytes
        print(_line(row), flush=True)
        yield row


def fresh(function: Function, peers: set[str]) -> dict[str, Callable[..., Any]]:
    """The contestants of which one compile serves all shapes, everything compiled before forgotten."""
    torch._dynamo.reset()
    polytile.reset()
    compiled: dict[str, Callable[..., Any]] = {
        "polytile": torch.compile(copied(function.run, "ours"), backend="polytile", dynamic=True, options={**OPTIONS})
    }
    if "dynamic" in peers:
        compiled["dynamic"] = torch.compile(copied(function.run, "theirs"), dynamic=True, options={**PEER})
    return compiled


def fixed(function: Function) -> dict[str, Callable[..., Any]]:
    """The peer, to be compiled for one shape alone."""
    return {"static": torch.compile(copied(function.run, "fixed"), dynamic=False, options={**PEER})}


def _cell(
    function: Function, compiled: dict[str, Callable[..., Any]], args: tuple[Any, ...], static: bool
) -> dict[str, Any]:
    calls = {**compiled, **(fixed(function) if static else {})}
    new_shape = {name: first_call(call, args)[1] for name, call in calls.items()}
    bound = {name: _bound(call, args) for name, call in {"eager": function.run, **calls}.items()}
    times = {"us": kernel_times(bound), "wall_us": wall_times(bound)}
    return {**times, "first_call_at_shape_s": new_shape, "wrong": _wrong(function, compiled, args)}


def new_decisions(known: set[str]) -> list[str]:
    """The decisions made since the last time, as text; `known` remembers them."""
    found = [
        f"{decision.kernel} at {dict(decision.sizes)}: {decision.candidate} ({decision.link})"
        for program in polytile.compiler.programs.compiled_programs()
        for kernel in program.multikernels
        for decision in kernel.decisions
    ]
    new = [text for text in found if text not in known]
    known.update(new)
    return new


def _bound(call: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: call(*args)


def _wrong(function: Function, compiled: dict[str, Callable[..., Any]], args: tuple[Any, ...]) -> str:
    """What is wrong with polytile's result; "" if it is as close to float64 as eager, within a few roundings."""
    if not function.exact:
        return ""
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    mine, eager = tree_leaves(compiled["polytile"](*args)), tree_leaves(function.run(*args))
    try:
        exact = tree_leaves(function.run(*wide))
    except RuntimeError:
        exact = [leaf.double() for leaf in eager]
    for k, (got, theirs, right) in enumerate(zip(mine, eager, exact, strict=True)):
        if got.dtype != theirs.dtype or got.stride() != theirs.stride():
            return f"output {k} is {got.dtype} {got.stride()}, eager's {theirs.dtype} {theirs.stride()}"
        scale = right.double().abs().max().clamp_min(1e-30)
        own, off = ((t.double() - right.double()).abs().max() / scale for t in (theirs, got))
        if not off <= 4 * own + 16 * torch.finfo(got.dtype).eps:
            return f"output {k} is off by {float(off):.2g}, eager by {float(own):.2g}"
    return ""


def _line(row: dict[str, Any]) -> str:
    label = f"{row['function']} {row['dtype']} {'×'.join(map(str, row['shape']))}"
    if "error" in row:
        return f"{label}: {row['error']}"
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
    wrong = f" WRONG {row['wrong']}" if row["wrong"] else ""
    return f"{label}: {times} µs; {'; '.join(row['chosen'][-2:])}{wrong}"


__all__ = ["SHAPES", "Cells", "new_decisions", "run"]
