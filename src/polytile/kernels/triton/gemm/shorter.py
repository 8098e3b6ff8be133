"""Parts of epilogues that are spelled in fewer instructions than their operations one by one: on a finished block of sums nothing
else goes on meanwhile, so each instruction counts.

A GELU, x · ½ · (1 + erf(x / √2)), is ½ · (x + |x| · erf(|x| / √2)), where erf needs no sign and no care for small arguments. A
number that is rounded to 16 bits and stays float32 is rounded two at a time.
"""

from __future__ import annotations

import functools
import math

import torch

from polytile.ir.expr import Const, Node, Op
from polytile.kernels.triton.body import Body, Scope

ROUNDINGS = {"round_bf16": "pt_round_bf16", "round_f16": "pt_round_f16"}


def shorten(body: Body, in_pairs: bool) -> None:
    """Has nodes of the body's nest made so. `in_pairs`: the device rounds two numbers by one instruction."""
    for node in body.tile.nest.nodes:
        if not isinstance(node, Op) or node.dtype != torch.float32:
            continue
        if in_pairs and node.name in ROUNDINGS and node.args[0].dtype == torch.float32:
            body.made[id(node)] = functools.partial(_called, body, ROUNDINGS[node.name], node.args[0])
        elif body.fast and (x := gelu_of(node)) is not None:
            body.made[id(node)] = functools.partial(_called, body, "pt_gelu", x)


def _called(body: Body, function: str, argument: Node, scope: Scope) -> str:
    return f"{function}({body.emit(argument, scope)})"


def gelu_of(node: Op) -> Node | None:
    """x, where the node is its GELU by erf."""
    for half, one_more in (node.args, node.args[::-1]) if node.name == "mul" else ():
        erf = _beside(one_more, "add", 1.0)
        scaled = erf.args[0] if isinstance(erf, Op) and erf.name == "erf" else None
        x = _beside(scaled, "mul", math.sqrt(0.5)) if scaled is not None else None
        if x is not None and _beside(half, "mul", 0.5) is x:
            return x
    return None


def _beside(node: Node, name: str, value: float) -> Node | None:
    """The other operand of an operation on a constant of this value."""
    if isinstance(node, Op) and node.name == name:
        for constant, other in (node.args, node.args[::-1]):
            if isinstance(constant, Const) and math.isclose(constant.value, value, rel_tol=1e-7):
                return other
    return None


__all__ = ["gelu_of", "shorten"]
