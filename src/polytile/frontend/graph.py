"""Lowers an FX graph of ATen operators, node by node, to a Program."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from polytile.errors import LoweringError, LoweringFailed
from polytile.frontend import subgraphs
from polytile.frontend.attention.operator import COMPUTED
from polytile.frontend.attention.patterns import REASON
from polytile.frontend.failures import Failure, failure, is_raised
from polytile.frontend.graph_checks import NUMBERS, OBJECTS, changed_inputs
from polytile.frontend.host_numbers import gathered, kernel_number
from polytile.frontend.library_calls import (
    Flat,
    WithCopies,
    complete,
    is_nested,
    operator_name,
    results_of,
    written_views,
)
from polytile.frontend.lower import attention
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.random import is_drawn
from polytile.frontend.lower.registry import TABLE, adopt, load
from polytile.frontend.lower.value import Point, Tensor, broadcast_point, computed, convert, stored
from polytile.frontend.lower.views import require_loop_dtype
from polytile.frontend.operators import changes_a_copy, changing_call, is_reshape, operator_call
from polytile.frontend.placement import advised, bases, fits, is_new, laid_out, partly_written, place
from polytile.frontend.trace import trace_of
from polytile.frontend.unsigned_products import sign_products
from polytile.ir import expr, levels, sizes
from polytile.ir.attention import Attention
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.loop import Loop
from polytile.ir.program import Extern, Input, Program
from polytile.ir.template import Template

aten = torch.ops.aten


@dataclass(frozen=True)
class OperatorReport:
    """How one operator of the graph is executed: `how` is "generated", "template", "library", "view" (no work at all) or
    "programs" (its subgraphs are programs of their own)."""

    operator: str
    how: str
    reason: str


@dataclass(frozen=True)
class Lowered:
    """A graph's Program, a report for each operator, and the lowerings that failed."""

    program: Program
    operators: tuple[OperatorReport, ...]
    failures: tuple[Failure, ...] = ()


def lower_graph(graph: torch.fx.GraphModule, name: str, weights: Mapping[str, str] | None = None) -> Lowered:
    """Lower a functional ATen graph to a Program, without specialising any symbol.

    Parameters
    ----------
    graph
        Its nodes carry fake tensors and symbolic numbers in `meta["val"]`.
    name
        Name of the program.
    weights
        Maps inputs that are weights to their kind, "constant" or "trained" (see ir.buffer.Buffer).

    Returns
    -------
    Lowered
        An operator whose lowering fails becomes a library call, and is listed in `failures`.

    Raises
    ------
    LoweringFailed
        If a lowering fails while the option `on_failure` is "raise". The message names the operator.
    """
    load()
    complete(graph.graph)
    sign_products(graph.graph)
    return _Driver(graph, name, weights or {}).run()


IN_KERNEL = "its scores are computed in the kernel; no mask or bias is made in memory"
"""The reason reported for an attention whose score modification is fused into the kernel."""
DROPPED = "its weights are dropped in the kernel by eager's random numbers, of which no mask is made"
"""The reason reported for an attention with dropout."""


class _Driver:
    """The state of one walk over a graph. `env` maps each node to its value: a Tensor, a sympy number, a tuple of these, or any
    object that a library operator takes unchanged."""

    def __init__(self, graph: torch.fx.GraphModule, name: str, weights: Mapping[str, str]) -> None:
        self.graph, self.name, self.weights = graph, name, weights
        self.builder = Builder()
        self.env: dict[torch.fx.Node, Any] = {}
        self.inputs: list[Input] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.reports: list[OperatorReport] = []
        self.failures: list[Failure] = []
        self.subgraphs: dict[torch.fx.GraphModule, subgraphs.Subgraph] = {}
        """Subgraphs that have been lowered to programs of their own."""
        self.stored: set[torch.fx.Node] = set()
        """Nodes whose results come from library calls, products or attentions, never from a loop."""
        self.outputs: tuple[View | sympy.Basic | None, ...] = ()
        adopt(node.target for node in graph.graph.nodes)
        self.bases = bases(graph.graph, (TABLE.keys() | _HANDLERS.keys()) - set(attention.OPERATORS))
        self.changed = changed_inputs(graph.graph)
        self.partly_written = partly_written(graph.graph, self.changed)

    def run(self) -> Lowered:
        for node in self.graph.graph.nodes:
            self.builder.node = node
            getattr(self, node.op)(node)
        fixed = {each.buffer for each in self.inputs if each.buffer is not None} - self.changed
        buffers, operations = self.builder.buffers, gathered(self.builder.operations, fixed)
        trace = trace_of(self.graph.graph, self.env, self.stored, self.builder.place_of)
        program = Program(self.name, tuple(self.inputs), buffers, operations, self.outputs, self.constants, trace=trace)
        return Lowered(program, tuple(self.reports), tuple(self.failures))

    # kinds of node ---------------------------------------------------------------------------------------------------

    def placeholder(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            self.inputs.append(Input(node.name, buffer=node.name))
            kind = None if node.name in self.changed else self.weights.get(node.name)
            self.env[node] = self._named(node.name, value, "input", kind)
            self._define(*value.shape, *value.stride())
            return
        size = _number(value) if isinstance(value, NUMBERS) else None
        if isinstance(value, OBJECTS):  # passed to library calls under a symbol, like a size
            size = sympy.Symbol(node.name)
        self._define(size)
        self.inputs.append(Input(node.name, size=size))
        self.env[node] = size

    def get_attr(self, node: torch.fx.Node) -> None:
        value: Any = self.graph
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            self.constants[node.name] = value
            value = self._named(node.name, node.meta.get("val", value), "constant", "constant")
        self.env[node] = value

    def call_function(self, node: torch.fx.Node) -> None:
        value, target = node.meta.get("val"), node.target
        if target is operator.getitem:
            self.env[node] = self._placed(node, self.env[node.args[0]][node.args[1]])  # type: ignore[index]
        elif target in _HANDLERS:
            _HANDLERS[target](self, node)
        elif isinstance(value, NUMBERS) and self._known(_number(value)):
            self.env[node] = _number(value)
        else:
            self.env[node] = advised(self._placed(node, self._lowered(node)), value)

    def output(self, node: torch.fx.Node) -> None:
        self.outputs = tuple(self._output(item) for item in tree_leaves(node.args[0]))

    def _placed(self, node: torch.fx.Node, result: Any) -> Any:
        if not isinstance(result, Tensor) or (result.node is not None and node.meta.get(COMPUTED)):
            return result
        return place(self.builder, node, result, node in self.bases, written=node in self.partly_written)

    # one operator ----------------------------------------------------------------------------------------------------

    def _lowered(self, node: torch.fx.Node) -> Any:
        """Lower the node, or call the library if it has no lowering or none for these arguments."""
        name, lowering = operator_name(node.target), TABLE.get(node.target)
        if lowering is None:
            if node.target in subgraphs.RUNNERS:
                return self._run_subgraphs(node)
            number = isinstance(node.meta.get("val"), NUMBERS)
            reason = "its result is a number on the host" if number else f"{name} has no lowering"
            return self._unlowered(node, reason)
        args, kwargs = self._arguments(node)
        mark = self.builder.mark()
        taken = functools.partial(kernel_number, self.builder, _device(node))
        given, named = tree_map(taken, args), tree_map(taken, kwargs)
        done = len(self.builder.operations)
        try:
            _check_devices(_device(node), given, named)
            result = lowering(self.builder, *given, **named)
        except LoweringError as error:
            self.builder.undo(mark)
            return self._unlowered(node, str(error))
        except LoweringFailed:  # ATen's operator would be wrong too, since what it reads lies otherwise than in its own graph
            raise
        except Exception as error:
            if is_raised(error):
                raise LoweringFailed(
                    f"the lowering of {name} raised {type(error).__name__}: {error} The node is {node.format_node()}. "
                    f"This is a defect of polytile."
                ) from error
            self.builder.undo(mark)
            self.failures.append(failure("lowering", name, error, self.graph))
            return self._unlowered(node, self.failures[-1].reason)
        self._report(node, done, result)
        return self._with_call(node, args, kwargs, result, done)

    def _with_call(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, done: int) -> Any:
        """Note the ATen operator as a candidate for the node's work.

        The call is attached to the result while that is an unstored expression, otherwise to the loop that the lowering emitted.
        `done` is the number of operations before the lowering ran.
        """
        made = self.builder.operations[done:]
        if isinstance(result, Tensor) and result.node is not None:
            return self._expression_with_call(node, args, kwargs, result, bool(made))
        results = result if isinstance(result, tuple) else (result,)
        views = [r.view for r in results if isinstance(r, Tensor) and r.view is not None]
        if len(views) < len(results) or not all(isinstance(operation, Loop) for operation in made):
            return result
        if any(views[0].buffer == growing.buffer.name for growing in self.builder.growing.values()):  # `made` has added to it
            return result
        if len(made) == 1 and (call := operator_call(self.builder, node, args, kwargs)) is not None:
            self.builder.attach(call, *views)
        elif changes_a_copy(made, views[0]):
            if (call := changing_call(self.builder, node.target, views[0], args, kwargs)) is not None:
                self.builder.attach(call)
        return result

    def _expression_with_call(
        self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor, stored: bool
    ) -> Tensor:
        """Attach the ATen call to a result that is not in memory yet.

        A reshape keeps its argument's call. If the lowering `stored` part of the work already, the operator would compute more
        than what is left, so no call is attached.
        """
        if result.call is not None:
            return result
        if not stored and is_reshape(node.target) and (old := self._argument(node.args[0]).call) is not None:
            return replace(result, call=old)
        call = operator_call(self.builder, node, args, kwargs)
        return result if stored or call is None else replace(result, call=call)

    def _arguments(self, node: torch.fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args = tuple(_plain(a) for a in torch.fx.map_arg(node.args, self.env.__getitem__))
        return args, {k: _plain(v) for k, v in torch.fx.map_arg(dict(node.kwargs), self.env.__getitem__).items()}

    def _unlowered(self, node: torch.fx.Node, reason: str) -> Any:
        """Call the library for the node, with its arguments in their traced strides.

        The strides of the results may follow those of the arguments, and so may the order in which random numbers fill memory.
        """
        drawn = is_drawn(node.target)
        for given in node.all_input_nodes:
            value = self.env[given]
            if isinstance(value, Tensor) and (value.view is None or (drawn and fits(value, given))):
                self.env[given] = laid_out(self.builder, value, given.meta["val"], is_new(given))
        return self._library(node, *self._arguments(node), reason)

    def _run_subgraphs(self, node: torch.fx.Node) -> Any:
        """Call the programs of a higher-order operator's subgraphs, or the library if one of the subgraphs cannot be a
        program."""
        modules = [module for module in map(self.env.get, node.all_input_nodes) if isinstance(module, torch.fx.GraphModule)]
        for module in modules:
            if why := subgraphs.why_not(node.target, module):
                return self._unlowered(node, why)
            if module not in self.subgraphs:
                self.subgraphs[module] = self._subgraph(node, module)
        for given in node.all_input_nodes:  # the programs rely on the traced strides
            value = self.env[given]
            if isinstance(value, Tensor) and not (value.view is not None and fits(value, given)):
                self.env[given] = laid_out(self.builder, value, given.meta["val"], is_new(given))
        args, kwargs = self._arguments(node)
        args = tree_map(lambda value: self.subgraphs[value] if isinstance(value, torch.fx.GraphModule) else value, args)
        return self._library(node, args, kwargs, "", subgraphs.RUNNERS[node.target])

    def _subgraph(self, node: torch.fx.Node, module: torch.fx.GraphModule) -> subgraphs.Subgraph:
        """Lower a graph that `node` runs."""
        at = next(given for given in node.all_input_nodes if self.env.get(given) is module)
        users = [user for other in self.graph.graph.find_nodes(op="get_attr", target=at.target) for user in other.users]
        region = all(user.target is torch.ops.higher_order.invoke_subgraph for user in users)
        weights = subgraphs.kinds_of_weights(module, users, self.weights) if region else {}
        lowered = lower_graph(module, f"{self.name}.{at.target}", weights)
        self.failures += lowered.failures
        return subgraphs.Subgraph(lowered, subgraphs.returns_many(module))

    def _library(
        self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str, runner: Any = None
    ) -> Any:
        """Emit a library call, or a call of `runner` if the node's subgraphs are programs. Higher-order and custom operators may
        return nested results."""
        target, results, how = runner or node.target, results_of(node), "programs" if runner else "library"
        leaves, spec = tree_flatten(results)
        nested = is_nested(target, results)
        if nested:
            target, results = Flat(target, results), leaves
        if self._may_return_changed(target, args):
            target = WithCopies(target)
        written = written_views(target, args, kwargs)
        for view in written:
            self._store_readers(view.buffer, node)
        self.reports.append(OperatorReport(operator_name(node.target), how, reason))
        self.stored.add(node)
        found = self.builder.library(target, args, kwargs, reason, results if results is not None else ())
        if written:
            call = self.builder.operations[-1]
            assert isinstance(call, Extern)
            self.builder.operations[-1] = replace(call, mutates=tuple(dict.fromkeys(v.buffer for v in written)))
        return tree_unflatten(list(found), spec) if nested else found

    def _may_return_changed(self, target: Any, args: tuple[Any, ...]) -> bool:
        """Whether a call may return a view of an input that the graph overwrites later.

        Only the order of the graph says which of the input's values such a view shows, and passes do not keep that order.
        """
        schema = getattr(target, "_schema", None)
        if schema is None or schema.is_mutable or not any(r.alias_info is not None for r in schema.returns):
            return False
        buffers = {value.view.buffer for value in tree_leaves(args) if isinstance(value, Tensor) and value.view}
        return bool(buffers & self.changed)

    def _report(self, node: torch.fx.Node, done: int, result: Any) -> None:
        new = self.builder.operations[done:]
        reasons = [op.reason for op in new if isinstance(op, Extern)]
        if any(isinstance(op, Extern | Template | Attention) for op in new):
            self.stored.add(node)
        if reasons:
            how, reason = "library", reasons[0]
        elif any(isinstance(op, Template | Attention) for op in new):
            attentions = [op for op in new if isinstance(op, Attention)]
            inside = [IN_KERNEL] if any(op.scores is not None for op in attentions) else []
            inside += [DROPPED] if any(op.dropout is not None for op in attentions) else []
            how, reason = "template", "; ".join(inside) or node.meta.get(REASON, "")
        else:
            view = isinstance(result, Tensor) and result.view is not None and not new
            how, reason = ("view", "index algebra, no work") if view else ("generated", "")
        self.reports.append(OperatorReport(operator_name(node.target), how, reason))

    # numbers and checks ----------------------------------------------------------------------------------------------

    def _define(self, *numbers: Any) -> None:
        """Mark the symbols in these numbers as known from the arguments."""
        for number in numbers:
            for symbol in getattr(_number(number), "free_symbols", ()):
                self.builder.define(symbol)

    def _known(self, number: Any) -> bool:
        """Whether all symbols of `number` have values."""
        return all(self.builder.defined(s) for s in getattr(number, "free_symbols", ()))

    def _assert_scalar(self, node: torch.fx.Node) -> None:
        self.builder.require(self._argument(node.args[0]), str(node.args[1]))
        self.env[node] = None

    def _nothing(self, node: torch.fx.Node) -> None:
        self.env[node] = None

    def _argument(self, arg: Any) -> Any:
        return self.env[arg] if isinstance(arg, torch.fx.Node) else arg

    # mutation --------------------------------------------------------------------------------------------------------

    def _copy_(self, node: torch.fx.Node) -> None:
        """Lower a write to an input."""
        target, source = self._argument(node.args[0]), self._argument(node.args[1])
        if not isinstance(target, Tensor) or target.view is None:
            raise LoweringFailed(f"{node.format_node()} writes to a value that is stored nowhere.")
        self.env[node] = target
        try:
            require_loop_dtype(target.dtype)
        except LoweringError as error:
            self._library(node, (target, source), {}, str(error))
            return
        self._store_readers(target.view.buffer, node)
        source = self._argument(node.args[1])
        self.builder.store(target.view, _converted(source, target))
        written = self.builder.operations[-1]
        if isinstance(written, Loop) and levels.in_place_fault(written):  # it would read overwritten elements
            self.builder.operations.pop()
            source = self.builder.realize(source, sizes.contiguous_strides(source.sizes))
            self.builder.store(target.view, _converted(source, target))
        self.reports.append(OperatorReport(operator_name(node.target), "generated", "writes an input in place"))

    def _store_readers(self, buffer: str, writer: torch.fx.Node) -> None:
        """Before `writer` overwrites `buffer`, store the values that read it and are still needed afterwards."""
        for node, value in list(self.env.items()):
            if not isinstance(value, Tensor) or value.node is None:
                continue
            needed = any(user.op == "output" or user not in self.env for user in node.users if user is not writer)
            if needed and any(load.buffer == buffer for load in expr.loads(value.node)):
                self.env[node] = laid_out(self.builder, value, node.meta["val"], is_new(node))

    # results ---------------------------------------------------------------------------------------------------------

    def _output(self, item: Any) -> View | sympy.Basic | None:
        if not isinstance(item, torch.fx.Node):
            return None if item is None else sympy.sympify(item)
        value = self.env[item]
        if not isinstance(value, Tensor):
            return value if value is None else sympy.sympify(value)
        view = self._as_traced(item).view
        assert view is not None
        return view

    def _as_traced(self, node: torch.fx.Node) -> Tensor:
        """The value of `node`, stored in the traced strides.

        Both the caller and the backward graph, which was traced with these strides, rely on them.

        Raises
        ------
        LoweringFailed
            If the value cannot be laid out that way.
        """
        value, fake = self.env[node], node.meta["val"]
        if not fits(value, node):
            strides = ", ".join(map(str, fake.stride()))
            raise LoweringFailed(f"{node.format_node()} cannot be returned with the traced strides ({strides}).")
        self.builder.node = node
        self.env[node] = laid_out(self.builder, value, fake, is_new(node))
        return self.env[node]

    def _named(self, name: str, value: torch.Tensor, role: str, weight: str | None) -> Tensor:
        """Add a buffer with the shape and strides of `value`, and return a view of all of it."""
        shape = tuple(sizes.as_size(n) for n in value.shape)
        strides = tuple(sizes.as_stride(n) for n in value.stride())
        self.builder.buffers[name] = Buffer(name, value.dtype, shape, strides, value.device, role, weight)
        return stored(whole(self.builder.buffers[name]), value.device)


_HANDLERS: dict[Any, Callable[[_Driver, torch.fx.Node], None]] = {
    aten._assert_scalar.default: _Driver._assert_scalar,
    aten.copy_.default: _Driver._copy_,
    aten.sym_constrain_range.default: _Driver._nothing,
    aten.sym_constrain_range_for_size.default: _Driver._nothing,
}


def _device(node: torch.fx.Node) -> torch.device | None:
    """The device of the node's results; None if it returns no tensors."""
    return next((v.device for v in tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)), None)


def _check_devices(device: torch.device | None, *values: Any) -> None:
    """Raise LoweringError if an operator reads tensors on another device than its result's. No kernel does."""
    others = {str(v.device) for v in tree_leaves(values) if isinstance(v, Tensor) and device not in (None, v.device)}
    if others:
        raise LoweringError(f"its result is on {device}, it reads tensors on {', '.join(sorted(others))}")


def _converted(source: Tensor, target: Tensor) -> Tensor:
    """`source`, broadcast to the sizes of `target` and converted to its dtype. A value of that dtype is not rounded again, so
    that a copy back into an input is known as one (passes/overwriting.py)."""

    def element_at(point: Point) -> expr.Node:
        value = source.at(broadcast_point(source.sizes, target.sizes, point))
        return value if source.dtype == target.dtype else convert(value, target.dtype)

    return computed(target.sizes, target.dtype, target.device, element_at)


def _number(value: Any) -> Any:
    """A plain or symbolic number as a sympy value; any other value unchanged."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.expr
    return sympy.sympify(value) if isinstance(value, bool | int | float) else value


def _plain(value: Any) -> Any:
    """Copy FX's immutable containers to plain ones."""
    if isinstance(value, list | tuple):
        items: Iterable[Any] = (_plain(v) for v in value)
        return list(items) if isinstance(value, list) else tuple(items)
    return value
