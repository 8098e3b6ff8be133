"""`python -m benchmarks.wrapper [--device cuda] [--models llama gpt2 bert] [--json]`: what the program around the kernels costs.

Chains of 1 to 100 small kernels and a decoder of three small layers, one dynamic compile each, written in Python, in C and as
an FX graph: host time of a call of the program, Dynamo's guards apart; of chains of 1 and 20 beside TorchInductor's C++ wrapper,
in a process of its own. Then what a program in C takes to make: writing and compiling its text, bytes of both. On a GPU calls are
given without waiting for the device, a few hundred at a time.

With --models, on a GPU, whole transformers by Python's wrapper and by C's: wall time of a call and kernel time.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import Calls, Entrant
from benchmarks.direct import Recorded as Direct
from benchmarks.timing import Call, compare, disturbance
from polytile.compiler.programs import compiled_programs
from polytile.compiler.tiers import wait_until_built
from polytile.report import Column, Table, show
from polytile.report.tables import micros
from polytile.runtime import compile as compiling
from polytile.wrapper import Line, Wrapped, compiled, cpp, fx, python, register_backend

LENGTHS = (1, 10, 20, 50, 100)
PEER, PEER_LENGTHS = "TorchInductor's cpp_wrapper", (1, 20)
"""The peer's program in C++, and the chains that it is made for."""
SHAPE = (4, 16)
TARGETS = ("python", "c", "fx")
MODEL_TARGETS = ("python", "cpp")
SHAPES = ((1, 16), (1, 128), (8, 200))


@dataclass(frozen=True)
class Made:
    """What a program in C took to make: seconds of writing it in Python and in C, and of compiling (0: the cache had it); bytes
    of text and object."""

    python: float
    writing: float
    compiling: float
    text: int
    object: int


@dataclass(frozen=True, eq=False)
class Recorded:
    """A program and the arguments of its first call."""

    run: Callable[[list[Any]], list[Any]]
    arguments: list[Any]

    def __call__(self) -> list[Any]:
        return self.run([*self.arguments])


made: list[Made] = []
recorded: list[Recorded] = []


def recording(write: Callable[[str, tuple[Line, ...]], Wrapped], name: str, lines: tuple[Line, ...]) -> Wrapped:
    """A wrapper backend: what `write` makes, with a note of what it is called with."""
    wrapped = write(name, lines)

    def call(args: list[Any]) -> list[Any]:
        recorded.append(Recorded(wrapped.call, [*args]))
        return wrapped.call(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return Wrapped(wrapped.source, call)


def at_once(name: str, lines: tuple[Line, ...]) -> Wrapped:
    """C from the first call on."""
    began = time.perf_counter()
    text = python.write(name, lines)
    middle = time.perf_counter()
    in_c = cpp.write(lines, text)
    writing = time.perf_counter() - middle
    plain = python.load(name, f"{text.source()}\n{in_c}", text.scope)
    unit = compiled.unit_of(plain)
    assert unit is not None
    library = compiling.compile_c(compiled.FILE, unit.source, compiled.FLAGS).result()
    made.append(Made(middle - began, writing, library.seconds, len(unit.source), library.path.stat().st_size))
    return Wrapped(plain.source, compiled.in_c(name, unit, library, plain.call))


def chain(length: int, x: Tensor) -> Tensor:
    """Softmaxes along rows and along columns in turns: none is fused with the next."""
    for step in range(length):
        x = torch.softmax(x, step % 2)
    return x


class Decoder(nn.Module):
    """A small language model's decoder: what lines a program has when it is no benchmark's."""

    def __init__(self, layers: int = 3, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.layers = nn.ModuleList(self.layer(width) for _ in range(layers))

    @staticmethod
    def layer(width: int) -> nn.ModuleList:
        inner, outer, last = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, width)
        return nn.ModuleList((nn.LayerNorm(width), inner, outer, nn.LayerNorm(width), last))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            parts: Any = layer
            norm, inner, outer, after, last = parts
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(0, 1) for part in inner(norm(x)).chunk(3, -1))
            attended = torch.softmax(q @ k.transpose(-1, -2) * 0.35, -1) @ v
            x = x + outer(attended.transpose(0, 1).flatten(-2))
            x = x + torch.nn.functional.gelu(last(after(x)))
        return x


class Peer(Calls):
    """The peer's program of a chain of {"length"} kernels on {"device"}, which it writes in C++."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        length, x = given["length"], torch.randn(*SHAPE, device=given["device"])

        def function(x: Tensor) -> Tensor:
            return chain(length, x)

        with torch.inference_mode():
            call = Direct(function, "inductor", {"cpp_wrapper": True}).direct(x)
            torch.testing.assert_close(call(), function(x))
        self.calls = {"call": torch.inference_mode()(call)}


def measured(what: str, function: Callable[..., Any], x: Tensor, peer: Call | None = None) -> dict[str, Any]:
    """Microseconds of a call of its program by each target, and of the peer's."""
    calls: dict[str, Call] = {}
    made.clear()
    for target in TARGETS:
        torch._dynamo.reset()
        recorded.clear()
        right = polytile.compile(function, options={"wrapper": f"recorded {target}", "stall": "compile", "tune": "off"})(x)
        torch.testing.assert_close(right, function(x), rtol=1e-3, atol=1e-3)
        (calls[target],) = recorded
    kernels = len(compiled_programs()[-1].calls)
    found = compare({**calls, **({PEER: peer} if peer is not None else {})}, seconds=2.0, burst_seconds=2e-3)
    us = {target: timing.low * 1e6 for target, timing in found.timings.items()}
    note = disturbance([found])
    return {"what": what, "kernels": kernels, "us": us, "cores_used_by_others": found.others, "c": vars(made[0]), "note": note}


def of_chain(length: int, device: str) -> dict[str, Any]:
    def function(x: Tensor) -> Tensor:
        return chain(length, x)

    with contextlib.ExitStack() as stack:
        peer = None
        if length in PEER_LENGTHS:
            peer = stack.enter_context(Entrant("benchmarks.wrapper:Peer", {"length": length, "device": device})).call("call")
        return measured("chain", function, torch.randn(*SHAPE, device=device), peer)


def of_decoder(device: str) -> dict[str, Any]:
    return measured("decoder", Decoder().to(device).eval(), torch.randn(6, 32, device=device))


class First(nn.Module):
    """A model that returns the first of its results."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: Tensor) -> Any:
        return self.model(words)[0]


def of_model(name: str, shapes: tuple[tuple[int, int], ...]) -> list[dict[str, Any]]:
    """Wall and kernel time of whole calls, eager's, by Python's wrapper and by C's."""
    from benchmarks.gpu.models import DTYPE, MODELS, tokens
    from benchmarks.gpu.replay import kernel_times, wall_times

    torch._dynamo.reset()  # all models are calls of one function to it, of which it compiles eight at most
    model = First(MODELS[name]().to("cuda", DTYPE).eval())
    calls: dict[str, Callable[..., Any]] = {"eager": model}
    for target in MODEL_TARGETS:
        run = polytile.compile(model, options={"wrapper": target})
        for shape in shapes:
            for _ in range(3):
                run(*tokens(*shape))
        wait_until_built()
        for _ in range(50):
            for shape in shapes:
                run(*tokens(*shape))
        polytile.wait()
        compiling.settle(120)
        calls[target] = run
    rows = []
    for shape in shapes:
        bound = {target: functools.partial(call, *tokens(*shape)) for target, call in calls.items()}
        times = {"wall_us": wall_times(bound), "kernel_us": kernel_times(bound, places=1)}
        rows.append({"model": name, "shape": list(shape), **times})
    return rows


def tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    ways = (*TARGETS, PEER)
    columns: list[Column | str] = ["", "kernels", *[Column(f"µs, {way}", micros) for way in ways]]
    times = [[row["us"][way] * 1e-6 if way in row["us"] else None for way in ways] for row in rows]
    body = [(row["what"], row["kernels"], *each) for row, each in zip(rows, times, strict=True)]
    yield Table.from_rows("Host time of a call of a program", columns, body, [rows[-1]["note"]])
    columns = ["", "kernels", "ms of writing Python", "ms of writing C", "s of compiling", "KB of text", "KB of object"]
    body = [(row["what"], row["kernels"], *_making(row["c"])) for row in rows]
    yield Table.from_rows("Making a program in C", columns, body)


def _making(c: Mapping[str, Any]) -> tuple[str, ...]:
    kilobytes = (f"{c[what] / 1e3:.1f}" for what in ("text", "object"))
    return f"{c['python'] * 1e3:.1f}", f"{c['writing'] * 1e3:.1f}", f"{c['compiling']:.2f}", *kilobytes


def of_models(rows: list[Mapping[str, Any]]) -> Table:
    what = [(kind, target) for kind in ("wall_us", "kernel_us") for target in ("eager", *MODEL_TARGETS)]
    body = [(row["model"], "×".join(map(str, row["shape"])), *[row[kind][t] * 1e-6 for kind, t in what]) for row in rows]
    times = [Column(f"{kind.removesuffix('_us')}, {target}", micros) for kind, target in what]
    columns: list[Column | str] = ["model", "shape", *times]
    return Table.from_rows("µs of a call", columns, body)


def show_all(programs: Sequence[Mapping[str, Any]]) -> None:
    for table in tables(programs):
        show(table)


def main() -> None:
    parser = Command(__doc__, "wrapper_{device}", lambda found: show_all(found["programs"]), json=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="kernels of a chain")
    parser.add_argument("--models", nargs="*", choices=("llama", "gpt2", "bert"), default=[], help="whole models; needs a GPU")
    given = parser.parsed()
    for target, write in {"python": python.wrap, "c": at_once, "fx": fx.wrap}.items():
        register_backend(f"recorded {target}", functools.partial(recording, write))
    results: dict[str, Any] = {"programs": [], "models": []}
    with torch.inference_mode():
        results["programs"] = [of_chain(length, given.device) for length in given.lengths] + [of_decoder(given.device)]
        show_all(results["programs"])
        for name in given.models:
            results["models"] += of_model(name, SHAPES)
    if results["models"]:
        show(of_models(results["models"]))
    if given.json:
        print(record.write(f"wrapper_{given.device}", results))


if __name__ == "__main__":
    main()
