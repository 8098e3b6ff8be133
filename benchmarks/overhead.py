"""Host time of one call: `x + 1` on 8 floats, where the work itself takes nothing. `python -m benchmarks.overhead`.

The second table has the parts of polytile's call, each timed by itself: what the program takes, and what lies around it by way of
Dynamo and by way of polytile's front door (docs/calls.md). The third has what `polytile.kernel` adds to a call of a user's
function.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.compilers import compiled
from benchmarks.contestants import Calls, Entrant
from benchmarks.timing import Comparison, compare
from polytile.compiler import front_door
from polytile.compiler.programs import compiled_programs
from polytile.report import Column, Table, show
from polytile.report.tables import micros, ratio

ROWS = {
    "eager": "eager",
    "eager backend": 'torch.compile, backend="eager" (Dynamo\'s guards alone)',
    "inductor": "torch.compile, TorchInductor",
    "polytile off": 'polytile.compile, front_door="off"',
    "polytile": "polytile.compile",
    "polytile tensors": 'polytile.compile, guards="tensors"',
    "polytile none": 'polytile.compile, guards="none"',
}
GUARDS = "eager backend"
PARTS = {
    "program": "the program",
    "wrapped": "the program, in AOTAutograd's wrapper",
    "graph": "the program, in what polytile has in place of that wrapper",
    "disabled": "the same, kept from being traced by torch._dynamo.disable",
    "code": "the compiled code, which calls the line before the last",
    "guards": "Dynamo's guards alone",
    "entry": "the front door: guards, then compiled code",
    "called": "what polytile.compile returns",
    "usual": "what torch.compile returns",
}
"""The parts of a call; most contain those above."""


def add_one(x: Tensor) -> Tensor:
    return x + 1


class Contestant(Calls):
    """One row in a process of its own, compiled, checked and ready. All compiles are dynamic."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        torch.set_grad_enabled(False)
        name, x = given["row"], torch.arange(8, dtype=torch.float32)
        function: Callable[..., Tensor] = add_one
        if name.startswith("polytile"):
            door = {"front_door": "off"} if name == "polytile off" else None
            guards = name.partition(" ")[2] if name in ("polytile tensors", "polytile none") else "all"
            function = polytile.compile(add_one, options=door, guards=guards)
        elif name != "eager":
            function = compiled(add_one, name.removesuffix(" backend"))
        if name != "eager":
            function(torch.zeros(11))  # a second size, so that what is timed serves every size rather than the first one seen
        assert torch.equal(function(x), x + 1), f"{name} computed {function(x)} for {x} + 1"
        self.calls = {"call": functools.partial(function, x)}


class Parts(Calls):
    """The parts of a call of what polytile.compile returns."""

    def __init__(self, _: Mapping[str, Any]) -> None:
        torch.set_grad_enabled(False)
        x = torch.arange(8, dtype=torch.float32)
        function = polytile.compile(add_one, options={"race_eager": False})
        for size in (11, 8, 8):
            function(torch.zeros(size))
        door = front_door.door_of(function)
        assert door is not None and door.entry is not None
        entry, own = door.entries()[0], door.called_function()
        assert own is not None
        disabled = globals()[next(name for name in entry.code.co_names if name.startswith(front_door.COMPILED))]
        program, graph = compiled_programs()[-1].call, disabled._torchdynamo_orig_callable
        arguments = (x.shape[0], x)
        self.calls = {
            "program": lambda: program([*arguments]),
            "wrapped": functools.partial(graph.__wrapped__, *arguments),
            "disabled": functools.partial(disabled, *arguments),
            "graph": functools.partial(graph, *arguments),
            "code": functools.partial(front_door.as_function(entry.code, own), x),
            "guards": functools.partial(entry.guard_manager.root.check, {"x": x}),
            "entry": functools.partial(door.entry.compiled, x),
            "called": functools.partial(function, x),
            "usual": functools.partial(door.compiled, x),
        }


KERNEL_CALLS = {"function": "the function that `polytile.kernel` has chosen", "kernel": "the kernel, which calls that function"}


class OwnKernel(Calls):
    """A user's kernel of three tensors, and the function behind it."""

    def __init__(self, _: Mapping[str, Any]) -> None:
        torch.set_grad_enabled(False)

        def scaled(x: Tensor, weight: Tensor, y: Tensor, m: int, n: int) -> None:
            torch.mul(x, weight, out=y)

        kernel = polytile.kernel("x[M, N], weight[N] -> y[M, N]")(scaled)
        x, weight, y = torch.randn(8, 8), torch.randn(8), torch.empty(8, 8)
        kernel(x, weight, y)
        polytile.wait()
        assert torch.equal(y, x * weight), "the kernel computed something else"
        self.calls = {
            "function": functools.partial(scaled, x, weight, y, 8, 8),
            "kernel": functools.partial(kernel, x, weight, y),
        }


def kernel_table(found: Comparison) -> Table:
    body = [(KERNEL_CALLS[name], t.low, t.median, t.low - found["function"].low, t.spread) for name, t in found.timings.items()]
    columns: list[Column | str] = ["call", *_TIMES, Column("µs above the function", micros), Column("spread", ratio)]
    notes = [f"Other processes used {found.others:.2f} cores meanwhile."]
    return Table.from_rows("A call of a user's kernel: `torch.mul` of 8×8 floats", columns, body, notes)


_TIMES = Column("µs a call", micros), Column("median µs", micros)


def table(found: Comparison) -> Table:
    guards = found[GUARDS].low
    body = [
        (ROWS[name], t.low, t.median, t.low - guards if name not in ("eager", GUARDS) else None, t.spread)
        for name, t in found.timings.items()
    ]
    columns: list[Column | str] = [
        "way",
        *_TIMES,
        Column("µs above guards", micros),
        Column("spread", ratio),
    ]
    notes = [
        "µs a call: 15th percentile of bursts; spread: interquartile range over the median. Other processes used "
        f"{found.others:.2f} cores meanwhile."
    ]
    return Table.from_rows("Host time of a call: `x + 1` on 8 floats, one dynamic compile", columns, body, notes)


def parts_table(found: Comparison) -> Table:
    body = [(PARTS[name], t.low, t.median, t.low - found["program"].low, t.spread) for name, t in found.timings.items()]
    columns: list[Column | str] = [
        "part",
        *_TIMES,
        Column("µs above the program", micros),
        Column("spread", ratio),
    ]
    notes = [f"Other processes used {found.others:.2f} cores meanwhile."]
    return Table.from_rows("Parts of a call of what polytile.compile made of `x + 1`", columns, body, notes)


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long to measure")
    parser.add_argument("--without", nargs="*", choices=list(ROWS)[2:], default=[], help="rows to leave out")
    arguments = parser.parsed()
    names = [name for name in ROWS if name not in arguments.without]
    with contextlib.ExitStack() as stack:
        made = {name: stack.enter_context(Entrant("benchmarks.overhead:Contestant", {"row": name})) for name in names}
        calls = {name: one.call("call") for name, one in made.items()}
        found = compare(calls, seconds=arguments.seconds, burst_seconds=5e-3)
    with Entrant("benchmarks.overhead:Parts", {}) as entrant:
        parts = compare({name: entrant.call(name) for name in PARTS}, seconds=arguments.seconds, burst_seconds=5e-3)
    with Entrant("benchmarks.overhead:OwnKernel", {}) as entrant:
        kernel = compare({name: entrant.call(name) for name in KERNEL_CALLS}, seconds=arguments.seconds, burst_seconds=5e-3)
    show(table(found))
    show(parts_table(parts))
    show(kernel_table(kernel))
    if arguments.json:
        record.write("overhead", {"rows": found.as_json(), "parts": parts.as_json(), "kernel": kernel.as_json()})


if __name__ == "__main__":
    main()
