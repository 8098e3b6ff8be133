"""Programs: buffers, and the operations that fill them in order (loops, templates, library calls) or check sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import sympy
import torch

from polytile.ir.attention import Attention, Gradients, Sequences
from polytile.ir.buffer import Buffer, View
from polytile.ir.library_call import Made, views_in
from polytile.ir.loop import Loop
from polytile.ir.template import Grouping, Scales, Template


@dataclass(frozen=True)
class Extern:
    """A library (ATen) call, `target(*args, **kwargs)`. Every tensor and size among the arguments is a Ref.

    Attributes
    ----------
    outputs
        Names of the buffers that the call allocates; None for results that are unused or not tensors.
    symbols
        Numbers that are known only from the result, as pairs (symbol, how). `how` is ("item",), ("item", output), ("size" or
        "stride", output, dimension), ("offset", output), or an expression of symbols that are known by then.
    reason
        Why this is a library call.
    mutates
        Names of the buffers that the call changes.
    many
        The target returns a tuple or list, even if it has one element.
    """

    name: str
    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outputs: tuple[str | None, ...]
    origins: tuple[str, ...] = ()
    reason: str = ""
    symbols: tuple[tuple[sympy.Symbol, tuple[Any, ...] | sympy.Expr], ...] = ()
    mutates: tuple[str, ...] = ()
    many: bool = False

    def reads(self) -> set[str]:
        return {v.buffer for v in views_in((self.args, self.kwargs))}

    def writes(self) -> set[str]:
        return {o for o in self.outputs if o is not None} | set(self.mutates)


def place_of(how: tuple[Any, ...]) -> tuple[str, int, int | None]:
    """What an entry of Extern.symbols reads, from which output, and along which dimension."""
    what, output, dim = (list(how) + [0, None][len(how) - 1 :])[:3]
    return what, output, dim


@dataclass(frozen=True)
class Assert:
    """A run-time check on sizes: raises `error(message)` if `condition`, a sympy Boolean, is false."""

    name: str
    condition: Any
    message: str
    error: type[Exception] = RuntimeError

    def reads(self) -> set[str]:
        return set()

    def writes(self) -> set[str]:
        return set()


Operation = Loop | Template | Attention | Extern | Assert
Part = TypeVar("Part")


def map_views(part: Part, rule: Callable[[View], View]) -> Part:
    """A product or an attention with `rule` applied to all its views. The loops inside it are unchanged."""
    if isinstance(part, View):
        return rule(part)  # type: ignore[return-value]
    if isinstance(part, tuple):
        return tuple(map_views(each, rule) for each in part)  # type: ignore[return-value]
    if isinstance(part, Template | Attention | Scales | Grouping | Gradients | Sequences):
        return replace(part, **{each.name: map_views(getattr(part, each.name), rule) for each in fields(part)})
    return part


@dataclass(frozen=True)
class Input:
    """One argument of the compiled function: a tensor (`buffer` names it), an integer (`size` is its symbol or expression), or an
    object such as a generator that is only passed to library calls or returned (`size` is a symbol)."""

    name: str
    buffer: str | None = None
    size: sympy.Expr | None = None


@dataclass(frozen=True)
class Operator:
    """One operator of the graph that a program was lowered from: `target(*args, **kwargs)`.

    Every tensor (Made) and size among the arguments is a Ref.

    Attributes
    ----------
    results
        Sizes and dtype of each result; None for results that are not tensors.
    stored
        The results exist only in memory, like those of library calls and products, and the graph's arguments.
    refused
        Why no loop may call the operator, or "".
    """

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    results: tuple[tuple[tuple[sympy.Expr, ...], torch.dtype] | None, ...]
    stored: bool = False
    refused: str = ""


@dataclass(frozen=True)
class Trace:
    """The operators of a graph by name, in order.

    `places` says where results are in memory, for those that were stored unchanged. `wholes` maps results of a decomposed
    operator's parts to results of the operator itself, which is among `operators` too.
    """

    operators: Mapping[str, Operator]
    places: Mapping[Made, View]
    wholes: Mapping[Made, Made] = field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> Trace:
        """The trace after buffers have been renamed."""
        moved = {made: replace(view, buffer=names.get(view.buffer, view.buffer)) for made, view in self.places.items()}
        return replace(self, places=moved)


@dataclass(frozen=True)
class Program:
    """A compiled graph: its `operations` in execution order.

    Attributes
    ----------
    outputs
        Views (a view of an input aliases it), sizes, or None.
    constants
        The tensors behind the buffers whose role is "constant".
    scalars
        Sizes that are read from one-element buffers once those are filled.
    trace
        The operators that the program was lowered from.
    """

    name: str
    inputs: tuple[Input, ...]
    buffers: Mapping[str, Buffer]
    operations: tuple[Operation, ...]
    outputs: tuple[View | sympy.Expr | None, ...]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    scalars: Mapping[sympy.Symbol, str] = field(default_factory=dict)
    trace: Trace = field(default_factory=lambda: Trace({}, {}), compare=False, repr=False)

    def input_buffers(self) -> set[str]:
        return {i.buffer for i in self.inputs if i.buffer is not None}

    def output_buffers(self) -> set[str]:
        return {o.buffer for o in self.outputs if isinstance(o, View)}

    def observed_buffers(self) -> set[str]:
        """Buffers whose contents are visible outside the operations: inputs, results, and those that sizes are read from."""
        return self.input_buffers() | self.output_buffers() | set(self.scalars.values())
