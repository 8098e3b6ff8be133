"""Loops remember the ATen calls that they came from, so that these can run in their place.

    loop a for p0 over r0                                   or   %0 = aten.mul(x, 2)
      out[p0] = reduce sum maximum (x[p0, r0] * 2) 0             %1 = aten.relu(%0)
                                                                 aten.sum.dim_IntList(%1, [1])  -> out

The calls are those of the graph's operators on the way from what the loop loads to what it stores, whatever was fused, inlined or
split in between. `calls_from` says why a loop has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from polytile.ir import sizes
from polytile.ir.calls import calls_of, changes_nothing, mapped
from polytile.ir.program import Axis, LibraryCall, Loop, Made, Operator, Program, Ref, View

MOST_CALLS = 48
"""Calls of one loop: more are no match for it, and each brings numbers for the kernel to take."""


def remember_calls(program: Program) -> Program:
    """`program` with the calls of every loop that is not known to be one operator, where it has such a form."""
    writers = _writers(program)
    known = _known_symbols(program)

    def one(loop: Loop) -> Loop:
        if calls_of(loop, program.buffers):
            return loop
        try:
            return replace(loop, library=_Slice(loop, program, writers, known).calls())
        except NoCalls:
            return replace(loop, library=())

    operations = tuple(one(o) if isinstance(o, Loop) else o for o in program.operations)
    return replace(program, operations=operations)


def why_none(loop: Loop, program: Program) -> str:
    """Why a loop of the program has no calls, "" where it has."""
    try:
        _Slice(loop, program, _writers(program), _known_symbols(program)).calls()
    except NoCalls as reason:
        return str(reason)
    return ""


class NoCalls(Exception):
    """A loop has no form as ATen calls; the message says why."""


def _writers(program: Program) -> dict[str, int]:
    """How many operations write to each buffer; the caller counts as one of an input's."""
    found = dict.fromkeys(program.input_buffers() | program.constants.keys(), 1)
    for operation in program.operations:
        for name in operation.writes():
            found[name] = found.get(name, 0) + 1
    return found


def _known_symbols(program: Program) -> set[sympy.Symbol]:
    """The sizes that are known before anything has run."""
    found = [e for name in program.input_buffers() for e in (*program.buffers[name].sizes, *program.buffers[name].strides)]
    found += [i.size for i in program.inputs if isinstance(i.size, sympy.Expr)]
    return set().union(*[e.free_symbols for e in found])


@dataclass
class _Slice:
    """The calls of one loop as they are collected: `positions` has the place of each operator among them."""

    loop: Loop
    program: Program
    writers: Mapping[str, int]
    known: set[sympy.Symbol]
    found: list[LibraryCall] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)

    def calls(self) -> tuple[LibraryCall, ...]:
        """Raises NoCalls."""
        loop, places = self.loop, self.program.trace.places
        shared = [name for name in loop.reads() | loop.writes() if self.writers.get(name, 0) > 1]
        if shared or loop.reads() & loop.writes():
            raise NoCalls("it changes memory, or memory that it uses is changed")
        wanted: dict[Made, View] = {}
        for name in sorted(loop.writes()):
            made = next((m for m, view in places.items() if view.buffer == name and self._is_whole(view)), None)
            if made is None or self._operator(made).stored:
                raise NoCalls(f"what it stores in {name} is no operator's result")
            wanted[made] = places[made]
        for made in wanted:
            self._visit(str(made.call))
        for made, view in wanted.items():
            self._store(made, view)
        return tuple(self.found)

    def _is_whole(self, view: View) -> bool:
        buffer = self.program.buffers[view.buffer]
        return (view.dtype, view.sizes, view.strides, view.offset) == (buffer.dtype, buffer.sizes, buffer.strides, 0)

    def _operator(self, made: Made) -> Operator:
        return self.program.trace.operators[str(made.call)]

    def _visit(self, last: str) -> None:
        """Adds the call of an operator behind those of all that it needs."""
        stack = [last]
        while stack:
            name = stack[-1]
            operator = self.program.trace.operators[name]
            if name in self.positions:
                stack.pop()
                continue
            if operator.refused:
                raise NoCalls(operator.refused)
            missing = [str(made.call) for made in _made_in((operator.args, operator.kwargs)) if self._is_computed(made)]
            missing = [each for each in missing if each not in self.positions]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if len(self.found) == MOST_CALLS:
                raise NoCalls(f"it does the work of more than {MOST_CALLS} operators")
            self.positions[name] = len(self.found)
            self.found.append(self._call(operator))

    def _is_computed(self, made: Made) -> bool:
        """Whether a result is neither in memory that the loop reads nor one whose sizes alone matter."""
        return not self._loaded(made) and not self._operator(made).stored

    def _loaded(self, made: Made) -> bool:
        view = self.program.trace.places.get(made)
        return view is not None and view.buffer in self.loop.reads()

    def _call(self, operator: Operator) -> LibraryCall:
        def ref(value: Made) -> Ref:
            if self._loaded(value):
                return Ref(self.program.trace.places[value])
            if not self._is_computed(value):
                return Ref(self._sizes_alone(value))
            return Ref(Made(self.positions[str(value.call)], value.output))

        args, kwargs = mapped((operator.args, operator.kwargs), lambda view: Ref(view), Ref, ref)
        unknown = {s for e in _numbers((args, kwargs)) for s in e.free_symbols} - self.known
        if unknown:
            raise NoCalls(f"{', '.join(map(str, unknown))} is known only at run time")
        return LibraryCall(operator.target, args, kwargs, (None,) * len(operator.results), moved=self._moved(operator))

    def _sizes_alone(self, made: Made) -> View:
        """A view of no buffer, like a result that is in memory and that the loop does not read."""
        results = self._operator(made).results
        result = results[made.output or 0] if len(results) > (made.output or 0) else None
        if result is None:
            raise NoCalls(f"{made.call} is no tensor")
        return View("", result[1], result[0], (sizes.ZERO,) * len(result[0]))

    def _store(self, made: Made, view: View) -> None:
        position = self.positions[str(made.call)]
        call = self.found[position]
        outputs = list(call.outputs)
        outputs[made.output or 0] = view
        self.found[position] = replace(call, outputs=tuple(outputs))

    # traffic -----------------------------------------------------------------------------------------------------------

    def _moved(self, operator: Operator) -> tuple[int, int]:
        """Bytes that the call moves at each point of the loop and at each row; what is smaller does not count."""
        if changes_nothing(operator.target):
            return 0, 0
        tensors = [result for result in operator.results if result is not None]
        for made in _made_in((operator.args, operator.kwargs)):
            results = self._operator(made).results
            if (known := results[made.output or 0]) is not None and (self._is_computed(made) or self._loaded(made)):
                tensors.append(known)
        rows = _points(self.loop.axes)
        points = sympy.expand(rows * _points(self.loop.reduced))
        each = [(sympy.expand(sizes.product(shape)), dtype.itemsize) for shape, dtype in tensors]
        at_points = sum(size for count, size in each if count == points)
        return at_points, sum(size for count, size in each if count == rows != points)


def _points(axes: tuple[Axis, ...]) -> sympy.Expr:
    return sympy.expand(sizes.product([axis.size for axis in axes]))


def _made_in(value: Any) -> list[Made]:
    found: list[Made] = []
    mapped(value, lambda view: None, lambda e: None, found.append)
    return found


def _numbers(value: Any) -> list[sympy.Expr]:
    found: list[sympy.Expr] = []
    mapped(value, lambda view: found.extend((*view.sizes, *view.strides, view.offset)), found.append)
    return found


__all__ = ["remember_calls", "why_none"]
