"""Every schedule of the Triton generator for one loop, in small blocks that overhang and repeat, under the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from polytile.codegen.triton import interpret
from polytile.codegen.triton.generate import generate
from polytile.codegen.triton.tile import tiled_axes
from polytile.ir import sizes
from polytile.ir.loop import Axis
from polytile.problem import Config
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import INT32_REACH, Facts, reaches
from polytile.schedule.gpu import vectors
from polytile.schedule.gpu.legality import apply_rewrites, clustered, row_axes, splittable
from polytile.schedule.nest import Form, Nest, nest_of

Run = Callable[[Sequence[Any]], None]


def runs(kernel: LoopKernel, values: Mapping[str, int], turn: int) -> Iterator[tuple[str, Run]]:
    """(name, run) of one schedule at these sizes, another one each turn, and every other turn without facts about the call."""
    found = configs(kernel, nest_of(kernel.loop), values)
    config, bare = found[turn % len(found)], bool((turn // len(found) + turn) % 2)
    yield (
        f"{config} {'bare' if bare else 'facts'}",
        _run(kernel, config, Facts(wide=True) if bare else facts_of(kernel, values)),
    )


def facts_of(kernel: LoopKernel, values: Mapping[str, int]) -> Facts:
    """All that holds at these sizes, small ones exact."""
    exact = tuple((name, n) for name, n in values.items() if n <= 8)
    divisible = frozenset(name for name, n in values.items() if n % 16 == 0 and n > 8)
    given = {s: values[s.name] for s in kernel.symbols}
    wide = any(sizes.evaluate(reach, given) > INT32_REACH for reach in reaches(kernel))
    powers = vectors.divisors(kernel, values)
    return Facts(divisible, frozenset(t.name for t in kernel.tensors), wide, exact, powers=powers)


def configs(kernel: LoopKernel, nest: Nest, values: Mapping[str, int]) -> list[Config]:
    """A config of each schedule; a persistent one holds the row, other blocks divide their axes into some two or three parts."""
    numbers = {s: values[s.name] for s in kernel.symbols}

    def part(axes: Sequence[Axis], least: int) -> int:
        points = math.prod(sizes.evaluate(a.size, numbers) for a in axes)
        return max(least, 1 << (points // 3).bit_length())

    if nest.form is Form.POINTWISE:
        x, y, z = ([*[part([a], 2) for a in tiled_axes(nest)], 1, 1])[:3]
        found = [{"x": max(4, x), "y": y}, {"x": 4 * x, "y": 1 if y == 1 else 4 * y, "z": z}]
        return [Config.of(variant="pointwise", warps=4, **blocks) for blocks in found]
    x = part(nest.outer if nest.form is Form.ROW else (nest.vec,), 2)
    rows = row_axes(nest)
    lengths = [sizes.evaluate(a.size, numbers) for a in rows]
    r = min(part(rows[:1], 4), 1 << 10)
    x = min(x, 1 << 8)
    found = [{"variant": "looped", "x": x, "r": r}, {"variant": "looped", "x": 2 * x, "r": 2 * r}]
    if len(rows) <= 2 and max(lengths) <= 4096:
        whole = dict(zip(("r", "r1"), (max(2, 1 << (n - 1).bit_length()) for n in lengths), strict=False))
        found += [{"variant": "persistent", "x": x, **whole}]
    if len(rows) > 1:
        found.append({"variant": "looped", "x": x, "r": r, "r1": part(rows[1:2], 2)})
    if clustered(apply_rewrites(kernel, one_sweep=True)[1]):
        shares = [(2, max(16, 1 << (max(1, lengths[0] - 1) // 2).bit_length())), (4, 1 << max(4, (lengths[0] - 1).bit_length()))]
        block = {"x": 1} if nest.form is Form.ROW else {"x": max(2, x), "resident": 1}
        found += [{"variant": "cluster", **block, "r": own, "splits": n} for n, own in shares]
    if splittable(apply_rewrites(kernel, one_sweep=True)[1]):
        found.append({"variant": "split", "x": x, "r": r, "splits": 2})
        found.append({"variant": "split", "x": x, "r": r, "splits": 4, "stages": 3})
        if nest.form is Form.COLUMN:
            found.append({"variant": "split", "x": x, "r": r, "splits": 4, "finalise": 2})
        if len(rows) > 1:
            found.append({"variant": "split", "x": x, "r": r, "r1": 4, "splits": 2, "along": "r1"})
        if len(rows) > 2:
            found.append({"variant": "split", "x": x, "r": r, "r1": 4, "splits": 4, "along": "r2"})
    return [Config.of(**config, warps=4) for config in found]


def _run(kernel: LoopKernel, config: Config, facts: Facts) -> Run:
    made = generate(kernel, config, facts)

    def run(args: Sequence[Any]) -> None:
        tensors = dict(zip([t.name for t in kernel.tensors], args, strict=False))
        values = dict(zip([s.name for s in kernel.symbols], args[len(kernel.tensors) :], strict=True))
        code = interpret.run(made, tensors, values)
        if code:
            raise IndexError(f"check {code}")

    return run
