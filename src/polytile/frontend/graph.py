"""An FX graph of ATen operators, lowered node by node to a Program."""

from __future__ import annotations

import importlib
import operator
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx

from polytile.errors import LoweringError
from polytile.frontend import lower
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import TABLE
from polytile.frontend.lower.value import Tensor, broadcast_point, computed, convert, stored
from polytile.ir import expr, levels, ops, sizes
from polytile.ir.program import Assert, Buffer, Extern, Input, Loop, Program, Template, View, whole

KEEP_COST = 8.0  # multiply-adds a lane from which a value with several users is stored, not computed again
KEEP_LOADS = 2  # distinct loads from which it is stored: reading them again for each user costs more than one store and loads
LARGEST_VALUE = 96  # nodes from which any value is stored, so that kernels stay of readable size


@dataclass(frozen=True)
class OperatorReport:
    """What became of one operator of the graph: `how` is "generated", "template", "library" or "view" (no work at all)."""

    operator: str
    how: str
    reason: str


@dataclass(frozen=True)
class Lowered:
    program: Program
    operators: tuple[OperatorReport, ...]


def lower_graph(graph: torch.fx.GraphModule, name: str) -> Lowered:
    """The Program of a functional ATen graph whose nodes carry fake values in `meta["val"]`; never specialises a symbol."""
    _load_lowerings()
    return _Driver(graph, name).run()


_loaded = False


def _load_lowerings() -> None:
    global _loaded
    if not _loaded:
        for module in pkgutil.iter_modules(lower.__path__):
            importlib.import_module(f"{lower.__name__}.{module.name}")
        _loaded = True


class _Driver:
    """The state of one walk over a graph."""

    def __init__(self, graph: torch.fx.GraphModule, name: str) -> None:
        self.graph, self.name = graph, name
        self.builder = Builder()
        self.env: dict[torch.fx.Node, Any] = {}
        self.inputs: list[Input] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.reports: list[OperatorReport] = []
        self.outputs: tuple[View | sympy.Expr | None, ...] = ()

    def run(self) -> Lowered:
        for node in self.graph.graph.nodes:
            self.builder.node = node
            handler = getattr(self, node.op)
            handler(node)
        program = Program(
            self.name, tuple(self.inputs), self.builder.buffers, tuple(self.builder.operations), self.outputs, self.constants
        )
        return Lowered(program, tuple(self.reports))

    # kinds of node -----------------------------------------------------------------------------------------------------

    def placeholder(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            self.inputs.append(Input(node.name, buffer=node.name))
            self.env[node] = self._named(node.name, value, "input")
            return
        size = None if value is None or isinstance(value, str) else _size(value)
        if isinstance(size, sympy.Symbol):
            self.builder.define(size)
        self.inputs.append(Input(node.name, size=size))
        self.env[node] = size

    def get_attr(self, node: torch.fx.Node) -> None:
        value: Any = self.graph
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            self.constants[node.name] = value
            self.env[node] = self._named(node.name, node.meta.get("val", value), "constant")
        else:
            self.env[node] = value

    def call_function(self, node: torch.fx.Node) -> None:
        value, target = node.meta.get("val"), node.target
        if target is operator.getitem:
            self.env[node] = self.env[node.args[0]][node.args[1]]  # type: ignore[index]
        elif target is torch.ops.aten._local_scalar_dense.default:
            self._item(node, value)
        elif isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool) and value is not None:
            self.env[node] = _size(value)
        elif target is torch.ops.aten._assert_scalar.default:
            self._assert_scalar(node)
        elif target in _RANGE_HINTS:
            self.env[node] = None
        elif target is torch.ops.aten.copy_.default:
            self._copy_(node)
        else:
            self.env[node] = self._store_if_shared(node, self._lowered(node))

    call_method = call_module = call_function

    def output(self, node: torch.fx.Node) -> None:
        flat, _ = torch.utils._pytree.tree_flatten(node.args[0])
        self.outputs = tuple(self._output(item) for item in flat)

    # one operator ------------------------------------------------------------------------------------------------------

    def _lowered(self, node: torch.fx.Node) -> Any:
        args = tuple(_plain(a) for a in torch.fx.map_arg(node.args, self._value))
        kwargs = {k: _plain(v) for k, v in torch.fx.map_arg(dict(node.kwargs), self._value).items()}
        target = node.target
        lowering = TABLE.get(target)
        done, reason = len(self.builder.operations), f"{_name(target)} has no lowering"
        if lowering is not None:
            try:
                result = lowering(self.builder, *[self._scalars(a) for a in args], **{k: self._scalars(v) for k, v in kwargs.items()})
                self._report(node, done, result)
                return result
            except LoweringError as error:
                del self.builder.operations[done:]
                reason = str(error)
        self.reports.append(OperatorReport(_name(target), "library", reason))
        return self.builder.library(target, args, kwargs, reason)

    def _value(self, node: torch.fx.Node) -> Any:
        return self.env[node]

    def _scalars(self, value: Any) -> Any:
        """Symbolic numbers that are not integers reach kernels as tensors of one element."""
        if isinstance(value, sympy.Expr) and not value.is_integer and value.free_symbols:
            target = torch.ops.aten.scalar_tensor.default
            fake = torch.empty((), dtype=torch.float64, device="meta")
            return self.builder.library(target, (value,), {"dtype": torch.float64}, "a number known only at run time", _on_cpu(fake))
        return value

    def _report(self, node: torch.fx.Node, done: int, result: Any) -> None:
        new = self.builder.operations[done:]
        if any(isinstance(op, Extern) for op in new):
            reasons = [op.reason for op in new if isinstance(op, Extern)]
            how, reason = "library", reasons[0]
        elif any(isinstance(op, Template) for op in new):
            how, reason = "template", ""
        else:
            view = isinstance(result, Tensor) and result.view is not None and not new
            how, reason = ("view", "index algebra, no work") if view else ("generated", "")
        self.reports.append(OperatorReport(_name(node.target), how, reason))

    def _store_if_shared(self, node: torch.fx.Node, value: Any) -> Any:
        """Recompute or store: a value with several users is stored if it is costly, returned, or large."""
        if not isinstance(value, Tensor) or value.node is None:
            return value
        users = list(node.users)
        weight = list(expr.walk(value.node))
        cost = sum(ops.definition(n.name).cost for n in weight if isinstance(n, expr.Op))
        loads = sum(isinstance(n, expr.Load) for n in weight)
        shared = len(users) > 1 and (cost >= KEEP_COST or loads >= KEEP_LOADS or any(u.op == "output" for u in users))
        if shared or len(weight) >= LARGEST_VALUE:
            return self.builder.realize(value, self._layout(node.meta["val"], value))
        return value

    def _layout(self, fake: torch.Tensor, value: Tensor) -> tuple[sympy.Expr, ...] | None:
        """The traced strides where they are dense, else row-major."""
        strides = tuple(sizes.as_stride(s) for s in fake.stride())
        return strides if dense(value.sizes, strides) else sizes.contiguous_strides(value.sizes)

    # sizes, checks, mutation -------------------------------------------------------------------------------------------

    def _item(self, node: torch.fx.Node, value: Any) -> None:
        """`tensor.item()`: a size (or number) that is known only at run time."""
        size = _size(value)
        source = self.builder.argument(self.env[node.args[0]])  # type: ignore[index]
        symbols = ((size, ("item",)),) if isinstance(size, sympy.Symbol) and self.builder.define(size) else ()
        reason = "its result is a number on the host"
        self.builder.emit(Extern(self.builder.name("lib"), node.target, (source,), (), (None,), (_name(node.target),), reason, symbols))
        self.reports.append(OperatorReport(_name(node.target), "library", reason))
        self.env[node] = size

    def _assert_scalar(self, node: torch.fx.Node) -> None:
        condition, message = self._plain_arg(node.args[0]), node.args[1]
        if condition is not True and condition != sympy.true:
            self.builder.emit(Assert(self.builder.name("assert"), condition, str(message)))
        self.env[node] = None

    def _plain_arg(self, arg: Any) -> Any:
        return self.env[arg] if isinstance(arg, torch.fx.Node) else arg

    def _copy_(self, node: torch.fx.Node) -> None:
        """An input is overwritten: values not yet computed that read it are stored first."""
        target, source = self._plain_arg(node.args[0]), self._plain_arg(node.args[1])
        assert isinstance(target, Tensor) and target.view is not None, "copy_ into something that is not stored"
        for other, value in list(self.env.items()):
            if isinstance(value, Tensor) and value.node is not None and other is not node.args[1]:
                reads = {load.buffer for load in expr.loads(value.node)}
                if target.view.buffer in reads and any(u.op == "output" or u not in self.env for u in other.users):
                    self.env[other] = self.builder.realize(value, self._layout(other.meta["val"], value))
        self.builder.store(target.view, _converted(source, target))
        written = self.builder.operations[-1]
        if isinstance(written, Loop) and levels.in_place_fault(written):  # it would read elements already overwritten
            self.builder.operations.pop()
            source = self.builder.realize(source, sizes.contiguous_strides(source.sizes))
            self.builder.store(target.view, _converted(source, target))
        self.reports.append(OperatorReport(_name(node.target), "generated", "writes an input in place"))
        self.env[node] = target

    # results -----------------------------------------------------------------------------------------------------------

    def _output(self, item: Any) -> View | sympy.Expr | None:
        if not isinstance(item, torch.fx.Node):
            return None if item is None else sympy.sympify(item)
        value = self.env[item]
        if not isinstance(value, Tensor):
            return value
        fake = item.meta["val"]
        strides = tuple(sizes.as_stride(s) for s in fake.stride())
        same = value.view is not None and all(
            n == 1 or sizes.equal(a, b) for n, a, b in zip(value.sizes, value.view.strides, strides, strict=True)
        )
        if not same:
            self.builder.node = item
            value = self.builder.realize(value, strides if dense(value.sizes, strides) else sizes.contiguous_strides(value.sizes))
            self.env[item] = value
        assert value.view is not None
        return value.view

    def _named(self, name: str, value: torch.Tensor, role: str) -> Tensor:
        shape = tuple(sizes.as_size(n) for n in value.shape)
        strides = tuple(sizes.as_stride(n) for n in value.stride())
        self.builder.buffers[name] = Buffer(name, value.dtype, shape, strides, value.device, role)
        return stored(whole(self.builder.buffers[name]), value.device)


def _converted(source: Tensor, target: Tensor) -> Tensor:
    """`source`, broadcast and converted to what `target` holds."""
    return computed(
        target.sizes, target.dtype, target.device,
        lambda p: convert(source.at(broadcast_point(source.sizes, target.sizes, p)), target.dtype),
    )  # fmt: skip


_RANGE_HINTS = {
    getattr(torch.ops.aten, name).default
    for name in ("sym_constrain_range", "sym_constrain_range_for_size")
    if hasattr(torch.ops.aten, name)
}


def _name(target: Any) -> str:
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def _size(value: Any) -> Any:
    """A symbolic or plain number as sympy (or Boolean) value."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return sympy.Integer(value)
    if isinstance(value, float):
        return value
    return value.node.expr


def _on_cpu(fake: torch.Tensor) -> torch.Tensor:
    """A stand-in of the same type on the CPU, of which only the metadata is read."""
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="cpu")


def _plain(value: Any) -> Any:
    """FX's immutable containers as plain ones."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    return value


def dense(shape: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> bool:
    """Whether the strides are those of a row-major tensor up to a permutation of dimensions."""
    if any(n == 0 for n in shape):
        return True
    left = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    expected: sympy.Expr = sizes.ONE
    while left:
        found = next((d for d in left if sizes.equal(d[1], expected)), None)
        if found is None:
            return False
        left.remove(found)
        expected = sympy.expand(expected * found[0])
    return True
