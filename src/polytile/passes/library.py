"""Records the ATen calls that each loop came from, as an alternative to running the loop.

    loop a for p0 over r0                                   or   %0 = aten.mul(x, 2)
      out[p0] = reduce sum maximum (x[p0, r0] * 2) 0             %1 = aten.relu(%0)
                                                                 aten.sum.dim_IntList(%1, [1])  -> out

The calls are the graph's operators between what the loop loads and what it stores, no matter how these were fused, inlined or
split. The NoCalls exception says why a loop has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import sympy
import torch

from polytile.ir import sizes
from polytile.ir.buffer import Buffer, View
from polytile.ir.calls import calls_of, changes_nothing, mapped, numbers_in
from polytile.ir.library_call import LibraryCall, Made, Ref, refs_in
from polytile.ir.loop import Axis, Loop
from polytile.ir.program import Operator, Program

MOST_CALLS = 48
"""Maximum number of calls for one loop. More calls cannot compete with the loop, and each adds arguments to the kernel."""


def remember_calls(program: Program) -> Program:
    """`program` with the equivalent ATen calls recorded for every loop that is not known to be a single operator."""
    known = _Known.of(program)

    def one(loop: Loop) -> Loop:
        if calls_of(loop, program.buffers):
            return loop
        for whole_operators in (True, False):
            try:
                return replace(loop, library=_Slice(loop, known, whole_operators).calls())
            except NoCalls:
                continue
        return replace(loop, library=())

    operations = tuple(one(o) if isinstance(o, Loop) else o for o in program.operations)
    return replace(program, operations=operations)


class NoCalls(Exception):
    """Raised when a loop has no equivalent ATen calls; the message says why."""


@dataclass(frozen=True)
class _Known:
    """Facts about a program.

    Attributes
    ----------
    writers
        How many operations write to each buffer. The caller counts as a writer of an input.
    makers
        The first operator result that fills all of a buffer.
    symbols
        Size symbols whose values are known before anything has run.
    """

    program: Program
    writers: Mapping[str, int]
    makers: Mapping[str, Made]
    symbols: set[sympy.Symbol]

    @staticmethod
    def of(program: Program) -> _Known:
        writers = dict.fromkeys(program.input_buffers() | program.constants.keys(), 1)
        for operation in program.operations:
            for name in operation.writes():
                writers[name] = writers.get(name, 0) + 1
        makers: dict[str, Made] = {}
        for made, view in program.trace.places.items():
            if view.buffer in program.buffers and _is_all(view, program.buffers[view.buffer]):
                makers.setdefault(view.buffer, made)
        inputs = [program.buffers[name] for name in program.input_buffers()]
        extents = [e for buffer in inputs for e in (*buffer.sizes, *buffer.strides)]
        extents += [i.size for i in program.inputs if isinstance(i.size, sympy.Expr)]
        return _Known(program, writers, makers, set().union(*[e.free_symbols for e in extents]))


def _is_all(view: View, buffer: Buffer) -> bool:
    """Whether a view covers all of a buffer, with its dimensions in any order."""
    mine, own = (Counter(p for p in zip(x.sizes, x.strides, strict=True) if p[0] != 1) for x in (view, buffer))
    return view.dtype == buffer.dtype and view.offset == 0 and mine == own


@dataclass
class _Slice:
    """Collects the calls of one loop in `steps`; `positions` has the index of each operator among them.

    With `wholes`, a decomposed operator is called as a whole if all its arguments are available.
    """

    loop: Loop
    known: _Known
    wholes: bool
    steps: list[LibraryCall] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)

    def calls(self) -> tuple[LibraryCall, ...]:
        """Collect the calls.

        Raises
        ------
        NoCalls
            If the loop has no equivalent calls.
        """
        loop, trace = self.loop, self.known.program.trace
        shared = [name for name in loop.reads() | loop.writes() if self.known.writers.get(name, 0) > 1]
        if shared or loop.reads() & loop.writes():
            raise NoCalls("it changes memory, or memory that it uses is changed")
        wanted: dict[Made, View] = {}
        for name in sorted(loop.writes()):
            made = self.known.makers.get(name)
            if made is None or self._operator(made).stored:
                raise NoCalls(f"what it stores in {name} is no operator's result")
            wanted[made] = trace.places[made]
        for made in wanted:
            self._visit(str(self._called(made).call))
        for made, view in wanted.items():
            self._store(self._called(made), view)
        taken = {view.buffer for call in self.steps for view in call.views()} - loop.writes()
        if taken != loop.reads():  # a value may be stored in several buffers, of which the trace knows one
            raise NoCalls(f"it loads {', '.join(sorted(loop.reads() - taken))}, which no operator takes from there")
        return tuple(self.steps)

    def _operator(self, made: Made) -> Operator:
        return self.known.program.trace.operators[str(made.call)]

    def _visit(self, last: str) -> None:
        """Append the call of an operator, after the calls of all operators that it depends on."""
        stack = [last]
        while stack:
            name = stack[-1]
            operator = self.known.program.trace.operators[name]
            if name in self.positions:
                stack.pop()
                continue
            if operator.refused:
                raise NoCalls(operator.refused)
            computed = [made for made in _made_in(operator) if self._is_computed(made)]
            missing = [each for each in (str(self._called(made).call) for made in computed) if each not in self.positions]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if len(self.steps) == MOST_CALLS:
                raise NoCalls(f"it does the work of more than {MOST_CALLS} operators")
            self.positions[name] = len(self.steps)
            self.steps.append(self._call(operator))

    def _called(self, made: Made) -> Made:
        """The result that stands for `made` in the calls: that of a decomposed operator as a whole, if its arguments are
        available."""
        whole_one = self.known.program.trace.wholes.get(made) if self.wholes else None
        if whole_one is None:
            return made
        operator = self._operator(whole_one)
        at_hand = all(self._loaded(m) or not self._operator(m).stored for m in _made_in(operator))
        return whole_one if at_hand else made

    def _is_computed(self, made: Made) -> bool:
        """Whether a call must compute this result: the loop does not load it, and more of it is needed than its sizes."""
        return not self._loaded(made) and not self._operator(made).stored

    def _loaded(self, made: Made) -> bool:
        view = self.known.program.trace.places.get(made)
        return view is not None and view.buffer in self.loop.reads()

    def _call(self, operator: Operator) -> LibraryCall:
        def ref(value: Made) -> Ref:
            if self._loaded(value):
                return Ref(self.known.program.trace.places[value])
            if not self._is_computed(value):
                return Ref(self._sizes_alone(value))
            called = self._called(value)
            return Ref(Made(self.positions[str(called.call)], called.output))

        args, kwargs = mapped((operator.args, operator.kwargs), lambda view: Ref(view), Ref, ref)
        numbers = (number for each in refs_in((args, kwargs)) for number in numbers_in(each))
        unknown = set().union(*(number.free_symbols for number in numbers)) - self.known.symbols
        if unknown:
            raise NoCalls(f"{', '.join(map(str, unknown))} is known only at run time")
        return LibraryCall(operator.target, args, kwargs, (None,) * len(operator.results), moved=self._moved(operator))

    def _sizes_alone(self, made: Made) -> View:
        """A view without a buffer, in place of a result in memory that the loop does not read."""
        result = self._result(made)
        if result is None:
            raise NoCalls(f"{made.call} is no tensor")
        return View("", result[1], result[0], (sizes.ZERO,) * len(result[0]))

    def _result(self, made: Made) -> tuple[tuple[sympy.Expr, ...], torch.dtype] | None:
        """The sizes and dtype of a result; None if it is not a tensor."""
        results = self._operator(made).results
        return results[made.output or 0] if len(results) > (made.output or 0) else None

    def _store(self, made: Made, view: View) -> None:
        position = self.positions[str(made.call)]
        call = self.steps[position]
        outputs = list(call.outputs)
        outputs[made.output or 0] = view
        self.steps[position] = replace(call, outputs=tuple(outputs))

    # traffic -----------------------------------------------------------------------------------------------------------

    def _moved(self, operator: Operator) -> tuple[int, int]:
        """Bytes that the call moves per point of the loop and per row. Smaller tensors are not counted."""
        if changes_nothing(operator.target):
            return 0, 0
        tensors = [result for result in operator.results if result is not None]
        for made in _made_in(operator):
            known = self._result(made)
            if known is not None and (self._is_computed(made) or self._loaded(made)):
                tensors.append(known)
        rows = _points(self.loop.axes)
        points = sympy.expand(rows * _points(self.loop.reduced))
        each = [(sympy.expand(sizes.product(shape)), dtype.itemsize) for shape, dtype in tensors]
        at_points = sum(size for count, size in each if count == points)
        return at_points, sum(size for count, size in each if count == rows != points)


def _points(axes: tuple[Axis, ...]) -> sympy.Expr:
    return sympy.expand(sizes.product([axis.size for axis in axes]))


def _made_in(operator: Operator) -> list[Made]:
    return [each for each in refs_in((operator.args, operator.kwargs)) if isinstance(each, Made)]
