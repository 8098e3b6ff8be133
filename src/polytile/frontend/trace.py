"""Builds a program's Trace: the source graph's operators as calls, and the results of which are in memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import sympy
import torch
import torch.fx
from torch._ops import OpOverload

from polytile.frontend.lower.creation import UNINITIALISED
from polytile.frontend.lower.random import is_drawn
from polytile.frontend.lower.value import Tensor
from polytile.frontend.operators import is_reshape
from polytile.frontend.taken_apart import KEY, Name, Result, Whole, names_in, shape_of
from polytile.ir.buffer import View
from polytile.ir.library_call import Made, Ref
from polytile.ir.program import Operator, Trace

_CALLABLE = ("aten", "prims")
"""Namespaces of operators that are free of side effects."""

Values = Mapping[torch.fx.Node, Any]


def trace_of(
    graph: torch.fx.Graph, values: Values, stored: Collection[torch.fx.Node], place: Callable[[Tensor], View | None]
) -> Trace:
    """Build the trace of a graph whose nodes have the given `values`.

    `stored` holds the nodes that no loop computes. `place` returns where a value is in memory, or None.
    """
    operators: dict[str, Operator] = {}
    places: dict[Made, View] = {}
    for node in graph.nodes:
        value = values.get(node)
        if node.op == "output" or not isinstance(value, Tensor | tuple):
            continue
        if node.target is not operator.getitem or node.op != "call_function":
            operators[node.name] = _operator(node, values, node in stored or node.op != "call_function")
        results = value if isinstance(value, tuple) else (value,)
        for k, result in enumerate(results):
            made = _result_name(node, k if isinstance(value, tuple) else None)
            view = place(result) if isinstance(result, Tensor) else None
            if made is not None and view is not None and _is_result(view, node, made):
                places.setdefault(made, view)
    return Trace(operators, places, _wholes(graph, values, operators))


def _wholes(graph: torch.fx.Graph, values: Values, operators: dict[str, Operator]) -> dict[Made, Made]:
    """Map results of decomposed operators to results of the original operators, which are added to `operators`."""
    nodes = {node.name: node for node in graph.nodes}
    names: dict[Whole, str | None] = {}
    wholes: dict[Made, Made] = {}
    for node in graph.nodes:
        noted = node.meta.get(KEY)
        made = _result_name(node)
        if not isinstance(noted, Result) or made is None or str(made.call) not in operators:
            continue
        if noted.call not in names:
            operator = _whole(noted.call, nodes, values)
            names[noted.call] = name = f"{noted.call.target} of {node.name}" if operator is not None else None
            if name is not None and operator is not None:
                operators[name] = operator
        name = names[noted.call]
        if name is not None and shape_of(node.meta.get("val")) == operators[name].results[noted.output or 0]:
            wholes[made] = Made(name, noted.output)
    return wholes


def _whole(call: Whole, nodes: Mapping[str, torch.fx.Node], values: Values) -> Operator | None:
    """The original call of a decomposed operator; None if it must not be called or the graph has lost one of its arguments."""
    tensors = [nodes[name] for name in names_in(call) if name in nodes and isinstance(values.get(nodes[name]), Tensor)]
    taken = {node.name: made for node in tensors if (made := _result_name(node)) is not None}
    if _refused(call.target) or not taken.keys() >= set(names_in(call)):
        return None

    def one(value: Any) -> Any:
        if isinstance(value, Name):
            return Ref(taken[value.node])
        if isinstance(value, sympy.Expr):
            return Ref(value) if value.free_symbols else int(value) if value.is_integer else float(value)
        if isinstance(value, tuple | list):
            return tuple(map(one, value)) if isinstance(value, tuple) else [one(v) for v in value]
        return value

    named = tuple((k, one(v)) for k, v in call.kwargs.items())
    return Operator(call.target, one(call.args), named, call.results)


def _operator(node: torch.fx.Node, values: Values, stored: bool) -> Operator:
    fakes = node.meta.get("val")
    results = tuple(shape_of(fake) for fake in (fakes if isinstance(fakes, tuple | list) else (fakes,)))
    refused = "" if stored else _refused(node.target)
    if stored or refused:
        return Operator(node.target, (), (), results, stored, refused)
    target = torch.ops.aten.reshape.default if is_reshape(node.target) else node.target
    try:
        args, kwargs = _argument(tuple(node.args), values), _argument(dict(node.kwargs), values)
    except _Unknown as unknown:
        return Operator(target, (), (), results, refused=str(unknown))
    return Operator(target, args, tuple(kwargs.items()), results)


def _refused(target: Any) -> str:
    """Why a loop must not call this operator; "" if it may."""
    if not isinstance(target, OpOverload) or target.namespace not in _CALLABLE:
        return f"{target} is not an operator of ATen"
    if target._schema.is_mutable:
        return f"{target} changes its arguments"
    if is_drawn(target):
        return f"{target} draws random numbers, and polytile counts its own"
    if target in UNINITIALISED:
        return f"{target} leaves its result as memory is, where the loop writes zeros"
    return ""


class _Unknown(Exception):
    """Raised for an argument that cannot be reproduced in a later call."""


def _argument(value: Any, values: Values) -> Any:
    """An argument with every node in it replaced by a Ref."""
    if isinstance(value, torch.fx.Node):
        number = values.get(value)
        if isinstance(number, Tensor | tuple):
            made = _result_name(value)
            if made is not None:
                return Ref(made)
        if not isinstance(number, sympy.Expr):
            raise _Unknown(f"{value.name} is neither a tensor nor a number")
        return Ref(number) if number.free_symbols else int(number) if number.is_integer else float(number)
    if isinstance(value, tuple | list):
        return type(value)(_argument(v, values) for v in value) if type(value) is tuple else [_argument(v, values) for v in value]
    if isinstance(value, dict):
        return {k: _argument(v, values) for k, v in value.items()}
    return value


def _result_name(node: torch.fx.Node, output: int | None = None) -> Made | None:
    """The name of a node's result. An element of a tuple is named as a result of the operator that returned the tuple."""
    if node.op == "call_function" and node.target is operator.getitem:
        source, index = node.args
        return Made(source.name, index) if isinstance(source, torch.fx.Node) and source.target is not operator.getitem else None  # type: ignore[arg-type]
    return Made(node.name, output)


def _is_result(view: View, node: torch.fx.Node, made: Made) -> bool:
    """Whether a view has the dtype and the sizes of the named result."""
    fake = node.meta.get("val")
    if made.output is not None and isinstance(fake, tuple | list):
        fake = fake[made.output]
    known = shape_of(fake)
    return known is not None and known == (view.sizes, view.dtype)
