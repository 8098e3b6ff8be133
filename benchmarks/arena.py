"""How much memory do whole models take? `python -m benchmarks.arena [--models gpt2] [--json]`; `--show` prints what is committed.

The models of benchmarks.models are compiled once, in inference and in training, and called at sizes of which none was planned
for. For each call of each program the launcher's own code in C (runtime/arena.c) places the memories in the arena. "Arena over
bound" compares its size with what no placement could do without: the bytes of those memories that are needed at the same time,
each only from the line that makes it to the last line that names it. "Peak over eager" compares the most that a program holds at
once, results and what autograd saves included, with the most that eager's tensors hold. Weights and inputs are left out, and so
is what operators allocate and free within a call. All of this is arithmetic on sizes: kernels do nothing, no results are right,
and a CPU shows what a GPU would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.models import MODES, step
from benchmarks.timing import geomean
from polytile.ir.program import Buffer
from polytile.ir.sizes import evaluate
from polytile.report import Column, Table, show
from polytile.report.tables import ratio
from polytile.runtime import native
from polytile.wrapper import Line, Wrapped, arena, lines, python, register_backend
from tests.models.hub import HUB
from tests.models.zoo import MODELS

TRACED = 7
SIZES = tuple(range(9, 107, 5))
"""Twenty sizes. Programs are compiled at the size TRACED."""
ALIGNMENT = 64
BACKEND = "recorded for benchmarks.arena"
OPTIONS = {"wrapper": BACKEND, "stall": "compile", "tune": "off", "persist": False, "race_eager": False}

@dataclass(frozen=True)
class Program:
    """A program's lines, and its memories; `spans` are for each of them the lines between which some name of it is needed."""

    lines: tuple[Line, ...]
    memories: tuple[arena.Memory, ...]
    spans: tuple[tuple[tuple[int, int], ...], ...]
    has_arena: bool


@dataclass(frozen=True)
class Call:
    """Bytes of one call of a program: those of its arena, the least it could take, and the peak of everything. `used`: whether
    there is an arena; elsewhere one would raise the peak, and memories are allocated one by one."""

    arena: int
    bound: int
    peak: int
    used: bool


@dataclass(frozen=True)
class Cell:
    """A model at one size: its programs' calls, and eager's peak in bytes."""

    size: int
    eager: int
    calls: list[Call] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """A forward's results that its backward gets are counted in both, so the larger of the two counts."""
        return max(call.peak for call in self.calls)


called: list[Call] = []
given: set[int] = set()
"""The storages of weights and inputs, which are the caller's."""


def recording(name: str, all_lines: tuple[Line, ...]) -> Wrapped:
    """A wrapper backend: Python's, with kernels that do nothing and a note of what each call takes."""
    idle = tuple(line for line in all_lines if not isinstance(line, lines.DefineKernel | lines.CallKernel))
    wrapped, program = python.wrap(name, idle), program_of(all_lines)

    def call(args: list[Any]) -> list[Any]:
        called.append(taken(program, args))
        return wrapped.call(args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return Wrapped(wrapped.source, call)


def program_of(all_lines: tuple[Line, ...]) -> Program:
    made = arena.arena(all_lines, arena_symbols(all_lines))
    memories = tuple(arena.memories_of(all_lines)) if made is None else made.memories
    return Program(all_lines, memories, spans_of(memories, all_lines), made is not None)


def arena_symbols(all_lines: Sequence[Line]) -> set[str]:
    from polytile.wrapper.cpp import known_with_arguments

    return known_with_arguments(all_lines)


def spans_of(memories: Sequence[arena.Memory], all_lines: Sequence[Line]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """For each name of each memory the line that makes it and the last one that names it, or a view of it."""
    base = {line.name: line.view.buffer for line in all_lines if isinstance(line, lines.MakeView)}
    made, used = dict[str, int](), dict[str, int]()
    for position, line in enumerate(all_lines):
        if (buffer := getattr(line, "buffer", None)) is not None:
            made.setdefault(buffer.name, position)
        for name in arena.tensors_of(line):
            used[name] = used[base.get(name, name)] = position
    return tuple(
        tuple((made.get(name, 0), max(used.get(name, 0), made.get(name, 0))) for name in memory.names) for memory in memories
    )


def taken(program: Program, args: Sequence[Any]) -> Call:
    """What a call with these arguments takes."""
    values, tensors = bound_by(program.lines, args)
    sizes = [bytes_of(memory.buffer, values, tensors) for memory in program.memories]
    lives = [(m.first, m.last, m.inside, size) for m, size in zip(program.memories, sizes, strict=True)]
    placed, offsets = native.module().place_memories(lives)
    used = program.has_arena and placed > 0
    inside = [memory.inside and program.has_arena for memory in program.memories]
    total = max((offset + size for offset, size, own in zip(offsets, sizes, inside, strict=True) if own), default=0)
    callers = [isinstance(m.buffer, str) and is_given(tensors.get(m.buffer)) for m in program.memories]
    apart = [not (own and used) and not theirs for own, theirs in zip(inside, callers, strict=True)]
    return Call(total, least(program, sizes, inside), (total if used else 0) + peak(program, sizes, apart), used)


def bound_by(all_lines: Sequence[Line], args: Sequence[Any]) -> tuple[dict[Any, int], dict[str, Tensor]]:
    """The values of symbols, and tensors by name, that a call's arguments give."""
    by_name: dict[str, Any] = {}
    values: dict[Any, int] = {}
    for line in all_lines:
        if isinstance(line, lines.TakeArguments):
            by_name = dict(zip(line.names, args, strict=True))
        elif isinstance(line, lines.ReadSize):
            tensor = by_name[line.tensor]
            values[line.symbol] = tensor.stride(line.dim) if line.stride else tensor.size(line.dim)
        elif isinstance(line, lines.BindSize):
            own = {s: by_name[s.name] for s in line.value.free_symbols if isinstance(by_name.get(s.name), int)}
            values[line.symbol] = evaluate(line.value, {**own, **values})
    integers = {name: value for name, value in by_name.items() if isinstance(value, int)}
    return {**values, **integers}, {name: value for name, value in by_name.items() if isinstance(value, Tensor)}


def bytes_of(buffer: Buffer | str, values: Mapping[Any, int], tensors: Mapping[str, Tensor]) -> int:
    if isinstance(buffer, str):
        return rounded(tensors[buffer].untyped_storage().nbytes()) if buffer in tensors else 0
    known = {s: values[s if s in values else s.name] for e in (*buffer.sizes, *buffer.strides) for s in e.free_symbols}
    extents, strides = ([evaluate(e, known) for e in each] for each in (buffer.sizes, buffer.strides))
    if 0 in extents:
        return 0
    return rounded((1 + sum((n - 1) * s for n, s in zip(extents, strides, strict=True))) * buffer.dtype.itemsize)


def is_given(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.untyped_storage()._cdata in given


def rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def least(program: Program, sizes: Sequence[int], inside: Sequence[bool]) -> int:
    """The most bytes of the arena's memories that one line needs."""
    ends = sorted({first for spans in program.spans for first, _ in spans})
    spans = [each for each, own in zip(program.spans, inside, strict=True) if own]
    own = [size for size, one in zip(sizes, inside, strict=True) if one]

    def needed(line: int) -> int:
        return sum(size for size, each in zip(own, spans, strict=True) if any(first <= line <= last for first, last in each))

    return max(map(needed, ends), default=0)


def peak(program: Program, sizes: Sequence[int], counted: Sequence[bool]) -> int:
    """The most bytes that the counted memories hold at once."""
    own = [(memory, size) for memory, size, one in zip(program.memories, sizes, counted, strict=True) if one]
    return max((sum(size for m, size in own if m.first <= at.first < m.last) for at, _ in own), default=0)


class Held(TorchDispatchMode):
    """Within it, `peak` is the most bytes that tensors hold which were made there. Those of `given` are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.held = {key: one for key, one in self.held.items() if not one[0].expired()}
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage() if isinstance(tensor, Tensor) else None
            if storage is not None and storage._cdata not in given and storage._cdata not in self.held:
                self.held[storage._cdata] = StorageWeakRef(storage), rounded(storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self.held.values()))
        return result


def of_model(name: str, mode: str, sizes: Sequence[int]) -> list[Cell]:
    model, training = {**MODELS, **HUB}[name], MODES[mode]
    torch._dynamo.reset()
    torch.manual_seed(7)
    made = model.make().train(training)
    run = polytile.compile(made, options=OPTIONS)
    step(made, run, model.inputs(TRACED), training)
    cells = []
    for size in sizes:
        inputs = model.inputs(size)
        known = [t for t in (*made.parameters(), *made.buffers(), *tree_leaves(inputs)) if isinstance(t, Tensor)]
        given.clear()
        given.update(tensor.untyped_storage()._cdata for tensor in known)
        called.clear()
        step(made, run, inputs, training)
        mine = list(called)
        made.zero_grad(set_to_none=True)
        with Held() as held:
            step(made, made, inputs, training)
        cells.append(Cell(size, held.peak, mine))
    return cells


@dataclass(frozen=True)
class Row:
    """A model in one mode: geomean and worst over sizes, and over the programs of a call; `used` of which have an arena."""

    model: str
    mode: str
    used: str
    arena: float | None
    worst_arena: float | None
    peak: float
    worst_peak: float


def row(name: str, mode: str, cells: Sequence[Cell]) -> Row:
    placed = [call.arena / call.bound for cell in cells for call in cell.calls if call.bound]
    peaks, calls = [cell.peak / cell.eager for cell in cells], [call for cell in cells for call in cell.calls]
    used = f"{sum(call.used for call in calls)} of {len(calls)}"
    return Row(name, mode, used, geomean(placed) if placed else None, max(placed, default=None), geomean(peaks), max(peaks))


def table(rows: Sequence[Row]) -> Table:
    columns: list[Column | str] = [
        "model", "mode", "calls with an arena", Column("arena over bound", ratio), Column("worst", ratio),
        Column("peak over eager", ratio), Column("worst", ratio),
    ]  # fmt: skip
    body = [tuple(asdict(each).values()) for each in rows]
    return Table.from_rows(f"Memory of models at {len(SIZES)} sizes that nothing was planned for", columns, body)


def main() -> None:
    parser = Command(__doc__, "arena", lambda found: show(table([Row(**each) for each in found.values()])), json=True)
    parser.add_argument("--models", nargs="+", default=[*MODELS, *HUB], choices=[*MODELS, *HUB])
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    given = parser.parsed()
    register_backend(BACKEND, recording)
    rows = []
    for name in given.models:
        for mode in given.modes:
            rows.append(row(name, mode, of_model(name, mode, SIZES)))
            print(rows[-1], flush=True)
            if given.json:
                record.add("arena", f"{name}, {mode}", asdict(rows[-1]))
    show(table(rows))


if __name__ == "__main__":
    main()
