"""The canonical text of a graph of ATen operators: graphs with equal texts are lowered to the same program.

It contains everything that lowering reads of a graph: every node with its arguments; the sizes, strides, offset, dtype and device
of each value, and which values share memory; decomposed operators; which inputs are weights; and what the tracer knows about
symbols, their ranges and guards. It does not contain the values that the tracer happened to see in its first call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves

from polytile.frontend.lower import registry
from polytile.frontend.taken_apart import KEY, Name, Result, Whole
from polytile.ir import sizes
from polytile.ir.serialise import Unstorable

SYMBOLIC = torch.SymInt | torch.SymFloat | torch.SymBool
NUMBERS = bool | int | float | complex | str | None
SETTINGS = torch.dtype | torch.device | torch.layout | torch.memory_format


def graph_text(graph: torch.fx.GraphModule, kind: str, weights: Mapping[str, str], guards: Sequence[str]) -> str:
    """The text of an AOTAutograd graph.

    Parameters
    ----------
    kind
        "forward", "backward" or "inference".
    weights
        Maps the inputs that are weights to their kind.
    guards
        The guards on the graph's symbols.

    Raises
    ------
    Unstorable
        If a part of the graph has no text.
    """
    return "\n".join((kind, *_Text(graph, weights).lines(), *guards))


@dataclass(frozen=True)
class Symbols:
    """The symbols of a graph's sizes, and the tracer's environment that knows them; None without symbols."""

    environment: ShapeEnv | None
    symbols: frozenset[sympy.Symbol]

    @staticmethod
    def of(graph: torch.fx.GraphModule) -> Symbols:
        numbers = [number.node for number in _symbolic(graph)]
        symbols = (symbol for number in numbers for symbol in sizes.symbols(number.expr))
        return Symbols(numbers[0].shape_env if numbers else None, frozenset(symbols))

    def guards(self) -> tuple[str, ...]:
        """The tracer's current guards and ranges of these symbols, sorted."""
        env, symbols = self.environment, self.symbols
        if env is None:
            return ()
        known = [sizes.structure(guard.expr) for guard in env.guards if sizes.symbols(guard.expr) & symbols]
        known += [sizes.structure(check.expr) for checks in env.deferred_runtime_asserts.values() for check in checks]
        known += [f"{symbol} in {env.var_to_range[symbol]}" for symbol in symbols if symbol in env.var_to_range]
        return tuple(sorted(known))


def _symbolic(graph: torch.fx.GraphModule) -> Iterator[Any]:
    """Every symbolic number among the values of the graph's nodes."""
    for node in graph.graph.nodes:
        for value in tree_leaves(node.meta.get("val")):
            parts = (*value.shape, *value.stride()) if _is_plain(value) else (value,)
            yield from (part for part in parts if isinstance(part, SYMBOLIC))


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


class _Text:
    """The conversion of one graph to text."""

    def __init__(self, graph: torch.fx.GraphModule, weights: Mapping[str, str]) -> None:
        self.graph, self.weights = graph, weights
        self.memory: dict[int, int] = {}
        """Numbers of the storages met so far."""
        self.wholes: dict[Whole, int] = {}

    def lines(self) -> Iterator[str]:
        for node in self.graph.graph.nodes:
            weight = f" {self.weights[node.name]}" if node.name in self.weights else ""
            unbacked = " unbacked" if node.meta.get("unbacked_bindings") else ""
            called = f"{self.target(node)}({self.value(node.args)}, {self.value(node.kwargs)})"
            yield f"{node.name}{weight}{unbacked} = {called}: {self.value(node.meta.get('val'))}{self.noted(node)}"

    def target(self, node: torch.fx.Node) -> str:
        target = node.target
        if node.op in ("placeholder", "output"):
            return node.op
        if node.op != "call_function":
            raise Unstorable(f"the graph holds {target!r}, a tensor or another graph")
        if isinstance(target, OpOverload):
            lowering = registry.TABLE.get(target)
            if lowering is not None and not _is_polytiles(lowering):
                raise Unstorable(f"{target} is lowered by {lowering.__module__}")
            return str(target)
        home, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
        if home in ("_operator", "math", "torch", "torch.fx.experimental.sym_node") and name:
            return f"{home}.{name}"
        raise Unstorable(f"the graph calls {target!r}, which is no operator of ATen")

    def noted(self, node: torch.fx.Node) -> str:
        """What else lowering reads of a node."""
        stack = node.meta.get("source_fn_stack")
        drawn = f" {stack[-1][1] in (torch.bernoulli, 'bernoulli')}" if stack and "bernoulli" in str(node.target) else ""
        return (f" part {self.value(node.meta[KEY])}" if KEY in node.meta else "") + drawn

    def value(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return f"%{value.name}"
        if isinstance(value, SYMBOLIC):
            return _number(value.node.expr)
        if isinstance(value, sympy.Basic):
            return _number(value)
        if isinstance(value, NUMBERS) and not isinstance(value, SYMBOLIC):
            return repr(complex(value) if isinstance(value, complex) else value)
        if isinstance(value, SETTINGS | OpOverload):
            return str(value)
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.value, value))}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key}: {self.value(each)}' for key, each in value.items())}}}"
        if isinstance(value, slice):
            return f"slice{self.value((value.start, value.stop, value.step))}"
        if isinstance(value, Name):
            return f"%{value.node}"
        if isinstance(value, Result):
            return f"{self.whole(value.call)}.{value.output}"
        if isinstance(value, torch.Generator):
            return f"generator on {value.device}"
        raise Unstorable(f"an argument is a {type(value).__module__}.{type(value).__qualname__}")

    def tensor(self, value: torch.Tensor) -> str:
        if not _is_plain(value) or value.is_quantized or value.is_nested:
            raise Unstorable(f"a tensor is {value.layout}, not strided")
        memory = self.memory.setdefault(value.untyped_storage()._cdata, len(self.memory))
        flags = ("conj " if value.is_conj() else "") + ("neg " if value.is_neg() else "")
        layout = self.value((*value.shape, *value.stride(), value.storage_offset()))
        return f"{flags}{value.dtype} {layout} {value.device} in {memory}"

    def whole(self, call: Whole) -> str:
        """A decomposed operator; in full at its first occurrence."""
        if call in self.wholes:
            return f"#{self.wholes[call]}"
        self.wholes[call] = len(self.wholes)
        given = f"{self.value(call.args)}, {self.value(call.kwargs)}"
        return f"#{self.wholes[call]} {call.target}({given}) {self.value(call.results)}"


@functools.lru_cache(maxsize=4096)
def _number(number: Any) -> str:
    """A size, with the assumptions on its symbols."""
    if not isinstance(number, sympy.Basic):
        return str(number)
    symbols = sizes.symbols(number)
    assumed = [(s.name, s.is_positive, s.is_nonnegative) for s in sorted(symbols, key=str)] if symbols else ""
    return f"{sizes.structure(number)}{assumed}"


def _is_polytiles(lowering: Callable[..., Any]) -> bool:
    """Whether the source digest distinguishes versions of this function."""
    return lowering.__module__.partition(".")[0] == __name__.partition(".")[0]
