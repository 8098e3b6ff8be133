"""Graphs within a graph: the branches of `torch.cond`, the parts of a `while_loop`, the steps of `scan` and `map`, and regions
that are compiled once for all their calls.

Each is lowered to a program of its own, once for all calls. The operator that runs it becomes a library call of the function
here, which takes compiled programs in place of the graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from polytile.ir import sizes

if TYPE_CHECKING:
    from polytile.frontend.graph import Lowered

Graph = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Subgraph:
    """A lowered graph among the arguments of a library call. `many`: whether it returns a tuple instead of one value."""

    lowered: Lowered
    many: bool


def cond(predicate: Any, if_true: Graph, if_false: Graph, operands: Sequence[Any] = ()) -> Any:
    """`torch.cond`: a tensor's value decides on the host, as in eager."""
    return (if_true if predicate else if_false)(*operands)


def while_loop(goes_on: Graph, body: Graph, carried: Sequence[Any], additional: Sequence[Any] = ()) -> tuple[Any, ...]:
    """`while_loop`: runs `body` on its own last results as long as `goes_on` returns true. Results that no iteration has produced
    are copies."""
    results, began = tuple(carried), False
    while goes_on(*results, *additional):
        results, began = tuple(body(*results, *additional)), True
    return results if began else tuple(each.clone() if isinstance(each, torch.Tensor) else each for each in results)


def invoke_subgraph(region: Graph, _identifier: str, *operands: Any) -> Any:
    """A call of a region under `torch.compiler.nested_compile_region`."""
    return region(*operands)


def scan(
    combine: Graph, init: Sequence[Any], xs: Sequence[torch.Tensor], additional: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """`scan` along the first dimension of `xs`: the final carry, and the other results of each step, stacked."""
    carried, steps = tuple(init), _Stacked(len(xs[0]))
    for step in range(len(xs[0])):
        given = [each.contiguous() if isinstance(each, torch.Tensor) else each for each in carried]
        results = combine(*given, *_slices(xs, step), *additional)
        carried = tuple(results[: len(carried)])
        steps.put(step, results[len(carried) :])
    return (*carried, *steps.results)


def map_impl(function: Graph, xs: Sequence[torch.Tensor], additional: Sequence[Any] = ()) -> tuple[Any, ...]:
    """`map` along the first dimension of `xs`: each step's results, stacked."""
    steps = _Stacked(len(xs[0]))
    for step in range(len(xs[0])):
        steps.put(step, function(*_slices(xs, step), *additional))
    return tuple(steps.results)


def _slices(xs: Sequence[torch.Tensor], step: int) -> list[torch.Tensor]:
    return [x[step].contiguous() for x in xs]


class _Stacked:
    """The results of all steps, stacked along a new first dimension; None where the steps return None."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.results: list[torch.Tensor | None] = []

    def put(self, step: int, results: Sequence[torch.Tensor | None]) -> None:
        if step == 0:
            self.results = [None if each is None else each.new_empty((self.steps, *each.shape)) for each in results]
        for whole, each in zip(self.results, results, strict=True):
            if whole is not None and each is not None:
                whole[step].copy_(each)


RUNNERS: dict[Any, Graph] = {
    getattr(torch.ops.higher_order, run.__name__): run for run in (cond, while_loop, scan, map_impl, invoke_subgraph)
}
"""The functions that run higher-order operators whose graphs are programs."""

SLICES = (scan, map_impl)
"""Operators that pass contiguous slices of their arguments to their graphs."""


class Called:
    """A compiled program where an operator expects a graph."""

    def __init__(self, call: Callable[[list[Any]], list[Any]], many: bool) -> None:
        self.call, self.many = call, many

    def __call__(self, *args: Any) -> Any:
        results = self.call([*args])
        return tuple(results) if self.many else results[0]


def why_not(operator: Any, graph: torch.fx.GraphModule) -> str:
    """Why a graph that a higher-order operator runs cannot be a program; "" if it can."""
    if RUNNERS[operator] in SLICES and not all(map(_is_contiguous, graph.graph.find_nodes(op="placeholder"))):
        return "its graph was traced with tensors that are not contiguous"
    for node in graph.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return f"its graph changes a tensor in place ({node.target})"
        if node.op != "output" and node.op != "get_attr" and "val" not in node.meta:
            return f"torch does not say what {node.name} in its graph is"
    return ""


def _is_contiguous(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return True
    strides = tuple(sizes.as_stride(n) for n in value.stride())
    return strides == sizes.contiguous_strides([sizes.as_size(n) for n in value.shape])


def returns_many(graph: torch.fx.GraphModule) -> bool:
    """Whether the graph returns a tuple or a list."""
    [output] = graph.graph.find_nodes(op="output")
    return isinstance(output.args[0], tuple | list)


def kinds_of_weights(
    graph: torch.fx.GraphModule, calls: Sequence[torch.fx.Node], weights: Mapping[str, str]
) -> dict[str, str]:
    """The inputs of a region that are weights in all its calls, and their kinds."""
    inputs = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    given = [[getattr(leaf, "name", "") for leaf in tree_leaves(call.args[2:])] for call in calls]
    kinds_by_name = {name: {weights.get(operands[k], "") for operands in given} for k, name in enumerate(inputs)}
    return {name: kinds.pop() for name, kinds in kinds_by_name.items() if len(kinds) == 1 and "" not in kinds}
