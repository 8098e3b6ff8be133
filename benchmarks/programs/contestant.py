"""One contestant of one program, in a process of its own (`benchmarks/contestants.py`).

Its row says whether the results are right, what the first call took and where, and the times of a call beside eager's, in turns.
Times are taken, by polytile's and the peer's own tuning too, while no other process holds the lock file.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.contestants import OWN, tune_in_turn, turn
from benchmarks.programs.judge import Reference, distance, reference, run, step
from benchmarks.programs.program import SEED, Draw, Function, Program
from benchmarks.programs.stages import WAITING, Stages

CONTESTANTS = (OWN, "inductor")
SETTLED = 60.0
"""Seconds to wait for compilers that are still at work beside."""
FIRST_CALLS, FIRST_SECONDS = 400, 1.0
"""Calls of what polytile.compile returns before one is timed, for at most so many seconds: those of small tensors race eager's
own after 256, in up to 120 calls."""


def main(asked: dict[str, Any]) -> dict[str, Any]:
    """The row of {"table", "program", "contestant", "device", "seconds", "lock", "threads"}: `seconds` are for timing, 0 for
    none; `threads` are PyTorch's."""
    torch.set_num_threads(asked["threads"])
    program, who, device = table_of(asked["table"])[asked["program"]], asked["contestant"], asked["device"]
    lock = Path(asked["lock"]) if asked.get("lock") else None
    with torch.set_grad_enabled(program.training):
        function, inputs = program.make(Draw(device))
        right = reference(program, function, inputs)
        tune_in_turn(who, lock)
        row: dict[str, Any] = {"threads": torch.get_num_threads()}
        call, graphs = compiled(function, who, program.training)
        results = first_calls(program, call, function, inputs, row)
        row |= judged(program, who, right, results) | facts(who, graphs)
        if asked["seconds"]:
            direct = directly(call, inputs, results) if device == "cpu" and one_graph(program, graphs) else None
            with turn(lock):
                row |= times(program, who, function, call, direct, inputs, asked["seconds"])
    return row


def table_of(name: str) -> Mapping[str, Program]:
    """The programs of "module:name"."""
    module, _, variable = name.partition(":")
    found: Mapping[str, Program] = getattr(importlib.import_module(module), variable)
    return found


def compiled(function: Function, who: str, training: bool) -> tuple[Callable[..., Any], list[int]]:
    """The function under one dynamic compile, and a list that has an entry for each graph. Inference is recorded, so that it can
    be called without Dynamo's guards."""
    import torch._dynamo  # before the clock runs: either contestant imports it

    from benchmarks.direct import Recorded

    if training:
        return torch.compile(function, backend=who, dynamic=True), []
    if not isinstance(function, nn.Module):
        function = _plain(function)
    recorded = Recorded(function, who)
    return recorded, recorded.graphs


def _plain(function: Function) -> Function:
    """A function that Dynamo sees through, of a partial one or an operator's."""

    def program(*args: Any) -> Any:
        return function(*args)

    return program


def first_calls(
    program: Program, call: Callable[..., Any], function: Function, inputs: Any, row: dict[str, Any]
) -> Any:
    """The results of the second call, with the same inputs as the first; what both took goes to the row."""
    began = time.perf_counter()
    with Stages() as stages:
        run(program, call, function, inputs)
        synchronize(inputs)
    took = time.perf_counter() - began
    row["first_call_s"] = round(took - stages.seconds.pop(WAITING, 0.0), 3)
    row["stages"] = stages.as_json()
    began = time.perf_counter()
    results = run(program, call, function, inputs)
    synchronize(inputs)
    row["second_call_s"] = round(time.perf_counter() - began, 4)
    return results


def judged(program: Program, who: str, right: Reference, results: Any) -> dict[str, Any]:
    if program.random and who != OWN:
        return {"wrong": "", "strides": "", "notes": "its own random stream: not compared"}
    return {"wrong": right.wrong(results), "strides": right.strides(results), "notes": right.notes}


def facts(who: str, graphs: list[int]) -> dict[str, Any]:
    """What polytile says of itself."""
    if who != OWN:
        return {"graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"]}
    import polytile
    from polytile.runtime.compile import compile_log

    found = {name: polytile.counters[name] for name in polytile.counters}
    log = [entry for entry in compile_log() if not entry.cached]
    slowest = sorted(((entry.seconds, entry.name) for entry in log), reverse=True)[:5]
    return {
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        "counters": found,
        "slowest_compiles": slowest,
    }


def one_graph(program: Program, graphs: list[int]) -> bool:
    return not program.training and len(graphs) == 1


def directly(call: Any, inputs: Any, results: Any) -> Callable[[], Any] | None:
    """The call without guards, or None where it does not give the program's first result: an alias of an input, say, is made
    outside of it; or where it takes more than the program does: a token for effects."""
    direct = call.direct(*inputs)
    torch.manual_seed(SEED)  # as for `results`
    try:
        first = direct()
    except ValueError:
        return None
    if not isinstance(first, torch.Tensor) or first.shape != results[0].shape or first.dtype != results[0].dtype:
        return None
    same = distance(first, results[0]) <= 1e-2 * (
        1 + float(results[0].double().abs().nan_to_num(0, 0, 0).max()) if first.numel() else 1
    )
    return direct if same else None


def times(
    program: Program,
    who: str,
    function: Function,
    call: Any,
    direct: Callable[[], Any] | None,
    inputs: Any,
    seconds: float,
) -> dict[str, Any]:
    """Seconds of a call of this contestant and of eager: whole calls ("called") and, of polytile's inference, those of what
    polytile.compile returns ("door"); calls without guards on the CPU ("direct"), kernels alone on a GPU ("kernels"). "beside":
    the cores that other processes kept busy meanwhile."""
    from benchmarks.timing import compare
    from polytile.runtime import compile as compiler

    compiler.settle(SETTLED)
    eager: Callable[[], Any] = functools.partial(function, *inputs)
    own: Callable[[], Any] = functools.partial(call, *inputs)
    if program.training:
        eager, own = (functools.partial(step, program, each, function, inputs) for each in (function, call))
    found: dict[str, Any] = {"beside": {}}

    def compared(way: str, mine: Callable[[], Any], for_seconds: float) -> None:
        comparison = compare({"eager": eager, who: mine}, seconds=for_seconds)
        found[way] = {name: timing.low for name, timing in comparison.timings.items()}
        found["beside"][way] = round(comparison.others, 2)

    if inputs and inputs[0].is_cuda:
        from benchmarks.gpu.replay import kernel_times

        us = kernel_times({"eager": eager, who: own}, rounds=9, places=2)
        found["kernels"] = {name: t * 1e-6 for name, t in us.items()}
    elif direct is not None:
        compared("direct", direct, seconds)
    compared("called", own, seconds / 2)
    if who == OWN and not program.training:
        compared("door", behind_door(function, inputs), seconds / 2)
    return found


def behind_door(function: Function, inputs: Any) -> Callable[[], Any]:
    """A call of what polytile.compile makes of the function, once it has made up its mind whether eager's own call is faster."""
    import polytile
    from polytile.runtime import compile as compiler

    call = functools.partial(polytile.compile(function, options={"stall": "tune"}), *inputs)
    call()
    compiler.settle(SETTLED)  # the door opens once the launcher is compiled, which no call waits for
    until = time.perf_counter() + FIRST_SECONDS
    for _ in range(FIRST_CALLS):
        call()
        if time.perf_counter() > until:
            break
    synchronize(inputs)
    return call


def synchronize(inputs: Any) -> None:
    if inputs and inputs[0].is_cuda:
        torch.cuda.synchronize()


__all__ = ["CONTESTANTS", "OWN", "main", "table_of"]
