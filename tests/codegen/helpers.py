"""Loops built by hand, run in every generated variant on 1, 2 and 4 threads, and compared with the interpreter."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

from polytile.candidates import cpp_loops as loops
from polytile.candidates.cpp import CppCandidate
from polytile.candidates.entries import NativeEntry
from polytile.ir import evaluate, expr, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node
from polytile.ir.loop import Axis, Loop, Store
from polytile.runtime.launcher import time_burst
from polytile.schedule.canonical import CallSite, LoopKernel, canonicalize
from tests.codegen import interpreted

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
I8, I16, I32, I64, U8, BOOL = torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool
FLOATS, INTEGERS = (F32, F64), (I8, I16, I32, I64, U8)
S0, S1, S2 = (sympy.Symbol(f"s{k}", integer=True, positive=True) for k in range(3))
P0, P1, P2 = (sizes.axis(f"p{k}") for k in range(3))
R0, R1, R2 = (sizes.axis(f"r{k}") for k in range(3))
RELATIVE = {F32: 1e-5, F64: 1e-11, BF16: 1e-2, F16: 2e-3}
GOLDEN = Path(__file__).parent / "golden"
GUARD = 64  # elements before and after every tensor that no kernel may change
Sizes = Mapping[sympy.Symbol, int]
NO_SIZES: Sizes = {}
GENERATOR = "cpp"  # what makes the kernels: the fixture `generator` sets it


def load(name: str, index: sympy.Expr | int, dtype: torch.dtype = F32, **rest: object) -> Node:
    """An element of the tensor `name` of type `dtype`, in the type in which it is computed."""
    return expr.load(compute_dtype(dtype), name, sympy.sympify(index), **rest)  # type: ignore[arg-type]


def store(name: str, index: sympy.Expr | int, value: Node, **rest: object) -> Store:
    return Store(name, sympy.sympify(index), value, **rest)  # type: ignore[arg-type]


def op(name: str, *args: Node, dtype: torch.dtype | None = None) -> Node:
    """An operation of the table on nodes, of their own type unless given."""
    return expr.op(name, dtype or args[-1].dtype, *args)


def checked(name: str, index: sympy.Expr | int, size: sympy.Expr | int) -> Node:
    """An index read from the int64 tensor `name`, checked against `size`."""
    return op("check_index", load(name, index, I64), expr.index_value(sympy.sympify(size)))


def loop(
    stores: Sequence[Store], axes: Mapping[sympy.Symbol, object], reduced: Mapping[sympy.Symbol, object] = {}
) -> Loop:
    """A loop over axes given as {symbol: size}."""
    made = [tuple(Axis(s, sympy.sympify(n)) for s, n in group.items()) for group in (axes, reduced)]
    return Loop("test", made[0], made[1], tuple(stores), ("test.op.default",))


def kernel_of(body: Loop) -> LoopKernel:
    """The kernel of a loop that writes its float32 tensors whole; the tensor `i` is int64."""
    axes = body.axes + body.reduced
    shapes = {s.buffer: tuple(a.size for a in axes if a.symbol in s.index.free_symbols) for s in body.stores}
    names = body.reads() | body.writes()
    return canonicalize(body, {b: Buffer(b, I64 if b == "i" else F32, shapes.get(b, ()), ()) for b in names})[0]


@dataclass
class Case:
    """A loop and the types of its tensors, compiled once and run at many sizes."""

    loop: Loop
    dtypes: Mapping[str, torch.dtype]
    most_threads: int = 2
    compiled: bool = True
    kernel: LoopKernel = field(init=False)
    site: CallSite = field(init=False)
    turn: int = 0

    def __post_init__(self) -> None:
        buffers = {name: Buffer(name, dtype, (), ()) for name, dtype in self.dtypes.items()}
        self.kernel, self.site = canonicalize(self.loop, buffers)
        self.candidates = [
            c
            for c in loops.loop_candidates(self.kernel, self.loop.origins, self.most_threads)
            if isinstance(c, CppCandidate)
        ]
        for candidate in self.candidates if self.compiled and GENERATOR == "cpp" else ():
            candidate.prepare()

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(str(c.config["variant"]) for c in self.candidates))

    def entries(self) -> list[tuple[str, NativeEntry]]:
        """Each variant on 1, 2 and 4 threads, or on 1 where it may not have more."""
        found = []
        for variant in self.variants:
            mine = [c for c in self.candidates if c.config["variant"] == variant]
            entry = mine[0].entry()
            threads = (1, 2, 4) if any(int(c.config["threads"]) > 1 for c in mine) else (1,)
            found += [(f"{variant} t{t}", NativeEntry(entry.address, t, entry.keep)) for t in threads]
        return found

    def runs(self, size: Sizes) -> Iterator[tuple[str, interpreted.Run]]:
        """(name, function of the flat arguments) of each kernel that the generator makes."""
        if GENERATOR == "triton":
            values = {s.name: sizes.evaluate(e, size) for s, e in zip(self.kernel.symbols, self.site.sizes, strict=True)}
            self.turn += 1
            yield from interpreted.runs(self.kernel, values, self.turn)
            return
        for name, entry in self.entries():
            yield name, functools.partial(_called, entry)

    def arguments(self, tensors: Mapping[str, torch.Tensor], size: Sizes) -> list[torch.Tensor | int]:
        values = [sizes.evaluate(e, size) for e in self.site.sizes]
        return [*[tensors[name] for name in self.site.buffers], *values]

    def check(
        self,
        tensors: Mapping[str, torch.Tensor],
        size: Sizes = NO_SIZES,
        precision: torch.dtype | None = F64,
        relative: Mapping[torch.dtype, float] = RELATIVE,
        absolute: float = 1e-30,
    ) -> None:
        """Every variant gives what the interpreter gives in `precision`, and writes nothing else."""
        want = self.expected(tensors, size, precision)
        for name, run in self.runs(size):
            guarded = {key: Guarded(tensor) for key, tensor in tensors.items()}
            run(self.arguments({k: g.tensor for k, g in guarded.items()}, size))
            for key, guard in guarded.items():
                where = f"{name}, {dict(size)}, tensor {key}"
                guard.assert_untouched(where)
                if key in self.loop.writes():
                    assert_close(guard.tensor, want[key], relative, absolute, where)
                else:
                    assert torch.equal(guard.tensor.view(torch.uint8), tensors[key].view(torch.uint8)), (
                        f"{where}: an input changed"
                    )

    def check_raises(self, tensors: Mapping[str, torch.Tensor], size: Sizes = NO_SIZES) -> None:
        """Every variant reports the failed index check and writes nothing outside of its tensors."""
        for name, run in self.runs(size):
            guarded = {key: Guarded(tensor) for key, tensor in tensors.items()}
            arguments = self.arguments({k: g.tensor if len(g.tensor) else tensors[k] for k, g in guarded.items()}, size)
            with pytest.raises(IndexError):
                run(arguments)
            for key, guard in guarded.items():
                guard.assert_untouched(f"{name}, {dict(size)}, tensor {key}")

    def expected(
        self, tensors: Mapping[str, torch.Tensor], size: Sizes, precision: torch.dtype | None
    ) -> dict[str, torch.Tensor]:
        written = self.loop.writes()
        wide = {k: _widened(t, precision) if k in written else t.clone() for k, t in tensors.items()}
        evaluate.run_loop(self.loop, wide, size, precision)
        return wide


def _called(entry: NativeEntry, arguments: Sequence[Any]) -> None:
    time_burst(entry, arguments, 1)


class Guarded:
    """A copy of a tensor between two strips that hold a pattern."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.block = torch.full((tensor.numel() + 2 * GUARD,), 77, dtype=tensor.dtype)
        self.tensor = self.block[GUARD : GUARD + tensor.numel()]
        self.tensor.copy_(tensor)

    def assert_untouched(self, where: str) -> None:
        strips = torch.cat([self.block[:GUARD], self.block[self.block.numel() - GUARD :]])
        assert bool((strips == torch.full((1,), 77, dtype=self.block.dtype)).all()), f"{where}: wrote outside"


def _widened(tensor: torch.Tensor, precision: torch.dtype | None) -> torch.Tensor:
    return tensor.to(precision or tensor.dtype, copy=True) if tensor.dtype.is_floating_point else tensor.clone()


def assert_close(
    got: torch.Tensor, want: torch.Tensor, relative: Mapping[torch.dtype, float], absolute: float, where: str
) -> None:
    """Integers are equal; floats differ by a part of their size, and agree on NaN and infinity."""
    want = want.to(got.dtype)
    if not got.dtype.is_floating_point:
        bad = got != want
    else:
        a, b = got.double(), want.double()
        near = (a - b).abs() <= relative[got.dtype] * b.abs() + absolute
        bad = ~(near | (a == b) | (a.isnan() & b.isnan()))
    if bool(bad.any()):
        k = int(bad.nonzero()[0])
        raise AssertionError(
            f"{where}: {int(bad.sum())} of {bad.numel()} differ, first at {k}: {got[k].item()}, not {want[k].item()}"
        )


def random(count: int, dtype: torch.dtype = F32, low: float = -4.0, high: float = 4.0) -> torch.Tensor:
    """Uniform numbers in [low, high), whole ones for integers, either value for bool."""
    if dtype == BOOL:
        return torch.rand(count) < 0.5
    numbers = torch.rand(count, dtype=F64) * (high - low) + low
    if dtype.is_floating_point:
        return numbers.to(dtype)
    return numbers.floor().clamp(min=torch.iinfo(dtype).min).to(dtype)


def assert_golden(name: str, text: str) -> None:
    """`text` is that of golden/NAME; POLYTILE_ACCEPT=1 writes the file instead."""
    path = GOLDEN / name
    if os.environ.get("POLYTILE_ACCEPT") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} does not exist; POLYTILE_ACCEPT=1 writes it."
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; POLYTILE_ACCEPT=1 accepts the new text."


NAN, INF = math.nan, math.inf
