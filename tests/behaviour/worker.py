"""A process of its own that compiles a program of three kernels, runs it at some sizes and reports as JSON.

    python -m tests.behaviour.worker [--alone] [--sizes 20,300] [--option NAME=VALUE ...]

`--alone` makes every attempt to start another program an error. Results are told by their SHA-256, beside how far they
are from float64 and how far eager is.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
from typing import Any

import torch
from torch import Tensor

STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system", "os.spawn"}


def program(x: Tensor, weight: Tensor) -> Tensor:
    """A product, a softmax of it, and a scan down its columns: three kernels at least."""
    return torch.cumsum(torch.softmax(x @ weight, -1), 0)


def forbid_programs(event: str, details: Any) -> None:
    if event in STARTS:
        raise RuntimeError(f"the process started a program: {event} {details}")


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--alone", action="store_true")
    arguments.add_argument("--sizes", default="20,300")
    arguments.add_argument("--option", action="append", default=[])
    given = arguments.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    import torch._dynamo
    import torch._dynamo.backends.registry

    if given.alone:
        sys.addaudithook(forbid_programs)
    import polytile

    options = dict(option.split("=", 1) for option in given.option)
    run = torch.compile(program, backend="polytile", dynamic=True, fullgraph=True, options=options)
    print(json.dumps(report(run, [int(size) for size in given.sizes.split(",")], polytile)))


def report(run: Any, sizes: list[int], polytile: Any) -> dict[str, Any]:
    digests, worst = [], 0.0
    for size in sizes:
        generator = torch.Generator().manual_seed(size)
        x, weight = torch.randn(size, 70, generator=generator), torch.randn(70, size + 5, generator=generator)
        got, eager, exact = run(x, weight), program(x, weight), program(x.double(), weight.double())
        digests.append(hashlib.sha256(got.contiguous().numpy().tobytes()).hexdigest())
        distance = float((got - exact).abs().max()), float((eager - exact).abs().max()) + 1e-6
        worst = max(worst, distance[0] / distance[1])
    explained = polytile.explain(run, x, weight)
    return {
        "digests": digests,
        "worst": worst,
        "counters": dict(polytile.counters),
        "operators": [[row.operator, row.how, row.reason] for row in explained.operators],
        "decisions": [[row.kernel, row.candidate, row.link] for row in explained.decisions],
        "sources": list(explained.sources),
    }


if __name__ == "__main__":
    main()
