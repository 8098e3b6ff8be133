"""`python -m benchmarks.gpu.host_time [--cases bert vit llama gpt2] [--seconds 140]`: where a call's time goes on the host.

Transformers in bfloat16 under `torch.inference_mode()`, one dynamic compile each. For each shape: wall time of a single call
until the device has ended, host time until the call returns (medians), kernel time and number of kernels by torch's profiler, and
the calls of libraries among them. The same program under Python's wrapper is broken down by kind of line, and the lines that take
the most are listed, by clocks that are read between its statements: 0.1 µs each, which is part of what is printed.

The background measures until it has nothing left, or a case's share of `--seconds` is over. Then kernels are left undecided, and
the case says that it is not settled. Results go to OUT/gpu_host_time.json.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu import models
from polytile.candidates.candidate import READY_MADE
from polytile.candidates.entries import PythonEntry
from polytile.compiler.programs import CompiledProgram, compiled_programs
from polytile.dispatch.multikernel import MultiKernel
from polytile.report import Table, show
from polytile.runtime import background

Arguments = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A model, what its arguments are made of, and the shapes to call it at."""

    model: Callable[[], nn.Module]
    make: Callable[..., Arguments]
    shapes: tuple[tuple[int, ...], ...]


def tokens(*shape: int) -> Arguments:
    return (torch.randint(30000, shape, device="cuda"),)


def images(batch: int) -> Arguments:
    return (torch.randn(batch, 3, 224, 224, device="cuda", dtype=models.DTYPE),)


def one_token(batch: int) -> Arguments:
    """A token of each sequence, and where it stands in the cache."""
    return torch.randint(30000, (batch, 1), device="cuda"), torch.full((), 100, device="cuda")


CASES = {
    "bert": Case(lambda: models.bert(6), tokens, ((8, 200), (1, 128))),
    "vit": Case(lambda: models.vit(6), images, ((16,),)),
    "llama": Case(lambda: models.llama(4), tokens, ((1, 16), (1, 128))),
    "gpt2": Case(lambda: models.gpt2(6), tokens, ((1, 16), (1, 128))),
    "decode": Case(lambda: models.Decoder(4), one_token, ((1,),)),
}


def main() -> None:
    parser = Command(__doc__, "gpu_host_time", lambda found: report(found["cells"]), gpu=True)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=140)
    given = parser.parsed()
    deadline, cells = time.monotonic() + given.seconds, []
    with torch.inference_mode():
        for place, name in enumerate(given.cases):
            share = (deadline - time.monotonic()) / (len(given.cases) - place)
            cells += measure(name, CASES[name], time.monotonic() + share)
            found = {"device": torch.cuda.get_device_name(), "cells": cells}
            path = record.write("gpu_host_time", found, given.out)
    report(cells)
    print(path)


def measure(name: str, case: Case, deadline: float) -> list[dict[str, Any]]:
    """The cells of one model."""
    model = case.model().to("cuda", models.DTYPE).eval()

    def run(*given: Tensor) -> Tensor:
        results: Tensor = model(*given)[0]
        return results

    compiled = torch.compile(run, backend="polytile", dynamic=True, options={**models.OPTIONS, "stall": "never"})
    in_python = torch.compile(
        run, backend="polytile", dynamic=True, options={**models.OPTIONS, "stall": "compile", "wrapper": "python"}
    )
    arguments = {shape: case.make(*shape) for shape in case.shapes}
    began = time.monotonic()
    for given in arguments.values():
        compiled(*given)
    first = time.monotonic() - began
    while not (settled := settle(deadline)) and time.monotonic() < deadline - 10:
        for given in arguments.values():
            compiled(*given)
    ended = "everything is measured" if settled else "the time was over; the rest is dropped"
    print(f"{name}: first calls {first:.1f} s, {time.monotonic() - began:.1f} s until {ended}", flush=True)
    cells = []
    for shape, given in arguments.items():
        calls = {"eager": functools.partial(run, *given), "polytile": functools.partial(compiled, *given)}
        for _ in range(3):
            results = {who: call() for who, call in calls.items()}
        off = (results["polytile"].float() - results["eager"].float()).abs().mean() / results["eager"].float().abs().mean()
        times = {who: single_call(call) for who, call in calls.items()}
        device = {who: kernels(call) for who, call in calls.items()}
        lines = breakdown(functools.partial(in_python, *given))
        cell = {
            "model": name, "shape": list(shape), "settled": settled, "off": float(off),
            "wall_us": {who: t[0] for who, t in times.items()}, "host_us": {who: t[1] for who, t in times.items()},
            "gpu_us": {who: d[0] for who, d in device.items()}, "kernels": {who: d[1] for who, d in device.items()},
            "top_kernels": device["polytile"][2], "lines": lines,
        }  # fmt: skip
        cells.append(cell)
        print(json.dumps({key: value for key, value in cell.items() if key not in ("lines", "top_kernels")}), flush=True)
    return cells


def settle(deadline: float) -> bool:
    """Waits until the background has nothing left to do, which this says. What is left ten seconds before `deadline` is dropped:
    calls that are timed beside it would wait for Python's lock and the device."""
    if polytile.wait(timeout=max(1.0, deadline - 10 - time.monotonic())):
        return True
    background.drop()
    background.wait()
    return False


Call = Callable[[], Any]
CALLS = 30


def timed(call: Call, calls: int) -> tuple[list[float], list[float]]:
    """Microseconds of calls that begin when the device is idle, until it is idle again, and until they return."""
    whole, host = [], []
    for _ in range(calls):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        returned = time.perf_counter()
        torch.cuda.synchronize()
        whole.append((time.perf_counter() - began) * 1e6)
        host.append((returned - began) * 1e6)
    return whole, host


def single_call(call: Call) -> tuple[float, float]:
    """Medians of `timed`, once warm."""
    for _ in range(5):
        call()
    whole, host = timed(call, CALLS)
    return round(statistics.median(whole), 1), round(statistics.median(host), 1)


MOST_NAMED = 12


def kernels(call: Call, calls: int = 5) -> tuple[float, float, dict[str, list[float]]]:
    """Microseconds of all that the device does in one call, how many kernels, copies and fills that are, and those that take
    the most: name → [µs, number]."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    by_name: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation:
            by_name[event.name][0] += event.device_time_total / calls
            by_name[event.name][1] += 1 / calls
    longest = sorted(by_name.items(), key=lambda item: -item[1][0])[:MOST_NAMED]
    total, count = (sum(found[k] for found in by_name.values()) for k in (0, 1))
    return round(total, 1), round(count, 1), {name[:120]: [round(n, 1) for n in found] for name, found in longest}


# the wrapper, statement by statement --------------------------------------------------------------------------------------


@dataclass
class Statements:
    """The statements of one wrapper: text and kind of each, and what each took in all calls so far (seconds)."""

    text: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    took: list[float] = field(default_factory=list)

    def add(self, text: str, kind: str) -> None:
        self.text.append(text[:100])
        self.kind.append(kind)
        self.took.append(0.0)


KINDS = (
    ("memory", ("_empty_cpu(", "_empty_cuda(", "torch.empty_strided(")),
    ("views", ("_reinterpret(", ".as_strided(")),
    ("results of libraries", ("_as_declared(",)),
    ("devices", ("_current_device(",)),
)


def breakdown(call: Call, calls: int = 20) -> dict[str, Any]:
    """Microseconds of one call within the Python wrappers that it runs, by kind of line, with the number of lines; the lines that
    take the most, added up by kernel and candidate; and what the rest of the call takes."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    call()
    written = [program for program in compiled_programs() if isinstance(program.call, FunctionType)]
    programs = [program for program in written if len(ast.parse(program.source).body) == 1]  # that in C has more statements
    with contextlib.ExitStack() as stack:
        timed = [stack.enter_context(clocked(program)) for program in programs]
        call()
        for each in timed:
            each.took[:] = [0.0] * len(each.took)
        host = 0.0
        for _ in range(calls):
            synchronize()
            began = time.perf_counter()
            call()
            host += time.perf_counter() - began
    kinds: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    named: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    for each in timed:
        if any(each.took):
            for text, kind, took in zip(each.text, each.kind, each.took, strict=True):
                for table, key in ((kinds, kind), (named, f"{kind}: {text}")):
                    table[key][0] += took / calls * 1e6
                    table[key][1] += 1
    longest = sorted(named.items(), key=lambda item: -item[1][0])[:MOST_NAMED]
    inside = sum(found[0] for found in kinds.values())
    return {
        "host_us": round(host / calls * 1e6, 1), "outside_us": round(host / calls * 1e6 - inside, 1),
        "kinds": {kind: [round(found[0], 1), found[1]] for kind, found in sorted(kinds.items(), key=lambda item: -item[1][0])},
        "longest": {text: [round(found[0], 1), found[1]] for text, found in longest},
    }  # fmt: skip


@contextlib.contextmanager
def clocked(program: CompiledProgram) -> Iterator[Statements]:
    """Within the block the program's wrapper notes what each of its statements takes."""
    call = program.call
    assert isinstance(call, FunctionType)
    scope, before = call.__globals__, call.__code__
    by_dispatch = {id(multikernel.dispatch): multikernel for multikernel in program.multikernels}
    (function,) = ast.parse(program.source).body
    assert isinstance(function, ast.FunctionDef)
    found, body, called = Statements(), [], {}
    for number, statement in enumerate(function.body):
        text = ast.unparse(statement)
        name, arguments = _callee(statement)
        multikernel = by_dispatch.get(id(scope.get(name)))
        found.add(text, kind_of(statement, scope))
        if multikernel is not None:
            called[number] = multikernel
            body.append(_statement(f"_noted({number}, {arguments})"))
        ends = [] if isinstance(statement, ast.Return) else [_statement(f"_took[{number}] += _now() - _began")]
        body += [_statement("_began = _now()"), statement, *ends]
    function.body = body

    def noted(number: int, *arguments: Any) -> None:
        found.kind[number], found.text[number] = told(called[number], arguments)

    made: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(ast.Module([function], [])), before.co_filename, "exec"), made)
    own = {"_noted": noted, "_now": time.perf_counter, "_took": found.took}
    scope.update(own)
    call.__code__ = made["call"].__code__
    try:
        yield found
    finally:
        call.__code__ = before
        for name in own:
            del scope[name]


def told(multikernel: MultiKernel, arguments: Sequence[Any]) -> tuple[str, str]:
    """What a call of the kernel with these arguments runs: the kind of its entry, and the kernel's name and candidate."""
    entry = multikernel.dispatcher.get(multikernel.dispatcher.key_of(*arguments))
    decision = multikernel.decision_at(*arguments)
    name = decision.candidate if decision is not None else "undecided"
    origin = multikernel.named(name).origin if name in multikernel.names else ""
    how = "library" if origin in READY_MADE else "kernel"
    way = f"through Python ({type(entry.call).__name__})" if isinstance(entry, PythonEntry) else "in C"
    return f"{how} {way}", f"{multikernel.spec.name} → {name}"


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def _callee(statement: ast.stmt) -> tuple[str, str]:
    """What a statement calls by name, and the arguments; "" where it calls nothing so."""
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id, ", ".join(map(ast.unparse, value.args))
    return "", ""


def kind_of(statement: ast.stmt, scope: Mapping[str, Any]) -> str:
    """What sort of line it is, kernels apart."""
    text = ast.unparse(statement)
    for kind, parts in KINDS:
        if any(part in text for part in parts):
            return kind
    if isinstance(statement, ast.Delete):
        return "memory given back"
    return "operators of ATen" if _callee(statement)[0] in scope else "sizes and arguments"


# tables ----------------------------------------------------------------------------------------------------------------------


def report(cells: Sequence[Mapping[str, Any]]) -> None:
    body: list[tuple[Any, ...]] = []
    for cell in cells:
        wall, host, device = cell["wall_us"], cell["host_us"], cell["gpu_us"]
        libraries = sum(n for kind, (_, n) in cell["lines"]["kinds"].items() if kind.startswith(("library", "operators")))
        times = [f"{t:.0f}" for t in (wall["eager"], wall["polytile"], host["polytile"], device["polytile"], device["eager"])]
        ratios = [f"{wall['eager'] / wall['polytile']:.2f}", f"{wall['polytile'] / device['polytile']:.2f}"]
        name = f"{cell['model']} {'×'.join(map(str, cell['shape']))}{'' if cell.get('settled', True) else ', not settled'}"
        body.append((name, *times, *ratios, f"{cell['kernels']['polytile']:.0f}", f"{libraries:.0f}", f"{cell['off']:.3g}"))
    columns = ["model", "eager wall", "wall", "host", "GPU", "eager's GPU", "× eager", "wall / GPU", "kernels", "library", "off"]
    show(Table.from_rows("one call, µs", columns, body))
    for cell in cells:
        lines = cell["lines"]
        rows = [(kind, f"{took:.1f}", f"{number:.0f}") for kind, (took, number) in lines["kinds"].items()]
        rows.append(("outside of the wrapper", f"{lines['outside_us']:.1f}", ""))
        rows += [("  " + text, f"{took:.1f}", f"{number:.0f}") for text, (took, number) in lines["longest"].items()]
        title = f"{cell['model']} {'×'.join(map(str, cell['shape']))}: host time by kind of line, then the longest"
        show(Table.from_rows(title, ["line", "µs", "lines"], rows))


if __name__ == "__main__":
    main()
