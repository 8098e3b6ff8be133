"""Passes numbers that only the host knows to kernels of another device, as one-element tensors there.

Dynamo passes a module's float as a zero-dimensional CPU tensor, which eager accepts as a number on any device. Its value becomes
an argument of the kernel that fills the memory: a copy would synchronise with the device, and cannot be recorded in a CUDA graph.
Numbers that are arguments of the program are transferred together, equal ones in one fill: a model has an epsilon for each of its
norms.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanFunction

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.value import Tensor, stored
from polytile.ir import expr
from polytile.ir.buffer import View
from polytile.ir.expr import Load, Node
from polytile.ir.program import Extern, Operation

aten = torch.ops.aten
HOST = torch.device("cpu")

APART = 64
"""Distance in bytes between numbers, so that kernels do not take their addresses for unaligned ones."""


class Filled:
    """Calls `aten.full` on `device` for each distinct value among one-element CPU tensors. Returns one zero-dimensional tensor
    per argument; they are APART bytes apart."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.__name__ = device, "aten.full.default"

    def __call__(self, *numbers: torch.Tensor) -> list[torch.Tensor]:
        values = [(number.dtype, number.item()) for number in numbers]
        names = [(dtype, repr(value)) for dtype, value in values]  # distinguishes 0.0 from -0.0
        made = {}
        for name, (dtype, value) in dict(zip(names, values, strict=True)).items():
            shape = (names.count(name), APART // dtype.itemsize)
            made[name] = iter(torch.full(shape, value, dtype=dtype, device=self.device)[:, 0].unbind())
        return [next(made[name]) for name in names]

    def __str__(self) -> str:
        return self.__name__


def gathered(operations: Sequence[Operation], arguments: Collection[str]) -> tuple[Operation, ...]:
    """`operations` with all Filled calls for a device merged into the first one, if their numbers are buffers among `arguments`,
    to which nothing writes."""
    calls: dict[torch.device, list[Extern]] = {}
    for operation in operations:
        if isinstance(operation, Extern) and isinstance(operation.target, Filled) and operation.reads() <= set(arguments):
            calls.setdefault(operation.target.device, []).append(operation)
    first = {
        own[0].name: replace(
            own[0],
            args=tuple(arg for call in own for arg in call.args),
            outputs=tuple(output for call in own for output in call.outputs),
            origins=tuple(dict.fromkeys(origin for call in own for origin in call.origins)),
        )
        for own in calls.values()
    }
    gone = {call.name for own in calls.values() for call in own[1:]}
    return tuple(first.get(operation.name, operation) for operation in operations if operation.name not in gone)


def kernel_number(builder: Builder, device: torch.device | None, value: Any) -> Any:
    """An argument of an operator on `device`, as its kernel takes it.

    Truth values, numbers read from a tensor or given as floats, and zero-dimensional CPU tensors become tensors on the device.
    Numbers made of sizes, and everything else, are unchanged.
    """
    if (truth := isinstance(value, Relational | BooleanFunction)) or (
        isinstance(value, sympy.Expr) and not all(s.is_integer for s in value.free_symbols)
    ):
        fake = torch.empty((), dtype=torch.bool if truth else torch.float64, device=device or HOST)
        options = {"dtype": fake.dtype, "device": fake.device}
        return builder.library(aten.scalar_tensor.default, (value,), options, "a number known only at run time", fake)
    if isinstance(value, Tensor) and not value.rank and value.device == HOST and device not in (None, HOST):
        return _on(builder, value, device)
    return value


def _on(builder: Builder, value: Tensor, device: torch.device) -> Tensor:
    """`value` on `device`: its inputs are transferred, and it is computed where it is used."""
    if value.node is None or not all(_is_number(builder, load) for load in expr.loads(value.node)):
        return builder.once(replace(value, device=device), functools.partial(_filled, builder, value, device))

    def there(load: Load) -> Node:
        source = builder.buffers[load.buffer]
        return _on(builder, stored(View(source.name, source.dtype, (), (), load.index), HOST), device).at(())

    return replace(value, device=device, node=expr.map_loads((value.node,), there)[0])


def _is_number(builder: Builder, load: Load) -> bool:
    """Whether a load always reads the same element of CPU memory."""
    return not load.indirect and load.mask is None and builder.buffers[load.buffer].sizes == ()


def _filled(builder: Builder, value: Tensor, device: torch.device) -> Tensor:
    fake = torch.empty((), dtype=value.dtype, device=device)
    (number,) = builder.library(Filled(device), (value,), {}, "a number on the host", (fake,))
    assert isinstance(number, Tensor)
    return number
