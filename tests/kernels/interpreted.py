"""Every schedule of the Triton generator for one loop, in small blocks that overhang and repeat, under the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from polytile.ir import sizes
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.facts import Facts, needs_wide
from polytile.kernels.nest import Form, Nest, nest_of
from polytile.kernels.triton import interpret
from polytile.kernels.triton.generate import generate, nest_for
from polytile.kernels.triton.split import splittable
from polytile.kernels.triton.variants import row_axes
from polytile.problem import Config

Run = Callable[[Sequence[Any]], None]


def runs(kernel: LoopKernel, values: Mapping[str, int]) -> Iterator[tuple[str, Run]]:
    """(name, run) of each schedule at these sizes, without facts about the call and with all that hold."""
    for config in configs(kernel, nest_of(kernel.loop), values):
        for label, facts in (("bare", Facts(wide=True)), ("facts", facts_of(kernel, values))):
            yield f"{config} {label}", _run(kernel, config, facts)


def facts_of(kernel: LoopKernel, values: Mapping[str, int]) -> Facts:
    """All that holds at these sizes, small ones exact."""
    exact = tuple((name, n) for name, n in values.items() if n <= 8)
    divisible = frozenset(name for name, n in values.items() if n % 16 == 0 and n > 8)
    return Facts(divisible, frozenset(t.name for t in kernel.tensors), needs_wide(kernel, values), exact)


def configs(kernel: LoopKernel, nest: Nest, values: Mapping[str, int]) -> list[Config]:
    """A config of each schedule, blocks and loops both small; a persistent one holds the row."""
    if nest.form is Form.POINTWISE:
        shapes = ({"x": 16}, {"x": 64, "y": 2}, {"x": 4, "y": 8, "z": 2}) if len(nest.loop.axes) > 1 else ({"x": 64},)
        return [Config.of(variant="plain", warps=4, **shape) for shape in shapes]
    numbers = {s: values[s.name] for s in kernel.symbols}
    rows = [sizes.evaluate(a.size, numbers) for a in row_axes(nest)]
    found = []
    if len(rows) <= 2 and max(rows) <= 4096:
        whole = dict(zip(("r", "r1"), (max(2, 1 << (n - 1).bit_length()) for n in rows), strict=False))
        found += [Config.of(variant="persistent", warps=4, **whole), Config.of(variant="persistent", warps=4, x=4, **whole)]
    found += [Config.of(variant="looped", warps=4, x=4, r=16), Config.of(variant="looped", warps=4, r=64)]
    if len(rows) > 1:
        found.append(Config.of(variant="looped", warps=4, x=2, r=8, r1=4))
    if splittable(nest_for(kernel, "split")[1]):
        found.append(Config.of(variant="split", warps=4, x=4, r=16, splits=4))
        if len(rows) > 1:
            found.append(Config.of(variant="split", warps=4, x=2, r=8, r1=4, splits=2, along="r1"))
    return found


def _run(kernel: LoopKernel, config: Config, facts: Facts) -> Run:
    made = generate(kernel, config, facts)

    def run(args: Sequence[Any]) -> None:
        tensors = dict(zip([t.name for t in kernel.tensors], args, strict=False))
        values = dict(zip([s.name for s in kernel.symbols], args[len(kernel.tensors) :], strict=True))
        code = interpret.run(made, tensors, values)
        if code:
            raise IndexError(f"check {code}")

    return run
