"""Epilogue expressions in fewer instructions. Nothing overlaps with the epilogue of a finished accumulator, so every instruction
counts.

A GELU, x · ½ · (1 + erf(x / √2)), becomes ½ · (x + |x| · erf(|x| / √2)), where erf needs neither sign nor special handling of
small arguments. Its tanh form, x · ½ · (1 + tanh z), becomes x / (1 + exp(-2z)), without tanh's branches, which made tiles of
128x256 spill. Such quotients use the hardware's approximate division. Values that are rounded to 16 bits but stay float32 are
rounded in pairs.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from polytile.codegen.triton.body import Body
from polytile.ir.expr import Const, Node, Op

ROUNDINGS = {"round_bf16": "pt_round_bf16", "round_f16": "pt_round_f16"}


def shorten(body: Body, in_pairs: bool) -> None:
    """Override the emission of such nodes of the body's nest. `in_pairs`: the device rounds two numbers in one instruction."""
    for node in body.tile.nest.nodes:
        if not isinstance(node, Op) or node.dtype != torch.float32:
            continue
        if in_pairs and node.name in ROUNDINGS and node.args[0].dtype == torch.float32:
            body.overrides[id(node)] = functools.partial(_called, body, ROUNDINGS[node.name], node.args[0])
        elif body.fast and node.name == "sigmoid":
            body.overrides[id(node)] = functools.partial(_called, body, "pt_logistic", node.args[0])
        elif body.fast and (halves := half_and_one_more(node)) is not None:
            x, one_more = halves
            inner = one_more.args[0]
            if one_more.name == "tanh":
                body.overrides[id(node)] = functools.partial(_called, body, "pt_gelu_by_tanh", x, inner)
            elif _beside(inner, "mul", math.sqrt(0.5)) is x:
                body.overrides[id(node)] = functools.partial(_called, body, "pt_gelu", x)


def _called(body: Body, function: str, *arguments_and_scope: Any) -> str:
    *arguments, scope = arguments_and_scope
    return f"{function}({', '.join(body.emit(argument, scope) for argument in arguments)})"


def half_and_one_more(node: Op) -> tuple[Node, Op] | None:
    """(x, f) if the node is x · ½ · (1 + f), where f is an erf or a tanh; else None."""
    for half, one_more in (node.args, node.args[::-1]) if node.name == "mul" else ():
        x, one_more_than = _beside(half, "mul", 0.5), _beside(one_more, "add", 1.0)
        if x is not None and isinstance(one_more_than, Op) and one_more_than.name in ("erf", "tanh"):
            return x, one_more_than
    return None


def _beside(node: Node, name: str, value: float) -> Node | None:
    """The other operand of an operation with a constant of this value."""
    if isinstance(node, Op) and node.name == name:
        for constant, other in (node.args, node.args[::-1]):
            if isinstance(constant, Const) and math.isclose(constant.value, value, rel_tol=1e-7):
                return other
    return None
