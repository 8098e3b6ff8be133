"""Loops as the calls of the library that they came from.

    cummax(x, 1)   →   loop for p0 over r0 ...        or   aten.cummax.out(x, 1, values=..., indices=...)

A fused loop is several calls, each of which goes through memory. On a GPU, operators whose indices may be out of range are left
out: the library's kernel then ends all work of the process on the device, whereas a generated kernel reports it. Scans of 16-bit
types are left out too, as the library adds them up in that type.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from polytile.ir import expr
from polytile.ir.program import Buffer, LibraryCall, Loop, Made, Ref, View, map_refs, refs_in

NARROW = (torch.bfloat16, torch.float16)


def calls_of(loop: Loop, buffers: Mapping[str, Buffer]) -> tuple[LibraryCall, ...]:
    """The calls that still do what `loop` does; empty if none do. Results that nothing uses are left out of the outputs."""
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
    """Whether the library's kernels could do harm, such as ending all work on the device."""
    narrow = any(buffers[store.buffer].dtype in NARROW for store in loop.stores)
    coarse = narrow and any(isinstance(node, expr.Scan) for node in expr.walk(*loop.roots))
    asked = any(isinstance(node, expr.Op) and node.name == "check_index" for node in expr.walk(*loop.roots))
    return coarse or asked


def changes_nothing(target: Any) -> bool:
    """Whether an operator only returns a view of its argument, by its schema."""
    schema = getattr(target, "_schema", None)
    return schema is not None and len(schema.returns) == 1 and schema.returns[0].alias_info is not None and not schema.is_mutable


def shapes_alone(call: LibraryCall, used: Collection[str]) -> LibraryCall:
    """The call with views of no buffer in place of those of other buffers than `used`, of which it needs the sizes alone."""

    def view(v: View) -> Ref:
        return Ref(v if v.buffer in used else replace(v, buffer=""))

    args, kwargs = mapped((call.args, call.kwargs), view, Ref)
    return replace(call, args=args, kwargs=kwargs)


def expressions(calls: Sequence[LibraryCall]) -> list[sympy.Expr]:
    """All numbers among the arguments, those of views included."""
    held = [each for call in calls for each in (*refs_in((call.args, call.kwargs)), *call.outputs)]
    return [number for each in held for number in numbers_in(each)]


def numbers_in(held: View | sympy.Expr | Made | None) -> tuple[sympy.Expr, ...]:
    """A number, or the sizes, strides and offset of a view."""
    if isinstance(held, View):
        return (*held.sizes, *held.strides, held.offset)
    return () if held is None or isinstance(held, Made) else (held,)


def renamed(
    call: LibraryCall, names: Mapping[str, str], number: Callable[[sympy.Expr], sympy.Expr]
) -> LibraryCall:
    """The call on buffers of other names, with `number` applied to all sizes, strides and offsets."""

    def view(v: View) -> View:
        numbers = tuple(map(number, v.sizes)), tuple(map(number, v.strides))
        return View(names.get(v.buffer, ""), v.dtype, *numbers, number(v.offset))

    args, kwargs = mapped((call.args, call.kwargs), lambda v: Ref(view(v)), lambda e: Ref(number(e)))
    whole = frozenset(names[name] for name in call.whole)
    return replace(call, args=args, kwargs=kwargs, outputs=tuple(v and view(v) for v in call.outputs), whole=whole)


def moved(call: LibraryCall, offset: Callable[[View], sympy.Expr]) -> LibraryCall:
    """The call with `offset(view)` as the offset of every view."""

    def view(v: View) -> View:
        return replace(v, offset=offset(v))

    args, kwargs = mapped((call.args, call.kwargs), lambda v: Ref(view(v)), Ref)
    return replace(call, args=args, kwargs=kwargs, outputs=tuple(v and view(v) for v in call.outputs))


def mapped(
    value: Any, view: Callable[[View], Any], number: Callable[[sympy.Expr], Any], made: Callable[[Made], Any] = Ref
) -> Any:
    """Nested arguments with each Ref replaced, by what it stands for."""

    def rule(inner: View | sympy.Expr | Made) -> Any:
        return view(inner) if isinstance(inner, View) else made(inner) if isinstance(inner, Made) else number(inner)

    return map_refs(value, rule)


def text(call: LibraryCall) -> str:
    """One line that says what is called on what."""

    def of_view(v: View) -> str:
        mark = "whole " if v.buffer in call.whole else ""
        return f"{mark}{v.buffer}({', '.join(map(str, v.sizes))}):({', '.join(map(str, v.strides))})+{v.offset}"

    def of_made(m: Made) -> str:
        return f"%{m.call}" if m.output is None else f"%{m.call}.{m.output}"

    args, kwargs = mapped((call.args, call.kwargs), of_view, str, of_made)
    outputs = ", ".join("-" if v is None else of_view(v) for v in call.outputs)
    return f"{call.target} {args} {kwargs} -> {outputs}"
