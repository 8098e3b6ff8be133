"""Loops as the library calls that they were lowered from.

    cummax(x, 1)   →   loop for p0 over r0 ...        or   aten.cummax.out(x, 1, values=..., indices=...)

A fused loop corresponds to several calls with intermediate results in memory. On a GPU two kinds of calls are excluded. One is an
operator whose indices may be out of range: the library's kernel would abort all work of the process on the device, where a
generated kernel reports the error. The other is a scan of a 16-bit dtype, which the library accumulates in that dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from polytile.ir import expr
from polytile.ir.buffer import Buffer, View
from polytile.ir.library_call import LibraryCall, Made, Ref, map_refs, refs_in
from polytile.ir.loop import Loop

NARROW = (torch.bfloat16, torch.float16)


def calls_of(loop: Loop, buffers: Mapping[str, Buffer]) -> tuple[LibraryCall, ...]:
    """The calls that still compute what `loop` computes; empty if there are none. Unused results are left out of the outputs."""
    devices = {buffers[name].device.type for name in loop.reads() | loop.writes()}
    if not loop.library or devices not in ({"cpu"}, {"cuda"}):
        return ()
    written = loop.writes()
    calls = [replace(c, outputs=tuple(v if v and v.buffer in written else None for v in c.outputs)) for c in loop.library]
    views = [view for call in calls for view in call.views()]
    stored = {view.buffer for call in calls for view in call.outputs if view is not None}
    given = {view.buffer for view in views} - stored
    same = written <= stored | given and given == (loop.reads() | written) - stored
    plain = all(view.dtype == buffers[view.buffer].dtype for view in views) if same else False
    if not same or not plain or not all(number.is_integer for number in expressions(calls)):
        return ()
    if devices == {"cuda"} and _harmful_on_gpu(loop, buffers):
        return ()
    parts = {view.buffer for view in views if not _is_whole(view, buffers[view.buffer])}
    return tuple(replace(call, whole=frozenset(view.buffer for view in call.views()) - parts) for call in calls)


def _is_whole(view: View, buffer: Buffer) -> bool:
    return (view.sizes, view.strides, view.offset) == (buffer.sizes, buffer.strides, 0)


def _harmful_on_gpu(loop: Loop, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the library's kernels are less safe or less accurate: they may abort all work on the device, or accumulate in 16
    bits."""
    narrow = any(buffers[store.buffer].dtype in NARROW for store in loop.stores)
    coarse = narrow and any(isinstance(node, expr.Scan) for node in expr.walk(*loop.roots))
    asked = any(isinstance(node, expr.Op) and node.name == "check_index" for node in expr.walk(*loop.roots))
    return coarse or asked


def changes_nothing(target: Any) -> bool:
    """Whether an operator only returns a view of its argument, according to its schema."""
    schema = getattr(target, "_schema", None)
    return schema is not None and len(schema.returns) == 1 and schema.returns[0].alias_info is not None and not schema.is_mutable


def shapes_alone(call: LibraryCall, used: Collection[str]) -> LibraryCall:
    """The call with views of the buffer "" in place of views of buffers that are not in `used`; of those only the sizes
    matter."""

    def view(v: View) -> Ref:
        return Ref(v if v.buffer in used else replace(v, buffer=""))

    args, kwargs = mapped((call.args, call.kwargs), view, Ref)
    return replace(call, args=args, kwargs=kwargs)


def expressions(calls: Sequence[LibraryCall]) -> list[sympy.Expr]:
    """All numbers among the arguments of the calls, including those of views."""
    held = [each for call in calls for each in (*refs_in((call.args, call.kwargs)), *call.outputs)]
    return [number for each in held for number in numbers_in(each)]


def numbers_in(held: View | sympy.Expr | Made | None) -> tuple[sympy.Expr, ...]:
    """The number itself, or the sizes, strides and offset of a view."""
    if isinstance(held, View):
        return (*held.sizes, *held.strides, held.offset)
    return () if held is None or isinstance(held, Made) else (held,)


def renamed(
    call: LibraryCall, names: Mapping[str, str], number: Callable[[sympy.Expr], sympy.Expr]
) -> LibraryCall:
    """The call after renaming buffers, with `number` applied to all sizes, strides and offsets."""

    def view(v: View) -> View:
        numbers = tuple(map(number, v.sizes)), tuple(map(number, v.strides))
        return View(names.get(v.buffer, ""), v.dtype, *numbers, number(v.offset))

    args, kwargs = mapped((call.args, call.kwargs), lambda v: Ref(view(v)), lambda e: Ref(number(e)))
    whole = frozenset(names[name] for name in call.whole)
    return replace(call, args=args, kwargs=kwargs, outputs=tuple(v and view(v) for v in call.outputs), whole=whole)


def moved(call: LibraryCall, offset: Callable[[View], sympy.Expr]) -> LibraryCall:
    """The call with the offset of every view replaced by `offset(view)`."""

    def view(v: View) -> View:
        return replace(v, offset=offset(v))

    args, kwargs = mapped((call.args, call.kwargs), lambda v: Ref(view(v)), Ref)
    return replace(call, args=args, kwargs=kwargs, outputs=tuple(v and view(v) for v in call.outputs))


def mapped(
    value: Any, view: Callable[[View], Any], number: Callable[[sympy.Expr], Any], made: Callable[[Made], Any] = Ref
) -> Any:
    """Nested arguments with each Ref replaced by the rule for its kind of value."""

    def rule(inner: View | sympy.Expr | Made) -> Any:
        return view(inner) if isinstance(inner, View) else made(inner) if isinstance(inner, Made) else number(inner)

    return map_refs(value, rule)


def text(call: LibraryCall) -> str:
    """One line that shows the target, its arguments and its outputs."""

    def of_view(v: View) -> str:
        mark = "whole " if v.buffer in call.whole else ""
        return f"{mark}{v.buffer}({', '.join(map(str, v.sizes))}):({', '.join(map(str, v.strides))})+{v.offset}"

    def of_made(m: Made) -> str:
        return f"%{m.call}" if m.output is None else f"%{m.call}.{m.output}"

    args, kwargs = mapped((call.args, call.kwargs), of_view, str, of_made)
    outputs = ", ".join("-" if v is None else of_view(v) for v in call.outputs)
    return f"{call.target} {args} {kwargs} -> {outputs}"
