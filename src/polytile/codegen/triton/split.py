"""The split schedule: `splits` programs share each block of rows, for few long rows. One launch per pass:

    launch k    combines the partial results of earlier passes from scratch memory; then runs pass k over the program's
                own chunk of the row, and leaves its reductions' running values in scratch memory
    the last    if values of the row are stored after the last pass, the last program of the row to arrive stores them

A block of many columns has many partial results; the last program of each pass then combines them for all programs of
the next. If there are many programs too, that would need more registers than the rest of the launch: a schedule that
combines by a launch then has finalise launches, with `finalise` columns per program.

Program 0 of a row stores the row's values between passes. Before a scan's pass, an extra launch computes the total of
each chunk; the pass then starts from the totals of the preceding chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import sympy
import torch

from polytile.codegen.triton import scans
from polytile.codegen.triton.body import Scope
from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.codegen.triton.reductions import Reduction
from polytile.codegen.triton.schedules import gathered_row_loads, one_pass, sweep
from polytile.codegen.triton.text import masked
from polytile.codegen.triton.unit import Chunk, Unit, program
from polytile.ir import sizes
from polytile.ir.expr import Node, Reduce, Scan
from polytile.ir.loop import Store
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.scheduled import Last, Over, ScheduledLaunch, ScheduledLoop
from polytile.schedule.nest import Form

FINALISE_WARPS = 4
"""Warps per program of a finalise launch."""


def split(loop: ScheduledLoop, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launches of `loop` in which `splits` programs share each row."""
    return Split(loop, facts, overlaps).build()


class Split:
    """Builds the kernel. Its launches share the scratch memory of `memory`."""

    def __init__(self, loop: ScheduledLoop, facts: Facts, overlaps: bool) -> None:
        self.kernel, self.nest, self.schedule, self.launches = loop.kernel, loop.nest, loop.schedule, loop.launches
        self.facts, self.overlaps, self.splits = facts, overlaps, loop.schedule.splits
        self.memory: list[Scratch] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._whole: dict[int, list[int]] = {}
        """Scratch memory of a reduction's results, if the last program of a pass combines them."""

    def build(self) -> TritonKernel:
        return TritonKernel(tuple(map(self._launch, self.launches)), tuple(self.memory))

    def _launch(self, one: ScheduledLaunch) -> Launch:
        if not one.passes:
            return self._totals()
        (k,) = one.passes
        return self._finalise(k) if one.over is Over.LEFT else self._pass(k, one)

    # launches --------------------------------------------------------------------------------------------------------

    def _unit(self, back: bool = False) -> tuple[Unit, Chunk]:
        """A launch whose programs know their index within a row, and their chunk. `back`: the first program has the
        last chunk of the last rows."""
        unit = Unit(self.kernel, self.nest, self.schedule, self.facts, self.overlaps)
        unit.constants["SPLITS"] = self.splits
        unit.place(back)
        dim = unit.tile.divided(self.schedule)
        assert dim is not None
        size, block = unit.body.index(dim.size), dim.name if dim.block > 1 else "1"
        unit.out.line(f"split = {program(1, back)}" + (".to(tl.int64)" if self.facts.wide else ""))
        unit.out.line(f"chunk = tl.cdiv({size}, {block} * SPLITS) * {block}")
        unit.out.line("first = split * chunk")
        unit.out.line(f"last = tl.minimum(first + chunk, {size})")
        unit.out.line(f"row = {unit.row()}")
        return unit, Chunk(dim, "first", "last")

    def _pass(self, k: int, one: ScheduledLaunch) -> Launch:
        (unit, share), nest = self._unit(one.back), self.nest
        between = nest.row_stores(k)
        self._load_results(unit, [*nest.roots_in(k), *_roots(between)], unit.scope)
        unit.flush(unit.scope)
        if between:
            inner = unit.scope.inner()
            with unit.out.indented("if split == 0:"):
                unit.body.stores(between, inner)
                unit.flush(inner)
        for scan in nest.scans_in(k):
            self._carry(unit, scan)
        reductions = one_pass(unit, k, share)
        for reduction in reductions:
            self._store_partial(unit, reduction, reduction.across(reduction.running()))
        if one.last is not Last.NOTHING:
            self._last_program(unit, reductions if one.last is Last.COMBINES else [])
        return unit.launch(self.splits)

    def _finalise(self, k: int) -> Launch:
        """Combines the partial results of pass k. After the last pass, stores the row's values."""
        blocks = replace(self.schedule.blocks, x=self.schedule.blocks.finalise, warps=FINALISE_WARPS)
        unit = Unit(self.kernel, self.nest, replace(self.schedule, blocks=blocks), self.facts, self.overlaps)
        unit.constants["SPLITS"] = self.splits
        unit.place()
        unit.out.line(f"row = {unit.row()}")
        for node in self.nest.reduces_in(k):
            self._store_result(unit, Reduction(unit.body, node), unit.scope)
        if k == self.nest.passes - 1:
            after = self.nest.row_stores(self.nest.passes)
            self._load_results(unit, _roots(after), unit.scope)
            unit.body.stores(after, unit.scope)
        unit.flush(unit.scope)
        return unit.launch()

    def _last_program(self, unit: Unit, reductions: Sequence[Reduction]) -> None:
        """Emits the code of a row's last program: it stores the results of `reductions` for the next launch, or the
        row's values. The barrier and the counter order all stores before its loads."""
        counter = unit.scratch(len(self.memory), torch.int32)
        self.memory.append(Scratch(torch.int32, sizes.product(unit.tile.tiles), zeroed=True))
        unit.out.line("tl.debug_barrier()")
        unit.out.line(f'arrived = tl.atomic_add({counter} + tl.program_id(0), 1, sem="acq_rel")')
        with unit.out.indented("if arrived == SPLITS - 1:"):
            unit.out.line(f"tl.store({counter} + tl.program_id(0), 0)")
            inner = Scope()
            if not reductions:
                unit.fetch(gathered_row_loads(self.nest), inner)
            for reduction in reductions:
                self._store_result(unit, reduction, inner)
            after = self.nest.row_stores(self.nest.passes) if not reductions else []
            self._load_results(unit, _roots(after), inner)
            unit.body.stores(after, inner)
            unit.flush(inner)

    def _totals(self) -> Launch:
        """A launch in which every program computes the totals of its chunk for the scans."""
        unit, share = self._unit()
        totals = [Reduction(unit.body, scan) for scan in self.nest.scans]
        sweep(unit, 0, totals, share)
        for total in totals:
            self._store_partial(unit, total, total.across(total.running()))
        return unit.launch(self.splits)

    # scratch memory --------------------------------------------------------------------------------------------------

    def _memory(self, unit: Unit, reduction: Reduction, part: int) -> str:
        """The scratch memory of one part of the partial results, rows × splits elements."""
        key, dtype = (id(reduction.node), part), reduction.parts[part].dtype
        if key not in self._numbers:
            self._numbers[key] = len(self.memory)
            self.memory.append(Scratch(dtype, sympy.expand(unit.rows * self.splits)))
        return unit.scratch(self._numbers[key], dtype)

    def _place(self, unit: Unit, split: str) -> str:
        """Offset of the value of the current rows and program `split`: adjacent to the next program's if a row is
        contiguous in memory, adjacent to the next row's if rows are."""
        if self.nest.form is Form.ROW:
            return f"row * SPLITS + {split}"
        return f"{split} * ({unit.body.index(unit.rows)}) + row"

    def _store_partial(self, unit: Unit, reduction: Reduction, value: str) -> None:
        """Stores a reduction's running values, the text `value`, in scratch memory."""
        names = reduction.running("part")
        unit.out.line(f"{', '.join(names)} = {value}")
        mask = masked(unit.tile.masks(unit.tile.parallel_dims))
        for k, name in enumerate(names):
            unit.out.line(f"tl.store({self._memory(unit, reduction, k)} + ({self._place(unit, 'split')}), {name}{mask})")

    def _partial_results(self, unit: Unit, reduction: Reduction, scope: Scope, before: bool) -> list[str]:
        """The partial results of all programs of the rows, or of the programs before this one, as blocks."""
        at = unit.tile.reduced_at[-1]
        which = f"tl.arange(0, SPLITS){unit.tile.along(unit.tile.dims[at])}"
        masks = unit.tile.masks(unit.tile.parallel_dims) + ([f"({which} < split)"] if before else [])
        names = reduction.running("all")
        for k, (name, part) in enumerate(zip(names, reduction.parts, strict=True)):
            load = self._load(self._memory(unit, reduction, k), self._place(unit, which), masks, part.literal)
            scope.lines.append(f"{name} = {load}")
        return names

    def _load(self, memory: str, place: str, masks: list[str], other: str) -> str:
        """The text of a load of partial results at `place`, with `other` where the masks do not hold."""
        inside = f"{masked(masks)}, other={other}" if masks else ""
        return f'tl.load({memory} + ({place}){inside}, cache_modifier=".cg")'

    def _store_result(self, unit: Unit, reduction: Reduction, scope: Scope) -> None:
        """Combines a reduction's results and stores them in scratch memory, one per row."""
        reduction.finish(self._partial_results(unit, reduction, scope, before=False), scope)
        numbers = self._whole[id(reduction.node)] = []
        mask = masked(unit.tile.masks(unit.tile.parallel_dims))
        for name, dtype in reduction.results(Scope()):
            numbers.append(len(self.memory))
            self.memory.append(Scratch(dtype, unit.rows))
            scope.lines.append(f"tl.store({unit.scratch(numbers[-1], dtype)} + (row), {name}{mask})")

    def _load_results(self, unit: Unit, roots: Iterable[Node], scope: Scope) -> None:
        """Adds the results of the reductions that `roots` need to `scope`."""
        for node in _outermost(roots):
            if id(node) in scope.names:
                continue
            reduction = Reduction(unit.body, node)
            if id(node) not in self._whole:
                reduction.finish(self._partial_results(unit, reduction, scope, before=False), scope)
                continue
            mask = masked(unit.tile.masks(unit.tile.parallel_dims))
            for (name, dtype), number in zip(reduction.results(scope), self._whole[id(node)], strict=True):
                scope.lines.append(f"{name} = tl.load({unit.scratch(number, dtype)} + (row){mask})")

    def _carry(self, unit: Unit, scan: Scan) -> None:
        """Emits a scan's initial carry: the combined totals of the preceding programs."""
        reduction = Reduction(unit.body, scan)
        left = self._partial_results(unit, reduction, unit.scope, before=True)
        (carry,) = scans.carries(unit.body, scan)
        unit.scope.lines.append(f"{carry} = {reduction.across(left)}")


def _roots(stores: Iterable[Store]) -> list[Node]:
    return [root for store in stores for root in store.roots]


def _outermost(roots: Iterable[Node]) -> list[Reduce]:
    """The reductions reached from `roots` without passing through another."""
    reductions: dict[int, Reduce] = {}
    stack, seen = list(roots), set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Reduce):
            reductions[id(node)] = node
        else:
            stack.extend(node.children)
    return list(reductions.values())
