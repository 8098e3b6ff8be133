"""The demo: one compile, many shapes. `make demo`, or `python -m benchmarks.demo [--json] [--quick] [--parts ...]`.

Every part checks its results against float64 in the same run that times them, and prints its tables last.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import demo_encoder, demo_hints, demo_rows, record
from benchmarks.command import Command
from benchmarks.compilers import BACKENDS
from benchmarks.environment import DEVICE, environment
from polytile.report import Table, show

Part = Callable[[str, bool], tuple[list[Table], dict[str, Any]]]
PARTS: dict[str, Part] = {"encoder": demo_encoder.run, "rows": demo_rows.run}
if DEVICE == "cpu":  # it sets generated C++ against ATen
    PARTS = {"encoder": demo_encoder.run, "hints": demo_hints.run, "rows": demo_rows.run}


def heading(backend: str) -> str:
    facts = environment()
    device = facts.get("accelerator") or f"{facts['processor']}, {facts['cores']} cores, {facts['vector instructions']}"
    revision = f" at {facts['revision']}" if "revision" in facts else ""
    software = f"{backend}{revision} with PyTorch {facts['torch']}"
    return f"{facts['date'][:10]}: {software} on {device}, {facts['threads']} threads."


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--backend", choices=BACKENDS, default="polytile", help="what compiles (default: polytile)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="which parts run (default: all)")
    parser.add_argument("--quick", action="store_true", help="short timings: to see it work, not to quote")
    arguments = parser.parsed()

    print(heading(arguments.backend) + "\n", flush=True)
    for number, name in enumerate(arguments.parts, 1):
        progress = f"Part `{name}` ({number} of {len(arguments.parts)}): its tables come once everything in it is timed."
        print(progress, file=sys.stderr, flush=True)
        started = time.perf_counter()
        tables, results = PARTS[name](arguments.backend, arguments.quick)
        for table in tables:
            show(table)
        print(f"Part `{name}` took {time.perf_counter() - started:.0f} s.\n", flush=True)
        if arguments.json:
            suffix = "" if DEVICE == "cpu" else f"_{DEVICE}"
            suffix += "" if arguments.backend == "polytile" else f"_{arguments.backend}"
            record.write(f"demo_{name}{suffix}", {"backend": arguments.backend, "quick": arguments.quick, **results})


if __name__ == "__main__":
    main()
