"""A process of its own that compiles a program, runs it at some sizes and reports as JSON.

python -m tests.dispatch.plan_worker [--plan FILE] [--save FILE] [--sizes 20,300]
"""

from __future__ import annotations

import argparse
import hashlib
import json

import torch
import torch._dynamo
from torch import Tensor

import polytile
from polytile.dispatch.decision import Decision, Standing
from polytile.dispatch.registry import alive


def program(x: Tensor, weight: Tensor) -> Tensor:
    """A product with an epilogue and a row reduction: two kernels at least, whose order of summation depends on the choice."""
    return torch.softmax(torch.relu(x @ weight), -1)


def main() -> None:
    arguments = argparse.ArgumentParser()
    for name in ("--plan", "--save"):
        arguments.add_argument(name, default="")
    arguments.add_argument("--sizes", default="20,300")
    given = arguments.parse_args()
    options = {"plan": given.plan, "plan_missing": "error"} if given.plan else {}
    run = polytile.compile(program, options=options)
    digests = []
    for size in map(int, given.sizes.split(",")):
        generator = torch.Generator().manual_seed(size)
        x, weight = torch.randn(size, 700, generator=generator), torch.randn(700, size + 5, generator=generator)
        digests.append(hashlib.sha256(run(x, weight).contiguous().numpy().tobytes()).hexdigest())
    if given.save:
        polytile.save_plan(given.save)
    kernels = alive()
    decisions = [d for kernel in kernels for d in kernel.decisions]
    sources = {(kernel.spec.name, c.name): c.source_hash for kernel in kernels for c in kernel.candidates if c.origin == "cpp"}

    def measured(decision: Decision, standing: Standing) -> bool:
        """Generated, so that it needs no other kernel, as the library's does with an epilogue."""
        return standing.seconds > 0 and (decision.kernel, standing.candidate) in sources

    report = {
        "digests": digests,
        "counters": dict(polytile.counters),
        "decisions": [[d.kernel, str(d.regime), d.candidate] for d in decisions],
        "losers": [
            [d.kernel, str(d.regime), [[s.candidate, sources[d.kernel, s.candidate]] for s in d.runners_up if measured(d, s)]]
            for d in decisions
        ],
        "links": sorted({d.link for d in decisions}),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
