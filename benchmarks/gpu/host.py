"""Host time: a launch through the dispatcher, a whole call, and what others take for the same."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import polytile
from benchmarks.compilers import copied
from polytile.runtime.launcher import empty_strided_cuda, time_burst


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


CALLS = 400
"""In a round: fewer than the device's queue has places for."""


def microseconds(call: Callable[[], Any], calls: int = CALLS, rounds: int = 9) -> float:
    """Host time of one call, the device kept from filling its queue by a wait after each round."""
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        taken.append((time.perf_counter() - began) / calls * 1e6)
        torch.cuda.synchronize()
    return statistics.median(taken)


def run() -> dict[str, float]:
    torch._dynamo.reset()
    polytile.reset()
    x = torch.randn(64, 64, device="cuda")
    out = torch.empty_like(x)
    ours = torch.compile(copied(plus_one, "ours"), backend="polytile", dynamic=True)
    theirs = torch.compile(copied(plus_one, "theirs"), dynamic=True)
    guards = torch.compile(copied(plus_one, "guards"), backend="eager", dynamic=True)
    for call in (ours, theirs, guards):
        call(x)
    program = polytile.compiler.programs.compiled_programs()[-1]
    kernel = program.multikernels[0]
    ints = tuple(dict(kernel.decisions[-1].sizes).values())
    arguments = (x, out, *ints)
    assert program.program is not None
    own = [x if item.size is None else x.size(0) for item in program.program.inputs]
    entry = kernel.dispatcher.get(kernel.dispatcher.key_of(*arguments))
    assert entry is not None
    layout = tuple(out.shape), out.stride()
    results = {
        "launch (C alone)": microseconds(lambda: time_burst(entry, arguments, CALLS), calls=1) / CALLS,
        "launch (dispatcher)": microseconds(lambda: kernel.dispatch(*arguments)),
        "memory for a result": microseconds(lambda: empty_strided_cuda(*layout, torch.float32)),
        "eager x + 1": microseconds(lambda: x + 1),
        "eager add(out=)": microseconds(lambda: torch.add(x, 1, out=out)),
        "polytile call": microseconds(lambda: ours(x)),
        "peer dynamic call": microseconds(lambda: theirs(x)),
        "Dynamo's guards alone": microseconds(lambda: guards(x)),
        "polytile wrapper": microseconds(lambda: program.call([*own])),
    }
    return {name: round(value, 2) for name, value in results.items()}


__all__ = ["run"]
