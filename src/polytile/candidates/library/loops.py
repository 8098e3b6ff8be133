"""A loop's library operators as a candidate: the ATen calls that it came from (`ir/calls.py`), in order.

    relu(x * 2).sum(1)  →   r0 = mul(t0, 2);  r1 = relu(r0);  sum(r1, [1], out=t1)

Intermediate results are allocated as they come, and the last call that produces an output writes it. Where an output overlaps
what the loop reads, results are computed first and copied there at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import CodeType
from typing import Any

import torch

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.errors import IRError
from polytile.ir import sizes as algebra
from polytile.ir.buffer import View
from polytile.ir.calls import changes_nothing, expressions, mapped
from polytile.ir.library_call import LibraryCall, Made
from polytile.problem import Config, digest
from polytile.runtime.formula import encode, evaluate
from polytile.runtime.functions import quickest
from polytile.schedule.canonical import LoopKernel

COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)
"""Operators whose forms that write into a given tensor copy twice."""

PAD = torch.ops.aten.constant_pad_nd.default
"""An operator whose form that writes into a given tensor pads first and copies all of it then."""

MOST_SHAPES = 256
"""Shapes for which a candidate remembers the sizes and strides of its arguments."""


@dataclass(frozen=True)
class Speed:
    """Time of library calls: seconds of each call, and bytes a second by the number of bytes moved."""

    call: float
    bandwidth: Callable[[float], float]


@dataclass(frozen=True)
class _Look:
    """A view of tensor number `at` of a call; -1: of a tensor of which only the sizes matter. `whole`: the tensor itself,
    unless it comes flat, as tensors do that are made for tuning."""

    at: int
    whole: bool
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def sizes_alone(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """A tensor of these sizes, on the device of a call's `tensors`, for which there is no memory."""
        return torch.zeros((), dtype=self.dtype, device=tensors[0].device).expand(self.sizes)


@dataclass(frozen=True)
class _Step:
    """`function(*args, **named)`, whose result later steps know by the number of the call; then copies of (result number, where
    to). Arguments are looks, results of steps before (Made) and plain values."""

    call: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    named: Mapping[str, Any]
    copies: tuple[tuple[int | None, _Look], ...] = ()


class AtenCalls(Candidate):
    """The calls as a candidate beside those `generated`. `recordable`: on a GPU, see PythonEntry."""

    name = "aten"
    origin = "library"
    config = Config()

    def __init__(self, kernel: LoopKernel, generated: Sequence[Candidate], speed: Speed, recordable: bool = False) -> None:
        self.kernel, self.generated, self.speed, self.recordable = kernel, generated, speed, recordable
        self.calls = kernel.library
        self._tensors = {tensor.name: k for k, tensor in enumerate(kernel.tensors)}
        self._count = len(kernel.tensors)
        self._bound: dict[tuple[int, ...], Bound] = {}
        self._functions: dict[torch._ops.OpOverload, Callable[..., Any]] = {}
        places = {symbol: k for k, symbol in enumerate(kernel.symbols)}
        self._formulas = {e: encode(e, places) for e in dict.fromkeys(expressions(self.calls))}

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators that are called, in order; those that only look at memory in another way are left out."""
        return tuple(str(call.target) for call in self.calls if not changes_nothing(call.target))

    @cached_property
    def source_hash(self) -> str:
        return digest(f"aten {torch.__version__} {self.kernel.text}")

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Seconds of the calls' memory traffic and of the calls themselves, at least those of the best generated loop: if
        nothing may be measured, generated code runs."""
        values = {symbol: sizes[symbol.name] for symbol in self.kernel.symbols}
        loop = self.kernel.loop
        rows, row = (math.prod(algebra.evaluate(a.size, values) for a in axes) for axes in (loop.axes, loop.reduced))
        moved = [rows * row * at_points + rows * at_rows for at_points, at_rows in (call.moved for call in self.calls)]
        passes = sum(each / self.speed.bandwidth(each) for each in moved if each)
        best = min((candidate.cost(sizes) for candidate in self.generated if candidate.valid(sizes)), default=0.0)
        return max(passes, best) + self.speed.call * max(1, len(self.operators))

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, self.recordable)

    def _call(self, *args: Any) -> None:
        ints = args[self._count :]
        bound = self._bound.get(ints)
        if bound is None:
            if len(self._bound) >= MOST_SHAPES:
                self._bound.clear()
            bound = self._bound[ints] = self._bound_calls(ints, args)
        bound(args)

    def _bound_calls(self, ints: Sequence[int], tensors: Sequence[Any]) -> Bound:
        """The calls at these sizes, as a function of tensors like `tensors`."""
        values = {e: evaluate(formula, ints) for e, formula in self._formulas.items()}
        steps = self._steps(values, apart=False, tensors=tensors)
        own = [k for k, tensor in enumerate(self.kernel.tensors) if tensor.role == "out"]
        read = [k for k, tensor in enumerate(self.kernel.tensors) if tensor.role == "in"]
        if not own or not read:
            return composed(steps)
        return composed(steps, Shared(own, read, self._unfused_calls(values, tensors)))

    def _unfused_calls(self, values: Mapping[Any, int], tensors: Sequence[Any]) -> Bound:
        """The calls that write nothing before the last of them has run; made when they are needed, which is seldom."""
        made = functools.cache(lambda: composed(self._steps(values, apart=True, tensors=tensors)))
        return lambda given: made()(given)

    def _steps(self, values: Mapping[Any, int], apart: bool, tensors: Sequence[Any]) -> list[_Step]:
        """The calls with the numbers of these sizes; `apart`: no result is written before the last call has run."""
        steps = [self._step(k, call, values, apart) for k, call in enumerate(self.calls)]
        if len(steps) == 1 and self.calls[0].target not in COPIES:
            steps = [replace(steps[0], function=self._quickest(steps[0], tensors))]
        return steps

    def _step(self, number: int, call: LibraryCall, values: Mapping[Any, int], apart: bool) -> _Step:
        def look(view: View) -> _Look:
            extents, strides = (tuple(values[e] for e in group) for group in (view.sizes, view.strides))
            at, whole = self._tensors.get(view.buffer, -1), view.buffer in call.whole
            return _Look(at, whole, view.dtype, extents, strides, values[view.offset])

        args, kwargs = mapped((call.args, call.kwargs), look, lambda e: values[e], lambda made: made)
        named, outputs = dict(kwargs), [None if view is None else look(view) for view in call.outputs]
        if call.target in COPIES and outputs[0] is not None and not apart:
            return _Step(number, torch.Tensor.copy_, (outputs[0], args[0]), {})
        if call.target == PAD and isinstance(args[0], _Look) and outputs[0] is not None and not apart:
            value = args[2] if len(args) > 2 else kwargs.get("value", 0)
            return _Step(number, _filled, (outputs[0], value, *_overlap(outputs[0], args[0], args[1])), {})
        into, names = into_form(call.target)
        if outputs and None not in outputs and into is not None and not apart and len(names) == len(outputs):
            return _Step(number, into, args, named | dict(zip(names, outputs, strict=True)))
        several = len(call.target._schema.returns) > 1 if hasattr(call.target, "_schema") else False
        copies = tuple((k if several else None, output) for k, output in enumerate(outputs) if output is not None)
        return _Step(number, call.target._op, args, named, copies)

    def _quickest(self, step: _Step, tensors: Sequence[Any]) -> Callable[..., Any]:
        """What calls the one operator in the least time, seen on `tensors`."""
        args, named = step.args, step.named
        target = self.calls[0].target if step.copies else step.function  # which writes its results itself
        if not isinstance(target, torch._ops.OpOverload):
            return step.function
        if target not in self._functions:
            laid: list[Any] = []
            composed([_Step(0, lambda *given, **more: laid.extend((given, more)), tuple(args), named)])(tensors)
            self._functions[target] = quickest(target, *laid)
        return self._functions[target]


def _filled(out: torch.Tensor, value: Any, inside: torch.Tensor, x: torch.Tensor) -> None:
    out.fill_(value)
    inside.copy_(x)


def _overlap(out: _Look, x: _Look, pad: Sequence[int]) -> tuple[_Look, _Look]:
    """Where both a padded result and its argument have elements, in either; `pad` is (before, after) of the last dimension, then
    of the one before it, and so on, negative where it crops."""
    before = [0] * (len(x.sizes) - len(pad) // 2) + list(pad[-2::-2])
    after = [0] * (len(x.sizes) - len(pad) // 2) + list(pad[-1::-2])
    kept = tuple(max(0, n + min(0, b) + min(0, a)) for n, b, a in zip(x.sizes, before, after, strict=True))

    def part(look: _Look, starts: Sequence[int]) -> _Look:
        begin = look.offset + sum(max(0, start) * stride for start, stride in zip(starts, look.strides, strict=True))
        return _Look(look.at, False, look.dtype, kept, look.strides, begin)

    return part(out, before), part(x, [-b for b in before])


Bound = Callable[[Sequence[Any]], Any]
"""A call that takes the tensors of a kernel."""


@dataclass(frozen=True)
class Shared:
    """What is called instead where a tensor of `own` begins where one of `read` does."""

    own: Sequence[int]
    read: Sequence[int]
    instead: Bound


def composed(steps: Sequence[_Step], shared: Shared | None = None) -> Bound:
    """The steps as one function of the tensors that looks among their arguments are at, made from its text: going through looks
    and lists at each call takes as long as a small operator. Results are given up after their last use; copies come last. Returns
    what the last step does."""
    writer = _Writer()
    if shared is not None:
        writer.unless(shared)
    last: dict[int, int] = {}
    for place, step in enumerate(steps):
        last.update({made.call: place for made in _made_in((step.args, *step.named.values()))})  # type: ignore[misc]
        last.setdefault(step.call, place)
    held = {step.call for step in steps if step.copies} | {steps[-1].call}
    for place, step in enumerate(steps):
        writer.step(step)
        writer.forget(call for call, end in last.items() if end == place and call not in held)
    for step in steps:
        writer.copy(step)
    return writer.function(steps[-1].call)


class _Writer:
    """The text of a function of tensors, and the values that its names stand for."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.lines: list[str] = []
        self.looks: dict[_Look, str] = {}

    def unless(self, shared: Shared) -> None:
        """Begins with the look whether memory is shared."""
        places = {k: f"tensors[{k}].data_ptr()" for k in (*shared.own, *shared.read)}
        self.lines.append(f"read = ({', '.join(places[k] for k in shared.read)},)")
        same = " or ".join(f"{places[k]} in read" for k in shared.own)
        self.lines.append(f"if {same}: return {self._value(shared.instead)}(tensors)")

    def step(self, step: _Step) -> None:
        given = [self._text(value) for value in step.args]
        given += [f"{name}={self._text(value)}" for name, value in step.named.items()]
        self.lines.append(f"r{step.call} = {self._value(step.function)}({', '.join(given)})")

    def copy(self, step: _Step) -> None:
        for output, look in step.copies:
            result = f"r{step.call}" if output is None else f"r{step.call}[{output}]"
            self.lines.append(f"{self._text(look)}.copy_({result})")

    def forget(self, calls: Iterator[int]) -> None:
        self.lines += [f"r{call} = None" for call in calls]

    def function(self, last: int) -> Bound:
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return r{last}"])
        exec(_compiled(f"def call(tensors):\n{body}"), self.names)
        return self.names["call"]

    def _value(self, value: Any) -> str:
        name = f"v{len(self.names)}"
        self.names[name] = value
        return name

    def _text(self, value: Any) -> str:
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self._text, value))}]"
        if isinstance(value, Made):
            return f"r{value.call}" if value.output is None else f"r{value.call}[{value.output}]"
        return self._look(value) if isinstance(value, _Look) else self._value(value)

    def _look(self, look: _Look) -> str:
        """A name that the tensor has from here on."""
        if look not in self.looks:
            name = self.looks[look] = f"t{len(self.looks)}"
            if look.at < 0:
                self.lines.append(f"{name} = {self._value(look.sizes_alone)}(tensors)")
                return name
            extents, strides = self._value(look.sizes), self._value(look.strides)
            same = f"{name}.shape == {extents} and {name}.stride() == {strides}"
            if look.whole:
                same = f"{name}.dim() == {len(look.sizes)}"
            view = f"{name} = {name}.as_strided({extents}, {strides}, {name}.storage_offset() + {look.offset})"
            self.lines += [f"{name} = tensors[{look.at}]", view if look.offset else f"if not ({same}): {view}"]
        return self.looks[look]


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> CodeType:
    """Sizes are values of the names in the text, so calls at all sizes mostly share it. Compiling it takes 0.2 ms."""
    return compile(text, "<polytile library call>", "exec")


def _made_in(value: Any) -> Iterator[Made]:
    if isinstance(value, Made):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _made_in(item)


@functools.cache
def into_form(target: Any) -> tuple[Any, tuple[str, ...]]:
    """The overload of `target` that writes its results into given tensors, and the names of these; None without one. What torch
    generates for operators without one copies their results. With a copy here the operator itself is called, which is faster."""
    own = _signature(target)
    for name in target.overloadpacket.overloads():
        other = getattr(target.overloadpacket, name)
        outs = tuple(a.name for a in other._schema.arguments if a.is_out)
        if outs and _signature(other) == own and torch.Tag.generated not in other.tags:
            return other, outs
    return None, ()


def _signature(target: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in target._schema.arguments if not a.is_out]


def library_of(
    kernel: LoopKernel, generated: Sequence[Candidate], speed: Speed, recordable: bool = False
) -> tuple[AtenCalls, ...]:
    """The candidate beside those `generated`, if the kernel has such calls and all numbers among their arguments can be computed
    in a call."""
    if not kernel.library:
        return ()
    try:
        return (AtenCalls(kernel, generated, speed, recordable),)
    except IRError:
        return ()
