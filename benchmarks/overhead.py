"""Host time of one call: `x + 1` on 8 floats, where the work itself takes nothing. `python -m benchmarks.overhead`."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.compilers import compiled
from benchmarks.contestants import Calls, Entrant
from benchmarks.timing import Comparison, compare
from polytile.report import Column, Table, show
from polytile.report.tables import micros, ratio

ROWS = {
    "eager": "eager",
    "eager backend": 'torch.compile, backend="eager" (Dynamo\'s guards alone)',
    "inductor": "torch.compile, TorchInductor",
    "polytile": "torch.compile, polytile",
}
GUARDS = "eager backend"


def add_one(x: Tensor) -> Tensor:
    return x + 1


class Contestant(Calls):
    """One row in a process of its own, compiled, checked and ready. All compiles are dynamic."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        torch.set_grad_enabled(False)
        name, x = given["row"], torch.arange(8, dtype=torch.float32)
        function: Callable[..., Tensor] = add_one
        if name != "eager":
            function = compiled(add_one, name.removesuffix(" backend"))
            function(torch.zeros(11))  # a second size, so that what is timed serves every size rather than the first one seen
        assert torch.equal(function(x), x + 1), f"{name} computed {function(x)} for {x} + 1"
        self.calls = {"call": functools.partial(function, x)}


def table(found: Comparison) -> Table:
    guards = found[GUARDS].low
    body = [
        (ROWS[name], t.low, t.median, t.low - guards if name not in ("eager", GUARDS) else None, t.spread)
        for name, t in found.timings.items()
    ]
    columns: list[Column | str] = [
        "way",
        Column("µs a call", micros),
        Column("median µs", micros),
        Column("µs above guards", micros),
        Column("spread", ratio),
    ]
    notes = [
        "µs a call: 15th percentile of bursts; spread: interquartile range over the median. Other processes used "
        f"{found.others:.2f} cores meanwhile."
    ]
    return Table.from_rows("Host time of a call: `x + 1` on 8 floats, one dynamic compile", columns, body, notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=8.0, help="how long to measure")
    parser.add_argument("--without", nargs="*", choices=list(ROWS)[2:], default=[], help="rows to leave out")
    parser.add_argument("--json", action="store_true", help="also write benchmarks/results/overhead.json")
    arguments = parser.parse_args()
    names = [name for name in ROWS if name not in arguments.without]
    with contextlib.ExitStack() as stack:
        made = {name: stack.enter_context(Entrant("benchmarks.overhead:Contestant", {"row": name})) for name in names}
        calls = {name: one.call("call") for name, one in made.items()}
        found = compare(calls, seconds=arguments.seconds, burst_seconds=5e-3)
    show(table(found))
    if arguments.json:
        record.write("overhead", found.as_json())


if __name__ == "__main__":
    main()
