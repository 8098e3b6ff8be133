"""The FX backend of the wrapper: lines become a torch.fx.GraphModule, for FX's passes, printers and interpreters.

The graph has one placeholder, the caller's list of arguments, which it empties. Kernels, lookups of packed weights and
checks are submodules with side effects, so that dead-code elimination keeps them. Library calls, memory, views and
sizes are ordinary nodes. Frees are left to FX, which drops each value after its last use.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max, Min, Mod, PowByNatural, PythonMod

from polytile.ir.complex_number import ComplexNumber
from polytile.wrapper import lines, python, tensors
from polytile.wrapper.backends import Wrapped
from polytile.wrapper.lines import Argument, Line


class Call(torch.nn.Module):
    """Calls a function for its side effects, such as a kernel with its tensors and integers."""

    _is_impure = True

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *args: Any) -> Any:
        return self.run(*args)


class Check(torch.nn.Module):
    """Raises an error unless the condition holds."""

    _is_impure = True

    def __init__(self, error: type[Exception], message: str) -> None:
        super().__init__()
        self.error, self.message = error, message

    def forward(self, holds: Any) -> None:
        if not holds:
            raise self.error(self.message)


def wrap(name: str, all_lines: tuple[Line, ...]) -> Wrapped:
    """The graph module of `all_lines`, available as the callable's attribute `graph_module`."""
    writer = _Writer()
    for line in all_lines:
        writer.write(line)
    module = torch.fx.GraphModule(writer.root, writer.graph, class_name=name)
    device = writer.device

    def call(args: list[Any]) -> list[Any]:
        on_device = contextlib.nullcontext() if device is None else torch.get_device_module(device).device(device)
        with on_device:
            return list(module(args))

    call._boxed_call = True  # type: ignore[attr-defined]
    call.graph_module = module  # type: ignore[attr-defined]
    return Wrapped(module.code, call)


def shape(tensor: torch.Tensor | None, dim: int, what: str) -> int:
    """Size or stride of a tensor along `dim`, in elements."""
    return int(getattr(tensor, what)(dim))


def offset(tensor: torch.Tensor) -> int:
    """Offset of a tensor in its storage, in elements."""
    return int(tensor.storage_offset())


def is_there(value: object) -> int:
    """1 for a value, 0 for None."""
    return 0 if value is None else 1


def bits(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Reinterprets a tensor's bits as another dtype of the same width."""
    return tensor.view(dtype)


def alias(tensor: torch.Tensor, sizes: Any, strides: Any, start: int) -> torch.Tensor:
    """A view that autograd knows as such, starting at element `start` of the tensor."""
    return tensor.as_strided(sizes, strides, tensor.storage_offset() + start)


_CHAINS: dict[type, Callable[..., Any]] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    FloorDiv: operator.floordiv,
    CleanDiv: operator.floordiv,
    Mod: operator.mod,
    PythonMod: operator.mod,
    Max: max,
    Min: min,
    PowByNatural: operator.pow,
}
"""Operations on integers, and the binary functions that compute them."""


class _Writer(lines.LineWriter):
    """Builds the graph. `values` maps names to nodes or plain numbers."""

    def __init__(self) -> None:
        self.root = torch.nn.Module()
        self.graph = torch.fx.Graph()
        self.values: dict[str, Any] = {}
        self.device: torch.device | None = None
        self.note = ""
        self.modules = 0

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.fx.Node:
        return self._with_note(self.graph.call_function(target, args, kwargs))

    def effect(self, module: torch.nn.Module, *args: Any, name: str = "part") -> torch.fx.Node:
        self.modules += 1
        target = name if not hasattr(self.root, name) else f"{name}_{self.modules}"
        self.root.add_module(target, module)
        return self._with_note(self.graph.call_module(target, args))

    def _with_note(self, node: torch.fx.Node) -> torch.fx.Node:
        if self.note:
            node.meta["source_operators"] = self.note
        return node

    def number(self, value: Any) -> Any:
        """A symbolic number or condition, as a node or a plain number."""
        if isinstance(value, sympy.Symbol):
            return self.values[value.name]
        if isinstance(value, sympy.Integer):
            return int(value)
        if not isinstance(value, sympy.Basic):
            return value
        if type(value) in _CHAINS:
            return functools.reduce(functools.partial(self.call, _CHAINS[type(value)]), map(self.number, value.args))
        return self._computed(value)

    def _computed(self, value: sympy.Basic) -> torch.fx.Node:
        """Computes an expression that FX has no operation for, by a Python function."""
        names = sorted(symbol.name for symbol in value.free_symbols)
        compute = eval(f"lambda {', '.join(names)}: {python.number(value)}", {"math": math, "torch": torch})
        return self.effect(Call(compute), *(self.values[name] for name in names), name="number")

    def numbers(self, values: Any) -> tuple[Any, ...]:
        return tuple(self.number(value) for value in values)

    def argument(self, value: Any) -> Any:
        if isinstance(value, Argument):
            return self.values[value.value] if isinstance(value.value, str) else self.number(value.value)
        if isinstance(value, list | tuple):
            return type(value)(self.argument(v) for v in value)
        if isinstance(value, dict):
            return {key: self.argument(v) for key, v in value.items()}
        if isinstance(value, complex):
            return ComplexNumber(value)
        return self.submodule(value) if callable(value) and not isinstance(value, torch._ops.OpOverload | type) else value

    def submodule(self, function: Callable[..., Any]) -> torch.fx.Node:
        """A function among a library call's arguments: a graph that a higher-order operator runs."""
        name = f"{getattr(function, '__name__', 'graph')}_{len(self.root._modules)}"
        self.root.add_module(name, function if isinstance(function, torch.nn.Module) else Call(function))
        return self.graph.get_attr(name)

    def picked(self, source: str, k: int | None) -> Any:
        return self.values[source] if k is None else self.call(operator.getitem, self.values[source], k)

    # lines -----------------------------------------------------------------------------------------------------------

    def comment(self, line: lines.Comment) -> None:
        self.note = line.text

    def define_kernel(self, line: lines.DefineKernel) -> None:
        self.root.add_module(line.name, Call(line.run))

    def constant(self, line: lines.Constant) -> None:
        setattr(self.root, line.name, line.value)
        self.values[line.name] = self.graph.get_attr(line.name)

    def take_arguments(self, line: lines.TakeArguments) -> None:
        args = self.graph.placeholder("args")
        for position, name in enumerate(line.names):
            self.values[name] = self.call(operator.getitem, args, position)
        self.graph.call_method("clear", (args,))

    def bind_size(self, line: lines.BindSize) -> None:
        self.values[line.symbol.name] = self.number(line.value)

    def read_size(self, line: lines.ReadSize) -> None:
        what = "stride" if line.stride else "size"
        self.values[line.symbol.name] = self.call(shape, self.values[line.tensor], line.dim, what)

    def check_sizes(self, line: lines.CheckSizes) -> None:
        self.effect(Check(line.error, line.message), self.number(line.condition), name="check")

    def allocate(self, line: lines.Allocate) -> None:
        buffer = line.buffer
        layout = self.numbers(buffer.sizes), self.numbers(buffer.strides)
        self.values[buffer.name] = self.call(torch.empty_strided, *layout, dtype=buffer.dtype, device=buffer.device)

    def free(self, line: lines.Free) -> None:
        """FX drops the value itself."""

    def reuse(self, line: lines.Reuse) -> None:
        new, old = line.buffer, self.values[line.old.name]
        same = new.sizes == line.old.sizes and new.strides == line.old.strides
        self.values[new.name] = old if same else self._reinterpreted(old, new, 0)

    def make_view(self, line: lines.MakeView) -> None:
        view, base = line.view, self.values[line.view.buffer]
        if line.dtype is not None:
            base = self.call(bits, base, line.dtype)
        start = self.number(view.offset)
        if line.alias:
            self.values[line.name] = self.call(alias, base, self.numbers(view.sizes), self.numbers(view.strides), start)
        else:
            self.values[line.name] = self._reinterpreted(base, view, start)

    def _reinterpreted(self, base: Any, layout: Any, start: Any) -> torch.fx.Node:
        return self.call(tensors.reinterpret_plainly, base, self.numbers(layout.sizes), self.numbers(layout.strides), start)

    def find_packed_weight(self, line: lines.FindPackedWeight) -> None:
        packed = self.effect(Call(line.find), self.values[line.weight], name=f"find_{line.name}")
        self.values[line.name] = packed
        if line.symbol is not None:
            self.values[line.symbol.name] = self.call(is_there, packed)

    def call_kernel(self, line: lines.CallKernel) -> None:
        args = (*(self.values[name] for name in line.tensors), *self.numbers(line.sizes))
        self._with_note(self.graph.call_module(line.kernel, args))

    def call_library(self, line: lines.CallLibrary) -> None:
        args = [self.argument(value) for value in line.args]
        kwargs = {name: self.argument(value) for name, value in line.kwargs}
        if isinstance(line.target, torch._ops.OpOverload):
            result = self._with_note(self.graph.call_function(line.target, tuple(args), kwargs))
        else:
            result = self.effect(Call(line.target), *args, name="library")
            result.kwargs = kwargs
        if line.result is not None:
            self.values[line.result] = result

    def pick_output(self, line: lines.PickOutput) -> None:
        strides = self.numbers(line.buffer.strides)
        self.values[line.buffer.name] = self.call(tensors.as_declared, self.picked(line.source, line.k), strides)

    def pick_size(self, line: lines.PickSize) -> None:
        value = self.picked(line.source, line.k)
        if line.what == "offset":
            value = self.call(offset, value)
        elif line.what != "item":
            value = self.call(shape, value, line.dim, line.what)
        self.values[line.symbol.name] = value

    def on_device(self, line: lines.OnDevice) -> None:
        self.device = line.device

    def return_(self, line: lines.Return) -> None:
        self.graph.output([self.values[v] if isinstance(v, str) else self.number(v) for v in line.values])
