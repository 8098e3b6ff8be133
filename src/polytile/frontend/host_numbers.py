"""Numbers that only the host knows, as kernels of another device read them: tensors of one element there.

Dynamo hands over a module's float as a tensor of the host without dimensions, and eager takes such a tensor as a number on any
device. Its value goes along as an argument of the kernel that fills the memory: a copy would wait for the device, and cannot be
recorded in a CUDA graph.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import sympy
import torch

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.value import Tensor, stored
from polytile.ir import expr
from polytile.ir.expr import Load, Node
from polytile.ir.program import View

aten = torch.ops.aten
HOST = torch.device("cpu")


class Filled:
    """A call of `aten.full` on `device` with the value of a tensor of the host that has one element."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.__name__ = device, "aten.full.default"

    def __call__(self, number: torch.Tensor) -> torch.Tensor:
        return torch.full((), number.item(), dtype=number.dtype, device=self.device)

    def __str__(self) -> str:
        return self.__name__


def kernel_number(builder: Builder, device: torch.device | None, value: Any) -> Any:
    """`value`, an argument of an operator whose result is on `device`, as its kernel takes it: numbers read from a tensor or
    given as floats, and tensors of the host without dimensions, as tensors of the device; numbers made of sizes, and all else,
    as they are."""
    if isinstance(value, sympy.Expr) and not all(s.is_integer for s in value.free_symbols):
        fake = torch.empty((), dtype=torch.float64, device=device or HOST)
        options = {"dtype": fake.dtype, "device": fake.device}
        return builder.library(aten.scalar_tensor.default, (value,), options, "a number known only at run time", fake)
    if isinstance(value, Tensor) and not value.rank and value.device == HOST and device not in (None, HOST):
        return _on(builder, value, device)
    return value


def _on(builder: Builder, value: Tensor, device: torch.device) -> Tensor:
    """`value` on `device`: what it is computed from goes there, and it is computed where it is used."""
    if value.node is None or not all(_is_number(builder, load) for load in expr.loads(value.node)):
        return builder.once(replace(value, device=device), functools.partial(_filled, builder, value, device))

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        if not isinstance(node, Load):
            return expr.rebuild(node, children)
        source = builder.buffers[node.buffer]
        there = _on(builder, stored(View(source.name, source.dtype, (), (), node.index), HOST), device)
        return there.at(())

    return replace(value, device=device, node=expr.rewrite((value.node,), rule)[0])


def _is_number(builder: Builder, load: Load) -> bool:
    """Whether a load reads the same element of the host's memory wherever it is made."""
    return not load.indirect and load.mask is None and builder.buffers[load.buffer].sizes == ()


def _filled(builder: Builder, value: Tensor, device: torch.device) -> Tensor:
    fake = torch.empty((), dtype=value.dtype, device=device)
    number: Tensor = builder.library(Filled(device), (value,), {}, "a number on the host", fake)
    return number


__all__ = ["Filled", "kernel_number"]
