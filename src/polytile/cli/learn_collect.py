"""`polytile learn collect`: functions compiled and called at sizes that are drawn, every candidate measured at each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import polytile
from polytile import options, waits
from polytile.cli.naming import TargetError
from polytile.cli.plain import FAILED, in_short, sizes_text, told_once
from polytile.cli.tune import STOPPED
from polytile.dispatch import collecting
from polytile.dispatch.registry import alive
from polytile.learn.problems import LIMITS, OPERATIONS, Operation
from polytile.tuning.headroom import for_measuring

AHEAD = 6
"""Problems whose candidates compile in other processes while one is measured on a GPU. On a CPU compilers would disturb the
clock."""


@dataclass(frozen=True)
class Wanted:
    """What to collect: `count` problems of each operation in each type, drawn with `seed`, of no more work than `most` (0: the
    device's own limit)."""

    operations: Sequence[str]
    dtypes: Sequence[str]
    device: str
    count: int
    seed: int = 0
    most: int = 0


def collect(wanted: Wanted, into: Path, seconds: float) -> int:
    """Measures into the store and says how far it came; returns the process's exit status. Raises TargetError for a type or
    a device that there is not."""
    console = Console()
    device, dtypes = _device(wanted.device), [_dtype(name) for name in wanted.dtypes]
    deadline = time.monotonic() + seconds if seconds else float("inf")
    before, status, done, begun = _benchmarked(), 0, 0, time.monotonic()
    settings = {"collect": str(into), "tune": "off", "stall": "tune", "learned": False}
    kinds = [(OPERATIONS[name], dtype) for name in wanted.operations for dtype in dtypes]
    total, ends = wanted.count * len(kinds), f"ends after {seconds:g} s" if seconds else "has no limit of time (--seconds)"
    told = f"{total} problems on {device}, every candidate of each. It {ends}; Ctrl-C keeps what was measured."
    console.print(told, soft_wrap=True, highlight=False)
    gpu = collecting.ahead(AHEAD) if device.type == "cuda" else contextlib.nullcontext()
    any_size = torch._dynamo.config.patch(force_parameter_static_shapes=False)  # one program for modules' weights of all sizes
    with options.override(**settings), any_size, for_measuring(), torch.no_grad(), told_once():
        try:
            with gpu:
                for number in range(wanted.count):
                    for kind in kinds:
                        if time.monotonic() > deadline:
                            break
                        with waits.during(f"problem {done + 1} of {total}{_to_go(begun, done, total)}"):
                            status = max(status, _problem(console, kind, device, number, wanted))
                        done += 1
        except KeyboardInterrupt:
            status = STOPPED
    told = f"{done} of {total} problems, {_benchmarked() - before} candidates measured. Kept in {into}."
    console.print(told, soft_wrap=True, highlight=False)
    return status


def _to_go(begun: float, done: int, total: int) -> str:
    """How long the other problems take if they take as long as those that are done; "" before the first is."""
    if not done:
        return ""
    return f", about {(time.monotonic() - begun) / done * (total - done) / 60:.0f} min to go"


_compiled: dict[tuple[str, torch.dtype], Callable[..., Any]] = {}


def _problem(console: Console, kind: tuple[Operation, torch.dtype], device: torch.device, number: int, wanted: Wanted) -> int:
    """Has one problem measured: every kernel forgets what it chose, so that this call chooses, and is collected, anew."""
    operation, dtype = kind
    limit = wanted.most or LIMITS[operation.family, device.type]
    sizes = operation.sizes(number, wanted.seed, limit)
    named = f"{operation.name} {str(dtype).removeprefix('torch.')} {sizes_text(tuple(sizes.items()))}"
    function = _compiled.setdefault((operation.name, dtype), polytile.compile(operation.run))
    before = _benchmarked()
    try:
        for kernel in alive():
            kernel.forget()
        function(*operation.make(sizes, dtype, device))
    except Exception as error:
        console.print(f"{named}: {in_short(error)}", markup=False, highlight=False, soft_wrap=True)
        return FAILED
    told = f"[{number + 1}/{wanted.count}] {named}: {_benchmarked() - before} candidates measured"
    console.print(told, markup=False, highlight=False, soft_wrap=True)
    return 0


def _benchmarked() -> int:
    return int(polytile.counters["candidates_benchmarked"])


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        reason = str(error).splitlines()[0].rstrip(".")
        raise TargetError(f"nothing can be measured on the device {name!r} ({reason}); is it there?") from None
    return device


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TargetError(f"operations are collected in floating types; {name!r} is none: float32, bfloat16 and float16 are.")
    return dtype
